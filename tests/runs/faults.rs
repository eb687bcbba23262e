//! Tests of misbehaving endpoints, interrupting users and killed processes: a table is complete, or
//! reports exactly what it lacks, and no value is ever in a wrong cell.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::process::Stdio;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value as Json, json};

use hqdl_testkit::concurrent::{each, each_of};
use hqdl_testkit::endpoint::{Endpoint, Fault, Frequency, RunawayOutput, StreamFault};
use hqdl_testkit::project::{
    HERO_COUNT, HEROES, Project, SECRET, check_cells, check_complete, heroes_project, heroes_spec,
    true_value, truthful_endpoint,
};

/// The formats, as [`heroes`] takes them.
const FORMATS: [&str; 3] = ["csv", "json", "csv list last"];

/// Returns every fault in each of these formats.
fn each_in(
    formats: &[&'static str],
    faults: Vec<(Fault, Frequency)>,
) -> Vec<(String, (Fault, Frequency, &'static str))> {
    let cases = |(fault, times): (Fault, Frequency)| {
        let case =
            |f: &&'static str| (format!("{fault:?} {times:?} {f}"), (fault.clone(), times, *f));
        formats.iter().map(case).collect::<Vec<_>>()
    };
    faults.into_iter().flat_map(cases).collect()
}

#[test]
fn temporary_faults_are_retried() {
    let html = ("content-type", "text/html".to_owned());
    let faults = vec![
        (Fault::Latency(Duration::from_millis(300)), Frequency::Always),
        (Fault::too_many("retry-after", "1"), Frequency::Once),
        (Fault::TooManyUntil(Duration::from_secs(2)), Frequency::Once),
        (Fault::too_many("retry-after-ms", "50"), Frequency::Every(2)),
        (Fault::too_many("retry-after", "soon"), Frequency::Once),
        (Fault::Status(429, vec![], String::new()), Frequency::Once),
        (
            Fault::Status(429, vec![html.clone()], "<html>slow down</html>".into()),
            Frequency::First(2),
        ),
        (Fault::status(500, "The server had an error", "server_error"), Frequency::Every(2)),
        (Fault::Status(503, vec![html], "<html>overloaded</html>".into()), Frequency::Once),
        (Fault::status(408, "timeout", "timeout"), Frequency::Once),
        (Fault::status(409, "conflict", "conflict"), Frequency::Once),
        (Fault::Dropped, Frequency::First(2)),
        (Fault::DroppedMidBody, Frequency::Once),
        (Fault::SlowDrip, Frequency::Always),
        (Fault::Body("application/json", "\u{0}\u{1}garbage{{{"), Frequency::Once),
        (
            Fault::Body("application/json", "{\"error\":{\"message\":\"upstream\",\"code\":502}}"),
            Frequency::Once,
        ),
        (Fault::Body("text/html", "<!DOCTYPE html><html>Log in</html>"), Frequency::Once),
        (Fault::Body("application/json", ""), Frequency::Once),
    ];
    each(each_in(&FORMATS[..2], faults), |(fault, times, format)| {
        let endpoint = truthful_endpoint();
        endpoint.add_fault(fault, times);
        let project = heroes_project(&endpoint, format);
        let ended = project.run_materialize(&[]).expect_exit_code(0);
        check_complete(&project);
        assert_eq!(ended.done_event()["requests"], 3);
    });
}

#[test]
fn the_endpoints_requested_pause_is_respected() {
    let waits = [
        (Fault::too_many("retry-after", "2"), 2.0),
        (Fault::too_many("retry-after-ms", "1500"), 1.5),
        // A date has whole seconds; without it, the pause is at most 0.8 s.
        (Fault::TooManyUntil(Duration::from_secs(3)), 2.0),
    ];
    let named = waits.into_iter().map(|w| (format!("{w:?}"), w)).collect();
    each(named, |(fault, least)| {
        let endpoint = truthful_endpoint();
        endpoint.add_fault(fault, Frequency::Once);
        let project = heroes_project(&endpoint, "csv");
        project.run_materialize(&["--rows-per-request", "100"]).expect_exit_code(0);
        let at: Vec<_> = endpoint.received_requests().iter().map(|r| r.received_at).collect();
        // The upper bound depends on the machine.
        let waited = (at[1] - at[0]).as_secs_f64();
        assert!(waited >= least - 0.05, "{waited}");
    });
}

/// The rows of one malformed reply are requested again, and the table is complete.
#[test]
fn a_malformed_reply_is_repaired_or_its_rows_requested_again() {
    let once = [
        Fault::Empty,
        Fault::Prose,
        Fault::Fence,
        Fault::Truncated,
        Fault::Permuted,
        Fault::MissingRows,
        Fault::DuplicatedRows,
        Fault::ContradictingRows,
        Fault::Renumbered,
        Fault::SwappedKeys,
        Fault::ForeignRows,
        Fault::ForeignColumn,
        Fault::ForeignColumnFirst,
        Fault::MissingColumn,
        Fault::MissingColumnBefore,
        Fault::NoUsage,
    ];
    let always = [
        Fault::Prose,
        Fault::Fence,
        Fault::Permuted,
        Fault::DuplicatedRows,
        Fault::MissingRows,
        Fault::ForeignRows,
        Fault::SwappedKeys,
        Fault::NoUsage,
        Fault::TooLarge(1),
        Fault::TooLarge(3),
        Fault::ContextLength(2),
    ];
    let mut faults: Vec<(Fault, Frequency)> =
        once.into_iter().map(|f| (f, Frequency::First(2))).collect();
    faults.extend(always.into_iter().map(|f| (f, Frequency::Always)));
    each(each_in(&FORMATS, faults), |(fault, times, format)| {
        let endpoint = truthful_endpoint();
        endpoint.add_fault(fault, times);
        let project = heroes_project(&endpoint, format);
        project.run_materialize(&[]).expect_exit_code(0);
        check_complete(&project);
    });
}

/// A permanent fault leaves exact states, and every value is correct.
#[test]
fn permanently_malformed_replies_end_in_exact_states() {
    let cells = HERO_COUNT * 4;
    let all = |state: &'static str| Some(vec![(state, cells)]);
    let faults = [
        (Fault::Empty, all("invalid")),
        (Fault::ContentFilter, all("refused")),
        (Fault::Refusal, all("refused")),
        (Fault::RefusalInWords, all("refused")),
        (Fault::Renumbered, None),
        (Fault::ContradictingRows, None),
        (Fault::Truncated, None),
        (Fault::ForeignColumn, None),
        (Fault::ForeignColumnFirst, None),
        (Fault::MissingColumn, None),
        (Fault::MissingColumnBefore, None),
        (Fault::OutsideList, Some(vec![("not_in_list", HERO_COUNT * 2), ("ok", HERO_COUNT * 2)])),
        (Fault::TooLarge(0), all("error")),
        (Fault::ContextLength(0), all("error")),
    ];
    let mut cases = Vec::new();
    for (fault, states) in faults {
        for format in FORMATS {
            cases.push((format!("{fault:?} {format}"), (fault.clone(), states.clone(), format)));
        }
    }
    each(cases, |(fault, expected, format)| {
        let endpoint = truthful_endpoint();
        endpoint.add_fault(fault.clone(), Frequency::Always);
        let project = heroes_project(&endpoint, format);
        let ended = project.run_materialize(&[]);
        let states = check_cells(&project);
        if let Some(expected) = expected {
            let expected: BTreeMap<String, usize> =
                expected.into_iter().map(|(s, n)| (s.to_owned(), n)).collect();
            assert_eq!(states, expected);
        }
        let ok = states.get("ok").copied().unwrap_or(0);
        assert_eq!(states.values().sum::<usize>(), cells);
        let ended = ended.expect_exit_code(i32::from(ok < cells));
        for (state, n) in &states {
            assert_eq!(ended.done_event()["cells"][state], *n);
        }
        println!("{fault:?} {format}: {states:?}, {} requests", endpoint.request_count());
        // The number of requests is limited.
        assert!(
            endpoint.request_count() <= 3 * HERO_COUNT,
            "{} requests",
            endpoint.request_count()
        );
    });
}

#[test]
fn a_rejected_request_stops_the_run_with_everything_kept() {
    let mut cases = Vec::new();
    for (status, code) in [
        (400, "invalid_request"),
        (401, "invalid_api_key"),
        (403, "forbidden"),
        (404, "model_not_found"),
        (429, "insufficient_quota"),
    ] {
        for format in ["csv", "json"] {
            cases.push((format!("{status} {format}"), (status, code, format)));
        }
    }
    each(cases, |(status, code, format)| {
        let endpoint = truthful_endpoint();
        // Some endpoints include the key in their message.
        let message = format!("Your request was declined because of {code}");
        endpoint.add_fault_where(Fault::status(status, &message, code), Frequency::Always, |q| {
            q.rows.iter().any(|r| r.key[0] == "Zed")
        });
        let project = heroes_project(&endpoint, format);
        let flags = ["--rows-per-request", "1", "--concurrency", "1"];
        let ended = project.run_materialize(&flags).expect_exit_code(4);
        assert!(ended.stderr.contains(&message), "{}", ended.stderr);
        assert!(ended.stderr.contains(&status.to_string()), "{}", ended.stderr);
        let before = endpoint.request_count();
        assert_eq!(before, HERO_COUNT, "Zed is the last, and is asked about once");
        assert_eq!(check_cells(&project)["ok"], 36);
        endpoint.clear_faults();
        project.run_materialize(&flags).expect_exit_code(0);
        let asked = endpoint.cells_since(before);
        assert_eq!(asked.len(), 4);
        assert!(asked.iter().all(|(k, _)| k[0] == "Zed"));
        check_complete(&project);
    });
}

#[test]
fn a_rejected_first_request_is_the_only_one() {
    let endpoint = truthful_endpoint();
    endpoint.add_fault(
        Fault::status(401, "Incorrect API key provided", "invalid_api_key"),
        Frequency::Always,
    );
    let project = heroes_project(&endpoint, "json");
    let flags = ["--concurrency", "1", "--rows-per-request", "1"];
    let ended = project.run_materialize(&flags).expect_exit_code(4);
    assert_eq!(endpoint.request_count(), 1);
    assert!(ended.stderr.contains("Incorrect API key provided"), "{}", ended.stderr);
}

#[test]
fn a_rejection_ends_the_waits_of_other_requests() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    // The very first request is sent alone.
    project.run_materialize(&["--limit", "1"]).expect_exit_code(0);
    let asked = endpoint.request_count();
    endpoint.add_fault_where(Fault::Latency(Duration::from_millis(300)), Frequency::Always, |q| {
        q.rows[0].key[0] == "Echo"
    });
    endpoint.add_fault_where(
        Fault::status(403, "Your country is not supported", "forbidden"),
        Frequency::Always,
        |q| q.rows[0].key[0] == "Echo",
    );
    endpoint.add_fault(Fault::too_many("retry-after", "20"), Frequency::Always);
    let began = std::time::Instant::now();
    let ended = project
        .run_materialize(&["--concurrency", "8", "--rows-per-request", "1"])
        .expect_exit_code(4);
    assert!(ended.stderr.contains("Your country is not supported"), "{}", ended.stderr);
    assert!(
        began.elapsed() < Duration::from_secs(19),
        "it waited for requests that were abandoned"
    );
    // On a slow machine, the first Retry-After arrives before all requests are sent.
    assert!(endpoint.request_count() <= asked + 8);
    endpoint.clear_faults();
    project.run_materialize(&[]).expect_exit_code(0);
    check_complete(&project);
}

#[test]
fn the_key_appears_only_in_requests() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "json");
    let mut said = String::new();
    let mut note = |ended: hqdl_testkit::project::CommandResult| {
        said.push_str(&(ended.stdout + &ended.stderr));
    };
    note(project.run_materialize(&["-v", "--limit", "2"]));
    // An endpoint that returns the key in its error.
    let echo = format!("Incorrect API key provided: {SECRET}");
    endpoint.add_fault(Fault::status(401, &echo, "invalid_api_key"), Frequency::Once);
    note(project.run_materialize(&["-v", "--concurrency", "1"]).expect_exit_code(4));
    endpoint.clear_faults();
    endpoint.add_fault(Fault::status(500, &echo, "server_error"), Frequency::Once);
    endpoint.add_fault_where(Fault::status(413, &echo, "too_large"), Frequency::Always, |q| {
        q.rows.iter().any(|r| r.key[0] == "Zed")
    });
    note(project.run_materialize(&["-v"]).expect_exit_code(1));
    note(project.run_hqdl(&["plan", "specs/x.toml"]).expect_exit_code(0));
    note(project.run_hqdl(&["cache", "list"]).expect_exit_code(0));
    note(project.run_hqdl(&["why", "llm", "Zed", "Zed Zedsson", "born", "--db", "data.sqlite"]));
    assert!(!said.contains(SECRET), "{said}");
    assert_eq!(project.files_with(SECRET), Vec::<std::path::PathBuf>::new());
    let bearer = format!("Bearer {SECRET}");
    assert!(endpoint.received_requests().iter().all(|r| {
        r.headers.iter().any(|(n, v)| n == "authorization" && *v == bearer)
            && !r.body.to_string().contains(SECRET)
    }));
}

#[test]
fn a_missing_key_is_reported_before_any_request() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "json");
    project.write_spec(&heroes_spec().replace("{base_url}", "https://api.example.invalid/v1"));
    let mut command = project.hqdl_command(&["materialize", "specs/x.toml"]);
    let output = command.env_remove(hqdl_testkit::project::SECRET_ENV).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{stderr}");
    assert!(stderr.contains(hqdl_testkit::project::SECRET_ENV), "{stderr}");
}

#[test]
fn an_unreachable_endpoint_is_reported_and_nothing_is_lost() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    project.run_materialize(&["--limit", "4"]).expect_exit_code(0);
    // A port that was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let url = format!("http://127.0.0.1:{port}/v1");
    let flags =
        ["--base-url", &url, "--rows-per-request", "1", "--concurrency", "8", "--limit", "8"];
    let ended = project.run_materialize(&flags);
    assert!(matches!(ended.code, 1 | 4), "{ended:?}");
    let states = check_cells(&project);
    assert_eq!(states["ok"], 16);
    assert!(states.get("error").is_none_or(|n| *n <= 24));
    project.run_materialize(&[]).expect_exit_code(0);
    assert_eq!(endpoint.cells_since(0).len(), 40);
    check_complete(&project);
}

/// Returns the requested cells as the journal names them: entity and column.
fn named(cells: impl IntoIterator<Item = (Vec<Json>, String)>) -> Vec<(String, String)> {
    cells
        .into_iter()
        .map(|(k, c)| (json!({ "full_name": k[1], "name": k[0] }).to_string(), c))
        .collect()
}

#[test]
fn ctrl_c_keeps_all_answers_and_the_next_run_requests_the_rest() {
    let endpoint = truthful_endpoint();
    endpoint.add_fault(Fault::Latency(Duration::from_millis(150)), Frequency::Always);
    let project = heroes_project(&endpoint, "csv");
    let args = ["materialize", "specs/x.toml", "--rows-per-request", "1", "--concurrency", "2"];
    let running = project.start_hqdl(&args);
    endpoint.wait_for(4);
    running.send_signal("INT");
    let ended = running.wait_for_exit().expect_exit_code(130);
    assert!(ended.stderr.contains("interrupted"), "{}", ended.stderr);
    let first = endpoint.request_count();
    assert!(first < HERO_COUNT, "it went on to the end");
    // Requests in flight are paid for, so the run waits for them and stores their answers.
    assert!(endpoint.received_requests().iter().all(|r| r.is_answered));
    assert_eq!(project.stored_cells(), named(endpoint.cells_since(0)).into_iter().collect());
    assert_eq!(check_cells(&project)["ok"], first * 4);
    endpoint.clear_faults();
    project.run_materialize(&["--rows-per-request", "1"]).expect_exit_code(0);
    assert_eq!(endpoint.request_count(), HERO_COUNT, "each hero once");
    check_complete(&project);
}

#[test]
fn ctrl_c_twice_abandons_requests_in_flight() {
    let endpoint = truthful_endpoint();
    endpoint.add_fault(Fault::Latency(Duration::from_secs(300)), Frequency::Always);
    let project = heroes_project(&endpoint, "csv");
    let mut running = project.start_hqdl(&["materialize", "specs/x.toml"]);
    endpoint.wait_for(1);
    let began = std::time::Instant::now();
    // Two simultaneous signals may arrive as one.
    while !running.has_ended() {
        running.send_signal("INT");
        std::thread::sleep(Duration::from_millis(300));
    }
    running.wait_for_exit().expect_exit_code(130);
    assert!(began.elapsed() < Duration::from_secs(60));
}

#[test]
fn a_long_pause_of_an_endpoint_is_reported() {
    let endpoint = truthful_endpoint();
    endpoint.add_fault(Fault::too_many("retry-after", "7"), Frequency::Once);
    let project = heroes_project(&endpoint, "csv");
    let ended = project.run_materialize(&[]).expect_exit_code(0);
    assert_eq!(ended.stdout.matches("wait until").count(), 1, "{ended:?}");
    assert!(ended.stdout.contains("as the endpoint requested (Retry-After)"), "{ended:?}");
    check_complete(&project);
}

#[test]
fn each_command_reports_a_long_pause() {
    let query = "SELECT {{LLMMap('Is it a hero?', 'hero::name')}} FROM hero LIMIT 1";
    let commands: Vec<Vec<&str>> = vec![
        vec!["query", "--spec", "specs/x.toml", query],
        vec!["map", "--spec", "specs/x.toml"],
        vec!["init", "data.sqlite", "--ask", "-s", "specs/new.toml"],
    ];
    let cases = commands.into_iter().map(|args| (args[0].to_owned(), args)).collect();
    each(cases, |args: Vec<&str>| {
        let endpoint = truthful_endpoint();
        endpoint.add_fault(Fault::too_many("retry-after", "7"), Frequency::Once);
        let project = heroes_project(&endpoint, "csv");
        let url = endpoint.base_url();
        let mut command = project.hqdl_command(&args);
        if args[0] == "init" {
            command.args(["--model", "m", "--base-url", &url]);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let line = b"{\"question\": \"Is it a hero?\", \"values\": [\"Zed\"]}\n";
        // Only `map` reads it.
        let _ = child.stdin.take().unwrap().write_all(line);
        let said = String::from_utf8(child.wait_with_output().unwrap().stderr).unwrap();
        assert!(said.contains("as the endpoint requested (Retry-After)"), "{said}");
    });
}

/// Tests that commands report a wait for the spec's own limit per minute. The second request waits
/// for a minute, so that a slow machine has time to report it.
#[test]
fn a_long_wait_for_a_minute_limit_is_reported() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    let spec = project.spec_text().replace("concurrency = 4", "requests_per_minute = 1");
    assert!(spec.contains("requests_per_minute"), "{spec}");
    project.write_spec(&spec);
    let running = project.start_hqdl(&["materialize", "specs/x.toml"]);
    endpoint.wait_for(1);
    std::thread::sleep(Duration::from_secs(15));
    running.send_signal("INT");
    let ended = running.wait_for_exit().expect_exit_code(130);
    let reason = "because the limit of requests or tokens per minute is used up";
    assert!(ended.stderr.contains(reason), "{ended:?}");
    assert!(ended.stderr.contains("wait until"), "{ended:?}");
}

/// Tests that a run reports that it waits for cells which a stopped process has claimed.
#[test]
fn a_long_wait_for_cells_of_another_process_is_reported() {
    let endpoint = truthful_endpoint();
    endpoint.add_fault(Fault::Latency(Duration::from_secs(2)), Frequency::Once);
    let project = heroes_project(&endpoint, "csv");
    let first = project.start_hqdl(&["materialize", "specs/x.toml"]);
    endpoint.wait_for(1);
    first.send_signal("STOP");
    let second = project.start_hqdl(&["materialize", "specs/x.toml", "--json"]);
    std::thread::sleep(Duration::from_secs(9));
    first.send_signal("CONT");
    first.wait_for_exit().expect_exit_code(0);
    let ended = second.wait_for_exit().expect_exit_code(0);
    assert!(ended.stdout.contains("waits for cells that another run"), "{ended:?}");
    check_complete(&project);
}

#[test]
fn ctrl_c_ends_a_wait_between_attempts() {
    let endpoint = truthful_endpoint();
    endpoint.add_fault(Fault::too_many("retry-after", "20"), Frequency::Always);
    let project = heroes_project(&endpoint, "csv");
    let running = project.start_hqdl(&["materialize", "specs/x.toml"]);
    endpoint.wait_for(1);
    std::thread::sleep(Duration::from_millis(100));
    running.send_signal("INT");
    let began = std::time::Instant::now();
    running.wait_for_exit().expect_exit_code(130);
    assert!(began.elapsed() < Duration::from_secs(19), "nothing was in flight to wait for");
}

#[test]
fn a_kill_at_any_moment_repeats_no_answered_request() {
    let endpoint = truthful_endpoint();
    endpoint.add_fault(Fault::Latency(Duration::from_millis(25)), Frequency::Always);
    let sql = format!(
        "{HEROES} WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 90)
         INSERT INTO hero (name, full_name) SELECT 'Number ' || i, 'Person ' || (i * 7) FROM n;"
    );
    let project = Project::new(&endpoint, &sql, &heroes_spec());
    let args = ["materialize", "specs/x.toml", "--rows-per-request", "1"];
    // Measured from the first request of each run, so that some answers are stored.
    let mut kills = 0;
    for wait in [5, 60, 140, 0, 210, 95] {
        let kept = project.stored_cells();
        let before = endpoint.request_count();
        let mut running = project.start_hqdl(&args);
        endpoint.wait_for(before + 1);
        std::thread::sleep(Duration::from_millis(wait));
        kills += usize::from(!running.has_ended());
        running.send_signal("KILL");
        running.wait_for_exit();
        // Requests in flight still arrive.
        std::thread::sleep(Duration::from_millis(60));
        let asked: BTreeSet<_> = named(endpoint.cells_since(before)).into_iter().collect();
        let twice: Vec<_> = asked.intersection(&kept).collect();
        assert!(twice.is_empty(), "asked again after a kill: {twice:?}");
        // At most the answers in flight are lost.
        let answered =
            endpoint.received_requests()[before..].iter().filter(|r| r.is_answered).count();
        let gained = project.stored_cells().len() - kept.len();
        assert!(gained + 4 * 4 >= answered * 4, "{gained} cells kept of {answered} answers");
    }
    assert!(kills >= 5, "the test's runs ended before they were killed");
    let kept = project.stored_cells();
    assert!(!kept.is_empty() && kept.len() < 400, "{}", kept.len());
    let before = endpoint.request_count();
    endpoint.clear_faults();
    project.run_materialize(&["--rows-per-request", "7"]).expect_exit_code(0);
    let asked: BTreeSet<_> = named(endpoint.cells_since(before)).into_iter().collect();
    assert_eq!(asked.len(), 400 - kept.len());
    assert!(asked.is_disjoint(&kept));
    assert_eq!(check_cells(&project), BTreeMap::from([("ok".to_owned(), 400)]));
}

#[test]
fn a_second_process_on_a_cache_waits_for_the_cells_of_the_first() {
    let endpoint = truthful_endpoint();
    endpoint.add_fault(Fault::Latency(Duration::from_millis(1500)), Frequency::First(3));
    let project = heroes_project(&endpoint, "csv");
    let running = project.start_hqdl(&["materialize", "specs/x.toml"]);
    endpoint.wait_for(1);
    project.run_materialize(&[]).expect_exit_code(0);
    running.wait_for_exit().expect_exit_code(0);
    check_complete(&project);
    assert_eq!(endpoint.request_count(), 3);
}

#[test]
fn a_truth_with_unknowns_survives_every_fault_mixed() {
    let endpoint = Endpoint::start_with(|column, key| {
        if column == "born" && key[0] == "Echo" { Json::Null } else { true_value(column, key) }
    });
    for (fault, every) in [
        (Fault::Truncated, 2),
        (Fault::SwappedKeys, 3),
        (Fault::ForeignRows, 2),
        (Fault::Fence, 2),
        (Fault::MissingRows, 3),
        (Fault::Permuted, 1),
    ] {
        endpoint.add_fault(fault, Frequency::Every(every));
    }
    for format in ["csv", "json"] {
        let project = heroes_project(&endpoint, format);
        // One request at a time, so that a fault affects the same request each time.
        project.run_materialize(&["--concurrency", "1"]);
        project.run_materialize(&["--concurrency", "1", "--retry-failed"]);
        let states = check_cells(&project);
        assert_eq!(states.get("unknown"), Some(&1), "{states:?}");
    }
}

/// If a repeated request for an unknown value gets an unreadable answer, the earlier "unknown" is
/// kept.
#[test]
fn an_unreadable_answer_does_not_replace_an_unknown() {
    let endpoint = Endpoint::start_with(|column, key| {
        if column == "born" && key[0] == "Echo" { Json::Null } else { true_value(column, key) }
    });
    for format in ["csv", "json"] {
        let project = heroes_project(&endpoint, format);
        project.run_materialize(&[]).expect_exit_code(0);
        let known = check_cells(&project);
        assert_eq!(known.get("unknown"), Some(&1), "{known:?}");
        let silent = [Fault::Empty, Fault::RefusalInWords, Fault::Refusal, Fault::ContentFilter];
        for fault in silent {
            let before = endpoint.request_count();
            endpoint.add_fault(fault.clone(), Frequency::Always);
            project.run_materialize(&["--retry-failed"]).expect_exit_code(1);
            assert!(endpoint.request_count() > before, "{fault:?}");
            assert_eq!(check_cells(&project), known, "{format}, {fault:?}");
            endpoint.clear_faults();
        }
        // An index rebuilt from the journal gives the same result.
        project.run_hqdl(&["cache", "rebuild"]).expect_exit_code(0);
        project.run_materialize(&[]).expect_exit_code(0);
        assert_eq!(check_cells(&project), known);
    }
}

/// Returns everything that can happen to a request in transit.
fn on_the_way() -> Vec<Fault> {
    let html = || vec![("content-type", "text/html".to_owned())];
    vec![
        Fault::Latency(Duration::from_millis(200)),
        Fault::too_many("retry-after-ms", "20"),
        Fault::Status(429, vec![], String::new()),
        Fault::Status(429, html(), "<html>slow down</html>".into()),
        Fault::status(500, "The server had an error", "server_error"),
        Fault::Status(503, html(), "<html>overloaded</html>".into()),
        Fault::Dropped,
        Fault::DroppedMidBody,
        Fault::Body("application/json", "\u{0}\u{1}garbage{{{"),
        Fault::Body("application/json", ""),
        Fault::Body("text/html", "<!DOCTYPE html><html>Log in</html>"),
        Fault::SlowDrip,
    ]
}

/// A permanent fault for one hero leaves exactly that hero's cells as errors, which the next run
/// requests again.
#[test]
fn permanent_faults_end_in_exact_states() {
    let mut cases = Vec::new();
    for fault in on_the_way() {
        for format in ["csv", "json"] {
            cases.push((format!("{fault:?} {format}"), (fault.clone(), format)));
        }
    }
    // All run at once, because they mostly wait.
    each_of(24, cases, |(fault, format)| {
        let answers = matches!(fault, Fault::Latency(_) | Fault::SlowDrip);
        let endpoint = truthful_endpoint();
        endpoint.add_fault_where(fault, Frequency::Always, |q| {
            q.rows.iter().any(|r| r.key[0] == "Zed")
        });
        let project = heroes_project(&endpoint, format);
        let flags = ["--rows-per-request", "1"];
        let ended = project.run_materialize(&flags).expect_exit_code(i32::from(!answers));
        if !answers {
            let states = check_cells(&project);
            let expected = [("error".to_owned(), 4), ("ok".to_owned(), 36)];
            assert_eq!(states, BTreeMap::from(expected));
            assert_eq!(ended.done_event()["cells"]["error"], 4);
            let count = endpoint.request_count();
            endpoint.clear_faults();
            project.run_materialize(&flags).expect_exit_code(0);
            let asked = endpoint.cells_since(count);
            assert!(asked.len() == 4 && asked.iter().all(|(k, _)| k[0] == "Zed"), "{asked:?}");
        }
        check_complete(&project);
    });
}

/// All faults at random, in each format: however long it takes, the table is complete in the end,
/// and no cell is ever wrong in between.
#[test]
fn all_faults_at_random_never_put_a_value_in_a_wrong_cell() {
    let seed = std::env::var("HQDL_TEST_SEED").ok().and_then(|s| s.parse().ok());
    let seed: u64 = seed.unwrap_or_else(|| fastrand::u64(..));
    println!("HQDL_TEST_SEED={seed}");
    let cases = FORMATS.iter().map(|f| (format!("{f}, HQDL_TEST_SEED={seed}"), *f)).collect();
    each(cases, |format| {
        let mut faults = on_the_way();
        faults.extend([
            Fault::Empty,
            Fault::Prose,
            Fault::Fence,
            Fault::Truncated,
            Fault::ContentFilter,
            Fault::Refusal,
            Fault::RefusalInWords,
            Fault::Permuted,
            Fault::MissingRows,
            Fault::DuplicatedRows,
            Fault::ContradictingRows,
            Fault::Renumbered,
            Fault::SwappedKeys,
            Fault::ForeignRows,
            Fault::ForeignColumn,
            Fault::ForeignColumnFirst,
            Fault::MissingColumn,
            Fault::MissingColumnBefore,
            Fault::NoUsage,
            Fault::TooLarge(2),
            Fault::ContextLength(1),
            Fault::Usage(json!({ "prompt_tokens": "in", "completion_tokens": null })),
            Fault::Huge(200, 20 << 20),
            Fault::RejectsStream("no stream"),
        ]);
        let rambling = [
            RunawayOutput::Repetition,
            RunawayOutput::UnknownRows,
            RunawayOutput::Prose,
            RunawayOutput::ExceedsCap,
        ];
        faults.extend(rambling.map(Fault::Runaway));
        let streams = [
            StreamFault::NotStreamed,
            StreamFault::CutMidEvent,
            StreamFault::NoDone,
            StreamFault::NoUsageChunk,
            StreamFault::Error,
            StreamFault::Filter,
            StreamFault::Garbage,
            StreamFault::OneMessage,
            StreamFault::Noise,
            StreamFault::UsageEverywhere,
            StreamFault::StaysOpen,
        ];
        faults.extend(streams.map(Fault::Stream));
        let endpoint = truthful_endpoint();
        for (n, fault) in faults.into_iter().enumerate() {
            let chance = Mutex::new(fastrand::Rng::with_seed(seed.wrapping_add(n as u64)));
            endpoint.add_fault_where(fault, Frequency::Always, move |_| {
                chance.lock().unwrap_or_else(PoisonError::into_inner).f64() < 0.02
            });
        }
        let project = heroes_project(&endpoint, format);
        project.execute_sql(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 50)
             INSERT INTO hero (name, full_name) SELECT 'Number ' || i, 'Person ' || (i * 7) FROM n",
        );
        let all = (HERO_COUNT + 50) * 4;
        for run in 0..10 {
            let ended = project.run_materialize(&["--retry-failed"]);
            assert!(matches!(ended.code, 0 | 1 | 4), "{ended:?}");
            // Compares every value with the truth.
            let states = check_cells(&project);
            println!("{format}, run {run}: {states:?}, {} requests", endpoint.request_count());
            if states == BTreeMap::from([("ok".to_owned(), all)]) {
                return;
            }
        }
        panic!("not complete after ten runs: {:?}", check_cells(&project));
    });
}
