//! Spans on their way out: a bounded queue and a task that sends them in batches.
//!
//! Invariants: recording never waits; at the bound a span is dropped and counted; a collector that is away costs
//! spans, never events.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::mpsc;

use super::{Span, export};
use crate::auth::fetch::Source;

/// Spans that may wait.
const WAITING: usize = 8_192;
/// Spans in one request.
const BATCH: usize = 512;
/// How long a span waits for others.
const GATHER: Duration = Duration::from_secs(1);
/// How long the collector may take to answer.
const ANSWER: Duration = Duration::from_secs(10);
const PATH: &str = "/v1/traces";

/// Takes spans and sends them to a collector (OTLP over HTTP, as JSON).
#[derive(Debug, Clone)]
pub struct Tracer {
    queue: mpsc::Sender<Span>,
    dropped: Arc<AtomicU64>,
}

impl Tracer {
    /// Sends to the collector at `endpoint`, for instance `http://127.0.0.1:4318`. Needs a Tokio runtime.
    ///
    /// # Errors
    /// Not an address, and why.
    pub fn start(endpoint: &str) -> Result<Self, String> {
        let endpoint = endpoint.trim_end_matches('/');
        let url = if endpoint.ends_with(PATH) { endpoint.to_owned() } else { format!("{endpoint}{PATH}") };
        let collector = Source::anywhere(&url)?;
        let (queue, spans) = mpsc::channel(WAITING);
        let dropped = Arc::new(AtomicU64::new(0));
        tokio::spawn(run(collector, spans, Arc::clone(&dropped)));
        Ok(Self { queue, dropped })
    }

    /// Spans that did not reach the collector.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    pub(super) fn record(&self, span: Span) {
        if self.queue.try_send(span).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

async fn run(collector: Source, mut spans: mpsc::Receiver<Span>, dropped: Arc<AtomicU64>) {
    let (mut batch, mut away) = (Vec::with_capacity(BATCH), false);
    while spans.recv_many(&mut batch, BATCH).await > 0 {
        let gathered = async { while batch.len() < BATCH && spans.recv_many(&mut batch, BATCH).await > 0 {} };
        let _ = tokio::time::timeout(GATHER, gathered).await;
        let sent = match tokio::time::timeout(ANSWER, collector.post(export::json(&batch))).await {
            Ok(sent) => sent,
            Err(_) => Err(format!("no answer within {ANSWER:?}")),
        };
        match sent {
            Ok(()) if away => tracing::info!(collector = collector.shown(), "spans are taken again"),
            Ok(()) => {}
            Err(reason) => {
                dropped.fetch_add(batch.len() as u64, Ordering::Relaxed);
                if !away {
                    let collector = collector.shown();
                    tracing::warn!(collector, reason, "spans are lost; check otlp_endpoint and the collector");
                }
                away = true;
                batch.clear();
                continue;
            }
        }
        away = false;
        batch.clear();
    }
}
