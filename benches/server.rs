//! Facts on a server: `HQDL_BENCH_URL=postgres://… cargo bench --bench server`, with an
//! empty database.
//!
//! Measures facts per second: written in commits of requests (50 entities × 4 facts each), and
//! looked up a thousand entities at a time, as a run does.

// A bench that cannot be set up has nothing to measure.
#![allow(clippy::expect_used, clippy::print_stdout)]

use std::sync::Arc;
use std::time::Instant;

use hqdl::cell::{Answer, CellValue};
use hqdl::facts::{CommitUnit, Completion, Fact, Facts, FactsError, Outcome};
use hqdl::key::{ColumnIdentity, Entity, KeyColumns};
use hqdl::value::Value;

const REQUESTS: usize = 4000;
const ROWS: usize = 50;
const COLUMNS: usize = 4;
const AT_ONCE: usize = 64;

fn main() {
    let Ok(url) = std::env::var("HQDL_BENCH_URL") else {
        return println!("HQDL_BENCH_URL names no server: nothing is measured");
    };
    let dir = tempfile::tempdir().expect("a directory");
    let open = || {
        let say = Arc::new(|line: &str| println!("{line}"));
        Facts::connect_to_server(&url, dir.path(), "bench", say).expect("a server")
    };
    let facts = open();
    let entities = write(&facts);
    look(&facts, &entities, 1);
    look(&facts, &entities, 4);
}

fn entity(n: usize) -> Entity {
    let key = KeyColumns::new(vec!["name".to_owned(), "town".to_owned()]);
    let parts = [format!("Thing number {n}"), format!("Town {}", n % 997)];
    key.build_entity(&parts.map(Value::from))
}

fn write(facts: &Facts) -> Vec<Entity> {
    let history = facts.history();
    let run = history.start_run("bench", "").expect("a run");
    let model = history.intern_model("instant").expect("a model");
    let identity = |n: usize| ColumnIdentity {
        key: vec!["name".to_owned(), "town".to_owned()],
        column: format!("column {n}"),
        kind: "text".to_owned(),
        about: "what it is".to_owned(),
        many: false,
        list: "none".to_owned(),
        kinds: Vec::new(),
        requires_evidence: false,
        candidates: Vec::new(),
    };
    let identity_ids: Vec<u32> = (0..COLUMNS)
        .map(|n| history.intern_column_identity(&identity(n)).expect("an identity"))
        .collect();
    let unit = |request: usize| {
        let of = |row: usize| {
            let fact = |identity_id: &u32| Fact {
                identity_id: *identity_id,
                model,
                list: None,
                completion: 0,
                asked: 0,
                answer: Answer::ok(CellValue::One(Value::from(format!("the value of {row}")))),
                logprob: None,
            };
            (entity(request * ROWS + row), identity_ids.iter().map(fact).collect())
        };
        CommitUnit {
            completion: Completion {
                run,
                model,
                prompt_hash: format!("p1:{request}"),
                content: Some("a line of an answer\n".repeat(ROWS)),
                cost_usd: 0.001,
                asked_at: "2026-11-21T00:00:00Z".to_owned(),
                cells: (ROWS * COLUMNS) as u64,
                ..Completion::default()
            },
            facts: (0..ROWS).map(of).collect(),
            ..CommitUnit::default()
        }
    };
    let units: Vec<CommitUnit> = (0..REQUESTS).map(unit).collect();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let began = Instant::now();
    runtime.block_on(async {
        let mut tasks = tokio::task::JoinSet::<Result<(), FactsError>>::new();
        for unit in units {
            if tasks.len() >= AT_ONCE {
                tasks.join_next().await.expect("a task").expect("an end").expect("kept");
            }
            let facts = facts.clone();
            tasks.spawn(async move { facts.commit_unit(unit).await });
        }
        while let Some(kept) = tasks.join_next().await {
            kept.expect("an end").expect("kept");
        }
    });
    let took = began.elapsed().as_secs_f64();
    let all = REQUESTS * ROWS * COLUMNS;
    println!("written   {all} facts in {took:.2} s: {:.0} a second", all as f64 / took);
    history.finish_run(run, Outcome::Complete).expect("an end");
    (0..REQUESTS * ROWS).map(entity).collect()
}

fn look(facts: &Facts, entities: &[Entity], threads: usize) {
    let began = Instant::now();
    std::thread::scope(|scope| {
        for part in entities.chunks(entities.len() / threads) {
            scope.spawn(move || {
                for some in part.chunks(1000) {
                    let some: Vec<&Entity> = some.iter().collect();
                    let found = facts.get_records(&some).expect("records");
                    assert!(
                        found.iter().all(|r| r.as_ref().is_some_and(|r| r.facts.len() == COLUMNS))
                    );
                }
            });
        }
    });
    let (took, all) = (began.elapsed().as_secs_f64(), entities.len() * COLUMNS);
    println!(
        "looked up {all} facts by {threads} threads in {took:.2} s: {:.0} a second",
        all as f64 / took
    );
}
