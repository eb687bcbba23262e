//! Asks one question about each of some values without a query. It uses the same facts as
//! `LLMMap('question', value)`.

use std::time::Instant;

use rusqlite::types::ValueRef;

use super::ask::{Asker, Asking};
use super::calls::Calls;
use super::kinds;
use super::reading::{column, filled};
use super::smoothie::Meta;
use super::targets::{Counts, Demand, Target, spell};
use super::{QueryError, Request};
use hqdl_facts::{FactsError, QuestionOrigin};
use hqdl_model::generate::Event;
use hqdl_spec::Type;
use hqdl_spec::images::Media;
use hqdl_values::Row;
use hqdl_values::cell::{Answer, CellValue, State};
use hqdl_values::value::Value;

/// Number of entities looked up at once.
const TOGETHER: usize = 1000;

/// A question about a value, and the type of its answer.
#[derive(Debug, Clone, Copy)]
pub struct ValueQuestion<'q> {
    /// Text of the question; `{}` refers to the value.
    pub text: &'q str,
    /// Type of an answer.
    pub kind: Type,
    /// Whether an answer is a list of such values.
    pub list: bool,
    /// Values to choose the answer from.
    pub options: Option<&'q [Value]>,
    /// What the values are, such as `city.name`, if answers are kept for this kind alone.
    pub value_kind: Option<&'q str>,
}

/// Answers about some values, with their meta.
#[derive(Debug, Clone, Default)]
pub struct Mapped {
    /// One answer per value, in their order; `None` for NULL.
    pub answers: Vec<Option<Answer>>,
    /// Description of how the answers were computed.
    pub meta: Meta,
}

/// Answers a question about each of some values. Known answers are looked up, and each remaining
/// value is asked about once, even if it occurs several times or in different spellings. The
/// request's `sql` is only the name of the run in the journal.
///
/// # Errors
/// [`QueryError::NoModel`] if a value must be asked for and there is no model; otherwise the errors
/// of a query. Answers received before the error are kept.
pub fn map(
    request: &Request<'_>,
    question: &ValueQuestion<'_>,
    values: &[Value],
) -> Result<Mapped, QueryError> {
    let began = Instant::now();
    let LookedUp { mut targets, at, list, entities, mut answers } =
        look(request, question, values)?;
    let count = answers.len();
    let missing: Vec<usize> = (0..count).filter(|e| answers[*e].is_none()).collect();

    let mut meta = Meta {
        values_reused: (count - missing.len()) as u64,
        price_notes: request.spec.price_notes(),
        ..Meta::default()
    };
    if !missing.is_empty() {
        let asking = Asking::of(request);
        let ended = asking.asker().and_then(|asker| {
            let meaning = targets[at].wanted.meaning(0);
            let none = QuestionOrigin { table: String::new(), column: String::new() };
            if let Some(meaning) = meaning {
                request.facts.history().note_question(meaning, &none, list.as_deref())?;
            }
            ask(request, asker, &mut targets, at, &missing, &mut meta)
        });
        let usage = asking.end(ended.is_ok())?;
        ended?;
        meta.set_usage(&usage);
        known(request, &targets[at], &missing, &mut answers)?;
    }
    // The request for this value failed.
    let failed =
        || Answer { state: State::Error, value: CellValue::Nothing, raw: None, repair: None };
    let answers: Vec<Answer> = answers.into_iter().map(|a| a.unwrap_or_else(failed)).collect();
    meta.values_missing = answers.iter().filter(|a| !a.state.shows()).count() as u64;
    meta.seconds = began.elapsed().as_secs_f64();
    let answers = entities.into_iter().map(|e| e.map(|e| answers[e].clone())).collect();
    Ok(Mapped { answers, meta })
}

/// Returns the known answers of [`map`] without sending a request. The answer is `None` for NULL
/// and for a value that would have to be asked for.
///
/// # Errors
/// Those of [`map`] that occur without a request.
pub fn map_known(
    request: &Request<'_>,
    question: &ValueQuestion<'_>,
    values: &[Value],
) -> Result<Vec<Option<Answer>>, QueryError> {
    let LookedUp { entities, answers, .. } = look(request, question, values)?;
    Ok(entities.into_iter().map(|e| answers[e?].clone()).collect())
}

/// Known answers to a question.
struct LookedUp {
    targets: Vec<Target>,
    at: usize,
    /// Values to choose the answer from.
    list: Option<Vec<String>>,
    /// Entity of each value.
    entities: Vec<Option<usize>>,
    /// Known answer of each entity.
    answers: Vec<Option<Answer>>,
}

fn look(
    request: &Request<'_>,
    question: &ValueQuestion<'_>,
    values: &[Value],
) -> Result<LookedUp, QueryError> {
    let names = ["value".to_owned()];
    let mut calls = Calls::default();
    let options = question.options.map(<[Value]>::to_vec);
    let text = filled(question.text, &names);
    let mut asked = column(&text, question.kind, options, question.list, &names);
    if let Some(kind) = question.value_kind {
        kinds::tell_kind(&mut asked, kind);
    }
    let at = calls.values(None, names.to_vec(), asked.meaning.kinds.clone());
    let list = asked.values.as_ref().map(|list| list.values.clone());
    calls.column(at, asked);
    let mut targets = calls.targets(request)?;
    let media = values.iter().find_map(|value| match value {
        Value::Text(text) => Media::of_text(text.as_bytes()),
        _ => None,
    });
    if let Some(media) = media {
        return Err(QueryError::sql(media.refusal().to_owned(), None, "", ""));
    }
    let entities = entities(&mut targets[at], values);
    let count = entities.iter().flatten().max().map_or(0, |last| last + 1);
    let mut answers: Vec<Option<Answer>> = vec![None; count];
    let all: Vec<usize> = (0..count).collect();
    known(request, &targets[at], &all, &mut answers)?;
    Ok(LookedUp { targets, at, list, entities, answers })
}

/// Returns the entity of each value; `None` for NULL and NaN.
fn entities(target: &mut Target, values: &[Value]) -> Vec<Option<usize>> {
    let mut spelling = Vec::new();
    let entity = |value: &Value| {
        let read = match value {
            Value::Null => return None,
            Value::Real(real) if real.is_nan() => return None,
            Value::Integer(integer) => ValueRef::Integer(*integer),
            Value::Real(real) => ValueRef::Real(*real),
            Value::Text(text) => ValueRef::Text(text.as_bytes()),
        };
        spelling.clear();
        spell(&[read], &mut spelling);
        let row = || Row { key: vec![value.clone()], context: Vec::new() };
        Some(target.entity(&spelling, row))
    };
    values.iter().map(entity).collect()
}

/// Looks up the known answers of some entities.
fn known(
    request: &Request<'_>,
    target: &Target,
    entities: &[usize],
    answers: &mut [Option<Answer>],
) -> Result<(), FactsError> {
    for some in entities.chunks(TOGETHER) {
        let about: Vec<_> = some.iter().map(|e| target.about(*e)).collect();
        for (entity, record) in some.iter().zip(request.facts.get_many(&about)?) {
            if let hqdl_facts::Found::Known(fact) = target.wanted.find(record.as_ref(), 0) {
                answers[*entity] = Some(fact.into_owned().answer);
            }
        }
    }
    Ok(())
}

/// Asks the model about some entities.
fn ask(
    request: &Request<'_>,
    asker: &Asker<'_>,
    targets: &mut [Target],
    at: usize,
    missing: &[usize],
    meta: &mut Meta,
) -> Result<(), QueryError> {
    let expansion = targets[at].expansion.name.clone();
    (request.listener)(&Event::Begin { expansion, cells: missing.len() as u64 });
    let demand = |entity: &usize| Demand { target: at, entity: *entity, column: 0 };
    let demands: Vec<Demand> = missing.iter().map(demand).collect();
    let mut counts = Counts::default();
    asker.ask(targets, &demands, &mut counts)?;
    meta.values_asked = counts.asked;
    meta.values_reused += counts.reused;
    Ok(())
}
