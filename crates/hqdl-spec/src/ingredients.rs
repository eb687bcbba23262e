//! `[[ingredient]]`: a user-defined call, built from a question with slots.

use std::fmt;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};

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
    /// Function that computes the answers; `None` if a model answers. A file cannot set it.
    #[serde(skip)]
    #[schemars(skip)]
    pub function: Option<FunctionIngredient>,
}

/// A function of the program that uses hqdl, such as a function in Python.
#[derive(Debug, Clone)]
pub struct FunctionIngredient {
    /// Values that a call passes to the function.
    pub kind: FunctionKind,
    /// Identifies the function's code. Answers of another version are not reused.
    pub version: String,
    /// Number of leading arguments that every call must have.
    pub required: usize,
    /// Whether a call may have `options`, which the function receives.
    pub takes_options: bool,
}

/// Values that a call passes to a function.
#[derive(Debug, Clone)]
pub enum FunctionKind {
    /// The arguments of each row, like `LLMMap`.
    Values,
    /// The rows of queries, like `LLMQA`.
    Rows,
    /// A left value and the right values that it may match, like `LLMJoin`.
    Pairs,
    /// The SQL of the arguments; the function returns the SQL that replaces the call.
    Alias(AliasWriter),
}

/// Function that returns the SQL that replaces a call, or a message.
#[derive(Clone)]
pub struct AliasWriter(pub Arc<WriteAlias>);

/// See [`AliasWriter`].
pub type WriteAlias = dyn Fn(&[AliasArgument]) -> Result<String, String> + Send + Sync;

impl fmt::Debug for AliasWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AliasWriter")
    }
}

/// An argument of a call that a function replaces.
#[derive(Debug, Clone, PartialEq)]
pub struct AliasArgument {
    /// Keyword of `keyword=…`.
    pub keyword: Option<String>,
    /// The value, if the argument is a string, a number or NULL.
    pub literal: Option<Json>,
    /// SQL of the argument.
    pub sql: String,
}

impl FunctionIngredient {
    /// Returns the question of a call, which identifies its answers: the name, the version, and the
    /// arguments in order. An argument without a value is a value of the row.
    #[must_use]
    pub fn write_question(&self, name: &str, arguments: &[(&str, Option<Json>)]) -> String {
        let slot = |(name, value): &(&str, Option<Json>)| match value {
            None => json!([name]),
            Some(value) => json!([name, value]),
        };
        let slots = Json::from(arguments.iter().map(slot).collect::<Vec<Json>>()).to_string();
        // Braces would be slots of the question.
        let slots = slots.replace('{', "\\u007b").replace('}', "\\u007d");
        format!("{name} {} {slots}", self.version)
    }
}

/// Returns the arguments of a question that [`FunctionIngredient::write_question`] wrote, with the
/// values of the row; `None` for another question.
#[must_use]
pub fn parse_function_question(question: &str, values: &[Json]) -> Option<Vec<(String, Json)>> {
    let (_, slots) = question.split_once(" [")?;
    let slots: Vec<Vec<Json>> = serde_json::from_str(&format!("[{slots}")).ok()?;
    let mut values = values.iter();
    let argument = |slot: Vec<Json>| {
        let mut slot = slot.into_iter();
        let name = slot.next()?.as_str()?.to_owned();
        Some((name, slot.next().or_else(|| values.next().cloned())?))
    };
    slots.into_iter().map(argument).collect()
}

/// Beginning of the name in [`crate::Spec::models`] under which a function is listed.
const FUNCTION_MODEL: &str = "function ";

/// Returns true if a model of the spec is a function.
#[must_use]
pub fn is_function_model(name: &str) -> bool {
    name.starts_with(FUNCTION_MODEL)
}

/// Returns the name in [`crate::Spec::models`] of a function.
#[must_use]
pub fn function_model_name(function: &str) -> String {
    format!("{FUNCTION_MODEL}{function}")
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
