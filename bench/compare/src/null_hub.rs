//! A hub that stores nothing: the limit of the protocol on a machine.
//!
//! It reads the same frames with the same parser, stamps and serialises events the same way, answers and delivers with
//! the same frames. It has no log, no groups, no leases: a topic is a ring of its last events, and an event that has
//! fallen out of it is delivered as the one in its place. Good for measuring, for nothing else.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use promethean_event::frame::{Ack, Item, Request, Settled, decode, write};
use promethean_event::{Draft, Event, IdMaker, Limits, Millis, Sealer, Topic};
use sha1::{Digest as _, Sha1};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// Events of a topic that are there.
const RING: usize = 16 * 1024;
/// About how large an `EVENTS` frame gets, and how much is read at once.
const BURST: usize = 256 * 1024;

struct Log {
    ring: Mutex<Vec<Event>>,
    /// How many events there were.
    tail: watch::Sender<u64>,
}

#[derive(Default)]
struct Hub {
    ids: IdMaker,
    logs: Mutex<HashMap<String, Arc<Log>>>,
}

impl Hub {
    fn log(&self, topic: &str) -> Arc<Log> {
        let mut logs = self.logs.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || Arc::new(Log { ring: Mutex::default(), tail: watch::Sender::new(0) });
        Arc::clone(logs.entry(topic.to_owned()).or_insert_with(new))
    }
}

/// Serves until it is ended.
pub(crate) fn run() -> std::io::Result<()> {
    tokio::runtime::Builder::new_multi_thread().enable_io().build()?.block_on(async {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        println!("null hub ready ws={}", listener.local_addr()?);
        let hub = Arc::new(Hub::default());
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            let hub = Arc::clone(&hub);
            tokio::spawn(async move {
                // The client is gone, or is none.
                let _ = Session::new(hub, stream).serve().await;
            });
        }
    })
}

struct Session {
    hub: Arc<Hub>,
    stream: TcpStream,
    input: Vec<u8>,
    out: Vec<u8>,
    burst: Option<Publishing>,
    subscription: Option<Subscription>,
}

/// What is published by the frames that were read together.
struct Publishing {
    topic: Topic,
    sealer: Sealer,
}

struct Subscription {
    log: Arc<Log>,
    tail: watch::Receiver<u64>,
    head: write::Head,
    /// The last event that was delivered.
    at: u64,
    credit: usize,
}

impl Session {
    fn new(hub: Arc<Hub>, stream: TcpStream) -> Self {
        let (input, out) = (Vec::with_capacity(BURST), Vec::with_capacity(BURST));
        Self { hub, stream, input, out, burst: None, subscription: None }
    }

    async fn serve(&mut self) -> std::io::Result<()> {
        self.upgrade().await?;
        loop {
            self.frames()?;
            self.deliver();
            if !self.out.is_empty() {
                self.stream.write_all(&self.out).await?;
                self.out.clear();
            }
            let waiting = self.subscription.as_mut().filter(|subscription| subscription.credit > 0);
            tokio::select! {
                read = self.stream.read_buf(&mut self.input) => if read? == 0 { return Ok(()) },
                _ = async { match waiting {
                    Some(subscription) => subscription.tail.changed().await,
                    None => std::future::pending().await,
                } } => {}
            }
        }
    }

    async fn upgrade(&mut self) -> std::io::Result<()> {
        let end = loop {
            if let Some(at) = memchr::memmem::find(&self.input, b"\r\n\r\n") {
                break at + 4;
            }
            if self.stream.read_buf(&mut self.input).await? == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
        };
        let head = String::from_utf8_lossy(&self.input[..end]).into_owned();
        self.input.drain(..end);
        let key = head.lines().find_map(|line| line.strip_prefix("Sec-WebSocket-Key: ")).unwrap_or("");
        let digest = Sha1::new().chain_update(key).chain_update("258EAFA5-E914-47DA-95CA-C5AB0DC85B11").finalize();
        let accept = base64::engine::general_purpose::STANDARD.encode(digest);
        let answer = format!(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Accept: {accept}\r\n\r\n"
        );
        self.stream.write_all(answer.as_bytes()).await
    }

    /// Handles every whole frame.
    fn frames(&mut self) -> std::io::Result<()> {
        let (mut input, mut used) = (std::mem::take(&mut self.input), 0);
        while let Some((start, end)) = unmask(&mut input[used..]) {
            let text = std::str::from_utf8(&input[used + start..used + end]).map_err(std::io::Error::other)?;
            self.frame(text)?;
            used += end;
        }
        input.drain(..used);
        self.input = input;
        self.publish();
        Ok(())
    }

    fn frame(&mut self, text: &str) -> std::io::Result<()> {
        let request = decode(text).request.map_err(|refused| std::io::Error::other(refused.to_string()))?;
        match request {
            Request::Publish(publish) => {
                let Item::One { payload, options } = publish.events else {
                    return Err(std::io::Error::other("the null hub takes no batches"));
                };
                if self.burst.as_ref().is_none_or(|burst| burst.topic.as_str() != publish.topic) {
                    self.publish();
                    let topic = Topic::parse(&publish.topic).map_err(std::io::Error::other)?;
                    self.burst = Some(Publishing { topic, sealer: Sealer::new(Limits::default()) });
                }
                if let Some(Publishing { topic, sealer }) = &mut self.burst {
                    let draft = Draft { topic: topic.clone(), payload: Cow::Borrowed(payload), options };
                    let now = Millis::now();
                    sealer.seal(&draft, self.hub.ids.next(now), now, 16, 0).map_err(std::io::Error::other)?;
                }
            }
            Request::Subscribe(subscribe) => {
                let log = self.hub.log(&subscribe.topic);
                let group = subscribe.group.as_ref().map(promethean_event::Group::as_str);
                let head = write::Head::events(&subscribe.topic, group);
                let (tail, credit) = (log.tail.subscribe(), subscribe.options.max_in_flight);
                self.subscription = Some(Subscription { log, tail, head, at: 0, credit });
                frame(&mut self.out, |out| write::ok(out, None));
            }
            Request::Ack(Ack { settled: Settled::Ids(ids), .. }) => {
                if let Some(subscription) = &mut self.subscription {
                    subscription.credit += ids.as_slice().len();
                }
                frame(&mut self.out, |out| write::ok(out, None));
            }
            _ => return Err(std::io::Error::other("the null hub knows PUBLISH, SUBSCRIBE and ACK")),
        }
        Ok(())
    }

    /// Gives what was published its place and answers it.
    fn publish(&mut self) {
        let Some(Publishing { topic, sealer }) = self.burst.take() else { return };
        let log = self.hub.log(topic.as_str());
        let mut seq = *log.tail.borrow();
        let mut ring = log.ring.lock().unwrap_or_else(PoisonError::into_inner);
        for event in sealer.finish() {
            seq += 1;
            let event = event.at(seq);
            frame(&mut self.out, |out| write::published(out, None, event.id, seq, false));
            match ring.get_mut(place(seq)) {
                Some(old) => *old = event,
                None => ring.push(event),
            }
        }
        drop(ring);
        log.tail.send_replace(seq);
    }

    fn deliver(&mut self) {
        let Some(Subscription { log, tail, head, at, credit }) = &mut self.subscription else { return };
        let last = *tail.borrow_and_update();
        while *at < last && *credit > 0 {
            let ring = log.ring.lock().unwrap_or_else(PoisonError::into_inner);
            frame(&mut self.out, |out| {
                let start = out.len();
                write::begin_events(out, head);
                while *at < last && *credit > 0 && out.len() - start < BURST {
                    *at += 1;
                    *credit -= 1;
                    let deadline = Duration::from_secs(30);
                    let context = write::Context {
                        attempt: 1,
                        max_attempts: 5,
                        deadline,
                        lease: *at,
                        snapshot: false,
                        redriven: false,
                        cut: None,
                        resume: None,
                    };
                    if let Some(event) = ring.get(place(*at)) {
                        write::next_event(out, event, context);
                    }
                }
                write::end_events(out);
            });
        }
    }
}

/// Where the event with this seq is in the ring.
fn place(seq: u64) -> usize {
    (seq - 1) as usize % RING
}

/// Appends a text frame.
fn frame(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0x81, 126, 0, 0]);
    write(out);
    let body = start + 4;
    let length = out.len() - body;
    if length < 126 {
        out.copy_within(body.., start + 2);
        out.truncate(out.len() - 2);
        out[start + 1] = length as u8;
    } else if let Ok(length) = u16::try_from(length) {
        out[start + 2..body].copy_from_slice(&length.to_be_bytes());
    } else {
        out.extend_from_slice(&[0; 6]);
        out.copy_within(body..body + length, body + 6);
        out[start + 1] = 127;
        out[start + 2..start + 10].copy_from_slice(&(length as u64).to_be_bytes());
    }
}

/// Unmasks the frame at the beginning of `bytes`, where it is whole: where its text begins and ends.
fn unmask(bytes: &mut [u8]) -> Option<(usize, usize)> {
    let (header, length) = match *bytes.get(1)? & 0x7f {
        126 => (4, usize::from(u16::from_be_bytes(*bytes.get(2..)?.first_chunk()?))),
        127 => (10, usize::try_from(u64::from_be_bytes(*bytes.get(2..)?.first_chunk()?)).ok()?),
        short => (2, usize::from(short)),
    };
    let mask: [u8; 4] = *bytes.get(header..)?.first_chunk()?;
    let start = header + 4;
    let text = bytes.get_mut(start..start.checked_add(length)?)?;
    let [a, b, c, d] = mask;
    let wide = u64::from_ne_bytes([a, b, c, d, a, b, c, d]);
    let (words, rest) = text.as_chunks_mut::<8>();
    for word in words {
        *word = (u64::from_ne_bytes(*word) ^ wide).to_ne_bytes();
    }
    for (byte, mask) in rest.iter_mut().zip(mask.into_iter().cycle()) {
        *byte ^= mask;
    }
    Some((start, start + length))
}
