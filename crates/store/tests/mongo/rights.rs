//! Rights that are taken away while the hub runs: what clients and the operator are told.

use mongodb::bson::doc;
use promethean_store::EventLog as _;
use promethean_store::suite::{append, event};
use promethean_testmongo::Setup;

use crate::{open, run};

#[test]
fn a_right_that_is_taken_away_is_told_without_the_command_that_needed_it() {
    run(90, async {
        let replica = Setup::default().user("admin", "right").start();
        let role = doc! { "role": "readWrite", "db": "prom" };
        replica.command(0, doc! { "createUser": "hub", "pwd": "h", "roles": [&role] }).expect("a user");
        let hub = open(&replica.url_of("hub", "h", "prom")).await;
        append(&hub, &[event("a")]).await;
        let reader = doc! { "role": "read", "db": "prom" };
        replica.command(0, doc! { "updateUser": "hub", "roles": [&reader] }).expect("another role");
        let error = hub.append(vec![event("a").new_event()]).await.expect_err("only reading is allowed");
        let said = error.to_string();
        assert!(said.contains("not authorized on prom"), "{said}");
        for secret in ["lsid", "signature", "to execute command", "clusterTime", "documents"] {
            assert!(!said.contains(secret), "{said}");
        }
    });
}
