//! What a run tells at its end.

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

/// What a run did.
#[derive(Debug, Default)]
pub struct Report {
    /// The columns, by expansion, in the spec's order.
    pub columns: Vec<Vec<ColumnReport>>,
    /// All cells of the expansions, by state.
    pub cells: Tally,
    /// Cells that were known before.
    pub reused: u64,
    /// Cells that others brought while this run asked.
    pub found: u64,
    /// Cells that were left unasked (`--limit`, `--columns`, an end before time).
    pub unasked: u64,
    /// What was used.
    pub usage: Usage,
    /// Requests that may have been billed without an answer.
    pub in_doubt: Doubt,
    /// Whether there is a price.
    pub priced: bool,
    /// Where prices are from that are not the spec's ([`Spec::price_notes`]).
    pub price_origins: Vec<String>,
    /// The published tables and views.
    pub target: PathBuf,
    /// Whether anything had to be published.
    pub published: bool,
    /// Why the run ended before its end.
    pub stopped: Option<Arc<Stopped>>,
    /// Why what is known could not be published; it is kept all the same.
    pub failed: Option<MaterializeError>,
    /// Cells this run asked for, by how they ended.
    pub asked: Tally,
    /// Why a request failed, the last time one did.
    pub last_error: Option<String>,
}

/// How one column stands, and what it used.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ColumnReport {
    /// Its expansion.
    pub expansion: String,
    /// Its name.
    pub column: String,
    /// All its cells, by state.
    pub cells: Tally,
    /// Cells that were left unasked.
    pub unasked: u64,
    /// What this run asked for it and used.
    pub usage: ColumnUsage,
    /// Cells that came since the survey, by how they ended: not those of batches
    /// that earlier runs left.
    pub(super) asked: Tally,
}

impl ColumnReport {
    /// As it stands in the event `done`.
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
    /// A report in which nothing is counted yet.
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

    /// Counts how the cells of an expansion are shown.
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

    /// Of the cells that came, those on no list are at most these any more: a model has
    /// said what others mean.
    pub(super) fn unified(&mut self, expansion: &str, column: &str, not_in_list: u64) {
        let asked = self.column(expansion, column);
        let fewer = asked.map_or(0, |c| c.asked.at_most(State::NotInList, not_in_list));
        let left = self.asked.get(State::NotInList) - fewer.min(self.asked.get(State::NotInList));
        self.asked.at_most(State::NotInList, left);
    }

    /// Counts what columns used, those that still are.
    pub fn used(&mut self, used: &[ColumnUsed]) {
        for (expansion, name, used) in used {
            self.column(expansion, name).into_iter().for_each(|c| c.usage.merge(used));
        }
    }

    /// Counts what columns used since the survey.
    pub(super) fn asked(&mut self, asked: &[ColumnUsed]) {
        self.used(asked);
        for (expansion, name, used) in asked {
            self.column(expansion, name).into_iter().for_each(|c| c.asked.merge(&used.cells));
        }
    }

    /// Returns whether every cell was answered: with a value, or with the model's word that it
    /// does not know. A cell that was asked again without success is not answered.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.cells.failed() == 0 && self.unasked == 0 && self.asked.failed() == 0
    }

    /// Returns whether every selected cell was answered; with `require_values`, whether each of
    /// them has a value.
    #[must_use]
    pub fn is_fulfilled(&self, selection: &Selection, require_values: bool) -> bool {
        let unasked = if selection.is_partial() { 0 } else { self.unasked };
        let count = if require_values { Tally::without_value } else { Tally::failed };
        unasked == 0 && count(&self.cells) == 0 && count(&self.asked) == 0
    }

    /// Returns the notes of the price: where prices are from, and what of the cost is assumed.
    #[must_use]
    pub fn price_notes(&self) -> Vec<String> {
        self.price_origins.iter().cloned().chain(self.usage.price_note()).collect()
    }

    /// The event `done` of `hqdl materialize --json`: a stable contract.
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

    /// Whether the tables could not be published because another file stands where
    /// the database was: what is known is to be published from that one.
    #[must_use]
    pub fn is_of_another_file(&self) -> bool {
        matches!(&self.failed, Some(MaterializeError::Store(StoreError::Replaced(_))))
    }

    /// Adds what the run used before it read its database again.
    pub fn goes_on_from(&mut self, before: &Self) {
        self.usage.merge(&before.usage);
        self.asked.merge(&before.asked);
        for used in before.columns.iter().flatten() {
            let column = self.column(&used.expansion, &used.column);
            column.into_iter().for_each(|c| c.usage.merge(&used.usage));
        }
    }

    /// Counts all cells as surveys found them, and what this run was told since,
    /// for tables that stay as they are.
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
