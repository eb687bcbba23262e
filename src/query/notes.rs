//! What a statement waits for, noted row by row while `SQLite` evaluates its
//! conditions.
//!
//! A note is opened, the condition evaluated, the note closed: all in the
//! evaluation of one expression, so what is noted depends on the row and on what
//! is known, never on how often or in which order rows come. Notes decide what is
//! asked next. What a condition comes to does not depend on them, but for EXISTS
//! and IN: one row that is certain settles these, whatever the rows are that wait.

use foldhash::{HashSet, HashSetExt};
use rusqlite::types::{Value as Sql, ValueRef};

use super::live::{Live, broken, int};
use super::smoothie::owned;
use super::targets::{Demand, spell};
#[cfg(doc)]
use crate::blendsql::runtime::Function;

/// Rows of an EXISTS or of a value of an IN that are asked about at once, at most.
pub const WITNESSES: usize = 20;

/// A row of a SELECT, as far as it is known.
#[derive(Debug, Clone, Default)]
pub struct RowNote {
    /// The SELECT.
    pub unit: usize,
    /// What it waits for.
    pub demands: Vec<Demand>,
    state: i64,
    value: Vec<u8>,
    waits: i64,
}

/// What a row comes to that may be one of the first.
#[derive(Debug, Clone)]
pub struct Candidate {
    /// What is known of it.
    pub state: State,
    /// What it waits for.
    pub demands: Vec<Demand>,
    /// The values of its columns with calls.
    pub held: Vec<Sql>,
}

/// What is known of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
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
struct Frame {
    unit: usize,
    /// It is of all rows of an EXISTS or IN, not of one row.
    run: bool,
    pended: i64,
    demands: Vec<Demand>,
    held: Vec<Sql>,
    rows: Vec<RowNote>,
}

/// The notes of a statement.
#[derive(Default)]
pub struct Notes {
    stack: Vec<Frame>,
    /// What rows of conditions wait for.
    pub rows: Vec<RowNote>,
    /// What is waited for beside these.
    pub loose: Vec<Demand>,
    /// Rows that may be among the first, by their numbers.
    pub candidates: Vec<Candidate>,
    /// SELECTs that are run once and wait: their value is kept by `SQLite`.
    waiting: HashSet<usize>,
}

impl Notes {
    /// All that is waited for, each cell once.
    #[must_use]
    pub fn all(&self) -> Vec<Demand> {
        let mut seen = HashSet::new();
        let rows = self.rows.iter().flat_map(|r| &r.demands);
        let candidates = self.candidates.iter().flat_map(|c| &c.demands);
        let all = self.loose.iter().chain(rows).chain(candidates);
        all.copied().filter(|d| seen.insert(*d)).collect()
    }

    /// A cell is waited for.
    pub fn demand(&mut self, demand: Demand) {
        match self.stack.last_mut() {
            Some(frame) => frame.demands.push(demand),
            None => self.loose.push(demand),
        }
    }

    fn pop(&mut self, run: bool) -> rusqlite::Result<Frame> {
        let frame = self.stack.pop().filter(|f| f.run == run);
        frame.ok_or_else(|| broken("a note was not opened"))
    }
}

impl Live {
    /// [`Function::Open`], and [`Function::Start`] of all rows of an EXISTS or IN.
    pub(super) fn open(&mut self, values: &[ValueRef<'_>], run: bool) -> Sql {
        let unit = usize::try_from(int(values, 0)).unwrap_or_default();
        let pended = self.pass.pended;
        let (demands, held, rows) = (Vec::new(), Vec::new(), Vec::new());
        self.pass.notes.stack.push(Frame { unit, run, pended, demands, held, rows });
        Sql::Integer(0)
    }

    /// [`Function::Close`]
    pub(super) fn close(&mut self, values: &[ValueRef<'_>]) -> rusqlite::Result<Sql> {
        let frame = self.pass.notes.pop(false)?;
        let (state, waits) = (int(values, 1), self.pass.pended - frame.pended);
        let notes = &mut self.pass.notes;
        match notes.stack.last_mut() {
            Some(run) if run.run && run.unit == frame.unit => {
                let mut value = Vec::new();
                spell(values.get(2..).unwrap_or_default(), &mut value);
                let Frame { unit, demands, .. } = frame;
                run.rows.push(RowNote { unit, demands, state, value, waits });
            }
            Some(around) => around.demands.extend(frame.demands),
            None if !frame.demands.is_empty() => {
                let Frame { unit, demands, .. } = frame;
                notes.rows.push(RowNote { unit, demands, state, value: Vec::new(), waits });
            }
            None => {}
        }
        Ok(Sql::Integer(i64::from(state == 1)))
    }

    /// [`Function::Run`]
    pub(super) fn run(&mut self, values: &[ValueRef<'_>]) -> rusqlite::Result<Sql> {
        let frame = self.pass.notes.pop(true)?;
        let (settles, once) = (int(values, 0), int(values, 1) == 1);
        let value = values.get(3).map_or(Sql::Null, |v| owned(*v));
        let waits = self.pass.pended - frame.pended;
        let of_rows: i64 = frame.rows.iter().map(|r| r.waits).sum();
        let certain: HashSet<&Vec<u8>> =
            frame.rows.iter().filter(|r| r.state == 1).map(|r| &r.value).collect();
        // Once one row with a value is certain, others with it change nothing.
        let settled = value == Sql::Integer(settles)
            || frame.rows.iter().all(|r| r.state != 2 || certain.contains(&r.value));
        if settled && waits == of_rows && waits > 0 {
            self.pass.pended = frame.pended;
            return Ok(value);
        }
        if waits > 0 {
            if once {
                self.pass.notes.waiting.insert(frame.unit);
            }
            for demand in frame.demands.into_iter().chain(witnesses(frame.rows)) {
                self.pass.notes.demand(demand);
            }
        } else if once && self.pass.notes.waiting.contains(&frame.unit) {
            self.pass.pended += 1;
        }
        Ok(value)
    }

    /// [`Function::Hold`]
    pub(super) fn hold(&mut self, values: &[ValueRef<'_>]) -> Sql {
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
    pub(super) fn candidate(&mut self, values: &[ValueRef<'_>]) -> rusqlite::Result<Sql> {
        let frame = self.pass.notes.pop(false)?;
        let waits = self.pass.pended > frame.pended;
        let state = match int(values, 1) {
            3 => State::Unvalued,
            2 => State::Possible,
            _ if waits => State::Possible,
            1 => State::Certain,
            _ => State::Fails,
        };
        self.pass.pended = frame.pended;
        let number = self.pass.notes.candidates.len();
        let Frame { demands, held, .. } = frame;
        self.pass.notes.candidates.push(Candidate { state, demands, held });
        Ok(Sql::Integer(i64::try_from(number).unwrap_or(i64::MAX)))
    }
}

/// What is asked of the rows of an EXISTS or IN: of those with one value some, and
/// more the more have failed, while none is certain.
fn witnesses(rows: Vec<RowNote>) -> impl Iterator<Item = Demand> {
    let mut certain = HashSet::new();
    let mut left: foldhash::HashMap<Vec<u8>, usize> = foldhash::HashMap::default();
    for row in &rows {
        match row.state {
            1 => drop(certain.insert(row.value.clone())),
            0 => *left.entry(row.value.clone()).or_insert(1) += 1,
            _ => drop(left.entry(row.value.clone()).or_insert(1)),
        }
    }
    left.values_mut().for_each(|n| *n = (*n).min(WITNESSES));
    let chosen = rows.into_iter().filter(move |row| {
        if row.state != 2 || certain.contains(&row.value) {
            return false;
        }
        match left.get_mut(&row.value) {
            Some(0) | None => false,
            Some(n) => {
                *n -= 1;
                true
            }
        }
    });
    chosen.flat_map(|row| row.demands)
}
