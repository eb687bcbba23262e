//! Tests of how the program reports and repairs a damaged journal.

use hqdl_testkit::project::{check_cells, check_complete, heroes_project, truthful_endpoint};

/// Damaged answers are counted and requested again.
#[test]
fn a_damaged_answer_is_reported_by_every_command_and_requested_again() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    project.run_materialize(&[]).expect_exit_code(0);
    let asked = endpoint.request_count();
    assert_eq!(project.run_hqdl(&["cache", "check"]).expect_exit_code(0).stdout, "sound\n");
    let journal = project.path("cache/journal.sqlite");
    let journal = rusqlite::Connection::open(&journal).unwrap();
    let changed =
        journal.execute("UPDATE answer SET cells = replace(cells, 'Blue', 'Brown')", []).and_then(
            |_| journal.execute("UPDATE answer SET entity = replace(entity, 'Zed', 'Zee')", []),
        );
    assert!(changed.unwrap() > 0);
    drop(journal);
    std::fs::remove_file(project.path("cache/index.sqlite")).unwrap();
    let said = project.run_hqdl(&["cache", "stats"]).expect_exit_code(0);
    assert!(said.stderr.contains("do not match their checksum"), "{said:?}");
    assert!(said.stdout.contains("damaged"), "{said:?}");
    project.run_hqdl(&["cache", "check"]).expect_exit_code(1);
    let rebuilt = project.run_hqdl(&["cache", "rebuild", "--json"]).expect_exit_code(0);
    let damaged = rebuilt.lines[0]["damaged"].as_u64().unwrap();
    assert!(damaged >= 2, "{rebuilt:?}");
    let exported = project.run_hqdl(&["cache", "export"]).expect_exit_code(0).stdout;
    assert!(!exported.contains("Zee") && !exported.contains("Zed"), "{exported}");
    // The tables are unchanged until the damaged cells are answered again.
    check_complete(&project);
    project.run_materialize(&[]).expect_exit_code(0);
    check_complete(&project);
    assert!(endpoint.request_count() > asked);
    let again = endpoint.cells_since(asked);
    assert_eq!(again.len() as u64, damaged * 4, "only these are asked again");
}

/// A flipped bit anywhere in a cache causes at most an error that names the file and the remedy.
#[test]
fn no_flipped_bit_in_the_cache_makes_a_cell_wrong() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    project.run_materialize(&[]).expect_exit_code(0);
    let cells =
        project.query_rows("SELECT key, \"column\", value, state FROM hqdl_cell ORDER BY 1, 2");
    let database = std::fs::read(project.path("data.sqlite")).unwrap();
    let files = ["journal.sqlite", "index.sqlite"].map(|name| {
        let path = project.path(format!("cache/{name}"));
        (std::fs::read(&path).unwrap(), path)
    });
    let flips = std::env::var("HQDL_TEST_FLIPS").ok().and_then(|n| n.parse().ok());
    let mut chance = fastrand::Rng::with_seed(29);
    for flip in 0..flips.unwrap_or(24) {
        std::fs::remove_dir_all(project.path("cache")).unwrap();
        std::fs::create_dir(project.path("cache")).unwrap();
        std::fs::write(project.path("data.sqlite"), &database).unwrap();
        files.iter().for_each(|(bytes, path)| std::fs::write(path, bytes).unwrap());
        // Every other flip is in the journal's schema.
        let (bytes, path) = &files[usize::from(flip % 4 == 3)];
        let length = if flip % 2 == 0 { 4096 } else { bytes.len() };
        let places = std::iter::repeat_with(|| chance.usize(0..length));
        let at = { places }.find(|at| bytes[*at] != 0).unwrap();
        let mut damaged = bytes.clone();
        damaged[at] ^= 1 << (flip % 8);
        std::fs::write(path, damaged).unwrap();
        let run = project.run_materialize(&[]);
        let case = format!("byte {at}, bit {} of {}: {run:?}", flip % 8, path.display());
        assert!(!run.stderr.contains("panicked"), "{case}");
        if run.code == 0 {
            let now = project
                .query_rows("SELECT key, \"column\", value, state FROM hqdl_cell ORDER BY 1, 2");
            assert_eq!(now, cells, "{case}");
        } else {
            assert_eq!(run.code, 2, "{case}");
            assert!(run.stderr.contains(".sqlite") && run.stderr.contains("help: "), "{case}");
        }
    }
}

/// A completion may be damaged in any way: the answers are stored separately.
#[test]
fn a_damaged_completion_does_not_block_the_answers() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    project.run_materialize(&[]).expect_exit_code(0);
    let asked = endpoint.request_count();
    let journal = rusqlite::Connection::open(project.path("cache/journal.sqlite")).unwrap();
    for column in ["content", "prompt_hash", "asked_at", "parameters", "error"] {
        let sql = format!("UPDATE completion SET {column} = CAST(x'41ff42' AS TEXT) WHERE id = 1");
        journal.execute(&sql, []).unwrap();
        project.run_materialize(&[]).expect_exit_code(0);
        project
            .run_hqdl(&["why", "--spec", "specs/x.toml", "llm", "Zed", "Zed Zedsson", "born"])
            .expect_exit_code(0);
        project.run_hqdl(&["cache", "export"]).expect_exit_code(0);
    }
    check_complete(&project);
    assert_eq!(endpoint.request_count(), asked);
}

/// Tests that a damaged text outside the answers costs at most the facts that depend on it.
#[test]
fn a_damaged_entry_does_not_block_the_cache() {
    let endpoint = truthful_endpoint();
    for (table, column, id) in [
        ("meaning", "meaning", "id"),
        ("meaning", "fingerprint", "id"),
        ("meaning", "name", "id"),
        ("model", "name", "id"),
        ("journal", "id", "rowid"),
        ("request_form", "form", "1"),
    ] {
        let project = heroes_project(&endpoint, "csv");
        project.run_materialize(&[]).expect_exit_code(0);
        let journal = rusqlite::Connection::open(project.path("cache/journal.sqlite")).unwrap();
        let sql = format!(
            "INSERT OR IGNORE INTO request_form SELECT 'x', '{{}}', 9e12;
             UPDATE {table} SET {column} = CAST(x'41ff42' AS TEXT) WHERE {id} = 1"
        );
        journal.execute_batch(&sql).unwrap();
        drop(journal);
        let asked = endpoint.request_count();
        let case = format!("{table}.{column}");
        if table != "request_form" {
            let checked = project.run_hqdl(&["cache", "check"]).expect_exit_code(1);
            assert!(checked.stdout.contains(&format!("({table} 1)")), "{case}: {checked:?}");
        }
        let exported = project.run_hqdl(&["cache", "export"]).expect_exit_code(0);
        let expected = match (table, column) {
            ("meaning", _) => 30,
            ("model", _) => 0,
            _ => 40,
        };
        assert_eq!(exported.stdout.lines().count(), expected, "{case}");
        for command in [["cache", "stats"], ["cache", "list"], ["cache", "rebuild"]] {
            project.run_hqdl(&command).expect_exit_code(0);
        }
        project.run_materialize(&[]).expect_exit_code(0);
        check_complete(&project);
        let again = endpoint.cells_since(asked).len();
        let dependent = match (table, column) {
            ("meaning", "fingerprint") => 10,
            ("model", _) => 40,
            _ => 0,
        };
        assert_eq!(again, dependent, "{case}");
    }
}

/// A journal of an earlier version has no checksums: it opens, and they are added.
#[test]
fn checksums_are_added_to_a_journal_without_them() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    project.run_materialize(&[]).expect_exit_code(0);
    let journal = rusqlite::Connection::open(project.path("cache/journal.sqlite")).unwrap();
    let sums = "SELECT count(*) FROM answer WHERE checksum IS NOT NULL";
    let count = |c: &rusqlite::Connection| c.query_row(sums, [], |r| r.get::<_, u64>(0)).unwrap();
    let all = count(&journal);
    journal
        .execute_batch(
            "ALTER TABLE answer DROP COLUMN checksum; DELETE FROM hqdl_migration WHERE version = 9;",
        )
        .unwrap();
    std::fs::remove_file(project.path("cache/index.sqlite")).unwrap();
    project.run_materialize(&[]).expect_exit_code(0);
    assert_eq!(count(&journal), all);
    assert_eq!(project.run_hqdl(&["cache", "check"]).expect_exit_code(0).stdout, "sound\n");
    // An answer that an older version adds has no checksum, and is accepted.
    journal.execute("UPDATE answer SET checksum = NULL WHERE id = 1", []).unwrap();
    project.run_hqdl(&["cache", "rebuild"]).expect_exit_code(0);
    project.run_materialize(&[]).expect_exit_code(0);
    assert_eq!(check_cells(&project)["ok"], 40);
    assert_eq!(endpoint.cells_since(0).len(), 40);
}
