//! Writes downloads as Parquet files. A column of a file has one type, so all rows are read before
//! the first one is written.

use std::io::Write;

use rusqlite::params_from_iter;
use rusqlite::types::{Value as SqlValue, ValueRef};

use super::record_cell::RecordValue;
use super::row_source::{RowSource, ViewColumn};
use super::view::BoundSql;
use crate::database::Database;
use crate::database::parquet_file::{ColumnType, ParquetWriter, StorageClasses};
use crate::failure::Failure;

/// Writes the rows of a view.
///
/// # Errors
/// Returns a [`Failure`] if the database or the writer fails.
pub(super) fn write_table(
    database: &Database,
    sql: &BoundSql,
    (source, columns): (&RowSource, &[ViewColumn]),
    out: &mut (dyn Write + Send),
) -> Result<(), Failure> {
    let mut classes = vec![StorageClasses::default(); columns.len()];
    for_each_value(database, sql, (source, columns), &mut |n, value| {
        if let RecordValue::List(_) = value {
            classes[n].add_list();
        } else {
            classes[n].add(to_plain_value(value));
        }
        Ok(())
    })?;
    let declare = |column: &ViewColumn| column.kind.map_or(ColumnType::Text, ColumnType::from_kind);
    let typed: Vec<(String, ColumnType)> = columns
        .iter()
        .zip(&classes)
        .map(|(column, classes)| (column.name.clone(), classes.column_type(declare(column))))
        .collect();
    let mut writer = ParquetWriter::new(out, &typed, Vec::new()).map_err(to_write_failure)?;
    for_each_value(database, sql, (source, columns), &mut |n, value| {
        if let RecordValue::List(items) = value {
            let texts = items.iter().map(|item| item.to_text().unwrap_or_default().into_owned());
            writer.push_list(n, texts);
        } else {
            writer.push_value(n, to_plain_value(value));
        }
        if n + 1 < columns.len() { Ok(()) } else { writer.end_row().map_err(to_write_failure) }
    })?;
    writer.finish().map(drop).map_err(to_write_failure)
}

/// Visits all values of the rows, with the position of their column.
fn for_each_value(
    database: &Database,
    sql: &BoundSql,
    (source, columns): (&RowSource, &[ViewColumn]),
    visit: &mut dyn FnMut(usize, &RecordValue<'_>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let stored = |e: rusqlite::Error| Failure::from(database.to_store_error(&e));
    let all: Vec<&ViewColumn> = columns.iter().collect();
    let mut statement = database.connection().prepare(&sql.sql).map_err(stored)?;
    let mut rows = statement.query(params_from_iter(&sql.params)).map_err(stored)?;
    while let Some(row) = rows.next().map_err(stored)? {
        let cells = source.read_cells(row, &all).map_err(stored)?;
        for (n, cell) in cells.into_iter().enumerate() {
            visit(n, &cell.map_or(RecordValue::Null, |cell| cell.value))?;
        }
    }
    Ok(())
}

/// Returns the value as `SQLite` stores it; NULL for a list.
fn to_plain_value<'v>(value: &'v RecordValue<'_>) -> ValueRef<'v> {
    match value {
        RecordValue::Null | RecordValue::List(_) => ValueRef::Null,
        RecordValue::Integer(n) => ValueRef::Integer(*n),
        RecordValue::Real(r) => ValueRef::Real(*r),
        RecordValue::Text(text) => ValueRef::Text(text.as_bytes()),
    }
}

/// Returns a file with the rows of a query's result.
///
/// # Errors
/// Returns an error if a column's values cannot be written.
pub(super) fn write_result(names: &[String], rows: &[Vec<SqlValue>]) -> std::io::Result<Vec<u8>> {
    let mut classes = vec![StorageClasses::default(); names.len()];
    for row in rows {
        row.iter().zip(&mut classes).for_each(|(value, classes)| classes.add(value.into()));
    }
    let types = classes.iter().map(|classes| classes.column_type(ColumnType::Text));
    let columns: Vec<(String, ColumnType)> = names.iter().cloned().zip(types).collect();
    let mut writer =
        ParquetWriter::new(Vec::new(), &columns, Vec::new()).map_err(std::io::Error::other)?;
    for row in rows {
        row.iter().enumerate().for_each(|(n, value)| writer.push_value(n, value.into()));
        writer.end_row().map_err(std::io::Error::other)?;
    }
    writer.finish().map_err(std::io::Error::other)
}

fn to_write_failure(error: impl std::fmt::Display) -> Failure {
    Failure::wrong_input(error.to_string(), "start the download again")
}
