//! Regression tests, each named after the original defect.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value as Json, json};

use hqdl_testkit::endpoint::{Endpoint, Fault, Frequency};
use hqdl_testkit::project::{
    CommandResult, EXPANSION, HEROES, MODEL, Project, check_cells, check_cells_in, check_complete,
    heroes_project, heroes_spec, true_value, truthful_endpoint,
};

/// Returns an expansion `llm` of a source with the key `name` and one text column.
fn small(source: &str, columns: &str) -> String {
    let head = "[[expansion]]\nname = \"llm\"\nkey = [\"name\"]\nformat = \"csv\"\n";
    [MODEL, head, source, "\n", columns].concat()
}

const MOTTO: &str = "[[expansion.column]]\nname = \"motto\"\nabout = \"what the hero says\"\n";

/// Returns the heroes' spec with another source.
fn from_source(source: &str) -> String {
    let line = "source = \"hero\"";
    assert!(heroes_spec().contains(line));
    heroes_spec().replace(line, &format!("source = {source}"))
}

/// Writes recordings, one per line.
fn record(project: &Project, name: &str, lines: &[Json]) {
    let text = lines.iter().map(Json::to_string).collect::<Vec<_>>().join("\n");
    std::fs::write(project.path(name), text).unwrap();
}

/// Returns the contents of the heroes' tables in a database.
fn shown(project: &Project, database: &str) -> Vec<Vec<Vec<Json>>> {
    let all = [
        "SELECT * FROM llm ORDER BY 1, 2",
        "SELECT * FROM llm_power ORDER BY 1, 2, 3",
        "SELECT expansion, key, \"column\", state FROM hqdl_cell ORDER BY 1, 2, 3",
    ];
    all.iter().map(|sql| project.query_rows_of(database, sql)).collect()
}

/// Returns the state of a cell of Zed.
fn zeds(project: &Project, column: &str) -> Json {
    let sql = format!(
        "SELECT state FROM hqdl_cell WHERE key LIKE '[\"Zed\"%' AND \"column\" = '{column}'"
    );
    project.query_rows(&sql)[0][0].clone()
}

fn last_is_done(ended: &CommandResult) {
    let last = ended.stdout.lines().last().unwrap_or_default();
    let json: Json = serde_json::from_str(last).unwrap_or(Json::Null);
    assert_eq!(json["event"], "done", "{ended:?}");
}

/// Starts an endpoint that answers another year of birth once a flag is set.
fn changing(later: Json) -> (Endpoint, Arc<AtomicBool>) {
    let changed = Arc::new(AtomicBool::new(false));
    let now = Arc::clone(&changed);
    let endpoint = Endpoint::start_with(move |column, key| {
        if column == "born" && now.load(Ordering::SeqCst) {
            later.clone()
        } else {
            true_value(column, key)
        }
    });
    (endpoint, changed)
}

#[test]
fn publishing_emptied_a_users_table_that_refers_to_ours_with_on_delete_cascade() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    project.run_materialize(&[]).expect_exit_code(0);
    project.execute_sql(
        "CREATE TABLE mine (name TEXT, full_name TEXT, note TEXT,
           FOREIGN KEY (name, full_name) REFERENCES llm (name, full_name) ON DELETE CASCADE);
         INSERT INTO mine SELECT name, full_name, 'precious' FROM llm WHERE full_name NOT NULL",
    );
    let mine = || project.query_rows("SELECT * FROM mine ORDER BY 1, 2");
    let before = mine();
    assert_eq!(before.len(), 9);
    project.execute_sql("INSERT INTO hero (name, full_name) VALUES ('New One', 'Nina')");
    project.run_materialize(&[]).expect_exit_code(0);
    assert_eq!(mine(), before);
    assert_eq!(check_cells(&project)["ok"], 44);
    assert!(project.query_rows("PRAGMA foreign_key_check").is_empty());
}

#[test]
fn an_output_was_without_its_tables_after_a_run_killed_midway() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    let output = heroes_spec().replace("[model]", "output = \"../out.sqlite\"\n\n[model]");
    let output = output.replace("\"../data.sqlite\"\n\noutput", "\"../data.sqlite\"\noutput");
    project.write_spec(&output);
    project.run_materialize(&[]).expect_exit_code(0);
    assert!(!project.has_table("llm"));
    let before = shown(&project, "out.sqlite");
    assert_eq!(check_cells_in(&project, "out.sqlite")["ok"], 40);
    project.execute_sql("INSERT INTO hero (name, full_name) VALUES ('New One', 'Nina')");
    let count = endpoint.request_count();
    endpoint.add_fault(Fault::Latency(Duration::from_secs(20)), Frequency::Always);
    let running = project.start_hqdl(&["materialize", "specs/x.toml"]);
    endpoint.wait_for(count + 1);
    assert_eq!(shown(&project, "out.sqlite"), before, "while the run goes on");
    running.send_signal("KILL");
    running.wait_for_exit();
    assert_eq!(shown(&project, "out.sqlite"), before);
    assert_eq!(project.query_rows_of("out.sqlite", "PRAGMA integrity_check")[0][0], "ok");
    endpoint.clear_faults();
    // A run that fails.
    endpoint.add_fault(Fault::status(401, "no", "invalid_api_key"), Frequency::Always);
    project.run_materialize(&[]).expect_exit_code(4);
    assert_eq!(check_cells_in(&project, "out.sqlite")["ok"], 40);
    endpoint.clear_faults();
    project.run_materialize(&[]).expect_exit_code(0);
    assert_eq!(check_cells_in(&project, "out.sqlite")["ok"], 44);
    assert_eq!(project.query_rows_of("out.sqlite", "SELECT 1 FROM hero").len(), 11);
}

#[test]
fn an_output_with_an_open_reader_was_broken_by_the_next_copy_of_a_source_in_wal() {
    for mode in ["DELETE", "WAL"] {
        let endpoint = truthful_endpoint();
        let project = heroes_project(&endpoint, "csv");
        let source = project.connect();
        source
            .execute_batch("PRAGMA journal_mode = WAL; PRAGMA wal_autocheckpoint = 0; UPDATE hero SET height = height + 1")
            .unwrap();
        let flags = ["--output", "out.sqlite"];
        project.run_materialize(&flags).expect_exit_code(0);
        let reader = rusqlite::Connection::open(project.path("out.sqlite")).unwrap();
        reader.query_row(&format!("PRAGMA journal_mode = {mode}"), [], |_| Ok(())).unwrap();
        let count =
            || reader.query_row("SELECT count(*) FROM llm", [], |r| r.get::<_, i64>(0)).unwrap();
        let sound = |when: &str| {
            let said: String =
                reader.query_row("PRAGMA integrity_check", [], |r| r.get(0)).unwrap();
            assert_eq!(said, "ok", "{mode}, {when}, by its reader");
            let said = project.query_rows_of("out.sqlite", "PRAGMA integrity_check");
            assert_eq!(said, [[json!("ok")]], "{mode}, {when}");
        };
        assert_eq!(count(), 10);
        for n in 1..=3 {
            source
                .execute(
                    "INSERT INTO hero (name, full_name) VALUES (?1, 'New')",
                    [format!("New {n}")],
                )
                .unwrap();
            project.run_materialize(&flags).expect_exit_code(0);
            sound("after a copy");
            assert_eq!(count(), 10 + n);
            assert_eq!(check_cells_in(&project, "out.sqlite")["ok"], 40 + 4 * n as usize);
        }
        // During a read transaction.
        reader.execute_batch("BEGIN").unwrap();
        assert_eq!(count(), 13);
        source.execute("DELETE FROM hero WHERE full_name = 'New'", []).unwrap();
        let ended = project.run_materialize(&flags);
        assert!(matches!(ended.code, 0 | 2), "{mode}: {ended:?}");
        assert_eq!(count(), 13, "{mode}: what was begun to be read stays");
        reader.execute_batch("COMMIT").unwrap();
        sound("after a copy under a reader");
        project.run_materialize(&flags).expect_exit_code(0);
        sound("at last");
        assert_eq!(count(), 10);
        assert_eq!(check_cells_in(&project, "out.sqlite")["ok"], 40);
    }
}

#[test]
fn a_users_table_in_a_stale_output_vanished() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    let flags = ["--output", "out.sqlite"];
    project.run_materialize(&flags).expect_exit_code(0);
    let user = rusqlite::Connection::open(project.path("out.sqlite")).unwrap();
    user.execute_batch("CREATE TABLE my_notes (a); INSERT INTO my_notes VALUES (1)").unwrap();
    drop(user);
    project.execute_sql("INSERT INTO hero (name, full_name) VALUES ('New One', 'Nina')");
    let (bytes, count) =
        (std::fs::read(project.path("out.sqlite")).unwrap(), endpoint.request_count());
    let ended = project.run_materialize(&flags).expect_exit_code(2);
    assert!(ended.stderr.contains("my_notes"), "{}", ended.stderr);
    assert_eq!(std::fs::read(project.path("out.sqlite")).unwrap(), bytes);
    assert_eq!(endpoint.request_count(), count);
}

#[test]
fn keys_that_a_collation_takes_for_one_were_one_key() {
    let endpoint = truthful_endpoint();
    let sql = "CREATE TABLE hero (n TEXT COLLATE NOCASE);
               INSERT INTO hero VALUES ('Batman'), ('BATMAN')";
    let text = small("source = \"hero\"", MOTTO).replace("[\"name\"]", "[\"n\"]");
    let project = Project::new(&endpoint, sql, &text);
    project.run_materialize(&[]).expect_exit_code(0);
    assert_eq!(endpoint.cells_since(0).len(), 2);
    let rows = project.query_rows("SELECT n, motto FROM llm ORDER BY n COLLATE BINARY");
    let row = |n: &str| vec![json!(n), true_value("motto", &[n.into()])];
    assert_eq!(rows, [row("BATMAN"), row("Batman")]);
    let view = project.query_rows("SELECT n, motto FROM hero_expanded ORDER BY n COLLATE BINARY");
    assert_eq!(view, rows, "each row of the source once, with what is its own");
}

#[test]
fn a_key_of_type_any_was_published_as_a_number() {
    let endpoint = truthful_endpoint();
    let sql = "CREATE TABLE hero (name ANY) STRICT; INSERT INTO hero VALUES ('007'), (7)";
    let project = Project::new(&endpoint, sql, &small("source = \"hero\"", MOTTO));
    project.run_materialize(&[]).expect_exit_code(0);
    let rows =
        project.query_rows("SELECT name, typeof(name), motto FROM llm ORDER BY typeof(name)");
    let row = |name: Json, of: &str| vec![name.clone(), json!(of), true_value("motto", &[name])];
    assert_eq!(rows, [row(json!(7), "integer"), row(json!("007"), "text")]);
}

#[test]
fn two_sources_that_spell_one_entity_differently_lost_a_column() {
    let endpoint = truthful_endpoint();
    let sql = "CREATE TABLE a (name TEXT); INSERT INTO a VALUES ('McLaren');
               CREATE TABLE b (name TEXT); INSERT INTO b VALUES ('McLaren ')";
    let sources = r#"
[[expansion.source]]
table = "a"
columns = ["x"]
[[expansion.source]]
table = "b"
columns = ["y"]
[[expansion.column]]
name = "x"
[[expansion.column]]
name = "y"
"#;
    let project = Project::new(&endpoint, sql, &small("", sources));
    let first = project.run_materialize(&[]).expect_exit_code(0);
    let asked: Vec<String> = endpoint.cells_since(0).into_iter().map(|(_, c)| c).collect();
    assert_eq!(asked.iter().map(String::as_str).collect::<BTreeSet<_>>(), ["x", "y"].into());
    assert_eq!(asked.len(), 2, "each once");
    let says = |column: &str| true_value(column, &["McLaren".into()]);
    assert_eq!(project.query_rows("SELECT x FROM llm WHERE name = 'McLaren'"), [[says("x")]]);
    assert_eq!(project.query_rows("SELECT y FROM llm WHERE name = 'McLaren '"), [[says("y")]]);
    assert_eq!(project.query_rows("SELECT 1 FROM llm").len(), 2);
    let second = project.run_materialize(&[]).expect_exit_code(0);
    assert_eq!(endpoint.cells_since(0).len(), 2);
    // A run that publishes and one that does not report the same cell counts.
    assert_eq!(first.done_event()["cells"]["ok"], 2);
    assert_eq!(first.done_event()["cells"], second.done_event()["cells"]);
}

#[test]
fn an_aggregate_in_where_was_no_error() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    project.run_materialize(&["--limit", "2"]).expect_exit_code(0);
    let (bytes, count) =
        (std::fs::read(project.path("data.sqlite")).unwrap(), endpoint.request_count());
    let ended = project.run_materialize(&["--where", "count(*)>1"]).expect_exit_code(2);
    assert!(ended.stderr.contains("count"), "{}", ended.stderr);
    assert_eq!(std::fs::read(project.path("data.sqlite")).unwrap(), bytes);
    assert_eq!(endpoint.request_count(), count);
}

#[test]
fn where_failed_when_only_one_of_two_sources_has_the_column() {
    let endpoint = truthful_endpoint();
    let sql = "CREATE TABLE driver (name TEXT, year INTEGER);
               INSERT INTO driver VALUES ('Ann', 1990), ('Bob', 2010);
               CREATE TABLE team (name TEXT); INSERT INTO team VALUES ('Red'), ('Blue')";
    let sources =
        "[[expansion.source]]\ntable = \"driver\"\n[[expansion.source]]\ntable = \"team\"\n";
    let project = Project::new(&endpoint, sql, &small(sources, MOTTO));
    project.run_materialize(&["--where", "year > 2000"]).expect_exit_code(0);
    assert_eq!(endpoint.cells_since(0), [(vec![json!("Bob")], "motto".to_owned())]);
    project.run_materialize(&["--where", "yeer > 2000"]).expect_exit_code(2);
    assert_eq!(endpoint.request_count(), 1);
}

#[test]
fn an_index_beside_another_journal_showed_values_in_wrong_columns() {
    let endpoint = truthful_endpoint();
    // In another order, the same columns get other ids.
    let other = heroes_project(&endpoint, "csv");
    let head = [MODEL, EXPANSION].concat();
    let columns = heroes_spec()[head.len()..].trim().replace("\n\n[[", "\u{0}[[");
    let mut columns: Vec<&str> = columns.split('\u{0}').collect();
    columns.reverse();
    other.write_spec(&[&head, columns.join("\n\n").as_str(), "\n"].concat());
    for limit in ["100", "5"] {
        other.run_materialize(&["--limit", limit, "--no-cache"]);
        let project = heroes_project(&endpoint, "csv");
        project.run_materialize(&[]).expect_exit_code(0);
        let cache = format!("cache{limit}");
        let cache_path = other.path(&cache);
        let ended =
            other.run_materialize(&["--limit", limit, "--cache", cache_path.to_str().unwrap()]);
        assert!(matches!(ended.code, 0 | 1), "{ended:?}");
        for file in ["journal.sqlite", "journal.sqlite-wal", "journal.sqlite-shm"] {
            let _ = std::fs::remove_file(project.path("cache").join(file));
            if cache_path.join(file).exists() {
                std::fs::copy(cache_path.join(file), project.path("cache").join(file)).unwrap();
            }
        }
        project.execute_sql("DROP TABLE llm; DROP TABLE llm_power");
        let count = endpoint.request_count();
        project.run_materialize(&[]).expect_exit_code(0);
        check_complete(&project);
        let asked = endpoint.cells_since(count).len();
        assert_eq!(asked, if limit == "5" { 20 } else { 0 }, "as the journal has it");
    }
}

#[test]
fn a_refusal_of_three_rows_condemned_them_all() {
    for fault in [Fault::Refusal, Fault::RefusalInWords, Fault::ContentFilter] {
        let endpoint = truthful_endpoint();
        endpoint.add_fault_where(fault.clone(), Frequency::Always, |q| {
            q.rows.iter().any(|r| r.key[0] == "Zed")
        });
        let project = heroes_project(&endpoint, "csv");
        project.execute_sql("DELETE FROM hero WHERE name NOT IN ('Zed', 'Echo', '007')");
        project.run_materialize(&["--rows-per-request", "3"]).expect_exit_code(1);
        let states = check_cells(&project);
        assert_eq!((states["ok"], states["refused"], states.len()), (8, 4, 2), "{fault:?}");
        assert_eq!(zeds(&project, "born"), "refused");
    }
}

/// Creates a project with a single key column and two columns with both a description and a
/// question.
fn recorded(endpoint: &Endpoint) -> Project {
    let columns = r#"
[[expansion.column]]
name = "eye_color"
about = "colour of the eyes"
questions = ["What is the eye colour?"]
[[expansion.column]]
name = "born"
type = "integer"
about = "year of birth"
questions = ["When was the hero born?"]
"#;
    let sql = "CREATE TABLE hero (name TEXT); INSERT INTO hero VALUES ('Zed'), ('Echo'), ('Mo')";
    Project::new(endpoint, sql, &small("source = \"hero\"", columns))
}

#[test]
fn a_cell_that_recorded_facts_lack_was_unknown_for_ever() {
    let endpoint = truthful_endpoint();
    let project = recorded(&endpoint);
    let fact = |question: &str, value: &str, answer: Json| json!({ "question": question, "value": value, "answer": answer });
    let mut facts = Vec::new();
    for (name, eyes, year) in [("Zed", "Blue", 1901), ("Echo", "Green", 1902), ("Mo", "Red", 1903)]
    {
        facts.push(fact("What is the eye colour?", name, json!(eyes)));
        facts.push(fact("When was the hero born?", name, json!(year)));
    }
    let lacking = facts[1].clone();
    record(&project, "part.jsonl", &[&facts[..1], &facts[2..]].concat());
    project.run_materialize(&["--recordings", "part.jsonl"]).expect_exit_code(1);
    assert_eq!(zeds(&project, "born"), "error");
    let rows = "SELECT name, eye_color, born FROM llm ORDER BY name";
    let row = |name: &str, eyes: &str, year: Json| vec![json!(name), json!(eyes), year];
    assert_eq!(
        project.query_rows(rows),
        [
            row("Echo", "Green", json!(1902)),
            row("Mo", "Red", json!(1903)),
            row("Zed", "Blue", Json::Null)
        ]
    );
    // The missing line in a separate file, and then everything in one file.
    record(&project, "rest.jsonl", &[lacking]);
    project.run_materialize(&["--recordings", "part.jsonl", "rest.jsonl"]).expect_exit_code(0);
    assert_eq!(zeds(&project, "born"), "ok");
    assert_eq!(project.query_rows(rows)[2], row("Zed", "Blue", json!(1901)));
    record(&project, "whole.jsonl", &facts);
    project.run_materialize(&["--recordings", "whole.jsonl"]).expect_exit_code(0);
    assert_eq!(project.query_rows(rows)[2], row("Zed", "Blue", json!(1901)));
    assert_eq!(endpoint.request_count(), 0);
}

#[test]
fn recorded_rows_asked_for_one_column_were_read_as_if_they_held_no_other() {
    let endpoint = truthful_endpoint();
    for format in ["csv", "json"] {
        let source = heroes_project(&endpoint, format);
        let before = endpoint.request_count();
        source.run_materialize(&["--rows-per-request", "1"]).expect_exit_code(0);
        let lines: Vec<Json> = endpoint.received_requests()[before..]
            .iter()
            .map(|r| {
                let content = r.question.format_answer(|row, column| true_value(&column.name, &row.key));
                json!({ "keys": r.question.rows[0].key, "content": content, "prompt_tokens": 100, "completion_tokens": 10 })
            })
            .collect();
        assert_eq!(lines.len(), 10);
        let count = endpoint.request_count();
        for column in ["eye_color", "born", "powers", "motto"] {
            let project = heroes_project(&endpoint, format);
            record(&project, "rows.jsonl", &lines);
            project
                .run_materialize(&["--recordings", "rows.jsonl", "--columns", column])
                .expect_exit_code(0);
            let states = check_cells(&project);
            assert_eq!(states["ok"], 10, "{format}, {column}: {states:?}");
            assert!(!states.contains_key("invalid"), "{format}, {column}: {states:?}");
            project.run_materialize(&["--recordings", "rows.jsonl"]).expect_exit_code(0);
            check_complete(&project);
        }
        assert_eq!(endpoint.request_count(), count);
    }
}

#[test]
fn a_refresh_answered_with_garbage_took_the_good_value_away() {
    let (endpoint, changed) = changing(json!("long ago, they say"));
    let project = heroes_project(&endpoint, "csv");
    project.run_materialize(&[]).expect_exit_code(0);
    changed.store(true, Ordering::SeqCst);
    let count = endpoint.request_count();
    project.run_materialize(&["--refresh", "born"]);
    assert!(endpoint.request_count() > count);
    check_complete(&project);
    for fault in [Fault::Empty, Fault::Refusal, Fault::OutsideList] {
        endpoint.add_fault(fault, Frequency::Always);
        project.run_materialize(&["--refresh", "born,eye_color"]);
        endpoint.clear_faults();
        check_complete(&project);
    }
}

#[test]
fn a_refresh_that_failed_ended_as_if_complete() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    project.run_materialize(&[]).expect_exit_code(0);
    endpoint.add_fault(
        Fault::status(500, "The server had an error", "server_error"),
        Frequency::Always,
    );
    // No request succeeded, so the endpoint counts as gone.
    project.run_materialize(&["--refresh", "born"]).expect_exit_code(4);
    check_complete(&project);
}

#[test]
fn an_import_of_an_old_export_brought_older_values_back() {
    let (endpoint, changed) = changing(json!(1888));
    let project = heroes_project(&endpoint, "csv");
    project.run_materialize(&[]).expect_exit_code(0);
    project.run_hqdl(&["cache", "export", "old.jsonl"]).expect_exit_code(0);
    changed.store(true, Ordering::SeqCst);
    project.run_materialize(&["--refresh", "born"]).expect_exit_code(0);
    project.run_hqdl(&["cache", "import", "old.jsonl"]).expect_exit_code(0);
    let now = || project.query_rows("SELECT DISTINCT born FROM llm");
    let count = endpoint.request_count();
    project.run_materialize(&[]).expect_exit_code(0);
    assert_eq!(now(), [[json!(1888)]]);
    // Nor after the index is rebuilt.
    project.run_hqdl(&["cache", "rebuild"]).expect_exit_code(0);
    project.execute_sql("DROP TABLE llm");
    project.run_materialize(&[]).expect_exit_code(0);
    assert_eq!(now(), [[json!(1888)]]);
    assert_eq!(endpoint.request_count(), count);
    // If nothing is known, the import adds its facts.
    let fresh = project.path("fresh");
    let cache = ["--cache", fresh.to_str().unwrap()];
    project.run_hqdl(&[&["cache", "import", "old.jsonl"], &cache[..]].concat()).expect_exit_code(0);
    project.run_materialize(&cache).expect_exit_code(0);
    check_complete(&project);
    assert_eq!(endpoint.request_count(), count);
}

#[test]
fn done_was_not_the_last_line_after_a_401() {
    let endpoint = truthful_endpoint();
    endpoint.add_fault(Fault::status(401, "no", "invalid_api_key"), Frequency::Always);
    let project = heroes_project(&endpoint, "csv");
    last_is_done(&project.run_materialize(&[]).expect_exit_code(4));
}

#[test]
fn done_was_not_the_last_line_when_the_database_was_locked_at_the_end() {
    let endpoint = truthful_endpoint();
    endpoint.add_fault(Fault::Latency(Duration::from_millis(500)), Frequency::Always);
    let project = heroes_project(&endpoint, "csv");
    let running = project.start_hqdl(&["materialize", "specs/x.toml", "--json"]);
    endpoint.wait_for(1);
    let stranger = project.connect();
    stranger.busy_timeout(Duration::from_secs(5)).unwrap();
    stranger.execute_batch("BEGIN EXCLUSIVE").unwrap();
    let ended = running.wait_for_exit().expect_exit_code(2);
    last_is_done(&ended);
    assert_eq!(ended.done_event()["published"], false);
    assert!(ended.done_event()["cost_usd"].as_f64().unwrap() > 0.0, "what was paid is said");
}

#[test]
fn an_endpoint_that_is_not_there_emptied_the_tables() {
    let endpoint = truthful_endpoint();
    for limit in ["4", "100"] {
        let project = heroes_project(&endpoint, "csv");
        project.run_materialize(&["--limit", limit]);
        project.execute_sql("INSERT INTO hero (name, full_name) VALUES ('New One', 'Nina')");
        let (before, count) = (shown(&project, "data.sqlite"), endpoint.request_count());
        let ended =
            project.run_materialize(&["--base-url", "http://127.0.0.1:9/v1"]).expect_exit_code(4);
        assert!(ended.stderr.contains("127.0.0.1:9"), "{}", ended.stderr);
        assert!(ended.stderr.to_lowercase().contains("connect"), "{}", ended.stderr);
        last_is_done(&ended);
        assert_eq!(shown(&project, "data.sqlite"), before);
        assert_eq!(endpoint.request_count(), count);
        project.run_materialize(&[]).expect_exit_code(0);
        assert_eq!(check_cells(&project)["ok"], 44);
    }
}

#[test]
fn an_expansion_renamed_while_its_list_keeps_its_table_could_not_be_published() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    project.run_materialize(&[]).expect_exit_code(0);
    let list = || project.query_rows("SELECT * FROM llm_power ORDER BY 1, 2, 3");
    let before = list();
    project.write_spec(&heroes_spec().replace("name = \"llm\"", "name = \"renamed\""));
    project.run_materialize(&[]).expect_exit_code(0);
    assert!(!project.has_table("llm"));
    assert_eq!(project.query_rows("SELECT 1 FROM renamed").len(), 10);
    assert_eq!(list(), before);
    assert_eq!(endpoint.request_count(), 3);
    project.write_spec(&heroes_spec());
    project.run_materialize(&[]).expect_exit_code(0);
    assert!(!project.has_table("renamed"));
    check_complete(&project);
}

#[test]
fn a_select_that_ends_in_a_semicolon_or_a_comment_could_not_be_read() {
    for select in [
        "\"SELECT name, full_name FROM hero;\"",
        "\"SELECT name, full_name FROM hero ; \\n\"",
        "\"SELECT name, full_name FROM hero -- all of them\"",
        "\"SELECT name, full_name FROM hero /* all */\"",
    ] {
        let endpoint = truthful_endpoint();
        let project = heroes_project(&endpoint, "csv");
        project.write_spec(&from_source(select));
        let ended = project.run_hqdl(&["check", "specs/x.toml"]);
        assert_eq!(ended.code, 0, "{select}: {}", ended.stderr);
        assert_eq!(project.run_plan(&[])["totals"]["cells"], 40, "{select}");
        project.run_materialize(&[]).expect_exit_code(0);
        check_complete(&project);
        assert_eq!(endpoint.cells_since(0).len(), 40);
    }
}

#[test]
fn a_select_that_ends_in_a_semicolon_and_a_comment_cannot_be_read() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    project.write_spec(&from_source("\"SELECT name, full_name FROM hero; -- all of them\""));
    project.run_materialize(&[]).expect_exit_code(0);
    check_complete(&project);
}

#[test]
fn a_dropped_view_did_not_come_back() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    project.run_materialize(&[]).expect_exit_code(0);
    let count = endpoint.request_count();
    project.execute_sql("DROP VIEW hero_expanded");
    project.run_materialize(&[]).expect_exit_code(0);
    assert!(project.has_table("hero_expanded"));
    assert_eq!(
        project.query_rows("SELECT motto FROM hero_expanded WHERE motto NOT NULL").len(),
        10
    );
    assert_eq!(endpoint.request_count(), count);
}

#[test]
fn a_month_became_a_day_and_a_number_with_words_shifted_the_row() {
    let columns = r#"
[[expansion.column]]
name = "founded"
type = "date"
[[expansion.column]]
name = "people"
type = "integer"
[[expansion.column]]
name = "motto"
"#;
    for format in ["csv", "json"] {
        let endpoint = Endpoint::start_with(|column, key| match (column, key[0].as_str()) {
            ("founded", Some("Zed")) => "March 1965".into(),
            ("founded", _) => "2001-02-03".into(),
            ("people", Some("Zed")) => "25,171 people".into(),
            ("people", _) => 12.into(),
            _ => true_value(column, key),
        });
        let sql = "CREATE TABLE hero (name TEXT); INSERT INTO hero VALUES ('Zed'), ('Echo')";
        let text = small("source = \"hero\"", columns);
        let text = text.replace("format = \"csv\"", &format!("format = \"{format}\""));
        let project = Project::new(&endpoint, sql, &text);
        project.run_materialize(&[]).expect_exit_code(1);
        let says = |name: &str| true_value("motto", &[name.into()]);
        assert_eq!(
            project.query_rows("SELECT name, founded, people, motto FROM llm ORDER BY name"),
            [
                [json!("Echo"), json!("2001-02-03"), json!(12), says("Echo")],
                [json!("Zed"), json!("1965-03"), Json::Null, says("Zed")],
            ],
            "{format}"
        );
        assert_eq!(zeds(&project, "people"), "invalid", "{format}");
    }
}

#[test]
fn a_key_that_strayed_into_the_spec_was_shown() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    project.run_materialize(&["--limit", "1"]).expect_exit_code(0);
    for (line, key) in [
        ("api_key = \"sk-stray-0123456789abcdef\"", "stray-0123456789abcdef"),
        ("api_key_env = \"gsk_stray0123456789abcdef\"", "stray0123456789abcdef"),
    ] {
        project.write_spec(&heroes_spec().replace("api_key_env = \"HQDL_TEST_KEY\"", line));
        let mut said = Vec::new();
        for more in [&[][..], &["--json"], &["-v"]] {
            for args in [
                &["check", "specs/x.toml"][..],
                &["plan", "specs/x.toml"],
                &["materialize", "specs/x.toml"],
                &["override", "list", "specs/x.toml"],
            ] {
                let ended = project.run_hqdl(&[args, more].concat());
                if args[0] == "materialize" {
                    assert_ne!(ended.code, 0, "{ended:?}");
                }
                said.push(ended.stdout + &ended.stderr);
            }
        }
        for said in said {
            assert!(!said.contains(key), "{line}: {said}");
        }
    }
    assert_eq!(endpoint.request_count(), 1);
}

/// Returns what an endpoint billed, in USD.
fn billed(endpoint: &Endpoint) -> f64 {
    let (input, output) = endpoint.billed_tokens();
    (input as f64 + 2.0 * output as f64) / 1e6
}

/// Creates the heroes' project with one row per request, and answers of known length.
fn thrifty(endpoint: &Endpoint) -> Project {
    let project = heroes_project(endpoint, "csv");
    project.write_spec(
        &heroes_spec()
            .replace("rows_per_request = 4", "rows_per_request = 1")
            .replace("[limits]", "max_output_tokens = 100\n[limits]")
            .replace("price = {", "PRICE {")
            .replace(
                "PRICE { input = 1.0, output = 2.0 }\n\nmax_output_tokens = 100",
                "price = { input = 1.0, output = 2.0 }\nmax_output_tokens = 100",
            ),
    );
    project
}

#[test]
fn a_budget_was_overspent() {
    let endpoint = truthful_endpoint();
    let project = thrifty(&endpoint);
    let budget = 0.002;
    let mut runs = 0;
    loop {
        let before = billed(&endpoint);
        let ended = project.run_materialize(&["--budget", "0.002"]);
        let spent = billed(&endpoint) - before;
        assert!(spent <= budget + 1e-12, "{spent}");
        assert!((ended.done_event()["cost_usd"].as_f64().unwrap() - spent).abs() < 1e-9);
        runs += 1;
        assert!(runs < 10, "it does not get on");
        if ended.code == 0 {
            break;
        }
        let ended = ended.expect_exit_code(3);
        assert!(ended.stderr.contains("budget"), "{}", ended.stderr);
        last_is_done(&ended);
        assert!(spent > budget / 4.0, "{spent}: a run goes on where the last one ended");
    }
    assert!(runs > 1, "the budget was too large for the test");
    assert_eq!(endpoint.cells_since(0).len(), 40, "nothing is paid for twice");
    check_complete(&project);
}

#[test]
fn a_run_that_was_killed_got_its_budget_anew() {
    let endpoint = truthful_endpoint();
    endpoint.add_fault(Fault::Latency(Duration::from_millis(150)), Frequency::Always);
    let project = thrifty(&endpoint);
    let budget = 0.003;
    let args = ["materialize", "specs/x.toml", "--budget", "0.003", "--concurrency", "1"];
    for n in [2, 4] {
        let running = project.start_hqdl(&args);
        endpoint.wait_for(n);
        running.send_signal("KILL");
        running.wait_for_exit();
        std::thread::sleep(Duration::from_millis(200));
    }
    let before = billed(&endpoint);
    assert!(before > 0.0);
    let ended = project.run_hqdl(&args).expect_exit_code(3);
    let spent = billed(&endpoint);
    assert!(spent <= budget + 1e-12, "{spent}, of which {before} before the kills");
    assert!(ended.stderr.contains("budget"), "{}", ended.stderr);
    // After a run that ended normally, the next one has its own budget.
    endpoint.clear_faults();
    project.run_materialize(&["--budget", "1"]).expect_exit_code(0);
    check_complete(&project);
}

#[test]
fn an_override_was_asked_for_or_refreshed_away() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    let zed = |command: &'static str, more: &[&'static str]| {
        let words = ["override", command, "specs/x.toml", "llm", "Zed", "Zed Zedsson", "born"];
        project.run_hqdl(&[&words[..], more].concat())
    };
    zed("set", &["1234", "--note", "as he says himself"]).expect_exit_code(0);
    let listed = project.run_hqdl(&["override", "list", "specs/x.toml"]).expect_exit_code(0).stdout;
    assert!(listed.contains("Zed Zedsson") && listed.contains("1234"), "{listed}");
    assert!(listed.contains("as he says himself"), "{listed}");
    let born = || project.query_rows("SELECT born FROM llm WHERE name = 'Zed'")[0][0].clone();
    let asked = |from: usize| {
        let cells = endpoint.cells_since(from);
        cells.iter().any(|(key, column)| key[0] == "Zed" && column == "born")
    };
    assert_eq!(project.run_plan(&[])["totals"]["cells"], 39);
    let ended = project.run_materialize(&[]).expect_exit_code(0);
    assert_eq!(ended.done_event()["cells"]["overridden"], 1);
    assert!(!asked(0));
    assert_eq!((born(), zeds(&project, "born")), (json!(1234), json!("overridden")));
    let count = endpoint.request_count();
    project.run_materialize(&["--refresh", "born"]).expect_exit_code(0);
    assert!(endpoint.request_count() > count && !asked(count));
    assert_eq!((born(), zeds(&project, "born")), (json!(1234), json!("overridden")));
    // A value that the column does not allow is rejected.
    zed("set", &["long ago"]).expect_exit_code(2);
    project.run_materialize(&[]).expect_exit_code(0);
    assert_eq!(born(), 1234);
    // A value of a list, and one that replaces the model's answer.
    let list = ["llm_power", "Zed", "Zed Zedsson", "powers", "Speed|Flight"];
    project
        .run_hqdl(&[&["override", "set", "specs/x.toml"], &list[..]].concat())
        .expect_exit_code(0);
    zed("set", &["1235"]).expect_exit_code(0);
    project.run_materialize(&[]).expect_exit_code(0);
    assert_eq!(born(), 1235);
    let powers =
        project.query_rows("SELECT power FROM llm_power WHERE name = 'Zed' ORDER BY power");
    assert_eq!(powers, [[json!("Flight")], [json!("Speed")]]);
    // After it is removed, the model's answer counts again.
    zed("unset", &[]).expect_exit_code(0);
    zed("unset", &[]).expect_exit_code(2);
    let words = ["override", "unset", "specs/x.toml"];
    project.run_hqdl(&[&words[..], &list[..4]].concat()).expect_exit_code(0);
    // Without overrides, the file has its key columns, and a person can add a line.
    let header = std::fs::read_to_string(project.path("specs/x.overrides.csv")).unwrap();
    assert!(header.starts_with("name,full_name,column,value,note"), "{header}");
    assert_eq!(
        project.run_hqdl(&["override", "list", "specs/x.toml"]).expect_exit_code(0).stdout.trim(),
        ""
    );
    let count = endpoint.request_count();
    project.run_materialize(&[]).expect_exit_code(0);
    assert!(asked(count));
    check_complete(&project);
    assert!(HEROES.contains("Zed Zedsson"));
}

#[test]
fn an_override_of_a_key_in_no_source_said_nothing_and_nobody_was_told() {
    let endpoint = Endpoint::start_with(|_, _| "x".into());
    let project = Project::new(
        &endpoint,
        "CREATE TABLE t (name TEXT); INSERT INTO t VALUES ('Ann'), ('Bob');",
        r#"
[database]
path = "../data.sqlite"
[model]
name = "test"
base_url = "{base_url}"
api_key_env = "HQDL_TEST_KEY"
[[expansion]]
name = "llm"
source = "t"
key = ["name"]
[[expansion.column]]
name = "c"
"#,
    );
    let lines = "name,column,value,note\nAnn,c,y,\nCleo,c,z,\n";
    std::fs::write(project.path("specs/x.overrides.csv"), lines).unwrap();
    for command in ["plan", "materialize", "materialize"] {
        let ended = project.run_hqdl(&[command, "specs/x.toml"]).expect_exit_code(0);
        let told = "x.overrides.csv:3: no source has the key (Cleo)";
        assert!(ended.stderr.contains(told), "{command}: {}", ended.stderr);
        assert!(!ended.stderr.contains("csv:2"), "{}", ended.stderr);
    }
}

#[test]
fn an_endpoint_that_answers_429_for_ever_was_said_to_be_down() {
    for (status, hint) in [(429, "lower `requests_per_minute`"), (503, "retry later")] {
        let endpoint = truthful_endpoint();
        let soon = vec![("retry-after-ms", "1".to_owned())];
        endpoint.add_fault(Fault::Status(status, soon, "busy".to_owned()), Frequency::Always);
        let project = heroes_project(&endpoint, "json");
        let ended = project.run_hqdl(&["materialize", "specs/x.toml"]).expect_exit_code(4);
        assert!(ended.stderr.contains(hint), "{}", ended.stderr);
        assert!(!ended.stderr.contains("does not answer"), "{}", ended.stderr);
    }
}
