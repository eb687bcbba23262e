//! Runs the benchmark: materializes the spec, then answers every question like a user's query.
//! Records each step as a line.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::compare;
use super::record::{Cost, QuestionOutcome, RecordLine, Writer};
use super::{BenchmarkQuestion, Mode, SwanError};
use crate::database::Database;
use crate::facts::Facts;
use crate::generate::{Event, Listener, Stopped};
use crate::materialize::{MaterializeError, Report, Selection, Work};
use crate::model::Model;
use crate::query::{self, Meta, QueryError, Request, Smoothie};
use crate::spec::Spec;
use crate::usage::Usage;

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
    /// The questions.
    pub questions: &'r [BenchmarkQuestion],
    /// Kind of queries to run.
    pub mode: Mode,
    /// Whether to materialize the spec first. If not, cells are asked for when a query needs them.
    pub materialize: bool,
    /// Time limit of `SQLite` for one pass of a query.
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
pub struct Ended {
    /// Number of questions with rows.
    pub answered: u64,
    /// Number of questions without rows.
    pub failed: u64,
    /// Number of cells and query values without a value.
    pub missing: u64,
    /// Cost of the run.
    pub cost: Cost,
    /// Reason for an early end, if any.
    pub stop: Option<Stop>,
}

/// Reason why a run ended early.
#[derive(Debug)]
pub enum Stop {
    /// Materializing stopped.
    Run(Arc<Stopped>),
    /// Materializing failed.
    Materialize(MaterializeError),
    /// A query stopped, or an error would affect all queries.
    Query(QueryError),
}

impl std::fmt::Display for Stop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Run(why) => why.fmt(f),
            Self::Materialize(why) => why.fmt(f),
            Self::Query(why) => why.fmt(f),
        }
    }
}

/// Runs the benchmark, records its steps and passes each to the callback. A failed question is
/// recorded, and the run continues.
///
/// # Errors
/// [`SwanError`] if the record cannot be written.
pub fn run(
    mut run: BenchmarkRun<'_>,
    writer: &mut Writer,
    told: &mut dyn FnMut(&RecordLine),
) -> Result<Ended, SwanError> {
    let mut tell = |line: &RecordLine| {
        told(line);
        writer.write(line)
    };
    let mut ended = Ended::default();
    if run.materialize {
        let (report, cost) = run.expand();
        ended.cost.add(&cost);
        ended.missing += report.cells.without_value() + report.unasked;
        tell(&RecordLine::Materialized { cells: report.cells.to_json(), cost })?;
        let failed = report.failed.map(Stop::Materialize);
        ended.stop = failed.or(report.stopped.map(Stop::Run));
        run.pay(&cost, report.in_doubt.most.usd, report.in_doubt.most.tokens);
    }
    for question in run.questions {
        if ended.stop.is_some() {
            break;
        }
        let began = Instant::now();
        let spent: Arc<Mutex<Usage>> = Arc::default();
        let (smoothie, error) = run.answer(question, &spent);
        let used = *spent.lock().unwrap_or_else(PoisonError::into_inner);
        let mut cost = cost_of(&smoothie.meta);
        if error.is_some() {
            // The usage of a failed query is known only from its events.
            cost.requests = used.requests;
            cost.input_tokens = used.input_tokens;
            cost.output_tokens = used.output_tokens;
            cost.cost_usd = used.cost_usd;
        }
        cost.seconds = began.elapsed().as_secs_f64();
        ended.cost.add(&cost);
        ended.missing += cost.values_missing;
        run.pay(&cost, 0.0, 0);
        let stops = error.as_ref().is_some_and(FailedQuestion::stops);
        let rows = error.is_none().then(|| compare::kept(&smoothie));
        let answer = QuestionOutcome {
            qid: question.qid.clone(),
            query: question.query(run.mode).unwrap_or_default().to_owned(),
            columns: smoothie.columns,
            rows,
            error: error.as_ref().map(ToString::to_string),
            routes: smoothie.meta.routes.iter().map(|r| r.route.name().to_owned()).collect(),
            cost,
        };
        match error {
            None => ended.answered += 1,
            // The question is not recorded, so that the next run asks it again.
            Some(FailedQuestion::Query(error)) if stops => {
                ended.stop = Some(Stop::Query(error));
                break;
            }
            Some(_) => ended.failed += 1,
        }
        tell(&RecordLine::Answer(Box::new(answer)))?;
    }
    tell(&match &ended.stop {
        None => RecordLine::Finished {
            answered: ended.answered,
            failed: ended.failed,
            cost: ended.cost,
        },
        Some(stop) => RecordLine::Stopped { message: stop.to_string(), cost: ended.cost },
    })?;
    Ok(ended)
}

/// Reason why a question has no rows.
#[derive(Debug, thiserror::Error)]
enum FailedQuestion {
    #[error("the questions file has no {} query for this question", .0.name())]
    NoQuery(Mode),
    #[error(transparent)]
    Query(#[from] QueryError),
}

impl FailedQuestion {
    /// Returns true if the next question would fail for the same reason.
    fn stops(&self) -> bool {
        match self {
            Self::NoQuery(_) => false,
            Self::Query(error) => !matches!(
                error,
                QueryError::Sql(_)
                    | QueryError::Timeout(_)
                    | QueryError::Output(_)
                    | QueryError::Store(_)
            ),
        }
    }
}

impl BenchmarkRun<'_> {
    /// Materializes the spec. Returns the report and the cost.
    fn expand(&self) -> (Report, Cost) {
        let began = Instant::now();
        let selection = Selection::default();
        let work =
            Work::new(&self.spec, self.database, self.facts, Arc::clone(&self.model), &selection);
        let report = work
            .and_then(|w| w.materialize(self.command, &self.listener, &self.interrupt))
            .unwrap_or_else(|failed| Report { failed: Some(failed), ..Report::default() });
        let cost = Cost {
            requests: report.usage.requests,
            values_asked: report.asked.total(),
            values_reused: report.reused,
            values_missing: report.cells.without_value(),
            input_tokens: report.usage.input_tokens,
            output_tokens: report.usage.output_tokens,
            cost_usd: report.usage.cost_usd,
            seconds: began.elapsed().as_secs_f64(),
        };
        (report, cost)
    }

    /// Runs the query of a question.
    fn answer(
        &self,
        question: &BenchmarkQuestion,
        spent: &Arc<Mutex<Usage>>,
    ) -> (Smoothie, Option<FailedQuestion>) {
        let mut smoothie = Smoothie::default();
        let Some(sql) = question.query(self.mode) else {
            return (smoothie, Some(FailedQuestion::NoQuery(self.mode)));
        };
        let (listener, spent) = (Arc::clone(&self.query_listener), Arc::clone(spent));
        let target = self.spec.target();
        let database = if target.exists() { target } else { &self.spec.database };
        let request = Request {
            model: Some(Arc::clone(&self.model)),
            timeout: Some(self.timeout),
            command: self.command,
            listener: Arc::new(move |event: &Event| {
                if let Event::Kept { usage, .. } = event {
                    *spent.lock().unwrap_or_else(PoisonError::into_inner) = *usage;
                }
                listener(event);
            }),
            interrupt: self.interrupt.clone(),
            ..Request::of(&self.spec, database, self.facts, sql)
        };
        let ran = if query::may_ask(&self.spec, sql, request.dialect, request.classify) {
            query::run(&request, &mut smoothie)
        } else {
            request.plain().run(&mut smoothie)
        };
        match ran {
            Ok(meta) => {
                smoothie.meta = meta;
                (smoothie, None)
            }
            Err(error) => (smoothie, Some(error.into())),
        }
    }

    /// Subtracts the spending from the budget of the remaining steps.
    fn pay(&mut self, cost: &Cost, doubt_usd: f64, doubt_tokens: u64) {
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

fn cost_of(meta: &Meta) -> Cost {
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
