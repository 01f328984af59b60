//! Taking over events of another store at their places: ids, seqs, times and bytes stay what they were.
//!
//! Each piece is a transaction that moves the topic's counter along, so that an import that was cut off goes on at the
//! counter. A database with an import that has not ended is refused by hubs: half a log is worse than none.
//! Its document in `meta` names the process that does it: the next one ends what that one has left open.
//!
//! An import and a running hub exclude each other: each writes that it is there, and then looks for the other.

use futures_util::TryStreamExt as _;
use mongodb::bson::{Document, RawDocumentBuf, doc};
use mongodb::error::Error as Fault;
use promethean_event::{Event, IdOrigin, NewEvent, Seq, Topic};

use super::document::{encode, number, signed, wire_bytes};
use super::fault::{is_away, is_duplicate, limited, nonce, patiently, pause, words};
use super::plan::Growth;
use super::{COUNTERS, CURSORS, EVENTS, HUBS, META, Mongo, Shared, transaction};
use crate::{Error, Result, TopicInfo};

/// Attempts at one piece.
const ATTEMPTS: u32 = 20;

/// The document of an import that has begun.
pub(super) const IMPORT: &str = "import";

/// What a database is to an import.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    /// An import has begun and not ended.
    pub begun: bool,
    /// It has events or groups.
    pub filled: bool,
}

impl Shared {
    /// True if an import has begun and not ended.
    pub(super) async fn import_begun(&self) -> Result<Option<Document>> {
        self.by_id(META, IMPORT).await
    }

    /// Writes one document, so that reads after it see whatever was written before it.
    async fn put(&self, what: &str, id: &str, set: Document) -> Result<()> {
        let meta = self.database.collection::<Document>(META);
        patiently(what, || async {
            let mut session = self.session().await?;
            let put = meta.update_one(doc! { "_id": id }, doc! { "$set": set.clone() }).upsert(true);
            put.session(&mut session).await?;
            self.heard(&session);
            Ok(())
        })
        .await
    }
}

impl Mongo {
    /// What the database is to an import.
    ///
    /// # Errors
    /// MongoDB does not answer.
    pub async fn import_target(&self) -> Result<Target> {
        let begun = self.shared.import_begun().await?.is_some();
        let mut filled = false;
        for (collection, filter) in [(COUNTERS, doc! { "next": { "$gt": 0 } }), (EVENTS, doc! {}), (CURSORS, doc! {})] {
            let collection = self.shared.database.collection::<RawDocumentBuf>(collection);
            filled |= patiently("what the database has", || async {
                let mut session = self.shared.session().await?;
                Ok(collection.find_one(filter.clone()).session(&mut session).await?.is_some())
            })
            .await?;
        }
        Ok(Target { begun, filled })
    }

    /// The addresses of the hubs that run on the database.
    ///
    /// # Errors
    /// MongoDB does not answer.
    pub async fn hubs_alive(&self) -> Result<Vec<String>> {
        let hubs = self.shared.database.collection::<Document>(HUBS);
        let alive = doc! { "dead": { "$ne": true }, "$expr": { "$gt": ["$expires", "$$NOW"] } };
        let found = patiently("which hubs are running", || async {
            let mut session = self.shared.session().await?;
            let mut cursor = hubs.find(alive.clone()).session(&mut session).await?;
            cursor.stream(&mut session).try_collect::<Vec<_>>().await
        });
        Ok(found.await?.iter().map(|hub| hub.get_str("address").unwrap_or("?").to_owned()).collect())
    }

    /// Says that an import begins: hubs do not open the database until it has ended.
    ///
    /// # Errors
    /// A hub runs on the database, or MongoDB does not take it.
    pub async fn begin_import(&self) -> Result<()> {
        // One that was cut off in the middle of a piece would keep this one from its topic for a minute.
        let before = self.shared.import_begun().await?;
        if let Some(dead) = before.as_ref().and_then(|before| before.get_str("app").ok()) {
            let ended = self.shared.end_transactions(dead).await;
            ended.map_err(|fault| Error::Refused(format!("the import that was cut off: {}", words(&fault))))?;
        }
        self.shared.put("beginning the import", IMPORT, doc! { "ended": false, "app": &self.shared.app }).await?;
        // After it is written: a hub that takes its place now finds it.
        let running = self.hubs_alive().await?;
        if running.is_empty() {
            return Ok(());
        }
        if before.is_none() {
            self.end_import().await?;
        }
        Err(Error::Refused(format!("hubs are running on the database ({}): stop them first", running.join(", "))))
    }

    /// Says that the import is whole.
    ///
    /// # Errors
    /// MongoDB does not take it.
    pub async fn end_import(&self) -> Result<()> {
        let meta = self.shared.database.collection::<Document>(META);
        patiently("ending the import", || async { meta.delete_one(doc! { "_id": IMPORT }).await }).await.map(drop)
    }

    /// Up to where a topic was imported.
    ///
    /// # Errors
    /// MongoDB does not answer.
    pub async fn imported(&self, topic: &Topic) -> Result<Seq> {
        self.shared.end(topic).await
    }

    /// Stores events of one topic at their own seqs, all or none. They ascend and lie after [`imported`](Self::imported).
    ///
    /// # Errors
    /// An id that is there already, a hub that publishes meanwhile, or MongoDB does not take it.
    pub async fn import(&self, topic: &Topic, events: Vec<Event>) -> Result<()> {
        let from = self.imported(topic).await?;
        let Some(piece) = Piece::new(topic, from, events)? else { return Ok(()) };
        let last = piece.growth.to;
        for round in 0..ATTEMPTS {
            let Err(fault) = piece.store(&self.shared).await else {
                self.shared.tails.announce(topic, last);
                return Ok(());
            };
            // The answer to a commit may be lost: the counter tells.
            let at = self.imported(topic).await?;
            if at == last {
                return Ok(());
            }
            if at != from {
                let why = format!("{topic}: somebody else publishes to it (it ends at {at}, not {from})");
                return Err(Error::Refused(format!("{why}: stop the hubs on this database")));
            }
            if is_duplicate(&fault) {
                let why = format!("{topic}: the database has events that do not come from here: {}", words(&fault));
                return Err(Error::Refused(format!("{why}; import into an empty one")));
            }
            if !is_away(&fault) {
                return Err(Error::Refused(format!("{topic}: MongoDB says: {}", words(&fault))));
            }
            pause(round).await;
        }
        Err(Error::Unknown(format!("{topic}: MongoDB does not take the events; run it again, it goes on where it was")))
    }

    /// Brings a topic's end to where it was: its last events may have been removed.
    ///
    /// # Errors
    /// MongoDB does not take it.
    pub async fn import_end(&self, info: &TopicInfo) -> Result<()> {
        let mut end = doc! { "next": signed(info.last_seq) };
        if let Some((id, ts)) = info.last {
            end.insert("lastId", id.to_string());
            end.insert("lastTs", signed(ts.0));
        }
        let counters = self.shared.database.collection::<Document>(COUNTERS);
        patiently("the end of the topic", || async {
            let update = doc! { "$set": end.clone() };
            let mut session = self.shared.session().await?;
            let moving = counters.update_one(doc! { "_id": info.topic.as_str() }, update).upsert(true);
            moving.session(&mut session).await?;
            self.shared.heard(&session);
            Ok(())
        })
        .await?;
        self.shared.tails.announce(&info.topic, info.last_seq);
        Ok(())
    }
}

struct Piece {
    documents: Vec<RawDocumentBuf>,
    growth: Growth,
}

impl Piece {
    fn new(topic: &Topic, from: Seq, events: Vec<Event>) -> Result<Option<Self>> {
        let Some(last) = events.last().map(|event| (event.id, event.ts)) else { return Ok(None) };
        let mut growth = Growth { topic: topic.clone(), from, to: from, events: 0, bytes: 0, last };
        let (batch, mut documents) = (nonce(), Vec::with_capacity(events.len()));
        for event in events {
            let Event { id, seq, ts, appended, topic, spans, body } = event;
            if seq <= growth.to {
                return Err(Error::Refused(format!("{topic}: seq {seq} does not lie after {}", growth.to)));
            }
            let event = NewEvent { id, origin: IdOrigin::Client, ts, appended, topic, unit: 0, spans, body };
            let document = encode(&event).and_then(|document| number(document, seq, &batch));
            documents.push(document.ok_or_else(|| {
                Error::Refused(format!("the event {id} is larger than a document of MongoDB may be"))
            })?);
            (growth.to, growth.events) = (seq, growth.events + 1);
            growth.bytes += wire_bytes(&event);
        }
        Ok(Some(Self { documents, growth }))
    }

    async fn store(&self, shared: &Shared) -> mongodb::error::Result<()> {
        let documents = self.documents.iter().collect();
        let written = transaction::write(shared, documents, std::slice::from_ref(&self.growth)).await?;
        let moved = || Fault::custom("the topic's counter has moved".to_owned());
        let mut session = written.ok_or_else(moved)?;
        limited(session.commit_transaction()).await?;
        shared.heard(&session);
        Ok(())
    }
}
