//! Requests through the Batch API. All missing rows first go into the journal's queue; from there
//! they are sent in batch jobs ([`hqdl_model::dispatch`]).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::watch;

use super::run::Run;
use super::survey::Survey;
use super::{Halt, MaterializeError, Report, Way, Work};
use hqdl_facts::{BatchedRequest, Facts, NamedLock, Outcome};
use hqdl_model::ModelError;
use hqdl_model::dispatch::form::{ColumnUsed, Form, Readers, request};
use hqdl_model::dispatch::read::{Lines, UnansweredSink};
use hqdl_model::dispatch::{Dispatch, Errands};
use hqdl_model::generate::{Claimed, Event, Listener, Stopped, claim};
use hqdl_model::plan::RowBatch;
use hqdl_values::cell::Tally;
use hqdl_values::usage::{Spent, Usage};

/// Number of requests that are queued in one commit.
const TOGETHER: usize = 500;

/// Result of an import.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Imported {
    /// Counts of the imported lines, by outcome.
    pub lines: Lines,
    /// Tokens and cost of the answers.
    pub usage: Usage,
    /// Imported cells, by state.
    pub asked: Tally,
    /// Usage per column.
    pub columns: Vec<ColumnUsed>,
}

/// Leave failed imported requests missing; the next run retries them.
struct Nobody<'f>(&'f Facts);

impl UnansweredSink for Nobody<'_> {
    fn again(&mut self, _: i64, _: Vec<(RowBatch, u32)>) -> Result<(), Stopped> {
        Ok(())
    }

    fn failed(&mut self, request: BatchedRequest, _: ModelError) -> Result<(), Stopped> {
        Ok(self.0.history().failed_elsewhere(request.id)?)
    }
}

/// Result of [`Work::export`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Exported {
    /// The files that were written.
    pub written: Vec<WrittenFile>,
    /// Unanswered files from earlier exports, whose cells were not exported again.
    pub before: Vec<InFile>,
}

/// A file from an earlier export that is not answered yet.
#[derive(Debug, Clone, PartialEq)]
pub struct InFile {
    /// Path of the file; `None` if it is no longer known.
    pub path: Option<PathBuf>,
    /// Number of its requests without an answer.
    pub unanswered: u64,
    /// Number of its requests.
    pub requests: u64,
    /// Number of missing cells in it.
    pub cells: u64,
}

/// A file of requests for the user to submit.
#[derive(Debug, Clone, PartialEq)]
pub struct WrittenFile {
    /// Path of the file.
    pub path: PathBuf,
    /// Number of its requests.
    pub requests: u64,
    /// Maximum cost at batch prices, and maximum number of tokens.
    pub most: Spent,
}

impl Work<'_> {
    /// Acquires the lock on the spec's batches, and waits while another run holds it.
    pub(super) fn batches_alone(
        &self,
        listener: &Listener,
        interrupt: &watch::Receiver<bool>,
    ) -> Result<NamedLock<'_>, MaterializeError> {
        let name = self.batches_name();
        if let Some(turn) = self.facts.try_lock(&name)? {
            return Ok(turn);
        }
        let why = "another run sends batches of this spec; this run waits until it ends";
        listener(&Event::Warning(why.to_owned()));
        let turn = self.facts.lock(&name, interrupt)?;
        turn.ok_or(MaterializeError::Stopped(Stopped::Interrupted))
    }

    fn batches_name(&self) -> String {
        format!("batches {}", self.spec.full_path())
    }

    /// Collects the answers of earlier runs' batch jobs and discards jobs that were never sent.
    /// Returns the run if there was anything to do. `has_lock` is true if the caller already holds
    /// the lock on the spec's batches.
    pub(super) fn recover(
        &self,
        alone: bool,
        command: &str,
        listener: &Listener,
        interrupt: &watch::Receiver<bool>,
        report: &mut Report,
    ) -> Result<Option<Run>, MaterializeError> {
        let unsettled = self.facts.history().is_unsettled(&self.spec.full_path())?;
        if self.way == Way::Kept || !unsettled {
            return Ok(None);
        }
        // If another run sends batches, it also collects their answers.
        let turn = if alone { None } else { self.facts.try_lock(&self.batches_name())? };
        if !alone && turn.is_none() {
            return Ok(None);
        }
        let mut run = self.start(command, listener)?;
        let recovered = self.dispatch(&run, interrupt).map(|mut dispatch| {
            let unsent = run.runtime.block_on(dispatch.recover());
            report.used(&dispatch.used());
            unsent
        });
        match recovered {
            Some(Ok(unsent)) => run.unsent = unsent,
            Some(Err(stopped)) => report.stopped = Some(Arc::new(stopped)),
            None => {}
        }
        Ok(Some(run))
    }

    /// Sends the missing cells through the Batch API and waits for the answers.
    pub(super) fn send(
        &self,
        run: &Run,
        surveys: &[Survey<'_>],
        interrupt: &watch::Receiver<bool>,
        report: &mut Report,
    ) {
        let Some(mut dispatch) = self.dispatch(run, interrupt) else { return };
        if let Err(failed) = self.enqueue(run, surveys, interrupt) {
            report.failed = Some(failed);
            return;
        }
        if let Err(stopped) = run.runtime.block_on(dispatch.run()) {
            report.stopped = Some(Arc::new(stopped));
        }
        report.asked(&dispatch.used());
    }

    /// Writes requests for the missing cells into files that the user submits. It sends nothing and
    /// does not use the budget; [`Work::plan`] computes the cost. Cells in earlier, unanswered
    /// files are skipped unless `include_unanswered` is set.
    ///
    /// # Errors
    /// Returns [`MaterializeError`] if keys cannot be read or a file cannot be written.
    pub fn export(
        &self,
        (dir, again): (&Path, bool),
        command: &str,
        listener: &Listener,
        interrupt: &watch::Receiver<bool>,
    ) -> Result<Exported, MaterializeError> {
        if self.model.batches().is_none() {
            return Err(MaterializeError::NoBatches);
        }
        self.shows_no_images()?;
        let _alone = self.batches_alone(listener, interrupt)?;
        self.in_files.replace((!again).then(BTreeMap::new));
        let mut surveys = Vec::new();
        for n in 0..self.spec.expansions.len() {
            surveys.push(self.survey(n, false)?);
        }
        let passed_over = self.passed_over(&surveys)?;
        passed_over.into_iter().for_each(|told| listener(&Event::Warning(told)));
        let before = self.in_files.borrow().clone().unwrap_or_default();
        let before = before.into_iter().map(|(parcel, cells)| self.in_file(parcel, cells));
        let before: Vec<InFile> = before.collect::<Result<_, _>>()?;
        // Use a separate run, which has no budget.
        let id = self.facts.history().begin(command, "")?;
        self.facts.history().forget_unsent(&self.spec.full_path(), id)?;
        let run = Run::open(id, listener)?;
        let dispatch = self.dispatch(&run, interrupt).ok_or(MaterializeError::NoBatches)?;
        self.enqueue(&run, &surveys, interrupt)?;
        if *interrupt.borrow() {
            return Err(MaterializeError::Stopped(Stopped::Interrupted));
        }
        let files = dispatch.export(dir).map_err(MaterializeError::Stopped)?;
        self.facts.history().end(id, Outcome::Complete)?;
        let written = |(path, requests, most)| WrittenFile { path, requests, most };
        Ok(Exported { written: files.into_iter().map(written).collect(), before })
    }

    fn in_file(&self, parcel: i64, cells: u64) -> Result<InFile, MaterializeError> {
        let (parcel, unanswered) = self.facts.history().parcel(parcel)?;
        let path = parcel.file.map(PathBuf::from);
        Ok(InFile { path, unanswered, requests: parcel.requests, cells })
    }

    /// Imports answer files of batches. It stores each answer to a request exported from this fact
    /// store exactly once.
    ///
    /// # Errors
    /// Returns [`MaterializeError`] if a file cannot be read or an answer cannot be stored, or if
    /// `interrupt` becomes true while another process is importing. Answers that were already
    /// imported remain stored.
    pub fn import(
        &self,
        files: &[PathBuf],
        command: &str,
        listener: &Listener,
        interrupt: &watch::Receiver<bool>,
    ) -> Result<Imported, MaterializeError> {
        // Importing the same file twice is a no-op.
        let turn = self.facts.lock("import", interrupt)?;
        let _turn = turn.ok_or(MaterializeError::Stopped(Stopped::Interrupted))?;
        let id = self.facts.history().begin(command, "")?;
        let run = Run::open(id, listener)?;
        let mut readers = self.readers(&run);
        readers.run = Some(id);
        let mut lines = Lines::default();
        let read = run.runtime.block_on(async {
            for file in files {
                let more = readers.read_file(file, None, &mut Nobody(self.facts)).await?;
                lines.answered += more.answered;
                lines.failed += more.failed;
                lines.known += more.known;
                lines.unknown += more.unknown;
                lines.unreadable += more.unreadable;
            }
            Ok(())
        });
        let columns = readers.used();
        drop(readers);
        let stopped = read.err().map(Arc::new);
        let mut report = Report { stopped, ..Report::default() };
        self.settle(Some(&run), &mut report);
        // An import publishes nothing; the spec's next run does.
        self.end(Some(run), true, &mut report);
        match (report.failed.take(), report.stopped.take().and_then(Arc::into_inner)) {
            (Some(failed), _) => Err(failed),
            (None, Some(stopped)) => Err(MaterializeError::Stopped(stopped)),
            (None, None) => {
                Ok(Imported { lines, usage: report.usage, asked: report.asked, columns })
            }
        }
    }

    /// Adds requests for all missing cells to the queue.
    fn enqueue(
        &self,
        run: &Run,
        surveys: &[Survey<'_>],
        interrupt: &watch::Receiver<bool>,
    ) -> Result<(), MaterializeError> {
        for (n, survey) in surveys.iter().enumerate() {
            let cells = survey.missing();
            if cells == 0 {
                continue;
            }
            let expansion = &self.spec.expansions[n];
            (run.events.listener)(&Event::Begin { expansion: expansion.name.clone(), cells });
            let form = Form::of(expansion, self.choice(expansion));
            let text = serde_json::to_string(&form).unwrap_or_default();
            let form = self.facts.history().form(&text)?;
            let wanted = &self.wanted[n];
            let (mut waiting, mut claims): (Vec<BatchedRequest>, Vec<Claimed>) = Default::default();
            self.walk(n, &survey.keys, &mut |cut: RowBatch| {
                if *interrupt.borrow() {
                    return Err(Halt::Closed);
                }
                // Hold the claims until the requests are in the queue, where other processes can
                // see them. Skip cells that other processes have claimed.
                let claimed = run.runtime.block_on(claim(self.facts, wanted, cut, true))?;
                let ours = claimed.ours.iter().cloned();
                waiting.extend(ours.map(|cut| request(form, wanted, cut, 1)));
                claims.push(claimed);
                if waiting.len() >= TOGETHER {
                    self.facts.history().enqueue(run.id, &waiting)?;
                    waiting.clear();
                    claims.clear();
                }
                Ok(())
            })?;
            self.facts.history().enqueue(run.id, &waiting)?;
        }
        Ok(())
    }

    fn dispatch<'d>(
        &'d self,
        run: &Run,
        interrupt: &watch::Receiver<bool>,
    ) -> Option<Dispatch<'d, 'd>> {
        let endpoint = self.model.batches()?;
        let errands = Errands {
            endpoint,
            limits: self.spec.limits,
            run: run.id,
            spec: self.spec.full_path(),
            dir: self.facts.dir().join("batches"),
            interrupt: interrupt.clone(),
            unsent: run.unsent.clone(),
        };
        Some(Dispatch::new(self.readers(run), errands))
    }

    fn readers<'d>(&'d self, run: &Run) -> Readers<'d> {
        Readers::new(self.facts, Arc::clone(&self.model), run.events.clone())
    }
}
