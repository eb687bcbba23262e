//! SQL that reads the sources of an expansion.

use hqdl_spec::{Expansion, SourceRows};
use hqdl_values::sql;

/// Returns a source's key columns as SQL, with NULL for columns that the source lacks.
pub(super) fn format_key_columns(expansion: &Expansion, source: usize, table: &str) -> Vec<String> {
    let key_part = expansion.key_parts.get(source);
    let to_sql = |(n, name): (usize, &String)| match key_part {
        Some(key_part) if !key_part.contains(&n) => "NULL".to_owned(),
        _ => format!("{table}.{}", sql::quote_name(name)),
    };
    expansion.key.names().iter().enumerate().map(to_sql).collect()
}

/// Alias of a source that is a SELECT statement.
const SOURCE_ALIAS: &str = "hqdl_source";

/// Formats a source for use in a FROM clause. The line break terminates a `--` comment at the end
/// of a SELECT.
pub(super) fn format_from_clause(rows: &SourceRows) -> String {
    match rows {
        SourceRows::Table(table) => sql::quote_name(table),
        SourceRows::Select(select) => format!("({select}\n) AS {SOURCE_ALIAS}"),
    }
}

/// Returns the name that qualifies the columns of a source.
///
/// `SQLite` treats a double-quoted name that is not a column as a text, unless the name is
/// qualified with a table. Without the qualifier, a renamed column would give every row the same
/// key.
pub(super) fn find_source_qualifier(rows: &SourceRows) -> String {
    match rows {
        SourceRows::Table(table) => sql::quote_name(table),
        SourceRows::Select(_) => SOURCE_ALIAS.to_owned(),
    }
}
