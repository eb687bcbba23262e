//! `PostgreSQL`'s numeric functions that `SQLite` lacks, and its variance and standard deviation
//! aggregates.

use rusqlite::Connection;
use rusqlite::functions::{Aggregate, Context};
use rusqlite::types::{Value as Sql, ValueRef};

use super::{FLAGS, strict, text, whole, wrong};

/// Registers the functions on a connection.
///
/// # Errors
/// [`rusqlite::Error`] if `SQLite` rejects a registration.
pub(super) fn register(connection: &Connection) -> rusqlite::Result<()> {
    let make = |name: &str, count: i32, run| strict(connection, name, count, run);
    make("suql_cbrt", 1, |v| Ok(Sql::Real(number(v[0])?.cbrt())))?;
    make("suql_div", 2, |v| match (v[0], v[1]) {
        (_, ValueRef::Integer(0)) => Err(wrong("division by zero".to_owned())),
        (ValueRef::Integer(a), ValueRef::Integer(b)) => {
            a.checked_div(b).map(Sql::Integer).ok_or_else(|| wrong("out of range".to_owned()))
        }
        _ => Ok(Sql::Real((number(v[0])? / number(v[1])?).trunc())),
    })?;
    make("suql_mod", 2, |v| match (v[0], v[1]) {
        (_, ValueRef::Integer(0)) => Err(wrong("division by zero".to_owned())),
        (ValueRef::Integer(a), ValueRef::Integer(b)) => Ok(Sql::Integer(a.wrapping_rem(b))),
        _ => Ok(Sql::Real(number(v[0])? % number(v[1])?)),
    })?;
    // Rounds half to even, as for binary floating-point numbers.
    make("suql_even", 1, |v| Ok(Sql::Real(number(v[0])?.round_ties_even() + 0.0)))?;
    make("suql_round", 2, |v| {
        let places = whole(v[1])?.clamp(-400, 400) as i32;
        Ok(Sql::Real(rounded(number(v[0])?, places)))
    })?;
    make("suql_gcd", 2, |v| signed(gcd(whole(v[0])?.unsigned_abs(), whole(v[1])?.unsigned_abs())))?;
    make("suql_lcm", 2, |v| {
        let [a, b] = [whole(v[0])?.unsigned_abs(), whole(v[1])?.unsigned_abs()];
        let lcm = a.checked_div(gcd(a, b)).unwrap_or(0).checked_mul(b);
        signed(lcm.ok_or_else(|| wrong("out of range".to_owned()))?)
    })?;
    make("suql_cut", 2, |v| {
        let (of, digits) = (number(v[0])?, whole(v[1])?.clamp(-300, 300) as i32);
        // Truncate the decimal representation, so that 2.3 stays 2.3.
        let said = format!("{of}");
        let cut = match (digits, said.split_once('.')) {
            (0.., Some((whole, part))) => {
                let part: String = part.chars().take(digits.unsigned_abs() as usize).collect();
                format!("{whole}.{part}0").parse().unwrap_or(of)
            }
            (0.., None) => of,
            _ => (of / 10f64.powi(-digits)).trunc() * 10f64.powi(-digits),
        };
        Ok(Sql::Real(cut))
    })?;
    for (name, how) in [
        ("stddev", Spread { population: false, root: true }),
        ("stddev_samp", Spread { population: false, root: true }),
        ("stddev_pop", Spread { population: true, root: true }),
        ("variance", Spread { population: false, root: false }),
        ("var_samp", Spread { population: false, root: false }),
        ("var_pop", Spread { population: true, root: false }),
    ] {
        connection.create_aggregate_function(name, 1, FLAGS, how)?;
    }
    Ok(())
}

/// Rounds a number like a NUMERIC: by its decimal digits, half away from zero.
pub(in crate::suql) fn rounded(of: f64, places: i32) -> f64 {
    let said = format!("{}", of.abs());
    let (whole, part) = said.split_once('.').unwrap_or((&said, ""));
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

fn number(value: ValueRef<'_>) -> rusqlite::Result<f64> {
    match value {
        ValueRef::Integer(i) => Ok(i as f64),
        ValueRef::Real(r) => Ok(r),
        other => {
            let text = text(other);
            text.trim().parse().map_err(|_| wrong(format!("`{text}` is not a number")))
        }
    }
}

fn signed(n: u64) -> rusqlite::Result<Sql> {
    i64::try_from(n).map(Sql::Integer).map_err(|_| wrong("out of range".to_owned()))
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Variance or standard deviation, of a population or of a sample.
#[derive(Clone, Copy)]
struct Spread {
    population: bool,
    root: bool,
}

/// Running mean and sum of squared deviations (Welford's method).
#[derive(Default)]
struct SeenNumbers {
    count: f64,
    mean: f64,
    squares: f64,
}

impl Aggregate<SeenNumbers, Option<f64>> for Spread {
    fn init(&self, _: &mut Context<'_>) -> rusqlite::Result<SeenNumbers> {
        Ok(SeenNumbers::default())
    }

    fn step(&self, ctx: &mut Context<'_>, seen: &mut SeenNumbers) -> rusqlite::Result<()> {
        let value = ctx.get_raw(0);
        if value == ValueRef::Null {
            return Ok(());
        }
        let number = number(value)?;
        seen.count += 1.0;
        let from = number - seen.mean;
        seen.mean += from / seen.count;
        seen.squares += from * (number - seen.mean);
        Ok(())
    }

    fn finalize(
        &self,
        _: &mut Context<'_>,
        seen: Option<SeenNumbers>,
    ) -> rusqlite::Result<Option<f64>> {
        let seen = seen.unwrap_or_default();
        let of = if self.population { seen.count } else { seen.count - 1.0 };
        let variance = (of > 0.0).then(|| seen.squares / of);
        Ok(variance.map(|v| if self.root { v.sqrt() } else { v }))
    }
}
