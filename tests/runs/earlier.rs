//! Tests that this version opens data of earlier versions: all facts are found, and nothing is
//! requested again.

use std::path::{Path, PathBuf};
use std::process::Command;

use rusqlite::Connection;
use rusqlite::types::Value as Sql;
use serde_json::Value as Json;

use hqdl_testkit::project::CommandResult;

fn fixtures() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let mut found: Vec<PathBuf> = std::fs::read_dir(root)
        .unwrap()
        .flatten()
        .map(|e| e.path())
        .filter(|p| p.join("expected.json").is_file())
        .collect();
    found.sort();
    assert!(!found.is_empty());
    found
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().flatten() {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

fn hqdl(dir: &Path, args: &[&str]) -> CommandResult {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hqdl"));
    command.args(args).current_dir(dir).env("HQDL_CACHE", "cache");
    CommandResult::new(&command.output().unwrap())
}

/// Returns the rows of all published tables, and each cell's state and value. Earlier versions
/// published no reason for an invalid answer, and the note of an override as its repair.
fn published(dir: &Path) -> Vec<Vec<Sql>> {
    let connection = Connection::open(dir.join("expanded.sqlite")).unwrap();
    let tables = [
        "SELECT * FROM llm_town ORDER BY name, land IS NULL, land",
        "SELECT * FROM llm_town_trade ORDER BY name, land IS NULL, land, trade",
        "SELECT * FROM llm_club ORDER BY name",
        "SELECT * FROM town_expanded ORDER BY id",
        "SELECT expansion, key, \"column\", state, CAST(value AS TEXT), raw, iif(state IN ('invalid', 'overridden'), NULL, repair) FROM hqdl_cell ORDER BY 1, 2, 3, 4",
    ];
    let mut rows = Vec::new();
    for sql in tables {
        let mut statement = connection.prepare(sql).unwrap();
        let width = statement.column_count();
        let found = statement.query_map([], |r| (0..width).map(|n| r.get(n)).collect()).unwrap();
        rows.extend(found.map(Result::unwrap));
    }
    rows
}

/// Each access finds all facts: with the existing index, without it, and with tables published
/// again from the journal alone.
#[test]
fn facts_of_earlier_versions_are_found_without_requests() {
    for fixture in fixtures() {
        let expected: Json =
            serde_json::from_str(&std::fs::read_to_string(fixture.join("expected.json")).unwrap())
                .unwrap();
        for lost in [None, Some("cache/index.sled"), Some("expanded.sqlite")] {
            let dir = tempfile::tempdir().unwrap();
            copy(&fixture, dir.path());
            let before = published(dir.path());
            assert!(before.len() > 100, "{}", before.len());
            if let Some(lost) = lost.map(|l| dir.path().join(l)) {
                if lost.is_dir() {
                    std::fs::remove_dir_all(lost).unwrap();
                } else if lost.exists() {
                    std::fs::remove_file(lost).unwrap();
                }
            }
            // Cells that the model does not know have no value, so the exit code is 1, as it was
            // then.
            let run =
                hqdl(dir.path(), &["materialize", "towns.toml", "--json"]).expect_exit_code(1);
            assert_eq!(run.done_event()["requests"], 0, "{lost:?}: {run:?}");
            assert_eq!(run.done_event()["cells"]["error"], 0, "{lost:?}: {run:?}");
            assert_eq!(published(dir.path()), before, "{lost:?}");
            let connection = Connection::open(dir.path().join("expanded.sqlite")).unwrap();
            let note = "SELECT max(note) FROM hqdl_cell WHERE state = 'overridden'";
            let note: String = connection.query_row(note, [], |r| r.get(0)).unwrap();
            assert_eq!(note, "by the charter");
            for query in expected["queries"].as_array().unwrap() {
                let sql = query["sql"].as_str().unwrap();
                let ended = hqdl(dir.path(), &["query", "--spec", "towns.toml", "--json", sql]);
                let Some(found) = ended.lines.first() else { panic!("{sql}: {ended:?}") };
                assert_eq!(found["columns"], query["columns"], "{sql}");
                assert_eq!(found["rows"], query["rows"], "{sql}");
                assert_eq!(found["meta"]["requests"], 0, "{sql}: {ended:?}");
            }
        }
    }
}

/// Returns the names of hqdl's own tables and views.
fn own_objects(dir: &Path) -> Vec<String> {
    let connection = Connection::open(dir.join("expanded.sqlite")).unwrap();
    let sql = "SELECT name FROM sqlite_schema WHERE type IN ('table', 'view')
               AND name LIKE 'hqdl\\_%' ESCAPE '\\' ORDER BY name";
    let mut statement = connection.prepare(sql).unwrap();
    statement.query_map([], |r| r.get(0)).unwrap().map(Result::unwrap).collect()
}

/// An expanded database of an earlier version is read unchanged; the next run publishes into hqdl's
/// current tables, and `clean` removes the earlier ones, too.
#[test]
fn earlier_own_tables_are_read_migrated_and_cleaned() {
    for fixture in fixtures() {
        let dir = tempfile::tempdir().unwrap();
        copy(&fixture, dir.path());
        let all = own_objects(dir.path());
        assert!(all.iter().any(|name| name == "hqdl_expansion"), "{all:?}");
        let sql = "SELECT name FROM llm_club ORDER BY name LIMIT 1";
        let connection = Connection::open(dir.path().join("expanded.sqlite")).unwrap();
        let club: String = connection.query_row(sql, [], |r| r.get(0)).unwrap();
        let sql = "SELECT \"column\" FROM hqdl_cell WHERE expansion = 'llm_club' LIMIT 1";
        let column: String = connection.query_row(sql, [], |r| r.get(0)).unwrap();
        drop(connection);
        let why = ["why", "llm_club", &club, &column, "--db", "expanded.sqlite", "--json"];
        let before = hqdl(dir.path(), &why).expect_exit_code(0).stdout;
        assert_eq!(own_objects(dir.path()), all);
        let run = hqdl(dir.path(), &["materialize", "towns.toml", "--json"]).expect_exit_code(1);
        assert_eq!(run.done_event()["requests"], 0);
        let current = [
            "hqdl_cell",
            "hqdl_completion",
            "hqdl_edit",
            "hqdl_evidence",
            "hqdl_object",
            "hqdl_record",
        ];
        assert_eq!(own_objects(dir.path()), current);
        assert_eq!(hqdl(dir.path(), &why).expect_exit_code(0).stdout, before);

        let connection = Connection::open(dir.path().join("expanded.sqlite")).unwrap();
        let sql = "SELECT spec FROM hqdl_object WHERE spec IS NOT NULL LIMIT 1";
        let spec: String = connection.query_row(sql, [], |r| r.get(0)).unwrap();
        drop(connection);
        copy(&fixture, dir.path());
        // The copy also contains a table of the user, so it is not deleted.
        let connection = Connection::open(dir.path().join("expanded.sqlite")).unwrap();
        connection.execute_batch("CREATE TABLE mine (x)").unwrap();
        connection.execute("UPDATE hqdl_expansion SET spec = ?1", [spec]).unwrap();
        drop(connection);
        assert_eq!(own_objects(dir.path()), all);
        hqdl(dir.path(), &["clean", "towns.toml"]).expect_exit_code(0);
        assert_eq!(own_objects(dir.path()), [""; 0]);
    }
}

/// Facts are found by their column's fingerprint, so the fingerprints of all columns and questions
/// stored so far must not change.
#[test]
fn fingerprints_have_not_changed() {
    for fixture in fixtures() {
        let expected: Json =
            serde_json::from_str(&std::fs::read_to_string(fixture.join("expected.json")).unwrap())
                .unwrap();
        let dir = tempfile::tempdir().unwrap();
        copy(&fixture, dir.path());
        // Request everything again, into a separate cache.
        std::fs::remove_dir_all(dir.path().join("cache")).unwrap();
        hqdl(dir.path(), &["materialize", "towns.toml"]).expect_exit_code(1);
        for query in expected["queries"].as_array().unwrap() {
            let sql = query["sql"].as_str().unwrap();
            hqdl(dir.path(), &["query", "--spec", "towns.toml", "--json", sql]);
        }
        let journal = Connection::open(dir.path().join("cache/journal.sqlite")).unwrap();
        for meaning in expected["fingerprints"].as_array().unwrap() {
            let (print, name) =
                (meaning["fingerprint"].as_str().unwrap(), meaning["name"].as_str().unwrap());
            let found: i64 = journal
                .query_row("SELECT count(*) FROM meaning WHERE fingerprint = ?", [print], |r| {
                    r.get(0)
                })
                .unwrap();
            assert_eq!(found, 1, "{name}");
        }
    }
}
