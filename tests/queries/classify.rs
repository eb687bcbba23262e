//! Tests of words in a query that are not among the few values of a column.

use hqdl::prompt::{AskedColumn, AskedRow};
use serde_json::{Value as Json, json};

use hqdl_testkit::endpoint::Endpoint;
use hqdl_testkit::project::{CommandResult, Project};

const SPEC: &str = r#"
[database]
path = "../data.sqlite"
[model]
name = "gpt-4o-mini"
base_url = "{base_url}"
[[expansion]]
name = "llm"
source = "place"
key = ["name"]
[[expansion.column]]
name = "mood"
values = ["calm", "lively", "romantic"]
CLASSIFY
"#;

/// Answers like a model that knows which words mean the same.
fn meant(column: &AskedColumn, row: &AskedRow) -> Json {
    if column.name == "mood" {
        return json!("lively");
    }
    let all: &[&str] = match row.key[0].as_str().unwrap_or_default() {
        "inexpensive" => &["cheap", "moderate"],
        "fancy" => &["luxury", "expensive"],
        "bbq" => &["barbecue"],
        "busy" => &["lively"],
        "free" => return Json::Null,
        _ => &[],
    };
    let list = column.values.as_ref().unwrap();
    all.iter().filter(|v| list.iter().any(|l| l == *v)).map(|v| json!(v)).collect()
}

fn project(endpoint: &Endpoint, classify: &str) -> Project {
    Project::new(
        endpoint,
        "CREATE TABLE place (id INTEGER, name TEXT, price TEXT CHECK (price IN ('cheap', 'moderate', 'expensive', 'luxury')), cuisines TEXT, city TEXT);
         WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 39)
         INSERT INTO place SELECT i, 'Place ' || i, CASE i % 5 WHEN 0 THEN 'cheap' WHEN 1 THEN 'moderate' WHEN 2 THEN 'expensive' WHEN 3 THEN 'luxury' END,
           CASE WHEN i % 2 THEN '[\"barbecue\",\"grill\"]' ELSE '[\"thai\"]' END, CASE WHEN i % 2 THEN 'Oslo' ELSE 'Rome' END FROM n;",
        &SPEC.replace("CLASSIFY", classify),
    )
}

fn query(project: &Project, flags: &[&str], sql: &str) -> CommandResult {
    project
        .run_hqdl(&[&["query", "--spec", "specs/x.toml", "--json"], flags, &["--", sql]].concat())
}

#[test]
fn other_words_match_values_with_the_same_meaning() {
    let endpoint = Endpoint::start_answering(meant);
    let project = project(&endpoint, "");
    let cases: [(&str, &str, usize); 11] = [
        ("price = 'inexpensive'", "price IN ('cheap', 'moderate')", 1),
        ("price <> 'inexpensive'", "price NOT IN ('cheap', 'moderate')", 0),
        ("price IN ('cheap', 'fancy')", "price IN ('cheap', 'luxury', 'expensive')", 1),
        (
            "price NOT IN ('cheap', 'fancy') AND id > 3",
            "price NOT IN ('cheap', 'luxury', 'expensive') AND id > 3",
            0,
        ),
        (
            "NOT price = 'inexpensive' OR city = 'Rome'",
            "NOT price IN ('cheap', 'moderate') OR city = 'Rome'",
            0,
        ),
        // Words on the list, apart from letter case: no request is made.
        ("price = 'cheap' AND city = 'oslo'", "price = 'cheap' AND city = 'Oslo'", 0),
        // A word that means no value of the list.
        ("price = 'purple'", "0", 1),
        ("price <> 'purple'", "price IS NOT NULL", 0),
        // Lists found in the data, of texts and of arrays.
        ("'bbq' = ANY (cuisines)", "cuisines LIKE '%barbecue%'", 1),
        ("price = ANY (ARRAY['inexpensive'])", "price IN ('cheap', 'moderate')", 0),
        // A column without a list is compared as usual.
        ("name = 'place'", "name = 'place'", 0),
    ];
    for (condition, plain, asked) in cases {
        let before = endpoint.request_count();
        let sql = format!("SELECT id FROM place WHERE {condition} ORDER BY id");
        let ended = query(&project, &["--dialect", "suql", "--classify"], &sql).expect_exit_code(0);
        let expected =
            project.query_rows(&format!("SELECT id FROM place WHERE {plain} ORDER BY id"));
        assert_eq!(ended.lines[0]["rows"], json!(expected), "{condition}");
        assert_eq!(endpoint.request_count() - before, asked, "{condition}");
    }
    // A word whose meaning is unknown equals no value.
    let ended = query(&project, &["--classify"], "SELECT id FROM place WHERE price = 'free'")
        .expect_exit_code(0);
    assert_eq!(ended.lines[0]["rows"], json!([]));
    // Without the option, it is plain SQL.
    let before = endpoint.request_count();
    let ended = query(&project, &[], "SELECT count(*) FROM place WHERE price = 'inexpensive'")
        .expect_exit_code(0);
    assert_eq!(ended.lines[0]["rows"], json!([[0]]));
    assert_eq!(endpoint.request_count(), before);
}

#[test]
fn names_after_an_alias_are_those_of_the_columns() {
    let endpoint = Endpoint::start_answering(meant);
    let project = project(&endpoint, "");
    for (from, condition, plain) in [
        ("(SELECT id, price FROM place) AS s(id, worth)", "s.worth = 'inexpensive'", 16),
        (
            "(SELECT id, price AS name, name AS price FROM place) AS s(id, price, name)",
            "s.price = 'inexpensive'",
            16,
        ),
        ("(SELECT id, price, name FROM place) AS s(id, name, price)", "s.price = 'inexpensive'", 0),
    ] {
        let sql = format!("SELECT count(*) FROM {from} WHERE {condition}");
        let ended = query(&project, &["--classify"], &sql).expect_exit_code(0);
        assert_eq!(ended.lines[0]["rows"], json!([[plain]]), "{sql}");
    }
    assert_eq!(endpoint.request_count(), 1);
}

#[test]
fn the_spec_enables_it_for_a_column() {
    let endpoint = Endpoint::start_answering(meant);
    let project = project(&endpoint, "classify = true");
    project.run_materialize(&[]).expect_exit_code(0);
    let before = endpoint.request_count();
    let sql = "SELECT count(*) FROM llm WHERE mood = 'busy'";
    let ended = query(&project, &[], sql).expect_exit_code(0);
    assert_eq!(ended.lines[0]["rows"], json!([[40]]));
    assert_eq!(endpoint.request_count(), before + 1);
    let explained =
        project.run_hqdl(&["explain", "--spec", "specs/x.toml", sql]).expect_exit_code(0);
    assert!(
        explained.stdout.contains("mean the same") && explained.stdout.contains("'busy'"),
        "{}",
        explained.stdout
    );
    // The setting does not apply to other columns.
    let ended = query(&project, &[], "SELECT count(*) FROM place WHERE price = 'inexpensive'")
        .expect_exit_code(0);
    assert_eq!(ended.lines[0]["rows"], json!([[0]]));
    assert_eq!(endpoint.request_count(), before + 1);
    // Errors point into the original query.
    let ended = query(&project, &[], "SELECT nme FROM llm WHERE mood = 'busy' AND nam = 1")
        .expect_exit_code(2);
    assert!(ended.stderr.contains("<query>:1:8"), "{}", ended.stderr);
    let ended = query(&project, &[], "SELECT name FROM llm WHERE mood = 'busy' AND nam = 1")
        .expect_exit_code(2);
    assert!(ended.stderr.contains("<query>:1:46"), "{}", ended.stderr);
    // Without a list, there is nothing to choose from.
    project.write_spec(
        &SPEC
            .replace("CLASSIFY", "classify = true")
            .replace("values = [\"calm\", \"lively\", \"romantic\"]\n", ""),
    );
    let ended = project.run_hqdl(&["check", "specs/x.toml"]).expect_exit_code(2);
    assert!(ended.stderr.contains("`classify` needs `values`"), "{}", ended.stderr);
}
