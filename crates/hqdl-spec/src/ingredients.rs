//! `[[ingredient]]`: a call of the user's own, put together from a question with slots.

use std::collections::HashSet;

use schemars::JsonSchema;
use serde::Deserialize;

use super::Type;
use super::check::{Check, join};
use super::file::Literal;
use super::shape::Step;
use hqdl_sql::blendsql::ingredients;
use hqdl_values::problem::nearest;

/// `[[ingredient]]`
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[schemars(extend("additionalProperties" = false))]
pub struct IngredientTable {
    /// What it is called in a query: `{{NAME(…)}}`.
    pub name: String,
    /// What is asked, with `{argument}` where an argument stands.
    pub question: String,
    /// Its arguments, in their order. Of values, the first is what is asked about; a
    /// text or a number in the place of another becomes part of the question.
    pub arguments: Vec<String>,
    /// Whether it is asked of each value, or of all rows of its arguments together.
    #[serde(default)]
    pub of: AskedOf,
    /// The type of its answers; else it follows from what they are compared with.
    #[serde(rename = "type")]
    pub kind: Option<Type>,
    /// Whether its answers are lists.
    #[serde(default)]
    pub list: bool,
    /// What its answers are chosen from.
    pub options: Option<Vec<Literal>>,
    /// Which model it asks: the NAME of a `[model.NAME]`.
    pub model: Option<String>,
}

/// What a call is asked of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum AskedOf {
    /// Each value, as `LLMMap` is.
    #[default]
    Values,
    /// The rows of queries, as `LLMQA` is.
    Rows,
}

/// What a slot of a question is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Slot<'q> {
    /// Words.
    Words(&'q str),
    /// The argument of this name.
    Argument(&'q str),
}

impl IngredientTable {
    /// The question, taken apart at its slots.
    #[must_use]
    pub fn slots(&self) -> Vec<Slot<'_>> {
        let mut rest = self.question.as_str();
        let mut slots = Vec::new();
        while let Some(open) = rest.find('{') {
            let Some(close) = rest[open..].find('}').map(|n| open + n) else { break };
            slots.push(Slot::Words(&rest[..open]));
            slots.push(Slot::Argument(rest[open + 1..close].trim()));
            rest = &rest[close + 1..];
        }
        slots.push(Slot::Words(rest));
        slots
    }
}

/// Whether a word can name an ingredient or an argument.
fn is_name(word: &str) -> bool {
    let mut chars = word.chars();
    chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
}

impl Check<'_> {
    /// The ingredients of a spec; `models` are the names of those that it has.
    pub(super) fn ingredients(
        &mut self,
        tables: &[IngredientTable],
        models: &[&str],
    ) -> Vec<IngredientTable> {
        let mut names: HashSet<String> =
            ingredients::all().iter().map(|i| i.name().to_lowercase()).collect();
        for (n, table) in tables.iter().enumerate() {
            let place = [Step::from("ingredient"), n.into()];
            let at = |field: &str| join(&place, &[field.into()]);
            let name = &table.name;
            if !is_name(name) {
                self.error(
                    &at("name"),
                    &format!("`{name}` cannot name an ingredient"),
                    "expected letters, digits and _",
                    "",
                );
            } else if !names.insert(name.to_lowercase()) {
                self.error(
                    &at("name"),
                    &format!("there is an ingredient `{name}` already"),
                    "",
                    "",
                );
            }
            if table.question.trim().is_empty() {
                self.error(&at("question"), &format!("`{name}` asks nothing"), "", "");
            }
            if table.arguments.is_empty() {
                let label = "expected what it is asked about";
                self.error(&at("arguments"), &format!("`{name}` has no argument"), label, "");
            }
            let mut seen = HashSet::new();
            for (n, argument) in table.arguments.iter().enumerate() {
                let here = join(&at("arguments"), &[n.into()]);
                if !is_name(argument) {
                    let message = format!("`{argument}` cannot name an argument");
                    self.error(&here, &message, "expected letters, digits and _", "");
                } else if !seen.insert(argument.to_lowercase()) {
                    self.error(&here, &format!("`{argument}` stands twice"), "", "");
                }
            }
            for slot in table.slots() {
                let Slot::Argument(slot) = slot else { continue };
                if table.arguments.iter().any(|a| a == slot) {
                    continue;
                }
                let help = nearest(slot, table.arguments.iter().map(String::as_str))
                    .map_or_else(String::new, |near| format!("did you mean {{{near}}}?"));
                let message = format!("`{{{slot}}}` is no argument of `{name}`");
                self.error(&at("question"), &message, "", &help);
            }
            if table.options.as_ref().is_some_and(Vec::is_empty) {
                self.error(
                    &at("options"),
                    &format!("`{name}` has no options to choose from"),
                    "",
                    "",
                );
            }
            if let Some(model) = table.model.as_ref().filter(|m| !models.contains(&m.as_str())) {
                self.error(&at("model"), &format!("there is no [model.{model}]"), "", "");
            }
        }
        tables.to_vec()
    }
}
