//! Tracks the work in progress for clients, so that the daemon can interrupt it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

/// Interrupt handles of all work in progress for clients.
#[derive(Debug, Clone, Default)]
pub(super) struct Clients(Arc<Mutex<ClientTable>>);

#[derive(Debug, Default)]
struct ClientTable {
    next: u64,
    is_ending: bool,
    interrupts: HashMap<u64, watch::Sender<bool>>,
}

impl Clients {
    /// Registers work for a client. Returns a guard and the work's interrupt. Dropping the guard
    /// sets the interrupt, so the work ends when the client disconnects.
    pub(super) fn begin_work(&self) -> (ClientGuard, watch::Receiver<bool>) {
        let mut table = self.lock_table();
        let (send, receive) = watch::channel(table.is_ending);
        table.next += 1;
        let id = table.next;
        table.interrupts.insert(id, send);
        drop(table);
        (ClientGuard { clients: self.clone(), id }, receive)
    }

    /// Interrupts all work, including work that is registered later.
    pub(super) fn interrupt_all_work(&self) {
        let mut table = self.lock_table();
        table.is_ending = true;
        table.interrupts.values().for_each(|send| {
            send.send_replace(true);
        });
    }

    /// Returns the number of guards in use. A client can hold several.
    pub(super) fn count(&self) -> usize {
        self.lock_table().interrupts.len()
    }

    fn lock_table(&self) -> MutexGuard<'_, ClientTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Guard of one client's work.
#[derive(Debug)]
pub(super) struct ClientGuard {
    clients: Clients,
    id: u64,
}

impl Drop for ClientGuard {
    fn drop(&mut self) {
        if let Some(send) = self.clients.lock_table().interrupts.remove(&self.id) {
            send.send_replace(true);
        }
    }
}
