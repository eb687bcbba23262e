//! Tests of rate limits as an endpoint measures them: in a window that slides over every moment,
//! however often the process is killed.

use std::time::Duration;

use hqdl::limits::MINUTE;

use crate::sharing::open_with_index;
use hqdl_testkit::endpoint::{Endpoint, Fault, Frequency};
use hqdl_testkit::project::{
    EXPANSION, EXPANSION_COLUMNS, HEROES, MODEL, Project, truthful_endpoint,
};

/// Creates a project with enough heroes for every minute of a test, one per request.
fn many(endpoint: &Endpoint, limits: &str) -> Project {
    let sql = format!(
        "{HEROES} WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 790)
         INSERT INTO hero (name, full_name) SELECT 'Number ' || i, 'Person ' || (i * 7) FROM n;"
    );
    let settings = MODEL.replace("concurrency = 4", &format!("concurrency = 16\n{limits}"));
    let spec = [&settings, EXPANSION, EXPANSION_COLUMNS].concat();
    Project::new(endpoint, &sql, &spec.replace("rows_per_request = 4", "rows_per_request = 1"))
}

/// Runs several processes at once and kills them around their first request, several times;
/// `HQDL_TEST_KILLS` sets how many.
fn kill_again_and_again(endpoint: &Endpoint, project: &Project, processes: usize) -> usize {
    let mut chance = fastrand::Rng::new();
    let named = std::env::var("HQDL_TEST_KILLS").ok().and_then(|s| s.parse().ok());
    let (lives, mut kills) = (named.unwrap_or(6), 0);
    while kills < lives {
        let (before, began) = (endpoint.request_count(), std::time::Instant::now());
        let args = ["materialize", "specs/x.toml"];
        let running: Vec<_> = (0..processes).map(|_| project.start_hqdl(&args)).collect();
        // Processes that may send nothing have no first request.
        let patience = Duration::from_secs(if before == 0 { 120 } else { 2 });
        while endpoint.request_count() == before && began.elapsed() < patience {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(chance.u64(0..300)));
        for one in running {
            one.send_signal("KILL");
            one.wait_for_exit();
            kills += 1;
        }
    }
    kills
}

/// Returns the maximum sum within a minute.
fn busiest_minute(all: &[(std::time::Instant, u64)]) -> u64 {
    let within = |(n, (from, _)): (usize, &(std::time::Instant, u64))| -> u64 {
        all[n..].iter().take_while(|(at, _)| *at < *from + MINUTE).map(|(_, n)| n).sum()
    };
    all.iter().enumerate().map(within).max().unwrap_or(0)
}

#[test]
fn an_endpoints_limits_survive_kills() {
    for is_shared in [false, true] {
        let endpoint = truthful_endpoint();
        endpoint.add_fault(Fault::Latency(Duration::from_millis(20)), Frequency::Always);
        endpoint.set_response_header("x-ratelimit-limit-requests", "12");
        let project = many(&endpoint, "requests_per_minute = 600");
        let facts = is_shared.then(|| open_with_index(&project));
        let kills = kill_again_and_again(&endpoint, &project, if is_shared { 3 } else { 1 });
        drop(facts);
        let requests: Vec<_> =
            endpoint.received_requests().iter().map(|r| (r.received_at, 1)).collect();
        let most = busiest_minute(&requests);
        println!("{most} of 12 requests in a minute, {kills} kills");
        assert!((1..=12).contains(&most), "{most} of 12 in a minute, {kills} kills");
    }
}

#[test]
fn token_counts_survive_kills() {
    let endpoint = truthful_endpoint();
    let project = many(&endpoint, "tokens_per_minute = 3000");
    let kills = kill_again_and_again(&endpoint, &project, 1);
    let most = busiest_minute(&endpoint.billed_answers());
    println!("{most} of 3000 tokens in a minute, {kills} kills");
    assert!((1..=3000).contains(&most), "{most} tokens in a minute");
}

/// A request that is larger than the limit is sent alone.
#[test]
fn a_request_larger_than_the_limit_is_sent_alone() {
    let endpoint = truthful_endpoint();
    let project = many(&endpoint, "tokens_per_minute = 50");
    let running = project.start_hqdl(&["materialize", "specs/x.toml"]);
    endpoint.wait_for(1);
    std::thread::sleep(Duration::from_millis(500));
    running.send_signal("KILL");
    let stderr = running.wait_for_exit().stderr;
    assert_eq!(endpoint.request_count(), 1);
    // The warning names the number that hqdl compares with the limit.
    let (_, rest) = stderr.split_once("one request is likely to take ").expect(&stderr);
    let tokens: u64 = rest.split(' ').next().unwrap().parse().unwrap();
    let limit = tokens - 40;
    let project = many(&endpoint, &format!("tokens_per_minute = {limit}"));
    let running = project.start_hqdl(&["materialize", "specs/x.toml"]);
    endpoint.wait_for(2);
    running.send_signal("KILL");
    let stderr = running.wait_for_exit().stderr;
    assert!(stderr.contains(&format!("`tokens_per_minute` is {limit}, but")), "{stderr}");
}
