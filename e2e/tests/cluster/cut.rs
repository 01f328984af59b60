//! Networks that are cut: between hubs that both live, and between one hub and MongoDB.

use std::time::{Duration, Instant};

use promethean_e2e::{Hub, Setup, get};
use promethean_testmongo::{Scratch, Setup as Mongo};
use serde_json::json;

use crate::pair::{Pair, ack, event, publish, subscribe};
use crate::way::Way;

/// What docs/clustering.md promises of a hub that loses MongoDB.
const TAKEOVER: Duration = Duration::from_secs(10);

/// Two hubs, of which others reach the first over a way.
async fn behind_a_way() -> (Pair, Way) {
    let way = Way::new().await;
    let address = format!("ws://{}", way.from);
    let started = tokio::task::spawn_blocking(move || {
        let scratch = Scratch::new();
        let setup = Setup::mongo(scratch.url());
        let a = setup.clone().env("PROMETHEAN_ADVERTISE", &address).start();
        Pair::of(a, setup.start(), scratch)
    });
    let pair = started.await.expect("two hubs");
    way.leads_to(pair.a.ws);
    (pair, way)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cut_off_from_the_owner_a_hub_takes_a_group_over_that_has_subscribers_only_there() {
    let (pair, way) = behind_a_way().await;
    let (mut a, mut b) = pair.connect().await;
    subscribe(&mut a, "cut.t", "g", json!({"from": "earliest"})).await;
    subscribe(&mut b, "cut.t", "g", json!({"from": "earliest"})).await;
    a.ok(json!({"op": "UNSUBSCRIBE", "topic": "cut.t", "group": "g"})).await;
    publish(&mut b, "cut.t", json!(1)).await;
    let (_, held, _) = event(&mut b).await;
    way.cut();
    publish(&mut b, "cut.t", json!(2)).await;
    let (first, again, ctx) = event(&mut b).await;
    assert_eq!((first, &again, &ctx["attempt"]), (json!(1), &held, &json!(2)), "what it held comes again");
    let (second, next, _) = event(&mut b).await;
    assert_eq!(second, 2);
    ack(&mut b, "cut.t", "g", &again).await;
    ack(&mut b, "cut.t", "g", &next).await;
    assert_eq!(get(pair.b.ops, "/lag?topic=cut.t&group=g").await.json()["lag"], 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cut_off_from_an_owner_with_subscribers_of_its_own_a_subscriber_is_told_and_its_events_go_there() {
    let (pair, way) = behind_a_way().await;
    let (mut a, mut b) = pair.connect().await;
    let one = json!({"from": "earliest", "maxInFlight": 1});
    subscribe(&mut a, "cut.u", "g", one.clone()).await;
    subscribe(&mut b, "cut.u", "g", one.clone()).await;
    for n in 0..2 {
        publish(&mut b, "cut.u", json!(n)).await;
    }
    let (mine, id, _) = event(&mut a).await;
    ack(&mut a, "cut.u", "g", &id).await;
    let (its, held, _) = event(&mut b).await;
    assert_ne!(mine, its);
    way.cut();
    let (payload, again, ctx) = event(&mut a).await;
    assert_eq!((payload, &again, &ctx["attempt"]), (its, &held, &json!(2)));
    ack(&mut a, "cut.u", "g", &again).await;
    let told = b.expect("ERR").await;
    assert_eq!((&told["code"], &told["topic"], &told["group"]), (&json!("ack_failed"), &json!("cut.u"), &json!("g")));
    let message = told["msg"].as_str().expect("a message");
    assert!(message.contains("cannot be reached") && message.contains(&way.from.to_string()), "{message}");
    // The hub itself is well: it publishes, and other groups of its own are served.
    subscribe(&mut b, "cut.u", "other", json!({"from": "earliest"})).await;
    assert_eq!(event(&mut b).await.0, 0);
    way.mend();
    subscribe(&mut b, "cut.u", "g", one).await;
    a.ok(json!({"op": "PAUSE", "topic": "cut.u", "group": "g"})).await;
    publish(&mut a, "cut.u", json!("mended")).await;
    while event(&mut b).await.0 != "mended" {}
}

/// Two hubs on a set of their own, the first over a way.
async fn one_over_a_way() -> (promethean_testmongo::Replica, Hub, Hub, Way) {
    let way = Way::new().await;
    let from = way.from;
    let started = tokio::task::spawn_blocking(move || {
        let replica = Mongo::default().start();
        (from, replica)
    });
    let (from, replica) = started.await.expect("a set");
    way.leads_to(([127, 0, 0, 1], replica.ports()[0]).into());
    let (over, direct) = (format!("mongodb://{from}/cut?directConnection=true"), replica.url("cut"));
    let started = tokio::task::spawn_blocking(move || (Setup::mongo(&over).start(), Setup::mongo(&direct).start()));
    let (a, b) = started.await.expect("two hubs");
    (replica, a, b, way)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hub_that_loses_mongodb_alone_says_so_and_another_takes_its_groups_over_in_time() {
    let (_replica, hub_a, hub_b, way) = one_over_a_way().await;
    let (mut a, mut b) = (promethean_e2e::Wire::connect(hub_a.ws).await, promethean_e2e::Wire::connect(hub_b.ws).await);
    let one = json!({"from": "earliest", "maxInFlight": 1});
    subscribe(&mut a, "lost.t", "g", one.clone()).await;
    publish(&mut a, "lost.t", json!(1)).await;
    let (_, held, _) = event(&mut a).await;
    subscribe(&mut b, "lost.t", "g", one).await;
    way.cut();
    let cut = Instant::now();
    publish(&mut b, "lost.t", json!(2)).await;
    let (first, again, _) = event(&mut b).await;
    assert!(cut.elapsed() < TAKEOVER, "taken over after {:?}", cut.elapsed());
    assert_eq!((first, &again), (json!(1), &held));
    // Somebody else has it: the old holder's ack must not be answered OK.
    let late = a.call(json!({"op": "ACK", "topic": "lost.t", "group": "g", "id": held})).await;
    assert_eq!(late["code"], "ack_failed", "{late}");
    let ready = get(hub_a.http, "/readyz").await;
    assert_eq!(ready.status, 503, "{}", ready.text());
    assert_eq!(get(hub_b.http, "/readyz").await.status, 200);
    ack(&mut b, "lost.t", "g", &again).await;
    let (second, next, _) = event(&mut b).await;
    assert_eq!(second, 2);
    ack(&mut b, "lost.t", "g", &next).await;
    way.mend();
    let mended = Instant::now();
    while get(hub_a.http, "/readyz").await.status != 200 {
        assert!(mended.elapsed() < Duration::from_secs(60), "not ready again");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    // The subscriber never left: it is served by the new owner.
    b.ok(json!({"op": "PAUSE", "topic": "lost.t", "group": "g"})).await;
    publish(&mut a, "lost.t", json!(3)).await;
    assert_eq!(event(&mut a).await.0, 3);
}
