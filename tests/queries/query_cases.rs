//! Runs `tests/queries/cases/*.test` (format: [`case_file`](hqdl_testkit::case_file)) with the built
//! program and an endpoint that computes its answers.
//!
//! In addition to its expectations, each run must leave the database unchanged, ask each pair of
//! question and value only once, count its requests as the endpoint does, and return the same rows
//! again without requests.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use rusqlite::Connection;
use serde_json::Value as Json;

use hqdl_testkit::case_file::{Case, ExpectedCount, Step, read_cases};
use hqdl_testkit::embedder::{Embedder, count_letters};
use hqdl_testkit::endpoint::Endpoint;
use hqdl_testkit::engine::{self, Order, Outcome, Query, check_subset, compare_rows, plain_rows};
use hqdl_testkit::oracle;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/queries/cases")
}

/// The databases of the cases, each created once.
struct Databases {
    dir: tempfile::TempDir,
    made: BTreeMap<PathBuf, PathBuf>,
}

impl Databases {
    fn new(cases: &[Case]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut made = BTreeMap::new();
        for case in cases {
            made.entry(case.db.clone()).or_insert_with_key(|script| {
                let path = dir.path().join(script.file_stem().unwrap()).with_extension("sqlite");
                let sql = std::fs::read_to_string(script)
                    .unwrap_or_else(|e| panic!("{}: {e}", script.display()));
                Connection::open(&path)
                    .unwrap()
                    .execute_batch(&sql)
                    .unwrap_or_else(|e| panic!("{}: {e}", script.display()));
                path
            });
        }
        Self { dir, made }
    }

    /// Returns a copy for one case.
    fn copy(&self, case: &Case, n: usize) -> PathBuf {
        let dir = self.dir.path().join(format!("case {n}"));
        std::fs::create_dir_all(&dir).unwrap();
        let copy = dir.join("data.sqlite");
        std::fs::copy(&self.made[&case.db], &copy).unwrap();
        copy
    }
}

fn change(db: &Path, step: &Step) -> Result<(), String> {
    let Some(sql) = &step.change else { return Ok(()) };
    Connection::open(db).unwrap().execute_batch(sql).map_err(|e| format!("{sql}: {e}"))
}

/// Returns the number of a bound.
fn number(db: &Path, bound: &ExpectedCount) -> Result<u64, String> {
    match &bound.number {
        Ok(number) => Ok(*number),
        Err(sql) => {
            let rows = plain_rows(db, sql)?;
            rows.first().and_then(|r| r[0].as_u64()).ok_or_else(|| format!("{sql} counts nothing"))
        }
    }
}

fn within(db: &Path, what: &str, found: u64, bound: &ExpectedCount) -> Result<(), String> {
    let number = number(db, bound)?;
    if found == number || bound.is_upper_bound && found < number {
        return Ok(());
    }
    let most = if bound.is_upper_bound { "at most " } else { "" };
    Err(format!("{what} {found} instead of {most}{number}"))
}

/// Compares the rows of a step with the expected ones, if there are any.
fn compare(db: &Path, step: &Step, ours: Option<&Outcome>) -> Result<(), String> {
    let expected = match (&step.plain, &step.rows) {
        (Some(sql), _) => plain_rows(db, sql)?,
        (None, Some(rows)) => rows.clone(),
        (None, None) => return Ok(()),
    };
    let every = step.every.as_deref().map(|sql| plain_rows(db, sql)).transpose()?;
    if let Some(every) = &every {
        check_subset(&expected, expected.len(), every).map_err(|e| format!("plain, every: {e}"))?;
    }
    let Some(ours) = ours else { return Ok(()) };
    match every {
        Some(every) => check_subset(&ours.rows, expected.len(), &every)?,
        None => {
            let order = if step.ordered { Order::Ordered } else { Order::Unordered };
            compare_rows(&ours.rows, &expected, order)?;
        }
    }
    match &step.columns {
        Some(columns) if *columns != ours.columns => {
            Err(format!("columns {:?} instead of {columns:?}", ours.columns))
        }
        _ => Ok(()),
    }
}

fn says(said: &str, text: &str) -> Result<(), String> {
    if said.to_lowercase().contains(&text.to_lowercase()) {
        return Ok(());
    }
    Err(format!("nothing says {text:?}: {said}"))
}

/// Checks the metadata that every successful query has.
fn check_meta(meta: &Json) -> Result<(), String> {
    let counts = ["requests", "values_asked", "values_reused", "passes", "input_tokens"];
    let missing = counts.iter().find(|name| meta[**name].as_u64().is_none());
    let routes = meta["routes"].as_array();
    let known = |r: &Json| matches!(r["route"].as_str(), Some("column" | "bound" | "ad-hoc"));
    if missing.is_some() || !meta["sql"].is_string() || !routes.is_some_and(|r| r.iter().all(known))
    {
        return Err(format!("meta lacks something: {meta}"));
    }
    Ok(())
}

/// Embedding model of a case, and its spec.
struct CaseEmbeddings {
    embedder: Embedder,
    spec: PathBuf,
}

impl CaseEmbeddings {
    fn start(db: &Path, endpoint: &Endpoint) -> Self {
        let embedder = Embedder::new(count_letters);
        let spec = db.with_file_name("spec.toml");
        let text = format!(
            "[database]\npath = \"data.sqlite\"\n[model]\nname = \"oracle\"\nbase_url = \"{}\"\n{}",
            endpoint.base_url(),
            embedder.spec_section()
        );
        std::fs::write(&spec, text).unwrap();
        Self { embedder, spec }
    }
}

struct Run<'a> {
    case: &'a Case,
    db: PathBuf,
    endpoint: &'a Endpoint,
    model: String,
    embeddings: Option<CaseEmbeddings>,
}

impl Run<'_> {
    fn query<'s>(&'s self, step: &'s Step) -> Query<'s> {
        Query {
            db: self.db.clone(),
            cache: self.db.with_file_name("cache"),
            base_url: Some(self.endpoint.base_url()),
            model: &self.model,
            rows_per_request: step.per_request.unwrap_or(10),
            flags: self.flags(step),
            sql: &step.query,
        }
    }

    fn flags(&self, step: &Step) -> Vec<String> {
        let spec = self.embeddings.iter().map(|embeddings| embeddings.spec.display().to_string());
        let spec = spec.flat_map(|path| ["--spec".to_owned(), path]);
        spec.chain(step.flags.iter().cloned()).collect()
    }

    /// Returns the texts and requests that the embedding model has received.
    fn embedded(&self) -> (Vec<String>, u64) {
        self.embeddings.as_ref().map_or((Vec::new(), 0), |embeddings| {
            let embedder = &embeddings.embedder;
            (embedder.received_texts(), embedder.request_count() as u64)
        })
    }

    /// Returns the bounds of `hqdl explain`: values and requests.
    fn explained_bounds(&self, step: &Step) -> Result<(u64, u64), String> {
        let outcome = self.query(step).explain_query();
        outcome.check_exit_code(&[0])?;
        for count in ["values_asked", "requests"] {
            let routes = outcome.meta["routes"].as_array().into_iter().flatten();
            let parts: u64 = routes.filter_map(|route| route[count].as_u64()).sum();
            if parts != outcome.meta_count(count)? {
                return Err(format!("the calls' {count} are {parts}: {}", outcome.meta));
            }
        }
        if outcome.meta["unbounded"].as_array().is_some_and(|calls| !calls.is_empty()) {
            return Ok((u64::MAX, u64::MAX));
        }
        Ok((outcome.meta_count("values_asked")?, outcome.meta_count("requests")?))
    }

    /// Runs a step once, and compares its counts with what the endpoint received.
    fn step(&self, step: &Step, asked: Option<&ExpectedCount>) -> Result<(), String> {
        let content = std::fs::read(&self.db).unwrap();
        let before = self.endpoint.requests_to(&self.model).len();
        let bounds = match (&self.embeddings, &step.error) {
            (Some(_), None) => Some(self.explained_bounds(step)?),
            _ => None,
        };
        let (texts_before, embeds_before) = self.embedded();
        let outcome = self.query(step).run_query();
        let requests = &self.endpoint.requests_to(&self.model)[before..];
        if content != std::fs::read(&self.db).unwrap() {
            return Err("the database was written".to_owned());
        }
        outcome.check_exit_code(&step.exit)?;
        step.error.iter().chain(&step.stderr_text).try_for_each(|t| says(&outcome.stderr, t))?;
        let pairs = oracle::count_pairs(requests);
        if step.error.is_some() {
            let none = ExpectedCount::zero();
            return within(&self.db, "asked", pairs.len() as u64, asked.unwrap_or(&none));
        }
        compare(&self.db, step, Some(&outcome))?;
        check_meta(&outcome.meta)?;
        let (texts, embeds) = self.embedded();
        let distinct: BTreeSet<&String> = texts.iter().collect();
        if distinct.len() < texts.len() {
            return Err(format!("a text was embedded twice: {texts:?}"));
        }
        let embedded = (texts.len() - texts_before.len()) as u64;
        if let Some(bound) = &step.embedded {
            within(&self.db, "embedded", embedded, bound)?;
        }
        let all = (outcome.meta_count("values_asked")?, outcome.meta_count("requests")?);
        if bounds.is_some_and(|(values, requests)| all.0 > values || all.1 > requests) {
            return Err(format!("explain bounds {bounds:?}, and the query used {all:?}"));
        }
        let count = all.0.saturating_sub(embedded);
        // The candidates of a join may need several requests, and failed requests are repeated
        // once.
        let is_join = requests.iter().any(|r| r.question.columns.iter().any(|c| c.many));
        if self.case.faults.is_empty() && !is_join {
            if let Some((pair, n)) = pairs.iter().find(|(_, n)| **n > 1) {
                return Err(format!("{pair:?} was asked {n} times"));
            }
            if count != pairs.len() as u64
                || all.1 != requests.len() as u64 + embeds - embeds_before
            {
                return Err(format!(
                    "the endpoint saw {} values in {} requests: {}",
                    pairs.len(),
                    requests.len(),
                    outcome.meta
                ));
            }
        }
        if let Some(bound) = asked {
            println!("{}: asked {count} of at most {}", self.case.name, number(&self.db, bound)?);
            within(&self.db, "asked", count, bound)?;
        }
        match &step.requests {
            Some(bound) if before == 0 => {
                within(&self.db, "requests", outcome.meta_count("requests")?, bound)
            }
            _ => Ok(()),
        }
    }

    fn steps(&self) -> Result<(), String> {
        for step in &self.case.steps {
            change(&self.db, step)?;
            if step.clears_faults {
                self.endpoint.clear_faults();
            }
            self.step(step, step.asked.as_ref())?;
            if step.error.is_none() {
                let again = step.repeated.clone().unwrap_or_else(ExpectedCount::zero);
                let embedded = Some(ExpectedCount::zero());
                let step = &Step { requests: None, embedded, ..clone(step) };
                self.step(step, Some(&again)).map_err(|e| format!("run once more: {e}"))?;
            }
        }
        Ok(())
    }
}

/// Returns a step without the expectations that only its first run must meet.
fn clone(step: &Step) -> Step {
    Step {
        query: step.query.clone(),
        plain: step.plain.clone(),
        rows: step.rows.clone(),
        every: step.every.clone(),
        ordered: step.ordered,
        columns: step.columns.clone(),
        exit: step.exit.clone(),
        flags: step.flags.clone(),
        per_request: step.per_request,
        ..Step::default()
    }
}

/// The expectations themselves are valid: every plain statement runs, every bound counts something,
/// and every query without an error can be parsed.
#[test]
fn expectations_of_the_cases_are_valid() {
    let cases = read_cases(&folder());
    let databases = Databases::new(&cases);
    let numbered: Vec<(usize, &Case)> = cases.iter().enumerate().collect();
    let failed = engine::run_in_parallel(&numbered, |(n, case)| {
        let db = databases.copy(case, *n);
        for step in &case.steps {
            let sound = change(&db, step).and_then(|()| compare(&db, step, None)).and_then(|()| {
                let bounds = [&step.asked, &step.requests, &step.repeated];
                bounds.into_iter().flatten().try_for_each(|b| number(&db, b).map(drop))
            });
            sound.map_err(|e| format!("{}: {e}", case.name))?;
        }
        Ok(())
    });
    let steps: usize = cases.iter().map(|c| c.steps.len()).sum();
    println!("{} cases, {steps} queries", cases.len());
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn query_cases() {
    // `HQDL_CASE=text` runs the cases whose name contains the text.
    let wanted = std::env::var("HQDL_CASE").unwrap_or_default();
    let cases = read_cases(&folder());
    let databases = Databases::new(&cases);
    let endpoint = oracle::start_endpoint();
    let numbered: Vec<(usize, &Case)> =
        cases.iter().enumerate().filter(|(_, case)| case.name.contains(&wanted)).collect();
    let failed = engine::run_in_parallel(&numbered, |(n, case)| {
        // Faults affect one case only.
        let faulty = (!case.faults.is_empty()).then(oracle::start_endpoint);
        for (fault, times, text) in &case.faults {
            let text = text.clone();
            faulty.as_ref().unwrap().add_fault_where(fault.clone(), *times, move |question| {
                let concerns = |text: &String| {
                    question.rows.iter().any(|r| r.key_text().contains(text.as_str()))
                };
                text.as_ref().is_none_or(concerns)
            });
        }
        let db = databases.copy(case, *n);
        let endpoint = faulty.as_ref().unwrap_or(&endpoint);
        let embeddings = case.has_embeddings.then(|| CaseEmbeddings::start(&db, endpoint));
        let run = Run { case, db, endpoint, model: format!("case-{n}"), embeddings };
        run.steps().map_err(|e| format!("== {}\n{e}\n", case.name))
    });
    println!("{} of {} cases hold", numbered.len() - failed.len(), numbered.len());
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
