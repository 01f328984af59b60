//! Answers of consumers, and what becomes of answers that come late.

use promethean_event::{Code, EventId};
use promethean_store::ReadMax;

use super::Runner;
use super::input::Reply;
use crate::Error;
use crate::group::{Answer, InSnapshot, MemberId, Receipt};

impl Runner {
    pub(super) async fn on_answer(
        &mut self,
        by: MemberId,
        mut ids: Vec<(EventId, Option<u64>)>,
        answer: Answer,
        reply: Reply<Vec<Receipt>>,
    ) {
        let clustered = self.held.is_some() && answer == Answer::Ack;
        let fenced = clustered && self.members.get(&by).is_some_and(|member| member.fence_acks(&mut ids));
        if let Err(error) = self.load(None).await {
            let _ = reply.send(Err(error));
            return;
        }
        let now = self.core.clock.now();
        let Some(dispatcher) = &mut self.dispatcher else {
            let _ = reply.send(Ok(vec![Receipt::NotInFlight; ids.len()]));
            return;
        };
        let mut receipts = Vec::with_capacity(ids.len());
        let mut late = Vec::new();
        for (id, lease) in ids {
            let receipt = dispatcher.on_answer(by, id, lease, &answer, now, &mut self.commands);
            if receipt == Receipt::NotInFlight && answer == Answer::Ack {
                late.push(id);
            }
            receipts.push(receipt);
        }
        if !late.is_empty()
            && let Err(error) = Box::pin(self.ack_late(&late)).await
        {
            let _ = reply.send(Err(error));
            return;
        }
        if fenced && receipts.contains(&Receipt::LeaseLost) {
            let _ = reply.send(Err(super::given_again()));
        } else if answer == Answer::Ack {
            let dirty = self.dispatcher.as_ref().is_some_and(|dispatcher| dispatcher.is_dirty());
            self.saving.after(dirty, move |saved| {
                let _ = reply.send(saved.map(|()| receipts));
            });
        } else {
            let _ = reply.send(Ok(receipts));
        }
    }

    /// Acks by place what this runner does not know by id: it was given out before a restart, or is done already.
    async fn ack_late(&mut self, ids: &[EventId]) -> Result<(), Error> {
        let places = self.core.store.locate(ids).await.map_err(|error| Error::group(&error))?;
        for (id, place) in ids.iter().zip(places) {
            if let (Some(place), Some(dispatcher)) = (place, &mut self.dispatcher)
                && place.topic == self.topic
            {
                if dispatcher.needs_key(place.seq) {
                    let read = self.core.store.read(&self.topic, place.seq, ReadMax::events(1)).await;
                    let read = read.map_err(|error| Error::group(&error))?;
                    read.iter().filter(|event| event.id == *id).for_each(|event| dispatcher.on_snapshot_ack(event));
                }
                dispatcher.on_late_ack(place.seq, *id, place.ts);
            }
        }
        Ok(())
    }

    pub(super) async fn on_ack_up_to(&mut self, id: EventId, lease: Option<u64>, reply: Reply<u64>) {
        let result = self.ack_up_to(id, lease).await;
        match result {
            Err(error) => {
                let _ = reply.send(Err(error));
            }
            Ok(done) => {
                let dirty = self.dispatcher.as_ref().is_some_and(|dispatcher| dispatcher.is_dirty());
                self.saving.after(dirty, move |saved| {
                    let _ = reply.send(saved.map(|()| done));
                });
            }
        }
    }

    /// Returns how many events were not done before.
    async fn ack_up_to(&mut self, id: EventId, lease: Option<u64>) -> Result<u64, Error> {
        self.load(None).await?;
        let places = self.core.store.locate(&[id]).await.map_err(|error| Error::group(&error))?;
        let place = places.into_iter().flatten().next().filter(|place| place.topic == self.topic);
        let place = place.ok_or_else(|| Error::unknown_id("upTo", id))?;
        let info = self.core.store.info(&self.topic).await.map_err(|error| Error::group(&error))?;
        let Some(dispatcher) = &mut self.dispatcher else { return Ok(0) };
        if lease.is_some_and(|lease| dispatcher.is_lost(id, lease)) {
            return Err(Error::new(Code::LeaseLost, format!("the event {id} was given out again since")));
        }
        let before = dispatcher.lag(info.as_ref());
        dispatcher.on_ack_up_to(place.seq, id, place.ts).map_err(|InSnapshot| {
            let message =
                "upTo: the event is part of a snapshot start, which comes in key order; name the events with ids";
            Error::new(Code::BadRequest, message)
        })?;
        Ok(before.saturating_sub(dispatcher.lag(info.as_ref())))
    }
}
