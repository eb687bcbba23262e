//! Shared handles of the daemon's tasks.

use std::sync::Arc;

use tokio::sync::{broadcast, mpsc, watch};

use super::Settings;
use super::clients::Clients;
use super::event::DaemonEvent;
use super::metrics::Metrics;
use super::query_uses::QueryUses;
use super::spending::ColumnSpending;
use super::status::DaemonStatus;
use crate::facts::Facts;

/// Server-sent event of a subscriber.
pub(super) type SentEvent = axum::response::sse::Event;

/// Handles that tasks use without going through the event loop.
#[derive(Clone)]
pub(super) struct DaemonContext {
    pub(super) facts: Arc<Facts>,
    pub(super) settings: Arc<Settings>,
    pub(super) events: mpsc::Sender<DaemonEvent>,
    pub(super) status: watch::Receiver<DaemonStatus>,
    pub(super) subscribers: broadcast::Sender<SentEvent>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) clients: Clients,
    pub(super) spending: Arc<ColumnSpending>,
    pub(super) uses: QueryUses,
}
