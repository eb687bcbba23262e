//! Collects a finished batch: stores its answers, sends failed requests again within limits, and
//! closes the batch job. If the process is killed, collecting starts over, and answers that are
//! stored already are skipped.

use std::collections::HashSet;
use std::path::Path;

use tracing::info;

use super::Dispatch;
use super::form::{self, Readers, cut};
use super::read::{self, Lines, UnansweredSink};
use super::send::stopped;
use crate::ModelError;
use crate::batch::Batch;
use crate::generate::{Event, Stopped, halves};
use crate::openai::Endpoint;
use crate::plan::RowBatch;
use hqdl_facts::{BatchJob, BatchedRequest, Completion, FactsError, RunId};
use hqdl_values::cell::State;
use hqdl_values::format::count_noun;

/// How often a request is sent if its batch expires or fails as a whole.
const SENDS: u32 = 2;
/// How often an incomplete file is downloaded again.
const SHORT: u32 = 8;
/// How often a request is sent if it fails by itself.
const TRIES: u32 = 3;

impl Dispatch<'_, '_> {
    /// Stores the answers of a finished batch and closes its batch job. `has_others` states whether
    /// more batches are in progress.
    pub(super) async fn collect(
        &mut self,
        parcel: &BatchJob,
        batch: &Batch,
        others: bool,
    ) -> Result<(), Stopped> {
        let history = || self.facts().history();
        let mut rest = Rest {
            readers: &self.readers,
            run: self.run,
            endpoint: self.endpoint,
            fate: Fate::of(batch, others),
            answers: batch.completed > 0,
            status: &batch.status,
            given_up: Vec::new(),
            cancelled: 0,
            refused: None,
        };
        let mut lines = Lines::default();
        let mut deleted = Vec::new();
        let files = [
            (&batch.output_file, "output", batch.completed),
            (&batch.error_file, "errors", batch.failed),
        ];
        for (file, what, lines_there) in files {
            let Some(file) = file else { continue };
            std::fs::create_dir_all(&self.dir)
                .map_err(|error| FactsError::File { path: self.dir.clone(), error })?;
            let path = self.dir.join(format!("{}.{what}.jsonl", parcel.token));
            match self.bring(file, &path, lines_there).await {
                Ok(()) => {}
                // The batch exists, so the file was deleted or has expired.
                Err(Stopped::Endpoint(ModelError::Refused { status: 404, .. })) => {
                    deleted.push(what);
                    continue;
                }
                Err(stopped) => return Err(stopped),
            }
            let read = self.readers.read_file(&path, Some(parcel.id), &mut rest).await?;
            lines.answered += read.answered;
            lines.failed += read.failed;
            lines.unreadable += read.unreadable;
            let _ = std::fs::remove_file(&path);
        }
        if deleted.contains(&"output") {
            let id = &batch.id;
            self.in_doubt(parcel, format!("the endpoint no longer has the output of {id}")).await?;
        }
        // Requests without an output line.
        let unanswered = history().unanswered(parcel.id)?;
        for id in unanswered {
            let Some(request) = history().request(id)? else { continue };
            lines.failed += 1;
            let message = match &batch.error {
                Some((code, message)) => format!("the batch {}: {code}: {message}", batch.status),
                None => {
                    format!("the batch is {} and contains no answer to this request", batch.status)
                }
            };
            let error = ModelError::Passing { message, wait: None, in_doubt: false };
            rest.failed(request, error)?;
        }
        let Rest { given_up, cancelled, refused, fate, .. } = rest;
        for (id, state, why) in given_up {
            let Some(request) = history().request(id)? else { continue };
            self.give_up(&request, state, &why).await?;
        }
        history().close(parcel.id, &batch.status)?;
        info!(batch = batch.id, status = batch.status, ?lines, "a batch is collected");
        (self.readers.events.listener)(&Event::Collected {
            batch: batch.id.clone(),
            status: batch.status.clone(),
            answered: lines.answered,
            failed: lines.failed,
        });
        if cancelled > 0 {
            (self.readers.events.listener)(&Event::Warning(format!(
                "{} was cancelled; {cancelled} of its requests have no answer, and the next run sends them again",
                batch.id
            )));
        }
        if lines.unreadable > 0 {
            (self.readers.events.listener)(&Event::Warning(format!(
                "{}: ignored {} that hqdl cannot read as output of a batch",
                batch.id,
                count_noun(lines.unreadable, "line")
            )));
        }
        // A finished batch frees capacity at the endpoint, unless it never entered the queue.
        self.holding = fate == Fate::Queued;
        refused.map_or(Ok(()), |error| Err(Stopped::Endpoint(error)))
    }

    /// Downloads a file with `lines` lines. A file with fewer lines was truncated without an error,
    /// and must be downloaded again: otherwise paid answers would be lost. If it has the same
    /// length as before, it is accepted as it is.
    async fn bring(&self, file: &str, path: &Path, lines: u64) -> Result<(), Stopped> {
        let disk = |error| FactsError::File { path: path.to_owned(), error };
        let mut lengths = HashSet::new();
        loop {
            self.endpoint.download(file, path).await.map_err(stopped)?;
            let found = read::count(path).map_err(disk)?;
            let length = std::fs::metadata(path).map_err(disk)?.len();
            if found >= lines || !lengths.insert(length) {
                return Ok(());
            }
            info!(file, found, lines, "a file came in part, and is brought again");
            if lengths.len() > SHORT as usize {
                let why =
                    format!("only {found} of {lines} lines of {file} arrive, even after retries");
                return Err(Stopped::Gone(why));
            }
            tokio::time::sleep(self.first_pause()).await;
        }
    }

    /// Closes a batch job that the endpoint no longer knows. Its cells are missing and may be asked
    /// for again.
    pub(super) async fn lost(&self, parcel: &BatchJob, batch: &str) -> Result<(), Stopped> {
        self.in_doubt(parcel, format!("the endpoint no longer knows {batch}")).await?;
        self.facts().history().close(parcel.id, "lost")?;
        Ok(())
    }

    /// Counts every unanswered request of a batch at its worst-case cost, because it may have been
    /// answered and billed.
    async fn in_doubt(&self, parcel: &BatchJob, why: String) -> Result<(), Stopped> {
        let unanswered = self.facts().history().unanswered(parcel.id)?;
        for id in unanswered {
            let request = self.facts().history().request(id)?;
            let Some(request) = request else { continue };
            let record = Completion {
                error: Some(why.clone()),
                cost_usd: request.worst.usd,
                input_tokens: request.worst.tokens,
                ..self.record(&request)?
            };
            let answers = Some(request.id);
            let batch =
                hqdl_facts::CommitUnit { completion: record, answers, ..Default::default() };
            self.readers.facts.keep(batch).await?;
        }
        (self.readers.events.listener)(&Event::Warning(format!(
            "{why}: what it may have cost counts against the budget"
        )));
        Ok(())
    }

    /// Stores the permanent failure of a request in its cells.
    async fn give_up(
        &self,
        request: &BatchedRequest,
        state: State,
        why: &str,
    ) -> Result<(), Stopped> {
        let context = self.readers.get(request.form, request.run)?;
        let record = self.record(request)?;
        if state == State::Error {
            (self.readers.events.listener)(&Event::Failed(why.to_owned()));
        }
        context.keep_failure(&cut(request), record, state, why, Some(request.id)).await
    }

    /// Returns the completion record of a request that was sent.
    fn record(&self, request: &BatchedRequest) -> Result<Completion, Stopped> {
        let context = self.readers.get(request.form, request.run)?;
        let cut = cut(request);
        let (_, prompt) = context.prompt(&cut);
        let asked_at = request.sent_at.clone();
        Ok(Completion { asked_at, ..context.record(&cut, prompt.hash()) })
    }
}

/// Policy for the requests of a batch without an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// They are sent again, up to this number of times in total; then they fail.
    Again(u32),
    /// They are sent again once; then the run stops.
    Mended,
    /// They are sent again when the endpoint has capacity.
    Queued,
    /// They are left for the next run.
    Left,
}

impl Fate {
    fn of(batch: &Batch, others: bool) -> Self {
        let code = batch.error.as_ref().map(|(code, _)| code.as_str());
        match batch.status.as_str() {
            // Someone cancelled the batch.
            "cancelled" => Self::Left,
            // The endpoint's limit of queued tokens is exceeded.
            "failed" if code == Some("token_limit_exceeded") && others => Self::Queued,
            "failed" => Self::Mended,
            "expired" => Self::Again(SENDS),
            _ => Self::Again(TRIES),
        }
    }
}

/// Handles the requests of a batch without an answer.
struct Rest<'r, 'f> {
    readers: &'r Readers<'f>,
    /// The run whose queue receives the requests to retry.
    run: RunId,
    endpoint: &'r Endpoint,
    fate: Fate,
    /// Whether the batch has any answers, so that a failure is due to the rows.
    answers: bool,
    status: &'r str,
    given_up: Vec<(i64, State, String)>,
    cancelled: u64,
    refused: Option<ModelError>,
}

impl UnansweredSink for Rest<'_, '_> {
    fn again(&mut self, form: i64, cuts: Vec<(RowBatch, u32)>) -> Result<(), Stopped> {
        again(self.readers, self.run, form, cuts)
    }

    fn failed(&mut self, request: BatchedRequest, error: ModelError) -> Result<(), Stopped> {
        let history = || self.readers.facts.history();
        let context = self.readers.get(request.form, request.run)?;
        let cut = cut(&request);
        // A rejected request is not billed. If the endpoint rejected `response_format`, later
        // requests leave it out.
        let error = match error {
            ModelError::Refused { .. } => self.endpoint.understood(&context.prompt(&cut).1, error),
            error => error,
        };
        match (error, self.fate) {
            (ModelError::TooLong(_) | ModelError::Filtered(_), _) if cut.gaps.len() > 1 => {
                again(self.readers, self.run, request.form, halves(&cut, request.attempt))?;
                history().drop_request(request.id)?;
            }
            (ModelError::Passing { .. }, Fate::Left) => {
                self.cancelled += 1;
                history().drop_request(request.id)?;
            }
            (ModelError::Passing { .. }, Fate::Queued) => {
                history().send_again(request.id, self.run, false)?;
            }
            // It failed by itself while others were answered, so its rows are at fault.
            (ModelError::Passing { .. }, Fate::Again(TRIES))
                if request.sent >= TRIES && self.answers && cut.gaps.len() > 1 =>
            {
                again(self.readers, self.run, request.form, halves(&cut, request.attempt))?;
                history().drop_request(request.id)?;
            }
            (ModelError::Passing { message, .. }, Fate::Again(most)) if request.sent >= most => {
                self.given_up.push((request.id, State::Error, message));
            }
            (ModelError::Passing { message, .. }, Fate::Mended) if request.sent >= SENDS => {
                let message =
                    format!("{message} (sent {})", count_noun(u64::from(request.sent), "time"));
                self.refused.get_or_insert(ModelError::Refused { status: 400, message });
                history().drop_request(request.id)?;
            }
            (ModelError::Passing { .. }, _) => history().send_again(request.id, self.run, true)?,
            // As for live requests: the endpoint rejects all requests like this one.
            (error @ ModelError::Filtered(_), _) => {
                self.given_up.push((request.id, State::Refused, error.to_string()));
            }
            (
                error @ (ModelError::Refused { .. }
                | ModelError::Budget(_)
                | ModelError::NoConnection { .. }
                | ModelError::NoImages { .. }
                | ModelError::Usage(_)),
                _,
            ) => {
                self.refused.get_or_insert(error);
                history().drop_request(request.id)?;
            }
            (
                error @ (ModelError::TooLong(_)
                | ModelError::Unfinished(_)
                | ModelError::NoAnswer(_)),
                _,
            ) => {
                let why = format!("{error} (batch {})", self.status);
                self.given_up.push((request.id, State::Error, why));
            }
        }
        Ok(())
    }
}

/// Queues rows that must be asked again.
fn again(
    readers: &Readers<'_>,
    run: RunId,
    form: i64,
    cuts: Vec<(RowBatch, u32)>,
) -> Result<(), Stopped> {
    let context = readers.get(form, readers.run.unwrap_or_default())?;
    let requests: Vec<BatchedRequest> = cuts
        .into_iter()
        .map(|(cut, attempt)| form::request(form, &context.wanted, cut, attempt))
        .collect();
    readers.facts.history().enqueue(run, &requests)?;
    Ok(())
}
