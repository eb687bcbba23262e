//! The page of one row of the database: its whole values, its pictures, and links to the rows that it
//! refers to and to those that refer to it.

use axum::extract::{Path, Query, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use maud::{Markup, html};
use rusqlite::limits::Limit;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, params_from_iter};
use serde_json::Value as Json;

use super::super::query::{READ_TIMEOUT, run_blocking};
use super::cell::cell_path;
use super::row_source::{
    Reference, RowSource, ViewColumn, find_cell_key, find_database_table, find_incoming_references,
};
use super::table::{
    COUNT_TIME, MAX_COUNTED, RowCount, SLOW_READ, ShownTable, find_table, open_table,
};
use super::view::{BoundSql, TableView, ViewFilter, reference_path, table_path};
use super::{
    ErrorPage, HttpState, QueryPairs, ShownPage, find_spec, percent_encode, render_page, spec_path,
    text_direction,
};
use crate::daemon::job::guard_failure_with_hint;
use crate::failure::Failure;
use crate::format::{format_count, format_thousands};
use crate::query::connection::guard::GuardedConnection;
use crate::query::result::json::format_text;
use crate::spec::media::{HtmlElement, find_blob_kind};
use crate::spec::{Spec, Type};
use crate::sql::quote_name;

/// Maximum number of characters of a text on the page.
const MAX_TEXT: usize = 100_000;
/// Maximum number of bytes of a value that can be downloaded, unless the connection reads less.
const MAX_DOWNLOAD: u64 = 64 << 20;
/// Number of bytes that identify the format of a medium.
const FORMAT_BYTES: usize = 64;

/// Value of a row, as the page shows it.
enum RowValue {
    Null,
    Number(String),
    /// Beginning of a text, and whether there is more.
    Text(String, bool),
    /// Size in bytes, and whether the value is a picture that browsers show.
    Blob(u64, bool),
}

/// Rows of another table that refer to a row.
struct ReferringRows {
    table: String,
    column: String,
    /// Value of the referring column, as text.
    value: String,
    /// Number of rows; `None` if counting took too long.
    count: Option<RowCount>,
}

impl ReferringRows {
    /// Returns the view with these rows.
    fn to_view(&self) -> TableView {
        let (column, value) = (self.column.clone(), self.value.clone());
        let filter = ViewFilter { column, condition: "is", value };
        TableView { filters: vec![filter], ..TableView::default() }
    }
}

/// Content of the page.
struct ShownRow {
    columns: Vec<ViewColumn>,
    values: Vec<RowValue>,
    referring: Vec<ReferringRows>,
    /// Path of the page of the cell of each filled column.
    cells: Vec<Option<String>>,
}

/// Address of a row: a stored key or, without one, the first row of a view.
struct RowAddress {
    key: Option<String>,
    view: TableView,
}

impl RowAddress {
    fn parse(pairs: &QueryPairs) -> Self {
        let key = pairs.iter().find(|(name, _)| name == "row").map(|(_, value)| value.clone());
        Self { key, view: TableView::parse(pairs).with_change(|_| ()) }
    }
}

/// Handles `GET /specs/{spec}/tables/{table}/row`.
pub(super) async fn show_row(
    State(state): State<HttpState>,
    Path((name, table)): Path<(String, String)>,
    Query(asked): Query<QueryPairs>,
) -> ShownPage {
    find_spec(&state, &name)?;
    let (_, active_spec) = state.find_active_spec(Some(&name))?;
    let address = RowAddress::parse(&asked);
    let (client_guard, interrupt) = state.context.clients.begin_work();
    let permit = state.acquire_read_permit().await?;
    let (spec_name, of) = (name.clone(), table.clone());
    let read = move || {
        let guard = open_table(&active_spec.spec, &of, READ_TIMEOUT, interrupt)?;
        let page = read_row(&guard, (&spec_name, &active_spec.spec), &of, &address);
        Ok(page.map_err(|e| guard_failure_with_hint(&guard, SLOW_READ).unwrap_or(e))?)
    };
    let page = run_blocking(permit, client_guard, read).await?;
    let path = table_path(&name, &table);
    let pairs = asked.iter().map(|(n, v)| format!("{}={}", percent_encode(n), percent_encode(v)));
    let query = pairs.collect::<Vec<_>>().join("&");
    Ok(render_page(
        &table,
        &html! {
            h1 { a href=(spec_path(&name)) { (name) } " / " a href=(path) { (table) } " / row" }
            div.card { table.why { tbody {
                @for ((column, value), cell) in page.columns.iter().zip(&page.values).zip(&page.cells) {
                    @let file = format!("{path}/row/export?{query}&column={}", percent_encode(&column.name));
                    tr {
                        th scope="row" { (column.name) @if column.is_model_filled() { " " span.by-model role="img" aria-label="filled by the model" title="filled by the model" { "✦" } } }
                        td { (render_row_value(&name, column, value, &file)) @if let Some(cell) = cell { " " a.small href=(cell) { "Origin and override" } } }
                    }
                }
            } } }
            @if !page.referring.is_empty() { (render_referring_rows(&name, &page.referring)) }
        },
    ))
}

fn render_row_value(spec: &str, column: &ViewColumn, value: &RowValue, file: &str) -> Markup {
    let link = |text: &str| {
        let to = column.reference.as_ref().map(|to| reference_path(spec, to, text));
        html! { @match to { Some(to) => a href=(to) { (text) }, None => (text) } }
    };
    html! {
        @match value {
            RowValue::Null => span.null { "NULL" },
            RowValue::Number(text) => (link(text)),
            RowValue::Text(text, _) if text.is_empty() => span.quiet { "(empty)" },
            RowValue::Text(text, is_cut) => {
                div.whole dir=[text_direction(text)] { (link(text)) }
                @if *is_cut { p.small { "The first " (format_thousands(MAX_TEXT as u64)) " characters. " a href=(file) download { "Download the whole text" } } }
            }
            RowValue::Blob(bytes, is_picture) => {
                @if *is_picture { img.medium src=(file) alt=(column.name) loading="lazy"; br; }
                a href=(file) download { "BLOB (" (format_thousands(*bytes)) " B)" }
            }
        }
    }
}

fn render_referring_rows(spec: &str, referring: &[ReferringRows]) -> Markup {
    html! {
        h2 { "Rows that refer to this row" }
        ul { @for rows in referring {
            li { a href=(format!("{}{}", table_path(spec, &rows.table), rows.to_view().to_query())) {
                @match rows.count {
                    Some(count) => { (count.describe_rows()) }
                    None => "rows",
                }
                " of " (rows.table)
            } " by " (rows.column) }
        } }
    }
}

/// Handles `GET /specs/{spec}/tables/{table}/row/export?…&column=…`: returns a value as a file.
pub(super) async fn export_value(
    State(state): State<HttpState>,
    Path((name, table)): Path<(String, String)>,
    Query(asked): Query<QueryPairs>,
) -> Result<Response, ErrorPage> {
    let (_, active_spec) = state.find_active_spec(Some(&name))?;
    let mut address = asked.clone();
    let wanted = address.iter().rposition(|(name, _)| name == "column");
    let wanted = wanted.map_or(String::new(), |at| address.remove(at).1);
    let address = RowAddress::parse(&address);
    let (client_guard, interrupt) = state.context.clients.begin_work();
    let permit = state.acquire_query_permit().await?;
    let read = move || {
        let guard = open_table(&active_spec.spec, &table, READ_TIMEOUT, interrupt)?;
        let found = find_table(guard.database(), &active_spec.spec, &table)
            .and_then(|shown| read_value(&guard, &shown, &wanted, &address));
        Ok((found.map_err(|e| guard_failure_with_hint(&guard, SLOW_READ).unwrap_or(e))?, wanted))
    };
    let (bytes, column) = run_blocking(permit, client_guard, read).await?;
    let picture = find_picture_type(&bytes);
    let is_plain = |c: &char| c.is_ascii_alphanumeric() || *c == '_';
    let file: String = column.chars().filter(is_plain).collect();
    // Only pictures are shown; browsers would run a page that a value contains.
    let disposition = if picture.is_some() { "inline" } else { "attachment" };
    let headers = [
        (header::CONTENT_TYPE, picture.unwrap_or("application/octet-stream").to_owned()),
        (header::CONTENT_DISPOSITION, format!("{disposition}; filename=\"{file}\"")),
    ];
    Ok((headers, bytes).into_response())
}

/// Returns the MIME type of a picture that browsers show.
fn find_picture_type(bytes: &[u8]) -> Option<&'static str> {
    let kind = find_blob_kind(bytes).filter(|kind| kind.html_element == HtmlElement::Picture)?;
    let format = kind.formats.iter().find(|format| (format.matches)(bytes))?;
    format.is_sent.then_some(format.mime_type)
}

/// Runs the query for a row with a SELECT list, and passes the row to a function.
fn with_row<T>(
    guard: &GuardedConnection,
    table: &ShownTable,
    address: &RowAddress,
    select_list: &str,
    read: impl FnOnce(&rusqlite::Row<'_>) -> rusqlite::Result<T>,
) -> Result<T, Failure> {
    let database = guard.database();
    let gone = || {
        Failure::wrong_input(
            "this row does not exist, or no longer exists",
            "go back to the table and reload it",
        )
    };
    let key = address.key.as_deref();
    let sql = address.view.row_sql(&table.source, &table.columns, key, select_list);
    let sql = sql.ok_or_else(gone)?;
    let find = || -> rusqlite::Result<Option<T>> {
        let mut statement = database.connection().prepare(&sql.sql)?;
        let mut rows = statement.query(params_from_iter(sql.params))?;
        rows.next()?.map(read).transpose()
    };
    find().map_err(|e| database.to_store_error(&e))?.ok_or_else(gone)
}

fn read_row(
    guard: &GuardedConnection,
    (spec_name, spec): (&str, &Spec),
    table: &str,
    address: &RowAddress,
) -> Result<ShownRow, Failure> {
    let database = guard.database();
    let table = find_table(database, spec, table)?;
    let columns: Vec<&ViewColumn> = table.columns.iter().collect();
    let select = |column: &&ViewColumn| {
        let name = quote_name(&column.name);
        format!(
            "length({name}), CASE typeof({name}) WHEN 'text' THEN substr({name}, 1, {}) WHEN 'blob' THEN substr({name}, 1, {FORMAT_BYTES}) ELSE {name} END",
            MAX_TEXT + 1
        )
    };
    let list = columns.iter().map(select).collect::<Vec<_>>().join(", ");
    let values = with_row(guard, &table, address, &list, |row| {
        let value = |n: usize| {
            Ok(match row.get_ref(2 * n + 1)? {
                ValueRef::Null => RowValue::Null,
                number @ (ValueRef::Integer(_) | ValueRef::Real(_)) => {
                    RowValue::Number(format_text(number))
                }
                ValueRef::Text(text) => {
                    let text = String::from_utf8_lossy(text);
                    let cut = text.char_indices().nth(MAX_TEXT).map(|(at, _)| at);
                    RowValue::Text(text[..cut.unwrap_or(text.len())].to_owned(), cut.is_some())
                }
                ValueRef::Blob(start) => {
                    RowValue::Blob(row.get(2 * n)?, find_picture_type(start).is_some())
                }
            })
        };
        (0..columns.len()).map(value).collect::<rusqlite::Result<Vec<RowValue>>>()
    })?;
    let as_json = |name: &str| {
        let at = columns.iter().position(|c| c.name.eq_ignore_ascii_case(name))?;
        match &values[at] {
            RowValue::Number(text) => serde_json::from_str::<Json>(text).ok(),
            RowValue::Text(text, false) => Some(text.as_str().into()),
            RowValue::Null => Some(Json::Null),
            RowValue::Text(_, true) | RowValue::Blob(..) => None,
        }
    };
    let cells = columns.iter().map(|column| {
        let filled_by = column.filled_by.as_ref()?;
        let key = find_cell_key(spec, filled_by, as_json)?;
        Some(cell_path(spec_name, &filled_by.expansion, &key, &filled_by.column))
    });
    let cells = cells.collect();
    let referring = match &table.source {
        RowSource::Table { name, .. } => {
            let texts = columns.iter().zip(&values).filter_map(|(column, value)| match value {
                RowValue::Number(text) | RowValue::Text(text, false) => {
                    Some((column.name.as_str(), text.as_str()))
                }
                _ => None,
            });
            read_referring_rows(guard, name, &texts.collect::<Vec<_>>())?
        }
        RowSource::Records { .. } => Vec::new(),
    };
    Ok(ShownRow { columns: table.columns, values, referring, cells })
}

/// Counts the rows of other tables that refer to a row, within a time limit.
fn read_referring_rows(
    guard: &GuardedConnection,
    table: &str,
    values: &[(&str, &str)],
) -> Result<Vec<ReferringRows>, Failure> {
    let connection = guard.connection();
    let found = find_incoming_references(connection, table).unwrap_or_default();
    let began = std::time::Instant::now();
    let mut referring = Vec::new();
    for (from, to) in found {
        let is_own = |(name, _): &&(&str, &str)| name.eq_ignore_ascii_case(&to);
        let Some((_, value)) = values.iter().find(is_own) else { continue };
        let Reference { table, column } = from;
        // A table that cannot be read has no page.
        let Some((source, columns)) = find_database_table(connection, &table).ok().flatten() else {
            continue;
        };
        let kind = columns.iter().find(|c| c.name.eq_ignore_ascii_case(&column));
        let value = write_as_type(value, kind.and_then(|c| c.kind));
        let mut rows = ReferringRows { table, column, value, count: None };
        let sql = rows.to_view().rows_sql(&source, &columns);
        let time = COUNT_TIME.saturating_sub(began.elapsed());
        let count = || count_rows(connection, &sql);
        rows.count = match guard.with_time_limit(time, count) {
            Ok(rows) => rows.map(RowCount::up_to_limit),
            Err(_) => guard_failure_with_hint(guard, SLOW_READ).map_or(Ok(None), Err)?,
        };
        referring.push(rows);
    }
    Ok(referring)
}

/// Returns the text of a number as a column of a type stores it: 5 is `5.0` in a REAL column.
fn write_as_type(value: &str, kind: Option<Type>) -> String {
    match kind {
        Some(Type::Real) if value.parse::<i64>().is_ok() => format!("{value}.0"),
        Some(Type::Integer) => value.strip_suffix(".0").unwrap_or(value).to_owned(),
        _ => value.to_owned(),
    }
}

/// Counts the rows of a view, up to [`MAX_COUNTED`] and one.
fn count_rows(connection: &Connection, rows: &BoundSql) -> rusqlite::Result<u64> {
    let sql = format!("SELECT count(*) FROM (SELECT 1 {} LIMIT {})", rows.sql, MAX_COUNTED + 1);
    connection.query_row(&sql, params_from_iter(&rows.params), |row| row.get(0))
}

fn read_value(
    guard: &GuardedConnection,
    table: &ShownTable,
    column: &str,
    address: &RowAddress,
) -> Result<Vec<u8>, Failure> {
    let is_named = |c: &&ViewColumn| c.name.eq_ignore_ascii_case(column);
    let Some(column) = table.columns.iter().find(is_named) else {
        return Err(Failure::wrong_input(
            format!("the table has no column `{column}`"),
            "choose one on the page of the row",
        ));
    };
    let name = quote_name(&column.name);
    // SQLite finds out the size of a stored value without reading the value.
    let size_sql = format!("octet_length({name})");
    let size = with_row(guard, table, address, &size_sql, |row| row.get::<_, Option<u64>>(0))?;
    let readable = guard.connection().limit(Limit::SQLITE_LIMIT_LENGTH).ok();
    let readable = readable.and_then(|bytes| u64::try_from(bytes).ok());
    let max_bytes = readable.map_or(MAX_DOWNLOAD, |bytes| bytes.min(MAX_DOWNLOAD));
    if size.is_some_and(|bytes| bytes > max_bytes) {
        let size = format_count(max_bytes >> 20, "megabyte");
        return Err(Failure::wrong_input(
            format!("the value is larger than {size}"),
            "read it with SQLite",
        ));
    }
    with_row(guard, table, address, &name, |row| {
        Ok(match row.get_ref(0)? {
            ValueRef::Text(bytes) | ValueRef::Blob(bytes) => bytes.to_vec(),
            value => format_text(value).into_bytes(),
        })
    })
}
