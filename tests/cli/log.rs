//! Tests of `--log`: the log shows what a run did, but not the API key.

use std::time::Duration;

use hqdl_testkit::endpoint::{Fault, Frequency};
use hqdl_testkit::project::{
    Project, SECRET, check_complete, heroes_project, heroes_spec, truthful_endpoint,
};

/// Returns the log of a command that must end with exit code `exit`.
fn logged(project: &Project, args: &[&str], filter: Option<&str>, exit: i32) -> String {
    let mut command = project.hqdl_command(&[args, &["--log", "run.log"]].concat());
    match filter {
        Some(filter) => command.env("RUST_LOG", filter),
        None => command.env_remove("RUST_LOG"),
    };
    let output = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(exit), "{stderr}");
    let log = std::fs::read_to_string(project.path("run.log")).unwrap_or_default();
    let _ = std::fs::remove_file(project.path("run.log"));
    assert!(!log.contains(SECRET) && !log.to_lowercase().contains("authorization"), "{log}");
    log
}

#[test]
fn a_log_shows_each_step_and_never_the_key() {
    let endpoint = truthful_endpoint();
    let echo = format!("Slow down, owner of {SECRET}");
    endpoint.add_fault(
        Fault::Status(
            429,
            vec![
                ("content-type", "application/json".into()),
                ("retry-after-ms", "20".into()),
                ("x-ratelimit-limit-requests", "50000".into()),
            ],
            format!("{{\"error\":{{\"message\":\"{echo}\"}}}}"),
        ),
        Frequency::Once,
    );
    endpoint.add_fault(Fault::DroppedMidBody, Frequency::First(2));
    endpoint.add_fault(Fault::MissingRows, Frequency::First(1));
    let project = heroes_project(&endpoint, "csv");
    let args = ["materialize", "specs/x.toml", "--budget", "1", "--concurrency", "1"];
    let log = logged(&project, &args, Some("trace"), 0);
    check_complete(&project);
    for said in [
        "begins",
        "the run ends",
        "sent attempt=1",
        "the endpoint answers status=429",
        "retry_after=Some(20ms)",
        "the limiter pauses",
        "the limiter takes the endpoint's limits reported_limits=PerMinute { requests: Some(50000)",
        "failed attempt=1",
        "will be tried again",
        "sent attempt=2",
        "answered attempt=",
        "budget reserved",
        "budget settled",
        "rows a request from=4 to=2",
        "the journal commits completions=1",
        "published",
        "prompt=\"p1:",
    ] {
        assert!(log.contains(said), "no {said:?} in\n{log}");
    }
    // One line per event, with its time.
    assert!(log.lines().all(|l| l.starts_with("20")), "{log}");
}

#[test]
fn a_filter_decides_how_much_is_logged() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    let args = ["materialize", "specs/x.toml"];
    let log = logged(&project, &args, None, 0);
    assert!(log.contains("answered") && log.contains("published"), "{log}");
    project.execute_sql("INSERT INTO hero (name, full_name) VALUES ('New One', 'Nina')");
    let log = logged(&project, &args, Some("warn,hqdl=info"), 0);
    assert!(!log.contains("answered") && log.contains("published"), "{log}");
    project.execute_sql("INSERT INTO hero (name, full_name) VALUES ('New Two', 'Nino')");
    assert_eq!(logged(&project, &args, Some("reqwest=trace"), 0), "");
    // An invalid filter is reported before anything is done.
    let mut command = project.hqdl_command(&[&args[..], &["--log", "run.log"]].concat());
    let output = command.env("RUST_LOG", "hqdl=loud").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("RUST_LOG"));
    project.run_hqdl(&["plan", "specs/x.toml", "--log", "no/such/place"]).expect_exit_code(2);
}

#[test]
fn without_log_nothing_is_written_and_the_variable_replaces_the_flag() {
    let endpoint = truthful_endpoint();
    endpoint.add_fault(Fault::Latency(Duration::from_millis(5)), Frequency::Always);
    let project = heroes_project(&endpoint, "csv");
    project.write_spec(&heroes_spec());
    project.run_materialize(&["--limit", "2"]).expect_exit_code(0);
    assert_eq!(project.files_with("the journal commits"), Vec::<std::path::PathBuf>::new());
    let mut command = project.hqdl_command(&["materialize", "specs/x.toml"]);
    command.env("HQDL_LOG_FILE", project.path("named.log")).env_remove("RUST_LOG");
    assert!(command.output().unwrap().status.success());
    assert_eq!(project.files_with("the journal commits"), [project.path("named.log")]);
}
