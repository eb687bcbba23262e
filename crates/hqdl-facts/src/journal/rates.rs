//! Rate limits in the journal: every request of the last minute is a row, so all processes share
//! the limits, and a restarted process does not exceed them.
//!
//! Times are milliseconds since 1970. If the clock is set back, a stored time may be too far in the
//! future. Such a time is capped at the longest possible wait from now, so that no request is sent
//! too early.

#[cfg(test)]
mod simulation;

use std::time::{Duration, SystemTime};

use rusqlite::{OptionalExtension, params};

use super::ALIVE;
use crate::FactsError;
use crate::journal::Journal;
use crate::limits::{
    MAX_COUNTING_DELAY, MAX_PAUSE, MINUTE, Need, PerMinute, REQUEST_BURST, RateLimitHint,
    TOKEN_BURST,
};
use crate::throttle::LimiterKey;

/// How long a reported limit applies unless the endpoint reports it again.
pub(crate) const REMEMBERED: Duration = Duration::from_secs(24 * 60 * 60);
/// Maximum delay between permit and sending; a request sent later is counted again.
pub(crate) const MAX_SENDING_DELAY: Duration = Duration::from_millis(500);

#[derive(Debug, Clone)]
pub(crate) struct PermitRequest {
    pub(crate) limiter_key: LimiterKey,
    pub(crate) need: Need,
    /// Id of the request's row.
    pub(crate) ticket: i64,
}

/// State of a limiter in the journal.
struct LimiterState {
    name: String,
    /// Model whose requests count; `None` for all models.
    model: Option<String>,
    limits: PerMinute,
    /// End of the pause that the endpoint requested.
    wait_until: f64,
    requests_due: f64,
    tokens_due: f64,
}

impl Journal {
    /// Grants a permit, or returns the minimum time that the request must still wait.
    pub(crate) fn try_acquire(
        &self,
        request: &PermitRequest,
        now: i64,
    ) -> rusqlite::Result<Option<Duration>> {
        let c = self.connection();
        self.prune_requests_and_cap_times(now)?;
        let (key, need) = (&request.limiter_key, request.need);
        let limiters = self.read_limiters(key, now)?;
        let at = now as f64;
        let mut earliest = at;
        for limiter in &limiters {
            let next_free_time =
                self.compute_next_free_time(&key.endpoint, limiter, need.max, now)?;
            let PerMinute { requests, tokens } = limiter.limits;
            for time in [
                Some(limiter.wait_until),
                next_free_time,
                requests.map(|n| limiter.requests_due - compute_burst_millis(n, REQUEST_BURST)),
                tokens.map(|n| limiter.tokens_due - compute_burst_millis(n, TOKEN_BURST)),
            ] {
                earliest = earliest.max(time.unwrap_or(at));
            }
        }
        if earliest > at {
            return Ok(Some(Duration::from_secs_f64((earliest - at) / 1000.0)));
        }
        self.store_request(request, now, MAX_SENDING_DELAY)?;
        for LimiterState { name, limits, requests_due, tokens_due, .. } in &limiters {
            if *limits == PerMinute::default() {
                continue;
            }
            let advance = |due: f64, limit: Option<u32>, n: u64| {
                limit.map_or(due, |limit| due.max(at) + compute_interval_millis(n, limit))
            };
            c.prepare_cached(
                "INSERT INTO rate_limit (name, heard_at, requests_due, tokens_due, paced_requests, paced_tokens)
                 VALUES (?1, 0, ?2, ?3, ?4, ?5)
                 ON CONFLICT DO UPDATE SET requests_due = ?2, tokens_due = ?3, paced_requests = ?4,
                   paced_tokens = ?5",
            )?
            .execute(params![
                name,
                advance(*requests_due, limits.requests, 1),
                advance(*tokens_due, limits.tokens, need.likely),
                limits.requests,
                limits.tokens
            ])?;
        }
        Ok(None)
    }

    /// Counts a request again because it was sent later than its permit allowed.
    pub(crate) fn mark_sent_late(&self, request: &PermitRequest, now: i64) -> rusqlite::Result<()> {
        self.store_request(request, now, Duration::ZERO)
    }

    fn store_request(
        &self,
        PermitRequest { limiter_key, need, ticket }: &PermitRequest,
        now: i64,
        delay: Duration,
    ) -> rusqlite::Result<()> {
        self.connection()
            .prepare_cached(
                "INSERT OR REPLACE INTO sent_lately (id, endpoint, model, tokens, leaves_at)
                 VALUES (?1, ?2, ?3, ?4, ?5)",
            )?
            .execute(params![
                ticket,
                limiter_key.endpoint,
                limiter_key.model,
                need.max,
                now + as_millis(MINUTE + MAX_COUNTING_DELAY + delay)
            ])
            .map(drop)
    }

    /// Records the tokens that an answered request used. The request counts toward the limit for at
    /// most another minute.
    pub(crate) fn reconcile_usage(
        &self,
        request: &PermitRequest,
        used: u64,
        now: i64,
    ) -> rusqlite::Result<()> {
        let c = self.connection();
        c.prepare_cached(
            "UPDATE sent_lately SET tokens = ?2, leaves_at = min(leaves_at, ?3) WHERE id = ?1",
        )?
        .execute(params![request.ticket, used, now + as_millis(MINUTE)])?;
        for limiter in self.read_limiters(&request.limiter_key, now)? {
            let Some(limit) = limiter.limits.tokens else { continue };
            let change = compute_interval_millis(used, limit)
                - compute_interval_millis(request.need.likely, limit);
            c.prepare_cached("UPDATE rate_limit SET tokens_due = tokens_due + ?2 WHERE name = ?1")?
                .execute(params![limiter.name, change])?;
        }
        Ok(())
    }

    /// Deletes the row of a request that will not be sent.
    pub(crate) fn cancel_request(&self, ticket: i64) -> rusqlite::Result<()> {
        let c = self.connection();
        c.prepare_cached("DELETE FROM sent_lately WHERE id = ?1")?.execute([ticket]).map(drop)
    }

    /// Adds a member, with its limits, to an endpoint's limiter.
    pub(crate) fn add_member(
        &self,
        member: u64,
        endpoint: &str,
        limits: PerMinute,
    ) -> Result<(), FactsError> {
        self.transact_with_connection(|c| {
            self.register_session()?;
            let sql = "INSERT INTO rate_member (session, member, endpoint, requests, tokens)
                       VALUES (?1, ?2, ?3, ?4, ?5)";
            let values = params![self.session.id, member, endpoint, limits.requests, limits.tokens];
            c.execute(sql, values).map(drop)
        })
    }

    pub(crate) fn remove_member(&self, member: u64) -> rusqlite::Result<()> {
        let sql = "DELETE FROM rate_member WHERE session = ?1 AND member = ?2";
        self.connection().execute(sql, params![self.session.id, member]).map(drop)
    }

    /// Stores the limits that an endpoint reported, under the limiter's name.
    pub(crate) fn store_limits(
        &self,
        name: &str,
        hint: RateLimitHint,
        now: i64,
    ) -> rusqlite::Result<()> {
        let c = self.connection();
        let until = hint.wait.map(|wait| now + as_millis(wait.min(MAX_PAUSE)));
        c.prepare_cached("DELETE FROM rate_limit WHERE heard_at BETWEEN 1 AND ?1")?
            .execute([now - as_millis(REMEMBERED)])?;
        c.prepare_cached(
            "INSERT INTO rate_limit (name, requests, tokens, wait_until, heard_at)
             VALUES (?1, ?2, ?3, ?4, ?5)
             ON CONFLICT DO UPDATE SET requests = coalesce(excluded.requests, requests),
               tokens = coalesce(excluded.tokens, tokens), heard_at = excluded.heard_at,
               wait_until = max(coalesce(wait_until, 0), coalesce(excluded.wait_until, 0))",
        )?
        .execute(params![name, hint.limits.requests, hint.limits.tokens, until, now])
        .map(drop)
    }

    /// Returns the rest of the pause that an endpoint requested; `None` if there is no pause.
    pub(crate) fn find_remaining_pause(
        &self,
        key: &LimiterKey,
    ) -> Result<Option<Duration>, FactsError> {
        let sql = "SELECT max(wait_until) FROM rate_limit WHERE name IN (?1, ?2)";
        let now = current_millis();
        let until: Option<i64> = self.with_connection(|c| {
            c.prepare_cached(sql)?.query_row([&key.endpoint, &key.limiter_name()], |r| r.get(0))
        })?;
        let wait = until.and_then(|until| u64::try_from(until - now).ok());
        Ok(wait.filter(|wait| *wait > 0).map(|wait| Duration::from_millis(wait).min(MAX_PAUSE)))
    }

    /// Returns the two limiters of a request. The endpoint's limiter has the strictest limits of
    /// its members and applies to all models. The model's limiter has the strictest limits that the
    /// endpoint reported for any API key.
    fn read_limiters(&self, key: &LimiterKey, now: i64) -> rusqlite::Result<[LimiterState; 2]> {
        let c = self.connection();
        let sql = format!(
            "SELECT min(requests), min(tokens) FROM rate_member WHERE endpoint = ?1 AND {ALIVE}"
        );
        let per_minute =
            |r: &rusqlite::Row<'_>| Ok(PerMinute { requests: r.get(0)?, tokens: r.get(1)? });
        let members = c.prepare_cached(&sql)?.query_row([&key.endpoint], per_minute)?;
        // The strictest of the limits that the endpoint last reported for each API key.
        let sql = "SELECT min(requests), min(tokens) FROM rate_limit
                   WHERE name >= ?1 || char(10) AND name < ?1 || char(11) AND heard_at > ?2";
        let since = now - as_millis(REMEMBERED);
        let reported =
            c.prepare_cached(sql)?.query_row(params![key.limiter_name(), since], per_minute)?;
        let read = |name: String, model: Option<String>, own: PerMinute| -> rusqlite::Result<_> {
            let sql = "SELECT iif(heard_at > ?2, requests, NULL), iif(heard_at > ?2, tokens, NULL),
                         coalesce(wait_until, 0), requests_due, tokens_due, paced_requests, paced_tokens
                       FROM rate_limit WHERE name = ?1";
            let state = c
                .prepare_cached(sql)?
                .query_row(params![name, since], |r| {
                    let limits = own.stricter_limits(per_minute(r)?);
                    Ok(LimiterState {
                        name: name.clone(),
                        model: model.clone(),
                        limits,
                        wait_until: r.get(2)?,
                        requests_due: scale_pace(r.get(3)?, r.get(5)?, limits.requests, now),
                        tokens_due: scale_pace(r.get(4)?, r.get(6)?, limits.tokens, now),
                    })
                })
                .optional()?;
            let (wait_until, requests_due, tokens_due) = (0.0, 0.0, 0.0);
            let new =
                LimiterState { name, model, limits: own, wait_until, requests_due, tokens_due };
            Ok(state.unwrap_or(new))
        };
        Ok([
            read(key.endpoint.clone(), None, members)?,
            read(key.limiter_name(), Some(key.model.clone()), reported)?,
        ])
    }

    /// Returns the earliest time at which a request fits within the per-minute limit; `None` if it
    /// fits now. A request larger than the limit is sent alone, once no other request counts.
    fn compute_next_free_time(
        &self,
        endpoint: &str,
        limiter: &LimiterState,
        max: u64,
        now: i64,
    ) -> rusqlite::Result<Option<f64>> {
        let PerMinute { requests, tokens } = limiter.limits;
        if limiter.limits == PerMinute::default() {
            return Ok(None);
        }
        let c = self.connection();
        let model_filter =
            if limiter.model.is_some() { "AND model = ?3" } else { "AND ?3 IS NULL" };
        let (count, sum, first): (u64, u64, Option<f64>) = c
            .prepare_cached(&format!(
                "SELECT count(*), coalesce(sum(tokens), 0), min(leaves_at) FROM sent_lately
                 WHERE endpoint = ?1 AND leaves_at > ?2 {model_filter}"
            ))?
            .query_row(params![endpoint, now, limiter.model], |r| {
                Ok((r.get(0)?, r.get(1)?, r.get(2)?))
            })?;
        let no_request_left = requests.is_some_and(|n| count >= u64::from(n.max(1)));
        let no_tokens_left =
            tokens.is_some_and(|n| sum > 0 && sum.saturating_add(max) > u64::from(n));
        Ok(first.filter(|_| no_request_left || no_tokens_left))
    }

    /// Deletes requests that no longer count against the rate limits. Caps times that are too far
    /// in the future because the clock was set back.
    fn prune_requests_and_cap_times(&self, now: i64) -> rusqlite::Result<()> {
        let c = self.connection();
        c.prepare_cached("DELETE FROM sent_lately WHERE leaves_at <= ?1")?.execute([now])?;
        let latest = now + as_millis(MINUTE + MAX_COUNTING_DELAY + MAX_SENDING_DELAY);
        c.prepare_cached("UPDATE sent_lately SET leaves_at = ?1 WHERE leaves_at > ?1")?
            .execute([latest])?;
        let longest = now + as_millis(MAX_PAUSE);
        c.prepare_cached(
            "UPDATE rate_limit SET wait_until = min(wait_until, ?1), requests_due = min(requests_due, ?2),
               tokens_due = min(tokens_due, ?2)
             WHERE wait_until > ?1 OR requests_due > ?2 OR tokens_due > ?2",
        )?
        .execute(params![longest, latest])
        .map(drop)
    }
}

/// Scales the remaining wait to a changed limit.
fn scale_pace(due: f64, before: Option<u32>, limit: Option<u32>, now: i64) -> f64 {
    let now = now as f64;
    match (before, limit) {
        (Some(before), Some(limit)) if due > now => {
            now + (due - now) * f64::from(before.max(1)) / f64::from(limit.max(1))
        }
        (Some(_), Some(_)) => due,
        _ => now,
    }
}

/// Returns the number of milliseconds that `n` requests or tokens take under a limit, at most a
/// minute.
fn compute_interval_millis(n: u64, limit: u32) -> f64 {
    as_millis(MINUTE) as f64 * (n as f64 / f64::from(limit.max(1))).min(1.0)
}

/// Returns how many milliseconds early a request may be sent, to make up for late wake-ups.
fn compute_burst_millis(limit: u32, divisor: u32) -> f64 {
    compute_interval_millis(u64::from((limit / divisor).max(1)) - 1, limit)
}

/// Returns the system time in milliseconds since 1970.
pub(crate) fn current_millis() -> i64 {
    as_millis(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default())
}

pub(crate) fn as_millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
