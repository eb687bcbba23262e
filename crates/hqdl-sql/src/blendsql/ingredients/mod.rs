//! The ingredients, a file each: which arguments one takes, what it asks about, and
//! what its answers are read as. A new one is its file and a line in [`all`].

mod answer;
mod join;
pub(super) mod keyword;
mod map;
mod qa;
mod validate;

use std::ops::Range;

pub use answer::{AnswerFunction, SummaryFunction};
pub use join::LlmJoin;
pub use keyword::Keyword;
pub use map::LlmMap;
pub use qa::LlmQa;
pub use validate::LlmValidate;

use super::{Argument, SqlError};
use hqdl_values::Type;

/// What a call is asked about; this decides how its answers are looked up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Subject {
    /// Each value, or row of values: one answer for each different one.
    #[default]
    Value,
    /// Each document: the same, by the digest of the text.
    Document,
    /// The rows of queries together: one answer for their digest.
    Rows,
    /// Pairs of values of two columns: whether they are partners.
    Pair,
}

/// An ingredient: what a call of it may say, and what it asks.
pub trait Ingredient: Sync {
    /// The name as `BlendSQL` spells it.
    fn name(&self) -> &'static str;

    /// What it asks about.
    fn subject(&self) -> Subject;

    /// Whether it takes this argument.
    fn takes(&self, keyword: Keyword) -> bool {
        !matches!(keyword, Keyword::Left | Keyword::Right | Keyword::Narrow | Keyword::Image)
    }

    /// The place of the question among the arguments without a keyword, from 1.
    fn question_at(&self) -> usize {
        1
    }

    /// Whether a call of it may have no question.
    fn question_may_lack(&self) -> bool {
        false
    }

    /// Checks the values of a call.
    ///
    /// # Errors
    /// [`SqlError`] when there are too few or too many, with their place.
    fn check(&self, _written: &Arguments<'_>) -> Result<(), SqlError> {
        Ok(())
    }

    /// Returns whether an answer about a part of the rows of a group would be wrong.
    fn needs_all_rows(&self) -> bool {
        self.subject() == Subject::Rows
    }

    /// The type of its answers, when it has but one.
    fn returns(&self) -> Option<Type> {
        None
    }

    /// What it asks where a call has no question.
    fn default_question(&self) -> &'static str {
        ""
    }
}

/// The arguments of a call, for [`Ingredient::check`].
pub struct Arguments<'a> {
    /// The question.
    pub question: &'a str,
    /// The values, in order.
    pub values: &'a [Argument],
    /// Behind the name, up to the end of the call.
    pub empty: Range<usize>,
    /// What closes the call.
    pub close: Range<usize>,
}

/// Which ingredient a call is of.
pub type Which = &'static dyn Ingredient;

/// All that are written in braces.
#[must_use]
pub fn all() -> [Which; 4] {
    [&LlmMap, &LlmQa, &LlmValidate, &LlmJoin]
}

impl std::fmt::Debug for dyn Ingredient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Names are unique.
impl PartialEq for dyn Ingredient {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}
