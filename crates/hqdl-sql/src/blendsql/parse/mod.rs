//! From a query's text to its [`tree`](crate::blendsql::tree). The grammar is `SQLite`'s own
//! (`syntaqlite`).
//!
//! Calls are overwritten by names of the same length before the text is parsed,
//! so all offsets stay true, and are found again by these names. The arguments
//! of a call are parsed by themselves, into the same tree.

pub(in crate::blendsql) mod walk;
pub(in crate::blendsql) mod walk_expr;

use std::cell::Cell;

use syntaqlite_syntax::nodes as sq;
use syntaqlite_syntax::source::{StmtLen, StmtOffset};
use syntaqlite_syntax::typed::GrammarNodeType;
use syntaqlite_syntax::{ParseOutcome, Parser, ParserConfig};

use crate::blendsql::frame::reads;
use crate::blendsql::ingredients::Subject;
use crate::blendsql::parse::walk::Walk;
use crate::blendsql::tree::{Body, Core, Expr, ExprKind, Query, ResultColumn, Span};
use crate::blendsql::{Argument, Call, Choices, SqlError, mask};

/// What a text was parsed from.
pub struct Parsed {
    /// The query.
    pub query: Query,
    /// All calls, those inside others after them; [`ExprKind::Call`] counts here.
    pub calls: Vec<Call>,
    /// Whether the whole statement is one call, without a SELECT.
    pub lone: bool,
}

impl Parsed {
    /// Whether each call stands in a common table expression that reads itself.
    #[must_use]
    pub fn recursing(&self) -> Vec<bool> {
        let mut spans: Vec<Span> = Vec::new();
        self.query.each_cte(&mut |cte| {
            if cte.recursive && reads(&cte.query, &cte.name) {
                spans.push(cte.query.span.clone());
            }
        });
        let within = |c: &Call| spans.iter().any(|s| s.contains(&c.span.start));
        self.calls.iter().map(within).collect()
    }
}

/// Parses a query whose calls were found by [`crate::blendsql::scan`].
///
/// # Errors
/// [`SqlError`] with the place.
pub fn parse(sql: &str, calls: Vec<Call>) -> Result<Parsed, SqlError> {
    let mut all = Vec::new();
    let numbers: Vec<usize> = calls.into_iter().map(|c| number(c, &mut all)).collect();
    let outer: Vec<Call> = numbers.iter().map(|n| all[*n].clone()).collect();
    let masked = mask(sql, &outer);
    // A statement that is one call alone is its value.
    let trimmed = masked.trim().trim_end_matches(';').trim();
    let lone = numbers.len() == 1 && trimmed.len() == outer[0].span.len();
    let query = if let (true, [only]) = (lone, numbers.as_slice()) {
        let expr = Builder { sql, all: &all }.call(*only)?;
        let span = expr.span.clone();
        let column = ResultColumn {
            expr: Some(expr),
            star_of: None,
            alias: None,
            written: sql.get(span.clone()).unwrap_or_default().to_owned(),
            span: span.clone(),
        };
        Query::of(Core::of(vec![column], span))
    } else {
        Builder { sql, all: &all }.statement(&masked, 0, &numbers)?
    };
    // A name can stand where a value cannot: as an alias, say.
    let mut seen = vec![false; all.len()];
    query.each(&mut |e| {
        if let ExprKind::Call(n, _) = &e.kind
            && let Some(seen) = seen.get_mut(*n)
        {
            *seen = true;
        }
    });
    // What options are chosen from runs by itself, and is held to this there.
    let by_itself = |call: &Call| {
        let options = all.iter().filter_map(|c| match &c.options {
            Some(Choices::Query(span)) => Some(span),
            _ => None,
        });
        options.into_iter().any(|o| o.start <= call.span.start && call.span.end <= o.end)
    };
    if let Some(n) = (0..all.len()).find(|n| !seen[*n] && !by_itself(&all[*n])) {
        let span = all[n].span.clone();
        let error = SqlError::new(
            span,
            "a call is not allowed here",
            "expected something other than a value",
        );
        return Err(match all[n].ingredient.subject() {
            Subject::Pair => error.help(
                "a join without ON needs columns of two tables; write FROM t JOIN u ON {{LLMJoin(t.a, u.b)}}",
            ),
            _ => error,
        });
    }
    Ok(Parsed { query, calls: all, lone })
}

/// Puts a call and those inside it into one list.
fn number(mut call: Call, all: &mut Vec<Call>) -> usize {
    let at = all.len();
    let inner = std::mem::take(&mut call.inner);
    all.push(call);
    let numbered: Vec<usize> = inner.into_iter().map(|c| number(c, all)).collect();
    let inner = numbered.iter().map(|n| all[*n].clone()).collect();
    all[at].inner = inner;
    at
}

/// Parses pieces of one text.
pub(in crate::blendsql) struct Builder<'s> {
    pub(in crate::blendsql) sql: &'s str,
    pub(in crate::blendsql) all: &'s [Call],
}

impl Builder<'_> {
    /// A statement that begins at `base` of the whole text; `holes` are the
    /// calls masked in it.
    fn statement(&self, masked: &str, base: usize, holes: &[usize]) -> Result<Query, SqlError> {
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
                    suggests: false,
                })?;
                Walk { tree: &tree, base, text: masked, holes, builder: self, depth: Cell::new(0) }
                    .query(&select)?
            }
            ParseOutcome::Err(error) => {
                let at = base + error.offset().map_or(0, StmtOffset::as_usize);
                let length = error.length().map_or(1, StmtLen::as_usize);
                return Err(SqlError {
                    message: unmasked(error.message()),
                    span: at.min(self.sql.len())..(at + length).min(self.sql.len()),
                    label: "here".to_owned(),
                    help: None,
                    suggests: false,
                });
            }
            ParseOutcome::Done => {
                return Err(SqlError {
                    message: "the query has no statement".to_owned(),
                    span: base..base + masked.len(),
                    label: String::new(),
                    help: Some("give a SELECT".to_owned()),
                    suggests: false,
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
                suggests: false,
            });
        }
        Ok(query)
    }

    /// A piece of the text inside a call: `before` makes a statement of it.
    fn piece(&self, span: &Span, before: &str, call: &Call) -> Result<Query, SqlError> {
        let inside = |c: &Call| span.start <= c.span.start && c.span.end <= span.end;
        // Of thousands of calls most have none within.
        let all = if call.inner.is_empty() { &[] } else { self.all };
        let holes: Vec<usize> = all
            .iter()
            .enumerate()
            .filter(|(_, c)| inside(c) && call.inner.iter().any(|i| i.span == c.span))
            .map(|(n, _)| n)
            .collect();
        let mut shifted: Vec<Call> = holes.iter().map(|n| self.all[*n].clone()).collect();
        for c in &mut shifted {
            c.span = c.span.start - span.start..c.span.end - span.start;
        }
        let masked = format!("{before}{}", mask(&self.sql[span.clone()], &shifted));
        // Offsets before the piece are never asked for.
        self.statement(&masked, span.start.wrapping_sub(before.len()), &holes)
    }

    pub(in crate::blendsql) fn call(&self, n: usize) -> Result<Expr, SqlError> {
        let call = &self.all[n];
        let mut args = Vec::new();
        for value in &call.values {
            args.push(match value {
                Argument::Column { table, column, span } => Expr {
                    span: span.clone(),
                    kind: ExprKind::Column { table: table.clone(), column: column.clone() },
                },
                Argument::Sql(span) => self.expression(span, call)?,
                Argument::Query(span) => Expr {
                    span: span.clone(),
                    kind: ExprKind::Scalar(Box::new(self.piece(span, "", call)?)),
                },
            });
        }
        if let Some(Choices::Query(span)) = &call.options {
            // It runs by itself, before; here it is only held to the grammar.
            self.piece(span, "", call)?;
        }
        Ok(Expr { span: call.span.clone(), kind: ExprKind::Call(n, args) })
    }

    fn expression(&self, span: &Span, call: &Call) -> Result<Expr, SqlError> {
        let query = self.piece(span, "SELECT ", call)?;
        match query.body {
            Body::Core(mut core) if core.columns.len() == 1 && core.from.is_empty() => {
                let expr = core.columns.pop().and_then(|c| c.expr);
                expr.ok_or_else(|| no_value(span))
            }
            _ => Err(no_value(span)),
        }
    }
}

/// What is said where a value should be.
fn no_value(span: &Span) -> SqlError {
    SqlError {
        message: "this is not a value".to_owned(),
        span: span.clone(),
        label: "expected an expression".to_owned(),
        help: Some("such as a column, `t.c`".to_owned()),
        suggests: false,
    }
}

/// A message without the names that calls were overwritten by.
fn unmasked(message: &str) -> String {
    let mut told = String::with_capacity(message.len());
    let mut rest = message;
    while let Some(at) = rest.find("_hq") {
        told.push_str(&rest[..at]);
        let name = &rest[at + 3..];
        let number = name.trim_start_matches(|c: char| c.is_ascii_digit());
        if number.len() == name.len() {
            told.push_str("_hq");
            rest = name;
            continue;
        }
        told.push_str("{{…}}");
        rest = number.trim_start_matches('_');
    }
    told + rest
}
