//! Normalizes a query before it is parsed: removes comments, numbers the parameters, adds spaces
//! around calls, and rewrites older syntax (`modern`). Spans in the result can be mapped back to
//! the original text.

use std::borrow::Cow;

use super::lexer::{Brackets, Lexeme, next_token};
use super::scan::scan_calls;
use super::{SqlError, modern, tree::Span};

/// A normalized text and its changes.
#[derive(Debug, Clone)]
pub struct NormalizedQuery {
    /// The normalized text.
    pub text: String,
    /// Changes, in order.
    changes: Vec<Change>,
}

/// A replacement: its start and length in the normalized text, and the length of the original.
#[derive(Debug, Clone, Copy)]
struct Change {
    start: usize,
    length: usize,
    replaced: usize,
}

impl NormalizedQuery {
    /// Normalizes a query.
    ///
    /// # Errors
    /// [`SqlError`] if its calls cannot be parsed.
    pub fn normalize(sql: &str) -> Result<Self, SqlError> {
        // A `--` comment would hide SQL that is appended to it.
        let uncommented = blank_comments(sql);
        let sql = trim_semicolons(&uncommented);
        let (calls, sql) = match scan_calls(sql) {
            Ok(calls) => (calls, Cow::Borrowed(sql)),
            // If standard SQL does not parse, try Python's escaped quotes. The replacement has the
            // same length, so that positions stay the same.
            Err(error) if sql.contains("\\'") => {
                let doubled = double_escaped_quotes(sql);
                (scan_calls(&doubled).map_err(|_| error)?, Cow::Owned(doubled))
            }
            Err(error) => return Err(error),
        };
        let sql = sql.as_ref();
        let mut edits = modern::collect_edits(sql, &calls);
        let word = |c: char| c.is_alphanumeric() || c == '_' || c == '$';
        for call in &calls {
            if sql[..call.span.start].ends_with(word) {
                edits.push((call.span.start..call.span.start, " ".to_owned()));
            }
            if sql[call.span.end..].starts_with(word) {
                edits.push((call.span.end..call.span.end, " ".to_owned()));
            }
        }
        edits.extend(number_parameters(sql).into_iter().map(|(at, number)| (at..at, number)));
        edits.sort_by_key(|(span, _)| (span.start, span.end));
        let mut spelled = Self { text: String::with_capacity(sql.len() + 16), changes: Vec::new() };
        let mut at = 0;
        for (span, new) in edits {
            spelled.text.push_str(&sql[at..span.start]);
            let start = spelled.text.len();
            spelled.changes.push(Change { start, length: new.len(), replaced: span.len() });
            spelled.text.push_str(&new);
            at = span.end;
        }
        spelled.text.push_str(&sql[at..]);
        Ok(spelled)
    }

    /// Returns the corresponding span of the original text.
    #[must_use]
    pub fn original_span(&self, span: &Span) -> Span {
        let start = self.original_offset(span.start);
        start..self.original_offset(span.end).max(start)
    }

    fn original_offset(&self, at: usize) -> usize {
        let (mut added, mut removed) = (0, 0);
        for change in self.changes.iter().take_while(|c| c.start < at) {
            // A position in a replacement maps to the same distance from the original's start, or
            // to the original's end if that is shorter.
            let within = at.min(change.start + change.length);
            added += within - change.start;
            removed += if within == at && at < change.start + change.length {
                (at - change.start).min(change.replaced)
            } else {
                change.replaced
            };
        }
        (at + removed).saturating_sub(added)
    }
}

/// Replaces comments with spaces. If a token is invalid, the rest of the text is unchanged, and the
/// error is reported when it is parsed.
fn blank_comments(sql: &str) -> String {
    let mut text = String::with_capacity(sql.len());
    let mut brackets = Brackets::Name;
    let mut at = 0;
    while let Ok(token) = next_token(sql, at, brackets) {
        let gap = &sql[at..token.map_or(sql.len(), |t| t.start)];
        // Keep the length, so that positions stay the same, and keep line breaks.
        text.extend(gap.bytes().map(|b| if b == b'\n' { '\n' } else { ' ' }));
        let Some(token) = token else { return text };
        text.push_str(token.text(sql));
        at = token.end;
        match token.lexeme {
            Lexeme::Open => brackets = Brackets::List,
            Lexeme::Close => brackets = Brackets::Name,
            _ => {}
        }
    }
    text.push_str(&sql[at..]);
    text
}

/// Replaces `\'` with `''` between the start of the first call and the end of the last one. Outside
/// of calls, SQL treats a backslash as an ordinary character.
fn double_escaped_quotes(sql: &str) -> String {
    let first = sql.find("{{").unwrap_or(sql.len());
    let last = sql.rfind("}}").map_or(first, |at| at.max(first));
    let (before, rest) = sql.split_at(first);
    let (calls, after) = rest.split_at(last - first);
    [before, &calls.replace("\\'", "''"), after].concat()
}

/// Returns a statement without its trailing semicolons.
fn trim_semicolons(sql: &str) -> &str {
    let mut rest = sql.trim_end();
    while let Some(before) = rest.strip_suffix(';') {
        rest = before.trim_end();
    }
    if rest.is_empty() { sql } else { rest }
}

/// Returns the number of each `?`, and the offset at which to insert it. hqdl may move a condition
/// within the query, which would change the order of unnumbered parameters.
fn number_parameters(sql: &str) -> Vec<(usize, String)> {
    let (mut found, mut named, mut last): (Vec<_>, Vec<&str>, u32) = (Vec::new(), Vec::new(), 0);
    let mut at = 0;
    while let Ok(Some(token)) = next_token(sql, at, Brackets::Name) {
        at = token.end;
        let text = token.text(sql);
        if token.lexeme != Lexeme::Parameter || named.contains(&text) {
            continue;
        }
        match text.strip_prefix('?') {
            Some("") => {
                last += 1;
                found.push((token.end, last.to_string()));
            }
            Some(number) => last = last.max(number.parse().unwrap_or(last)),
            // A named parameter also gets a number, at its first occurrence.
            None => {
                named.push(text);
                last += 1;
            }
        }
    }
    found
}
