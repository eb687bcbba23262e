//! The table browser: rows of an expansion, with the state of every cell.

use axum::extract::{Path, Query, State};
use maud::{Markup, html};
use serde::Deserialize;
use serde_json::Value as Json;

use super::super::query::{READ_TIMEOUT, run_blocking};
use super::spec::find_spec;
use super::value_text;
use super::{HttpState, ShownPage, percent_encode, render_page, spec_path};
use crate::cell::State as CellState;
use crate::daemon::job::guard_failure;
use crate::database::Database;
use crate::database::provenance::PublishedExpansion;
use crate::failure::Failure;
use crate::query::connection::guard::Guard;
use crate::spec::{Column, Expansion, Spec};

/// Number of rows per page.
const PAGE_ROWS: usize = 50;
/// Number of characters of a value to show.
const MAX_VALUE_CHARS: usize = 120;

#[derive(Deserialize)]
pub(super) struct AskedPage {
    /// Page number, from 0.
    #[serde(default)]
    page: usize,
    /// Text that the keys must contain.
    #[serde(default)]
    key: String,
    /// State that one of the row's cells must have.
    #[serde(default)]
    state: String,
}

/// Some rows of an expansion, or of a one-to-many table.
#[derive(Default)]
struct PageRows {
    key: Vec<String>,
    columns: Vec<String>,
    /// Columns of the spec that are not published yet.
    unpublished: Vec<String>,
    /// Whether the table is published.
    published: bool,
    /// Key as JSON, and the row's cells by column.
    rows: Vec<(Vec<Json>, Json)>,
    more: bool,
}

/// `GET /specs/{spec}/tables/{table}`
pub(super) async fn show_table(
    State(state): State<HttpState>,
    Path((name, table)): Path<(String, String)>,
    Query(asked): Query<AskedPage>,
) -> ShownPage {
    let running = find_spec(&state, &name)?.run.is_some();
    let (_, active_spec) = state.active_spec(Some(&name))?;
    let order = columns_of(&active_spec.spec, &table);
    let (client_guard, interrupt) = state.context.clients.begin_work();
    let permit = state.acquire_read_permit().await?;
    let (of, at) = (table.clone(), asked.page);
    let (key, state) = (asked.key.clone(), asked.state.clone());
    let read = move || {
        let guard = Guard::open_for_sql(active_spec.spec.target(), Some(READ_TIMEOUT), interrupt);
        let guard = guard.map_err(Failure::from)?;
        let rows = read_page(guard.database(), &of, at, (&key, &state), &order);
        Ok(rows.map_err(|failure| guard_failure(&guard).unwrap_or(failure))?)
    };
    let rows = run_blocking(permit, client_guard, read).await?;
    let own = format!("{}/tables/{}", spec_path(&name), percent_encode(&table));
    let to = |page: usize| {
        format!(
            "{own}?page={page}&key={}&state={}",
            percent_encode(&asked.key),
            percent_encode(&asked.state)
        )
    };
    Ok(render_page(
        &table,
        &html! {
            h1 { a href=(spec_path(&name)) { (name) } " / " (table) }
            form.row method="get" action=(own) {
                label { "Keys with " input name="key" value=(asked.key); }
                label { "a cell that is " select name="state" {
                    option value="" { "in any state" }
                    @for state in CellState::ALL {
                        option value=(state.name()) selected[state.name() == asked.state] { (state.name()) }
                    }
                } }
                button { "Find" }
            }
            @if !rows.published || !rows.unpublished.is_empty() {
                p.quiet {
                    @if rows.published { "Not published yet: " (rows.unpublished.join(", ")) "." }
                    @else { "This table is not published yet." }
                    @if running { " A run is filling it; reload this page when the run has ended." }
                }
            }
            (rows_table(&name, &table, &rows))
            @if rows.published && rows.rows.is_empty() {
                p.quiet {
                    @if asked.key.is_empty() && asked.state.is_empty() { "No row has an answer yet." }
                    @else { "No rows." }
                }
            }
            nav.pages {
                @if asked.page > 0 { a rel="prev" href=(to(asked.page - 1)) { "← before" } " " }
                "page " (asked.page + 1) " "
                @if rows.more { a rel="next" href=(to(asked.page + 1)) { "after →" } }
            }
        },
    ))
}

/// Returns the spec's columns that a table shows: those of an expansion, or the one of a one-to-many
/// table. Another table has none.
fn columns_of(spec: &Spec, table: &str) -> Vec<String> {
    let is_shown = |e: &Expansion, c: &Column| {
        e.name.eq_ignore_ascii_case(table)
            || c.many.as_ref().is_some_and(|many| many.table.eq_ignore_ascii_case(table))
    };
    let columns = spec.expansions.iter().flat_map(|e| e.columns.iter().map(move |c| (e, c)));
    columns.filter(|(e, c)| is_shown(e, c)).map(|(_, c)| c.name.clone()).collect()
}

fn read_page(
    database: &Database,
    table: &str,
    at: usize,
    (key, state): (&str, &str),
    order: &[String],
) -> Result<PageRows, Failure> {
    let published = database.published_expansions()?;
    let is_own = |p: &PublishedExpansion| p.expansion.eq_ignore_ascii_case(table);
    let shows = |p: &&PublishedExpansion| {
        is_own(p) || p.columns.iter().any(|(_, shown)| shown.eq_ignore_ascii_case(table))
    };
    let Some(expansion) = published.iter().find(shows) else {
        if !order.is_empty() {
            return Ok(PageRows { columns: order.to_vec(), ..PageRows::default() });
        }
        let all: Vec<&str> = published.iter().map(|p| p.expansion.as_str()).collect();
        return Err(Failure::wrong_input(
            format!("there is no published table `{table}`"),
            format!("the published tables are: {}", all.join(", ")),
        ));
    };
    database.fetch_published_cells(&expansion.expansion)?;
    let rows = || -> rusqlite::Result<Vec<(Vec<Json>, Json)>> {
        let sql = "SELECT key, cells FROM hqdl_record WHERE expansion = ?1
                   AND (?2 = '' OR instr(lower(key), lower(?2)) > 0)
                   AND (?5 = '' OR EXISTS (
                     SELECT 1 FROM json_each(cells) AS c WHERE c.value ->> 0 = ?5))
                   ORDER BY key LIMIT ?3 OFFSET ?4";
        let mut statement = database.connection().prepare(sql)?;
        let of = rusqlite::params![
            expansion.expansion,
            key,
            PAGE_ROWS + 1,
            at.saturating_mul(PAGE_ROWS),
            state
        ];
        let json = |text: String| serde_json::from_str::<Json>(&text).unwrap_or_default();
        let row = |r: &rusqlite::Row<'_>| {
            let key = json(r.get(0)?).as_array().cloned().unwrap_or_default();
            Ok((key, json(r.get(1)?)))
        };
        statement.query_map(of, row)?.collect()
    };
    let mut rows = rows().map_err(|e| database.to_store_error(&e))?;
    let more = rows.len() > PAGE_ROWS;
    rows.truncate(PAGE_ROWS);
    // Order of the spec; columns that the spec no longer has come last.
    let own = is_own(expansion);
    let in_table = |t: &String| own || t.eq_ignore_ascii_case(table);
    let shown = expansion.columns.iter().filter(|(_, t)| in_table(t));
    let mut columns: Vec<String> = shown.map(|(c, _)| c.clone()).collect();
    let position = |c: &String| order.iter().position(|o| o.eq_ignore_ascii_case(c));
    columns.sort_by_key(|c| position(c).unwrap_or(usize::MAX));
    let is_new = |c: &&String| !columns.iter().any(|p| p.eq_ignore_ascii_case(c));
    let unpublished: Vec<String> = order.iter().filter(is_new).cloned().collect();
    let key = expansion.key.clone();
    Ok(PageRows { key, columns, unpublished, published: true, rows, more })
}

fn rows_table(spec: &str, table: &str, rows: &PageRows) -> Markup {
    html! {
        div.wide tabindex="0" role="region" aria-label="Rows" { table.cells {
            thead { tr {
                @for name in &rows.key { th.key { (name) } }
                @for name in &rows.columns { th { (name) } }
                @for name in &rows.unpublished { th.quiet { (name) } }
            } }
            tbody {
                @for (key, cells) in &rows.rows {
                    tr {
                        @for part in key { th.key scope="row" { (value_text(part)) } }
                        @for column in &rows.columns {
                            @let cell = &cells[column.as_str()];
                            @let state = cell[0].as_str().unwrap_or("missing");
                            td class=(state) {
                                a href=(super::cell::cell_path(spec, table, key, column)) title=(state) {
                                    @if matches!(state, "ok" | "overridden") { (short_text(&cell[1])) } @else { (state) }
                                }
                                @if state == "overridden" { " " span.mark title="set by a person" { "✎" } }
                                @if !cell[4].is_null() && state == "ok" { " " span.mark title=(value_text(&cell[4])) { "~" } }
                            }
                        }
                        @for _ in &rows.unpublished { td.missing { "not published" } }
                    }
                }
            }
        } }
    }
}

fn short_text(value: &Json) -> String {
    let whole = match value_text(value) {
        // An empty text would give nothing to click on.
        whole if whole.trim().is_empty() => "(empty)".to_owned(),
        whole => whole,
    };
    match whole.char_indices().nth(MAX_VALUE_CHARS) {
        Some((at, _)) => format!("{}…", &whole[..at]),
        None => whole,
    }
}
