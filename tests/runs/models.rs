//! Tests of several models in a spec: `[model]`, and `[model.NAME]` that an expansion or a call
//! names. Each is requested at its own endpoint and price, and its answers are stored separately.

use serde_json::Value as Json;

use hqdl_testkit::endpoint::{Endpoint, Request};
use hqdl_testkit::project::{CommandResult, Project, heroes_project, truthful_endpoint};

const SPEC: &str = r#"
[database]
path = "../data.sqlite"

[model]
provider = "openai"
name = "gpt-4o-mini"
base_url = "{base_url}"
api_key_env = "HQDL_TEST_KEY"
price = { input = 1.0, output = 2.0 }

[model.large]
name = "gpt-4o"
base_url = "LARGE"
api_key_env = "HQDL_TEST_KEY"
price = { input = 10.0, output = 30.0 }

[limits]
budget_usd = 1.0

[[expansion]]
name = "llm"
source = "place"
key = ["name"]
[[expansion.column]]
name = "country"
questions = ["Which country?"]

[[expansion]]
name = "big"
model = "large"
source = "place"
key = ["name"]
[[expansion.column]]
name = "river"
questions = ["Which river?"]
"#;

const PLACES: &str = "CREATE TABLE place (name TEXT PRIMARY KEY);
     INSERT INTO place VALUES ('Leeds'), ('Lyon'), ('Vigo'), ('York')";

/// Returns the endpoint of `[model]`, that of `[model.large]`, and a project with both.
fn project() -> (Endpoint, Endpoint, Project) {
    let small = Endpoint::start_with(|column, _| format!("small {column}").into());
    let large = Endpoint::start_with(|column, _| format!("large {column}").into());
    let project = Project::new(&small, PLACES, &SPEC.replace("LARGE", &large.base_url()));
    (small, large, project)
}

/// Returns what an endpoint bills at prices per million tokens.
fn bill(endpoint: &Endpoint, input: f64, output: f64) -> f64 {
    let (i, o) = endpoint.billed_tokens();
    (i as f64 * input + o as f64 * output) / 1e6
}

fn near(a: f64, b: f64) {
    assert!((a - b).abs() < 1e-9, "{a} is not {b}");
}

fn query(project: &Project, sql: &str, flags: &[&str]) -> CommandResult {
    project.run_hqdl(&[&["query", "--spec", "specs/x.toml", "--json", sql], flags].concat())
}

fn meta<'e>(ended: &'e CommandResult, name: &str) -> &'e Json {
    &ended.lines[0]["meta"][name]
}

#[test]
fn each_expansion_is_asked_of_its_model_at_its_price() {
    let (small, large, project) = project();
    let plan = project.run_plan(&[]);
    let most = plan["totals"]["cost_usd"]["most"].as_f64().unwrap();
    assert_eq!((small.request_count(), large.request_count()), (0, 0));
    let ended = project.run_materialize(&[]).expect_exit_code(0);
    let paid = bill(&small, 1.0, 2.0) + bill(&large, 10.0, 30.0);
    near(ended.done_event()["cost_usd"].as_f64().unwrap(), paid);
    assert!(paid <= most && bill(&large, 10.0, 30.0) > paid / 2.0, "{paid} of {most}");
    assert!(small.received_requests().iter().all(|r| r.body["model"] == "gpt-4o-mini"));
    assert!(large.received_requests().iter().all(|r| r.body["model"] == "gpt-4o"));
    assert!(
        large
            .received_requests()
            .iter()
            .flat_map(Request::requested_cells)
            .all(|(_, column)| column == "river")
    );
    let rows = project.query_rows("SELECT DISTINCT country, river FROM llm JOIN big USING (name)");
    assert_eq!(rows, [["small country", "large river"]]);
    for (table, column, model) in [("llm", "country", "gpt-4o-mini"), ("big", "river", "gpt-4o")] {
        let why = project
            .run_hqdl(&["why", table, "Leeds", column, "--spec", "specs/x.toml"])
            .expect_exit_code(0);
        assert!(why.stdout.contains(&format!("{model}\n")), "{}", why.stdout);
    }
    // The second run requests nothing, because the answers are known.
    let asked = (small.request_count(), large.request_count());
    project.run_materialize(&[]).expect_exit_code(0);
    let sql = "SELECT DISTINCT {{LLMMap('Which river?', place.name)}} FROM place";
    let ended = query(&project, sql, &[]).expect_exit_code(0);
    assert_eq!(ended.lines[0]["rows"][0][0], "large river");
    assert_eq!((small.request_count(), large.request_count()), asked);
}

#[test]
fn a_budget_covers_all_models_together() {
    let (small, large, project) = project();
    let ended = project.run_materialize(&["--budget", "0.012"]);
    let paid = bill(&small, 1.0, 2.0) + bill(&large, 10.0, 30.0);
    assert!(paid <= 0.012, "{paid}");
    near(ended.done_event()["cost_usd"].as_f64().unwrap(), paid);
    // If one budget is set, every model needs a price.
    let text = project.spec_text();
    project.write_spec(&text.replace("price = { input = 10.0, output = 30.0 }\n", ""));
    let ended = project.run_hqdl(&["check", "specs/x.toml"]).expect_exit_code(2);
    assert!(ended.stderr.contains("[model.large] has no price"), "{}", ended.stderr);
}

#[test]
fn a_call_names_its_model() {
    let (small, large, project) = project();
    let sql = |model: &str| {
        format!("SELECT DISTINCT {{{{LLMMap('Which mayor?', place.name{model})}}}} FROM place")
    };
    let explained = project
        .run_hqdl(&["explain", "--spec", "specs/x.toml", "--json", &sql(", model='large'")])
        .expect_exit_code(0);
    let first = query(&project, &sql(", model='large'"), &[]).expect_exit_code(0);
    assert_eq!(
        (small.request_count(), first.lines[0]["rows"][0][0].as_str()),
        (0, Some("large answer"))
    );
    near(meta(&first, "cost_usd").as_f64().unwrap(), bill(&large, 10.0, 30.0));
    let most = explained.lines[0]["cost_usd"].as_f64().unwrap();
    assert!(most >= bill(&large, 10.0, 30.0), "{most}");
    let why = meta(&first, "routes")[0]["why"].as_str().unwrap().to_owned();
    assert!(why.contains("asked of `large`"), "{why}");
    // The endpoint's name of the model means the same; another model's answers are separate.
    query(&project, &sql(", model='gpt-4o'"), &[]).expect_exit_code(0);
    assert_eq!((small.request_count(), large.request_count()), (0, 1));
    let second = query(&project, &sql(""), &[]).expect_exit_code(0);
    assert_eq!(second.lines[0]["rows"][0][0], "small answer");
    assert_eq!((small.request_count(), large.request_count()), (1, 1));
    // Both models in one query; also for joins and questions about rows.
    let both = "SELECT {{LLMQA('Which is best?', (SELECT name FROM place), model='large')}},
                {{LLMQA('Which is best?', (SELECT name FROM place))}}";
    let both = query(&project, both, &[]).expect_exit_code(0);
    assert_eq!(both.lines[0]["rows"][0][0], "large answer");
    assert_eq!(both.lines[0]["rows"][0][1], "small answer");
    assert_eq!((small.request_count(), large.request_count()), (2, 2));
    let join = "SELECT count(*) FROM place AS a JOIN place AS b
                ON {{LLMJoin(a.name, b.name, model='large')}}";
    query(&project, join, &[]);
    assert_eq!(small.request_count(), 2);
    assert!(large.request_count() > 2);
}

/// The spec of one expansion whose column `river` has the model `large`.
fn column_spec(large: &Endpoint) -> String {
    let (head, _) = SPEC.split_once("[[expansion]]").unwrap();
    let river = "[[expansion.column]]\nname = \"river\"\nmodel = \"large\"\n";
    format!(
        "{}[[expansion]]\nname = \"llm\"\nsource = \"place\"\nkey = [\"name\"]\n\
         [[expansion.column]]\nname = \"country\"\nquestions = [\"Which country?\"]\n\
         {river}questions = [\"Which river?\"]\n",
        head.replace("LARGE", &large.base_url())
    )
}

/// A project with [`column_spec`].
fn column_project() -> (Endpoint, Endpoint, Project) {
    let small = Endpoint::start_with(|column, _| format!("small {column}").into());
    let large = Endpoint::start_with(|column, _| format!("large {column}").into());
    let project = Project::new(&small, PLACES, &column_spec(&large));
    (small, large, project)
}

/// The columns that an endpoint was asked for since its request `first`, each once.
fn asked_columns(endpoint: &Endpoint, first: usize) -> Vec<String> {
    let mut columns: Vec<String> =
        endpoint.cells_since(first).into_iter().map(|(_, column)| column).collect();
    columns.sort();
    columns.dedup();
    columns
}

#[test]
fn cells_of_one_row_come_from_the_models_of_their_columns() {
    let (small, large, project) = column_project();
    let plan = project.run_plan(&[]);
    let most = plan["totals"]["cost_usd"]["most"].as_f64().unwrap();
    let parts = plan["expansions"].as_array().unwrap();
    let part = |n: usize| (&parts[n]["model"], &parts[n]["columns"][0]["column"]);
    assert_eq!(part(0), (&"gpt-4o-mini".into(), &"country".into()));
    assert_eq!(part(1), (&"gpt-4o".into(), &"river".into()));
    assert_eq!(plan["totals"]["cells"], 8);
    let ended = project.run_materialize(&[]).expect_exit_code(0);
    assert_eq!(asked_columns(&small, 0), ["country"]);
    assert_eq!(asked_columns(&large, 0), ["river"]);
    let paid = bill(&small, 1.0, 2.0) + bill(&large, 10.0, 30.0);
    near(ended.done_event()["cost_usd"].as_f64().unwrap(), paid);
    assert!(paid <= most, "{paid} of {most}");
    let rows = project.query_rows("SELECT DISTINCT country, river FROM llm");
    assert_eq!(rows, [["small country", "large river"]]);
    for (column, model) in [("country", "gpt-4o-mini"), ("river", "gpt-4o")] {
        let why = project.run_hqdl(&["why", "llm", "Leeds", column, "--spec", "specs/x.toml"]);
        assert!(why.stdout.contains(&format!("{model}\n")), "{}", why.stdout);
    }
    // Again: nothing is asked. A call gets the column only if it names the column's model.
    let asked = (small.request_count(), large.request_count());
    project.run_materialize(&[]).expect_exit_code(0);
    let call = |model: &str| {
        let sql = format!("SELECT {{{{LLMMap('Which river?', place.name{model})}}}} FROM place");
        query(&project, &sql, &[]).expect_exit_code(0)
    };
    for model in ["", ", model='large'", ", model='gpt-4o'"] {
        assert_eq!(meta(&call(model), "routes")[0]["route"], "column", "{model}");
    }
    assert_eq!((small.request_count(), large.request_count()), asked);
    assert_eq!(meta(&call(", model='gpt-4o-mini'"), "routes")[0]["route"], "ad-hoc");
}

#[test]
fn a_query_asks_each_column_of_its_model() {
    let (small, large, project) = column_project();
    let sql = "SELECT {{LLMMap('Which country?', place.name)}},
                      {{LLMMap('Which river?', place.name)}} FROM place";
    let explained =
        project.run_hqdl(&["explain", "--spec", "specs/x.toml", "--json", sql]).expect_exit_code(0);
    let most = explained.lines[0]["cost_usd"].as_f64().unwrap();
    let ended = query(&project, sql, &[]).expect_exit_code(0);
    assert_eq!(ended.lines[0]["rows"][0], serde_json::json!(["small country", "large river"]));
    let paid = bill(&small, 1.0, 2.0) + bill(&large, 10.0, 30.0);
    near(meta(&ended, "cost_usd").as_f64().unwrap(), paid);
    assert!(paid <= most, "{paid} of {most}");
    assert_eq!((small.request_count(), large.request_count()), (1, 1));
    // The same facts fill the table.
    project.run_materialize(&[]).expect_exit_code(0);
    assert_eq!((small.request_count(), large.request_count()), (1, 1));
}

#[test]
fn a_column_that_changes_its_model_is_asked_again_alone() {
    let (small, large, project) = column_project();
    project.run_materialize(&[]).expect_exit_code(0);
    let (before, spec) = (small.request_count(), project.spec_text());
    project.write_spec(&spec.replace("model = \"large\"\n", ""));
    let plan = project.run_plan(&[]);
    assert_eq!(plan["expansions"][0]["columns"][1]["reasons"]["other_model"], 4, "{plan}");
    project.run_materialize(&[]).expect_exit_code(0);
    assert_eq!(asked_columns(&small, before), ["river"]);
    let rows = project.query_rows("SELECT DISTINCT country, river FROM llm");
    assert_eq!(rows, [["small country", "small river"]]);
    // Both answers stay known.
    let asked = (small.request_count(), large.request_count());
    project.write_spec(&spec);
    project.run_materialize(&[]).expect_exit_code(0);
    let rows = project.query_rows("SELECT DISTINCT country, river FROM llm");
    assert_eq!(rows, [["small country", "large river"]]);
    // A column of another model's expansion can name the model of [model].
    let spec = spec.replace("model = \"large\"\n", "model = \"gpt-4o-mini\"\n");
    project.write_spec(&spec.replace("name = \"llm\"\n", "name = \"llm\"\nmodel = \"large\"\n"));
    assert_eq!((small.request_count(), large.request_count()), asked);
    project.run_materialize(&[]).expect_exit_code(0);
    let rows = project.query_rows("SELECT DISTINCT country, river FROM llm");
    assert_eq!(rows, [["large country", "small river"]]);
}

#[test]
fn a_budget_holds_for_the_columns_of_all_models() {
    let (small, large, project) = column_project();
    let ended = project.run_materialize(&["--budget", "0.012"]);
    let paid = bill(&small, 1.0, 2.0) + bill(&large, 10.0, 30.0);
    assert!(paid <= 0.012 && small.request_count() > 0, "{paid}");
    near(ended.done_event()["cost_usd"].as_f64().unwrap(), paid);
    // The rest is asked once, and what is answered is not asked again.
    project.run_materialize(&[]).expect_exit_code(0);
    assert_eq!((small.cells_since(0).len(), large.cells_since(0).len()), (4, 4));
}

#[test]
fn flags_and_batches_apply_to_the_models_of_columns() {
    let (small, large, project) = column_project();
    let ended = project.run_materialize(&["--batch"]).expect_exit_code(2);
    assert!(ended.stderr.contains("`llm.river` uses [model.large]"), "{}", ended.stderr);
    project.run_materialize(&["--batch", "--columns", "country"]).expect_exit_code(0);
    assert_eq!(project.query_rows("SELECT DISTINCT country FROM llm"), [["small country"]]);
    project.run_materialize(&["--model", "gpt-4.1-mini", "--price", "1,2"]).expect_exit_code(0);
    assert_eq!(large.request_count(), 0);
    assert_eq!(asked_columns(&small, small.request_count() - 1), ["country", "river"]);
    let spec = project.spec_text();
    project.write_spec(&spec.replace("model = \"large\"", "model = \"lagre\""));
    let ended = project.run_hqdl(&["check", "specs/x.toml"]).expect_exit_code(2);
    assert!(ended.stderr.contains("the spec has no [model.lagre]"), "{}", ended.stderr);
}

#[test]
fn a_price_is_unknown_if_one_model_has_none() {
    let (_small, _large, project) = project();
    let text = project.spec_text().replace("price = { input = 10.0, output = 30.0 }\n", "");
    project.write_spec(&text.replace("budget_usd = 1.0", ""));
    let sql = "SELECT {{LLMMap('Which mayor?', place.name, model='large')}} FROM place";
    let ended =
        project.run_hqdl(&["query", "--spec", "specs/x.toml", "--meta", sql]).expect_exit_code(0);
    let told = "unknown: set `price` in [model.large]";
    assert!(ended.stderr.contains(told), "{}", ended.stderr);
}

#[test]
fn a_column_answers_a_call_that_names_its_model_and_no_other() {
    let (_small, large, project) = project();
    project.run_materialize(&[]).expect_exit_code(0);
    let asked = large.request_count();
    let route = |model: &str, question: &str| {
        let sql =
            format!("SELECT {{{{LLMMap('{question}', place.name{model})}}}} FROM place LIMIT 1");
        let ended = query(&project, &sql, &[]).expect_exit_code(0);
        meta(&ended, "routes")[0]["route"].as_str().unwrap().to_owned()
    };
    assert_eq!(route(", model='large'", "Which river?"), "column");
    assert_eq!(route(", model='gpt-4o-mini'", "Which country?"), "column");
    assert_eq!(large.request_count(), asked);
    assert_eq!(route(", model='large'", "Which country?"), "ad-hoc");
    assert!(large.request_count() > asked);
}

#[test]
fn unknown_model_names_are_reported() {
    let (small, large, project) = project();
    let ended = query(&project, "SELECT {{LLMQA('Why?', model='lagre')}}", &[]).expect_exit_code(2);
    for told in [
        "`lagre` is not a model of this query",
        "`gpt-4o-mini` and `large`",
        "did you mean `large`?",
    ] {
        assert!(ended.stderr.contains(told), "{told}: {}", ended.stderr);
    }
    let text = project.spec_text();
    for (from, to, told) in [
        ("model = \"large\"", "model = \"lagre\"", "the spec has no [model.lagre]"),
        ("name = \"gpt-4o\"\n", "", "the model of [model.large] has no name"),
        ("[model.large]\n", "[model.large]\ntemprature = 1\n", "unknown field `temprature`"),
        ("[model]\n", "[model]\ntemprature = 1\n", "unknown field `temprature` in [model]"),
    ] {
        project.write_spec(&text.replace(from, to));
        let ended = project.run_hqdl(&["check", "specs/x.toml"]).expect_exit_code(2);
        assert!(ended.stderr.contains(told), "{told}: {}", ended.stderr);
    }
    // A problem of a model is reported when it is asked.
    std::fs::write(project.path("specs/said.jsonl"), "no json\n").unwrap();
    project.write_spec(
        &text.replace("[model.large]\n", "[model.large]\nrecordings = [\"said.jsonl\"]\n"),
    );
    project.run_materialize(&["--columns", "country"]).expect_exit_code(0);
    let ended = project.run_materialize(&[]).expect_exit_code(4);
    assert!(ended.stderr.contains("[model.large]: recording"), "{}", ended.stderr);
    assert_eq!(large.request_count(), 0);
    // Batches are sent to one model only.
    project.write_spec(&text);
    let ended = project.run_materialize(&["--batch"]).expect_exit_code(2);
    assert!(ended.stderr.contains("`big` uses [model.large]"), "{}", ended.stderr);
    // Flags select the model for all requests.
    let before = small.request_count();
    // The spec's price applies to its own model, and its budget needs a price.
    let ended = project.run_materialize(&["--model", "gpt-4.1-mini"]).expect_exit_code(2);
    assert!(ended.stderr.contains("hqdl cannot keep `budget_usd`"), "{}", ended.stderr);
    project.run_materialize(&["--model", "gpt-4.1-mini", "--price", "1,2"]).expect_exit_code(0);
    assert_eq!(large.request_count(), 0);
    assert!(small.received_requests()[before..].iter().all(|r| r.body["model"] == "gpt-4.1-mini"));
}

#[test]
fn requests_to_another_model_are_estimated_by_its_rows() {
    let (_, large, project) = project();
    std::fs::write(project.path("specs/said.jsonl"), "{\"keys\":[\"Leeds\"],\"content\":\"x\"}\n")
        .unwrap();
    // Recordings answer one row at a time, endpoints several.
    let text = SPEC
        .replace(
            "provider = \"openai\"\nname = \"gpt-4o-mini\"",
            "provider = \"replay\"\nname = \"gpt-4o-mini\"\nrecordings = [\"said.jsonl\"]",
        )
        .replace("[model.large]\n", "[model.large]\nprovider = \"openai\"\n")
        .replace("LARGE", &large.base_url())
        .replace("{base_url}", &large.base_url());
    project.write_spec(&text);
    let sql = "SELECT {{LLMMap('How old?', name, model='large')}} FROM place";
    let told =
        project.run_hqdl(&["explain", "--spec", "specs/x.toml", "--json", sql]).expect_exit_code(0);
    assert_eq!(meta(&query(&project, sql, &[]), "requests"), 1);
    let told: Json = serde_json::from_str(&told.stdout).unwrap();
    assert_eq!(told["requests"], 1, "{told}");
}

/// `[model.NAME]` tables that mean the same endpoint share one API key.
#[test]
fn another_spelling_of_an_endpoint_is_the_same_endpoint() {
    use hqdl::spec::file::{ModelTable, OtherModelTable};
    let openai = "https://api.openai.com/v1";
    let key = |first: Option<&str>, other: &str| {
        let first = ModelTable {
            base_url: first.map(str::to_owned),
            api_key_env: Some("MINE".to_owned()),
            ..ModelTable::default()
        };
        let text = format!("name = \"b\"\nbase_url = \"{other}\"");
        first.inherit_settings(&toml::from_str::<OtherModelTable>(&text).unwrap()).api_key_env
    };
    for other in ["", "/", "/chat/completions", "/chat/completions/"] {
        for first in [None, Some("https://api.openai.com/v1"), Some("https://api.openai.com/v1/")] {
            assert_eq!(key(first, &format!("{openai}{other}")).as_deref(), Some("MINE"), "{other}");
        }
    }
    assert_eq!(key(None, "https://api.openai.com.example.org/v1"), None);
    assert_eq!(key(Some("http://localhost:1/v1"), openai), None);
}

/// `--base-url` selects an endpoint, so the spec's recordings do not answer instead.
#[test]
fn a_base_url_implies_an_endpoint_instead_of_recordings() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "json");
    let text = std::fs::read_to_string(project.path("specs/x.toml")).unwrap();
    let replay = "[model]\nprovider = \"replay\"\nrecordings = [\"said.jsonl\"]\n";
    project.write_spec(&text.replacen("[model]\n", replay, 1));
    std::fs::write(project.path("specs/said.jsonl"), "").unwrap();
    let url = endpoint.base_url();
    let flags = ["--limit", "1", "--model", "m", "--price", "0,0"];
    project.run_materialize(&flags);
    assert_eq!(endpoint.request_count(), 0);
    let flags = [&flags[..], &["--base-url", &url]].concat();
    project.run_materialize(&flags).expect_exit_code(0);
    assert!(endpoint.request_count() > 0);
}
