//! How numbers and events are written: in journal frames and in segment blocks alike.
//!
//! ```text
//!  event = flags:u8 · seq:varint (minus a base) · id:16 · ts:zigzag (minus a base) · appended:zigzag (minus ts)
//!          [· key_start:varint · key_len:varint] · payload:varint · body_len:varint · body
//!  flags = 1 the client made the id · 2 has a key
//! ```
//!
//! Reading never panics: what does not fit is `None`, and the caller names the place.

use std::collections::HashMap;
use std::hash::BuildHasher;

use bytes::Bytes;
use promethean_event::{EventId, Millis, Seq, Spans};

const CLIENT_ID: u8 = 1;
const KEYED: u8 = 2;

/// An event as the engine holds it, without topic and seq, which its place tells.
#[derive(Debug, Clone)]
pub(in crate::log) struct Held {
    pub(in crate::log) id: EventId,
    pub(in crate::log) ts: Millis,
    pub(in crate::log) appended: Millis,
    pub(in crate::log) spans: Spans,
    /// The client made the id: it is in the index of client ids.
    pub(in crate::log) client: bool,
    pub(in crate::log) body: Bytes,
}

impl Held {
    /// The key, as a slice of the body where it needs no unescaping.
    pub(in crate::log) fn key(&self) -> Option<Bytes> {
        if self.spans.key_start == 0 {
            return None;
        }
        let start = self.spans.key_start as usize;
        let end = start.checked_add(self.spans.key_len as usize)?;
        let inside = self.body.get(start..end)?;
        if !inside.contains(&b'\\') {
            return Some(self.body.slice(start..end));
        }
        let quoted = self.body.get(start - 1..=end)?;
        serde_json::from_slice::<String>(quoted).ok().map(Bytes::from)
    }

    /// Puts its seq under its key, if it has one. A key that is there already costs no new reference.
    pub(in crate::log) fn keep_latest<S: BuildHasher>(&self, keys: &mut HashMap<Bytes, Seq, S>, seq: Seq) {
        let (start, len) = (self.spans.key_start as usize, self.spans.key_len as usize);
        if start == 0 {
            return;
        }
        let inside = start.checked_add(len).and_then(|end| self.body.get(start..end)).unwrap_or_default();
        if !inside.contains(&b'\\')
            && let Some(there) = keys.get_mut(inside)
        {
            *there = seq;
        } else if let Some(key) = self.key() {
            keys.insert(key, seq);
        }
    }

    /// True if the payload is `null`.
    pub(in crate::log) fn is_tombstone(&self) -> bool {
        let end = self.body.len().saturating_sub(1);
        self.body.get(self.spans.payload as usize..end) == Some(b"null")
    }

    /// The event's bytes in the wire form, about (exact but for the digits of its seq).
    pub(in crate::log) fn wire_len(&self) -> u64 {
        self.body.len() as u64 + 56
    }
}

/// LEB128.
pub(in crate::log) fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

pub(in crate::log) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn zigzag(number: i64) -> u64 {
    ((number << 1) ^ (number >> 63)) as u64
}

fn unzigzag(number: u64) -> i64 {
    (number >> 1) as i64 ^ -((number & 1) as i64)
}

pub(in crate::log) fn put_event(out: &mut Vec<u8>, event: &Held, seq: Seq, base_seq: Seq, base_ts: u64) {
    let keyed = event.spans.key_start != 0;
    out.push(u8::from(event.client) | if keyed { KEYED } else { 0 });
    put(out, seq.wrapping_sub(base_seq));
    out.extend_from_slice(event.id.as_bytes());
    put(out, zigzag(event.ts.0.wrapping_sub(base_ts) as i64));
    put(out, zigzag(event.appended.0.wrapping_sub(event.ts.0) as i64));
    if keyed {
        put(out, u64::from(event.spans.key_start));
        put(out, u64::from(event.spans.key_len));
    }
    put(out, u64::from(event.spans.payload));
    put(out, event.body.len() as u64);
    out.extend_from_slice(&event.body);
}

/// Reads along bytes that are shared with what is read.
pub(in crate::log) struct Reader<'a> {
    bytes: &'a Bytes,
    at: usize,
    end: usize,
}

impl<'a> Reader<'a> {
    pub(in crate::log) fn new(bytes: &'a Bytes) -> Self {
        Self { bytes, at: 0, end: bytes.len() }
    }

    pub(in crate::log) fn within(bytes: &'a Bytes, range: std::ops::Range<usize>) -> Self {
        Self { bytes, at: range.start, end: range.end.min(bytes.len()) }
    }

    pub(in crate::log) fn is_empty(&self) -> bool {
        self.at >= self.end
    }

    pub(in crate::log) fn byte(&mut self) -> Option<u8> {
        if self.at >= self.end {
            return None;
        }
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    pub(in crate::log) fn number(&mut self) -> Option<u64> {
        let mut number = 0_u64;
        for shift in (0..70).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return None;
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    pub(in crate::log) fn small(&mut self) -> Option<u32> {
        u32::try_from(self.number()?).ok()
    }

    pub(in crate::log) fn slice(&mut self, len: u64) -> Option<Bytes> {
        let end = self.at.checked_add(usize::try_from(len).ok()?)?;
        if end > self.end {
            return None;
        }
        let slice = self.bytes.slice(self.at..end);
        self.at = end;
        Some(slice)
    }

    pub(in crate::log) fn id(&mut self) -> Option<EventId> {
        let end = self.at.checked_add(16)?;
        if end > self.end {
            return None;
        }
        let id = self.bytes.get(self.at..end)?.try_into().ok()?;
        self.at = end;
        Some(EventId::from_bytes(id))
    }

    pub(in crate::log) fn bytes(&mut self) -> Option<Bytes> {
        let len = self.number()?;
        self.slice(len)
    }

    pub(in crate::log) fn text(&mut self) -> Option<String> {
        String::from_utf8(self.bytes()?.to_vec()).ok()
    }

    pub(in crate::log) fn event(&mut self, base_seq: Seq, base_ts: u64) -> Option<(Seq, Held)> {
        let flags = self.byte()?;
        let seq = base_seq.wrapping_add(self.number()?);
        let id = self.id()?;
        let ts = base_ts.wrapping_add(unzigzag(self.number()?) as u64);
        let appended = ts.wrapping_add(unzigzag(self.number()?) as u64);
        let (key_start, key_len) = if flags & KEYED == 0 { (0, 0) } else { (self.small()?, self.small()?) };
        let spans = Spans { key_start, key_len, payload: self.small()? };
        let body = self.bytes()?;
        let client = flags & CLIENT_ID != 0;
        Some((seq, Held { id, ts: Millis(ts), appended: Millis(appended), spans, client, body }))
    }
}

/// Little-endian numbers at fixed places; what is too short reads as 0 and fails its checksum.
pub(in crate::log) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|part| part.try_into().ok()).map_or(0, u32::from_le_bytes)
}

pub(in crate::log) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|part| part.try_into().ok()).map_or(0, u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_event_reads_back_as_it_was_written(
            id in any::<[u8; 16]>(), ts in any::<u64>(), appended in any::<u64>(), base in any::<u64>(),
            seq in 1_u64.., client in any::<bool>(), key in proptest::option::of((1_u32.., any::<u32>())),
            payload in any::<u32>(), body in proptest::collection::vec(any::<u8>(), 0..50),
        ) {
            let (key_start, key_len) = key.unwrap_or((0, 0));
            let event = Held {
                id: EventId::from_bytes(id), ts: Millis(ts), appended: Millis(appended), client,
                spans: Spans { key_start, key_len, payload }, body: Bytes::from(body),
            };
            let mut out = Vec::new();
            put_event(&mut out, &event, seq, 1, base);
            let out = Bytes::from(out);
            let mut reader = Reader::new(&out);
            let (back_seq, back) = reader.event(1, base).expect("whole");
            prop_assert!(reader.is_empty());
            prop_assert_eq!((back_seq, back.id, back.ts, back.appended), (seq, event.id, event.ts, event.appended));
            prop_assert_eq!((back.spans, back.client, &back.body), (event.spans, client, &event.body));
            for cut in 0..out.len() {
                prop_assert!(Reader::new(&out.slice(..cut)).event(1, base).is_none());
            }
            let _ = back.key();
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let bytes = Bytes::from(bytes);
            let mut reader = Reader::new(&bytes);
            while let Some((_, event)) = reader.event(0, 0) {
                let _ = (event.key(), event.is_tombstone());
            }
        }
    }
}
