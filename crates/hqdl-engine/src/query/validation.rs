//! Lets `SQLite` check a query before any request is sent. Calls are replaced by placeholders, so
//! that an error has a span in the original text.

use std::ops::Range;

use rusqlite::functions::FunctionFlags;
use rusqlite::types::Null;

use super::QueryError;
use super::guard::Guard;
use super::quoted_texts::note_quoted_texts;
use hqdl_sql::blendsql::parse::Parsed;
use hqdl_sql::blendsql::tree::ExprKind;
use hqdl_sql::blendsql::{Argument, Call};
use hqdl_values::sql;

/// Maximum number of columns in a replaced row. `SQLite` rejects a result with more than 2,000.
const MOST_COLUMNS: u32 = 2_001;

/// Function that replaces a call, so that `SQLite` cannot infer its value.
const OPAQUE: &str = "hqdl_opaque";

/// Checks the query without its calls, and returns notes on it.
///
/// # Errors
/// [`QueryError::Sql`] with a span.
pub(super) fn validate(
    text: &str,
    parsed: &Parsed,
    guard: &Guard,
) -> Result<Vec<String>, QueryError> {
    if parsed.lone {
        return Ok(Vec::new());
    }
    // An aggregate belongs to the SELECT whose columns it uses, even inside the arguments of a
    // call. A call is therefore replaced by a function of its arguments.
    let flags = FunctionFlags::SQLITE_UTF8;
    let connection = guard.connection();
    connection
        .create_scalar_function(OPAQUE, -1, flags, |_| Ok(Null))
        .map_err(|error| guard.error(&error, ""))?;
    let replacement = Replacement { text, parsed, lists: lists(parsed) };
    let of_values = replacement.of_values(0..text.len(), &outer(parsed));
    let prepared = connection.prepare(&of_values).map(drop);
    let notes = match prepared {
        Ok(()) => note_quoted_texts(&of_values, connection),
        Err(_) => Vec::new(),
    };
    connection.remove_function(OPAQUE, -1).map_err(|error| guard.error(&error, ""))?;
    let Err(error) = prepared else { return Ok(notes) };
    // Clear the denial that the guard recorded.
    drop(guard.error(&error, &of_values));
    // NULLs padded to the same length keep every offset. If only a call's arguments are wrong, the
    // statement with the arguments reports the error.
    let nulls = replacement.of_nulls();
    connection.prepare(&nulls).map(drop).map_err(|error| guard.error(&error, &nulls))?;
    Ok(notes)
}

/// Returns for each call whether it is the list after an IN.
fn lists(parsed: &Parsed) -> Vec<bool> {
    let mut lists = vec![false; parsed.calls.len()];
    parsed.query.each(&mut |e| {
        if let ExprKind::In { is_answer: true, list, .. } = &e.kind
            && let Some(ExprKind::Call(n, _)) = list.first().map(|call| &call.kind)
            && let Some(is_list) = lists.get_mut(*n)
        {
            *is_list = true;
        }
    });
    lists
}

/// Replaces the calls of a query.
struct Replacement<'q> {
    text: &'q str,
    parsed: &'q Parsed,
    lists: Vec<bool>,
}

impl Replacement<'_> {
    /// Returns the query with each call replaced by a NULL of the same length.
    fn of_nulls(&self) -> String {
        let mut nulls = String::with_capacity(self.text.len());
        let mut at = 0;
        for call in outer(self.parsed) {
            nulls.push_str(&self.text[at..call.span.start]);
            let null = self.in_its_place(&call, "NULL", "NULL");
            nulls.push_str(&null);
            nulls.push_str(&" ".repeat(call.span.len().saturating_sub(null.len())));
            at = call.span.end;
        }
        nulls.push_str(&self.text[at..]);
        nulls
    }

    /// Returns a part of the query with some calls replaced by a function of their arguments.
    fn of_values(&self, span: Range<usize>, calls: &[Call]) -> String {
        let (mut written, mut at) = (String::with_capacity(span.len()), span.start);
        for call in calls {
            if call.span.start < at || call.span.end > span.end {
                continue;
            }
            written.push_str(&self.text[at..call.span.start]);
            let values: Vec<String> = call.values.iter().map(|v| self.value(v, call)).collect();
            let first = format!("{OPAQUE}({})", values.join(", "));
            written.push_str(&self.in_its_place(call, &first, "NULL"));
            at = call.span.end;
        }
        written.push_str(&self.text[at..span.end]);
        written
    }

    /// Returns an argument of a call as SQL.
    fn value(&self, value: &Argument, call: &Call) -> String {
        match value {
            Argument::Column { table: Some(table), column, .. } => {
                format!("{}.{}", sql::name(table), sql::name(column))
            }
            Argument::Column { table: None, column, .. } => sql::name(column),
            Argument::Sql(span) => self.of_values(span.clone(), &call.inner),
            Argument::Query(span) => {
                format!("EXISTS ({})", self.of_values(span.clone(), &call.inner))
            }
        }
    }

    /// Returns the replacement of a call: one value, a row of values, or a list.
    fn in_its_place(&self, call: &Call, value: &str, other: &str) -> String {
        let number = self.parsed.calls.iter().position(|c| c.span == call.span);
        if call.row {
            let width = call.width().clamp(1, MOST_COLUMNS) as usize;
            let mut values = vec![other; width];
            values[0] = value;
            format!("({})", values.join(", "))
        } else if number.is_some_and(|n| self.lists[n]) {
            format!("({value})")
        } else {
            value.to_owned()
        }
    }
}

/// Returns the outermost calls in the order of the text.
pub(super) fn outer(parsed: &Parsed) -> Vec<Call> {
    let mut all: Vec<&Call> = parsed.calls.iter().collect();
    all.sort_by_key(|c| (c.span.start, std::cmp::Reverse(c.span.end)));
    let mut outer: Vec<Call> = Vec::new();
    for call in all {
        if outer.last().is_none_or(|before| before.span.end <= call.span.start) {
            outer.push(call.clone());
        }
    }
    outer
}
