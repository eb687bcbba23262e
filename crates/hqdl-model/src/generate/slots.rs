//! Slots: how many requests may be with an endpoint at once, and how many may be
//! under way for that. Where the facts are far away, what a request needs of them
//! before and after it is with the endpoint takes long; so others are prepared
//! meanwhile, as many as wait for a slot for a moment only.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Semaphore, SemaphorePermit};

/// How long one that is prepared waits for a slot, about, at the most.
const WAITING: Duration = Duration::from_secs(2);
/// Requests under way for each slot, at the most.
const FOR_EACH: usize = 3;

/// Slots of an endpoint.
#[derive(Debug)]
pub struct Slots {
    free: Semaphore,
    most: usize,
    ahead: bool,
    /// How long one is held, about.
    held: Mutex<Option<Duration>>,
}

/// A slot, until this is dropped.
#[derive(Debug)]
pub struct HeldSlot<'s> {
    slots: &'s Slots,
    since: Instant,
    _permit: SemaphorePermit<'s>,
}

impl Slots {
    /// So many; `ahead` says whether requests are prepared before one is free.
    #[must_use]
    pub fn new(most: usize, ahead: bool) -> Self {
        let most = most.max(1);
        Self { free: Semaphore::new(most), most, ahead, held: Mutex::default() }
    }

    /// How many requests may be under way now, whatever they wait for.
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

    /// Waits for one; `None` when nothing more is to be sent.
    pub async fn take(&self) -> Option<HeldSlot<'_>> {
        let permit = self.free.acquire().await.ok()?;
        Some(HeldSlot { slots: self, since: Instant::now(), _permit: permit })
    }

    /// Nothing more is to be sent.
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
