//! Tests of random completions with wrong answers beside the correct ones (in reasoning, drafts,
//! broken JSON), and of truncated ones: a wrong answer never becomes a value.
//!
//! `HQDL_PROPERTY_CASES=400 HQDL_PROPERTY_SEED=7 cargo test --test runs drafts` runs more.

use std::sync::atomic::{AtomicUsize, Ordering};

use hqdl_testkit::endpoint::{Fault, Frequency};
use hqdl_testkit::engine::Query;
use hqdl_testkit::oracle;
use hqdl_testkit::project::{check_cells, heroes_project, truthful_endpoint};
use serde_json::{Value as Json, json};

use hqdl_testkit::concurrent::each_of;

/// Returns the true answer for a name.
type Truth = fn(&str) -> Json;

/// Queries over the heroes.
const QUERIES: [(&str, Truth); 5] = [
    ("SELECT name, {{LLMMap('fn:length', hero.name, return_type='int')}} FROM hero", |name| {
        json!(name.chars().count())
    }),
    ("SELECT name, {{LLMMap('fn:contains:a', hero.name, return_type='bool')}} FROM hero", |name| {
        json!(i32::from(name.contains('a')))
    }),
    ("SELECT name, {{LLMMap('fn:upper', hero.name)}} FROM hero", |name| json!(name.to_uppercase())),
    ("SELECT name, {{LLMQA('fn:upper', hero.name)}} FROM hero", |name| json!(name.to_uppercase())),
    ("SELECT name, answer(name, 'fn:upper') FROM hero", |name| json!(name.to_uppercase())),
];

fn times(chance: &mut fastrand::Rng) -> Frequency {
    match chance.u8(0..3) {
        0 => Frequency::First(chance.usize(1..6)),
        1 => Frequency::Every(chance.usize(2..4)),
        _ => Frequency::Always,
    }
}

/// Fills a table. Returns the number of values that it has, and the number of cells.
fn fill(seed: u64) -> (usize, usize) {
    let chance = &mut fastrand::Rng::with_seed(seed);
    let endpoint = truthful_endpoint();
    endpoint.add_fault(Fault::MixedDrafts(seed), times(chance));
    let project = heroes_project(&endpoint, ["csv", "json", "csv list last"][chance.usize(..3)]);
    let ended = project.run_materialize(&["--rows-per-request", &chance.usize(1..=6).to_string()]);
    assert!((0..=4).contains(&ended.code), "seed {seed}: {}", ended.stderr);
    if !project.has_table("llm") {
        return (0, 0);
    }
    let states = check_cells(&project);
    (states.get("ok").copied().unwrap_or_default(), states.values().sum())
}

/// Runs a query. Returns the number of values that its rows have, and the number of rows.
fn ask(seed: u64) -> (usize, usize) {
    let chance = &mut fastrand::Rng::with_seed(seed);
    let project = heroes_project(&truthful_endpoint(), "csv");
    let endpoint = oracle::start_endpoint();
    endpoint.add_fault(Fault::MixedDrafts(seed), times(chance));
    let (sql, truth) = QUERIES[chance.usize(..QUERIES.len())];
    let query = Query {
        db: project.path("data.sqlite"),
        cache: project.path("cache of queries"),
        base_url: Some(endpoint.base_url()),
        model: "drafts",
        rows_per_request: chance.usize(1..=6),
        flags: Vec::new(),
        sql,
    };
    let outcome = query.run_query();
    assert!((0..=4).contains(&outcome.code), "seed {seed}: {}", outcome.stderr);
    let mut values = 0;
    for row in &outcome.rows {
        if let (Some(name), false) = (row[0].as_str(), row[1].is_null()) {
            assert_eq!(row[1], truth(name), "seed {seed}: {name}: {sql}");
            values += 1;
        }
    }
    (values, outcome.rows.len())
}

#[test]
fn a_wrong_answer_beside_the_correct_one_is_never_a_value() {
    let setting = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let seed: u64 = setting("HQDL_PROPERTY_SEED").unwrap_or(1);
    let cases: u64 = setting("HQDL_PROPERTY_CASES").unwrap_or(24);
    let (values, all) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let runs = (seed..seed + cases).map(|seed| (format!("seed {seed}"), seed)).collect();
    each_of(2, runs, |seed| {
        let (found, cells) = if seed.is_multiple_of(2) { fill(seed) } else { ask(seed) };
        values.fetch_add(found, Ordering::Relaxed);
        all.fetch_add(cells, Ordering::Relaxed);
    });
    let (values, all) = (values.into_inner(), all.into_inner());
    println!("{cases} runs: {values} of {all} cells have a value, all of them right");
    assert!(values * 4 > all, "{values} of {all}");
}
