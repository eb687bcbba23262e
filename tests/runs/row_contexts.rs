//! An answer about a row that the model saw with a context belongs to this context. A changed text
//! is asked about again, and two rows with the same key and different texts share no answer.

use hqdl::prompt::{AskedColumn, AskedRow};
use serde_json::{Value as Json, json};

use hqdl_testkit::endpoint::Endpoint;
use hqdl_testkit::project::{Project, query_rows};

const TABLES: &str = "
CREATE TABLE review (id INTEGER PRIMARY KEY, body TEXT);
INSERT INTO review VALUES (1, 'good soup'), (2, 'bad bread'), (3, NULL);
";
const SPEC: &str = r#"
[database]
path = "../data.sqlite"
[model]
name = "test-model"
base_url = "{base_url}"
api_key_env = "HQDL_TEST_KEY"
price = { input = 1.0, output = 2.0 }
[[expansion]]
name = "opinion"
source = "review"
key = ["id"]
context = ["body"]
[[expansion.column]]
name = "mood"
about = "the mood of the review"
questions = ["What is the mood?"]
"#;
const LIVE_QUERY: &str =
    "SELECT id, {{LLMMap('What is the mood?', review.id)}} AS mood FROM review ORDER BY id";

/// Answers with the text that the row shows.
fn answer(column: &AskedColumn, row: &AskedRow) -> Json {
    format!("{} of {}", column.name, row.context.first().unwrap_or(&json!("no context"))).into()
}

fn start_project() -> (Endpoint, Project) {
    let endpoint = Endpoint::start_answering(answer);
    let project = Project::new(&endpoint, TABLES, SPEC);
    (endpoint, project)
}

fn published_moods(project: &Project) -> Vec<Vec<Json>> {
    project.query_rows("SELECT id, mood FROM opinion ORDER BY id")
}

fn moods(texts: [&str; 3]) -> Vec<Vec<Json>> {
    let mood = |(n, text): (usize, &str)| vec![json!(n + 1), json!(format!("mood of {text}"))];
    texts.into_iter().enumerate().map(mood).collect()
}

const FIRST_TEXTS: [&str; 3] = ["\"good soup\"", "\"bad bread\"", "null"];

#[test]
fn a_changed_context_is_asked_about_again_and_nothing_else_is() {
    let (endpoint, project) = start_project();
    project.run_materialize(&[]).expect_exit_code(0);
    assert_eq!(published_moods(&project), moods(FIRST_TEXTS));
    let before = endpoint.request_count();
    project.execute_sql("UPDATE review SET body = 'cold soup' WHERE id = 1");
    let plan = project.run_plan(&[]);
    assert_eq!(plan["totals"]["cells"], 1, "{plan:#}");
    project.run_materialize(&[]).expect_exit_code(0);
    assert_eq!(published_moods(&project), moods(["\"cold soup\"", "\"bad bread\"", "null"]));
    assert_eq!(endpoint.cells_since(before), [(vec![json!(1)], "mood".to_owned())]);
    // The first text returns, and its answer with it.
    let before = endpoint.request_count();
    project.execute_sql("UPDATE review SET body = ' good soup ' WHERE id = 1");
    project.run_materialize(&[]).expect_exit_code(0);
    assert_eq!(published_moods(&project), moods(FIRST_TEXTS));
    assert_eq!(endpoint.request_count(), before);
}

#[test]
fn rows_of_two_databases_with_the_same_key_share_no_answer() {
    let (endpoint, project) = start_project();
    project.run_materialize(&[]).expect_exit_code(0);
    let other = TABLES.replace("good soup", "ACME, 30 days").replace("bad bread", "Initech");
    let path = project.path("other.sqlite");
    rusqlite::Connection::open(&path).unwrap().execute_batch(&other).unwrap();
    let spec = project.spec_text().replace("../data.sqlite", "../other.sqlite");
    std::fs::write(project.path("specs/other.toml"), spec).unwrap();
    let before = endpoint.request_count();
    project.run_hqdl(&["materialize", "specs/other.toml"]).expect_exit_code(0);
    let asked: Vec<Json> =
        endpoint.cells_since(before).into_iter().map(|(k, _)| k[0].clone()).collect();
    // The third row has no text in either database.
    assert_eq!(asked, [1, 2]);
    let other = rusqlite::Connection::open(path).unwrap();
    let rows = query_rows(&other, "SELECT id, mood FROM opinion ORDER BY id").unwrap();
    assert_eq!(rows, moods(["\"ACME, 30 days\"", "\"Initech\"", "null"]));
    // Both answers are stored, so neither run asks again.
    let before = endpoint.request_count();
    for spec in ["specs/x.toml", "specs/other.toml", "specs/x.toml"] {
        project.run_hqdl(&["materialize", spec]).expect_exit_code(0);
    }
    assert_eq!(endpoint.request_count(), before);
    assert_eq!(published_moods(&project), moods(FIRST_TEXTS));
}

#[test]
fn a_query_and_a_run_ask_about_the_same_row() {
    let (endpoint, project) = start_project();
    let query = |sql: &str| {
        let ended = project.run_hqdl(&["query", "--spec", "specs/x.toml", "--json", sql]);
        ended.expect_exit_code(0).lines[0].clone()
    };
    let explain = || {
        let args = ["explain", "--spec", "specs/x.toml", "--json", LIVE_QUERY];
        project.run_hqdl(&args).expect_exit_code(0).lines[0].clone()
    };
    project.execute_sql(&format!(
        "UPDATE review SET body = body || '{}' WHERE id = 1",
        " word".repeat(400)
    ));
    let long_text = format!("\"good soup{}\"", " word".repeat(400));
    let texts = [long_text.as_str(), FIRST_TEXTS[1], FIRST_TEXTS[2]];
    // The bound on the cost counts the context.
    let explained = explain();
    let result = query(LIVE_QUERY);
    assert_eq!(result["rows"], json!(moods(texts)));
    let [bound, cost] = [&explained["cost_usd"], &result["meta"]["cost_usd"]].map(Json::as_f64);
    assert!(bound.unwrap() >= cost.unwrap() && cost.unwrap() > 0.0, "{explained:#} {result:#}");
    // The run finds the query's answers.
    let before = endpoint.request_count();
    project.run_materialize(&[]).expect_exit_code(0);
    assert_eq!(published_moods(&project), moods(texts));
    assert_eq!(endpoint.request_count(), before);
    // A query does not find the answer to an earlier text.
    project.execute_sql("UPDATE review SET body = 'cold soup' WHERE id = 1");
    let result = query(LIVE_QUERY);
    assert_eq!(result["rows"], json!(moods(["\"cold soup\"", texts[1], texts[2]])));
    assert_eq!(endpoint.cells_since(before), [(vec![json!(1)], "mood".to_owned())]);
}

/// An index changes the order in which `SQLite` reads the rows.
#[test]
fn the_order_of_rows_does_not_decide_which_context_is_shown() {
    let (endpoint, project) = start_project();
    let tables = "DROP TABLE review; CREATE TABLE review (id, body, other);
        INSERT INTO review VALUES (1, 'zzz', 1), (1, NULL, 1), (1, 'aaa', 1), (2, NULL, 1);";
    project.execute_sql(tables);
    project.run_materialize(&[]).expect_exit_code(0);
    let expected: Vec<Vec<Json>> =
        vec![vec![json!(1), json!("mood of \"aaa\"")], vec![json!(2), json!("mood of null")]];
    assert_eq!(published_moods(&project), expected);
    project.execute_sql("CREATE INDEX by_body ON review (id, body DESC)");
    project.run_materialize(&[]).expect_exit_code(0);
    project.run_materialize(&["--where", "other = 1"]).expect_exit_code(0);
    assert_eq!(published_moods(&project), expected);
    assert_eq!(endpoint.cells_since(0).len(), 2);
}

#[test]
fn all_spellings_of_a_key_share_one_context() {
    let (endpoint, project) = start_project();
    let tables = "DROP TABLE review; CREATE TABLE review (id, body);
        INSERT INTO review VALUES (1, 'good soup'), ('1', 'bad bread'), (' 1', 'salt'), (2, 'salt');";
    project.execute_sql(tables);
    let moods = |key: &str| {
        let sql = format!("SELECT DISTINCT mood FROM opinion WHERE trim(id) = '{key}'");
        project.query_rows(&sql)
    };
    project.run_materialize(&[]).expect_exit_code(0);
    let first = moods("1");
    assert_eq!((first.len(), moods("2")), (1, vec![vec![json!("mood of \"salt\"")]]));
    // The rows are read in another order.
    let reverse = "CREATE TABLE r AS SELECT * FROM review ORDER BY rowid DESC;
        DROP VIEW review_expanded; DROP TABLE review; ALTER TABLE r RENAME TO review;";
    project.execute_sql(reverse);
    project.run_materialize(&[]).expect_exit_code(0);
    let args = ["query", "--spec", "specs/x.toml", "--json", LIVE_QUERY];
    let shown = project.run_hqdl(&args).expect_exit_code(0).lines[0]["rows"].clone();
    assert_eq!(moods("1"), first);
    assert!(shown.as_array().unwrap().iter().any(|row| row[1] == first[0][0]), "{shown}");
    assert_eq!(endpoint.cells_since(0).len(), 2);
}

const HEROES_SPEC: &str = r#"
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
source = "hero"
key = ["name"]
context = ["note"]
[[expansion.column]]
name = "publisher"
questions = ["Which publisher?", { ask = "Is it from {value}?", sql = "publisher = {value}" }]
[[expansion.column]]
name = "gender"
questions = ["Which gender?"]
[[expansion.column]]
name = "year"
type = "integer"
questions = ["Which year?"]
"#;

/// Starts an endpoint that knows the first two columns as `Marvel`, and as years 1999.
fn start_heroes(tables: &str) -> (Endpoint, Project) {
    let endpoint = Endpoint::start_answering(|column, _| match column.data_type.as_str() {
        "integer" => json!(1999),
        _ => json!("Marvel"),
    });
    let project = Project::new(&endpoint, tables, HEROES_SPEC);
    (endpoint, project)
}

/// A row that several passes ask about repeats its context in each of them, and the row with the
/// longest key may have a short context. Digits have more tokens than words of the same length.
#[test]
fn the_maximum_cost_counts_the_context_of_each_request() {
    let words = "replace(hex(zeroblob(400)), '00', ' word')";
    let digits = "replace(hex(zeroblob(400)), '00', ' 7 4')";
    let query = "SELECT name FROM hero WHERE {{LLMMap('Which publisher?', hero.name)}} = 'Marvel'
        AND {{LLMMap('Which gender?', hero.name)}} = 'Marvel'
        AND {{LLMMap('Which year?', hero.name)}} = 1999";
    for notes in [words.to_owned(), format!("iif(value = 3, {digits}, {words})")] {
        let tables = format!(
            "CREATE TABLE hero (name TEXT PRIMARY KEY, note TEXT);
            INSERT INTO hero VALUES (replace(hex(zeroblob(30)), '0', 'A'), 'x');
            WITH RECURSIVE n(value) AS (SELECT 1 UNION ALL SELECT value + 1 FROM n LIMIT 40)
            INSERT INTO hero SELECT 'h' || value, {notes} FROM n"
        );
        for rows_per_request in ["1", "20"] {
            let (endpoint, project) = start_heroes(&tables);
            let run = |command: &str| {
                let flags = ["--spec", "specs/x.toml", "--json", "--rows-per-request"];
                let args = [&[command], &flags[..], &[rows_per_request, query]].concat();
                project.run_hqdl(&args).expect_exit_code(0).lines[0].clone()
            };
            let explained = run("explain");
            let result = run("query");
            assert_eq!(result["rows"].as_array().map(Vec::len), Some(41));
            for figure in ["input_tokens", "cost_usd", "requests"] {
                let [bound, used] =
                    [&explained[figure], &result["meta"][figure]].map(|n| n.as_f64().unwrap());
                assert!(bound >= used && used > 0.0, "{figure}: {explained:#} {result:#}");
            }
            assert!(endpoint.request_count() > 6);
        }
    }
}

#[test]
fn a_bound_question_reads_the_published_values() {
    let (endpoint, project) = start_heroes(
        "CREATE TABLE hero (name TEXT PRIMARY KEY, note TEXT);
        INSERT INTO hero VALUES ('Storm', 'weather'), ('Rogue', 'powers');",
    );
    project.run_materialize(&[]).expect_exit_code(0);
    let before = endpoint.request_count();
    let sql = "SELECT name FROM hero WHERE {{LLMMap('Is it from Marvel?', hero.name)}} ORDER BY 1";
    let args = ["query", "--spec", "specs/x.toml", "--json", sql];
    let result = project.run_hqdl(&args).expect_exit_code(0).lines[0].clone();
    assert_eq!(result["rows"], json!([["Rogue"], ["Storm"]]));
    assert_eq!(result["meta"]["values_asked"], 0, "{result:#}");
    assert_eq!(endpoint.request_count(), before);
}
