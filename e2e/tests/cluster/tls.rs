//! Hubs that reach each other over TLS: certificates are checked.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use mongodb::bson::{Document, doc};
use promethean_client::{Client, Delivery, From, SubscribeOptions, Subscription};
use promethean_e2e::{Hub, Setup};
use promethean_testmongo::Scratch;

async fn connect(hub: &Hub, tls: &Arc<rustls::ClientConfig>) -> Client {
    let url = format!("wss://127.0.0.1:{}", hub.ws.port());
    Client::builder(url).tls(Arc::clone(tls)).connect().await.expect("connected")
}

/// One event at a time: who does not ack gets no second one.
fn one() -> SubscribeOptions {
    SubscribeOptions { from: From::Earliest, max_in_flight: 1, ..SubscribeOptions::default() }
}

async fn next(events: &mut Subscription) -> Delivery {
    let next = tokio::time::timeout(Duration::from_secs(60), events.next()).await;
    next.expect("in time").expect("open").expect("a delivery")
}

fn trusting(der: &rcgen::Certificate) -> Arc<rustls::ClientConfig> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(der.der().clone()).expect("a root");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let versions = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    Arc::new(versions.expect("versions").with_root_certificates(roots).with_no_client_auth())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_over_tls_serves_and_a_hub_that_does_not_trust_the_owners_certificate_says_so() {
    let dir = tempfile::tempdir().expect("a directory");
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).expect("a certificate");
    let file = |name: &str, text: String| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).expect("written");
        path.display().to_string()
    };
    let (cert, key) = (file("cert.pem", made.cert.pem()), file("key.pem", made.signing_key.serialize_pem()));
    let started = tokio::task::spawn_blocking(move || {
        let scratch = Scratch::new();
        let setup = Setup::mongo(scratch.url()).env("PROMETHEAN_TLS_CERT", &cert).env("PROMETHEAN_TLS_KEY", &key);
        let trusts = setup.clone().env("SSL_CERT_FILE", &cert);
        let nobody = Path::new(&cert).with_file_name("nobody.pem").display().to_string();
        (trusts.start(), trusts.start(), setup.env("SSL_CERT_FILE", &nobody).start(), scratch)
    });
    let (a, b, distrusts, scratch) = started.await.expect("three hubs");
    let database = mongodb::Client::with_uri_str(scratch.url()).await.expect("a client").default_database();
    let hubs = database.expect("named").collection::<Document>("hubs");
    let plain =
        hubs.count_documents(doc! { "address": { "$not": { "$regex": "^wss://127" } } }).await.expect("counted");
    assert_eq!((plain, hubs.count_documents(doc! {}).await.expect("counted")), (0, 3), "all are reached over TLS");

    let tls = trusting(&made.cert);
    let (at_a, at_b) = (connect(&a, &tls).await, connect(&b, &tls).await);
    let mut first = at_a.subscribe("tls.t", Some("g"), one()).await.expect("subscribed");
    let mut second = at_b.subscribe("tls.t", Some("g"), one()).await.expect("relayed");
    for n in 0..5 {
        at_b.publish("tls.t", &n).await.expect("published");
    }
    let held = next(&mut first).await;
    let mut came = Vec::new();
    for _ in 0..4 {
        let delivery = next(&mut second).await;
        delivery.ack().await.expect("acked");
        came.push(delivery.event().payload.get().to_owned());
    }
    came.push(held.event().payload.get().to_owned());
    held.ack().await.expect("acked");
    came.sort();
    assert_eq!(came, ["0", "1", "2", "3", "4"]);

    let at_c = connect(&distrusts, &tls).await;
    let Err(refused) = at_c.subscribe("tls.t", Some("g"), one()).await else {
        panic!("a hub that is not trusted relays")
    };
    let refused = refused.to_string();
    assert!(refused.contains("cannot be reached") && refused.contains("certificate"), "{refused}");
}
