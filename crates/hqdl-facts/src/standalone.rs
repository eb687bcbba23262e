//! Rate limits that are not shared with other processes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::FactsError;
use crate::limits::{Limiter, Need, PerMinute, RateLimitHint};
use crate::throttle::{LimiterKey, RateLimits, RemainingWait, Throttle, TicketFuture, WaitFuture};

/// Limits of one model of one endpoint, for this process only.
#[derive(Debug, Default)]
struct StandaloneLimits {
    limiter: Limiter,
    last_number: AtomicU64,
}

impl StandaloneLimits {
    fn next_number(&self) -> u64 {
        self.last_number.fetch_add(1, Ordering::Relaxed) + 1
    }
}

impl RateLimits for StandaloneLimits {
    fn add_member(&self, _: &LimiterKey, limits: PerMinute) -> Result<u64, FactsError> {
        let member = self.next_number();
        self.limiter.add_member(member, limits);
        Ok(member)
    }

    fn remove_member(&self, _: &LimiterKey, member: u64) {
        self.limiter.remove_member(member);
    }

    fn acquire_ticket<'a>(&'a self, _: &'a LimiterKey, need: Need) -> TicketFuture<'a> {
        Box::pin(async move {
            let ticket = self.next_number();
            self.limiter.acquire_permit(ticket, need).await;
            ticket
        })
    }

    fn mark_sent(&self, ticket: u64) {
        self.limiter.mark_sent(ticket);
    }

    fn finish_ticket(&self, ticket: u64, used: Option<u64>) {
        match used {
            Some(used) => self.limiter.reconcile_usage(ticket, used),
            None => self.limiter.cancel_request(ticket),
        }
    }

    fn apply_hint(&self, _: &LimiterKey, hint: RateLimitHint) {
        self.limiter.apply_hint(hint);
    }

    fn remaining_wait<'a>(&'a self, _: &'a LimiterKey) -> WaitFuture<'a> {
        let (pause, next_permit) =
            (self.limiter.observed_limits().wait, self.limiter.time_to_next_permit());
        Box::pin(std::future::ready(RemainingWait::new(pause, next_permit)))
    }
}

impl Throttle {
    /// Creates a throttle with limits that are not shared.
    #[must_use]
    pub fn standalone(limits: PerMinute) -> Self {
        let (standalone, limiter_key) = (StandaloneLimits::default(), LimiterKey::default());
        let member = standalone.add_member(&limiter_key, limits).unwrap_or_default();
        Self { limits: Arc::new(standalone), limiter_key, member }
    }
}
