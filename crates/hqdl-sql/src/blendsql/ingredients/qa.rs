//! `LLMQA`: asks a question about the rows of queries.

use super::{Ingredient, Subject};

/// The ingredient `{{LLMQA('question', (SELECT …), …)}}`.
pub struct LlmQa;

impl Ingredient for LlmQa {
    fn name(&self) -> &'static str {
        "LLMQA"
    }

    fn usage(&self) -> (&'static str, &'static str) {
        (
            "{{LLMQA('Which is the oldest?', (SELECT t.name FROM t))}}",
            "one answer about all rows of a subquery",
        )
    }

    fn subject(&self) -> Subject {
        Subject::Rows
    }
}
