//! What clients wait for: each can be told to end.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

/// The interrupts of all that clients have running.
#[derive(Debug, Clone, Default)]
pub(super) struct Clients(Arc<Mutex<ClientTable>>);

#[derive(Debug, Default)]
struct ClientTable {
    next: u64,
    ending: bool,
    all: HashMap<u64, watch::Sender<bool>>,
}

impl Clients {
    /// Something begins for a client. When what is returned is dropped, its
    /// interrupt becomes true: the client has gone, or needs it no more.
    pub(super) fn begin(&self) -> (Served, watch::Receiver<bool>) {
        let mut table = self.table();
        let (send, receive) = watch::channel(table.ending);
        table.next += 1;
        let id = table.next;
        table.all.insert(id, send);
        drop(table);
        (Served { clients: self.clone(), id }, receive)
    }

    /// Interrupts everything, and what comes later.
    pub(super) fn end_all(&self) {
        let mut table = self.table();
        table.ending = true;
        table.all.values().for_each(|send| {
            send.send_replace(true);
        });
    }

    /// How many are served.
    pub(super) fn count(&self) -> usize {
        self.table().all.len()
    }

    fn table(&self) -> MutexGuard<'_, ClientTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One that is served.
#[derive(Debug)]
pub(super) struct Served {
    clients: Clients,
    id: u64,
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Some(send) = self.clients.table().all.remove(&self.id) {
            send.send_replace(true);
        }
    }
}
