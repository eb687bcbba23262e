//! The tables and columns of a database, beside the boxes for queries and questions. The script
//! completes their names.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use maud::{Markup, html};
use tokio::sync::watch;

use super::super::query::{READ_TIMEOUT, find_target};
use super::row_source::{list_column_names, list_database_tables};
use super::{HttpState, percent_encode};
use crate::daemon::status::SpecStatus;
use crate::query::connection::guard::GuardedConnection;
use crate::spec::{Binding, Expansion, SourceRows, Spec, is_server};
use crate::sql;

/// Maximum number of tables that hqdl does not fill, and of their columns, to list.
const MAX_TABLES: usize = 100;
const MAX_COLUMNS: usize = 200;

/// Renders the tables of a spec; without a name, of all specs.
pub(super) async fn render_schemas(state: &HttpState, name: &str) -> Markup {
    let status = state.context.status.borrow().clone();
    let is_shown = |spec: &&Arc<SpecStatus>| name.is_empty() || spec.name == name;
    let specs: Vec<Arc<SpecStatus>> = status.specs.values().filter(is_shown).cloned().collect();
    let (client_guard, interrupt) = state.context.clients.begin_work();
    let Ok(permit) = state.acquire_read_permit().await else { return html! {} };
    let render = move || {
        let began = Instant::now();
        let schemas = html! { @for spec in &specs {
            @let time = READ_TIMEOUT.saturating_sub(began.elapsed());
            (render_filled_tables(spec)) (render_other_tables(spec, time, interrupt.clone()))
        } };
        drop(permit);
        schemas
    };
    let schemas = tokio::task::spawn_blocking(render).await;
    drop(client_guard);
    schemas.unwrap_or_default()
}

/// Renders the other tables and views of a database file with their columns.
fn render_other_tables(
    spec: &SpecStatus,
    time: Duration,
    interrupt: watch::Receiver<bool>,
) -> Markup {
    let Some(active) = &spec.active_spec else { return html! {} };
    html! { @for (table, columns) in read_other_tables(&active.spec, time, interrupt) {
        details.card.schema {
            summary { code data-name=(table) { (table) } }
            ul { @for column in columns.iter().take(MAX_COLUMNS) { li { span data-name=(column) { (column) } } } }
        }
    } }
}

/// Returns the tables of a database file that hqdl does not fill, with their columns. A server is not
/// asked: this would delay each page.
fn read_other_tables(
    spec: &Spec,
    time: Duration,
    interrupt: watch::Receiver<bool>,
) -> Vec<(String, Vec<String>)> {
    if time.is_zero() {
        return Vec::new();
    }
    let target = find_target(spec).ok().filter(|target| !is_server(target));
    let open = |target: PathBuf| GuardedConnection::open_for_sql(&target, Some(time), interrupt);
    let Some(guard) = target.and_then(|target| open(target).ok()) else { return Vec::new() };
    let connection = guard.connection();
    let is_filled = |name: &str| spec.expansions.iter().any(|e| e.name.eq_ignore_ascii_case(name));
    let tables = list_database_tables(connection).unwrap_or_default().into_iter();
    let tables = tables.filter(|table| !is_filled(&table.name)).take(MAX_TABLES);
    tables
        .map(|table| {
            let columns = list_column_names(connection, &table.name);
            (table.name, columns)
        })
        .collect()
}

/// Renders the tables that hqdl fills, with their columns and example queries.
fn render_filled_tables(spec: &SpecStatus) -> Markup {
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
            section.card.schema {
            h2 { code data-name=(e.name) { (e.name) } }
            ul {
                @for name in e.key.names() { li { span data-name=(name) { (name) } " " span.quiet { "key" } } }
                @for c in &e.columns {
                    li { span data-name=(c.name) { (c.name) } " " span.quiet {
                        (c.kind.name()) @if let Some(many) = &c.many { ", in " code { (many.table) } }
                    } }
                }
            }
            p.chips {
                a.chip href=(link(&example(e))) { "an example" }
                @if let Some(asking) = build_question_example(e) { a.chip href=(link(&asking)) { "one with a question" } }
            }
            }
        }
    }
}

/// Returns an example query that asks one of the spec's questions about the rows of a table.
/// Returns `None` if no source is a table or no question can be asked about the key alone.
fn build_question_example(of: &Expansion) -> Option<String> {
    let table = of.sources.iter().find_map(|source| match &source.rows {
        SourceRows::Table(table) => Some(sql::quote_name(table)),
        SourceRows::Select(_) => None,
    })?;
    let plain = |b: &&Binding| b.sql.is_none();
    let asked = of.columns.iter().find_map(|c| c.bindings.iter().find(plain))?;
    let (ask, key) = (asked.ask.replace('\'', "''"), sql::quote_name(of.key.names().first()?));
    Some(format!("SELECT {key}, {{{{LLMMap('{ask}', {table}.{key})}}}} FROM {table} LIMIT 20"))
}
