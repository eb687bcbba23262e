//! Tests that untyped calls return the rows of plain `SQLite` with a function that returns the true
//! answer in its natural type: a whole number, a number, a text, a truth.
//!
//! `HQDL_TYPES_CASES=20000` runs more cases, `HQDL_TYPES_SEED=…` other ones. A failure names its
//! seed.

// A test fails by panicking and prints the reason.
#![allow(clippy::expect_used, clippy::panic, clippy::print_stdout, clippy::unwrap_used)]

mod generator;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fastrand::Rng;
use hqdl::facts::Facts;
use hqdl::model::{Model, Reply, ReplyFuture};
use hqdl::prompt::{Prompt, Question};
use hqdl::query::{self, QueryResult, Request};
use hqdl::session::{Cache, Session, SpecOverrides};
use hqdl::spec::UncheckedSpec;
use rusqlite::functions::FunctionFlags;
use rusqlite::types::{ToSqlOutput, Value as Sql};
use rusqlite::{Connection, OpenFlags};
use serde_json::{Value as Json, json};

use crate::generator::Generated;

/// Returns the truth about a word, in its natural type.
fn truth(function: &str, word: &str) -> Json {
    let length = word.chars().count();
    match function {
        "length" => length.into(),
        "half" => json!(length as f64 / 2.0 + 0.25),
        "upper" => word.to_uppercase().into(),
        "loud" => word.contains('a').into(),
        other => panic!("no function {other}"),
    }
}

const FUNCTIONS: [&str; 4] = ["length", "half", "upper", "loud"];

/// A model that answers with the truth, in the requested type.
struct Stub(String);

impl Model for Stub {
    fn name(&self) -> &str {
        &self.0
    }

    fn send_prompt<'a>(&'a self, prompt: &'a Prompt) -> ReplyFuture<'a> {
        let question = Question::parse(&prompt.system, &prompt.user).unwrap();
        let content = question.format_answer(|row, column| {
            let function = column.about.strip_prefix("fn:").unwrap();
            let found = truth(function, row.key[0].as_str().unwrap());
            match (found, column.data_type.as_str()) {
                (found @ (Json::String(_) | Json::Null), _) => found,
                (Json::Bool(b), "integer" | "real") => i32::from(b).into(),
                (found, "text") => found.to_string().into(),
                (found, _) => found,
            }
        });
        let reply = Reply { content, ..Reply::default() };
        Box::pin(std::future::ready(Ok(reply)))
    }
}

fn register(connection: &Connection) {
    let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DETERMINISTIC;
    for name in FUNCTIONS {
        let run = move |call: &rusqlite::functions::Context<'_>| {
            let word: Option<String> = call.get(0)?;
            Ok(ToSqlOutput::Owned(match word.map(|w| truth(name, &w)) {
                Some(Json::Bool(b)) => Sql::Integer(b.into()),
                Some(Json::Number(n)) => {
                    n.as_i64().map_or_else(|| Sql::Real(n.as_f64().unwrap()), Sql::Integer)
                }
                Some(Json::String(text)) => Sql::Text(text),
                _ => Sql::Null,
            }))
        };
        connection.create_scalar_function(format!("hq_{name}").as_str(), 1, flags, run).unwrap();
    }
}

fn plain(db: &Path, sql: &str) -> Result<Vec<Vec<Sql>>, String> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(db, flags).map_err(|e| e.to_string())?;
    register(&connection);
    let failed = |e: rusqlite::Error| format!("plain: {e}");
    let mut statement = connection.prepare(sql).map_err(failed)?;
    let width = statement.column_count();
    let rows = statement.query_map([], |row| (0..width).map(|n| row.get(n)).collect());
    rows.map_err(failed)?.collect::<Result<_, _>>().map_err(failed)
}

fn case(seed: u64) -> Generated {
    generator::query(&mut Rng::with_seed(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
}

fn text(row: &[Sql]) -> String {
    let cell = |cell: &Sql| match cell {
        Sql::Real(r) if r.fract() == 0.0 => format!("Integer({r:.0})"),
        other => format!("{other:?}"),
    };
    row.iter().map(cell).collect::<Vec<_>>().join(" | ")
}

fn check(seed: u64, db: &Path, facts: &Facts) -> Result<usize, String> {
    let generated = case(seed);
    let mut expected: Vec<String> = plain(db, &generated.plain)?.iter().map(|r| text(r)).collect();
    let name = format!("seed-{seed}");
    let overrides = SpecOverrides { model: Some(name.clone()), ..SpecOverrides::default() };
    let cache = Cache::Open(facts.clone());
    let session = Session::open(UncheckedSpec::without_file(db.to_owned()), &overrides, cache);
    let session = session.map_err(|e| format!("{e:?}"))?;
    let request = Request {
        model: Some(Arc::new(Stub(name))),
        rows_per_request: Some(20),
        command: "test",
        ..session.new_query(db, &generated.query).map_err(|e| e.to_string())?
    };
    let mut rows = QueryResult::default();
    let meta = query::run(&request, &mut rows).map_err(|e| e.to_string())?;
    let mut ours: Vec<String> = rows.rows.iter().map(|r| text(r)).collect();
    if !generated.ordered {
        ours.sort();
        expected.sort();
    }
    if ours != expected {
        return Err(format!("ours  {ours:?}\nplain {expected:?}\n-- run\n{}", meta.sql));
    }
    if meta.values_missing > 0 {
        return Err(format!("{} values are missing", meta.values_missing));
    }
    Ok(ours.len())
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(default)
}

#[test]
fn untyped_calls_adapt_to_their_use() {
    let dir = tempfile::tempdir().unwrap();
    let db: PathBuf = dir.path().join("data.sqlite");
    Connection::open(&db).unwrap().execute_batch(generator::DATABASE).unwrap();
    let facts = Facts::open(&dir.path().join("facts"), "test").unwrap();
    let first = setting("HQDL_TYPES_SEED", 1);
    let seeds = first..first + setting("HQDL_TYPES_CASES", 300);
    let (next, filled) = (AtomicU64::new(seeds.start), AtomicU64::new(0));
    let work = || {
        let mut failed = Vec::new();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return failed;
            }
            match check(seed, &db, &facts) {
                Ok(rows) => drop(filled.fetch_add(u64::from(rows > 0), Ordering::Relaxed)),
                Err(why) => {
                    let Generated { query, plain, .. } = case(seed);
                    failed.push((
                        seed,
                        format!("== HQDL_TYPES_SEED={seed}\n{query}\n{plain}\n{why}"),
                    ));
                }
            }
        }
    };
    let mut failed: Vec<(u64, String)> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..2).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|w| w.join().unwrap()).collect()
    });
    failed.sort();
    let count = seeds.end - seeds.start;
    println!("{} of {count} hold, {} have rows", count - failed.len() as u64, filled.into_inner());
    let shown: Vec<String> = failed.iter().take(12).map(|(_, why)| why.clone()).collect();
    assert!(failed.is_empty(), "{} failed, such as\n{}", failed.len(), shown.join("\n"));
}
