//! A run: the spec materialized, then every question answered as a user's query
//! is. What happened is written down line by line.

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

/// What a run needs.
pub struct BenchmarkRun<'r> {
    /// The spec; its budget is the whole run's.
    pub spec: Spec,
    /// The prepared database.
    pub database: &'r Database,
    /// What is known.
    pub facts: &'r Facts,
    /// Who is asked.
    pub model: Arc<dyn Model>,
    /// The questions.
    pub questions: &'r [BenchmarkQuestion],
    /// Which of their queries are run.
    pub mode: Mode,
    /// Whether the spec is materialized first, or cells are asked for when a
    /// query needs them.
    pub materialize: bool,
    /// How long `SQLite` may take over a pass of a query.
    pub timeout: Duration,
    /// What the run is called in the journal.
    pub command: &'r str,
    /// Who is told what goes on while the tables are made.
    pub listener: Listener,
    /// Who is told what goes on in a query.
    pub query_listener: Listener,
    /// Becomes true when the user wants it to end.
    pub interrupt: watch::Receiver<bool>,
}

/// How a run ended.
#[derive(Debug, Default)]
pub struct Ended {
    /// Questions with rows.
    pub answered: u64,
    /// Questions without.
    pub failed: u64,
    /// Cells of the expansions and values of the queries without a value.
    pub missing: u64,
    /// What it used.
    pub cost: Cost,
    /// Why it ended before its end.
    pub stop: Option<Stop>,
}

/// Why a run ended before its end.
#[derive(Debug)]
pub enum Stop {
    /// Materializing stopped.
    Run(Arc<Stopped>),
    /// Materializing failed.
    Materialize(MaterializeError),
    /// A query stopped, or what all queries need failed.
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

/// Runs, writes down and tells what happens. A question that fails is a line of
/// the record, and the run goes on.
///
/// # Errors
/// [`SwanError`] when the record cannot be written.
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
            // What a query used before it failed is known from what was kept.
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
            // The question is not over: the next run goes on with it.
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

/// Why a question has no rows.
#[derive(Debug, thiserror::Error)]
enum FailedQuestion {
    #[error("the questions file has no {} query for this question", .0.name())]
    NoQuery(Mode),
    #[error(transparent)]
    Query(#[from] QueryError),
}

impl FailedQuestion {
    /// Whether the next question would fail for the same reason.
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
    /// PATH 1.
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

    /// PATH 2.
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

    /// Takes what was spent off the budget of what is still to come.
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
