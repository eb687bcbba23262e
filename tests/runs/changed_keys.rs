//! A run visits only the keys that may have changed since the tables were published. Whatever
//! changes, its tables are those that are published from nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rusqlite::Connection;
use serde_json::Value as Json;

use hqdl_testkit::endpoint::Endpoint;
use hqdl_testkit::project::{Project, query_rows};

const TABLES: &str = "
CREATE TABLE place (id INTEGER PRIMARY KEY, name, note TEXT);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 600)
  INSERT INTO place SELECT i, 'Place ' || i, 'note ' || i FROM n;
CREATE TABLE other (name);
INSERT INTO other VALUES ('Place 3'), ('Elsewhere'), (NULL);
";
const SPEC: &str = "
[database]
path = \"../data.sqlite\"
output = \"../copy.sqlite\"
[model]
name = \"test-model\"
base_url = \"{base_url}\"
api_key_env = \"HQDL_TEST_KEY\"
[[expansion]]
name = \"llm\"
key = [\"name\"]
context = []
rows_per_request = 100
[[expansion.source]]
table = \"place\"
[[expansion.source]]
table = \"other\"
columns = [\"mood\"]
[[expansion.column]]
name = \"size\"
[[expansion.column]]
name = \"mood\"
";

/// A project whose tables are published, with the number of answers so far.
struct Published {
    project: Project,
    generation: Arc<AtomicU64>,
}

impl Published {
    fn new() -> Self {
        let generation: Arc<AtomicU64> = Arc::default();
        let now = Arc::clone(&generation);
        let endpoint = Endpoint::start_with(move |column, key: &[Json]| {
            format!("{column} of {} ({})", key[0], now.load(Ordering::SeqCst)).into()
        });
        let project = Project::new(&endpoint, TABLES, SPEC);
        // As long as the test.
        std::mem::forget(endpoint);
        project.run_materialize(&[]).expect_exit_code(0);
        let published = Self { project, generation };
        published.compare_with_new_tables("the first run");
        published
    }

    /// Materializes; returns the number of requested cells, and whether only some keys were visited.
    fn update(&self, flags: &[&str]) -> (u64, bool) {
        let args = [&["materialize", "specs/x.toml", "--json", "--log", "run.log"], flags].concat();
        let mut command = self.project.hqdl_command(&args);
        let output = command.env("RUST_LOG", "hqdl=debug").output().unwrap();
        let result = hqdl_testkit::project::CommandResult::new(&output).expect_exit_code(0);
        let log = std::fs::read_to_string(self.project.path("run.log")).unwrap();
        std::fs::remove_file(self.project.path("run.log")).unwrap();
        let event = result.done_event();
        let cells = event["cells"].as_object().unwrap().values().filter_map(Json::as_u64);
        let requested = cells.sum::<u64>() - event["cells_reused"].as_u64().unwrap();
        let some = log.contains("visits the changed keys") && !log.contains("looks at every row");
        (requested, some)
    }

    /// Compares the copy with one that is made from nothing.
    fn compare_with_new_tables(&self, change: &str) {
        let _ = std::fs::remove_file(self.project.path("new.sqlite"));
        let args =
            ["materialize", "specs/x.toml", "--limit", "0", "--output", "new.sqlite", "--json"];
        let made = self.project.run_hqdl(&args);
        assert_eq!(made.done_event()["requests"], 0, "{change}");
        let rows_of = |file: &str| {
            let db = Connection::open(self.project.path(file)).unwrap();
            [
                "SELECT *, typeof(name) FROM place ORDER BY rowid",
                "SELECT *, typeof(name) FROM llm ORDER BY typeof(name), name COLLATE BINARY",
                "SELECT key, cells, version FROM hqdl_record ORDER BY key",
                "SELECT id, cells FROM hqdl_completion WHERE cells <> 0 ORDER BY id",
                "SELECT rows, checksums FROM hqdl_object WHERE name = 'llm'",
            ]
            .map(|sql| query_rows(&db, sql).unwrap())
        };
        for (copied, new) in rows_of("copy.sqlite").iter().zip(&rows_of("new.sqlite")) {
            assert_eq!(copied.len(), new.len(), "{change}");
            copied.iter().zip(new).for_each(|(c, n)| assert_eq!(c, n, "{change}"));
        }
    }

    /// Changes the database and updates the copy. It must ask about `cells` cells and visit only
    /// some keys.
    fn change(&self, sql: &str, cells: u64) {
        self.project.execute_sql(sql);
        assert_eq!(self.update(&[]), (cells, true), "{sql}");
        self.compare_with_new_tables(sql);
        assert_eq!(self.update(&[]).0, 0, "{sql}");
    }
}

#[test]
fn no_change_of_the_rows_is_missed() {
    let published = Published::new();
    for (sql, cells) in [
        ("INSERT INTO place (name) VALUES ('New')", 2),
        ("UPDATE place SET name = 'Other' WHERE id = 7", 2),
        ("DELETE FROM place WHERE id = 8", 0),
        ("DELETE FROM place WHERE id = 9; INSERT INTO place VALUES (9, 'Ninth', NULL)", 2),
        // Two rows exchange their keys.
        ("UPDATE place SET name = 'Place ' || (23 - id) WHERE id IN (11, 12)", 0),
        // Other types, spellings and duplicates of a key that is known.
        ("INSERT INTO place (name) VALUES (5), ('5')", 2),
        ("UPDATE place SET name = 5 WHERE name = '5'", 0),
        ("INSERT INTO place (name) VALUES ('Place 20 '), ('Place 21'), ('Place 22')", 0),
        ("DELETE FROM place WHERE name = 'Place 20'", 0),
        ("DELETE FROM place WHERE id = 21", 0),
        ("INSERT INTO place (name) VALUES (NULL), (''), (char(233)), ('e' || char(769))", 4),
        // Another source has or loses the key.
        ("INSERT INTO other VALUES ('Place 30'), ('Far')", 1),
        ("DELETE FROM place WHERE name = 'Place 30'; DELETE FROM other WHERE name = 'Far'", 0),
        ("INSERT INTO place (name) VALUES ('Elsewhere')", 1),
        ("UPDATE place SET id = id + 1000", 0),
        ("UPDATE place SET note = 'another' WHERE name = 'Place 40'", 0),
        ("VACUUM", 0),
    ] {
        published.change(sql, cells);
    }
}

/// If most keys change, one is not readable, or equal numbers have two types, all keys are visited.
#[test]
fn many_changes_are_published_from_all_keys() {
    let published = Published::new();
    for sql in [
        "UPDATE place SET name = 'Place ' || (id + 300)",
        "INSERT INTO place (name) VALUES (5), (5.0)",
        "INSERT INTO place (name) VALUES (x'00ff'), (CAST(x'ff' AS TEXT))",
        "DELETE FROM place WHERE id > 3",
    ] {
        published.project.execute_sql(sql);
        assert!(!published.update(&[]).1, "{sql}");
        published.compare_with_new_tables(sql);
    }
}

/// An earlier state of the database, the copy or the cache replaces the current one.
#[test]
fn restored_files_are_published_as_they_are() {
    let published = Published::new();
    let path = |name: &str| published.project.path(name);
    let copy_file = |from: &str, to: &str| assert!(std::fs::copy(path(from), path(to)).is_ok());
    let copy_cache = |from: &str, to: &str| {
        let _ = std::fs::remove_dir_all(path(to));
        std::fs::create_dir(path(to)).unwrap();
        for file in std::fs::read_dir(path(from)).unwrap().flatten() {
            if file.file_type().unwrap().is_file() {
                std::fs::copy(file.path(), path(to).join(file.file_name())).unwrap();
            }
        }
    };
    copy_file("data.sqlite", "data.before");
    copy_file("copy.sqlite", "copy.before");
    let has_files = std::env::var_os("HQDL_TESTS_ON_SERVER").is_none();
    if has_files {
        copy_cache("cache", "cache.before");
    }
    published.change("UPDATE place SET name = name || '!' WHERE id % 150 = 0", 8);
    // The database is an older one again: nothing is asked about it.
    copy_file("data.sqlite", "data.after");
    copy_file("data.before", "data.sqlite");
    assert_eq!(published.update(&[]), (0, true));
    published.compare_with_new_tables("the database before");
    copy_file("data.after", "data.sqlite");
    assert_eq!(published.update(&[]), (0, true));
    // The copy is an older one again.
    copy_file("copy.before", "copy.sqlite");
    assert_eq!(published.update(&[]).0, 0);
    published.compare_with_new_tables("the copy before");
    if has_files {
        // The cache is an older one: what it no longer knows is asked again.
        copy_cache("cache.before", "cache");
        assert_eq!(published.update(&[]), (8, false));
        published.compare_with_new_tables("the cache before");
        // The same, after as many other answers as it had.
        copy_cache("cache.before", "cache");
        published.generation.fetch_add(1, Ordering::SeqCst);
        let flags = ["--refresh", "size", "--refresh", "mood", "--output", "elsewhere.sqlite"];
        published.update(&flags);
        assert_eq!(published.update(&[]).0, 0);
        let copy = Connection::open(path("copy.sqlite")).unwrap();
        let sql = "SELECT count(*) FROM llm WHERE coalesce(size, mood) NOT LIKE '% (1)'";
        assert_eq!(query_rows(&copy, sql).unwrap()[0][0], 0, "answers of the other history");
    }
}

#[test]
fn no_change_of_answers_or_of_the_spec_is_missed() {
    let published = Published::new();
    let project = &published.project;
    // Answers that another command stores.
    published.generation.fetch_add(1, Ordering::SeqCst);
    let flags = ["--refresh", "size", "--where", "id = 50", "--output", "elsewhere.sqlite"];
    published.update(&flags);
    assert_eq!(published.update(&[]), (0, true));
    published.compare_with_new_tables("a new answer");
    // Overrides.
    for args in [
        &["override", "set", "specs/x.toml", "llm", "Place 60", "mood", "good"][..],
        &["override", "unset", "specs/x.toml", "llm", "Place 60", "mood"],
    ] {
        project.run_hqdl(args).expect_exit_code(0);
        assert_eq!(published.update(&[]), (0, false), "{args:?}");
        published.compare_with_new_tables("an override");
        published.change("INSERT INTO place (name) VALUES ('New ' || random())", 2);
    }
    // Rows that are not asked about yet, and are then.
    project.execute_sql("INSERT INTO place (name) VALUES ('First'), ('Second')");
    assert_eq!(published.update(&["--limit", "1"]), (2, true));
    published.compare_with_new_tables("one of two rows");
    assert_eq!(published.update(&["--columns", "mood"]), (1, true));
    assert_eq!(published.update(&[]), (1, true));
    published.compare_with_new_tables("both rows");
    // Another definition of a source or of a column.
    for (from, to) in [
        ("table = \"other\"\n", "select = \"SELECT name FROM other WHERE name < 'F'\"\n"),
        ("columns = [\"mood\"]\n", ""),
        ("name = \"size\"\n", "name = \"size\"\nunknown = [\"size\"]\n"),
    ] {
        let text = project.spec_text();
        assert!(text.contains(from), "{text}");
        std::fs::write(project.path("specs/x.toml"), text.replace(from, to)).unwrap();
        project.execute_sql("INSERT INTO place (name) VALUES ('Newer ' || random())");
        assert!(!published.update(&[]).1, "{to}");
        published.compare_with_new_tables(to);
        published.change("INSERT INTO place (name) VALUES ('New ' || random())", 2);
    }
    // A row that another program edits.
    let copy = Connection::open(project.path("copy.sqlite")).unwrap();
    copy.execute("UPDATE llm SET mood = 'by hand' WHERE rowid = 90", []).unwrap();
    assert_eq!(published.update(&[]), (0, false));
    published.compare_with_new_tables("an edited row");
}
