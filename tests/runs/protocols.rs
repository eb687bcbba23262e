//! Tests of the providers' protocols: the same spec over each of them.

use hqdl_testkit::endpoint::batches::{BatchOutcome, SilencePoint};
use hqdl_testkit::endpoint::{Endpoint, Fault, Frequency, Request, StreamFault};
use hqdl_testkit::project::{
    CommandResult, EXPANSION, EXPANSION_COLUMNS, HEROES, MODEL, Project, SECRET, check_cells,
    check_complete, truthful_endpoint,
};
use serde_json::{Value as Json, json};

/// Each provider, with the path of a request and the header of the key.
const PROVIDERS: [(&str, &str, &str, &str); 3] = [
    ("openai", "/v1/chat/completions", "authorization", "Bearer "),
    ("openai-responses", "/v1/responses", "authorization", "Bearer "),
    ("anthropic", "/v1/messages", "x-api-key", ""),
];

/// Creates the heroes' project for a provider, with additional lines in `[model]`.
fn heroes(endpoint: &Endpoint, provider: &str, model_lines: &str) -> Project {
    let name = format!("provider = \"{provider}\"\nname = \"test-model\"\n{model_lines}");
    let model = MODEL
        .replace("name = \"test-model\"", &name)
        .replace("concurrency = 4", "concurrency = 4\nbatch_poll_seconds = 0.03");
    let expansion = EXPANSION.replace("format = \"csv\"", "format = \"json\"");
    Project::new(endpoint, HEROES, &[&model, &expansion, EXPANSION_COLUMNS].concat())
}

fn run(project: &Project) -> CommandResult {
    project.run_materialize(&[])
}

fn header<'r>(request: &'r Request, name: &str) -> Option<&'r str> {
    request.headers.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
}

/// Asserts that the tokens in the journal are those that the endpoint bills.
fn check_spending(endpoint: &Endpoint, project: &Project, provider: &str) {
    let sql = "SELECT sum(input_tokens), sum(output_tokens) FROM completion";
    let (input, output) = endpoint.billed_tokens();
    assert_eq!(project.query_facts(sql)[0], [json!(input), json!(output)], "{provider}");
}

#[test]
fn each_protocol_fills_a_table() {
    for (provider, path, key_header, key_prefix) in PROVIDERS {
        let endpoint = truthful_endpoint();
        let project = heroes(&endpoint, provider, "");
        let ended = run(&project).expect_exit_code(0);
        check_complete(&project);
        check_spending(&endpoint, &project, provider);
        assert_eq!(ended.done_event()["requests"], 3, "{provider}");
        for request in endpoint.received_requests() {
            assert_eq!(request.uri, path);
            let key = format!("{key_prefix}{SECRET}");
            assert_eq!(header(&request, key_header), Some(key.as_str()), "{provider}");
            let version = (provider == "anthropic").then_some("2023-06-01");
            assert_eq!(header(&request, "anthropic-version"), version);
            let schema = ["/response_format/json_schema", "/text/format", "/output_config/format"];
            let schemas = schema.iter().filter_map(|path| request.body.pointer(path));
            let schemas: Vec<&Json> = schemas.map(|format| &format["schema"]["type"]).collect();
            assert_eq!(schemas, ["object"], "{provider}");
            assert_eq!(request.body["stream"], true);
        }
    }
}

#[test]
fn a_base_url_with_the_path_of_a_request_selects_the_protocol() {
    for (_, path, ..) in PROVIDERS {
        let endpoint = truthful_endpoint();
        let project = heroes(&endpoint, "openai", "");
        let url = endpoint.base_url().replace("/v1", path);
        project.run_materialize(&["--base-url", &url]).expect_exit_code(0);
        check_complete(&project);
        assert!(endpoint.received_requests().iter().all(|r| r.uri == path), "{url}");
    }
}

#[test]
fn batches_of_each_protocol_cost_half() {
    for (provider, path, ..) in PROVIDERS {
        let endpoint = truthful_endpoint();
        let project = heroes(&endpoint, provider, "");
        let ended = project.run_materialize(&["--batch"]).expect_exit_code(0);
        check_complete(&project);
        check_spending(&endpoint, &project, provider);
        let (input, output) = endpoint.billed_tokens();
        let half = (input as f64 * 0.5 + output as f64) / 1e6;
        let cost = ended.done_event()["cost_usd"].as_f64().unwrap();
        assert!((cost - half).abs() < 1e-9, "{provider}: {cost} {half}");
        let lines = &endpoint.created_lines()[0];
        assert_eq!(lines.len(), 3);
        for line in lines {
            if provider == "anthropic" {
                let is_valid = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
                let id = line["custom_id"].as_str().unwrap();
                assert!(id.chars().all(is_valid) && id.len() <= 64, "{id}");
                assert_eq!(line["params"].get("stream"), None);
            } else {
                assert_eq!(line["url"], path);
            }
        }
    }
}

#[test]
fn a_batch_that_ends_in_part_is_continued() {
    for (provider, ..) in PROVIDERS {
        for outcome in [BatchOutcome::Expired(2), BatchOutcome::Cancelled(2)] {
            let endpoint = truthful_endpoint();
            endpoint.set_next_outcome(outcome.clone());
            let project = heroes(&endpoint, provider, "");
            project.run_materialize(&["--batch"]);
            project.run_materialize(&["--batch"]).expect_exit_code(0);
            check_complete(&project);
            check_spending(&endpoint, &project, provider);
            let sizes: Vec<usize> = endpoint.created_lines().iter().map(Vec::len).collect();
            assert_eq!(sizes, [3, 1], "{provider}: {outcome:?}");
        }
    }
}

/// Runs until the endpoint stops responding at some point, and kills the run there.
fn kill_at(endpoint: &Endpoint, project: &Project, point: SilencePoint) {
    endpoint.fall_silent_at(point);
    let running = project.start_hqdl(&["materialize", "specs/x.toml", "--json", "--batch"]);
    endpoint.wait_for_silence();
    running.send_signal("KILL");
    running.wait_for_exit();
}

#[test]
fn a_killed_batch_is_found_again_without_metadata() {
    for point in [
        SilencePoint::BeforeCreate,
        SilencePoint::AfterCreate,
        SilencePoint::Poll,
        SilencePoint::Download,
    ] {
        let endpoint = truthful_endpoint();
        let project = heroes(&endpoint, "anthropic", "");
        kill_at(&endpoint, &project, point);
        project.run_materialize(&["--batch"]).expect_exit_code(0);
        check_complete(&project);
        check_spending(&endpoint, &project, "anthropic");
        assert_eq!(endpoint.created_lines().len(), 1, "{point:?}");
    }
    // The answer to the creation of a batch is lost.
    let endpoint = truthful_endpoint();
    endpoint.lie_about_creation(500);
    let project = heroes(&endpoint, "anthropic", "");
    project.run_materialize(&["--batch"]).expect_exit_code(0);
    check_complete(&project);
    assert_eq!(endpoint.created_lines().len(), 1);
}

#[test]
fn faults_of_each_protocol_lose_no_cell() {
    let faults = [
        Fault::overloaded(),
        Fault::too_many("retry-after", "0"),
        Fault::Truncated,
        Fault::ContextLength(2),
        Fault::DroppedMidBody,
        Fault::SlowDrip,
        Fault::Fence,
        Fault::Stream(StreamFault::CutMidEvent),
        Fault::Stream(StreamFault::NotStreamed),
    ];
    for (provider, ..) in PROVIDERS {
        for fault in &faults {
            let endpoint = truthful_endpoint();
            let frequency = match fault {
                Fault::ContextLength(_) => Frequency::Always,
                _ => Frequency::Once,
            };
            endpoint.add_fault(fault.clone(), frequency);
            let project = heroes(&endpoint, provider, "");
            let ended = run(&project);
            assert_eq!(ended.code, 0, "{provider}, {fault:?}: {}", ended.stderr);
            check_complete(&project);
        }
    }
}

#[test]
fn refusals_of_each_protocol_are_stored_as_such() {
    for (provider, ..) in PROVIDERS {
        for fault in [Fault::ContentFilter, Fault::Refusal] {
            let endpoint = truthful_endpoint();
            endpoint.add_fault_where(fault.clone(), Frequency::Always, |q| {
                q.rows.iter().any(|row| row.key[0] == "Zed")
            });
            let project = heroes(&endpoint, provider, "");
            run(&project).expect_exit_code(1);
            let states = check_cells(&project);
            assert_eq!(states.get("refused"), Some(&4), "{provider}, {fault:?}: {states:?}");
        }
    }
}

#[test]
fn reasoning_is_never_read_as_an_answer() {
    for (provider, parameters) in [
        ("anthropic", "parameters = { thinking = { type = \"adaptive\" } }"),
        (
            "openai-responses",
            "parameters = { reasoning = { effort = \"low\", summary = \"auto\" } }",
        ),
    ] {
        for batch in [false, true] {
            let endpoint = truthful_endpoint();
            let project = heroes(&endpoint, provider, parameters);
            let flags: &[&str] = if batch { &["--batch"] } else { &[] };
            project.run_materialize(flags).expect_exit_code(0);
            check_complete(&project);
        }
    }
}

#[test]
fn rejected_features_of_each_protocol_are_left_out() {
    for (provider, rejected, warning) in [
        ("anthropic", &["output_config"][..], "rejects `output_config`; hqdl retries with a tool"),
        (
            "anthropic",
            &["output_config", "tools"],
            "rejects `tool_choice`; hqdl retries without it",
        ),
        ("anthropic", &["temperature"], "rejects this `temperature`"),
        ("openai-responses", &["temperature"], "rejects this `temperature`"),
        ("openai-responses", &["stream"], "the endpoint cannot stream"),
    ] {
        let endpoint = truthful_endpoint();
        endpoint.add_fault(Fault::RejectsParameters(rejected), Frequency::Always);
        let project = heroes(&endpoint, provider, "temperature = 0.0");
        let ended = run(&project).expect_exit_code(0);
        assert!(ended.stdout.contains(warning), "{provider}: {}", ended.stdout);
        check_complete(&project);
    }
}

#[test]
fn reported_cache_tokens_of_anthropic_are_priced() {
    let endpoint = truthful_endpoint();
    endpoint.set_usage_fn(|_, input, output| {
        json!({ "input_tokens": input - 100, "cache_read_input_tokens": 60,
                "cache_creation_input_tokens": 40, "output_tokens": output })
    });
    let project = heroes(&endpoint, "anthropic", "");
    let text = project.spec_text().replace(
        "price = { input = 1.0, output = 2.0 }",
        "price = { input = 1.0, output = 2.0, cached_input = 0.1, cache_write = 1.25 }",
    );
    project.write_spec(&text);
    let ended = run(&project).expect_exit_code(0);
    let (input, output) = endpoint.billed_tokens();
    let requests = endpoint.request_count() as f64;
    let cost =
        (input as f64 - requests * 100.0 + requests * (6.0 + 50.0) + output as f64 * 2.0) / 1e6;
    let counted = ended.done_event()["cost_usd"].as_f64().unwrap();
    assert!((cost - counted).abs() < 1e-9, "{cost} {counted}");
    for request in endpoint.received_requests() {
        assert_eq!(request.body["system"][0]["cache_control"]["type"], "ephemeral");
    }
}

#[test]
fn a_budget_holds_for_each_protocol() {
    for (provider, ..) in PROVIDERS {
        for flags in [&["--budget", "0.002"][..], &["--budget", "0.002", "--batch"]] {
            let endpoint = truthful_endpoint();
            let project = heroes(&endpoint, provider, "");
            let ended = project.run_materialize(flags);
            let done = ended.done_event();
            assert!(done["cost_usd"].as_f64().unwrap() <= 0.002, "{provider}: {done}");
            assert_eq!(ended.code, 3, "{provider}: {}", ended.stderr);
        }
    }
}
