//! Decides whether a cell is known and, if not, why it must be asked for. Runs, queries and the
//! daemon all use this module.

use std::borrow::Cow;
use std::collections::HashSet;

use crate::claim_key::ClaimKey;
use crate::record::{Fact, Record};
use crate::{FactsError, History, unify};
use hqdl_spec::checker::Checker;
use hqdl_spec::{Expansion, Reuse};
use hqdl_values::cell::State;
use hqdl_values::key::Entity;

/// Reason why a cell must be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reason {
    /// The cache has no facts about the entity.
    NewRow,
    /// The entity has facts, but none for this column.
    NewColumn,
    /// The column's definition has changed.
    ChangedColumn,
    /// The value list has changed and no longer covers the value.
    ChangedList,
    /// Only another model has answered the cell.
    OtherModel,
    /// The last request failed.
    Failed,
    /// The cell has no value, and `--retry-failed` asks for it again.
    Retried,
    /// `--refresh` asks for the cell again.
    Refreshed,
    /// The supporting passages have changed, and `--refresh-evidence` asks for the cell again.
    ChangedEvidence,
    /// The first answer is unusable or must be compared with a second one, so another model answers
    /// (`escalate`).
    SecondAnswer,
}

impl Reason {
    /// All reasons, in the order in which reports list them.
    pub const ALL: [Self; 10] = [
        Self::NewRow,
        Self::NewColumn,
        Self::ChangedColumn,
        Self::ChangedList,
        Self::OtherModel,
        Self::Failed,
        Self::Retried,
        Self::Refreshed,
        Self::ChangedEvidence,
        Self::SecondAnswer,
    ];

    /// Returns the reason's name in reports.
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
            Self::ChangedEvidence => "changed_evidence",
            Self::SecondAnswer => "second_answer",
        }
    }
}

/// Result of looking up a cell.
#[derive(Debug, Clone, PartialEq)]
pub enum CellLookup<'r> {
    /// The cell is known; this is its fact.
    Known(Cow<'r, Fact>),
    /// The cell must be asked for. The last fact, if any, is shown in the table until a better one
    /// arrives.
    Missing(Reason, Option<Cow<'r, Fact>>),
}

impl CellLookup<'_> {
    /// Returns true if the cell is known.
    #[must_use]
    pub fn is_known(&self) -> bool {
        matches!(self, Self::Known(_))
    }

    /// Returns the fact to show in the table.
    #[must_use]
    pub fn fact(&self) -> Option<&Fact> {
        match self {
            Self::Known(fact) => Some(fact),
            Self::Missing(_, fact) => fact.as_deref(),
        }
    }
}

/// Requirements that one model's fact must meet to count as an answer for a column of an expansion.
#[derive(Debug, Clone)]
pub struct CellRequirements {
    /// Id of the model whose facts count.
    pub model: u32,
    model_name: String,
    any_model: bool,
    columns: Vec<ColumnRequirement>,
    /// Completions whose facts no longer count, because their prompts showed passages that have
    /// changed.
    outdated: HashSet<i64>,
}

#[derive(Debug, Clone)]
struct ColumnRequirement {
    identity_id: u32,
    list: Option<u32>,
    checker: Checker,
    /// Other identities whose facts count if there are none for the column's own identity.
    other_identity_ids: Vec<u32>,
    /// Earlier identities of a column with this name.
    earlier_identities: Vec<u32>,
    refresh_before: Option<i64>,
    retry_before: Option<i64>,
}

impl CellRequirements {
    /// Registers an expansion's columns in the history and returns their requirements.
    ///
    /// # Errors
    /// [`FactsError::Journal`] if the history cannot be read or written.
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
                let identity_id = history.intern_column_identity(&column.identity)?;
                let mut earlier = history.list_column_identity_ids(&column.name)?;
                let interned =
                    column.other_identities.iter().map(|i| history.intern_column_identity(i));
                let other_identity_ids = interned.collect::<Result<Vec<u32>, _>>()?;
                earlier.retain(|m| *m != identity_id && !other_identity_ids.contains(m));
                let list = column
                    .values
                    .as_ref()
                    .map(|v| history.intern_value_list(&v.hash))
                    .transpose()?;
                let checker = Checker::new(column);
                let model_filter = Some(model).filter(|_| reuse == Reuse::SameModel);
                unify::load_word_meanings(history, (expansion, column), &checker, model_filter)?;
                Ok(ColumnRequirement {
                    identity_id,
                    list,
                    checker,
                    other_identity_ids,
                    earlier_identities: earlier,
                    refresh_before: None,
                    retry_before: None,
                })
            })
            .collect::<Result<_, FactsError>>()?;
        Ok(Self {
            model: history.intern_model(model)?,
            model_name: model.to_owned(),
            any_model: reuse == Reuse::AnyModel,
            columns,
            outdated: HashSet::new(),
        })
    }

    /// Refreshes a column: facts that were asked for up to the completion `before` no longer count.
    pub fn refresh_column(&mut self, column: usize, before: i64) {
        if let Some(column) = self.columns.get_mut(column) {
            column.refresh_before = Some(before);
        }
    }

    /// Retries a column: cells without a value that were asked for up to `before` no longer count.
    pub fn retry_column(&mut self, column: usize, before: i64) {
        if let Some(column) = self.columns.get_mut(column) {
            column.retry_before = Some(before);
        }
    }

    /// Ignores the facts of these completions from now on, because their evidence has changed.
    pub fn mark_completions_outdated(&mut self, completions: HashSet<i64>) {
        self.outdated = completions;
    }

    /// Returns the name of the model whose facts count.
    #[must_use]
    pub fn model_name(&self) -> &str {
        &self.model_name
    }

    /// Returns the id of a column's identity in the history.
    #[must_use]
    pub fn identity_id(&self, column: usize) -> Option<u32> {
        self.columns.get(column).map(|c| c.identity_id)
    }

    /// Returns the ids of all identities whose facts can count as answers.
    #[must_use]
    pub fn all_identity_ids(&self) -> Vec<u32> {
        let ids = |column: &ColumnRequirement| {
            [column.identity_id].into_iter().chain(column.other_identity_ids.clone())
        };
        self.columns.iter().flat_map(ids).collect()
    }

    /// Returns the key that a run claims before it asks for a cell of this column.
    #[must_use]
    pub fn claim_key(&self, entity: &Entity, column: usize) -> Option<ClaimKey> {
        let identity_id = self.identity_id(column)?;
        // If facts from any model count, a request claims the cell for all models.
        let model = if self.any_model { 0 } else { self.model };
        Some(ClaimKey::Cell { entity: entity.clone(), identity_id, model })
    }

    /// Returns a column's checker.
    #[must_use]
    pub fn checker(&self, column: usize) -> Option<&Checker> {
        self.columns.get(column).map(|c| &c.checker)
    }

    /// Builds a fact about a column from an answer.
    #[must_use]
    pub fn build_fact(&self, column: usize, answer: hqdl_values::cell::Answer) -> Option<Fact> {
        let requirement = self.columns.get(column)?;
        Some(Fact {
            identity_id: requirement.identity_id,
            model: self.model,
            list: requirement.list,
            completion: 0,
            asked: 0,
            answer,
            logprob: None,
        })
    }

    /// Returns true if a fact belongs to the current definition of a column.
    #[must_use]
    pub fn matches_fact(&self, column: usize, fact: &Fact) -> bool {
        self.columns
            .get(column)
            .is_some_and(|requirement| requirement.identity_id == fact.identity_id)
    }

    /// Looks up a column's cell in a record.
    #[must_use]
    pub fn look_up_cell<'r>(&self, record: Option<&'r Record>, column: usize) -> CellLookup<'r> {
        let (Some(record), Some(requirement)) = (record, self.columns.get(column)) else {
            return CellLookup::Missing(Reason::NewRow, None);
        };
        let mut other_model_answered = false;
        let identity_ids = [requirement.identity_id]
            .into_iter()
            .chain(requirement.other_identity_ids.iter().copied());
        let found = identity_ids
            .into_iter()
            .find_map(|id| self.find_latest_fact(record, id, &mut other_model_answered));
        let Some(fact) = found else {
            let earlier = record
                .facts
                .iter()
                .any(|f| requirement.earlier_identities.contains(&f.identity_id));
            let reason = match (other_model_answered, earlier) {
                (true, _) => Reason::OtherModel,
                (false, true) => Reason::ChangedColumn,
                (false, false) => Reason::NewColumn,
            };
            return CellLookup::Missing(reason, None);
        };
        let fact = requirement.reparse_fact(fact);
        let is_outdated = self.outdated.contains(&fact.asked);
        let reason = requirement.find_stale_reason(&fact);
        match reason.or(is_outdated.then_some(Reason::ChangedEvidence)) {
            None => CellLookup::Known(fact),
            // A value that is no longer in the list is not shown.
            Some(Reason::ChangedList) => CellLookup::Missing(Reason::ChangedList, None),
            Some(reason) => {
                CellLookup::Missing(reason, (!requirement.is_outside_list(&fact)).then_some(fact))
            }
        }
    }

    /// Returns the latest fact with this identity that counts. If none counts but other models have
    /// facts, sets `others` to true.
    fn find_latest_fact<'r>(
        &self,
        record: &'r Record,
        identity_id: u32,
        others: &mut bool,
    ) -> Option<&'r Fact> {
        let mut own_fact = None;
        let mut any_model_fact: Option<&Fact> = None;
        for fact in record.facts.iter().filter(|fact| fact.identity_id == identity_id) {
            if fact.model == self.model {
                own_fact = Some(fact);
            } else if self.any_model && fact.answer.state != State::Error {
                // Prefer the latest fact that has a value, from any model, to a later fact without
                // a value.
                let better = any_model_fact.is_none_or(|a| {
                    (fact.answer.state.has_value(), fact.completion)
                        > (a.answer.state.has_value(), a.completion)
                });
                any_model_fact = if better { Some(fact) } else { any_model_fact };
            } else {
                *others = true;
            }
        }
        own_fact
            .filter(|own| own.answer.state != State::Error || any_model_fact.is_none())
            .or(any_model_fact)
    }
}

impl ColumnRequirement {
    /// Parses the raw answer of a fact again with the current checker. The words that mean
    /// "unknown" are not part of the question, so they may have changed since the answer was
    /// stored.
    fn reparse_fact<'r>(&self, fact: &'r Fact) -> Cow<'r, Fact> {
        match self.checker.recheck_answer(&fact.answer) {
            None => Cow::Borrowed(fact),
            Some(answer) => Cow::Owned(Fact { answer, ..fact.clone() }),
        }
    }

    /// Returns the reason why a fact no longer counts; `None` if it still counts.
    fn find_stale_reason(&self, fact: &Fact) -> Option<Reason> {
        let state = fact.answer.state;
        if state == State::Error {
            return Some(Reason::Failed);
        }
        if self.refresh_before.is_some_and(|before| fact.asked <= before) {
            return Some(Reason::Refreshed);
        }
        if !state.has_value() && self.retry_before.is_some_and(|before| fact.asked <= before) {
            return Some(Reason::Retried);
        }
        self.is_outside_list(fact).then_some(Reason::ChangedList)
    }

    /// Returns true if the fact's question had a different value list and the answer may change
    /// under the current one: the value is no longer allowed, or the answer was "unknown" or not in
    /// the list.
    fn is_outside_list(&self, fact: &Fact) -> bool {
        fact.list != self.list
            && match fact.answer.state {
                State::Ok | State::Overridden => !self.checker.is_allowed(&fact.answer.value),
                State::Unknown | State::NotInList => true,
                State::Invalid | State::Refused | State::Error => false,
            }
    }
}
