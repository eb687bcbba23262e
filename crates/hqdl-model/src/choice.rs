//! Chooses the models for the cells of an expansion, their prices, and the names under which their
//! answers are stored. This is the only place where this is decided.

use std::sync::Arc;

use super::Model;
use super::protocols::protocol_of;
use hqdl_facts::{CellRequirements, ExpansionRequirements, FactsError, History};
use hqdl_spec::{Expansion, Format, ModelParameters, PriceTable, Provider, Reuse, Spec};

/// The models that answer the cells of an expansion.
#[derive(Clone)]
pub struct ExpansionModels {
    /// Each model once.
    choices: Vec<ModelChoice>,
    /// For each column, the position of its model in `choices`.
    columns: Vec<usize>,
    /// Names of the columns.
    names: Vec<String>,
}

/// Chooses the models for an expansion's cells: for each column, the one that the column or its
/// expansion names, or that of `[model]`. `connected` contains the models of the spec; without it,
/// cells can only be looked up.
#[must_use]
pub fn choose_models(
    spec: &Spec,
    connected: Option<&dyn Model>,
    expansion: &Expansion,
) -> ExpansionModels {
    let mut names: Vec<Option<&str>> =
        expansion.columns.iter().map(|column| spec.column_model(expansion, column)).collect();
    if names.is_empty() {
        names.push(expansion.model.as_deref());
    }
    let (mut models, mut columns): (Vec<Option<&str>>, Vec<usize>) = Default::default();
    for name in names {
        // Flags that change the model apply to all models, so several names may mean one.
        let settings = spec.model_settings(name);
        let known = models.iter().position(|model| spec.model_settings(*model) == settings);
        columns.push(known.unwrap_or(models.len()));
        if known.is_none() {
            models.push(name);
        }
    }
    let choose = |name: Option<&str>| choose_model(spec, connected, name, expansion);
    ExpansionModels {
        choices: models.iter().copied().map(choose).collect(),
        columns,
        names: expansion.columns.iter().map(|c| c.name.clone()).collect(),
    }
}

impl ExpansionModels {
    /// Returns the models, each once.
    #[must_use]
    pub fn choices(&self) -> &[ModelChoice] {
        &self.choices
    }

    /// Returns the model of an expansion whose columns all have the same one.
    #[must_use]
    pub fn into_single(mut self) -> ModelChoice {
        self.choices.swap_remove(0)
    }

    /// Returns the positions of the columns that a model answers.
    pub fn columns_of(&self, model: usize) -> impl Iterator<Item = usize> + '_ {
        (0..self.columns.len()).filter(move |column| self.columns[*column] == model)
    }

    /// Returns the name under which the answers of a single model are stored. If several models
    /// answer, also returns the columns of the others: `gpt-4o-mini; river: gpt-4o`.
    #[must_use]
    pub fn describe(&self) -> String {
        let first = self.columns.first().copied().unwrap_or_default();
        let mut description = self.choices[first].name.clone();
        for (model, column) in self.columns.iter().zip(&self.names).filter(|(m, _)| **m != first) {
            description.push_str(&format!("; {column}: {}", self.choices[*model].name));
        }
        description
    }

    /// Returns the requirements of an expansion's columns for answers of these models.
    ///
    /// # Errors
    /// [`FactsError::Journal`].
    pub fn requirements(
        &self,
        history: &dyn History,
        expansion: &Expansion,
    ) -> Result<ExpansionRequirements, FactsError> {
        let models = self.choices.iter().map(|choice| choice.requirements(history, expansion));
        Ok(ExpansionRequirements::new(models.collect::<Result<_, _>>()?, self.columns.clone()))
    }
}

/// One model that answers cells of an expansion.
#[derive(Clone)]
pub struct ModelChoice {
    /// The `[model.NAME]`; `None` is `[model]`.
    pub model: Option<String>,
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

fn choose_model(
    spec: &Spec,
    connected: Option<&dyn Model>,
    model_name: Option<&str>,
    expansion: &Expansion,
) -> ModelChoice {
    let settings = spec.model_settings(model_name);
    let endpoint = model_name.and_then(|name| connected?.named_model(name));
    let connected = endpoint.as_deref().or(connected);
    let max_rows = connected.and_then(Model::max_rows);
    ModelChoice {
        model: model_name.map(str::to_owned),
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
