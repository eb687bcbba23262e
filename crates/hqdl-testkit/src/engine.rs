//! Runs `hqdl query` as users do, and compares its rows with expected ones.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use rusqlite::{Connection, OpenFlags};
use serde_json::Value as Json;

use crate::oracle;
use crate::project::{CommandResult, query_rows};

/// Returns a folder of the shared test data outside this repository, if it exists.
pub fn shared_folder(folder: &str) -> Option<PathBuf> {
    let shared = std::env::var_os("HQDL_SHARED")
        .map_or_else(|| crate::repository_root().join("../shared"), PathBuf::from);
    let path = shared.join(folder);
    if path.is_dir() {
        return Some(path);
    }
    println!("skipped: the data are not at {}", path.display());
    None
}

/// A query to run.
#[derive(Debug, Clone, Default)]
pub struct Query<'a> {
    /// Path of the database.
    pub db: PathBuf,
    /// Directory of the facts.
    pub cache: PathBuf,
    /// URL of the endpoint; if it is `None`, `flags` select recordings.
    pub base_url: Option<String>,
    /// Name of the model.
    pub model: &'a str,
    /// Number of values per request.
    pub rows_per_request: usize,
    /// Additional flags.
    pub flags: Vec<String>,
    /// The query text.
    pub sql: &'a str,
}

impl Query<'_> {
    /// Runs the query and waits for the result.
    pub fn run_query(&self) -> Outcome {
        self.run_command("query")
    }

    /// Runs `hqdl explain` for the query. `meta` contains the bounds.
    pub fn explain_query(&self) -> Outcome {
        let outcome = self.run_command("explain");
        Outcome { meta: outcome.json.clone(), ..outcome }
    }

    fn run_command(&self, name: &str) -> Outcome {
        let mut command = Command::new(crate::program_path());
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy().to_lowercase();
            if name.ends_with("_proxy") || name.starts_with("hqdl_") || name == "openai_api_key" {
                command.env_remove(&name).env_remove(name.to_uppercase());
            }
        }
        command.current_dir(crate::repository_root()).stdin(Stdio::null());
        command.arg(name).arg("--db").arg(&self.db).arg("--cache").arg(&self.cache);
        command.args(["--json", "--rows-per-request", &self.rows_per_request.to_string()]);
        if let Some(url) = &self.base_url {
            command.args(["--base-url", url, "--model", self.model]);
        }
        command.args(&self.flags).arg("--").arg(self.sql);
        Outcome::new(CommandResult::new(&command.output().unwrap()))
    }
}

/// Result of a query.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Exit code.
    pub code: i32,
    /// Text on stderr.
    pub stderr: String,
    /// Column names.
    pub columns: Vec<String>,
    pub rows: Vec<Vec<Json>>,
    /// Cost and execution details.
    pub meta: Json,
    /// All output.
    json: Json,
}

impl Outcome {
    fn new(ended: CommandResult) -> Self {
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
            json,
        }
    }

    /// Returns a number of `meta`.
    ///
    /// # Errors
    /// Returns a message with the program's output if there is no such number.
    pub fn meta_count(&self, name: &str) -> Result<u64, String> {
        self.meta[name].as_u64().ok_or_else(|| {
            format!("meta has no number {name}: {} (exit {}) {}", self.meta, self.code, self.stderr)
        })
    }

    /// Checks the exit code.
    pub fn check_exit_code(&self, codes: &[i32]) -> Result<(), String> {
        if codes.contains(&self.code) {
            return Ok(());
        }
        Err(format!("exit {} instead of {codes:?}: {}", self.code, self.stderr))
    }
}

/// How rows are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// In their order.
    Ordered,
    /// As a multiset.
    Unordered,
}

/// Returns a cell's text for comparison; doubles are rounded to hide differences in the last bits.
fn normalize_cell(cell: &Json) -> String {
    match cell.as_f64() {
        Some(number) if cell.is_f64() && number != number.trunc() => format!("{number:.9e}"),
        Some(number) if cell.is_f64() => format!("{number:.0}"),
        _ => cell.to_string(),
    }
}

fn row_text(row: &[Json]) -> String {
    row.iter().map(normalize_cell).collect::<Vec<_>>().join(" | ")
}

/// Counts the occurrences of each row.
fn count_rows(rows: &[Vec<Json>]) -> BTreeMap<String, i64> {
    let mut counts = BTreeMap::new();
    for row in rows {
        *counts.entry(row_text(row)).or_insert(0) += 1;
    }
    counts
}

/// Compares rows.
///
/// # Errors
/// Returns a message that lists missing and additional rows.
pub fn compare_rows(
    actual: &[Vec<Json>],
    expected: &[Vec<Json>],
    order: Order,
) -> Result<(), String> {
    let (mut counts, expected_counts) = (count_rows(actual), count_rows(expected));
    for (row, n) in expected_counts {
        *counts.entry(row).or_insert(0) -= n;
    }
    counts.retain(|_, n| *n != 0);
    if !counts.is_empty() {
        let differences: Vec<String> =
            counts.iter().take(8).map(|(row, n)| format!("{n:+} × {row}")).collect();
        return Err(format!(
            "{} rows instead of {}; too many (+) and missing (-):\n{}",
            actual.len(),
            expected.len(),
            differences.join("\n")
        ));
    }
    let mismatch = actual.iter().zip(expected).position(|(a, b)| row_text(a) != row_text(b));
    match mismatch {
        Some(n) if order == Order::Ordered => Err(format!(
            "row {n} is {} instead of {}",
            row_text(&actual[n]),
            row_text(&expected[n])
        )),
        _ => Ok(()),
    }
}

/// Checks that there are `k` rows and that all of them are among `allowed`.
///
/// # Errors
/// Returns a message about the difference.
pub fn check_subset(actual: &[Vec<Json>], k: usize, allowed: &[Vec<Json>]) -> Result<(), String> {
    if actual.len() != k {
        return Err(format!("{} rows instead of any {k} of {}", actual.len(), allowed.len()));
    }
    let mut remaining = count_rows(allowed);
    for row in actual {
        let count = remaining.entry(row_text(row)).or_insert(0);
        *count -= 1;
        if *count < 0 {
            return Err(format!("{} is not among the rows that may be", row_text(row)));
        }
    }
    Ok(())
}

/// Returns the rows of plain SQL in `SQLite`, with the oracle's functions registered.
///
/// # Errors
/// Returns `SQLite`'s error message.
pub fn plain_rows(db: &Path, sql: &str) -> Result<Vec<Vec<Json>>, String> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(db, flags).map_err(|e| e.to_string())?;
    oracle::register_functions(&connection);
    query_rows(&connection, sql).map_err(|e| format!("{sql}: {e}"))
}

/// Calls `work` for each item on four threads. Returns the errors in the order of the items.
pub fn run_in_parallel<T: Sync>(
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
                        if let Err(error) = work(item) {
                            failed.push((n, error));
                        }
                    }
                    failed
                })
            })
            .collect();
        workers.into_iter().flat_map(|w| w.join().unwrap()).collect()
    });
    failed.sort_by_key(|(n, _)| *n);
    failed.into_iter().map(|(_, error)| error).collect()
}
