//! Runtime of the SQL functions that replace calls, with the state that they update while `SQLite`
//! runs the query. A call without a known value returns NULL, counts as *pending* and records a
//! demand. A condition that depends on it is distinguished from one that fails.

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

/// Left value of a join with its canonical bytes, and the candidates for its partners.
pub type Wish = (Value, Vec<u8>, Vec<(Value, Vec<u8>)>);

/// Values of both sides of a join seen so far.
#[derive(Debug, Default)]
pub struct Pairs {
    /// Answered pairs: left value → right value → whether they are partners.
    pub known: HashMap<Vec<u8>, HashMap<Vec<u8>, bool>>,
    /// Pairs demanded in this pass.
    pub wanted: Vec<Wish>,
    wanted_at: HashMap<Vec<u8>, usize>,
    wanted_both: HashSet<(usize, Vec<u8>)>,
    /// Length of the longest list that `narrow` shortened; 0 if none was.
    pub narrowed: usize,
}

/// State shared by the SQL functions of a query.
pub struct Live {
    /// Known values; unchanged during a pass.
    pub known: Known,
    /// Settings of the statement being run.
    pub statement: Statement,
    /// Results of the current pass.
    pub pass: PassState,
    /// Rows that are ordered by similarity.
    pub candidates: Candidates,
    pub(super) spelling: Vec<u8>,
}

/// Targets of calls and their known values. Unchanged during a pass.
pub struct Known {
    /// Facts of all expansions.
    pub facts: Facts,
    /// The user's overrides.
    pub overrides: Option<Overrides>,
    /// Targets of the calls, by call number.
    pub asks: Vec<Asks>,
    /// Expansions that the query uses.
    pub targets: Vec<Target>,
    /// Joins of the query.
    pub joins: Vec<Pairs>,
    /// Contexts of questions about rows.
    pub contexts: Contexts,
    /// Context whose length stops the query.
    pub failure: Option<TooLong>,
    /// Numbers of cells reused and asked for.
    pub counts: Counts,
    /// Answers that do not match the regular expression of their call.
    pub mismatched: HashSet<Demand>,
    /// Digests of values that cannot be shown to a model. A set, because each pass meets them
    /// again.
    pub unreadable: HashSet<[u8; 32]>,
}

/// Settings of the statement being run.
#[derive(Default)]
pub struct Statement {
    /// Whether the selectivity of conditions is measured.
    learns: bool,
    /// By position of a condition: the calls in its subqueries.
    leaves: HashMap<usize, Vec<usize>>,
    /// Demands are recorded even in lookup-only mode: those of all conditions of a row.
    pub survey: bool,
    /// Disables lookup-only mode and short-circuiting, so that every demand reached is recorded.
    pub thorough: bool,
    /// The statement reads published tables: an unknown value ends the pass.
    pub stored: bool,
    /// By call number: whether the call is in a recursive common table expression. Its rows may
    /// never end while the call is pending.
    pub recursing: Vec<bool>,
    /// Maximum number of pending recursive calls in a pass.
    recursions: u64,
}

/// Results of a pass so far.
#[derive(Default)]
pub struct PassState {
    /// Recorded demands.
    pub notes: Notes,
    /// Outcomes of conditions, by position and whether calls were only looked up. Lookups cover all
    /// rows; the others cover only rows left undecided.
    pub seen: HashMap<(usize, bool), Seen>,
    /// By call number: rows that reached it, and its distinct values.
    pub touched: Vec<Touched>,
    /// Number of pending calls so far, without those that no row depends on.
    pub pended: i64,
    /// Number of pending calls, by call number.
    pub pending_of: Vec<u64>,
    /// The pass was aborted; its demands are sent before the next one.
    pub full: bool,
    /// Number of pending calls in recursive common table expressions.
    recursed: u64,
    /// Truth value of the latest `Note` or `After` function.
    pub noted: i64,
    /// Stack of nested lookup-only scopes, each with the pending count at its start. While it is
    /// not empty, calls are only looked up and record no demand.
    pub quiet: Vec<(i64, LookedAt)>,
}

/// Extent of a lookup-only scope.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LookedAt {
    /// Some of a row's conditions.
    Part,
    /// All conditions of a row; their outcomes are counted.
    Row,
    /// A row of a SELECT whose rows are final. No pass asks for its missing values.
    Settled,
}

/// Maximum number of pending recursive calls in the first pass; each aborted pass doubles it.
const FIRST_RECURSIONS: u64 = 64;

impl Live {
    /// Returns the state before the first pass.
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

    /// Loads the conditions of a rewritten query.
    pub fn takes(&mut self, rewritten: &Rewritten) {
        self.statement.learns = rewritten.leaves.len() > 1;
        self.statement.leaves =
            rewritten.leaves.iter().map(|(at, leaf)| (*at, leaf.inner_calls.clone())).collect();
    }

    /// Starts a pass and resets its state.
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

    /// Implements [`Function::Call`].
    pub(in crate::query) fn call(&mut self, values: &[ValueRef<'_>]) -> rusqlite::Result<Sql> {
        let (number, mark) = (int(values, 0), int(values, 1));
        let call = usize::try_from(number).unwrap_or(usize::MAX);
        if call >= self.known.asks.len() {
            return Err(broken("no such call"));
        }
        if mark != 0 && mark != self.pass.pended + 1 {
            // One of the arguments is itself a pending call.
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
        // Count a row only when its conditions are first looked up, since a condition may be
        // evaluated again.
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
                // A lookup without a demand does not count against the limit of the pass.
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

    /// Records a value that cannot be shown to a model, once per target and column or join.
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

    /// Implements [`Function::Mark`].
    pub(in crate::query) fn mark(&self) -> i64 {
        self.pass.pended + 1
    }

    /// Implements [`Function::Quiet`].
    pub(in crate::query) fn quiet(&mut self, values: &[ValueRef<'_>]) -> Sql {
        let looked_at = match int(values, 0) {
            0 => LookedAt::Part,
            1 => LookedAt::Row,
            _ => LookedAt::Settled,
        };
        self.pass.quiet.push((self.pass.pended, looked_at));
        Sql::Null
    }

    /// Returns whether calls are only looked up.
    fn is_quiet(&self) -> bool {
        !self.pass.quiet.is_empty() && !self.statement.thorough || self.is_settled()
    }

    /// Returns whether the current row belongs to a SELECT whose rows are final.
    fn is_settled(&self) -> bool {
        self.pass.quiet.iter().any(|(_, at)| *at == LookedAt::Settled)
    }

    /// Returns whether all conditions of a row are being looked up for the first time.
    fn looks_at_rows(&self) -> bool {
        matches!(self.pass.quiet.as_slice(), [(_, LookedAt::Row)])
    }

    /// Implements [`Function::Settled`]: ends a lookup-only scope and discards its pending calls.
    /// If their values are needed, a later evaluation demands them.
    pub(in crate::query) fn settled(&mut self, values: &[ValueRef<'_>]) -> Sql {
        let settled = self.is_settled();
        if let Some((pended, _)) = self.pass.quiet.pop()
            && (settled || !self.statement.thorough)
        {
            self.pass.pended = pended;
        }
        values.get(1).map_or(Sql::Null, |v| owned(*v))
    }

    /// Implements [`Function::Limit`].
    pub(in crate::query) fn limit(&mut self, values: &[ValueRef<'_>]) -> Sql {
        if int(values, 0) == self.mark() {
            values.get(1).map_or(Sql::Null, |v| owned(*v))
        } else {
            Sql::Integer(0)
        }
    }

    /// Implements [`Function::After`].
    pub(in crate::query) fn after(&mut self, values: &[ValueRef<'_>]) -> Sql {
        self.pass.noted = if int(values, 0) == self.mark() { 0 } else { 2 };
        values.get(1).map_or(Sql::Null, |v| owned(*v))
    }

    /// Implements [`Function::Note`].
    pub(in crate::query) fn note(&mut self, truth: i64) -> Sql {
        self.pass.noted = truth;
        Sql::Integer(truth)
    }

    /// Implements [`Function::Noted`].
    pub(in crate::query) fn noted(&self) -> Sql {
        Sql::Integer(self.pass.noted)
    }

    /// Implements [`Function::Leaf`].
    pub(in crate::query) fn leaf(&mut self, values: &[ValueRef<'_>]) -> i64 {
        let at = usize::try_from(int(values, 0)).unwrap_or_default();
        let inner = self.statement.leaves.get(&at).is_some_and(|calls| {
            calls.iter().any(|c| self.pass.pending_of.get(*c).is_some_and(|p| *p > 0))
        });
        let waits = int(values, 2) != self.pass.pended + 1;
        if inner && !waits {
            // The pending call was discarded for an earlier row that read it. Count it again: a
            // pass with an undecided condition must not be the last one.
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
    /// Returns the demanded pairs and clears them.
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

/// Runtime state, shared with the SQL functions.
pub type Shared = Arc<Mutex<Live>>;

/// Locks the runtime state.
pub fn lock(live: &Shared) -> MutexGuard<'_, Live> {
    live.lock().unwrap_or_else(PoisonError::into_inner)
}
