//! Rewrites a single SELECT: evaluates its conditions with calls last and records them per row.

use super::emit;
use super::frame::is_random;
use super::rewrite::{Rewriter, Role, conjuncts, has_field};
use super::rules::conditions_last::{fence, fence_of, held_back};
use super::rules::{CONDITIONS_LAST, CONDITIONS_OF_GROUPS};
use super::scope::{Scope, bare};
use super::tree::{Core, Expr, ExprKind, FromItem, FromSource, JoinKind, Query, Span};
use super::truth;
use hqdl_values::sql;

/// The conditions of a SELECT, split by whether they have calls.
struct Conditions<'c> {
    /// Whether inner join conditions can move to WHERE, i.e. no join is RIGHT or FULL.
    movable: bool,
    /// Conditions of WHERE without calls.
    plain: Vec<Expr>,
    /// Conditions of WHERE with calls.
    calls: Vec<Expr>,
    /// Inner joins that have calls: their conditions without calls, and those with calls.
    joined: Vec<(&'c FromItem, Vec<Expr>, Vec<Expr>)>,
    /// Inner join conditions without calls that `SQLite` might evaluate after the calls.
    on_plain: Vec<Expr>,
}

impl Rewriter<'_> {
    /// Rewrites a SELECT.
    pub(super) fn core(
        &mut self,
        query: &Query,
        core: &Core,
        around: &Scope<'_>,
        role: Role,
        parts: &mut Vec<(Span, String)>,
    ) {
        let scope = self.resolver().core(core, around);
        let outer_select = std::mem::replace(&mut self.here, core.span.start);
        let aliases: Vec<&str> = core
            .columns
            .iter()
            .filter(|c| c.expr.as_ref().is_some_and(|e| self.bears(e, &scope)))
            .filter_map(|c| c.alias.as_deref())
            .filter(|a| scope.tables.iter().all(|t| !has_field(t, a)))
            .collect();
        let outer_aliases =
            std::mem::replace(&mut self.aliases, aliases.iter().map(|a| (*a).to_owned()).collect());
        let Conditions { movable, mut plain, calls: where_calls, joined, on_plain } =
            self.conditions(core, &scope);
        let joined_calls = joined.iter().flat_map(|(_, _, calls)| calls);
        let calls: Vec<&Expr> = where_calls.iter().chain(joined_calls).collect();
        self.note_conditions(core, &calls, movable);
        let mut first = self.first_rows(query, core, &scope, &calls);
        // Conditions that must wait for whole source rows; with a LIMIT plan, the rows are already
        // whole.
        let early = !calls.is_empty() && first.as_ref().is_none_or(|f| f.grouped)
            || core.from.iter().any(|i| self.joined_by_calls(i, &scope));
        let apart = early.then(|| self.of_one_table(core, &plain, &scope));
        let aliases = std::mem::replace(&mut self.aliases, outer_aliases);
        for item in &core.from {
            let apart = self.kept_apart(item, has_own_call(query, core), apart.as_deref());
            self.read_from(item, around, &scope, apart, parts);
        }
        let outer_aliases = std::mem::replace(&mut self.aliases, aliases);
        let fence = fence(&scope);
        // Conditions on grouping columns wait for the HAVING conditions without calls.
        let (late, calls): (Vec<&Expr>, Vec<&Expr>) = match &core.having {
            Some(having) if conjuncts(having).iter().any(|h| !self.bears(h, &scope)) => {
                calls.into_iter().partition(|c| self.is_of_group(c, core, &scope))
            }
            _ => (Vec::new(), calls),
        };
        if !core.group.is_empty() {
            self.note(core, CONDITIONS_OF_GROUPS, match late.len() {
                0 => Err("no condition with calls is on grouping columns alone, or HAVING has no plain part"),
                n => Ok(format!("{n} after the plain part of HAVING")),
            });
        }
        let mut combined = None;
        let mut guards: Vec<Expr> = Vec::new();
        // A condition that may fail must stay after the calls that precede it in the text.
        let held = held_back(&mut plain, &where_calls);
        let mut text =
            if calls.is_empty() { "1".to_owned() } else { truth::all(self, &calls, &scope) };
        for held in &held {
            text = emit::and(&text, &emit::plain(&self.sql[held.span.clone()], true));
        }
        if let Some(first) = first.as_mut().filter(|f| !f.grouped) {
            first.truth = text;
        } else if !calls.is_empty() {
            if self.settled.contains(&core.span.start) {
                text = emit::known_to_hold(&text);
            }
            // SQLite evaluates a condition that references no table before it reads a row.
            let of_rows = calls.iter().any(|c| self.is_of_rows(c, &scope));
            if fence.len() > 1 || (!fence.is_empty() && !of_rows) {
                text = emit::for_whole_rows(&fence, &text);
            }
            // Put conditions that SQLite would evaluate later, or convert to a join, before the
            // calls.
            (guards, plain) = plain.into_iter().partition(|e| self.hangs_on_rows(e, &scope));
            for guard in guards.iter().chain(if movable { &on_plain } else { &[][..] }).rev() {
                let guard = &self.sql[guard.span.clone()];
                text = emit::guarded(&format!("({guard})"), &text);
            }
            let conditions = calls.iter().map(|c| truth::leaves(self, c, &scope)).sum();
            let unit = self.unit(core.span.start, conditions);
            // Rows with the same value are equivalent candidates.
            let value = if role == Role::Set { self.witness(core, &scope) } else { None };
            let value = value.map(|e| &self.sql[e.span.clone()]);
            combined = Some(format!("(SELECT {})", emit::noted_row(unit, &text, value)));
        }
        if calls.is_empty() {
            plain.extend(held);
        }
        let anew = !where_calls.is_empty() || combined.is_some() || !guards.is_empty();
        let plain = anew.then_some(plain.as_slice());
        self.write_conditions(core, plain, &joined, combined, parts);
        self.joins_that_stay(core, &scope, movable, parts);
        if let Some(having) = &core.having
            && (self.bears(having, &scope) || !late.is_empty())
        {
            let mut all = conjuncts(having);
            all.extend(&late);
            let text = truth::all(self, &all, &scope);
            let unit = self.unit(having.span.start, 1);
            parts.push((having.span.clone(), emit::noted_row(unit, &text, None)));
        }
        if let Some(first) = first {
            self.yield_rows(first, query, core, &scope, parts);
        }
        self.values(query, core, &scope, parts);
        self.limits(query, &scope, parts);
        self.name_results(core, parts);
        self.aliases = outer_aliases;
        self.here = outer_select;
    }

    /// Rewrites all expressions of a SELECT except its conditions.
    fn values(
        &mut self,
        query: &Query,
        core: &Core,
        scope: &Scope<'_>,
        parts: &mut Vec<(Span, String)>,
    ) {
        let outer = self.known_only;
        self.known_only |= self.settled.contains(&core.span.start);
        let columns = core.columns.iter().filter_map(|c| c.expr.as_ref());
        let order = query.order.iter().map(|o| &o.expr);
        for expr in columns.chain(&core.group).chain(&core.windows).chain(order) {
            if !parts.iter().any(|(span, _)| *span == expr.span) {
                self.value_part(expr, scope, parts);
            }
        }
        self.known_only = outer;
    }

    /// Splits the conditions of a SELECT, including join conditions that can move to WHERE.
    fn conditions<'c>(&self, core: &'c Core, scope: &Scope<'_>) -> Conditions<'c> {
        // Inner join conditions have the same meaning in WHERE.
        let movable = core.from.iter().all(|i| i.join != JoinKind::Outer);
        let split = |expr: &Expr| -> (Vec<Expr>, Vec<Expr>) {
            conjuncts(expr).into_iter().cloned().partition(|e| !self.bears(e, scope))
        };
        let (plain, calls) = core.filter.as_ref().map(split).unwrap_or_default();
        let mut joined: Vec<(&FromItem, Vec<Expr>, Vec<Expr>)> = Vec::new();
        for item in core.from.iter().filter(|i| i.join == JoinKind::Inner && movable) {
            if let Some(on) = item.on.as_ref().filter(|on| self.bears(on, scope)) {
                let (plain, calls) = split(on);
                joined.push((item, plain, calls));
            }
        }
        // Evaluate join conditions after those of WHERE unless something else determines the order.
        let after_left = core.from.iter().any(|i| i.join == JoinKind::Left);
        let on_plain: Vec<Expr> = (core.from.iter().filter(|i| i.join == JoinKind::Inner))
            .filter_map(|i| i.on.as_ref())
            .flat_map(|on| split(on).0)
            .filter(|e| after_left || self.hangs_on_rows(e, scope))
            .collect();
        Conditions { movable, plain, calls, joined, on_plain }
    }

    /// Records in the plan the conditions with calls and whether they are evaluated last.
    fn note_conditions(&mut self, core: &Core, calls: &[&Expr], movable: bool) {
        for call in calls {
            let text: Vec<&str> = self.sql[call.span.clone()].split_whitespace().collect();
            self.out.plan.select(core.span.start).conditions.push(text.join(" "));
        }
        self.note(
            core,
            CONDITIONS_LAST,
            match (calls.is_empty(), movable) {
                (false, true) => {
                    Ok("only for rows that pass the plain conditions and joins".to_owned())
                }
                (false, false) => {
                    Ok("only those of WHERE, because of a RIGHT or FULL JOIN".to_owned())
                }
                (true, _) => Err("no condition of WHERE or of an inner join has a call"),
            },
        );
    }

    /// Writes the conditions without calls, if WHERE must be rewritten, followed by the conditions
    /// with calls. Without a WHERE, these follow the conditions of the first join that has calls.
    fn write_conditions(
        &self,
        core: &Core,
        plain: Option<&[Expr]>,
        joined: &[(&FromItem, Vec<Expr>, Vec<Expr>)],
        mut combined: Option<String>,
        parts: &mut Vec<(Span, String)>,
    ) {
        if let (Some(filter), Some(plain)) = (&core.filter, plain) {
            parts.push((filter.span.clone(), self.conjunction(plain, combined.take())));
        }
        if core.filter.is_none()
            && joined.is_empty()
            && let Some(text) = combined.take()
        {
            parts.push((core.from_end..core.from_end, format!(" WHERE {text}")));
        }
        for (item, plain, _) in joined {
            if let Some(on) = &item.on {
                parts.push((on.span.clone(), self.conjunction(plain, combined.take())));
            }
        }
    }

    /// Joins unchanged conditions and an optional rewritten one with AND.
    fn conjunction(&self, plain: &[Expr], more: Option<String>) -> String {
        let mut all: Vec<String> =
            plain.iter().map(|e| format!("({})", &self.sql[e.span.clone()])).collect();
        all.extend(more);
        if all.is_empty() { "1".to_owned() } else { all.join(" AND ") }
    }

    /// Rewrites the join conditions with calls that cannot move to WHERE.
    fn joins_that_stay(
        &mut self,
        core: &Core,
        scope: &Scope<'_>,
        movable: bool,
        parts: &mut Vec<(Span, String)>,
    ) {
        let mut tables = 0;
        for item in &core.from {
            tables += width(item);
            let kept = item.join != JoinKind::Inner || !movable;
            if let Some(on) = item.on.as_ref().filter(|on| kept && self.bears(on, scope)) {
                let (plain, calls): (Vec<Expr>, Vec<Expr>) =
                    conjuncts(on).into_iter().cloned().partition(|e| !self.bears(e, scope));
                let calls: Vec<&Expr> = calls.iter().collect();
                let mut text = truth::all(self, &calls, scope);
                // `SQLite` can convert a LEFT JOIN to an inner join because of WHERE and then
                // reorder it. Therefore the condition waits for a row of all preceding tables and
                // for its own parts without calls.
                if movable {
                    let before = scope.tables.get(..tables).unwrap_or_default();
                    text = emit::for_whole_rows(&fence_of(before, scope), &text);
                }
                for plain in plain.iter().rev().filter(|e| is_settled(e)) {
                    let plain = &self.sql[plain.span.clone()];
                    text = emit::guarded(&format!("({plain})"), &text);
                }
                let text = self.conjunction(&plain, Some(format!("(SELECT {text}) = 1")));
                parts.push((on.span.clone(), text));
            }
        }
    }

    /// Records the original names of the result columns whose text has changed.
    fn name_results(&mut self, core: &Core, parts: &[(Span, String)]) {
        for expr in
            core.columns.iter().filter(|c| c.alias.is_none()).filter_map(|c| c.expr.as_ref())
        {
            if let Some((_, text)) = parts.iter().find(|(span, _)| *span == expr.span) {
                let name = match &bare(expr).kind {
                    ExprKind::Call(n, _) => self.questions.get(*n).cloned().unwrap_or_default(),
                    _ => self.sql[expr.span.clone()].to_owned(),
                };
                self.out.names.insert(text.clone(), name);
            }
        }
    }

    /// Returns true if an expression references a column of the SELECT's own tables.
    pub(super) fn is_of_rows(&self, expr: &Expr, scope: &Scope<'_>) -> bool {
        let mut found = false;
        self.resolver().each_in(expr, scope, true, &mut |e, at, _| {
            if let ExprKind::Column { table, column } = &e.kind {
                let depth = match at.find(table.as_deref(), column) {
                    Some(hit) => Some(hit.depth),
                    None => at.place(table.as_deref(), column),
                };
                found |= depth.is_some_and(|depth| depth == scope.depth);
            }
        });
        found
    }

    /// Returns true if a join condition has a call.
    fn joined_by_calls(&self, item: &FromItem, scope: &Scope<'_>) -> bool {
        let inner = match &item.source {
            FromSource::Join(items) => items.as_slice(),
            _ => &[],
        };
        item.on.as_ref().is_some_and(|on| self.bears(on, scope))
            || inner.iter().any(|i| self.joined_by_calls(i, scope))
    }

    /// Returns the conditions to evaluate inside a materialization fence around a table; `None` if
    /// it needs no fence. A fence makes `SQLite` evaluate inner joins and limits of the table
    /// before the calls.
    fn kept_apart<'p>(
        &self,
        item: &FromItem,
        asks: bool,
        early: Option<&'p [(String, String)]>,
    ) -> Option<&'p [(String, String)]> {
        let limited = (asks && self.reads_limit(item)).then_some(&[][..]);
        early.filter(|_| self.reads_join(item)).or(limited)
    }

    fn read_from(
        &mut self,
        item: &FromItem,
        around: &Scope<'_>,
        scope: &Scope<'_>,
        apart: Option<&[(String, String)]>,
        parts: &mut Vec<(Span, String)>,
    ) {
        let name = item.name.as_deref();
        match &item.source {
            FromSource::Table { span, .. } => {
                if let (Some(plain), Some(name), false) = (apart, name, span.is_empty()) {
                    let text = Self::apart(&self.sql[span.clone()], Some(name), plain);
                    parts.push((span.clone(), format!("({text}) AS {}", sql::name(name))));
                }
            }
            FromSource::Function { args, .. } => {
                args.iter().for_each(|a| self.value_part(a, scope, parts));
            }
            FromSource::Query(query) => {
                if apart.is_some() || !self.calls_read(query).is_empty() {
                    let mut text = self.query(query, around, Role::Rows);
                    if let Some(plain) = apart {
                        let name = name.map_or(String::new(), |n| format!(" AS {}", sql::name(n)));
                        text = Self::apart(&format!("({text}){name}"), item.name.as_deref(), plain);
                    }
                    parts.push((query.span.clone(), text));
                }
            }
            FromSource::Join(items) => {
                for inner in items {
                    let apart = apart.filter(|_| self.reads_join(inner) || self.reads_limit(inner));
                    self.read_from(inner, around, scope, apart, parts);
                    if let Some(on) = inner.on.as_ref().filter(|on| on.has_call()) {
                        let text = truth::all(self, &[on], scope);
                        parts.push((on.span.clone(), format!("(SELECT {text}) = 1")));
                    }
                }
            }
        }
    }
}

/// Returns true if a SELECT has calls outside of its FROM clause.
fn has_own_call(query: &Query, core: &Core) -> bool {
    let order = query.order.iter().map(|o| &o.expr);
    let own = core.columns.iter().filter_map(|c| c.expr.as_ref()).chain(&core.filter);
    own.chain(&core.group).chain(&core.having).chain(order).any(Expr::has_call)
}

/// Returns the number of scope tables of a FROM entry.
fn width(item: &FromItem) -> usize {
    match &item.source {
        FromSource::Join(items) if item.name.is_none() => items.iter().map(width).sum(),
        _ => 1,
    }
}

/// Returns true if an expression can be evaluated twice: it is deterministic and has no subquery.
fn is_settled(expr: &Expr) -> bool {
    let mut settled = true;
    expr.each(&mut |e| {
        let random = matches!(&e.kind, ExprKind::Function { name, .. } if is_random(name));
        settled &= !random && e.inside().1.is_none();
    });
    settled
}
