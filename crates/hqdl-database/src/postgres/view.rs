//! Views that join a source with its expansions, on a server.

use std::collections::BTreeSet;

use super::catalog::find;
use super::publication::Publishing;
use crate::StoreError;
use hqdl_spec::Expansion;
use hqdl_values::sql;

impl Publishing<'_> {
    /// Creates a view, unless it exists: the source's own columns, then those of its expansions.
    /// Returns a warning if its name is in use.
    pub(crate) fn view(
        &self,
        view: &str,
        joined: &[(&Expansion, usize)],
    ) -> Result<Option<String>, StoreError> {
        let server = self.server;
        let own = server.own(view);
        let ours = server.made_by_hqdl(view)?;
        let taken = "SELECT pg_catalog.to_regclass($1) IS NOT NULL";
        if !ours && server.one::<bool>(taken, &[&own])? {
            return Ok(Some(format!(
                "the schema `{}` has a table `{view}` that hqdl did not make, so hqdl does not create a view with that name",
                server.schema
            )));
        }
        let text = self.view_text(joined)?;
        let same = format!(
            "SELECT EXISTS (SELECT 1 FROM {} WHERE name = $1 AND definition = $2)",
            server.own("hqdl_object")
        );
        if ours && server.one::<bool>(&same, &[&view, &text])? {
            return Ok(None);
        }
        // Replace the view in place if it only has more columns, which keeps dependent objects.
        server.batch("SAVEPOINT hqdl_view")?;
        if server.batch(&format!("CREATE OR REPLACE VIEW {own} AS {text}")).is_err() {
            server.batch("ROLLBACK TO SAVEPOINT hqdl_view")?;
            self.drop_view(view)?;
            server.batch(&format!("CREATE VIEW {own} AS {text}"))?;
        }
        let note = format!(
            "INSERT INTO {} (name, type, definition) VALUES ($1, 'view', $2)
             ON CONFLICT (name) DO UPDATE SET definition = excluded.definition",
            server.own("hqdl_object")
        );
        server.execute(&note, &[&view, &text])?;
        Ok(None)
    }

    fn view_text(&self, joined: &[(&Expansion, usize)]) -> Result<String, StoreError> {
        let server = self.server;
        let Some(first) = joined.first().and_then(|(e, n)| e.sources.get(*n)) else {
            return Ok(String::new());
        };
        let from = match &first.rows {
            hqdl_spec::SourceRows::Select(select) => format!("({select}\n)"),
            table @ hqdl_spec::SourceRows::Table(_) => server.from(table)?,
        };
        let own = server.source_columns(&first.rows)?;
        let mut taken: BTreeSet<String> = own.iter().map(|(name, _)| name.to_lowercase()).collect();
        let mut columns = vec!["s.*".to_owned()];
        let mut joins = String::new();
        for (n, (expansion, at)) in joined.iter().enumerate() {
            let alias = format!("e{n}");
            joins.push_str(&format!(
                " LEFT JOIN {} AS {alias} ON {}",
                server.own(&expansion.name),
                self.on(expansion, *at, &alias, &own)?
            ));
            for column in expansion.columns.iter().filter(|c| c.many.is_none()) {
                let mut name = column.name.clone();
                if !taken.insert(name.to_lowercase()) {
                    name = format!("{}_{}", expansion.name, column.name);
                    taken.insert(name.to_lowercase());
                }
                columns.push(format!(
                    "{alias}.{} AS {}",
                    sql::name(&column.name),
                    sql::name(&name)
                ));
            }
        }
        Ok(format!("SELECT {} FROM {from} AS s{joins}", columns.join(", ")))
    }

    /// Returns the condition that a row of an expansion has the key of a row of the source; it
    /// allows a hash join.
    fn on(
        &self,
        expansion: &Expansion,
        at: usize,
        alias: &str,
        own: &[(String, tokio_postgres::types::Type)],
    ) -> Result<String, StoreError> {
        let shape = self.server.shape(expansion)?;
        let part = expansion.key_parts.get(at);
        let (mut ours, mut theirs, mut absent) = (Vec::new(), Vec::new(), Vec::new());
        for (n, (name, kind)) in shape.key.iter().enumerate() {
            let key = format!("{alias}.{}", sql::name(name));
            if part.is_some_and(|part| !part.contains(&n)) {
                absent.push(format!(" AND {key} IS NULL"));
                continue;
            }
            let there = find(own, name).map_or(name, |(name, _)| name);
            ours.push(key);
            theirs.push(format!("s.{}::{kind}", sql::name(there)));
        }
        let on = if shape.whole || ours.len() == 1 {
            let pairs = ours.iter().zip(&theirs).map(|(o, t)| format!("{o} = {t}"));
            pairs.collect::<Vec<_>>().join(" AND ")
        } else {
            // Unlike row comparison, record comparison treats NULLs as equal.
            format!("ROW({})::record = ROW({})::record", ours.join(", "), theirs.join(", "))
        };
        Ok(on + &absent.concat())
    }
}
