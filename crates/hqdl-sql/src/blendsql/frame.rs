//! Names and rows that are visible to a part of a query while its possible rows are computed.

use super::scope::{Schema, Scope};
use super::tree::{Expr, ExprKind, Query};

/// Names and rows that are visible to a part of a query.
pub(super) struct Frame<'p> {
    pub scope: Scope<'p>,
    pub parent: Option<&'p Frame<'p>>,
    /// Common table expressions declared here, and whether their rows are exact.
    pub exact_ctes: Vec<(String, bool)>,
    /// SQL of these common table expressions.
    pub cte_sql: Vec<String>,
    /// Result columns that have an alias.
    pub aliases: Vec<(String, Expr)>,
    /// Whether a table has unknown columns and inexact rows.
    pub is_opaque: bool,
}

impl<'p> Frame<'p> {
    pub fn new_root() -> Self {
        Self::new(Scope::new(None), None)
    }

    pub fn new_child(around: &'p Frame<'p>) -> Self {
        Self::new(Scope::new(Some(&around.scope)), Some(around))
    }

    fn new(scope: Scope<'p>, parent: Option<&'p Frame<'p>>) -> Self {
        let (exact_ctes, cte_sql, aliases) = (Vec::new(), Vec::new(), Vec::new());
        Self { scope, parent, exact_ctes, cte_sql, aliases, is_opaque: false }
    }

    pub fn ancestors(&self) -> impl Iterator<Item = &Frame<'p>> {
        std::iter::successors(Some(self), |f| f.parent)
    }

    /// Returns true if a table has exactly the rows of the query.
    pub fn is_exact(&self, table: &str) -> bool {
        let named = |f: &Frame<'_>| {
            f.exact_ctes.iter().rev().find(|(n, _)| n.eq_ignore_ascii_case(table)).map(|(_, e)| *e)
        };
        self.ancestors().find_map(named).unwrap_or(true)
    }

    pub fn find_alias(&self, column: &str) -> Option<&Expr> {
        self.aliases.iter().find(|(a, _)| a.eq_ignore_ascii_case(column)).map(|(_, e)| e)
    }

    /// Returns the WITH clause that declares these common table expressions, or an empty string.
    pub fn with_clause(&self) -> String {
        match self.cte_sql.as_slice() {
            [] => String::new(),
            all => format!("WITH RECURSIVE {} ", all.join(", ")),
        }
    }
}

pub(super) fn is_random_function(name: &str) -> bool {
    matches!(name, "random" | "randomblob")
}

/// Returns true if a query calls a random function, or reads a view that calls one.
#[must_use]
pub fn is_volatile(query: &Query, schema: &dyn Schema) -> bool {
    let mut found = calls_random_function(query);
    query.visit_tables(&mut |name| found |= schema.is_volatile(name));
    found
}

/// Returns true if a query calls a random function.
#[must_use]
pub fn calls_random_function(query: &Query) -> bool {
    let mut found = false;
    query.visit_exprs(&mut |e| {
        found |= matches!(&e.kind, ExprKind::Function { name, .. } if is_random_function(name));
    });
    found
}

pub(super) fn reads_table(query: &Query, name: &str) -> bool {
    let mut found = false;
    query.visit_tables(&mut |table| found |= table.eq_ignore_ascii_case(name));
    found
}

/// Returns true if a query joins by USING or NATURAL.
pub(super) fn joins_by_name(query: &Query) -> bool {
    let mut found = false;
    query.visit_from_items(&mut |item| found |= item.natural || !item.using.is_empty());
    found
}
