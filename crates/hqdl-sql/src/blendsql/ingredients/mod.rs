//! Ingredients that ask the model themselves, one file for each kind: accepted arguments, subject and
//! answer type. To add one, create its file and add it to
//! [`list_ingredients`]. If its arguments are rewritten, it is also a macro of the engine.

mod answer;
mod join;
pub(super) mod keyword;
mod map;
mod qa;
mod reduce;
mod validate;
mod vectors;

use std::ops::Range;

pub use answer::{AnswerFunction, SummaryFunction};
pub use join::LlmJoin;
pub use keyword::{Keyword, MEDIA_KEYWORDS, MEDIA_KINDS, OPTIONS};
pub use map::LlmMap;
pub(in crate::blendsql) use map::SLOT;
pub use qa::LlmQa;
pub use reduce::LlmReduce;
pub use validate::LlmValidate;
pub use vectors::{EmbedFunction, SimilarityFunction};

use super::{Argument, SqlError};
use hqdl_values::Type;

/// Subject of a call, which determines the cache key of its answers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Subject {
    /// One answer per distinct value or row of values.
    #[default]
    Value,
    /// One answer per distinct document, keyed by the digest of the document's text.
    Document,
    /// A single answer for all rows of the queries together, keyed by the rows' digest.
    Rows,
    /// One answer per pair of values from two columns: whether the values match.
    Pair,
    /// One embedding per distinct text.
    Embedding,
}

/// An ingredient: its accepted arguments and its subject.
pub trait Ingredient: Sync {
    /// Returns the name, in `BlendSQL`'s spelling.
    fn name(&self) -> &'static str;

    /// Returns an example of a call and a description of its result, for a model that writes
    /// queries.
    fn usage(&self) -> (&'static str, &'static str);

    /// Returns the subject of the ingredient's questions.
    fn subject(&self) -> Subject;

    /// Returns true if the ingredient accepts this keyword argument.
    fn accepts_keyword(&self, keyword: Keyword) -> bool {
        !keyword.is_join_only() && keyword != Keyword::Media
    }

    /// Returns the position of the question among the positional arguments, starting at 1.
    fn question_position(&self) -> usize {
        1
    }

    /// Returns true if the question is optional.
    fn is_question_optional(&self) -> bool {
        false
    }

    /// Validates the arguments of a call.
    ///
    /// # Errors
    /// Returns [`SqlError`] with the location if there are too few or too many values.
    fn validate_arguments(&self, _arguments: &Arguments<'_>) -> Result<(), SqlError> {
        Ok(())
    }

    /// Returns true if an answer about only some rows of a group would be wrong.
    fn needs_all_rows(&self) -> bool {
        self.subject() == Subject::Rows
    }

    /// Returns the type of the ingredient's answers, if that type is fixed.
    fn fixed_return_type(&self) -> Option<Type> {
        None
    }

    /// Returns the default question for a call that does not specify a question.
    fn default_question(&self) -> &'static str {
        ""
    }
}

/// Arguments of a call, for [`Ingredient::validate_arguments`].
pub struct Arguments<'a> {
    /// Question text.
    pub question: &'a str,
    /// Values, in order.
    pub values: &'a [Argument],
    /// Byte range from the end of the name to the end of the call.
    pub empty_span: Range<usize>,
    /// Byte range of the closing parenthesis.
    pub close_span: Range<usize>,
}

/// Reference to a static ingredient.
pub type IngredientRef = &'static dyn Ingredient;

/// Returns all ingredients that are written in braces.
#[must_use]
pub fn list_ingredients() -> [IngredientRef; 5] {
    [&LlmMap, &LlmQa, &LlmValidate, &LlmJoin, &LlmReduce]
}

/// Describes every call that does not need embeddings, one per line: an example, what it returns,
/// and its keyword arguments.
#[must_use]
pub fn describe_calls() -> String {
    let functions: [IngredientRef; 2] = [&AnswerFunction, &SummaryFunction];
    let braces = list_ingredients().into_iter().map(|i| (i, keyword::list_accepted_names(i)));
    let functions = functions.into_iter().map(|i| (i, String::new()));
    let describe = |(ingredient, keywords): (IngredientRef, String)| {
        let (example, result) = ingredient.usage();
        match keywords.as_str() {
            "" => format!("- {example}: {result}"),
            keywords => format!("- {example}: {result}. Keyword arguments: {keywords}"),
        }
    };
    braces.chain(functions).map(describe).collect::<Vec<_>>().join("\n")
}

impl std::fmt::Debug for dyn Ingredient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Compares by name, because names are unique.
impl PartialEq for dyn Ingredient {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}
