//! LIMIT pushdown at run time (the rule is `blendsql::rules::first_rows`): reads candidate rows as
//! they arrive, and decides whether the result is complete or which demands to send.

use std::collections::HashMap;

use rusqlite::types::{Value as Sql, ValueRef};

use super::learning::Learning;
use super::live::notes::{Candidate, Distinct, RowState, WITNESSES};
use super::live::{Shared, lock};
use super::smoothie::{Sink, owned};
use super::targets::{Demand, spell};
use hqdl_sql::blendsql::plan::FirstRows;

/// Maximum number of values in the first batch, before any outcome is known.
const MOST: u64 = 20;
/// Number of rows to keep reading after enough demands are known, because a later row may complete
/// the result without a request.
const READ_ON: u64 = 100_000;

/// Sink that reads candidate rows.
pub struct Reader<'r> {
    rule: &'r FirstRows,
    live: Shared,
    /// Rows per request.
    together: u64,
    /// Number of rows already asked about, and how many of them passed.
    seen: (u64, u64),
    columns: Vec<String>,
    /// Rows in their order; with DISTINCT, one entry for all equal rows.
    rows: Vec<CandidateRow>,
    /// With DISTINCT: position in `rows` by the row's canonical bytes.
    places: HashMap<Vec<u8>, usize>,
    read: u64,
    certain: u64,
    waiting: u64,
    /// All demands of the rows read.
    demands: Distinct<Demand>,
    /// Whether the order of the conditions is still being sampled.
    learns: bool,
    /// No request was sent yet, so rows may be certain because of earlier queries.
    fresh: bool,
}

/// A row, or with DISTINCT all rows that are equal.
struct CandidateRow {
    values: Vec<Sql>,
    rank: i64,
    state: RowState,
    /// Values of the columns with calls.
    held: Vec<Sql>,
    /// Demands of the row; for equal rows, the demands of some of them.
    waits: Vec<Vec<Demand>>,
    /// Number of equal rows that failed.
    failed: usize,
}

impl CandidateRow {
    /// Returns the demands to send for the row. For equal rows these are the demands of one of
    /// them, or of more if more of them have failed.
    fn witnesses(&self) -> &[Vec<Demand>] {
        &self.waits[..self.waits.len().min(self.failed.clamp(1, WITNESSES))]
    }
}

/// Outcome of reading the candidates.
pub enum Told {
    /// Columns and rows of the result.
    Rows(Vec<String>, Vec<Vec<Sql>>),
    /// Demands to send.
    Ask(Vec<Demand>),
}

impl<'r> Reader<'r> {
    /// Returns a reader that has read nothing.
    pub fn new(
        rule: &'r FirstRows,
        live: &Shared,
        together: u64,
        seen: (u64, u64),
        fresh: bool,
    ) -> Self {
        Self {
            rule,
            live: Shared::clone(live),
            together: together.max(1),
            seen,
            columns: Vec::new(),
            rows: Vec::new(),
            places: HashMap::new(),
            read: 0,
            certain: 0,
            waiting: 0,
            demands: Distinct::default(),
            learns: rule.need.is_none() && rule.conditions > 1,
            fresh,
        }
    }

    /// Returns the number of rows to ask about next, so that about as many pass as are missing.
    fn wave(&self, certain: u64) -> u64 {
        let lacking = match self.rule.need {
            Some(need) => need.saturating_sub(certain).max(1),
            None => return u64::MAX,
        };
        let (asked, passed) = self.seen;
        let few = lacking.saturating_mul(asked + 2) / (passed + 2).min(asked + 2);
        let few = few.clamp(1, MOST.max(lacking).max(asked / 32));
        if self.rule.ranked {
            // The most likely rows come first, and few documents share a request.
            return few;
        }
        few.div_ceil(self.together).saturating_mul(self.together)
    }

    /// Returns whether later rows can no longer matter. If rows are equal or unordered, a later row
    /// may be certain and save a request, so reading continues for a while.
    fn enough(&self) -> bool {
        if self.rule.ranked || self.rule.distinct && self.read < READ_ON {
            return false;
        }
        let full = self.rule.need.is_some_and(|need| self.certain >= need);
        let any = !self.rule.ordered && self.fresh && self.read < READ_ON;
        full || !any && self.waiting >= self.wave(self.certain)
    }

    /// Returns the outcome of the rows that were read.
    pub fn told(mut self, learning: &mut Learning) -> Told {
        if self.rule.ranked {
            self.rows.sort_by_key(|row| row.rank);
        }
        let (need, skipped) = (self.rule.need.unwrap_or(u64::MAX), self.rule.skipped);
        let (mut chosen, mut open, mut unvalued) = (Vec::new(), Vec::new(), Vec::new());
        for row in &self.rows {
            match row.state {
                RowState::Fails => continue,
                RowState::Possible => open.push(row),
                RowState::Certain | RowState::Unvalued => {
                    if chosen.len() as u64 >= skipped && row.state == RowState::Unvalued {
                        unvalued.push(row);
                    }
                    chosen.push(row);
                }
            }
            if chosen.len() as u64 >= need {
                break;
            }
        }
        let full = chosen.len() as u64 >= need;
        // Without an order, any rows are correct.
        let settled = open.is_empty() || full && !self.rule.ordered;
        let waiting = |rows: &[&'_ CandidateRow], most: u64| -> Vec<Vec<Demand>> {
            let all = rows.iter().flat_map(|row| row.witnesses()).filter(|d| !d.is_empty());
            all.take(usize::try_from(most).unwrap_or(usize::MAX)).cloned().collect()
        };
        let asked = if settled {
            if unvalued.is_empty() {
                let from = usize::try_from(skipped).unwrap_or(usize::MAX).min(chosen.len());
                let rows = chosen[from..].iter().map(|row| self.row_of(row)).collect();
                return Told::Rows(self.columns, rows);
            }
            waiting(&unvalued, u64::MAX).concat()
        } else if self.learns {
            let rows = waiting(&open, u64::MAX);
            let asked = learning.some(rows.iter().map(Vec::as_slice).collect());
            learning.learnt();
            asked
        } else {
            waiting(&open, self.wave(chosen.len() as u64)).concat()
        };
        if !asked.is_empty() {
            return Told::Ask(asked);
        }
        // The demands of these rows were recorded with other rows.
        Told::Ask(self.demands.into_iter().collect())
    }

    /// Adds a row, or merges it into its entry if an equal row exists (DISTINCT).
    fn take(&mut self, values: Vec<Sql>, rank: i64, candidate: Candidate) {
        let Candidate { state, demands, held } = candidate;
        self.demands.extend(demands.iter().copied());
        let failed = usize::from(state == RowState::Fails);
        let row = CandidateRow { values, rank, state, held, waits: vec![demands], failed };
        if !self.rule.distinct {
            if state != RowState::Fails {
                self.count(&row, 1);
                self.rows.push(row);
            }
            return;
        }
        let mut key = Vec::new();
        let values: Vec<ValueRef<'_>> = row.values.iter().map(equal).collect();
        spell(&values, &mut key);
        let at = *self.places.entry(key).or_insert(self.rows.len());
        let Some(mut known) = self.rows.get_mut(at).map(|known| {
            let none =
                CandidateRow { values: Vec::new(), held: Vec::new(), waits: Vec::new(), ..*known };
            std::mem::replace(known, none)
        }) else {
            self.count(&row, 1);
            self.rows.push(row);
            return;
        };
        self.count(&known, -1);
        known.failed += failed;
        let better = |state| match state {
            RowState::Certain => 2,
            RowState::Possible | RowState::Unvalued => 1,
            RowState::Fails => 0,
        };
        let is_better = better(state) > better(known.state);
        match (known.state, state) {
            // For a row whose values are missing, send only the demands of these values.
            _ if is_better => {
                (known.state, known.held, known.waits) = (state, row.held, row.waits);
            }
            (RowState::Possible, RowState::Possible) if known.waits.len() < WITNESSES => {
                known.waits.extend(row.waits);
            }
            _ => {}
        }
        self.count(&known, 1);
        self.rows[at] = known;
    }

    /// Adds `by` to the counter that the row belongs to.
    fn count(&mut self, row: &CandidateRow, by: i64) {
        let counted = match row.state {
            RowState::Fails => return,
            RowState::Possible if row.waits.iter().all(Vec::is_empty) => return,
            RowState::Possible => &mut self.waiting,
            RowState::Certain | RowState::Unvalued => &mut self.certain,
        };
        *counted = counted.saturating_add_signed(by);
    }

    /// Returns a row of the result, with the values of its calls filled in.
    fn row_of(&self, row: &CandidateRow) -> Vec<Sql> {
        let mut values = row.values.clone();
        // A preceding `*` expands to several columns.
        let more = values.len() - self.rule.written.min(values.len());
        for (at, value) in self.rule.held.iter().zip(&row.held) {
            let at = at + if self.rule.star_before(*at) { more } else { 0 };
            if let Some(place) = values.get_mut(at) {
                value.clone_into(place);
            }
        }
        values
    }
}

/// Returns the value in the form in which DISTINCT compares it.
fn equal(value: &Sql) -> ValueRef<'_> {
    match value {
        Sql::Real(r) if r.fract() == 0.0 && r.abs() < 9e15 => ValueRef::Integer(*r as i64),
        other => ValueRef::from(other),
    }
}

impl Sink for Reader<'_> {
    fn columns(&mut self, names: &[String]) -> std::io::Result<()> {
        let ours = if self.rule.ranked { 2 } else { 1 };
        self.columns = names[..names.len().saturating_sub(ours)].to_vec();
        Ok(())
    }

    fn row(&mut self, row: &[ValueRef<'_>]) -> std::io::Result<()> {
        let number = |value: Option<&ValueRef<'_>>| match value {
            Some(ValueRef::Integer(n)) => *n,
            _ => i64::MAX,
        };
        let width = self.columns.len();
        let candidate = number(row.last());
        let rank = if self.rule.ranked { number(row.get(width)) } else { 0 };
        let candidate = lock(&self.live).pass.notes.candidates.remove(&candidate);
        // With DISTINCT, rows that failed are counted, too.
        if let Some(candidate) = candidate {
            let values = row[..width].iter().map(|v| owned(*v)).collect();
            self.take(values, rank, candidate);
        }
        self.read += 1;
        if self.enough() { Err(std::io::Error::other(EnoughRows)) } else { Ok(()) }
    }

    fn finish(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Error with which a [`Reader`] ends a statement when it needs no more rows.
#[derive(Debug, thiserror::Error)]
#[error("enough rows")]
struct EnoughRows;

/// Returns whether a [`Reader`] ended the statement because it needs no more rows.
pub(super) fn is_enough(error: &std::io::Error) -> bool {
    error.get_ref().and_then(|inner| inner.downcast_ref::<EnoughRows>()).is_some()
}
