//! What the daemon says of itself: brought up to date by the loop after each event,
//! read by everyone, changed by nobody else.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value as Json, json};
use tokio::time::Instant;

use super::loaded::ActiveSpec;
use crate::cell::{State, Tally};
use crate::failure::Failure;
use crate::materialize::ColumnReport;
use crate::usage::Usage;

/// The daemon as it stands.
#[derive(Clone, Default)]
pub struct DaemonStatus {
    /// Where it listens.
    pub url: String,
    /// When it began, RFC 3339.
    pub began: String,
    /// The directory of its facts.
    pub cache: String,
    /// The directory of its specs.
    pub watched: String,
    /// Whether it asks by itself.
    pub spend: bool,
    /// Why it does not see all changes.
    pub blind: Option<String>,
    /// Its specs, by name.
    pub specs: BTreeMap<String, Arc<SpecStatus>>,
    /// Its last runs, the newest first.
    pub runs: Vec<Arc<RunStatus>>,
    /// Runs that wait for others to end.
    pub queued: usize,
}

/// A spec as it stands.
#[derive(Clone, Default)]
pub struct SpecStatus {
    /// Its name: the file's, without `.toml`.
    pub name: String,
    /// Its file.
    pub path: String,
    /// The spec in force: the last that was good.
    pub(super) loaded: Option<Arc<ActiveSpec>>,
    /// Why the file as it is now is not in force.
    pub problem: Option<Arc<Failure>>,
    /// Why its last run failed; it is tried again in a while.
    pub trouble: Option<Arc<Failure>>,
    /// How its columns stand.
    pub columns: Arc<Vec<ColumnReport>>,
    /// What would be asked, and its price, when it waits for a go.
    pub plan: Option<Arc<Json>>,
    /// Why it waits for a go.
    pub held: Option<String>,
    /// When it goes on by itself all the same, RFC 3339.
    pub resumes: Option<String>,
    /// The run under way.
    pub run: Option<u64>,
    /// The run before.
    pub last: Option<u64>,
    /// Whether it has been looked at since the daemon began.
    pub looked: bool,
}

/// How a run stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunState {
    /// Under way.
    Running,
    /// Every cell has a value.
    Complete,
    /// Some cells have none.
    Incomplete,
    /// Ended before its end; everything answered is kept.
    Interrupted,
    /// Stopped by what its failure says.
    Failed,
}

impl RunState {
    /// The name in JSON and on the page.
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

/// Why there is a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// The daemon began.
    Begin,
    /// The spec changed.
    Spec,
    /// What people say of its cells changed.
    Overrides,
    /// Its database or recordings changed.
    Files,
    /// Everything was read again, since somebody said so.
    Reload,
    /// Requests had failed.
    Retry,
    /// The budget of another day is there.
    Day,
    /// A client said so.
    Client,
}

impl Cause {
    /// The name in JSON and on the page.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Begin => "daemon began",
            Self::Spec => "spec changed",
            Self::Overrides => "overrides changed",
            Self::Files => "data changed",
            Self::Reload => "reload",
            Self::Retry => "retry",
            Self::Day => "new day",
            Self::Client => "client",
        }
    }
}

/// A run.
#[derive(Debug, Clone)]
pub struct RunStatus {
    /// Its number since the daemon began.
    pub id: u64,
    /// The spec's name.
    pub spec: String,
    /// Why there is one.
    pub cause: Cause,
    /// How it stands.
    pub state: RunState,
    /// When it began, RFC 3339.
    pub began: String,
    /// The same, by a clock that nobody sets.
    pub since: Instant,
    /// How long it took; `None` while it goes on.
    pub took: Option<f64>,
    /// Cells to ask for.
    pub cells: u64,
    /// Those that have ended.
    pub done: u64,
    /// What was used so far.
    pub usage: Usage,
    /// USD that it may spend.
    pub budget: Option<f64>,
    /// Requests that failed for good.
    pub failed: u64,
    /// What the last of them said.
    pub last_error: Option<String>,
    /// What ended it before its end.
    pub failure: Option<Arc<Failure>>,
    /// The event `done`, as `hqdl materialize --json` has it.
    pub report: Option<Arc<Json>>,
}

impl DaemonStatus {
    /// A spec, by name.
    #[must_use]
    pub fn spec(&self, name: &str) -> Option<&Arc<SpecStatus>> {
        self.specs.get(name)
    }

    /// A run, by number.
    #[must_use]
    pub fn run(&self, id: u64) -> Option<&Arc<RunStatus>> {
        self.runs.iter().find(|r| r.id == id)
    }

    /// All of it: `/v1/status`, and `hqdl status --json`.
    #[must_use]
    pub fn to_json(&self) -> Json {
        json!({
            "version": env!("CARGO_PKG_VERSION"), "pid": std::process::id(), "url": self.url,
            "began": self.began, "cache": self.cache, "watched": self.watched, "spend": self.spend,
            "blind": self.blind, "queued": self.queued,
            "specs": self.specs.values().map(|s| s.to_json()).collect::<Vec<_>>(),
            "runs": self.runs.iter().take(20).map(|r| r.to_json()).collect::<Vec<_>>(),
        })
    }
}

impl SpecStatus {
    /// In a word: `broken`, `running`, `waiting`, `failing`, `complete`, `incomplete`
    /// or `new`.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self { problem: Some(_), .. } => "broken",
            Self { run: Some(_), .. } => "running",
            Self { held: Some(_), .. } => "waiting",
            Self { trouble: Some(_), .. } => "failing",
            Self { looked: false, .. } => "new",
            _ if self.unasked() == 0 && self.cells().failed() == 0 => "complete",
            _ => "incomplete",
        }
    }

    /// All cells by state.
    #[must_use]
    pub fn cells(&self) -> Tally {
        let mut all = Tally::default();
        self.columns.iter().for_each(|c| all.merge(&c.cells));
        all
    }

    /// Cells that nobody has asked for.
    #[must_use]
    pub fn unasked(&self) -> u64 {
        self.columns.iter().map(|c| c.unasked).sum()
    }

    /// As `/v1/specs` shows it.
    #[must_use]
    pub fn to_json(&self) -> Json {
        let columns: Vec<Json> = self
            .columns
            .iter()
            .map(|c| {
                json!({
                    "expansion": c.expansion, "column": c.column, "cells": c.cells.to_json(),
                    "cells_unasked": c.unasked, "coverage": coverage(c),
                })
            })
            .collect();
        let loaded = self.loaded.as_ref();
        json!({
            "name": self.name, "path": self.path, "state": self.word(), "in_force": loaded.is_some(),
            "problem": self.problem.as_ref().or(self.trouble.as_ref()).map(|p| p.to_json()),
            "warnings": loaded.map(|l| l.warnings.to_json()),
            "database": loaded.map(|l| &l.spec.database),
            "target": loaded.map(|l| l.spec.target()),
            "model": loaded.map(|l| &l.spec.model.name),
            "columns": columns, "held": self.held, "resumes": self.resumes, "plan": self.plan, "run": self.run, "last_run": self.last,
        })
    }
}

/// The share of a column's cells that show a value.
#[must_use]
pub fn coverage(column: &ColumnReport) -> f64 {
    let all = column.cells.total() + column.unasked;
    let shown: u64 = State::ALL.iter().filter(|s| s.shows()).map(|s| column.cells.get(*s)).sum();
    if all == 0 { 1.0 } else { shown as f64 / all as f64 }
}

impl RunStatus {
    /// How long it took, or has taken so far.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.took.unwrap_or_else(|| self.since.elapsed().as_secs_f64())
    }

    /// As `/v1/runs` shows it.
    #[must_use]
    pub fn to_json(&self) -> Json {
        json!({
            "run": self.id, "spec": self.spec, "cause": self.cause.name(), "state": self.state.name(),
            "began": self.began, "seconds": self.seconds(), "cells": self.cells, "cells_done": self.done,
            "requests": self.usage.requests, "input_tokens": self.usage.input_tokens,
            "output_tokens": self.usage.output_tokens, "cost_usd": self.usage.cost_usd,
            "price_notes": self.usage.price_note().into_iter().collect::<Vec<_>>(),
            "budget_usd": self.budget, "failed_requests": self.failed, "last_error": self.last_error,
            "error": self.failure.as_ref().map(|f| f.to_json()), "report": self.report,
        })
    }
}
