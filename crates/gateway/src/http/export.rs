//! `GET /export`: all events of a topic within a time, as a stream of constant memory.
//!
//! It ends where the topic ended when it began. A failure on the way breaks the connection off, so that a part is never
//! taken for the whole.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use http::header;
use promethean_event::{Event, Millis, Seq, Topic, json};
use promethean_store::{Pin, ReadMax, Store};

use super::{Caller, Query, place, unreadable};
use crate::Hub;
use crate::auth::Action;
use crate::rejection::Rejection;

/// How much is read and sent at a time.
const AT_ONCE: ReadMax = ReadMax { events: 1_000, bytes: 256 * 1024 };

struct Export {
    store: Arc<dyn Store>,
    /// Compaction leaves each key its event up to the end.
    pin: Box<dyn Pin>,
    topic: Topic,
    next: Seq,
    end: Seq,
    from: Millis,
    to: Millis,
    ndjson: bool,
    /// A line whose payload had line breaks carries it once more, as text: nothing of its bytes is lost.
    exact: bool,
    written: bool,
    /// The closing bracket has been sent, or there is none to send.
    closed: bool,
}

/// Streams the events. `toTs` and `toSeq` are inclusive; a `ts` out of the log's order is found all the same.
pub(super) async fn export(State(hub): State<Arc<Hub>>, caller: Caller, query: Query) -> Result<Response, Rejection> {
    let topic = query.topic()?;
    caller.may(Action::Subscribe, &topic)?;
    let from = Millis(query.number("fromTs")?.unwrap_or(0));
    let to = Millis(query.number("toTs")?.unwrap_or(u64::MAX));
    let (ndjson, exact) = (query.flag("ndjson", true)?, query.flag("exact", false)?);
    let store = Arc::clone(hub.bus.store());
    // Before the end is known: a key that is written again later is not lost between the two.
    let pin = store.pin(std::slice::from_ref(&topic)).await.map_err(unreadable)?;
    let last = store.info(&topic).await.map_err(unreadable)?.map_or(0, |info| info.last_seq);
    let end = query.number("toSeq")?.map_or(last, |seq| seq.min(last));
    // Everything before the first event of that time is older: the rest is looked at event by event.
    let mut next = place(&hub, &topic, promethean_event::From::Ts(from)).await?.done + 1;
    if let Some(id) = query.id("afterId")? {
        next = next.max(place(&hub, &topic, promethean_event::From::AfterId(id)).await?.done + 1);
    }
    next = next.max(query.number("fromSeq")?.unwrap_or(0));
    let range = [("x-promethean-first-seq", next.to_string()), ("x-promethean-last-seq", end.to_string())];
    let export = Export { store, pin, topic, next, end, from, to, ndjson, exact, written: false, closed: false };
    let body = Body::from_stream(stream::try_unfold(export, Export::chunk));
    let content = if ndjson { "application/x-ndjson" } else { "application/json" };
    Ok((range, [(header::CONTENT_TYPE, content), (header::CACHE_CONTROL, "no-store")], body).into_response())
}

impl Export {
    /// The next piece; none at the end.
    async fn chunk(mut self) -> Result<Option<(Bytes, Self)>, promethean_store::Error> {
        let mut out = Vec::new();
        while out.is_empty() && self.next <= self.end {
            let read = self.store.read(&self.topic, self.next, AT_ONCE).await;
            let read = read.and_then(|events| self.pin.check().map(|()| events));
            let events = read.inspect_err(|error| {
                // The status was sent long ago: the client sees that the body is not whole, the reason is here.
                tracing::error!(topic = %self.topic, seq = self.next, %error, "an export breaks off");
            })?;
            self.next = events.last().map_or(self.end, |event| event.seq) + 1;
            let (end, times) = (self.end, self.from..=self.to);
            for event in events.iter().filter(|event| event.seq <= end && times.contains(&event.ts)) {
                self.write(event, &mut out);
            }
        }
        if out.is_empty() && !self.closed {
            self.closed = true;
            if !self.ndjson {
                out.extend_from_slice(if self.written { b"\n]\n" } else { b"[]\n" });
            }
        }
        Ok(if out.is_empty() { None } else { Some((out.into(), self)) })
    }

    fn write(&mut self, event: &Event, out: &mut Vec<u8>) {
        if self.ndjson {
            let mut whole = Vec::with_capacity(event.wire_len());
            event.write(&mut whole);
            json::write_line(out, &whole);
            if self.exact && event.payload().bytes().any(|byte| matches!(byte, b'\n' | b'\r')) {
                out.pop();
                out.extend_from_slice(br#","payloadText":"#);
                json::write_string(out, event.payload());
                out.push(b'}');
            }
            out.push(b'\n');
        } else {
            out.extend_from_slice(if self.written { b",\n" } else { b"[\n" });
            event.write(out);
        }
        self.written = true;
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;
    use promethean_store::EventLog as _;
    use promethean_store::memory::Memory;

    use super::*;

    /// Keeps what is logged on this thread, message and fields.
    #[derive(Clone, Default)]
    struct Logged(Arc<Mutex<String>>);

    impl tracing::Subscriber for Logged {
        fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
            *metadata.level() <= tracing::Level::WARN
        }
        fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
            tracing::span::Id::from_u64(1)
        }
        fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
        fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
        fn event(&self, event: &tracing::Event<'_>) {
            event.record(&mut |field: &tracing::field::Field, value: &dyn std::fmt::Debug| {
                self.0.lock().push_str(&format!("{field}={value:?} "));
            });
        }
        fn enter(&self, _: &tracing::span::Id) {}
        fn exit(&self, _: &tracing::span::Id) {}
    }

    #[tokio::test]
    async fn an_export_that_breaks_off_says_in_the_log_where_and_why() {
        let store = Arc::new(Memory::new());
        let bus = promethean_bus::Bus::new(Arc::clone(&store) as Arc<dyn Store>, Default::default());
        let topic = Topic::parse("a").expect("a topic");
        bus.publish_value(&topic, &1).await.expect("published");
        let (from, to) = (Millis(0), Millis(u64::MAX));
        let (ndjson, exact, written, closed) = (true, false, false, false);
        let pin = store.pin(std::slice::from_ref(&topic)).await.expect("pinned");
        let export = Export { store, pin, topic, next: 1, end: 2, from, to, ndjson, exact, written, closed };
        let (bytes, export) = export.chunk().await.expect("readable").expect("an event");
        assert!(bytes.ends_with(b"\"payload\":1}\n"));
        export.store.close().await.expect("closed");
        let logged = Logged::default();
        let guard = tracing::subscriber::set_default(logged.clone());
        assert!(export.chunk().await.is_err(), "a part is not taken for the whole");
        drop(guard);
        let logged = logged.0.lock().clone();
        assert!(logged.contains("message=an export breaks off topic=a seq=2 error=the store is closed"), "{logged}");
    }
}
