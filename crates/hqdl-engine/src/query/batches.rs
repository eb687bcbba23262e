//! Groups demands into row batches that share a request.

use std::collections::BTreeMap;

use super::QueryError;
use super::passages::ShownPassages;
use super::targets::{Demand, Target};
use hqdl_model::plan::{Batcher, RowBatch};
use hqdl_values::value::Value;

/// Maximum size of a document that shares a request with others, in bytes.
const SHORT: usize = 400;

/// Groups demands by expansion and entity. The values are the demanded columns.
pub(super) fn by_target(demands: &[Demand]) -> BTreeMap<usize, BTreeMap<usize, Vec<usize>>> {
    let mut by_target: BTreeMap<usize, BTreeMap<usize, Vec<usize>>> = BTreeMap::new();
    for demand in demands {
        let columns = by_target.entry(demand.target).or_default();
        columns.entry(demand.entity).or_default().push(demand.column);
    }
    by_target
}

/// Groups entities of an expansion and their demanded columns into batches of at most `max_rows`
/// rows.
///
/// # Errors
/// Those of choosing the passages of long documents.
pub(super) fn cuts(
    target: &Target,
    entities: BTreeMap<usize, Vec<usize>>,
    most: u32,
    shown: &mut ShownPassages<'_>,
) -> Result<Vec<RowBatch>, QueryError> {
    let mut batcher = Batcher::new(&target.expansion, most);
    let mut cuts: Vec<RowBatch> = Vec::new();
    for (entity, mut columns) in entities {
        columns.sort_unstable();
        let gap = || target.gap(entity);
        match target.document(entity) {
            // Each question is shown passages of its own.
            Some(document) if !shown.fits(document) => {
                for column in columns {
                    let question = &target.expansion.columns[column].about;
                    let mut gap = gap();
                    gap.row.context = vec![Value::Text(shown.of(document, question)?)];
                    cuts.push(RowBatch {
                        columns: vec![column],
                        whole: vec![column],
                        gaps: vec![gap],
                    });
                }
            }
            // A longer document has a request of its own.
            Some(document) if document.bytes() > SHORT => {
                cuts.push(RowBatch { whole: columns.clone(), columns, gaps: vec![gap()] });
            }
            _ => {
                let gap = gap();
                let whole = match target.in_spec {
                    Some(_) => target.expansion.whole_row(&gap.row.key),
                    None => columns.clone(),
                };
                cuts.extend(batcher.push(columns, whole, gap));
            }
        }
    }
    cuts.extend(batcher.finish());
    Ok(cuts)
}
