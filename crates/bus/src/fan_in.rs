//! Joining the topics of a subscription: the ones there are, and the ones that turn up later.

use std::sync::{Arc, Weak};

use promethean_event::{Cursor, From, Selector, Topic};
use tokio::task::JoinSet;

use crate::runner::{Input, Join};
use crate::subscription::Inner;
use crate::{Error, tail};

/// Joins what there is; for patterns, starts the task that joins what comes.
pub(crate) async fn start(inner: &Arc<Inner>) -> Result<(Vec<Cursor>, JoinSet<()>), Error> {
    let mut tasks = JoinSet::new();
    let mut created = inner.core.store.watch_topics();
    created.borrow_and_update();
    let mut cursors = Vec::new();
    for (topic, from) in first_topics(inner).await? {
        cursors.extend(join(inner, &topic, from, &mut tasks).await?);
    }
    if inner.selectors.iter().any(|selector| matches!(selector, Selector::Pattern(_))) {
        let weak = Arc::downgrade(inner);
        tasks.spawn(async move {
            let mut tails = JoinSet::new();
            while created.changed().await.is_ok() {
                if join_new(&weak, &mut tails).await.is_none() {
                    return;
                }
            }
        });
    }
    Ok((cursors, tasks))
}

/// The topics to join at once, each with where to start on it.
async fn first_topics(inner: &Arc<Inner>) -> Result<Vec<(Topic, From)>, Error> {
    let topics = match inner.selectors.as_slice() {
        [Selector::Topic(topic)] => return Ok(vec![(topic.clone(), inner.options.from)]),
        _ => selected(inner).await?,
    };
    let From::AfterId(id) = inner.options.from else {
        return Ok(topics.into_iter().map(|topic| (topic, inner.options.from)).collect());
    };
    // After an event of one of the topics: the others start at its time.
    let places = inner.core.store.locate(&[id]).await.map_err(|error| Error::group(&error))?;
    let place = places.into_iter().flatten().next().filter(|place| topics.contains(&place.topic));
    let place = place.ok_or_else(|| Error::unknown_id("afterId", id))?;
    let from = |topic: &Topic| if *topic == place.topic { inner.options.from } else { From::Ts(place.ts) };
    Ok(topics.iter().map(|topic| (topic.clone(), from(topic))).collect())
}

/// The plain topics, and the existing ones that a pattern selects and the gate lets through.
async fn selected(inner: &Inner) -> Result<Vec<Topic>, Error> {
    let plain = inner.selectors.iter().filter_map(|selector| match selector {
        Selector::Topic(topic) => Some(topic.clone()),
        Selector::Pattern(_) => None,
    });
    let plain: Vec<Topic> = plain.collect();
    let mut topics = plain.clone();
    for topic in inner.core.store.topics().await.map_err(|error| Error::group(&error))? {
        let wanted = inner.selectors.iter().any(|selector| selector.matches(&topic));
        if wanted && inner.gate.as_ref().is_none_or(|gate| gate(&topic)) && !plain.contains(&topic) {
            topics.push(topic);
        }
    }
    Ok(topics)
}

/// Joins topics that were created since; `None` when the subscription is gone.
async fn join_new(inner: &Weak<Inner>, tails: &mut JoinSet<()>) -> Option<()> {
    let inner = inner.upgrade()?;
    let topics = match selected(&inner).await {
        Ok(topics) => topics,
        Err(error) => {
            tracing::error!(%error, "cannot list topics for a pattern subscription");
            return Some(());
        }
    };
    let known = inner.joined.lock().topics.clone();
    for topic in topics {
        if known.contains(&topic) {
            continue;
        }
        // Everything on a topic that did not exist at the subscribe was appended after it.
        if let Err(error) = join(&inner, &topic, From::Earliest, tails).await {
            tracing::error!(%topic, %error, "a pattern subscription cannot join the topic");
            inner.subscriber.end(error);
        }
    }
    Some(())
}

async fn join(inner: &Arc<Inner>, topic: &Topic, from: From, tails: &mut JoinSet<()>) -> Result<Option<Cursor>, Error> {
    let Some(group) = &inner.group else {
        let start = tail::start(inner, topic, from).await?;
        inner.joined.lock().topics.insert(topic.clone());
        tails.spawn(tail::run(Arc::downgrade(inner), topic.clone(), start));
        return Ok(None);
    };
    let make = |reply| {
        Input::Join(Box::new(Join {
            subscriber: Arc::clone(&inner.subscriber),
            options: inner.member_options(),
            policy: inner.policy(),
            from,
            relayed: inner.relayed.clone(),
            reply,
        }))
    };
    let cursor = inner.core.ask(topic, group, make).await?;
    let mut joined = inner.joined.lock();
    if joined.left {
        // The subscription ended while this joined: leave again.
        drop(joined);
        inner.tell(topic, Input::Leave(inner.subscriber.id));
        return Ok(None);
    }
    joined.topics.insert(topic.clone());
    if joined.paused {
        inner.tell(topic, Input::Pause(inner.subscriber.id, true));
    }
    Ok(Some(cursor))
}
