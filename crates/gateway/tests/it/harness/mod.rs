//! A hub on a real port over the memory engine, and a small HTTP client that shows what is on the wire.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use promethean_bus::{Bounds, Bus, BusOptions, Limits};
use promethean_event::{Event, Millis, Topic};
use promethean_gateway::audit::Audit;
use promethean_gateway::auth::{AuthConfig, Authenticator, Secret};
use promethean_gateway::limits::Quotas;
use promethean_gateway::listener::{Intake, Listener};
use promethean_gateway::{EdgeConfig, Hub};
use promethean_store::memory::Memory;
use promethean_store::{ReadMax, Store};
use serde_json::{Value, json};
use tokio::net::TcpStream;

pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
pub(crate) const SECRET: &str = "a secret for tokens of tests";

pub(crate) async fn patient<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("waited too long for {what}"))
}

/// What a hub is made of, where a test wants something else than the default.
#[derive(Default)]
pub(crate) struct Setup {
    pub(crate) auth: AuthConfig,
    pub(crate) quotas: Quotas,
    pub(crate) edge: EdgeConfig,
    pub(crate) audit: Audit,
    pub(crate) bounds: Bounds,
    /// The engine; the memory one if left out.
    pub(crate) store: Option<Arc<dyn Store>>,
}

impl Setup {
    /// Tokens are needed: JWTs signed with [`SECRET`].
    pub(crate) fn with_jwt() -> Self {
        let auth = AuthConfig { jwt_secret: Some(Secret::new(SECRET)), ..AuthConfig::default() };
        Self { auth, ..Self::default() }
    }

    pub(crate) async fn start(self, router: fn(Arc<Hub>) -> Router) -> Served {
        self.start_with(router, |intake| intake).await
    }

    /// Starts with another intake.
    pub(crate) async fn start_with(self, router: fn(Arc<Hub>) -> Router, change: fn(Intake) -> Intake) -> Served {
        let _ = jsonwebtoken::crypto::aws_lc::DEFAULT_PROVIDER.install_default();
        let options = BusOptions {
            limits: Limits { max_event_bytes: self.edge.max_event_bytes },
            max_series: self.edge.metrics_max_series,
            bounds: self.bounds,
            auto_create: self.edge.auto_create,
        };
        let bus = Bus::new(self.store.unwrap_or_else(|| Arc::new(Memory::new())), options);
        let auth = Authenticator::new(&self.auth).expect("a configuration");
        let mut hub = Hub::new(bus, auth, self.quotas, self.edge);
        hub.audit = self.audit;
        serve(Arc::new(hub), router, change).await
    }
}

/// Serves `hub` on a port of its own.
pub(crate) async fn serve(hub: Arc<Hub>, router: fn(Arc<Hub>) -> Router, change: fn(Intake) -> Intake) -> Served {
    let listener = Listener::bind("127.0.0.1:0".parse().expect("an address")).await.expect("a port");
    let addr = listener.local_addr();
    let intake = change(Intake::new(100, None).buffers(&hub.buffers));
    tokio::spawn(listener.serve(router(Arc::clone(&hub)), intake, hub.drain.watch()));
    Served { addr, hub }
}

/// A JWT with `scopes`, good for a while.
pub(crate) fn token(scopes: &[&str]) -> String {
    jwt(&json!({ "sub": "somebody", "exp": Millis::now().0 / 1000 + 600, "scopes": scopes }))
}

pub(crate) fn jwt(claims: &Value) -> String {
    let key = jsonwebtoken::EncodingKey::from_secret(SECRET.as_bytes());
    jsonwebtoken::encode(&jsonwebtoken::Header::default(), claims, &key).expect("a token")
}

/// A hub that is being served.
pub(crate) struct Served {
    pub(crate) addr: SocketAddr,
    pub(crate) hub: Arc<Hub>,
}

impl Served {
    pub(crate) async fn connect(&self) -> SendRequest<Full<Bytes>> {
        let stream = TcpStream::connect(self.addr).await.expect("connected");
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.expect("HTTP");
        tokio::spawn(connection);
        sender
    }

    /// Sends a request whose answer is not read yet.
    pub(crate) async fn open(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> http::Response<Incoming> {
        let mut sender = self.connect().await;
        patient(path, sender.send_request(request(method, path, headers, body))).await.expect("an answer")
    }

    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Answer {
        let (head, body) = self.open(method, path, headers, body).await.into_parts();
        let body = patient("the body", body.collect()).await.expect("a whole body").to_bytes();
        Answer { status: head.status, headers: head.headers, body }
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send(Method::GET, path, &[], "").await
    }

    pub(crate) async fn get_as(&self, token: &str, path: &str) -> Answer {
        self.send(Method::GET, path, &[("authorization", &format!("Bearer {token}"))], "").await
    }

    pub(crate) async fn post(&self, path: &str, body: impl Into<Bytes>) -> Answer {
        self.send(Method::POST, path, &[("content-type", "application/json")], body).await
    }

    /// All events of a topic.
    pub(crate) async fn stored(&self, topic: &str) -> Vec<Event> {
        let topic = Topic::parse(topic).expect("a topic");
        self.hub.bus.store().read(&topic, 1, ReadMax::events(100_000)).await.expect("readable")
    }

    /// Publishes `count` events `{"n":0}`, `{"n":1}`, … and gives their ids.
    pub(crate) async fn fill(&self, topic: &str, count: usize) -> Vec<String> {
        let topic = Topic::parse(topic).expect("a topic");
        let mut ids = Vec::new();
        for n in 0..count {
            let published = self.hub.bus.publish_value(&topic, &json!({ "n": n })).await.expect("published");
            ids.push(published.id.to_string());
        }
        ids
    }
}

pub(crate) fn request(
    method: Method,
    path: &str,
    headers: &[(&str, &str)],
    body: impl Into<Bytes>,
) -> Request<Full<Bytes>> {
    let mut request = Request::builder().method(method).uri(path).header("host", "hub");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(Full::new(body.into())).expect("a request")
}

/// An answer, read to its end.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("text")
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error} in {:?}", self.body))
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().expect("text"))
    }

    /// The body of a 200.
    #[track_caller]
    pub(crate) fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.text());
        self.json()
    }

    /// Checks the status and the code of an error and gives its message.
    #[track_caller]
    pub(crate) fn refused(&self, status: u16, code: &str) -> String {
        assert_eq!(self.status, status, "{}", self.text());
        let body = self.json();
        assert_eq!(body["code"], code, "{body}");
        assert_eq!(self.header("content-type"), "application/problem+json", "{body}");
        let members = (body["status"].as_u64(), &body["detail"], body["title"].is_string());
        assert_eq!(members, (Some(status.into()), &body["error"], true), "{body}");
        assert!(body["type"].as_str().is_some_and(|page| page.ends_with(&format!("#{code}"))), "{body}");
        assert_eq!(body.as_object().expect("an object").len(), 6, "{body}");
        body["error"].as_str().expect("a message").to_owned()
    }
}
