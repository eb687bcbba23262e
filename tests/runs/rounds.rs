//! Tests of `--refresh` and `--retry-failed` over several runs.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value as Json, json};

use hqdl_testkit::endpoint::{Endpoint, Fault, Frequency};
use hqdl_testkit::project::{
    HERO_COUNT, check_complete, heroes_project, true_value, truthful_endpoint,
};

/// Starts an endpoint whose years of birth the test can change.
fn dated() -> (Endpoint, Arc<AtomicUsize>) {
    let year = Arc::new(AtomicUsize::new(0));
    let now = Arc::clone(&year);
    let endpoint = Endpoint::start_with(move |column, key| match now.load(Ordering::SeqCst) {
        year if column == "born" && year > 0 => year.into(),
        _ => true_value(column, key),
    });
    (endpoint, year)
}

/// Returns the keys of the cells requested since a request.
fn keys(endpoint: &Endpoint, from: usize) -> Vec<String> {
    endpoint.cells_since(from).iter().map(|(key, _)| json!(key).to_string()).collect()
}

#[test]
fn a_limited_refresh_advances_from_run_to_run_and_then_starts_over() {
    let (endpoint, year) = dated();
    let project = heroes_project(&endpoint, "csv");
    project.run_materialize(&[]).expect_exit_code(0);
    for round in [1888, 1999] {
        year.store(round, Ordering::SeqCst);
        let mut seen = BTreeSet::new();
        for (n, asked) in [4, 4, 2].into_iter().enumerate() {
            let count = endpoint.request_count();
            let ended = project.run_materialize(&["--refresh", "born", "--limit", "4"]);
            let keys = keys(&endpoint, count);
            assert_eq!(keys.len(), asked, "run {n} of the round {round}");
            assert!(keys.into_iter().all(|k| seen.insert(k)), "asked twice in a round");
            assert_eq!(ended.stdout.contains("continues"), n > 0, "{}", ended.stdout);
        }
        assert_eq!(project.query_rows("SELECT DISTINCT born FROM llm"), [[json!(round)]]);
    }
    // Without `--refresh`, nothing is requested, not even during a refresh job.
    year.store(2001, Ordering::SeqCst);
    project.run_materialize(&["--refresh", "born", "--limit", "3"]);
    let count = endpoint.request_count();
    let ended = project.run_materialize(&[]).expect_exit_code(0);
    assert_eq!((endpoint.request_count(), &ended.done_event()["requests"]), (count, &json!(0)));
    // A plan includes the refresh job, and does not end it.
    for _ in 0..2 {
        let plan = project.run_plan(&["--refresh", "born"]);
        assert_eq!(plan["totals"]["cells"], 7);
    }
}

#[test]
fn a_killed_refresh_continues_where_it_stopped() {
    let (endpoint, year) = dated();
    let project = heroes_project(&endpoint, "csv");
    project.run_materialize(&[]).expect_exit_code(0);
    year.store(1888, Ordering::SeqCst);
    endpoint.add_fault(Fault::Latency(Duration::from_millis(60)), Frequency::Always);
    let flags = ["--refresh", "born", "--rows-per-request", "1", "--concurrency", "1"];
    let args = [&["materialize", "specs/x.toml"], &flags[..]].concat();
    let count = endpoint.request_count();
    for n in [4, 3] {
        let before = endpoint.request_count();
        let running = project.start_hqdl(&args);
        endpoint.wait_for(before + n);
        running.send_signal("KILL");
        running.wait_for_exit();
        std::thread::sleep(Duration::from_millis(100));
    }
    project.run_materialize(&flags).expect_exit_code(0);
    let asked = keys(&endpoint, count);
    // Requests in flight at the kill are repeated.
    assert!((HERO_COUNT..=HERO_COUNT + 2).contains(&asked.len()), "{asked:?}");
    assert_eq!(asked.iter().collect::<BTreeSet<_>>().len(), HERO_COUNT);
    assert_eq!(project.query_rows("SELECT DISTINCT born FROM llm"), [[json!(1888)]]);
    let count = endpoint.request_count();
    project.run_materialize(&flags).expect_exit_code(0);
    assert_eq!(endpoint.request_count() - count, HERO_COUNT, "ended, it begins anew");
}

/// An answer that is worse than the previous value also counts as an answer.
#[test]
fn unreadable_answers_do_not_block_a_refresh() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    project.run_materialize(&[]).expect_exit_code(0);
    endpoint.add_fault_where(Fault::Empty, Frequency::Always, |q| {
        q.columns.iter().any(|c| c.name == "born")
            && q.rows.iter().any(|r| r.key[0] == "Blaze" || r.key[0] == "Echo")
    });
    let flags = ["--refresh", "born", "--limit", "2", "--rows-per-request", "1"];
    let mut seen = BTreeSet::new();
    for _ in 0..5 {
        let count = endpoint.request_count();
        project.run_materialize(&flags);
        let keys: BTreeSet<String> = keys(&endpoint, count).into_iter().collect();
        assert_eq!(keys.len(), 2);
        assert!(keys.is_disjoint(&seen), "{keys:?} are asked again");
        seen.extend(keys);
    }
    assert_eq!(seen.len(), HERO_COUNT);
    check_complete(&project);
}

#[test]
fn a_refresh_of_some_rows_is_a_separate_job() {
    let (endpoint, year) = dated();
    let project = heroes_project(&endpoint, "csv");
    project.run_materialize(&[]).expect_exit_code(0);
    let tall = ["--refresh", "born", "--where", "height > 180"];
    let wanted = project.query_rows("SELECT name FROM hero WHERE height > 180").len();
    for round in [1888, 1999] {
        year.store(round, Ordering::SeqCst);
        let count = endpoint.request_count();
        project.run_materialize(&tall);
        assert_eq!(keys(&endpoint, count).len(), wanted, "each time all of them");
    }
    // A refresh with failed requests continues with these.
    year.store(2001, Ordering::SeqCst);
    endpoint.add_fault_where(Fault::TooLarge(0), Frequency::Always, |q| {
        q.rows.iter().any(|r| r.key[0] == "Zed")
    });
    project.run_materialize(&["--refresh", "born"]).expect_exit_code(1);
    endpoint.clear_faults();
    let count = endpoint.request_count();
    project.run_materialize(&["--refresh", "born"]).expect_exit_code(0);
    assert_eq!(keys(&endpoint, count), [json!(["Zed", "Zed Zedsson"]).to_string()]);
    assert_eq!(project.query_rows("SELECT DISTINCT born FROM llm"), [[json!(2001)]]);
}

#[test]
fn a_limited_retry_advances_from_run_to_run() {
    let endpoint =
        Endpoint::start_with(
            |column, key| {
                if column == "born" { Json::Null } else { true_value(column, key) }
            },
        );
    let project = heroes_project(&endpoint, "csv");
    project.run_materialize(&[]).expect_exit_code(0);
    for _ in 0..2 {
        let mut seen = BTreeSet::new();
        for _ in 0..5 {
            let count = endpoint.request_count();
            project.run_materialize(&["--retry-failed", "--limit", "2"]).expect_exit_code(0);
            let keys = keys(&endpoint, count);
            assert_eq!(keys.len(), 2);
            assert!(keys.into_iter().all(|k| seen.insert(k)), "asked twice in a round");
        }
        assert_eq!(seen.len(), HERO_COUNT);
    }
}

#[test]
fn a_refresh_without_answers_is_reported_and_keeps_the_old_values() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    project.run_materialize(&[]).expect_exit_code(0);
    endpoint.add_fault(Fault::Empty, Frequency::Always);
    let ended =
        project.run_hqdl(&["materialize", "specs/x.toml", "--refresh", "born"]).expect_exit_code(1);
    assert!(ended.stdout.contains("unchanged  "), "{}", ended.stdout);
    endpoint.clear_faults();
    check_complete(&project);
}

/// A cell of a refresh keeps its earlier answer if its request fails, so that only another refresh
/// asks for it.
#[test]
fn a_failed_refresh_states_what_asks_again() {
    let (endpoint, _) = dated();
    let project = heroes_project(&endpoint, "csv");
    let run = |flags: &[&str]| {
        let args = [&["materialize", "specs/x.toml", "--rows-per-request", "1"], flags].concat();
        project.run_hqdl(&args).stdout
    };
    // The endpoint drops the requests about one hero.
    let drop_requests = || {
        endpoint.add_fault_where(Fault::Dropped, Frequency::Always, |question| {
            question.rows.iter().any(|row| row.key[0] == "Zed")
        });
    };
    drop_requests();
    let first = run(&["--columns", "born"]);
    assert!(first.contains("asked again by the next run:"), "{first}");
    endpoint.clear_faults();
    run(&[]);
    drop_requests();
    let failed = run(&["--refresh", "born"]);
    assert!(failed.contains("asked again by the next run with --refresh born:"), "{failed}");
}
