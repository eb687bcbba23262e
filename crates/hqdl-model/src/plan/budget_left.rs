//! Compares a plan with the remaining budget.

use serde_json::{Value as Json, json};

use super::Plan;
use hqdl_values::format::format_usd;
use hqdl_values::usage::SpentAmount;

/// The remaining budget; `None` is unlimited.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct BudgetLeft {
    /// Remaining USD.
    pub usd: Option<f64>,
    /// Remaining input and output tokens.
    pub tokens: Option<u64>,
    /// Whether `usd` is the rest of the daily budget.
    pub is_daily: bool,
}

/// Amounts by which a plan exceeds the remaining budget; 0 if the budget is sufficient or
/// unlimited.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct BudgetShortfall {
    /// USD by which the likely cost exceeds the budget.
    pub likely_usd: f64,
    /// USD by which the maximum cost exceeds the budget.
    pub max_usd: f64,
    /// Tokens by which the likely usage exceeds the budget.
    pub likely_tokens: f64,
    /// Tokens by which the maximum usage exceeds the budget.
    pub max_tokens: f64,
    /// Number of cells that the remaining budget likely covers.
    pub cells_that_fit: u64,
    /// Worst-case cost of the first request that the budget does not cover; `None` if it covers
    /// all.
    pub next: Option<SpentAmount>,
}

impl Plan {
    /// Returns the amounts by which the plan exceeds its budget.
    #[must_use]
    pub fn budget_shortfall(&self) -> BudgetShortfall {
        let excess = |needed: f64, left: Option<f64>| left.map_or(0.0, |l| (needed - l).max(0.0));
        let (input, output) = (self.input_tokens() as f64, self.output_tokens());
        let (usd, tokens) = (self.budget_left.usd, self.budget_left.tokens.map(|t| t as f64));
        let likely_tokens = input + output.likely;
        let (cells_that_fit, next) = self.affordable_cells();
        BudgetShortfall {
            likely_usd: excess(self.cost_usd.likely, usd),
            max_usd: excess(self.cost_usd.max, usd),
            likely_tokens: excess(likely_tokens, tokens),
            max_tokens: excess(self.max_input_tokens() as f64 + output.max, tokens),
            cells_that_fit,
            next,
        }
    }

    /// Returns a warning if the plan may exceed its budget.
    #[must_use]
    pub fn budget_warning(&self) -> Option<String> {
        let shortfall = self.budget_shortfall();
        let by_usd = shortfall.max_usd > 0.0
            || shortfall.next.zip(self.budget_left.usd).is_some_and(|(next, left)| next.usd > left);
        let left = match (self.budget_left.usd, self.budget_left.tokens) {
            (Some(usd), None) => format_usd(usd),
            (Some(usd), Some(_)) if by_usd => format_usd(usd),
            (_, Some(tokens)) => format!("{tokens} tokens"),
            (None, None) => return None,
        };
        let of_day =
            if self.budget_left.is_daily && left.starts_with('$') { " of the day" } else { "" };
        let fit = match shortfall.next {
            None => String::new(),
            Some(_) if shortfall.cells_that_fit == 0 => {
                let likely = if left.starts_with('$') {
                    format_usd(self.cost_usd.likely)
                } else {
                    format!(
                        "{:.0} tokens",
                        self.input_tokens() as f64 + self.output_tokens().likely
                    )
                };
                return Some(format!(
                    "the budget{of_day} is too small for the first request: {left} left, and the \
                     run likely costs {likely}"
                ));
            }
            Some(_) => {
                format!("; about {} of {} cells fit", shortfall.cells_that_fit, self.cell_count())
            }
        };
        let lacking = |usd: f64, tokens: f64| match (usd > 0.0, tokens > 0.0) {
            (true, false) => Some(format_usd(usd)),
            (false, true) => Some(format!("{tokens:.0} tokens")),
            (true, true) => Some(format!("{} and {tokens:.0} tokens", format_usd(usd))),
            (false, false) => None,
        };
        if let Some(lacking) = lacking(shortfall.likely_usd, shortfall.likely_tokens) {
            return Some(format!(
                "the budget{of_day} will likely be reached: {left} left, {lacking} less than the likely cost{fit}"
            ));
        }
        match lacking(shortfall.max_usd, shortfall.max_tokens) {
            Some(lacking) => Some(format!(
                "the budget{of_day} may be reached: {left} left, enough for the likely cost but {lacking} less than the maximum{fit}"
            )),
            None if shortfall.next.is_some() => Some(format!(
                "the budget{of_day} may be reached: {left} left, less than hqdl must reserve for the requests in flight{fit}"
            )),
            None => None,
        }
    }

    /// Returns the budget as JSON for `plan --json`; null if there is no budget.
    pub(super) fn budget_json(&self) -> Json {
        if self.budget_left == BudgetLeft::default() {
            return Json::Null;
        }
        let shortfall = self.budget_shortfall();
        json!({
            "left_usd": self.budget_left.usd, "left_tokens": self.budget_left.tokens,
            "likely_over_usd": shortfall.likely_usd, "most_over_usd": shortfall.max_usd,
            "likely_over_tokens": shortfall.likely_tokens.round() as u64,
            "most_over_tokens": shortfall.max_tokens.round() as u64,
            "cells_that_fit": shortfall.cells_that_fit,
        })
    }
}
