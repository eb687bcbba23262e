//! Runtime functions that a rewritten query calls. The module `emit` writes the calls; the engine
//! registers all of [`Function::ALL`] before it runs a rewritten query.
//!
//! A *mark* is the number of pending calls before an expression was evaluated, plus 1, so that 0
//! means no mark. If the number has changed afterwards, a call in the expression is pending. A
//! *truth* is 1, 0, or 2 while it depends on a pending call.

use super::{NEAREST, SEARCH};

/// Name of `hq_best(value, score, k)`, an aggregate that every connection has: the `k` distinct
/// values of a group with the greatest scores, as a JSON array. Values with equal scores
/// are sorted.
pub const BEST_AGGREGATE: &str = "hq_best";

/// Name of the aggregate that implements `nearest(…)`: same as [`BEST_AGGREGATE`], with different
/// error messages.
pub const NEAREST_AGGREGATE: &str = "hq_nearest";

/// Name of the aggregate that implements `search(…)` and returns the values of a group that best
/// match a text.
pub const SEARCH_AGGREGATE: &str = "hq_search";

/// Name of the `LLMDedup` aggregate that builds clusters from pairs.
pub const CLUSTERS_AGGREGATE: &str = "hq_clusters";

/// An aggregate that replaces a call.
#[derive(Debug)]
pub struct CallAggregate {
    /// The call that the user writes, for messages.
    pub call: &'static str,
    /// The SQL function.
    pub function: &'static str,
    /// The table that the function reads if the call's values are a query.
    pub table: &'static str,
}

impl CallAggregate {
    const fn new(call: &'static str, function: &'static str, table: &'static str) -> Self {
        Self { call, function, table }
    }
}

/// All aggregates that replace a call.
pub const CALL_AGGREGATES: [CallAggregate; 5] = [
    CallAggregate::new("LLMTopK", BEST_AGGREGATE, "hq_ranked"),
    CallAggregate::new(NEAREST, NEAREST_AGGREGATE, "hq_values"),
    CallAggregate::new(SEARCH, SEARCH_AGGREGATE, "hq_searched"),
    CallAggregate::new("LLMDedup", CLUSTERS_AGGREGATE, "hq_spellings"),
    CallAggregate::new("LLMReduce", Function::Texts.name(), "hq_reduced"),
];

/// Name of the `LLMDedup` function that maps a text to its canonical value.
pub const CANONICAL_FUNCTION: &str = "hq_canonical";

/// Name of the `LLMDedup` function that returns a hash of a pair, by which a sample is drawn.
pub const PAIR_ORDER_FUNCTION: &str = "hq_pair_order";

/// Name of the function that returns the trigram similarity of two texts.
pub const TRIGRAMS_FUNCTION: &str = "hq_trigrams";

/// Name of the `LLMDedup` function that returns a value in canonical form: trimmed, in Unicode NFC,
/// and NULL if nothing is left.
pub const TRIMMED_FUNCTION: &str = "hq_trimmed";

/// Name of `hq_try_cast(value, type)`, a function that every connection has: the value as
/// one of the type, or NULL.
pub const TRY_CAST_FUNCTION: &str = "hq_try_cast";

/// A runtime function. All are scalar functions except [`Function::Rows`], [`Function::Values`] and
/// [`Function::Texts`], which are aggregates. None is declared deterministic, because `SQLite` must
/// not evaluate them early.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Function {
    /// `hq_call(call, mark, value, …)`: returns the answer of a call about these values. Returns
    /// NULL and becomes pending if the answer is unknown or if a value is pending.
    Call,
    /// `hq_rank(call, document, …)`: returns the rank of a row by the similarity of its documents
    /// to the calls' questions.
    Rank,
    /// `hq_row(column, …)`: returns 1. The arguments make `SQLite` evaluate the rest of the
    /// condition for whole rows.
    RowBarrier,
    /// `hq_open(unit)`: begins recording a row of a SELECT.
    OpenRow,
    /// `hq_close(opened, truth, value, …)`: ends the recording of a row; returns 1 if the truth is
    /// 1, and otherwise 0. The values identify equivalent rows, or the row's group and its position
    /// in the group's order.
    CloseRow,
    /// `hq_start(unit)`: begins recording all rows of an EXISTS or IN.
    OpenSubquery,
    /// `hq_run(settles, once, started, value[, operand])`: ends the recording of an EXISTS or IN;
    /// returns its value.
    CloseSubquery,
    /// `hq_hold(mark, n, n calls …, value, …)`: stores the values of a candidate row of a LIMIT;
    /// returns its truth.
    StoreCallValues,
    /// `hq_row_note(opened, truth)`: ends the recording of a candidate row; returns its number.
    NumberRow,
    /// `hq_mark()`: returns a mark, the number of pending calls so far plus one. If the number has
    /// changed by the time the call runs, an argument of the call is pending.
    PendingMark,
    /// `hq_leaf(place, wanted, mark, holds)`: returns the truth value of a condition and counts it.
    PredicateTruth,
    /// `hq_quiet(how)`: begins a section in which calls are only looked up. `how` is 0 if the
    /// section contains some conditions of a row, and 1 if it contains all conditions, which are
    /// then counted. It is 2 for a row that is already decided, about which hqdl makes no requests.
    BeginLookup,
    /// `hq_settled(quiet, value)`: ends the section; returns the value.
    EndLookup,
    /// `hq_limit(mark, value)`: returns a LIMIT, or 0 while a call in it is pending.
    Limit,
    /// `hq_after(mark, value)`: returns the value and records whether a call in it is pending.
    RecordPending,
    /// `hq_all(truth, …)`: returns the truth value of an AND.
    All,
    /// `hq_any(truth, …)`: returns the truth value of an OR.
    Any,
    /// `hq_note(truth)`: returns the truth and records it.
    RecordTruth,
    /// `hq_noted()`: returns the last recorded truth.
    LastTruth,
    /// `hq_rows(titles, value, …)`: aggregates rows into one JSON text.
    Rows,
    /// `hq_values(titles, value, …)`: same as `hq_rows`, but returns the value itself for a single
    /// row with one column, and NULL for no rows.
    Values,
    /// `hq_texts(value)`: aggregates the distinct texts of a group into a sorted JSON array; NULL
    /// if there is none.
    Texts,
}

impl Function {
    /// All runtime functions.
    pub const ALL: [Self; 22] = [
        Self::Call,
        Self::Rank,
        Self::RowBarrier,
        Self::OpenRow,
        Self::CloseRow,
        Self::OpenSubquery,
        Self::CloseSubquery,
        Self::StoreCallValues,
        Self::NumberRow,
        Self::PendingMark,
        Self::PredicateTruth,
        Self::BeginLookup,
        Self::EndLookup,
        Self::Limit,
        Self::RecordPending,
        Self::All,
        Self::Any,
        Self::RecordTruth,
        Self::LastTruth,
        Self::Rows,
        Self::Values,
        Self::Texts,
    ];

    /// Returns the SQL name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Call => "hq_call",
            Self::Rank => "hq_rank",
            Self::RowBarrier => "hq_row",
            Self::OpenRow => "hq_open",
            Self::CloseRow => "hq_close",
            Self::OpenSubquery => "hq_start",
            Self::CloseSubquery => "hq_run",
            Self::StoreCallValues => "hq_hold",
            Self::NumberRow => "hq_row_note",
            Self::PendingMark => "hq_mark",
            Self::PredicateTruth => "hq_leaf",
            Self::BeginLookup => "hq_quiet",
            Self::EndLookup => "hq_settled",
            Self::Limit => "hq_limit",
            Self::RecordPending => "hq_after",
            Self::All => "hq_all",
            Self::Any => "hq_any",
            Self::RecordTruth => "hq_note",
            Self::LastTruth => "hq_noted",
            Self::Rows => "hq_rows",
            Self::Values => "hq_values",
            Self::Texts => "hq_texts",
        }
    }

    /// Formats a call of the function; each argument is SQL.
    #[must_use]
    pub fn call_sql<A: AsRef<str>>(self, arguments: &[A]) -> String {
        let arguments: Vec<&str> = arguments.iter().map(AsRef::as_ref).collect();
        format!("{}({})", self.name(), arguments.join(", "))
    }
}
