//! How groups stand: asked of whoever serves a group, of its owner on another hub, or of what was saved.
//!
//! Nothing here changes anything, and nothing is scanned: what it costs does not depend on how long a topic is.

use std::time::{Duration, Instant};

use promethean_event::{Group, Topic};
use promethean_store::{Error as StoreError, Peer, ReadMax, TopicInfo};

use super::{Bus, Core};
use crate::Error;
use crate::relay::{Cluster, RelayError, Relaying};
use crate::runner::{self, Input};
use crate::status::{self, GroupStatus, Lag, MemberStatus};

/// How long a group's owner is waited for that is asked how the group stands.
const OWNER_TELLS: Duration = Duration::from_secs(2);

impl Bus {
    /// As [`Bus::group_status`], asked by another hub: only where this one owns the group.
    ///
    /// # Errors
    /// As [`Bus::group_status`]; `shutting_down`: another hub owns it, or nobody.
    pub async fn status_here(
        &self,
        topic: &Topic,
        group: &Group,
        unfinished: bool,
    ) -> Result<Option<GroupStatus>, Error> {
        if !self.is_live(topic, group) {
            return Err(runner::not_the_owner());
        }
        let info = self.core.info(topic).await?;
        let ask = |reply| Input::Status { unfinished, relayed: true, info: info.clone(), reply };
        self.core.ask(topic, group, ask).await
    }

    /// The members of a group that this hub serves, asked of nobody else: not of the store either. `None`: it does not.
    pub async fn members_here(&self, topic: &Topic, group: &Group) -> Option<Vec<MemberStatus>> {
        let ask = |reply| Input::Status { unfinished: false, relayed: true, info: None, reply };
        let status = if self.is_live(topic, group) { self.core.ask(topic, group, ask).await.ok() } else { None };
        Some(status??.members)
    }

    /// The status of a group on a topic, with its unfinished events; `None` without a cursor there.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn group_status(&self, topic: &Topic, group: &Group) -> Result<Option<GroupStatus>, Error> {
        self.status(topic, group, true, self.core.info(topic).await?).await
    }

    /// The status of a group on a topic, without its unfinished events; `None` without a cursor there.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn group_outline(&self, topic: &Topic, group: &Group) -> Result<Option<GroupStatus>, Error> {
        self.status(topic, group, false, self.core.info(topic).await?).await
    }

    async fn status(
        &self,
        topic: &Topic,
        group: &Group,
        unfinished: bool,
        info: Option<TopicInfo>,
    ) -> Result<Option<GroupStatus>, Error> {
        let ask = |reply| Input::Status { unfinished, relayed: false, info: info.clone(), reply };
        let mut status: Option<GroupStatus> = match &self.core.cluster {
            Some(cluster) if !self.is_live(topic, group) => {
                self.status_elsewhere(cluster, topic, group, unfinished).await?
            }
            _ => self.core.ask(topic, group, ask).await?,
        };
        // Zero: nothing of it has been read yet.
        if let Some(status) = status.as_mut().filter(|status| status.lag > 0 && status.lag_age.is_zero()) {
            status.lag_age = self.core.age_after(topic, status.cursor.seq).await?;
        }
        Ok(status)
    }

    /// How a group stands that has no members here: as its owner says, or as it was saved where it has none.
    async fn status_elsewhere(
        &self,
        cluster: &Cluster,
        topic: &Topic,
        group: &Group,
        unfinished: bool,
    ) -> Result<Option<GroupStatus>, Error> {
        let owner = cluster.ownership.owner(topic, group).await.map_err(|error| Error::group(&error))?;
        match owner {
            Some(owner) => {
                let asked = cluster.relays.status(&owner, topic, group, unfinished);
                self.core.status_at(asked, &owner, topic, group).await
            }
            None => self.core.saved_status(topic, group).await,
        }
    }

    /// How far a group is behind: no scan, whatever the topic's length.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn lag(&self, topic: &Topic, group: &Group) -> Result<Lag, Error> {
        let info = self.core.info(topic).await?;
        let tail = info.as_ref().and_then(|info| info.last).map(|(id, _)| id);
        if self.core.runner_of(topic, group).is_some()
            && let Some(status) = self.status(topic, group, false, info.clone()).await?
        {
            // Another hub may have appended what the group has not heard of yet.
            let unheard = info.map_or(0, |info| info.last_seq).saturating_sub(status.tail);
            let events = status.lag + unheard;
            let unread = events > 0 && status.lag_age.is_zero();
            let age = if unread { self.core.age_after(topic, status.cursor.seq).await? } else { status.lag_age };
            return Ok(Lag { cursor: Some(status.cursor), tail, events, age });
        }
        let state = self.core.store.load(topic, group).await.map_err(|error| Error::group(&error))?;
        let Some((state, _)) = state else { return Ok(Lag { cursor: None, tail, events: 0, age: Duration::ZERO }) };
        let events = info.map_or(0, |info| state.lag(&info));
        let age = if events > 0 { self.core.age_after(topic, state.floor).await? } else { Duration::ZERO };
        Ok(Lag { cursor: Some(status::cursor(topic, state.floor, state.last)), tail, events, age })
    }
}

impl Core {
    /// How a group stands by its owner's answer; where that does not come in time, as it was saved: the owner may hang, or
    /// be gone, or its members may.
    pub(crate) async fn status_at(
        &self,
        asked: Relaying<Option<GroupStatus>>,
        owner: &Peer,
        topic: &Topic,
        group: &Group,
    ) -> Result<Option<GroupStatus>, Error> {
        let late = |_| Err(RelayError::Lost(format!("no answer within {OWNER_TELLS:?}")));
        match tokio::time::timeout(OWNER_TELLS, asked).await.unwrap_or_else(late) {
            Ok(status) => Ok(status),
            Err(RelayError::Refused(error)) => Err(error),
            Err(RelayError::Lost(reason)) => {
                tracing::debug!(%topic, %group, owner = %owner.id, %reason, "the owner does not tell");
                let mut saved = self.saved_status(topic, group).await?;
                if let Some(saved) = &mut saved {
                    saved.owner_silent = Some(format!("{} ({reason})", owner.address).into());
                }
                Ok(saved)
            }
        }
    }

    /// How a group stands as it was saved.
    async fn saved_status(&self, topic: &Topic, group: &Group) -> Result<Option<GroupStatus>, Error> {
        let stored = self.store.load(topic, group).await.map_err(|error| Error::group(&error))?;
        let Some((state, _)) = stored else { return Ok(None) };
        let info = self.info(topic).await?;
        Ok(Some(runner::saved_status(topic, group, state, info.as_ref())))
    }

    async fn info(&self, topic: &Topic) -> Result<Option<TopicInfo>, Error> {
        self.store.info(topic).await.map_err(|error| Error::group(&error))
    }

    /// The age of the first event after `seq`. Damage there costs the age, zero then, and nothing else.
    async fn age_after(&self, topic: &Topic, seq: u64) -> Result<Duration, Error> {
        match self.store.read(topic, seq + 1, ReadMax::events(1)).await {
            Ok(next) => Ok(next.first().map_or(Duration::ZERO, |event| self.wall().since(event.appended))),
            Err(error @ StoreError::Damaged(_)) => {
                // Whoever looks on asks every second, for every group.
                let mut told = self.damage_told.lock();
                if told.is_none_or(|told| told.elapsed() >= Duration::from_secs(1)) {
                    *told = Some(Instant::now());
                    tracing::error!(%topic, seq = seq + 1, %error, "the age of a group's lag cannot be read");
                }
                Ok(Duration::ZERO)
            }
            Err(error) => Err(Error::group(&error)),
        }
    }
}
