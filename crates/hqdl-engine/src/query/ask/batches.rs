//! Groups demands into row batches that share a request.

use std::borrow::Cow;

use crate::query::ask::passages::PassageSelector;
use crate::query::cells::documents::asks_about_documents;
use crate::query::cells::targets::{Demand, TargetExpansion};
use crate::query::request::error::QueryError;
use hqdl_model::plan::{Batcher, RowBatch};
use hqdl_values::value::Value;

/// Maximum size, in bytes, of a document that may share a request with others.
const MAX_SHARED_BYTES: usize = 400;

/// Groups the demands by expansion. The demands must be sorted.
pub(in crate::query) fn group_by_target(demands: &[Demand]) -> impl Iterator<Item = &[Demand]> {
    demands.chunk_by(|a, b| a.target() == b.target())
}

/// Splits the demands of one expansion by the model that answers them. Returns the position of each
/// model with the model's demands, in the order of `demands`.
pub(in crate::query) fn split_by_model<'d>(
    target: &TargetExpansion,
    demands: &'d [Demand],
) -> Vec<(usize, Cow<'d, [Demand]>)> {
    let model_of = |demand: &Demand| target.requirements.first_model(demand.column());
    let mut models: Vec<usize> = demands.iter().map(model_of).collect();
    models.sort_unstable();
    models.dedup();
    if let [model] = models[..] {
        return vec![(model, Cow::Borrowed(demands))];
    }
    let demands_of = |model: usize| {
        let own = demands.iter().copied().filter(|demand| model_of(demand) == model);
        (model, Cow::Owned(own.collect()))
    };
    models.into_iter().map(demands_of).collect()
}

/// Groups the demands by entity. The demands must be sorted.
pub(in crate::query) fn group_by_entity(demands: &[Demand]) -> impl Iterator<Item = &[Demand]> {
    demands.chunk_by(|a, b| (a.target(), a.entity()) == (b.target(), b.entity()))
}

/// Returns an iterator over the row batches of one expansion, so that only batches in flight are in
/// memory. Document batches are built immediately, because choosing passages may send requests.
///
/// # Errors
/// Fails if the passages of a long document cannot be chosen.
pub(in crate::query) fn build_row_batches<'b>(
    target: &'b TargetExpansion,
    demands: &'b [Demand],
    max_rows: u32,
    selector: &mut PassageSelector<'_>,
) -> Result<Box<dyn Iterator<Item = RowBatch> + 'b>, QueryError> {
    if asks_about_documents(&target.expansion) {
        let row_batches = build_document_batches(target, demands, max_rows, selector)?;
        return Ok(Box::new(row_batches.into_iter()));
    }
    let mut batcher = Some(Batcher::new(&target.expansion, max_rows));
    let mut entities = group_by_entity(demands);
    Ok(Box::new(
        std::iter::from_fn(move || {
            let open = batcher.as_mut()?;
            match entities.find_map(|demands| push_entity(open, target, demands)) {
                Some(full) => Some(vec![full]),
                None => batcher.take().map(Batcher::finish_batches),
            }
        })
        .flatten(),
    ))
}

/// Adds an entity's demands to the open batches. Returns a batch if one is full.
fn push_entity(
    batcher: &mut Batcher<'_>,
    target: &TargetExpansion,
    demands: &[Demand],
) -> Option<RowBatch> {
    let columns: Vec<usize> = demands.iter().map(|demand| demand.column()).collect();
    let missing_row = target.build_missing_row(demands.first()?.entity());
    let whole_row = match target.in_spec {
        Some(_) => target.expansion.list_columns_for_key(&missing_row.row.key),
        None => columns.clone(),
    };
    batcher.push(columns, whole_row, missing_row)
}

fn build_document_batches(
    target: &TargetExpansion,
    demands: &[Demand],
    max_rows: u32,
    selector: &mut PassageSelector<'_>,
) -> Result<Vec<RowBatch>, QueryError> {
    let mut batcher = Batcher::new(&target.expansion, max_rows);
    let mut row_batches: Vec<RowBatch> = Vec::new();
    for demands in group_by_entity(demands) {
        let entity = demands[0].entity();
        match target.stored_document(entity) {
            // Each question gets its own passages.
            Some(document) if !selector.fits_entirely(document) => {
                for column in demands.iter().map(|demand| demand.column()) {
                    let question = &target.expansion.columns[column].about;
                    let mut missing_row = target.build_missing_row(entity);
                    missing_row.row.context =
                        vec![Value::Text(selector.select_passages(document, question)?)];
                    row_batches.push(RowBatch {
                        columns: vec![column],
                        source_columns: vec![column],
                        missing_rows: vec![missing_row],
                    });
                }
            }
            // A document that exceeds the shared size gets its own request.
            Some(document) if document.approximate_size() > MAX_SHARED_BYTES => {
                let columns: Vec<usize> = demands.iter().map(|demand| demand.column()).collect();
                row_batches.push(RowBatch {
                    source_columns: columns.clone(),
                    columns,
                    missing_rows: vec![target.build_missing_row(entity)],
                });
            }
            _ => row_batches.extend(push_entity(&mut batcher, target, demands)),
        }
    }
    row_batches.extend(batcher.finish_batches());
    Ok(row_batches)
}
