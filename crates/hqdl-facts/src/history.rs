//! Everything that a store contains besides the facts: the [`History`] of all requests, answers,
//! runs and spending, shared by all users of the cache.
//!
//! These traits are the contract. The journal (`SQLite`) implements them, in one file per concern.
//! A new store implements these traits and [`super::FactStore`], and nothing else. Every method
//! guarantees:
//!
//! * Its writes are committed in one transaction per call and are on disk before it returns. If the
//!   process is killed during the call, nothing is written.
//! * It sees what others committed before the call. [`Answers::find_last_changed_row`] and
//!   [`Dictionary::list_column_identity_ids`] see what others committed before the last
//!   [`super::FactStore::catch_up`].
//! * Fact rows and completions become visible in the order of their ids: after one id is visible,
//!   no lower id appears later. Tables are published up to a row id, and refresh jobs repeat
//!   completions up to an id.
//! * It waits for other writers (a minute at most), never for a request in flight, so any thread
//!   may call it.
//! * It fails with [`FactsError::Journal`] if the history cannot be read or written. The caller can
//!   then try again.
//! * Calling it again with the same arguments has no further effect, unless it is documented to
//!   start, insert or append something.

use std::collections::{HashMap, HashSet};

use crate::FactsError;
use crate::batch_jobs::{BatchJob, BatchRequest};
use crate::checksum::Damage;
use crate::completion::{Completion, Outcome};
use crate::ids::RunId;
use crate::questions::{LiveQuestion, QuestionBinding, QuestionOrigin};
use crate::record::Fact;
use crate::refresh::{OpenRefresh, RefreshSubject};
use crate::requests::{BatchedRequest, KnownRequest};
use crate::spending::{ColumnDailyCost, HourlySpending, Totals};
use hqdl_values::key::{ColumnIdentity, Entity, ListHash};
use hqdl_values::usage::{SpentAmount, UnconfirmedCost};

/// Maximum number of fact rows that [`Answers::load_facts`] searches on this machine.
pub const MAX_SEARCHED_ROWS: i64 = 200_000;

/// The history of all requests, answers, runs and spending.
pub trait History:
    Answers
    + BatchJobs
    + BatchRequests
    + Dictionary
    + Integrity
    + Questions
    + RefreshJobs
    + EndpointFeatures
    + Runs
    + Spending
    + Send
    + Sync
{
}

impl<T> History for T where
    T: Answers
        + BatchJobs
        + BatchRequests
        + Dictionary
        + Integrity
        + Questions
        + RefreshJobs
        + EndpointFeatures
        + Runs
        + Spending
        + Send
        + Sync
{
}

/// Small, permanent ids of models, value lists and column identities. Looking up a new entry
/// assigns it an id; concurrent lookups get the same id.
pub trait Dictionary {
    /// Returns the id of a model. A new model gets a new id.
    fn intern_model(&self, name: &str) -> Result<u32, FactsError>;

    /// Returns the id of a column identity. A new identity gets a new id.
    fn intern_column_identity(&self, identity: &ColumnIdentity) -> Result<u32, FactsError>;

    /// Returns the ids of all identities that a column with this name has had.
    fn list_column_identity_ids(&self, column: &str) -> Result<Vec<u32>, FactsError>;

    /// Returns the id of a value list. A new list gets a new id.
    fn intern_value_list(&self, hash: &ListHash) -> Result<u32, FactsError>;

    /// Returns the ids and names of all models.
    fn list_models(&self) -> Result<Vec<(u32, String)>, FactsError>;

    /// Returns the ids and hashes of all value lists.
    fn list_value_lists(&self) -> Result<Vec<(u32, String)>, FactsError>;

    /// Returns the ids of all column identities, with each [`ColumnIdentity`] as JSON.
    fn list_column_identities(&self) -> Result<Vec<(u32, String)>, FactsError>;
}

/// Runs. A run belongs to the process that started it until the run or the process ends. After
/// that, any process may resume it.
pub trait Runs {
    /// Starts a run.
    fn start_run(&self, command: &str, spec: &str) -> Result<RunId, FactsError>;

    /// Resumes the last run of a spec if it is unfinished (killed, or with open batch jobs) and its
    /// process has ended; otherwise starts a new run. Also returns the unconfirmed cost of the
    /// requests that were in flight when any run was killed.
    fn resume_or_start_run(
        &self,
        command: &str,
        spec: &str,
    ) -> Result<(RunId, UnconfirmedCost), FactsError>;

    /// Returns the last run of a spec if it is unfinished and its process has ended.
    fn find_unfinished_run(&self, spec: &str) -> Result<Option<RunId>, FactsError>;

    /// Finishes a run that has no requests in flight.
    fn finish_run(&self, run: RunId, outcome: Outcome) -> Result<(), FactsError>;

    /// Finishes the last run of a spec if it was killed and its process has ended, unless the run
    /// has open batch jobs.
    fn finish_unfinished_run(&self, spec: &str, outcome: Outcome) -> Result<(), FactsError>;

    /// Leaves an unfinished run for the next process to resume.
    fn leave_run_open(&self, run: RunId) -> Result<(), FactsError>;

    /// Returns true if a run is unfinished and its process is alive.
    fn is_run_active(&self, run: RunId) -> Result<bool, FactsError>;
}

/// Spending by run and by day. Replayed recordings are not counted.
pub trait Spending {
    /// Returns the cost of a run, including the worst-case cost of requests without an answer. Its
    /// open batch jobs are not included ([`Spending::sum_reserved_run_cost`]).
    fn sum_run_cost(&self, run: RunId) -> Result<SpentAmount, FactsError>;

    /// Returns the USD spent since midnight, UTC, including the worst-case cost of requests without
    /// an answer.
    fn sum_cost_today(&self) -> Result<f64, FactsError>;

    /// Returns the worst-case cost of a run's batch requests in flight.
    fn sum_reserved_run_cost(&self, run: RunId) -> Result<SpentAmount, FactsError>;

    /// Returns the worst-case cost of all batch requests in flight that were sent today (UTC).
    fn sum_reserved_cost_today(&self) -> Result<SpentAmount, FactsError>;

    /// Returns the spending of each hour since a time (RFC 3339, UTC); hours without spending are
    /// omitted.
    fn load_hourly_spending(&self, since: &str) -> Result<Vec<HourlySpending>, FactsError>;

    /// Returns the cost of the cells in the fact rows after `fact_row`, by column and by day since
    /// the date `since`, and the last row id. Each cell is charged a share of its request's cost.
    /// Costs that belong to no cell are omitted.
    fn load_column_costs(
        &self,
        fact_row: i64,
        since: &str,
    ) -> Result<(i64, Vec<ColumnDailyCost>), FactsError>;

    /// Returns the number of runs, and the number, tokens and cost of all paid requests.
    fn load_totals(&self) -> Result<Totals, FactsError>;
}

/// Completions and the facts read from them, in the order in which they were stored. A *fact row*
/// is the answer about one entity.
pub trait Answers {
    /// Returns the id of this journal.
    fn load_journal_id(&self) -> Result<String, FactsError>;

    /// Returns the id of the last completion.
    fn load_last_completion_id(&self) -> Result<i64, FactsError>;

    /// Returns the id of the last completion of earlier versions, which stored the facts about a row
    /// with a context under its key alone; 0 if there is none.
    fn load_last_keyed_completion(&self) -> Result<i64, FactsError>;

    /// Returns a completion with its model's name.
    fn load_completion(&self, id: i64) -> Result<Option<(Completion, String)>, FactsError>;

    /// Returns completions with their models' names, in the order of `ids`.
    fn load_completions(
        &self,
        ids: &[i64],
    ) -> Result<Vec<Option<(Completion, String)>>, FactsError> {
        ids.iter().map(|id| self.load_completion(*id)).collect()
    }

    /// Returns the latest completions of a model that have content, at most `max`, each with its
    /// ID; latest first.
    fn load_latest_completions(
        &self,
        model: &str,
        max: u32,
    ) -> Result<Vec<(i64, Completion)>, FactsError>;

    /// Visits the facts after a fact row, in order, and returns the last row id. Skips damaged
    /// rows, and also earlier rows about any entity that a damaged row may belong to.
    fn visit_answers_after(
        &self,
        fact_row: i64,
        damage: &Damage,
        visit: &mut dyn FnMut(i64, Entity, Vec<Fact>) -> Result<(), FactsError>,
    ) -> Result<i64, FactsError>;

    /// Returns the id of this journal and its last row id.
    fn load_journal_position(&self) -> Result<(String, i64), FactsError>;

    /// Returns the id of the last fact row that replaced a value of this column identity; 0 if
    /// there is none.
    fn find_last_changed_row(&self, identity_id: u32) -> Result<i64, FactsError>;

    /// Returns the entities for which an answer to one of these column identities was stored after
    /// a fact row.
    fn find_entities_answered_since(
        &self,
        fact_row: i64,
        identity_ids: &[u32],
    ) -> Result<HashSet<Entity>, FactsError>;

    /// Returns all facts about an entity, oldest first. A store on this machine, which has no index
    /// of entities, searches only its latest [`MAX_SEARCHED_ROWS`] rows. Damaged rows are omitted.
    fn load_facts(&self, entity: &Entity) -> Result<Vec<Fact>, FactsError>;
}

/// Checks that the stored data is undamaged.
pub trait Integrity {
    /// Checks every answer that was stored later than the fact row `after`. If `after` is 0, also
    /// checks the dictionary entries that answers refer to.
    fn find_damage(&self, after: i64) -> Result<Damage, FactsError>;

    /// Checks the rest of the file: its pages and its indexes.
    ///
    /// # Errors
    /// [`FactsError::Damaged`] if the file is damaged; the error describes the first problem.
    fn check_file(&self) -> Result<(), FactsError>;

    /// Returns the error for stored data that cannot be read.
    fn unreadable_error(&self, what: String) -> FactsError;
}

/// Batch jobs: requests that are sent together through a Batch API. Every step is committed before
/// the next one starts.
pub trait BatchJobs {
    /// Stores a request template and returns its id.
    fn store_template(&self, text: &str) -> Result<i64, FactsError>;

    /// Returns the text of a request template.
    fn load_template(&self, id: i64) -> Result<String, FactsError>;

    /// Creates a batch job from requests and returns its id.
    fn create_batch_job(
        &self,
        batch_job: &BatchJob,
        requests: &[BatchRequest],
    ) -> Result<i64, FactsError>;

    /// Returns the number of batch jobs that a run has sent so far.
    fn count_batch_jobs(&self, run: RunId) -> Result<u64, FactsError>;

    /// Records that the endpoint has the file of a batch job.
    fn mark_batch_job_uploaded(&self, batch_job: i64, file: &str) -> Result<(), FactsError>;

    /// Records that creation of the batch is about to be requested. If the daily budget
    /// (`daily_budget`, in USD) no longer covers the job, records nothing and returns the USD spent
    /// or reserved today.
    fn mark_batch_job_creating(
        &self,
        batch_job: i64,
        daily_budget: Option<f64>,
    ) -> Result<Option<f64>, FactsError>;

    /// Records that the endpoint is processing a batch job.
    fn mark_batch_job_open(&self, batch_job: i64, batch: &str) -> Result<(), FactsError>;

    /// Closes a batch job whose results are stored. The remaining requests are dropped: their cells
    /// are missing and may be asked for again.
    fn close_batch_job(&self, batch_job: i64, outcome: &str) -> Result<(), FactsError>;

    /// Returns the batch jobs of a spec that exist, or may exist, at the endpoint.
    fn list_open_batch_jobs(&self, spec: &str) -> Result<Vec<BatchJob>, FactsError>;

    /// Returns true if a batch run of a spec ended early.
    fn has_interrupted_batch_run(&self, spec: &str) -> Result<bool, FactsError>;

    /// Deletes unsent requests and batch jobs, and returns the jobs. Unsent requests are requests
    /// that are queued for this run or for a run that is no longer alive. Unsent jobs are the
    /// spec's jobs whose batch was never requested. Their cells stay missing.
    fn delete_unsent_requests(&self, spec: &str, run: RunId) -> Result<Vec<BatchJob>, FactsError>;

    /// Deletes a batch job that turned out never to have been sent.
    fn delete_batch_job(&self, batch_job: i64) -> Result<(), FactsError>;

    /// Returns the worst-case cost of a batch job.
    fn sum_worst_case_cost(&self, batch_job: i64) -> Result<SpentAmount, FactsError>;

    /// Returns true if a run has open batch jobs.
    fn has_open_batch_jobs(&self, run: RunId) -> Result<bool, FactsError>;

    /// Returns a batch job and the number of its requests without an answer.
    fn load_batch_job(&self, id: i64) -> Result<(BatchJob, u64), FactsError>;

    /// Returns true if any batch request is in flight or queued.
    fn has_batch_requests_in_flight(&self) -> Result<bool, FactsError>;

    /// Returns the number of unanswered cells in a batch job, by request template.
    fn count_unanswered_cells(&self, batch_job: i64) -> Result<Vec<(i64, u64)>, FactsError>;
}

/// The requests of batch jobs: their columns and rows, and whether they were answered
/// ([`super::CommitUnit::answers`] settles them).
pub trait BatchRequests {
    /// Adds requests to the queue of a run.
    fn enqueue_requests(&self, run: RunId, requests: &[BatchedRequest]) -> Result<(), FactsError>;

    /// Truncates a queued request to its first `rows` rows and queues a new request for the others.
    fn split_request(
        &self,
        run: RunId,
        request: &mut BatchedRequest,
        rows: usize,
    ) -> Result<(), FactsError>;

    /// Returns the number of requests in the queue of a run.
    fn count_queued_requests(&self, run: RunId) -> Result<u64, FactsError>;

    /// Returns the first queued request of a run whose id is greater than `after`.
    fn find_next_request(
        &self,
        run: RunId,
        after: i64,
    ) -> Result<Option<BatchedRequest>, FactsError>;

    /// Looks up a request by its `custom_id`, in one batch job or in all of them.
    fn find_request(
        &self,
        custom_id: &str,
        batch_job: Option<i64>,
    ) -> Result<KnownRequest, FactsError>;

    /// Returns the ids of a batch job's requests without an answer.
    fn list_unanswered_requests(&self, batch_job: i64) -> Result<Vec<i64>, FactsError>;

    /// Returns a request by id.
    fn load_request(&self, id: i64) -> Result<Option<BatchedRequest>, FactsError>;

    /// Moves a request from its batch job back to the queue of a run. `counts` states whether the
    /// attempt counts toward the number of times the request was sent.
    fn requeue_request(&self, request: i64, run: RunId, counts: bool) -> Result<(), FactsError>;

    /// Drops a request that no longer needs an answer.
    fn drop_request(&self, request: i64) -> Result<(), FactsError>;

    /// Returns the ids of the column identities that batch requests ask a model for about an
    /// entity. Includes requests in flight, and requests queued for a live run.
    fn list_batched_columns(&self, entity: &Entity, model: u32) -> Result<Vec<u32>, FactsError>;

    /// Returns, by batch job, the column identities that unanswered requests in exported files ask
    /// a model for about an entity.
    fn list_exported_columns(
        &self,
        entity: &Entity,
        model: u32,
    ) -> Result<Vec<(i64, Vec<u32>)>, FactsError>;

    /// Records that an exported request failed. Its cells may be exported again, and a late answer
    /// is still accepted.
    fn mark_export_failed(&self, request: i64) -> Result<(), FactsError>;
}

/// Live questions of queries, and the columns that a model bound them to.
pub trait Questions {
    /// Records that a query asks a question about the values of a column.
    fn record_question(
        &self,
        identity_id: u32,
        origin: &QuestionOrigin,
        list: Option<&[String]>,
    ) -> Result<(), FactsError>;

    /// Returns the live questions of queries, the most expensive first.
    fn list_live_questions(&self) -> Result<Vec<LiveQuestion>, FactsError>;

    /// Returns the answered values of each question, in canonical form.
    fn load_answered_values(&self) -> Result<HashMap<u32, HashSet<String>>, FactsError>;

    /// Returns the column that a model bound a question to; `None` if no model was asked.
    /// `columns_hash` is the hash of the candidate columns, `question` the normalized text.
    fn find_binding(
        &self,
        columns_hash: &str,
        question: &str,
        model: &str,
    ) -> Result<Option<QuestionBinding>, FactsError>;

    /// Returns all bindings of questions for the columns with this hash, including questions that
    /// no column answers.
    fn list_bindings(&self, columns_hash: &str) -> Result<Vec<QuestionBinding>, FactsError>;

    /// Stores the binding of a question.
    fn store_binding(
        &self,
        columns_hash: &str,
        question: &str,
        binding: &QuestionBinding,
    ) -> Result<(), FactsError>;
}

/// Request features that endpoints accept, as learned from their rejections. The store forgets them
/// after a day.
pub trait EndpointFeatures {
    /// Returns the request features that an endpoint accepts; `None` if none are stored. `endpoint`
    /// is a hash of the endpoint, the model and its settings.
    fn load_endpoint_features(&self, endpoint: &str) -> Result<Option<String>, FactsError>;

    /// Stores the request features that an endpoint accepts, or deletes them if `features` is
    /// `None`.
    fn store_endpoint_features(
        &self,
        endpoint: &str,
        features: Option<&str>,
    ) -> Result<(), FactsError>;
}

/// Refresh jobs, which ask for known cells again, possibly over several runs.
pub trait RefreshJobs {
    /// Returns the unfinished refresh job for a scope; `None` if there is none.
    fn load_open_refresh(
        &self,
        subject: &RefreshSubject,
    ) -> Result<Option<OpenRefresh>, FactsError>;

    /// Starts a refresh job: facts from completions up to `up_to` no longer count.
    fn start_refresh(
        &self,
        subject: &RefreshSubject,
        up_to: i64,
    ) -> Result<OpenRefresh, FactsError>;

    /// Finishes a refresh job after all its cells have been asked for.
    fn finish_refresh(&self, refresh_job: i64) -> Result<(), FactsError>;
}
