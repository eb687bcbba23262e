//! `PostgreSQL`'s numeric functions that `SQLite` lacks, and its variance and standard deviation
//! aggregates.

use rusqlite::Connection;
use rusqlite::functions::{Aggregate, Context};
use rusqlite::types::{Value as Sql, ValueRef};

use super::{FLAGS, function_error, parse_integer_argument, register_strict_function, to_text};

/// Registers the functions on a connection.
///
/// # Errors
/// Returns [`rusqlite::Error`] if `SQLite` rejects a registration.
pub(super) fn register(connection: &Connection) -> rusqlite::Result<()> {
    let make = |name: &str, count: i32, run| register_strict_function(connection, name, count, run);
    make("suql_cbrt", 1, |v| Ok(Sql::Real(to_float(v[0])?.cbrt())))?;
    make("suql_div", 2, |v| match (v[0], v[1]) {
        (_, ValueRef::Integer(0)) => Err(function_error("division by zero".to_owned())),
        (ValueRef::Integer(a), ValueRef::Integer(b)) => a
            .checked_div(b)
            .map(Sql::Integer)
            .ok_or_else(|| function_error("out of range".to_owned())),
        _ => Ok(Sql::Real((to_float(v[0])? / to_float(v[1])?).trunc())),
    })?;
    make("suql_mod", 2, |v| match (v[0], v[1]) {
        (_, ValueRef::Integer(0)) => Err(function_error("division by zero".to_owned())),
        (ValueRef::Integer(a), ValueRef::Integer(b)) => Ok(Sql::Integer(a.wrapping_rem(b))),
        _ => Ok(Sql::Real(to_float(v[0])? % to_float(v[1])?)),
    })?;
    // `PostgreSQL` rounds binary floating-point numbers half to even.
    make("suql_even", 1, |v| Ok(Sql::Real(to_float(v[0])?.round_ties_even() + 0.0)))?;
    make("suql_round", 2, |v| {
        let places = parse_integer_argument(v[1])?.clamp(-400, 400) as i32;
        Ok(Sql::Real(round_numeric(to_float(v[0])?, places)))
    })?;
    make("suql_gcd", 2, |v| {
        to_signed(gcd(
            parse_integer_argument(v[0])?.unsigned_abs(),
            parse_integer_argument(v[1])?.unsigned_abs(),
        ))
    })?;
    make("suql_lcm", 2, |v| {
        let [a, b] = [
            parse_integer_argument(v[0])?.unsigned_abs(),
            parse_integer_argument(v[1])?.unsigned_abs(),
        ];
        let lcm = a.checked_div(gcd(a, b)).unwrap_or(0).checked_mul(b);
        to_signed(lcm.ok_or_else(|| function_error("out of range".to_owned()))?)
    })?;
    make("suql_cut", 2, |v| {
        let (of, digits) = (to_float(v[0])?, parse_integer_argument(v[1])?.clamp(-300, 300) as i32);
        // Truncate the decimal representation, so that 2.3 stays 2.3.
        let decimal = format!("{of}");
        let truncated = match (digits, decimal.split_once('.')) {
            (0.., Some((whole, part))) => {
                let part: String = part.chars().take(digits.unsigned_abs() as usize).collect();
                format!("{whole}.{part}0").parse().unwrap_or(of)
            }
            (0.., None) => of,
            _ => (of / 10f64.powi(-digits)).trunc() * 10f64.powi(-digits),
        };
        Ok(Sql::Real(truncated))
    })?;
    for (name, aggregate) in [
        ("stddev", VarianceAggregate { is_population: false, takes_root: true }),
        ("stddev_samp", VarianceAggregate { is_population: false, takes_root: true }),
        ("stddev_pop", VarianceAggregate { is_population: true, takes_root: true }),
        ("variance", VarianceAggregate { is_population: false, takes_root: false }),
        ("var_samp", VarianceAggregate { is_population: false, takes_root: false }),
        ("var_pop", VarianceAggregate { is_population: true, takes_root: false }),
    ] {
        connection.create_aggregate_function(name, 1, FLAGS, aggregate)?;
    }
    Ok(())
}

/// Rounds a number like a NUMERIC: based on its decimal digits, with ties away from zero.
pub(super) fn round_numeric(of: f64, places: i32) -> f64 {
    let decimal = format!("{}", of.abs());
    let (whole, part) = decimal.split_once('.').unwrap_or((&decimal, ""));
    let digits = format!("0{whole}{part}");
    let point = i64::try_from(whole.len() + 1).unwrap_or(i64::MAX);
    let Ok(kept) = usize::try_from(point + i64::from(places)) else { return 0.0 };
    let (Some(head), Some(next)) = (digits.get(..kept), digits.as_bytes().get(kept)) else {
        return of;
    };
    let mut head = head.as_bytes().to_vec();
    if *next >= b'5' {
        for digit in head.iter_mut().rev() {
            if *digit < b'9' {
                *digit += 1;
                break;
            }
            *digit = b'0';
        }
    }
    // The exponent replaces the dropped digits.
    let head = String::from_utf8(head).unwrap_or_default();
    format!("{head}e{}", -places)
        .parse::<f64>()
        .map_or(of, |to| if of < 0.0 { 0.0 - to } else { to })
}

fn to_float(value: ValueRef<'_>) -> rusqlite::Result<f64> {
    match value {
        ValueRef::Integer(i) => Ok(i as f64),
        ValueRef::Real(r) => Ok(r),
        other => {
            let text = to_text(other);
            text.trim().parse().map_err(|_| function_error(format!("`{text}` is not a number")))
        }
    }
}

fn to_signed(n: u64) -> rusqlite::Result<Sql> {
    i64::try_from(n).map(Sql::Integer).map_err(|_| function_error("out of range".to_owned()))
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Variance or standard deviation, of a population or of a sample.
#[derive(Clone, Copy)]
struct VarianceAggregate {
    is_population: bool,
    takes_root: bool,
}

/// Running mean and sum of squared deviations (Welford's method).
#[derive(Default)]
struct RunningVariance {
    count: f64,
    mean: f64,
    squares: f64,
}

impl Aggregate<RunningVariance, Option<f64>> for VarianceAggregate {
    fn init(&self, _: &mut Context<'_>) -> rusqlite::Result<RunningVariance> {
        Ok(RunningVariance::default())
    }

    fn step(&self, ctx: &mut Context<'_>, state: &mut RunningVariance) -> rusqlite::Result<()> {
        let value = ctx.get_raw(0);
        if value == ValueRef::Null {
            return Ok(());
        }
        let number = to_float(value)?;
        state.count += 1.0;
        let from = number - state.mean;
        state.mean += from / state.count;
        state.squares += from * (number - state.mean);
        Ok(())
    }

    fn finalize(
        &self,
        _: &mut Context<'_>,
        state: Option<RunningVariance>,
    ) -> rusqlite::Result<Option<f64>> {
        let state = state.unwrap_or_default();
        let of = if self.is_population { state.count } else { state.count - 1.0 };
        let variance = (of > 0.0).then(|| state.squares / of);
        Ok(variance.map(|v| if self.takes_root { v.sqrt() } else { v }))
    }
}
