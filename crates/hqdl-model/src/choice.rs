//! Which model a cell is asked of, at which price, and under which name its answers
//! are kept: decided here and nowhere else.

use std::sync::Arc;

use super::Model;
use hqdl_facts::{FactsError, History, Wanted};
use hqdl_spec::{Expansion, Format, ModelParameters, PriceTable, Provider, Reuse, Spec};

/// Whom the cells of an expansion are asked of.
#[derive(Clone)]
pub struct ModelChoice {
    /// The name that facts know the model by.
    pub name: String,
    /// The model, where it is not the one that a run asks of all.
    pub endpoint: Option<Arc<dyn Model>>,
    /// Whose facts may be reused.
    pub reuse: Reuse,
    /// What is paid, in USD per million tokens.
    pub price: Option<PriceTable>,
    /// Whether it is paid by nobody, and counts against no budget.
    pub is_free: bool,
    /// The most tokens an answer may have.
    pub max_output: u64,
    /// Further fields of a request's body.
    pub parameters: ModelParameters,
    /// The form of the answers.
    pub format: Format,
    /// Rows that a request may hold.
    pub rows: u32,
    /// The model whose tokenizer counts where the endpoint does not.
    pub tokenizer: String,
}

/// Whom the cells of an expansion of a spec are asked of: the model that it names, or
/// that of `[model]`. `connected` are the models that the spec's settings name;
/// without them, cells can be looked up only.
#[must_use]
pub fn choose(spec: &Spec, connected: Option<&dyn Model>, expansion: &Expansion) -> ModelChoice {
    let named = expansion.model.as_deref();
    let settings = spec.settings(named);
    let endpoint = named.and_then(|name| connected?.other(name));
    let connected = endpoint.as_deref().or(connected);
    let most = connected.and_then(Model::rows_at_most);
    ModelChoice {
        name: settings.identity(connected.map_or(settings.name.as_str(), Model::name)),
        reuse: settings.reuse,
        price: settings.paid(),
        is_free: settings.provider == Provider::Replay,
        max_output: u64::from(settings.max_output_tokens),
        parameters: settings.parameters.clone(),
        format: expansion.format.unwrap_or_else(|| connected.map_or(Format::Json, Model::format)),
        rows: match most {
            // Nothing would show that an answer is of its own image, and not of another's.
            _ if expansion.has_images() => 1,
            Some(most) => most.min(expansion.rows_per_request),
            None => expansion.rows_per_request,
        },
        tokenizer: settings.name.clone(),
        endpoint,
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
