//! Groups of a SELECT that returns only the groups with the most rows, or with the fewest. The plan
//! decides which SELECTs these are (`rules::largest_groups`).
//!
//! An undecided row counts as not passing until it is decided. A group's passing rows are a lower
//! bound on its row count; its passing and undecided rows together are an upper bound. A group is
//! excluded if enough other groups certainly precede it. A pass is final once all groups are
//! excluded or decided.

use std::cmp::Reverse;

use indexmap::IndexMap;

use crate::query::cells::targets::Demand;
use crate::query::functions::call_runtime::pending_set::{Distinct, MAX_PENDING_ROWS};

/// Recorded rows of a pass, by their group.
#[derive(Default)]
pub struct WholeGroups {
    groups: IndexMap<Vec<u8>, GroupCounts, foldhash::fast::RandomState>,
    /// Number of groups that are needed.
    needed: usize,
    /// Whether the groups with the most rows are needed.
    largest: bool,
    /// Number of rows whose demands are stored.
    stored_count: usize,
}

/// Row counts of a group.
#[derive(Default)]
struct GroupCounts {
    passed: u64,
    failed: u64,
    undecided: u64,
    /// Demands of undecided rows.
    demands: Vec<Vec<Demand>>,
}

impl GroupCounts {
    /// Returns the greatest number of rows that may pass.
    fn max_passing_rows(&self) -> u64 {
        self.passed + self.undecided
    }

    fn decided_row_count(&self) -> u64 {
        self.passed + self.failed
    }
}

impl WholeGroups {
    /// Records a row of a group. `state` is 1 if it passes, 0 if it fails, and 2 if it is
    /// undecided.
    pub fn add_row(
        &mut self,
        (needed, largest): (u64, bool),
        group: Vec<u8>,
        state: i64,
        demands: Vec<Demand>,
    ) {
        self.needed = usize::try_from(needed).unwrap_or(usize::MAX);
        self.largest = largest;
        let group = self.groups.entry(group).or_default();
        match state {
            0 => group.failed += 1,
            1 => group.passed += 1,
            _ => {
                group.undecided += 1;
                if self.stored_count < MAX_PENDING_ROWS {
                    self.stored_count += 1;
                    group.demands.push(demands);
                }
            }
        }
    }

    /// Returns the demands to send, or `None` if all groups that may be returned are decided.
    ///
    /// hqdl asks about the leading groups first: the groups with the most rows if all undecided
    /// rows pass, or with the fewest rows if none of them passes. Each leading group must be
    /// decided or excluded, regardless of the other groups. hqdl doubles the number of a group's
    /// rows with each request, but asks about at most as many rows as can exclude the group. Rows
    /// of other groups fill up the request. The request may grow to an eighth of the decided rows,
    /// so that many groups of similar size need few passes.
    pub fn take_demands(&mut self, request_size: usize) -> Option<Vec<Demand>> {
        let mut groups: Vec<(Vec<u8>, GroupCounts)> = std::mem::take(&mut self.groups)
            .into_iter()
            .filter(|(_, g)| g.max_passing_rows() > 0)
            .collect();
        let all_decided: u64 = groups.iter().map(|(_, g)| g.decided_row_count()).sum();
        let bound = self.compute_bound(&groups);
        groups.retain(|(_, g)| self.count_rows_to_exclude(g, bound) > 0);
        if groups.iter().all(|(_, g)| g.undecided == 0) {
            return None;
        }
        groups.sort_by(|(a, x), (b, y)| self.rank(x).cmp(&self.rank(y)).then_with(|| a.cmp(b)));
        let is_undecided = |(_, group): &&(Vec<u8>, GroupCounts)| group.undecided > 0;
        let leader_count = groups.iter().take(self.needed).filter(is_undecided).count() as u64;
        let share = (request_size as u64).div_ceil(leader_count.max(1));
        let max_size = (all_decided / 8).max(request_size as u64);
        let mut chosen: Distinct<Demand> = Distinct::default();
        for (n, (_, group)) in groups.into_iter().enumerate() {
            let needed = self.count_rows_to_exclude(&group, bound);
            let may_wait = needed > group.undecided || chosen.len() as u64 >= max_size;
            if n >= self.needed && !chosen.is_empty() && may_wait {
                continue;
            }
            let size = group.decided_row_count().max(share).min(needed);
            let size = usize::try_from(size).unwrap_or(usize::MAX);
            chosen.extend(group.demands.into_iter().take(size).flatten());
        }
        Some(chosen.into_iter().collect())
    }

    /// Returns a bound on the row count of the last needed group: a lower bound, or an upper bound
    /// if the groups with the fewest rows are needed.
    fn compute_bound(&self, groups: &[(Vec<u8>, GroupCounts)]) -> u64 {
        let last = self.needed.saturating_sub(1);
        if self.largest {
            let mut least: Vec<u64> = groups.iter().map(|(_, g)| g.passed).collect();
            least.sort_unstable_by_key(|n| Reverse(*n));
            least.get(last).copied().unwrap_or(0)
        } else {
            // A group without a passing row may be missing from the result, so skip such groups.
            let certain = groups.iter().filter(|(_, g)| g.passed > 0);
            let mut most: Vec<u64> = certain.map(|(_, g)| g.max_passing_rows()).collect();
            most.sort_unstable();
            most.get(last).copied().unwrap_or(u64::MAX)
        }
    }

    /// Returns how many more rows must fail in order to exclude a group; if the groups with the
    /// fewest rows are needed, how many more must pass. Returns 0 if the group is already excluded.
    fn count_rows_to_exclude(&self, group: &GroupCounts, bound: u64) -> u64 {
        if self.largest {
            group.max_passing_rows().saturating_add(1).saturating_sub(bound)
        } else {
            bound.saturating_add(1).saturating_sub(group.passed)
        }
    }

    /// Returns the sort key by which the leading groups come first.
    fn rank(&self, group: &GroupCounts) -> (u64, u64) {
        if self.largest {
            (u64::MAX - group.max_passing_rows(), u64::MAX - group.passed)
        } else {
            (group.passed, group.max_passing_rows())
        }
    }
}
