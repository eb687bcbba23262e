//! A model that answers with the true values. It shows what the queries return if every answer is
//! right.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

use rusqlite::{Connection, OpenFlags};
use serde_json::{Map, Value as Json, json};

use super::benchmark::{Benchmark, BenchmarkTruth};
use super::{SwanError, compare};
use hqdl_database::keys::{KeyRow, Keys};
use hqdl_database::publish::Publication;
use hqdl_database::published_state::PublishedState;
use hqdl_database::versions::{PublishedCell, PublishedValue};
use hqdl_database::{Database, StoreError, current_timestamp};
use hqdl_facts::{CommitUnit, Completion, Fact, Facts, Outcome, RunId};
use hqdl_model::{Model, ModelError, Reply, ReplyFuture, choose_models};
use hqdl_prompt::{Prompt, Question};
use hqdl_spec::checker::Checker;
use hqdl_spec::overrides::Overrides;
use hqdl_spec::{Expansion, Format, Spec};
use hqdl_values::cell::Answer;
use hqdl_values::key::Entity;
use hqdl_values::value::Value;

/// Name of the model in records and reports.
pub const NAME: &str = "the true values";

/// The true values of a database. It answers only questions about the generated columns.
pub struct TrueValues {
    /// Values by column, for each row key ([`build_row_key`]).
    rows: HashMap<String, BTreeMap<&'static str, Json>>,
    tables: Vec<&'static str>,
    other_questions: AtomicU64,
}

/// A key with its answers, one per column.
type AnsweredKey = (KeyRow, Rc<Vec<Answer>>);

impl TrueValues {
    /// Reads the true values from a gold database.
    ///
    /// # Errors
    /// [`StoreError`] if the database lacks a table or column.
    pub fn read(benchmark: &Benchmark, gold: &Path) -> Result<Self, SwanError> {
        let error = |e: rusqlite::Error| StoreError::from_sqlite(gold, &e);
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY;
        let connection = Connection::open_with_flags(gold, flags).map_err(error)?;
        let mut rows = HashMap::new();
        for truth in benchmark.truth {
            read_truth(&connection, truth, &mut rows).map_err(error)?;
        }
        let tables = benchmark.truth.iter().map(|t| t.expansion).collect();
        Ok(Self { rows, tables, other_questions: AtomicU64::new(0) })
    }

    /// Returns the number of questions that were not about the generated columns.
    #[must_use]
    pub fn count_other_questions(&self) -> u64 {
        self.other_questions.load(Ordering::Relaxed)
    }

    /// Publishes the spec's tables in its database, with the values that they have after a run in
    /// which every answer is true.
    ///
    /// # Errors
    /// [`SwanError`] if a source cannot be read, or the tables cannot be written.
    pub fn publish_tables(&self, spec: &Spec) -> Result<(), SwanError> {
        self.publish_answers(spec, None)
    }

    /// Stores the true values as facts, and publishes the spec's tables from them. Queries then read
    /// the tables, as after a run in which every answer is true.
    ///
    /// # Errors
    /// [`SwanError`] if a source cannot be read, or the facts or the tables cannot be written.
    pub fn store_and_publish(&self, spec: &Spec, facts: &Facts) -> Result<(), SwanError> {
        let command = "store the true values";
        let run = facts.history().start_run(command, &spec.full_path())?;
        self.publish_answers(spec, Some((facts, run)))?;
        Ok(facts.history().finish_run(run, Outcome::Complete)?)
    }

    fn publish_answers(
        &self,
        spec: &Spec,
        store: Option<(&Facts, RunId)>,
    ) -> Result<(), SwanError> {
        let database = &Database::open_writable(spec.target())?;
        let publication = Publication::begin(database, spec)?;
        for (n, expansion) in spec.expansions.iter().enumerate() {
            let rows = self.answer_all_keys(database, expansion)?;
            let mut position = Default::default();
            if let Some((facts, run)) = store {
                self.store_facts(spec, expansion, &rows, (facts, run))?;
                position = facts.history().load_journal_position()?;
            }
            let mut tables = publication.open_tables(expansion, false)?;
            for (key, answers) in &rows {
                tables.write_row(&key.row, &to_published_cells(key, answers))?;
            }
            let state = PublishedState::current(spec, n, NAME, &Overrides::default(), position);
            publication
                .finish_expansion(spec, &tables.finish(None), &state, &mut |_| Vec::new())?;
        }
        publication.create_views(spec)?;
        Ok(publication.commit()?)
    }

    /// Returns the keys of an expansion, each with its answers, one per column. All spellings of an
    /// entity have the answers to the first one.
    fn answer_all_keys(
        &self,
        database: &Database,
        expansion: &Expansion,
    ) -> Result<Vec<AnsweredKey>, StoreError> {
        let checkers: Vec<Checker> = expansion.columns.iter().map(Checker::new).collect();
        let mut first_answers: HashMap<Entity, Rc<Vec<Answer>>> = HashMap::new();
        let mut rows = Vec::new();
        let mut add_key = |key: &KeyRow| {
            let answers = || Rc::new(self.answer_key(expansion, &checkers, key));
            let answers = if key.has_other_spellings {
                Rc::clone(first_answers.entry(key.entity.clone()).or_insert_with(answers))
            } else {
                answers()
            };
            rows.push((key.clone(), answers));
            Ok::<(), rusqlite::Error>(())
        };
        Keys::collect(database, expansion, None)?
            .for_each(&mut add_key)
            .map_err(|e| database.to_store_error(&e))?;
        Ok(rows)
    }

    /// Stores the answers to an expansion's keys in one transaction.
    fn store_facts(
        &self,
        spec: &Spec,
        expansion: &Expansion,
        rows: &[AnsweredKey],
        (facts, run): (&Facts, RunId),
    ) -> Result<(), SwanError> {
        let history = facts.history();
        let requirements =
            choose_models(spec, Some(self), expansion).build_requirements(history, expansion)?;
        let stored = rows.iter().filter(|(key, _)| key.is_first_spelling).map(|(key, answers)| {
            let columns = key.entity_requested_columns.iter().zip(&**answers).enumerate();
            let requested = columns.filter(|(_, (is_requested, _))| **is_requested);
            let fact = |(column, (_, answer)): (usize, (&bool, &Answer))| {
                requirements.column_requirements(column).build_fact(column, answer.clone())
            };
            (key.fact_entity().clone(), requested.filter_map(fact).collect::<Vec<Fact>>())
        });
        let stored: Vec<(Entity, Vec<Fact>)> = stored.collect();
        let completion = Completion {
            run,
            model: history.intern_model(NAME)?,
            asked_at: current_timestamp(),
            cells: stored.iter().map(|(_, cells)| cells.len() as u64).sum(),
            ..Completion::default()
        };
        let unit = CommitUnit { completion, facts: stored, ..CommitUnit::default() };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|e| SwanError::file(facts.dir(), e))?;
        Ok(runtime.block_on(facts.commit_unit(unit))?)
    }

    /// Returns the stored answers to a key, one per column.
    fn answer_key(&self, expansion: &Expansion, checkers: &[Checker], key: &KeyRow) -> Vec<Answer> {
        let names = expansion.choose_prompt_key_names(&key.row.key);
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let shown: Vec<Json> =
            expansion.build_shown_row(&key.row).key.iter().map(Value::to_json).collect();
        let known = self.rows.get(&build_row_key(&expansion.name, &names, &shown));
        let value = |name: &String| known.and_then(|cells| cells.get(name.as_str()));
        let columns = expansion.columns.iter().zip(checkers);
        columns
            .map(|(column, checker)| {
                let answer = checker.check_json(value(&column.name).unwrap_or(&Json::Null));
                checker.complete_from_key(answer, |part| match key.row.key.get(part)? {
                    Value::Text(text) => Some(text),
                    _ => None,
                })
            })
            .collect()
    }

    fn answer_prompt(&self, prompt: &Prompt) -> Result<Reply, ModelError> {
        let question = Question::parse(&prompt.system, &prompt.user)
            .ok_or_else(|| ModelError::NoAnswer("cannot parse the prompt".to_owned()))?;
        if !self.tables.contains(&question.table.as_str()) {
            self.other_questions.fetch_add(1, Ordering::Relaxed);
            let asked: Vec<&str> = question.columns.iter().map(|c| c.about.trim()).collect();
            return Err(ModelError::NoAnswer(format!(
                "the true values have no column that answers \"{}\"",
                asked.join("\", \"")
            )));
        }
        let names: Vec<&str> = question.key.iter().map(String::as_str).collect();
        let rows: Vec<Json> = question
            .rows
            .iter()
            .filter_map(|row| {
                let known = self.rows.get(&build_row_key(&question.table, &names, &row.key))?;
                let value = |name: &String| known.get(name.as_str()).cloned().unwrap_or_default();
                let cells: Map<String, Json> =
                    question.columns.iter().map(|c| (c.name.clone(), value(&c.name))).collect();
                Some(json!({ "row": row.number, "key": row.key, "cells": cells }))
            })
            .collect();
        let content = json!({ "rows": rows }).to_string();
        Ok(Reply { content, partial: true, ..Reply::default() })
    }
}

/// Returns the published form of a key's answers.
fn to_published_cells<'a>(key: &KeyRow, answers: &'a [Answer]) -> Vec<PublishedCell<'a>> {
    let cell = |(is_requested, answer): (&bool, &'a Answer)| {
        if !is_requested {
            return PublishedCell::NotAsked;
        }
        PublishedCell::Value(PublishedValue {
            state: answer.state.name(),
            value: &answer.value,
            completion: None,
            raw: answer.raw.as_deref(),
            repair: answer.repair.as_deref(),
            note: None,
        })
    };
    key.requested_columns.iter().zip(answers).map(cell).collect()
}

fn read_truth(
    connection: &Connection,
    truth: &BenchmarkTruth,
    into: &mut HashMap<String, BTreeMap<&'static str, Json>>,
) -> rusqlite::Result<()> {
    let mut statement = connection.prepare(truth.select)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let value = |at: usize| row.get_ref(at).map(compare::to_json);
        let key = (0..truth.key.len()).map(value).collect::<rusqlite::Result<Vec<Json>>>()?;
        let known = into.entry(build_row_key(truth.expansion, truth.key, &key)).or_default();
        for (at, name) in truth.columns.iter().enumerate() {
            let value = value(truth.key.len() + at)?;
            match truth.many {
                None => {
                    known.entry(name).or_insert(value);
                }
                Some(many) => {
                    let list = known.entry(many).or_insert_with(|| json!([]));
                    if let (Some(list), false) = (list.as_array_mut(), value.is_null()) {
                        list.push(value);
                    }
                }
            }
        }
    }
    Ok(())
}

/// Returns the lookup key of a row. Key values are in canonical form, as in the facts, so that
/// their type does not matter.
fn build_row_key(table: &str, names: &[&str], key: &[Json]) -> String {
    let part = |k: &Json| Value::from_json(k).canonical_text().map(std::borrow::Cow::into_owned);
    json!([table, names, key.iter().map(part).collect::<Vec<_>>()]).to_string()
}

impl Model for TrueValues {
    fn name(&self) -> &str {
        NAME
    }

    fn send_prompt<'a>(&'a self, prompt: &'a Prompt) -> ReplyFuture<'a> {
        Box::pin(std::future::ready(self.answer_prompt(prompt)))
    }

    fn is_deterministic(&self) -> bool {
        true
    }

    fn answer_format(&self) -> Format {
        Format::Json
    }
}
