//! The report of a run.

use super::counts::CellCounts;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Value as Json, json};

use super::coverage::CoverageReport;
use super::{MaterializeError, Selection};
use hqdl_database::StoreError;
use hqdl_model::dispatch::template::ColumnUsageEntry;
use hqdl_model::generate::StopReason;
use hqdl_model::plan::CascadePlan;
use hqdl_spec::Spec;
use hqdl_values::cell::{State, Tally};
use hqdl_values::usage::{ColumnUsage, UnconfirmedCost, Usage};

/// Results of a run.
#[derive(Debug, Default)]
pub struct Report {
    /// Columns per expansion, in the spec's order.
    pub columns: Vec<Vec<ColumnReport>>,
    /// All published cells, by state.
    pub cells: Tally,
    /// Number of cells that were known before the run.
    pub reused: u64,
    /// Number of cells that other processes answered during the run.
    pub answered_by_others: u64,
    /// Number of cells that were not requested (`--limit`, `--columns`, or an early stop).
    pub unasked: u64,
    /// Tokens and cost of the run.
    pub usage: Usage,
    /// Requests that may have been billed without an answer.
    pub in_doubt: UnconfirmedCost,
    /// Whether the model has a price.
    pub has_price: bool,
    /// Notes on the sources of prices that the spec does not set ([`Spec::price_notes`]).
    pub price_origins: Vec<String>,
    /// Database of the published tables and views.
    pub target: PathBuf,
    /// Whether anything was published.
    pub published: bool,
    /// Reason for an early stop.
    pub stop_reason: Option<Arc<StopReason>>,
    /// Error that prevented publishing; the answers are stored nevertheless.
    pub failure: Option<MaterializeError>,
    /// Cells that this run requested, by state.
    pub requested: Tally,
    /// Cascades of the columns that have a target.
    pub cascades: Vec<CascadePlan>,
    /// Error of the last failed request.
    pub last_error: Option<String>,
}

/// Cells and usage of one column.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ColumnReport {
    /// Name of the column's expansion.
    pub expansion: String,
    /// Name of the column.
    pub column: String,
    /// All cells of the column, by state.
    pub cells: Tally,
    /// Number of cells that were never requested.
    pub unasked: u64,
    /// This run's requests and usage for the column.
    pub usage: ColumnUsage,
    /// Cells answered since the coverage was computed, by state. Does not include answers to batch
    /// jobs of earlier runs.
    pub(super) requested: Tally,
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
    pub(super) fn for_spec(spec: &Spec) -> Self {
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
    pub(super) fn add_counts(&mut self, expansion: usize, counts: &CellCounts) {
        for (n, (cells, unasked)) in counts.cells.iter().zip(&counts.unasked).enumerate() {
            self.cells.merge(cells);
            self.unasked += unasked;
            if let Some(column) = self.columns.get_mut(expansion).and_then(|e| e.get_mut(n)) {
                column.cells.merge(cells);
                column.unasked += unasked;
            }
        }
    }

    /// Limits the number of newly answered cells in a state to `max`. Called when some first
    /// answers have been superseded.
    pub(super) fn cap_requested_cells(
        &mut self,
        expansion: &str,
        column: &str,
        state: State,
        max: u64,
    ) {
        let newly_answered = self.column_mut(expansion, column);
        let reduction = newly_answered.map_or(0, |c| c.requested.cap_count(state, max));
        let remaining = self.requested.get(state).saturating_sub(reduction);
        self.requested.cap_count(state, remaining);
    }

    /// Returns true if the run stopped early.
    pub(super) fn has_stopped(&self) -> bool {
        self.stop_reason.is_some() || self.failure.is_some()
    }

    /// Adds usage to the columns. Skips columns that no longer exist.
    pub fn add_usage(&mut self, used: &[ColumnUsageEntry]) {
        for (expansion, name, column_usage) in used {
            self.column_mut(expansion, name).into_iter().for_each(|c| c.usage.merge(column_usage));
        }
    }

    /// Adds the usage and the cells that were answered since the coverage was computed.
    pub(super) fn add_answers(&mut self, asked: &[ColumnUsageEntry]) {
        self.add_usage(asked);
        for (expansion, name, column_usage) in asked {
            self.column_mut(expansion, name)
                .into_iter()
                .for_each(|c| c.requested.merge(&column_usage.cells));
        }
    }

    /// Returns true if every cell was answered, either with a value or with "unknown" by the model.
    /// A cell whose repeated request failed does not count as answered.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.cells.count_failed_cells() == 0
            && self.unasked == 0
            && self.requested.count_failed_cells() == 0
    }

    /// Returns true if every selected cell was answered. With `require_values`, every selected cell
    /// must also have a value.
    #[must_use]
    pub fn is_fulfilled(&self, selection: &Selection, require_values: bool) -> bool {
        let unasked = if selection.is_partial() { 0 } else { self.unasked };
        let count = if require_values {
            Tally::count_cells_without_value
        } else {
            Tally::count_failed_cells
        };
        unasked == 0 && count(&self.cells) == 0 && count(&self.requested) == 0
    }

    /// Returns the state that all requested cells share, if it is [`State::Invalid`] or
    /// [`State::Refused`].
    #[must_use]
    pub fn find_common_failure(&self) -> Option<State> {
        let total = self.requested.total();
        [State::Invalid, State::Refused]
            .into_iter()
            .find(|state| total > 0 && self.requested.get(*state) == total)
    }

    /// Returns notes about the prices: their sources, and the part of the cost that is estimated.
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
                "requests": self.in_doubt.requests, "tokens": self.in_doubt.max_spent.tokens,
                "cost_usd": self.in_doubt.max_spent.usd,
            },
            "seconds": seconds,
            "published": self.published,
            "target": self.target,
            "cascades": self.cascades.iter().map(CascadePlan::to_json).collect::<Vec<_>>(),
            "columns": self.columns.iter().flatten().map(ColumnReport::to_json).collect::<Vec<_>>(),
        })
    }

    fn column_mut(&mut self, expansion: &str, name: &str) -> Option<&mut ColumnReport> {
        let mut columns = self.columns.iter_mut().flatten();
        columns.find(|c| c.expansion == expansion && c.column == name)
    }

    /// Returns true if publishing failed because the database file was replaced during the run. The
    /// caller then publishes from the new file.
    #[must_use]
    pub fn is_database_replaced(&self) -> bool {
        matches!(&self.failure, Some(MaterializeError::Store(StoreError::Replaced(_))))
    }

    /// Adds the usage and results of an earlier attempt of this run, which ended because the
    /// database file was replaced.
    pub fn merge_previous_report(&mut self, before: &Self) {
        self.usage.merge(&before.usage);
        self.requested.merge(&before.requested);
        for earlier in before.columns.iter().flatten() {
            let column = self.column_mut(&earlier.expansion, &earlier.column);
            column.into_iter().for_each(|c| c.usage.merge(&earlier.usage));
        }
    }

    /// Counts all cells from the coverage reports and this run's answers. Used if the tables are
    /// left unchanged.
    pub(super) fn count_cells_from_coverage(&mut self, coverages: &[CoverageReport<'_>]) {
        for (coverage, columns) in coverages.iter().zip(&mut self.columns) {
            let counts = coverage.cells.iter().zip(&coverage.unasked).zip(&coverage.plan.columns);
            for (((cells, unasked), plan), column) in counts.zip(columns) {
                let answered = column.requested;
                column.cells.merge(cells);
                column.cells.merge(&answered);
                column.unasked += (unasked + plan.cell_count()).saturating_sub(answered.total());
                self.cells.merge(&column.cells);
                self.unasked += column.unasked;
            }
        }
    }
}
