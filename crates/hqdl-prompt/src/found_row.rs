//! Rows found in a completion before the whole completion has been checked.

use std::fmt::{Display, Formatter};

use serde_json::{Map, Value as Json};

use hqdl_values::cell::Answer;

/// Row found in a completion.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct FoundRow {
    /// Position of the row in the request.
    pub row: usize,
    /// One answer per column, or the reason why there is none.
    pub cells: Result<Vec<Answer>, String>,
    /// Note about deviations that were tolerated to match the row; `None` if there were none.
    pub note: Option<String>,
    /// Text that the row was parsed from.
    pub raw: RawRow,
    /// Answers read so far; used if `cells` is an error because the end of the row is uncertain.
    pub partial: Vec<Answer>,
}

impl FoundRow {
    /// Returns the row with `reason` in place of its cells, because its end is uncertain.
    pub fn discard_unfinished_cells(self, reason: &str) -> Self {
        let partial = self.cells.unwrap_or_default();
        Self { cells: Err(reason.to_owned()), partial, ..self }
    }

    /// Returns true if two readings of the same row contradict each other.
    pub fn contradicts(&self, other: &Self) -> bool {
        let answers = |row: &Self| row.cells.as_ref().map_or(row.partial.clone(), Clone::clone);
        let (own, others) = (answers(self), answers(other));
        let is_same = |(a, b): (&Answer, &Answer)| a.state == b.state && a.value == b.value;
        !own.is_empty()
            && !others.is_empty()
            && (own.len() != others.len() || !own.iter().zip(&others).all(is_same))
    }
}

/// Text that a row was parsed from. A JSON object is serialized only for an error message or a
/// note.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum RawRow {
    Line(String),
    Object(Map<String, Json>),
}

impl Display for RawRow {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Line(line) => f.write_str(line),
            // `serde_json` writes the same text as `Display` of `Json::Object`.
            Self::Object(object) => f.write_str(&serde_json::to_string(object).unwrap_or_default()),
        }
    }
}

/// Whether a text is complete, and where it may be truncated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Truncation {
    /// The text is complete.
    Complete,
    /// The text ends with a complete line; a row that is still open there is discarded.
    AtLineEnd,
    /// The text may be truncated anywhere.
    Anywhere,
}

/// Returns true if a line is a code fence. A fence is on its own line; anywhere else it is part of
/// a value.
pub(super) fn is_fence(line: &str) -> bool {
    let language = line.trim().strip_prefix("```");
    language.is_some_and(|l| l.chars().all(|c| c.is_alphanumeric() || "+-_ ".contains(c)))
}
