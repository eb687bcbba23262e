//! Packs queued requests into a batch job: a file with one line per request, within the endpoint's
//! limits and the budget.

use std::collections::HashSet;
use std::io::Write;
use std::path::{Path, PathBuf};

use super::template::{AnswerParsers, to_row_batch};
use crate::batch::BatchApi;
use crate::budget::{BudgetExhausted, Caps};
use crate::generate::{Context, StopReason};
use hqdl_facts::{BatchJob, BatchRequest, BatchedRequest, FactsError, RunId, Stage};
use hqdl_prompt::Prompt;
use hqdl_spec::BatchLimits;
use hqdl_values::usage::SpentAmount;

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct BatchBudget {
    /// Spending limits that apply to the job.
    pub caps: Caps,
    /// Cost so far, including the worst-case cost of requests in flight.
    pub committed: SpentAmount,
}

impl BatchBudget {
    fn covers_request(&self, packed: SpentAmount, next: SpentAmount) -> bool {
        let usd = self.committed.usd + packed.usd + next.usd;
        let tokens = self.committed.tokens + packed.tokens + next.tokens;
        self.caps.usd.is_none_or(|cap| usd <= cap)
            && self.caps.tokens.is_none_or(|cap| tokens <= cap)
    }
}

/// Settings for packing batch jobs.
pub(super) struct BatchPacker<'p, 'f> {
    pub parsers: &'p AnswerParsers<'f>,
    pub endpoint: &'p (dyn BatchApi + 'p),
    pub limits: BatchLimits,
    pub run: RunId,
    pub spec: &'p str,
    pub dir: &'p Path,
    /// Prefix of the file names, before the token.
    pub prefix: &'p str,
    /// [`Stage::Written`], or [`Stage::Exported`] for files that the user sends.
    pub stage: Stage,
}

/// Result of [`BatchPacker::pack_job`].
pub(super) enum PackOutcome {
    /// A batch job, its file and its worst-case cost.
    Packed(BatchJob, PathBuf, SpentAmount),
    /// The queue is empty.
    Empty,
    /// The budget does not cover the next request.
    BudgetExceeded(BudgetExhausted),
}

impl BatchPacker<'_, '_> {
    /// Packs as many queued requests as fit into a batch job and the budget.
    pub(super) fn pack_job(&self, budget: &BatchBudget) -> Result<PackOutcome, StopReason> {
        let facts = self.parsers.facts;
        let io_error = |path: &Path| {
            let path = path.to_owned();
            move |error| StopReason::Facts(FactsError::File { path, error })
        };
        let mut packed: Vec<BatchRequest> = Vec::new();
        let mut ids = HashSet::new();
        let mut worst_case = SpentAmount::default();
        let mut exceeded = None;
        let (mut bytes, mut last_id) = (0, 0);
        std::fs::create_dir_all(self.dir).map_err(io_error(self.dir))?;
        let partial_path = self.dir.join(self.partial_file_name()?);
        let mut out = std::io::BufWriter::new(
            std::fs::File::create(&partial_path).map_err(io_error(&partial_path))?,
        );
        while packed.len() < self.limits.requests as usize {
            let Some(mut request) = facts.history().find_next_request(self.run, last_id)? else {
                break;
            };
            last_id = request.id;
            let context = self.parsers.load_context(request.template, self.run)?;
            let (mut prompt, mut next_cost) =
                build_prompt_with_cost(&context, &request, request.rows.len());
            if !budget.covers_request(worst_case, next_cost) {
                let spent = budget.committed;
                exceeded = Some(BudgetExhausted { caps: budget.caps, spent, next: next_cost });
                // Reduce the request to as many rows as the budget covers.
                let mut rows = request.rows.len();
                while rows > 1 && !budget.covers_request(worst_case, next_cost) {
                    rows /= 2;
                    (prompt, next_cost) = build_prompt_with_cost(&context, &request, rows);
                }
                if !budget.covers_request(worst_case, next_cost) {
                    break;
                }
                facts.history().split_request(self.run, &mut request, rows)?;
            }
            let custom_id = prompt.provenance_hash();
            // A row that is requested again alone has the same prompt, and thus the same id, so its
            // request goes into the next job.
            if !ids.insert(custom_id.clone()) {
                continue;
            }
            let line =
                self.endpoint.format_request_line(&custom_id, &prompt, &context.choice.parameters);
            if !packed.is_empty() && bytes + line.len() as u64 > self.limits.bytes {
                break;
            }
            out.write_all(line.as_bytes()).map_err(io_error(&partial_path))?;
            bytes += line.len() as u64;
            worst_case.usd += next_cost.usd;
            worst_case.tokens += next_cost.tokens;
            packed.push(BatchRequest { id: request.id, custom_id, worst_case: next_cost });
        }
        out.flush().map_err(io_error(&partial_path))?;
        drop(out);
        if packed.is_empty() {
            let _ = std::fs::remove_file(&partial_path);
            return Ok(exceeded.map_or(PackOutcome::Empty, PackOutcome::BudgetExceeded));
        }
        let token = self.compute_job_token(&packed)?;
        let path = self.dir.join(format!("{}{token}.jsonl", self.prefix));
        let exported = self.stage == Stage::Exported;
        let full = std::path::absolute(&path).unwrap_or_else(|_| path.clone());
        let mut batch_job = BatchJob {
            id: 0,
            token,
            run: self.run,
            spec: self.spec.to_owned(),
            endpoint: self.endpoint.base_url().to_owned(),
            stage: self.stage,
            requests: packed.len() as u64,
            input_file: None,
            batch: None,
            file: exported.then(|| full.to_string_lossy().into_owned()),
        };
        // Store the job before its file exists, because the user might send the file.
        batch_job.id = facts.history().create_batch_job(&batch_job, &packed)?;
        if let Err(error) = std::fs::rename(&partial_path, &path) {
            facts.history().delete_batch_job(batch_job.id)?;
            return Err(io_error(&path)(error));
        }
        Ok(PackOutcome::Packed(batch_job, path, worst_case))
    }

    /// Returns the temporary name of a file that is being written. The name is unique to this
    /// journal and spec.
    fn partial_file_name(&self) -> Result<String, StopReason> {
        let journal = self.parsers.facts.history().load_journal_id()?;
        let hash = blake3::hash(format!("{journal} {}", self.spec).as_bytes()).to_hex();
        Ok(format!("{}{}.part", self.prefix, &hash.as_str()[..8]))
    }

    /// Returns the token of a batch job. If a killed run packs the same requests again, the token
    /// is the same, so that the earlier upload is found. If requests are sent a second time, the
    /// token is different.
    fn compute_job_token(&self, packed: &[BatchRequest]) -> Result<String, StopReason> {
        let history = self.parsers.facts.history();
        let mut hasher = blake3::Hasher::new_derive_key("hqdl parcel v1");
        hasher.update(history.load_journal_id()?.as_bytes());
        hasher.update(&self.run.get().to_le_bytes());
        hasher.update(&history.count_batch_jobs(self.run)?.to_le_bytes());
        packed.iter().for_each(|p| {
            hasher.update(p.custom_id.as_bytes());
        });
        Ok(hasher.finalize().to_hex().as_str()[..24].to_owned())
    }
}

/// Returns the prompt for the first `rows` rows of a request, and its worst-case cost.
fn build_prompt_with_cost(
    context: &Context,
    request: &BatchedRequest,
    rows: usize,
) -> (Prompt, SpentAmount) {
    let mut row_batch = to_row_batch(request);
    row_batch.missing_rows.truncate(rows);
    let (_, prompt) = context.build_prompt(&row_batch);
    let price = context.choice.price.as_ref();
    let worst_case = prompt.worst_case(price);
    (prompt, worst_case)
}
