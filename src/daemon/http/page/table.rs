//! The table browser. It shows the rows of a table with filters, facets, and downloads of the view. A
//! published expansion also has the state of every cell.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Response};
use maud::{Markup, html};
use rusqlite::{Connection, OptionalExtension, params, params_from_iter};
use serde_json::{Map, Value as Json};
use tokio::sync::watch;

use super::super::query::{READ_TIMEOUT, find_target, run_blocking};
use super::super::reply::HttpError;
use super::super::rows::{ChunkWriter, stream_body};
use super::export::{ExportFormat, write_rows};
use super::facet::{Facet, FacetCollector};
use super::format_value;
use super::record_cell::register_cell_functions;
use super::row_source::{
    CellColumn, ColumnPlace, Cursor, MAX_VALUE_CHARS, RowSource, ViewColumn, find_cell_key,
    find_database_table,
};
use super::view::{CONDITIONS, TableView, reference_path, row_path, table_path};
use super::view_query::{ViewDialect, write_view_query};
use super::{
    ErrorPage, HttpState, QueryPairs, ShownPage, find_spec, is_word, needs_wide_column,
    percent_encode, render_page, spec_path, text_direction, truncate_text,
};
use crate::cell::State as CellState;
use crate::daemon::job::guard_failure_with_hint;
use crate::daemon::status::SpecStatus;
use crate::database::Database;
use crate::database::provenance::PublishedExpansion;
use crate::failure::Failure;
use crate::format::{format_count, format_thousands};
use crate::query::connection::guard::GuardedConnection;
use crate::spec::{Catalog, Column, Expansion, Spec, is_server};

/// Number of rows per page.
const PAGE_ROWS: usize = 50;
/// Maximum number of rows to count.
pub(super) const MAX_COUNTED: u64 = 100_000;
/// Maximum number of rows of a view whose facets are shown without a request.
const MAX_FACETED: u64 = 20_000;
/// Time limit for counting the rows and values of a view. If it is exceeded, the page shows the rows
/// without counts.
pub(super) const COUNT_TIME: Duration = Duration::from_secs(1);
/// Time limit for counting the values of the columns that the user has chosen.
const CHOSEN_FACET_TIME: Duration = Duration::from_secs(5);
/// Advice if the rows of a page take too long.
pub(super) const SLOW_READ: &str =
    "remove the order or a condition, or read fewer rows with a query on the Query page";
/// Number of facets that are shown by default.
const FACETS: usize = 3;

/// A table as the page shows it.
#[derive(Default)]
pub(super) struct ShownTable {
    pub(super) source: RowSource,
    pub(super) columns: Vec<ViewColumn>,
    /// Columns of the spec that are not published yet.
    unpublished: Vec<String>,
    /// Whether the table exists: an expansion may not be published yet.
    published: bool,
}

/// Rows of a page. Each has the stored key, the parts of the key, and the cells by column.
type PageRows = Vec<(String, Vec<Json>, Json)>;

/// Number of rows in a view.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RowCount {
    rows: u64,
    /// Whether the view can have more rows than were counted.
    is_lower_bound: bool,
}

impl RowCount {
    /// Returns the count of rows that were counted up to [`MAX_COUNTED`] and one.
    pub(super) fn up_to_limit(rows: u64) -> Self {
        Self { rows: rows.min(MAX_COUNTED), is_lower_bound: rows > MAX_COUNTED }
    }

    /// Returns the number with its noun, such as `1 row` or `more than 100,000 rows`.
    pub(super) fn describe_rows(self) -> String {
        if self.is_lower_bound {
            return format!("{} rows", self.describe());
        }
        format_count(self.rows, "row")
    }

    /// Returns the number as text, such as `more than 100,000`.
    pub(super) fn describe(self) -> String {
        let start = if self.is_lower_bound { "more than " } else { "" };
        format!("{start}{}", format_thousands(self.rows))
    }
}

/// Content of a table's page.
#[derive(Default)]
struct TablePage {
    table: ShownTable,
    rows: PageRows,
    /// Whether there are rows before the page, and whether there are rows after it.
    more: (bool, bool),
    /// Number of rows; `None` if they were not counted.
    count: Option<RowCount>,
    facets: Vec<Facet>,
    /// Whether the row at which the page should begin or end no longer exists.
    has_lost_cursor: bool,
    /// Model and time of the completions that the cells of the page come from.
    origins: BTreeMap<i64, String>,
}

/// Handles `GET /specs/{spec}/tables/{table}`.
pub(super) async fn show_table(
    State(state): State<HttpState>,
    Path((name, table)): Path<(String, String)>,
    Query(asked): Query<QueryPairs>,
) -> ShownPage {
    let status = find_spec(&state, &name)?;
    let (_, active_spec) = state.find_active_spec(Some(&name))?;
    let view = TableView::parse(&asked);
    let (client_guard, interrupt) = state.context.clients.begin_work();
    let permit = state.acquire_read_permit().await?;
    let (of, wanted) = (table.clone(), view.clone());
    let dialect = if is_server(active_spec.spec.target()) {
        ViewDialect::Postgres
    } else {
        ViewDialect::Sqlite
    };
    let active = Arc::clone(&active_spec);
    let read = move || {
        let spec = &active_spec.spec;
        let guard = open_table(spec, &of, READ_TIMEOUT, interrupt)?;
        let page = read_page(&guard, spec, &of, &wanted);
        Ok(page.map_err(|e| guard_failure_with_hint(&guard, SLOW_READ).unwrap_or(e))?)
    };
    let page = run_blocking(permit, client_guard, read).await?;
    let path = format!("{}/tables/{}", spec_path(&name), percent_encode(&table));
    let link = |view: &TableView| format!("{path}{}", view.to_query());
    let shown = &page.table;
    Ok(render_page(
        &table,
        &html! {
            div.title-row {
                div.title {
                    h1 { a href=(spec_path(&name)) { (name) } " / " a href=(format!("{}/tables", spec_path(&name))) { "tables" } " / " (table) }
                    @if shown.published { span.quiet { (describe_size(&page)) } }
                }
                @if shown.published {
                    a.button href=(query_path(&name, &table, (&view, dialect), shown)) { "Query and chart" }
                }
            }
            (render_filter_form(&path, &view, shown))
            (render_filter_chips(&view, &link))
            (render_progress_note(&status, shown))
            @if page.has_lost_cursor { p.note { "The row next to this page no longer exists. This is the first page." } }
            div.browse {
                div {
                    (render_rows_table((&name, &active.spec), &table, &page, &view, &link))
                    @if shown.published && page.rows.is_empty() {
                        p.card.quiet { @if view.is_filtered() { "No rows. " a href=(path) { "Remove all conditions" } } @else if shown.source.expansion().is_some() { "No row has an answer yet." } @else { "The table has no rows." } }
                    }
                    (render_page_links(&page, &view, &path, &link))
                }
                @if shown.published { (render_facet_panel(&page, &view, &link)) }
            }
        },
    ))
}

/// Returns the number of rows of the view and of columns of the table.
fn describe_size(page: &TablePage) -> String {
    let rows = page.count.map_or_else(|| "rows not counted".to_owned(), RowCount::describe_rows);
    format!("{rows}, {}", format_count(page.table.columns.len() as u64, "column"))
}

/// Renders a note about columns and cells that the table does not contain yet.
fn render_progress_note(spec: &SpecStatus, shown: &ShownTable) -> Markup {
    let Some(expansion) = shown.source.expansion() else { return html! {} };
    let of_table = spec.columns.iter().filter(|c| c.expansion.eq_ignore_ascii_case(expansion));
    let missing: u64 = of_table.map(|column| column.unasked).sum();
    let running = spec.run.is_some();
    html! {
        @if running || missing > 0 || !shown.published || !shown.unpublished.is_empty() {
            p.note {
                @if !shown.published { "This table is not published yet. " }
                @else if !shown.unpublished.is_empty() { "Not published yet: " (shown.unpublished.join(", ")) ". " }
                @if running { "A run is filling it; reload this page when the run has ended." }
                @else if missing > 0 {
                    (format_count(missing, "cell")) @if missing == 1 { " is" } @else { " are" } " missing. "
                    a href=(format!("{}?do=price", spec_path(&spec.name))) { "Show the price" }
                }
            }
        }
    }
}

/// Returns the path of the query page with a query for the rows of a view.
fn query_path(
    spec: &str,
    table: &str,
    (view, dialect): (&TableView, ViewDialect),
    shown: &ShownTable,
) -> String {
    let sql = write_view_query(view, table, (&shown.source, &shown.columns), dialect);
    format!("/query?spec={}&sql={}", percent_encode(spec), percent_encode(&sql))
}

/// Opens the database that contains a table: the spec's target for a table that hqdl fills, otherwise
/// the database that queries read.
pub(super) fn open_table(
    spec: &Spec,
    table: &str,
    timeout: Duration,
    interrupt: watch::Receiver<bool>,
) -> Result<GuardedConnection, Failure> {
    let path = match find_table_columns(spec, table)[..] {
        [] => find_target(spec)?,
        [..] => spec.target().to_owned(),
    };
    Ok(GuardedConnection::open_for_sql(&path, Some(timeout), interrupt)?)
}

/// Handles `GET /specs/{spec}/tables/{table}/export`: downloads all rows of a view.
pub(super) async fn export_table(
    State(state): State<HttpState>,
    Path((name, table)): Path<(String, String)>,
    Query(asked): Query<QueryPairs>,
) -> Result<Response, ErrorPage> {
    let format = asked.iter().find(|(name, _)| name == "format").map_or("", |(_, value)| value);
    let Some(format) = ExportFormat::from_name(format) else {
        return Err(
            HttpError::bad_request("the format is unknown", "use csv, json or parquet").into()
        );
    };
    format.check_available()?;
    let (_, active_spec) = state.find_active_spec(Some(&name))?;
    let view = TableView::parse(&asked).with_change(|_| ());
    let (client_guard, interrupt) = state.context.clients.begin_work();
    let permit = state.acquire_query_permit().await?;
    let timeout = READ_TIMEOUT + state.context.settings.read_within;
    let (mut writer, mut chunks) = ChunkWriter::new(tokio::runtime::Handle::current());
    let file = table.clone();
    tokio::task::spawn_blocking(move || {
        let write = |writer: &mut ChunkWriter| -> Result<(), Failure> {
            let spec = &active_spec.spec;
            let guard = open_table(spec, &table, timeout, interrupt)?;
            let database = guard.database();
            let written = find_table(database, spec, &table).and_then(|shown| {
                prepare_source(database, &shown.source)?;
                let sql = view.export_sql(&shown.source, &shown.columns);
                write_rows(database, &sql, (&shown.source, &shown.columns), format, writer)
            });
            written.map_err(|e| guard_failure_with_hint(&guard, SLOW_READ).unwrap_or(e))
        };
        let ended = write(&mut writer);
        drop(permit);
        writer.close(ended.map_err(HttpError::from));
    });
    match chunks.recv().await {
        Some(Ok(first)) => {
            Ok((format.headers(&file), stream_body(first, chunks, client_guard)).into_response())
        }
        Some(Err(error)) => Err(error.into()),
        None => Err(HttpError::server_busy("the download ended early").into()),
    }
}

/// Returns the spec's columns that a table contains: those of an expansion, or the column of a
/// one-to-many table. Empty for any other table.
fn find_table_columns<'s>(spec: &'s Spec, table: &str) -> Vec<&'s Column> {
    let is_shown = |e: &Expansion, c: &Column| {
        e.name.eq_ignore_ascii_case(table)
            || c.many.as_ref().is_some_and(|many| many.table.eq_ignore_ascii_case(table))
    };
    let columns = spec.expansions.iter().flat_map(|e| e.columns.iter().map(move |c| (e, c)));
    columns.filter(|(e, c)| is_shown(e, c)).map(|(_, c)| c).collect()
}

/// Makes the rows of a source and the functions of views available on the connection.
fn prepare_source(database: &Database, source: &RowSource) -> Result<(), Failure> {
    let Some(expansion) = source.expansion() else { return Ok(()) };
    database.fetch_published_cells(expansion)?;
    register_cell_functions(database.connection()).map_err(|e| database.to_store_error(&e))?;
    Ok(())
}

/// Finds a table of the spec, published or not, or any other table of the database.
pub(super) fn find_table(
    database: &Database,
    spec: &Spec,
    table: &str,
) -> Result<ShownTable, Failure> {
    let order = find_table_columns(spec, table);
    let published = database.list_published_expansions()?;
    let is_own = |p: &PublishedExpansion| p.expansion.eq_ignore_ascii_case(table);
    let shows = |p: &&PublishedExpansion| {
        is_own(p) || p.columns.iter().any(|(_, shown)| shown.eq_ignore_ascii_case(table))
    };
    let Some(expansion) = published.iter().find(shows) else {
        if !order.is_empty() {
            let unpublished = order.iter().map(|c| c.name.clone()).collect();
            return Ok(ShownTable { unpublished, ..ShownTable::default() });
        }
        return find_other_table(database, spec, table);
    };
    // Sort the columns in the spec's order; columns that the spec no longer contains come last.
    let own = is_own(expansion);
    let in_table = |t: &String| own || t.eq_ignore_ascii_case(table);
    let shown = expansion.columns.iter().filter(|(_, t)| in_table(t));
    let mut names: Vec<String> = shown.map(|(c, _)| c.clone()).collect();
    let position = |name: &str| order.iter().position(|o| o.name.eq_ignore_ascii_case(name));
    names.sort_by_key(|name| position(name).unwrap_or(usize::MAX));
    let is_new = |c: &&&Column| !names.iter().any(|p| p.eq_ignore_ascii_case(&c.name));
    let unpublished = order.iter().filter(is_new).map(|c| c.name.clone()).collect();
    let key = expansion.key.iter().enumerate().map(|(n, name)| ViewColumn {
        name: name.clone(),
        place: ColumnPlace::KeyPart(n),
        has_list: false,
        kind: None,
        list: None,
        reference: None,
        filled_by: None,
    });
    let filled = names.iter().map(|name| ViewColumn {
        name: name.clone(),
        place: ColumnPlace::Cell,
        has_list: position(name).is_some_and(|at| order[at].values.is_some()),
        kind: position(name).map(|at| order[at].kind),
        list: position(name).and_then(|at| order[at].many.clone()),
        reference: None,
        filled_by: None,
    });
    let columns = key.chain(filled).collect();
    let source = RowSource::Records { expansion: expansion.expansion.clone() };
    Ok(ShownTable { source, columns, unpublished, published: true })
}

/// Finds a table or view of the database that hqdl does not fill.
fn find_other_table(database: &Database, spec: &Spec, table: &str) -> Result<ShownTable, Failure> {
    if database.server_url().is_some() {
        return Err(Failure::wrong_input(
            format!("hqdl does not fill the table `{table}`, and the database is on a server"),
            "read it with a query on the Query page",
        ));
    }
    let found = find_database_table(database.connection(), table);
    match found.map_err(|e| database.to_store_error(&e))? {
        Some((source, mut columns)) => {
            if database.is_created_by_hqdl(table) {
                mark_filled_columns(database, spec, table, &mut columns);
            }
            Ok(ShownTable { source, columns, published: true, ..ShownTable::default() })
        }
        None => Err(Failure::wrong_input(
            format!("there is no table `{table}`"),
            "choose one on the spec's page \"Tables\"",
        )),
    }
}

/// Marks the columns of a source's view that contain the cells of an expansion. If the spec has
/// changed since the view was created, no column is marked.
fn mark_filled_columns(database: &Database, spec: &Spec, view: &str, columns: &mut [ViewColumn]) {
    let views = spec.list_expanded_views();
    let Some((_, joined)) = views.iter().find(|(name, _)| name.eq_ignore_ascii_case(view)) else {
        return;
    };
    let select = database.build_expanded_select(joined, None);
    let sql = "SELECT sql FROM sqlite_schema WHERE type = 'view' AND name = ? COLLATE NOCASE";
    let stored = database.connection().query_row(sql, [view], |row| row.get::<_, String>(0));
    if !stored.is_ok_and(|stored| stored.ends_with(&format!(" AS {}", select.sql))) {
        return;
    }
    // The columns of the expansions come last. A column of the source can have the same name.
    let start = columns.len().saturating_sub(select.columns.len());
    for (column, (_, at, position)) in columns[start..].iter_mut().zip(&select.columns) {
        let (expansion, source) = joined[*at];
        column.filled_by = Some(CellColumn {
            expansion: expansion.name.clone(),
            column: expansion.columns[*position].name.clone(),
            source,
        });
    }
}

fn read_page(
    guard: &GuardedConnection,
    spec: &Spec,
    table: &str,
    view: &TableView,
) -> Result<TablePage, Failure> {
    let database = guard.database();
    let table = find_table(database, spec, table)?;
    if !table.published {
        return Ok(TablePage { table, ..TablePage::default() });
    }
    prepare_source(database, &table.source)?;
    let connection = database.connection();
    let stored = |e: rusqlite::Error| database.to_store_error(&e);
    let is_found = view.finds_cursor(connection, &table.source, &table.columns).map_err(stored)?;
    let first = view.with_change(|_| ());
    let view = if is_found { view } else { &first };
    let offset = table.source.page_offset(view.cursor.as_ref(), PAGE_ROWS);
    let found = read_rows(connection, view, &table, offset).map_err(stored)?;
    let counted =
        guard.with_time_limit(count_time(view), || read_counts(guard, view, &table, &found));
    let (count, facets) = counted.map_err(stored)?.unwrap_or_default();
    let json = |text: &str| serde_json::from_str::<Json>(text).unwrap_or_default();
    let parse = |(key, cells): (String, String)| {
        let parts = json(&key).as_array().cloned().unwrap_or_default();
        (key, parts, json(&cells))
    };
    let mut rows: PageRows = found.into_iter().map(parse).collect();
    // A database on a server provides completions only for a single cell.
    let origins = match table.source.expansion() {
        Some(expansion) => read_origins(connection, expansion, &rows).unwrap_or_default(),
        None => BTreeMap::new(),
    };
    let has_more = rows.len() > PAGE_ROWS;
    rows.truncate(PAGE_ROWS);
    let more = match &view.cursor {
        _ if table.source.has_positions() => (offset > 0, has_more),
        Some(Cursor { backwards: true, .. }) => {
            rows.reverse();
            (has_more, true)
        }
        cursor => (cursor.is_some(), has_more),
    };
    let has_lost_cursor = !is_found;
    Ok(TablePage { table, rows, more, count, facets, has_lost_cursor, origins })
}

/// Returns the stored keys and cells of a page, and of one row more if there is one.
fn read_rows(
    connection: &Connection,
    view: &TableView,
    table: &ShownTable,
    offset: usize,
) -> rusqlite::Result<Vec<(String, String)>> {
    let all: Vec<&ViewColumn> = table.columns.iter().collect();
    let sql = view.page_sql(&table.source, &table.columns, PAGE_ROWS);
    let mut statement = connection.prepare(&sql.sql)?;
    let mut found = statement.query(params_from_iter(sql.params))?;
    let mut rows = Vec::new();
    while let Some(row) = found.next()? {
        rows.push(table.source.read_record(row, &all, offset + rows.len() + 1)?);
    }
    Ok(rows)
}

/// Returns the model and the time of the completions that the cells of some rows come from.
fn read_origins(
    connection: &Connection,
    expansion: &str,
    rows: &PageRows,
) -> rusqlite::Result<BTreeMap<i64, String>> {
    let cells = rows.iter().filter_map(|(_, _, cells)| cells.as_object()).flat_map(Map::values);
    let ids: BTreeSet<i64> = cells.filter_map(|cell| cell[2].as_i64()).collect();
    let mut statement = connection.prepare(
        "SELECT coalesce(model, '') || ', ' || replace(substr(asked_at, 1, 16), 'T', ' ')
         FROM hqdl_completion WHERE expansion = ? AND id = ?",
    )?;
    let mut origins = BTreeMap::new();
    for id in ids {
        let origin: Option<Option<String>> =
            statement.query_row(params![expansion, id], |row| row.get(0)).optional()?;
        origins.extend(origin.flatten().map(|origin| (id, origin)));
    }
    Ok(origins)
}

/// Returns the time limit for counting the rows and values of a view.
fn count_time(view: &TableView) -> Duration {
    if view.facets.is_empty() { COUNT_TIME } else { CHOSEN_FACET_TIME }
}

/// Counts the rows of a view, and the values of the columns whose facets are shown. `page` is the
/// first page or the page at the cursor.
fn read_counts(
    guard: &GuardedConnection,
    view: &TableView,
    table: &ShownTable,
    page: &[(String, String)],
) -> rusqlite::Result<(Option<RowCount>, Vec<Facet>)> {
    let columns = choose_facet_columns(view, &table.columns);
    let mut collector = FacetCollector::new(&columns);
    let is_whole = view.cursor.is_none() && page.len() <= PAGE_ROWS;
    let whole = is_whole.then_some(RowCount { rows: page.len() as u64, is_lower_bound: false });
    if page.is_empty() && is_whole {
        return Ok((whole, Vec::new()));
    }
    // The values of other tables are shortened on the page.
    if is_whole && table.source.expansion().is_some() {
        page.iter().for_each(|(key, cells)| collector.add_record(key, cells));
        return Ok((whole, collector.into_facets()));
    }
    let rows = view.rows_sql(&table.source, &table.columns);
    let count_rows = || -> rusqlite::Result<Option<RowCount>> {
        // A row of a view can take long.
        if whole.is_some() || table.source.has_positions() {
            return Ok(whole);
        }
        let sql = format!("SELECT count(*) FROM (SELECT 1 {} LIMIT {})", rows.sql, MAX_COUNTED + 1);
        let connection = guard.connection();
        let count = connection.query_row(&sql, params_from_iter(&rows.params), |r| r.get(0))?;
        Ok(Some(RowCount::up_to_limit(count)))
    };
    let is_chosen = !view.facets.is_empty();
    // Without a filter, rows are counted without reading them.
    let first = if is_chosen || view.is_filtered() { whole } else { count_rows()? };
    if columns.is_empty()
        || first.is_some_and(|count| count.is_lower_bound || count.rows > MAX_FACETED)
    {
        return Ok((if first.is_some() { first } else { count_rows()? }, Vec::new()));
    }
    let limit = if is_chosen { String::new() } else { format!(" LIMIT {}", MAX_COUNTED + 1) };
    let select = table.source.select_list(&columns);
    let sql = format!("SELECT {select} {}{limit}", rows.sql);
    let mut statement = guard.connection().prepare(&sql)?;
    let mut found = statement.query(params_from_iter(&rows.params))?;
    let began = Instant::now();
    let mut count = 0;
    while let Some(row) = found.next()? {
        count += 1;
        if is_chosen || count <= MAX_FACETED {
            collector.add_cells(&table.source.read_cells(row, &columns)?);
        }
        if collector.is_full() {
            return Ok((whole, collector.into_facets()));
        }
        // SQLite checks its time limit rarely while it reads long values.
        if began.elapsed() > count_time(view) {
            return Ok((whole, Vec::new()));
        }
    }
    let is_lower_bound = !is_chosen && count > MAX_COUNTED;
    let facets =
        if is_chosen || count <= MAX_FACETED { collector.into_facets() } else { Vec::new() };
    let rows = if is_lower_bound { MAX_COUNTED } else { count };
    Ok((Some(RowCount { rows, is_lower_bound }), facets))
}

/// Returns the columns whose facets are shown: those of the URL, or the first ones with a value
/// list.
fn choose_facet_columns<'c>(view: &TableView, columns: &'c [ViewColumn]) -> Vec<&'c ViewColumn> {
    if view.facets.is_empty() {
        return columns.iter().filter(|c| c.has_list).take(FACETS).collect();
    }
    let is_chosen = |c: &&ViewColumn| view.facets.iter().any(|f| f.eq_ignore_ascii_case(&c.name));
    columns.iter().filter(is_chosen).collect()
}

fn render_filter_form(path: &str, view: &TableView, shown: &ShownTable) -> Markup {
    let (columns, has_states) = (&shown.columns, shown.source.expansion().is_some());
    let kept = view
        .with_change(|view| {
            view.search.clear();
            view.state.clear();
        })
        .to_pairs();
    html! {
        form.row.filters method="get" action=(path) {
            @for (name, value) in kept { input type="hidden" name=(name) value=(value); }
            label { "Search " input type="search" name="q" value=(view.search) size="16"; }
            @if has_states { label { "a cell that is " select name="state" {
                option value="" { "in any state" }
                @for state in CellState::ALL {
                    option value=(state.name()) selected[state.name() == view.state] { (state.name()) }
                }
            } } }
            @if !columns.is_empty() {
                label { "where " select name="column" {
                    option value="" { "any column" }
                    @for column in columns { option value=(column.name) { (column.name) } }
                } }
                select name="condition" aria-label="condition" {
                    @for (name, label) in CONDITIONS.iter().filter(|(name, _)| has_states || *name != "state") { option value=(name) { (label) } }
                }
                input name="value" aria-label="value" size="14";
            }
            button.main { "Find" }
        }
    }
}

/// Renders the active filters, each with a link that removes it.
fn render_filter_chips(view: &TableView, link: &dyn Fn(&TableView) -> String) -> Markup {
    html! {
        @if !view.filters.is_empty() {
            p.chips { @for filter in &view.filters {
                @let without = view.with_change(|view| view.filters.retain(|f| f != filter));
                a.chip href=(link(&without)) aria-label=(format!("Remove the filter {}", filter.describe())) {
                    (truncate_text(&filter.describe(), 60)) " ×"
                }
            } }
        }
    }
}

fn render_rows_table(
    (spec, of_spec): (&str, &Spec),
    table: &str,
    page: &TablePage,
    view: &TableView,
    link: &dyn Fn(&TableView) -> String,
) -> Markup {
    let shown = &page.table;
    html! {
        div.wide tabindex="0" role="region" aria-label="Rows" { table.cells {
            thead { tr {
                @for column in &shown.columns { (render_column_header(column, view, link)) }
                @for name in &shown.unpublished { th.quiet { (name) } }
            } }
            tbody {
                @for (stored, key, cells) in &page.rows {
                    tr {
                        @for (n, column) in shown.columns.iter().enumerate() { @match column.place {
                            ColumnPlace::KeyPart(part) => (render_value(&key[part], column, true, None)),
                            ColumnPlace::Table { is_key } => {
                                @let value = &cells[column.name.as_str()][1];
                                @let row = (n == 0).then(|| row_path(&table_path(spec, table), view, &shown.source, stored));
                                (render_value(value, column, is_key, row.or_else(|| find_value_link((spec, of_spec), column, cells))))
                            }
                            ColumnPlace::Cell => (render_cell((spec, table), key, column, &cells[column.name.as_str()], &page.origins)),
                        } }
                        @for _ in &shown.unpublished { td.missing { "not published" } }
                    }
                }
            }
        } }
    }
}

/// Returns the path of the page that the value of a table leads to: the row that it refers to, or the
/// cell that a view shows.
fn find_value_link(
    (name, spec): (&str, &Spec),
    column: &ViewColumn,
    cells: &Json,
) -> Option<String> {
    let value = |column: &str| {
        let mut fields = cells.as_object()?.iter();
        let value = &fields.find(|(name, _)| name.eq_ignore_ascii_case(column))?.1[1];
        // A shortened value does not identify a row.
        let is_whole =
            value.as_str().is_none_or(|text| text.chars().nth(MAX_VALUE_CHARS).is_none());
        is_whole.then(|| value.clone())
    };
    if let Some(to) = column.reference.as_ref() {
        let value = value(&column.name).filter(|value| !value.is_null())?;
        return Some(reference_path(name, to, &format_value(&value)));
    }
    let filled_by = column.filled_by.as_ref()?;
    let key = find_cell_key(spec, filled_by, value)?;
    Some(super::cell::cell_path(name, &filled_by.expansion, &key, &filled_by.column))
}

/// Renders a value of a key or of a table that hqdl does not fill, with a link if there is one.
fn render_value(value: &Json, column: &ViewColumn, is_key: bool, link: Option<String>) -> Markup {
    let text = format_value(value);
    let is_number = value.is_number() || column.is_number();
    let class = [
        (is_number, "n"),
        (value.is_null(), "null"),
        (needs_wide_column(&text), "long"),
        (is_word(&text), "word"),
    ];
    let class: Vec<&str> = class.iter().filter(|(is, _)| *is).map(|(_, name)| *name).collect();
    let class = Some(class.join(" ")).filter(|class| !class.is_empty());
    let (dir, shown) = (text_direction(&text), shorten_value(value, link.is_some()));
    let shown = html! { @match link { Some(to) => a.to[column.filled_by.is_none()] href=(to) { (shown) }, None => (shown) } };
    html! {
        @if is_key { th class=[class] dir=[dir] scope="row" { (shown) } }
        @else { td class=[class] dir=[dir] { (shown) } }
    }
}

/// Renders a cell with a link to its provenance.
fn render_cell(
    (spec, table): (&str, &str),
    key: &[Json],
    column: &ViewColumn,
    cell: &Json,
    origins: &BTreeMap<i64, String>,
) -> Markup {
    let state = cell[0].as_str().unwrap_or("missing");
    let origin = cell[2].as_i64().and_then(|id| origins.get(&id));
    let hint = origin.map_or_else(|| state.to_owned(), |origin| format!("{state}, {origin}"));
    let text = format_value(&cell[1]);
    html! {
        td class={ (state) @if column.is_number() { " n" } @if needs_wide_column(&text) { " long" } } dir=[text_direction(&text)] {
            a href=(super::cell::cell_path(spec, table, key, &column.name)) title=(hint) {
                @if matches!(state, "ok" | "overridden") { (shorten_value(&cell[1], true)) } @else { (state) }
            }
            @if state == "overridden" { " " span.mark role="img" aria-label="set by a person" title="set by a person" { "✎" } }
            @if !cell[4].is_null() && state == "ok" { @let note = format_value(&cell[4]); " " span.mark role="img" aria-label=(note) title=(note) { "~" } }
        }
    }
}

/// Renders the header of a column. Its link changes the order: ascending, descending, then by key.
fn render_column_header(
    column: &ViewColumn,
    view: &TableView,
    link: &dyn Fn(&TableView) -> String,
) -> Markup {
    let own = view.sort.as_ref().filter(|(name, _)| name.eq_ignore_ascii_case(&column.name));
    let (order, mark, next) = match own {
        None => (None, "", Some((column.name.clone(), false))),
        Some((_, false)) => (Some("ascending"), " ↑", Some((column.name.clone(), true))),
        Some((_, true)) => (Some("descending"), " ↓", None),
    };
    let sorted = view.with_change(|view| view.sort = next);
    html! {
        th scope="col" class={ @if column.is_model_filled() { "model" } @if column.is_number() { " n" } } aria-sort=[order] data-column=(column.name) {
            a href=(link(&sorted)) { (column.name) (mark) }
            @if column.is_model_filled() { " " span.by-model role="img" aria-label="filled by the model" title="filled by the model" { "✦" } }
        }
    }
}

fn render_page_links(
    page: &TablePage,
    view: &TableView,
    path: &str,
    link: &dyn Fn(&TableView) -> String,
) -> Markup {
    let at = |row: Option<&(String, Vec<Json>, Json)>, backwards| {
        row.map(|(key, ..)| {
            link(
                &view
                    .with_change(|view| view.cursor = Some(Cursor { key: key.clone(), backwards })),
            )
        })
    };
    let export = |format: &str| {
        let query = view.with_change(|_| ()).to_query();
        format!("{path}/export{query}{}format={format}", if query.is_empty() { '?' } else { '&' })
    };
    html! {
        nav.pages aria-label="Pages of the table" {
            @if page.more.0 {
                a.button href=(link(&view.with_change(|_| ()))) { "First" }
                @if let Some(to) = at(page.rows.first(), true) { a.button rel="prev" href=(to) { "← Previous" } }
            }
            @if page.more.1 { @if let Some(to) = at(page.rows.last(), false) { a.button rel="next" href=(to) { "Next →" } } }
            @if !page.rows.is_empty() { span { "Download " @for (n, format) in ExportFormat::list_available().enumerate() {
                @if n > 0 { " · " } a href=(export(format.name())) { (format.label()) }
            } } }
        }
    }
}

fn render_facet_panel(
    page: &TablePage,
    view: &TableView,
    link: &dyn Fn(&TableView) -> String,
) -> Markup {
    let is_shown = |c: &ViewColumn| page.facets.iter().any(|f| f.is_for_column(c));
    let with = |column: &ViewColumn| {
        let shown = page.table.columns.iter().filter(|c| is_shown(c) != (*c == column));
        link(&view.with_change(|view| view.facets = shown.map(|c| c.name.clone()).collect()))
    };
    html! {
        aside.facets aria-label="Values of the columns" {
            @for facet in &page.facets { (facet.to_section(view, link)) }
            @if page.facets.is_empty() && !view.facets.is_empty() && !page.rows.is_empty() {
                p.small.quiet { "Counting the values takes too long. Add a condition." }
            }
            @if page.table.columns.iter().any(|c| !is_shown(c)) {
                p.small { "Show the values of "
                    @for column in page.table.columns.iter().filter(|c| !is_shown(c)) { a.chip href=(with(column)) { (column.name) } " " }
                }
            }
        }
    }
}

/// Shortens a value for a cell of the table. A link without text could not be clicked.
fn shorten_value(value: &Json, is_link: bool) -> String {
    match format_value(value) {
        whole if is_link && whole.trim().is_empty() => "(empty)".to_owned(),
        whole => truncate_text(&whole, MAX_VALUE_CHARS),
    }
}
