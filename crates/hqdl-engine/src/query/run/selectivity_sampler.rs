//! Chooses the demands to send while the selectivity of several conditions is being sampled. Each
//! condition is first evaluated for a few random rows. Later passes ask about more rows, in full
//! requests. Sampling saves requests; it does not change the result.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::hash::BuildHasher;

use crate::query::cells::targets::Demand;
use crate::query::functions::call_runtime::pending_set::PendingSet;
use hqdl_sql::blendsql::rewrite::RewrittenQuery;

/// Minimum and maximum number of rows in the first sample of each condition.
const FIRST_SAMPLE: (u64, u64) = (3, 10);
/// Minimum number of rows in the second batch. Each further batch is a third larger, so that an
/// order derived from a few rows is not applied to many rows at once.
const SECOND_BATCH: u64 = 6;
/// Sample size above which each further batch doubles.
const LARGE_SAMPLE: u64 = 200;

/// Progress of the sampling.
pub struct SelectivitySampler {
    rows_per_request: usize,
    condition_count: usize,
    /// Number of rows in the next batch.
    batch_size: u64,
    has_sampled: bool,
}

impl SelectivitySampler {
    /// Creates a sampler, given the rows per request and the number of conditions in a SELECT.
    pub fn new(rows_per_request: u64, condition_count: usize) -> Self {
        let batch_size = rows_per_request.clamp(FIRST_SAMPLE.0, FIRST_SAMPLE.1);
        let rows_per_request = usize::try_from(rows_per_request).unwrap_or(usize::MAX).max(1);
        Self { rows_per_request, condition_count, batch_size, has_sampled: false }
    }

    /// Returns true if the next pass must record the demands of all conditions of a row, instead of
    /// only the demands of the first undecided condition.
    pub fn must_probe_all_conditions(&self, rewritten: &RewrittenQuery) -> bool {
        let several = match &rewritten.limit_pushdown {
            Some(rule) => rule.rows_needed.is_none() && rule.condition_count > 1,
            None => rewritten.condition_groups.iter().any(|u| u.conditions > 1),
        };
        several && !self.has_sampled
    }

    /// Returns true if the measured selectivity can change the order of the conditions.
    pub fn is_measuring(&self) -> bool {
        self.has_sampled && self.condition_count > 1
    }

    /// Advances to the next batch size.
    pub fn advance_sample(&mut self) {
        self.batch_size = if self.has_sampled {
            let more =
                if self.batch_size < LARGE_SAMPLE { self.batch_size / 3 } else { self.batch_size };
            self.batch_size.saturating_add(more)
        } else {
            SECOND_BATCH.max(self.batch_size).max(self.rows_per_request as u64)
        };
        self.has_sampled = true;
    }

    /// Returns the demands to send, chosen from the demands that a pass recorded.
    pub fn choose_demands(
        &mut self,
        rewritten: &RewrittenQuery,
        pending: &mut PendingSet,
    ) -> Vec<Demand> {
        let mut demands: Vec<Demand> =
            std::mem::take(&mut pending.without_row).into_iter().collect();
        // There may be millions of rows, and the next pass records them again.
        let rows = std::mem::take(&mut pending.rows);
        let mut has_sampled_rows = false;
        for (n, group) in rewritten.condition_groups.iter().enumerate() {
            let group_rows =
                rows.iter().filter(|(group, _)| *group == n).map(|(_, demands)| demands);
            if group.conditions > 1 {
                let rows: Vec<&[Demand]> = group_rows.collect();
                has_sampled_rows |= !rows.is_empty();
                demands.extend(self.choose_row_demands(rows));
            } else {
                demands.extend(group_rows.flatten());
            }
        }
        if has_sampled_rows {
            self.advance_sample();
        }
        demands
    }

    /// Returns the demands to send for rows with several undecided conditions.
    pub fn choose_row_demands(&self, mut rows: Vec<&[Demand]>) -> Vec<Demand> {
        rows.sort_by_cached_key(|r| compute_sampling_rank(r));
        let mut different = HashSet::new();
        rows.retain(|r| !r.is_empty() && different.insert(*r));
        if self.has_sampled {
            self.select_whole_requests(&rows)
        } else {
            self.sample_condition_demands(&rows)
        }
    }

    /// Returns the demands of a sample of rows for each condition. A condition that fails decides
    /// its row, so only one condition is sampled per row.
    fn sample_condition_demands(&self, rows: &[&[Demand]]) -> Vec<Demand> {
        // With at most two rows per condition, a sample would not help to predict the other rows.
        if rows.len() <= 2 * self.condition_count {
            return rows.iter().filter_map(|r| r.first().copied()).collect();
        }
        let mut asked: BTreeMap<(usize, usize), u64> = BTreeMap::new();
        let mut chosen = Vec::new();
        let mut seen: HashSet<Demand> = HashSet::new();
        for row in rows {
            let of = |d: &Demand| asked.get(&(d.target(), d.column())).copied().unwrap_or_default();
            let Some(least_asked) = row.iter().filter(|d| !seen.contains(d)).min_by_key(|d| of(d))
            else {
                continue;
            };
            if of(least_asked) >= self.batch_size {
                if asked.len() >= self.condition_count {
                    break;
                }
                continue;
            }
            *asked.entry((least_asked.target(), least_asked.column())).or_default() += 1;
            seen.extend(row.iter().copied());
            chosen.push(*least_asked);
        }
        chosen
    }

    /// Returns the demands of the first rows that fill whole requests. The remaining rows wait
    /// until more rows need the same columns.
    fn select_whole_requests(&self, rows: &[&[Demand]]) -> Vec<Demand> {
        // For each set of demanded columns: the number of rows to ask about now, and all rows.
        let mut by_columns: BTreeMap<Vec<_>, (usize, Vec<&[Demand]>)> = BTreeMap::new();
        let max_rows = usize::try_from(self.batch_size).unwrap_or(usize::MAX);
        for (n, row) in rows.iter().enumerate() {
            let columns =
                row.iter().map(|d| (d.target(), d.column())).collect::<Vec<(usize, usize)>>();
            let (row_count, all) = by_columns.entry(columns).or_default();
            *row_count += usize::from(n < max_rows);
            all.push(row);
        }
        for (row_count, all) in by_columns.values_mut() {
            let full = row_count.div_ceil(self.rows_per_request) * self.rows_per_request;
            *row_count = if full <= all.len() {
                full
            } else {
                *row_count / self.rows_per_request * self.rows_per_request
            };
        }
        if by_columns.values().all(|(row_count, _)| *row_count == 0)
            && let Some((row_count, all)) = by_columns.values_mut().max_by_key(|(_, all)| all.len())
        {
            *row_count = all.len().min(self.rows_per_request);
        }
        let chosen =
            by_columns.into_values().flat_map(|(row_count, all)| all.into_iter().take(row_count));
        chosen.flatten().copied().collect()
    }
}

/// Returns a pseudorandom sort key for a row, which depends only on the row's entities.
fn compute_sampling_rank(demands: &[Demand]) -> u64 {
    let seed = foldhash::fast::FixedState::with_seed(7);
    let entities: BTreeSet<(usize, usize)> =
        demands.iter().map(|d| (d.target(), d.entity())).collect();
    entities.iter().fold(0, |sum, entity| seed.hash_one(entity).wrapping_add(sum))
}
