//! A query's text in the one spelling that is parsed: blanks around calls,
//! parameters with numbers, a join with its ON. Places in it lead back to the
//! text as it was written.

use super::lexer::{Brackets, Lexeme, in_word, next};
use super::{Argument, Call, Kind, SqlError, scan, tree::Span};

/// A text and what was put into it.
#[derive(Debug, Clone)]
pub struct Spelled {
    /// The text that is parsed.
    pub text: String,
    /// Where something was put in, and how many bytes; in order.
    added: Vec<(usize, usize)>,
}

impl Spelled {
    /// Brings a query into the one spelling.
    ///
    /// # Errors
    /// [`SqlError`] when its calls cannot be read.
    pub fn of(sql: &str) -> Result<Self, SqlError> {
        let mut insertions: Vec<(usize, String)> = Vec::new();
        // A comment has no place in text that is put together from pieces.
        let uncommented = uncommented(sql);
        let sql = without_end(&uncommented);
        let calls = scan(sql)?;
        let word = |c: char| c.is_alphanumeric() || c == '_' || c == '$';
        for call in &calls {
            if sql[..call.span.start].ends_with(word) {
                insertions.push((call.span.start, " ".to_owned()));
            }
            if let Some(table) = joined(sql, call) {
                insertions
                    .push((call.span.start, format!("{} ON ", hqdl_values::sql::name(&table))));
            }
            if sql[call.span.end..].starts_with(word) {
                insertions.push((call.span.end, " ".to_owned()));
            }
        }
        insertions.extend(numbers(sql));
        insertions.sort_by_key(|(at, _)| *at);
        let mut spelled = Self { text: String::with_capacity(sql.len() + 16), added: Vec::new() };
        let mut at = 0;
        for (place, new) in insertions {
            spelled.text.push_str(&sql[at..place]);
            spelled.added.push((spelled.text.len(), new.len()));
            spelled.text.push_str(&new);
            at = place;
        }
        spelled.text.push_str(&sql[at..]);
        Ok(spelled)
    }

    /// The place in the text as it was written.
    #[must_use]
    pub fn place(&self, span: &Span) -> Span {
        self.offset(span.start)..self.offset(span.end)
    }

    fn offset(&self, at: usize) -> usize {
        let mut back = 0;
        for (place, length) in &self.added {
            if *place + *length <= at {
                back += length;
            } else if *place < at {
                back += at - place;
            }
        }
        at.saturating_sub(back)
    }
}

/// The text with blanks in the place of its comments. What cannot be read stays
/// as it is: whoever reads it next says why.
fn uncommented(sql: &str) -> String {
    let mut text = String::with_capacity(sql.len());
    let mut brackets = Brackets::Name;
    let mut at = 0;
    while let Ok(token) = next(sql, at, brackets) {
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

/// A statement without the semicolons at its end.
fn without_end(sql: &str) -> &str {
    let mut rest = sql.trim_end();
    while let Some(before) = rest.strip_suffix(';') {
        rest = before.trim_end();
    }
    if rest.is_empty() { sql } else { rest }
}

/// The table that a call joins, in the old spelling: `JOIN {{LLMJoin(…)}}`.
fn joined(sql: &str, call: &Call) -> Option<String> {
    if call.kind != Kind::Join {
        return None;
    }
    let before = sql[..call.span.start].trim_end();
    let cut = before.len().checked_sub(4)?;
    if !before.get(cut..)?.eq_ignore_ascii_case("join") {
        return None;
    }
    let tables: Vec<String> = call
        .values
        .iter()
        .filter_map(|v| match v {
            Argument::Column { table: Some(table), .. } => Some(table.clone()),
            Argument::Sql(span) => {
                let (table, column) = sql[span.clone()].split_once('.')?;
                let simple = |s: &str| s.chars().all(|c| c.is_alphanumeric() || c == '_');
                (simple(table) && simple(column)).then(|| table.to_owned())
            }
            _ => None,
        })
        .collect();
    let reads = |table: &str| {
        let from = before.to_lowercase();
        let from = from.rsplit("from").next().unwrap_or_default();
        from.split(|c: char| !(c.is_alphanumeric() || c == '_')).any(|w| w == table.to_lowercase())
    };
    tables.into_iter().rev().find(|t| !reads(t))
}

/// `?` gets its number: a condition may be run in another place than where it
/// was written.
fn numbers(sql: &str) -> Vec<(usize, String)> {
    let bytes = sql.as_bytes();
    let mut found = Vec::new();
    let (mut at, mut last) = (0, 0u32);
    let mut named: Vec<&str> = Vec::new();
    while at < bytes.len() {
        match bytes[at] {
            quote @ (b'\'' | b'"' | b'`') => {
                at += 1;
                while at < bytes.len() && bytes[at] != quote {
                    at += 1;
                }
            }
            b'[' => at += sql[at..].find(']').unwrap_or(0),
            b'-' if bytes.get(at + 1) == Some(&b'-') => {
                at += sql[at..].find('\n').unwrap_or(sql.len() - at - 1);
            }
            b'/' if bytes.get(at + 1) == Some(&b'*') => {
                at += sql[at + 2..].find("*/").map_or(sql.len() - at - 1, |n| n + 3);
            }
            // A name takes a number too, where it is first used.
            b':' | b'@' | b'$' if at == 0 || !(in_word(bytes[at - 1]) || bytes[at - 1] == b':') => {
                let length = bytes[at + 1..].iter().take_while(|b| in_word(**b)).count();
                let name = &sql[at..=at + length];
                if length > 0 && !named.contains(&name) {
                    named.push(name);
                    last += 1;
                }
            }
            b'?' => {
                let digits: String =
                    sql[at + 1..].chars().take_while(char::is_ascii_digit).collect();
                match digits.parse::<u32>() {
                    Ok(number) => last = last.max(number),
                    Err(_) => {
                        last += 1;
                        found.push((at + 1, last.to_string()));
                    }
                }
            }
            _ => {}
        }
        at += 1;
    }
    found
}
