//! Rule: if published columns answer all calls of a query, the query reads their tables directly
//! and `SQLite` needs no callbacks. The runtime function is called only for rows without a
//! published value, because it reports the reason.
//!
//! A call reads its table by a LEFT JOIN on the unique key. The join is at the end of the FROM
//! clause that has the key's columns. This is as fast as a handwritten join. If the join would
//! change the result (`SELECT *`) or could not be flattened (DISTINCT), a scalar subquery replaces
//! it.

use std::collections::BTreeMap;

use super::sql::call_answer_sql;
use super::{RewrittenQuery, replace_parts};
use crate::blendsql::parse::ParsedQuery;
use crate::blendsql::plan::call_site::CallSite;
use crate::blendsql::scope::strip_expr_parens;
use crate::blendsql::tree::{
    Body, Expr, ExprKind, FromItem, FromSource, JoinKind, Query, SelectCore, Span,
};
use hqdl_values::sql;

/// Published table column that answers a call.
#[derive(Debug, Clone)]
pub struct PublishedColumn {
    /// Table name.
    pub table: String,
    /// Key columns of the table.
    pub key_columns: Vec<String>,
    /// SQL of the key at the position of the call, with qualified columns.
    pub key_sql: Vec<String>,
    /// Table of the query that contains all key columns; `None` if no single table does.
    pub query_table: Option<String>,
    /// SQL expression that computes the value from the columns of the published table.
    pub value: String,
    /// Columns that the value uses; the value is unknown if any of these columns is NULL.
    pub value_columns: Vec<String>,
}

/// Rewrites the query to read published tables. Returns `None` if a call is in an unsupported
/// position. If `is_postgres` is true, generates `PostgreSQL` syntax without runtime functions, so
/// unpublished values are NULL.
#[must_use]
pub fn rewrite_to_stored_columns(
    sql: &str,
    parsed: &ParsedQuery,
    sites: &[CallSite],
    published: &BTreeMap<usize, PublishedColumn>,
    is_postgres: bool,
) -> Option<RewrittenQuery> {
    if parsed.is_single_call || parsed.calls.is_empty() {
        return None;
    }
    let mut builder = StoredPlanBuilder {
        sites,
        published,
        is_postgres,
        parts: Vec::new(),
        join_count: 0,
        unnamed_columns: Vec::new(),
    };
    builder.rewrite_query(&parsed.query)?;
    let mut out = RewrittenQuery {
        sql: replace_parts(sql, &(0..sql.len()), builder.parts.clone()),
        ..RewrittenQuery::default()
    };
    for expr in &builder.unnamed_columns {
        let name = match &strip_expr_parens(expr).kind {
            ExprKind::Call(n, _) => parsed.calls.get(*n)?.question.clone(),
            _ => sql[expr.span.clone()].to_owned(),
        };
        out.result_names.insert(replace_parts(sql, &expr.span, builder.parts.clone()), name);
    }
    Some(out)
}

struct StoredPlanBuilder<'q> {
    sites: &'q [CallSite],
    published: &'q BTreeMap<usize, PublishedColumn>,
    is_postgres: bool,
    parts: Vec<(Span, String)>,
    join_count: usize,
    /// Result columns that have calls but no alias.
    unnamed_columns: Vec<&'q Expr>,
}

/// A published table joined to a FROM clause.
struct JoinedTable {
    alias: String,
    table: String,
    key_sql: Vec<String>,
    /// Indices of the calls that read the table.
    calls: Vec<usize>,
}

/// A SELECT whose FROM clause can be extended with joins.
struct JoinTarget<'q> {
    core: &'q SelectCore,
    joins: Vec<JoinedTable>,
}

impl<'q> StoredPlanBuilder<'q> {
    fn rewrite_query(&mut self, query: &'q Query) -> Option<()> {
        if !query.has_call() {
            return Some(());
        }
        query.with.iter().try_for_each(|cte| self.rewrite_query(&cte.query))?;
        let order = query.order.iter().map(|o| &o.expr);
        match &query.body {
            Body::Core(core) => self.rewrite_select(core, order.collect())?,
            Body::Compound(_, left, right) => {
                self.rewrite_query(left)?;
                self.rewrite_query(right)?;
                order.into_iter().try_for_each(|e| self.rewrite_expr(e, &mut None))?;
            }
            Body::Values(all, _) => {
                all.iter().chain(order).try_for_each(|e| self.rewrite_expr(e, &mut None))?;
            }
        }
        query.limit.iter().chain(&query.offset).try_for_each(|e| self.rewrite_expr(e, &mut None))
    }

    fn rewrite_select(&mut self, core: &'q SelectCore, order: Vec<&'q Expr>) -> Option<()> {
        core.from.iter().try_for_each(|item| self.rewrite_source(item))?;
        let star = core.columns.iter().any(|c| c.expr.is_none() && c.star_table.is_none());
        let can_join = !core.from.is_empty() && !star && !core.distinct;
        let mut join_target = can_join.then(|| JoinTarget { core, joins: Vec::new() });
        let columns = core.columns.iter().filter_map(|c| c.expr.as_ref());
        let exprs = columns.chain(&core.filter).chain(&core.group).chain(&core.having).chain(order);
        exprs.into_iter().try_for_each(|e| self.rewrite_expr(e, &mut join_target))?;
        for column in core.columns.iter().filter(|c| c.alias.is_none()) {
            self.unnamed_columns.extend(column.expr.iter().filter(|e| e.has_call()));
        }
        for join in join_target.into_iter().flat_map(|p| p.joins) {
            let published: Vec<(usize, &PublishedColumn)> =
                join.calls.iter().filter_map(|n| Some((*n, self.published.get(n)?))).collect();
            let (_, first_column) = published.first()?;
            let text = format!(
                " LEFT JOIN {} AS {} ON {}",
                published_rows_sql(first_column, &published, self.is_postgres),
                join.alias,
                key_condition_sql(first_column, &join.alias, self.is_postgres)
            );
            self.parts.push((core.from_end..core.from_end, text));
        }
        Some(())
    }

    fn rewrite_source(&mut self, item: &'q FromItem) -> Option<()> {
        match &item.source {
            FromSource::Table { .. } => {}
            FromSource::Function { args, .. } => {
                args.iter().try_for_each(|e| self.rewrite_expr(e, &mut None))?;
            }
            FromSource::Query(query) => self.rewrite_query(query)?,
            FromSource::Join(items) => items.iter().try_for_each(|i| self.rewrite_source(i))?,
        }
        item.on.iter().try_for_each(|e| self.rewrite_expr(e, &mut None))
    }

    fn rewrite_expr(
        &mut self,
        expr: &'q Expr,
        join_target: &mut Option<JoinTarget<'q>>,
    ) -> Option<()> {
        let ExprKind::Call(n, args) = &expr.kind else {
            let (exprs, query) = expr.children();
            exprs.into_iter().try_for_each(|e| self.rewrite_expr(e, join_target))?;
            return query.map_or(Some(()), |q| self.rewrite_query(q));
        };
        let (column, site) = (self.published.get(n)?, self.sites.get(*n)?);
        if args.iter().any(Expr::has_call) {
            return None;
        }
        let call_sql = call_answer_sql(*n, false, site.argument_sql.as_ref()?);
        let otherwise = format!("{}{call_sql}{}", site.sql_before, site.sql_after);
        let text = match join_target.as_mut().filter(|p| p.can_join(column, self.is_postgres)) {
            Some(join_target) => {
                format!("{}.hq_{n}", self.find_or_add_join(join_target, *n, column))
            }
            None => format!(
                "(SELECT hq_t.hq_{n} FROM {} AS hq_t WHERE {})",
                published_rows_sql(column, &[(*n, column)], self.is_postgres),
                key_condition_sql(column, "hq_t", self.is_postgres)
            ),
        };
        let text = if self.is_postgres { text } else { format!("COALESCE({text}, {otherwise})") };
        self.parts.push((expr.span.clone(), text));
        Some(())
    }

    /// Returns the alias of the joined table that a call reads, and adds the join if needed.
    fn find_or_add_join(
        &mut self,
        join_target: &mut JoinTarget<'q>,
        n: usize,
        column: &PublishedColumn,
    ) -> String {
        let is_same_table =
            |j: &&mut JoinedTable| j.table == column.table && j.key_sql == column.key_sql;
        if let Some(join) = join_target.joins.iter_mut().find(is_same_table) {
            join.calls.push(n);
            return join.alias.clone();
        }
        let alias = format!("hq_t{}", self.join_count);
        self.join_count += 1;
        let (table, key_sql) = (column.table.clone(), column.key_sql.clone());
        join_target.joins.push(JoinedTable {
            alias: alias.clone(),
            table,
            key_sql,
            calls: vec![n],
        });
        alias
    }
}

impl JoinTarget<'_> {
    /// Returns true if this FROM clause has the key's columns and can be extended with a join.
    fn can_join(&self, column: &PublishedColumn, is_postgres: bool) -> bool {
        // In PostgreSQL, a comma has lower precedence than JOIN, so the join condition would not
        // see all tables.
        let comma = |i: &FromItem| i.on.is_none() && i.using.is_empty() && !i.natural;
        if is_postgres && self.core.from.iter().skip(1).any(comma) {
            return false;
        }
        let named = |i: &FromItem| match (&i.name, &column.query_table) {
            (Some(name), Some(of)) => name.eq_ignore_ascii_case(of),
            _ => false,
        };
        self.core.from.iter().any(named) && self.core.from.iter().all(|i| i.join != JoinKind::Outer)
    }
}

/// Returns a subquery with the key and the values of calls, under unique column names.
fn published_rows_sql(
    column: &PublishedColumn,
    calls: &[(usize, &PublishedColumn)],
    is_postgres: bool,
) -> String {
    let keys = column.key_columns.iter().enumerate();
    let keys: Vec<String> =
        keys.map(|(at, k)| format!("{} AS hq_k{at}", sql::quote_name(k))).collect();
    let mut value_columns: Vec<&str> = Vec::new();
    for value_column in calls.iter().flat_map(|(_, v)| &v.value_columns) {
        if !value_columns.contains(&value_column.as_str()) {
            value_columns.push(value_column);
        }
    }
    // Unary `+` removes the affinity, because values of a runtime function have none.
    let plus = if is_postgres { "" } else { "+" };
    let plain: Vec<String> =
        value_columns.iter().map(|c| format!("{plus}{0} AS {0}", sql::quote_name(c))).collect();
    let inner: Vec<String> =
        column.key_columns.iter().map(|k| sql::quote_name(k)).chain(plain).collect();
    let values: Vec<String> = calls
        .iter()
        .map(|(n, v)| {
            let all: Vec<String> = v
                .value_columns
                .iter()
                .map(|c| format!("{} IS NOT NULL", sql::quote_name(c)))
                .collect();
            format!("CASE WHEN {} THEN {} END AS hq_{n}", all.join(" AND "), v.value)
        })
        .collect();
    format!(
        "(SELECT {}, {} FROM (SELECT {} FROM {}) AS hq_r)",
        keys.join(", "),
        values.join(", "),
        inner.join(", "),
        sql::quote_name(&column.table)
    )
}

/// Returns the join condition. The first key column is compared with `=`, because a call about NULL
/// has no answer.
fn key_condition_sql(column: &PublishedColumn, alias: &str, is_postgres: bool) -> String {
    let equality = if is_postgres { "IS NOT DISTINCT FROM" } else { "IS" };
    let part = |(at, key): (usize, &String)| {
        format!("{alias}.hq_k{at} {} {key}", if at == 0 { "=" } else { equality })
    };
    column.key_sql.iter().enumerate().map(part).collect::<Vec<_>>().join(" AND ")
}
