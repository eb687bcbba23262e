//! Meanings of the fields in the responses of the daemon, for docs/reference/http.md.

use serde_json::Value as Json;

/// Fields with their meanings. A path in front of a name limits the meaning to that operation.
const FIELDS: [(&str, &str); 67] = [
    ("began", "start time, UTC"),
    ("blind", "reason why the daemon does not notice changes, or null"),
    ("budget", "budget that is left, and whether it is enough"),
    ("budget_usd", "budget of the run in USD"),
    ("cache", "cache of facts"),
    ("cause", "reason why the run was started"),
    ("cells", "number of cells to ask for"),
    ("/v1/why cells", "the cells with their provenance, as `hqdl why --json` prints them"),
    ("cells_done", "number of these cells that have an answer so far"),
    (
        "columns",
        "columns with their numbers of cells by state, missing cells, and share of cells with a value",
    ),
    ("cost_usd", "cost in USD; in `/v1/explain`, the maximum cost"),
    ("database", "path of the database"),
    ("demand", "number of values that each pass needs"),
    ("error", "error that ended the run, or null"),
    ("expansion", "name of the expansion"),
    (
        "cascades",
        "plan of each column with a `target`: its possible thresholds with cost and agreement",
    ),
    ("last_warning", "latest warning of the run, such as a wait for a limit, or null"),
    ("expansions", "plan of each expansion: columns with their missing cells, requests and tokens"),
    (
        "facts",
        "cells of each key. A `missing` cell has a `reason`: `new_row` (nothing is stored about the row; hqdl does not check whether a source has the key), `new_column`, `changed_column`, `changed_list`, `other_model` or `failed`. If the reason is still `new_row` after `fill`, no source has the key",
    ),
    ("failed_requests", "number of failed requests"),
    ("file", "path of the file of overrides"),
    ("held", "reason why the spec waits, or null"),
    ("in_force", "whether the daemon uses a valid version of the spec"),
    ("input_tokens", "number of input tokens"),
    ("interrupted", "true"),
    ("last_error", "latest error of a request, or null"),
    ("last_run", "number of the latest finished run"),
    ("model", "name of the model"),
    ("name", "name of the spec"),
    ("notes", "notes for the user"),
    ("output_tokens", "number of output tokens"),
    ("overrides", "the overrides, with their keys, columns, values and notes"),
    ("passes", "number of passes"),
    ("path", "path of the spec"),
    ("pid", "process id of the daemon"),
    ("plan", "the SELECTs of the query, and the rules that save requests"),
    ("/v1/specs/{spec} plan", "plan of the missing cells while the spec waits"),
    ("price_notes", "sources and assumptions of the prices"),
    ("problem", "problems of the spec, or the failure of its last run"),
    ("queued", "number of runs that wait for other runs to end"),
    ("report", "report of the finished run, as the event `done` of `hqdl materialize --json`"),
    ("requests", "number of requests; in `/v1/explain`, the maximum number"),
    ("resumes", "time at which the spec stops waiting by itself, or null"),
    ("routes", "route of each call"),
    ("run", "number of the run"),
    ("/v1/specs/{spec} run", "number of the run in progress, or null"),
    ("/v1/facts run", "number of the run that asked for missing cells, or null"),
    ("runs", "the runs, each as in `GET /v1/runs/{run}`"),
    ("seconds", "duration in seconds"),
    ("set", "whether the cell now has an override"),
    ("spec", "name of the spec"),
    ("specs", "the specs, each as in `GET /v1/specs/{spec}`"),
    ("spend", "whether the daemon sends requests without approval"),
    ("sql", "SQL that SQLite would run"),
    ("state", "state of the run: `running`, `complete`, `incomplete`, `failed` or `interrupted`"),
    (
        "/v1/specs/{spec} state",
        "state of the spec: see [The daemon's page](../guides/daemon-page.md#specs)",
    ),
    ("target", "path of the published tables"),
    ("totals", "cells, requests, tokens, cost and time of all expansions together"),
    ("unbounded", "calls whose number of values cannot be known in advance, with the reasons"),
    ("url", "address of the daemon"),
    ("values_asked", "number of values asked about; in `/v1/explain`, the maximum number"),
    ("values_missing", "number of needed values that do not exist: unknown, refused or failed"),
    ("values_reused", "number of values that were known before"),
    ("values_unknown", "number of values that the model does not know"),
    ("version", "version of hqdl"),
    ("warnings", "warnings about the spec"),
    ("watched", "folder of the specs"),
];

/// Describes the body of a response: a table of its fields, or its form.
pub fn describe_response(path: &str, body: &str) -> String {
    let first = body.lines().next().unwrap_or_default();
    match serde_json::from_str::<Json>(body) {
        Ok(Json::Object(object)) => {
            let rows: String = object.keys().map(|name| field_row(path, name)).collect();
            format!(
                "Response: a JSON object.\n\n| field of the response | meaning |\n|---|---|\n{rows}"
            )
        }
        _ if first.starts_with('{') => "Response: JSON lines.\n".to_owned(),
        _ => "Response: plain text.\n".to_owned(),
    }
}

/// Returns the row of a field. Fails if the field has no meaning in the list.
pub fn field_row(path: &str, name: &str) -> String {
    let own = format!("{path} {name}");
    let find = |wanted: &str| FIELDS.iter().find(|(known, _)| *known == wanted);
    let meaning = find(&own).or_else(|| find(name)).unwrap_or_else(|| panic!("no meaning: {own}"));
    format!("| `{name}` | {} |\n", meaning.1)
}
