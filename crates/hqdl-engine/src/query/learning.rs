//! Which rows of a SELECT with several conditions are asked about while their order
//! is learnt: first a few rows drawn by lot for each of the conditions, then by what
//! was learnt more rows in each pass, in full requests. It saves values and requests;
//! it decides nothing.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::hash::BuildHasher;

use super::live::notes::Notes;
use super::targets::Demand;
use hqdl_sql::blendsql::rewrite::Rewritten;

/// Rows that each condition is asked about first: at least and at most.
const EACH: (u64, u64) = (3, 10);
/// Rows that are asked about next, at least; then a third as many more each time: an order
/// that a few rows made likely is held to many only when many have shown it.
const NEXT: u64 = 6;
/// Rows that have shown it: from so many on twice as many are asked about each time.
const SHOWN: u64 = 200;

/// How far it is.
pub struct Learning {
    /// Rows that share a request.
    together: usize,
    conditions: usize,
    /// Rows to ask about now.
    rows: u64,
    surveyed: bool,
}

impl Learning {
    /// At the beginning; so many rows share a request, and so many conditions are
    /// together.
    pub fn new(together: u64, conditions: usize) -> Self {
        let rows = together.clamp(EACH.0, EACH.1);
        let together = usize::try_from(together).unwrap_or(usize::MAX).max(1);
        Self { together, conditions, rows, surveyed: false }
    }

    /// Whether all conditions of a row are noted, and not just the first that is
    /// open.
    pub fn surveys(&self, rewritten: &Rewritten) -> bool {
        let several = match &rewritten.first {
            Some(rule) => rule.need.is_none() && rule.conditions > 1,
            None => rewritten.units.iter().any(|u| u.conditions > 1),
        };
        several && !self.surveyed
    }

    /// Whether what conditions come to matters now.
    pub fn learns(&self) -> bool {
        self.surveyed && self.conditions > 1
    }

    /// Nothing more is to be learnt from rows that each condition is asked about.
    pub fn learnt(&mut self) {
        self.rows = if self.surveyed {
            let more = if self.rows < SHOWN { self.rows / 3 } else { self.rows };
            self.rows.saturating_add(more)
        } else {
            NEXT.max(self.rows).max(self.together as u64)
        };
        self.surveyed = true;
    }

    /// What is asked now of all that a pass noted.
    pub fn choose(&mut self, rewritten: &Rewritten, notes: &mut Notes) -> Vec<Demand> {
        let mut demands: Vec<Demand> = std::mem::take(&mut notes.loose).into_iter().collect();
        let mut learnt = false;
        for (n, unit) in rewritten.units.iter().enumerate() {
            let of_unit =
                notes.rows.iter().filter(|(unit, _)| *unit == n).map(|(_, d)| d.as_slice());
            if unit.conditions > 1 {
                let rows: Vec<&[Demand]> = of_unit.collect();
                learnt |= !rows.is_empty();
                demands.extend(self.some(rows));
            } else {
                demands.extend(of_unit.flatten());
            }
        }
        if learnt {
            self.learnt();
        }
        demands
    }

    /// What is asked now of rows that wait for several conditions.
    pub fn some(&self, mut rows: Vec<&[Demand]>) -> Vec<Demand> {
        rows.sort_by_cached_key(|r| lot(r));
        let mut different = HashSet::new();
        rows.retain(|r| !r.is_empty() && different.insert(*r));
        if self.surveyed { self.in_full_requests(&rows) } else { self.survey(&rows) }
    }

    /// For each condition some rows: one that fails settles its row, and no other
    /// condition was asked of it in vain.
    fn survey(&self, rows: &[&[Demand]]) -> Vec<Demand> {
        // Of so few rows there is nothing to be learnt for others.
        if rows.len() <= 2 * self.conditions {
            return rows.iter().filter_map(|r| r.first().copied()).collect();
        }
        let mut asked: BTreeMap<(usize, usize), u64> = BTreeMap::new();
        let mut chosen = Vec::new();
        let mut seen: HashSet<Demand> = HashSet::new();
        for row in rows {
            let of = |d: &Demand| asked.get(&(d.target, d.column)).copied().unwrap_or_default();
            let Some(least) = row.iter().filter(|d| !seen.contains(d)).min_by_key(|d| of(d)) else {
                continue;
            };
            if of(least) >= self.rows {
                if asked.len() >= self.conditions {
                    break;
                }
                continue;
            }
            *asked.entry((least.target, least.column)).or_default() += 1;
            seen.extend(row.iter().copied());
            chosen.push(*least);
        }
        chosen
    }

    /// The first rows, as far as they fill requests; what does not waits for others
    /// that wait for the same.
    fn in_full_requests(&self, rows: &[&[Demand]]) -> Vec<Demand> {
        // What rows wait for: how many of them may be asked about now, and all of them.
        let mut by_columns: BTreeMap<Vec<_>, (usize, Vec<&[Demand]>)> = BTreeMap::new();
        let most = usize::try_from(self.rows).unwrap_or(usize::MAX);
        for (n, row) in rows.iter().enumerate() {
            let columns = row.iter().map(|d| (d.target, d.column)).collect::<Vec<(usize, usize)>>();
            let (wanted, all) = by_columns.entry(columns).or_default();
            *wanted += usize::from(n < most);
            all.push(row);
        }
        for (wanted, all) in by_columns.values_mut() {
            let full = wanted.div_ceil(self.together) * self.together;
            *wanted =
                if full <= all.len() { full } else { *wanted / self.together * self.together };
        }
        if by_columns.values().all(|(wanted, _)| *wanted == 0)
            && let Some((wanted, all)) = by_columns.values_mut().max_by_key(|(_, all)| all.len())
        {
            *wanted = all.len().min(self.together);
        }
        let chosen =
            by_columns.into_values().flat_map(|(wanted, all)| all.into_iter().take(wanted));
        chosen.flatten().copied().collect()
    }
}

/// The lot that rows are drawn by: that of their entities.
fn lot(demands: &[Demand]) -> u64 {
    let seed = foldhash::fast::FixedState::with_seed(7);
    let entities: BTreeSet<(usize, usize)> = demands.iter().map(|d| (d.target, d.entity)).collect();
    entities.iter().fold(0, |sum, entity| seed.hash_one(entity).wrapping_add(sum))
}
