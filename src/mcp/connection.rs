//! Identifies the client of a tool call, and detects when the client cancels the call or
//! disconnects.

use axum::http::request::Parts;
use rmcp::service::{RequestContext, RoleServer};
use tokio::sync::watch;

use crate::format::to_single_line;

/// Maximum length of a client's name, in characters.
const MAX_CLIENT_CHARS: usize = 60;

/// A call of a client.
pub type ToolCall = RequestContext<RoleServer>;

/// The HTTP request of a call. Calls on stdin and stdout have none.
#[derive(Debug, Clone)]
pub struct HttpConnection {
    /// Name of the spec in the request's path.
    pub spec: Option<String>,
    /// Address and session of the client, for the person who approves a plan.
    pub client: String,
    /// Whether the request belongs to a session.
    pub has_session: bool,
    /// Closes when the client disconnects.
    pub open: watch::Receiver<()>,
}

/// The client that a plan is bound to.
#[derive(Debug, Clone)]
pub struct PlanClient {
    /// Name of the client, for the person who approves the plan.
    pub name: String,
    /// Random text that identifies a client without a session ([`PlanRecord::nonce`]); `None` if
    /// the client has a session.
    ///
    /// [`PlanRecord::nonce`]: crate::approval::PlanRecord::nonce
    pub nonce: Option<String>,
}

impl HttpConnection {
    /// Returns the HTTP request of a call, or `None` for a call on stdin.
    #[must_use]
    pub fn find(call: &ToolCall) -> Option<&Self> {
        call.extensions.get::<Parts>()?.extensions.get::<Self>()
    }
}

/// Waits until the client cancels a call or disconnects.
pub async fn wait_for_cancellation(call: &ToolCall) {
    let left = async {
        match HttpConnection::find(call) {
            Some(connection) => while connection.open.clone().changed().await.is_ok() {},
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = call.ct.cancelled() => {}
        () = left => {}
    }
}

/// Returns the client's name and version, and its HTTP connection, for the person who approves. The
/// client chooses the name, but not the connection.
pub fn describe_client(call: &ToolCall) -> String {
    let name = call.client_info().map_or_else(
        || "an unnamed client".to_owned(),
        |info| format!("{} {}", info.name, info.version),
    );
    // A semicolon separates the name from the connection, so the client must not be able to write
    // one.
    let name = to_single_line(&name).replace(';', ",");
    let name: String = name.chars().take(MAX_CLIENT_CHARS).collect();
    match HttpConnection::find(call) {
        Some(connection) => format!("{name}; HTTP, {}", connection.client),
        None => name,
    }
}
