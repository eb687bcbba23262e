//! What a statement waits for, noted row by row while `SQLite` evaluates its
//! conditions.
//!
//! A note is opened, the condition evaluated, the note closed: all in the
//! evaluation of one expression, so what is noted depends on the row and on what
//! is known, never on how often or in which order rows come. Notes decide what is
//! asked next. What a condition comes to does not depend on them, but for EXISTS
//! and IN: one row that is certain settles these, whatever the rows are that wait.

use foldhash::HashMap;
use indexmap::{IndexMap, IndexSet};
use rusqlite::types::{Value as Sql, ValueRef};

use crate::query::live::{Live, broken, int};
use crate::query::smoothie::owned;
use crate::query::targets::{Demand, spell};
#[cfg(doc)]
use hqdl_sql::blendsql::runtime::Function;

/// Rows of an EXISTS or of a value of an IN that are asked about at once, at most.
pub const WITNESSES: usize = 20;
/// Rows of conditions that wait for different things and are noted in one pass, at most.
const MOST_ROWS: usize = 1_000_000;

/// Each thing once, in the order in which they came.
pub type Distinct<T> = IndexSet<T, foldhash::fast::RandomState>;

/// The rows of an EXISTS or IN that have one value.
#[derive(Debug, Default)]
struct Witnesses {
    /// A row with it is certain: others change nothing.
    certain: bool,
    /// A row with it waits.
    open: bool,
    failed: usize,
    /// What some of these rows wait for.
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

    /// What is asked of them: of one row, and of more the more have failed, while none
    /// is certain.
    fn asked(self) -> impl Iterator<Item = Demand> {
        let most = if self.certain { 0 } else { self.failed.saturating_add(1).min(WITNESSES) };
        self.waits.into_iter().take(most).flatten()
    }
}

/// What a row comes to that may be one of the first.
#[derive(Debug, Clone)]
pub struct Candidate {
    /// What is known of it.
    pub state: RowState,
    /// What it waits for.
    pub demands: Vec<Demand>,
    /// The values of its columns with calls.
    pub held: Vec<Sql>,
}

/// What is known of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowState {
    /// It is none.
    Fails,
    /// It is one, and its values are known.
    Certain,
    /// It may be one.
    Possible,
    /// It is one, and a value of it is not known.
    Unvalued,
}

/// A note that is open.
struct OpenNote {
    unit: usize,
    /// It is of all rows of an EXISTS or IN, not of one row.
    run: bool,
    pended: i64,
    demands: Vec<Demand>,
    held: Vec<Sql>,
    /// Its rows, by their value.
    rows: IndexMap<Vec<u8>, Witnesses, foldhash::fast::RandomState>,
    /// Pending calls of its rows.
    waits: i64,
}

/// The notes of a statement.
#[derive(Default)]
pub struct Notes {
    stack: Vec<OpenNote>,
    /// What rows of conditions wait for, by their SELECT: rows that wait for the same
    /// are one.
    pub rows: Distinct<(usize, Vec<Demand>)>,
    /// What is waited for beside these.
    pub loose: Distinct<Demand>,
    /// Rows that may be among the first, by their numbers, until they are read.
    pub candidates: HashMap<i64, Candidate>,
    numbered: i64,
    /// SELECTs that are run once and lack rows: `SQLite` keeps what they gave. With what
    /// these wait for, where nobody has demanded it yet.
    waiting: HashMap<usize, Vec<Demand>>,
}

impl Notes {
    /// All that is waited for, each cell once.
    #[must_use]
    pub fn all(&self) -> Vec<Demand> {
        let rows = self.rows.iter().flat_map(|(_, demands)| demands);
        let candidates = self.candidates.values().flat_map(|c| &c.demands);
        let all: Distinct<Demand> =
            self.loose.iter().chain(rows).chain(candidates).copied().collect();
        all.into_iter().collect()
    }

    /// A cell is waited for.
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
    /// [`Function::Open`], and [`Function::Start`] of all rows of an EXISTS or IN.
    pub(in crate::query) fn open(&mut self, values: &[ValueRef<'_>], run: bool) -> Sql {
        let unit = usize::try_from(int(values, 0)).unwrap_or_default();
        let pended = self.pass.pended;
        let (demands, held, rows) = (Vec::new(), Vec::new(), IndexMap::default());
        self.pass.notes.stack.push(OpenNote { unit, run, pended, demands, held, rows, waits: 0 });
        Sql::Integer(0)
    }

    /// [`Function::Close`]
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

    /// [`Function::Run`]
    pub(in crate::query) fn run(&mut self, values: &[ValueRef<'_>]) -> rusqlite::Result<Sql> {
        let frame = self.pass.notes.pop(true)?;
        let (settles, once) = (int(values, 0), int(values, 1) == 1);
        let value = values.get(3).map_or(Sql::Null, |v| owned(*v));
        let waits = self.pass.pended - frame.pended;
        // Once one row with a value is certain, others with it change nothing.
        let settled = value == Sql::Integer(settles)
            || frame.rows.values().all(|value| value.certain || !value.open);
        if settled && waits == frame.waits && waits > 0 && !self.statement.thorough {
            self.pass.pended = frame.pended;
            // It is settled for this row alone: others are held to the same rows.
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

    /// [`Function::Hold`]
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

    /// [`Function::RowNote`]
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

    /// The pass is broken off: what it noted is asked first.
    pub(in crate::query) fn filled(&mut self) -> rusqlite::Error {
        self.pass.full = true;
        broken("the pass is full")
    }
}
