//! Implements the tools' blocking work. The protocol and the decisions about spending are in other
//! modules.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value as Json, json};
use tokio::sync::watch;

use super::connection::PlanClient;
use super::page::{DEFAULT_ROWS, RowPage};
use crate::approval::{PlanRecord, PlanStore, PlannedQuery, PlannedWork, SpendingLedger};
use crate::ask::{
    self, AskError, AskPlan, AskQuestion, Asker, CostLimits, MaxCost, PlanningOutcome,
    SqlGenerationLimit, TableDescription,
};
use crate::database::Database;
use crate::database::provenance::CellProvenance;
use crate::facts::Facts;
use crate::failure::Failure;
use crate::format::{format_count, hide_secrets, to_single_line};
use crate::generate::{Listener, StopReason};
use crate::interval::{IntervalRequest, check_query, run_with_intervals};
use crate::model::{self, Model, ModelError};
use crate::problem::Problems;
use crate::query::{Dialect, Meta, QueryError, Request};
use crate::spec::{Spec, is_server};
use crate::sql::quote_name;

/// Maximum length of all definitions, in characters. Above it, `describe` returns only the columns
/// of each table.
const MAX_DEFINITION_CHARS: usize = 40_000;
/// Default time limit of the database's work in one pass.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);
/// Name of the command in the journal.
const COMMAND: &str = "mcp";
/// Length of a cursor's hash of the query.
const CURSOR_HASH: usize = 16;

/// Everything that the tools use. It does not change while the server runs.
pub struct ServerContext {
    /// The spec. Without a spec from the user, it has no expansions.
    pub spec: Spec,
    /// Path of the database to query: the expanded copy, if there is one.
    pub target: PathBuf,
    /// The fact store.
    pub facts: Facts,
    /// The model, or the reason why it could not be connected.
    pub model: Result<Arc<dyn Model>, Failure>,
    /// Plans that wait for approval.
    pub plans: PlanStore,
    /// Money spent by this server.
    pub ledger: SpendingLedger,
    /// Whether a plan that sends requests needs approval even if it is free.
    pub needs_approval: bool,
    /// Command that approves a plan, without the plan's id.
    pub approve_command: String,
    /// Whether the process has a page that approves plans.
    pub has_page: bool,
    /// Time limit for the database's work in one pass.
    pub timeout: Duration,
    /// Rows per request, if the user set it.
    pub rows_per_request: Option<u32>,
    /// Serializes edits of the files beside the spec.
    pub edits: Arc<tokio::sync::Mutex<()>>,
}

/// Controls the work of a call from outside its thread, and reports its progress.
#[derive(Clone)]
pub struct WorkControl {
    /// Becomes true when the work must end.
    pub interrupt: watch::Receiver<bool>,
    /// Receives progress events.
    pub listener: Listener,
}

/// Number of rows in a published expansion, and number of values in each column.
type PublishedCount = (i64, BTreeMap<String, i64>);

/// Maximum spending on the SQL for a question.
#[derive(Debug, Clone, Copy)]
pub enum WritingAllowance {
    /// Spend nothing and use only stored SQL.
    Nothing,
    /// Spend at most the spec's limit for one question.
    Limit,
}

/// A query that answers a question, or the reason why there is none.
pub enum WrittenQuery {
    /// The query.
    Sql(Box<AskPlan>),
    /// Writing SQL needs requests, which may cost up to this limit.
    Costs(SqlGenerationLimit),
    /// There is no query; contains the reason.
    Failed(String),
}

/// Position of a page in a query's rows.
#[derive(Debug, Clone, Copy, Default)]
pub struct PagePosition {
    /// Number of rows before the page.
    pub offset: u64,
    /// Maximum number of rows.
    pub limit: usize,
}

impl PagePosition {
    /// Reads the arguments of a tool.
    pub fn parse(sql: &str, limit: Option<usize>, cursor: Option<&str>) -> Result<Self, Failure> {
        let limit = limit.unwrap_or(DEFAULT_ROWS);
        let Some(cursor) = cursor else { return Ok(Self { offset: 0, limit }) };
        let offset = cursor.split_once('-').filter(|(_, hash)| *hash == hash_query(sql));
        let offset = offset.and_then(|(offset, _)| offset.parse().ok());
        offset.map(|offset| Self { offset, limit }).ok_or_else(|| {
            Failure::wrong_input("the cursor is not one of this query", "run it without `cursor`")
        })
    }
}

impl RowPage {
    /// Returns the result of `query`.
    fn into_json(self, sql: &str, assumptions: Option<&str>, meta: &Meta) -> Json {
        let cursor = self.has_more.then(|| format!("{}-{}", self.end(), hash_query(sql)));
        json!({
            "status": "complete",
            "columns": self.columns, "rows": self.rows,
            "next_cursor": cursor, "truncated": self.has_more, "cut_cells": self.truncated_cells,
            "assumptions": assumptions, "notes": meta.notes, "meta": meta.to_json(),
        })
    }
}

fn hash_query(sql: &str) -> String {
    blake3::hash(sql.as_bytes()).to_hex()[..CURSOR_HASH].to_owned()
}

impl ServerContext {
    /// Returns whether recordings answer instead of a model, so that nothing is spent.
    pub fn is_replay(&self) -> bool {
        self.spec.is_replay()
    }

    /// Returns whether the database is on a server, where a query can do whatever its role may do.
    pub fn is_on_server(&self) -> bool {
        is_server(&self.target)
    }

    fn build_request<'a>(
        &'a self,
        sql: &'a str,
        dialect: Dialect,
        control: WorkControl,
    ) -> Request<'a> {
        Request {
            model: self.model.clone().ok(),
            dialect,
            rows_per_request: self.rows_per_request,
            timeout: Some(self.timeout),
            command: COMMAND,
            interrupt: control.interrupt,
            listener: control.listener,
            ..Request::new(&self.spec, &self.target, &self.facts, sql)
        }
    }

    /// Returns a description of the database, restricted to `tables` unless it is empty.
    pub fn describe_database(&self, tables: &[String]) -> Result<Json, Failure> {
        let shows_values = self.spec.ask.shows_values;
        let (mut descriptions, _) = ask::describe_tables(&self.target, &self.spec, shows_values)?;
        if !tables.is_empty() {
            let is_named =
                |name: &str| descriptions.iter().any(|c| c.name.eq_ignore_ascii_case(name));
            if let Some(missing) = tables.iter().find(|name| !is_named(name)) {
                return Err(Failure::wrong_input(
                    format!("there is no table {}", to_single_line(missing)),
                    "call `describe` without tables",
                ));
            }
            descriptions.retain(|c| tables.iter().any(|name| name.eq_ignore_ascii_case(&c.name)));
        }
        let size: usize = descriptions.iter().map(|c| c.definition.len() + c.samples.len()).sum();
        let is_short = size <= MAX_DEFINITION_CHARS || !tables.is_empty();
        let describe = |description: &TableDescription| {
            let definition = if is_short {
                description.definition.clone()
            } else {
                description.format_outline()
            };
            let samples = if is_short { description.samples.as_str() } else { "" };
            json!({ "name": description.name, "definition": definition, "sample_rows": samples })
        };
        let coverage = self.count_published_values()?;
        let example = |e: &crate::spec::file::ExampleTable| json!({ "question": e.question, "sql": e.sql.trim() });
        let expansion = |e: &crate::spec::Expansion| {
            json!({
                "name": e.name, "about": e.about, "key": e.key.names(),
                "rows": coverage.get(&e.name).map(|(rows, _)| rows),
                "columns": e.columns.iter().map(|c| json!({
                    "name": c.name, "type": c.kind.name(), "about": c.about,
                    "values": coverage.get(&e.name).and_then(|(_, values)| values.get(&c.name)),
                    "questions": c.bindings.iter().map(|b| b.ask.trim()).collect::<Vec<_>>(),
                })).collect::<Vec<_>>(),
            })
        };
        Ok(json!({
            "tables": descriptions.iter().map(describe).collect::<Vec<_>>(),
            "is_complete": is_short,
            "expansions": self.spec.expansions.iter().map(expansion).collect::<Vec<_>>(),
            "examples": self.spec.ask.examples.iter().map(example).collect::<Vec<_>>(),
            "calls": ask::build_call_instructions(&self.spec),
            "spending": self.ledger.describe(),
        }))
    }

    /// Returns the number of rows in each published expansion and the number of values in each of
    /// its columns, except one-to-many columns. The result is empty for a database on a server.
    fn count_published_values(&self) -> Result<BTreeMap<String, PublishedCount>, Failure> {
        let mut counts = BTreeMap::new();
        if self.is_on_server() {
            return Ok(counts);
        }
        let database = Database::open(&self.target)?;
        for published in database.list_published_expansions()? {
            let table = &published.expansion;
            let columns: Vec<&String> =
                published.columns.iter().filter(|(_, t)| t == table).map(|(c, _)| c).collect();
            let counted = columns.iter().map(|c| format!(", count({})", quote_name(c)));
            let sql = format!(
                "SELECT count(*){} FROM {}",
                counted.collect::<String>(),
                quote_name(table)
            );
            let read = |row: &rusqlite::Row<'_>| {
                let values = columns.iter().enumerate();
                let values = values.map(|(n, c)| Ok(((*c).clone(), row.get(n + 1)?)));
                Ok((row.get(0)?, values.collect::<rusqlite::Result<_>>()?))
            };
            let count = database.connection().query_row(&sql, [], read);
            counts.insert(table.clone(), count.map_err(|e| database.to_store_error(&e))?);
        }
        Ok(counts)
    }

    /// Runs an aggregate query with confidence intervals. It sends no request.
    pub fn run_with_intervals(
        &self,
        (sql, dialect): (&str, Dialect),
        percent: f64,
        position: PagePosition,
        control: WorkControl,
    ) -> Result<Json, Failure> {
        let interval = parse_interval(percent)?;
        let request = self.build_request(sql, dialect, control);
        let mut page = RowPage::new(position.offset, position.limit, false);
        let meta = run_with_intervals(&self.spec, &request.to_plain(), interval, &mut page)
            .map_err(|error| self.to_failure(error.into(), sql))?;
        Ok(page.into_json(sql, None, &meta))
    }

    /// Returns the stored values that match words of a text.
    pub fn search_values(&self, text: &str) -> Result<Json, Failure> {
        if !self.spec.ask.shows_values {
            return Err(Failure::wrong_input(
                "`values = false` in [ask] keeps stored values private",
                "",
            ));
        }
        let found = ask::find_stored_values(&self.target, &self.spec, text);
        let found = found.map_err(|error| self.to_failure(error, ""))?;
        let value =
            |m: &ask::ValueMatch| json!({ "value": m.value, "table": m.table, "column": m.column });
        Ok(json!({ "matches": found.iter().map(value).collect::<Vec<_>>() }))
    }

    /// Returns the provenance of a cell.
    pub fn find_provenance(
        &self,
        table: &str,
        key: &[String],
        column: &str,
    ) -> Result<Json, Failure> {
        let cells = Database::open(&self.target)?.find_provenance(table, key, column)?;
        Ok(json!({ "cells": cells.iter().map(CellProvenance::to_json).collect::<Vec<_>>() }))
    }

    /// Checks a query and computes its maximum cost.
    pub fn plan_sql(&self, query: &PlannedQuery, control: WorkControl) -> Result<AskPlan, Failure> {
        let PlannedQuery { sql, dialect, interval } = query;
        if let Some(percent) = *interval {
            parse_interval(percent)?;
            let request = self.build_request(sql, *dialect, control.clone());
            check_query(&self.spec, &request.to_plain())
                .map_err(|error| self.to_failure(error.into(), sql))?;
        }
        let (_, hash) = ask::describe_tables(&self.target, &self.spec, false)?;
        let planning_model = model::connect_for_planning(&self.spec)?;
        let limits = CostLimits { budget_usd: None, spec_usd: self.spec.limits.budget_usd };
        let request = self.build_request(sql, *dialect, control);
        let mut plan = ask::plan_query(&request, &planning_model, &hash, limits)
            .map_err(|error| self.to_failure(error.into(), sql))?;
        // If the number of a call's requests is not known, the plan may spend what is left of the
        // server's limit.
        if matches!(plan.max_cost, MaxCost::Unknown(_))
            && ask::check_cost_is_known(&self.spec).is_ok()
        {
            plan.max_cost = MaxCost::Usd(self.ledger.remaining_usd());
        }
        Ok(plan)
    }

    /// Returns the record of a query's plan, for its approval.
    pub fn build_plan_record(
        &self,
        plan: &AskPlan,
        interval: Option<f64>,
        client: PlanClient,
    ) -> Result<PlanRecord, Failure> {
        let routes = plan.explained.routes.iter();
        let routes = routes.map(|r| to_single_line(&format!("{}: {}", r.call, r.why))).collect();
        let (sql, dialect) = (plan.sql.clone(), plan.dialect);
        let work = PlannedWork::Query(PlannedQuery { sql, dialect, interval });
        self.build_record(work, &plan.max_cost, routes, client)
    }

    /// Returns the record of a plan that writes SQL for a question, for its approval.
    pub fn build_question_record(
        &self,
        question: &str,
        limit: SqlGenerationLimit,
        client: PlanClient,
    ) -> Result<PlanRecord, Failure> {
        let cost = match limit {
            SqlGenerationLimit::Usd(usd) => MaxCost::Usd(usd),
            SqlGenerationLimit::Tokens(n) => MaxCost::Unknown(format_count(n, "token")),
        };
        let work = PlannedWork::Question { text: question.to_owned() };
        self.build_record(work, &cost, Vec::new(), client)
    }

    /// Returns the record of a plan, for its approval.
    pub fn build_record(
        &self,
        work: PlannedWork,
        cost: &MaxCost,
        routes: Vec<String>,
        client: PlanClient,
    ) -> Result<PlanRecord, Failure> {
        let (_, schema) = ask::describe_tables(&self.target, &self.spec, false)?;
        let name = |m: &crate::spec::ModelSettings| {
            let url = m.base_url.as_deref().map_or_else(String::new, hide_secrets);
            format!("{} {url}", m.name).trim_end().to_owned()
        };
        let models: Vec<String> = self.spec.all_models().map(name).collect();
        let max_usd = match cost {
            MaxCost::Nothing => Some(0.0),
            MaxCost::Usd(usd) => Some(*usd),
            MaxCost::Unknown(_) => None,
        };
        let note = match cost {
            MaxCost::Unknown(why) => Some(why.clone()),
            _ if self.is_on_server() && matches!(work, PlannedWork::Query(_)) => {
                Some("the query runs on a server with the rights of your role".to_owned())
            }
            _ => None,
        };
        let path = self.target.to_string_lossy();
        let database = if self.is_on_server() {
            hide_secrets(&path)
        } else {
            std::path::absolute(&self.target).unwrap_or_default().to_string_lossy().into_owned()
        };
        let spec = std::path::absolute(&self.spec.path).unwrap_or_default();
        Ok(PlanRecord {
            work,
            spec: spec.to_string_lossy().into_owned(),
            database,
            schema,
            model: models.join(", "),
            client: client.name,
            nonce: client.nonce,
            max_usd,
            note,
            routes,
        })
    }

    /// Finds or writes the query for a question. Also returns the cost of writing it in USD.
    pub fn write_query(
        &self,
        question: &str,
        allowance: WritingAllowance,
        control: WorkControl,
    ) -> (Result<WrittenQuery, Failure>, f64) {
        let request = self.build_request("", Dialect::default(), control);
        let counted_cost = request.counted_cost.clone();
        (self.write_within_limit(question, allowance, request), counted_cost.usd())
    }

    fn write_within_limit(
        &self,
        question: &str,
        allowance: WritingAllowance,
        request: Request<'_>,
    ) -> Result<WrittenQuery, Failure> {
        let (mut writing_spec, limit) = ask::limit_sql_generation_cost(&self.spec)?;
        if matches!(allowance, WritingAllowance::Nothing) && !self.is_replay() {
            // Limit the tokens as well, because a budget of 0 USD would still allow requests to a
            // free model.
            writing_spec.limits.budget_tokens = Some(0);
        }
        let asked = AskQuestion {
            text: question,
            request,
            writing_spec: &writing_spec,
            budget_usd: None,
            planning_model: model::connect_for_planning(&self.spec)?,
            rewrites: false,
            before_request: &|| {},
        };
        let mut asker = Asker::new(asked).map_err(|error| self.to_failure(error, ""))?;
        let outcome = asker.plan_likelier_reading();
        asker.finish(outcome.is_ok())?;
        match outcome {
            Ok(PlanningOutcome::Plan(plan)) => Ok(WrittenQuery::Sql(plan)),
            Ok(PlanningOutcome::Declined(reason)) => Ok(WrittenQuery::Failed(format!(
                "the database cannot answer this: {}",
                to_single_line(&reason)
            ))),
            Ok(PlanningOutcome::Failed(failed)) => Ok(WrittenQuery::Failed(format!(
                "the model wrote no query that runs: {}",
                to_single_line(&failed.error)
            ))),
            Ok(PlanningOutcome::Unreadable) => {
                Ok(WrittenQuery::Failed(
                "the model's reply contains no query; reword the question, or write the SQL yourself and call `query`"
                    .to_owned(),
            ))
            }
            Err(AskError::Query(error))
                if matches!(allowance, WritingAllowance::Nothing) && is_budget_reached(&error) =>
            {
                Ok(WrittenQuery::Costs(limit))
            }
            Err(error) => Err(self.to_failure(error, "")),
        }
    }

    /// Runs a query without sending a request, and returns a page of its rows. Returns `None` if
    /// the query needs a value that is not stored.
    pub fn run_on_stored_answers(
        &self,
        plan: &AskPlan,
        position: PagePosition,
        control: WorkControl,
    ) -> Result<Option<Json>, Failure> {
        let mut spec = self.spec.clone();
        if !spec.is_replay() {
            // Limit the tokens as well, because a budget of 0 USD would still allow requests to a
            // free model.
            spec.limits.budget_tokens = Some(0);
        }
        let request =
            Request { spec: &spec, ..self.build_request(&plan.sql, plan.dialect, control) };
        match run_request(plan, &request, Some(0.0), position) {
            Err(error) if is_budget_reached(&error) => Ok(None),
            result => result.map(Some).map_err(|error| self.to_failure(error.into(), &plan.sql)),
        }
    }

    /// Runs a query and returns a page of its rows. Also returns its cost in USD.
    pub fn run_plan(
        &self,
        plan: &AskPlan,
        limit_usd: Option<f64>,
        position: PagePosition,
        control: WorkControl,
    ) -> (Result<Json, Failure>, f64) {
        let request = self.build_request(&plan.sql, plan.dialect, control);
        let result = run_request(plan, &request, limit_usd, position);
        let result = result.map_err(|error| self.to_failure(error.into(), &plan.sql));
        (result, request.counted_cost.usd())
    }

    /// Stores the plan of a query, and returns the result of `plan`.
    pub fn save_plan(&self, plan: &AskPlan, record: &PlanRecord) -> Result<Json, Failure> {
        let is_allowed = record.max_usd.is_some_and(|usd| self.ledger.allows(usd));
        let free = is_allowed && !self.is_on_server();
        let needs_approval = !free && !self.is_replay();
        let saved = if needs_approval {
            self.plans.request_approval(record, jiff::Timestamp::now().as_second())
        } else {
            self.plans.save_plan(record)
        };
        saved.map_err(|e| Failure::wrong_input(e.to_string(), "pass another --cache"))?;
        Ok(json!({
            "plan_id": record.id(), "sql": plan.sql, "dialect": plan.dialect,
            "interval": record.work.interval(), "assumptions": plan.assumptions,
            "max_cost_usd": record.max_usd, "needs_approval": needs_approval,
            "cost": record.describe_max_cost(), "explained": plan.explained.explained_to_json(),
        }))
    }

    fn to_failure(&self, error: AskError, sql: &str) -> Failure {
        match (error, &self.model) {
            (AskError::Query(QueryError::Sql(problem)), _) => Failure::Problems(Problems {
                path: PathBuf::from("<query>"),
                text: sql.to_owned(),
                problems: vec![*problem],
            }),
            (AskError::Query(QueryError::NoModel), Err(why)) => why.clone(),
            (AskError::Query(error), _) => error.into(),
            (AskError::Store(error), _) => error.into(),
            (error @ AskError::InvalidQuestion(_), _) => {
                Failure::wrong_input(error.to_string(), "ask one question in a few sentences")
            }
            (error, _) => Failure::wrong_input(error.to_string(), ""),
        }
    }
}

/// Runs a query, and returns a page of its rows.
fn run_request(
    plan: &AskPlan,
    request: &Request<'_>,
    limit_usd: Option<f64>,
    position: PagePosition,
) -> Result<Json, QueryError> {
    // A query without calls may end as soon as the page is full, because it has no usage to report.
    let is_plain = plan.explained.routes.is_empty();
    let mut page = RowPage::new(position.offset, position.limit, is_plain);
    let meta = match ask::run_within_limit(request, limit_usd, &mut page) {
        Err(QueryError::Output(_)) if is_plain && page.has_more => {
            Meta { sql: plan.sql.clone(), ..Meta::default() }
        }
        result => result?,
    };
    Ok(page.into_json(&plan.sql, plan.assumptions.as_deref(), &meta))
}

fn parse_interval(percent: f64) -> Result<IntervalRequest, Failure> {
    IntervalRequest::from_percent(percent, false).ok_or_else(|| {
        Failure::wrong_input(
            format!("{percent} is not a valid `interval`"),
            "pass a confidence in percent, from 50 to less than 100",
        )
    })
}

fn is_budget_reached(error: &QueryError) -> bool {
    matches!(error, QueryError::Stopped(StopReason::Endpoint(ModelError::Budget(_))))
}

/// Returns the directory inside a cache directory that contains the plans.
#[must_use]
pub fn plans_dir(cache: &Path) -> PathBuf {
    cache.join("plans")
}
