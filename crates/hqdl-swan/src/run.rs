//! Runs the benchmark: it materializes the spec, answers every question like a user's query, and
//! records each step as a line.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::compare;
use super::record::{Cost, QuestionOutcome, RecordLine, RecordWriter};
use super::{BenchmarkQuestion, Mode, SwanError};
use hqdl_database::Database;
use hqdl_engine::materialize::{MaterializeError, Materializer, Report, Selection};
use hqdl_engine::query::{self, Meta, QueryError, QueryResult, Request};
use hqdl_facts::Facts;
use hqdl_model::Model;
use hqdl_model::generate::{Event, Listener, StopReason};
use hqdl_spec::Spec;
use hqdl_values::usage::Usage;

/// Inputs of a run.
pub struct BenchmarkRun<'r> {
    /// Spec; its budget applies to the whole run.
    pub spec: Spec,
    /// Prepared database.
    pub database: &'r Database,
    /// Facts of the run.
    pub facts: &'r Facts,
    /// Model to ask.
    pub model: Arc<dyn Model>,
    /// Questions to answer.
    pub questions: &'r [BenchmarkQuestion],
    /// Kind of queries to run.
    pub mode: Mode,
    /// Whether to materialize the spec first. If not, queries request the cells that they need.
    pub materialize: bool,
    /// Time limit for one pass of a query in `SQLite`.
    pub timeout: Duration,
    /// Name of the run in the journal.
    pub command: &'r str,
    /// Receives the events of materializing.
    pub listener: Listener,
    /// Receives the events of a query.
    pub query_listener: Listener,
    /// Becomes true when the user interrupts the run.
    pub interrupt: watch::Receiver<bool>,
}

/// Result of a run.
#[derive(Debug, Default)]
pub struct RunOutcome {
    /// Number of questions whose query succeeded.
    pub answered: u64,
    /// Number of questions whose query failed.
    pub failed: u64,
    /// Number of cells and query values that are missing.
    pub missing: u64,
    /// Cost of the run.
    pub cost: Cost,
    /// Reason for an early end, if any.
    pub stop: Option<BenchmarkStop>,
}

/// Reason why a run ended early.
#[derive(Debug)]
pub enum BenchmarkStop {
    /// Materializing stopped.
    Run(Arc<StopReason>),
    /// Materializing failed.
    Materialize(MaterializeError),
    /// A query stopped, or failed with an error that affects all queries.
    Query(QueryError),
}

impl std::fmt::Display for BenchmarkStop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Run(why) => why.fmt(f),
            Self::Materialize(why) => why.fmt(f),
            Self::Query(why) => why.fmt(f),
        }
    }
}

/// Runs the benchmark, records its steps and passes each to the callback. It records a failed
/// question and continues.
///
/// # Errors
/// [`SwanError`] if the record cannot be written.
pub fn run(
    mut run: BenchmarkRun<'_>,
    writer: &mut RecordWriter,
    on_line: &mut dyn FnMut(&RecordLine),
) -> Result<RunOutcome, SwanError> {
    let mut record_line = |line: &RecordLine| {
        on_line(line);
        writer.write_line(line)
    };
    let mut outcome = RunOutcome::default();
    if run.materialize {
        let (report, cost) = run.materialize_spec();
        outcome.cost.add(&cost);
        outcome.missing += report.cells.count_cells_without_value() + report.unasked;
        record_line(&RecordLine::Materialized { cells: report.cells.to_json(), cost })?;
        let failed = report.failure.map(BenchmarkStop::Materialize);
        outcome.stop = failed.or(report.stop_reason.map(BenchmarkStop::Run));
        run.reduce_budget(&cost, report.in_doubt.max_spent.usd, report.in_doubt.max_spent.tokens);
    }
    for question in run.questions {
        if outcome.stop.is_some() {
            break;
        }
        let (answer, fatal_error) = run.answer_question(question);
        outcome.cost.add(&answer.cost);
        outcome.missing += answer.cost.values_missing;
        run.reduce_budget(&answer.cost, 0.0, 0);
        if let Some(error) = fatal_error {
            // Do not record the question, so that the next run asks it again.
            outcome.stop = Some(BenchmarkStop::Query(error));
            break;
        }
        match &answer.rows {
            Some(_) => outcome.answered += 1,
            None => outcome.failed += 1,
        }
        record_line(&RecordLine::Answer(Box::new(answer)))?;
    }
    record_line(&match &outcome.stop {
        None => RecordLine::Finished {
            answered: outcome.answered,
            failed: outcome.failed,
            cost: outcome.cost,
        },
        Some(stop) => RecordLine::Stopped { message: stop.to_string(), cost: outcome.cost },
    })?;
    Ok(outcome)
}

/// Reason why a question has no rows.
#[derive(Debug, thiserror::Error)]
enum FailedQuestion {
    #[error("the questions file has no {} query for this question", .0.name())]
    NoQuery(Mode),
    #[error(transparent)]
    Query(#[from] QueryError),
}

/// Returns true if the next question would fail for the same reason.
fn is_fatal(error: &QueryError) -> bool {
    !matches!(
        error,
        QueryError::Sql(_) | QueryError::Timeout(_) | QueryError::Output(_) | QueryError::Store(_)
    )
}

impl BenchmarkRun<'_> {
    /// Materializes the spec. Returns the report and the cost.
    fn materialize_spec(&self) -> (Report, Cost) {
        let began = Instant::now();
        let selection = Selection::default();
        let materializer = Materializer::new(
            &self.spec,
            self.database,
            self.facts,
            Arc::clone(&self.model),
            &selection,
        );
        let report = materializer
            .and_then(|w| w.materialize(self.command, &self.listener, &self.interrupt))
            .unwrap_or_else(|failed| Report { failure: Some(failed), ..Report::default() });
        let cost = Cost {
            requests: report.usage.requests,
            values_asked: report.requested.total(),
            values_reused: report.reused,
            values_missing: report.cells.count_cells_without_value(),
            input_tokens: report.usage.input_tokens,
            output_tokens: report.usage.output_tokens,
            cost_usd: report.usage.cost_usd,
            seconds: began.elapsed().as_secs_f64(),
        };
        (report, cost)
    }

    /// Runs the query of a question. Also returns the query's error if the next question would fail
    /// for the same reason.
    pub(crate) fn answer_question(
        &self,
        question: &BenchmarkQuestion,
    ) -> (QuestionOutcome, Option<QueryError>) {
        let began = Instant::now();
        let usage: Arc<Mutex<Usage>> = Arc::default();
        let (result, error) = self.run_query(question, &usage);
        let used = *usage.lock().unwrap_or_else(PoisonError::into_inner);
        let mut cost = to_cost(&result.meta);
        if error.is_some() {
            // For a failed query, only its events contain its usage.
            cost.requests = used.requests;
            cost.input_tokens = used.input_tokens;
            cost.output_tokens = used.output_tokens;
            cost.cost_usd = used.cost_usd;
        }
        cost.seconds = began.elapsed().as_secs_f64();
        let answer = QuestionOutcome {
            qid: question.qid.clone(),
            query: question.find_query(self.mode).unwrap_or_default().to_owned(),
            rows: error.is_none().then(|| compare::to_rows(&result)),
            columns: result.columns,
            error: error.as_ref().map(ToString::to_string),
            routes: result.meta.routes.iter().map(|r| r.route.name().to_owned()).collect(),
            cost,
        };
        let fatal_error = match error {
            Some(FailedQuestion::Query(error)) if is_fatal(&error) => Some(error),
            _ => None,
        };
        (answer, fatal_error)
    }

    fn run_query(
        &self,
        question: &BenchmarkQuestion,
        total_usage: &Arc<Mutex<Usage>>,
    ) -> (QueryResult, Option<FailedQuestion>) {
        let mut result = QueryResult::default();
        let Some(sql) = question.find_query(self.mode) else {
            return (result, Some(FailedQuestion::NoQuery(self.mode)));
        };
        let (listener, total_usage) = (Arc::clone(&self.query_listener), Arc::clone(total_usage));
        let target = self.spec.target();
        let database = if target.exists() { target } else { &self.spec.database };
        let request = Request {
            model: Some(Arc::clone(&self.model)),
            timeout: Some(self.timeout),
            command: self.command,
            listener: Arc::new(move |event: &Event| {
                if let Event::Stored { usage, .. } = event {
                    *total_usage.lock().unwrap_or_else(PoisonError::into_inner) = *usage;
                }
                listener(event);
            }),
            interrupt: self.interrupt.clone(),
            ..Request::new(&self.spec, database, self.facts, sql)
        };
        let outcome = if query::may_need_model(&self.spec, sql, request.dialect, request.classify) {
            query::run(&request, &mut result)
        } else {
            request.to_plain().run(&mut result)
        };
        match outcome {
            Ok(meta) => {
                result.meta = meta;
                (result, None)
            }
            Err(error) => (result, Some(error.into())),
        }
    }

    /// Subtracts the spending from the budget of the remaining steps.
    fn reduce_budget(&mut self, cost: &Cost, doubt_usd: f64, doubt_tokens: u64) {
        let limits = &mut self.spec.limits;
        if let Some(budget) = &mut limits.budget_usd {
            *budget = (*budget - cost.cost_usd - doubt_usd).max(0.0);
        }
        if let Some(budget) = &mut limits.budget_tokens {
            let used = cost.input_tokens + cost.output_tokens + doubt_tokens;
            *budget = budget.saturating_sub(used);
        }
    }
}

fn to_cost(meta: &Meta) -> Cost {
    Cost {
        requests: meta.requests,
        values_asked: meta.values_asked,
        values_reused: meta.values_reused,
        values_missing: meta.values_missing,
        input_tokens: meta.input_tokens,
        output_tokens: meta.output_tokens,
        cost_usd: meta.cost_usd,
        seconds: meta.seconds,
    }
}
