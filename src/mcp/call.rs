//! Runs a tool call: parses its arguments, asks for approval, and does the work on another thread.

use std::sync::Arc;
use std::time::Duration;

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, JsonObject, ProgressNotificationParam,
};
use serde_json::{Value as Json, json};
use tokio::sync::watch;

use super::actions::AuditAnswer;
use super::approval::{Decision, Grant, PendingQuestions, authorize, find_rejection};
use super::connection::{PlanClient, ToolCall, wait_for_cancellation};
use super::context::{PagePosition, ServerContext, WorkControl, WritingAllowance, WrittenQuery};
use super::host::{McpHost, WorkPermit};
use super::tools::{
    AuditAnswerArguments, AuditNextArguments, DescribeArguments, MaterializeArguments, NoArguments,
    OverrideArguments, PlanArguments, QueryArguments, QuestionArguments, SearchArguments,
    WhyArguments,
};
use crate::approval::{CellOverride, FillRequest, PlanRecord, PlannedQuery, PlannedWork};
use crate::ask::{AskPlan, MaxCost};
use crate::failure::Failure;
use crate::generate::{Event, Listener};
use crate::spec::Spec;

/// A plan, and its record for a person's approval.
type RecordedPlan = (AskPlan, PlanRecord);

/// Minimum interval between progress notifications.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);

/// A tool call in progress.
pub struct RunningCall<'c, H> {
    pub host: &'c H,
    pub pending: &'c PendingQuestions,
    pub context: Arc<ServerContext>,
    pub params: &'c CallToolRequestParams,
    pub call: &'c ToolCall,
    /// Client that the plans of the call are bound to.
    pub client: PlanClient,
}

/// Interrupts the work when the call ends or is cancelled.
struct InterruptGuard(watch::Sender<bool>);

impl Drop for InterruptGuard {
    fn drop(&mut self) {
        self.0.send_replace(true);
    }
}

impl<H: McpHost> RunningCall<'_, H> {
    /// Runs the tool that the client named, and returns its result.
    pub async fn run_tool(&self) -> Result<CallToolResponse, Failure> {
        let arguments = self.params.arguments.clone().unwrap_or_default();
        let result = match &*self.params.name {
            "describe" => {
                let DescribeArguments { tables } = parse_arguments(arguments)?;
                self.run_blocking(move |context, _| context.describe_database(&tables)).await?
            }
            "search_values" => {
                let SearchArguments { text } = parse_arguments(arguments)?;
                self.run_blocking(move |context, _| context.search_values(&text)).await?
            }
            "why" => {
                let WhyArguments { table, key, column } = parse_arguments(arguments)?;
                let find = move |context: &ServerContext, _| {
                    context.find_provenance(&table, &key, &column)
                };
                self.run_blocking(find).await?
            }
            "suggest" => {
                let NoArguments {} = parse_arguments(arguments)?;
                self.run_blocking(|context, _| context.suggest()).await?
            }
            "audit_next" => {
                let AuditNextArguments { table } = parse_arguments(arguments)?;
                let find =
                    move |context: &ServerContext, _| context.find_audit_cell(table.as_deref());
                self.run_blocking(find).await?
            }
            "audit_answer" => self.answer_audit(parse_arguments(arguments)?).await?,
            "override" => return self.override_cell(parse_arguments(arguments)?).await,
            "materialize" => return self.materialize(parse_arguments(arguments)?).await,
            "plan" => return self.plan(parse_arguments(arguments)?).await,
            "query" => return self.query(parse_arguments(arguments)?).await,
            _ => {
                let QuestionArguments { question, limit } = parse_arguments(arguments)?;
                return self.answer(&question, limit).await;
            }
        };
        Ok(CallToolResult::structured(result).into())
    }

    /// Runs blocking work in a thread. The work is interrupted if the client cancels the call or
    /// disconnects, or if the process ends.
    async fn run_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&ServerContext, WorkControl) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        self.run_with_permit(self.host.begin_work().await?, work).await
    }

    /// Runs approved work, and replaces the reserved cost with its actual cost.
    async fn run_granted_work<T: Send + 'static>(
        &self,
        grant: Grant,
        work: impl FnOnce(&ServerContext, WorkControl) -> (Result<T, Failure>, f64) + Send + 'static,
    ) -> Result<T, Failure> {
        let permit = match self.host.begin_work().await {
            Ok(permit) => permit,
            Err(failure) => {
                grant.settle(0.0);
                return Err(failure);
            }
        };
        let work = move |context: &ServerContext, control| Ok(work(context, control));
        let (result, cost_usd) = self.run_with_permit(permit, work).await?;
        grant.settle(cost_usd);
        result
    }

    async fn run_with_permit<T: Send + 'static>(
        &self,
        permit: WorkPermit,
        work: impl FnOnce(&ServerContext, WorkControl) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let bug = || Failure::wrong_input("this is a bug in hqdl", "please report this query");
        let (send, interrupt) = watch::channel(false);
        let guard = InterruptGuard(send);
        let WorkPermit { guards, mut ending } = permit;
        let context = Arc::clone(&self.context);
        let (mut progress, listener) = ProgressReporter::new();
        let mut task = tokio::task::spawn_blocking(move || {
            let done = work(&context, WorkControl { interrupt, listener });
            drop(guards);
            done
        });
        let ended = tokio::select! {
            ended = &mut task => Some(ended),
            () = progress.report_changes(self.call) => None,
            () = wait_for_cancellation(self.call) => None,
            () = async { drop(ending.wait_for(|ending| *ending).await) } => None,
        };
        let ended = match ended {
            Some(ended) => ended,
            None => {
                drop(guard);
                task.await
            }
        };
        progress.report_progress(self.call).await;
        ended.map_err(|_| bug())?
    }

    /// Checks a query. Returns its plan with the record for its approval.
    async fn plan_sql(&self, query: PlannedQuery) -> Result<RecordedPlan, Failure> {
        let client = self.client.clone();
        let plan = move |context: &ServerContext, control| {
            let plan = context.plan_sql(&query, control)?;
            let record = context.build_plan_record(&plan, query.interval, client)?;
            Ok((plan, record))
        };
        self.run_blocking(plan).await
    }

    /// Returns the record of work, for its approval.
    async fn build_record(&self, work: PlannedWork, cost: MaxCost) -> Result<PlanRecord, Failure> {
        let client = self.client.clone();
        self.run_blocking(move |context, _| context.build_record(work, &cost, Vec::new(), client))
            .await
    }

    async fn plan(&self, arguments: PlanArguments) -> Result<CallToolResponse, Failure> {
        let (plan, record) = match arguments {
            PlanArguments { sql: Some(sql), question: None, dialect, interval } => {
                self.plan_sql(PlannedQuery { sql, dialect, interval }).await?
            }
            PlanArguments { sql: None, question: Some(question), interval: None, .. } => {
                match self.write_query(&question).await? {
                    Ok(plan) => plan,
                    Err(response) => return Ok(response),
                }
            }
            PlanArguments { sql: None, interval: Some(_), .. } => {
                return Err(Failure::wrong_input(
                    "`interval` is given without `sql`",
                    "pass the query in `sql`",
                ));
            }
            PlanArguments { sql, .. } => {
                let message = match sql {
                    Some(_) => "both `sql` and `question` are given",
                    None => "neither `sql` nor `question` is given",
                };
                return Err(Failure::wrong_input(message, "pass one of them"));
            }
        };
        if let Some(rejected) = find_rejection(&self.context, &record)? {
            return Ok(CallToolResult::structured_error(rejected).into());
        }
        let save = move |context: &ServerContext, _| context.save_plan(&plan, &record);
        Ok(CallToolResult::structured(self.run_blocking(save).await?).into())
    }

    async fn query(&self, arguments: QueryArguments) -> Result<CallToolResponse, Failure> {
        let QueryArguments { sql, plan_id, dialect, limit, cursor, interval } = arguments;
        let query = match (sql, plan_id) {
            (Some(sql), None) => PlannedQuery { sql, dialect, interval },
            (sql, Some(id)) => {
                let planned = match self.load_plan(&id)?.work {
                    PlannedWork::Query(query) => query,
                    PlannedWork::Question { text } => return self.answer(&text, limit).await,
                    PlannedWork::Materialize(_) | PlannedWork::Override(_) => {
                        return Err(Failure::wrong_input(
                            format!("the plan `{id}` is not one of a query"),
                            "pass it to the tool that made it, or call `plan` with the query",
                        ));
                    }
                };
                let is_other = sql.is_some_and(|sql| sql != planned.sql);
                if is_other || interval.is_some_and(|asked| Some(asked) != planned.interval) {
                    return Err(Failure::wrong_input(
                        "`sql` or `interval` is not that of the plan",
                        "pass only `plan_id`",
                    ));
                }
                planned
            }
            (None, None) => {
                return Err(Failure::wrong_input(
                    "neither `sql` nor `plan_id` is given",
                    "pass the query in `sql`, or the id of its plan in `plan_id`",
                ));
            }
        };
        let position = PagePosition::parse(&query.sql, limit, cursor.as_deref())?;
        if let Some(percent) = query.interval {
            let run = move |context: &ServerContext, control| {
                let query = (query.sql.as_str(), query.dialect);
                context.run_with_intervals(query, percent, position, control)
            };
            return Ok(CallToolResult::structured(self.run_blocking(run).await?).into());
        }
        self.run_approved_plan(self.plan_sql(query).await?, position).await
    }

    fn load_plan(&self, id: &str) -> Result<PlanRecord, Failure> {
        let stored = self.context.plans.load_plan(id);
        stored.map_err(|e| Failure::wrong_input(e.to_string(), "call `plan` first"))
    }

    async fn answer(
        &self,
        question: &str,
        limit: Option<usize>,
    ) -> Result<CallToolResponse, Failure> {
        match self.write_query(question).await? {
            Ok(plan) => {
                let position = PagePosition::parse(&plan.0.sql, limit, None)?;
                self.run_approved_plan(plan, position).await
            }
            Err(response) => Ok(response),
        }
    }

    /// Runs a plan. If it needs requests, its cost must be approved first.
    async fn run_approved_plan(
        &self,
        (plan, record): RecordedPlan,
        position: PagePosition,
    ) -> Result<CallToolResponse, Failure> {
        let is_free = matches!(plan.max_cost, MaxCost::Nothing) && !self.context.is_replay();
        let plan = Arc::new(plan);
        // Reading stored answers needs no approval, except on a database server.
        if !self.context.is_on_server() {
            let plan = Arc::clone(&plan);
            let run = move |context: &ServerContext, control| {
                context.run_on_stored_answers(&plan, position, control)
            };
            if let Some(json) = self.run_blocking(run).await? {
                return Ok(CallToolResult::structured(json).into());
            }
            if is_free {
                return Ok(to_error_result(
                    "the query needs answers that its plan did not expect: plan it again",
                ));
            }
        }
        let grant = match self.authorize(&record).await? {
            Ok(grant) => grant,
            Err(response) => return Ok(response),
        };
        let limit = grant.limit_usd;
        let run = move |context: &ServerContext, control| {
            context.run_plan(&plan, limit, position, control)
        };
        Ok(CallToolResult::structured(self.run_granted_work(grant, run).await?).into())
    }

    /// Plans a run, or runs an approved plan.
    async fn materialize(
        &self,
        arguments: MaterializeArguments,
    ) -> Result<CallToolResponse, Failure> {
        let MaterializeArguments { plan_id, columns, limit, retry_failed } = arguments;
        let asked = FillRequest { columns, limit, retry_failed };
        let fill = match &plan_id {
            None => asked,
            Some(_) if asked != FillRequest::default() => {
                return Err(Failure::wrong_input(
                    "`plan_id` is given together with other arguments",
                    "pass only `plan_id`, or no `plan_id`",
                ));
            }
            Some(id) => match self.load_plan(id)?.work {
                PlannedWork::Materialize(fill) => fill,
                _ => {
                    return Err(Failure::wrong_input(
                        format!("the plan `{id}` is not one of a run"),
                        "pass it to the tool that made it, or call `materialize` without `plan_id`",
                    ));
                }
            },
        };
        let planned = fill.clone();
        let plan = self
            .run_blocking(move |context, control| context.plan_fill(&planned, &control))
            .await?;
        let work = PlannedWork::Materialize(fill.clone());
        let record = self.build_record(work, plan.max_cost).await?;
        if plan_id.is_none() {
            if let Some(rejected) = find_rejection(&self.context, &record)? {
                return Ok(CallToolResult::structured_error(rejected).into());
            }
            let requested =
                self.context.plans.request_approval(&record, jiff::Timestamp::now().as_second());
            requested.map_err(|e| Failure::wrong_input(e.to_string(), "pass another --cache"))?;
            let json = json!({
                "status": "planned", "plan_id": record.id(), "max_cost_usd": record.max_usd,
                "needs_approval": true, "cost": record.describe_max_cost(),
                "explained": plan.explained,
            });
            return Ok(CallToolResult::structured(json).into());
        }
        let grant = match self.authorize(&record).await? {
            Ok(grant) => grant,
            Err(response) => return Ok(response),
        };
        let budget = grant.limit_usd.filter(|_| !self.context.is_replay());
        let run = move |context: &ServerContext, control| context.run_fill(&fill, budget, &control);
        Ok(CallToolResult::structured(self.run_granted_work(grant, run).await?).into())
    }

    /// Plans an override, or applies one that was approved outside the assistant.
    async fn override_cell(
        &self,
        arguments: OverrideArguments,
    ) -> Result<CallToolResponse, Failure> {
        let OverrideArguments { plan_id, table, key, column, value, note } = arguments;
        let cell = match plan_id {
            None if table.is_empty() => {
                return Err(Failure::wrong_input(
                    "neither `table` nor `plan_id` is given",
                    "pass `table`, `key`, `column` and `value`, or the id of a plan in `plan_id`",
                ));
            }
            None => {
                let cell = CellOverride { table, key, column, value, note };
                reject_missing_fields(&self.context.spec, &cell)?;
                cell
            }
            Some(_) if !table.is_empty() => {
                return Err(Failure::wrong_input(
                    "`plan_id` is given together with other arguments",
                    "pass only `plan_id`, or no `plan_id`",
                ));
            }
            Some(id) => match self.load_plan(&id)?.work {
                PlannedWork::Override(cell) => cell,
                _ => {
                    return Err(Failure::wrong_input(
                        format!("the plan `{id}` is not one of an override"),
                        "pass it to the tool that made it, or call `override` without `plan_id`",
                    ));
                }
            },
        };
        let checked = cell.clone();
        self.run_blocking(move |context, _| context.check_override(&checked)).await?;
        let client = self.client.name.clone();
        let record =
            self.build_record(PlannedWork::Override(cell.clone()), MaxCost::Nothing).await?;
        let grant = match self.authorize(&record).await? {
            Ok(grant) => grant,
            Err(response) => return Ok(response),
        };
        let apply = move |context: &ServerContext, _| context.apply_override(&cell, &client);
        let applied = self.run_blocking(apply).await?;
        grant.settle(0.0);
        Ok(CallToolResult::structured(applied).into())
    }

    async fn answer_audit(&self, arguments: AuditAnswerArguments) -> Result<Json, Failure> {
        let AuditAnswerArguments { table, audit, row, column, value, note } = arguments;
        let answer = AuditAnswer { audit, row, column, value, note };
        let client = self.client.name.clone();
        let record = move |context: &ServerContext, _| {
            context.record_audit_answer(table.as_deref(), &answer, &client)
        };
        self.run_blocking(record).await
    }

    /// Decides whether a plan may run. The inner error is the result of the tool.
    async fn authorize(
        &self,
        record: &PlanRecord,
    ) -> Result<Result<Grant, CallToolResponse>, Failure> {
        let decision = authorize(&self.context, self.pending, record, self.params, self.call);
        Ok(match decision.await? {
            Decision::Granted(grant) => Ok(grant),
            Decision::Refused(json) => Err(CallToolResult::structured_error(json).into()),
            Decision::AskClient(question) => Err(question.into()),
        })
    }

    /// Finds or writes the query for a question. The inner error is the result of the tool.
    async fn write_query(
        &self,
        question: &str,
    ) -> Result<Result<RecordedPlan, CallToolResponse>, Failure> {
        let text = question.to_owned();
        let stored = self.run_blocking(move |context, control| {
            context.write_query(&text, WritingAllowance::Nothing, control).0
        });
        let limit = match stored.await? {
            WrittenQuery::Sql(plan) => return self.replan(*plan).await.map(Ok),
            WrittenQuery::Failed(reason) => return Ok(Err(to_error_result(&reason))),
            WrittenQuery::Costs(limit) => limit,
        };
        let (text, client) = (question.to_owned(), self.client.clone());
        let record =
            move |context: &ServerContext, _| context.build_question_record(&text, limit, client);
        let grant = match self.authorize(&self.run_blocking(record).await?).await? {
            Ok(grant) => grant,
            Err(response) => return Ok(Err(response)),
        };
        let question = question.to_owned();
        let written = self.run_granted_work(grant, move |context, control| {
            context.write_query(&question, WritingAllowance::Limit, control)
        });
        match written.await? {
            WrittenQuery::Sql(plan) => self.replan(*plan).await.map(Ok),
            WrittenQuery::Failed(reason) => Ok(Err(to_error_result(&reason))),
            WrittenQuery::Costs(_) => Ok(Err(to_error_result("the model's price is not known"))),
        }
    }

    /// Plans a query that the model wrote in the same way as a query from the assistant, so that
    /// both have the same cost.
    async fn replan(&self, plan: AskPlan) -> Result<RecordedPlan, Failure> {
        let AskPlan { sql, dialect, assumptions, .. } = plan;
        let query = PlannedQuery { sql, dialect, interval: None };
        let (planned, record) = self.plan_sql(query).await?;
        Ok((AskPlan { assumptions, ..planned }, record))
    }
}

/// Progress of a call so far.
#[derive(Default)]
struct CallProgress {
    /// Number of answered cells.
    done: u64,
    /// Number of cells to answer.
    all: u64,
    /// Last warning, for example the reason for a long wait; `None` again once a later cell is
    /// answered.
    warning: Option<String>,
    /// Number of warnings.
    warnings: u32,
}

/// Progress notifications of a call.
struct ProgressReporter {
    progress: watch::Receiver<CallProgress>,
    /// Progress of the last notification; `None` before the first one.
    sent: Option<f64>,
}

impl ProgressReporter {
    /// Returns a reporter, and the listener that updates the progress.
    fn new() -> (Self, Listener) {
        let (send, progress) = watch::channel(CallProgress::default());
        let listener = move |event: &Event| match event {
            Event::Begin { cells, .. } => send.send_modify(|progress| progress.all += cells),
            Event::Stored { cells, .. } => send.send_modify(|progress| {
                progress.done += cells.total();
                progress.warning = None;
            }),
            Event::Warning(message) => send.send_modify(|progress| {
                progress.warning = Some(message.clone());
                progress.warnings += 1;
            }),
            _ => {}
        };
        (Self { progress, sent: None }, Arc::new(listener))
    }

    /// Sends a notification each time the progress changes. Never returns.
    async fn report_changes(&mut self, call: &ToolCall) {
        while self.progress.changed().await.is_ok() {
            self.report_progress(call).await;
            tokio::time::sleep(PROGRESS_INTERVAL).await;
        }
        std::future::pending::<()>().await;
    }

    /// Sends a notification if the client has asked for progress, and cells were answered or a
    /// warning was added.
    async fn report_progress(&mut self, call: &ToolCall) {
        let Some(token) = call.meta.get_progress_token() else { return };
        let notification = {
            let progress = self.progress.borrow_and_update();
            let CallProgress { done, all, ref warning, warnings } = *progress;
            // The protocol requires that each notification has a higher progress than the last.
            let position = match warning {
                Some(_) => done as f64 + 1.0 - 1.0 / f64::from(warnings + 1),
                None => done as f64,
            };
            if all == 0 || self.sent.is_some_and(|sent| position <= sent) {
                return;
            }
            self.sent = Some(position);
            // A warning after the last answer counts as a further step.
            let all = all.max(position.ceil() as u64);
            let message = match warning {
                Some(warning) => format!("{done} of {all} cells; {warning}"),
                None => format!("{done} of {all} cells"),
            };
            ProgressNotificationParam::new(token.clone(), position)
                .with_total(all as f64)
                .with_message(message)
        };
        // If the client does not read its notifications, they are lost.
        let _ = call.peer.notify_progress(notification).await;
    }
}

/// Returns an error that names the missing fields of an override.
fn reject_missing_fields(spec: &Spec, cell: &CellOverride) -> Result<(), Failure> {
    let fields = [
        ("`key`", cell.key.is_empty()),
        ("`column`", cell.column.is_empty()),
        ("`value`", cell.value.is_empty()),
    ];
    let missing: Vec<&str> =
        fields.into_iter().filter(|(_, is_missing)| *is_missing).map(|(name, _)| name).collect();
    let message = match missing.as_slice() {
        [] => return Ok(()),
        [one] => format!("{one} is missing"),
        [all @ .., last] => format!("{} and {last} are missing", all.join(", ")),
    };
    let expansion = spec.expansions.iter().find(|e| e.name.eq_ignore_ascii_case(&cell.table));
    let known = expansion.map_or_else(String::new, |expansion| {
        let columns: Vec<&str> = expansion.columns.iter().map(|c| c.name.as_str()).collect();
        format!(
            "; the key of `{}` is: {}; its columns are: {}",
            expansion.name,
            expansion.key.names().join(", "),
            columns.join(", ")
        )
    });
    Err(Failure::wrong_input(message, format!("pass `key`, `column` and `value`{known}")))
}

fn to_error_result(reason: &str) -> CallToolResponse {
    CallToolResult::structured_error(json!({ "status": "failed", "message": reason })).into()
}

fn parse_arguments<T: for<'de> serde::Deserialize<'de>>(object: JsonObject) -> Result<T, Failure> {
    let text = Json::Object(object).to_string();
    crate::format::parse_json_object(text.as_bytes()).map_err(|reason| {
        Failure::wrong_input(
            format!("the arguments are wrong: {reason}"),
            "the tool's input schema lists its arguments",
        )
    })
}
