//! The query form: runs a query, or first shows what it would ask and cost.

use axum::extract::{Query, Request, State};
use axum::response::{IntoResponse, Response};
use maud::{Markup, html};
use rusqlite::types::ValueRef;
use serde::Deserialize;

use super::super::query::{AskedQuery, collect_rows, explain_request};
use super::super::reply::HttpRefusal;
use super::super::rows::value_length;
use super::{
    ErrorPage, HttpState, format_usd, percent_encode, read_form, render_page, show_failure,
};
use crate::daemon::status::SpecStatus;
use crate::query::result::json;
use crate::query::{Meta, RowSink};
use crate::spec::{Binding, Expansion, SourceRows};
use crate::sql;

/// Maximum number of rows to show.
const MAX_ROWS: usize = 500;

/// Maximum number of bytes to show.
const MAX_BYTES: u64 = 2 << 20;

/// Fields of the form.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct QueryForm {
    spec: String,
    sql: String,
    #[serde(rename = "do")]
    action: String,
}

/// Result of submitting the form.
enum QueryOutcome {
    Nothing,
    Rows(Meta, RowsPreview),
    Explained(Meta),
    Failed(HttpRefusal),
}

/// The first rows of a result, as text.
#[derive(Default)]
struct RowsPreview {
    columns: Vec<String>,
    rows: Vec<Vec<Option<String>>>,
    count: usize,
    bytes: u64,
}

impl RowSink for RowsPreview {
    fn write_columns(&mut self, names: &[String]) -> std::io::Result<()> {
        self.columns = names.to_vec();
        Ok(())
    }

    fn write_row(&mut self, row: &[ValueRef<'_>]) -> std::io::Result<()> {
        self.count += 1;
        self.bytes = self.bytes.saturating_add(row.iter().map(value_length).sum());
        if self.count <= MAX_ROWS && self.bytes <= MAX_BYTES {
            let text = |v: &ValueRef<'_>| (*v != ValueRef::Null).then(|| json::format_text(*v));
            self.rows.push(row.iter().map(text).collect());
        }
        Ok(())
    }

    fn finish(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// `GET /query`: shows the form; never runs the query in it.
pub(super) async fn show_query(
    State(state): State<HttpState>,
    Query(form): Query<QueryForm>,
) -> Response {
    render_query(&state, &form, &QueryOutcome::Nothing)
}

/// `POST /query`
pub(super) async fn run_query(
    State(state): State<HttpState>,
    request: Request,
) -> std::result::Result<Response, ErrorPage> {
    let form: QueryForm = read_form(request).await?;
    let spec = Some(form.spec.clone()).filter(|s| !s.is_empty());
    let request = AskedQuery { spec, sql: form.sql.clone(), ..AskedQuery::default() };
    let run_once = |request| async {
        collect_rows(&state, request, RowsPreview::default())
            .await
            .map(|(m, r)| QueryOutcome::Rows(m, r))
    };
    let outcome = match form.action.as_str() {
        "explain" => explain_request(&state, request).await.map(QueryOutcome::Explained),
        "spend" => run_once(request).await,
        // If the query costs something, show the price first.
        _ => match explain_request(&state, request.clone()).await {
            Ok(meta) if meta.values_asked > 0 || !meta.unbounded.is_empty() => {
                Ok(QueryOutcome::Explained(meta))
            }
            Ok(_) => run_once(request).await,
            Err(refusal) => Err(refusal),
        },
    };
    Ok(render_query(&state, &form, &outcome.unwrap_or_else(QueryOutcome::Failed)))
}

fn render_query(state: &HttpState, form: &QueryForm, outcome: &QueryOutcome) -> Response {
    let status = state.context.status.borrow().clone();
    let content = html! {
        h1 { "Query" }
        form method="post" action="/query" {
            p { label { "Spec " select name="spec" {
                @for spec in status.specs.values() {
                    option value=(spec.name) selected[spec.name == form.spec] { (spec.name) }
                }
            } } }
            div.beside {
                textarea name="sql" rows="12" aria-label="SQL" spellcheck="false" { (form.sql) }
                div { @for spec in status.specs.values().filter(|s| form.spec.is_empty() || s.name == form.spec) { (schema_section(spec)) } }
            }
            p {
                button.main name="do" value="run" { "Run" } " "
                button name="do" value="explain" { "Explain" }
                span.quiet { " If a query needs the model, its price is shown first." }
            }
            @if let QueryOutcome::Explained(meta) = outcome { (explanation_section(meta)) }
        }
        @match outcome {
            QueryOutcome::Nothing | QueryOutcome::Explained(_) => {}
            QueryOutcome::Failed(refusal) => (show_failure(&refusal.failure)),
            QueryOutcome::Rows(meta, rows) => { (rows_table(rows)) (usage_section(meta)) }
        }
    };
    let page = render_page("Query", &content);
    match outcome {
        QueryOutcome::Failed(refusal) => (refusal.status, page).into_response(),
        _ => page.into_response(),
    }
}

/// Shows the tables of a spec with their columns, and example queries.
fn schema_section(spec: &SpecStatus) -> Markup {
    let Some(loaded) = &spec.active_spec else { return html! {} };
    let example = |e: &Expansion| {
        let key = e.key.names().first().map_or("*", String::as_str);
        let column = e.columns.iter().find(|c| c.many.is_none()).map_or("*", |c| c.name.as_str());
        let (key, column) = (sql::quote_name(key), sql::quote_name(column));
        format!(
            "SELECT {key}, {column} FROM {} WHERE {column} IS NOT NULL LIMIT 20",
            sql::quote_name(&e.name)
        )
    };
    let link = |sql: &str| {
        format!("/query?spec={}&sql={}", percent_encode(&spec.name), percent_encode(sql))
    };
    html! {
        @for e in &loaded.spec.expansions {
            strong { code { (e.name) } }
            ul {
                li { (e.key.names().join(", ")) " " span.quiet { "(key)" } }
                @for c in &e.columns {
                    li { (c.name) " " span.quiet {
                        (c.kind.name()) @if let Some(many) = &c.many { ", in " code { (many.table) } }
                    } }
                }
                li { a href=(link(&example(e))) { "an example" } }
                @if let Some(asking) = question_example(e) { li { a href=(link(&asking)) { "one with a question" } } }
            }
        }
    }
}

/// Returns an example query that asks one of the spec's questions about the rows of a table.
fn question_example(of: &Expansion) -> Option<String> {
    let table = of.sources.iter().find_map(|source| match &source.rows {
        SourceRows::Table(table) => Some(sql::quote_name(table)),
        SourceRows::Select(_) => None,
    })?;
    let plain = |b: &&Binding| b.sql.is_none();
    let asked = of.columns.iter().find_map(|c| c.bindings.iter().find(plain))?;
    let (ask, key) = (asked.ask.replace('\'', "''"), sql::quote_name(of.key.names().first()?));
    Some(format!("SELECT {key}, {{{{LLMMap('{ask}', {table}.{key})}}}} FROM {table} LIMIT 20"))
}

fn rows_table(rows: &RowsPreview) -> Markup {
    html! {
        div.wide tabindex="0" role="region" aria-label="Rows" { table.rows {
            thead { tr { @for name in &rows.columns { th { (name) } } } }
            tbody {
                @for row in &rows.rows {
                    tr { @for value in row {
                        @match value { Some(text) => td { (text) }, None => td.null { "NULL" } }
                    } }
                }
            }
        } }
        p.quiet {
            (rows.count) " rows"
            @if rows.count > rows.rows.len() { ", the first " (rows.rows.len()) " shown" }
        }
    }
}

fn usage_section(meta: &Meta) -> Markup {
    html! {
        p {
            (meta.values_asked) " values asked, " (meta.values_reused) " known, "
            (meta.requests) " requests, " (format_usd(meta.cost_usd)) (price_notes(meta)) ", "
            (format!("{:.3}", meta.seconds)) " s"
        }
        (routes_section(meta))
    }
}

/// Returns the notes of a query's price in parentheses; nothing if it costs nothing.
fn price_notes(meta: &Meta) -> String {
    let notes = if meta.cost_usd > 0.0 { meta.price_notes.join("; ") } else { String::new() };
    if notes.is_empty() { notes } else { format!(" ({notes})") }
}

fn explanation_section(meta: &Meta) -> Markup {
    html! {
        p {
            "At most " (meta.values_asked) " values to ask (" (meta.values_reused) " known) in "
            (meta.requests) " requests: at most about " strong { (format_usd(meta.cost_usd)) } (price_notes(meta)) "."
        }
        @if meta.values_asked > 0 || !meta.unbounded.is_empty() {
            p { button name="do" value="spend" {
                @if meta.unbounded.is_empty() { "Run, for at most about " (format_usd(meta.cost_usd)) } @else { "Run anyway" }
            } }
        }
        @for unbounded in &meta.unbounded {
            p { "How much " code { (unbounded.call) } " asks in addition is not known: " (unbounded.why) "." }
        }
        (routes_section(meta))
    }
}

fn routes_section(meta: &Meta) -> Markup {
    html! {
        @for route in &meta.routes {
            p { code { (route.call) } " → " (route.route.name()) " " (route.expansion) " " (route.column) ": " (route.why) }
        }
        details { summary { "SQL" } pre { (meta.sql) } }
    }
}
