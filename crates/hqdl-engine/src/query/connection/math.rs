//! `SQLite`'s math functions, which the bundled build lacks. As documented, they return NULL for
//! NULL, for values that are not numeric and for undefined results. `ceil`, `floor` and `trunc`
//! return integers unchanged.

use rusqlite::Connection;
use rusqlite::functions::{Context, FunctionFlags};
use rusqlite::types::{Value, ValueRef};

/// A function of one number.
type UnaryFunction = (&'static str, fn(f64) -> f64);
/// A function of two numbers.
type BinaryFunction = (&'static str, fn(f64, f64) -> f64);

const ROUNDING: [UnaryFunction; 4] =
    [("ceil", f64::ceil), ("ceiling", f64::ceil), ("floor", f64::floor), ("trunc", f64::trunc)];

const UNARY: [UnaryFunction; 20] = [
    ("acos", f64::acos),
    ("acosh", f64::acosh),
    ("asin", f64::asin),
    ("asinh", f64::asinh),
    ("atan", f64::atan),
    ("atanh", f64::atanh),
    ("cos", f64::cos),
    ("cosh", f64::cosh),
    ("degrees", |x| x * (180.0 / std::f64::consts::PI)),
    ("exp", f64::exp),
    ("ln", |x| compute_log(x, f64::ln)),
    ("log", |x| compute_log(x, f64::log10)),
    ("log10", |x| compute_log(x, f64::log10)),
    ("log2", |x| compute_log(x, f64::log2)),
    ("radians", |x| x * (std::f64::consts::PI / 180.0)),
    ("sin", f64::sin),
    ("sinh", f64::sinh),
    ("sqrt", f64::sqrt),
    ("tan", f64::tan),
    ("tanh", f64::tanh),
];

const BINARY: [BinaryFunction; 5] = [
    ("atan2", f64::atan2),
    ("log", |base, x| {
        let base = compute_log(base, f64::ln);
        if base > 0.0 { compute_log(x, f64::ln) / base } else { f64::NAN }
    }),
    ("mod", |x, y| x % y),
    ("pow", f64::powf),
    ("power", f64::powf),
];

/// Returns a logarithm. The logarithm of 0 is undefined (NaN) instead of infinite.
fn compute_log(x: f64, log: fn(f64) -> f64) -> f64 {
    if x > 0.0 { log(x) } else { f64::NAN }
}

/// Registers the math functions with a connection.
///
/// # Errors
/// Fails if `SQLite` rejects a registration.
pub fn register_math_functions(connection: &Connection) -> rusqlite::Result<()> {
    // Mark the functions as innocuous, so that views and indexes of the database may use them.
    let flags = FunctionFlags::SQLITE_UTF8
        | FunctionFlags::SQLITE_DETERMINISTIC
        | FunctionFlags::SQLITE_INNOCUOUS;
    for (name, function) in ROUNDING {
        connection.create_scalar_function(name, 1, flags, move |context: &Context<'_>| {
            Ok(match parse_number(context.get_raw(0)) {
                Some(SqlNumber::Integer(i)) => Value::Integer(i),
                Some(SqlNumber::Real(r)) => to_real_or_null(function(r)),
                None => Value::Null,
            })
        })?;
    }
    for (name, function) in UNARY {
        connection.create_scalar_function(name, 1, flags, move |context: &Context<'_>| {
            Ok(parse_number(context.get_raw(0))
                .map_or(Value::Null, |x| to_real_or_null(function(x.as_f64()))))
        })?;
    }
    for (name, function) in BINARY {
        connection.create_scalar_function(name, 2, flags, move |context: &Context<'_>| {
            let (x, y) = (parse_number(context.get_raw(0)), parse_number(context.get_raw(1)));
            Ok(match (x, y) {
                (Some(x), Some(y)) => to_real_or_null(function(x.as_f64(), y.as_f64())),
                _ => Value::Null,
            })
        })?;
    }
    connection.create_scalar_function("pi", 0, flags, |_: &Context<'_>| Ok(std::f64::consts::PI))
}

/// A number in `SQLite`.
#[derive(Clone, Copy)]
enum SqlNumber {
    Integer(i64),
    Real(f64),
}

impl SqlNumber {
    fn as_f64(self) -> f64 {
        match self {
            Self::Integer(i) => i as f64,
            Self::Real(r) => r,
        }
    }
}

/// Returns a REAL value, or NULL for NaN, as `SQLite` does.
fn to_real_or_null(r: f64) -> Value {
    if r.is_nan() { Value::Null } else { Value::Real(r) }
}

/// Returns the value of a number, or of a text that consists entirely of a number.
fn parse_number(value: ValueRef<'_>) -> Option<SqlNumber> {
    match value {
        ValueRef::Integer(i) => Some(SqlNumber::Integer(i)),
        ValueRef::Real(r) => Some(SqlNumber::Real(r)),
        ValueRef::Text(bytes) => {
            let is_blank = |c: char| matches!(c, ' ' | '\t' | '\n' | '\u{b}' | '\u{c}' | '\r');
            let text = std::str::from_utf8(bytes).ok()?.trim_matches(is_blank);
            // Rust also parses `inf` and `nan`; `SQLite` does not.
            let is_decimal = text.contains(|c: char| c.is_ascii_digit())
                && text.chars().all(|c| c.is_ascii_digit() || "+-.eE".contains(c));
            match text.parse() {
                Ok(i) if is_decimal => Some(SqlNumber::Integer(i)),
                _ if is_decimal => text.parse().ok().map(SqlNumber::Real),
                _ => None,
            }
        }
        ValueRef::Null | ValueRef::Blob(_) => None,
    }
}
