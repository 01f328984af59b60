//! Spans for publishes, deliveries and acks, for OpenTelemetry. Feature `otel`.
//!
//! The hub follows traces, it starts none: an event that carries a sampled `traceparent` header gets a span when it is
//! published, one each time it is delivered and one when it is acked or nacked. The header itself is kept as it came.
//! What has no such header costs a look at whether there is a tracer.
//!
//! Without the feature a [`Tracer`] cannot exist, and all of this is compiled away.

#[cfg(feature = "otel")]
mod export;
mod parent;
#[cfg(feature = "otel")]
mod tracer;

use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::time::SystemTime;

use foldhash::fast::RandomState;
use promethean_bus::Given;
use promethean_event::frame::Item;
use promethean_event::{Code, Event, EventId, Group, Seq, Topic};

pub use parent::TraceParent;
#[cfg(feature = "otel")]
pub use tracer::Tracer;

/// The header that carries a trace.
const HEADER: &str = "traceparent";
/// Deliveries of one connection whose acks can still be told to belong to them; the oldest is forgotten first.
const MOST_DELIVERED: usize = 4_096;

/// Where spans go. Without the feature there is none.
#[cfg(not(feature = "otel"))]
#[derive(Debug)]
pub enum Tracer {}

#[cfg(not(feature = "otel"))]
impl Tracer {
    fn record(&self, _: Span) {
        match *self {}
    }

    pub(crate) fn dropped(&self) -> u64 {
        match *self {}
    }
}

/// What a span is about, in the words of OpenTelemetry's messaging conventions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// An event was stored.
    Publish,
    /// An event was given to a subscriber.
    Deliver,
    /// A subscriber is done with an event.
    Ack,
    /// A subscriber gave an event back.
    Nack,
}

/// Something that took time for an event.
#[derive(Debug, Clone)]
pub struct Span {
    /// Itself in its trace.
    pub at: TraceParent,
    /// The span it belongs to.
    pub parent: [u8; 8],
    /// What was done.
    pub operation: Operation,
    /// The concrete topic.
    pub topic: Topic,
    /// Whose delivery it was.
    pub group: Option<Group>,
    /// The event.
    pub id: Option<EventId>,
    /// The event's place.
    pub seq: Option<Seq>,
    /// Which delivery of the event.
    pub attempt: Option<u32>,
    /// When it began.
    pub start: SystemTime,
    /// When it was over.
    pub end: SystemTime,
    /// Why it failed, where it did.
    pub failed: Option<Code>,
}

/// A span that is not over.
#[derive(Debug, Clone)]
pub(crate) struct Open(Box<Span>);

/// The spans of one connection or request.
pub(crate) struct Traces<'h> {
    tracer: Option<&'h Tracer>,
    /// Deliver spans, so that an ack can tell which delivery it answers.
    delivered: HashMap<EventId, Span, RandomState>,
    order: VecDeque<EventId>,
}

impl<'h> Traces<'h> {
    pub(crate) fn new(tracer: Option<&'h Tracer>) -> Self {
        Self { tracer, delivered: HashMap::default(), order: VecDeque::new() }
    }

    /// True if anybody takes spans.
    pub(crate) fn are_wanted(&self) -> bool {
        self.tracer.is_some()
    }

    /// Begins the span of a frame that publishes; of a batch, for the first event that carries a trace.
    pub(crate) fn publish(&self, topic: &Topic, item: &Item<'_>) -> Option<Open> {
        self.tracer?;
        match item {
            Item::One { options, .. } => self.begin(topic, &options.headers),
            Item::Batch(items) => items.iter().find_map(|(_, options)| self.begin(topic, &options.headers)),
        }
    }

    /// Begins the span of an event with these headers.
    pub(crate) fn begin(&self, topic: &Topic, headers: &[(Cow<'_, str>, Cow<'_, str>)]) -> Option<Open> {
        self.tracer?;
        let (_, value) = headers.iter().find(|(name, _)| name.eq_ignore_ascii_case(HEADER))?;
        let parent = TraceParent::parse(value).filter(TraceParent::is_sampled)?;
        Some(Open(Box::new(Span::begin(&parent, Operation::Publish, topic.clone()))))
    }

    /// Ends the span of a publish.
    pub(crate) fn published(&self, open: Option<Open>, outcome: Result<Option<(EventId, Seq)>, Code>) {
        let (Some(tracer), Some(Open(mut span))) = (self.tracer, open) else { return };
        match outcome {
            Ok(stored) => (span.id, span.seq) = (stored.map(|(id, _)| id), stored.map(|(_, seq)| seq)),
            Err(code) => span.failed = Some(code),
        }
        span.end = SystemTime::now();
        tracer.record(*span);
    }

    /// An event goes out: from the time it was appended until now.
    pub(crate) fn deliver(&mut self, given: &Given, group: Option<&Group>) {
        let Some(tracer) = self.tracer else { return };
        let Some(parent) = parent_of(&given.event) else { return };
        let mut span = Span::begin(&parent, Operation::Deliver, given.event.topic.clone());
        span.start = SystemTime::UNIX_EPOCH + std::time::Duration::from_millis(given.event.appended.0);
        span.end = span.end.max(span.start);
        (span.id, span.seq) = (Some(given.event.id), Some(given.event.seq));
        (span.group, span.attempt) = (group.cloned(), Some(given.attempt));
        tracer.record(span.clone());
        if group.is_some() {
            self.remember(given.event.id, span);
        }
    }

    fn remember(&mut self, id: EventId, span: Span) {
        if self.delivered.insert(id, span).is_none() {
            self.order.push_back(id);
        }
        while self.order.len() > MOST_DELIVERED {
            if let Some(oldest) = self.order.pop_front() {
                self.delivered.remove(&oldest);
            }
        }
    }

    /// Begins the spans of an answer to these deliveries.
    pub(crate) fn settle(&mut self, ids: &[EventId], operation: Operation) -> Vec<Open> {
        if self.tracer.is_none() || self.delivered.is_empty() {
            return Vec::new();
        }
        let found = ids.iter().filter_map(|id| self.delivered.remove(id));
        let begin = |delivered: Span| {
            let mut span = Span::begin(&delivered.at, operation, delivered.topic);
            (span.id, span.seq) = (delivered.id, delivered.seq);
            (span.group, span.attempt) = (delivered.group, delivered.attempt);
            Open(Box::new(span))
        };
        let open: Vec<Open> = found.map(begin).collect();
        if !open.is_empty() && self.order.len() > 2 * self.delivered.len() + 64 {
            self.order.retain(|id| self.delivered.contains_key(id));
        }
        open
    }

    /// Ends the spans of an answer.
    pub(crate) fn settled(&self, open: Vec<Open>, failed: Option<Code>) {
        let Some(tracer) = self.tracer else { return };
        for Open(mut span) in open {
            (span.failed, span.end) = (failed, SystemTime::now());
            tracer.record(*span);
        }
    }
}

impl Span {
    fn begin(parent: &TraceParent, operation: Operation, topic: Topic) -> Self {
        let now = SystemTime::now();
        Self {
            at: parent.child(),
            parent: parent.span,
            operation,
            topic,
            group: None,
            id: None,
            seq: None,
            attempt: None,
            start: now,
            end: now,
            failed: None,
        }
    }
}

/// The sampled trace that an event carries.
fn parent_of(event: &Event) -> Option<TraceParent> {
    // Most events carry none: the bytes are looked at before they are parsed.
    let quoted = b"\"traceparent\"";
    if !event.body.windows(quoted.len()).any(|part| part == quoted) {
        return None;
    }
    TraceParent::parse(event.fields().header(HEADER)?).filter(TraceParent::is_sampled)
}
