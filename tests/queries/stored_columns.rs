//! Tests of queries over published columns: the tables answer if they agree with the facts, and the
//! rows are the same if they do not.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value as Json, json};

use hqdl_testkit::endpoint::Endpoint;
use hqdl_testkit::project::{Project, heroes_project, true_value, truthful_endpoint};

const EYES: &str = "SELECT name, full_name, {{LLMMap('What is the eye colour?', hero.name)}} AS eye \
                    FROM hero ORDER BY id";

/// Returns rows, requests, and whether the tables answered.
fn ask(project: &Project, sql: &str) -> (Vec<Vec<Json>>, u64, bool) {
    let ended = project.run_hqdl(&["query", "--spec", "specs/x.toml", "--json", sql]);
    assert!(matches!(ended.code, 0 | 1), "{}", ended.stderr);
    let json: Json = serde_json::from_str(&ended.stdout).unwrap();
    let list = |json: &Json| json.as_array().cloned().unwrap();
    let rows = list(&json["rows"]).iter().map(list).collect();
    let run = json["meta"]["sql"].as_str().unwrap();
    let tables = run.contains("FROM \"llm\"") || run.contains("FROM llm");
    (rows, json["meta"]["requests"].as_u64().unwrap(), tables)
}

fn are_true(rows: &[Vec<Json>]) {
    for row in rows {
        assert_eq!(row[2], true_value("eye_color", &row[..2]), "{row:?}");
    }
}

#[test]
fn published_columns_are_read_from_their_tables() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    project.run_materialize(&[]).expect_exit_code(0);
    let (rows, requests, tables) = ask(&project, EYES);
    assert_eq!((rows.len(), requests, tables), (10, 0, true));
    are_true(&rows);
    // Queries whose result a join would change, or that `SQLite` does not flatten.
    for sql in [
        "SELECT * FROM hero WHERE {{LLMMap('What is the eye colour?', hero.name)}} = 'Blue'",
        "SELECT DISTINCT h.id, h.name, h.full_name, h.height FROM hero h \
         WHERE {{LLMMap('What is the eye colour?', h.name)}} = 'Blue'",
        "SELECT h.id, h.name, h.full_name, h.height FROM hero h WHERE id IN (SELECT id FROM hero g \
         WHERE {{LLMMap('What is the eye colour?', g.name)}} = 'Blue') GROUP BY h.id",
        "SELECT a.* FROM hero a JOIN hero b ON a.id = b.id AND \
         {{LLMMap('What is the eye colour?', b.name)}} = 'Blue'",
    ] {
        let (mut found, requests, tables) = ask(&project, sql);
        found.sort_by_key(|r| r[0].as_i64());
        let blue = "SELECT h.* FROM hero h JOIN llm ON h.name = llm.name AND h.full_name IS llm.full_name \
                    WHERE eye_color = 'Blue' ORDER BY id";
        assert_eq!(found, project.query_rows(blue), "{sql}");
        assert_eq!((requests, tables), (0, true), "{sql}");
    }
}

#[test]
fn new_rows_and_rows_without_an_entity_use_the_function() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    project.run_materialize(&[]).expect_exit_code(0);
    project.execute_sql("INSERT INTO hero (name, full_name) VALUES (NULL, 'Nobody')");
    let (rows, requests, tables) = ask(&project, EYES);
    assert_eq!((rows[10][2].clone(), requests, tables), (Json::Null, 0, true));
    project.execute_sql("DELETE FROM hero WHERE name IS NULL");
    project.execute_sql(
        "INSERT INTO hero (name, full_name) VALUES ('Newt', NULL), (' Zed ', 'Zed Zedsson')",
    );
    let (rows, requests, tables) = ask(&project, EYES);
    assert_eq!((rows.len(), requests, tables), (12, 1, false), "one is new, one another spelling");
    are_true(&rows);
    let (rows, requests, tables) = ask(&project, EYES);
    assert_eq!((requests, tables), (0, true), "the facts fill what the table lacks");
    are_true(&rows);
}

#[test]
fn an_unknown_value_stays_null_and_is_not_requested_again() {
    let endpoint = Endpoint::start_with(|column, key| match key[0].as_str() {
        Some("Zed") => Json::Null,
        _ => true_value(column, key),
    });
    let project = heroes_project(&endpoint, "csv");
    project.run_materialize(&[]).expect_exit_code(0);
    let (rows, requests, tables) = ask(&project, EYES);
    assert_eq!((rows[9][2].clone(), requests, tables), (Json::Null, 0, true));
}

#[test]
fn an_override_after_publishing_takes_precedence_over_the_table() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    project.run_materialize(&[]).expect_exit_code(0);
    let other =
        json!(if true_value("eye_color", &[json!("Zed"), json!("Zed Zedsson")]) == "Blue" {
            "Green"
        } else {
            "Blue"
        });
    let line = format!("Zed,Zed Zedsson,eye_color,{},\n", other.as_str().unwrap());
    let text = format!("name,full_name,column,value,note\n{line}");
    std::fs::write(project.path("specs/x.overrides.csv"), text).unwrap();
    let (rows, requests, tables) = ask(&project, EYES);
    assert_eq!((rows[9][2].clone(), requests, tables), (other.clone(), 0, false));
    project.run_materialize(&[]).expect_exit_code(0);
    let (rows, _, tables) = ask(&project, EYES);
    assert_eq!((rows[9][2].clone(), tables), (other, true), "published, it is in the table");
}

#[test]
fn a_table_with_another_meaning_is_not_read() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    project.run_materialize(&[]).expect_exit_code(0);
    let spec = project.spec_text().replace("colour of the eyes", "colour of the left eye");
    std::fs::write(project.path("specs/x.toml"), spec).unwrap();
    let (rows, requests, tables) = ask(&project, EYES);
    assert!(requests > 0 && !tables);
    are_true(&rows);
}

#[test]
fn facts_changed_after_publishing_take_precedence_over_the_table() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    project.run_materialize(&[]).expect_exit_code(0);
    let exported = project.run_hqdl(&["cache", "export"]).expect_exit_code(0).stdout;
    let line = exported
        .lines()
        .find(|l| l.contains("Zedsson") && l.contains("\"eye_color\""))
        .expect("a fact about Zed's eyes");
    let mut fact: Json = serde_json::from_str(line).unwrap();
    let other = if fact["value"] == "Blue" { "Green" } else { "Blue" };
    fact["value"] = other.into();
    fact["asked_at"] = "2999-01-01T00:00:00Z".into();
    std::fs::write(project.path("facts.jsonl"), format!("{fact}\n")).unwrap();
    project.run_hqdl(&["cache", "import", "facts.jsonl"]).expect_exit_code(0);
    let (rows, requests, tables) = ask(&project, EYES);
    assert_eq!((rows[9][2].clone(), requests, tables), (other.into(), 0, false));
}

#[test]
fn another_cache_does_not_know_the_table() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    project.run_materialize(&[]).expect_exit_code(0);
    std::fs::rename(project.path("cache"), project.path("elsewhere")).unwrap();
    let (rows, requests, tables) = ask(&project, EYES);
    assert!(requests > 0 && !tables);
    are_true(&rows);
}

#[test]
fn a_bare_name_of_a_part_of_the_key_was_taken_for_the_sources_own() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    project.execute_sql("DELETE FROM hero WHERE full_name = 'Bob Fire'");
    project.run_materialize(&[]).expect_exit_code(0);
    let sql = "WITH t AS (SELECT name FROM hero) \
               SELECT name, {{LLMMap('What is the eye colour?', name)}} FROM t ORDER BY name";
    let (rows, requests, _) = ask(&project, sql);
    assert_eq!((rows.len(), requests), (9, 0));
    assert_eq!(rows, project.query_rows("SELECT name, eye_color FROM llm ORDER BY name"));
}

#[test]
fn options_of_a_plain_table_had_the_query_run_itself_for_ever() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    let sql = "WITH t AS (SELECT name, {{LLMMap('Which power?', hero.name, options=power.power)}} AS p \
               FROM hero) SELECT count(*) FROM t";
    let ended = project.run_hqdl(&["explain", "--spec", "specs/x.toml", sql]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
}

#[test]
fn a_limit_that_is_reached_early_reads_no_further() {
    let asked = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&asked);
    let endpoint = Endpoint::start_with(move |column, _| {
        seen.store(true, Ordering::SeqCst);
        if column == "answer" { json!("yes") } else { json!(true) }
    });
    let project = heroes_project(&endpoint, "csv");
    project.execute_sql(
        "CREATE TABLE many AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000)
         SELECT i, 'thing ' || i AS name FROM n",
    );
    let sql = "SELECT i FROM many WHERE {{LLMMap('Is it so?', many.name)}} = TRUE LIMIT 10";
    let (rows, requests, _) = ask(&project, sql);
    assert!(asked.load(Ordering::SeqCst));
    assert_eq!(rows, (1..=10).map(|i| vec![json!(i)]).collect::<Vec<_>>());
    assert!(requests <= 20, "{requests}");
}
