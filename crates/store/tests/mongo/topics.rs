//! One call over several topics: each is stored and answered by itself, and keeps its publisher's order.

use std::future::poll_fn;
use std::task::Poll;

use mongodb::ClientSession;
use mongodb::bson::{Document, doc};
use promethean_store::mongo::Mongo;
use promethean_store::suite::{append, event, id, read_all, topic};
use promethean_store::{Error, EventLog as _, Outcome};
use promethean_testmongo::{Scratch, Setup};

use crate::{open, run};

/// Another's transaction that has written to a topic's counter: no append to the topic gets as far as its commit.
async fn hold(hub: &Mongo, name: &str) -> ClientSession {
    let mut session = hub.client().start_session().await.expect("a session");
    session.start_transaction().await.expect("begun");
    let counters = hub.database().collection::<Document>("counters");
    let held = counters.update_one(doc! { "_id": name }, doc! { "$set": { "held": 1 } }).session(&mut session).await;
    assert_eq!(held.expect("written").matched_count, 1);
    session
}

#[test]
fn of_one_call_what_is_stored_refused_and_unknown_is_told_of_each_topic_by_itself() {
    run(120, async {
        let replica = Setup::default().flag("--setParameter").flag("enableTestCommands=1").start();
        let hub = open(&replica.url("apart")).await;
        append(&hub, &[event("held")]).await;
        let _held = hold(&hub, "held").await;
        // The worse one at both ends: which topic is asked first is nobody's to know.
        let call = |other, n| {
            let units = [event("held").id(n), event(other).id(n + 1).unit(1), event("held").id(n + 2).unit(2)];
            tokio::spawn({
                let hub = hub.clone();
                async move { hub.append(units.iter().map(promethean_store::suite::Make::new_event).collect()).await }
            })
        };
        let stored = call("free", 10);
        hub.watch(&topic("free")).wait_for(|tail| tail.seq == 1).await.expect("the free one is stored");
        let data = doc! { "failCommands": ["commitTransaction"], "blockConnection": true, "blockTimeMS": 90_000 };
        let silent = doc! { "configureFailPoint": "failCommand", "mode": "alwaysOn", "data": data };
        replica.command(0, silent).expect("a failpoint");
        let unknown = call("silent", 20);

        let refused = |outcome: &Outcome| matches!(outcome, Outcome::Failed(Error::Refused(why)) if why.contains("nothing was stored"));
        let told = stored.await.expect("no panic").expect("each is told by itself");
        assert!(refused(&told[0]) && refused(&told[2]), "{told:?}");
        assert!(matches!(told[1], Outcome::Stored(one) if one.id == id(11) && one.seq == 1), "{told:?}");
        let told = unknown.await.expect("no panic").expect("each is told by itself");
        assert!(refused(&told[0]) && refused(&told[2]), "{told:?}");
        assert!(matches!(told[1], Outcome::Failed(Error::Unknown(_))), "{told:?}");
        assert_eq!(read_all(&hub, "held").await.len(), 1, "what was refused is not there");
        assert_eq!(read_all(&hub, "free").await.len(), 1, "what was answered is");
    });
}

/// Every call is asked again in the order of the calls, as a connection does with its bursts.
#[test]
fn calls_over_several_topics_keep_their_order_while_there_is_no_room() {
    const TOPICS: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
    const CALLS: u128 = 20;
    run(120, async {
        let scratch = Scratch::new();
        let hub = open(scratch.url()).await;
        append(&hub, &[event("large")]).await;
        let mut held = Some(hold(&hub, "large").await);
        // The room is 64 MiB. What does not fit waits before the small ones, and after them too.
        let payload = format!("\"{}\"", "x".repeat(1_000_000));
        let large = || (0..7).map(|_| event("large").payload(&payload).new_event()).collect::<Vec<_>>();
        let small = |call| {
            let units = (0..).zip(TOPICS).map(|(n, name)| event(name).id(call * 10 + u128::from(n) + 1).unit(n));
            units.map(|made| made.new_event()).collect::<Vec<_>>()
        };
        let calls = (0..10).map(|_| large()).chain((0..CALLS).map(small)).chain((0..6).map(|_| large()));
        let mut calls: Vec<_> = calls.map(|events| Some(hub.append(events))).collect();
        poll_fn(|cx| {
            for call in &mut calls {
                if let Some(Poll::Ready(told)) = call.as_mut().map(|waiting| waiting.as_mut().poll(cx)) {
                    assert!(told.expect("answered").iter().all(|one| matches!(one, Outcome::Stored(_))));
                    *call = None;
                }
            }
            // All of them have asked for room: now it comes.
            drop(held.take());
            if calls.iter().all(Option::is_none) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        for (n, name) in (0..).zip(TOPICS) {
            let stored: Vec<_> = read_all(&hub, name).await.iter().map(|event| event.id).collect();
            let sent: Vec<_> = (0..CALLS).map(|call| id(call * 10 + n + 1)).collect();
            assert_eq!(stored, sent, "{name}: in the order of the calls");
        }
    });
}
