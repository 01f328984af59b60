//! What a projector decides: which events count, what is published, where it goes on after a restart. No I/O.
//!
//! ```text
//!   input    … 40  41  42  43 …        folded in order, each once
//!                  └──┬──┘
//!   output   … a@42  b@42 …            one unit: all or none; every event carries the position
//! ```

use std::borrow::Cow;
use std::collections::HashMap;

use promethean_event::limits::DEFAULT_FRAME_BYTES;
#[cfg(feature = "client")]
use promethean_event::limits::MAX_BATCH;
use promethean_event::{EventId, Millis, PublishOptions, Seq, payload_of};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use crate::states::{Extent, Refused};
use crate::{Error, Input, Settings, States};

/// Why an event is left out: it is logged, and counts as folded.
pub type Skip = Box<dyn std::error::Error + Send + Sync>;

/// How events become state. Deterministic: the same state and the same event give the same state.
pub trait Projection: Send {
    /// The state of one key, published as JSON. With floating-point numbers in it, turn on serde_json's
    /// `float_roundtrip`, or a restart may change the last digit.
    type State: Serialize + DeserializeOwned + PartialEq + Send;

    /// Changes the state by an event.
    ///
    /// # Errors
    /// The event cannot be folded: whatever it changed is taken back, and it is left out.
    fn fold(&mut self, event: &Input<'_>, states: &mut States<Self::State>) -> Result<(), Skip>;

    /// Changes the state by the time alone. Called every so often, and only when all events there are were folded.
    fn tick(&mut self, now: Millis, states: &mut States<Self::State>) {
        let _ = (now, states);
    }
}

/// The header with the name of the projection that an event is of.
pub(crate) const NAME: &str = "x-projection";
/// The header with the position: the seq and the id of the last event that was folded.
pub(crate) const POSITION: &str = "x-projection-position";

/// Changes that are published together, at most, unless a single event changes more.
const AT_ONCE: usize = 500;
/// Their bytes, likewise. A quarter of a frame: over a connection a unit is one.
const AT_ONCE_BYTES: usize = DEFAULT_FRAME_BYTES / 4;
/// What an event has on the wire beside its payload and its key, generously.
const AROUND: usize = 512;
/// Keys that one event may change over a connection: with what waits before it, they are one batch.
#[cfg(feature = "client")]
pub(crate) const MOST_KEYS: usize = MAX_BATCH - AT_ONCE;
/// Their bytes, likewise: one frame, and a sixteenth of it to spare.
#[cfg(feature = "client")]
pub(crate) const MOST_BYTES: usize = DEFAULT_FRAME_BYTES / 16 * 11;

/// How often the position is published by itself while only tombstones carry it, in ms: they go after their grace.
const MARK_EVERY: u64 = 5 * 60 * 1_000;

/// Up to where the input was folded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Position {
    /// The last event's seq; 0: none was.
    pub seq: Seq,
    /// Its id, where it is known.
    pub id: Option<EventId>,
}

impl Position {
    fn encode(self) -> String {
        self.id.map_or_else(|| self.seq.to_string(), |id| format!("{} {id}", self.seq))
    }

    /// Reads a header.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (seq, id) = text.split_once(' ').map_or((text, None), |(seq, id)| (seq, Some(id)));
        let id = id.map(EventId::parse).transpose().ok()?;
        Some(Self { seq: seq.parse().ok()?, id })
    }
}

/// An event to be published.
#[derive(Debug)]
pub struct Output {
    /// The state, or `null`.
    pub payload: Box<RawValue>,
    /// Key, id, headers, cause.
    pub options: PublishOptions<'static>,
}

impl Output {
    /// Its key.
    pub(crate) fn key(&self) -> String {
        self.options.key.clone().unwrap_or_default().into_owned()
    }

    /// About its size on the wire.
    #[cfg(feature = "client")]
    fn bytes(&self) -> usize {
        self.payload.get().len() + written(&self.options.key) + AROUND
    }
}

/// About the size on the wire of a key with its state; one that cannot be written is found when it is published.
fn size<S: Serialize>(key: &str, state: Option<&S>) -> usize {
    written(&state) + written(&key) + AROUND
}

/// How many bytes `value` has as JSON.
fn written(value: &impl Serialize) -> usize {
    struct Count(usize);
    impl std::io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    let _ = serde_json::to_writer(&mut count, value);
    count.0
}

/// The deciding part of a projector, for those who write one of their own.
#[derive(Debug)]
pub struct Folder<P: Projection> {
    projection: P,
    settings: Settings,
    states: States<P::State>,
    position: Position,
    /// While it is restored, up to where the input was folded into the state of a key; as many as the output has.
    restored: HashMap<String, Seq>,
    skipped: u64,
    /// What the last event has changed.
    last: Extent,
    /// True if anything was folded since the last unit.
    folded: bool,
    /// True if what was published last was tombstones only, as far as is known.
    fleeting: bool,
    /// When the position was last published by itself, or first asked for.
    marked: Option<Millis>,
}

impl<P: Projection> Folder<P> {
    /// Nothing folded yet.
    pub fn new(settings: Settings, projection: P) -> Self {
        let states = States::new(settings.max_keys);
        let (position, restored) = (Position::default(), HashMap::new());
        let (last, folded) = (Extent::default(), false);
        let (skipped, fleeting, marked) = (0, true, None);
        Self { projection, settings, states, position, restored, skipped, last, folded, fleeting, marked }
    }

    /// The state.
    pub fn states(&self) -> &States<P::State> {
        &self.states
    }

    /// Up to where the input was folded.
    pub fn position(&self) -> Position {
        self.position
    }

    /// How many events were left out since it was opened.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// The settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Takes over an event of the output topic, tombstones too, in their order. `headers` finds a header by its name.
    ///
    /// Where two instances overlapped, the newer one may have written what it had folded so far behind what the older one had
    /// folded further: the state that was folded further counts, and is to be published again.
    pub fn restore<'h>(&mut self, key: &str, payload: &str, headers: impl Fn(&str) -> Option<&'h str>) {
        let ours = headers(NAME) == Some(self.settings.name.as_str());
        if let Some(position) = headers(POSITION).filter(|_| ours).and_then(Position::parse) {
            self.reached(position);
            if self.restored.get(key).is_some_and(|further| *further > position.seq) {
                return self.states.again(key.to_owned());
            }
            self.restored.insert(key.to_owned(), position.seq);
            self.states.settled(key);
        } else {
            tracing::warn!(topic = %self.settings.output, key, "an event that this projection did not write");
        }
        match serde_json::from_str::<Option<P::State>>(payload) {
            Ok(state) => self.states.restore(key.to_owned(), state),
            Err(error) => {
                tracing::warn!(topic = %self.settings.output, key, %error, "a state that is none is left out");
            }
        }
    }

    /// Everything up to `position` was folded before.
    pub fn reached(&mut self, position: Position) {
        if position.seq > self.position.seq {
            self.position = position;
        }
    }

    /// Folds an event, unless it was before.
    ///
    /// # Errors
    /// The state has too many keys.
    pub fn fold(&mut self, event: &Input<'_>) -> Result<(), Error> {
        if event.seq <= self.position.seq {
            return Ok(());
        }
        self.restored = HashMap::new();
        let cause = Some((event.seq, event.id));
        (self.last, self.folded) = (Extent::default(), true);
        let folded = match self.projection.fold(event, &mut self.states) {
            Ok(()) => self.states.keep(cause, size).map_err(Some),
            Err(skip) => {
                self.states.take_back();
                self.skip(event, &skip.to_string());
                Err(None)
            }
        };
        match folded {
            Err(Some(Refused::TooMany)) => return Err(Error::TooManyKeys { most: self.settings.max_keys }),
            Err(Some(Refused::BadKey)) => self.skip(event, "its key would be longer than a key may be"),
            Ok(extent) => self.last = extent,
            Err(None) => {}
        }
        self.position = Position { seq: event.seq, id: Some(event.id) };
        Ok(())
    }

    fn skip(&mut self, event: &Input<'_>, reason: &str) {
        self.skipped += 1;
        tracing::warn!(topic = %self.settings.input, id = %event.id, reason, "an event is left out of the projection");
    }

    /// Lets time change the state.
    ///
    /// # Errors
    /// The state has too many keys.
    pub fn tick(&mut self, now: Millis) -> Result<(), Error> {
        self.projection.tick(now, &mut self.states);
        match self.states.keep(None, size) {
            Err(Refused::TooMany) => Err(Error::TooManyKeys { most: self.settings.max_keys }),
            _ => Ok(()),
        }
    }

    /// True if what changed should be published before more is folded.
    pub fn is_full(&self) -> bool {
        self.states.changes() >= AT_ONCE || self.states.bytes() >= AT_ONCE_BYTES
    }

    /// What the last event that was folded has changed.
    #[cfg(feature = "client")]
    pub(crate) fn last(&self) -> Extent {
        self.last
    }

    /// Which of `outputs` were answered as duplicates: another instance has published the same change. Something of this one may
    /// have come in between, and would stay the last word: [`Folder::take`] has them once more, under other ids.
    pub fn published(&mut self, outputs: impl IntoIterator<Item = (String, bool)>) -> bool {
        let mut again = false;
        for (key, _) in outputs.into_iter().filter(|(_, duplicate)| *duplicate) {
            self.states.again(key);
            again = true;
        }
        again
    }

    /// What has to be published, in this order, each unit all or none.
    ///
    /// What was folded is one unit, because every event of it carries the position up to which all of it was folded. What
    /// a tick changed, or is published once more, carries a position that counts already: where it is more than one
    /// batch takes, it is several.
    #[cfg(feature = "client")]
    pub(crate) fn units(&mut self) -> Result<Vec<Vec<Output>>, Error> {
        let whole = self.folded;
        let (mut units, mut bytes) = (Vec::<Vec<Output>>::new(), 0);
        for output in self.take()? {
            let more = output.bytes();
            match units.last_mut() {
                Some(unit) if whole || unit.len() < MAX_BATCH && bytes + more <= AT_ONCE_BYTES => {
                    bytes += more;
                    unit.push(output);
                }
                _ => {
                    bytes = more;
                    units.push(vec![output]);
                }
            }
        }
        Ok(units)
    }

    /// What has to be published, all or none, before the position counts.
    ///
    /// # Errors
    /// A state that is no JSON.
    pub fn take(&mut self) -> Result<Vec<Output>, Error> {
        self.folded = false;
        let name = self.settings.name.as_str();
        let mut outputs = Vec::with_capacity(self.states.changes());
        for (key, cause) in self.states.take_changes() {
            let payload = match self.states.get(&key) {
                Some(state) => payload_of(state)
                    .map_err(|invalid| Error::State { key: key.clone(), reason: invalid.to_string() })?,
                None => RawValue::NULL.to_owned(),
            };
            // The same change, published twice, is one event.
            let output = self.settings.output.as_str().as_bytes();
            let id = cause.map(|(seq, _)| {
                EventId::derived(&[b"projection", name.as_bytes(), output, key.as_bytes(), &seq.to_le_bytes()])
            });
            let headers = self.headers();
            let caused_by = cause.map(|(_, id)| id).into_iter().collect();
            let options = PublishOptions { id, key: Some(Cow::Owned(key)), headers, caused_by, ..Default::default() };
            outputs.push(Output { payload, options });
        }
        if !outputs.is_empty() {
            self.fleeting = outputs.iter().all(|output| output.payload.get() == RawValue::NULL.get());
        }
        Ok(outputs)
    }

    /// The position by itself, when only tombstones carry it and they are getting old: a tombstone of a key that nobody
    /// uses. To be asked for when everything that changed is published.
    pub fn mark(&mut self, now: Millis) -> Option<Output> {
        let since = *self.marked.get_or_insert(now);
        if !self.fleeting || self.position.seq == 0 || self.states.changes() > 0 || now.0 < since.0 + MARK_EVERY {
            return None;
        }
        self.marked = Some(now);
        let key = Some(Cow::Owned(format!("projection:{}:position", self.settings.name)));
        let options = PublishOptions { key, headers: self.headers(), ..Default::default() };
        Some(Output { payload: RawValue::NULL.to_owned(), options })
    }

    /// What every output carries.
    fn headers(&self) -> Vec<(Cow<'static, str>, Cow<'static, str>)> {
        vec![
            (Cow::Borrowed(NAME), Cow::Owned(self.settings.name.as_str().to_owned())),
            (Cow::Borrowed(POSITION), Cow::Owned(self.position.encode())),
        ]
    }
}

#[cfg(test)]
mod tests;
