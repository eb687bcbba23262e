//! Sends the demands of a pass to the model, with the same code that materializes a spec.

pub(in crate::query) mod likeness;

use std::cell::OnceCell;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use tokio::sync::mpsc;

use crate::query::ask::likeness::Likeness;
use crate::query::batches::{by_target, cuts};
use crate::query::passages::ShownPassages;
use crate::query::targets::{Counts, Demand, Target};
use crate::query::{QueryError, Request};
use hqdl_facts::Outcome;
use hqdl_model::ModelChoice;
use hqdl_model::generate::{self, Context, Events, ModelRun};
use hqdl_model::plan::RowBatch;
use hqdl_values::usage::Usage;

/// Number of answers that are read at once.
const TOGETHER: usize = 1000;

/// The run of a query and its nested queries, with one budget. It starts with the first request.
pub struct Asking<'a> {
    request: Request<'a>,
    begun: OnceCell<Asker<'a>>,
}

impl<'a> Asking<'a> {
    /// Returns a run that has not started.
    #[must_use]
    pub fn of(request: &Request<'a>) -> Self {
        Self { request: request.clone(), begun: OnceCell::new() }
    }

    /// Returns the run and starts it if necessary.
    ///
    /// # Errors
    /// [`QueryError`] without a model, or if the journal fails.
    pub fn asker(&self) -> Result<&Asker<'a>, QueryError> {
        if let Some(asker) = self.begun.get() {
            return Ok(asker);
        }
        let asker = Asker::begin(self.request.clone())?;
        Ok(self.begun.get_or_init(|| asker))
    }

    /// Returns a note for the user on how texts were compared.
    #[must_use]
    pub fn note(&self) -> Option<String> {
        self.begun.get().and_then(Asker::without_embeddings)
    }

    /// Ends the run if it was started.
    ///
    /// # Errors
    /// [`QueryError`] if the journal fails.
    pub fn end(self, complete: bool) -> Result<Usage, QueryError> {
        self.begun.into_inner().map_or(Ok(Usage::default()), |asker| asker.end(complete))
    }
}

/// A started run, used by all passes of a query.
pub struct Asker<'a> {
    pub(in crate::query) request: Request<'a>,
    pub(in crate::query) runtime: tokio::runtime::Runtime,
    pub(in crate::query) run: Arc<ModelRun>,
    pub(in crate::query) likeness: Mutex<Likeness>,
}

impl<'a> Asker<'a> {
    /// Starts a run.
    ///
    /// # Errors
    /// [`QueryError`] without a model, or if the journal fails.
    fn begin(request: Request<'a>) -> Result<Self, QueryError> {
        let model = request.model.clone().ok_or(QueryError::NoModel)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .map_err(QueryError::Runtime)?;
        let history = request.facts.history();
        // The name depends only on the query, so that a killed query resumes with its budget.
        let name = format!("query {}", &blake3::hash(request.sql.as_bytes()).to_hex()[..16]);
        let (id, _) = history.begin_or_go_on(request.command, &name)?;
        let (events, interrupt) = (Events::of(&request.listener), request.interrupt.clone());
        let run = ModelRun::of(request.spec, model, request.facts, id, events, interrupt)?;
        Ok(Self { request, runtime, run: Arc::new(run), likeness: Mutex::default() })
    }

    /// Returns the usage so far.
    #[must_use]
    pub fn usage(&self) -> Usage {
        self.run.events.usage()
    }

    /// Asks for the demanded cells and reads their answers.
    ///
    /// # Errors
    /// [`QueryError`] for errors that stop the run; answers received before are kept.
    pub fn ask(
        &self,
        targets: &mut [Target],
        demands: &[Demand],
        counts: &mut Counts,
    ) -> Result<(), QueryError> {
        let demands: Vec<Demand> =
            demands.iter().filter(|d| targets[d.target].is_at_hand(d.entity)).copied().collect();
        for (n, entities) in by_target(&demands) {
            let target = &targets[n];
            let choice = self.request.choice(&target.expansion);
            let mut shown = ShownPassages {
                most: self.request.spec.limits.passage_tokens,
                model: &choice.tokenizer,
                compare: &mut |question, passages| self.likeness(question, passages),
            };
            let cuts = cuts(target, entities, choice.rows, &mut shown)?;
            self.generate(target, choice, cuts)?;
        }
        let found = self.run.found.swap(0, Ordering::Relaxed);
        counts.asked += (demands.len() as u64).saturating_sub(found);
        counts.reused += found;
        let answered: Vec<(usize, usize, Vec<usize>)> = by_target(&demands)
            .into_iter()
            .flat_map(|(target, entities)| entities.into_iter().map(move |(e, c)| (target, e, c)))
            .collect();
        for some in answered.chunks(TOGETHER) {
            let entities: Vec<_> = some.iter().map(|(t, e, _)| targets[*t].about(*e)).collect();
            let found = self.request.facts.get_many(&entities)?;
            for ((target, entity, columns), found) in some.iter().zip(found) {
                for column in columns {
                    targets[*target].answered(*entity, *column, found.as_ref(), counts);
                }
            }
        }
        Ok(())
    }

    /// Sends the row batches of one expansion.
    ///
    /// # Errors
    /// [`QueryError::Stopped`].
    fn generate(
        &self,
        target: &Target,
        choice: ModelChoice,
        cuts: Vec<RowBatch>,
    ) -> Result<(), QueryError> {
        let of = (Arc::clone(&target.expansion), Arc::clone(&target.wanted));
        let context = Arc::new(Context::new(&self.run, of.0, of.1, choice));
        let (send, receive) = mpsc::channel(2 * self.run.concurrency);
        let ended = self.runtime.block_on(async move {
            let feeding = async move {
                for cut in cuts {
                    if send.send(cut).await.is_err() {
                        break;
                    }
                }
            };
            let (ended, ()) = tokio::join!(generate::generate(context, receive), feeding);
            ended
        });
        Ok(ended?)
    }

    /// Ends the run.
    ///
    /// # Errors
    /// [`QueryError`] if the journal fails.
    fn end(self, complete: bool) -> Result<Usage, QueryError> {
        let outcome = if complete { Outcome::Complete } else { Outcome::Stopped };
        self.request.facts.history().end(self.run.id, outcome)?;
        self.request.facts.flush()?;
        Ok(self.usage())
    }
}
