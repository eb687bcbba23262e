//! Prompts: texts with expressions between them.

use super::Translator;
use super::brackets::{split_at_commas, split_at_pipes, strip_brackets};
use crate::blendsql::SqlError;
use crate::blendsql::lexer::{Lexeme, Token};
use hqdl_values::sql::quote_text;

/// Part of a question that an ingredient replaces with the name of a value.
pub(super) const SLOT: &str = "{}";

/// A prompt of texts and expressions.
pub(super) struct VendorPrompt {
    parts: Vec<PromptPart>,
}

enum PromptPart {
    Text(String),
    /// An expression, with its column name if the expression is a column.
    Value(String, Option<String>),
}

impl VendorPrompt {
    /// Parses `'a' || b`, `CONCAT('a', b)`, `('a', b)`, `STRUCT('a', b)` and `PROMPT('a {0}', b)`.
    ///
    /// # Errors
    /// Returns [`SqlError`] for a template whose slots have no values, or for an error in an
    /// expression.
    pub fn parse(translator: Translator<'_>, tokens: &[Token]) -> Result<Self, SqlError> {
        let sql = translator.sql;
        let translator = translator.enter(tokens)?;
        let is_query = |inside: &&[Token]| {
            let first = inside.first();
            first.is_some_and(|first| first.is_word(sql, "SELECT") || first.is_word(sql, "WITH"))
        };
        let list = ["CONCAT", "STRUCT"]
            .into_iter()
            .find_map(|word| strip_brackets(sql, tokens, Some(word), b'('))
            .or_else(|| strip_brackets(sql, tokens, None, b'(').filter(|i| !is_query(i)));
        if let Some(inside) = list {
            return Self::from_elements(translator, &split_at_commas(inside));
        }
        if let Some(inside) = strip_brackets(sql, tokens, Some("PROMPT"), b'(') {
            return Self::parse_template(translator, &split_at_commas(inside));
        }
        let parts = split_at_pipes(tokens);
        if parts.len() > 1 {
            return Self::from_elements(translator, &parts);
        }
        let part = match tokens {
            [one] if translator.is_string(*one) => PromptPart::Text(one.unquoted_text(sql)),
            _ => PromptPart::Value(
                translator.translate_expression(tokens)?,
                column_name(sql, tokens),
            ),
        };
        Ok(Self { parts: vec![part] })
    }

    fn from_elements(translator: Translator<'_>, elements: &[&[Token]]) -> Result<Self, SqlError> {
        let mut parts = Vec::new();
        for element in elements {
            parts.extend(Self::parse(translator, element)?.parts);
        }
        Ok(Self { parts })
    }

    fn parse_template(
        translator: Translator<'_>,
        arguments: &[&[Token]],
    ) -> Result<Self, SqlError> {
        let sql = translator.sql;
        let span = arguments.first().and_then(|first| first.first()).map_or(0..0, |t| t.span());
        let error = |label: &str| {
            SqlError::new(span.clone(), "PROMPT needs a string with a value for each slot", label)
        };
        let Some([template_token]) = arguments.first() else { return Err(error("not a template")) };
        if !translator.is_string(*template_token) {
            return Err(error("not a string"));
        }
        let template = template_token.unquoted_text(sql);
        let (mut parts, mut rest) = (Vec::new(), template.as_str());
        while let Some((text, after)) = rest.split_once('{') {
            let (slot, after) =
                after.split_once('}').ok_or_else(|| error("a slot is not closed"))?;
            let value = slot.parse::<usize>().ok().and_then(|n| arguments.get(n + 1));
            let value = value.ok_or_else(|| error(&format!("no value for {{{slot}}}")))?;
            parts.push(PromptPart::Text(text.to_owned()));
            parts.push(PromptPart::Value(
                translator.translate_expression(value)?,
                column_name(sql, value),
            ));
            rest = after;
        }
        parts.push(PromptPart::Text(rest.to_owned()));
        Ok(Self { parts })
    }

    /// Writes the prompt as an ingredient. `default` is the question of a prompt without text.
    /// Returns `None` if a text contains `{}`, which the ingredient would replace with a value.
    pub fn write_ingredient(&self, default: &str, options: &str) -> Option<String> {
        let values = self.distinct_values();
        let question = self.build_question(default, &values)?;
        Some(write_question(&question, &values, options))
    }

    fn distinct_values(&self) -> Vec<(&str, Option<&str>)> {
        let mut values: Vec<(&str, Option<&str>)> = Vec::new();
        for part in &self.parts {
            if let PromptPart::Value(value, name) = part
                && !values.iter().any(|(known, _)| known == value)
            {
                values.push((value, name.as_deref()));
            }
        }
        values
    }

    /// Returns the question. A single value at its end is left out, because the model sees it
    /// anyway. Returns `None` if a text contains `{}`.
    fn build_question(&self, default: &str, values: &[(&str, Option<&str>)]) -> Option<String> {
        let is_value = |part: &PromptPart| matches!(part, PromptPart::Value(..));
        let is_single = self.parts.iter().filter(|part| is_value(part)).count() == 1;
        let is_blank =
            |part: &PromptPart| matches!(part, PromptPart::Text(text) if text.trim().is_empty());
        let names = value_names(values);
        let (mut question, mut slots) = (String::new(), 0);
        for (n, part) in self.parts.iter().enumerate() {
            match part {
                PromptPart::Text(text) => question.push_str(text),
                PromptPart::Value(..) if values.len() == 1 => {
                    let is_last = self.parts.iter().skip(n + 1).all(is_blank);
                    let is_separate =
                        question.is_empty() || question.ends_with([' ', '\n', '.', '?', '!', ':']);
                    if !(is_single && is_last && is_separate) {
                        question.push_str(SLOT);
                        slots += 1;
                    }
                }
                PromptPart::Value(value, _) => {
                    let n = values.iter().position(|(known, _)| known == value).unwrap_or(0);
                    let name = names.get(n).map_or("", String::as_str);
                    question.push_str(&format!("`{name}`"));
                }
            }
        }
        if question.matches(SLOT).count() > slots {
            return None;
        }
        Some(match question.trim() {
            "" => default.to_owned(),
            question => question.to_owned(),
        })
    }
}

/// Writes a question as an ingredient: `LLMMap` about the values, or `LLMQA` if there are none.
/// Several values are combined with their names into one text, which is NULL if any value is NULL.
pub(super) fn write_question(
    question: &str,
    values: &[(&str, Option<&str>)],
    options: &str,
) -> String {
    let question = quote_text(question);
    match join_values(values) {
        Some(value) => format!("{{{{LLMMap({question}, {value}{options})}}}}"),
        None => format!("{{{{LLMQA({question}{options})}}}}"),
    }
}

/// Returns an SQL expression that joins all values into one text; `None` if there are no values.
pub(super) fn join_values(values: &[(&str, Option<&str>)]) -> Option<String> {
    if let [(value, _)] = values {
        return Some((*value).to_owned());
    }
    let lines = values
        .iter()
        .zip(value_names(values))
        .map(|((value, _), name)| format!("{} || ({value})", quote_text(&format!("{name}: "))));
    Some(lines.collect::<Vec<_>>().join(" || char(10) || ")).filter(|text| !text.is_empty())
}

/// Returns a distinct name for each value. Columns with the same name are qualified with their
/// tables (`t.name`) or numbered (`name 1`).
fn value_names(values: &[(&str, Option<&str>)]) -> Vec<String> {
    let plain: Vec<String> = (1..)
        .zip(values)
        .map(|(n, (_, name))| name.map_or_else(|| format!("value {n}"), str::to_owned))
        .collect();
    let mut names: Vec<String> = Vec::new();
    for (name, (value, _)) in plain.iter().zip(values) {
        let is_same = |other: &&String| other.eq_ignore_ascii_case(name);
        if plain.iter().filter(is_same).count() == 1 {
            names.push(name.clone());
            continue;
        }
        let is_path = value.chars().all(|c| c.is_alphanumeric() || "_$.\"`[]".contains(c));
        let path = value.replace(['"', '`', '[', ']'], "");
        let numbered = (1..=values.len()).map(|n| format!("{name} {n}"));
        let mut candidates = is_path.then_some(path).into_iter().chain(numbered);
        let is_taken =
            |new: &str| plain.iter().chain(&names).any(|known| known.eq_ignore_ascii_case(new));
        let unique = candidates.find(|new| !is_taken(new));
        names.push(unique.unwrap_or_else(|| format!("{name} of {value}")));
    }
    names
}

/// Returns the name of a column, without its table.
fn column_name(sql: &str, tokens: &[Token]) -> Option<String> {
    let is_column = tokens.iter().enumerate().all(|(n, token)| match n % 2 {
        0 => matches!(token.lexeme, Lexeme::Word | Lexeme::Name | Lexeme::Quoted),
        _ => token.is_symbol(b'.'),
    });
    tokens.last().filter(|_| is_column).map(|last| last.unquoted_text(sql))
}
