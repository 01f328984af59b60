//! One table of routes for everything: the router is built from it, and so is the OpenAPI document.

use std::sync::Arc;

use axum::Router;
use axum::routing::MethodRouter;

use super::cors;
use crate::rejection::{method_not_allowed, not_found};
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
pub(crate) fn with_routes<'r>(
    router: Router<Arc<Hub>>,
    routes: impl IntoIterator<Item = &'r Route>,
) -> Router<Arc<Hub>> {
    routes.into_iter().fold(router, |router, route| router.route(route.path, (route.handler)()))
}
