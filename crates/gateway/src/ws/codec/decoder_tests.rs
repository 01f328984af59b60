//! Frames from a client, in any shape and any pieces.

use std::io;
use std::pin::Pin;

use proptest::prelude::*;
use tokio::io::ReadBuf;

use super::*;

const LIMIT: usize = 64 * 1024;

/// Gives the stream out in these pieces.
struct Pieces<'a> {
    bytes: &'a [u8],
    cuts: Vec<usize>,
}

impl AsyncRead for Pieces<'_> {
    fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, room: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let cut = self.cuts.pop().unwrap_or(usize::MAX).max(1);
        let (now, later) = self.bytes.split_at(cut.min(room.remaining()).min(self.bytes.len()));
        room.put_slice(now);
        self.bytes = later;
        Poll::Ready(Ok(()))
    }
}

/// Everything that comes out, as text.
fn messages(bytes: &[u8], cuts: Vec<usize>) -> Vec<String> {
    let mut reader = Pieces { bytes, cuts };
    let mut decoder = Decoder::new(Allowance::of(LIMIT), b"");
    let (mut out, mut cx) = (Vec::new(), Context::from_waker(std::task::Waker::noop()));
    loop {
        let read = decoder.poll_fill(&mut reader, &mut cx);
        while let Some(index) = decoder.peek() {
            decoder.advance();
            let message = decoder.message(index);
            out.push(format!("{message:?}"));
            if matches!(message, Message::Violation(_)) {
                return out;
            }
        }
        assert!(decoder.held() <= 2 * LIMIT.max(BURST), "holds {}", decoder.held());
        if let Poll::Ready(Ok(0)) = read {
            return out;
        }
    }
}

fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let key = [0x12, 0x34, 0x56, 0x78];
    let mut out = vec![first];
    match payload.len() {
        len @ 0..126 => out.push(0x80 | len as u8),
        len @ 126..65_536 => {
            out.push(0x80 | 126);
            out.extend_from_slice(&(len as u16).to_be_bytes());
        }
        len => {
            out.push(0x80 | 127);
            out.extend_from_slice(&(len as u64).to_be_bytes());
        }
    }
    out.extend_from_slice(&key);
    let mut masked = payload.to_vec();
    mask::apply(&mut masked, key);
    out.extend_from_slice(&masked);
    out
}

fn one(bytes: &[u8]) -> String {
    messages(bytes, Vec::new()).join(" ")
}

#[test]
fn texts_pings_and_a_goodbye_come_out_in_order() {
    let stream = [
        frame(0x81, b"hello"),
        frame(0x89, b"p"),
        frame(0x81, "é".repeat(10_000).as_bytes()),
        frame(0x8a, b""),
        frame(0x82, b"\0"),
        frame(0x88, &1000_u16.to_be_bytes()),
        frame(0x81, b"after the goodbye"),
    ]
    .concat();
    let out = messages(&stream, Vec::new());
    assert_eq!(out[0], r#"Text("hello")"#);
    assert_eq!(out[1], "Ping([112])");
    assert_eq!(out[2].len(), "Text(\"\")".len() + 20_000);
    assert_eq!(out[3..], ["Pong", "Binary", "Close"]);
}

#[test]
fn fragments_are_joined_and_control_frames_may_come_between() {
    let stream = [frame(0x01, b"a"), frame(0x89, b"!"), frame(0x00, b"b"), frame(0x80, b"c")].concat();
    assert_eq!(one(&stream), r#"Ping([33]) Text("abc")"#);
    let binary = [frame(0x02, b"a"), frame(0x80, b"c"), frame(0x81, b"t")].concat();
    assert_eq!(one(&binary), r#"Binary Text("t")"#);
}

#[test]
fn what_breaks_the_rules_closes_with_the_right_code() {
    let protocol = "Violation(Protocol)";
    assert_eq!(one(&[0x81, 0x01, b'x']), protocol, "not masked");
    assert_eq!(one(&frame(0xc1, b"x")), protocol, "a reserved bit");
    assert_eq!(one(&frame(0x83, b"x")), protocol, "a reserved opcode");
    assert_eq!(one(&frame(0x8b, b"x")), protocol, "a reserved control opcode");
    assert_eq!(one(&frame(0x09, b"x")), protocol, "a fragmented ping");
    assert_eq!(one(&frame(0x89, &[0; 126])), protocol, "a long ping");
    assert_eq!(one(&frame(0x80, b"x")), protocol, "a continuation of nothing");
    assert_eq!(one(&[frame(0x01, b"x"), frame(0x81, b"y")].concat()), protocol, "a text within a text");
    assert_eq!(one(&frame(0x88, &[1])), protocol, "half a close code");
    assert_eq!(one(&frame(0x88, &1005_u16.to_be_bytes())), protocol, "a close code that is never sent");
    assert_eq!(one(&frame(0x81, &[0xff])), "Violation(NotText)");
    assert_eq!(one(&frame(0x88, &[3, 232, 0xff])), "Violation(NotText)");
    assert_eq!(one(&[frame(0x01, &[0xc3]), frame(0x80, &[0x28])].concat()), "Violation(NotText)");
    assert_eq!(one(&[frame(0x81, b"ok"), vec![0x81, 0x01]].concat()), r#"Text("ok") Violation(Protocol)"#);
}

#[test]
fn a_message_over_the_limit_is_refused_by_its_header_alone() {
    let announced = |len: u64| [&[0x81, 0xff][..], &len.to_be_bytes()].concat();
    assert_eq!(one(&announced(LIMIT as u64 + 1)), "Violation(TooBig)");
    assert_eq!(one(&announced(u64::MAX)), "Violation(TooBig)");
    assert_eq!(messages(&frame(0x81, &[b'x'; LIMIT]), Vec::new()).len(), 1);
}

#[test]
fn a_fragment_bomb_ends_at_the_limit() {
    let mut stream = frame(0x01, &[b'x'; 1000]);
    for _ in 0..70 {
        stream.extend(frame(0x00, &[b'x'; 1000]));
    }
    assert_eq!(one(&stream), "Violation(TooBig)");
    let empty: Vec<u8> =
        [frame(0x01, b"")].into_iter().chain((0..10_000).map(|_| frame(0x00, b""))).flatten().collect();
    assert_eq!(one(&empty), "", "empty fragments hold no memory");
}

#[test]
fn an_idle_connection_gives_its_buffer_back() {
    let stream = frame(0x81, &[b'x'; LIMIT]);
    let mut decoder = Decoder::new(Allowance::of(LIMIT), &stream);
    assert!(decoder.peek().is_some() && decoder.held() >= LIMIT);
    decoder.advance();
    decoder.rest();
    assert!(decoder.held() <= IDLE);
}

fn any_frame() -> impl Strategy<Value = Vec<u8>> {
    let payload = prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..20),
        "[a-zé]{0,200}".prop_map(String::into_bytes),
        (0_usize..5_000).prop_map(|len| vec![b'x'; len]),
    ];
    let first = prop_oneof![20 => Just(0x81_u8), 6 => Just(0x01), 6 => Just(0x00), 6 => Just(0x80), 3 => Just(0x89),
        2 => Just(0x8a), 2 => Just(0x82), 1 => Just(0x88), 1 => any::<u8>()];
    (first, payload).prop_map(|(first, payload)| frame(first, &payload))
}

proptest! {
    #[test]
    fn how_the_stream_is_cut_into_reads_changes_nothing(
        frames in proptest::collection::vec(any_frame(), 0..12),
        cuts in proptest::collection::vec(prop_oneof![1_usize..8, 1_usize..3_000], 0..300),
    ) {
        let stream = frames.concat();
        prop_assert_eq!(messages(&stream, cuts), messages(&stream, Vec::new()));
    }

    #[test]
    fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..2_000), cut in 1_usize..50) {
        let cuts = vec![cut; bytes.len() / cut + 1];
        prop_assert_eq!(messages(&bytes, cuts), messages(&bytes, Vec::new()));
    }
}
