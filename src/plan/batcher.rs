//! Rows that lack cells, cut into batches.

use std::collections::BTreeMap;

use super::{Cut, Gap};
use crate::spec::Expansion;

/// Different sets of missing columns that may be collected side by side; past
/// this the fullest batch goes out early, so that memory stays bounded.
const OPEN_BATCHES: usize = 64;

/// Cuts gaps into batches as they come.
#[derive(Debug)]
pub struct Batcher<'e> {
    expansion: &'e Expansion,
    rows: usize,
    open: BTreeMap<Lacking<'e>, Vec<Gap>>,
}

/// The columns asked for, the whole row's, and the part of the key that the rows
/// are shown with.
type Lacking<'e> = (Vec<usize>, Vec<usize>, Option<&'e [usize]>);

impl<'e> Batcher<'e> {
    /// Batches of at most `rows` rows of an expansion.
    #[must_use]
    pub fn new(expansion: &'e Expansion, rows: u32) -> Self {
        Self { expansion, rows: rows.max(1) as usize, open: BTreeMap::new() }
    }

    /// Takes a gap in; gives a batch when one is full.
    pub fn push(&mut self, columns: Vec<usize>, whole: Vec<usize>, gap: Gap) -> Option<Cut> {
        let lacking = (columns, whole, self.expansion.part_of(&gap.row.key));
        let gaps = match self.open.get_mut(&lacking) {
            Some(gaps) => gaps,
            None => self.open.entry(lacking.clone()).or_default(),
        };
        gaps.push(gap);
        if gaps.len() >= self.rows {
            return self.take(&lacking);
        }
        if self.open.len() > OPEN_BATCHES {
            let fullest = self.open.iter().max_by_key(|(_, g)| g.len()).map(|(c, _)| c.clone())?;
            return self.take(&fullest);
        }
        None
    }

    /// The batches that did not fill up.
    #[must_use]
    pub fn finish(self) -> Vec<Cut> {
        self.open
            .into_iter()
            .map(|((columns, whole, _), gaps)| Cut { columns, whole, gaps })
            .collect()
    }

    fn take(&mut self, lacking: &Lacking<'e>) -> Option<Cut> {
        let gaps = self.open.remove(lacking)?;
        let (columns, whole, _) = lacking.clone();
        Some(Cut { columns, whole, gaps })
    }
}
