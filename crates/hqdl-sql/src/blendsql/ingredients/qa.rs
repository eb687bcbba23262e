//! `LLMQA`: asks a question about the rows of queries.

use super::{Ingredient, Subject};

/// The ingredient `{{LLMQA('question', (SELECT …), …)}}`.
pub struct LlmQa;

impl Ingredient for LlmQa {
    fn name(&self) -> &'static str {
        "LLMQA"
    }

    fn subject(&self) -> Subject {
        Subject::Rows
    }
}
