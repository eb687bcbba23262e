//! Tests of `unify = true`: the model is asked once which value an answer outside a closed list
//! means, or none. Its decision is stored, and applies to all rows.

use serde_json::{Value as Json, json};

use hqdl_testkit::endpoint::Endpoint;
use hqdl_testkit::project::Project;

const SPEC: &str = r#"
[database]
path = "../data.sqlite"

[model]
provider = "openai"
name = "gpt-4o-mini"
base_url = "{base_url}"
api_key_env = "HQDL_TEST_KEY"
price = { input = 1.0, output = 2.0 }

[[expansion]]
name = "llm"
source = "place"
key = ["name"]

[[expansion.column]]
name = "country"
about = "the country it is in"
values = { list = ["UK", "France", "Spain"] }
UNIFY
"#;

const PLACES: &str = "CREATE TABLE place (name TEXT PRIMARY KEY);
     INSERT INTO place VALUES ('Leeds'), ('Lyon'), ('Vigo'), ('York'), ('Hull')";

/// Starts an endpoint that names countries in words outside every list, and knows what these words
/// mean.
fn endpoint() -> Endpoint {
    Endpoint::start_with(|column, key| match (column, key[0].as_str().unwrap_or_default()) {
        ("country", "Leeds" | "Hull") => "United Kingdom".into(),
        ("country", "York") => "united kingdom".into(),
        ("country", "Lyon") => "Gondor".into(),
        ("country", "Nice") => "Great Britain".into(),
        ("country", _) => "Spain".into(),
        ("value", word) if word.eq_ignore_ascii_case("united kingdom") => "UK".into(),
        ("value", "Great Britain") => "UK".into(),
        _ => Json::Null,
    })
}

fn project(endpoint: &Endpoint, more: &str) -> Project {
    Project::new(endpoint, PLACES, &SPEC.replace("UNIFY", more))
}

fn countries(project: &Project) -> Vec<Vec<Json>> {
    project.query_rows(
        "SELECT l.name, l.country, h.state FROM llm AS l
         JOIN hqdl_cell AS h ON h.key = json_array(l.name) ORDER BY 1",
    )
}

/// Returns the words that the model was asked about.
fn words(endpoint: &Endpoint) -> Vec<String> {
    let cells = endpoint.cells_since(0).into_iter();
    let mut words: Vec<String> = cells
        .filter(|(_, column)| column == "value")
        .map(|(key, _)| key[0].as_str().unwrap_or_default().to_owned())
        .collect();
    words.sort();
    words
}

fn unified() -> Vec<Vec<Json>> {
    [
        ("Hull", json!("UK"), "ok"),
        ("Leeds", json!("UK"), "ok"),
        ("Lyon", Json::Null, "not_in_list"),
        ("Vigo", json!("Spain"), "ok"),
        ("York", json!("UK"), "ok"),
    ]
    .map(|(name, country, state)| vec![json!(name), country, json!(state)])
    .to_vec()
}

#[test]
fn each_word_outside_the_list_is_asked_about_once() {
    let endpoint = endpoint();
    let project = project(&endpoint, "unify = true");
    let ended = project.run_materialize(&[]).expect_exit_code(1);
    assert_eq!(countries(&project), unified());
    assert_eq!(words(&endpoint), ["Gondor", "United Kingdom"]);
    let (input, output) = endpoint.billed_tokens();
    let paid = (input as f64 + 2.0 * output as f64) / 1e6;
    let told = ended.done_event()["cost_usd"].as_f64().unwrap();
    assert!((told - paid).abs() < 1e-9, "{told} of {paid}");
    assert_eq!(ended.done_event()["cells"]["ok"], 4);
    let why = project
        .run_hqdl(&["why", "llm", "Leeds", "country", "--spec", "specs/x.toml"])
        .expect_exit_code(0);
    for told in ["United Kingdom", "unified by the model"] {
        assert!(why.stdout.contains(told), "{told}: {}", why.stdout);
    }
    // Run again, and with another row that has the same word: no word is asked about twice.
    let asked = endpoint.request_count();
    project.run_materialize(&[]).expect_exit_code(1);
    assert_eq!(endpoint.request_count(), asked);
    project.execute_sql("INSERT INTO place VALUES ('Nice')");
    project.run_materialize(&[]).expect_exit_code(1);
    assert_eq!(words(&endpoint), ["Gondor", "Great Britain", "United Kingdom"]);
    assert_eq!(countries(&project)[3][1], "UK");
    // Queries apply the decision, whether they read the tables or the facts.
    let asked = endpoint.request_count();
    let sql = "SELECT count(*) FROM place WHERE {{LLMMap('In UK?', place.name)}}";
    let text = project.spec_text();
    project.write_spec(&text.replace(
        "unify = true",
        "unify = true\nquestions = [{ ask = \"In {value}?\", sql = \"country = {value}\" }]",
    ));
    let ended = project.run_hqdl(&["query", "--spec", "specs/x.toml", "--json", sql]);
    assert_eq!(ended.lines[0]["rows"], json!([[4]]), "{}{}", ended.stdout, ended.stderr);
    assert_eq!(endpoint.request_count(), asked);
}

#[test]
fn unification_applies_to_stored_answers_and_not_to_the_fingerprint() {
    let endpoint = endpoint();
    let project = project(&endpoint, "");
    project.run_materialize(&[]).expect_exit_code(1);
    let before = countries(&project);
    assert_eq!(before[0][2], "not_in_list");
    let asked = endpoint.request_count();
    // When it is enabled, the plan includes the words, and only they are requested.
    project.write_spec(
        &SPEC.replace("UNIFY", "unify = true").replace("{base_url}", project.base_url()),
    );
    let plan = project.run_plan(&[]);
    let most = plan["totals"]["cost_usd"]["most"].as_f64().unwrap();
    assert_eq!(plan["totals"]["cells"], 2, "{plan}");
    let ended = project.run_materialize(&[]).expect_exit_code(1);
    assert_eq!(endpoint.request_count(), asked + 1);
    assert!(ended.done_event()["cost_usd"].as_f64().unwrap() <= most, "{most}");
    assert_eq!(countries(&project), unified());
    // When it is disabled, the original answers count; when it is enabled again, nothing is
    // requested.
    project.write_spec(&SPEC.replace("UNIFY", "").replace("{base_url}", project.base_url()));
    project.run_materialize(&[]).expect_exit_code(1);
    assert_eq!(countries(&project), before);
    project.write_spec(
        &SPEC.replace("UNIFY", "unify = true").replace("{base_url}", project.base_url()),
    );
    project.run_materialize(&[]).expect_exit_code(1);
    assert_eq!(countries(&project), unified());
    // An alias takes precedence over the model's decision.
    let aliases = "unify = true\naliases = { \"united kingdom\" = \"France\" }";
    project.write_spec(&SPEC.replace("UNIFY", aliases).replace("{base_url}", project.base_url()));
    project.run_materialize(&[]).expect_exit_code(1);
    assert_eq!(countries(&project)[1][1], "France");
    assert_eq!(endpoint.request_count(), asked + 1);
}

#[test]
fn the_maximum_of_a_plan_holds_if_all_words_are_new() {
    let endpoint = endpoint();
    let project = project(&endpoint, "unify = true");
    let most = project.run_plan(&[])["totals"]["cost_usd"]["most"].as_f64().unwrap();
    let paid =
        project.run_materialize(&[]).expect_exit_code(1).done_event()["cost_usd"].as_f64().unwrap();
    assert!(paid <= most, "{paid} of {most}");
}

#[test]
fn values_of_a_list_are_unified_one_by_one() {
    let endpoint = Endpoint::start_with(|column, key| match (column, key[0].as_str().unwrap()) {
        ("country", "Leeds") => json!(["Spain", "United Kingdom", "Gondor"]),
        ("country", _) => json!(["Great Britain"]),
        ("value", "United Kingdom" | "Great Britain") => "UK".into(),
        _ => Json::Null,
    });
    let many = "unify = true\nmany = { table = \"llm_country\", column = \"country\" }";
    let project = project(&endpoint, many);
    let most = project.run_plan(&[])["totals"]["cost_usd"]["most"].as_f64().unwrap();
    let ended = project.run_materialize(&[]).expect_exit_code(0);
    assert!(ended.done_event()["cost_usd"].as_f64().unwrap() <= most, "{most}");
    let rows = project.query_rows("SELECT name, group_concat(country) FROM llm_country GROUP BY 1");
    assert_eq!(rows[1], [json!("Leeds"), json!("Spain,UK")]);
    assert_eq!(rows[0], [json!("Hull"), json!("UK")]);
    assert_eq!(words(&endpoint), ["Gondor", "Great Britain", "United Kingdom"]);
}

#[test]
fn unification_needs_a_closed_list() {
    let endpoint = endpoint();
    for (from, to) in
        [("] }", "], open = true }"), ("values = { list = [\"UK\", \"France\", \"Spain\"] }\n", "")]
    {
        let project = Project::new(
            &endpoint,
            PLACES,
            &SPEC.replace("UNIFY", "unify = true").replace(from, to),
        );
        let ended = project.run_hqdl(&["check", "specs/x.toml"]).expect_exit_code(2);
        assert!(ended.stderr.contains("has no closed value list"), "{}", ended.stderr);
    }
}

/// The meaning of a word depends on its subject: columns with the same name, list and key share
/// nothing if their tables describe different things.
#[test]
fn a_word_has_its_meaning_for_one_table() {
    let endpoint = Endpoint::start_with(|column, key| match (column, key[0].as_str().unwrap()) {
        ("status", _) => "done".into(),
        _ => Json::Null,
    });
    let table = |name: &str, about: &str| {
        format!(
            "[[expansion]]\nname = \"llm_{name}\"\nabout = \"{about}\"\nsource = \"{name}\"\nkey = [\"name\"]\n\
             [[expansion.column]]\nname = \"status\"\nvalues = {{ list = [\"open\", \"closed\"] }}\nunify = true\n"
        )
    };
    let head = SPEC.split("[[expansion]]").next().unwrap();
    let spec = [head, &table("orders", "Orders."), &table("people", "People.")].concat();
    let tables = "CREATE TABLE orders (name TEXT); INSERT INTO orders VALUES ('a');
         CREATE TABLE people (name TEXT); INSERT INTO people VALUES ('b');";
    let project = Project::new(&endpoint, tables, &spec);
    project.run_materialize(&[]).expect_exit_code(1);
    let asked = endpoint.received_requests();
    let about = |what: &str| {
        let of = asked.iter().filter(|r| r.question.columns[0].name == "value");
        of.filter(|r| r.body["messages"].to_string().contains(what)).count()
    };
    assert_eq!((about("Orders."), about("People.")), (1, 1), "{}", asked.len());
    project.run_materialize(&[]).expect_exit_code(1);
    assert_eq!(endpoint.request_count(), asked.len());
}
