//! Names that depend on the tables of a SELECT: the elements of an unnested array, `*`, and
//! `count(t.*)`. They are resolved after the SELECT has been visited.

use std::ops::Range;

use super::translator::{PendingKind, PendingName, SuqlSelect, TableSource, Translator};
use crate::blendsql::SqlError;
use hqdl_values::sql::quote_name;

const JSON_EACH_COLUMNS: [&str; 8] =
    ["atom", "fullkey", "id", "key", "parent", "path", "type", "value"];

impl Translator<'_> {
    /// Adds a name that is resolved at the end of its SELECT.
    pub fn add_pending_name(&mut self, span: Range<usize>, kind: PendingKind) {
        let edit = self.edits.len();
        self.edits.push(None);
        self.names.push(PendingName { edit, span, kind, is_inner: false });
    }

    /// Resolves the names from index `first` on with the tables of the current SELECT. The remaining
    /// names may refer to an enclosing SELECT.
    ///
    /// # Errors
    /// Returns [`SqlError`] if the rows of a table cannot be distinguished.
    pub fn resolve_names(&mut self, first: usize) -> Result<(), SqlError> {
        let Some(select) = self.selects.last() else { return Ok(()) };
        for mut name in self.names.split_off(first) {
            let (new, is_star) = match &name.kind {
                PendingKind::Column { table, column, is_result } => {
                    let new = select.rename_column(table.as_deref(), column, name.is_inner);
                    let new = new.map(|(new, is_element)| {
                        let alias = format!(" AS {}", quote_name(column));
                        if *is_result && is_element { new + &alias } else { new }
                    });
                    (new, false)
                }
                PendingKind::Star(table) => (select.list_columns(table.as_deref()), true),
                PendingKind::CountedRows(table, is_distinct) => {
                    (self.count_rows(select, table, *is_distinct, &name.span)?, false)
                }
            };
            if let Some(new) = new {
                self.edits[name.edit] = Some((name.span, new.into()));
            } else if !is_star {
                if let PendingKind::Column { is_result, .. } = &mut name.kind {
                    *is_result = false;
                }
                self.names.push(PendingName { is_inner: true, ..name });
            }
        }
        Ok(())
    }

    /// Returns the argument of `count(t.*)`, which `SQLite` does not support: the rowid, or an
    /// encoding of all columns if there is a DISTINCT. Returns `None` if the SELECT has no table `t`.
    ///
    /// # Errors
    /// Returns [`SqlError`] if the rows of the table cannot be distinguished.
    fn count_rows(
        &self,
        select: &SuqlSelect,
        table: &str,
        is_distinct: bool,
        span: &Range<usize>,
    ) -> Result<Option<String>, SqlError> {
        let is_named = |name: &String| name.eq_ignore_ascii_case(table);
        let mut tables = select.tables.iter();
        let found = tables.find(|table| table.name.as_ref().is_some_and(is_named));
        let Some(found) = found else { return Ok(None) };
        let is_array = found.source == TableSource::Array;
        let source = match &found.source {
            TableSource::Named(name) if !self.is_cte(name) => Some(name.to_lowercase()),
            _ => None,
        };
        let known = source.as_ref().and_then(|name| self.tables.get(name));
        // For an unknown table, SQLite reports the error when the query runs.
        let has_rowid = source.is_some() && known.is_none_or(|known| known.has_rowid);
        let name = quote_name(table);
        let counted = if is_distinct {
            let columns = known.map(|known| {
                let columns = known.names.iter().map(|c| format!("{name}.{}", quote_name(c)));
                columns.collect::<Vec<_>>().join(", ")
            });
            let columns = columns.or_else(|| is_array.then(|| format!("{name}.value")));
            let Some(columns) = columns else {
                let construct = format!("`count(DISTINCT {table}.*)`");
                let help = format!(
                    "the columns of `{table}` are not known here; count the rows of a query \
                     instead: SELECT count(*) FROM (SELECT DISTINCT …)"
                );
                return Err(SqlError::untranslatable(span.clone(), &construct, &help));
            };
            let row = format!("suql_row({columns})");
            // The rowid is NULL for a row that an outer join adds.
            match (has_rowid, is_array) {
                (true, _) => Some(format!("CASE WHEN {name}.rowid IS NOT NULL THEN {row} END")),
                (_, true) => Some(format!("CASE WHEN {name}.id IS NOT NULL THEN {row} END")),
                _ => (!select.has_outer_join).then_some(row),
            }
        } else if has_rowid {
            Some(format!("{name}.rowid"))
        } else if is_array {
            Some(format!("{name}.id"))
        } else {
            (!select.has_outer_join).then(|| "*".to_owned())
        };
        counted.map(Some).ok_or_else(|| {
            let construct = format!("`count({table}.*)` after an outer join");
            let help = format!("count a column of `{table}` that is never NULL");
            SqlError::untranslatable(span.clone(), &construct, &help)
        })
    }

    /// Returns true if a visible common table expression has this name.
    pub fn is_cte(&self, name: &str) -> bool {
        self.ctes.iter().any(|(common, _)| common.eq_ignore_ascii_case(name))
    }
}

impl SuqlSelect {
    /// Returns the column of `json_each` for an element of an unnested array, and true. For another
    /// column with the name of a column of `json_each`, returns the qualified column, and false.
    fn rename_column(
        &self,
        table: Option<&str>,
        column: &str,
        is_inner: bool,
    ) -> Option<(String, bool)> {
        let is_same_name = |a: &str, b: &str| a.eq_ignore_ascii_case(b);
        let found = self.unnested.iter().filter(|u| u.array.is_none()).find(|u| {
            u.names.iter().any(|n| is_same_name(n, column))
                && table.is_none_or(|t| is_same_name(t, &u.alias))
        });
        if let Some(found) = found {
            return Some((format!("{}.value", quote_name(&found.alias)), true));
        }
        let clashes = !self.unnested.is_empty()
            && table.is_none()
            && !is_inner
            && JSON_EACH_COLUMNS.iter().any(|c| is_same_name(c, column));
        let tables = self.tables.iter().filter(|table| table.source != TableSource::Array);
        let mut tables = tables.filter_map(|table| table.name.as_ref());
        let only = tables.next().filter(|_| clashes)?;
        if tables.next().is_some() {
            return None;
        }
        Some((format!("{}.{}", quote_name(only), quote_name(column)), false))
    }

    /// Returns the columns of `*` or `t.*` without the other columns of `json_each`; `None` if the
    /// SELECT unnests no array.
    fn list_columns(&self, of: Option<&str>) -> Option<String> {
        if self.unnested.is_empty() {
            return None;
        }
        let element = |name: &String| {
            let found = self.unnested.iter().find(|u| u.alias == *name);
            found.and_then(|u| u.names.first()).unwrap_or(name).clone()
        };
        let columns_of = |name: &String, source: &TableSource| {
            let table = quote_name(name);
            if *source == TableSource::Array {
                format!("{table}.value AS {}", quote_name(&element(name)))
            } else {
                format!("{table}.*")
            }
        };
        let is_match = |name: &String| of.is_none_or(|of| name.eq_ignore_ascii_case(of));
        let named: Option<Vec<String>> = self
            .tables
            .iter()
            .filter(|t| t.name.as_ref().is_none_or(is_match))
            .map(|t| t.name.as_ref().map(|name| columns_of(name, &t.source)))
            .collect();
        named.filter(|all| !all.is_empty()).map(|all| all.join(", "))
    }
}
