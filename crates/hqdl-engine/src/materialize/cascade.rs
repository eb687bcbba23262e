//! Calibrates columns with a `target`. Both models answer a random sample of the rows. The sample
//! determines the confidence above which the first answer is accepted without asking the stronger
//! model.
//!
//! A row is in the sample if the hash of its entity and the seed is one of the smallest. The sample
//! thus follows from the keys alone: a killed run continues with the same sample, new rows are as
//! likely to be sampled as old rows, and nothing about a calibration is stored.

use std::collections::BinaryHeap;

use super::calibration::{Calibration, DrawnSample, Promise, hash_entity};
use super::coverage_builder::RequestCost;
use super::{MaterializeError, Materializer, RunMode, WalkError};
use crate::audit::{Audit, AuditError, Design, Evidence};
use hqdl_database::keys::{KeyRow, Keys};
use hqdl_facts::{
    CascadeDecision, CellLookup, PROBABILITY_LEVELS, Reason, Record, SecondAnswerRule,
};
use hqdl_model::plan::{AcceptedCells, CascadePlan, CascadeThreshold, ExpansionPlan};
use hqdl_spec::{CascadeTarget, Comparison, TargetBasis};
use hqdl_statistics::CascadeChoice;
use hqdl_values::format::format_count;
use hqdl_values::key::Entity;

/// Returns true if a calibration includes the cell of this key and column.
fn is_calibrated(key: &KeyRow, column: usize) -> bool {
    key.is_first_spelling && key.entity_requested_columns[column]
}

impl Materializer<'_> {
    /// Returns the columns of an expansion that have a target, each with its target.
    fn list_cascade_targets(&self, n: usize) -> Vec<(usize, CascadeTarget)> {
        let target = |column: usize| match self.models[n].column_models(column).second.as_ref() {
            Some(rule) => match rule.comparison {
                Some(Comparison::Calibrated(target)) => Some((column, target)),
                _ => None,
            },
            None => None,
        };
        (0..self.spec.expansions[n].columns.len()).filter_map(target).collect()
    }

    /// Calibrates the columns of an expansion from the stored answers, before any request. The
    /// decision about the cells outside the sample stays open if this run may change it.
    pub(super) fn calibrate_before_run(&self, n: usize) -> Result<(), MaterializeError> {
        self.calibrate(n, |calibration| {
            if calibration.is_final() {
                calibration.choose_threshold();
            }
        })
    }

    /// Calibrates the columns of an expansion after the sample was requested. Returns true if any
    /// column has a target.
    pub(super) fn calibrate_after_sample(&self, n: usize) -> Result<bool, MaterializeError> {
        self.calibrate(n, Calibration::choose_threshold)?;
        Ok(self.calibrations.borrow()[n].iter().any(Option::is_some))
    }

    /// Counts the answers of all calibrated columns again at the end of a run, because the run may
    /// have stopped before it asked about every cell. Keeps the decisions that the run made.
    pub(super) fn recount_answers(&self) -> Result<(), MaterializeError> {
        for n in 0..self.spec.expansions.len() {
            let before = self.calibrations.borrow()[n].clone();
            self.calibrate(n, |_| {})?;
            let mut calibrations = self.calibrations.borrow_mut();
            for (now, before) in calibrations[n].iter_mut().zip(before) {
                if let (Some(now), Some(before)) = (now, before) {
                    (now.accepted, now.is_refused) = (before.accepted, before.is_refused);
                }
            }
        }
        Ok(())
    }

    fn calibrate(
        &self,
        n: usize,
        decide: impl Fn(&mut Calibration),
    ) -> Result<(), MaterializeError> {
        let targets = self.list_cascade_targets(n);
        let columns = self.spec.expansions[n].columns.len();
        let mut calibrations: Vec<Option<Calibration>> = vec![None; columns];
        if !targets.is_empty() && self.run_mode != RunMode::Batch {
            for (column, target) in targets {
                self.check_override_shots(n, column)?;
                let rule = self.models[n].column_models(column).second.as_ref();
                let levels = rule.map_or(1, SecondAnswerRule::level_count);
                let sample = match target.basis {
                    TargetBasis::Model { sample, seed } => {
                        DrawnSample::Hashed { seed, size: sample as usize, cutoff: None }
                    }
                    TargetBasis::Truth => self.read_audited_sample(n, column)?,
                };
                calibrations[column] = Some(Calibration::new(target, sample, levels));
            }
            let keys = Keys::collect(self.database, &self.spec.expansions[n], None)?;
            Self::draw_samples(&keys, &mut calibrations)
                .and_then(|()| self.count_levels(n, &keys, &mut calibrations))
                .map_err(|e| e.into_materialize_error(self.database))?;
            calibrations.iter_mut().flatten().for_each(decide);
        }
        self.calibrations.borrow_mut()[n] = calibrations;
        Ok(())
    }

    /// Returns the filled rows of a column's audit.
    ///
    /// # Errors
    /// [`AuditError`] if there is no audit of the column with true values and a uniform design.
    fn read_audited_sample(&self, n: usize, column: usize) -> Result<DrawnSample, AuditError> {
        let expansion = &self.spec.expansions[n];
        let name = &expansion.columns[column].name;
        let audit = match Audit::read(&self.spec, expansion) {
            Err(AuditError::Missing(_)) => {
                let message = format!(
                    "`target_truth` of `{name}` needs a uniform audit with true values, and none \
                     has been drawn"
                );
                let hint = format!("draw one with `hqdl audit SPEC --columns {name}`");
                return Err(AuditError::in_request(message, hint));
            }
            result => result?,
        };
        if audit.draw.find_column(expansion, column).is_none() {
            let message =
                format!("`target_truth` needs an audit of `{name}`, which is not audited");
            return Err(AuditError::in_request(message, "draw an audit of this column"));
        }
        if audit.draw.design != Design::Uniform {
            let message = format!("`target_truth` of `{name}` needs a uniform audit");
            let hint = "draw one with `hqdl audit SPEC --design uniform`";
            return Err(AuditError::in_request(message, hint));
        }
        let entity = |row: usize| expansion.build_entity(&audit.draw.frame[row].key);
        let filled = audit.count_filled_rows(&[column], Evidence::Truth);
        let truth = |row: &usize| {
            let truth = audit.sheet.truth(*row, column)?;
            Some((entity(*row), truth.value.clone()))
        };
        Ok(DrawnSample::Audited {
            frame: (0..audit.draw.frame.len()).map(entity).collect(),
            truths: audit.draw.sample()[..filled].iter().filter_map(truth).collect(),
        })
    }

    /// Checks that no prompt shows overrides as examples, because the models would repeat the
    /// overrides of sampled cells.
    fn check_override_shots(&self, n: usize, column: usize) -> Result<(), AuditError> {
        let expansion = &self.spec.expansions[n];
        let is_overridden = || {
            self.overrides
                .list_overridden_rows(n)
                .iter()
                .any(|(_, cells)| cells.contains_key(&column))
        };
        if expansion.override_shots == 0 || !is_overridden() {
            return Ok(());
        }
        let message = format!(
            "the target of `{}` is refused, because `shots = \"overrides\"` shows overridden cells to the models that its sample tests",
            expansion.columns[column].name
        );
        Err(AuditError::in_request(message, "remove `shots = \"overrides\"` or the target"))
    }

    /// Returns the model that must still answer an overridden cell because the cell is in a
    /// calibration sample, and the reason. Returns `None` if the cell is not sampled or no answer
    /// is missing.
    pub(super) fn find_missing_sample_answer(
        &self,
        n: usize,
        column: usize,
        entity: &Entity,
        record: Option<&Record>,
    ) -> Option<(Reason, usize)> {
        let decision = self.find_cascade_decision(n, column, entity);
        if !decision.is_sampled {
            return None;
        }
        match self.requirements[n].look_up_with_second_answer(record, column, decision) {
            (CellLookup::Missing(reason, _), model) => Some((reason, model)),
            (CellLookup::Known(_), _) => None,
        }
    }

    fn draw_samples(
        keys: &Keys<'_>,
        calibrations: &mut [Option<Calibration>],
    ) -> Result<(), WalkError> {
        let mut smallest: Vec<BinaryHeap<u64>> = vec![BinaryHeap::new(); calibrations.len()];
        keys.for_each(&mut |key: &KeyRow| {
            for (column, calibration) in calibrations.iter().enumerate() {
                let Some(DrawnSample::Hashed { seed, size, .. }) =
                    calibration.as_ref().map(|calibration| &calibration.drawn_sample)
                else {
                    continue;
                };
                if is_calibrated(key, column) {
                    smallest[column].push(hash_entity(*seed, &key.entity));
                    if smallest[column].len() > *size {
                        smallest[column].pop();
                    }
                }
            }
            Ok::<_, WalkError>(())
        })?;
        for (calibration, smallest) in calibrations.iter_mut().zip(&smallest) {
            if let Some(Calibration { drawn_sample: DrawnSample::Hashed { cutoff, .. }, .. }) =
                calibration
            {
                *cutoff = smallest.peek().copied();
            }
        }
        Ok(())
    }

    /// Adds the stored answers of all calibrated cells to the counts of their columns.
    fn count_levels(
        &self,
        n: usize,
        keys: &Keys<'_>,
        calibrations: &mut [Option<Calibration>],
    ) -> Result<(), WalkError> {
        self.for_each_key(keys, &mut |key, facts| {
            for (column, calibration) in calibrations.iter_mut().enumerate() {
                let Some(calibration) = calibration else { continue };
                if is_calibrated(key, column) {
                    let is_overridden = self.overrides.get(n, &key.entity, column).is_some();
                    let cell = self.requirements[n].look_up_cascade(facts.as_ref(), column);
                    calibration.add_cell(&key.entity, is_overridden, cell, || {
                        self.requirements[n].find_cascade_values(facts.as_ref(), column)
                    });
                }
            }
            Ok(())
        })
    }

    /// Returns the decision about a cell of a column.
    pub(super) fn find_cascade_decision(
        &self,
        n: usize,
        column: usize,
        entity: &Entity,
    ) -> CascadeDecision {
        match &self.calibrations.borrow()[n][column] {
            Some(calibration) => CascadeDecision {
                is_sampled: calibration.is_sampled(entity),
                accepted: calibration.accepted,
            },
            None => CascadeDecision::default(),
        }
    }

    /// Returns true if the run may still decide to ask the stronger model about any cell of the
    /// column.
    pub(super) fn is_undecided(&self, n: usize, column: usize) -> bool {
        self.calibrations.borrow()[n][column].as_ref().is_some_and(|c| !c.is_final())
    }

    /// Describes, for the user, the promise about each calibrated column of an expansion.
    pub(super) fn describe_cascades(&self, n: usize) -> Vec<String> {
        let expansion = &self.spec.expansions[n];
        let mut notes = Vec::new();
        for (column, calibration) in self.calibrations.borrow()[n].iter().enumerate() {
            let Some(rule) = &self.models[n].column_models(column).second else { continue };
            let name = format!("{}.{}", expansion.name, expansion.columns[column].name);
            let to = &self.models[n].choices()[rule.to].name;
            if let Some(cells) = rule.comparison.and_then(Comparison::describe_unpromised_cells) {
                notes.push(format!(
                    "{name}: `low_confidence` promises nothing without a `target`; {to} answers {cells}"
                ));
            }
            if let Some(calibration) = calibration {
                notes.push(describe_promise(calibration, &name, to, rule));
            }
        }
        notes
    }

    /// Returns the error for the first target that cannot be reached, if there is one.
    pub(super) fn find_refused_target(&self) -> Option<MaterializeError> {
        let calibrations = self.calibrations.borrow();
        for (n, expansion) in self.spec.expansions.iter().enumerate() {
            for (column, calibration) in calibrations[n].iter().enumerate() {
                let rule = self.models[n].column_models(column).second.as_ref();
                if let (Some(calibration), Some(rule)) = (calibration, rule)
                    && calibration.is_refused
                {
                    let name = format!("{}.{}", expansion.name, expansion.columns[column].name);
                    let to = &self.models[n].choices()[rule.to].name;
                    let message = calibration.describe_unreachable_target(&name, to);
                    return Some(MaterializeError::TargetRefused(message));
                }
            }
        }
        None
    }

    /// Checks the columns whose confidence is a probability. Returns a note for each column in
    /// which some first answers have no probability.
    ///
    /// # Errors
    /// [`MaterializeError::NoLogprobs`] if no first answer of a column has a probability.
    pub(super) fn check_logprobs(&self, n: usize) -> Result<Vec<String>, MaterializeError> {
        let models = &self.models[n];
        let second = |column: usize| models.column_models(column).second.as_ref();
        let uses_logprobs =
            |column: &usize| second(*column).is_some_and(SecondAnswerRule::uses_logprobs);
        let expansion = &self.spec.expansions[n];
        let columns: Vec<usize> = (0..expansion.columns.len()).filter(uses_logprobs).collect();
        if columns.is_empty() || self.run_mode == RunMode::Batch {
            return Ok(Vec::new());
        }
        let mut counts = vec![[0_u64; 2]; columns.len()];
        let keys = Keys::collect(self.database, expansion, None)?;
        self.for_each_key(&keys, &mut |key, facts| {
            for (column, count) in columns.iter().zip(&mut counts) {
                let first = self.requirements[n].column_requirements(*column);
                if is_calibrated(key, *column)
                    && let CellLookup::Known(fact) = first.look_up_cell(facts.as_ref(), *column)
                    && fact.answer.state.has_value()
                {
                    count[usize::from(fact.logprob.is_some())] += 1;
                }
            }
            Ok(())
        })
        .map_err(|e| e.into_materialize_error(self.database))?;
        let mut notes = Vec::new();
        for (column, [without, with]) in columns.into_iter().zip(counts) {
            let name = format!("{}.{}", expansion.name, expansion.columns[column].name);
            let model = models.choices()[models.column_models(column).first].name.clone();
            let answers = format_count(without, "answer");
            if without > 0 && with == 0 {
                return Err(MaterializeError::NoLogprobs { column: name, model, answers });
            }
            if without > 0 {
                let has_have = if without == 1 { "has" } else { "have" };
                notes.push(format!(
                    "{name}: {answers} of {model} {has_have} no log-probability, which counts as the lowest confidence"
                ));
            }
        }
        Ok(notes)
    }

    /// Returns the thresholds of an expansion's calibrated columns, with their costs.
    pub(super) fn plan_cascades(&self, n: usize) -> Vec<CascadePlan> {
        let expansion = &self.spec.expansions[n];
        let mut plans = Vec::new();
        for (column, calibration) in self.calibrations.borrow()[n].iter().enumerate() {
            let models = self.models[n].column_models(column);
            let (Some(calibration), Some(rule)) = (calibration, &models.second) else { continue };
            let is_known = calibration.missing_sampled == 0 && calibration.sample.sampled > 0;
            let mut choices = if is_known { calibration.list_choices() } else { Vec::new() };
            if rule.uses_logprobs() {
                choices.retain(|choice| !calibration.is_empty_level(choice.accepted));
            }
            let shown = |accepted| choose_shown_levels(calibration, rule, accepted);
            let chosen = calibration.accepted.map(shown);
            let price = self.estimate_cell_cost(n, column, rule.to);
            let to_threshold = |choice: CascadeChoice| {
                let cells = calibration.unescalated[choice.accepted..].iter().sum::<u64>();
                CascadeThreshold {
                    accepts: find_accepted_cells(rule, choice.accepted),
                    cells,
                    cost_usd: price.map(|price| price * cells as f64),
                    expected: choice.expected,
                    bound: choice.bound,
                    is_chosen: chosen == Some(choice.accepted),
                }
            };
            plans.push(CascadePlan {
                expansion: expansion.name.clone(),
                column: expansion.columns[column].name.clone(),
                to: self.models[n].choices()[rule.to].name.clone(),
                target: calibration.target.share,
                is_truth: calibration.target.basis == TargetBasis::Truth,
                answers: (!rule.uses_logprobs()).then(|| rule.level_count()),
                cells: calibration.sample.population,
                sampled: calibration.sample.sampled,
                unanswered_sampled: calibration.missing_sampled,
                unanswered: calibration.count_open_cells(),
                is_promised: calibration.promise().is_kept(),
                disagreements: calibration.count_disagreements(),
                thresholds: choices.into_iter().map(to_threshold).collect(),
            });
        }
        plans
    }

    /// Estimates the likely cost in USD of a model's answer to one cell of a column, from the first
    /// rows.
    fn estimate_cell_cost(&self, n: usize, column: usize, model: usize) -> Option<f64> {
        /// Number of rows whose cost is computed.
        const ROWS: u64 = 100;
        let (expansion, choice) = (&self.spec.expansions[n], &self.models[n].choices()[model]);
        let mut plan = ExpansionPlan { price: Some(choice.price?), ..ExpansionPlan::default() };
        let mut cost = RequestCost::new(self, expansion, choice);
        let mut rows = 0;
        let keys = Keys::collect(self.database, expansion, None).ok()?;
        let mut add_row = |key: &KeyRow| {
            if rows < ROWS && key.is_first_spelling && key.entity_requested_columns[column] {
                cost.add_row(key, vec![column], &[column]);
                rows += 1;
            }
            Ok::<_, rusqlite::Error>(())
        };
        keys.for_each(&mut add_row).ok()?;
        cost.write_totals(&mut plan, 0.0, None);
        Some(plan.likely_cost_usd() / rows.max(1) as f64)
    }
}

/// Returns the number of accepted levels to show. If the confidence is a probability, there are
/// many levels, so empty levels at the end are left out.
fn choose_shown_levels(
    calibration: &Calibration,
    rule: &SecondAnswerRule,
    accepted: usize,
) -> usize {
    if rule.uses_logprobs() { calibration.count_nonempty_levels(accepted) } else { accepted }
}

/// Returns the cells that are accepted if this number of levels is accepted.
fn find_accepted_cells(rule: &SecondAnswerRule, accepted: usize) -> AcceptedCells {
    match accepted.checked_sub(1) {
        None => AcceptedCells::Nothing,
        Some(level) if rule.uses_logprobs() => PROBABILITY_LEVELS
            .get(level)
            .map_or(AcceptedCells::All, |least| AcceptedCells::Probable(*least)),
        Some(level) => AcceptedCells::Equal(rule.level_count() - level),
    }
}

/// Returns the promise about a column in words.
fn describe_promise(
    calibration: &Calibration,
    name: &str,
    to: &str,
    rule: &SecondAnswerRule,
) -> String {
    let share = 100.0 * calibration.target.share;
    let cells = format_count(calibration.sample.population, "cell");
    let sample = format_count(calibration.sample.sampled, "row");
    let misses = format_count(calibration.count_disagreements(), "disagreement");
    let is_truth = calibration.target.basis == TargetBasis::Truth;
    let open_cells = |open: u64, part: &str| {
        let is_are = if open == 1 { "is" } else { "are" };
        format!("{name}: no promise yet: {}{part} {is_are} unanswered", format_count(open, "cell"))
    };
    let likely = format!("{name}: with a probability of 95 %, at least {share} % of {cells}");
    match calibration.promise() {
        Promise::Refused => calibration.describe_unreachable_target(name, to),
        Promise::SampleUnanswered(open) => format!(
            "{name}: no promise yet, because {} of the sample are not answered by all models",
            format_count(open, "cell")
        ),
        Promise::Unanswered(open) => open_cells(open, ""),
        Promise::BelowThresholdUnanswered(open) => open_cells(open, " below the threshold"),
        Promise::Undecided => {
            format!("{name}: no promise yet: the run ended before it chose a threshold")
        }
        Promise::AllEscalated if is_truth => {
            format!("{likely} are true; {to} answers all of them (audit: {sample})")
        }
        Promise::AllEscalated => format!(
            "{name}: the sample of {sample} with {misses} does not show that {share} % agree with {to}, so {to} answers all cells"
        ),
        Promise::Kept { accepted } => {
            let low =
                match find_accepted_cells(rule, choose_shown_levels(calibration, rule, accepted)) {
                    AcceptedCells::Equal(equal) => {
                        format!(
                            "those with fewer than {equal} of {} equal answers",
                            rule.level_count()
                        )
                    }
                    AcceptedCells::Probable(least) => {
                        format!("those with a probability below {least}")
                    }
                    AcceptedCells::Nothing => "all cells".to_owned(),
                    AcceptedCells::All => "only the sample".to_owned(),
                };
            if is_truth {
                format!("{likely} are true; {to} answers {low} (audit: {sample})")
            } else {
                format!(
                    "{likely} agree with {to}, which answers {low} (sample: {sample}, {misses})"
                )
            }
        }
    }
}
