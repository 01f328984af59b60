//! What a process that died has left open does not keep others from their topics.

use std::time::Duration;

use mongodb::ClientSession;
use mongodb::bson::{Document, doc};
use promethean_store::mongo::{Cluster, Mongo};
use promethean_store::suite::{append, event};
use promethean_store::{Ownership as _, Terms};
use promethean_testmongo::Setup;

use crate::{open, run};

/// A transaction of this hub's in the middle of an append, which nobody goes on with.
async fn begun(hub: &Mongo, topic: &str) -> ClientSession {
    let mut session = hub.client().start_session().await.expect("a session");
    session.start_transaction().await.expect("begun");
    let counters = hub.database().collection::<Document>("counters");
    let touched = counters.update_one(doc! { "_id": topic }, doc! { "$inc": { "next": 1_i64 } });
    touched.session(&mut session).await.expect("written");
    session
}

/// MongoDB itself would give the transaction up after a minute, an append after half of one.
#[test]
fn whoever_finds_a_hub_dead_ends_its_transactions_with_no_right_but_to_read_and_write() {
    run(120, async {
        let replica = Setup::default().user("admin", "right").start();
        let roles = [doc! { "role": "readWrite", "db": "prom" }];
        replica.command(0, doc! { "createUser": "hub", "pwd": "h", "roles": &roles[..] }).expect("a user");
        let url = replica.url_of("hub", "h", "prom");
        let (dies, lives) = (open(&url).await, open(&url).await);
        let every = Duration::from_millis(500);
        let terms = Terms { ttl: 4 * every, every, margin: every };
        let place = Cluster::join(&dies, "ws://one:1", "1", terms).await.expect("a place");
        let other = Cluster::join(&lives, "ws://two:2", "1", terms).await.expect("a place");
        append(&lives, &[event("t")]).await;
        let mut left = begun(&dies, "t").await;
        // Without a goodbye: no more heartbeats, and everything stays as it is.
        drop(place);
        assert_eq!(append(&lives, &[event("t")]).await[0].seq, 2, "it waited for the other to be declared dead");
        left.commit_transaction().await.expect_err("it was ended");
        assert_eq!(append(&lives, &[event("t")]).await[0].seq, 3);
        other.leave().await.expect("left");
    });
}
