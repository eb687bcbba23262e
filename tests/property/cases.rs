//! Runs the cases of `tests/queries/cases/` in process: rows, and the number of values requested.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hqdl::database::Database;
use hqdl::facts::Facts;
use hqdl::model;
use hqdl::query::{self, Dialect, Meta, QueryResult, Request};
use hqdl::spec::{Provider, UncheckedSpec};
use rusqlite::Connection;

use crate::other_truths::{LetterCase, Truth};
use crate::stub::Stub;
use crate::{plain, surplus};
use hqdl_testkit::case_file::{Case, ExpectedCount, read_cases};

fn number(db: &Path, bound: &ExpectedCount) -> Result<u64, String> {
    match &bound.number {
        Ok(number) => Ok(*number),
        Err(sql) => {
            match plain(db, sql, &Truth::of(LetterCase::Told))?.first().map(|r| r[0].clone()) {
                Some(rusqlite::types::Value::Integer(n)) => Ok(n as u64),
                _ => Err(format!("{sql} counts nothing")),
            }
        }
    }
}

fn run(case: &Case, db: &Path, facts: &Facts, name: &str) -> Result<Vec<String>, String> {
    let stub = Arc::new(Stub::new(name.to_owned(), LetterCase::Told));
    let mut wrong = Vec::new();
    for step in &case.steps {
        if let Some(sql) = &step.change {
            Connection::open(db).unwrap().execute_batch(sql).unwrap();
        }
        if step.error.is_some() || !step.flags.is_empty() {
            continue;
        }
        let database = Database::open(db).map_err(|e| e.to_string())?;
        let (mut spec, _) = UncheckedSpec::without_file(db.to_owned())
            .check(&database)
            .map_err(|e| format!("{e:?}"))?;
        name.clone_into(&mut spec.model.name);
        let (_stop, interrupt) = tokio::sync::watch::channel(false);
        let request = Request {
            spec: &spec,
            database: db,
            facts,
            model: Some(stub.clone()),
            sql: &step.query,
            dialect: Dialect::Sqlite,
            params: Vec::new(),
            classify: false,
            truncate: false,
            refresh: None,
            rows_per_request: Some(step.per_request.unwrap_or(10) as u32),
            timeout: None,
            command: "test",
            listener: Arc::new(|_| {}),
            interrupt,
            counted_cost: hqdl::query::CountedCost::default(),
        };
        let mut rows = QueryResult::default();
        let meta: Meta = match query::run(&request, &mut rows) {
            Ok(meta) => meta,
            Err(error) => {
                wrong.push(format!("failed: {error}"));
                continue;
            }
        };
        if let (Some(sql), None) = (&step.plain, &step.every) {
            let expected = plain(db, sql, &Truth::of(LetterCase::Told))?;
            let surplus = surplus(&rows.rows, &expected);
            if !surplus.is_empty() {
                wrong.push(format!("rows: {surplus:?}\n{}\n{}", step.query, meta.sql));
            }
        }
        if let Some(bound) = &step.asked {
            let n = number(db, bound)?;
            let asked = meta.values_asked;
            if asked != n && !(bound.is_upper_bound && asked < n) {
                let passes: Vec<u64> = meta.passes.iter().map(|p| p.demanded).collect();
                wrong.push(format!(
                    "asked {asked} instead of {n} ({passes:?}): {}\n{}",
                    step.query, meta.sql
                ));
            }
        }
        if let Some(bound) = &step.requests {
            let n = number(db, bound)?;
            if meta.requests != n && !(bound.is_upper_bound && meta.requests < n) {
                wrong.push(format!("{} requests instead of {n}: {}", meta.requests, step.query));
            }
        }
    }
    Ok(wrong)
}

#[test]
#[ignore = "a look while one works on the rules"]
fn cases_in_process() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/queries/cases");
    let cases = read_cases(&folder);
    let dir = tempfile::tempdir().unwrap();
    let mut made: BTreeMap<PathBuf, PathBuf> = BTreeMap::new();
    let facts = Facts::open_temporary().unwrap();
    let (mut held, mut failed) = (0, Vec::new());
    for (n, case) in cases.iter().enumerate().filter(|(_, c)| {
        let wanted = std::env::var("HQDL_CASE").unwrap_or_default();
        c.faults.is_empty() && c.name.contains(&wanted)
    }) {
        let of = made.entry(case.db.clone()).or_insert_with_key(|script| {
            let path = dir.path().join(script.file_stem().unwrap()).with_extension("sqlite");
            let sql = std::fs::read_to_string(script).unwrap();
            Connection::open(&path).unwrap().execute_batch(&sql).unwrap();
            path
        });
        let db = dir.path().join(format!("{n}.sqlite"));
        std::fs::copy(of, &db).unwrap();
        match run(case, &db, &facts, &format!("case-{n}")) {
            Ok(wrong) if wrong.is_empty() => held += 1,
            Ok(wrong) => failed.push(format!("== {}\n{}", case.name, wrong.join("\n"))),
            Err(why) => failed.push(format!("== {}\n{why}", case.name)),
        }
    }
    println!("{held} of {} cases hold\n{}", held + failed.len(), failed.join("\n"));
}

#[test]
#[ignore = "a look while one works on the rules"]
fn swan2_in_process() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/swan2");
    let db = folder.join("superhero.masked.sqlite");
    let text = std::fs::read_to_string(folder.join("superhero.cases.jsonl")).unwrap();
    for together in [1, 10] {
        let (mut values, mut requests, mut reach) = (0, 0, 0);
        for line in text.lines() {
            let case: serde_json::Value = serde_json::from_str(line).unwrap();
            let database = Database::open(&db).unwrap();
            let mut draft = UncheckedSpec::without_file(db.clone());
            draft.file.model.provider = Provider::Replay;
            draft.set_recordings(vec![folder.join("superhero.facts.jsonl.gz")]);
            let (spec, _) = draft.check(&database).unwrap();
            let model = model::connect_for_planning(&spec).unwrap();
            let facts = Facts::open_temporary().unwrap();
            let (_stop, interrupt) = tokio::sync::watch::channel(false);
            let request = Request {
                spec: &spec,
                database: &db,
                facts: &facts,
                model: Some(model),
                sql: case["blendsql"].as_str().unwrap(),
                dialect: Dialect::Sqlite,
                params: Vec::new(),
                classify: false,
                truncate: false,
                refresh: None,
                rows_per_request: Some(together),
                timeout: None,
                command: "test",
                listener: Arc::new(|_| {}),
                interrupt,
                counted_cost: hqdl::query::CountedCost::default(),
            };
            let mut rows = QueryResult::default();
            let meta = query::run(&request, &mut rows).unwrap();
            let least = case["min_values"]["reach"].as_u64().unwrap();
            println!(
                "{:<12} {:>6} {least:>6} {:>6} {:>4} {}",
                case["qid"],
                meta.values_asked,
                meta.requests,
                meta.passes.len(),
                meta.values_asked.saturating_sub(least)
            );
            values += meta.values_asked;
            requests += meta.requests;
            reach += least;
            let expected = case["rows"].as_array().unwrap().len();
            let any = case["any_k"].as_u64().map_or(expected, |k| k as usize);
            assert_eq!(rows.rows.len(), any, "{}", case["qid"]);
        }
        println!("{together} a request: {values} values ({reach}), {requests} requests");
    }
}
