//! Data factuality: how many of the generated cells are true.
//!
//! Two counts stand beside each other. *Generated cells only*: for each column,
//! of the keys whose truth is known, those whose value is it; of columns with
//! many values a key, F1 over all of them. *SWAN's*: the cells of the key are
//! counted as right, too, for superhero and not for the others; a true value that
//! is NULL is counted and never right; a column with many values adds one F1 a key
//! to what is right, but each true value to the total. So true data scores less
//! than 100 %.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;

use rusqlite::{Connection, OpenFlags};
use serde::Serialize;

use super::benchmark::{Benchmark, BenchmarkTruth};
use super::compare::{self, ComparedCell};
use crate::database::StoreError;
use crate::sql;
pub use crate::truth::Share;

/// How true the cells are.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Factuality {
    /// By SWAN's count.
    pub swan: Share,
    /// Generated cells only, of columns with one value a key.
    pub cells: Share,
    /// Column by column.
    pub columns: Vec<ColumnFacts>,
}

/// How true a column is.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ColumnFacts {
    /// The published table.
    pub table: String,
    /// The column.
    pub column: String,
    /// `cells`, or `f1` of a column with many values a key.
    pub measure: &'static str,
    /// Cells that are right, of those whose truth is known; of many values a
    /// key, those given that are true, twice, of all given and all true.
    pub score: Share,
}

type FactualityKey = Vec<ComparedCell>;
/// Rows by key; a key may come in several.
type KeyedRows = HashMap<FactualityKey, Vec<Vec<ComparedCell>>>;

/// Compares the published tables with the truth.
///
/// # Errors
/// [`StoreError`] when one of the databases cannot be read. A table or column
/// that was never published is none: its cells are wrong.
pub fn factuality(
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
        let wanted = read(&truths, truth.select, truth.key.len())
            .map_err(|e| StoreError::from_sqlite(gold, &e))?;
        let given = published(&ours, truth).map_err(|e| StoreError::from_sqlite(expanded, &e))?;
        match truth.many {
            None => single(benchmark, truth, &wanted, &given, &mut found),
            Some(_) => many(truth, &wanted, &given, &mut found),
        }
    }
    Ok(found)
}

/// Columns with one value a key.
fn single(
    benchmark: &Benchmark,
    truth: &BenchmarkTruth,
    wanted: &KeyedRows,
    given: &KeyedRows,
    found: &mut Factuality,
) {
    for (at, name) in truth.columns.iter().enumerate() {
        let mut score = Share::default();
        for (key, rows) in wanted {
            let value = |rows: &[Vec<ComparedCell>]| rows.first().and_then(|r| r.get(at)).cloned();
            let wanted = value(rows).unwrap_or(ComparedCell::Null);
            let given = given.get(key).and_then(|r| value(r)).unwrap_or(ComparedCell::Null);
            let right = same(&given, &wanted);
            found.swan.add(right && wanted != ComparedCell::Null);
            if wanted != ComparedCell::Null {
                score.add(right);
            }
        }
        found.cells.right += score.right;
        found.cells.of += score.of;
        found.columns.push(ColumnFacts {
            table: truth.table.to_owned(),
            column: (*name).to_owned(),
            measure: "cells",
            score,
        });
    }
    if benchmark.counts_keys {
        let keys = (wanted.len() * truth.key.len()) as u64;
        found.swan.right += keys as f64;
        found.swan.of += keys;
    }
}

/// A column with many values a key.
fn many(truth: &BenchmarkTruth, wanted: &KeyedRows, given: &KeyedRows, found: &mut Factuality) {
    let mut score = Share::default();
    let none = Vec::new();
    let values = |rows: &[Vec<ComparedCell>]| -> BTreeSet<ComparedCell> {
        rows.iter()
            .filter_map(|r| r.first())
            .filter(|c| **c != ComparedCell::Null)
            .cloned()
            .collect()
    };
    for (key, rows) in wanted {
        let wanted = values(rows);
        let given = values(given.get(key).unwrap_or(&none));
        let both = wanted.intersection(&given).count() as f64;
        let all = (wanted.len() + given.len()) as u64;
        score.right += 2.0 * both;
        score.of += all;
        if all > 0 {
            found.swan.right += 2.0 * both / all as f64;
        }
        found.swan.of += wanted.len() as u64;
    }
    found.columns.push(ColumnFacts {
        table: truth.table.to_owned(),
        column: truth.columns.first().copied().unwrap_or_default().to_owned(),
        measure: "f1",
        score,
    });
}

/// Whether a generated value is the true one; numbers as numbers, whatever type
/// they are kept as.
fn same(given: &ComparedCell, wanted: &ComparedCell) -> bool {
    if given == wanted {
        return true;
    }
    let number = |cell: &ComparedCell| match cell {
        ComparedCell::Text(text) => text.trim().parse::<f64>().ok(),
        other => other.number(),
    };
    // Two texts that spell one number differently are two texts.
    let texts = matches!((given, wanted), (ComparedCell::Text(_), ComparedCell::Text(_)));
    !texts && number(given).is_some() && number(given) == number(wanted)
}

/// The published values of a truth's columns; a column that is not there is NULL.
fn published(connection: &Connection, truth: &BenchmarkTruth) -> rusqlite::Result<KeyedRows> {
    let mut columns = connection.prepare("SELECT name FROM pragma_table_info(?1)")?;
    let there: Vec<String> =
        columns.query_map([truth.table], |r| r.get(0))?.collect::<rusqlite::Result<_>>()?;
    let has = |name: &str| there.iter().any(|t| t.eq_ignore_ascii_case(name));
    if !truth.key.iter().all(|k| has(k)) {
        return Ok(KeyedRows::new());
    }
    let column = |name: &&str| if has(name) { sql::name(name) } else { "NULL".to_owned() };
    let names: Vec<String> = truth.key.iter().chain(truth.columns).map(column).collect();
    let select = format!("SELECT {} FROM {}", names.join(", "), sql::name(truth.table));
    read(connection, &select, truth.key.len())
}

fn read(connection: &Connection, select: &str, key: usize) -> rusqlite::Result<KeyedRows> {
    let mut statement = connection.prepare(select)?;
    let width = statement.column_count();
    let mut rows = statement.query([])?;
    let mut table = KeyedRows::new();
    while let Some(row) = rows.next()? {
        let mut cells = (0..width)
            .map(|at| Ok(ComparedCell::of(&compare::to_json(row.get_ref(at)?))))
            .collect::<rusqlite::Result<Vec<ComparedCell>>>()?;
        let values = cells.split_off(key);
        table.entry(cells).or_default().push(values);
    }
    Ok(table)
}
