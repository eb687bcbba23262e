//! Values of Python and Arrow as SQL values, each distinct one once.

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

use crate::errors::{Failed, input};

/// Some values: the distinct ones, and which of them stands in each place.
#[derive(Default)]
pub struct Values {
    pub distinct: Vec<Value>,
    /// A number a place; `None` for NULL.
    pub places: Vec<Option<u32>>,
}

/// Finds the number of a value among those seen before.
#[derive(Default)]
struct Seen {
    values: Values,
    texts: HashMap<String, u32>,
    numbers: HashMap<(bool, u64), u32>,
}

impl Seen {
    fn next(&mut self, value: Value) -> u32 {
        let number = u32::try_from(self.values.distinct.len()).unwrap_or(u32::MAX);
        self.values.distinct.push(value);
        number
    }

    fn maybe(&mut self, text: Option<&str>) {
        match text {
            Some(text) => self.text(text),
            None => self.null(),
        }
    }

    fn text(&mut self, text: &str) {
        let number = match self.texts.get(text) {
            Some(number) => *number,
            None => {
                let number = self.next(Value::Text(text.to_owned()));
                self.texts.insert(text.to_owned(), number);
                number
            }
        };
        self.values.places.push(Some(number));
    }

    fn number(&mut self, value: Value) {
        let key = match &value {
            Value::Integer(integer) => (true, integer.cast_unsigned()),
            Value::Real(real) => (false, real.to_bits()),
            Value::Null | Value::Text(_) => return self.null(),
        };
        let number = match self.numbers.get(&key) {
            Some(number) => *number,
            None => {
                let number = self.next(value);
                self.numbers.insert(key, number);
                number
            }
        };
        self.values.places.push(Some(number));
    }

    fn null(&mut self) {
        self.values.places.push(None);
    }

    fn value(&mut self, value: Value) {
        match value {
            Value::Null => self.null(),
            // What is no number is nothing, as in SQLite.
            Value::Real(real) if real.is_nan() => self.null(),
            Value::Text(text) => self.text(&text),
            number => self.number(number),
        }
    }
}

impl Values {
    /// Those of an Arrow array or stream, or of any iterable of Python's values.
    pub fn of(values: &Bound<'_, PyAny>) -> PyResult<Self> {
        let mut seen = Seen::default();
        if values.hasattr("__arrow_c_array__")? || values.hasattr("__arrow_c_stream__")? {
            let chunks: AnyArray = values.extract()?;
            for chunk in chunks.into_reader()? {
                let chunk = chunk.map_err(|e| input(format!("the values: {e}"), ""))?;
                values.py().detach(|| seen.array(&chunk))?;
            }
        } else {
            for (n, item) in values.try_iter()?.enumerate() {
                seen.value(value(&item?, &format!("value {n}"))?);
            }
        }
        Ok(seen.values)
    }
}

impl Seen {
    fn array(&mut self, array: &ArrayRef) -> Result<(), Failed> {
        let array = plain(array, "the values")?;
        match array.data_type() {
            DataType::Int64 => {
                let all = array.as_primitive::<Int64Type>();
                all.iter().for_each(|v| self.value(v.map_or(Value::Null, Value::Integer)));
            }
            DataType::Float64 => {
                let all = array.as_primitive::<Float64Type>();
                all.iter().for_each(|v| self.value(v.map_or(Value::Null, Value::Real)));
            }
            DataType::Utf8 => {
                for text in array.as_string::<i32>() {
                    self.maybe(text);
                }
            }
            DataType::LargeUtf8 => {
                for text in array.as_string::<i64>() {
                    self.maybe(text);
                }
            }
            DataType::Null => (0..array.len()).for_each(|_| self.null()),
            other => {
                return Err(input(
                    format!("the values are {other}, which cannot be sent to a model"),
                    "ask about text or numbers",
                ));
            }
        }
        Ok(())
    }
}

/// An array in one of the forms that SQL has: whole numbers, numbers, text, bytes or
/// NULLs. Dictionaries and runs are spelled out, dates and times become ISO 8601, those
/// with a zone in UTC.
///
/// # Errors
/// What has no such form, and what is not what it says: text that is not UTF-8, an
/// integer beyond 64 bits, a decimal that is no double.
pub fn plain(array: &ArrayRef, what: &str) -> Result<ArrayRef, Failed> {
    use DataType as D;
    // What comes over the C interface is believed by whoever reads it.
    array.to_data().validate_full().map_err(|e| input(format!("{what}: {e}"), NOT_WHOLE))?;
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
            return zoned(&cast(array, &utc, what)?, what);
        }
        D::Dictionary(_, inner) => return plain(&cast(array, inner, what)?, what),
        D::RunEndEncoded(_, inner) => return plain(&cast(array, inner.data_type(), what)?, what),
        D::Decimal32(..) | D::Decimal64(..) | D::Decimal128(..) | D::Decimal256(..) => {
            return decimal(array, what);
        }
        other => {
            let hint = "SQL has numbers, text, bytes, dates and times; convert it to one of them first";
            return Err(input(format!("{what}: {other} is not an SQL value"), hint));
        }
    };
    if matches!(array.data_type(), D::Date64) {
        return cast(&cast(array, &D::Date32, what)?, &D::Utf8, what);
    }
    cast(array, &to, what)
}

const NOT_WHOLE: &str = "this Arrow array violates the Arrow format; text must be UTF-8";

fn cast(array: &ArrayRef, to: &DataType, what: &str) -> Result<ArrayRef, Failed> {
    let strict = CastOptions { safe: false, ..CastOptions::default() };
    cast_with_options(array, to, &strict)
        .map_err(|e| input(format!("{what}: {e}"), "SQL has 64-bit integers, doubles and text"))
}

/// Instants as text in UTC: the same instant is the same text, whatever its zone.
fn zoned(array: &ArrayRef, what: &str) -> Result<ArrayRef, Failed> {
    let unit = match array.data_type() {
        DataType::Timestamp(unit, _) => *unit,
        _ => TimeUnit::Microsecond,
    };
    let local = cast(array, &DataType::Timestamp(unit, None), what)?;
    let text = cast(&local, &DataType::Utf8, what)?;
    let all = text.as_string::<i32>().iter().map(|t| t.map(|t| format!("{t}Z")));
    Ok(std::sync::Arc::new(all.collect::<arrow_array::StringArray>()))
}

/// Decimals as doubles, where these are the same numbers.
fn decimal(array: &ArrayRef, what: &str) -> Result<ArrayRef, Failed> {
    let real = cast(array, &DataType::Float64, what)?;
    let text = cast(array, &DataType::Utf8, what)?;
    let same = |real: f64, text: &str| {
        let digits = text.chars().filter(char::is_ascii_digit).collect::<String>();
        digits.trim_matches('0').len() <= 15 && text.parse() == Ok(real)
    };
    let pairs = real.as_primitive::<Float64Type>().iter().zip(text.as_string::<i32>());
    for (real, text) in pairs {
        if let (Some(real), Some(text)) = (real, text)
            && !same(real, text)
        {
            return Err(input(
                format!("{what}: {text} is not a double"),
                "SQLite has no decimals: convert it to text or to a scaled integer first",
            ));
        }
    }
    Ok(real)
}

/// A value of Python.
///
/// # Errors
/// What SQL has no value for; `what` says where it stands.
pub fn value(item: &Bound<'_, PyAny>, what: &str) -> PyResult<Value> {
    if item.is_none() {
        return Ok(Value::Null);
    }
    if let Ok(text) = item.cast::<PyString>() {
        let text = text.to_str().map_err(|_| {
            input(format!("{what} is text that is not UTF-8"), "replace its lone surrogates first")
        })?;
        return Ok(Value::Text(text.to_owned()));
    }
    if let Ok(truth) = item.cast::<PyBool>() {
        return Ok(Value::Integer(i64::from(truth.is_true())));
    }
    if item.is_instance_of::<PyInt>() {
        return integer(item, what);
    }
    if let Ok(real) = item.cast::<PyFloat>() {
        return Ok(if real.value().is_nan() { Value::Null } else { Value::Real(real.value()) });
    }
    let kind = item.get_type();
    let name = kind.name()?.to_string();
    // pandas' own NULLs.
    if matches!(name.as_str(), "NAType" | "NaTType") {
        return Ok(Value::Null);
    }
    if item.is_instance_of::<PyBytes>() {
        let hint = "decode them to text first";
        return Err(input(format!("{what} is bytes, which cannot be sent to a model"), hint).into());
    }
    let module = kind.module()?.to_string();
    if module == "numpy" && item.hasattr("item")? {
        let scalar = item.call_method0("item")?;
        if !scalar.get_type().is(&kind) {
            return value(&scalar, what);
        }
    }
    if matches!(name.as_str(), "datetime" | "Timestamp" | "date" | "time") {
        return instant(item, &name);
    }
    let message = format!("{what} is a {name}, which is not an SQL value");
    let hint = "SQL has numbers, text, dates and times; convert it to one of them first";
    Err(input(message, hint).into())
}

fn integer(item: &Bound<'_, PyAny>, what: &str) -> PyResult<Value> {
    let whole = item.extract::<i64>().map_err(|_| {
        input(format!("{what} is an integer beyond 64 bits"), "convert it to text or to a float first")
    })?;
    Ok(Value::Integer(whole))
}

/// A date or time as Arrow's would be: ISO 8601, with a zone in UTC.
fn instant(item: &Bound<'_, PyAny>, name: &str) -> PyResult<Value> {
    let py = item.py();
    if matches!(name, "date" | "time") || item.getattr("tzinfo")?.is_none() {
        return Ok(Value::Text(item.call_method0("isoformat")?.extract()?));
    }
    let utc = py.import("datetime")?.getattr("timezone")?.getattr("utc")?;
    let text: String =
        item.call_method1("astimezone", (utc,))?.call_method0("isoformat")?.extract()?;
    Ok(Value::Text(text.strip_suffix("+00:00").unwrap_or(&text).to_owned() + "Z"))
}
