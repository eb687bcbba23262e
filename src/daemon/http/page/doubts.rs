//! The page that shows an expansion's least certain cells, one at a time. The cells are sorted by
//! their doubt, weighted by the number of queries that use the column.

use std::sync::Arc;

use axum::extract::{Path, Query, Request, State};
use axum::response::{IntoResponse, Response};
use maud::{Markup, html};
use serde_json::Value as Json;

use super::super::api::{OverrideChange, OverrideRequest, find_override};
use super::super::query::run_blocking;
use super::super::reply::HttpError;
use super::judged_cell::{CellAddress, JudgedCell, read_judged_cell, render_rows, render_sources};
use super::lineage::count_column_uses;
use super::review::{add_name, limit_name, render_accuracy, render_answer_forms, render_name_form};
use super::{
    ErrorPage, HttpState, QueryPairs, ShownPage, format_value, percent_encode, read_form,
    redirect_to, render_failure, render_page, spec_path, truncate_text,
};
use crate::audit::Audit;
use crate::audit::sheet::format_cell;
use crate::database::{Database, current_timestamp};
use crate::failure::Failure;
use crate::format::format_count;
use crate::materialize::{DoubtfulCell, Materializer, Selection};
use crate::model;
use crate::overrides::{NO_VALUE, Override, Overrides};
use crate::spec::{Expansion, Spec};

/// Maximum number of cells that a person can skip.
const MAX_SKIPPED: usize = 1000;

/// The cell to review, and the number of doubtful cells.
struct NextCell {
    /// Position of the expansion in the spec.
    expansion: usize,
    cell: Option<DoubtfulCell>,
    /// Number of queries that use the cell's column.
    uses: u64,
    count: usize,
    /// Number of cells of the expansion that people have reviewed.
    reviewed: usize,
    /// The expansion's audit.
    audit: Option<Audit>,
}

/// First words of the note of an override that a reviewer set.
const REVIEWED_BY: &str = "reviewed by ";

/// Returns the path of the page for a table, with the reviewer's name.
fn doubts_path(spec: &str, table: &str, who: &str) -> String {
    add_name(format!("{}/doubts?table={}", spec_path(spec), percent_encode(table)), who)
}

/// Returns the number of an expansion's cells that people have reviewed.
fn count_reviewed_cells(spec: &Spec, expansion: usize) -> Result<usize, Failure> {
    let overrides = Overrides::read(spec)?;
    let rows = overrides.list_overridden_rows(expansion);
    let cells = rows.iter().flat_map(|(_, cells)| cells.values());
    let is_reviewed =
        |cell: &Override| cell.note.as_deref().is_some_and(|n| n.starts_with(REVIEWED_BY));
    Ok(cells.filter(|cell| is_reviewed(cell)).count())
}

fn find_value<'p>(pairs: &'p QueryPairs, name: &str) -> &'p str {
    pairs.iter().find(|(n, _)| n == name).map_or("", |(_, value)| value)
}

fn find_key(pairs: &QueryPairs) -> Vec<String> {
    pairs.iter().filter(|(n, _)| n == "key").map(|(_, value)| value.clone()).collect()
}

fn key_texts(cell: &DoubtfulCell) -> Vec<String> {
    cell.key.iter().map(|value| format_value(&value.to_json())).collect()
}

/// Returns the position of an expansion. If the name is empty, returns the position of the first
/// expansion.
fn find_expansion(spec: &Spec, table: &str) -> Result<usize, Failure> {
    let is_named = |e: &Expansion| table.is_empty() || e.name.eq_ignore_ascii_case(table);
    spec.expansions.iter().position(is_named).ok_or_else(|| {
        let all: Vec<&str> = spec.expansions.iter().map(|e| &*e.name).collect();
        Failure::wrong_input(
            format!("no expansion `{table}`"),
            format!("there is {}", all.join(", ")),
        )
    })
}

/// Handles `GET /specs/{spec}/doubts?table=…&skip=…`.
pub(super) async fn show_doubts(
    State(state): State<HttpState>,
    Path(name): Path<String>,
    Query(asked): Query<QueryPairs>,
) -> ShownPage {
    render_doubts(&state, &name, &asked, None).await
}

/// Renders the page. `rejected` is an override that was not stored, and the reason.
async fn render_doubts(
    state: &HttpState,
    name: &str,
    asked: &QueryPairs,
    rejected: Option<(&OverrideRequest, &Failure)>,
) -> ShownPage {
    let (_, active_spec) = state.find_active_spec(Some(name))?;
    let (client_guard, _) = state.context.clients.begin_work();
    let permit = state.acquire_read_permit().await?;
    let facts = Arc::clone(&state.context.facts);
    let queries = state.context.uses.find_queries(name);
    let (table, active) = (find_value(asked, "table").to_owned(), Arc::clone(&active_spec));
    let skip = find_value(asked, "skip").parse().unwrap_or(0).min(MAX_SKIPPED);
    let next = run_blocking(permit, client_guard, move || {
        let find = || -> Result<NextCell, Failure> {
            let spec = &active.spec;
            let n = find_expansion(spec, &table)?;
            let uses = count_column_uses(spec, &spec.expansions[n], &queries);
            let weights: Vec<f64> = uses.iter().map(|uses| 1.0 + *uses as f64).collect();
            let database = Database::open(&spec.database)?;
            let (model, selection) = (model::connect_for_planning(spec)?, Selection::default());
            let materializer = Materializer::new(spec, &database, &facts, model, &selection)?;
            let (cells, count) = materializer.list_doubtful_cells(n, &weights, skip + 1)?;
            let cell = cells.into_iter().nth(skip);
            let uses = cell.as_ref().map_or(0, |cell| uses[cell.column]);
            // The page does not need the audit, so an error in its files does not matter here.
            let audit = Audit::read(spec, &spec.expansions[n]).ok();
            let reviewed = count_reviewed_cells(spec, n)?;
            Ok(NextCell { expansion: n, cell, uses, count, reviewed, audit })
        };
        Ok(find()?)
    })
    .await?;
    let expansion = &active_spec.spec.expansions[next.expansion];
    let judged = match &next.cell {
        Some(cell) => {
            let address = CellAddress {
                table: expansion.name.clone(),
                column: expansion.columns[cell.column].name.clone(),
                key: cell.key.clone(),
            };
            Some((cell, read_judged_cell(state, name, address).await?))
        }
        None => None,
    };
    let who = find_value(asked, "who");
    let path = doubts_path(name, &expansion.name, who);
    let hidden = html! {
        input type="hidden" name="table" value=(expansion.name);
        input type="hidden" name="skip" value=(skip);
    };
    let undo = render_undo_form(&format!("{path}&skip={skip}"), asked);
    Ok(render_page(
        "Uncertain cells",
        &html! {
            h1 { a href=(spec_path(name)) { (name) } " / " (expansion.name) " / uncertain cells" }
            p { strong { (next.count) } " cells have a known confidence below 100 %. "
                span.quiet { "The first one has the greatest doubt, times the use of its column in queries. Your answers become overrides, and are no audit." } }
            @if let Some((_, failure)) = rejected { (render_failure(failure)) }
            progress.whole aria-label="Reviewed cells" max=((next.reviewed + next.count).max(1)) value=(next.reviewed) {}
            p.quiet.small { (format_count(next.reviewed as u64, "cell")) " reviewed" }
            div.beside.review {
                @match &judged {
                    Some((cell, judged)) => section.card {
                        @let typed = rejected.filter(|(typed, _)| is_cell_of(typed, expansion, cell)).map_or("", |(typed, _)| &typed.value);
                        (render_cell(&path, skip, expansion, (cell, judged, typed), next.uses))
                        (render_sources(judged))
                        p.pages {
                            @if skip > 0 { a.button href=(format!("{path}&skip={}", skip - 1)) data-key="b" { "Back" kbd { "b" } } }
                            @if skip + 1 < next.count { a.button href=(format!("{path}&skip={}", skip + 1)) data-key="s" { "Skip" kbd { "s" } } }
                        }
                    },
                    None => section.card { h2 { "No uncertain cells are left" }
                        p { "A confidence needs " code { "escalate" } ", with compared answers or log-probabilities." } },
                }
                @if let Some(audit) = &next.audit { (render_accuracy(audit, expansion, next.cell.as_ref().map(|cell| cell.column))) }
            }
            (undo)
            (render_name_form(&format!("{}/doubts", spec_path(name)), &hidden, who, "override"))
        },
    ))
}

/// Returns true if a request is about this cell. Another person may have answered its cell in the
/// meantime, so that the page shows the next one.
fn is_cell_of(request: &OverrideRequest, expansion: &Expansion, cell: &DoubtfulCell) -> bool {
    request.column == expansion.columns[cell.column].name && request.key == key_texts(cell)
}

/// Renders a cell with buttons for its value. The form contains the value `typed`.
fn render_cell(
    path: &str,
    skip: usize,
    expansion: &Expansion,
    (cell, judged, typed): (&DoubtfulCell, &JudgedCell, &str),
    uses: u64,
) -> Markup {
    let column = &expansion.columns[cell.column];
    let answer = format_cell(&cell.value);
    let key = key_texts(cell);
    let hidden = html! {
        input type="hidden" name="column" value=(column.name);
        input type="hidden" name="skip" value=(skip);
        @for part in &key { input type="hidden" name="key" value=(part); }
    };
    html! {
        dl.facts.key { @for (name, value) in expansion.key.names().iter().zip(&key) {
            div { dt { (name) } dd { strong { (truncate_text(value, 200)) } } }
        } }
        (render_rows(expansion, judged))
        h2 { (column.name) }
        @if !column.about.is_empty() { p.quiet.small { (column.about) } }
        p.answer { @if answer.is_empty() { span.quiet { (cell.state.name()) } @if let Some(raw) = &cell.raw { " " (truncate_text(raw, 400)) } } @else { (truncate_text(&answer, 400)) } }
        p.quiet.small {
            "Confidence " (format!("{:.0} %", 100.0 * cell.confidence))
            @match uses { 0 => "", 1 => ", 1 query uses the column", n => { ", " (n) " queries use the column" } }
        }
        (render_answer_forms(path, &hidden, column, (&answer, typed), &[(NO_VALUE, NO_VALUE, "No value")]))
    }
}

/// Renders the form that removes the last override, if the request has one. The form contains the
/// override's value and note, because only that override may be removed.
fn render_undo_form(path: &str, asked: &QueryPairs) -> Markup {
    let done = find_value(asked, "done");
    html! { @if !done.is_empty() {
        form.row method="post" action=(path) {
            input type="hidden" name="do" value="unset";
            input type="hidden" name="column" value=(done);
            input type="hidden" name="skip" value=(find_value(asked, "skip"));
            input type="hidden" name="value" value=(find_value(asked, "value"));
            input type="hidden" name="note" value=(find_value(asked, "note"));
            @for part in find_key(asked) { input type="hidden" name="key" value=(part); }
            button data-key="u" { "Undo the last answer" kbd { "u" } }
        }
    } }
}

/// Handles `POST /specs/{spec}/doubts?table=…`: sets or removes an override, and shows the next
/// cell. Fails with 409 if the override is not the one that the page showed.
pub(super) async fn store_override(
    State(state): State<HttpState>,
    Path(name): Path<String>,
    Query(asked): Query<QueryPairs>,
    request: Request,
) -> Result<Response, ErrorPage> {
    let form: QueryPairs = read_form(request).await?;
    let (table, column) = (find_value(&asked, "table"), find_value(&form, "column").to_owned());
    let is_set = find_value(&form, "do") != "unset";
    let change = if is_set { OverrideChange::SetFirst } else { OverrideChange::Undo };
    let note = if is_set {
        let who = match limit_name(find_value(&asked, "who")) {
            "" => "a person",
            who => who,
        };
        format!("{REVIEWED_BY}{who} at {}", current_timestamp())
    } else {
        find_value(&form, "note").to_owned()
    };
    let value = find_value(&form, "value").to_owned();
    let key = find_key(&form);
    let skip: usize = find_value(&form, "skip").parse().unwrap_or(0);
    let override_request = OverrideRequest {
        spec: Some(name.clone()),
        table: table.to_owned(),
        key: key.clone(),
        column: column.clone(),
        value: value.clone(),
        note: note.clone(),
        force: false,
    };
    let who = find_value(&asked, "who");
    if let Err(HttpError { status, failure }) =
        state.override_cell(override_request.clone(), change).await
    {
        // The form keeps what the user has typed.
        let address = [("table", table), ("skip", &skip.to_string()), ("who", who)]
            .map(|(name, value)| (name.to_owned(), value.to_owned()));
        let rejected = Some((&override_request, &failure));
        let page = render_doubts(&state, &name, &address.into(), rejected).await?;
        return Ok((status, page).into_response());
    }
    let path = doubts_path(&name, table, who);
    let mut path = format!("{path}&skip={skip}");
    if is_set {
        // hqdl stores a value in the spelling of the list.
        let (_, active_spec) = state.find_active_spec(Some(&name))?;
        let stored = find_override(&active_spec.spec, &override_request)?;
        let value = stored.map_or(value, |line| line.value);
        path.push_str(&format!("&done={}", percent_encode(&column)));
        for part in &key {
            path.push_str(&format!(
                "&key={}",
                percent_encode(&format_value(&Json::from(part.as_str())))
            ));
        }
        path.push_str(&format!("&value={}&note={}", percent_encode(&value), percent_encode(&note)));
    }
    Ok(redirect_to(&path))
}
