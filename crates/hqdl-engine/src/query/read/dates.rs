//! Rewrites the date filter `DT` as plain SQL. A period such as `last month` is relative to today's
//! date in UTC, as in `SQLite`'s `date('now')`.

use jiff::civil::{Date, Weekday};
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp, ToSpan};

use crate::query::read::arguments::{BuiltInMacro, MacroNode};
use crate::query::request::error::QueryError;
use hqdl_sql::blendsql::{MacroSignature, Subject};
use hqdl_sql::{EditText, Edits};
use hqdl_values::sql;

/// The macro `DT`.
pub(super) const DATES: BuiltInMacro = BuiltInMacro {
    signature: MacroSignature::new(Subject::Document, false),
    usage: None,
    expand: |node, _| node.rewrite_date_filter(),
};

/// First and last day of a period.
type Period = (Date, Date);

impl MacroNode<'_> {
    /// Rewrites a date filter as plain SQL, which makes no request. If `start` is a period and
    /// there is no `end`, the filter covers the whole period.
    fn rewrite_date_filter(&self) -> Result<Edits, QueryError> {
        let today = Timestamp::now().to_zoned(TimeZone::UTC).date();
        let [value, start, end] = self.match_all_arguments([&["value"], &["start"], &["end"]])?;
        let Some(value) = value else { return Err(self.missing_argument_error("a column")) };
        let mut bounds: [Option<Date>; 2] = [None, None];
        for (n, keyword, argument) in [(0, "start", start), (1, "end", end)] {
            let Some(argument) = argument else { continue };
            let text = argument.literal_content(self.text);
            let day = text.as_deref().and_then(|text| text.parse::<Date>().ok());
            let period = text.as_deref().and_then(|text| find_period(text, today));
            match (day, period) {
                (Some(day), _) => bounds[n] = Some(day),
                (None, Some((first, _))) if n == 0 && end.is_some() => bounds[0] = Some(first),
                (None, Some((first, last))) if n == 0 => bounds = [Some(first), Some(last)],
                (None, Some((_, last))) => bounds[1] = Some(last),
                (None, None) => {
                    return Err(QueryError::in_sql(
                        format!("`{keyword}` of `DT` is not a day"),
                        Some(argument.span()),
                        "expected a text such as '2024-01-31' or 'last month'",
                        "the periods are today, yesterday, this or last week, month, quarter or \
                         year, ytd, q1 to q4, and 'last 3 months'",
                    ));
                }
            }
        }
        let parts: Vec<EditText> = [(bounds[0], ">="), (bounds[1], "<=")]
            .into_iter()
            .filter_map(|(day, sign)| {
                // `date` drops the time, so that times on the end date are included.
                let end = format!(") {sign} {}", sql::quote_text(&day?.to_string()));
                Some(EditText::concat(["date(".into(), self.value_sql(value), end.into()]))
            })
            .collect();
        if parts.is_empty() {
            let help = "write for example {{DT(t.day, start='2024-01-01', end='2024-01-31')}}";
            let message = "`DT` needs `start=` or `end=`".to_owned();
            return Err(self.error_at_name(message, "in this call", help));
        }
        let condition = EditText::join(parts, " AND ");
        let mut edits = Edits::default();
        let written = EditText::concat(["(".into(), condition, ")".into()]);
        edits.replace(self.call.span.clone(), written);
        Ok(edits)
    }
}

/// Returns the period that a text names. `ytd` ends today, the other periods are complete, and a
/// quarter is the latest one of this name that has begun.
fn find_period(text: &str, today: Date) -> Option<Period> {
    let lower = text.to_lowercase();
    let words: Vec<&str> = lower.split_whitespace().collect();
    match words.as_slice() {
        ["today"] => Some((today, today)),
        ["yesterday"] => today.yesterday().ok().map(|day| (day, day)),
        ["ytd"] => Some((find_first_day("year", today)?, today)),
        [quarter] => {
            let number: i8 = quarter.strip_prefix('q')?.parse().ok()?;
            let first = Date::new(today.year(), number.checked_mul(3)?.checked_sub(2)?, 1).ok()?;
            let first = if first > today { first.checked_sub(1.year()).ok()? } else { first };
            Some((first, first.checked_add(3.months()).ok()?.yesterday().ok()?))
        }
        ["this", unit] => {
            let first = find_first_day(unit, today)?;
            let next = first.checked_add(compute_unit_span(unit, 1)?).ok()?;
            Some((first, next.yesterday().ok()?))
        }
        ["last", unit] => compute_last_period(unit, 1, today),
        ["last", count, units] => compute_last_period(
            units.strip_suffix('s')?,
            count.parse().ok().filter(|n| *n > 0)?,
            today,
        ),
        _ => None,
    }
}

/// Returns the period of the `count` complete units before the unit that contains today.
fn compute_last_period(unit: &str, count: i64, today: Date) -> Option<Period> {
    let end = find_first_day(unit, today)?;
    Some((end.checked_sub(compute_unit_span(unit, count)?).ok()?, end.yesterday().ok()?))
}

/// Returns `None` if the unit is unknown, or if the span is longer than jiff allows.
fn compute_unit_span(unit: &str, count: i64) -> Option<Span> {
    let span = Span::new();
    match unit {
        "day" => span.try_days(count),
        "week" => span.try_weeks(count),
        "month" => span.try_months(count),
        "quarter" => span.try_months(count.checked_mul(3)?),
        "year" => span.try_years(count),
        _ => return None,
    }
    .ok()
}

/// Returns the first day of the unit that contains a day. A week begins on Monday.
fn find_first_day(unit: &str, day: Date) -> Option<Date> {
    match unit {
        "day" => Some(day),
        "week" => {
            let since_monday = day.weekday().since(Weekday::Monday);
            day.checked_sub(since_monday.days()).ok()
        }
        "month" => Some(day.first_of_month()),
        "quarter" => Date::new(day.year(), (day.month() - 1) / 3 * 3 + 1, 1).ok(),
        "year" => Some(day.first_of_year()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn periods_are_those_of_the_calendar() {
        let period = |text: &str, today: &str| {
            let (first, last) = find_period(text, today.parse().unwrap())?;
            Some(format!("{first} {last}"))
        };
        for (text, today, expected) in [
            ("today", "2024-02-29", "2024-02-29 2024-02-29"),
            ("Yesterday", "2024-03-01", "2024-02-29 2024-02-29"),
            // 2024-03-01 is a Friday.
            ("this week", "2024-03-01", "2024-02-26 2024-03-03"),
            ("this month", "2024-02-10", "2024-02-01 2024-02-29"),
            ("this year", "2024-05-31", "2024-01-01 2024-12-31"),
            ("last week", "2024-03-01", "2024-02-19 2024-02-25"),
            ("last 2 weeks", "2024-03-01", "2024-02-12 2024-02-25"),
            ("last month", "2024-03-31", "2024-02-01 2024-02-29"),
            ("last  3 months", "2024-01-15", "2023-10-01 2023-12-31"),
            ("this quarter", "2024-05-31", "2024-04-01 2024-06-30"),
            ("last quarter", "2024-01-01", "2023-10-01 2023-12-31"),
            ("q2", "2024-05-31", "2024-04-01 2024-06-30"),
            ("q4", "2024-05-31", "2023-10-01 2023-12-31"),
            ("last year", "2024-05-31", "2023-01-01 2023-12-31"),
            ("ytd", "2024-05-31", "2024-01-01 2024-05-31"),
            ("last 2 days", "2024-03-01", "2024-02-28 2024-02-29"),
        ] {
            assert_eq!(period(text, today).as_deref(), Some(expected), "{text}");
        }
        for text in ["", "q5", "q0", "last", "last 0 days", "last -1 days", "next month", "last x"]
        {
            assert_eq!(period(text, "2024-05-31"), None, "{text}");
        }
        for text in ["days", "weeks", "months", "quarters", "years"] {
            for count in ["9999999", "2147483647", "9223372036854775807"] {
                assert_eq!(period(&format!("last {count} {text}"), "2024-05-31"), None, "{text}");
            }
        }
        assert_eq!(period("last 32000 years", "2024-05-31"), None);
    }
}
