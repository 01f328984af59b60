//! The ops API: what there is, how groups stand and why, and the few things an operator may change.
//!
//! Reading needs a valid token and shows the topics that its policy lets it subscribe to (or administer); changing needs
//! `admin` on the topic. The page's own files, health and readiness need no token. `docs/ops-api.md` has the shapes.
//!
//! Reading order: `ROUTES` → one file a noun → [`Samples`], which a task fills once a second.

mod about;
mod as_of;
mod backup;
mod causality;
mod connections;
mod dead_counts;
mod dead_letters;
mod explain;
mod groups;
mod holders;
mod inflight;
mod keys;
mod page;
mod samples;
mod scan;
mod seek;
mod settings;
mod topics;

use std::sync::Arc;

use axum::Router;
use axum::response::Response;
use axum::routing::{delete, get, post, put};

use crate::http::{Caller, Param, Route, cors, document, healthz, json_body, readyz, shared_routes, with_routes};
use crate::rejection::method_not_allowed;
use crate::{Hub, audit, dashboard, metrics, ws};

pub use about::{About, Addresses};
pub(crate) use dead_counts::Counts as DeadCounts;
pub(crate) use holders::{ANSWERS, Holdings};
pub use samples::Samples;

/// The routes of the ops port: the ops API, the page, and what the page needs of the other two ports.
pub fn router(hub: Arc<Hub>) -> Router {
    finish(with_routes(Router::new(), own_routes()), hub)
}

/// The routes of a port that is both the HTTP and the ops port.
pub fn router_with_http(hub: Arc<Hub>) -> Router {
    let health = ["/healthz", "/readyz", "/openapi.json"];
    let rest = crate::http::ROUTES.iter().filter(|route| !health.contains(&route.path));
    finish(with_routes(Router::new(), ROUTES.iter().chain(rest)).route("/openapi.json", get(openapi_json_of_both)), hub)
}

fn finish(router: Router<Arc<Hub>>, hub: Arc<Hub>) -> Router {
    let router = router.fallback(dashboard::file).method_not_allowed_fallback(method_not_allowed);
    let router = audit::around(cors::around(router, &hub), &hub);
    ws::in_front_of(router.with_state(Arc::clone(&hub)), hub)
}

/// What a port serves that is the ops port and no other.
fn own_routes() -> impl Iterator<Item = &'static Route> {
    ROUTES.iter().chain(DOCUMENTS).chain(shared_routes())
}

async fn openapi_json(_: Caller) -> Response {
    json_body(&document("Promethean ops API", own_routes()))
}

async fn asyncapi_json(_: Caller) -> Response {
    json_body(&ws::asyncapi())
}

async fn openapi_json_of_both() -> Response {
    json_body(&openapi())
}

/// The OpenAPI document of everything that a hub answers over HTTP.
pub fn openapi() -> serde_json::Value {
    document("Promethean HTTP and ops API", ROUTES.iter().chain(crate::http::ROUTES))
}

const TOPIC: Param = Param::required("topic", "The topic.");
const GROUP: Param = Param::required("group", "The group.");
const LIMIT: Param = Param::optional("limit", "Most entries, 1 to 10,000; 1,000 if left out.");
const AFTER: Param = Param::optional("after", "Only entries after this one: next of the page before.");
const Q: Param = Param::optional("q", "Only entries whose names contain this.");
const ID: Param = Param::required("id", "An event's id.");

/// A route that reads JSON about the hub.
const fn reads(
    path: &'static str,
    about: &'static str,
    params: &'static [Param],
    schema: &'static str,
    handler: fn() -> axum::routing::MethodRouter<Arc<Hub>>,
) -> Route {
    Route {
        method: "GET",
        path,
        about,
        params,
        body: &[],
        content: "application/json",
        schema,
        errors: &[400, 401, 403, 404, 429, 503],
        open: false,
        handler,
    }
}

/// A route that changes something.
const fn changes(
    method: &'static str,
    path: &'static str,
    about: &'static str,
    params: &'static [Param],
    schema: &'static str,
    handler: fn() -> axum::routing::MethodRouter<Arc<Hub>>,
) -> Route {
    Route {
        method,
        path,
        about,
        params,
        body: &["application/json"],
        content: "application/json",
        schema,
        errors: &[400, 401, 403, 404, 429, 500, 503],
        open: false,
        handler,
    }
}

/// Every route of the ops API.
pub(crate) static ROUTES: &[Route] = &[
    Route {
        content: "text/html; charset=utf-8",
        open: true,
        errors: &[],
        ..reads("/", "The dashboard.", &[], "", || get(dashboard::index))
    },
    reads("/hub", "Whom am I talking to.", &[], "Hub", || get(about::about)),
    reads(
        "/topics",
        "All topics with counts, sizes and rates.",
        &[Param::optional("topic", "Only this topic, where it exists."), LIMIT, AFTER, Q],
        "Topics",
        || get(topics::topics),
    ),
    changes(
        "PUT",
        "/topics",
        "Creates a topic, with settings where the body names some.",
        &[TOPIC],
        "Settings",
        || put(settings::create),
    ),
    Route {
        body: &[],
        ..changes(
            "DELETE",
            "/topics",
            "Deletes a topic: its events, settings and the positions of its groups.",
            &[
                TOPIC,
                Param::optional("dlq", "1: its dead letters too."),
                Param::optional("dryRun", "1: only says what would go."),
            ],
            "Deleted",
            || delete(topics::delete),
        )
    },
    changes(
        "POST",
        "/purge",
        "Removes events of a topic: those before a seq or a time, or those of some keys.",
        &[TOPIC, Param::optional("dryRun", "1: only says how many would go.")],
        "Purged",
        || post(topics::purge),
    ),
    reads("/settings", "What is kept of a topic, and how it is spread.", &[TOPIC], "Settings", || get(settings::show)),
    changes("PUT", "/settings", "Changes a topic's settings.", &[TOPIC], "Settings", || put(settings::change)),
    reads(
        "/groups",
        "All groups, or those of a topic.",
        &[Param::optional("topic", "Only groups of this topic."), LIMIT, AFTER, Q],
        "Groups",
        || get(groups::groups),
    ),
    Route {
        body: &[],
        ..changes("DELETE", "/groups", "Forgets a group that has no members.", &[TOPIC, GROUP], "Forgotten", || {
            delete(groups::forget)
        })
    },
    reads("/connections", "The open WebSockets.", &[LIMIT, AFTER, Q], "Connections", || get(connections::connections)),
    reads("/cursors", "Where the groups of a topic stand.", &[TOPIC], "Cursors", || get(groups::cursors)),
    changes(
        "PUT",
        "/cursors",
        "Moves a group's cursor.",
        &[TOPIC, GROUP, Param::optional("dryRun", "1: only says what would be.")],
        "Moved",
        || put(seek::seek),
    ),
    reads("/lag", "How far a group is behind.", &[TOPIC, GROUP], "Lag", || get(groups::lag)),
    reads(
        "/latest-by-key",
        "The latest event of a key, of several keys, or of all live keys, page by page.",
        &[
            TOPIC,
            Param::many("key", "A key."),
            Param::optional("after", "Without a key: only keys after this one."),
            Param::optional("limit", "Without a key: most keys, 1,000 if left out."),
            Param::optional("at", "As of this time, epoch milliseconds: only events with ts at or before it count."),
        ],
        "LatestByKey",
        || get(keys::latest_by_key),
    ),
    reads(
        "/dlq",
        "The topics that have dead letters, or the dead letters of a topic, newest first.",
        &[
            Param::optional("topic", "The topic whose events they were."),
            Param::optional("after", "The id of the last letter of the page before."),
            Param::optional("limit", "Most letters, 1 to 1,000; 100 if left out."),
            Param::optional("groups", "Without a topic, 1: how many letters each group has."),
        ],
        "Dead",
        || get(dead_letters::dead_letters),
    ),
    changes(
        "POST",
        "/dlq/redrive",
        "Redrives dead letters to the group that they failed in, or copies to their topic, each once.",
        &[TOPIC, Param::optional("dryRun", "1: only says what would be.")],
        "Redrive",
        || post(dead_letters::redrive),
    ),
    reads(
        "/samples",
        "Fifteen minutes of the hub, a topic or a group, a sample a second.",
        &[
            Param::optional("topic", "Of this topic."),
            Param::optional("group", "Of this group of the topic."),
            Param::optional("since", "Only samples after this time."),
        ],
        "Samples",
        || get(samples::samples),
    ),
    reads(
        "/inflight",
        "Who holds which events of a group, and which wait.",
        &[TOPIC, GROUP, Param::optional("limit", "Most of each kind, 1 to 1,000; 100 if left out.")],
        "InFlight",
        || get(inflight::inflight),
    ),
    reads("/explain", "Why a group does not move.", &[TOPIC, GROUP], "Explanation", || get(explain::explain)),
    reads("/event", "One event, by its id.", &[ID], "Event", || get(causality::event)),
    reads(
        "/causality",
        "What led to an event and what followed from it.",
        &[ID, Param::optional("limit", "Most events, 1 to 1,000; 200 if left out.")],
        "Causality",
        || get(causality::causality),
    ),
    Route {
        content: "application/octet-stream",
        ..reads("/backup", "Everything, as one stream: groups, settings, events. Needs admin.", &[], "", || {
            get(backup::backup)
        })
    },
    Route { content: "text/plain", ..reads("/metrics", "Prometheus text.", &[], "", || get(metrics::metrics)) },
    Route { open: true, errors: &[], ..reads("/healthz", "Whether the hub lives.", &[], "Status", || get(healthz)) },
    Route {
        open: true,
        errors: &[503],
        ..reads("/readyz", "Whether the hub takes requests.", &[], "Status", || get(readyz))
    },
];

/// The documents. The HTTP port shows its own to everybody; here, as all else, they need a token.
static DOCUMENTS: &[Route] = &[
    reads("/openapi.json", "This document.", &[], "Document", || get(openapi_json)),
    reads("/asyncapi.json", "The AsyncAPI document of the WebSocket protocol.", &[], "Document", || get(asyncapi_json)),
];

/// Samples the hub once a second until it is gone or drains. Start it once.
pub async fn sample(hub: Arc<Hub>) {
    samples::run(hub).await;
}
