//! `/v1/runs/events`: server-sent events. `run` and `spec` carry the same objects as `/v1/runs` and
//! `/v1/specs`. `missed` means that a slow reader missed some events and should reload.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::stream::{self, Stream, StreamExt};
use serde_json::{Value as Json, json};
use tokio::sync::broadcast::error::RecvError;

use super::HttpState;
use super::reply::HttpRefusal;
use crate::daemon::metrics::Counted;

/// Interval of keep-alive messages on a silent stream.
const ALIVE: Duration = Duration::from_secs(15);

/// `GET /v1/runs/events`
pub(super) async fn stream(
    State(shop): State<HttpState>,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, HttpRefusal> {
    let place = Arc::clone(&shop.streams).try_acquire_owned();
    let place = place.map_err(|_| HttpRefusal::busy("too many event streams are open"))?;
    let counted = Counted::of(&shop.house.metrics, |m| &m.streams);
    let heard = shop.house.told.subscribe();
    let runs = shop.house.status.borrow().runs.clone();
    let running = runs.into_iter().filter(|r| r.report.is_none()).rev();
    let running = running.map(|r| told("run", &r.to_json()));
    let state = (heard, shop.closing.clone(), (place, counted));
    let later = stream::unfold(state, |(mut heard, mut closing, held)| async move {
        let event = tokio::select! {
            event = heard.recv() => match event {
                Ok(event) => event,
                Err(RecvError::Lagged(_)) => told("missed", &json!({})),
                Err(RecvError::Closed) => return None,
            },
            () = super::ends(&mut closing) => return None,
        };
        Some((event, (heard, closing, held)))
    });
    let all = stream::iter(running.collect::<Vec<_>>()).chain(later).map(Ok);
    Ok(Sse::new(all).keep_alive(KeepAlive::new().interval(ALIVE).text("alive")))
}

/// Returns a server-sent event.
pub(in crate::daemon) fn told(event: &str, data: &Json) -> Event {
    Event::default().event(event).data(data.to_string())
}
