//! Parses a query's text into a [`tree`](hqdl_sql::blendsql::tree), with `SQLite`'s own grammar
//! (`syntaqlite`).
//!
//! Before parsing, calls are overwritten with identifiers of the same length, so all offsets remain
//! valid. In the parse tree these identifiers are replaced by the calls. The arguments of a call
//! are parsed separately into the same tree.

pub(super) mod walk;
pub(super) mod walk_expr;

use std::cell::Cell;

use syntaqlite_syntax::nodes as sq;
use syntaqlite_syntax::source::{StmtLen, StmtOffset};
use syntaqlite_syntax::typed::GrammarNodeType;
use syntaqlite_syntax::{ParseOutcome, Parser, ParserConfig};

use hqdl_sql::blendsql::parse::ParsedQuery;
use crate::oracle::walk::TreeWalker;
use hqdl_sql::blendsql::tree::{Body, Expr, ExprKind, Query, ResultColumn, SelectCore, Span};
use hqdl_sql::blendsql::{Argument, Call, Choices, SqlError, mask_calls};

/// Parses a query whose calls were found by `hqdl_sql::blendsql::scan`.
///
/// # Errors
/// [`SqlError`] with the location of the syntax error.
pub fn parse_query(sql: &str, calls: Vec<Call>) -> Result<ParsedQuery, SqlError> {
    let mut all = Vec::new();
    let numbers: Vec<usize> = calls.into_iter().map(|c| flatten_call(c, &mut all)).collect();
    let outer: Vec<Call> = numbers.iter().map(|n| all[*n].clone()).collect();
    let masked = mask_calls(sql, &outer);
    // A statement that is a single call evaluates to the call's value.
    let trimmed = masked.trim().trim_end_matches(';').trim();
    let is_single_call = numbers.len() == 1 && trimmed.len() == outer[0].span.len();
    let query = if let (true, [only]) = (is_single_call, numbers.as_slice()) {
        let expr = TreeBuilder { sql, all: &all }.build_call(*only)?;
        let span = expr.span.clone();
        let column = ResultColumn {
            expr: Some(expr),
            star_table: None,
            alias: None,
            source_text: sql.get(span.clone()).unwrap_or_default().to_owned(),
            span: span.clone(),
        };
        Query::from_core(SelectCore::with_columns(vec![column], span))
    } else {
        TreeBuilder { sql, all: &all }.parse_statement(&masked, 0, &numbers)?
    };
    // A placeholder name also parses where a value is not allowed, for example as an alias.
    let mut seen = vec![false; all.len()];
    query.visit_exprs(&mut |e| {
        if let ExprKind::Call(n, _) = &e.kind
            && let Some(seen) = seen.get_mut(*n)
        {
            *seen = true;
        }
    });
    // Queries in `options=` run separately and check their own calls.
    let is_in_options_query = |call: &Call| {
        let options = all.iter().filter_map(|c| match &c.options {
            Some(Choices::Query(span)) => Some(span),
            _ => None,
        });
        options.into_iter().any(|o| o.start <= call.span.start && call.span.end <= o.end)
    };
    if let Some(n) = (0..all.len()).find(|n| !seen[*n] && !is_in_options_query(&all[*n])) {
        let span = all[n].span.clone();
        return Err(no_value_error(&span));
    }
    Ok(ParsedQuery { query, calls: all, is_single_call })
}

/// Appends a call and its nested calls to one flat list. Returns the call's index.
fn flatten_call(mut call: Call, all: &mut Vec<Call>) -> usize {
    let at = all.len();
    let inner = std::mem::take(&mut call.inner);
    all.push(call);
    let numbered: Vec<usize> = inner.into_iter().map(|c| flatten_call(c, all)).collect();
    let inner = numbered.iter().map(|n| all[*n].clone()).collect();
    all[at].inner = inner;
    at
}

/// Parses fragments of one text into tree nodes.
pub(super) struct TreeBuilder<'s> {
    pub(super) sql: &'s str,
    pub(super) all: &'s [Call],
}

impl TreeBuilder<'_> {
    /// Parses a statement that begins at offset `base` of the whole text. `masked_calls` are the
    /// calls that are masked in it.
    fn parse_statement(
        &self,
        masked: &str,
        base: usize,
        masked_calls: &[usize],
    ) -> Result<Query, SqlError> {
        let config = ParserConfig::default().with_collect_node_extents(true);
        let parser = Parser::with_config(&config);
        let mut session = parser.parse(masked);
        let query = match session.next() {
            ParseOutcome::Ok(statement) => {
                let tree = statement.erase();
                let root = tree.root_id();
                let select = sq::Select::from_result(&tree, root).ok_or_else(|| SqlError {
                    message: "hqdl runs only SELECT statements here".to_owned(),
                    span: base..base + masked.len(),
                    label: "this is not a SELECT".to_owned(),
                    help: Some("`hqdl query` is read-only".to_owned()),
                    is_suggestion: false,
                })?;
                TreeWalker {
                    tree: &tree,
                    base,
                    text: masked,
                    masked_calls,
                    builder: self,
                    depth: Cell::new(0),
                }
                .convert_query(&select)?
            }
            ParseOutcome::Err(error) => {
                let at = base + error.offset().map_or(0, StmtOffset::as_usize);
                let length = error.length().map_or(1, StmtLen::as_usize);
                return Err(SqlError {
                    message: restore_placeholders(error.message()),
                    span: at.min(self.sql.len())..(at + length).min(self.sql.len()),
                    label: "here".to_owned(),
                    help: None,
                    is_suggestion: false,
                });
            }
            ParseOutcome::Done => {
                return Err(SqlError {
                    message: "the query has no statement".to_owned(),
                    span: base..base + masked.len(),
                    label: String::new(),
                    help: Some("give a SELECT".to_owned()),
                    is_suggestion: false,
                });
            }
        };
        if let ParseOutcome::Ok(second) = session.next() {
            let at = base + second.statement_base().as_doc_offset().as_usize();
            return Err(SqlError {
                message: "more than one statement".to_owned(),
                span: at.min(self.sql.len())..(base + masked.len()).min(self.sql.len()),
                label: "the second begins here".to_owned(),
                help: Some("run one query at a time".to_owned()),
                is_suggestion: false,
            });
        }
        Ok(query)
    }

    /// Parses a fragment of the text inside a call; the prefix `prefix` makes it a statement.
    fn parse_fragment(&self, span: &Span, prefix: &str, call: &Call) -> Result<Query, SqlError> {
        let is_inside = |c: &Call| span.start <= c.span.start && c.span.end <= span.end;
        // In a query with thousands of calls, most have no nested calls.
        let all = if call.inner.is_empty() { &[] } else { self.all };
        let masked_calls: Vec<usize> = all
            .iter()
            .enumerate()
            .filter(|(_, c)| is_inside(c) && call.inner.iter().any(|i| i.span == c.span))
            .map(|(n, _)| n)
            .collect();
        let mut shifted: Vec<Call> = masked_calls.iter().map(|n| self.all[*n].clone()).collect();
        for c in &mut shifted {
            c.span = c.span.start - span.start..c.span.end - span.start;
        }
        let masked = format!("{prefix}{}", mask_calls(&self.sql[span.clone()], &shifted));
        // `base` may wrap around: no offset before the fragment is ever used.
        self.parse_statement(&masked, span.start.wrapping_sub(prefix.len()), &masked_calls)
    }

    pub(super) fn build_call(&self, n: usize) -> Result<Expr, SqlError> {
        let call = &self.all[n];
        let mut args = Vec::new();
        for value in &call.values {
            args.push(match value {
                Argument::Column { table, column, span } => Expr {
                    span: span.clone(),
                    kind: ExprKind::Column { table: table.clone(), column: column.clone() },
                },
                Argument::Sql(span) => self.parse_expression(span, call)?,
                Argument::Query(span) => Expr {
                    span: span.clone(),
                    kind: ExprKind::Scalar(Box::new(self.parse_fragment(span, "", call)?)),
                },
            });
        }
        if let Some(Choices::Query(span)) = &call.options {
            // The options query runs separately; here only its syntax is checked.
            self.parse_fragment(span, "", call)?;
        }
        Ok(Expr { span: call.span.clone(), kind: ExprKind::Call(n, args) })
    }

    fn parse_expression(&self, span: &Span, call: &Call) -> Result<Expr, SqlError> {
        let query = self.parse_fragment(span, "SELECT ", call)?;
        match query.body {
            Body::Core(mut core) if core.columns.len() == 1 && core.from.is_empty() => {
                let expr = core.columns.pop().and_then(|c| c.expr);
                expr.ok_or_else(|| no_value_error(span))
            }
            _ => Err(no_value_error(span)),
        }
    }
}

/// Error for a span where a value is expected.
fn no_value_error(span: &Span) -> SqlError {
    SqlError {
        message: "this is not a value".to_owned(),
        span: span.clone(),
        label: "expected an expression".to_owned(),
        help: Some("such as a column, `t.c`".to_owned()),
        is_suggestion: false,
    }
}

/// Replaces the placeholder names of calls in an error message with `{{…}}`.
fn restore_placeholders(message: &str) -> String {
    let mut restored = String::with_capacity(message.len());
    let mut rest = message;
    while let Some(at) = rest.find("_hq") {
        restored.push_str(&rest[..at]);
        let name = &rest[at + 3..];
        let number = name.trim_start_matches(|c: char| c.is_ascii_digit());
        if number.len() == name.len() {
            restored.push_str("_hq");
            rest = name;
            continue;
        }
        restored.push_str("{{…}}");
        rest = number.trim_start_matches('_');
    }
    restored + rest
}
