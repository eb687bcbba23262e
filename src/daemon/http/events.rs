//! Sends the server-sent events of `/v1/runs/events`. The events `run` and `spec` contain the same
//! objects as `/v1/runs` and `/v1/specs`. The event `missed` means that the client read too slowly,
//! missed some events and should reload.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::stream::{self, Stream, StreamExt};
use serde_json::{Value as Json, json};
use tokio::sync::broadcast::error::RecvError;

use super::HttpState;
use super::reply::HttpError;
use crate::daemon::metrics::GaugeGuard;

/// Interval of keep-alive messages on a silent stream.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(15);

/// Handles `GET /v1/runs/events`.
pub(super) async fn stream_events(
    State(state): State<HttpState>,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, HttpError> {
    let permit = Arc::clone(&state.stream_permits).try_acquire_owned();
    let permit = permit.map_err(|_| HttpError::server_busy("too many event streams are open"))?;
    let counted = GaugeGuard::increment(&state.context.metrics, |m| &m.streams);
    let events = state.context.subscribers.subscribe();
    let runs = state.context.status.borrow().runs.clone();
    let running = runs.into_iter().filter(|r| r.report.is_none()).rev();
    let running = running.map(|r| build_sse_event("run", &r.to_json()));
    let stream_state = (events, state.closing.clone(), (permit, counted));
    let later = stream::unfold(stream_state, |(mut events, mut closing, guards)| async move {
        let event = tokio::select! {
            event = events.recv() => match event {
                Ok(event) => event,
                Err(RecvError::Lagged(_)) => build_sse_event("missed", &json!({})),
                Err(RecvError::Closed) => return None,
            },
            () = super::wait_for_shutdown(&mut closing) => return None,
        };
        Some((event, (events, closing, guards)))
    });
    let all = stream::iter(running.collect::<Vec<_>>()).chain(later).map(Ok);
    Ok(Sse::new(all).keep_alive(KeepAlive::new().interval(KEEP_ALIVE_INTERVAL).text("alive")))
}

/// Returns a server-sent event.
pub(in crate::daemon) fn build_sse_event(event: &str, data: &Json) -> Event {
    Event::default().event(event).data(data.to_string())
}
