//! Checks each request's access: the `Host` header (because another site could point its own name
//! at this address), the origin of requests that change something, and the token.

use std::net::IpAddr;
use std::time::Instant;

use axum::body::Body;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use secrecy::ExposeSecret;

use super::HttpState;
use super::client_limits::DaemonClient;
use super::page::render_error;
use super::reply::HttpError;
use crate::daemon::TOKEN;

/// Content security policy: pages may load resources only from this server.
const PAGE_POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; \
     img-src 'self' data:; media-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// Admits a request or rejects it with a reason. Counts the request in the metrics.
pub(super) async fn check_request(
    State(state): State<HttpState>,
    mut request: Request,
    next: Next,
) -> Response {
    let began = Instant::now();
    // All unknown paths share one route name, so that clients cannot create new metrics.
    let route = request.extensions().get::<MatchedPath>().map(|p| p.as_str().to_owned());
    let path = route.as_deref().unwrap_or_default();
    // Health checks need no token. Neither do the page's assets: otherwise browsers would ask for the
    // password again for each of them.
    let is_public = ["/healthz", "/page.css", "/page.js"].contains(&path);
    let route = super::openapi::find_route_name(path);
    let is_stream = request.method() == Method::POST
        || route == "/v1/runs/events"
        || is_mcp_route(route)
        || path.ends_with("/export")
        || path == "/query" && has_query_sql(&request);
    let client = find_client(&state, &request);
    request.extensions_mut().insert(client);
    let response = match state.shares.admit_request(client, is_stream) {
        Ok(admitted) => {
            let (method, headers) = (request.method(), request.headers());
            let access = check_access(&state, method, headers, is_mcp_route(route), is_public);
            let response = match access {
                Ok(()) => next.run(request).await,
                Err(error) => render_error(request.headers(), error),
            };
            response.map(|body| admitted.count_body_bytes(body))
        }
        Err(error) => error.into_response(),
    };
    state.context.metrics.record_request(route, response.status().as_u16(), began.elapsed());
    response
}

/// Returns true if the address contains a query, which the page runs.
fn has_query_sql(request: &Request) -> bool {
    let query = request.uri().query().unwrap_or_default();
    query.split('&').any(|pair| pair.starts_with("sql="))
}

/// Returns true if a route belongs to MCP. Every request to such a route can become a stream.
fn is_mcp_route(route: &str) -> bool {
    super::mcp::PATHS.contains(&route)
}

/// Returns the client that sent a request.
fn find_client(state: &HttpState, request: &Request) -> DaemonClient {
    match request.extensions().get::<DaemonClient>() {
        Some(DaemonClient::Address(peer)) => {
            let trusted = &state.context.settings.trusted_proxies;
            DaemonClient::from_forwarded_header(*peer, request.headers(), trusted)
        }
        Some(user) => *user,
        None => DaemonClient::User(None),
    }
}

pub(super) async fn add_security_headers(request: Request, next: Next) -> Response<Body> {
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, PAGE_POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "same-origin"),
        (header::X_FRAME_OPTIONS, "DENY"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

fn check_access(
    state: &HttpState,
    method: &Method,
    headers: &HeaderMap,
    is_mcp: bool,
    is_public: bool,
) -> Result<(), HttpError> {
    let text = |name: header::HeaderName| headers.get(name).and_then(|v| v.to_str().ok());
    let host = text(header::HOST).unwrap_or_default();
    if !is_own_host(host, &state.context.settings.hosts, state.context.settings.listen.ip()) {
        return Err(HttpError::new(
            StatusCode::MISDIRECTED_REQUEST,
            format!("the daemon does not accept the host name `{host}`"),
            "use its address or localhost, or start it with --host NAME",
        ));
    }
    if !matches!(*method, Method::GET | Method::HEAD) || is_mcp {
        let own = |origin: &str| origin.split_once("://").is_some_and(|(_, o)| o == host);
        let foreign = text(header::ORIGIN).is_some_and(|o| !own(o))
            || headers.get("sec-fetch-site").is_some_and(|s| s != "same-origin" && s != "none");
        if foreign {
            return Err(HttpError::new(
                StatusCode::FORBIDDEN,
                "the request comes from a page of another site".to_owned(),
                "only the daemon's own page and programs can change data",
            ));
        }
    }
    let Some(token) = &state.context.settings.token else { return Ok(()) };
    if is_public {
        return Ok(());
    }
    let sent = text(header::AUTHORIZATION).and_then(parse_token);
    match sent {
        Some(sent) if is_same_token(sent.as_bytes(), token.expose_secret().as_bytes()) => Ok(()),
        _ => Err(HttpError::new(
            StatusCode::UNAUTHORIZED,
            match sent {
                Some(_) => "the token is wrong".to_owned(),
                None => "the request has no token".to_owned(),
            },
            &format!(
                "send `Authorization: Bearer …` with the daemon's {TOKEN}; in a browser, enter it as the password"
            ),
        )),
    }
}

/// Returns true if a `Host` header names this daemon: an address, `localhost`, or a configured
/// name. A daemon on loopback accepts only loopback addresses.
fn is_own_host(host: &str, names: &[String], listens: IpAddr) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    if name.eq_ignore_ascii_case("localhost") || names.iter().any(|n| n.eq_ignore_ascii_case(name))
    {
        return true;
    }
    name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback() || !listens.is_loopback())
}

/// Returns the token from an `Authorization` header: the bearer token, or the password of basic
/// authentication, which browsers use.
fn parse_token(value: &str) -> Option<String> {
    let (scheme, rest) = value.split_once(' ')?;
    if scheme.eq_ignore_ascii_case("bearer") {
        return Some(rest.trim().to_owned());
    }
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let pair = String::from_utf8(decode_base64(rest.trim())?).ok()?;
    Some(pair.split_once(':')?.1.to_owned())
}

/// Decodes base64; `None` if the text is invalid.
fn decode_base64(text: &str) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len() * 3 / 4);
    let (mut bits, mut held) = (0u32, 0);
    for c in text.trim_end_matches('=').bytes() {
        let six = match c {
            b'A'..=b'Z' => c - b'A',
            b'a'..=b'z' => c - b'a' + 26,
            b'0'..=b'9' => c - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(six);
        held += 6;
        if held >= 8 {
            held -= 8;
            out.push((bits >> held) as u8);
        }
    }
    Some(out)
}

/// Returns true if two tokens are equal. Compares their hashes, so that the time taken does not
/// reveal a common prefix.
fn is_same_token(a: &[u8], b: &[u8]) -> bool {
    blake3::hash(a) == blake3::hash(b)
}
