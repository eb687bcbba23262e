//! Parses the output lines of a batch into facts, in the same way as live answers.

use std::collections::HashSet;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use serde_json::Value as Json;
use tokio::task::JoinSet;

use super::template::{AnswerParsers, to_row_batch};
use crate::batch::BatchLine;
use crate::generate::{ArrivedReply, StopReason};
use crate::plan::RowBatch;
use crate::{ModelError, Reply, parse_batch_line};
use hqdl_facts::{BatchedRequest, FactsError, KnownRequest};

/// Number of answers stored concurrently, in a shared commit.
const MAX_CONCURRENT: usize = 64;
/// Maximum length of a line in bytes: one answer with its envelope.
const MAX_LINE_BYTES: u64 = 16 << 20;

/// Template id of a stored answer, and the rows to request again.
type StoredAnswer = (i64, Vec<(RowBatch, u32)>);

/// Numbers of lines in a file, by kind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LineCounts {
    /// Number of answers that were stored.
    pub answered: u64,
    /// Number of requests that failed.
    pub failed: u64,
    /// Number of answers to requests that were already settled.
    pub known: u64,
    /// Number of answers to requests that are not in the journal.
    pub unknown: u64,
    /// Number of lines that are not batch output.
    pub unreadable: u64,
}

/// Handles requests that got no answer.
pub trait UnansweredSink {
    /// Queues rows for another request.
    ///
    /// # Errors
    /// [`StopReason`] if the rows cannot be queued.
    fn queue_retries(
        &mut self,
        template_id: i64,
        row_batches: Vec<(RowBatch, u32)>,
    ) -> Result<(), StopReason>;

    /// Handles a failed request.
    ///
    /// # Errors
    /// [`StopReason`] if the failure cannot be stored.
    fn record_failed_request(
        &mut self,
        request: BatchedRequest,
        error: ModelError,
    ) -> Result<(), StopReason>;
}

/// Counts the batch output lines of a file.
///
/// # Errors
/// Fails if the file cannot be read.
pub(super) fn count_output_lines(path: &Path) -> std::io::Result<u64> {
    let mut count = 0;
    for line in BufReader::new(std::fs::File::open(path)?).split(b'\n') {
        let json: Json = serde_json::from_slice(&line?).unwrap_or(Json::Null);
        count += u64::from(parse_batch_line(&json).is_some());
    }
    Ok(count)
}

impl AnswerParsers<'_> {
    /// Parses a file of output lines (plain or .gz) and stores each answer once. `batch_job` is the
    /// job that the lines belong to; if it is `None`, they may belong to any job.
    ///
    /// # Errors
    /// [`StopReason`] if the file cannot be read or an answer cannot be stored.
    pub async fn read_file(
        &self,
        path: &Path,
        batch_job: Option<i64>,
        sink: &mut dyn UnansweredSink,
    ) -> Result<LineCounts, StopReason> {
        let io_error = |error| FactsError::File { path: path.to_owned(), error };
        let file = std::fs::File::open(path).map_err(io_error)?;
        let reader: Box<dyn Read + Send> = if path.extension().is_some_and(|e| e == "gz") {
            Box::new(flate2::read::MultiGzDecoder::new(file))
        } else {
            Box::new(file)
        };
        let mut lines = LineCounts::default();
        let mut seen = HashSet::new();
        let mut tasks = JoinSet::new();
        let mut reader = BufReader::new(reader);
        let mut line = Vec::new();
        // Error for an answer with implausible usage. It is returned at the end, because the other
        // answers are paid for and must be stored.
        let mut implausible = None;
        while read_bounded_line(&mut reader, &mut line).map_err(io_error)? {
            if line.trim_ascii().is_empty() {
                continue;
            }
            let json: Json = serde_json::from_slice(&line).unwrap_or(Json::Null);
            let Some(BatchLine { custom_id, reply, created }) = parse_batch_line(&json) else {
                lines.unreadable += 1;
                continue;
            };
            let state = self.facts.history().find_request(&custom_id, batch_job)?;
            let request = match state {
                // An earlier answer to the same request may not be committed yet, so use the first
                // answer only.
                KnownRequest::Open(request) if seen.insert(request.id) => request,
                KnownRequest::Open(_) | KnownRequest::Done => {
                    lines.known += 1;
                    continue;
                }
                KnownRequest::Unknown => {
                    lines.unknown += 1;
                    continue;
                }
            };
            match reply {
                Ok(reply) => {
                    lines.answered += 1;
                    // If the user sent the batch, the journal does not contain the time of the
                    // request, but the answer may.
                    let created_at = created.filter(|_| batch_job.is_none() && self.run.is_some());
                    while tasks.len() >= MAX_CONCURRENT {
                        self.store_next_answer(&mut tasks, sink, &mut implausible).await?;
                    }
                    tasks.spawn(self.store_answer(*request, custom_id, reply, created_at)?);
                }
                Err(error) => {
                    lines.failed += 1;
                    sink.record_failed_request(*request, error)?;
                }
            }
        }
        while !tasks.is_empty() {
            self.store_next_answer(&mut tasks, sink, &mut implausible).await?;
        }
        implausible.map_or(Ok(lines), Err)
    }

    /// Waits until one answer is stored.
    async fn store_next_answer(
        &self,
        tasks: &mut JoinSet<Result<StoredAnswer, StopReason>>,
        sink: &mut dyn UnansweredSink,
        implausible: &mut Option<StopReason>,
    ) -> Result<(), StopReason> {
        match tasks.join_next().await {
            Some(Ok(Err(reason @ StopReason::Endpoint(ModelError::Usage(_))))) => {
                implausible.get_or_insert(reason);
                Ok(())
            }
            Some(Ok(kept)) => {
                let (template_id, to_retry) = kept?;
                if to_retry.is_empty() { Ok(()) } else { sink.queue_retries(template_id, to_retry) }
            }
            Some(Err(bug)) => Err(StopReason::Bug(bug.to_string())),
            None => Ok(()),
        }
    }

    /// Stores one answer. Returns its template id and the rows to request again.
    fn store_answer(
        &self,
        request: BatchedRequest,
        custom_id: String,
        mut reply: Reply,
        created: Option<i64>,
    ) -> Result<impl Future<Output = Result<StoredAnswer, StopReason>> + use<>, StopReason> {
        let context = self.load_context(request.template, request.run)?;
        Ok(async move {
            let row_batch = to_row_batch(&request);
            let mut completion = context.new_completion(&row_batch, custom_id);
            let created = created.and_then(|c| jiff::Timestamp::from_second(c).ok());
            if let Some(created) = created {
                completion.asked_at = created.to_string();
            } else if !request.sent_at.is_empty() {
                let sent: Option<jiff::Timestamp> = request.sent_at.parse().ok();
                let elapsed = sent.map(|s| jiff::Timestamp::now().duration_since(s).as_secs_f64());
                completion.seconds = elapsed.unwrap_or_default().max(0.0);
                completion.asked_at = request.sent_at;
            }
            let (frame, prompt) = context.build_prompt(&row_batch);
            reply.resolve_tokens(
                |reply| context.count_tokens(&frame, &prompt, reply),
                |reply| context.compute_plausible_tokens(&prompt, reply),
            );
            let arrived = ArrivedReply {
                row_batch: &row_batch,
                frame: &frame,
                prompt: &prompt,
                attempt: request.attempt,
                reservation_id: None,
                worst_case: request.worst_case,
                answers: Some(request.id),
            };
            let to_retry = context.store_reply(arrived, completion, reply).await?;
            Ok((request.template, to_retry))
        })
    }
}

/// Reads a line. Replaces a line that is too long with invalid JSON. Returns false at the end of
/// the file.
fn read_bounded_line(reader: &mut impl BufRead, line: &mut Vec<u8>) -> std::io::Result<bool> {
    line.clear();
    if reader.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', line)? == 0 {
        return Ok(false);
    }
    if line.len() as u64 == MAX_LINE_BYTES && !line.ends_with(b"\n") {
        line.truncate(1);
        reader.skip_until(b'\n')?;
    }
    Ok(true)
}
