//! `/metrics` by value, after a known workload.

use std::collections::BTreeMap;

use crate::harness::{Served, Setup};
use http::Method;
use promethean_bus::{From, Group, SubscribeOptions};
use promethean_gateway::EdgeConfig;
use promethean_gateway::ops::router;

/// What is told of every group.
const OF_GROUPS: [&str; 8] = [
    "group_lag",
    "events_delivered_total",
    "events_acked_total",
    "events_nacked_total",
    "events_redelivered_total",
    "events_dead_lettered_total",
    "events_inflight",
    "ws_inflight",
];

/// Every sample of the page by its name with labels.
async fn scrape(hub: &Served) -> BTreeMap<String, f64> {
    let answer = hub.get("/metrics").await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.header("content-type"), "text/plain; version=0.0.4; charset=utf-8");
    let samples = answer.text().lines().filter(|line| !line.starts_with('#'));
    samples
        .map(|line| {
            let (name, value) = line.rsplit_once(' ').expect("a name and a value");
            (name.to_owned(), value.parse().expect("a number"))
        })
        .collect()
}

#[track_caller]
fn is(metrics: &BTreeMap<String, f64>, name: &str, expected: f64) {
    assert_eq!(metrics.get(name), Some(&expected), "{name} in {metrics:#?}");
}

#[tokio::test]
async fn every_metric_of_the_contract_has_its_value() {
    let hub = Setup::default().start(router).await;
    hub.fill("t", 10).await;
    hub.fill("u", 3).await;
    let options =
        SubscribeOptions { from: From::Earliest, max_in_flight: 6, max_attempts: 2, ..SubscribeOptions::default() };
    let mut events =
        hub.hub.bus.subscribe("t", Some(Group::parse("g").expect("a group")), options).await.expect("subscribed");
    for _ in 0..4 {
        events.next().await.expect("delivered").ack().await.expect("acked");
    }
    // One is nacked twice and so dead-lettered; another waits for its answer.
    for _ in 0..2 {
        let given = loop {
            let given = events.next().await.expect("delivered");
            if given.event().seq == 5 {
                break given;
            }
        };
        given.nack("no").await.expect("nacked");
    }
    crate::harness::patient("the dead letter", async {
        while hub.stored("dlq.t").await.is_empty() {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    })
    .await;
    let status = crate::harness::patient("all in flight", async {
        loop {
            let metrics = scrape(&hub).await;
            if metrics.get(r#"events_inflight{topic="t",group="g"}"#) == Some(&5.0) {
                return metrics;
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    })
    .await;
    let metrics = &status;
    is(metrics, r#"events_published_total{topic="t"}"#, 10.0);
    is(metrics, r#"events_published_total{topic="u"}"#, 3.0);
    is(metrics, r#"events_delivered_total{topic="t",group="g"}"#, 11.0);
    is(metrics, r#"events_acked_total{topic="t",group="g"}"#, 4.0);
    is(metrics, r#"events_nacked_total{topic="t",group="g"}"#, 2.0);
    is(metrics, r#"events_redelivered_total{topic="t",group="g"}"#, 1.0);
    is(metrics, r#"events_dead_lettered_total{topic="t",group="g"}"#, 1.0);
    is(metrics, r#"ws_inflight{topic="t",group="g"}"#, 0.0);
    is(metrics, r#"group_lag{topic="t",group="g"}"#, 5.0);
    for (histogram, count) in [
        ("delivery_latency_ms", Some(4.0)),
        ("delivery_handler_duration_ms", Some(4.0)),
        ("subscribe_poll_duration_ms", None),
        ("store_append_duration_ms", None),
    ] {
        let of_hub = histogram == "store_append_duration_ms";
        let (own, and) = if of_hub { ("", "") } else { (r#"{topic="t",group="g"}"#, r#",topic="t",group="g""#) };
        let counted = metrics[&format!("{histogram}_count{own}")];
        assert!(counted > 0.0 && count.is_none_or(|count| count == counted), "{histogram}: {counted}");
        for (le, expected) in [("+Inf", Some(counted)), ("0.25", None), ("30000.0", None)] {
            let series = format!("{histogram}_bucket{{le=\"{le}\"{and}}}");
            let bucket = metrics.get(&series).unwrap_or_else(|| panic!("{series} is missing"));
            assert!(expected.is_none_or(|expected| expected == *bucket), "{series}: {bucket}");
        }
        assert!(metrics.contains_key(&format!("{histogram}_sum{own}")), "{histogram}");
        let all = metrics.keys().filter(|name| name.starts_with(&format!("{histogram}_count"))).count();
        assert_eq!(all, 1, "{histogram}: a group that had no delivery has no series");
    }
    is(metrics, "ws_connections", 0.0);
    is(metrics, "outbox_pending", 0.0);
    let bytes: usize = hub.stored("u").await.iter().map(|event| event.body.len()).sum();
    assert!(metrics[r#"store_bytes{topic="u"}"#] >= bytes as f64);
    is(metrics, &format!("promethean_build_info{{version=\"{}\",store=\"memory\"}}", env!("CARGO_PKG_VERSION")), 1.0);
    for name in [
        "process_cpu_seconds_total",
        "process_start_time_seconds",
        "process_resident_memory_bytes",
        "process_virtual_memory_bytes",
        "process_threads",
        "process_open_fds",
        "process_max_fds",
    ] {
        assert!(metrics.get(name).is_some_and(|value| *value > 0.0 || name == "process_cpu_seconds_total"), "{name}");
    }
    let now = promethean_event::Millis::now().0 as f64 / 1_000.0;
    let started = metrics["process_start_time_seconds"];
    assert!(started <= now + 2.0 && started > now - 3_600.0, "started at {started}, now {now}");
    let group = &hub.get("/groups?topic=t").await.ok()["groups"][0];
    let counts = ["redelivered", "deadLettered", "inflight", "lag"].map(|name| group[name].as_u64());
    assert_eq!(counts, [Some(1), Some(1), Some(5), Some(5)], "{group}");
    drop(events);
}

#[tokio::test]
async fn types_are_told_in_both_formats() {
    let hub = Setup::default().start(router).await;
    hub.fill("t", 1).await;
    let plain = hub.get("/metrics").await;
    assert!(plain.text().contains("# TYPE events_published_total counter\n"), "{}", plain.text());
    assert!(plain.text().contains("# TYPE ws_connections gauge\n") && !plain.text().contains("# EOF"));
    let accept = [("accept", "application/openmetrics-text;version=1.0.0,text/plain;q=0.5")];
    let open = hub.send(Method::GET, "/metrics", &accept, "").await;
    assert_eq!(open.header("content-type"), "application/openmetrics-text; version=1.0.0; charset=utf-8");
    assert!(open.text().contains("# TYPE events_published counter\n") && open.text().ends_with("# EOF\n"));
    assert!(open.text().contains("events_published_total{topic=\"t\"} 1\n"));
}

#[tokio::test]
async fn labels_are_bounded_and_the_rest_is_counted_together() {
    let edge = EdgeConfig { metrics_max_series: 3, ..EdgeConfig::default() };
    let hub = Setup { edge, ..Setup::default() }.start(router).await;
    for n in 0..10 {
        hub.fill(&format!("t{n}"), 2).await;
        for group in ["g", "h"] {
            let topic = promethean_event::Topic::parse(&format!("t{n}")).expect("a topic");
            let group = Group::parse(group).expect("a group");
            hub.hub.bus.set_cursor(&topic, &group, From::Earliest).await.expect("made");
        }
    }
    let metrics = scrape(&hub).await;
    let of_topics = ["events_published_total", "store_bytes"];
    for name in of_topics.into_iter().chain(OF_GROUPS) {
        let series: Vec<&String> = metrics.keys().filter(|key| key.starts_with(&format!("{name}{{"))).collect();
        assert!(series.len() <= 4 && series.iter().any(|key| key.contains("_other")), "{name}: {series:?}");
    }
    let all = |name: &str| metrics.iter().filter(|(key, _)| key.starts_with(name)).map(|(_, value)| value).sum::<f64>();
    assert_eq!((all("events_published_total"), all("group_lag")), (20.0, 40.0), "nothing is lost");
}

#[tokio::test]
async fn gauges_of_topics_and_groups_fold_the_same_names_as_their_counters() {
    let store = std::sync::Arc::new(promethean_store::memory::Memory::new());
    let make = async |bus: &promethean_bus::Bus, name: &str| {
        let (topic, group) =
            (promethean_event::Topic::parse(name).expect("a topic"), Group::parse("g").expect("a group"));
        bus.publish_value(&topic, &1).await.expect("published");
        bus.set_cursor(&topic, &group, From::Earliest).await.expect("made");
    };
    // They come before those that this hub has to do with, by name and by time.
    let before = promethean_bus::Bus::new(std::sync::Arc::clone(&store) as _, Default::default());
    for name in ["a", "b", "c"] {
        make(&before, name).await;
    }
    let edge = EdgeConfig { metrics_max_series: 2, ..EdgeConfig::default() };
    let hub = Setup { edge, store: Some(store), ..Setup::default() }.start(router).await;
    make(&hub.hub.bus, "z").await;
    let metrics = scrape(&hub).await;
    is(&metrics, r#"events_published_total{topic="z"}"#, 1.0);
    is(&metrics, r#"events_acked_total{topic="z",group="g"}"#, 0.0);
    for (name, lag) in [("z", 1.0), ("a", 1.0), ("_other", 2.0)] {
        let group = if name == "_other" { name } else { "g" };
        is(&metrics, &format!("group_lag{{topic=\"{name}\",group=\"{group}\"}}"), lag);
        assert!(metrics.contains_key(&format!("store_bytes{{topic=\"{name}\"}}")), "{name} in {metrics:#?}");
    }
    make(&hub.hub.bus, "y").await;
    let metrics = scrape(&hub).await;
    for name in ["y", "z"] {
        is(&metrics, &format!("group_lag{{topic=\"{name}\",group=\"g\"}}"), 1.0);
    }
}

#[tokio::test]
async fn a_websocket_is_counted_with_what_it_holds_also_beyond_the_bound() {
    use futures_util::SinkExt;
    let edge = EdgeConfig { metrics_max_series: 1, ..EdgeConfig::default() };
    let hub = Setup { edge, ..Setup::default() }.start(router).await;
    hub.fill("t", 3).await;
    let (mut socket, _) = tokio_tungstenite::connect_async(format!("ws://{}/ws", hub.addr)).await.expect("a WebSocket");
    let (own, other) = (r#"{topic="t",group="g"}"#, r#"{topic="_other",group="_other"}"#);
    for (group, named, held) in [("g", own, 3.0), ("h", other, 3.0), ("i", other, 6.0)] {
        let subscribe = format!(r#"{{"op":"SUBSCRIBE","topic":"t","group":"{group}","opts":{{"from":"earliest"}}}}"#);
        socket.send(tokio_tungstenite::tungstenite::Message::text(subscribe)).await.expect("sent");
        crate::harness::patient(group, async {
            while scrape(&hub).await.get(&format!("ws_inflight{named}")) != Some(&held) {
                tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            }
        })
        .await;
        is(&scrape(&hub).await, &format!("events_inflight{named}"), held);
    }
    is(&scrape(&hub).await, "ws_connections", 1.0);
}

/// The names of all metrics of a hub that has been used.
async fn names() -> std::collections::BTreeSet<String> {
    let hub = Setup::default().start(router).await;
    hub.fill("t", 1).await;
    let options = SubscribeOptions { from: From::Earliest, ..SubscribeOptions::default() };
    let group = Some(Group::parse("g").expect("a group"));
    let mut events = hub.hub.bus.subscribe("t", group, options).await.expect("subscribed");
    events.next().await.expect("delivered").ack().await.expect("acked");
    scrape(&hub).await.keys().filter_map(|name| name.split('{').next()).map(str::to_owned).collect()
}

#[tokio::test]
async fn the_alerts_ask_only_for_metrics_there_are() {
    let there = names().await;
    // Words of PromQL, labels, and metrics of Prometheus itself and of the node exporter.
    let others = "and by changes deriv group histogram_quantile increase instance job le max mountpoint \
        node_filesystem_avail_bytes node_filesystem_size_bytes rate sum topic unless up";
    let rules = include_str!("../../../../deploy/alerts.yml");
    let mut asked = 0;
    for query in rules.lines().filter_map(|line| line.trim_start().strip_prefix("expr: ")) {
        // What stands in quotes and in brackets (durations) is no name.
        let unquoted: String = query.split('"').step_by(2).collect::<Vec<_>>().join(" ");
        let bare = unquoted.split('[').map(|part| part.split_once(']').map_or(part, |(_, rest)| rest));
        let bare = bare.collect::<Vec<_>>().join(" ");
        let words = bare.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        for name in words.filter(|word| word.starts_with(|c: char| c.is_ascii_lowercase())) {
            assert!(there.contains(name) || others.split(' ').any(|other| other == name), "{name} in {query}");
            asked += usize::from(there.contains(name));
        }
    }
    assert!(asked >= 12, "{asked} metrics are watched");
}

#[tokio::test]
async fn the_grafana_dashboard_asks_only_for_metrics_there_are_and_for_all_of_the_contract() {
    let there = names().await;
    let dashboard: serde_json::Value =
        serde_json::from_str(include_str!("../../../../docs/grafana-dashboard.json")).expect("JSON");
    let mut asked = std::collections::BTreeSet::new();
    for panel in dashboard["panels"].as_array().expect("panels") {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let query = target["expr"].as_str().expect("a query");
            // A metric's name is what stands before a brace.
            for part in query.split('{').collect::<Vec<_>>().iter().rev().skip(1) {
                let name = part.rsplit(|c: char| !(c.is_ascii_lowercase() || c == '_')).next().expect("a name");
                assert!(there.contains(name), "{name} in {query}");
                asked.insert(name.trim_end_matches("_bucket").to_owned());
            }
        }
    }
    let others = [
        "events_published_total",
        "subscribe_poll_duration_ms",
        "delivery_handler_duration_ms",
        "delivery_latency_ms",
        "ws_connections",
        "outbox_pending",
        "store_append_duration_ms",
        "store_bytes",
    ];
    for name in OF_GROUPS.into_iter().chain(others) {
        assert!(asked.contains(name), "{name} is not shown");
    }
}
