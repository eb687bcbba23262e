//! Requests the missing cells one request at a time. This thread walks the keys; the runtime's
//! threads send the requests.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use tokio::sync::{mpsc, watch};
use tracing::info;

use super::run::Run;
use super::survey::{KnownFacts, Survey};
use super::{Halt, MaterializeError, Report, Work};
use hqdl_database::keys::{KeyRow, Keys};
use hqdl_model::generate::{self, Context, Event, ModelRun, Stopped};
use hqdl_model::plan::{Batcher, MissingRow, RowBatch};

impl Work<'_> {
    /// Requests the missing cells of all expansions and adds the results to the report.
    pub(super) fn fill(
        &self,
        run: &Run,
        surveys: &[Survey<'_>],
        interrupt: &watch::Receiver<bool>,
        report: &mut Report,
    ) {
        let (model, events) = (Arc::clone(&self.model), run.events.clone());
        let asking = ModelRun::of(&self.spec, model, self.facts, run.id, events, interrupt.clone());
        let asking = match asking {
            Ok(asking) => Arc::new(asking),
            Err(error) => {
                report.failed = Some(error.into());
                return;
            }
        };
        for (n, survey) in surveys.iter().enumerate() {
            let cells = survey.missing();
            if cells == 0 {
                continue;
            }
            let expansion = &self.spec.expansions[n];
            info!(
                run = run.id.get(),
                expansion = expansion.name,
                cells,
                model = self.model.name(),
                "asks"
            );
            (run.events.listener)(&Event::Begin { expansion: expansion.name.clone(), cells });
            let of = (Arc::new(expansion.clone()), Arc::clone(&self.wanted[n]));
            let context = Context::new(&asking, of.0, of.1, self.choice(expansion));
            let known_keys = Some(Arc::clone(&survey.expansion_keys));
            let context = Arc::new(Context { beside_batches: true, known_keys, ..context });
            let (send, cuts) = mpsc::channel(2 * self.spec.limits.concurrency as usize);
            let generating = run.runtime.spawn(generate::generate(Arc::clone(&context), cuts));
            // Walk the keys on this thread, because a SQLite connection stays on one thread.
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
                // Other processes have answered the remaining cells since the coverage was
                // computed.
                asking.found.fetch_add(cells.saturating_sub(given), Ordering::Relaxed);
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
        report.found = asking.found.load(Ordering::Relaxed);
        report.in_doubt = asking.budget.in_doubt();
    }

    /// Passes the missing rows of an expansion to `on_batch`, in batches.
    pub(super) fn walk(
        &self,
        n: usize,
        keys: &Keys<'_>,
        give: &mut dyn FnMut(RowBatch) -> Result<(), Halt>,
    ) -> Result<(), MaterializeError> {
        let expansion = &self.spec.expansions[n];
        let mut batcher = Batcher::new(expansion, self.choice(expansion).rows);
        let mut asked_keys = 0;
        let mut walked = self.each_known(keys, &mut |key: &KeyRow, found: KnownFacts| {
            if !key.first {
                return Ok(());
            }
            let record = found;
            let open = self.open_cells(n, key, &key.entity_columns, record.as_ref(), asked_keys)?;
            asked_keys += u64::from(open.counts());
            if open.ask.is_empty() {
                return Ok(());
            }
            let gap = MissingRow { row: key.row.clone(), entity: key.entity.clone() };
            match batcher.push(open.ask, open.whole, gap) {
                Some(cut) => give(cut),
                None => Ok(()),
            }
        });
        if walked.is_ok() {
            walked = batcher.finish().into_iter().try_for_each(give);
        }
        match walked {
            // If the receiver closed the channel, it reports the reason itself.
            Ok(()) | Err(Halt::Closed) => Ok(()),
            Err(halt) => Err(halt.into_error(self.database)),
        }
    }
}
