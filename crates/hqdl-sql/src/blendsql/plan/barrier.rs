//! Columns that a condition references so that `SQLite` evaluates the condition for whole rows.

use crate::blendsql::plan::ScopeColumn;
use crate::blendsql::plan::analysis::has_field;
use crate::blendsql::scope::{Scope, Table};

/// Returns one column from each table in the scope; none of the columns depends on an answer. A
/// condition that references all of them waits for complete rows of these tables.
pub(crate) fn build_join_barrier(scope: &Scope<'_>) -> Vec<ScopeColumn> {
    build_table_barrier(&scope.tables, scope)
}

/// Same as [`build_join_barrier`] for some of the scope's tables.
pub(crate) fn build_table_barrier(tables: &[Table], scope: &Scope<'_>) -> Vec<ScopeColumn> {
    let column_of = |table: &Table| {
        if table.name.is_some() {
            let field = table.fields.as_ref()?.iter().find(|field| !field.is_from_call)?;
            return Some(ScopeColumn { table: table.name.clone(), column: field.name.clone() });
        }
        // An unqualified name is unambiguous if no other table has a column of this name.
        let fields = table.fields.as_ref()?;
        let is_unambiguous = |name: &str| {
            let has_column = |t: &&Table| has_field(t, name);
            scope.tables.iter().filter(has_column).count() == 1
        };
        let own = fields
            .iter()
            .find(|f| !f.is_from_call && !f.name.is_empty() && is_unambiguous(&f.name))?;
        Some(ScopeColumn { table: None, column: own.name.clone() })
    };
    tables.iter().filter_map(column_of).collect()
}
