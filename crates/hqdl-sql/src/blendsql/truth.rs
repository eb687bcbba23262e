//! Converts conditions with calls to CASE expressions: first the parts without calls, then the
//! calls, each only if the parts before it do not decide the row.
//!
//! The generated SQL returns 1 if a condition is true, 0 if it is false or NULL, and 2 while it
//! depends on a pending call. NOT is pushed down to the predicates, so two values and *pending* are
//! enough. Where NULL and false must be distinguished, the condition is evaluated for both.

use super::emit;
use super::rewrite::{Predicate, Rewriter, visit_own_calls};
use super::scope::{Scope, without_parens};
use super::tree::{Body, Expr, ExprKind, ExprOperator, FromItem, FromSource, MatchOperator, Query};

/// Maximum number of bytes of a condition that is written twice: once to be looked up, and once to
/// be asked.
const MAX_DUPLICATED_BYTES: usize = 20_000;

/// Returns the truth of the conjunction of some conditions.
pub(super) fn all_hold(
    rewriter: &mut Rewriter<'_>,
    conditions: &[&Expr],
    scope: &Scope<'_>,
) -> String {
    let node = ConditionTree::All(conditions.iter().map(|c| condition_tree(c, true)).collect());
    let mut predicates = Vec::new();
    let text = rewriter.truth_sql(&node, scope, &mut predicates);
    if predicates.len() < 2 {
        return text;
    }
    // Cached answers may decide a row before any request is made for it.
    let from_cache = rewriter.cached_truth(&node, scope);
    emit::lookup_before_asking(&from_cache, &text, true)
}

/// Returns the value of an AND or OR with calls: 1, 0 or NULL.
pub(super) fn condition_value(
    rewriter: &mut Rewriter<'_>,
    expr: &Expr,
    scope: &Scope<'_>,
) -> String {
    let (of_true, of_false) = (condition_tree(expr, true), condition_tree(expr, false));
    let mut predicates = Vec::new();
    let holds = rewriter.truth_sql(&of_true, scope, &mut predicates);
    let fails = rewriter.truth_sql(&of_false, scope, &mut Vec::new());
    let text = emit::truth_value(&holds, &fails);
    // Nested values would multiply the text each time.
    if predicates.len() < 2 || text.len() > MAX_DUPLICATED_BYTES {
        return text;
    }
    let (holds, fails) =
        (rewriter.cached_truth(&of_true, scope), rewriter.cached_truth(&of_false, scope));
    emit::lookup_value_before_asking(&holds, &fails, &text)
}

/// Returns the number of predicates with calls in a condition.
pub(super) fn count_predicates(rewriter: &Rewriter<'_>, expr: &Expr, scope: &Scope<'_>) -> usize {
    match &without_parens(expr).kind {
        ExprKind::And(all) | ExprKind::Or(all) => {
            all.iter().map(|e| count_predicates(rewriter, e, scope)).sum()
        }
        ExprKind::Not(inner) => count_predicates(rewriter, inner, scope),
        _ => usize::from(rewriter.depends_on_call(expr, scope)),
    }
}

/// A condition with NOT pushed down to the predicates.
pub(super) enum ConditionTree<'e> {
    All(Vec<ConditionTree<'e>>),
    Any(Vec<ConditionTree<'e>>),
    /// A predicate and the desired truth.
    Predicate(&'e Expr, bool),
}

fn condition_tree(expr: &Expr, wanted: bool) -> ConditionTree<'_> {
    match &expr.kind {
        ExprKind::Paren(inner) => condition_tree(inner, wanted),
        ExprKind::Not(inner) => condition_tree(inner, !wanted),
        ExprKind::And(parts) | ExprKind::Or(parts) => {
            let parts = parts.iter().map(|p| condition_tree(p, wanted)).collect();
            if matches!(expr.kind, ExprKind::And(_)) == wanted {
                ConditionTree::All(parts)
            } else {
                ConditionTree::Any(parts)
            }
        }
        _ => ConditionTree::Predicate(expr, wanted),
    }
}

impl Rewriter<'_> {
    fn truth_sql(
        &mut self,
        node: &ConditionTree<'_>,
        scope: &Scope<'_>,
        predicates: &mut Vec<String>,
    ) -> String {
        match node {
            ConditionTree::Predicate(expr, wanted) => {
                self.predicate_sql(expr, *wanted, scope, predicates)
            }
            ConditionTree::All(parts) => {
                emit::all_of(self.ordered_truths(parts, true, scope, predicates))
            }
            ConditionTree::Any(parts) => {
                emit::any_of(self.ordered_truths(parts, false, scope, predicates))
            }
        }
    }

    /// Returns the SQL of conditions in the order of evaluation.
    fn ordered_truths(
        &mut self,
        parts: &[ConditionTree<'_>],
        all: bool,
        scope: &Scope<'_>,
        predicates: &mut Vec<String>,
    ) -> Vec<String> {
        let order = self.evaluation_order(parts, all, scope);
        let mut texts = Vec::new();
        for n in order {
            let before = predicates.len();
            let text = self.truth_sql(&parts[n], scope, predicates);
            // Cached answers may decide a part in any order of evaluation.
            let has_several = predicates.len() > before + 1;
            texts.push(if has_several && text.len() <= MAX_DUPLICATED_BYTES {
                emit::lookup_before_asking(&self.cached_truth(&parts[n], scope), &text, false)
            } else {
                text
            });
        }
        texts
    }

    /// Returns the truth of a condition from cached answers only: 1, 0, or 2 if it is undecided.
    fn cached_truth(&mut self, node: &ConditionTree<'_>, scope: &Scope<'_>) -> String {
        match node {
            ConditionTree::Predicate(expr, wanted) => {
                // `SQLite` runs some subqueries only once for many rows. Such a subquery must not
                // run first while nothing may be asked.
                if self.has_hidden_calls(node, scope) {
                    "2".to_owned()
                } else {
                    self.predicate_sql(expr, *wanted, scope, &mut Vec::new())
                }
            }
            ConditionTree::All(parts) | ConditionTree::Any(parts) => {
                let (plain, with_calls): (Vec<&ConditionTree<'_>>, Vec<&ConditionTree<'_>>) =
                    parts.iter().partition(|p| self.estimate(p, scope).cost == 0.0);
                let with_calls: Vec<String> =
                    with_calls.iter().map(|p| self.cached_truth(p, scope)).collect();
                let plain: Vec<String> =
                    plain.iter().map(|p| self.cached_truth(p, scope)).collect();
                emit::evaluate_all(matches!(node, ConditionTree::All(_)), &plain, &with_calls)
            }
        }
    }

    /// Collects the calls in subqueries of an expression that do not report for each row whether
    /// they are pending: `SQLite` runs an uncorrelated subquery only once.
    pub(super) fn collect_shared_calls(
        &self,
        expr: &Expr,
        scope: &Scope<'_>,
        found: &mut Vec<usize>,
    ) {
        if !self.shared_source_calls.is_empty()
            && self.depends_on_call(expr, scope)
            && self.references_hidden_calls(expr, scope)
        {
            found.extend(&self.shared_source_calls);
        }
        let (exprs, query) = expr.children();
        exprs.into_iter().for_each(|e| self.collect_shared_calls(e, scope, found));
        let Some(query) = query else { return };
        found.extend(self.calls_in_from(query));
        if !query.has_call() || self.find_decisive_select(expr, scope).is_ok() {
            return;
        }
        let mut nested = !query.with.is_empty();
        query.visit_exprs(&mut |e| nested |= e.children().1.is_some_and(Query::has_call));
        if let Body::Core(core) = &query.body {
            nested |= core.from.iter().any(|i| !matches!(i.source, FromSource::Table { .. }));
        } else {
            nested = true;
        }
        if nested || !self.is_correlated(query, scope) {
            query.visit_exprs(&mut |e| {
                if let ExprKind::Call(n, _) = &e.kind {
                    found.push(*n);
                }
            });
        }
    }

    /// Returns the calls on which the rows of a query's FROM clause depend. `SQLite` may compute
    /// these rows once, for the first row that needs them. Calls in the query's conditions report
    /// for themselves whether they are pending.
    fn calls_in_from(&self, query: &Query) -> Vec<usize> {
        match &query.body {
            Body::Core(core) => core.from.iter().flat_map(|i| self.calls_in_source(i)).collect(),
            _ => self.reachable_calls(query),
        }
    }

    pub(super) fn calls_in_source(&self, item: &FromItem) -> Vec<usize> {
        let mut calls = match &item.source {
            FromSource::Table { schema: None, name, .. } => self.calls_of_cte(name),
            FromSource::Table { .. } => Vec::new(),
            FromSource::Query(query) => self.reachable_calls(query),
            FromSource::Join(items) => items.iter().flat_map(|i| self.calls_in_source(i)).collect(),
            FromSource::Function { args, .. } => {
                let mut calls = Vec::new();
                args.iter().for_each(|a| visit_own_calls(a, &mut |n| calls.push(n)));
                calls
            }
        };
        item.on.iter().for_each(|on| visit_own_calls(on, &mut |n| calls.push(n)));
        calls
    }

    fn predicate_sql(
        &mut self,
        expr: &Expr,
        wanted: bool,
        scope: &Scope<'_>,
        predicates: &mut Vec<String>,
    ) -> String {
        let text = self.rewrite_value(expr, scope);
        if !self.depends_on_call(expr, scope) {
            return emit::plain_truth(&text, wanted);
        }
        let at = expr.span.start;
        let mut inner_calls = Vec::new();
        self.collect_shared_calls(expr, scope, &mut inner_calls);
        self.record_predicate(at, Predicate { shared_calls: inner_calls });
        let text = emit::predicate_truth(at, &text, wanted);
        predicates.push(text.clone());
        text
    }
}

/// Functions that never fail, whatever their arguments.
const INFALLIBLE_FUNCTIONS: [&str; 31] = [
    "char",
    "coalesce",
    "date",
    "datetime",
    "hex",
    "ifnull",
    "iif",
    "instr",
    "julianday",
    "length",
    "lower",
    "ltrim",
    "max",
    "min",
    "nullif",
    "quote",
    "replace",
    "round",
    "rtrim",
    "sign",
    "strftime",
    "substr",
    "substring",
    "time",
    "trim",
    "typeof",
    "unicode",
    "upper",
    "count",
    "total",
    "avg",
];

/// Returns true if evaluating an expression may fail with an error.
pub(super) fn may_fail(expr: &Expr) -> bool {
    let mut found = false;
    expr.visit_exprs(&mut |e| match &e.kind {
        // SUQL's functions fail for arguments of a wrong type. They count as infallible, because
        // `PostgreSQL` does not guarantee an evaluation order of conditions either.
        ExprKind::Function { name, .. } => {
            found |= !INFALLIBLE_FUNCTIONS.contains(&name.as_str()) && !name.starts_with("suql_");
        }
        ExprKind::Operation(operator, parts) => {
            found |= match operator {
                ExprOperator::Infix(sign) => matches!(*sign, "->" | "->>"),
                ExprOperator::Match(pattern_operator) => {
                    matches!(pattern_operator, MatchOperator::Match | MatchOperator::Regexp)
                }
                // A parameter has no operands.
                ExprOperator::Unknown => !parts.is_empty(),
                _ => false,
            };
        }
        _ => {}
    });
    found
}
