//! Requests that wait, packed into a parcel: a file of one line a request,
//! within what the endpoint takes and what the budget covers.

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

/// What may be spent, and what is spent or held back already.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Purse {
    /// The caps.
    pub caps: Caps,
    /// What is gone, and the worst case of what is under way.
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

/// Where and for whom parcels are packed.
pub(super) struct Packer<'p, 'f> {
    pub readers: &'p Readers<'f>,
    pub endpoint: &'p Endpoint,
    pub limits: BatchLimits,
    pub run: RunId,
    pub spec: &'p str,
    pub dir: &'p Path,
    /// What the files are called before their token.
    pub prefix: &'p str,
    /// [`Stage::Written`], or [`Stage::Exported`] for files that somebody else sends.
    pub stage: Stage,
}

/// What [`Packer::pack`] made.
pub(super) enum Made {
    /// A parcel and its file.
    BatchJob(BatchJob, PathBuf, Spent),
    /// Nothing waits.
    Nothing,
    /// What waits is more than the budget covers.
    Beyond(Reached),
}

impl Packer<'_, '_> {
    /// Packs as many of the requests that wait as a parcel may hold and the
    /// purse covers.
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
                // As much of it as there is room for.
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
            // A row asked about alone again: the same words, so the next parcel.
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
        // Before there is a file that somebody might send.
        parcel.id = facts.history().pack(&parcel, &made)?;
        if let Err(error) = std::fs::rename(&part, &path) {
            facts.history().forget_parcel(parcel.id)?;
            return Err(file(&path)(error));
        }
        Ok(Made::BatchJob(parcel, path, worst))
    }

    /// What a file is called until it is whole: no other cache or spec writes one of
    /// that name.
    fn part(&self) -> Result<String, Stopped> {
        let journal = self.readers.facts.history().id()?;
        let hash = blake3::hash(format!("{journal} {}", self.spec).as_bytes()).to_hex();
        Ok(format!("{}{}.part", self.prefix, &hash.as_str()[..8]))
    }

    /// What a parcel is found by: the same for the same requests of the same
    /// run, so that what was uploaded just before a kill is found again, and
    /// another one whenever they are sent again.
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

/// Returns the prompt for the first rows of a request, and the most it may cost.
fn worst_case(context: &Context, request: &BatchedRequest, rows: usize) -> (Prompt, Spent) {
    let mut cut = cut(request);
    cut.gaps.truncate(rows);
    let (_, prompt) = context.prompt(&cut);
    let price = context.choice.price.as_ref();
    let worst = Spent::worst(prompt.input_tokens, prompt.max_output, price);
    (prompt, worst)
}
