//! Asking for all that is missing: the walk over the keys on this thread, the
//! requests on the runtime's.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use tokio::sync::{mpsc, watch};
use tracing::info;

use super::survey::Survey;
use super::{Halt, MaterializeError, Report, Work};
use crate::cell::Tally;
use crate::facts::{FactsError, Journal, Outcome};
use crate::generate::{self, Context, Event, Listener, Packing, Stopped};
use crate::model::budget::{Budget, Caps};
use crate::plan::{Batcher, ColumnPlan, Gap, Room};
use crate::store::keys::{KeyRow, Keys};
use crate::usage::{ColumnUsage, Spent, Usage};

impl Work<'_> {
    /// Asks for all that is missing.
    pub(super) fn fill(
        &self,
        surveys: &[Survey<'_>],
        command: &str,
        listener: &Listener,
        interrupt: &watch::Receiver<bool>,
        report: &mut Report,
    ) -> Result<(), MaterializeError> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .map_err(MaterializeError::Runtime)?;
        let (run, budget) = self.begin(command, listener)?;
        let writer = Arc::new(self.facts.writer());
        let usage = Arc::new(Mutex::new(Usage::default()));
        let reached = Arc::new(AtomicBool::new(false));
        let seen = Arc::new(Mutex::new((Tally::default(), None)));
        let listener = &watching(listener, &seen);
        for (n, survey) in surveys.iter().enumerate() {
            let cells = survey.plan.columns.iter().map(ColumnPlan::cells).sum();
            if cells == 0 {
                continue;
            }
            let expansion = &self.spec.expansions[n];
            info!(run, expansion = expansion.name, cells, model = self.model.name(), "asks");
            listener(&Event::Begin { expansion: expansion.name.clone(), cells });
            let context = Arc::new(Context {
                expansion: Arc::new(expansion.clone()),
                wanted: Arc::clone(&self.wanted[n]),
                model: Arc::clone(&self.model),
                writer: Arc::clone(&writer),
                format: self.format(expansion),
                run,
                price: self.spec.model.price,
                max_output: u64::from(self.spec.model.max_output_tokens),
                counts: budget.is_capped() || self.spec.limits.tokens_per_minute.is_some(),
                budget: Arc::clone(&budget),
                concurrency: self.spec.limits.concurrency as usize,
                listener: Arc::clone(listener),
                usage: Arc::clone(&usage),
                columns: Mutex::new(vec![ColumnUsage::default(); expansion.columns.len()]),
                interrupt: interrupt.clone(),
                frames: Mutex::default(),
                packing: Packing::new(self.rows_per_request(expansion)),
                failures: 0.into(),
                reached: Arc::clone(&reached),
                tokenizer_of: self.spec.model.name.clone(),
                tokenizer: OnceLock::new(),
            });
            let (send, cuts) = mpsc::channel(2 * self.spec.limits.concurrency as usize);
            let generating = runtime.spawn(generate::generate(Arc::clone(&context), cuts));
            // The keys are walked here, beside the runtime: SQLite stays on this thread.
            let walked = self.walk(n, &survey.keys, &send);
            drop(send);
            match runtime.block_on(generating) {
                Ok(Ok(())) => {}
                Ok(Err(stopped)) => report.stopped = Some(Arc::new(stopped)),
                Err(bug) => report.stopped = Some(Arc::new(Stopped::Bug(bug.to_string()))),
            }
            report.failed = walked.err();
            let used = context.columns.lock().unwrap_or_else(PoisonError::into_inner).clone();
            report.columns[n].iter_mut().zip(used).for_each(|(column, used)| column.usage = used);
            if report.stopped.is_some() || report.failed.is_some() {
                break;
            }
        }
        report.usage = *usage.lock().unwrap_or_else(PoisonError::into_inner);
        report.in_doubt = budget.in_doubt();
        (report.asked, report.last_error) =
            seen.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // Everything the writing thread was given is kept before it ends.
        drop(writer);
        let outcome = match (report.stopped.as_deref(), &report.failed) {
            (None, None) => Outcome::Complete,
            (Some(Stopped::Interrupted), _) => Outcome::Interrupted,
            _ => Outcome::Stopped,
        };
        info!(run, ?outcome, usage = ?report.usage, asked = ?report.asked, "the run ends");
        let ended =
            self.facts.journal().end(run, outcome).and_then(|()| self.facts.index().flush());
        if let Err(error) = ended {
            report.failed.get_or_insert(error.into());
        }
        Ok(())
    }

    /// Begins a run, or goes on with one of this spec that was killed: its
    /// budget is what that one left. Spending of the day counts in the budget
    /// of the day.
    fn begin(&self, command: &str, listener: &Listener) -> Result<(i64, Arc<Budget>), FactsError> {
        let journal = self.facts.journal();
        let left = journal.take_stock()?;
        if left.requests > 0 {
            let price = if self.spec.model.price.is_some() {
                format!("${:.4}", left.most.usd)
            } else {
                format!("{} tokens", left.most.tokens)
            };
            listener(&Event::Warning(format!(
                "{} requests were in flight when a run was killed; they may have cost {price}, which counts as spent",
                left.requests
            )));
        }
        let (run, spent) = journal.begin_or_go_on(command, &self.spec.full_path())?;
        Ok((run, Arc::new(Budget::new(self.caps(&journal, spent)?, spent))))
    }

    /// The caps of a run that has spent so much.
    fn caps(&self, journal: &Journal, spent: Spent) -> Result<Caps, FactsError> {
        let limits = &self.spec.limits;
        let mut usd = limits.budget_usd;
        if let Some(of_day) = limits.budget_usd_per_day {
            // What this run may still spend today, on top of what it has spent.
            let left = (of_day - journal.spent_today()?).max(0.0) + spent.usd;
            usd = Some(usd.map_or(left, |usd| usd.min(left)));
        }
        Ok(Caps { usd, tokens: limits.budget_tokens })
    }

    /// What the next run may spend.
    pub(super) fn room(&self) -> Result<Room, FactsError> {
        let journal = self.facts.journal();
        let unfinished = journal.unfinished(&self.spec.full_path())?;
        let spent = unfinished.map(|(_, spent)| spent).unwrap_or_default();
        let caps = self.caps(&journal, spent)?;
        Ok(Room {
            usd: caps.usd.map(|usd| (usd - spent.usd).max(0.0)),
            tokens: caps.tokens.map(|tokens| tokens.saturating_sub(spent.tokens)),
        })
    }

    /// Sends the gaps of an expansion, batch by batch.
    fn walk(
        &self,
        n: usize,
        keys: &Keys<'_>,
        send: &mpsc::Sender<crate::plan::Cut>,
    ) -> Result<(), MaterializeError> {
        let mut batcher = Batcher::new(self.rows_per_request(&self.spec.expansions[n]));
        let mut asked_keys = 0;
        let walked = keys.each(&mut |key: &KeyRow| {
            if !key.first {
                return Ok(());
            }
            let record = self.facts.index().get(&key.entity)?;
            let open = self.open_cells(n, key, &key.entity_columns, record.as_ref(), asked_keys);
            if open.ask.is_empty() {
                return Ok(());
            }
            asked_keys += 1;
            let gap = Gap { row: key.row.clone(), entity: key.entity.clone() };
            match batcher.push(open.ask, open.whole, gap) {
                Some(cut) => send.blocking_send(cut).map_err(|_| Halt::Closed),
                None => Ok(()),
            }
        });
        match walked {
            Ok(()) => {}
            // The receiver knows why it closed.
            Err(Halt::Closed) => return Ok(()),
            Err(halt) => return Err(halt.into_error(self.database)),
        }
        for cut in batcher.finish() {
            if send.blocking_send(cut).is_err() {
                break;
            }
        }
        Ok(())
    }
}

/// How cells ended, and the last request that failed.
type Seen = Arc<Mutex<(Tally, Option<String>)>>;

/// Notes what a run brings, and tells the listener.
fn watching(listener: &Listener, seen: &Seen) -> Listener {
    let (listener, seen) = (Arc::clone(listener), Arc::clone(seen));
    Arc::new(move |event: &Event| {
        {
            let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
            match event {
                Event::Kept { cells, .. } => seen.0.merge(cells),
                Event::Failed(message) => seen.1 = Some(message.clone()),
                Event::Begin { .. } | Event::Warning(_) => {}
            }
        }
        listener(event);
    })
}
