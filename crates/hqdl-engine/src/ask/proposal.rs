//! Columns that the model proposes for a question that no column answers.

use serde::{Deserialize, Serialize};

use crate::suggest::NewColumn;
use crate::suggest::edit::{self, EditError};
use hqdl_values::sql::{quote_name, quote_text};

/// A column that the model proposes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProposedColumn {
    /// Table whose rows the column describes.
    pub table: String,
    /// Columns of the table that identify a row to the model.
    pub key: Vec<String>,
    /// Name of the column.
    pub name: String,
    /// Name of the column's type.
    #[serde(rename = "type")]
    pub data_type: String,
    /// Whether a row can have several values.
    #[serde(default)]
    pub many: bool,
    /// Allowed values.
    #[serde(default)]
    pub values: Option<Vec<String>>,
    /// Description in the prompt.
    pub about: String,
    /// Question that the column answers.
    pub question: String,
}

impl ProposedColumn {
    /// Returns the spec's text with the column added, and the name of the column's expansion.
    /// `taken` contains the names of the database's tables.
    ///
    /// # Errors
    /// [`EditError`] if the text cannot be edited.
    pub fn add_to_spec(&self, text: &str, taken: &[String]) -> Result<(String, String), EditError> {
        edit::add_column(text, (self.table.as_str(), self.key.as_slice()), taken, |expansion| {
            self.to_new_column(expansion)
        })
    }

    /// Returns the TOML that adds the column to a spec with this text.
    ///
    /// # Errors
    /// [`EditError`] if the text cannot be read.
    pub fn format_toml(&self, text: &str, taken: &[String]) -> Result<String, EditError> {
        Ok(match edit::find_expansion(text, &self.table, &self.key)? {
            Some(expansion) => {
                let column = edit::format_column_toml(&self.to_new_column(&expansion));
                format!("# in [[expansion]] {expansion}\n{column}")
            }
            None => self.add_to_spec("", taken)?.0,
        })
    }

    fn to_new_column(&self, expansion: &str) -> NewColumn {
        NewColumn {
            name: self.name.clone(),
            data_type: self.data_type.clone(),
            about: self.about.clone(),
            many: self.many.then(|| format!("{expansion}_{}", self.name)),
            values: self.values.clone().filter(|values| !values.is_empty()),
            question: self.question.clone(),
        }
    }

    /// Returns a query that asks the question live about each row; `None` if the key has several
    /// columns.
    #[must_use]
    pub fn build_live_query(&self) -> Option<String> {
        let [key] = self.key.as_slice() else { return None };
        let call = format!("LLMMap({}, {})", quote_text(&self.question), quote_name(key));
        Some(format!("SELECT {{{{{call}}}}} FROM {}", quote_name(&self.table)))
    }
}

/// Likely costs of a proposed column, in USD. A cost that is not known is `None`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ColumnCosts {
    /// Likely cost of the live query.
    pub live: Option<f64>,
    /// Likely cost of filling the column.
    pub materialized: Option<f64>,
}

impl ColumnCosts {
    /// Returns the smallest number of live queries, each about different rows, that together cost
    /// more than filling the column. Returns `None` if a cost is not known or live queries are
    /// free.
    #[must_use]
    pub fn compute_break_even(&self) -> Option<u64> {
        let (live, materialized) = (self.live?, self.materialized?);
        (live > 0.0).then(|| (materialized / live).floor() as u64 + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::{ColumnCosts, ProposedColumn};

    fn propose_column(key: &[&str]) -> ProposedColumn {
        ProposedColumn {
            table: "hero".to_owned(),
            key: key.iter().map(|k| (*k).to_owned()).collect(),
            name: "can_fly".to_owned(),
            data_type: "boolean".to_owned(),
            many: false,
            values: None,
            about: "whether it flies".to_owned(),
            question: "Can it 'fly'?".to_owned(),
        }
    }

    #[test]
    fn a_column_joins_the_expansion_of_its_table_and_key() {
        let spec = "# mine\n[[expansion]]\nname = \"llm\"\nsource = \"Hero\"\nkey = [\"name\"]\n\n[[expansion.column]]\nname = \"a\"\n";
        let (text, expansion) = propose_column(&["name"]).add_to_spec(spec, &[]).unwrap();
        assert_eq!(expansion, "llm");
        assert!(text.starts_with(spec) && text.matches("[[expansion]]").count() == 1, "{text}");
        let shown = propose_column(&["name"]).format_toml(spec, &[]).unwrap();
        assert!(
            shown.starts_with("# in [[expansion]] llm\n[[expansion.column]]\nname = \"can_fly\""),
            "{shown}"
        );
        let taken = ["LLM_hero".to_owned()];
        let (text, expansion) =
            propose_column(&["name", "born"]).add_to_spec(spec, &taken).unwrap();
        assert_eq!(expansion, "llm_hero_2");
        assert!(
            text.contains("name = \"llm_hero_2\"\nsource = \"hero\"\nkey = [\"name\", \"born\"]"),
            "{text}"
        );
        assert!(propose_column(&["name"]).add_to_spec("[[expansion", &[]).is_err());
    }

    #[test]
    fn the_break_even_is_the_first_number_of_queries_that_cost_more() {
        let break_even =
            |live, materialized| ColumnCosts { live, materialized }.compute_break_even();
        assert_eq!(break_even(Some(0.002), Some(0.009)), Some(5));
        assert_eq!(break_even(Some(0.5), Some(1.0)), Some(3));
        assert_eq!(break_even(Some(2.0), Some(1.0)), Some(1));
        assert_eq!(break_even(Some(0.0), Some(1.0)), None);
        assert_eq!(break_even(None, Some(1.0)), None);
    }
}
