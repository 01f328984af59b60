//! Which snapshot jobs get along: each has a snapshot topic of its own, and none feeds itself.

use std::collections::{BTreeMap, BTreeSet};

use promethean_event::Topic;

use crate::{SnapshotJob, TopicSettings};

/// Where the snapshots of every topic go.
///
/// A snapshot of a snapshot topic is fine; a circle of them grows without end, and two jobs with one snapshot topic take
/// each other's keys for gone.
#[derive(Debug, Clone, Default)]
pub struct SnapshotTargets(BTreeMap<Topic, Topic>);

impl SnapshotTargets {
    /// Those of `topics`; of a topic that is named twice, the later one's.
    pub fn new<'a>(topics: impl IntoIterator<Item = (&'a Topic, &'a TopicSettings)>) -> Self {
        let mut targets = Self::default();
        for (topic, settings) in topics {
            targets.set(topic, settings.snapshot.as_ref());
        }
        targets
    }

    fn set(&mut self, source: &Topic, job: Option<&SnapshotJob>) {
        // A name that is too long for its suffix is refused for itself, and meets nobody's.
        match job.and_then(|job| job.target(source).ok()) {
            Some(target) => self.0.insert(source.clone(), target),
            None => self.0.remove(source),
        };
    }

    /// True if `source` may have the snapshot topic that it has here, among the others.
    ///
    /// # Errors
    /// Why not: what it collides with, and what to do.
    pub fn check(&self, source: &Topic) -> Result<(), String> {
        let Some(target) = self.0.get(source) else { return Ok(()) };
        self.check_alone(source, target)?;
        match self.sources(target).find(|other| *other != source) {
            Some(other) => Err(shared(target, other)),
            None => Ok(()),
        }
    }

    /// True if the job of `source` may run where they are all set already, by a race or an earlier version. As
    /// [`SnapshotTargets::check`], but of several jobs with one snapshot topic one runs: that of the topic whose name it
    /// has, or the first by name.
    ///
    /// # Errors
    /// Why not.
    pub fn may_run(&self, source: &Topic) -> Result<(), String> {
        let Some(target) = self.0.get(source) else { return Ok(()) };
        self.check_alone(source, target)?;
        let rank = |one: &&Topic| (one.snapshot().ok().as_ref() != Some(target), (*one).clone());
        let could = self.sources(target).filter(|one| self.check_alone(one, target).is_ok());
        match could.min_by_key(rank) {
            Some(first) if first != source => Err(shared(target, first)),
            _ => Ok(()),
        }
    }

    fn sources<'a>(&'a self, target: &'a Topic) -> impl Iterator<Item = &'a Topic> {
        self.0.iter().filter(move |(_, other)| *other == target).map(|(source, _)| source)
    }

    /// What is wrong whoever else writes there.
    fn check_alone(&self, source: &Topic, target: &Topic) -> Result<(), String> {
        check_pair(source, target)?;
        let (mut path, mut seen) = (vec![source.as_str(), target.as_str()], BTreeSet::new());
        let mut at = target;
        while let Some(next) = self.0.get(at).filter(|_| seen.insert(at)) {
            path.push(next.as_str());
            if next == source {
                let path = path.join(" → ");
                return Err(format!(
                    "snapshot_topic makes a circle that would grow without end, {path}: name another topic, or turn \
                     snapshot off for one of them"
                ));
            }
            at = next;
        }
        Ok(())
    }
}

fn shared(target: &Topic, other: &Topic) -> String {
    format!(
        "snapshot_topic: {target} has the snapshots of {other}, and each would remove the other's keys: name another \
         topic, or turn snapshot off for {other}"
    )
}

/// What can be said of a snapshot topic without knowing the other topics.
pub(crate) fn check_pair(source: &Topic, target: &Topic) -> Result<(), String> {
    if source == target {
        return Err("snapshot_topic must be another topic".to_owned());
    }
    if target.is_dead_letter() {
        return Err(format!(
            "snapshot_topic: {target} is for dead letters: name a topic that does not begin with dlq."
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topic(name: &str) -> Topic {
        Topic::parse(name).expect("a topic")
    }

    fn targets(all: &[(&str, Option<&str>)]) -> SnapshotTargets {
        let settings = |target: &Option<&str>| TopicSettings {
            snapshot: Some(SnapshotJob { topic: target.map(topic), ..SnapshotJob::default() }),
            ..TopicSettings::default()
        };
        let all: Vec<_> = all.iter().map(|(name, target)| (topic(name), settings(target))).collect();
        SnapshotTargets::new(all.iter().map(|(topic, settings)| (topic, settings)))
    }

    #[test]
    fn chains_are_fine_and_circles_of_any_length_are_named() {
        let chain = targets(&[("a", None), ("a.snapshot", None), ("b", Some("a"))]);
        for name in ["a", "a.snapshot", "b", "unknown"] {
            assert_eq!((chain.check(&topic(name)), chain.may_run(&topic(name))), (Ok(()), Ok(())), "{name}");
        }
        let circle = targets(&[("a", Some("b")), ("b", Some("c")), ("c", Some("a")), ("into", Some("a"))]);
        for (name, path) in [("a", "a → b → c → a"), ("b", "b → c → a → b"), ("c", "c → a → b → c")] {
            let refused = circle.check(&topic(name)).expect_err(name);
            assert!(refused.contains(path) && refused.contains("turn snapshot off"), "{refused}");
            assert_eq!(circle.may_run(&topic(name)), Err(refused));
        }
        assert!(circle.check(&topic("into")).expect_err("shared").contains("snapshots of c"));
        assert_eq!(circle.may_run(&topic("into")), Ok(()), "the other one does not run");
        assert!(targets(&[("a", Some("a"))]).check(&topic("a")).is_err());
        assert!(targets(&[("a", Some("dlq.a"))]).may_run(&topic("a")).expect_err("refused").contains("dead letters"));
        assert!(targets(&[("dlq.a", None)]).check(&topic("dlq.a")).is_err());
    }

    #[test]
    fn a_snapshot_topic_is_of_one_topic() {
        let two = targets(&[("a", Some("b.snapshot")), ("b", None), ("c", Some("d")), ("e", Some("d"))]);
        for (name, other, runs) in [("a", "b", false), ("b", "a", true), ("c", "e", true), ("e", "c", false)] {
            let refused = two.check(&topic(name)).expect_err(name);
            assert!(refused.contains(&format!("snapshots of {other},")), "{refused}");
            assert_eq!(two.may_run(&topic(name)).is_ok(), runs, "{name}");
        }
    }
}
