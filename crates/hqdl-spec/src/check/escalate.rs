//! Checks `escalate`, which selects the cells of a column that a second model answers again.

use super::{SpecCheck, join_path};
use crate::file::{CompareField, EscalateTable, EscalationCase, SpecFile};
use crate::schema_check::Step;
use crate::{CascadeTarget, Comparison, Confidence, Escalation, Provider, TargetBasis};
use hqdl_values::cell::State;

/// Cases of an `escalate` without `when`.
const DEFAULT_CASES: [EscalationCase; 3] =
    [EscalationCase::Unknown, EscalationCase::NotInList, EscalationCase::Invalid];

/// Returns the name under which the answers of a model are stored: the `name` of a `[model.NAME]`
/// or of `[model]`.
fn stored_name<'f>(name: &'f str, file: &'f SpecFile) -> &'f str {
    file.model.others.get(name).map_or(name, |model| model.name.as_str())
}

/// Default number of rows of a calibration sample.
const DEFAULT_SAMPLE: u32 = 100;
/// Expected number of disagreements in a sufficiently large sample of a column that is just below
/// its target. With fewer than four, a sample could easily contain none by chance.
const EXPECTED_MISSES: f64 = 5.0;
const MAX_ANSWERS: u32 = 16;

impl SpecCheck<'_> {
    /// Checks an `escalate` table and returns the rule that it defines. `first` is the model that
    /// answers first, as in [`crate::Column::model`].
    pub(super) fn check_escalation(
        &mut self,
        path: &[Step],
        table: &EscalateTable,
        first: Option<&str>,
        file: &SpecFile,
    ) -> Escalation {
        let first = first.unwrap_or(&file.model.name);
        let compare = table.compare.as_ref().map(CompareField::names).unwrap_or_default();
        self.check_second_models(path, table, first, file);
        self.check_answers(path, table, first, file);
        let mut cases = table.when.clone().unwrap_or_else(|| DEFAULT_CASES.to_vec());
        if table.when.is_none() && (table.target.is_some() || table.target_truth.is_some()) {
            cases.push(EscalationCase::LowConfidence);
        }
        let further_answers = table.answers.unwrap_or(1).saturating_sub(1);
        let is_compared = !compare.is_empty() || further_answers > 0;
        self.check_cases(&join_path(path, &["when".into()]), &cases, is_compared);
        let target = self.check_target(path, table, &cases, is_compared);
        let below = self.check_probability(path, table, &cases, (first, is_compared), file);
        let to_state = |case: &EscalationCase| match case {
            EscalationCase::Unknown => Some(State::Unknown),
            EscalationCase::NotInList => Some(State::NotInList),
            EscalationCase::Invalid => Some(State::Invalid),
            EscalationCase::Refused => Some(State::Refused),
            EscalationCase::Disagree | EscalationCase::LowConfidence => None,
        };
        let has_case = |case| cases.contains(&case);
        let comparison = match target {
            Some(target) => Some(Comparison::Calibrated(target)),
            None if below.is_some() => below.map(|below| Comparison::Improbable { below }),
            None if has_case(EscalationCase::LowConfidence) => Some(Comparison::NotUnanimous),
            None if has_case(EscalationCase::Disagree) => Some(Comparison::Disagree),
            None => None,
        };
        Escalation {
            to: table.to.clone(),
            states: cases.iter().filter_map(to_state).collect(),
            compare: compare.to_vec(),
            further_answers,
            comparison,
        }
    }

    /// Checks the names of the models that give second answers or whose answers are compared.
    fn check_second_models(
        &mut self,
        path: &[Step],
        table: &EscalateTable,
        first: &str,
        file: &SpecFile,
    ) {
        let field_path = |field: &str| join_path(path, &[field.into()]);
        let compare = table.compare.as_ref().map(CompareField::names).unwrap_or_default();
        let compared = compare.iter().map(|name| ("compare", name));
        for (field, name) in [("to", &table.to)].into_iter().chain(compared) {
            self.check_model_name(&field_path(field), name, file);
            if name == first {
                let message = format!("`{field}` is the model that answers first, `{name}`");
                self.add_error(&field_path(field), &message, "", "name another model");
            } else if stored_name(name, file) == stored_name(first, file)
                && !file.model.parameters_identity
            {
                let message = format!(
                    "`{field}` has the same `name` as the model that answers first, so their answers are not told apart"
                );
                let help = "name another model, or set `parameters_identity = true` in [model] if the parameters differ";
                self.add_error(&field_path(field), &message, "", help);
            }
        }
        if compare.contains(&table.to) {
            let message = "`compare` and `to` are the same model";
            let help = "compare with another cheap model, which decides whether `to` is asked";
            self.add_error(&field_path("compare"), message, "", help);
        }
        let is_repeated = |(n, name): (usize, &String)| compare[..n].contains(name);
        if compare.iter().enumerate().any(is_repeated) {
            let message = "`compare` names a model twice";
            self.add_error(&field_path("compare"), message, "", "name each model once");
        }
    }

    /// Checks `answers`: repeated answers of the first model must be able to differ from each
    /// other.
    fn check_answers(
        &mut self,
        path: &[Step],
        table: &EscalateTable,
        first: &str,
        file: &SpecFile,
    ) {
        let Some(answers) = table.answers else { return };
        let path = join_path(path, &["answers".into()]);
        if !(1..=MAX_ANSWERS).contains(&answers) {
            let label = format!("expected 1 to {MAX_ANSWERS}");
            self.add_error(&path, "`answers` is out of range", &label, "");
        }
        let other = file.model.others.get(first);
        let provider = other.and_then(|other| other.provider).unwrap_or(file.model.provider);
        let temperature = other.and_then(|other| other.temperature).or(file.model.temperature);
        let problem = if provider == Provider::Replay {
            Some("a recording has one answer to each cell")
        } else if temperature == Some(0.0) {
            Some("with `temperature = 0`, all answers of a model are the same")
        } else {
            None
        };
        if let Some(problem) = problem.filter(|_| answers > 1) {
            let help = "raise the temperature, or name other models in `compare`";
            self.add_error(&path, problem, "", help);
        }
    }

    fn check_cases(&mut self, path: &[Step], cases: &[EscalationCase], is_compared: bool) {
        if cases.is_empty() {
            let help = "name cases such as \"unknown\", or remove `when`";
            self.add_error(path, "`when` names no case, so `to` is never asked", "", help);
        }
        let has_case = |case| cases.contains(&case);
        let disagrees = has_case(EscalationCase::Disagree);
        let is_unsure = has_case(EscalationCase::LowConfidence);
        let help = "name other models in `compare`, or set `answers`";
        if disagrees && is_unsure {
            let message = "`disagree` leaves no answers for `low_confidence`";
            self.add_error(path, message, "", "remove one of them");
        } else if disagrees && !is_compared {
            self.add_error(path, "`disagree` needs a second answer to compare", "", help);
        } else if is_compared && !disagrees && !is_unsure {
            let help = "add \"disagree\" or \"low_confidence\" to `when`, or remove `compare` and `answers`";
            self.add_error(path, "`compare` and `answers` have no effect", "", help);
        }
    }

    /// Checks a `low_confidence` that uses the probabilities of tokens, and returns its threshold.
    fn check_probability(
        &mut self,
        path: &[Step],
        table: &EscalateTable,
        cases: &[EscalationCase],
        (first, is_compared): (&str, bool),
        file: &SpecFile,
    ) -> Option<f64> {
        let has_target = table.target.is_some() || table.target_truth.is_some();
        let is_used = cases.contains(&EscalationCase::LowConfidence) && !is_compared;
        let below_path = join_path(path, &["below".into()]);
        if table.below.is_some() && (!is_used || has_target) {
            let help = "remove it, or use `low_confidence` without `compare`, `answers`, `target` and `target_truth`";
            self.add_error(&below_path, "`below` has no effect", "", help);
            return None;
        }
        if !is_used {
            return None;
        }
        let other = file.model.others.get(first);
        let provider = other.and_then(|other| other.provider).unwrap_or(file.model.provider);
        let own_url = other.and_then(|other| other.base_url.as_deref());
        let base_url = own_url.or(file.model.base_url.as_deref());
        let (api, _) = provider.resolve_url(base_url);
        if !api.has_logprobs() {
            let message = format!(
                "`low_confidence` needs answers to compare, because the API `{}` reports no probabilities of tokens",
                api.name()
            );
            let help = "name other models in `compare`, or set `answers`";
            self.add_error(&join_path(path, &["when".into()]), &message, "", help);
        } else if table.below.is_none() && !has_target {
            let message = "`low_confidence` needs a threshold";
            let help = "set `target`, or `below` to a probability such as 0.9; or name other models in `compare`";
            self.add_error(&join_path(path, &["when".into()]), message, "", help);
        } else if table.below.is_some_and(|below| !(below > 0.0 && below <= 1.0)) {
            let label = "expected a probability above 0, at most 1";
            self.add_error(&below_path, "`below` is out of range", label, "");
        }
        table.below
    }

    /// Returns the target of a calibrated column; `None` if the rule has no target.
    fn check_target(
        &mut self,
        path: &[Step],
        table: &EscalateTable,
        cases: &[EscalationCase],
        is_compared: bool,
    ) -> Option<CascadeTarget> {
        let field_path = |field: &str| join_path(path, &[field.into()]);
        if table.target.is_none() {
            let unused = [("sample", table.sample.is_some()), ("seed", table.seed.is_some())];
            for (field, _) in unused.into_iter().filter(|(_, is_set)| *is_set) {
                let message = format!("`{field}` has no effect without `target`");
                self.add_error(&field_path(field), &message, "", "remove it, or set `target`");
            }
        }
        let (field, share) = match (table.target, table.target_truth) {
            (None, None) => return None,
            (Some(share), None) => ("target", share),
            (None, Some(share)) => ("target_truth", share),
            (Some(share), Some(_)) => {
                let message = "`target` and `target_truth` exclude each other";
                self.add_error(&field_path("target_truth"), message, "", "remove one of them");
                ("target", share)
            }
        };
        if !(share > 0.0 && share <= 1.0) {
            let (message, label) =
                (format!("`{field}` is out of range"), "expected a share above 0, at most 1");
            self.add_error(&field_path(field), &message, label, "");
        }
        if !cases.contains(&EscalationCase::LowConfidence) {
            let message = format!("`{field}` has no effect");
            let help = "add \"low_confidence\" to `when`";
            self.add_error(&field_path(field), &message, "", help);
        }
        if table.sample == Some(0) {
            let label = "expected at least 1";
            self.add_error(&field_path("sample"), "`sample` is out of range", label, "");
        }
        let needed = (EXPECTED_MISSES / (1.0 - share).max(0.001)).ceil() as u32;
        let basis = match table.target {
            Some(_) => TargetBasis::Model {
                sample: table.sample.unwrap_or_else(|| needed.max(DEFAULT_SAMPLE)),
                seed: table.seed.unwrap_or_default(),
            },
            None => TargetBasis::Truth,
        };
        let confidence = if is_compared { Confidence::Agreement } else { Confidence::Probability };
        Some(CascadeTarget { share, basis, confidence })
    }
}
