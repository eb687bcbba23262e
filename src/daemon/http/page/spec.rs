//! The page of a spec, with its columns, pending approval, tables and runs.

use std::sync::Arc;

use axum::extract::{Path, Query, Request, State};
use axum::response::{IntoResponse, Response};
use maud::{Markup, html};
use serde::Deserialize;
use serde_json::Value as Json;

use super::super::query::run_blocking;
use super::super::reply::HttpError;
use super::frontier::render_thresholds;
use super::spec_edit::{CHECK_TIMEOUT, price_cells};
use super::{
    ErrorPage, HttpState, Page, ShownPage, find_spec, format_usd, percent_encode, read_form,
    redirect_to, render_failure, render_page, render_retried_failure, render_runs_table,
    render_spec_tabs, render_state_badge, spec_path,
};
use crate::cell::State as CellState;
use crate::daemon::job::guard_failure;
use crate::daemon::status::{RunStatus, SpecStatus, compute_coverage};
use crate::failure::Failure;
use crate::format::{format_count, format_usd_bound};
use crate::materialize::Selection;
use crate::plan::Plan;
use crate::query::connection::guard::GuardedConnection;

/// Fields of the page's address.
#[derive(Deserialize)]
pub(super) struct SpecQuery {
    /// `price` to show the cost of the missing cells.
    #[serde(default, rename = "do")]
    action: String,
}

/// Handles `GET /specs/{spec}`.
pub(super) async fn show_spec(
    State(state): State<HttpState>,
    Path(name): Path<String>,
    Query(query): Query<SpecQuery>,
) -> ShownPage {
    let spec = find_spec(&state, &name)?;
    let price = match query.action.as_str() {
        "price" => Some(price_missing_cells(&state, &name).await?),
        _ => None,
    };
    Ok(render_spec(&state, &spec, price.as_ref(), None))
}

/// A budget that the user has typed, and why the run was rejected.
struct RejectedBudget<'r> {
    text: &'r str,
    failure: &'r Failure,
}

/// Renders the page of a spec. `price` is the plan of its missing cells with their maximum cost in
/// USD, if the user has requested it.
fn render_spec(
    state: &HttpState,
    spec: &SpecStatus,
    price: Option<&(Plan, f64)>,
    rejected: Option<&RejectedBudget<'_>>,
) -> Page {
    let name = spec.name.as_str();
    let all = state.context.status.borrow().runs.clone();
    let own: Vec<&RunStatus> =
        all.iter().filter(|r| r.spec == name).take(20).map(Arc::as_ref).collect();
    render_page(
        name,
        &html! {
            h1 { (name) " " (render_state_badge(spec)) }
            (render_spec_tabs(name, "Columns and runs"))
            p.quiet { code { (spec.path) } }
            @if let Some(problem) = &spec.problem {
                @if spec.active_spec.is_some() { p.note.bad { "The daemon keeps the last valid spec." } }
                (render_failure(problem))
            }
            @if let Some(loaded) = &spec.active_spec {
                p.quiet {
                    "model " code { (loaded.spec.model.name) } ", tables in "
                    code { (loaded.spec.target().display()) }
                }
                @if !loaded.warnings.problems.is_empty() {
                    details { summary { (loaded.warnings.problems.len()) " warnings" }
                        pre { (loaded.warnings.render(false)) } }
                }
            }
            (render_approval_form(spec, price, rejected))
            (render_columns_section(spec))
            (render_thresholds(&spec.cascades))
            @if let Some(loaded) = &spec.active_spec { @for e in loaded.spec.expansions.iter().filter(|e| e.columns.iter().any(|c| c.escalation.is_some())) {
                p.small { a href=(format!("{}/doubts?table={}", spec_path(name), percent_encode(&e.name))) { "Review the uncertain cells of " (e.name) } }
            } }
            h2 { "Runs" }
            (render_runs_table(&own))
        },
    )
}

/// Renders the reason for a hold, the cost of the missing cells, and the forms that approve a run.
fn render_approval_form(
    spec: &SpecStatus,
    price: Option<&(Plan, f64)>,
    rejected: Option<&RejectedBudget<'_>>,
) -> Markup {
    let is_idle = spec.active_spec.is_some() && spec.run.is_none();
    let missing = spec.count_unasked_cells();
    let is_new = spec.columns.is_empty() && spec.held.is_some();
    html! {
        @if let Some(failure) = &spec.retried_failure { (render_retried_failure(failure)) }
        @if let Some(held) = spec.held.as_ref().filter(|_| spec.run.is_none()) { p.note.wait { "Waiting for your approval: " (held) } }
        @if let Some(rejected) = rejected { (render_failure(rejected.failure)) }
        @if is_idle && (missing > 0 || is_new || price.is_some()) {
            section.card {
                h2 { "Missing cells" }
                @match price {
                    Some((plan, max_usd)) => (render_price(spec, plan, *max_usd)),
                    None => {
                        @if let Some(plan) = &spec.plan { (render_stored_plan(plan)) }
                        @else if missing > 0 { p { (format_count(missing, "cell")) @if missing == 1 { " is" } @else { " are" } " missing." } }
                    }
                }
                @match price {
                    None => (render_limit_form(spec, true, rejected.map_or("", |rejected| rejected.text))),
                    Some((plan, _)) if plan.cell_count() > 0 => details { summary { "Another limit" } (render_limit_form(spec, false, "")) },
                    Some(_) => {}
                }
            }
        }
    }
}

/// Renders the form that starts a run with a limit of the user's choice.
fn render_limit_form(spec: &SpecStatus, can_price: bool, budget: &str) -> Markup {
    let missing = spec.count_unasked_cells();
    html! {
        @if can_price { form.row action=(spec_path(&spec.name)) { button.main name="do" value="price" { "Show the price" } } }
        form.row method="post" action=(format!("{}/go", spec_path(&spec.name))) {
            label { "Spend at most $" input name="budget" value=(budget) inputmode="decimal" size="15" placeholder="limit of the spec"; }
            button { "Ask for " @if missing > 0 { (format_count(missing, "cell")) } @else { "the cells" } }
        }
    }
}

/// Renders the cost of the missing cells, and the form that approves exactly this cost.
fn render_price(spec: &SpecStatus, plan: &Plan, max_usd: f64) -> Markup {
    let cells = plan.cell_count();
    let most = format_usd_bound(max_usd);
    html! {
        @if cells == 0 { p role="status" { "No cell is missing. A run publishes the stored answers for free." } }
        @else {
            p role="status" {
                strong { (format_count(cells, "missing cell")) } " in " (format_count(plan.request_count(), "request")) ": "
                @if plan.has_price { strong { (crate::format::format_usd(plan.cost_usd.likely)) } " likely, at most " (most) "." } @else { "the price is not known." }
                @for note in &plan.price_notes { " (" (note) ")" }
            }
        }
        form.row method="post" action=(format!("{}/go", spec_path(&spec.name))) {
            @if plan.has_price { input type="hidden" name="budget" value=(most.trim_start_matches('$')); }
            button.main {
                @if cells == 0 { "Publish" } @else {
                    "Ask for " (format_count(cells, "cell")) @if plan.has_price { ", for at most " (most) } @else { ", at an unknown price" }
                }
            }
        }
    }
}

/// Renders the totals of the plan that a run left because it was not allowed to ask the model.
fn render_stored_plan(plan: &Json) -> Markup {
    let totals = &plan["totals"];
    let usd = |part: &str| format_usd(totals["cost_usd"][part].as_f64().unwrap_or(0.0));
    let count = |part: &str, noun| format_count(totals[part].as_u64().unwrap_or(0), noun);
    let notes = plan["price_notes"].as_array().into_iter().flatten();
    html! { p {
        (count("cells", "cell")) " in " (count("requests", "request")) ": "
        strong { (usd("likely")) } " likely, " (usd("most")) " at most."
        @for note in notes.filter_map(|n| n.as_str()) { " (" (note) ")" }
    } }
}

fn render_columns_section(spec: &SpecStatus) -> Markup {
    let states: Vec<CellState> =
        CellState::ALL.into_iter().filter(|s| spec.count_cells().get(*s) > 0).collect();
    html! {
        h2 { "Columns" }
        div.wide tabindex="0" role="region" aria-label="Columns" { table {
            thead { tr {
                th { "table" } th { "column" } th { "coverage" }
                @for state in &states { th.n { (state.name()) } }
                th.n { "missing" }
            } }
            tbody {
                @for c in spec.columns.iter() {
                    tr {
                        td { a href=(format!("{}/tables/{}", spec_path(&spec.name), percent_encode(&c.expansion))) { (c.expansion) } }
                        td { a href=(format!("{}/tables/{}?facet={}", spec_path(&spec.name), percent_encode(&c.expansion), percent_encode(&c.column))) { (c.column) } }
                        td { progress aria-label="Coverage" max="1" value=(compute_coverage(c)) {} " " (format!("{:.0} %", 100.0 * compute_coverage(c))) }
                        @for state in &states { td.n { (c.cells.get(*state)) } }
                        td.n { (c.unasked) }
                    }
                }
                @for (expansion, column) in find_unpublished_columns(spec) {
                    tr {
                        td { a href=(format!("{}/tables/{}", spec_path(&spec.name), percent_encode(expansion))) { (expansion) } }
                        td { (column) }
                        td.quiet { @if spec.run.is_some() { "being filled" } @else { "not published yet" } }
                        @for _ in &states { td {} }
                        td {}
                    }
                }
            }
        } }
    }
}

/// Returns the spec's unpublished columns, each with its expansion.
fn find_unpublished_columns(spec: &SpecStatus) -> Vec<(&str, &str)> {
    let is_published = |expansion: &str, column: &str| {
        spec.columns.iter().any(|c| {
            c.expansion.eq_ignore_ascii_case(expansion) && c.column.eq_ignore_ascii_case(column)
        })
    };
    let expansions = spec.active_spec.iter().flat_map(|loaded| &loaded.spec.expansions);
    let columns = expansions.flat_map(|e| e.columns.iter().map(move |c| (&*e.name, &*c.name)));
    columns.filter(|(e, c)| !is_published(e, c)).collect()
}

#[derive(Deserialize)]
pub(super) struct ApprovalForm {
    #[serde(default)]
    budget: String,
    /// Maximum number of rows per table.
    limit: Option<u64>,
}

/// Handles `POST /runs/{run}/stop`.
pub(super) async fn stop_run(
    State(state): State<HttpState>,
    Path(run): Path<u64>,
) -> Result<Response, ErrorPage> {
    state.request_interrupt(run).await?;
    Ok(redirect_to("/"))
}

/// Handles `POST /specs/{spec}/go`.
pub(super) async fn approve_run(
    State(state): State<HttpState>,
    Path(name): Path<String>,
    request: Request,
) -> Result<Response, ErrorPage> {
    let approval: ApprovalForm = read_form(request).await?;
    let spec = find_spec(&state, &name)?;
    let text = approval.budget.trim();
    let started = match parse_budget(text) {
        Ok(budget) => {
            let selection = Selection { limit: approval.limit, ..Selection::default() };
            state.request_run(&name, selection, budget, None).await.map(|_| ())
        }
        Err(error) => Err(error),
    };
    match started {
        Ok(()) => Ok(redirect_to(&spec_path(&name))),
        Err(HttpError { status, failure }) => {
            // The form keeps what the user has typed.
            let rejected = RejectedBudget { text, failure: &failure };
            Ok((status, render_spec(&state, &spec, None, Some(&rejected))).into_response())
        }
    }
}

/// Parses a budget in USD; `None` if the text is empty.
fn parse_budget(text: &str) -> Result<Option<f64>, HttpError> {
    if text.is_empty() {
        return Ok(None);
    }
    let budget = text.parse::<f64>().ok().filter(|budget| budget.is_finite() && *budget >= 0.0);
    budget.map(Some).ok_or_else(|| {
        let message = format!("`{text}` is not a valid budget");
        HttpError::bad_request(message, "enter an amount in USD, such as 0.50")
    })
}

/// Plans a spec's missing cells. Sends no request.
async fn price_missing_cells(state: &HttpState, name: &str) -> Result<(Plan, f64), ErrorPage> {
    let (_, active) = state.find_active_spec(Some(name))?;
    let (client_guard, interrupt) = state.context.clients.begin_work();
    let permit = state.acquire_query_permit().await?;
    let facts = Arc::clone(&state.context.facts);
    let price = run_blocking(permit, client_guard, move || {
        let spec = &active.spec;
        let guard = GuardedConnection::open_for_sql(&spec.database, Some(CHECK_TIMEOUT), interrupt)
            .map_err(Failure::from)?;
        let priced = price_cells(spec, guard.database(), &facts, &Selection::default());
        Ok(priced.map_err(|failure| guard_failure(&guard).unwrap_or(failure))?)
    });
    Ok(price.await?)
}
