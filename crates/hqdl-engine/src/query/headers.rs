//! Names result columns after the original query. `SQLite` names a column without an alias by the
//! text of its expression, but runs a rewritten text. A call is named by its question.

use std::ops::Range;

use rusqlite::types::ValueRef;

use super::Dialect;
use super::smoothie::Sink;
use hqdl_sql::blendsql::lexer::{self, Brackets, Lexeme, Token};

/// Header of a result column.
#[derive(Debug, Clone, PartialEq, Eq)]
enum WrittenHeader {
    /// Its text in the query, or the question of a call.
    Written(String),
    /// The name that `SQLite` returns: an alias or the name of a column.
    AsItRuns,
    /// `*`, which expands to any number of columns.
    Star,
}

/// Sink that renames result columns according to the original query.
pub(super) struct WrittenHeaders<'s> {
    sink: &'s mut dyn Sink,
    headers: Vec<WrittenHeader>,
}

impl<'s> WrittenHeaders<'s> {
    /// Reads the headers of a query before it is rewritten.
    pub(super) fn of(sql: &str, dialect: Dialect, sink: &'s mut dyn Sink) -> Self {
        Self { sink, headers: headers(sql, dialect).unwrap_or_default() }
    }
}

impl Sink for WrittenHeaders<'_> {
    fn columns(&mut self, names: &[String]) -> std::io::Result<()> {
        let mut named = names.to_vec();
        let stars = self.headers.iter().filter(|h| **h == WrittenHeader::Star).count();
        let same = if stars == 0 {
            self.headers.len() == named.len()
        } else {
            self.headers.len() - stars <= named.len()
        };
        if same {
            // Columns before the first star are matched from the left, those after the last star
            // from the right. Columns between two stars keep their names.
            let written = |header: &WrittenHeader| match header {
                WrittenHeader::Written(name) => Some(name.clone()),
                WrittenHeader::AsItRuns | WrittenHeader::Star => None,
            };
            let left = self.headers.iter().take_while(|h| **h != WrittenHeader::Star);
            for (name, header) in named.iter_mut().zip(left) {
                written(header).into_iter().for_each(|written| *name = written);
            }
            if stars > 0 {
                let right = self.headers.iter().rev().take_while(|h| **h != WrittenHeader::Star);
                for (name, header) in named.iter_mut().rev().zip(right) {
                    written(header).into_iter().for_each(|written| *name = written);
                }
            }
        }
        self.sink.columns(&named)
    }

    fn row(&mut self, row: &[ValueRef<'_>]) -> std::io::Result<()> {
        self.sink.row(row)
    }

    fn finish(&mut self) -> std::io::Result<()> {
        self.sink.finish()
    }
}

/// Keywords that end the list of result columns.
const ENDS: [&str; 11] = [
    "FROM",
    "WHERE",
    "GROUP",
    "HAVING",
    "WINDOW",
    "ORDER",
    "LIMIT",
    "OFFSET",
    "UNION",
    "INTERSECT",
    "EXCEPT",
];
/// Keywords that cannot be followed by an alias, and that are not an alias after an operand.
const OPERATORS: [&str; 19] = [
    "AND", "BETWEEN", "COLLATE", "DISTINCT", "ELSE", "ESCAPE", "FROM", "GLOB", "ILIKE", "IN", "IS",
    "LIKE", "MATCH", "NOT", "OR", "REGEXP", "SELECT", "THEN", "WHEN",
];
/// Further keywords that are not an alias.
const NO_ALIAS: [&str; 3] = ["END", "ISNULL", "NOTNULL"];

/// Returns the headers of the first SELECT of a query; `None` if the query starts differently.
fn headers(sql: &str, dialect: Dialect) -> Option<Vec<WrittenHeader>> {
    let brackets = if dialect == Dialect::Suql { Brackets::List } else { Brackets::Name };
    let mut tokens: Vec<Token> = Vec::new();
    while let Some(token) = lexer::next(sql, tokens.last().map_or(0, |t| t.end), brackets).ok()? {
        tokens.push(token);
    }
    let word = |token: &Token, words: &[&str]| words.iter().any(|w| token.is_word(sql, w));
    if !word(tokens.first()?, &["SELECT", "WITH"]) {
        return None;
    }
    let mut depth = 0_usize;
    let mut items: Vec<Range<usize>> = Vec::new();
    let mut begin: Option<usize> = None;
    for (n, token) in tokens.iter().enumerate() {
        match token.lexeme {
            Lexeme::Symbol(b'(' | b'[' | b'{') | Lexeme::Open => depth += 1,
            Lexeme::Symbol(b')' | b']' | b'}') | Lexeme::Close => depth = depth.checked_sub(1)?,
            _ if depth > 0 => {}
            Lexeme::Symbol(b',') => {
                if let Some(from) = begin {
                    items.push(from..n);
                    begin = Some(n + 1);
                }
            }
            Lexeme::Symbol(b';') => break,
            _ => match begin {
                None if token.is_word(sql, "SELECT") => begin = Some(n + 1),
                Some(from) if from == n && word(token, &["DISTINCT", "ALL"]) => {
                    // `DISTINCT ON (…)` has its expressions in parentheses.
                    if tokens.get(n + 1).is_some_and(|t| t.is_word(sql, "ON")) {
                        return None;
                    }
                    begin = Some(n + 1);
                }
                Some(from) if from < n && word(token, &ENDS) => {
                    let compared = token.is_word(sql, "FROM")
                        && tokens.get(n - 1).is_some_and(|t| t.is_word(sql, "DISTINCT"));
                    if !compared {
                        items.push(from..n);
                        begin = None;
                        break;
                    }
                }
                _ => {}
            },
        }
    }
    if let Some(from) = begin {
        let end = tokens.iter().position(|t| t.is(b';')).unwrap_or(tokens.len());
        items.push(from..end);
    }
    items.into_iter().map(|item| header(sql, tokens.get(item)?, dialect)).collect()
}

/// Returns the header of the result column with these tokens.
fn header(sql: &str, item: &[Token], dialect: Dialect) -> Option<WrittenHeader> {
    let (first, last) = (item.first()?, item.last()?);
    if last.is(b'*') && matches!(item.len(), 1 | 3 | 5) {
        return Some(WrittenHeader::Star);
    }
    let text = sql.get(first.start..last.end)?;
    let names_column = item.iter().enumerate().all(|(n, token)| match n % 2 {
        0 => matches!(token.lexeme, Lexeme::Word | Lexeme::Quoted | Lexeme::Name),
        _ => token.is(b'.') || token.lexeme == Lexeme::Colons && dialect == Dialect::Sqlite,
    });
    if names_column || is_aliased(sql, item, dialect) {
        return Some(WrittenHeader::AsItRuns);
    }
    // A call is named by its question, if it has one.
    if first.lexeme == Lexeme::Open && closes(item) {
        let question = question(sql, item);
        return Some(WrittenHeader::Written(question.unwrap_or_else(|| text.to_owned())));
    }
    let alone = item.get(1).is_some_and(|t| t.is(b'(')) && closes(item.get(1..)?);
    if ["answer", "unnest"].iter().any(|w| first.is_word(sql, w)) && alone {
        return Some(WrittenHeader::AsItRuns);
    }
    Some(WrittenHeader::Written(text.to_owned()))
}

/// Returns whether the first bracket is closed by the last token.
fn closes(item: &[Token]) -> bool {
    let mut depth = 0_usize;
    for (n, token) in item.iter().enumerate() {
        match token.lexeme {
            Lexeme::Symbol(b'(' | b'[' | b'{') | Lexeme::Open => depth += 1,
            Lexeme::Symbol(b')' | b']' | b'}') | Lexeme::Close => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return n + 1 == item.len();
                }
            }
            _ => {}
        }
    }
    false
}

fn is_aliased(sql: &str, item: &[Token], dialect: Dialect) -> bool {
    let [.., before, last] = item else { return false };
    if before.is_word(sql, "AS") {
        return true;
    }
    let is_name = match last.lexeme {
        Lexeme::Word => !NO_ALIAS.iter().chain(&OPERATORS).any(|w| last.is_word(sql, w)),
        Lexeme::Quoted | Lexeme::Name => true,
        Lexeme::Text => dialect == Dialect::Sqlite,
        _ => false,
    };
    let operand = match before.lexeme {
        Lexeme::Word => !OPERATORS.iter().any(|w| before.is_word(sql, w)),
        Lexeme::Symbol(symbol) => matches!(symbol, b')' | b']'),
        Lexeme::Colons | Lexeme::Open => false,
        _ => true,
    };
    is_name && operand
}

/// Returns the question of a call in braces: its first text, or its `question` argument.
fn question(sql: &str, call: &[Token]) -> Option<String> {
    let [_, name, paren, arguments @ ..] = call else { return None };
    // Calls of the spec's own ingredients and captions contain no question.
    let asks = ["LLM", "VQA", "RAGQA", "DocumentSearch", "MultiLabelMap"];
    let name = name.text(sql);
    let known = name.to_ascii_lowercase().starts_with("llm")
        || asks.iter().any(|known| name.eq_ignore_ascii_case(known));
    if !known || !paren.is(b'(') || name.eq_ignore_ascii_case("LLMJoin") {
        return None;
    }
    let named = arguments.windows(3).find_map(|three| match three {
        [keyword, equals, text] if keyword.is_word(sql, "question") && equals.is(b'=') => {
            Some(text)
        }
        _ => None,
    });
    let text = named.or(arguments.first())?;
    let text = matches!(text.lexeme, Lexeme::Text | Lexeme::Quoted).then(|| text.content(sql))?;
    Some(text).filter(|text| !text.trim().is_empty())
}
