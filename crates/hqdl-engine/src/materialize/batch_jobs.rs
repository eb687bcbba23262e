//! Asking through the Batch API: everything that is missing goes into the
//! journal's queue first, and from there out in parcels ([`hqdl_model::dispatch`]).

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

/// Requests that go into the queue at once: they share a commit.
const TOGETHER: usize = 500;

/// What an import brought.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Imported {
    /// What the lines of the files were.
    pub lines: Lines,
    /// What the answers took.
    pub usage: Usage,
    /// Cells that came, by how they ended.
    pub asked: Tally,
    /// What the columns used.
    pub columns: Vec<ColumnUsed>,
}

/// What failed elsewhere stays as it was: missing, and asked for by the next run.
struct Nobody<'f>(&'f Facts);

impl UnansweredSink for Nobody<'_> {
    fn again(&mut self, _: i64, _: Vec<(RowBatch, u32)>) -> Result<(), Stopped> {
        Ok(())
    }

    fn failed(&mut self, request: BatchedRequest, _: ModelError) -> Result<(), Stopped> {
        Ok(self.0.history().failed_elsewhere(request.id)?)
    }
}

/// What [`Work::export`] wrote, and what it did not.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Exported {
    /// The files that were written.
    pub written: Vec<WrittenFile>,
    /// Files from before whose cells were not written again.
    pub before: Vec<InFile>,
}

/// A file that was written before and is not answered yet.
#[derive(Debug, Clone, PartialEq)]
pub struct InFile {
    /// Where it was written; `None` when that is not known any more.
    pub path: Option<PathBuf>,
    /// Requests in it that have no answer.
    pub unanswered: u64,
    /// Requests in it.
    pub requests: u64,
    /// Missing cells that stand in it.
    pub cells: u64,
}

/// A file of requests for somebody else to send.
#[derive(Debug, Clone, PartialEq)]
pub struct WrittenFile {
    /// Where it is.
    pub path: PathBuf,
    /// Requests in it.
    pub requests: u64,
    /// The most they may cost at the price of a batch, and take in tokens.
    pub most: Spent,
}

impl Work<'_> {
    /// The batches of the spec for this run alone, when no other run sends any.
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

    /// Collects what batches of earlier runs have brought, and forgets what was
    /// never sent. Gives the run when there was anything to do. `alone` says
    /// whether this run has the batches of the spec for itself already.
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
        // Another run that sends batches collects them itself.
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

    /// Sends all that is missing through the Batch API and waits for it.
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

    /// Writes all that is missing into files that somebody else sends. Nothing
    /// is sent, and no budget is touched: [`Work::plan`] tells the price. What
    /// stands in such a file already, and has no answer yet, is left out, unless
    /// it is to be written `again`.
    ///
    /// # Errors
    /// [`MaterializeError`] when keys cannot be read or files not written.
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
        // A run of its own: nothing of a budget is spent in it.
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

    /// Takes in output files of batches: the answers to requests that were
    /// written with these facts, each once.
    ///
    /// # Errors
    /// [`MaterializeError`] when a file cannot be read or an answer not kept, or
    /// when `interrupt` is true while somebody else takes files in; what was taken
    /// in before is kept.
    pub fn import(
        &self,
        files: &[PathBuf],
        command: &str,
        listener: &Listener,
        interrupt: &watch::Receiver<bool>,
    ) -> Result<Imported, MaterializeError> {
        // Whoever takes in the same files takes in none of it twice.
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
        // It publishes nothing: the next run of the spec does.
        self.end(Some(run), true, &mut report);
        match (report.failed.take(), report.stopped.take().and_then(Arc::into_inner)) {
            (Some(failed), _) => Err(failed),
            (None, Some(stopped)) => Err(MaterializeError::Stopped(stopped)),
            (None, None) => {
                Ok(Imported { lines, usage: report.usage, asked: report.asked, columns })
            }
        }
    }

    /// Puts all that is missing in the queue.
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
                // Until it is in the queue, where others see it. What they are
                // asking is left to them.
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
