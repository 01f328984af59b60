//! Several hubs in front of one MongoDB: the ways between them.
//!
//! A subscriber whose group another hub owns has a connection of its own to that hub (`link`), over the protocol of every
//! client, with the cluster's secret: what slows one subscriber down slows no other, and when the connection goes, what
//! it held goes back at once. [`Ways`] is the bus's [`Relays`] over such connections.

mod link;
mod place;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use promethean_bus::group::{Answer, Receipt};
use promethean_bus::{
    Code, Cursor, Error, EventId, Group, GroupStatus, Redrive, RelayError, RelayJoin, Relaying, Relays, Remote, SeekTo,
    SubscribeOptions, SubscriptionId, Topic,
};
use promethean_client::Client;
use promethean_event::frame::ask;
use promethean_gateway::auth::Secret;
use promethean_gateway::cluster::{Asked, read_redrive, read_seek, read_status};
use promethean_store::Peer;
use tokio::sync::watch;

use link::{Link, Said};
pub(crate) use place::Place;

/// How long another hub may take to be connected to.
const CONNECT: Duration = Duration::from_secs(3);
/// How often it is said that another hub refuses this one.
const WARN_EVERY: Duration = Duration::from_secs(60);
/// How long it may take for an answer.
const ANSWER: Duration = Duration::from_secs(20);

type Links = HashMap<(SubscriptionId, Arc<str>), Arc<tokio::sync::Mutex<Weak<Link>>>>;

/// The ways to other hubs.
struct Ways {
    inner: Arc<Inner>,
}

struct Inner {
    /// This process's name, for as long as it runs.
    me: Arc<str>,
    secret: Secret,
    /// One connection for each subscriber and owner; 0 is the hub itself, for questions. Bounded by the subscribers.
    links: Mutex<Links>,
    /// When it was last said that another hub refuses this one.
    warned: Mutex<Option<Instant>>,
}

impl Ways {
    fn new(me: &str, secret: Secret) -> Self {
        Self { inner: Arc::new(Inner { me: me.into(), secret, links: Mutex::default(), warned: Mutex::default() }) }
    }
}

fn lost(reason: impl ToString) -> RelayError {
    RelayError::Lost(reason.to_string())
}

/// Of what the owner said: for the subscriber, or a reason to ask who the owner is.
fn refused(error: Error) -> RelayError {
    match error.code {
        Code::ShuttingDown => RelayError::Lost(error.message),
        _ => RelayError::Refused(error),
    }
}

impl Inner {
    /// The connection of a subscriber to an owner, a new one where there is none.
    async fn link(&self, subscription: SubscriptionId, to: &Peer) -> Result<Arc<Link>, RelayError> {
        let slot = {
            let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
            if links.len() > 64 {
                // Nobody connects through it now, and nobody is connected.
                links.retain(|_, slot| {
                    Arc::strong_count(slot) > 1 || slot.try_lock().is_ok_and(|link| link.strong_count() > 0)
                });
            }
            Arc::clone(links.entry((subscription, Arc::clone(&to.id))).or_default())
        };
        let mut slot = slot.lock().await;
        if let Some(link) = slot.upgrade().filter(|link| !link.is_lost()) {
            return Ok(link);
        }
        let opened = Client::builder(&*to.address)
            .connect_timeout(CONNECT)
            .header("authorization", &format!("Bearer {}", self.secret.expose()))
            .and_then(|builder| builder.header("promethean-relay", &format!("{}/{subscription}", self.me)))
            .map_err(lost)?;
        let link = opened.link().await.map_err(|error| {
            self.warn_if_refused(to, &error);
            lost(error)
        })?;
        let link = Arc::new(Link::open(link));
        *slot = Arc::downgrade(&link);
        Ok(link)
    }

    /// Every subscriber tries again and again: it is said once in a while, not each time.
    fn warn_if_refused(&self, by: &Peer, error: &promethean_client::Error) {
        if !matches!(error, promethean_client::Error::Connect { reason, .. } if reason.contains("answered 401")) {
            return;
        }
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        if warned.is_none_or(|last| last.elapsed() >= WARN_EVERY) {
            *warned = Some(Instant::now());
            tracing::warn!(hub = %by.address, %error, "another hub refuses this one: give all the same cluster_secret");
        }
    }

    /// Asks a question over the hub's own connection.
    async fn ask(&self, to: &Peer, asked: impl FnOnce(u64) -> Asked) -> Result<String, RelayError> {
        let link = self.link(0, to).await?;
        let answer = link.call(|corr| asked(corr).frame());
        // The link lives until the answer is there.
        let answer = answer_in_time(answer).await?;
        drop(link);
        Ok(answer.text)
    }
}

async fn answer_in_time(answer: tokio::sync::oneshot::Receiver<Said>) -> Result<Said, RelayError> {
    match tokio::time::timeout(ANSWER, answer).await {
        Ok(Ok(said)) => Ok(said),
        Ok(Err(_)) => Err(lost("the connection to the owner was lost")),
        Err(_) => Err(lost("the owner does not answer")),
    }
}

impl Relays for Ways {
    fn join(&self, owner: &Peer, join: RelayJoin) -> Relaying<(Cursor, Box<dyn Remote>)> {
        let (inner, owner) = (Arc::clone(&self.inner), owner.clone());
        Box::pin(async move {
            let link = inner.link(join.subscription, &owner).await?;
            let RelayJoin { subscription, topic, group, options, policy, from, paused, deliveries } = join;
            let options = SubscribeOptions {
                from,
                max_in_flight: options.max_in_flight,
                batch_size: options.batch_size,
                ack_timeout: options.ack_timeout,
                max_attempts: policy.max_attempts,
                filter: policy.filter,
                ordered: policy.ordered,
                ..SubscribeOptions::default()
            };
            let write = |corr: u64| {
                let mut frame = Vec::new();
                ask::subscribe(&mut frame, corr, topic.as_str(), Some(&group), &options, true);
                frame
            };
            let answer = link.subscribe(&topic, subscription, deliveries, write);
            // From here on, whatever happens, dropping this unsubscribes.
            let (pauses, wanted) = watch::channel(false);
            tokio::spawn(keep_paused(Arc::clone(&link), topic.clone(), group.clone(), wanted));
            let member = Member { link, topic: topic.clone(), group, pauses };
            let said = answer_in_time(answer).await?;
            let cursor = said.result.map_err(refused)?.and_then(|cursor| serde_json::from_str(&cursor).ok());
            let cursor = cursor.ok_or_else(|| lost("the owner's OK has no cursor"))?;
            if paused {
                member.pause(true);
            }
            Ok((cursor, Box::new(member) as Box<dyn Remote>))
        })
    }

    fn seek(&self, owner: &Peer, topic: &Topic, group: &Group, to: SeekTo) -> Relaying<Cursor> {
        let (inner, owner, topic, group) = (Arc::clone(&self.inner), owner.clone(), topic.clone(), group.clone());
        Box::pin(async move {
            let text = inner.ask(&owner, |corr| Asked::seek(corr, topic.clone(), &group, to)).await?;
            read_seek(&text).map_err(refused)
        })
    }

    fn redrive(&self, owner: &Peer, topic: &Topic, group: &Group, letters: Vec<Redrive>) -> Relaying<Vec<bool>> {
        let (inner, owner, topic, group) = (Arc::clone(&self.inner), owner.clone(), topic.clone(), group.clone());
        Box::pin(async move {
            let asked =
                |corr| Asked::Redrive { corr, topic: topic.clone(), group: group.clone(), letters: letters.clone() };
            let text = inner.ask(&owner, asked).await?;
            read_redrive(&text).map_err(refused)
        })
    }

    fn status(&self, owner: &Peer, topic: &Topic, group: &Group, unfinished: bool) -> Relaying<Option<GroupStatus>> {
        let (inner, owner, topic, group) = (Arc::clone(&self.inner), owner.clone(), topic.clone(), group.clone());
        Box::pin(async move {
            let asked = |corr| Asked::Status { corr, topic: topic.clone(), group: group.clone(), unfinished };
            let text = inner.ask(&owner, asked).await?;
            read_status(&text, &inner.me).map_err(refused)
        })
    }
}

/// A subscriber's member at the owner.
struct Member {
    link: Arc<Link>,
    topic: Topic,
    group: Group,
    /// True if the subscriber wants to be paused.
    pauses: watch::Sender<bool>,
}

/// Tells the owner what the subscriber wants, one frame at a time: of a client that pauses and resumes without end only
/// the last wish is kept.
async fn keep_paused(link: Arc<Link>, topic: Topic, group: Group, mut wanted: watch::Receiver<bool>) {
    while wanted.changed().await.is_ok() {
        let paused = *wanted.borrow_and_update();
        let said = link.call(|corr| {
            let mut frame = Vec::new();
            match paused {
                true => ask::pause(&mut frame, corr, topic.as_str(), Some(&group)),
                false => ask::resume(&mut frame, corr, topic.as_str(), Some(&group)),
            }
            frame
        });
        // A link that is lost ends the member, and a new one is told again.
        let _ = answer_in_time(said).await;
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let (topic, group) = (&self.topic, &self.group);
        self.link.unsubscribe(topic, |corr| {
            let mut frame = Vec::new();
            ask::unsubscribe(&mut frame, corr, topic.as_str(), Some(group));
            frame
        });
    }
}

impl Member {
    /// A frame that settles events.
    fn frame(&self, corr: u64, op: &str, ids: &[EventId], lease: Option<u64>, answer: &Answer) -> Vec<u8> {
        let mut frame =
            serde_json::json!({ "op": op, "corr": corr, "topic": self.topic, "group": self.group, "ids": ids });
        if let Some(lease) = lease {
            frame["lease"] = lease.into();
        }
        let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        match answer {
            Answer::Ack => {}
            Answer::Nack { reason, delay, release } => {
                if let Some(reason) = reason {
                    frame["reason"] = reason.as_str().into();
                }
                if let Some(delay) = delay {
                    frame["delay_ms"] = millis(*delay).into();
                }
                frame["release"] = (*release).into();
            }
            Answer::Extend { by: Some(by) } => frame["extend_ms"] = millis(*by).into(),
            Answer::Extend { by: None } => {}
        }
        serde_json::to_vec(&frame).unwrap_or_default()
    }
}

impl Remote for Member {
    fn answer(&self, ids: Vec<(EventId, Option<u64>)>, answer: Answer) -> Relaying<Vec<Receipt>> {
        let (op, each) = match answer {
            Answer::Ack => ("ACK", false),
            Answer::Nack { .. } => ("NACK", false),
            // Which of several is unknown, one answer cannot tell.
            Answer::Extend { .. } => ("MODACK", true),
        };
        // A frame has one lease: those without one go together.
        let alike =
            |one: &(EventId, Option<u64>), next: &(EventId, Option<u64>)| !each && one.1.is_none() && next.1.is_none();
        let mut sent = Vec::new();
        for run in ids.chunk_by(alike) {
            let plain: Vec<EventId> = run.iter().map(|(id, _)| *id).collect();
            let said = self.link.call(|corr| self.frame(corr, op, &plain, run[0].1, &answer));
            sent.push((run.len(), said));
        }
        let link = Arc::clone(&self.link);
        Box::pin(async move {
            let mut receipts = Vec::with_capacity(ids.len());
            for (count, said) in sent {
                let receipt = match answer_in_time(said).await?.result {
                    Ok(_) => Receipt::Done,
                    Err(error) if error.code == Code::LeaseLost => Receipt::LeaseLost,
                    Err(error) if error.code == Code::UnknownId => Receipt::NotInFlight,
                    // The owner has ended the subscription: it is the owner no more.
                    Err(error) if error.code == Code::NotSubscribed => return Err(lost(error.message)),
                    Err(error) => return Err(refused(error)),
                };
                receipts.extend(std::iter::repeat_n(receipt, count));
            }
            drop(link);
            Ok(receipts)
        })
    }

    fn ack_up_to(&self, id: EventId, lease: Option<u64>) -> Relaying<()> {
        let said = self.link.call(|corr| {
            let (topic, group) = (&self.topic, &self.group);
            let mut frame =
                serde_json::json!({ "op": "ACK", "corr": corr, "topic": topic, "group": group, "upTo": id });
            if let Some(lease) = lease {
                frame["lease"] = lease.into();
            }
            serde_json::to_vec(&frame).unwrap_or_default()
        });
        let link = Arc::clone(&self.link);
        Box::pin(async move {
            let said = answer_in_time(said).await?;
            drop(link);
            match said.result {
                Ok(_) => Ok(()),
                Err(error) if error.code == Code::NotSubscribed => Err(lost(error.message)),
                Err(error) => Err(refused(error)),
            }
        })
    }

    fn pause(&self, paused: bool) {
        self.pauses.send_replace(paused);
    }
}
