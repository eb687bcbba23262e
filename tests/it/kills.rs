//! Killed at any moment (kill -9), again and again, on one journal: what was
//! answered is never asked again, and the tables end complete and right.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

use hqdl_testkit::endpoint::{Endpoint, Fault, Frequency};
use hqdl_testkit::project::{
    COLUMN_NAMES, HEROES, Project, check_cells, heroes_spec, truthful_endpoint,
};

const KILLS: usize = 28;
const CONCURRENCY: usize = 4;
const NUMBERS: usize = 790;

/// Heroes enough for every kill to find some of them unasked.
fn many(endpoint: &Endpoint) -> Project {
    let sql = format!(
        "{HEROES} WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {NUMBERS})
         INSERT INTO hero (name, full_name) SELECT 'Number ' || i, 'Person ' || (i * 7) FROM n;"
    );
    Project::new(endpoint, &sql, &heroes_spec())
}

/// Seeds differ from run to run; `HQDL_TEST_SEED` runs one again.
fn seed() -> u64 {
    let named = std::env::var("HQDL_TEST_SEED").ok().and_then(|s| s.parse().ok());
    let seed = named.unwrap_or_else(|| fastrand::u64(..));
    println!("HQDL_TEST_SEED={seed}");
    seed
}

/// Waits for requests that were on their way; says how many there were in all.
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
fn no_kill_loses_more_than_what_is_in_flight() {
    let mut chance = fastrand::Rng::with_seed(seed());
    let endpoint = truthful_endpoint();
    endpoint.add_fault(Fault::Latency(Duration::from_millis(8)), Frequency::Always);
    let project = many(&endpoint);
    let concurrency = CONCURRENCY.to_string();
    // Where each process's requests begin.
    let mut runs = vec![0];
    let mut under_way = 0;
    for kill in 0..KILLS {
        let rows = chance.usize(1..=3).to_string();
        let args = ["materialize", "specs/x.toml", "--concurrency", &concurrency];
        let mut running = project.start_hqdl(&[&args[..], &["--rows-per-request", &rows]].concat());
        let before = endpoint.request_count();
        let (began, patience) = (Instant::now(), Duration::from_secs(10));
        match kill % 3 {
            // At the n-th request.
            0 => {
                let n = chance.usize(1..20);
                while endpoint.request_count() < before + n && !running.has_ended() {
                    assert!(began.elapsed() < patience, "no request came");
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            // So long after the first request.
            1 => {
                while endpoint.request_count() == before && !running.has_ended() {
                    assert!(began.elapsed() < patience, "no request came");
                    std::thread::sleep(Duration::from_millis(1));
                }
                std::thread::sleep(Duration::from_micros(chance.u64(0..40_000)));
            }
            // Anywhere from its first instruction on.
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
        // Asked again by a later process: it was in flight when this one was killed.
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
        // Within a process nothing is asked twice.
        let mut asked = HashSet::new();
        for request in &requests[*run..*ends] {
            for cell in request.requested_cells() {
                assert!(asked.insert(format!("{cell:?}")), "asked twice by one process: {cell:?}");
            }
        }
    }
}

/// The tables are made again from what is known, whenever that was cut off.
#[test]
fn a_kill_while_publishing_leaves_the_tables_as_they_were_or_as_they_shall_be() {
    let mut chance = fastrand::Rng::with_seed(seed());
    let endpoint = truthful_endpoint();
    let project = many(&endpoint);
    project.run_materialize(&["--rows-per-request", "50"]).expect_exit_code(0);
    let all = BTreeMap::from([("ok".to_owned(), (NUMBERS + 10) * COLUMN_NAMES.len())]);
    let asked = endpoint.request_count();
    for _ in 0..12 {
        // Another value of one hero's, so that there is something to publish.
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
