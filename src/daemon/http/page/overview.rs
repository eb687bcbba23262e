//! The start page: all specs, the spending, and the recent runs.

use std::sync::Arc;

use axum::extract::State;
use maud::{Markup, html};

use super::super::query::run_blocking;
use super::{
    HttpState, ShownPage, chart, render_page, runs_table, show_failure, show_retried_failure,
    spec_path, state_badge,
};
use crate::daemon::status::{DaemonStatus, RunStatus, SpecStatus};
use crate::failure::Failure;

/// `GET /`
pub(super) async fn show_overview(State(state): State<HttpState>) -> ShownPage {
    let status = state.context.status.borrow().clone();
    let spending = spending_section(&state, &status).await?;
    let latest: Vec<&RunStatus> = status.runs.iter().take(10).map(Arc::as_ref).collect();
    Ok(render_page(
        "Specs",
        &html! {
            h1 { "Specs" }
            @if let Some(why) = &status.watch_error {
                p.problem role="alert" { "The daemon does not notice changes: " (why) }
            }
            @if !status.spend { p { "It sends no requests on its own (" code { "--no-spend" } ")." } }
            @for spec in status.specs.values() { (spec_card(spec, &status)) }
            @if status.specs.is_empty() {
                p.quiet { "No spec in " code { (status.watched) } " yet. The daemon watches it." }
            }
            h2 { "Spent today" }
            (spending)
            h2 { "Runs" }
            (runs_table(&latest))
            p.quiet { "Since " time { (status.began) } ", cache " code { (status.cache) }
                ", " a href="/v1/openapi.json" { "API" } ", " a href="/metrics" { "metrics" } }
        },
    ))
}

fn spec_card(spec: &SpecStatus, status: &DaemonStatus) -> Markup {
    let cells = spec.cells();
    let all = cells.total() + spec.unasked();
    let run = spec.run.and_then(|id| status.runs.iter().find(|run| run.id == id));
    html! {
        section.spec data-spec=(spec.name) {
            h3 { a href=(spec_path(&spec.name)) { (spec.name) } " " (state_badge(spec)) }
            @if let Some(problem) = &spec.problem {
                @if spec.active_spec.is_some() { p { "The daemon keeps the last valid spec." } }
                (show_failure(problem))
            }
            @if let Some(failure) = &spec.retried_failure { (show_retried_failure(failure)) }
            @if let Some(held) = spec.held.as_ref().filter(|_| spec.run.is_none()) { p { "Waits for your approval: " (held) } }
            @if let Some(run) = run {
                p {
                    progress max=(run.cells.max(1)) value=(run.done) {}
                    " " (run.done) " of " (run.cells) " missing cells are being filled by run " (run.id)
                }
            }
            @if all > 0 {
                p {
                    meter min="0" max=(all) value=(all - cells.count_without_value() - spec.unasked()) {}
                    " " (all - cells.count_without_value() - spec.unasked()) " of " (all) " cells have a value"
                    @if run.is_some() { " as published" }
                }
            } @else if run.is_none() && spec.problem.is_none() {
                p.quiet { "Nothing is published yet." }
            }
        }
    }
}

/// Shows the spending, against the daily budget.
pub(super) async fn spending_section(
    state: &HttpState,
    status: &DaemonStatus,
) -> Result<Markup, super::ErrorPage> {
    let per_day = |s: &Arc<SpecStatus>| s.active_spec.as_ref()?.spec.limits.budget_usd_per_day;
    let budget = status.specs.values().filter_map(per_day).reduce(f64::min);
    let (client_guard, _) = state.context.clients.begin_work();
    let permit = state.acquire_read_permit().await?;
    let facts = Arc::clone(&state.context.facts);
    let days = last_days();
    let since = format!("{}T00:00:00Z", days.first().map_or("", String::as_str));
    let (spending, of_days) = (Arc::clone(&state.context.spending), days.clone());
    let read = move || {
        let hours = facts.history().hourly_spending(&since).map_err(Failure::from)?;
        Ok((hours, spending.column_costs(&facts, &of_days).map_err(Failure::from)?))
    };
    let (hours, columns) = run_blocking(permit, client_guard, read).await?;
    let today = days.last().map_or("", String::as_str);
    let of_today: Vec<_> = hours.iter().filter(|h| h.hour.starts_with(today)).collect();
    Ok(html! {
        (chart::spending_chart(&of_today, budget))
        h2 { "Spent in " (days.len()) " days" }
        (chart::month_chart(&hours, &days))
        (chart::columns_table(&columns, chart::usd_of(&hours.iter().collect::<Vec<_>>()), days.len()))
    })
}

/// Returns the dates of the last thirty days in UTC; the last one is today.
fn last_days() -> Vec<String> {
    let today = jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC).date();
    let ago = |days: i64| today.saturating_sub(jiff::Span::new().days(days)).to_string();
    (0..30).rev().map(ago).collect()
}
