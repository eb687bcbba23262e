//! Groups demands into row batches that share a request.

use std::collections::BTreeMap;

use crate::query::ask::passages::PassageSelector;
use crate::query::cells::targets::{Demand, TargetExpansion};
use crate::query::request::error::QueryError;
use hqdl_model::plan::{Batcher, RowBatch};
use hqdl_values::value::Value;

/// Maximum size of a document that shares a request with others, in bytes.
const MAX_SHARED_BYTES: usize = 400;

/// Groups demands by expansion and entity. The values are the demanded columns.
pub(in crate::query) fn group_by_target(
    demands: &[Demand],
) -> BTreeMap<usize, BTreeMap<usize, Vec<usize>>> {
    let mut grouped: BTreeMap<usize, BTreeMap<usize, Vec<usize>>> = BTreeMap::new();
    for demand in demands {
        let columns = grouped.entry(demand.target).or_default();
        columns.entry(demand.entity).or_default().push(demand.column);
    }
    grouped
}

/// Groups entities of an expansion and their demanded columns into batches of at most `max_rows`
/// rows.
///
/// # Errors
/// Those of choosing the passages of long documents.
pub(in crate::query) fn build_row_batches(
    target: &TargetExpansion,
    entities: BTreeMap<usize, Vec<usize>>,
    max_rows: u32,
    selector: &mut PassageSelector<'_>,
) -> Result<Vec<RowBatch>, QueryError> {
    let mut batcher = Batcher::new(&target.expansion, max_rows);
    let mut row_batches: Vec<RowBatch> = Vec::new();
    for (entity, mut columns) in entities {
        columns.sort_unstable();
        let missing_row = || target.missing_row(entity);
        match target.stored_document(entity) {
            // Each question is shown passages of its own.
            Some(document) if !selector.fits_whole(document) => {
                for column in columns {
                    let question = &target.expansion.columns[column].about;
                    let mut missing_row = missing_row();
                    missing_row.row.context =
                        vec![Value::Text(selector.select_passages(document, question)?)];
                    row_batches.push(RowBatch {
                        columns: vec![column],
                        source_columns: vec![column],
                        missing_rows: vec![missing_row],
                    });
                }
            }
            // A longer document has a request of its own.
            Some(document) if document.approximate_size() > MAX_SHARED_BYTES => {
                row_batches.push(RowBatch {
                    source_columns: columns.clone(),
                    columns,
                    missing_rows: vec![missing_row()],
                });
            }
            _ => {
                let missing_row = missing_row();
                let whole_row = match target.in_spec {
                    Some(_) => target.expansion.columns_for_key(&missing_row.row.key),
                    None => columns.clone(),
                };
                row_batches.extend(batcher.push(columns, whole_row, missing_row));
            }
        }
    }
    row_batches.extend(batcher.finish_batches());
    Ok(row_batches)
}
