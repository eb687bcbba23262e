//! `LLMValidate`: checks whether a claim about the rows of queries is true.

use super::{Ingredient, Subject};
use hqdl_values::Type;

/// The ingredient `{{LLMValidate('claim', (SELECT …), …)}}`.
pub struct LlmValidate;

impl Ingredient for LlmValidate {
    fn name(&self) -> &'static str {
        "LLMValidate"
    }

    fn usage(&self) -> (&'static str, &'static str) {
        (
            "{{LLMValidate('All are in Europe', (SELECT t.name FROM t))}}",
            "whether a claim about all rows of a subquery is true",
        )
    }

    fn subject(&self) -> Subject {
        Subject::Rows
    }

    fn fixed_return_type(&self) -> Option<Type> {
        Some(Type::Boolean)
    }
}
