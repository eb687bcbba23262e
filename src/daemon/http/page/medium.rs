//! The images and recordings of a row's key, on the page of a cell.

use axum::extract::{Path, Query, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use maud::{Markup, html};

use super::super::api::read_provenance;
use super::super::query::run_blocking;
use super::super::reply::HttpError;
use super::{ErrorPage, HttpState, QueryPairs, find_spec, percent_encode, spec_path};
use crate::spec::media::HtmlElement;
use crate::spec::{Expansion, MediaColumn};
use crate::value::Value;

/// Returns the media of a key with their columns and their positions in the key.
fn key_media<'e>(
    expansion: &'e Expansion,
    key: &'e [String],
) -> impl Iterator<Item = (usize, &'e MediaColumn, Value)> {
    expansion.key.names().iter().zip(key).enumerate().filter_map(move |(n, (name, text))| {
        Some((n, expansion.find_media_column(name)?, Value::Text(text.clone())))
    })
}

/// Renders the media of a row's key. `query` is the query of the cell's page.
pub(super) fn render_media(
    spec: &str,
    expansion: &Expansion,
    key: &[String],
    query: &QueryPairs,
) -> Markup {
    let pairs = query.iter().map(|(n, v)| format!("{}={}", percent_encode(n), percent_encode(v)));
    let query = pairs.collect::<Vec<_>>().join("&");
    html! {
        @for (n, column, value) in key_media(expansion, key) {
            @let path = format!("{}/medium?{query}&part={n}", spec_path(spec));
            @match expansion.refer_to_medium(column, &value).info.kind.html_element {
                HtmlElement::Picture => { p { img.medium src=(path) alt=(column.name) loading="lazy"; } }
                HtmlElement::SoundPlayer => { p { audio controls preload="none" src=(path) aria-label=(column.name) {} } }
            }
        }
    }
}

/// Handles `GET /specs/{spec}/medium?table=…&column=…&key=…&part=…`: returns the medium in a part
/// of a published key. Media of other rows and files that no row names are not served.
pub(super) async fn get_medium(
    State(state): State<HttpState>,
    Path(name): Path<String>,
    Query(asked): Query<QueryPairs>,
) -> Result<Response, ErrorPage> {
    find_spec(&state, &name)?;
    let part = asked.iter().find(|(n, _)| n == "part").and_then(|(_, v)| v.parse::<usize>().ok());
    let key: Vec<String> =
        asked.iter().filter(|(n, _)| n == "key").map(|(_, v)| v.clone()).collect();
    let mut of_spec = asked;
    of_spec.retain(|(n, _)| n != "spec");
    of_spec.push(("spec".to_owned(), name.clone()));
    let cells = read_provenance(&state, of_spec).await?;
    let (_, active_spec) = state.find_active_spec(Some(&name))?;
    let (client_guard, _) = state.context.clients.begin_work();
    let permit = state.acquire_read_permit().await?;
    let read = move || {
        let found = cells.first().map(|cell| cell.expansion.clone());
        let mut expansions = active_spec.spec.expansions.iter();
        let expansion = expansions.find(|e| Some(&e.name) == found.as_ref());
        let media = expansion.and_then(|e| {
            let (_, column, value) = key_media(e, &key).find(|(n, ..)| Some(*n) == part)?;
            Some(e.media_files.read(&value, None, column.kind))
        });
        let missing = || Err("this part of the key is not an image or a recording".to_owned());
        Ok(media.unwrap_or_else(missing))
    };
    let medium: Result<(&str, Vec<u8>), String> = run_blocking(permit, client_guard, read).await?;
    let (mime_type, bytes) = medium.map_err(|reason| HttpError::bad_request(reason, ""))?;
    Ok(([(header::CONTENT_TYPE, mime_type)], bytes).into_response())
}
