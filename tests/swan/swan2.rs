//! Runs SWAN 2.0's superhero half: thirty questions with known answers, and how few values an
//! engine requests. The data are not part of this project; without them the tests report that.

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use serde_json::Value as Json;

use hqdl_testkit::engine::{self, Order, Outcome, Query, check_subset, compare_rows};

/// Maximum number of values that all questions may request, each with an empty cache. The best
/// order of filters needs 5,991, batches of 20 under a LIMIT 6,006; the rest is for learning the
/// order.
const VALUES: u64 = 6_500;
/// Maximum number of requests, with ten values per request.
const REQUESTS: u64 = 750;

fn read(folder: &Path) -> Vec<Json> {
    let text = std::fs::read_to_string(folder.join("superhero.cases.jsonl")).unwrap();
    let cases: Vec<Json> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(cases.len(), 30);
    cases
}

fn run(folder: &Path, case: &Json, cache: PathBuf, rows_per_request: usize) -> Outcome {
    let facts = folder.join("superhero.facts.jsonl.gz");
    let query = Query {
        db: folder.join("superhero.masked.sqlite"),
        cache,
        base_url: None,
        model: "",
        rows_per_request,
        flags: vec!["--recordings".to_owned(), facts.display().to_string()],
        sql: case["blendsql"].as_str().unwrap(),
    };
    query.run_query()
}

fn rows(json: &Json) -> Vec<Vec<Json>> {
    serde_json::from_value(json.clone()).unwrap()
}

fn check(case: &Json, outcome: &Outcome) -> Result<(), String> {
    outcome.check_exit_code(&[0])?;
    let expected = rows(&case["rows"]);
    let sql = case["blendsql"].as_str().unwrap();
    match case["any_k"].as_u64() {
        Some(k) => check_subset(&outcome.rows, k as usize, &rows(&case["every"])),
        None if sql.contains("ORDER BY") => compare_rows(&outcome.rows, &expected, Order::Ordered),
        None => compare_rows(&outcome.rows, &expected, Order::Unordered),
    }
}

/// Runs every question with an empty cache; returns the numbers of values and requests.
fn each_from_nothing(folder: &Path, rows_per_request: usize) -> (u64, u64) {
    let cases = read(folder);
    let lines = Mutex::new(Vec::new());
    let failed = engine::run_in_parallel(&cases, |case| {
        let cache = tempfile::tempdir().unwrap();
        let outcome = run(folder, case, cache.path().to_owned(), rows_per_request);
        let qid = case["qid"].as_str().unwrap();
        check(case, &outcome).map_err(|why| format!("== {qid}\n{why}\n"))?;
        let counts = ["values_asked", "requests", "passes"].map(|name| outcome.meta_count(name));
        let [asked, requests, passes] = counts;
        let reach = case["min_values"]["reach"].as_u64().unwrap();
        let line = (qid.to_owned(), asked?, reach, requests?, passes?);
        lines.lock().unwrap().push(line);
        Ok(())
    });
    let mut lines = lines.into_inner().unwrap();
    lines.sort();
    println!("{rows_per_request} values a request\nquestion      asked  reach  requests  passes");
    for (qid, asked, reach, requests, passes) in &lines {
        let more = if asked > reach { format!("  +{}", asked - reach) } else { String::new() };
        println!("{qid:<12} {asked:>6} {reach:>6} {requests:>9} {passes:>7}{more}");
    }
    let sum = |of: fn(&(String, u64, u64, u64, u64)) -> u64| lines.iter().map(of).sum::<u64>();
    println!(
        "all          {:>6} {:>6} {:>9} {:>7}",
        sum(|l| l.1),
        sum(|l| l.2),
        sum(|l| l.3),
        sum(|l| l.4)
    );
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    (sum(|l| l.1), sum(|l| l.3))
}

#[test]
#[cfg_attr(not(shared_data), ignore = "needs the data beside the project: ../shared/swan2")]
fn swan2_asks_for_few_values() {
    let Some(folder) = engine::shared_folder("swan2") else { return };
    let (values, _) = each_from_nothing(&folder, 1);
    assert!(values <= VALUES, "{values} values, not {VALUES}");
}

#[test]
#[cfg_attr(not(shared_data), ignore = "needs the data beside the project: ../shared/swan2")]
fn swan2_makes_few_requests() {
    let Some(folder) = engine::shared_folder("swan2") else { return };
    let (_, requests) = each_from_nothing(&folder, 10);
    assert!(requests <= REQUESTS, "{requests} requests, not {REQUESTS}");
}

/// All questions with one cache cost less than separately, and nothing the second time.
#[test]
#[cfg_attr(not(shared_data), ignore = "needs the data beside the project: ../shared/swan2")]
fn swan2_on_one_cache() {
    let Some(folder) = engine::shared_folder("swan2") else { return };
    let cache = tempfile::tempdir().unwrap();
    let mut totals = Vec::new();
    for _ in 0..2 {
        let mut total = 0;
        for case in read(&folder) {
            let outcome = run(&folder, &case, cache.path().to_owned(), 10);
            check(&case, &outcome).unwrap_or_else(|why| panic!("== {}\n{why}", case["qid"]));
            total += outcome.meta_count("values_asked").unwrap();
        }
        totals.push(total);
    }
    println!("thirty questions on one cache: {} values, then {}", totals[0], totals[1]);
    assert!(totals[0] < VALUES);
    assert_eq!(totals[1], 0);
}
