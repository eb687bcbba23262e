//! Translates `count(t.*)` and `count(DISTINCT t.*)`. `SQLite` cannot count the rows of a table in
//! this way. The translation counts rowids instead, or an encoding of all columns if there is a
//! DISTINCT.

use super::parser::{Parser, SuqlSelect, TableSource, translation_error};
use super::text::{SourceFragment, SqlText};
use crate::blendsql::SqlError;
use hqdl_values::sql::quote_name;

impl Parser<'_> {
    /// Translates the row counts for tables of a SELECT. Counts for tables of an outer SELECT are
    /// left unchanged.
    ///
    /// # Errors
    /// Returns [`SqlError`] if the rows of a table cannot be distinguished.
    pub fn rewrite_row_counts(
        &self,
        text: &mut SqlText,
        select: &SuqlSelect,
    ) -> Result<(), SqlError> {
        for fragment in text {
            let SourceFragment::CountedRows(span, table, distinct) = fragment else { continue };
            let Some(found) = select.find_table(table) else { continue };
            let is_array = found.source == TableSource::Array;
            let known = match &found.source {
                TableSource::Named(name) if !self.is_cte(name) => {
                    self.tables.get(&name.to_lowercase())
                }
                _ => None,
            };
            // For an unknown table, SQLite reports the error when the query runs.
            let has_rowid = match &found.source {
                TableSource::Named(name) => {
                    !self.is_cte(name) && known.is_none_or(|known| known.has_rowid)
                }
                _ => false,
            };
            let table_name = quote_name(table);
            let counted_sql = if *distinct {
                let columns = known.map(|known| known.names.iter().map(|c| quote_name(c)));
                let row = match columns {
                    Some(columns) => {
                        let columns: Vec<String> =
                            columns.map(|c| format!("{table_name}.{c}")).collect();
                        Some(format!("suql_row({})", columns.join(", ")))
                    }
                    None => is_array.then(|| format!("suql_row({table_name}.value)")),
                };
                let Some(row) = row else {
                    let construct = format!("`count(DISTINCT {table}.*)`");
                    let help = format!(
                        "the columns of `{table}` are not known here; count the rows of a query \
                         instead: SELECT count(*) FROM (SELECT DISTINCT …)"
                    );
                    return Err(translation_error(span.clone(), &construct, &help));
                };
                // The rowid is NULL for a row that an outer join adds.
                match (has_rowid, is_array) {
                    (true, _) => {
                        Some(format!("CASE WHEN {table_name}.rowid IS NOT NULL THEN {row} END"))
                    }
                    (_, true) => {
                        Some(format!("CASE WHEN {table_name}.id IS NOT NULL THEN {row} END"))
                    }
                    _ => (!select.has_outer_join).then_some(row),
                }
            } else if has_rowid {
                Some(format!("{table_name}.rowid"))
            } else if is_array {
                Some(format!("{table_name}.id"))
            } else {
                (!select.has_outer_join).then(|| "*".to_owned())
            };
            let Some(counted_sql) = counted_sql else {
                let construct = format!("`count({table}.*)` after an outer join");
                let help = format!("count a column of `{table}` that is never NULL");
                return Err(translation_error(span.clone(), &construct, &help));
            };
            *fragment = SourceFragment::Generated(counted_sql, span.clone());
        }
        Ok(())
    }

    /// Returns true if a visible common table expression has this name.
    pub fn is_cte(&self, name: &str) -> bool {
        self.ctes.iter().any(|(common, _)| common.eq_ignore_ascii_case(name))
    }
}
