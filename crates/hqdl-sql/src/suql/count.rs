//! Translates `count(t.*)` and `count(DISTINCT t.*)`. `SQLite` cannot count the rows of a table
//! that way. The translation counts rowids instead, or with DISTINCT an encoding of all columns.

use super::parser::{Parser, SuqlSelect, TableOf, unsaid};
use super::text::{Part, Text};
use crate::blendsql::SqlError;
use hqdl_values::sql::name;

impl Parser<'_> {
    /// Translates the row counts for tables of a SELECT. Counts for tables of an outer SELECT are
    /// left unchanged.
    ///
    /// # Errors
    /// [`SqlError`] if the rows of a table cannot be distinguished.
    pub fn counted(&self, text: &mut Text, select: &SuqlSelect) -> Result<(), SqlError> {
        for part in text {
            let Part::Rows(span, table, distinct) = part else { continue };
            let Some(found) = select.named(table) else { continue };
            let of_array = found.of == TableOf::Array;
            let known = match &found.of {
                TableOf::Named(name) if !self.is_common(name) => {
                    self.tables.get(&name.to_lowercase())
                }
                _ => None,
            };
            // For an unknown table, SQLite reports the error when the query runs.
            let has_rowid = match &found.of {
                TableOf::Named(name) => {
                    !self.is_common(name) && known.is_none_or(|known| known.has_rowid)
                }
                _ => false,
            };
            let called = name(table);
            let written = if *distinct {
                let columns = known.map(|known| known.names.iter().map(|c| name(c)));
                let row = match columns {
                    Some(columns) => {
                        let columns: Vec<String> =
                            columns.map(|c| format!("{called}.{c}")).collect();
                        Some(format!("suql_row({})", columns.join(", ")))
                    }
                    None => of_array.then(|| format!("suql_row({called}.value)")),
                };
                let Some(row) = row else {
                    let help =
                        "count the rows of a query: SELECT count(*) FROM (SELECT DISTINCT …)";
                    return Err(unsaid(span.clone(), "different rows of this", help));
                };
                // The rowid is NULL for a row that an outer join adds.
                match (has_rowid, of_array) {
                    (true, _) => {
                        Some(format!("CASE WHEN {called}.rowid IS NOT NULL THEN {row} END"))
                    }
                    (_, true) => Some(format!("CASE WHEN {called}.id IS NOT NULL THEN {row} END")),
                    _ => (!select.outer).then_some(row),
                }
            } else if has_rowid {
                Some(format!("{called}.rowid"))
            } else if of_array {
                Some(format!("{called}.id"))
            } else {
                (!select.outer).then(|| "*".to_owned())
            };
            let Some(written) = written else {
                let help = "name a column of it that is never NULL";
                return Err(unsaid(span.clone(), "the rows of this that a join found", help));
            };
            *part = Part::New(written, span.clone());
        }
        Ok(())
    }

    /// Returns true if a visible common table expression has this name.
    fn is_common(&self, name: &str) -> bool {
        self.common.iter().any(|(common, _)| common.eq_ignore_ascii_case(name))
    }
}
