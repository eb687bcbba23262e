//! Requests that are sent together through the Batch API, which answers within a day at half the
//! price: packed, uploaded, submitted, polled and collected.
//!
//! Every step of a *batch job* is in the journal before the next one starts
//! ([`hqdl_facts::batch_jobs`]), so the next run can resume a run that was killed:
//!
//! * Before the batch was requested, nothing was asked. The job is deleted and its cells are
//!   missing. An upload is found again by its name.
//! * If creation of the batch was requested but not confirmed, the batch is looked up by the token
//!   in its metadata. The job is deleted only if there is none.
//! * After that, the batch is polled and its results are stored. Each answer is settled in the
//!   transaction that stores it, so no answer is stored twice.
//!
//! The worst-case cost of every request is reserved from before the batch is requested until its
//! answer is stored. Requests that the budget does not cover wait until batches in progress are
//! settled.

mod collect;
pub mod form;
mod pack;
pub mod read;
mod send;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::watch;
use tracing::debug;

use self::form::{ColumnUsed, Readers};
use self::pack::{Made, Packer, Purse};
use self::send::{interrupted, stopped};
use crate::ModelError;
use crate::budget::{Reached, allowance};
use crate::generate::{Event, Stopped};
use crate::openai::Endpoint;
use hqdl_facts::{BatchJob, Facts, FactsError, RunId, Stage};
use hqdl_spec::Limits;
use hqdl_values::usage::Spent;

/// First interval between two polls of a batch; it grows up to the spec's interval.
const FIRST_PAUSE: Duration = Duration::from_secs(5);
/// Factor by which the poll interval grows.
const GROWTH: f64 = 1.5;

/// Number of failed polls in a row after which the endpoint counts as gone.
const MISSED: u32 = 20;

/// Sends queued batch requests and collects their results.
pub struct Dispatch<'d, 'f> {
    readers: Readers<'f>,
    endpoint: &'d Endpoint,
    limits: Limits,
    run: RunId,
    spec: String,
    dir: PathBuf,
    interrupt: watch::Receiver<bool>,
    unsent: Unsent,
    /// Whether the endpoint has no capacity: nothing more is sent until a batch finishes.
    holding: bool,
}

impl Drop for Dispatch<'_, '_> {
    fn drop(&mut self) {
        // This fails if the directory is not empty, as intended.
        let _ = std::fs::remove_dir(&self.dir);
    }
}

/// Options of a batch run.
pub struct Errands<'d> {
    /// The endpoint to ask.
    pub endpoint: &'d Endpoint,
    /// Budgets and batch limits.
    pub limits: Limits,
    /// The run.
    pub run: RunId,
    /// The spec's full path.
    pub spec: String,
    /// Directory for temporary files; each run has a subdirectory.
    pub dir: PathBuf,
    /// Becomes true when the user interrupts the run.
    pub interrupt: watch::Receiver<bool>,
    /// Uploads of a killed run that [`Dispatch::recover`] found.
    pub unsent: Unsent,
}

/// Tokens of batch jobs that were never submitted, with the id of their uploaded file.
pub type Unsent = HashMap<String, Option<String>>;

impl<'d, 'f> Dispatch<'d, 'f> {
    /// Prepares a batch run; sends nothing.
    #[must_use]
    pub fn new(readers: Readers<'f>, errands: Errands<'d>) -> Self {
        let Errands { endpoint, limits, run, spec, dir, interrupt, unsent } = errands;
        let dir = dir.join(run.to_string());
        Self { readers, endpoint, limits, run, spec, dir, interrupt, unsent, holding: false }
    }

    /// Resumes an interrupted run: discards unsent jobs, polls sent ones once and collects those
    /// that finished. Returns files that were uploaded but never submitted.
    ///
    /// # Errors
    /// [`Stopped`].
    pub async fn recover(&mut self) -> Result<Unsent, Stopped> {
        let forgotten = self.facts().history().forget_unsent(&self.spec, self.run)?;
        self.unsent = forgotten.into_iter().map(|p| (p.token, p.input_file)).collect();
        self.tidy()?;
        let parcels = self.facts().history().parcels_under_way(&self.spec)?;
        for mut parcel in parcels {
            if parcel.endpoint != self.endpoint.base() {
                (self.readers.events.listener)(&Event::Warning(format!(
                    "batch {} is at another endpoint, {}: collect it with `--base-url {}`",
                    parcel.batch.as_deref().unwrap_or("(unknown)"),
                    parcel.endpoint,
                    parcel.endpoint
                )));
                continue;
            }
            if parcel.stage == Stage::Creating {
                if let Some(batch) = self.find(&parcel).await.map_err(stopped)? {
                    self.opened(&mut parcel, &batch)?;
                } else {
                    self.facts().history().forget_parcel(parcel.id)?;
                    self.unsent.insert(parcel.token, parcel.input_file);
                    continue;
                }
            }
            self.begin(&parcel)?;
            self.look(&parcel, false).await?;
        }
        // Rows to ask again are missing, and are asked with all other missing rows.
        self.facts().history().forget_unsent(&self.spec, self.run)?;
        Ok(std::mem::take(&mut self.unsent))
    }

    /// Deletes the files of finished runs.
    fn tidy(&self) -> Result<(), FactsError> {
        let all = self.dir.parent().map(std::fs::read_dir);
        let Some(Ok(all)) = all else { return Ok(()) };
        for path in all.flatten().map(|entry| entry.path()) {
            let run = path.file_name().and_then(|n| n.to_str()).and_then(|n| n.parse::<i64>().ok());
            let other = run.map(RunId::from).filter(|run| *run != self.run);
            if !other.map_or(Ok(false), |run| self.facts().history().goes_on(run))? {
                let _ = std::fs::remove_dir_all(&path).or_else(|_| std::fs::remove_file(&path));
            }
        }
        Ok(())
    }

    /// Sends all queued requests and collects the results, until the queue is empty and no batch is
    /// in progress.
    ///
    /// # Errors
    /// [`Stopped`]. Batches in progress stay at the endpoint, and the next run collects them.
    pub async fn run(&mut self) -> Result<(), Stopped> {
        let mut pause = self.first_pause();
        let mut missed = 0;
        loop {
            let beyond = self.send_all().await?;
            let open = self.open()?;
            if *self.interrupt.borrow() {
                return Err(self.left()?);
            }
            if open.is_empty() {
                // Uploads of a killed run that are not needed.
                for file in std::mem::take(&mut self.unsent).into_values().flatten() {
                    self.endpoint.delete_file(&file).await;
                }
                match beyond {
                    Some(beyond) => return Err(Stopped::Endpoint(ModelError::Budget(beyond))),
                    None if self.facts().history().waiting(self.run)? == 0 => return Ok(()),
                    // No batch is left that could free capacity.
                    None => self.holding = false,
                }
                continue;
            }
            let mut interrupt = self.interrupt.clone();
            tokio::select! {
                biased;
                () = interrupted(&mut interrupt) => return Err(self.left()?),
                () = tokio::time::sleep(pause) => {}
            }
            let mut ended = 0;
            for parcel in &open {
                let others = open.len() > 1 + ended;
                match self.look(parcel, others).await {
                    Ok(has_ended) => {
                        ended += usize::from(has_ended);
                        missed = 0;
                    }
                    // A batch takes up to a day, and continues at the endpoint despite a failed
                    // poll.
                    Err(Stopped::Gone(why)) if missed < MISSED => {
                        if missed == 0 {
                            let why = format!("checking a batch failed; hqdl retries: {why}");
                            (self.readers.events.listener)(&Event::Warning(why));
                        }
                        missed += 1;
                    }
                    Err(stopped) => return Err(stopped),
                }
            }
            pause = if ended > 0 {
                self.first_pause()
            } else {
                pause.mul_f64(GROWTH).min(self.limits.batches.poll)
            };
        }
    }

    /// Packs all queued requests into files that the user sends. Returns each file with its number
    /// of requests and its worst-case cost.
    ///
    /// # Errors
    /// [`Stopped`] if a file cannot be written.
    pub fn export(&self, dir: &Path) -> Result<Vec<(PathBuf, u64, Spent)>, Stopped> {
        let packer = Packer { dir, stage: Stage::Exported, ..self.packer() };
        let mut files = Vec::new();
        while let Made::BatchJob(parcel, path, worst) = packer.pack(&Purse::default())? {
            files.push((path, parcel.requests, worst));
        }
        Ok(files)
    }

    /// Returns the usage of the columns whose answers arrived.
    #[must_use]
    pub fn used(&self) -> Vec<ColumnUsed> {
        self.readers.used()
    }

    fn facts(&self) -> &'f Facts {
        self.readers.facts
    }

    fn first_pause(&self) -> Duration {
        FIRST_PAUSE.min(self.limits.batches.poll)
    }

    fn packer(&self) -> Packer<'_, 'f> {
        Packer {
            readers: &self.readers,
            endpoint: self.endpoint,
            limits: self.limits.batches,
            run: self.run,
            spec: &self.spec,
            dir: &self.dir,
            prefix: "hqdl-",
            stage: Stage::Written,
        }
    }

    /// Sends queued requests, as far as the budget and the endpoint allow.
    async fn send_all(&mut self) -> Result<Option<Reached>, Stopped> {
        while !self.holding && !*self.interrupt.borrow() {
            let purse = self.purse()?;
            match self.packer().pack(&purse)? {
                Made::BatchJob(mut parcel, path, _) => self.send(&mut parcel, &path).await?,
                Made::Nothing => break,
                Made::Beyond(reached) => return Ok(Some(reached)),
            }
        }
        Ok(None)
    }

    /// Returns the budget that is left, from the journal alone.
    fn purse(&self) -> Result<Purse, FactsError> {
        let (caps, committed) = allowance(self.facts().history(), &self.limits, Some(self.run))?;
        Ok(Purse { caps, committed })
    }

    /// Returns the batch jobs that this endpoint is processing.
    fn open(&self) -> Result<Vec<BatchJob>, FactsError> {
        let mut open = self.facts().history().parcels_under_way(&self.spec)?;
        open.retain(|p| p.endpoint == self.endpoint.base() && p.batch.is_some());
        Ok(open)
    }

    /// Polls a batch once. Returns true if it had finished and was collected.
    async fn look(&mut self, parcel: &BatchJob, others: bool) -> Result<bool, Stopped> {
        let Some(id) = &parcel.batch else { return Ok(false) };
        let batch = match self.endpoint.batch(id).await {
            Ok(batch) => batch,
            Err(ModelError::Refused { status: 404, message }) => {
                // The endpoint itself may be missing, instead of the batch.
                if self.endpoint.find_batch(&parcel.token).await.map_err(stopped)?.is_some() {
                    return Err(stopped(ModelError::Refused { status: 404, message }));
                }
                self.lost(parcel, id).await?;
                return Ok(true);
            }
            Err(error) => return Err(stopped(error)),
        };
        debug!(batch = batch.id, status = batch.status, "a batch is looked at");
        (self.readers.events.listener)(&Event::Polled {
            batch: batch.id.clone(),
            status: batch.status.clone(),
            completed: batch.completed,
            failed: batch.failed,
            requests: parcel.requests,
        });
        if batch.has_ended() {
            self.collect(parcel, &batch, others).await?;
        }
        Ok(batch.has_ended())
    }

    /// Reports a batch job of an earlier run.
    fn begin(&self, parcel: &BatchJob) -> Result<(), FactsError> {
        let cells = self.facts().history().cells_of(parcel.id)?;
        for (form, cells) in cells {
            let context = self.readers.get(form, parcel.run)?;
            let expansion = context.expansion.name.clone();
            (self.readers.events.listener)(&Event::Begin { expansion, cells });
        }
        Ok(())
    }

    fn left(&self) -> Result<Stopped, FactsError> {
        let open: Vec<String> = self.open()?.into_iter().filter_map(|p| p.batch).collect();
        Ok(if open.is_empty() { Stopped::Interrupted } else { Stopped::Left(open) })
    }
}
