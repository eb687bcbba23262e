//! `embed(text)` and `similarity(text, text)`, which read the embeddings of texts. Both are
//! functions and written without braces.

use super::{Ingredient, Subject};

/// The function `embed(text)`.
pub struct EmbedFunction;

impl Ingredient for EmbedFunction {
    fn name(&self) -> &'static str {
        "embed"
    }

    fn usage(&self) -> (&'static str, &'static str) {
        ("embed(t.text)", "the embedding of a text, as a BLOB of 32-bit floats")
    }

    fn subject(&self) -> Subject {
        Subject::Embedding
    }
}

/// The function `similarity(text, text)`.
pub struct SimilarityFunction;

impl Ingredient for SimilarityFunction {
    fn name(&self) -> &'static str {
        "similarity"
    }

    fn usage(&self) -> (&'static str, &'static str) {
        (
            "similarity(t.text, 'late delivery')",
            "how similar the meanings of two texts are: a number from -1 to 1",
        )
    }

    fn subject(&self) -> Subject {
        Subject::Embedding
    }
}
