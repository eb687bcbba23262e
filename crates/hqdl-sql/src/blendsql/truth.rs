//! Conditions with calls as CASE: plain parts first, then calls, each only when
//! those before leave the row open.
//!
//! The text made here gives 1 when a condition holds, 0 when it does not (be it
//! false or NULL) and 2 while a call that decides it is pending. NOT is carried
//! down to the leaves, so two values and *pending* are enough; where NULL and
//! false must be told apart, the condition is asked both ways.

use super::rewrite::{Leaf, Rewriter};
use super::scope::{Scope, bare};
use super::tree::{Body, Expr, ExprKind, Query, Source};

/// Whether all of some conditions hold.
pub(super) fn all(rewriter: &mut Rewriter<'_>, conditions: &[&Expr], scope: &Scope<'_>) -> String {
    let node = Node::All(conditions.iter().map(|c| node(c, true)).collect());
    let mut leaves = Vec::new();
    let text = rewriter.truth(&node, scope, &mut leaves);
    if leaves.len() < 2 {
        return text;
    }
    // What is known settles a row before anything is asked for it.
    let known = rewriter.known(&node, scope);
    format!("CASE hq_settled(hq_quiet(), {known}) WHEN 1 THEN 1 WHEN 0 THEN 0 ELSE {text} END")
}

/// The value of AND, OR with calls: 1, 0 or NULL.
pub(super) fn value(rewriter: &mut Rewriter<'_>, expr: &Expr, scope: &Scope<'_>) -> String {
    let (holds, fails) = (node(expr, true), node(expr, false));
    let holds = rewriter.truth(&holds, scope, &mut Vec::new());
    let fails = rewriter.truth(&fails, scope, &mut Vec::new());
    format!(
        "(CASE {holds} WHEN 1 THEN 1 WHEN 2 THEN NULL ELSE CASE {fails} WHEN 1 THEN 0 ELSE NULL END END)"
    )
}

/// Conditions with calls in a condition.
pub(super) fn leaves(rewriter: &Rewriter<'_>, expr: &Expr, scope: &Scope<'_>) -> usize {
    match &bare(expr).kind {
        ExprKind::And(all) | ExprKind::Or(all) => {
            all.iter().map(|e| leaves(rewriter, e, scope)).sum()
        }
        ExprKind::Not(inner) => leaves(rewriter, inner, scope),
        _ => usize::from(rewriter.bears(expr, scope)),
    }
}

/// A condition, NOT carried down.
enum Node<'e> {
    All(Vec<Node<'e>>),
    Any(Vec<Node<'e>>),
    /// Whether it is true, or whether it is false.
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

/// What evaluating a condition is expected to bring.
#[derive(Clone, Copy)]
struct Odds {
    /// Values asked for.
    cost: f64,
    /// How likely it holds.
    holds: f64,
}

impl Rewriter<'_> {
    fn truth(&mut self, node: &Node<'_>, scope: &Scope<'_>, leaves: &mut Vec<String>) -> String {
        match node {
            Node::Leaf(expr, wanted) => self.leaf(expr, *wanted, scope, leaves),
            Node::All(parts) => {
                let mut texts = self.in_order(parts, true, scope, leaves);
                let Some(last) = texts.pop() else { return "1".to_owned() };
                texts.into_iter().rev().fold(last, |rest, first| {
                    format!("CASE {first} WHEN 1 THEN {rest} WHEN 2 THEN 2 ELSE 0 END")
                })
            }
            Node::Any(parts) => {
                let mut texts = self.in_order(parts, false, scope, leaves);
                let Some(last) = texts.pop() else { return "0".to_owned() };
                texts.into_iter().rev().fold(last, |rest, first| {
                    format!("CASE {first} WHEN 1 THEN 1 WHEN 2 THEN 2 ELSE {rest} END")
                })
            }
        }
    }

    /// What is known of a condition without asking: 1, 0 or, while it is open, 2.
    fn known(&mut self, node: &Node<'_>, scope: &Scope<'_>) -> String {
        match node {
            Node::Leaf(expr, wanted) => {
                // What runs once for many rows must not run first while nothing is asked.
                if self.hides(node, scope) {
                    "2".to_owned()
                } else {
                    self.leaf(expr, *wanted, scope, &mut Vec::new())
                }
            }
            Node::All(parts) | Node::Any(parts) => {
                let (name, settles) = match node {
                    Node::All(_) => ("hq_all", 0),
                    _ => ("hq_any", 1),
                };
                // What is plain may keep the rest from an error.
                let (plain, open): (Vec<&Node<'_>>, Vec<&Node<'_>>) =
                    parts.iter().partition(|p| self.odds(p, scope).cost == 0.0);
                let texts: Vec<String> = open.iter().map(|p| self.known(p, scope)).collect();
                let rest = format!("{name}({})", texts.join(", "));
                if plain.is_empty() {
                    return rest;
                }
                let whens: Vec<String> = plain
                    .iter()
                    .map(|p| format!("WHEN {} = {settles} THEN {settles}", self.known(p, scope)))
                    .collect();
                format!("CASE {} ELSE {rest} END", whens.join(" "))
            }
        }
    }

    /// The texts of conditions, the one to evaluate first first.
    fn in_order(
        &mut self,
        parts: &[Node<'_>],
        all: bool,
        scope: &Scope<'_>,
        leaves: &mut Vec<String>,
    ) -> Vec<String> {
        let mut odds: Vec<Odds> = parts.iter().map(|p| self.odds(p, scope)).collect();
        if parts.iter().any(|p| self.hides(p, scope)) {
            // What cannot be looked at beforehand must come in the same order in
            // every run, or a later run would ask what an earlier one did not.
            for o in odds.iter_mut().filter(|o| o.cost > 0.0) {
                *o = Odds { cost: 1.0, holds: 0.5 };
            }
        }
        // A plain part that may fail is not put before a call that it stands behind.
        let first = odds.iter().position(|o| o.cost > 0.0).unwrap_or(parts.len());
        let held: Vec<bool> =
            (0..parts.len()).map(|n| n > first && self.may_fail(&parts[n])).collect();
        let mut order: Vec<usize> = (0..parts.len()).collect();
        // The chance to settle it, for each value asked.
        let worth = |n: usize| {
            let settles = if all { 1.0 - odds[n].holds } else { odds[n].holds };
            match odds[n].cost {
                _ if held[n] => -1.0,
                0.0 => f64::INFINITY,
                cost => settles / cost,
            }
        };
        order.sort_by(|a, b| worth(*b).total_cmp(&worth(*a)));
        order.into_iter().map(|n| self.truth(&parts[n], scope, leaves)).collect()
    }

    /// Calls inside subqueries of an expression that do not tell themselves, each
    /// time, whether they wait: `SQLite` runs what does not hang on the row once.
    pub(super) fn unheard(&self, expr: &Expr, scope: &Scope<'_>, found: &mut Vec<usize>) {
        let (exprs, query) = expr.inside();
        exprs.into_iter().for_each(|e| self.unheard(e, scope, found));
        let Some(query) = query.filter(|q| q.has_call()) else { return };
        if self.witnessed(expr, scope).is_some() {
            return;
        }
        let mut nested = !query.with.is_empty();
        query.each(&mut |e| nested |= e.inside().1.is_some_and(Query::has_call));
        if let Body::Core(core) = &query.body {
            nested |= core.from.iter().any(|i| !matches!(i.source, Source::Table { .. }));
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

    fn may_fail(&self, node: &Node<'_>) -> bool {
        match node {
            Node::Leaf(expr, _) => may_fail(expr, self.sql),
            Node::All(parts) | Node::Any(parts) => parts.iter().any(|p| self.may_fail(p)),
        }
    }

    /// Values that a call asks for, for each row: many rows may share one.
    fn cost(&self, call: usize) -> f64 {
        let one = if self.sites[call].pairs { 5.0 } else { 1.0 };
        one * self.costs.spread.get(&call).copied().unwrap_or(1.0).max(0.001)
    }

    /// Whether a condition cannot be looked at without asking.
    fn hides(&self, node: &Node<'_>, scope: &Scope<'_>) -> bool {
        match node {
            Node::Leaf(expr, _) => {
                let mut inner = Vec::new();
                calls_of_subqueries(expr, false, &mut inner);
                !inner.is_empty() || self.hides_calls(expr, scope)
            }
            Node::All(parts) | Node::Any(parts) => parts.iter().any(|p| self.hides(p, scope)),
        }
    }

    fn odds(&self, node: &Node<'_>, scope: &Scope<'_>) -> Odds {
        match node {
            Node::Leaf(expr, wanted) => {
                let mut cost = 0.0;
                expr.each(&mut |e| {
                    if let ExprKind::Call(n, _) = &e.kind {
                        cost += self.cost(*n);
                    }
                });
                if cost == 0.0 && self.bears(expr, scope) {
                    cost = 1.0;
                }
                if cost == 0.0 {
                    return Odds { cost: 0.0, holds: 0.5 };
                }
                let seen = self.costs.seen.get(&expr.span.start).copied().unwrap_or_default();
                let holds = if *wanted { seen.share() } else { 1.0 - seen.share() };
                Odds { cost, holds }
            }
            Node::All(parts) | Node::Any(parts) => {
                let all = matches!(node, Node::All(_));
                let mut odds: Vec<Odds> = parts.iter().map(|p| self.odds(p, scope)).collect();
                let worth = |o: &Odds| {
                    let settles = if all { 1.0 - o.holds } else { o.holds };
                    if o.cost == 0.0 { f64::INFINITY } else { settles / o.cost }
                };
                odds.sort_by(|a, b| worth(b).total_cmp(&worth(a)));
                // The share of rows that each part is still reached by.
                let (mut open, mut cost) = (1.0, 0.0);
                for o in &odds {
                    cost += open * o.cost;
                    open *= if all { o.holds } else { 1.0 - o.holds };
                }
                Odds { cost, holds: if all { open } else { 1.0 - open } }
            }
        }
    }

    fn leaf(
        &mut self,
        expr: &Expr,
        wanted: bool,
        scope: &Scope<'_>,
        leaves: &mut Vec<String>,
    ) -> String {
        let text = self.value(expr, scope);
        let truth = if wanted { "TRUE" } else { "FALSE" };
        if !self.bears(expr, scope) {
            return format!("(({text}) IS {truth})");
        }
        let at = expr.span.start;
        let mut inner_calls = Vec::new();
        self.unheard(expr, scope, &mut inner_calls);
        self.note_leaf(at, Leaf { inner_calls });
        let text = format!("hq_leaf({at}, {}, hq_mark(), (({text}) IS {truth}))", u8::from(wanted));
        leaves.push(text.clone());
        text
    }
}

/// Functions that take whatever they are given.
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

/// Whether evaluating an expression may end in an error.
pub(super) fn may_fail(expr: &Expr, sql: &str) -> bool {
    let mut found = false;
    expr.each(&mut |e| match &e.kind {
        ExprKind::Function { name, .. } => found |= !SAFE.contains(&name.as_str()),
        ExprKind::Other(_) => {
            let text = &sql[e.span.clone()];
            let upper = text.to_ascii_uppercase();
            found |= text.contains("->")
                || ["MATCH", "REGEXP", "RAISE"].iter().any(|w| upper.contains(w));
        }
        _ => {}
    });
    found
}

/// Calls inside subqueries of an expression.
fn calls_of_subqueries(expr: &Expr, inside: bool, found: &mut Vec<usize>) {
    if let (true, ExprKind::Call(n, _)) = (inside, &expr.kind) {
        found.push(*n);
    }
    let (exprs, query) = expr.inside();
    exprs.into_iter().for_each(|e| calls_of_subqueries(e, inside, found));
    if let Some(query) = query {
        query.each(&mut |e| {
            if let ExprKind::Call(n, _) = &e.kind {
                found.push(*n);
            }
        });
    }
}
