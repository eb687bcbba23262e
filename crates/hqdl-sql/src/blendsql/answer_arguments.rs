//! Parses the arguments that describe a call's answer: `return_type`, `quantifier`, `regex`,
//! `example_outputs`.

use serde_json::Value as Json;

use super::argument::{is_null_word, token_span};
use super::lexer::{Token, TokenKind};
use super::{Choices, Quantifier, ReturnType, SqlError, choices};
use hqdl_values::Type;

const TYPES: &str = "the types are str, int, float, bool, date, and lists such as list[str]";

impl ReturnType {
    /// Help text that lists the supported types.
    pub const SYNTAX_HELP: &str = TYPES;

    /// Parses a type name: `bool`, `int`, `float`, `str`, `date`, or a list of such a type, such as
    /// `list[str]`. Returns `None` for any other text.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let compact: String =
            text.chars().filter(|c| !c.is_whitespace()).flat_map(char::to_lowercase).collect();
        let (name, list) = match compact.strip_prefix("list") {
            Some("") => ("str", true),
            Some(item) => match item.strip_prefix('[').and_then(|i| i.strip_suffix(']')) {
                Some(item) => (item, true),
                None => (compact.as_str(), false),
            },
            None => (compact.as_str(), false),
        };
        let scalar =
            Type::ALL.into_iter().find(|scalar_type| scalar_type.call_names().contains(&name))?;
        Some(Self { scalar, is_list: list })
    }
}

/// Parses `return_type=`, quoted or unquoted. Returns `None` for Python's `None` and SQL's NULL.
pub(super) fn parse_return_type(
    sql: &str,
    tokens: &[Token],
) -> Result<Option<ReturnType>, SqlError> {
    if is_null_word(sql, tokens) {
        return Ok(None);
    }
    reject_parameter(tokens, "the return type", TYPES)?;
    let text = match tokens {
        [text] => text.unquoted_text(sql),
        _ => sql.get(token_span(tokens)).unwrap_or_default().to_owned(),
    };
    match ReturnType::parse(&text) {
        Some(return_type) => Ok(Some(return_type)),
        None => Err(SqlError::new(
            token_span(tokens),
            format!("`{}` is not a return type", text.trim()),
            "not a type",
        )
        .with_help(TYPES)),
    }
}

pub(super) fn parse_quantifier(
    sql: &str,
    tokens: &[Token],
) -> Result<Option<Quantifier>, SqlError> {
    const FORMS: &str = "write '{2}', '{1,3}', '{1,}', '+', '*' or '?'";
    if is_null_word(sql, tokens) {
        return Ok(None);
    }
    reject_parameter(tokens, "the quantifier", FORMS)?;
    let invalid = || {
        SqlError::new(token_span(tokens), "hqdl cannot parse the quantifier", "not a quantifier")
            .with_help(FORMS)
    };
    let content = parse_string_content(sql, tokens).ok_or_else(invalid)?;
    let found = match content.trim() {
        "*" => Quantifier { min: 0, max: None },
        "+" => Quantifier { min: 1, max: None },
        "?" => Quantifier { min: 0, max: Some(1) },
        braced => parse_braced_bounds(braced).ok_or_else(invalid)?,
    };
    if found.max.is_some_and(|max| max < found.min) {
        return Err(SqlError::new(
            token_span(tokens),
            "the minimum of the quantifier is greater than its maximum",
            "no number of answers fits",
        ));
    }
    Ok(Some(found))
}

/// Parses `{2}`, `{1,3}`, `{1,}` or `{,3}`. Returns `None` for any other text.
fn parse_braced_bounds(braced: &str) -> Option<Quantifier> {
    let inside = braced.strip_prefix('{')?.strip_suffix('}')?;
    let count = |digits: &str| match digits.trim() {
        digits if digits.bytes().all(|b| b.is_ascii_digit()) => digits.parse().ok(),
        _ => None,
    };
    let Some((min, max)) = inside.split_once(',') else {
        let exactly = count(inside)?;
        return Some(Quantifier { min: exactly, max: Some(exactly) });
    };
    match (min.trim(), max.trim()) {
        ("", "") => None,
        ("", max) => Some(Quantifier { min: 0, max: Some(count(max)?) }),
        (min, "") => Some(Quantifier { min: count(min)?, max: None }),
        (min, max) => Some(Quantifier { min: count(min)?, max: Some(count(max)?) }),
    }
}

/// Parses an argument that must be a string. Returns `None` for Python's `None` and SQL's NULL.
pub(super) fn parse_string(
    sql: &str,
    tokens: &[Token],
    noun: &str,
) -> Result<Option<String>, SqlError> {
    if is_null_word(sql, tokens) {
        return Ok(None);
    }
    reject_parameter(tokens, noun, "write it into the query as a text: '…'")?;
    match parse_string_content(sql, tokens) {
        Some(text) => Ok(Some(text)),
        None => {
            Err(SqlError::new(token_span(tokens), format!("{noun} is not a text"), "expected '…'")
                .with_help(format!("write {noun} as a text in single quotes: '…'")))
        }
    }
}

/// Parses `example_outputs=` into an instruction to the model. Returns `None` for Python's `None`
/// and SQL's NULL.
pub(super) fn parse_examples(sql: &str, tokens: &[Token]) -> Result<Option<String>, SqlError> {
    let values = match choices::parse_choices(sql, tokens) {
        Ok(None) => return Ok(None),
        Ok(Some(Choices::List(values))) => values,
        _ => {
            return Err(SqlError::new(
                token_span(tokens),
                "hqdl cannot parse the examples of answers",
                "expected texts or numbers",
            )
            .with_help("write example_outputs=('…', '…')"));
        }
    };
    let values: Vec<String> = values.iter().map(ToString::to_string).collect();
    Ok(Some(format!("Answers look like these: {}.", values.join("; "))))
}

/// Parses `examples=` into an instruction to the model: a list of pairs, a dictionary, or a list of
/// dictionaries with `value` and `answer`. Returns `None` if there are no examples.
pub(super) fn parse_answered_examples(
    sql: &str,
    tokens: &[Token],
) -> Result<Option<String>, SqlError> {
    if is_null_word(sql, tokens) {
        return Ok(None);
    }
    let pairs =
        parse_python_literal(sql, tokens).and_then(|examples| read_example_pairs(&examples));
    let Some(pairs) = pairs else {
        return Err(SqlError::new(
            token_span(tokens),
            "hqdl cannot parse the examples",
            "expected values with their answers",
        )
        .with_help("write examples=[('value', 'answer'), …] or examples={'value': 'answer', …}"));
    };
    if pairs.is_empty() {
        return Ok(None);
    }
    let pairs: Vec<String> =
        pairs.iter().map(|(value, answer)| format!("{value} has the answer {answer}")).collect();
    Ok(Some(format!("Examples: {}.", pairs.join("; "))))
}

/// Returns the value and the answer of each example, as JSON. Returns `None` if an example has a
/// different structure.
fn read_example_pairs(examples: &Json) -> Option<Vec<(String, String)>> {
    let pair = |value: &Json, answer: &Json| {
        let is_answer = !answer.is_object() && !answer.is_null();
        is_answer.then(|| (value.to_string(), answer.to_string()))
    };
    match examples {
        Json::Object(fields) => {
            let pairs = fields.iter().map(|(value, answer)| pair(&value.as_str().into(), answer));
            pairs.collect()
        }
        Json::Array(items) => {
            let pairs = items.iter().map(|item| match item {
                Json::Array(parts) => match parts.as_slice() {
                    [value, answer] => pair(value, answer),
                    _ => None,
                },
                Json::Object(fields) if fields.len() == 2 => {
                    pair(fields.get("value")?, fields.get("answer")?)
                }
                _ => None,
            });
            pairs.collect()
        }
        _ => None,
    }
}

/// Parses a Python or JSON literal; a tuple becomes a list. Returns `None` for anything else.
fn parse_python_literal(sql: &str, tokens: &[Token]) -> Option<Json> {
    let mut json = String::new();
    for (token, next) in tokens.iter().zip(tokens.iter().skip(1).map(Some).chain([None])) {
        let closes = |next: &Token| [b')', b']', b'}'].into_iter().any(|b| next.is_symbol(b));
        match token.lexeme {
            TokenKind::Text | TokenKind::Quoted => {
                json.push_str(&Json::from(token.unquoted_text(sql)).to_string());
            }
            TokenKind::Symbol(b'(') => json.push('['),
            TokenKind::Symbol(b')') => json.push(']'),
            // A comma before a closing bracket is allowed.
            TokenKind::Symbol(b',') if next.is_some_and(closes) => {}
            TokenKind::Word if token.is_word(sql, "None") => json.push_str("null"),
            _ => json.push_str(&token.text(sql).to_ascii_lowercase()),
        }
    }
    serde_json::from_str(&json).ok()
}

/// Returns true if the value is `True` or `1`, with or without quotes.
pub(super) fn is_true(sql: &str, tokens: &[Token]) -> bool {
    matches!(tokens, [only] if ["true", "1"].contains(&only.unquoted_text(sql).to_lowercase().as_str()))
}

pub(super) fn parse_boolean(sql: &str, tokens: &[Token], noun: &str) -> Result<bool, SqlError> {
    let is_false = matches!(tokens, [only] if ["false", "0"].contains(&only.unquoted_text(sql).to_lowercase().as_str()));
    if is_true(sql, tokens) || is_false || is_null_word(sql, tokens) {
        return Ok(is_true(sql, tokens));
    }
    Err(SqlError::new(
        token_span(tokens),
        format!("`{noun}` is not a boolean"),
        "expected true or false",
    ))
}

/// Returns true if the value is empty: `None`, `0` or `[]`.
pub(super) fn is_empty_value(sql: &str, tokens: &[Token]) -> bool {
    is_null_word(sql, tokens)
        || matches!(tokens, [only] if only.text(sql) == "0")
        || matches!(tokens, [open, close] if open.is_symbol(b'[') && close.is_symbol(b']'))
}

/// Returns true if `return_type=` requires the answer to be a substring of the document.
pub(super) fn is_substring(sql: &str, tokens: &[Token]) -> bool {
    matches!(tokens, [only] if only.unquoted_text(sql).eq_ignore_ascii_case("substring"))
}

pub(super) fn parse_narrow(sql: &str, tokens: &[Token]) -> Result<Option<u32>, SqlError> {
    if is_null_word(sql, tokens) {
        return Ok(None);
    }
    let digits = sql.get(token_span(tokens)).unwrap_or_default();
    match digits.parse() {
        Ok(0) | Err(_) => {
            let message = match digits {
                "0" => "`narrow` is 0",
                _ => "`narrow` is not a whole number",
            };
            Err(SqlError::new(token_span(tokens), message, "expected 1 or more").with_help(
                "the model sees this many of the right column's values, the most similar ones; without `narrow` it sees all",
            ))
        }
        Ok(count) => Ok(Some(count)),
    }
}

fn parse_string_content(sql: &str, tokens: &[Token]) -> Option<String> {
    match tokens {
        [text] if matches!(text.lexeme, TokenKind::Text | TokenKind::Quoted) => {
            Some(text.unquoted_text(sql))
        }
        _ => None,
    }
}

/// Fails if the argument is an SQL parameter. The request depends on the argument, so its value
/// must be known before the query runs.
fn reject_parameter(tokens: &[Token], noun: &str, help: &str) -> Result<(), SqlError> {
    match tokens.first() {
        Some(first) if first.lexeme == TokenKind::Parameter => Err(SqlError::new(
            first.span(),
            format!("{noun} cannot be a parameter"),
            "write the value into the query",
        )
        .with_help(help)),
        _ => Ok(()),
    }
}
