//! Implements `suggest` and the tools that change data: they fill tables, override cells and answer
//! audits.

use std::sync::Arc;

use serde_json::{Value as Json, json};

use super::context::{ServerContext, WorkControl};
use crate::approval::{CellOverride, FillRequest};
use crate::ask::{self, MaxCost, check_cost_is_known};
use crate::audit::sheet::parse_truth;
use crate::audit::{Audit, CellTruth, Evidence, sheet_path};
use crate::database::Database;
use crate::failure::Failure;
use crate::generate::{Event, Listener};
use crate::materialize::{Materializer, Selection};
use crate::model;
use crate::query::connection::guard::GuardedConnection;
use crate::session::{check_override, override_cell};
use crate::spec::Expansion;
use crate::spec::checker::Checker;
use crate::suggest::suggest_columns;

/// Source of an assistant's answers in an audit. The prefix marks them as answers of a model.
const ASSISTANT_SOURCE: &str = "model:assistant";

/// Plan of a run that fills cells.
pub struct FillPlan {
    /// Maximum cost of the run.
    pub max_cost: MaxCost,
    /// The cells to ask for, and the number of requests, tokens and USD.
    pub explained: Json,
}

/// An assistant's answer for a cell of an audit.
pub struct AuditAnswer {
    /// Id of the audit, from the previous call.
    pub audit: String,
    /// Number of the row in the sheet, from 1.
    pub row: usize,
    /// Name of the column.
    pub column: String,
    /// The true value, or `?`.
    pub value: String,
    /// Where the assistant found the value.
    pub note: String,
}

fn to_selection(fill: &FillRequest) -> Selection {
    Selection {
        columns: fill.columns.clone(),
        limit: fill.limit,
        retry_failed: fill.retry_failed,
        ..Selection::default()
    }
}

impl ServerContext {
    /// Computes the cells that a run would ask for, its requests and its maximum cost.
    pub fn plan_fill(
        &self,
        fill: &FillRequest,
        control: &WorkControl,
    ) -> Result<FillPlan, Failure> {
        self.check_expansions()?;
        let selection = to_selection(fill);
        let guard =
            GuardedConnection::open_for_sql(&self.spec.database, None, control.interrupt.clone())?;
        let model = model::connect_for_planning(&self.spec)?;
        let materializer =
            Materializer::new(&self.spec, guard.database(), &self.facts, model, &selection)?;
        let (plan, notes) = materializer.plan_requests()?;
        let max_cost = ask::bound_fill_cost(&self.spec, &plan);
        let mut explained = plan.to_json();
        explained["notes"] = notes.into();
        Ok(FillPlan { max_cost, explained })
    }

    /// Fills cells and publishes the tables. Also returns the cost in USD, including the cost of
    /// requests that were not answered. `limit_usd` is the run's budget; if it is `None`, the
    /// spec's budget applies.
    pub fn run_fill(
        &self,
        fill: &FillRequest,
        limit_usd: Option<f64>,
        control: &WorkControl,
    ) -> (Result<Json, Failure>, f64) {
        let mut cost_usd = 0.0;
        let result = self.fill_within_limit(fill, limit_usd, control, &mut cost_usd);
        (result, cost_usd)
    }

    fn fill_within_limit(
        &self,
        fill: &FillRequest,
        limit_usd: Option<f64>,
        control: &WorkControl,
        cost_usd: &mut f64,
    ) -> Result<Json, Failure> {
        let mut spec = self.spec.clone();
        if limit_usd.is_some() {
            spec.limits.budget_usd = limit_usd;
            if check_cost_is_known(&spec).is_err() {
                spec.limits.budget_tokens = Some(0);
            }
        }
        let selection = to_selection(fill);
        let guard =
            GuardedConnection::open_for_sql(&spec.database, None, control.interrupt.clone())?;
        let model = self.model.clone()?;
        let materializer =
            Materializer::new(&spec, guard.database(), &self.facts, model, &selection)?;
        // Once the run has sent requests, an interrupt must not prevent it from publishing the
        // answers.
        let (listener, release) = (Arc::clone(&control.listener), guard.disarm_handle());
        let listener: Listener = Arc::new(move |event: &Event| {
            if matches!(event, Event::Begin { .. }) {
                release();
            }
            listener(event);
        });
        let mut report = materializer.materialize("mcp", &listener, &control.interrupt)?;
        *cost_usd = report.usage.cost_usd + report.in_doubt.max_spent.usd;
        let failure = Failure::take_from_report(&mut report);
        let status = match &failure {
            None if report.is_fulfilled(&selection, false) => "complete",
            _ => "incomplete",
        };
        Ok(json!({
            "status": status, "message": failure.map(|failure| failure.to_text()),
            "published": report.published, "report": report.to_json(0.0),
        }))
    }

    /// Checks an override that an assistant proposes.
    pub fn check_override(&self, cell: &CellOverride) -> Result<(), Failure> {
        self.check_expansions()?;
        let database = Database::open(&self.spec.database)?;
        let target = (cell.table.as_str(), &*cell.key, cell.column.as_str(), cell.value.as_str());
        Ok(check_override(&self.spec, &database, target)?)
    }

    /// Writes an approved override. The note names the assistant.
    pub fn apply_override(&self, cell: &CellOverride, client: &str) -> Result<Json, Failure> {
        let _edit = self.edits.blocking_lock();
        let database = Database::open(&self.spec.database)?;
        let target = (cell.table.as_str(), &*cell.key, cell.column.as_str(), cell.value.as_str());
        let note = format!("assistant {client}: {}", cell.note);
        let note = note.trim_end_matches([':', ' ']);
        override_cell(&self.spec, &database, target, note, false)?;
        Ok(json!({
            "status": "complete", "file": self.spec.overrides_path(),
            "message": "the next run of `hqdl materialize`, or of `materialize`, publishes it",
        }))
    }

    /// Returns the columns that the questions of earlier queries suggest for the spec.
    pub fn suggest(&self) -> Result<Json, Failure> {
        self.check_expansions()?;
        let database = Database::open(&self.spec.database)?;
        let mut suggested = suggest_columns(&self.facts, Some((&self.spec, &database)))?;
        suggested.retain_matches();
        Ok(suggested.to_json(None))
    }

    /// Returns the first sampled cell of an audit for which the sheet has no value, neither from a
    /// person nor from a model.
    pub fn find_audit_cell(&self, table: Option<&str>) -> Result<Json, Failure> {
        let expansion = self.find_audited_expansion(table)?;
        let audit = Audit::read(&self.spec, expansion)?;
        let columns = audit.draw.find_expansion_columns(expansion);
        let sample = audit.draw.sample().iter().enumerate();
        let mut open = sample.flat_map(|(n, row)| columns.iter().map(move |(c, _)| (n, *row, *c)));
        let next = open.find(|(_, row, column)| audit.sheet.truth(*row, *column).is_none());
        let left = open.filter(|(_, row, c)| audit.sheet.truth(*row, *c).is_none()).count();
        let Some((n, row, c)) = next else {
            return Ok(json!({ "status": "complete", "audit": audit.draw.id, "left": 0 }));
        };
        let column = &expansion.columns[c];
        let key = expansion.key.names().iter().zip(&audit.draw.frame[row].key);
        let key: serde_json::Map<String, Json> =
            key.map(|(name, value)| (name.clone(), value.to_json())).collect();
        let allowed = column.values.as_ref().map(|list| &list.values);
        Ok(json!({
            "status": "open", "audit": audit.draw.id, "table": expansion.name, "row": n + 1,
            "key": key, "column": column.name, "type": column.kind.name(), "about": column.about,
            "values": allowed, "left": left + 1,
        }))
    }

    /// Stores an assistant's answer in an audit, marked as a model's answer. Never replaces a truth
    /// that a person entered.
    pub fn record_audit_answer(
        &self,
        table: Option<&str>,
        answer: &AuditAnswer,
        client: &str,
    ) -> Result<Json, Failure> {
        let _edit = self.edits.blocking_lock();
        let expansion = self.find_audited_expansion(table)?;
        let mut audit = Audit::read(&self.spec, expansion)?;
        let wrong = |message: String| Failure::wrong_input(message, "call `audit_next`");
        if audit.draw.id != answer.audit {
            return Err(wrong(format!("the audit is {}, not the one you name", audit.draw.id)));
        }
        let row = answer.row.checked_sub(1).and_then(|n| audit.draw.sample().get(n)).copied();
        let columns = audit.draw.find_expansion_columns(expansion);
        let name = |c: &usize| &expansion.columns[*c].name;
        let column = columns.iter().map(|(c, _)| *c).find(|c| *name(c) == answer.column);
        let (Some(row), Some(column)) = (row, column) else {
            return Err(wrong("the audit has no such cell".to_owned()));
        };
        let before = audit.sheet.truth(row, column);
        if before.is_some_and(|truth| truth.evidence() == Evidence::Truth) {
            return Err(wrong("a person has already entered the truth of this cell".to_owned()));
        }
        let value =
            parse_truth(&Checker::new(&expansion.columns[column]), &answer.column, &answer.value)
                .map_err(|message| Failure::wrong_input(message, ""))?;
        let source = format!("{ASSISTANT_SOURCE} {client}");
        let truth = CellTruth { value, source, note: answer.note.clone() };
        audit.record_truth(&self.spec, expansion, (row, column), truth)?;
        self.find_audit_cell(Some(&expansion.name))
    }

    fn check_expansions(&self) -> Result<(), Failure> {
        if self.spec.expansions.is_empty() {
            return Err(Failure::wrong_input(
                "the server has no spec with an expansion",
                "ask the user to start it with a spec",
            ));
        }
        Ok(())
    }

    /// Returns the audited expansion with this name. Without a name, there must be only one audited
    /// expansion.
    fn find_audited_expansion(&self, table: Option<&str>) -> Result<&Expansion, Failure> {
        self.check_expansions()?;
        let is_named = |e: &&Expansion| table.is_none_or(|t| e.name.eq_ignore_ascii_case(t));
        let has_audit = |e: &&Expansion| sheet_path(&self.spec, e).exists();
        let found: Vec<&Expansion> =
            self.spec.expansions.iter().filter(is_named).filter(has_audit).collect();
        match found.as_slice() {
            [only] => Ok(only),
            [] => Err(Failure::wrong_input(
                "there is no audit",
                "ask the user to draw a sample with `hqdl audit SPEC`",
            )),
            _ => Err(Failure::wrong_input("there are several audits", "pass `table`")),
        }
    }
}
