//! What an export takes of memory: a program of its own, because it looks at the whole process.

#[path = "it/harness/mod.rs"]
mod harness;

use harness::{Setup, patient};
use http::Method;
use http_body_util::BodyExt;
use promethean_event::{Draft, Topic};
use promethean_gateway::http::router;
use serde_json::value::RawValue;

/// Bytes of memory this process has now.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("VmRSS");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<usize>().ok()).expect("a number") * 1024
}

#[tokio::test]
async fn an_export_of_many_events_takes_constant_memory() {
    let hub = Setup::default().start(router).await;
    let (topic, payload) = (Topic::parse("a").expect("a topic"), format!("\"{}\"", "x".repeat(1_000)));
    let payload = RawValue::from_string(payload).expect("JSON");
    for _ in 0..8 {
        let drafts = (0..10_000).map(|_| Draft::new(topic.clone(), std::borrow::Cow::Borrowed(&*payload)));
        hub.hub.bus.publish_batch(drafts).await.expect("published");
    }
    let before = resident();
    let mut answer = hub.open(Method::GET, "/export?topic=a", &[], "").await;
    let (mut lines, mut most, mut pieces) = (0, 0, 0);
    while let Some(frame) = patient("a piece", answer.frame()).await {
        let data = frame.expect("no error").into_data().expect("data");
        lines += data.iter().filter(|byte| **byte == b'\n').count();
        pieces += 1;
        if pieces % 16 == 0 {
            most = most.max(resident());
        }
    }
    assert!(lines == 80_000 && pieces > 100, "{lines} lines in {pieces} pieces");
    // The export has 90 MB. A part of it in memory at a time, and what the allocator keeps, is far below that.
    assert!(most.saturating_sub(before) < 30_000_000, "grew by {} bytes", most.saturating_sub(before));
}
