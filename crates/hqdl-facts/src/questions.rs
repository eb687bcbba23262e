//! Live questions of queries, with the origin and cost of their values, and the columns that a
//! model bound questions to.

use hqdl_values::key::ColumnIdentity;

/// Use of a question: the id of its identity, the origin of its values, and its value list as JSON.
pub(crate) type QuestionUse = (u32, QuestionOrigin, Option<String>);

/// Attaches to each question the origins of its values, oldest first. If the uses have different
/// value lists, the last one wins.
pub(crate) fn attach_origins(questions: &mut [LiveQuestion], uses: Vec<QuestionUse>) {
    for (identity_id, origin, list) in uses {
        let Some(question) = questions.iter_mut().find(|q| q.id == identity_id) else { continue };
        question.list = list.and_then(|l| serde_json::from_str(&l).ok()).or(question.list.take());
        if !origin.column.is_empty() {
            question.origins.push(origin);
        }
    }
}

/// The database column that a question's values came from.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct QuestionOrigin {
    /// Table or view that contains the values; empty if they do not come from a column.
    pub table: String,
    /// Column that contains the values.
    pub column: String,
}

/// A live question that queries asked about values.
#[derive(Debug, Clone, PartialEq)]
pub struct LiveQuestion {
    /// Identity of the question.
    pub identity: ColumnIdentity,
    /// Id of the identity in the journal.
    pub id: u32,
    /// The question's value list, if it is stored.
    pub list: Option<Vec<String>>,
    /// The columns that the values came from.
    pub origins: Vec<QuestionOrigin>,
    /// Names of the models that were asked.
    pub models: Vec<String>,
    /// Number of answered values.
    pub values: u64,
    /// Number of requests that contained the question.
    pub requests: u64,
    /// The question's share of the requests' input tokens.
    pub input_tokens: f64,
    /// The question's share of the output tokens.
    pub output_tokens: f64,
    /// The question's share of the cost, in USD.
    pub cost_usd: f64,
    /// Time at which the question was last asked, RFC 3339.
    pub last_asked: String,
}

/// A question that a model bound to a column, or for which the model found no column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuestionBinding {
    /// Text of the question.
    pub ask: String,
    /// Name of the model that chose the column.
    pub model: String,
    /// Expansion that contains the column; empty if no column answers the question.
    pub expansion: String,
    /// Column that answers the question; empty if there is none.
    pub column: String,
    /// How the column answers the question; `none` if no column does.
    pub operator: String,
    /// The value that the column is compared with.
    pub literal: String,
    /// Id of the completion that contains the model's choice.
    pub completion: i64,
    /// Time at which the question was bound, RFC 3339.
    pub bound_at: String,
}
