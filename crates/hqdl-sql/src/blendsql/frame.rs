//! What a part of a query sees of the rest, when its possible rows are found.

use super::scope::Scope;
use super::tree::{Body, Expr, FromItem, FromSource, Query};

/// What a part of a query sees.
pub(super) struct Frame<'p> {
    pub scope: Scope<'p>,
    pub parent: Option<&'p Frame<'p>>,
    /// Common table expressions declared here, and whether their rows are exact.
    pub exact: Vec<(String, bool)>,
    /// These as SQL.
    pub with: Vec<String>,
    /// Result columns that have an alias.
    pub aliases: Vec<(String, Expr)>,
    /// A table here has columns that cannot be told, and rows that are not exact.
    pub opaque: bool,
}

impl<'p> Frame<'p> {
    pub fn root() -> Self {
        Self::of(Scope::within(None), None)
    }

    pub fn within(around: &'p Frame<'p>) -> Self {
        Self::of(Scope::within(Some(&around.scope)), Some(around))
    }

    fn of(scope: Scope<'p>, parent: Option<&'p Frame<'p>>) -> Self {
        let (exact, with, aliases) = (Vec::new(), Vec::new(), Vec::new());
        Self { scope, parent, exact, with, aliases, opaque: false }
    }

    pub fn each(&self) -> impl Iterator<Item = &Frame<'p>> {
        std::iter::successors(Some(self), |f| f.parent)
    }

    /// Whether a table's rows are those of the query.
    pub fn is_exact(&self, table: &str) -> bool {
        let named = |f: &Frame<'_>| {
            f.exact.iter().rev().find(|(n, _)| n.eq_ignore_ascii_case(table)).map(|(_, e)| *e)
        };
        self.each().find_map(named).unwrap_or(true)
    }

    pub fn alias(&self, column: &str) -> Option<&Expr> {
        self.aliases.iter().find(|(a, _)| a.eq_ignore_ascii_case(column)).map(|(_, e)| e)
    }

    /// The WITH clause of what is declared here.
    pub fn with(&self) -> String {
        match self.with.as_slice() {
            [] => String::new(),
            all => format!("WITH RECURSIVE {} ", all.join(", ")),
        }
    }
}

pub(super) fn is_random(name: &str) -> bool {
    matches!(name, "random" | "randomblob")
}

/// Whether a query reads a table of this name.
pub(super) fn reads(query: &Query, name: &str) -> bool {
    let mut found = false;
    each_table(query, &mut |table| found |= table.eq_ignore_ascii_case(name));
    found
}

/// Shows the name of every table that a query reads to `see`.
pub(super) fn each_table<'e>(query: &'e Query, see: &mut dyn FnMut(&'e str)) {
    each_item(query, &mut |item| {
        if let FromSource::Table { name, .. } = &item.source {
            see(name);
        }
    });
}

/// Whether a query joins by USING or NATURAL.
pub(super) fn joins_by_name(query: &Query) -> bool {
    let mut found = false;
    each_item(query, &mut |item| found |= item.natural || !item.using.is_empty());
    found
}

/// Shows everything that a query reads to `see`.
fn each_item<'e>(query: &'e Query, see: &mut dyn FnMut(&'e FromItem)) {
    of_from(query, see);
    query.each(&mut |e| {
        if let Some(inner) = e.inside().1 {
            of_from(inner, see);
        }
    });
}

/// Those of a query's own FROM clauses, without its expressions'.
fn of_from<'e>(query: &'e Query, see: &mut dyn FnMut(&'e FromItem)) {
    query.with.iter().for_each(|cte| of_from(&cte.query, see));
    match &query.body {
        Body::Core(core) => core.from.iter().for_each(|i| of_item(i, see)),
        Body::Compound(left, right) => {
            of_from(left, see);
            of_from(right, see);
        }
        Body::Values(..) => {}
    }
}

fn of_item<'e>(item: &'e FromItem, see: &mut dyn FnMut(&'e FromItem)) {
    see(item);
    match &item.source {
        FromSource::Table { .. } | FromSource::Function { .. } => {}
        FromSource::Query(query) => of_from(query, see),
        FromSource::Join(items) => items.iter().for_each(|i| of_item(i, see)),
    }
}
