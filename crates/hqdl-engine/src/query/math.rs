//! `SQLite`'s math functions, which the bundled build lacks, as documented: NULL for NULL, for
//! values that are not numeric and for undefined results. `ceil`, `floor` and `trunc` return
//! integers unchanged.

use rusqlite::Connection;
use rusqlite::functions::{Context, FunctionFlags};
use rusqlite::types::{Value, ValueRef};

/// A function of one number.
type One = (&'static str, fn(f64) -> f64);
/// A function of two numbers.
type Two = (&'static str, fn(f64, f64) -> f64);

const ROUNDING: [One; 4] =
    [("ceil", f64::ceil), ("ceiling", f64::ceil), ("floor", f64::floor), ("trunc", f64::trunc)];

const ONE: [One; 20] = [
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
    ("ln", |x| of_positive(x, f64::ln)),
    ("log", |x| of_positive(x, f64::log10)),
    ("log10", |x| of_positive(x, f64::log10)),
    ("log2", |x| of_positive(x, f64::log2)),
    ("radians", |x| x * (std::f64::consts::PI / 180.0)),
    ("sin", f64::sin),
    ("sinh", f64::sinh),
    ("sqrt", f64::sqrt),
    ("tan", f64::tan),
    ("tanh", f64::tanh),
];

const TWO: [Two; 5] = [
    ("atan2", f64::atan2),
    ("log", |base, x| {
        let base = of_positive(base, f64::ln);
        if base > 0.0 { of_positive(x, f64::ln) / base } else { f64::NAN }
    }),
    ("mod", |x, y| x % y),
    ("pow", f64::powf),
    ("power", f64::powf),
];

/// Returns a logarithm. That of 0 is undefined here instead of infinite.
fn of_positive(x: f64, log: fn(f64) -> f64) -> f64 {
    if x > 0.0 { log(x) } else { f64::NAN }
}

/// Registers the math functions with a connection.
///
/// # Errors
/// Those of `SQLite`.
pub fn register(connection: &Connection) -> rusqlite::Result<()> {
    // Innocuous: views and indexes of the database may use them.
    let flags = FunctionFlags::SQLITE_UTF8
        | FunctionFlags::SQLITE_DETERMINISTIC
        | FunctionFlags::SQLITE_INNOCUOUS;
    for (name, function) in ROUNDING {
        connection.create_scalar_function(name, 1, flags, move |context: &Context<'_>| {
            Ok(match numeric(context.get_raw(0)) {
                Some(Number::Integer(i)) => Value::Integer(i),
                Some(Number::Real(r)) => real(function(r)),
                None => Value::Null,
            })
        })?;
    }
    for (name, function) in ONE {
        connection.create_scalar_function(name, 1, flags, move |context: &Context<'_>| {
            Ok(numeric(context.get_raw(0)).map_or(Value::Null, |x| real(function(x.real()))))
        })?;
    }
    for (name, function) in TWO {
        connection.create_scalar_function(name, 2, flags, move |context: &Context<'_>| {
            let (x, y) = (numeric(context.get_raw(0)), numeric(context.get_raw(1)));
            Ok(match (x, y) {
                (Some(x), Some(y)) => real(function(x.real(), y.real())),
                _ => Value::Null,
            })
        })?;
    }
    connection.create_scalar_function("pi", 0, flags, |_: &Context<'_>| Ok(std::f64::consts::PI))
}

/// A number in `SQLite`.
#[derive(Clone, Copy)]
enum Number {
    Integer(i64),
    Real(f64),
}

impl Number {
    fn real(self) -> f64 {
        match self {
            Self::Integer(i) => i as f64,
            Self::Real(r) => r,
        }
    }
}

/// `SQLite` represents NaN as NULL.
fn real(r: f64) -> Value {
    if r.is_nan() { Value::Null } else { Value::Real(r) }
}

/// Returns the number that a value is, or that its whole text represents.
fn numeric(value: ValueRef<'_>) -> Option<Number> {
    match value {
        ValueRef::Integer(i) => Some(Number::Integer(i)),
        ValueRef::Real(r) => Some(Number::Real(r)),
        ValueRef::Text(bytes) => {
            let blank = |c: char| matches!(c, ' ' | '\t' | '\n' | '\u{b}' | '\u{c}' | '\r');
            let text = std::str::from_utf8(bytes).ok()?.trim_matches(blank);
            // Rust also parses `inf` and `nan`; `SQLite` does not.
            let spelled = text.contains(|c: char| c.is_ascii_digit())
                && text.chars().all(|c| c.is_ascii_digit() || "+-.eE".contains(c));
            match text.parse() {
                Ok(i) if spelled => Some(Number::Integer(i)),
                _ if spelled => text.parse().ok().map(Number::Real),
                _ => None,
            }
        }
        ValueRef::Null | ValueRef::Blob(_) => None,
    }
}
