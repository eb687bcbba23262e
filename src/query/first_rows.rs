//! The rule of the first rows (`blendsql::rules::first_rows`) at work: reads the
//! candidates as they come, and tells whether the answer is settled or what to ask.

use std::collections::HashMap;

use rusqlite::types::{Value as Sql, ValueRef};

use super::learning::Learning;
use super::live::{Shared, lock};
use super::notes::{Candidate, State, WITNESSES};
use super::smoothie::{Sink, owned};
use super::targets::{Demand, spell};
use crate::blendsql::rules::first_rows::FirstRows;

/// Values that are asked for at once before it is known how many are needed.
const MOST: u64 = 20;

/// Reads candidates.
pub struct Reader<'r> {
    rule: &'r FirstRows,
    live: Shared,
    /// How many rows share a request.
    together: u64,
    /// Rows that were asked about, and how many of them passed.
    seen: (u64, u64),
    columns: Vec<String>,
    /// In order: the row, the number of its candidate, and its rank.
    rows: Vec<(Vec<Sql>, usize, i64)>,
    certain: u64,
    waiting: u64,
    /// Whether the order of conditions is learnt.
    learns: bool,
    /// The candidates to ask about for a value that rows share, by one of them.
    witnesses: HashMap<usize, Vec<usize>>,
}

/// What the candidates tell.
pub enum Told {
    /// The rows of the answer.
    Rows(Vec<String>, Vec<Vec<Sql>>),
    /// What must be asked.
    Ask(Vec<Demand>),
}

impl<'r> Reader<'r> {
    /// Nothing read yet.
    pub fn new(rule: &'r FirstRows, live: &Shared, together: u64, seen: (u64, u64)) -> Self {
        Self {
            rule,
            live: Shared::clone(live),
            together: together.max(1),
            seen,
            columns: Vec::new(),
            rows: Vec::new(),
            certain: 0,
            waiting: 0,
            learns: rule.need.is_none() && rule.conditions > 1,
            witnesses: HashMap::new(),
        }
    }

    /// How many rows to ask about now so that as many pass as lack.
    fn wave(&self, certain: u64) -> u64 {
        let lacking = match self.rule.need {
            Some(need) => need.saturating_sub(certain).max(1),
            None => return u64::MAX,
        };
        let (asked, passed) = self.seen;
        let few = lacking.saturating_mul(asked + 2) / (passed + 2).min(asked + 2);
        let few = few.clamp(1, MOST.max(lacking).max(asked / 32));
        if self.rule.ranked {
            // The most likely come first, and documents share few requests.
            return few;
        }
        few.div_ceil(self.together).saturating_mul(self.together)
    }

    /// Whether no row after those read can matter now.
    fn enough(&self) -> bool {
        if self.rule.ranked || self.rule.distinct {
            return false;
        }
        let full = self.rule.need.is_some_and(|need| self.certain >= need);
        full || self.waiting >= self.wave(self.certain)
    }

    /// What was read tells.
    pub fn told(mut self, learning: &mut Learning) -> Told {
        let live = Shared::clone(&self.live);
        let live = lock(&live);
        let candidates = &live.pass.notes.candidates;
        if self.rule.ranked {
            self.rows.sort_by_key(|(_, _, rank)| *rank);
        }
        if self.rule.distinct {
            self.merge(candidates);
        }
        let (need, skipped) = (self.rule.need.unwrap_or(u64::MAX), self.rule.skipped);
        let (mut chosen, mut open, mut unvalued) = (Vec::new(), Vec::new(), Vec::new());
        for (n, (_, number, _)) in self.rows.iter().enumerate() {
            let Some(candidate) = candidates.get(*number) else { continue };
            match candidate.state {
                State::Fails => continue,
                State::Possible => open.push(n),
                State::Certain | State::Unvalued => {
                    if chosen.len() as u64 >= skipped && candidate.state == State::Unvalued {
                        unvalued.push(n);
                    }
                    chosen.push(n);
                }
            }
            if chosen.len() as u64 >= need {
                break;
            }
        }
        let full = chosen.len() as u64 >= need;
        // Without an order any rows do.
        let settled = open.is_empty() || full && !self.rule.ordered;
        let waiting = |rows: &[usize], most: u64| -> Vec<&[Demand]> {
            let numbers = rows.iter().flat_map(|n| {
                let number = &self.rows[*n].1;
                let one = std::slice::from_ref(number);
                self.witnesses.get(number).map_or(one, Vec::as_slice)
            });
            let all = numbers.filter_map(|n| candidates.get(*n)).map(|c| c.demands.as_slice());
            let most = usize::try_from(most).unwrap_or(usize::MAX);
            all.filter(|d| !d.is_empty()).take(most).collect()
        };
        let asked = if settled {
            if unvalued.is_empty() {
                let from = usize::try_from(skipped).unwrap_or(usize::MAX).min(chosen.len());
                let rows = chosen[from..].iter().map(|n| self.row(*n, candidates)).collect();
                return Told::Rows(self.columns, rows);
            }
            waiting(&unvalued, u64::MAX).concat()
        } else if self.learns {
            let asked = learning.some(waiting(&open, u64::MAX));
            learning.learnt();
            asked
        } else {
            waiting(&open, self.wave(chosen.len() as u64)).concat()
        };
        if !asked.is_empty() {
            return Told::Ask(asked);
        }
        // What a row waits for was noted with another one.
        Told::Ask(candidates.iter().flat_map(|c| c.demands.iter().copied()).collect())
    }

    /// Rows that are equal are one: certain when one of them is. While none is,
    /// one of them is asked about, and more the more have failed.
    fn merge(&mut self, candidates: &[Candidate]) {
        let mut places: HashMap<Vec<u8>, usize> = HashMap::new();
        let mut failed: Vec<usize> = Vec::new();
        let mut open: Vec<Vec<usize>> = Vec::new();
        let mut merged: Vec<(Vec<Sql>, usize, i64)> = Vec::new();
        for row in std::mem::take(&mut self.rows) {
            let Some(candidate) = candidates.get(row.1) else { continue };
            let mut key = Vec::new();
            let values: Vec<ValueRef<'_>> = row.0.iter().map(equal).collect();
            spell(&values, &mut key);
            let at = *places.entry(key).or_insert(merged.len());
            if at == merged.len() {
                failed.push(0);
                open.push(Vec::new());
                merged.push(row.clone());
            }
            match candidate.state {
                State::Fails => failed[at] += 1,
                State::Possible => open[at].push(row.1),
                State::Certain | State::Unvalued => {}
            }
            let rank = |number: usize| match candidates.get(number).map(|c| c.state) {
                Some(State::Certain) => 2,
                Some(State::Possible | State::Unvalued) => 1,
                _ => 0,
            };
            if rank(row.1) > rank(merged[at].1) {
                merged[at].1 = row.1;
            }
        }
        for (at, mut numbers) in open.into_iter().enumerate() {
            numbers.truncate(failed[at].clamp(1, WITNESSES));
            if let Some(first) = numbers.first() {
                self.witnesses.insert(*first, numbers);
            }
        }
        self.rows = merged;
    }

    /// A row of the answer, the values that its candidate holds in their places.
    fn row(&self, n: usize, candidates: &[Candidate]) -> Vec<Sql> {
        let (row, number, _) = &self.rows[n];
        let mut row = row.clone();
        // A star before stands for more columns than one.
        let more = row.len() - self.rule.written.min(row.len());
        if let Some(candidate) = candidates.get(*number) {
            for (at, value) in self.rule.held.iter().zip(&candidate.held) {
                let at = at + if self.rule.star_before(*at) { more } else { 0 };
                if let Some(place) = row.get_mut(at) {
                    value.clone_into(place);
                }
            }
        }
        row
    }
}

/// A value as it is told apart by DISTINCT.
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
        let candidate = usize::try_from(number(row.last())).unwrap_or(usize::MAX);
        let rank = if self.rule.ranked { number(row.get(width)) } else { 0 };
        let state = lock(&self.live)
            .pass
            .notes
            .candidates
            .get(candidate)
            .map(|c| (c.state, c.demands.is_empty()));
        match state {
            Some((State::Fails, _)) if !self.rule.distinct => return Ok(()),
            Some((State::Fails, _)) => {}
            Some((State::Possible, none)) => self.waiting += u64::from(!none),
            _ => self.certain += 1,
        }
        self.rows.push((row[..width].iter().map(|v| owned(*v)).collect(), candidate, rank));
        if self.enough() { Err(std::io::Error::other(ENOUGH)) } else { Ok(()) }
    }

    fn finish(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// What a reader says that needs no more rows.
pub const ENOUGH: &str = "enough rows";
