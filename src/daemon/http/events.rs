//! `/v1/runs/events`: what happens, as server-sent events. `run` and `spec` carry
//! the same objects as `/v1/runs` and `/v1/specs`; `missed` says that a slow
//! reader missed some and should look again.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;
use http_body::Frame;
use serde_json::{Value as Json, json};
use tokio::sync::{OwnedSemaphorePermit, broadcast, mpsc};
use tokio::time::{Duration, interval};

use super::HttpState;
use super::reply::Refusal;
use crate::daemon::house::Told;
use crate::daemon::metrics::Counted;

/// How often a silent stream shows that it is alive.
const ALIVE: Duration = Duration::from_secs(15);

/// `GET /v1/runs/events`
pub(super) async fn stream(State(shop): State<HttpState>) -> Result<impl IntoResponse, Refusal> {
    let place = Arc::clone(&shop.streams).try_acquire_owned();
    let place = place.map_err(|_| Refusal::busy("too many event streams are open"))?;
    let told = shop.house.told.subscribe();
    let (send, lines) = mpsc::channel(16);
    tokio::spawn(feed(shop.clone(), told, send));
    let headers =
        [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-cache")];
    let counted = Counted::of(&shop.house.metrics, |m| &m.streams);
    Ok((headers, Body::new(Stream { lines, _place: (place, counted) })))
}

/// Tells one client until it goes or the daemon ends.
async fn feed(shop: HttpState, mut heard: broadcast::Receiver<Told>, send: mpsc::Sender<Told>) {
    let running: Vec<Told> = {
        let runs = shop.house.status.borrow().runs.clone();
        runs.iter().filter(|r| r.report.is_none()).map(|r| told("run", &r.to_json())).collect()
    };
    for event in running.into_iter().rev() {
        if send.send(event).await.is_err() {
            return;
        }
    }
    let mut alive = interval(ALIVE);
    let mut closing = shop.closing.clone();
    loop {
        let line = tokio::select! {
            event = heard.recv() => match event {
                Ok(event) => event,
                Err(broadcast::error::RecvError::Lagged(_)) => told("missed", &json!({})),
                Err(broadcast::error::RecvError::Closed) => return,
            },
            _ = alive.tick() => Bytes::from_static(b": alive\n\n"),
            () = super::ends(&mut closing) => return,
            () = send.closed() => return,
        };
        if send.send(line).await.is_err() {
            return;
        }
    }
}

/// An event as it is sent.
pub(in crate::daemon) fn told(event: &str, data: &Json) -> Told {
    format!("event: {event}\ndata: {data}\n\n").into()
}

/// What a client reads, and its place as long as it does.
struct Stream {
    lines: mpsc::Receiver<Told>,
    _place: (OwnedSemaphorePermit, Counted),
}

impl http_body::Body for Stream {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.lines.poll_recv(context).map(|line| line.map(|bytes| Ok(Frame::data(bytes))))
    }
}
