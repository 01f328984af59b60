//! The machine-readable document of the WebSocket protocol: served, whole, and the one in `docs/`.
//!
//! That it says what the hub does is tested over a socket, with a validator: `e2e/browser/asyncapi.test.ts`.

use crate::harness::Setup;
use promethean_event::Code;
use promethean_gateway::rejection::status;
use promethean_gateway::{http, ops};
use serde_json::Value;

const KEPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/asyncapi.json");
const CODES: &str = include_str!("../../../../docs/errors/codes.md");

#[tokio::test]
async fn every_port_that_speaks_http_serves_the_document_of_docs() {
    let mut served = Vec::new();
    for router in [http::router as fn(_) -> _, ops::router, ops::router_with_http] {
        served.push(Setup::default().start(router).await.get("/asyncapi.json").await.ok());
    }
    assert!(served.iter().all(|document| *document == served[0]), "one document, whatever the port");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        let text = serde_json::to_string_pretty(&served[0]).expect("JSON") + "\n";
        std::fs::write(KEPT, text).expect("docs/asyncapi.json is writable");
    }
    // As values: the order of members is not the same with every set of features.
    let kept: Value = serde_json::from_str(&std::fs::read_to_string(KEPT).unwrap_or_default()).unwrap_or_default();
    let remedy = "UPDATE_DOCS=1 cargo test -p promethean-gateway --test it asyncapi";
    assert!(kept == served[0], "docs/asyncapi.json is not what the hub serves; `{remedy}` writes it");
}

#[tokio::test]
async fn nothing_is_referred_to_that_is_not_there() {
    let document = Setup::default().start(http::router).await.get("/asyncapi.json").await.ok();
    let mut seen = 0;
    references(&document, &mut |reference| {
        let pointer = reference.strip_prefix('#').expect("a place in the document");
        assert!(document.pointer(pointer).is_some(), "{reference} is referred to and not there");
        seen += 1;
    });
    assert!(seen > 50, "{seen} references");
}

fn references(value: &Value, found: &mut impl FnMut(&str)) {
    match value {
        Value::Object(members) => members.iter().for_each(|(name, value)| match value.as_str() {
            Some(reference) if name == "$ref" => found(reference),
            _ => references(value, found),
        }),
        Value::Array(entries) => entries.iter().for_each(|entry| references(entry, found)),
        _ => {}
    }
}

#[test]
fn every_code_has_its_line_in_docs_errors_with_its_status_and_there_is_no_other() {
    let listed: Vec<(&str, &str)> = CODES
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once("` | "))
        .map(|(code, rest)| (code, rest.split(' ').next().unwrap_or_default()))
        .collect();
    let statuses: Vec<String> = Code::ALL.iter().map(|code| status(*code).as_u16().to_string()).collect();
    let codes: Vec<(&str, &str)> =
        Code::ALL.iter().map(|code| code.as_str()).zip(statuses.iter().map(|s| &**s)).collect();
    assert_eq!(listed, codes);
}
