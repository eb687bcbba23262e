//! The page that shows the text of a spec. If the daemon runs with `--edit`, the page checks the
//! text while the user types, previews the first cells with their prompt and cost, and saves the
//! text.

use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use maud::{Markup, html};
use serde::Deserialize;
use serde_json::{Value as Json, json};
use tokio::sync::{OwnedMutexGuard, watch};

use super::super::query::run_blocking;
use super::super::reply::HttpError;
use super::{
    ErrorPage, HttpState, Page, find_spec, read_form, render_failure, render_page,
    render_spec_tabs, spec_path,
};
use crate::ask::compute_max_request_cost;
use crate::daemon::job::guard_failure;
use crate::database::Database;
use crate::facts::Facts;
use crate::failure::Failure;
use crate::format::{describe_io_error, format_count, format_usd, format_usd_bound};
use crate::materialize::{Materializer, Selection};
use crate::model;
use crate::plan::Plan;
use crate::problem::Problems;
use crate::query::connection::guard::GuardedConnection;
use crate::sample_prompts::{SamplePrompt, build_sample_prompts};
use crate::spec::file::ExampleTable;
use crate::spec::{Spec, UncheckedSpec, mask_secrets};
use crate::spec_file::{edit_spec, save_spec};
use crate::suggest::edit;

/// Time limit of the database for checking and previewing a text.
pub(super) const CHECK_TIMEOUT: Duration = Duration::from_secs(30);
/// Approximate number of cells of a preview.
const PREVIEW_CELLS: usize = 10;

/// Fields of the form.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct EditForm {
    text: String,
    /// Hash of the text that was opened.
    base: String,
    #[serde(rename = "do")]
    action: String,
}

/// Plan and prompts for a text that passed its check.
struct SpecPreview {
    plan: Plan,
    /// Maximum cost of the plan in USD, including the reservation of its last request.
    max_usd: f64,
    prompts: Vec<SamplePrompt>,
    /// Maximum number of rows per table.
    rows: u64,
}

/// Handles `GET /specs/{spec}/edit`.
pub(super) async fn show_editor(
    State(state): State<HttpState>,
    Path(name): Path<String>,
) -> Result<Page, ErrorPage> {
    let editor = SpecEditor::open(&state, &name)?;
    Ok(editor.render(&html! {}))
}

/// Handles `POST /specs/{spec}/edit`.
pub(super) async fn submit_editor(
    State(state): State<HttpState>,
    Path(name): Path<String>,
    request: Request,
) -> Result<Response, ErrorPage> {
    let form: EditForm = read_form(request).await?;
    let mut editor = SpecEditor::open(&state, &name)?;
    if editor.can_edit {
        // Browsers submit text with Windows line endings.
        let has_windows_ends = editor.text.contains("\r\n");
        editor.shown = form.text.replace("\r\n", "\n");
        if has_windows_ends {
            editor.shown = editor.shown.replace('\n', "\r\n");
        }
        // The file may have changed since the user opened it.
        editor.base.clone_from(&form.base);
    } else if form.action != "preview" {
        return Err(read_only_error().into());
    }
    // Every response contains the user's text, so that no edit is lost.
    let answer = match editor.submit(&state, &form.action).await {
        Ok((status, content)) => (status, editor.render(&content)),
        Err(HttpError { status, failure }) => (status, editor.render(&render_failure(&failure))),
    };
    Ok(answer.into_response())
}

/// Handles `POST /specs/{spec}/check`: returns the problems of a text.
pub(super) async fn check_spec(
    State(state): State<HttpState>,
    Path(name): Path<String>,
    request: Request,
) -> Result<axum::Json<Json>, ErrorPage> {
    let form: EditForm = read_form(request).await?;
    if !state.context.settings.edit {
        return Err(read_only_error().into());
    }
    let path = PathBuf::from(&find_spec(&state, &name)?.path);
    let (client_guard, interrupt) = state.context.clients.begin_work();
    let permit = state.acquire_read_permit().await?;
    let facts = Arc::clone(&state.context.facts);
    let checked = run_blocking(permit, client_guard, move || {
        Ok(check_text(&path, form.text, &facts, false, interrupt)?)
    });
    let problems = match checked.await.map_err(|error| error.failure) {
        Ok((warnings, _)) => warnings.to_json(),
        Err(Failure::Problems(problems)) => problems.to_json(),
        Err(failure) => json!([{ "severity": "error", "message": failure.message() }]),
    };
    Ok(axum::Json(json!({ "problems": problems })))
}

/// Handles `GET /spec.schema.json`.
pub(super) async fn get_schema() -> axum::Json<Json> {
    axum::Json(crate::spec::file::json_schema())
}

/// Adds a question with its query to a spec as an example. Returns a message for the page.
pub(super) async fn add_example(
    state: &HttpState,
    name: &str,
    example: ExampleTable,
) -> Result<String, HttpError> {
    if !state.context.settings.edit {
        return Err(read_only_error());
    }
    if example.question.is_empty() {
        return Err(HttpError::bad_request("the question is empty", "write it out in full"));
    }
    let (name, active) = state.find_active_spec(Some(name).filter(|name| !name.is_empty()))?;
    let path = state.context.status.borrow().find_spec(&name).map(|spec| spec.path.clone());
    let path = path.unwrap_or_default();
    let message = format!("Kept as an [[example]] in {path}.");
    let lock = state.edits.lock().await;
    let edited = tokio::task::spawn_blocking(move || -> Result<(), Failure> {
        let database = Database::open(&active.spec.database)?;
        let add = |text: &str| edit::add_example(text, &example);
        edit_spec(FilePath::new(&path), &database, add)
    });
    edited.await.map_err(|_| internal_error())??;
    drop(lock);
    Ok(message)
}

fn internal_error() -> HttpError {
    HttpError::bad_request("this is a bug in hqdl", "")
}

/// Returns the error for a text that is submitted without `--edit`. The text of a spec can name
/// any database and folder on the machine, so the daemon does not even check it.
pub(super) fn read_only_error() -> HttpError {
    HttpError::new(
        StatusCode::FORBIDDEN,
        "the page may not change specs".to_owned(),
        "start the daemon with --edit",
    )
}

/// Checks the text of a spec. Returns its warnings, and a preview if requested. Sends no request.
/// The text's SQL is aborted at a time limit, or if the interrupt becomes true.
fn check_text(
    path: &FilePath,
    text: String,
    facts: &Facts,
    previews: bool,
    interrupt: watch::Receiver<bool>,
) -> Result<(Problems, Option<SpecPreview>), Failure> {
    let draft = UncheckedSpec::parse(path, text)?;
    let guard = GuardedConnection::open_for_sql(&draft.database(), Some(CHECK_TIMEOUT), interrupt)
        .map_err(|e| draft.find_problems_without_database(&e.to_string(), e.hint()))?;
    let check = || {
        let (spec, warnings) = draft.check(guard.database())?;
        let preview =
            if previews { Some(preview_spec(&spec, guard.database(), facts)?) } else { None };
        Ok((warnings, preview))
    };
    let checked = check();
    // An aborted statement must not look like a problem of the spec, nor like an empty list.
    match guard_failure(&guard) {
        Some(aborted) => Err(aborted),
        None => checked,
    }
}

fn preview_spec(spec: &Spec, database: &Database, facts: &Facts) -> Result<SpecPreview, Failure> {
    let columns = spec.expansions.iter().map(|e| e.columns.len()).max().unwrap_or(1);
    let rows = PREVIEW_CELLS.div_ceil(columns.max(1));
    let selection = Selection { limit: Some(rows as u64), ..Selection::default() };
    let (plan, max_usd) = price_cells(spec, database, facts, &selection)?;
    let prompts = build_sample_prompts(spec, database, facts, Some(rows))?;
    Ok(SpecPreview { plan, max_usd, prompts, rows: rows as u64 })
}

/// Returns the plan of a spec's missing cells, and their maximum cost in USD, including the
/// reservation of the last request.
pub(super) fn price_cells(
    spec: &Spec,
    database: &Database,
    facts: &Facts,
    selection: &Selection,
) -> Result<(Plan, f64), Failure> {
    let model = model::connect_for_planning(spec)?;
    let (plan, _) = Materializer::new(spec, database, facts, model, selection)?.plan_requests()?;
    let input = plan.input_tokens() as f64 / plan.request_count().max(1) as f64;
    let max_usd = plan.cost_usd.max + compute_max_request_cost(spec, input);
    Ok((plan, max_usd))
}

/// The text of a spec, in a form.
pub(super) struct SpecEditor {
    name: String,
    path: PathBuf,
    /// Text of the file.
    text: String,
    /// Text shown in the form.
    shown: String,
    /// Hash of the text that the user opened or last saved.
    base: String,
    can_edit: bool,
}

impl SpecEditor {
    pub(super) fn open(state: &HttpState, name: &str) -> Result<Self, ErrorPage> {
        let path = PathBuf::from(&find_spec(state, name)?.path);
        let text = std::fs::read_to_string(&path).map_err(|e| {
            let message = format!("cannot read {}: {}", path.display(), describe_io_error(&e));
            HttpError::bad_request(message, "check the path and its permissions")
        })?;
        let can_edit = state.context.settings.edit;
        let base = blake3::hash(text.as_bytes()).to_hex().to_string();
        Ok(Self { name: name.to_owned(), path, shown: text.clone(), base, text, can_edit })
    }

    /// Checks the shown text, and previews or saves it. Returns what to show below it.
    async fn submit(
        &mut self,
        state: &HttpState,
        action: &str,
    ) -> Result<(StatusCode, Markup), HttpError> {
        let facts = Arc::clone(&state.context.facts);
        let (path, text) = (self.path.clone(), self.shown.clone());
        let previews = action == "preview";
        let (client_guard, interrupt) = state.context.clients.begin_work();
        let permit = state.acquire_query_permit().await?;
        let checked = run_blocking(permit, client_guard, move || {
            Ok(check_text(&path, text, &facts, previews, interrupt)?)
        });
        let (warnings, preview) = checked.await?;
        let mut content = html! { @if !warnings.problems.is_empty() { pre.problem.warnings { (warnings.render(false)) } } };
        if let Some(preview) = preview {
            content = html! { (content) (self.render_preview(&preview)) };
        }
        if action == "save" {
            let is_saved = self.save(Arc::clone(&state.edits).lock_owned().await).await?;
            let (status, message) = if is_saved {
                (StatusCode::OK, "Saved. The daemon reads the spec again.")
            } else {
                (
                    StatusCode::CONFLICT,
                    "Not saved: the file has changed since you opened it. Copy your text, and open the page again.",
                )
            };
            let content = html! { p.note.wait[!is_saved] role="status" { (message) } (content) };
            return Ok((status, content));
        }
        if !previews {
            content = html! { p.note role="status" { "The spec is valid." } (content) };
        }
        Ok((StatusCode::OK, content))
    }

    /// Saves the shown text if the file has not changed since the user opened it. Returns false if
    /// it has changed.
    async fn save(&mut self, lock: OwnedMutexGuard<()>) -> Result<bool, HttpError> {
        let Ok(base) = blake3::Hash::from_hex(&self.base) else { return Ok(false) };
        let (path, text) = (self.path.clone(), self.shown.clone());
        let saved = tokio::task::spawn_blocking(move || {
            let saved = save_spec(&path, base, &text);
            drop(lock);
            saved
        });
        let is_saved = saved.await.map_err(|_| internal_error())??;
        if is_saved {
            self.text.clone_from(&self.shown);
            self.base = blake3::hash(self.text.as_bytes()).to_hex().to_string();
        }
        Ok(is_saved)
    }

    fn render(&self, outcome: &Markup) -> Page {
        self.render_with_intro(&html! {}, outcome)
    }

    /// Renders the editor between an introduction and the outcome of the last action.
    pub(super) fn render_with_intro(&self, intro: &Markup, outcome: &Markup) -> Page {
        // Without `--edit`, hide keys and passwords that the spec contains.
        let text = if self.can_edit { self.shown.clone() } else { mask_secrets(&self.shown) };
        render_page(
            &self.name,
            &html! {
                h1 { (self.name) }
                (render_spec_tabs(&self.name, "Spec"))
                @if !self.can_edit { p.note { "Read only. To edit specs on this page, start the daemon with " code { "--edit" } "." } }
                (intro)
                form.live #spec-editor method="post" action=(format!("{}/edit", spec_path(&self.name)))
                    data-check=[self.can_edit.then(|| format!("{}/check", spec_path(&self.name)))] {
                    input type="hidden" name="base" value=(self.base);
                    // Browsers drop a newline at the start of a text area.
                    div.editor {
                        textarea.toml name="text" rows="24" readonly[!self.can_edit] aria-label="TOML of the spec" spellcheck="false" autocapitalize="off" { "\n" (text) }
                    }
                    div #completion .chips hidden aria-label="Completions" role="group" {}
                    div.row.controls {
                        @if self.can_edit {
                            button.main name="do" value="save" { "Save" }
                            button name="do" value="check" { "Check" }
                        }
                        button name="do" value="preview" { "Preview " (PREVIEW_CELLS) " cells" }
                        button.cancel type="button" hidden { "Cancel" }
                        span.status.quiet role="status" { "The preview shows the prompt and the cost, and sends no request." }
                    }
                    ol #problems .problems hidden {}
                }
                (outcome)
            },
        )
    }

    fn render_preview(&self, preview: &SpecPreview) -> Markup {
        let SpecPreview { plan, max_usd, prompts, rows } = preview;
        let cells = plan.cell_count();
        let most = format_usd_bound(*max_usd);
        let is_saved = self.shown == self.text;
        html! {
            section.card.answer {
                h2 { "Preview" }
                p {
                    "The first " (format_count(*rows, "row")) " of each table: " strong { (format_count(cells, "missing cell")) }
                    " in " (format_count(plan.request_count(), "request")) ", " (format_count(plan.input_tokens(), "input token"))
                    @if plan.has_price { ", " strong { (format_usd(plan.cost_usd.likely)) } " likely, at most " (most) "." } @else { ". The price is not known." }
                    @for note in &plan.price_notes { " (" (note) ")" }
                }
                @if cells > 0 && plan.has_price {
                    @if is_saved {
                        form.row method="post" action=(format!("{}/go", spec_path(&self.name))) {
                            input type="hidden" name="limit" value=(rows);
                            input type="hidden" name="budget" value=(most.trim_start_matches('$'));
                            button { "Ask for these cells, for at most " (most) }
                        }
                    } @else { p.quiet { "Save the spec to ask for these cells." } }
                }
                @for (n, prompt) in prompts.iter().enumerate() {
                    details open[n == 0] { summary { "Prompt of " (prompt.title) }
                        pre.prompt tabindex="0" { (prompt.system) "\n\n" (prompt.user) }
                    }
                }
            }
        }
    }
}
