//! Parsing and truncation of dates and times as in `PostgreSQL`, and intervals between them.

use jiff::civil::{Date, DateTime, Time};

const MONTHS: [&str; 12] = [
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
];
const WEEKDAYS: [&str; 7] =
    ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"];

/// Parses a date with an optional time, which defaults to midnight. Supports `2024-01-31 15:00`,
/// `Jan 5, 2024`, `5 January 2024`, `1/31/2024` (month first) and `20240131`. Ignores a time zone,
/// as `PostgreSQL` does for `timestamp`.
pub(super) fn parse_timestamp(text: &str) -> Option<DateTime> {
    let text = text.trim();
    let plain = text.trim_end_matches('Z');
    if let Ok(at) = plain.parse::<DateTime>() {
        return Some(at);
    }
    let (mut fields, mut month, mut time, mut half): (Vec<&str>, _, _, _) =
        (Vec::new(), None, None, None);
    let mut is_joined = false;
    for word in plain.split([' ', ',', '\t']).filter(|word| !word.is_empty()) {
        // Split a date and a time that are joined by T: 2024-1-5T10:00
        let (word, rest_of_word) = match word.split_once('T') {
            Some((day, at)) if day.ends_with(|c: char| c.is_ascii_digit()) => (day, Some(at)),
            _ => (word, None),
        };
        for word in std::iter::once(word).chain(rest_of_word) {
            if word.contains(':') {
                time = Some(parse_time_of_day(word)?);
            } else if ["am", "pm"].iter().any(|half| word.eq_ignore_ascii_case(half)) {
                half = Some(word.eq_ignore_ascii_case("pm"));
            } else {
                let parts: Vec<&str> = word.split(['-', '/', '.']).collect();
                is_joined |= parts.len() > 1;
                for part in parts.into_iter().filter(|part| !part.is_empty()) {
                    match find_name_position(part, &MONTHS) {
                        Some(n) if month.is_none() => month = Some(n),
                        None if find_name_position(part, &WEEKDAYS).is_some() => {}
                        None if part.bytes().all(|b| b.is_ascii_digit()) => fields.push(part),
                        _ => return None,
                    }
                }
            }
        }
    }
    let (year, month, day) = match (fields.as_slice(), month) {
        ([a, b], Some(month)) if a.len() > 2 => (parse_year(a)?, month, b.parse().ok()?),
        ([a, b], Some(month)) => (parse_year(b)?, month, a.parse().ok()?),
        ([a, b, c], None) if is_joined && a.len() > 2 => {
            (parse_year(a)?, b.parse().ok()?, c.parse().ok()?)
        }
        ([a, b, c], None) if is_joined => (parse_year(c)?, a.parse().ok()?, b.parse().ok()?),
        _ => return None,
    };
    let time = match (time.unwrap_or(Time::midnight()), half) {
        (at, None) => at,
        (at, Some(_)) if !(1..=12).contains(&at.hour()) => return None,
        (at, Some(late)) => {
            at.with().hour(at.hour() % 12 + if late { 12 } else { 0 }).build().ok()?
        }
    };
    Some(Date::new(year, month, day).ok()?.to_datetime(time))
}

/// Parses a date with a `to_date` format. Returns `None` if the text does not match.
pub(super) fn parse_date_with_format(text: &str, format: &str) -> Option<DateTime> {
    const PARTS: [(&str, usize); 13] = [
        ("YYYY", 4),
        ("YY", 2),
        ("MONTH", 0),
        ("MON", 0),
        ("MM", 2),
        ("MI", 2),
        ("DD", 2),
        ("HH24", 2),
        ("HH12", 2),
        ("HH", 2),
        ("SS", 2),
        ("AM", 0),
        ("PM", 0),
    ];
    let upper = format.to_ascii_uppercase();
    let (mut rest, mut format) = (text.trim_start(), upper.as_str());
    let (mut date, mut hour, mut minute, mut second, mut is_pm) = ((1_i16, 1, 1), 0, 0, 0, None);
    while let Some(c) = format.chars().next() {
        let Some((part, width)) = PARTS.iter().find(|(part, _)| format.starts_with(part)) else {
            // A letter may belong to an unsupported pattern, but separators can be ignored.
            if c.is_alphanumeric() {
                return None;
            }
            format = &format[c.len_utf8()..];
            rest = rest.trim_start_matches(|c: char| !c.is_alphanumeric());
            continue;
        };
        format = &format[part.len()..];
        let belongs = |c: char| if *width > 0 { c.is_ascii_digit() } else { c.is_alphabetic() };
        let end = rest.find(|c| !belongs(c)).unwrap_or(rest.len());
        let end = if *width > 0 { end.min(*width) } else { end };
        let (word, rest_of_word) = rest.split_at(end);
        rest = rest_of_word;
        let number = || word.parse::<i8>().ok();
        match *part {
            "YYYY" => date.0 = word.parse().ok()?,
            "YY" => date.0 = parse_year(word)?,
            "MONTH" | "MON" => date.1 = find_name_position(word, &MONTHS)?,
            "MM" => date.1 = number()?,
            "DD" => date.2 = number()?,
            "MI" => minute = number()?,
            "SS" => second = number()?,
            "AM" | "PM" => is_pm = Some(word.eq_ignore_ascii_case("pm")),
            _ => hour = number()?,
        }
    }
    let hour = is_pm.map_or(hour, |late| hour % 12 + if late { 12 } else { 0 });
    let time = Time::new(hour, minute, second, 0).ok()?;
    Some(Date::new(date.0, date.1, date.2).ok()?.to_datetime(time))
}

/// Returns the 1-based position of a name in `names`. The name may be abbreviated to three or more
/// letters.
fn find_name_position(word: &str, names: &[&str]) -> Option<i8> {
    let word = word.to_ascii_lowercase();
    let at = names.iter().position(|name| word.len() >= 3 && name.starts_with(&word))?;
    i8::try_from(at + 1).ok()
}

/// Parses a year without a sign; two digits mean 1970 to 2069.
fn parse_year(text: &str) -> Option<i16> {
    let year: i16 = text.parse().ok().filter(|_| !text.starts_with(['+', '-']))?;
    Some(match (text.len(), year) {
        (1 | 2, 0..70) => year + 2000,
        (1 | 2, _) => year + 1900,
        _ => year,
    })
}

fn parse_time_of_day(text: &str) -> Option<Time> {
    // Drop the time zone offset: +02, -05:30.
    let text = text.split(['+', '-']).next()?;
    let lower = text.to_ascii_lowercase();
    let (text, is_pm) = match (lower.strip_suffix("pm"), lower.strip_suffix("am")) {
        (Some(rest), _) => (rest, Some(true)),
        (_, Some(rest)) => (rest, Some(false)),
        _ => (lower.as_str(), None),
    };
    // PostgreSQL allows an hour with one digit.
    let padded = if text.find(':') == Some(1) { format!("0{text}") } else { text.to_owned() };
    let time: Time = padded.parse().ok()?;
    match is_pm {
        None => Some(time),
        Some(late) => time.with().hour(time.hour() % 12 + if late { 12 } else { 0 }).build().ok(),
    }
}

/// Formats a timestamp as it is stored and displayed: `2024-01-31 15:00:00`, with fractional
/// seconds if there are any.
pub(super) fn format_timestamp(at: DateTime) -> String {
    at.to_string().replace('T', " ")
}

/// Truncates a timestamp to a unit; `None` for an unknown unit.
pub(super) fn truncate_timestamp(part: &str, at: DateTime) -> Option<DateTime> {
    let date = at.date();
    let start = |date: Option<Date>| date.map(|date| date.to_datetime(Time::midnight()));
    let of_year = |year: i16| start(Date::new(year, 1, 1).ok());
    let time = |hour, minute, second| Some(date.at(hour, minute, second, 0));
    match part {
        "millennium" => of_year((date.year() - 1).div_euclid(1000) * 1000 + 1),
        "century" => of_year((date.year() - 1).div_euclid(100) * 100 + 1),
        "decade" => of_year(date.year().div_euclid(10) * 10),
        "year" => of_year(date.year()),
        "quarter" => start(Date::new(date.year(), (date.month() - 1) / 3 * 3 + 1, 1).ok()),
        "month" => start(Some(date.first_of_month())),
        "week" => {
            let since = i64::from(date.weekday().to_monday_zero_offset());
            start(date.checked_sub(jiff::Span::new().days(since)).ok())
        }
        "day" => start(Some(date)),
        "hour" => time(at.hour(), 0, 0),
        "minute" => time(at.hour(), at.minute(), 0),
        "second" => time(at.hour(), at.minute(), at.second()),
        _ => None,
    }
}

/// The interval between two timestamps in months, days and microseconds. `age` counts calendar
/// months; a difference counts only days.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct TimeSpan {
    months: i64,
    days: i64,
    micros: i64,
}

const MICROS_PER_DAY: i64 = 86_400_000_000;

impl TimeSpan {
    /// Returns the interval between two timestamps as days and a remainder of less than a day.
    pub fn between(from: DateTime, to: DateTime) -> Self {
        let days = i64::from((to.date() - from.date()).get_days());
        let micros = days * MICROS_PER_DAY + to_micros(to.time()) - to_micros(from.time());
        Self { months: 0, days: micros / MICROS_PER_DAY, micros: micros % MICROS_PER_DAY }
    }

    /// Returns the interval between two timestamps in years, months and days, like `PostgreSQL`'s
    /// `age`: days are borrowed from the earlier month.
    pub fn age(from: DateTime, to: DateTime) -> Self {
        if to < from {
            let Self { months, days, micros } = Self::age(to, from);
            return Self { months: -months, days: -days, micros: -micros };
        }
        let month = |at: DateTime| i64::from(at.year()) * 12 + i64::from(at.month());
        let mut months = month(to) - month(from);
        let mut days = i64::from(to.day()) - i64::from(from.day());
        let mut micros = to_micros(to.time()) - to_micros(from.time());
        if micros < 0 {
            micros += MICROS_PER_DAY;
            days -= 1;
        }
        if days < 0 {
            days += i64::from(from.date().days_in_month());
            months -= 1;
        }
        Self { months, days, micros }
    }

    /// Parses the text form of an interval: `1 year 2 mons 3 days 04:05:06`. Returns `None` for any
    /// other text.
    pub fn parse(text: &str) -> Option<Self> {
        let mut span = Self::default();
        let mut words = text.split_whitespace();
        while let Some(word) = words.next() {
            if word.contains(':') {
                let (sign, time) = word.strip_prefix('-').map_or((1, word), |time| (-1, time));
                let mut parts = time.split(':');
                let mut whole = || parts.next()?.parse::<i64>().ok();
                let (hours, minutes) = (whole()?, whole()?);
                let seconds: f64 = parts.next()?.parse().ok()?;
                let micros = (seconds * 1e6).round() as i64;
                let minutes = hours.checked_mul(60)?.checked_add(minutes)?;
                span.micros = minutes.checked_mul(60_000_000)?.checked_add(micros)? * sign;
                continue;
            }
            let n: i64 = word.parse().ok()?;
            match words.next()?.trim_end_matches('s') {
                "year" => span.months = span.months.checked_add(n.checked_mul(12)?)?,
                "mon" | "month" => span.months = span.months.checked_add(n)?,
                "day" => span.days = span.days.checked_add(n)?,
                _ => return None,
            }
        }
        Some(span)
    }

    /// Returns a field of the interval; `None` for an unknown field.
    pub fn extract_part(self, part: &str) -> Option<f64> {
        let (months, days, micros) = (self.months, self.days, self.micros);
        Some(match part {
            "year" => (months / 12) as f64,
            "quarter" => (months % 12 / 3 + 1) as f64,
            "month" => (months % 12) as f64,
            "day" => days as f64,
            "hour" => (micros / 3_600_000_000) as f64,
            "minute" => (micros / 60_000_000 % 60) as f64,
            "second" => (micros % 60_000_000) as f64 / 1e6,
            // Intervals are compared by this length.
            "length" => (months as f64 * 30.0 + days as f64) * 86_400.0 + micros as f64 / 1e6,
            "epoch" => {
                let years = (months / 12) as f64 * 365.25 * 86_400.0;
                let days = (months % 12 * 30) as f64 + days as f64;
                years + days * 86_400.0 + micros as f64 / 1e6
            }
            _ => return None,
        })
    }
}

impl std::fmt::Display for TimeSpan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut parts = Vec::new();
        let units = [(self.months / 12, "year"), (self.months % 12, "mon"), (self.days, "day")];
        for (n, unit) in units.into_iter().filter(|(n, _)| *n != 0) {
            parts.push(format!("{n} {unit}{}", if n == 1 { "" } else { "s" }));
        }
        if self.micros != 0 || parts.is_empty() {
            let sign = if self.micros < 0 { "-" } else { "" };
            let micros = self.micros.abs();
            let (seconds, rest) = (micros / 1_000_000, micros % 1_000_000);
            let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
            let mut time = format!("{sign}{hours:02}:{minutes:02}:{:02}", seconds % 60);
            if rest != 0 {
                time.push_str(format!(".{rest:06}").trim_end_matches('0'));
            }
            parts.push(time);
        }
        f.write_str(&parts.join(" "))
    }
}

fn to_micros(time: Time) -> i64 {
    let seconds =
        (i64::from(time.hour()) * 60 + i64::from(time.minute())) * 60 + i64::from(time.second());
    seconds * 1_000_000 + i64::from(time.subsec_nanosecond()) / 1000
}
