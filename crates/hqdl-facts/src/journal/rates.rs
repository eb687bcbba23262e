//! The journal's side of rate limits: what was sent within the last minute, and
//! what endpoints said of their limits. They outlive a process that is killed, so
//! that no restart goes beyond them.

use std::time::{Duration, SystemTime};

use rusqlite::{OptionalExtension, params};

use crate::FactsError;
use crate::ids::ReservationId;
use crate::journal::Journal;
use crate::limits::{MAX_COUNTING_DELAY, MINUTE, PerMinute, RateLimitHint};
use crate::throttle::LimiterKey;

/// How long what an endpoint said is remembered when it does not say it again.
pub(crate) const REMEMBERED: Duration = Duration::from_secs(24 * 60 * 60);

impl Journal {
    /// A request is about to leave for a place, with so many tokens at the most.
    pub(crate) fn store_sent_request(
        &self,
        reservation: ReservationId,
        place: &LimiterKey,
        tokens: u64,
    ) -> rusqlite::Result<()> {
        let (c, now) = (self.connection(), millis());
        // With what was noted under the same number and never sent.
        c.prepare_cached("DELETE FROM sent_lately WHERE leaves_at <= ?1 OR reservation = ?2")?
            .execute(params![now, reservation])?;
        let leaves = now + part(MINUTE + MAX_COUNTING_DELAY);
        c.prepare_cached(
            "INSERT INTO sent_lately (endpoint, model, tokens, leaves_at, reservation)
             VALUES (?1, ?2, ?3, ?4, ?5)",
        )?
        .execute(params![place.endpoint, place.model, tokens, leaves, reservation])
        .map(drop)
    }

    /// A request was answered, or failed; how many tokens it used, when that is
    /// known. It counts for a minute from now, at the longest.
    pub(crate) fn note_answered(
        &self,
        reservation: ReservationId,
        used: Option<u64>,
    ) -> rusqlite::Result<()> {
        self.connection()
            .prepare_cached(
                "UPDATE sent_lately SET reservation = NULL, tokens = coalesce(?2, tokens),
                   leaves_at = min(leaves_at, ?3) WHERE reservation = ?1",
            )?
            .execute(params![reservation, used, millis() + part(MINUTE)])
            .map(drop)
    }

    /// What counts of an endpoint, or of one of its models: the tokens of each
    /// request, and how long it counts still.
    pub(crate) fn recent_requests(
        &self,
        endpoint: &str,
        model: Option<&str>,
    ) -> Result<Vec<(u64, Duration)>, FactsError> {
        let now = millis();
        self.run(|c| {
            c.prepare_cached(
                "SELECT tokens, leaves_at FROM sent_lately
                 WHERE endpoint = ?1 AND (?2 IS NULL OR model = ?2) AND leaves_at > ?3",
            )?
            .query_map(params![endpoint, model, now], |r| {
                Ok((r.get(0)?, duration(r.get::<_, i64>(1)? - now)))
            })?
            .collect()
        })
    }

    /// Writes down what an endpoint said, by the name of the limiter that heard it.
    pub(crate) fn store_limits(&self, name: &str, hint: RateLimitHint) -> rusqlite::Result<()> {
        let (c, now) = (self.connection(), millis());
        c.prepare_cached("DELETE FROM rate_limit WHERE heard_at <= ?1")?
            .execute([now - part(REMEMBERED)])?;
        let until = hint.wait.map(|wait| now + part(wait));
        c.prepare_cached(
            "INSERT OR REPLACE INTO rate_limit (name, requests, tokens, wait_until, heard_at)
             VALUES (?1, ?2, ?3, ?4, ?5)",
        )?
        .execute(params![name, hint.limits.requests, hint.limits.tokens, until, now])
        .map(drop)
    }

    /// What an endpoint said, by the name of the limiter that heard it.
    pub(crate) fn stored_limits(&self, name: &str) -> Result<RateLimitHint, FactsError> {
        let now = millis();
        let heard = self.run(|c| {
            c.query_row(
                "SELECT requests, tokens, wait_until FROM rate_limit WHERE name = ?1 AND heard_at > ?2",
                params![name, now - part(REMEMBERED)],
                |r| {
                    let limits = PerMinute { requests: r.get(0)?, tokens: r.get(1)? };
                    let wait = r.get::<_, Option<i64>>(2)?.map(|until| duration(until - now));
                    Ok(RateLimitHint { limits, wait: wait.filter(|w| !w.is_zero()) })
                },
            )
            .optional()
        })?;
        Ok(heard.unwrap_or_default())
    }
}

/// Milliseconds since 1970, by the clock on the wall.
pub(crate) fn millis() -> i64 {
    part(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default())
}

pub(crate) fn part(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

fn duration(millis: i64) -> Duration {
    Duration::from_millis(u64::try_from(millis).unwrap_or(0))
}
