//! Describes which tables a query searched.

use hqdl_database::Database;
use hqdl_spec::Catalog;
use hqdl_sql::blendsql::parse::parse_query;
use hqdl_values::format::{format_count, format_thousands};
use hqdl_values::sql::quote_name;
use hqdl_values::value::Value;

use super::schema::TableDescription;
use crate::query::Meta;
use crate::query::connection::large_stack::with_large_stack;

/// Returns a sentence that names the tables that a query read, their row counts, and the number of
/// values that a model answered.
#[must_use]
pub fn describe_search(
    database: &Database,
    descriptions: &[TableDescription],
    meta: &Meta,
) -> String {
    let mut names: Vec<String> = Vec::new();
    let mut add_name = |table: &str| {
        if !names.iter().any(|name| name.eq_ignore_ascii_case(table)) {
            names.push(table.to_owned());
        }
    };
    // If the query is nested too deeply for the stack, list no tables.
    let _ = with_large_stack(|| {
        if let Ok(parsed) = parse_query(&meta.sql) {
            parsed.query.visit_tables(&mut |table| add_name(table));
        }
    });
    // Skip the names of WITH clauses.
    let all = database.table_names();
    let tables = names.iter().filter_map(|name| all.iter().find(|t| t.eq_ignore_ascii_case(name)));
    // Counting a view's rows can be slow.
    let is_view = |table: &String| {
        descriptions.iter().any(|description| description.is_view && description.name == *table)
    };
    let count = |table: &String| if is_view(table) { None } else { count_rows(database, table) };
    let describe = |table: &String| match count(table) {
        Some(rows) => format!("{} of {table}", format_count(rows, "row")),
        None => table.clone(),
    };
    let tables: Vec<String> = tables.map(describe).collect();
    let mut sentence = match tables.as_slice() {
        [] => "searched no table".to_owned(),
        tables => format!("searched {}", tables.join(", ")),
    };
    let values = meta.values_asked + meta.values_reused;
    if values > 0 {
        sentence.push_str(&format!(
            "; the model was asked about {}: {} now, {} without an answer",
            format_count(values, "value"),
            format_thousands(meta.values_asked),
            format_thousands(meta.values_missing)
        ));
    }
    sentence
}

fn count_rows(database: &Database, table: &str) -> Option<u64> {
    let rows =
        database.select_rows(&format!("SELECT count(*) FROM {}", quote_name(table)), 1).ok()?;
    match rows.first()?.first()? {
        Value::Integer(count) => u64::try_from(*count).ok(),
        _ => None,
    }
}
