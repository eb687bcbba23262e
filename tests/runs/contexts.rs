//! Tests of questions about rows, and of how many rows the model may see.

use hqdl::tokens::Tokenizer;
use serde_json::{Value as Json, json};

use hqdl_testkit::endpoint::Endpoint;
use hqdl_testkit::oracle;
use hqdl_testkit::project::{CommandResult, Project};

const SPEC: &str = r#"
[database]
path = "../data.sqlite"

[model]
name = "gpt-4o-mini"
base_url = "{base_url}"

[limits]
context_tokens = 300

[[expansion]]
name = "llm"
source = "note"
key = ["id"]

[[expansion.column]]
name = "mood"
"#;

/// Creates a project with notes `1` to `n`, each with a few words.
fn notes(endpoint: &Endpoint, n: usize) -> Project {
    let project = Project::new(endpoint, "CREATE TABLE note (id INTEGER, text TEXT)", SPEC);
    project.execute_sql(&format!(
        "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < {n})
         INSERT INTO note SELECT n, 'Wörter of note ' || n FROM c"
    ));
    project
}

fn query(project: &Project, flags: &[&str], sql: &str) -> CommandResult {
    project.run_hqdl(&[&["query", "--spec", "specs/x.toml", "--json"], flags, &[sql]].concat())
}

/// Returns the rows of a request's contexts.
fn shown(endpoint: &Endpoint, request: usize) -> Vec<Vec<Json>> {
    let context = &endpoint.received_requests()[request].question.rows[0].context;
    context
        .iter()
        .map(|c| {
            let json: Json = serde_json::from_str(c.as_str().unwrap()).unwrap();
            json["rows"].as_array().unwrap().clone()
        })
        .collect()
}

const SIZE: &str = "SELECT {{LLMQA('fn:table_size', (SELECT id, text FROM note ORDER BY id), return_type='int')}} AS n";

#[test]
fn a_context_that_is_too_long_is_an_error_with_the_numbers() {
    let endpoint = oracle::start_endpoint();
    let project = notes(&endpoint, 100);
    let rows: Vec<Json> = (1..=100).map(|n| json!([n, format!("Wörter of note {n}")])).collect();
    let text = json!({ "columns": ["id", "text"], "rows": rows }).to_string();
    let tokens = Tokenizer::for_model("gpt-4o-mini").count_tokens(&text);
    let ended = query(&project, &[], SIZE).expect_exit_code(2);
    let said = format!(
        "the context of LLMQA('fn:table_size') has {tokens} tokens in 100 rows; the limit is 300"
    );
    for said in [said.as_str(), "--truncate", "`context_tokens`", "this call", "<query>:1:8"] {
        assert!(ended.stderr.contains(said), "{said:?} is not in:\n{}", ended.stderr);
    }
    assert_eq!(endpoint.request_count(), 0);
    let ended = project.run_hqdl(&["explain", "--spec", "specs/x.toml", SIZE]).expect_exit_code(2);
    assert!(ended.stderr.contains("the limit is 300"), "{}", ended.stderr);
    // The tokens of a model with an unknown tokenizer are estimated, and the message mentions that.
    project.write_spec(&SPEC.replace("gpt-4o-mini", "nobody-knows"));
    let ended = query(&project, &[], SIZE).expect_exit_code(2);
    assert!(ended.stderr.contains("has about "), "{}", ended.stderr);
    // A length that the spec allows is not an error.
    project.write_spec(&SPEC.replace("= 300", "= 100_000"));
    let ended = query(&project, &[], SIZE).expect_exit_code(0);
    assert_eq!(ended.lines[0]["rows"], json!([[100]]));
}

#[test]
fn a_context_is_truncated_to_whole_rows_and_the_meta_reports_it() {
    let endpoint = oracle::start_endpoint();
    let project = notes(&endpoint, 100);
    let ended = query(&project, &["--truncate"], SIZE).expect_exit_code(0);
    let used = shown(&endpoint, 0)[0].len();
    assert!((15..40).contains(&used), "{used} rows were used");
    assert_eq!(shown(&endpoint, 0)[0][used - 1], json!([used, format!("Wörter of note {used}")]));
    let text = json!({ "columns": ["id", "text"], "rows": shown(&endpoint, 0)[0] }).to_string();
    let tokens = Tokenizer::for_model("gpt-4o-mini").count_tokens(&text);
    assert!((270..=300).contains(&tokens), "{tokens} tokens were used");
    assert_eq!(ended.lines[0]["rows"], json!([[used]]));
    let cut = format!("the model saw {used} of the 100 rows of its context (--truncate)");
    let why = ended.lines[0]["meta"]["routes"][0]["why"].as_str().unwrap().to_owned();
    assert!(why.ends_with(&cut), "{why}");
    assert!(ended.stderr.contains("note: {{LLMQA('fn:table_size'"), "{}", ended.stderr);
    assert!(ended.stderr.contains(&cut), "{}", ended.stderr);
    // The rows that were shown identify the answer: omitted rows change nothing.
    project.execute_sql("DELETE FROM note WHERE id > 60");
    let again = query(&project, &["--truncate"], SIZE).expect_exit_code(0);
    assert_eq!(again.lines[0]["rows"], json!([[used]]));
    assert_eq!(endpoint.request_count(), 1);
    project.execute_sql("DELETE FROM note WHERE id = 1");
    query(&project, &["--truncate"], SIZE).expect_exit_code(0);
    assert_eq!(endpoint.request_count(), 2);
}

#[test]
fn a_short_context_keeps_its_rows_beside_a_long_one() {
    let endpoint = oracle::start_endpoint();
    let project = notes(&endpoint, 100);
    let sql = "SELECT {{LLMQA('fn:table_size', (SELECT text FROM note), \
               (SELECT id FROM note LIMIT 3), return_type='int')}}";
    query(&project, &["--truncate"], sql).expect_exit_code(0);
    let shown = shown(&endpoint, 0);
    assert_eq!(shown[1].len(), 3);
    assert!((15..60).contains(&shown[0].len()), "{} rows", shown[0].len());
}

#[test]
fn a_call_beside_many_rows_counts_its_context_once() {
    let endpoint = oracle::start_endpoint();
    let project = notes(&endpoint, 3000);
    let sql = "SELECT count(*) AS n FROM note WHERE id <= \
               {{LLMQA('fn:table_size', (SELECT text FROM note), return_type='int')}}";
    let ended = query(&project, &["--truncate"], sql).expect_exit_code(0);
    let used = shown(&endpoint, 0)[0].len();
    assert_eq!(ended.lines[0]["rows"], json!([[used]]));
    let cut = format!("{used} of the 3000 rows of its context");
    assert!(ended.stderr.contains(&cut), "{}", ended.stderr);
}

#[test]
fn a_row_that_fits_nowhere_is_an_error_even_so() {
    let endpoint = oracle::start_endpoint();
    let project = notes(&endpoint, 1);
    let sql = "SELECT {{LLMQA('fn:table_size', (SELECT replace(hex(zeroblob(4000)), '0', \
               'word ') FROM note), return_type='int')}}";
    let ended = query(&project, &["--truncate"], sql).expect_exit_code(2);
    assert!(ended.stderr.contains("in 1 row; the limit is 300"), "{}", ended.stderr);
    assert!(ended.stderr.contains("not even one row fits"), "{}", ended.stderr);
    project.write_spec(&SPEC.replace("= 300", "= 0"));
    let ended = query(&project, &[], sql).expect_exit_code(2);
    assert!(ended.stderr.contains("`context_tokens` is 0"), "{}", ended.stderr);
}

/// A query after the value of `LLMMap` is its context, with all rows and columns.
#[test]
fn a_query_after_the_value_of_a_map_is_its_context() {
    let endpoint = oracle::start_endpoint();
    let project = notes(&endpoint, 3);
    let asked = |context: &str| {
        let sql = format!(
            "SELECT {{{{LLMMap('What of it?', note.text, context={context})}}}} FROM note WHERE id = 1"
        );
        query(&project, &[], &sql).expect_exit_code(0);
        endpoint.received_requests().last().unwrap().question.rows[0].key[1].clone()
    };
    let rows = asked("(SELECT id, text FROM note WHERE id > 1)");
    let rows: Json = serde_json::from_str(rows.as_str().unwrap()).unwrap();
    let expected = json!([[2, "Wörter of note 2"], [3, "Wörter of note 3"]]);
    assert_eq!(rows, json!({ "columns": ["id", "text"], "rows": expected }));
    let column = asked("(SELECT n.id AS other FROM note AS n WHERE n.id <> note.id)");
    let column: Json = serde_json::from_str(column.as_str().unwrap()).unwrap();
    assert_eq!(column, json!({ "columns": ["other"], "rows": [[2], [3]] }));
    // A single value is shown as it is.
    assert_eq!(asked("(SELECT id FROM note WHERE id = 3)"), json!(3));
    let before = endpoint.request_count();
    let explained = project.run_hqdl(&[
        "explain",
        "--spec",
        "specs/x.toml",
        "--json",
        "SELECT {{LLMMap('And this?', text, context=(SELECT id FROM note))}} FROM note",
    ]);
    assert_eq!(explained.expect_exit_code(0).lines[0]["values_asked"], json!(3));
    assert_eq!(endpoint.request_count(), before);
}

/// The columns of a context have the names that `SQLite` gives them, whether there are rows or not.
#[test]
fn the_columns_of_a_context_have_names() {
    let endpoint = oracle::start_endpoint();
    let project = notes(&endpoint, 2);
    let asked = |context: &str| {
        let sql = format!("SELECT {{{{LLMQA('What is there?', {context})}}}}");
        query(&project, &[], &sql).expect_exit_code(0);
        let text = endpoint.received_requests().last().unwrap().question.rows[0].context[0].clone();
        let shown: Json = serde_json::from_str(text.as_str().unwrap()).unwrap();
        (shown["columns"].clone(), shown["rows"].as_array().unwrap().len())
    };
    let computed = "upper(n.text), n.id + 1, count(*) OVER () AS all_of_them, 'x'";
    let names = json!(["upper(n.text)", "n.id + 1", "all_of_them", "'x'"]);
    let query = |rows: &str| format!("(SELECT {computed} FROM note n {rows})");
    assert_eq!(asked(&query("")), (names.clone(), 2));
    assert_eq!(asked(&query("WHERE id > 9")), (names.clone(), 0));
    let within = format!("(SELECT * FROM {} AS s)", query("WHERE id > 1"));
    assert_eq!(asked(&within), (names, 1));
    assert_eq!(asked("(SELECT id, text FROM note WHERE id > 9)"), (json!(["id", "text"]), 0));
}

/// A context is text: a value that cannot be text is an error that names its column.
#[test]
fn a_blob_in_a_context_is_an_error_with_its_column() {
    let endpoint = oracle::start_endpoint();
    let project = notes(&endpoint, 2);
    for call in [
        "LLMQA('What is there?', (SELECT id, CAST(text AS BLOB) AS photo FROM note))",
        "LLMMap('What is there?', id, context=(SELECT id, CAST(text AS BLOB) AS photo FROM note))",
    ] {
        let ended =
            query(&project, &[], &format!("SELECT {{{{{call}}}}} FROM note")).expect_exit_code(2);
        for said in ["the column `photo` of a context", "media=true"] {
            assert!(ended.stderr.contains(said), "{said:?} is not in:\n{}", ended.stderr);
        }
    }
    assert_eq!(endpoint.request_count(), 0);
}

/// A regular expression for the answer is shown, and is not part of the question.
#[test]
fn a_pattern_is_shown_to_the_model() {
    let endpoint = oracle::start_endpoint();
    let project = notes(&endpoint, 2);
    let map = "SELECT {{LLMMap('fn:initial', text, regex='[A-Z]+')}} FROM note";
    query(&project, &[], map).expect_exit_code(0);
    let system =
        endpoint.received_requests()[0].body["messages"][0]["content"].as_str().unwrap().to_owned();
    assert!(system.contains(r#"the regular expression "[A-Z]+""#), "{system}");
    query(&project, &[], &map.replace(", regex='[A-Z]+'", "")).expect_exit_code(0);
    assert_eq!(endpoint.request_count(), 1);
}

/// An answer that must be part of a text but is not counts as unreadable, and is requested again.
#[test]
fn an_answer_that_is_not_part_of_the_text_is_rejected() {
    let endpoint = oracle::start_endpoint();
    let project = notes(&endpoint, 3);
    let sql = "SELECT id, {{LLMMap('fn:say:NOTE 2', text, return_type='substring')}} FROM note ORDER BY 1";
    let ended = query(&project, &[], sql).expect_exit_code(1);
    assert_eq!(ended.lines[0]["rows"], json!([[1, null], [2, "note 2"], [3, null]]));
    assert_eq!(ended.lines[0]["meta"]["values_missing"], 2);
    let before = endpoint.request_count();
    query(&project, &[], sql).expect_exit_code(1);
    assert_eq!(endpoint.request_count(), before);
    query(&project, &["--retry-failed"], sql).expect_exit_code(1);
    let asked: usize =
        endpoint.received_requests()[before..].iter().map(|r| r.question.rows.len()).sum();
    assert!(asked >= 2 && endpoint.received_requests()[before].question.rows.len() == 2);
}
