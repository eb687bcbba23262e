//! What a cell can hold: its state, its value, and the answer they came from.

use serde::{Deserialize, Serialize};

use crate::value::Value;

/// How a cell stands. Only `Ok` and `Overridden` show a value in the published
/// table; every other state is NULL there, with the state kept behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// The model answered and the answer passed its checks.
    Ok,
    /// The model says that it does not know.
    Unknown,
    /// The answer is not in the column's closed value list.
    NotInList,
    /// The answer cannot be read as the column's type, or as an answer at all.
    Invalid,
    /// The model refused.
    Refused,
    /// The request failed. Never an answer: the next run asks again.
    Error,
    /// A person's word, which beats the model's.
    Overridden,
}

impl State {
    /// Every state, in the order reports list them.
    pub const ALL: [Self; 7] = [
        Self::Ok,
        Self::Unknown,
        Self::NotInList,
        Self::Invalid,
        Self::Refused,
        Self::Error,
        Self::Overridden,
    ];

    /// The name used in SQL, JSON and text.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Unknown => "unknown",
            Self::NotInList => "not_in_list",
            Self::Invalid => "invalid",
            Self::Refused => "refused",
            Self::Error => "error",
            Self::Overridden => "overridden",
        }
    }

    /// The state of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|s| s.name() == name)
    }

    /// Whether a cell in this state shows a value.
    #[must_use]
    pub fn shows(self) -> bool {
        matches!(self, Self::Ok | Self::Overridden)
    }
}

/// The value of a cell: nothing, one value, or the list of a one-to-many column.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum CellValue {
    /// No value (every state but `ok` and `overridden`).
    Nothing,
    /// A single value.
    One(Value),
    /// The values of a one-to-many column; an empty list is a value too.
    Many(Vec<Value>),
}

impl CellValue {
    /// As JSON: null, a scalar or an array.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Value {
        match self {
            Self::Nothing => serde_json::Value::Null,
            Self::One(value) => value.to_json(),
            Self::Many(values) => values.iter().map(Value::to_json).collect(),
        }
    }

    /// From JSON: arrays are lists, null is nothing.
    #[must_use]
    pub fn from_json(json: &serde_json::Value) -> Self {
        match json {
            serde_json::Value::Null => Self::Nothing,
            serde_json::Value::Array(items) => {
                Self::Many(items.iter().map(Value::from_json).collect())
            }
            scalar => Self::One(Value::from_json(scalar)),
        }
    }
}

/// What the note of a repair says before values that were left out of a list.
pub const LEFT_OUT: &str = "left out: ";

/// What was read out of a completion for one cell, after all checks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// How the cell stands.
    pub state: State,
    /// Its value; `Nothing` unless the state shows one.
    pub value: CellValue,
    /// The model's own words, kept where they differ from the value.
    pub raw: Option<String>,
    /// What was repaired on the way, in words.
    pub repair: Option<String>,
}

impl Answer {
    /// A value that needed no repair.
    #[must_use]
    pub fn ok(value: CellValue) -> Self {
        Self { state: State::Ok, value, raw: None, repair: None }
    }

    /// A cell without a value, and the words that led there.
    #[must_use]
    pub fn without_value(state: State, raw: impl Into<Option<String>>) -> Self {
        Self { state, value: CellValue::Nothing, raw: raw.into(), repair: None }
    }

    /// Whether values of a list were left out because they are not allowed.
    #[must_use]
    pub fn leaves_out(&self) -> bool {
        self.repair.as_ref().is_some_and(|r| r.contains(LEFT_OUT))
    }

    /// The same answer with a note of what was repaired.
    #[must_use]
    pub fn repaired(mut self, note: &str, raw: &str) -> Self {
        self.repair = Some(match self.repair {
            Some(before) => format!("{before}; {note}"),
            None => note.to_owned(),
        });
        self.raw.get_or_insert_with(|| raw.to_owned());
        self
    }
}

/// Cells by state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally([u64; 7]);

impl Tally {
    /// Counts `n` more cells in a state.
    pub fn add(&mut self, state: State, n: u64) {
        if let Some(at) = State::ALL.iter().position(|s| *s == state) {
            self.0[at] += n;
        }
    }

    /// Counts at most `n` cells in a state; how many fewer these are now.
    pub fn at_most(&mut self, state: State, n: u64) -> u64 {
        let Some(at) = State::ALL.iter().position(|s| *s == state) else { return 0 };
        let fewer = self.0[at].saturating_sub(n);
        self.0[at] -= fewer;
        fewer
    }

    /// The count of a state.
    #[must_use]
    pub fn get(&self, state: State) -> u64 {
        State::ALL.iter().position(|s| *s == state).map_or(0, |at| self.0[at])
    }

    /// All cells.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Cells that show no value.
    #[must_use]
    pub fn without_value(&self) -> u64 {
        State::ALL.iter().filter(|s| !s.shows()).map(|s| self.get(*s)).sum()
    }

    /// Cells that show no value although the model did not say that it does not know it.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.without_value() - self.get(State::Unknown)
    }

    /// Adds another tally to this one.
    pub fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine += theirs;
        }
    }

    /// As the JSON object of the contracts: every state with its count.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Value {
        State::ALL
            .iter()
            .map(|s| (s.name().to_owned(), self.get(*s).into()))
            .collect::<serde_json::Map<_, _>>()
            .into()
    }
}
