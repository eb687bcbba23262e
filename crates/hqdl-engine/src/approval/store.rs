//! Stores plans that wait for approval, and approvals, as files in a directory, because `hqdl mcp`
//! and `hqdl approve` are separate processes.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::private_dir::{FileError, create_private_dir, read_json, write_json};
use crate::query::Dialect;
use hqdl_values::format::{escape_invisible_chars, format_usd};

/// Number of minutes for which an approval is valid.
pub const APPROVAL_MINUTES: i64 = 15;
/// Age at which the files of a plan are deleted.
const MAX_AGE: Duration = Duration::from_secs(24 * 60 * 60);
/// Length of a plan's id, in characters.
const ID_LENGTH: usize = 12;
/// Maximum number of plans of one client that wait for approval.
const MAX_WAITING: usize = 20;

/// Work that hqdl does once a plan is approved.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PlannedWork {
    /// Run a query.
    Query(PlannedQuery),
    /// Write SQL for a question.
    Question {
        /// The question.
        text: String,
    },
    /// Fill the missing cells of the spec's tables.
    Materialize(FillRequest),
    /// Override a cell.
    Override(CellOverride),
}

/// The query of a plan.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PlannedQuery {
    /// Text of the query.
    pub sql: String,
    /// SQL dialect of the query.
    pub dialect: Dialect,
    /// Confidence of the intervals in percent; `None` if the query runs without intervals.
    #[serde(default)]
    pub interval: Option<f64>,
}

/// The missing cells that a plan asks for.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct FillRequest {
    /// Columns to fill; `None` for all.
    pub columns: Option<Vec<String>>,
    /// Maximum number of keys per expansion.
    pub limit: Option<u64>,
    /// Whether to ask again for cells without a value.
    pub retry_failed: bool,
}

/// An override that an assistant proposes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CellOverride {
    /// Table of an expansion or of a one-to-many column.
    pub table: String,
    /// Values of the key columns in their order.
    pub key: Vec<String>,
    /// Name of the column.
    pub column: String,
    /// New value; `|` separates the values of a list.
    pub value: String,
    /// Reason for the override.
    pub note: String,
}

impl PlannedWork {
    /// Returns whether the work changes data. If so, a person must approve it even if it is free.
    #[must_use]
    pub fn changes_data(&self) -> bool {
        matches!(self, Self::Materialize(_) | Self::Override(_))
    }

    /// Returns the confidence of a query's intervals in percent; `None` if the work has no
    /// intervals.
    #[must_use]
    pub fn interval(&self) -> Option<f64> {
        match self {
            Self::Query(query) => query.interval,
            _ => None,
        }
    }

    /// Returns the names and values that the approver sees.
    fn list_details(&self) -> Vec<(&'static str, String)> {
        match self {
            Self::Query(query) => {
                let interval = query.interval.map(|percent| ("interval", format!("{percent} %")));
                std::iter::once(("query", query.sql.clone())).chain(interval).collect()
            }
            Self::Question { text } => vec![
                ("question", text.clone()),
                ("does", "a model writes SQL for the question; the query is not run".to_owned()),
            ],
            Self::Materialize(fill) => {
                let columns = fill.columns.as_ref().map(|all| all.join(", "));
                let mut lines = vec![
                    ("does", "fills missing cells and publishes the tables".to_owned()),
                    ("columns", columns.unwrap_or_else(|| "all".to_owned())),
                ];
                lines.extend(fill.limit.map(|limit| ("keys", format!("the first {limit}"))));
                if fill.retry_failed {
                    lines.push(("again", "cells that were answered without a value".to_owned()));
                }
                lines
            }
            Self::Override(cell) => vec![
                ("does", "overrides the model's answer".to_owned()),
                ("cell", format!("{}.{} of {}", cell.table, cell.column, cell.key.join(", "))),
                ("value", cell.value.clone()),
                ("reason", cell.note.clone()),
            ],
        }
    }
}

/// Plan of an assistant's work, as the approver sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlanRecord {
    /// Work of the plan.
    pub work: PlannedWork,
    /// Path of the spec.
    pub spec: String,
    /// Path or URL of the database.
    pub database: String,
    /// Hash of the database's schema.
    pub schema: String,
    /// Models and their endpoints.
    pub model: String,
    /// Client that requested the plan.
    pub client: String,
    /// Random text on which the plan's id depends, so that only the client that requested the plan
    /// knows the id. `None` if a session identifies the client.
    #[serde(default)]
    pub nonce: Option<String>,
    /// Maximum cost of the plan, in USD. `None` if it is not known.
    pub max_usd: Option<f64>,
    /// Reason why the cost is not known, or why approval is needed although nothing is spent.
    pub note: Option<String>,
    /// Routes of the query's calls.
    pub routes: Vec<String>,
}

impl PlanRecord {
    /// Returns the hash of everything that an approval applies to. The cost is not part of it,
    /// because an approval only limits the cost.
    fn compute_digest(&self) -> String {
        self.hash_with_nonce(self.nonce.as_deref())
    }

    fn hash_with_nonce(&self, nonce: Option<&str>) -> String {
        let work = format!("{:?}", self.work);
        let nonce = nonce.unwrap_or_default().to_owned();
        let mut hasher = blake3::Hasher::new();
        let context = [&self.spec, &self.database, &self.schema, &self.model, &self.client];
        for part in [&work].into_iter().chain(context).chain([&nonce]) {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part.as_bytes());
        }
        hasher.finalize().to_hex().to_string()
    }

    /// Returns the plan's id.
    #[must_use]
    pub fn id(&self) -> String {
        self.compute_digest()[..ID_LENGTH].to_owned()
    }

    /// Returns the id that the plan has without its nonce. A client without a session gets a new
    /// nonce for each plan, but a rejection must apply to all its plans for the same work.
    fn id_without_nonce(&self) -> String {
        self.hash_with_nonce(None)[..ID_LENGTH].to_owned()
    }

    /// Returns the maximum cost of the plan, in words.
    #[must_use]
    pub fn describe_max_cost(&self) -> String {
        self.max_usd
            .map_or_else(|| "not known".to_owned(), |usd| format!("at most {}", format_usd(usd)))
    }

    /// Returns the names and values that the approver sees, with the cost last. Escapes characters
    /// that are invisible or change what a terminal shows.
    #[must_use]
    pub fn list_details(&self) -> Vec<(&'static str, String)> {
        let cost = self.describe_max_cost();
        let work = self.work.list_details();
        let mut lines: Vec<(&str, &str)> =
            work.iter().map(|(name, text)| (*name, text.as_str())).collect();
        lines.extend(self.work.changes_data().then_some(("spec", self.spec.as_str())));
        lines.extend(self.routes.iter().map(|route| ("call", route.as_str())));
        lines.push(("database", &self.database));
        lines.push(("model", &self.model));
        lines.push(("client", &self.client));
        lines.extend(self.note.as_deref().map(|note| ("note", note)));
        lines.push(("cost", &cost));
        let safe = |text: &str| {
            text.trim().lines().map(escape_invisible_chars).collect::<Vec<_>>().join("\n")
        };
        lines.into_iter().map(|(name, text)| (name, safe(text))).collect()
    }

    /// Returns whether the approval of `approved` also covers this plan: it must be the same plan,
    /// at the same or a lower cost.
    #[must_use]
    pub fn is_covered_by(&self, approved: &Self) -> bool {
        let is_cheaper = match (self.max_usd, approved.max_usd) {
            (Some(usd), Some(approved)) => usd <= approved,
            (Some(_), None) => true,
            (None, approved) => approved.is_none(),
        };
        self.compute_digest() == approved.compute_digest() && is_cheaper
    }
}

/// Returns whether a text has the form of a plan's id. Only a text in this form may become part of
/// a path.
#[must_use]
pub fn is_plan_id(text: &str) -> bool {
    text.len() == ID_LENGTH
        && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

/// An approval, with the plan as the person saw it.
#[derive(Debug, Serialize, Deserialize)]
struct Approval {
    plan: PlanRecord,
    /// Time of the approval, as Unix time in seconds.
    approved_at: i64,
}

impl Approval {
    fn is_valid(&self, now: i64) -> bool {
        is_recent(self.approved_at, now)
    }
}

/// Returns whether a decision is still in force. Both arguments are Unix times in seconds.
fn is_recent(decided_at: i64, now: i64) -> bool {
    (0..APPROVAL_MINUTES * 60).contains(&(now - decided_at))
}

/// Time of a request for approval or of a rejection.
#[derive(Debug, Serialize, Deserialize)]
struct PlanEvent {
    /// Unix time in seconds.
    at: i64,
}

/// State of a plan on which a person can decide. Times are Unix times in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenState {
    /// The plan waits for a decision.
    Waiting {
        /// Time at which the assistant requested approval.
        since: i64,
    },
    /// The plan was approved but has not run yet.
    Approved {
        /// Time at which the approval expires.
        until: i64,
    },
}

/// A plan on which a person can decide.
#[derive(Debug, Clone, PartialEq)]
pub struct OpenPlan {
    /// The plan.
    pub plan: PlanRecord,
    /// State of the plan.
    pub state: OpenState,
}

impl OpenPlan {
    /// Returns the hash of everything that a person sees of the plan, including its cost and time.
    #[must_use]
    pub fn digest(&self) -> String {
        blake3::hash(format!("{self:?}").as_bytes()).to_hex().to_string()
    }
}

/// Reason why an approval is not valid.
#[derive(Debug, thiserror::Error)]
pub enum ApprovalError {
    /// There is no such plan.
    #[error("there is no plan `{0}`")]
    NoPlan(String),
    /// The approval is too old.
    #[error("the approval has expired: it was given more than {APPROVAL_MINUTES} minutes ago")]
    Expired,
    /// A person rejected the plan.
    #[error("the user rejected the plan less than {APPROVAL_MINUTES} minutes ago")]
    Rejected,
    /// The approval is for another query, schema or model, or for a lower cost.
    #[error("the plan changed after it was approved: its query, schema, model or cost differs")]
    Changed,
    /// A file cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
}

/// Directory of plans and approvals.
#[derive(Debug, Clone)]
pub struct PlanStore {
    dir: PathBuf,
}

impl PlanStore {
    /// Opens the directory, creates it if necessary, and deletes old plans. If other users had
    /// access to the directory, deletes all plans and approvals, because one of these users may
    /// have written them.
    ///
    /// # Errors
    /// [`ApprovalError::File`] if the directory cannot be created, made private or cleaned up.
    pub fn open(dir: &Path) -> Result<Self, ApprovalError> {
        let is_foreign = create_private_dir(dir)?;
        let store = Self { dir: dir.to_owned() };
        store.delete_files(is_foreign)?;
        Ok(store)
    }

    /// Deletes old files, or all of them. Leaves files whose names do not begin with a plan's id.
    fn delete_files(&self, all: bool) -> Result<(), FileError> {
        for entry in fs::read_dir(&self.dir).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let id = name.to_str().and_then(|name| name.split('.').next());
            if !id.is_some_and(is_plan_id) {
                continue;
            }
            let age = entry.metadata().and_then(|m| m.modified()).map(|at| at.elapsed());
            if all || matches!(age, Ok(Ok(age)) if age > MAX_AGE) {
                match fs::remove_file(entry.path()) {
                    // Another process may have deleted the file.
                    Err(error) if all && error.kind() != io::ErrorKind::NotFound => {
                        return Err(FileError { path: entry.path(), error });
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    fn path(&self, id: &str, kind: &str) -> Result<PathBuf, ApprovalError> {
        if !is_plan_id(id) {
            return Err(ApprovalError::NoPlan(id.to_owned()));
        }
        Ok(self.dir.join(format!("{id}.{kind}.json")))
    }

    /// Stores a plan that waits for approval, and deletes old plans.
    ///
    /// # Errors
    /// [`ApprovalError::File`] if a file cannot be written.
    pub fn save_plan(&self, plan: &PlanRecord) -> Result<(), ApprovalError> {
        self.delete_files(false)?;
        Ok(write_json(&self.path(&plan.id(), "plan")?, plan)?)
    }

    /// Stores a plan and adds it to the plans that wait for approval. `now` is a Unix time in
    /// seconds. A repeated request keeps the time of the first request, so that a form that already
    /// shows the plan remains valid.
    ///
    /// # Errors
    /// [`ApprovalError::Rejected`] if a person recently rejected the plan; [`ApprovalError::File`]
    /// if a file cannot be read or written.
    pub fn request_approval(&self, plan: &PlanRecord, now: i64) -> Result<(), ApprovalError> {
        self.check_rejection(plan, now)?;
        self.save_plan(plan)?;
        self.withdraw_superseded_requests(plan, now)?;
        let path = self.path(&plan.id(), "request")?;
        let earlier: Option<PlanEvent> = read_json(&path)?;
        if earlier.is_some_and(|request| is_recent(request.at, now)) {
            return Ok(());
        }
        Ok(write_json(&path, &PlanEvent { at: now })?)
    }

    /// Withdraws the client's other requests for the same work, and the client's oldest requests
    /// beyond [`MAX_WAITING`].
    fn withdraw_superseded_requests(
        &self,
        plan: &PlanRecord,
        now: i64,
    ) -> Result<(), ApprovalError> {
        let mut others = self.list_open_plans(now)?;
        others.retain(|open| {
            matches!(open.state, OpenState::Waiting { .. })
                && open.plan.client == plan.client
                && open.plan.id() != plan.id()
        });
        let work = plan.id_without_nonce();
        let (same, others): (Vec<_>, Vec<_>) =
            others.into_iter().partition(|open| open.plan.id_without_nonce() == work);
        let excess = (others.len() + 1).saturating_sub(MAX_WAITING);
        for open in same.iter().chain(&others[..excess]) {
            self.withdraw_request(&open.plan)?;
        }
        Ok(())
    }

    /// Checks that no person rejected the plan in the last [`APPROVAL_MINUTES`]. `now` is a Unix
    /// time in seconds.
    ///
    /// # Errors
    /// [`ApprovalError::Rejected`] if a person recently rejected the plan; [`ApprovalError::File`]
    /// if a file cannot be read.
    pub fn check_rejection(&self, plan: &PlanRecord, now: i64) -> Result<(), ApprovalError> {
        let path = self.path(&plan.id_without_nonce(), "rejection")?;
        let rejection: Option<PlanEvent> = read_json(&path)?;
        match rejection {
            Some(rejection) if is_recent(rejection.at, now) => Err(ApprovalError::Rejected),
            _ => Ok(()),
        }
    }

    /// Returns the plans that have waited for approval for less than [`APPROVAL_MINUTES`], followed
    /// by the approved plans that have not run yet. Both groups are sorted, oldest first.
    ///
    /// # Errors
    /// [`ApprovalError::File`] if a file cannot be read.
    pub fn list_open_plans(&self, now: i64) -> Result<Vec<OpenPlan>, ApprovalError> {
        self.delete_files(false)?;
        let names = fs::read_dir(&self.dir).into_iter().flatten().flatten();
        let mut ids: Vec<String> = names
            .filter_map(|entry| {
                let name = entry.file_name().into_string().ok()?;
                let id = name.strip_suffix(".request.json");
                Some(id.or_else(|| name.strip_suffix(".approval.json"))?.to_owned())
            })
            .filter(|id| is_plan_id(id))
            .collect();
        ids.sort_unstable();
        ids.dedup();
        let found = ids.iter().map(|id| self.find_open_plan(id, now));
        let mut open: Vec<OpenPlan> =
            found.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect();
        open.sort_by_key(|open| match open.state {
            OpenState::Waiting { since } => since,
            OpenState::Approved { until } => until,
        });
        Ok(open)
    }

    /// Returns a plan on which a person can decide; `None` if there is no such plan.
    ///
    /// # Errors
    /// [`ApprovalError::NoPlan`] if `id` is not the id of a plan; [`ApprovalError::File`] if a file
    /// cannot be read.
    pub fn find_open_plan(&self, id: &str, now: i64) -> Result<Option<OpenPlan>, ApprovalError> {
        let Some(open) = self.read_open_plan(id, now)? else { return Ok(None) };
        match self.check_rejection(&open.plan, now) {
            Err(ApprovalError::Rejected) => Ok(None),
            checked => checked.map(|()| Some(open)),
        }
    }

    fn read_open_plan(&self, id: &str, now: i64) -> Result<Option<OpenPlan>, ApprovalError> {
        let approval: Option<Approval> = read_json(&self.path(id, "approval")?)?;
        if let Some(Approval { plan, approved_at }) = approval.filter(|a| a.is_valid(now)) {
            let until = approved_at + APPROVAL_MINUTES * 60;
            return Ok(Some(OpenPlan { plan, state: OpenState::Approved { until } }));
        }
        let request: Option<PlanEvent> = read_json(&self.path(id, "request")?)?;
        let Some(PlanEvent { at }) = request.filter(|request| is_recent(request.at, now)) else {
            return Ok(None);
        };
        let plan = match self.load_plan(id) {
            Err(ApprovalError::NoPlan(_)) => return Ok(None),
            plan => plan?,
        };
        Ok(Some(OpenPlan { plan, state: OpenState::Waiting { since: at } }))
    }

    /// Approves or rejects a plan that a person saw as `shown`. A rejection also withdraws an
    /// earlier approval. Returns false and changes nothing if the plan's state has changed since,
    /// or if the decision would approve an approved plan.
    ///
    /// # Errors
    /// [`ApprovalError::File`] if a file cannot be written or removed.
    pub fn record_decision(
        &self,
        shown: &OpenPlan,
        approves: bool,
        now: i64,
    ) -> Result<bool, ApprovalError> {
        let id = shown.plan.id();
        let open_file = match shown.state {
            OpenState::Waiting { .. } => "request",
            OpenState::Approved { .. } if approves => return Ok(false),
            OpenState::Approved { .. } => "approval",
        };
        // If several decisions are made at once, only one of them removes the file.
        if !self.remove_file(&id, open_file)? {
            return Ok(false);
        }
        if approves {
            self.approve(&shown.plan, now)?;
        } else {
            let path = self.path(&shown.plan.id_without_nonce(), "rejection")?;
            write_json(&path, &PlanEvent { at: now })?;
        }
        Ok(true)
    }

    /// Removes a plan from the list of plans that wait for approval.
    ///
    /// # Errors
    /// [`ApprovalError::File`] if the request's file cannot be removed.
    pub fn withdraw_request(&self, plan: &PlanRecord) -> Result<(), ApprovalError> {
        self.remove_file(&plan.id(), "request").map(drop)
    }

    /// Removes a file of a plan. Returns whether it existed.
    fn remove_file(&self, id: &str, kind: &str) -> Result<bool, ApprovalError> {
        let path = self.path(id, kind)?;
        match fs::remove_file(&path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(FileError { path, error }.into()),
        }
    }

    /// Returns a stored plan.
    ///
    /// # Errors
    /// [`ApprovalError::NoPlan`] if there is no such plan; [`ApprovalError::File`] if its file
    /// cannot be read.
    pub fn load_plan(&self, id: &str) -> Result<PlanRecord, ApprovalError> {
        let plan: Option<PlanRecord> = read_json(&self.path(id, "plan")?)?;
        plan.filter(|plan| plan.id() == id).ok_or_else(|| ApprovalError::NoPlan(id.to_owned()))
    }

    /// Approves a plan as it was shown to a person. `now` is a Unix time in seconds.
    ///
    /// # Errors
    /// [`ApprovalError::File`] if a file cannot be written or removed.
    pub fn approve(&self, shown: &PlanRecord, now: i64) -> Result<(), ApprovalError> {
        let id = shown.id();
        self.remove_file(&id, "request")?;
        self.remove_file(&shown.id_without_nonce(), "rejection")?;
        let approval = Approval { plan: shown.clone(), approved_at: now };
        Ok(write_json(&self.path(&id, "approval")?, &approval)?)
    }

    /// Uses up the approval of a plan. Returns false if the plan has not been approved. If several
    /// callers try at once, only one of them gets true.
    ///
    /// # Errors
    /// [`ApprovalError`] if the plan was rejected, if its approval has expired or does not cover
    /// the plan, or if a file cannot be read or removed.
    pub fn consume_approval(&self, plan: &PlanRecord, now: i64) -> Result<bool, ApprovalError> {
        self.check_rejection(plan, now)?;
        let id = plan.id();
        let approval = read_json::<Approval>(&self.path(&id, "approval")?)?;
        let Some(approval) = approval else { return Ok(false) };
        if !approval.is_valid(now) {
            return Err(ApprovalError::Expired);
        }
        if !plan.is_covered_by(&approval.plan) {
            return Err(ApprovalError::Changed);
        }
        self.remove_file(&id, "approval")
    }
}
