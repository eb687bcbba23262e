//! The plan of a query, as a value that prints: each SELECT with calls, the calls
//! and conditions of it, and what each [rule](super::rules) came to there.

use std::fmt;

/// The precondition of a rule that does not hold.
pub type Refused = &'static str;

use super::tree::{Body, Core, Expr, ExprKind, Query};

/// What a query's SELECTs are made to be.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QueryPlan {
    /// Those with calls, in the order of the text.
    pub selects: Vec<Select>,
    /// What rules about the whole query came to.
    pub rules: Vec<RuleOutcome>,
}

/// One SELECT.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Select {
    /// Where it begins in the text.
    pub at: usize,
    /// Its text, on one line.
    pub text: String,
    /// The calls that stand in it and in no SELECT of it, by number.
    pub calls: Vec<usize>,
    /// Conditions with calls.
    pub conditions: Vec<String>,
    /// What rules came to.
    pub rules: Vec<RuleOutcome>,
}

/// What a rule came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleOutcome {
    /// The rule.
    pub rule: &'static str,
    /// Whether it fired.
    pub fired: bool,
    /// What it does there; or what of its precondition does not hold.
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
    /// The SELECT that begins somewhere.
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

    /// Puts the plan in the order of the text. A SELECT that is written twice has
    /// each rule once, and one that fired anywhere in it has fired.
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

/// Calls of an expression that stand in no SELECT of it; those in the arguments of
/// others, too.
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

/// A SELECT within a query, of which the rule of the first rows holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InnerRows {
    /// Where it begins in the text.
    pub at: usize,
    /// The calls in it, by number.
    pub calls: Vec<usize>,
}

/// How many of the rows of a statement are the answer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FirstRows {
    /// Rows of the answer, and rows before them that OFFSET skips; all without a
    /// LIMIT.
    pub need: Option<u64>,
    /// Rows that OFFSET skips.
    pub skipped: u64,
    /// The order says which rows come first.
    pub ordered: bool,
    /// Equal rows are one.
    pub distinct: bool,
    /// The last column but one says in which order the rows are asked about.
    pub ranked: bool,
    /// Result columns that the candidates hold the values of, as they are counted
    /// in the query, and how many columns it writes.
    pub held: Vec<usize>,
    /// How many result columns the query writes.
    pub written: usize,
    /// Conditions with calls.
    pub conditions: usize,
    /// A value has calls in a subquery that `SQLite` may run once for many rows: what
    /// they ask is noted with the first of these rows alone.
    pub unheard: bool,
    pub(in crate::blendsql) star: Option<usize>,
    /// The rows are groups.
    pub(in crate::blendsql) grouped: bool,
    pub(in crate::blendsql) truth: String,
    pub(in crate::blendsql) likened: Option<(Vec<usize>, String)>,
}

impl FirstRows {
    /// Whether a star stands before a result column.
    #[must_use]
    pub fn star_before(&self, column: usize) -> bool {
        self.star.is_some_and(|star| star < column)
    }
}
