//! The start page: all specs, the spending, and the recent runs.

use std::sync::Arc;

use axum::extract::State;
use maud::{Markup, html};

use super::super::query::at_work;
use super::{HttpState, ShownPage, badge, chart, page, runs, spec_path, wrong};
use crate::daemon::status::{DaemonStatus, RunStatus, SpecStatus};
use crate::failure::Failure;

/// `GET /`
pub(super) async fn show(State(shop): State<HttpState>) -> ShownPage {
    let status = shop.house.status.borrow().clone();
    let spending = spending(&shop, &status).await?;
    let latest: Vec<&RunStatus> = status.runs.iter().take(10).map(Arc::as_ref).collect();
    Ok(page(
        "Specs",
        &html! {
            h1 { "Specs" }
            @if let Some(why) = &status.blind {
                p.problem role="alert" { "The daemon does not notice changes: " (why) }
            }
            @if !status.spend { p { "It sends no requests on its own (" code { "--no-spend" } ")." } }
            @for spec in status.specs.values() { (card(spec, &status)) }
            @if status.specs.is_empty() {
                p.quiet { "No spec in " code { (status.watched) } " yet. The daemon watches it." }
            }
            h2 { "Spent today" }
            (spending)
            h2 { "Runs" }
            (runs(&latest))
            p.quiet { "Since " time { (status.began) } ", cache " code { (status.cache) }
                ", " a href="/v1/openapi.json" { "API" } ", " a href="/metrics" { "metrics" } }
        },
    ))
}

fn card(spec: &SpecStatus, status: &DaemonStatus) -> Markup {
    let cells = spec.cells();
    let all = cells.total() + spec.unasked();
    let run = spec.run.and_then(|id| status.runs.iter().find(|run| run.id == id));
    html! {
        section.spec data-spec=(spec.name) {
            h3 { a href=(spec_path(&spec.name)) { (spec.name) } " " (badge(spec)) }
            @if let Some(problem) = &spec.problem {
                @if spec.loaded.is_some() { p { "The daemon keeps the last valid spec." } }
                (wrong(problem))
            }
            @if let Some(trouble) = spec.trouble.as_ref().filter(|_| spec.run.is_none()) { (wrong(trouble)) p { "The daemon will retry." } }
            @if let Some(held) = spec.held.as_ref().filter(|_| spec.run.is_none()) { p { "Waits for your approval: " (held) } }
            @if let Some(run) = run {
                p {
                    progress max=(run.cells.max(1)) value=(run.done) {}
                    " " (run.done) " of " (run.cells) " missing cells are being filled by run " (run.id)
                }
            }
            @if all > 0 {
                p {
                    meter min="0" max=(all) value=(all - cells.without_value() - spec.unasked()) {}
                    " " (all - cells.without_value() - spec.unasked()) " of " (all) " cells have a value"
                    @if run.is_some() { " as published" }
                }
            } @else if run.is_none() && spec.problem.is_none() {
                p.quiet { "Nothing is published yet." }
            }
        }
    }
}

/// Shows the spending, against the daily budget.
pub(super) async fn spending(
    shop: &HttpState,
    status: &DaemonStatus,
) -> Result<Markup, super::ErrorPage> {
    let per_day = |s: &Arc<SpecStatus>| s.loaded.as_ref()?.spec.limits.budget_usd_per_day;
    let budget = status.specs.values().filter_map(per_day).reduce(f64::min);
    let (served, _) = shop.house.clients.begin();
    let place = shop.look().await?;
    let facts = Arc::clone(&shop.house.facts);
    let days = days();
    let since = format!("{}T00:00:00Z", days.first().map_or("", String::as_str));
    let (sums, of_days) = (Arc::clone(&shop.house.spent), days.clone());
    let read = move || {
        let hours = facts.history().hours_since(&since).map_err(Failure::from)?;
        Ok((hours, sums.of(&facts, &of_days).map_err(Failure::from)?))
    };
    let (hours, columns) = at_work(place, served, read).await?;
    let today = days.last().map_or("", String::as_str);
    let of_today: Vec<_> = hours.iter().filter(|h| h.hour.starts_with(today)).collect();
    Ok(html! {
        (chart::spent(&of_today, budget))
        h2 { "Spent in " (days.len()) " days" }
        (chart::month(&hours, &days))
        (chart::columns(&columns, chart::usd_of(&hours.iter().collect::<Vec<_>>()), days.len()))
    })
}

/// Returns the dates of the last thirty days in UTC; the last one is today.
fn days() -> Vec<String> {
    let today = jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC).date();
    let ago = |days: i64| today.saturating_sub(jiff::Span::new().days(days)).to_string();
    (0..30).rev().map(ago).collect()
}
