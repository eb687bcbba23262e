//! Decides whether a cell is known, and if not, why it must be asked for. Runs, queries and the
//! daemon all use this module.

use std::borrow::Cow;

use crate::in_flight::ClaimKey;
use crate::record::{Fact, Record};
use crate::{FactsError, History, unify};
use hqdl_spec::checker::Checker;
use hqdl_spec::{Expansion, Reuse};
use hqdl_values::cell::State;
use hqdl_values::key::Entity;

/// Why a cell must be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reason {
    /// Nothing is known about its entity.
    NewRow,
    /// Its entity is known, but the column is new.
    NewColumn,
    /// The definition of the column has changed.
    ChangedColumn,
    /// The value list has changed and no longer covers the value.
    ChangedList,
    /// Only another model has answered.
    OtherModel,
    /// The last request failed.
    Failed,
    /// `--retry-failed` asks again for cells without a value.
    Retried,
    /// `--refresh` asks again.
    Refreshed,
}

impl Reason {
    /// All reasons, in the order of reports.
    pub const ALL: [Self; 8] = [
        Self::NewRow,
        Self::NewColumn,
        Self::ChangedColumn,
        Self::ChangedList,
        Self::OtherModel,
        Self::Failed,
        Self::Retried,
        Self::Refreshed,
    ];

    /// The name of the reason in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::NewRow => "new_row",
            Self::NewColumn => "new_column",
            Self::ChangedColumn => "changed_column",
            Self::ChangedList => "changed_list",
            Self::OtherModel => "other_model",
            Self::Failed => "failed",
            Self::Retried => "retried",
            Self::Refreshed => "refreshed",
        }
    }
}

/// Result of looking up a cell.
#[derive(Debug, Clone, PartialEq)]
pub enum Found<'r> {
    /// The cell is known; this is its fact.
    Known(Cow<'r, Fact>),
    /// The cell must be asked for. The last fact, if any, is shown in the table until a better one
    /// arrives.
    Missing(Reason, Option<Cow<'r, Fact>>),
}

impl Found<'_> {
    /// The fact to show.
    #[must_use]
    pub fn fact(&self) -> Option<&Fact> {
        match self {
            Self::Known(fact) => Some(fact),
            Self::Missing(_, fact) => fact.as_deref(),
        }
    }
}

/// Requirements that a fact must meet to count as an answer for a column of an expansion.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// The model whose facts count.
    pub model: u32,
    any_model: bool,
    columns: Vec<WantedColumn>,
}

#[derive(Debug, Clone)]
struct WantedColumn {
    meaning: u32,
    list: Option<u32>,
    checker: Checker,
    /// Meanings whose facts answer as long as there are none of its own.
    also: Vec<u32>,
    /// Earlier identities of a column with this name.
    earlier: Vec<u32>,
    refresh_before: Option<i64>,
    retry_before: Option<i64>,
}

impl Wanted {
    /// Registers an expansion's columns in the history and returns their requirements.
    ///
    /// # Errors
    /// [`FactsError::Journal`].
    pub fn new(
        history: &dyn History,
        expansion: &Expansion,
        model: &str,
        reuse: Reuse,
    ) -> Result<Self, FactsError> {
        let columns = expansion
            .columns
            .iter()
            .map(|column| {
                let meaning = history.meaning(&column.meaning)?;
                let mut earlier = history.meanings_named(&column.name)?;
                let also = column.also.iter().map(|also| history.meaning(also));
                let also = also.collect::<Result<Vec<u32>, _>>()?;
                earlier.retain(|m| *m != meaning && !also.contains(m));
                let list =
                    column.values.as_ref().map(|v| history.value_list(&v.hash)).transpose()?;
                let checker = Checker::new(column);
                let whose = Some(model).filter(|_| reuse == Reuse::SameModel);
                unify::recall(history, (expansion, column), &checker, whose)?;
                Ok(WantedColumn {
                    meaning,
                    list,
                    checker,
                    also,
                    earlier,
                    refresh_before: None,
                    retry_before: None,
                })
            })
            .collect::<Result<_, FactsError>>()?;
        Ok(Self { model: history.model(model)?, any_model: reuse == Reuse::AnyModel, columns })
    }

    /// Refreshes a column: facts that were asked for up to the completion `before` no longer count.
    pub fn refresh(&mut self, column: usize, before: i64) {
        if let Some(column) = self.columns.get_mut(column) {
            column.refresh_before = Some(before);
        }
    }

    /// Retries a column: cells without a value that were asked for up to `before` no longer count.
    pub fn retry(&mut self, column: usize, before: i64) {
        if let Some(column) = self.columns.get_mut(column) {
            column.retry_before = Some(before);
        }
    }

    /// The id of a column's identity in the history.
    #[must_use]
    pub fn meaning(&self, column: usize) -> Option<u32> {
        self.columns.get(column).map(|c| c.meaning)
    }

    /// Returns the key that a run claims before it asks for a cell of this column.
    #[must_use]
    pub fn claimed(&self, entity: &Entity, column: usize) -> Option<ClaimKey> {
        let meaning = self.meaning(column)?;
        // If facts of any model count, a request claims the cell for all models.
        let model = if self.any_model { 0 } else { self.model };
        Some(ClaimKey::Cell { entity: entity.clone(), meaning, model })
    }

    /// The checker of a column.
    #[must_use]
    pub fn checker(&self, column: usize) -> Option<&Checker> {
        self.columns.get(column).map(|c| &c.checker)
    }

    /// Builds a fact about a column from an answer.
    #[must_use]
    pub fn fact(&self, column: usize, answer: hqdl_values::cell::Answer) -> Option<Fact> {
        let wanted = self.columns.get(column)?;
        Some(Fact {
            meaning: wanted.meaning,
            model: self.model,
            list: wanted.list,
            completion: 0,
            asked: 0,
            answer,
        })
    }

    /// Returns whether a fact is about a column in its current definition.
    #[must_use]
    pub fn means(&self, column: usize, fact: &Fact) -> bool {
        self.columns.get(column).is_some_and(|wanted| wanted.meaning == fact.meaning)
    }

    /// Looks up a column's cell in a record.
    #[must_use]
    pub fn find<'r>(&self, record: Option<&'r Record>, column: usize) -> Found<'r> {
        let (Some(record), Some(wanted)) = (record, self.columns.get(column)) else {
            return Found::Missing(Reason::NewRow, None);
        };
        let mut others = false;
        let meanings = [wanted.meaning].into_iter().chain(wanted.also.iter().copied());
        let found =
            meanings.into_iter().find_map(|meaning| self.last_word(record, meaning, &mut others));
        let Some(fact) = found else {
            let earlier = record.facts.iter().any(|f| wanted.earlier.contains(&f.meaning));
            let reason = match (others, earlier) {
                (true, _) => Reason::OtherModel,
                (false, true) => Reason::ChangedColumn,
                (false, false) => Reason::NewColumn,
            };
            return Found::Missing(reason, None);
        };
        let fact = wanted.read_again(fact);
        match wanted.doubt(&fact) {
            None => Found::Known(fact),
            // A value that is no longer in the list is not shown either.
            Some(Reason::ChangedList) => Found::Missing(Reason::ChangedList, None),
            Some(reason) => Found::Missing(reason, (!wanted.has_left(&fact)).then_some(fact)),
        }
    }

    /// Returns the fact with a meaning that counts, and notes whether only others' facts are
    /// there.
    fn last_word<'r>(
        &self,
        record: &'r Record,
        meaning: u32,
        others: &mut bool,
    ) -> Option<&'r Fact> {
        let mut own = None;
        let mut any: Option<&Fact> = None;
        for fact in record.facts.iter().filter(|fact| fact.meaning == meaning) {
            if fact.model == self.model {
                own = Some(fact);
            } else if self.any_model && fact.answer.state != State::Error {
                // The last word of any model that has a value, else the last word.
                let better = any.is_none_or(|a| {
                    (fact.answer.state.shows(), fact.completion)
                        > (a.answer.state.shows(), a.completion)
                });
                any = if better { Some(fact) } else { any };
            } else {
                *others = true;
            }
        }
        own.filter(|own| own.answer.state != State::Error || any.is_none()).or(any)
    }
}

impl WantedColumn {
    /// Reads the raw answer of a fact again with the current checker. The words that mean "unknown"
    /// are not part of the question, so they may change after the answer.
    fn read_again<'r>(&self, fact: &'r Fact) -> Cow<'r, Fact> {
        match self.checker.read_again(&fact.answer) {
            None => Cow::Borrowed(fact),
            Some(answer) => Cow::Owned(Fact { answer, ..fact.clone() }),
        }
    }

    /// Returns why a fact no longer counts.
    fn doubt(&self, fact: &Fact) -> Option<Reason> {
        let state = fact.answer.state;
        if state == State::Error {
            return Some(Reason::Failed);
        }
        if self.refresh_before.is_some_and(|before| fact.asked <= before) {
            return Some(Reason::Refreshed);
        }
        if !state.shows() && self.retry_before.is_some_and(|before| fact.asked <= before) {
            return Some(Reason::Retried);
        }
        self.has_left(fact).then_some(Reason::ChangedList)
    }

    /// Returns whether a fact was asked with another value list and gives no value under the
    /// current one.
    fn has_left(&self, fact: &Fact) -> bool {
        fact.list != self.list
            && match fact.answer.state {
                State::Ok | State::Overridden => !self.checker.allows(&fact.answer.value),
                State::Unknown | State::NotInList => true,
                State::Invalid | State::Refused | State::Error => false,
            }
    }
}
