//! Which rows of a SELECT are asked about in this pass, when not all need be.
//!
//! Rows beyond what a gate lets through wait for a later pass: `LIMIT k` asks in
//! waves and stops when `k` rows passed, EXISTS when one did, DISTINCT when a
//! value has one, and ORDER BY … LIMIT asks about the first rows of the order.

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};

use rusqlite::types::{Value as Sql, ValueRef};

use super::smoothie::owned;
use super::targets::{Demand, spell};
use crate::blendsql::rewrite::{Gate, Need};

/// Rows of a wave: what a request or two holds.
const WAVE: u64 = 20;
/// The first wave for one witness of many: it doubles.
const FIRST_WAVE: u64 = 1;
/// Rows that wait in the first pass where there are several conditions: it
/// doubles from pass to pass, while their order is learnt.
const FIRST_WIDTH: u64 = 4;

/// A gate in one pass, and what it knows from those before.
#[derive(Debug)]
pub struct Passing {
    gate: Gate,
    /// Rows asked about in earlier passes, by run of the SELECT.
    asked: HashMap<Vec<u8>, u64>,
    /// Rows waiting for an answer in this pass.
    waiting: HashMap<Vec<u8>, u64>,
    /// All of them.
    waiting_in_all: u64,
    /// Rows that may wait in this pass, while there is something to learn.
    width: u64,
    passed: HashSet<Vec<u8>>,
    run: Vec<u8>,
    distinct: Vec<u8>,
    row: Ranked,
    rows: HashMap<Vec<u8>, Vec<Ranked>>,
    demanded: bool,
    /// The row at hand is not needed: nothing is asked for it.
    hushed: bool,
    /// Calls that were pending before it.
    pub pended: i64,
    /// Rows that were asked about in an order of ours.
    answered: u64,
}

/// A row of a SELECT with an order.
#[derive(Debug, Clone, Default)]
struct Ranked {
    keys: Vec<Sql>,
    distinct: Vec<u8>,
    passed: bool,
    demands: Vec<Demand>,
}

/// What a gate says to a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Word {
    /// Go on.
    Pass,
    /// It is not needed.
    Needless,
    /// Not in this pass.
    Later,
}

impl Passing {
    /// A gate before the first pass.
    #[must_use]
    pub fn new(gate: Gate) -> Self {
        Self {
            gate,
            asked: HashMap::new(),
            waiting: HashMap::new(),
            waiting_in_all: 0,
            width: FIRST_WIDTH,
            passed: HashSet::new(),
            run: Vec::new(),
            distinct: Vec::new(),
            row: Ranked::default(),
            rows: HashMap::new(),
            demanded: false,
            hushed: false,
            pended: 0,
            answered: 0,
        }
    }

    /// Whether it is the gate of a SELECT, in whatever pass.
    #[must_use]
    pub fn is_of(&self, gate: &Gate) -> bool {
        self.gate == *gate
    }

    /// Whether the row at hand is looked at only with what is known.
    #[must_use]
    pub fn is_hushed(&self) -> bool {
        self.hushed
    }

    /// Whether there is anything to learn about its conditions.
    fn learns(&self) -> bool {
        self.gate.conditions > 1
    }

    /// Whether its demands are decided at the end of a pass.
    #[must_use]
    pub fn ranks(&self) -> bool {
        matches!(self.gate.need, Need::Ranked(..))
    }

    /// Whether its rows come in an order of ours.
    #[must_use]
    pub fn retrieves(&self) -> bool {
        self.gate.retrieved
    }

    /// Whether the pass may end when it has a row wait: the rest of the query
    /// waits, too.
    #[must_use]
    pub fn ends(&self) -> bool {
        self.gate.ends
            && match self.gate.need {
                Need::First(_) => self.gate.outer == 0,
                Need::All => self.gate.distinct.is_none(),
                Need::Ranked(..) => false,
            }
    }

    /// A row comes; `values` as the rewriter wrote them.
    pub fn row(&mut self, values: &[ValueRef<'_>], open: bool) -> Word {
        let (outer, rest) = values.split_at(self.gate.outer.min(values.len()));
        self.run.clear();
        spell(outer, &mut self.run);
        let (distinct, rest) = rest.split_at(self.gate.distinct.unwrap_or(0).min(rest.len()));
        self.distinct.clone_from(&self.run);
        if self.ranks() {
            // Counted, so what is equal must look equal.
            let equal = distinct.iter().map(|v| match *v {
                ValueRef::Real(r) if r.fract() == 0.0 && r.abs() < 9e15 => {
                    ValueRef::Integer(r as i64)
                }
                other => other,
            });
            spell(&equal.collect::<Vec<_>>(), &mut self.distinct);
        } else {
            spell(distinct, &mut self.distinct);
        }
        (self.demanded, self.hushed) = (false, false);
        if let Need::Ranked(_, _, terms) = &self.gate.need {
            self.row = Ranked {
                keys: rest.iter().take(terms.len()).map(|v| owned(*v)).collect(),
                distinct: match self.gate.distinct {
                    Some(_) => self.distinct.clone(),
                    None => Vec::new(),
                },
                passed: false,
                demands: Vec::new(),
            };
        }
        if open {
            return Word::Pass;
        }
        if self.learns() && !self.ranks() && self.waiting_in_all >= self.width {
            return Word::Later;
        }
        let one_by_value = self.gate.distinct.is_some() && !self.ranks();
        if one_by_value && self.passed.contains(&self.distinct) {
            if self.gate.once {
                return Word::Needless;
            }
            // The row that passed may have been one of an earlier run for the same
            // values, so it is let through as far as it is known.
            self.hushed = true;
            return Word::Pass;
        }
        let wave = |run: &Vec<u8>, most: u64| {
            let asked = self.asked.get(run).copied().unwrap_or(0);
            self.waiting.get(run).copied().unwrap_or(0) >= most.max(asked / 32)
        };
        let full = match self.gate.need {
            Need::All if one_by_value => {
                let asked = self.asked.get(&self.distinct).copied().unwrap_or(0);
                wave(&self.distinct, (asked + FIRST_WAVE).min(WAVE))
            }
            Need::All | Need::Ranked(..) => false,
            Need::First(k) if self.gate.outer > 0 => {
                let asked = self.asked.get(&self.run).copied().unwrap_or(0);
                wave(&self.run, (asked + FIRST_WAVE.max(k)).min(WAVE))
            }
            Need::First(_) => wave(&self.run, WAVE),
        };
        if full { Word::Later } else { Word::Pass }
    }

    /// The row at hand needs a cell; whether it is the first of the pass to.
    pub fn demand(&mut self, demand: Demand, new: bool) {
        self.demanded |= new;
        if self.ranks() {
            // After its conditions a row is in the list already.
            match self.rows.get_mut(&self.run).and_then(|rows| rows.last_mut()) {
                Some(row) if self.row.passed => row.demands.push(demand),
                _ => self.row.demands.push(demand),
            }
        } else if self.gate.conditions == 0 && new {
            self.wait();
        }
    }

    fn wait(&mut self) {
        let key = match self.gate.need {
            Need::All => &self.distinct,
            _ => &self.run,
        };
        *self.waiting.entry(key.clone()).or_insert(0) += 1;
        self.waiting_in_all += u64::from(self.demanded);
    }

    /// The conditions of the row at hand ended: 1 it passes, 2 it waits, else
    /// it does not pass.
    pub fn done(&mut self, outcome: i64) {
        self.hushed = false;
        match outcome {
            1 => {
                if self.gate.distinct.is_some() {
                    self.passed.insert(self.distinct.clone());
                }
                self.row.passed = true;
            }
            2 => {
                if self.demanded || self.gate.need == Need::All {
                    self.wait();
                }
            }
            _ => return,
        }
        if self.ranks() {
            let rows = self.rows.entry(self.run.clone()).or_default();
            // What follows may still be demanded for the row, so it stays last.
            if rows.len() > 4096 {
                prune(&self.gate, self.answered, rows);
            }
            rows.push(self.row.clone());
        }
    }

    /// Ends a pass; tells what is demanded for the rows that rank first.
    pub fn end(&mut self) -> Vec<Demand> {
        let mut demands = Vec::new();
        for rows in self.rows.values_mut() {
            prune(&self.gate, self.answered, rows);
            skip(&self.gate.need, rows);
            let waiting = rows.iter().filter(|r| !r.passed).count() as u64;
            self.answered += if self.gate.retrieved { waiting } else { 0 };
            demands.extend(rows.drain(..).flat_map(|r| r.demands));
        }
        self.rows.clear();
        self.hushed = false;
        for (run, n) in self.waiting.drain() {
            *self.asked.entry(run).or_insert(0) += n;
        }
        if self.waiting_in_all >= self.width {
            self.width *= 2;
        }
        self.waiting_in_all = 0;
        self.passed.clear();
        demands
    }
}

/// Keeps the rows that can be among those needed, in order: to the last one that
/// is needed, with its equals, or to the end of a wave that waits.
fn prune(gate: &Gate, answered: u64, rows: &mut Vec<Ranked>) {
    let Need::Ranked(k, _, terms) = &gate.need else { return };
    rows.sort_by(|a, b| compare(a, b, terms));
    let (mut passed, mut waiting) = (0, 0);
    // Of a SELECT that runs again for the same values each row may be there twice,
    // so equals count as one.
    let mut counted = false;
    let mut seen = HashSet::new();
    let mut end = rows.len();
    for n in 0..rows.len() {
        let equal = n > 0 && compare(&rows[n - 1], &rows[n], terms) == Ordering::Equal;
        let wave = if gate.retrieved { few(*k, passed, answered) } else { WAVE };
        if !equal && (passed >= *k || waiting >= wave) {
            end = n;
            break;
        }
        counted &= equal;
        if !rows[n].passed {
            waiting += 1;
            continue;
        }
        let new = rows[n].distinct.is_empty() || seen.insert(rows[n].distinct.clone());
        if new && (gate.once || !counted) {
            passed += 1;
            counted = true;
        }
    }
    rows.truncate(end);
}

/// How many rows to ask about now, so that `k` pass: those most likely to pass
/// come first, so just those that lack, and more the more often that failed.
fn few(k: u64, passed: u64, answered: u64) -> u64 {
    let lacking = k.saturating_sub(passed);
    (lacking * (answered + 2) / (passed + 2).min(answered + 2)).clamp(1, WAVE.max(lacking))
}

/// Values are not needed for rows that OFFSET skips: those that are certain to
/// stand before, and have no equal after.
fn skip(need: &Need, rows: &mut [Ranked]) {
    let Need::Ranked(_, offset, terms) = need else { return };
    let offset = usize::try_from(*offset).unwrap_or(usize::MAX);
    if offset == 0 || offset > rows.len() || rows.iter().any(|r| !r.passed) {
        return;
    }
    let mut seen = HashSet::new();
    if rows.iter().any(|r| !r.distinct.is_empty() && !seen.insert(&r.distinct)) {
        return;
    }
    let mut end = offset;
    while end > 0
        && rows.get(end).is_some_and(|r| compare(&rows[end - 1], r, terms) == Ordering::Equal)
    {
        end -= 1;
    }
    rows[..end].iter_mut().for_each(|r| r.demands.clear());
}

fn compare(a: &Ranked, b: &Ranked, terms: &[(bool, bool)]) -> Ordering {
    for ((x, y), (descending, nulls_first)) in a.keys.iter().zip(&b.keys).zip(terms) {
        let ordering = match (x, y) {
            (Sql::Null, Sql::Null) => Ordering::Equal,
            (Sql::Null, _) if *nulls_first => Ordering::Less,
            (Sql::Null, _) => Ordering::Greater,
            (_, Sql::Null) if *nulls_first => Ordering::Greater,
            (_, Sql::Null) => Ordering::Less,
            _ if *descending => order(y, x),
            _ => order(x, y),
        };
        if ordering != Ordering::Equal {
            return ordering;
        }
    }
    Ordering::Equal
}

/// The order of `SQLite` between two values that are not NULL, by bytes.
fn order(x: &Sql, y: &Sql) -> Ordering {
    let class = |v: &Sql| match v {
        Sql::Null => 0,
        Sql::Integer(_) | Sql::Real(_) => 1,
        Sql::Text(_) => 2,
        Sql::Blob(_) => 3,
    };
    match (x, y) {
        (Sql::Integer(a), Sql::Integer(b)) => a.cmp(b),
        (Sql::Integer(a), Sql::Real(b)) => whole_and_real(*a, *b),
        (Sql::Real(a), Sql::Integer(b)) => whole_and_real(*b, *a).reverse(),
        (Sql::Real(a), Sql::Real(b)) => a.partial_cmp(b).unwrap_or(Ordering::Equal),
        (Sql::Text(a), Sql::Text(b)) => a.as_bytes().cmp(b.as_bytes()),
        (Sql::Blob(a), Sql::Blob(b)) => a.cmp(b),
        _ => class(x).cmp(&class(y)),
    }
}

/// A whole number and another, without rounding the first.
fn whole_and_real(whole: i64, real: f64) -> Ordering {
    // From 2^63 on no whole number is as great.
    if real >= 9_223_372_036_854_775_808.0 {
        Ordering::Less
    } else if real < -9_223_372_036_854_775_808.0 {
        Ordering::Greater
    } else {
        let floor = real.floor();
        let below = if real > floor { Ordering::Less } else { Ordering::Equal };
        whole.cmp(&(floor as i64)).then(below)
    }
}
