//! Ingredients that answer an instruction about all values of a group together.

use super::{Arguments, Ingredient, Keyword, Subject};
use crate::blendsql::SqlError;

/// The ingredient `{{LLMReduce('instruction', value)}}`.
pub static LLM_REDUCE: GroupIngredient = GroupIngredient {
    name: "LLMReduce",
    usage: (
        "{{LLMReduce('Summarize the complaints', t.review)}}",
        "one answer about all values of a group",
    ),
};

/// An ingredient that answers an instruction about all values of a group.
pub struct GroupIngredient {
    name: &'static str,
    usage: (&'static str, &'static str),
}

impl Ingredient for GroupIngredient {
    fn name(&self) -> &'static str {
        self.name
    }

    fn usage(&self) -> (&'static str, &'static str) {
        self.usage
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
        let name = self.name;
        match arguments.values {
            [_] => Ok(()),
            [] => Err(SqlError::new(
                arguments.close_span.clone(),
                format!("`{name}` has no values to reduce"),
                "expected a column or an expression before this",
            )
            .with_help(format!("write {{{{{name}('…', t.column)}}}}"))),
            [_, second, ..] => Err(SqlError::new(
                second.span(),
                format!("`{name}` reduces one value of each row"),
                "one value too many",
            )
            .with_help("join the values of a row: t.a || ': ' || t.b")),
        }
    }

    fn needs_all_rows(&self) -> bool {
        true
    }
}
