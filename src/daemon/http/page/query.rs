//! The query form. It runs a query, or first shows its requests and its cost.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::{Query, Request, State};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use maud::{Markup, html};
use rusqlite::types::ValueRef;
use serde::Deserialize;
use serde_json::{Value as Json, json};
use tokio::sync::mpsc;

use super::super::query::{AskedQuery, QuerySpending, collect_rows, explain_request};
use super::super::reply::HttpError;
use super::super::rows::estimate_value_length;
use super::export::{ExportFormat, ExportSink};
use super::result_chart::{ChartChoice, ChartKind, ResultChart, ResultRows, ShownValue};
use super::row_source::MAX_BLOB_BYTES;
use super::schema::render_schemas;
use super::spec_edit::add_example;
use super::{
    ErrorPage, HttpState, Page, format_usd, is_word, needs_wide_column, percent_encode, read_form,
    render_failure, render_main_page, truncate_text,
};
use crate::daemon::status::{DaemonStatus, SpecStatus};
use crate::format::{format_count, format_thousands, format_usd_bound};
use crate::generate::{Event, Listener};
use crate::query::result::json as values;
use crate::query::{Meta, RowSink, params};
use crate::spec::file::ExampleTable;
use crate::spec::is_server;

/// Maximum number of rows to show.
const MAX_ROWS: usize = 500;

/// Maximum number of bytes to show.
const MAX_BYTES: u64 = 2 << 20;

/// Content type that the page's script accepts, to see the progress of a query.
const STREAM_TYPE: &str = "application/x-ndjson";
/// Maximum number of lines that wait for a slow reader.
const MAX_LINES_AHEAD: usize = 64;
/// Minimum time between two lines with rows.
const ROWS_INTERVAL: Duration = Duration::from_millis(100);

/// Prefix of the names of the form fields that contain the query's parameters.
const PARAMETER_PREFIX: &str = "param";

/// Fields of the form.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct QueryForm {
    spec: String,
    sql: String,
    #[serde(rename = "do")]
    action: String,
    /// Confidence of the intervals in percent; empty if no intervals are requested.
    interval: String,
    chart: String,
    x: String,
    y: String,
    series: String,
    /// Maximum cost in USD that the page has shown; empty if it showed none.
    max_cost: String,
    /// Question under which the query is saved as an example.
    title: String,
    /// Values of the query's parameters as SQL literals, by field name. Each field name begins with
    /// [`PARAMETER_PREFIX`].
    #[serde(flatten)]
    parameters: BTreeMap<String, String>,
}

impl QueryForm {
    fn to_request(&self) -> Result<AskedQuery, HttpError> {
        let spec = Some(self.spec.clone()).filter(|s| !s.is_empty());
        let interval = match self.interval.trim() {
            "" => None,
            text => Some(text.parse().map_err(|_| {
                let why = format!("`{text}` is not a valid confidence");
                HttpError::bad_request(why, "enter percent, such as 95")
            })?),
        };
        let values = params::list_parameters(&self.sql).into_iter();
        let values = values.map(|name| {
            (name.to_owned(), params::parse_literal(self.parameter_text(name)).to_json())
        });
        let params = Json::Object(values.collect());
        Ok(AskedQuery { spec, sql: self.sql.clone(), interval, params, ..AskedQuery::default() })
    }

    /// Returns the address of the page with this query, its parameters and its chart.
    fn to_link(&self) -> String {
        let fields = [
            ("spec", &self.spec),
            ("sql", &self.sql),
            ("interval", &self.interval),
            ("chart", &self.chart),
            ("x", &self.x),
            ("y", &self.y),
            ("series", &self.series),
        ];
        let fields = fields.into_iter().map(|(name, value)| (name.to_owned(), value.as_str()));
        let parameters = params::list_parameters(&self.sql).into_iter();
        let parameters =
            parameters.map(|name| (format!("{PARAMETER_PREFIX}{name}"), self.parameter_text(name)));
        let pairs = fields.filter(|(_, value)| !value.is_empty()).chain(parameters);
        let pairs = pairs
            .map(|(name, value)| format!("{}={}", percent_encode(&name), percent_encode(value)));
        format!("/query?{}", pairs.collect::<Vec<_>>().join("&"))
    }

    /// Returns true if the form has a query and a value for each of its parameters.
    fn is_complete(&self) -> bool {
        let has_value =
            |name: &&str| self.parameters.contains_key(&format!("{PARAMETER_PREFIX}{name}"));
        !self.sql.trim().is_empty() && params::list_parameters(&self.sql).iter().all(has_value)
    }

    /// Returns the text that the user entered for a parameter.
    fn parameter_text(&self, name: &str) -> &str {
        self.parameters.get(&format!("{PARAMETER_PREFIX}{name}")).map_or("", String::as_str)
    }
}

/// Result of submitting the form.
enum QueryOutcome {
    Nothing,
    Rows(Meta, RowsPreview),
    Explained(Meta),
    /// The query was saved; contains a message.
    Saved(String),
    Failed(HttpError),
}

/// The first rows of a result.
#[derive(Default)]
pub(super) struct RowsPreview {
    pub(super) columns: Vec<String>,
    rows: Vec<Vec<ShownValue>>,
    pub(super) count: usize,
    bytes: u64,
}

impl RowsPreview {
    /// Returns whether each column contains only numbers and NULL.
    fn find_numeric_columns(&self) -> Vec<bool> {
        let rows = ResultRows { columns: &self.columns, rows: &self.rows, count: self.count };
        (0..self.columns.len()).map(|n| rows.is_numeric(n)).collect()
    }
}

impl RowSink for RowsPreview {
    fn write_columns(&mut self, names: &[String]) -> std::io::Result<()> {
        self.columns = names.to_vec();
        Ok(())
    }

    fn write_row(&mut self, row: &[ValueRef<'_>]) -> std::io::Result<()> {
        self.count += 1;
        self.bytes = self.bytes.saturating_add(row.iter().map(estimate_value_length).sum());
        if self.count <= MAX_ROWS && self.bytes <= MAX_BYTES {
            let shown = |value: &ValueRef<'_>| ShownValue {
                text: match value {
                    ValueRef::Null => None,
                    ValueRef::Blob(bytes) if bytes.len() > MAX_BLOB_BYTES => {
                        Some(format!("BLOB ({} B)", format_thousands(bytes.len() as u64)))
                    }
                    value => Some(values::format_text(*value)),
                },
                number: match value {
                    ValueRef::Integer(integer) => Some(*integer as f64),
                    ValueRef::Real(real) => Some(*real),
                    _ => None,
                },
            };
            self.rows.push(row.iter().map(shown).collect());
        }
        Ok(())
    }

    fn finish(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Handles `GET /query`: shows the form, and the rows of a query that needs no request. For any other
/// query it shows the price, because a link must not spend.
pub(super) async fn show_query(
    State(state): State<HttpState>,
    headers: HeaderMap,
    Query(form): Query<QueryForm>,
) -> Response {
    let names_spec = !form.spec.is_empty() || state.context.status.borrow().specs.len() == 1;
    let is_run = names_spec && form.is_complete() && is_from_user(&headers);
    let outcome = if is_run && !reads_server(&state, &form.spec) {
        show_free_rows(&state, &form).await.unwrap_or_else(QueryOutcome::Failed)
    } else {
        QueryOutcome::Nothing
    };
    match &outcome {
        QueryOutcome::Failed(error) if error.status.is_server_error() => {
            render_query(&state, &form, &outcome).await
        }
        // The page itself was found, even if its query is wrong.
        _ => render_query_page(&state, &form, &outcome).await.into_response(),
    }
}

/// Returns true if the user typed the address or followed a link of the daemon's own page. Another
/// site must not run queries, neither with a link nor by embedding the page.
fn is_from_user(headers: &HeaderMap) -> bool {
    let site = headers.get("sec-fetch-site").and_then(|value| value.to_str().ok());
    site.is_some_and(|site| ["same-origin", "none"].contains(&site))
}

/// Returns true if a query of the spec reads a database on a server, where it could change data or
/// take long.
fn reads_server(state: &HttpState, spec: &str) -> bool {
    let name = Some(spec).filter(|name| !name.is_empty());
    let found = state.find_active_spec(name);
    found.is_ok_and(|(_, active)| is_server(&active.spec.database))
}

/// Runs a query from stored answers, or explains it if it needs requests.
async fn show_free_rows(state: &HttpState, form: &QueryForm) -> Result<QueryOutcome, HttpError> {
    let request = form.to_request()?;
    let meta = explain_request(state, request.clone()).await?;
    if needs_requests(&meta) {
        return Ok(QueryOutcome::Explained(meta));
    }
    let sink = RowsPreview::default();
    let (meta, rows) = collect_rows(state, request, QuerySpending::Forbidden, None, sink).await?;
    Ok(QueryOutcome::Rows(meta, rows))
}

fn needs_requests(meta: &Meta) -> bool {
    meta.values_asked > 0 || !meta.unbounded.is_empty()
}

/// Handles `POST /query`.
pub(super) async fn run_query(
    State(state): State<HttpState>,
    request: Request,
) -> std::result::Result<Response, ErrorPage> {
    let accepts = request.headers().get(header::ACCEPT).and_then(|v| v.to_str().ok());
    let is_streamed = accepts.is_some_and(|accepts| accepts == STREAM_TYPE);
    let form: QueryForm = read_form(request).await?;
    if let Some(format) = ExportFormat::from_name(&form.action) {
        return Ok(export_result(&state, &form, format).await?);
    }
    if is_streamed {
        return Ok(stream_query(state, form));
    }
    let outcome = run_form_action(&state, &form, None).await;
    Ok(render_query(&state, &form, &outcome.unwrap_or_else(QueryOutcome::Failed)).await)
}

/// Runs a query for the page's script, which receives JSON lines: the progress of the requests, the
/// first rows as soon as the database returns them, and finally the page. The query ends when the
/// client disconnects, because the response drops it.
fn stream_query(state: HttpState, form: QueryForm) -> Response {
    let (lines, received) = mpsc::channel(MAX_LINES_AHEAD);
    let live = LiveLines::new(lines);
    live.send(&json!({ "progress": { "values": 0, "requests": 0, "cost_usd": 0.0 } }));
    let work = async move {
        let outcome = run_form_action(&state, &form, Some(live)).await;
        let outcome = outcome.unwrap_or_else(QueryOutcome::Failed);
        let page = render_query_page(&state, &form, &outcome).await;
        format!("{}\n", json!({ "page": page.into_text() }))
    };
    let parts = (Box::pin(work), received, false);
    let body = stream::unfold(parts, |(mut work, mut received, is_done)| async move {
        if is_done {
            return None;
        }
        let (line, is_done) = tokio::select! {
            biased;
            Some(line) = received.recv() => (line, false),
            page = &mut work => (page, true),
        };
        Some((Ok::<_, Infallible>(line), (work, received, is_done)))
    });
    ([(header::CONTENT_TYPE, STREAM_TYPE)], Body::from_stream(body)).into_response()
}

/// Sends lines to the page's script while a query runs. A line is lost if the client reads slowly,
/// because the page at the end contains everything.
#[derive(Clone)]
struct LiveLines {
    lines: mpsc::Sender<String>,
    /// Number of values, requests and USD so far.
    progress: Arc<Mutex<(u64, u64, f64)>>,
}

impl LiveLines {
    fn new(lines: mpsc::Sender<String>) -> Self {
        Self { lines, progress: Arc::default() }
    }

    fn send(&self, line: &Json) {
        let _ = self.lines.try_send(format!("{line}\n"));
    }

    /// Returns a listener that sends the progress after each request.
    fn to_listener(&self) -> Listener {
        let live = self.clone();
        Arc::new(move |event: &Event| {
            let Event::Stored { cells, usage } = event else { return };
            let mut progress = live.progress.lock().unwrap_or_else(PoisonError::into_inner);
            progress.0 += cells.total();
            // Events from several threads may arrive out of order.
            progress.1 = progress.1.max(usage.requests);
            progress.2 = progress.2.max(usage.cost_usd);
            let (values, requests, cost_usd) = *progress;
            live.send(&json!({ "progress": { "values": values, "requests": requests, "cost_usd": cost_usd } }));
        })
    }
}

/// The first rows of a result, which are also sent to the page's script as they arrive.
struct LiveRows {
    preview: RowsPreview,
    live: Option<LiveLines>,
    /// Number of rows that have been sent.
    sent: usize,
    last_sent: Option<Instant>,
}

impl LiveRows {
    /// Sends the rows that have arrived since the last call.
    fn send_rows(&mut self) {
        let Some(live) = &self.live else { return };
        let is_numeric = self.preview.find_numeric_columns();
        let rows = html! { @for row in &self.preview.rows[self.sent..] { (render_row(row, &is_numeric)) } };
        live.send(&json!({ "rows": rows.into_string() }));
        self.sent = self.preview.rows.len();
        self.last_sent = Some(Instant::now());
    }
}

impl RowSink for LiveRows {
    fn write_columns(&mut self, names: &[String]) -> std::io::Result<()> {
        self.preview.write_columns(names)?;
        if let Some(live) = &self.live {
            live.send(&json!({ "table": render_rows_table(&self.preview).into_string() }));
        }
        Ok(())
    }

    fn write_row(&mut self, row: &[ValueRef<'_>]) -> std::io::Result<()> {
        self.preview.write_row(row)?;
        let is_due = self.last_sent.is_none_or(|sent| sent.elapsed() >= ROWS_INTERVAL);
        if self.preview.rows.len() > self.sent && is_due {
            self.send_rows();
        }
        Ok(())
    }

    fn finish(&mut self) -> std::io::Result<()> {
        self.preview.finish()
    }
}

async fn run_form_action(
    state: &HttpState,
    form: &QueryForm,
    live: Option<LiveLines>,
) -> Result<QueryOutcome, HttpError> {
    let mut request = form.to_request()?;
    if form.action == "explain" {
        return explain_request(state, request).await.map(QueryOutcome::Explained);
    }
    if form.action == "save" {
        // Save a query only if it can run.
        explain_request(state, request).await?;
        let sql = form.sql.replace("\r\n", "\n").trim().to_owned();
        let example = ExampleTable { question: form.title.trim().to_owned(), sql };
        return add_example(state, &form.spec, example).await.map(QueryOutcome::Saved);
    }
    // If the query costs something that the button did not show, show the cost first.
    let meta = explain_request(state, request.clone()).await?;
    let mut spending = QuerySpending::AsConfigured;
    if needs_requests(&meta) {
        if form.action != "spend" || !is_cost_shown(&meta, form) {
            return Ok(QueryOutcome::Explained(meta));
        }
        spending = QuerySpending::Approved;
        request.budget = form.max_cost.parse().ok();
    }
    let progress = live.as_ref().map(LiveLines::to_listener);
    let sink = LiveRows { preview: RowsPreview::default(), live, sent: 0, last_sent: None };
    let (meta, rows) = collect_rows(state, request, spending, progress, sink).await?;
    Ok(QueryOutcome::Rows(meta, rows.preview))
}

/// Returns true if the page has shown a query's maximum cost, or that it has none. The SQL and the
/// tables may have changed since.
fn is_cost_shown(meta: &Meta, form: &QueryForm) -> bool {
    let shown: f64 = form.max_cost.parse().unwrap_or(0.0);
    !meta.unbounded.is_empty() || meta.cost_usd <= shown
}

/// Runs a query again and returns all of its rows as a download. If the query would send requests,
/// returns the page with its cost instead.
async fn export_result(
    state: &HttpState,
    form: &QueryForm,
    format: ExportFormat,
) -> Result<Response, HttpError> {
    format.check_available()?;
    let meta = explain_request(state, form.to_request()?).await?;
    if needs_requests(&meta) {
        return Ok(render_query(state, form, &QueryOutcome::Explained(meta)).await);
    }
    let sink = ExportSink::new(format, state.context.settings.max_bytes);
    let (_, sink) =
        collect_rows(state, form.to_request()?, QuerySpending::AsConfigured, None, sink).await?;
    Ok((format.headers("result"), sink.body).into_response())
}

async fn render_query(state: &HttpState, form: &QueryForm, outcome: &QueryOutcome) -> Response {
    let page = render_query_page(state, form, outcome).await;
    match outcome {
        QueryOutcome::Failed(error) => (error.status, page).into_response(),
        _ => page.into_response(),
    }
}

async fn render_query_page(state: &HttpState, form: &QueryForm, outcome: &QueryOutcome) -> Page {
    let schemas = render_schemas(state, &form.spec).await;
    let status = state.context.status.borrow().clone();
    let content = html! {
        h1 { "Query" }
        form #query method="post" action="/query" {
            input #max-cost type="hidden" name="max_cost" value=[find_shown_cost(outcome)];
            div.beside {
                div {
                    div.editor { textarea #sql name="sql" rows="6" aria-label="SQL" spellcheck="false" autocapitalize="off" { (form.sql) } }
                    div #completion .chips hidden aria-label="Completions" role="group" {}
                    (render_parameters(form))
                    (render_query_controls(form, &status))
                    (render_saved_queries(form, &status, state.context.settings.edit))
                }
                div.schemas tabindex="0" role="region" aria-label="Tables and columns" { (schemas) }
            }
            @if let QueryOutcome::Explained(meta) = outcome { (render_explanation_section(meta, has_price(state, form))) }
        }
        div #live aria-busy="true" hidden {}
        @match outcome {
            QueryOutcome::Nothing | QueryOutcome::Explained(_) => {}
            QueryOutcome::Saved(message) => p.note role="status" { (message) },
            QueryOutcome::Failed(error) => (render_failure(&error.failure)),
            QueryOutcome::Rows(meta, rows) => { (render_rows_section(form, rows)) (render_usage_section(meta)) }
        }
    };
    render_main_page("Query", &content)
}

/// Returns the maximum cost that the page shows, rounded as on the button; `None` if there is no
/// maximum, or the query is free.
fn find_shown_cost(outcome: &QueryOutcome) -> Option<String> {
    let QueryOutcome::Explained(meta) = outcome else { return None };
    let is_limit = meta.unbounded.is_empty() && meta.cost_usd > 0.0;
    is_limit.then(|| format_usd_bound(meta.cost_usd).trim_start_matches('$').to_owned())
}

/// Renders a field for each parameter of the query. The script updates them while the user types.
fn render_parameters(form: &QueryForm) -> Markup {
    let names = params::list_parameters(&form.sql);
    html! {
        div #parameters .row.controls role="group" aria-label="Parameters" data-prefix=(PARAMETER_PREFIX) hidden[names.is_empty()] {
            @for name in names {
                label { code { (name) } " " input name=(format!("{PARAMETER_PREFIX}{name}")) value=(form.parameter_text(name)) placeholder="number or text"; }
            }
        }
    }
}

fn render_query_controls(form: &QueryForm, status: &DaemonStatus) -> Markup {
    html! {
        div.row.controls {
            label { "Spec " select name="spec" {
                @for spec in status.specs.values() {
                    option value=(spec.name) selected[spec.name == form.spec] { (spec.name) }
                }
            } }
            label { "Interval " input name="interval" value=(form.interval) size="5" inputmode="decimal" placeholder="none"; " %" }
            button.main name="do" value="run" { "Run" }
            button name="do" value="explain" { "Explain" }
            button #cancel type="button" hidden { "Cancel" }
            span #price .quiet { "If a query needs the model, its cost is shown first." }
        }
        details #history hidden { summary { "History" } ul {} }
    }
}

/// Renders the queries that the specs keep as examples, and the field that adds one.
fn render_saved_queries(form: &QueryForm, status: &DaemonStatus, can_edit: bool) -> Markup {
    let is_shown = |spec: &&Arc<SpecStatus>| form.spec.is_empty() || spec.name == form.spec;
    let saved: Vec<(&str, &ExampleTable)> = (status.specs.values().filter(is_shown))
        .filter_map(|spec| Some((spec.name.as_str(), spec.active_spec.as_ref()?)))
        .flat_map(|(name, active)| active.spec.ask.examples.iter().map(move |e| (name, e)))
        .collect();
    html! { @if can_edit || !saved.is_empty() {
        details.saved { summary { "Saved queries" }
            @if saved.is_empty() { p.quiet { "No saved query yet. Write a query above, enter the question that it answers, and save it." } }
            ul { @for (spec, example) in &saved { li {
                a href=(format!("/query?spec={}&sql={}", percent_encode(spec), percent_encode(example.sql.trim()))) { (example.question) }
            } } }
            @if can_edit {
                div.row.controls {
                    label { "Question " input name="title" size="30"; }
                    button name="do" value="save" { "Save this query" }
                }
                p.small.quiet { "Saved queries are the examples of the spec, which the Ask page uses, too." }
            }
        }
    } }
}

/// Renders the rows of a result with their chart.
fn render_rows_section(form: &QueryForm, preview: &RowsPreview) -> Markup {
    let (columns, rows) = (&preview.columns, &preview.rows);
    let rows = ResultRows { columns, rows, count: preview.count };
    let choice = ChartChoice { kind: &form.chart, x: &form.x, y: &form.y, series: &form.series };
    let chart = rows.choose_chart(choice);
    html! {
        div.row.controls {
            h2 #result tabindex="-1" { (format_count(preview.count as u64, "row")) @if preview.count > preview.rows.len() { ", the first " (preview.rows.len()) " shown" } }
            span { "Download "
                @for format in ExportFormat::list_available() {
                    button.slight form="query" name="do" value=(format.name()) { (format.label()) } " "
                } }
            a href=(form.to_link()) { "Link to this query" }
        }
        @if preview.rows.len() > 1 { (render_chart_section(form, &rows, chart.as_ref())) }
        (render_rows_table(preview))
    }
}

/// Renders the shown rows as a table.
pub(super) fn render_rows_table(preview: &RowsPreview) -> Markup {
    let is_numeric = preview.find_numeric_columns();
    html! {
        div.wide tabindex="0" role="region" aria-label="Rows" { table.rows.sortable {
            thead { tr { @for (name, is_numeric) in preview.columns.iter().zip(&is_numeric) { th scope="col" class=[is_numeric.then_some("n")] { (name) } } } }
            tbody {
                @for row in &preview.rows { (render_row(row, &is_numeric)) }
            }
        } }
    }
}

/// Shortens a number with many decimals to about six significant digits; `None` if it is short.
fn shorten_number(value: &ShownValue) -> Option<String> {
    let number = value.number.filter(|n| (0.001..1e6).contains(&n.abs()))?;
    let is_long = value.text.as_ref().is_some_and(|text| text.len() > 10);
    let decimals = (5.0 - number.abs().log10().floor()) as usize;
    (is_long && number.fract() != 0.0).then(|| format!("{number:.decimals$}"))
}

/// Renders a row. In a numeric column, NULL is aligned with the numbers.
fn render_row(row: &[ShownValue], is_numeric: &[bool]) -> Markup {
    html! { tr { @for (value, is_numeric) in row.iter().zip(is_numeric) {
        @match &value.text {
            Some(text) => {
                @let short = shorten_number(value);
                td class=[value.number.map(|_| "n").or(needs_wide_column(text).then_some("long")).or(is_word(text).then_some("word"))] title=[short.as_ref().map(|_| text)] { (short.as_ref().unwrap_or(text)) }
            }
            None => td.null.n[*is_numeric] { "NULL" },
        }
    } } }
}

/// Renders the chart that fits the types of the columns, if there is one.
pub(super) fn render_default_chart(preview: &RowsPreview) -> Markup {
    let (columns, rows) = (&preview.columns, &preview.rows);
    let rows = ResultRows { columns, rows, count: preview.count };
    // Bars that count rows are not useful if nearly every row has its own label.
    let chart = rows.choose_chart(ChartChoice::default());
    let chart = chart.filter(|chart| chart.kind != ChartKind::Bar || chart.y.is_some());
    html! { @if let Some(chart) = &chart {
        figure.card.result-chart { figcaption { (truncate_text(&rows.title(chart), 80)) } (rows.draw_rows(chart)) (render_chart_tools()) }
    } }
}

/// Renders a chart of the rows and the controls that change it.
fn render_chart_section(
    form: &QueryForm,
    rows: &ResultRows<'_>,
    chart: Option<&ResultChart>,
) -> Markup {
    let select = |name: &str, label: &str, none: &str, chosen: &str| {
        html! { label { (label) " " select name=(name) form="query" {
            option value="" { (none) }
            @for column in rows.columns { option value=(column) selected[column == chosen] { (truncate_text(column, 24)) } }
        } } }
    };
    html! {
        figure.card.result-chart {
            @match chart {
                Some(chart) => { figcaption { (truncate_text(&rows.title(chart), 80)) } (rows.draw_rows(chart)) (render_chart_tools()) }
                None => figcaption.quiet { "No chart of these columns." },
            }
            div.row.controls {
                label { "Chart " select name="chart" form="query" {
                    option value="" { "by type" }
                    @for kind in ChartKind::ALL { option value=(kind.name()) selected[kind.name() == form.chart] { (kind.name()) } }
                    option value="none" selected[form.chart == "none"] { "none" }
                } }
                (select("x", "x", "by type", &form.x))
                (select("y", "y", "by type", &form.y))
                (select("series", "color", "by type", &form.series))
                button form="query" name="do" value="run" { "Draw" }
            }
        }
    }
}

/// Renders the buttons that save a chart. The script makes them visible.
fn render_chart_tools() -> Markup {
    html! { div.chart-tools {
        button.slight type="button" data-save="svg" { "Save as SVG" }
        button.slight type="button" data-save="png" { "Save as PNG" }
        button.slight type="button" data-save="copy" { "Copy as PNG" }
        span.status.quiet.small role="status" {}
    } }
}

pub(super) fn render_usage_section(meta: &Meta) -> Markup {
    html! {
        p {
            (meta.values_asked) " values asked, " (meta.values_reused) " known, "
            (format_count(meta.requests, "request")) ", " (format_usd(meta.cost_usd)) (format_cost_notes(meta)) ", "
            (format!("{:.3}", meta.seconds)) " s"
        }
        @if meta.values_missing > 0 {
            p.note.bad { (format_count(meta.values_missing, "value")) " without an answer: NULL in the rows." }
        }
        (render_routes_section(meta))
    }
}

/// Formats the notes on a query's cost in parentheses. Returns an empty string if the query costs
/// nothing.
pub(super) fn format_cost_notes(meta: &Meta) -> String {
    let notes = if meta.cost_usd > 0.0 { meta.price_notes.join("; ") } else { String::new() };
    if notes.is_empty() { notes } else { format!(" ({notes})") }
}

/// Returns true if the prices of all models of the form's spec are known.
fn has_price(state: &HttpState, form: &QueryForm) -> bool {
    let name = Some(form.spec.as_str()).filter(|name| !name.is_empty());
    state.find_active_spec(name).is_ok_and(|(_, active)| active.spec.is_priced())
}

fn render_explanation_section(meta: &Meta, has_price: bool) -> Markup {
    let cost = if has_price || !needs_requests(meta) {
        format!("at most {}", format_usd_bound(meta.cost_usd))
    } else {
        "at an unknown price".to_owned()
    };
    html! {
        section #explanation .card aria-label="Price of the query" {
            p {
                "At most " (format_count(meta.values_asked, "value")) " to ask (" (meta.values_reused) " known) in "
                (format_count(meta.requests, "request")) ": " strong { (cost) } (format_cost_notes(meta)) "."
            }
            @for unbounded in &meta.unbounded {
                p.note.wait { "The number of additional questions of " code { (unbounded.call) } " is not known: " (unbounded.why) "." }
            }
            @if needs_requests(meta) {
                p { button.main name="do" value="spend" {
                    @if !meta.unbounded.is_empty() { "Run anyway" } @else if has_price { "Run, for " (cost) } @else { "Run, " (cost) }
                } }
            }
            (render_routes_section(meta))
        }
    }
}

pub(super) fn render_routes_section(meta: &Meta) -> Markup {
    html! {
        @for route in &meta.routes {
            p { code { (route.call) } " → " (route.route.name()) " " strong { (route.expansion) " " (route.column) } ": " (route.why)
                @if let Some(bound) = route.bound.filter(|_| meta.routes.len() > 1 && meta.requests > 0) {
                    " (at most " (format_count(bound.values, "value")) " in " (format_count(bound.usage.requests, "request"))
                    ", " (format_usd_bound(bound.usage.cost_usd)) ")"
                }
            }
        }
        @if !meta.plan.rules.is_empty() || !meta.plan.selects.is_empty() { details { summary { "Plan" } (render_plan_tree(meta)) } }
        details { summary { "SQL" } pre tabindex="0" { (meta.sql) } }
    }
}

/// Renders the rules of a query's plan, followed by its SELECTs with their conditions and rules.
fn render_plan_tree(meta: &Meta) -> Markup {
    let rule = |name: &str, is_used: bool, why: &str| {
        html! { li { span.badge.ok[is_used] { @if is_used { "used" } @else { "not used" } } " " strong { (name) } ": " (why) } }
    };
    html! {
        ul.tree {
            @for outcome in &meta.plan.rules { (rule(outcome.rule, outcome.is_applied, &outcome.why)) }
            @for select in &meta.plan.selects {
                li { code { (select.text) }
                    ul {
                        @for condition in &select.conjuncts { li { code { (condition.text) } " " span.quiet { "evaluated " (condition.stage) } } }
                        @for outcome in &select.rules { (rule(outcome.rule, outcome.is_applied, &outcome.why)) }
                    }
                }
            }
        }
    }
}
