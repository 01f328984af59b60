//! `GET /backup`: everything that the hub has, as one stream, while it runs.
//!
//! The groups' states are read first, then where every topic ends, then the events up to there: see
//! [`promethean_store::backup`] for why. A failure on the way breaks the connection off, and a stream without its end is
//! refused by whoever reads it.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use http::header;
use promethean_event::Code;
use promethean_store::backup::{MAGIC, TopicHead, Writer};
use promethean_store::{Pin, ReadMax};
use tokio::sync::{Semaphore, mpsc};

use crate::Hub;
use crate::auth::Action;
use crate::http::{Caller, unreadable};
use crate::rejection::Rejection;

/// One at a time.
static TURN: Semaphore = Semaphore::const_new(1);
/// How much is read at a time, and about how much a piece of the stream has.
const AT_ONCE: ReadMax = ReadMax { events: 1_000, bytes: PIECE };
const PIECE: usize = 256 * 1024;
/// Pieces that wait for the reader.
const AHEAD: usize = 4;

/// When whoever finds another backup under way may ask again.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

type Pieces = mpsc::Sender<Result<Bytes, String>>;

pub(super) async fn backup(State(hub): State<Arc<Hub>>, caller: Caller) -> Result<Response, Rejection> {
    // Also where there is no topic yet.
    if !caller.identity.policy.allows_somewhere(Action::Admin) {
        return Err(Rejection::forbidden(Action::Admin, "**"));
    }
    for topic in hub.bus.store().known_topics().await.map_err(unreadable)? {
        caller.may(Action::Admin, &topic)?;
    }
    let busy = |_| Rejection {
        retry_after: Some(LOOK_AGAIN),
        ..Rejection::new(Code::RateLimited, "another backup is under way: wait until it is done")
    };
    let turn = TURN.try_acquire().map_err(busy)?;
    let (pieces, receiver) = mpsc::channel(AHEAD);
    tokio::spawn(async move {
        if let Err(error) = write(&hub, &caller, &pieces).await {
            tracing::warn!(error, "a backup was broken off");
            let _ = pieces.send(Err(error)).await;
        }
        drop(turn);
    });
    let next = |mut receiver: mpsc::Receiver<_>| async move { receiver.recv().await.map(|piece| (piece, receiver)) };
    let body = Body::from_stream(stream::unfold(receiver, next));
    let headers = [(header::CONTENT_TYPE, "application/octet-stream"), (header::CACHE_CONTROL, "no-store")];
    Ok((headers, body).into_response())
}

async fn write(hub: &Hub, caller: &Caller, pieces: &Pieces) -> Result<(), String> {
    let store = hub.bus.store();
    let (mut out, mut writer) = (MAGIC.to_vec(), Writer::default());
    let text = |error: promethean_store::Error| error.to_string();
    for topic in store.topics_of_groups().await.map_err(text)? {
        for (group, state) in store.groups(&topic).await.map_err(text)? {
            writer.group(&mut out, &topic, &group, &state);
        }
        pass_on(&mut out, pieces, PIECE).await?;
    }
    let topics = store.known_topics().await.map_err(text)?;
    // Before the ends are known: a key that is written again later is not lost between the two.
    let pin = store.pin(&topics).await.map_err(text)?;
    let mut heads = Vec::new();
    for topic in topics {
        if !caller.identity.policy.allows(Action::Admin, &topic, None) {
            return Err(format!("{topic} has turned up, which the token may not administer"));
        }
        let (info, settings) = (store.info(&topic).await.map_err(text)?, store.settings(&topic));
        heads.push(match info {
            Some(info) => TopicHead::new(info, settings),
            None => TopicHead::empty(topic, settings),
        });
    }
    for head in heads {
        writer.topic(&mut out, &head);
        events(hub, &*pin, &head, &mut writer, &mut out, pieces).await?;
    }
    let totals = writer.end(&mut out);
    pass_on(&mut out, pieces, 0).await?;
    let sub = caller.identity.sub.as_deref();
    tracing::info!(topics = totals.topics, groups = totals.groups, events = totals.events, sub, "a backup was made");
    Ok(())
}

async fn events(
    hub: &Hub,
    pin: &dyn Pin,
    head: &TopicHead,
    writer: &mut Writer,
    out: &mut Vec<u8>,
    pieces: &Pieces,
) -> Result<(), String> {
    let mut next = head.first_seq;
    while next <= head.last_seq {
        let read = hub.bus.store().read(&head.topic, next, AT_ONCE).await.map_err(|error| error.to_string())?;
        pin.check().map_err(|error| error.to_string())?;
        let Some(last) = read.last() else { break };
        next = last.seq + 1;
        for event in read.iter().filter(|event| event.seq <= head.last_seq) {
            writer.event(out, event);
        }
        pass_on(out, pieces, PIECE).await?;
    }
    Ok(())
}

/// Sends what was written once it is more than `least`.
async fn pass_on(out: &mut Vec<u8>, pieces: &Pieces, least: usize) -> Result<(), String> {
    if out.len() <= least {
        return Ok(());
    }
    pieces.send(Ok(std::mem::take(out).into())).await.map_err(|_| "whoever asked for it went away".to_owned())
}
