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
use crate::audit::sheet::{CANNOT_BE_KNOWN, NO_VALUE, format_cell, format_entry, parse_truth};
use crate::audit::{
    Audit, CellTruth, Draw, DrawRequest, ReportSettings, format_person, generate_seed,
};
use crate::daemon::active_spec::ActiveSpec;
use crate::daemon::job::guard_failure;
use crate::database::Database;
use crate::failure::Failure;
use crate::key::hash_tagged_parts;
use crate::query::connection::guard::GuardedConnection;
use crate::spec::checker::{Checker, EMPTY_TEXT};
use crate::spec::{Column, Expansion, Spec};
use crate::value::Value;

/// Maximum length of a reviewer's name, in characters.
pub(super) const MAX_NAME_CHARS: usize = 100;
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
    /// Identity of the cell at this position when the page was shown.
    cell: String,
    /// The true value that a person entered, as [`parse_truth`] reads it.
    value: String,
    /// Position of the cell that was just answered, which can be undone.
    done: Option<usize>,
    /// Digest of the truth to undo, if the request undoes one.
    undo: String,
    /// Name of the person, which is stored with each truth; may be empty.
    who: String,
}

impl ReviewRequest {
    /// Returns the address of the page, which contains the person's name.
    fn page_path(&self, spec: &str, table: &str) -> String {
        let path = format!("{}/review?table={}", spec_path(spec), percent_encode(table));
        add_name(path, &self.who)
    }

    /// Returns the source of the truths that the person enters.
    fn source(&self) -> String {
        format_person(limit_name(&self.who))
    }
}

/// Truncates a reviewer's name to its maximum length.
pub(super) fn limit_name(who: &str) -> &str {
    let who = who.trim();
    who.char_indices().nth(MAX_NAME_CHARS).map_or(who, |(end, _)| who[..end].trim_end())
}

/// Adds a reviewer's name to the address of a page.
pub(super) fn add_name(path: String, who: &str) -> String {
    match limit_name(who) {
        "" => path,
        who => format!("{path}&who={}", percent_encode(who)),
    }
}

/// Renders the form with the reviewer's name and the setting for keys. `hidden` contains the other
/// fields of the page's address.
pub(super) fn render_name_form(path: &str, hidden: &Markup, who: &str, kept: &str) -> Markup {
    html! {
        form.row method="get" action=(path) {
            (hidden)
            (render_key_setting())
            label { "Your name, stored with each " (kept) input name="who" value=(who) maxlength=(MAX_NAME_CHARS) autocomplete="name"; }
            button { "Use" }
        }
    }
}

/// Buttons for a cell without a value: each has an entry, a key and a label.
pub(super) type NoValueButtons<'b> = &'b [(&'b str, &'b str, &'b str)];

/// Renders the form with a shortcut key for each likely value of a cell, and the form for any other
/// value, which contains `typed`. `hidden` contains the fields that identify the cell.
pub(super) fn render_answer_forms(
    path: &str,
    hidden: &Markup,
    column: &Column,
    (answer, typed): (&str, &str),
    no_value: NoValueButtons<'_>,
) -> Markup {
    let mut values: Vec<&str> =
        column.values.iter().flat_map(|list| &list.values).map(String::as_str).collect();
    values.iter_mut().filter(|value| value.is_empty()).for_each(|value| *value = EMPTY_TEXT);
    let is_listed = |entry: &str| values.contains(&entry);
    html! {
        form.answers method="post" action=(path) {
            (hidden)
            @if !answer.is_empty() { button.main name="value" value=(answer) data-key="Enter" autofocus { "Right" kbd { "Enter" } } }
            @if column.many.is_none() { @for (n, value) in values.iter().filter(|value| **value != answer).take(VALUE_KEYS).enumerate() {
                button name="value" value=(value) data-key=(n + 1) { (truncate_text(value, 40)) kbd { (n + 1) } }
            } }
            @for (entry, key, label) in no_value.iter().filter(|(entry, ..)| !is_listed(entry)) {
                button name="value" value=(entry) data-key=(key) { (label) kbd { (key) } }
            }
        }
        form.row method="post" action=(path) {
            (hidden)
            label { "Another value" input name="value" value=(typed) list="values" autocomplete="off" data-key="v" required; }
            @if !values.is_empty() { datalist id="values" { @for value in &values { option value=(value) {} } } }
            button { "Set" }
            @if column.many.is_some() { span.quiet.small { code { "|" } " between values, " code { "none" } " for no value" } }
        }
        @if values.len() > VALUE_KEYS || column.many.is_some() && !values.is_empty() {
            details { summary { "All " (values.len()) " values" }
                p.values.small { @for value in &values { code { (value) } " " } } }
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

    /// Returns a hash of the audit and of the cell at a position. Another person can draw a new
    /// audit or change the columns while a page is open.
    fn compute_cell_identity(&self, at: usize) -> String {
        let CellAddress { column, key, .. } = self.build_cell_address(at);
        let key = key.iter().map(Value::to_string);
        let parts: Vec<String> =
            [self.audit.draw.id.clone(), column].into_iter().chain(key).collect();
        hash_tagged_parts("hqdl audited cell", &parts).chars().take(16).collect()
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
                    Some(at) => {
                        @let is_same = asked.cell == self.compute_cell_identity(at);
                        (self.render_cell_section(&path, (at, if is_same { &asked.value } else { "" }), judged))
                    }
                    None => section.card {
                        h2 { "The audit is complete" }
                        p { code { "hqdl audit " (spec) ".toml --report" } " prints the accuracy of each column; "
                            code { "--apply" } " writes the truths as overrides." }
                    },
                }
                (render_accuracy(&self.audit, self.expansion, None))
            }
            @let hidden = html! {
                input type="hidden" name="table" value=(self.expansion.name);
                @if let Some(at) = asked.at { input type="hidden" name="at" value=(at); }
            };
            (render_name_form(&format!("{}/review", spec_path(spec)), &hidden, &asked.who, "truth"))
            @if let Some(done) = asked.done.filter(|_| !asked.undo.is_empty()) {
                form.row method="post" action=(path) {
                    input type="hidden" name="at" value=(done);
                    input type="hidden" name="undo" value=(asked.undo);
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
        let said = truth.map(|truth| format_entry(truth.value.as_ref()));
        let changed = judged.and_then(|judged| judged.find_other_value(&answer));
        let text =
            |value: &Value| value.to_text().map_or("NULL".to_owned(), std::borrow::Cow::into_owned);
        let go = |to: usize| format!("{path}&at={to}");
        let unknown = (CANNOT_BE_KNOWN, CANNOT_BE_KNOWN, "Cannot be known");
        let no_value: NoValueButtons<'_> = &[unknown, (NO_VALUE, "0", "No value")];
        html! {
            section.card {
                dl.facts.key { @for (name, value) in self.expansion.key.names().iter().zip(&row.key) {
                    div { dt { (name) } dd { strong { (truncate_text(&text(value), 200)) } } }
                } }
                @if let Some(judged) = judged { (render_rows(self.expansion, judged)) }
                h2 { (column.name) }
                @if !column.about.is_empty() { p.quiet.small { (column.about) } }
                p.answer { @if answer.is_empty() { span.quiet { (row.states[cell.audited]) } } @else { (truncate_text(&answer, 400)) } }
                @if let Some(changed) = &changed { p.note.wait { "The answer has changed since the draw. It is now " strong { (truncate_text(changed, 200)) } ". The audit judges the drawn answer." } }
                @if let Some(said) = &said { p.note { "Reviewed already: " strong { (said) } ". A new answer replaces it." } }
                @let note = self.audit.sheet.note(cell.row, cell.column);
                @if !note.is_empty() { p.quiet.small { (note) } }
                @let hidden = html! {
                    input type="hidden" name="at" value=(at);
                    input type="hidden" name="cell" value=(self.compute_cell_identity(at));
                };
                (render_answer_forms(path, &hidden, column, (&answer, typed), no_value))
                @if let Some(judged) = judged { (render_sources(judged)) }
                p.pages {
                    @if at > 0 { a.button href=(go(at - 1)) data-key="b" { "Back" kbd { "b" } } }
                    @if at + 1 < self.cells.len() { a.button href=(go(at + 1)) data-key="s" { "Skip" kbd { "s" } } }
                }
            }
        }
    }
}

/// Renders the accuracy of an audit's columns so far, or of one column.
pub(super) fn render_accuracy(audit: &Audit, expansion: &Expansion, only: Option<usize>) -> Markup {
    let percent = |share: f64| format!("{:.0} %", 100.0 * share);
    let name = only.map(|column| &expansion.columns[column].name);
    let mut columns = audit.build_column_reports(expansion, ReportSettings::default());
    columns.retain(|column| name.is_none_or(|name| *name == column.column));
    html! {
        @if !columns.is_empty() { section.card {
            h2 { "Accuracy so far" }
            table.why { @for column in &columns {
                tr { th scope="row" { (column.column) } td {
                    @match column.accuracy {
                        Some([estimate, low, high]) => { (percent(estimate)) " " span.quiet.small { (percent(low)) " to " (percent(high)) } }
                        None => { span.quiet { "no reviewed row" } }
                    }
                } }
            } }
            p.small.quiet { "With the exact 95 % interval of all rows of the table." }
        } }
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
    let typed = ReviewRequest {
        at: form.at,
        cell: form.cell.clone(),
        value: form.value.clone(),
        done: None,
        ..asked.clone()
    };
    let stored =
        run_with_spec(&state, &name, move |active| store_review(active, &asked, &form)).await;
    drop(lock);
    let StoredReview { next, done } = match stored {
        Ok(stored) => stored,
        Err(HttpError { status, failure }) => {
            let page = render_review(&state, &name, typed, Some(failure)).await?;
            return Ok((status, page).into_response());
        }
    };
    let at = next.map_or_else(String::new, |at| format!("&at={at}"));
    let undo = done.map(|(done, digest)| format!("&done={done}&undo={digest}"));
    Ok(redirect_to(&[path, at, undo.unwrap_or_default()].concat()))
}

/// Result of storing a truth.
struct StoredReview {
    /// Position of the next cell to review.
    next: Option<usize>,
    /// Position of the cell whose answer can be undone, and the digest of its truth; `None` if an
    /// answer was undone.
    done: Option<(usize, String)>,
}

/// Stores a truth in the sheet, or undoes the last truth of a cell.
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
    if !form.cell.is_empty() && form.cell != review.compute_cell_identity(at) {
        return Err(Failure::wrong_input(
            "the audit has changed since this page was shown, and has another cell here",
            "nothing was stored; enter the true value of the cell that is shown now",
        ));
    }
    let (position, expansion) = ((cell.row, cell.column), review.expansion);
    if !form.undo.is_empty() {
        let who = asked.source();
        review.audit.undo_truth(&active.spec, expansion, position, (&form.undo, &who))?;
        return Ok(StoredReview { next: Some(at), done: None });
    }
    if form.value.trim().is_empty() {
        let hint = format!("enter {NO_VALUE} for no value, or {EMPTY_TEXT} for the empty text");
        return Err(Failure::wrong_input("the true value is missing", hint));
    }
    let column = &expansion.columns[cell.column];
    let value = parse_truth(&Checker::new(column), &column.name, &form.value)
        .map_err(|message| Failure::wrong_input(message, "choose another value"))?;
    let truth = CellTruth { value, source: asked.source(), note: String::new() };
    review.audit.record_truth(&active.spec, expansion, position, truth)?;
    let stored = review.audit.sheet.truth(cell.row, cell.column);
    let done = stored.map(|truth| (at, truth.digest()));
    Ok(StoredReview { next: review.find_next_unreviewed(at + 1), done })
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
