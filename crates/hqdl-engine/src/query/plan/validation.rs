//! Makes `SQLite` check a query before any request is sent. Placeholders replace the calls, so that
//! an error has a span in the original text.

use std::ops::Range;

use rusqlite::Connection;
use rusqlite::config::DbConfig;
use rusqlite::functions::FunctionFlags;
use rusqlite::types::Null;

use crate::query::connection::guard::GuardedConnection;
use crate::query::connection::quoted_texts::describe_quoted_texts;
use crate::query::request::error::QueryError;
use hqdl_sql::blendsql::parse::ParsedQuery;
use hqdl_sql::blendsql::tree::ExprKind;
use hqdl_sql::blendsql::{Argument, Call};
use hqdl_values::sql;

/// Maximum number of columns in the row that replaces a call: one more than the 2,000 columns that
/// `SQLite` accepts in a result.
const MAX_COLUMNS: u32 = 2_001;

/// Function that replaces a call, so that `SQLite` cannot infer the call's value.
const OPAQUE_FUNCTION: &str = "hqdl_opaque";

/// Checks the query with its calls replaced, and returns notes about the query.
///
/// # Errors
/// Returns [`QueryError::Sql`] with a span if the query is invalid.
pub(in crate::query) fn validate_query(
    text: &str,
    parsed: &ParsedQuery,
    guard: &GuardedConnection,
) -> Result<Vec<String>, QueryError> {
    if parsed.is_single_call {
        return Ok(Vec::new());
    }
    // An aggregate belongs to the SELECT whose columns it uses, even inside the arguments of a
    // call. Therefore, replace each call with a function of its arguments.
    let flags = FunctionFlags::SQLITE_UTF8;
    let connection = guard.connection();
    connection
        .create_scalar_function(OPAQUE_FUNCTION, -1, flags, |_| Ok(Null))
        .map_err(|error| guard.query_error(&error, ""))?;
    let replacer = CallReplacer { text, parsed, list_flags: mark_list_calls(parsed) };
    let with_functions =
        replacer.replace_with_functions(0..text.len(), &list_outermost_calls(parsed));
    let prepared = connection.prepare(&with_functions).map(drop);
    let notes = match prepared {
        Ok(()) => {
            let mut notes = describe_quoted_texts(&with_functions, connection);
            notes.extend(describe_column_texts(&replacer, connection));
            notes
        }
        Err(_) => Vec::new(),
    };
    connection
        .remove_function(OPAQUE_FUNCTION, -1)
        .map_err(|error| guard.query_error(&error, ""))?;
    let Err(error) = prepared else { return Ok(notes) };
    // Clear the denial that the guard recorded.
    drop(guard.query_error(&error, &with_functions));
    // NULLs padded to the same length keep every offset. If only a call's arguments are wrong, this
    // statement is valid, and preparing the rewritten query reports the error.
    let nulls = replacer.replace_with_nulls();
    connection.prepare(&nulls).map(drop).map_err(|error| guard.query_error(&error, &nulls))?;
    Ok(notes)
}

/// Returns a note for each text that a call asks about and that is the name of a column, such as
/// `LLMMap('…', 'name')`.
fn describe_column_texts(replacer: &CallReplacer<'_>, connection: &Connection) -> Vec<String> {
    let (text, calls) = (replacer.text, list_outermost_calls(replacer.parsed));
    let values = calls.iter().flat_map(|call| &call.values);
    let is_word_char = |c: char| c.is_alphanumeric() || c == '_';
    let names = values.filter_map(|value| {
        let Argument::Sql(span) = value else { return None };
        let name = text.get(span.clone())?.strip_prefix('\'')?.strip_suffix('\'')?;
        (!name.is_empty() && name.chars().all(is_word_char)).then(|| (span.clone(), name))
    });
    let names: Vec<(Range<usize>, &str)> = names.collect();
    // Without this setting, SQLite reads an unknown double-quoted name as a text.
    if names.is_empty()
        || connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DQS_DML, false).is_err()
    {
        return Vec::new();
    }
    let is_column = |span: &Range<usize>, name: &str| {
        // The name has the length of the text, so all spans stay valid.
        let mut text = text.to_owned();
        text.replace_range(span.clone(), &sql::quote_name(name));
        let list_flags = replacer.list_flags.clone();
        let replacer = CallReplacer { text: &text, parsed: replacer.parsed, list_flags };
        let statement = replacer.replace_with_functions(0..text.len(), &calls);
        connection.prepare(&statement).is_ok()
    };
    let notes = names.iter().filter(|(span, name)| is_column(span, name)).map(|(_, name)| {
        format!(
            "'{name}' is a text, so hqdl asks about this word; the column is written without quotes: {name}"
        )
    });
    let notes = notes.collect();
    let _ = connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DQS_DML, true);
    notes
}

/// Returns, for each call, whether it is the list after an IN.
fn mark_list_calls(parsed: &ParsedQuery) -> Vec<bool> {
    let mut list_flags = vec![false; parsed.calls.len()];
    parsed.query.visit_exprs(&mut |e| {
        if let ExprKind::In { is_answer: true, list, .. } = &e.kind
            && let Some(ExprKind::Call(n, _)) = list.first().map(|call| &call.kind)
            && let Some(flag) = list_flags.get_mut(*n)
        {
            *flag = true;
        }
    });
    list_flags
}

/// Replaces the calls of a query.
struct CallReplacer<'q> {
    text: &'q str,
    parsed: &'q ParsedQuery,
    list_flags: Vec<bool>,
}

impl CallReplacer<'_> {
    /// Returns the query with each call replaced with a NULL of the same length.
    fn replace_with_nulls(&self) -> String {
        let mut nulls = String::with_capacity(self.text.len());
        let mut at = 0;
        for call in list_outermost_calls(self.parsed) {
            nulls.push_str(&self.text[at..call.span.start]);
            let null = self.wrap_value(&call, "NULL", "NULL");
            nulls.push_str(&null);
            nulls.push_str(&" ".repeat(call.span.len().saturating_sub(null.len())));
            at = call.span.end;
        }
        nulls.push_str(&self.text[at..]);
        nulls
    }

    /// Returns a part of the query in which each given call is replaced with a function of its
    /// arguments.
    fn replace_with_functions(&self, span: Range<usize>, calls: &[Call]) -> String {
        let (mut sql, mut at) = (String::with_capacity(span.len()), span.start);
        for call in calls {
            if call.span.start < at || call.span.end > span.end {
                continue;
            }
            sql.push_str(&self.text[at..call.span.start]);
            let values: Vec<String> =
                call.values.iter().map(|v| self.argument_sql(v, call)).collect();
            let first = format!("{OPAQUE_FUNCTION}({})", values.join(", "));
            sql.push_str(&self.wrap_value(call, &first, "NULL"));
            at = call.span.end;
        }
        sql.push_str(&self.text[at..span.end]);
        sql
    }

    /// Returns an argument of a call as SQL.
    fn argument_sql(&self, value: &Argument, call: &Call) -> String {
        match value {
            Argument::Column { table: Some(table), column, .. } => {
                format!("{}.{}", sql::quote_name(table), sql::quote_name(column))
            }
            Argument::Column { table: None, column, .. } => sql::quote_name(column),
            Argument::Sql(span) => self.replace_with_functions(span.clone(), &call.inner),
            Argument::Query(span) => {
                format!("EXISTS ({})", self.replace_with_functions(span.clone(), &call.inner))
            }
        }
    }

    /// Returns the replacement of a call: one value, a row of values, or a list.
    fn wrap_value(&self, call: &Call, value: &str, other: &str) -> String {
        let number = self.parsed.calls.iter().position(|c| c.span == call.span);
        if call.is_values_row {
            let width = call.values_column_count().clamp(1, MAX_COLUMNS) as usize;
            let mut values = vec![other; width];
            values[0] = value;
            format!("({})", values.join(", "))
        } else if number.is_some_and(|n| self.list_flags[n]) {
            format!("({value})")
        } else {
            value.to_owned()
        }
    }
}

/// Returns the outermost calls in text order.
fn list_outermost_calls(parsed: &ParsedQuery) -> Vec<Call> {
    let mut all: Vec<&Call> = parsed.calls.iter().collect();
    all.sort_by_key(|c| (c.span.start, std::cmp::Reverse(c.span.end)));
    let mut outermost: Vec<Call> = Vec::new();
    for call in all {
        if outermost.last().is_none_or(|before| before.span.end <= call.span.start) {
            outermost.push(call.clone());
        }
    }
    outermost
}
