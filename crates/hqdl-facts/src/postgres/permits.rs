//! Admission: decides how many requests may be sent to an endpoint and model, and when, based on
//! the requests that all machines have sent. The server decides in one round trip: it locks the
//! limits and counts the requests. Without limits it locks nothing.

use std::time::Duration;

use tokio::time::Instant;
use tokio_postgres::Row;

use crate::FactsError;
use crate::limits::{MAX_COUNTING_DELAY, MAX_PAUSE, MINUTE, Need, PerMinute};
use crate::postgres::Server;
use crate::postgres::connection::{BEGIN, WorkResult};
use crate::postgres::dictionary::Parameter;
use crate::postgres::limits::MAX_SENDING_DELAY;
use crate::throttle::LimiterKey;

/// How far ahead requests are admitted, in seconds.
const MAX_AHEAD: f64 = 0.25;

const LOCK_LIMITS: &str = "SELECT 1 FROM hqdl.rate WHERE name IN ($1, $2) ORDER BY name FOR UPDATE";

/// CTEs: `a` has the strictest limits that the endpoint reported to any API key, `l` the limits of
/// the endpoint and of the model, `k` the current usage of each limit, `w` how much of each limit
/// each request needs, `v` the time at which each request may be sent, and `g` the number of
/// admitted requests.
const ADMIT_REQUESTS: &str = "WITH c AS (SELECT extract(epoch FROM clock_timestamp())::double precision AS now),
  m AS (SELECT min(requests) AS requests, min(tokens) AS tokens FROM hqdl.rate_member
    WHERE endpoint = $2 AND session IN (SELECT id FROM hqdl.session WHERE expires_at > clock_timestamp())),
  a AS (SELECT min(r.requests) AS requests, min(r.tokens) AS tokens FROM hqdl.rate AS r CROSS JOIN c
    WHERE (r.name = $4 OR starts_with(r.name, $4 || E'\\n')) AND c.now - r.heard_at < 86400),
  h AS (SELECT r.name, c.now, r.wait_until, r.requests_due, r.tokens_due,
      CASE WHEN r.name = $4 THEN a.requests END AS requests,
      CASE WHEN r.name = $4 THEN a.tokens END AS tokens
    FROM hqdl.rate AS r CROSS JOIN c CROSS JOIN a WHERE r.name IN ($2, $4)),
  l AS (SELECT h.name, h.now, h.wait_until, greatest(h.requests_due, h.now) AS requests_due,
      greatest(h.tokens_due, h.now) AS tokens_due,
      greatest(CASE WHEN h.name = $2 THEN least(h.requests, m.requests, $7) ELSE h.requests END, 1) AS requests,
      greatest(CASE WHEN h.name = $2 THEN least(h.tokens, m.tokens, $8) ELSE h.tokens END, 1) AS tokens,
      (CASE WHEN h.name = $2 THEN least(h.requests, m.requests, $7) ELSE h.requests END) IS NOT NULL AS few,
      (CASE WHEN h.name = $2 THEN least(h.tokens, m.tokens, $8) ELSE h.tokens END) IS NOT NULL AS short
    FROM h CROSS JOIN m),
  k AS (SELECT l.name, count(s.id) AS sent, coalesce(sum(s.tokens), 0) AS tokens, min(s.leaves_at) AS first
    FROM l LEFT JOIN hqdl.sent AS s ON s.endpoint = $2 AND s.leaves_at > l.now
      AND (l.name = $2 OR s.model = $3) WHERE l.few OR l.short GROUP BY l.name),
  u AS (SELECT id, likely, most, n FROM unnest($1::bigint[], $5::bigint[], $6::bigint[])
    WITH ORDINALITY AS t (id, likely, most, n)),
  w AS (SELECT u.n, l.name, sum(u.most) OVER o AS most,
      sum(least(u.likely, l.tokens)) OVER o AS likely, least(u.likely, l.tokens) AS own
    FROM u CROSS JOIN l WINDOW o AS (PARTITION BY l.name ORDER BY u.n)),
  x AS (SELECT w.n, greatest(l.now, l.wait_until,
        CASE WHEN l.few THEN l.requests_due + (w.n - 1) * 60.0 / l.requests END,
        CASE WHEN l.short THEN l.tokens_due + (w.likely - w.own)::double precision * 60.0 / l.tokens END) AS turn,
      NOT (l.few AND k.sent + w.n > l.requests)
        AND NOT (l.short AND k.tokens + w.most > l.tokens AND NOT (k.tokens = 0 AND w.n = 1)) AS fits,
      coalesce(k.first, l.now + 1) AS first
    FROM w JOIN l ON l.name = w.name LEFT JOIN k ON k.name = l.name),
  v AS (SELECT n, max(turn) AS turn, bool_and(fits) AS fits, max(CASE WHEN NOT fits THEN first END) AS again
    FROM x GROUP BY n),
  f AS (SELECT min(v.n) AS n FROM v CROSS JOIN c WHERE NOT v.fits OR v.turn > c.now + $9),
  g AS (SELECT CASE WHEN $11 OR NOT EXISTS (SELECT 1 FROM l WHERE few OR short)
      THEN coalesce((SELECT n FROM f) - 1, (SELECT count(*) FROM u)) ELSE 0 END AS n),
  entered AS (INSERT INTO hqdl.sent (id, endpoint, model, tokens, leaves_at)
    SELECT u.id, $2, $3, u.most, v.turn + $10 FROM u JOIN v ON v.n = u.n CROSS JOIN g WHERE u.n <= g.n
    ON CONFLICT (id) DO NOTHING),
  paced AS (UPDATE hqdl.rate AS r SET
      requests_due = CASE WHEN l.few THEN l.requests_due + g.n * 60.0 / l.requests ELSE r.requests_due END,
      tokens_due = CASE WHEN l.short THEN l.tokens_due + w.likely::double precision * 60.0 / l.tokens
        ELSE r.tokens_due END
    FROM l, g, w WHERE r.name = l.name AND w.name = l.name AND w.n = g.n AND (l.few OR l.short))
  SELECT c.now, EXISTS (SELECT 1 FROM l WHERE few OR short),
    coalesce((SELECT array_agg(v.turn ORDER BY v.n) FROM v WHERE v.n <= g.n), '{}'),
    (SELECT coalesce(v.again, v.turn - $9) FROM v WHERE v.n = g.n + 1)
  FROM c CROSS JOIN g";

/// Result of an admission query.
pub(super) struct Admission {
    /// Tickets of the admitted requests, each with the time at which it may be sent.
    pub(super) admitted: Vec<(i64, Instant)>,
    /// Time until the next waiting request may be admitted.
    pub(super) retry_after: Duration,
    /// Whether any limits apply.
    pub(super) is_limited: bool,
}

impl Server {
    /// Admits as many of the waiting requests, in order, as may be sent soon under the limits of
    /// all processes.
    pub(super) async fn grant_permits(
        &self,
        limiter_key: &LimiterKey,
        own: PerMinute,
        needs: &[Need],
        is_limited: bool,
    ) -> Result<Admission, FactsError> {
        let admission = self.query_permit_delays(limiter_key, own, needs, is_limited).await?;
        if admission.is_limited && !is_limited {
            return self.query_permit_delays(limiter_key, own, needs, true).await;
        }
        Ok(admission)
    }

    async fn query_permit_delays(
        &self,
        limiter_key: &LimiterKey,
        own: PerMinute,
        needs: &[Need],
        locked: bool,
    ) -> Result<Admission, FactsError> {
        let ids: Vec<i64> = needs.iter().map(|_| fastrand::i64(1..)).collect();
        let likely: Vec<i64> = needs.iter().map(|need| need.likely.cast_signed()).collect();
        let most: Vec<i64> = needs.iter().map(|need| need.max.cast_signed()).collect();
        let (requests, tokens) = (own.requests.map(i64::from), own.tokens.map(i64::from));
        let (name, counts) = (
            limiter_key.limiter_name(),
            (MINUTE + MAX_COUNTING_DELAY + MAX_SENDING_DELAY).as_secs_f64(),
        );
        let values: [Parameter<'_>; 11] = [
            &ids,
            &limiter_key.endpoint,
            &limiter_key.model,
            &name,
            &likely,
            &most,
            &requests,
            &tokens,
            &MAX_AHEAD,
            &counts,
            &locked,
        ];
        let names: [Parameter<'_>; 2] = [&limiter_key.endpoint, &name];
        let (values, names) = (&values, &names);
        let row = self.link.with_client(|client| async move {
            let (lock, turns) = tokio::try_join!(
                client.prepare_cached(LOCK_LIMITS),
                client.prepare_cached(ADMIT_REQUESTS)
            )?;
            if !locked {
                return Ok(client.query_one(&turns, values).await?);
            }
            let (begun, held, row, committed) = tokio::join!(
                biased;
                client.batch_execute(BEGIN),
                client.query(&lock, names),
                client.query_one(&turns, values),
                client.batch_execute("COMMIT")
            );
            begun?;
            held?;
            let row = row?;
            committed?;
            Ok(row)
        });
        let row = row.await?;
        let received_at = Instant::now();
        let read = |row: &Row| -> WorkResult<(f64, bool, Vec<f64>, Option<f64>)> {
            Ok((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?, row.try_get(3)?))
        };
        let (now, is_limited, at, next) = self.read_row(&row, read)?;
        // Measure times from the arrival of the reply, so that a request may be sent slightly late
        // but never early.
        let max_wait = (MAX_PAUSE + MINUTE * 2).as_secs_f64();
        let from_now = |at: f64| Duration::from_secs_f64((at - now).clamp(0.0, max_wait));
        let admitted =
            ids.into_iter().zip(at).map(|(id, at)| (id, received_at + from_now(at))).collect();
        let retry_after = from_now(next.unwrap_or(now)).max(Duration::from_millis(5));
        Ok(Admission { admitted, retry_after, is_limited })
    }
}
