//! Taking over events of another store at their places: ids, seqs, times and bytes stay what they were.
//!
//! Each piece is a transaction that moves the topic's counter along, so that an import that was cut off goes on at the
//! counter. A database with an import that has not ended is refused by hubs: half a log is worse than none.

use mongodb::bson::{Bson, Document, RawDocumentBuf, doc};
use mongodb::error::Error as Fault;
use promethean_event::{Event, IdOrigin, NewEvent, Seq, Topic};

use super::connect::write_concern;
use super::document::{encode, number, signed, wire_bytes};
use super::fault::{is_away, is_duplicate, limited, nonce, patiently, pause, words};
use super::{COUNTERS, EVENTS, META, Mongo};
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
        let begun = doc! { "$set": { "ended": false } };
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
        let Some(last) = events.last().map(|event| event.seq) else { return Ok(()) };
        let from = self.imported(topic).await?;
        let piece = Piece::new(topic, from, events)?;
        for round in 0..ATTEMPTS {
            let Err(fault) = piece.store(self).await else {
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
            counters.update_one(doc! { "_id": info.topic.as_str() }, update).upsert(true).await
        })
        .await?;
        self.shared.tails.announce(&info.topic, info.last_seq);
        Ok(())
    }
}

struct Piece<'a> {
    topic: &'a Topic,
    from: Seq,
    to: Seq,
    documents: Vec<RawDocumentBuf>,
    last: Document,
    grown: Document,
}

impl<'a> Piece<'a> {
    fn new(topic: &'a Topic, from: Seq, events: Vec<Event>) -> Result<Self> {
        let batch = nonce();
        let (mut documents, mut bytes, mut to, mut last) = (Vec::with_capacity(events.len()), 0, from, Document::new());
        for event in events {
            let Event { id, seq, ts, appended, topic, spans, body } = event;
            if seq <= to {
                return Err(Error::Refused(format!("{topic}: seq {seq} does not lie after {to}")));
            }
            let event = NewEvent { id, origin: IdOrigin::Client, ts, appended, topic, unit: 0, spans, body };
            let document = encode(&event).and_then(|document| number(document, seq, &batch));
            documents.push(document.ok_or_else(|| {
                Error::Refused(format!("the event {id} is larger than a document of MongoDB may be"))
            })?);
            bytes += wire_bytes(&event);
            (to, last) = (seq, doc! { "next": signed(seq), "lastId": id.to_string(), "lastTs": signed(ts.0) });
        }
        let grown = doc! { "events": signed(documents.len() as u64), "bytes": signed(bytes) };
        Ok(Self { topic, from, to, documents, last, grown })
    }

    async fn store(&self, mongo: &Mongo) -> mongodb::error::Result<()> {
        debug_assert!(self.to > self.from);
        let database = &mongo.shared.database;
        let mut session = limited(mongo.shared.client.start_session()).await?;
        session.start_transaction().write_concern(write_concern()).await?;
        let events = database.collection::<RawDocumentBuf>(EVENTS);
        limited(events.insert_many(&self.documents).session(&mut session)).await?;
        let counters = database.collection::<Document>(COUNTERS);
        let at = if self.from == 0 {
            doc! { "$in": [0_i64, Bson::Null] }
        } else {
            doc! { "$eq": signed(self.from) }
        };
        let filter = doc! { "_id": self.topic.as_str(), "next": at };
        let update = doc! { "$set": self.last.clone(), "$inc": self.grown.clone() };
        let moved = counters.update_one(filter, update).upsert(self.from == 0).session(&mut session);
        let moved = limited(moved).await?;
        if moved.matched_count == 0 && moved.upserted_id.is_none() {
            limited(session.abort_transaction()).await?;
            return Err(Fault::custom("the topic's counter has moved".to_owned()));
        }
        limited(session.commit_transaction()).await
    }
}
