//! `PostgreSQL`'s operators that `SQLite` has no words for, as functions: `suql_…`
//! of arrays, which are JSON arrays, and of patterns. A value that is no array is
//! the array of itself.

use std::cmp::Ordering;

use regex::{Regex, RegexBuilder};
use rusqlite::functions::{Context, FunctionFlags};
use rusqlite::types::{ToSqlOutput, Value as Sql, ValueRef};
use rusqlite::{Connection, Error};
use serde_json::Value as Json;

use super::to_char;
use hqdl_values::value::Value;

/// What a function gives.
type GivenType = rusqlite::Result<Sql>;
/// A pattern as a regular expression; `None` when it is none.
type Reading = fn(&str) -> Option<String>;

/// Registers the functions on a connection.
///
/// # Errors
/// When `SQLite` does not take them.
pub fn register(connection: &Connection) -> rusqlite::Result<()> {
    let flags = FunctionFlags::SQLITE_UTF8
        | FunctionFlags::SQLITE_DETERMINISTIC
        | FunctionFlags::SQLITE_INNOCUOUS;
    // NULL for NULL, as operators have it.
    let make = |name: &str, count: i32, run: fn(&[ValueRef<'_>]) -> GivenType| {
        connection.create_scalar_function(name, count, flags, move |ctx: &Context<'_>| {
            let values: Vec<ValueRef<'_>> = (0..ctx.len()).map(|n| ctx.get_raw(n)).collect();
            let null = values.contains(&ValueRef::Null);
            let given = if null { Ok(Sql::Null) } else { run(&values) };
            given.map(ToSqlOutput::Owned)
        })
    };
    make("suql_array", 1, |v| Ok(Sql::Text(Json::from(array(v[0])).to_string())))?;
    make("suql_any", 3, |v| quantified(v, true))?;
    make("suql_all", 3, |v| quantified(v, false))?;
    make("suql_contains", 2, |v| {
        let (all, some) = (array(v[0]), array(v[1]));
        Ok(truth(some.iter().all(|s| all.iter().any(|a| same(a, s)))))
    })?;
    make("suql_overlaps", 2, |v| {
        let (all, some) = (array(v[0]), array(v[1]));
        Ok(truth(some.iter().any(|s| all.iter().any(|a| same(a, s)))))
    })?;
    make("suql_same", 2, |v| {
        let (a, b) = (array(v[0]), array(v[1]));
        Ok(truth(a.len() == b.len() && a.iter().zip(&b).all(|(a, b)| same(a, b))))
    })?;
    make("suql_joined", 2, |v| {
        let both: Vec<Json> = array(v[0]).into_iter().chain(array(v[1])).collect();
        Ok(Sql::Text(Json::from(both).to_string()))
    })?;
    make("suql_element", 2, |v| {
        let ValueRef::Integer(n) = v[1] else { return Ok(Sql::Null) };
        let n = n.checked_sub(1).and_then(|n| usize::try_from(n).ok());
        Ok(n.and_then(|n| array(v[0]).get(n).map(owned)).unwrap_or(Sql::Null))
    })?;
    make("suql_replace", -1, replaced)?;
    make("suql_split_part", 3, |v| part(&text(v[0]), &text(v[1]), v[2]))?;
    make("suql_initcap", 1, |v| Ok(Sql::Text(capitals(&text(v[0])))))?;
    make("suql_groups", 2, |v| {
        let regex = compiled(&text(v[1]), |p| Some(p.to_owned()), false)?;
        let of = text(v[0]);
        let Some(found) = regex.captures(&of) else { return Ok(Sql::Null) };
        // The groups, or the whole of what has none.
        let first = usize::from(found.len() > 1);
        let groups = (first..found.len()).map(|n| found.get(n).map(|m| m.as_str().to_owned()));
        Ok(Sql::Text(groups.collect::<Json>().to_string()))
    })?;
    // Of those that are not NULL.
    let extreme = |name: &str, wanted: Ordering| {
        connection.create_scalar_function(name, -1, flags, move |ctx: &Context<'_>| {
            let mut best: Option<Value> = None;
            for value in (0..ctx.len()).filter_map(|n| Value::read(ctx.get_raw(n)).ok()) {
                let better = best.as_ref().is_none_or(|b| order(&value, b) == wanted);
                if value != Value::Null && better {
                    best = Some(value);
                }
            }
            Ok(ToSqlOutput::Owned(best.map_or(Sql::Null, |v| owned(&v.to_json()))))
        })
    };
    extreme("suql_greatest", Ordering::Greater)?;
    extreme("suql_least", Ordering::Less)?;
    make("suql_to_char", 2, |v| {
        let said = match v[0] {
            ValueRef::Integer(i) => to_char::number(i as f64, &text(v[1])),
            ValueRef::Real(r) => to_char::number(r, &text(v[1])),
            other => to_char::date(&text(other), &text(v[1])),
        };
        Ok(said.map_err(wrong)?.map_or(Sql::Null, Sql::Text))
    })?;
    make("suql_truth", 1, |v| match v[0] {
        ValueRef::Integer(i) => Ok(truth(i != 0)),
        ValueRef::Real(r) => Ok(truth(r != 0.0)),
        other => {
            let text = text(other).trim().to_lowercase();
            match text.as_str() {
                "t" | "true" | "y" | "yes" | "on" | "1" => Ok(truth(true)),
                "f" | "false" | "n" | "no" | "off" | "0" => Ok(truth(false)),
                _ => Err(wrong(format!("\"{text}\" is neither true nor false"))),
            }
        }
    })?;
    let patterns: [(&str, Reading, bool); 5] = [
        ("suql_like", like, false),
        ("suql_ilike", like, true),
        ("suql_similar", similar, false),
        ("suql_match", |p| Some(p.to_owned()), false),
        ("suql_imatch", |p| Some(p.to_owned()), true),
    ];
    for (name, read, fold) in patterns {
        connection.create_scalar_function(name, 2, flags, move |ctx: &Context<'_>| {
            let (of, pattern) = (ctx.get_raw(0), ctx.get_raw(1));
            if of == ValueRef::Null || pattern == ValueRef::Null {
                return Ok(ToSqlOutput::Owned(Sql::Null));
            }
            // Read once, where the pattern stands in the query.
            let regex = ctx.get_or_create_aux(1, |p| -> rusqlite::Result<Regex> {
                compiled(&text(p), read, fold)
            })?;
            Ok(ToSqlOutput::Owned(truth(regex.is_match(&text(of)))))
        })?;
    }
    Ok(())
}

/// `split_part(text, delimiter, n)`: the `n`th field, from the end where that is negative;
/// empty where there are fewer.
fn part(of: &str, delimiter: &str, n: ValueRef<'_>) -> GivenType {
    let ValueRef::Integer(n) = n else {
        return Err(wrong("split_part counts fields by whole numbers".to_owned()));
    };
    let fields: Vec<&str> =
        if delimiter.is_empty() { vec![of] } else { of.split(delimiter).collect() };
    let at = match usize::try_from(n.unsigned_abs()).unwrap_or(usize::MAX) {
        0 => return Err(wrong("split_part counts fields from 1".to_owned())),
        n_th if n > 0 => Some(n_th - 1),
        n_th => fields.len().checked_sub(n_th),
    };
    let field = at.and_then(|at| fields.get(at)).copied().unwrap_or_default();
    Ok(Sql::Text(field.to_owned()))
}

/// Each word with a capital, the rest of it small.
fn capitals(text: &str) -> String {
    let mut made = String::with_capacity(text.len());
    let mut within = false;
    for c in text.chars() {
        if within {
            made.extend(c.to_lowercase());
        } else {
            made.extend(c.to_uppercase());
        }
        within = c.is_alphanumeric();
    }
    made
}

/// `regexp_replace(text, pattern, replacement[, flags])`: the first match, or with
/// `g` all of them; `\\1` is what the first group matched, `\\&` the whole match.
fn replaced(values: &[ValueRef<'_>]) -> GivenType {
    let [of, pattern, with, rest @ ..] = values else {
        return Err(wrong("regexp_replace takes three or four values".to_owned()));
    };
    let flags = rest.first().map(|f| text(*f)).unwrap_or_default();
    if let Some(flag) = flags.chars().find(|c| !"gi".contains(*c)) {
        return Err(wrong(format!("regexp_replace knows the flags g and i, not `{flag}`")));
    }
    let regex = compiled(&text(*pattern), |p| Some(p.to_owned()), flags.contains('i'))?;
    let mut replacement = String::new();
    let with = text(*with);
    let mut chars = with.chars();
    while let Some(c) = chars.next() {
        match c {
            '$' => replacement.push_str("$$"),
            '\\' => match chars.next() {
                Some('&') => replacement.push_str("${0}"),
                Some(digit) if digit.is_ascii_digit() => {
                    replacement.push_str(&format!("${{{digit}}}"));
                }
                Some('$') => replacement.push_str("$$"),
                Some(other) => replacement.push(other),
                None => replacement.push('\\'),
            },
            other => replacement.push(other),
        }
    }
    let of = text(*of);
    // 0 is all of them.
    let most = usize::from(!flags.contains('g'));
    let replaced = regex.replacen(&of, most, &replacement);
    Ok(Sql::Text(replaced.into_owned()))
}

fn compiled(pattern: &str, read: Reading, fold: bool) -> rusqlite::Result<Regex> {
    let written = read(pattern).ok_or_else(|| wrong(format!("`{pattern}` is no pattern")))?;
    let built =
        RegexBuilder::new(&written).case_insensitive(fold).dot_matches_new_line(true).build();
    built.map_err(|_| wrong(format!("the regular expression `{pattern}` cannot be read")))
}

/// A pattern of LIKE: `%`, `_`, and `\` before a character that stands for itself.
fn like(pattern: &str) -> Option<String> {
    wildcards(pattern, |c| regex::escape(&c.to_string()))
}

/// A pattern of SIMILAR TO: that of LIKE, with `|`, `*`, `+`, `?`, `{}`, `()`, `[]`.
fn similar(pattern: &str) -> Option<String> {
    let other = |c: char| if ".^$".contains(c) { format!("\\{c}") } else { c.to_string() };
    wildcards(pattern, other)
}

/// A pattern with `%`, `_` and `\` as a regular expression; `other` says what
/// every other character is in it.
fn wildcards(pattern: &str, other: impl Fn(char) -> String) -> Option<String> {
    let mut out = String::from("^(?:");
    let mut chars = pattern.chars();
    while let Some(c) = chars.next() {
        match c {
            '%' => out.push_str(".*"),
            '_' => out.push('.'),
            '\\' => out.push_str(&regex::escape(&chars.next()?.to_string())),
            c => out.push_str(&other(c)),
        }
    }
    out.push_str(")$");
    Some(out)
}

/// `x op ANY (array)` and `x op ALL (array)`, by the logic of three values.
fn quantified(values: &[ValueRef<'_>], any: bool) -> GivenType {
    let sign = text(values[1]);
    let (negated, sign) = match sign.strip_prefix("not ") {
        Some(sign) => (true, sign),
        None => (false, sign.as_str()),
    };
    let mut open = false;
    for element in array(values[2]) {
        let holds = match &element {
            Json::Null => None,
            element => Some(compared(values[0], sign, element)? != negated),
        };
        match holds {
            Some(holds) if holds == any => return Ok(truth(any)),
            Some(_) => {}
            None => open = true,
        }
    }
    Ok(if open { Sql::Null } else { truth(!any) })
}

fn compared(value: ValueRef<'_>, sign: &str, element: &Json) -> rusqlite::Result<bool> {
    let word = || Value::from_json(element).to_string();
    Ok(match sign {
        "like" => compiled(&word(), like, false)?.is_match(&text(value)),
        "ilike" => compiled(&word(), like, true)?.is_match(&text(value)),
        "similar" => compiled(&word(), similar, false)?.is_match(&text(value)),
        _ => {
            let value = Value::read(value).unwrap_or(Value::Null);
            let order = order(&value, &Value::from_json(element));
            match sign {
                "=" => order == Ordering::Equal,
                "<>" => order != Ordering::Equal,
                "<" => order == Ordering::Less,
                "<=" => order != Ordering::Greater,
                ">" => order == Ordering::Greater,
                _ => order != Ordering::Less,
            }
        }
    })
}

/// The order of `SQLite` between two values: numbers before texts.
fn order(a: &Value, b: &Value) -> Ordering {
    let number = |v: &Value| match v {
        Value::Integer(i) => Some(*i as f64),
        Value::Real(r) => Some(*r),
        _ => None,
    };
    match (a, b) {
        (Value::Integer(a), Value::Integer(b)) => a.cmp(b),
        _ => match (number(a), number(b)) {
            (Some(a), Some(b)) => a.partial_cmp(&b).unwrap_or(Ordering::Equal),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) => a.to_string().cmp(&b.to_string()),
        },
    }
}

fn same(a: &Json, b: &Json) -> bool {
    !a.is_null()
        && !b.is_null()
        && order(&Value::from_json(a), &Value::from_json(b)) == Ordering::Equal
}

/// The elements of an array.
fn array(value: ValueRef<'_>) -> Vec<Json> {
    let text = match value {
        ValueRef::Text(bytes) => String::from_utf8_lossy(bytes),
        other => return Value::read(other).map(|v| vec![v.to_json()]).unwrap_or_default(),
    };
    if text.trim_start().starts_with('[')
        && let Ok(elements) = serde_json::from_str(&text)
    {
        return elements;
    }
    vec![text.into_owned().into()]
}

fn owned(json: &Json) -> Sql {
    match Value::from_json(json) {
        Value::Null => Sql::Null,
        Value::Integer(i) => Sql::Integer(i),
        Value::Real(r) => Sql::Real(r),
        Value::Text(text) => Sql::Text(text),
    }
}

fn text(value: ValueRef<'_>) -> String {
    match value {
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => {
            String::from_utf8_lossy(bytes).into_owned()
        }
        other => Value::read(other).unwrap_or(Value::Null).to_string(),
    }
}

fn truth(holds: bool) -> Sql {
    Sql::Integer(i64::from(holds))
}

fn wrong(message: String) -> Error {
    Error::UserFunctionError(message.into())
}
