//! Questions that queries asked live: what they were, where their values came
//! from, what they cost; and the columns that a model bound questions to.

use hqdl_values::key::Meaning;

/// Where a question was asked: its meaning's id, what its values came from, and the
/// list that was given, as JSON.
pub(crate) type Note = (u32, QuestionOrigin, Option<String>);

/// Tells each question where its values came from, as was noted, oldest first; the
/// last list counts.
pub(crate) fn attribute(questions: &mut [LiveQuestion], noted: Vec<Note>) {
    for (meaning, origin, list) in noted {
        let Some(question) = questions.iter_mut().find(|q| q.id == meaning) else { continue };
        question.list = list.and_then(|l| serde_json::from_str(&l).ok()).or(question.list.take());
        if !origin.column.is_empty() {
            question.origins.push(origin);
        }
    }
}

/// The column of the database that a question's values came from.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct QuestionOrigin {
    /// Its table or view; empty when the values are no column.
    pub table: String,
    /// The column.
    pub column: String,
}

/// A question that was asked live of values.
#[derive(Debug, Clone, PartialEq)]
pub struct LiveQuestion {
    /// What was asked.
    pub meaning: Meaning,
    /// The id of that in the journal.
    pub id: u32,
    /// The value list, where it is remembered.
    pub list: Option<Vec<String>>,
    /// Where the values came from.
    pub origins: Vec<QuestionOrigin>,
    /// The models that were asked.
    pub models: Vec<String>,
    /// Values that were answered.
    pub values: u64,
    /// Requests that it was part of.
    pub requests: u64,
    /// Its share of their input tokens,
    pub input_tokens: f64,
    /// output tokens,
    pub output_tokens: f64,
    /// and price, in USD.
    pub cost_usd: f64,
    /// When it was last asked, RFC 3339.
    pub last_asked: String,
}

/// A question that a model bound to a column, or to none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Learned {
    /// The question as it was asked.
    pub ask: String,
    /// The model.
    pub model: String,
    /// The expansion; empty when none answers.
    pub expansion: String,
    /// Its column.
    pub column: String,
    /// How the column answers; `none` when none does.
    pub operator: String,
    /// What the column is compared with.
    pub literal: String,
    /// The completion that said so.
    pub completion: i64,
    /// When, RFC 3339.
    pub bound_at: String,
}
