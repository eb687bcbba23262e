//! Whatever a query is made of, its rows are those of plain `SQLite` with the
//! calls as real functions; no value is asked twice, and none the second time.
//!
//! `HQDL_PROPERTY_CASES=5000` runs more, `HQDL_PROPERTY_SEED=…` other ones;
//! what fails names its seed, which alone runs again with `HQDL_PROPERTY_CASES=1`.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use fastrand::Rng;
use hqdl::blendsql::scan;
use rusqlite::Connection;

use crate::endpoint::Endpoint;
use crate::engine::{self, Order, Query, any_of, plain, same};
use crate::oracle;
use crate::query_generator::{Generated, database, query};

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(default)
}

/// A database and a query from a seed.
fn case(seed: u64) -> (String, Generated) {
    // Seeds that follow one another must not give cases that resemble one another.
    let mut rng = Rng::with_seed(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    (database(&mut rng), query(&mut rng))
}

fn build(sql: &str) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data.sqlite");
    // Waiting for the disk would be most of the test's time.
    let all = format!("PRAGMA synchronous = OFF; BEGIN; {sql} COMMIT;");
    Connection::open(&path).unwrap().execute_batch(&all).unwrap();
    (dir, path)
}

/// The generator is sound: what it writes can be read, in both spellings.
#[test]
fn generated_queries_are_valid_and_not_all_empty() {
    let (mut with_rows, mut with_calls) = (0, 0);
    for seed in 0..600 {
        let (sql, generated) = case(seed);
        let (_dir, db) = build(&sql);
        scan(&generated.query).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        let rows = plain(&db, &generated.plain).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        if let Some(every) = &generated.every {
            let every = plain(&db, every).unwrap();
            any_of(&rows, rows.len(), &every).unwrap();
        }
        with_rows += usize::from(!rows.is_empty());
        with_calls += usize::from(generated.query.contains("{{"));
    }
    println!("of 600 queries {with_calls} have calls and {with_rows} give rows");
    assert!(with_rows > 300 && with_calls > 480, "{with_rows} {with_calls}");
}

/// Runs a query twice.
fn check(seed: u64, endpoint: &Endpoint, asked: &AtomicU64) -> Result<(), String> {
    let (sql, generated) = case(seed);
    let (dir, db) = build(&sql);
    let expected = plain(&db, &generated.plain)?;
    let every = generated.every.as_deref().map(|sql| plain(&db, sql)).transpose()?;
    let model = format!("seed-{seed}");
    for again in [false, true] {
        let before = endpoint.requests_to(&model).len();
        let outcome = Query {
            db: db.clone(),
            cache: dir.path().join("cache"),
            base_url: Some(endpoint.url()),
            model: &model,
            rows_per_request: 5,
            flags: Vec::new(),
            sql: &generated.query,
        }
        .run();
        let pairs = oracle::pairs(&endpoint.requests_to(&model)[before..]);
        // What is unknown (`fn:null_if`) is said by the exit code.
        outcome.exits(&[0, 1])?;
        let rows = match &every {
            Some(every) => any_of(&outcome.rows, expected.len(), every),
            None if generated.ordered => same(&outcome.rows, &expected, Order::Given),
            None => same(&outcome.rows, &expected, Order::Any),
        };
        rows.map_err(|why| format!("{why}\n-- run\n{}", outcome.meta["sql"]))?;
        let count = outcome.count("values_asked")?;
        if let Some((pair, n)) = pairs.iter().find(|(_, n)| **n > 1) {
            return Err(format!("{pair:?} was asked {n} times"));
        }
        if let Some((pair, _)) = pairs.iter().find(|((_, key), _)| key == "[null]") {
            return Err(format!("{pair:?} is about nothing"));
        }
        if count != pairs.len() as u64 {
            return Err(format!("{count} values counted and {} seen", pairs.len()));
        }
        if again && count > 0 {
            return Err(format!("{count} values asked for the second time: {pairs:?}"));
        }
        asked.fetch_add(count, Ordering::Relaxed);
    }
    Ok(())
}

#[test]
fn random_queries_give_the_rows_of_plain_sql() {
    if !engine::answers_calls() {
        return;
    }
    let first = setting("HQDL_PROPERTY_SEED", 1);
    let seeds: Vec<u64> = (first..first + setting("HQDL_PROPERTY_CASES", 200)).collect();
    let endpoint = oracle::endpoint();
    let asked = AtomicU64::new(0);
    let failed = engine::in_parallel(&seeds, |seed| {
        check(*seed, &endpoint, &asked).map_err(|why| {
            let (sql, generated) = case(*seed);
            format!(
                "== HQDL_PROPERTY_SEED={seed}\n{why}\n{}\n-- plain\n{}\n-- database\n{sql}",
                generated.query, generated.plain
            )
        })
    });
    println!(
        "{} of {} queries hold, {} values asked",
        seeds.len() - failed.len(),
        seeds.len(),
        asked.load(Ordering::Relaxed)
    );
    let shown = failed.iter().take(12).cloned().collect::<Vec<_>>().join("\n");
    assert!(failed.is_empty(), "{} failed, such as\n{shown}", failed.len());
}
