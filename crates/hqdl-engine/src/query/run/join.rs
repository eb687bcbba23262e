//! Joins whose matches the model decides: finds the partners of each left value among the right
//! values. Each left value is sent with the whole list, in as many requests as necessary. If the
//! query sets `narrow=N`, the model sees only the N most similar values, and a note reports how
//! many values the list had.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use rusqlite::types::Value as Sql;
use serde_json::Value as Json;

use crate::query::ask::QueryRun;
use crate::query::cells::targets::{Cell, Counts, Demand, TargetExpansion};
use crate::query::functions::call_runtime::{JoinLookup, JoinPairs, SharedRuntime, lock_runtime};
use crate::query::request::Request;
use crate::query::request::error::QueryError;
use crate::query::route::calls::JoinCall;
use hqdl_spec::{Column, Expansion, Task, Type, ValueList};
use hqdl_values::Row;
use hqdl_values::key::{ColumnIdentity, ListHash};
use hqdl_values::value::Value;

/// Lists with at most this many values are never split, regardless of their size in bytes.
const MAX_UNSPLIT: usize = 200;
/// Maximum number of values in a request for a longer list, and maximum size of these values in
/// bytes. Endpoints reject larger response schemas.
const MAX_LIST: (usize, usize) = (999, 14_999);

/// Asks about all pairs of a join that a pass demanded. Returns the number of values asked for.
///
/// # Errors
/// Returns [`QueryError`] if an error stops the run.
pub fn ask_about_pairs(
    number: usize,
    join: &JoinCall,
    runtime: &SharedRuntime,
    query_run: &QueryRun<'_>,
    request: &Request<'_>,
) -> Result<u64, QueryError> {
    let lookups = lock_runtime(runtime).data.joins[number].take_lookups();
    let by_list = group_by_list(number, join, &lookups, runtime, request);
    for (_, canonical_bytes, rights) in lookups {
        // A value that the model does not see counts as no match.
        let mut runtime = lock_runtime(runtime);
        let known = runtime.data.joins[number].answers.entry(canonical_bytes).or_default();
        known.extend(rights.into_iter().map(|(_, canonical_bytes)| (canonical_bytes, false)));
    }
    let mut counts = Counts::default();
    for (list, lookups) in by_list {
        let mut partners = PartnerQuestions::new(join, list, &lookups, request, &mut counts)?;
        if !partners.demands.is_empty() {
            let demands = std::mem::take(&mut partners.demands);
            query_run.send_demands(&mut partners.targets, demands, &mut counts)?;
        }
        let mut runtime = lock_runtime(runtime);
        for ((_, canonical_bytes, rights), entity) in lookups.into_iter().zip(partners.entities) {
            let facts = request.facts.sync();
            let cell =
                partners.targets[0].look_up_cell(entity, 0, facts, None, &mut Counts::default())?;
            store_pairs(&mut runtime.data.joins[number], canonical_bytes, rights, cell);
        }
    }
    let mut runtime = lock_runtime(runtime);
    runtime.data.counts.add(&counts);
    Ok(counts.asked)
}

/// Groups the demanded left values by the list of their candidate partners.
pub(in crate::query) fn group_by_list(
    number: usize,
    join: &JoinCall,
    lookups: &[JoinLookup],
    runtime: &SharedRuntime,
    request: &Request<'_>,
) -> BTreeMap<Vec<String>, Vec<JoinLookup>> {
    let mut by_list: BTreeMap<Vec<String>, Vec<JoinLookup>> = BTreeMap::new();
    for (left, canonical_bytes, rights) in lookups {
        let mut texts: Vec<String> = rights.iter().map(|(v, _)| format_candidate(v)).collect();
        texts.sort_unstable();
        texts.dedup();
        if let Some(narrow) = join.narrow.filter(|n| *n < texts.len()) {
            let narrowed = &mut lock_runtime(runtime).data.joins[number].narrowed_from;
            *narrowed = (*narrowed).max(texts.len());
            texts = select_most_similar(&left.to_string(), texts, narrow);
        }
        let max_tokens = usize::try_from(request.spec.limits.context_tokens).unwrap_or(usize::MAX);
        for list in split_list(texts, max_tokens) {
            let is_listed = |(value, _): &&(Value, Vec<u8>)| {
                list.binary_search(&format_candidate(value)).is_ok()
            };
            let listed: Vec<_> = rights.iter().filter(is_listed).cloned().collect();
            by_list.entry(list).or_default().push((left.clone(), canonical_bytes.clone(), listed));
        }
    }
    by_list
}

/// Questions about the left values that share a list.
pub(in crate::query) struct PartnerQuestions {
    /// Expansion that asks the questions.
    pub targets: [TargetExpansion; 1],
    /// Entity index of each left value.
    entities: Vec<usize>,
    /// Cells that are not known yet.
    pub demands: Vec<Demand>,
}

impl PartnerQuestions {
    pub fn new(
        join: &JoinCall,
        list: Vec<String>,
        lookups: &[JoinLookup],
        request: &Request<'_>,
        counts: &mut Counts,
    ) -> Result<Self, QueryError> {
        let expansion = Arc::new(build_join_expansion(join, list));
        let mut requirements = request
            .choose_models(&expansion)
            .build_requirements(request.facts.history(), &expansion)?;
        if let Some(refresh) = request.refresh {
            refresh.mark_values_missing(&mut requirements, 1);
        }
        let mut targets = [TargetExpansion::new(expansion, Arc::new(requirements), None)];
        let mut entities = Vec::new();
        let mut demands = Vec::new();
        for (left, canonical_bytes, _) in lookups {
            let row = || Row { key: vec![left.clone()], context: Vec::new() };
            let entity = targets[0].intern_entity(canonical_bytes, row);
            let facts = request.facts.sync();
            if *targets[0].look_up_cell(entity, 0, facts, None, counts)? == Cell::Missing {
                demands.push(Demand::new(0, entity, 0));
            }
            entities.push(entity);
        }
        demands.sort_by_key(|d| d.entity());
        demands.dedup();
        Ok(Self { targets, entities, demands })
    }
}

/// Returns the text of a candidate. Values of the same entity (`Oslo` and `Oslo `) count as one
/// candidate.
fn format_candidate(value: &Value) -> String {
    value.canonical_text().unwrap_or(Cow::Borrowed("NULL")).into_owned()
}

/// Stores the pairs that an answer confirms or excludes.
fn store_pairs(pairs: &mut JoinPairs, left: Vec<u8>, rights: Vec<(Value, Vec<u8>)>, cell: &Cell) {
    let partners: Vec<String> = match cell {
        Cell::Known(Sql::Text(json)) => serde_json::from_str::<Vec<Json>>(json)
            .unwrap_or_default()
            .iter()
            .map(|v| format_candidate(&Value::from_json(v)))
            .collect(),
        _ => Vec::new(),
    };
    let known = pairs.answers.entry(left).or_default();
    for (right, canonical_bytes) in rights {
        let partner = partners.contains(&format_candidate(&right));
        known.insert(canonical_bytes, partner);
    }
}

/// Splits a list into parts that fit into a request.
fn split_list(texts: Vec<String>, max_bytes: usize) -> Vec<Vec<String>> {
    if texts.len() <= MAX_UNSPLIT {
        return vec![texts];
    }
    let mut lists: Vec<Vec<String>> = Vec::new();
    let mut bytes = 0;
    for text in texts {
        bytes += text.len();
        match lists.last_mut() {
            Some(list) if list.len() < MAX_LIST.0 && bytes <= MAX_LIST.1.min(max_bytes) => {
                list.push(text);
            }
            _ => {
                bytes = text.len();
                lists.push(vec![text]);
            }
        }
    }
    lists
}

/// Returns the `max_values` values that are most similar to a text.
fn select_most_similar(text: &str, mut list: Vec<String>, max_values: usize) -> Vec<String> {
    let lower = text.to_lowercase();
    let similarity = |other: &String| {
        let other = other.to_lowercase();
        let containment = f64::from(u8::from(other.contains(&lower) || lower.contains(&other)));
        strsim::sorensen_dice(&lower, &other) + strsim::jaro_winkler(&lower, &other) + containment
    };
    list.sort_by(|a, b| similarity(b).total_cmp(&similarity(a)));
    list.truncate(max_values);
    list.sort_unstable();
    list
}

/// Returns the expansion for one list of a join. Its identity includes the list, because a value
/// compared with fewer values may have other partners.
fn build_join_expansion(join: &JoinCall, list: Vec<String>) -> Expansion {
    let hash = ListHash::new(&list);
    let criterion = join.criterion.as_str();
    let identity = ColumnIdentity {
        key: vec![join.left_name.clone()],
        column: "partners".to_owned(),
        kind: Type::Text.name().to_owned(),
        about: format!("{criterion} {}", hash.as_str()),
        many: true,
        list: "closed".to_owned(),
        kinds: Vec::new(),
        requires_evidence: false,
    };
    let values = ValueList { values: list, open: false, hash };
    Expansion {
        about: format!(
            "for each {}, the values of the list with this: {criterion}",
            join.left_name
        ),
        task: Task::Join,
        model: join.model.clone(),
        columns: vec![Column::new_ad_hoc(Type::Text, criterion.to_owned(), Some(values), identity)],
        ..Expansion::new_ad_hoc("join", vec![join.left_name.clone()])
    }
}
