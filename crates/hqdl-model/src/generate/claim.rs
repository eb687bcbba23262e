//! Claims the cells of a request; skips cells that other runs have claimed.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use super::elsewhere::Elsewhere;
use super::{Context, Stopped};
use crate::plan::{MissingRow, RowBatch};
use hqdl_facts::{Claim, ClaimKey, Facts, FactsError, Found, Wanted};

/// Result of claiming a batch.
pub struct Claimed {
    /// The batches to ask for, claimed as long as this value lives.
    pub ours: Vec<RowBatch>,
    /// Rows that other runs have claimed.
    pub(super) elsewhere: Vec<Elsewhere>,
    /// Number of cells that other runs have answered in the meantime.
    found: u64,
    _claim: Claim,
}

impl Context {
    /// Claims the cells of a batch.
    pub(super) async fn claim(&self, cut: RowBatch) -> Result<Claimed, Stopped> {
        let claimed = claim(&self.run.facts, &self.wanted, cut, self.beside_batches).await?;
        self.run.found.fetch_add(claimed.found, Ordering::Relaxed);
        Ok(claimed)
    }
}

/// Claims the cells of a batch. Cells that other runs hold are returned separately. Cells that were
/// answered since they were found missing are skipped, and so are those that open batch jobs ask
/// for if `skip_batched` is true.
pub async fn claim(
    facts: &Facts,
    wanted: &Wanted,
    cut: RowBatch,
    beside_batches: bool,
) -> Result<Claimed, FactsError> {
    let of = |gap: &MissingRow, column: &usize| wanted.claimed(&gap.entity, *column);
    let things: Vec<ClaimKey> =
        cut.gaps.iter().flat_map(|g| cut.columns.iter().filter_map(move |c| of(g, c))).collect();
    let entities: Vec<_> = cut.gaps.iter().map(|g| &g.entity).collect();
    let beside = beside_batches.then_some(wanted.model);
    let (claim, under_way, known) = facts.claim_cells(things, &entities, beside).await?;
    let mut ours: BTreeMap<Vec<usize>, Vec<MissingRow>> = BTreeMap::new();
    let mut theirs: BTreeMap<Vec<usize>, Vec<MissingRow>> = BTreeMap::new();
    let mut found = 0;
    let rows = claim.granted().chunks(cut.columns.len().max(1));
    for (n, ((gap, record), granted)) in cut.gaps.into_iter().zip(&known).zip(rows).enumerate() {
        let (mut mine, mut other) = (Vec::new(), Vec::new());
        for (column, granted) in cut.columns.iter().copied().zip(granted) {
            let asked = under_way.get(n).zip(wanted.meaning(column));
            if matches!(wanted.find(record.as_ref(), column), Found::Known(_)) {
                found += 1;
            } else if !asked.is_some_and(|(all, meaning)| all.contains(&meaning)) {
                if *granted { &mut mine } else { &mut other }.push(column);
            }
        }
        if !other.is_empty() {
            theirs.entry(other).or_default().push(gap.clone());
        }
        if !mine.is_empty() {
            ours.entry(mine).or_default().push(gap);
        }
    }
    let cuts = |parts: BTreeMap<Vec<usize>, Vec<MissingRow>>| {
        let whole = cut.whole.clone();
        parts.into_iter().map(move |(columns, gaps)| RowBatch {
            columns,
            whole: whole.clone(),
            gaps,
        })
    };
    let elsewhere = cuts(theirs)
        .filter_map(|cut| {
            let first = of(cut.gaps.first()?, cut.columns.first()?)?;
            Some(Elsewhere { cut, first, attempt: 1 })
        })
        .collect();
    Ok(Claimed { ours: cuts(ours).collect(), elsewhere, found, _claim: claim })
}
