//! Records the demands of a statement row by row while `SQLite` evaluates its conditions.
//!
//! A frame is opened, the condition is evaluated, and the frame is closed, all while `SQLite`
//! evaluates one expression. The recorded demands therefore depend only on the row and the known
//! values, not on the number or order of rows. They determine which requests are sent next. They
//! affect the result of a condition only for EXISTS and IN, because one certain row decides their
//! result regardless of pending rows.

use foldhash::HashMap;
use indexmap::{IndexMap, IndexSet};
use rusqlite::types::{Value as Sql, ValueRef};

use crate::query::cells::canonical_bytes::write_canonical_bytes;
use crate::query::cells::targets::Demand;
use crate::query::functions::call_runtime::{CallRuntime, function_error, integer_argument};
use crate::query::result::query_result::to_owned_value;
#[cfg(doc)]
use hqdl_sql::blendsql::runtime::Function;

/// Maximum number of rows to ask about at once, per EXISTS or per value of an IN.
pub const MAX_EXISTS_CANDIDATES: usize = 20;
/// Maximum number of undecided rows that a pass records. Depending on the rule, a pass that exceeds
/// the maximum is aborted or stops recording demands.
pub(super) const MAX_PENDING_ROWS: usize = 1_000_000;

/// Distinct items in insertion order.
pub type Distinct<T> = IndexSet<T, foldhash::fast::RandomState>;

/// The rows of an EXISTS or IN that have the same value.
#[derive(Debug, Default)]
struct ExistsCandidates {
    /// Whether a row is certain, so that other rows with this value do not change the result.
    is_certain: bool,
    /// Whether at least one row is pending.
    has_pending: bool,
    failed_count: usize,
    /// Demands of a sample of these rows.
    demand_sets: Distinct<Vec<Demand>>,
}

impl ExistsCandidates {
    fn add_row(&mut self, state: i64, demands: Vec<Demand>) {
        match state {
            0 => self.failed_count += 1,
            1 => {
                self.is_certain = true;
                self.demand_sets.clear();
            }
            _ => {
                self.has_pending = true;
                if !self.is_certain && self.demand_sets.len() < MAX_EXISTS_CANDIDATES {
                    self.demand_sets.insert(demands);
                }
            }
        }
    }

    /// Returns the demands to send: the demands of one row, or of more rows if some rows have
    /// already failed. Returns no demands if a row is certain.
    fn into_demands(self) -> impl Iterator<Item = Demand> {
        let max_rows = self.sample_size();
        self.demand_sets.into_iter().take(max_rows).flatten()
    }

    fn sample_size(&self) -> usize {
        if self.is_certain {
            0
        } else {
            self.failed_count.saturating_add(1).min(MAX_EXISTS_CANDIDATES)
        }
    }
}

/// Rows of an EXISTS or IN, by their value.
type RowsByValue = IndexMap<Vec<u8>, ExistsCandidates, foldhash::fast::RandomState>;

/// A candidate for the first rows of a SELECT.
#[derive(Debug, Clone)]
pub struct Candidate {
    /// State of the row.
    pub state: RowState,
    /// Demands of the row.
    pub demands: Vec<Demand>,
    /// Values of the row's columns with calls.
    pub call_values: Vec<Sql>,
}

/// State of a candidate row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowState {
    /// A condition fails.
    Failed,
    /// All conditions hold, and all values of the row are known.
    Certain,
    /// A condition is undecided.
    Possible,
    /// All conditions hold, but a value is missing.
    MissingValue,
}

/// An open frame of recorded demands.
struct PendingFrame {
    group: usize,
    /// Whether the frame covers all rows of an EXISTS or IN instead of one row.
    is_subquery: bool,
    pending_count: i64,
    /// Number of pending calls before the row, by call number; `None` unless the row belongs to a
    /// SELECT with needed rows.
    pending_by_call: Option<Vec<u64>>,
    demands: Vec<Demand>,
    call_values: Vec<Sql>,
    /// Rows of the frame, grouped by value.
    rows: RowsByValue,
    /// Number of pending calls in the frame's rows.
    pending_in_rows: i64,
}

/// Demands of rows with undecided conditions, by condition group. Rows with equal demands share one
/// entry. There may be a million rows, most of them with a single demand.
#[derive(Default)]
pub struct PendingRows {
    with_one_demand: Distinct<(u32, Demand)>,
    others: Distinct<(usize, Vec<Demand>)>,
}

impl PendingRows {
    fn insert(&mut self, group: usize, demands: Vec<Demand>) {
        match demands[..] {
            [demand] => drop(self.with_one_demand.insert((group as u32, demand))),
            _ => drop(self.others.insert((group, demands))),
        }
    }

    fn len(&self) -> usize {
        self.with_one_demand.len() + self.others.len()
    }

    /// Returns the demands of each row, with its condition group.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &[Demand])> {
        let with_one = self.with_one_demand.iter();
        let with_one =
            with_one.map(|(group, demand)| (*group as usize, std::slice::from_ref(demand)));
        with_one.chain(self.others.iter().map(|(group, demands)| (*group, demands.as_slice())))
    }
}

/// Recorded demands of a statement.
#[derive(Default)]
pub struct PendingSet {
    stack: Vec<PendingFrame>,
    /// Rows with undecided conditions.
    pub rows: PendingRows,
    /// Demands that belong to no row.
    pub without_row: Distinct<Demand>,
    /// Candidates for the first rows, by number, until they are read.
    pub candidates: HashMap<i64, Candidate>,
    candidate_count: i64,
    /// Subqueries with pending rows that run only once, because `SQLite` caches their result. Each
    /// entry contains the demands of these rows that have not been recorded yet.
    cached_subqueries: HashMap<usize, Vec<Demand>>,
    /// Rows of subqueries, by condition group. An outer row waits only for the inner rows that
    /// equal its operand. An entry is `None` if calls outside of the inner rows' conditions are
    /// pending, so that every outer row waits.
    rows_by_value: HashMap<usize, Option<RowsByValue>>,
}

impl PendingSet {
    /// Returns all demands without duplicates.
    #[must_use]
    pub fn all_demands(&self) -> Vec<Demand> {
        let rows = self.rows.iter().flat_map(|(_, demands)| demands);
        let candidates = self.candidates.values().flat_map(|c| &c.demands);
        let all: Distinct<Demand> =
            self.without_row.iter().chain(rows).chain(candidates).copied().collect();
        all.into_iter().collect()
    }

    /// Records a demand in the innermost frame.
    pub fn add_demand(&mut self, demand: Demand) {
        match self.stack.last_mut() {
            Some(frame) => frame.demands.push(demand),
            None => drop(self.without_row.insert(demand)),
        }
    }

    fn pop_frame(&mut self, is_subquery: bool) -> rusqlite::Result<PendingFrame> {
        let frame = self.stack.pop().filter(|f| f.is_subquery == is_subquery);
        frame.ok_or_else(|| {
            function_error("internal error: the innermost frame is missing or of the wrong kind")
        })
    }
}

impl CallRuntime {
    /// Implements [`Function::OpenRow`], and [`Function::OpenSubquery`] for all rows of an EXISTS
    /// or IN.
    pub(in crate::query) fn open_frame(
        &mut self,
        values: &[ValueRef<'_>],
        is_subquery: bool,
    ) -> Sql {
        let group = usize::try_from(integer_argument(values, 0)).unwrap_or_default();
        let pending_count = self.pass.pending_count;
        let (demands, call_values, rows) = (Vec::new(), Vec::new(), IndexMap::default());
        let is_needed = !is_subquery && self.settings.needed_rows.contains_key(&group);
        let pending_by_call = is_needed.then(|| self.pass.pending_by_call.clone());
        self.pass.pending.stack.push(PendingFrame {
            group,
            is_subquery,
            pending_count,
            pending_by_call,
            demands,
            call_values,
            rows,
            pending_in_rows: 0,
        });
        Sql::Integer(0)
    }

    /// Implements [`Function::CloseRow`].
    pub(in crate::query) fn close_frame(
        &mut self,
        values: &[ValueRef<'_>],
    ) -> rusqlite::Result<Sql> {
        let mut frame = self.pass.pending.pop_frame(false)?;
        let (state, pending_in_frame) =
            (integer_argument(values, 1), self.pass.pending_count - frame.pending_count);
        let no_short_circuit = self.settings.no_short_circuit;
        if let Some(pending_by_call) = frame.pending_by_call.take()
            && !no_short_circuit
        {
            // The row's group decides whether the pass is final.
            self.pass.pending_count = frame.pending_count;
            self.pass.pending_by_call = pending_by_call;
            if let Some(needed) = self.settings.needed_rows.get(&frame.group)
                && (self.pass.lookup_scopes.is_empty() || state != 2)
            {
                let values = values.get(2..).unwrap_or_default();
                self.pass.needed.add_row(needed, values, state, frame.demands);
            }
            if self.pass.needed.undecided_count > MAX_PENDING_ROWS {
                return Err(self.abort_pass());
            }
            return Ok(Sql::Integer(i64::from(state == 1)));
        }
        let pending = &mut self.pass.pending;
        match pending.stack.last_mut() {
            Some(subquery)
                if subquery.is_subquery && subquery.group == frame.group && !no_short_circuit =>
            {
                let value = encode_comparable(values.get(2..).unwrap_or_default());
                subquery.pending_in_rows += pending_in_frame;
                subquery.rows.entry(value).or_default().add_row(state, frame.demands);
            }
            Some(outer) => outer.demands.extend(frame.demands),
            None if !frame.demands.is_empty() => {
                pending.rows.insert(frame.group, frame.demands);
                if pending.rows.len() > MAX_PENDING_ROWS {
                    return Err(self.abort_pass());
                }
            }
            None => {}
        }
        Ok(Sql::Integer(i64::from(state == 1)))
    }

    /// Implements [`Function::CloseSubquery`].
    pub(in crate::query) fn close_subquery(
        &mut self,
        values: &[ValueRef<'_>],
    ) -> rusqlite::Result<Sql> {
        let frame = self.pass.pending.pop_frame(true)?;
        let (decided_value, runs_once) =
            (integer_argument(values, 0), integer_argument(values, 1) == 1);
        let value = values.get(3).map_or(Sql::Null, |v| to_owned_value(*v));
        let (mut frame, operand) = (frame, values.get(4));
        if let Some(operand) = operand.filter(|_| !self.settings.no_short_circuit)
            && self.demand_rows_equal_to(&mut frame, *operand)
        {
            return Ok(value);
        }
        let pending_in_frame = self.pass.pending_count - frame.pending_count;
        // Once a row with a value is certain, other rows with this value change nothing.
        let is_decided = value == Sql::Integer(decided_value)
            || frame.rows.values().all(|value| value.is_certain || !value.has_pending);
        if is_decided
            && pending_in_frame == frame.pending_in_rows
            && pending_in_frame > 0
            && !self.settings.no_short_circuit
        {
            self.pass.pending_count = frame.pending_count;
            // The value is decided only for this outer row; other outer rows are compared with the
            // same cached rows.
            if runs_once && frame.rows.values().any(|value| value.has_pending && !value.is_certain)
            {
                let missing =
                    frame.rows.into_values().flat_map(ExistsCandidates::into_demands).collect();
                self.pass.pending.cached_subqueries.insert(frame.group, missing);
            }
            return Ok(value);
        }
        if pending_in_frame > 0 {
            if runs_once {
                self.pass.pending.cached_subqueries.insert(frame.group, Vec::new());
            }
            let row_demands = frame.rows.into_values().flat_map(ExistsCandidates::into_demands);
            for demand in frame.demands.into_iter().chain(row_demands) {
                self.pass.pending.add_demand(demand);
            }
        } else if runs_once
            && value != Sql::Integer(decided_value)
            && let Some(missing) = self.pass.pending.cached_subqueries.get(&frame.group).cloned()
        {
            self.pass.pending_count += 1;
            missing.into_iter().for_each(|demand| self.pass.pending.add_demand(demand));
        }
        Ok(value)
    }

    /// If `SQLite` runs the subquery only once, records the demands of the subquery's rows that
    /// equal the operand. Returns false if the outer row must wait for all rows.
    fn demand_rows_equal_to(&mut self, frame: &mut PendingFrame, operand: ValueRef<'_>) -> bool {
        let pending_in_frame = self.pass.pending_count - frame.pending_count;
        let pending = &mut self.pass.pending;
        let is_by_value = frame.demands.is_empty() && pending_in_frame == frame.pending_in_rows;
        let rows = pending
            .rows_by_value
            .entry(frame.group)
            .or_insert_with(|| is_by_value.then(|| std::mem::take(&mut frame.rows)));
        let Some(rows) = rows else { return false };
        self.pass.pending_count = frame.pending_count;
        if operand == ValueRef::Null {
            return true;
        }
        if let Some(candidates) = rows.get(&encode_comparable(&[operand]))
            && candidates.has_pending
            && !candidates.is_certain
        {
            let sample = candidates.demand_sets.iter().take(candidates.sample_size());
            let demands: Vec<Demand> = sample.flatten().copied().collect();
            self.pass.pending_count += 1;
            demands.into_iter().for_each(|demand| pending.add_demand(demand));
        }
        true
    }

    /// Implements [`Function::StoreCallValues`].
    pub(in crate::query) fn store_call_values(&mut self, values: &[ValueRef<'_>]) -> Sql {
        let is_known = integer_argument(values, 0) == self.pass.pending_count + 1;
        let silent_calls = usize::try_from(integer_argument(values, 1)).unwrap_or_default();
        let (calls, call_values) = values.split_at((2 + silent_calls).min(values.len()));
        let is_pending = (2..calls.len()).any(|n| {
            usize::try_from(integer_argument(calls, n))
                .is_ok_and(|c| self.pass.pending_by_call.get(c) > Some(&0))
        });
        if let Some(frame) = self.pass.pending.stack.last_mut() {
            frame.call_values = call_values.iter().map(|v| to_owned_value(*v)).collect();
        }
        Sql::Integer(if is_known && !is_pending { 1 } else { 3 })
    }

    /// Implements [`Function::NumberRow`].
    pub(in crate::query) fn number_row(
        &mut self,
        values: &[ValueRef<'_>],
    ) -> rusqlite::Result<Sql> {
        let frame = self.pass.pending.pop_frame(false)?;
        let is_pending = self.pass.pending_count > frame.pending_count;
        let state = match integer_argument(values, 1) {
            3 => RowState::MissingValue,
            2 => RowState::Possible,
            _ if is_pending => RowState::Possible,
            1 => RowState::Certain,
            _ => RowState::Failed,
        };
        self.pass.pending_count = frame.pending_count;
        let pending = &mut self.pass.pending;
        pending.candidate_count += 1;
        let PendingFrame { demands, call_values, .. } = frame;
        pending
            .candidates
            .insert(pending.candidate_count, Candidate { state, demands, call_values });
        Ok(Sql::Integer(pending.candidate_count))
    }

    /// Marks the pass as aborted and returns the error that ends the statement.
    pub(in crate::query) fn abort_pass(&mut self) -> rusqlite::Error {
        self.pass.is_aborted = true;
        function_error("internal error: the pass has reached its limit of pending calls")
    }
}

/// Encodes values as bytes. Values that `SQLite` compares as equal, without a collation, have the
/// same bytes.
pub(super) fn encode_comparable(values: &[ValueRef<'_>]) -> Vec<u8> {
    let values: Vec<ValueRef<'_>> =
        values.iter().map(|value| normalize_whole_number(*value)).collect();
    let mut bytes = Vec::new();
    write_canonical_bytes(&values, &mut bytes);
    bytes
}

/// Converts a real number that equals an integer to that integer; returns other values unchanged.
fn normalize_whole_number(value: ValueRef<'_>) -> ValueRef<'_> {
    // 2^63 is the smallest `f64` that is greater than every `i64`.
    const LIMIT: f64 = 9_223_372_036_854_775_808.0;
    match value {
        ValueRef::Real(r) if r.fract() == 0.0 && (-LIMIT..LIMIT).contains(&r) => {
            ValueRef::Integer(r as i64)
        }
        other => other,
    }
}
