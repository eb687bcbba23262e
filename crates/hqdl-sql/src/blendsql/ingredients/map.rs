//! `LLMMap`: asks a question about each value.

use super::{Arguments, Ingredient, Keyword, Subject};
use crate::blendsql::SqlError;

/// Mark around the number of a value that a question names, until the value's position is known.
pub(in crate::blendsql) const SLOT: char = '\u{0}';

/// The ingredient `{{LLMMap('question', value, context…)}}`.
pub struct LlmMap;

impl Ingredient for LlmMap {
    fn name(&self) -> &'static str {
        "LLMMap"
    }

    fn usage(&self) -> (&'static str, &'static str) {
        ("{{LLMMap('What is the capital?', t.country)}}", "the answer about the value of each row")
    }

    fn subject(&self) -> Subject {
        Subject::Value
    }

    fn accepts_keyword(&self, keyword: Keyword) -> bool {
        !keyword.is_join_only()
    }

    fn validate_arguments(&self, arguments: &Arguments<'_>) -> Result<(), SqlError> {
        if !arguments.values.is_empty() {
            return Ok(());
        }
        Err(SqlError::new(
            arguments.close_span.clone(),
            "`LLMMap` has no value to ask about",
            "expected a column or an expression before this",
        )
        .with_help(format!(
            "write {{{{LLMMap('{}', t.column)}}}}",
            shorten_question(arguments.question)
        )))
    }
}

/// Shortens a question for a help message.
fn shorten_question(question: &str) -> String {
    if question.contains(SLOT) {
        let texts = question.split(SLOT).step_by(2).map(|text| text.replace('\'', "''"));
        return texts.collect::<Vec<_>>().join("' || … || '");
    }
    let line = question.lines().next().unwrap_or_default();
    if line == question && line.chars().count() <= 40 {
        return line.replace('\'', "''");
    }
    line.chars().take(30).chain(['…']).collect::<String>().replace('\'', "''")
}
