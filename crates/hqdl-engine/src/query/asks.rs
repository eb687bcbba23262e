//! What calls ask for, and the form they give to what is answered.

use std::sync::Arc;

use rusqlite::types::Value as Sql;

use hqdl_sql::blendsql::Quantifier;

/// What a call asks for.
#[derive(Debug, Clone)]
pub enum Asks {
    /// A cell of the entity that its values are.
    Cell {
        /// The expansion.
        target: usize,
        /// The column.
        column: usize,
        /// The form of its value.
        form: ValueForm,
    },
    /// A cell of the document that its value is: its digest is the entity.
    Document {
        /// The expansion.
        target: usize,
        /// The column.
        column: usize,
        /// Whether an answer from some passages of the document would be wrong.
        whole: bool,
        /// The form of its value.
        form: ValueForm,
    },
    /// A cell of the rows of its contexts: their digest is the entity.
    Rows {
        /// The expansion.
        target: usize,
        /// The form of its value.
        form: ValueForm,
    },
    /// Whether two values are partners.
    Pair {
        /// Its number among the joins.
        join: usize,
    },
}

/// The form that a call gives its value.
#[derive(Debug, Clone, Default)]
pub struct ValueForm {
    /// A number that nobody said the type of is whole when it can be.
    pub whole: bool,
    /// Nothing tells its type: the spelling of a number is the number.
    pub untold: bool,
    /// What it must match to be a value.
    pub regex: Option<Arc<regex::Regex>>,
    /// The words for yes and no, where these are said in words.
    pub words: Option<[String; 2]>,
    /// How many values it must hold, when it is a list.
    pub quantity: Option<Quantifier>,
}

impl ValueForm {
    /// A value in this form.
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

/// The number that a text is the one spelling of.
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

/// A value as a regular expression sees it.
fn text(value: &Sql) -> String {
    match value {
        Sql::Null | Sql::Blob(_) => String::new(),
        Sql::Integer(i) => i.to_string(),
        Sql::Real(r) => r.to_string(),
        Sql::Text(text) => text.clone(),
    }
}
