//! The work, the same for every system: a publisher with a window, a consumer with a credit, every event acked.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::systems::{Consumer, Publisher};
use crate::wire::Wire;

/// Publishes without an answer.
pub(crate) const WINDOW: u64 = 1_024;
/// Events without an ack.
pub(crate) const CREDIT: usize = 500;
/// Size of a payload, which is JSON.
pub(crate) const PAYLOAD: usize = 256;
/// How much is collected before it is written.
const BURST: usize = 128 * 1024;
/// How long a client waits for anything before it gives up.
const PATIENCE: Duration = Duration::from_secs(60);
/// Begin of a payload; sixteen digits follow, the time in microseconds.
const HEAD: &[u8] = br#"{"t":"#;
/// What is added to the time, so that it always has sixteen digits.
const T0: u64 = 1_000_000_000_000_000;

/// When a publisher ends: after so many events or at that time, whatever is first.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limit {
    pub(crate) events: u64,
    pub(crate) time: Duration,
}

/// A payload whose time can be set.
struct Payload(Vec<u8>);

impl Payload {
    fn new() -> Self {
        let (head, tail) = (format!(r#"{{"t":{T0},"fill":""#), "\"}");
        Self(format!("{head}{}{tail}", "x".repeat(PAYLOAD - head.len() - tail.len())).into_bytes())
    }

    fn stamp(&mut self, began: Instant) -> &[u8] {
        let mut left = T0 + began.elapsed().as_micros() as u64;
        for digit in self.0[HEAD.len()..HEAD.len() + 16].iter_mut().rev() {
            *digit = b'0' + (left % 10) as u8;
            left /= 10;
        }
        &self.0
    }
}

/// Microseconds since `began` at which the payload was stamped.
fn stamped(payload: &[u8]) -> Option<u64> {
    let digits = payload.strip_prefix(HEAD)?.get(..16)?;
    std::str::from_utf8(digits).ok()?.parse::<u64>().ok()?.checked_sub(T0)
}

/// Publishes as fast as the window allows; returns how many were confirmed.
pub(crate) fn publish((wire, publisher): &mut (Wire, Box<dyn Publisher>), limit: Limit) -> io::Result<u64> {
    let (began, mut payload) = (Instant::now(), Payload::new());
    let (mut sent, mut answered, mut heard) = (0, 0, Instant::now());
    loop {
        let more = sent < limit.events && began.elapsed() < limit.time;
        if more {
            let bytes = payload.stamp(began);
            while sent < limit.events && sent - answered < WINDOW && wire.out.len() < BURST {
                publisher.publish(&mut wire.out, bytes);
                sent += 1;
            }
        } else if sent == answered {
            return Ok(answered);
        }
        wire.flush()?;
        if wire.fill()? {
            heard = Instant::now();
        } else if heard.elapsed() > PATIENCE {
            return Err(io::Error::other("publishes are not answered"));
        }
        answered += answers(wire, publisher)?;
    }
}

fn answers(wire: &mut Wire, publisher: &mut Box<dyn Publisher>) -> io::Result<u64> {
    let (bytes, out) = wire.parts();
    let (used, answered) = publisher.read(bytes, out)?;
    wire.consume(used);
    Ok(answered)
}

/// Publishes at a steady rate, each event stamped when it is sent; returns how many were confirmed.
pub(crate) fn publish_at(
    (wire, publisher): &mut (Wire, Box<dyn Publisher>),
    rate: u32,
    limit: Limit,
    began: Instant,
) -> io::Result<u64> {
    let (start, mut payload) = (Instant::now(), Payload::new());
    let every = Duration::from_secs(1) / rate;
    let (mut sent, mut answered, mut due) = (0, 0, start);
    wire.set_nonblocking()?;
    loop {
        let now = Instant::now();
        let more = sent < limit.events && now - start < limit.time;
        if !more && sent == answered {
            return Ok(answered);
        }
        if now - start > limit.time + PATIENCE {
            return Err(io::Error::other("publishes are not answered"));
        }
        while more && due <= now && sent - answered < WINDOW {
            publisher.publish(&mut wire.out, payload.stamp(began));
            sent += 1;
            due += every;
        }
        wire.flush()?;
        if wire.fill()? {
            answered += answers(wire, publisher)?;
        }
        let pause = if more { due.saturating_duration_since(Instant::now()) } else { every };
        std::thread::sleep(pause);
    }
}

/// Consumes until the server has taken the acks of `expect` events, which may become known meanwhile; returns how many
/// that were. `latencies` gets the microseconds from stamp to delivery.
pub(crate) fn consume(
    (wire, consumer): &mut (Wire, Box<dyn Consumer>),
    expect: &AtomicU64,
    mut latencies: Option<(&mut Vec<u64>, Instant)>,
) -> io::Result<u64> {
    let (mut acked, mut heard) = (0, Instant::now());
    consumer.begin(&mut wire.out);
    while acked < expect.load(Relaxed) {
        wire.flush()?;
        if !wire.fill()? {
            if heard.elapsed() > PATIENCE {
                return Err(io::Error::other(format!("nothing more comes after {acked} events")));
            }
            continue;
        }
        heard = Instant::now();
        let (bytes, out) = wire.parts();
        let mut each = |payload: &[u8]| {
            if let Some((latencies, began)) = &mut latencies
                && let Some(sent) = stamped(payload)
            {
                latencies.push((began.elapsed().as_micros() as u64).saturating_sub(sent));
            }
        };
        let (used, new) = consumer.read(bytes, out, &mut each)?;
        wire.consume(used);
        acked += new;
    }
    Ok(acked)
}

/// The value below which this share of `sorted` is.
pub(crate) fn quantile(sorted: &[u64], share: f64) -> u64 {
    let last = sorted.len().saturating_sub(1);
    sorted.get((last as f64 * share).round() as usize).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_has_its_size_and_tells_its_time() {
        let mut payload = Payload::new();
        let began = Instant::now().checked_sub(Duration::from_secs(2)).expect("the machine is up for longer");
        let bytes = payload.stamp(began).to_vec();
        assert_eq!(bytes.len(), PAYLOAD);
        serde_json::from_slice::<serde_json::Value>(&bytes).expect("JSON");
        let stamped = stamped(&bytes).expect("a time");
        assert!((2_000_000..3_000_000).contains(&stamped), "{stamped}");
    }

    #[test]
    fn quantiles_are_taken_from_the_samples() {
        let sorted: Vec<u64> = (0..=100).collect();
        assert_eq!([0.5, 0.99, 1.0].map(|share| quantile(&sorted, share)), [50, 99, 100]);
        assert_eq!(quantile(&[], 0.5), 0);
    }
}
