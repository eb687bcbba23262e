//! What is found in a completion, before it is known to be whole.

use std::fmt::{Display, Formatter};

use serde_json::{Map, Value as Json};

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
    pub words: RowWords,
    /// What it says as far as it goes, if its end is uncertain and `cells` are an error.
    pub partial: Vec<Answer>,
}

impl FoundRow {
    /// Returns the row without its cells, for the reason that its end is uncertain.
    pub fn without_end(self, why: &str) -> Self {
        let partial = self.cells.unwrap_or_default();
        Self { cells: Err(why.to_owned()), partial, ..self }
    }

    /// Returns whether two readings of the same row contradict each other.
    pub fn contradicts(&self, other: &Self) -> bool {
        let says = |row: &Self| row.cells.as_ref().map_or(row.partial.clone(), Clone::clone);
        let (one, other) = (says(self), says(other));
        let is_same = |(a, b): (&Answer, &Answer)| a.state == b.state && a.value == b.value;
        !one.is_empty()
            && !other.is_empty()
            && (one.len() != other.len() || !one.iter().zip(&other).all(is_same))
    }
}

/// The words that a row was read from. An object is written again only for what is told of
/// it, which is nothing where all is well.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum RowWords {
    /// A line.
    Line(String),
    /// An object.
    Object(Map<String, Json>),
}

impl Display for RowWords {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Line(line) => f.write_str(line),
            // As `Json::Object` is displayed.
            Self::Object(object) => f.write_str(&serde_json::to_string(object).unwrap_or_default()),
        }
    }
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
