//! W3C trace context: `00-<trace id>-<span id>-<flags>`.

use std::hash::BuildHasher as _;
use std::sync::atomic::{AtomicU64, Ordering};

/// A place in a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceParent {
    /// The trace.
    pub trace: [u8; 16],
    /// The span.
    pub span: [u8; 8],
    flags: u8,
}

impl TraceParent {
    /// Reads the header's value; `None` where it is not one. Later versions may have more parts, version `ff` is not one.
    pub fn parse(value: &str) -> Option<Self> {
        let mut parts = value.trim().split('-');
        let version = hex::<1>(parts.next()?)?;
        let (trace, span, flags) = (hex::<16>(parts.next()?)?, hex::<8>(parts.next()?)?, hex::<1>(parts.next()?)?);
        let whole = version[0] != 0xff && (version[0] != 0 || parts.next().is_none());
        let real = trace != [0; 16] && span != [0; 8];
        (whole && real).then_some(Self { trace, span, flags: flags[0] })
    }

    /// True if whoever began the trace wants it recorded.
    pub fn is_sampled(&self) -> bool {
        self.flags & 1 == 1
    }

    /// A new span of the same trace.
    #[must_use]
    pub fn child(&self) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        static SEED: std::sync::LazyLock<std::hash::RandomState> = std::sync::LazyLock::new(Default::default);
        let random = SEED.hash_one((NEXT.fetch_add(1, Ordering::Relaxed), std::process::id())).max(1);
        Self { span: random.to_be_bytes(), ..*self }
    }
}

/// Exactly `N` bytes in lower-case hex.
fn hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if pairs.len() != N || !rest.is_empty() {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
        *byte = digit(*high)? << 4 | digit(*low)?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn a_traceparent_is_read_and_its_children_stay_in_the_trace() {
        let parent = TraceParent::parse(GOOD).expect("valid");
        assert!(parent.is_sampled());
        let (one, two) = (parent.child(), parent.child());
        assert_eq!((one.trace, two.trace), (parent.trace, parent.trace));
        assert!(one.span != two.span && one.span != parent.span);
        assert!(!TraceParent::parse(&GOOD.replace("-01", "-00")).expect("valid").is_sampled());
        assert!(TraceParent::parse(&format!("cc{}-what-comes-later", &GOOD[2..])).is_some(), "a later version");
    }

    #[test]
    fn what_is_not_a_traceparent_is_none() {
        let with = |from: &str, to: &str| GOOD.replacen(from, to, 1);
        for bad in [
            String::new(),
            "00".to_owned(),
            with("00-", "ff-"),
            with("0af7651916cd43dd8448eb211c80319c", &"0".repeat(32)),
            with("b7ad6b7169203331", &"0".repeat(16)),
            with("0af", "0AF"),
            with("0af", "0a"),
            format!("{GOOD}-more"),
            format!("{GOOD}0"),
            "ä".repeat(28),
        ] {
            assert_eq!(TraceParent::parse(&bad), None, "{bad}");
        }
    }
}
