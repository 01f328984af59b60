//! Taking over events of another store at their places: ids, seqs, times and bytes stay what they were.
//!
//! Each piece is a transaction that moves the topic's counter along, so that an import that was cut off goes on at the
//! counter. A database with an import that has not ended is refused by hubs: half a log is worse than none.
//! Its document in `meta` names the process that does it: the next one ends what that one has left open.

use mongodb::bson::{Document, RawDocumentBuf, doc};
use mongodb::error::Error as Fault;
use promethean_event::{Event, IdOrigin, NewEvent, Seq, Topic};

use super::document::{encode, number, signed, wire_bytes};
use super::fault::{is_away, is_duplicate, limited, nonce, patiently, pause, words};
use super::plan::Growth;
use super::{COUNTERS, META, Mongo, Shared, transaction};
use crate::{Error, Result, TopicInfo};

/// Attempts at one piece.
const ATTEMPTS: u32 = 20;

/// The document of an import that has begun.
pub(super) const IMPORT: &str = "import";

impl Mongo {
    /// Says that an import begins: hubs do not open the database until it has ended.
    ///
    /// # Errors
    /// MongoDB does not take it.
    pub async fn begin_import(&self) -> Result<()> {
        let meta = self.shared.database.collection::<Document>(META);
        // One that was cut off in the middle of a piece would keep this one from its topic for a minute.
        let before = self.shared.by_id(META, IMPORT).await?;
        if let Some(dead) = before.as_ref().and_then(|before| before.get_str("app").ok()) {
            let ended = self.shared.end_transactions(dead).await;
            ended.map_err(|fault| Error::Refused(format!("the import that was cut off: {}", words(&fault))))?;
        }
        let begun = doc! { "$set": { "ended": false, "app": &self.shared.app } };
        patiently("beginning the import", || async {
            meta.update_one(doc! { "_id": IMPORT }, begun.clone()).upsert(true).await
        })
        .await
        .map(drop)
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
