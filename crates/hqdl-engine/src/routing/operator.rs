//! Converts a question to SQL over a column: an operator and a literal, checked against the
//! column's type and value list. A literal that does not match exactly is rejected, because a wrong
//! route is a wrong answer.

use super::question::normalize_question;
use hqdl_spec::checker::Checker;
use hqdl_spec::{Binding, Column, Expansion, SLOTS, Type};
use hqdl_values::key::hash_tagged_parts;
use hqdl_values::value::Value;

/// Operators that turn a column into the answer to a question. `is` returns the value itself, and
/// `has` tests whether a list contains the literal. `none` means that the column does not answer
/// the question.
pub const OPERATORS: [&str; 10] = ["=", "<>", "<", "<=", ">", ">=", "in", "is", "has", "none"];

/// Returns a hash of the columns of an expansion. Stored bindings remain valid as long as the
/// hash does not change.
#[must_use]
pub fn hash_columns(expansion: &Expansion) -> String {
    let mut parts: Vec<String> = expansion
        .columns
        .iter()
        .map(|c| format!("{}\u{0}{}", c.name, c.fingerprint.as_str()))
        .collect();
    parts.sort_unstable();
    parts.insert(0, expansion.name.clone());
    hash_tagged_parts("hqdl columns offered v1", &parts)
}

/// Returns whether the operator, applied to the column, gives a Boolean answer.
#[must_use]
pub fn has_boolean_answer(column: &Column, operator: &str) -> bool {
    operator != "is" || (column.kind == Type::Boolean && column.many.is_none())
}

/// Returns the binding of a question to a column.
///
/// # Errors
/// Returns the reason why the column cannot answer the question with this operator.
pub fn build_binding(
    column: &Column,
    ask: &str,
    operator: &str,
    literal: &str,
) -> Result<Binding, String> {
    let name = hqdl_values::sql::quote_name(&column.name);
    let sql = match (operator, column.many.is_some()) {
        ("is", _) => None,
        ("has", true) => Some(format!("EXISTS {}", format_literal(column, literal)?)),
        ("has", false) => return Err(format!("`{}` is not a list", column.name)),
        (_, true) => {
            return Err(format!(
                "`{}` is a list, but `{operator}` compares one value",
                column.name
            ));
        }
        ("=" | "<>", false) => {
            Some(format!("{name} {operator} {}", format_literal(column, literal)?))
        }
        ("<" | "<=" | ">" | ">=", false) => {
            if !column.kind.is_ordered() {
                return Err(format!(
                    "`{}` is {}, which cannot be ordered",
                    column.name,
                    column.kind.name()
                ));
            }
            Some(format!("{name} {operator} {}", format_literal(column, literal)?))
        }
        ("in", false) => {
            let items: Vec<serde_json::Value> = serde_json::from_str(literal)
                .map_err(|_| format!("`{literal}` is not a JSON array of values"))?;
            let items: Result<Vec<String>, String> = items
                .iter()
                .map(|i| format_literal(column, &Value::from_json(i).to_string()))
                .collect();
            let items = items?;
            if items.is_empty() {
                return Err("`in` has no values".to_owned());
            }
            Some(format!("{name} IN ({})", items.join(", ")))
        }
        _ => return Err(format!("`{operator}` is not an operator")),
    };
    if sql.as_ref().is_some_and(|sql| SLOTS.iter().any(|s| sql.contains(s))) {
        return Err("a value reads like a slot".to_owned());
    }
    Ok(Binding { ask: ask.to_owned(), sql })
}

/// Formats a value of a column as SQL.
fn format_literal(column: &Column, literal: &str) -> Result<String, String> {
    let literal = literal.trim();
    let listed = match &column.values {
        Some(list) => {
            let normalized = normalize_question(literal);
            let is_same = |v: &&String| normalize_question(v) == normalized;
            let exact = list.values.iter().find(|v| *v == literal);
            let mut matches = list.values.iter().filter(is_same);
            match (exact, matches.next(), matches.next()) {
                (Some(value), ..) | (None, Some(value), None) => value.as_str(),
                _ if list.open => literal,
                _ => {
                    return Err(format!(
                        "\"{literal}\" is not one of the values of `{}`",
                        column.name
                    ));
                }
            }
        }
        None => literal,
    };
    let value = Checker::parse_value(column.kind, listed).map(|(value, _)| value);
    match value {
        Some(Value::Text(text)) if !text.is_empty() => Ok(hqdl_values::sql::quote_text(&text)),
        Some(number @ (Value::Integer(_) | Value::Real(_))) => Ok(number.to_string()),
        _ => Err(format!(
            "\"{literal}\" is not a valid {} for `{}`",
            column.kind.name(),
            column.name
        )),
    }
}
