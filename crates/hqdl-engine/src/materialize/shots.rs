//! Adds overrides as examples to the prompt (`shots = "overrides"`).

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use super::{MaterializeError, WalkError};
use crate::audit::{Audit, AuditError, Evidence};
use hqdl_database::Database;
use hqdl_database::keys::{KeyRow, Keys};
use hqdl_spec::checker::Checker;
use hqdl_spec::overrides::Overrides;
use hqdl_spec::{Expansion, Shot, Spec};
use hqdl_values::Row;
use hqdl_values::cell::CellValue;
use hqdl_values::key::Entity;

/// Returns the spec with overrides added as examples. The examples do not change during a run, so
/// that all prompts start with the same text. Like other shots, the examples do not change
/// fingerprints. Overrides are skipped if the value is not in its column's list, if the row is in no
/// source, or if it is in the sample of an audit that is not completely filled in.
///
/// # Errors
/// Returns [`MaterializeError`] if the sources or the audit cannot be read.
pub(super) fn add_override_shots<'s>(
    spec: &'s Spec,
    database: &Database,
    overrides: &Overrides,
) -> Result<Cow<'s, Spec>, MaterializeError> {
    let mut spec = Cow::Borrowed(spec);
    for n in 0..spec.expansions.len() {
        let shots = build_shots(&spec, n, database, overrides)?;
        if !shots.is_empty() {
            spec.to_mut().expansions[n].shots.extend(shots);
        }
    }
    Ok(spec)
}

/// Returns the sampled entities of an expansion's audit, if a cell of the sample has no truth yet.
fn list_open_sample(
    spec: &Spec,
    expansion: &Expansion,
) -> Result<HashSet<Entity>, MaterializeError> {
    let audit = match Audit::read(spec, expansion) {
        Err(AuditError::Missing(_)) => return Ok(HashSet::new()),
        audit => audit?,
    };
    let columns = audit.draw.find_expansion_columns(expansion).into_iter().map(|c| c.0);
    let filled = audit.count_filled_rows(&columns.collect::<Vec<_>>(), Evidence::Truth);
    let sample = audit.draw.sample();
    if filled == sample.len() {
        return Ok(HashSet::new());
    }
    let entity = |row: &usize| expansion.build_entity(&audit.draw.frame[*row].key);
    Ok(sample.iter().map(entity).collect())
}

fn build_shots(
    spec: &Spec,
    n: usize,
    database: &Database,
    overrides: &Overrides,
) -> Result<Vec<Shot>, MaterializeError> {
    let expansion = &spec.expansions[n];
    if expansion.override_shots == 0 {
        return Ok(Vec::new());
    }
    let audited = list_open_sample(spec, expansion)?;
    let checkers: Vec<Checker> = expansion.columns.iter().map(Checker::new).collect();
    let mut examples: Vec<(&Entity, Vec<CellValue>)> = Vec::new();
    for (entity, entries) in overrides.list_overridden_rows(n) {
        if audited.contains(entity) {
            continue;
        }
        let cell = |(index, checker): (usize, &Checker)| {
            let entry = entries.get(&index).filter(|entry| checker.is_allowed(&entry.value));
            entry.map_or(CellValue::Nothing, |entry| entry.value.clone())
        };
        let cells: Vec<CellValue> = checkers.iter().enumerate().map(cell).collect();
        if cells.iter().any(|c| *c != CellValue::Nothing) {
            examples.push((entity, cells));
        }
    }
    if examples.is_empty() {
        return Ok(Vec::new());
    }
    // Prefer rows with more overridden columns. Values that are not in their column's list do not
    // count.
    let count_values =
        |cells: &[CellValue]| cells.iter().filter(|c| **c != CellValue::Nothing).count();
    examples.sort_by_key(|(_, cells)| std::cmp::Reverse(count_values(cells)));
    // Use the source's spelling of the key, and its context.
    let entities: HashSet<&Entity> = examples.iter().map(|(entity, _)| *entity).collect();
    let mut rows: HashMap<Entity, Row> = HashMap::new();
    let keys = Keys::collect(database, expansion, None)?;
    let result = keys.for_each(&mut |key: &KeyRow| {
        if key.is_first_spelling && entities.contains(&key.entity) {
            rows.insert(key.entity.clone(), key.row.clone());
        }
        if rows.len() == entities.len() { Err(WalkError::Closed) } else { Ok(()) }
    });
    match result {
        Ok(()) | Err(WalkError::Closed) => {}
        Err(halt) => return Err(halt.into_materialize_error(database)),
    }
    let to_shot = |(entity, cells): (&Entity, Vec<CellValue>)| {
        let Row { key, context } = rows.get(entity)?.clone();
        Some(Shot { key, context, cells })
    };
    Ok(examples.into_iter().filter_map(to_shot).take(expansion.override_shots as usize).collect())
}
