//! Converts Python values and Arrow arrays to SQL values without duplicates.

use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int64Type};
use arrow_array::{Array, ArrayRef};
use arrow_cast::{CastOptions, cast_with_options};
use arrow_schema::{DataType, TimeUnit};
use foldhash::HashMap;
use hqdl::value::Value;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyFloat, PyInt, PyString};
use pyo3_arrow::input::AnyArray;

use crate::errors::{Failed, wrong_input};

/// The distinct values of some input values, and the index of each input's value among them.
#[derive(Default)]
pub struct DistinctValues {
    pub values: Vec<Value>,
    /// Index into `values` per input value; `None` for NULL.
    pub indices: Vec<Option<u32>>,
}

/// Collects values and removes duplicates.
#[derive(Default)]
struct Deduplicator {
    result: DistinctValues,
    texts: HashMap<String, u32>,
    /// Index of each number, keyed by whether it is an integer and by its bits.
    numbers: HashMap<(bool, u64), u32>,
}

impl Deduplicator {
    fn insert(&mut self, value: Value) -> u32 {
        let index = u32::try_from(self.result.values.len()).unwrap_or(u32::MAX);
        self.result.values.push(value);
        index
    }

    fn add_optional_text(&mut self, text: Option<&str>) {
        match text {
            Some(text) => self.add_text(text),
            None => self.add_null(),
        }
    }

    fn add_text(&mut self, text: &str) {
        let index = match self.texts.get(text) {
            Some(index) => *index,
            None => {
                let index = self.insert(Value::Text(text.to_owned()));
                self.texts.insert(text.to_owned(), index);
                index
            }
        };
        self.result.indices.push(Some(index));
    }

    fn add_number(&mut self, value: Value) {
        let key = match &value {
            Value::Integer(integer) => (true, integer.cast_unsigned()),
            Value::Real(real) => (false, real.to_bits()),
            Value::Null | Value::Text(_) => return self.add_null(),
        };
        let index = match self.numbers.get(&key) {
            Some(index) => *index,
            None => {
                let index = self.insert(value);
                self.numbers.insert(key, index);
                index
            }
        };
        self.result.indices.push(Some(index));
    }

    fn add_null(&mut self) {
        self.result.indices.push(None);
    }

    fn add_value(&mut self, value: Value) {
        match value {
            Value::Null => self.add_null(),
            // NaN is NULL, as in SQLite.
            Value::Real(real) if real.is_nan() => self.add_null(),
            Value::Text(text) => self.add_text(&text),
            number => self.add_number(number),
        }
    }
}

impl DistinctValues {
    /// Reads an Arrow array or stream, or any iterable of Python values.
    pub fn read(values: &Bound<'_, PyAny>) -> PyResult<Self> {
        let mut deduplicator = Deduplicator::default();
        if values.hasattr("__arrow_c_array__")? || values.hasattr("__arrow_c_stream__")? {
            let chunks: AnyArray = values.extract()?;
            for chunk in chunks.into_reader()? {
                let chunk = chunk.map_err(|e| wrong_input(format!("the values: {e}"), ""))?;
                values.py().detach(|| deduplicator.add_array(&chunk))?;
            }
        } else {
            for (n, item) in values.try_iter()?.enumerate() {
                deduplicator.add_value(read_value(&item?, &format!("value {n}"))?);
            }
        }
        Ok(deduplicator.result)
    }
}

impl Deduplicator {
    fn add_array(&mut self, array: &ArrayRef) -> Result<(), Failed> {
        let array = to_sql_array(array, "the values")?;
        match array.data_type() {
            DataType::Int64 => {
                let all = array.as_primitive::<Int64Type>();
                all.iter().for_each(|v| self.add_value(v.map_or(Value::Null, Value::Integer)));
            }
            DataType::Float64 => {
                let all = array.as_primitive::<Float64Type>();
                all.iter().for_each(|v| self.add_value(v.map_or(Value::Null, Value::Real)));
            }
            DataType::Utf8 => {
                for text in array.as_string::<i32>() {
                    self.add_optional_text(text);
                }
            }
            DataType::LargeUtf8 => {
                for text in array.as_string::<i64>() {
                    self.add_optional_text(text);
                }
            }
            DataType::Null => (0..array.len()).for_each(|_| self.add_null()),
            other => {
                return Err(wrong_input(
                    format!("the values are {other}, which cannot be sent to a model"),
                    "ask about text or numbers",
                ));
            }
        }
        Ok(())
    }
}

/// Converts an array to an SQL type: integers, doubles, text, bytes or NULLs. Dictionaries and
/// run-end encoded arrays are expanded. Dates and times become ISO 8601 text, in UTC if they have a
/// time zone. Errors refer to the array as `label`.
///
/// # Errors
/// Fails if the type has no equivalent in SQL, or if a value cannot be represented: text that is
/// not UTF-8, an integer beyond 64 bits, or a decimal that is not exactly a double.
pub fn to_sql_array(array: &ArrayRef, label: &str) -> Result<ArrayRef, Failed> {
    use DataType as D;
    // Arrow's C interface does not validate arrays.
    array
        .to_data()
        .validate_full()
        .map_err(|e| wrong_input(format!("{label}: {e}"), INVALID_ARRAY_HINT))?;
    let to = match array.data_type() {
        D::Int64 | D::Float64 | D::Utf8 | D::LargeUtf8 | D::Null | D::Binary | D::LargeBinary => {
            return Ok(array.clone());
        }
        D::Boolean
        | D::Int8
        | D::Int16
        | D::Int32
        | D::UInt8
        | D::UInt16
        | D::UInt32
        | D::UInt64 => D::Int64,
        D::Float16 | D::Float32 => D::Float64,
        D::Utf8View => D::LargeUtf8,
        D::BinaryView | D::FixedSizeBinary(_) => D::LargeBinary,
        D::Date32 | D::Date64 | D::Time32(_) | D::Time64(_) | D::Timestamp(_, None) => D::Utf8,
        D::Timestamp(unit, Some(_)) => {
            let utc = D::Timestamp(*unit, Some("+00:00".into()));
            return to_utc_text(&cast(array, &utc, label)?, label);
        }
        D::Dictionary(_, inner) => return to_sql_array(&cast(array, inner, label)?, label),
        D::RunEndEncoded(_, inner) => {
            return to_sql_array(&cast(array, inner.data_type(), label)?, label);
        }
        D::Decimal32(..) | D::Decimal64(..) | D::Decimal128(..) | D::Decimal256(..) => {
            return decimals_to_doubles(array, label);
        }
        other => {
            let hint =
                "SQL has numbers, text, bytes, dates and times; convert it to one of them first";
            return Err(wrong_input(format!("{label}: {other} is not an SQL value"), hint));
        }
    };
    if matches!(array.data_type(), D::Date64) {
        return cast(&cast(array, &D::Date32, label)?, &D::Utf8, label);
    }
    cast(array, &to, label)
}

const INVALID_ARRAY_HINT: &str = "this Arrow array violates the Arrow format; text must be UTF-8";

fn cast(array: &ArrayRef, to: &DataType, label: &str) -> Result<ArrayRef, Failed> {
    let strict = CastOptions { safe: false, ..CastOptions::default() };
    cast_with_options(array, to, &strict).map_err(|e| {
        wrong_input(format!("{label}: {e}"), "SQL has 64-bit integers, doubles and text")
    })
}

/// Converts instants to text in UTC, so that equal instants of different time zones are equal text.
fn to_utc_text(array: &ArrayRef, label: &str) -> Result<ArrayRef, Failed> {
    let unit = match array.data_type() {
        DataType::Timestamp(unit, _) => *unit,
        _ => TimeUnit::Microsecond,
    };
    let local = cast(array, &DataType::Timestamp(unit, None), label)?;
    let text = cast(&local, &DataType::Utf8, label)?;
    let all = text.as_string::<i32>().iter().map(|t| t.map(|t| format!("{t}Z")));
    Ok(std::sync::Arc::new(all.collect::<arrow_array::StringArray>()))
}

/// Converts decimals to doubles. Fails if a decimal is not exactly a double.
fn decimals_to_doubles(array: &ArrayRef, label: &str) -> Result<ArrayRef, Failed> {
    let real = cast(array, &DataType::Float64, label)?;
    let text = cast(array, &DataType::Utf8, label)?;
    let is_exact = |real: f64, text: &str| {
        let digits = text.chars().filter(char::is_ascii_digit).collect::<String>();
        digits.trim_matches('0').len() <= 15 && text.parse() == Ok(real)
    };
    let pairs = real.as_primitive::<Float64Type>().iter().zip(text.as_string::<i32>());
    for (real, text) in pairs {
        if let (Some(real), Some(text)) = (real, text)
            && !is_exact(real, text)
        {
            return Err(wrong_input(
                format!("{label}: {text} is not a double"),
                "SQLite has no decimals: convert it to text or to a scaled integer first",
            ));
        }
    }
    Ok(real)
}

/// Converts a Python value to an SQL value. Errors refer to the value as `label`.
///
/// # Errors
/// Fails if the value has no equivalent in SQL.
pub fn read_value(item: &Bound<'_, PyAny>, label: &str) -> PyResult<Value> {
    if item.is_none() {
        return Ok(Value::Null);
    }
    if let Ok(text) = item.cast::<PyString>() {
        let text = text.to_str().map_err(|_| {
            wrong_input(
                format!("{label} is text that is not UTF-8"),
                "replace its lone surrogates first",
            )
        })?;
        return Ok(Value::Text(text.to_owned()));
    }
    if let Ok(boolean) = item.cast::<PyBool>() {
        return Ok(Value::Integer(i64::from(boolean.is_true())));
    }
    if item.is_instance_of::<PyInt>() {
        return read_integer(item, label);
    }
    if let Ok(real) = item.cast::<PyFloat>() {
        return Ok(if real.value().is_nan() { Value::Null } else { Value::Real(real.value()) });
    }
    let python_type = item.get_type();
    let name = python_type.name()?.to_string();
    // These are the NULL values of pandas.
    if matches!(name.as_str(), "NAType" | "NaTType") {
        return Ok(Value::Null);
    }
    if item.is_instance_of::<PyBytes>() {
        let hint = "decode them to text first";
        return Err(wrong_input(
            format!("{label} is bytes, which cannot be sent to a model"),
            hint,
        )
        .into());
    }
    let module = python_type.module()?.to_string();
    if module == "numpy" && item.hasattr("item")? {
        let scalar = item.call_method0("item")?;
        if !scalar.get_type().is(&python_type) {
            return read_value(&scalar, label);
        }
    }
    if matches!(name.as_str(), "datetime" | "Timestamp" | "date" | "time") {
        return read_time(item, &name);
    }
    let message = format!("{label} is a {name}, which is not an SQL value");
    let hint = "SQL has numbers, text, dates and times; convert it to one of them first";
    Err(wrong_input(message, hint).into())
}

fn read_integer(item: &Bound<'_, PyAny>, label: &str) -> PyResult<Value> {
    let integer = item.extract::<i64>().map_err(|_| {
        wrong_input(
            format!("{label} is an integer beyond 64 bits"),
            "convert it to text or to a float first",
        )
    })?;
    Ok(Value::Integer(integer))
}

/// Converts a date or time to ISO 8601 text, in UTC if it has a time zone, as for Arrow arrays.
fn read_time(item: &Bound<'_, PyAny>, name: &str) -> PyResult<Value> {
    let py = item.py();
    if matches!(name, "date" | "time") || item.getattr("tzinfo")?.is_none() {
        return Ok(Value::Text(item.call_method0("isoformat")?.extract()?));
    }
    let utc = py.import("datetime")?.getattr("timezone")?.getattr("utc")?;
    let text: String =
        item.call_method1("astimezone", (utc,))?.call_method0("isoformat")?.extract()?;
    Ok(Value::Text(text.strip_suffix("+00:00").unwrap_or(&text).to_owned() + "Z"))
}
