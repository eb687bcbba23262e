//! Tests that random queries return the rows of plain `SQLite` with the calls as real functions,
//! whatever the values that were not requested. No value is requested twice, and none in a second
//! run.
//!
//! The tests run in process. `HQDL_PROPERTY_CASES=5000` runs more cases, `HQDL_PROPERTY_SEED=…`
//! other ones. A failure names its seed, which `HQDL_PROPERTY_CASES=1` runs alone;
//! `HQDL_PROPERTY_TELL=1` prints its query first.

// A test fails by panicking and prints the reason.
#![allow(
    clippy::too_many_lines,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unwrap_used
)]
// Tests compare exact figures, and helpers take the arguments that make their calls readable.
#![allow(clippy::float_cmp, clippy::needless_pass_by_value, clippy::unnecessary_wraps)]

mod cases;
mod found;
mod generator;
mod other_truths;
mod stub;

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use fastrand::Rng;
use hqdl::blendsql::scan_calls;
use hqdl::database::Database;
use hqdl::facts::Facts;
use hqdl::query::{self, Dialect, QueryError, QueryResult, Request};
use hqdl::spec::UncheckedSpec;
use rusqlite::functions::FunctionFlags;
use rusqlite::types::Value as Sql;
use rusqlite::{Connection, ErrorCode, OpenFlags};

use crate::generator::{Generated, database, query};
use crate::other_truths::{LetterCase, Truth, register};
use crate::stub::Stub;

type Rows = Vec<Vec<Sql>>;

/// Maximum number of `SQLite` VM steps of a plain query.
const STEPS: i32 = 4_000_000;
/// Time limit of an hqdl query, which runs many times that.
const LONGEST: Duration = Duration::from_secs(60);
/// Number of queries that share a cache: each leaves a model in it, which slows down the next ones.
const CHUNK: u64 = 2000;
/// Message for a query that takes more.
const TOO_LONG: &str = "a plain query takes too many steps";

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(default)
}

/// Returns a database and a query for a seed.
fn case(seed: u64) -> (String, Generated) {
    // Consecutive seeds must not give similar cases.
    let mut rng = Rng::with_seed(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    (database(&mut rng), query(&mut rng))
}

fn build(sql: &str) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data.sqlite");
    // Disk flushes would take most of the test's time.
    let all = format!("PRAGMA synchronous = OFF; BEGIN; {sql} COMMIT;");
    Connection::open(&path).unwrap().execute_batch(&all).unwrap();
    (dir, path)
}

/// Registers what `TRY_CAST(… AS INTEGER)` returns for the values of random queries.
fn register_try_integer(connection: &Connection) -> rusqlite::Result<()> {
    let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DETERMINISTIC;
    connection.create_scalar_function("try_integer", 1, flags, |context| {
        Ok(match context.get::<Sql>(0)? {
            Sql::Integer(integer) => Some(integer),
            Sql::Real(real) if real.fract() == 0.0 => Some(real as i64),
            Sql::Text(text) => text.trim().parse::<i64>().ok(),
            _ => None,
        })
    })
}

/// Returns the rows of plain `SQLite` under a truth.
fn plain(db: &Path, sql: &str, truth: &Truth) -> Result<Rows, String> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(db, flags).map_err(|e| e.to_string())?;
    register(&connection, truth);
    register_try_integer(&connection).map_err(|e| e.to_string())?;
    // Millions of rows show no more than a thousand.
    connection.progress_handler(STEPS, Some(|| true)).map_err(|e| e.to_string())?;
    let failed = |e: rusqlite::Error| match e.sqlite_error_code() {
        Some(ErrorCode::OperationInterrupted) => TOO_LONG.to_owned(),
        _ => format!("plain: {sql}: {e}"),
    };
    let mut statement = connection.prepare(sql).map_err(failed)?;
    let width = statement.column_count();
    let rows = statement.query_map([], |row| (0..width).map(|n| row.get(n)).collect());
    rows.map_err(failed)?.collect::<Result<_, _>>().map_err(failed)
}

/// Compares the headers of columns without calls with those of plain `SQLite`.
fn compare_headers(ours: &[String], db: &Path, plain: &str) -> Result<(), String> {
    let connection = Connection::open(db).map_err(|e| e.to_string())?;
    register(&connection, &Truth::of(LetterCase::Told));
    register_try_integer(&connection).map_err(|e| e.to_string())?;
    let statement = connection.prepare(plain).map_err(|e| e.to_string())?;
    let expected: Vec<&str> = statement.column_names().collect();
    let has_call = |ours: &str, name: &str| {
        ours.contains("{{") || ours.starts_with("fn:") || name.contains("hq_")
    };
    let mut pairs = ours.iter().zip(&expected);
    let is_same = |(ours, name): (&String, &&str)| ours == name || has_call(ours, name);
    if ours.len() == expected.len() && pairs.all(is_same) {
        return Ok(());
    }
    Err(format!("the headers are {ours:?} instead of {expected:?}"))
}

fn text(row: &[Sql]) -> String {
    let cell = |cell: &Sql| match cell {
        Sql::Real(r) if r.fract() == 0.0 => format!("{r:.0}"),
        Sql::Real(r) => format!("{r:.9e}"),
        Sql::Integer(i) => i.to_string(),
        other => format!("{other:?}"),
    };
    row.iter().map(cell).collect::<Vec<_>>().join(" | ")
}

/// Returns for each row how many more times it occurs in the first list than in the second.
fn surplus(first: &Rows, second: &Rows) -> BTreeMap<String, i64> {
    let mut counts = BTreeMap::new();
    first.iter().for_each(|r| *counts.entry(text(r)).or_insert(0) += 1);
    second.iter().for_each(|r| *counts.entry(text(r)).or_insert(0) -= 1);
    counts.retain(|_, n| *n != 0);
    counts
}

/// Compares rows with those of plain `SQLite` under a truth.
fn compare(ours: &Rows, db: &Path, generated: &Generated, truth: &Truth) -> Result<(), String> {
    let ours = &truth.read(ours.clone());
    let plain =
        |db: &Path, sql: &str, truth: &Truth| plain(db, sql, truth).map(|rows| truth.read(rows));
    let expected = plain(db, &generated.plain, truth)?;
    let wrong = |what: String| {
        let shown = |rows: &Rows| rows.iter().take(12).map(|r| text(r)).collect::<Vec<_>>();
        Err(format!("{what}\nours  {:?}\nplain {:?}", shown(ours), shown(&expected)))
    };
    if ours.len() != expected.len() {
        return wrong(format!("{} rows instead of {}", ours.len(), expected.len()));
    }
    if let Some(every) = &generated.every {
        let every = plain(db, every, truth)?;
        if surplus(ours, &every).values().any(|n| *n > 0) {
            return wrong("rows that cannot be".to_owned());
        }
    } else if !surplus(ours, &expected).is_empty() {
        return wrong("other rows".to_owned());
    }
    let keys =
        |row: &Vec<Sql>| generated.ordered.iter().map(|n| text(&row[*n..=*n])).collect::<Vec<_>>();
    if ours.iter().map(keys).ne(expected.iter().map(keys)) {
        return wrong("another order".to_owned());
    }
    Ok(())
}

/// State shared by all queries, because opening it for each would take most of the time.
struct Shared {
    facts: Facts,
    /// Number of comparisons with plain SQL.
    held: AtomicUsize,
    asked: AtomicU64,
    refused: AtomicUsize,
    /// Number of queries over too many rows to compare.
    too_long: AtomicUsize,
    /// Number of queries whose result is `SQLite`'s choice: which of several texts that are equal
    /// under a collation is kept, or the columns beside an aggregate over no rows.
    chosen: AtomicUsize,
    /// Number of queries for which `explain` printed an upper bound.
    bounded: AtomicUsize,
    /// Whether the plain queries have the same text as the queries, except for calls.
    compares_headers: bool,
}

impl Shared {
    fn new() -> Self {
        Self {
            facts: Facts::open_temporary().unwrap(),
            held: AtomicUsize::new(0),
            asked: AtomicU64::new(0),
            refused: AtomicUsize::new(0),
            too_long: AtomicUsize::new(0),
            chosen: AtomicUsize::new(0),
            bounded: AtomicUsize::new(0),
            compares_headers: false,
        }
    }
}

/// Runs the query of a seed twice.
fn check(seed: u64, shared: &Shared) -> Result<(), String> {
    let (sql, generated) = case(seed);
    if std::env::var_os("HQDL_PROPERTY_TELL").is_some() {
        // Print the query first, in case it never returns.
        println!("== {seed}\n{}\n{}\n{sql}", generated.query, generated.plain);
    }
    let ended = held(&sql, &generated, seed, shared, LetterCase::Told);
    // DISTINCT, GROUP BY and UNION keep any of several texts that are equal under a collation: if
    // their answers differ, the rows are SQLite's choice.
    let keeps_any = ["DISTINCT", "GROUP BY", "UNION SELECT", "EXCEPT", "INTERSECT", "grp", "some"];
    if ended.is_err()
        && sql.contains("COLLATE")
        && keeps_any.iter().any(|word| generated.plain.contains(word))
        && held(&sql, &generated, seed, shared, LetterCase::Ignored).is_ok()
    {
        shared.chosen.fetch_add(1, Ordering::Relaxed);
        return Ok(());
    }
    // A column beside an aggregate over no rows is NULL, or a constant if SQLite flattens the query
    // that computes it.
    let apart = kept_apart(&generated.plain);
    if ended.is_err() && apart != generated.plain {
        let every = generated.every.as_deref().map(kept_apart);
        let generated = Generated { plain: apart, every, ..generated };
        let kept = held(&sql, &generated, seed, shared, LetterCase::Told);
        if let Err(why) = kept {
            return ended.map_err(|first| format!("{first}\n-- kept apart\n{why}"));
        }
        shared.chosen.fetch_add(1, Ordering::Relaxed);
        return Ok(());
    }
    ended
}

/// Returns the query with its subqueries in FROM and WITH materialized: the same rows by the
/// semantics of SQL, without `SQLite`'s flattening.
fn kept_apart(plain: &str) -> String {
    let (mut out, mut open, mut quoted) = (String::new(), Vec::new(), false);
    for (at, c) in plain.char_indices() {
        quoted ^= c == '\'';
        match c {
            '(' if !quoted => {
                let is_source = ["FROM ", "JOIN ", ", ", "AS "].iter().any(|w| out.ends_with(w));
                open.push((is_source && plain[at..].starts_with("(SELECT "), out.len()));
            }
            ')' if !quoted => {
                let (is_source, from) = open.pop().unwrap();
                let mut depth = 0;
                let limits = out[from + 1..].split_inclusive(['(', ')']).any(|part| {
                    let limits = depth == 0 && part.contains(" LIMIT ");
                    depth += i32::from(part.ends_with('(')) - i32::from(part.ends_with(')'));
                    limits
                });
                if is_source && !limits {
                    out.push_str(" LIMIT -1");
                }
            }
            _ => {}
        }
        out.push(c);
    }
    out
}

/// Runs a query twice, and compares it with plain SQL under several truths.
fn held(
    sql: &str,
    generated: &Generated,
    seed: u64,
    shared: &Shared,
    case: LetterCase,
) -> Result<(), String> {
    let (_dir, db) = build(sql);
    let true_one = Truth::of(case);
    plain(&db, &generated.plain, &true_one)?;
    if let Some(every) = &generated.every {
        plain(&db, every, &true_one)?;
    }
    // A new model name, so that only this run's requests are compared under other truths.
    let name = format!("seed-{seed}-{}", shared.held.fetch_add(1, Ordering::Relaxed));
    let model = Arc::new(Stub::new(name.clone(), case));
    let draft = UncheckedSpec::without_file(db.clone());
    let database = Database::open(&db).map_err(|e| e.to_string())?;
    let (mut spec, _) = draft.check(&database).map_err(|e| format!("{e:?}"))?;
    spec.model.name = name;
    let (_stop, interrupt) = tokio::sync::watch::channel(false);
    let request = Request {
        spec: &spec,
        database: &db,
        facts: &shared.facts,
        model: Some(model.clone()),
        sql: &generated.query,
        dialect: Dialect::Sqlite,
        params: Vec::new(),
        classify: false,
        truncate: false,
        refresh: None,
        rows_per_request: Some(5),
        timeout: Some(LONGEST),
        command: "test",
        listener: Arc::new(|_| {}),
        interrupt,
        counted_cost: hqdl::query::CountedCost::default(),
    };
    let most = match query::explain(&request) {
        Err(QueryError::Timeout(_)) => return Err(TOO_LONG.to_owned()),
        most => most.map_err(|e| format!("explain: {e}"))?,
    };
    let parts: Vec<_> = most.routes.iter().filter_map(|route| route.bound).collect();
    let values: u64 = parts.iter().map(|part| part.values).sum();
    let requests: u64 = parts.iter().map(|part| part.usage.requests).sum();
    if (values, requests) != (most.values_asked, most.requests) {
        return Err(format!("{values} values and {requests} requests of the calls: {most:?}"));
    }
    let mut once = HashSet::new();
    for again in [false, true] {
        let mut rows = QueryResult::default();
        let meta = match query::run(&request, &mut rows) {
            Ok(meta) => meta,
            // A reported error is not a silent mistake.
            Err(QueryError::Sql(problem)) if problem.message.contains("ambiguous") => {
                shared.refused.fetch_add(1, Ordering::Relaxed);
                return Ok(());
            }
            // A LIMIT ends plain SQL early; while nothing is known, hqdl reads all rows.
            Err(QueryError::Timeout(_)) => return Err(TOO_LONG.to_owned()),
            Err(error) => return Err(format!("failed: {error}")),
        };
        let asked = model.take();
        let about = |why: String| format!("{why}\n-- run\n{}", meta.sql);
        compare(&rows.rows, &db, generated, &true_one).map_err(about)?;
        if shared.compares_headers {
            compare_headers(&rows.columns, &db, &generated.plain).map_err(about)?;
        }
        for pair in asked.iter().flat_map(stub::Pair::split_candidates) {
            if !once.insert(pair.clone()) {
                return Err(format!("{pair:?} is asked twice"));
            }
        }
        if meta.values_asked != asked.len() as u64 {
            return Err(format!("{} values counted and {} seen", meta.values_asked, asked.len()));
        }
        // Random rows differ the next time.
        if again && !asked.is_empty() && !generated.query.contains("random()") {
            return Err(format!("asked for the second time: {asked:?}"));
        }
        if !again && most.unbounded.is_empty() {
            shared.bounded.fetch_add(1, Ordering::Relaxed);
            if meta.values_asked > most.values_asked {
                let (asked, most) = (meta.values_asked, most.values_asked);
                return Err(about(format!("{asked} asked, at most {most}: {once:?}")));
            }
            if meta.requests > most.requests {
                return Err(format!("{} requests, at most {}", meta.requests, most.requests));
            }
        }
        shared.asked.fetch_add(asked.len() as u64, Ordering::Relaxed);
        if !again {
            let agreed: HashSet<_> = asked.into_iter().map(|p| (p.function(), p.value)).collect();
            for truth in Truth::others(agreed, seed, case) {
                compare(&rows.rows, &db, generated, &truth)
                    .map_err(|why| about(format!("if all that was not asked {truth}: {why}")))?;
            }
        }
    }
    Ok(())
}

/// Checks each seed on a few threads; returns the failures in order.
fn in_parallel(seeds: std::ops::Range<u64>, shared: &Shared) -> Vec<String> {
    let next = AtomicU64::new(seeds.start);
    let work = || {
        let mut failed = Vec::new();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return failed;
            }
            let checked = check(seed, shared);
            if checked.as_ref().is_err_and(|why| why.contains(TOO_LONG)) {
                shared.too_long.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            if let Err(why) = checked {
                let (sql, generated) = case(seed);
                let (query, plain) = (generated.query, generated.plain);
                failed.push((
                    seed,
                    format!(
                        "== HQDL_PROPERTY_SEED={seed}\n{why}\n-- query\n{query}\n-- plain\n{plain}\n-- database\n{sql}"
                    ),
                ));
            }
        }
    };
    let mut failed: Vec<(u64, String)> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..2).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|w| w.join().unwrap()).collect()
    });
    failed.sort();
    failed.into_iter().map(|(_, why)| why).collect()
}

/// Ingredients that only the engine can parse.
const MACROS: [&str; 3] = ["LLMRank", "LLMExtract", "LLMClassify"];

/// The generator is valid: its queries can be parsed in both spellings.
#[test]
fn generated_queries_are_valid_and_not_all_empty() {
    let (mut with_rows, mut with_calls) = (0, 0);
    for seed in 0..600 {
        let (sql, generated) = case(seed);
        let (_dir, db) = build(&sql);
        let has_macro = MACROS.iter().any(|name| generated.query.contains(name));
        if !has_macro {
            scan_calls(&generated.query).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        }
        let truth = Truth::of(LetterCase::Told);
        let rows = match plain(&db, &generated.plain, &truth) {
            Ok(rows) => rows,
            Err(why) if why == TOO_LONG => continue,
            Err(why) => panic!("{seed}: {why}"),
        };
        with_rows += usize::from(!rows.is_empty());
        with_calls += usize::from(generated.query.contains("{{"));
    }
    println!("of 600 queries {with_calls} have calls and {with_rows} give rows");
    assert!(with_rows > 300 && with_calls > 480, "{with_rows} {with_calls}");
}

/// Minimized queries that once failed.
#[test]
fn queries_that_once_failed_give_the_rows_of_plain_sql() {
    let shared = Shared::new();
    for (n, (query, plain)) in found::QUERIES.iter().enumerate() {
        let (query, plain) = ((*query).to_owned(), (*plain).to_owned());
        let generated = Generated { query, plain, every: None, ordered: Vec::new() };
        let seed = u64::MAX - n as u64;
        if let Err(why) = held(found::DATABASE, &generated, seed, &shared, LetterCase::Told) {
            panic!("{why}\n-- query\n{}", generated.query);
        }
    }
    let bounded = shared.bounded.into_inner();
    assert_eq!(bounded, found::QUERIES.len() - found::UNBOUNDED, "what is bounded");
}

#[test]
fn random_queries_give_the_rows_of_plain_sql() {
    let first = setting("HQDL_PROPERTY_SEED", 1);
    let count = setting("HQDL_PROPERTY_CASES", 300);
    let mut shared = Shared { compares_headers: true, ..Shared::new() };
    let mut failed = Vec::new();
    for begin in (first..first + count).step_by(CHUNK as usize) {
        failed.extend(in_parallel(begin..(begin + CHUNK).min(first + count), &shared));
        shared.facts = Facts::open_temporary().unwrap();
    }
    let chosen = shared.chosen.into_inner();
    println!(
        "{} of {count} queries hold, {} values asked, {} refused, {} too long, {chosen} SQLite's choice, the most told of {}",
        count - failed.len() as u64,
        shared.asked.into_inner(),
        shared.refused.into_inner(),
        shared.too_long.into_inner(),
        shared.bounded.into_inner()
    );
    assert!(chosen as u64 <= 1 + count / 1000, "too many are SQLite's choice: {chosen}");
    let shown = setting("HQDL_PROPERTY_SHOWN", 12);
    let shown: Vec<String> = failed.iter().take(shown as usize).cloned().collect();
    assert!(failed.is_empty(), "{} failed, such as\n{}", failed.len(), shown.join("\n"));
}

/// Runs a failed query from a file that `HQDL_PROPERTY_FILE` names, so that it can be examined
/// after the generator has changed.
#[test]
#[ignore = "a look at one query"]
fn a_query_of_a_file_gives_the_rows_of_plain_sql() {
    let Some(path) = std::env::var_os("HQDL_PROPERTY_FILE") else { return };
    let told = std::fs::read_to_string(path).unwrap();
    let part = |from: &str, to: &str| {
        let rest = &told[told.find(from).unwrap() + from.len()..];
        rest[..rest.find(to).unwrap_or(rest.len())].to_owned()
    };
    let query = part("-- query\n", "\n-- plain");
    let plain = part("-- plain\n", "\n-- database");
    let sql = part("-- database\n", "\nstack backtrace");
    let generated = Generated { query, plain, every: None, ordered: Vec::new() };
    held(&sql, &generated, 0, &Shared::new(), LetterCase::Told)
        .unwrap_or_else(|why| panic!("{why}"));
}
