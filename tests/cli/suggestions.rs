//! Tests of `hqdl suggest`: live questions, their cost, and the suggested columns.

use serde_json::{Value as Json, json};

use hqdl_testkit::oracle;
use hqdl_testkit::project::{CommandResult, EXPANSION, HEROES, MODEL, Project};

/// Returns a spec whose layout and comments must be kept.
fn spec() -> String {
    let last = r#"
# What people ask.
[[expansion.column]]
name = "eye_color"   # of the left eye
values = ["Blue", "Brown", "Green"]
questions = [
  "What is the eye colour?",   # as in the form
]

# Somebody else's table.
[[expansion]]
name = "llm_power"
source = "power"
key = ["power"]
  [[expansion.column]]
  name = "element"
"#;
    [MODEL, EXPANSION, last].concat()
}

fn project(endpoint: &hqdl_testkit::endpoint::Endpoint) -> Project {
    Project::new(endpoint, HEROES, &spec())
}

fn query(project: &Project, sql: &str) -> CommandResult {
    project.run_hqdl(&["query", "--spec", "specs/x.toml", "--json", sql])
}

fn suggest(project: &Project, flags: &[&str]) -> Json {
    let ended = project.run_hqdl(&[&["suggest", "--json"], flags].concat()).expect_exit_code(0);
    ended.lines[0].clone()
}

const WITH: [&str; 2] = ["--spec", "specs/x.toml"];

#[test]
fn without_live_questions_nothing_is_suggested() {
    let endpoint = oracle::start_endpoint();
    let project = project(&endpoint);
    assert_eq!(suggest(&project, &[]), json!({ "questions": [], "bound": [], "written": null }));
    let ended =
        project.run_hqdl(&["suggest", "--spec", "specs/x.toml", "--write"]).expect_exit_code(0);
    assert!(ended.stderr.contains("nothing to add"), "{}", ended.stderr);
    project.run_hqdl(&["suggest", "--write"]).expect_exit_code(2);
}

#[test]
fn a_live_question_becomes_a_column_that_answers_it() {
    let endpoint = oracle::start_endpoint();
    let project = project(&endpoint);
    let sql = "SELECT name FROM hero WHERE {{LLMMap('Is {} fn:tall?', hero.name)}}";
    query(&project, sql).expect_exit_code(0);
    query(&project, "SELECT {{LLMMap('fn:upper', hero.name)}} FROM hero WHERE id < 3")
        .expect_exit_code(0);
    query(&project, "SELECT {{LLMQA('fn:const:x', (SELECT name FROM hero))}}").expect_exit_code(0);
    let found = suggest(&project, &WITH);
    let questions = found["questions"].as_array().unwrap();
    assert_eq!(questions.len(), 2, "{found:#}");
    let tall = questions.iter().find(|q| q["question"] == "Is {} fn:tall?").unwrap();
    assert_eq!((&tall["type"], &tall["values"]), (&json!("boolean"), &json!(9)), "{tall:#}");
    assert_eq!(tall["origins"], json!([{ "table": "hero", "column": "name" }]));
    assert_eq!(tall["models"], json!(["test-model"]));
    assert!(tall["cost_usd"].as_f64().unwrap() > 0.0, "{tall:#}");
    assert!(tall["requests"].as_u64().unwrap() > 0, "{tall:#}");
    let joins = &tall["joins"];
    assert_eq!((&joins["expansion"], &joins["key"]), (&json!("llm"), &json!("name")));
    // No wrong column is suggested: the expansion has another key.
    assert_eq!((&joins["share"], &joins["asks"]), (&json!(1.0), &json!(10)));
    let toml = "[[expansion.column]]\nname = \"is_fn_tall\"\ntype = \"boolean\"\n\
                about = \"Is {name} fn:tall?\"\nquestions = [\"Is {} fn:tall?\"]\n";
    assert_eq!(tall["toml"], toml);
    // Without `--write`, the spec is not changed.
    assert_eq!(project.spec_text(), spec().replace("{base_url}", &endpoint.base_url()));
    let written = suggest(&project, &[&WITH[..], &["--write"]].concat());
    assert_eq!(written["written"]["columns"].as_array().unwrap().len(), 2, "{written:#}");
    let text = project.spec_text();
    for line in spec().replace("{base_url}", &endpoint.base_url()).lines() {
        assert!(text.lines().any(|l| l == line), "{line:?} is not in:\n{text}");
    }
    let at = |part: &str| text.find(part).unwrap();
    assert!(at("# as in the form") < at("is_fn_tall"), "{text}");
    assert!(at("is_fn_tall") < at("# Somebody else's table."), "{text}");
    project.run_hqdl(&["check", "specs/x.toml"]).expect_exit_code(0);
    // A second run adds nothing.
    let again =
        project.run_hqdl(&["suggest", "--spec", "specs/x.toml", "--write"]).expect_exit_code(0);
    assert!(again.stderr.contains("nothing to add"), "{}", again.stderr);
    assert!(again.stdout.contains("`llm.is_fn_tall` answers it already"), "{}", again.stdout);
    assert_eq!(project.spec_text(), text);
    // The query is answered by the column, which is requested by its own key and with the same
    // question.
    for asked in [10, 0] {
        let sql = "SELECT name FROM hero WHERE {{LLMMap('Is {} fn:tall?', hero.name)}}";
        let meta = query(&project, sql).expect_exit_code(0).lines[0]["meta"].clone();
        assert_eq!(meta["routes"][0]["column"], "is_fn_tall", "{meta:#}");
        assert_eq!(meta["values_asked"], asked, "{meta:#}");
    }
}

#[test]
fn options_lists_and_odd_names_are_included() {
    let endpoint = oracle::start_endpoint();
    let project = project(&endpoint);
    let sql =
        "SELECT {{LLMMap('Eye color', power.power, options=('Blue', 'O''Brown', 'a \"b\"'))}},
                      {{LLMMap('3 words?', power.power, return_type='list[str]')}} FROM power";
    query(&project, sql).expect_exit_code(0);
    let found = suggest(&project, &[&WITH[..], &["--write"]].concat());
    let questions = found["questions"].as_array().unwrap();
    let of = |name: &str| questions.iter().find(|q| q["question"] == name).unwrap();
    let color = of("Eye color");
    assert_eq!(color["list"], json!(["Blue", "O'Brown", "a \"b\""]));
    assert_eq!(color["joins"]["expansion"], "llm_power");
    let toml = of("3 words?")["toml"].as_str().unwrap();
    assert!(toml.contains("name = \"q_3_words\""), "{toml}");
    assert!(
        toml.contains("many = { table = \"llm_power_q_3_words\", column = \"value\" }"),
        "{toml}"
    );
    project.run_hqdl(&["check", "specs/x.toml"]).expect_exit_code(0);
    project.run_materialize(&[]).expect_exit_code(0);
    assert_eq!(
        project.query_rows("SELECT count(*) FROM llm_power WHERE eye_color IS NOT NULL"),
        [[json!(4)]]
    );
    let asked = endpoint.request_count();
    let again = query(&project, sql).expect_exit_code(0);
    assert_eq!(endpoint.request_count(), asked, "{}", again.stdout);
    assert_eq!(again.lines[0]["meta"]["routes"][0]["route"], "column");
}

#[test]
fn stored_answers_are_reused_if_they_are_the_columns_own() {
    let endpoint = oracle::start_endpoint();
    let project = project(&endpoint);
    let sql = "SELECT {{LLMMap('fn:upper', power || '')}} FROM power WHERE power > 'G'";
    query(&project, sql).expect_exit_code(0);
    let other = spec().replace(
        "\"power\"\nkey = [\"power\"]",
        "\"SELECT power AS value FROM power\"\nkey = [\"value\"]",
    );
    project.write_spec(&other);
    let found = suggest(&project, &[&WITH[..], &["--write"]].concat());
    let joins = &found["questions"][0]["joins"];
    assert_eq!(
        (&joins["expansion"], &joins["asks"]),
        (&json!("llm_power"), &json!(1)),
        "{found:#}"
    );
    let before = endpoint.request_count();
    // Other cells were not requested, so the run is not complete.
    project.run_materialize(&["--columns", "answer"]);
    assert_eq!(endpoint.cells_since(before), [(vec![json!("Flight")], "answer".to_owned())]);
}

#[test]
fn a_question_of_other_values_is_left_out() {
    let endpoint = oracle::start_endpoint();
    let project = project(&endpoint);
    let sql = "SELECT {{LLMMap('fn:length', v)}} FROM (SELECT 'Speed' AS v UNION SELECT 'x' UNION SELECT 'y')";
    query(&project, sql).expect_exit_code(0);
    query(&project, "SELECT {{LLMMap('fn:upper', 'nobody')}}").expect_exit_code(0);
    let ended =
        project.run_hqdl(&["suggest", "--spec", "specs/x.toml", "--write"]).expect_exit_code(0);
    for said in ["1 of the 3 values (33 %)", "too few of its values are keys", "no expansion"] {
        assert!(ended.stdout.contains(said), "{said:?} is not in:\n{}", ended.stdout);
    }
    assert!(ended.stderr.contains("nothing to add"), "{}", ended.stderr);
    assert_eq!(project.spec_text(), spec().replace("{base_url}", &endpoint.base_url()));
    let bare = project.run_hqdl(&["suggest"]).expect_exit_code(0);
    assert!(bare.stdout.contains("[[expansion.column]]\nname = \"fn_length\""), "{}", bare.stdout);
    assert!(bare.stderr.contains("--spec"), "{}", bare.stderr);
}

#[test]
fn windows_line_endings_are_kept() {
    let endpoint = oracle::start_endpoint();
    let project = project(&endpoint);
    query(&project, "SELECT {{LLMMap('fn:upper', power)}} FROM power").expect_exit_code(0);
    project.write_spec(&spec().replace('\n', "\r\n"));
    suggest(&project, &[&WITH[..], &["--write"]].concat());
    let text = project.spec_text();
    assert_eq!(text.matches('\n').count(), text.matches("\r\n").count());
    assert!(text.contains("name = \"fn_upper\"\r\n"), "{text}");
    project.run_hqdl(&["check", "specs/x.toml"]).expect_exit_code(0);
}
