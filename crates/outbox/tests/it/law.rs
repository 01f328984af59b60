//! What every store keeps. `law!` makes one named test per case for a store.

use std::sync::Arc;
use std::time::Duration;

use promethean_outbox::{
    Claim, EventId, Failed, List, Millis, NewRow, Next, OutboxStore, PublishOptions, Row, Stats, Status, Topic, Which,
};
use serde_json::value::RawValue;

use crate::fakes::{Fixture, numbered};

/// Makes a test of each case for the store that `$fixture` opens.
#[macro_export]
macro_rules! law {
    ($fixture:expr; $($case:ident),* $(,)?) => {
        $(#[tokio::test]
        async fn $case() {
            $crate::law::$case(&$fixture.await).await;
        })*
    };
    ($fixture:expr) => {
        $crate::law!($fixture;
            a_row_is_claimed_with_its_whole_envelope,
            rows_are_claimed_once_in_the_order_they_were_added,
            what_was_rolled_back_is_not_there,
            a_lease_that_ran_out_gives_the_row_to_the_next,
            a_lease_can_be_prolonged_by_its_holder_only,
            a_keys_later_rows_wait_for_a_claimed_one,
            a_keys_later_rows_wait_for_one_that_is_tried_again_later,
            a_parked_row_holds_nobody_back,
            a_row_that_is_given_back_has_not_used_an_attempt,
            a_worker_that_lost_its_claim_changes_nothing_but_sent,
            a_batch_is_bounded_in_bytes_but_never_empty,
            numbers_lists_and_retries,
            rows_sent_long_ago_are_taken_away,
            a_row_written_by_hand_is_found,
            claims_at_once_never_share_a_row_or_split_a_key,
        );
    };
}

const LEASE: Duration = Duration::from_secs(60);

pub(crate) async fn claim(store: &Arc<dyn OutboxStore>, rows: usize, worker: &str) -> Vec<Row> {
    claim_for(store, rows, worker, LEASE).await
}

async fn claim_for(store: &Arc<dyn OutboxStore>, rows: usize, worker: &str, lease: Duration) -> Vec<Row> {
    store.claim_batch(Claim { rows, bytes: 1 << 20, lease, worker }).await.expect("claimed")
}

fn payloads(rows: &[Row]) -> Vec<&str> {
    rows.iter().map(|row| row.payload.as_str()).collect()
}

fn ids(rows: &[Row]) -> Vec<String> {
    rows.iter().map(|row| row.id.clone()).collect()
}

fn failed(row: &Row, next: Next) -> Failed {
    Failed { id: row.id.clone(), err: Some("because".into()), next }
}

/// Until something is there, but not for ever: leases of tests are short.
async fn claim_until(store: &Arc<dyn OutboxStore>, worker: &str) -> Vec<Row> {
    for _ in 0..400 {
        store.requeue_expired().await.expect("requeued");
        let rows = claim(store, 10, worker).await;
        if !rows.is_empty() {
            return rows;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("nothing to claim after four seconds");
}

pub(crate) async fn a_row_is_claimed_with_its_whole_envelope(fixture: &dyn Fixture) {
    let payload = "{\"a\": 1.0, \"b\":\"\\u00e9é\\ud800\",\"a\":1e400, \"n\":12345678901234567890123}";
    let (id, cause) = (EventId::from_bytes([7; 16]), EventId::from_bytes([8; 16]));
    let row = NewRow::raw(
        Topic::parse("orders.created").expect("a topic"),
        RawValue::from_string(payload.into()).expect("JSON"),
    )
    .options(PublishOptions {
        id: Some(id),
        ts: Some(Millis(1_731_650_000_000)),
        key: Some("k\"\n1".into()),
        headers: vec![("x-b".into(), "2".into()), ("x-a".into(), "\"1\"".into())],
        tags: vec!["#one".into(), "two".into()],
        caused_by: vec![cause],
        sid: Some("shop-1".into()),
    });
    fixture.add(&[row]).await;
    let claimed = claim(&fixture.store(), 10, "w").await;
    let [row] = claimed.as_slice() else { panic!("one row: {claimed:?}") };
    let draft = row.draft().expect("a good row");
    assert_eq!(draft.payload.get(), payload, "byte for byte");
    assert_eq!(draft.topic.as_str(), "orders.created");
    assert_eq!((draft.options.id, draft.options.ts), (Some(id), Some(Millis(1_731_650_000_000))));
    assert_eq!(draft.options.key.as_deref(), Some("k\"\n1"));
    assert_eq!(draft.options.headers, [("x-b".into(), "2".into()), ("x-a".into(), "\"1\"".into())]);
    assert_eq!(draft.options.tags, ["#one", "two"]);
    assert_eq!((draft.options.caused_by, draft.options.sid.as_deref()), (vec![cause], Some("shop-1")));
    assert_eq!((row.status, row.attempts, row.claimed_by.as_deref()), (Status::Claimed, 1, Some("w")));
    let until = row.lease_until.expect("a lease");
    let left = until.since(Millis::now());
    assert!(left > LEASE / 2 && left <= LEASE + Duration::from_secs(5), "{left:?}");
}

pub(crate) async fn rows_are_claimed_once_in_the_order_they_were_added(fixture: &dyn Fixture) {
    for number in 0..5 {
        fixture.add(&[numbered("t", None, number), numbered("t", Some("k"), number + 100)]).await;
    }
    let store = fixture.store();
    let first = claim(&store, 3, "a").await;
    assert_eq!(payloads(&first), ["0", "100", "1"]);
    let second = claim(&fixture.store(), 100, "b").await;
    assert_eq!(payloads(&second), ["2", "3", "4"], "the key waits for its claimed row");
    assert!(claim(&store, 100, "c").await.is_empty());
    store.mark_sent(&ids(&first)).await.expect("marked");
    assert_eq!(payloads(&claim(&store, 100, "c").await), ["101", "102", "103", "104"]);
}

pub(crate) async fn what_was_rolled_back_is_not_there(fixture: &dyn Fixture) {
    fixture.add_and_roll_back(&[numbered("t", None, 1), numbered("t", Some("k"), 2)]).await;
    assert!(claim(&fixture.store(), 10, "w").await.is_empty());
    assert_eq!(fixture.store().stats().await.expect("read"), Stats::default());
}

pub(crate) async fn a_lease_that_ran_out_gives_the_row_to_the_next(fixture: &dyn Fixture) {
    fixture.add(&[numbered("t", Some("k"), 1)]).await;
    let store = fixture.store();
    // Long enough for a busy machine to look before it has run out.
    let first = claim_for(&store, 10, "a", Duration::from_millis(700)).await;
    assert_eq!(store.requeue_expired().await.expect("none yet"), 0);
    assert!(claim(&store, 10, "b").await.is_empty());
    let second = claim_until(&store, "b").await;
    assert_eq!(ids(&first), ids(&second));
    assert_eq!((second[0].attempts, second[0].claimed_by.as_deref()), (2, Some("b")));
}

pub(crate) async fn a_lease_can_be_prolonged_by_its_holder_only(fixture: &dyn Fixture) {
    fixture.add(&[numbered("t", None, 1), numbered("t", None, 2)]).await;
    let store = fixture.store();
    let short = Duration::from_millis(30);
    let (mine, other) = (claim_for(&store, 1, "a", short).await, claim_for(&store, 1, "b", short).await);
    let both = [ids(&mine), ids(&other)].concat();
    store.extend(&both, "a", LEASE).await.expect("prolonged");
    let requeued = claim_until(&store, "c").await;
    assert_eq!(ids(&requeued), ids(&other));
}

pub(crate) async fn a_keys_later_rows_wait_for_a_claimed_one(fixture: &dyn Fixture) {
    fixture.add(&[numbered("t", Some("k"), 1), numbered("u", Some("k"), 2), numbered("t", Some("l"), 3)]).await;
    let store = fixture.store();
    assert_eq!(payloads(&claim(&store, 1, "a").await), ["1"]);
    assert_eq!(payloads(&claim(&store, 10, "b").await), ["3"], "whatever the topic");
}

pub(crate) async fn a_keys_later_rows_wait_for_one_that_is_tried_again_later(fixture: &dyn Fixture) {
    fixture.add(&[numbered("t", Some("k"), 1), numbered("t", Some("k"), 2), numbered("t", Some("l"), 3)]).await;
    let store = fixture.store();
    let first = claim(&store, 1, "a").await;
    store.mark_error(&[failed(&first[0], Next::Later(Duration::from_millis(150)))], "a").await.expect("marked");
    assert_eq!(payloads(&claim(&store, 10, "a").await), ["3"]);
    let again = claim_until(&store, "a").await;
    assert_eq!(payloads(&again), ["1", "2"]);
    assert_eq!((again[0].attempts, again[0].last_err.as_deref()), (2, Some("because")));
}

pub(crate) async fn a_parked_row_holds_nobody_back(fixture: &dyn Fixture) {
    fixture.add(&[numbered("t", Some("k"), 1), numbered("t", Some("k"), 2)]).await;
    let store = fixture.store();
    let first = claim(&store, 1, "a").await;
    store.mark_error(&[failed(&first[0], Next::Park)], "a").await.expect("marked");
    assert_eq!(payloads(&claim(&store, 10, "a").await), ["2"]);
    let parked = store.list(List { status: Some(Status::Error), limit: 10 }).await.expect("listed");
    assert_eq!((payloads(&parked), parked[0].last_err.as_deref()), (vec!["1"], Some("because")));
    assert_eq!((parked[0].claimed_by.as_deref(), parked[0].lease_until), (None, None));
}

pub(crate) async fn a_row_that_is_given_back_has_not_used_an_attempt(fixture: &dyn Fixture) {
    fixture.add(&[numbered("t", None, 1)]).await;
    let store = fixture.store();
    for _ in 0..3 {
        let rows = claim(&store, 1, "a").await;
        assert_eq!(rows[0].attempts, 1);
        store.mark_error(&[failed(&rows[0], Next::Release)], "a").await.expect("marked");
    }
    store
        .mark_error(&[failed(&claim(&store, 1, "a").await[0], Next::Wait(Duration::from_millis(100)))], "a")
        .await
        .expect("marked");
    assert!(claim(&store, 1, "a").await.is_empty(), "it waits");
    let kept = Failed { id: ids(&claim_until(&store, "a").await)[0].clone(), err: None, next: Next::Release };
    store.mark_error(&[kept], "a").await.expect("marked");
    let row = &store.list(List { status: None, limit: 1 }).await.expect("listed")[0];
    assert_eq!((row.status, row.attempts, row.last_err.as_deref()), (Status::Pending, 0, Some("because")));
}

pub(crate) async fn a_worker_that_lost_its_claim_changes_nothing_but_sent(fixture: &dyn Fixture) {
    fixture.add(&[numbered("t", None, 1)]).await;
    let store = fixture.store();
    let lost = claim_for(&store, 1, "a", Duration::from_millis(5)).await;
    let now = claim_until(&store, "b").await;
    for next in [Next::Park, Next::Release, Next::Later(Duration::ZERO)] {
        store.mark_error(&[failed(&lost[0], next)], "a").await.expect("ignored");
    }
    assert_eq!(store.list(List { status: None, limit: 1 }).await.expect("listed"), now, "still b's");
    store.mark_sent(&ids(&lost)).await.expect("marked");
    let row = &store.list(List { status: None, limit: 1 }).await.expect("listed")[0];
    assert_eq!((row.status, row.claimed_by.as_deref(), row.lease_until), (Status::Sent, None, None));
    store.mark_error(&[failed(&lost[0], Next::Park)], "b").await.expect("ignored");
    assert_eq!(store.list(List { status: None, limit: 1 }).await.expect("listed")[0].status, Status::Sent);
}

pub(crate) async fn a_batch_is_bounded_in_bytes_but_never_empty(fixture: &dyn Fixture) {
    let big = "x".repeat(10_000);
    let rows: Vec<_> = (0..4).map(|_| NewRow::new("t", &big).expect("a row")).collect();
    fixture.add(&rows).await;
    let store = fixture.store();
    let with = |bytes| Claim { rows: 10, bytes, lease: LEASE, worker: "w" };
    assert_eq!(store.claim_batch(with(1)).await.expect("claimed").len(), 1);
    assert_eq!(store.claim_batch(with(15_000)).await.expect("claimed").len(), 2);
    assert_eq!(store.claim_batch(with(1 << 20)).await.expect("claimed").len(), 1);
}

pub(crate) async fn numbers_lists_and_retries(fixture: &dyn Fixture) {
    let store = fixture.store();
    fixture.add(&(0..6).map(|number| numbered("t", None, number)).collect::<Vec<_>>()).await;
    tokio::time::sleep(Duration::from_millis(5)).await;
    let rows = claim(&store, 5, "w").await;
    store.mark_sent(&ids(&rows[..1])).await.expect("marked");
    let parked: Vec<_> = rows[1..4].iter().map(|row| failed(row, Next::Park)).collect();
    store.mark_error(&parked, "w").await.expect("marked");
    let stats = store.stats().await.expect("read");
    assert_eq!((stats.pending, stats.claimed, stats.parked), (1, 1, 3));
    let oldest = stats.oldest.expect("there are some");
    assert!(oldest >= Duration::from_millis(4) && oldest < Duration::from_secs(30), "{oldest:?}");
    let all = store.list(List { status: None, limit: 100 }).await.expect("listed");
    assert_eq!(payloads(&all), ["0", "1", "2", "3", "4", "5"]);
    let some = store.list(List { status: Some(Status::Error), limit: 2 }).await.expect("listed");
    assert_eq!(payloads(&some), ["1", "2"]);
    let one = Which::Ids(vec![rows[2].id.clone(), rows[0].id.clone(), "unknown".into()]);
    assert_eq!(store.retry(&one).await.expect("retried"), 1, "only what is parked");
    let again = claim(&store, 1, "w").await;
    assert_eq!((payloads(&again), again[0].attempts), (vec!["2"], 1));
    assert_eq!(store.retry(&Which::All).await.expect("retried"), 2);
    assert_eq!(store.retry(&Which::All).await.expect("retried"), 0);
    assert_eq!(store.stats().await.expect("read").parked, 0);
}

pub(crate) async fn rows_sent_long_ago_are_taken_away(fixture: &dyn Fixture) {
    let old = |number: usize| {
        let row = NewRow::new("t", &number).expect("a row");
        row.options(PublishOptions { ts: Some(Millis(1_000 + number as u64)), ..Default::default() })
    };
    fixture.add(&[old(0), old(1), old(2), old(3), numbered("t", None, 4)]).await;
    let store = fixture.store();
    let rows = claim(&store, 10, "w").await;
    store.mark_sent(&ids(&rows[..3])).await.expect("marked");
    store.mark_sent(&ids(&rows[4..])).await.expect("marked");
    let day = Duration::from_secs(86_400);
    assert_eq!(store.purge_sent(day, 2).await.expect("purged"), 2);
    assert_eq!(store.purge_sent(day, 2).await.expect("purged"), 1);
    assert_eq!(store.purge_sent(day, 2).await.expect("purged"), 0);
    let left = store.list(List { status: None, limit: 10 }).await.expect("listed");
    assert_eq!(payloads(&left), ["3", "4"], "what is not sent stays, and what was sent lately");
}

pub(crate) async fn a_row_written_by_hand_is_found(fixture: &dyn Fixture) {
    fixture.write(["not-a-uuid", "no topic", "{"]).await;
    fixture.write(["0199d1c0-7d3b-7cc2-8b1a-3f0e2c9a4b5d", "a.b", r#"{"a":1}"#]).await;
    let rows = claim(&fixture.store(), 10, "w").await;
    let good: Vec<_> = rows.iter().filter_map(|row| row.draft().ok()).collect();
    assert_eq!(rows.len(), 2);
    assert_eq!(good.len(), 1);
    let payload: serde_json::Value = serde_json::from_str(good[0].payload.get()).expect("JSON");
    assert_eq!((good[0].topic.as_str(), payload), ("a.b", serde_json::json!({"a": 1})));
    assert!(good[0].options.ts.is_some_and(|ts| ts.0 > 1_500_000_000_000), "now, where nobody said: {good:?}");
}

pub(crate) async fn claims_at_once_never_share_a_row_or_split_a_key(fixture: &dyn Fixture) {
    let rows: Vec<_> = (0..300).map(|number| numbered("t", Some(&(number % 20).to_string()), number)).collect();
    fixture.add(&rows).await;
    let mut tasks = tokio::task::JoinSet::new();
    for worker in 0..4 {
        let store = fixture.store();
        tasks.spawn(async move {
            let mut held = Vec::new();
            for _ in 0..6 {
                held.push(claim(&store, 25, &format!("w{worker}")).await);
            }
            held.concat()
        });
    }
    let held = tasks.join_all().await;
    let mut owner = std::collections::HashMap::new();
    let mut all: Vec<usize> = Vec::new();
    for (worker, rows) in held.iter().enumerate() {
        for row in rows {
            let before = owner.insert(row.key.clone(), worker);
            assert!(before.is_none_or(|before| before == worker), "the key {:?} is in two hands", row.key);
            all.push(row.payload.parse().expect("a number"));
        }
    }
    let count = all.len();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), count, "no row twice");
    // Of each key the first rows, none left out in between.
    for key in 0..20 {
        let of_key: Vec<usize> = all.iter().copied().filter(|number| number % 20 == key).collect();
        let expected: Vec<usize> = (0..of_key.len()).map(|n| n * 20 + key).collect();
        assert_eq!(of_key, expected);
    }
    assert!(count >= 20, "something was claimed: {count}");
}
