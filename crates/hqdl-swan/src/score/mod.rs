//! Computes scores from a record and the gold database.

pub(crate) mod faults;

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;
use tokio::sync::watch;

use self::faults::Faults;
use crate::benchmark::ReadColumn;
use crate::compare::{self, Rows};
use crate::factuality::{Factuality, Share, compute_factuality};
use crate::grade::{Grade, grade_answer};
use crate::questions::read_questions;
use crate::record::{Cost, Header, Invocation, QuestionOutcome};
use crate::{Benchmark, BenchmarkQuestion, Mode, RunsRecord, SwanError};
use hqdl_engine::query::{PlainQuery, QueryResult};
use hqdl_values::format::format_count;

/// A run's scores.
#[derive(Debug, Clone, Serialize)]
pub struct RunScore {
    /// Folder of the run.
    pub dir: PathBuf,
    /// Identity of the run.
    #[serde(flatten)]
    pub header: Header,
    /// Execution accuracy by SWAN's rule.
    pub ex: Share,
    /// Execution accuracy by the strict rule.
    pub ex_strict: Share,
    /// Mean of the graded scores, in percent.
    pub graded: f64,
    /// Median of the relative errors of single numbers.
    pub relative_error: Option<f64>,
    /// Factuality of the generated cells, if there are any.
    pub factuality: Option<Factuality>,
    /// Cost of all runs up to the first that finished.
    pub spent: Cost,
    /// Cost of each run in the folder, in order.
    pub runs: Vec<RunCost>,
    /// Scores of the questions.
    pub questions: Vec<ScoredQuestion>,
    /// Notes on how to read these scores.
    pub notes: Vec<String>,
}

/// Cost of a run, step by step.
#[derive(Debug, Clone, Serialize)]
pub struct RunCost {
    /// Whether all questions were processed.
    pub finished: bool,
    /// Total cost.
    pub total: Cost,
    /// Cost of materializing.
    pub materialized: Option<Cost>,
    /// Cost of each question, in order.
    pub questions: Vec<(String, Cost)>,
}

/// Score of a question.
#[derive(Debug, Clone, Serialize)]
pub struct ScoredQuestion {
    /// Name of the question.
    pub qid: String,
    /// Text of the question.
    pub question: String,
    /// Grade of the answer; `None` if the gold query fails.
    #[serde(flatten)]
    pub grade: Option<Grade>,
    /// Error message if the query or the gold query failed.
    pub error: Option<String>,
    /// Routes of the query's calls.
    pub routes: Vec<String>,
    /// Fault in the published query that no model can avoid.
    pub known: Option<String>,
    /// Cost of the question in its last run.
    pub cost: Cost,
}

impl ScoredQuestion {
    /// Returns true if the answer is correct by SWAN's rule.
    #[must_use]
    pub fn is_correct(&self) -> bool {
        self.grade.as_ref().is_some_and(|g| g.swan)
    }

    /// Returns the error, or the description of the difference.
    #[must_use]
    pub fn difference(&self) -> &str {
        let differs = self.grade.as_ref().map_or("", |g| &g.difference);
        self.error.as_deref().unwrap_or(differs)
    }
}

/// Queries that were already run on the true values, and their faults.
#[derive(Default)]
struct CheckedQueries {
    queries: HashSet<String>,
    faults: Faults,
}

/// The gold database with a cache of each gold query's rows. A query runs only once, no matter how
/// many runs are scored.
pub struct GoldDatabase {
    database: PathBuf,
    timeout: Duration,
    interrupt: watch::Receiver<bool>,
    cached_rows: RefCell<HashMap<String, Result<Rows, String>>>,
    /// Queries checked so far, with the faults that no model can avoid, by questions file and mode.
    faults: RefCell<HashMap<(PathBuf, Mode), CheckedQueries>>,
}

impl GoldDatabase {
    /// Finds the gold database: `path` itself, or `<name>.sqlite` below it.
    ///
    /// # Errors
    /// [`SwanError`] if the database does not exist.
    pub fn find(
        path: &Path,
        name: &str,
        timeout: Duration,
        interrupt: watch::Receiver<bool>,
    ) -> Result<Self, SwanError> {
        let file = format!("{name}.sqlite");
        let paths = [path.to_owned(), path.join("gold").join(&file), path.join(&file)];
        match paths.into_iter().find(|p| p.is_file()) {
            Some(database) => {
                let (cached_rows, faults) = (RefCell::default(), RefCell::default());
                Ok(Self { database, timeout, interrupt, cached_rows, faults })
            }
            None => Err(SwanError::wrong_input(
                format!("no gold database of {name} at {}", path.display()),
                "pass the directory `gold` that `hqdl swan prepare` writes, or the file",
            )),
        }
    }

    /// Returns the path of the database.
    #[must_use]
    pub fn database(&self) -> &Path {
        &self.database
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    pub(crate) fn interrupt(&self) -> watch::Receiver<bool> {
        self.interrupt.clone()
    }

    /// Returns the faults of the questions' queries that no model can avoid. It checks each query
    /// once, when its answer is wrong for the first time.
    fn find_faults(
        &self,
        header: &Header,
        questions: &[BenchmarkQuestion],
    ) -> Result<Faults, SwanError> {
        let mut all = self.faults.borrow_mut();
        let checked = all.entry((header.questions_file.clone(), header.mode)).or_default();
        let query =
            |q: &BenchmarkQuestion| q.find_query(header.mode).unwrap_or_default().to_owned();
        let mut new = questions.to_vec();
        new.retain(|q| !checked.queries.contains(&query(q)));
        if !new.is_empty() {
            checked.faults.extend(faults::find_faults(header, &new, self)?);
            checked.queries.extend(new.iter().map(query));
        }
        Ok(checked.faults.clone())
    }

    pub(crate) fn fetch_gold_rows(&self, question: &BenchmarkQuestion) -> Result<Rows, String> {
        let cached = self.cached_rows.borrow().get(&question.gold).cloned();
        cached.unwrap_or_else(|| {
            let rows = self.run_gold_query(question);
            self.cached_rows.borrow_mut().insert(question.gold.clone(), rows.clone());
            rows
        })
    }

    fn run_gold_query(&self, question: &BenchmarkQuestion) -> Result<Rows, String> {
        let mut rows = QueryResult::default();
        PlainQuery {
            database: &self.database,
            sql: &question.gold,
            dialect: hqdl_engine::query::Dialect::Sqlite,
            params: &[],
            timeout: Some(self.timeout),
            interrupt: self.interrupt.clone(),
        }
        .run(&mut rows)
        .map_err(|e| e.to_string())?;
        Ok(compare::to_rows(&rows))
    }
}

/// Scores the runs in `dirs`. `questions` replaces the questions files of the runs. `gold` contains
/// the gold databases, and `timeout` limits each of their queries.
///
/// # Errors
/// [`SwanError`] if a record, a file or a database cannot be read, or if the user interrupts the
/// command.
pub fn score_runs(
    dirs: &[PathBuf],
    questions: Option<&Path>,
    gold: &Path,
    timeout: Duration,
    interrupt: &watch::Receiver<bool>,
) -> Result<Vec<RunScore>, SwanError> {
    let (mut all, mut golds) = (Vec::new(), Vec::<GoldDatabase>::new());
    for dir in dirs {
        let record = RunsRecord::read_dir(dir)?;
        let header = record.header();
        let file = questions.unwrap_or(&header.questions_file);
        let questions = read_questions(file, &header.database)?;
        let gold = GoldDatabase::find(gold, &header.database, timeout, interrupt.clone())?;
        let before = golds.iter().position(|g| g.database() == gold.database());
        let at = before.unwrap_or(golds.len());
        if before.is_none() {
            golds.push(gold);
        }
        all.push(score_run(&record, &questions, &golds[at])?);
        if *interrupt.borrow() {
            return Err(SwanError::Interrupted);
        }
    }
    Ok(all)
}

/// Scores a record. If a gold query fails, its question does not count, and a note reports it.
///
/// # Errors
/// [`SwanError`] if a database cannot be read.
pub fn score_run(
    record: &RunsRecord,
    questions: &[BenchmarkQuestion],
    gold: &GoldDatabase,
) -> Result<RunScore, SwanError> {
    let header = record.header().clone();
    let answers = record.last_answers();
    let mut scored: Vec<ScoredQuestion> = questions
        .iter()
        .map(|q| score_question(q, answers.get(q.qid.as_str()).copied(), gold))
        .collect();
    let mut notes = Vec::new();
    let is_wrong = |q: &ScoredQuestion| !q.is_correct() && q.grade.is_some();
    if scored.iter().any(is_wrong) {
        let both = scored.iter().zip(questions).filter(|(q, _)| is_wrong(q));
        let wrong: Vec<BenchmarkQuestion> = both.map(|(_, question)| question.clone()).collect();
        let faults = gold.find_faults(&header, &wrong).unwrap_or_else(|why| {
            notes.push(format!("hqdl cannot check the queries themselves: {why}"));
            Faults::new()
        });
        for (scored, question) in scored.iter_mut().zip(questions) {
            let query = question.find_query(header.mode).unwrap_or_default();
            let fault = faults.get(query).filter(|_| is_wrong(scored));
            scored.known = fault.map(|fault| faults::describe_fault(fault, scored.difference()));
        }
    }
    notes.extend(describe_hidden_reads(&header));
    let grades: Vec<&Grade> = scored.iter().filter_map(|q| q.grade.as_ref()).collect();
    if grades.len() < scored.len() {
        let failed = scored.len() - grades.len();
        let all = format_count(scored.len() as u64, "question");
        notes.push(match failed {
            1 => format!("the gold SQL of 1 of {all} fails, so the score ignores it"),
            _ => format!("the gold SQL of {failed} of {all} fails, so the score ignores them"),
        });
    }
    let unanswered = questions.iter().filter(|q| !answers.contains_key(q.qid.as_str())).count();
    if unanswered > 0 {
        let all = format_count(questions.len() as u64, "question");
        notes.push(match unanswered {
            1 => format!("1 of {all} was never run, so it counts as wrong"),
            _ => format!("{unanswered} of {all} were never run, so they count as wrong"),
        });
    }
    if !header.unmasked.is_empty() {
        notes.push(format!(
            "the database of the run was not masked: it holds {}",
            header.unmasked.join(", ")
        ));
    }
    let share = |right: fn(&Grade) -> bool| Share {
        correct: grades.iter().filter(|g| right(g)).count() as f64,
        total: grades.len() as u64,
    };
    let mean = |sum: f64| if grades.is_empty() { 0.0 } else { 100.0 * sum / grades.len() as f64 };
    let factuality = compute_run_factuality(&header, gold, &mut notes)?;
    Ok(RunScore {
        dir: record.dir.clone(),
        ex: share(|g| g.swan),
        ex_strict: share(|g| g.strict),
        graded: mean(grades.iter().map(|g| g.graded).sum()),
        relative_error: compute_median(grades.iter().filter_map(|g| g.relative_error).collect()),
        factuality,
        spent: sum_cost(record),
        runs: record.runs.iter().map(to_run_cost).collect(),
        questions: scored,
        notes,
        header,
    })
}

fn sum_cost(record: &RunsRecord) -> Cost {
    let mut cost = Cost::default();
    for run in &record.runs {
        cost.add(&run.total_cost());
        if run.finished {
            break;
        }
    }
    cost
}

fn to_run_cost(run: &Invocation) -> RunCost {
    RunCost {
        finished: run.finished,
        total: run.total_cost(),
        materialized: run.materialized,
        questions: run.answers.iter().map(|a| (a.qid.clone(), a.cost)).collect(),
    }
}

/// Returns a note on queries that read hidden columns instead of the model's answers.
fn describe_hidden_reads(header: &Header) -> Option<String> {
    let read = Benchmark::find_by_name(&header.database)?.read_by_hqdl;
    let named: Vec<String> = read.iter().map(ReadColumn::to_label).collect();
    let any = !named.is_empty() && header.mode == Mode::Hqdl;
    any.then(|| format!("HQDL's published SQL reads hidden data: {}", named.join(", ")))
}

fn score_question(
    question: &BenchmarkQuestion,
    answer: Option<&QuestionOutcome>,
    gold: &GoldDatabase,
) -> ScoredQuestion {
    let mut error = answer.and_then(|a| a.error.clone());
    let grade = match (gold.fetch_gold_rows(question), compare::is_ordered(&question.gold)) {
        (Ok(gold), ordered) => Some(match answer.map(|a| (a, a.rows.as_ref())) {
            None => Grade::without_rows("never run"),
            Some((_, None)) => Grade::default(),
            Some((a, Some(rows))) => grade_answer(rows, &gold, &a.query, ordered.unwrap_or(false)),
        }),
        (Err(why), _) => {
            error = Some(format!("the gold SQL fails: {why}"));
            None
        }
    };
    ScoredQuestion {
        qid: question.qid.clone(),
        question: question.question.clone(),
        grade,
        error,
        routes: answer.map(|a| a.routes.clone()).unwrap_or_default(),
        known: None,
        cost: answer.map(|a| a.cost).unwrap_or_default(),
    }
}

/// Returns the factuality of the published tables, if there are any.
fn compute_run_factuality(
    header: &Header,
    gold: &GoldDatabase,
    notes: &mut Vec<String>,
) -> Result<Option<Factuality>, SwanError> {
    let Some(benchmark) = Benchmark::find_by_name(&header.database) else {
        notes.push(format!(
            "{} is not a SWAN database, so there is no factuality score",
            header.database
        ));
        return Ok(None);
    };
    let Some(expanded) = &header.expanded else { return Ok(None) };
    if !expanded.exists() {
        notes.push(format!(
            "{} no longer exists, so there is no factuality score",
            expanded.display()
        ));
        return Ok(None);
    }
    Ok(Some(compute_factuality(benchmark, &gold.database, expanded)?))
}

fn compute_median(mut numbers: Vec<f64>) -> Option<f64> {
    numbers.sort_by(f64::total_cmp);
    let (low, high) = (numbers.len().checked_sub(1)? / 2, numbers.len() / 2);
    Some(f64::midpoint(*numbers.get(low)?, *numbers.get(high)?))
}
