//! The rows of a query as an Arrow table: a column is of the type that all its values
//! have.

use std::sync::Arc;

use arrow_array::builder::{
    Float64Builder, Int64Builder, LargeBinaryBuilder, LargeStringBuilder, NullBuilder,
};
use arrow_array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow_schema::{Field, Schema};
use hqdl::query::Sink;
use rusqlite::types::{Value, ValueRef};

use crate::errors::{Failed, input};

/// The greatest whole number up to which every one is a double.
const EXACT: u64 = 1 << 53;

/// Rows, column by column, as they come.
#[derive(Default)]
pub struct Rows {
    pub names: Vec<String>,
    pub columns: Vec<Column>,
    pub count: usize,
}

/// The values of a column, in the narrowest form that holds them all.
pub enum Column {
    Nulls(usize),
    Integers(Int64Builder),
    Reals(Float64Builder),
    Texts(LargeStringBuilder),
    Blobs(LargeBinaryBuilder),
    /// Of several types.
    Mixed(Vec<Value>),
}

impl Sink for Rows {
    fn columns(&mut self, names: &[String]) -> std::io::Result<()> {
        self.names = names.to_vec();
        self.columns = names.iter().map(|_| Column::Nulls(0)).collect();
        self.count = 0;
        Ok(())
    }

    fn row(&mut self, row: &[ValueRef<'_>]) -> std::io::Result<()> {
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
                let mut typed = Self::like(value);
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
            (Self::Mixed(all), value) => all.push(owned(value)),
            (_, value) => {
                let mut all = self.values();
                all.push(owned(value));
                *self = Self::Mixed(all);
            }
        }
    }

    /// A column of such values, without any.
    fn like(value: ValueRef<'_>) -> Self {
        match value {
            ValueRef::Null => Self::Nulls(0),
            ValueRef::Integer(_) => Self::Integers(Int64Builder::new()),
            ValueRef::Real(_) => Self::Reals(Float64Builder::new()),
            ValueRef::Text(_) => Self::Texts(LargeStringBuilder::new()),
            ValueRef::Blob(_) => Self::Blobs(LargeBinaryBuilder::new()),
        }
    }

    /// Its values, one by one.
    fn values(&self) -> Vec<Value> {
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

    /// The column as Arrow has it.
    fn array(&mut self, name: &str) -> Result<ArrayRef, Failed> {
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
            Self::Mixed(all) => numbers(all).ok_or_else(|| mixed(name, all))?,
        })
    }
}

/// Numbers of both kinds as doubles, where these are the same numbers.
fn numbers(all: &[Value]) -> Option<ArrayRef> {
    let mut reals = Float64Builder::with_capacity(all.len());
    for value in all {
        match value {
            Value::Null => reals.append_null(),
            Value::Integer(integer) if integer.unsigned_abs() <= EXACT => {
                reals.append_value(*integer as f64);
            }
            Value::Real(real) => reals.append_value(*real),
            Value::Integer(_) | Value::Text(_) | Value::Blob(_) => return None,
        }
    }
    Some(Arc::new(reals.finish()))
}

fn mixed(name: &str, all: &[Value]) -> Failed {
    let mut kinds: Vec<&str> = Vec::new();
    for value in all {
        let kind = match value {
            Value::Null => continue,
            Value::Integer(_) => "integers",
            Value::Real(_) => "reals",
            Value::Text(_) => "text",
            Value::Blob(_) => "bytes",
        };
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    input(
        format!("the column `{name}` contains {}, but an Arrow column has one type", kinds.join(", ")),
        "CAST it in the query, or read the unchanged values from `.rows`",
    )
}

/// A value of its own; text that is not UTF-8 keeps its bytes.
fn owned(value: ValueRef<'_>) -> Value {
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

/// Rows that can be told as an Arrow table, or only one by one.
pub enum Told {
    Table(RecordBatch),
    /// The values of each column, and why they are no table.
    Values(Vec<Vec<Value>>, Failed),
}

impl Rows {
    /// The table, or the values that make none.
    pub fn told(mut self) -> Result<Told, Failed> {
        let mut arrays = Vec::with_capacity(self.columns.len());
        if let Some(at) = (0..self.columns.len())
            .find(|at| matches!(&self.columns[*at], Column::Mixed(all) if numbers(all).is_none()))
        {
            let values = self.columns.iter().map(Column::values).collect();
            let why = self.columns[at].array(&self.names[at]).err();
            let why = why.unwrap_or_else(|| input("a column of several types", ""));
            return Ok(Told::Values(values, why));
        }
        for (name, column) in self.names.iter().zip(&mut self.columns) {
            arrays.push(column.array(name)?);
        }
        let field =
            |(name, array): (&String, &ArrayRef)| Field::new(name, array.data_type().clone(), true);
        let schema = Schema::new(self.names.iter().zip(&arrays).map(field).collect::<Vec<_>>());
        let options = RecordBatchOptions::new().with_row_count(Some(self.count));
        RecordBatch::try_new_with_options(Arc::new(schema), arrays, &options)
            .map(Told::Table)
            .map_err(|e| input(e.to_string(), ""))
    }
}
