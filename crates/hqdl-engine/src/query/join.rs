//! Joins by the model: finds the partners of each left value among the right values. Each left
//! value is asked about with the whole list, in as many requests as necessary. Only if the query
//! sets `narrow=N`, the model sees just the N most similar values, and a note reports how many
//! there were.

use std::collections::BTreeMap;
use std::sync::Arc;

use rusqlite::types::Value as Sql;
use serde_json::Value as Json;

use super::ask::Asker;
use super::calls::Join;
use super::live::{Pairs, Shared, Wish, lock};
use super::targets::{Cell, Counts, Demand, Target};
use super::{QueryError, Request};
use hqdl_spec::{Column, Expansion, Task, Type, ValueList};
use hqdl_values::Row;
use hqdl_values::key::{ListHash, Meaning};
use hqdl_values::value::Value;

/// A list up to this length is not split, whatever its size in bytes.
const TOGETHER: usize = 200;
/// Maximum number of values and of their bytes in one request for a longer list. Endpoints do not
/// accept larger response schemas.
const LIST: (usize, usize) = (999, 14_999);

/// Asks about all pairs of a join that a pass demanded. Returns the number of values asked for.
///
/// # Errors
/// [`QueryError`] for errors that stop the run.
pub fn ask(
    number: usize,
    join: &Join,
    live: &Shared,
    asker: &Asker<'_>,
    request: &Request<'_>,
) -> Result<u64, QueryError> {
    let wishes = lock(live).known.joins[number].take();
    let by_list = lists_of(number, join, &wishes, live, request);
    for (_, spelling, rights) in wishes {
        // A value that the model is not shown is not a partner.
        let mut live = lock(live);
        let known = live.known.joins[number].known.entry(spelling).or_default();
        known.extend(rights.into_iter().map(|(_, spelling)| (spelling, false)));
    }
    let mut counts = Counts::default();
    for (list, wishes) in by_list {
        let mut asked = AskedPartners::of(join, list, &wishes, request, &mut counts)?;
        if !asked.demands.is_empty() {
            asker.ask(&mut asked.targets, &asked.demands, &mut counts)?;
        }
        let mut live = lock(live);
        for ((_, spelling, rights), entity) in wishes.into_iter().zip(asked.entities) {
            let facts = request.facts.latest();
            let cell = asked.targets[0].cell(entity, 0, facts, None, &mut Counts::default())?;
            know(&mut live.known.joins[number], spelling, rights, cell);
        }
    }
    let mut live = lock(live);
    live.known.counts.asked += counts.asked;
    live.known.counts.reused += counts.reused;
    live.known.counts.without_value += counts.without_value;
    live.known.counts.unknown += counts.unknown;
    Ok(counts.asked)
}

/// Groups the demanded left values by the list that they are compared with.
pub(super) fn lists_of(
    number: usize,
    join: &Join,
    wishes: &[Wish],
    live: &Shared,
    request: &Request<'_>,
) -> BTreeMap<Vec<String>, Vec<Wish>> {
    let mut by_list: BTreeMap<Vec<String>, Vec<Wish>> = BTreeMap::new();
    for (left, spelling, rights) in wishes {
        let mut texts: Vec<String> = rights.iter().map(|(v, _)| v.to_string()).collect();
        texts.sort_unstable();
        texts.dedup();
        if let Some(narrow) = join.narrow.filter(|n| *n < texts.len()) {
            let narrowed = &mut lock(live).known.joins[number].narrowed;
            *narrowed = (*narrowed).max(texts.len());
            texts = alike(&left.to_string(), texts, narrow);
        }
        let most = usize::try_from(request.spec.limits.context_tokens).unwrap_or(usize::MAX);
        for list in lists(texts, most) {
            let within =
                |(value, _): &&(Value, Vec<u8>)| list.binary_search(&value.to_string()).is_ok();
            let some: Vec<_> = rights.iter().filter(within).cloned().collect();
            by_list.entry(list).or_default().push((left.clone(), spelling.clone(), some));
        }
    }
    by_list
}

/// Questions about the values that share a list.
pub(super) struct AskedPartners {
    /// The expansion.
    pub targets: [Target; 1],
    /// Entity of each left value.
    entities: Vec<usize>,
    /// Cells that are not known yet.
    pub demands: Vec<Demand>,
}

impl AskedPartners {
    pub fn of(
        join: &Join,
        list: Vec<String>,
        wishes: &[Wish],
        request: &Request<'_>,
        counts: &mut Counts,
    ) -> Result<Self, QueryError> {
        let expansion = Arc::new(expansion(join, list));
        let mut wanted = request.choice(&expansion).wanted(request.facts.history(), &expansion)?;
        if let Some(again) = request.again {
            again.tell(&mut wanted, 1);
        }
        let mut targets = [Target::new(expansion, Arc::new(wanted), None)];
        let mut entities = Vec::new();
        let mut demands = Vec::new();
        for (left, spelling, _) in wishes {
            let row = || Row { key: vec![left.clone()], context: Vec::new() };
            let entity = targets[0].entity(spelling, row);
            let facts = request.facts.latest();
            if *targets[0].cell(entity, 0, facts, None, counts)? == Cell::Missing {
                demands.push(Demand { target: 0, entity, column: 0 });
            }
            entities.push(entity);
        }
        demands.sort_by_key(|d| d.entity);
        demands.dedup();
        Ok(Self { targets, entities, demands })
    }
}

/// Stores the pairs that an answer confirms or excludes.
fn know(pairs: &mut Pairs, left: Vec<u8>, rights: Vec<(Value, Vec<u8>)>, cell: &Cell) {
    let partners: Vec<String> = match cell {
        Cell::Known(Sql::Text(json)) => serde_json::from_str::<Vec<Json>>(json)
            .unwrap_or_default()
            .iter()
            .map(|v| Value::from_json(v).to_string())
            .collect(),
        _ => Vec::new(),
    };
    let known = pairs.known.entry(left).or_default();
    for (right, spelling) in rights {
        let partner = partners.contains(&right.to_string());
        known.insert(spelling, partner);
    }
}

/// Splits a list into parts that fit into a request.
fn lists(texts: Vec<String>, most: usize) -> Vec<Vec<String>> {
    if texts.len() <= TOGETHER {
        return vec![texts];
    }
    let mut lists: Vec<Vec<String>> = Vec::new();
    let mut bytes = 0;
    for text in texts {
        bytes += text.len();
        match lists.last_mut() {
            Some(list) if list.len() < LIST.0 && bytes <= LIST.1.min(most) => list.push(text),
            _ => {
                bytes = text.len();
                lists.push(vec![text]);
            }
        }
    }
    lists
}

/// Returns the `max_values` values that are most similar to a text.
fn alike(text: &str, mut list: Vec<String>, most: usize) -> Vec<String> {
    let lower = text.to_lowercase();
    let likeness = |other: &String| {
        let other = other.to_lowercase();
        let within = f64::from(u8::from(other.contains(&lower) || lower.contains(&other)));
        strsim::sorensen_dice(&lower, &other) + strsim::jaro_winkler(&lower, &other) + within
    };
    list.sort_by(|a, b| likeness(b).total_cmp(&likeness(a)));
    list.truncate(most);
    list.sort_unstable();
    list
}

/// Returns the expansion for one list of a join. The list is part of its identity, because a value
/// compared with fewer values may have other partners.
fn expansion(join: &Join, list: Vec<String>) -> Expansion {
    let hash = ListHash::of(&list);
    let criterion = join.criterion.as_str();
    let meaning = Meaning {
        key: vec![join.left.clone()],
        column: "partners".to_owned(),
        kind: Type::Text.name().to_owned(),
        about: format!("{criterion} {}", hash.as_str()),
        many: true,
        list: "closed".to_owned(),
        kinds: Vec::new(),
    };
    let values = ValueList { values: list, open: false, hash };
    Expansion {
        about: format!("for each {}, the values of the list with this: {criterion}", join.left),
        task: Task::Join,
        model: join.model.clone(),
        columns: vec![Column::ad_hoc(Type::Text, criterion.to_owned(), Some(values), meaning)],
        ..Expansion::ad_hoc("join", vec![join.left.clone()])
    }
}
