//! Claims the cells of a request; skips cells that other runs have claimed.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use super::{Context, StopReason};
use crate::plan::{MissingRow, RowBatch};
use hqdl_facts::{CellLookup, CellRequirements, Claim, ClaimKey, Facts, FactsError};

/// Result of claiming a row batch.
pub struct ClaimedBatches {
    /// Row batches to request. Their cells stay claimed until this value is dropped.
    pub batches: Vec<RowBatch>,
    /// Rows with cells that other runs have claimed.
    pub(super) claimed_by_others: Vec<HeldBatch>,
    /// Number of cells that other runs have answered since they were found missing.
    answered_cells: u64,
    _claim: Claim,
}

/// Row batch whose cells other runs have claimed.
pub(super) struct HeldBatch {
    pub row_batch: RowBatch,
    /// Claim key of the first cell.
    pub first_key: ClaimKey,
}

impl Context {
    /// Claims the cells of a row batch.
    pub(super) async fn claim_batch(
        &self,
        row_batch: RowBatch,
    ) -> Result<ClaimedBatches, StopReason> {
        let claimed =
            claim_row_batch(&self.run.facts, &self.requirements, row_batch, self.skip_batched)
                .await?;
        self.run.answered_by_others.fetch_add(claimed.answered_cells, Ordering::Relaxed);
        Ok(claimed)
    }
}

/// Claims the cells of a row batch. Returns cells claimed by other runs separately. Skips cells
/// that were answered since they were found missing and, if `skip_batched` is true, cells that open
/// batch jobs request.
pub async fn claim_row_batch(
    facts: &Facts,
    requirements: &CellRequirements,
    row_batch: RowBatch,
    skip_batched: bool,
) -> Result<ClaimedBatches, FactsError> {
    let claim_key_of = |missing_row: &MissingRow, column: &usize| {
        requirements.claim_key(&missing_row.entity, *column)
    };
    let keys: Vec<ClaimKey> = row_batch
        .missing_rows
        .iter()
        .flat_map(|g| row_batch.columns.iter().filter_map(move |c| claim_key_of(g, c)))
        .collect();
    let entities: Vec<_> = row_batch.missing_rows.iter().map(|g| &g.entity).collect();
    let batch_model = skip_batched.then_some(requirements.model);
    let (claim, batched_columns, known) = facts.claim_cells(keys, &entities, batch_model).await?;
    let mut ours: BTreeMap<Vec<usize>, Vec<MissingRow>> = BTreeMap::new();
    let mut theirs: BTreeMap<Vec<usize>, Vec<MissingRow>> = BTreeMap::new();
    let mut answered_cells = 0;
    let rows = claim.granted().chunks(row_batch.columns.len().max(1));
    for (n, ((missing_row, record), granted)) in
        row_batch.missing_rows.into_iter().zip(&known).zip(rows).enumerate()
    {
        let (mut granted_columns, mut held_columns) = (Vec::new(), Vec::new());
        for (column, granted) in row_batch.columns.iter().copied().zip(granted) {
            let batched = batched_columns.get(n).zip(requirements.identity_id(column));
            if matches!(requirements.look_up_cell(record.as_ref(), column), CellLookup::Known(_)) {
                answered_cells += 1;
            } else if !batched.is_some_and(|(all, identity_id)| all.contains(&identity_id)) {
                if *granted { &mut granted_columns } else { &mut held_columns }.push(column);
            }
        }
        if !held_columns.is_empty() {
            theirs.entry(held_columns).or_default().push(missing_row.clone());
        }
        if !granted_columns.is_empty() {
            ours.entry(granted_columns).or_default().push(missing_row);
        }
    }
    let to_batches = |parts: BTreeMap<Vec<usize>, Vec<MissingRow>>| {
        let whole = row_batch.source_columns.clone();
        parts.into_iter().map(move |(columns, missing_rows)| RowBatch {
            columns,
            source_columns: whole.clone(),
            missing_rows,
        })
    };
    let claimed_by_others = to_batches(theirs)
        .filter_map(|row_batch| {
            let first_key =
                claim_key_of(row_batch.missing_rows.first()?, row_batch.columns.first()?)?;
            Some(HeldBatch { row_batch, first_key })
        })
        .collect();
    Ok(ClaimedBatches {
        batches: to_batches(ours).collect(),
        claimed_by_others,
        answered_cells,
        _claim: claim,
    })
}
