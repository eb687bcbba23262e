//! Parses the output lines of a batch into facts, in the same way as live answers.

use std::collections::HashSet;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use serde_json::Value as Json;
use tokio::task::JoinSet;

use super::form::{Readers, cut};
use crate::generate::{ArrivedReply, Stopped};
use crate::plan::RowBatch;
use crate::{ModelError, Reply, openai};
use hqdl_facts::{BatchedRequest, FactsError, KnownRequest};

/// Number of answers that are stored concurrently; they share a commit.
const TOGETHER: usize = 64;
/// Maximum length of a line in bytes: one answer with its envelope.
const LINE: u64 = 16 << 20;

/// The template id of a stored answer, and the rows to ask again.
type KeptAnswer = (i64, Vec<(RowBatch, u32)>);

/// Counts of the lines of a file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lines {
    /// Answers that were stored.
    pub answered: u64,
    /// Requests that failed.
    pub failed: u64,
    /// Answers to requests that are settled already.
    pub known: u64,
    /// Answers to requests that the journal does not know.
    pub unknown: u64,
    /// Lines that are not batch output.
    pub unreadable: u64,
}

/// Handler of requests without an answer.
pub trait UnansweredSink {
    /// Queues rows that must be asked again.
    ///
    /// # Errors
    /// [`Stopped`] if that cannot be stored.
    fn again(&mut self, form: i64, cuts: Vec<(RowBatch, u32)>) -> Result<(), Stopped>;

    /// Handles a failed request.
    ///
    /// # Errors
    /// [`Stopped`] if that cannot be stored.
    fn failed(&mut self, request: BatchedRequest, error: ModelError) -> Result<(), Stopped>;
}

/// Counts the batch output lines of a file.
///
/// # Errors
/// Errors of the operating system.
pub(super) fn count(path: &Path) -> std::io::Result<u64> {
    let mut count = 0;
    for line in BufReader::new(std::fs::File::open(path)?).split(b'\n') {
        let json: Json = serde_json::from_slice(&line?).unwrap_or(Json::Null);
        count += u64::from(openai::read_line(&json).is_some());
    }
    Ok(count)
}

impl Readers<'_> {
    /// Parses a file of output lines (plain or .gz) and stores each answer once. `batch_job` is the
    /// batch job of the lines; without it, they may belong to any job.
    ///
    /// # Errors
    /// [`Stopped`] if the file cannot be read or an answer cannot be stored.
    pub async fn read_file(
        &self,
        path: &Path,
        parcel: Option<i64>,
        sink: &mut dyn UnansweredSink,
    ) -> Result<Lines, Stopped> {
        let disk = |error| FactsError::File { path: path.to_owned(), error };
        let file = std::fs::File::open(path).map_err(disk)?;
        let reader: Box<dyn Read + Send> = if path.extension().is_some_and(|e| e == "gz") {
            Box::new(flate2::read::MultiGzDecoder::new(file))
        } else {
            Box::new(file)
        };
        let mut lines = Lines::default();
        let mut seen = HashSet::new();
        let mut tasks = JoinSet::new();
        let mut reader = BufReader::new(reader);
        let mut line = Vec::new();
        // An answer with implausible usage; the other answers are paid for, so store them first.
        let mut beyond = None;
        while next_line(&mut reader, &mut line).map_err(disk)? {
            if line.trim_ascii().is_empty() {
                continue;
            }
            let json: Json = serde_json::from_slice(&line).unwrap_or(Json::Null);
            let Some((id, reply)) = openai::read_line(&json) else {
                lines.unreadable += 1;
                continue;
            };
            let known = self.facts.history().find_request(&id, parcel)?;
            let request = match known {
                // Its first answer may not be committed yet.
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
                    // If the user sent the batch, only the answer has the time.
                    let created = json.pointer("/response/body/created").and_then(Json::as_i64);
                    let at = created.filter(|_| parcel.is_none() && self.run.is_some());
                    while tasks.len() >= TOGETHER {
                        self.next(&mut tasks, sink, &mut beyond).await?;
                    }
                    tasks.spawn(self.task(*request, id, reply, at)?);
                }
                Err(error) => {
                    lines.failed += 1;
                    sink.failed(*request, error)?;
                }
            }
        }
        while !tasks.is_empty() {
            self.next(&mut tasks, sink, &mut beyond).await?;
        }
        beyond.map_or(Ok(lines), Err)
    }

    /// Waits until one answer is stored.
    async fn next(
        &self,
        tasks: &mut JoinSet<Result<KeptAnswer, Stopped>>,
        sink: &mut dyn UnansweredSink,
        beyond: &mut Option<Stopped>,
    ) -> Result<(), Stopped> {
        match tasks.join_next().await {
            Some(Ok(Err(why @ Stopped::Endpoint(ModelError::Usage(_))))) => {
                beyond.get_or_insert(why);
                Ok(())
            }
            Some(Ok(kept)) => {
                let (form, again) = kept?;
                if again.is_empty() { Ok(()) } else { sink.again(form, again) }
            }
            Some(Err(bug)) => Err(Stopped::Bug(bug.to_string())),
            None => Ok(()),
        }
    }

    /// Stores one answer. Returns its template id and the rows to ask again.
    fn task(
        &self,
        request: BatchedRequest,
        custom_id: String,
        mut reply: Reply,
        created: Option<i64>,
    ) -> Result<impl Future<Output = Result<KeptAnswer, Stopped>> + use<>, Stopped> {
        let context = self.get(request.form, request.run)?;
        Ok(async move {
            let cut = cut(&request);
            let mut record = context.record(&cut, custom_id);
            let created = created.and_then(|c| jiff::Timestamp::from_second(c).ok());
            if let Some(created) = created {
                record.asked_at = created.to_string();
            } else if !request.sent_at.is_empty() {
                let sent: Option<jiff::Timestamp> = request.sent_at.parse().ok();
                let passed = sent.map(|s| jiff::Timestamp::now().duration_since(s).as_secs_f64());
                record.seconds = passed.unwrap_or_default().max(0.0);
                record.asked_at = request.sent_at;
            }
            let (frame, prompt) = context.prompt(&cut);
            reply.settle(
                |reply| context.count(&frame, &prompt, reply),
                |reply| context.plausible_tokens(&prompt, reply),
            );
            let asked = ArrivedReply {
                cut: &cut,
                frame: &frame,
                prompt: &prompt,
                attempt: request.attempt,
                note: None,
                worst: request.worst,
                answers: Some(request.id),
            };
            let again = context.take_in(asked, record, reply).await?;
            Ok((request.form, again))
        })
    }
}

/// Reads a line without its end. A line that is too long is skipped and becomes invalid JSON.
/// Returns false at the end.
fn next_line(reader: &mut impl BufRead, line: &mut Vec<u8>) -> std::io::Result<bool> {
    line.clear();
    if reader.by_ref().take(LINE).read_until(b'\n', line)? == 0 {
        return Ok(false);
    }
    if line.len() as u64 == LINE && !line.ends_with(b"\n") {
        line.truncate(1);
        reader.skip_until(b'\n')?;
    }
    Ok(true)
}
