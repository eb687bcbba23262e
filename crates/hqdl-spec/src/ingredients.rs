//! `[[ingredient]]`: a user-defined call, built from a question with slots.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Type;
use super::literal::Literal;

/// `[[ingredient]]`
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[schemars(extend("additionalProperties" = false))]
pub struct IngredientTable {
    /// Name of the ingredient. A query calls it as `{{NAME(…)}}`.
    pub name: String,
    /// The question. Each `{argument}` is replaced by the argument of that name.
    pub question: String,
    /// Names of the arguments, in order. The question is about the values of the first one. A
    /// string or a number passed for another argument becomes part of the question.
    pub arguments: Vec<String>,
    /// Whether the question is about each value (`values`), or about all rows of the arguments
    /// together (`rows`).
    #[serde(default)]
    pub of: AskedOf,
    /// Type of the answers. Default: the type of the values that the query compares the answers
    /// with.
    #[serde(rename = "type")]
    pub kind: Option<Type>,
    /// Whether the answers are lists.
    #[serde(default)]
    pub list: bool,
    /// Options, one of which is the answer.
    pub options: Option<Vec<Literal>>,
    /// Model that answers the question: the NAME of a `[model.NAME]`. Default: `[model]`.
    pub model: Option<String>,
}

/// Subject of a call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum AskedOf {
    /// Each value, like `LLMMap`.
    #[default]
    Values,
    /// The rows of queries, like `LLMQA`.
    Rows,
}

/// Part of a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TemplateSlot<'q> {
    /// Literal text.
    Text(&'q str),
    /// Value of the argument with this name.
    Argument(&'q str),
}

impl IngredientTable {
    /// Splits the question at its slots.
    #[must_use]
    pub fn split_question(&self) -> Vec<TemplateSlot<'_>> {
        let mut rest = self.question.as_str();
        let mut slots = Vec::new();
        while let Some(open) = rest.find('{') {
            let Some(close) = rest[open..].find('}').map(|n| open + n) else { break };
            slots.push(TemplateSlot::Text(&rest[..open]));
            slots.push(TemplateSlot::Argument(rest[open + 1..close].trim()));
            rest = &rest[close + 1..];
        }
        slots.push(TemplateSlot::Text(rest));
        slots
    }
}

/// Returns true if a word is a valid name of an ingredient or an argument.
pub(crate) fn is_name(word: &str) -> bool {
    let mut chars = word.chars();
    chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
}
