//! Slots: the maximum number of requests that an endpoint processes at once, and the number of
//! requests that may be prepared in advance. If the store is remote, preparing a request and
//! storing its answer takes long. So further requests are prepared meanwhile, as many as wait for a
//! slot only briefly.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Semaphore, SemaphorePermit};

/// Approximate maximum time that a prepared request waits for a slot.
const WAITING: Duration = Duration::from_secs(2);
/// Maximum number of requests in progress per slot.
const FOR_EACH: usize = 3;

/// The slots of an endpoint.
#[derive(Debug)]
pub struct Slots {
    free: Semaphore,
    most: usize,
    ahead: bool,
    /// Moving average of the time that a slot is held.
    held: Mutex<Option<Duration>>,
}

/// A slot, released when this is dropped.
#[derive(Debug)]
pub struct HeldSlot<'s> {
    slots: &'s Slots,
    since: Instant,
    _permit: SemaphorePermit<'s>,
}

impl Slots {
    /// Creates `max` slots; `prepares_ahead` states whether requests are prepared before a slot is
    /// free.
    #[must_use]
    pub fn new(most: usize, ahead: bool) -> Self {
        let most = most.max(1);
        Self { free: Semaphore::new(most), most, ahead, held: Mutex::default() }
    }

    /// Returns the number of requests that may be in progress now.
    #[must_use]
    pub fn requests(&self) -> usize {
        let held = *self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let ahead = held.filter(|_| self.ahead).map_or(0, |held| {
            let each = WAITING.as_secs_f64() / held.as_secs_f64().max(0.001);
            // In whole requests.
            (self.most as f64 * each) as usize
        });
        self.most + ahead.min((FOR_EACH - 1) * self.most)
    }

    /// Waits for a slot; `None` if no more requests may be sent.
    pub async fn take(&self) -> Option<HeldSlot<'_>> {
        let permit = self.free.acquire().await.ok()?;
        Some(HeldSlot { slots: self, since: Instant::now(), _permit: permit })
    }

    /// Rejects all further requests.
    pub fn close(&self) {
        self.free.close();
    }
}

impl Drop for HeldSlot<'_> {
    fn drop(&mut self) {
        let now = self.since.elapsed();
        let mut held = self.slots.held.lock().unwrap_or_else(PoisonError::into_inner);
        *held = Some(held.map_or(now, |before| (before * 3 + now) / 4));
    }
}
