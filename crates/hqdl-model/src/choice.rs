//! Chooses the model for a cell, its price, and the name under which its answers are stored. This
//! is the only place where this is decided.

use std::sync::Arc;

use super::Model;
use super::protocols::protocol_of;
use hqdl_facts::{CellRequirements, FactsError, History};
use hqdl_spec::{Expansion, Format, ModelParameters, PriceTable, Provider, Reuse, Spec};

/// The model for the cells of an expansion.
#[derive(Clone)]
pub struct ModelChoice {
    /// The name that facts are stored under.
    pub name: String,
    /// The model, if it differs from the run's model.
    pub endpoint: Option<Arc<dyn Model>>,
    /// Which models' facts may be reused.
    pub reuse: Reuse,
    /// The price in USD per million tokens.
    pub price: Option<PriceTable>,
    /// Whether it is free and counts against no budget.
    pub is_free: bool,
    /// Maximum number of tokens of an answer.
    pub max_output: u64,
    /// Maximum number of input tokens that the endpoint adds to a request by itself.
    pub extra_input: u64,
    /// Additional fields of the request body.
    pub parameters: ModelParameters,
    /// The format of the answers.
    pub format: Format,
    /// Maximum number of rows per request.
    pub rows: u32,
    /// Name of the model whose tokenizer is used if the endpoint reports no usage.
    pub tokenizer: String,
}

/// Chooses the model for an expansion's cells: the one that the expansion names, or that of
/// `[model]`. `connected` contains the models of the spec; without it, cells can only be looked up.
#[must_use]
pub fn choose_model(
    spec: &Spec,
    connected: Option<&dyn Model>,
    expansion: &Expansion,
) -> ModelChoice {
    let model_name = expansion.model.as_deref();
    let settings = spec.model_settings(model_name);
    let endpoint = model_name.and_then(|name| connected?.named_model(name));
    let connected = endpoint.as_deref().or(connected);
    let max_rows = connected.and_then(Model::max_rows);
    ModelChoice {
        name: settings.identity(connected.map_or(settings.name.as_str(), Model::name)),
        reuse: settings.reuse,
        price: settings.charged_price(),
        is_free: settings.provider == Provider::Replay,
        max_output: u64::from(settings.max_output_tokens),
        extra_input: protocol_of(settings.provider).extra_input_tokens(),
        parameters: settings.parameters.clone(),
        format: match expansion.format {
            // An answer with quotations is JSON.
            _ if expansion.evidence.is_some() => Format::Json,
            Some(format) => format,
            None => connected.map_or(Format::Json, Model::answer_format),
        },
        rows: match max_rows {
            // With several images, an answer could not be matched to its image. A passage must not
            // affect the answer about another row.
            _ if expansion.has_images() || expansion.evidence.is_some() => 1,
            Some(max_rows) => max_rows.min(expansion.rows_per_request),
            None => expansion.rows_per_request,
        },
        tokenizer: settings.name.clone(),
        endpoint,
    }
}

impl ModelChoice {
    /// Returns the requirements of an expansion's columns for answers of this model.
    ///
    /// # Errors
    /// [`FactsError::Journal`].
    pub fn requirements(
        &self,
        history: &dyn History,
        expansion: &Expansion,
    ) -> Result<CellRequirements, FactsError> {
        CellRequirements::new(history, expansion, &self.name, self.reuse)
    }
}
