//! Tests of a run's database: when it cannot be used, whose tables it contains, and which other
//! processes use it.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Duration;

use hqdl_testkit::endpoint::{Fault, Frequency};
use hqdl_testkit::project::{
    Project, check_cells_in, check_complete, heroes_project, truthful_endpoint,
};

#[test]
fn a_table_that_hqdl_did_not_create_is_never_changed() {
    for name in ["llm", "llm_power", "LLM"] {
        let endpoint = truthful_endpoint();
        let project = heroes_project(&endpoint, "csv");
        project.execute_sql(&format!(
            "CREATE TABLE \"{name}\" (mine TEXT); INSERT INTO \"{name}\" VALUES ('precious')"
        ));
        let bytes = std::fs::read(project.path("data.sqlite")).unwrap();
        let ended = project.run_materialize(&[]).expect_exit_code(2);
        assert!(ended.stderr.contains(&name.to_lowercase()), "{}", ended.stderr);
        assert_eq!(std::fs::read(project.path("data.sqlite")).unwrap(), bytes);
        assert_eq!(endpoint.request_count(), 0);
    }
}

#[test]
fn a_users_table_in_place_of_a_dropped_one_is_not_hqdls() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    project.run_materialize(&[]).expect_exit_code(0);
    // hqdl once created a table of this name, but this is another one.
    project.execute_sql(
        "DROP TABLE llm; CREATE TABLE llm (mine TEXT); INSERT INTO llm VALUES ('precious')",
    );
    project.run_materialize(&[]);
    let rows = project.query_rows("SELECT * FROM llm");
    assert_eq!(rows, [[serde_json::json!("precious")]]);
}

#[test]
fn a_users_view_is_kept_and_noted() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    project.execute_sql(
        "CREATE TABLE hero_expanded (mine TEXT); INSERT INTO hero_expanded VALUES ('precious')",
    );
    let ended = project.run_materialize(&[]).expect_exit_code(0);
    assert!(ended.stdout.contains("hero_expanded"), "{}", ended.stdout);
    assert_eq!(project.query_rows("SELECT mine FROM hero_expanded").len(), 1);
    check_complete(&project);
}

#[test]
fn everything_else_in_the_database_is_unchanged() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    project.execute_sql(
        "CREATE INDEX mine ON hero (height); CREATE VIEW tall AS SELECT * FROM hero WHERE height > 180;
         CREATE TRIGGER t AFTER INSERT ON power BEGIN SELECT 1; END; PRAGMA user_version = 42;",
    );
    let theirs = "SELECT type, name, sql FROM sqlite_schema WHERE name IN ('mine', 'tall', 't', 'hero', 'power') ORDER BY name";
    let before = (project.query_rows(theirs), project.query_rows("SELECT * FROM hero"));
    project.run_materialize(&[]).expect_exit_code(0);
    assert_eq!((project.query_rows(theirs), project.query_rows("SELECT * FROM hero")), before);
    assert_eq!(project.query_rows("PRAGMA user_version")[0][0], 42);
    assert_eq!(
        project.query_rows("SELECT eye_color FROM hero_expanded WHERE eye_color IS NOT NULL").len(),
        10
    );
}

/// Runs as a user that file permissions restrict; returns `None` if that is not possible.
fn as_nobody(project: &Project, args: &[&str]) -> Option<(i32, String)> {
    let root = Command::new("id").arg("-u").output().unwrap().stdout == b"0\n";
    let mut command = if root {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        command.arg(env!("CARGO_BIN_EXE_hqdl")).args(args);
        project.set_environment(&mut command);
        command
    } else {
        project.hqdl_command(args)
    };
    let Ok(output) = command.output() else {
        println!("skipped: there is no setpriv here");
        return None;
    };
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    if stderr.contains("setpriv") {
        println!("skipped: {stderr}");
        return None;
    }
    Some((output.status.code().unwrap_or(-1), stderr))
}

#[test]
fn a_read_only_database_is_reported_before_any_request() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    let mode = |path: &str, mode| {
        let permissions = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(project.path(path), permissions).unwrap();
    };
    mode("", 0o777);
    mode("data.sqlite", 0o444);
    let args = ["materialize", "specs/x.toml"];
    let Some((code, stderr)) = as_nobody(&project, &args) else { return };
    assert_eq!(code, 2, "{stderr}");
    assert!(stderr.contains("cannot be written") && stderr.contains("--output"), "{stderr}");
    assert_eq!(endpoint.request_count(), 0);
    // Publishing into a copy works.
    let copy = ["materialize", "specs/x.toml", "--output", "copy.sqlite"];
    let Some((code, stderr)) = as_nobody(&project, &copy) else { return };
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(check_cells_in(&project, "copy.sqlite")["ok"], 40);
}

#[test]
fn a_read_only_directory_is_reported_before_any_request() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    std::fs::create_dir(project.path("locked")).unwrap();
    std::fs::copy(project.path("data.sqlite"), project.path("locked/data.sqlite")).unwrap();
    let mode = |path: &str, mode| {
        let permissions = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(project.path(path), permissions).unwrap();
    };
    mode("", 0o777);
    mode("locked/data.sqlite", 0o666);
    mode("locked", 0o555);
    let args = ["materialize", "specs/x.toml", "--db", "locked/data.sqlite"];
    let result = as_nobody(&project, &args);
    mode("locked", 0o755);
    let Some((code, stderr)) = result else { return };
    assert_eq!(code, 2, "{stderr}");
    assert!(stderr.contains("locked/data.sqlite"), "{stderr}");
    assert_eq!(endpoint.request_count(), 0, "{stderr}");
}

#[test]
fn a_locked_database_is_reported_before_any_request() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    let stranger = project.connect();
    stranger.execute_batch("BEGIN EXCLUSIVE").unwrap();
    let ended = project.run_materialize(&[]).expect_exit_code(2);
    assert!(ended.stderr.contains("locked by another process"), "{}", ended.stderr);
    assert_eq!(endpoint.request_count(), 0);
    stranger.execute_batch("COMMIT").unwrap();
    project.run_materialize(&[]).expect_exit_code(0);
    check_complete(&project);
}

#[test]
fn a_database_locked_at_the_end_loses_nothing() {
    let endpoint = truthful_endpoint();
    endpoint.add_fault(Fault::Latency(Duration::from_millis(500)), Frequency::Always);
    let project = heroes_project(&endpoint, "csv");
    let running = project.start_hqdl(&["materialize", "specs/x.toml"]);
    endpoint.wait_for(1);
    let stranger = project.connect();
    stranger.busy_timeout(Duration::from_secs(5)).unwrap();
    stranger.execute_batch("BEGIN EXCLUSIVE").unwrap();
    let ended = running.wait_for_exit().expect_exit_code(2);
    assert!(ended.stderr.contains("locked by another process"), "{}", ended.stderr);
    assert_eq!((endpoint.request_count(), project.stored_cells().len()), (3, 40));
    stranger.execute_batch("ROLLBACK").unwrap();
    assert!(!project.has_table("llm"));
    project.run_materialize(&[]).expect_exit_code(0);
    assert_eq!(endpoint.request_count(), 3, "what was answered is not asked again");
    check_complete(&project);
}

#[test]
fn a_reader_sees_the_old_table_until_the_new_one_is_complete() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    project.execute_sql("PRAGMA journal_mode = WAL");
    project.run_materialize(&["--limit", "4"]).expect_exit_code(0);
    let reader = project.connect();
    reader.execute_batch("BEGIN").unwrap();
    let count =
        || reader.query_row("SELECT count(*) FROM llm", [], |r| r.get::<_, i64>(0)).unwrap();
    assert_eq!(count(), 4);
    project.run_materialize(&[]).expect_exit_code(0);
    assert_eq!(count(), 4);
    reader.execute_batch("COMMIT").unwrap();
    assert_eq!(count(), 10);
}

#[test]
fn a_file_that_is_not_a_database_is_reported_with_its_location() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    std::fs::write(project.path("text.sqlite"), "this is no database\n".repeat(100)).unwrap();
    std::fs::create_dir(project.path("dir.sqlite")).unwrap();
    std::fs::write(project.path("empty.sqlite"), "").unwrap();
    for (path, said) in [
        ("missing.sqlite", "no database at"),
        ("text.sqlite", "is not a SQLite database"),
        ("dir.sqlite", "is a directory, not a SQLite database"),
        ("empty.sqlite", "hero"),
    ] {
        for command in ["materialize", "plan"] {
            let ended =
                project.run_hqdl(&[command, "specs/x.toml", "--db", path]).expect_exit_code(2);
            assert!(ended.stderr.contains(said), "{path}: {}", ended.stderr);
        }
    }
    assert!(!project.path("missing.sqlite").exists());
    assert_eq!(endpoint.request_count(), 0);
}

#[test]
fn an_output_that_hqdl_did_not_create_is_never_overwritten() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    let stranger = rusqlite::Connection::open(project.path("theirs.sqlite")).unwrap();
    stranger.execute_batch("CREATE TABLE mine (a); INSERT INTO mine VALUES (1)").unwrap();
    drop(stranger);
    std::fs::write(project.path("note.txt"), "precious, and long enough to be read").unwrap();
    for path in ["theirs.sqlite", "note.txt", "data.sqlite"] {
        let before = std::fs::read(project.path(path)).unwrap();
        let ended = project.run_materialize(&["--output", path]);
        if path != "data.sqlite" {
            let ended = ended.expect_exit_code(2);
            assert!(ended.stderr.contains(path), "{}", ended.stderr);
            assert_eq!(std::fs::read(project.path(path)).unwrap(), before);
            assert_eq!(endpoint.request_count(), 0);
        }
    }
}
