//! Converts text from a model to a value of a type: numbers, booleans, dates in ISO 8601, URLs.
//! Ambiguous text is rejected.

use jiff::civil::Weekday;

use super::Type;
use hqdl_values::value::Value;

/// Converts text to a value of a type, with a note if the text was not in the stored form.
#[must_use]
pub fn parse_value(data_type: Type, text: &str) -> Option<(Value, Option<&'static str>)> {
    let text = text.trim();
    if data_type != Type::Text
        && let Some((_, inner)) = split_quotes(text)
    {
        // Only a text value may itself contain quotes.
        return Some((parse_value(data_type, inner)?.0, Some("surrounding quotes removed")));
    }
    match data_type {
        Type::Text => Some((text.into(), None)),
        Type::Integer => {
            if let Ok(integer) = text.parse::<i64>() {
                return Some((Value::Integer(integer), None));
            }
            let real = parse_number(text)?;
            // 2^53: above it, a double cannot represent every integer.
            (real.fract() == 0.0 && real.abs() <= 9_007_199_254_740_992.0)
                .then_some((Value::Integer(real as i64), Some("number respelled")))
        }
        Type::Real => match text.parse::<f64>() {
            Ok(real) if real.is_finite() && is_plain_number(text) => {
                Some((Value::Real(real), None))
            }
            _ => Some((Value::Real(parse_number(text)?), Some("number respelled"))),
        },
        Type::Boolean => {
            let truth = match text.to_lowercase().trim_end_matches('.') {
                "true" | "1" | "yes" | "y" | "t" => true,
                "false" | "0" | "no" | "n" | "f" => false,
                _ => return None,
            };
            Some((Value::Integer(i64::from(truth)), None))
        }
        Type::Date => parse_date(text),
        Type::Url => parse_url(text),
    }
}

/// If quotes enclose the whole text, returns the opening quote and the text between the quotes.
/// Returns `None` if there are more quotes inside.
#[must_use]
pub fn split_quotes(text: &str) -> Option<(char, &str)> {
    const PAIRS: [(char, char); 5] =
        [('\'', '\''), ('"', '"'), ('`', '`'), ('\u{2018}', '\u{2019}'), ('\u{201c}', '\u{201d}')];
    PAIRS.iter().find_map(|(open, close)| {
        let inner = text.trim().strip_prefix(*open)?.strip_suffix(*close)?;
        (!inner.is_empty() && !inner.contains([*open, *close])).then_some((*open, inner))
    })
}

/// Returns true if a text has only digits, sign, point and exponent, so that it is neither `inf`
/// nor `nan`.
pub(super) fn is_plain_number(text: &str) -> bool {
    text.chars().any(|c| c.is_ascii_digit())
        && text.chars().all(|c| c.is_ascii_digit() || matches!(c, '+' | '-' | '.' | 'e' | 'E'))
}

/// Parses a number with thousands separators, or a whole number written as a decimal.
fn parse_number(text: &str) -> Option<f64> {
    let (integer_part, fraction) = text.split_once('.').unwrap_or((text, ""));
    let unsigned = integer_part.trim_start_matches(['+', '-']);
    let mut groups = unsigned.split(',');
    let first = groups.next()?;
    let has_groups = unsigned.contains(',');
    let is_digits = |g: &str| g.chars().all(|c| c.is_ascii_digit());
    if has_groups
        && !((1..=3).contains(&first.len())
            && is_digits(first)
            && groups.all(|g| g.len() == 3 && is_digits(g)))
    {
        return None;
    }
    let mut joined = integer_part.replace(',', "");
    if !fraction.is_empty() {
        joined = format!("{joined}.{fraction}");
    }
    if !is_plain_number(&joined) {
        return None;
    }
    joined.parse::<f64>().ok().filter(|r| r.is_finite())
}

/// Parses a day, a month or a year and converts it to ISO 8601. Rejects a date whose day and month
/// are ambiguous.
fn parse_date(text: &str) -> Option<(Value, Option<&'static str>)> {
    use jiff::civil::Date;
    const NOTE: Option<&str> = Some("date converted to ISO 8601");
    let pattern: String = text.chars().map(|c| if c.is_ascii_digit() { '9' } else { c }).collect();
    let is_real_date = |t: &str| Date::strptime("%Y-%m-%d", t).is_ok();
    match pattern.as_str() {
        "9999-99-99" => return is_real_date(text).then(|| (text.into(), None)),
        "9999-99" => return is_real_date(&format!("{text}-01")).then(|| (text.into(), None)),
        "9999" => return Some((text.into(), None)),
        // ISO 8601's basic form.
        "99999999" => {
            let day = Date::strptime("%Y%m%d", text).ok()?;
            return Some((day.to_string().into(), NOTE));
        }
        _ => {}
    }
    let is_time = |t: &str| t.contains(':') && t.chars().all(|c| "0123456789:.+-Z ".contains(c));
    if let Some((day, _)) = text
        .split_once(['T', ' '])
        .filter(|(day, rest)| day.len() == 10 && is_real_date(day) && is_time(rest))
    {
        return Some((day.into(), NOTE));
    }
    let normalized = normalize_date(text);
    // A year of two digits is rejected.
    let mut digits = normalized.split(|c: char| !c.is_ascii_digit());
    if !digits.any(|run| run.len() == 4) {
        return None;
    }
    if normalized.split(' ').count() == 2 {
        // For a month and a year, parse the text with a day in front.
        let month = ["%d %B %Y", "%d %b %Y"]
            .iter()
            .find_map(|f| Date::strptime(f, format!("1 {normalized}")).ok())?;
        return Some((month.strftime("%Y-%m").to_string().into(), NOTE));
    }
    let formats = [
        "%d %B %Y", "%d %b %Y", "%B %d %Y", "%b %d %Y", "%Y/%m/%d", "%Y.%m.%d", "%Y-%m-%d",
        "%d.%m.%Y", "%d-%B-%Y", "%d-%b-%Y",
    ];
    if let Some(day) = formats.iter().find_map(|f| Date::strptime(f, &normalized).ok()) {
        return Some((day.to_string().into(), NOTE));
    }
    let slashed = normalized.replace('-', "/");
    let readings =
        [Date::strptime("%d/%m/%Y", &slashed).ok(), Date::strptime("%m/%d/%Y", &slashed).ok()];
    match readings {
        [Some(day), None] | [None, Some(day)] => Some((day.to_string().into(), NOTE)),
        [Some(a), Some(b)] if a == b => Some((a.to_string().into(), NOTE)),
        _ => None,
    }
}

/// Parses a day and the name of a month, in a known year. Two digits that could be the year itself
/// (`May 07` in 2007) are not read as a day.
#[must_use]
pub fn parse_date_in_year(year: i16, text: &str) -> Option<(Value, &'static str)> {
    use jiff::civil::Date;
    let (stated_weekday, text) = split_weekday(text);
    let normalized = normalize_date(&text.replace('-', " "));
    let digits: String = normalized.chars().filter(char::is_ascii_digit).collect();
    // `May 07` may mean May 2007 if the known year is 2007.
    let may_be_year = digits.len() == 2
        && (digits.parse() == Ok(year.rem_euclid(100))
            || digits.starts_with('0') && normalized.ends_with(&digits));
    if normalized.split(' ').count() != 2 || digits.len() > 2 || may_be_year {
        return None;
    }
    let with_year = format!("{normalized} {year:04}");
    let formats = ["%d %B %Y", "%d %b %Y", "%B %d %Y", "%b %d %Y"];
    let day = formats.iter().find_map(|f| Date::strptime(f, &with_year).ok())?;
    // If the weekday does not match the date in this year, the text means another year.
    let is_day = stated_weekday.is_none_or(|w| w == day.weekday());
    is_day.then(|| (day.to_string().into(), "year added from the key"))
}

/// Splits the weekday off a date: `Sunday, May 27`.
fn split_weekday(text: &str) -> (Option<Weekday>, &str) {
    const DAYS: [(&str, Weekday); 7] = [
        ("monday", Weekday::Monday),
        ("tuesday", Weekday::Tuesday),
        ("wednesday", Weekday::Wednesday),
        ("thursday", Weekday::Thursday),
        ("friday", Weekday::Friday),
        ("saturday", Weekday::Saturday),
        ("sunday", Weekday::Sunday),
    ];
    let Some((word, rest)) = text.trim().split_once([',', ' ']) else { return (None, text) };
    let word = word.trim_end_matches('.').to_lowercase();
    let day =
        DAYS.iter().find(|(name, _)| *name == word || word.len() == 3 && name.starts_with(&word));
    day.map_or((None, text), |(_, day)| (Some(*day), rest))
}

/// Normalizes the words of a date: `27th of Dec.,` becomes `27 Dec`.
fn normalize_date(text: &str) -> String {
    let strip_ordinal = |word: &'_ str| -> Option<String> {
        let day = ["st", "nd", "rd", "th"].iter().find_map(|suffix| word.strip_suffix(suffix))?;
        (!day.is_empty() && day.chars().all(|c| c.is_ascii_digit())).then(|| day.to_owned())
    };
    // Treat "Dec." as "Dec".
    let strip_period = |word: &'_ str| -> String {
        let without_period = word.strip_suffix('.').filter(|w| w.chars().all(char::is_alphabetic));
        without_period.unwrap_or(word).to_owned()
    };
    text.replace(',', " ")
        .split_whitespace()
        .filter(|word| *word != "of")
        .map(|word| strip_ordinal(word).unwrap_or_else(|| strip_period(word)))
        .collect::<Vec<_>>()
        .join(" ")
}

fn parse_url(text: &str) -> Option<(Value, Option<&'static str>)> {
    let (inner, mut note) = match text.split_once("](").and_then(|(_, rest)| rest.strip_suffix(')'))
    {
        Some(target) => (target, Some("link extracted from its markup")),
        None => match text.strip_prefix('<').and_then(|t| t.strip_suffix('>')) {
            Some(target) => (target, Some("link extracted from its markup")),
            None => (text, None),
        },
    };
    let scheme = inner.split_once("://").map(|(scheme, _)| scheme.to_lowercase());
    let full_url = if let Some(scheme @ ("http" | "https")) = scheme.as_deref() {
        format!("{scheme}{}", &inner[scheme.len()..])
    } else if inner.contains("://") || inner.contains('@') {
        // The text has a different scheme, or is an email address.
        return None;
    } else {
        note = Some("https:// added");
        format!("https://{inner}")
    };
    let host = full_url.split("://").nth(1)?.split(['/', '?', '#']).next()?;
    // A decimal number is not a host. An IP address is a host only if the text has a scheme.
    let top = host.rsplit('.').next().unwrap_or_default().split(':').next().unwrap_or_default();
    let has_name = top.chars().any(char::is_alphabetic) || scheme.is_some();
    let is_valid_host =
        has_name && host.contains('.') && !host.starts_with('.') && !host.ends_with('.');
    (is_valid_host && !full_url.chars().any(char::is_whitespace)).then(|| (full_url.into(), note))
}
