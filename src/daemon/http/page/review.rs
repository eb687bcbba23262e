//! The review page of an audit: shows the sampled cells one at a time, so that a person can enter
//! the true value of each.

use std::sync::Arc;

use axum::extract::{Path, Query, Request, State};
use axum::response::{IntoResponse, Response};
use maud::{Markup, html};
use serde::Deserialize;
use tokio::sync::watch;

use super::super::query::run_blocking;
use super::super::reply::HttpError;
use super::judged_cell::{CellAddress, JudgedCell, read_judged_cell, render_rows, render_sources};
use super::overview::{RejectedSample, render_overview};
use super::spec_edit::CHECK_TIMEOUT;
use super::{
    ErrorPage, HttpState, ShownPage, percent_encode, read_form, redirect_to, render_failure,
    render_key_setting, render_page, spec_path, truncate_text,
};
use crate::audit::sheet::{CANNOT_BE_KNOWN, format_cell, parse_truth};
use crate::audit::{Audit, CellTruth, Draw, DrawRequest, generate_seed};
use crate::daemon::active_spec::ActiveSpec;
use crate::daemon::job::guard_failure;
use crate::database::Database;
use crate::failure::Failure;
use crate::query::connection::guard::GuardedConnection;
use crate::spec::checker::Checker;
use crate::spec::{Column, Expansion, Spec};
use crate::value::Value;

/// Source of the truths that a person enters on the page.
const PERSON: &str = "person";
/// Confidence of the accuracy intervals beside the cell.
const CONFIDENCE: f64 = 0.95;
/// Maximum number of values with a keyboard shortcut.
const VALUE_KEYS: usize = 9;

/// Fields of the page's address and of its form.
#[derive(Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct ReviewRequest {
    /// The expansion; if empty, the first audited one.
    table: String,
    /// Position of the cell among the sampled cells.
    at: Option<usize>,
    /// The true value that a person entered; `?` if it cannot be known. An empty value removes the
    /// stored truth.
    value: String,
    /// Position of the cell that was just answered, which can be undone.
    done: Option<usize>,
    /// True value of that cell before the answer; empty if it had none.
    before: String,
    /// Name of the person, which is stored with each truth; may be empty.
    who: String,
}

impl ReviewRequest {
    /// Returns the address of the page, which contains the person's name.
    fn page_path(&self, spec: &str, table: &str) -> String {
        let path = format!("{}/review?table={}", spec_path(spec), percent_encode(table));
        match self.who.trim() {
            "" => path,
            who => format!("{path}&who={}", percent_encode(who)),
        }
    }

    /// Returns the source of the truths that the person enters.
    fn source(&self) -> String {
        match self.who.trim() {
            "" => PERSON.to_owned(),
            who => format!("{PERSON} {who}"),
        }
    }
}

/// Renders the form with a shortcut key for each likely value of a cell, and the form for any other
/// value, which contains `typed`. `hidden` contains the fields that identify the cell.
pub(super) fn render_answer_forms(
    path: &str,
    hidden: &Markup,
    column: &Column,
    (answer, typed): (&str, &str),
    can_be_unknown: bool,
) -> Markup {
    let values = column.values.as_ref().map_or(&[][..], |list| &list.values);
    html! {
        form.answers method="post" action=(path) {
            (hidden)
            @if !answer.is_empty() { button.main name="value" value=(answer) data-key="Enter" autofocus { "Right" kbd { "Enter" } } }
            @if column.many.is_none() { @for (n, value) in values.iter().filter(|v| **v != answer).take(VALUE_KEYS).enumerate() {
                button name="value" value=(value) data-key=(n + 1) { (truncate_text(value, 40)) kbd { (n + 1) } }
            } }
            @if can_be_unknown { button name="value" value=(CANNOT_BE_KNOWN) data-key="?" { "Cannot be known" kbd { "?" } } }
        }
        form.row method="post" action=(path) {
            (hidden)
            label { "Another value" input name="value" value=(typed) list="values" autocomplete="off" data-key="v"; }
            @if !values.is_empty() { datalist id="values" { @for value in values { option value=(value) {} } } }
            button { "Set" }
            @if column.many.is_some() { span.quiet.small { code { "|" } " between values, " code { "none" } " for no value" } }
        }
        @if values.len() > VALUE_KEYS || column.many.is_some() && !values.is_empty() {
            details { summary { "All " (values.len()) " values" }
                p.values.small { @for value in values { code { (value) } " " } } }
        }
    }
}

/// Positions of a sampled cell: of its row in the frame, its column in the expansion, and its
/// column among the audited columns.
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
    /// Reads the audit of an expansion. If the name is empty, reads the audit of the first audited
    /// expansion.
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
        let columns = audit.draw.find_expansion_columns(expansion);
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

    /// Returns the position of the cell to show: the requested cell, or the first cell without a
    /// truth.
    fn find_shown_position(&self, asked: &ReviewRequest) -> Option<usize> {
        asked.at.filter(|at| *at < self.cells.len()).or_else(|| self.find_next_unreviewed(0))
    }

    /// Returns the address of a cell.
    fn build_cell_address(&self, at: usize) -> CellAddress {
        let cell = self.cells[at];
        CellAddress {
            table: self.expansion.name.clone(),
            column: self.expansion.columns[cell.column].name.clone(),
            key: self.audit.draw.frame[cell.row].key.clone(),
        }
    }

    /// Renders the page of a cell; `judged` is `None` if the audit is complete. `rejected` is the
    /// reason why the value of `asked` was not stored.
    fn to_page(
        &self,
        spec: &str,
        asked: &ReviewRequest,
        judged: Option<&JudgedCell>,
        rejected: Option<&Failure>,
    ) -> Markup {
        let filled = self.cells.iter().filter(|cell| self.is_filled(cell)).count();
        let path = asked.page_path(spec, &self.expansion.name);
        html! {
            h1 { a href=(spec_path(spec)) { (spec) } " / " (self.expansion.name) " / review" }
            p { strong { (filled) " of " (self.cells.len()) } " sampled cells have been reviewed. "
                span.quiet { "You may stop at any time: the rows reviewed so far count." } }
            progress.whole aria-label="Reviewed cells" max=(self.cells.len().max(1)) value=(filled) {}
            @if let Some(failure) = rejected { (render_failure(failure)) }
            div.beside.review {
                @match self.find_shown_position(asked) {
                    Some(at) => (self.render_cell_section(&path, (at, &asked.value), judged)),
                    None => section.card {
                        h2 { "The audit is complete" }
                        p { code { "hqdl audit " (spec) ".toml --report" } " prints the accuracy of each column; "
                            code { "--apply" } " writes the truths as overrides." }
                    },
                }
                (self.render_accuracy_section())
            }
            form.row method="get" action=(format!("{}/review", spec_path(spec))) {
                input type="hidden" name="table" value=(self.expansion.name);
                @if let Some(at) = asked.at { input type="hidden" name="at" value=(at); }
                (render_key_setting())
                label { "Your name, stored with each truth" input name="who" value=(asked.who) maxlength="100" autocomplete="name"; }
                button { "Use" }
            }
            @if let Some(done) = asked.done {
                form.row method="post" action=(path) {
                    input type="hidden" name="at" value=(done);
                    input type="hidden" name="value" value=(asked.before);
                    button data-key="u" { "Undo the last answer" kbd { "u" } }
                }
            }
        }
    }

    /// Renders a cell with buttons for its truth. The form contains the value `typed`.
    fn render_cell_section(
        &self,
        path: &str,
        (at, typed): (usize, &str),
        judged: Option<&JudgedCell>,
    ) -> Markup {
        let cell = self.cells[at];
        let row = &self.audit.draw.frame[cell.row];
        let column = &self.expansion.columns[cell.column];
        let answer = format_cell(&row.answers[cell.audited]);
        let truth = self.audit.sheet.truth(cell.row, cell.column);
        let said = truth.map(format_truth);
        let text =
            |value: &Value| value.to_text().map_or("NULL".to_owned(), std::borrow::Cow::into_owned);
        let go = |to: usize| format!("{path}&at={to}");
        html! {
            section.card {
                dl.facts.key { @for (name, value) in self.expansion.key.names().iter().zip(&row.key) {
                    div { dt { (name) } dd { strong { (truncate_text(&text(value), 200)) } } }
                } }
                @if let Some(judged) = judged { (render_rows(self.expansion, judged)) }
                h2 { (column.name) }
                @if !column.about.is_empty() { p.quiet.small { (column.about) } }
                p.answer { @if answer.is_empty() { span.quiet { (row.states[cell.audited]) } } @else { (truncate_text(&answer, 400)) } }
                @if let Some(said) = &said { p.note { "Reviewed already: " strong { (said) } ". A new answer replaces it." } }
                @if let Some(note) = truth.map(|t| t.note.as_str()).filter(|note| !note.is_empty()) { p.quiet.small { (note) } }
                (render_answer_forms(path, &html! { input type="hidden" name="at" value=(at); }, column, (&answer, typed), true))
                @if let Some(judged) = judged { (render_sources(judged)) }
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
                table.why { @for column in self.audit.build_column_reports(self.expansion, CONFIDENCE) {
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
    let asked = ReviewRequest { value: String::new(), ..asked };
    render_review(&state, &name, asked, None).await
}

/// Renders the review page. `rejected` is the reason why the value of `asked` was not stored.
async fn render_review(
    state: &HttpState,
    name: &str,
    mut asked: ReviewRequest,
    rejected: Option<Failure>,
) -> ShownPage {
    let spec = name.to_owned();
    let (table, at) = (asked.table.clone(), asked.at);
    let found = run_with_spec(state, name, move |active| {
        let review = Review::read(&active.spec, &table)?;
        let asked = ReviewRequest { table, at, ..ReviewRequest::default() };
        Ok(review.find_shown_position(&asked).map(|at| (at, review.build_cell_address(at))))
    });
    let judged = match found.await? {
        Some((at, address)) => {
            // Another person may fill the cell in the meantime: the page is still about this cell.
            asked.at = Some(at);
            Some(read_judged_cell(state, name, address).await?)
        }
        None => None,
    };
    let shown = run_with_spec(state, name, move |active| {
        let review = Review::read(&active.spec, &asked.table)?;
        Ok(review.to_page(&spec, &asked, judged.as_ref(), rejected.as_ref()))
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
    let path = asked.page_path(&name, &asked.table);
    // A rejected form keeps what the user has typed.
    let typed =
        ReviewRequest { at: form.at, value: form.value.clone(), done: None, ..asked.clone() };
    let stored =
        run_with_spec(&state, &name, move |active| store_review(active, &asked, &form)).await;
    drop(lock);
    let StoredReview { next, done, before } = match stored {
        Ok(stored) => stored,
        Err(HttpError { status, failure }) => {
            let page = render_review(&state, &name, typed, Some(failure)).await?;
            return Ok((status, page).into_response());
        }
    };
    let at = next.map_or_else(String::new, |at| format!("&at={at}"));
    let undo = done.map(|done| format!("&done={done}&before={}", percent_encode(&before)));
    Ok(redirect_to(&[path, at, undo.unwrap_or_default()].concat()))
}

/// Result of storing a truth.
struct StoredReview {
    /// Position of the next cell to review.
    next: Option<usize>,
    /// Position of the cell whose answer can be undone; `None` if the truth was removed.
    done: Option<usize>,
    /// True value that the cell had before; empty if it had none.
    before: String,
}

fn format_truth(truth: &CellTruth) -> String {
    truth.value.as_ref().map_or(CANNOT_BE_KNOWN.to_owned(), format_cell)
}

/// Stores a truth in the sheet, or removes it if the value is empty.
fn store_review(
    active: &ActiveSpec,
    asked: &ReviewRequest,
    form: &ReviewRequest,
) -> Result<StoredReview, Failure> {
    let mut review = Review::read(&active.spec, &asked.table)?;
    let cell = form.at.and_then(|at| Some((at, *review.cells.get(at)?)));
    let Some((at, cell)) = cell else {
        return Err(Failure::wrong_input(
            "the audit has no such cell",
            "open the review page again",
        ));
    };
    if form.value.trim().is_empty() {
        let position = (cell.row, cell.column);
        review.audit.remove_truth(&active.spec, review.expansion, position)?;
        return Ok(StoredReview { next: Some(at), done: None, before: String::new() });
    }
    let before = review.audit.sheet.truth(cell.row, cell.column).map(format_truth);
    let column = &review.expansion.columns[cell.column];
    let value = parse_truth(&Checker::new(column), &column.name, &form.value)
        .map_err(|message| Failure::wrong_input(message, "choose another value"))?;
    let truth =
        CellTruth { value, source: asked.source(), note: crate::database::current_timestamp() };
    review.audit.record_truth(&active.spec, review.expansion, (cell.row, cell.column), truth)?;
    let next = review.find_next_unreviewed(at + 1);
    Ok(StoredReview { next, done: Some(at), before: before.unwrap_or_default() })
}

/// Runs work on a spec's files in a separate thread.
async fn run_with_spec<T: Send + 'static>(
    state: &HttpState,
    name: &str,
    work: impl FnOnce(&Arc<ActiveSpec>) -> Result<T, Failure> + Send + 'static,
) -> Result<T, HttpError> {
    let (_, active_spec) = state.find_active_spec(Some(name))?;
    let (client_guard, _) = state.context.clients.begin_work();
    let permit = state.acquire_read_permit().await?;
    run_blocking(permit, client_guard, move || Ok(work(&active_spec)?)).await
}

/// Fields of the form that draws a sample.
#[derive(Deserialize)]
pub(super) struct SampleForm {
    table: String,
    rows: String,
}

/// Handles `POST /specs/{spec}/audit`: draws a sample of a table for the review page.
pub(super) async fn draw_sample(
    State(state): State<HttpState>,
    Path(name): Path<String>,
    request: Request,
) -> Result<Response, ErrorPage> {
    let form: SampleForm = read_form(request).await?;
    match create_sample(&state, &name, &form).await {
        Ok(path) => Ok(redirect_to(&path)),
        Err(HttpError { status, failure }) => {
            let SampleForm { table, rows } = form;
            let rejected = RejectedSample { spec: name, table, rows, failure };
            Ok((status, render_overview(&state, Some(&rejected)).await?).into_response())
        }
    }
}

/// Draws a sample, and returns the path of its review page.
async fn create_sample(
    state: &HttpState,
    name: &str,
    form: &SampleForm,
) -> Result<String, HttpError> {
    let rows = form.rows.trim().parse().ok().filter(|rows| *rows > 0).ok_or_else(|| {
        let message = format!("`{}` is not a number of rows", form.rows);
        HttpError::bad_request(message, "enter a whole number, such as 25")
    })?;
    let (name, active) = state.find_active_spec(Some(name))?;
    let path = format!("{}/review?table={}", spec_path(&name), percent_encode(&form.table));
    let table = form.table.clone();
    let (client_guard, interrupt) = state.context.clients.begin_work();
    let permit = state.acquire_query_permit().await?;
    let lock = Arc::clone(&state.edits).lock_owned().await;
    run_blocking(permit, client_guard, move || {
        let created = create_audit(&active.spec, &table, rows, interrupt);
        drop(lock);
        Ok(created?)
    })
    .await?;
    Ok(path)
}

/// Draws a uniform sample of an expansion's rows, and creates the sheet of its audit.
fn create_audit(
    spec: &Spec,
    table: &str,
    rows: usize,
    interrupt: watch::Receiver<bool>,
) -> Result<(), Failure> {
    let Some(expansion) = spec.expansions.iter().find(|e| e.name == table) else {
        return Err(Failure::wrong_input(format!("the spec has no table `{table}`"), ""));
    };
    let sources = GuardedConnection::open_for_sql(&spec.database, Some(CHECK_TIMEOUT), interrupt)?;
    let published = Database::open(spec.target())?;
    let request = DrawRequest {
        sample: rows,
        seed: generate_seed(),
        columns: (0..expansion.columns.len()).collect(),
        ..DrawRequest::default()
    };
    let draw = Draw::sample_rows(sources.database(), &published, expansion, &request)
        .map_err(|e| guard_failure(&sources).unwrap_or_else(|| e.into()))?;
    Audit::create(&draw, spec, expansion)?;
    Ok(())
}
