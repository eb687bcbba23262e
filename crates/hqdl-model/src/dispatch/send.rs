//! A parcel on its way to the endpoint: uploaded, asked for, and never asked
//! for twice, whenever the process is killed or the line breaks.

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

/// How often a batch is asked for when it is in doubt whether there is one.
const TRIES: u32 = 5;

impl Dispatch<'_, '_> {
    /// Sends a parcel.
    pub(super) async fn send(&mut self, parcel: &mut BatchJob, path: &Path) -> Result<(), Stopped> {
        let file = match self.upload(parcel, path).await {
            Ok(Some(file)) => file,
            // Interrupted: nothing was asked for.
            Ok(None) => return Ok(()),
            Err(error) => {
                self.facts().history().forget_parcel(parcel.id)?;
                return Err(stopped(error));
            }
        };
        self.facts().history().uploaded(parcel.id, &file)?;
        // From here on there may be a batch.
        let of_day = self.limits.budget_usd_per_day;
        let beyond = self.facts().history().creating(parcel.id, of_day)?;
        if let Some(gone) = beyond {
            // Others have spent it since this was packed.
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
            // A clear no: there is no batch.
            Err(error) => {
                self.facts().history().forget_parcel(parcel.id)?;
                self.endpoint.delete_file(&file).await;
                Err(stopped(error))
            }
        }
    }

    /// Notes which batch a parcel is.
    pub(super) fn opened(&self, parcel: &mut BatchJob, batch: &Batch) -> Result<(), Stopped> {
        self.facts().history().opened(parcel.id, &batch.id)?;
        parcel.batch = Some(batch.id.clone());
        parcel.stage = Stage::Open;
        Ok(())
    }

    /// The batch of a parcel that was asked for, or not quite, before a kill.
    /// `None` when there is none: then nothing was asked for.
    pub(super) async fn find(&self, parcel: &BatchJob) -> Result<Option<Batch>, ModelError> {
        let found = self.endpoint.find_batch(&parcel.token).await?;
        if found.is_some() {
            return Ok(found);
        }
        // What was asked for a moment ago may not be on the list yet.
        tokio::time::sleep(self.first_pause()).await;
        self.endpoint.find_batch(&parcel.token).await
    }

    /// The file of a parcel at the endpoint: from before a kill, or sent now.
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
                // An endpoint that has no such list gets the file again.
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

    /// Asks for a batch. What is in doubt is looked up before it is asked for
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

/// Ends when the user interrupts; never when nobody can.
pub(super) async fn interrupted(interrupt: &mut tokio::sync::watch::Receiver<bool>) {
    if interrupt.wait_for(|i| *i).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// What an endpoint's failure means for the run.
pub(super) fn stopped(error: ModelError) -> Stopped {
    match error {
        ModelError::Passing { message, .. } => Stopped::Gone(message),
        error => Stopped::Endpoint(error),
    }
}
