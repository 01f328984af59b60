//! A WebSocket connection that speaks the contract's frames, one JSON object each.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::{self, Message, client::IntoClientRequest as _};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

const PATIENCE: Duration = Duration::from_secs(60);

/// A connection. Frames that are not the awaited answer wait in order.
#[derive(Debug)]
pub struct Wire {
    socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
    waiting: VecDeque<Value>,
    corr: u64,
}

impl Wire {
    /// Connects.
    pub async fn connect(at: SocketAddr) -> Self {
        Self::try_connect(at, &[]).await.expect("the hub takes the connection")
    }

    /// Connects with headers.
    ///
    /// # Errors
    /// The hub refuses or is gone.
    pub async fn try_connect(at: SocketAddr, headers: &[(&'static str, &str)]) -> Result<Self, tungstenite::Error> {
        let mut request = format!("ws://{at}/").into_client_request()?;
        for (name, value) in headers {
            request.headers_mut().insert(*name, value.parse().expect("a header value"));
        }
        let (socket, _) = tokio_tungstenite::connect_async(request).await?;
        Ok(Self { socket, waiting: VecDeque::new(), corr: 0 })
    }

    /// Sends a frame and does not wait.
    ///
    /// # Errors
    /// The connection is gone.
    pub async fn send(&mut self, frame: &Value) -> Result<(), tungstenite::Error> {
        self.socket.send(Message::text(frame.to_string())).await
    }

    /// The next frame, whichever; `None` when the connection is gone.
    pub async fn next(&mut self) -> Option<Value> {
        match self.waiting.pop_front() {
            Some(frame) => Some(frame),
            None => self.receive().await,
        }
    }

    /// The next frame with this `op`, within a generous while. Others before it wait.
    pub async fn expect(&mut self, op: &str) -> Value {
        if let Some(at) = self.waiting.iter().position(|frame| frame["op"] == op) {
            return self.waiting.remove(at).expect("it is there");
        }
        loop {
            let frame = self.receive().await.unwrap_or_else(|| panic!("closed while waiting for {op}"));
            if frame["op"] == op {
                return frame;
            }
            self.waiting.push_back(frame);
        }
    }

    /// Sends a frame and returns its answer, `OK` or `ERR`.
    pub async fn call(&mut self, mut frame: Value) -> Value {
        self.corr += 1;
        frame["corr"] = json!(self.corr);
        self.send(&frame).await.expect("open");
        loop {
            let answer = self.receive().await.expect("open");
            if answer["corr"] == frame["corr"] && (answer["op"] == "OK" || answer["op"] == "ERR") {
                return answer;
            }
            self.waiting.push_back(answer);
        }
    }

    /// Sends a frame that has to be answered `OK`.
    pub async fn ok(&mut self, frame: Value) -> Value {
        let answer = self.call(frame.clone()).await;
        assert_eq!(answer["op"], "OK", "{frame} was answered {answer}");
        answer
    }

    /// True if nothing comes for a moment.
    pub async fn is_quiet(&mut self, moment: Duration) -> bool {
        self.waiting.is_empty() && tokio::time::timeout(moment, self.receive()).await.is_err()
    }

    /// The close code, once everything before it has been read.
    pub async fn close_code(&mut self) -> Option<u16> {
        loop {
            match tokio::time::timeout(PATIENCE, self.socket.next()).await.expect("a close in time")? {
                Ok(Message::Close(frame)) => return frame.map(|frame| frame.code.into()),
                Ok(_) => {}
                Err(_) => return None,
            }
        }
    }

    async fn receive(&mut self) -> Option<Value> {
        loop {
            match tokio::time::timeout(PATIENCE, self.socket.next()).await.expect("a frame in time")? {
                Ok(Message::Text(text)) => return Some(serde_json::from_str(&text).expect("the hub sends JSON")),
                Ok(Message::Close(_)) | Err(_) => return None,
                Ok(_) => {}
            }
        }
    }
}
