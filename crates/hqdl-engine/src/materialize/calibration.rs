//! Calibration of a column with a `target`: counts the column's cells, chooses the threshold, and
//! derives the promise about the published cells.
//!
//! For an overridden cell, the models' answers count, not the override. If a user overrode only
//! wrong cells, the sample would otherwise look better than the other cells.

use std::collections::{HashMap, HashSet};

use crate::truth::has_same_values;
use hqdl_facts::CascadeCell;
use hqdl_spec::{CascadeTarget, TargetBasis};
use hqdl_statistics::{CascadeChoice, CascadeLevel, CascadeSample};
use hqdl_values::cell::CellValue;
use hqdl_values::key::Entity;

/// Probability with which the target is reached.
const CONFIDENCE: f64 = 0.95;

/// Calibration of a column.
#[derive(Debug, Clone)]
pub(super) struct Calibration {
    pub(super) target: CascadeTarget,
    pub(super) drawn_sample: DrawnSample,
    /// Size of the sample and of the whole column, in cells.
    pub(super) sample: CascadeSample,
    /// Counts of the cells by level of confidence, the most confident level first.
    levels: Vec<CascadeLevel>,
    /// Number of wrong sampled cells for each number of accepted levels. Empty unless the target is
    /// about the truth.
    wrong: Vec<u64>,
    /// Whether the stronger model's answers are too often wrong to reach the target.
    pub(super) is_refused: bool,
    /// Number of cells in each level that the stronger model has not answered.
    pub(super) unescalated: Vec<u64>,
    /// Number of sampled cells that not all models have answered.
    pub(super) missing_sampled: u64,
    /// Number of cells that lack a first answer or a compared answer.
    unanswered: u64,
    /// Number of cells that the stronger model must answer regardless of their confidence, but has
    /// not answered yet.
    unescalated_anyway: u64,
    /// Decision about the cells outside the sample, as in [`CascadeDecision`].
    pub(super) accepted: Option<usize>,
}

/// Rows of a calibration sample.
#[derive(Debug, Clone)]
pub(super) enum DrawnSample {
    /// The entities with the smallest hashes.
    Hashed {
        seed: u64,
        size: usize,
        /// Greatest hash of a sampled entity; `None` if the column has no cells.
        cutoff: Option<u64>,
    },
    /// The filled rows of an audit.
    Audited {
        /// All rows of the draw.
        frame: HashSet<Entity>,
        /// True values; `None` if the truth cannot be known.
        truths: HashMap<Entity, Option<CellValue>>,
    },
}

/// Promise about the published cells of a column, or the reason why there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Promise {
    /// The stronger model's answers are too often wrong to reach the target.
    Refused,
    /// Not all models have answered this number of sampled cells.
    SampleUnanswered(u64),
    /// This number of cells lacks an answer, and the run has not chosen a threshold.
    Unanswered(u64),
    /// The stronger model has not answered this number of cells below the threshold.
    BelowThresholdUnanswered(u64),
    /// The run ended before it chose a threshold.
    Undecided,
    /// The target holds, because the stronger model answers all cells.
    AllEscalated,
    /// The target holds with the answers of this number of levels.
    Kept { accepted: usize },
}

impl Promise {
    /// Returns true if the published cells reach the target.
    pub(super) fn is_kept(self) -> bool {
        matches!(self, Self::AllEscalated | Self::Kept { .. })
    }
}

impl Calibration {
    pub(super) fn new(target: CascadeTarget, drawn_sample: DrawnSample, levels: usize) -> Self {
        Self {
            target,
            drawn_sample,
            wrong: vec![0; levels + 1],
            is_refused: false,
            sample: CascadeSample { population: 0, sampled: 0 },
            levels: vec![CascadeLevel::default(); levels],
            unescalated: vec![0; levels],
            missing_sampled: 0,
            unanswered: 0,
            unescalated_anyway: 0,
            accepted: None,
        }
    }

    pub(super) fn is_sampled(&self, entity: &Entity) -> bool {
        match &self.drawn_sample {
            DrawnSample::Hashed { seed, cutoff, .. } => {
                cutoff.is_some_and(|cutoff| hash_entity(*seed, entity) <= cutoff)
            }
            DrawnSample::Audited { truths, .. } => truths.contains_key(entity),
        }
    }

    /// Adds a cell. `values` returns the first answer's value and the final value after the
    /// stronger model has answered. No model is asked about an overridden cell outside the sample.
    pub(super) fn add_cell(
        &mut self,
        entity: &Entity,
        is_overridden: bool,
        cell: CascadeCell,
        values: impl FnOnce() -> Option<(CellValue, Option<CellValue>)>,
    ) {
        let is_sampled = self.is_sampled(entity);
        let is_covered = match &self.drawn_sample {
            DrawnSample::Hashed { .. } => true,
            DrawnSample::Audited { frame, .. } => frame.contains(entity),
        };
        let is_asked = is_sampled || !is_overridden;
        let level = match cell {
            CascadeCell::Missing if !is_asked => None,
            CascadeCell::Missing => {
                self.unanswered += 1;
                self.missing_sampled += u64::from(is_sampled);
                return;
            }
            CascadeCell::Escalated(is_answered) => {
                self.unescalated_anyway += u64::from(is_asked && !is_answered);
                None
            }
            CascadeCell::Compared(differing, second) => {
                self.unescalated[differing] += u64::from(is_asked && second.is_none());
                if !is_covered {
                    return;
                }
                let level = &mut self.levels[differing];
                level.cells += 1;
                level.sampled += u64::from(is_sampled);
                level.disagreements += u64::from(is_sampled && second == Some(true));
                self.missing_sampled += u64::from(is_sampled && second.is_none());
                Some(differing)
            }
        };
        self.sample.population += u64::from(is_covered);
        self.sample.sampled += u64::from(is_sampled);
        let DrawnSample::Audited { truths, .. } = &self.drawn_sample else { return };
        let Some(truth) = truths.get(entity) else { return };
        let Some((first, Some(second))) = values() else {
            // A sampled cell that lacks only the stronger model's answer was counted above.
            self.missing_sampled += u64::from(level.is_none());
            return;
        };
        let is_wrong =
            |value: &CellValue| truth.as_ref().is_none_or(|truth| !has_same_values(value, truth));
        let (is_first_wrong, is_second_wrong) = (is_wrong(&first), is_wrong(&second));
        for (accepted, wrong) in self.wrong.iter_mut().enumerate() {
            let is_accepted = level.is_some_and(|level| level < accepted);
            *wrong += u64::from(if is_accepted { is_first_wrong } else { is_second_wrong });
        }
    }

    /// Returns true if no answer of this run can change the decision.
    pub(super) fn is_final(&self) -> bool {
        self.unanswered == 0 && self.missing_sampled == 0
    }

    /// Chooses which cells outside the sample are accepted. Does nothing while the sample is
    /// incomplete.
    pub(super) fn choose_threshold(&mut self) {
        if self.missing_sampled > 0 {
            return;
        }
        let (sample, share) = (self.sample, self.target.share);
        let levels = match self.target.basis {
            TargetBasis::Model { .. } => {
                Some(sample.choose_levels(&self.levels, share, CONFIDENCE))
            }
            TargetBasis::Truth => sample.choose_true_levels(&self.wrong, share, CONFIDENCE),
        };
        self.is_refused = levels.is_none();
        self.accepted = levels;
    }

    /// Returns the promise about the published cells, or the reason why there is none yet.
    pub(super) fn promise(&self) -> Promise {
        let open = self.count_open_cells();
        match self.accepted {
            _ if self.is_refused => Promise::Refused,
            _ if self.missing_sampled > 0 => Promise::SampleUnanswered(self.missing_sampled),
            Some(_) if open > 0 => Promise::BelowThresholdUnanswered(open),
            None if open > 0 => Promise::Unanswered(open),
            None => Promise::Undecided,
            // The accepted levels may contain no cell.
            Some(accepted) if self.count_nonempty_levels(accepted) == 0 => Promise::AllEscalated,
            Some(accepted) => Promise::Kept { accepted },
        }
    }

    /// Returns the number of cells that still lack an answer on which the promise depends.
    pub(super) fn count_open_cells(&self) -> u64 {
        let below_threshold = self.accepted.and_then(|accepted| self.unescalated.get(accepted..));
        let unescalated = below_threshold.map_or(self.missing_sampled, |cells| cells.iter().sum());
        self.unanswered + self.unescalated_anyway + unescalated
    }

    /// Returns the number of sampled cells whose first answer disagrees with the stronger model or,
    /// for a target about the truth, is wrong.
    pub(super) fn count_disagreements(&self) -> u64 {
        match self.target.basis {
            TargetBasis::Model { .. } => self.levels.iter().map(|level| level.disagreements).sum(),
            TargetBasis::Truth => self.wrong.last().copied().unwrap_or_default(),
        }
    }

    /// Returns true if the last of the first `accepted` levels contains no cells.
    pub(super) fn is_empty_level(&self, accepted: usize) -> bool {
        accepted.checked_sub(1).is_some_and(|last| self.levels[last].cells == 0)
    }

    /// Removes empty levels from the end of the first `accepted` levels, and returns the number of
    /// remaining levels.
    pub(super) fn count_nonempty_levels(&self, accepted: usize) -> usize {
        (0..=accepted).rev().find(|levels| !self.is_empty_level(*levels)).unwrap_or(0)
    }

    /// Returns all possible thresholds, from the most expensive one to the cheapest.
    pub(super) fn list_choices(&self) -> Vec<CascadeChoice> {
        let (sample, levels) = (self.sample, &self.levels);
        match self.target.basis {
            TargetBasis::Model { .. } => sample.list_choices(levels, CONFIDENCE),
            TargetBasis::Truth => sample.list_true_choices(levels, &self.wrong, CONFIDENCE),
        }
    }

    /// Returns the reason why the target cannot be reached.
    pub(super) fn describe_unreachable_target(&self, name: &str, to: &str) -> String {
        let CascadeSample { sampled, population } = self.sample;
        let wrong = self.wrong.first().copied().unwrap_or_default();
        let least =
            1.0 - self.sample.bound_wrong(wrong, CONFIDENCE) as f64 / population.max(1) as f64;
        format!(
            "{name}: {to} is right in {} of {sampled} audited cells, which shows only that at least {:.1} % of its answers are true, so `target_truth` = {} is refused",
            sampled - wrong,
            100.0 * least.max(0.0),
            self.target.share
        )
    }
}

/// Returns a pseudorandom number that depends only on the seed and the entity.
pub(super) fn hash_entity(seed: u64, entity: &Entity) -> u64 {
    let mut hasher = blake3::Hasher::new_derive_key("hqdl calibration sample");
    hasher.update(&seed.to_le_bytes());
    hasher.update(entity.as_str().as_bytes());
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
    u64::from_le_bytes(bytes)
}
