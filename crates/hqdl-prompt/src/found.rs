//! What is found in a completion, before it is known to be whole.

use hqdl_values::cell::Answer;

/// A row found in a completion.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct FoundRow {
    /// Position among the rows asked about.
    pub row: usize,
    /// An answer a column, or why there is none.
    pub cells: Result<Vec<Answer>, String>,
    /// What was overlooked to place it.
    pub note: Option<String>,
    /// The words it was read from.
    pub text: String,
}

/// How a text ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    /// All was written.
    Complete,
    /// With a whole line; what is open there is no row.
    Lines,
    /// Anywhere, where it was cut.
    Cut,
}

/// Whether a line is a code fence. A fence has a line of its own, or it is part of
/// a value.
pub(super) fn is_fence(line: &str) -> bool {
    let language = line.trim().strip_prefix("```");
    language.is_some_and(|l| l.chars().all(|c| c.is_alphanumeric() || "+-_ ".contains(c)))
}
