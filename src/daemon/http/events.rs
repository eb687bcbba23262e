//! `/v1/runs/events`: what happens, as server-sent events. `run` and `spec` carry
//! the same objects as `/v1/runs` and `/v1/specs`; `missed` says that a slow
//! reader missed some and should look again.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;
use http_body::Frame;
use tokio::sync::{broadcast, mpsc};
use tokio::time::{Duration, interval};

use super::Shop;
use crate::daemon::state::Told;

/// How often a silent stream shows that it is alive.
const ALIVE: Duration = Duration::from_secs(15);

/// `GET /v1/runs/events`
pub(super) async fn stream(State(shop): State<Shop>) -> impl IntoResponse {
    let told = shop.house.told.subscribe();
    let (send, receive) = mpsc::channel(16);
    tokio::spawn(feed(shop, told, send));
    let headers =
        [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-cache")];
    (headers, Body::new(Stream(receive)))
}

/// Tells one client until it goes or the daemon ends.
async fn feed(shop: Shop, mut told: broadcast::Receiver<Told>, send: mpsc::Sender<Bytes>) {
    let running: Vec<Told> = {
        let status = shop.house.status.borrow();
        let line = |run: &serde_json::Value| ("run", run.to_string().into());
        status.runs.iter().filter(|r| r.report.is_none()).map(|r| line(&r.to_json())).collect()
    };
    for event in running.iter().rev() {
        if send.send(written(event)).await.is_err() {
            return;
        }
    }
    let mut alive = interval(ALIVE);
    let mut closing = shop.closing.clone();
    loop {
        let line = tokio::select! {
            event = told.recv() => match event {
                Ok(event) => written(&event),
                Err(broadcast::error::RecvError::Lagged(_)) => written(&("missed", "{}".into())),
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

fn written((event, data): &Told) -> Bytes {
    format!("event: {event}\ndata: {data}\n\n").into()
}

struct Stream(mpsc::Receiver<Bytes>);

impl http_body::Body for Stream {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.0.poll_recv(context).map(|line| line.map(|bytes| Ok(Frame::data(bytes))))
    }
}
