//! Tests of publishing after interruptions: a kill does not restore a budget, files of killed
//! processes are removed, and the tables show the current state.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use rusqlite::Connection;
use serde_json::json;

use hqdl_testkit::endpoint::{Endpoint, Fault, Frequency};
use hqdl_testkit::project::{
    HEROES, Project, check_cells, check_cells_in, heroes_project, heroes_spec, truthful_endpoint,
};

/// Creates the heroes' project with one row per request, and a budget for about half of them.
fn short_of_money(endpoint: &Endpoint) -> Project {
    let project = heroes_project(endpoint, "csv");
    let text = heroes_spec()
        .replace("test-model", "gpt-4o-mini")
        .replace("rows_per_request = 4", "rows_per_request = 1")
        .replace("price = {", "max_output_tokens = 100\nprice = {")
        .replace("concurrency = 4", "concurrency = 1\nbudget_usd = 0.002");
    project.write_spec(&text);
    project
}

fn spent(project: &Project) -> f64 {
    let sql = "SELECT (SELECT coalesce(sum(cost_usd), 0) FROM completion)
                    + (SELECT coalesce(sum(cost_usd), 0) FROM reservation)";
    project.query_facts(sql)[0][0].as_f64().unwrap()
}

fn open_runs(project: &Project) -> usize {
    project.query_facts("SELECT 1 FROM run WHERE ended_at IS NULL").len()
}

/// Waits until requests are in flight, and then locks the database from another connection.
fn lock(project: &Project) -> Connection {
    let other = project.connect();
    other.busy_timeout(Duration::from_secs(5)).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    other
}

/// Waits until a run that writes a log is about to publish.
fn publishes(project: &Project) {
    let log = project.path("run.log");
    let began = Instant::now();
    while !std::fs::read_to_string(&log).is_ok_and(|log| log.contains("publishes")) {
        assert!(began.elapsed() < Duration::from_secs(60), "it never publishes");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Each store of facts numbers its completions from 1.
#[test]
fn another_cache_brings_its_own_provenance() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "json");
    let models = || project.query_rows("SELECT DISTINCT model FROM hqdl_cell WHERE state = 'ok'");
    let run = |flags: &[&str]| project.run_materialize(flags).expect_exit_code(0);
    run(&["--model", "first", "--price", "1,1"]);
    assert_eq!(models(), [[json!("first")]]);
    run(&["--model", "second", "--price", "1,1", "--cache", "other"]);
    assert_eq!(models(), [[json!("second")]]);
    // An older copy of a cache has other answers under the ids that it gives next.
    let copy = |from: &str, to: &str| {
        let (from, to) = (project.path(from), project.path(to));
        let _ = std::fs::remove_dir_all(&to);
        std::fs::create_dir(&to).unwrap();
        for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
            if entry.path().is_file() {
                std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
            }
        }
    };
    copy("other", "older");
    let add = |name: &str| {
        let sql = format!("INSERT INTO hero (name, full_name) VALUES ('{name}', '{name}')");
        project.execute_sql(&sql);
        run(&["--model", "second", "--price", "1,1", "--cache", "other"]);
    };
    add("Zed");
    copy("older", "other");
    project.execute_sql("DELETE FROM hero WHERE name = 'Zed'");
    let zoe = "SELECT DISTINCT prompt_hash FROM hqdl_cell WHERE key LIKE '%Zoe%'";
    add("Zoe");
    let published = project.query_rows(zoe);
    let flags =
        ["--model", "second", "--price", "1,1", "--cache", "other", "--output", "copy.sqlite"];
    run(&flags);
    assert_eq!(project.query_rows_of("copy.sqlite", zoe), published);
}

/// `SQLite` refuses to rename anything in a database with a view that it cannot read.
#[test]
fn an_expansion_removed_from_the_spec_leaves_no_table_and_no_view() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "json");
    project.execute_sql("CREATE TABLE city (name TEXT); INSERT INTO city VALUES ('Lima');");
    let spec = project.spec_text();
    let city = "[[expansion]]\nname = \"place\"\nsource = \"city\"\nkey = [\"name\"]\n\n\
                [[expansion.column]]\nname = \"motto\"\n";
    project.write_spec(&format!("{spec}\n{city}"));
    project.run_materialize(&[]);
    assert!(project.has_table("place"));
    project.query_rows("SELECT motto FROM city_expanded");
    project.write_spec(&spec);
    let requests = endpoint.request_count();
    project.run_materialize(&[]);
    assert_eq!(endpoint.request_count(), requests);
    assert!(!project.has_table("place") && !project.has_table("city_expanded"));
    project.execute_sql("ALTER TABLE city RENAME TO town");
}

#[test]
fn a_spec_keeps_the_view_that_shows_the_columns_of_another() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "json");
    project.run_materialize(&[]).expect_exit_code(0);
    let names = |spec: &str, n: u32| spec.replace("llm", &format!("other{n}"));
    let other = project.path("specs/y.toml");
    std::fs::write(&other, names(&project.spec_text(), 1)).unwrap();
    let publish = || project.run_hqdl(&["materialize", "specs/y.toml"]).expect_exit_code(0);
    let ended = publish();
    let warning = "the view `hero_expanded` shows the columns of the spec ";
    assert!([&ended.stdout, &ended.stderr].iter().any(|s| s.contains(warning)), "{ended:?}");
    assert!(project.has_table("other1"));
    let columns =
        || project.query_rows("SELECT sql FROM sqlite_schema WHERE name = 'hero_expanded'");
    let view = columns();
    assert!(view[0][0].as_str().unwrap().contains("\"llm\""), "{view:?}");
    // Removing the other spec's tables leaves the view of the first.
    project.run_hqdl(&["clean", "specs/y.toml"]).expect_exit_code(0);
    assert!(!project.has_table("other1"));
    assert_eq!(columns(), view);
    // Once the first spec has no tables, the view is free.
    project.run_hqdl(&["clean", "specs/x.toml"]).expect_exit_code(0);
    std::fs::write(&other, names(&project.spec_text(), 2)).unwrap();
    publish();
    assert!(columns()[0][0].as_str().unwrap().contains("\"other2\""), "{:?}", columns());
}

#[test]
fn a_run_killed_while_publishing_is_resumed_with_its_remaining_budget() {
    let endpoint = truthful_endpoint();
    let project = short_of_money(&endpoint);
    endpoint.add_fault(Fault::Latency(Duration::from_millis(200)), Frequency::Always);
    let running = project.start_hqdl(&["materialize", "specs/x.toml", "--log", "run.log"]);
    endpoint.wait_for(1);
    let other = lock(&project);
    publishes(&project);
    let asked = endpoint.request_count();
    running.send_signal("KILL");
    running.wait_for_exit();
    drop(other);
    assert!(asked < 10, "the budget ends it: {asked}");
    assert!(!project.has_table("llm"));
    assert_eq!(open_runs(&project), 1, "its tables do not stand");
    // The same run is resumed: its budget is spent, and the known cells are published.
    project.run_materialize(&[]).expect_exit_code(3);
    assert_eq!(endpoint.request_count(), asked);
    assert!(spent(&project) <= 0.002, "{}", spent(&project));
    assert!(check_cells(&project)["ok"] > 0);
    assert_eq!(open_runs(&project), 0);
    // A new run has its own budget.
    project.run_materialize(&[]);
    assert!(endpoint.request_count() > asked);
}

/// The next run publishes them even if its budget is spent.
#[test]
fn unpublished_answers_are_published_by_a_run_without_requests() {
    let endpoint = truthful_endpoint();
    let project = short_of_money(&endpoint);
    project.run_materialize(&["--limit", "2"]).expect_exit_code(0);
    assert_eq!(check_cells(&project)["ok"], 8);
    // Simulates a run that is killed before it publishes here.
    project.run_materialize(&["--limit", "3", "--output", "elsewhere.sqlite"]).expect_exit_code(0);
    let before = endpoint.request_count();
    project.run_materialize(&["--budget", "0.00000001"]).expect_exit_code(3);
    assert_eq!(endpoint.request_count(), before);
    assert_eq!(check_cells(&project)["ok"], 20);
    // Another model without answers replaces nothing.
    let other = ["--budget", "0.00000001", "--model", "gpt-4o", "--price", "1,2"];
    project.run_materialize(&other).expect_exit_code(3);
    assert_eq!(check_cells(&project)["ok"], 20);
}

#[test]
fn a_run_that_cannot_publish_is_resumed_with_its_remaining_budget() {
    let endpoint = truthful_endpoint();
    let project = short_of_money(&endpoint);
    endpoint.add_fault(Fault::Latency(Duration::from_millis(200)), Frequency::Always);
    let running = project.start_hqdl(&["materialize", "specs/x.toml", "--json"]);
    endpoint.wait_for(1);
    let other = lock(&project);
    let ended = running.wait_for_exit();
    assert!(ended.stderr.contains("locked"), "{ended:?}");
    drop(other);
    let asked = endpoint.request_count();
    assert_eq!(open_runs(&project), 1);
    project.run_materialize(&[]).expect_exit_code(3);
    assert_eq!((endpoint.request_count(), open_runs(&project)), (asked, 0));
}

#[test]
fn a_run_killed_after_its_last_answer_ends_once_its_tables_are_published() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    project
        .write_spec(&heroes_spec().replace("concurrency = 4", "concurrency = 1\nbudget_usd = 0.5"));
    endpoint.add_fault(Fault::Latency(Duration::from_millis(200)), Frequency::Always);
    let running = project.start_hqdl(&["materialize", "specs/x.toml", "--log", "run.log"]);
    endpoint.wait_for(1);
    let other = lock(&project);
    publishes(&project);
    running.send_signal("KILL");
    running.wait_for_exit();
    drop(other);
    assert_eq!(open_runs(&project), 1);
    project.run_materialize(&[]).expect_exit_code(0);
    assert_eq!(open_runs(&project), 0, "what it was to do is done");
}

#[test]
fn only_copies_of_killed_runs_are_removed() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    let mut gone = std::process::Command::new("true").spawn().unwrap();
    let id = gone.id();
    gone.wait().unwrap();
    let swept = [format!("out.sqlite.{id}.part"), format!("out.sqlite.{id}.part-journal")];
    let kept = [
        // Files of a running process.
        format!("out.sqlite.{}.part", std::process::id()),
        "out.sqlite.notes.part".to_owned(),
        format!("out.sqlite.{id}.part.bak"),
        format!("other.sqlite.{id}.part"),
        // A file locked by a process that is not visible here.
        "out.sqlite.4194399.part".to_owned(),
    ];
    for file in swept.iter().chain(&kept) {
        std::fs::write(project.path(file), "half a copy").unwrap();
    }
    let held = std::fs::File::open(project.path(&kept[4])).unwrap();
    held.try_lock().unwrap();
    for _ in 0..2 {
        project.run_materialize(&["--output", "out.sqlite"]).expect_exit_code(0);
        assert!(swept.iter().all(|f| !project.path(f).exists()));
        assert!(kept.iter().all(|f| project.path(f).exists()));
    }
}

/// Replaces the database by another file, with one hero fewer and another one more.
fn other_file(project: &Project) {
    let new = project.path("new.sqlite");
    let other = Connection::open(&new).unwrap();
    other.execute_batch(HEROES).unwrap();
    other
        .execute_batch(
            "DELETE FROM hero WHERE name = 'Zed';
             INSERT INTO hero (name, full_name) VALUES ('Newcomer', 'Nina New');",
        )
        .unwrap();
}

#[test]
fn a_database_replaced_during_a_run_is_reported_and_published_from_its_new_content() {
    for output in [None, Some("out.sqlite")] {
        let endpoint = truthful_endpoint();
        let project = heroes_project(&endpoint, "csv");
        endpoint.add_fault(Fault::Latency(Duration::from_secs(1)), Frequency::Always);
        let flags: Vec<&str> = output.iter().flat_map(|o| ["--output", o]).collect();
        let args = [&["materialize", "specs/x.toml", "--json"], &flags[..]].concat();
        other_file(&project);
        let running = project.start_hqdl(&args);
        endpoint.wait_for(1);
        std::fs::rename(project.path("new.sqlite"), project.path("data.sqlite")).unwrap();
        let ended = running.wait_for_exit().expect_exit_code(0);
        assert!(ended.stdout.contains("was replaced by another file"), "{}", ended.stdout);
        let target = output.unwrap_or("data.sqlite");
        assert_eq!(check_cells_in(&project, target)["ok"], 40);
        let names = |database: &str, table: &str| -> BTreeSet<String> {
            let rows = project.query_rows_of(database, &format!("SELECT name FROM {table}"));
            rows.iter().map(|r| r[0].to_string()).collect()
        };
        assert_eq!(names(target, "llm"), names("data.sqlite", "hero"));
        assert!(names(target, "llm").contains("\"Newcomer\""));
        // Eleven heroes, each requested once.
        assert_eq!(endpoint.cells_since(0).len(), 44);
        assert_eq!(ended.done_event()["requests"], endpoint.request_count());
        let again = project.run_hqdl(&args).expect_exit_code(0);
        assert_eq!(again.done_event()["published"], false);
    }
}

#[test]
fn a_file_where_the_index_belongs_is_kept() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    std::fs::create_dir(project.path("cache")).unwrap();
    std::fs::write(project.path("cache/index.sqlite"), "my notes ".repeat(200)).unwrap();
    project.run_materialize(&[]).expect_exit_code(0);
    assert!(project.has_table("llm"));
    let kept = std::fs::read_to_string(project.path("cache/index.sqlite.damaged")).unwrap();
    assert!(kept.starts_with("my notes"), "{kept}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_spec_whose_name_is_not_utf_8_is_reported() {
    use std::os::unix::ffi::OsStrExt;
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    let name = Path::new("specs").join(std::ffi::OsStr::from_bytes(b"h\xe9ros.toml"));
    std::fs::rename(project.path("specs/x.toml"), project.path(&name)).unwrap();
    let output = project.hqdl_command(&["materialize"]).arg(&name).output().unwrap();
    let ended = hqdl_testkit::project::CommandResult::new(&output).expect_exit_code(2);
    assert!(ended.stderr.contains("its path is not UTF-8; rename it"), "{}", ended.stderr);
    assert_eq!(endpoint.request_count(), 0);
}

/// A process that is killed during a transaction leaves a rollback journal, which is needed to read
/// the database.
#[test]
fn a_database_with_a_rollback_journal_can_be_read() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    project.run_materialize(&[]).expect_exit_code(0);
    let other = project.connect();
    other
        .execute_batch(
            "PRAGMA cache_size = 1; BEGIN; CREATE TABLE half (x);
             WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000)
             INSERT INTO half SELECT hex(randomblob(100)) FROM n; UPDATE llm SET motto = 'half';",
        )
        .unwrap();
    let left = heroes_project(&endpoint, "csv");
    for file in ["data.sqlite", "data.sqlite-journal"] {
        std::fs::copy(project.path(file), left.path(file)).unwrap();
    }
    drop(other);
    let asked = endpoint.request_count();
    left.run_materialize(&[]).expect_exit_code(0);
    assert!(endpoint.request_count() > asked, "its cache is its own");
    assert!(!left.has_table("half"));
    assert_eq!(check_cells(&left)["ok"], 40);
}

/// Creates a project whose keys are integers except for one text, published into the database
/// itself or into a copy.
fn numbered(endpoint: &Endpoint, output: &str) -> Project {
    let sql = "CREATE TABLE hero (id INTEGER PRIMARY KEY, name TEXT);
        INSERT INTO hero VALUES (3, 'Blaze'), (1, 'Zed');
        CREATE TABLE note (n INTEGER, words TEXT);
        INSERT INTO note VALUES (7, 'x'), ('seven', 'y'), (NULL, 'z');
        CREATE TABLE power (power TEXT);
        INSERT INTO power VALUES ('Flight'), ('Speed'), ('Strength, super'), ('Mind reading');";
    let (_, columns) = heroes_spec()
        .split_once("[[expansion.column]]")
        .map(|(a, b)| (a.to_owned(), b.to_owned()))
        .unwrap();
    let model = heroes_spec()
        .split_once("[[expansion]]")
        .unwrap()
        .0
        .replace("data.sqlite\"", &format!("data.sqlite\"{output}"));
    let expansion = |name: &str, source: &str, key: &str| {
        let columns = columns.replace("llm_", &format!("{name}_"));
        format!(
            "[[expansion]]\nname = \"{name}\"\nsource = \"{source}\"\nkey = [\"{key}\"]\n\n[[expansion.column]]{columns}\n"
        )
    };
    let text = [model, expansion("llm", "hero", "id"), expansion("noted", "note", "n")].concat();
    Project::new(endpoint, sql, &text)
}

/// Other tools distinguish rows by declared keys, even if a part is NULL, or an integer column
/// contains a text.
#[test]
fn published_tables_declare_their_keys() {
    let endpoint = truthful_endpoint();
    for output in ["", "\noutput = \"../copy.sqlite\""] {
        let project = numbered(&endpoint, output);
        project.run_materialize(&[]).expect_exit_code(0);
        let file = if output.is_empty() { "data.sqlite" } else { "copy.sqlite" };
        let rows = |sql: &str| project.query_rows_of(file, sql);
        let key = |table: &str| {
            rows(&format!("SELECT name FROM pragma_table_info('{table}') WHERE pk > 0 ORDER BY pk"))
        };
        assert_eq!(key("llm"), [[json!("id")]]);
        assert_eq!(key("noted"), [[json!("n")]]);
        let refers = |table: &str| {
            rows(&format!(
                "SELECT \"table\", \"from\", \"to\" FROM pragma_foreign_key_list('{table}')"
            ))
        };
        let many = refers("llm_power");
        assert_eq!(many, [[json!("llm"), json!("id"), json!("id")]]);
        let source = if output.is_empty() {
            vec![]
        } else {
            vec![vec![json!("hero"), json!("id"), json!("id")]]
        };
        assert_eq!(refers("llm"), source, "a user's own rows can be deleted");
        assert!(refers("noted").is_empty(), "nothing tells its rows apart");
        assert!(rows("PRAGMA foreign_key_check").is_empty());
        assert_eq!(
            rows("SELECT id, typeof(id) FROM llm ORDER BY id"),
            [[json!(1), json!("integer")], [json!(3), json!("integer")]]
        );
        assert_eq!(
            rows("SELECT n, typeof(n) FROM noted ORDER BY n"),
            [[json!(7), json!("integer")], [json!("seven"), json!("text")]]
        );
        let untyped = "SELECT name FROM pragma_table_info('hqdl_cell') WHERE type NOT IN ('TEXT', 'INT', 'INTEGER', 'REAL')";
        assert!(rows(untyped).is_empty());
        // The user can write as before.
        let connection = Connection::open(project.path("data.sqlite")).unwrap();
        connection.execute_batch("PRAGMA foreign_keys = ON; UPDATE hero SET id = 4 WHERE id = 3; DELETE FROM hero WHERE id = 1;").unwrap();
        project.run_materialize(&[]).expect_exit_code(0);
        assert_eq!(rows("SELECT id FROM llm"), [[json!(4)]]);
    }
}

#[test]
fn a_key_column_renamed_during_a_run_is_an_error_that_keeps_the_tables() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    project.run_materialize(&[]).expect_exit_code(0);
    let published = || project.query_rows("SELECT * FROM llm ORDER BY 1, 2");
    let before = published();
    assert!(!before.is_empty());
    let connection = project.connect();
    connection.execute_batch("INSERT INTO hero (name, full_name) VALUES ('New', 'Name')").unwrap();
    endpoint.add_fault(Fault::Latency(Duration::from_millis(700)), Frequency::Always);
    let asked = endpoint.request_count();
    let running = project.start_hqdl(&["materialize", "specs/x.toml"]);
    endpoint.wait_for(asked + 1);
    connection.execute_batch("ALTER TABLE hero RENAME COLUMN name TO renamed").unwrap();
    let run = running.wait_for_exit();
    assert_eq!(run.code, 2, "{}", run.stderr);
    assert!(run.stderr.contains("no such column: hero.name"), "{}", run.stderr);
    assert_eq!(published(), before);
}

/// A copy that is older than its database gets the rows that differ, in the transaction that
/// publishes. If the tables have changed, the copy is recreated.
#[test]
fn a_copy_gets_the_rows_that_differ() {
    let endpoint = Endpoint::start_with(|_, key| key[0].as_str().unwrap_or_default().len().into());
    let tables = "CREATE TABLE place (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT COLLATE NOCASE UNIQUE, n);
        INSERT INTO place (name, n) VALUES ('Leeds', 1), ('Lyon', 2), ('Vigo', 3), ('York', 4);
        CREATE TABLE note (text TEXT); INSERT INTO note VALUES ('a'), ('b'), ('b');
        CREATE INDEX by_n ON place (n); CREATE VIEW few AS SELECT * FROM place WHERE n < 3;
        CREATE TRIGGER told AFTER DELETE ON place BEGIN INSERT INTO note VALUES (old.name); END;";
    let spec = "
[database]
path = \"../data.sqlite\"
output = \"../copy.sqlite\"
[model]
name = \"test-model\"
base_url = \"{base_url}\"
api_key_env = \"HQDL_TEST_KEY\"
[[expansion]]
name = \"llm\"
source = \"place\"
key = [\"name\"]
[[expansion.column]]
name = \"size\"
";
    let project = Project::new(&endpoint, tables, spec);
    project.run_materialize(&[]).expect_exit_code(0);
    let open = |file: &str| rusqlite::Connection::open(project.path(file)).unwrap();
    // The copy's own statistics disappear when it is recreated.
    let analyze = || open("copy.sqlite").execute_batch("ANALYZE").unwrap();
    let is_analyzed = || {
        let sql = "SELECT count(*) FROM sqlite_schema WHERE name = 'sqlite_stat1'";
        open("copy.sqlite").query_row(sql, [], |r| r.get::<_, i64>(0)).unwrap() == 1
    };
    let same = || {
        for sql in [
            "SELECT rowid, *, typeof(n) FROM place ORDER BY rowid",
            "SELECT rowid, * FROM note ORDER BY rowid",
            "SELECT * FROM sqlite_sequence ORDER BY name",
        ] {
            let rows = |file: &str| hqdl_testkit::project::query_rows(&open(file), sql).unwrap();
            assert_eq!(rows("copy.sqlite"), rows("data.sqlite"), "{sql}");
        }
        let expanded = "SELECT name FROM llm ORDER BY name COLLATE BINARY";
        let names = "SELECT name FROM place ORDER BY name COLLATE BINARY";
        let copy = open("copy.sqlite");
        let of = |sql: &str| hqdl_testkit::project::query_rows(&copy, sql).unwrap();
        assert_eq!(of(expanded), of(names));
    };
    same();
    analyze();
    for change in [
        "INSERT INTO place (name, n) VALUES ('Bath', 5)",
        "UPDATE place SET n = 2.0 WHERE name = 'Lyon'",
        "UPDATE place SET name = 'LEEDS' WHERE name = 'Leeds'",
        "DELETE FROM place WHERE name = 'Vigo'; INSERT INTO note VALUES (NULL)",
        "UPDATE place SET id = id + 100; UPDATE place SET name = 'Rome' WHERE name = 'York'",
    ] {
        open("data.sqlite").execute_batch(change).unwrap();
        project.run_materialize(&[]).expect_exit_code(0);
        same();
        assert!(is_analyzed(), "{change}");
    }
    open("data.sqlite").execute_batch("ALTER TABLE place ADD COLUMN more").unwrap();
    project.run_materialize(&[]).expect_exit_code(0);
    same();
    assert!(!is_analyzed());
}

/// The default build has no Parquet writer.
#[cfg(not(feature = "parquet"))]
#[test]
fn a_folder_as_output_requires_a_feature() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "json");
    for command in ["plan", "materialize"] {
        let words = [command, "specs/x.toml", "--output", "expanded/"];
        let failed = project.run_hqdl(&words).expect_exit_code(2);
        assert!(failed.stderr.contains("`--features parquet`"), "{}", failed.stderr);
    }
    let database = "path = \"../data.sqlite\"";
    project.edit_spec(database, &format!("{database}\noutput = \"../expanded/\""));
    let failed = project.run_hqdl(&["check", "specs/x.toml"]);
    assert!(failed.code != 0 && failed.stderr.contains("`--features parquet`"), "{failed:?}");
    assert!(!project.path("expanded").exists());
    assert_eq!(endpoint.request_count(), 0);
}
