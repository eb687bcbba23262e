//! The page of a cell, with its provenance and a form to override it.

use axum::extract::{Path, Query, Request, State};
use axum::response::{IntoResponse, Response};
use maud::{Markup, html};
use serde_json::Value as Json;

use super::super::api::{OverrideChange, OverrideRequest, read_provenance};
use super::super::query::run_blocking;
use super::super::reply::HttpError;
use super::{
    ErrorPage, HttpState, QueryPairs, ShownPage, find_spec, percent_encode, read_form, redirect_to,
    render_failure, render_page, shorten_time, spec_path,
};
use super::{format_value, medium};
use crate::database::provenance::CellProvenance;
use crate::failure::Failure;
use crate::overrides::NO_VALUE;
use crate::spec::{Column, Expansion};

/// Maximum number of a list's values to show beside the form; the form itself offers all of them.
const MAX_LISTED: usize = 12;

/// Returns the path of a cell's page.
pub(super) fn cell_path(spec: &str, table: &str, key: &[Json], column: &str) -> String {
    let mut path = format!(
        "{}/cell?table={}&column={}",
        spec_path(spec),
        percent_encode(table),
        percent_encode(column)
    );
    for part in key {
        path.push_str("&key=");
        path.push_str(&percent_encode(&format_value(part)));
    }
    path
}

/// Handles `GET /specs/{spec}/cell?table=…&column=…&key=…`.
pub(super) async fn show_cell(
    State(state): State<HttpState>,
    Path(name): Path<String>,
    Query(asked): Query<QueryPairs>,
) -> ShownPage {
    render_cell_page(&state, &name, &asked, None).await
}

/// Renders the page of a cell. `rejected` are the fields of a rejected form, and the reason.
async fn render_cell_page(
    state: &HttpState,
    name: &str,
    asked: &QueryPairs,
    rejected: Option<(&OverrideRequest, &Failure)>,
) -> ShownPage {
    find_spec(state, name)?;
    let mut of_spec = asked.clone();
    of_spec.retain(|(n, _)| n != "spec");
    of_spec.push(("spec".to_owned(), name.to_owned()));
    let cells = read_provenance(state, of_spec).await?;
    let (table, column, key) = parse_cell_address(asked);
    let (_, active_spec) = state.find_active_spec(Some(name))?;
    let of_table = |e: &&Expansion| {
        let many = |c: &Column| c.many.as_ref().map(|many| many.table.clone());
        let mut tables = e.columns.iter().filter_map(many).chain([e.name.clone()]);
        tables.any(|name| name.eq_ignore_ascii_case(&table))
    };
    let expansion = active_spec.spec.expansions.iter().find(of_table);
    let media = match expansion.filter(|e| e.has_media()) {
        None => None,
        Some(expansion) => {
            let (client_guard, _) = state.context.clients.begin_work();
            let permit = state.acquire_read_permit().await?;
            let (spec, key, expansion) = (name.to_owned(), key.clone(), expansion.clone());
            let asked = asked.clone();
            // Reads and hashes whole files.
            let render = move || Ok(medium::render_media(&spec, &expansion, &key, &asked));
            Some(run_blocking(permit, client_guard, render).await?)
        }
    };
    let declared = expansion.and_then(|e| Some(&e.columns[e.find_column(&column)?]));
    let list = declared.and_then(|c| c.values.as_ref()).map_or(&[][..], |list| &list.values);
    let many = declared.is_some_and(|c| c.many.is_some());
    let (value, note, force) = match rejected {
        Some((typed, _)) => (typed.value.clone(), typed.note.clone(), typed.force),
        None => {
            let value = cells.first().map(|c| format_override(&c.to_json()["value"]));
            (value.unwrap_or_default(), String::new(), false)
        }
    };
    let overridden = cells.iter().any(|c| c.state == "overridden" || c.note.is_some());
    let table_path = format!("{}/tables/{}", spec_path(name), percent_encode(&table));
    Ok(render_page(
        &column,
        &html! {
            h1 { a href=(spec_path(name)) { (name) } " / " a href=(table_path) { (table) } " / " (column) }
            div.halves {
            div.card { @if let Some(media) = &media { (media) } @for cell in &cells { (render_provenance_table(cell)) (render_evidence(cell)) } }
            section.card {
            h2 { "Override" }
            @if let Some((_, failure)) = rejected { (render_failure(failure)) }
            p.quiet { "It replaces the model's answer permanently. hqdl saves it in the overrides file next to the spec." }
            form.fields method="post" action=(format!("{}/cell", spec_path(name))) {
                input type="hidden" name="table" value=(table);
                input type="hidden" name="column" value=(column);
                @for part in &key { input type="hidden" name="key" value=(part); }
                p { label { "Value " input name="value" value=(value) size="50" list="values" autocomplete="off"; }
                    @if many { " (several, with " code { "|" } " between them)" }
                    @if !list.iter().any(|v| v == NO_VALUE) { " (" code { (NO_VALUE) } " for no value)" } }
                @if !list.is_empty() {
                    datalist id="values" { @for value in list { option value=(value) {} } }
                    p.quiet.values { @if many { "Any of " } @else { "One of " } (list.len()) ":"
                        @for value in list.iter().take(MAX_LISTED) { " " code { (value) } }
                        @if list.len() > MAX_LISTED { " …" } }
                }
                p { label { "Why " input name="note" value=(note) size="50"; } }
                p { label { input type="checkbox" name="force" value="yes" checked[force]; " even if the value is not in the list, or no source has the key" } }
                button.main name="do" value="set" { "Override" }
                @if overridden { " " button name="do" value="unset" { "Remove the override" } }
            }
            } }
        },
    ))
}

/// Handles `POST /specs/{spec}/cell`.
pub(super) async fn set_override(
    State(state): State<HttpState>,
    Path(name): Path<String>,
    request: Request,
) -> Result<Response, ErrorPage> {
    let pairs: QueryPairs = read_form(request).await?;
    find_spec(&state, &name)?;
    let one = |n: &str| pairs.iter().find(|(m, _)| m == n).map(|(_, v)| v.clone());
    let (table, column, key) = parse_cell_address(&pairs);
    let change = match one("do").as_deref() {
        Some("set") | None => OverrideChange::Set,
        Some("unset") => OverrideChange::Remove,
        Some(other) => {
            return Err(HttpError::bad_request(format!("this page cannot do `{other}`"), "").into());
        }
    };
    let parts: Vec<Json> = key.iter().map(|k| k.as_str().into()).collect();
    let location = cell_path(&name, &table, &parts, &column);
    let spec = name.clone();
    let request_body = OverrideRequest {
        spec: Some(name),
        table,
        key,
        column,
        value: one("value").unwrap_or_default(),
        note: one("note").unwrap_or_default(),
        force: one("force").is_some(),
    };
    let typed = request_body.clone();
    if let Err(HttpError { status, failure }) = state.override_cell(request_body, change).await {
        // The form keeps what the user has typed.
        let mut address = pairs;
        address.retain(|(name, _)| ["table", "column", "key"].contains(&name.as_str()));
        let page = render_cell_page(&state, &spec, &address, Some((&typed, &failure))).await?;
        return Ok((status, page).into_response());
    }
    // Give the daemon time to update the tables before the page is reloaded.
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    Ok(redirect_to(&location))
}

/// Returns the table, column and key from the parameters of a query or a form.
fn parse_cell_address(pairs: &QueryPairs) -> (String, String, Vec<String>) {
    let one = |n: &str| pairs.iter().find(|(m, _)| m == n).map(|(_, v)| v.clone());
    let key = pairs.iter().filter(|(n, _)| n == "key").map(|(_, v)| v.clone()).collect();
    (one("table").unwrap_or_default(), one("column").unwrap_or_default(), key)
}

/// Formats a value as in an overrides file.
fn format_override(value: &Json) -> String {
    match value {
        Json::Null => String::new(),
        Json::Array(items) => items.iter().map(format_value).collect::<Vec<_>>().join("|"),
        other => format_value(other),
    }
}

fn render_provenance_table(cell: &CellProvenance) -> Markup {
    let json = cell.to_json();
    let shows = matches!(cell.state.as_str(), "ok" | "overridden");
    let lines: [(&str, Option<String>); 11] = [
        ("raw answer", cell.raw.clone()),
        (if shows { "repaired" } else { "reason" }, cell.repair.clone()),
        ("note", cell.note.clone()),
        ("error", cell.error.clone()),
        ("model", cell.model.clone()),
        ("parameters", cell.parameters.clone()),
        ("asked", cell.asked_at.as_deref().map(|time| format!("{} UTC", shorten_time(time)))),
        ("run", cell.run.map(|r| r.to_string())),
        ("prompt", cell.prompt_hash.clone()),
        (
            "tokens",
            cell.input_tokens
                .zip(cell.output_tokens)
                .map(|(i, o)| format!("{i:.1} in, {o:.1} out")),
        ),
        (
            "cost",
            cell.cost_usd.map(|c| {
                let note = cell.price_note().map_or(String::new(), |note| format!(" ({note})"));
                format!("${c:.6}{note}")
            }),
        ),
    ];
    html! {
        table.why {
            tr { th { "key" } td { (format_value(&json["key"])) } }
            tr { th { "state" } td { span class={ "badge " (cell.state) } { (cell.state) } } }
            tr { th { "value" } td.value { @if shows { (format_value(&json["value"])) } @else { "NULL" } } }
            @for (name, value) in lines {
                @if let Some(value) = value { tr { th { (name) } td { (value) } } }
            }
        }
    }
}

/// Renders the passages that the cell's request showed, with the quoted words marked.
pub(super) fn render_evidence(cell: &CellProvenance) -> Markup {
    let Some(evidence) = &cell.evidence else { return html! {} };
    html! {
        h3 { "Evidence" }
        @if evidence.passages.is_empty() { p.quiet { "No passage of the documents was found." } }
        @for passage in &evidence.passages {
            @let quotes: Vec<&str> = evidence.quotes.iter().filter(|q| q.passage == passage.id).map(|q| q.quote.as_str()).collect();
            details open[!quotes.is_empty()] {
                summary { (passage.source) }
                p.small { (mark_quotes(&passage.text, &quotes)) }
            }
        }
    }
}

/// Marks quoted words in a text. Quotes that differ from the text in case or white space are shown
/// after the text.
fn mark_quotes(text: &str, quotes: &[&str]) -> Markup {
    let find = |quote: &&str| text.find(*quote).map(|at| at..at + quote.len());
    let mut marks: Vec<std::ops::Range<usize>> = quotes.iter().filter_map(find).collect();
    marks.sort_by_key(|mark| mark.start);
    let mut position = 0;
    let mut parts: Vec<(&str, bool)> = Vec::new();
    for mark in marks {
        if mark.start >= position {
            parts.extend([(&text[position..mark.start], false), (&text[mark.clone()], true)]);
            position = mark.end;
        }
    }
    parts.push((&text[position..], false));
    html! {
        @for (part, is_quoted) in parts { @if is_quoted { mark { (part) } } @else { (part) } }
        @for quote in quotes.iter().filter(|quote| !text.contains(**quote)) { " " mark { (quote) } }
    }
}
