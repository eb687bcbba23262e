//! A query's text in the one spelling that is parsed: blanks around calls,
//! parameters with numbers, older forms of the dialect in today's
//! (`modern`). Places in it lead back to the text as it was written.

use std::borrow::Cow;

use super::lexer::{Brackets, Lexeme, next_token};
use super::scan::scan_calls;
use super::{SqlError, modern, tree::Span};

/// A text and what was changed in it.
#[derive(Debug, Clone)]
pub struct NormalizedQuery {
    /// The text that is parsed.
    pub text: String,
    /// What was changed, in order.
    changes: Vec<Change>,
}

/// Where something stands in the new text, in the place of how much of the old.
#[derive(Debug, Clone, Copy)]
struct Change {
    start: usize,
    length: usize,
    replaced: usize,
}

impl NormalizedQuery {
    /// Brings a query into the one spelling.
    ///
    /// # Errors
    /// [`SqlError`] when its calls cannot be read.
    pub fn normalize(sql: &str) -> Result<Self, SqlError> {
        // A comment has no place in text that is put together from pieces.
        let uncommented = uncommented(sql);
        let sql = without_end(&uncommented);
        let (calls, sql) = match scan_calls(sql) {
            Ok(calls) => (calls, Cow::Borrowed(sql)),
            // A quote as Python escapes it: tried where SQL's own way to write one
            // gives no query. As many bytes, for places must stay.
            Err(error) if sql.contains("\\'") => {
                let doubled = doubled(sql);
                (scan_calls(&doubled).map_err(|_| error)?, Cow::Owned(doubled))
            }
            Err(error) => return Err(error),
        };
        let sql = sql.as_ref();
        let mut edits = modern::edits(sql, &calls);
        let word = |c: char| c.is_alphanumeric() || c == '_' || c == '$';
        for call in &calls {
            if sql[..call.span.start].ends_with(word) {
                edits.push((call.span.start..call.span.start, " ".to_owned()));
            }
            if sql[call.span.end..].starts_with(word) {
                edits.push((call.span.end..call.span.end, " ".to_owned()));
            }
        }
        edits.extend(numbers(sql).into_iter().map(|(at, number)| (at..at, number)));
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

    /// The place in the text as it was written.
    #[must_use]
    pub fn original_span(&self, span: &Span) -> Span {
        let start = self.offset(span.start);
        start..self.offset(span.end).max(start)
    }

    fn offset(&self, at: usize) -> usize {
        let (mut added, mut removed) = (0, 0);
        for change in self.changes.iter().take_while(|c| c.start < at) {
            // Within what is new, the place is that of what it stands for.
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

/// The text with blanks in the place of its comments. What cannot be read stays
/// as it is: whoever reads it next says why.
fn uncommented(sql: &str) -> String {
    let mut text = String::with_capacity(sql.len());
    let mut brackets = Brackets::Name;
    let mut at = 0;
    while let Ok(token) = next_token(sql, at, brackets) {
        let gap = &sql[at..token.map_or(sql.len(), |t| t.start)];
        // As many bytes, for places must stay; line ends, for whoever reads it.
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

/// The text with `''` for `\'` between its first call's beginning and its last one's
/// end: outside of calls a backslash is SQL's own, an ordinary character.
fn doubled(sql: &str) -> String {
    let first = sql.find("{{").unwrap_or(sql.len());
    let last = sql.rfind("}}").map_or(first, |at| at.max(first));
    let (before, rest) = sql.split_at(first);
    let (calls, after) = rest.split_at(last - first);
    [before, &calls.replace("\\'", "''"), after].concat()
}

/// A statement without the semicolons at its end.
fn without_end(sql: &str) -> &str {
    let mut rest = sql.trim_end();
    while let Some(before) = rest.strip_suffix(';') {
        rest = before.trim_end();
    }
    if rest.is_empty() { sql } else { rest }
}

/// `?` gets its number: a condition may be run in another place than where it
/// was written.
fn numbers(sql: &str) -> Vec<(usize, String)> {
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
            // A name takes a number too, where it is first used.
            None => {
                named.push(text);
                last += 1;
            }
        }
    }
    found
}
