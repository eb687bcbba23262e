//! Names result columns after the original query. `SQLite` names a column without an alias after
//! the text of its expression, but hqdl rewrites the text that `SQLite` runs. The column of a call
//! is named after its question.

use std::ops::Range;

use rusqlite::types::ValueRef;

use crate::query::request::dialect::Dialect;
use crate::query::result::query_result::RowSink;
use hqdl_sql::blendsql::lexer::{self, Brackets, Token, TokenKind};

/// Header of a result column.
#[derive(Debug, Clone, PartialEq, Eq)]
enum SourceHeader {
    /// Source text of the column, or the question of a call.
    Text(String),
    /// The name that `SQLite` returns: an alias or the name of a column.
    FromSqlite,
    /// `*`, which expands to any number of columns.
    Star,
}

/// Sink that renames result columns according to the original query.
pub(in crate::query) struct SourceHeaders<'s> {
    sink: &'s mut dyn RowSink,
    headers: Vec<SourceHeader>,
}

impl<'s> SourceHeaders<'s> {
    /// Reads the headers of a query before the query is rewritten.
    pub(in crate::query) fn new(sql: &str, dialect: Dialect, sink: &'s mut dyn RowSink) -> Self {
        Self { sink, headers: parse_headers(sql, dialect).unwrap_or_default() }
    }
}

impl RowSink for SourceHeaders<'_> {
    fn write_columns(&mut self, names: &[String]) -> std::io::Result<()> {
        let mut renamed = names.to_vec();
        let stars = self.headers.iter().filter(|h| **h == SourceHeader::Star).count();
        let is_matching = if stars == 0 {
            self.headers.len() == renamed.len()
        } else {
            self.headers.len() - stars <= renamed.len()
        };
        if is_matching {
            // Match the columns before the first star from the left, and the columns after the last
            // star from the right. Columns between two stars keep their names.
            let source_text = |header: &SourceHeader| match header {
                SourceHeader::Text(name) => Some(name.clone()),
                SourceHeader::FromSqlite | SourceHeader::Star => None,
            };
            let left = self.headers.iter().take_while(|h| **h != SourceHeader::Star);
            for (name, header) in renamed.iter_mut().zip(left) {
                source_text(header).into_iter().for_each(|written| *name = written);
            }
            if stars > 0 {
                let right = self.headers.iter().rev().take_while(|h| **h != SourceHeader::Star);
                for (name, header) in renamed.iter_mut().rev().zip(right) {
                    source_text(header).into_iter().for_each(|written| *name = written);
                }
            }
        }
        self.sink.write_columns(&renamed)
    }

    fn write_row(&mut self, row: &[ValueRef<'_>]) -> std::io::Result<()> {
        self.sink.write_row(row)
    }

    fn finish(&mut self) -> std::io::Result<()> {
        self.sink.finish()
    }
}

/// Keywords that end the list of result columns.
const END_KEYWORDS: [&str; 11] = [
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
/// Keywords that cannot be followed by an alias and cannot be aliases themselves.
const OPERATORS: [&str; 19] = [
    "AND", "BETWEEN", "COLLATE", "DISTINCT", "ELSE", "ESCAPE", "FROM", "GLOB", "ILIKE", "IN", "IS",
    "LIKE", "MATCH", "NOT", "OR", "REGEXP", "SELECT", "THEN", "WHEN",
];
/// Other keywords that are never an alias.
const NO_ALIAS: [&str; 3] = ["END", "ISNULL", "NOTNULL"];

/// Returns the headers of the first SELECT of a query; `None` if the query does not begin with
/// SELECT or WITH, or has an invalid token, such as a string of another dialect.
fn parse_headers(sql: &str, dialect: Dialect) -> Option<Vec<SourceHeader>> {
    let brackets = if dialect == Dialect::Sqlite { Brackets::Name } else { Brackets::List };
    let (mut tokens, mut at): (Vec<Token>, usize) = (Vec::new(), 0);
    while let Some(token) = lexer::next_token(sql, at, brackets).ok()? {
        at = token.end;
        tokens.push(token);
    }
    let is_one_of =
        |token: &Token, keywords: &[&str]| keywords.iter().any(|w| token.is_word(sql, w));
    if !is_one_of(tokens.first()?, &["SELECT", "WITH"]) {
        return None;
    }
    let mut depth = 0_usize;
    let mut items: Vec<Range<usize>> = Vec::new();
    let mut begin: Option<usize> = None;
    for (n, token) in tokens.iter().enumerate() {
        match token.lexeme {
            TokenKind::Symbol(b'(' | b'[' | b'{') | TokenKind::Open => depth += 1,
            TokenKind::Symbol(b')' | b']' | b'}') | TokenKind::Close => {
                depth = depth.checked_sub(1)?;
            }
            _ if depth > 0 => {}
            TokenKind::Symbol(b',') => {
                if let Some(from) = begin {
                    items.push(from..n);
                    begin = Some(n + 1);
                }
            }
            TokenKind::Symbol(b';') => break,
            _ => match begin {
                None if token.is_word(sql, "SELECT") => begin = Some(n + 1),
                Some(from) if from == n && is_one_of(token, &["DISTINCT", "ALL"]) => {
                    // `DISTINCT ON (…)` contains expressions in parentheses.
                    if tokens.get(n + 1).is_some_and(|t| t.is_word(sql, "ON")) {
                        return None;
                    }
                    begin = Some(n + 1);
                }
                Some(from) if from < n && is_one_of(token, &END_KEYWORDS) => {
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
        let end = tokens.iter().position(|t| t.is_symbol(b';')).unwrap_or(tokens.len());
        items.push(from..end);
    }
    items.into_iter().map(|item| parse_header(sql, tokens.get(item)?, dialect)).collect()
}

/// Returns the header of the result column with these tokens.
fn parse_header(sql: &str, item: &[Token], dialect: Dialect) -> Option<SourceHeader> {
    let (first, last) = (item.first()?, item.last()?);
    let is_member = item.iter().nth_back(1).is_some_and(|dot| dot.is_symbol(b'.'));
    if last.is_symbol(b'*') && (item.len() == 1 || is_member) {
        return Some(SourceHeader::Star);
    }
    let text = sql.get(first.start..last.end)?;
    let names_column = item.iter().enumerate().all(|(n, token)| match n % 2 {
        0 => matches!(token.lexeme, TokenKind::Word | TokenKind::Quoted | TokenKind::Name),
        _ => token.is_symbol(b'.'),
    });
    if names_column || has_alias(sql, item, dialect) {
        return Some(SourceHeader::FromSqlite);
    }
    // A field that is selected from a call, as in `{{…}}.name`, names the column.
    if is_member
        && first.lexeme == TokenKind::Open
        && is_enclosed_in_brackets(&item[..item.len() - 2])
    {
        return Some(SourceHeader::Text(last.unquoted_text(sql)));
    }
    // If a call has a question, the question names the column.
    if first.lexeme == TokenKind::Open && is_enclosed_in_brackets(item) {
        let question = parse_call_question(sql, item);
        return Some(SourceHeader::Text(question.unwrap_or_else(|| text.to_owned())));
    }
    let is_single_call =
        item.get(1).is_some_and(|t| t.is_symbol(b'(')) && is_enclosed_in_brackets(item.get(1..)?);
    if ["answer", "unnest"].iter().any(|w| first.is_word(sql, w)) && is_single_call {
        return Some(SourceHeader::FromSqlite);
    }
    Some(SourceHeader::Text(text.to_owned()))
}

/// Returns true if the last token closes the bracket that the first token opens.
fn is_enclosed_in_brackets(item: &[Token]) -> bool {
    let mut depth = 0_usize;
    for (n, token) in item.iter().enumerate() {
        match token.lexeme {
            TokenKind::Symbol(b'(' | b'[' | b'{') | TokenKind::Open => depth += 1,
            TokenKind::Symbol(b')' | b']' | b'}') | TokenKind::Close => {
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

fn has_alias(sql: &str, item: &[Token], dialect: Dialect) -> bool {
    let [.., before, last] = item else { return false };
    if before.is_word(sql, "AS") {
        return true;
    }
    let is_name = match last.lexeme {
        TokenKind::Word => !NO_ALIAS.iter().chain(&OPERATORS).any(|w| last.is_word(sql, w)),
        TokenKind::Quoted | TokenKind::Name => true,
        TokenKind::Text => dialect == Dialect::Sqlite,
        _ => false,
    };
    let operand = match before.lexeme {
        TokenKind::Word => !OPERATORS.iter().any(|w| before.is_word(sql, w)),
        TokenKind::Symbol(symbol) => matches!(symbol, b')' | b']'),
        TokenKind::Colons | TokenKind::Open => false,
        _ => true,
    };
    is_name && operand
}

/// Returns the question of a call in braces: its first text, or its `question` argument. A question
/// that is computed from several texts is returned as written.
fn parse_call_question(sql: &str, call: &[Token]) -> Option<String> {
    let [_, name, paren, arguments @ ..] = call else { return None };
    // Calls of the spec's own ingredients, and captions, contain no question.
    let asking_ingredients = ["LLM", "VQA", "RAGQA", "DocumentSearch", "MultiLabelMap"];
    let name = name.text(sql);
    let is_known = name.to_ascii_lowercase().starts_with("llm")
        || asking_ingredients.iter().any(|known| name.eq_ignore_ascii_case(known));
    if !is_known || !paren.is_symbol(b'(') || name.eq_ignore_ascii_case("LLMJoin") {
        return None;
    }
    let renamed = arguments.windows(3).position(|three| match three {
        [keyword, equals, text] => {
            keyword.is_word(sql, "question")
                && equals.is_symbol(b'=')
                && matches!(text.lexeme, TokenKind::Text | TokenKind::Quoted)
        }
        _ => false,
    });
    let question = arguments.get(renamed.map_or(0, |keyword| keyword + 2)..)?;
    let text =
        question.first().filter(|t| matches!(t.lexeme, TokenKind::Text | TokenKind::Quoted))?;
    let text = if question.get(1).is_some_and(|next| next.is_symbol(b'|')) {
        let mut depth = 0_usize;
        let last = question.iter().take_while(|token| {
            match token.lexeme {
                TokenKind::Symbol(b'(' | b'[' | b'{') | TokenKind::Open => depth += 1,
                TokenKind::Symbol(b')' | b']' | b'}') | TokenKind::Close if depth == 0 => {
                    return false;
                }
                TokenKind::Symbol(b')' | b']' | b'}') | TokenKind::Close => depth -= 1,
                _ => {}
            }
            depth > 0 || !token.is_symbol(b',')
        });
        sql.get(text.start..last.last()?.end)?.to_owned()
    } else {
        text.unquoted_text(sql)
    };
    Some(text).filter(|text| !text.trim().is_empty())
}
