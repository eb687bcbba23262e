//! Reservations: the worst-case costs of requests in flight. They persist if the process is killed,
//! so that no request that may have been billed is forgotten.

use rusqlite::{Connection, params};

use crate::ids::{ReservationId, RunId};
use crate::journal::Journal;
use hqdl_database::current_timestamp;
use hqdl_values::usage::SpentAmount;

/// SQL condition: the completion was paid for. Replayed recordings cost nothing; they are
/// recognized by their model's name ([`hqdl_model::replay`]).
pub(crate) const PAID: &str =
    "model NOT IN (SELECT id FROM model WHERE name LIKE '% (recording ________)')";

/// SQL condition: the endpoint may still bill the requests of this batch job.
pub(crate) const IN_FLIGHT_JOB: &str = "p.state IN ('creating', 'open')";

impl Journal {
    /// Reserves the worst-case cost of a request.
    pub(crate) fn insert_reservation(
        &self,
        run: RunId,
        worst: SpentAmount,
    ) -> rusqlite::Result<ReservationId> {
        let connection = self.connection();
        self.register_session()?;
        let mut insert = connection.prepare_cached(
            "INSERT INTO reservation (run, cost_usd, tokens, reserved_at, session)
             VALUES (?1, ?2, ?3, ?4, ?5)",
        )?;
        insert
            .insert(params![run, worst.usd, worst.tokens, current_timestamp(), self.session.id])
            .map(ReservationId)
    }

    /// Deletes a reservation whose request was answered or not sent.
    pub(crate) fn release_reservation(&self, reservation: ReservationId) -> rusqlite::Result<()> {
        let connection = self.connection();
        let mut delete = connection.prepare_cached("DELETE FROM reservation WHERE id = ?1")?;
        delete.execute([reservation]).map(|_| ())
    }

    /// Keeps a reservation, because its request may have been billed although it has no answer.
    pub(crate) fn mark_reservation_in_doubt(
        &self,
        reservation: ReservationId,
    ) -> rusqlite::Result<()> {
        let connection = self.connection();
        let mut update =
            connection.prepare_cached("UPDATE reservation SET in_doubt = 1 WHERE id = ?1")?;
        update.execute([reservation]).map(|_| ())
    }
}

/// Spending of one day, updated with each new completion.
#[derive(Debug, Default)]
pub(crate) struct DailySpending {
    /// The date in RFC 3339 format.
    date: String,
    /// Id of the last completion that was counted.
    last: i64,
    usd: f64,
}

impl DailySpending {
    /// Returns the USD spent today (UTC), including the worst-case cost of requests that are in
    /// flight or were never answered.
    pub(crate) fn sum_cost_today(&mut self, journal: &Journal) -> rusqlite::Result<f64> {
        let today = current_timestamp().get(..10).unwrap_or_default().to_owned();
        if self.date != today {
            *self = Self { date: today, ..Self::default() };
        }
        let c = journal.connection();
        let (last, more): (i64, f64) = c
            .prepare_cached(&format!(
                "SELECT coalesce(max(id), ?1),
                   coalesce(sum(CASE WHEN asked_at >= ?2 AND {PAID} THEN cost_usd END), 0.0)
                 FROM completion WHERE id > ?1"
            ))?
            .query_row(params![self.last, self.date], |r| Ok((r.get(0)?, r.get(1)?)))?;
        (self.last, self.usd) = (last, self.usd + more);
        let reserved_usd: f64 = c
            .prepare_cached(
                "SELECT coalesce(sum(cost_usd), 0.0) FROM reservation WHERE reserved_at >= ?1",
            )?
            .query_row([&self.date], |r| r.get(0))?;
        Ok(self.usd + reserved_usd + sum_costs_reserved_since(&c, &self.date)?.usd)
    }
}

/// Returns the worst-case cost of all requests in flight that were sent at or after the time
/// `then`.
pub(crate) fn sum_costs_reserved_since(
    c: &Connection,
    then: &str,
) -> rusqlite::Result<SpentAmount> {
    sum_reserved_costs(c, "p.sent_at >= ?1", &then)
}

pub(crate) fn sum_reserved_costs(
    c: &Connection,
    which: &str,
    value: &dyn rusqlite::ToSql,
) -> rusqlite::Result<SpentAmount> {
    let sql = format!(
        "SELECT coalesce(sum(r.worst_usd), 0.0), coalesce(sum(r.worst_tokens), 0)
         FROM request AS r JOIN parcel AS p ON p.id = r.parcel
         WHERE r.state = 'packed' AND {IN_FLIGHT_JOB} AND {which}"
    );
    c.query_row(&sql, [value], |r| Ok(SpentAmount { usd: r.get(0)?, tokens: r.get(1)? }))
}

/// Returns true if any of the run's requests is in an open batch job.
pub(crate) fn has_requests_in_flight(c: &Connection, run: RunId) -> rusqlite::Result<bool> {
    let sql = format!("SELECT 1 FROM parcel AS p WHERE p.run = ?1 AND {IN_FLIGHT_JOB} LIMIT 1");
    c.prepare(&sql)?.exists([run])
}
