//! Requests sent together through the Batch API, which answers within a day
//! and bills half: packed, uploaded, asked for, looked at, collected.
//!
//! One such batch is a *parcel* here. Every step is in the journal before the
//! next one ([`hqdl_facts::batch_jobs`]), so a run that is killed anywhere is
//! gone on with by the next one:
//!
//! * before the batch was asked for, nothing was asked: the parcel is
//!   forgotten, its cells are missing, and an upload is found again by its name;
//! * when the batch was being asked for, it is looked up by the token in its
//!   metadata, and only when there is none is the parcel forgotten;
//! * afterwards it is looked at, and what it brings is kept; each answer is
//!   settled in the transaction that keeps it, so none is taken twice.
//!
//! A budget is held back for the worst case of every request that is under way,
//! from before the batch is asked for until its answer is kept. What the budget
//! does not cover waits until batches under way have settled.

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

/// The first pause between two looks at a batch; it grows up to the spec's.
const FIRST_PAUSE: Duration = Duration::from_secs(5);
/// How much longer each pause is than the one before.
const GROWTH: f64 = 1.5;

/// Looks in a row that may fail before the endpoint is taken to be gone.
const MISSED: u32 = 20;

/// Sends what waits, and collects what comes.
pub struct Dispatch<'d, 'f> {
    readers: Readers<'f>,
    endpoint: &'d Endpoint,
    limits: Limits,
    run: RunId,
    spec: String,
    dir: PathBuf,
    interrupt: watch::Receiver<bool>,
    unsent: Unsent,
    /// The endpoint has no room: nothing more goes out until something ended.
    holding: bool,
}

impl Drop for Dispatch<'_, '_> {
    fn drop(&mut self) {
        // Unless something is in it.
        let _ = std::fs::remove_dir(&self.dir);
    }
}

/// What a run of batches is about.
pub struct Errands<'d> {
    /// Who is asked.
    pub endpoint: &'d Endpoint,
    /// What may be used.
    pub limits: Limits,
    /// The run.
    pub run: RunId,
    /// The spec's full path.
    pub spec: String,
    /// Where files are for as long as they are needed, in a directory a run.
    pub dir: PathBuf,
    /// Becomes true when the user wants the run to end.
    pub interrupt: watch::Receiver<bool>,
    /// What [`Dispatch::recover`] found of uploads before a kill.
    pub unsent: Unsent,
}

/// Tokens of parcels that were never sent, with what is uploaded of them.
pub type Unsent = HashMap<String, Option<String>>;

impl<'d, 'f> Dispatch<'d, 'f> {
    /// Prepares to send; sends nothing.
    #[must_use]
    pub fn new(readers: Readers<'f>, errands: Errands<'d>) -> Self {
        let Errands { endpoint, limits, run, spec, dir, interrupt, unsent } = errands;
        let dir = dir.join(run.to_string());
        Self { readers, endpoint, limits, run, spec, dir, interrupt, unsent, holding: false }
    }

    /// Goes on where an earlier run was ended: what was never sent is forgotten,
    /// what was is looked at once, and kept when it has ended. Gives what was
    /// uploaded and never sent.
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
        // What is to be asked again is missing, and is asked with all that is.
        self.facts().history().forget_unsent(&self.spec, self.run)?;
        Ok(std::mem::take(&mut self.unsent))
    }

    /// Removes the files of runs that are over.
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

    /// Sends everything that waits and collects it, round by round, until
    /// nothing waits and nothing is under way.
    ///
    /// # Errors
    /// [`Stopped`]; what is under way then stays with the endpoint, and the next
    /// run collects it.
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
                // What was found, and is not needed, of uploads before a kill.
                for file in std::mem::take(&mut self.unsent).into_values().flatten() {
                    self.endpoint.delete_file(&file).await;
                }
                match beyond {
                    Some(beyond) => return Err(Stopped::Endpoint(ModelError::Budget(beyond))),
                    None if self.facts().history().waiting(self.run)? == 0 => return Ok(()),
                    // Nobody is left to wait for.
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
                    // A day is long; the batch goes on without us.
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

    /// Packs everything that waits into files for somebody else to send; gives
    /// each with its requests and the most it may cost.
    ///
    /// # Errors
    /// [`Stopped`] when a file cannot be written.
    pub fn export(&self, dir: &Path) -> Result<Vec<(PathBuf, u64, Spent)>, Stopped> {
        let packer = Packer { dir, stage: Stage::Exported, ..self.packer() };
        let mut files = Vec::new();
        while let Made::BatchJob(parcel, path, worst) = packer.pack(&Purse::default())? {
            files.push((path, parcel.requests, worst));
        }
        Ok(files)
    }

    /// What the columns used of which answers came.
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

    /// Sends what waits, as far as budget and endpoint allow.
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

    /// What may still be spent, from the journal alone.
    fn purse(&self) -> Result<Purse, FactsError> {
        let (caps, committed) = allowance(self.facts().history(), &self.limits, Some(self.run))?;
        Ok(Purse { caps, committed })
    }

    /// The parcels that this endpoint works on.
    fn open(&self) -> Result<Vec<BatchJob>, FactsError> {
        let mut open = self.facts().history().parcels_under_way(&self.spec)?;
        open.retain(|p| p.endpoint == self.endpoint.base() && p.batch.is_some());
        Ok(open)
    }

    /// Looks at a batch once; true when it had ended and was collected.
    async fn look(&mut self, parcel: &BatchJob, others: bool) -> Result<bool, Stopped> {
        let Some(id) = &parcel.batch else { return Ok(false) };
        let batch = match self.endpoint.batch(id).await {
            Ok(batch) => batch,
            Err(ModelError::Refused { status: 404, message }) => {
                // Unless it is the endpoint itself that is not there.
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

    /// Tells of a parcel from an earlier run.
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
