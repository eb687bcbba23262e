//! Cells: their states and values, and the answers that they are read from.

use serde::{Deserialize, Serialize};

use crate::value::Value;

/// State of a cell. Only `Ok` and `Overridden` cells have a value in the published table. A cell in
/// any other state is NULL there, and its state is stored separately.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// The model answered and the answer passed its checks.
    Ok,
    /// The model answered that it does not know.
    Unknown,
    /// The answer is not in the column's closed value list.
    NotInList,
    /// The answer cannot be parsed as the column's type, or at all.
    Invalid,
    /// The model refused.
    Refused,
    /// The request failed, so there is no answer. The next run retries it.
    Error,
    /// A person entered the value, which takes precedence over the model's answer.
    Overridden,
}

impl State {
    /// All states, in the order in which reports list them.
    pub const ALL: [Self; 7] = [
        Self::Ok,
        Self::Unknown,
        Self::NotInList,
        Self::Invalid,
        Self::Refused,
        Self::Error,
        Self::Overridden,
    ];

    /// Returns the state's name in SQL, JSON and text.
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

    /// Returns the state with this name; `None` if there is none.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|s| s.name() == name)
    }

    /// Returns true if a cell in this state has a value.
    #[must_use]
    pub fn has_value(self) -> bool {
        matches!(self, Self::Ok | Self::Overridden)
    }
}

/// Value of a cell: nothing, one value, or the list of a one-to-many column.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum CellValue {
    /// No value (every state but `ok` and `overridden`).
    Nothing,
    /// A single value.
    One(Value),
    /// Values of a one-to-many column; an empty list is also a value.
    Many(Vec<Value>),
}

impl CellValue {
    /// Converts the value to JSON: null, a scalar or an array.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Value {
        match self {
            Self::Nothing => serde_json::Value::Null,
            Self::One(value) => value.to_json(),
            Self::Many(values) => values.iter().map(Value::to_json).collect(),
        }
    }

    /// Converts JSON to a value: an array becomes a list, and null becomes `Nothing`.
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

/// Prefix of the repair note that lists values omitted from a list.
pub const OMITTED_PREFIX: &str = "left out: ";

/// The answer for one cell, parsed from a completion and checked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// State of the cell.
    pub state: State,
    /// Value; `Nothing` unless the state has one.
    pub value: CellValue,
    /// The model's original text, if it differs from the value.
    pub raw: Option<String>,
    /// Note about repairs of the answer.
    pub repair: Option<String>,
}

impl Answer {
    /// Returns an answer whose value needed no repair.
    #[must_use]
    pub fn ok(value: CellValue) -> Self {
        Self { state: State::Ok, value, raw: None, repair: None }
    }

    /// Returns an answer without a value. `raw` is the model's original text.
    #[must_use]
    pub fn without_value(state: State, raw: impl Into<Option<String>>) -> Self {
        Self { state, value: CellValue::Nothing, raw: raw.into(), repair: None }
    }

    /// Returns true if values were omitted from a list because they are not allowed.
    #[must_use]
    pub fn has_omitted_values(&self) -> bool {
        self.repair.as_ref().is_some_and(|r| r.contains(OMITTED_PREFIX))
    }

    /// Returns the answer with an additional note about a repair.
    #[must_use]
    pub fn with_repair_note(mut self, note: &str, raw: &str) -> Self {
        self.repair = Some(match self.repair {
            Some(previous) => format!("{previous}; {note}"),
            None => note.to_owned(),
        });
        self.raw.get_or_insert_with(|| raw.to_owned());
        self
    }
}

/// Number of cells by state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally([u64; 7]);

impl Tally {
    /// Adds `n` cells in a state.
    pub fn add(&mut self, state: State, n: u64) {
        if let Some(index) = State::ALL.iter().position(|s| *s == state) {
            self.0[index] += n;
        }
    }

    /// Reduces the count of a state to at most `n`. Returns the number of cells removed.
    pub fn cap_count(&mut self, state: State, n: u64) -> u64 {
        let Some(index) = State::ALL.iter().position(|s| *s == state) else { return 0 };
        let removed = self.0[index].saturating_sub(n);
        self.0[index] -= removed;
        removed
    }

    /// Returns the count of a state.
    #[must_use]
    pub fn get(&self, state: State) -> u64 {
        State::ALL.iter().position(|s| *s == state).map_or(0, |index| self.0[index])
    }

    /// Returns the number of all cells.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Returns the number of cells without a value.
    #[must_use]
    pub fn count_cells_without_value(&self) -> u64 {
        State::ALL.iter().filter(|s| !s.has_value()).map(|s| self.get(*s)).sum()
    }

    /// Returns the number of cells without a value, except those that the model answered with
    /// "unknown".
    #[must_use]
    pub fn count_failed_cells(&self) -> u64 {
        self.count_cells_without_value() - self.get(State::Unknown)
    }

    /// Adds another tally to this one.
    pub fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine += theirs;
        }
    }

    /// Converts the tally to a JSON object that contains every state with its count.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Value {
        State::ALL
            .iter()
            .map(|s| (s.name().to_owned(), self.get(*s).into()))
            .collect::<serde_json::Map<_, _>>()
            .into()
    }
}
