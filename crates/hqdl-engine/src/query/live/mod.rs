//! The functions that calls become, and what they note while `SQLite` runs the
//! query: a call whose value is not known yet yields NULL, is *pending*, and is
//! demanded; a condition that waits for it is told apart from one that fails.

pub(in crate::query) mod notes;
pub(in crate::query) mod candidates;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foldhash::{HashMap, HashSet, HashSetExt};
use rusqlite::types::{Value as Sql, ValueRef};

use crate::query::asks::Asks;
use crate::query::context::{Contexts, TooLong};
use crate::query::documents::Document;
use crate::query::live::candidates::Candidates;
use crate::query::live::notes::Notes;
use crate::query::smoothie::owned;
use crate::query::targets::{Cell, Counts, Demand, Target, spell};
use crate::query::touched::Touched;
use hqdl_facts::Facts;
use hqdl_spec::overrides::Overrides;
use hqdl_sql::blendsql::rewrite::{Rewritten, Seen};
#[cfg(doc)]
use hqdl_sql::blendsql::runtime::Function;
use hqdl_values::value::Value;

/// A left value of a join, its spelling, and what it may be a partner of.
pub type Wish = (Value, Vec<u8>, Vec<(Value, Vec<u8>)>);

/// Both sides of a join, as far as they were seen.
#[derive(Debug, Default)]
pub struct Pairs {
    /// Answered: left value, and its partners among those asked about.
    pub known: HashMap<Vec<u8>, HashMap<Vec<u8>, bool>>,
    /// Demanded in this pass: left values and what they may be partners of.
    pub wanted: Vec<Wish>,
    wanted_at: HashMap<Vec<u8>, usize>,
    wanted_both: HashSet<(usize, Vec<u8>)>,
    /// The longest list that was narrowed, as the query wants it; 0 where none was.
    pub narrowed: usize,
}

/// The state that the functions share.
pub struct Live {
    /// What is known, and of what.
    pub known: Known,
    /// What is being run.
    pub statement: Statement,
    /// What the pass came to so far.
    pub pass: PassState,
    /// Rows that are asked about in an order of ours.
    pub candidates: Candidates,
    pub(super) spelling: Vec<u8>,
}

/// What calls ask for, and what is known of it. It does not change in a pass.
pub struct Known {
    /// Facts of all expansions.
    pub facts: Facts,
    /// What people said.
    pub overrides: Option<Overrides>,
    /// What calls ask for, by their number.
    pub asks: Vec<Asks>,
    /// The expansions.
    pub targets: Vec<Target>,
    /// The joins.
    pub joins: Vec<Pairs>,
    /// The contexts of questions about rows.
    pub contexts: Contexts,
    /// The contexts that stop the query.
    pub failure: Option<TooLong>,
    /// What was found and asked.
    pub counts: Counts,
    /// Answers that are no values for a call: its regular expression says so.
    pub mismatched: HashSet<Demand>,
    /// Values that no model can be shown, by their digests: one is met in each pass.
    pub unreadable: HashSet<[u8; 32]>,
}

/// What is being run, and how it is looked at.
#[derive(Default)]
pub struct Statement {
    /// Whether there is something to learn about conditions.
    learns: bool,
    /// Calls in subqueries of each condition, by where it stands.
    leaves: HashMap<usize, Vec<usize>>,
    /// What is only looked up is noted, too: all conditions of a row.
    pub survey: bool,
    /// All that is reached is asked: nothing is only looked up, and no row settles others.
    pub thorough: bool,
    /// A value that is not known ends the pass: tables were to answer.
    pub stored: bool,
    /// Whether each call stands in a recursive common table expression, whose
    /// rows may never end while it is pending.
    pub recursing: Vec<bool>,
    /// How often such calls may be pending in a pass.
    recursions: u64,
}

/// What a pass came to so far.
#[derive(Default)]
pub struct PassState {
    /// What is waited for.
    pub notes: Notes,
    /// What conditions came to, by where they stand: where they were only looked up,
    /// which is done for all rows, and where they were asked, for rows left open.
    pub seen: HashMap<(usize, bool), Seen>,
    /// Rows that a call was reached for, and its different values.
    pub touched: Vec<Touched>,
    /// Pending calls so far, less those that no row waits for.
    pub pended: i64,
    /// The same of each call.
    pub pending_of: Vec<u64>,
    /// It was broken off: what it reached is asked first.
    pub full: bool,
    /// How often calls of recursive common table expressions were pending.
    recursed: u64,
    /// The truth that was noted last.
    pub noted: i64,
    /// While not empty, calls are only looked up and nothing is demanded: calls that
    /// were pending before, and what is looked at; one within another.
    pub quiet: Vec<(i64, LookedAt)>,
}

/// What is looked at while calls are only looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LookedAt {
    /// A part of a row's conditions.
    Part,
    /// All conditions of a row: what they come to is counted.
    Row,
    /// A row of a SELECT whose rows are settled: what it lacks is asked in no pass.
    Settled,
}

/// How often calls of recursive common table expressions may be pending in the
/// first pass that they fill.
const FIRST_RECURSIONS: u64 = 64;

impl Live {
    /// The state before the first pass.
    #[must_use]
    pub fn new(
        facts: Facts,
        asks: Vec<Asks>,
        targets: Vec<Target>,
        joins: usize,
        contexts: Contexts,
    ) -> Self {
        let joins = (0..joins).map(|_| Pairs::default()).collect();
        Self {
            pass: PassState::of(asks.len()),
            known: Known {
                facts,
                overrides: None,
                asks,
                targets,
                joins,
                contexts,
                failure: None,
                counts: Counts::default(),
                mismatched: HashSet::new(),
                unreadable: HashSet::new(),
            },
            statement: Statement { recursions: FIRST_RECURSIONS, ..Statement::default() },
            candidates: Candidates::default(),
            spelling: Vec::new(),
        }
    }

    /// Takes the conditions of a rewriting.
    pub fn takes(&mut self, rewritten: &Rewritten) {
        self.statement.learns = rewritten.leaves.len() > 1;
        self.statement.leaves =
            rewritten.leaves.iter().map(|(at, leaf)| (*at, leaf.inner_calls.clone())).collect();
    }

    /// Begins a pass.
    pub fn begin(&mut self) {
        if self.pass.full {
            self.statement.recursions = self.statement.recursions.saturating_mul(2);
        }
        self.pass = PassState::of(self.known.asks.len());
        self.known.targets.iter_mut().for_each(Target::forget);
    }

    fn pend(&mut self, call: usize) {
        self.pass.pended += 1;
        if !self.is_quiet() {
            self.pass.pending_of[call] += 1;
        }
    }

    /// [`Function::Call`]
    pub(in crate::query) fn call(&mut self, values: &[ValueRef<'_>]) -> rusqlite::Result<Sql> {
        let (number, mark) = (int(values, 0), int(values, 1));
        let call = usize::try_from(number).unwrap_or(usize::MAX);
        if call >= self.known.asks.len() {
            return Err(broken("no such call"));
        }
        if mark != 0 && mark != self.pass.pended + 1 {
            // A value of it is pending itself.
            self.pend(call);
            return Ok(Sql::Null);
        }
        let values = values.get(2..).unwrap_or_default();
        let (target, column, entity) = match self.known.asks[call] {
            Asks::Cell { target, column, .. } => match self.values(target, column, values)? {
                Some(entity) => (target, column, entity),
                None => return Ok(Sql::Null),
            },
            Asks::Document { target, column, whole, .. } => {
                match self.document(whole.then_some(call), target, values)? {
                    Some(entity) => (target, column, entity),
                    None => return Ok(Sql::Null),
                }
            }
            Asks::Rows { target, .. } => (target, 0, self.rows(call, target, values)?),
            Asks::Pair { join } => return self.pair(call, join, values),
        };
        // All conditions of a row are looked at once; one may be evaluated again.
        if self.statement.learns && self.looks_at_rows() {
            self.pass.touched[call].note(entity);
        }
        let counts = &mut self.known.counts;
        let cell = self.known.targets[target]
            .cell(entity, column, &self.known.facts, self.known.overrides.as_ref(), counts)
            .map_err(|e| broken(&e.to_string()))?;
        match cell {
            Cell::Known(value) => {
                let formed = match &self.known.asks[call] {
                    Asks::Cell { form, .. }
                    | Asks::Document { form, .. }
                    | Asks::Rows { form, .. } => form.of(value),
                    Asks::Pair { .. } => value.clone(),
                };
                if formed == Sql::Null && *value != Sql::Null {
                    self.known.mismatched.insert(Demand { target, entity, column });
                }
                Ok(formed)
            }
            Cell::Failed => Ok(Sql::Null),
            Cell::Unseen | Cell::Missing if self.statement.stored => {
                Err(broken("a table lacks a value"))
            }
            Cell::Unseen | Cell::Missing => {
                self.pend(call);
                let demand = Demand { target, entity, column };
                if self.is_settled() || self.is_quiet() && !self.statement.survey {
                    return Ok(Sql::Null);
                }
                // What is only looked at is asked nobody: it fills no pass.
                let recursing = self.statement.recursing.get(call).is_some_and(|r| *r);
                self.pass.recursed += u64::from(recursing);
                if self.pass.recursed > self.statement.recursions {
                    return Err(self.filled());
                }
                if let Asks::Document { .. } = self.known.asks[call]
                    && let Some(Ok(Some(document))) = values.first().map(|v| Document::read(*v))
                {
                    self.known.targets[target].keep(entity, document);
                }
                self.pass.notes.demand(demand);
                Ok(Sql::Null)
            }
        }
    }

    /// Counts a value that no model can be shown, once for each that asks about it.
    pub(in crate::query) fn is_unreadable(&mut self, asks: (usize, usize), spelling: &[u8]) {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&(asks.0 as u64).to_le_bytes()).update(&(asks.1 as u64).to_le_bytes());
        self.known.unreadable.insert(*hasher.update(spelling).finalize().as_bytes());
    }

    fn pair(&mut self, call: usize, join: usize, values: &[ValueRef<'_>]) -> rusqlite::Result<Sql> {
        let [left, right] = values else { return Err(broken("a join has two sides")) };
        if *left == ValueRef::Null || *right == ValueRef::Null {
            return Ok(Sql::Null);
        }
        let (mut l, mut r) = (Vec::new(), Vec::new());
        spell(&[*left], &mut l);
        spell(&[*right], &mut r);
        let quiet = self.is_quiet();
        let pairs = &mut self.known.joins[join];
        if let Some(partners) = pairs.known.get(&l).and_then(|known| known.get(&r)) {
            return Ok(Sql::Integer(i64::from(*partners)));
        }
        if quiet {
            self.pass.pended += 1;
            return Ok(Sql::Null);
        }
        let (Ok(left), Ok(right)) = (Value::read(*left), Value::read(*right)) else {
            l.extend(r);
            self.is_unreadable((usize::MAX, join), &l);
            return Ok(Sql::Null);
        };
        let at = *pairs.wanted_at.entry(l.clone()).or_insert_with(|| {
            pairs.wanted.push((left, l, Vec::new()));
            pairs.wanted.len() - 1
        });
        if let Some((_, _, rights)) = pairs.wanted.get_mut(at)
            && pairs.wanted_both.insert((at, r.clone()))
        {
            rights.push((right, r));
        }
        self.pend(call);
        Ok(Sql::Null)
    }

    /// [`Function::Mark`]
    pub(in crate::query) fn mark(&self) -> i64 {
        self.pass.pended + 1
    }

    /// [`Function::Quiet`]
    pub(in crate::query) fn quiet(&mut self, values: &[ValueRef<'_>]) -> Sql {
        let looked_at = match int(values, 0) {
            0 => LookedAt::Part,
            1 => LookedAt::Row,
            _ => LookedAt::Settled,
        };
        self.pass.quiet.push((self.pass.pended, looked_at));
        Sql::Null
    }

    /// Whether calls are only looked up.
    fn is_quiet(&self) -> bool {
        !self.pass.quiet.is_empty() && !self.statement.thorough || self.is_settled()
    }

    /// Whether calls are those of settled rows.
    fn is_settled(&self) -> bool {
        self.pass.quiet.iter().any(|(_, at)| *at == LookedAt::Settled)
    }

    /// Whether the conditions of a row are looked at for the first time.
    fn looks_at_rows(&self) -> bool {
        matches!(self.pass.quiet.as_slice(), [(_, LookedAt::Row)])
    }

    /// [`Function::Settled`]: what was only looked up does not wait; where it is
    /// needed it is asked.
    pub(in crate::query) fn settled(&mut self, values: &[ValueRef<'_>]) -> Sql {
        let settled = self.is_settled();
        if let Some((pended, _)) = self.pass.quiet.pop()
            && (settled || !self.statement.thorough)
        {
            self.pass.pended = pended;
        }
        values.get(1).map_or(Sql::Null, |v| owned(*v))
    }

    /// [`Function::Limit`]
    pub(in crate::query) fn limit(&mut self, values: &[ValueRef<'_>]) -> Sql {
        if int(values, 0) == self.mark() {
            values.get(1).map_or(Sql::Null, |v| owned(*v))
        } else {
            Sql::Integer(0)
        }
    }

    /// [`Function::After`]
    pub(in crate::query) fn after(&mut self, values: &[ValueRef<'_>]) -> Sql {
        self.pass.noted = if int(values, 0) == self.mark() { 0 } else { 2 };
        values.get(1).map_or(Sql::Null, |v| owned(*v))
    }

    /// [`Function::Note`]
    pub(in crate::query) fn note(&mut self, truth: i64) -> Sql {
        self.pass.noted = truth;
        Sql::Integer(truth)
    }

    /// [`Function::Noted`]
    pub(in crate::query) fn noted(&self) -> Sql {
        Sql::Integer(self.pass.noted)
    }

    /// [`Function::Leaf`]
    pub(in crate::query) fn leaf(&mut self, values: &[ValueRef<'_>]) -> i64 {
        let at = usize::try_from(int(values, 0)).unwrap_or_default();
        let inner = self.statement.leaves.get(&at).is_some_and(|calls| {
            calls.iter().any(|c| self.pass.pending_of.get(*c).is_some_and(|p| *p > 0))
        });
        let waits = int(values, 2) != self.pass.pended + 1;
        if inner && !waits {
            // What waits was settled, and let go, for a row that read it before: a pass in
            // which a condition is open is not the last one.
            self.pass.pended += 1;
        }
        if inner || waits {
            return 2;
        }
        let (wanted, holds) = (int(values, 1) == 1, int(values, 3) == 1);
        let looked_up = !self.pass.quiet.is_empty();
        if looked_up && !self.looks_at_rows() {
            return i64::from(holds);
        }
        let seen = self.pass.seen.entry((at, looked_up)).or_default();
        if holds == wanted {
            seen.held += 1;
        } else {
            seen.failed += 1;
        }
        i64::from(holds)
    }
}

impl PassState {
    fn of(calls: usize) -> Self {
        Self {
            touched: vec![Touched::default(); calls],
            pending_of: vec![0; calls],
            ..Self::default()
        }
    }
}

impl Pairs {
    /// Takes what is demanded, leaving nothing.
    pub fn take(&mut self) -> Vec<Wish> {
        self.wanted_at.clear();
        self.wanted_both.clear();
        std::mem::take(&mut self.wanted)
    }
}

pub(in crate::query) fn int(values: &[ValueRef<'_>], n: usize) -> i64 {
    match values.get(n) {
        Some(ValueRef::Integer(i)) => *i,
        _ => 0,
    }
}

pub(in crate::query) fn broken(message: &str) -> rusqlite::Error {
    rusqlite::Error::UserFunctionError(message.to_owned().into())
}

/// The state, shared with the functions.
pub type Shared = Arc<Mutex<Live>>;

/// The state, for a moment.
pub fn lock(live: &Shared) -> MutexGuard<'_, Live> {
    live.lock().unwrap_or_else(PoisonError::into_inner)
}
