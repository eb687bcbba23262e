//! The daemon's web pages. The server renders them, and they are readable without JavaScript; one
//! script keeps the figures up to date. `maud` escapes all text, because a model wrote the values.

mod approvals;
mod ask;
mod cell;
mod doubts;
mod export;
mod facet;
mod frontier;
mod judged_cell;
mod lineage;
mod medium;
mod overview;
#[cfg(feature = "parquet")]
mod parquet_export;
mod plot;
mod record_cell;
mod query;
mod result_chart;
mod review;
mod row;
mod row_source;
mod schema;
mod spec;
mod spec_edit;
mod spending;
#[cfg(debug_assertions)]
mod styleguide;
mod table;
mod tables;
mod upload;
mod view;
mod view_query;

use serde_json::Value as Json;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Form, FromRequest, Request};
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use maud::{DOCTYPE, Markup, html};
use serde::de::DeserializeOwned;

use super::HttpState;
use super::reply::HttpError;
use crate::daemon::status::{RunState, RunStatus, SpecStatus};
use crate::failure::Failure;
use crate::format::format_thousands;

pub(super) use self::ask::AskSubmissions;

/// Number of characters that fit on a line in the narrowest window.
const NARROW_WIDTH: usize = 36;
/// Name of the start page in the navigation.
const START_PAGE: &str = "Specs";
/// Time limit for reading a form.
const FORM_TIMEOUT: Duration = Duration::from_secs(30);

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");
/// Hash of the assets, so that browsers keep them until they change.
static ASSET_VERSION: LazyLock<String> = LazyLock::new(|| {
    let hash = blake3::hash([STYLE, SCRIPT].concat().as_bytes());
    hash.to_hex().chars().take(12).collect()
});

/// Adds the pages to the API's routes.
pub(super) fn add_page_routes(api: Router<HttpState>) -> Router<HttpState> {
    // A page names the version of its assets in their addresses.
    let asset = |content_type: &'static str, text: &'static str| {
        get(move |uri: Uri| async move {
            let is_versioned = uri.query() == Some(ASSET_VERSION.as_str());
            let lifetime = if is_versioned { "max-age=31536000, immutable" } else { "no-cache" };
            ([(header::CONTENT_TYPE, content_type), (header::CACHE_CONTROL, lifetime)], text)
        })
    };
    #[cfg(debug_assertions)]
    let api = api.route("/styleguide", get(styleguide::show_styleguide));
    api.route("/", get(overview::show_overview))
        .route("/specs/{spec}", get(spec::show_spec))
        .route("/specs/{spec}/edit", get(spec_edit::show_editor).post(spec_edit::submit_editor))
        .route("/specs/{spec}/check", post(spec_edit::check_spec))
        .route("/spec.schema.json", get(spec_edit::get_schema))
        .route("/specs/{spec}/lineage", get(lineage::show_lineage))
        .route("/specs/{spec}/go", post(spec::approve_run))
        .route("/runs/{run}/stop", post(spec::stop_run))
        .route("/specs/{spec}/tables", get(tables::show_tables))
        .route("/specs/{spec}/tables/{table}", get(table::show_table))
        .route("/specs/{spec}/tables/{table}/export", get(table::export_table))
        .route("/specs/{spec}/tables/{table}/row", get(row::show_row))
        .route("/specs/{spec}/tables/{table}/row/export", get(row::export_value))
        .route("/specs/{spec}/review", get(review::show_review).post(review::store_truth))
        .route("/specs/{spec}/audit", post(review::draw_sample))
        .route("/specs/{spec}/doubts", get(doubts::show_doubts).post(doubts::store_override))
        .route("/specs/{spec}/medium", get(medium::get_medium))
        .route("/specs/{spec}/cell", get(cell::show_cell).post(cell::set_override))
        .route(
            "/upload",
            // The handler limits the size itself, as the file arrives.
            get(upload::show_upload)
                .post(upload::receive_upload)
                .layer(DefaultBodyLimit::disable()),
        )
        .route("/approvals", get(approvals::show_approvals).post(approvals::submit_decision))
        .route("/ask", get(ask::show_ask).post(ask::submit_ask))
        .route("/query", get(query::show_query).post(query::run_query))
        .route("/page.css", asset("text/css; charset=utf-8", STYLE))
        .route("/page.js", asset("text/javascript; charset=utf-8", SCRIPT))
}

/// An HTML page.
pub(super) struct Page(Markup);

impl Page {
    fn into_text(self) -> String {
        self.0.into_string()
    }
}

impl IntoResponse for Page {
    fn into_response(self) -> Response {
        ([(header::CONTENT_TYPE, "text/html; charset=utf-8")], self.into_text()).into_response()
    }
}

/// A page with an error message.
pub(super) struct ErrorPage(HttpError);

impl From<HttpError> for ErrorPage {
    fn from(error: HttpError) -> Self {
        Self(error)
    }
}

impl From<Failure> for ErrorPage {
    fn from(failure: Failure) -> Self {
        Self(failure.into())
    }
}

impl IntoResponse for ErrorPage {
    fn into_response(self) -> Response {
        let HttpError { status, failure } = self.0;
        // Otherwise the browser would not ask for the password.
        let ask = (status == StatusCode::UNAUTHORIZED)
            .then_some([(header::WWW_AUTHENTICATE, "Basic realm=\"hqdl\"")]);
        (status, ask, render_page_in("", "Sorry", &html! { h1 { "Error" } (render_failure(&failure)) p { a href="/" { "Back to the specs" } } }))
            .into_response()
    }
}

/// Handles unknown paths: returns a page to browsers, otherwise the API's error.
pub(super) async fn reject_route(headers: HeaderMap, uri: Uri) -> Response {
    render_error(&headers, super::reply::reject_route(&uri))
}

/// Returns an error as a page to browsers, otherwise as the API does.
pub(super) fn render_error(headers: &HeaderMap, error: HttpError) -> Response {
    let accepts = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    if accepts.is_some_and(|accept| accept.contains("text/html")) {
        return ErrorPage(error).into_response();
    }
    error.into_response()
}

/// Name-value pairs of a URL or a form, in order.
type QueryPairs = Vec<(String, String)>;
type ShownPage = Result<Page, ErrorPage>;

/// Renders a page below the start page, such as a page of a spec.
fn render_page(title: &str, content: &Markup) -> Page {
    render_page_in(START_PAGE, title, content)
}

/// Renders a page that the navigation names.
fn render_main_page(title: &str, content: &Markup) -> Page {
    render_page_in(title, title, content)
}

/// Wraps `content` in the page layout: head, navigation and scripts. `section` is the name of the
/// navigation's current entry.
fn render_page_in(section: &str, title: &str, content: &Markup) -> Page {
    Page(html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (title) " · hqdl" }
                link rel="stylesheet" href={ "/page.css?" (*ASSET_VERSION) };
                link rel="icon" href="data:,";
                script src={ "/page.js?" (*ASSET_VERSION) } defer {}
            }
            body {
                a.skip href="#content" { "Skip to the content" }
                header {
                    a.home href="/" { "hqdl" }
                    nav aria-label="Pages" { @for (path, name) in [("/", START_PAGE), ("/query", "Query"), ("/ask", "Ask"), ("/approvals", "Approvals"), ("/upload", "New spec")] {
                        a href=(path) aria-current=[(section == name).then_some("page")] { (name) }
                    } }
                }
                main id="content" { (content) }
                div #announcer role="status" {}
            }
        }
    })
}

/// Renders a failure, formatted as on the command line.
fn render_failure(failure: &Failure) -> Markup {
    let text = failure.clone().with_form_advice().to_text();
    let lines: Vec<&str> = text.lines().collect();
    html! {
        pre.problem role="alert" {
            @for part in lines.chunk_by(|a, b| is_source_quote(a) == is_source_quote(b)) {
                @let wide = part.iter().any(|line| would_wrap(line));
                span.quoted[wide] tabindex=[wide.then_some("0")] { (part.join("\n")) "\n" }
            }
        }
    }
}

/// Renders the failure of the last run, which the daemon retries. The retry may already be running.
fn render_retried_failure(failure: &Failure) -> Markup {
    html! { (render_failure(failure)) p.note.bad { "The last run failed. The daemon retries it." } }
}

/// Returns true if a line of a message quotes source text or marks a position in it.
fn is_source_quote(line: &str) -> bool {
    line.trim_start_matches(|c: char| c == ' ' || c.is_ascii_digit()).starts_with('|')
}

/// Returns true if a quoted line would wrap in a narrow window, so that its marks no longer line
/// up. The text after the last mark may wrap.
fn would_wrap(line: &str) -> bool {
    let marked = line.rfind('^').map_or(line.len(), |last| last + 1);
    is_source_quote(line) && line.get(..marked).unwrap_or(line).chars().count() > NARROW_WIDTH
}

/// Returns a redirect for a browser that has submitted a form.
fn redirect_to(path: &str) -> Response {
    (StatusCode::SEE_OTHER, [(header::LOCATION, path.to_owned())]).into_response()
}

async fn read_form<T: DeserializeOwned>(request: Request) -> Result<T, ErrorPage> {
    match tokio::time::timeout(FORM_TIMEOUT, Form::<T>::from_request(request, &())).await {
        Ok(Ok(Form(form))) => Ok(form),
        Ok(Err(why)) => {
            Err(HttpError::bad_request(format!("the form is invalid: {why}"), "").into())
        }
        Err(_) => Err(HttpError::bad_request("the form did not arrive", "").into()),
    }
}

/// Percent-encodes a text for a path or a query.
fn percent_encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                out.push(char::from(byte));
            }
            other => out.push_str(&format!("%{other:02X}")),
        }
    }
    out
}

/// Returns the path of a spec's page.
fn spec_path(name: &str) -> String {
    format!("/specs/{}", percent_encode(name))
}

/// Returns a spec, or the error page for an unknown one.
fn find_spec(state: &HttpState, name: &str) -> Result<Arc<SpecStatus>, ErrorPage> {
    let status = state.context.status.borrow();
    status.find_spec(name).cloned().ok_or_else(|| {
        let failure = super::unknown_spec_failure(name, status.specs.keys());
        HttpError { status: StatusCode::NOT_FOUND, failure }.into()
    })
}

/// Renders the links between the pages of a spec.
fn render_spec_tabs(name: &str, current: &str) -> Markup {
    let path = spec_path(name);
    html! { nav.tabs aria-label="Pages of the spec" {
        @for (title, end) in [("Columns and runs", ""), ("Tables", "/tables"), ("Spec", "/edit"), ("Lineage", "/lineage")] {
            a href=(format!("{path}{end}")) aria-current=[(title == current).then_some("page")] { (title) }
        }
    } }
}

/// Renders the state of a spec as a word, so that it does not depend on color.
fn render_state_badge(spec: &SpecStatus) -> Markup {
    html! { span class={ "badge " (spec.state_name()) } { (spec.state_name()) } }
}

/// Renders a table of runs, newest first.
fn render_runs_table(all: &[&RunStatus]) -> Markup {
    html! {
        @if all.is_empty() { p.quiet { "No run yet. A run begins when a spec has missing cells and may spend. Otherwise open the spec, and show the price." } } @else { div.wide tabindex="0" role="region" aria-label="Runs" { table.runs {
            thead { tr {
                th { "run" } th { "spec" } th { "began" } th { "why" } th { "state" } th { "cells" }
                th.n { "requests" } th.n { "cost" } th { "of its budget" } th.n { "seconds" }
            } }
            tbody {
                @for (n, run) in all.iter().enumerate() {
                    tr data-run=(run.id) {
                        td data-label="run" { (run.id) }
                        td data-label="spec" { a href=(spec_path(&run.spec)) { (run.spec) } }
                        td.small data-label="began" { time datetime=(run.began) { (shorten_time(&run.began)) } }
                        td data-label="why" { (run.cause.name()) }
                        td data-label="state" {
                            span class={ "badge " (run.state.name()) } data-is="state" { (run.state.name()) }
                            @if run.state == RunState::Running {
                                " " form.inline method="post" action=(format!("/runs/{}/stop", run.id)) {
                                    button.slight title="Ends the run and keeps all answers. Resume starts a run for the missing cells." { "Pause" }
                                }
                            }
                        }
                        td data-label="cells" {
                            @if run.cells == 0 && run.state != RunState::Running { span.quiet { "none asked" } }
                            @else {
                                progress aria-label="Cells" data-is="progress" max=(run.cells.max(1)) value=(run.done) {}
                                " " span data-is="cells" { (format_thousands(run.done)) " of " (format_thousands(run.cells)) }
                            }
                        }
                        td.n data-label="requests" data-is="requests" { (format_thousands(run.usage.requests)) }
                        td.n data-label="cost" data-is="cost" { (format_usd(run.usage.cost_usd)) }
                        td data-label="of its budget" {
                            @match run.budget {
                                Some(budget) => {
                                    progress aria-label="Spent of the budget" data-is="budget" max=(budget.max(1e-9)) value=(run.usage.cost_usd) {}
                                    " of " (format_usd(budget))
                                }
                                None => { "no budget" }
                            }
                        }
                        td.n data-label="seconds" data-is="seconds" { (format!("{:.1}", run.seconds())) }
                    }
                    @if let Some(failure) = &run.failure {
                        @let again = all[..n].iter().any(|r| is_same_failure(r, run));
                        tr { td {} td.failure colspan="9" {
                            @if again { span.quiet { "failed, see above" } }
                            @else { details { summary { (failure.message()) } (render_failure(failure)) } }
                        } }
                    }
                }
            }
        } } }
    }
}

/// Renders the setting for keyboard shortcuts of one key. The script makes it visible.
fn render_key_setting() -> Markup {
    html! { label hidden { input type="checkbox" name="single-keys" checked; "Single-key shortcuts (in this browser)" } }
}

/// Returns true if two runs of a spec failed with the same message, which the page shows only once.
fn is_same_failure(one: &RunStatus, other: &RunStatus) -> bool {
    let message = |run: &RunStatus| run.failure.as_ref().map(|failure| failure.to_text());
    one.spec == other.spec && message(one) == message(other)
}

/// Formats an amount in USD.
fn format_usd(usd: f64) -> String {
    crate::format::format_cost(usd)
}

/// Shortens a UTC timestamp to minutes.
fn shorten_time(timestamp: &str) -> String {
    timestamp.get(..16).unwrap_or(timestamp).replace('T', " ")
}

/// Truncates a text to a number of characters.
fn truncate_text(text: &str, chars: usize) -> String {
    match text.char_indices().nth(chars) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

/// Returns the `dir` attribute of a text: `auto` if it contains letters that are written from right to
/// left. Without the attribute, browsers lay out a large table faster.
fn text_direction(text: &str) -> Option<&'static str> {
    let is_right_to_left = |c: char| matches!(c, '\u{590}'..='\u{8ff}' | '\u{fb1d}'..='\u{fdff}' | '\u{fe70}'..='\u{fefc}' | '\u{10800}'..='\u{10fff}' | '\u{1e800}'..='\u{1efff}');
    text.contains(is_right_to_left).then_some("auto")
}

/// Returns true if a value needs a wide table column.
fn needs_wide_column(text: &str) -> bool {
    text.chars().count() > 40
}

/// Returns true if a value is a date, a code or the size of a blob, which should not be broken at a
/// hyphen, a slash or a space.
fn is_word(text: &str) -> bool {
    let is_code = text.contains(['-', '/', '?']) && !text.contains(char::is_whitespace);
    text.len() <= 24 && (is_code || text.starts_with("BLOB ("))
}

/// Formats a value of a key or a cell.
pub(super) fn format_value(value: &Json) -> String {
    match value {
        Json::Null => "NULL".to_owned(),
        Json::String(text) => text.clone(),
        Json::Array(items) => items.iter().map(format_value).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}
