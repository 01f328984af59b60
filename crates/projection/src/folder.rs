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
    /// Whether anything was folded since the last unit.
    folded: bool,
    /// Whether what was published last was tombstones only, as far as is known.
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

    /// Whether what changed should be published before more is folded.
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
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// Counts events of a key; the third removes it, so that what was removed must not be forgotten.
    struct Threes;

    impl Projection for Threes {
        type State = u32;
        fn fold(&mut self, event: &Input<'_>, states: &mut States<u32>) -> Result<(), Skip> {
            let key = event.key.as_deref().ok_or("no key")?;
            match states.get(key).copied().unwrap_or(0) + 1 {
                3 => states.remove(key),
                count => states.set(key, count),
            }
            Ok(())
        }
    }

    fn folder() -> Folder<Threes> {
        Folder::new(Settings::new("threes", "in", "out").expect("good"), Threes)
    }

    fn input(seq: Seq, key: Option<u8>) -> Input<'static> {
        let key = key.map(|key| Cow::Owned(key.to_string()));
        Input { id: EventId::derived(&[&seq.to_le_bytes()]), seq, ts: Millis(seq), key, payload: "{}" }
    }

    fn live(folder: &Folder<Threes>) -> BTreeMap<String, u32> {
        folder.states().iter().map(|(key, state)| (key.to_owned(), *state)).collect()
    }

    /// Publishes a batch to a log; ids that are there already are not stored again.
    fn publish(log: &mut Vec<Output>, folder: &mut Folder<Threes>) {
        for output in folder.take().expect("JSON") {
            if !log.iter().any(|there| there.options.id == output.options.id) {
                log.push(output);
            }
        }
    }

    fn restored(log: &[Output]) -> Folder<Threes> {
        let mut folder = folder();
        for output in log {
            let find = |name: &str| output.options.headers.iter().find(|(this, _)| this == name);
            let key = output.options.key.as_deref().expect("a key");
            folder.restore(key, output.payload.get(), |name| find(name).map(|(_, value)| value.as_ref()));
        }
        folder
    }

    proptest! {
        #[test]
        fn however_often_it_is_killed_the_state_is_that_of_an_uninterrupted_run(
            keys in proptest::collection::vec(proptest::option::weighted(0.9, 0_u8..6), 1..120),
            // After how many events a batch is published, and whether the process dies before or after that.
            steps in proptest::collection::vec((1_usize..9, 0_u8..3), 1..60),
        ) {
            let events: Vec<_> = keys.iter().enumerate().map(|(at, key)| input(at as u64 + 1, *key)).collect();
            let mut whole = folder();
            for event in &events {
                whole.fold(event).expect("room");
            }
            let (mut log, mut folder) = (Vec::new(), folder());
            let mut steps = steps.into_iter().chain(std::iter::repeat((8, 2)));
            while (folder.position().seq as usize) < events.len() {
                let (count, fate) = steps.next().expect("endless");
                let from = folder.position().seq as usize;
                for event in events.iter().skip(from).take(count) {
                    folder.fold(event).expect("room");
                }
                if fate > 0 {
                    publish(&mut log, &mut folder);
                }
                if fate < 2 {
                    let before = folder.position();
                    folder = restored(&log);
                    prop_assert!(folder.position().seq <= before.seq);
                }
            }
            publish(&mut log, &mut folder);
            prop_assert_eq!(live(&folder), live(&whole));
            prop_assert_eq!(live(&restored(&log)), live(&whole));
        }
    }

    #[test]
    fn a_position_that_only_tombstones_carry_is_published_again_before_they_go() {
        let (mut folder, mut log) = (folder(), Vec::new());
        assert!(folder.mark(Millis(0)).is_none() && folder.mark(Millis(MARK_EVERY)).is_none(), "nothing folded");
        (1..=3).for_each(|seq| folder.fold(&input(seq, Some(1))).expect("room"));
        publish(&mut log, &mut folder);
        assert_eq!(log.pop().expect("a tombstone").payload.get(), "null");
        let early = folder.mark(Millis(MARK_EVERY - 1));
        assert!(early.is_none(), "{early:?}");
        // The tombstone has gone; what was folded is not folded again.
        log.extend(folder.mark(Millis(MARK_EVERY)));
        let mut again = restored(&log);
        assert_eq!((again.position(), live(&again).len()), (folder.position(), 0));
        assert!(folder.mark(Millis(MARK_EVERY + 1)).is_none(), "just said");
        assert!(folder.mark(Millis(2 * MARK_EVERY)).is_some(), "it is a tombstone too");
        // A state carries the position for good.
        again.fold(&input(4, Some(2))).expect("room");
        assert!(again.mark(Millis(0)).is_none() && again.mark(Millis(MARK_EVERY)).is_none(), "to be published first");
        publish(&mut log, &mut again);
        assert!(again.mark(Millis(9 * MARK_EVERY)).is_none());
    }

    /// An event sets as many keys as its payload says, to a state of a kilobyte; so does a tick, of other keys.
    struct Wide;

    impl Projection for Wide {
        type State = String;
        fn fold(&mut self, event: &Input<'_>, states: &mut States<String>) -> Result<(), Skip> {
            let keys: usize = event.payload_as()?;
            (0..keys).for_each(|key| states.set(format!("{}-{key}", event.seq), "x".repeat(1_024)));
            Ok(())
        }
        fn tick(&mut self, now: Millis, states: &mut States<String>) {
            (0..now.0).for_each(|key| states.set(format!("tick {key}"), "x".repeat(1_024)));
        }
    }

    fn wide() -> Folder<Wide> {
        Folder::new(Settings::new("wide", "in", "out").expect("good"), Wide)
    }

    fn wide_input(seq: Seq, payload: &'static str) -> Input<'static> {
        Input { payload, ..input(seq, None) }
    }

    #[test]
    fn what_was_folded_is_one_unit_however_much_and_a_tick_as_many_as_it_takes() {
        let mut folder = wide();
        let sizes = |folder: &mut Folder<Wide>| -> Vec<usize> {
            folder.units().expect("JSON").iter().map(|unit| unit.len()).collect()
        };
        folder.fold(&wide_input(1, "9000")).expect("room");
        assert_eq!(sizes(&mut folder), [9_000], "a part of it would say that all of it was folded");
        folder.tick(Millis(2_000)).expect("room");
        assert_eq!(sizes(&mut folder), [2_000], "where it fits it is one");
        let mut folder = wide();
        folder.tick(Millis(9_000)).expect("room");
        let units = folder.units().expect("JSON");
        assert!(units.len() > 2 && units.iter().map(Vec::len).sum::<usize>() == 9_000, "{}", units.len());
        for unit in &units {
            let bytes: usize = unit.iter().map(Output::bytes).sum();
            assert!(bytes <= AT_ONCE_BYTES, "{bytes} bytes");
        }
        let mut folder = wide();
        folder.fold(&wide_input(1, "1")).expect("room");
        folder.tick(Millis(9_000)).expect("room");
        assert_eq!(sizes(&mut folder), [9_001], "the position does not count before what was folded is there");
        assert!(folder.units().expect("JSON").is_empty());
    }

    #[test]
    fn a_batch_is_full_before_its_bytes_are_more_than_a_quarter_of_a_frame() {
        let mut folder = wide();
        let mut seq = 0;
        while !folder.is_full() {
            seq += 1;
            folder.fold(&wide_input(seq, "1")).expect("room");
        }
        assert_eq!(seq, AT_ONCE as u64, "small ones by their number");
        folder.units().expect("JSON");
        assert!(!folder.is_full());
        let mut large = Folder::new(Settings::new("large", "in", "out").expect("good"), Large);
        let mut seq = 0;
        while !large.is_full() {
            seq += 1;
            large.fold(&wide_input(seq, "1")).expect("room");
        }
        assert!((50..110).contains(&seq), "{seq} of 40 KB");
    }

    /// A state of 40 KB for each event.
    struct Large;

    impl Projection for Large {
        type State = String;
        fn fold(&mut self, event: &Input<'_>, states: &mut States<String>) -> Result<(), Skip> {
            states.set(event.seq.to_string(), "x".repeat(40_000));
            Ok(())
        }
    }

    #[test]
    fn an_event_that_cannot_be_folded_is_left_out_and_counts_as_folded() {
        let mut folder = folder();
        folder.fold(&input(1, Some(7))).expect("room");
        folder.fold(&input(2, None)).expect("left out");
        folder.fold(&input(2, Some(7))).expect("folded before");
        assert_eq!((folder.skipped(), folder.position().seq, live(&folder)["7"]), (1, 2, 1));
    }

    #[test]
    fn a_position_is_read_as_it_was_written() {
        let id = Some(EventId::derived(&[b"x"]));
        for position in [Position { seq: 0, id: None }, Position { seq: 42, id }] {
            assert_eq!(Position::parse(&position.encode()), Some(position));
        }
        for bad in ["", "x", "1 2", "-1"] {
            assert_eq!(Position::parse(bad), None, "{bad}");
        }
    }
}
