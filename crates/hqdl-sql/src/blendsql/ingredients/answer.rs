//! `SUQL`'s `answer(text, 'question')` and `summary(text)`, which ask a question about each
//! document. Both are functions and written without braces.

use super::{Ingredient, Subject};

/// The function `summary(text)`.
pub struct SummaryFunction;

impl Ingredient for SummaryFunction {
    fn name(&self) -> &'static str {
        "summary"
    }

    fn usage(&self) -> (&'static str, &'static str) {
        ("summary(t.text)", "a summary of a long text")
    }

    fn subject(&self) -> Subject {
        Subject::Document
    }

    fn needs_all_rows(&self) -> bool {
        true
    }
}

/// The function `answer(text, 'question')`.
pub struct AnswerFunction;

impl Ingredient for AnswerFunction {
    fn name(&self) -> &'static str {
        "answer"
    }

    fn usage(&self) -> (&'static str, &'static str) {
        (
            "answer(t.text, 'Is the review positive?')",
            "the answer to a question that a long text answers",
        )
    }

    fn subject(&self) -> Subject {
        Subject::Document
    }
}
