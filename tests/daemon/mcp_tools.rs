//! Tests of the tools that write: filling tables, overrides and audits. Also suggestions, resources
//! and prompts.

use std::time::Duration;

use hqdl_testkit::daemon::wait_until;
use hqdl_testkit::endpoint::{Fault, Frequency};
use serde_json::{Value as Json, json};

use crate::mcp::{Client, LIVE, approve, endpoint, project_with_expansion};

fn accepting() -> (Json, Json) {
    (json!({ "elicitation": {} }), json!({ "action": "accept", "content": { "approve": true } }))
}

#[test]
fn an_approved_run_fills_the_tables_once() {
    let endpoint = endpoint(LIVE);
    let project = project_with_expansion(&endpoint);
    let mut client = Client::start(&project, &["--allow-usd", "0.5"]);
    let plan = client.call("materialize", json!({}));
    let id = &plan["plan_id"];
    assert_eq!((&plan["status"], &plan["needs_approval"]), (&json!("planned"), &json!(true)));
    assert!(plan["max_cost_usd"].as_f64().unwrap() > 0.0, "{plan}");
    // A run writes tables, so --allow-usd does not replace an approval.
    let run = json!({ "plan_id": id });
    assert_eq!(client.call("materialize", run.clone())["status"], "approval_needed");
    assert_eq!(client.call("query", run.clone())["status"], "failed");
    assert_eq!(endpoint.request_count(), 0);
    let shown = project.run_hqdl(&["approve", id.as_str().unwrap()]).expect_exit_code(6);
    assert!(shown.stderr.contains("fills missing cells"), "{}", shown.stderr);
    approve(&project, id);
    endpoint.add_fault(Fault::too_many("retry-after", "7"), Frequency::Once);
    let other = json!({ "plan_id": id, "columns": ["can_swim"] });
    assert_eq!(client.call("materialize", other)["status"], "failed");
    let response = client.request(
        "tools/call",
        json!({ "name": "materialize", "arguments": run, "_meta": { "progressToken": 7 } }),
    );
    let ran = &response["result"]["structuredContent"];
    assert_eq!((&ran["status"], &ran["published"]), (&json!("complete"), &json!(true)), "{ran}");
    assert_eq!(ran["report"]["cells"]["ok"], 3, "{ran}");
    assert!(
        ran["report"]["cost_usd"].as_f64().unwrap() <= plan["max_cost_usd"].as_f64().unwrap(),
        "{ran}"
    );
    let is_reason = |sent: &Json| sent["message"].as_str().unwrap().contains("(Retry-After)");
    assert!(client.progress.iter().any(is_reason), "{:?}", client.progress);
    let last = client.progress.last().unwrap();
    assert_eq!((&last["progressToken"], &last["progress"]), (&json!(7), &json!(3.0)), "{last}");
    let described = client.call("describe", json!({}));
    let expansion = &described["expansions"][0];
    assert_eq!((&expansion["rows"], &expansion["columns"][0]["values"]), (&json!(3), &json!(3)));
    let requests = endpoint.request_count();
    project.execute_sql("INSERT INTO superhero VALUES (4, 'Robin', '', 170)");
    assert_eq!(client.call("materialize", run)["status"], "approval_needed");
    assert_eq!(endpoint.request_count(), requests);
    client.close();
}

#[test]
fn a_run_is_bound_to_its_price_and_the_limits() {
    let endpoint = endpoint(LIVE);
    let project = project_with_expansion(&endpoint);
    let mut client = Client::start(&project, &[]);
    let id = client.call("materialize", json!({ "limit": 1 }))["plan_id"].clone();
    let all = client.call("materialize", json!({}))["plan_id"].clone();
    assert_ne!(id, all);
    approve(&project, &all);
    assert_eq!(client.call("materialize", json!({ "plan_id": id }))["status"], "approval_needed");
    for n in 10..200 {
        project.execute_sql(&format!("INSERT INTO superhero VALUES ({n}, 'hero {n}', '', 100)"));
    }
    let dearer = client.call("materialize", json!({ "plan_id": all }));
    assert!(dearer["reason"].as_str().unwrap().contains("changed"), "{dearer}");
    client.close();
    // Not even a client that always accepts exceeds --max-usd.
    let (capabilities, answer) = accepting();
    let mut client = Client::start_with(&project, &["--max-usd", "0.000001"], capabilities, answer);
    let id = client.call("materialize", json!({}))["plan_id"].clone();
    let refused = client.call("materialize", json!({ "plan_id": id }));
    assert_eq!(refused["status"], "limit_reached", "{refused}");
    assert_eq!(endpoint.request_count(), 0);
    for arguments in [
        json!({ "columns": ["nothing"] }),
        json!({ "plan_id": "000000000000" }),
        json!({ "limit": -1 }),
        json!({ "approved": true }),
    ] {
        assert_eq!(
            client.call("materialize", arguments.clone())["status"],
            "failed",
            "{arguments}"
        );
    }
    client.close();
}

#[test]
fn a_cancelled_run_keeps_its_answers() {
    let endpoint = endpoint(LIVE);
    let project = project_with_expansion(&endpoint);
    for n in 10..60 {
        project.execute_sql(&format!("INSERT INTO superhero VALUES ({n}, 'hero {n}', '', 100)"));
    }
    let path = project.path("specs/x.toml");
    let spec = std::fs::read_to_string(&path).unwrap();
    let slow = "[limits]\nconcurrency = 1\n\n[[expansion]]\nrows_per_request = 1";
    std::fs::write(&path, spec.replace("[[expansion]]", slow)).unwrap();
    endpoint.add_fault(Fault::Latency(Duration::from_millis(100)), Frequency::Always);
    let (capabilities, answer) = accepting();
    let mut client = Client::start_with(&project, &[], capabilities, answer);
    let id = client.call("materialize", json!({}))["plan_id"].clone();
    approve(&project, &id);
    let call = json!({ "jsonrpc": "2.0", "id": 900, "method": "tools/call",
        "params": { "name": "materialize", "arguments": { "plan_id": id } } });
    client.send(&call.to_string());
    wait_until("asked", || endpoint.request_count() > 0);
    let cancel = json!({ "jsonrpc": "2.0", "method": "notifications/cancelled",
        "params": { "requestId": 900 } });
    client.send(&cancel.to_string());
    client.call("describe", json!({}));
    client.close();
    let asked = endpoint.cells_since(0).len();
    endpoint.clear_faults();
    // The next run asks only for the other cells.
    project.run_hqdl(&["materialize", "specs/x.toml"]).expect_exit_code(0);
    assert_eq!(endpoint.cells_since(0).len(), 53, "{asked} cells were asked before");
    assert!(asked < 53);
}

#[test]
fn an_override_takes_effect_after_approval_outside_the_assistant() {
    let endpoint = endpoint(LIVE);
    let project = project_with_expansion(&endpoint);
    let (capabilities, answer) = accepting();
    let mut client = Client::start_with(&project, &["--allow-usd", "1"], capabilities, answer);
    let file = project.path("specs/x.overrides.csv");
    let cell = json!({ "table": "llm", "key": ["Hulk"], "column": "can_swim", "value": "no",
        "note": "comic 7" });
    let refused = client.call("override", cell.clone());
    assert_eq!(refused["status"], "approval_needed", "{refused}");
    let id = &refused["plan_id"];
    assert_eq!(client.call("override", json!({ "plan_id": id }))["status"], "approval_needed");
    assert_eq!((client.asked.len(), file.exists()), (0, false));
    let shown = project.run_hqdl(&["approve", id.as_str().unwrap()]).expect_exit_code(6);
    for part in ["llm.can_swim of Hulk", "value      no", "comic 7"] {
        assert!(shown.stderr.contains(part), "{part}\n{}", shown.stderr);
    }
    approve(&project, id);
    // The approval is not one of another value.
    let mut other = cell;
    other["value"] = "yes".into();
    assert_eq!(client.call("override", other)["status"], "approval_needed");
    assert_eq!(client.call("materialize", json!({ "plan_id": id }))["status"], "failed");
    assert_eq!(client.call("override", json!({ "plan_id": id }))["status"], "complete");
    let lines = std::fs::read_to_string(&file).unwrap();
    assert!(lines.contains("assistant test client 1: comic 7"), "{lines}");
    assert_eq!(client.call("override", json!({ "plan_id": id }))["status"], "approval_needed");
    for arguments in [
        json!({ "table": "nothing", "key": ["Hulk"], "column": "can_swim", "value": "no" }),
        json!({ "table": "llm", "key": ["Nobody"], "column": "can_swim", "value": "no" }),
        json!({ "table": "llm", "key": [], "column": "can_swim", "value": "no" }),
        json!({}),
    ] {
        assert_eq!(client.call("override", arguments.clone())["status"], "failed", "{arguments}");
    }
    let missing = client.call("override", json!({ "table": "llm" }))["message"].to_string();
    for part in ["`key`, `column` and `value` are missing", "the key of `llm` is: "] {
        assert!(missing.contains(part), "{missing}");
    }
    client.close();
}

#[test]
fn an_answer_in_an_audit_is_agreement() {
    let endpoint = endpoint(LIVE);
    let project = project_with_expansion(&endpoint);
    project.run_hqdl(&["materialize", "specs/x.toml"]).expect_exit_code(0);
    let mut client = Client::start(&project, &[]);
    assert_eq!(client.call("audit_next", json!({}))["status"], "failed");
    project
        .run_hqdl(&["audit", "specs/x.toml", "--sample", "3", "--seed", "1"])
        .expect_exit_code(0);
    let mut cell = client.call("audit_next", json!({}));
    assert_eq!((&cell["row"], &cell["left"]), (&json!(1), &json!(3)), "{cell}");
    assert!(cell["answer"].is_null() && cell["key"]["superhero_name"].is_string());
    let mut answers = 0;
    while cell["status"] == "open" {
        answers += 1;
        cell = client.call(
            "audit_answer",
            json!({ "audit": cell["audit"], "row": cell["row"], "column": cell["column"],
                "value": "yes", "note": "page 1" }),
        );
    }
    assert_eq!((answers, &cell["status"]), (3, &json!("complete")), "{cell}");
    let report = project.run_hqdl(&["audit", "specs/x.toml", "--report", "--json"]);
    let report: Json = serde_json::from_str(report.expect_exit_code(0).stdout.trim()).unwrap();
    let rows = |n: usize| (&report["columns"][n]["evidence"], &report["columns"][n]["rows"]);
    assert_eq!(rows(0), (&json!("truth"), &json!(0)), "{report}");
    assert_eq!(rows(1), (&json!("model"), &json!(3)), "{report}");
    let applied = project.run_hqdl(&["audit", "specs/x.toml", "--apply"]).expect_exit_code(0);
    assert!(!project.path("specs/x.overrides.csv").exists(), "{}", applied.stderr);
    // A person's truth stays.
    let sheet = project.path("specs/x.audit.csv");
    let text = std::fs::read_to_string(&sheet).unwrap();
    std::fs::write(&sheet, text.replace("model:assistant test client 1", "book")).unwrap();
    for arguments in [
        json!({ "audit": cell["audit"], "row": 1, "column": "can_swim", "value": "no" }),
        json!({ "audit": cell["audit"], "row": 9, "column": "can_swim", "value": "no" }),
        json!({ "audit": "other", "row": 1, "column": "can_swim", "value": "no" }),
        json!({ "audit": cell["audit"], "row": 1, "column": "nothing", "value": "no" }),
    ] {
        let refused = client.call("audit_answer", arguments.clone());
        assert_eq!(refused["status"], "failed", "{arguments}");
    }
    // With the truth, an aggregate has an interval.
    let sql = "SELECT count(*) AS n FROM llm WHERE can_swim = 'yes'";
    let rows = client.call("query", json!({ "sql": sql, "interval": 95 }));
    assert_eq!(rows["columns"], json!(["n", "n_low", "n_high", "n_estimate"]), "{rows}");
    // The plan of the query has the same intervals, and its approval shows them.
    let plan = client.call("plan", json!({ "sql": sql, "interval": 95 }));
    assert_eq!((&plan["interval"], &plan["max_cost_usd"]), (&json!(95.0), &json!(0.0)), "{plan}");
    assert_ne!(client.call("plan", json!({ "sql": sql }))["plan_id"], plan["plan_id"]);
    let id = plan["plan_id"].as_str().unwrap();
    let shown = project.run_hqdl(&["approve", id]).expect_exit_code(6);
    assert!(shown.stderr.contains("interval   95 %"), "{}", shown.stderr);
    assert_eq!(client.call("query", json!({ "plan_id": id }))["rows"], rows["rows"]);
    for (tool, arguments) in [
        ("query", json!({ "sql": sql, "interval": 5 })),
        ("plan", json!({ "sql": sql, "interval": 5 })),
        ("plan", json!({ "sql": "SELECT max(rowid) FROM superhero", "interval": 95 })),
        ("plan", json!({ "sql": LIVE, "interval": 95 })),
        ("plan", json!({ "question": "How many swim?", "interval": 95 })),
        ("query", json!({ "plan_id": id, "interval": 90 })),
        ("query", json!({ "interval": 95 })),
    ] {
        assert_eq!(client.call(tool, arguments.clone())["status"], "failed", "{tool} {arguments}");
    }
    client.close();
}

#[test]
fn suggestions_are_those_of_the_database() {
    let endpoint = endpoint(LIVE);
    let project = project_with_expansion(&endpoint);
    let foreign = "SELECT {{LLMMap('Is it secret?', n)}} FROM (SELECT 'other' AS n)";
    project.run_hqdl(&["query", "--spec", "specs/x.toml", foreign]);
    let mut client = Client::start(&project, &["--allow-usd", "1"]);
    assert_eq!(client.call("query", json!({ "sql": LIVE }))["status"], "complete");
    let suggested = client.call("suggest", json!({})).to_string();
    assert!(suggested.contains("Can it fly?") && !suggested.contains("secret"), "{suggested}");
    client.close();
}

#[test]
fn resources_and_prompts_are_texts() {
    let endpoint = endpoint(LIVE);
    let project = project_with_expansion(&endpoint);
    let path = project.path("specs/x.toml");
    let spec = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, format!("# http://ada:secret@example.com/v1?key=secret\n{spec}"))
        .unwrap();
    let mut client = Client::start(&project, &[]);
    let listed = client.request("resources/list", json!({}))["result"]["resources"].clone();
    let mut texts = Vec::new();
    for resource in listed.as_array().unwrap() {
        let read = client.request("resources/read", json!({ "uri": resource["uri"] }));
        texts.push(read["result"]["contents"][0]["text"].as_str().unwrap().to_owned());
    }
    assert_eq!(texts.len(), 3);
    for (text, part) in texts.iter().zip(["superhero_name", "[[expansion]]", "LLMMap"]) {
        assert!(text.contains(part), "{part}\n{text}");
    }
    assert!(!texts[1].contains("secret"), "{}", texts[1]);
    for uri in ["hqdl://nothing", "file:///etc/passwd", ""] {
        let read = client.request("resources/read", json!({ "uri": uri }));
        assert!(read["error"]["message"].is_string(), "{read}");
    }
    let listed = client.request("prompts/list", json!({}))["result"]["prompts"].clone();
    for prompt in listed.as_array().unwrap() {
        let argument = prompt["arguments"][0]["name"].as_str().unwrap();
        let got = client.request(
            "prompts/get",
            json!({ "name": prompt["name"], "arguments": { argument: "0.5" } }),
        );
        let text = got["result"]["messages"][0]["content"]["text"].as_str().unwrap();
        assert!(text.contains("0.5"), "{text}");
        let missing = client.request("prompts/get", json!({ "name": prompt["name"] }));
        assert_eq!(missing["error"]["code"], -32602, "{missing}");
    }
    assert_eq!(listed.as_array().unwrap().len(), 3);
    client.close();
}
