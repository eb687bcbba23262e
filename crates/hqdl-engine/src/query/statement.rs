//! What a query may be: one statement, and one that reads. Told from its words,
//! before `SQLite` sees it, so that the message can say what to do instead; what
//! slips through here (`WITH … DELETE`) meets the [guard](super::guard).

use std::ops::Range;

use super::QueryError;
use hqdl_sql::blendsql::lexer::{self, Brackets, Lexeme};
use hqdl_sql::blendsql::tree::{ExprKind, ExprOperator, Query};

/// Words that begin a statement which is not for reading.
const OTHERS: [&str; 20] = [
    "ALTER",
    "ANALYZE",
    "ATTACH",
    "BEGIN",
    "COMMIT",
    "CREATE",
    "DELETE",
    "DETACH",
    "DROP",
    "END",
    "INSERT",
    "PRAGMA",
    "REINDEX",
    "RELEASE",
    "REPLACE",
    "ROLLBACK",
    "SAVEPOINT",
    "UPDATE",
    "VACUUM",
    "UPSERT",
];

/// What every refusal says first.
pub(super) const ONLY_READS: &str = "`hqdl query` is read-only";

/// Makes sure that a text is one statement that may be one for reading.
///
/// # Errors
/// [`QueryError::Sql`] with the place and what to write instead.
pub fn check(sql: &str) -> Result<(), QueryError> {
    if let Some(at) = sql.find('\0') {
        return Err(QueryError::sql(
            "the query contains a NUL character",
            Some(at..at + 1),
            "SQLite stops reading here",
            "",
        ));
    }
    let mut tokens = QueryTokens::new(sql).peekable();
    let first = loop {
        match tokens.next() {
            // EXPLAIN and EXPLAIN QUERY PLAN read when what they explain does.
            Some(t)
                if ["EXPLAIN", "QUERY", "PLAN"]
                    .iter()
                    .any(|w| sql[t.clone()].eq_ignore_ascii_case(w)) => {}
            Some(token) => break token,
            None => {
                return Err(QueryError::sql(
                    "the query is empty",
                    None,
                    "",
                    "write a SELECT, such as \"SELECT count(*) FROM t\"",
                ));
            }
        }
    };
    let word = sql[first.clone()].to_ascii_uppercase();
    if OTHERS.contains(&word.as_str()) {
        return Err(refused(&word, first));
    }
    while let Some(token) = tokens.next() {
        if &sql[token] == ";"
            && let Some(next) = tokens.find(|t| &sql[t.clone()] != ";")
        {
            return Err(QueryError::sql(
                "more than one statement",
                Some(next),
                "a second one begins here",
                "run one query at a time",
            ));
        }
    }
    Ok(())
}

/// The words of a statement that is not for reading.
fn refused(word: &str, span: Range<usize>) -> QueryError {
    let help = match word {
        "PRAGMA" => {
            "use the table form of a pragma: SELECT * FROM pragma_table_info('t')".to_owned()
        }
        "ATTACH" | "DETACH" => {
            "a query reads one database: the spec's, or the one in --db".to_owned()
        }
        _ => "write one SELECT, WITH or VALUES; use another tool to change the database".to_owned(),
    };
    QueryError::sql(ONLY_READS, Some(span), format!("{word} is not allowed"), help)
}

/// The first word of a query, for a caret when `SQLite` names no place.
pub(super) fn first_word(sql: &str) -> Option<Range<usize>> {
    QueryTokens::new(sql).next()
}

/// The place of a name, quoted or not, for a caret.
pub(super) fn word(sql: &str, name: &str) -> Option<Range<usize>> {
    let quotes = ['"', '`', '[', ']'];
    QueryTokens::new(sql).find(|t| sql[t.clone()].trim_matches(quotes).eq_ignore_ascii_case(name))
}

/// The place of the token that begins at `at`, for a caret as long as it.
pub(super) fn token_at(sql: &str, at: usize) -> Option<Range<usize>> {
    let rest = sql.get(at..)?;
    let token = QueryTokens::new(rest).next()?;
    Some(at + token.start..at + token.end)
}

/// The tokens of a query. What is quoted and never closed is one, up to the end:
/// what is wrong with it is told when the query is read.
struct QueryTokens<'s> {
    sql: &'s str,
    at: usize,
    /// Inside `{{…}}` a bracket begins a list, not a quoted name.
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
        // A byte order mark is a blank to SQLite.
        let rest = self.sql.get(self.at..)?;
        let blank = |c: char| c.is_ascii_whitespace() || c == '\u{feff}' || c == '\u{b}';
        self.at = self.sql.len() - rest.trim_start_matches(blank).len();
        let brackets = if self.braces == 0 { Brackets::Name } else { Brackets::List };
        let (lexeme, span) = match lexer::next(self.sql, self.at, brackets) {
            Ok(token) => token.map(|t| (t.lexeme, t.span()))?,
            Err(_) => (Lexeme::Quoted, self.at..self.sql.len()),
        };
        match lexeme {
            Lexeme::Open => self.braces += 1,
            Lexeme::Close => self.braces = self.braces.saturating_sub(1),
            _ => {}
        }
        self.at = span.end;
        Some(span)
    }
}

/// Where a query fails while it runs: `SQLite` says what is wrong, and not where, so
/// that is told only when there is one place that can fail so.
pub(super) fn failing(query: &Query, message: &str) -> Option<Range<usize>> {
    let (json, overflow) = (message.contains("JSON"), message.contains("integer overflow"));
    let of_suql = [" is no ", " is neither ", "division by zero", "out of range"];
    let suql = of_suql.iter().any(|said| message.contains(said));
    let mut places: Vec<Range<usize>> = Vec::new();
    query.each(&mut |e| {
        let can = match &e.kind {
            ExprKind::Function { name, .. } if json => name.starts_with("json"),
            ExprKind::Function { name, .. } if suql => name.starts_with("suql_"),
            ExprKind::Function { name, .. } if overflow => matches!(name.as_str(), "sum" | "abs"),
            ExprKind::Operation(ExprOperator::Infix("->" | "->>"), _) => json,
            _ => false,
        };
        if can && !places.contains(&e.span) {
            places.push(e.span.clone());
        }
    });
    if places.len() == 1 { places.pop() } else { None }
}
