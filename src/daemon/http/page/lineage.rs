//! The lineage of a spec: how sources, keys, columns, tables and queries depend on each other.

use axum::extract::{Path, State};
use maud::{Markup, html};

use super::{
    ErrorPage, HttpState, Page, find_spec, percent_encode, render_page, render_spec_tabs,
    spec_path, truncate_text,
};
use crate::cell::State as CellState;
use crate::daemon::query_uses::QueryUse;
use crate::daemon::status::SpecStatus;
use crate::database::Database;
use crate::spec::{Expansion, SourceRows, Spec, is_server};

/// Maximum number of queries to show for one expansion.
const MAX_QUERIES: usize = 20;
/// Maximum length of a shown query, in characters.
const MAX_SQL_CHARS: usize = 160;

/// A query that reads an expansion.
struct LineageQuery {
    /// The example's question, or the text of a client's query.
    label: String,
    sql: String,
    /// Number of times that clients ran the query; `None` for an example of the spec.
    count: Option<u64>,
    /// Columns of the expansion that the query reads.
    columns: Vec<String>,
}

/// Handles `GET /specs/{spec}/lineage`.
pub(super) async fn show_lineage(
    State(state): State<HttpState>,
    Path(name): Path<String>,
) -> Result<Page, ErrorPage> {
    let spec = find_spec(&state, &name)?;
    let uses = state.context.uses.find_queries(&name);
    let permit = state.acquire_read_permit().await?;
    let content = tokio::task::spawn_blocking(move || {
        let content = render_lineage(&spec, &uses);
        drop(permit);
        content
    });
    let content = content.await.unwrap_or_default();
    Ok(render_page(
        &name,
        &html! {
            h1 { (name) }
            (render_spec_tabs(&name, "Lineage"))
            (content)
        },
    ))
}

fn render_lineage(status: &SpecStatus, uses: &[QueryUse]) -> Markup {
    let Some(active) = &status.active_spec else {
        return html! { p.quiet { "The spec has no valid version yet." } };
    };
    let views = read_views(&active.spec);
    html! {
        p.quiet { "From the source to the queries: those that clients have run since the daemon started, and the examples of the spec." }
        @for expansion in &active.spec.expansions { (render_expansion(status, &active.spec, expansion, &views, uses)) }
    }
}

/// Returns the name and text of each view of the spec's database.
fn read_views(spec: &Spec) -> Vec<(String, String)> {
    if is_server(spec.target()) {
        return Vec::new();
    }
    let sql = "SELECT name, sql FROM sqlite_schema WHERE type = 'view' AND name NOT LIKE 'hqdl\\_%' ESCAPE '\\' ORDER BY name";
    let read = || -> rusqlite::Result<Vec<(String, String)>> {
        let Ok(database) = Database::open(spec.target()) else { return Ok(Vec::new()) };
        let mut statement = database.connection().prepare(sql)?;
        let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
        rows.collect()
    };
    // Before the first publication, there is no database to read.
    read().unwrap_or_default()
}

/// Returns true if a text contains a name as a whole word, ignoring case.
fn mentions_name(text: &str, name: &str) -> bool {
    let (text, name) = (text.to_lowercase(), name.to_lowercase());
    let is_word = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    text.match_indices(&name).any(|(at, _)| {
        let (before, after) =
            (text[..at].chars().next_back(), text[at + name.len()..].chars().next());
        !name.is_empty() && !is_word(before) && !is_word(after)
    })
}

fn render_expansion(
    status: &SpecStatus,
    spec: &Spec,
    expansion: &Expansion,
    views: &[(String, String)],
    uses: &[QueryUse],
) -> Markup {
    let many = expansion.columns.iter().filter_map(|c| c.many.as_ref().map(|m| m.table.as_str()));
    let tables: Vec<&str> = std::iter::once(expansion.name.as_str()).chain(many).collect();
    let reads = |text: &str| tables.iter().any(|table| mentions_name(text, table));
    let views: Vec<&str> =
        views.iter().filter(|(_, sql)| reads(sql)).map(|(name, _)| name.as_str()).collect();
    let reads_any = |sql: &str| reads(sql) || views.iter().any(|view| mentions_name(sql, view));
    let queries = find_queries(spec, expansion, uses, &reads_any);
    let table_link =
        |name: &str| format!("{}/tables/{}", spec_path(&status.name), percent_encode(name));
    // The page shows no other table of a database server.
    let source_link = |name: &str| {
        let link = (!is_server(spec.target())).then(|| table_link(name));
        html! { @match link { Some(to) => a href=(to) { (name) }, None => (name) } }
    };
    html! {
        section.card.lineage {
            h2 { a href=(table_link(&expansion.name)) { (expansion.name) } }
            ol.flow {
                li { h3 { "Source" } ul { @for source in &expansion.sources { @match &source.rows {
                    SourceRows::Table(table) => li { (source_link(table)) },
                    SourceRows::Select(select) => li { code title=(select) { (truncate_text(select.trim(), MAX_SQL_CHARS)) } },
                } } } }
                li { h3 { "Key" } ul {
                    @for name in expansion.key.names() { li { (name) } }
                    @for name in &expansion.context { li.quiet { (name) " (context)" } }
                } }
                li { h3 { "Columns" } ul { @for column in &expansion.columns {
                    @let users = queries.iter().filter(|q| q.columns.contains(&column.name)).count() as u64;
                    li.model { strong { (column.name) }
                        div.small.quiet { (describe_coverage(status, expansion, &column.name)) @match users { 0 => {}, 1 => ", 1 query", n => { ", " (n) " queries" } } }
                    }
                } } }
                li { h3 { "Tables and views" } ul {
                    @for table in &tables { li { a href=(table_link(table)) { (table) } } }
                    @for view in &views { li { (source_link(view)) span.quiet { " (view)" } } }
                } }
                li { h3 { "Queries" }
                    @if queries.is_empty() { p.quiet { "No query has read this table yet." } }
                    ul { @for query in queries.iter().take(MAX_QUERIES) { li {
                        a href=(format!("/query?spec={}&sql={}", percent_encode(&status.name), percent_encode(&query.sql))) { (truncate_text(&query.label, MAX_SQL_CHARS)) }
                        div.small.quiet {
                            @match query.count { Some(1) => "run once", Some(n) => { "run " (n) " times" }, None => "example" }
                            @if !query.columns.is_empty() { ": " (query.columns.join(", ")) }
                        }
                    } } }
                    @if queries.len() > MAX_QUERIES { p.small.quiet { (queries.len() - MAX_QUERIES) " more" } }
                }
            }
        }
    }
}

fn describe_coverage(status: &SpecStatus, expansion: &Expansion, column: &str) -> String {
    let report = status.columns.iter().find(|report| {
        report.expansion.eq_ignore_ascii_case(&expansion.name)
            && report.column.eq_ignore_ascii_case(column)
    });
    let Some(report) = report else { return "not published yet".to_owned() };
    let all = report.cells.total() + report.unasked;
    let with_value: u64 =
        (CellState::ALL.into_iter().filter(|s| s.has_value())).map(|s| report.cells.get(s)).sum();
    format!("{with_value} of {all} cells")
}

/// Returns the number of times that clients' queries used each column of an expansion.
pub(super) fn count_column_uses(spec: &Spec, expansion: &Expansion, uses: &[QueryUse]) -> Vec<u64> {
    let many = expansion.columns.iter().filter_map(|c| c.many.as_ref().map(|m| &m.table));
    let mut tables: Vec<&str> = many.map(String::as_str).collect();
    tables.push(&expansion.name);
    let views = expansion.sources.iter().filter_map(|source| source.name.as_ref());
    let views: Vec<String> = views.map(|name| format!("{name}_expanded")).collect();
    tables.extend(views.iter().map(String::as_str));
    let reads = |sql: &str| tables.iter().any(|table| mentions_name(sql, table));
    let queries = find_queries(spec, expansion, uses, &reads);
    let count = |column: &String| {
        let own = queries.iter().filter(|query| query.columns.contains(column));
        own.filter_map(|query| query.count).sum()
    };
    expansion.columns.iter().map(|column| count(&column.name)).collect()
}

/// Returns the queries that read an expansion: clients' queries first, then the spec's examples.
fn find_queries(
    spec: &Spec,
    expansion: &Expansion,
    uses: &[QueryUse],
    reads: &dyn Fn(&str) -> bool,
) -> Vec<LineageQuery> {
    let find_columns = |sql: &str, routes: &[(String, String)]| -> Vec<String> {
        let is_route =
            |column: &str| routes.iter().any(|(e, c)| *e == expansion.name && *c == column);
        let names = expansion.columns.iter().map(|column| &column.name);
        names
            .filter(|name| is_route(name) || reads(sql) && mentions_name(sql, name))
            .cloned()
            .collect()
    };
    let used = uses.iter().map(|used| {
        let columns = find_columns(&used.sql, &used.routes);
        (used.sql.clone(), used.sql.clone(), Some(used.count), columns)
    });
    let examples = spec.ask.examples.iter().map(|example| {
        let columns = find_columns(&example.sql, &[]);
        (example.question.clone(), example.sql.clone(), None, columns)
    });
    used.chain(examples)
        .filter(|(_, sql, _, columns)| !columns.is_empty() || reads(sql))
        .map(|(label, sql, count, columns)| LineageQuery { label, sql, count, columns })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::mentions_name;

    #[test]
    fn a_name_is_a_whole_word() {
        assert!(mentions_name("SELECT Born FROM llm", "born"));
        assert!(mentions_name("FROM \"llm\"", "llm"));
        assert!(!mentions_name("FROM llm_power", "llm"));
        assert!(!mentions_name("SELECT reborn, é", "born"));
        assert!(!mentions_name("SELECT 1", ""));
    }
}
