//! `GET /metrics`: everything that is counted, as Prometheus text.
//!
//! The bus and the connections count for themselves; this gathers what they have at the moment of the scrape. Label sets
//! are bounded by `metrics_max_series`: what is over is summed up under `_other`. What only the store knows is waited for a
//! little (`sizes`): all the rest is told also while it is away.

mod collector;
mod process;
mod sizes;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use axum::extract::{FromRequestParts, State};
use axum::response::{IntoResponse, Response};
use http::header;
use http::request::Parts;
use promethean_bus::metrics::{GroupName, GroupSeries, OTHER};
use promethean_event::{Code, Group, Topic};
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

use crate::Hub;
use crate::auth::Action;
use crate::http::Caller;
use crate::ops::Holdings;
use crate::rejection::Rejection;
use collector::Scrape;
pub(crate) use sizes::Sizes;

/// What is counted elsewhere and shown here.
#[derive(Debug, Default)]
pub struct Gauges {
    /// Rows of the outbox that wait to be published, where the hub drains one.
    pub outbox_pending: AtomicU64,
    /// How long the oldest of them has waited, in milliseconds.
    pub outbox_oldest_age_ms: AtomicU64,
    /// Rows that were given up.
    pub outbox_parked: AtomicU64,
    /// Rows published by this hub.
    pub outbox_sent: AtomicU64,
    /// Tries to publish a row that failed.
    pub outbox_errors: AtomicU64,
}

/// The caller of `/metrics`. `None`: every series is shown.
pub(crate) struct Scraper(Option<Caller>);

impl FromRequestParts<Arc<Hub>> for Scraper {
    type Rejection = Rejection;

    async fn from_request_parts(parts: &mut Parts, hub: &Arc<Hub>) -> Result<Self, Rejection> {
        if hub.config.metrics_public {
            return Ok(Self(None));
        }
        let caller = Caller::from_request_parts(parts, hub).await?;
        let all = caller.identity.policy.allows_everywhere(Action::Admin);
        Ok(Self((!all).then_some(caller)))
    }
}

/// Prometheus text; OpenMetrics for whoever asks for it.
pub(crate) async fn metrics(
    State(hub): State<Arc<Hub>>,
    Scraper(caller): Scraper,
    headers: http::HeaderMap,
) -> Result<Response, Rejection> {
    let mut registry = Registry::default();
    let mut scrape = scrape(&hub).await;
    if let Some(caller) = caller {
        scrape.retain(|topic, group| is_shown(&caller, topic, group));
    }
    registry.register_collector(Box::new(scrape));
    let mut text = String::new();
    encode(&mut text, &registry)
        .map_err(|_| Rejection::new(Code::PublishFailed, "the metrics cannot be written as text"))?;
    let open = headers
        .get_all(header::ACCEPT)
        .iter()
        .any(|accept| accept.to_str().is_ok_and(|accept| accept.contains("application/openmetrics-text")));
    let content = if open {
        "application/openmetrics-text; version=1.0.0; charset=utf-8"
    } else {
        text = plain(&text);
        "text/plain; version=0.0.4; charset=utf-8"
    };
    Ok(([(header::CONTENT_TYPE, content)], text).into_response())
}

/// True if the caller may see series of `topic`, and of `group` on it. `_other` sums up topics that it may not see.
fn is_shown(caller: &Caller, topic: &str, group: Option<&str>) -> bool {
    let Some(topic) = Topic::parse(topic).ok().filter(|topic| topic.as_str() != OTHER) else { return false };
    match group.map(Group::parse) {
        None => caller.sees(&topic),
        Some(group) => group.is_ok_and(|group| caller.sees_group(&topic, &group)),
    }
}

/// OpenMetrics as the older text format: there a counter's type is that of its name with `_total`.
fn plain(text: &str) -> String {
    let counters: HashSet<&str> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter")).collect();
    let mut out = String::with_capacity(text.len());
    for line in text.lines().filter(|line| *line != "# EOF") {
        let comment = line.strip_prefix("# HELP ").or(line.strip_prefix("# TYPE "));
        let name = comment.and_then(|rest| rest.split(' ').next()).filter(|name| counters.contains(name));
        match name {
            Some(name) => {
                let (kind, rest) = (&line[..7], &line[7 + name.len()..]);
                out.extend([kind, name, "_total", rest]);
            }
            None => out.push_str(line),
        }
        out.push('\n');
    }
    out
}

/// Everything as of now.
async fn scrape(hub: &Arc<Hub>) -> Scrape {
    let counted = hub.bus.metrics();
    let mut topics: Vec<(String, u64)> =
        counted.topics().into_iter().map(|(name, topic)| (name.into(), topic.published.load(Relaxed))).collect();
    topics.sort_unstable();
    let mut groups = counted.groups();
    groups.sort_unstable_by(|one, two| one.0.cmp(&two.0));
    let (sizes, ws_inflight) = tokio::join!(sizes::now(hub), ws_inflight(hub, &groups));
    Scrape {
        store: hub.bus.store().name(),
        ws_inflight,
        published: topics,
        groups: groups
            .into_iter()
            .map(|((topic, group), counts)| collector::OfGroup::new(topic, group, &counts))
            .collect(),
        group_lag: sizes.lags,
        store_bytes: sizes.bytes,
        append_duration: counted.append_duration.read(),
        ws_connections: hub.connections.len() as u64,
        buffered_bytes: hub.buffers.bytes() as u64,
        outbox_pending: hub.gauges.outbox_pending.load(Relaxed),
        outbox_oldest_age_ms: hub.gauges.outbox_oldest_age_ms.load(Relaxed),
        outbox_parked: hub.gauges.outbox_parked.load(Relaxed),
        outbox_sent: hub.gauges.outbox_sent.load(Relaxed),
        outbox_errors: hub.gauges.outbox_errors.load(Relaxed),
        spans_dropped: hub.tracer.as_ref().map_or(0, |tracer| tracer.dropped()),
        store_refused: hub.bus.store().refused(),
        usage: hub.bus.usage(),
        process: process::read(),
    }
}

type OfTopics = Vec<(String, u64)>;
type OfGroups = Vec<((String, String), u64)>;

/// Of what is in flight, what WebSockets hold: under the names that the bus counts by, `_other` too. A name with a group that
/// cannot be asked is left out.
async fn ws_inflight(hub: &Hub, groups: &[GroupSeries]) -> OfGroups {
    let mut held: BTreeMap<GroupName, Option<u64>> = groups.iter().map(|(name, _)| (name.clone(), Some(0))).collect();
    let busy: HashSet<&GroupName> =
        groups.iter().filter(|(_, counts)| counts.in_flight.load(Relaxed) > 0).map(|(name, _)| name).collect();
    let mut asked = Vec::new();
    for subscription in hub.connections.list().iter().flat_map(|connection| connection.subscriptions()) {
        let (Some(group), Some(membership)) = (&subscription.group, subscription.membership.upgrade()) else {
            continue;
        };
        for topic in membership.topics() {
            let mut name: GroupName = (topic.as_str().into(), group.as_str().into());
            if !held.contains_key(&name) {
                name = (OTHER.into(), OTHER.into());
            }
            if busy.contains(&name) {
                asked.push((name, (topic, group.clone()), subscription.id));
            }
        }
    }
    let holdings = Holdings::of(hub, asked.iter().map(|(_, group, _)| group.clone()).collect()).await;
    for (name, group, subscription) in asked {
        let sum = held.entry(name).or_insert(Some(0));
        *sum = sum.zip(holdings.held(&group, subscription)).map(|(sum, count)| sum + count as u64);
    }
    let named = |((topic, group), count): (GroupName, Option<u64>)| Some(((topic.into(), group.into()), count?));
    held.into_iter().filter_map(named).collect()
}

#[cfg(test)]
mod tests {
    use super::plain;

    #[test]
    fn the_older_format_names_counters_with_total_and_has_no_end_mark() {
        let open = "# HELP a Help.\n# TYPE a counter\na_total{t=\"# TYPE a counter\"} 1\n# HELP b B.\n# TYPE b gauge\nb 2\n# EOF\n";
        let expected = "# HELP a_total Help.\n# TYPE a_total counter\na_total{t=\"# TYPE a counter\"} 1\n# HELP b B.\n# TYPE b gauge\nb 2\n";
        assert_eq!(plain(open), expected);
    }
}
