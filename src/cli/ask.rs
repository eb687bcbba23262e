//! Implements `hqdl ask`.

use std::cell::{Cell, RefCell};
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value as Json, json};
use tokio::sync::watch;

use super::approve::{read_answer_or_interrupt, read_approval_or_interrupt};
use super::failure::{APPROVAL, BUDGET, Failure, INCOMPLETE, INTERRUPTED};
use super::input::{self, open_for_query};
use super::progress::Progress;
use super::propose::{self, ColumnProposal};
use super::rows::{self, RowsFormat, RowsOut};
use super::{ModelFlags, OutputOptions, interrupt, meta, session};
use crate::ask::{
    self, AskError, AskPlan, AskQuestion, Asker, FailedQuery, MaxCost, OtherReading,
    ProposedColumn, Prose, SqlGenerationLimit, Turn, Written,
};
use crate::database::Database;
use crate::format::{count_noun, format_usd, to_single_line};
use crate::generate::StopReason;
use crate::model::{self, Model, ModelError, SetupError};
use crate::query::result::json::write_json;
use crate::query::{Dialect, Meta, QueryError, QueryResult};
use crate::session::Session;
use crate::spec::file::ExampleTable;
use crate::spec::{Provider, Spec};
use crate::spec_file;
use crate::suggest::edit;
use crate::usage::Usage;

/// Default time limit for the database's work in one pass. A query that a model wrote might never
/// finish.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Debug, clap::Args)]
pub struct Options {
    /// Question in plain words, or - to read it from stdin.
    #[arg(value_name = "QUESTION")]
    question: String,
    #[command(flatten)]
    ask: AskFlags,
    /// Run exactly the plan with this id, which an earlier call printed.
    #[arg(long, value_name = "PLAN_ID", conflicts_with_all = ["yes", "yes_under"])]
    approve: Option<String>,
    /// Print the query without running it.
    #[arg(long)]
    sql_only: bool,
    /// Print how the query would run, like `hqdl explain`, without running it.
    #[arg(long, conflicts_with = "sql_only")]
    explain: bool,
    /// Also answer in at most three English sentences. A model writes them from the rows, and hqdl
    /// prints them only if their numbers and names occur in the rows that they cite, such as [1].
    #[arg(long, conflicts_with_all = ["sql_only", "explain"])]
    say: bool,
    /// Add the question and its query to the spec as an [[example]]. Fails if the query returns
    /// no rows, was relaxed, or is not in `SQLite`'s dialect.
    #[arg(long, requires = "spec", conflicts_with_all = ["sql_only", "explain"])]
    keep: bool,
    /// Add the column that the model proposes to the spec. Fails if it proposes none.
    #[arg(long, requires = "spec", conflicts_with = "sql_only")]
    write: bool,
}

/// Flags of the commands that answer questions in plain words.
#[derive(Debug, clap::Args)]
pub struct AskFlags {
    /// Spec whose tables, columns, questions and examples the model sees.
    #[arg(long, value_name = "SPEC")]
    pub spec: Option<PathBuf>,
    /// Run without approval if all queries of the question cost at most this many USD in total. A
    /// query on a database server always needs approval [default: 0].
    #[arg(long, value_name = "USD", allow_hyphen_values = true, value_parser = super::parse_budget)]
    yes_under: Option<f64>,
    /// Run the query without approval, whatever it costs.
    #[arg(long)]
    yes: bool,
    /// Ask the model for SQL again, even if SQL or a refusal is stored for the question.
    #[arg(long)]
    rewrite: bool,
    /// Output format of the rows [default: table].
    #[arg(long, value_enum, value_name = "FORMAT")]
    format: Option<RowsFormat>,
    /// Maximum number of tokens in a request for SQL [default: 4000].
    #[arg(long, value_name = "N", allow_hyphen_values = true,
          value_parser = super::parse_whole_number::<u64>)]
    context_tokens: Option<u64>,
    /// Time limit in seconds for the database's work in one pass [default: 60].
    #[arg(long, value_name = "SECONDS", allow_hyphen_values = true, value_parser = input::parse_seconds)]
    timeout: Option<Duration>,
    /// Maximum total cost in USD of the question's queries.
    #[arg(long, value_name = "USD", allow_hyphen_values = true, value_parser = super::parse_budget)]
    budget: Option<f64>,
    #[command(flatten)]
    pub flags: ModelFlags,
}

impl AskFlags {
    /// Returns the output format of the rows.
    ///
    /// # Errors
    /// The failure if `--json` is combined with another format.
    pub fn rows_format(&self, output_options: OutputOptions) -> Result<RowsFormat, Failure> {
        if output_options.json && self.format.is_some_and(|format| format != RowsFormat::Json) {
            return Err(Failure::wrong_input("--json and another --format", "remove one of them"));
        }
        Ok(self.format.unwrap_or(RowsFormat::Table))
    }

    /// Opens the spec or database. Returns the session and the path of the database to query.
    pub fn open(
        &self,
        command: &str,
        output_options: OutputOptions,
    ) -> Result<(Session, PathBuf), Failure> {
        let Self { spec, flags, budget, .. } = self;
        let (mut session, target) =
            open_for_query(spec.as_deref(), flags, *budget, command, output_options)?;
        if let Some(tokens) = self.context_tokens {
            session.spec.ask.context_tokens = tokens.max(ask::MIN_CONTEXT_TOKENS);
        }
        Ok((session, target))
    }
}

/// Action that the command takes with a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlanUse<'a> {
    /// Run the query after approval.
    Run {
        /// Id of the plan that was approved.
        approved: Option<&'a str>,
        /// Whether to answer in prose, too.
        says: bool,
    },
    /// Run the query after approval on the terminal.
    RunInChat,
    /// Print the query's SQL.
    PrintSql,
    /// Print how the query would run.
    Explain,
}

pub fn run(options: &Options, output_options: OutputOptions) -> Result<ExitCode, Failure> {
    let format = options.ask.rows_format(output_options)?;
    let text = read_question(&options.question)?;
    let (session, target) = options.ask.open("ask", output_options)?;
    let interrupt = interrupt::watch_ctrl_c(Some(interrupt::FINISHING));
    let plan_use = match options {
        Options { sql_only: true, .. } => PlanUse::PrintSql,
        Options { explain: true, .. } => PlanUse::Explain,
        Options { approve, say, .. } => PlanUse::Run { approved: approve.as_deref(), says: *say },
    };
    let ask_run = AskRun::open(&options.ask, plan_use, &session, &target, output_options)?;
    let outcome = ask_run.ask(&text, &[], &interrupt);
    // A plan that waits for approval must stay valid, and a new column would change the schema.
    let waits = matches!(outcome, Err(_) | Ok(AskOutcome::Stopped(APPROVAL | INTERRUPTED)));
    let written = match &options.ask.spec {
        Some(spec) if options.write && !waits => {
            let proposed = ask_run.proposed.borrow();
            propose::write_columns(spec, &session.database, &proposed, output_options)
        }
        _ => Ok(()),
    };
    match outcome? {
        AskOutcome::Stopped(code) => written.map(|()| ExitCode::from(code)),
        AskOutcome::Answered(answered) => {
            let is_open = answered.print(format, output_options)?;
            if let (true, Some(spec)) = (options.keep, &options.ask.spec) {
                let turn = answered.to_turn();
                if turn.rows == 0 || !turn.can_be_example {
                    return Err(cannot_keep_failure(turn.rows));
                }
                keep_example(spec, &session.database, turn, output_options)?;
            }
            written.map(|()| ExitCode::from(if is_open { answered.exit_code() } else { 0 }))
        }
    }
}

/// Returns the failure for a query that cannot be an example of its question.
pub fn cannot_keep_failure(rows: u64) -> Failure {
    let reason =
        if rows == 0 { "it returned no rows" } else { "it was relaxed, or is in the dialect suql" };
    Failure::wrong_input(
        format!("the query was not kept, because {reason}"),
        "add an [[example]] with a query in SQLite's dialect to the spec",
    )
}

/// Adds a question and its query to a spec as an example, and prints a note about it.
pub fn keep_example(
    spec: &Path,
    database: &Database,
    turn: Turn,
    output_options: OutputOptions,
) -> Result<(), Failure> {
    let example = ExampleTable { question: turn.question, sql: turn.sql };
    spec_file::edit_spec(spec, database, |text| edit::add_example(text, &example))?;
    if !output_options.quiet {
        anstream::eprintln!("kept as an [[example]] in {}", spec.display());
    }
    Ok(())
}

fn read_question(text: &str) -> Result<String, Failure> {
    if text != "-" {
        return Ok(text.to_owned());
    }
    std::io::read_to_string(std::io::stdin()).map_err(|e| {
        let reason = crate::format::io_reason(&e);
        Failure::wrong_input(format!("cannot read stdin: {reason}"), "pass UTF-8 text")
    })
}

/// Prints the limit on the requests for SQL and prose. Called before the first such request.
fn announce_limit(
    limit: SqlGenerationLimit,
    says: bool,
    spec: &Spec,
    output_options: OutputOptions,
) {
    if output_options.quiet || spec.model.provider == Provider::Replay {
        return;
    }
    let limit = match limit {
        SqlGenerationLimit::Usd(usd) => format!("at most {}", format_usd(usd)),
        SqlGenerationLimit::Tokens(tokens) => {
            format!("at most {} (price unknown)", count_noun(tokens, "token"))
        }
    };
    let texts = if says { "SQL and prose" } else { "SQL" };
    anstream::eprintln!("asking {} for {texts}, {limit}", spec.model.name);
}

/// Hint for a question for which the model wrote no query.
const REWRITE_HINT: &str = "help: reword the question or try another model; hqdl stores the model's reply, and --rewrite asks again";

/// Outcome of a question.
pub enum AskOutcome {
    Answered(Box<Answered>),
    /// The output is complete; contains the exit code.
    Stopped(u8),
}

/// The rows that answer a question, and how hqdl found them.
pub struct Answered {
    question: String,
    plan: AskPlan,
    result: QueryResult,
    searched: String,
    /// Descriptions of the relaxations.
    relaxed: Vec<String>,
    /// Queries that failed and were repaired, with their errors.
    repairs: Vec<FailedQuery>,
    /// Columns that the model proposed, with their costs.
    new_columns: Vec<Json>,
    /// Answer in prose; `None` if the command did not ask for one.
    prose: Option<Prose>,
    /// Usage of the requests for SQL and prose.
    writing: Usage,
}

/// USD spent by the questions of a run.
#[derive(Debug, Clone, Copy, Default)]
pub struct SpentUsd {
    /// USD spent on requests for SQL.
    pub writing: f64,
    /// USD spent on running queries.
    pub queries: f64,
}

/// Answers the questions of a command. Its fields are the same for every question.
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
    /// Copy of the spec that limits the requests for SQL, and that limit.
    writing: (Spec, SqlGenerationLimit),
    spent: Cell<SpentUsd>,
    /// Columns that the model proposed for the latest question.
    proposed: RefCell<Vec<ColumnProposal>>,
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
        let says = matches!(self.plan_use, PlanUse::Run { says: true, .. });
        let announce =
            || announce_limit(self.writing.1, says, &self.session.spec, self.output_options);
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
        if let (true, Ok(AskOutcome::Answered(answered))) = (says, &mut outcome) {
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
            answered.new_columns = self.proposed_json();
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
            listener: Progress::for_query(self.output_options),
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
                hint: "raise --budget (`budget_usd` in [ask]), or lower `context_tokens` in [ask]"
                    .to_owned(),
                exit: BUDGET,
            },
            AskError::Query(error) => error.into(),
            AskError::Store(error) => error.into(),
            AskError::Index(_) => Failure::wrong_input(error.to_string(), ""),
        }
    }

    /// Writes, repairs, approves and runs the query of a question, and relaxes the query if it
    /// returns no rows.
    fn answer(
        &self,
        asker: &mut Asker<'_>,
        interrupt: &watch::Receiver<bool>,
    ) -> Result<AskOutcome, Failure> {
        let Some(mut written) = self.write_query(asker, interrupt)? else {
            return Ok(AskOutcome::Stopped(INTERRUPTED));
        };
        let mut relaxed: Vec<String> = Vec::new();
        let mut empty: Option<Answered> = None;
        loop {
            let plan = match (written, empty.take()) {
                (Written::Plan(plan), earlier) => {
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
                (_, Some(empty)) => return Ok(AskOutcome::Answered(Box::new(empty))),
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
                    written = repaired.map_err(|error| self.to_failure(error))?;
                    continue;
                }
                Err(error) => return Err(to_run_failure(error)),
            }
            let searched = asker.describe_search(&result.meta);
            let has_rows = !result.rows.is_empty();
            let answered = Answered {
                question: String::new(),
                plan,
                result,
                searched,
                relaxed: relaxed.clone(),
                repairs: Vec::new(),
                new_columns: Vec::new(),
                prose: None,
                writing: Usage::default(),
            };
            if has_rows {
                return Ok(AskOutcome::Answered(Box::new(answered)));
            }
            let Some(next) = self.relax(asker, &answered.plan) else {
                return Ok(AskOutcome::Answered(Box::new(empty.unwrap_or(answered))));
            };
            let change = ask::describe_relaxation(&answered.plan.sql, &next.sql);
            if !self.output_options.quiet && !self.output_options.json {
                anstream::eprintln!("note: {}", to_single_line(&change));
            }
            relaxed.push(change);
            empty.get_or_insert(answered);
            written = Written::Plan(Box::new(next));
        }
    }

    /// Returns a query with a weaker condition. Returns `None` if a request failed or the budget
    /// for SQL is spent; in that case, the query without rows is the answer.
    fn relax(&self, asker: &mut Asker<'_>, plan: &AskPlan) -> Option<AskPlan> {
        match asker.relax(plan) {
            Ok(next) => next,
            Err(error) => {
                if !self.output_options.quiet {
                    let message = self.to_failure(error).message();
                    anstream::eprintln!("note: no relaxed query was written: {message}");
                }
                None
            }
        }
    }

    /// Lets the user choose a reading of the question, and writes its query. Returns `None` if the
    /// user presses Ctrl-C.
    fn write_query(
        &self,
        asker: &mut Asker<'_>,
        interrupt: &watch::Receiver<bool>,
    ) -> Result<Option<Written>, Failure> {
        let mut written = asker.plan().map_err(|error| self.to_failure(error))?;
        let (Written::Plan(plan), Some(other)) = (&mut written, asker.other.take()) else {
            return Ok(Some(written));
        };
        if !self.can_ask_for_reading() {
            plan.add_other_reading(&other);
            return Ok(Some(written));
        }
        match Self::prefers_other_reading(plan, &other, interrupt) {
            Some(true) => {
                let other = asker.use_other_reading(other);
                other.map(Some).map_err(|error| self.to_failure(error))
            }
            Some(false) => Ok(Some(written)),
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
    fn prefers_other_reading(
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
                Some(plan) => plan.likely_usd(&self.session.spec),
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

    fn proposed_json(&self) -> Vec<Json> {
        self.proposed.borrow().iter().map(ColumnProposal::to_json).collect()
    }

    fn plan_to_json(&self, plan: &AskPlan) -> Json {
        let mut json = plan_to_json(plan);
        json["new_columns"] = self.proposed_json().into();
        json
    }

    /// Asks the model for an answer in prose. If the request fails, the rows alone are the answer.
    fn write_prose(&self, asker: &mut Asker<'_>, answered: &Answered) -> Prose {
        if answered.result.rows.is_empty() {
            return Prose::Missing("there are no rows".to_owned());
        }
        // The rows of a relaxed query answer another question.
        if !answered.relaxed.is_empty() {
            return Prose::Missing("the rows are those of a relaxed query".to_owned());
        }
        let written = asker.write_prose(&answered.result);
        written.unwrap_or_else(|error| Prose::Missing(self.to_failure(error).message()))
    }

    /// Prints why no query was written.
    fn report_missing_query(&self, written: &Written) -> AskOutcome {
        let (message, json) = match written {
            Written::Declined(reason) => {
                let reason = if reason.is_empty() { "the model gave no reason" } else { reason };
                let reason = to_single_line(reason);
                let message = match self.plan_use {
                    PlanUse::RunInChat => format!("no query was run; the model says: {reason}"),
                    _ => format!("the database cannot answer this: {reason}"),
                };
                let columns = self.proposed_json();
                (message, json!({ "event": "declined", "reason": reason, "new_columns": columns }))
            }
            Written::Failed(failed) => {
                let message = format!(
                    "the model wrote no query that runs; the last one was\n{}\nerror: {}\n{REWRITE_HINT}",
                    strip_control_characters(&failed.sql),
                    strip_control_characters(&failed.error)
                );
                (message, json!({ "event": "failed", "sql": failed.sql, "error": failed.error }))
            }
            Written::Unreadable | Written::Plan(_) => (
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

fn can_ask_user() -> bool {
    std::io::stdin().is_terminal() && std::io::stderr().is_terminal()
}

/// Prints a query. On a terminal, omits control characters.
pub fn print_sql(sql: &str) {
    let mut stdout = std::io::stdout();
    let text =
        if stdout.is_terminal() { strip_control_characters(sql) } else { sql.trim().to_owned() };
    // A reader may close the pipe early.
    let _ = writeln!(stdout, "{text}");
}

/// Removes control characters from model output, because they could change other parts of the
/// terminal.
fn strip_control_characters(text: &str) -> String {
    text.trim().lines().map(to_single_line).collect::<Vec<_>>().join("\n")
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

fn plan_to_json(plan: &AskPlan) -> Json {
    let max_cost = match &plan.max_cost {
        MaxCost::Nothing => json!(0.0),
        MaxCost::Usd(usd) => json!(usd),
        MaxCost::Unknown(_) => Json::Null,
    };
    json!({
        "event": "plan", "plan": plan.id, "sql": plan.sql, "dialect": plan.dialect.name(),
        "assumptions": plan.assumptions, "max_cost_usd": max_cost,
        "explained": plan.explained.explained_to_json(),
    })
}

impl Answered {
    pub fn exit_code(&self) -> u8 {
        let meta = &self.result.meta;
        if meta.values_missing == meta.values_unknown { 0 } else { INCOMPLETE }
    }

    /// Returns the question with its query.
    pub fn to_turn(&self) -> Turn {
        Turn {
            question: self.question.clone(),
            sql: self.plan.sql.trim().to_owned(),
            rows: self.result.rows.len() as u64,
            can_be_example: self.plan.dialect == Dialect::Sqlite && self.relaxed.is_empty(),
        }
    }

    /// Prints the rows on stdout and the searched tables on stderr. Returns false if
    /// stdout is closed.
    pub fn print(
        &self,
        format: RowsFormat,
        output_options: OutputOptions,
    ) -> Result<bool, Failure> {
        if output_options.json {
            anstream::println!("{}", self.to_json());
            return Ok(true);
        }
        self.print_prose(format, output_options);
        let mut rows = rows::new_stdout_writer(format);
        match self.write_rows(rows.as_mut()) {
            Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => return Ok(false),
            Err(e) => return Err(QueryError::Output(e).into()),
            Ok(()) => {}
        }
        if !output_options.quiet {
            if self.result.rows.is_empty() {
                anstream::eprintln!("no results: {}", self.searched);
            } else {
                let count = count_noun(self.result.rows.len() as u64, "row");
                anstream::eprintln!("{count}: {}", self.searched);
            }
        }
        Ok(true)
    }

    /// Prints the answer in prose: above the rows if they are a table, otherwise on stderr, so that
    /// stdout contains only rows.
    fn print_prose(&self, format: RowsFormat, output_options: OutputOptions) {
        match &self.prose {
            // A reader may close the pipe early; in that case, writing the rows fails.
            Some(Prose::Written(text)) if format == RowsFormat::Table => {
                let _ = writeln!(std::io::stdout(), "{text}\n");
            }
            Some(Prose::Written(text)) => anstream::eprintln!("{text}"),
            Some(Prose::Missing(why)) if !output_options.quiet => {
                anstream::eprintln!("note: no prose: {}", to_single_line(why));
            }
            _ => {}
        }
    }

    pub fn write_rows(&self, out: &mut dyn RowsOut) -> std::io::Result<()> {
        out.write_columns(&self.result.columns)?;
        for row in &self.result.rows {
            let values: Vec<rusqlite::types::ValueRef<'_>> = row.iter().map(Into::into).collect();
            out.write_row(&values)?;
        }
        out.finish()?;
        out.close_output(Ok(&self.result.meta.to_json())).map(drop)
    }

    fn to_json(&self) -> Json {
        let repair = |failed: &FailedQuery| json!({ "sql": failed.sql, "error": failed.error });
        let repairs: Vec<Json> = self.repairs.iter().map(repair).collect();
        let usage = &self.writing;
        let cell = |value: &rusqlite::types::Value| {
            let mut bytes = Vec::new();
            let _ = write_json(&mut bytes, value.into());
            serde_json::from_slice::<Json>(&bytes).unwrap_or_default()
        };
        let rows: Vec<Vec<Json>> =
            self.result.rows.iter().map(|row| row.iter().map(cell).collect()).collect();
        let meta: &Meta = &self.result.meta;
        let (prose, prose_problem) = match &self.prose {
            Some(Prose::Written(text)) => (Some(text), None),
            Some(Prose::Missing(why)) => (None, Some(why)),
            None => (None, None),
        };
        json!({
            "event": "answered", "question": self.question, "plan": self.plan.id, "sql": self.plan.sql,
            "dialect": self.plan.dialect.name(), "assumptions": self.plan.assumptions,
            "repairs": repairs, "relaxed": self.relaxed, "searched": self.searched,
            "writing": { "requests": usage.requests, "cost_usd": usage.cost_usd },
            "prose": prose, "prose_problem": prose_problem, "new_columns": self.new_columns,
            "columns": self.result.columns, "rows": rows, "meta": meta.to_json(),
        })
    }
}
