//! The rows of the sources that belong to one entity, for a person who judges its cells.

use std::time::Duration;

use rusqlite::types::{Value as Sqlite, ValueRef};

use super::source_sql::{find_source_qualifier, format_from_clause, format_key_columns};
use super::{Database, StoreError};
use hqdl_spec::{Expansion, Source, SourceRows};
use hqdl_values::sql;
use hqdl_values::value::Value;

/// Number of characters of a text that are read.
pub(super) const MAX_CHARS: usize = 4000;

/// Rows of one source that belong to an entity.
#[derive(Debug, Clone, PartialEq)]
pub struct MatchingRows {
    /// Name of the source's table; `None` if the source is a SELECT statement.
    pub table: Option<String>,
    /// Names of the source's columns.
    pub columns: Vec<String>,
    /// The first rows. A long text is cut, and a BLOB is replaced by a description.
    pub rows: Vec<Vec<Value>>,
    /// Number of all rows.
    pub count: u64,
}

impl Database {
    /// Returns the rows of each source that belong to an entity: at most `limit` rows of each
    /// source, and the number of all. `keys` are the spellings of the entity's key, so that an index
    /// on the key finds the rows. A server may spend `timeout` on each of its statements.
    ///
    /// # Errors
    /// Returns [`StoreError`] if a source cannot be read.
    pub fn find_entity_rows(
        &self,
        expansion: &Expansion,
        keys: &[Vec<Value>],
        limit: usize,
        timeout: Duration,
    ) -> Result<Vec<MatchingRows>, StoreError> {
        if let Some(server) = self.server() {
            return server.find_entity_rows(expansion, keys, limit, timeout);
        }
        let read =
            |(n, source): (usize, &Source)| self.read_source(expansion, n, source, keys, limit);
        let found: rusqlite::Result<_> = expansion.sources.iter().enumerate().map(read).collect();
        found.map_err(|e| self.to_store_error(&e))
    }

    fn read_source(
        &self,
        expansion: &Expansion,
        n: usize,
        source: &Source,
        keys: &[Vec<Value>],
        limit: usize,
    ) -> rusqlite::Result<MatchingRows> {
        let (from, table) = (format_from_clause(&source.rows), find_source_qualifier(&source.rows));
        let all = self.connection().prepare(&format!("SELECT * FROM {from}"))?;
        let columns: Vec<String> = all.column_names().map(str::to_owned).collect();
        drop(all);
        let mut params = Vec::new();
        let parts = format_key_columns(expansion, n, &table);
        let conditions: Vec<String> =
            keys.iter().map(|key| format_key_condition(&parts, key, &mut params)).collect();
        let mut found =
            MatchingRows { table: table_name(source), columns, rows: Vec::new(), count: 0 };
        if conditions.is_empty() {
            return Ok(found);
        }
        let condition = conditions.join(" OR ");
        let shown: Vec<String> =
            found.columns.iter().map(|c| format_display_column(&table, c)).collect();
        let select =
            format!("SELECT {} FROM {from} WHERE {condition} LIMIT {limit}", shown.join(", "));
        let mut statement = self.connection().prepare(&select)?;
        let mut rows = statement.query(rusqlite::params_from_iter(&params))?;
        while let Some(row) = rows.next()? {
            let values = (0..found.columns.len()).map(|n| Ok(read_display_value(row.get_ref(n)?)));
            found.rows.push(values.collect::<rusqlite::Result<_>>()?);
        }
        let count = format!("SELECT count(*) FROM {from} WHERE {condition}");
        found.count =
            self.connection()
                .query_row(&count, rusqlite::params_from_iter(&params), |row| row.get(0))?;
        Ok(found)
    }
}

pub(super) fn table_name(source: &Source) -> Option<String> {
    match &source.rows {
        SourceRows::Table(table) => Some(table.clone()),
        SourceRows::Select(_) => None,
    }
}

/// Formats the condition that a row has this key, and adds its parameters.
fn format_key_condition(parts: &[String], key: &[Value], params: &mut Vec<Sqlite>) -> String {
    let mut condition = |(part, value): (&String, &Value)| {
        let values = list_stored_values(value);
        if values.is_empty() {
            return format!("{part} IS NULL");
        }
        let marks = vec!["?"; values.len()].join(", ");
        // The first comparison can use an index. The second one keeps a collation from matching
        // other entities.
        params.extend(values.iter().chain(&values).cloned());
        format!("{part} IN ({marks}) AND {part} COLLATE BINARY IN ({marks})")
    };
    let conditions: Vec<String> = parts.iter().zip(key).map(&mut condition).collect();
    format!("({})", conditions.join(" AND "))
}

/// Returns the values that a source can contain for a part of a key; none if the part is NULL. A
/// number may be stored as a text, and a text as a number.
fn list_stored_values(value: &Value) -> Vec<Sqlite> {
    let Some(text) = value.canonical_text() else { return Vec::new() };
    let mut all = vec![Sqlite::Text(text.clone().into_owned())];
    if let Value::Text(written) = value
        && *written != *text
    {
        all.push(Sqlite::Text(written.clone()));
    }
    // A text such as `01` is not the number 1.
    let is_number = |value: Value| value.to_text().is_some_and(|number| number == text);
    let integer = text.parse().ok().filter(|i| is_number(Value::Integer(*i)));
    let real = text.parse().ok().filter(|r| is_number(Value::Real(*r)));
    all.extend(integer.map(Sqlite::Integer));
    all.extend(real.map(Sqlite::Real));
    all
}

/// Formats a column for a person.
fn format_display_column(table: &str, column: &str) -> String {
    let column = format!("{table}.{}", sql::quote_name(column));
    format!(
        "CASE typeof({column}) WHEN 'blob' THEN 'BLOB (' || length({column}) || ' B)'
         WHEN 'text' THEN substr({column}, 1, {MAX_CHARS}) ELSE {column} END"
    )
}

fn read_display_value(value: ValueRef<'_>) -> Value {
    Value::from_sqlite(value).unwrap_or_else(|reason| Value::Text(reason.to_string()))
}
