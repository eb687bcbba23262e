//! Claims of a request's cells: what others are asking is left to them.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use super::{Context, Stopped};
use crate::facts::{Claim, Found, Thing};
use crate::plan::{Cut, Gap};

/// What of a batch may be asked now.
pub(super) struct Claimed {
    /// What is to be asked, while this lives.
    pub(super) ours: Vec<Cut>,
    /// What others are asking.
    pub(super) elsewhere: Vec<Elsewhere>,
    _claim: Claim,
}

/// Rows whose cells others are asking for.
pub(super) struct Elsewhere {
    pub(super) cut: Cut,
    /// The first of these cells.
    pub(super) first: Thing,
}

impl Context {
    /// Claims the cells of a batch. What others hold is elsewhere; what they have
    /// brought since it was found missing is known, and left out.
    pub(super) async fn claim(&self, cut: Cut) -> Result<Claimed, Stopped> {
        let of = |gap: &Gap, column: &usize| self.wanted.claimed(&gap.entity, *column);
        let things: Vec<Thing> = cut
            .gaps
            .iter()
            .flat_map(|g| cut.columns.iter().filter_map(move |c| of(g, c)))
            .collect();
        let claim = self.writer.claim(things).await?;
        let entities: Vec<_> = cut.gaps.iter().map(|g| &g.entity).collect();
        let known = self.writer.known(&entities).await?;
        let mut ours: BTreeMap<Vec<usize>, Vec<Gap>> = BTreeMap::new();
        let mut theirs: BTreeMap<Vec<usize>, Vec<Gap>> = BTreeMap::new();
        let mut found = 0;
        let rows = claim.granted().chunks(cut.columns.len().max(1));
        for ((gap, record), granted) in cut.gaps.into_iter().zip(&known).zip(rows) {
            let missing =
                |c: &usize| !matches!(self.wanted.find(record.as_ref(), *c), Found::Known(_));
            let of_row = cut.columns.iter().copied().zip(granted);
            let (mine, other): (Vec<_>, Vec<_>) = of_row.partition(|(_, granted)| **granted);
            let columns = |some: Vec<(usize, &bool)>| -> Vec<usize> {
                some.into_iter().map(|(c, _)| c).filter(missing).collect()
            };
            let (mine, other) = (columns(mine), columns(other));
            found += cut.columns.len() - mine.len() - other.len();
            if !other.is_empty() {
                theirs.entry(other).or_default().push(gap.clone());
            }
            if !mine.is_empty() {
                ours.entry(mine).or_default().push(gap);
            }
        }
        self.found.fetch_add(found as u64, Ordering::Relaxed);
        let cuts = |parts: BTreeMap<Vec<usize>, Vec<Gap>>| {
            let whole = cut.whole.clone();
            parts.into_iter().map(move |(columns, gaps)| Cut {
                columns,
                whole: whole.clone(),
                gaps,
            })
        };
        let elsewhere = cuts(theirs)
            .filter_map(|cut| {
                let first = of(cut.gaps.first()?, cut.columns.first()?)?;
                Some(Elsewhere { cut, first })
            })
            .collect();
        Ok(Claimed { ours: cuts(ours).collect(), elsewhere, _claim: claim })
    }
}
