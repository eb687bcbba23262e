//! Printable plan of a query: each SELECT with calls, its calls and conditions, and the outcome of
//! each [rule](super::rules).

use std::fmt;

/// Precondition of a rule that is not met.
pub type RefusalReason = &'static str;

use super::tree::{Body, Expr, ExprKind, Query, SelectCore};

/// Plan of a query.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QueryPlan {
    /// SELECTs with calls, in text order.
    pub selects: Vec<SelectPlan>,
    /// Outcomes of the rules that apply to the whole query.
    pub rules: Vec<RuleOutcome>,
}

/// Plan of one SELECT.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SelectPlan {
    /// Start offset in the text.
    pub at: usize,
    /// Source text, on one line.
    pub text: String,
    /// Numbers of the calls in this SELECT, without those in nested SELECTs.
    pub calls: Vec<usize>,
    /// Conditions with calls.
    pub conditions: Vec<String>,
    /// Outcomes of the rules.
    pub rules: Vec<RuleOutcome>,
}

/// Outcome of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleOutcome {
    /// Name of the rule.
    pub rule: &'static str,
    /// Whether the rule was applied.
    pub fired: bool,
    /// Effect of the rule, or the precondition that is not met.
    pub why: String,
}

impl RuleOutcome {
    pub(super) fn from_result(rule: &'static str, result: Result<String, RefusalReason>) -> Self {
        match result {
            Ok(why) => Self { rule, fired: true, why },
            Err(why) => Self { rule, fired: false, why: why.to_owned() },
        }
    }
}

impl QueryPlan {
    /// Returns the entry of the SELECT that starts at an offset, and creates it if needed.
    pub(super) fn select_mut(&mut self, at: usize) -> &mut SelectPlan {
        let n = match self.selects.iter().position(|s| s.at == at) {
            Some(n) => n,
            None => {
                self.selects.push(SelectPlan { at, ..SelectPlan::default() });
                self.selects.len() - 1
            }
        };
        &mut self.selects[n]
    }

    /// Sorts the plan in text order. If a SELECT was written twice, keeps one outcome per rule and
    /// prefers the one that was applied.
    pub(super) fn finish(&mut self, sql: &str, query: &Query) {
        let mut cores: Vec<&SelectCore> = Vec::new();
        collect_selects(query, &mut cores);
        self.selects.retain(|s| cores.iter().any(|c| c.span.start == s.at));
        self.selects.sort_by_key(|s| s.at);
        for select in &mut self.selects {
            let mut rules: Vec<RuleOutcome> = Vec::new();
            for outcome in std::mem::take(&mut select.rules) {
                match rules.iter_mut().find(|r| r.rule == outcome.rule) {
                    Some(known) if outcome.fired && !known.fired => *known = outcome,
                    Some(_) => {}
                    None => rules.push(outcome),
                }
            }
            rules.sort_by_key(|r| !r.fired);
            select.rules = rules;
            let Some(core) = cores.iter().find(|c| c.span.start == select.at) else { continue };
            let text = sql.get(core.span.clone()).unwrap_or_default();
            select.text = text.split_whitespace().collect::<Vec<_>>().join(" ");
            let mut collect_calls = |e: &Expr| collect_own_calls(e, &mut select.calls);
            core.columns.iter().filter_map(|c| c.expr.as_ref()).for_each(&mut collect_calls);
            core.filter.iter().chain(&core.having).chain(&core.group).for_each(&mut collect_calls);
            core.from.iter().filter_map(|i| i.on.as_ref()).for_each(&mut collect_calls);
            select.calls.sort_unstable();
            select.calls.dedup();
        }
    }
}

/// Collects the calls of an expression outside of its subqueries, including those in arguments of
/// other calls.
fn collect_own_calls(expr: &Expr, found: &mut Vec<usize>) {
    if let ExprKind::Call(n, _) = &expr.kind {
        found.push(*n);
    }
    let (exprs, _) = expr.children();
    exprs.into_iter().for_each(|e| collect_own_calls(e, found));
}

fn collect_selects<'q>(query: &'q Query, cores: &mut Vec<&'q SelectCore>) {
    collect_source_selects(query, cores);
    query.visit_exprs(&mut |e| {
        if let Some(inner) = e.children().1 {
            collect_source_selects(inner, cores);
        }
    });
}

fn collect_source_selects<'q>(query: &'q Query, cores: &mut Vec<&'q SelectCore>) {
    query.with.iter().for_each(|cte| collect_source_selects(&cte.query, cores));
    match &query.body {
        Body::Core(core) => {
            cores.push(core);
            core.from
                .iter()
                .for_each(|item| item.visit_subqueries(&mut |q| collect_source_selects(q, cores)));
        }
        Body::Compound(_, left, right) => {
            collect_source_selects(left, cores);
            collect_source_selects(right, cores);
        }
        Body::Values(..) => {}
    }
}

impl fmt::Display for RuleOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let answer = if self.fired { "yes" } else { "no" };
        write!(f, "{:<22} {answer:<3} {}", self.rule, self.why)
    }
}

impl fmt::Display for QueryPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for outcome in &self.rules {
            writeln!(f, "  {outcome}")?;
        }
        for select in &self.selects {
            writeln!(f, "  {}", select.text)?;
            for condition in &select.conditions {
                writeln!(f, "    condition {condition}")?;
            }
            for outcome in &select.rules {
                writeln!(f, "    {outcome}")?;
            }
        }
        Ok(())
    }
}

/// A nested SELECT to which the LIMIT rule applies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubqueryLimit {
    /// Start offset in the text.
    pub at: usize,
    /// Numbers of its calls.
    pub calls: Vec<usize>,
}

/// Plan of a query that needs only some of its rows.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LimitPushdown {
    /// Rows of the answer plus the rows that OFFSET skips; `None` without a LIMIT.
    pub rows_needed: Option<u64>,
    /// Rows that OFFSET skips.
    pub rows_skipped: u64,
    /// Whether an ORDER BY determines which rows come first.
    pub is_ordered: bool,
    /// Whether equal rows are merged.
    pub is_distinct: bool,
    /// Whether the second-to-last column is the order in which rows are asked about.
    pub is_ranked: bool,
    /// Indices of the query's result columns whose values the candidate rows store.
    pub held_columns: Vec<usize>,
    /// Number of result columns in the query.
    pub column_count: usize,
    /// Number of conditions with calls.
    pub condition_count: usize,
    /// Whether a value has calls in a subquery that `SQLite` may run once for many rows. The
    /// requests of these calls are recorded with the first of these rows only.
    pub has_shared_calls: bool,
    pub(in crate::blendsql) star_position: Option<usize>,
    /// Whether the rows are groups.
    pub(in crate::blendsql) is_grouped: bool,
    pub(in crate::blendsql) truth: String,
    pub(in crate::blendsql) similarity_order: Option<(Vec<usize>, String)>,
}

impl LimitPushdown {
    /// Returns true if a star precedes a result column.
    #[must_use]
    pub fn has_star_before(&self, column: usize) -> bool {
        self.star_position.is_some_and(|star| star < column)
    }
}
