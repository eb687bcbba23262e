//! Plain tables in: Arrow streams, or rows of Python's values, written into a `SQLite`
//! database that a query can read.

use std::path::Path;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int64Type};
use arrow_array::{Array, ArrayRef, RecordBatchReader};
use arrow_schema::DataType;
use hqdl::sql::name as quoted;
use hqdl::value::Value;
use pyo3::prelude::*;
use pyo3_arrow::input::AnyRecordBatch;
use rusqlite::types::ToSqlOutput;
use rusqlite::{Connection, ToSql};

use crate::errors::{Failed, input};
use crate::values::{plain, value};

/// Rows of Python's values that are written at once.
const TOGETHER: usize = 10_000;

fn failed(table: &str) -> impl Fn(rusqlite::Error) -> Failed + '_ {
    move |error| input(format!("the table `{table}`: {}", hqdl::database::message(&error)), "")
}

fn open(path: &Path, table: &str) -> Result<Connection, Failed> {
    let db = Connection::open(path).map_err(failed(table))?;
    // Nobody needs it when this process is gone.
    db.execute_batch("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF")
        .map_err(failed(table))?;
    Ok(db)
}

fn create(db: &Connection, table: &str, columns: &[(String, &str)]) -> Result<String, Failed> {
    if columns.is_empty() {
        return Err(input(format!("the table `{table}` has no columns"), ""));
    }
    let named: Vec<String> = columns.iter().map(|(c, t)| format!("{} {t}", quoted(c))).collect();
    let sql = format!("CREATE TABLE {} ({})", quoted(table), named.join(", "));
    db.execute_batch(&sql).map_err(failed(table))?;
    let marks = vec!["?"; columns.len()].join(", ");
    Ok(format!("INSERT INTO {} VALUES ({marks})", quoted(table)))
}

/// A place of an array as `SQLite` takes it.
struct At<'a>(&'a ArrayRef, usize);

impl ToSql for At<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        use rusqlite::types::ValueRef as V;
        let At(array, at) = *self;
        if array.is_null(at) {
            return Ok(ToSqlOutput::Borrowed(V::Null));
        }
        Ok(ToSqlOutput::Borrowed(match array.data_type() {
            DataType::Int64 => V::Integer(array.as_primitive::<Int64Type>().value(at)),
            DataType::Float64 => V::Real(array.as_primitive::<Float64Type>().value(at)),
            DataType::Utf8 => V::Text(array.as_string::<i32>().value(at).as_bytes()),
            DataType::LargeUtf8 => V::Text(array.as_string::<i64>().value(at).as_bytes()),
            DataType::Binary => V::Blob(array.as_binary::<i32>().value(at)),
            DataType::LargeBinary => V::Blob(array.as_binary::<i64>().value(at)),
            _ => V::Null,
        }))
    }
}

/// The type that a column is declared with.
fn declared(kind: &DataType) -> &'static str {
    match kind {
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
        DataType::Dictionary(_, inner) => declared(inner),
        DataType::RunEndEncoded(_, inner) => declared(inner.data_type()),
        DataType::Null => "",
        _ => "TEXT",
    }
}

/// Writes an Arrow table.
fn write_arrow(
    path: &Path,
    table: &str,
    reader: Box<dyn RecordBatchReader + Send>,
) -> Result<(), Failed> {
    let mut db = open(path, table)?;
    let schema = reader.schema();
    let columns: Vec<(String, &str)> =
        schema.fields().iter().map(|f| (f.name().clone(), declared(f.data_type()))).collect();
    let insert = create(&db, table, &columns)?;
    let transaction = db.transaction().map_err(failed(table))?;
    {
        let mut statement = transaction.prepare(&insert).map_err(failed(table))?;
        for batch in reader {
            let batch = batch.map_err(|e| input(format!("the table `{table}`: {e}"), ""))?;
            let mut arrays = Vec::with_capacity(columns.len());
            for (array, (column, _)) in batch.columns().iter().zip(&columns) {
                arrays.push(plain(array, &format!("the column `{column}` of `{table}`"))?);
            }
            for row in 0..batch.num_rows() {
                let values = arrays.iter().map(|array| At(array, row));
                statement.execute(rusqlite::params_from_iter(values)).map_err(failed(table))?;
            }
        }
    }
    transaction.commit().map_err(failed(table))
}

/// Writes a table into the database at a path: anything with Arrow's C stream.
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

/// The same of rows of Python's values, whose columns have no declared type.
#[pyfunction]
pub fn load_rows(
    py: Python<'_>,
    path: std::path::PathBuf,
    table: String,
    columns: Vec<String>,
    rows: Bound<'_, PyAny>,
) -> PyResult<()> {
    let mut db = open(&path, &table)?;
    let named: Vec<(String, &str)> = columns.iter().map(|c| (c.clone(), "")).collect();
    let insert = create(&db, &table, &named)?;
    let mut some: Vec<Vec<Value>> = Vec::new();
    let mut write = |some: &mut Vec<Vec<Value>>| -> Result<(), Failed> {
        let transaction = db.transaction().map_err(failed(&table))?;
        let mut statement = transaction.prepare(&insert).map_err(failed(&table))?;
        for row in some.drain(..) {
            statement.execute(rusqlite::params_from_iter(row)).map_err(failed(&table))?;
        }
        drop(statement);
        transaction.commit().map_err(failed(&table))
    };
    for (n, row) in rows.try_iter()?.enumerate() {
        let mut values = Vec::with_capacity(columns.len());
        for (at, item) in row?.try_iter()?.enumerate() {
            let column = columns.get(at).map_or("?", String::as_str);
            values.push(value(&item?, &format!("`{table}.{column}`, row {n},"))?);
        }
        if values.len() != columns.len() {
            let message = format!("row {n} of `{table}` has {} values", values.len());
            let hint = format!("its columns are: {}", columns.join(", "));
            return Err(input(message, hint).into());
        }
        some.push(values);
        if some.len() >= TOGETHER {
            py.detach(|| write(&mut some))?;
        }
    }
    Ok(py.detach(|| write(&mut some))?)
}
