//! Which model a cell is asked of, at which price, and under which name its answers
//! are kept: decided here and nowhere else.

use super::Model;
use crate::facts::{FactsError, History, Wanted};
use crate::spec::{Expansion, Format, PriceTable, Reuse, Spec};

/// Whom the cells of an expansion are asked of.
#[derive(Debug, Clone)]
pub struct ModelChoice {
    /// The name that facts know the model by.
    pub name: String,
    /// Whose facts may be reused.
    pub reuse: Reuse,
    /// What is paid, in USD per million tokens.
    pub price: Option<PriceTable>,
    /// The most tokens an answer may have.
    pub max_output: u64,
    /// The form of the answers.
    pub format: Format,
    /// Rows that a request may hold.
    pub rows: u32,
    /// The model whose tokenizer counts where the endpoint does not.
    pub tokenizer: String,
}

/// Whom the cells of an expansion of a spec are asked of. `connected` is the model
/// that the spec's settings name; without one, cells can be looked up only.
#[must_use]
pub fn choose(spec: &Spec, connected: Option<&dyn Model>, expansion: &Expansion) -> ModelChoice {
    let settings = &spec.model;
    let most = connected.and_then(Model::rows_at_most);
    ModelChoice {
        name: connected.map_or(settings.name.as_str(), Model::name).to_owned(),
        reuse: settings.reuse,
        price: settings.paid(),
        max_output: u64::from(settings.max_output_tokens),
        format: expansion.format.unwrap_or_else(|| connected.map_or(Format::Json, Model::format)),
        rows: most.map_or(expansion.rows_per_request, |m| m.min(expansion.rows_per_request)),
        tokenizer: settings.name.clone(),
    }
}

impl ModelChoice {
    /// The columns of an expansion as the facts know them, answered by this model.
    ///
    /// # Errors
    /// [`FactsError::Journal`].
    pub fn wanted(
        &self,
        history: &dyn History,
        expansion: &Expansion,
    ) -> Result<Wanted, FactsError> {
        Wanted::new(history, expansion, &self.name, self.reuse)
    }
}
