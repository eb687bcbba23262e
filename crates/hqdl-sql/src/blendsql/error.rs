//! Why a query cannot be read: a message, a place, what was expected there.

use std::ops::Range;

use annotate_snippets::Renderer;

use super::ingredients::keyword::listed;
use super::ingredients::{self, Ingredient};
use hqdl_values::problem::{self, Problem, Severity};

/// Why a query cannot be read, with its place in the text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct SqlError {
    /// What is wrong, naming the thing.
    pub message: String,
    /// Where, as bytes of the query's text.
    pub span: Range<usize>,
    /// What was expected, beside the caret.
    pub label: String,
    /// What to do about it.
    pub help: Option<String>,
    /// Whether the help is the question whether another name was meant.
    pub suggests: bool,
}

impl SqlError {
    pub(crate) fn new(
        span: Range<usize>,
        message: impl Into<String>,
        label: impl Into<String>,
    ) -> Self {
        Self { message: message.into(), span, label: label.into(), help: None, suggests: false }
    }

    pub(crate) fn help(self, help: impl Into<String>) -> Self {
        Self { help: Some(help.into()), ..self }
    }

    /// Suggests the name that was perhaps meant.
    pub(crate) fn suggest(self, name: &str) -> Self {
        Self { suggests: true, ..self.help(format!("did you mean `{name}`?")) }
    }

    /// The names there are, where one is not known.
    #[must_use]
    pub fn known(&self) -> Option<String> {
        let names = if self.message.starts_with("there is no ingredient") {
            ingredients::all().map(Ingredient::name).join(", ")
        } else {
            let (name, _) = self.message.split_once("` has no argument `")?;
            let name = name.trim_start_matches('`');
            listed(ingredients::all().into_iter().find(|i| i.name() == name)?)
        };
        let known = format!("available: {names}");
        (self.help.as_ref() != Some(&known)).then_some(known)
    }

    /// The error with line, column and caret, as problems of a spec are shown.
    #[must_use]
    pub fn render(&self, sql: &str, colour: bool) -> String {
        let renderer = if colour { Renderer::styled() } else { Renderer::plain() };
        let end = boundary(sql, self.span.end);
        let problem = Problem {
            severity: Severity::Error,
            message: self.message.clone(),
            span: Some(boundary(sql, self.span.start).min(end)..end),
            label: self.label.clone(),
            help: self.help.clone(),
        };
        problem::render(&renderer, None, sql, &problem)
    }
}

/// The nearest place at or before `at` where a character begins: the fields are
/// public, and a span of another text must not panic.
fn boundary(sql: &str, at: usize) -> usize {
    let at = at.min(sql.len());
    (0..=at).rev().find(|n| sql.is_char_boundary(*n)).unwrap_or(0)
}
