//! The functions of the engine that a rewritten query calls: the one table of them.
//! The module `emit` writes them, and whoever runs a rewritten query registers
//! each of [`Function::ALL`].
//!
//! A *mark* is the number of calls that were pending before something was evaluated,
//! and one more, so that 0 is none: where it differs afterwards, a call in it is
//! pending. A *truth* is 1, 0, or 2 while a pending call decides it.

/// A function of the engine. All are scalar but [`Function::Rows`] and
/// [`Function::Values`], which are aggregates; none is deterministic, since `SQLite` must not evaluate one before it is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Function {
    /// `hq_call(call, mark, value, …)`: the answer of a call about these values; NULL
    /// and pending while it is not known, or when a value of it is pending.
    Call,
    /// `hq_rank(call, document, …)`: the place of a row in the order of how much its
    /// documents are like what calls ask of them.
    Rank,
    /// `hq_row(column, …)`: 1; names columns, so that what stands behind it is
    /// evaluated for whole rows.
    Row,
    /// `hq_open(unit)`: opens the note of a row of a SELECT.
    Open,
    /// `hq_close(opened, truth[, value])`: closes it; 1 where the truth is 1, else 0.
    Close,
    /// `hq_start(unit)`: opens the note of all rows of an EXISTS or IN.
    Start,
    /// `hq_run(settles, once, started, value)`: closes it; the value.
    Run,
    /// `hq_hold(mark, n, n calls …, value, …)`: holds the values of a row that may be
    /// one of the first; its truth.
    Hold,
    /// `hq_row_note(opened, truth)`: closes the note of such a row; its number.
    RowNote,
    /// `hq_mark()`: a mark.
    Mark,
    /// `hq_leaf(place, wanted, mark, holds)`: the truth of a condition, counted.
    Leaf,
    /// `hq_quiet(how)`: from here on calls are only looked up: 0, as a part of a row's
    /// conditions; 1, as all of them, which are counted; 2, in rows that are settled, whose
    /// calls are asked in no pass.
    Quiet,
    /// `hq_settled(quiet, value)`: the end of that; the value.
    Settled,
    /// `hq_limit(mark, value)`: a LIMIT, or 0 while a call in it is pending.
    Limit,
    /// `hq_after(mark, value)`: the value; notes whether a call in it is pending.
    After,
    /// `hq_all(truth, …)`: the truth of an AND.
    All,
    /// `hq_any(truth, …)`: the truth of an OR.
    Any,
    /// `hq_note(truth)`: the truth, noted.
    Note,
    /// `hq_noted()`: what was noted last.
    Noted,
    /// `hq_rows(titles, value, …)`: rows as one JSON text.
    Rows,
    /// `hq_values(titles, value, …)`: the same, but for the one value of one row, which
    /// is itself, and no rows, which are NULL.
    Values,
}

impl Function {
    /// All of them.
    pub const ALL: [Self; 21] = [
        Self::Call,
        Self::Rank,
        Self::Row,
        Self::Open,
        Self::Close,
        Self::Start,
        Self::Run,
        Self::Hold,
        Self::RowNote,
        Self::Mark,
        Self::Leaf,
        Self::Quiet,
        Self::Settled,
        Self::Limit,
        Self::After,
        Self::All,
        Self::Any,
        Self::Note,
        Self::Noted,
        Self::Rows,
        Self::Values,
    ];

    /// Its name in SQL.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Call => "hq_call",
            Self::Rank => "hq_rank",
            Self::Row => "hq_row",
            Self::Open => "hq_open",
            Self::Close => "hq_close",
            Self::Start => "hq_start",
            Self::Run => "hq_run",
            Self::Hold => "hq_hold",
            Self::RowNote => "hq_row_note",
            Self::Mark => "hq_mark",
            Self::Leaf => "hq_leaf",
            Self::Quiet => "hq_quiet",
            Self::Settled => "hq_settled",
            Self::Limit => "hq_limit",
            Self::After => "hq_after",
            Self::All => "hq_all",
            Self::Any => "hq_any",
            Self::Note => "hq_note",
            Self::Noted => "hq_noted",
            Self::Rows => "hq_rows",
            Self::Values => "hq_values",
        }
    }

    /// A call of it with these arguments, each of them SQL.
    #[must_use]
    pub fn of<A: AsRef<str>>(self, arguments: &[A]) -> String {
        let arguments: Vec<&str> = arguments.iter().map(AsRef::as_ref).collect();
        format!("{}({})", self.name(), arguments.join(", "))
    }
}
