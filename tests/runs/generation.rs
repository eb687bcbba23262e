//! Tests of what is requested and what is not, with the built program and an endpoint.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value as Json, json};

use hqdl_testkit::endpoint::{Endpoint, Fault, Frequency};
use hqdl_testkit::project::{
    COLUMN_NAMES, EXPANSION, EXPANSION_COLUMNS, HERO_COUNT, HEROES, MODEL, Project, check_cells,
    check_cells_in, check_complete, heroes_project, heroes_spec, true_value, truthful_endpoint,
};

/// Returns the columns of some cells.
fn columns(cells: &[(Vec<Json>, String)]) -> BTreeSet<&str> {
    cells.iter().map(|(_, c)| c.as_str()).collect()
}

#[test]
fn a_complete_run_publishes_the_truth_in_either_format() {
    for format in ["csv", "json"] {
        let endpoint = truthful_endpoint();
        let project = heroes_project(&endpoint, format);
        let ended = project.run_materialize(&[]).expect_exit_code(0);
        check_complete(&project);
        assert_eq!(endpoint.request_count(), 3, "ten rows, four a request");
        assert!(endpoint.received_requests().iter().all(|r| r.question.rows.len() <= 4));
        let done = ended.done_event();
        assert_eq!(done["cells"]["ok"], 40);
        assert_eq!(done["requests"], 3);
    }
}

#[test]
fn the_done_event_reports_usage() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    let first = project.run_materialize(&[]).expect_exit_code(0);
    let done = first.done_event();
    let (input, output) = endpoint.billed_tokens();
    assert_eq!(done["input_tokens"], input);
    assert_eq!(done["output_tokens"], output);
    let cost = (input as f64 + 2.0 * output as f64) / 1e6;
    assert!((done["cost_usd"].as_f64().unwrap() - cost).abs() < 1e-9, "{done}");
    assert!(done["seconds"].as_f64().unwrap() > 0.0);
    assert_eq!(done["cells_reused"], 0);
    let states: Vec<&String> = done["cells"].as_object().unwrap().keys().collect();
    let all = ["ok", "unknown", "not_in_list", "invalid", "refused", "error", "overridden"];
    assert_eq!(states, all);
    assert_eq!(first.lines.last().unwrap()["event"], "done");
    assert!(first.stdout.lines().count() == first.lines.len(), "stdout is JSON lines alone");

    let second = project.run_materialize(&[]).expect_exit_code(0);
    let done = second.done_event();
    assert_eq!(done["cells_reused"], 40);
    assert_eq!(done["requests"], 0);
    assert_eq!(done["cost_usd"].as_f64(), Some(0.0));
}

#[test]
fn a_second_run_requests_nothing() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "json");
    project.run_materialize(&[]).expect_exit_code(0);
    let before = endpoint.request_count();
    project.run_materialize(&[]).expect_exit_code(0);
    assert_eq!(endpoint.request_count(), before);
    check_complete(&project);
}

#[test]
fn a_dropped_table_is_published_again_without_a_request() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    project.run_materialize(&[]).expect_exit_code(0);
    for table in ["llm", "llm_power"] {
        project.execute_sql(&format!("DROP TABLE {table}"));
        let ended = project.run_materialize(&[]).expect_exit_code(0);
        assert_eq!(ended.done_event()["requests"], 0);
        check_complete(&project);
    }
    assert_eq!(endpoint.request_count(), 3);
}

#[test]
fn the_index_may_be_deleted_at_any_time() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    project.run_materialize(&[]).expect_exit_code(0);
    std::fs::remove_file(project.path("cache/index.sqlite")).unwrap();
    project.execute_sql("DROP TABLE llm");
    project.run_materialize(&[]).expect_exit_code(0);
    check_complete(&project);
    assert_eq!(endpoint.request_count(), 3);
}

#[test]
fn an_added_column_costs_exactly_its_cells() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    project.run_materialize(&[]).expect_exit_code(0);
    let before = endpoint.request_count();
    let more = "\n[[expansion.column]]\nname = \"lair\"\nabout = \"where the hero lives\"\n";
    project.write_spec(&(heroes_spec() + more));
    let plan = project.run_plan(&[]);
    assert_eq!(plan["totals"]["cells"], 10);
    assert_eq!(plan["expansions"][0]["columns"][4]["reasons"]["new_column"], 10);
    project.run_materialize(&[]).expect_exit_code(0);
    let asked = endpoint.cells_since(before);
    assert_eq!(asked.len(), 10);
    assert_eq!(columns(&asked), BTreeSet::from(["lair"]));
    check_cells(&project);
    for row in project.query_rows("SELECT name, full_name, lair FROM llm") {
        assert_eq!(row[2], true_value("lair", &row[..2]));
    }
}

#[test]
fn an_added_row_costs_exactly_its_cells() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    project.run_materialize(&[]).expect_exit_code(0);
    let before = endpoint.request_count();
    project.execute_sql("INSERT INTO hero (name, full_name) VALUES ('New One', 'Nina')");
    let plan = project.run_plan(&[]);
    assert_eq!(plan["totals"]["cells"], 4);
    assert_eq!(plan["expansions"][0]["columns"][0]["reasons"]["new_row"], 1);
    project.run_materialize(&[]).expect_exit_code(0);
    let asked = endpoint.cells_since(before);
    assert_eq!(asked.len(), 4);
    assert!(asked.iter().all(|(key, _)| key[0] == "New One"));
    assert_eq!(check_cells(&project)["ok"], 44);
}

#[test]
fn a_reworded_question_or_a_reformatted_spec_costs_nothing() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    project.run_materialize(&[]).expect_exit_code(0);
    let reworded = heroes_spec()
        .replace("What is the eye colour?", "Which colour do the eyes have?")
        .replace("rows_per_request = 4", "rows_per_request = 2")
        .replace("concurrency = 4", "concurrency = 1")
        .replace("input = 1.0", "input = 9.0")
        .replace("format = \"csv\"", "format = \"json\"")
        .replace("name = ", "name   =   ")
        .replace("colour of the eyes", "colour  of the\\teyes ")
        .replace(
            "[\"Blue\", \"Brown\", \"Green\"]",
            "[ # in another order\n \"Green\",\n \"Brown\", \"Blue\" ]",
        );
    project.write_spec(&reworded);
    assert_eq!(project.run_plan(&[])["totals"]["cells"], 0);
    project.run_materialize(&[]).expect_exit_code(0);
    assert_eq!(endpoint.request_count(), 3);
    // The columns in another order, too.
    let (first, rest) = EXPANSION_COLUMNS
        .trim_start()
        .split_at(EXPANSION_COLUMNS.trim_start()[1..].find("[[").unwrap() + 1);
    project.write_spec(&[MODEL, EXPANSION, rest, "\n", first].concat());
    project.run_materialize(&[]).expect_exit_code(0);
    assert_eq!(endpoint.request_count(), 3);
    check_complete(&project);
}

#[test]
fn a_second_database_with_the_same_entities_costs_nothing() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    project.run_materialize(&[]).expect_exit_code(0);
    // Other ids, another order, and an additional table.
    let other = rusqlite::Connection::open(project.path("other.sqlite")).unwrap();
    other.execute_batch(HEROES).unwrap();
    other
        .execute_batch(
            "CREATE TABLE copy AS SELECT * FROM hero ORDER BY id DESC; DELETE FROM hero;
             INSERT INTO hero (name, full_name) SELECT name, full_name FROM copy ORDER BY rowid;",
        )
        .unwrap();
    drop(other);
    let ended = project.run_materialize(&["--db", "other.sqlite"]).expect_exit_code(0);
    assert_eq!(ended.done_event()["requests"], 0);
    assert_eq!(endpoint.request_count(), 3);
    assert_eq!(check_cells_in(&project, "other.sqlite")["ok"], 40);
}

#[test]
fn a_changed_value_list_asks_only_for_what_it_touches() {
    // Zed's eye colour is unknown, the Captain's is not on the list.
    let endpoint = Endpoint::start_with(|column, key| match (column, key[0].as_str()) {
        ("eye_color", Some("Zed")) => Json::Null,
        ("eye_color", Some("Captain O'Malley")) => "Plaid".into(),
        _ => true_value(column, key),
    });
    let project = heroes_project(&endpoint, "csv");
    project.run_materialize(&[]).expect_exit_code(1);
    let states = check_cells(&project);
    assert_eq!((states["unknown"], states["not_in_list"]), (1, 1));
    let before = endpoint.request_count();
    // With a longer list, values that were on the old one stay valid.
    project.write_spec(&heroes_spec().replace("\"Green\"", "\"Green\", \"Plaid\""));
    let plan = project.run_plan(&[]);
    assert_eq!(plan["expansions"][0]["columns"][0]["reasons"]["changed_list"], 2);
    project.run_materialize(&[]).expect_exit_code(0);
    let asked = endpoint.cells_since(before);
    assert_eq!(columns(&asked), BTreeSet::from(["eye_color"]));
    let names: BTreeSet<&str> = asked.iter().map(|(k, _)| k[0].as_str().unwrap()).collect();
    assert_eq!(names, BTreeSet::from(["Zed", "Captain O'Malley"]));
    let captain = project.query_rows("SELECT eye_color FROM llm WHERE name LIKE 'Captain%'");
    assert_eq!(captain[0][0], "Plaid");
    // With a shorter list, values that are no longer on it are requested again, and so are unknown
    // ones.
    let before = endpoint.request_count();
    project.write_spec(&heroes_spec().replace("\"Green\"", "\"Plaid\""));
    let green = project.query_rows("SELECT name, full_name FROM llm WHERE eye_color = 'Green'");
    assert!(!green.is_empty() && green.len() < 8, "the test's truth has some green eyes");
    project.run_materialize(&[]).expect_exit_code(1);
    let asked = endpoint.cells_since(before);
    assert_eq!(asked.len(), green.len() + 1);
    assert!(asked.iter().all(|(k, _)| k[0] == "Zed" || green.contains(k)));
    // The model still answers Green: the cell has no value, and the reason is stored.
    let left = project.query_rows(
        "SELECT state FROM hqdl_cell WHERE \"column\" = 'eye_color' AND state = 'not_in_list'",
    );
    assert_eq!(left.len(), green.len());
    assert!(project.query_rows("SELECT 1 FROM llm WHERE eye_color = 'Green'").is_empty());
}

#[test]
fn another_model_is_asked_unless_facts_of_any_model_are_reused() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    project.run_materialize(&[]).expect_exit_code(0);
    let other = heroes_spec().replace("test-model", "other-model");
    project.write_spec(&other.replace("[limits]", "reuse = \"any-model\"\n[limits]").replace(
        "price = { input = 1.0, output = 2.0 }\n\nreuse",
        "price = { input = 1.0, output = 2.0 }\nreuse",
    ));
    project.run_materialize(&[]).expect_exit_code(0);
    assert_eq!(endpoint.request_count(), 3);
    check_complete(&project);
    project.write_spec(&other);
    let plan = project.run_plan(&[]);
    assert_eq!(plan["expansions"][0]["columns"][0]["reasons"]["other_model"], 10);
    project.run_materialize(&[]).expect_exit_code(0);
    assert_eq!(endpoint.request_count(), 6);
    assert_eq!(endpoint.received_requests()[5].body["model"], "other-model");
    // Back to the first model: its facts are still there.
    project.write_spec(&heroes_spec());
    project.run_materialize(&[]).expect_exit_code(0);
    assert_eq!(endpoint.request_count(), 6);
    check_complete(&project);
}

#[test]
fn the_model_flag_overrides_the_spec() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    project.run_materialize(&["--model", "flagged"]).expect_exit_code(0);
    assert!(endpoint.received_requests().iter().all(|r| r.body["model"] == "flagged"));
    let models = project.query_rows("SELECT DISTINCT model FROM hqdl_cell");
    assert_eq!(models, [[json!("flagged")]]);
}

#[test]
fn the_base_url_flag_overrides_the_spec() {
    let (named, flagged) = (truthful_endpoint(), truthful_endpoint());
    let project = heroes_project(&named, "csv");
    project.run_materialize(&["--base-url", &flagged.base_url()]).expect_exit_code(0);
    assert_eq!((named.request_count(), flagged.request_count()), (0, 3));
}

#[test]
fn the_next_run_requests_only_error_cells_again() {
    let endpoint = truthful_endpoint();
    // Every request about Zed is too long for this model, even alone.
    endpoint.add_fault_where(Fault::TooLarge(0), Frequency::Always, |q| {
        q.rows.iter().any(|r| r.key[0] == "Zed")
    });
    let project = heroes_project(&endpoint, "json");
    let ended = project.run_materialize(&[]).expect_exit_code(1);
    assert_eq!(ended.done_event()["cells"]["error"], 4);
    let states = check_cells(&project);
    assert_eq!((states["ok"], states["error"]), (36, 4));
    let said = project.query_rows("SELECT error FROM hqdl_cell WHERE state = 'error'");
    assert!(said[0][0].as_str().unwrap().contains("too large"), "{said:?}");
    endpoint.clear_faults();
    let before = endpoint.request_count();
    let plan = project.run_plan(&[]);
    assert_eq!(plan["expansions"][0]["columns"][0]["reasons"]["failed"], 1);
    project.run_materialize(&[]).expect_exit_code(0);
    let asked = endpoint.cells_since(before);
    assert_eq!(asked.len(), 4);
    assert!(asked.iter().all(|(k, _)| k[0] == "Zed"));
    check_complete(&project);
}

#[test]
fn limit_requests_the_first_keys_and_the_next_run_continues() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    let ended = project.run_materialize(&["--limit", "3"]).expect_exit_code(0);
    assert_eq!(ended.done_event()["cells"]["ok"], 12);
    assert_eq!(project.query_rows("SELECT name FROM llm").len(), 3);
    let first: BTreeSet<_> =
        endpoint.cells_since(0).into_iter().map(|(k, c)| (json!(k).to_string(), c)).collect();
    assert_eq!(first.len(), 12);
    let before = endpoint.request_count();
    project.run_materialize(&["--limit", "3"]).expect_exit_code(0);
    let second = endpoint.cells_since(before);
    assert_eq!(second.len(), 12);
    assert!(second.iter().all(|(k, c)| !first.contains(&(json!(k).to_string(), c.clone()))));
    project.run_materialize(&[]).expect_exit_code(0);
    assert_eq!(endpoint.cells_since(0).len(), 40);
    check_complete(&project);
}

#[test]
fn columns_requests_only_these_columns() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    project.run_materialize(&["--columns", "born,powers"]).expect_exit_code(0);
    let asked = endpoint.cells_since(0);
    assert_eq!((asked.len(), columns(&asked)), (20, BTreeSet::from(["born", "powers"])));
    let states = check_cells(&project);
    assert_eq!((states["ok"], states["missing"]), (20, 20));
    let before = endpoint.request_count();
    project.run_materialize(&[]).expect_exit_code(0);
    assert_eq!(endpoint.cells_since(before).len(), 20);
    check_complete(&project);
    let wrong = project.run_materialize(&["--columns", "born,nonsense"]).expect_exit_code(2);
    assert!(wrong.stderr.contains("nonsense"), "{}", wrong.stderr);
}

#[test]
fn where_requests_only_matching_rows() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    project.run_materialize(&["--where", "height > 180"]).expect_exit_code(0);
    let wanted = project.query_rows("SELECT name, full_name FROM hero WHERE height > 180");
    let asked = endpoint.cells_since(0);
    assert_eq!(asked.len(), wanted.len() * 4);
    assert!(asked.iter().all(|(k, _)| wanted.contains(k)));
    assert_eq!(check_cells(&project)["ok"], wanted.len() * 4);
    // The known cells of the others stay published.
    project.run_materialize(&["--where", "height <= 165"]).expect_exit_code(0);
    assert_eq!(check_cells(&project)["ok"], (wanted.len() + 1) * 4);
    let wrong = project.run_materialize(&["--where", "heigth > 180"]).expect_exit_code(2);
    assert!(wrong.stderr.contains("heigth"), "{}", wrong.stderr);
}

#[test]
fn refresh_requests_a_column_again_and_uses_the_new_answer() {
    let changed = Arc::new(AtomicBool::new(false));
    let now = Arc::clone(&changed);
    let endpoint = Endpoint::start_with(move |column, key| {
        if column == "born" && now.load(Ordering::SeqCst) {
            1888.into()
        } else {
            true_value(column, key)
        }
    });
    let project = heroes_project(&endpoint, "csv");
    project.run_materialize(&[]).expect_exit_code(0);
    changed.store(true, Ordering::SeqCst);
    let before = endpoint.request_count();
    project.run_materialize(&["--refresh", "born"]).expect_exit_code(0);
    let asked = endpoint.cells_since(before);
    assert_eq!((asked.len(), columns(&asked)), (10, BTreeSet::from(["born"])));
    assert_eq!(project.query_rows("SELECT DISTINCT born FROM llm"), [[json!(1888)]]);
    let before = endpoint.request_count();
    project.run_materialize(&[]).expect_exit_code(0);
    assert_eq!(endpoint.request_count(), before);
}

#[test]
fn retry_failed_requests_cells_without_a_value_again() {
    let wiser = Arc::new(AtomicBool::new(false));
    let now = Arc::clone(&wiser);
    let endpoint = Endpoint::start_with(move |column, key| {
        let dull = !now.load(Ordering::SeqCst);
        match (column, key[0].as_str()) {
            ("born", Some("Zed")) if dull => Json::Null,
            ("born", Some("Echo")) if dull => "long ago".into(),
            ("eye_color", Some("007")) if dull => "Plaid".into(),
            _ => true_value(column, key),
        }
    });
    let project = heroes_project(&endpoint, "csv");
    project.run_materialize(&[]).expect_exit_code(1);
    let states = check_cells(&project);
    assert_eq!((states["unknown"], states["invalid"], states["not_in_list"]), (1, 1, 1));
    let before = endpoint.request_count();
    // They are answers, so a plain run does not request them.
    project.run_materialize(&[]).expect_exit_code(1);
    assert_eq!(endpoint.request_count(), before);
    wiser.store(true, Ordering::SeqCst);
    project.run_materialize(&["--retry-failed"]).expect_exit_code(0);
    let mut asked: Vec<(String, String)> = endpoint
        .cells_since(before)
        .into_iter()
        .map(|(k, c)| (k[0].as_str().unwrap().to_owned(), c))
        .collect();
    asked.sort();
    let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
    assert_eq!(asked, [pair("007", "eye_color"), pair("Echo", "born"), pair("Zed", "born")]);
    check_complete(&project);
}

#[test]
fn rows_per_request_decides_how_many_rows_share_a_request() {
    for (rows, requests) in [("1", 10), ("3", 4), ("100", 1)] {
        let endpoint = truthful_endpoint();
        let project = heroes_project(&endpoint, "csv");
        project.run_materialize(&["--rows-per-request", rows]).expect_exit_code(0);
        assert_eq!(endpoint.request_count(), requests);
        check_complete(&project);
    }
}

#[test]
fn never_more_requests_in_flight_than_concurrency_allows() {
    for (concurrency, most) in [("1", 1), ("3", 3)] {
        let endpoint = truthful_endpoint();
        // Long enough for all requests to be sent before the first is answered.
        let latency = Duration::from_millis(if most == 1 { 40 } else { 1500 });
        endpoint.add_fault(Fault::Latency(latency), Frequency::Always);
        let project = heroes_project(&endpoint, "csv");
        let flags = ["--concurrency", concurrency, "--rows-per-request", "1"];
        project.run_materialize(&flags).expect_exit_code(0);
        assert_eq!(endpoint.most_in_flight(), most);
        check_complete(&project);
    }
}

#[test]
fn no_cache_starts_empty_and_keeps_nothing() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    project.run_materialize(&["--no-cache"]).expect_exit_code(0);
    check_complete(&project);
    assert!(!project.path("cache").exists());
    project.run_materialize(&["--no-cache"]).expect_exit_code(0);
    assert_eq!(endpoint.request_count(), 6);
    check_complete(&project);
}

#[test]
fn output_leaves_the_source_unchanged() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    let bytes = || std::fs::read(project.path("data.sqlite")).unwrap();
    let before = bytes();
    project.run_materialize(&["--output", "out/expanded.sqlite"]).expect_exit_code(0);
    assert_eq!(bytes(), before);
    assert_eq!(check_cells_in(&project, "out/expanded.sqlite")["ok"], 40);
    // The copy also contains the source's tables, and follows their changes.
    project.execute_sql("INSERT INTO hero (name, full_name) VALUES ('New One', 'Nina')");
    let before = bytes();
    let asked = endpoint.request_count();
    project.run_materialize(&["--output", "out/expanded.sqlite"]).expect_exit_code(0);
    assert_eq!(endpoint.cells_since(asked).len(), 4);
    assert_eq!(bytes(), before);
    assert_eq!(check_cells_in(&project, "out/expanded.sqlite")["ok"], 44);
    assert_eq!(project.query_rows_of("out/expanded.sqlite", "SELECT 1 FROM hero").len(), 11);
}

#[test]
fn every_null_has_a_state() {
    // Names that end in a vowel are unknown; some eyes are plaid.
    let endpoint = Endpoint::start_with(|column, key| match key[0].as_str() {
        Some(name) if name.ends_with(['a', 'e', 'o']) => Json::Null,
        Some("Zed") if column == "eye_color" => "Plaid".into(),
        Some("Zed") if column == "born" => "never".into(),
        _ => true_value(column, key),
    });
    let project = heroes_project(&endpoint, "json");
    project
        .run_materialize(&["--limit", "20", "--columns", "eye_color,born,powers"])
        .expect_exit_code(1);
    let states = check_cells(&project);
    assert!(states["unknown"] > 0, "{states:?}");
    assert_eq!((states["not_in_list"], states["invalid"], states["missing"]), (1, 1, 10));
    let bare = project.query_rows(
        "SELECT l.name FROM llm AS l, (SELECT 'eye_color' AS c UNION SELECT 'born' UNION SELECT 'motto') AS n
         WHERE CASE n.c WHEN 'eye_color' THEN l.eye_color WHEN 'born' THEN l.born ELSE l.motto END IS NULL
         AND NOT EXISTS (SELECT 1 FROM hqdl_cell AS h WHERE h.expansion = 'llm' AND h.\"column\" = n.c
           AND h.key = json_array(l.name, l.full_name) AND h.state NOT IN ('ok', 'overridden'))",
    );
    assert!(bare.is_empty(), "{bare:?}");
}

#[test]
fn a_list_that_the_model_leaves_empty_is_an_answer() {
    let endpoint =
        Endpoint::start_with(
            |column, key| {
                if column == "powers" { json!([]) } else { true_value(column, key) }
            },
        );
    for format in ["csv", "json"] {
        let project = heroes_project(&endpoint, format);
        let ended = project.run_materialize(&[]).expect_exit_code(0);
        assert_eq!(ended.done_event()["cells"]["ok"], 40);
        assert!(project.query_rows("SELECT * FROM llm_power").is_empty());
        let states =
            project.query_rows("SELECT DISTINCT state FROM hqdl_cell WHERE \"column\" = 'powers'");
        assert_eq!(states, [[json!("ok")]]);
    }
}

#[test]
fn several_sources_fill_the_columns_they_name() {
    let endpoint = truthful_endpoint();
    let sql = "CREATE TABLE drivers (forename TEXT, surname TEXT);
               INSERT INTO drivers VALUES ('Ann', 'Fast'), ('Bob', 'Quick'), ('Stewart', 'Both');
               CREATE TABLE constructors (name TEXT);
               INSERT INTO constructors VALUES ('Red Cars'), ('Stewart Both'), ('Blue Cars');";
    let expansion = r#"
[[expansion]]
name = "llm_people"
key = ["name"]
rows_per_request = 2
format = "csv"
[[expansion.source]]
select = "SELECT forename || ' ' || surname AS name FROM drivers"
columns = ["nationality", "dob"]
[[expansion.source]]
select = "SELECT name FROM constructors"
columns = ["nationality", "website"]
[[expansion.column]]
name = "nationality"
[[expansion.column]]
name = "dob"
[[expansion.column]]
name = "website"
"#;
    let project = Project::new(&endpoint, sql, &[MODEL, expansion].concat());
    project.run_materialize(&[]).expect_exit_code(0);
    let rows =
        project.query_rows("SELECT name, nationality, dob, website FROM llm_people ORDER BY name");
    let says = |name: &str, column: &str| true_value(column, &[name.into()]);
    let row = |name: &str, dob: bool, site: bool| {
        let when = |asked, column| if asked { says(name, column) } else { Json::Null };
        vec![name.into(), says(name, "nationality"), when(dob, "dob"), when(site, "website")]
    };
    assert_eq!(
        rows,
        [
            row("Ann Fast", true, false),
            row("Blue Cars", false, true),
            row("Bob Quick", true, false),
            row("Red Cars", false, true),
            row("Stewart Both", true, true),
        ]
    );
    // 2 x 2 + 2 x 2 + 3 cells, each once.
    assert_eq!(endpoint.cells_since(0).len(), 11);
    project.run_materialize(&[]).expect_exit_code(0);
    assert_eq!(endpoint.cells_since(0).len(), 11);
}

#[test]
fn keys_of_one_entity_are_asked_once_and_all_are_published() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    // Trailing blanks, a decomposed accent, and the same row twice.
    project.execute_sql(
        "INSERT INTO hero (name, full_name) VALUES ('Blaze ', 'Ann Fire'), ('Blaze', '  Ann Fire'),
           ('E\u{301}chappe\u{301}e', 'Zoe\u{301} Mu\u{308}ller'), ('Zed', 'Zed Zedsson')",
    );
    let ended = project.run_materialize(&[]).expect_exit_code(0);
    assert_eq!(endpoint.cells_since(0).len(), 40);
    assert_eq!(ended.done_event()["cells"]["ok"], 40);
    assert_eq!(project.query_rows("SELECT 1 FROM llm").len(), 13);
    assert_eq!(check_cells(&project)["ok"], 52);
    // Every source row has a published row.
    let lost = project.query_rows(
        "SELECT name FROM hero AS h WHERE NOT EXISTS
           (SELECT 1 FROM llm AS l WHERE l.name IS h.name AND l.full_name IS h.full_name)",
    );
    assert!(lost.is_empty(), "{lost:?}");
    let said = ended.lines.iter().filter(|l| l["event"] == "warning").map(Json::to_string);
    let said = said.collect::<Vec<_>>().join("\n");
    assert!(said.contains("other spellings") && !said.contains("several rows"), "{said}");
    let checked = project.run_hqdl(&["check", "specs/x.toml"]).expect_exit_code(0).stderr;
    assert!(checked.contains("note: 1 key occurs in several rows"), "{checked}");
}

#[test]
fn blobs_and_broken_text_are_reported_and_skipped() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    project.execute_sql(
        "INSERT INTO hero (name, full_name) VALUES (x'00ff', 'Blob'), (CAST(x'ff41' AS TEXT), 'Broken'), (NULL, NULL)",
    );
    let ended = project.run_materialize(&[]).expect_exit_code(0);
    check_complete(&project);
    assert_eq!(endpoint.cells_since(0).len(), 40);
    let said: Vec<&str> = ended.lines.iter().filter_map(|l| l["message"].as_str()).collect();
    let said = said.join("\n");
    assert!(said.contains("2 keys contain a blob or text that is not UTF-8"), "{said}");
    assert!(said.contains("NULL"), "{said}");
}

#[test]
fn rows_without_a_source_are_counted_and_then_disappear() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    project.run_materialize(&[]).expect_exit_code(0);
    assert_eq!(project.run_plan(&[])["expansions"][0]["orphaned"], 0);
    project.execute_sql("DELETE FROM hero WHERE name IN ('Zed', 'Echo')");
    let plan = project.run_plan(&[]);
    assert_eq!(plan["expansions"][0]["orphaned"], 2);
    assert_eq!(plan["totals"]["cells"], 0);
    project.run_materialize(&[]).expect_exit_code(0);
    assert_eq!(project.query_rows("SELECT 1 FROM llm").len(), 8);
    assert!(project.query_rows("SELECT 1 FROM llm_power WHERE name IN ('Zed', 'Echo')").is_empty());
    assert_eq!(check_cells(&project)["ok"], 32);
    // They reappear unchanged.
    project.execute_sql(
        "INSERT INTO hero (name, full_name) VALUES ('Zed', 'Zed Zedsson'), ('Echo', NULL)",
    );
    project.run_materialize(&[]).expect_exit_code(0);
    check_complete(&project);
    assert_eq!(endpoint.request_count(), 3);
}

/// A plan with nothing known, and one with most cells known, each compared with the actual cost.
#[test]
fn a_plan_sends_no_request_and_is_accurate() {
    for format in ["csv", "json"] {
        let endpoint = truthful_endpoint();
        let project = heroes_project(&endpoint, format);
        // A known tokenizer, and examples to learn from.
        let text = heroes_spec()
            .replace("test-model", "gpt-4o-mini")
            .replace("format = \"csv\"", &format!(
                "format = \"{format}\"\nshots = [{{ name = \"Ex\", full_name = \"Emma Ample\", eye_color = \"Blue\", born = 1950, powers = [\"Flight\", \"Speed\"], motto = \"The motto of Ex alias Emma Ample!\" }}]"
            ));
        project.write_spec(&text);
        let compare = |what: &str| {
            let plan = project.run_plan(&[]);
            let (before, count) = (endpoint.billed_tokens(), endpoint.request_count());
            let done = project.run_materialize(&[]).expect_exit_code(0).done_event().clone();
            assert_eq!(plan["totals"]["requests"], done["requests"], "{format}, {what}");
            let (input, output) = endpoint.billed_tokens();
            let spent = [
                ("input_tokens", (input - before.0) as f64),
                ("output_tokens", (output - before.1) as f64),
            ];
            let near = |name: &str, planned: f64, real: f64| {
                let off = planned / real - 1.0;
                println!("{format}, {what}: {name} {planned} planned, {real} spent: {off:+.3}");
                assert!(
                    off.abs() <= 0.15,
                    "{format}, {what}: {name} {planned} planned, {real} spent"
                );
            };
            assert_eq!(
                endpoint.request_count() - count,
                done["requests"].as_u64().unwrap() as usize
            );
            for (name, real) in spent {
                near(name, plan["totals"][name].as_f64().unwrap(), real);
            }
            let cost = |j: &Json| j.as_f64().unwrap();
            let planned = &plan["totals"]["cost_usd"];
            near("cost_usd", cost(&planned["likely"]), cost(&done["cost_usd"]));
            assert!(cost(&planned["low"]) <= cost(&planned["likely"]));
            assert!(cost(&planned["likely"]) <= cost(&planned["most"]));
        };
        compare("nothing known");
        project.execute_sql(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 30)
             INSERT INTO hero (name, full_name) SELECT 'Number ' || i, 'Person ' || (i * 7) FROM n",
        );
        compare("thirty rows more");
        // Forty answers are enough for an estimate.
        project.execute_sql(
            "INSERT INTO hero (name, full_name) SELECT name || ' II', full_name FROM hero",
        );
        compare("as many again");
    }
}

#[test]
fn a_plan_leaves_cache_and_database_unchanged() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    let bytes = || std::fs::read(project.path("data.sqlite")).unwrap();
    let before = bytes();
    let plan = project.run_plan(&[]);
    assert_eq!(plan["totals"]["cells"], HERO_COUNT * COLUMN_NAMES.len());
    assert_eq!(plan["expansions"][0]["keys"], HERO_COUNT);
    assert_eq!((bytes(), endpoint.request_count()), (before, 0));
    assert!(project.stored_cells().is_empty());
}

#[test]
fn the_done_event_reports_usage_and_states_of_each_column() {
    let endpoint = Endpoint::start_with(|column, key| match (column, key[0].as_str()) {
        ("born", Some("Zed")) => Json::Null,
        ("eye_color", Some("007")) => "Plaid".into(),
        _ => true_value(column, key),
    });
    let project = heroes_project(&endpoint, "csv");
    project.run_materialize(&["--columns", "born"]).expect_exit_code(0);
    let ended = project.run_materialize(&["--limit", "8"]).expect_exit_code(1);
    let done = ended.done_event();
    let columns = done["columns"].as_array().unwrap();
    let names: Vec<&str> = columns.iter().map(|c| c["column"].as_str().unwrap()).collect();
    assert_eq!(names, COLUMN_NAMES);
    let of = |name: &str| columns.iter().find(|c| c["column"] == name).unwrap();
    assert_eq!(of("born")["cells"]["unknown"], 1);
    assert_eq!((&of("born")["cells_asked"], &of("born")["requests"]), (&json!(0), &json!(0)));
    assert_eq!(of("eye_color")["cells"]["not_in_list"], 1);
    assert_eq!((&of("eye_color")["cells_asked"], &of("motto")["requests"]), (&json!(8), &json!(2)));
    assert_eq!(
        (&of("motto")["cells_unasked"], &of("born")["cells_unasked"]),
        (&json!(2), &json!(0))
    );
    // The columns add up to the total.
    for field in ["input_tokens", "output_tokens", "cost_usd"] {
        let sum: f64 = columns.iter().map(|c| c[field].as_f64().unwrap()).sum();
        assert!((sum - done[field].as_f64().unwrap()).abs() < 1e-6, "{field}: {sum} of {done}");
    }
    for state in done["cells"].as_object().unwrap().keys() {
        let sum: u64 = columns.iter().map(|c| c["cells"][state].as_u64().unwrap()).sum();
        assert_eq!(sum, done["cells"][state], "{state}");
    }
    // Without `--json`, it is a table.
    let said = project.run_hqdl(&["materialize", "specs/x.toml"]).expect_exit_code(1);
    let table = said.stderr;
    assert!(table.contains("not_in_list") && table.contains("motto"), "{table}");
    assert!(!said.stdout.contains("motto"), "{}", said.stdout);
    let quiet = project.run_hqdl(&["materialize", "specs/x.toml", "--quiet", "--refresh", "born"]);
    assert_eq!(quiet.stderr, "");
    // A run without changes reports the same counts.
    let again = project.run_materialize(&[]);
    assert_eq!(again.done_event()["columns"][1]["cells"], of("born")["cells"]);
}
