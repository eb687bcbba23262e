//! Computes an upper bound on the number of values that a query asks about in all its passes. The
//! bound consists of statements that evaluate each call for every value it can receive, whatever
//! the answers are.
//!
//! One walk over the query writes both the possible rows of each SELECT (`possible_rows`) and the
//! statements that evaluate the SELECT's calls over these rows (`probe_select`). A subquery in an
//! expression is evaluated in place, once per outer row. AND, OR, CASE, `iif` and `coalesce` skip
//! an operand only if their operands without calls decide the result, as in a pass. LIMIT, EXISTS
//! and IN skip nothing here. A call whose argument is an answer cannot be counted and is reported
//! as unbounded.

use std::collections::BTreeMap;

mod certainty;
mod possible_from;
mod possible_rows;
mod probe_expr;
mod probe_select;
mod single_pass;

use crate::blendsql::frame::Frame;
use crate::blendsql::plan::DemandPlan;
use crate::blendsql::plan::analysis::Analysis;
use crate::blendsql::plan::call_site::CallSite;
use crate::blendsql::plan::statistics::Statistics;
use crate::blendsql::scope::Schema;
use crate::blendsql::tree::{Expr, ExprKind, FromItem, FromSource, JoinKind, Query, SelectCore};
use single_pass::asks_about_every_row;

/// Upper bound on the number of values that a query asks about.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequestBound {
    /// Statements that evaluate the query's calls for all reachable values.
    pub probes: Vec<Probe>,
    /// Indices of the calls without an upper bound, with the reasons.
    pub unknown: BTreeMap<usize, &'static str>,
    /// Whether the counted values share requests.
    pub batching: Batching,
}

/// Whether the values that a query asks about can share requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Batching {
    /// One pass asks about all values.
    All,
    /// One pass asks about all values, but rows that need different columns cannot share a request.
    Partial,
    /// Several passes ask about the values, because a part of the query waits for an answer.
    #[default]
    Never,
}

/// A statement that evaluates calls for all rows that can reach them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    /// SQL text.
    pub sql: String,
    /// Indices of the calls that the statement evaluates.
    pub calls: Vec<usize>,
}

/// Maximum length of a statement in bytes.
const MAX_STATEMENT_BYTES: usize = 8 << 20;

const ANSWER_ARGUMENT: &str = "its argument is an answer";
const CALL_IN_CONTEXT: &str = "its context contains calls";
const RECURSIVE_QUERY: &str = "it is in a recursive query";
const ROWS_FROM_ANSWERS: &str = "its rows come from answers";
const INNER_TABLES: &str = "it may be evaluated before tables in parentheses are joined";
// In a RIGHT or FULL JOIN, `SQLite` first evaluates the condition on the unmatched rows of the
// right table.
const OUTER_JOIN_ROWS: &str =
    "a RIGHT or FULL JOIN can evaluate it before the join has matched its rows";
// If all columns of a table are answers, a condition cannot reference a plain column of the table,
// so nothing delays the condition until the table is read.
const ANSWER_TABLE: &str = "it can be evaluated before a table whose columns are all answers";
const QUERY_TOO_LONG: &str = "the query is too long to count its rows";

/// Returns an upper bound on the number of values that a query asks about.
#[must_use]
pub fn compute_request_bound(
    sql: &str,
    query: &Query,
    sites: &[CallSite],
    schema: &dyn Schema,
    plan: &DemandPlan,
) -> RequestBound {
    let costs = Statistics::default();
    let mut writer = BoundWriter {
        sql,
        plan,
        analysis: Analysis::new(sql, sites, schema, &costs),
        unknown: BTreeMap::new(),
        is_single_pass: true,
        has_group_calls: false,
        calls: Vec::new(),
        probes: Vec::new(),
    };
    let root = Frame::new_root();
    let frame = writer.declare_ctes(query, &root);
    writer.write_body(query, &frame);
    let with = frame.with_clause();
    let mut out = RequestBound { unknown: writer.unknown, ..RequestBound::default() };
    for Probe { sql, calls } in writer.probes {
        if with.len() + sql.len() > MAX_STATEMENT_BYTES {
            calls.iter().for_each(|n| _ = out.unknown.entry(*n).or_insert(QUERY_TOO_LONG));
        } else {
            out.probes.push(Probe { sql: format!("{with}SELECT {sql}"), calls });
        }
    }
    out.batching = match writer.is_single_pass {
        false => Batching::Never,
        true if asks_about_every_row(query) => Batching::All,
        true => Batching::Partial,
    };
    out
}

/// Context in which an expression is evaluated.
#[derive(Clone, Copy)]
struct EvalPosition<'f> {
    frame: &'f Frame<'f>,
    /// Whether the expression is evaluated once per group instead of once per row.
    per_group: bool,
    /// Whether aggregates and window functions have exact values here.
    exact_aggregates: bool,
    /// Whether the SELECT has groups.
    is_grouped: bool,
}

impl<'f> EvalPosition<'f> {
    /// Returns the position of an expression outside of a SELECT.
    fn outside_selects(frame: &'f Frame<'f>) -> Self {
        Self { frame, per_group: false, exact_aggregates: false, is_grouped: false }
    }
}

/// Writes the statements of the bound.
struct BoundWriter<'q> {
    sql: &'q str,
    plan: &'q DemandPlan,
    analysis: Analysis<'q>,
    unknown: BTreeMap<usize, &'static str>,
    /// Whether a single pass can ask about all values, because no call seen so far waits for an
    /// answer.
    is_single_pass: bool,
    /// Whether the current SELECT has calls whose arguments contain aggregates.
    has_group_calls: bool,
    /// Indices of the calls in the expressions that have been written but are in no statement yet.
    calls: Vec<usize>,
    /// Values that evaluate the calls of the current query, outside of its WITH clause.
    probes: Vec<Probe>,
}

impl BoundWriter<'_> {
    fn mark_unbounded(&mut self, call: usize, why: &'static str) {
        self.unknown.entry(call).or_insert(why);
    }

    fn mark_all_unbounded(&mut self, expr: &Expr, why: &'static str) {
        expr.visit_exprs(&mut |e| {
            if let ExprKind::Call(n, _) = &e.kind {
                self.mark_unbounded(*n, why);
            }
        });
    }

    /// Adds a value that evaluates the calls written since the last one.
    fn push_probe(&mut self, sql: String) {
        let calls = std::mem::take(&mut self.calls);
        self.probes.push(Probe { sql, calls });
    }

    /// Adds values that evaluate an expression for all rows of the FROM clauses, each followed by
    /// the same clauses.
    fn push_row_probes(&mut self, expr: &str, from: &[String], clauses: &str) {
        let calls = std::mem::take(&mut self.calls);
        for from in from {
            // The aggregate's argument is a column of the inner query, so the aggregate belongs to
            // this SELECT.
            let sql = format!("(SELECT total(hq_p) FROM (SELECT {expr} AS hq_p{from}{clauses}))");
            self.probes.push(Probe { sql, calls: calls.clone() });
        }
    }

    /// Restores `outer` as the list of values, and returns the sum of the values added since.
    fn take_probes(&mut self, outer: Vec<Probe>) -> Option<String> {
        let own = std::mem::replace(&mut self.probes, outer);
        let (sql, calls): (Vec<String>, Vec<Vec<usize>>) =
            own.into_iter().map(|probe| (probe.sql, probe.calls)).unzip();
        self.calls.extend(calls.into_iter().flatten());
        sum_terms(sql)
    }
}

/// Returns the sum of all parts as SQL, with as little nesting as possible; `None` if there are no
/// parts.
fn sum_terms(mut parts: Vec<String>) -> Option<String> {
    while parts.len() > 1 {
        parts = parts
            .chunks(2)
            .map(|pair| match pair {
                [a, b] => format!("({a} + {b})"),
                one => one.concat(),
            })
            .collect();
    }
    parts.pop()
}

/// Condition of a join.
struct JoinCondition<'c> {
    on: &'c Expr,
    /// Number of parentheses around the join.
    depth: usize,
    /// Join of the FROM entry that contains the condition.
    join: JoinKind,
}

/// Returns the join conditions of a SELECT; those in parentheses precede the condition outside.
fn list_join_conditions(core: &SelectCore) -> Vec<JoinCondition<'_>> {
    fn collect<'c>(
        item: &'c FromItem,
        depth: usize,
        join: JoinKind,
        found: &mut Vec<JoinCondition<'c>>,
    ) {
        if let FromSource::Join(items) = &item.source {
            items.iter().for_each(|i| collect(i, depth + 1, join, found));
        }
        found.extend(item.on.iter().map(|on| JoinCondition { on, depth, join }));
    }
    let mut found = Vec::new();
    core.from.iter().for_each(|item| collect(item, 0, item.join, &mut found));
    found
}
