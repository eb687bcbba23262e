//! A batch that has ended: what it brought is kept, what failed is sent again
//! as often as the rules say, and then the parcel is closed. Killed on the way,
//! the same is done again, and what was kept is known.

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

/// How often a request is sent when its batch expires or fails as a whole.
const SENDS: u32 = 2;
/// How often a file is brought again that came in part.
const SHORT: u32 = 8;
/// How often a request is sent when it fails by itself.
const TRIES: u32 = 3;

impl Dispatch<'_, '_> {
    /// Keeps what a batch that has ended brought, and closes its parcel.
    /// `others` says whether more batches are under way.
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
                // Its batch is known: the file was deleted, or has expired.
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
        // Whatever has no line at all.
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
        // Whatever ended has made room, unless it never got in.
        self.holding = fate == Fate::Queued;
        refused.map_or(Ok(()), |error| Err(Stopped::Endpoint(error)))
    }

    /// Brings a file down that has so many lines. One that has fewer was cut off on
    /// the way, though nobody said so: what was answered and paid for must not be
    /// taken for unanswered. One that comes with fewer again, and as long as before,
    /// is as it is.
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

    /// A batch that the endpoint does not know any more. Its cells are missing, and
    /// may be asked for again.
    pub(super) async fn lost(&self, parcel: &BatchJob, batch: &str) -> Result<(), Stopped> {
        self.in_doubt(parcel, format!("the endpoint no longer knows {batch}")).await?;
        self.facts().history().close(parcel.id, "lost")?;
        Ok(())
    }

    /// What has no answer of a batch may have been answered and billed: each of its
    /// requests counts at its worst.
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

    /// A request has failed for good: its cells say why.
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

    /// The record of a request that was sent.
    fn record(&self, request: &BatchedRequest) -> Result<Completion, Stopped> {
        let context = self.readers.get(request.form, request.run)?;
        let cut = cut(request);
        let (_, prompt) = context.prompt(&cut);
        let asked_at = request.sent_at.clone();
        Ok(Completion { asked_at, ..context.record(&cut, prompt.hash()) })
    }
}

/// What becomes of the requests of a batch that have no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// They are sent again, so often in all; then they have failed.
    Again(u32),
    /// They are sent again, once; then the run must stop.
    Mended,
    /// They are sent again when there is room at the endpoint.
    Queued,
    /// They are left to the next run.
    Left,
}

impl Fate {
    fn of(batch: &Batch, others: bool) -> Self {
        let code = batch.error.as_ref().map(|(code, _)| code.as_str());
        match batch.status.as_str() {
            // Somebody wanted them not to be answered.
            "cancelled" => Self::Left,
            // More tokens are queued at the endpoint than it allows.
            "failed" if code == Some("token_limit_exceeded") && others => Self::Queued,
            "failed" => Self::Mended,
            "expired" => Self::Again(SENDS),
            _ => Self::Again(TRIES),
        }
    }
}

/// What is done with the requests of a batch that have no answer.
struct Rest<'r, 'f> {
    readers: &'r Readers<'f>,
    /// Whose queue takes what is to be asked again.
    run: RunId,
    endpoint: &'r Endpoint,
    fate: Fate,
    /// Whether the batch has answers, so that it is the rows that fail.
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
        // Billed by nobody and asked without `response_format` from here on.
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
            // By itself, while others are answered: it fails for its rows.
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
            // As live: it refuses all requests like this one.
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

/// Puts rows that are to be asked about again in the queue.
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
