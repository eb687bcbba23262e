//! Runtime of the SQL functions that replace calls, with the state that they update while `SQLite`
//! runs the query. A call without a known value returns NULL, counts as *pending* and records a
//! demand. The runtime distinguishes a condition that depends on a pending call from a condition
//! that is false.

pub(in crate::query) mod pending_set;
pub(in crate::query) mod candidates;
mod embeddings;
pub(in crate::query) mod needed_rows;
mod whole_groups;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foldhash::{HashMap, HashSet, HashSetExt};
use rusqlite::types::{Value as Sql, ValueRef};

use crate::query::cells::call_target::CallTarget;
use crate::query::cells::canonical_bytes::write_canonical_bytes;
use crate::query::cells::context::{ContextTooLong, Contexts};
use crate::query::cells::documents::Document;
use crate::query::cells::reduction::{Reduction, ReductionOutcome, Reductions};
use crate::query::cells::targets::{Cell, Counts, Demand, TargetExpansion};
use crate::query::connection::dedup::TrigramCache;
use crate::query::functions::call_runtime::candidates::Candidates;
use crate::query::functions::call_runtime::needed_rows::NeededGroups;
use crate::query::functions::call_runtime::pending_set::PendingSet;
use crate::query::functions::call_stats::CallStats;
use crate::query::result::query_result::to_owned_value;
use hqdl_facts::Facts;
use hqdl_spec::overrides::Overrides;
use hqdl_sql::blendsql::plan::NeededRows;
use hqdl_sql::blendsql::rewrite::{RewrittenQuery, Selectivity};
#[cfg(doc)]
use hqdl_sql::blendsql::runtime::Function;
use hqdl_values::value::Value;

/// Left value of a join with its canonical bytes, and the candidate partners.
pub type JoinLookup = (Value, Vec<u8>, Vec<(Value, Vec<u8>)>);

/// Values of both sides of a join seen so far.
#[derive(Debug, Default)]
pub struct JoinPairs {
    /// Whether two values match, for each answered pair, by left value and then by right value.
    pub answers: HashMap<Vec<u8>, HashMap<Vec<u8>, bool>>,
    /// Whether the facts contain lists that the join has asked about.
    pub has_known_lists: bool,
    /// Pairs demanded in this pass.
    pub demanded: PairLookups,
    /// Pairs without an answer that this pass has only looked up. Facts may answer them, but they are
    /// no reason for a question.
    pub looked_up: PairLookups,
    /// Original length of the longest list that `narrow` shortened; 0 if it shortened no list.
    pub narrowed_from: usize,
    /// Minimum trigram similarity of the pairs that the model is asked about; `None` for all pairs.
    pub min_similarity: Option<f64>,
    /// Number of pairs that are not similar enough.
    pub dissimilar_count: u64,
    trigrams: TrigramCache,
}

/// Pairs of a join, by left value.
#[derive(Debug, Default)]
pub struct PairLookups {
    lookups: Vec<JoinLookup>,
    positions: HashMap<Vec<u8>, usize>,
    pairs: HashSet<(usize, Vec<u8>)>,
}

impl PairLookups {
    fn add_pair(&mut self, left: (Value, Vec<u8>), right: (Value, Vec<u8>)) {
        let at = *self.positions.entry(left.1.clone()).or_insert_with(|| {
            self.lookups.push((left.0, left.1, Vec::new()));
            self.lookups.len() - 1
        });
        if let Some((_, _, rights)) = self.lookups.get_mut(at)
            && self.pairs.insert((at, right.1.clone()))
        {
            rights.push(right);
        }
    }

    /// Returns the pairs and clears them.
    pub fn take(&mut self) -> Vec<JoinLookup> {
        std::mem::take(self).lookups
    }
}

impl JoinPairs {
    /// Returns true if the texts of a pair are too dissimilar for the model to be asked about it.
    /// The pair does not match then. Equal values, and values without trigrams, are never too
    /// dissimilar.
    fn exclude_dissimilar_pair(&mut self, left: (&Value, &[u8]), right: (&Value, &[u8])) -> bool {
        let Some(min_similarity) = self.min_similarity else { return false };
        let text = |value: &Value| value.canonical_text().map(Cow::into_owned).unwrap_or_default();
        let similarity = self.trigrams.compute_similarity(&text(left.0), &text(right.0));
        if similarity.is_none_or(|similarity| similarity >= min_similarity) {
            return false;
        }
        self.dissimilar_count += 1;
        self.answers.entry(left.1.to_vec()).or_default().insert(right.1.to_vec(), false);
        true
    }
}

/// State shared by the SQL functions of a query.
pub struct CallRuntime {
    /// Known values, which do not change during a pass.
    pub data: QueryData,
    /// Settings of the current statement.
    pub settings: StatementSettings,
    /// Results of the current pass.
    pub pass: PassState,
    /// Rows that are ordered by similarity.
    pub candidates: Candidates,
    pub(in crate::query) canonical_buffer: Vec<u8>,
}

/// Targets of calls and their known values. They do not change during a pass.
pub struct QueryData {
    /// Facts of all expansions.
    pub facts: Facts,
    /// The user's overrides.
    pub overrides: Option<Overrides>,
    /// Targets of the calls, by call number.
    pub call_targets: Vec<CallTarget>,
    /// Expansions that the query uses.
    pub targets: Vec<TargetExpansion>,
    /// Joins of the query.
    pub joins: Vec<JoinPairs>,
    /// Contexts of questions about rows.
    pub contexts: Contexts,
    /// Reductions of documents that are too long.
    pub reductions: Reductions,
    /// Notes about the clusters of each `LLMDedup` call, by the call's text.
    pub cluster_notes: BTreeMap<String, String>,
    /// Error about a context that is too long; it stops the query.
    pub failure: Option<ContextTooLong>,
    /// Numbers of cells that were reused or asked for.
    pub counts: Counts,
    /// Cells whose answers do not match the regular expression or the item count of their call.
    pub mismatched: HashSet<Demand>,
    /// Digests of values that cannot be shown to the model. This is a set because each pass
    /// encounters the same values again.
    pub unreadable: HashSet<[u8; 32]>,
}

/// Settings of the current statement.
#[derive(Default)]
pub struct StatementSettings {
    measures_selectivity: bool,
    /// Calls in the subqueries of each condition, by the condition's position.
    predicate_calls: HashMap<usize, Vec<usize>>,
    /// Rows needed from each group, by condition group.
    needed_rows: HashMap<usize, NeededRows>,
    /// Whether demands are recorded even in lookup-only mode, for all conditions of a row.
    pub probes_all_conditions: bool,
    /// Whether lookup-only mode and short-circuiting are disabled, so that every reached demand is
    /// recorded.
    pub no_short_circuit: bool,
    /// Whether the query is only explained, so that hqdl counts its requests without sending them.
    /// Questions that depend on missing answers are then demanded, too.
    pub bounds_requests: bool,
    /// Whether the statement reads published tables. An unknown value then ends the pass.
    pub reads_stored_tables: bool,
    /// For each call, whether it is in a recursive common table expression, which may produce rows
    /// forever while the call is pending.
    pub is_recursive: Vec<bool>,
    /// Maximum number of pending recursive calls in a pass.
    max_recursive_pending: u64,
}

/// Results of a pass so far.
#[derive(Default)]
pub struct PassState {
    /// Recorded demands.
    pub pending: PendingSet,
    /// Rows of the SELECTs that need only the first passing rows.
    pub needed: NeededGroups,
    /// Outcomes of conditions, by position and by whether calls were only looked up. Lookups cover
    /// all rows; other evaluations cover only the rows that lookups left undecided.
    pub selectivities: HashMap<(usize, bool), Selectivity>,
    /// For each call, the number of rows that reached it and the number of distinct values in these
    /// rows.
    pub call_stats: Vec<CallStats>,
    /// Number of pending calls so far, excluding calls that no row depends on.
    pub pending_count: i64,
    /// Number of pending calls, by call number.
    pub pending_by_call: Vec<u64>,
    /// Whether the pass was aborted. Its demands are sent before the next pass.
    pub is_aborted: bool,
    /// Number of pending calls in recursive common table expressions.
    recursive_pending: u64,
    /// Truth value recorded last, for [`Function::LastTruth`].
    pub last_truth: i64,
    /// Stack of open lookup-only scopes, each with the pending count at its start. While the stack
    /// is not empty, calls are only looked up and record no demand.
    pub lookup_scopes: Vec<(i64, LookupScope)>,
}

/// Extent of a lookup-only scope.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LookupScope {
    /// Some of a row's conditions.
    SomeConditions,
    /// All conditions of a row; their outcomes are counted.
    AllConditions,
    /// A row of a SELECT whose rows are final. No pass asks for the row's missing values.
    CompleteRow,
}

/// Maximum number of pending recursive calls in the first pass. Each aborted pass doubles the
/// limit.
const FIRST_MAX_RECURSIVE_PENDING: u64 = 64;

impl CallRuntime {
    /// Returns the state before the first pass.
    #[must_use]
    pub fn new(
        facts: Facts,
        call_targets: Vec<CallTarget>,
        targets: Vec<TargetExpansion>,
        joins: usize,
        contexts: Contexts,
    ) -> Self {
        let joins = (0..joins).map(|_| JoinPairs::default()).collect();
        Self {
            pass: PassState::with_calls(call_targets.len()),
            data: QueryData {
                facts,
                overrides: None,
                call_targets,
                targets,
                joins,
                contexts,
                reductions: Reductions::default(),
                cluster_notes: BTreeMap::new(),
                failure: None,
                counts: Counts::default(),
                mismatched: HashSet::new(),
                unreadable: HashSet::new(),
            },
            settings: StatementSettings {
                max_recursive_pending: FIRST_MAX_RECURSIVE_PENDING,
                ..StatementSettings::default()
            },
            candidates: Candidates::default(),
            canonical_buffer: Vec::new(),
        }
    }

    /// Loads the conditions of a rewritten query.
    pub fn load_conditions(&mut self, rewritten: &RewrittenQuery) {
        self.settings.measures_selectivity = rewritten.predicates.len() > 1;
        self.settings.predicate_calls =
            rewritten.predicates.iter().map(|(at, calls)| (*at, calls.clone())).collect();
        self.settings.needed_rows =
            rewritten.needed_rows.iter().map(|(group, rows)| (*group, rows.clone())).collect();
    }

    /// Starts a pass and resets its state.
    pub fn begin_pass(&mut self) {
        if self.pass.is_aborted {
            self.settings.max_recursive_pending =
                self.settings.max_recursive_pending.saturating_mul(2);
        }
        self.pass = PassState::with_calls(self.data.call_targets.len());
        self.data.targets.iter_mut().for_each(TargetExpansion::discard_documents);
    }

    fn count_pending_call(&mut self, call: usize) {
        self.pass.pending_count += 1;
        if !self.is_lookup_only() {
            self.pass.pending_by_call[call] += 1;
        }
    }

    /// Implements [`Function::Call`].
    pub(in crate::query) fn evaluate_call(
        &mut self,
        values: &[ValueRef<'_>],
    ) -> rusqlite::Result<Sql> {
        let (number, mark) = (integer_argument(values, 0), integer_argument(values, 1));
        let call = usize::try_from(number).unwrap_or(usize::MAX);
        if call >= self.data.call_targets.len() {
            return Err(function_error("no such call"));
        }
        if mark != 0 && mark != self.pass.pending_count + 1 {
            // An argument of the call depends on a pending call.
            self.count_pending_call(call);
            return Ok(Sql::Null);
        }
        let values = values.get(2..).unwrap_or_default();
        let mut document = None;
        let (target, column, entity) = match self.data.call_targets[call] {
            CallTarget::Cell { target, column, .. } => {
                match self.intern_value_entity(target, column, values)? {
                    Some(entity) => (target, column, entity),
                    None => return Ok(Sql::Null),
                }
            }
            CallTarget::Document { target, column, reduction: Some(columns), .. } => {
                let reduction = Reduction { call, target, column, columns };
                match self.reduce_document(reduction, first_value(values))? {
                    ReductionOutcome::Cell(cell, whole) => {
                        document = whole;
                        (cell.target(), cell.column(), cell.entity())
                    }
                    ReductionOutcome::Nothing => return Ok(Sql::Null),
                    ReductionOutcome::Pending => {
                        self.count_pending_call(call);
                        return Ok(Sql::Null);
                    }
                }
            }
            CallTarget::Document { target, column, reduction: None, .. } => {
                match self.intern_document_entity(target, values)? {
                    Some(entity) => (target, column, entity),
                    None => return Ok(Sql::Null),
                }
            }
            CallTarget::Rows { target, .. } => {
                (target, 0, self.intern_rows_entity(call, target, values)?)
            }
            CallTarget::Embedding { target, is_similarity } => {
                return self.evaluate_embeddings(call, target, is_similarity, values);
            }
            CallTarget::Pair { join } => return self.evaluate_pair(call, join, values),
        };
        self.count_measured_row(call, entity);
        let counts = &mut self.data.counts;
        let cell = self.data.targets[target]
            .look_up_cell(entity, column, &self.data.facts, self.data.overrides.as_ref(), counts)
            .map_err(|e| function_error(&e.to_string()))?;
        match cell {
            Cell::Known(value) => {
                let conversion = self.data.call_targets[call].conversion();
                let converted = conversion.map_or_else(|| value.clone(), |c| c.convert(value));
                if converted == Sql::Null && *value != Sql::Null {
                    self.data.mismatched.insert(Demand::new(target, entity, column));
                }
                Ok(converted)
            }
            Cell::Failed => Ok(Sql::Null),
            Cell::NotLookedUp | Cell::Missing if self.settings.reads_stored_tables => {
                Err(function_error(
                    "internal error: a published table lacks a value that the query reads",
                ))
            }
            Cell::NotLookedUp | Cell::Missing => {
                self.count_pending_call(call);
                if let CallTarget::Document { reduction: None, .. } = self.data.call_targets[call] {
                    document = Document::from_value(first_value(values)).ok().flatten();
                }
                self.demand_cell(call, Demand::new(target, entity, column), document)?;
                Ok(Sql::Null)
            }
        }
    }

    /// Counts a row of a call whose selectivity is measured. A row counts only when its conditions
    /// are first looked up, because a condition may be evaluated again.
    fn count_measured_row(&mut self, call: usize, entity: usize) {
        if self.settings.measures_selectivity && self.is_first_lookup() {
            self.pass.call_stats[call].count_row(entity);
        }
    }

    /// Records the demand of a pending call, unless its row is complete or the call is only being
    /// looked up.
    pub(super) fn demand_cell(
        &mut self,
        call: usize,
        demand: Demand,
        document: Option<Document>,
    ) -> rusqlite::Result<()> {
        if self.is_complete_row() || self.is_lookup_only() && !self.settings.probes_all_conditions {
            return Ok(());
        }
        // A lookup without a demand does not count against the limit of the pass.
        let recursing = self.settings.is_recursive.get(call).is_some_and(|r| *r);
        self.pass.recursive_pending += u64::from(recursing);
        if self.pass.recursive_pending > self.settings.max_recursive_pending {
            return Err(self.abort_pass());
        }
        if let Some(document) = document {
            self.data.targets[demand.target()].store_document(demand.entity(), document);
        }
        self.pass.pending.add_demand(demand);
        Ok(())
    }

    /// Records a value that cannot be shown to the model. A value is recorded once per target and
    /// column, or once per join.
    pub(in crate::query) fn record_unreadable_value(
        &mut self,
        asked_by: (usize, usize),
        canonical_bytes: &[u8],
    ) {
        let mut hasher = blake3::Hasher::new();
        hasher
            .update(&(asked_by.0 as u64).to_le_bytes())
            .update(&(asked_by.1 as u64).to_le_bytes());
        self.data.unreadable.insert(*hasher.update(canonical_bytes).finalize().as_bytes());
    }

    fn evaluate_pair(
        &mut self,
        call: usize,
        join: usize,
        values: &[ValueRef<'_>],
    ) -> rusqlite::Result<Sql> {
        let [left, right] = values else {
            return Err(function_error("internal error: a join call needs exactly two arguments"));
        };
        if *left == ValueRef::Null || *right == ValueRef::Null {
            return Ok(Sql::Null);
        }
        let (mut l, mut r) = (Vec::new(), Vec::new());
        write_canonical_bytes(&[*left], &mut l);
        write_canonical_bytes(&[*right], &mut r);
        let lookup_only = self.is_lookup_only();
        let join_pairs = &mut self.data.joins[join];
        if let Some(partners) = join_pairs.answers.get(&l).and_then(|known| known.get(&r)) {
            return Ok(Sql::Integer(i64::from(*partners)));
        }
        if lookup_only && join_pairs.min_similarity.is_none() && !join_pairs.has_known_lists {
            self.pass.pending_count += 1;
            return Ok(Sql::Null);
        }
        let (Ok(left), Ok(right)) = (Value::from_sqlite(*left), Value::from_sqlite(*right)) else {
            l.extend(r);
            self.record_unreadable_value((usize::MAX, join), &l);
            return Ok(Sql::Null);
        };
        let join_pairs = &mut self.data.joins[join];
        if join_pairs.exclude_dissimilar_pair((&left, &l), (&right, &r)) {
            return Ok(Sql::Integer(0));
        }
        if lookup_only {
            if join_pairs.has_known_lists {
                join_pairs.looked_up.add_pair((left, l), (right, r));
            }
            self.pass.pending_count += 1;
            return Ok(Sql::Null);
        }
        join_pairs.demanded.add_pair((left, l), (right, r));
        self.count_pending_call(call);
        Ok(Sql::Null)
    }

    /// Implements [`Function::PendingMark`].
    pub(in crate::query) fn pending_mark(&self) -> i64 {
        self.pass.pending_count + 1
    }

    /// Implements [`Function::BeginLookup`].
    pub(in crate::query) fn begin_lookup(&mut self, values: &[ValueRef<'_>]) -> Sql {
        let scope = match integer_argument(values, 0) {
            0 => LookupScope::SomeConditions,
            1 => LookupScope::AllConditions,
            _ => LookupScope::CompleteRow,
        };
        self.pass.lookup_scopes.push((self.pass.pending_count, scope));
        Sql::Null
    }

    /// Returns true if a call may only read known answers, and must not request new ones.
    pub(super) fn is_lookup_only(&self) -> bool {
        !self.pass.lookup_scopes.is_empty() && !self.settings.no_short_circuit
            || self.is_complete_row()
    }

    /// Returns true if the current row belongs to a SELECT whose rows are final.
    fn is_complete_row(&self) -> bool {
        self.pass.lookup_scopes.iter().any(|(_, at)| *at == LookupScope::CompleteRow)
    }

    /// Returns true if all conditions of a row are being looked up for the first time.
    fn is_first_lookup(&self) -> bool {
        matches!(self.pass.lookup_scopes.as_slice(), [(_, LookupScope::AllConditions)])
    }

    /// Implements [`Function::EndLookup`]: ends a lookup-only scope and discards its pending calls.
    /// If their values are needed, a later evaluation demands them.
    pub(in crate::query) fn end_lookup(&mut self, values: &[ValueRef<'_>]) -> Sql {
        let is_complete_row = self.is_complete_row();
        if let Some((pending_count, _)) = self.pass.lookup_scopes.pop()
            && (is_complete_row || !self.settings.no_short_circuit)
        {
            self.pass.pending_count = pending_count;
        }
        values.get(1).map_or(Sql::Null, |v| to_owned_value(*v))
    }

    /// Implements [`Function::Limit`].
    pub(in crate::query) fn evaluate_limit(&mut self, values: &[ValueRef<'_>]) -> Sql {
        if integer_argument(values, 0) == self.pending_mark() {
            values.get(1).map_or(Sql::Null, |v| to_owned_value(*v))
        } else {
            Sql::Integer(0)
        }
    }

    /// Implements [`Function::RecordPending`].
    pub(in crate::query) fn record_pending(&mut self, values: &[ValueRef<'_>]) -> Sql {
        self.pass.last_truth =
            if integer_argument(values, 0) == self.pending_mark() { 0 } else { 2 };
        values.get(1).map_or(Sql::Null, |v| to_owned_value(*v))
    }

    /// Implements [`Function::RecordTruth`].
    pub(in crate::query) fn record_truth(&mut self, truth: i64) -> Sql {
        self.pass.last_truth = truth;
        Sql::Integer(truth)
    }

    /// Implements [`Function::LastTruth`].
    pub(in crate::query) fn last_truth(&self) -> Sql {
        Sql::Integer(self.pass.last_truth)
    }

    /// Implements [`Function::PredicateTruth`].
    pub(in crate::query) fn evaluate_predicate(&mut self, values: &[ValueRef<'_>]) -> i64 {
        let at = usize::try_from(integer_argument(values, 0)).unwrap_or_default();
        let has_pending_inner = self.settings.predicate_calls.get(&at).is_some_and(|calls| {
            calls.iter().any(|c| self.pass.pending_by_call.get(*c).is_some_and(|p| *p > 0))
        });
        let is_pending = integer_argument(values, 2) != self.pass.pending_count + 1;
        if has_pending_inner && !is_pending {
            // The pending call was discarded with the earlier row that read it. Count it again,
            // because a pass with an undecided condition must not be the last pass.
            self.pass.pending_count += 1;
        }
        if has_pending_inner || is_pending {
            return 2;
        }
        let (wanted_truth, is_true) =
            (integer_argument(values, 1) == 1, integer_argument(values, 3) == 1);
        let is_lookup = !self.pass.lookup_scopes.is_empty();
        if is_lookup && !self.is_first_lookup() {
            return i64::from(is_true);
        }
        let selectivity = self.pass.selectivities.entry((at, is_lookup)).or_default();
        if is_true == wanted_truth {
            selectivity.passed += 1;
        } else {
            selectivity.failed += 1;
        }
        i64::from(is_true)
    }
}

impl PassState {
    fn with_calls(calls: usize) -> Self {
        Self {
            call_stats: vec![CallStats::default(); calls],
            pending_by_call: vec![0; calls],
            ..Self::default()
        }
    }
}

fn first_value<'v>(values: &[ValueRef<'v>]) -> ValueRef<'v> {
    values.first().copied().unwrap_or(ValueRef::Null)
}

pub(in crate::query) fn integer_argument(values: &[ValueRef<'_>], n: usize) -> i64 {
    match values.get(n) {
        Some(ValueRef::Integer(i)) => *i,
        _ => 0,
    }
}

pub(in crate::query) fn function_error(message: &str) -> rusqlite::Error {
    rusqlite::Error::UserFunctionError(message.to_owned().into())
}

/// Runtime state, shared with the SQL functions.
pub type SharedRuntime = Arc<Mutex<CallRuntime>>;

/// Locks the runtime state.
pub fn lock_runtime(runtime: &SharedRuntime) -> MutexGuard<'_, CallRuntime> {
    runtime.lock().unwrap_or_else(PoisonError::into_inner)
}
