//! The law every engine must pass: one macro, one named test per case.
//!
//! ```text
//! promethean_store::suite!(|| Box::new(MyPlace::new()));          // every engine
//! promethean_store::durable_suite!(|| Box::new(MyPlace::new()));  // engines whose data outlive the process
//! ```
//!
//! A case gets a [`Place`] of its own and opens the engine there, once or again and again. [`Watched`] is for tests of
//! who uses an engine.

mod append;
mod durable;
mod groups;
mod keys;
mod read;
mod retention;
mod topics;
mod watched;

use std::borrow::Cow;
use std::future::Future;
use std::sync::Arc;

use promethean_event::{Draft, Event, EventId, Limits, Millis, NewEvent, PublishOptions, Sealer, Seq, Topic};
use serde_json::value::RawValue;

use crate::{Appended, Outcome, Pending, ReadMax, Store};

pub use append::*;
pub use durable::*;
pub use groups::*;
pub use keys::*;
pub use read::*;
pub use retention::*;
pub use topics::*;
pub use watched::{Call, Watched, Watcher};

/// Where an engine is opened. What is in it goes when it is dropped.
pub trait Place: Send + Sync {
    /// Opens the engine. Called again only after the one before was closed.
    fn open(&self) -> Pending<'_, Arc<dyn Store>>;
}

/// Runs a case. For the macros.
///
/// # Panics
/// Where the engine breaks the law.
#[doc(hidden)]
pub fn check<F: Future<Output = ()>>(place: Box<dyn Place>, case: impl FnOnce(Box<dyn Place>) -> F) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("runtime");
    runtime.block_on(async {
        let limit = std::time::Duration::from_secs(60);
        tokio::time::timeout(limit, case(place)).await.expect("a case of the law ends within a minute");
    });
}

/// Expands to one test for each case of the law. Takes a function that makes a [`Place`](crate::suite::Place).
#[macro_export]
macro_rules! suite {
    ($place:expr) => {
        $crate::__cases! { $place;
            seqs_are_gapless_and_start_at_one
            the_answer_is_in_the_order_of_the_batch
            topics_count_for_themselves
            an_event_reads_back_byte_for_byte
            an_empty_append_is_answered
            an_id_that_is_on_the_topic_is_a_duplicate_with_its_first_seq
            an_id_twice_in_a_batch_is_stored_once
            an_id_on_another_topic_refuses_its_unit_and_no_other
            an_id_on_two_topics_in_one_unit_refuses_the_unit
            a_client_may_bring_an_id_that_the_hub_made_and_it_is_a_duplicate
            concurrent_appends_get_seqs_of_their_own
            a_read_starts_at_the_first_event_there_is
            a_read_keeps_its_bounds_and_returns_at_least_one
            a_read_of_nothing_is_empty
            events_are_visible_once_they_are_answered
            watchers_see_the_end_of_the_topic_grow
            a_topic_can_be_watched_before_it_exists
            new_topics_are_announced_and_listed_sorted
            seek_finds_the_ends
            seek_by_time_finds_the_first_in_seq_order
            seek_after_an_id_needs_it_on_the_topic
            locate_answers_in_order_and_knows_what_it_does_not_know
            info_counts_what_is_there
            a_topic_without_events_does_not_exist
            a_topic_with_settings_or_a_group_alone_is_known
            the_latest_of_a_key_is_its_last_event
            live_keys_are_paged_in_order_without_tombstones
            keys_are_compared_as_what_they_mean
            a_key_snapshot_is_of_one_moment
            a_key_snapshot_of_nothing_is_empty
            a_trim_takes_the_events_before_it_and_their_ids
            a_trim_may_take_everything_and_seqs_go_on
            retention_keeps_what_it_must_and_drops_what_it_may
            what_is_far_beyond_a_bound_goes_whenever_the_bound_was_set
            nothing_within_its_bounds_goes_while_writers_run
            retention_by_age_goes_by_the_time_of_append
            compaction_keeps_the_latest_of_each_key
            compaction_keeps_events_without_a_key
            a_tombstone_stays_for_its_grace_and_goes_then
            a_key_that_comes_back_after_its_tombstone_is_live
            a_reader_goes_on_while_compaction_takes_events_away
            a_pinned_reader_sees_each_key_while_writers_and_compaction_run
            a_pin_keeps_tombstones_and_lets_go_when_it_is_dropped
            retention_does_not_wait_for_a_group_that_is_behind
            settings_are_the_defaults_until_they_are_set
            a_group_is_saved_by_compare_and_set
            many_states_are_saved_at_once_each_with_its_own_outcome
            of_two_savers_one_wins
            groups_are_listed_by_topic_and_forgotten_one_by_one
            a_forgotten_group_begins_anew
            a_created_topic_exists_without_events
            a_deleted_topic_is_gone_and_its_seqs_continue
            removed_events_are_gone_and_the_others_stay
            after_close_everything_is_refused
        }
    };
}

/// Expands to one test for each case about data that outlive the process.
#[macro_export]
macro_rules! durable_suite {
    ($place:expr) => {
        $crate::__cases! { $place;
            everything_answered_is_there_after_a_reopen
            seqs_and_ids_go_on_after_a_reopen
            settings_trims_and_groups_survive_a_reopen
            many_reopens_lose_nothing
            what_was_maintained_stays_so_after_a_reopen
            a_removed_key_stays_removed_after_its_tombstone_is_gone
            created_and_deleted_topics_stay_so_after_a_reopen
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __cases {
    ($place:expr; $($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                $crate::suite::check(($place)(), $crate::suite::$name);
            }
        )*
    };
}

/// An event to be appended, described shortly.
#[derive(Debug, Clone)]
pub struct Make {
    topic: &'static str,
    key: Option<String>,
    payload: String,
    id: Option<u128>,
    ts: u64,
    appended: Option<u64>,
    unit: u32,
}

/// An event of `topic`.
pub fn event(topic: &'static str) -> Make {
    let payload = r#"{"any": "json"}"#.to_owned();
    Make { topic, key: None, payload, id: None, ts: 1_000, appended: None, unit: 0 }
}

impl Make {
    /// With this key.
    #[must_use]
    pub fn key(self, key: impl Into<String>) -> Self {
        Self { key: Some(key.into()), ..self }
    }

    /// With this payload.
    #[must_use]
    pub fn payload(self, payload: impl Into<String>) -> Self {
        Self { payload: payload.into(), ..self }
    }

    /// With an id that the client made.
    #[must_use]
    pub fn id(self, id: u128) -> Self {
        Self { id: Some(id), ..self }
    }

    /// With this time.
    #[must_use]
    pub fn ts(self, ts: u64) -> Self {
        Self { ts, ..self }
    }

    /// Appended at this time; the event's own where it is not said.
    #[must_use]
    pub fn appended(self, at: u64) -> Self {
        Self { appended: Some(at), ..self }
    }

    /// Of this unit.
    #[must_use]
    pub fn unit(self, unit: u32) -> Self {
        Self { unit, ..self }
    }

    /// The event.
    ///
    /// # Panics
    /// When the description is not valid.
    pub fn new_event(&self) -> NewEvent {
        static IDS: std::sync::LazyLock<promethean_event::IdMaker> =
            std::sync::LazyLock::new(promethean_event::IdMaker::new);
        let payload = RawValue::from_string(self.payload.clone()).expect("valid JSON");
        let mut draft = Draft::new(topic(self.topic), Cow::Owned(payload));
        draft.options = PublishOptions {
            id: self.id.map(id),
            ts: Some(Millis(self.ts)),
            key: self.key.clone().map(Cow::Owned),
            ..PublishOptions::default()
        };
        let mut sealer = Sealer::new(Limits::default());
        let now = Millis(self.appended.unwrap_or(self.ts));
        sealer.seal(&draft, IDS.next(Millis::now()), now, 16, self.unit).expect("a valid event");
        sealer.finish().remove(0)
    }
}

/// A topic.
///
/// # Panics
/// When the name is not valid.
pub fn topic(name: &str) -> Topic {
    Topic::parse(name).expect("a valid topic")
}

/// An id that a client might make.
pub fn id(number: u128) -> EventId {
    EventId::from_bytes(number.to_be_bytes())
}

/// Appends and expects every event to be stored.
///
/// # Panics
/// When one is not.
pub async fn append(store: &dyn Store, events: &[Make]) -> Vec<Appended> {
    let outcomes = store.append(events.iter().map(Make::new_event).collect()).await.expect("appended");
    outcomes
        .into_iter()
        .map(|outcome| match outcome {
            Outcome::Stored(appended) => appended,
            Outcome::DuplicateId { id, topic } => panic!("{id} is on {topic}"),
            Outcome::Failed(error) => panic!("{error}"),
        })
        .collect()
}

/// Reads everything of a topic, piece by piece.
///
/// # Panics
/// When it cannot be read, or does not ascend.
pub async fn read_all(store: &dyn Store, name: &str) -> Vec<Event> {
    let (name, mut all, mut from) = (topic(name), Vec::<Event>::new(), 0);
    loop {
        let part = store.read(&name, from, ReadMax::events(3)).await.expect("readable");
        let Some(last) = part.last() else { return all };
        from = last.seq + 1;
        all.extend(part);
        assert!(all.windows(2).all(|pair| pair[0].seq < pair[1].seq), "seqs do not ascend");
    }
}

/// The seqs of everything in a topic.
pub async fn seqs(store: &dyn Store, name: &str) -> Vec<Seq> {
    read_all(store, name).await.iter().map(|event| event.seq).collect()
}
