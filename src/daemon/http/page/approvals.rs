//! The page that lists the plans for which assistants need approval. An approval applies to the
//! plan as it was shown: if the plan has changed since then, the page shows it again.

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use maud::{Markup, html};
use serde::Deserialize;

use super::super::query::run_blocking;
use super::super::reply::HttpError;
use super::{ErrorPage, HttpState, Page, ShownPage, read_form, redirect_to, render_main_page};
use crate::approval::{APPROVAL_MINUTES, ApprovalError, OpenPlan, OpenState, PlanStore};
use crate::failure::Failure;

const PATH: &str = "/approvals";

/// Fields of the form of a plan.
#[derive(Debug, Deserialize)]
pub(super) struct DecisionForm {
    plan: String,
    /// Digest of the plan that the page showed.
    shown: String,
    #[serde(rename = "do")]
    action: String,
}

/// Handles `GET /approvals`.
pub(super) async fn show_approvals(State(state): State<HttpState>) -> ShownPage {
    render_approvals(&state, None).await
}

/// Handles `POST /approvals`: approves or rejects a plan.
pub(super) async fn submit_decision(
    State(state): State<HttpState>,
    request: Request,
) -> Result<Response, ErrorPage> {
    let DecisionForm { plan, shown, action } = read_form(request).await?;
    let approves = match action.as_str() {
        "approve" => true,
        "reject" => false,
        _ => return Err(HttpError::bad_request("the form names no decision", "").into()),
    };
    let decide = move |plans: &PlanStore, now| {
        let open = plans.find_open_plan(&plan, now)?.filter(|open| open.digest() == shown);
        open.map_or(Ok(false), |open| plans.record_decision(&open, approves, now))
    };
    if with_plan_store(&state, decide).await? {
        return Ok(redirect_to(PATH));
    }
    let note = "The plan has changed or no longer waits. Nothing was approved or rejected.";
    let page = render_approvals(&state, Some(note)).await?;
    Ok((StatusCode::CONFLICT, page).into_response())
}

/// Reads or changes the stored plans in a separate thread. `work` receives the current Unix time in
/// seconds.
async fn with_plan_store<T: Send + 'static>(
    state: &HttpState,
    work: impl FnOnce(&PlanStore, i64) -> Result<T, ApprovalError> + Send + 'static,
) -> Result<T, ErrorPage> {
    let (client_guard, _) = state.context.clients.begin_work();
    let permit = state.acquire_read_permit().await?;
    let plans = state.context.settings.plans.clone();
    let work = move || {
        work(&plans, jiff::Timestamp::now().as_second())
            .map_err(|e| Failure::wrong_input(e.to_string(), "").into())
    };
    Ok(run_blocking(permit, client_guard, work).await?)
}

async fn render_approvals(state: &HttpState, note: Option<&str>) -> Result<Page, ErrorPage> {
    let open = with_plan_store(state, PlanStore::list_open_plans).await?;
    Ok(render_main_page(
        "Approvals",
        &html! {
            h1 { "Approvals" }
            @if let Some(note) = note { p.note.wait role="status" { (note) } }
            p { "Plans of assistants that wait for your approval. An approval is for one run of exactly this plan, at this "
                "cost or a lower one, and expires after " (APPROVAL_MINUTES) " minutes." }
            p.quiet { "Assistants of this daemon: " (state.ledger.describe()) "." }
            @if open.is_empty() { p.card { "No plan is waiting. An assistant that uses hqdl over MCP requests approval here before it spends money." } }
            div.stack { @for plan in &open { (render_plan(plan)) } }
        },
    ))
}

fn render_plan(open: &OpenPlan) -> Markup {
    let OpenPlan { plan, state } = open;
    html! {
        section.card data-plan=(plan.id()) {
            h2 { "Plan " code { (plan.id()) } }
            table.why { @for (name, text) in plan.list_details() { tr { th scope="row" { (name) } td { pre { (text) } } } } }
            p.small.quiet { "schema " code { (plan.schema.get(..12).unwrap_or(&plan.schema)) } }
            form.row method="post" action=(PATH) {
                input type="hidden" name="plan" value=(plan.id());
                input type="hidden" name="shown" value=(open.digest());
                @match state {
                    OpenState::Waiting { since } => {
                        button.main name="do" value="approve" { "Approve once, cost " (plan.describe_max_cost()) }
                        button name="do" value="reject" { "Reject" }
                        span.quiet { "requested at " (render_time(*since)) }
                    }
                    OpenState::Approved { until } => {
                        button name="do" value="reject" { "Withdraw the approval" }
                        span.quiet { "approved until " (render_time(*until)) ", not run yet" }
                    }
                }
            }
        }
    }
}

/// Renders a Unix time in seconds.
fn render_time(seconds: i64) -> Markup {
    let time = jiff::Timestamp::from_second(seconds).unwrap_or_default();
    html! { time datetime=(time) { (time.strftime("%Y-%m-%d %H:%M UTC")) } }
}
