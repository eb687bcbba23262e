//! Answers a question in plain words. The model writes SQL, to which the same parser, guard, prices
//! and budget apply as to a query that a person wrote.
//!
//! An [`Asker`] writes a plan ([`Asker::plan`]), which the caller shows and approves, and runs it
//! ([`Asker::run`]). A query with an error is repaired with hqdl's own message ([`Asker::repair`]).
//! If a query returns no rows, [`Asker::relax`] writes a query with a weaker condition. All
//! requests for SQL share one budget ([`SqlGenerationLimit`]), and their answers are stored as
//! facts. A question may continue a conversation ([`Asker::continue_conversation`]).

mod conversation;
mod conversation_store;
mod plan;
mod prompt;
mod proposal;
mod prose;
mod schema;
mod search;
mod values;

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;

pub use self::conversation::Turn;
use self::conversation::{CONVERSATION_RULE, format_turns};
pub use self::conversation_store::{Conversation, ConversationStore};
pub use self::plan::{
    AskPlan, CostLimits, MaxCost, bound_fill_cost, check_cost_is_known, compute_max_request_cost,
    compute_plan_id, plan_query, run_within_limit,
};
use self::prompt::{DescriptionBuilder, build_instructions};
pub use self::proposal::{ColumnCosts, ProposedColumn};
pub use self::prose::Prose;
use self::prose::ShownRows;
pub use self::schema::TableDescription;
use self::schema::{hash_schema, read_table_descriptions};
pub use self::search::describe_search;
use self::values::StoredValueIndex;
pub use self::values::ValueMatch;
use crate::query::{
    CountedCost, Dialect, Meta, ProseQuestion, QueryError, QueryResult, Request, RowSink,
    StatementQuestion, StatementWriter,
};
use hqdl_database::{Database, StoreError, describe_sqlite_error};
use hqdl_model::Model;
use hqdl_spec::{Spec, UnpricedModel, is_server};
use hqdl_values::format::format_count;
use hqdl_values::problem::Problem;
use hqdl_values::tokens::Tokenizer;
use hqdl_values::usage::Usage;

/// Default limit on the cost of writing the SQL for one question, in USD.
const DEFAULT_BUDGET_USD: f64 = 0.02;
/// Maximum number of requests for SQL per question: the first, two repairs and two relaxations,
/// each with a second attempt. The token limit for a model without a price is based on this number.
const MAX_REQUESTS: u64 = 10;
/// Maximum number of repairs of a question's SQL.
const MAX_REPAIRS: usize = 2;
/// Maximum number of relaxations of a query without rows.
const MAX_RELAXATIONS: usize = 2;
/// Minimum token limit of a request, which leaves room for the instructions, a question and one
/// table.
pub use hqdl_spec::MIN_CONTEXT_TOKENS;
/// The question may use at most one `QUESTION_SHARE`th of a prompt's tokens.
const QUESTION_SHARE: u64 = 4;
/// Maximum number of tokens that a request for prose uses besides the question and the rows.
const MAX_PROSE_TOKENS: u64 = 500;
/// Maximum length of an earlier query or of its problem in a repair prompt, in characters.
const MAX_REPAIR_CHARS: usize = 2000;
/// Message that asks the model to relax a query that returned no rows.
const NO_ROWS: &str = "The query is correct but returned no rows. Relax one condition: compare with a stored value, \
or drop the least important condition. Say in `assumptions` what you changed. If no condition can be relaxed without \
changing the question, `sql` is null and `cannot_answer` says so.";

/// Returns a description of each table and each unpublished expansion, and the hash of all
/// definitions.
///
/// # Errors
/// [`StoreError`] if the database cannot be opened.
pub fn describe_tables(
    path: &Path,
    spec: &Spec,
    shows_values: bool,
) -> Result<(Vec<TableDescription>, String), StoreError> {
    let descriptions = read_table_descriptions(&Database::open(path)?, spec, shows_values);
    let hash = hash_schema(&descriptions, "");
    Ok((descriptions, hash))
}

/// Returns instructions on the calls that a query may contain, for a model that writes SQL.
#[must_use]
pub fn build_call_instructions(spec: &Spec) -> String {
    build_instructions(&spec.ingredients, spec.embeddings.is_some())
}

/// Returns the stored values that match words of a text, best first.
///
/// # Errors
/// [`AskError`] if the database cannot be read.
pub fn find_stored_values(
    path: &Path,
    spec: &Spec,
    text: &str,
) -> Result<Vec<ValueMatch>, AskError> {
    let database = Database::open(path)?;
    let descriptions = read_table_descriptions(&database, spec, false);
    Ok(StoredValueIndex::build(&database, &descriptions)?.find_matches(text)?)
}

/// Limit on the total cost of the SQL requests for one question.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum SqlGenerationLimit {
    /// Limit in USD.
    Usd(f64),
    /// Limit in tokens, for a model whose price is not known.
    Tokens(u64),
}

/// Returns a copy of the spec that enforces the limit on the requests for SQL, and the limit.
///
/// # Errors
/// [`UnpricedModel`] if the spec sets `[ask] budget_usd` but the price of its model is not known.
pub fn limit_sql_generation_cost(spec: &Spec) -> Result<(Spec, SqlGenerationLimit), UnpricedModel> {
    let mut limited = spec.clone();
    let usd = spec.ask.budget_usd.unwrap_or(DEFAULT_BUDGET_USD);
    let usd = spec.limits.budget_usd.map_or(usd, |limit| limit.min(usd));
    match limited.set_budget(Some(usd)) {
        Ok(()) => Ok((limited, SqlGenerationLimit::Usd(usd))),
        Err(error) if spec.ask.budget_usd.is_some() => Err(error),
        Err(_) => {
            let tokens = MAX_REQUESTS * spec.ask.context_tokens;
            let tokens = spec.limits.budget_tokens.map_or(tokens, |limit| limit.min(tokens));
            limited.limits.budget_tokens = Some(tokens);
            Ok((limited, SqlGenerationLimit::Tokens(tokens)))
        }
    }
}

/// A query that failed with an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedQuery {
    /// Text of the query.
    pub sql: String,
    /// Error message.
    pub error: String,
}

/// Result of planning a query for a question.
#[derive(Debug, Clone)]
pub enum PlanningOutcome {
    /// A query that can be run.
    Plan(Box<AskPlan>),
    /// The database cannot answer the question, for this reason.
    Declined(String),
    /// The last query has an error, and the maximum number of repairs was reached.
    Failed(FailedQuery),
    /// The model's reply cannot be parsed.
    Unreadable,
}

/// Reason why a question could not be planned.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// The question is empty or too long.
    #[error("{0}")]
    InvalidQuestion(String),
    /// A request or a query failed.
    #[error(transparent)]
    Query(#[from] QueryError),
    /// The database cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The search index over the database's names and values failed.
    #[error("cannot index the database: {}", describe_sqlite_error(.0))]
    Index(#[from] rusqlite::Error),
}

/// Inputs of an [`Asker`].
pub struct AskQuestion<'a> {
    /// Text of the question.
    pub text: &'a str,
    /// Settings of the query; its `sql` is not used. If it has a model, the model must be
    /// connected.
    pub request: Request<'a>,
    /// Copy of the spec with the limit on requests for SQL ([`limit_sql_generation_cost`]).
    pub writing_spec: &'a Spec,
    /// Maximum cost of the query in USD, if the user set it.
    pub budget_usd: Option<f64>,
    /// A model that counts tokens but sends no request.
    pub planning_model: Arc<dyn Model>,
    /// Whether to ignore stored SQL and examples, and ask the model again.
    pub rewrites: bool,
    /// Called before the first request for SQL.
    pub before_request: &'a dyn Fn(),
}

/// The model's answer to a request for SQL.
#[derive(Debug, Default, Deserialize)]
struct WrittenStatement {
    sql: Option<String>,
    dialect: Dialect,
    assumptions: Option<String>,
    cannot_answer: Option<String>,
    other_sql: Option<String>,
    other_reading: Option<String>,
    new_columns: Option<Vec<ProposedColumn>>,
}

/// Another reading of a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtherReading {
    /// Text of the query for this reading.
    pub sql: String,
    /// Description of this reading.
    pub reading: String,
}

/// Writes and runs the queries that answer one question.
pub struct Asker<'a> {
    question: String,
    /// Earlier questions with their queries, as the model sees them.
    earlier: Option<String>,
    request: Request<'a>,
    budget_usd: Option<f64>,
    planning_model: Arc<dyn Model>,
    before_request: &'a dyn Fn(),
    writer: StatementWriter<'a>,
    /// Whether to ignore stored SQL and examples.
    rewrites: bool,
    database: Database,
    descriptions: Vec<TableDescription>,
    schema_hash: String,
    instructions: String,
    tokenizer: Tokenizer,
    values: Option<StoredValueIndex>,
    announced: bool,
    /// Queries that failed and were repaired.
    pub repairs: Vec<FailedQuery>,
    /// Another reading of the question from the latest answer. Its query reads other tables or
    /// rows.
    pub other: Option<OtherReading>,
    /// Columns that the latest answer proposes, because no column answers the question.
    pub proposed: Vec<ProposedColumn>,
    relaxations: usize,
    /// USD spent so far on running this question's queries.
    spent_usd: f64,
}

impl<'a> Asker<'a> {
    /// Reads the schema of the database. Sends no request.
    ///
    /// # Errors
    /// [`AskError`] if the question is empty or too long, or if the database cannot be read.
    pub fn new(question: AskQuestion<'a>) -> Result<Self, AskError> {
        let AskQuestion {
            text,
            request,
            writing_spec,
            budget_usd,
            planning_model,
            rewrites,
            before_request,
        } = question;
        let spec = request.spec;
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        if !text.contains(char::is_alphanumeric) {
            let problem = if text.is_empty() { "empty" } else { "without a word or a number" };
            return Err(AskError::InvalidQuestion(format!("the question is {problem}")));
        }
        let tokenizer = Tokenizer::for_model(&spec.model.name);
        let max_tokens = spec.ask.context_tokens / QUESTION_SHARE;
        // Counting the tokens of a very long text would take too long.
        let length = if text.len() as u64 > 8 * max_tokens {
            Some(format_count(text.len() as u64, "byte"))
        } else {
            let tokens = tokenizer.count_tokens(&text);
            (tokens > max_tokens).then(|| format!("about {}", format_count(tokens, "token")))
        };
        if let Some(length) = length {
            let limit = format_count(max_tokens, "token");
            return Err(AskError::InvalidQuestion(format!(
                "the question is too long: {length}; the limit is {limit}"
            )));
        }
        let database = Database::open(request.database)?;
        let descriptions = read_table_descriptions(&database, spec, spec.ask.shows_values);
        let examples: Vec<String> = (spec.ask.examples.iter())
            .map(|example| format!("{}\n{}\n", example.question, example.sql))
            .collect();
        let instructions = build_instructions(&spec.ingredients, spec.embeddings.is_some());
        let settings = format!("{} {}", spec.ask.context_tokens, spec.ask.shows_values);
        let shown = [examples.concat(), instructions.clone(), settings].concat();
        let writing = Request { spec: writing_spec, sql: "ask", ..request.clone() };
        Ok(Self {
            question: text,
            earlier: None,
            rewrites,
            writer: StatementWriter::new(&writing, rewrites)?,
            budget_usd,
            planning_model,
            before_request,
            database,
            schema_hash: hash_schema(&descriptions, &shown),
            descriptions,
            instructions,
            tokenizer,
            values: None,
            announced: false,
            repairs: Vec::new(),
            other: None,
            proposed: Vec::new(),
            relaxations: 0,
            spent_usd: 0.0,
            request,
        })
    }

    /// Adds earlier questions of a conversation to the prompts. The model sees the newest questions
    /// with their queries, in at most a quarter of a prompt's tokens.
    pub fn continue_conversation(&mut self, turns: &[Turn]) {
        let max_tokens = self.request.spec.ask.context_tokens / QUESTION_SHARE;
        self.earlier = format_turns(turns, self.tokenizer, max_tokens);
        if self.earlier.is_some() {
            self.instructions.push_str(CONVERSATION_RULE);
            let shown = [&self.schema_hash, CONVERSATION_RULE].concat();
            self.schema_hash = hash_schema(&self.descriptions, &shown);
        }
    }

    /// Writes a query for the question, and repairs it if it has an error.
    ///
    /// # Errors
    /// [`AskError`] if a request fails or would exceed the writing limit.
    pub fn plan(&mut self) -> Result<PlanningOutcome, AskError> {
        let statement = match self.find_example() {
            Some(sql) => Some(WrittenStatement { sql: Some(sql), ..WrittenStatement::default() }),
            None => self.find_or_request_statement(self.question_key(), "")?,
        };
        self.check_statement(statement)
    }

    /// Writes a query like [`Self::plan`]. If the question has another reading, names that reading
    /// in the plan's assumptions.
    ///
    /// # Errors
    /// Fails under the same conditions as [`Self::plan`].
    pub fn plan_likelier_reading(&mut self) -> Result<PlanningOutcome, AskError> {
        let mut outcome = self.plan()?;
        if let (PlanningOutcome::Plan(plan), Some(other)) = (&mut outcome, self.other.take()) {
            plan.add_other_reading(&other);
        }
        Ok(outcome)
    }

    /// Returns the query of the spec's example with exactly this question. Returns `None` if there
    /// is no such example, if the question continues a conversation, or if examples are ignored.
    fn find_example(&self) -> Option<String> {
        let normalize = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let mut examples = self.request.spec.ask.examples.iter();
        let example = examples.find(|example| normalize(&example.question) == self.question)?;
        (self.earlier.is_none() && !self.rewrites).then(|| example.sql.clone())
    }

    /// Returns the names and texts that identify the question in the fact store.
    fn question_key(&self) -> Vec<(&'static str, String)> {
        let earlier = self.earlier.clone().map(|turns| ("earlier", turns));
        earlier.into_iter().chain([("question", self.question.clone())]).collect()
    }

    /// Returns the text that is searched for tables, values and examples: the question and the
    /// earlier questions.
    fn search_text(&self) -> String {
        [self.question.as_str(), self.earlier.as_deref().unwrap_or_default()].join(" ")
    }

    /// Writes a new query to replace one that failed when it ran.
    ///
    /// # Errors
    /// Fails under the same conditions as [`Self::plan`].
    pub fn repair(&mut self, sql: &str, problem: &Problem) -> Result<PlanningOutcome, AskError> {
        let error = describe_problem_with_position(sql, problem);
        let failed = FailedQuery { sql: sql.to_owned(), error };
        if self.repairs.len() == MAX_REPAIRS {
            return Ok(PlanningOutcome::Failed(failed));
        }
        let statement = self.rewrite(sql, &describe_problem(problem))?;
        self.repairs.push(failed);
        self.check_statement(statement)
    }

    /// Writes a query with a weaker condition, to replace one that returned no rows. Returns `None`
    /// if nothing can be relaxed, the relaxed query is rejected, or the maximum number of
    /// relaxations was reached.
    ///
    /// # Errors
    /// Fails under the same conditions as [`Self::plan`].
    pub fn relax(&mut self, plan: &AskPlan) -> Result<Option<AskPlan>, AskError> {
        if self.relaxations == MAX_RELAXATIONS {
            return Ok(None);
        }
        self.relaxations += 1;
        let statement = self.rewrite(&plan.sql, NO_ROWS)?;
        match self.check_statement(statement)? {
            PlanningOutcome::Plan(relaxed) if relaxed.sql.trim() != plan.sql.trim() => {
                Ok(Some(*relaxed))
            }
            _ => Ok(None),
        }
    }

    /// Runs a plan and spends at most its maximum cost. All queries of a question share one budget.
    ///
    /// # Errors
    /// [`QueryError`] if the query fails. Answers received before the error are kept.
    pub fn run(&mut self, plan: &AskPlan, sink: &mut dyn RowSink) -> Result<Meta, QueryError> {
        let limit = match plan.max_cost {
            MaxCost::Usd(usd) => Some(usd),
            MaxCost::Nothing => Some(0.0),
            MaxCost::Unknown(_) => {
                self.compute_remaining_budget(self.request.spec.limits.budget_usd)
            }
        };
        let counted_cost = CountedCost::default();
        let request = Request {
            sql: &plan.sql,
            dialect: plan.dialect,
            counted_cost: counted_cost.clone(),
            ..self.request.clone()
        };
        let result = run_within_limit(&request, limit, sink);
        self.spent_usd += counted_cost.usd();
        result
    }

    /// Returns true if the database is on a server, where a query can do whatever its database role
    /// is allowed to do.
    #[must_use]
    pub fn is_on_server(&self) -> bool {
        is_server(self.request.database)
    }

    /// Returns the USD spent so far on running this question's queries.
    #[must_use]
    pub fn spent_usd(&self) -> f64 {
        self.spent_usd
    }

    /// Returns the part of a budget that this question's earlier queries have not spent.
    fn compute_remaining_budget(&self, budget: Option<f64>) -> Option<f64> {
        budget.map(|usd| (usd - self.spent_usd).max(0.0))
    }

    /// Returns a sentence about the tables that a query searched.
    #[must_use]
    pub fn describe_search(&self, meta: &Meta) -> String {
        describe_search(&self.database, &self.descriptions, meta)
    }

    /// Returns a plan of the query for another reading, to replace the plan of the first reading.
    ///
    /// # Errors
    /// Fails under the same conditions as [`Self::plan`].
    pub fn write_other_query(&mut self, other: OtherReading) -> Result<PlanningOutcome, AskError> {
        self.check_statement(Some(WrittenStatement {
            sql: Some(other.sql),
            assumptions: Some(other.reading),
            ..WrittenStatement::default()
        }))
    }

    /// Returns the likely cost, in USD, of asking a column's question live about each row; `None`
    /// if the cost is not known. Sends no request.
    #[must_use]
    pub fn estimate_live_cost(&self, column: &ProposedColumn) -> Option<f64> {
        let sql = column.build_live_query()?;
        let request = Request { sql: &sql, dialect: Dialect::Sqlite, ..self.request.clone() };
        let limits = CostLimits::default();
        let plan = plan_query(&request, &self.planning_model, &self.schema_hash, limits).ok()?;
        plan.estimate_usd(self.request.spec)
    }

    /// Asks the model to answer the question in prose from the rows of its query. The request
    /// counts toward the limit on requests for SQL.
    ///
    /// # Errors
    /// [`AskError`] if the request fails or would exceed the limit.
    pub fn write_prose(&mut self, result: &QueryResult) -> Result<Prose, AskError> {
        let settings = &self.request.spec.ask;
        if !settings.shows_values {
            let reason = "`values = false` in [ask] keeps the rows from the model";
            return Ok(Prose::Missing(reason.to_owned()));
        }
        let max_tokens = settings.context_tokens.saturating_sub(MAX_PROSE_TOKENS)
            - settings.context_tokens / QUESTION_SHARE;
        let Some(rows) = ShownRows::select(result, max_tokens, self.tokenizer) else {
            return Ok(Prose::Missing("the rows do not fit into `context_tokens`".to_owned()));
        };
        let question = ProseQuestion {
            instructions: rows.build_instructions(&self.question),
            question: self.question.clone(),
            digest: rows.digest(),
            table: rows.table.clone(),
        };
        let announced = std::mem::replace(&mut self.announced, true);
        let announce = || {
            if !announced {
                (self.before_request)();
            }
        };
        let text = self.writer.write_prose(&question, &announce)?;
        Ok(text.map_or_else(
            || Prose::Missing("the model wrote none".to_owned()),
            |text| rows.check(&text),
        ))
    }

    /// Closes the statement writer and returns the usage of the requests for SQL.
    ///
    /// # Errors
    /// [`QueryError`] if the journal cannot be written.
    pub fn finish(self, complete: bool) -> Result<Usage, QueryError> {
        self.writer.finish(complete)
    }

    fn rewrite(&mut self, sql: &str, problem: &str) -> Result<Option<WrittenStatement>, AskError> {
        // The digest distinguishes long texts with the same beginning.
        let shorten = |text: &str| match text.char_indices().nth(MAX_REPAIR_CHARS) {
            None => text.to_owned(),
            Some((end, _)) => {
                let digest = blake3::hash(text.as_bytes()).to_hex();
                format!("{} … ({})", &text[..end], &digest[..16])
            }
        };
        let mut key = self.question_key();
        key.extend([("query", shorten(sql)), ("problem", shorten(problem))]);
        self.find_or_request_statement(key, sql)
    }

    /// Returns the stored statement, or asks the model for one. Returns `None` if the reply cannot
    /// be parsed.
    fn find_or_request_statement(
        &mut self,
        key: Vec<(&'static str, String)>,
        earlier: &str,
    ) -> Result<Option<WrittenStatement>, AskError> {
        let mut question = StatementQuestion {
            key,
            schema: self.schema_hash.clone(),
            instructions: self.instructions.clone(),
            context: String::new(),
        };
        let stored = self.writer.find_stored_answer(&question)?;
        let json = match stored {
            Some(json) => Some(json),
            None => {
                question.context = self.build_database_description(&question, earlier)?;
                if !std::mem::replace(&mut self.announced, true) {
                    (self.before_request)();
                }
                self.writer.write_statement(&question)?
            }
        };
        Ok(json.and_then(|json| serde_json::from_str(&json).ok()))
    }

    fn build_database_description(
        &mut self,
        question: &StatementQuestion,
        earlier: &str,
    ) -> Result<String, AskError> {
        let matches = self.find_matching_values(earlier)?;
        let asked: u64 =
            question.key.iter().map(|(_, text)| self.tokenizer.count_tokens(text) + 8).sum();
        let settings = &self.request.spec.ask;
        let builder = DescriptionBuilder {
            descriptions: &self.descriptions,
            examples: &settings.examples,
            max_tokens: settings.context_tokens,
            instruction_tokens: self.tokenizer.count_tokens(&self.instructions),
            tokenizer: self.tokenizer,
        };
        Ok(builder.build(&self.search_text(), asked, &matches)?)
    }

    /// Returns the stored values that match words of the question or of an earlier query.
    fn find_matching_values(&mut self, earlier: &str) -> Result<Vec<ValueMatch>, AskError> {
        if !self.request.spec.ask.shows_values {
            return Ok(Vec::new());
        }
        let index = match self.values.take() {
            Some(index) => index,
            None => StoredValueIndex::build(&self.database, &self.descriptions)?,
        };
        let matches = index.find_matches(&[self.search_text().as_str(), earlier].join(" "))?;
        self.values = Some(index);
        Ok(matches)
    }

    /// Checks a query in the same way as a query that a person wrote, and repairs it if it has an
    /// error.
    fn check_statement(
        &mut self,
        statement: Option<WrittenStatement>,
    ) -> Result<PlanningOutcome, AskError> {
        let Some(statement) = statement else { return Ok(PlanningOutcome::Unreadable) };
        self.proposed = statement.new_columns.unwrap_or_default();
        let Some(sql) = statement.sql.filter(|sql| !sql.trim().is_empty()) else {
            let reason = statement.cannot_answer.unwrap_or_default();
            return Ok(PlanningOutcome::Declined(reason));
        };
        let other = statement.other_sql.zip(statement.other_reading);
        let other = other.map(|(sql, reading)| OtherReading { sql, reading });
        self.other = other
            .filter(|other| normalize_source_clauses(&other.sql) != normalize_source_clauses(&sql));
        let dialect = statement.dialect;
        let request = Request { sql: &sql, dialect, ..self.request.clone() };
        let limits = CostLimits {
            budget_usd: self.compute_remaining_budget(self.budget_usd),
            spec_usd: self.compute_remaining_budget(self.request.spec.limits.budget_usd),
        };
        match plan_query(&request, &self.planning_model, &self.schema_hash, limits) {
            Ok(mut plan) => {
                let notes = [statement.assumptions, statement.cannot_answer];
                let notes: Vec<String> = notes.into_iter().flatten().collect();
                plan.assumptions = (!notes.is_empty()).then(|| notes.join(" "));
                Ok(PlanningOutcome::Plan(Box::new(plan)))
            }
            Err(QueryError::Sql(problem)) => self.repair(&sql, &problem),
            Err(error) => Err(error.into()),
        }
    }
}

/// Returns the part of a query that determines its tables and filters, normalized for comparison.
fn normalize_source_clauses(sql: &str) -> String {
    let words: Vec<String> = sql.split_whitespace().map(str::to_lowercase).collect();
    let text = words.join(" ");
    let source = text.split_once(" from ").map_or(text.as_str(), |(_, source)| source);
    let end = source.rfind(" order by ").or_else(|| source.rfind(" limit "));
    source[..end.unwrap_or(source.len())].trim_end_matches(';').to_owned()
}

/// Formats a problem for the model.
fn describe_problem(problem: &Problem) -> String {
    let parts = [Some(&problem.message), Some(&problem.label), problem.help.as_ref()];
    let parts: Vec<&str> = parts.into_iter().flatten().map(String::as_str).collect();
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("; ")
}

/// Formats a problem for the user, with its position in the query.
fn describe_problem_with_position(sql: &str, problem: &Problem) -> String {
    let text = describe_problem(problem);
    let Some(before) = problem.span.as_ref().and_then(|span| sql.get(..span.start)) else {
        return text;
    };
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    format!("{text} (line {line}, column {column})")
}

/// Describes which text literals a relaxed query drops and which it adds, and whether it changes
/// anything else.
#[must_use]
pub fn describe_relaxation(before: &str, after: &str) -> String {
    let ((old, old_rest), (new, new_rest)) = (split_literals(before), split_literals(after));
    let only = |of: &[String], without: &[String]| {
        let quoted = of.iter().filter(|t| !without.contains(t)).map(|t| format!("'{t}'"));
        quoted.collect::<Vec<_>>().join(", ")
    };
    let (dropped, added) = (only(&old, &new), only(&new, &old));
    let change = match (dropped.as_str(), added.as_str()) {
        ("", "") => {
            return "no row satisfies the first query; searched with a weaker condition".to_owned();
        }
        (dropped, "") => format!("no row with {dropped}; searched without it"),
        ("", added) => format!("no row satisfies the first query; searched {added}"),
        (dropped, added) => format!("no row with {dropped}; searched {added}"),
    };
    let is_shown = |c: &char| !c.is_whitespace();
    let is_explained = if added.is_empty() {
        // The condition of a dropped literal is gone, but no word or number is new.
        let words = |rest: &str| -> HashSet<String> {
            let is_word = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.');
            rest.split(|c| !is_word(c)).map(str::to_lowercase).collect()
        };
        words(&new_rest).is_subset(&words(&old_rest))
    } else {
        old_rest.chars().filter(is_shown).eq(new_rest.chars().filter(is_shown))
    };
    if is_explained { change } else { change + ", and changed another condition" }
}

/// Returns the string literals of a query, and its other characters.
fn split_literals(sql: &str) -> (Vec<String>, String) {
    let (mut literals, mut rest) = (Vec::new(), String::new());
    let mut chars = sql.chars().peekable();
    while let Some(c) = chars.next() {
        if c != '\'' {
            rest.push(c);
            continue;
        }
        rest.push(c);
        let mut text = String::new();
        while let Some(c) = chars.next() {
            match c {
                '\'' if chars.peek() == Some(&'\'') => text.extend(chars.next()),
                '\'' => break,
                c => text.push(c),
            }
        }
        literals.push(text);
    }
    (literals, rest)
}

#[cfg(test)]
mod tests {
    use super::{describe_relaxation, normalize_source_clauses};

    #[test]
    fn a_relaxation_note_mentions_every_change() {
        let query = |rest: &str| format!("SELECT a FROM t WHERE {rest}");
        let before = query("b = 'x' AND c > 240 AND d = 'it''s'");
        for (after, expected) in [
            ("b = 'y' AND  c > 240 AND d = 'it''s'", "no row with 'x'; searched 'y'"),
            (
                "b = 'y' AND c > 200 AND d = 'it''s'",
                "no row with 'x'; searched 'y', and changed another condition",
            ),
            ("c > 240 AND d = 'it''s'", "no row with 'x'; searched without it"),
            (
                "c > 9 AND d = 'it''s'",
                "no row with 'x'; searched without it, and changed another condition",
            ),
            (
                "b = 'x' AND c > 9 AND d = 'it''s'",
                "no row satisfies the first query; searched with a weaker condition",
            ),
        ] {
            assert_eq!(describe_relaxation(&before, &query(after)), expected);
        }
    }

    #[test]
    fn readings_differ_in_tables_or_filters() {
        let base = "SELECT a FROM t WHERE b > 1 ORDER BY a";
        for same in
            ["SELECT a, b  FROM t\nWHERE b > 1", "select A from T where B > 1 ORDER BY b LIMIT 3;"]
        {
            assert_eq!(normalize_source_clauses(base), normalize_source_clauses(same), "{same}");
        }
        for other in
            ["SELECT a FROM u WHERE b > 1", "SELECT a FROM t WHERE b > 2", "SELECT a FROM t"]
        {
            assert_ne!(normalize_source_clauses(base), normalize_source_clauses(other), "{other}");
        }
    }
}
