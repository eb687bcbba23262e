//! `PostgreSQL`'s `to_char`: formatting of dates and numbers.

use jiff::civil::{DateTime, Weekday};

use super::numbers::round_numeric;

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
/// Unsupported parts of a format. hqdl rejects them instead of copying them to the output.
const UNSUPPORTED_PARTS: [&str; 9] = ["TZH", "TZM", "TZ", "OF", "RM", "BC", "AD", "J", "SSSS"];

/// Formats a date or timestamp; `None` if the text is not a date.
///
/// # Errors
/// Returns an error message if the format has an unsupported part.
pub(super) fn format_date(text: &str, format: &str) -> Result<Option<String>, String> {
    let Some(at) = crate::suql::date_functions::parse_timestamp(text) else { return Ok(None) };
    let (mut output, mut rest, mut is_padded) = (String::new(), format, true);
    while let Some(c) = rest.chars().next() {
        if let Some(quoted) = rest.strip_prefix('"') {
            let end = quoted.find('"').unwrap_or(quoted.len());
            output.push_str(&quoted[..end]);
            rest = quoted.get(end + 1..).unwrap_or_default();
        } else if let Some(after) = strip_prefix_ignore_case(rest, "FM") {
            // FM: the next part is padded with neither spaces nor zeros.
            is_padded = false;
            rest = after;
        } else if let Some((part, after)) = format_part(at, rest, is_padded) {
            output.push_str(&part);
            rest = after;
            let is_number = part.bytes().all(|b| b.is_ascii_digit());
            if let Some(after) = strip_prefix_ignore_case(rest, "TH").filter(|_| is_number) {
                output.push_str(ordinal_suffix(&part, rest.starts_with('t')));
                rest = after;
            }
            is_padded = true;
        } else if let Some(unknown) =
            UNSUPPORTED_PARTS.iter().find(|u| strip_prefix_ignore_case(rest, u).is_some())
        {
            return Err(format!("to_char does not support `{unknown}`"));
        } else {
            output.push(c);
            rest = &rest[c.len_utf8()..];
        }
    }
    Ok(Some(output))
}

fn strip_prefix_ignore_case<'t>(text: &'t str, part: &str) -> Option<&'t str> {
    let start = text.get(..part.len())?;
    start.eq_ignore_ascii_case(part).then(|| &text[part.len()..])
}

/// Formats the first pattern of a format. Returns the output and the rest of the format, or `None`
/// if the format does not begin with a pattern. Longer patterns are tried before their prefixes.
fn format_part(at: DateTime, format: &str, is_padded: bool) -> Option<(String, &str)> {
    let hour = |h: i8| i64::from(if h % 12 == 0 { 12 } else { h % 12 });
    let week = at.date().iso_week_date();
    let year = i64::from(at.year());
    let numbers: [(&str, i64, usize); 22] = [
        ("YYYY", year, 4),
        ("YYY", year % 1000, 3),
        ("IYYY", i64::from(week.year()), 4),
        ("YY", year % 100, 2),
        ("Y", year % 10, 1),
        ("MM", i64::from(at.month()), 2),
        ("MI", i64::from(at.minute()), 2),
        ("MS", i64::from(at.millisecond()), 3),
        ("DDD", i64::from(at.date().day_of_year()), 3),
        ("DD", i64::from(at.day()), 2),
        ("HH24", i64::from(at.hour()), 2),
        ("HH12", hour(at.hour()), 2),
        ("HH", hour(at.hour()), 2),
        ("SS", i64::from(at.second()), 2),
        ("US", i64::from(at.subsec_nanosecond() / 1000), 6),
        (
            "IDDD",
            i64::from(week.week()) * 7 - 7 + i64::from(week.weekday().to_monday_one_offset()),
            3,
        ),
        ("IW", i64::from(week.week()), 2),
        ("WW", i64::from((at.date().day_of_year() + 6) / 7), 2),
        ("W", i64::from((at.day() + 6) / 7), 1),
        ("ID", i64::from(at.date().weekday().to_monday_one_offset()), 1),
        ("CC", (year + 99) / 100, 2),
        ("Q", i64::from((at.month() + 2) / 3), 1),
    ];
    if strip_prefix_ignore_case(format, "SSSS").is_some() {
        return None;
    }
    let month = MONTHS.get(usize::from(at.month().unsigned_abs()) - 1).copied().unwrap_or_default();
    let day = match at.date().weekday() {
        Weekday::Monday => "Monday",
        Weekday::Tuesday => "Tuesday",
        Weekday::Wednesday => "Wednesday",
        Weekday::Thursday => "Thursday",
        Weekday::Friday => "Friday",
        Weekday::Saturday => "Saturday",
        Weekday::Sunday => "Sunday",
    };
    let half = if at.hour() < 12 { "am" } else { "pm" };
    let dotted = if at.hour() < 12 { "a.m." } else { "p.m." };
    // Names are padded to the length of the longest name.
    let names: [(&str, &str, usize); 8] = [
        ("MONTH", month, 9),
        ("MON", &month[..3], 3),
        ("DAY", day, 9),
        ("DY", &day[..3], 3),
        ("A.M.", dotted, 4),
        ("P.M.", dotted, 4),
        ("AM", half, 2),
        ("PM", half, 2),
    ];
    if let Some((name, word, width)) =
        names.iter().find(|(name, ..)| strip_prefix_ignore_case(format, name).is_some())
    {
        let name_text = apply_case(word, &format[..name.len()]);
        let padded = if is_padded { format!("{name_text:width$}") } else { name_text };
        return Some((padded, &format[name.len()..]));
    }
    // `D` is the day of the week; Sunday is 1.
    let weekday = i64::from(at.date().weekday().to_sunday_one_offset());
    let all = numbers.into_iter().chain([("D", weekday, 1)]);
    let (name, number, width) =
        all.into_iter().find(|(name, ..)| strip_prefix_ignore_case(format, name).is_some())?;
    let digits = if is_padded { format!("{number:0width$}") } else { number.to_string() };
    Some((digits, &format[name.len()..]))
}

/// Converts a name to the letter case of its format pattern.
fn apply_case(word: &str, pattern: &str) -> String {
    let mut letters = pattern.chars().filter(|c| c.is_alphabetic());
    let first = letters.next().is_some_and(char::is_uppercase);
    let second = letters.next().is_some_and(char::is_uppercase);
    match (first, second) {
        (true, true) => word.to_uppercase(),
        (true, false) => {
            let mut word = word.to_lowercase();
            if let Some(head) = word.get_mut(..1) {
                head.make_ascii_uppercase();
            }
            word
        }
        (false, _) => word.to_lowercase(),
    }
}

fn ordinal_suffix(number: &str, lower: bool) -> &'static str {
    let teens = number.len() > 1 && number.as_bytes().get(number.len() - 2) == Some(&b'1');
    let (small, large) = match number.chars().last() {
        Some('1') if !teens => ("st", "ST"),
        Some('2') if !teens => ("nd", "ND"),
        Some('3') if !teens => ("rd", "RD"),
        _ => ("th", "TH"),
    };
    if lower { small } else { large }
}

/// Formats a number with a format of `9`, `0`, `.`, `,` and `FM`.
///
/// # Errors
/// Returns an error message if the format has an unsupported part.
pub(super) fn format_number(of: f64, format: &str) -> Result<Option<String>, String> {
    let (is_padded, digits) = match strip_prefix_ignore_case(format, "FM") {
        Some(rest) => (false, rest),
        None => (true, format),
    };
    let digits: String = digits
        .chars()
        .map(|c| match c {
            'D' | 'd' => '.',
            'G' | 'g' => ',',
            other => other,
        })
        .collect();
    if let Some(unknown) = digits.chars().find(|c| !"90.,".contains(*c)) {
        return Err(format!("to_char does not support `{unknown}` in a number format"));
    }
    let (whole, fraction) = digits.split_once('.').unwrap_or((&digits, ""));
    let places = fraction.chars().filter(|c| *c != ',').count();
    let rounded = round_numeric(of.abs(), i32::try_from(places).unwrap_or(i32::MAX));
    let rounded = format!("{rounded:.places$}");
    let (integer, decimals) = rounded.split_once('.').unwrap_or((&rounded, ""));
    let whole_digits = whole.chars().filter(|c| *c != ',').count();
    let integer = if integer == "0" && whole_digits > 0 && !whole.contains('0') && places > 0 {
        ""
    } else {
        integer
    };
    let zero = rounded.chars().all(|c| !c.is_ascii_digit() || c == '0');
    let sign = if of < 0.0 && !zero { "-" } else { " " };
    let mut body = String::new();
    let mut left = whole_digits;
    // All digits are shown from the first `0` of the format onwards.
    let mut has_begun = false;
    for c in whole.chars() {
        if c == ',' {
            body.push(if has_begun { ',' } else { ' ' });
            continue;
        }
        let digit = integer.len().checked_sub(left).and_then(|at| integer.as_bytes().get(at));
        has_begun |= c == '0' || digit.is_some();
        body.push(match digit {
            _ if integer.len() > whole_digits => '#',
            Some(digit) => char::from(*digit),
            None if has_begun => '0',
            None => ' ',
        });
        left -= 1;
    }
    if digits.contains('.') {
        body.push('.');
        if integer.len() > whole_digits {
            body.push_str(&"#".repeat(places));
        } else if is_padded {
            body.push_str(decimals);
        } else {
            let min_shown = fraction.rfind('0').map_or(0, |at| at + 1);
            let shown = decimals.trim_end_matches('0').len().max(min_shown.min(decimals.len()));
            body.push_str(&decimals[..shown]);
        }
    }
    // The sign directly precedes the first digit.
    let at = body.find(|c| c != ' ').unwrap_or(body.len());
    body.insert_str(at, sign);
    Ok(Some(if is_padded { body } else { body.trim_start().replace(' ', "") }))
}
