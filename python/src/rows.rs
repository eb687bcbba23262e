//! Collects the rows of a query into an Arrow table. A column has the common type of its values.

use std::sync::Arc;

use arrow_array::builder::{
    Float64Builder, Int64Builder, LargeBinaryBuilder, LargeStringBuilder, NullBuilder,
};
use arrow_array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow_schema::{Field, Schema};
use hqdl::query::RowSink;
use rusqlite::types::{Value, ValueRef};

use crate::errors::{Failed, wrong_input};

/// Integer up to which a double represents every integer exactly.
const MAX_EXACT_INTEGER: u64 = 1 << 53;

/// Rows of a query, stored by column.
#[derive(Default)]
pub struct ColumnBuffer {
    pub names: Vec<String>,
    pub columns: Vec<Column>,
    pub count: usize,
}

/// Values of a column, in the narrowest type that can store them all.
pub enum Column {
    Nulls(usize),
    Integers(Int64Builder),
    Reals(Float64Builder),
    Texts(LargeStringBuilder),
    Blobs(LargeBinaryBuilder),
    /// Values of several types.
    Mixed(Vec<Value>),
}

impl RowSink for ColumnBuffer {
    fn write_columns(&mut self, names: &[String]) -> std::io::Result<()> {
        self.names = names.to_vec();
        self.columns = names.iter().map(|_| Column::Nulls(0)).collect();
        self.count = 0;
        Ok(())
    }

    fn write_row(&mut self, row: &[ValueRef<'_>]) -> std::io::Result<()> {
        self.columns.iter_mut().zip(row).for_each(|(column, value)| column.push(*value));
        self.count += 1;
        Ok(())
    }

    fn finish(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Column {
    fn push(&mut self, value: ValueRef<'_>) {
        match (&mut *self, value) {
            (Self::Nulls(n), ValueRef::Null) => *n += 1,
            (Self::Nulls(n), value) => {
                let mut typed = Self::with_type_of(value);
                (0..*n).for_each(|_| typed.push(ValueRef::Null));
                typed.push(value);
                *self = typed;
            }
            (Self::Integers(all), ValueRef::Null) => all.append_null(),
            (Self::Integers(all), ValueRef::Integer(integer)) => all.append_value(integer),
            (Self::Reals(all), ValueRef::Null) => all.append_null(),
            (Self::Reals(all), ValueRef::Real(real)) => all.append_value(real),
            (Self::Texts(all), ValueRef::Null) => all.append_null(),
            (Self::Texts(all), ValueRef::Text(bytes)) if str::from_utf8(bytes).is_ok() => {
                all.append_value(str::from_utf8(bytes).unwrap_or_default());
            }
            (Self::Blobs(all), ValueRef::Null) => all.append_null(),
            (Self::Blobs(all), ValueRef::Blob(bytes)) => all.append_value(bytes),
            (Self::Mixed(all), value) => all.push(to_owned_value(value)),
            (_, value) => {
                let mut all = self.to_values();
                all.push(to_owned_value(value));
                *self = Self::Mixed(all);
            }
        }
    }

    /// Returns an empty column of a value's type.
    fn with_type_of(value: ValueRef<'_>) -> Self {
        match value {
            ValueRef::Null => Self::Nulls(0),
            ValueRef::Integer(_) => Self::Integers(Int64Builder::new()),
            ValueRef::Real(_) => Self::Reals(Float64Builder::new()),
            ValueRef::Text(_) => Self::Texts(LargeStringBuilder::new()),
            ValueRef::Blob(_) => Self::Blobs(LargeBinaryBuilder::new()),
        }
    }

    /// Returns the values as SQL values.
    fn to_values(&self) -> Vec<Value> {
        match self {
            Self::Nulls(n) => vec![Value::Null; *n],
            Self::Integers(all) => {
                let all = all.finish_cloned();
                all.iter().map(|v| v.map_or(Value::Null, Value::Integer)).collect()
            }
            Self::Reals(all) => {
                let all = all.finish_cloned();
                all.iter().map(|v| v.map_or(Value::Null, Value::Real)).collect()
            }
            Self::Texts(all) => {
                let all = all.finish_cloned();
                all.iter().map(|v| v.map_or(Value::Null, |t| Value::Text(t.to_owned()))).collect()
            }
            Self::Blobs(all) => {
                let all = all.finish_cloned();
                all.iter().map(|v| v.map_or(Value::Null, |b| Value::Blob(b.to_vec()))).collect()
            }
            Self::Mixed(all) => all.clone(),
        }
    }

    /// Returns the column as an Arrow array and leaves it empty.
    fn finish_array(&mut self, name: &str) -> Result<ArrayRef, Failed> {
        Ok(match self {
            Self::Nulls(n) => {
                let mut nulls = NullBuilder::new();
                nulls.append_nulls(*n);
                Arc::new(nulls.finish())
            }
            Self::Integers(all) => Arc::new(all.finish()),
            Self::Reals(all) => Arc::new(all.finish()),
            Self::Texts(all) => Arc::new(all.finish()),
            Self::Blobs(all) => Arc::new(all.finish()),
            Self::Mixed(all) => to_double_array(all).ok_or_else(|| mixed_types_error(name, all))?,
        })
    }
}

/// Returns integers and reals as doubles; `None` if a value is not a number, or has no exact
/// double.
fn to_double_array(all: &[Value]) -> Option<ArrayRef> {
    let mut reals = Float64Builder::with_capacity(all.len());
    for value in all {
        match value {
            Value::Null => reals.append_null(),
            Value::Integer(integer) if integer.unsigned_abs() <= MAX_EXACT_INTEGER => {
                reals.append_value(*integer as f64);
            }
            Value::Real(real) => reals.append_value(*real),
            Value::Integer(_) | Value::Text(_) | Value::Blob(_) => return None,
        }
    }
    Some(Arc::new(reals.finish()))
}

fn mixed_types_error(column: &str, all: &[Value]) -> Failed {
    let mut types: Vec<&str> = Vec::new();
    for value in all {
        let name = match value {
            Value::Null => continue,
            Value::Integer(_) => "integers",
            Value::Real(_) => "reals",
            Value::Text(_) => "text",
            Value::Blob(_) => "bytes",
        };
        if !types.contains(&name) {
            types.push(name);
        }
    }
    wrong_input(
        format!(
            "the column `{column}` contains {}, but an Arrow column has one type",
            types.join(", ")
        ),
        "CAST it in the query, or read the unchanged values from `.rows`",
    )
}

/// Returns an owned value; text that is not UTF-8 becomes a BLOB.
fn to_owned_value(value: ValueRef<'_>) -> Value {
    match value {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(integer) => Value::Integer(integer),
        ValueRef::Real(real) => Value::Real(real),
        ValueRef::Text(bytes) => match str::from_utf8(bytes) {
            Ok(text) => Value::Text(text.to_owned()),
            Err(_) => Value::Blob(bytes.to_vec()),
        },
        ValueRef::Blob(bytes) => Value::Blob(bytes.to_vec()),
    }
}

/// All rows of a query.
pub enum CollectedRows {
    /// An Arrow table.
    Table(RecordBatch),
    /// The values of each column, and the reason why they cannot form an Arrow table.
    Values(Vec<Vec<Value>>, Failed),
}

impl ColumnBuffer {
    /// Returns the rows as an Arrow table if every column has one type, otherwise as values.
    pub fn into_rows(mut self) -> Result<CollectedRows, Failed> {
        let mut arrays = Vec::with_capacity(self.columns.len());
        if let Some(at) = (0..self.columns.len()).find(
            |at| matches!(&self.columns[*at], Column::Mixed(all) if to_double_array(all).is_none()),
        ) {
            let values = self.columns.iter().map(Column::to_values).collect();
            let error = self.columns[at].finish_array(&self.names[at]).err();
            let error = error.unwrap_or_else(|| wrong_input("a column of several types", ""));
            return Ok(CollectedRows::Values(values, error));
        }
        for (name, column) in self.names.iter().zip(&mut self.columns) {
            arrays.push(column.finish_array(name)?);
        }
        let field =
            |(name, array): (&String, &ArrayRef)| Field::new(name, array.data_type().clone(), true);
        let schema = Schema::new(self.names.iter().zip(&arrays).map(field).collect::<Vec<_>>());
        let options = RecordBatchOptions::new().with_row_count(Some(self.count));
        RecordBatch::try_new_with_options(Arc::new(schema), arrays, &options)
            .map(CollectedRows::Table)
            .map_err(|e| wrong_input(e.to_string(), ""))
    }
}
