//! Report of an audit: the accuracy and the confusions of each column.

use std::collections::{BTreeMap, HashMap};

use hqdl_statistics::{Class, Interval, estimate_positive_rows};
use serde::Serialize;
use serde_json::{Value as Json, json};

use super::Audit;
use super::error::AuditError;
use super::frame::{FrameRow, collect_frame};
use super::sheet::Evidence;
use crate::truth::{format_cell, format_entry, has_same_values};
use hqdl_database::Database;
use hqdl_spec::Expansion;
use hqdl_values::cell::CellValue;
use hqdl_values::key::Entity;
use hqdl_values::value::Value;

/// Maximum number of confusions that a report lists.
const MAX_PAIRS: usize = 10;

/// Settings of a report.
#[derive(Debug, Clone, Copy)]
pub struct ReportSettings {
    /// Confidence of the accuracy intervals.
    pub confidence: f64,
    /// Half-width, as a share, for which the report computes the number of rows to audit.
    pub half_width: f64,
}

impl Default for ReportSettings {
    fn default() -> Self {
        Self { confidence: 0.95, half_width: 0.05 }
    }
}

/// Report on a column.
#[derive(Debug, Clone, Serialize)]
pub struct ColumnAudit {
    /// Name of the column.
    pub column: String,
    /// Whether the answers were compared with the truth or with another model.
    pub evidence: Evidence,
    /// Number of rows in the filled prefix of the sample, which are the rows that count.
    pub rows: u64,
    /// Number of rows of the expansion.
    pub population: u64,
    /// Number of rows whose answer equals the true value or, with [`Evidence::Model`], the other
    /// model's answer.
    pub right: u64,
    /// Number of rows whose truth cannot be known. The lower bound of the accuracy counts them as
    /// wrong, the upper bound as right.
    pub cannot_be_known: u64,
    /// Estimated accuracy, and the lower and upper bounds of its exact interval, as shares of the
    /// expansion's rows.
    pub accuracy: Option<[f64; 3]>,
    /// For each state, the number of right answers and the number of compared answers.
    pub states: BTreeMap<String, (u64, u64)>,
    /// Most frequent pairs of a truth and a different answer.
    pub confusions: Vec<Confusion>,
    /// Number of audited rows needed for an interval with the settings' half-width.
    pub rows_needed: u64,
}

/// A truth and a different answer, with their frequency.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Confusion {
    /// True value.
    pub truth: String,
    /// Answer, or the state of a cell without one.
    pub answer: String,
    /// Number of rows.
    pub rows: u64,
}

/// Report of an audit.
#[derive(Debug, Clone)]
pub struct AuditReport {
    /// Identifier of the draw.
    pub id: String,
    /// Name of the expansion.
    pub expansion: String,
    /// Name of the design.
    pub design: &'static str,
    /// Number of sampled rows.
    pub sample: u64,
    /// Number of sampled rows that are no longer in any source.
    pub missing_rows: u64,
    /// Keys of the sampled rows whose published answers have changed since the draw.
    pub changed_keys: Vec<Vec<Value>>,
    /// Half-width, as a share, for which the columns' `rows_needed` is computed.
    pub half_width: f64,
    /// Reports on the columns. Columns compared with the truth come first.
    pub columns: Vec<ColumnAudit>,
}

impl AuditReport {
    /// Returns the report as JSON. The format is stable.
    #[must_use]
    pub fn to_json(&self) -> Json {
        let to_json = |key: &Vec<Value>| key.iter().map(Value::to_json).collect::<Vec<_>>();
        let keys: Vec<Vec<Json>> = self.changed_keys.iter().map(to_json).collect();
        json!({
            "audit": self.id, "expansion": self.expansion, "design": self.design,
            "sample": self.sample, "gone": self.missing_rows, "changed": keys.len(),
            "changed_keys": keys, "half_width": self.half_width, "columns": self.columns,
        })
    }
}

impl Audit {
    /// Compares the sampled rows with the current database and returns the report of the audit.
    ///
    /// # Errors
    /// [`AuditError`] if the databases cannot be read.
    pub fn build_report(
        &self,
        sources: &Database,
        published: &Database,
        expansion: &Expansion,
        settings: ReportSettings,
    ) -> Result<AuditReport, AuditError> {
        let columns = self.draw.find_expansion_columns(expansion);
        let current: Vec<usize> = columns.iter().map(|c| c.0).collect();
        let now = collect_frame(sources, published, expansion, &current)?;
        let now: HashMap<Entity, FrameRow> =
            now.into_iter().map(|row| (expansion.build_entity(&row.key), row)).collect();
        let (mut missing_rows, mut changed_keys) = (0, Vec::new());
        for row in self.draw.sample().iter().map(|row| &self.draw.frame[*row]) {
            match now.get(&expansion.build_entity(&row.key)) {
                None => missing_rows += 1,
                Some(found) => {
                    let is_changed = |(n, (_, audited)): (usize, &(usize, usize))| {
                        found.answers[n] != row.answers[*audited]
                    };
                    if columns.iter().enumerate().any(is_changed) {
                        changed_keys.push(row.key.clone());
                    }
                }
            }
        }
        Ok(AuditReport {
            id: self.draw.id.clone(),
            expansion: expansion.name.clone(),
            design: self.draw.design.name(),
            sample: self.draw.sample().len() as u64,
            missing_rows,
            changed_keys,
            half_width: settings.half_width,
            columns: self.build_column_reports(expansion, settings),
        })
    }

    /// Returns a report on each audited column. Columns compared with the truth come first.
    #[must_use]
    pub fn build_column_reports(
        &self,
        expansion: &Expansion,
        settings: ReportSettings,
    ) -> Vec<ColumnAudit> {
        [Evidence::Truth, Evidence::Model]
            .into_iter()
            .flat_map(|evidence| {
                let columns = self.draw.find_expansion_columns(expansion).into_iter();
                columns.filter_map(move |column| {
                    self.build_column_report(expansion, column, evidence, settings)
                })
            })
            .collect()
    }

    /// Returns the report on a column. Returns `None` if `evidence` is [`Evidence::Model`] and no
    /// row with another model's answer counts.
    fn build_column_report(
        &self,
        expansion: &Expansion,
        (column, audited): (usize, usize),
        evidence: Evidence,
        settings: ReportSettings,
    ) -> Option<ColumnAudit> {
        let rows = self.count_filled_rows(&[column], evidence);
        if rows == 0 && evidence == Evidence::Model {
            return None;
        }
        let mut report = ColumnAudit {
            column: expansion.columns[column].name.clone(),
            evidence,
            rows: rows as u64,
            population: self.draw.frame.len() as u64,
            right: 0,
            cannot_be_known: 0,
            accuracy: None,
            states: BTreeMap::new(),
            confusions: Vec::new(),
            rows_needed: 0,
        };
        let mut strata = [Class::default(); 2];
        self.draw.frame.iter().for_each(|row| strata[row.stratum].size += 1);
        let mut unknown = [0; 2];
        let mut pairs: BTreeMap<(String, String), u64> = BTreeMap::new();
        for row in &self.draw.sample()[..rows] {
            let frame_row = &self.draw.frame[*row];
            let (answer, state) = (&frame_row.answers[audited], &frame_row.states[audited]);
            let stratum = &mut strata[frame_row.stratum];
            stratum.sampled += 1;
            let Some(truth) = self.sheet.truth(*row, column) else { continue };
            let Some(value) = &truth.value else {
                unknown[frame_row.stratum] += 1;
                report.cannot_be_known += 1;
                continue;
            };
            let is_right = has_same_values(answer, value);
            let by_state = report.states.entry(state.clone()).or_default();
            by_state.0 += u64::from(is_right);
            by_state.1 += 1;
            stratum.positives += u64::from(is_right);
            report.right += u64::from(is_right);
            if !is_right {
                let shown = match answer {
                    CellValue::Nothing => state.clone(),
                    answer => format_cell(answer),
                };
                *pairs.entry((format_entry(Some(value)), shown)).or_default() += 1;
            }
        }
        report.confusions = list_top_confusions(pairs);
        report.set_accuracy(&strata, unknown, settings);
        Some(report)
    }
}

impl ColumnAudit {
    /// Sets the accuracy and the number of rows needed for a narrower interval.
    fn set_accuracy(&mut self, strata: &[Class; 2], unknown: [u64; 2], settings: ReportSettings) {
        let size = self.population as f64;
        let share = |unknown: [u64; 2]| -> Option<Interval> {
            let mut strata = *strata;
            strata.iter_mut().zip(unknown).for_each(|(s, n)| s.positives += n);
            estimate_positive_rows(&strata, settings.confidence)
        };
        if let (Some(low), Some(high)) = (share([0; 2]), share(unknown)) {
            let estimate = f64::midpoint(low.estimate, high.estimate);
            self.accuracy = Some([estimate / size, low.low / size, high.high / size]);
        }
        let accuracy = self.accuracy.map_or(0.5, |[accuracy, ..]| accuracy);
        let width = |rows: u64| {
            let positives = (rows as f64 * accuracy).round() as u64;
            let class = Class { size: self.population, sampled: rows, positives };
            estimate_positive_rows(&[class], settings.confidence)
                .map_or(1.0, |i| i.half_width() / size)
        };
        let (mut few, mut enough) = (1, self.population);
        while few < enough {
            let middle = u64::midpoint(few, enough);
            if width(middle) <= settings.half_width { enough = middle } else { few = middle + 1 }
        }
        self.rows_needed = enough;
    }
}

fn list_top_confusions(pairs: BTreeMap<(String, String), u64>) -> Vec<Confusion> {
    let to_confusion = |((truth, answer), rows)| Confusion { truth, answer, rows };
    let mut all: Vec<Confusion> = pairs.into_iter().map(to_confusion).collect();
    all.sort_by_key(|pair| std::cmp::Reverse(pair.rows));
    all.truncate(MAX_PAIRS);
    all
}
