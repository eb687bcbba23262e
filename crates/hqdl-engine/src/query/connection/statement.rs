//! Checks that a query is a single read-only statement. This check inspects the tokens before
//! `SQLite` does, so that the message can suggest a fix. The [guard](super::guard) denies
//! statements that pass this check but write (`WITH … DELETE`).

use std::ops::Range;

use crate::query::request::error::QueryError;
use hqdl_sql::blendsql::begins_write;
use hqdl_sql::blendsql::lexer::{self, Brackets, TokenKind};
use hqdl_sql::blendsql::runtime::CALL_AGGREGATES;
use hqdl_sql::blendsql::tree::{ExprKind, ExprOperator, Query};

/// Message for every denied statement.
pub(in crate::query) const ONLY_READS: &str = "a query is read-only";

/// Checks that a text is a single statement that may be read-only.
///
/// # Errors
/// Returns [`QueryError::Sql`] if the text is empty, contains a NUL character or several
/// statements, or begins with a keyword that writes.
pub fn check_read_only(sql: &str) -> Result<(), QueryError> {
    if let Some(at) = sql.find('\0') {
        return Err(QueryError::in_sql(
            "the query contains a NUL character",
            Some(at..at + 1),
            "SQLite stops reading here",
            "",
        ));
    }
    let mut tokens = QueryTokens::new(sql).peekable();
    let first = loop {
        match tokens.next() {
            // EXPLAIN and EXPLAIN QUERY PLAN are read-only if the explained statement is.
            Some(t)
                if ["EXPLAIN", "QUERY", "PLAN"]
                    .iter()
                    .any(|w| sql[t.clone()].eq_ignore_ascii_case(w)) => {}
            Some(token) => break token,
            None => {
                return Err(QueryError::in_sql(
                    "the query is empty",
                    None,
                    "",
                    "write a SELECT, such as \"SELECT count(*) FROM t\"",
                ));
            }
        }
    };
    if begins_write(&sql[first.clone()]) {
        return Err(denied_statement_error(&sql[first.clone()].to_ascii_uppercase(), first));
    }
    while let Some(token) = tokens.next() {
        if &sql[token] == ";"
            && let Some(next) = tokens.find(|t| &sql[t.clone()] != ";")
        {
            return Err(QueryError::in_sql(
                "more than one statement",
                Some(next),
                "a second one begins here",
                "run one query at a time",
            ));
        }
    }
    Ok(())
}

/// Returns the error for a statement that is not read-only.
fn denied_statement_error(word: &str, span: Range<usize>) -> QueryError {
    let help = match word {
        "PRAGMA" => {
            "use the table form of a pragma: SELECT * FROM pragma_table_info('t')".to_owned()
        }
        "ATTACH" | "DETACH" => {
            "a query reads one database: the spec's, or the one in --db".to_owned()
        }
        _ => "write one SELECT, WITH or VALUES; use another tool to change the database".to_owned(),
    };
    QueryError::in_sql(ONLY_READS, Some(span), format!("{word} is not allowed"), help)
}

/// Returns the span of a query's first word, for errors without an offset.
pub(in crate::query) fn find_first_word_span(sql: &str) -> Option<Range<usize>> {
    QueryTokens::new(sql).next()
}

/// Returns the span of the first token that is this name, quoted or not.
pub(in crate::query) fn find_name_span(sql: &str, name: &str) -> Option<Range<usize>> {
    find_name_spans(sql, name).next()
}

/// Returns the spans of all tokens that are this name, quoted or not.
fn find_name_spans<'s>(sql: &'s str, name: &'s str) -> impl Iterator<Item = Range<usize>> + 's {
    let quotes = ['"', '`', '[', ']'];
    QueryTokens::new(sql)
        .filter(move |t| sql[t.clone()].trim_matches(quotes).eq_ignore_ascii_case(name))
}

/// Fragments of hqdl's messages, each with the words that begin the clause the message is about.
const CLAUSES: [(&str, &[&str]); 8] = [
    ("GROUP BY is not a result column", &["GROUP"]),
    ("ORDER BY is not a result column", &["ORDER"]),
    ("LIMIT or OFFSET is not", &["LIMIT"]),
    ("the combined SELECTs return", &["UNION", "INTERSECT", "EXCEPT"]),
    ("a NATURAL join", &["NATURAL"]),
    ("MATCH works only", &["MATCH"]),
    ("generate_series needs", &["generate_series"]),
    ("all VALUES must have", &["VALUES"]),
];
/// Fragments of hqdl's messages that quote the name in question.
const QUOTING_MESSAGES: [&str; 2] = ["USING names", " has 1 value for "];
/// Part of hqdl's message about a subquery with several columns.
const SUBQUERY_MESSAGE: &str = "the subquery returns";

/// Returns the span of the clause that a message is about, if the query has exactly one such
/// clause.
pub(in crate::query) fn find_clause_span(sql: &str, message: &str) -> Option<Range<usize>> {
    if QUOTING_MESSAGES.iter().any(|part| message.contains(part)) {
        return find_name_spans(sql, message.split('`').nth(1)?).next();
    }
    let (words, outer): (&[&str], usize) = if message.starts_with(SUBQUERY_MESSAGE) {
        (&["SELECT"], 1)
    } else {
        (CLAUSES.iter().find(|(part, _)| message.contains(part))?.1, 0)
    };
    let mut found = words.iter().flat_map(|word| find_name_spans(sql, word)).skip(outer);
    let first = found.next()?;
    found.next().is_none().then_some(first)
}

/// Returns the span of the token that begins at `at`.
pub(in crate::query) fn find_token_span(sql: &str, at: usize) -> Option<Range<usize>> {
    let rest = sql.get(at..)?;
    let token = QueryTokens::new(rest).next()?;
    Some(at + token.start..at + token.end)
}

/// Tokens of a query. An unclosed quote becomes one token that extends to the end; the parser
/// reports the error.
struct QueryTokens<'s> {
    sql: &'s str,
    at: usize,
    /// Nesting depth of `{{…}}`, inside which a bracket begins a list instead of a quoted name.
    braces: usize,
}

impl<'s> QueryTokens<'s> {
    fn new(sql: &'s str) -> Self {
        Self { sql, at: 0, braces: 0 }
    }
}

impl Iterator for QueryTokens<'_> {
    type Item = Range<usize>;

    fn next(&mut self) -> Option<Range<usize>> {
        // `SQLite` treats a byte order mark as whitespace.
        let rest = self.sql.get(self.at..)?;
        let blank = |c: char| c.is_ascii_whitespace() || c == '\u{feff}' || c == '\u{b}';
        self.at = self.sql.len() - rest.trim_start_matches(blank).len();
        let brackets = if self.braces == 0 { Brackets::Name } else { Brackets::List };
        let (lexeme, span) = match lexer::next_token(self.sql, self.at, brackets) {
            Ok(token) => token.map(|t| (t.lexeme, t.span()))?,
            Err(_) => (TokenKind::Quoted, self.at..self.sql.len()),
        };
        match lexeme {
            TokenKind::Open => self.braces += 1,
            TokenKind::Close => self.braces = self.braces.saturating_sub(1),
            _ => {}
        }
        self.at = span.end;
        Some(span)
    }
}

/// Returns the span of a run-time error. `SQLite` reports no offset, so the span is known only if a
/// single expression can fail with this message.
pub(in crate::query) fn find_failing_span(query: &Query, message: &str) -> Option<Range<usize>> {
    let (json, overflow) = (message.contains("JSON"), message.contains("integer overflow"));
    let suql_fragments = [" is not ", " is neither ", "division by zero", "out of range"];
    let suql = suql_fragments.iter().any(|fragment| message.contains(fragment));
    let aggregate = CALL_AGGREGATES.iter().find(|found| message.contains(found.call));
    let aggregate = aggregate.map(|found| found.function);
    let mut spans: Vec<Range<usize>> = Vec::new();
    query.visit_exprs(&mut |e| {
        let can_fail = match &e.kind {
            ExprKind::Function { name, .. } if aggregate == Some(name.as_str()) => true,
            ExprKind::Function { name, .. } if json => name.starts_with("json"),
            ExprKind::Function { name, .. } if suql => name.starts_with("suql_"),
            ExprKind::Function { name, .. } if overflow => matches!(name.as_str(), "sum" | "abs"),
            ExprKind::Operation(ExprOperator::Infix("->" | "->>"), _) => json,
            _ => false,
        };
        if can_fail && !spans.contains(&e.span) {
            spans.push(e.span.clone());
        }
    });
    if spans.len() == 1 { spans.pop() } else { None }
}
