//! Sends the demands of a pass to the model, with the same code that materializes a spec.

pub mod batches;
pub mod embeddings;
pub mod passages;
pub mod similarity;

use std::cell::OnceCell;
use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::mpsc;

use crate::query::ask::batches::{
    build_row_batches, group_by_entity, group_by_target, split_by_model,
};
use crate::query::ask::embeddings::EmbeddingsSource;
use crate::query::ask::passages::PassageSelector;
use crate::query::cells::targets::{Counts, Demand, TargetExpansion};
use crate::query::request::Request;
use crate::query::request::error::QueryError;
use hqdl_facts::Outcome;
use hqdl_model::generate::{self, Context, Event, Events, ModelRun};
use hqdl_model::plan::RowBatch;
use hqdl_spec::Expansion;
use hqdl_values::key::Entity;
use hqdl_values::usage::Usage;

/// Number of entities whose answers are read at a time.
const READ_CHUNK: usize = 1000;

/// Run shared by a query and its nested queries, with one budget. The run starts with the first
/// request.
pub struct LazyRun<'a> {
    request: Request<'a>,
    started: OnceCell<QueryRun<'a>>,
}

impl<'a> LazyRun<'a> {
    /// Returns a run that has not started.
    #[must_use]
    pub fn new(request: &Request<'a>) -> Self {
        Self { request: request.clone(), started: OnceCell::new() }
    }

    /// Returns the run, starting it if necessary.
    ///
    /// # Errors
    /// Returns [`QueryError`] if there is no model, or if the journal fails.
    pub fn get_or_start_run(&self) -> Result<&QueryRun<'a>, QueryError> {
        if let Some(query_run) = self.started.get() {
            return Ok(query_run);
        }
        let query_run = QueryRun::start_run(self.request.clone())?;
        Ok(self.started.get_or_init(|| query_run))
    }

    /// Returns notes for the user about missing embeddings.
    #[must_use]
    pub fn list_missing_embedding_notes(&self) -> Vec<String> {
        self.started.get().map(QueryRun::list_missing_embedding_notes).unwrap_or_default()
    }

    /// Ends the run if it was started.
    ///
    /// # Errors
    /// Returns [`QueryError`] if the journal fails.
    pub fn finish_run(self, complete: bool) -> Result<Usage, QueryError> {
        self.started
            .into_inner()
            .map_or(Ok(Usage::default()), |query_run| query_run.finish_run(complete))
    }
}

/// A started run, used by all passes of a query.
pub struct QueryRun<'a> {
    pub(in crate::query) request: Request<'a>,
    pub(in crate::query) runtime: tokio::runtime::Runtime,
    pub(in crate::query) run: Arc<ModelRun>,
    /// Cost in USD that the run had incurred before it was resumed.
    earlier_usd: f64,
    pub(in crate::query) embeddings: Mutex<EmbeddingsSource>,
    /// Expansions whose documents were loaded in this run.
    loaded_evidence: Mutex<HashSet<String>>,
}

impl<'a> QueryRun<'a> {
    /// Starts a run.
    ///
    /// # Errors
    /// Returns [`QueryError`] if there is no model, or if the journal fails.
    fn start_run(request: Request<'a>) -> Result<Self, QueryError> {
        let model = request.model.clone().ok_or(QueryError::NoModel)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .map_err(QueryError::Runtime)?;
        let history = request.facts.history();
        // The name depends only on the query, so that a killed query resumes its run with the same
        // budget.
        let name = format!("query {}", &blake3::hash(request.sql.as_bytes()).to_hex()[..16]);
        let (id, _) = history.resume_or_start_run(request.command, &name)?;
        let (events, interrupt) = (Events::new(&request.listener), request.interrupt.clone());
        let run = ModelRun::new(request.spec, model, request.facts, id, events, interrupt)?;
        let earlier_usd = run.budget.counted_usd();
        Ok(Self {
            request,
            runtime,
            run: Arc::new(run),
            earlier_usd,
            embeddings: Mutex::default(),
            loaded_evidence: Mutex::default(),
        })
    }

    /// Returns the usage so far.
    #[must_use]
    pub fn current_usage(&self) -> Usage {
        self.run.events.usage()
    }

    /// Asks for the demanded cells and reads their answers.
    ///
    /// # Errors
    /// Returns [`QueryError`] if an error stops the run. Answers received before the error are
    /// kept.
    pub fn send_demands(
        &self,
        targets: &mut [TargetExpansion],
        mut demands: Vec<Demand>,
        counts: &mut Counts,
    ) -> Result<(), QueryError> {
        demands.retain(|d| targets[d.target()].ensure_document(d.entity()));
        demands.sort_unstable();
        for demands in group_by_target(&demands) {
            let target = &mut targets[demands[0].target()];
            if target.has_embeddings() {
                self.embed_texts(target, demands, counts)?;
            }
        }
        demands.retain(|d| !targets[d.target()].has_embeddings());
        let sent = self.send_requests(targets, &demands);
        (self.request.listener)(&Event::PassEnded);
        sent?;
        let newly_found = self.run.answered_by_others.swap(0, Ordering::Relaxed);
        counts.asked += (demands.len() as u64).saturating_sub(newly_found);
        counts.reused += newly_found;
        let mut answered = group_by_entity(&demands);
        loop {
            let chunk: Vec<&[Demand]> = answered.by_ref().take(READ_CHUNK).collect();
            if chunk.is_empty() {
                return Ok(());
            }
            let entities: Vec<Entity> =
                chunk.iter().map(|of| targets[of[0].target()].entity_at(of[0].entity())).collect();
            let found = self.request.facts.get_records(&entities.iter().collect::<Vec<_>>())?;
            for (demands, found) in chunk.iter().zip(found) {
                for d in *demands {
                    targets[d.target()].read_answer(d.entity(), d.column(), found.as_ref(), counts);
                }
            }
        }
    }

    /// Sends the requests for sorted demands. The requests about all expansions are sent side by
    /// side, within the run's limits. Functions are called after them, one at a time: a query that a
    /// function runs may wait for cells that other requests of this run have claimed. If those
    /// requests were waiting for the function's slot, neither could continue.
    ///
    /// # Errors
    /// Returns [`QueryError`] if an error stops the run.
    fn send_requests(
        &self,
        targets: &[TargetExpansion],
        demands: &[Demand],
    ) -> Result<(), QueryError> {
        let expansion_of = |demand: &Demand| &targets[demand.target()].expansion;
        for demands in demands.chunk_by(|a, b| expansion_of(a).name == expansion_of(b).name) {
            let expansion = expansion_of(&demands[0]).name.clone();
            let cells = demands.len() as u64;
            (self.request.listener)(&Event::Begin { expansion, cells });
        }
        let mut groups = Vec::new();
        for demands in group_by_target(demands) {
            let target = &targets[demands[0].target()];
            self.load_evidence(&target.expansion)?;
            groups.extend(split_by_model(target, demands).into_iter().map(|of| (target, of)));
        }
        let (mut function_batches, mut model_batches) = (Vec::new(), Vec::new());
        for (target, (model, demands)) in &groups {
            let models = self.request.choose_models(&target.expansion);
            let choice = &models.choices()[*model];
            let mut selector = PassageSelector {
                max_tokens: self.request.spec.limits.passage_tokens,
                model: &choice.tokenizer,
                compare: &mut |question, passages| {
                    self.compute_question_similarities(question, passages)
                },
            };
            let batches = build_row_batches(target, demands, choice.rows, &mut selector)?;
            let expansion = Arc::clone(&target.expansion);
            let requirements = Arc::clone(target.requirements.model_requirements(*model));
            let context = Context::new(&self.run, expansion, requirements, choice.clone());
            let context = Arc::new(context);
            let batches = batches.map(move |row_batch| (Arc::clone(&context), row_batch));
            let is_function = choice.is_function();
            if is_function { &mut function_batches } else { &mut model_batches }.push(batches);
        }
        // Send requests to models before calling functions. Otherwise an answered function call
        // would keep the run from stopping if a model is missing.
        self.send_row_batches(model_batches.into_iter().flatten())?;
        for batches in function_batches {
            self.send_row_batches(batches)?;
        }
        Ok(())
    }

    /// Loads the documents of an expansion, if it has any, once per run.
    ///
    /// # Errors
    /// Returns [`QueryError::Evidence`] if the documents cannot be loaded.
    fn load_evidence(&self, expansion: &Expansion) -> Result<(), QueryError> {
        let mut loaded = self.loaded_evidence.lock().unwrap_or_else(PoisonError::into_inner);
        if expansion.evidence.is_none() || loaded.contains(&expansion.name) {
            return Ok(());
        }
        self.request.load_evidence(expansion)?;
        loaded.insert(expansion.name.clone());
        Ok(())
    }

    /// Sends row batches, each with the context of its expansion and model.
    ///
    /// # Errors
    /// Returns [`QueryError::Stopped`] if the run must stop.
    fn send_row_batches(
        &self,
        row_batches: impl Iterator<Item = (Arc<Context>, RowBatch)>,
    ) -> Result<(), QueryError> {
        let (send, receive) = mpsc::channel(2 * self.run.concurrency);
        let result = self.runtime.block_on(async move {
            let feeding = async move {
                for row_batch in row_batches {
                    if send.send(row_batch).await.is_err() {
                        break;
                    }
                }
            };
            let (result, ()) =
                tokio::join!(generate::generate_facts(Arc::clone(&self.run), receive), feeding);
            result
        });
        Ok(result?)
    }

    /// Ends the run.
    ///
    /// # Errors
    /// Returns [`QueryError`] if the journal fails.
    fn finish_run(self, complete: bool) -> Result<Usage, QueryError> {
        let counted_usd = self.run.budget.counted_usd() - self.earlier_usd;
        self.request.counted_cost.add_usd(counted_usd);
        let outcome = if complete { Outcome::Complete } else { Outcome::Stopped };
        self.request.facts.history().finish_run(self.run.id, outcome)?;
        self.request.facts.flush()?;
        Ok(self.current_usage())
    }
}
