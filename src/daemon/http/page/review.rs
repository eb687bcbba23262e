//! The review page of an audit: shows the sampled cells one at a time, so that a person can enter
//! the true value of each.

use std::sync::Arc;

use axum::extract::{Path, Query, Request, State};
use axum::response::Response;
use maud::{Markup, html};
use serde::Deserialize;

use super::super::query::run_blocking;
use super::super::reply::HttpRefusal;
use super::{
    ErrorPage, HttpState, ShownPage, percent_encode, read_form, redirect_to, render_page,
    spec_path, truncate_text,
};
use crate::audit::sheet::{CANNOT_BE_KNOWN, format_cell, parse_truth};
use crate::audit::{Audit, CellTruth};
use crate::daemon::active_spec::ActiveSpec;
use crate::failure::Failure;
use crate::spec::checker::Checker;
use crate::spec::{Expansion, Spec};
use crate::value::Value;

/// Source of the truths that a person enters on the page.
const PERSON: &str = "person";
/// Confidence of the accuracy intervals beside the cell.
const CONFIDENCE: f64 = 0.95;
/// Maximum number of values with a keyboard shortcut.
const VALUE_KEYS: usize = 9;

/// Fields of the page's address and of its form.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct ReviewRequest {
    /// The expansion; if empty, the first audited one.
    table: String,
    /// Position of the cell among the sampled cells.
    at: Option<usize>,
    /// The true value that a person entered; `?` if it cannot be known.
    value: String,
}

/// A sampled cell: positions of its row in the frame, of its column in the expansion, and of the
/// column among the audited ones.
#[derive(Clone, Copy)]
struct SampledCell {
    row: usize,
    column: usize,
    audited: usize,
}

/// An audit with the cells to review, in order.
struct Review<'s> {
    expansion: &'s Expansion,
    audit: Audit,
    cells: Vec<SampledCell>,
}

impl<'s> Review<'s> {
    /// Reads the audit of an expansion; without a name, that of the first audited one.
    fn read(spec: &'s Spec, table: &str) -> Result<Self, Failure> {
        let is_named = |e: &&Expansion| match table {
            "" => crate::audit::sheet_path(spec, e).exists(),
            name => e.name.eq_ignore_ascii_case(name),
        };
        let found = spec.expansions.iter().find(is_named);
        let expansion = found.or_else(|| spec.expansions.first().filter(|_| table.is_empty()));
        let expansion = expansion.ok_or_else(|| {
            let all: Vec<&str> = spec.expansions.iter().map(|e| &*e.name).collect();
            Failure::wrong_input(
                format!("no expansion `{table}`"),
                format!("there is {}", all.join(", ")),
            )
        })?;
        let audit = Audit::read(spec, expansion)?;
        let columns = audit.draw.expansion_columns(expansion);
        let cells = |row: &usize| {
            let row = *row;
            columns.iter().map(move |(column, audited)| SampledCell {
                row,
                column: *column,
                audited: *audited,
            })
        };
        let cells = audit.draw.sample().iter().flat_map(cells).collect();
        Ok(Self { expansion, audit, cells })
    }

    fn is_filled(&self, cell: &SampledCell) -> bool {
        self.audit.sheet.truth(cell.row, cell.column).is_some()
    }

    /// Returns the position of the next cell without a truth. It searches from a position to the
    /// end, and then from the beginning.
    fn find_next_unreviewed(&self, from: usize) -> Option<usize> {
        let is_open = |at: &usize| !self.is_filled(&self.cells[*at]);
        let count = self.cells.len();
        (from.min(count)..count).find(is_open).or_else(|| (0..count).find(is_open))
    }

    fn to_page(&self, spec: &str, at: Option<usize>) -> Markup {
        let filled = self.cells.iter().filter(|cell| self.is_filled(cell)).count();
        let path =
            format!("{}/review?table={}", spec_path(spec), percent_encode(&self.expansion.name));
        let open = at.filter(|at| *at < self.cells.len()).or_else(|| self.find_next_unreviewed(0));
        html! {
            h1 { a href=(spec_path(spec)) { (spec) } " / " (self.expansion.name) " / review" }
            p { strong { (filled) " of " (self.cells.len()) } " sampled cells have been reviewed. "
                span.quiet { "You may stop at any time: the rows reviewed so far count." } }
            progress aria-label="Reviewed cells" max=(self.cells.len().max(1)) value=(filled) {}
            div.beside.review {
                @match open {
                    Some(at) => (self.render_cell_section(&path, at)),
                    None => section.card {
                        h2 { "The audit is complete" }
                        p { code { "hqdl audit " (spec) ".toml --report" } " prints the accuracy of each column; "
                            code { "--apply" } " writes the truths as overrides." }
                    },
                }
                (self.render_accuracy_section())
            }
        }
    }

    /// Renders a cell with buttons for its truth.
    fn render_cell_section(&self, path: &str, at: usize) -> Markup {
        let cell = self.cells[at];
        let row = &self.audit.draw.frame[cell.row];
        let column = &self.expansion.columns[cell.column];
        let answer = format_cell(&row.answers[cell.audited]);
        let truth = self.audit.sheet.truth(cell.row, cell.column);
        let said = truth.map(|t| t.value.as_ref().map_or(CANNOT_BE_KNOWN.to_owned(), format_cell));
        let text =
            |value: &Value| value.to_text().map_or("NULL".to_owned(), std::borrow::Cow::into_owned);
        let values = column.values.as_ref().map_or(&[][..], |list| &list.values);
        let go = |to: usize| format!("{path}&at={to}");
        html! {
            section.card {
                dl.facts.key { @for (name, value) in self.expansion.key.names().iter().zip(&row.key) {
                    div { dt { (name) } dd { strong { (truncate_text(&text(value), 200)) } } }
                } }
                h2 { (column.name) }
                @if !column.about.is_empty() { p.quiet.small { (column.about) } }
                p.answer { @if answer.is_empty() { span.quiet { (row.states[cell.audited]) } } @else { (truncate_text(&answer, 400)) } }
                @if let Some(said) = &said { p.note { "Reviewed already: " strong { (said) } ". A new answer replaces it." } }
                form.answers method="post" action=(path) {
                    input type="hidden" name="at" value=(at);
                    @if !answer.is_empty() { button.main name="value" value=(answer) data-key="Enter" autofocus { "Right" kbd { "Enter" } } }
                    @if column.many.is_none() { @for (n, value) in values.iter().filter(|v| **v != answer).take(VALUE_KEYS).enumerate() {
                        button name="value" value=(value) data-key=(n + 1) { (truncate_text(value, 40)) kbd { (n + 1) } }
                    } }
                    button name="value" value=(CANNOT_BE_KNOWN) data-key="?" { "Cannot be known" kbd { "?" } }
                }
                form.row method="post" action=(path) {
                    input type="hidden" name="at" value=(at);
                    label { "Another value" input name="value" list="values" autocomplete="off" data-key="v"; }
                    @if !values.is_empty() { datalist id="values" { @for value in values { option value=(value) {} } } }
                    button { "Set" }
                    @if column.many.is_some() { span.quiet.small { code { "|" } " between values, " code { "none" } " for no value" } }
                }
                p.pages {
                    @if at > 0 { a.button href=(go(at - 1)) data-key="b" { "Back" kbd { "b" } } }
                    @if at + 1 < self.cells.len() { a.button href=(go(at + 1)) data-key="s" { "Skip" kbd { "s" } } }
                }
            }
        }
    }

    /// Renders the accuracy of the columns so far.
    fn render_accuracy_section(&self) -> Markup {
        let percent = |share: f64| format!("{:.0} %", 100.0 * share);
        html! {
            section.card {
                h2 { "Accuracy so far" }
                table.why { @for column in self.audit.report_columns(self.expansion, CONFIDENCE) {
                    tr { th scope="row" { (column.column) } td {
                        @match column.accuracy {
                            Some([estimate, low, high]) => { (percent(estimate)) " " span.quiet.small { (percent(low)) " to " (percent(high)) } }
                            None => { span.quiet { "no reviewed row" } }
                        }
                    } }
                } }
                p.small.quiet { "With the exact 95 % interval of all rows of the table." }
            }
        }
    }
}

/// Handles `GET /specs/{spec}/review?table=…`.
pub(super) async fn show_review(
    State(state): State<HttpState>,
    Path(name): Path<String>,
    Query(asked): Query<ReviewRequest>,
) -> ShownPage {
    let spec = name.clone();
    let shown = run_with_spec(&state, &name, move |active| {
        Ok(Review::read(&active.spec, &asked.table)?.to_page(&spec, asked.at))
    });
    Ok(render_page("Review", &shown.await?))
}

/// Handles `POST /specs/{spec}/review?table=…`: stores the truth that a person entered, and shows
/// the next cell.
pub(super) async fn store_truth(
    State(state): State<HttpState>,
    Path(name): Path<String>,
    Query(asked): Query<ReviewRequest>,
    request: Request,
) -> Result<Response, ErrorPage> {
    let form: ReviewRequest = read_form(request).await?;
    let lock = state.edits.lock().await;
    let table = asked.table.clone();
    let next =
        run_with_spec(&state, &name, move |active| store_review(active, &asked.table, &form))
            .await?;
    drop(lock);
    let at = next.map_or_else(String::new, |at| format!("&at={at}"));
    Ok(redirect_to(&format!("{}/review?table={}{at}", spec_path(&name), percent_encode(&table))))
}

/// Stores a truth in the sheet. Returns the position of the next cell to review.
fn store_review(
    active: &ActiveSpec,
    table: &str,
    form: &ReviewRequest,
) -> Result<Option<usize>, Failure> {
    let mut review = Review::read(&active.spec, table)?;
    let cell = form.at.and_then(|at| Some((at, *review.cells.get(at)?)));
    let Some((at, cell)) = cell else {
        return Err(Failure::wrong_input(
            "the audit has no such cell",
            "open the review page again",
        ));
    };
    let column = &review.expansion.columns[cell.column];
    let value = parse_truth(&Checker::new(column), &column.name, &form.value)
        .map_err(|message| Failure::wrong_input(message, "go back and choose another value"))?;
    let truth =
        CellTruth { value, source: PERSON.to_owned(), note: crate::database::current_timestamp() };
    review.audit.record_truth(&active.spec, review.expansion, (cell.row, cell.column), truth)?;
    Ok(review.find_next_unreviewed(at + 1))
}

/// Runs work on a spec's files in a separate thread.
async fn run_with_spec<T: Send + 'static>(
    state: &HttpState,
    name: &str,
    work: impl FnOnce(&Arc<ActiveSpec>) -> Result<T, Failure> + Send + 'static,
) -> Result<T, HttpRefusal> {
    let (_, active_spec) = state.active_spec(Some(name))?;
    let (client_guard, _) = state.context.clients.begin_work();
    let permit = state.acquire_read_permit().await?;
    run_blocking(permit, client_guard, move || Ok(work(&active_spec)?)).await
}
