//! Slots limit the number of requests that a run sends at once, to all endpoints. If the store is remote,
//! preparing a request and storing its answer can be slow, so hqdl prepares further requests in
//! advance. The number of prepared requests is limited, so that each waits only briefly for a slot.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Semaphore, SemaphorePermit};

/// Approximate maximum time for which a prepared request waits for a slot.
const MAX_SLOT_WAIT: Duration = Duration::from_secs(2);
/// Maximum number of requests in progress per slot.
const REQUESTS_PER_SLOT: usize = 3;

/// The slots of a run.
#[derive(Debug)]
pub struct Slots {
    free: Semaphore,
    max: usize,
    prepares_ahead: bool,
    /// Moving average of the time for which a slot is held.
    average_hold: Mutex<Option<Duration>>,
}

/// A slot. Dropping the guard releases it.
#[derive(Debug)]
pub struct HeldSlot<'s> {
    slots: &'s Slots,
    acquired_at: Instant,
    _permit: SemaphorePermit<'s>,
}

impl Slots {
    /// Creates `max` slots; `prepares_ahead` states whether requests are prepared before a slot is
    /// free.
    #[must_use]
    pub fn new(max: usize, prepares_ahead: bool) -> Self {
        let max = max.max(1);
        Self { free: Semaphore::new(max), max, prepares_ahead, average_hold: Mutex::default() }
    }

    /// Returns the number of requests that may be in progress now.
    #[must_use]
    pub fn max_requests(&self) -> usize {
        let average_hold = *self.average_hold.lock().unwrap_or_else(PoisonError::into_inner);
        let ahead = average_hold.filter(|_| self.prepares_ahead).map_or(0, |held| {
            let per_slot = MAX_SLOT_WAIT.as_secs_f64() / held.as_secs_f64().max(0.001);
            (self.max as f64 * per_slot) as usize
        });
        self.max + ahead.min((REQUESTS_PER_SLOT - 1) * self.max)
    }

    /// Waits for a slot; `None` if no more requests may be sent.
    pub async fn acquire_slot(&self) -> Option<HeldSlot<'_>> {
        let permit = self.free.acquire().await.ok()?;
        Some(HeldSlot { slots: self, acquired_at: Instant::now(), _permit: permit })
    }

    /// Rejects all further requests.
    pub fn close(&self) {
        self.free.close();
    }
}

impl Drop for HeldSlot<'_> {
    fn drop(&mut self) {
        let now = self.acquired_at.elapsed();
        let mut average_hold =
            self.slots.average_hold.lock().unwrap_or_else(PoisonError::into_inner);
        *average_hold = Some(average_hold.map_or(now, |before| (before * 3 + now) / 4));
    }
}
