//! Views that join a source with its expansions.

use std::collections::BTreeSet;

use super::Database;
use hqdl_spec::{Catalog, Expansion, SourceRows};
use hqdl_values::sql;

/// The SELECT of the view `<source>_expanded`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpandedSelect {
    /// SQL that selects the source's own columns, then those of its expansions.
    pub sql: String,
    /// For each expanded column: its name in the view, the position of its expansion among the
    /// joined expansions, and its position in that expansion.
    pub columns: Vec<(String, usize, usize)>,
}

impl Database {
    /// Returns the SELECT of the view `<source>_expanded`. `extra` is an additional column from an
    /// expansion's table, given with the position of that expansion among the joined expansions.
    #[must_use]
    pub fn build_expanded_select(
        &self,
        joined: &[(&Expansion, usize)],
        extra: Option<(usize, &str)>,
    ) -> ExpandedSelect {
        build_select(self, joined, extra)
    }
}

/// Returns the SQL of `<source>_expanded`.
pub(super) fn build_view_sql(db: &Database, view: &str, joined: &[(&Expansion, usize)]) -> String {
    format!("CREATE VIEW {} AS {}", sql::quote_name(view), build_select(db, joined, None).sql)
}

fn build_select(
    db: &Database,
    joined: &[(&Expansion, usize)],
    extra: Option<(usize, &str)>,
) -> ExpandedSelect {
    let first = joined.first().and_then(|(expansion, n)| expansion.sources.get(*n));
    let from_sql = match first.map(|source| &source.rows) {
        Some(SourceRows::Table(table)) => sql::quote_name(table),
        Some(SourceRows::Select(select)) => format!("({select}\n)"),
        None => String::new(),
    };
    let source_columns = match first.map(|source| &source.rows) {
        Some(SourceRows::Table(table)) => {
            db.table_columns(table).unwrap_or_default().into_iter().map(|(n, _)| n).collect()
        }
        Some(SourceRows::Select(select)) => db.list_select_columns(select).unwrap_or_default(),
        None => Vec::new(),
    };
    let mut used_names: BTreeSet<String> =
        source_columns.iter().map(|n| n.to_lowercase()).collect();
    let mut columns = vec!["s.*".to_owned()];
    let mut joins = String::new();
    let mut expanded = Vec::new();
    for (n, (expansion, source_index)) in joined.iter().enumerate() {
        let alias = format!("e{n}");
        let join_conditions: Vec<String> = expansion
            .key
            .names()
            .iter()
            .enumerate()
            .map(|(position, key_column)| match expansion.key_parts.get(*source_index) {
                Some(key_part) if !key_part.contains(&position) => {
                    format!("{alias}.{} IS NULL", sql::quote_name(key_column))
                }
                _ => format!("{alias}.{0} IS s.{0}", sql::quote_name(key_column)),
            })
            .collect();
        joins.push_str(&format!(
            " LEFT JOIN {} AS {alias} ON {}",
            sql::quote_name(&expansion.name),
            join_conditions.join(" AND ")
        ));
        let single = expansion.columns.iter().enumerate().filter(|(_, c)| c.many.is_none());
        for (position, column) in single {
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
            expanded.push((name, n, position));
        }
    }
    columns.extend(extra.map(|(n, column)| format!("e{n}.{}", sql::quote_name(column))));
    let select = format!("SELECT {} FROM {from_sql} AS s{joins}", columns.join(", "));
    ExpandedSelect { sql: select, columns: expanded }
}
