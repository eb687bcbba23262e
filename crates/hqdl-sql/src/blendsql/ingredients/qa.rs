//! `LLMQA`: a question about the rows of queries.

use super::{Ingredient, Subject};

/// `{{LLMQA('question', (SELECT …), …)}}`
pub struct LlmQa;

impl Ingredient for LlmQa {
    fn name(&self) -> &'static str {
        "LLMQA"
    }

    fn subject(&self) -> Subject {
        Subject::Rows
    }
}
