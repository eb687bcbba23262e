//! Tests of `LLMReduce` over large groups: its requests, their bound, and unreadable answers.

use serde_json::json;

use hqdl::prompt::AskedRow;
use hqdl_testkit::endpoint::Endpoint;
use hqdl_testkit::oracle;
use hqdl_testkit::project::{CommandResult, Project};

const SPEC: &str = "[database]\npath = \"../data.sqlite\"\n[model]\nname = \"gpt-4o-mini\"\n\
     base_url = \"{base_url}\"\nprice = { input = 1.0, output = 1.0 }\n[limits]\npassage_tokens = 300\n";
const SQL: &str = "SELECT {{LLMReduce('fn:least', body)}} AS least FROM note";

/// Creates a project with this many short notes.
fn project(endpoint: &Endpoint, count: u32) -> Project {
    let project = Project::new(endpoint, "CREATE TABLE note (body TEXT)", SPEC);
    project.execute_sql(&format!(
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count})
         INSERT INTO note SELECT printf('Note %06d says something.', (i * 7919) % 1000003) FROM n"
    ));
    project
}

fn run(project: &Project, command: &str, flags: &[&str]) -> CommandResult {
    let fixed = [command, "--spec", "specs/x.toml", "--json"];
    project.run_hqdl(&[&fixed[..], flags, &["--", SQL]].concat())
}

fn least(project: &Project) -> serde_json::Value {
    json!([project.query_rows("SELECT min(body) FROM note")[0][0]])
}

#[test]
fn another_row_asks_only_about_its_part_and_what_combines_it() {
    let endpoint = oracle::start_endpoint();
    let project = project(&endpoint, 2000);
    let bound = run(&project, "explain", &[]).expect_exit_code(0);
    assert_eq!(endpoint.request_count(), 0, "explain asks nothing");
    let first = run(&project, "query", &[]).expect_exit_code(0);
    assert!(first.stdout.contains(least(&project)[0].as_str().unwrap()), "{}", first.stdout);
    let requests = endpoint.request_count();
    assert!((2000 * 10 / 300..1000).contains(&requests), "{requests} requests");
    for of in ["requests", "input_tokens", "cost_usd"] {
        let of_bound = bound.lines[0][of].as_f64().unwrap();
        let spent = first.lines[0]["meta"][of].as_f64().unwrap();
        assert!(of_bound >= spent, "{of}: {spent}, at most {of_bound}");
    }
    project.execute_sql(
        "INSERT INTO note SELECT 'Note 000000 is new.' UNION ALL SELECT body FROM note",
    );
    let again = run(&project, "query", &[]).expect_exit_code(0);
    assert!(again.stdout.contains("Note 000000 is new."), "{}", again.stdout);
    let more = endpoint.request_count() - requests;
    assert!((2..12).contains(&more), "{more} requests for another text");
    run(&project, "query", &[]).expect_exit_code(0);
    assert_eq!(endpoint.request_count(), requests + more);
}

#[test]
fn a_stopped_reduction_continues_where_it_stopped() {
    let endpoint = oracle::start_endpoint();
    let project = project(&endpoint, 1000);
    let stopped = run(&project, "query", &["--budget", "0.005"]);
    assert!(stopped.stderr.contains("the budget is reached"), "{}", stopped.stderr);
    let requests = endpoint.request_count();
    let bound = run(&project, "explain", &[]).expect_exit_code(0);
    let ended = run(&project, "query", &[]).expect_exit_code(0);
    assert!(ended.stdout.contains(least(&project)[0].as_str().unwrap()), "{}", ended.stdout);
    let more = (endpoint.request_count() - requests) as u64;
    assert!(requests > 0 && more <= bound.lines[0]["requests"].as_u64().unwrap());
    let mut asked: Vec<String> = (endpoint.received_requests().iter())
        .flat_map(|request| request.question.rows.iter().map(AskedRow::key_text))
        .collect();
    let count = asked.len();
    asked.sort();
    asked.dedup();
    assert!(count - asked.len() <= 16, "only requests in flight are sent again");
}

#[test]
fn a_part_without_a_readable_answer_leaves_no_value() {
    let endpoint = Endpoint::start_answering(|column, row| {
        if row.context[0].as_str().unwrap_or_default().contains("Note 007919 ") {
            return json!({ "unreadable": [1] });
        }
        oracle::answer_cell(column, row)
    });
    let project = project(&endpoint, 1000);
    let ended = run(&project, "query", &[]).expect_exit_code(1);
    assert!(ended.stdout.contains("null"), "{}", ended.stdout);
    let note = "no value, because 1 part of the texts got no readable answer";
    assert!(ended.stdout.contains(note) || ended.stderr.contains(note), "{}", ended.stdout);
}

#[test]
fn answers_that_are_too_long_together_leave_no_value() {
    let endpoint =
        Endpoint::start_answering(|_, _| json!("A long answer about the notes. ".repeat(20)));
    let project = project(&endpoint, 1000);
    let ended = run(&project, "query", &[]).expect_exit_code(0);
    assert!(ended.stdout.contains("null"), "{}", ended.stdout);
    let note = "of answers to be combined is longer than `passage_tokens` in [limits]";
    assert!(ended.stdout.contains(note) || ended.stderr.contains(note), "{}", ended.stdout);
}

#[test]
fn unknown_parts_do_not_count() {
    let endpoint = Endpoint::start_answering(|column, row| {
        let text = row.context[0].as_str().unwrap_or_default();
        let known = text.contains("Note 007919 ") || text == "it is blue";
        assert!(!column.about.is_empty());
        if known { json!("it is blue") } else { serde_json::Value::Null }
    });
    let project = project(&endpoint, 1000);
    let ended = run(&project, "query", &[]).expect_exit_code(0);
    assert!(ended.stdout.contains("it is blue"), "{}", ended.stdout);
}
