//! A query whose calls are all answered by published columns, as SQL over their
//! tables: nothing stands between `SQLite` and the rows. What a table has no
//! value for is left to the function, which knows why.
//!
//! A call reads its table by a LEFT JOIN on the key, which is unique there, at
//! the end of the FROM clause that has the key's columns: no slower than the
//! join a person would write. Where a join would show (`SELECT *`) or would not
//! be taken apart (DISTINCT), a scalar subquery does the same.

use std::collections::BTreeMap;

use crate::blendsql::emit;
use crate::blendsql::parse::Parsed;
use crate::blendsql::rewrite::{CallSite, Rewritten};
use crate::blendsql::scope::bare;
use crate::blendsql::tree::{
    Body, Core, Expr, ExprKind, FromItem, FromSource, JoinKind, Query, Span,
};
use hqdl_values::sql;

/// How a call's value is read from a published table.
#[derive(Debug, Clone)]
pub struct View {
    /// The table.
    pub table: String,
    /// Its key columns.
    pub names: Vec<String>,
    /// The key, as SQL where the call stands; its columns with their tables.
    pub keys: Vec<String>,
    /// The table of the query that has all of the key, when one has.
    pub of: Option<String>,
    /// The value, as SQL over columns of the table.
    pub value: String,
    /// These columns; none of them may be NULL.
    pub reads: Vec<String>,
}

/// The query as SQL over published tables; `None` when it has calls where that
/// cannot be said. In the words of a `server` (`PostgreSQL`), where no function of ours is,
/// so that what a table has no value for is NULL.
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
    /// Result columns without an alias that have calls.
    named: Vec<&'q Expr>,
}

/// A table joined to a FROM clause.
struct JoinedTable {
    alias: String,
    table: String,
    keys: Vec<String>,
    /// Calls that read it.
    calls: Vec<usize>,
}

/// Where a call may be read by a join.
struct JoinPlace<'q> {
    core: &'q Core,
    joins: Vec<JoinedTable>,
}

impl<'q> Direct<'q> {
    /// A part of the text, with what is put in its parts' place.
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

    /// The alias of the table that a call reads, joined when it is not yet.
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
    /// Whether the FROM clause here has the key's columns, and can be joined to.
    fn has(&self, view: &View, server: bool) -> bool {
        // There a comma binds less than a JOIN, whose condition would not see all tables.
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

/// The table's key and the values of calls, under names that meet no other.
fn rows(view: &View, calls: &[(usize, &View)], server: bool) -> String {
    let keys = view.names.iter().enumerate();
    let keys: Vec<String> = keys.map(|(at, k)| format!("{} AS hq_k{at}", sql::name(k))).collect();
    let mut reads: Vec<&str> = Vec::new();
    for read in calls.iter().flat_map(|(_, v)| &v.reads) {
        if !reads.contains(&read.as_str()) {
            reads.push(read);
        }
    }
    // A value of a function has no affinity, so these have none either.
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

/// The key of the call is that of the row. The first part is never NULL: about
/// nothing, nothing is known.
fn on(view: &View, alias: &str, server: bool) -> String {
    let same = if server { "IS NOT DISTINCT FROM" } else { "IS" };
    let part = |(at, key): (usize, &String)| {
        format!("{alias}.hq_k{at} {} {key}", if at == 0 { "=" } else { same })
    };
    view.keys.iter().enumerate().map(part).collect::<Vec<_>>().join(" AND ")
}
