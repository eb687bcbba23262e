//! Finds faults in the published queries that no model can avoid. It runs each query on the true
//! values and compares the result with the gold answer; no fault is hard-coded.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::grade::grade_answer;
use crate::oracle::TrueValues;
use crate::record::Header;
use crate::run::BenchmarkRun;
use crate::score::GoldDatabase;
use crate::{Benchmark, BenchmarkQuestion, Mode, SwanError, compare, prepare};
use hqdl_engine::session::{Cache, Session, SpecOverrides};
use hqdl_spec::Expansion;

/// Faults on the true values, by the text of the query. Other queries have no fault.
pub(crate) type Faults = HashMap<String, String>;

/// Returns a note that a query is wrong even on the true values. `fault` is the difference on the
/// true values, `difference` the difference in the run. The note contains `fault` only if the two
/// differ.
pub(crate) fn describe_fault(fault: &str, difference: &str) -> String {
    if fault == difference {
        "on the true values, too".to_owned()
    } else {
        format!("on the true values, too: {fault}")
    }
}

/// Returns the queries whose result is wrong even on the true values, with the difference. Skips
/// queries that ask the model about anything but the generated columns.
///
/// # Errors
/// [`SwanError`] if the true values cannot be read, or the temporary database cannot be written.
pub(crate) fn find_faults(
    header: &Header,
    questions: &[BenchmarkQuestion],
    gold: &GoldDatabase,
) -> Result<Faults, SwanError> {
    let Some(benchmark) = Benchmark::find_by_name(&header.database) else {
        return Ok(Faults::new());
    };
    let scratch = TempDir::new()?;
    // Use a prepared copy, as a run does, because the hidden columns could make a wrong query
    // right.
    let database = scratch.0.join(format!("{}.sqlite", benchmark.name));
    prepare::write_without_hidden_columns(gold.database(), &database, benchmark)?;
    let model = Arc::new(TrueValues::read(benchmark, gold.database())?);
    let broken = |what: String| {
        let hint = "pass BIRD's original database, or the directory that `hqdl swan prepare` wrote";
        SwanError::wrong_input(format!("the true values of {}: {what}", benchmark.name), hint)
    };
    let mut draft = benchmark.parse_spec().map_err(|p| broken(p.render(false)))?;
    draft.ignore_prices();
    let overrides = SpecOverrides { database: Some(database), ..SpecOverrides::default() };
    let session =
        Session::open(draft, &overrides, Cache::Temporary).map_err(|p| broken(p.render(false)))?;
    let facts = session.facts().map_err(|e| broken(e.to_string()))?;
    let mut spec = session.spec.clone();
    match header.mode {
        Mode::Hqdl => {
            spec.expansions.retain(|e| is_read_by(e, questions));
            model.publish_tables(&spec)?;
        }
        // A query with calls reads a published table only if the facts have its values.
        Mode::Blendsql => model.store_and_publish(&spec, facts)?,
    }
    let run = BenchmarkRun {
        spec,
        database: &session.database,
        facts,
        model: Arc::clone(&model) as Arc<_>,
        questions,
        mode: header.mode,
        materialize: false,
        timeout: gold.timeout(),
        command: "swan score",
        listener: Arc::new(|_| {}),
        query_listener: Arc::new(|_| {}),
        interrupt: gold.interrupt(),
    };
    let mut faults = Faults::new();
    for question in questions {
        let asked_before = model.count_other_questions();
        let (answer, fatal_error) = run.answer_question(question);
        if fatal_error.is_some() {
            break;
        }
        let asks_others = model.count_other_questions() > asked_before;
        let Ok(truth) = gold.fetch_gold_rows(question) else { continue };
        let fault = match (answer.rows, answer.error) {
            (None, why) => why.unwrap_or_else(|| "no rows".to_owned()),
            (Some(_), _) if asks_others => continue,
            (Some(rows), _) => {
                let ordered = compare::is_ordered(&question.gold).unwrap_or(false);
                let grade = grade_answer(&rows, &truth, &answer.query, ordered);
                if grade.swan {
                    continue;
                }
                grade.difference
            }
        };
        faults.insert(answer.query, fault);
    }
    Ok(faults)
}

/// Returns true if one of the queries may read the tables of an expansion.
fn is_read_by(expansion: &Expansion, questions: &[BenchmarkQuestion]) -> bool {
    let many = expansion.columns.iter().filter_map(|c| Some(&c.many.as_ref()?.table));
    let tables: Vec<String> =
        many.chain([&expansion.name]).map(|name| name.to_lowercase()).collect();
    let queries = questions.iter().filter_map(|q| q.find_query(Mode::Hqdl));
    queries.into_iter().any(|sql| {
        let sql = sql.to_lowercase();
        tables.iter().any(|table| sql.contains(table.as_str()))
    })
}

/// A temporary folder that is removed on drop.
struct TempDir(PathBuf);

impl TempDir {
    fn new() -> Result<Self, SwanError> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("hqdl-swan-{}-{n}", std::process::id()));
        // Remove the folder of a killed process with the same ID.
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).map_err(|e| SwanError::file(&path, e))?;
        Ok(Self(path))
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
