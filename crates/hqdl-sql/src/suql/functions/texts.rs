//! `PostgreSQL`'s text and regular expression functions that `SQLite` lacks.

use rusqlite::Connection;
use rusqlite::types::{Value as Sql, ValueRef};
use serde_json::Value as Json;

use super::{
    FunctionResult, boolean_to_sql, compile_pattern, find_pattern_syntax, function_error,
    parse_integer_argument, register_strict_function, to_text,
};

/// Registers the functions on a connection.
///
/// # Errors
/// Returns [`rusqlite::Error`] if `SQLite` rejects a registration.
pub(super) fn register(connection: &Connection) -> rusqlite::Result<()> {
    let make = |name: &str, count: i32, run| register_strict_function(connection, name, count, run);
    make("suql_lpad", -1, |v| pad_text(v, true))?;
    make("suql_rpad", -1, |v| pad_text(v, false))?;
    make("suql_reverse", 1, |v| Ok(Sql::Text(to_text(v[0]).chars().rev().collect())))?;
    make("suql_ascii", 1, |v| {
        Ok(Sql::Integer(to_text(v[0]).chars().next().map_or(0, |c| i64::from(u32::from(c)))))
    })?;
    make("suql_translate", 3, |v| {
        let [of, from, to] = [to_text(v[0]), to_text(v[1]), to_text(v[2])];
        let with = |c: char| match from.chars().position(|f| f == c) {
            Some(at) => to.chars().nth(at),
            None => Some(c),
        };
        Ok(Sql::Text(of.chars().filter_map(with).collect()))
    })?;
    make("suql_make_date", 3, |v| {
        let [year, month, day] = [
            parse_integer_argument(v[0])?,
            parse_integer_argument(v[1])?,
            parse_integer_argument(v[2])?,
        ];
        let date = || {
            let (year, month) = (year.try_into().ok()?, month.try_into().ok()?);
            jiff::civil::Date::new(year, month, day.try_into().ok()?).ok()
        };
        let date =
            date().ok_or_else(|| function_error(format!("{year}-{month}-{day} is not a date")))?;
        Ok(Sql::Text(date.to_string()))
    })?;
    make("suql_repeat", 2, |v| {
        let (of, times) = (
            to_text(v[0]),
            usize::try_from(parse_integer_argument(v[1])?.max(0)).unwrap_or(usize::MAX),
        );
        if of.len().saturating_mul(times) > MAX_BYTES {
            return Err(function_error("the repeated text is too long".to_owned()));
        }
        Ok(Sql::Text(of.repeat(times)))
    })?;
    make("suql_overlay", -1, overlay)?;
    make("suql_regexp_count", -1, |v| {
        let matches = RegexInput::from_arguments(v, 2, 3)?;
        let found = matches.find_all("")?.len();
        Ok(Sql::Integer(i64::try_from(found).unwrap_or(i64::MAX)))
    })?;
    make("suql_regexp_like", 3, |v| {
        Ok(boolean_to_sql(!RegexInput::from_arguments(v, usize::MAX, 2)?.find_all("")?.is_empty()))
    })?;
    make("suql_regexp_substr", -1, |v| {
        let nth = v.get(3).map_or(Ok(1), |n| parse_integer_argument(*n))?;
        let matches = RegexInput::from_arguments(v, 2, 4)?.find_all("")?;
        let at = usize::try_from(nth).ok().and_then(|n| n.checked_sub(1));
        let at =
            at.ok_or_else(|| function_error("regexp_substr counts matches from 1".to_owned()))?;
        let whole = matches.get(at).and_then(|groups| groups.first().cloned().flatten());
        Ok(whole.map_or(Sql::Null, Sql::Text))
    })?;
    make("suql_regexp_matches", -1, |v| {
        let matches = RegexInput::from_arguments(v, usize::MAX, 2)?;
        let all = matches.find_all("g")?;
        let shown = if matches.flags.contains('g') { all.len() } else { 1 };
        // The capture groups, or the whole match if there are none.
        let groups = |groups: Vec<Option<String>>| {
            let first = usize::from(groups.len() > 1);
            groups.into_iter().skip(first).collect::<Json>()
        };
        Ok(Sql::Text(all.into_iter().take(shown).map(groups).collect::<Json>().to_string()))
    })?;
    make("suql_regexp_split", 2, |v| {
        let regex = compile_pattern(&to_text(v[1]), find_pattern_syntax("match"), false)?;
        Ok(Sql::Text(regex.split(&to_text(v[0])).collect::<Json>().to_string()))
    })
}

/// Maximum number of bytes of a generated text.
const MAX_BYTES: usize = 1 << 28;

/// Implements `lpad(text, n[, fill])` and `rpad`: pads or truncates to `n` characters.
fn pad_text(v: &[ValueRef<'_>], left: bool) -> FunctionResult {
    let [of, n, fill @ ..] = v else { return Ok(Sql::Null) };
    let (of, fill) = (to_text(*of), fill.first().map_or(" ".to_owned(), |fill| to_text(*fill)));
    let n = usize::try_from(parse_integer_argument(*n)?.max(0)).unwrap_or(usize::MAX);
    if n > MAX_BYTES {
        return Err(function_error("the padded text is too long".to_owned()));
    }
    let missing = if fill.is_empty() { 0 } else { n.saturating_sub(of.chars().count()) };
    let padding: String = fill.chars().cycle().take(missing).collect();
    let kept: String = of.chars().take(n).collect();
    Ok(Sql::Text(if left { padding + &kept } else { kept + &padding }))
}

/// Implements `overlay(text PLACING other FROM n [FOR m])`.
fn overlay(v: &[ValueRef<'_>]) -> FunctionResult {
    let [of, other, from, length @ ..] = v else { return Ok(Sql::Null) };
    let (of, other, from) = (to_text(*of), to_text(*other), parse_integer_argument(*from)?);
    let count = |text: &str| i64::try_from(text.chars().count()).unwrap_or(i64::MAX);
    let length = length.first().map_or(Ok(count(&other)), |n| parse_integer_argument(*n))?;
    if from < 1 {
        return Err(function_error("overlay counts characters from 1".to_owned()));
    }
    let to_count = |n: i64| usize::try_from(n.max(0)).unwrap_or(usize::MAX);
    let head: String = of.chars().take(to_count(from - 1)).collect();
    let rest: String = of.chars().skip(to_count((from - 1).saturating_add(length))).collect();
    Ok(Sql::Text(head + &other + &rest))
}

/// Arguments of a regular expression function.
struct RegexInput {
    text: String,
    pattern: String,
    /// Number of characters to skip.
    skipped: usize,
    flags: String,
}

impl RegexInput {
    /// Reads the arguments of a call: the text, the pattern, the start position at index `start`,
    /// and the flags at index `flags`.
    fn from_arguments(v: &[ValueRef<'_>], start: usize, flags: usize) -> rusqlite::Result<Self> {
        let [of, pattern, ..] = v else {
            return Err(function_error("expected a text and a regular expression".to_owned()));
        };
        let start = v.get(start).map_or(Ok(1), |n| parse_integer_argument(*n))?;
        let skipped = start.checked_sub(1).and_then(|n| usize::try_from(n).ok());
        Ok(Self {
            text: to_text(*of),
            pattern: to_text(*pattern),
            skipped: skipped
                .ok_or_else(|| function_error("characters are counted from 1".to_owned()))?,
            flags: v.get(flags).map(|flags| to_text(*flags)).unwrap_or_default(),
        })
    }

    /// Returns the capture groups of each match; the first group is the whole match. `known_flags`
    /// lists the flags that the function supports in addition to `i`.
    fn find_all(&self, known_flags: &str) -> rusqlite::Result<Vec<Vec<Option<String>>>> {
        if let Some(flag) = self.flags.chars().find(|c| *c != 'i' && !known_flags.contains(*c)) {
            return Err(function_error(format!(
                "unsupported flag `{flag}` of a regular expression"
            )));
        }
        let regex =
            compile_pattern(&self.pattern, find_pattern_syntax("match"), self.flags.contains('i'))?;
        let of: String = self.text.chars().skip(self.skipped).collect();
        let groups = |found: regex::Captures<'_>| {
            found.iter().map(|group| group.map(|g| g.as_str().to_owned())).collect()
        };
        Ok(regex.captures_iter(&of).map(groups).collect())
    }
}
