//! `LLMReduce`: answers an instruction about all values of a group together.

use super::{Arguments, Ingredient, Keyword, Subject};
use crate::blendsql::SqlError;

/// The ingredient `{{LLMReduce('instruction', value)}}`.
pub struct LlmReduce;

impl Ingredient for LlmReduce {
    fn name(&self) -> &'static str {
        "LLMReduce"
    }

    fn usage(&self) -> (&'static str, &'static str) {
        (
            "{{LLMReduce('Summarize the complaints', t.review)}}",
            "one answer about all values of a group",
        )
    }

    fn subject(&self) -> Subject {
        Subject::Document
    }

    fn accepts_keyword(&self, keyword: Keyword) -> bool {
        matches!(
            keyword,
            Keyword::Question
                | Keyword::Value
                | Keyword::ReturnType
                | Keyword::Model
                | Keyword::LongAnswer
                | Keyword::Shots
                | Keyword::Tuning
        )
    }

    fn validate_arguments(&self, arguments: &Arguments<'_>) -> Result<(), SqlError> {
        match arguments.values {
            [_] => Ok(()),
            [] => Err(SqlError::new(
                arguments.close_span.clone(),
                "`LLMReduce` has no values to reduce",
                "expected a column or an expression before this",
            )
            .with_help("write {{LLMReduce('…', t.column)}}")),
            [_, second, ..] => Err(SqlError::new(
                second.span(),
                "`LLMReduce` reduces one value of each row",
                "one value too many",
            )
            .with_help("join the values of a row: t.a || ': ' || t.b")),
        }
    }

    fn needs_all_rows(&self) -> bool {
        true
    }
}
