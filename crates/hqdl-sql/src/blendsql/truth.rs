//! Converts conditions with calls to CASE expressions: first the parts without calls, then the
//! calls, each only if the parts before it do not decide the row.
//!
//! The generated SQL returns 1 if a condition is true, 0 if it is false or NULL, and 2 while it
//! depends on a pending call. NOT is pushed down to the predicates, so two values and *pending* are
//! enough. Where NULL and false must be distinguished, the condition is evaluated for both.

use super::emit;
use super::rewrite::{Leaf, Rewriter, own_calls};
use super::scope::{Scope, bare};
use super::tree::{Body, Expr, ExprKind, ExprOperator, FromItem, FromSource, MatchOperator, Query};

/// Maximum number of bytes of a condition that is written twice: once to be looked up, and once to
/// be asked.
const LONG: usize = 20_000;

/// Returns the truth of the conjunction of some conditions.
pub(super) fn all(rewriter: &mut Rewriter<'_>, conditions: &[&Expr], scope: &Scope<'_>) -> String {
    let node = Node::All(conditions.iter().map(|c| node(c, true)).collect());
    let mut leaves = Vec::new();
    let text = rewriter.truth(&node, scope, &mut leaves);
    if leaves.len() < 2 {
        return text;
    }
    // Cached answers may decide a row before any request is made for it.
    let known = rewriter.known(&node, scope);
    emit::settled_first(&known, &text, true)
}

/// Returns the value of an AND or OR with calls: 1, 0 or NULL.
pub(super) fn value(rewriter: &mut Rewriter<'_>, expr: &Expr, scope: &Scope<'_>) -> String {
    let (of_true, of_false) = (node(expr, true), node(expr, false));
    let mut leaves = Vec::new();
    let holds = rewriter.truth(&of_true, scope, &mut leaves);
    let fails = rewriter.truth(&of_false, scope, &mut Vec::new());
    let text = emit::value_of(&holds, &fails);
    // Nested values would multiply the text each time.
    if leaves.len() < 2 || text.len() > LONG {
        return text;
    }
    let (holds, fails) = (rewriter.known(&of_true, scope), rewriter.known(&of_false, scope));
    emit::settled_value(&holds, &fails, &text)
}

/// Returns the number of predicates with calls in a condition.
pub(super) fn leaves(rewriter: &Rewriter<'_>, expr: &Expr, scope: &Scope<'_>) -> usize {
    match &bare(expr).kind {
        ExprKind::And(all) | ExprKind::Or(all) => {
            all.iter().map(|e| leaves(rewriter, e, scope)).sum()
        }
        ExprKind::Not(inner) => leaves(rewriter, inner, scope),
        _ => usize::from(rewriter.bears(expr, scope)),
    }
}

/// A condition with NOT pushed down to the predicates.
pub(super) enum Node<'e> {
    All(Vec<Node<'e>>),
    Any(Vec<Node<'e>>),
    /// A predicate and the desired truth.
    Leaf(&'e Expr, bool),
}

fn node(expr: &Expr, wanted: bool) -> Node<'_> {
    match &expr.kind {
        ExprKind::Paren(inner) => node(inner, wanted),
        ExprKind::Not(inner) => node(inner, !wanted),
        ExprKind::And(parts) | ExprKind::Or(parts) => {
            let parts = parts.iter().map(|p| node(p, wanted)).collect();
            if matches!(expr.kind, ExprKind::And(_)) == wanted {
                Node::All(parts)
            } else {
                Node::Any(parts)
            }
        }
        _ => Node::Leaf(expr, wanted),
    }
}

impl Rewriter<'_> {
    fn truth(&mut self, node: &Node<'_>, scope: &Scope<'_>, leaves: &mut Vec<String>) -> String {
        match node {
            Node::Leaf(expr, wanted) => self.leaf(expr, *wanted, scope, leaves),
            Node::All(parts) => emit::every(self.ordered(parts, true, scope, leaves)),
            Node::Any(parts) => emit::some(self.ordered(parts, false, scope, leaves)),
        }
    }

    /// Returns the SQL of conditions in the order of evaluation.
    fn ordered(
        &mut self,
        parts: &[Node<'_>],
        all: bool,
        scope: &Scope<'_>,
        leaves: &mut Vec<String>,
    ) -> Vec<String> {
        let order = self.in_order(parts, all, scope);
        let mut texts = Vec::new();
        for n in order {
            let before = leaves.len();
            let text = self.truth(&parts[n], scope, leaves);
            // Cached answers may decide a part in any order of evaluation.
            let several = leaves.len() > before + 1;
            texts.push(if several && text.len() <= LONG {
                emit::settled_first(&self.known(&parts[n], scope), &text, false)
            } else {
                text
            });
        }
        texts
    }

    /// Returns the truth of a condition from cached answers only: 1, 0, or 2 if it is undecided.
    fn known(&mut self, node: &Node<'_>, scope: &Scope<'_>) -> String {
        match node {
            Node::Leaf(expr, wanted) => {
                // `SQLite` runs some subqueries only once for many rows. Such a subquery must not
                // run first while nothing may be asked.
                if self.hides(node, scope) {
                    "2".to_owned()
                } else {
                    self.leaf(expr, *wanted, scope, &mut Vec::new())
                }
            }
            Node::All(parts) | Node::Any(parts) => {
                let (plain, open): (Vec<&Node<'_>>, Vec<&Node<'_>>) =
                    parts.iter().partition(|p| self.odds(p, scope).cost == 0.0);
                let open: Vec<String> = open.iter().map(|p| self.known(p, scope)).collect();
                let plain: Vec<String> = plain.iter().map(|p| self.known(p, scope)).collect();
                emit::looked_at(matches!(node, Node::All(_)), &plain, &open)
            }
        }
    }

    /// Collects the calls in subqueries of an expression that do not report for each row whether
    /// they are pending: `SQLite` runs an uncorrelated subquery only once.
    pub(super) fn unheard(&self, expr: &Expr, scope: &Scope<'_>, found: &mut Vec<usize>) {
        if !self.once_below.is_empty() && self.bears(expr, scope) && self.hides_calls(expr, scope) {
            found.extend(&self.once_below);
        }
        let (exprs, query) = expr.inside();
        exprs.into_iter().for_each(|e| self.unheard(e, scope, found));
        let Some(query) = query else { return };
        found.extend(self.calls_below(query));
        if !query.has_call() || self.witnessed(expr, scope).is_ok() {
            return;
        }
        let mut nested = !query.with.is_empty();
        query.each(&mut |e| nested |= e.inside().1.is_some_and(Query::has_call));
        if let Body::Core(core) = &query.body {
            nested |= core.from.iter().any(|i| !matches!(i.source, FromSource::Table { .. }));
        } else {
            nested = true;
        }
        if nested || !self.is_correlated(query, scope) {
            query.each(&mut |e| {
                if let ExprKind::Call(n, _) = &e.kind {
                    found.push(*n);
                }
            });
        }
    }

    /// Returns the calls on which the rows of a query's FROM clause depend. `SQLite` may compute
    /// these rows once, for the first row that needs them. Calls in the query's conditions report
    /// for themselves whether they are pending.
    fn calls_below(&self, query: &Query) -> Vec<usize> {
        match &query.body {
            Body::Core(core) => core.from.iter().flat_map(|i| self.calls_of_rows(i)).collect(),
            _ => self.calls_read(query),
        }
    }

    pub(super) fn calls_of_rows(&self, item: &FromItem) -> Vec<usize> {
        let mut calls = match &item.source {
            FromSource::Table { schema: None, name, .. } => self.calls_named(name),
            FromSource::Table { .. } => Vec::new(),
            FromSource::Query(query) => self.calls_read(query),
            FromSource::Join(items) => items.iter().flat_map(|i| self.calls_of_rows(i)).collect(),
            FromSource::Function { args, .. } => {
                let mut calls = Vec::new();
                args.iter().for_each(|a| own_calls(a, &mut |n| calls.push(n)));
                calls
            }
        };
        item.on.iter().for_each(|on| own_calls(on, &mut |n| calls.push(n)));
        calls
    }

    fn leaf(
        &mut self,
        expr: &Expr,
        wanted: bool,
        scope: &Scope<'_>,
        leaves: &mut Vec<String>,
    ) -> String {
        let text = self.value(expr, scope);
        if !self.bears(expr, scope) {
            return emit::plain(&text, wanted);
        }
        let at = expr.span.start;
        let mut inner_calls = Vec::new();
        self.unheard(expr, scope, &mut inner_calls);
        self.note_leaf(at, Leaf { inner_calls });
        let text = emit::leaf(at, &text, wanted);
        leaves.push(text.clone());
        text
    }
}

/// Functions that never fail, whatever their arguments.
const SAFE: [&str; 31] = [
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
    expr.each(&mut |e| match &e.kind {
        // SUQL's functions fail for arguments of a wrong type. They count as infallible, because
        // `PostgreSQL` does not guarantee an evaluation order of conditions either.
        ExprKind::Function { name, .. } => {
            found |= !SAFE.contains(&name.as_str()) && !name.starts_with("suql_");
        }
        ExprKind::Operation(operator, parts) => {
            found |= match operator {
                ExprOperator::Infix(sign) => matches!(*sign, "->" | "->>"),
                ExprOperator::Match(of) => {
                    matches!(of, MatchOperator::Match | MatchOperator::Regexp)
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
