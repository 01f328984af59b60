//! The page at `/` of the ops port: the files of `dashboard/dist`, embedded when the hub was built.
//!
//! `build.rs` makes the list and never runs npm: a hub that was built without the page says how to build it.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, Method, header};

use crate::Hub;
use crate::rejection::not_found;

// `FILES: &[(&str, &[u8])]`, sorted by name.
include!(concat!(env!("OUT_DIR"), "/page.rs"));

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const NOT_BUILT: &str = "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<title>Promethean</title>\n\
    <h1>Promethean</h1>\n<p>The hub runs. Its dashboard was not built into this binary. To have it:</p>\n\
    <pre>npm ci --prefix sdk/typescript &amp;&amp; npm run build --prefix sdk/typescript\n\
    npm ci --prefix dashboard &amp;&amp; npm run build --prefix dashboard\ncargo build --release</pre>\n\
    <p>The ops API works without it: see <a href=\"openapi.json\">openapi.json</a>.</p>\n</html>\n";

/// `/`.
pub(crate) async fn index() -> Response {
    match find("index.html") {
        Some(page) => respond("index.html", page),
        None => respond("index.html", NOT_BUILT.as_bytes()),
    }
}

/// Every other file of the page; what is none is not found.
pub(crate) async fn file(State(hub): State<Arc<Hub>>, request: Request) -> Response {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return not_found().await;
    }
    let name = match request.uri().path().trim_start_matches('/') {
        "demo" | "demo.html" if !hub.about.is_demo() => return not_found().await,
        "demo" => "demo.html",
        name => name,
    };
    match find(name) {
        Some(bytes) => respond(name, bytes),
        None => not_found().await,
    }
}

/// True if a path is of the page's own files.
pub(crate) fn is_page(path: &str) -> bool {
    let name = path.trim_start_matches('/');
    name.is_empty() || name == "demo" || find(name).is_some()
}

fn find(name: &str) -> Option<&'static [u8]> {
    FILES.binary_search_by(|(this, _)| (*this).cmp(name)).ok().map(|at| FILES[at].1)
}

fn respond(name: &str, bytes: &'static [u8]) -> Response {
    let mut response = bytes.into_response();
    let headers = response.headers_mut();
    let mut set = |name: header::HeaderName, value: &'static str| headers.insert(name, HeaderValue::from_static(value));
    set(header::CONTENT_TYPE, content_type(name));
    set(header::CONTENT_SECURITY_POLICY, POLICY);
    set(header::REFERRER_POLICY, "no-referrer");
    // The names of assets carry a hash of what is in them.
    let immutable = name.starts_with("assets/");
    set(header::CACHE_CONTROL, if immutable { "public, max-age=31536000, immutable" } else { "no-cache" });
    if name == "sdk.js" {
        set(header::ACCESS_CONTROL_ALLOW_ORIGIN, "*");
    }
    response
}

fn content_type(name: &str) -> &'static str {
    match name.rsplit('.').next().unwrap_or_default() {
        "html" => "text/html; charset=utf-8",
        "js" | "mjs" => "text/javascript; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "svg" => "image/svg+xml",
        "json" | "map" => "application/json",
        "png" => "image/png",
        "ico" => "image/x-icon",
        "woff2" => "font/woff2",
        "txt" => "text/plain; charset=utf-8",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_with_a_hash_are_kept_by_browsers() {
        let header = |name: &str, header: header::HeaderName| {
            let response = respond(name, b"x");
            response.headers().get(header).map(|value| value.to_str().expect("text").to_owned())
        };
        let kept = Some("public, max-age=31536000, immutable".to_owned());
        assert_eq!(header("assets/index-abc.js", header::CACHE_CONTROL), kept);
        for name in ["index.html", "sdk.js", "favicon.svg"] {
            assert_eq!(header(name, header::CACHE_CONTROL), Some("no-cache".to_owned()), "{name}");
        }
        assert_eq!(header("sdk.js", header::ACCESS_CONTROL_ALLOW_ORIGIN), Some("*".to_owned()));
        assert_eq!(header("assets/x.js", header::ACCESS_CONTROL_ALLOW_ORIGIN), None);
        assert_eq!(header("assets/x.css", header::CONTENT_TYPE), Some("text/css; charset=utf-8".to_owned()));
    }

    #[test]
    fn files_are_found_by_their_whole_name() {
        assert!(FILES.is_sorted_by(|one, two| one.0 < two.0), "or they cannot be found");
        for (name, bytes) in FILES {
            assert_eq!(find(name).map(<[u8]>::len), Some(bytes.len()), "{name}");
        }
        assert!(find("").is_none() && find("../Cargo.toml").is_none());
    }
}
