//! Every route of the ops port, by the port's own document: what it answers, which parameters and which token it needs.

use crate::harness::{Served, Setup, token};
use http::Method;
use promethean_gateway::ops;
use serde_json::{Value, json};

/// Every route of the port's own document: its method, its path with parameters that work, a body that works, and what
/// the document says of it.
async fn routes(hub: &Served, id: &str) -> Vec<(Method, String, &'static str, Value)> {
    let document = hub.get_as(&token(&[]), "/openapi.json").await.ok();
    let mut found = Vec::new();
    for (path, operations) in document["paths"].as_object().expect("paths") {
        for (method, operation) in operations.as_object().expect("operations") {
            let method: Method = method.to_uppercase().parse().expect("a method");
            let body = match (method.as_str(), path.as_str()) {
                ("PUT", "/settings" | "/topics") => "{}",
                ("POST", "/purge") => r#"{"beforeSeq":1}"#,
                ("PUT", _) => r#"{"from":"latest"}"#,
                ("POST", "/publish/{topic}") => "1",
                ("POST", "/consume/{topic}/{group}") => "{}",
                ("POST", path) if path.ends_with("/{topic}/{group}") => {
                    r#"{"ids":["0199d1c0-0000-7000-8000-000000000000"]}"#
                }
                _ => "",
            };
            let wanted = operation["parameters"].as_array().expect("parameters");
            let query = wanted.iter().filter(|param| param["required"] == true && param["in"] == "query");
            let query: Vec<String> = query
                .map(|param| match param["name"].as_str().expect("a name") {
                    "topic" => "topic=t".to_owned(),
                    "group" => "group=g".to_owned(),
                    "id" => format!("id={id}"),
                    other => panic!("what would work as {other}?"),
                })
                .collect();
            let path = format!("{}?{}", path.replace("{topic}", "t").replace("{group}", "g"), query.join("&"));
            found.push((method, path, body, operation.clone()));
        }
    }
    // The others need the topic.
    found.sort_by_key(|(method, path, ..)| *method == Method::DELETE && path.starts_with("/topics"));
    found
}

#[tokio::test]
async fn the_openapi_document_has_every_route_of_the_port_and_each_answers_as_it_says() {
    for router in [ops::router as fn(_) -> _, ops::router_with_http] {
        let hub = Setup::default().start(router).await;
        let ids = hub.fill("t", 1).await;
        let routes = routes(&hub, &ids[0]).await;
        for path in [
            "/topics",
            "/groups",
            "/connections",
            "/cursors",
            "/lag",
            "/latest-by-key",
            "/dlq/redrive",
            "/metrics",
            "/",
        ] {
            assert!(routes.iter().any(|(_, this, ..)| this.split('?').next() == Some(path)), "{path}");
        }
        for (method, path, body, operation) in routes {
            let answer = hub.open(method, &path, &[], body).await;
            assert_eq!(answer.status(), 200, "{path}");
            let content = answer.headers()["content-type"].to_str().expect("text").to_owned();
            let listed = operation["responses"]["200"]["content"].as_object().expect("content");
            assert!(listed.keys().any(|kind| content.starts_with(kind.as_str())), "{path}: {content}");
        }
    }
}

#[tokio::test]
async fn every_route_asks_for_each_parameter_that_it_needs() {
    let hub = Setup::default().start(ops::router).await;
    let ids = hub.fill("t", 1).await;
    let mut asked = 0;
    for (method, path, body, _) in routes(&hub, &ids[0]).await {
        let (path, query) = path.split_once('?').expect("a query");
        let parts: Vec<&str> = query.split('&').filter(|part| !part.is_empty()).collect();
        for left_out in &parts {
            let (name, _) = left_out.split_once('=').expect("a value");
            let rest: Vec<&str> = parts.iter().copied().filter(|part| part != left_out).collect();
            for query in [rest.join("&"), [&rest[..], &[&format!("{name}=")]].concat().join("&")] {
                let answer = hub.send(method.clone(), &format!("{path}?{query}"), &[], body).await;
                let said = answer.refused(400, "bad_request");
                assert!(said.contains(name) && said.ends_with(" required"), "{method} {path}?{query}: {said}");
                asked += 1;
            }
        }
    }
    assert!(asked > 20, "{asked}");
}

#[tokio::test]
async fn every_route_needs_a_good_token_with_the_rights_it_takes_unless_it_says_that_it_needs_none() {
    let hub = Setup::with_jwt().start(ops::router).await;
    let ids = hub.fill("t", 1).await;
    let stranger = format!("Bearer {}", token(&["subscribe:other", "publish:other", "admin:other"]));
    let reader = format!("Bearer {}", token(&["subscribe:**"]));
    let (mut open, mut refused, mut changing) = (0, 0, 0);
    for (method, path, body, operation) in routes(&hub, &ids[0]).await {
        let send = async |headers: &[(&str, &str)]| hub.send(method.clone(), &path, headers, body).await;
        if operation["security"] == json!([]) {
            assert_eq!(send(&[]).await.status, 200, "{method} {path}");
            open += 1;
            continue;
        }
        let nobody = send(&[]).await;
        nobody.refused(401, "no_token");
        assert_eq!(nobody.header("www-authenticate"), "Bearer", "{method} {path}");
        send(&[("authorization", "Bearer nonsense")]).await.refused(401, "jwt_invalid");
        send(&[("authorization", "Basic bm9ib2R5")]).await.refused(401, "no_token");
        // What is not of the token's topics is forbidden, or not there, or not shown.
        let answer = send(&[("authorization", &stranger)]).await;
        match answer.status.as_u16() {
            200 => assert!(!answer.text().contains(&ids[0]), "{method} {path}: {}", answer.text()),
            404 => drop(answer.refused(404, "unknown_id")),
            _ => drop(answer.refused(403, "forbidden")),
        }
        // Consuming and answering deliveries need `subscribe` alone.
        let consumes = path.contains("/t/g?");
        if (method != Method::GET && !consumes) || path.starts_with("/backup") {
            send(&[("authorization", &reader)]).await.refused(403, "forbidden");
            changing += 1;
        }
        refused += 1;
    }
    assert!(open >= 3 && refused > 15 && changing >= 6, "{open} {refused} {changing}");
}

#[tokio::test]
async fn the_documents_need_a_token_on_the_ops_port_and_none_where_it_is_the_http_port_too() {
    let (alone, both) =
        (Setup::with_jwt().start(ops::router).await, Setup::with_jwt().start(ops::router_with_http).await);
    for path in ["/openapi.json", "/asyncapi.json"] {
        alone.get(path).await.refused(401, "no_token");
        alone.get_as(&token(&[]), path).await.ok();
        both.get(path).await.ok();
    }
    for path in ["/healthz", "/readyz", "/"] {
        assert_eq!(alone.get(path).await.status, 200, "{path}");
    }
}

#[tokio::test]
async fn missing_and_wrong_parameters_are_refused() {
    let hub = Setup::default().start(ops::router).await;
    for (path, message) in [
        ("/cursors", "topic required"),
        ("/cursors?topic=", "topic required"),
        ("/lag", "topic and group required"),
        ("/lag?topic=t", "topic and group required"),
        ("/lag?group=g", "topic and group required"),
        ("/latest-by-key", "topic required"),
        ("/latest-by-key?key=k", "topic required"),
        ("/inflight?topic=t", "topic and group required"),
        ("/explain?group=g", "topic and group required"),
        ("/samples?group=g", "topic required"),
        ("/event", "id required"),
        ("/causality", "id required"),
    ] {
        assert_eq!(hub.get(path).await.refused(400, "bad_request"), message, "{path}");
    }
    for (path, code) in [
        ("/groups?topic=a..b", "bad_topic"),
        ("/cursors?topic=*", "bad_topic"),
        ("/lag?topic=t&group=a%20b", "bad_request"),
        ("/lag?topic=a%20b&group=g", "bad_topic"),
        ("/latest-by-key?topic=t&limit=0", "bad_request"),
        ("/latest-by-key?topic=t&limit=10001", "bad_request"),
        ("/latest-by-key?topic=t&key=%ff", "bad_request"),
        ("/inflight?topic=t&group=g&limit=1001", "bad_request"),
        ("/samples?since=yesterday", "bad_request"),
        ("/samples?topic=a..b", "bad_topic"),
        ("/event?id=7", "bad_id"),
        ("/causality?id=7", "bad_id"),
        ("/dlq?topic=..", "bad_topic"),
        ("/dlq?topic=t&after=7", "bad_id"),
        ("/dlq?topic=t&limit=1001", "bad_request"),
    ] {
        hub.get(path).await.refused(400, code);
    }
}
