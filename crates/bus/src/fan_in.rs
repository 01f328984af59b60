//! Joining the topics of a subscription: the ones there are, the ones that turn up later, and the ones that a renewed
//! token lets in.

use std::sync::{Arc, Weak};
use std::time::Duration;

use promethean_event::{Code, Cursor, From, Selector, Topic};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::remembered::Known;
use crate::runner::{Input, Join};
use crate::subscription::Inner;
use crate::{Error, tail};

/// How long after topics could not be listed they are asked for again.
const LIST_AGAIN: Duration = Duration::from_secs(1);

/// Joins what there is; for patterns and lists, starts the task that joins topics created later.
pub(crate) async fn start(inner: &Arc<Inner>) -> Result<(Vec<Cursor>, JoinSet<()>), Error> {
    let mut tasks = JoinSet::new();
    let mut created = inner.core.store.watch_topics();
    let seen = *created.borrow_and_update();
    let (mut cursors, began) = (Vec::new(), inner.core.wall());
    let known = Known::load(inner).await?;
    let topics = first_topics(inner, &known).await?;
    let (placed, new) = refusing_first(inner, &topics).await?;
    for (index, is_new) in placed.into_iter().map(|index| (index, false)).chain(new.into_iter().map(|new| (new, true)))
    {
        let (topic, from) = &topics[index];
        let from = if is_new { known.start(topic, *from).await? } else { *from };
        cursors.extend(join(inner, topic, from, &mut tasks).await?.map(|cursor| (index, cursor)));
    }
    known.remember(began).await?;
    inner.joined_all(seen);
    cursors.sort_unstable_by_key(|(index, _)| *index);
    let cursors = cursors.into_iter().map(|(_, cursor)| cursor).collect();
    if inner.subscriber.shared {
        let (weak, look_again) = (Arc::downgrade(inner), Arc::clone(&inner.look_again));
        tasks.spawn(async move {
            let mut tails = JoinSet::new();
            while changed(&mut created, &look_again).await {
                let seen = *created.borrow_and_update();
                // Nobody says again what could not be listed now.
                while let Some(listed) = join_new(&weak, seen, &mut tails).await {
                    if listed {
                        break;
                    }
                    tokio::time::sleep(LIST_AGAIN).await;
                }
                if weak.strong_count() == 0 {
                    return;
                }
            }
        });
    }
    Ok((cursors, tasks))
}

/// Resolves when there may be topics to join; `false`: the store has ended.
async fn changed(created: &mut tokio::sync::watch::Receiver<u64>, look_again: &Notify) -> bool {
    tokio::select! {
        changed = created.changed() => changed.is_ok(),
        () = look_again.notified() => true,
    }
}

/// The topics to join at once, each with where to start on it.
async fn first_topics(inner: &Arc<Inner>, known: &Known<'_>) -> Result<Vec<(Topic, From)>, Error> {
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
    let Some(place) = place else {
        // Where the group has its places already, nobody has to know where to begin.
        if !has_places(inner, &topics, known).await? {
            return Err(Error::unknown_id("afterId", id));
        }
        return Ok(topics.into_iter().map(|topic| (topic, From::Latest)).collect());
    };
    let from = |topic: &Topic| if *topic == place.topic { inner.options.from } else { From::Ts(place.ts) };
    Ok(topics.iter().map(|topic| (topic.clone(), from(topic))).collect())
}

/// The order in which to join: a topic on which the group has its place may have members, and they may refuse; the others
/// get a place by being joined, which a refusal must not leave behind.
async fn refusing_first(inner: &Inner, topics: &[(Topic, From)]) -> Result<(Vec<usize>, Vec<usize>), Error> {
    let (mut placed, mut new) = (Vec::new(), Vec::new());
    if topics.len() < 2 && !inner.has_pattern() {
        return Ok(((0..topics.len()).collect(), new));
    }
    for (index, (topic, _)) in topics.iter().enumerate() {
        let list = if has_place(inner, topic).await? { &mut placed } else { &mut new };
        list.push(index);
    }
    Ok((placed, new))
}

/// True if the group has a place on each of the topics, or a start that is known, and there are any.
async fn has_places(inner: &Inner, topics: &[Topic], known: &Known<'_>) -> Result<bool, Error> {
    for topic in topics {
        if !has_place(inner, topic).await? && !known.appeared(topic).await? {
            return Ok(false);
        }
    }
    Ok(!topics.is_empty())
}

async fn has_place(inner: &Inner, topic: &Topic) -> Result<bool, Error> {
    let Some(group) = &inner.group else { return Ok(false) };
    let state = inner.core.store.load(topic, group).await.map_err(|error| Error::group(&error))?;
    Ok(state.is_some())
}

/// The plain topics, and the existing ones that a pattern selects and the gate lets through. Those that it does not let
/// through are remembered.
async fn selected(inner: &Inner) -> Result<Vec<Topic>, Error> {
    let plain = inner.selectors.iter().filter_map(|selector| match selector {
        Selector::Topic(topic) => Some(topic.clone()),
        Selector::Pattern(_) => None,
    });
    let plain: Vec<Topic> = plain.collect();
    let mut topics = plain.clone();
    for topic in inner.core.store.topics().await.map_err(|error| Error::group(&error))? {
        if plain.contains(&topic) || !inner.selects(&topic) {
            continue;
        }
        if inner.may_see(&topic) {
            topics.push(topic);
        } else {
            inner.joined.lock().held_back.insert(topic);
        }
    }
    Ok(topics)
}

/// Joins topics that were created since, or are allowed since; whether they could be listed, `None` when the subscription
/// is gone.
async fn join_new(inner: &Weak<Inner>, created: u64, tails: &mut JoinSet<()>) -> Option<bool> {
    let inner = inner.upgrade()?;
    let topics = match selected(&inner).await {
        Ok(topics) => topics,
        Err(error) => {
            tracing::error!(%error, "cannot list topics for a pattern subscription");
            return Some(false);
        }
    };
    let known = {
        let mut joined = inner.joined.lock();
        for topic in inner.subscriber.take_left() {
            joined.topics.remove(&topic);
        }
        joined.topics.clone()
    };
    for topic in topics {
        if known.contains(&topic) || !inner.core.store.exists(&topic) {
            continue;
        }
        let from = match (inner.joined.lock().held_back.remove(&topic), inner.options.from) {
            // Everything on a topic that did not exist at the subscribe was appended after it.
            (false, _) => From::Earliest,
            // It is as if it were subscribed to now; the event that `afterId` names is on another topic.
            (true, From::AfterId(_)) => From::Latest,
            (true, from) => from,
        };
        if let Err(error) = join(&inner, &topic, from, tails).await {
            if error.code == Code::LimitReached {
                // The topics that it has joined are served; the next new topic asks again.
                tracing::debug!(%topic, %error, "a pattern subscription leaves out a topic");
                break;
            }
            tracing::error!(%topic, %error, "a pattern subscription cannot join the topic");
            inner.subscriber.end(error);
        }
    }
    inner.joined_all(created);
    Some(true)
}

async fn join(inner: &Arc<Inner>, topic: &Topic, from: From, tails: &mut JoinSet<()>) -> Result<Option<Cursor>, Error> {
    let Some(group) = &inner.group else {
        let start = tail::start(inner, topic, from).await?;
        inner.joined.lock().topics.insert(topic.clone());
        let lane = tail::lane(inner, topic, &start);
        tails.spawn(tail::run(Arc::downgrade(inner), topic.clone(), lane, start));
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
    inner.joined.lock().joining.insert(topic.clone());
    let cursor = inner.core.ask(topic, group, make).await;
    let mut joined = inner.joined.lock();
    joined.joining.remove(topic);
    let cursor = cursor?;
    // The subscription ended while this joined, or a renewed token took the topic out of reach: leave again.
    let forbidden = !inner.may_see(topic);
    if joined.left || forbidden {
        if forbidden {
            joined.held_back.insert(topic.clone());
        }
        drop(joined);
        inner.tell(topic, Input::Leave(inner.subscriber.id));
        return Ok(None);
    }
    joined.topics.insert(topic.clone());
    if inner.subscriber.is_paused() {
        inner.tell(topic, Input::Pause(inner.subscriber.id, true));
    }
    Ok(Some(cursor))
}
