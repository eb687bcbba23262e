//! The report of a run.

use super::counts::CellCounts;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Value as Json, json};

use super::survey::Survey;
use super::{MaterializeError, Selection};
use hqdl_database::StoreError;
use hqdl_model::dispatch::form::ColumnUsed;
use hqdl_model::generate::Stopped;
use hqdl_spec::Spec;
use hqdl_values::cell::{State, Tally};
use hqdl_values::usage::{ColumnUsage, Doubt, Usage};

/// Results of a run.
#[derive(Debug, Default)]
pub struct Report {
    /// Columns per expansion, in the spec's order.
    pub columns: Vec<Vec<ColumnReport>>,
    /// All published cells, by state.
    pub cells: Tally,
    /// Cells that were known before the run.
    pub reused: u64,
    /// Cells that other processes answered during the run.
    pub found: u64,
    /// Cells that were not requested (`--limit`, `--columns`, or an early stop).
    pub unasked: u64,
    /// Tokens and cost of the run.
    pub usage: Usage,
    /// Requests that may have been billed without an answer.
    pub in_doubt: Doubt,
    /// Whether the model has a price.
    pub priced: bool,
    /// Sources of prices that are not from the spec ([`Spec::price_notes`]).
    pub price_origins: Vec<String>,
    /// Database of the published tables and views.
    pub target: PathBuf,
    /// Whether anything was published.
    pub published: bool,
    /// Reason for an early stop.
    pub stopped: Option<Arc<Stopped>>,
    /// Error that prevented publishing; the answers are stored nevertheless.
    pub failed: Option<MaterializeError>,
    /// Cells that this run requested, by state.
    pub asked: Tally,
    /// Error of the last failed request.
    pub last_error: Option<String>,
}

/// Cells and usage of one column.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ColumnReport {
    /// Name of its expansion.
    pub expansion: String,
    /// Name of the column.
    pub column: String,
    /// All its cells, by state.
    pub cells: Tally,
    /// Cells that were not requested.
    pub unasked: u64,
    /// This run's requests and usage for the column.
    pub usage: ColumnUsage,
    /// Cells answered since the coverage was computed, by state; without those of earlier runs'
    /// batch jobs.
    pub(super) asked: Tally,
}

impl ColumnReport {
    /// Returns the column's entry in the `done` event.
    #[must_use]
    pub fn to_json(&self) -> Json {
        json!({
            "expansion": self.expansion, "column": self.column, "cells": self.cells.to_json(),
            "cells_unasked": self.unasked, "cells_asked": self.usage.cells.total(),
            "requests": self.usage.requests, "input_tokens": self.usage.input_tokens,
            "output_tokens": self.usage.output_tokens, "cost_usd": self.usage.cost_usd,
        })
    }
}

impl Report {
    /// Creates an empty report for a spec.
    pub(super) fn of(spec: &Spec) -> Self {
        let columns = spec
            .expansions
            .iter()
            .map(|e| {
                let column = |name: &String| ColumnReport {
                    expansion: e.name.clone(),
                    column: name.clone(),
                    ..ColumnReport::default()
                };
                e.columns.iter().map(|c| column(&c.name)).collect()
            })
            .collect();
        Self { columns, price_origins: spec.price_notes(), ..Self::default() }
    }

    /// Adds the counts of an expansion's cells.
    pub(super) fn count(&mut self, expansion: usize, counts: &CellCounts) {
        for (n, (cells, unasked)) in counts.cells.iter().zip(&counts.unasked).enumerate() {
            self.cells.merge(cells);
            self.unasked += unasked;
            if let Some(column) = self.columns.get_mut(expansion).and_then(|e| e.get_mut(n)) {
                column.cells.merge(cells);
                column.unasked += unasked;
            }
        }
    }

    /// Lowers the number of newly answered cells in state `not_in_list` to `not_in_list`, after the
    /// model has mapped some of their values to the list.
    pub(super) fn unified(&mut self, expansion: &str, column: &str, not_in_list: u64) {
        let asked = self.column(expansion, column);
        let fewer = asked.map_or(0, |c| c.asked.at_most(State::NotInList, not_in_list));
        let left = self.asked.get(State::NotInList) - fewer.min(self.asked.get(State::NotInList));
        self.asked.at_most(State::NotInList, left);
    }

    /// Adds usage to the columns; columns that no longer exist are skipped.
    pub fn used(&mut self, used: &[ColumnUsed]) {
        for (expansion, name, used) in used {
            self.column(expansion, name).into_iter().for_each(|c| c.usage.merge(used));
        }
    }

    /// Adds the usage and the cells that were answered since the coverage was computed.
    pub(super) fn asked(&mut self, asked: &[ColumnUsed]) {
        self.used(asked);
        for (expansion, name, used) in asked {
            self.column(expansion, name).into_iter().for_each(|c| c.asked.merge(&used.cells));
        }
    }

    /// Returns true if every cell was answered, either with a value or with "unknown" by the model.
    /// A cell whose repeated request failed does not count as answered.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.cells.failed() == 0 && self.unasked == 0 && self.asked.failed() == 0
    }

    /// Returns true if every selected cell was answered; with `require_values`, only if each of
    /// them has a value.
    #[must_use]
    pub fn is_fulfilled(&self, selection: &Selection, require_values: bool) -> bool {
        let unasked = if selection.is_partial() { 0 } else { self.unasked };
        let count = if require_values { Tally::without_value } else { Tally::failed };
        unasked == 0 && count(&self.cells) == 0 && count(&self.asked) == 0
    }

    /// Returns notes about the price: where prices are from, and which part of the cost is
    /// estimated.
    #[must_use]
    pub fn price_notes(&self) -> Vec<String> {
        self.price_origins.iter().cloned().chain(self.usage.price_note()).collect()
    }

    /// Returns the `done` event of `hqdl materialize --json`. Its format is stable.
    #[must_use]
    pub fn to_json(&self, seconds: f64) -> Json {
        json!({
            "event": "done",
            "cells": self.cells.to_json(),
            "cells_reused": self.reused,
            "cells_unasked": self.unasked,
            "requests": self.usage.requests,
            "input_tokens": self.usage.input_tokens,
            "output_tokens": self.usage.output_tokens,
            "cost_usd": self.usage.cost_usd,
            "price_notes": self.price_notes(),
            "in_doubt": {
                "requests": self.in_doubt.requests, "tokens": self.in_doubt.most.tokens,
                "cost_usd": self.in_doubt.most.usd,
            },
            "seconds": seconds,
            "published": self.published,
            "target": self.target,
            "columns": self.columns.iter().flatten().map(ColumnReport::to_json).collect::<Vec<_>>(),
        })
    }

    fn column(&mut self, expansion: &str, name: &str) -> Option<&mut ColumnReport> {
        let mut columns = self.columns.iter_mut().flatten();
        columns.find(|c| c.expansion == expansion && c.column == name)
    }

    /// Returns true if publishing failed because the database file was replaced during the run. The
    /// caller then publishes from the new file.
    #[must_use]
    pub fn is_of_another_file(&self) -> bool {
        matches!(&self.failed, Some(MaterializeError::Store(StoreError::Replaced(_))))
    }

    /// Adds the usage and results from before the database was read again.
    pub fn goes_on_from(&mut self, before: &Self) {
        self.usage.merge(&before.usage);
        self.asked.merge(&before.asked);
        for used in before.columns.iter().flatten() {
            let column = self.column(&used.expansion, &used.column);
            column.into_iter().for_each(|c| c.usage.merge(&used.usage));
        }
    }

    /// Counts all cells from the coverage reports and this run's answers, for tables that are left
    /// unchanged.
    pub(super) fn as_surveyed(&mut self, surveys: &[Survey<'_>]) {
        for (survey, columns) in surveys.iter().zip(&mut self.columns) {
            let found = survey.cells.iter().zip(&survey.unasked).zip(&survey.plan.columns);
            for (((cells, unasked), plan), column) in found.zip(columns) {
                let asked = column.asked;
                column.cells.merge(cells);
                column.cells.merge(&asked);
                column.unasked += (unasked + plan.cells()).saturating_sub(asked.total());
                self.cells.merge(&column.cells);
                self.unasked += column.unasked;
            }
        }
    }
}
