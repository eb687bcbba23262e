//! Builds the `OpenAPI` document from the types of the request bodies.

use axum::extract::State;
use schemars::Schema;
use serde_json::{Map, Value as Json, json};

use super::{HttpState, api, facts, query};

/// An operation of the API.
struct Operation {
    method: &'static str,
    path: &'static str,
    summary: &'static str,
    /// Query parameters, and whether each is required.
    query: &'static [(&'static str, bool)],
    body: Option<fn() -> Schema>,
    answer: &'static str,
}

const JSON: &str = "application/json";

/// All operations of the JSON API.
const OPERATIONS: [Operation; 18] = [
    Operation {
        body: Some(build_body_schema::<query::AskedQuery>),
        answer: "application/x-ndjson",
        ..new_post(
            "/v1/query",
            "Run a query. Returns JSON lines: {\"columns\": […]}, one array per row, then {\"meta\": {…}} or {\"error\": {…}}.",
        )
    },
    Operation {
        body: Some(build_body_schema::<query::AskedQuery>),
        ..new_post(
            "/v1/explain",
            "Show how a query would run: routes, SQL, requests, maximum cost. Sends no request.",
        )
    },
    Operation {
        body: Some(build_body_schema::<api::WantedCells>),
        ..new_post(
            "/v1/plan",
            "Show what a run would ask and why, with tokens, cost and time. Sends no request.",
        )
    },
    new_get("/v1/status", "Return the state of the daemon, its specs and its latest runs."),
    new_get("/v1/specs", "List the specs, with their states and those of their columns."),
    new_get("/v1/specs/{spec}", "Return the state of one spec."),
    new_get("/v1/runs", "List the latest runs, newest first."),
    Operation {
        body: Some(build_body_schema::<api::WantedCells>),
        ..new_post(
            "/v1/runs",
            "Start a run. Responds with 202 and the fields `run` and `spec` at once. If `wait` is true, responds with 200 at the end of the run.",
        )
    },
    Operation {
        answer: "text/event-stream",
        ..new_get(
            "/v1/runs/events",
            "Stream the events `run` and `spec`. A client that reads too slowly gets the event `missed`.",
        )
    },
    new_get("/v1/runs/{run}", "Return the state of one run."),
    Operation {
        method: "delete",
        ..new_get("/v1/runs/{run}", "Stop a run. hqdl keeps all answers received so far.")
    },
    Operation {
        body: Some(build_body_schema::<facts::AskedCells>),
        ..new_post(
            "/v1/facts",
            "Return the known cells of some entities. With `fill`, ask the model for the others.",
        )
    },
    Operation {
        query: &[("spec", false), ("table", true), ("column", true), ("key", true)],
        ..new_get(
            "/v1/why",
            "Show where a published cell came from. Pass `key` once for each part of the key.",
        )
    },
    Operation { query: &[("spec", false)], ..new_get("/v1/overrides", "List the overrides.") },
    Operation {
        body: Some(build_body_schema::<api::OverrideRequest>),
        ..new_post("/v1/overrides", "Set an override. It takes precedence over the model's answer.")
    },
    Operation {
        method: "delete",
        body: Some(build_body_schema::<api::OverrideRequest>),
        ..new_get("/v1/overrides", "Remove an override, so that the model's answer applies again.")
    },
    Operation {
        answer: "text/plain",
        ..new_get("/healthz", "Check whether the daemon is alive. Needs no token.")
    },
    Operation {
        answer: "text/plain",
        ..new_get("/metrics", "Return metrics in the text format of Prometheus.")
    },
];

const fn new_get(path: &'static str, summary: &'static str) -> Operation {
    Operation { method: "get", path, summary, query: &[], body: None, answer: JSON }
}

const fn new_post(path: &'static str, summary: &'static str) -> Operation {
    Operation { method: "post", ..new_get(path, summary) }
}

fn build_body_schema<T: schemars::JsonSchema>() -> Schema {
    schemars::schema_for!(T)
}

/// Returns the name of a route in the metrics: its path pattern. All unknown paths share one name,
/// and all pages share another.
pub(super) fn find_route_name(route: &str) -> &'static str {
    let paths = OPERATIONS.iter().map(|o| o.path).chain(super::mcp::PATHS);
    let known = paths.into_iter().find(|path| *path == route);
    known.unwrap_or(if route.is_empty() { "none" } else { "page" })
}

/// Handles `GET /v1/openapi.json`.
pub(super) async fn get_openapi_document(State(state): State<HttpState>) -> axum::Json<Json> {
    let mut paths: Map<String, Json> = Map::new();
    for operation in &OPERATIONS {
        let path = paths.entry(operation.path).or_insert_with(|| json!({}));
        path[operation.method] = operation_to_json(operation);
    }
    let mut document = json!({
        "openapi": "3.1.0",
        "info": {
            "title": "hqdl", "version": env!("CARGO_PKG_VERSION"),
            "description": "API of the hqdl daemon: queries, plans, runs and facts of the loaded specs.",
        },
        "paths": paths,
        "components": { "schemas": { "Error": {
            "type": "object", "required": ["error"],
            "properties": { "error": {
                "type": "object", "required": ["message", "exit"],
                "properties": {
                    "message": { "type": "string" }, "hint": { "type": "string" },
                    "exit": { "type": "integer", "description": "Exit code of the corresponding command." },
                    "problems": { "type": "array", "items": { "type": "object" } },
                },
            } },
        } } },
    });
    if state.context.settings.token.is_some() {
        document["components"]["securitySchemes"] =
            json!({ "token": { "type": "http", "scheme": "bearer" } });
        document["security"] = json!([{ "token": [] }]);
    }
    axum::Json(document)
}

fn operation_to_json(operation: &Operation) -> Json {
    let in_path = operation.path.split('{').skip(1).filter_map(|rest| rest.split_once('}'));
    let path = in_path.map(|(name, _)| {
        json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } })
    });
    let query = operation.query.iter().map(|(name, needed)| {
        let schema = match *name {
            "key" => json!({ "type": "array", "items": { "type": "string" } }),
            _ => json!({ "type": "string" }),
        };
        json!({ "name": name, "in": "query", "required": needed, "schema": schema })
    });
    let parameters: Vec<Json> = path.chain(query).collect();
    let error = json!({
        "description": "Error message, with a hint what to do next.",
        "content": { JSON: { "schema": { "$ref": "#/components/schemas/Error" } } },
    });
    let mut described = json!({
        "summary": operation.summary, "parameters": parameters,
        "responses": {
            "200": { "description": "Success.", "content": { operation.answer: {} } },
            "default": error,
        },
    });
    if let Some(body) = operation.body {
        described["requestBody"] =
            json!({ "required": true, "content": { JSON: { "schema": body() } } });
    }
    described
}
