//! Audit lines of HTTP requests: one layer around every router sees who asked, the answer, and what a handler noted.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::Response;
use http::{Method, StatusCode, Uri};
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::Value;

use super::{Client, Line};
use crate::Hub;
use crate::http::Query;
use crate::listener::Peer;
use crate::rejection::Rejection;

/// Routes for events: they change nothing that an operator would.
const FOR_EVENTS: &[&str] = &["/publish/", "/consume/", "/ack/", "/nack/", "/extend/"];

/// What a request's handler tells the layer around it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Slot(Arc<Mutex<Noted>>);

#[derive(Debug, Default)]
struct Noted {
    /// Set once the caller is known: its subject, where its token has one.
    caller: Option<Option<String>>,
    old: Option<Value>,
    new: Option<Value>,
    /// Nothing was changed: a dry run.
    nothing: bool,
}

impl Slot {
    /// Notes who asks.
    pub(crate) fn is(&self, sub: Option<&str>) {
        self.0.lock().caller = Some(sub.map(str::to_owned));
    }

    /// Notes what a change replaced, and with what.
    pub(crate) fn changed(&self, old: impl Serialize, new: impl Serialize) {
        let mut noted = self.0.lock();
        (noted.old, noted.new) = (serde_json::to_value(old).ok(), serde_json::to_value(new).ok());
    }

    /// Notes that nothing is changed.
    pub(crate) fn changes_nothing(&self) {
        self.0.lock().nothing = true;
    }
}

/// `router` with an audit line for what it refuses and changes.
pub(crate) fn around(router: Router<Arc<Hub>>, hub: &Arc<Hub>) -> Router<Arc<Hub>> {
    router.layer(middleware::from_fn_with_state(Arc::clone(hub), record))
}

async fn record(State(hub): State<Arc<Hub>>, mut request: Request, next: Next) -> Response {
    let slot = Slot::default();
    let peer = request.extensions().get::<Peer>().map(|peer| peer.0);
    let (method, uri) = (request.method().clone(), request.uri().clone());
    request.extensions_mut().insert(slot.clone());
    let response = next.run(request).await;
    let noted = std::mem::take(&mut *slot.0.lock());
    tell(&hub, peer, &method, &uri, &noted, &response);
    response
}

fn tell(hub: &Hub, peer: Option<SocketAddr>, method: &Method, uri: &Uri, noted: &Noted, response: &Response) {
    let client = Client { peer, via: "http", sub: noted.caller.as_ref().and_then(Option::as_deref) };
    let rejection = response.extensions().get::<Rejection>();
    if noted.caller.is_some() && !hub.auth.is_open() {
        hub.audit.let_in(client);
    }
    match (response.status(), rejection) {
        (StatusCode::UNAUTHORIZED, Some(rejection)) => {
            hub.audit.refused(client, rejection.code.as_str(), &rejection.msg);
        }
        (StatusCode::FORBIDDEN, Some(rejection)) => hub.audit.forbidden(client, rejection),
        (status, _) if noted.caller.is_some() && !noted.nothing && is_change(method, uri.path()) => {
            let query = Query::parse(uri.query().unwrap_or_default());
            let done = if status.is_success() { "done" } else { "failed" };
            let action = format!("{method} {}", uri.path());
            hub.audit.write(&Line {
                code: rejection.map(|rejection| rejection.code.as_str()),
                reason: rejection.map(|rejection| rejection.msg.as_str()),
                topic: query.one("topic").ok().flatten(),
                group: query.one("group").ok().flatten(),
                old: noted.old.as_ref(),
                new: noted.new.as_ref(),
                ..Line::new(client, &action, done)
            });
        }
        _ => {}
    }
}

/// True if a request is an operator's: it changes something, or reads everything.
fn is_change(method: &Method, path: &str) -> bool {
    let changes = ![Method::GET, Method::HEAD, Method::OPTIONS].contains(method);
    (changes && !FOR_EVENTS.iter().any(|begin| path.starts_with(begin))) || path == "/backup"
}
