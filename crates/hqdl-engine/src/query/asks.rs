//! Targets of calls, and the conversion of their answers.

use std::sync::Arc;

use rusqlite::types::Value as Sql;

use hqdl_sql::blendsql::Quantifier;

/// Target of a call.
#[derive(Debug, Clone)]
pub enum Asks {
    /// A cell of the entity that the call's values identify.
    Cell {
        /// Position of the expansion.
        target: usize,
        /// Position of the column.
        column: usize,
        /// Conversion of the value.
        form: ValueForm,
    },
    /// A cell of the document that is the call's value, identified by its digest.
    Document {
        /// Position of the expansion.
        target: usize,
        /// Position of the column.
        column: usize,
        /// Whether an answer from only some passages of the document would be wrong.
        whole: bool,
        /// Conversion of the value.
        form: ValueForm,
    },
    /// A cell of the rows in the call's contexts, identified by their digest.
    Rows {
        /// Position of the expansion.
        target: usize,
        /// Conversion of the value.
        form: ValueForm,
    },
    /// Whether two values are partners in a join.
    Pair {
        /// Number of the join.
        join: usize,
    },
}

/// Conversion of an answer to the value of a call.
#[derive(Debug, Clone, Default)]
pub struct ValueForm {
    /// Converts integral reals to integers, since the query does not state the type.
    pub whole: bool,
    /// Converts texts that are numbers to numbers, since the query implies no type.
    pub untold: bool,
    /// Regular expression that the value must match.
    pub regex: Option<Arc<regex::Regex>>,
    /// Words for yes and no, if a truth value is returned as text.
    pub words: Option<[String; 2]>,
    /// Number of values that a list must have.
    pub quantity: Option<Quantifier>,
}

impl ValueForm {
    /// Converts a value.
    #[must_use]
    pub fn of(&self, value: &Sql) -> Sql {
        match value {
            Sql::Real(r) if self.whole && r.fract() == 0.0 && r.abs() < 9e15 => {
                Sql::Integer(*r as i64)
            }
            Sql::Integer(truth @ (0 | 1)) if self.words.is_some() => {
                let word = self.words.as_ref().map(|words| words[usize::from(*truth == 0)].clone());
                word.map_or(Sql::Null, Sql::Text)
            }
            Sql::Null => Sql::Null,
            other if self.regex.as_ref().is_some_and(|r| !r.is_match(&text(other))) => Sql::Null,
            Sql::Text(list) if self.quantity.is_some_and(|q| !q.holds(list)) => Sql::Null,
            Sql::Text(text) if self.untold => number(text).unwrap_or_else(|| value.clone()),
            other => other.clone(),
        }
    }
}

/// Returns the number if a text is its canonical spelling.
pub(super) fn number(text: &str) -> Option<Sql> {
    if !text.ends_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    if let Ok(whole) = text.parse::<i64>() {
        return (whole.to_string() == text).then_some(Sql::Integer(whole));
    }
    let real: f64 = text.parse().ok()?;
    (format!("{real:?}") == text && !text.contains('e')).then_some(Sql::Real(real))
}

/// Returns the text that a regular expression is matched against.
fn text(value: &Sql) -> String {
    match value {
        Sql::Null | Sql::Blob(_) => String::new(),
        Sql::Integer(i) => i.to_string(),
        Sql::Real(r) => r.to_string(),
        Sql::Text(text) => text.clone(),
    }
}
