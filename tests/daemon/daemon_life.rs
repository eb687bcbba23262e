//! Tests of the daemon's life cycle: kills, signals, several clients, several daemons.

use std::time::{Duration, Instant};

use serde_json::json;

use hqdl_testkit::daemon::{Daemon, run_status, wait_until};
use hqdl_testkit::endpoint::{Fault, Frequency};
use hqdl_testkit::project::{
    COLUMN_NAMES, HERO_COUNT, check_cells, heroes_project, truthful_endpoint,
};

const CELLS: usize = HERO_COUNT * COLUMN_NAMES.len();

#[test]
fn a_killed_daemon_continues_where_it_stopped() {
    let endpoint = truthful_endpoint();
    endpoint.add_fault(Fault::Latency(Duration::from_millis(150)), Frequency::Always);
    let project = heroes_project(&endpoint, "csv");
    project.write_spec(
        &project
            .spec_text()
            .replace("concurrency = 4", "concurrency = 1")
            .replace("rows_per_request = 4", "rows_per_request = 1"),
    );
    let daemon = Daemon::start(&project, &[]);
    endpoint.wait_for(4);
    daemon.send_signal("KILL");
    assert_eq!(daemon.wait_for_exit(), -1);
    let kept = project.stored_cells();
    assert!(!kept.is_empty() && kept.len() < CELLS, "{}", kept.len());
    let before = endpoint.request_count();
    let daemon = Daemon::start(&project, &[]);
    daemon.wait_until_idle("complete");
    assert_eq!(endpoint.cells_since(before).len(), CELLS - kept.len());
    check_cells(&project);
}

#[test]
fn a_signal_lets_requests_in_flight_finish_and_keeps_them() {
    let endpoint = truthful_endpoint();
    endpoint.add_fault(Fault::Latency(Duration::from_millis(700)), Frequency::Always);
    let project = heroes_project(&endpoint, "csv");
    let daemon = Daemon::start(&project, &[]);
    endpoint.wait_for(3);
    daemon.send_signal("TERM");
    assert_eq!(daemon.wait_for_exit(), 0);
    assert_eq!(project.stored_cells().len(), CELLS);
    assert!(!project.path("cache/socket").exists());
    run_status(&project, &[]).expect_exit_code(2);
    // The answers are stored, and the cache is released.
    endpoint.clear_faults();
    let asked = endpoint.request_count();
    project.run_materialize(&[]).expect_exit_code(0);
    assert_eq!(endpoint.request_count(), asked);
}

#[test]
fn requests_in_flight_after_the_grace_period_count_as_spent() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    // The very first request is sent alone.
    project.run_materialize(&["--limit", "1"]).expect_exit_code(0);
    let asked = endpoint.request_count();
    endpoint.add_fault(Fault::Latency(Duration::from_secs(300)), Frequency::Always);
    let daemon = Daemon::start(&project, &["--grace", "1"]);
    endpoint.wait_for(asked + 3);
    let began = Instant::now();
    daemon.send_signal("INT");
    assert_eq!(daemon.wait_for_exit(), 0);
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
    endpoint.clear_faults();
    let ended = project.run_materialize(&[]).expect_exit_code(0);
    assert!(
        ended.stdout.contains("3 requests were in flight when an earlier run was killed"),
        "{ended:?}"
    );
}

#[test]
fn fifty_equal_queries_send_each_request_once() {
    let endpoint = truthful_endpoint();
    endpoint.add_fault(Fault::Latency(Duration::from_millis(100)), Frequency::Always);
    let project = heroes_project(&endpoint, "csv");
    let daemon = Daemon::start(&project, &["--no-spend"]);
    daemon.wait_until_idle("waiting");
    let sql =
        "SELECT name, {{LLMMap('What does the hero whisper?', hero.name)}} FROM hero ORDER BY 1";
    let answers: Vec<_> = std::thread::scope(|scope| {
        let all: Vec<_> = (0..50).map(|_| scope.spawn(|| daemon.query_rows(sql))).collect();
        all.into_iter().map(|a| a.join().unwrap()).collect()
    });
    assert!(answers.iter().all(|a| *a == answers[0]));
    let asked = endpoint.cells_since(0);
    let distinct: std::collections::BTreeSet<String> =
        asked.iter().map(|(key, _)| format!("{key:?}")).collect();
    assert_eq!(asked.len(), distinct.len());
}

#[test]
fn two_daemons_do_not_share_a_cache_or_a_port() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    let daemon = Daemon::start(&project, &[]);
    daemon.wait_until_idle("complete");
    let ended = project.run_hqdl(&["daemon", "--listen", "127.0.0.1:0"]).expect_exit_code(2);
    assert!(ended.stderr.contains("in use by process"), "{}", ended.stderr);
    let other = project.path("other").display().to_string();
    let ended = project
        .run_hqdl(&["daemon", "--cache", &other, "--listen", &daemon.address.clone()])
        .expect_exit_code(2);
    assert!(ended.stderr.contains("cannot listen on"), "{}", ended.stderr);
    assert!(ended.stderr.contains("help: "), "{}", ended.stderr);
}

#[test]
fn status_prints_the_daemons_status() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    let none = run_status(&project, &[]).expect_exit_code(2);
    assert!(none.stderr.contains("no daemon runs on the cache"), "{}", none.stderr);
    let daemon = Daemon::start(&project, &[]);
    daemon.wait_until_idle("complete");
    let said = run_status(&project, &[]).expect_exit_code(0).stdout;
    assert!(said.contains(&daemon.address) && said.contains("complete"), "{said}");
    let json = &run_status(&project, &["--json"]).expect_exit_code(0).lines[0];
    assert_eq!(json["specs"][0]["columns"][0]["coverage"], 1.0);
    // A killed daemon leaves its socket behind, where no process answers.
    daemon.send_signal("KILL");
    daemon.wait_for_exit();
    let gone = run_status(&project, &[]).expect_exit_code(2);
    assert!(gone.stderr.contains("no daemon runs on the cache"), "{}", gone.stderr);
}

#[test]
fn the_log_and_the_status_report_a_long_wait() {
    let endpoint = truthful_endpoint();
    endpoint.add_fault(Fault::too_many("retry-after", "9"), Frequency::Once);
    let project = heroes_project(&endpoint, "csv");
    let daemon = Daemon::start(&project, &["--log", "run.log"]);
    let reason = "as the endpoint requested (Retry-After)";
    let read_status = || run_status(&project, &[]).expect_exit_code(0).stdout;
    wait_until("a status with the reason", || read_status().contains(reason));
    let log = std::fs::read_to_string(project.path("run.log")).unwrap();
    assert!(log.contains(reason), "{log}");
    let runs = daemon.get("/v1/runs").body;
    assert!(runs.contains("\"last_warning\":\"requests to "), "{runs}");
    daemon.wait_until_idle("complete");
}

/// The endpoint told another process to wait.
#[test]
fn a_daemon_reports_the_wait_of_another_process() {
    let endpoint = truthful_endpoint();
    endpoint.add_fault(Fault::too_many("retry-after", "30"), Frequency::Once);
    let project = heroes_project(&endpoint, "csv");
    let first = project.start_hqdl(&["materialize", "specs/x.toml"]);
    let reason = "as the endpoint requested (Retry-After)";
    endpoint.wait_for(1);
    std::thread::sleep(Duration::from_secs(1));
    first.send_signal("KILL");
    drop(first);
    let daemon = Daemon::start(&project, &[]);
    wait_until("a run with the reason", || daemon.get("/v1/runs").body.contains(reason));
}

/// A failed run writes into the source database, which is one of the daemon's files.
#[test]
fn a_failed_run_does_not_cause_the_next_one() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    project.write_spec(&project.spec_text().replace(&endpoint.base_url(), "http://127.0.0.1:9/v1"));
    let daemon = Daemon::start(&project, &[]);
    let run_count = || daemon.get("/v1/runs").body.matches("\"cause\":").count();
    wait_until("a failed run", || daemon.get("/v1/runs").body.contains("\"failed\""));
    // The first pause is 30 seconds.
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(run_count(), 1, "{}", daemon.get("/v1/runs").body);
}

#[test]
fn a_hangup_rereads_everything_and_reopens_the_log() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    let log = project.path("run.log");
    let daemon = Daemon::start(&project, &["--log", "run.log"]);
    daemon.wait_until_idle("complete");
    std::fs::rename(&log, project.path("run.log.1")).unwrap();
    daemon.send_signal("HUP");
    wait_until("a new log", || std::fs::read_to_string(&log).is_ok_and(|t| t.contains("again")));
    daemon.wait_until_idle("complete");
    assert_eq!(endpoint.cells_since(0).len(), CELLS);
}

#[test]
fn a_client_that_disconnects_stops_its_query() {
    let endpoint = truthful_endpoint();
    endpoint.add_fault(Fault::Latency(Duration::from_millis(300)), Frequency::Always);
    let project = heroes_project(&endpoint, "csv");
    project.write_spec(&project.spec_text().replace("concurrency = 4", "concurrency = 1"));
    let daemon = Daemon::start(&project, &["--no-spend"]);
    daemon.wait_until_idle("waiting");
    let body = json!({
        "sql": "SELECT {{LLMMap('Is this hero old?', hero.name)}} FROM hero", "rows_per_request": 1, "budget": 1,
    })
    .to_string();
    {
        use std::io::Write;
        let mut stream = std::net::TcpStream::connect(&daemon.address).unwrap();
        write!(
            stream,
            "POST /v1/query HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            daemon.address,
            body.len()
        )
        .unwrap();
        endpoint.wait_for(1);
    }
    wait_until("nobody served", || daemon.get("/metrics").body.contains("\nhqdl_clients 0\n"));
    std::thread::sleep(Duration::from_millis(900));
    assert!(endpoint.request_count() < HERO_COUNT, "{}", endpoint.request_count());
}

#[test]
fn a_service_manager_is_notified() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    let path = project.path("notify");
    let socket = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(hqdl_testkit::daemon::DEADLINE)).unwrap();
    let until_told = |word: &str| {
        let mut bytes = [0; 4096];
        loop {
            let n = socket.recv(&mut bytes).unwrap_or_else(|e| panic!("never told {word}: {e}"));
            let text = String::from_utf8_lossy(&bytes[..n]).into_owned();
            if text.lines().any(|l| l.starts_with(word)) {
                return text;
            }
        }
    };
    let env = [("NOTIFY_SOCKET", path.to_str().unwrap()), ("WATCHDOG_USEC", "200000")];
    let daemon = Daemon::start_with(&project, &[], &env);
    let told = until_told("READY=1");
    assert!(told.contains("STATUS=1 specs"), "{told}");
    until_told("WATCHDOG=1");
    daemon.send_signal("HUP");
    until_told("RELOADING=1");
    until_told("READY=1");
    daemon.send_signal("TERM");
    until_told("STOPPING=1");
    assert_eq!(daemon.wait_for_exit(), 0);
}

#[test]
fn a_command_beside_the_daemon_prints_the_same() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    let daemon = Daemon::start(&project, &[]);
    daemon.wait_until_idle("complete");
    let bound =
        "SELECT name FROM hero WHERE {{LLMMap('What is the eye colour?', hero.name)}} = 'Blue'";
    let commands: [&[&str]; 8] = [
        &["query", "--spec", "specs/x.toml", bound],
        &["query", "--spec", "specs/x.toml", "--format", "csv", "SELECT * FROM llm"],
        &["query", "--spec", "specs/x.toml", "SELECT nope"],
        &["explain", "--spec", "specs/x.toml", bound],
        &["plan", "specs/x.toml", "--json"],
        &["cache", "list"],
        &["why", "llm", "Zed", "motto", "--spec", "specs/x.toml"],
        &["check", "specs/x.toml"],
    ];
    let all = || commands.map(|args| project.run_hqdl(args));
    let beside = all();
    daemon.send_signal("TERM");
    assert_eq!(daemon.wait_for_exit(), 0);
    for ((beside, alone), args) in beside.iter().zip(all()).zip(commands) {
        assert_eq!((beside.code, &beside.stdout), (alone.code, &alone.stdout), "{args:?}");
        assert_eq!(beside.stderr, alone.stderr, "{args:?}");
    }
    assert_eq!(endpoint.cells_since(0).len(), CELLS);
}

#[test]
fn a_command_and_the_daemon_request_nothing_twice() {
    let endpoint = truthful_endpoint();
    endpoint.add_fault(Fault::Latency(Duration::from_millis(150)), Frequency::Always);
    let project = heroes_project(&endpoint, "csv");
    let text = project.spec_text().replace("concurrency = 4", "concurrency = 1");
    project.write_spec(&text.replace("rows_per_request = 4", "rows_per_request = 1"));
    let daemon = Daemon::start(&project, &[]);
    endpoint.wait_for(2);
    let ended = project.run_materialize(&[]).expect_exit_code(0);
    assert!(
        ended.done_event()["requests"].as_u64().unwrap() < HERO_COUNT as u64,
        "{}",
        ended.done_event()
    );
    daemon.wait_until_idle("complete");
    assert_eq!(endpoint.cells_since(0).len(), CELLS);
    check_cells(&project);
}

#[test]
fn a_command_on_the_cache_outlives_the_daemon() {
    let endpoint = truthful_endpoint();
    endpoint.add_fault(Fault::Latency(Duration::from_secs(4)), Frequency::Always);
    let project = heroes_project(&endpoint, "csv");
    let daemon = Daemon::start(&project, &["--no-spend"]);
    daemon.wait_until_idle("waiting");
    let command = project.start_hqdl(&["materialize", "specs/x.toml", "--json"]);
    endpoint.wait_for(3);
    daemon.send_signal("TERM");
    wait_until("no socket", || !project.path("cache/socket").exists());
    assert_eq!(daemon.wait_for_exit(), 0);
    assert_eq!(command.wait_for_exit().code, 0);
    assert_eq!(project.stored_cells().len(), CELLS);
    assert_eq!(endpoint.cells_since(0).len(), CELLS);
}

/// The status shows the latest answers and the elapsed time, even if nothing happens for a long
/// time afterwards.
#[test]
fn the_last_answer_before_a_long_pause_is_shown() {
    let endpoint = truthful_endpoint();
    endpoint.add_fault(Fault::Latency(Duration::from_secs(3600)), Frequency::Every(3));
    let project = heroes_project(&endpoint, "csv");
    let daemon = Daemon::start(&project, &[]);
    let run = || daemon.status()["runs"][0].clone();
    wait_until("both answers", || run()["requests"] == 2);
    assert!(run()["cells_done"].as_u64().unwrap() >= 24, "{}", run());
    let before = run()["seconds"].as_f64().unwrap();
    wait_until("the clock", || run()["seconds"].as_f64().unwrap() > before);
}
