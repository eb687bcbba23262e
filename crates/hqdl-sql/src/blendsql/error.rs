//! Errors in the text of a query: a message, a location and a hint.

use std::ops::Range;

use annotate_snippets::Renderer;

use super::ingredients::keyword::list_accepted_names;
use super::ingredients::{self, Ingredient};
use crate::translated::TextTooLong;
use hqdl_values::problem::{self, Problem, Severity};

/// An error in a query, with its location in the text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct SqlError {
    /// Error message that names the offending part.
    pub message: String,
    /// Byte range in the query's text.
    pub span: Range<usize>,
    /// Text next to the caret, such as what the parser expected.
    pub label: String,
    /// Suggested fix.
    pub help: Option<String>,
    /// Whether the help is a "did you mean …?" suggestion.
    pub is_suggestion: bool,
}

impl SqlError {
    pub(crate) fn new(
        span: Range<usize>,
        message: impl Into<String>,
        label: impl Into<String>,
    ) -> Self {
        Self {
            message: message.into(),
            span,
            label: label.into(),
            help: None,
            is_suggestion: false,
        }
    }

    /// Returns the error with its span mapped to another text.
    #[must_use]
    pub fn map_span(self, map: impl FnOnce(Range<usize>) -> Range<usize>) -> Self {
        Self { span: map(self.span), ..self }
    }

    /// Creates an error for a construct that has no translation to `SQLite`. `help` suggests what to
    /// write instead.
    pub(crate) fn untranslatable(span: Range<usize>, construct: &str, help: &str) -> Self {
        let message = format!("hqdl cannot translate {construct} to SQLite");
        Self::new(span, message, "here").with_help(help)
    }

    pub(crate) fn with_help(self, help: impl Into<String>) -> Self {
        Self { help: Some(help.into()), ..self }
    }

    /// Adds a "did you mean `name`?" suggestion.
    pub(crate) fn with_suggestion(self, name: &str) -> Self {
        Self { is_suggestion: true, ..self.with_help(format!("did you mean `{name}`?")) }
    }

    /// Returns the list of valid names if the error is an unknown name.
    #[must_use]
    pub fn known_names_hint(&self) -> Option<String> {
        let names = if self.message.starts_with("there is no ingredient") {
            ingredients::list_ingredients().map(Ingredient::name).join(", ")
        } else {
            let (name, _) = self.message.split_once("` has no argument `")?;
            let name = name.trim_start_matches('`');
            list_accepted_names(
                ingredients::list_ingredients().into_iter().find(|i| i.name() == name)?,
            )
        };
        let known = format!("available: {names}");
        let is_listed = |help: &String| *help == known || help.starts_with("the ingredients are ");
        (!self.help.as_ref().is_some_and(is_listed)).then_some(known)
    }

    /// Renders the error with line, column and caret, in the format of spec problems.
    #[must_use]
    pub fn render(&self, sql: &str, colour: bool) -> String {
        let renderer = if colour { Renderer::styled() } else { Renderer::plain() };
        let end = floor_char_boundary(sql, self.span.end);
        let problem = Problem {
            severity: Severity::Error,
            message: self.message.clone(),
            span: Some(floor_char_boundary(sql, self.span.start).min(end)..end),
            label: self.label.clone(),
            help: self.help.clone(),
        };
        problem::render_problem(&renderer, None, sql, &problem)
    }
}

impl From<TextTooLong> for SqlError {
    fn from(TextTooLong(span): TextTooLong) -> Self {
        Self::new(span, "the values of this call are too long", "their text is copied")
            .with_help("compute them in a WITH clause first")
    }
}

/// Returns the nearest char boundary at or before `at`. The fields of [`SqlError`] are public, and
/// a span from a different text must not panic.
fn floor_char_boundary(sql: &str, at: usize) -> usize {
    let at = at.min(sql.len());
    (0..=at).rev().find(|n| sql.is_char_boundary(*n)).unwrap_or(0)
}
