//! Parses `options=`: a list, a column or a query.

use super::argument::{bare_query, begins_query, is_name, is_none, old_column, peel, span};
use super::lexer::{Lexeme, Token};
use super::{Choices, SqlError};
use hqdl_values::value::Value;

const HELP: &str = "options are a list ('a', 'b'), a column t.c, or a query (SELECT …)";

/// Parses the value of `options=`. Returns `None` for `None` and `NULL`.
pub(super) fn read(sql: &str, tokens: &[Token]) -> Result<Option<Choices>, SqlError> {
    if is_none(sql, tokens) {
        return Ok(None);
    }
    if begins_query(sql, tokens) {
        return Err(bare_query(tokens));
    }
    if let [open, items @ .., close] = tokens
        && open.is(b'[')
        && close.is(b']')
    {
        return list(sql, tokens, items).map(Some);
    }
    let (layers, inside) = peel(tokens);
    if layers > 0 && begins_query(sql, inside) {
        return Ok(Some(Choices::Query(span(inside))));
    }
    if let Some((table, column)) = column(sql, layers, inside) {
        return Ok(Some(Choices::Column { table, column, span: span(tokens) }));
    }
    if layers > 0 {
        return list(sql, tokens, inside).map(Some);
    }
    Err(match tokens {
        [text] if text.lexeme == Lexeme::Text => {
            // Legacy `BlendSQL` list syntax; a list of one element has no semicolon.
            let words = text.content(sql);
            let items = words.split(';').map(str::trim);
            let items = items.filter(|_| !words.trim().is_empty()).map(Value::from);
            return Ok(Some(Choices::List(items.collect())));
        }
        [parameter] if parameter.lexeme == Lexeme::Parameter => {
            SqlError::new(parameter.span(), "options cannot be a parameter", "expected the options")
                .help(HELP)
        }
        _ => SqlError::new(
            span(tokens),
            "hqdl cannot parse the options",
            "not a list, column or query",
        )
        .help(HELP),
    })
}

/// Parses a column, in legacy syntax or as a name.
fn column(sql: &str, layers: usize, tokens: &[Token]) -> Option<(Option<String>, String)> {
    if let Some((table, column)) = old_column(sql, tokens) {
        return Some((Some(table), column));
    }
    match tokens {
        // `("a")` is a list with one string, `"a"` a column.
        [name] if is_name(*name) && !(layers > 0 && name.lexeme == Lexeme::Quoted) => {
            word(sql, *name).is_none().then(|| (None, name.content(sql)))
        }
        [table, dot, column] if is_name(*table) && dot.is(b'.') && is_name(*column) => {
            Some((Some(table.content(sql)), column.content(sql)))
        }
        _ => None,
    }
}

fn list(sql: &str, all: &[Token], items: &[Token]) -> Result<Choices, SqlError> {
    let mut values = Vec::new();
    for item in items.split(|t| t.is(b',')) {
        match literal(sql, item) {
            Some(value) => values.push(value),
            // The trailing comma of a list with one element.
            None if item.is_empty() && !values.is_empty() && ends(items, values.len()) => break,
            None => {
                let place = if item.is_empty() { span(all) } else { span(item) };
                return Err(SqlError::new(
                    place,
                    "an option is not a literal",
                    "expected a literal",
                )
                .help(format!("list texts, numbers, True, False or NULL; {HELP}")));
            }
        }
    }
    Ok(Choices::List(values))
}

/// Returns true if the tokens are `count` items followed by a trailing comma.
fn ends(items: &[Token], count: usize) -> bool {
    items.iter().filter(|t| t.is(b',')).count() == count
}

fn literal(sql: &str, tokens: &[Token]) -> Option<Value> {
    match tokens {
        [text] if matches!(text.lexeme, Lexeme::Text | Lexeme::Quoted) => {
            Some(Value::Text(text.content(sql)))
        }
        [name] => word(sql, *name).or_else(|| number(sql, *name, "")),
        [sign, digits] if sign.is(b'-') => number(sql, *digits, "-"),
        [sign, digits] if sign.is(b'+') => number(sql, *digits, ""),
        _ => None,
    }
}

/// Parses a named value: TRUE, FALSE, NULL or None.
fn word(sql: &str, token: Token) -> Option<Value> {
    let named = [("true", 1), ("false", 0)].into_iter().find(|(name, _)| token.is_word(sql, name));
    if let Some((_, value)) = named {
        return Some(Value::Integer(value));
    }
    is_none(sql, &[token]).then_some(Value::Null)
}

fn number(sql: &str, token: Token, sign: &str) -> Option<Value> {
    if token.lexeme != Lexeme::Number {
        return None;
    }
    let written = format!("{sign}{}", token.text(sql));
    match written.parse::<i64>() {
        Ok(whole) => Some(Value::Integer(whole)),
        Err(_) => written.parse::<f64>().ok().filter(|r| r.is_finite()).map(Value::Real),
    }
}
