//! Chooses the models for an expansion's cells, and the names under which their answers are stored.
//! No other module makes this decision.

use std::ops::Range;
use std::sync::Arc;

use super::Model;
use super::protocols::find_protocol;
use hqdl_facts::{
    CellRequirements, ColumnModels, ExpansionRequirements, FactsError, History, SecondAnswerRule,
};
use hqdl_spec::ingredients::is_function_model;
use hqdl_spec::{
    Comparison, Expansion, Format, ModelParameters, PriceTable, Provider, Reuse, Spec,
};

/// The models of an expansion, by role: models that answer first, models whose answers are compared
/// with the first ones, and models that give second answers. A model with several roles is listed
/// several times.
#[derive(Clone)]
pub struct ExpansionModels {
    choices: Vec<ModelChoice>,
    /// Number of models that answer first.
    first_count: usize,
    columns: Vec<ColumnModels>,
    /// Names of the columns.
    names: Vec<String>,
}

/// Chooses the models for an expansion's cells. Each column uses the model named by the column or
/// its expansion, or else `[model]`, and the models of its `escalate`. `connected` contains the
/// models of the spec; if it is `None`, cells can only be looked up.
#[must_use]
pub fn choose_models(
    spec: &Spec,
    connected: Option<&dyn Model>,
    expansion: &Expansion,
) -> ExpansionModels {
    let mut list = ModelList { spec, models: Vec::new() };
    let mut columns: Vec<ColumnModels> = Vec::new();
    for column in &expansion.columns {
        let first = list.find_or_add_model(0, (spec.find_column_model(expansion, column), 1));
        columns.push(ColumnModels { first, second: None });
    }
    if columns.is_empty() {
        list.find_or_add_model(0, (expansion.model.as_deref(), 1));
    }
    let first_count = list.models.len();
    let mut compared: Vec<Vec<usize>> = Vec::new();
    for (column, models) in expansion.columns.iter().zip(&columns) {
        let mut compare = Vec::new();
        if let Some(escalation) = &column.escalation {
            let (name, _) = list.models[models.first];
            let answers = (0..escalation.further_answers).map(|n| n + 2);
            compare.extend(answers.map(|n| list.find_or_add_model(first_count, (name, n))));
            let names = escalation.compare.iter();
            compare.extend(
                names.filter_map(|n| list.find_second_answer_model(first_count, n, models.first)),
            );
        }
        compared.push(compare);
    }
    let to_start = list.models.len();
    for ((column, models), compare) in expansion.columns.iter().zip(&mut columns).zip(compared) {
        let Some(escalation) = &column.escalation else { continue };
        let to = list.find_second_answer_model(to_start, &escalation.to, models.first);
        let (states, comparison) = (escalation.states.clone(), escalation.comparison);
        models.second = to.map(|to| SecondAnswerRule { states, compare, comparison, to });
    }
    let choose = |(n, (name, answer)): (usize, (Option<&str>, u32))| {
        let choice = choose_model(spec, connected, name, expansion);
        let name = if answer == 1 { choice.name } else { format!("{} #{answer}", choice.name) };
        // A second answer must come from exactly this model, regardless of the spec's `reuse`.
        let reuse = if n < first_count { choice.reuse } else { Reuse::SameModel };
        let uses_logprobs = |column: &usize| {
            let models = &columns[*column];
            let rule = models.second.as_ref().filter(|_| models.first == n);
            rule.is_some_and(SecondAnswerRule::uses_logprobs)
        };
        let logprob_columns = (0..columns.len()).filter(uses_logprobs).collect();
        ModelChoice { name, reuse, logprob_columns, ..choice }
    };
    ExpansionModels {
        choices: list.models.into_iter().enumerate().map(choose).collect(),
        first_count,
        columns,
        names: expansion.columns.iter().map(|c| c.name.clone()).collect(),
    }
}

/// Models of an expansion, by their NAME in the spec.
struct ModelList<'s> {
    spec: &'s Spec,
    /// Each model, with the number of its answer.
    models: Vec<(Option<&'s str>, u32)>,
}

impl<'s> ModelList<'s> {
    /// Returns the position of a model in the list from `start` on, and adds the model if
    /// necessary. Flags that change the model apply to all models, so several names may refer to
    /// the same model.
    fn find_or_add_model(&mut self, start: usize, (name, answer): (Option<&'s str>, u32)) -> usize {
        let settings = self.spec.model_settings(name);
        let is_same = |(model, other): (Option<&str>, u32)| {
            other == answer && self.spec.model_settings(model) == settings
        };
        match self.models[start..].iter().copied().position(is_same) {
            Some(position) => start + position,
            None => {
                self.models.push((name, answer));
                self.models.len() - 1
            }
        }
    }

    /// Returns the position of a model for second answers; `None` if the same model answers first.
    fn find_second_answer_model(
        &mut self,
        start: usize,
        name: &'s str,
        first: usize,
    ) -> Option<usize> {
        let name = self.spec.find_model(name);
        let is_first =
            self.spec.model_settings(name) == self.spec.model_settings(self.models[first].0);
        (!is_first).then(|| self.find_or_add_model(start, (name, 1)))
    }
}

impl ExpansionModels {
    /// Returns all models; those that answer first come first.
    #[must_use]
    pub fn choices(&self) -> &[ModelChoice] {
        &self.choices
    }

    /// Returns the positions of the models that answer first.
    #[must_use]
    pub fn first_positions(&self) -> Range<usize> {
        0..self.first_count
    }

    /// Returns the positions of the models that give second answers, in the order in which they are
    /// asked.
    #[must_use]
    pub fn second_answer_positions(&self) -> Range<usize> {
        self.first_count..self.choices.len()
    }

    /// Returns the models of a column.
    #[must_use]
    pub fn column_models(&self, column: usize) -> &ColumnModels {
        &self.columns[column]
    }

    /// Returns the only model of an expansion whose columns all use the same model.
    #[must_use]
    pub fn into_only_model(mut self) -> ModelChoice {
        self.choices.swap_remove(0)
    }

    /// Returns the positions of the columns that may be requested from a model.
    pub fn list_columns_of_model(&self, model: usize) -> impl Iterator<Item = usize> + '_ {
        let is_own =
            move |column: &usize| self.columns[*column].model_positions().any(|m| m == model);
        (0..self.columns.len()).filter(is_own)
    }

    /// Returns the name under which the first model's answers are stored. If several models answer,
    /// also lists the columns of the others: `gpt-4o-mini; river: gpt-4o`.
    #[must_use]
    pub fn describe(&self) -> String {
        let first = self.columns.first().map_or(0, |models| models.first);
        let name_of = |model: usize| self.choices[model].name.as_str();
        let mut description = name_of(first).to_owned();
        for (models, column) in self.columns.iter().zip(&self.names) {
            if models.first != first {
                description.push_str(&format!("; {column}: {}", name_of(models.first)));
            }
            if let Some(rule) = &models.second {
                let states = rule.states.iter().map(|state| state.name().to_owned());
                let compare = rule.compare.iter();
                let compare = compare.map(|model| format!("differs from {}", name_of(*model)));
                let target = rule.comparison.and_then(Comparison::describe);
                let cases: Vec<String> = states.chain(compare).chain(target).collect();
                let to = name_of(rule.to);
                description.push_str(&format!("; {column} ({}): {to}", cases.join(", ")));
            }
        }
        description
    }

    /// Returns the requirements that answers from these models must meet, for an expansion's
    /// columns.
    ///
    /// # Errors
    /// [`FactsError::Journal`] if the history cannot be read or written.
    pub fn build_requirements(
        &self,
        history: &dyn History,
        expansion: &Expansion,
    ) -> Result<ExpansionRequirements, FactsError> {
        let models =
            self.choices.iter().map(|choice| choice.build_requirements(history, expansion));
        Ok(ExpansionRequirements::new(models.collect::<Result<_, _>>()?, self.columns.clone()))
    }
}

/// One model that answers cells of an expansion.
#[derive(Clone)]
pub struct ModelChoice {
    /// Name of the `[model.NAME]` table; `None` for `[model]`.
    pub model: Option<String>,
    /// Name under which the facts are stored.
    pub name: String,
    /// Connection to the model; `None` for the run's model.
    pub endpoint: Option<Arc<dyn Model>>,
    /// Models whose facts may be reused.
    pub reuse: Reuse,
    /// Price in USD per million tokens.
    pub price: Option<PriceTable>,
    /// Whether the model is free and counts against no budget.
    pub is_free: bool,
    /// Whether the price of recordings is unknown, so that none may be sent.
    pub lacks_audio_price: bool,
    /// Maximum number of tokens per answer.
    pub max_output: u64,
    /// Maximum number of input tokens that the endpoint itself adds to a request.
    pub extra_input: u64,
    /// Additional fields of the request body.
    pub parameters: ModelParameters,
    /// Format of the answers.
    pub format: Format,
    /// Maximum number of rows per request.
    pub rows: u32,
    /// Name of the model whose tokenizer counts tokens if the endpoint reports no usage.
    pub tokenizer: String,
    /// Positions of the columns whose confidence is the probability of the answer's tokens.
    pub logprob_columns: Vec<usize>,
}

impl ModelChoice {
    /// Returns true if a function of the calling program answers in place of a model.
    #[must_use]
    pub fn is_function(&self) -> bool {
        self.model.as_deref().is_some_and(is_function_model)
    }
}

fn choose_model(
    spec: &Spec,
    connected: Option<&dyn Model>,
    model_name: Option<&str>,
    expansion: &Expansion,
) -> ModelChoice {
    let settings = spec.model_settings(model_name);
    let endpoint = model_name.and_then(|name| connected?.find_named_model(name));
    let connected = endpoint.as_deref().or(connected);
    let max_rows = connected.and_then(Model::max_rows);
    ModelChoice {
        model: model_name.map(str::to_owned),
        name: settings.stored_name(connected.map_or(settings.name.as_str(), Model::name)),
        reuse: settings.reuse,
        price: settings.charged_price(),
        is_free: settings.provider == Provider::Replay,
        lacks_audio_price: settings.lacks_audio_price(),
        max_output: u64::from(settings.max_output_tokens),
        extra_input: find_protocol(settings.provider).extra_input_tokens(),
        parameters: settings.parameters.clone(),
        format: match expansion.format {
            // An answer with quotations must be JSON.
            _ if expansion.evidence.is_some() => Format::Json,
            Some(format) => format,
            None => connected.map_or(Format::Json, Model::answer_format),
        },
        rows: match max_rows {
            // With several media, an answer could not be matched to its medium. With evidence, one
            // row's passages must not affect the answer about another row.
            _ if expansion.has_media() || expansion.evidence.is_some() => 1,
            Some(max_rows) if connected.is_some_and(Model::fixes_row_count) => max_rows,
            Some(max_rows) => max_rows.min(expansion.rows_per_request),
            None => expansion.rows_per_request,
        },
        tokenizer: settings.name.clone(),
        logprob_columns: Vec::new(),
        endpoint,
    }
}

impl ModelChoice {
    /// Returns the requirements that answers from this model must meet, for an expansion's columns.
    ///
    /// # Errors
    /// [`FactsError::Journal`] if the history cannot be read or written.
    pub fn build_requirements(
        &self,
        history: &dyn History,
        expansion: &Expansion,
    ) -> Result<CellRequirements, FactsError> {
        CellRequirements::new(history, expansion, &self.name, self.reuse)
    }
}
