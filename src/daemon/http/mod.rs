//! The HTTP server. `/v1/…` is a JSON API; the other paths are web pages.
//!
//! Handlers read the [`DaemonStatus`](super::DaemonStatus) that the loop publishes and work on
//! their own threads. Only changes go through the loop.

mod api;
mod client_limits;
mod listener;
mod events;
mod facts;
mod guard;
mod mcp;
mod openapi;
mod page;
mod query;
mod reply;
mod rows;
mod timeout_stream;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::{get, post};
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::sync::{Semaphore, watch};

use self::client_limits::ClientShares;
pub(super) use self::events::build_sse_event;
pub(super) use self::listener::HttpListener;
pub(super) use self::reply::unknown_spec_failure;
use self::timeout_stream::TimeoutStream;
use super::context::DaemonContext;
use super::metrics::GaugeGuard;
use crate::approval::SpendingLedger;

/// Maximum number of connections; further clients wait to be accepted. The limits below for
/// streams, waiting clients and queries add up to less than this, so that a connection for short
/// requests is always available.
const MAX_CONNECTIONS: usize = 640;
/// Maximum number of event streams.
const MAX_STREAMS: usize = 256;
/// Maximum number of clients that wait for the end of a run.
const MAX_RUN_WAITS: usize = 64;
/// Time after which the server closes a connection whose client reads nothing.
const STALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit for the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of concurrent queries, plans and fills.
const MAX_QUERIES: usize = 16;
/// Maximum number of concurrent short reads: pages, cells, facts. Queries have separate permits.
const MAX_READS: usize = 8;
/// Maximum number of concurrent uploads.
const MAX_UPLOADS: usize = 2;
/// Maximum number of requests that wait for a permit.
const MAX_WAITING: i64 = 128;

/// Shared state of the handlers.
#[derive(Clone)]
struct HttpState {
    context: DaemonContext,
    /// Usage of each client.
    shares: Arc<ClientShares>,
    /// Permits for queries, plans and fills.
    query_permits: Arc<Semaphore>,
    /// Permits for short reads.
    read_permits: Arc<Semaphore>,
    /// Permits for event streams.
    stream_permits: Arc<Semaphore>,
    /// Permits for clients that wait for the end of a run.
    wait_permits: Arc<Semaphore>,
    /// Permits for uploads.
    upload_permits: Arc<Semaphore>,
    /// Limits and spending of the assistants.
    ledger: SpendingLedger,
    /// Serializes edits of overrides files and specs.
    edits: Arc<tokio::sync::Mutex<()>>,
    /// Recently submitted forms of the Ask page.
    submissions: page::AskSubmissions,
    /// Becomes true when the daemon shuts down.
    closing: watch::Receiver<bool>,
}

/// Serves clients until `closing` becomes true, and then answers the requests in flight.
pub(super) async fn serve_http(
    listeners: Vec<HttpListener>,
    context: DaemonContext,
    closing: watch::Receiver<bool>,
) {
    let shares = ClientShares::new(context.settings.client_limits);
    let ledger = SpendingLedger::new(context.settings.assistant_limits);
    let state = HttpState {
        context,
        shares: Arc::new(shares),
        query_permits: Arc::new(Semaphore::new(MAX_QUERIES)),
        read_permits: Arc::new(Semaphore::new(MAX_READS)),
        stream_permits: Arc::new(Semaphore::new(MAX_STREAMS)),
        wait_permits: Arc::new(Semaphore::new(MAX_RUN_WAITS)),
        upload_permits: Arc::new(Semaphore::new(MAX_UPLOADS)),
        ledger,
        edits: Arc::default(),
        submissions: page::AskSubmissions::default(),
        closing,
    };
    let routes = build_router(state.clone());
    let connections = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let accepting = listeners.into_iter().map(|listener| {
        accept_clients(listener, state.clone(), routes.clone(), Arc::clone(&connections))
    });
    futures_util::future::join_all(accepting).await;
}

/// Accepts the clients of a listener.
async fn accept_clients(
    listener: HttpListener,
    state: HttpState,
    routes: Router,
    connections: Arc<Semaphore>,
) {
    let metrics = Arc::clone(&state.context.metrics);
    let service = TowerToHyperService::new(routes);
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
    let closing = state.closing;
    let mut ending = closing.clone();
    loop {
        let Ok(permit) = Arc::clone(&connections).acquire_owned().await else { return };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = wait_for_shutdown(&mut ending) => return,
        };
        let Ok((stream, client)) = accepted else {
            // The process has probably run out of file handles, so wait for some to become free.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let (stream, stall_timeout) = TimeoutStream::new(stream, STALL_TIMEOUT);
        let service = service.clone();
        let service = service_fn(move |mut request: Request<Incoming>| {
            stall_timeout.set(STALL_TIMEOUT);
            request.extensions_mut().insert(stall_timeout.clone());
            request.extensions_mut().insert(client);
            service.call(request)
        });
        let connection = http.serve_connection(TokioIo::new(stream), service);
        let mut closing = closing.clone();
        let counted = GaugeGuard::increment(&metrics, |m| &m.connections);
        tokio::spawn(async move {
            let mut connection = pin!(connection);
            tokio::select! {
                _ = connection.as_mut() => {}
                () = wait_for_shutdown(&mut closing) => {
                    connection.as_mut().graceful_shutdown();
                    let _ = connection.await;
                }
            }
            drop((permit, counted));
        });
    }
}

/// Waits until the shutdown begins, which is when `closing` becomes true.
async fn wait_for_shutdown(closing: &mut watch::Receiver<bool>) {
    let _ = closing.wait_for(|c| *c).await;
}

fn build_router(state: HttpState) -> Router {
    let api = Router::new()
        .route("/v1/query", post(query::run_query))
        .route("/v1/explain", post(query::explain_query))
        .route("/v1/plan", post(api::plan_run))
        .route("/v1/status", get(api::get_status))
        .route("/v1/specs", get(api::list_specs))
        .route("/v1/specs/{spec}", get(api::get_spec))
        .route("/v1/runs", get(api::list_runs).post(api::start_run))
        .route("/v1/runs/events", get(events::stream_events))
        .route("/v1/runs/{run}", get(api::get_run).delete(api::interrupt_run))
        .route("/v1/facts", post(facts::look_up_facts))
        .route("/v1/why", get(api::get_provenance))
        .route(
            "/v1/overrides",
            get(api::list_overrides).post(api::set_override).delete(api::delete_override),
        )
        .route("/v1/openapi.json", get(openapi::get_openapi_document))
        .route("/healthz", get(api::get_health))
        .route("/metrics", get(api::get_metrics));
    page::add_page_routes(api)
        .merge(mcp::build_mcp_router(&state))
        .fallback(page::reject_route)
        .method_not_allowed_fallback(reply::reject_method)
        .layer(from_fn_with_state(state.clone(), guard::check_request))
        .layer(from_fn(guard::add_security_headers))
        .with_state(state)
}
