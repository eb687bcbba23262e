//! Rule: if published columns answer all calls of a query, the query reads their tables directly
//! and `SQLite` needs no callbacks. The runtime function is called only for rows without a
//! published value, because it reports the reason.
//!
//! A call reads its table by a LEFT JOIN on the unique key. The join is at the end of the FROM
//! clause that has the key's columns. That is as fast as a handwritten join. If the join would
//! change the result (`SELECT *`) or could not be flattened (DISTINCT), a scalar subquery replaces
//! it.

use std::collections::BTreeMap;

use crate::blendsql::emit;
use crate::blendsql::parse::Parsed;
use crate::blendsql::rewrite::{CallSite, Rewritten};
use crate::blendsql::scope::bare;
use crate::blendsql::tree::{
    Body, Core, Expr, ExprKind, FromItem, FromSource, JoinKind, Query, Span,
};
use hqdl_values::sql;

/// Published table column that answers a call.
#[derive(Debug, Clone)]
pub struct View {
    /// Table name.
    pub table: String,
    /// Key columns of the table.
    pub names: Vec<String>,
    /// SQL of the key at the position of the call, with qualified columns.
    pub keys: Vec<String>,
    /// Table of the query that has all columns of the key, if there is one.
    pub of: Option<String>,
    /// SQL of the value over the columns of the published table.
    pub value: String,
    /// Columns that the value uses; the value is unknown if one of them is NULL.
    pub reads: Vec<String>,
}

/// Rewrites the query to read published tables. Returns `None` if a call is in an unsupported
/// position. If `is_postgres` is true, generates `PostgreSQL` syntax without runtime functions, so
/// unpublished values are NULL.
#[must_use]
pub fn direct(
    sql: &str,
    parsed: &Parsed,
    sites: &[CallSite],
    views: &BTreeMap<usize, View>,
    server: bool,
) -> Option<Rewritten> {
    if parsed.lone || parsed.calls.is_empty() {
        return None;
    }
    let mut direct =
        Direct { sites, views, server, parts: Vec::new(), joins: 0, named: Vec::new() };
    direct.query(&parsed.query)?;
    let mut out = Rewritten { sql: direct.compose(sql, &(0..sql.len())), ..Rewritten::default() };
    for expr in &direct.named {
        let name = match &bare(expr).kind {
            ExprKind::Call(n, _) => parsed.calls.get(*n)?.question.clone(),
            _ => sql[expr.span.clone()].to_owned(),
        };
        out.names.insert(direct.compose(sql, &expr.span), name);
    }
    Some(out)
}

struct Direct<'q> {
    sites: &'q [CallSite],
    views: &'q BTreeMap<usize, View>,
    server: bool,
    parts: Vec<(Span, String)>,
    joins: usize,
    /// Result columns that have calls but no alias.
    named: Vec<&'q Expr>,
}

/// A published table joined to a FROM clause.
struct JoinedTable {
    alias: String,
    table: String,
    keys: Vec<String>,
    /// Numbers of the calls that read it.
    calls: Vec<usize>,
}

/// A SELECT whose FROM clause can be extended with joins.
struct JoinPlace<'q> {
    core: &'q Core,
    joins: Vec<JoinedTable>,
}

impl<'q> Direct<'q> {
    /// Returns the text of a span with its parts replaced.
    fn compose(&self, sql: &str, span: &Span) -> String {
        let mut parts: Vec<&(Span, String)> = self
            .parts
            .iter()
            .filter(|(part, _)| span.start <= part.start && part.end <= span.end)
            .collect();
        parts.sort_by_key(|(part, _)| (part.start, part.end));
        let (mut text, mut at) = (String::new(), span.start);
        for (part, new) in parts {
            text.push_str(&sql[at..part.start]);
            text.push_str(new);
            at = part.end;
        }
        text.push_str(&sql[at..span.end]);
        text
    }

    fn query(&mut self, query: &'q Query) -> Option<()> {
        if !query.has_call() {
            return Some(());
        }
        query.with.iter().try_for_each(|cte| self.query(&cte.query))?;
        let order = query.order.iter().map(|o| &o.expr);
        match &query.body {
            Body::Core(core) => self.core(core, order.collect())?,
            Body::Compound(_, left, right) => {
                self.query(left)?;
                self.query(right)?;
                order.into_iter().try_for_each(|e| self.expr(e, &mut None))?;
            }
            Body::Values(all, _) => {
                all.iter().chain(order).try_for_each(|e| self.expr(e, &mut None))?;
            }
        }
        query.limit.iter().chain(&query.offset).try_for_each(|e| self.expr(e, &mut None))
    }

    fn core(&mut self, core: &'q Core, order: Vec<&'q Expr>) -> Option<()> {
        core.from.iter().try_for_each(|item| self.from(item))?;
        let star = core.columns.iter().any(|c| c.expr.is_none() && c.star_of.is_none());
        let joins = !core.from.is_empty() && !star && !core.distinct;
        let mut place = joins.then(|| JoinPlace { core, joins: Vec::new() });
        let columns = core.columns.iter().filter_map(|c| c.expr.as_ref());
        let exprs = columns.chain(&core.filter).chain(&core.group).chain(&core.having).chain(order);
        exprs.into_iter().try_for_each(|e| self.expr(e, &mut place))?;
        for column in core.columns.iter().filter(|c| c.alias.is_none()) {
            self.named.extend(column.expr.iter().filter(|e| e.has_call()));
        }
        for join in place.into_iter().flat_map(|p| p.joins) {
            let views: Vec<(usize, &View)> =
                join.calls.iter().filter_map(|n| Some((*n, self.views.get(n)?))).collect();
            let (_, view) = views.first()?;
            let text = format!(
                " LEFT JOIN {} AS {} ON {}",
                rows(view, &views, self.server),
                join.alias,
                on(view, &join.alias, self.server)
            );
            self.parts.push((core.from_end..core.from_end, text));
        }
        Some(())
    }

    fn from(&mut self, item: &'q FromItem) -> Option<()> {
        match &item.source {
            FromSource::Table { .. } => {}
            FromSource::Function { args, .. } => {
                args.iter().try_for_each(|e| self.expr(e, &mut None))?;
            }
            FromSource::Query(query) => self.query(query)?,
            FromSource::Join(items) => items.iter().try_for_each(|i| self.from(i))?,
        }
        item.on.iter().try_for_each(|e| self.expr(e, &mut None))
    }

    fn expr(&mut self, expr: &'q Expr, place: &mut Option<JoinPlace<'q>>) -> Option<()> {
        let ExprKind::Call(n, args) = &expr.kind else {
            let (exprs, query) = expr.inside();
            exprs.into_iter().try_for_each(|e| self.expr(e, place))?;
            return query.map_or(Some(()), |q| self.query(q));
        };
        let (view, site) = (self.views.get(n)?, self.sites.get(*n)?);
        if args.iter().any(Expr::has_call) {
            return None;
        }
        let asked = emit::call(*n, false, site.keys.as_ref()?);
        let otherwise = format!("{}{asked}{}", site.before, site.after);
        let text = match place.as_mut().filter(|p| p.has(view, self.server)) {
            Some(place) => format!("{}.hq_{n}", self.joined(place, *n, view)),
            None => format!(
                "(SELECT hq_t.hq_{n} FROM {} AS hq_t WHERE {})",
                rows(view, &[(*n, view)], self.server),
                on(view, "hq_t", self.server)
            ),
        };
        let text = if self.server { text } else { format!("COALESCE({text}, {otherwise})") };
        self.parts.push((expr.span.clone(), text));
        Some(())
    }

    /// Returns the alias of the joined table that a call reads, and adds the join if needed.
    fn joined(&mut self, place: &mut JoinPlace<'q>, n: usize, view: &View) -> String {
        let same = |j: &&mut JoinedTable| j.table == view.table && j.keys == view.keys;
        if let Some(join) = place.joins.iter_mut().find(same) {
            join.calls.push(n);
            return join.alias.clone();
        }
        let alias = format!("hq_t{}", self.joins);
        self.joins += 1;
        let (table, keys) = (view.table.clone(), view.keys.clone());
        place.joins.push(JoinedTable { alias: alias.clone(), table, keys, calls: vec![n] });
        alias
    }
}

impl JoinPlace<'_> {
    /// Returns true if this FROM clause has the key's columns and can be extended with a join.
    fn has(&self, view: &View, server: bool) -> bool {
        // In PostgreSQL, a comma has lower precedence than JOIN, so the join condition would not
        // see all tables.
        let comma = |i: &FromItem| i.on.is_none() && i.using.is_empty() && !i.natural;
        if server && self.core.from.iter().skip(1).any(comma) {
            return false;
        }
        let named = |i: &FromItem| match (&i.name, &view.of) {
            (Some(name), Some(of)) => name.eq_ignore_ascii_case(of),
            _ => false,
        };
        self.core.from.iter().any(named) && self.core.from.iter().all(|i| i.join != JoinKind::Outer)
    }
}

/// Returns a subquery with the key and the values of calls, under unique column names.
fn rows(view: &View, calls: &[(usize, &View)], server: bool) -> String {
    let keys = view.names.iter().enumerate();
    let keys: Vec<String> = keys.map(|(at, k)| format!("{} AS hq_k{at}", sql::name(k))).collect();
    let mut reads: Vec<&str> = Vec::new();
    for read in calls.iter().flat_map(|(_, v)| &v.reads) {
        if !reads.contains(&read.as_str()) {
            reads.push(read);
        }
    }
    // Unary `+` removes the affinity: values of a runtime function have none, either.
    let plus = if server { "" } else { "+" };
    let plain: Vec<String> =
        reads.iter().map(|c| format!("{plus}{0} AS {0}", sql::name(c))).collect();
    let inner: Vec<String> = view.names.iter().map(|k| sql::name(k)).chain(plain).collect();
    let values: Vec<String> = calls
        .iter()
        .map(|(n, v)| {
            let all: Vec<String> =
                v.reads.iter().map(|c| format!("{} IS NOT NULL", sql::name(c))).collect();
            format!("CASE WHEN {} THEN {} END AS hq_{n}", all.join(" AND "), v.value)
        })
        .collect();
    format!(
        "(SELECT {}, {} FROM (SELECT {} FROM {}) AS hq_r)",
        keys.join(", "),
        values.join(", "),
        inner.join(", "),
        sql::name(&view.table)
    )
}

/// Returns the join condition. The first key column is compared by `=`, because a call about NULL
/// has no answer.
fn on(view: &View, alias: &str, server: bool) -> String {
    let same = if server { "IS NOT DISTINCT FROM" } else { "IS" };
    let part = |(at, key): (usize, &String)| {
        format!("{alias}.hq_k{at} {} {key}", if at == 0 { "=" } else { same })
    };
    view.keys.iter().enumerate().map(part).collect::<Vec<_>>().join(" AND ")
}
