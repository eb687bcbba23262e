//! Targets of calls, and conversion of their answers.

use std::sync::Arc;

use rusqlite::types::Value as Sql;

use crate::query::cells::reduction::ReductionColumns;
use hqdl_sql::blendsql::Quantifier;

/// Target of a call.
#[derive(Debug, Clone)]
pub enum CallTarget {
    /// A cell of the entity that the call's values identify.
    Cell {
        /// Index of the expansion among those that the query uses.
        target: usize,
        /// Index of the column in the expansion.
        column: usize,
        /// Conversion of the value.
        conversion: ValueConversion,
    },
    /// A cell of the document that is the call's value. The document is identified by its digest.
    Document {
        /// Index of the expansion among those that the query uses.
        target: usize,
        /// Index of the column in the expansion.
        column: usize,
        /// Columns that ask about the parts of a document that is too long for one question; `None`
        /// to show only the passages most similar to the question.
        reduction: Option<ReductionColumns>,
        /// Conversion of the value.
        conversion: ValueConversion,
    },
    /// A cell about the rows in the call's contexts. The rows are identified by their digest.
    Rows {
        /// Index of the expansion among those that the query uses.
        target: usize,
        /// Conversion of the value.
        conversion: ValueConversion,
    },
    /// The embeddings of the call's values.
    Embedding {
        /// Index of the expansion among those that the query uses.
        target: usize,
        /// Whether the call returns the similarity of two embeddings instead of an embedding.
        is_similarity: bool,
    },
    /// The answer to whether two values of a join match.
    Pair {
        /// Number of the join.
        join: usize,
    },
}

impl CallTarget {
    /// Returns the conversion of the answers; `None` for embeddings and pairs.
    #[must_use]
    pub fn conversion(&self) -> Option<&ValueConversion> {
        match self {
            Self::Cell { conversion, .. }
            | Self::Document { conversion, .. }
            | Self::Rows { conversion, .. } => Some(conversion),
            Self::Embedding { .. } | Self::Pair { .. } => None,
        }
    }

    /// Returns the columns that the call needs to reduce documents, as pairs of expansion and
    /// column indexes.
    pub fn reduced_columns(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let columns = match *self {
            Self::Document { target, column, reduction: Some(of), .. } => {
                [column, of.part, of.combined, of.result].map(|column| Some((target, column)))
            }
            _ => [None; 4],
        };
        columns.into_iter().flatten()
    }
}

/// Conversion of an answer to the value of a call.
#[derive(Debug, Clone, Default)]
pub struct ValueConversion {
    /// Whether whole real numbers become integers, because the query does not state the type.
    pub prefers_integer: bool,
    /// Whether texts that spell numbers become numbers, because the query implies no type.
    pub is_untyped: bool,
    /// Whether numbers become texts, because the query states that the answer is a text.
    pub is_text: bool,
    /// Regular expression that the value must match.
    pub regex: Option<Arc<regex::Regex>>,
    /// Words for yes and no, in this order, that replace a truth value; `None` if the call returns
    /// 1 or 0.
    pub yes_no_words: Option<[String; 2]>,
    /// Number of values that a list must have.
    pub item_count: Option<Quantifier>,
}

impl ValueConversion {
    /// Returns the converted value, or NULL if the regular expression or the item count rejects it.
    #[must_use]
    pub fn convert(&self, value: &Sql) -> Sql {
        match value {
            Sql::Real(r) if self.prefers_integer && r.fract() == 0.0 && r.abs() < 9e15 => {
                Sql::Integer(*r as i64)
            }
            Sql::Integer(_) | Sql::Real(_) if self.is_text => {
                self.convert(&Sql::Text(to_matched_text(value)))
            }
            Sql::Integer(truth @ (0 | 1)) if self.yes_no_words.is_some() => {
                let word =
                    self.yes_no_words.as_ref().map(|words| words[usize::from(*truth == 0)].clone());
                word.map_or(Sql::Null, Sql::Text)
            }
            Sql::Null => Sql::Null,
            other if self.regex.as_ref().is_some_and(|r| !r.is_match(&to_matched_text(other))) => {
                Sql::Null
            }
            Sql::Text(list) if self.item_count.is_some_and(|q| !q.accepts_list(list)) => Sql::Null,
            Sql::Text(text) if self.is_untyped => {
                parse_canonical_number(text).unwrap_or_else(|| value.clone())
            }
            other => other.clone(),
        }
    }
}

/// Converts a text to a number if it is the number's canonical spelling.
pub(in crate::query) fn parse_canonical_number(text: &str) -> Option<Sql> {
    if !text.ends_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    if let Ok(integer) = text.parse::<i64>() {
        return (integer.to_string() == text).then_some(Sql::Integer(integer));
    }
    let real: f64 = text.parse().ok()?;
    (format!("{real:?}") == text && !text.contains('e')).then_some(Sql::Real(real))
}

/// Returns the text that the regular expression is matched against.
fn to_matched_text(value: &Sql) -> String {
    match value {
        Sql::Null | Sql::Blob(_) => String::new(),
        Sql::Integer(i) => i.to_string(),
        Sql::Real(r) => r.to_string(),
        Sql::Text(text) => text.clone(),
    }
}
