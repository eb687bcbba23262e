//! The rows of a query as Python has them.

use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int64Type};
use arrow_array::{Array, ArrayRef};
use arrow_schema::DataType;
use hqdl::failure::Failure;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};
use pyo3_arrow::PyTable;
use rusqlite::types::Value;

use crate::errors::Failed;
use crate::rows::Told;

/// Rows: an Arrow table, or values that make none.
#[pyclass(frozen)]
pub struct Table {
    names: Vec<String>,
    rows: usize,
    content: Content,
}

enum Content {
    Batch(arrow_array::RecordBatch),
    /// By column, and why they are no table.
    Values(Vec<Vec<Value>>, Failure),
}

impl Table {
    pub fn of(names: Vec<String>, rows: usize, told: Told) -> Self {
        let content = match told {
            Told::Table(batch) => Content::Batch(batch),
            Told::Values(values, Failed(why, _)) => Content::Values(values, why),
        };
        Self { names, rows, content }
    }
}

#[pymethods]
impl Table {
    /// Names of the columns; two may have the same.
    #[getter]
    fn columns(&self) -> Vec<String> {
        self.names.clone()
    }

    fn __len__(&self) -> usize {
        self.rows
    }

    /// The rows from one on, so many, as tuples.
    fn rows<'py>(&self, py: Python<'py>, from: usize, most: usize) -> PyResult<Bound<'py, PyList>> {
        let to = from.saturating_add(most).min(self.rows);
        let row = |at: usize| -> PyResult<Bound<'py, PyTuple>> {
            let values: Vec<Bound<'py, PyAny>> = match &self.content {
                Content::Batch(batch) => {
                    batch.columns().iter().map(|c| at_place(py, c, at)).collect::<PyResult<_>>()?
                }
                Content::Values(columns, _) => {
                    columns.iter().map(|c| object(py, &c[at])).collect::<PyResult<_>>()?
                }
            };
            PyTuple::new(py, values)
        };
        PyList::new(py, (from.min(to)..to).map(row).collect::<PyResult<Vec<_>>>()?)
    }

    /// The Arrow table, which has the C stream.
    fn table(&self) -> PyResult<PyTable> {
        match &self.content {
            Content::Batch(batch) => PyTable::try_new(vec![batch.clone()], batch.schema()),
            Content::Values(_, why) => Err(Failed(why.clone(), None).into()),
        }
    }
}

/// A place of an array.
fn at_place<'py>(py: Python<'py>, array: &ArrayRef, at: usize) -> PyResult<Bound<'py, PyAny>> {
    if array.is_null(at) {
        return Ok(py.None().into_bound(py));
    }
    object(
        py,
        &match array.data_type() {
            DataType::Int64 => Value::Integer(array.as_primitive::<Int64Type>().value(at)),
            DataType::Float64 => Value::Real(array.as_primitive::<Float64Type>().value(at)),
            DataType::LargeUtf8 => Value::Text(array.as_string::<i64>().value(at).to_owned()),
            DataType::LargeBinary => Value::Blob(array.as_binary::<i64>().value(at).to_owned()),
            _ => Value::Null,
        },
    )
}

fn object<'py>(py: Python<'py>, value: &Value) -> PyResult<Bound<'py, PyAny>> {
    Ok(match value {
        Value::Null => py.None().into_bound(py),
        Value::Integer(integer) => integer.into_pyobject(py)?.into_any(),
        Value::Real(real) => real.into_pyobject(py)?.into_any(),
        Value::Text(text) => text.into_pyobject(py)?.into_any(),
        Value::Blob(bytes) => PyBytes::new(py, bytes).into_any(),
    })
}
