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

use super::{BoundWriter, EvalPosition, RECURSIVE_QUERY, ROWS_FROM_ANSWERS};
use crate::blendsql::emit::find_result_column;
use crate::blendsql::frame::{Frame, reads_table};
use crate::blendsql::scope::{Field, rename_fields, strip_expr_parens};
use crate::blendsql::terms::{Clause, resolve_term_expr};
use crate::blendsql::tree::{Body, CompoundOperator, Cte, Expr, ExprKind, Query, SelectCore};
use hqdl_values::sql;

use super::possible_from::PossibleFrom;

/// SQL that returns possible rows.
pub(super) struct PossibleRows {
    pub text: String,
    /// Columns of the rows. A column that depends on an answer is NULL and has `is_from_call` set.
    pub fields: Option<Vec<Field>>,
    /// Whether the rows are exactly the rows of the query.
    pub exact: bool,
}

impl PossibleRows {
    /// Returns a single row of NULLs, for a query all of whose columns may depend on answers.
    pub fn null_row(fields: Option<Vec<Field>>) -> Self {
        let fields: Option<Vec<Field>> = fields.map(|all| {
            all.into_iter().map(|f| Field { origin: None, is_from_call: true, ..f }).collect()
        });
        let named = |f: &Field| format!("NULL AS {}", sql::quote_name(&f.name));
        let columns: Vec<String> = fields.iter().flatten().map(named).collect();
        let columns = if columns.is_empty() { "NULL".to_owned() } else { columns.join(", ") };
        Self { text: format!("SELECT {columns}"), fields, exact: false }
    }

    /// Returns true if a column may depend on an answer.
    fn has_answers(&self) -> bool {
        self.fields.as_ref().is_none_or(|all| all.iter().any(|f| f.is_from_call))
    }
}

impl BoundWriter<'_> {
    /// Returns the possible rows of a query, and adds a probe of its calls.
    pub fn write_query(&mut self, query: &Query, around: &Frame<'_>) -> PossibleRows {
        if self.is_certain_query(query, around) {
            let text = self.sql[query.span.clone()].to_owned();
            let fields = self.analysis.resolver().resolve_output_fields(query, &around.scope);
            return PossibleRows { text, fields, exact: true };
        }
        let outer = std::mem::take(&mut self.probes);
        let frame = self.declare_ctes(query, around);
        let rows = self.write_body(query, &frame);
        let with = frame.with_clause();
        if let Some(text) = self.take_probes(outer) {
            self.push_probe(if with.is_empty() { text } else { format!("({with}SELECT {text})") });
        }
        PossibleRows { text: format!("{with}{}", rows.text), ..rows }
    }

    /// Returns a frame that declares the common table expressions of a query, and adds probes of
    /// their calls.
    pub fn declare_ctes<'f>(&mut self, query: &Query, around: &'f Frame<'f>) -> Frame<'f> {
        let mut frame = Frame::new_child(around);
        let mut undeclared: Vec<&Cte> = query.with.iter().collect();
        while !undeclared.is_empty() {
            // A common table expression can read one that is declared later.
            let is_read = |cte: &Cte, reader: &Cte| {
                !std::ptr::eq(cte, reader) && reads_table(&reader.query, &cte.name)
            };
            let first = undeclared.iter().position(|r| !undeclared.iter().any(|c| is_read(c, r)));
            self.declare_cte(undeclared.remove(first.unwrap_or(0)), &mut frame);
        }
        frame
    }

    fn declare_cte(&mut self, cte: &Cte, frame: &mut Frame<'_>) {
        let is_recursive = reads_table(&cte.query, &cte.name);
        let rows = if is_recursive && !self.is_certain_query(&cte.query, frame) {
            cte.query.visit_exprs(&mut |e| {
                if let ExprKind::Call(n, _) = &e.kind {
                    self.mark_unbounded(*n, RECURSIVE_QUERY);
                }
            });
            // The first part determines the columns.
            let first = match &cte.query.body {
                Body::Compound(_, left, _) => left,
                _ => &cte.query,
            };
            let fields = self.analysis.resolver().resolve_output_fields(first, &frame.scope);
            PossibleRows::null_row(fields)
        } else {
            self.write_query(&cte.query, frame)
        };
        let columns: Vec<String> = cte.columns.iter().map(|c| sql::quote_name(c)).collect();
        let columns =
            if columns.is_empty() { String::new() } else { format!("({})", columns.join(", ")) };
        let name = sql::quote_name(&cte.name);
        frame.cte_sql.push(format!("{name}{columns} AS ({})", rows.text));
        frame.exact_ctes.push((cte.name.clone(), rows.exact));
        let fields = rows.fields.map(|f| rename_fields(f, &cte.columns));
        frame.scope.ctes.push((cte.name.clone(), fields));
    }

    /// Returns the possible rows of a query without its WITH clause, and adds probes of its calls.
    pub fn write_body(&mut self, query: &Query, frame: &Frame<'_>) -> PossibleRows {
        let rows = match &query.body {
            Body::Core(core) => self.write_select(query, core, frame),
            Body::Compound(operator, left, right) => {
                self.write_compound(query, *operator, (left, right), frame)
            }
            Body::Values(exprs, width) => self.write_rows_of_values(query, exprs, *width, frame),
        };
        for limit in query.limit.iter().chain(&query.offset).filter(|e| e.has_call()) {
            self.is_single_pass = false;
            if let Some(text) = self.probe_expr(limit, EvalPosition::outside_selects(frame)) {
                self.push_probe(text);
            }
        }
        rows
    }

    /// Returns the possible rows of a SELECT, and adds probes of its calls.
    fn write_select(
        &mut self,
        query: &Query,
        core: &SelectCore,
        around: &Frame<'_>,
    ) -> PossibleRows {
        let Some(open) = self.build_possible_from(core, around) else {
            self.mark_select_unbounded(query, core, ROWS_FROM_ANSWERS);
            let resolver = self.analysis.resolver();
            let scope = resolver.build_select_scope(core, &around.scope);
            return PossibleRows::null_row(resolver.resolve_select_fields(
                core,
                &scope,
                &mut |_| true,
            ));
        };
        if query.has_call() {
            self.update_single_pass(query, core, &open);
            self.probe_select(query, core, &open);
        }
        self.build_select_rows(query, core, &open)
    }

    fn build_select_rows(
        &self,
        query: &Query,
        core: &SelectCore,
        open: &PossibleFrom<'_>,
    ) -> PossibleRows {
        let grouped = self.is_grouped(query, core, &open.frame);
        let fine = |e: &Expr| self.is_certain(e, &open.frame, false);
        let having = core.having.iter().all(|e| self.is_certain(e, &open.frame, true));
        let of_term = |g| resolve_term_expr(g, Clause::Group, core, self.sql).is_some_and(fine);
        let by_groups = open.exact && core.group.iter().all(of_term) && having;
        let windows = open.exact && core.windows.is_empty();
        let of_rows = if grouped { by_groups } else { windows };
        let certain = |e: &Expr| self.is_certain(e, &open.frame, of_rows);
        let resolver = self.analysis.resolver();
        let fields = resolver.resolve_select_fields(core, &open.frame.scope, &mut |e| !certain(e));
        let exprs = || core.columns.iter().filter_map(|c| c.expr.as_ref());
        if grouped && core.group.is_empty() && !(by_groups && exprs().all(certain)) {
            return PossibleRows::null_row(fields);
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
        // The clauses GROUP BY and HAVING.
        let last = core.having.as_ref().or(core.group.last()).filter(|_| grouped && by_groups);
        let rows_end = core.filter.as_ref().map_or(core.from_end, |filter| filter.span.end);
        let tail = last.map_or("", |last| &self.sql[rows_end..last.span.end]);
        let distinct = if core.distinct { "DISTINCT " } else { "" };
        let (columns, condition) = (columns.join(", "), &open.condition);
        let each = self.write_from_variants(core, open, core.from_end, &[]).into_iter();
        let each: Vec<String> = each
            .map(|from| format!("SELECT {distinct}{columns}{from} WHERE {condition} {tail}"))
            .collect();
        let mut rows = PossibleRows { text: each.join(" UNION ALL "), fields, exact: open.exact };
        rows.exact &= (!grouped || by_groups)
            && !(core.distinct && rows.has_answers())
            && query.limit.is_none()
            && query.offset.is_none();
        rows
    }

    fn write_compound(
        &mut self,
        query: &Query,
        operator: CompoundOperator,
        (left, right): (&Query, &Query),
        frame: &Frame<'_>,
    ) -> PossibleRows {
        if query.has_call() {
            // The answers can change which rows a LIMIT keeps. EXCEPT and INTERSECT skip the right
            // side if the left side has no rows.
            self.is_single_pass &= query.limit.is_none();
            self.is_single_pass &= operator.is_union() || !left.has_call();
        }
        for term in query.order.iter().filter(|o| o.expr.has_call()) {
            if find_result_column(self.sql, &term.expr, query).is_none() {
                self.mark_all_unbounded(&term.expr, ROWS_FROM_ANSWERS);
            }
        }
        let (a, b) = (self.write_query(left, frame), self.write_query(right, frame));
        let takes_away = b.exact && !a.has_answers() && !b.has_answers();
        let exact = a.exact && takes_away && query.limit.is_none() && query.offset.is_none();
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
        PossibleRows { text, fields, exact }
    }

    fn write_rows_of_values(
        &mut self,
        query: &Query,
        exprs: &[Expr],
        width: usize,
        frame: &Frame<'_>,
    ) -> PossibleRows {
        if let Some(text) = self.probe_exprs(exprs, EvalPosition::outside_selects(frame)) {
            self.push_probe(text);
        }
        let fields = self.analysis.resolver().resolve_output_fields(query, &frame.scope);
        let is_row = |e: &Expr| match &e.kind {
            ExprKind::Call(n, _) => self.analysis.sites[*n].row_width.is_some(),
            _ => false,
        };
        if width == 0 || exprs.iter().any(is_row) {
            return PossibleRows::null_row(fields);
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
