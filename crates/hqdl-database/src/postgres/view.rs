//! Views on a server that join a source with its expansions.

use std::collections::BTreeSet;

use super::catalog::find_column;
use super::publication::ServerPublication;
use crate::StoreError;
use hqdl_spec::Expansion;
use hqdl_values::sql;

impl ServerPublication<'_> {
    /// Creates the view of a source if it does not exist: the source's own columns, then the
    /// columns of its expansions. Returns a warning if the view's name is already in use.
    pub(crate) fn create_view(
        &self,
        view: &str,
        joined: &[(&Expansion, usize)],
    ) -> Result<Option<String>, StoreError> {
        let server = self.server;
        let qualified = server.qualify_name(view);
        let is_ours = server.is_created_by_hqdl(view)?;
        let exists_sql = "SELECT pg_catalog.to_regclass($1) IS NOT NULL";
        if !is_ours && server.query_one::<bool>(exists_sql, &[&qualified])? {
            return Ok(Some(format!(
                "the schema `{}` has a table `{view}` that hqdl did not make, so hqdl does not create a view with that name",
                server.schema
            )));
        }
        let query = self.build_view_query(joined)?;
        let is_same_sql = format!(
            "SELECT EXISTS (SELECT 1 FROM {} WHERE name = $1 AND definition = $2)",
            server.qualify_name("hqdl_object")
        );
        if is_ours && server.query_one::<bool>(&is_same_sql, &[&view, &query])? {
            return Ok(None);
        }
        // If the new view only has additional columns, replace the view in place, which keeps
        // dependent objects.
        server.execute_batch("SAVEPOINT hqdl_view")?;
        if server.execute_batch(&format!("CREATE OR REPLACE VIEW {qualified} AS {query}")).is_err()
        {
            server.execute_batch("ROLLBACK TO SAVEPOINT hqdl_view")?;
            self.drop_view(view)?;
            server.execute_batch(&format!("CREATE VIEW {qualified} AS {query}"))?;
        }
        let insert = format!(
            "INSERT INTO {} (name, type, definition) VALUES ($1, 'view', $2)
             ON CONFLICT (name) DO UPDATE SET definition = excluded.definition",
            server.qualify_name("hqdl_object")
        );
        server.execute(&insert, &[&view, &query])?;
        Ok(None)
    }

    fn build_view_query(&self, joined: &[(&Expansion, usize)]) -> Result<String, StoreError> {
        let server = self.server;
        let Some(first) = joined.first().and_then(|(e, n)| e.sources.get(*n)) else {
            return Ok(String::new());
        };
        let from_sql = match &first.rows {
            hqdl_spec::SourceRows::Select(select) => format!("({select}\n)"),
            table @ hqdl_spec::SourceRows::Table(_) => server.format_from_clause(table)?,
        };
        let source_columns = server.list_source_columns(&first.rows)?;
        let mut used_names: BTreeSet<String> =
            source_columns.iter().map(|(name, _)| name.to_lowercase()).collect();
        let mut columns = vec!["s.*".to_owned()];
        let mut joins = String::new();
        for (n, (expansion, source_index)) in joined.iter().enumerate() {
            let alias = format!("e{n}");
            joins.push_str(&format!(
                " LEFT JOIN {} AS {alias} ON {}",
                server.qualify_name(&expansion.name),
                self.build_join_condition(expansion, *source_index, &alias, &source_columns)?
            ));
            for column in expansion.columns.iter().filter(|c| c.many.is_none()) {
                let mut name = column.name.clone();
                if !used_names.insert(name.to_lowercase()) {
                    name = format!("{}_{}", expansion.name, column.name);
                    used_names.insert(name.to_lowercase());
                }
                columns.push(format!(
                    "{alias}.{} AS {}",
                    sql::quote_name(&column.name),
                    sql::quote_name(&name)
                ));
            }
        }
        Ok(format!("SELECT {} FROM {from_sql} AS s{joins}", columns.join(", ")))
    }

    /// Returns the join condition: a row of an expansion and a row of the source have the same key.
    /// The condition allows a hash join.
    fn build_join_condition(
        &self,
        expansion: &Expansion,
        source_index: usize,
        alias: &str,
        source_columns: &[(String, tokio_postgres::types::Type)],
    ) -> Result<String, StoreError> {
        let layout = self.server.load_table_layout(expansion)?;
        let key_part = expansion.key_parts.get(source_index);
        let (mut expansion_keys, mut source_keys, mut absent) =
            (Vec::new(), Vec::new(), Vec::new());
        for (n, (name, type_name)) in layout.key.iter().enumerate() {
            let key = format!("{alias}.{}", sql::quote_name(name));
            if key_part.is_some_and(|key_part| !key_part.contains(&n)) {
                absent.push(format!(" AND {key} IS NULL"));
                continue;
            }
            let source_column = find_column(source_columns, name).map_or(name, |(name, _)| name);
            expansion_keys.push(key);
            source_keys.push(format!("s.{}::{type_name}", sql::quote_name(source_column)));
        }
        let condition = if layout.has_no_null_keys || expansion_keys.len() == 1 {
            let pairs = expansion_keys.iter().zip(&source_keys).map(|(o, t)| format!("{o} = {t}"));
            pairs.collect::<Vec<_>>().join(" AND ")
        } else {
            // Unlike row comparison, record comparison treats NULLs as equal.
            format!(
                "ROW({})::record = ROW({})::record",
                expansion_keys.join(", "),
                source_keys.join(", ")
            )
        };
        Ok(condition + &absent.concat())
    }
}
