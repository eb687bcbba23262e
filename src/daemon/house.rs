//! What everybody who works for the daemon may use beside the loop.

use std::sync::Arc;

use tokio::sync::{broadcast, mpsc, watch};

use super::Settings;
use super::clients::Clients;
use super::event::DaemonEvent;
use super::metrics::Metrics;
use super::spending::ColumnSpending;
use super::status::DaemonStatus;
use crate::facts::Facts;

/// What subscribers are told, as it is sent.
pub(super) type SentEvent = axum::response::sse::Event;

/// All that others may use beside the loop.
#[derive(Clone)]
pub(super) struct DaemonContext {
    pub(super) facts: Arc<Facts>,
    pub(super) settings: Arc<Settings>,
    pub(super) events: mpsc::Sender<DaemonEvent>,
    pub(super) status: watch::Receiver<DaemonStatus>,
    pub(super) told: broadcast::Sender<SentEvent>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) clients: Clients,
    pub(super) spent: Arc<ColumnSpending>,
}
