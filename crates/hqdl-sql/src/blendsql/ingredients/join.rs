//! `LLMJoin`: finds the matching values of two columns.

use super::{Arguments, Ingredient, Keyword, Subject};
use crate::blendsql::SqlError;

/// The ingredient `{{LLMJoin(left, right, join_criteria='…', narrow=N)}}`.
pub struct LlmJoin;

impl Ingredient for LlmJoin {
    fn name(&self) -> &'static str {
        "LLMJoin"
    }

    fn usage(&self) -> (&'static str, &'static str) {
        ("t JOIN u ON {{LLMJoin(t.a, u.b)}}", "a join of the values that mean the same thing")
    }

    fn subject(&self) -> Subject {
        Subject::Pair
    }

    fn accepts_keyword(&self, keyword: Keyword) -> bool {
        keyword.is_join_only()
            || matches!(
                keyword,
                Keyword::Question | Keyword::Model | Keyword::Shots | Keyword::Tuning
            )
    }

    fn question_position(&self) -> usize {
        3
    }

    fn is_question_optional(&self) -> bool {
        true
    }

    fn default_question(&self) -> &'static str {
        "the values of the list that mean the same thing"
    }

    fn validate_arguments(&self, arguments: &Arguments<'_>) -> Result<(), SqlError> {
        match arguments.values {
            [] | [_] => Err(SqlError::new(
                arguments.empty_span.clone(),
                "`LLMJoin` needs two columns",
                "expected the left and the right column",
            )
            .with_help("write {{LLMJoin(t.a, u.b)}}")),
            [_, _] => Ok(()),
            [_, _, third, ..] => {
                let error = SqlError::new(
                    third.span(),
                    "`LLMJoin` joins two columns",
                    "one column too many",
                );
                Err(error.with_help("describe which values belong together with join_criteria='…'"))
            }
        }
    }
}
