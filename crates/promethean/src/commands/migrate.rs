//! `promethean migrate`: an embedded store becomes a MongoDB database.
//!
//! Topic by topic, piece by piece: a piece and the topic's counter go in one transaction, so that a run that was cut
//! off goes on at the counter. Then everything is read again on both sides and compared.
//!
//! Written to is only a database that has nothing in it, or one whose import was cut off, and no hub runs on either. Any
//! other is only compared: its hubs may have gone on from what was copied, and that must not be set back.

use indicatif::ProgressBar;
use promethean_event::{Event, Topic};
use promethean_store::log::{Log, Options as LogOptions};
use promethean_store::mongo::{Mongo, Options};
use promethean_store::{EventLog as _, GroupStore as _, ReadMax, Saved, Store as _, TopicInfo};
use serde::Serialize;
use tracing_subscriber::EnvFilter;

use super::{logging, out};
use crate::args::MigrateArgs;
use crate::compose::mongo_refused;
use crate::config::LogFormat;
use crate::exit::Failure;

/// Events that are copied at once.
const PIECE: usize = 2_000;

pub(crate) fn run(args: &MigrateArgs) -> Result<(), Failure> {
    if !args.from.join("FORMAT").exists() {
        return Err(Failure::usage(format!("--from: {} is not a data directory of a hub", args.from.display())));
    }
    // What recovery cuts off is not copied: that must not go unsaid.
    logging::start(EnvFilter::new("warn"), LogFormat::Text, super::stderr_is_coloured());
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(Failure::failed)?;
    runtime.block_on(async {
        let log =
            Log::open(LogOptions { maintenance: None, ..LogOptions::new(&args.from) }).map_err(Failure::failed)?;
        let options = Options { maintenance: None, import: true, ..Options::new(&args.to) };
        let mongo = Mongo::open(options).await.map_err(mongo_refused)?;
        let migration = Migration { log, mongo };
        let told = migration.run().await;
        let _ = migration.mongo.close().await;
        let _ = migration.log.close().await;
        let copied = told?;
        if args.json {
            return out::json(&copied);
        }
        let Copied { topics, events, groups, written } = copied;
        let what = format!("{topics} topics, {events} events and {groups} groups");
        out::line(&if written {
            format!("copied {what}; read again and compared: the same on both sides")
        } else {
            format!(
                "the database has everything already: {what}; compared: the same on both sides, nothing was written"
            )
        })?;
        out::hint("MONGO_URL=… promethean serve");
        Ok(())
    })
}

/// What is on both sides now.
#[derive(Serialize)]
struct Copied {
    topics: usize,
    events: u64,
    groups: usize,
    /// True if anything was to be copied.
    #[serde(skip)]
    written: bool,
}

struct Migration {
    log: Log,
    mongo: Mongo,
}

impl Migration {
    async fn run(&self) -> Result<Copied, Failure> {
        let topics = self.log.known_topics().await.map_err(Failure::failed)?;
        let mut infos = Vec::new();
        for topic in &topics {
            infos.extend(self.log.info(topic).await.map_err(Failure::failed)?);
        }
        let running = self.mongo.hubs_alive().await.map_err(Failure::failed)?;
        if !running.is_empty() {
            let hubs = running.join(", ");
            return Err(Failure::failed(format!("hubs are running on the database ({hubs}): stop them first")));
        }
        let before = self.mongo.import_target().await.map_err(Failure::failed)?;
        if before.filled && !before.begun {
            return self.only_compare(&topics, &infos).await;
        }
        self.check_target(&infos).await?;
        self.mongo.begin_import().await.map_err(Failure::failed)?;
        let copied = self.fill(&topics, &infos).await;
        if copied.is_err() && !before.begun && self.mongo.import_target().await.is_ok_and(|now| !now.filled) {
            // Nothing was written: the database is as empty as it was, and hubs may start on it.
            let _ = self.mongo.end_import().await;
        }
        copied
    }

    /// A database that is in use, or was filled before: nothing is written to it, not even that it was looked at.
    async fn only_compare(&self, topics: &[Topic], infos: &[TopicInfo]) -> Result<Copied, Failure> {
        let compared = async {
            let there = self.mongo.topics().await.map_err(Failure::failed)?;
            if let Some(other) = there.iter().find(|topic| infos.iter().all(|info| info.topic != **topic)) {
                return Err(Failure::failed(format!("{other} is not in the directory")));
            }
            self.compare_all(topics, infos).await
        };
        let (events, groups) = compared.await.map_err(|failure| {
            Failure::new(
                failure.exit,
                format!(
                    "the database is in use already, and is not what this directory holds: {failure}; nothing was \
                     written; name an empty database in --to"
                ),
            )
        })?;
        Ok(Copied { topics: infos.len(), events, groups, written: false })
    }

    async fn fill(&self, topics: &[Topic], infos: &[TopicInfo]) -> Result<Copied, Failure> {
        let total = infos.iter().map(|info| info.events).sum();
        let progress = out::progress(Some(total), "events copied");
        for info in infos {
            self.copy(info, &progress).await?;
        }
        progress.finish_and_clear();
        for topic in topics {
            self.copy_groups_and_settings(topic).await?;
        }
        let (events, groups) = self.compare_all(topics, infos).await?;
        self.mongo.end_import().await.map_err(Failure::failed)?;
        Ok(Copied { topics: infos.len(), events, groups, written: true })
    }

    /// How many events and groups there are, the same on both sides.
    async fn compare_all(&self, topics: &[Topic], infos: &[TopicInfo]) -> Result<(u64, usize), Failure> {
        let total = infos.iter().map(|info| info.events).sum();
        let progress = out::progress(Some(total), "events compared");
        for info in infos {
            self.compare(info, &progress).await?;
        }
        progress.finish_and_clear();
        let mut groups = 0;
        for topic in topics {
            groups += self.compare_groups_and_settings(topic).await?;
        }
        Ok((total, groups))
    }

    /// What is in the database must come from this directory.
    async fn check_target(&self, infos: &[TopicInfo]) -> Result<(), Failure> {
        for topic in self.mongo.topics().await.map_err(Failure::failed)? {
            let end = self.mongo.imported(&topic).await.map_err(Failure::failed)?;
            let here = infos.iter().find(|info| info.topic == topic);
            let (ours, theirs) = (self.first(&self.log, &topic).await?, self.first(&self.mongo, &topic).await?);
            let same = match (&ours, &theirs) {
                (Some(ours), Some(theirs)) => ours == theirs,
                (_, theirs) => theirs.is_none(),
            };
            if !same || here.is_none_or(|info| end > info.last_seq) {
                return Err(Failure::failed(format!(
                    "the database has a topic {topic} with events that do not come from here: name an empty database in --to"
                )));
            }
        }
        Ok(())
    }

    async fn first(&self, store: &dyn promethean_store::Store, topic: &Topic) -> Result<Option<Event>, Failure> {
        Ok(store.read(topic, 0, ReadMax::events(1)).await.map_err(Failure::failed)?.pop())
    }

    async fn copy(&self, info: &TopicInfo, progress: &ProgressBar) -> Result<(), Failure> {
        let topic = &info.topic;
        let mut done = self.mongo.imported(topic).await.map_err(Failure::failed)?;
        loop {
            let events = self.log.read(topic, done + 1, ReadMax::events(PIECE)).await.map_err(Failure::failed)?;
            let Some(last) = events.last() else { break };
            done = last.seq;
            let count = events.len() as u64;
            self.mongo.import(topic, events).await.map_err(Failure::failed)?;
            progress.inc(count);
        }
        self.mongo.import_end(info).await.map_err(Failure::failed)
    }

    async fn copy_groups_and_settings(&self, topic: &Topic) -> Result<(), Failure> {
        let settings = self.log.settings(topic);
        if self.mongo.settings(topic) != settings {
            self.mongo.set_settings(topic, settings).await.map_err(Failure::failed)?;
        }
        for (group, state) in self.log.groups(topic).await.map_err(Failure::failed)? {
            let there = self.mongo.load(topic, &group).await.map_err(Failure::failed)?;
            let version = match there {
                Some((same, _)) if same == state => continue,
                Some((_, version)) => version,
                None => 0,
            };
            let saved = self.mongo.compare_and_set(topic, &group, version, state).await.map_err(Failure::failed)?;
            if saved == Saved::Conflict {
                let why = format!("somebody else saves the group {group} on {topic}: stop the hubs on this database");
                return Err(Failure::failed(why));
            }
        }
        Ok(())
    }

    async fn compare(&self, info: &TopicInfo, progress: &ProgressBar) -> Result<(), Failure> {
        let (topic, mut from) = (&info.topic, 0);
        let differ = |what: String| Failure::failed(format!("{topic} is not the same on both sides: {what}"));
        loop {
            let ours = self.log.read(topic, from, ReadMax::events(PIECE)).await.map_err(Failure::failed)?;
            let max = ReadMax { events: ours.len().max(1), bytes: usize::MAX };
            let theirs = self.mongo.read(topic, from, max).await.map_err(Failure::failed)?;
            let exact = |event: &Event| (event.ts, event.appended, event.spans);
            for (ours, theirs) in ours.iter().zip(&theirs) {
                if ours != theirs || exact(ours) != exact(theirs) {
                    return Err(differ(format!("seq {} ({})", ours.seq, ours.id)));
                }
            }
            if ours.len() != theirs.len() {
                return Err(differ(format!("{} and {} events from seq {from}", ours.len(), theirs.len())));
            }
            progress.inc(ours.len() as u64);
            let Some(last) = ours.last() else { break };
            from = last.seq + 1;
        }
        let there = self.mongo.info(topic).await.map_err(Failure::failed)?;
        let ends = |info: &TopicInfo| (info.events, info.first_seq, info.last_seq, info.last);
        if there.as_ref().map(ends) != Some(ends(info)) {
            return Err(differ(format!("{info:?} and {there:?}")));
        }
        Ok(())
    }

    /// How many groups the topic has, the same on both sides.
    async fn compare_groups_and_settings(&self, topic: &Topic) -> Result<usize, Failure> {
        let differ = |what: &str| Failure::failed(format!("{topic} is not the same on both sides: {what}"));
        let ours = self.log.groups(topic).await.map_err(Failure::failed)?;
        let theirs = self.mongo.groups(topic).await.map_err(Failure::failed)?;
        if ours != theirs {
            return Err(differ("groups"));
        }
        if self.log.settings(topic) != self.mongo.settings(topic) {
            return Err(differ("settings"));
        }
        Ok(ours.len())
    }
}
