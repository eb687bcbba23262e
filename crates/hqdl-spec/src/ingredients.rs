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
    /// Values with their answers, which the model sees with each question.
    pub examples: Option<Vec<[Literal; 2]>>,
    /// Answers, which the model sees as examples of the form of an answer.
    pub example_outputs: Option<Vec<Literal>>,
    /// Search whose results the model sees with each question.
    pub search: Option<SearchTable>,
}

/// A search by the value or the question of a call.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[schemars(extend("additionalProperties" = false))]
pub struct SearchTable {
    /// Values that are searched: `table.column`, or a SELECT with one column.
    pub values: String,
    /// Number of values to find.
    #[serde(default = "default_search_count")]
    pub k: u32,
    /// Similarity by which the values are ranked.
    #[serde(default)]
    pub by: SearchBy,
    /// Role of the values in the question.
    #[serde(default, rename = "as")]
    pub role: SearchRole,
}

fn default_search_count() -> u32 {
    5
}

impl SearchTable {
    /// Splits `table.column`. Returns `None` for a SELECT.
    #[must_use]
    pub fn column(&self) -> Option<(&str, &str)> {
        let (table, column) = self.values.trim().split_once('.')?;
        (is_name(table) && is_name(column)).then_some((table, column))
    }
}

/// Similarity by which a search ranks values.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SearchBy {
    /// Words that a value shares with the text; sends no request.
    #[default]
    Words,
    /// Similarity of the embeddings.
    Embeddings,
    /// Sum of both reciprocal ranks.
    Both,
}

impl SearchBy {
    /// Returns the name used in queries and specs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Words => "words",
            Self::Embeddings => "embeddings",
            Self::Both => "both",
        }
    }

    /// Returns the similarity with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Words, Self::Embeddings, Self::Both].into_iter().find(|by| by.name() == name)
    }
}

/// Role of the values that a search finds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SearchRole {
    /// The model sees the values next to the value that the question is about.
    #[default]
    Context,
    /// The answer is one of the values.
    Options,
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
    /// Returns the position of the argument that the question is about. If the question is the
    /// first argument alone, it is about the second one.
    #[must_use]
    pub fn subject_position(&self) -> usize {
        let slots = self.split_question();
        let is_first = |slot: &TemplateSlot<'_>| {
            *slot == TemplateSlot::Argument(self.arguments.first().map_or("", String::as_str))
        };
        let is_blank = |slot: &TemplateSlot<'_>| matches!(slot, TemplateSlot::Text(text) if text.trim().is_empty());
        let is_question =
            slots.iter().any(is_first) && slots.iter().all(|slot| is_first(slot) || is_blank(slot));
        usize::from(is_question && self.arguments.len() > 1)
    }

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
