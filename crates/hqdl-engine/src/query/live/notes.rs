//! Records the demands of a statement row by row while `SQLite` evaluates its conditions.
//!
//! A frame is opened, the condition is evaluated, and the frame is closed, all within the
//! evaluation of one expression. What is recorded therefore depends only on the row and the known
//! values, not on the number or order of rows. The recorded demands determine which requests are
//! sent next. They affect the result of a condition only for EXISTS and IN: one certain row decides
//! these, whatever rows are pending.

use foldhash::HashMap;
use indexmap::{IndexMap, IndexSet};
use rusqlite::types::{Value as Sql, ValueRef};

use crate::query::live::{Live, broken, int};
use crate::query::smoothie::owned;
use crate::query::targets::{Demand, spell};
#[cfg(doc)]
use hqdl_sql::blendsql::runtime::Function;

/// Maximum number of rows of an EXISTS, or of one value of an IN, that are asked about at once.
pub const WITNESSES: usize = 20;
/// Maximum number of rows with different demands that one pass records.
const MOST_ROWS: usize = 1_000_000;

/// Distinct items in insertion order.
pub type Distinct<T> = IndexSet<T, foldhash::fast::RandomState>;

/// The rows of an EXISTS or IN that have the same value.
#[derive(Debug, Default)]
struct Witnesses {
    /// One row is certain, so other rows with this value change nothing.
    certain: bool,
    /// At least one row is pending.
    open: bool,
    failed: usize,
    /// Demands of a sample of these rows.
    waits: Distinct<Vec<Demand>>,
}

impl Witnesses {
    fn take(&mut self, state: i64, demands: Vec<Demand>) {
        match state {
            0 => self.failed += 1,
            1 => {
                self.certain = true;
                self.waits.clear();
            }
            _ => {
                self.open = true;
                if !self.certain && self.waits.len() < WITNESSES {
                    self.waits.insert(demands);
                }
            }
        }
    }

    /// Returns the demands to send: those of one row, or of more rows if more have failed. None if
    /// a row is certain.
    fn asked(self) -> impl Iterator<Item = Demand> {
        let most = if self.certain { 0 } else { self.failed.saturating_add(1).min(WITNESSES) };
        self.waits.into_iter().take(most).flatten()
    }
}

/// A candidate for the first rows of a SELECT.
#[derive(Debug, Clone)]
pub struct Candidate {
    /// State of the row.
    pub state: RowState,
    /// Demands of the row.
    pub demands: Vec<Demand>,
    /// Values of its columns with calls.
    pub held: Vec<Sql>,
}

/// State of a candidate row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowState {
    /// A condition fails.
    Fails,
    /// All conditions hold, and its values are known.
    Certain,
    /// A condition is undecided.
    Possible,
    /// All conditions hold, but a value is missing.
    Unvalued,
}

/// An open frame of recorded demands.
struct OpenNote {
    unit: usize,
    /// The frame covers all rows of an EXISTS or IN instead of one row.
    run: bool,
    pended: i64,
    demands: Vec<Demand>,
    held: Vec<Sql>,
    /// Its rows, grouped by value.
    rows: IndexMap<Vec<u8>, Witnesses, foldhash::fast::RandomState>,
    /// Number of pending calls in its rows.
    waits: i64,
}

/// Recorded demands of a statement.
#[derive(Default)]
pub struct Notes {
    stack: Vec<OpenNote>,
    /// Demands of rows with undecided conditions, by condition group. Rows with equal demands are
    /// stored once.
    pub rows: Distinct<(usize, Vec<Demand>)>,
    /// Demands that belong to no row.
    pub loose: Distinct<Demand>,
    /// Candidates for the first rows, by number, until they are read.
    pub candidates: HashMap<i64, Candidate>,
    numbered: i64,
    /// Subqueries that run only once and have pending rows, since `SQLite` caches their result. The
    /// values are demands that were not recorded yet.
    waiting: HashMap<usize, Vec<Demand>>,
}

impl Notes {
    /// Returns all demands, each one once.
    #[must_use]
    pub fn all(&self) -> Vec<Demand> {
        let rows = self.rows.iter().flat_map(|(_, demands)| demands);
        let candidates = self.candidates.values().flat_map(|c| &c.demands);
        let all: Distinct<Demand> =
            self.loose.iter().chain(rows).chain(candidates).copied().collect();
        all.into_iter().collect()
    }

    /// Records a demand in the innermost frame.
    pub fn demand(&mut self, demand: Demand) {
        match self.stack.last_mut() {
            Some(frame) => frame.demands.push(demand),
            None => drop(self.loose.insert(demand)),
        }
    }

    fn pop(&mut self, run: bool) -> rusqlite::Result<OpenNote> {
        let frame = self.stack.pop().filter(|f| f.run == run);
        frame.ok_or_else(|| broken("a note was not opened"))
    }
}

impl Live {
    /// Implements [`Function::Open`], and [`Function::Start`] for all rows of an EXISTS or IN.
    pub(in crate::query) fn open(&mut self, values: &[ValueRef<'_>], run: bool) -> Sql {
        let unit = usize::try_from(int(values, 0)).unwrap_or_default();
        let pended = self.pass.pended;
        let (demands, held, rows) = (Vec::new(), Vec::new(), IndexMap::default());
        self.pass.notes.stack.push(OpenNote { unit, run, pended, demands, held, rows, waits: 0 });
        Sql::Integer(0)
    }

    /// Implements [`Function::Close`].
    pub(in crate::query) fn close(&mut self, values: &[ValueRef<'_>]) -> rusqlite::Result<Sql> {
        let frame = self.pass.notes.pop(false)?;
        let (state, waits) = (int(values, 1), self.pass.pended - frame.pended);
        let thorough = self.statement.thorough;
        let notes = &mut self.pass.notes;
        match notes.stack.last_mut() {
            Some(run) if run.run && run.unit == frame.unit && !thorough => {
                let mut value = Vec::new();
                spell(values.get(2..).unwrap_or_default(), &mut value);
                run.waits += waits;
                run.rows.entry(value).or_default().take(state, frame.demands);
            }
            Some(around) => around.demands.extend(frame.demands),
            None if !frame.demands.is_empty() => {
                notes.rows.insert((frame.unit, frame.demands));
                if notes.rows.len() > MOST_ROWS {
                    return Err(self.filled());
                }
            }
            None => {}
        }
        Ok(Sql::Integer(i64::from(state == 1)))
    }

    /// Implements [`Function::Run`].
    pub(in crate::query) fn run(&mut self, values: &[ValueRef<'_>]) -> rusqlite::Result<Sql> {
        let frame = self.pass.notes.pop(true)?;
        let (settles, once) = (int(values, 0), int(values, 1) == 1);
        let value = values.get(3).map_or(Sql::Null, |v| owned(*v));
        let waits = self.pass.pended - frame.pended;
        // Once a row with a value is certain, other rows with this value change nothing.
        let settled = value == Sql::Integer(settles)
            || frame.rows.values().all(|value| value.certain || !value.open);
        if settled && waits == frame.waits && waits > 0 && !self.statement.thorough {
            self.pass.pended = frame.pended;
            // The value is decided only for this row; other rows are compared with the same cached
            // rows.
            if once && frame.rows.values().any(|value| value.open && !value.certain) {
                let lacking = frame.rows.into_values().flat_map(Witnesses::asked).collect();
                self.pass.notes.waiting.insert(frame.unit, lacking);
            }
            return Ok(value);
        }
        if waits > 0 {
            if once {
                self.pass.notes.waiting.insert(frame.unit, Vec::new());
            }
            let of_rows = frame.rows.into_values().flat_map(Witnesses::asked);
            for demand in frame.demands.into_iter().chain(of_rows) {
                self.pass.notes.demand(demand);
            }
        } else if once
            && value != Sql::Integer(settles)
            && let Some(lacking) = self.pass.notes.waiting.get(&frame.unit).cloned()
        {
            self.pass.pended += 1;
            lacking.into_iter().for_each(|demand| self.pass.notes.demand(demand));
        }
        Ok(value)
    }

    /// Implements [`Function::Hold`].
    pub(in crate::query) fn hold(&mut self, values: &[ValueRef<'_>]) -> Sql {
        let known = int(values, 0) == self.pass.pended + 1;
        let unheard = usize::try_from(int(values, 1)).unwrap_or_default();
        let (calls, held) = values.split_at((2 + unheard).min(values.len()));
        let waits = (2..calls.len()).any(|n| {
            usize::try_from(int(calls, n)).is_ok_and(|c| self.pass.pending_of.get(c) > Some(&0))
        });
        if let Some(frame) = self.pass.notes.stack.last_mut() {
            frame.held = held.iter().map(|v| owned(*v)).collect();
        }
        Sql::Integer(if known && !waits { 1 } else { 3 })
    }

    /// Implements [`Function::RowNote`].
    pub(in crate::query) fn candidate(&mut self, values: &[ValueRef<'_>]) -> rusqlite::Result<Sql> {
        let frame = self.pass.notes.pop(false)?;
        let waits = self.pass.pended > frame.pended;
        let state = match int(values, 1) {
            3 => RowState::Unvalued,
            2 => RowState::Possible,
            _ if waits => RowState::Possible,
            1 => RowState::Certain,
            _ => RowState::Fails,
        };
        self.pass.pended = frame.pended;
        let notes = &mut self.pass.notes;
        notes.numbered += 1;
        let OpenNote { demands, held, .. } = frame;
        notes.candidates.insert(notes.numbered, Candidate { state, demands, held });
        Ok(Sql::Integer(notes.numbered))
    }

    /// Marks the pass as aborted and returns the error that ends the statement.
    pub(in crate::query) fn filled(&mut self) -> rusqlite::Error {
        self.pass.full = true;
        broken("the pass is full")
    }
}
