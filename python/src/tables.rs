//! Loads tables from Arrow streams, or from rows of Python values, into a `SQLite` database that a
//! query can read.

use std::path::Path;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int64Type};
use arrow_array::{Array, ArrayRef, RecordBatchReader};
use arrow_schema::DataType;
use hqdl::sql::quote_name;
use hqdl::value::Value;
use pyo3::prelude::*;
use pyo3_arrow::input::AnyRecordBatch;
use rusqlite::types::ToSqlOutput;
use rusqlite::{Connection, ToSql};

use crate::errors::{Failed, wrong_input};
use crate::values::{read_value, to_sql_array};

/// Number of rows of Python values per transaction.
const ROWS_PER_TRANSACTION: usize = 10_000;

fn table_error(table: &str) -> impl Fn(rusqlite::Error) -> Failed + '_ {
    move |error| {
        wrong_input(
            format!("the table `{table}`: {}", hqdl::database::describe_sqlite_error(&error)),
            "",
        )
    }
}

fn open_database(path: &Path, table: &str) -> Result<Connection, Failed> {
    let db = Connection::open(path).map_err(table_error(table))?;
    // The database is temporary, so it does not have to survive a crash.
    db.execute_batch("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF")
        .map_err(table_error(table))?;
    Ok(db)
}

/// Creates the table and returns the INSERT statement for its rows.
fn create_table(
    db: &Connection,
    table: &str,
    columns: &[(String, &str)],
) -> Result<String, Failed> {
    if columns.is_empty() {
        return Err(wrong_input(format!("the table `{table}` has no columns"), ""));
    }
    let named: Vec<String> =
        columns.iter().map(|(c, t)| format!("{} {t}", quote_name(c))).collect();
    let sql = format!("CREATE TABLE {} ({})", quote_name(table), named.join(", "));
    db.execute_batch(&sql).map_err(table_error(table))?;
    let marks = vec!["?"; columns.len()].join(", ");
    Ok(format!("INSERT INTO {} VALUES ({marks})", quote_name(table)))
}

/// Item of an array, as an SQL parameter.
struct ArrayItem<'a>(&'a ArrayRef, usize);

impl ToSql for ArrayItem<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        use rusqlite::types::ValueRef as V;
        let ArrayItem(array, index) = *self;
        if array.is_null(index) {
            return Ok(ToSqlOutput::Borrowed(V::Null));
        }
        Ok(ToSqlOutput::Borrowed(match array.data_type() {
            DataType::Int64 => V::Integer(array.as_primitive::<Int64Type>().value(index)),
            DataType::Float64 => V::Real(array.as_primitive::<Float64Type>().value(index)),
            DataType::Utf8 => V::Text(array.as_string::<i32>().value(index).as_bytes()),
            DataType::LargeUtf8 => V::Text(array.as_string::<i64>().value(index).as_bytes()),
            DataType::Binary => V::Blob(array.as_binary::<i32>().value(index)),
            DataType::LargeBinary => V::Blob(array.as_binary::<i64>().value(index)),
            _ => V::Null,
        }))
    }
}

/// Returns the declared SQL type of a column.
fn declared_type(data_type: &DataType) -> &'static str {
    match data_type {
        DataType::Boolean => "BOOLEAN",
        k if k.is_integer() => "INTEGER",
        k if k.is_floating() => "REAL",
        DataType::Decimal32(..)
        | DataType::Decimal64(..)
        | DataType::Decimal128(..)
        | DataType::Decimal256(..) => "REAL",
        DataType::Binary
        | DataType::LargeBinary
        | DataType::BinaryView
        | DataType::FixedSizeBinary(_) => "BLOB",
        DataType::Dictionary(_, inner) => declared_type(inner),
        DataType::RunEndEncoded(_, inner) => declared_type(inner.data_type()),
        DataType::Null => "",
        _ => "TEXT",
    }
}

/// Writes the record batches of an Arrow stream into a table.
fn write_arrow(
    path: &Path,
    table: &str,
    reader: Box<dyn RecordBatchReader + Send>,
) -> Result<(), Failed> {
    let mut db = open_database(path, table)?;
    let schema = reader.schema();
    let columns: Vec<(String, &str)> =
        schema.fields().iter().map(|f| (f.name().clone(), declared_type(f.data_type()))).collect();
    let insert = create_table(&db, table, &columns)?;
    let transaction = db.transaction().map_err(table_error(table))?;
    {
        let mut statement = transaction.prepare(&insert).map_err(table_error(table))?;
        for batch in reader {
            let batch = batch.map_err(|e| wrong_input(format!("the table `{table}`: {e}"), ""))?;
            let mut arrays = Vec::with_capacity(columns.len());
            for (array, (column, _)) in batch.columns().iter().zip(&columns) {
                arrays.push(to_sql_array(array, &format!("the column `{column}` of `{table}`"))?);
            }
            for row in 0..batch.num_rows() {
                let values = arrays.iter().map(|array| ArrayItem(array, row));
                statement
                    .execute(rusqlite::params_from_iter(values))
                    .map_err(table_error(table))?;
            }
        }
    }
    transaction.commit().map_err(table_error(table))
}

/// Writes an Arrow table into the database at `path`. Accepts any object with Arrow's C stream.
#[pyfunction]
pub fn load(
    py: Python<'_>,
    path: std::path::PathBuf,
    table: String,
    data: AnyRecordBatch,
) -> PyResult<()> {
    let reader = data.into_reader()?;
    Ok(py.detach(|| write_arrow(&path, &table, reader))?)
}

/// Writes rows of Python values into the database at `path`. The columns have no declared type.
#[pyfunction]
pub fn load_rows(
    py: Python<'_>,
    path: std::path::PathBuf,
    table: String,
    columns: Vec<String>,
    rows: Bound<'_, PyAny>,
) -> PyResult<()> {
    let mut db = open_database(&path, &table)?;
    let untyped: Vec<(String, &str)> = columns.iter().map(|c| (c.clone(), "")).collect();
    let insert = create_table(&db, &table, &untyped)?;
    let mut pending: Vec<Vec<Value>> = Vec::new();
    let mut write = |pending: &mut Vec<Vec<Value>>| -> Result<(), Failed> {
        let transaction = db.transaction().map_err(table_error(&table))?;
        let mut statement = transaction.prepare(&insert).map_err(table_error(&table))?;
        for row in pending.drain(..) {
            statement.execute(rusqlite::params_from_iter(row)).map_err(table_error(&table))?;
        }
        drop(statement);
        transaction.commit().map_err(table_error(&table))
    };
    for (n, row) in rows.try_iter()?.enumerate() {
        let mut values = Vec::with_capacity(columns.len());
        for (position, item) in row?.try_iter()?.enumerate() {
            let column = columns.get(position).map_or("?", String::as_str);
            values.push(read_value(&item?, &format!("`{table}.{column}`, row {n},"))?);
        }
        if values.len() != columns.len() {
            let message = format!("row {n} of `{table}` has {} values", values.len());
            let hint = format!("its columns are: {}", columns.join(", "));
            return Err(wrong_input(message, hint).into());
        }
        pending.push(values);
        if pending.len() >= ROWS_PER_TRANSACTION {
            py.detach(|| write(&mut pending))?;
        }
    }
    Ok(py.detach(|| write(&mut pending))?)
}
