//! Turns: how many requests may go to a place, and when, by what all machines have
//! sent there.

use std::time::Duration;

use super::Server;
use super::limits::LATE;
use super::link::Worked;
use super::words::Value;
use crate::facts::FactsError;
use crate::facts::throttle::Place;
use crate::limits::{MINUTE, Need, ON_ITS_WAY, PerMinute};

/// How far ahead turns are given, in seconds.
const AHEAD: f64 = 0.25;
/// How long those who cannot be admitted wait before they ask again, at the most.
const LOOK_EVERY: f64 = 1.0;
/// How long an endpoint's limits are remembered when it does not say them again.
const REMEMBERED: f64 = 24.0 * 60.0 * 60.0;

/// Limits and pace of one name, as the server has them.
struct Rate {
    limits: PerMinute,
    wait_until: f64,
    requests_due: f64,
    tokens_due: f64,
    /// Requests and tokens that count now, and when the first of them does no more.
    sent: u64,
    tokens: u64,
    first_leaves: f64,
}

impl Rate {
    /// When a request may go, as far as is known: now or a moment ahead; and, where
    /// it may not yet, when to ask again.
    fn admit(&mut self, now: f64, need: Need) -> Result<f64, f64> {
        let minute = MINUTE.as_secs_f64();
        let limits = self.limits;
        let no_place = limits.requests.is_some_and(|n| self.sent >= u64::from(n.max(1)));
        let no_tokens = limits.tokens.is_some_and(|n| {
            self.tokens > 0 && self.tokens.saturating_add(need.most) > u64::from(n)
        });
        if no_place || no_tokens {
            return Err(self.first_leaves.max(now));
        }
        let mut turn = now.max(self.wait_until);
        if limits.requests.is_some() {
            turn = turn.max(self.requests_due);
        }
        if limits.tokens.is_some() {
            turn = turn.max(self.tokens_due);
        }
        if turn > now + AHEAD {
            return Err(turn - AHEAD);
        }
        if let Some(n) = limits.requests {
            self.requests_due = self.requests_due.max(now) + minute / f64::from(n.max(1));
        }
        if let Some(n) = limits.tokens {
            let part = (need.likely as f64 / f64::from(n.max(1))).min(1.0);
            self.tokens_due = self.tokens_due.max(now) + minute * part;
        }
        self.sent += 1;
        self.tokens += need.most;
        Ok(turn)
    }
}

impl Server {
    /// Turns for as many of the first requests as may go soon, from now on, and how
    /// long the others wait before they ask again.
    pub(super) async fn turns(
        &self,
        place: &Place,
        needs: &[Need],
    ) -> Result<(Vec<(i64, Duration)>, Duration), FactsError> {
        let ids: Vec<i64> = needs.iter().map(|_| fastrand::i64(1..)).collect();
        let (ids, names) = (&ids, &[place.endpoint.clone(), place.name()]);
        self.link
            .run(|mut client| async move {
                let all = client.transaction().await?;
                let (now, mut rates) = read(&all, place, names).await?;
                let (mut turns, mut again) = (Vec::new(), now + AHEAD / 2.0);
                for need in needs {
                    let [of_all, of_model] = &mut rates;
                    let admitted = of_all.admit(now, *need);
                    let admitted = match (admitted, of_model.admit(now, *need)) {
                        (Ok(one), Ok(other)) => Ok(one.max(other)),
                        (Err(one), Err(other)) => Err(one.max(other)),
                        (Err(until), _) | (_, Err(until)) => Err(until),
                    };
                    match admitted {
                        Ok(turn) => turns.push(turn),
                        Err(until) => {
                            again = until;
                            break;
                        }
                    }
                }
                if !turns.is_empty() {
                    let n = turns.len();
                    let counts = (MINUTE + ON_ITS_WAY + LATE).as_secs_f64();
                    let leaves: Vec<f64> = turns.iter().map(|turn| turn + counts).collect();
                    let most: Vec<i64> =
                        needs[..n].iter().map(|need| need.most.cast_signed()).collect();
                    let enter = all.prepare_cached(ENTER).await?;
                    let (ids, endpoint, model) = (&ids[..n], &place.endpoint, &place.model);
                    all.execute(&enter, &[&ids, &endpoint, &model, &most, &leaves]).await?;
                    let pace = all.prepare_cached(PACE).await?;
                    let requests: Vec<f64> = rates.iter().map(|rate| rate.requests_due).collect();
                    let tokens: Vec<f64> = rates.iter().map(|rate| rate.tokens_due).collect();
                    all.execute(&pace, &[&names.as_slice(), &requests, &tokens]).await?;
                }
                all.commit().await?;
                let from_now = |at: f64| Duration::from_secs_f64((at - now).clamp(0.0, LOOK_EVERY));
                let wait = from_now(again).max(Duration::from_millis(5));
                Ok((ids.iter().copied().zip(turns.into_iter().map(from_now)).collect(), wait))
            })
            .await
    }
}

/// What is known of a place, with its limits locked.
async fn read(
    all: &deadpool_postgres::Transaction<'_>,
    place: &Place,
    names: &[String; 2],
) -> Worked<(f64, [Rate; 2])> {
    let lock = all.prepare_cached(LOCK).await?;
    let members = all.prepare_cached(MEMBERS).await?;
    let counts = all.prepare_cached(COUNTS).await?;
    // One after the other on the server, without waiting in between here.
    let names_of = names.as_slice();
    let of_lock: [Value<'_>; 1] = [&names_of];
    let of_place: [Value<'_>; 2] = [&place.endpoint, &place.model];
    let (rates, members, counts) = tokio::try_join!(
        biased;
        all.query(&lock, &of_lock),
        all.query_one(&members, &of_place[..1]),
        all.query_one(&counts, &of_place)
    )?;
    let now: f64 = counts.try_get(0)?;
    let limit = |n: Option<i64>| n.and_then(|n| u32::try_from(n).ok());
    let asked =
        PerMinute { requests: limit(members.try_get(0)?), tokens: limit(members.try_get(1)?) };
    let rate = |name: &str, asked: PerMinute, at: usize| -> Worked<Rate> {
        let mut told = (PerMinute::default(), 0.0, 0.0, 0.0);
        for row in &rates {
            if row.try_get::<_, &str>(0)? == name {
                let heard = now - row.try_get::<_, f64>(3)? < REMEMBERED;
                let limits = PerMinute {
                    requests: limit(row.try_get(1)?).filter(|_| heard),
                    tokens: limit(row.try_get(2)?).filter(|_| heard),
                };
                told = (limits, row.try_get(4)?, row.try_get(5)?, row.try_get(6)?);
            }
        }
        Ok(Rate {
            limits: told.0.stricter(asked),
            wait_until: told.1,
            requests_due: told.2,
            tokens_due: told.3,
            sent: counts.try_get::<_, i64>(at)?.cast_unsigned(),
            tokens: counts.try_get::<_, i64>(at + 1)?.cast_unsigned(),
            first_leaves: counts.try_get::<_, Option<f64>>(at + 2)?.unwrap_or(now + LOOK_EVERY),
        })
    };
    let of_all = rate(&names[0], asked, 1)?;
    let of_model = rate(&names[1], PerMinute::default(), 4)?;
    Ok((now, [of_all, of_model]))
}

const LOCK: &str = "SELECT name, requests, tokens, heard_at, wait_until, requests_due, tokens_due
  FROM hqdl.rate WHERE name = ANY($1) ORDER BY name FOR UPDATE";
const MEMBERS: &str =
    "SELECT min(requests), min(tokens) FROM hqdl.rate_member AS m WHERE endpoint = $1
  AND m.session IN (SELECT id FROM hqdl.session WHERE expires_at > clock_timestamp())";
const COUNTS: &str = "SELECT c.now, count(*), coalesce(sum(s.tokens), 0)::bigint, min(s.leaves_at),
    count(*) FILTER (WHERE s.model = $2), coalesce(sum(s.tokens) FILTER (WHERE s.model = $2), 0)::bigint,
    min(s.leaves_at) FILTER (WHERE s.model = $2)
  FROM (SELECT extract(epoch FROM clock_timestamp())::double precision AS now) AS c
  LEFT JOIN hqdl.sent AS s ON s.endpoint = $1 AND s.leaves_at > c.now GROUP BY c.now";
const ENTER: &str = "INSERT INTO hqdl.sent (id, endpoint, model, tokens, leaves_at)
  SELECT u.id, $2, $3, u.tokens, u.leaves FROM unnest($1::bigint[], $4::bigint[], $5::double precision[])
    AS u (id, tokens, leaves) ON CONFLICT (id) DO NOTHING";
const PACE: &str = "UPDATE hqdl.rate AS r SET requests_due = u.requests, tokens_due = u.tokens
  FROM unnest($1::text[], $2::double precision[], $3::double precision[]) AS u (name, requests, tokens)
  WHERE r.name = u.name";
