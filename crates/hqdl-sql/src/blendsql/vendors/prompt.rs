//! Prompts: texts with expressions between them.

use super::brackets::{split_at_commas, split_at_pipes, strip_brackets};
use super::{MAX_DEPTH, VendorText};
use crate::blendsql::SqlError;
use crate::blendsql::lexer::Token;
use crate::blendsql::macros::NamedValue;

/// Part of a question that an ingredient replaces with the name of a value.
pub(super) const SLOT: &str = "{}";

/// A prompt of texts and expressions.
pub(super) struct VendorPrompt {
    parts: Vec<PromptPart>,
    /// Distinct expressions, by their text.
    values: Vec<(String, NamedValue)>,
}

enum PromptPart {
    Text(String),
    /// Index of an expression.
    Value(usize),
}

impl VendorPrompt {
    /// Parses `'a' || b`, `CONCAT('a', b)`, `('a', b)`, `STRUCT('a', b)` and `PROMPT('a {0}', b)`.
    /// `depth` is the number of lists around the tokens.
    ///
    /// # Errors
    /// Returns [`SqlError`] for a template whose slots have no values, or for an error in an
    /// expression.
    pub fn parse(text: VendorText<'_>, tokens: &[Token], depth: usize) -> Result<Self, SqlError> {
        let mut prompt = Self { parts: Vec::new(), values: Vec::new() };
        prompt.add_tokens(text, tokens, depth)?;
        Ok(prompt)
    }

    fn add_tokens(
        &mut self,
        text: VendorText<'_>,
        tokens: &[Token],
        depth: usize,
    ) -> Result<(), SqlError> {
        let sql = text.sql;
        if depth >= MAX_DEPTH {
            let span = tokens.first().map_or(0..0, |first| first.span());
            let message = format!("more than {MAX_DEPTH} nested calls");
            return Err(SqlError::new(span, message, "one too many"));
        }
        let is_query = |inside: &&[Token]| {
            let first = inside.first();
            first.is_some_and(|first| first.is_word(sql, "SELECT") || first.is_word(sql, "WITH"))
        };
        let list = ["CONCAT", "STRUCT"]
            .into_iter()
            .find_map(|word| strip_brackets(sql, tokens, Some(word), b'('))
            .or_else(|| strip_brackets(sql, tokens, None, b'(').filter(|i| !is_query(i)));
        if let Some(inside) = list {
            let elements = split_at_commas(inside);
            return elements.into_iter().try_for_each(|e| self.add_tokens(text, e, depth + 1));
        }
        if let Some(inside) = strip_brackets(sql, tokens, Some("PROMPT"), b'(') {
            return self.add_template(text, &split_at_commas(inside));
        }
        let parts = split_at_pipes(sql, tokens);
        if parts.len() > 1 {
            return parts.into_iter().try_for_each(|part| self.add_tokens(text, part, depth + 1));
        }
        match text.read_string(tokens) {
            Some(string) => self.parts.push(PromptPart::Text(string)),
            None => self.add_value(text, tokens)?,
        }
        Ok(())
    }

    fn add_value(&mut self, text: VendorText<'_>, tokens: &[Token]) -> Result<(), SqlError> {
        let value = text.read_value(tokens)?;
        let written = text.sql.get(value.span.clone()).unwrap_or_default();
        let known = self.values.iter().position(|(known, _)| known == written);
        self.parts.push(PromptPart::Value(known.unwrap_or(self.values.len())));
        if known.is_none() {
            self.values.push((written.to_owned(), value));
        }
        Ok(())
    }

    fn add_template(
        &mut self,
        text: VendorText<'_>,
        arguments: &[&[Token]],
    ) -> Result<(), SqlError> {
        let span = arguments.first().and_then(|first| first.first()).map_or(0..0, |t| t.span());
        let error = |label: &str| {
            SqlError::new(span.clone(), "PROMPT needs a string with a value for each slot", label)
        };
        let Some([template_token]) = arguments.first() else { return Err(error("not a template")) };
        let template = text.read_string(&[*template_token]).ok_or_else(|| error("not a string"))?;
        let mut rest = template.as_str();
        while let Some((before, after)) = rest.split_once('{') {
            let (slot, after) =
                after.split_once('}').ok_or_else(|| error("a slot is not closed"))?;
            let value = slot.parse::<usize>().ok().and_then(|n| arguments.get(n + 1));
            let value = value.ok_or_else(|| error(&format!("no value for {{{slot}}}")))?;
            self.parts.push(PromptPart::Text(before.to_owned()));
            self.add_value(text, value)?;
            rest = after;
        }
        self.parts.push(PromptPart::Text(rest.to_owned()));
        Ok(())
    }

    /// Returns the question and its distinct values, each with a distinct name. A single value at
    /// the end of the question is left out, because the model sees it anyway. `default` is the
    /// question of a prompt without text. Returns `None` if a text contains `{}`, which the
    /// ingredient would replace with a value.
    pub fn into_question(self, default: &str) -> Option<(String, Vec<NamedValue>)> {
        let is_value = |part: &PromptPart| matches!(part, PromptPart::Value(_));
        let is_single = self.parts.iter().filter(|part| is_value(part)).count() == 1;
        let is_blank =
            |part: &PromptPart| matches!(part, PromptPart::Text(text) if text.trim().is_empty());
        let values = name_values(self.values);
        let (mut question, mut slots) = (String::new(), 0);
        for (n, part) in self.parts.iter().enumerate() {
            match part {
                PromptPart::Text(text) => question.push_str(text),
                PromptPart::Value(_) if is_single => {
                    let is_last = self.parts.iter().skip(n + 1).all(is_blank);
                    let is_separate =
                        question.is_empty() || question.ends_with([' ', '\n', '.', '?', '!', ':']);
                    if !(is_last && is_separate) {
                        question.push_str(SLOT);
                        slots += 1;
                    }
                }
                PromptPart::Value(n) => question.push_str(&format!("`{}`", values[*n].name)),
            }
        }
        if question.matches(SLOT).count() > slots {
            return None;
        }
        let question = match question.trim() {
            "" => default.to_owned(),
            question => question.to_owned(),
        };
        Some((question, values))
    }
}

/// Gives each value a distinct name; `values` have their texts. Columns with the same name are
/// qualified with their tables (`t.name`) or numbered (`name 1`).
pub(super) fn name_values(values: Vec<(String, NamedValue)>) -> Vec<NamedValue> {
    let plain: Vec<String> = (1..)
        .zip(&values)
        .map(|(n, (_, value))| match value.name.as_str() {
            "" => format!("value {n}"),
            name => name.to_owned(),
        })
        .collect();
    let mut names: Vec<String> = Vec::new();
    for (name, (value, _)) in plain.iter().zip(&values) {
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
    let named = names.into_iter().zip(values);
    named.map(|(name, (_, value))| NamedValue { name, ..value }).collect()
}
