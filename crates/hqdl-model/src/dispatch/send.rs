//! Sends a batch job to the endpoint: uploads its file and creates the batch, never twice, even if
//! the process is killed or the connection breaks.

use std::path::Path;
use std::time::Duration;

use tracing::info;

use super::Dispatch;
use crate::ModelError;
use crate::batch::Batch;
use crate::budget::{Caps, Reached};
use crate::generate::{Event, Stopped};
use hqdl_facts::{BatchJob, Stage};
use hqdl_values::usage::Spent;

/// How often creation of a batch is requested while it is unconfirmed.
const TRIES: u32 = 5;

impl Dispatch<'_, '_> {
    /// Sends a parcel.
    pub(super) async fn send(&mut self, parcel: &mut BatchJob, path: &Path) -> Result<(), Stopped> {
        let file = match self.upload(parcel, path).await {
            Ok(Some(file)) => file,
            // Interrupted before the batch was requested.
            Ok(None) => return Ok(()),
            Err(error) => {
                self.facts().history().forget_parcel(parcel.id)?;
                return Err(stopped(error));
            }
        };
        self.facts().history().uploaded(parcel.id, &file)?;
        // From here on, the batch may exist.
        let of_day = self.limits.budget_usd_per_day;
        let beyond = self.facts().history().creating(parcel.id, of_day)?;
        if let Some(gone) = beyond {
            // Other runs have spent the budget since this job was packed.
            let next = self.facts().history().worst_of(parcel.id)?;
            self.facts().history().forget_parcel(parcel.id)?;
            self.endpoint.delete_file(&file).await;
            let caps = Caps { usd: of_day, tokens: None, is_of_day: true };
            let spent = Spent { usd: gone, tokens: 0 };
            return Err(Stopped::Endpoint(ModelError::Budget(Reached { caps, spent, next })));
        }
        match self.create(&file, &parcel.token).await {
            Ok(batch) => {
                self.opened(parcel, &batch)?;
                let _ = std::fs::remove_file(path);
                info!(batch = batch.id, requests = parcel.requests, "a batch is submitted");
                (self.readers.events.listener)(&Event::Submitted {
                    batch: batch.id,
                    requests: parcel.requests,
                });
                Ok(())
            }
            Err(error @ ModelError::Passing { .. }) => Err(stopped(error)),
            // A definite rejection: the batch does not exist.
            Err(error) => {
                self.facts().history().forget_parcel(parcel.id)?;
                self.endpoint.delete_file(&file).await;
                Err(stopped(error))
            }
        }
    }

    /// Records the batch of a batch job.
    pub(super) fn opened(&self, parcel: &mut BatchJob, batch: &Batch) -> Result<(), Stopped> {
        self.facts().history().opened(parcel.id, &batch.id)?;
        parcel.batch = Some(batch.id.clone());
        parcel.stage = Stage::Open;
        Ok(())
    }

    /// Finds the batch of a job that was killed around its creation. `None` means that it was never
    /// created.
    pub(super) async fn find(&self, parcel: &BatchJob) -> Result<Option<Batch>, ModelError> {
        let found = self.endpoint.find_batch(&parcel.token).await?;
        if found.is_some() {
            return Ok(found);
        }
        // A batch that was created just now may not be listed yet.
        tokio::time::sleep(self.first_pause()).await;
        self.endpoint.find_batch(&parcel.token).await
    }

    /// Returns the uploaded file of a batch job: the one from before a kill, or a new upload.
    /// `None` if interrupted.
    async fn upload(
        &mut self,
        parcel: &BatchJob,
        path: &Path,
    ) -> Result<Option<String>, ModelError> {
        let name = format!("hqdl-{}.jsonl", parcel.token);
        if let Some(before) = self.unsent.remove(&parcel.token) {
            let size = std::fs::metadata(path).map_or(0, |m| m.len());
            let found = match before {
                Some(file) => Some(file),
                // If the endpoint cannot list files, upload the file again.
                None => self.endpoint.find_upload(&name, size).await.unwrap_or_default(),
            };
            if found.is_some() {
                return Ok(found);
            }
        }
        let mut interrupt = self.interrupt.clone();
        tokio::select! {
            biased;
            uploaded = self.endpoint.upload(path, &name) => uploaded.map(Some),
            () = interrupted(&mut interrupt) => Ok(None),
        }
    }

    /// Creates a batch. If a request is unconfirmed, looks for the batch before it requests it
    /// again.
    async fn create(&self, file: &str, token: &str) -> Result<Batch, ModelError> {
        let mut tries = 1;
        loop {
            let error = match self.endpoint.create_batch(file, token).await {
                Err(error @ ModelError::Passing { .. }) if tries < TRIES => error,
                ended => return ended,
            };
            let asked = match error {
                ModelError::Passing { wait: Some(wait), .. } => wait,
                _ => Duration::ZERO,
            };
            let pause = self.first_pause() * 2u32.pow(tries - 1);
            tokio::time::sleep(pause.max(asked.min(crate::limits::LONGEST_WAIT))).await;
            if let Some(batch) = self.endpoint.find_batch(token).await? {
                return Ok(batch);
            }
            tries += 1;
        }
    }
}

/// Completes when the user interrupts; never if the sender is gone.
pub(super) async fn interrupted(interrupt: &mut tokio::sync::watch::Receiver<bool>) {
    if interrupt.wait_for(|i| *i).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Converts an endpoint's error to the reason why the run stops.
pub(super) fn stopped(error: ModelError) -> Stopped {
    match error {
        ModelError::Passing { message, .. } => Stopped::Gone(message),
        error => Stopped::Endpoint(error),
    }
}
