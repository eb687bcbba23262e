//! The list of a spec's tables: those that hqdl fills, and all other tables and views of the
//! database.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use axum::extract::{Path, State};
use maud::{Markup, html};
use rusqlite::Connection;

use super::super::query::{READ_TIMEOUT, find_target, run_blocking};
use super::row_source::list_database_tables;
use super::table::{MAX_COUNTED, RowCount};
use super::{
    HttpState, ShownPage, find_spec, percent_encode, render_page, render_spec_tabs, spec_path,
};
use crate::daemon::job::guard_failure;
use crate::failure::Failure;
use crate::query::connection::guard::GuardedConnection;
use crate::spec::{Catalog, Spec};
use crate::sql::quote_name;

/// Time after which the rows of further tables are not counted.
const COUNT_TIME: Duration = Duration::from_secs(1);

/// Table of the list.
struct ListedTable {
    name: String,
    content: &'static str,
    /// Number of rows; `None` if they were not counted.
    rows: Option<RowCount>,
    /// Whether the page can show the rows.
    is_readable: bool,
}

/// Handles `GET /specs/{spec}/tables`.
pub(super) async fn show_tables(
    State(state): State<HttpState>,
    Path(name): Path<String>,
) -> ShownPage {
    find_spec(&state, &name)?;
    let (_, active_spec) = state.find_active_spec(Some(&name))?;
    let (client_guard, interrupt) = state.context.clients.begin_work();
    let permit = state.acquire_read_permit().await?;
    let read = move || {
        let spec = &active_spec.spec;
        let guard =
            GuardedConnection::open_for_sql(&find_target(spec)?, Some(READ_TIMEOUT), interrupt);
        let guard = guard.map_err(Failure::from)?;
        let tables = list_tables(&guard, spec);
        Ok(tables.map_err(|failure| guard_failure(&guard).unwrap_or(failure))?)
    };
    let tables = run_blocking(permit, client_guard, read).await?;
    Ok(render_page(
        &name,
        &html! {
            h1 { (name) }
            (render_spec_tabs(&name, "Tables"))
            (render_table_list(&name, &tables))
        },
    ))
}

/// Lists the tables that hqdl fills first, then the others by name.
fn list_tables(guard: &GuardedConnection, spec: &Spec) -> Result<Vec<ListedTable>, Failure> {
    let database = guard.database();
    let mut contents: BTreeMap<String, &'static str> = BTreeMap::new();
    for expansion in database.list_published_expansions()? {
        for (_, table) in &expansion.columns {
            contents.insert(table.to_lowercase(), "items of a list, filled by the model");
        }
        contents.insert(expansion.expansion.to_lowercase(), "filled by the model");
    }
    let found = if database.server_url().is_some() {
        let tables = database.table_names().into_iter();
        tables.map(|name| (name, false, false)).collect()
    } else {
        let tables = list_database_tables(database.connection());
        let tables = tables.map_err(|e| database.to_store_error(&e))?.into_iter();
        tables.map(|t| (t.name, t.is_view, true)).collect::<Vec<_>>()
    };
    let began = Instant::now();
    let mut tables = Vec::new();
    for (name, is_view, is_file) in found {
        let filled = contents.get(&name.to_lowercase()).copied();
        let is_counted = is_file && !is_view && began.elapsed() < COUNT_TIME;
        let rows = if is_counted { Some(count_rows(database.connection(), &name)) } else { None };
        let rows = rows.transpose().map_err(|e| database.to_store_error(&e))?;
        let content = match (filled, is_view) {
            (Some(content), _) => content,
            (None, true) if database.is_created_by_hqdl(&name) => {
                "view of a source with its filled columns"
            }
            (None, true) => "view",
            (None, false) => "table",
        };
        tables.push(ListedTable { name, content, rows, is_readable: is_file || filled.is_some() });
    }
    let is_unlisted = |name: &&str| !tables.iter().any(|t| t.name.eq_ignore_ascii_case(name));
    let expansions = spec.expansions.iter().map(|e| e.name.as_str());
    let unpublished: Vec<ListedTable> = expansions
        .filter(is_unlisted)
        .map(|name| ListedTable {
            name: name.to_owned(),
            content: "filled by the model, not published yet",
            rows: None,
            is_readable: true,
        })
        .collect();
    tables.extend(unpublished);
    tables.sort_by_key(|table| (!table.content.contains("filled by"), table.name.to_lowercase()));
    Ok(tables)
}

/// Counts the rows of a table, up to a limit, so that a large table takes no longer.
fn count_rows(connection: &Connection, table: &str) -> rusqlite::Result<RowCount> {
    let limit = MAX_COUNTED + 1;
    let sql = format!("SELECT count(*) FROM (SELECT 1 FROM {} LIMIT {limit})", quote_name(table));
    connection.query_row(&sql, [], |row| row.get(0)).map(RowCount::up_to_limit)
}

fn render_table_list(spec: &str, tables: &[ListedTable]) -> Markup {
    let path = |table: &ListedTable| {
        if table.is_readable {
            return format!("{}/tables/{}", spec_path(spec), percent_encode(&table.name));
        }
        let sql = format!("SELECT * FROM {} LIMIT 1000", quote_name(&table.name));
        format!("/query?spec={}&sql={}", percent_encode(spec), percent_encode(&sql))
    };
    html! {
        @if tables.is_empty() {
            p.card { "The database has no table. Create one, or name another database in the " a href=(format!("{}/edit", spec_path(spec))) { "spec" } "." }
        } @else { div.wide tabindex="0" role="region" aria-label="Tables" { table {
            thead { tr { th scope="col" { "table" } th scope="col" { "content" } th.n scope="col" { "rows" } } }
            tbody { @for table in tables { tr {
                th scope="row" { a href=(path(table)) { (table.name) } }
                td { (table.content) }
                td.n { @match table.rows { Some(rows) => (rows.describe()), None => span.quiet { "not counted" } } }
            } } }
        } } }
    }
}
