//! What a store must be able to tell and to write down beside the facts
//! themselves: the [`History`] of all that was ever asked, kept in one place by
//! all who share the cache.
//!
//! The traits are the contract; the journal (`SQLite`) keeps it today, in the file
//! named after each concern. Whoever writes another store implements these
//! traits and [`super::FactStore`], and nothing else. Of every method holds:
//!
//! * what it writes is committed, and safe on the disk, before it returns, in one
//!   transaction a call; killed in its midst, it has written nothing;
//! * it sees what others have committed before it was called; [`Answers::changed`] and
//!   [`Dictionary::meanings_named`] what they had before the last
//!   [`super::FactStore::catch_up`];
//! * lines and completions are seen in the order of their ids: who has seen one
//!   sees none with a lower id later (tables are published up to a line, and
//!   refresh jobs ask again for what came up to a completion);
//! * it waits for others only while they write (a minute at the longest), never
//!   for a request on its way, so it may be called from anywhere;
//! * it fails with [`FactsError::Journal`] when the record cannot be read or
//!   written, and may be called again then;
//! * said twice with the same arguments it changes nothing more, unless it
//!   begins, enters or appends something, as its words say.

use std::collections::{HashMap, HashSet};

use crate::FactsError;
use crate::batch_jobs::{BatchJob, BatchRequest};
use crate::checksum::Damage;
use crate::completion::{Completion, Outcome};
use crate::ids::RunId;
use crate::questions::{Learned, LiveQuestion, QuestionOrigin};
use crate::record::Fact;
use crate::refresh::{OpenRefresh, RefreshSubject};
use crate::requests::{BatchedRequest, KnownRequest};
use crate::spending::{ColumnDay, Hour, Totals};
use hqdl_values::key::{Entity, ListHash, Meaning};
use hqdl_values::usage::{Doubt, Spent};

/// Everything that was ever asked, answered, begun and spent.
pub trait History:
    Answers
    + BatchJobs
    + BatchRequests
    + Dictionary
    + Integrity
    + Questions
    + RefreshJobs
    + RequestForms
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
        + RequestForms
        + Runs
        + Spending
        + Send
        + Sync
{
}

/// Models, value lists and what columns mean, by small ids that stay. An id that is
/// asked for is entered when it is new; two who ask at once get the same one.
pub trait Dictionary {
    /// The id of a model.
    fn model(&self, name: &str) -> Result<u32, FactsError>;

    /// The id of a column's meaning.
    fn meaning(&self, meaning: &Meaning) -> Result<u32, FactsError>;

    /// The ids of all meanings that a column of this name and key has had.
    fn meanings_named(&self, column: &str) -> Result<Vec<u32>, FactsError>;

    /// The id of a value list.
    fn value_list(&self, hash: &ListHash) -> Result<u32, FactsError>;

    /// All models: ids and names.
    fn models(&self) -> Result<Vec<(u32, String)>, FactsError>;

    /// All value lists: ids and hashes.
    fn value_lists(&self) -> Result<Vec<(u32, String)>, FactsError>;

    /// All meanings: ids and [`Meaning`]s as JSON.
    fn meanings(&self) -> Result<Vec<(u32, String)>, FactsError>;
}

/// Runs: each belongs to the process that began it until it ends or that process
/// does; then whoever comes goes on with it.
pub trait Runs {
    /// Begins a run.
    fn begin(&self, command: &str, spec: &str) -> Result<RunId, FactsError>;

    /// Goes on with the last run of a spec when that one never ended (it was
    /// killed, or has batches under way) and is nobody's, else begins one; with
    /// what was in flight when any run was killed.
    fn begin_or_go_on(&self, command: &str, spec: &str) -> Result<(RunId, Doubt), FactsError>;

    /// The last run of a spec that is nobody's, when that one never ended.
    fn unfinished(&self, spec: &str) -> Result<Option<RunId>, FactsError>;

    /// Ends a run, in which nothing is in flight any more.
    fn end(&self, run: RunId, outcome: Outcome) -> Result<(), FactsError>;

    /// Ends the last run of a spec that was killed and is nobody's, unless batches
    /// of it are under way.
    fn end_unfinished(&self, spec: &str, outcome: Outcome) -> Result<(), FactsError>;

    /// Leaves a run that is not over, for the next one to go on with.
    fn leave_open(&self, run: RunId) -> Result<(), FactsError>;

    /// Whether a run is somebody's, and goes on.
    fn goes_on(&self, run: RunId) -> Result<bool, FactsError>;
}

/// What was spent, by run and by day. What recordings answered is in no sum.
pub trait Spending {
    /// What a run has spent, and what it may have spent without an answer. What
    /// its batches under way may cost is not in it ([`Spending::reserved`]).
    fn spent(&self, run: RunId) -> Result<Spent, FactsError>;

    /// USD spent since midnight, UTC, and what may have been spent without an
    /// answer.
    fn spent_today(&self) -> Result<f64, FactsError>;

    /// What a run's requests under way may cost.
    fn reserved(&self, run: RunId) -> Result<Spent, FactsError>;

    /// What all requests that were sent today (UTC) and are under way may cost.
    fn reserved_today(&self) -> Result<Spent, FactsError>;

    /// The hours since a moment (RFC 3339, UTC) in which something was spent.
    fn hours_since(&self, since: &str) -> Result<Vec<Hour>, FactsError>;

    /// What the cells of the lines after a line cost, by day (since `since`, a date)
    /// and column, and the last line there is. A cell costs its share of its request;
    /// what was paid for no cell is in none.
    fn columns_after(&self, line: i64, since: &str) -> Result<(i64, Vec<ColumnDay>), FactsError>;

    /// Requests, tokens and price of everything ever paid for, and the runs.
    fn totals(&self) -> Result<Totals, FactsError>;
}

/// Completions, and the facts read from them, in the order in which they were kept:
/// a *line* is the answer about one entity.
pub trait Answers {
    /// Which journal this is.
    fn id(&self) -> Result<String, FactsError>;

    /// The last completion there is.
    fn last_completion(&self) -> Result<i64, FactsError>;

    /// A completion, by id, with its model's name.
    fn completion(&self, id: i64) -> Result<Option<(Completion, String)>, FactsError>;

    /// Completions, by their ids and in their order, each with its model's name.
    fn completions(&self, ids: &[i64]) -> Result<Vec<Option<(Completion, String)>>, FactsError> {
        ids.iter().map(|id| self.completion(*id)).collect()
    }

    /// The last completions of a model that said something, at most so many, the latest
    /// first.
    fn latest_completions(&self, model: &str, most: u32) -> Result<Vec<Completion>, FactsError>;

    /// Visits the facts that came after a line, in order, but for what is damaged,
    /// and what entities were known to be before that. Returns the last line.
    fn answers_after(
        &self,
        line: i64,
        damage: &Damage,
        visit: &mut dyn FnMut(i64, Entity, Vec<Fact>) -> Result<(), FactsError>,
    ) -> Result<i64, FactsError>;

    /// Which journal this is, and its last line.
    fn place(&self) -> Result<(String, i64), FactsError>;

    /// The last line that put something else in the place of a value of a
    /// meaning; 0 when there is none.
    fn changed(&self, meaning: u32) -> Result<i64, FactsError>;

    /// The entities of which something of these meanings was answered after a line.
    fn answered_since(&self, line: i64, meanings: &[u32]) -> Result<HashSet<Entity>, FactsError>;
}

/// Whether what is kept still says what was kept.
pub trait Integrity {
    /// Looks at every answer after a line of the journal.
    fn damage(&self, after: i64) -> Result<Damage, FactsError>;

    /// Looks whether the file is whole, beside its answers: its pages, its indexes,
    /// and what columns mean.
    ///
    /// # Errors
    /// [`FactsError::Damaged`] with the first thing that is wrong.
    fn check(&self) -> Result<(), FactsError>;

    /// What says that something which is kept here cannot be read.
    fn unreadable(&self, what: String) -> FactsError;
}

/// Batch jobs: what goes, or went, to a Batch API together. Every step is written
/// down before the next one is taken.
pub trait BatchJobs {
    /// The id of a form.
    fn form(&self, text: &str) -> Result<i64, FactsError>;

    /// The text of a form.
    fn form_text(&self, id: i64) -> Result<String, FactsError>;

    /// Packs requests into a parcel; returns its id.
    fn pack(&self, parcel: &BatchJob, packed: &[BatchRequest]) -> Result<i64, FactsError>;

    /// How many parcels a run has sent so far.
    fn parcels_of(&self, run: RunId) -> Result<u64, FactsError>;

    /// The endpoint has the file of a parcel.
    fn uploaded(&self, parcel: i64, file: &str) -> Result<(), FactsError>;

    /// The batch of a parcel is about to be asked for. It is not when the budget
    /// of the day (`of_day`, in USD) does not cover it any more: what is gone
    /// today is given then.
    fn creating(&self, parcel: i64, of_day: Option<f64>) -> Result<Option<f64>, FactsError>;

    /// The endpoint works on a parcel.
    fn opened(&self, parcel: i64, batch: &str) -> Result<(), FactsError>;

    /// Everything that a parcel brought is kept. What is left in it is dropped:
    /// its cells are missing, and may be asked for again.
    fn close(&self, parcel: i64, outcome: &str) -> Result<(), FactsError>;

    /// The parcels of a spec that the endpoint has, or may have.
    fn parcels_under_way(&self, spec: &str) -> Result<Vec<BatchJob>, FactsError>;

    /// Whether a run of batches of a spec was ended before its end.
    fn is_unsettled(&self, spec: &str) -> Result<bool, FactsError>;

    /// Forgets what was never sent: requests that wait for this run or for
    /// nobody, and parcels of a spec whose batch was never asked for. Their cells
    /// are missing, as before.
    fn forget_unsent(&self, spec: &str, run: RunId) -> Result<Vec<BatchJob>, FactsError>;

    /// Forgets a parcel that turned out never to have been sent.
    fn forget_parcel(&self, parcel: i64) -> Result<(), FactsError>;

    /// What the requests of a parcel may cost.
    fn worst_of(&self, parcel: i64) -> Result<Spent, FactsError>;

    /// Whether a run has parcels under way.
    fn has_under_way(&self, run: RunId) -> Result<bool, FactsError>;

    /// A parcel, and how many of its requests have no answer.
    fn parcel(&self, id: i64) -> Result<(BatchJob, u64), FactsError>;

    /// Whether any request at all is under way in a parcel, or waits to be.
    fn any_under_way(&self) -> Result<bool, FactsError>;

    /// How many cells each expansion has in requests of a parcel that have no
    /// answer yet, by form.
    fn cells_of(&self, parcel: i64) -> Result<Vec<(i64, u64)>, FactsError>;
}

/// The requests of batch jobs: what each asks, about whom, and whether it was
/// answered ([`super::CommitUnit::answers`] settles it).
pub trait BatchRequests {
    /// Puts requests in the queue of a run.
    fn enqueue(&self, run: RunId, requests: &[BatchedRequest]) -> Result<(), FactsError>;

    /// Leaves so many rows in a request that waits; the others wait in one of their
    /// own.
    fn split(
        &self,
        run: RunId,
        request: &mut BatchedRequest,
        rows: usize,
    ) -> Result<(), FactsError>;

    /// How many requests of a run wait to be packed.
    fn waiting(&self, run: RunId) -> Result<u64, FactsError>;

    /// The first request in the queue of a run after some id.
    fn next_waiting(&self, run: RunId, after: i64) -> Result<Option<BatchedRequest>, FactsError>;

    /// What is known of the answer's `custom_id`, in one parcel or, without
    /// one, in any.
    fn find_request(
        &self,
        custom_id: &str,
        parcel: Option<i64>,
    ) -> Result<KnownRequest, FactsError>;

    /// The requests of a parcel that have no answer yet.
    fn unanswered(&self, parcel: i64) -> Result<Vec<i64>, FactsError>;

    /// A request, by id.
    fn request(&self, id: i64) -> Result<Option<BatchedRequest>, FactsError>;

    /// Takes a request out of its parcel: it waits again, in the queue of a run.
    /// `counts` says whether it was sent in earnest.
    fn send_again(&self, request: i64, run: RunId, counts: bool) -> Result<(), FactsError>;

    /// Drops a request: it needs no answer any more.
    fn drop_request(&self, request: i64) -> Result<(), FactsError>;

    /// Which columns (by meaning) of an entity are asked for by a request that
    /// is under way to a model, or waits for its turn in a run that goes on.
    fn under_way(&self, entity: &Entity, model: u32) -> Result<Vec<u32>, FactsError>;

    /// Which columns (by meaning) of an entity stand in files that somebody else
    /// sends to a model, with no answer yet: by parcel.
    fn in_files(&self, entity: &Entity, model: u32) -> Result<Vec<(i64, Vec<u32>)>, FactsError>;

    /// A request failed where somebody else sent it: its cells may be written
    /// again, and an answer that comes all the same is taken in.
    fn failed_elsewhere(&self, request: i64) -> Result<(), FactsError>;
}

/// Questions that queries asked live, and the columns that a model bound
/// questions to.
pub trait Questions {
    /// Notes that a query asks a question of the values of a column.
    fn note_question(
        &self,
        meaning: u32,
        origin: &QuestionOrigin,
        list: Option<&[String]>,
    ) -> Result<(), FactsError>;

    /// The questions that queries asked of values, the dearest first.
    fn live_questions(&self) -> Result<Vec<LiveQuestion>, FactsError>;

    /// The values that each question was answered for, in their canonical form.
    fn asked_values(&self) -> Result<HashMap<u32, HashSet<String>>, FactsError>;

    /// What a model made of a question, when it was asked: `offered` is the hash
    /// of the columns, `question` the text as it is compared.
    fn learned(
        &self,
        offered: &str,
        question: &str,
        model: &str,
    ) -> Result<Option<Learned>, FactsError>;

    /// Everything that models bound to the columns of this hash, and what they
    /// bound to none.
    fn all_learned(&self, offered: &str) -> Result<Vec<Learned>, FactsError>;

    /// Remembers what a model made of a question.
    fn learn(&self, offered: &str, question: &str, learned: &Learned) -> Result<(), FactsError>;
}

/// What requests to endpoints hold, where those have refused some of it. It is
/// forgotten after a day.
pub trait RequestForms {
    /// What requests hold to what this hash stands for: an endpoint, a model and its
    /// settings.
    fn request_form(&self, endpoint: &str) -> Result<Option<String>, FactsError>;

    /// Remembers it, or, without a form, forgets it.
    fn note_request_form(&self, endpoint: &str, form: Option<&str>) -> Result<(), FactsError>;
}

/// Asking again for what is known, over several runs.
pub trait RefreshJobs {
    /// The round about a subject that has begun and not ended.
    fn open_round(&self, s: &RefreshSubject) -> Result<Option<OpenRefresh>, FactsError>;

    /// Begins a round: facts of completions up to `up_to` no longer count.
    fn begin_round(&self, s: &RefreshSubject, up_to: i64) -> Result<OpenRefresh, FactsError>;

    /// Ends a round: all it was about has been asked.
    fn end_round(&self, round: i64) -> Result<(), FactsError>;
}
