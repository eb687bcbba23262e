//! A damaged journal, as the program tells of it and mends it.

use hqdl_testkit::project::{check_cells, check_complete, heroes_project, truthful_endpoint};

/// What is damaged is counted, and asked again, and is then right.
#[test]
fn a_damaged_answer_is_told_by_every_command_and_asked_again() {
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
    // The tables stand as they were until what is in doubt was asked again.
    check_complete(&project);
    project.run_materialize(&[]).expect_exit_code(0);
    check_complete(&project);
    assert!(endpoint.request_count() > asked);
    let again = endpoint.cells_since(asked);
    assert_eq!(again.len() as u64, damaged * 4, "only these are asked again");
}

/// What a model said may be damaged in any way: answers are kept apart from it.
#[test]
fn a_damaged_completion_keeps_nobody_from_the_answers() {
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

/// A journal of before has no checksums: it opens as it is, and has them then.
#[test]
fn a_journal_without_checksums_gets_them() {
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
    // One that an older version adds has none, and is taken as it is.
    journal.execute("UPDATE answer SET checksum = NULL WHERE id = 1", []).unwrap();
    project.run_hqdl(&["cache", "rebuild"]).expect_exit_code(0);
    project.run_materialize(&[]).expect_exit_code(0);
    assert_eq!(check_cells(&project)["ok"], 40);
    assert_eq!(endpoint.cells_since(0).len(), 40);
}
