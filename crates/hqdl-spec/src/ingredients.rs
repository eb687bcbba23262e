//! `[[ingredient]]`: a user-defined call, built from a question with slots.

use schemars::JsonSchema;
use serde::Deserialize;

use super::Type;
use super::literal::Literal;

/// `[[ingredient]]`
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[schemars(extend("additionalProperties" = false))]
pub struct IngredientTable {
    /// The name in a query: `{{NAME(…)}}`.
    pub name: String,
    /// The question, with `{argument}` in place of an argument.
    pub question: String,
    /// The arguments, in their order. The first one is the value that is asked about; a text or a
    /// number as another argument becomes part of the question.
    pub arguments: Vec<String>,
    /// Whether each value is asked about separately, or all rows of the arguments together.
    #[serde(default)]
    pub of: AskedOf,
    /// The type of the answers; derived from the comparison when left out.
    #[serde(rename = "type")]
    pub kind: Option<Type>,
    /// Whether the answers are lists.
    #[serde(default)]
    pub list: bool,
    /// The options for the answers.
    pub options: Option<Vec<Literal>>,
    /// The model: the NAME of a `[model.NAME]`.
    pub model: Option<String>,
}

/// Subject of a call's question.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum AskedOf {
    /// Each value, as `LLMMap` does.
    #[default]
    Values,
    /// The rows of queries, as `LLMQA` does.
    Rows,
}

/// Part of a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TemplateSlot<'q> {
    /// Literal text.
    Words(&'q str),
    /// Value of the argument with this name.
    Argument(&'q str),
}

impl IngredientTable {
    /// Splits the question at its slots.
    #[must_use]
    pub fn slots(&self) -> Vec<TemplateSlot<'_>> {
        let mut rest = self.question.as_str();
        let mut slots = Vec::new();
        while let Some(open) = rest.find('{') {
            let Some(close) = rest[open..].find('}').map(|n| open + n) else { break };
            slots.push(TemplateSlot::Words(&rest[..open]));
            slots.push(TemplateSlot::Argument(rest[open + 1..close].trim()));
            rest = &rest[close + 1..];
        }
        slots.push(TemplateSlot::Words(rest));
        slots
    }
}

/// Returns true if a word is a valid name of an ingredient or an argument.
pub(crate) fn is_name(word: &str) -> bool {
    let mut chars = word.chars();
    chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
}
