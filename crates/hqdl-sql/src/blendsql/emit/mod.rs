//! Writes SQL from the finished [plan](super::plan). No other module formats SQL. Only the bytes of
//! calls and of the conditions that contain calls are replaced; the rest of the text is unchanged.
//!
//! * Conditions with calls move into a scalar subquery at the end of WHERE that references every
//!   table of the FROM clause. `SQLite` evaluates terms without subqueries first, and each term as
//!   soon as all referenced tables are available.
//! * AND, OR and NOT become CASE expressions. A truth value is 1, 0, or 2 if it depends on a
//!   pending call.
//! * A condition records its pending calls per row (`hq_close`); EXISTS and IN record the pending
//!   calls of all their rows together (`hq_run`).
//! * If the query needs only its first rows, a different statement returns the rows one by one.

pub mod bound;
mod condition;
mod select;
mod sql;
pub mod stored_columns;
mod value;

use std::collections::HashMap;

use crate::blendsql::lexer::{self, Brackets};
use crate::blendsql::parse::ParsedQuery;
use crate::blendsql::plan::analysis::{is_legacy_column, list_reachable_calls, needs_rewrite};
use crate::blendsql::plan::call_site::CallSite;
use crate::blendsql::plan::{DemandPlan, LimitPushdown, NeededRows, SubqueryLimit};
use crate::blendsql::runtime::Function;
use crate::blendsql::tree::{Body, Expr, ExprKind, Query, Span};

/// A SELECT whose conditions contain calls. Its rows are recorded together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConditionGroup {
    /// Offset in the text, which identifies the SELECT. The index does not, because a different
    /// rewriting can number the condition groups differently.
    pub offset: usize,
    /// Number of conditions with calls.
    pub conditions: usize,
}

/// Result of a rewriting.
#[derive(Debug, Clone, Default)]
pub struct RewrittenQuery {
    /// SQL to run.
    pub sql: String,
    /// SELECTs that have conditions with calls.
    pub condition_groups: Vec<ConditionGroup>,
    /// Maps the text offset of each condition with calls to the calls in its subqueries that
    /// `SQLite` may run only once for many rows.
    pub predicates: HashMap<usize, Vec<usize>>,
    /// Rows needed from each group, by the index of the condition group.
    pub needed_rows: HashMap<usize, NeededRows>,
    /// LIMIT rule for the outermost SELECT; `None` if all rows are needed.
    pub limit_pushdown: Option<LimitPushdown>,
    /// Indices of the calls whose documents determine the similarity order of the rows.
    pub similarity_calls: Vec<usize>,
    /// Plan that the SQL was written from.
    pub plan: DemandPlan,
    /// Names of result columns: `SQLite`'s name in the rewritten query, mapped to the name in the
    /// original query.
    pub result_names: HashMap<String, String>,
}

impl RewrittenQuery {
    /// Returns the nested SELECTs to which the LIMIT rule applies.
    #[must_use]
    pub fn subquery_limits(&self) -> &[SubqueryLimit] {
        &self.plan.subquery_limits
    }
}

/// Input of the emitter in addition to the plan.
pub(crate) struct EmitOptions<'q> {
    /// Text of the query.
    pub text: &'q str,
    /// SQL for each call.
    pub sites: &'q [CallSite],
    /// Offsets of the nested SELECTs whose first rows are already known.
    pub complete_selects: &'q [usize],
    /// Offset of the only SELECT to write, instead of the whole query.
    pub standalone: Option<usize>,
}

/// State while a query is written.
pub(crate) struct Emitter<'q> {
    text: &'q str,
    sites: &'q [CallSite],
    plan: &'q DemandPlan,
    questions: Vec<&'q str>,
    /// Offsets of the nested SELECTs whose first rows are already known.
    complete_selects: &'q [usize],
    /// Offset of the only SELECT to write, instead of the whole query.
    standalone: Option<usize>,
    /// Byte range of the whole query.
    whole_span: Span,
    /// Whether calls are only looked up in the cache, without waiting for missing answers.
    lookup_only: bool,
    /// Result of writing the standalone SELECT.
    standalone_query: Option<(String, RewrittenQuery)>,
    out: RewrittenQuery,
}

/// Writes the SQL of a planned query.
pub(crate) fn emit_query(
    options: &EmitOptions<'_>,
    parsed: &ParsedQuery,
    plan: DemandPlan,
) -> RewrittenQuery {
    let query = &parsed.query;
    let mut emitter = Emitter {
        text: options.text,
        sites: options.sites,
        plan: &plan,
        questions: parsed.calls.iter().map(|c| c.question.as_str()).collect(),
        complete_selects: options.complete_selects,
        standalone: options.standalone,
        whole_span: query.span.clone(),
        lookup_only: false,
        standalone_query: None,
        out: RewrittenQuery::default(),
    };
    let text = emitter.write_query(query);
    let (mut out, standalone) = (emitter.out, emitter.standalone_query);
    if let Some((text, standalone)) = standalone {
        out = standalone;
        out.sql = text;
    } else if parsed.is_single_call {
        out.sql = format!("SELECT {text}");
    } else {
        let sql = options.text;
        out.sql = format!("{}{text}{}", &sql[..query.span.start], &sql[query.span.end..]);
    }
    out.plan = plan;
    out
}

impl Emitter<'_> {
    /// Returns the index of a SELECT in [`RewrittenQuery::condition_groups`], adding the SELECT if
    /// needed.
    fn find_or_add_condition_group(&mut self, offset: usize, conditions: usize) -> usize {
        let condition_groups = &mut self.out.condition_groups;
        // A SELECT that is written twice has a single entry.
        condition_groups.iter().position(|u| u.offset == offset).unwrap_or_else(|| {
            condition_groups.push(ConditionGroup { offset, conditions });
            condition_groups.len() - 1
        })
    }

    fn source_text(&self, expr: &Expr) -> &str {
        &self.text[expr.span.clone()]
    }

    /// Returns the text of a span with its parts replaced.
    fn replace_parts(&self, span: &Span, parts: Vec<(Span, String)>) -> String {
        replace_parts(self.text, span, parts)
    }

    fn needs_rewrite(&self, expr: &Expr) -> bool {
        needs_rewrite(expr, &self.plan.cte_calls)
    }

    fn write_query(&mut self, query: &Query) -> String {
        if list_reachable_calls(query, &self.plan.cte_calls).is_empty() {
            return self.text[query.span.clone()].to_owned();
        }
        let is_standalone =
            matches!(&query.body, Body::Core(c) if self.standalone == Some(c.span.start));
        let outer_output = is_standalone.then(|| std::mem::take(&mut self.out));
        let mut parts = Vec::new();
        for cte in &query.with {
            let text = self.write_query(&cte.query);
            parts.push((cte.query.span.clone(), text));
        }
        match &query.body {
            Body::Core(core) => self.write_select(query, core, &mut parts),
            Body::Compound(_, left, right) => {
                for side in [left, right] {
                    let text = self.write_query(side);
                    parts.push((side.span.clone(), text));
                }
            }
            Body::Values(exprs, _) => exprs.iter().for_each(|e| self.push_value(e, &mut parts)),
        }
        if !matches!(query.body, Body::Core(_)) {
            for expr in query.order.iter().map(|o| &o.expr) {
                // Two calls with the same text would be two different functions, so refer to the
                // result column by its number.
                match find_result_column(self.text, expr, query).filter(|_| expr.has_call()) {
                    Some(n) => parts.push((expr.span.clone(), (n + 1).to_string())),
                    None => self.push_value(expr, &mut parts),
                }
            }
            self.write_limits(query, &mut parts);
        }
        if let (Some((standalone, _)), Some(last)) = (&mut self.standalone_query, query.with.last())
            && query.span == self.whole_span
        {
            let with_clause = query.span.start..last.query.span.end;
            *standalone =
                format!("{}) {standalone}", replace_parts(self.text, &with_clause, parts.clone()));
        }
        let text = self.replace_parts(&query.span, parts);
        if let Some(outer_output) = outer_output {
            let standalone = std::mem::replace(&mut self.out, outer_output);
            self.standalone_query = Some((text.clone(), standalone));
        }
        text
    }

    fn write_call(&mut self, n: usize, args: &[Expr]) -> String {
        let (text, plan, site) = (self.text, self.plan, &self.sites[n]);
        let nested = args.iter().any(Expr::has_call);
        let arguments = write_arguments(text, plan, site, args, &mut |arg| match &arg.kind {
            ExprKind::Column { .. } => column_sql(arg, text),
            ExprKind::Scalar(query) => self.write_query(query),
            _ => self.write_value(arg),
        });
        let text = sql::call_answer_sql(n, nested, &arguments);
        let text = if self.lookup_only { sql::lookup_only_sql(&text) } else { text };
        if let Some(width) = site.row_width {
            return sql::list_to_row_sql(&text, width);
        }
        format!("{}{text}{}", site.sql_before, site.sql_after)
    }
}

/// Returns SQL for the arguments of a call. `write` returns the SQL of an argument; of a subquery,
/// it returns the SQL of the query.
fn write_arguments(
    text: &str,
    plan: &DemandPlan,
    site: &CallSite,
    args: &[Expr],
    write: &mut dyn FnMut(&Expr) -> String,
) -> Vec<String> {
    if let Some(arguments) = &site.argument_sql {
        return arguments.clone();
    }
    let write_argument = |(n, arg): (usize, &Expr)| match (&arg.kind, site.find_context_function(n))
    {
        (ExprKind::Column { .. }, _) => write(arg),
        (ExprKind::Scalar(query), Some(aggregate)) => {
            let titles = plan.context_titles.get(&query.span.start).cloned().flatten();
            context_sql(text, aggregate, titles.as_deref(), &write(arg))
        }
        _ => format!("({})", write(arg)),
    };
    args.iter().enumerate().map(write_argument).collect()
}

/// Returns SQL that aggregates the rows of the query `query` into one value. `titles` are the
/// query's column titles.
fn context_sql(text: &str, aggregate: Function, titles: Option<&[String]>, query: &str) -> String {
    let Some(titles) = titles else { return format!("({query})") };
    let titles: Vec<String> = titles.iter().map(|t| hqdl_values::sql::quote_text(t)).collect();
    sql::rows_as_value_sql(aggregate, &choose_cte_name(text), &titles, query)
}

/// Returns the text of a span with its parts replaced.
fn replace_parts(sql: &str, span: &Span, mut parts: Vec<(Span, String)>) -> String {
    parts.sort_by_key(|(s, _)| (s.start, s.end));
    let is_word = |c: char| c.is_alphanumeric() || c == '_' || c == '$';
    let mut text = String::new();
    let mut at = span.start;
    for (part, new) in parts {
        if part.start < at || part.end > span.end {
            continue;
        }
        text.push_str(&sql[at..part.start]);
        // Only its quotes or braces may have separated the replaced text from a word next to it.
        let is_replaced = !part.is_empty();
        if is_replaced && text.ends_with(is_word) && new.starts_with(is_word) {
            text.push(' ');
        }
        text.push_str(&new);
        at = part.end;
        if is_replaced && text.ends_with(is_word) && sql[at..span.end].starts_with(is_word) {
            text.push(' ');
        }
    }
    text.push_str(&sql[at..span.end]);
    text
}

/// Returns a CTE name for the context rows that does not occur in the query.
fn choose_cte_name(sql: &str) -> String {
    let (sql, mut name) = (sql.to_lowercase(), "hq_context".to_owned());
    while sql.contains(&name) {
        name.push('_');
    }
    name
}

/// Returns SQL that aggregates all values of a column into the rows of a context.
#[must_use]
pub fn column_values_sql(table: &str, column: &str) -> String {
    let (table_sql, titles) =
        (hqdl_values::sql::quote_name(table), hqdl_values::sql::quote_text(column));
    // Qualify the column: `SQLite` reads an unknown quoted name as a string.
    let rows =
        format!("SELECT {table_sql}.{} FROM {table_sql}", hqdl_values::sql::quote_name(column));
    sql::rows_as_value_sql(Function::Rows, &choose_cte_name(table), &[titles], &rows)
}

/// Returns a column reference as SQL. Keeps the source text except for the legacy syntax `'t::c'`.
#[must_use]
pub fn column_sql(expr: &Expr, sql: &str) -> String {
    match &expr.kind {
        ExprKind::Column { table: Some(table), column } if is_legacy_column(expr, sql) => {
            format!(
                "{}.{}",
                hqdl_values::sql::quote_name(table),
                hqdl_values::sql::quote_name(column)
            )
        }
        _ => sql[expr.span.clone()].to_owned(),
    }
}

/// Returns the index of the result column of a compound that has the same text as an expression, if
/// there is one. Ignores whitespace.
fn find_result_column(sql: &str, expr: &Expr, query: &Query) -> Option<usize> {
    use crate::blendsql::scope::strip_expr_parens;
    match &query.body {
        Body::Compound(_, left, right) => {
            find_result_column(sql, expr, left).or_else(|| find_result_column(sql, expr, right))
        }
        Body::Core(core) => core.columns.iter().position(|c| {
            let is_same = |e: &Expr| {
                split_tokens(&sql[strip_expr_parens(e).span.clone()])
                    == split_tokens(&sql[strip_expr_parens(expr).span.clone()])
            };
            c.expr.as_ref().is_some_and(is_same)
        }),
        Body::Values(..) => None,
    }
}

/// Returns the tokens of an expression, without the space between them.
fn split_tokens(sql: &str) -> Vec<&str> {
    lexer::read_tokens(sql, Brackets::List).map(|token| token.text(sql)).collect()
}
