//! Rounds of asking again for what is known. A round that was limited or cut
//! off is gone on with, so that it gets on from run to run.

/// Why a round asks again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `--refresh`: whatever is known.
    Refresh,
    /// `--retry-failed`: what has no value.
    Retry,
}

impl Kind {
    /// The word that messages and the journal use.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Refresh => "refresh",
            Self::Retry => "retry",
        }
    }
}

/// What a round asks about: the same command leads to the same round.
#[derive(Debug, Clone)]
pub struct RefreshSubject {
    /// Why.
    pub kind: Kind,
    /// The spec's full path.
    pub spec: String,
    /// The expansion's name.
    pub expansion: String,
    /// The column's meaning, by its id in the journal.
    pub meaning: u32,
    /// The model, by its id in the journal.
    pub model: u32,
    /// The SQL of `--where`, empty for all keys.
    pub scope: String,
}

/// A round under way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenRefresh {
    /// Its id in the journal.
    pub id: i64,
    /// Facts of completions up to this one no longer count.
    pub up_to: i64,
    /// When it was begun, RFC 3339.
    pub begun_at: String,
}
