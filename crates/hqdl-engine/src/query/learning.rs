//! Chooses the demands to send while the selectivity of several conditions is being sampled. Each
//! condition is first evaluated for a few random rows. Later passes ask about more rows, in full
//! requests. Sampling saves requests; it does not change the result.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::hash::BuildHasher;

use super::live::notes::Notes;
use super::targets::Demand;
use hqdl_sql::blendsql::rewrite::Rewritten;

/// Minimum and maximum number of rows in the first sample of each condition.
const EACH: (u64, u64) = (3, 10);
/// Minimum number of rows in the second batch. Each further batch is a third larger, so that an
/// order derived from a few rows is not applied to many rows at once.
const NEXT: u64 = 6;
/// Sample size above which the batch doubles.
const SHOWN: u64 = 200;

/// Progress of the sampling.
pub struct Learning {
    /// Rows per request.
    together: usize,
    conditions: usize,
    /// Number of rows in the next batch.
    rows: u64,
    surveyed: bool,
}

impl Learning {
    /// Returns the initial state, given the rows per request and the number of conditions in a
    /// SELECT.
    pub fn new(together: u64, conditions: usize) -> Self {
        let rows = together.clamp(EACH.0, EACH.1);
        let together = usize::try_from(together).unwrap_or(usize::MAX).max(1);
        Self { together, conditions, rows, surveyed: false }
    }

    /// Returns whether the next pass must record the demands of all conditions of a row, instead of
    /// only the first undecided one.
    pub fn surveys(&self, rewritten: &Rewritten) -> bool {
        let several = match &rewritten.first {
            Some(rule) => rule.need.is_none() && rule.conditions > 1,
            None => rewritten.units.iter().any(|u| u.conditions > 1),
        };
        several && !self.surveyed
    }

    /// Returns whether the measured selectivity can change the order of the conditions.
    pub fn learns(&self) -> bool {
        self.surveyed && self.conditions > 1
    }

    /// Advances to the next batch size.
    pub fn learnt(&mut self) {
        self.rows = if self.surveyed {
            let more = if self.rows < SHOWN { self.rows / 3 } else { self.rows };
            self.rows.saturating_add(more)
        } else {
            NEXT.max(self.rows).max(self.together as u64)
        };
        self.surveyed = true;
    }

    /// Returns the demands to send, chosen from those that a pass recorded.
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

    /// Returns the demands to send for rows with several undecided conditions.
    pub fn some(&self, mut rows: Vec<&[Demand]>) -> Vec<Demand> {
        rows.sort_by_cached_key(|r| lot(r));
        let mut different = HashSet::new();
        rows.retain(|r| !r.is_empty() && different.insert(*r));
        if self.surveyed { self.in_full_requests(&rows) } else { self.survey(&rows) }
    }

    /// Returns some demands of each condition. A condition that fails decides its row, so at most
    /// one condition is asked about each row.
    fn survey(&self, rows: &[&[Demand]]) -> Vec<Demand> {
        // So few rows reveal nothing about other rows.
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

    /// Returns the demands of the first rows that fill whole requests. The remaining rows wait for
    /// others with the same columns.
    fn in_full_requests(&self, rows: &[&[Demand]]) -> Vec<Demand> {
        // By the columns demanded: the number of rows to ask about now, and all rows.
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

/// Returns the random order of a row. It depends only on the row's entities.
fn lot(demands: &[Demand]) -> u64 {
    let seed = foldhash::fast::FixedState::with_seed(7);
    let entities: BTreeSet<(usize, usize)> = demands.iter().map(|d| (d.target, d.entity)).collect();
    entities.iter().fold(0, |sum, entity| seed.hash_one(entity).wrapping_add(sum))
}
