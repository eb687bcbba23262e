//! Which rows of a SELECT with several conditions are asked about while their order
//! is learnt: some of them, drawn by lot, and twice as many in each pass, so that
//! what is learnt early of conditions holds for all rows. It saves values; it
//! decides nothing.

use std::collections::{BTreeSet, HashSet};
use std::hash::BuildHasher;

use super::notes::Notes;
use super::targets::Demand;
use crate::blendsql::rewrite::Rewritten;

/// Values of other conditions that are asked for first, to learn what they come to.
const SURVEYED: u64 = 16;
/// Rows that all conditions are asked about first, at least.
const ROWS: u64 = 6;

/// How far it is.
pub struct Learning {
    rows: u64,
    next: u64,
    surveyed: bool,
}

impl Learning {
    /// At the beginning; so many rows share a request, and so many conditions are
    /// together.
    pub fn new(together: u64, conditions: usize) -> Self {
        let others = u64::try_from(conditions).unwrap_or(u64::MAX).saturating_sub(1).max(1);
        let rows = (SURVEYED / others).max(ROWS);
        Self { rows, next: together.max(rows), surveyed: false }
    }

    /// Whether all conditions of a row are asked, and not just the first that is
    /// open.
    pub fn surveys(&self, rewritten: &Rewritten) -> bool {
        let several = match &rewritten.first {
            Some(rule) => rule.need.is_none() && rule.conditions > 1,
            None => rewritten.units.iter().any(|u| u.conditions > 1),
        };
        several && !self.surveyed
    }

    /// How many rows are asked about now.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Some rows were asked about.
    pub fn learnt(&mut self) {
        if self.surveyed {
            self.next = self.next.saturating_mul(2);
        }
        self.surveyed = true;
        self.rows = self.next;
    }

    /// What is asked now of all that a pass noted.
    pub fn choose(&mut self, rewritten: &Rewritten, notes: &mut Notes) -> Vec<Demand> {
        let mut demands = std::mem::take(&mut notes.loose);
        let mut learnt = false;
        for (n, unit) in rewritten.units.iter().enumerate() {
            let mut rows: Vec<_> = notes.rows.iter().filter(|r| r.unit == n).collect();
            if unit.conditions > 1 {
                rows.sort_by_cached_key(|r| lot(&r.demands));
                let most = usize::try_from(self.rows).unwrap_or(usize::MAX);
                let mut different = HashSet::new();
                let mut end = 0;
                while end < rows.len() && different.len() < most {
                    different.insert(lot(&rows[end].demands));
                    end += 1;
                }
                // Of so few rows there is nothing to be learnt for others.
                let all = !self.surveyed && end == rows.len() && different.len() < most;
                rows.truncate(end);
                learnt |= end > 0;
                if all {
                    demands.extend(rows.into_iter().filter_map(|r| r.demands.first().copied()));
                    continue;
                }
            }
            demands.extend(rows.into_iter().flat_map(|r| r.demands.iter().copied()));
        }
        if learnt {
            self.learnt();
        }
        demands
    }
}

/// The lot that rows are drawn by: that of their entities.
pub fn lot(demands: &[Demand]) -> u64 {
    let seed = foldhash::fast::FixedState::with_seed(7);
    let entities: BTreeSet<(usize, usize)> = demands.iter().map(|d| (d.target, d.entity)).collect();
    entities.iter().fold(0, |sum, entity| seed.hash_one(entity).wrapping_add(sum))
}
