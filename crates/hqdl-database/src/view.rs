//! Views that join a source with its expansions.

use std::collections::BTreeSet;

use super::Database;
use hqdl_spec::{Catalog, Expansion, SourceRows};
use hqdl_values::sql;

/// Returns the SQL of `<source>_expanded`: the source's own columns, then those of its expansions.
pub(super) fn view_sql(db: &Database, view: &str, joined: &[(&Expansion, usize)]) -> String {
    let first = joined.first().and_then(|(expansion, n)| expansion.sources.get(*n));
    let from = match first.map(|source| &source.rows) {
        Some(SourceRows::Table(table)) => sql::name(table),
        Some(SourceRows::Select(select)) => format!("({select}\n)"),
        None => String::new(),
    };
    let own = match first.map(|source| &source.rows) {
        Some(SourceRows::Table(table)) => {
            db.columns(table).unwrap_or_default().into_iter().map(|(n, _)| n).collect()
        }
        Some(SourceRows::Select(select)) => db.prepare(select).unwrap_or_default(),
        None => Vec::new(),
    };
    let mut taken: BTreeSet<String> = own.iter().map(|n| n.to_lowercase()).collect();
    let mut columns = vec!["s.*".to_owned()];
    let mut joins = String::new();
    for (n, (expansion, source)) in joined.iter().enumerate() {
        let alias = format!("e{n}");
        let on: Vec<String> = expansion
            .key
            .names()
            .iter()
            .enumerate()
            .map(|(at, k)| match expansion.key_parts.get(*source) {
                Some(part) if !part.contains(&at) => format!("{alias}.{} IS NULL", sql::name(k)),
                _ => format!("{alias}.{0} IS s.{0}", sql::name(k)),
            })
            .collect();
        joins.push_str(&format!(
            " LEFT JOIN {} AS {alias} ON {}",
            sql::name(&expansion.name),
            on.join(" AND ")
        ));
        for column in expansion.columns.iter().filter(|c| c.many.is_none()) {
            let mut name = column.name.clone();
            if !taken.insert(name.to_lowercase()) {
                name = format!("{}_{}", expansion.name, column.name);
                taken.insert(name.to_lowercase());
            }
            columns.push(format!("{alias}.{} AS {}", sql::name(&column.name), sql::name(&name)));
        }
    }
    format!(
        "CREATE VIEW {} AS SELECT {} FROM {from} AS s{joins}",
        sql::name(view),
        columns.join(", ")
    )
}
