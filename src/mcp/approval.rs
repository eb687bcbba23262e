//! Decides whether a plan may run. A plan may run if it costs nothing, if the allowance without
//! approval covers its cost, or if a person has approved it.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rmcp::model::{
    CallToolRequestParams, ElicitRequest, ElicitRequestParams, ElicitResult, ElicitationAction,
    ElicitationSchema, InputRequest, InputRequiredResult, ProtocolVersion,
};
use serde_json::{Value as Json, json};

use super::connection::{ToolCall, wait_for_cancellation};
use super::context::ServerContext;
use crate::approval::{
    APPROVAL_MINUTES, ApprovalError, LimitReached, PlanRecord, PlannedWork, SpendingReservation,
};
use crate::failure::Failure;

/// Maximum size of the question that a client shows, in bytes. A client might truncate a longer
/// question, so a plan with a longer question needs `hqdl approve`.
const MAX_QUESTION_BYTES: usize = 8_000;
/// Maximum number of questions that wait for an answer.
const MAX_PENDING: usize = 1000;
/// Length of a signature, in hexadecimal digits.
const SIGNATURE_LENGTH: usize = 32;
/// Name of the answer's field in an elicitation form.
const APPROVE: &str = "approve";

/// Permission to run a plan.
pub struct Grant {
    /// Maximum cost of the plan in USD; `None` for no limit.
    pub limit_usd: Option<f64>,
    reservation: Option<SpendingReservation>,
}

impl Grant {
    /// Replaces the reserved USD with the actual cost.
    pub fn settle(self, cost_usd: f64) {
        if let Some(reservation) = self.reservation {
            reservation.settle(cost_usd);
        }
    }
}

/// Decision about a plan.
pub enum Decision {
    /// The plan may run.
    Granted(Grant),
    /// The plan may not run; contains the result of the tool.
    Refused(Json),
    /// The client asks the user and calls again.
    AskClient(InputRequiredResult),
}

/// Questions that clients must pass on to their users. Each question is identified by the signed
/// state that the client returns with the answer.
pub struct PendingQuestions {
    /// Secret key for the signatures. It never leaves the process.
    key: [u8; 32],
    signed: AtomicU64,
    asked: Mutex<HashMap<String, (PlanRecord, Instant)>>,
}

impl Default for PendingQuestions {
    fn default() -> Self {
        // The seed of a `RandomState` comes from the operating system.
        let random = RandomState::new();
        let seed: Vec<u8> = (0..4_u8).flat_map(|n| random.hash_one(n).to_le_bytes()).collect();
        let key = blake3::hash(&seed).into();
        Self { key, signed: AtomicU64::default(), asked: Mutex::default() }
    }
}

impl PendingQuestions {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, (PlanRecord, Instant)>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Signs a text together with a number that is used only once, so that a client cannot guess
    /// the result.
    pub fn sign(&self, text: &str) -> String {
        let number = self.signed.fetch_add(1, Ordering::Relaxed);
        let signature = blake3::keyed_hash(&self.key, format!("{number} {text}").as_bytes());
        signature.to_hex()[..SIGNATURE_LENGTH].to_owned()
    }

    /// Returns the plan that the question with this state is about.
    pub fn find_plan(&self, state: &str) -> Option<PlanRecord> {
        Some(self.lock().get(state)?.0.clone())
    }

    /// Adds a question, and returns its state.
    fn add(&self, plan: &PlanRecord) -> String {
        let state = self.sign(&plan.id());
        let mut asked = self.lock();
        asked.retain(|_, (_, asked_at)| asked_at.elapsed() < question_timeout());
        if asked.len() >= MAX_PENDING {
            let oldest = asked.iter().min_by_key(|(_, (_, asked_at))| *asked_at);
            if let Some(state) = oldest.map(|(state, _)| state.clone()) {
                asked.remove(&state);
            }
        }
        asked.insert(state.clone(), (plan.clone(), Instant::now()));
        state
    }

    /// Returns whether the client's answer approves this plan; `None` if the call contains no
    /// answer to a pending question about it. Each question can be answered only once.
    fn take_answer(&self, plan: &PlanRecord, params: &CallToolRequestParams) -> Option<bool> {
        let answers = params.input_responses.as_ref()?;
        let state = params.request_state.as_ref()?;
        let mut pending = self.lock();
        // An answer about another plan must not use up the question.
        pending.get(state).filter(|(asked, _)| asked.id() == plan.id())?;
        let (asked, at) = pending.remove(state)?;
        let answer: ElicitResult = serde_json::from_value(answers.get(APPROVE)?.clone()).ok()?;
        let is_valid = at.elapsed() < question_timeout() && plan.is_covered_by(&asked);
        Some(is_valid && is_accepted(&answer))
    }
}

fn question_timeout() -> Duration {
    Duration::from_secs(APPROVAL_MINUTES as u64 * 60)
}

fn is_accepted(answer: &ElicitResult) -> bool {
    let approves = answer.content.as_ref().is_some_and(|c| c[APPROVE] == true);
    answer.action == ElicitationAction::Accept && approves
}

/// Decides whether a plan may run, and reserves its cost.
pub async fn authorize(
    context: &ServerContext,
    pending: &PendingQuestions,
    plan: &PlanRecord,
    params: &CallToolRequestParams,
    call: &ToolCall,
) -> Result<Decision, Failure> {
    // The allowance must not pay for a plan that the user rejected.
    if let Some(rejected) = find_rejection(context, plan)? {
        return Ok(Decision::Refused(rejected));
    }
    let unlimited = Decision::Granted(Grant { limit_usd: None, reservation: None });
    let is_query = matches!(plan.work, PlannedWork::Query(_));
    let needs_person = plan.work.changes_data() || context.is_on_server() && is_query;
    if context.is_replay() && !needs_person {
        return Ok(unlimited);
    }
    if let (Some(usd), false) = (plan.max_usd, needs_person || context.needs_approval) {
        match context.ledger.reserve(usd, false) {
            Ok(reservation) => return Ok(grant_plan(context, plan, reservation)),
            Err(LimitReached::Unapproved) => {}
            Err(reached @ LimitReached::Total) => {
                return Ok(refuse_plan_over_limit(context, plan, reached));
            }
        }
    }
    let mut problem = None;
    if plan.max_usd.is_none_or(|usd| usd <= context.ledger.remaining_usd()) {
        match context.plans.consume_approval(plan, jiff::Timestamp::now().as_second()) {
            Ok(true) => return Ok(grant_approved_plan(context, plan)),
            Ok(false) => {}
            Err(error @ (ApprovalError::Expired | ApprovalError::Changed)) => {
                problem = Some(error.to_string());
            }
            Err(error) => return Err(Failure::wrong_input(error.to_string(), "")),
        }
    }
    let is_short = describe_question(plan).len() <= MAX_QUESTION_BYTES;
    // Overrides and plans of unknown cost, which `--max-usd` cannot limit, need `hqdl approve`.
    let can_ask = plan.max_usd.is_some() && !matches!(plan.work, PlannedWork::Override(_));
    if can_ask && is_short && supports_elicitation(call) {
        match pending.take_answer(plan, params) {
            Some(true) => return Ok(grant_approved_plan(context, plan)),
            Some(false) => problem = Some("the user did not approve the plan".to_owned()),
            None if uses_input_results(call) => {
                return Ok(Decision::AskClient(build_question(plan, pending.add(plan))));
            }
            None => {
                let asked = call.peer.create_elicitation_with_timeout(
                    build_elicitation(plan),
                    Some(question_timeout()),
                );
                let answer = tokio::select! {
                    answer = asked => answer.ok(),
                    () = wait_for_cancellation(call) => None,
                };
                // The user may have rejected the plan on the page in the meantime.
                if let Some(rejected) = find_rejection(context, plan)? {
                    return Ok(Decision::Refused(rejected));
                }
                if answer.as_ref().is_some_and(is_accepted) {
                    return Ok(grant_approved_plan(context, plan));
                }
                problem = Some("the user did not approve the plan".to_owned());
            }
        }
    }
    let saved = context.plans.request_approval(plan, jiff::Timestamp::now().as_second());
    saved.map_err(|error| Failure::wrong_input(error.to_string(), "pass another --cache"))?;
    Ok(Decision::Refused(build_approval_notice(context, plan, problem)))
}

/// Returns the result of a tool if the user rejected the plan, otherwise `None`.
pub fn find_rejection(context: &ServerContext, plan: &PlanRecord) -> Result<Option<Json>, Failure> {
    match context.plans.check_rejection(plan, jiff::Timestamp::now().as_second()) {
        Ok(()) => Ok(None),
        Err(rejected @ ApprovalError::Rejected) => Ok(Some(json!({
            "status": "rejected", "plan_id": plan.id(),
            "message": format!("{rejected}; ask the user what to change"),
        }))),
        Err(error) => Err(Failure::wrong_input(error.to_string(), "pass another --cache")),
    }
}

fn grant_plan(
    context: &ServerContext,
    plan: &PlanRecord,
    reservation: SpendingReservation,
) -> Decision {
    // The plan no longer needs a decision. A request that cannot be removed does no harm.
    let _ = context.plans.withdraw_request(plan);
    let limit_usd = Some(reservation.usd());
    Decision::Granted(Grant { limit_usd, reservation: Some(reservation) })
}

fn grant_approved_plan(context: &ServerContext, plan: &PlanRecord) -> Decision {
    match plan.max_usd.map(|usd| context.ledger.reserve(usd, true)) {
        None => Decision::Granted(Grant { limit_usd: None, reservation: None }),
        Some(Ok(reservation)) => grant_plan(context, plan, reservation),
        Some(Err(reached)) => refuse_plan_over_limit(context, plan, reached),
    }
}

fn refuse_plan_over_limit(
    context: &ServerContext,
    plan: &PlanRecord,
    reached: LimitReached,
) -> Decision {
    Decision::Refused(json!({
        "status": "limit_reached", "plan_id": plan.id(), "max_cost_usd": plan.max_usd,
        "message": format!("{reached}: {}", context.ledger.describe()),
    }))
}

fn build_approval_notice(
    context: &ServerContext,
    plan: &PlanRecord,
    problem: Option<String>,
) -> Json {
    let id = plan.id();
    let price = plan.describe_max_cost();
    let (what, tool) = match plan.work {
        PlannedWork::Query(_) => (format!("running the query costs {price}"), "query"),
        PlannedWork::Question { .. } => (format!("writing the SQL costs {price}"), "query"),
        PlannedWork::Materialize(_) => (format!("filling the cells costs {price}"), "materialize"),
        PlannedWork::Override(_) => ("the override needs approval".to_owned(), "override"),
    };
    let message = format!(
        "{what}; ask the user to approve it in a terminal with `{} {id}`{}, then call `{tool}` with this plan_id",
        context.approve_command,
        if context.has_page { ", or on the Approvals page of the daemon" } else { "" }
    );
    json!({
        "status": "approval_needed", "plan_id": id, "max_cost_usd": plan.max_usd,
        "reason": problem.or_else(|| plan.note.clone()), "message": message,
    })
}

fn supports_elicitation(call: &ToolCall) -> bool {
    let capability = call.client_capabilities().and_then(|c| c.elicitation);
    capability.is_some_and(|c| c.form.is_some() || c.url.is_none())
}

/// Returns true if the client's protocol version requests user input in a tool's result instead of
/// in a server request.
fn uses_input_results(call: &ToolCall) -> bool {
    let version = call.protocol_version();
    version.is_some_and(|v| v.as_str() >= ProtocolVersion::V_2026_07_28.as_str())
}

/// Returns the question that a client shows. The cost comes first; texts by the assistant are
/// indented.
fn describe_question(plan: &PlanRecord) -> String {
    let mut message = format!("Approve this plan? The cost is {}.", plan.describe_max_cost());
    for (name, text) in plan.list_details() {
        message.push_str(&format!("\n{name}: {}", text.replace('\n', "\n    ")));
    }
    message
}

fn build_elicitation(plan: &PlanRecord) -> ElicitRequestParams {
    let message = describe_question(plan);
    let requested_schema = ElicitationSchema::builder().required_bool(APPROVE).build_unchecked();
    ElicitRequestParams::FormElicitationParams { meta: None, message, requested_schema }
}

fn build_question(plan: &PlanRecord, state: String) -> InputRequiredResult {
    let request = InputRequest::Elicitation(ElicitRequest::new(build_elicitation(plan)));
    let requests = std::iter::once((APPROVE.to_owned(), request)).collect();
    InputRequiredResult::new(Some(requests), Some(state))
}
