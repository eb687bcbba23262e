//! The list of a spec's tables: those that hqdl fills, and all other tables and views of the
//! database.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use axum::extract::{Path, State};
use maud::{Markup, html};

use super::super::query::{READ_TIMEOUT, find_target, run_blocking};
use super::row_source::{list_column_names, list_database_tables};
use super::table::{COUNT_TIME, MAX_COUNTED, RowCount, SLOW_READ};
use super::{
    HttpState, ShownPage, find_spec, percent_encode, render_page, render_spec_tabs, spec_path,
    truncate_text,
};
use crate::daemon::job::guard_failure_with_hint;
use crate::database::find_write_only_output;
use crate::failure::Failure;
use crate::query::connection::guard::GuardedConnection;
use crate::spec::{Catalog, Spec};
use crate::sql::quote_name;

/// Maximum number of a table's columns to list.
const MAX_COLUMNS: usize = 8;

/// Content of a table, in the order of the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum TableContent {
    Filled,
    FilledItems,
    Unpublished,
    /// Published to files that hqdl only writes.
    Files,
    FilledView,
    View,
    Table,
}

impl TableContent {
    /// Returns true if the model fills the table.
    fn is_filled(self) -> bool {
        matches!(self, Self::Filled | Self::FilledItems | Self::Unpublished | Self::Files)
    }

    fn describe(self) -> &'static str {
        match self {
            Self::Filled => "filled by the model",
            Self::FilledItems => "items of a list, filled by the model",
            Self::Unpublished => "filled by the model, not published yet",
            Self::Files => "filled by the model, published as Parquet files",
            Self::FilledView => "view of a source with its filled columns",
            Self::View => "view",
            Self::Table => "table",
        }
    }
}

/// Table of the list.
struct ListedTable {
    name: String,
    /// Name as SQL writes it.
    sql_name: String,
    content: TableContent,
    /// Number of rows; `None` if they were not counted.
    rows: Option<RowCount>,
    columns: Vec<String>,
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
        Ok(tables.map_err(|e| guard_failure_with_hint(&guard, SLOW_READ).unwrap_or(e))?)
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
    let mut contents: BTreeMap<String, TableContent> = BTreeMap::new();
    for expansion in database.list_published_expansions()? {
        for (_, table) in &expansion.columns {
            contents.insert(table.to_lowercase(), TableContent::FilledItems);
        }
        contents.insert(expansion.expansion.to_lowercase(), TableContent::Filled);
    }
    let found = if database.server_url().is_some() {
        let views = database.list_server_views()?;
        let tables = database.table_names().into_iter();
        tables
            .map(|name| (views.contains(&name), name))
            .map(|(is, name)| (name, is, false))
            .collect()
    } else {
        let tables = list_database_tables(database.connection());
        let tables = tables.map_err(|e| database.to_store_error(&e))?.into_iter();
        tables.map(|t| (t.name, t.is_view, true)).collect::<Vec<_>>()
    };
    let began = Instant::now();
    let mut tables = Vec::new();
    for (name, is_view, is_file) in found {
        let filled = contents.get(&name.to_lowercase()).copied();
        let time = COUNT_TIME.saturating_sub(began.elapsed());
        let is_counted = is_file && !is_view && !time.is_zero();
        let rows = if is_counted { count_rows(guard, &name, time)? } else { None };
        let content = match (filled, is_view) {
            (Some(content), _) => content,
            (None, true) if database.is_created_by_hqdl(&name) => TableContent::FilledView,
            (None, true) => TableContent::View,
            (None, false) => TableContent::Table,
        };
        // Browsers remove these names from an address.
        let has_address = !["", ".", ".."].contains(&name.as_str());
        let is_readable = (is_file || filled.is_some()) && has_address;
        let sql_name = database.write_table_name(&name)?;
        let columns =
            if is_file { list_column_names(database.connection(), &name) } else { Vec::new() };
        tables.push(ListedTable { name, sql_name, content, rows, columns, is_readable });
    }
    let is_unlisted = |name: &&str| !tables.iter().any(|t| t.name.eq_ignore_ascii_case(name));
    let expansions = spec.expansions.iter().map(|e| e.name.as_str());
    let has_files = find_write_only_output(spec.target()).is_some() && spec.target().exists();
    let content = if has_files { TableContent::Files } else { TableContent::Unpublished };
    let unpublished: Vec<ListedTable> = expansions
        .filter(is_unlisted)
        .map(|name| ListedTable {
            name: name.to_owned(),
            sql_name: quote_name(name),
            content,
            rows: None,
            columns: Vec::new(),
            is_readable: true,
        })
        .collect();
    tables.extend(unpublished);
    tables.sort_by_key(|table| (!table.content.is_filled(), table.name.to_lowercase()));
    Ok(tables)
}

/// Counts the rows of a table, up to a limit and a time, so that a large table takes no longer.
/// Returns `None` if they cannot be counted, for example because the module of a virtual table is
/// missing.
fn count_rows(
    guard: &GuardedConnection,
    table: &str,
    time: Duration,
) -> Result<Option<RowCount>, Failure> {
    let limit = MAX_COUNTED + 1;
    let sql = format!("SELECT count(*) FROM (SELECT 1 FROM {} LIMIT {limit})", quote_name(table));
    let count = || guard.connection().query_row(&sql, [], |row| row.get(0));
    match guard.with_time_limit(time, count) {
        Ok(rows) => Ok(rows.map(RowCount::up_to_limit)),
        Err(_) => guard_failure_with_hint(guard, SLOW_READ).map_or(Ok(None), Err),
    }
}

/// Returns the names of the first columns, and the number of the others.
fn describe_columns(columns: &[String]) -> String {
    let shown = columns.iter().take(MAX_COLUMNS).map(|name| truncate_text(name, 40));
    let shown = shown.collect::<Vec<_>>().join(", ");
    match columns.len().saturating_sub(MAX_COLUMNS) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

fn render_table_list(spec: &str, tables: &[ListedTable]) -> Markup {
    let path = |table: &ListedTable| {
        if table.is_readable {
            return format!("{}/tables/{}", spec_path(spec), percent_encode(&table.name));
        }
        let sql = format!("SELECT * FROM {} LIMIT 1000", table.sql_name);
        format!("/query?spec={}&sql={}", percent_encode(spec), percent_encode(&sql))
    };
    html! {
        @if tables.is_empty() {
            p.card { "The database has no table. Create one, or name another database in the " a href=(format!("{}/edit", spec_path(spec))) { "spec" } "." }
        } @else { div.wide tabindex="0" role="region" aria-label="Tables" { table {
            thead { tr { th scope="col" { "table" } th scope="col" { "content" } th scope="col" { "columns" } th.n scope="col" { "rows" } } }
            tbody { @for table in tables { tr {
                th scope="row" { a href=(path(table)) { @if table.name.is_empty() { "(no name)" } @else { (table.name) } } }
                td { (table.content.describe()) }
                td.small.quiet { (describe_columns(&table.columns)) }
                td.n { @match table.rows { Some(rows) => (rows.describe()), None => span.quiet { "not counted" } } }
            } } }
        } } }
    }
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;
    use tokio::sync::watch;

    use super::{TableContent, list_tables};
    use crate::query::connection::guard::GuardedConnection;
    use crate::spec::{Spec, UncheckedSpec};

    const SPEC: &str = "
        [database]
        path = \"cities.sqlite\"
        [model]
        name = \"m\"
        [[expansion]]
        name = \"llm\"
        source = \"city\"
        key = [\"name\"]
        [[expansion.column]]
        name = \"country\"
        about = \"its country\"
        many = { table = \"llm_country\", column = \"country\" }
    ";

    #[test]
    fn a_folder_of_files_has_the_tables_of_the_spec() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cities.sqlite");
        let tables = "CREATE TABLE city (name TEXT); INSERT INTO city VALUES ('Rome');";
        Connection::open(&path).unwrap().execute_batch(tables).unwrap();
        let draft = UncheckedSpec::parse(&folder.path().join("x.toml"), SPEC.to_owned()).unwrap();
        let guard = GuardedConnection::open_for_sql(&path, None, watch::channel(false).1).unwrap();
        let (mut spec, _) = draft.check(guard.database()).unwrap();
        let list = |spec: &Spec| -> Vec<(String, TableContent, bool)> {
            let tables = list_tables(&guard, spec).unwrap().into_iter();
            tables.map(|table| (table.name, table.content, table.rows.is_some())).collect()
        };
        let of = |content| -> Vec<(String, TableContent, bool)> {
            let city = ("city".to_owned(), TableContent::Table, true);
            vec![("llm".to_owned(), content, false), city]
        };
        assert_eq!(list(&spec), of(TableContent::Unpublished));
        let output = folder.path().join("tables/");
        spec.output = Some(output.clone());
        assert_eq!(list(&spec), of(TableContent::Unpublished));
        std::fs::create_dir(&output).unwrap();
        assert_eq!(list(&spec), of(TableContent::Files));
        assert!(
            TableContent::Files.is_filled() && TableContent::Files.describe().contains("Parquet")
        );
    }
}
