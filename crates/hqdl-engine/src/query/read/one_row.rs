//! Rewrites a question about a query's rows if the query has one row and a column of the spec
//! answers it. `LLMQA` becomes `LLMMap` of that row, so that no request is needed.
//!
//! | written | read as |
//! |---|---|
//! | `{{LLMQA('q', (SELECT c FROM t WHERE …))}}` | `(SELECT {{LLMMap('q', (c))}} FROM t WHERE …)` |
//!
//! The spec must contain the question, the result columns must be plain columns, and a column must
//! answer the rewritten call. In a UNION, SELECTs without a table are ignored, because their rows
//! are not entities.

use rusqlite::types::Value as Sql;

use crate::query::explain::explain_nested;
use crate::query::plan::engine::Engine;
use crate::query::plan::prepare::{ReadQuery, open_database};
use crate::query::request::Request;
use crate::query::request::error::QueryError;
use crate::query::request::params::Param;
use crate::query::result::query_result::QueryResult;
use crate::query::result::query_result::RouteKind;
use crate::routing::question;
use hqdl_spec::Spec;
use hqdl_sql::blendsql::lexer::{self, Brackets, TokenKind};
use hqdl_sql::blendsql::parse::{ParsedQuery, Syntax, parse_query_with_syntax};
use hqdl_sql::blendsql::tree::{Body, Expr, ExprKind, Query, ResultColumn, SelectCore};
use hqdl_sql::blendsql::{Argument, Call, SqlError, Subject};
use hqdl_sql::{Edits, TranslatedQuery};

/// Rewrites the calls whose queries have one row, and returns the resulting query.
///
/// # Errors
/// Returns [`QueryError`] if a rewritten query cannot be parsed, or if the database cannot be
/// opened.
pub(in crate::query) fn rewrite_one_row_questions(
    request: &Request<'_>,
    query: ReadQuery,
) -> Result<ReadQuery, QueryError> {
    if request.spec.expansions.is_empty() {
        return Ok(query);
    }
    let mut edits = Edits::default();
    let mut rows: Vec<(usize, &Query)> = Vec::new();
    query.parsed.query.visit_exprs(&mut |expr| {
        if let ExprKind::Call(n, args) = &expr.kind
            && let [Expr { kind: ExprKind::Scalar(query), .. }] = args.as_slice()
        {
            rows.push((*n, query.as_ref()));
        }
    });
    for (n, rows) in rows {
        let text = &query.normalized.sql;
        let call = &query.parsed.calls[n];
        if reads_outer_cte(&query.parsed.query, rows) {
            continue;
        }
        let Some(found) = rewrite_call(request, text, call, rows, query.parsed.is_single_call)
        else {
            continue;
        };
        if is_routed(request, &query, found.clone(), n)? {
            edits.extend(found);
        }
    }
    if edits.is_empty() {
        return Ok(query);
    }
    let (normalized, parsed) = apply_edits(&query, edits)?;
    Ok(ReadQuery { normalized, parsed, ..query })
}

/// Returns true if `rows` reads a common table expression that is declared outside of `rows`.
fn reads_outer_cte(query: &Query, rows: &Query) -> bool {
    let mut outer: Vec<&str> = Vec::new();
    query.visit_ctes(&mut |cte| {
        if !rows.span.contains(&cte.query.span.start) {
            outer.push(&cte.name);
        }
    });
    let mut found = false;
    rows.visit_tables(&mut |table| {
        found |= outer.iter().any(|name| name.eq_ignore_ascii_case(table));
    });
    found
}

/// Applies edits to a query. Returns the new text and its tree.
fn apply_edits(
    query: &ReadQuery,
    edits: Edits,
) -> Result<(TranslatedQuery, ParsedQuery), QueryError> {
    let normalized = query.normalized.with_edits(edits).map_err(SqlError::from)?;
    let is_table = |table: &str| query.schema.has_table(table);
    let syntax = Syntax { is_table: &is_table, ..Syntax::default() };
    let parsed = parse_query_with_syntax(&normalized.sql, syntax);
    let parsed = parsed.map_err(|e| e.map_span(|span| normalized.map_span_to_original(&span)))?;
    Ok((normalized, parsed))
}

/// Returns true if a column of the spec has this question.
fn has_question_column(spec: &Spec, asked: &str) -> bool {
    spec.expansions.iter().any(|expansion| {
        (0..expansion.columns.len()).any(|column| {
            let found = question::find_binding(&expansion.columns, column, asked, &mut |_| None);
            matches!(found, Ok(Some(_)))
        })
    })
}

/// Returns the edits that rewrite a call about the rows of a query, or `None` if the call cannot be
/// rewritten. `is_lone` is true if the call is the whole statement.
fn rewrite_call(
    request: &Request<'_>,
    text: &str,
    call: &Call,
    rows: &Query,
    is_lone: bool,
) -> Option<Edits> {
    let [Argument::Query(span)] = call.values.as_slice() else { return None };
    let is_list = call.return_type.is_some_and(|t| t.is_list) || call.quantifier.is_some();
    if call.ingredient.subject() != Subject::Rows
        || call.is_values_row
        || !call.is_in_braces()
        || is_list
        || !call.inner.is_empty()
        || !has_question_column(request.spec, &call.question)
    {
        return None;
    }
    let (core, end) = find_table_select(rows)?;
    let columns = || core.columns.iter();
    let plain = |c: &ResultColumn| {
        matches!(c.expr.as_ref().map(|e| &e.kind), Some(ExprKind::Column { .. }))
    };
    let grouped = !core.group.is_empty() || core.having.is_some() || !core.windows.is_empty();
    if core.distinct || grouped || !columns().all(plain) {
        return None;
    }
    if !has_one_row(request, text.get(core.span.start..end)?) {
        return None;
    }
    let named: Vec<&str> =
        columns().filter_map(|c| text.get(c.expr.as_ref()?.span.clone())).collect();
    let rest = text.get(core.columns.last()?.span.end..end)?;
    let (open, close) = if is_lone { ("SELECT ", "") } else { ("(SELECT ", ")") };
    let paren = call.span.start + text.get(call.span.clone())?.find('(')?;
    let mut edits = Edits::default();
    edits.replace(call.span.start..call.span.start, open);
    edits.replace(call.span.start + 2..paren, "LLMMap");
    // The query's parentheses enclose the first and the last column, so only the separators add
    // more.
    edits.replace(span.clone(), named.join("), ("));
    edits.replace(call.span.end..call.span.end, format!(" {}{close}", rest.trim()));
    Some(edits)
}

/// Returns the SELECT in a query that reads a table, and its end. Returns `None` unless there is
/// exactly one such SELECT.
fn find_table_select(query: &Query) -> Option<(&SelectCore, usize)> {
    fn collect_selects<'q>(query: &'q Query, found: &mut Vec<&'q SelectCore>) -> Option<()> {
        match &query.body {
            Body::Core(core) => found.push(core),
            Body::Compound(operator, left, right) if operator.is_union() => {
                collect_selects(left, found)?;
                collect_selects(right, found)?;
            }
            Body::Compound(..) | Body::Values(..) => return None,
        }
        Some(())
    }
    if !query.with.is_empty() {
        return None;
    }
    if let Body::Core(core) = &query.body {
        return (!core.from.is_empty()).then_some((core, query.span.end));
    }
    let mut found = Vec::new();
    collect_selects(query, &mut found)?;
    found.retain(|core| !core.from.is_empty());
    let whole = query.order.is_empty() && query.limit.is_none() && query.offset.is_none();
    match found.as_slice() {
        [core] if whole => Some((core, core.span.end)),
        _ => None,
    }
}

/// Returns true if a query has exactly one row. Returns false if the query cannot run separately.
fn has_one_row(request: &Request<'_>, rows: &str) -> bool {
    let sql = format!("SELECT count(*) FROM (SELECT 1 FROM ({rows}) LIMIT 2)");
    let mut counted = QueryResult::default();
    // Pass only the values that these rows use, because an unused value is an error.
    let parameters = find_parameters(rows);
    let is_used = |param: &Param| {
        parameters.iter().any(|(position, name)| param.identifies_parameter(*position, Some(name)))
    };
    let params = request.params.iter().filter(|(param, _)| is_used(param)).cloned().collect();
    let ran = Request { sql: &sql, params, ..request.clone() }.to_plain().run(&mut counted);
    ran.is_ok() && counted.rows == [[Sql::Integer(1)]]
}

/// Returns the parameters in a text, each with its number. The number is 0 for a name or a plain
/// `?`.
fn find_parameters(text: &str) -> Vec<(usize, &str)> {
    let tokens = lexer::read_tokens(text, Brackets::Name);
    let parameters = tokens.filter(|token| token.lexeme == TokenKind::Parameter);
    let numbered = parameters.map(|token| {
        let name = token.text(text);
        let number = name.strip_prefix('?').and_then(|number| number.parse().ok());
        (number.unwrap_or(0), name)
    });
    numbered.collect()
}

/// Returns true if a column of the spec answers a call in the edited query.
fn is_routed(
    request: &Request<'_>,
    query: &ReadQuery,
    edits: Edits,
    call: usize,
) -> Result<bool, QueryError> {
    let (normalized, parsed) = apply_edits(query, edits)?;
    let (guard, schema) = open_database(request)?;
    let query = ReadQuery { normalized, parsed, guard, schema };
    let engine = Engine::prepare_query(request, query, None, explain_nested);
    Ok(engine.is_ok_and(|engine| {
        let route = engine.calls.routes.get(call).map(|route| route.route);
        route.is_some_and(|route| route != RouteKind::AdHoc)
    }))
}
