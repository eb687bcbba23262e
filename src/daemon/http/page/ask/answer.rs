//! Does the work of the Ask page: writes, plans, runs and relaxes queries. Each function spends at
//! most the cost that the page has shown.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::super::query::RowsPreview;
use crate::ask::{
    self, AskError, AskPlan, AskQuestion, Asker, CostLimits, FailedQuery, MaxCost, PlanningOutcome,
    SqlGenerationLimit, Turn,
};
use crate::daemon::active_spec::ActiveSpec;
use crate::daemon::context::DaemonContext;
use crate::database::Database;
use crate::failure::Failure;
use crate::format::{format_count, format_usd, format_usd_bound};
use crate::model;
use crate::problem::Problems;
use crate::query::{Dialect, Meta, QueryError, Request};
use crate::spec::{Spec, is_server};

/// Time limit for the database's work in one pass. A query that a model wrote might never finish.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Result of a submitted question or query.
pub(in crate::daemon::http) enum AskResult {
    /// A query that waits for approval.
    Planned(Box<PagePlan>),
    /// The rows of a query.
    Answered(Box<AskAnswer>),
    /// The database cannot answer the question; contains the reason.
    Declined(String),
    /// A failure, and the query that failed, if there is one.
    Failed { failure: Failure, sql: Option<String> },
}

/// A query that has not run yet, with its maximum cost.
pub(in crate::daemon::http) struct PagePlan {
    pub(super) plan: AskPlan,
    /// Queries that failed and were repaired.
    pub(super) repairs: Vec<FailedQuery>,
    /// Note that the page shows about the plan.
    pub(super) note: Option<String>,
    /// Whether this query, or an earlier query that it is based on, was relaxed.
    pub(super) is_relaxed: bool,
    /// Cost of writing the query in USD, if this request wrote it.
    pub(super) writing_usd: Option<f64>,
}

/// The rows of a query.
pub(in crate::daemon::http) struct AskAnswer {
    pub(super) planned: PagePlan,
    pub(super) rows: RowsPreview,
    pub(super) meta: Meta,
    /// Sentence about the tables that were searched.
    pub(super) searched: String,
    /// The question with its query, for the conversation.
    pub(super) turn: Turn,
}

/// A query in a form, with the cost that the page has shown for it.
pub(super) struct ShownQuery {
    pub(super) sql: String,
    pub(super) dialect: Dialect,
    pub(super) is_relaxed: bool,
    /// The model's assumptions, if it wrote the query.
    pub(super) assumptions: Option<String>,
    /// Price on the button, formatted by [`describe_max_cost`].
    pub(super) cost: String,
    /// Identity of the plan that the page has shown.
    pub(super) plan_id: String,
}

/// Action that the user has chosen for a question.
pub(super) enum AskAction {
    /// Write a query. With `rewrites`, ignore stored queries.
    Write { rewrites: bool },
    /// Compute the cost of a query that the user edited.
    Price(ShownQuery),
    /// Run a query whose cost was shown.
    Run(ShownQuery),
    /// Write a query with a weaker condition.
    Relax(ShownQuery),
}

/// Returns the maximum cost of writing a query for a spec, in words.
///
/// # Errors
/// Returns a [`Failure`] if the spec limits the cost, but the model's price is not known.
pub(super) fn describe_max_writing_cost(active: &ActiveSpec) -> Result<String, Failure> {
    if active.spec.is_replay() {
        return Ok("free, from recordings".to_owned());
    }
    Ok(match ask::limit_sql_generation_cost(&approve_requests(&active.spec))?.1 {
        SqlGenerationLimit::Usd(usd) => format!("for at most {}", format_usd(usd)),
        SqlGenerationLimit::Tokens(tokens) => {
            format!("for at most {}, price unknown", format_count(tokens, "token"))
        }
    })
}

/// Returns the spec for requests that the user approves with a button that shows the price. A budget
/// of 0, as in the spec of an uploaded file, only means that every request needs this approval.
pub(super) fn approve_requests(spec: &Spec) -> Spec {
    let mut approved = spec.clone();
    approved.limits.budget_usd = spec.limits.budget_usd.filter(|usd| *usd > 0.0);
    approved
}

/// Returns the maximum cost of a query, in words.
pub(super) fn describe_max_cost(cost: &MaxCost) -> String {
    match cost {
        MaxCost::Nothing => "free".to_owned(),
        MaxCost::Usd(usd) => format!("for at most {}", format_usd_bound(*usd)),
        MaxCost::Unknown(_) => "at an unknown cost".to_owned(),
    }
}

/// A question with everything needed to answer it.
pub(super) struct AskJob {
    pub(super) context: DaemonContext,
    /// Name of the spec.
    pub(super) spec: String,
    pub(super) active: Arc<ActiveSpec>,
    /// The spec, for the requests that the user approves.
    pub(super) approved: Spec,
    /// Path of the database that queries read.
    pub(super) target: PathBuf,
    pub(super) question: String,
    /// Earlier questions of the conversation.
    pub(super) earlier: Vec<Turn>,
    pub(super) interrupt: watch::Receiver<bool>,
}

impl AskJob {
    /// Answers the question. Blocks.
    pub(super) fn answer_question(&self, action: AskAction) -> AskResult {
        let sql = match &action {
            AskAction::Write { .. } => None,
            AskAction::Price(shown) | AskAction::Run(shown) | AskAction::Relax(shown) => {
                Some(shown.sql.clone())
            }
        };
        let outcome = match action {
            AskAction::Write { rewrites } => self.write_query(rewrites),
            AskAction::Price(shown) => {
                self.plan_query(&shown).map(|planned| AskResult::Planned(Box::new(planned)))
            }
            AskAction::Run(shown) => self.run_shown_query(&shown),
            AskAction::Relax(shown) => self.relax_query(&shown),
        };
        outcome.unwrap_or_else(|failure| AskResult::Failed { failure, sql })
    }

    fn build_request<'r>(&'r self, sql: &'r str, dialect: Dialect) -> Request<'r> {
        Request {
            model: self.active.model.clone().ok(),
            dialect,
            timeout: Some(TIMEOUT),
            command: "ask",
            listener: self.context.metrics.new_usage_listener(),
            interrupt: self.interrupt.clone(),
            ..Request::new(&self.approved, &self.target, &self.context.facts, sql)
        }
    }

    /// Writes a query. Runs the query immediately if it costs nothing and the database is a local
    /// file.
    fn write_query(&self, rewrites: bool) -> Result<AskResult, Failure> {
        #[expect(
            clippy::redundant_closure_for_method_calls,
            reason = "the method does not have the lifetime that the function needs"
        )]
        let (outcome, repairs, usd) =
            self.with_asker(rewrites, |asker| asker.plan_likelier_reading())?;
        let plan = match outcome {
            PlanningOutcome::Plan(mut plan) => {
                self.set_plan_id(&mut plan)?;
                *plan
            }
            PlanningOutcome::Declined(reason) => return Ok(AskResult::Declined(reason)),
            PlanningOutcome::Unreadable if self.approved.is_replay() => {
                return Err(Failure::wrong_input(
                    "the recordings contain no query for this question",
                    "set a real model in [model], or ask the question of an [[example]]",
                ));
            }
            PlanningOutcome::Unreadable => {
                return Err(Failure::wrong_input(
                    "the model's reply contains no query",
                    "write the query again, or reword the question",
                ));
            }
            PlanningOutcome::Failed(failed) => {
                let message = format!("the model wrote no query that runs: {}", failed.error);
                let failure =
                    Failure::wrong_input(message, "correct the query, or reword the question");
                return Ok(AskResult::Failed { failure, sql: Some(failed.sql) });
            }
        };
        let planned =
            PagePlan { plan, repairs, note: None, is_relaxed: false, writing_usd: Some(usd) };
        if planned.plan.max_cost == MaxCost::Nothing && !is_server(&self.target) {
            return self.run_query(planned);
        }
        Ok(AskResult::Planned(Box::new(planned)))
    }

    /// Writes a query with a weaker condition, to replace one that returned no rows.
    fn relax_query(&self, shown: &ShownQuery) -> Result<AskResult, Failure> {
        let before = self.plan_query(shown)?;
        let (relaxed, repairs, usd) = self.with_asker(false, |asker| asker.relax(&before.plan))?;
        let Some(mut plan) = relaxed else {
            let note = Some("The model found no condition that can be relaxed.".to_owned());
            return Ok(AskResult::Planned(Box::new(PagePlan { note, ..before })));
        };
        self.set_plan_id(&mut plan)?;
        let note = Some(ask::describe_relaxation(&shown.sql, &plan.sql));
        let planned = PagePlan { plan, repairs, note, is_relaxed: true, writing_usd: Some(usd) };
        if planned.plan.max_cost == MaxCost::Nothing && !is_server(&self.target) {
            return self.run_query(planned);
        }
        Ok(AskResult::Planned(Box::new(planned)))
    }

    /// Opens an asker for the question, passes it to a function that writes SQL, and returns the
    /// function's result, the repaired queries, and the cost of the requests in USD.
    fn with_asker<T>(
        &self,
        rewrites: bool,
        write: impl FnOnce(&mut Asker<'_>) -> Result<T, AskError>,
    ) -> Result<(T, Vec<FailedQuery>, f64), Failure> {
        let (writing_spec, _) = ask::limit_sql_generation_cost(&self.approved)?;
        let question = AskQuestion {
            text: &self.question,
            request: self.build_request("", Dialect::default()),
            writing_spec: &writing_spec,
            budget_usd: None,
            planning_model: model::connect_for_planning(&self.approved)?,
            rewrites,
            before_request: &|| {},
        };
        let mut asker = Asker::new(question).map_err(|error| self.to_failure(error))?;
        asker.continue_conversation(&self.earlier);
        let outcome = write(&mut asker);
        let repairs = std::mem::take(&mut asker.repairs);
        let usage = asker.finish(outcome.is_ok())?;
        Ok((outcome.map_err(|error| self.to_failure(error))?, repairs, usage.cost_usd))
    }

    /// Checks a query and computes its maximum cost. Sends no request.
    fn plan_query(&self, shown: &ShownQuery) -> Result<PagePlan, Failure> {
        let request = self.build_request(&shown.sql, shown.dialect);
        let planning_model = model::connect_for_planning(&self.approved)?;
        let limits = CostLimits { budget_usd: None, spec_usd: self.approved.limits.budget_usd };
        let mut plan = ask::plan_query(&request, &planning_model, "", limits)
            .map_err(|error| self.to_query_failure(error, &shown.sql))?;
        plan.assumptions.clone_from(&shown.assumptions);
        self.set_plan_id(&mut plan)?;
        let is_relaxed = shown.is_relaxed;
        Ok(PagePlan { plan, repairs: Vec::new(), note: None, is_relaxed, writing_usd: None })
    }

    /// Sets the identity of a plan. The identity does not depend on how the query was created, or
    /// on white space that an HTML form changes.
    fn set_plan_id(&self, plan: &mut AskPlan) -> Result<(), Failure> {
        let (_, schema_hash) = ask::describe_tables(&self.target, &self.approved, false)?;
        let sql = plan.sql.trim().replace("\r\n", "\n");
        let request = self.build_request(&sql, plan.dialect);
        plan.id = ask::compute_plan_id(&request, &schema_hash, &plan.explained);
        Ok(())
    }

    /// Runs a query if its cost has not changed since the page showed it; otherwise shows the new
    /// cost. If the cost is unknown, no budget limits the query, so it must be exactly the query
    /// that the page showed.
    fn run_shown_query(&self, shown: &ShownQuery) -> Result<AskResult, Failure> {
        let planned = self.plan_query(shown)?;
        let price = describe_max_cost(&planned.plan.max_cost);
        let is_unknown = matches!(planned.plan.max_cost, MaxCost::Unknown(_));
        let note = if price != shown.cost {
            format!("This query now runs {price}. Approve the new cost.")
        } else if is_unknown && planned.plan.id != shown.plan_id {
            format!("This is another query, which runs {price}. Approve it.")
        } else {
            return self.run_query(planned);
        };
        Ok(AskResult::Planned(Box::new(PagePlan { note: Some(note), ..planned })))
    }

    fn run_query(&self, planned: PagePlan) -> Result<AskResult, Failure> {
        let plan = &planned.plan;
        let limit = match plan.max_cost {
            MaxCost::Nothing => Some(0.0),
            MaxCost::Usd(usd) => Some(usd),
            MaxCost::Unknown(_) => self.active.spec.limits.budget_usd,
        };
        let mut rows = RowsPreview::default();
        let request = self.build_request(&plan.sql, plan.dialect);
        let meta = match ask::run_within_limit(&request, limit, &mut rows) {
            Ok(meta) => meta,
            Err(error) => {
                let failure = self.to_query_failure(error, &plan.sql);
                return Ok(AskResult::Failed { failure, sql: Some(plan.sql.clone()) });
            }
        };
        self.context.metrics.count_reused_values(meta.values_reused);
        self.context.uses.count_query(&self.spec, &plan.sql, &meta);
        let searched = describe_search(&self.target, &self.active, &meta)?;
        let turn = Turn {
            question: self.question.clone(),
            sql: plan.sql.trim().to_owned(),
            rows: rows.count as u64,
            can_be_example: plan.dialect == Dialect::Sqlite && !planned.is_relaxed,
        };
        Ok(AskResult::Answered(Box::new(AskAnswer { planned, rows, meta, searched, turn })))
    }

    fn to_failure(&self, error: AskError) -> Failure {
        match error {
            AskError::InvalidQuestion(message) => {
                Failure::wrong_input(message, "ask one question in a few sentences")
            }
            AskError::Query(error) => self.to_query_failure(error, ""),
            AskError::Store(error) => error.into(),
            AskError::Index(_) => {
                Failure::wrong_input(error.to_string(), "check the database with `hqdl check`")
            }
        }
    }

    fn to_query_failure(&self, error: QueryError, sql: &str) -> Failure {
        match (error, &self.active.model) {
            (QueryError::Sql(problem), _) => Failure::Problems(Problems {
                path: PathBuf::from("<query>"),
                text: sql.to_owned(),
                problems: vec![*problem],
            }),
            (QueryError::NoModel, Err(why)) => Failure::clone(why),
            (error, _) => error.into(),
        }
    }
}

fn describe_search(target: &Path, active: &ActiveSpec, meta: &Meta) -> Result<String, Failure> {
    let (descriptions, _) = ask::describe_tables(target, &active.spec, false)?;
    Ok(ask::describe_search(&Database::open(target)?, &descriptions, meta))
}

/// Returns a sentence with the cost of writing a query, if this request wrote the query.
pub(super) fn describe_writing_cost(planned: &PagePlan) -> Option<String> {
    let usd = planned.writing_usd?;
    let cost = if usd > 0.0 { format_usd(usd) } else { "nothing".to_owned() };
    let repairs = planned.repairs.len() as u64;
    let repaired = if repairs > 0 {
        format!(", with {}", format_count(repairs, "repair"))
    } else {
        String::new()
    };
    Some(format!("Writing the query cost {cost}{repaired}."))
}
