//! A hub on a real port, and clients that send raw frames.
#![allow(dead_code)]

use std::sync::Arc;
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use promethean_bus::{Bus, BusOptions};
use promethean_gateway::auth::{AuthConfig, Authenticator};
use promethean_gateway::limits::Quotas;
use promethean_gateway::listener::{Intake, Listener};
use promethean_gateway::{EdgeConfig, Hub, ws};
use promethean_store::Store;
use promethean_store::memory::Memory;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{self, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

/// Long enough for any machine; only a failure takes it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(15);

/// A hub that listens.
pub(crate) struct Server {
    pub(crate) hub: Arc<Hub>,
    pub(crate) addr: std::net::SocketAddr,
}

/// What a test may change.
pub(crate) struct Setup {
    pub(crate) config: EdgeConfig,
    pub(crate) auth: AuthConfig,
    pub(crate) quotas: Quotas,
    pub(crate) header_deadline: Duration,
    pub(crate) store: Arc<dyn Store>,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            config: EdgeConfig::default(),
            auth: AuthConfig::default(),
            quotas: Quotas::default(),
            header_deadline: Duration::from_secs(10),
            store: Arc::new(Memory::new()),
        }
    }
}

impl Server {
    /// An open hub with the defaults.
    pub(crate) async fn start() -> Self {
        Self::with(Setup::default()).await
    }

    pub(crate) async fn configured(config: EdgeConfig) -> Self {
        Self::with(Setup { config, ..Setup::default() }).await
    }

    pub(crate) async fn with_auth(auth: AuthConfig) -> Self {
        Self::with(Setup { auth, ..Setup::default() }).await
    }

    pub(crate) async fn with(setup: Setup) -> Self {
        let bus = Bus::new(setup.store, BusOptions::default());
        let auth = Authenticator::new(&setup.auth).expect("a configuration that works");
        let hub = Arc::new(Hub::new(bus, auth, setup.quotas, setup.config));
        let listener = Listener::bind(([127, 0, 0, 1], 0).into()).await.expect("a free port");
        let addr = listener.local_addr();
        let intake = Intake::new(20_000, None).header_deadline(setup.header_deadline).buffers(&hub.buffers);
        tokio::spawn(listener.serve(ws::router(Arc::clone(&hub)), intake, hub.drain.watch()));
        Self { hub, addr }
    }

    /// The same hub over HTTP.
    pub(crate) async fn http(&self) -> crate::harness::Served {
        crate::harness::serve(Arc::clone(&self.hub), promethean_gateway::http::router, |intake| intake).await
    }

    pub(crate) fn url(&self) -> String {
        format!("ws://{}/any/path?at=all", self.addr)
    }

    pub(crate) async fn connect(&self) -> Client {
        self.connect_with(&[]).await.expect("connected").0
    }

    /// Connects with these request headers.
    pub(crate) async fn connect_with(
        &self,
        headers: &[(&'static str, &str)],
    ) -> Result<(Client, tungstenite::handshake::client::Response), tungstenite::Error> {
        let mut request = self.url().into_client_request()?;
        for (name, value) in headers {
            request.headers_mut().insert(*name, value.parse().expect("a header"));
        }
        let config = WebSocketConfig::default().max_message_size(None).max_frame_size(None);
        let (ws, response) = tokio_tungstenite::connect_async_with_config(request, Some(config), true).await?;
        Ok((Client { ws }, response))
    }

    /// A connection after the handshake, for frames that no library would send.
    pub(crate) async fn raw(&self) -> Raw {
        let mut tcp = TcpStream::connect(self.addr).await.expect("connected");
        let head = "GET / HTTP/1.1\r\nHost: hub\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                    Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
        tcp.write_all(head.as_bytes()).await.expect("sent");
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            answer.push(tcp.read_u8().await.expect("an answer"));
        }
        assert!(answer.starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&answer));
        Raw { tcp }
    }
}

/// A client that speaks frames.
pub(crate) struct Client {
    pub(crate) ws: WebSocketStream<MaybeTlsStream<TcpStream>>,
}

impl Client {
    pub(crate) async fn send(&mut self, frame: Value) {
        self.send_text(&frame.to_string()).await;
    }

    pub(crate) async fn send_text(&mut self, text: &str) {
        self.ws.send(Message::text(text)).await.expect("sent");
    }

    /// Queues a frame; [`Client::flush`] sends what is queued with one write.
    pub(crate) async fn feed(&mut self, frame: Value) {
        self.ws.feed(Message::text(frame.to_string())).await.expect("queued");
    }

    pub(crate) async fn flush(&mut self) {
        self.ws.flush().await.expect("sent");
    }

    /// The next message but pings and pongs: those would let a test wait for ever.
    async fn message(&mut self) -> Option<Message> {
        let next = async {
            loop {
                match self.ws.next().await {
                    Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                    other => return other,
                }
            }
        };
        let next = tokio::time::timeout(PATIENCE, next).await.expect("the hub says something");
        next.map(|message| message.expect("a message"))
    }

    /// The next frame as it was written.
    pub(crate) async fn text(&mut self) -> String {
        match self.message().await.expect("the connection is open") {
            Message::Text(text) => text.as_str().to_owned(),
            other => panic!("expected a text frame, got {other:?}"),
        }
    }

    pub(crate) async fn recv(&mut self) -> Value {
        serde_json::from_str(&self.text().await).expect("JSON")
    }

    /// Sends a frame and takes the next one that is no delivery.
    pub(crate) async fn ask(&mut self, frame: Value) -> Value {
        self.send(frame).await;
        self.answer().await
    }

    pub(crate) async fn answer(&mut self) -> Value {
        loop {
            let frame = self.recv().await;
            if frame["op"] == "OK" || frame["op"] == "ERR" {
                return frame;
            }
        }
    }

    /// Sends a frame that has to be `OK`.
    pub(crate) async fn ok(&mut self, frame: Value) -> Value {
        let answer = self.ask(frame.clone()).await;
        assert_eq!(answer["op"], "OK", "{frame} → {answer}");
        answer
    }

    /// Sends a frame that has to be refused with `code`.
    pub(crate) async fn err(&mut self, frame: Value, code: &str) -> Value {
        let answer = self.ask(frame.clone()).await;
        assert_eq!((&answer["op"], &answer["code"]), (&json!("ERR"), &json!(code)), "{frame} → {answer}");
        answer
    }

    pub(crate) async fn publish(&mut self, topic: &str, payload: Value) -> Value {
        self.ok(json!({"op": "PUBLISH", "topic": topic, "payload": payload})).await
    }

    pub(crate) async fn subscribe(&mut self, topic: &str, group: &str) -> Value {
        self.ok(json!({"op": "SUBSCRIBE", "topic": topic, "group": group})).await
    }

    /// The next delivery.
    pub(crate) async fn event(&mut self) -> Value {
        let frame = self.recv().await;
        assert_eq!(frame["op"], "EVENT", "{frame}");
        frame
    }

    /// True if nothing but the answer to a `PING` comes: a delivery would have come before it.
    pub(crate) async fn assert_silent(&mut self) {
        self.send(json!({"op": "PING", "corr": "silence"})).await;
        let frame = self.recv().await;
        assert_eq!(frame, json!({"op": "OK", "corr": "silence"}));
    }

    /// The close code, after whatever comes before it.
    pub(crate) async fn closed(&mut self) -> u16 {
        loop {
            match self.message().await {
                Some(Message::Close(Some(close))) => return close.code.into(),
                Some(Message::Close(None)) => return 1005,
                Some(_) => {}
                None => return 1006,
            }
        }
    }
}

/// A client that writes bytes.
pub(crate) struct Raw {
    pub(crate) tcp: TcpStream,
}

impl Raw {
    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        self.tcp.write_all(bytes).await.expect("sent");
    }

    /// The next frame: opcode and payload.
    pub(crate) async fn frame(&mut self) -> (u8, Vec<u8>) {
        tokio::time::timeout(PATIENCE, self.read_frame()).await.expect("the hub says something").expect("a frame")
    }

    async fn read_frame(&mut self) -> std::io::Result<(u8, Vec<u8>)> {
        let first = self.tcp.read_u8().await?;
        let len = match self.tcp.read_u8().await? {
            126 => u64::from(self.tcp.read_u16().await?),
            127 => self.tcp.read_u64().await?,
            short => u64::from(short),
        };
        let mut payload = vec![0; usize::try_from(len).expect("fits")];
        self.tcp.read_exact(&mut payload).await?;
        Ok((first & 0x0f, payload))
    }

    /// The close code, after whatever comes before it.
    pub(crate) async fn closed(&mut self) -> u16 {
        loop {
            let (opcode, payload) = self.frame().await;
            if opcode == 0x8 {
                return u16::from_be_bytes([payload[0], payload[1]]);
            }
        }
    }

    pub(crate) async fn text(&mut self) -> Value {
        loop {
            let (opcode, payload) = self.frame().await;
            if opcode == 0x1 {
                return serde_json::from_slice(&payload).expect("JSON");
            }
        }
    }
}

/// A client's frame. The mask is zero, which RFC 6455 allows and which keeps tests readable.
pub(crate) fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
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
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(payload);
    out
}

/// An event's id out of an `EVENT` frame.
pub(crate) fn id_of(event: &Value) -> Value {
    event["event"]["id"].clone()
}
