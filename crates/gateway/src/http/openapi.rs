//! The OpenAPI 3.1 document of a table of routes: what the router serves is what it says.

use promethean_event::frame::shape::EVENT;
use serde_json::{Map, Value, json};

use super::route::Param;
use super::{Route, shapes};
use crate::rejection::PROBLEM;
use crate::schema;

/// The document of `routes`.
pub(crate) fn document<'r>(title: &str, routes: impl IntoIterator<Item = &'r Route>) -> Value {
    let mut paths = Map::new();
    for route in routes {
        let path = paths.entry(route.path).or_insert_with(|| json!({}));
        path[route.method.to_ascii_lowercase()] = operation(route);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": title,
            "version": env!("CARGO_PKG_VERSION"),
            "license": { "name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0" },
        },
        "security": [{ "bearer": [] }, {}],
        "paths": paths,
        "components": {
            "securitySchemes": { "bearer": { "type": "http", "scheme": "bearer" } },
            "schemas": schemas(),
        },
    })
}

fn operation(route: &Route) -> Value {
    let mut responses = Map::new();
    let schema = match route.schema {
        "" => json!({}),
        name => json!({ "$ref": format!("#/components/schemas/{name}") }),
    };
    responses.insert(
        "200".to_owned(),
        json!({ "description": "Done.", "content": { route.content: { "schema": schema } } }),
    );
    // Every route refuses query parameters that it does not have.
    for status in route.errors.iter().chain(&[400]) {
        let about = http::StatusCode::from_u16(*status).ok().and_then(|status| status.canonical_reason());
        let schema = json!({ "$ref": "#/components/schemas/Error" });
        responses.insert(
            status.to_string(),
            json!({ "description": about.unwrap_or("Refused"), "content": { PROBLEM: { "schema": schema } } }),
        );
    }
    let mut operation = json!({
        "summary": route.about,
        "operationId": operation_id(route),
        "parameters": route.params.iter().map(parameter).collect::<Vec<_>>(),
        "responses": responses,
    });
    if !route.body.is_empty() {
        let content: Map<String, Value> = route.body.iter().map(|kind| ((*kind).to_owned(), json!({}))).collect();
        operation["requestBody"] = json!({ "required": true, "content": content });
    }
    if route.open {
        operation["security"] = json!([]);
    }
    operation
}

/// `post_publish_topic` of `POST /publish/{topic}`.
fn operation_id(route: &Route) -> String {
    let words = route.path.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let method = route.method.to_ascii_lowercase();
    std::iter::once(method.as_str()).chain(words).collect::<Vec<_>>().join("_")
}

fn parameter(param: &Param) -> Value {
    let schema = if param.repeats {
        json!({ "type": "array", "items": { "type": "string" } })
    } else {
        json!({ "type": "string" })
    };
    json!({
        "name": param.name, "in": param.place, "required": param.required, "description": param.about, "schema": schema,
    })
}

fn schemas() -> Value {
    let mut schemas = shapes::schemas();
    schemas.insert("Event".to_owned(), schema::part(EVENT));
    Value::Object(schemas)
}
