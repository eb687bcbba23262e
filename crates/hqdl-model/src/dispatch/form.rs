//! What a request's prompt and answer hang on, written down with it, so that
//! an answer that comes a day later is read as it was asked for, whatever has
//! become of the spec by then.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use crate::generate::{Context, Events, ModelRun};
use crate::plan::{MissingRow, RowBatch};
use crate::{Model, ModelChoice};
use hqdl_facts::{BatchedRequest, Facts, FactsError, RunId, Wanted};
use hqdl_spec::{Expansion, Format, ModelParameters, PriceTable, Reuse, SERVICE_TIER};
use hqdl_values::usage::ColumnUsage;

/// What prompts and answers of an expansion hang on.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Form {
    /// The expansion, without its sources.
    pub expansion: Expansion,
    /// The form of the answers.
    pub format: Format,
    /// The model, as facts know it.
    pub model: String,
    /// Whose facts may be reused.
    pub reuse: Reuse,
    /// What a request of a batch costs, in USD per million tokens.
    pub price: Option<PriceTable>,
    /// The most tokens an answer may have.
    pub max_output: u64,
    /// Further fields of a request's body.
    #[serde(default, skip_serializing_if = "ModelParameters::is_empty")]
    pub parameters: ModelParameters,
}

impl Form {
    /// What the cells of an expansion are asked with in batch jobs.
    #[must_use]
    pub fn of(expansion: &Expansion, choice: ModelChoice) -> Self {
        let mut parameters = choice.parameters;
        // A batch is a tier of its own.
        parameters.remove(SERVICE_TIER);
        Self {
            expansion: expansion.clone(),
            format: choice.format,
            model: choice.name,
            reuse: choice.reuse,
            price: choice.price.map(|p| p.batched()),
            max_output: choice.max_output,
            parameters,
        }
    }

    /// Whom they were asked of.
    fn into_choice(self) -> (Expansion, ModelChoice) {
        let choice = ModelChoice {
            tokenizer: self.model.clone(),
            name: self.model,
            reuse: self.reuse,
            price: self.price,
            endpoint: None,
            is_free: false,
            max_output: self.max_output,
            parameters: self.parameters,
            format: self.format,
            rows: self.expansion.rows_per_request,
        };
        (self.expansion, choice)
    }
}

/// What one column used: its expansion, its name, and how much.
pub type ColumnUsed = (String, String, ColumnUsage);

/// Who reads the answers: a context for each form, made when it is needed.
pub struct Readers<'f> {
    /// Where answers are kept.
    pub facts: &'f Facts,
    /// Who is, or was, asked.
    pub model: Arc<dyn Model>,
    /// Who is told.
    pub events: Events,
    /// The run that answers are kept under; `None` is the one that asked.
    pub run: Option<RunId>,
    made: Mutex<HashMap<(i64, RunId), Arc<Context>>>,
}

impl<'f> Readers<'f> {
    /// Readers that keep answers in some facts.
    #[must_use]
    pub fn new(facts: &'f Facts, model: Arc<dyn Model>, events: Events) -> Self {
        Self { facts, model, events, run: None, made: Mutex::default() }
    }

    /// The context of a form, for answers of some run.
    ///
    /// # Errors
    /// [`FactsError`] when the journal does not know the form.
    pub fn get(&self, form: i64, run: RunId) -> Result<Arc<Context>, FactsError> {
        let run = self.run.unwrap_or(run);
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(context) = made.get(&(form, run)) {
            return Ok(Arc::clone(context));
        }
        let history = self.facts.history();
        let text = history.form_text(form)?;
        let form_of: Form = serde_json::from_str(&text)
            .map_err(|e| history.unreadable(format!("form {form} is damaged: {e}")))?;
        let (expansion, choice) = form_of.into_choice();
        let wanted = choice.wanted(history, &expansion)?;
        let (model, events) = (Arc::clone(&self.model), self.events.clone());
        let asking = Arc::new(ModelRun::of_answers(model, self.facts, run, events));
        let context = Context::new(&asking, Arc::new(expansion), Arc::new(wanted), choice);
        let context = Arc::new(context);
        made.insert((form, run), Arc::clone(&context));
        Ok(context)
    }

    /// What the columns used of which answers were read.
    #[must_use]
    pub fn used(&self) -> Vec<ColumnUsed> {
        let made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all = Vec::new();
        for context in made.values() {
            let used = context.columns.lock().unwrap_or_else(PoisonError::into_inner);
            let columns = context.expansion.columns.iter().zip(used.iter());
            let name = &context.expansion.name;
            all.extend(columns.map(|(c, used)| (name.clone(), c.name.clone(), *used)));
        }
        all
    }
}

/// The rows and columns that a request asks for.
#[must_use]
pub fn cut(request: &BatchedRequest) -> RowBatch {
    let gap = |(entity, row): &(_, _)| MissingRow {
        row: Clone::clone(row),
        entity: Clone::clone(entity),
    };
    RowBatch {
        columns: request.columns.clone(),
        whole: request.whole.clone(),
        gaps: request.rows.iter().map(gap).collect(),
    }
}

/// A request that asks for rows and columns of a form; `attempt` counts how
/// often its rows were asked about, this time included.
#[must_use]
pub fn request(form: i64, wanted: &Wanted, cut: RowBatch, attempt: u32) -> BatchedRequest {
    BatchedRequest {
        id: 0,
        form,
        model: wanted.model,
        meanings: cut.columns.iter().filter_map(|c| wanted.meaning(*c)).collect(),
        columns: cut.columns,
        whole: cut.whole,
        rows: cut.gaps.into_iter().map(|g| (g.entity, g.row)).collect(),
        attempt,
        sent: 0,
        run: RunId::default(),
        sent_at: String::new(),
        worst: hqdl_values::usage::Spent::default(),
    }
}
