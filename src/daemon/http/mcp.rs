//! Serves MCP at `/mcp` and `/mcp/{spec}`, with the official SDK's HTTP transport.
//! [`super::guard`] checks each request first.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Extension, Path, Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::Response;
use axum::routing::any;
use axum::{Json, Router};
use futures_util::StreamExt;
use rmcp::transport::streamable_http_server::session::SessionManager;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use serde::Deserialize;
use tokio::sync::watch;

use super::client_limits::DaemonClient;
use super::query::find_target;
use super::reply::{HttpError, read_bytes};
use super::{HttpState, wait_for_shutdown};
use crate::failure::Failure;
use crate::mcp::McpServer;
use crate::mcp::connection::HttpConnection;
use crate::mcp::context::{DEFAULT_TIMEOUT, ServerContext};
use crate::mcp::host::{McpHost, WorkPermit};

/// Paths of the transport.
pub(super) const PATHS: [&str; 2] = ["/mcp", "/mcp/{spec}"];
const SESSION_HEADER: &str = "mcp-session-id";
/// Time after which an idle session ends.
const SESSION_TIMEOUT: Duration = Duration::from_secs(60 * 60);
/// Maximum number of sessions.
const MAX_SESSIONS: usize = 256;
/// Maximum number of sessions of one client.
const MAX_CLIENT_SESSIONS: usize = 32;
/// Length of a session's short name, which is shown to the person who approves a plan.
const SESSION_NAME: usize = 8;

type McpService = StreamableHttpService<McpServer<DaemonHost>, LocalSessionManager>;

/// Shared state of the handlers.
#[derive(Clone)]
struct McpState {
    service: McpService,
    manager: Arc<LocalSessionManager>,
    sessions: Arc<SessionOwners>,
}

/// The client that opened each session. Other clients cannot use the session.
#[derive(Default)]
struct SessionOwners(Mutex<HashMap<String, DaemonClient>>);

/// Advice for a request that names no spec.
const NAME_SPEC: &str = "use the path /mcp/SPEC";

/// The daemon as an MCP host. It serves the spec that the request's path names.
#[derive(Clone)]
struct DaemonHost(HttpState);

impl McpHost for DaemonHost {
    fn open_context(&self, spec: Option<&str>) -> Result<Arc<ServerContext>, Failure> {
        let active = self.0.find_active_spec_or_advise(spec, NAME_SPEC);
        let (_, active) = active.map_err(|error| error.failure)?;
        let settings = &self.0.context.settings;
        Ok(Arc::new(ServerContext {
            needs_approval: !settings.spend,
            target: find_target(&active.spec)?,
            spec: active.spec.clone(),
            facts: self.0.context.facts.as_ref().clone(),
            model: active.model.clone().map_err(|why| Failure::clone(&why)),
            plans: settings.plans.clone(),
            ledger: self.0.ledger.clone(),
            approve_command: settings.approve_command.clone(),
            has_page: true,
            timeout: DEFAULT_TIMEOUT,
            rows_per_request: None,
            edits: Arc::clone(&self.0.edits),
        }))
    }

    async fn begin_work(&self) -> Result<WorkPermit, Failure> {
        let (guard, ending) = self.0.context.clients.begin_work();
        let permit = self.0.acquire_query_permit().await.map_err(|error| error.failure)?;
        Ok(WorkPermit { guards: Box::new((guard, permit)), ending })
    }
}

impl SessionOwners {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, DaemonClient>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fails if another client opened the session.
    fn check_owner(&self, session: &str, client: DaemonClient) -> Result<(), HttpError> {
        match self.lock().get(session) {
            Some(owner) if *owner == client => Ok(()),
            _ => Err(HttpError::new(
                StatusCode::NOT_FOUND,
                "there is no such session".to_owned(),
                "begin a new one with `initialize`",
            )),
        }
    }

    /// Removes the sessions that have ended. Fails if the client or the whole daemon still has too
    /// many sessions.
    async fn check_session_count(
        &self,
        client: DaemonClient,
        manager: &LocalSessionManager,
    ) -> Result<(), HttpError> {
        let known: Vec<String> = self.lock().keys().cloned().collect();
        for id in known {
            if !manager.has_session(&id.as_str().into()).await.unwrap_or(false) {
                self.lock().remove(&id);
            }
        }
        let sessions = self.lock();
        let own = sessions.values().filter(|owner| **owner == client).count();
        if own >= MAX_CLIENT_SESSIONS || sessions.len() >= MAX_SESSIONS {
            return Err(HttpError::server_busy("too many MCP sessions are open"));
        }
        Ok(())
    }
}

/// Builds the router of the MCP paths, and the service that answers their requests.
pub(super) fn build_mcp_router(state: &HttpState) -> Router<HttpState> {
    let mut manager = LocalSessionManager::default();
    manager.session_config.keep_alive = Some(SESSION_TIMEOUT);
    // A client that disconnected cannot resume its call, so events need no ids.
    manager.session_config.sse_retry = None;
    let manager = Arc::new(manager);
    let config = StreamableHttpServerConfig::default().disable_allowed_hosts().with_sse_retry(None);
    let (shutdown, mut closing) = (config.cancellation_token.clone(), state.closing.clone());
    tokio::spawn(async move {
        wait_for_shutdown(&mut closing).await;
        shutdown.cancel();
    });
    let server = McpServer::new(DaemonHost(state.clone()));
    let service = McpService::new(move || Ok(server.clone()), Arc::clone(&manager), config);
    let mcp = McpState { service, manager, sessions: Arc::default() };
    let router = PATHS
        .into_iter()
        .fold(Router::new(), |router, path| router.route(path, any(serve_request)));
    router.layer(Extension(mcp))
}

#[derive(Deserialize)]
struct MessageMethod {
    method: String,
}

/// Handles a request of the transport. If the client closes the connection, its calls are
/// cancelled.
async fn serve_request(
    State(state): State<HttpState>,
    Extension(mcp): Extension<McpState>,
    Extension(client): Extension<DaemonClient>,
    spec: Option<Path<String>>,
    request: Request,
) -> Result<Response, HttpError> {
    let spec = spec.map(|Path(name)| name);
    state.find_active_spec_or_advise(spec.as_deref(), NAME_SPEC)?;
    let session = find_session(request.headers());
    if let Some(session) = &session {
        mcp.sessions.check_owner(session, client)?;
    }
    let is_post = *request.method() == Method::POST;
    check_accept(request.method(), request.headers())?;
    let (mut parts, body) = request.into_parts();
    let bytes = if is_post { read_bytes(body).await? } else { Bytes::new() };
    let message = Json::<MessageMethod>::from_bytes(&bytes);
    if session.is_none() && message.is_ok_and(|message| message.method == "initialize") {
        mcp.sessions.check_session_count(client, &mcp.manager).await?;
    }
    let (connected, open) = watch::channel(());
    let client_name = match &session {
        Some(session) => {
            let hash = blake3::hash(session.as_bytes()).to_hex();
            format!("{client}, session {}", &hash[..SESSION_NAME])
        }
        None => client.to_string(),
    };
    let has_session = session.is_some();
    parts.extensions.insert(HttpConnection { spec, client: client_name, has_session, open });
    let is_delete = parts.method == Method::DELETE;
    let mut response = mcp.service.handle(Request::from_parts(parts, Body::from(bytes))).await;
    // The Python SDK treats 202 as a failure.
    if is_delete && response.status() == StatusCode::ACCEPTED {
        *response.status_mut() = StatusCode::NO_CONTENT;
    }
    if let Some(session) = find_session(response.headers()) {
        mcp.sessions.lock().insert(session, client);
    }
    let response = response.map(Body::new);
    Ok(if is_post { response.map(|body| attach_guard(body, connected)) } else { response })
}

/// Fails if the client does not accept the media types that the transport sends.
fn check_accept(method: &Method, headers: &HeaderMap) -> Result<(), HttpError> {
    let needed: &[&str] = match *method {
        Method::POST => &["application/json", "text/event-stream"],
        Method::GET => &["text/event-stream"],
        _ => return Ok(()),
    };
    let accepted = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or("");
    if needed.iter().all(|kind| accepted.contains(kind)) {
        return Ok(());
    }
    Err(HttpError::new(
        StatusCode::NOT_ACCEPTABLE,
        format!("the request does not accept {}", needed.join(" and ")),
        &format!("this is MCP: an assistant connects to it; send `Accept: {}`", needed.join(", ")),
    ))
}

fn find_session(headers: &HeaderMap) -> Option<String> {
    Some(headers.get(SESSION_HEADER)?.to_str().ok()?.to_owned())
}

/// Keeps a value until the body has been sent or the client has closed the connection.
fn attach_guard(body: Body, held: impl Send + 'static) -> Body {
    Body::from_stream(body.into_data_stream().map(move |bytes| {
        let _ = &held;
        bytes
    }))
}
