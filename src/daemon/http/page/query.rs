//! The query form: runs a query, or first shows what it would ask and cost.

use axum::extract::{Query, Request, State};
use axum::response::{IntoResponse, Response};
use maud::{Markup, html};
use rusqlite::types::ValueRef;
use serde::Deserialize;

use super::super::query::{AskedQuery, explained, kept};
use super::super::reply::HttpRefusal;
use super::super::rows::length;
use super::{ErrorPage, HttpState, encoded, form, page, usd, wrong};
use crate::daemon::status::SpecStatus;
use crate::query::{Meta, Sink, json};
use crate::spec::{Binding, Expansion, SourceRows};
use crate::sql;

/// Maximum number of rows to show.
const ROWS: usize = 500;

/// Maximum number of bytes to show.
const BYTES: u64 = 2 << 20;

/// Fields of the form.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Box {
    spec: String,
    sql: String,
    #[serde(rename = "do")]
    action: String,
}

/// Result of submitting the form.
enum Result {
    Nothing,
    Rows(Meta, Head),
    Explained(Meta),
    Wrong(HttpRefusal),
}

/// The first rows of a result, as text.
#[derive(Default)]
struct Head {
    columns: Vec<String>,
    rows: Vec<Vec<Option<String>>>,
    count: usize,
    bytes: u64,
}

impl Sink for Head {
    fn columns(&mut self, names: &[String]) -> std::io::Result<()> {
        self.columns = names.to_vec();
        Ok(())
    }

    fn row(&mut self, row: &[ValueRef<'_>]) -> std::io::Result<()> {
        self.count += 1;
        self.bytes = self.bytes.saturating_add(row.iter().map(length).sum());
        if self.count <= ROWS && self.bytes <= BYTES {
            let text = |v: &ValueRef<'_>| (*v != ValueRef::Null).then(|| json::text(*v));
            self.rows.push(row.iter().map(text).collect());
        }
        Ok(())
    }

    fn finish(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// `GET /query`: shows the form; never runs the query in it.
pub(super) async fn show(State(shop): State<HttpState>, Query(asked): Query<Box>) -> Response {
    whole(&shop, &asked, &Result::Nothing)
}

/// `POST /query`
pub(super) async fn run(
    State(shop): State<HttpState>,
    request: Request,
) -> std::result::Result<Response, ErrorPage> {
    let asked: Box = form(request).await?;
    let spec = Some(asked.spec.clone()).filter(|s| !s.is_empty());
    let request = AskedQuery { spec, sql: asked.sql.clone(), ..AskedQuery::default() };
    let run = |request| async {
        kept(&shop, request, Head::default()).await.map(|(m, r)| Result::Rows(m, r))
    };
    let result = match asked.action.as_str() {
        "explain" => explained(&shop, request).await.map(Result::Explained),
        "spend" => run(request).await,
        // If the query costs something, show the price first.
        _ => match explained(&shop, request.clone()).await {
            Ok(meta) if meta.values_asked > 0 || !meta.unbounded.is_empty() => {
                Ok(Result::Explained(meta))
            }
            Ok(_) => run(request).await,
            Err(refusal) => Err(refusal),
        },
    };
    Ok(whole(&shop, &asked, &result.unwrap_or_else(Result::Wrong)))
}

fn whole(shop: &HttpState, asked: &Box, result: &Result) -> Response {
    let status = shop.house.status.borrow().clone();
    let content = html! {
        h1 { "Query" }
        form method="post" action="/query" {
            p { label { "Spec " select name="spec" {
                @for spec in status.specs.values() {
                    option value=(spec.name) selected[spec.name == asked.spec] { (spec.name) }
                }
            } } }
            div.beside {
                textarea name="sql" rows="12" aria-label="SQL" spellcheck="false" { (asked.sql) }
                div { @for spec in status.specs.values().filter(|s| asked.spec.is_empty() || s.name == asked.spec) { (schema(spec)) } }
            }
            p {
                button name="do" value="explain" { "Explain" } " "
                button name="do" value="run" { "Run" }
                span.quiet { " If a query needs the model, its price is shown first." }
            }
            @if let Result::Explained(meta) = result { (explanation(meta)) }
        }
        @match result {
            Result::Nothing | Result::Explained(_) => {}
            Result::Wrong(refusal) => (wrong(&refusal.failure)),
            Result::Rows(meta, rows) => { (table(rows)) (told(meta)) }
        }
    };
    let page = page("Query", &content);
    match result {
        Result::Wrong(refusal) => (refusal.status, page).into_response(),
        _ => page.into_response(),
    }
}

/// Shows the tables of a spec with their columns, and example queries.
fn schema(spec: &SpecStatus) -> Markup {
    let Some(loaded) = &spec.loaded else { return html! {} };
    let example = |e: &Expansion| {
        let key = e.key.names().first().map_or("*", String::as_str);
        let column = e.columns.iter().find(|c| c.many.is_none()).map_or("*", |c| c.name.as_str());
        let (key, column) = (sql::name(key), sql::name(column));
        format!(
            "SELECT {key}, {column} FROM {} WHERE {column} IS NOT NULL LIMIT 20",
            sql::name(&e.name)
        )
    };
    let link = |sql: &str| format!("/query?spec={}&sql={}", encoded(&spec.name), encoded(sql));
    html! {
        @for e in &loaded.spec.expansions {
            strong { code { (e.name) } }
            ul {
                li { (e.key.names().join(", ")) " " span.quiet { "(key)" } }
                @for c in &e.columns {
                    li { (c.name) " " span.quiet {
                        (c.kind.name()) @if let Some(many) = &c.many { ", in " code { (many.table) } }
                    } }
                }
                li { a href=(link(&example(e))) { "an example" } }
                @if let Some(asking) = asking(e) { li { a href=(link(&asking)) { "one with a question" } } }
            }
        }
    }
}

/// Returns an example query that asks one of the spec's questions about the rows of a table.
fn asking(of: &Expansion) -> Option<String> {
    let table = of.sources.iter().find_map(|source| match &source.rows {
        SourceRows::Table(table) => Some(sql::name(table)),
        SourceRows::Select(_) => None,
    })?;
    let plain = |b: &&Binding| b.sql.is_none();
    let asked = of.columns.iter().find_map(|c| c.bindings.iter().find(plain))?;
    let (ask, key) = (asked.ask.replace('\'', "''"), sql::name(of.key.names().first()?));
    Some(format!("SELECT {key}, {{{{LLMMap('{ask}', {table}.{key})}}}} FROM {table} LIMIT 20"))
}

fn table(rows: &Head) -> Markup {
    html! {
        div.wide { table.rows {
            thead { tr { @for name in &rows.columns { th { (name) } } } }
            tbody {
                @for row in &rows.rows {
                    tr { @for value in row {
                        @match value { Some(text) => td { (text) }, None => td.null { "NULL" } }
                    } }
                }
            }
        } }
        p.quiet {
            (rows.count) " rows"
            @if rows.count > rows.rows.len() { ", the first " (rows.rows.len()) " shown" }
        }
    }
}

fn told(meta: &Meta) -> Markup {
    html! {
        p {
            (meta.values_asked) " values asked, " (meta.values_reused) " known, "
            (meta.requests) " requests, " (usd(meta.cost_usd)) (price_notes(meta)) ", "
            (format!("{:.3}", meta.seconds)) " s"
        }
        (routes(meta))
    }
}

/// Returns the notes of a query's price in parentheses; nothing if it costs nothing.
fn price_notes(meta: &Meta) -> String {
    let notes = if meta.cost_usd > 0.0 { meta.price_notes.join("; ") } else { String::new() };
    if notes.is_empty() { notes } else { format!(" ({notes})") }
}

fn explanation(meta: &Meta) -> Markup {
    html! {
        p {
            "At most " (meta.values_asked) " values to ask (" (meta.values_reused) " known) in "
            (meta.requests) " requests: at most about " strong { (usd(meta.cost_usd)) } (price_notes(meta)) "."
        }
        @if meta.values_asked > 0 || !meta.unbounded.is_empty() {
            p { button name="do" value="spend" {
                @if meta.unbounded.is_empty() { "Run, for at most about " (usd(meta.cost_usd)) } @else { "Run anyway" }
            } }
        }
        @for unbounded in &meta.unbounded {
            p { "How much " code { (unbounded.call) } " asks in addition is not known: " (unbounded.why) "." }
        }
        (routes(meta))
    }
}

fn routes(meta: &Meta) -> Markup {
    html! {
        @for route in &meta.routes {
            p { code { (route.call) } " → " (route.route.name()) " " (route.expansion) " " (route.column) ": " (route.why) }
        }
        details { summary { "SQL" } pre { (meta.sql) } }
    }
}
