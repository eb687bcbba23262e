//! The HTTP server. `/v1/…` is a JSON API, the rest is a web page.
//!
//! Handlers read the [`DaemonStatus`](super::DaemonStatus) that the loop publishes and work on
//! their own threads. Only changes go through the loop.

mod api;
mod client_limits;
mod door;
mod events;
mod facts;
mod guard;
mod openapi;
mod page;
mod query;
mod reply;
mod rows;
mod stalled;

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
pub(super) use self::door::Door;
pub(super) use self::events::told;
pub(super) use self::reply::no_spec;
use self::stalled::Watched;
use super::house::DaemonContext;
use super::metrics::Counted;

/// Maximum number of connections; further clients wait to be accepted. The limits below for
/// long-lived and working requests are lower, so that short requests always find a connection.
const CONNECTIONS: usize = 640;
/// Maximum number of event streams.
const STREAMS: usize = 256;
/// Maximum number of clients that wait for the end of a run.
const WAITS: usize = 64;
/// Time after which a connection is closed if the client reads nothing.
const STALLED: Duration = Duration::from_secs(10);
/// Time limit for the head of a request.
const HEAD: Duration = Duration::from_secs(10);
/// Maximum number of concurrent queries, plans and fills.
const AT_WORK: usize = 16;
/// Maximum number of concurrent short reads: pages, cells, facts. Queries have separate permits.
const LOOKS: usize = 8;
/// Maximum number of requests that wait for a permit.
const WAITING: i64 = 128;

/// Shared state of the handlers.
#[derive(Clone)]
struct HttpState {
    house: DaemonContext,
    /// What each client has used.
    shares: Arc<ClientShares>,
    /// Permits for queries, plans and fills.
    places: Arc<Semaphore>,
    /// Permits for short reads.
    looks: Arc<Semaphore>,
    /// Permits for event streams.
    streams: Arc<Semaphore>,
    /// Permits for clients that wait for the end of a run.
    waits: Arc<Semaphore>,
    /// Serializes edits of overrides files.
    edits: Arc<tokio::sync::Mutex<()>>,
    /// Becomes true when the daemon shuts down.
    closing: watch::Receiver<bool>,
}

/// Serves until `closing` becomes true; requests in flight are answered.
pub(super) async fn serve(doors: Vec<Door>, house: DaemonContext, closing: watch::Receiver<bool>) {
    let shares = ClientShares::new(house.settings.client_limits);
    let shop = HttpState {
        house,
        shares: Arc::new(shares),
        places: Arc::new(Semaphore::new(AT_WORK)),
        looks: Arc::new(Semaphore::new(LOOKS)),
        streams: Arc::new(Semaphore::new(STREAMS)),
        waits: Arc::new(Semaphore::new(WAITS)),
        edits: Arc::default(),
        closing,
    };
    let routes = router(shop.clone());
    let connections = Arc::new(Semaphore::new(CONNECTIONS));
    let accepting = doors
        .into_iter()
        .map(|door| accept_clients(door, shop.clone(), routes.clone(), Arc::clone(&connections)));
    futures_util::future::join_all(accepting).await;
}

/// Accepts the clients of a listener.
async fn accept_clients(door: Door, shop: HttpState, routes: Router, connections: Arc<Semaphore>) {
    let metrics = Arc::clone(&shop.house.metrics);
    let service = TowerToHyperService::new(routes);
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD);
    let closing = shop.closing;
    let mut ending = closing.clone();
    loop {
        let Ok(place) = Arc::clone(&connections).acquire_owned().await else { return };
        let accepted = tokio::select! {
            accepted = door.accept() => accepted,
            () = ends(&mut ending) => return,
        };
        let Ok((stream, client)) = accepted else {
            // Most likely the process has no free file handles; wait for some.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let (stream, patience) = Watched::new(stream, STALLED);
        let service = service.clone();
        let service = service_fn(move |mut request: Request<Incoming>| {
            patience.set(STALLED);
            request.extensions_mut().insert(patience.clone());
            request.extensions_mut().insert(client);
            service.call(request)
        });
        let connection = http.serve_connection(TokioIo::new(stream), service);
        let mut closing = closing.clone();
        let counted = Counted::of(&metrics, |m| &m.connections);
        tokio::spawn(async move {
            let mut connection = pin!(connection);
            tokio::select! {
                _ = connection.as_mut() => {}
                () = ends(&mut closing) => {
                    connection.as_mut().graceful_shutdown();
                    let _ = connection.await;
                }
            }
            drop((place, counted));
        });
    }
}

/// Waits until `closing` becomes true.
async fn ends(closing: &mut watch::Receiver<bool>) {
    let _ = closing.wait_for(|c| *c).await;
}

fn router(shop: HttpState) -> Router {
    let api = Router::new()
        .route("/v1/query", post(query::run))
        .route("/v1/explain", post(query::explain))
        .route("/v1/plan", post(api::plan))
        .route("/v1/status", get(api::status))
        .route("/v1/specs", get(api::specs))
        .route("/v1/specs/{spec}", get(api::spec))
        .route("/v1/runs", get(api::runs).post(api::start))
        .route("/v1/runs/events", get(events::stream))
        .route("/v1/runs/{run}", get(api::run).delete(api::interrupt))
        .route("/v1/facts", post(facts::look_up))
        .route("/v1/why", get(api::why))
        .route("/v1/overrides", get(api::overrides).post(api::set).delete(api::unset))
        .route("/v1/openapi.json", get(openapi::document))
        .route("/healthz", get(api::health))
        .route("/metrics", get(api::metrics));
    page::routes(api)
        .fallback(page::no_route)
        .method_not_allowed_fallback(reply::no_method)
        .layer(from_fn_with_state(shop.clone(), guard::check))
        .layer(from_fn(guard::harden))
        .with_state(shop)
}
