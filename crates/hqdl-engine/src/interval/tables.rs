//! The tables of a FROM clause: an expansion, its source, or the view that joins them.

use std::collections::BTreeSet;

use super::rejection::reject_interval;
use crate::query::QueryError;
use hqdl_database::Database;
use hqdl_spec::{Catalog, Column, Expansion, SourceRows, Spec};
use hqdl_sql::blendsql::tree::{
    Body, Expr, ExprKind, FromItem, FromSource, JoinKind, Query, SelectCore, Span,
};
use hqdl_values::sql;

/// Name of the column that contains the entity's number, in the tables that hqdl fills.
pub(super) const ENTITY_COLUMN: &str = "hqdl_entity";

/// Number of an expanded column, which combines the position of the expansion in the spec with the
/// position of the column in the expansion.
type ColumnNumber = usize;
/// Maximum number of columns per expansion that a [`ColumnNumber`] can represent.
const MAX_COLUMNS: usize = 1 << 16;

/// Tables of a FROM clause.
pub(super) struct FromTables<'a> {
    spec: &'a Spec,
    database: &'a Database,
    tables: Vec<FromTable>,
    /// Join keyword, and the text of the join condition.
    join: Option<(&'static str, String)>,
}

/// A table of a FROM clause.
struct FromTable {
    /// Name in the query.
    name: String,
    /// Names of the table's columns.
    columns: Vec<String>,
    kind: FromTableKind,
}

enum FromTableKind {
    Expansion(usize),
    /// A source table.
    Source(String),
    /// View of a source, with its expanded columns.
    View(String, Vec<(String, ColumnNumber)>),
}

impl<'a> FromTables<'a> {
    /// Resolves the FROM clause of a SELECT.
    ///
    /// # Errors
    /// Rejects everything except an expansion, its view, or a join of the expansion with its source
    /// on the key.
    pub(super) fn resolve(
        spec: &'a Spec,
        database: &'a Database,
        text: &str,
        core: &SelectCore,
    ) -> Result<Self, QueryError> {
        let mut found = Self { spec, database, tables: Vec::new(), join: None };
        for item in &core.from {
            let table = found.resolve_item(item, &core.span)?;
            found.tables.push(table);
        }
        match (found.tables.as_slice(), core.from.as_slice()) {
            ([], _) => return reject_interval(&core.span, "the query reads no table"),
            ([_], _) => {}
            ([left, right], [_, item]) => {
                let (expansion, source) = match (&left.kind, &right.kind) {
                    (FromTableKind::Expansion(n), FromTableKind::Source(name))
                    | (FromTableKind::Source(name), FromTableKind::Expansion(n)) => {
                        (*n, name.clone())
                    }
                    _ => {
                        return reject_interval(
                            &core.span,
                            "the join is not between an expansion and its source",
                        );
                    }
                };
                let keys = found.find_key_columns(expansion, &source, &core.span)?;
                check_join(item, core, &keys)?;
                let keyword = if item.join == JoinKind::Left { "LEFT JOIN" } else { "JOIN" };
                let condition = match (&item.on, item.using.as_slice()) {
                    (Some(on), _) => {
                        format!(" ON {}", text.get(on.span.clone()).unwrap_or_default())
                    }
                    (None, []) => String::new(),
                    (None, names) => format!(" USING ({})", sql::quote_names("", names)),
                };
                found.join = Some((keyword, condition));
            }
            _ => {
                return reject_interval(
                    &core.span,
                    "the query joins more than an expansion and its source",
                );
            }
        }
        Ok(found)
    }

    fn resolve_item(&self, item: &FromItem, core: &Span) -> Result<FromTable, QueryError> {
        let (schema, table, span) = match &item.source {
            FromSource::Table { schema, name, span } => (schema, name, span),
            FromSource::Query(query) => {
                return reject_interval(&query.span, "FROM has a subquery");
            }
            FromSource::Function { .. } => return reject_interval(core, "FROM has a function"),
            FromSource::Join(_) => return reject_interval(core, "FROM has a join in parentheses"),
        };
        if schema.is_some() {
            return reject_interval(span, "a table is named with its schema");
        }
        if item.natural || item.join == JoinKind::Outer {
            return reject_interval(span, "the join is NATURAL, RIGHT or FULL");
        }
        let is_named = |name: &str| name.eq_ignore_ascii_case(table);
        let columns = self.database.table_columns(table).unwrap_or_default();
        let columns = columns.into_iter().map(|(name, _)| name).collect();
        let kind = if let Some(n) = self.spec.expansions.iter().position(|e| is_named(&e.name)) {
            FromTableKind::Expansion(n)
        } else if let Some((view, joined)) =
            self.spec.list_expanded_views().into_iter().find(|(view, _)| is_named(view))
        {
            let select = self.database.build_expanded_select(&joined, None);
            let number = |(name, n, column): (String, usize, usize)| {
                Some((name, self.find_expansion(joined.get(n)?.0)? * MAX_COLUMNS + column))
            };
            FromTableKind::View(view, select.columns.into_iter().filter_map(number).collect())
        } else if self.list_many_tables().any(is_named) {
            return reject_interval(
                span,
                "a one-to-many table has several rows for an entity; use EXISTS",
            );
        } else {
            FromTableKind::Source(table.clone())
        };
        let name = item.name.clone().unwrap_or_else(|| table.clone());
        Ok(FromTable { name, columns, kind })
    }

    fn list_many_tables(&self) -> impl Iterator<Item = &str> {
        let columns = self.spec.expansions.iter().flat_map(|e| &e.columns);
        columns.filter_map(|c| c.many.as_ref()).map(|many| many.table.as_str())
    }

    fn find_expansion(&self, expansion: &Expansion) -> Option<usize> {
        self.spec.expansions.iter().position(|e| e.name == expansion.name)
    }

    /// Returns the key columns of a source.
    fn find_key_columns(
        &self,
        expansion: usize,
        source: &str,
        span: &Span,
    ) -> Result<Vec<String>, QueryError> {
        let expansion = &self.spec.expansions[expansion];
        let is_source = |rows: &SourceRows| matches!(rows, SourceRows::Table(table) if table.eq_ignore_ascii_case(source));
        let Some(n) = expansion.sources.iter().position(|s| is_source(&s.rows)) else {
            return reject_interval(
                span,
                format!("`{source}` is not the source of `{}`", expansion.name),
            );
        };
        let names = expansion.key.names();
        Ok(match expansion.key_parts.get(n) {
            Some(part) => part.iter().filter_map(|at| names.get(*at).cloned()).collect(),
            None => names.to_vec(),
        })
    }

    /// Returns whether a table has a column with this name.
    pub(super) fn has_column(&self, name: &str) -> bool {
        let mut columns = self.tables.iter().flat_map(|table| &table.columns);
        columns.any(|column| column.eq_ignore_ascii_case(name))
    }

    /// Returns the expanded column that a name refers to.
    pub(super) fn find_expanded_column(
        &self,
        table: Option<&str>,
        column: &str,
    ) -> Option<ColumnNumber> {
        let is_meant = |t: &&FromTable| match table {
            Some(name) => t.name.eq_ignore_ascii_case(name),
            None => t.columns.iter().any(|c| c.eq_ignore_ascii_case(column)),
        };
        let table = self.tables.iter().find(is_meant)?;
        match &table.kind {
            FromTableKind::Source(_) => None,
            FromTableKind::Expansion(n) => {
                let columns = &self.spec.expansions[*n].columns;
                let is_named = |c: &Column| c.many.is_none() && c.name.eq_ignore_ascii_case(column);
                Some(n * MAX_COLUMNS + columns.iter().position(is_named)?)
            }
            FromTableKind::View(_, columns) => {
                columns.iter().find(|(name, _)| name.eq_ignore_ascii_case(column)).map(|c| c.1)
            }
        }
    }

    /// Returns the one-to-many column of a subquery that tests whether an entity has a given value.
    ///
    /// # Errors
    /// Rejects every other subquery.
    pub(super) fn find_many_value(
        &self,
        text: &str,
        query: &Query,
    ) -> Result<ColumnNumber, QueryError> {
        let reason = "EXISTS is not of the form: the entity has the value v";
        let (Body::Core(core), true) =
            (&query.body, query.with.is_empty() && query.limit.is_none())
        else {
            return reject_interval(&query.span, reason);
        };
        let [FromItem { source: FromSource::Table { schema: None, name, .. }, name: alias, .. }] =
            core.from.as_slice()
        else {
            return reject_interval(&query.span, reason);
        };
        let mut found = None;
        for (n, expansion) in self.spec.expansions.iter().enumerate() {
            let is_many = |c: &Column| {
                c.many.as_ref().is_some_and(|many| many.table.eq_ignore_ascii_case(name))
            };
            found = found.or(expansion.columns.iter().position(is_many).map(|c| (n, c)));
        }
        let (Some((n, column)), Some(filter), true) =
            (found, &core.filter, core.group.is_empty() && core.having.is_none())
        else {
            return reject_interval(&query.span, reason);
        };
        let mut conditions = Vec::new();
        split_at_and(filter, &mut conditions);
        let expansion = &self.spec.expansions[n];
        let inner = alias.as_ref().unwrap_or(name);
        let (mut keys, mut values) = (BTreeSet::new(), 0);
        let is_value_column = |(table, name): (Option<&str>, &str)| {
            let many = expansion.columns[column].many.as_ref();
            many.is_some_and(|many| many.column.eq_ignore_ascii_case(name))
                && table.is_none_or(|table| table.eq_ignore_ascii_case(inner))
        };
        for condition in conditions {
            if let Some(key) =
                find_joined_key(condition).filter(|_| mentions_table(condition, inner))
            {
                keys.insert(key);
            } else if find_tested_column(text, condition).is_some_and(is_value_column) {
                values += 1;
            } else {
                return reject_interval(&condition.span, reason);
            }
        }
        let has_key = |name: &String| keys.contains(&name.to_ascii_lowercase());
        if values != 1 || !expansion.key.names().iter().all(has_key) {
            return reject_interval(&query.span, reason);
        }
        Ok(n * MAX_COLUMNS + column)
    }

    /// Returns an expanded column.
    pub(super) fn get_expanded_column(spec: &Spec, number: ColumnNumber) -> &Column {
        &spec.expansions[number / MAX_COLUMNS].columns[number % MAX_COLUMNS]
    }

    /// Checks that the columns belong to a single expansion. Returns the expansion, and the
    /// columns' positions in it.
    ///
    /// # Errors
    /// Rejects columns of several expansions.
    pub(super) fn check_columns(
        &self,
        numbers: &BTreeSet<ColumnNumber>,
        span: &Span,
    ) -> Result<(usize, BTreeSet<usize>), QueryError> {
        let expansions: BTreeSet<usize> = numbers.iter().map(|n| n / MAX_COLUMNS).collect();
        if expansions.len() > 1 {
            return reject_interval(span, "the query reads columns of several expansions");
        }
        let expansion = expansions.into_iter().next().unwrap_or_default();
        let has_expansion = self.tables.iter().any(|t| match &t.kind {
            FromTableKind::Expansion(n) => *n == expansion,
            FromTableKind::View(..) => true,
            FromTableKind::Source(_) => false,
        });
        if !has_expansion && !numbers.is_empty() {
            return reject_interval(span, "the query does not read the table of the expansion");
        }
        Ok((expansion, numbers.iter().map(|n| n % MAX_COLUMNS).collect()))
    }

    /// Returns the FROM clause over the tables that hqdl fills.
    pub(super) fn build_from_clause(&self, expansion: usize) -> String {
        let table = |table: &FromTable| {
            let rows = match &table.kind {
                FromTableKind::Expansion(n) => {
                    format!("temp.{}", sql::quote_name(&self.spec.expansions[*n].name))
                }
                FromTableKind::Source(name) => sql::quote_name(name),
                FromTableKind::View(view, _) => {
                    let joined = self.spec.list_expanded_views().remove(view).unwrap_or_default();
                    let number = joined
                        .iter()
                        .position(|(e, _)| self.find_expansion(e) == Some(expansion))
                        .map(|n| (n, ENTITY_COLUMN));
                    format!("({})", self.database.build_expanded_select(&joined, number).sql)
                }
            };
            format!("{rows} AS {}", sql::quote_name(&table.name))
        };
        let tables: Vec<String> = self.tables.iter().map(table).collect();
        match &self.join {
            Some((keyword, condition)) => {
                format!("{}{condition}", tables.join(&format!(" {keyword} ")))
            }
            None => tables.join(", "),
        }
    }

    /// Returns the SQL of the column that contains the entity's number.
    pub(super) fn entity_sql(&self, expansion: usize) -> String {
        let is_meant = |t: &&FromTable| match &t.kind {
            FromTableKind::Expansion(n) => *n == expansion,
            FromTableKind::View(..) => true,
            FromTableKind::Source(_) => false,
        };
        let name = self.tables.iter().find(is_meant).map_or("", |t| &t.name);
        format!("{}.{ENTITY_COLUMN}", sql::quote_name(name))
    }
}

/// Checks that two tables are joined on the whole key, and on nothing else.
fn check_join(item: &FromItem, core: &SelectCore, keys: &[String]) -> Result<(), QueryError> {
    let mut joined: BTreeSet<String> =
        item.using.iter().map(|name| name.to_ascii_lowercase()).collect();
    let mut conditions = Vec::new();
    if let Some(on) = &item.on {
        split_at_and(on, &mut conditions);
        for condition in &conditions {
            if find_joined_key(condition).is_none() {
                return reject_interval(
                    &condition.span,
                    "the tables are joined on more than the key",
                );
            }
        }
    }
    if let (Some(filter), JoinKind::Inner) = (&core.filter, item.join) {
        split_at_and(filter, &mut conditions);
    }
    joined.extend(conditions.iter().filter_map(|c| find_joined_key(c)));
    let missing = keys.iter().find(|key| !joined.contains(&key.to_ascii_lowercase()));
    match missing {
        Some(key) => {
            reject_interval(&core.span, format!("the tables are not joined on `{key}` of the key"))
        }
        None => Ok(()),
    }
}

/// Returns the column name if the condition compares the same column of both tables.
fn find_joined_key(condition: &Expr) -> Option<String> {
    let ExprKind::Compare("=" | "IS", left, right) = &condition.kind else { return None };
    let (ExprKind::Column { table: t, column: a }, ExprKind::Column { table: u, column: b }) =
        (&left.kind, &right.kind)
    else {
        return None;
    };
    let is_pair = !t.as_ref()?.eq_ignore_ascii_case(u.as_ref()?) && a.eq_ignore_ascii_case(b);
    is_pair.then(|| a.to_ascii_lowercase())
}

fn split_at_and<'e>(expr: &'e Expr, conditions: &mut Vec<&'e Expr>) {
    match &expr.kind {
        ExprKind::And(all) => all.iter().for_each(|e| split_at_and(e, conditions)),
        ExprKind::Paren(inner) => split_at_and(inner, conditions),
        _ => conditions.push(expr),
    }
}

/// Returns whether a comparison names a column of this table.
fn mentions_table(condition: &Expr, table: &str) -> bool {
    let is_meant = |e: &&Expr| matches!(&e.kind, ExprKind::Column { table: Some(t), .. } if t.eq_ignore_ascii_case(table));
    condition.children().0.iter().any(is_meant)
}

/// Returns the table and name of the column if the condition compares a column with a constant.
fn find_tested_column<'e>(text: &str, condition: &'e Expr) -> Option<(Option<&'e str>, &'e str)> {
    let is_constant = |e: &Expr| {
        let text = text.get(e.span.clone()).unwrap_or_default();
        matches!(e.kind, ExprKind::Literal) || text.starts_with([':', '@', '$'])
    };
    let ExprKind::Compare("=" | "IS", a, b) = &condition.kind else { return None };
    let tested = if is_constant(b) { a } else { b };
    let other = if is_constant(b) { b } else { a };
    match &tested.kind {
        ExprKind::Column { table, column } if is_constant(other) => {
            Some((table.as_deref(), column.as_str()))
        }
        _ => None,
    }
}
