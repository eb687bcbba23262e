//! Rewrites a question about a query's rows if the query has one row and a column of the spec
//! answers it. `LLMQA` becomes `LLMMap` of that row, so that no request is needed.
//!
//! | written | read as |
//! |---|---|
//! | `{{LLMQA('q', (SELECT c FROM t WHERE …))}}` | `(SELECT {{LLMMap('q', (c))}} FROM t WHERE …)` |
//!
//! The spec must contain the question, the result columns must be plain columns, and a column must
//! answer the rewritten call. In a UNION, rows that are read from no table are ignored, because
//! they are not entities.

use std::ops::Range;

use rusqlite::types::Value as Sql;

use crate::query::connection::large_stack::with_large_stack;
use crate::query::explain::explain_nested;
use crate::query::plan::engine::Engine;
use crate::query::request::Request;
use crate::query::request::error::QueryError;
use crate::query::result::query_result::QueryResult;
use crate::query::result::query_result::RouteKind;
use crate::routing::question;
use hqdl_spec::Spec;
use hqdl_sql::blendsql::normalize::normalize_query;
use hqdl_sql::blendsql::parse::{ParsedQuery, Syntax, parse_query};
use hqdl_sql::blendsql::tree::{Body, ExprKind, Query, ResultColumn, SelectCore};
use hqdl_sql::blendsql::{Argument, Call, Subject, may_have_calls, scan_calls};
use hqdl_sql::suql::TranslatedQuery;

type Edits = Vec<(Range<usize>, String)>;

/// Returns the query with these calls rewritten, or `None` if there are none. A query that cannot
/// be parsed is unchanged; its error is reported when it runs.
///
/// # Errors
/// Returns [`QueryError::Runtime`] if no thread can be started.
pub(in crate::query) fn rewrite_one_row_questions(
    request: &Request<'_>,
    text: &str,
) -> Result<Option<TranslatedQuery>, QueryError> {
    if request.spec.expansions.is_empty() || !may_have_calls(text) {
        return Ok(None);
    }
    with_large_stack(|| rewrite_query(request, text))
}

fn rewrite_query(request: &Request<'_>, text: &str) -> Option<TranslatedQuery> {
    let asks_rows = |call: &Call| call.ingredient.subject() == Subject::Rows;
    // The spans of these calls are positions in the original text.
    let calls = scan_calls(text).ok()?;
    calls
        .iter()
        .find(|call| asks_rows(call) && has_question_column(request.spec, &call.question))?;
    let (normalized, parsed) = normalize_query(text, Syntax::default()).ok()?;
    let mut edits = Edits::new();
    for call in calls.iter().filter(|call| asks_rows(call)) {
        let at = |other: &Call| normalized.original_span(&other.span) == call.span;
        let Some(n) = parsed.calls.iter().position(at) else { continue };
        let Some(found) = rewrite_call(request, text, call, parsed.is_single_call) else {
            continue;
        };
        if is_routed(request, &TranslatedQuery::with_edits(text, found.clone()).sql, n) {
            edits.extend(found);
        }
    }
    (!edits.is_empty()).then(|| TranslatedQuery::with_edits(text, edits))
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

/// Returns the edits that rewrite a call, or `None` if it cannot be rewritten.
fn rewrite_call(request: &Request<'_>, text: &str, call: &Call, lone: bool) -> Option<Edits> {
    let [Argument::Query(query)] = call.values.as_slice() else { return None };
    let is_list = call.return_type.is_some_and(|t| t.is_list) || call.quantifier.is_some();
    if call.is_values_row
        || is_list
        || !call.inner.is_empty()
        || !has_question_column(request.spec, &call.question)
    {
        return None;
    }
    // After FROM or JOIN, the call returns a table.
    let before = text[..call.span.start].trim_end().to_lowercase();
    if ["from", "join", ","].iter().any(|word| before.ends_with(word)) && !lone {
        return None;
    }
    let inner = text.get(query.clone())?;
    let parsed: ParsedQuery = parse_query(inner).ok()?;
    let (core, end) = arm_with_table(&parsed.query)?;
    let columns = || core.columns.iter();
    let plain = |c: &ResultColumn| {
        matches!(c.expr.as_ref().map(|e| &e.kind), Some(ExprKind::Column { .. }))
    };
    let grouped = !core.group.is_empty() || core.having.is_some() || !core.windows.is_empty();
    if core.distinct || grouped || !columns().all(plain) {
        return None;
    }
    let rows = inner.get(core.span.start..end)?;
    if !has_one_row(request, rows) {
        return None;
    }
    let named: Vec<&str> =
        columns().filter_map(|c| inner.get(c.expr.as_ref()?.span.clone())).collect();
    let rest = inner.get(core.columns.last()?.span.end..end)?;
    let (open, close) = if lone { ("SELECT ", "") } else { ("(SELECT ", ")") };
    let name = call.ingredient.name();
    let name_at = call.span.start + text.get(call.span.clone())?.find(name)?;
    Some(vec![
        (call.span.start..call.span.start, open.to_owned()),
        (name_at..name_at + name.len(), "LLMMap".to_owned()),
        // The query already has parentheses, so separate several columns only.
        (query.clone(), named.join("), (")),
        (call.span.end..call.span.end, format!(" {}{close}", rest.trim())),
    ])
}

/// Returns the only SELECT in a query that reads a table, and its end.
fn arm_with_table(query: &Query) -> Option<(&SelectCore, usize)> {
    fn collect_arms<'q>(query: &'q Query, found: &mut Vec<&'q SelectCore>) -> Option<()> {
        match &query.body {
            Body::Core(core) => found.push(core),
            Body::Compound(operator, left, right) if operator.is_union() => {
                collect_arms(left, found)?;
                collect_arms(right, found)?;
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
    collect_arms(query, &mut found)?;
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
    let ran = Request { sql: &sql, ..request.clone() }.to_plain().run(&mut counted);
    ran.is_ok() && counted.rows == [[Sql::Integer(1)]]
}

/// Returns true if a column of the spec answers a call of a query.
fn is_routed(request: &Request<'_>, sql: &str, call: usize) -> bool {
    let request = Request { sql, ..request.clone() };
    let engine = Engine::prepare_query(&request, None, explain_nested);
    engine.is_ok_and(|engine| {
        let route = engine.calls.routes.get(call).map(|route| route.route);
        route.is_some_and(|route| route != RouteKind::AdHoc)
    })
}
