//! A hub that a test plays, frame by frame.

use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::Value;
use tokio::sync::mpsc;

use super::*;

/// A hub that says what the test wants: every frame that a client sends comes out here, with the connection to answer on.
pub(super) struct Stage {
    pub(super) url: String,
    asked: mpsc::UnboundedReceiver<(Value, Answer)>,
}

/// What a connection is told; nothing: goodbye.
pub(super) struct Answer(mpsc::UnboundedSender<Option<String>>);

impl Answer {
    pub(super) fn say(&self, frame: Value) {
        self.say_text(frame.to_string());
    }

    pub(super) fn say_text(&self, text: String) {
        self.0.send(Some(text)).expect("the connection is there");
    }

    /// Says it if the connection is still there.
    pub(super) fn try_say(&self, frame: Value) {
        let _ = self.0.send(Some(frame.to_string()));
    }

    pub(super) fn hang_up(&self) {
        self.0.send(None).expect("the connection is there");
    }

    pub(super) fn ok(&self, asked: &Value) {
        self.say(json!({"op": "OK", "corr": asked["corr"]}));
    }

    pub(super) fn refuse(&self, asked: &Value, code: &str) {
        self.say(json!({"op": "ERR", "corr": asked["corr"], "code": code, "msg": "no", "retry_after_ms": 5}));
    }

    /// Ends the subscription.
    pub(super) fn end(&self, code: &str) {
        let ended = json!({"op": "ERR", "code": code, "msg": "no", "topic": "a", "group": "g", "retry_after_ms": 5});
        self.say(ended);
    }

    /// Gives out event number `n` under a lease of so many milliseconds.
    pub(super) fn give(&self, n: u64, lease: u64, ms: u64) {
        let event = json!({"id": id(n), "seq": n, "ts": 1, "topic": "a", "payload": n});
        let ctx = json!({"attempt": 1, "maxAttempts": 5, "ack_deadline_ms": ms, "lease": lease});
        self.say(json!({"op": "EVENTS", "topic": "a", "group": "g", "events": [{"event": event, "ctx": ctx}]}));
    }
}

pub(super) fn id(n: u64) -> String {
    format!("0199d1c0-7d3b-7cc2-8b1a-{n:012x}")
}

impl Stage {
    pub(super) async fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("ws://{}", listener.local_addr().expect("an address"));
        let (asked, questions) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let wire = tokio_tungstenite::accept_hdr_async(stream, promethean_v1).await.expect("accepted");
                let (mut writer, mut reader) = wire.split();
                let (says, mut said) = mpsc::unbounded_channel();
                loop {
                    tokio::select! {
                        frame = reader.next() => {
                            let Some(Ok(Message::Text(frame))) = frame else { break };
                            let frame = serde_json::from_str(&frame).expect("JSON");
                            let _ = asked.send((frame, Answer(says.clone())));
                        }
                        said = said.recv() => {
                            let Some(Some(said)) = said else { break };
                            if writer.send(Message::text(said)).await.is_err() {
                                break;
                            }
                        }
                    }
                }
            }
        });
        Self { url, asked: questions }
    }

    /// The next frame.
    pub(super) async fn frame(&mut self) -> (Value, Answer) {
        patient(self.asked.recv()).await.expect("a frame")
    }

    /// The next frame, whenever it comes.
    pub(super) async fn any(&mut self) -> Option<(Value, Answer)> {
        self.asked.recv().await
    }

    /// The next frame, which has to be of this kind.
    pub(super) async fn asks(&mut self, op: &str) -> (Value, Answer) {
        let (frame, answer) = self.frame().await;
        assert_eq!(frame["op"], op, "{frame}");
        (frame, answer)
    }

    /// Grants the subscription that is asked for.
    pub(super) async fn grants(&mut self) -> Answer {
        let (asked, answer) = self.asks("SUBSCRIBE").await;
        answer.ok(&asked);
        answer
    }

    /// A client and its subscription.
    pub(super) async fn subscribed(&mut self) -> (Client, Subscription, Answer) {
        let client = connect(&self.url).await;
        let subscribe = client.subscribe("a", Some("g"), SubscribeOptions::default());
        let (events, hub) = patient(async { tokio::join!(subscribe, self.grants()) }).await;
        (client, events.expect("subscribed"), hub)
    }
}
