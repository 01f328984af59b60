//! One table of routes for everything: the router is built from it, and so is the OpenAPI document.

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::middleware::{self, Next};
use axum::response::IntoResponse;
use axum::routing::MethodRouter;
use promethean_event::{Code, nearest};

use super::{Query, cors};
use crate::rejection::{Rejection, method_not_allowed, not_found};
use crate::{Hub, audit};

/// A route: what it is to the router and what it is to its users.
pub(crate) struct Route {
    pub(crate) method: &'static str,
    /// As axum and OpenAPI both write it, `/publish/{topic}`.
    pub(crate) path: &'static str,
    /// What it does.
    pub(crate) about: &'static str,
    pub(crate) params: &'static [Param],
    /// The content types it takes; none: it takes no body.
    pub(crate) body: &'static [&'static str],
    /// The content type it answers with.
    pub(crate) content: &'static str,
    /// The schema of a 200; empty: anything.
    pub(crate) schema: &'static str,
    /// The other statuses it answers with.
    pub(crate) errors: &'static [u16],
    /// True if it needs no token.
    pub(crate) open: bool,
    pub(crate) handler: fn() -> MethodRouter<Arc<Hub>>,
}

/// A parameter of a route.
pub(crate) struct Param {
    pub(crate) name: &'static str,
    pub(crate) place: &'static str,
    pub(crate) required: bool,
    pub(crate) repeats: bool,
    pub(crate) about: &'static str,
}

impl Param {
    pub(crate) const fn required(name: &'static str, about: &'static str) -> Self {
        Self { name, place: "query", required: true, repeats: false, about }
    }

    pub(crate) const fn optional(name: &'static str, about: &'static str) -> Self {
        Self { name, place: "query", required: false, repeats: false, about }
    }

    pub(crate) const fn many(name: &'static str, about: &'static str) -> Self {
        Self { name, place: "query", required: false, repeats: true, about }
    }

    pub(crate) const fn path(name: &'static str, about: &'static str) -> Self {
        Self { name, place: "path", required: true, repeats: false, about }
    }

    pub(crate) const fn header(name: &'static str, about: &'static str) -> Self {
        Self { name, place: "header", required: false, repeats: false, about }
    }
}

/// The router of a table.
pub(crate) fn build(routes: &'static [Route], hub: Arc<Hub>) -> Router {
    let router = with_routes(Router::new(), routes);
    let router = router.fallback(not_found).method_not_allowed_fallback(method_not_allowed);
    audit::around(cors::around(router, &hub), &hub).with_state(hub)
}

/// Adds the routes of a table.
pub(crate) fn with_routes(
    router: Router<Arc<Hub>>,
    routes: impl IntoIterator<Item = &'static Route>,
) -> Router<Arc<Hub>> {
    routes.into_iter().fold(router, |router, route| {
        let (method, path, params) = (route.method, route.path, route.params);
        // The page's own address may carry anything.
        let only_known = move |request: Request, next: Next| async move {
            let unknown = if path == "/" { None } else { unknown(method, path, params, &request) };
            match unknown {
                Some(rejection) => rejection.into_response(),
                None => next.run(request).await,
            }
        };
        router.route(path, (route.handler)().route_layer(middleware::from_fn(only_known)))
    })
}

/// Refuses a query parameter that the route does not have.
fn unknown(method: &str, path: &str, params: &[Param], request: &Request) -> Option<Rejection> {
    let query = Query::parse(request.uri().query()?);
    let known = || params.iter().filter(|param| param.place == "query").map(|param| param.name);
    let stray = query.names().find(|name| !known().any(|known| known == *name))?;
    let likely = nearest(stray, known()).map(|name| format!("; did you mean {name}?")).unwrap_or_default();
    let message = format!("{stray}: not a parameter of {method} {path}{likely}");
    Some(Rejection::new(Code::BadRequest, message))
}
