//! Demands cut into batches: what shares a request.

use std::collections::BTreeMap;

use super::targets::{Demand, Target};
use crate::plan::{Batcher, Cut};

/// Bytes of a document that shares a request with others.
const SHORT: usize = 400;

/// Demands by expansion and entity: the columns asked for.
pub(super) fn by_target(demands: &[Demand]) -> BTreeMap<usize, BTreeMap<usize, Vec<usize>>> {
    let mut by_target: BTreeMap<usize, BTreeMap<usize, Vec<usize>>> = BTreeMap::new();
    for demand in demands {
        let columns = by_target.entry(demand.target).or_default();
        columns.entry(demand.entity).or_default().push(demand.column);
    }
    by_target
}

/// Entities of an expansion and the columns asked for, cut into batches of at
/// most so many rows.
pub(super) fn cuts(target: &Target, entities: BTreeMap<usize, Vec<usize>>, most: u32) -> Vec<Cut> {
    let whole: Vec<usize> = match target.in_spec {
        Some(_) => (0..target.expansion.columns.len()).collect(),
        None => Vec::new(),
    };
    let mut batcher = Batcher::new(most);
    // What takes long to read is read alone.
    let mut alone = Batcher::new(1);
    let mut cuts: Vec<Cut> = Vec::new();
    for (entity, mut columns) in entities {
        columns.sort_unstable();
        let whole = if whole.is_empty() { columns.clone() } else { whole.clone() };
        let long = target.document(entity).is_some_and(|d| d.bytes() > SHORT);
        let batcher = if long { &mut alone } else { &mut batcher };
        cuts.extend(batcher.push(columns, whole, target.gap(entity)));
    }
    cuts.extend(batcher.finish());
    cuts
}
