//! What the engine refuses to open, with the remedy, and without a hang.

use std::time::{Duration, Instant};

use mongodb::bson::doc;
use mongodb::options::{ReadPreference, SelectionCriteria};
use promethean_store::mongo::{Mongo, OpenError, Options};
use promethean_testmongo::{Scratch, Setup, shared_url};

use crate::run;

pub(crate) async fn refused(url: &str) -> OpenError {
    let began = Instant::now();
    let Err(error) = Mongo::open(Options::new(url)).await else { panic!("{url} opens") };
    assert!(began.elapsed() < Duration::from_secs(20), "it took {:?} to refuse", began.elapsed());
    error
}

#[test]
fn an_address_that_is_none_is_named() {
    run(60, async {
        for url in ["nonsense", "http://localhost", "mongodb://", "mongodb://h:1/?w=nonsense&x", "mongodb://a:b:c@h"] {
            let error = refused(url).await;
            assert!(matches!(error, OpenError::BadUrl(_)), "{url}: {error:?}");
        }
    });
}

#[test]
fn a_database_that_is_mongodbs_own_or_cannot_be_called_so_is_refused_before_anything_is_written() {
    run(60, async {
        let url = |name: &str| {
            let shared = shared_url();
            let (hosts, options) = shared.trim_start_matches("mongodb://").split_once('/').expect("an address");
            let options = options.split_once('?').map_or("", |(_, options)| options);
            format!("mongodb://{hosts}/{name}?{options}")
        };
        let long = "d".repeat(64);
        for name in ["bad.db", "bad%20db", "bad%24db", "bad%22db", "bad%5Cdb", &long, "admin", "config", "local"] {
            let error = refused(&url(name)).await;
            assert!(matches!(error, OpenError::BadUrl(_)), "{name}: {error:?}");
        }
        let said = refused(&url("admin")).await.to_string();
        assert!(said.contains("\"admin\" is one of MongoDB's own") && said.contains("authSource=admin"), "{said}");
        let client = mongodb::Client::with_uri_str(shared_url()).await.expect("a client");
        for name in ["admin", "config", "local"] {
            let there = client.database(name).list_collection_names().await.expect("listed");
            assert!(!there.iter().any(|one| one == "meta" || one == "counters"), "{name}: {there:?}");
        }
    });
}

#[test]
fn a_pool_in_which_heartbeats_would_wait_for_publishes_is_refused() {
    run(60, async {
        for few in 1..=3 {
            let error = refused(&format!("mongodb://127.0.0.1:1/prom?maxPoolSize={few}")).await;
            assert_eq!(error, OpenError::FewConnections(few));
            assert!(error.to_string().contains("leave it out"), "{error}");
        }
        let error = refused("mongodb://127.0.0.1:1/prom?maxPoolSize=4").await;
        assert!(matches!(error, OpenError::Unreachable { .. }), "{error:?}");
    });
}

#[test]
fn a_server_that_is_not_there_is_said_to_be_unreachable() {
    run(60, async {
        let error = refused("mongodb://127.0.0.1:1/prom").await;
        assert!(matches!(error, OpenError::Unreachable { .. }), "{error:?}");
        let said = error.to_string();
        assert!(said.contains("127.0.0.1:1") && said.contains("Connection refused"), "{said}");
        // Takes connections and never answers.
        let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let error = refused(&format!("mongodb://{}/prom", silent.local_addr().expect("bound"))).await;
        assert!(matches!(error, OpenError::Unreachable { .. }), "{error:?}");
    });
}

#[test]
fn a_lone_server_and_a_set_that_was_never_begun_are_refused() {
    run(90, async {
        let lone = Setup::default().standalone().start();
        let error = refused(&lone.url("prom")).await;
        assert!(matches!(error, OpenError::NotReplicaSet(_)), "{error:?}");
        let error = refused(&format!("{}replicaSet=rs0", lone.url("prom"))).await;
        assert!(matches!(error, OpenError::NotReplicaSet(_)), "{error:?}");
        assert!(error.to_string().contains("--replSet"), "{error}");
        drop(lone);
        let unbegun = Setup::default().uninitiated().start();
        let error = refused(&unbegun.url("prom")).await;
        assert!(matches!(error, OpenError::NotInitiated(_)), "{error:?}");
    });
}

#[test]
fn a_set_of_another_name_is_told() {
    run(60, async {
        let url = shared_url().replace("replicaSet=rs0", "replicaSet=other");
        if url.contains("replicaSet=other") {
            let error = refused(&url).await;
            assert!(matches!(&error, OpenError::OtherSet { said, .. } if said == "other"), "{error:?}");
        }
    });
}

#[test]
fn a_primary_that_is_there_and_not_as_the_address_says_is_not_said_to_be_missing() {
    run(60, async {
        let url = shared_url();
        if url.contains("tls=") || !url.contains('?') {
            return; // a developer's own server
        }
        let error = refused(&format!("{url}&tls=true")).await;
        assert!(matches!(error, OpenError::NotSo { .. }), "{error:?}");
        let said = error.to_string();
        assert!(said.contains("has a primary, 127.0.0.1:") && said.contains("tls") && said.contains("I/O"), "{said}");
    });
}

/// A secondary knows later than the primary what is safe: a hub that reads there passes events over.
#[test]
fn the_primary_is_read_whatever_the_address_says() {
    run(60, async {
        let scratch = Scratch::new();
        for preference in ["secondary", "nearest", "secondaryPreferred"] {
            let and = if scratch.url().contains('?') { '&' } else { '?' };
            let url = format!("{}{and}readPreference={preference}", scratch.url());
            let hub = Mongo::open(Options::new(url)).await.expect("a set of one member has nothing but a primary");
            let at = hub.client().selection_criteria().cloned();
            let primary = matches!(at, Some(SelectionCriteria::ReadPreference(ReadPreference::Primary)));
            assert!(primary, "{preference}: {at:?}");
        }
    });
}

#[test]
fn a_wrong_password_and_a_user_without_rights_are_refused() {
    run(120, async {
        let replica = Setup::default().user("admin", "right").start();
        let error = refused(&replica.url_of("admin", "wrong", "prom")).await;
        assert!(matches!(error, OpenError::Authentication(_)), "{error:?}");
        assert!(error.to_string().contains("authSource") && !error.to_string().contains("wrong"), "{error}");
        let error = refused(&replica.url_without_user("prom")).await;
        assert!(matches!(error, OpenError::Authentication(_)), "{error:?}");
        let reader = doc! { "createUser": "reader", "pwd": "r", "roles": [{ "role": "read", "db": "prom" }] };
        replica.command(0, reader).expect("a user");
        let error = refused(&replica.url_of("reader", "r", "prom")).await;
        assert!(matches!(&error, OpenError::NoPermission { database, .. } if database == "prom"), "{error:?}");
        assert!(error.to_string().contains("grantRolesToUser"), "{error}");
        let writer = doc! { "createUser": "writer", "pwd": "w", "roles": [{ "role": "readWrite", "db": "prom" }] };
        replica.command(0, writer).expect("a user");
        let opened = Mongo::open(Options::new(replica.url_of("writer", "w", "prom"))).await;
        assert!(opened.is_ok(), "readWrite on the database is enough: {:?}", opened.err());
    });
}
