//! Asks one question about each of several values, without a query. The answers are shared with
//! `LLMMap('question', value)` in queries.

use std::time::Instant;

use rusqlite::types::ValueRef;

use crate::query::ask::{LazyRun, QueryRun};
use crate::query::cells::canonical_bytes::write_canonical_bytes;
use crate::query::cells::targets::{Counts, Demand, TargetExpansion};
use crate::query::request::Request;
use crate::query::request::error::QueryError;
use crate::query::result::query_result::Meta;
use crate::query::route::answer_parsing::{build_ad_hoc_column, fill_slots};
use crate::query::route::calls::Calls;
use crate::query::route::kinds;
use hqdl_facts::{FactsError, QuestionOrigin};
use hqdl_spec::Type;
use hqdl_spec::media::{explain_undeclared, find_data_url_kind};
use hqdl_values::cell::{Answer, CellValue, State};
use hqdl_values::key::Entity;
use hqdl_values::value::Value;

/// Number of entities looked up at once.
const LOOKUP_CHUNK: usize = 1000;

/// A question about a value, and the type of its answer.
#[derive(Debug, Clone, Copy)]
pub struct ValueQuestion<'q> {
    /// Text of the question; `{}` refers to the value.
    pub text: &'q str,
    /// Type of an answer.
    pub data_type: Type,
    /// Whether an answer is a list of values of this type.
    pub is_list: bool,
    /// Values to choose the answer from.
    pub options: Option<&'q [Value]>,
    /// Kind of the values, such as `city.name`; `None` to store answers without a kind.
    pub value_kind: Option<&'q str>,
}

/// Answers to a question about a list of values, with metadata.
#[derive(Debug, Clone, Default)]
pub struct MappedAnswers {
    /// One answer per value, in the order of the values; `None` for NULL and NaN.
    pub answers: Vec<Option<Answer>>,
    /// Description of how the answers were computed.
    pub meta: Meta,
}

/// Answers a question about each value. Looks up the known answers and asks the model about the
/// remaining values. A value that occurs several times or in different spellings is asked about
/// only once. The request's `sql` only names the run in the journal.
///
/// # Errors
/// Returns [`QueryError::NoModel`] if an answer is missing and there is no model, or another
/// [`QueryError`] if the run fails. Answers received before the error are kept.
pub fn map_values(
    request: &Request<'_>,
    question: &ValueQuestion<'_>,
    values: &[Value],
) -> Result<MappedAnswers, QueryError> {
    let began = Instant::now();
    let KnownAnswers { mut targets, at, options, entities, mut answers } =
        look_up_known_answers(request, question, values)?;
    let count = answers.len();
    let missing: Vec<usize> = (0..count).filter(|e| answers[*e].is_none()).collect();

    let mut meta = Meta {
        values_reused: (count - missing.len()) as u64,
        price_notes: request.spec.price_notes(),
        ..Meta::default()
    };
    if !missing.is_empty() {
        let lazy_run = LazyRun::new(request);
        let result = lazy_run.get_or_start_run().and_then(|asker| {
            let identity = targets[at].requirements.identity_id(0);
            let no_origin = QuestionOrigin { table: String::new(), column: String::new() };
            if let Some(identity) = identity {
                request.facts.history().record_question(
                    identity,
                    &no_origin,
                    options.as_deref(),
                )?;
            }
            ask_about_entities(asker, &mut targets, at, &missing, &mut meta)
        });
        let usage = lazy_run.finish_run(result.is_ok())?;
        result?;
        meta.set_usage(&usage);
        load_known_answers(request, &targets[at], &missing, &mut answers)?;
    }
    // Answer for a value whose request failed.
    let failed_answer =
        || Answer { state: State::Error, value: CellValue::Nothing, raw: None, repair: None };
    let answers: Vec<Answer> =
        answers.into_iter().map(|a| a.unwrap_or_else(failed_answer)).collect();
    meta.values_missing = answers.iter().filter(|a| !a.state.has_value()).count() as u64;
    meta.seconds = began.elapsed().as_secs_f64();
    let answers = entities.into_iter().map(|e| e.map(|e| answers[e].clone())).collect();
    Ok(MappedAnswers { answers, meta })
}

/// Returns the known answers of [`map_values`] without sending a request. An answer is `None` if
/// the value is NULL or NaN, or if a request would be necessary.
///
/// # Errors
/// Returns [`QueryError`] if the question or a value is invalid, or if the facts cannot be read.
pub fn map_known_values(
    request: &Request<'_>,
    question: &ValueQuestion<'_>,
    values: &[Value],
) -> Result<Vec<Option<Answer>>, QueryError> {
    let KnownAnswers { entities, answers, .. } = look_up_known_answers(request, question, values)?;
    Ok(entities.into_iter().map(|e| answers[e?].clone()).collect())
}

struct KnownAnswers {
    targets: Vec<TargetExpansion>,
    at: usize,
    /// Values to choose the answer from.
    options: Option<Vec<String>>,
    /// Entity of each value; `None` for NULL and NaN.
    entities: Vec<Option<usize>>,
    /// Known answer about each entity, if any.
    answers: Vec<Option<Answer>>,
}

fn look_up_known_answers(
    request: &Request<'_>,
    question: &ValueQuestion<'_>,
    values: &[Value],
) -> Result<KnownAnswers, QueryError> {
    let names = ["value".to_owned()];
    let mut calls = Calls::default();
    let option_values = question.options.map(<[Value]>::to_vec);
    let text = fill_slots(question.text.trim(), &names);
    let mut column_spec =
        build_ad_hoc_column(&text, question.data_type, option_values, question.is_list, &names);
    if let Some(kind) = question.value_kind {
        kinds::set_kind(&mut column_spec, kind);
    }
    let at =
        calls.find_or_add_value_target(None, names.to_vec(), column_spec.identity.kinds.clone());
    let options = column_spec.values.as_ref().map(|list| list.values.clone());
    calls.find_or_add_column(at, column_spec);
    let mut targets = calls.build_targets(request)?;
    let kind = values.iter().find_map(|value| match value {
        Value::Text(text) => find_data_url_kind(text.as_bytes()),
        _ => None,
    });
    if let Some(kind) = kind {
        return Err(QueryError::in_sql(explain_undeclared(kind), None, "", ""));
    }
    let entities = intern_value_entities(&mut targets[at], values);
    let count = entities.iter().flatten().max().map_or(0, |last| last + 1);
    let mut answers: Vec<Option<Answer>> = vec![None; count];
    let all: Vec<usize> = (0..count).collect();
    load_known_answers(request, &targets[at], &all, &mut answers)?;
    Ok(KnownAnswers { targets, at, options, entities, answers })
}

/// Returns the entity of each value, or `None` for NULL and NaN.
fn intern_value_entities(target: &mut TargetExpansion, values: &[Value]) -> Vec<Option<usize>> {
    let mut canonical_bytes = Vec::new();
    let entity = |value: &Value| {
        let read = match value {
            Value::Null => return None,
            Value::Real(real) if real.is_nan() => return None,
            Value::Integer(integer) => ValueRef::Integer(*integer),
            Value::Real(real) => ValueRef::Real(*real),
            Value::Text(text) => ValueRef::Text(text.as_bytes()),
        };
        canonical_bytes.clear();
        write_canonical_bytes(&[read], &mut canonical_bytes);
        target.intern_values(&canonical_bytes)
    };
    values.iter().map(entity).collect()
}

/// Looks up the known answers about `entities` and writes them to `answers`.
fn load_known_answers(
    request: &Request<'_>,
    target: &TargetExpansion,
    entities: &[usize],
    answers: &mut [Option<Answer>],
) -> Result<(), FactsError> {
    for chunk in entities.chunks(LOOKUP_CHUNK) {
        let chunk_entities: Vec<Entity> = chunk.iter().map(|e| target.entity_at(*e)).collect();
        let found = request.facts.get_records(&chunk_entities.iter().collect::<Vec<_>>())?;
        for (entity, record) in chunk.iter().zip(found) {
            if let hqdl_facts::CellLookup::Known(fact) =
                target.requirements.look_up_cell(record.as_ref(), 0)
            {
                answers[*entity] = Some(fact.into_owned().answer);
            }
        }
    }
    Ok(())
}

/// Asks the model about the `missing` entities.
fn ask_about_entities(
    query_run: &QueryRun<'_>,
    targets: &mut [TargetExpansion],
    at: usize,
    missing: &[usize],
    meta: &mut Meta,
) -> Result<(), QueryError> {
    let demand = |entity: &usize| Demand::new(at, *entity, 0);
    let demands: Vec<Demand> = missing.iter().map(demand).collect();
    let mut counts = Counts::default();
    query_run.send_demands(targets, demands, &mut counts)?;
    meta.values_asked = counts.asked;
    meta.values_reused += counts.reused;
    Ok(())
}
