//! Rewrites `TRY_CAST(x AS type)`, which `SQLite` lacks, as `CAST(hq_try_cast(x, 'type') AS …)`. The
//! function converts the value or returns NULL, and the cast around it gives comparisons the type.

use crate::blendsql::SqlError;
use crate::blendsql::lexer::{self, Brackets, Token, TokenKind};
use crate::blendsql::runtime::TRY_CAST_FUNCTION;
use crate::translated::{Edits, TranslatedQuery};

/// Type of a `TRY_CAST`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TryCastType {
    /// Whole numbers of 64 bits.
    Integer,
    /// Numbers.
    Real,
    /// 1 and 0, for true and false.
    Boolean,
    /// Dates `YYYY-MM-DD`.
    Date,
    /// Times `YYYY-MM-DD HH:MM:SS`.
    Timestamp,
    /// Texts.
    Text,
}

/// Types with the names that engines use, and the type of `SQLite`'s cast.
const TYPES: [(TryCastType, &str, &[&str]); 6] = [
    (
        TryCastType::Integer,
        "INTEGER",
        &["integer", "int", "bigint", "smallint", "tinyint", "int64", "int32", "long", "short"],
    ),
    (TryCastType::Real, "REAL", &["real", "float", "double", "double precision", "float64"]),
    (TryCastType::Boolean, "BOOLEAN", &["boolean", "bool", "logical"]),
    (TryCastType::Date, "TEXT", &["date"]),
    (TryCastType::Timestamp, "TEXT", &["timestamp", "datetime"]),
    (TryCastType::Text, "TEXT", &["text", "varchar", "string", "char", "character varying"]),
];

impl TryCastType {
    /// Returns the type with this name, in lower case.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        TYPES.iter().find(|(.., names)| names.contains(&name)).map(|(found, ..)| *found)
    }
}

/// Returns true if a query contains `TRY_CAST` or `SAFE_CAST`.
#[must_use]
pub fn has_try_cast(sql: &str) -> bool {
    read_tokens(sql).iter().any(|t| t.is_word(sql, "TRY_CAST") || t.is_word(sql, "SAFE_CAST"))
}

/// Returns the tokens of a query. The parser reports the error of a text that cannot be read.
fn read_tokens(sql: &str) -> Vec<Token> {
    let mut tokens: Vec<Token> = Vec::new();
    while let Ok(Some(token)) =
        lexer::next_token(sql, tokens.last().map_or(0, |t| t.end), Brackets::Name)
    {
        tokens.push(token);
    }
    tokens
}

/// Rewrites the calls of `TRY_CAST` in a query, and those of `SAFE_CAST` if `has_safe_cast` is true.
/// Returns `None` if there are none.
///
/// # Errors
/// Returns [`SqlError`] for a type that hqdl does not know.
pub fn rewrite_try_casts(
    sql: &str,
    has_safe_cast: bool,
) -> Result<Option<TranslatedQuery>, SqlError> {
    let tokens = read_tokens(sql);
    let mut edits = Edits::default();
    for (n, token) in tokens.iter().enumerate() {
        let is_cast =
            token.is_word(sql, "TRY_CAST") || has_safe_cast && token.is_word(sql, "SAFE_CAST");
        let is_member = n.checked_sub(1).is_some_and(|before| tokens[before].is_symbol(b'.'));
        let [paren, inside @ ..] = &tokens[n + 1..] else { break };
        if !is_cast || is_member || !paren.is_symbol(b'(') {
            continue;
        }
        let Some((word, name)) = find_type(sql, inside) else { continue };
        let (cast_type, sqlite_type) = read_type(sql, word, name)?;
        edits.replace(token.start..paren.end, format!("CAST({TRY_CAST_FUNCTION}("));
        let end = name.last().map_or(word.end, |last| last.end);
        edits.replace(word.start..end, format!(", '{cast_type}') AS {sqlite_type}"));
    }
    if edits.is_empty() { Ok(None) } else { Ok(Some(edits.apply_to(sql)?)) }
}

/// Returns the last AS before the matching `)`, and the type after it. `tokens` follow the `(`.
fn find_type<'t>(sql: &str, tokens: &'t [Token]) -> Option<(Token, &'t [Token])> {
    let (mut depth, mut word) = (0_usize, None);
    for (n, token) in tokens.iter().enumerate() {
        match token.lexeme {
            TokenKind::Symbol(b'(') | TokenKind::Open => depth += 1,
            TokenKind::Symbol(b')') | TokenKind::Close if depth == 0 => {
                let word: usize = word?;
                return Some((tokens[word], &tokens[word + 1..n]));
            }
            TokenKind::Symbol(b')') | TokenKind::Close => depth -= 1,
            _ if depth == 0 && token.is_word(sql, "AS") => word = Some(n),
            _ => {}
        }
    }
    None
}

/// Returns the first name of the type, and the type of `SQLite`'s cast.
fn read_type(
    sql: &str,
    word: Token,
    tokens: &[Token],
) -> Result<(&'static str, &'static str), SqlError> {
    let words: Vec<String> =
        tokens.iter().map(|token| token.unquoted_text(sql).to_ascii_lowercase()).collect();
    let name = words.join(" ");
    let written = match tokens {
        [first, .., last] => sql.get(first.start..last.end).unwrap_or_default(),
        _ => name.as_str(),
    };
    let found = TYPES.iter().find(|(.., names)| names.contains(&name.as_str()));
    found.map(|(_, cast, names)| (names[0], *cast)).ok_or_else(|| {
        let span = word.start..tokens.last().map_or(word.end, |last| last.end);
        let message = match name.as_str() {
            "" => "TRY_CAST has no type".to_owned(),
            _ => format!("TRY_CAST has no type `{written}`"),
        };
        let error = SqlError::new(span, message, "not a type of TRY_CAST");
        error.with_help(if name.contains('(') {
            "leave out the length or the precision: ROUND(TRY_CAST(x AS REAL), 2)"
        } else {
            "the types are INTEGER, REAL, BOOLEAN, DATE, TIMESTAMP and TEXT"
        })
    })
}
