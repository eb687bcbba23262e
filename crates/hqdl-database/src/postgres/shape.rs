//! Columns and constraints of an expansion's published tables on a server.

use tokio_postgres::types::Type;

use super::catalog::find;
use super::values::of_key;
use super::{DatabaseServer, names};
use crate::StoreError;
use hqdl_spec::{Expansion, SourceRows};
use hqdl_values::sql;

/// Tables of an expansion on a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ServerTables {
    /// Key columns with their types.
    pub(super) key: Vec<(String, &'static str)>,
    /// Whether no key column is ever NULL.
    pub(super) whole: bool,
    /// Columns with their types.
    pub(super) columns: Vec<(String, &'static str)>,
    /// Table, column and type of the one-to-many columns.
    pub(super) many: Vec<(String, String, &'static str)>,
}

impl ServerTables {
    /// Returns a text that changes if the tables change.
    pub(super) fn text(&self) -> String {
        format!("{self:?}")
    }

    pub(super) fn key_names(&self) -> String {
        names(self.key.iter().map(|(name, _)| name.as_str()))
    }

    /// Returns the unique constraint on the key columns (and others).
    pub(super) fn unique(&self, more: &str) -> String {
        let (key, comma) = (self.key_names(), if more.is_empty() { "" } else { ", " });
        let kind = if self.whole { "PRIMARY KEY" } else { "UNIQUE NULLS NOT DISTINCT" };
        format!("{kind} ({key}{comma}{more})")
    }

    /// Returns a condition for the rows of a table with the keys in `u`; it allows a hash join.
    pub(super) fn matches(&self, table: &str) -> String {
        let side = |of: &dyn Fn(usize, &(String, &'static str)) -> String| {
            self.key.iter().enumerate().map(|(n, key)| of(n, key)).collect::<Vec<_>>()
        };
        let there = side(&|_, (name, _)| format!("{table}.{}", sql::name(name)));
        let here = side(&|n, (_, kind)| format!("u.c{n}::{kind}"));
        if self.whole {
            let pairs = there.iter().zip(&here);
            return pairs.map(|(t, h)| format!("{t} = {h}")).collect::<Vec<_>>().join(" AND ");
        }
        // Unlike row comparison, record comparison treats NULLs as equal.
        format!("ROW({})::record = ROW({})::record", there.join(", "), here.join(", "))
    }
}

/// Returns the type of a key column from the types in its sources.
fn agreed(kinds: &[Type]) -> &'static str {
    let mut all: Vec<&'static str> = kinds.iter().map(of_key).collect();
    all.dedup();
    let among = |of: &[&str]| all.iter().all(|kind| of.contains(kind));
    match all.as_slice() {
        [one] => one,
        _ if among(&["smallint", "integer", "bigint"]) => "bigint",
        _ if among(&["smallint", "integer", "bigint", "numeric"]) => "numeric",
        _ => "text",
    }
}

impl DatabaseServer {
    /// Returns the tables that an expansion needs.
    pub(super) fn shape(&self, expansion: &Expansion) -> Result<ServerTables, StoreError> {
        let names = expansion.key.names();
        let mut kinds: Vec<Vec<Type>> = vec![Vec::new(); names.len()];
        let mut whole = expansion.key_parts.is_empty();
        for (n, source) in expansion.sources.iter().enumerate() {
            let columns = self.source_columns(&source.rows)?;
            let part = expansion.key_parts.get(n);
            for (at, name) in names.iter().enumerate() {
                if part.is_some_and(|part| !part.contains(&at)) {
                    continue;
                }
                let Some((own, kind)) = find(&columns, name) else { continue };
                kinds[at].push(kind.clone());
                whole &= self.is_never_null(&source.rows, own)?;
            }
        }
        let key = names.iter().cloned().zip(kinds.iter().map(|kinds| agreed(kinds))).collect();
        let single = expansion.columns.iter().filter(|c| c.many.is_none());
        let many = expansion.columns.iter().filter_map(|c| {
            c.many.as_ref().map(|m| (m.table.clone(), m.column.clone(), c.kind.postgres()))
        });
        Ok(ServerTables {
            key,
            // A row whose key columns are all NULL is never published.
            whole: whole || names.len() == 1,
            columns: single.map(|c| (c.name.clone(), c.kind.postgres())).collect(),
            many: many.collect(),
        })
    }

    fn is_never_null(&self, rows: &SourceRows, column: &str) -> Result<bool, StoreError> {
        let SourceRows::Table(table) = rows else { return Ok(false) };
        let Some(table) = self.table(table)? else { return Ok(false) };
        let sql = "SELECT EXISTS (SELECT 1 FROM pg_catalog.pg_attribute
            WHERE attrelid = pg_catalog.to_regclass($1) AND attname = $2 AND attnotnull)";
        self.one(sql, &[&table, &column])
    }
}
