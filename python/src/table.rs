//! Python class for the rows of a query.

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
use crate::rows::CollectedRows;

/// Rows of a query: an Arrow table, or values of mixed types.
#[pyclass(frozen)]
pub struct Table {
    names: Vec<String>,
    row_count: usize,
    content: Content,
}

enum Content {
    Batch(arrow_array::RecordBatch),
    /// The values of each column, and the reason why they cannot form an Arrow table.
    Values(Vec<Vec<Value>>, Failure),
}

impl Table {
    pub fn new(names: Vec<String>, row_count: usize, rows: CollectedRows) -> Self {
        let content = match rows {
            CollectedRows::Table(batch) => Content::Batch(batch),
            CollectedRows::Values(values, Failed(reason, _)) => Content::Values(values, reason),
        };
        Self { names, row_count, content }
    }
}

#[pymethods]
impl Table {
    /// Names of the columns, not necessarily unique.
    #[getter]
    fn columns(&self) -> Vec<String> {
        self.names.clone()
    }

    fn __len__(&self) -> usize {
        self.row_count
    }

    /// Returns up to `max` rows as tuples, starting at row `start`.
    fn rows<'py>(&self, py: Python<'py>, start: usize, max: usize) -> PyResult<Bound<'py, PyList>> {
        let end = start.saturating_add(max).min(self.row_count);
        let row = |index: usize| -> PyResult<Bound<'py, PyTuple>> {
            let values: Vec<Bound<'py, PyAny>> = match &self.content {
                Content::Batch(batch) => batch
                    .columns()
                    .iter()
                    .map(|c| array_item(py, c, index))
                    .collect::<PyResult<_>>()?,
                Content::Values(columns, _) => {
                    columns.iter().map(|c| to_object(py, &c[index])).collect::<PyResult<_>>()?
                }
            };
            PyTuple::new(py, values)
        };
        PyList::new(py, (start.min(end)..end).map(row).collect::<PyResult<Vec<_>>>()?)
    }

    /// Returns the rows as an Arrow table, which Python reads through Arrow's C stream.
    fn table(&self) -> PyResult<PyTable> {
        match &self.content {
            Content::Batch(batch) => PyTable::try_new(vec![batch.clone()], batch.schema()),
            Content::Values(_, reason) => Err(Failed(reason.clone(), None).into()),
        }
    }
}

/// Returns an item of an array as a Python object.
fn array_item<'py>(py: Python<'py>, array: &ArrayRef, index: usize) -> PyResult<Bound<'py, PyAny>> {
    if array.is_null(index) {
        return Ok(py.None().into_bound(py));
    }
    to_object(
        py,
        &match array.data_type() {
            DataType::Int64 => Value::Integer(array.as_primitive::<Int64Type>().value(index)),
            DataType::Float64 => Value::Real(array.as_primitive::<Float64Type>().value(index)),
            DataType::LargeUtf8 => Value::Text(array.as_string::<i64>().value(index).to_owned()),
            DataType::LargeBinary => Value::Blob(array.as_binary::<i64>().value(index).to_owned()),
            _ => Value::Null,
        },
    )
}

fn to_object<'py>(py: Python<'py>, value: &Value) -> PyResult<Bound<'py, PyAny>> {
    Ok(match value {
        Value::Null => py.None().into_bound(py),
        Value::Integer(integer) => integer.into_pyobject(py)?.into_any(),
        Value::Real(real) => real.into_pyobject(py)?.into_any(),
        Value::Text(text) => text.into_pyobject(py)?.into_any(),
        Value::Blob(bytes) => PyBytes::new(py, bytes).into_any(),
    })
}
