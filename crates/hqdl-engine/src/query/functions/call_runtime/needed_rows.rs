//! Rows of SELECTs that need only the first passing rows of each group. The plan decides which
//! SELECTs these are (`rules::first_of_group`).
//!
//! An undecided row counts as not passing until it is decided. Its group is decided once enough
//! rows pass and no undecided row precedes them. If ties are needed, no undecided row may tie with
//! the last of these rows either. The recorded state depends only on the rows, not on the order in
//! which `SQLite` reads them.

use std::cmp::Ordering;

use indexmap::IndexMap;
use rusqlite::types::{Value as Sql, ValueRef};

use crate::query::cells::targets::Demand;
use crate::query::functions::call_runtime::pending_set::{Distinct, encode_comparable};
use crate::query::functions::call_runtime::whole_groups::WholeGroups;
use crate::query::result::query_result::to_owned_value;
use hqdl_sql::blendsql::plan::{NeededPart, NeededRows, OrderKey};

/// Recorded rows of a pass, by their set and group.
#[derive(Default)]
pub struct NeededGroups {
    groups: IndexMap<(usize, Vec<u8>), GroupRows, foldhash::fast::RandomState>,
    whole_groups: WholeGroups,
    /// Number of undecided rows.
    pub undecided_count: usize,
}

/// Recorded rows of a group.
struct GroupRows {
    /// Number of rows that must pass.
    needed: u64,
    /// Number of decided rows.
    decided: u64,
    order: Vec<OrderKey>,
    /// Whether rows that are equal to the last needed row are needed, too.
    with_ties: bool,
    /// Rows that pass or are undecided.
    rows: Vec<GroupRow>,
}

struct GroupRow {
    order_values: Vec<Sql>,
    passes: bool,
    demands: Vec<Demand>,
}

impl NeededGroups {
    /// Records a row with the values of its group and order. `state` is 1 if it passes, 0 if it
    /// fails, and 2 if it is undecided.
    pub fn add_row(
        &mut self,
        needed: &NeededRows,
        values: &[ValueRef<'_>],
        state: i64,
        demands: Vec<Demand>,
    ) {
        let (group_values, order_values) = values.split_at(needed.groups.len().min(values.len()));
        let group = encode_comparable(group_values);
        if let NeededPart::WholeGroups { largest } = needed.part {
            return self.whole_groups.add_row((needed.count, largest), group, state, demands);
        }
        let rows = self.groups.entry((needed.set, group)).or_insert_with(|| GroupRows {
            needed: needed.count,
            decided: 0,
            order: needed.order.clone(),
            with_ties: needed.part == NeededPart::FirstRowsWithTies,
            rows: Vec::new(),
        });
        rows.decided += u64::from(state != 2);
        self.undecided_count += usize::from(state == 2);
        if state != 0 {
            let order_values = order_values.iter().map(|v| to_owned_value(*v)).collect();
            rows.rows.push(GroupRow { order_values, passes: state == 1, demands });
        }
    }

    /// Returns the demands to send, or `None` if all groups are decided. The number of rows of a
    /// group doubles with each request, so that hqdl asks about at most twice as many rows as
    /// needed. A request with fewer than `rows_per_request` demands is filled up with demands of
    /// later rows.
    pub fn take_demands(&mut self, rows_per_request: u64) -> Option<Vec<Demand>> {
        let request_size = usize::try_from(rows_per_request).unwrap_or(usize::MAX);
        let (mut chosen, mut more): (Distinct<Demand>, Vec<Demand>) = Default::default();
        let of_whole_groups = self.whole_groups.take_demands(request_size);
        let mut is_decided = of_whole_groups.is_none();
        chosen.extend(of_whole_groups.unwrap_or_default());
        for (_, group) in std::mem::take(&mut self.groups) {
            let decided = group.decided;
            let (undecided, missing) = group.into_undecided_demands();
            is_decided &= undecided.is_empty();
            let batch_size = usize::try_from(missing.max(decided)).unwrap_or(usize::MAX);
            for (n, row) in undecided.into_iter().enumerate() {
                if n < batch_size { chosen.extend(row) } else { more.extend(row) }
            }
        }
        self.undecided_count = 0;
        for demand in more {
            if chosen.len() >= request_size {
                break;
            }
            chosen.insert(demand);
        }
        (!is_decided).then(|| chosen.into_iter().collect())
    }
}

impl GroupRows {
    /// Returns the demands of the undecided rows that precede the last needed row, and the number
    /// of rows that are still missing.
    fn into_undecided_demands(mut self) -> (Vec<Vec<Demand>>, u64) {
        let order = std::mem::take(&mut self.order);
        // Unless ties are needed, any passing row among ties is a valid result, so sort passing
        // rows first.
        let with_ties = self.with_ties;
        self.rows.sort_by(|a, b| {
            let by_state = a.passes.cmp(&b.passes);
            let by_state = if with_ties { by_state } else { by_state.reverse() };
            compare_rows(a, b, &order).then(by_state)
        });
        let (mut undecided, mut passed) = (Vec::new(), 0);
        for row in self.rows {
            if passed >= self.needed {
                break;
            }
            if row.passes {
                passed += 1;
            } else {
                undecided.push(row.demands);
            }
        }
        (undecided, self.needed.saturating_sub(passed).max(1))
    }
}

fn compare_rows(a: &GroupRow, b: &GroupRow, order: &[OrderKey]) -> Ordering {
    let values = a.order_values.iter().zip(&b.order_values).zip(order);
    let compare = |((a, b), key): ((&Sql, &Sql), &OrderKey)| match (a, b) {
        (Sql::Null, Sql::Null) => Ordering::Equal,
        (Sql::Null, _) if key.nulls_first => Ordering::Less,
        (Sql::Null, _) => Ordering::Greater,
        (_, Sql::Null) if key.nulls_first => Ordering::Greater,
        (_, Sql::Null) => Ordering::Less,
        (a, b) if key.descending => compare_values(b, a),
        (a, b) => compare_values(a, b),
    };
    values.map(compare).find(|o| o.is_ne()).unwrap_or(Ordering::Equal)
}

/// Compares two values as `SQLite` does with the collation BINARY.
fn compare_values(a: &Sql, b: &Sql) -> Ordering {
    let class = |value: &Sql| match value {
        Sql::Null => 0,
        Sql::Integer(_) | Sql::Real(_) => 1,
        Sql::Text(_) => 2,
        Sql::Blob(_) => 3,
    };
    match (a, b) {
        (Sql::Integer(a), Sql::Integer(b)) => a.cmp(b),
        (Sql::Real(a), Sql::Real(b)) => a.partial_cmp(b).unwrap_or(Ordering::Equal),
        (Sql::Integer(a), Sql::Real(b)) => compare_numbers(*a, *b),
        (Sql::Real(a), Sql::Integer(b)) => compare_numbers(*b, *a).reverse(),
        (Sql::Text(a), Sql::Text(b)) => a.as_bytes().cmp(b.as_bytes()),
        (Sql::Blob(a), Sql::Blob(b)) => a.cmp(b),
        (a, b) => class(a).cmp(&class(b)),
    }
}

/// Compares an integer with a real number without rounding.
fn compare_numbers(integer: i64, real: f64) -> Ordering {
    // 2^63 is the smallest `f64` that is greater than every `i64`.
    const LIMIT: f64 = 9_223_372_036_854_775_808.0;
    if real >= LIMIT {
        return Ordering::Less;
    }
    if real < -LIMIT {
        return Ordering::Greater;
    }
    let whole = real.trunc();
    let by_whole = integer.cmp(&(whole as i64));
    by_whole.then(0.0_f64.partial_cmp(&(real - whole)).unwrap_or(Ordering::Equal))
}
