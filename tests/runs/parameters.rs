//! Tests of `[model.parameters]`: additional fields of each request's body. They are part of a
//! cell's provenance, and of the model's identity only if the spec sets that.

use serde_json::{Value as Json, json};

use hqdl_testkit::endpoint::{Endpoint, Fault, Frequency};
use hqdl_testkit::project::{
    CommandResult, Project, check_complete, heroes_project, truthful_endpoint,
};

const PARAMETERS: &str = "[model.parameters]\nreasoning_effort = \"low\"\ntop_p = 0.5\n\
    seed = 7\nprovider = { order = [\"b\", \"a\"], allow = true }\n\n[limits]";

fn sent() -> Json {
    json!({
        "provider": { "allow": true, "order": ["b", "a"] },
        "reasoning_effort": "low", "seed": 7, "top_p": 0.5,
    })
}

/// Returns the provenance of a cell.
fn why(project: &Project) -> Json {
    let ended = project.run_hqdl(&["why", "llm", "Zed", "motto", "--db", "data.sqlite", "--json"]);
    let cells: Json = serde_json::from_str(&ended.expect_exit_code(0).stdout).unwrap();
    cells[0].clone()
}

#[test]
fn every_request_has_the_parameters_of_the_spec() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "json");
    project.edit_spec("[limits]", PARAMETERS);
    project.run_materialize(&["--limit", "5"]).expect_exit_code(0);
    let sql =
        "SELECT name FROM hero WHERE {{LLMMap('Is it short?', hero.name, return_type='bool')}}";
    let before = endpoint.request_count();
    project.run_hqdl(&["query", "--spec", "specs/x.toml", "--json", sql]);
    assert!(endpoint.request_count() > before);
    project.run_materialize(&["--batch"]).expect_exit_code(0);
    check_complete(&project);
    let requests = endpoint.received_requests();
    assert!(requests.len() > 3);
    for request in requests {
        for (name, value) in sent().as_object().unwrap() {
            assert_eq!(&request.body[name], value, "{}", request.body);
        }
    }
    assert_eq!(why(&project)["parameters"], sent());
    let shown = project.query_rows("SELECT DISTINCT parameters FROM hqdl_cell WHERE state = 'ok'");
    assert_eq!(shown, [[Json::from(sent().to_string())]]);
    // An export uses_transfer them to another cache.
    project.run_hqdl(&["cache", "export", "facts.jsonl"]).expect_exit_code(0);
    let exported = std::fs::read_to_string(project.path("facts.jsonl")).unwrap();
    let line: Json = serde_json::from_str(exported.lines().next().unwrap()).unwrap();
    assert_eq!(line["parameters"], sent().to_string());
}

/// Returns the number of requests that a run sends.
fn asked(endpoint: &Endpoint, project: &Project, flags: &[&str]) -> usize {
    let before = endpoint.request_count();
    project.run_materialize(flags).expect_exit_code(0);
    endpoint.request_count() - before
}

#[test]
fn other_parameters_keep_the_facts_unless_they_are_part_of_the_identity() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "json");
    let first = asked(&endpoint, &project, &[]);
    project.edit_spec("[limits]", PARAMETERS);
    assert_eq!(asked(&endpoint, &project, &[]), 0);
    assert_eq!(why(&project)["parameters"], Json::Null);
    project.edit_spec("[model]", "[model]\nparameters_identity = true");
    assert_eq!(asked(&endpoint, &project, &[]), first);
    assert_eq!(why(&project)["parameters"], sent());
    assert_eq!(asked(&endpoint, &project, &[]), 0);
    // The order of fields does not matter.
    project
        .edit_spec("order = [\"b\", \"a\"], allow = true", "allow = true, order = [\"b\", \"a\"]");
    assert_eq!(asked(&endpoint, &project, &[]), 0);
    project.edit_spec("\"low\"", "\"high\"");
    let plan = project.run_plan(&[]);
    assert_eq!(plan["expansions"][0]["columns"][0]["reasons"]["other_model"], 10, "{plan}");
    assert_eq!(asked(&endpoint, &project, &["--batch"]), first);
    check_complete(&project);
    // The facts of both are kept, and so are those without parameters.
    project.edit_spec("\"high\"", "\"low\"");
    assert_eq!(asked(&endpoint, &project, &[]), 0);
    project.edit_spec("parameters_identity = true", "parameters_identity = false");
    assert_eq!(asked(&endpoint, &project, &[]), 0);
    assert_eq!(why(&project)["parameters"], Json::Null);
}

#[test]
fn a_parameter_that_the_endpoint_refuses_is_named() {
    let endpoint = truthful_endpoint();
    endpoint.add_fault(Fault::RejectsParameters(&["seed"]), Frequency::Always);
    let project = heroes_project(&endpoint, "json");
    project.edit_spec("[limits]", PARAMETERS);
    let ended: CommandResult = project.run_materialize(&[]);
    assert!(ended.code != 0, "{}", ended.stderr);
    let says = "(`seed` is set in [model.parameters] of the spec)";
    assert!(ended.stderr.contains(says), "{}", ended.stderr);
}

/// A batch has its own price, so it does not request a service tier.
#[test]
fn a_batch_asks_for_no_service_tier() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "json");
    let tier = "[model.parameters]\nservice_tier = \"flex\"\nseed = 1\n\n[limits]";
    project.edit_spec("[limits]", tier);
    project.run_materialize(&["--limit", "2"]).expect_exit_code(0);
    assert_eq!(endpoint.received_requests()[0].body["service_tier"], "flex");
    project.run_materialize(&["--batch"]).expect_exit_code(0);
    check_complete(&project);
    for line in &endpoint.created_lines()[0] {
        assert_eq!(line["body"]["service_tier"], Json::Null);
        assert_eq!(line["body"]["seed"], 1);
    }
}

/// Another model has its own parameters. It inherits those of `[model]` only if it is the same
/// model at the same endpoint.
#[test]
fn another_model_has_its_own_parameters() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "json");
    let tables = "[model.parameters]\nseed = 1\n[model.same]\nname = \"test-model\"\n\
        [model.other]\nname = \"other-model\"\n[model.tuned]\nname = \"tuned-model\"\n\
        parameters = { seed = 2 }\n\n[limits]";
    project.edit_spec("[limits]", tables);
    let project_ref = &project;
    let seed = |name: &str| {
        project_ref.edit_spec("name = \"llm\"", &format!("name = \"llm\"\nmodel = \"{name}\""));
        project_ref.run_materialize(&["--refresh", "motto", "--limit", "1"]).expect_exit_code(0);
        project_ref.edit_spec(&format!("name = \"llm\"\nmodel = \"{name}\""), "name = \"llm\"");
        endpoint.received_requests().pop().unwrap().body["seed"].clone()
    };
    assert_eq!(seed("same"), 1);
    assert_eq!(seed("other"), Json::Null);
    assert_eq!(seed("tuned"), 2);
}
