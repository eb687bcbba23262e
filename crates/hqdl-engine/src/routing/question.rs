//! Compares a query's question with the questions that a spec binds to a column. The questions must
//! match word by word. Similarity is not enough, because a wrong route is a wrong answer.

use hqdl_spec::{Binding, Column, SLOTS};

/// Normalizes a question for comparison: lower case, words and slots only. A number is one word, with
/// its sign and its separators, because -5 and 5 are different questions, and so are 1.5 and 15.
#[must_use]
pub fn normalize_question(question: &str) -> Vec<String> {
    let text: Vec<char> = question.to_lowercase().chars().collect();
    let is_digit = |at: usize| text.get(at).is_some_and(char::is_ascii_digit);
    let belongs = |at: usize, c: char| match c {
        '{' | '}' => true,
        '-' | '\u{2212}' => {
            is_digit(at + 1) && at.checked_sub(1).is_none_or(|n| text[n].is_whitespace())
        }
        '.' | ',' => is_digit(at + 1) && at.checked_sub(1).is_some_and(is_digit),
        _ => c.is_alphanumeric(),
    };
    let chars = text.iter().enumerate();
    let words: String = chars.map(|(at, c)| if belongs(at, *c) { *c } else { ' ' }).collect();
    words.replace('\u{2212}', "-").split_whitespace().map(str::to_owned).collect()
}

/// Value of a binding's slot in a question.
#[derive(Debug, Clone, PartialEq)]
pub enum SlotValue {
    /// The binding has no slot.
    NoSlot,
    /// A value of the slot's column, or a date in ISO 8601.
    Text(String),
    /// A number, as SQL.
    Number(String),
}

impl SlotValue {
    /// Returns the value as an SQL literal; empty if there is no slot. The value comes from the
    /// query, never from a model.
    #[must_use]
    pub fn to_sql_literal(&self) -> String {
        match self {
            Self::NoSlot => String::new(),
            Self::Text(text) => hqdl_values::sql::quote_text(text),
            Self::Number(number) => number.clone(),
        }
    }
}

/// Returns the binding of the column at position `at` that matches a question, with the value of
/// the binding's slot. `stored` returns the values of a column if all of them are known. If the
/// slot's column has no value list, the slot accepts only these values.
///
/// # Errors
/// Returns the reason if a binding matches the question, but does not accept the value of its slot.
pub fn find_binding<'c>(
    columns: &'c [Column],
    at: usize,
    question: &str,
    stored: &mut dyn FnMut(usize) -> Option<Vec<String>>,
) -> Result<Option<(&'c Binding, SlotValue)>, String> {
    let question_words = normalize_question(question);
    let Some(column) = columns.get(at) else { return Ok(None) };
    let own_position = at;
    let mut nearest_reason = None;
    for binding in &column.bindings {
        let asked = normalize_question(&binding.ask);
        let Some(at) = asked.iter().position(|w| SLOTS.contains(&w.as_str())) else {
            if asked == question_words {
                return Ok(Some((binding, SlotValue::NoSlot)));
            }
            continue;
        };
        let (before, after) = (&asked[..at], &asked[at + 1..]);
        let is_match = question_words.len() > before.len() + after.len()
            && question_words.starts_with(before)
            && question_words.ends_with(after);
        if !is_match {
            continue;
        }
        let filled = &question_words[before.len()..question_words.len() - after.len()];
        let slot_position = find_slot_column(columns, binding).unwrap_or(own_position);
        let mut all_known = true;
        let mut values = || {
            stored(slot_position).or_else(|| {
                all_known = false;
                None
            })
        };
        if let Some(slot) = parse_slot(&columns[slot_position], &asked[at], filled, &mut values) {
            return Ok(Some((binding, slot)));
        }
        let why = if all_known {
            format!("\"{}\" is not one of its values", filled.join(" "))
        } else {
            format!(
                "`{}` has no value list, and not all of its values are known yet: once they are materialized, it answers this",
                columns[slot_position].name
            )
        };
        nearest_reason = Some(format!("\"{}\" matches, but {why}", binding.ask));
    }
    nearest_reason.map_or(Ok(None), Err)
}

/// Returns the column that a binding compares with its slot (the name before `= {value}`), if that
/// column is not the binding's own.
fn find_slot_column(columns: &[Column], binding: &Binding) -> Option<usize> {
    let sql = binding.sql.as_ref()?;
    let before = sql[..sql.find("{value}")?].trim_end().trim_end_matches(['=', '<', '>', '!']);
    let name = before.trim_end().trim_end_matches(['"', '`', ']']);
    let start = name.rfind(|c: char| !(c.is_alphanumeric() || c == '_' || c == ' '));
    let name = name[start.map_or(0, |at| at + 1)..].trim_start();
    // A quoted name may contain spaces. Without quotes, the last word is the name.
    let named = |name: &str| columns.iter().position(|c| c.name.eq_ignore_ascii_case(name));
    named(name).or_else(|| named(name.rsplit(' ').next()?))
}

fn parse_slot(
    column: &Column,
    slot: &str,
    filled: &[String],
    stored: &mut dyn FnMut() -> Option<Vec<String>>,
) -> Option<SlotValue> {
    match slot {
        "{number}" => {
            // A comma separates thousands or decimals, depending on who wrote it.
            let [number] = filled else { return None };
            let is_plain = number.bytes().all(|b| b.is_ascii_digit() || b == b'.' || b == b'-');
            number.parse::<f64>().ok().filter(|_| is_plain)?;
            // A second minus sign before a negative number would begin a comment.
            let is_negative = number.starts_with('-');
            Some(SlotValue::Number(if is_negative {
                format!("({number})")
            } else {
                number.clone()
            }))
        }
        "{date}" => {
            let joined = filled.join("-");
            let date = joined.parse::<jiff::civil::Date>().ok()?;
            Some(SlotValue::Text(date.to_string()))
        }
        _ => {
            // Two values that normalize to the same words are ambiguous.
            let unique_match = |values: &[String]| {
                let mut hits = values.iter().filter(|v| normalize_question(v) == filled);
                hits.next().filter(|_| hits.next().is_none()).map(|v| SlotValue::Text(v.clone()))
            };
            let listed = column.values.as_ref();
            listed.and_then(|list| unique_match(&list.values)).or_else(|| match listed {
                Some(list) if !list.open => None,
                _ => unique_match(&stored()?),
            })
        }
    }
}
