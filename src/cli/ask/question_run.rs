//! Answers questions: writes, approves, runs and relaxes their queries.

use std::cell::{Cell, RefCell};
use std::io::IsTerminal;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value as Json, json};
use tokio::sync::watch;

use super::AskFlags;
use super::answered_question::AnsweredQuestion;
use super::plan_output::{plan_to_json, print_sql, strip_control_characters};
use crate::ask::{
    self, AskError, AskPlan, AskQuestion, Asker, MaxCost, OtherReading, PlanningOutcome,
    ProposedColumn, Prose, SqlGenerationLimit, Turn,
};
use crate::cli::OutputOptions;
use crate::cli::approve::{read_answer_or_interrupt, read_approval_or_interrupt};
use crate::cli::failure::{APPROVAL, BUDGET, Failure, INCOMPLETE, INTERRUPTED};
use crate::cli::progress::Progress;
use crate::cli::propose::ColumnProposal;
use crate::cli::{meta, session};
use crate::format::{format_count, format_usd, to_single_line};
use crate::generate::StopReason;
use crate::model::{self, Model, ModelError, SetupError};
use crate::query::{QueryError, QueryResult};
use crate::session::Session;
use crate::spec::{PriceTable, Provider, Spec};

/// Default time limit for the database's work in one pass. A query that a model wrote might never
/// finish.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);
/// Hint for a question for which the model wrote no query.
const REWRITE_HINT: &str = "help: reword the question or try another model; hqdl stores the model's reply, and --rewrite asks again";

/// Action that the command takes with a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlanUse<'a> {
    /// Run the query after approval.
    Run {
        /// Id of the plan that was approved.
        approved: Option<&'a str>,
        /// Whether to answer in prose as well as with rows.
        with_prose: bool,
    },
    /// Run the query after approval on the terminal.
    RunInChat,
    /// Print the query's SQL.
    PrintSql,
    /// Print how the query would run.
    Explain,
}

/// Outcome of a question.
pub enum AskOutcome {
    Answered(Box<AnsweredQuestion>),
    /// The output is complete; contains the exit code.
    Stopped(u8),
}

#[derive(Debug, Clone, Copy, Default)]
pub struct SpentUsd {
    /// USD spent on requests for SQL.
    pub writing: f64,
    /// USD spent on running queries.
    pub queries: f64,
}

/// Answers all questions of one command, such as the questions of a conversation.
pub struct AskRun<'s> {
    flags: &'s AskFlags,
    plan_use: PlanUse<'s>,
    session: &'s Session,
    target: &'s Path,
    output_options: OutputOptions,
    model: Option<Arc<dyn Model>>,
    /// Reason why the model could not be connected.
    connect_failure: Option<Failure>,
    planning_model: Arc<dyn Model>,
    /// Copy of the spec that limits the requests for SQL, and the limit itself.
    writing: (Spec, SqlGenerationLimit),
    spent: Cell<SpentUsd>,
    /// Columns that the model proposed for the latest question.
    pub(super) proposed: RefCell<Vec<ColumnProposal>>,
}

impl<'s> AskRun<'s> {
    pub fn open(
        flags: &'s AskFlags,
        plan_use: PlanUse<'s>,
        session: &'s Session,
        target: &'s Path,
        output_options: OutputOptions,
    ) -> Result<Self, Failure> {
        session::print_cache_location(session.facts()?, output_options);
        let settings = &session.spec.model;
        let is_named = flags.spec.is_some() || flags.flags.model.is_some();
        if settings.provider != Provider::Replay && !is_named {
            return Err(Failure::wrong_input(
                "a question needs a model, but none is named",
                "pass --model NAME (and --base-url URL), or --spec SPEC with a [model]",
            ));
        }
        let (model, connect_failure) = match session.connect_model() {
            Ok(model) => (Some(model), None),
            // A stored query without calls needs no API key.
            Err(missing @ SetupError::NoKey(_)) => (None, Some(missing.into())),
            Err(error) => return Err(error.into()),
        };
        Ok(Self {
            flags,
            plan_use,
            session,
            target,
            output_options,
            model,
            connect_failure,
            planning_model: model::connect_for_planning(&session.spec)?,
            writing: ask::limit_sql_generation_cost(&session.spec)?,
            spent: Cell::default(),
            proposed: RefCell::default(),
        })
    }

    /// Returns the USD spent so far.
    pub fn spent_usd(&self) -> SpentUsd {
        self.spent.get()
    }

    /// Answers a question that may refer to earlier ones.
    pub fn ask(
        &self,
        text: &str,
        earlier: &[Turn],
        interrupt: &watch::Receiver<bool>,
    ) -> Result<AskOutcome, Failure> {
        let with_prose = matches!(self.plan_use, PlanUse::Run { with_prose: true, .. });
        let announce =
            || announce_limit(self.writing.1, with_prose, &self.session.spec, self.output_options);
        let question = AskQuestion {
            text,
            request: self.build_request(interrupt.clone())?,
            writing_spec: &self.writing.0,
            budget_usd: self.flags.budget,
            planning_model: Arc::clone(&self.planning_model),
            rewrites: self.flags.rewrite,
            before_request: &announce,
        };
        let mut asker = Asker::new(question).map_err(|error| self.to_failure(error))?;
        asker.continue_conversation(earlier);
        let mut outcome = self.answer(&mut asker, interrupt);
        if let (true, Ok(AskOutcome::Answered(answered))) = (with_prose, &mut outcome) {
            answered.prose = Some(self.write_prose(&mut asker, answered));
        }
        let repairs = std::mem::take(&mut asker.repairs);
        let queries_usd = asker.spent_usd();
        let usage = asker.finish(outcome.is_ok())?;
        let spent = self.spent.get();
        self.spent.set(SpentUsd {
            writing: spent.writing + usage.cost_usd,
            queries: spent.queries + queries_usd,
        });
        let mut outcome = outcome?;
        if let AskOutcome::Answered(answered) = &mut outcome {
            text.clone_into(&mut answered.question);
            answered.new_columns = self.proposals_to_json();
            (answered.repairs, answered.writing) = (repairs, usage);
        }
        Ok(outcome)
    }

    fn build_request(
        &self,
        interrupt: watch::Receiver<bool>,
    ) -> Result<crate::query::Request<'_>, Failure> {
        Ok(crate::query::Request {
            model: self.model.clone(),
            rows_per_request: self.flags.flags.rows_per_request,
            timeout: Some(self.flags.timeout.unwrap_or(DEFAULT_TIMEOUT)),
            command: "ask",
            listener: Progress::new_query_listener(self.output_options),
            interrupt,
            ..self.session.new_query(self.target, "")?
        })
    }

    fn to_failure(&self, error: AskError) -> Failure {
        match error {
            AskError::InvalidQuestion(message) => {
                Failure::wrong_input(message, "ask one question in a few sentences")
            }
            AskError::Query(QueryError::NoModel) => match &self.connect_failure {
                Some(failure) => failure.clone(),
                None => QueryError::NoModel.into(),
            },
            // This limit stops only the writing of SQL; a query runs within its plan's budget.
            AskError::Query(QueryError::Stopped(StopReason::Endpoint(ModelError::Budget(
                reached,
            )))) if !reached.is_daily() => Failure::Message {
                message: format!("cannot write SQL or prose: {reached}"),
                hint: self.suggest_writing_budget().to_owned(),
                exit: BUDGET,
            },
            AskError::Query(error) => error.into(),
            AskError::Store(error) => error.into(),
            AskError::Index(_) => Failure::wrong_input(error.to_string(), ""),
        }
    }

    /// Returns a hint about the settings that limit the requests for SQL. `--budget` limits only
    /// the queries, except where it is lower than `[ask] budget_usd`.
    fn suggest_writing_budget(&self) -> &'static str {
        let is_limited_by_flag = match (self.flags.budget, self.writing.1) {
            (Some(budget), SqlGenerationLimit::Usd(usd)) => budget <= usd,
            _ => false,
        };
        if is_limited_by_flag {
            "raise --budget, or lower `context_tokens` in [ask]"
        } else {
            "raise `budget_usd` in [ask] of the spec (and in [limits], if it is lower), or lower \
             `context_tokens` in [ask]"
        }
    }

    /// Writes, repairs, approves and runs the query of a question, and relaxes the query if it
    /// returns no rows.
    fn answer(
        &self,
        asker: &mut Asker<'_>,
        interrupt: &watch::Receiver<bool>,
    ) -> Result<AskOutcome, Failure> {
        let Some(mut outcome) = self.write_query(asker, interrupt)? else {
            return Ok(AskOutcome::Stopped(INTERRUPTED));
        };
        let mut relaxed: Vec<String> = Vec::new();
        let mut empty: Option<AnsweredQuestion> = None;
        loop {
            let plan = match (outcome, empty.take()) {
                (PlanningOutcome::Plan(plan), earlier) => {
                    empty = earlier;
                    *plan
                }
                (_, Some(empty)) => return Ok(AskOutcome::Answered(Box::new(empty))),
                (other, None) => {
                    self.estimate_proposals(asker, None);
                    return Ok(self.report_missing_query(&other));
                }
            };
            self.estimate_proposals(asker, Some(&plan));
            if matches!(self.plan_use, PlanUse::PrintSql | PlanUse::Explain) {
                self.print_plan(&plan);
                return Ok(AskOutcome::Stopped(0));
            }
            self.show_plan(&plan);
            self.show_proposals();
            match (self.require_approval(&plan, asker, interrupt), empty.take()) {
                (Ok(None), earlier) => empty = earlier,
                (Ok(Some(INTERRUPTED)), _) => return Ok(AskOutcome::Stopped(INTERRUPTED)),
                // The relaxed query was not approved, so the answer is the original query without
                // rows.
                (refused, Some(empty)) => {
                    if let Err(failure) = refused {
                        let message = failure.message();
                        self.print_note(&format!("the relaxed query was not run: {message}"));
                    }
                    return Ok(AskOutcome::Answered(Box::new(empty)));
                }
                (Ok(Some(code)), None) => return Ok(AskOutcome::Stopped(code)),
                (Err(failure), None) => {
                    if self.output_options.json {
                        anstream::println!("{}", self.plan_to_json(&plan));
                    }
                    return Err(failure);
                }
            }
            let mut result = QueryResult::default();
            match asker.run(&plan, &mut result) {
                Ok(meta) => result.meta = meta,
                Err(QueryError::Sql(problem)) => {
                    let repaired = asker.repair(&plan.sql, &problem);
                    outcome = repaired.map_err(|error| self.to_failure(error))?;
                    continue;
                }
                Err(error) => return Err(to_run_failure(error)),
            }
            let searched = asker.describe_search(&result.meta);
            let has_rows = !result.rows.is_empty();
            self.print_relaxations(&relaxed, has_rows);
            let answered = AnsweredQuestion::new(plan, result, searched, relaxed.clone());
            if has_rows {
                return Ok(AskOutcome::Answered(Box::new(answered)));
            }
            let Some(next) = self.relax(asker, &answered.plan) else {
                return Ok(AskOutcome::Answered(Box::new(empty.unwrap_or(answered))));
            };
            relaxed.push(ask::describe_relaxation(&answered.plan.sql, &next.sql));
            self.print_note("the query returned no rows; the model relaxed it");
            empty.get_or_insert(answered);
            outcome = PlanningOutcome::Plan(Box::new(next));
        }
    }

    /// Returns a query with a weaker condition. Returns `None` if a request failed or the budget
    /// for SQL is spent; in that case, the query without rows is the answer.
    fn relax(&self, asker: &mut Asker<'_>, plan: &AskPlan) -> Option<AskPlan> {
        match asker.relax(plan) {
            Ok(next) => next,
            Err(error) => {
                let message = self.to_failure(error).message();
                self.print_note(&format!("no relaxed query was written: {message}"));
                None
            }
        }
    }

    /// Prints how the query that has just run differs from the one before it. With `--quiet`,
    /// prints nothing until a relaxed query returns rows, and then prints all changes, because the
    /// rows answer a different query.
    fn print_relaxations(&self, relaxed: &[String], has_rows: bool) {
        let changes = match relaxed.split_last() {
            Some(_) if self.output_options.quiet && has_rows => relaxed,
            Some((last, _)) if !self.output_options.quiet => std::slice::from_ref(last),
            _ => return,
        };
        if !self.output_options.json {
            changes
                .iter()
                .for_each(|change| anstream::eprintln!("note: {}", to_single_line(change)));
        }
    }

    fn print_note(&self, note: &str) {
        if !self.output_options.quiet && !self.output_options.json {
            anstream::eprintln!("note: {note}");
        }
    }

    /// Lets the user choose a reading of the question, and writes its query. Returns `None` if the
    /// user presses Ctrl-C.
    fn write_query(
        &self,
        asker: &mut Asker<'_>,
        interrupt: &watch::Receiver<bool>,
    ) -> Result<Option<PlanningOutcome>, Failure> {
        let mut outcome = asker.plan().map_err(|error| self.to_failure(error))?;
        let (PlanningOutcome::Plan(plan), Some(other)) = (&mut outcome, asker.other.take()) else {
            return Ok(Some(outcome));
        };
        if !self.can_ask_for_reading() {
            plan.add_other_reading(&other);
            return Ok(Some(outcome));
        }
        match Self::ask_for_reading(plan, &other, interrupt) {
            Some(true) => {
                let other = asker.write_other_query(other);
                other.map(Some).map_err(|error| self.to_failure(error))
            }
            Some(false) => Ok(Some(outcome)),
            None => Ok(None),
        }
    }

    /// Returns true if the user can choose between two readings of the question.
    fn can_ask_for_reading(&self) -> bool {
        let runs =
            matches!(self.plan_use, PlanUse::Run { approved: None, .. } | PlanUse::RunInChat);
        runs && !self.output_options.json && !self.output_options.quiet && can_ask_user()
    }

    /// Asks the user on a terminal which of two readings the question has. Returns `None` if the
    /// user presses Ctrl-C.
    fn ask_for_reading(
        plan: &AskPlan,
        other: &OtherReading,
        interrupt: &watch::Receiver<bool>,
    ) -> Option<bool> {
        let first = plan.assumptions.as_deref().unwrap_or("the first query");
        anstream::eprintln!("the question has two readings:");
        for (number, reading, sql) in [(1, first, &plan.sql), (2, &other.reading, &other.sql)] {
            let sql = strip_control_characters(sql).replace('\n', "\n           ");
            anstream::eprintln!("{number:<10} {}\n           {sql}", to_single_line(reading));
        }
        anstream::eprint!("Which one? [1/2] ");
        read_answer_or_interrupt(interrupt).map(|answer| answer == "2")
    }

    /// Estimates the costs of the columns that the model proposes. A query without calls needs no
    /// costs.
    fn estimate_proposals(&self, asker: &Asker<'_>, plan: Option<&AskPlan>) {
        let is_needed = plan.is_none_or(|plan| !plan.explained.routes.is_empty());
        let with_costs = |column: &ProposedColumn| {
            let live = match plan {
                Some(plan) => plan.estimate_usd(&self.session.spec),
                None => asker.estimate_live_cost(column),
            };
            let spec = self.flags.spec.as_deref();
            ColumnProposal::new(column.clone(), live, spec, &self.flags.flags, self.session)
        };
        let proposed: Vec<ColumnProposal> =
            asker.proposed.iter().filter(|_| is_needed).map(with_costs).collect();
        // A relaxed or repaired query does not withdraw the proposals that the user has seen.
        if !proposed.is_empty() {
            self.proposed.replace(proposed);
        }
    }

    fn show_proposals(&self) {
        if !self.output_options.quiet && !self.output_options.json {
            self.proposed.borrow().iter().for_each(ColumnProposal::print);
        }
    }

    fn proposals_to_json(&self) -> Vec<Json> {
        self.proposed.borrow().iter().map(ColumnProposal::to_json).collect()
    }

    fn plan_to_json(&self, plan: &AskPlan) -> Json {
        let mut json = plan_to_json(plan);
        json["new_columns"] = self.proposals_to_json().into();
        json
    }

    /// Asks the model for an answer in prose. If the request fails, the rows alone are the answer.
    fn write_prose(&self, asker: &mut Asker<'_>, answered: &AnsweredQuestion) -> Prose {
        if answered.result.rows.is_empty() {
            return Prose::Missing("there are no rows".to_owned());
        }
        // The rows of a relaxed query answer another question.
        if !answered.relaxed.is_empty() {
            return Prose::Missing("the rows are those of a relaxed query".to_owned());
        }
        let prose = asker.write_prose(&answered.result);
        prose.unwrap_or_else(|error| Prose::Missing(self.to_failure(error).message()))
    }

    /// Prints why no query was written. Returns the outcome with the exit code.
    fn report_missing_query(&self, outcome: &PlanningOutcome) -> AskOutcome {
        let (message, json) = match outcome {
            PlanningOutcome::Declined(reason) => {
                let reason = if reason.is_empty() { "the model gave no reason" } else { reason };
                let reason = to_single_line(reason);
                let message = match self.plan_use {
                    PlanUse::RunInChat => format!("no query was run; the model says: {reason}"),
                    _ => format!("the database cannot answer this: {reason}"),
                };
                let columns = self.proposals_to_json();
                (message, json!({ "event": "declined", "reason": reason, "new_columns": columns }))
            }
            PlanningOutcome::Failed(failed) => {
                let message = format!(
                    "the model wrote no query that runs; the last one was\n{}\nerror: {}\n{REWRITE_HINT}",
                    strip_control_characters(&failed.sql),
                    strip_control_characters(&failed.error)
                );
                (message, json!({ "event": "failed", "sql": failed.sql, "error": failed.error }))
            }
            PlanningOutcome::Unreadable | PlanningOutcome::Plan(_) => (
                "the model's reply contains no query; ask again, or use another model".to_owned(),
                json!({ "event": "unreadable" }),
            ),
        };
        if self.output_options.json {
            anstream::println!("{json}");
        } else {
            anstream::eprintln!("{message}");
            self.show_proposals();
        }
        AskOutcome::Stopped(INCOMPLETE)
    }

    /// Prints the plan on stdout, for `--sql-only` and `--explain`.
    fn print_plan(&self, plan: &AskPlan) {
        if self.output_options.json {
            anstream::println!("{}", self.plan_to_json(plan));
        } else if self.plan_use == PlanUse::PrintSql {
            print_sql(&plan.sql);
        } else {
            let explained = meta::format_explained_query(&plan.explained, &self.session.spec);
            anstream::print!("{explained}{:<10} {}\n", "plan", plan.id);
            self.show_proposals();
        }
    }

    /// Shows the query, its routes and its cost on stderr.
    fn show_plan(&self, plan: &AskPlan) {
        if self.output_options.quiet || self.output_options.json {
            return;
        }
        let sql = strip_control_characters(&plan.sql).replace('\n', "\n           ");
        let bound = meta::format_bound(&plan.explained, &self.session.spec);
        anstream::eprint!("{:<10} {sql}\n{bound}", "query");
        if let Some(assumptions) = &plan.assumptions {
            anstream::eprintln!("{:<10} {}", "assumes", to_single_line(assumptions));
        }
    }

    /// Asks for approval if the plan may cost more than the user has allowed. Returns the exit code
    /// if the user declines or presses Ctrl-C.
    fn require_approval(
        &self,
        plan: &AskPlan,
        asker: &Asker<'_>,
        interrupt: &watch::Receiver<bool>,
    ) -> Result<Option<u8>, Failure> {
        let unapproved = self.flags.yes_under.unwrap_or(0.0) - asker.spent_usd();
        let costs = plan.max_cost.exceeds(unapproved);
        let is_replay = self.session.spec.model.provider == Provider::Replay;
        let needs = (costs && !is_replay) || asker.is_on_server();
        if !needs || self.flags.yes {
            return Ok(None);
        }
        let cost = match &plan.max_cost {
            _ if !costs => "the query runs on a server with the rights of your role".to_owned(),
            MaxCost::Usd(usd) => {
                format!("the query may cost up to {}, repeated requests included", format_usd(*usd))
            }
            MaxCost::Unknown(why) => {
                format!("the maximum cost of the query is not known ({why})")
            }
            MaxCost::Nothing => return Ok(None),
        };
        if let PlanUse::Run { approved: Some(approved), .. } = self.plan_use {
            if approved == plan.id {
                return Ok(None);
            }
            let message = format!("plan {approved} is not the current plan: {cost}");
            return Err(self.approval_failure(plan, message));
        }
        if can_ask_user() {
            anstream::eprint!("{cost}. Run it? [y/N] ");
            return Ok(match read_approval_or_interrupt(interrupt) {
                Some(true) => None,
                Some(false) => {
                    anstream::eprintln!("not run");
                    Some(APPROVAL)
                }
                None => Some(INTERRUPTED),
            });
        }
        Err(self.approval_failure(plan, format!("approval needed: {cost}")))
    }

    fn approval_failure(&self, plan: &AskPlan, message: String) -> Failure {
        let hint = match self.plan_use {
            PlanUse::RunInChat => {
                "approve it on a terminal, or start the chat with --yes-under USD".to_owned()
            }
            _ => format!("run it with --approve {}, or with --yes", plan.id),
        };
        Failure::Message { message, hint, exit: APPROVAL }
    }
}

/// Prints the limit on the requests for SQL and prose. Called before the first such request.
fn announce_limit(
    limit: SqlGenerationLimit,
    with_prose: bool,
    spec: &Spec,
    output_options: OutputOptions,
) {
    if output_options.quiet || spec.model.provider == Provider::Replay {
        return;
    }
    let is_free = spec.model.price.as_ref().is_some_and(PriceTable::is_free);
    let limit = match limit {
        SqlGenerationLimit::Usd(_) if is_free => "which costs nothing".to_owned(),
        SqlGenerationLimit::Usd(usd) => format!("at most {}", format_usd(usd)),
        SqlGenerationLimit::Tokens(tokens) => {
            format!("at most {} (price unknown)", format_count(tokens, "token"))
        }
    };
    let texts = if with_prose { "SQL and prose" } else { "SQL" };
    anstream::eprintln!("asking {} for {texts}, {limit}", spec.model.name);
}

fn can_ask_user() -> bool {
    std::io::stdin().is_terminal() && std::io::stderr().is_terminal()
}

/// Returns the failure for an error that occurred while the query ran.
fn to_run_failure(error: QueryError) -> Failure {
    match Failure::from(error) {
        Failure::Message { message, exit: BUDGET, .. } => Failure::Message {
            message,
            hint:
                "all answers are kept; run this again to approve the rest, or set a larger --budget"
                    .to_owned(),
            exit: BUDGET,
        },
        failure => failure,
    }
}
