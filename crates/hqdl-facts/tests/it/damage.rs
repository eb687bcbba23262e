//! Tests of a disk that flips bits: whichever bit of the journal flips, every cell has its stored
//! value, or is missing and reported.

use std::collections::BTreeMap;
use std::path::Path;

use hqdl_facts::{CommitUnit, Completion, Fact, Facts, FactsError};
use hqdl_values::cell::{Answer, CellValue};
use hqdl_values::key::{ColumnIdentity, Entity, KeyColumns};
use hqdl_values::value::Value;

const ENTITIES: usize = 60;
/// Names that differ in one bit.
const MODELS: [&str; 2] = ["model 0", "model 1"];
const COLUMNS: [&str; 2] = ["a", "c"];
/// Number of flipped bits, a sample of all; `HQDL_TEST_FLIPS` overrides it.
const FLIPS: usize = 48;

/// Values by entity, column and model.
type Known = BTreeMap<(String, &'static str, &'static str), String>;

fn identity(column: &str) -> ColumnIdentity {
    ColumnIdentity {
        key: vec!["name".to_owned()],
        column: column.to_owned(),
        kind: "text".to_owned(),
        about: String::new(),
        many: false,
        list: "none".to_owned(),
        kinds: Vec::new(),
        requires_evidence: false,
        candidates: Vec::new(),
    }
}

fn entity(n: usize) -> Entity {
    KeyColumns::new(vec!["name".to_owned()]).build_entity(&[Value::from(format!("Hero {n}"))])
}

/// Stores values of some columns for some entities, in requests of five.
fn keep(facts: &Facts, known: &mut Known, which: &[usize], generation: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let run = facts.history().start_run("test", "").unwrap();
    for model in MODELS {
        let id = facts.history().intern_model(model).unwrap();
        for five in which.chunks(5) {
            let mut batch = CommitUnit {
                completion: Completion {
                    run,
                    model: id,
                    prompt_hash: format!("p1:{generation} {five:?}"),
                    content: Some(format!("{five:?} as {model} said it")),
                    asked_at: "2026-11-21T00:00:00Z".to_owned(),
                    cells: 10,
                    ..Completion::default()
                },
                ..CommitUnit::default()
            };
            for n in five {
                let fact = |column: &'static str| {
                    let value = format!("{column} of {n}, {model}, {generation}");
                    known.insert((entity(*n).as_str().to_owned(), column, model), value.clone());
                    Fact {
                        identity_id: facts
                            .history()
                            .intern_column_identity(&identity(column))
                            .unwrap(),
                        model: id,
                        list: None,
                        completion: 0,
                        asked: 0,
                        answer: Answer::ok(CellValue::One(Value::from(value))),
                        logprob: None,
                    }
                };
                batch.facts.push((entity(*n), COLUMNS.map(fact).to_vec()));
            }
            runtime.block_on(facts.commit_unit(batch)).unwrap();
        }
    }
}

/// Creates a journal of values, a third of which were requested twice.
fn made(dir: &Path) -> (Vec<u8>, Known) {
    let mut known = Known::new();
    let facts = Facts::open(dir, "hqdl test").unwrap();
    keep(&facts, &mut known, &(0..ENTITIES).collect::<Vec<_>>(), "as it was");
    keep(&facts, &mut known, &(0..ENTITIES).step_by(3).collect::<Vec<_>>(), "as it is");
    drop(facts);
    (std::fs::read(dir.join("journal.sqlite")).unwrap(), known)
}

/// Returns the values of a journal with these bytes, and whether it is reported as damaged.
fn read(journal: &[u8]) -> Result<(Known, bool), FactsError> {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("journal.sqlite"), journal).unwrap();
    let facts = Facts::open(dir.path(), "hqdl test")?;
    let mut found = Known::new();
    let told = !facts.known_damage().is_empty();
    for model in MODELS {
        let by = facts.history().intern_model(model)?;
        for column in COLUMNS {
            let of = facts.history().intern_column_identity(&identity(column))?;
            for n in 0..ENTITIES {
                let facts = facts.get(&entity(n))?.unwrap_or_default().facts;
                if let Some(fact) = facts.iter().find(|f| f.identity_id == of && f.model == by) {
                    let CellValue::One(value) = &fact.answer.value else { panic!("{fact:?}") };
                    let key = (entity(n).as_str().to_owned(), column, model);
                    found.insert(key, value.to_string());
                }
            }
        }
    }
    Ok((found, told))
}

/// A damaged schema causes at most an error that names the file and the remedy.
#[test]
fn no_flipped_bit_in_the_schema_hides_a_cell_silently() {
    let flips = std::env::var("HQDL_TEST_FLIPS").ok().and_then(|n| n.parse().ok());
    let dir = tempfile::tempdir().unwrap();
    let (journal, known) = made(dir.path());
    // Page 1, and pages that can be a root page of the schema.
    let pages: Vec<usize> = (0..journal.len() / 4096)
        .filter(|page| {
            let text = &journal[page * 4096..(page + 1) * 4096];
            *page == 0 || text.windows(13).any(|w| w == b"CREATE TABLE ")
        })
        .collect();
    let mut chance = fastrand::Rng::with_seed(20);
    for flip in 0..flips.unwrap_or(FLIPS) {
        let page = pages[flip % pages.len()] * 4096;
        let at = std::iter::repeat_with(|| page + chance.usize(0..4096));
        let at = { at }.find(|at| journal[*at] != 0).unwrap();
        let bit = chance.u32(0..8);
        let mut bytes = journal.clone();
        bytes[at] ^= 1 << bit;
        match read(&bytes) {
            Err(error) => {
                let message = format!("{error} {}", error.hint());
                assert!(message.contains("journal.sqlite"), "byte {at}, bit {bit}: {message}");
            }
            Ok((found, _)) => assert_eq!(found, known, "byte {at}, bit {bit}"),
        }
    }
}

#[test]
fn no_flipped_bit_changes_a_cell_silently() {
    let flips = std::env::var("HQDL_TEST_FLIPS").ok().and_then(|n| n.parse().ok());
    let flips = flips.unwrap_or(FLIPS);
    let dir = tempfile::tempdir().unwrap();
    let (journal, known) = made(dir.path());
    assert_eq!(read(&journal).unwrap(), (known.clone(), false));
    let pages = journal.len() / 4096;
    let mut chance = fastrand::Rng::with_seed(18);
    let (mut whole, mut missing, mut refused) = (0, 0, 0);
    for flip in 0..flips {
        let mut bytes = journal.clone();
        // Flip bits page by page, where a page is not empty.
        let at = loop {
            let at = (flip % pages) * 4096 + chance.usize(0..4096);
            if bytes[at] != 0 || chance.u8(0..20) == 0 {
                break at;
            }
        };
        let bit = chance.u32(0..8);
        bytes[at] ^= 1 << bit;
        match read(&bytes) {
            Err(error) => {
                assert!(!error.to_string().is_empty());
                refused += 1;
            }
            Ok((found, told)) => {
                for (cell, value) in &found {
                    assert_eq!(Some(value), known.get(cell), "byte {at}, bit {bit}: {cell:?}");
                }
                let all = found.len() == known.len();
                assert!(
                    all || told,
                    "byte {at}, bit {bit}: {} are gone",
                    known.len() - found.len()
                );
                if all { whole += 1 } else { missing += 1 }
            }
        }
    }
    println!("{flips} bits: {whole} harmless, {missing} told and asked again, {refused} refused");
}
