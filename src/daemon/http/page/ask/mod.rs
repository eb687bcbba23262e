//! The Ask page: a model writes a query for a question in plain words. The page shows the query
//! with its maximum cost, and runs it once the user approves the cost. The conversation is part of
//! the form, so that the page needs no script and no session.

mod answer;
mod submissions;

use std::sync::Arc;

use axum::extract::{Query, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use maud::{Markup, html};
use serde::Deserialize;

use self::answer::{
    AskAction, AskAnswer, AskJob, AskResult, PagePlan, ShownQuery, approve_requests,
    describe_max_cost, describe_max_writing_cost, describe_writing_cost,
};
use self::submissions::{Submissions, create_page_id};
use super::super::query::find_target;
use super::super::reply::HttpError;
use super::query::{
    format_cost_notes, render_default_chart, render_routes_section, render_rows_table,
    render_usage_section,
};
use super::schema::render_schemas;
use super::spec_edit::add_example;
use super::{
    ErrorPage, HttpState, Page, percent_encode, read_form, render_failure, render_main_page,
};
use crate::ask::{AskPlan, MaxCost, Turn};
use crate::daemon::active_spec::ActiveSpec;
use crate::failure::Failure;
use crate::format::format_count;
use crate::query::Dialect;
use crate::spec::file::ExampleTable;

/// Maximum number of earlier questions in a form.
const MAX_TURNS: usize = 20;
/// Maximum number of example questions to show.
const MAX_EXAMPLES: usize = 6;

/// Submitted forms of this page.
pub(in crate::daemon::http) type AskSubmissions = Submissions<AskResult>;

/// Fields of the page's forms.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default)]
pub(super) struct AskForm {
    spec: String,
    question: String,
    /// Earlier questions as JSON.
    turns: String,
    sql: String,
    dialect: Dialect,
    /// Whether the query was relaxed.
    relaxed: bool,
    /// The model's assumptions about `written`, the query that it wrote.
    assumptions: String,
    written: String,
    /// Price shown on the button that runs the query.
    run_cost: String,
    /// Identity of the plan that the page has shown.
    plan_id: String,
    writing_cost: String,
    /// Identifies the page, so that a form that is submitted twice is processed once.
    submission: String,
    /// Key in `AskSubmissions` of the answer whose query the user wants to save as an example.
    answer: String,
    #[serde(rename = "do")]
    action: String,
}

impl AskForm {
    fn read_turns(&self) -> Result<Vec<Turn>, HttpError> {
        if self.turns.is_empty() {
            return Ok(Vec::new());
        }
        let turns: Vec<Turn> = serde_json::from_str(&self.turns).map_err(|_| {
            HttpError::bad_request("the conversation is not readable", "start a new conversation")
        })?;
        let skipped = turns.len().saturating_sub(MAX_TURNS);
        Ok(turns.into_iter().skip(skipped).collect())
    }

    /// Returns the action to take, or a note if the page showed an outdated cost of writing the
    /// query.
    fn to_action(&self, writing_cost: &str) -> Result<AskAction, String> {
        let shown = ShownQuery {
            sql: self.sql.clone(),
            dialect: self.dialect,
            is_relaxed: self.relaxed,
            assumptions: self.find_assumptions(),
            cost: self.run_cost.clone(),
            plan_id: self.plan_id.clone(),
        };
        match self.action.as_str() {
            "price" => Ok(AskAction::Price(shown)),
            "run" => Ok(AskAction::Run(shown)),
            _ if self.writing_cost != writing_cost => {
                Err(format!("Writing a query is now {writing_cost}. Approve the new cost."))
            }
            "relax" => Ok(AskAction::Relax(shown)),
            action => Ok(AskAction::Write { rewrites: action == "rewrite" }),
        }
    }

    /// Returns the model's assumptions, if the query was not edited.
    fn find_assumptions(&self) -> Option<String> {
        let is_written = self.sql.split_whitespace().eq(self.written.split_whitespace());
        (is_written && !self.assumptions.is_empty()).then(|| self.assumptions.clone())
    }

    /// Returns the key of the form: equal forms of one page have the same key.
    fn key(&self) -> String {
        blake3::hash(format!("{self:?}").as_bytes()).to_hex().to_string()
    }
}

/// Handles `GET /ask`: shows the form, but writes and runs nothing.
pub(super) async fn show_ask(
    State(state): State<HttpState>,
    Query(form): Query<AskForm>,
) -> Result<Page, ErrorPage> {
    let form = AskForm { spec: form.spec, question: form.question, ..AskForm::default() };
    Ok(AskPage::open(&state, &form).await?.render(None))
}

/// Handles `POST /ask`.
pub(super) async fn submit_ask(
    State(state): State<HttpState>,
    request: Request,
) -> Result<Response, ErrorPage> {
    let mut form: AskForm = read_form(request).await?;
    // Browsers submit text with Windows line endings.
    form.sql = form.sql.replace("\r\n", "\n");
    let mut page = AskPage::open(&state, &form).await?;
    if form.action == "keep" {
        return add_answer_as_example(&state, page).await;
    }
    let Some(active) = page.active.clone() else { return Ok(page.render(None).into_response()) };
    let action = match form.to_action(&page.writing_cost) {
        Ok(action) => action,
        Err(note) => {
            page.note = Some(note);
            return Ok(page.render(None).into_response());
        }
    };
    let (question, earlier, spec) = (form.question.clone(), page.turns.clone(), page.spec.clone());
    let work = |interrupt| {
        let state = state.clone();
        async move {
            let permit = match state.acquire_query_permit().await {
                Ok(permit) => permit,
                Err(busy) => return AskResult::Failed { failure: busy.failure, sql: None },
            };
            let context = state.context;
            let answer = move || {
                let done = match find_target(&active.spec) {
                    Ok(target) => {
                        let approved = approve_requests(&active.spec);
                        AskJob {
                            context,
                            spec,
                            active,
                            approved,
                            target,
                            question,
                            earlier,
                            interrupt,
                        }
                        .answer_question(action)
                    }
                    Err(failure) => AskResult::Failed { failure, sql: None },
                };
                drop(permit);
                done
            };
            tokio::task::spawn_blocking(answer).await.unwrap_or_else(|_| AskResult::Failed {
                failure: Failure::wrong_input(
                    "this is a bug in hqdl",
                    "please report this question",
                ),
                sql: None,
            })
        }
    };
    page.key = form.key();
    let outcome = state.submissions.run_once(&page.key, &state.context.clients, work).await;
    let status = match outcome.as_deref() {
        Some(AskResult::Failed { failure, .. }) => HttpError::from(failure.clone()).status,
        _ => StatusCode::OK,
    };
    Ok((status, page.render(outcome.as_deref())).into_response())
}

/// Adds an answered question with its query to the spec as an example.
async fn add_answer_as_example(
    state: &HttpState,
    mut page: AskPage<'_>,
) -> Result<Response, ErrorPage> {
    let refuse = |message: &str, hint: &str| {
        ErrorPage::from(HttpError::new(StatusCode::FORBIDDEN, message.to_owned(), hint))
    };
    if !page.can_edit {
        return Err(refuse("the page may not change specs", "start the daemon with --edit"));
    }
    let outcome = state.submissions.find_result(&page.form.answer);
    let Some(AskResult::Answered(answered)) = outcome.as_deref() else {
        return Err(refuse("the answer is no longer in memory", "ask the question again"));
    };
    if answered.turn.rows == 0 || !answered.turn.can_be_example {
        return Err(refuse(
            "the query cannot be an example: it has no rows, was relaxed, or is not in SQLite's dialect",
            "add an [[example]] to the spec with an editor",
        ));
    }
    let question = page.form.question.trim().to_owned();
    let example = ExampleTable { question, sql: answered.turn.sql.clone() };
    page.note = Some(add_example(state, &page.spec, example).await?);
    page.key.clone_from(&page.form.answer);
    Ok(page.render(outcome.as_deref()).into_response())
}

/// Everything that the page shows, except the result of the submitted form.
struct AskPage<'f> {
    form: &'f AskForm,
    /// Names of all specs.
    specs: Vec<String>,
    /// Name of the chosen spec; empty if there is none.
    spec: String,
    active: Option<Arc<ActiveSpec>>,
    schema: Markup,
    writing_cost: String,
    turns: Vec<Turn>,
    note: Option<String>,
    /// Key of the submitted form.
    key: String,
    can_edit: bool,
}

impl<'f> AskPage<'f> {
    async fn open(state: &HttpState, form: &'f AskForm) -> Result<Self, ErrorPage> {
        let status = state.context.status.borrow().clone();
        let specs: Vec<String> = status.specs.keys().cloned().collect();
        let first = status.specs.values().find(|spec| spec.active_spec.is_some());
        let chosen = match form.spec.as_str() {
            "" => first.map(|spec| spec.name.clone()).or_else(|| specs.first().cloned()),
            name => Some(name.to_owned()),
        };
        let active = match &chosen {
            Some(name) => Some(state.find_active_spec(Some(name))?.1),
            None => None,
        };
        let writing_cost = match &active {
            Some(active) => describe_max_writing_cost(active)?,
            None => String::new(),
        };
        let spec = chosen.unwrap_or_default();
        let schema = render_schemas(state, &spec).await;
        Ok(Self {
            form,
            specs,
            spec,
            active,
            schema,
            writing_cost,
            turns: form.read_turns()?,
            note: None,
            key: String::new(),
            can_edit: state.context.settings.edit,
        })
    }

    fn render(&self, outcome: Option<&AskResult>) -> Page {
        let is_new = self.turns.is_empty() && outcome.is_none();
        let content = html! {
            div.title-row {
                h1 { "Ask" }
                @if !is_new { a.button href=(format!("/ask?spec={}", percent_encode(&self.spec))) { "New conversation" } }
            }
            @if self.active.is_none() {
                p.quiet { "There is no spec to ask about. Put one into the directory that the daemon watches." }
            } @else if is_new {
                div.beside {
                    div { (self.render_note()) (self.render_spec_choice()) (self.render_question(&self.turns, &self.form.question, "Question", true)) (self.render_examples()) }
                    div.schemas tabindex="0" role="region" aria-label="Tables and columns" { (self.schema) }
                }
            } @else {
                (self.render_turns())
                (self.render_outcome(outcome))
            }
        };
        render_main_page("Ask", &content)
    }

    fn render_note(&self) -> Markup {
        html! { @if let Some(note) = &self.note { p.note role="status" { (note) } } }
    }

    fn render_outcome(&self, outcome: Option<&AskResult>) -> Markup {
        let note = self.render_note();
        if let Some(AskResult::Answered(answered)) = outcome {
            let mut turns = self.turns.clone();
            turns.push(answered.turn.clone());
            return html! {
                section.answer {
                    h2 { (answered.turn.question) }
                    (note)
                    (self.render_answer(answered))
                }
                (self.render_question(&turns, "", "Follow-up question", true))
            };
        }
        html! {
            (self.render_question(&self.turns, &self.form.question, "Question", outcome.is_none()))
            (note)
            @match outcome {
                Some(AskResult::Planned(planned)) => section.card { (self.render_plan(planned)) },
                Some(AskResult::Declined(reason)) => {
                    p.note.wait { "No query was written. The model says: " (reason) }
                    (self.render_hidden_form(&html! { (self.render_rewrite_button()) }))
                }
                Some(AskResult::Failed { failure, sql }) => {
                    (render_failure(failure))
                    @match sql {
                        Some(sql) => section.card {
                            (self.render_query_form(sql, self.form.dialect, self.form.relaxed, None, None, &html! {
                                button.main name="do" value="price" { "Price the corrected query" }
                            }))
                        },
                        None => (self.render_hidden_form(&html! { (self.render_rewrite_button()) })),
                    }
                }
                Some(AskResult::Answered(_)) | None => {}
            }
        }
    }

    /// Renders the choice of a spec, if there are several.
    fn render_spec_choice(&self) -> Markup {
        html! { @if self.specs.len() > 1 {
            form.row method="get" action="/ask" {
                label { "Spec " select name="spec" { @for name in &self.specs { option value=(name) selected[*name == self.spec] { (name) } } } }
                button { "Choose" }
            }
        } }
    }

    /// Renders the examples of the spec as links that fill in the question.
    fn render_examples(&self) -> Markup {
        let examples = self.active.as_ref().map(|active| &active.spec.ask.examples[..]);
        let examples = examples.unwrap_or_default();
        html! { @if !examples.is_empty() {
            p.small.quiet { "Examples of the spec, whose queries are written already:" }
            div.chips { @for example in examples.iter().take(MAX_EXAMPLES) {
                a.chip href=(format!("/ask?spec={}&question={}", percent_encode(&self.spec), percent_encode(&example.question))) { (example.question) }
            } }
        } }
    }

    /// Renders the earlier questions, oldest first.
    fn render_turns(&self) -> Markup {
        html! { @if !self.turns.is_empty() {
            ol.turns aria-label="Earlier questions" { @for turn in &self.turns { li {
                details {
                    summary { (turn.question) " " span.quiet { (format_count(turn.rows, "row")) } }
                    pre tabindex="0" { (turn.sql) }
                    p { a href=(self.query_link(&turn.sql)) { "Open in Query" } }
                }
            } } }
        } }
    }

    fn query_link(&self, sql: &str) -> String {
        format!("/query?spec={}&sql={}", percent_encode(&self.spec), percent_encode(sql))
    }

    /// Renders the hidden fields that all forms of the page have.
    fn render_hidden_fields(&self, turns: &[Turn]) -> Markup {
        let turns = serde_json::to_string(turns).unwrap_or_default();
        html! {
            input type="hidden" name="spec" value=(self.spec);
            input type="hidden" name="turns" value=(turns);
            input type="hidden" name="writing_cost" value=(self.writing_cost);
            input type="hidden" name="submission" value=(create_page_id());
        }
    }

    /// Renders the question box. Without `is_main`, another form has the main button.
    fn render_question(
        &self,
        turns: &[Turn],
        question: &str,
        label: &str,
        is_main: bool,
    ) -> Markup {
        html! {
            form.live.question method="post" action="/ask" {
                (self.render_hidden_fields(turns))
                label { (label)
                    textarea name="question" rows="2" required maxlength="4000" placeholder="Ask in plain words" { (question) }
                }
                div.row.controls {
                    button.main[is_main] name="do" value="write" { "Write the query, " (self.writing_cost) }
                    button.cancel type="button" hidden { "Cancel" }
                    span.status.quiet role="status" { @if is_main { "You see the query and its cost before it runs. A query that needs no model runs at once." } }
                }
            }
        }
    }

    /// Renders a form with the question and some buttons.
    fn render_hidden_form(&self, buttons: &Markup) -> Markup {
        html! { form.live method="post" action="/ask" {
            (self.render_hidden_fields(&self.turns))
            input type="hidden" name="question" value=(self.form.question);
            div.row.controls { (buttons) (render_live_status()) }
        } }
    }

    fn render_rewrite_button(&self) -> Markup {
        html! { button name="do" value="rewrite" { "Write another query, " (self.writing_cost) } }
    }

    /// Renders a query in an editable form. `awaiting` is the query's plan if it waits for
    /// approval.
    fn render_query_form(
        &self,
        sql: &str,
        dialect: Dialect,
        is_relaxed: bool,
        assumptions: Option<&str>,
        awaiting: Option<&AskPlan>,
        buttons: &Markup,
    ) -> Markup {
        html! { form.live.sql method="post" action="/ask" {
            (self.render_hidden_fields(&self.turns))
            input type="hidden" name="question" value=(self.form.question);
            input type="hidden" name="dialect" value=(dialect.name());
            input type="hidden" name="relaxed" value=(is_relaxed);
            @if let Some(plan) = awaiting {
                input type="hidden" name="run_cost" value=(describe_max_cost(&plan.max_cost));
                input type="hidden" name="plan_id" value=(plan.id);
            }
            @if let Some(assumptions) = assumptions {
                input type="hidden" name="assumptions" value=(assumptions);
                input type="hidden" name="written" value=(sql);
            }
            textarea name="sql" rows="4" aria-label="SQL" spellcheck="false" autocapitalize="off" { (sql.trim()) }
            div.row.controls { (buttons) (self.render_rewrite_button()) (render_live_status()) }
        } }
    }

    /// Renders a query that waits for approval.
    fn render_plan(&self, planned: &PagePlan) -> Markup {
        let plan = &planned.plan;
        let price = describe_max_cost(&plan.max_cost);
        let meta = &plan.explained;
        html! {
            @if let Some(note) = &planned.note { p.note.wait role="status" { (note) } }
            (render_assumptions(planned))
            p {
                @if meta.values_asked == 0 && meta.unbounded.is_empty() { "The query sends no request." }
                @else {
                    "The query asks the model about at most " strong { (format_count(meta.values_asked, "value")) }
                    " (" (meta.values_reused) " known) in " (format_count(meta.requests, "request")) (format_cost_notes(meta)) "."
                }
            }
            @if let MaxCost::Unknown(why) = &plan.max_cost { p.note.wait { "The cost is not known: " (why) "." } }
            (self.render_query_form(&plan.sql, plan.dialect, planned.is_relaxed, plan.assumptions.as_deref(), Some(plan), &html! {
                button.main name="do" value="run" { "Run, " (price) }
                button name="do" value="price" { "Price an edited query" }
            }))
            (render_routes_section(meta))
        }
    }

    /// Renders the rows of a query, followed by the query.
    fn render_answer(&self, answered: &AskAnswer) -> Markup {
        let AskAnswer { planned, rows, meta, searched, turn } = answered;
        html! {
            @if let Some(note) = &planned.note { p.note.wait { (note) } }
            p { strong { (format_count(turn.rows, "row")) } ": " (searched) "." }
            (render_assumptions(planned))
            @if rows.count == 0 {
                (self.render_hidden_query_form(answered, &html! {
                    button.main name="do" value="relax" { "Search with a weaker condition, " (self.writing_cost) }
                }))
            } @else {
                @if rows.count > 1 { (render_default_chart(rows)) }
                (render_rows_table(rows))
            }
            details open[rows.count == 0] { summary { "Query and routes" }
                (self.render_query_form(&turn.sql, planned.plan.dialect, planned.is_relaxed, planned.plan.assumptions.as_deref(), None, &html! {
                    button name="do" value="price" { "Price an edited query" }
                }))
                p { a href=(self.query_link(&turn.sql)) { "Open in Query" } " to draw charts and download all rows" }
                (render_usage_section(meta))
            }
            @if turn.rows > 0 && turn.can_be_example { (self.render_add_example_form(turn)) }
        }
    }

    fn render_hidden_query_form(&self, answered: &AskAnswer, buttons: &Markup) -> Markup {
        let plan = &answered.planned.plan;
        html! { form.live method="post" action="/ask" {
            (self.render_hidden_fields(&self.turns))
            input type="hidden" name="question" value=(answered.turn.question);
            input type="hidden" name="sql" value=(plan.sql);
            input type="hidden" name="dialect" value=(plan.dialect.name());
            div.row.controls { (buttons) (render_live_status()) }
        } }
    }

    /// Renders the form that keeps the query as an example. A follow-up question must be written
    /// out in full, because it cannot be understood without the earlier ones.
    fn render_add_example_form(&self, turn: &Turn) -> Markup {
        let question = if self.turns.is_empty() { turn.question.as_str() } else { "" };
        html! { details { summary { "Keep as an example" }
            p.small.quiet { "An example is a part of the spec: its question is answered without a request, and the model sees it with similar questions." }
            @if self.can_edit {
                form.live.fields method="post" action="/ask" {
                    (self.render_hidden_fields(&self.turns))
                    input type="hidden" name="answer" value=(self.key);
                    label { "Question, understandable without the earlier ones" input name="question" required value=(question); }
                    div.row.controls { button name="do" value="keep" { "Keep" } (render_live_status()) }
                }
            } @else { p { "The page may not change specs. Start the daemon with " code { "--edit" } " to keep examples." } }
        } }
    }
}

/// Renders the status that the script shows while a form is being processed.
fn render_live_status() -> Markup {
    html! { button.cancel type="button" hidden { "Cancel" } span.status.quiet role="status" {} }
}

fn render_assumptions(planned: &PagePlan) -> Markup {
    html! {
        @if let Some(assumptions) = &planned.plan.assumptions { p { strong { "Assumes: " } (assumptions) } }
        @if let Some(writing) = describe_writing_cost(planned) { p.small.quiet { (writing) } }
        @if !planned.repairs.is_empty() {
            details { summary { "Queries that were repaired" } @for repair in &planned.repairs { pre tabindex="0" { (repair.sql) "\n" (repair.error) } } }
        }
    }
}
