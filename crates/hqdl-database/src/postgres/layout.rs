//! Columns and constraints of an expansion's published tables on a server.

use tokio_postgres::types::Type;

use super::catalog::find_column;
use super::values::choose_published_key_type;
use super::{DatabaseServer, quote_name_list};
use crate::StoreError;
use hqdl_spec::{Expansion, SourceRows};
use hqdl_values::sql;

/// Layout of an expansion's published tables on a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ServerTables {
    /// Key columns, with their types.
    pub(super) key: Vec<(String, &'static str)>,
    /// Whether no key column is ever NULL.
    pub(super) has_no_null_keys: bool,
    /// Columns with their types.
    pub(super) columns: Vec<(String, &'static str)>,
    /// Table, column and type of each one-to-many column.
    pub(super) many: Vec<(String, String, &'static str)>,
}

impl ServerTables {
    /// Returns a text that changes whenever the layout of the tables changes.
    pub(super) fn fingerprint(&self) -> String {
        format!("{self:?}")
    }

    pub(super) fn key_names(&self) -> String {
        quote_name_list(self.key.iter().map(|(name, _)| name.as_str()))
    }

    /// Returns the unique constraint on the key columns and `other_columns`.
    pub(super) fn build_unique_constraint(&self, other_columns: &str) -> String {
        let (key, comma) = (self.key_names(), if other_columns.is_empty() { "" } else { ", " });
        let constraint =
            if self.has_no_null_keys { "PRIMARY KEY" } else { "UNIQUE NULLS NOT DISTINCT" };
        format!("{constraint} ({key}{comma}{other_columns})")
    }

    /// Returns a condition that selects the rows of a table whose keys are in `u`. The condition
    /// allows a hash join.
    pub(super) fn key_condition(&self, table: &str) -> String {
        let key_expressions = |to_expression: &dyn Fn(usize, &(String, &'static str)) -> String| {
            self.key.iter().enumerate().map(|(n, key)| to_expression(n, key)).collect::<Vec<_>>()
        };
        let table_keys =
            key_expressions(&|_, (name, _)| format!("{table}.{}", sql::quote_name(name)));
        let sent_keys = key_expressions(&|n, (_, type_name)| format!("u.c{n}::{type_name}"));
        if self.has_no_null_keys {
            let pairs = table_keys.iter().zip(&sent_keys);
            return pairs.map(|(t, h)| format!("{t} = {h}")).collect::<Vec<_>>().join(" AND ");
        }
        // Unlike row comparison, record comparison treats NULLs as equal.
        format!("ROW({})::record = ROW({})::record", table_keys.join(", "), sent_keys.join(", "))
    }
}

/// Returns the type of a published key column, given the column's types in the sources.
fn choose_key_type(types: &[Type]) -> &'static str {
    let mut key_types: Vec<&'static str> = types.iter().map(choose_published_key_type).collect();
    key_types.dedup();
    let all_among = |of: &[&str]| key_types.iter().all(|key_type| of.contains(key_type));
    match key_types.as_slice() {
        [only] => only,
        _ if all_among(&["smallint", "integer", "bigint"]) => "bigint",
        _ if all_among(&["smallint", "integer", "bigint", "numeric"]) => "numeric",
        _ => "text",
    }
}

impl DatabaseServer {
    /// Returns the layout of the tables for an expansion.
    pub(super) fn load_table_layout(
        &self,
        expansion: &Expansion,
    ) -> Result<ServerTables, StoreError> {
        let names = expansion.key.names();
        let mut key_types: Vec<Vec<Type>> = vec![Vec::new(); names.len()];
        let mut has_no_null_keys = expansion.key_parts.is_empty();
        for (n, source) in expansion.sources.iter().enumerate() {
            let columns = self.list_source_columns(&source.rows)?;
            let key_part = expansion.key_parts.get(n);
            for (position, name) in names.iter().enumerate() {
                if key_part.is_some_and(|key_part| !key_part.contains(&position)) {
                    continue;
                }
                let Some((column, data_type)) = find_column(&columns, name) else { continue };
                key_types[position].push(data_type.clone());
                has_no_null_keys &= self.is_never_null(&source.rows, column)?;
            }
        }
        let key = names
            .iter()
            .cloned()
            .zip(key_types.iter().map(|types| choose_key_type(types)))
            .collect();
        let single_columns = expansion.columns.iter().filter(|c| c.many.is_none());
        let many = expansion.columns.iter().filter_map(|c| {
            c.many.as_ref().map(|m| (m.table.clone(), m.column.clone(), c.kind.postgres_type()))
        });
        Ok(ServerTables {
            key,
            // A row whose key columns are all NULL is never published.
            has_no_null_keys: has_no_null_keys || names.len() == 1,
            columns: single_columns.map(|c| (c.name.clone(), c.kind.postgres_type())).collect(),
            many: many.collect(),
        })
    }

    fn is_never_null(&self, rows: &SourceRows, column: &str) -> Result<bool, StoreError> {
        let SourceRows::Table(table) = rows else { return Ok(false) };
        let Some(table) = self.find_table(table)? else { return Ok(false) };
        let sql = "SELECT EXISTS (SELECT 1 FROM pg_catalog.pg_attribute
            WHERE attrelid = pg_catalog.to_regclass($1) AND attname = $2 AND attnotnull)";
        self.query_one(sql, &[&table, &column])
    }
}
