//! The `OpenAPI` document, built from the types of the request bodies.

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
        body: Some(schema::<query::AskedQuery>),
        answer: "application/x-ndjson",
        ..post(
            "/v1/query",
            "Run a query. JSON lines: {\"columns\": […]}, an array a row, then {\"meta\": {…}} or {\"error\": {…}}.",
        )
    },
    Operation {
        body: Some(schema::<query::AskedQuery>),
        ..post("/v1/explain", "How a query would be run: routes, SQL, demand, price; asks nothing.")
    },
    Operation {
        body: Some(schema::<api::WantedCells>),
        ..post(
            "/v1/plan",
            "What a run would ask and why, with tokens, price and time; asks nothing.",
        )
    },
    get("/v1/status", "The daemon, its specs and its last runs."),
    get("/v1/specs", "The specs: which are in force, and how their columns stand."),
    get("/v1/specs/{spec}", "One spec."),
    get("/v1/runs", "The last runs, the newest first."),
    Operation {
        body: Some(schema::<api::WantedCells>),
        ..post("/v1/runs", "Begin a run: 202 at once, or 200 at its end with `wait`.")
    },
    Operation {
        answer: "text/event-stream",
        ..get(
            "/v1/runs/events",
            "Events `run` and `spec` as they happen; `missed` to a slow reader.",
        )
    },
    get("/v1/runs/{run}", "One run."),
    Operation {
        method: "delete",
        ..get("/v1/runs/{run}", "End a run; everything answered is kept.")
    },
    Operation {
        body: Some(schema::<facts::AskedCells>),
        ..post(
            "/v1/facts",
            "What is known of some entities; with `fill`, the model is asked for the rest.",
        )
    },
    Operation {
        query: &[("spec", false), ("table", true), ("column", true), ("key", true)],
        ..get("/v1/why", "Where a published cell came from; `key` once for each part of the key.")
    },
    Operation { query: &[("spec", false)], ..get("/v1/overrides", "What people have overridden.") },
    Operation {
        body: Some(schema::<api::OverrideWord>),
        ..post("/v1/overrides", "Say what a cell is, whatever the model says.")
    },
    Operation {
        method: "delete",
        body: Some(schema::<api::OverrideWord>),
        ..get("/v1/overrides", "Take it back.")
    },
    Operation { answer: "text/plain", ..get("/healthz", "Whether it is alive; needs no token.") },
    Operation { answer: "text/plain", ..get("/metrics", "Counters for Prometheus.") },
];

const fn get(path: &'static str, summary: &'static str) -> Operation {
    Operation { method: "get", path, summary, query: &[], body: None, answer: JSON }
}

const fn post(path: &'static str, summary: &'static str) -> Operation {
    Operation { method: "post", ..get(path, summary) }
}

fn schema<T: schemars::JsonSchema>() -> Schema {
    schemars::schema_for!(T)
}

/// Returns a route's name in the metrics: its pattern. Unknown paths share one name, and so do the
/// pages.
pub(super) fn name(route: &str) -> &'static str {
    let known = OPERATIONS.iter().map(|o| o.path).find(|path| *path == route);
    known.unwrap_or(if route.is_empty() { "none" } else { "page" })
}

/// `GET /v1/openapi.json`
pub(super) async fn document(State(shop): State<HttpState>) -> axum::Json<Json> {
    let mut paths: Map<String, Json> = Map::new();
    for operation in &OPERATIONS {
        let path = paths.entry(operation.path).or_insert_with(|| json!({}));
        path[operation.method] = described(operation);
    }
    let mut document = json!({
        "openapi": "3.1.0",
        "info": {
            "title": "hqdl", "version": env!("CARGO_PKG_VERSION"),
            "description": "The daemon of hqdl: queries, plans, runs and facts over specs in force.",
        },
        "paths": paths,
        "components": { "schemas": { "Error": {
            "type": "object", "required": ["error"],
            "properties": { "error": {
                "type": "object", "required": ["message", "exit"],
                "properties": {
                    "message": { "type": "string" }, "hint": { "type": "string" },
                    "exit": { "type": "integer", "description": "The exit code of the command line." },
                    "problems": { "type": "array", "items": { "type": "object" } },
                },
            } },
        } } },
    });
    if shop.house.settings.token.is_some() {
        document["components"]["securitySchemes"] =
            json!({ "token": { "type": "http", "scheme": "bearer" } });
        document["security"] = json!([{ "token": [] }]);
    }
    axum::Json(document)
}

fn described(operation: &Operation) -> Json {
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
        "description": "What was wrong, and what to do.",
        "content": { JSON: { "schema": { "$ref": "#/components/schemas/Error" } } },
    });
    let mut described = json!({
        "summary": operation.summary, "parameters": parameters,
        "responses": {
            "200": { "description": "The answer.", "content": { operation.answer: {} } },
            "default": error,
        },
    });
    if let Some(body) = operation.body {
        described["requestBody"] =
            json!({ "required": true, "content": { JSON: { "schema": body() } } });
    }
    described
}
