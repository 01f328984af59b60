//! `GET /healthz` and `GET /readyz`.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use promethean_event::Code;
use serde_json::json;

use super::json_body;
use crate::Hub;
use crate::rejection::error_response;

/// The hub lives: it answers.
pub(crate) async fn healthz() -> Response {
    json_body(&json!({ "status": "ok" }))
}

/// The hub takes requests; else 503 with the reason.
pub(crate) async fn readyz(State(hub): State<Arc<Hub>>) -> Response {
    let not = |code: Code, why: &str| error_response(StatusCode::SERVICE_UNAVAILABLE, code.as_str(), why);
    if hub.drain.has_begun() {
        return not(Code::ShuttingDown, "the hub is shutting down");
    }
    if let Err(error) = hub.bus.store().ready() {
        return not(Code::PublishFailed, &format!("the store takes no writes: {error}"));
    }
    if let Some(topic) = hub.bus.damaged() {
        return not(Code::StoreDamaged, &format!("the store is damaged at an event of {topic}; run promethean doctor"));
    }
    if let Err(error) = hub.bus.in_cluster() {
        return not(Code::AckFailed, &format!("{error}"));
    }
    match hub.auth.ready() {
        Ok(()) => json_body(&json!({ "status": "ready" })),
        Err(why) => not(Code::JwtInvalid, &why),
    }
}
