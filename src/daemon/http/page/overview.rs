//! The start page, with all specs, the recent runs and the spending.

use std::sync::Arc;

use axum::extract::State;
use maud::{Markup, html};

use super::spending::{SpendingReport, read_spending};
use super::{
    HttpState, START_PAGE, ShownPage, format_usd, percent_encode, render_failure, render_main_page,
    render_retried_failure, render_runs_table, render_state_badge, shorten_time, spec_path,
};
use crate::audit;
use crate::daemon::status::{DaemonStatus, RunStatus, SpecStatus, compute_coverage};
use crate::failure::Failure;
use crate::format::{format_count, format_thousands};
use crate::materialize::ColumnReport;
use crate::spec::{Column, Expansion};

/// Default number of rows of an audit.
const AUDIT_ROWS: usize = 25;
/// Maximum number of columns to show on a card.
const CARD_COLUMNS: usize = 8;

/// A form for the sample of an audit that was rejected.
pub(super) struct RejectedSample {
    pub(super) spec: String,
    pub(super) table: String,
    /// Number of rows as the user typed it.
    pub(super) rows: String,
    pub(super) failure: Failure,
}

/// Handles `GET /`.
pub(super) async fn show_overview(State(state): State<HttpState>) -> ShownPage {
    render_overview(&state, None).await
}

/// Renders the start page. The form of a rejected sample keeps what the user typed.
pub(super) async fn render_overview(
    state: &HttpState,
    rejected: Option<&RejectedSample>,
) -> ShownPage {
    let status = state.context.status.borrow().clone();
    let spending = read_spending(state, &status).await?;
    let latest: Vec<&RunStatus> = status.runs.iter().take(10).map(Arc::as_ref).collect();
    Ok(render_main_page(
        START_PAGE,
        &html! {
            h1 { "Specs" }
            @if let Some(why) = &status.watch_error {
                p.problem role="alert" { "The daemon does not notice changes: " (why) }
            }
            @if !status.spend { p.note { "The daemon sends no requests on its own (" code { "--no-spend" } ")." } }
            (render_summary_tiles(&status, &spending))
            @if status.specs.is_empty() {
                p.card { "No spec in " code { (status.watched) } " yet. The daemon watches it: " a href="/upload" { "upload a CSV file or a database" }
                    ", or save a spec there, for example the one of " code { "hqdl init" } ", and it appears here." }
            } @else {
                div.cards { @for spec in status.specs.values() { (render_spec_card(spec, &status, &spending, rejected)) } }
            }
            h2 { "Runs" }
            (render_runs_table(&latest))
            @if status.runs.iter().all(|run| run.usage.cost_usd <= 0.0) { (spending.render_other_spending()) }
            (spending.to_section())
            p.quiet.small { "Since " time datetime=(status.began) { (shorten_time(&status.began)) } " UTC, cache " code { (status.cache) }
                ", " a href="/v1/openapi.json" { "API" } ", " a href="/metrics" { "metrics" } }
        },
    ))
}

/// Renders the main figures of the daemon.
fn render_summary_tiles(status: &DaemonStatus, spending: &SpendingReport) -> Markup {
    let cells = |spec: &Arc<SpecStatus>| {
        (spec.count_cells_with_value(), spec.count_cells().total() + spec.count_unasked_cells())
    };
    let (valued, all) =
        status.specs.values().map(cells).fold((0, 0), |sum, (v, a)| (sum.0 + v, sum.1 + a));
    let running = status.specs.values().filter(|spec| spec.run.is_some()).count();
    html! {
        dl.tiles {
            div { dt { "Cells with a value" } dd { (format_thousands(valued)) } dd { @if all > 0 { "of " (format_thousands(all)) " in " } @else { "none published yet in " } (format_count(status.specs.len() as u64, "spec")) } }
            div { dt { "Running" } dd { (running) } dd { (format_count(status.queued as u64, "run")) " waiting" } }
            div { dt { "Spent today" } dd { (format_usd(spending.today_usd())) }
                dd { @match spending.daily_budget { Some(budget) => { "of " (format_usd(budget)) " a day" } None => { "no daily budget" } } } }
            div { dt { "Spent in 30 days" } dd { (format_usd(spending.total_usd())) } dd { (format_count(spending.request_count(), "request")) } }
        }
    }
}

fn render_spec_card(
    spec: &SpecStatus,
    status: &DaemonStatus,
    spending: &SpendingReport,
    rejected: Option<&RejectedSample>,
) -> Markup {
    let rejected = rejected.filter(|rejected| rejected.spec == spec.name);
    let all = spec.count_cells().total() + spec.count_unasked_cells();
    let run = spec.run.and_then(|id| status.runs.iter().find(|run| run.id == id));
    html! {
        section.card data-spec=(spec.name) {
            div.head { h2 { a href=(spec_path(&spec.name)) { (spec.name) } } (render_state_badge(spec)) }
            (render_attention_notes(spec, rejected))
            @if let Some(run) = run {
                p { (format_thousands(run.done)) " of " (format_thousands(run.cells)) " missing cells are being filled by run " (run.id) }
                progress aria-label=(format!("Progress of run {}", run.id)) max=(run.cells.max(1)) value=(run.done) {}
            }
            @if all > 0 {
                p { strong { (format_thousands(spec.count_cells_with_value())) " of " (format_thousands(all)) } " cells have a value" @if run.is_some() { " as published" } }
                (render_column_meters(spec))
            } @else if run.is_none() && spec.problem.is_none() {
                p.quiet { "Nothing is published yet." }
            }
            (render_cost_section(spec, status, spending))
            @if spec.active_spec.is_some() { p.small { a href=(format!("{}/tables", spec_path(&spec.name))) { "All tables of " (spec.name) } } }
        }
    }
}

/// Renders notes about everything that the user must decide or repair in a spec.
fn render_attention_notes(spec: &SpecStatus, rejected: Option<&RejectedSample>) -> Markup {
    let spec_in_force = spec.active_spec.as_ref().map(|active| &active.spec);
    let is_audited =
        |e: &&Expansion| spec_in_force.is_some_and(|s| audit::sheet_path(s, e).exists());
    let expansions = spec_in_force.into_iter().flat_map(|spec| &spec.expansions);
    let (audited, unaudited): (Vec<_>, Vec<_>) = expansions.partition(is_audited);
    html! {
        @if let Some(problem) = &spec.problem {
            @if spec.active_spec.is_some() { p.note.bad { "The daemon keeps the last valid spec." } }
            (render_failure(problem))
        }
        @if let Some(failure) = &spec.retried_failure { (render_retried_failure(failure)) }
        @if let Some(held) = spec.held.as_ref().filter(|_| spec.run.is_none()) {
            p.note.wait { "Waiting for your approval: " (held) }
            form.row action=(spec_path(&spec.name)) {
                button name="do" value="price" { @if spec.has_run && spec.last_run.is_some() { "Resume" } @else { "Start" } "…" }
                span.small.quiet { "shows the price first" }
            }
        }
        @for e in audited {
            p.small { a href=(format!("{}/review?table={}", spec_path(&spec.name), percent_encode(&e.name))) { "Review the audit of " (e.name) } }
        }
        @if let Some(rejected) = rejected { (render_failure(&rejected.failure)) }
        @if spec.state_name() == "complete" { @for e in unaudited {
            @let typed = rejected.filter(|rejected| rejected.table == e.name).map(|rejected| rejected.rows.clone());
            form.note.row method="post" action=(format!("{}/audit", spec_path(&spec.name))) {
                span { strong { "Audit suggested" } ": the accuracy of " (e.name) " is not known." }
                input type="hidden" name="table" value=(e.name);
                label { "Rows " input name="rows" value=(typed.unwrap_or_else(|| AUDIT_ROWS.to_string())) size="4" inputmode="numeric"; }
                button { "Draw a sample" }
            }
        } }
    }
}

/// Renders the coverage of the first columns.
fn render_column_meters(spec: &SpecStatus) -> Markup {
    let more = spec.columns.len().saturating_sub(CARD_COLUMNS);
    html! {
        dl.coverage {
            @for c in spec.columns.iter().take(CARD_COLUMNS) {
                @let percent = format!("{:.0} %", 100.0 * compute_coverage(c));
                dt title=(c.column) { a href=(format!("{}/tables/{}", spec_path(&spec.name), percent_encode(&c.expansion))) { (c.column) } }
                dd { progress aria-label=(format!("Coverage of {}", c.column)) max="1" value=(compute_coverage(c)) {} }
                dd { (percent) }
            }
        }
        @if more > 0 { p.small { a href=(spec_path(&spec.name)) { (format_count(more as u64, "more column")) } } }
    }
}

/// Renders the spending of the last 30 days, the estimated cost of the missing cells, and the last
/// run.
fn render_cost_section(
    spec: &SpecStatus,
    status: &DaemonStatus,
    spending: &SpendingReport,
) -> Markup {
    let expansions = spec.active_spec.iter().flat_map(|active| &active.spec.expansions);
    let columns = expansions.flat_map(|e| e.columns.iter().map(move |c| (e, c)));
    let costs = columns.map(|(e, c)| (e, c, spending.sum_column_cost(e, c)));
    let spent = costs.clone().fold(0.0, |sum, (_, _, (usd, _))| sum + usd);
    let planned = spec.plan.as_ref().and_then(|p| p["totals"]["cost_usd"]["likely"].as_f64());
    // Without a plan, assume that a missing cell costs as much as the average answered cell of its
    // column.
    let estimate = |(e, c, (usd, cells)): (&Expansion, &Column, (f64, u64))| {
        let is_own = |r: &&ColumnReport| {
            r.expansion.eq_ignore_ascii_case(&e.name) && r.column.eq_ignore_ascii_case(&c.name)
        };
        match spec.columns.iter().find(is_own).map_or(0, |report| report.unasked) {
            0 => Some(0.0),
            missing => (cells > 0).then(|| usd / cells as f64 * missing as f64),
        }
    };
    let to_finish = planned.or_else(|| costs.map(estimate).sum());
    let is_known = planned.is_some() || !spec.columns.is_empty();
    let last = spec.run.or(spec.last_run).and_then(|id| status.find_run(id));
    html! {
        dl.facts {
            div { dt { "Spent in 30 days" } dd { (format_usd(spent)) } }
            div { dt { "To finish" } dd {
                @match to_finish.filter(|_| is_known) {
                    Some(usd) if spec.count_unasked_cells() > 0 => { "about " (format_usd(usd)) }
                    Some(_) => { "nothing" }
                    None => { span.quiet { "not planned" } }
                }
            } }
            div { dt { "Last run" } dd {
                @match last {
                    Some(run) => { (run.id) ", " (run.state.name()) br; time.quiet.small datetime=(run.began) { (shorten_time(&run.began)) } }
                    None => { span.quiet { "none" } }
                }
            } }
        }
    }
}
