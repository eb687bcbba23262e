//! Printable plan of a query: each SELECT with calls, its calls and conditions, and the outcome of
//! each [rule](super::rules).

use std::fmt;

/// Precondition of a rule that is not met.
pub type Refused = &'static str;

use super::tree::{Body, Core, Expr, ExprKind, Query};

/// Plan of a query.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QueryPlan {
    /// SELECTs with calls, in text order.
    pub selects: Vec<Select>,
    /// Outcomes of the rules that apply to the whole query.
    pub rules: Vec<RuleOutcome>,
}

/// Plan of one SELECT.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Select {
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
    pub(super) fn of(rule: &'static str, came: Result<String, Refused>) -> Self {
        match came {
            Ok(why) => Self { rule, fired: true, why },
            Err(why) => Self { rule, fired: false, why: why.to_owned() },
        }
    }
}

impl QueryPlan {
    /// Returns the entry of the SELECT that starts at an offset, and creates it if needed.
    pub(super) fn select(&mut self, at: usize) -> &mut Select {
        let n = match self.selects.iter().position(|s| s.at == at) {
            Some(n) => n,
            None => {
                self.selects.push(Select { at, ..Select::default() });
                self.selects.len() - 1
            }
        };
        &mut self.selects[n]
    }

    /// Sorts the plan in text order. If a SELECT was written twice, keeps one outcome per rule and
    /// prefers the one that was applied.
    pub(super) fn settle(&mut self, sql: &str, query: &Query) {
        let mut cores: Vec<&Core> = Vec::new();
        all_cores(query, &mut cores);
        self.selects.retain(|s| cores.iter().any(|c| c.span.start == s.at));
        self.selects.sort_by_key(|s| s.at);
        for select in &mut self.selects {
            let mut rules: Vec<RuleOutcome> = Vec::new();
            for told in std::mem::take(&mut select.rules) {
                match rules.iter_mut().find(|r| r.rule == told.rule) {
                    Some(known) if told.fired && !known.fired => *known = told,
                    Some(_) => {}
                    None => rules.push(told),
                }
            }
            rules.sort_by_key(|r| !r.fired);
            select.rules = rules;
            let Some(core) = cores.iter().find(|c| c.span.start == select.at) else { continue };
            let text = sql.get(core.span.clone()).unwrap_or_default();
            select.text = text.split_whitespace().collect::<Vec<_>>().join(" ");
            let mut own = |e: &Expr| own_calls(e, &mut select.calls);
            core.columns.iter().filter_map(|c| c.expr.as_ref()).for_each(&mut own);
            core.filter.iter().chain(&core.having).chain(&core.group).for_each(&mut own);
            core.from.iter().filter_map(|i| i.on.as_ref()).for_each(&mut own);
            select.calls.sort_unstable();
            select.calls.dedup();
        }
    }
}

/// Collects the calls of an expression outside of its subqueries, including those in arguments of
/// other calls.
fn own_calls(expr: &Expr, found: &mut Vec<usize>) {
    if let ExprKind::Call(n, _) = &expr.kind {
        found.push(*n);
    }
    let (exprs, _) = expr.inside();
    exprs.into_iter().for_each(|e| own_calls(e, found));
}

fn all_cores<'q>(query: &'q Query, cores: &mut Vec<&'q Core>) {
    of_body(query, cores);
    query.each(&mut |e| {
        if let Some(inner) = e.inside().1 {
            of_body(inner, cores);
        }
    });
}

fn of_body<'q>(query: &'q Query, cores: &mut Vec<&'q Core>) {
    query.with.iter().for_each(|cte| of_body(&cte.query, cores));
    match &query.body {
        Body::Core(core) => {
            cores.push(core);
            core.from.iter().for_each(|item| item.each_query(&mut |q| of_body(q, cores)));
        }
        Body::Compound(_, left, right) => {
            of_body(left, cores);
            of_body(right, cores);
        }
        Body::Values(..) => {}
    }
}

impl fmt::Display for RuleOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let came = if self.fired { "yes" } else { "no" };
        write!(f, "{:<22} {came:<3} {}", self.rule, self.why)
    }
}

impl fmt::Display for QueryPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for told in &self.rules {
            writeln!(f, "  {told}")?;
        }
        for select in &self.selects {
            writeln!(f, "  {}", select.text)?;
            for condition in &select.conditions {
                writeln!(f, "    condition {condition}")?;
            }
            for told in &select.rules {
                writeln!(f, "    {told}")?;
            }
        }
        Ok(())
    }
}

/// A nested SELECT to which the LIMIT rule applies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InnerRows {
    /// Start offset in the text.
    pub at: usize,
    /// Numbers of its calls.
    pub calls: Vec<usize>,
}

/// Plan of a query that needs only some of its rows.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FirstRows {
    /// Rows of the answer plus the rows that OFFSET skips; `None` without a LIMIT.
    pub need: Option<u64>,
    /// Rows that OFFSET skips.
    pub skipped: u64,
    /// Whether an ORDER BY determines which rows come first.
    pub ordered: bool,
    /// Whether equal rows are merged.
    pub distinct: bool,
    /// Whether the second-to-last column is the order in which rows are asked about.
    pub ranked: bool,
    /// Indices of the query's result columns whose values the candidate rows store.
    pub held: Vec<usize>,
    /// Number of result columns in the query.
    pub written: usize,
    /// Number of conditions with calls.
    pub conditions: usize,
    /// Whether a value has calls in a subquery that `SQLite` may run once for many rows. The
    /// requests of these calls are recorded with the first of these rows only.
    pub unheard: bool,
    pub(in crate::blendsql) star: Option<usize>,
    /// Whether the rows are groups.
    pub(in crate::blendsql) grouped: bool,
    pub(in crate::blendsql) truth: String,
    pub(in crate::blendsql) likened: Option<(Vec<usize>, String)>,
}

impl FirstRows {
    /// Returns true if a star precedes a result column.
    #[must_use]
    pub fn star_before(&self, column: usize) -> bool {
        self.star.is_some_and(|star| star < column)
    }
}
