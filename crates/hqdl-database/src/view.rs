//! Views that join a source with its expansions.

use std::collections::BTreeSet;

use super::Database;
use hqdl_spec::{Catalog, Expansion, SourceRows};
use hqdl_values::sql;

/// Returns the SQL of `<source>_expanded`: the source's own columns, then those of its expansions.
pub(super) fn view_sql(db: &Database, view: &str, joined: &[(&Expansion, usize)]) -> String {
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
        Some(SourceRows::Select(select)) => db.prepare_select(select).unwrap_or_default(),
        None => Vec::new(),
    };
    let mut used_names: BTreeSet<String> =
        source_columns.iter().map(|n| n.to_lowercase()).collect();
    let mut columns = vec!["s.*".to_owned()];
    let mut joins = String::new();
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
    format!(
        "CREATE VIEW {} AS SELECT {} FROM {from_sql} AS s{joins}",
        sql::quote_name(view),
        columns.join(", ")
    )
}
