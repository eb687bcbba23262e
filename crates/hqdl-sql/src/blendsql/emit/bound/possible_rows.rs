//! Computes the rows that a part of a query can have while some calls are unanswered. The upper
//! bound is counted over these rows.
//!
//! Whatever the answers are, and whichever of them are missing, each row of the part corresponds to
//! one of its *possible* rows, which has the same values in all columns that depend on no answer.
//! To guarantee this, a condition that depends on an answer is assumed to hold, and a column that
//! depends on one is NULL. An outer join whose matches depend on answers returns the row with and
//! without its matches. EXCEPT removes nothing, and LIMIT and grouping keep all rows. Parts that
//! depend on no answer are unchanged. A LIMIT in such a part keeps the same rows in each statement;
//! `random()` would not.

use super::super::replace_parts;
use crate::blendsql::aggregates::{
    is_aggregate, is_aggregate_call, is_aggregate_name, visit_own_exprs,
};
use crate::blendsql::frame::{Frame, is_random_function, joins_by_name, reads_table};
use crate::blendsql::plan::analysis::Analysis;
use crate::blendsql::plan::call_site::CallSite;
use crate::blendsql::plan::condition::{may_fail, split_conjuncts};
use crate::blendsql::scope::{Field, Resolver, rename_fields, strip_expr_parens};
use crate::blendsql::terms::{Clause, resolve_term_expr};
use crate::blendsql::tree::{Body, CompoundOperator, Cte, Expr, ExprKind, Query, SelectCore};
use hqdl_values::sql;

/// SQL that returns possible rows.
pub(in crate::blendsql::emit) struct PossibleRows {
    pub text: String,
    /// Columns of the rows. A column that depends on an answer is NULL and has `is_from_call` set.
    pub fields: Option<Vec<Field>>,
    /// Whether the rows are exactly the rows of the query.
    pub exact: bool,
}

/// Builds SQL that returns possible rows.
pub(in crate::blendsql::emit) struct PossibleRowsBuilder<'q> {
    pub sql: &'q str,
    pub sites: &'q [CallSite],
    pub analysis: Analysis<'q>,
}

impl PossibleRowsBuilder<'_> {
    pub(in crate::blendsql::emit) fn resolver(&self) -> Resolver<'_> {
        self.analysis.resolver()
    }

    /// Returns the possible rows of a query.
    pub fn build_possible_rows(&self, query: &Query, around: &Frame<'_>) -> PossibleRows {
        if self.is_certain_query(query, around) {
            let text = self.sql[query.span.clone()].to_owned();
            return PossibleRows {
                text,
                fields: self.resolver().resolve_output_fields(query, &around.scope),
                exact: true,
            };
        }
        let frame = self.declare_ctes(query, around);
        let rows = match &query.body {
            Body::Core(core) => self.build_select_rows(query, core, &frame),
            Body::Compound(operator, left, right) => {
                self.build_compound_rows(query, *operator, (left, right), &frame)
            }
            Body::Values(exprs, width) => self.build_values_rows(query, exprs, *width, &frame),
        };
        PossibleRows { text: format!("{}{}", frame.with_clause(), rows.text), ..rows }
    }

    /// Returns a single row of NULLs, for a query all of whose columns may depend on answers.
    fn build_null_row(fields: Option<Vec<Field>>) -> PossibleRows {
        let fields: Option<Vec<Field>> = fields.map(|all| {
            all.into_iter().map(|f| Field { origin: None, is_from_call: true, ..f }).collect()
        });
        let named = |f: &Field| format!("NULL AS {}", sql::quote_name(&f.name));
        let columns: Vec<String> = fields.iter().flatten().map(named).collect();
        let columns = if columns.is_empty() { "NULL".to_owned() } else { columns.join(", ") };
        PossibleRows { text: format!("SELECT {columns}"), fields, exact: false }
    }

    /// Returns a frame that declares the common table expressions of a query.
    pub fn declare_ctes<'f>(&self, query: &Query, around: &'f Frame<'f>) -> Frame<'f> {
        let mut frame = Frame::new_child(around);
        for cte in &query.with {
            let rows = if reads_table(&cte.query, &cte.name)
                && !self.is_certain_query(&cte.query, &frame)
            {
                Self::build_null_row(self.find_recursive_cte_fields(cte, &frame))
            } else {
                self.build_possible_rows(&cte.query, &frame)
            };
            let columns: Vec<String> = cte.columns.iter().map(|c| sql::quote_name(c)).collect();
            let columns = if columns.is_empty() {
                columns.concat()
            } else {
                format!("({})", columns.join(", "))
            };
            frame.cte_sql.push(format!(
                "{}{columns} AS ({})",
                sql::quote_name(&cte.name),
                rows.text
            ));
            frame.exact_ctes.push((cte.name.clone(), rows.exact));
            let fields = rows.fields.map(|f| rename_fields(f, &cte.columns));
            frame.scope.ctes.push((cte.name.clone(), fields));
        }
        frame
    }

    /// Returns the columns of a recursive common table expression, if they are known.
    fn find_recursive_cte_fields(&self, cte: &Cte, frame: &Frame<'_>) -> Option<Vec<Field>> {
        let first = match &cte.query.body {
            Body::Compound(_, left, _) => left,
            _ => &cte.query,
        };
        self.resolver().resolve_output_fields(first, &frame.scope)
    }

    /// Returns true if neither the rows nor the values of a query depend on an answer.
    fn is_certain_query(&self, query: &Query, around: &Frame<'_>) -> bool {
        if query.has_call() {
            return false;
        }
        let mut settled = true;
        let live = |name: &str| {
            around
                .scope
                .cte_fields(name)
                .is_some_and(|f| f.iter().flatten().any(|f| f.is_from_call))
        };
        let by_name = joins_by_name(query);
        query.visit_tables(&mut |name| {
            settled &= around.is_exact(name) && !(by_name && live(name));
        });
        let opaque = around.ancestors().any(|f| f.is_opaque);
        self.resolver().visit_exprs(query, &around.scope, &mut |e, at, _| match &e.kind {
            ExprKind::Column { table, column } => {
                settled &= match at.find_column(table.as_deref(), column) {
                    Some(hit) => !hit.field.is_from_call,
                    // The name can be the alias of an outer SELECT's result column.
                    None => !opaque && !around.ancestors().any(|f| f.find_alias(column).is_some()),
                };
            }
            ExprKind::Function { name, args, window: None, .. } if is_aggregate_name(name) => {
                // An aggregate of outer columns belongs to the outer SELECT.
                let mut deepest = None;
                args.iter().for_each(|a| {
                    a.visit_exprs(&mut |e| {
                        if let ExprKind::Column { table, column } = &e.kind {
                            let depth = at
                                .find_column(table.as_deref(), column)
                                .map_or(at.depth, |f| f.depth);
                            deepest = deepest.max(Some(depth));
                        }
                    });
                });
                settled &= deepest.is_none_or(|d| d > around.scope.depth);
            }
            ExprKind::Function { name, .. } => settled &= !is_random_function(name),
            _ => {}
        });
        settled
    }

    /// Returns true if the value of an expression does not depend on any answer. Aggregates and
    /// window functions depend on all rows, so they are certain only if `exact_rows` is true. A
    /// subquery that reads a common table expression with calls is never certain: the query
    /// evaluates it after other calls.
    pub fn is_certain(&self, expr: &Expr, frame: &Frame<'_>, exact_rows: bool) -> bool {
        match &expr.kind {
            ExprKind::Call(..) => return false,
            ExprKind::Column { table, column } => {
                return self.is_certain_column(table.as_deref(), column, frame);
            }
            ExprKind::Function { name, window, .. }
                if is_random_function(name)
                    || !exact_rows && (window.is_some() || is_aggregate_call(expr)) =>
            {
                return false;
            }
            _ => {}
        }
        let (exprs, query) = expr.children();
        exprs.into_iter().all(|e| self.is_certain(e, frame, exact_rows))
            && query.is_none_or(|q| {
                self.analysis.list_reachable_calls(q).is_empty() && self.is_certain_query(q, frame)
            })
    }

    fn is_certain_column(&self, table: Option<&str>, column: &str, frame: &Frame<'_>) -> bool {
        let alias = frame.find_alias(column).filter(|_| table.is_none());
        match (frame.scope.find_column(table, column), alias) {
            (Some(hit), None) => !hit.field.is_from_call,
            (Some(hit), Some(_)) => hit.depth == frame.scope.depth && !hit.field.is_from_call,
            (None, Some(expr)) => {
                let mut found = true;
                visit_own_exprs(expr, &mut |e| {
                    if let ExprKind::Column { table, column } = &e.kind {
                        found &= frame.scope.find_column(table.as_deref(), column).is_some();
                    }
                });
                found && self.is_certain(expr, frame, false)
            }
            (None, None) => {
                let truth = ["true", "false"].iter().any(|t| column.eq_ignore_ascii_case(t));
                let row = frame.scope.find_row_scope_depth(table, column).is_some();
                row && !frame.ancestors().any(|f| f.is_opaque) || truth && table.is_none()
            }
        }
    }

    /// Returns the SQL of an expression, with aliases replaced by their expressions.
    pub fn expr_sql(&self, expr: &Expr, frame: &Frame<'_>) -> String {
        let mut parts = Vec::new();
        visit_own_exprs(expr, &mut |e| {
            if let ExprKind::Column { table: None, column } = &e.kind
                && frame.scope.find_column(None, column).is_none()
                && let Some(alias) = frame.find_alias(column)
            {
                parts.push((e.span.clone(), format!("({})", &self.sql[alias.span.clone()])));
            }
        });
        replace_parts(self.sql, &expr.span, parts)
    }

    /// Returns a condition in which each part that depends on an answer is assumed to hold.
    pub fn build_possible_condition(&self, condition: &Expr, frame: &Frame<'_>) -> String {
        let open = split_conjuncts(condition);
        let open = open.into_iter().filter(|c| !self.is_certain(c, frame, false));
        let first = open.map(|c| c.span.start).min().unwrap_or(usize::MAX);
        self.write_possible_condition(condition, true, frame, first)
    }

    fn write_possible_condition(
        &self,
        expr: &Expr,
        wanted: bool,
        frame: &Frame<'_>,
        first: usize,
    ) -> String {
        match &expr.kind {
            ExprKind::Paren(inner) => self.write_possible_condition(inner, wanted, frame, first),
            ExprKind::Not(inner) => self.write_possible_condition(inner, !wanted, frame, first),
            ExprKind::And(parts) | ExprKind::Or(parts) => {
                let all = matches!(expr.kind, ExprKind::And(_)) == wanted;
                let parts =
                    parts.iter().map(|p| self.write_possible_condition(p, wanted, frame, first));
                let parts: Vec<String> = parts.filter(|p| p != "1" || !all).collect();
                if parts.iter().any(|p| p == "1") || parts.is_empty() {
                    return "1".to_owned();
                }
                format!("({})", parts.join(if all { " AND " } else { " OR " }))
            }
            _ if !self.is_certain(expr, frame, false) => "1".to_owned(),
            // An earlier uncertain condition may protect this condition from an error, so do not
            // evaluate it.
            _ if may_fail(expr) && expr.span.start > first => "1".to_owned(),
            _ if wanted => format!("({})", self.expr_sql(expr, frame)),
            _ => format!("(NOT ({}))", self.expr_sql(expr, frame)),
        }
    }

    /// Returns true if the rows of a SELECT are groups.
    pub fn is_grouped(&self, query: &Query, core: &SelectCore, frame: &Frame<'_>) -> bool {
        !core.group.is_empty()
            || is_aggregate(core, query)
            || !self.analysis.find_outer_aggregates(core, query, &frame.scope).is_empty()
    }

    fn build_select_rows(
        &self,
        query: &Query,
        core: &SelectCore,
        frame: &Frame<'_>,
    ) -> PossibleRows {
        let named = || {
            self.resolver().resolve_select_fields(
                core,
                &self.resolver().build_select_scope(core, &frame.scope),
                &mut |_| true,
            )
        };
        let Some(open) = self.build_possible_from(core, frame) else {
            return Self::build_null_row(named());
        };
        let grouped = self.is_grouped(query, core, &open.frame);
        let fine = |e: &Expr| self.is_certain(e, &open.frame, false);
        let having = core.having.iter().all(|e| self.is_certain(e, &open.frame, true));
        let of_term = |g| resolve_term_expr(g, Clause::Group, core, self.sql).is_some_and(fine);
        let by_groups = open.exact && core.group.iter().all(of_term) && having;
        let windows = open.exact && core.windows.is_empty();
        let of_rows = if grouped { by_groups } else { windows };
        let certain = |e: &Expr| self.is_certain(e, &open.frame, of_rows);
        let fields =
            self.resolver().resolve_select_fields(core, &open.frame.scope, &mut |e| !certain(e));
        let exprs = || core.columns.iter().filter_map(|c| c.expr.as_ref());
        if grouped && core.group.is_empty() && !(by_groups && exprs().all(certain)) {
            return Self::build_null_row(fields);
        }
        let columns: Vec<String> = core
            .columns
            .iter()
            .map(|c| match &c.expr {
                Some(e) if !certain(e) => {
                    let own = match &strip_expr_parens(e).kind {
                        ExprKind::Column { column, .. } => Some(column),
                        _ => None,
                    };
                    let name = c.alias.as_ref().or(own);
                    name.map_or("NULL".to_owned(), |n| format!("NULL AS {}", sql::quote_name(n)))
                }
                _ => self.sql[c.span.clone()].to_owned(),
            })
            .collect();
        let mut tail = String::new();
        if grouped && by_groups {
            if !core.group.is_empty() {
                let group: Vec<&str> =
                    core.group.iter().map(|g| &self.sql[g.span.clone()]).collect();
                tail.push_str(&format!(" GROUP BY {}", group.join(", ")));
            }
            if let Some(having) = &core.having {
                tail.push_str(&format!(" HAVING {}", &self.sql[having.span.clone()]));
            }
        }
        let distinct = if core.distinct { "DISTINCT " } else { "" };
        let (columns, condition) = (columns.join(", "), &open.condition);
        let each = self.write_from_variants(core, &open, core.from_end, &[]).into_iter();
        let each: Vec<String> = each
            .map(|from| format!("SELECT {distinct}{columns}{from} WHERE {condition}{tail}"))
            .collect();
        let live = fields.as_ref().is_none_or(|all| all.iter().any(|f| f.is_from_call));
        let exact = open.exact
            && (!grouped || by_groups)
            && !(core.distinct && live)
            && query.limit.is_none()
            && query.offset.is_none();
        PossibleRows { text: each.join(" UNION ALL "), fields, exact }
    }

    fn build_compound_rows(
        &self,
        query: &Query,
        operator: CompoundOperator,
        (left, right): (&Query, &Query),
        frame: &Frame<'_>,
    ) -> PossibleRows {
        let (a, b) =
            (self.build_possible_rows(left, frame), self.build_possible_rows(right, frame));
        let live = |rows: &PossibleRows| {
            rows.fields.as_ref().is_none_or(|all| all.iter().any(|f| f.is_from_call))
        };
        let exact = a.exact && b.exact && !live(&a) && !live(&b);
        let takes_away = b.exact && !live(&a) && !live(&b);
        let fields = match (a.fields, b.fields) {
            (Some(a), Some(b)) => Some(
                (a.into_iter().zip(b))
                    .map(|(a, b)| Field {
                        is_from_call: a.is_from_call || b.is_from_call,
                        origin: None,
                        ..a
                    })
                    .collect(),
            ),
            _ => None,
        };
        if !takes_away && !operator.is_union() {
            return PossibleRows { text: a.text, fields, exact: false };
        }
        // Each side of a compound can consist of several SELECTs.
        let side = |text: String| format!("SELECT * FROM ({text})");
        let text = format!("{} {} {}", side(a.text), operator.as_sql(), side(b.text));
        PossibleRows {
            text,
            fields,
            exact: exact && query.limit.is_none() && query.offset.is_none(),
        }
    }

    fn build_values_rows(
        &self,
        query: &Query,
        exprs: &[Expr],
        width: usize,
        frame: &Frame<'_>,
    ) -> PossibleRows {
        let fields = self.resolver().resolve_output_fields(query, &frame.scope);
        let is_row = |e: &Expr| match &e.kind {
            ExprKind::Call(n, _) => self.sites[*n].row_width.is_some(),
            _ => false,
        };
        if width == 0 || exprs.iter().any(is_row) {
            return Self::build_null_row(fields);
        }
        let mut live = vec![false; width];
        let mut rows = Vec::new();
        for row in exprs.chunks(width) {
            let mut texts = Vec::new();
            for (n, expr) in row.iter().enumerate() {
                let certain = self.is_certain(expr, frame, false);
                live[n] |= !certain;
                texts.push(if certain {
                    self.sql[expr.span.clone()].to_owned()
                } else {
                    "NULL".to_owned()
                });
            }
            rows.push(format!("({})", texts.join(", ")));
        }
        let fields = fields.map(|all| {
            all.into_iter().zip(live).map(|(f, live)| Field { is_from_call: live, ..f }).collect()
        });
        PossibleRows { text: format!("VALUES {}", rows.join(", ")), fields, exact: true }
    }
}
