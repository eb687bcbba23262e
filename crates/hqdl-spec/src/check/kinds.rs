//! Checks the `[[kind]]` tables of a spec.

use super::{SpecCheck, format_suggestion, join_path};
use crate::file::KindTable;
use crate::schema_check::Step;

impl SpecCheck<'_> {
    /// Checks the `[[kind]]` tables. Returns the columns of each kind, as `(table, column)`.
    pub(crate) fn check_kinds(&mut self, tables: &[KindTable]) -> Vec<Vec<(String, String)>> {
        let mut kinds = Vec::new();
        for (n, table) in tables.iter().enumerate() {
            let place = [Step::from("kind"), n.into(), "columns".into()];
            if table.columns.len() < 2 {
                self.add_error(
                    &place,
                    "a kind needs two columns",
                    "",
                    "write columns = [\"orders.city\", \"city.name\"]",
                );
            }
            let mut kind = Vec::new();
            for (at, name) in table.columns.iter().enumerate() {
                match self.resolve_kind_column(name) {
                    Ok(column) => kind.push(column),
                    Err((message, help)) => {
                        self.add_error(&join_path(&place, &[at.into()]), &message, "", &help);
                    }
                }
            }
            kinds.push(kind);
        }
        kinds
    }

    /// Returns the table and the column that a name such as `city.name` refers to. If there is no
    /// such column, fails with a message and a hint.
    fn resolve_kind_column(&self, name: &str) -> Result<(String, String), (String, String)> {
        let Some((table, column)) = name.rsplit_once('.') else {
            return Err((format!("`{name}` names no column"), "write `table.column`".to_owned()));
        };
        if self.catalog.is_absent() {
            return Ok((table.to_owned(), column.to_owned()));
        }
        let Some(columns) = self.catalog.table_columns(table) else {
            let tables = self.catalog.table_names();
            let help = format_suggestion(table, tables.iter().map(String::as_str));
            return Err((format!("there is no table `{table}`"), help));
        };
        if columns.iter().any(|(name, _)| name.eq_ignore_ascii_case(column)) {
            return Ok((table.to_owned(), column.to_owned()));
        }
        let help = format_suggestion(column, columns.iter().map(|(name, _)| name.as_str()));
        Err((format!("`{table}` has no column `{column}`"), help))
    }
}
