//! Status of the daemon. The loop updates it after each event; all other tasks only read it.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value as Json, json};
use tokio::time::Instant;

use super::active_spec::ActiveSpec;
use super::metrics::text::{MetricsText, escape_label};
use crate::cell::{State, Tally};
use crate::failure::Failure;
use crate::materialize::ColumnReport;
use crate::usage::Usage;

/// Current state of the daemon.
#[derive(Clone, Default)]
pub struct DaemonStatus {
    /// URL of the HTTP server.
    pub url: String,
    /// Start time, RFC 3339.
    pub began: String,
    /// Directory of the facts.
    pub cache: String,
    /// Directory of the specs.
    pub watched: String,
    /// Whether the daemon sends requests without approval.
    pub spend: bool,
    /// Reason why some changes are not reported.
    pub watch_error: Option<String>,
    /// Specs, by name.
    pub specs: BTreeMap<String, Arc<SpecStatus>>,
    /// Recent runs, newest first.
    pub runs: Vec<Arc<RunStatus>>,
    /// Number of runs that wait for others to end.
    pub queued: usize,
}

/// Current state of a spec.
#[derive(Clone, Default)]
pub struct SpecStatus {
    /// Name of the file without `.toml`.
    pub name: String,
    /// Path of the file.
    pub path: String,
    /// The last valid version of the spec.
    pub(super) active_spec: Option<Arc<ActiveSpec>>,
    /// Failure of the last check; the current file is not active then.
    pub problem: Option<Arc<Failure>>,
    /// Failure of the last run, if the daemon is going to retry the run.
    pub retried_failure: Option<Arc<Failure>>,
    /// Reports of the columns.
    pub columns: Arc<Vec<ColumnReport>>,
    /// Plan of the missing cells with their cost, if the spec waits for approval.
    pub plan: Option<Arc<Json>>,
    /// Thresholds of the calibrated columns, as in the report of the last run.
    pub cascades: Arc<Json>,
    /// Reason why the spec waits for approval.
    pub held: Option<String>,
    /// Time at which the hold ends by itself, RFC 3339.
    pub resumes: Option<String>,
    /// Run in progress.
    pub run: Option<u64>,
    /// Previous run.
    pub last_run: Option<u64>,
    /// Whether a run of the spec has ended since the daemon started.
    pub has_run: bool,
}

/// State of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunState {
    /// In progress.
    Running,
    /// Every cell of the spec was answered, either with a value or with "unknown".
    Complete,
    /// Some cells were not asked for, or their requests failed.
    Incomplete,
    /// Interrupted; all answers are kept.
    Interrupted,
    /// Stopped by a failure.
    Failed,
}

impl RunState {
    /// Returns the name in JSON and on the page.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Complete => "complete",
            Self::Incomplete => "incomplete",
            Self::Interrupted => "interrupted",
            Self::Failed => "failed",
        }
    }
}

/// Cause of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// The daemon started.
    DaemonStart,
    /// The spec changed.
    Spec,
    /// The overrides changed.
    Overrides,
    /// The database or the recordings changed.
    Files,
    /// A user requested a reload.
    Reload,
    /// Requests failed in the previous run.
    Retry,
    /// A new day has a new budget.
    NewDay,
    /// A run of another spec has asked the model, and its answers may apply to this spec, too.
    OtherRun,
    /// A client requested the run.
    Client,
}

impl Cause {
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::DaemonStart => "daemon started",
            Self::Spec => "spec changed",
            Self::Overrides => "overrides changed",
            Self::Files => "data changed",
            Self::Reload => "reload",
            Self::Retry => "retry",
            Self::NewDay => "new day",
            Self::OtherRun => "run of another spec",
            Self::Client => "client",
        }
    }
}

/// Status of a run.
#[derive(Debug, Clone)]
pub struct RunStatus {
    /// Number of the run since the daemon started.
    pub id: u64,
    /// Name of the spec.
    pub spec: String,
    /// Cause of the run.
    pub cause: Cause,
    /// State of the run.
    pub state: RunState,
    /// Start time, RFC 3339.
    pub began: String,
    /// Start time on a monotonic clock.
    pub since: Instant,
    /// Duration in seconds; `None` while the run is in progress.
    pub total_seconds: Option<f64>,
    /// Number of cells to ask for.
    pub cells: u64,
    /// Number of cells that are done.
    pub done: u64,
    /// Usage so far.
    pub usage: Usage,
    /// Budget in USD.
    pub budget: Option<f64>,
    /// Number of requests that failed permanently.
    pub failed: u64,
    /// Error message of the last failed request.
    pub last_error: Option<String>,
    /// Last warning, such as the reason why requests wait.
    pub last_warning: Option<String>,
    /// Failure that ended the run early.
    pub failure: Option<Arc<Failure>>,
    /// Event `done`, as in `hqdl materialize --json`.
    pub report: Option<Arc<Json>>,
}

impl DaemonStatus {
    /// Writes the state of the specs and the runs as metrics.
    pub(super) fn write_metrics(&self, out: &mut MetricsText) {
        let name = "hqdl_cells";
        out.begin_metric(name, "gauge", "Number of cells, by spec, expansion, column and state.");
        for spec in self.specs.values() {
            for column in spec.columns.iter() {
                let labels = format!(
                    "spec=\"{}\",expansion=\"{}\",column=\"{}\"",
                    escape_label(&spec.name),
                    escape_label(&column.expansion),
                    escape_label(&column.column)
                );
                for state in State::ALL {
                    let labels = format!("{labels},state=\"{}\"", state.name());
                    out.write_sample(name, &labels, column.cells.get(state));
                }
                out.write_sample(name, &format!("{labels},state=\"missing\""), column.unasked);
            }
        }
        let mut states: BTreeMap<&str, u64> = BTreeMap::new();
        self.specs.values().for_each(|s| *states.entry(s.state_name()).or_default() += 1);
        out.begin_metric("hqdl_specs", "gauge", "Number of specs, by state.");
        for (state, count) in states {
            out.write_sample("hqdl_specs", &format!("state=\"{state}\""), count);
        }
        let queued = self.queued as f64;
        out.write_metric(
            "hqdl_runs_queued",
            "gauge",
            "Runs waiting for other runs to end.",
            queued,
        );
    }

    /// Returns a spec by name.
    #[must_use]
    pub fn find_spec(&self, name: &str) -> Option<&Arc<SpecStatus>> {
        self.specs.get(name)
    }

    /// Returns a run by number.
    #[must_use]
    pub fn find_run(&self, id: u64) -> Option<&Arc<RunStatus>> {
        self.runs.iter().find(|r| r.id == id)
    }

    /// Returns the JSON of `/v1/status` and `hqdl status --json`.
    #[must_use]
    pub fn to_json(&self) -> Json {
        json!({
            "version": env!("CARGO_PKG_VERSION"), "pid": std::process::id(), "url": self.url,
            "began": self.began, "cache": self.cache, "watched": self.watched, "spend": self.spend,
            "blind": self.watch_error, "queued": self.queued,
            "specs": self.specs.values().map(|s| s.to_json()).collect::<Vec<_>>(),
            "runs": self.runs.iter().take(20).map(|r| r.to_json()).collect::<Vec<_>>(),
        })
    }
}

impl SpecStatus {
    /// Returns the state in one word: `broken`, `running`, `waiting`, `failing`, `complete`,
    /// `incomplete` or `new`.
    #[must_use]
    pub fn state_name(&self) -> &'static str {
        match self {
            Self { problem: Some(_), .. } => "broken",
            Self { run: Some(_), .. } => "running",
            Self { held: Some(_), .. } => "waiting",
            Self { retried_failure: Some(_), .. } => "failing",
            Self { has_run: false, .. } => "new",
            _ if self.count_unasked_cells() == 0
                && self.count_cells().count_failed_cells() == 0 =>
            {
                "complete"
            }
            _ => "incomplete",
        }
    }

    /// Returns the number of cells in each state.
    #[must_use]
    pub fn count_cells(&self) -> Tally {
        let mut all = Tally::default();
        self.columns.iter().for_each(|c| all.merge(&c.cells));
        all
    }

    /// Returns the number of cells that have a value.
    #[must_use]
    pub fn count_cells_with_value(&self) -> u64 {
        let cells = self.count_cells();
        State::ALL.iter().filter(|s| s.has_value()).map(|s| cells.get(*s)).sum()
    }

    /// Returns the number of cells that were never asked for.
    #[must_use]
    pub fn count_unasked_cells(&self) -> u64 {
        self.columns.iter().map(|c| c.unasked).sum()
    }

    /// Returns the JSON of `/v1/specs`.
    #[must_use]
    pub fn to_json(&self) -> Json {
        let columns: Vec<Json> = self
            .columns
            .iter()
            .map(|c| {
                json!({
                    "expansion": c.expansion, "column": c.column, "cells": c.cells.to_json(),
                    "cells_unasked": c.unasked, "coverage": compute_coverage(c),
                })
            })
            .collect();
        let active_spec = self.active_spec.as_ref();
        json!({
            "name": self.name, "path": self.path, "state": self.state_name(), "in_force": active_spec.is_some(),
            "problem": self.problem.as_ref().or(self.retried_failure.as_ref()).map(|p| Failure::clone(p).with_request_fields().to_json()),
            "warnings": active_spec.map(|l| l.warnings.to_json()),
            "database": active_spec.map(|l| &l.spec.database),
            "target": active_spec.map(|l| l.spec.target()),
            "model": active_spec.map(|l| &l.spec.model.name),
            "columns": columns, "held": self.held, "resumes": self.resumes, "plan": self.plan, "run": self.run, "last_run": self.last_run,
        })
    }
}

/// Returns the share of a column's cells that have a value.
#[must_use]
pub fn compute_coverage(column: &ColumnReport) -> f64 {
    let all = column.cells.total() + column.unasked;
    let shown: u64 =
        State::ALL.iter().filter(|s| s.has_value()).map(|s| column.cells.get(*s)).sum();
    if all == 0 { 1.0 } else { shown as f64 / all as f64 }
}

impl RunStatus {
    /// Returns the duration in seconds so far.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.total_seconds.unwrap_or_else(|| self.since.elapsed().as_secs_f64())
    }

    /// Returns the JSON of `/v1/runs`.
    #[must_use]
    pub fn to_json(&self) -> Json {
        json!({
            "run": self.id, "spec": self.spec, "cause": self.cause.name(), "state": self.state.name(),
            "began": self.began, "seconds": self.seconds(), "cells": self.cells, "cells_done": self.done,
            "requests": self.usage.requests, "input_tokens": self.usage.input_tokens,
            "output_tokens": self.usage.output_tokens, "cost_usd": self.usage.cost_usd,
            "price_notes": self.usage.price_note().into_iter().collect::<Vec<_>>(),
            "budget_usd": self.budget, "failed_requests": self.failed, "last_error": self.last_error,
            "last_warning": self.last_warning,
            "error": self.failure.as_ref().map(|f| Failure::clone(f).with_request_fields().to_json()), "report": self.report,
        })
    }
}
