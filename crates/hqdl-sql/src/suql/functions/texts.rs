//! `PostgreSQL`'s text and regular expression functions that `SQLite` lacks.

use rusqlite::Connection;
use rusqlite::types::{Value as Sql, ValueRef};
use serde_json::Value as Json;

use super::{GivenType, compiled, reading, strict, text, truth, whole, wrong};

/// Registers the functions on a connection.
///
/// # Errors
/// [`rusqlite::Error`] if `SQLite` rejects a registration.
pub(super) fn register(connection: &Connection) -> rusqlite::Result<()> {
    let make = |name: &str, count: i32, run| strict(connection, name, count, run);
    make("suql_lpad", -1, |v| padded(v, true))?;
    make("suql_rpad", -1, |v| padded(v, false))?;
    make("suql_reverse", 1, |v| Ok(Sql::Text(text(v[0]).chars().rev().collect())))?;
    make("suql_ascii", 1, |v| {
        Ok(Sql::Integer(text(v[0]).chars().next().map_or(0, |c| i64::from(u32::from(c)))))
    })?;
    make("suql_translate", 3, |v| {
        let [of, from, to] = [text(v[0]), text(v[1]), text(v[2])];
        let with = |c: char| match from.chars().position(|f| f == c) {
            Some(at) => to.chars().nth(at),
            None => Some(c),
        };
        Ok(Sql::Text(of.chars().filter_map(with).collect()))
    })?;
    make("suql_make_date", 3, |v| {
        let [year, month, day] = [whole(v[0])?, whole(v[1])?, whole(v[2])?];
        let date = || {
            let (year, month) = (year.try_into().ok()?, month.try_into().ok()?);
            jiff::civil::Date::new(year, month, day.try_into().ok()?).ok()
        };
        let date = date().ok_or_else(|| wrong(format!("{year}-{month}-{day} is not a date")))?;
        Ok(Sql::Text(date.to_string()))
    })?;
    make("suql_repeat", 2, |v| {
        let (of, times) = (text(v[0]), usize::try_from(whole(v[1])?.max(0)).unwrap_or(usize::MAX));
        if of.len().saturating_mul(times) > LONGEST {
            return Err(wrong("the repeated text is too long".to_owned()));
        }
        Ok(Sql::Text(of.repeat(times)))
    })?;
    make("suql_overlay", -1, overlaid)?;
    make("suql_regexp_count", -1, |v| {
        let matches = Matches::read(v, 2, 3)?;
        let found = matches.all("")?.len();
        Ok(Sql::Integer(i64::try_from(found).unwrap_or(i64::MAX)))
    })?;
    make("suql_regexp_like", 3, |v| {
        Ok(truth(!Matches::read(v, usize::MAX, 2)?.all("")?.is_empty()))
    })?;
    make("suql_regexp_substr", -1, |v| {
        let nth = v.get(3).map_or(Ok(1), |n| whole(*n))?;
        let matches = Matches::read(v, 2, 4)?.all("")?;
        let at = usize::try_from(nth).ok().and_then(|n| n.checked_sub(1));
        let at = at.ok_or_else(|| wrong("regexp_substr counts matches from 1".to_owned()))?;
        let whole = matches.get(at).and_then(|groups| groups.first().cloned().flatten());
        Ok(whole.map_or(Sql::Null, Sql::Text))
    })?;
    make("suql_regexp_matches", -1, |v| {
        let matches = Matches::read(v, usize::MAX, 2)?;
        let all = matches.all("g")?;
        let taken = if matches.flags.contains('g') { all.len() } else { 1 };
        // The capture groups, or the whole match if there are none.
        let groups = |groups: Vec<Option<String>>| {
            let first = usize::from(groups.len() > 1);
            groups.into_iter().skip(first).collect::<Json>()
        };
        Ok(Sql::Text(all.into_iter().take(taken).map(groups).collect::<Json>().to_string()))
    })?;
    make("suql_regexp_split", 2, |v| {
        let regex = compiled(&text(v[1]), reading("match"), false)?;
        Ok(Sql::Text(regex.split(&text(v[0])).collect::<Json>().to_string()))
    })
}

/// Maximum number of bytes of a generated text.
const LONGEST: usize = 1 << 28;

/// Implements `lpad(text, n[, fill])` and `rpad`: pads or truncates to `n` characters.
fn padded(v: &[ValueRef<'_>], left: bool) -> GivenType {
    let [of, n, fill @ ..] = v else { return Ok(Sql::Null) };
    let (of, fill) = (text(*of), fill.first().map_or(" ".to_owned(), |fill| text(*fill)));
    let n = usize::try_from(whole(*n)?.max(0)).unwrap_or(usize::MAX);
    if n > LONGEST {
        return Err(wrong("the padded text is too long".to_owned()));
    }
    let lacks = if fill.is_empty() { 0 } else { n.saturating_sub(of.chars().count()) };
    let more: String = fill.chars().cycle().take(lacks).collect();
    let kept: String = of.chars().take(n).collect();
    Ok(Sql::Text(if left { more + &kept } else { kept + &more }))
}

/// Implements `overlay(text PLACING other FROM n [FOR m])`.
fn overlaid(v: &[ValueRef<'_>]) -> GivenType {
    let [of, other, from, length @ ..] = v else { return Ok(Sql::Null) };
    let (of, other, from) = (text(*of), text(*other), whole(*from)?);
    let count = |text: &str| i64::try_from(text.chars().count()).unwrap_or(i64::MAX);
    let length = length.first().map_or(Ok(count(&other)), |n| whole(*n))?;
    if from < 1 {
        return Err(wrong("overlay counts characters from 1".to_owned()));
    }
    let place = |n: i64| usize::try_from(n.max(0)).unwrap_or(usize::MAX);
    let head: String = of.chars().take(place(from - 1)).collect();
    let rest: String = of.chars().skip(place((from - 1).saturating_add(length))).collect();
    Ok(Sql::Text(head + &other + &rest))
}

/// Arguments of a regular expression function.
struct Matches {
    of: String,
    pattern: String,
    /// Number of characters to skip.
    skipped: usize,
    flags: String,
}

impl Matches {
    /// Reads the arguments of a call: a text and a pattern, and at the indices `start` and `flags`
    /// the start position and the flags.
    fn read(v: &[ValueRef<'_>], start: usize, flags: usize) -> rusqlite::Result<Self> {
        let [of, pattern, ..] = v else {
            return Err(wrong("expected a text and a regular expression".to_owned()));
        };
        let start = v.get(start).map_or(Ok(1), |n| whole(*n))?;
        let skipped = start.checked_sub(1).and_then(|n| usize::try_from(n).ok());
        Ok(Self {
            of: text(*of),
            pattern: text(*pattern),
            skipped: skipped.ok_or_else(|| wrong("characters are counted from 1".to_owned()))?,
            flags: v.get(flags).map(|flags| text(*flags)).unwrap_or_default(),
        })
    }

    /// Returns the capture groups of each match; the first group is the whole match. `known_flags`
    /// lists the flags that the function supports besides `i`.
    fn all(&self, known: &str) -> rusqlite::Result<Vec<Vec<Option<String>>>> {
        if let Some(flag) = self.flags.chars().find(|c| *c != 'i' && !known.contains(*c)) {
            return Err(wrong(format!("unsupported flag `{flag}` of a regular expression")));
        }
        let regex = compiled(&self.pattern, reading("match"), self.flags.contains('i'))?;
        let of: String = self.of.chars().skip(self.skipped).collect();
        let groups = |found: regex::Captures<'_>| {
            found.iter().map(|group| group.map(|g| g.as_str().to_owned())).collect()
        };
        Ok(regex.captures_iter(&of).map(groups).collect())
    }
}
