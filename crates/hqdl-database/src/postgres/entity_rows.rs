//! Reads the rows of one entity from the sources on a server.

use std::time::Duration;

use tokio_postgres::types::Type;

use super::DatabaseServer;
use super::catalog::find_column;
use super::source::quote_text;
use crate::StoreError;
use crate::entity_rows::{MAX_CHARS, MatchingRows, table_name};
use hqdl_spec::{Expansion, Source};
use hqdl_values::sql;
use hqdl_values::value::Value;

impl DatabaseServer {
    /// Returns the rows of each source that belong to an entity, like
    /// [`Database::find_entity_rows`](crate::Database::find_entity_rows).
    pub(crate) fn find_entity_rows(
        &self,
        expansion: &Expansion,
        keys: &[Vec<Value>],
        limit: usize,
        timeout: Duration,
    ) -> Result<Vec<MatchingRows>, StoreError> {
        let read = |(n, source): (usize, &Source)| {
            self.read_entity_rows(expansion, n, source, (keys, limit), timeout)
        };
        expansion.sources.iter().enumerate().map(read).collect()
    }

    fn read_entity_rows(
        &self,
        expansion: &Expansion,
        n: usize,
        source: &Source,
        (keys, limit): (&[Vec<Value>], usize),
        timeout: Duration,
    ) -> Result<MatchingRows, StoreError> {
        let columns = self.list_source_columns(&source.rows)?;
        let key_part = expansion.key_parts.get(n);
        let condition = |key: &Vec<Value>| {
            let parts =
                expansion.key.names().iter().zip(key).enumerate().map(|(n, (name, value))| {
                    let is_in_source = key_part.is_none_or(|key_part| key_part.contains(&n));
                    let column = find_column(&columns, name).filter(|_| is_in_source);
                    column.map_or_else(
                        || (*value == Value::Null).to_string(),
                        |(name, kind)| format_part_condition(&sql::quote_name(name), kind, value),
                    )
                });
            format!("({})", parts.collect::<Vec<_>>().join(" AND "))
        };
        let conditions: Vec<String> = keys.iter().map(condition).collect();
        let mut found = MatchingRows {
            table: table_name(source),
            columns: columns.iter().map(|(name, _)| name.clone()).collect(),
            rows: Vec::new(),
            count: 0,
        };
        if conditions.is_empty() {
            return Ok(found);
        }
        let rows = format!(
            "FROM {} WHERE {}",
            self.format_from_clause(&source.rows)?,
            conditions.join(" OR ")
        );
        let shown: Vec<String> = columns
            .iter()
            .map(|(name, kind)| format_display_column(&sql::quote_name(name), kind))
            .collect();
        let transaction = self.begin_transaction("ISOLATION LEVEL REPEATABLE READ READ ONLY")?;
        self.set_statement_timeout(timeout)?;
        self.for_each_row(
            &format!("SELECT {} {rows} LIMIT {limit}", shown.join(", ")),
            &mut |row| {
                let value = |n: usize| -> Result<Value, StoreError> {
                    let text: Option<String> =
                        row.try_get(n).map_err(|e| self.to_store_error(&e))?;
                    Ok(text.map_or(Value::Null, Value::Text))
                };
                found.rows.push((0..columns.len()).map(value).collect::<Result<_, _>>()?);
                Ok(true)
            },
        )?;
        let count: i64 = self.query_one(&format!("SELECT count(*) {rows}"), &[])?;
        transaction.commit()?;
        found.count = u64::try_from(count).unwrap_or_default();
        Ok(found)
    }
}

/// Formats the condition that a column contains this part of a key. The column is compared in its
/// own type where possible, so that an index finds the rows.
fn format_part_condition(column: &str, kind: &Type, value: &Value) -> String {
    let Some(text) = value.canonical_text() else { return format!("{column} IS NULL") };
    let written = value.to_text().unwrap_or_default();
    let texts = format!("({}, {})", quote_text(&text), quote_text(&written));
    let number = text.parse::<f64>().is_ok_and(f64::is_finite);
    match *kind {
        Type::INT2 | Type::INT4 | Type::INT8 | Type::OID if text.parse::<i64>().is_ok() => {
            format!("{column} = {text}")
        }
        Type::NUMERIC | Type::FLOAT4 | Type::FLOAT8 if number => {
            format!("{column}::text::numeric = {text}")
        }
        Type::BOOL if text == "1" || text == "0" => format!("{column} = ({text} = 1)"),
        Type::TIMESTAMPTZ if text.parse::<jiff::Timestamp>().is_ok() => {
            format!("{column} = {}::timestamptz", quote_text(&text))
        }
        Type::TEXT | Type::VARCHAR => format!("{column} IN {texts}"),
        _ => format!("{column}::text IN {texts}"),
    }
}

/// Formats a column for a person.
fn format_display_column(column: &str, kind: &Type) -> String {
    match *kind {
        Type::BYTEA => format!("'BLOB (' || octet_length({column}) || ' B)'"),
        _ => format!("left({column}::text, {MAX_CHARS})"),
    }
}
