//! Tests of repeated kills (kill -9) at any moment, with one journal: answers are never requested
//! again, and the tables are complete and correct in the end.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

use hqdl_testkit::endpoint::{Endpoint, Fault, Frequency};
use hqdl_testkit::project::{
    COLUMN_NAMES, HEROES, Project, check_cells, heroes_spec, truthful_endpoint,
};

const KILLS: usize = 28;
const CONCURRENCY: usize = 4;
const NUMBERS: usize = 790;

/// Creates a project with enough heroes that every kill leaves some cells missing.
fn many(endpoint: &Endpoint) -> Project {
    let sql = format!(
        "{HEROES} WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {NUMBERS})
         INSERT INTO hero (name, full_name) SELECT 'Number ' || i, 'Person ' || (i * 7) FROM n;"
    );
    Project::new(endpoint, &sql, &heroes_spec())
}

/// Returns the seed: random, or `HQDL_TEST_SEED` to repeat a run.
fn seed() -> u64 {
    let named = std::env::var("HQDL_TEST_SEED").ok().and_then(|s| s.parse().ok());
    let seed = named.unwrap_or_else(|| fastrand::u64(..));
    println!("HQDL_TEST_SEED={seed}");
    seed
}

/// Waits for requests in flight; returns the number of all requests.
fn all_come_in(endpoint: &Endpoint) -> usize {
    loop {
        let count = endpoint.request_count();
        std::thread::sleep(Duration::from_millis(30));
        if endpoint.request_count() == count {
            return count;
        }
    }
}

#[test]
fn no_kill_loses_more_than_requests_in_flight() {
    let mut chance = fastrand::Rng::with_seed(seed());
    let endpoint = truthful_endpoint();
    endpoint.add_fault(Fault::Latency(Duration::from_millis(8)), Frequency::Always);
    let project = many(&endpoint);
    let concurrency = CONCURRENCY.to_string();
    // Index of each process's first request.
    let mut runs = vec![0];
    let mut under_way = 0;
    for kill in 0..KILLS {
        let rows = chance.usize(1..=3).to_string();
        let args = ["materialize", "specs/x.toml", "--concurrency", &concurrency];
        let mut running = project.start_hqdl(&[&args[..], &["--rows-per-request", &rows]].concat());
        let before = endpoint.request_count();
        let (began, patience) = (Instant::now(), Duration::from_secs(10));
        match kill % 3 {
            // Kill at the n-th request.
            0 => {
                let n = chance.usize(1..20);
                while endpoint.request_count() < before + n && !running.has_ended() {
                    assert!(began.elapsed() < patience, "no request came");
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            // Kill some time after the first request.
            1 => {
                while endpoint.request_count() == before && !running.has_ended() {
                    assert!(began.elapsed() < patience, "no request came");
                    std::thread::sleep(Duration::from_millis(1));
                }
                std::thread::sleep(Duration::from_micros(chance.u64(0..40_000)));
            }
            // Kill at any time after the start.
            _ => std::thread::sleep(Duration::from_micros(chance.u64(0..150_000))),
        }
        if !running.has_ended() {
            under_way += 1;
            running.send_signal("KILL");
        }
        running.wait_for_exit();
        runs.push(all_come_in(&endpoint));
    }
    let known = project.stored_cells().len();
    let all = (NUMBERS + 10) * COLUMN_NAMES.len();
    assert!(known > 0 && known < all, "{known} of {all} cells after the kills");
    assert!(under_way >= KILLS / 2, "most runs ended before they were killed");
    let flags = ["--rows-per-request", "7", "--concurrency", &concurrency];
    project.run_materialize(&flags).expect_exit_code(0);
    assert_eq!(check_cells(&project), BTreeMap::from([("ok".to_owned(), all)]));

    let requests = endpoint.received_requests();
    let mut last_asked = HashMap::new();
    for (n, request) in requests.iter().enumerate() {
        for cell in request.requested_cells() {
            last_asked.insert(format!("{cell:?}"), n);
        }
    }
    assert_eq!(last_asked.len(), all);
    for (run, ends) in runs.iter().zip(&runs[1..]) {
        // Requests that a later process repeated were in flight when this process was killed.
        let lost: HashSet<usize> = (*run..*ends)
            .filter(|n| {
                requests[*n]
                    .requested_cells()
                    .iter()
                    .any(|c| last_asked[&format!("{c:?}")] >= *ends)
            })
            .collect();
        assert!(
            lost.len() <= CONCURRENCY,
            "{} requests of one process were lost, {} of them answered",
            lost.len(),
            lost.iter().filter(|n| requests[**n].is_answered).count()
        );
        // A process requests nothing twice.
        let mut asked = HashSet::new();
        for request in &requests[*run..*ends] {
            for cell in request.requested_cells() {
                assert!(asked.insert(format!("{cell:?}")), "asked twice by one process: {cell:?}");
            }
        }
    }
}

/// The tables are published again from the facts, whenever publishing was interrupted.
#[test]
fn a_kill_while_publishing_leaves_the_old_or_the_new_tables() {
    let mut chance = fastrand::Rng::with_seed(seed());
    let endpoint = truthful_endpoint();
    let project = many(&endpoint);
    project.run_materialize(&["--rows-per-request", "50"]).expect_exit_code(0);
    let all = BTreeMap::from([("ok".to_owned(), (NUMBERS + 10) * COLUMN_NAMES.len())]);
    let asked = endpoint.request_count();
    for _ in 0..12 {
        // Change a value of one hero, so that there is something to publish.
        let year = chance.u64(1000..9999).to_string();
        let words = ["override", "set", "specs/x.toml", "llm", "Zed", "Zed Zedsson", "motto"];
        project.run_hqdl(&[&words[..], &[&year]].concat()).expect_exit_code(0);
        let running = project.start_hqdl(&["materialize", "specs/x.toml"]);
        std::thread::sleep(Duration::from_micros(chance.u64(20_000..160_000)));
        running.send_signal("KILL");
        running.wait_for_exit();
        let rows = project.query_rows("SELECT count(*) FROM llm");
        assert_eq!(rows[0][0], NUMBERS + 10, "half a table was published");
        assert_eq!(project.query_rows("PRAGMA integrity_check")[0][0], "ok");
    }
    std::fs::remove_file(project.path("specs/x.overrides.csv")).unwrap();
    project.run_materialize(&[]).expect_exit_code(0);
    assert_eq!((check_cells(&project), endpoint.request_count()), (all, asked));
}
