//! Asking for all that is missing, request by request: the walk over the keys
//! on this thread, the requests on the runtime's.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use tokio::sync::{mpsc, watch};
use tracing::info;

use super::run::Run;
use super::survey::{Known, Survey};
use super::{Halt, MaterializeError, Report, Work};
use crate::generate::{self, Context, Event, Liveness, OutputCap, Packing, Stopped};
use crate::model::budget::Budget;
use crate::plan::{Batcher, Cut, Gap};
use crate::store::keys::{KeyRow, Keys};
use crate::usage::ColumnUsage;

impl Work<'_> {
    /// Asks for all that is missing, request by request.
    pub(super) fn fill(
        &self,
        run: &Run,
        surveys: &[Survey<'_>],
        interrupt: &watch::Receiver<bool>,
        report: &mut Report,
    ) {
        let budget = Budget::of_run(self.facts.history(), &self.spec, run.id);
        let budget = match budget {
            Ok(budget) => Arc::new(budget),
            Err(error) => {
                report.failed = Some(error.into());
                return;
            }
        };
        let liveness: Arc<Liveness> = Arc::default();
        let found: Arc<AtomicU64> = Arc::default();
        for (n, survey) in surveys.iter().enumerate() {
            let cells = survey.missing();
            if cells == 0 {
                continue;
            }
            let expansion = &self.spec.expansions[n];
            info!(
                run = run.id,
                expansion = expansion.name,
                cells,
                model = self.model.name(),
                "asks"
            );
            (run.listener)(&Event::Begin { expansion: expansion.name.clone(), cells });
            let context = Arc::new(Context {
                expansion: Arc::new(expansion.clone()),
                wanted: Arc::clone(&self.wanted[n]),
                model: Arc::clone(&self.model),
                facts: self.facts.clone(),
                format: self.format(expansion),
                run: run.id,
                price: self.spec.model.paid(),
                max_output: u64::from(self.spec.model.max_output_tokens),
                counts: budget.is_capped() || self.spec.limits.tokens_per_minute.is_some(),
                budget: Arc::clone(&budget),
                concurrency: self.spec.limits.concurrency as usize,
                listener: Arc::clone(&run.listener),
                usage: Arc::clone(&run.usage),
                columns: Mutex::new(vec![ColumnUsage::default(); expansion.columns.len()]),
                interrupt: interrupt.clone(),
                frames: Mutex::default(),
                packing: Packing::new(self.rows_per_request(expansion)),
                output_cap: OutputCap::default(),
                told: false.into(),
                beside_batches: true,
                found: Arc::clone(&found),
                liveness: Arc::clone(&liveness),
                tokenizer_of: self.spec.model.name.clone(),
                tokenizer: OnceLock::new(),
            });
            let (send, cuts) = mpsc::channel(2 * self.spec.limits.concurrency as usize);
            let generating = run.runtime.spawn(generate::generate(Arc::clone(&context), cuts));
            // The keys are walked here, beside the runtime: SQLite stays on this thread.
            let (mut given, mut all) = (0, true);
            let walked = self.walk(n, &survey.keys, &mut |cut| {
                given += (cut.columns.len() * cut.gaps.len()) as u64;
                send.blocking_send(cut).map_err(|_| {
                    all = false;
                    Halt::Closed
                })
            });
            drop(send);
            if walked.is_ok() && all {
                // The rest others have brought since the survey.
                found.fetch_add(cells.saturating_sub(given), Ordering::Relaxed);
            }
            match run.runtime.block_on(generating) {
                Ok(Ok(())) => {}
                Ok(Err(stopped)) => report.stopped = Some(Arc::new(stopped)),
                Err(bug) => report.stopped = Some(Arc::new(Stopped::Bug(bug.to_string()))),
            }
            report.failed = walked.err();
            let used = context.columns.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let names = expansion.columns.iter().map(|c| c.name.clone());
            let of = |(name, used)| (expansion.name.clone(), name, used);
            report.asked(&names.zip(used).map(of).collect::<Vec<_>>());
            if report.stopped.is_some() || report.failed.is_some() {
                break;
            }
        }
        report.found = found.load(Ordering::Relaxed);
        report.in_doubt = budget.in_doubt();
    }

    /// Gives the gaps of an expansion, batch by batch.
    pub(super) fn walk(
        &self,
        n: usize,
        keys: &Keys<'_>,
        give: &mut dyn FnMut(Cut) -> Result<(), Halt>,
    ) -> Result<(), MaterializeError> {
        let expansion = &self.spec.expansions[n];
        let mut batcher = Batcher::new(expansion, self.rows_per_request(expansion));
        let mut asked_keys = 0;
        let mut walked = self.each_known(keys, &mut |key: &KeyRow, found: Known| {
            if !key.first {
                return Ok(());
            }
            let record = found;
            let open = self.open_cells(n, key, &key.entity_columns, record.as_ref(), asked_keys)?;
            asked_keys += u64::from(open.counts());
            if open.ask.is_empty() {
                return Ok(());
            }
            let gap = Gap { row: key.row.clone(), entity: key.entity.clone() };
            match batcher.push(open.ask, open.whole, gap) {
                Some(cut) => give(cut),
                None => Ok(()),
            }
        });
        if walked.is_ok() {
            walked = batcher.finish().into_iter().try_for_each(give);
        }
        match walked {
            // The receiver knows why it closed.
            Ok(()) | Err(Halt::Closed) => Ok(()),
            Err(halt) => Err(halt.into_error(self.database)),
        }
    }
}
