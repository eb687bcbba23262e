//! Request templates: everything that a batch request's prompt and answer depend on, stored with
//! the request. An answer that arrives a day later is parsed according to its request, even if the
//! spec has changed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use crate::generate::{Context, Events, ModelRun};
use crate::plan::{MissingRow, RowBatch};
use crate::{Model, ModelChoice};
use hqdl_facts::{BatchedRequest, CellRequirements, Facts, FactsError, RunId};
use hqdl_spec::{Expansion, Format, ModelParameters, PriceTable, Reuse, SERVICE_TIER};
use hqdl_values::usage::ColumnUsage;

/// Everything that an expansion's prompts and answers depend on.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RequestTemplate {
    /// Expansion without its sources.
    pub expansion: Expansion,
    /// Format of the answers.
    pub format: Format,
    /// Name under which the facts are stored.
    pub model: String,
    /// Models whose facts may be reused.
    pub reuse: Reuse,
    /// Batch price in USD per million tokens.
    pub price: Option<PriceTable>,
    /// Maximum number of tokens per answer.
    pub max_output: u64,
    /// Maximum number of input tokens that the endpoint itself adds to a request.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub extra_input: u64,
    /// Additional fields of the request body.
    #[serde(default, skip_serializing_if = "ModelParameters::is_empty")]
    pub parameters: ModelParameters,
    /// Positions of the columns whose confidence is the probability of the answer's tokens.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub logprob_columns: Vec<usize>,
}

impl RequestTemplate {
    /// Creates the template for an expansion's cells in batch jobs.
    #[must_use]
    pub fn new(expansion: &Expansion, choice: ModelChoice) -> Self {
        let mut parameters = choice.parameters;
        // Batches have their own service tier.
        parameters.remove(SERVICE_TIER);
        Self {
            expansion: expansion.clone(),
            format: choice.format,
            model: choice.name,
            reuse: choice.reuse,
            price: choice.price.map(|p| p.to_batch_prices()),
            max_output: choice.max_output,
            extra_input: choice.extra_input,
            parameters,
            logprob_columns: choice.logprob_columns,
        }
    }

    /// Returns the expansion and the model choice for its requests.
    fn into_choice(self) -> (Expansion, ModelChoice) {
        let choice = ModelChoice {
            model: None,
            tokenizer: self.model.clone(),
            name: self.model,
            reuse: self.reuse,
            price: self.price,
            endpoint: None,
            is_free: false,
            lacks_audio_price: false,
            max_output: self.max_output,
            extra_input: self.extra_input,
            parameters: self.parameters,
            format: self.format,
            rows: self.expansion.rows_per_request,
            logprob_columns: self.logprob_columns,
        };
        (self.expansion, choice)
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Usage of a column: expansion, column name and usage.
pub type ColumnUsageEntry = (String, String, ColumnUsage);

/// Parsers for batch answers: one context per request template, created on first use.
pub struct AnswerParsers<'f> {
    /// Fact store for the answers.
    pub facts: &'f Facts,
    /// Model that answered the requests.
    pub model: Arc<dyn Model>,
    /// Event listener and usage.
    pub events: Events,
    /// Run under which the answers are stored; `None` to use the run of each request.
    pub run: Option<RunId>,
    contexts: Mutex<HashMap<(i64, RunId), Arc<Context>>>,
}

impl<'f> AnswerParsers<'f> {
    /// Creates parsers that store answers in `facts`.
    #[must_use]
    pub fn new(facts: &'f Facts, model: Arc<dyn Model>, events: Events) -> Self {
        Self { facts, model, events, run: None, contexts: Mutex::default() }
    }

    /// Returns the context of a request template, for the answers of a run.
    ///
    /// # Errors
    /// [`FactsError`] if the journal does not have the template.
    pub fn load_context(&self, template_id: i64, run: RunId) -> Result<Arc<Context>, FactsError> {
        let run = self.run.unwrap_or(run);
        let mut contexts = self.contexts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(context) = contexts.get(&(template_id, run)) {
            return Ok(Arc::clone(context));
        }
        let history = self.facts.history();
        let text = history.load_template(template_id)?;
        let template: RequestTemplate = serde_json::from_str(&text)
            .map_err(|e| history.unreadable_error(format!("form {template_id} is damaged: {e}")))?;
        let (expansion, choice) = template.into_choice();
        let requirements = choice.build_requirements(history, &expansion)?;
        let (model, events) = (Arc::clone(&self.model), self.events.clone());
        let run_without_requests = Arc::new(ModelRun::for_answers(model, self.facts, run, events));
        let context = Context::new(
            &run_without_requests,
            Arc::new(expansion),
            Arc::new(requirements),
            choice,
        );
        let context = Arc::new(context);
        contexts.insert((template_id, run), Arc::clone(&context));
        Ok(context)
    }

    /// Returns the usage of the columns whose answers were parsed.
    #[must_use]
    pub fn column_usage(&self) -> Vec<ColumnUsageEntry> {
        let contexts = self.contexts.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all = Vec::new();
        for context in contexts.values() {
            let used = context.columns.lock().unwrap_or_else(PoisonError::into_inner);
            let columns = context.expansion.columns.iter().zip(used.iter());
            let name = &context.expansion.name;
            all.extend(columns.map(|(c, used)| (name.clone(), c.name.clone(), *used)));
        }
        all
    }
}

/// Returns the rows and columns that a request asks for.
#[must_use]
pub fn to_row_batch(request: &BatchedRequest) -> RowBatch {
    let missing_row = |(entity, row): &(_, _)| MissingRow {
        row: Clone::clone(row),
        entity: Clone::clone(entity),
    };
    RowBatch {
        columns: request.columns.clone(),
        source_columns: request.source_columns.clone(),
        missing_rows: request.rows.iter().map(missing_row).collect(),
    }
}

/// Creates a request for the rows and columns of a row batch. `attempt` is the number of attempts
/// at its rows, including this one.
#[must_use]
pub fn new_request(
    template_id: i64,
    requirements: &CellRequirements,
    row_batch: RowBatch,
    attempt: u32,
) -> BatchedRequest {
    BatchedRequest {
        id: 0,
        template: template_id,
        model: requirements.model,
        identity_ids: row_batch
            .columns
            .iter()
            .filter_map(|c| requirements.identity_id(*c))
            .collect(),
        columns: row_batch.columns,
        source_columns: row_batch.source_columns,
        rows: row_batch.missing_rows.into_iter().map(|g| (g.entity, g.row)).collect(),
        attempt,
        sent_count: 0,
        run: RunId::default(),
        sent_at: String::new(),
        worst_case: hqdl_values::usage::SpentAmount::default(),
    }
}
