//! Requirements for an expansion's cells: which model answers a column first, and which model gives
//! a second answer (`escalate`). Both answers are facts with the same identity. This module decides
//! which answer counts and which model must be asked.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use crate::lookup::{CellLookup, CellRequirements, Reason};
use crate::record::{Fact, Record};
use hqdl_spec::Comparison;
use hqdl_spec::checker::Checker;
use hqdl_values::cell::{CellValue, State};

/// Rule by which another model answers a column's cells again.
#[derive(Debug, Clone, PartialEq)]
pub struct SecondAnswerRule {
    /// States of the first answer that make the run ask the other model.
    pub states: Vec<State>,
    /// Positions of the models whose answers are compared with the first ones.
    pub compare: Vec<usize>,
    /// Result of the comparison that makes the run ask the other model.
    pub comparison: Option<Comparison>,
    /// Position of the model that answers again.
    pub to: usize,
}

/// Lower bounds of the confidence levels of columns whose confidence is a probability. Cells
/// without a probability form one more level.
pub const PROBABILITY_LEVELS: [f64; 16] =
    [0.9999, 0.999, 0.995, 0.99, 0.98, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0];

impl SecondAnswerRule {
    /// Returns true if the token probability of the first answer decides whether another model is
    /// asked.
    #[must_use]
    pub fn uses_logprobs(&self) -> bool {
        self.comparison.is_some_and(Comparison::uses_logprobs)
    }

    /// Returns the number of confidence levels of a calibrated column.
    #[must_use]
    pub fn level_count(&self) -> usize {
        1 + if self.uses_logprobs() { PROBABILITY_LEVELS.len() } else { self.compare.len() }
    }

    /// Returns the confidence level of a first answer; `differing` is the number of compared
    /// answers that differ from it. Level 0 is the most confident.
    fn find_level(&self, first: &Fact, differing: usize) -> usize {
        if !self.uses_logprobs() {
            return differing;
        }
        let probability = first.logprob.map(f64::exp);
        let is_at = |bound: &f64| probability.is_some_and(|p| p >= *bound);
        PROBABILITY_LEVELS.iter().position(is_at).unwrap_or(PROBABILITY_LEVELS.len())
    }
}

/// Decision about one cell of a calibrated column.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CascadeDecision {
    /// Whether the cell is in the calibration sample. The stronger model answers sampled cells.
    pub is_sampled: bool,
    /// Number of accepted confidence levels: a cell is accepted if its level is lower. `None` until
    /// the sample is answered.
    pub accepted: Option<usize>,
}

/// Facts, each with the position of its model.
type ModelFacts<'r> = Vec<(usize, Cow<'r, Fact>)>;

/// Answers to a cell of a calibrated column, which decide whether the first answer is accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CascadeCell {
    /// The cell has no first answer, or one of the compared answers is missing.
    Missing,
    /// The stronger model answers the cell regardless of confidence, or answered it first. The
    /// field is true if its answer is stored.
    Escalated(bool),
    /// Confidence level of the cell, such as the number of compared answers that differ from the
    /// first one. The second field is set if the stronger model has answered: true if its answer
    /// differs from the first one and replaces it.
    Compared(usize, Option<bool>),
}

/// Models of a column, as positions in the expansion's models.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ColumnModels {
    /// Position of the model that answers first.
    pub first: usize,
    /// Rule for second answers; `None` if there are none.
    pub second: Option<SecondAnswerRule>,
}

impl ColumnModels {
    /// Returns the positions of all models that may be asked about a cell of the column.
    pub fn model_positions(&self) -> impl Iterator<Item = usize> + '_ {
        let second =
            self.second.iter().flat_map(|rule| rule.compare.iter().copied().chain([rule.to]));
        std::iter::once(self.first).chain(second)
    }
}

/// Requirements for an expansion's cells, by the models whose facts count for each column.
#[derive(Debug, Clone)]
pub struct ExpansionRequirements {
    /// Requirements for the answers of each model.
    models: Vec<Arc<CellRequirements>>,
    columns: Vec<ColumnModels>,
}

impl ExpansionRequirements {
    /// Creates the requirements of an expansion from `models`, the requirements of each of its
    /// models, and `columns`, the models of each column.
    #[must_use]
    pub fn new(models: Vec<CellRequirements>, columns: Vec<ColumnModels>) -> Self {
        Self { models: models.into_iter().map(Arc::new).collect(), columns }
    }

    /// Returns the position of the model that answers a column first.
    #[must_use]
    pub fn first_model(&self, column: usize) -> usize {
        self.columns.get(column).map_or(0, |models| models.first)
    }

    /// Returns the requirements for the answers of one model.
    #[must_use]
    pub fn model_requirements(&self, model: usize) -> &Arc<CellRequirements> {
        &self.models[model]
    }

    /// Returns the requirements for the answers of the model that answers a column first.
    #[must_use]
    pub fn column_requirements(&self, column: usize) -> &Arc<CellRequirements> {
        self.model_requirements(self.first_model(column))
    }

    /// Calls `change` for the requirements of each model that may be asked for a column.
    fn update_column(&mut self, column: usize, change: impl Fn(&mut CellRequirements)) {
        let models: BTreeSet<usize> =
            self.columns.get(column).map(|m| m.model_positions().collect()).unwrap_or_default();
        models.into_iter().for_each(|model| change(Arc::make_mut(&mut self.models[model])));
    }

    /// Refreshes a column: facts that were asked for up to the completion `before` no longer count.
    pub fn refresh_column(&mut self, column: usize, before: i64) {
        self.update_column(column, |model| model.refresh_column(column, before));
    }

    /// Retries a column: cells without a value that were asked for up to `before` no longer count.
    pub fn retry_column(&mut self, column: usize, before: i64) {
        self.update_column(column, |model| model.retry_column(column, before));
    }

    /// Ignores the facts of these completions from now on, because their evidence has changed.
    pub fn mark_completions_outdated(&mut self, completions: &HashSet<i64>) {
        for model in &mut self.models {
            Arc::make_mut(model).mark_completions_outdated(completions.clone());
        }
    }

    /// Returns the ids of all identities whose facts can count as answers.
    #[must_use]
    pub fn all_identity_ids(&self) -> Vec<u32> {
        self.models.iter().flat_map(|model| model.all_identity_ids()).collect()
    }

    /// Returns the id of a column's identity in the history.
    #[must_use]
    pub fn identity_id(&self, column: usize) -> Option<u32> {
        self.column_requirements(column).identity_id(column)
    }

    /// Returns the checker of a column's first answers.
    #[must_use]
    pub fn checker(&self, column: usize) -> Option<&Checker> {
        self.column_requirements(column).checker(column)
    }

    /// Returns the completions that asked for the known answers to a cell, from all models of the
    /// column.
    pub fn list_known_completions<'r>(
        &'r self,
        record: Option<&'r Record>,
        column: usize,
    ) -> impl Iterator<Item = i64> + 'r {
        let models = self.columns.get(column).into_iter().flat_map(ColumnModels::model_positions);
        models.filter_map(move |model| match self.models[model].look_up_cell(record, column) {
            CellLookup::Known(fact) => Some(fact.asked),
            CellLookup::Missing(..) => None,
        })
    }

    /// Looks up a column's cell in a record. Uses the second answer if one is stored; without one,
    /// the cell still counts as known.
    #[must_use]
    pub fn look_up_cell<'r>(&self, record: Option<&'r Record>, column: usize) -> CellLookup<'r> {
        match self.look_up_with_second_answer(record, column, CascadeDecision::default()) {
            (CellLookup::Missing(_, Some(fact)), model) if model != self.first_model(column) => {
                CellLookup::Known(fact)
            }
            (lookup, _) => lookup,
        }
    }

    /// Looks up a column's cell in a record for a run that asks for second answers. If the cell is
    /// missing, also returns the position of the model to ask. `decision` applies to calibrated
    /// columns.
    #[must_use]
    pub fn look_up_with_second_answer<'r>(
        &self,
        record: Option<&'r Record>,
        column: usize,
        decision: CascadeDecision,
    ) -> (CellLookup<'r>, usize) {
        let model = self.first_model(column);
        let first = self.models[model].look_up_cell(record, column);
        let rule = self.columns.get(column).and_then(|models| models.second.as_ref());
        let Some(rule) = rule else { return (first, model) };
        let (fact, missing) = match first {
            CellLookup::Known(fact) => (fact, None),
            CellLookup::Missing(reason, Some(fact)) => (fact, Some(reason)),
            CellLookup::Missing(_, None) => return (first, model),
        };
        let to_lookup = |fact, missing| match missing {
            None => CellLookup::Known(fact),
            Some(reason) => CellLookup::Missing(reason, Some(fact)),
        };
        // With `reuse = "any-model"`, the first answer may come from the stronger model.
        if fact.model == self.models[rule.to].model {
            return (to_lookup(fact, missing), model);
        }
        let mut causes = vec![(model, fact.clone())];
        if !rule.states.contains(&fact.answer.state) {
            let votes = match self.compare_answers(record, column, (&fact, rule)) {
                Ok(votes) => votes,
                Err((reason, compare)) if missing.is_none() => {
                    return (CellLookup::Missing(reason, Some(fact)), compare);
                }
                Err(_) => return (to_lookup(fact, missing), model),
            };
            let is_asked = match rule.comparison {
                Some(Comparison::Calibrated(_)) => {
                    decision.is_sampled
                        || decision
                            .accepted
                            .is_some_and(|accepted| rule.find_level(&fact, votes.len()) >= accepted)
                        || self.models[rule.to].look_up_cell(record, column).is_known()
                }
                Some(Comparison::Improbable { below }) => {
                    fact.logprob.is_none_or(|logprob| logprob.exp() < below)
                }
                Some(Comparison::Disagree | Comparison::NotUnanimous) | None => !votes.is_empty(),
            };
            if !is_asked {
                return (to_lookup(fact, missing), model);
            }
            causes.extend(votes);
        }
        let (second, second_missing) = match self.models[rule.to].look_up_cell(record, column) {
            CellLookup::Known(second) => (Some(second), None),
            CellLookup::Missing(reason, second) => (second, Some(to_second_answer_reason(reason))),
        };
        let has_value = second.as_ref().is_some_and(|second| second.answer.state.has_value());
        let chosen = self.choose_answer(fact, second, (rule.to, &causes));
        match (missing, second_missing) {
            // `--retry-failed` asks for cells without a value, but this cell has a second answer.
            (Some(Reason::Retried), None) if has_value => (CellLookup::Known(chosen), model),
            (Some(reason), _) => (CellLookup::Missing(reason, Some(chosen)), model),
            (None, Some(reason)) => (CellLookup::Missing(reason, Some(chosen)), rule.to),
            (None, None) => (CellLookup::Known(chosen), model),
        }
    }

    /// Returns the compared answers that differ from the first one, with their models.
    ///
    /// # Errors
    /// If a compared answer is missing, returns the reason and the model to ask.
    fn compare_answers<'r>(
        &self,
        record: Option<&'r Record>,
        column: usize,
        (first, rule): (&Fact, &SecondAnswerRule),
    ) -> Result<ModelFacts<'r>, (Reason, usize)> {
        let mut differing = Vec::new();
        let is_calibrated = matches!(rule.comparison, Some(Comparison::Calibrated(_)));
        if !first.answer.state.has_value() && !is_calibrated {
            return Ok(differing);
        }
        for compare in &rule.compare {
            match self.models[*compare].look_up_cell(record, column) {
                CellLookup::Known(other) => {
                    let differs = match rule.comparison {
                        Some(Comparison::Disagree) => contradicts(first, &other),
                        Some(
                            Comparison::NotUnanimous
                            | Comparison::Improbable { .. }
                            | Comparison::Calibrated(_),
                        )
                        | None => !is_same_answer(first, &other),
                    };
                    differing.extend(differs.then_some((*compare, other)));
                }
                CellLookup::Missing(reason, _) => {
                    return Err((to_second_answer_reason(reason), *compare));
                }
            }
        }
        Ok(differing)
    }

    /// Returns the answers to a cell of a calibrated column.
    #[must_use]
    pub fn look_up_cascade(&self, record: Option<&Record>, column: usize) -> CascadeCell {
        let rule = self.columns.get(column).and_then(|models| models.second.as_ref());
        let first = self.models[self.first_model(column)].look_up_cell(record, column);
        let (Some(rule), CellLookup::Known(fact)) = (rule, first) else {
            return CascadeCell::Missing;
        };
        if fact.model == self.models[rule.to].model {
            return CascadeCell::Escalated(true);
        }
        if rule.states.contains(&fact.answer.state) {
            let second = self.models[rule.to].look_up_cell(record, column);
            return CascadeCell::Escalated(second.is_known());
        }
        let Ok(votes) = self.compare_answers(record, column, (&fact, rule)) else {
            return CascadeCell::Missing;
        };
        let second = match self.models[rule.to].look_up_cell(record, column) {
            // If the second answer is unusable, keep the first one.
            CellLookup::Known(second) => {
                Some(is_usable(second.answer.state) && !is_same_answer(&fact, &second))
            }
            CellLookup::Missing(..) => None,
        };
        CascadeCell::Compared(rule.find_level(&fact, votes.len()), second)
    }

    /// Returns the confidence of a column's cell, from 0 to 1: the probability of the answer's
    /// tokens, or the share of the compared answers that agree. Returns `None` if the confidence is
    /// unknown, if the answer is unreadable or not in the list, or if the stronger model has
    /// answered.
    #[must_use]
    pub fn find_confidence(&self, record: Option<&Record>, column: usize) -> Option<f64> {
        let CellLookup::Known(fact) = self.look_up_cell(record, column) else { return None };
        let rule = self.columns.get(column).and_then(|models| models.second.as_ref());
        if rule.is_some_and(|rule| self.models[rule.to].model == fact.model) {
            return None;
        }
        match (fact.answer.state, fact.logprob) {
            (State::NotInList | State::Invalid, _) => return None,
            (_, Some(logprob)) => return Some(logprob.exp()),
            _ => {}
        }
        let rule = rule.filter(|rule| !rule.compare.is_empty())?;
        match self.look_up_cascade(record, column) {
            CascadeCell::Compared(differing, None) => {
                Some(1.0 - differing as f64 / rule.level_count() as f64)
            }
            _ => None,
        }
    }

    /// Returns the first value of a cell and, if the stronger model has answered, the value that
    /// counts.
    #[must_use]
    pub fn find_cascade_values(
        &self,
        record: Option<&Record>,
        column: usize,
    ) -> Option<(CellValue, Option<CellValue>)> {
        let rule = self.columns.get(column)?.second.as_ref()?;
        let value = |fact: &Fact| {
            let value = Some(&fact.answer.value).filter(|_| fact.answer.state.has_value());
            value.cloned().unwrap_or(CellValue::Nothing)
        };
        let model = self.first_model(column);
        let CellLookup::Known(fact) = self.models[model].look_up_cell(record, column) else {
            return None;
        };
        let first = value(&fact);
        if fact.model == self.models[rule.to].model {
            return Some((first.clone(), Some(first)));
        }
        let second = match self.models[rule.to].look_up_cell(record, column) {
            CellLookup::Known(second) => {
                Some(value(&self.choose_answer(fact, Some(second), (rule.to, &[]))))
            }
            CellLookup::Missing(..) => None,
        };
        Some((first, second))
    }

    /// Returns the answer that counts: the second one if it is usable, otherwise the first one. A
    /// note describes the other answers.
    fn choose_answer<'r>(
        &self,
        first: Cow<'r, Fact>,
        second: Option<Cow<'r, Fact>>,
        (to, causes): (usize, &[(usize, Cow<'r, Fact>)]),
    ) -> Cow<'r, Fact> {
        let Some(second) = second else { return first };
        let describe =
            |(model, fact): &(usize, Cow<'_, Fact>)| describe_answer(&self.models[*model], fact);
        let (chosen, note) = match second.answer.state {
            State::Error => return first,
            state if is_usable(state) => {
                let causes: Vec<String> = causes.iter().map(describe).collect();
                (second, format!("second answer, because {}", causes.join(" and ")))
            }
            _ => (first, format!("no better second answer: {}", describe(&(to, second)))),
        };
        let mut fact = chosen.into_owned();
        let repair = fact.answer.repair.take().map(|repair| repair + "; ").unwrap_or_default();
        fact.answer.repair = Some(repair + &note);
        Cow::Owned(fact)
    }
}

/// Returns why a second answer must be asked for.
fn to_second_answer_reason(reason: Reason) -> Reason {
    match reason {
        Reason::Refreshed | Reason::Retried | Reason::ChangedEvidence => reason,
        _ => Reason::SecondAnswer,
    }
}

/// Returns true if a second answer in this state replaces the first one.
fn is_usable(state: State) -> bool {
    matches!(state, State::Ok | State::Overridden | State::Unknown)
}

/// Returns true if both answers have the same state and the same value.
fn is_same_answer(first: &Fact, second: &Fact) -> bool {
    let is_value = |fact: &Fact| fact.answer.state.has_value();
    (first.answer.state == second.answer.state || is_value(first) && is_value(second))
        && to_comparable_texts(&first.answer.value) == to_comparable_texts(&second.answer.value)
}

/// Returns true if the second model's answer contradicts the first value.
fn contradicts(first: &Fact, second: &Fact) -> bool {
    match second.answer.state {
        State::Ok | State::Overridden => {
            to_comparable_texts(&first.answer.value) != to_comparable_texts(&second.answer.value)
        }
        State::Unknown | State::NotInList => true,
        State::Invalid | State::Refused | State::Error => false,
    }
}

/// Returns the texts of a value in a form that ignores letter case and the order of a list.
fn to_comparable_texts(value: &CellValue) -> BTreeSet<String> {
    let texts: Vec<String> = match value {
        CellValue::Nothing => Vec::new(),
        CellValue::One(value) => vec![value.to_string()],
        CellValue::Many(values) => values.iter().map(ToString::to_string).collect(),
    };
    texts.into_iter().map(|text| text.trim().to_lowercase()).collect()
}

/// Describes a model's answer by its state and text: `gpt-4o-mini: not_in_list "Gondor"`.
fn describe_answer(requirements: &CellRequirements, fact: &Fact) -> String {
    let is_own = fact.model == requirements.model;
    let model = if is_own { requirements.model_name() } else { "another model" };
    let answer = &fact.answer;
    let value = match &answer.value {
        CellValue::Nothing => None,
        value => Some(value.to_json().to_string()),
    };
    let text = value.or_else(|| answer.raw.as_ref().map(|raw| format!("{raw:?}")));
    let text = text.map(|text| format!(" {text}")).unwrap_or_default();
    let probability = fact.logprob.map(|logprob| format!(" (probability {:.3})", logprob.exp()));
    format!("{model}: {}{text}{}", answer.state.name(), probability.unwrap_or_default())
}
