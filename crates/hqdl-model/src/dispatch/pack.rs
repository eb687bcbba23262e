//! Packs queued requests into a batch job: a file with one line per request, within the limits of
//! the endpoint and of the budget.

use std::collections::HashSet;
use std::io::Write;
use std::path::{Path, PathBuf};

use super::form::{Readers, cut};
use crate::budget::{Caps, Reached};
use crate::generate::{Context, Stopped};
use crate::openai::Endpoint;
use hqdl_facts::{BatchJob, BatchRequest, BatchedRequest, FactsError, RunId, Stage};
use hqdl_prompt::Prompt;
use hqdl_spec::BatchLimits;
use hqdl_values::usage::Spent;

/// The budget of a batch job.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Purse {
    /// The caps.
    pub caps: Caps,
    /// The cost so far, including the worst-case cost of requests in flight.
    pub committed: Spent,
}

impl Purse {
    fn covers(&self, packed: Spent, next: Spent) -> bool {
        let usd = self.committed.usd + packed.usd + next.usd;
        let tokens = self.committed.tokens + packed.tokens + next.tokens;
        self.caps.usd.is_none_or(|cap| usd <= cap)
            && self.caps.tokens.is_none_or(|cap| tokens <= cap)
    }
}

/// Settings for packing batch jobs.
pub(super) struct Packer<'p, 'f> {
    pub readers: &'p Readers<'f>,
    pub endpoint: &'p Endpoint,
    pub limits: BatchLimits,
    pub run: RunId,
    pub spec: &'p str,
    pub dir: &'p Path,
    /// Prefix of the file names, before the token.
    pub prefix: &'p str,
    /// [`Stage::Written`], or [`Stage::Exported`] for files that the user sends.
    pub stage: Stage,
}

/// Result of [`Packer::pack`].
pub(super) enum Made {
    /// A batch job, its file and its worst-case cost.
    BatchJob(BatchJob, PathBuf, Spent),
    /// The queue is empty.
    Nothing,
    /// The budget does not cover the next request.
    Beyond(Reached),
}

impl Packer<'_, '_> {
    /// Packs as many queued requests as fit into a batch job and the budget.
    pub(super) fn pack(&self, purse: &Purse) -> Result<Made, Stopped> {
        let facts = self.readers.facts;
        let file = |path: &Path| {
            let path = path.to_owned();
            move |error| Stopped::Facts(FactsError::File { path, error })
        };
        let mut made: Vec<BatchRequest> = Vec::new();
        let mut ids = HashSet::new();
        let mut worst = Spent::default();
        let mut beyond = None;
        let (mut bytes, mut last) = (0, 0);
        std::fs::create_dir_all(self.dir).map_err(file(self.dir))?;
        let part = self.dir.join(self.part()?);
        let mut out = std::io::BufWriter::new(std::fs::File::create(&part).map_err(file(&part))?);
        while made.len() < self.limits.requests as usize {
            let Some(mut request) = facts.history().next_waiting(self.run, last)? else { break };
            last = request.id;
            let context = self.readers.get(request.form, self.run)?;
            let (mut prompt, mut next) = worst_case(&context, &request, request.rows.len());
            if !purse.covers(worst, next) {
                let spent = purse.committed;
                beyond = Some(Reached { caps: purse.caps, spent, next });
                // Take as many of its rows as the budget covers.
                let mut rows = request.rows.len();
                while rows > 1 && !purse.covers(worst, next) {
                    rows /= 2;
                    (prompt, next) = worst_case(&context, &request, rows);
                }
                if !purse.covers(worst, next) {
                    break;
                }
                facts.history().split(self.run, &mut request, rows)?;
            }
            let custom_id = prompt.hash();
            // A row that is asked alone again has the same prompt, so it goes into the next job.
            if !ids.insert(custom_id.clone()) {
                continue;
            }
            let line = self.endpoint.line(&custom_id, &prompt, &context.choice.parameters);
            if !made.is_empty() && bytes + line.len() as u64 > self.limits.bytes {
                break;
            }
            out.write_all(line.as_bytes()).map_err(file(&part))?;
            bytes += line.len() as u64;
            worst.usd += next.usd;
            worst.tokens += next.tokens;
            made.push(BatchRequest { id: request.id, custom_id, worst: next });
        }
        out.flush().map_err(file(&part))?;
        drop(out);
        if made.is_empty() {
            let _ = std::fs::remove_file(&part);
            return Ok(beyond.map_or(Made::Nothing, Made::Beyond));
        }
        let token = self.token(&made)?;
        let path = self.dir.join(format!("{}{token}.jsonl", self.prefix));
        let exported = self.stage == Stage::Exported;
        let full = std::path::absolute(&path).unwrap_or_else(|_| path.clone());
        let mut parcel = BatchJob {
            id: 0,
            token,
            run: self.run,
            spec: self.spec.to_owned(),
            endpoint: self.endpoint.base().to_owned(),
            stage: self.stage,
            requests: made.len() as u64,
            input_file: None,
            batch: None,
            file: exported.then(|| full.to_string_lossy().into_owned()),
        };
        // Commit the job before its file exists, because the user might send the file.
        parcel.id = facts.history().pack(&parcel, &made)?;
        if let Err(error) = std::fs::rename(&part, &path) {
            facts.history().forget_parcel(parcel.id)?;
            return Err(file(&path)(error));
        }
        Ok(Made::BatchJob(parcel, path, worst))
    }

    /// Returns the name of a file until it is complete. The name is unique to this journal and
    /// spec.
    fn part(&self) -> Result<String, Stopped> {
        let journal = self.readers.facts.history().id()?;
        let hash = blake3::hash(format!("{journal} {}", self.spec).as_bytes()).to_hex();
        Ok(format!("{}{}.part", self.prefix, &hash.as_str()[..8]))
    }

    /// Returns the token of a batch job. Packing the same requests of the same run again gives the
    /// same token, so that an upload is found after a kill. Sending them again gives a different
    /// one.
    fn token(&self, made: &[BatchRequest]) -> Result<String, Stopped> {
        let history = self.readers.facts.history();
        let mut hasher = blake3::Hasher::new_derive_key("hqdl parcel v1");
        hasher.update(history.id()?.as_bytes());
        hasher.update(&self.run.get().to_le_bytes());
        hasher.update(&history.parcels_of(self.run)?.to_le_bytes());
        made.iter().for_each(|p| {
            hasher.update(p.custom_id.as_bytes());
        });
        Ok(hasher.finalize().to_hex().as_str()[..24].to_owned())
    }
}

/// Returns the prompt for the first `rows` rows of a request, and its worst-case cost.
fn worst_case(context: &Context, request: &BatchedRequest, rows: usize) -> (Prompt, Spent) {
    let mut cut = cut(request);
    cut.gaps.truncate(rows);
    let (_, prompt) = context.prompt(&cut);
    let price = context.choice.price.as_ref();
    let worst = Spent::worst(prompt.input_tokens, prompt.max_output, price);
    (prompt, worst)
}
