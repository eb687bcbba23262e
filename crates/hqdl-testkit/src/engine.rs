//! `hqdl query` as its users run it, and its rows compared with others.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use rusqlite::{Connection, OpenFlags};
use serde_json::Value as Json;

use crate::oracle;
use crate::project::{Ended, rows};

/// A folder of the data that are not part of this project, when it is there.
pub fn shared(folder: &str) -> Option<PathBuf> {
    let shared = std::env::var_os("HQDL_SHARED")
        .map_or_else(|| crate::root().join("../shared"), PathBuf::from);
    let found = shared.join(folder);
    if found.is_dir() {
        return Some(found);
    }
    println!("skipped: the data are not at {}", found.display());
    None
}

/// A query to be run.
#[derive(Debug, Clone, Default)]
pub struct Query<'a> {
    /// The database.
    pub db: PathBuf,
    /// The directory of the facts.
    pub cache: PathBuf,
    /// Who answers: the endpoint's URL, else `flags` have recordings.
    pub base_url: Option<String>,
    /// The model's name.
    pub model: &'a str,
    /// Values that share a request.
    pub rows_per_request: usize,
    /// More flags.
    pub flags: Vec<String>,
    /// The query itself.
    pub sql: &'a str,
}

impl Query<'_> {
    /// Runs it to its end.
    pub fn run(&self) -> Outcome {
        let mut command = Command::new(crate::program());
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy().to_lowercase();
            if name.ends_with("_proxy") || name.starts_with("hqdl_") || name == "openai_api_key" {
                command.env_remove(&name).env_remove(name.to_uppercase());
            }
        }
        command.current_dir(crate::root()).stdin(Stdio::null());
        command.arg("query").arg("--db").arg(&self.db).arg("--cache").arg(&self.cache);
        command.args(["--json", "--rows-per-request", &self.rows_per_request.to_string()]);
        if let Some(url) = &self.base_url {
            command.args(["--base-url", url, "--model", self.model]);
        }
        command.args(&self.flags).arg("--").arg(self.sql);
        Outcome::new(Ended::new(&command.output().unwrap()))
    }
}

/// What a query gave.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The exit code.
    pub code: i32,
    /// What it said.
    pub stderr: String,
    /// Names of the columns.
    pub columns: Vec<String>,
    /// The rows.
    pub rows: Vec<Vec<Json>>,
    /// What it cost and how it was done.
    pub meta: Json,
}

impl Outcome {
    fn new(ended: Ended) -> Self {
        let json: Json = serde_json::from_str(&ended.stdout).unwrap_or(Json::Null);
        let list = |json: &Json| json.as_array().cloned().unwrap_or_default();
        Self {
            code: ended.code,
            columns: list(&json["columns"])
                .iter()
                .map(|c| c.as_str().unwrap_or_default().to_owned())
                .collect(),
            rows: list(&json["rows"]).iter().map(list).collect(),
            meta: json["meta"].clone(),
            stderr: ended.stderr,
        }
    }

    /// A number of `meta`.
    ///
    /// # Errors
    /// Says what the program said when there is none.
    pub fn count(&self, name: &str) -> Result<u64, String> {
        self.meta[name].as_u64().ok_or_else(|| {
            format!("meta has no number {name}: {} (exit {}) {}", self.meta, self.code, self.stderr)
        })
    }

    /// Checks the exit code.
    pub fn exits(&self, codes: &[i32]) -> Result<(), String> {
        if codes.contains(&self.code) {
            return Ok(());
        }
        Err(format!("exit {} instead of {codes:?}: {}", self.code, self.stderr))
    }
}

/// How rows are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// One after another.
    Given,
    /// As a multiset.
    Any,
}

/// A cell as it is compared: a double up to its last few bits.
fn normal(cell: &Json) -> String {
    match cell.as_f64() {
        Some(number) if cell.is_f64() && number != number.trunc() => format!("{number:.9e}"),
        Some(number) if cell.is_f64() => format!("{number:.0}"),
        _ => cell.to_string(),
    }
}

fn row_text(row: &[Json]) -> String {
    row.iter().map(normal).collect::<Vec<_>>().join(" | ")
}

/// Rows and how often each occurs.
fn counted(rows: &[Vec<Json>]) -> BTreeMap<String, i64> {
    let mut counts = BTreeMap::new();
    for row in rows {
        *counts.entry(row_text(row)).or_insert(0) += 1;
    }
    counts
}

/// Compares rows.
///
/// # Errors
/// What is missing and what is too much.
pub fn same(ours: &[Vec<Json>], expected: &[Vec<Json>], order: Order) -> Result<(), String> {
    let (mut counts, theirs) = (counted(ours), counted(expected));
    for (row, n) in theirs {
        *counts.entry(row).or_insert(0) -= n;
    }
    counts.retain(|_, n| *n != 0);
    if !counts.is_empty() {
        let differ: Vec<String> =
            counts.iter().take(8).map(|(row, n)| format!("{n:+} × {row}")).collect();
        return Err(format!(
            "{} rows instead of {}; too many (+) and missing (-):\n{}",
            ours.len(),
            expected.len(),
            differ.join("\n")
        ));
    }
    let at = ours.iter().zip(expected).position(|(a, b)| row_text(a) != row_text(b));
    match at {
        Some(n) if order == Order::Given => {
            Err(format!("row {n} is {} instead of {}", row_text(&ours[n]), row_text(&expected[n])))
        }
        _ => Ok(()),
    }
}

/// Checks that there are `k` rows, all of them among `every`.
///
/// # Errors
/// What is not.
pub fn any_of(ours: &[Vec<Json>], k: usize, every: &[Vec<Json>]) -> Result<(), String> {
    if ours.len() != k {
        return Err(format!("{} rows instead of any {k} of {}", ours.len(), every.len()));
    }
    let mut left = counted(every);
    for row in ours {
        let count = left.entry(row_text(row)).or_insert(0);
        *count -= 1;
        if *count < 0 {
            return Err(format!("{} is not among the rows that may be", row_text(row)));
        }
    }
    Ok(())
}

/// The rows that plain `SQLite` gives, with the oracle's functions as real ones.
///
/// # Errors
/// `SQLite`'s.
pub fn plain(db: &Path, sql: &str) -> Result<Vec<Vec<Json>>, String> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(db, flags).map_err(|e| e.to_string())?;
    oracle::register(&connection);
    rows(&connection, sql).map_err(|e| format!("{sql}: {e}"))
}

/// Does the same with each item on a few threads; what failed, in their order.
pub fn in_parallel<T: Sync>(
    items: &[T],
    work: impl Fn(&T) -> Result<(), String> + Sync,
) -> Vec<String> {
    let next = AtomicUsize::new(0);
    let mut failed: Vec<(usize, String)> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let mut failed = Vec::new();
                    while let Some((n, item)) = {
                        let n = next.fetch_add(1, Ordering::SeqCst);
                        items.get(n).map(|item| (n, item))
                    } {
                        if let Err(why) = work(item) {
                            failed.push((n, why));
                        }
                    }
                    failed
                })
            })
            .collect();
        workers.into_iter().flat_map(|w| w.join().unwrap()).collect()
    });
    failed.sort_by_key(|(n, _)| *n);
    failed.into_iter().map(|(_, why)| why).collect()
}
