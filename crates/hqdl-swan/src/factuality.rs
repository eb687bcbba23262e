//! Computes data factuality, which is the share of generated cells that are true.
//!
//! There are two counts:
//!
//! - *Generated cells only*: for each column, the share of correct values among the keys with a
//!   known true value. For columns with many values per key, F1 over all values.
//! - *SWAN's count*: the cells of the key count as correct for superhero, but not for the other
//!   databases. A true value that is NULL counts, but is never matched. For each key, a column with
//!   many values adds its F1 to the correct cells, but every true value to the total. Perfect data
//!   therefore scores less than 100 %.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;

use rusqlite::{Connection, OpenFlags};
use serde::Serialize;

use super::benchmark::{Benchmark, BenchmarkTruth};
use super::compare::{self, ComparedCell};
use hqdl_database::StoreError;
pub use hqdl_engine::truth::Share;
use hqdl_values::sql;

/// Factuality of the generated cells.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Factuality {
    /// SWAN's count.
    pub swan: Share,
    /// Count of the generated cells in columns with one value per key.
    pub cells: Share,
    /// Factuality of each column.
    pub columns: Vec<ColumnFacts>,
}

/// Factuality of a column.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ColumnFacts {
    /// Name of the published table.
    pub table: String,
    /// Name of the column.
    pub column: String,
    /// `cells`, or `f1` for a column with many values per key.
    pub measure: &'static str,
    /// Share of correct cells among those with a known true value. With many values per key, F1:
    /// twice the number of correct values, divided by the number of given values plus the number of
    /// true values.
    pub score: Share,
}

type FactualityKey = Vec<ComparedCell>;
/// Rows by key; a key may have several rows.
type KeyedRows = HashMap<FactualityKey, Vec<Vec<ComparedCell>>>;

/// Compares the published tables with the true values.
///
/// # Errors
/// [`StoreError`] if one of the databases cannot be read. The cells of an unpublished table or
/// column count as wrong.
pub fn compute_factuality(
    benchmark: &Benchmark,
    gold: &Path,
    expanded: &Path,
) -> Result<Factuality, StoreError> {
    let open = |path: &Path| {
        if !path.exists() {
            return Err(StoreError::Missing(path.to_owned()));
        }
        Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)
            .map_err(|e| StoreError::from_sqlite(path, &e))
    };
    let (truths, ours) = (open(gold)?, open(expanded)?);
    let mut found = Factuality::default();
    for truth in benchmark.truth {
        let expected = read_rows(&truths, truth.select, truth.key.len())
            .map_err(|e| StoreError::from_sqlite(gold, &e))?;
        let actual = read_published_values(&ours, truth)
            .map_err(|e| StoreError::from_sqlite(expanded, &e))?;
        match truth.many {
            None => score_single_values(benchmark, truth, &expected, &actual, &mut found),
            Some(_) => score_many_values(truth, &expected, &actual, &mut found),
        }
    }
    Ok(found)
}

/// Compares the columns with one value per key.
fn score_single_values(
    benchmark: &Benchmark,
    truth: &BenchmarkTruth,
    expected: &KeyedRows,
    actual: &KeyedRows,
    found: &mut Factuality,
) {
    for (at, name) in truth.columns.iter().enumerate() {
        let mut score = Share::default();
        for (key, rows) in expected {
            let value = |rows: &[Vec<ComparedCell>]| rows.first().and_then(|r| r.get(at)).cloned();
            let expected = value(rows).unwrap_or(ComparedCell::Null);
            let actual = actual.get(key).and_then(|r| value(r)).unwrap_or(ComparedCell::Null);
            let right = is_same_value(&actual, &expected);
            found.swan.add(right && expected != ComparedCell::Null);
            if expected != ComparedCell::Null {
                score.add(right);
            }
        }
        found.cells.correct += score.correct;
        found.cells.total += score.total;
        found.columns.push(ColumnFacts {
            table: truth.table.to_owned(),
            column: (*name).to_owned(),
            measure: "cells",
            score,
        });
    }
    if benchmark.counts_keys {
        let keys = (expected.len() * truth.key.len()) as u64;
        found.swan.correct += keys as f64;
        found.swan.total += keys;
    }
}

/// Compares a column with many values per key.
fn score_many_values(
    truth: &BenchmarkTruth,
    expected: &KeyedRows,
    actual: &KeyedRows,
    found: &mut Factuality,
) {
    let mut score = Share::default();
    let none = Vec::new();
    let values = |rows: &[Vec<ComparedCell>]| -> BTreeSet<ComparedCell> {
        rows.iter()
            .filter_map(|r| r.first())
            .filter(|c| **c != ComparedCell::Null)
            .cloned()
            .collect()
    };
    for (key, rows) in expected {
        let expected = values(rows);
        let actual = values(actual.get(key).unwrap_or(&none));
        let both = expected.intersection(&actual).count() as f64;
        let all = (expected.len() + actual.len()) as u64;
        score.correct += 2.0 * both;
        score.total += all;
        if all > 0 {
            found.swan.correct += 2.0 * both / all as f64;
        }
        found.swan.total += expected.len() as u64;
    }
    found.columns.push(ColumnFacts {
        table: truth.table.to_owned(),
        column: truth.columns.first().copied().unwrap_or_default().to_owned(),
        measure: "f1",
        score,
    });
}

/// Returns true if a generated value equals the true one. Numbers are compared as numbers, whatever
/// type they are stored as.
fn is_same_value(actual: &ComparedCell, expected: &ComparedCell) -> bool {
    if actual == expected {
        return true;
    }
    let number = |cell: &ComparedCell| match cell {
        ComparedCell::Text(text) => text.trim().parse::<f64>().ok(),
        other => other.as_number(),
    };
    // Two texts are different even if they format the same number.
    let texts = matches!((actual, expected), (ComparedCell::Text(_), ComparedCell::Text(_)));
    !texts && number(actual).is_some() && number(actual) == number(expected)
}

/// Returns the published values of the columns; a missing column is NULL.
fn read_published_values(
    connection: &Connection,
    truth: &BenchmarkTruth,
) -> rusqlite::Result<KeyedRows> {
    let mut columns = connection.prepare("SELECT name FROM pragma_table_info(?1)")?;
    let present: Vec<String> =
        columns.query_map([truth.table], |r| r.get(0))?.collect::<rusqlite::Result<_>>()?;
    let has = |name: &str| present.iter().any(|t| t.eq_ignore_ascii_case(name));
    if !truth.key.iter().all(|k| has(k)) {
        return Ok(KeyedRows::new());
    }
    let column = |name: &&str| if has(name) { sql::quote_name(name) } else { "NULL".to_owned() };
    let names: Vec<String> = truth.key.iter().chain(truth.columns).map(column).collect();
    let select = format!("SELECT {} FROM {}", names.join(", "), sql::quote_name(truth.table));
    read_rows(connection, &select, truth.key.len())
}

fn read_rows(connection: &Connection, select: &str, key: usize) -> rusqlite::Result<KeyedRows> {
    let mut statement = connection.prepare(select)?;
    let width = statement.column_count();
    let mut rows = statement.query([])?;
    let mut table = KeyedRows::new();
    while let Some(row) = rows.next()? {
        let mut cells = (0..width)
            .map(|at| Ok(ComparedCell::from_json(&compare::to_json(row.get_ref(at)?))))
            .collect::<rusqlite::Result<Vec<ComparedCell>>>()?;
        let values = cells.split_off(key);
        table.entry(cells).or_default().push(values);
    }
    Ok(table)
}
