//! Parses `options=`: a list, a column, a query, or a function that returns a list for each row.

use super::argument::{
    bare_query_error, begins_query, is_name, is_null_word, parse_legacy_column, strip_parens,
    token_span,
};
use super::lexer::{Token, TokenKind};
use super::{Choices, SqlError};
use hqdl_values::value::Value;

const HELP: &str =
    "options are a list ('a', 'b'), a column t.c, a query (SELECT …), or for each row search(…)";

/// Parses the value of `options=`. Returns `None` for `None` and `NULL`.
pub(super) fn parse_choices(sql: &str, tokens: &[Token]) -> Result<Option<Choices>, SqlError> {
    if is_null_word(sql, tokens) {
        return Ok(None);
    }
    if begins_query(sql, tokens) {
        return Err(bare_query_error(tokens));
    }
    if let [open, items @ .., close] = tokens
        && open.is_symbol(b'[')
        && close.is_symbol(b']')
    {
        return parse_list(sql, tokens, items).map(Some);
    }
    let (layers, inside) = strip_parens(tokens);
    if layers > 0 && begins_query(sql, inside) {
        return Ok(Some(Choices::Query(token_span(inside))));
    }
    if let Some((table, column)) = parse_column(sql, layers, inside) {
        return Ok(Some(Choices::Column { table, column, span: token_span(tokens) }));
    }
    if layers > 0 {
        return parse_list(sql, tokens, inside).map(Some);
    }
    if is_function(sql, tokens) {
        return Ok(Some(Choices::RowList(token_span(tokens))));
    }
    Err(match tokens {
        [text] if text.lexeme == TokenKind::Text => {
            // Legacy `BlendSQL` list syntax: elements separated by semicolons. A list with a single
            // element has no semicolon.
            let content = text.unquoted_text(sql);
            let is_name = |part: &str| {
                part.starts_with(|c: char| c.is_alphabetic() || c == '_')
                    && part.chars().all(|c| c.is_alphanumeric() || c == '_')
            };
            if content
                .split_once('.')
                .is_some_and(|(table, column)| is_name(table) && is_name(column))
            {
                return Err(SqlError::new(
                    text.span(),
                    "the options are a text, not a column",
                    "expected a list or a column",
                )
                .with_help(format!(
                    "a column is written without quotes: options={content}; a list: options=('a', 'b')"
                )));
            }
            let items = content.split(';').map(str::trim);
            let items = items.filter(|_| !content.trim().is_empty()).map(Value::from);
            return Ok(Some(Choices::List(items.collect())));
        }
        [parameter] if parameter.lexeme == TokenKind::Parameter => {
            SqlError::new(parameter.span(), "options cannot be a parameter", "expected the options")
                .with_help(HELP)
        }
        _ => SqlError::new(
            token_span(tokens),
            "hqdl cannot parse the options",
            "not a list, column or query",
        )
        .with_help(HELP),
    })
}

/// Returns true if the tokens are a function call: an SQL function or one that asks a question.
fn is_function(sql: &str, tokens: &[Token]) -> bool {
    match tokens {
        [call] => call.lexeme == TokenKind::Call && !call.text(sql).starts_with('{'),
        [name, arguments @ ..] => {
            name.lexeme == TokenKind::Word && strip_parens(arguments).0 > 0 && arguments.len() > 2
        }
        [] => false,
    }
}

/// Parses a column, in legacy syntax or as a name. Returns its table, if the text names one, and
/// its column name.
fn parse_column(sql: &str, layers: usize, tokens: &[Token]) -> Option<(Option<String>, String)> {
    if let Some((table, column)) = parse_legacy_column(sql, tokens) {
        return Some((Some(table), column));
    }
    match tokens {
        // `("a")` is a list with one string, but `"a"` is a column.
        [name] if is_name(*name) && !(layers > 0 && name.lexeme == TokenKind::Quoted) => {
            parse_named_value(sql, *name).is_none().then(|| (None, name.unquoted_text(sql)))
        }
        // Options are not a cast: `t::text` is a column.
        [table, dot, column]
            if is_name(*table)
                && (dot.is_symbol(b'.') || dot.lexeme == TokenKind::Colons)
                && is_name(*column) =>
        {
            Some((Some(table.unquoted_text(sql)), column.unquoted_text(sql)))
        }
        _ => None,
    }
}

fn parse_list(sql: &str, all_tokens: &[Token], items: &[Token]) -> Result<Choices, SqlError> {
    let mut values = Vec::new();
    for item in items.split(|t| t.is_symbol(b',')) {
        match parse_literal(sql, item) {
            Some(value) => values.push(value),
            // A list with a single element can end with a comma.
            None if item.is_empty()
                && !values.is_empty()
                && has_trailing_comma(items, values.len()) =>
            {
                break;
            }
            None => {
                let error_span =
                    if item.is_empty() { token_span(all_tokens) } else { token_span(item) };
                return Err(SqlError::new(
                    error_span,
                    if item.is_empty() && items.is_empty() {
                        "the list of options is empty"
                    } else if item.is_empty() {
                        "an option is missing"
                    } else {
                        "an option is not a literal"
                    },
                    "expected a literal",
                )
                .with_help(format!("list texts, numbers, True, False or NULL; {HELP}")));
            }
        }
    }
    Ok(Choices::List(values))
}

/// Returns true if the tokens end with a comma after `count` items.
fn has_trailing_comma(items: &[Token], count: usize) -> bool {
    items.iter().filter(|t| t.is_symbol(b',')).count() == count
}

fn parse_literal(sql: &str, tokens: &[Token]) -> Option<Value> {
    match tokens {
        [text] if matches!(text.lexeme, TokenKind::Text | TokenKind::Quoted) => {
            Some(Value::Text(text.unquoted_text(sql)))
        }
        [name] => parse_named_value(sql, *name).or_else(|| parse_number(sql, *name, "")),
        [sign, digits] if sign.is_symbol(b'-') => parse_number(sql, *digits, "-"),
        [sign, digits] if sign.is_symbol(b'+') => parse_number(sql, *digits, ""),
        _ => None,
    }
}

/// Parses a named value: TRUE, FALSE, NULL or None.
fn parse_named_value(sql: &str, token: Token) -> Option<Value> {
    let named = [("true", 1), ("false", 0)].into_iter().find(|(name, _)| token.is_word(sql, name));
    if let Some((_, value)) = named {
        return Some(Value::Integer(value));
    }
    is_null_word(sql, &[token]).then_some(Value::Null)
}

fn parse_number(sql: &str, token: Token, sign: &str) -> Option<Value> {
    if token.lexeme != TokenKind::Number {
        return None;
    }
    let digits = format!("{sign}{}", token.text(sql));
    match digits.parse::<i64>() {
        Ok(whole) => Some(Value::Integer(whole)),
        Err(_) => digits.parse::<f64>().ok().filter(|r| r.is_finite()).map(Value::Real),
    }
}
