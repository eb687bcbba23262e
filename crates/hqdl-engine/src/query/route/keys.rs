//! Finds the entity of an expansion that the values of a call identify.
//!
//! # When the entity is certain
//!
//! The lineage of each value leads to columns of one row of a table, or of rows of several tables.
//! The query must join these tables by the same equalities as the source of the keys, and there
//! must be only one way to match them. The values identify the entity of that row if they *are* its
//! key (`key_match`) and one of two conditions is met:
//!
//! * The values are a part of the key, and the row has the rest of the key.
//! * The values differ for each key. This is checked in the current rows of the source.
//!
//! In the first case, and whenever the row has the whole key, the key is read from the row.
//! Otherwise it is looked up by the values. If the rows are grouped by the values, the rest of the
//! key comes from an arbitrary row of the group, so the groups must determine the rest. All other
//! questions become ad-hoc questions.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::query::route::call_options::ValueListProvider;
use crate::query::route::source_key::{BoundKey, KeyRelation, KeySource, build_key_from_source};
use hqdl_spec::{Expansion, SourceRows};
use hqdl_sql::blendsql::lineage::Lineage;
use hqdl_sql::blendsql::usage::{CallUsage, ColumnEquality};

/// Returns an expansion's key as SQL that is valid at the position of the call.
///
/// # Errors
/// Fails with the reason if the key cannot be determined.
pub(in crate::query) fn find_bound_key(
    expansion: &Expansion,
    usage: &CallUsage,
    value_provider: &mut dyn ValueListProvider,
) -> Result<BoundKey, String> {
    if !expansion.key_parts.is_empty() {
        return find_bound_key_by_part(expansion, usage, value_provider);
    }
    let Some(first) = usage.keys.first() else { return Err("it has no value".to_owned()) };
    let mut reason = "its value does not come from a source table of the expansion".to_owned();
    let Some(lineage) = &first.lineage else { return Err(reason) };
    for rows in &expansion.sources {
        let Some(source) = find_key_source(expansion, &rows.rows, value_provider) else { continue };
        match match_instances(&source, lineage, usage) {
            InstanceMatch::Unique(instance_map) => {
                match build_key_from_source(
                    expansion,
                    &source,
                    &instance_map,
                    usage,
                    value_provider,
                ) {
                    Ok(keys) => return Ok(keys),
                    Err(why) => reason = why,
                }
            }
            InstanceMatch::Ambiguous => {
                "its tables cannot be matched to the tables of the source with certainty"
                    .clone_into(&mut reason);
            }
            InstanceMatch::NoMatch => {}
        }
    }
    Err(reason)
}

/// Result of matching the source's table instances with the query's table instances.
enum InstanceMatch {
    Unique(BTreeMap<usize, usize>),
    Ambiguous,
    NoMatch,
}

/// Matches the source's table instances with the query's table instances: the tables must be the
/// same and joined in the same way. The match must include the instances of `first`.
fn match_instances(source: &KeySource, first: &Lineage, usage: &CallUsage) -> InstanceMatch {
    let mut source_instances: Vec<(usize, &str)> = Vec::new();
    for (instance, table) in source.parts.iter().flat_map(|p| p.instances()) {
        if !source_instances.iter().any(|(known, _)| *known == instance) {
            source_instances.push((instance, table));
        }
    }
    let mut query_instances: Vec<(usize, &str)> = Vec::new();
    let reached = usage.available_columns.iter().map(|r| (r.instance, r.table.as_str()));
    let keys = usage.keys.iter().filter_map(|k| k.lineage.as_deref());
    for (instance, table) in keys.flat_map(Lineage::instances).chain(reached) {
        if !query_instances.iter().any(|(known, _)| *known == instance) {
            query_instances.push((instance, table));
        }
    }
    let mut found: Vec<BTreeMap<usize, usize>> = vec![BTreeMap::new()];
    for (instance, table) in &source_instances {
        let mut next = Vec::new();
        for instance_map in &found {
            let free = query_instances.iter().filter(|(of, named)| {
                named.eq_ignore_ascii_case(table) && !instance_map.values().any(|known| known == of)
            });
            for (of, _) in free {
                let mut instance_map = instance_map.clone();
                instance_map.insert(*instance, *of);
                if has_same_joins(source.relation.joins(), &instance_map, usage) {
                    next.push(instance_map);
                }
            }
        }
        found = next;
        if found.len() > MAX_MATCHES {
            return InstanceMatch::Ambiguous;
        }
    }
    found.retain(|instance_map| {
        first.instances().iter().all(|(of, _)| instance_map.values().any(|known| known == of))
    });
    match (found.pop(), found.len()) {
        (None, _) => InstanceMatch::NoMatch,
        (Some(is_one_table), 0) => InstanceMatch::Unique(is_one_table),
        (Some(_), _) => InstanceMatch::Ambiguous,
    }
}

/// Maximum number of candidate matches. The search gives up if there are more.
const MAX_MATCHES: usize = 64;

/// Returns true if the query joins the matched instances by the equalities of the source.
fn has_same_joins(
    joins: &[ColumnEquality],
    instance_map: &BTreeMap<usize, usize>,
    usage: &CallUsage,
) -> bool {
    joins.iter().all(|join| {
        let (Some(left), Some(right)) =
            (instance_map.get(&join.left.0), instance_map.get(&join.right.0))
        else {
            return true;
        };
        let is =
            |own: &ColumnEquality| own.connects((*left, &join.left.1), (*right, &join.right.1));
        usage.equalities.iter().any(is)
    })
}

/// Returns the key of an expansion whose sources each have only a part of the key; the other
/// columns are NULL.
fn find_bound_key_by_part(
    expansion: &Expansion,
    usage: &CallUsage,
    value_provider: &mut dyn ValueListProvider,
) -> Result<BoundKey, String> {
    let mut reasons = Vec::new();
    for n in 0..expansion.sources.len() {
        let Some((own, part)) = expansion.with_only_source(n) else { continue };
        match find_bound_key(&own, usage, value_provider) {
            Ok(found) => {
                let mut texts = vec!["NULL".to_owned(); expansion.key.names().len()];
                part.iter().zip(found.texts).for_each(|(at, text)| texts[*at] = text);
                return Ok(BoundKey { texts, why: found.why, stored: None });
            }
            Err(reason) => reasons.push(reason),
        }
    }
    Err(reasons.into_iter().max_by_key(String::len).unwrap_or_default())
}

/// Returns the source of the keys, or `None` if the lineage of a part is unknown.
fn find_key_source(
    expansion: &Expansion,
    rows: &SourceRows,
    value_provider: &mut dyn ValueListProvider,
) -> Option<KeySource> {
    let names = expansion.key.names();
    match rows {
        SourceRows::Table(table) => {
            let part = |column: &String| {
                let (table, column) = (table.clone(), column.clone());
                Arc::new(Lineage::Column { instance: 0, table, column })
            };
            let parts = names.iter().map(part).collect();
            Some(KeySource { relation: KeyRelation::Table(table.clone()), parts, is_table: true })
        }
        SourceRows::Select(select) => {
            let outputs = value_provider.analyze_select_outputs(select);
            let part = |key: &String| {
                let found = outputs.columns.iter().find(|(name, _)| name.eq_ignore_ascii_case(key));
                found.and_then(|(_, lineage)| lineage.clone())
            };
            let parts: Option<Vec<Arc<Lineage>>> = names.iter().map(part).collect();
            let parts = parts?;
            let mut instances: Vec<(usize, &str)> = Vec::new();
            parts.iter().for_each(|p| instances.extend(p.instances()));
            instances.sort_unstable();
            instances.dedup();
            let relation = match instances.as_slice() {
                [] => return None,
                [(_, table)] => KeyRelation::Table((*table).to_owned()),
                instances_in_select if are_connected(instances_in_select, &outputs.equalities) => {
                    let output_of = |(key, part): (&String, &Arc<Lineage>)| match &**part {
                        Lineage::Column { instance, column, .. } => {
                            Some(((*instance, column.to_lowercase()), key.clone()))
                        }
                        _ => None,
                    };
                    let names: Option<Vec<_>> = names.iter().zip(&parts).map(output_of).collect();
                    KeyRelation::Select {
                        text: select.clone(),
                        names: names?,
                        joins: outputs.equalities,
                    }
                }
                _ => return None,
            };
            Some(KeySource { relation, parts, is_table: false })
        }
    }
}

/// Returns true if joins connect all of these tables.
fn are_connected(instances: &[(usize, &str)], joins: &[ColumnEquality]) -> bool {
    let mut known = vec![instances[0].0];
    let mut at = 0;
    while let Some(is_one_table) = known.get(at).copied() {
        for join in joins {
            for (near, far) in [(&join.left, &join.right), (&join.right, &join.left)] {
                let is_instance = instances.iter().any(|(n, _)| *n == far.0);
                if near.0 == is_one_table && is_instance && !known.contains(&far.0) {
                    known.push(far.0);
                }
            }
        }
        at += 1;
    }
    known.len() == instances.len()
}
