//! Whether a plan fits its budget, and how much of it does.

use serde_json::{Value as Json, json};

use super::Plan;

/// What a budget has left; `None` is no cap.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Room {
    /// USD.
    pub usd: Option<f64>,
    /// Tokens, input and output.
    pub tokens: Option<u64>,
}

/// How far a plan goes beyond what is left. What is not capped, or fits, is 0.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Beyond {
    /// USD that are lacking when the run costs what is likely.
    pub likely_usd: f64,
    /// USD that are lacking when it costs the most.
    pub most_usd: f64,
    /// Tokens that are lacking when the run takes what is likely.
    pub likely_tokens: f64,
    /// Tokens that are lacking when it takes the most.
    pub most_tokens: f64,
    /// Cells that likely can be asked with what is left.
    pub cells_that_fit: u64,
}

impl Plan {
    /// How far it goes beyond its budget.
    #[must_use]
    pub fn beyond(&self) -> Beyond {
        let over = |needed: f64, left: Option<f64>| left.map_or(0.0, |l| (needed - l).max(0.0));
        let (input, output) = (self.input_tokens() as f64, self.output_tokens());
        let (usd, tokens) = (self.room.usd, self.room.tokens.map(|t| t as f64));
        let part = |needed: f64, left: Option<f64>| match left {
            Some(left) if needed > left => left.max(0.0) / needed,
            _ => 1.0,
        };
        let likely_tokens = input + output.likely;
        let part = part(self.cost_usd.likely, usd).min(part(likely_tokens, tokens));
        Beyond {
            likely_usd: over(self.cost_usd.likely, usd),
            most_usd: over(self.cost_usd.most, usd),
            likely_tokens: over(likely_tokens, tokens),
            most_tokens: over(input + output.most, tokens),
            cells_that_fit: (self.cells() as f64 * part) as u64,
        }
    }

    /// What there is to say of the budget when the plan may go beyond it.
    #[must_use]
    pub fn warning(&self) -> Option<String> {
        let beyond = self.beyond();
        let left = match (self.room.usd, self.room.tokens) {
            (Some(usd), _) if beyond.most_usd > 0.0 => format!("${usd:.4}"),
            (_, Some(tokens)) => format!("{tokens} tokens"),
            _ => return None,
        };
        let lacking = |usd: f64, tokens: f64| match (usd > 0.0, tokens > 0.0) {
            (true, false) => Some(format!("${usd:.4}")),
            (false, true) => Some(format!("{tokens:.0} tokens")),
            (true, true) => Some(format!("${usd:.4} and {tokens:.0} tokens")),
            (false, false) => None,
        };
        if let Some(lacking) = lacking(beyond.likely_usd, beyond.likely_tokens) {
            return Some(format!(
                "the budget will likely be reached: it has {left} left, {lacking} too little; about {} of {} cells fit",
                beyond.cells_that_fit,
                self.cells()
            ));
        }
        let lacking = lacking(beyond.most_usd, beyond.most_tokens)?;
        Some(format!(
            "the budget may be reached: it has {left} left, likely enough but {lacking} short of the most"
        ))
    }

    /// The budget as `plan --json` tells it; null without one.
    pub(super) fn budget_json(&self) -> Json {
        if self.room == Room::default() {
            return Json::Null;
        }
        let beyond = self.beyond();
        json!({
            "left_usd": self.room.usd, "left_tokens": self.room.tokens,
            "likely_over_usd": beyond.likely_usd, "most_over_usd": beyond.most_usd,
            "likely_over_tokens": beyond.likely_tokens.round() as u64,
            "most_over_tokens": beyond.most_tokens.round() as u64,
            "cells_that_fit": beyond.cells_that_fit,
        })
    }
}
