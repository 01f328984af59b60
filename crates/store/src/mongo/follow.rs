//! Hearing of what other hubs do: one change stream on `counters` as the wake-up, polling while there is none.
//!
//! The stream only wakes; what is read is read by seq. So a lost stream loses nothing: the next look at the counters
//! (after each opening of a stream, and in between while there is none) tells where topics end.

use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::FutureExt as _;
use mongodb::bson::{Document, RawDocument, RawDocumentBuf, doc};
use mongodb::change_stream::ChangeStream;
use promethean_event::Topic;
use tokio::time::error::Elapsed;

use super::document::unsigned;
use super::fault::{limited, words};
use super::lives::History;
use super::{COUNTERS, Shared, clock};
use crate::TopicSettings;

/// How long the server may wait with an empty answer.
const AWAIT: Duration = Duration::from_secs(1);
/// After each answer that told of something the server is left alone for so long: however often topics grow, a hub asks
/// for news a hundred times a second at most, and hears of the first growth after a pause at once.
const REST: Duration = Duration::from_millis(10);
/// A stream that is silent for longer than this is taken for dead.
const SILENCE: Duration = Duration::from_secs(5);
/// How often counters are looked at while there is no stream.
const POLL: Duration = Duration::from_millis(200);
/// How often MongoDB is asked whether it is there.
const PULSE: Duration = Duration::from_secs(1);

pub(super) type Stream = ChangeStream<Document>;

/// Opens the stream.
pub(super) async fn stream(shared: &Shared) -> mongodb::error::Result<Stream> {
    let counters = shared.database.collection::<Document>(COUNTERS);
    let pipeline = [
        doc! { "$match": { "operationType": { "$in": ["insert", "update", "replace"] } } },
        doc! { "$project": { "clusterTime": 1, "documentKey": 1, "fullDocument": 1, "updateDescription.updatedFields": 1 } },
    ];
    let opened = limited(counters.watch().pipeline(pipeline).max_await_time(AWAIT)).await?;
    Ok(opened.with_type())
}

/// Looks at all counters.
pub(super) async fn look(shared: &Shared) -> mongodb::error::Result<()> {
    let counters = shared.database.collection::<RawDocumentBuf>(COUNTERS);
    let fields = doc! { "next": 1, "settings": 1, "created": 1, "deleted": 1, "deletions": 1 };
    let mut session = shared.session().await?;
    let asked = async { counters.find(doc! {}).projection(fields).session(&mut session).await };
    let mut cursor = limited(asked).await?;
    while limited(cursor.advance(&mut session)).await? {
        shared.heard(&session);
        let document = cursor.current();
        if let Some(topic) = document.get_str("_id").ok().and_then(|name| Topic::parse(name).ok()) {
            hear(shared, &topic, document);
        }
    }
    Ok(())
}

/// What a counter says, or a part of it.
fn hear(shared: &Shared, topic: &Topic, counter: &RawDocument) {
    let number = |name| unsigned(counter.get(name).ok().flatten()).unwrap_or(0);
    let (created, deleted) = (number("created"), number("deleted"));
    shared.tails.learn(topic, number("next"), History { created, deleted, deletions: number("deletions") });
    if let Ok(text) = counter.get_str("settings") {
        match serde_json::from_str::<TopicSettings>(text) {
            Ok(settings) => shared.tails.set_settings(topic, settings),
            Err(error) => tracing::error!(topic = topic.as_str(), %error, "the settings in MongoDB cannot be read"),
        }
    }
}

fn hear_change(shared: &Shared, change: &Document) {
    let Some(topic) = (change.get_document("documentKey").ok())
        .and_then(|key| key.get_str("_id").ok())
        .and_then(|name| Topic::parse(name).ok())
    else {
        return;
    };
    if let Ok(time) = change.get_timestamp("clusterTime") {
        shared.seen.advance(time);
    }
    let updated = change.get_document("updateDescription").and_then(|update| update.get_document("updatedFields"));
    for part in [change.get_document("fullDocument"), updated].into_iter().flatten() {
        if let Ok(raw) = RawDocumentBuf::try_from(part) {
            hear(shared, &topic, &raw);
        }
    }
}

/// Follows the stream for as long as the engine is there.
pub(super) async fn follow(shared: Weak<Shared>, mut stream: Option<Stream>) {
    loop {
        let Some(shared) = shared.upgrade() else { return };
        let Some(mut open) = stream.take() else {
            stream = reopen(&shared).await;
            continue;
        };
        let (heard, asked) = next(&mut open).await;
        match heard {
            Ok(Ok(Some(change))) => {
                hear_change(&shared, &change);
                if asked {
                    tokio::time::sleep(REST).await;
                }
            }
            // Within the silence this is an answer: nothing happened.
            Ok(Ok(None)) if open.is_alive() => {}
            Ok(Err(fault)) => {
                tracing::warn!(why = words(&fault), "the change stream is lost: polling until it is back");
                continue;
            }
            _ => {
                tracing::warn!("the change stream is silent: polling until it is back");
                continue;
            }
        }
        stream = Some(open);
    }
}

/// The next change, and whether the server had to be asked for it: mostly it gives several at once.
async fn next(stream: &mut Stream) -> (Result<mongodb::error::Result<Option<Document>>, Elapsed>, bool) {
    let mut next = pin!(stream.next_if_any());
    match next.as_mut().now_or_never() {
        Some(had) => (Ok(had), false),
        None => (tokio::time::timeout(SILENCE, next).await, true),
    }
}

/// Opens the stream anew; meanwhile, and once more after, looks at the counters.
async fn reopen(shared: &Arc<Shared>) -> Option<Stream> {
    let opened = stream(shared).await;
    let looked = look(shared).await;
    if opened.is_err() || looked.is_err() {
        tokio::time::sleep(POLL).await;
        return None;
    }
    tracing::info!("the change stream is back");
    opened.ok()
}

/// Keeps asking whether MongoDB takes requests, for `ready`.
pub(super) async fn pulse(shared: Weak<Shared>) {
    loop {
        tokio::time::sleep(PULSE).await;
        let Some(shared) = shared.upgrade() else { return };
        let why = match tokio::time::timeout(SILENCE, clock::ask(&shared)).await {
            Ok(Ok(_)) => None,
            Ok(Err(fault)) => Some(words(&fault)),
            Err(_) => Some(format!("it has not answered for {} s", SILENCE.as_secs())),
        };
        let mut away = shared.away.lock();
        if away.is_some() != why.is_some() {
            match &why {
                Some(why) => tracing::warn!(why, "MongoDB is away"),
                None => tracing::info!("MongoDB is back"),
            }
        }
        *away = why;
    }
}
