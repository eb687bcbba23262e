//! Thresholds of a cascade, with their cost and agreement.

use serde_json::{Value as Json, json};

/// Cascade of a column with a target.
#[derive(Debug, Clone, PartialEq)]
pub struct CascadePlan {
    /// Name of the expansion.
    pub expansion: String,
    /// Name of the column.
    pub column: String,
    /// Name of the stronger model.
    pub to: String,
    /// Target share of the cells that agree with the stronger model or, if `is_truth`, are correct.
    pub target: f64,
    /// Whether `target`, `expected` and `bound` refer to correctness instead of agreement.
    pub is_truth: bool,
    /// Number of answers per cell, including the first one; `None` if the confidence is a
    /// probability.
    pub answers: Option<usize>,
    /// Number of cells that this cascade covers.
    pub cells: u64,
    /// Number of these cells in the calibration sample.
    pub sampled: u64,
    /// Number of sampled cells that some model has not answered yet.
    pub unanswered_sampled: u64,
    /// Number of cells that lack a required answer.
    pub unanswered: u64,
    /// Whether the target is reached already, because no required answer is missing.
    pub is_promised: bool,
    /// Number of sampled cells on which the models disagree.
    pub disagreements: u64,
    /// Possible thresholds, from the most expensive to the cheapest. Empty until all models have
    /// answered the sample.
    pub thresholds: Vec<CascadeThreshold>,
}

/// A possible threshold of a cascade.
#[derive(Debug, Clone, PartialEq)]
pub struct CascadeThreshold {
    /// Condition under which a first answer is accepted.
    pub accepts: AcceptedCells,
    /// Number of cells that the stronger model would have to answer.
    pub cells: u64,
    /// Likely cost of the stronger model's answers in USD; `None` if its price is unknown.
    pub cost_usd: Option<f64>,
    /// Expected share of the cells that agree with the stronger model.
    pub expected: f64,
    /// Lower bound on the share of the cells that agree, at a confidence level of 95 %.
    pub bound: f64,
    /// Whether the run uses this threshold.
    pub is_chosen: bool,
}

/// Condition under which a first answer is accepted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum AcceptedCells {
    /// Never.
    Nothing,
    /// At least this number of answers are equal.
    Equal(usize),
    /// The probability of the answer's tokens is at least this value.
    Probable(f64),
    /// Always, even without a probability.
    All,
}

impl CascadePlan {
    /// Returns the condition of a threshold in words: `2 of 3 equal`.
    #[must_use]
    pub fn describe_threshold(&self, threshold: &CascadeThreshold) -> String {
        match threshold.accepts {
            AcceptedCells::Nothing => "nothing".to_owned(),
            AcceptedCells::Equal(equal) => {
                format!("{equal} of {} equal", self.answers.unwrap_or(1))
            }
            AcceptedCells::Probable(probability) => format!("probability ≥ {probability}"),
            AcceptedCells::All => "everything".to_owned(),
        }
    }

    /// Returns the cascade as an entry in the plan's JSON.
    #[must_use]
    pub fn to_json(&self) -> Json {
        let to_json = |t: &CascadeThreshold| {
            let (mut equal, mut probability) = (None, None);
            match t.accepts {
                AcceptedCells::Equal(answers) => equal = Some(answers),
                AcceptedCells::Probable(least) => probability = Some(least),
                AcceptedCells::Nothing | AcceptedCells::All => {}
            }
            json!({
                "accepts": self.describe_threshold(t), "equal_answers": equal,
                "probability": probability, "cells": t.cells, "cost_usd": t.cost_usd,
                "expected": t.expected, "bound": t.bound, "chosen": t.is_chosen,
            })
        };
        json!({
            "expansion": self.expansion, "column": self.column, "to": self.to,
            "target": self.target, "of": if self.is_truth { "truth" } else { "agreement" },
            "answers": self.answers, "cells": self.cells,
            "sampled": self.sampled, "unanswered_sampled": self.unanswered_sampled,
            "unanswered": self.unanswered, "promised": self.is_promised,
            "disagreements": self.disagreements,
            "thresholds": self.thresholds.iter().map(to_json).collect::<Vec<_>>(),
        })
    }
}
