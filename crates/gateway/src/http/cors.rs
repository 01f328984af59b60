//! What browsers need to be told before a page of another origin may use the HTTP API: pages of `allowed_origins` and of
//! loopback may, as with WebSockets. Others are told nothing, and their requests are refused: by `Caller`, and in open mode
//! for every route but the page and `/healthz` where the browser says that they are cross-site.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, Method, StatusCode, header};
use promethean_event::Code;

use crate::rejection::Rejection;
use crate::ws::origin;
use crate::{Hub, dashboard};

const METHODS: HeaderValue = HeaderValue::from_static("GET, HEAD, POST, PUT, DELETE");
/// What a page may read of an answer besides its body and the plain headers.
const READABLE: HeaderValue = HeaderValue::from_static(
    "retry-after, www-authenticate, x-promethean-complete, x-promethean-first-seq, x-promethean-last-seq",
);

/// `router` with answers that browsers hand to the pages that may have them.
pub(crate) fn around(router: Router<Arc<Hub>>, hub: &Arc<Hub>) -> Router<Arc<Hub>> {
    router.layer(middleware::from_fn_with_state(Arc::clone(hub), tell))
}

/// True if a request from any site is answered: it does no work for a route with data.
fn for_every_site(path: &str) -> bool {
    path == "/healthz" || dashboard::is_page(path)
}

async fn tell(State(hub): State<Arc<Hub>>, request: Request, next: Next) -> Response {
    let headers = request.headers();
    if hub.auth.is_open()
        && origin::is_cross_site(headers, &hub.config.allowed_origins)
        && !for_every_site(request.uri().path())
    {
        let message = "without auth the hub does not serve pages of other sites; add the page to allowed_origins";
        return Rejection::new(Code::Forbidden, message).into_response();
    }
    let allowed = origin::is_allowed(headers, &hub.config.allowed_origins, hub.auth.is_open());
    let Some(origin) = headers.get(header::ORIGIN).filter(|_| allowed).cloned() else { return next.run(request).await };
    let asks = request.method() == Method::OPTIONS && headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
    let mut response = if asks {
        let wanted = headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS).cloned();
        let mut response = StatusCode::NO_CONTENT.into_response();
        response.headers_mut().insert(header::ACCESS_CONTROL_ALLOW_METHODS, METHODS);
        response.headers_mut().insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
        if let Some(wanted) = wanted {
            // Headers are no risk here: which of them count is the handler's list.
            response.headers_mut().insert(header::ACCESS_CONTROL_ALLOW_HEADERS, wanted);
        }
        response
    } else {
        next.run(request).await
    };
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, READABLE);
    headers.append(header::VARY, HeaderValue::from_static("origin"));
    response
}
