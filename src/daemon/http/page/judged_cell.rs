//! Information for a person who judges a cell: the rows of its entity, the origin of its value, its
//! past values, and the passages.

use std::collections::HashSet;
use std::sync::Arc;

use maud::{Markup, html};
use serde_json::Value as Json;
use tokio::sync::watch;

use super::super::api::read_provenance;
use super::super::facts::find_fact_entities;
use super::super::query::{READ_TIMEOUT, run_blocking};
use super::super::reply::HttpError;
use super::cell::render_evidence;
use super::{HttpState, format_value, shorten_time, truncate_text};
use crate::audit::sheet::format_cell;
use crate::cell::CellValue;
use crate::daemon::job::guard_failure;
use crate::database::entity_rows::MatchingRows;
use crate::database::provenance::CellProvenance;
use crate::facts::{Completion, Fact, Facts};
use crate::failure::Failure;
use crate::format::format_count;
use crate::key::Entity;
use crate::overrides::{Override, Overrides};
use crate::query::connection::guard::GuardedConnection;
use crate::spec::{Expansion, Spec};
use crate::value::Value;

/// Maximum number of past answers to show.
const MAX_PAST_ANSWERS: usize = 20;
/// Maximum number of an entity's rows to show from each source.
const MAX_ROWS: usize = 3;
/// Number of characters of a text that are shown before a person opens it.
const SHORT_CHARS: usize = 240;

/// Address of a cell.
pub(super) struct CellAddress {
    /// Name of the expansion.
    pub(super) table: String,
    /// Name of the column.
    pub(super) column: String,
    /// Key of the row.
    pub(super) key: Vec<Value>,
}

/// Information that a person needs to judge a cell.
pub(super) struct JudgedCell {
    /// Rows of the entity in each source, or the reason why they could not be read.
    rows: Result<Vec<MatchingRows>, String>,
    /// Published cells: one for each spelling of the key; none if the cell is no longer published.
    sources: Vec<CellSources>,
}

/// A published cell with its override and its answers.
struct CellSources {
    cell: CellProvenance,
    /// The override in force.
    override_now: Option<Override>,
    /// Answers of all models and runs, latest first.
    answers: Vec<PastAnswer>,
}

/// An answer that a model gave for a cell.
struct PastAnswer {
    asked_at: String,
    model: String,
    /// The value, or the state and the model's text.
    text: String,
}

impl JudgedCell {
    /// Returns the published value, or the state of a cell without one, if it differs from an
    /// answer. `answer` is formatted by [`format_cell`].
    pub(super) fn find_other_value(&self, answer: &str) -> Option<String> {
        let cell = &self.sources.first()?.cell;
        let value = cell.to_json()["value"].clone();
        let shown = format_cell(&CellValue::from_json(&value));
        let shown = if shown.is_empty() { cell.state.clone() } else { shown };
        (shown != answer && !(answer.is_empty() && value.is_null())).then_some(shown)
    }
}

/// Reads the information that a person needs to judge a cell.
pub(super) async fn read_judged_cell(
    state: &HttpState,
    spec: &str,
    address: CellAddress,
) -> Result<JudgedCell, HttpError> {
    let mut of_cell = vec![
        ("spec".to_owned(), spec.to_owned()),
        ("table".to_owned(), address.table.clone()),
        ("column".to_owned(), address.column.clone()),
    ];
    let key = address.key.iter().map(|part| format_value(&part.to_json()));
    of_cell.extend(key.map(|part| ("key".to_owned(), part)));
    let cells = read_provenance(state, of_cell).await.unwrap_or_default();
    let (_, active_spec) = state.find_active_spec(Some(spec))?;
    let facts = Arc::clone(&state.context.facts);
    let (client_guard, interrupt) = state.context.clients.begin_work();
    let permit = state.acquire_read_permit().await?;
    run_blocking(permit, client_guard, move || {
        let spec = &active_spec.spec;
        let named = |e: &&Expansion| e.name == address.table;
        let Some(expansion) = spec.expansions.iter().find(named) else {
            return Ok(JudgedCell { rows: Ok(Vec::new()), sources: Vec::new() });
        };
        Ok(read_cell_of(spec, expansion, &facts, &address.key, cells, &interrupt)?)
    })
    .await
}

fn read_cell_of(
    spec: &Spec,
    expansion: &Expansion,
    facts: &Facts,
    key: &[Value],
    mut cells: Vec<CellProvenance>,
    interrupt: &watch::Receiver<bool>,
) -> Result<JudgedCell, Failure> {
    let entity = expansion.build_entity(key);
    // The provenance of a key includes that of keys in another case, which are other entities.
    cells.retain(|cell| expansion.build_entity(&parse_key(cell)) == entity);
    let mut spellings: Vec<Vec<Value>> = vec![key.to_vec()];
    for cell in &cells {
        let key = parse_key(cell);
        if !spellings.contains(&key) {
            spellings.push(key);
        }
    }
    let rows = read_rows(spec, expansion, &spellings, interrupt.clone());
    let entities = HashSet::from([entity.clone()]);
    let in_context = find_fact_entities(spec, expansion, entities, interrupt.clone());
    let in_context = in_context.ok().and_then(|mut all| all.remove(&entity));
    let fact_entity = in_context.as_ref().unwrap_or(&entity);
    let with_history = |cell| add_history(spec, facts, cell, &entity, fact_entity);
    let sources = cells.into_iter().map(with_history).collect::<Result<_, _>>()?;
    let rows = rows.map_err(|failure| failure.message());
    Ok(JudgedCell { rows, sources })
}

fn parse_key(cell: &CellProvenance) -> Vec<Value> {
    let key: Vec<Json> = serde_json::from_str(&cell.key).unwrap_or_default();
    key.iter().map(Value::from_json).collect()
}

/// Reads the rows of an entity from the sources, within the time limit of reads.
fn read_rows(
    spec: &Spec,
    expansion: &Expansion,
    keys: &[Vec<Value>],
    interrupt: watch::Receiver<bool>,
) -> Result<Vec<MatchingRows>, Failure> {
    let guard = GuardedConnection::open_for_sql(&spec.database, Some(READ_TIMEOUT), interrupt)?;
    let found = guard.database().find_entity_rows(expansion, keys, MAX_ROWS, READ_TIMEOUT);
    found.map_err(|e| guard_failure(&guard).unwrap_or_else(|| e.into()))
}

/// Adds the override and the answers of a cell. `fact_entity` is the entity under which the answers
/// are stored.
fn add_history(
    spec: &Spec,
    facts: &Facts,
    cell: CellProvenance,
    entity: &Entity,
    fact_entity: &Entity,
) -> Result<CellSources, Failure> {
    let found = spec.expansions.iter().position(|e| e.name == cell.expansion);
    let found = found.and_then(|n| Some((n, spec.expansions[n].find_column(&cell.column)?)));
    let Some((n, at)) = found else {
        return Ok(CellSources { cell, override_now: None, answers: Vec::new() });
    };
    let column = &spec.expansions[n].columns[at];
    let overrides = Overrides::read(spec).unwrap_or_default();
    let override_now = overrides.get(n, entity, at).cloned();
    let history = facts.history();
    let mut identities = history.list_column_identity_ids(&column.name)?;
    for identity in &column.other_identities {
        identities.push(history.intern_column_identity(identity)?);
    }
    let mut past = history.load_facts(fact_entity)?;
    past.retain(|fact| identities.contains(&fact.identity_id));
    let ids: Vec<i64> = past.iter().map(|fact| fact.completion).collect();
    let origins = history.load_completions(&ids)?.into_iter();
    let to_answer = |(fact, origin): (Fact, Option<(Completion, String)>)| {
        let (asked_at, model) = origin.map_or_else(Default::default, |(c, m)| (c.asked_at, m));
        let text = match fact.answer.raw {
            _ if fact.answer.state.has_value() => format_cell(&fact.answer.value),
            Some(raw) => format!("{}: {raw}", fact.answer.state.name()),
            None => fact.answer.state.name().to_owned(),
        };
        PastAnswer { asked_at, model, text }
    };
    let answers = past.into_iter().zip(origins).rev().take(MAX_PAST_ANSWERS).map(to_answer);
    Ok(CellSources { cell, override_now, answers: answers.collect() })
}

/// Renders the rows of the cell's entity, without the key.
pub(super) fn render_rows(expansion: &Expansion, judged: &JudgedCell) -> Markup {
    let rows = match &judged.rows {
        Ok(rows) => rows,
        Err(message) => return html! { p.note { "The row could not be read: " (message) } },
    };
    if rows.iter().all(|of_source| of_source.count == 0) {
        return html! { p.note.wait { "No source has a row with this key any more." } };
    }
    let named =
        |names: &[String], column: &str| names.iter().any(|n| n.eq_ignore_ascii_case(column));
    let is_shown = |column: &&String| {
        !named(expansion.key.names(), column) || named(&expansion.context, column)
    };
    html! {
        @for of_source in rows.iter().filter(|of_source| of_source.count > 0) {
            @let from = of_source.table.as_deref().unwrap_or("the source");
            @if of_source.columns.iter().any(|column| is_shown(&column)) {
                @for (n, row) in of_source.rows.iter().enumerate() {
                    @let label = if of_source.count == 1 { format!("Row of {from}") } else { format!("Row {} of {} in {from}", n + 1, of_source.count) };
                    section.row-card aria-label=(label) tabindex="0" {
                        p.quiet.small { (label) }
                        dl.facts.key { @for (column, value) in of_source.columns.iter().zip(row).filter(|(column, _)| is_shown(column)) {
                            div { dt { (column) @if named(&expansion.context, column) { " " span.badge { "shown to the model" } } }
                                dd { (render_value(value)) } }
                        } }
                    }
                }
            }
            @if of_source.count > of_source.rows.len() as u64 {
                p.quiet.small { "These are the first " (of_source.rows.len()) " of " (format_count(of_source.count, "row")) " with this key in " (from) "." }
            }
        }
    }
}

/// Renders a value. A person opens a long text to read the rest.
fn render_value(value: &Value) -> Markup {
    let Some(text) = value.to_text() else { return html! { span.quiet { "NULL" } } };
    if text.chars().count() <= SHORT_CHARS {
        return html! { (text) };
    }
    let rest: String = text.chars().skip(SHORT_CHARS).collect();
    let start: String = text.chars().take(SHORT_CHARS).collect();
    html! { (start) details { summary { "more" } (rest) } }
}

/// Renders the origins of the cell's value: the model, its other answers, its past values, and the
/// passages.
pub(super) fn render_sources(judged: &JudgedCell) -> Markup {
    html! { @for sources in &judged.sources { (render_origin(sources)) } }
}

fn render_origin(sources: &CellSources) -> Markup {
    let CellSources { cell, override_now, answers } = sources;
    let is_overridden = cell.state == "overridden";
    let shown = format_value(&cell.to_json()["value"]);
    let lines = [
        ("published", is_overridden.then_some(shown)),
        ("model", cell.model.clone()),
        ("text", cell.raw.clone()),
        ("answers", cell.repair.clone()),
        ("note", cell.note.clone()),
        ("asked", cell.asked_at.as_deref().map(|time| format!("{} UTC", shorten_time(time)))),
    ];
    let past = |time: &str, text: &str, origin: &str| {
        html! { tr { th scope="row" { (shorten_time(time)) } td { (truncate_text(text, 200)) " " span.quiet { (truncate_text(origin, 200)) } } } }
    };
    html! {
        table.why { @for (name, value) in lines {
            @if let Some(value) = value { tr { th scope="row" { (name) } td { (value) } } }
        } }
        @if override_now.is_some() || answers.len() > 1 {
            h3 { "Past values" }
            table.why {
                @if let Some(set) = override_now { (past("override", &format_cell(&set.value), set.note.as_deref().unwrap_or_default())) }
                @for answer in answers { (past(&answer.asked_at, &answer.text, &answer.model)) }
            }
        }
        (render_evidence(cell))
    }
}
