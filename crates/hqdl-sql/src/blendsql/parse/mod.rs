//! Parses a query's text into a [`tree`](crate::blendsql::tree): `SQLite`'s grammar of SELECT, with
//! calls as expressions.

mod cursor;
mod expr;
mod from;
mod keywords;
mod legacy;
mod postgres;
mod query;

pub(crate) use expr::Precedence;
pub use keywords::begins_write;

use crate::blendsql::frame::reads_table;
use crate::blendsql::macros::FindMacro;
use crate::blendsql::parse::cursor::{LegacySyntax, QueryParser};
use crate::blendsql::scan::{Grammar, ScanSettings, ScannedQuery, scan_query};
use crate::blendsql::tree::{Expr, ExprKind, Query, ResultColumn, SelectCore, Span};
use crate::blendsql::vendors::Vendor;
use crate::blendsql::{Argument, Call, Choices, SqlError};
use crate::translated::Edits;

/// Result of parsing a query.
#[derive(Debug, Clone)]
pub struct ParsedQuery {
    /// Parsed query.
    pub query: Query,
    /// All calls; nested calls come after the outer ones. [`ExprKind::Call`] contains an index into
    /// this list.
    pub calls: Vec<Call>,
    /// Queries in `options=`, which run separately.
    pub options: Vec<Query>,
    /// Whether the whole statement is a single call without a SELECT.
    pub is_single_call: bool,
}

impl ParsedQuery {
    /// Returns, for each call, whether it is inside a recursive CTE.
    #[must_use]
    pub fn mark_calls_in_recursive_ctes(&self) -> Vec<bool> {
        let mut spans: Vec<Span> = Vec::new();
        self.query.visit_ctes(&mut |cte| {
            if cte.recursive && reads_table(&cte.query, &cte.name) {
                spans.push(cte.query.span.clone());
            }
        });
        let is_recursive = |c: &Call| spans.iter().any(|s| s.contains(&c.span.start));
        self.calls.iter().map(is_recursive).collect()
    }
}

/// Settings that decide how a query's text is parsed.
#[derive(Clone, Copy)]
pub struct Syntax<'a> {
    /// Returns true if the database has a table with the given name. A text `'t::c'` in a call is a
    /// column if the table `t` exists, regardless of the column name.
    pub is_table: &'a dyn Fn(&str) -> bool,
    /// Whether the query may contain syntax that only `PostgreSQL` has.
    pub is_server: bool,
    /// Finds the macros that the query may contain; `None` if it must not contain any.
    pub find_macro: Option<FindMacro<'a>>,
    /// Engine whose AI functions the query may call, if any.
    pub vendor: Option<Vendor>,
}

impl Default for Syntax<'_> {
    fn default() -> Self {
        Self { is_table: &|_| false, is_server: false, find_macro: None, vendor: None }
    }
}

impl<'a> Syntax<'a> {
    fn grammar(self) -> Grammar {
        if self.is_server { Grammar::Postgres } else { Grammar::Sqlite }
    }

    /// Returns true if the dialect calls `TRY_CAST` also `SAFE_CAST`.
    pub(in crate::blendsql) fn has_safe_cast(self) -> bool {
        self.vendor == Some(Vendor::BigQuery)
    }

    /// Returns the settings that decide what a call is.
    pub(in crate::blendsql) fn scan_settings(self) -> ScanSettings<'a> {
        let Self { is_table, find_macro, vendor, .. } = self;
        ScanSettings { is_table, find_macro, vendor, grammar: self.grammar() }
    }
}

/// Parses a query.
///
/// # Errors
/// Returns [`SqlError`] with the location of the syntax error.
pub fn parse_query(sql: &str) -> Result<ParsedQuery, SqlError> {
    parse_query_with_syntax(sql, Syntax::default())
}

/// Same as [`parse_query`], with settings that depend on the database.
///
/// # Errors
/// Returns [`SqlError`] with the location of the syntax error.
pub fn parse_query_with_syntax(sql: &str, syntax: Syntax<'_>) -> Result<ParsedQuery, SqlError> {
    let scanned = scan_query(sql, syntax.scan_settings())?;
    parse_tokens(sql, scanned, syntax.grammar(), None).map(|(parsed, _)| parsed)
}

/// Parses the tokens of a query, which may use the syntax of earlier versions. Returns the edits
/// that replace this syntax. The tree matches `sql` only if there are no edits.
pub(in crate::blendsql) fn parse_scanned_query(
    sql: &str,
    scanned: ScannedQuery,
    syntax: Syntax<'_>,
) -> Result<(ParsedQuery, Edits), SqlError> {
    let legacy = LegacySyntax { has_safe_cast: syntax.has_safe_cast(), ..LegacySyntax::default() };
    parse_tokens(sql, scanned, syntax.grammar(), Some(legacy))
}

/// Reads the tokens of a query in `SUQL`.
///
/// # Errors
/// Returns [`SqlError`] for an invalid token, and for an invalid call in braces.
pub(crate) fn scan_suql_query(sql: &str, vendor: Option<Vendor>) -> Result<ScannedQuery, SqlError> {
    scan_query(sql, ScanSettings { vendor, grammar: Grammar::Suql, ..ScanSettings::default() })
}

/// Parses a query in `SUQL`, which has `PostgreSQL`'s syntax. The arguments of calls in braces and of
/// a vendor's functions are not parsed, because they have `SQLite`'s syntax.
///
/// # Errors
/// Returns [`SqlError`] with the location of the syntax error.
pub(crate) fn parse_suql_query(sql: &str, scanned: ScannedQuery) -> Result<ParsedQuery, SqlError> {
    parse_tokens(sql, scanned, Grammar::Suql, None).map(|(parsed, _)| parsed)
}

fn parse_tokens(
    sql: &str,
    scanned: ScannedQuery,
    grammar: Grammar,
    legacy: Option<LegacySyntax>,
) -> Result<(ParsedQuery, Edits), SqlError> {
    let ScannedQuery { calls, tokens } = scanned;
    let mut all = Vec::new();
    for call in calls {
        flatten_call(call, &mut all);
    }
    let mut parser = QueryParser {
        sql,
        tokens: &tokens,
        call_starts: all.iter().enumerate().map(|(n, call)| (call.span.start, n)).collect(),
        calls: &all,
        options: Vec::new(),
        is_postgres: grammar != Grammar::Sqlite,
        is_suql: grammar == Grammar::Suql,
        at: 0,
        end: tokens.len(),
        text_end: sql.len(),
        depth: 0,
        height: 0,
        legacy,
    };
    let (query, is_single_call) = parser.parse_statement()?;
    let edits = parser.take_legacy_edits();
    let options = parser.options;
    Ok((ParsedQuery { query, calls: all, options, is_single_call }, edits))
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

impl QueryParser<'_> {
    /// Parses the whole text. The returned flag is true if the text is a single call.
    fn parse_statement(&mut self) -> Result<(Query, bool), SqlError> {
        while self.eat_symbol(b';') {}
        let Some(first) = self.peek() else {
            let error = SqlError::new(0..self.sql.len(), "the query has no statement", "");
            return Err(error.with_help("give a SELECT"));
        };
        // A statement that is a single call evaluates to the call's value.
        let is_single_call = self.call_at(first).is_some();
        let query = if is_single_call {
            let expr = self.parse_call()?;
            let span = expr.span.clone();
            let column = ResultColumn {
                expr: Some(expr),
                star_table: None,
                alias: None,
                source_text: self.sql.get(span.clone()).unwrap_or_default().to_owned(),
                span: span.clone(),
            };
            Query::from_core(SelectCore::with_columns(vec![column], span))
        } else if keywords::begins_other_statement(self.text(first)) {
            return Err(self.not_a_select_error());
        } else {
            self.parse_query()?
        };
        if self.peek().is_some() && !self.eat_symbol(b';') {
            return Err(self.unexpected_error());
        }
        while self.eat_symbol(b';') {}
        if self.peek().is_some() {
            let span = self.next_start()..self.sql.len();
            let error = SqlError::new(span, "more than one statement", "the second begins here");
            return Err(error.with_help("run one query at a time"));
        }
        Ok((query, is_single_call))
    }

    fn not_a_select_error(&self) -> SqlError {
        let message = "hqdl runs only SELECT statements here";
        let error = SqlError::new(0..self.sql.len(), message, "this is not a SELECT");
        error.with_help("a query is read-only")
    }

    /// Parses the arguments of a call without moving past the call.
    fn parse_arguments(&mut self, n: usize) -> Result<Expr, SqlError> {
        let call = &self.calls[n];
        if self.is_suql {
            return Ok(Expr { span: call.span.clone(), kind: ExprKind::Call(n, Vec::new()) });
        }
        self.add_legacy_columns(n);
        let mut args = Vec::new();
        let is_aggregate = call.macro_call.as_ref().is_some_and(|written| written.is_aggregate);
        for value in &call.values {
            let arg = match value {
                Argument::Column { table, column, span } => Expr {
                    span: span.clone(),
                    kind: ExprKind::Column { table: table.clone(), column: column.clone() },
                },
                Argument::Sql(span) if is_aggregate => {
                    let (value, order) = self.parse_part(span, Self::parse_aggregate_value)?;
                    args.extend(order);
                    value
                }
                Argument::Sql(span) => self.parse_part(span, Self::parse_expr)?,
                Argument::Query(span) => {
                    let query = Box::new(self.parse_part(span, Self::parse_query)?);
                    Expr { span: span.clone(), kind: ExprKind::Scalar(query) }
                }
            };
            args.push(arg);
        }
        if let Some(filter) = call.macro_call.as_ref().and_then(|written| written.filter.as_ref()) {
            args.push(self.parse_part(filter, Self::parse_expr)?);
        }
        if let Some(Choices::Query(span)) = &call.options {
            let options = self.parse_part(span, Self::parse_query)?;
            self.options.push(options);
        }
        Ok(Expr { span: call.span.clone(), kind: ExprKind::Call(n, args) })
    }

    /// Parses the value of an aggregate. Also returns the expressions in its ORDER BY.
    fn parse_aggregate_value(&mut self) -> Result<(Expr, Vec<Expr>), SqlError> {
        let _ = self.eat_word("DISTINCT") || self.eat_word("ALL");
        let value = self.parse_expr()?;
        let order = self.parse_order_by()?.into_iter().map(|term| term.expr);
        Ok((value, order.collect()))
    }

    /// Parses a part of the text, then returns to the current token.
    fn parse_part<T>(
        &mut self,
        span: &Span,
        parse: impl FnOnce(&mut Self) -> Result<T, SqlError>,
    ) -> Result<T, SqlError> {
        let around = (self.at, self.end, self.text_end);
        let token_at = |offset: usize| self.tokens.partition_point(|t| t.start < offset);
        (self.at, self.end, self.text_end) = (token_at(span.start), token_at(span.end), span.end);
        let parsed = self.parse_nested(parse)?;
        if self.peek().is_some() {
            return Err(self.unexpected_error());
        }
        (self.at, self.end, self.text_end) = around;
        Ok(parsed)
    }
}
