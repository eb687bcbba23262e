//! Tests of the daemon over HTTP: its answers, and the clients that it rejects.

use serde_json::json;

use hqdl_testkit::daemon::Daemon;
use hqdl_testkit::endpoint::Endpoint;
use hqdl_testkit::project::{COLUMN_NAMES, HERO_COUNT, Project, heroes_project, truthful_endpoint};

fn filled() -> (Endpoint, Project, Daemon) {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    let daemon = Daemon::start(&project, &[]);
    daemon.wait_until_idle("complete");
    (endpoint, project, daemon)
}

/// Starts a daemon that sends no request without approval.
fn waiting() -> (Endpoint, Project, Daemon) {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    let daemon = Daemon::start(&project, &["--no-spend"]);
    daemon.wait_until_idle("waiting");
    (endpoint, project, daemon)
}

#[test]
fn rows_are_json_lines_between_columns_and_meta() {
    let (_endpoint, _project, daemon) = filled();
    let asked = json!({ "spec": "x", "sql": "SELECT name, height, x'0aff' AS b, 1.5 AS r FROM hero
                        WHERE height > :h ORDER BY 2 LIMIT 2", "params": { "h": 180 } });
    let lines = daemon.post("/v1/query", &asked).expect_status(200).json_lines();
    assert_eq!(lines[0], json!({ "columns": ["name", "height", "b", "r"] }));
    assert_eq!(lines[1], json!(["Captain O'Malley", 181, { "blob": "0aff" }, 1.5]));
    assert_eq!(lines.len(), 4);
    assert_eq!(lines[3]["meta"]["requests"], 0);
    let by_position = json!({ "sql": "SELECT ? + ?", "params": [1, 2] });
    assert_eq!(
        daemon.post("/v1/query", &by_position).expect_status(200).json_lines()[1],
        json!([3])
    );
}

#[test]
fn a_query_requests_missing_cells_and_explain_requests_nothing() {
    let (endpoint, _project, daemon) = waiting();
    let sql = "SELECT name FROM hero WHERE height > 180 AND {{LLMMap('What is the eye colour?', hero.name)}} = 'Blue'";
    let explained = daemon.post("/v1/explain", &json!({ "sql": sql })).expect_status(200).json();
    assert_eq!(explained["routes"][0]["column"], "eye_color", "{explained}");
    assert_eq!(endpoint.request_count(), 0);
    let refused = daemon.post("/v1/query", &json!({ "sql": sql })).expect_status(400);
    assert!(refused.error_message().contains("--no-spend"), "{}", refused.body);
    assert_eq!(endpoint.request_count(), 0);
    let approved = json!({ "sql": sql, "budget": 1 });
    let lines = daemon.post("/v1/query", &approved).expect_status(200).json_lines();
    let meta = &lines.last().unwrap()["meta"];
    assert!(meta["values_asked"].as_u64().unwrap() > 0, "{meta}");
    assert_eq!(endpoint.cells_since(0).len() as u64, meta["values_asked"].as_u64().unwrap());
    let metrics = daemon.get("/metrics").expect_status(200).body;
    assert!(metrics.contains("hqdl_model_requests_total{outcome=\"answered\"} "), "{metrics}");
    let again = daemon.post("/v1/query", &json!({ "sql": sql })).expect_status(200).json_lines();
    assert_eq!(again.last().unwrap()["meta"]["requests"], 0);
}

#[test]
fn errors_are_those_of_the_command_line() {
    let (_endpoint, project, daemon) = waiting();
    let wrong = "SELECT nme FROM hero WHERE {{LLMMap('Old?', hero.name)}}";
    let over_http = daemon.post("/v1/query", &json!({ "sql": wrong })).expect_status(400).json();
    daemon.send_signal("TERM");
    daemon.wait_for_exit();
    let ended =
        project.run_hqdl(&["query", "--spec", "specs/x.toml", "--json", wrong]).expect_exit_code(2);
    let problem = &ended.lines[0]["problems"][0];
    let told = &over_http["error"]["problems"][0];
    for part in ["message", "line", "column", "help"] {
        assert_eq!(told[part], problem[part], "{part}");
    }
    assert_eq!(over_http["error"]["exit"], 2);
}

#[test]
fn requests_that_cannot_be_answered_report_the_reason() {
    let (endpoint, _project, daemon) = waiting();
    let post = |path: &str, body: serde_json::Value| daemon.post(path, &body);
    assert!(
        post("/v1/query", json!({ "sql": "SELECT 1", "spec": "y" }))
            .expect_status(404)
            .error_message()
            .contains("no spec `y`")
    );
    assert!(
        post("/v1/query", json!({ "sqll": "SELECT 1" }))
            .expect_status(400)
            .error_message()
            .contains("sqll")
    );
    post("/v1/query", json!({ "sql": "DELETE FROM hero" })).expect_status(400);
    post("/v1/query", json!({ "sql": "SELECT 1", "db": "/etc/passwd" })).expect_status(400);
    post("/v1/query", json!({ "sql": "SELECT ?", "params": [[1]] })).expect_status(400);
    post("/v1/query", json!({ "sql": "SELECT 1", "timeout": -1 })).expect_status(400);
    post("/v1/query", json!({ "sql": "x".repeat(2 << 20) })).expect_status(413);
    for (path, mut body) in [
        ("/v1/runs", json!({})),
        ("/v1/plan", json!({})),
        ("/v1/query", json!({ "sql": "SELECT 1" })),
        ("/v1/explain", json!({ "sql": "SELECT 1" })),
        ("/v1/facts", json!({ "keys": [["Zed", "Zed Zedsson"]] })),
    ] {
        body["budget"] = json!(-1);
        let refused = post(path, body).expect_status(400);
        assert!(refused.error_message().contains("-1 is not a valid budget"), "{}", refused.body);
    }
    let unknown = post("/v1/runs", json!({ "columns": ["nothing"] })).expect_status(400).body;
    assert!(unknown.contains("no expansion has a column `nothing`"), "{unknown}");
    post("/v1/facts", json!({ "keys": [["only one"]] })).expect_status(400);
    daemon.get("/v1/runs/999").expect_status(404);
    daemon.get("/v1/why?table=llm").expect_status(400);
    daemon.get("/v1/nothing").expect_status(404);
    daemon.get("/v1/query").expect_status(405);
    daemon.delete("/v1/runs/999", &json!({})).expect_status(404);
    let text = format!(
        "POST /v1/query HTTP/1.0\r\nHost: {}\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\n{{}}",
        daemon.address
    );
    daemon.send_raw(&text).expect_status(415);
    let slow = json!({ "sql": "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n", "timeout": 0.2 });
    assert!(
        post("/v1/query", slow)
            .expect_status(400)
            .error_message()
            .contains("exceeded its time limit")
    );
    let many = json!({ "sql": "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 100) SELECT i FROM n", "max_rows": 10 });
    assert!(
        post("/v1/query", many).expect_status(400).error_message().contains("more than 10 rows")
    );
    assert_eq!(endpoint.request_count(), 0);
}

#[test]
fn an_error_after_some_rows_ends_the_lines() {
    let (_endpoint, _project, daemon) = filled();
    let many = json!({ "sql": "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 100000) SELECT i, hex(zeroblob(20)) FROM n", "max_rows": 50_000 });
    let lines = daemon.post("/v1/query", &many).expect_status(200).json_lines();
    assert!(lines.last().unwrap()["error"]["message"].as_str().unwrap().contains("50000"));
    assert_eq!(lines.len(), 50_002);
}

#[test]
fn facts_are_looked_up_and_filled_in_batches() {
    let (endpoint, project, daemon) = waiting();
    let keys =
        json!([["Zed", "Zed Zedsson"], { "name": "Echo", "full_name": null }, ["Nobody", "x"]]);
    let asked = json!({ "keys": keys, "columns": ["born", "motto"] });
    let facts = daemon.post("/v1/facts", &asked).expect_status(200).json();
    let missing = json!({ "state": "missing", "value": null, "reason": "new_row" });
    assert_eq!(facts["facts"][0]["cells"]["born"], missing);
    assert_eq!(endpoint.request_count(), 0);
    let filled = json!({ "keys": keys, "columns": ["born", "motto"], "fill": true });
    let facts = daemon.post("/v1/facts", &filled).expect_status(200).json();
    assert_eq!(facts["facts"][1]["cells"]["motto"]["state"], "ok", "{facts}");
    assert_eq!(facts["facts"][2]["cells"]["motto"], missing);
    assert_eq!(endpoint.cells_since(0).len(), 4);
    daemon.post("/v1/facts", &filled).expect_status(200);
    assert_eq!(endpoint.cells_since(0).len(), 4);
    let asked = json!({ "keys": keys, "columns": ["powers"] });
    let facts = daemon.post("/v1/facts", &asked).expect_status(200).json();
    assert_eq!(facts["facts"][0]["cells"]["powers"]["reason"], "new_column");
    assert_eq!(facts["facts"][2]["cells"]["powers"]["reason"], "new_row");
    assert_eq!(project.query_rows("SELECT count(*) FROM llm"), [[json!(2)]]);
}

#[test]
fn why_reports_where_a_cell_came_from() {
    let (_endpoint, _project, daemon) = filled();
    let why = daemon
        .get("/v1/why?table=llm&key=Zed&key=Zed%20Zedsson&column=motto")
        .expect_status(200)
        .json();
    assert_eq!(why["cells"][0]["state"], "ok");
    assert_eq!(why["cells"][0]["model"], "test-model");
    daemon.get("/v1/why?table=llm&key=Nobody&column=motto").expect_status(400);
}

#[test]
fn a_plan_has_a_price_and_sends_no_request() {
    let (endpoint, _project, daemon) = waiting();
    let plan = daemon.post("/v1/plan", &json!({ "columns": ["born"] })).expect_status(200).json();
    assert_eq!(plan["totals"]["cells"], HERO_COUNT);
    assert!(plan["totals"]["cost_usd"]["likely"].as_f64().unwrap() > 0.0);
    assert_eq!(endpoint.request_count(), 0);
}

#[test]
fn runs_are_reported_as_they_happen() {
    let (_endpoint, _project, daemon) = waiting();
    let ended =
        |event: &str, data: &serde_json::Value| event == "run" && data["state"] == "complete";
    let events = daemon.events_until(ended, || {
        daemon.post("/v1/runs", &json!({})).expect_status(202);
    });
    let done = events.last().unwrap().1["cells_done"].as_u64().unwrap();
    assert_eq!(done, (HERO_COUNT * COLUMN_NAMES.len()) as u64);
    assert!(events.iter().any(|(_, data)| data["state"] == "running"), "{events:?}");
}

#[test]
fn the_cost_of_a_run_reports_its_assumed_part() {
    let endpoint = truthful_endpoint();
    endpoint.set_usage_fn(|_, input, output| {
        json!({ "prompt_tokens": input, "completion_tokens": output,
                "prompt_tokens_details": { "cache_write_tokens": input } })
    });
    let project = heroes_project(&endpoint, "csv");
    let daemon = Daemon::start(&project, &[]);
    daemon.wait_until_idle("complete");
    let notes = json!(["cache writes assumed at 1.25 × input"]);
    let runs = daemon.get("/v1/runs").expect_status(200).json();
    assert_eq!(runs["runs"][0]["price_notes"], notes, "{runs}");
    assert_eq!(runs["runs"][0]["report"]["price_notes"], notes, "{runs}");
    let (_endpoint, _project, daemon) = filled();
    let runs = daemon.get("/v1/runs").expect_status(200).json();
    assert_eq!(runs["runs"][0]["price_notes"], json!([]), "{runs}");
}

#[test]
fn requests_from_other_sites_are_rejected() {
    let (endpoint, _project, daemon) = waiting();
    let ask = |head: &str| daemon.send_raw(&format!("{head}\r\n\r\n"));
    let own = daemon.address.clone();
    let port = own.rsplit(':').next().unwrap();
    // Another site's host name that points to this machine.
    ask(&format!("GET /v1/specs HTTP/1.0\r\nHost: evil.example:{port}")).expect_status(421);
    ask("GET /v1/specs HTTP/1.0").expect_status(421);
    ask(&format!("GET /v1/specs HTTP/1.0\r\nHost: 192.168.1.7:{port}")).expect_status(421);
    ask(&format!("GET /v1/specs HTTP/1.0\r\nHost: localhost:{port}")).expect_status(200);
    // A request from another site's page.
    let run = |more: &str| {
        ask(&format!(
            "POST /v1/runs HTTP/1.0\r\nHost: {own}\r\nContent-Type: application/json\r\n{more}\r\nContent-Length: 2\r\n\r\n{{}}"
        ))
    };
    run("Origin: http://evil.example").expect_status(403);
    run("Origin: null").expect_status(403);
    run("Sec-Fetch-Site: cross-site").expect_status(403);
    ask(&format!(
        "POST /v1/runs HTTP/1.0\r\nHost: {own}\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 2\r\n\r\n{{}}"
    ))
    .expect_status(415);
    assert_eq!(endpoint.request_count(), 0);
    let head = daemon.get("/v1/specs").expect_status(200).headers.to_lowercase();
    assert!(head.contains("content-security-policy: default-src 'none'"), "{head}");
    assert!(head.contains("x-content-type-options: nosniff"), "{head}");
    assert!(!head.contains("access-control-allow"), "{head}");
}

#[test]
fn a_configured_token_is_required() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    let refused = project.run_hqdl(&["daemon", "--listen", "0.0.0.0:0"]).expect_exit_code(2);
    assert!(refused.stderr.contains("HQDL_TOKEN"), "{}", refused.stderr);
    let mut short = project.hqdl_command(&["daemon", "--listen", "127.0.0.1:0"]);
    assert_eq!(short.env("HQDL_TOKEN", "short").output().unwrap().status.code(), Some(2));
    let token = "0123456789abcdef0123";
    let mut daemon =
        Daemon::start_with(&project, &["--listen", "127.0.0.1:0"], &[("HQDL_TOKEN", token)]);
    daemon.wait_until_idle("complete");
    // A user who can read the cache needs no token.
    project.run_hqdl(&["status"]).expect_exit_code(0);
    daemon.token = None;
    let refused = daemon.get("/v1/specs").expect_status(401);
    assert!(
        refused.headers.to_lowercase().contains("www-authenticate: basic"),
        "{}",
        refused.headers
    );
    daemon.get("/").expect_status(401);
    for public in ["/healthz", "/page.css", "/page.js"] {
        daemon.get(public).expect_status(200);
    }
    daemon.token = Some(format!("{token}0"));
    daemon.get("/v1/specs").expect_status(401);
    // A browser sends the token as the password of any user: base64 of "me:" and the token.
    let head = format!(
        "GET /v1/specs HTTP/1.0\r\nHost: {}\r\nAuthorization: Basic bWU6MDEyMzQ1Njc4OWFiY2RlZjAxMjM=\r\n\r\n",
        daemon.address
    );
    daemon.send_raw(&head).expect_status(200);
    assert!(project.files_with(token).is_empty());
}

#[test]
fn the_document_names_exactly_the_existing_routes() {
    let (_endpoint, _project, daemon) = waiting();
    let document = daemon.get("/v1/openapi.json").expect_status(200).json();
    let source = std::fs::read_to_string(
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/daemon/http/mod.rs"),
    )
    .unwrap();
    let mut routes = std::collections::BTreeSet::new();
    // rustfmt breaks long lines.
    let source: String = source.split_whitespace().collect();
    for rest in source.split(".route(\"").skip(1) {
        let (path, methods) = rest.split_once("\",").unwrap();
        for method in ["get(", "post(", "delete("] {
            if methods.contains(method) && path != "/v1/openapi.json" {
                routes.insert((path.to_owned(), method.trim_end_matches('(').to_owned()));
            }
        }
    }
    let told: std::collections::BTreeSet<(String, String)> = document["paths"]
        .as_object()
        .unwrap()
        .iter()
        .flat_map(|(path, of)| {
            of.as_object().unwrap().keys().map(move |m| (path.clone(), m.clone()))
        })
        .collect();
    assert!(routes.len() > 15);
    assert_eq!(routes, told);
    assert!(document["paths"]["/v1/query"]["post"]["requestBody"].to_string().contains("max_rows"));
}
