//! Reservations: the worst-case costs of requests in flight. One row per day holds the daily
//! budget; every reservation locks it.

use std::time::Duration;

use tokio::sync::oneshot;
use tokio_postgres::Row;

use crate::FactsError;
use crate::ids::{ReservationId, RunId};
use crate::postgres::Server;
use crate::postgres::connection::{BEGIN, WorkResult};
use crate::postgres::sessions::ALIVE;
use crate::store::ReserveOutcome;
use hqdl_values::usage::SpentAmount;

/// Shortest and longest pause between two attempts to reserve a cost.
const POLL_PAUSES: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(500)];
/// Today's date in UTC by the server's clock.
pub(super) const TODAY_SQL: &str = "(clock_timestamp() AT TIME ZONE 'UTC')::date";
/// SQL condition: the endpoint may still bill the requests of this batch job.
pub(super) const IN_FLIGHT_JOB: &str = "p.state IN ('creating', 'open')";

/// Outcome of an attempt to reserve a cost.
enum Attempt {
    Reserved,
    /// The reservation would have succeeded, but the attempt was a dry run.
    Fits,
    Ended,
    /// The run is active but no longer belongs to this session.
    Lapsed,
    /// The daily budget is exceeded. Contains the USD spent or reserved today, and whether a
    /// request in flight may cost less than its reservation.
    BudgetExceeded(f64, bool),
}

impl Server {
    /// Returns the SQL expression for the USD counted against today's budget: spent, reserved, in
    /// doubt, or reserved for batch jobs.
    pub(super) fn used_today_sql() -> String {
        format!(
            "coalesce((SELECT usd FROM hqdl.day WHERE date = {TODAY_SQL}), 0)
             + coalesce((SELECT sum(cost_usd) FROM hqdl.reservation WHERE date = {TODAY_SQL}), 0)
             + coalesce((SELECT sum(r.worst_usd) FROM hqdl.request AS r
                 JOIN hqdl.parcel AS p ON p.id = r.parcel
                 WHERE r.state = 'packed' AND {IN_FLIGHT_JOB} AND p.sent_on = {TODAY_SQL}), 0)"
        )
    }

    pub(super) async fn reserve_cost(
        &self,
        run: RunId,
        worst: SpentAmount,
        daily_budget: Option<f64>,
        has_permit: bool,
        mut reply: oneshot::Sender<Result<ReserveOutcome, FactsError>>,
    ) {
        let id = fastrand::i64(1..);
        let [mut wait, longest] = POLL_PAUSES;
        let mut waited = false;
        let outcome = loop {
            // The limits that admitted the request may have changed during the wait, so only check
            // whether the daily budget covers it now.
            let is_dry_run = waited && has_permit;
            match self.try_reserve(id, run, worst, daily_budget, is_dry_run).await {
                Ok(Attempt::Reserved) => break Ok(ReserveOutcome::Reserved(ReservationId(id))),
                Ok(Attempt::Fits) => break Ok(ReserveOutcome::Retry),
                Ok(Attempt::Ended) => break Ok(ReserveOutcome::RunEnded),
                Ok(Attempt::Lapsed) => break Err(self.expired_lease_error()),
                Ok(Attempt::BudgetExceeded(used_usd, false)) => {
                    break Ok(ReserveOutcome::BudgetExceeded(used_usd));
                }
                Ok(Attempt::BudgetExceeded(_, true)) => {
                    waited = true;
                    tokio::select! {
                        () = tokio::time::sleep(wait) => {}
                        () = reply.closed() => return,
                    }
                    wait = (wait * 2).min(longest);
                }
                Err(error) => break Err(error),
            }
        };
        if let Err(Ok(ReserveOutcome::Reserved(reservation))) = reply.send(outcome) {
            // The waiter was dropped and will not send the request.
            let _ = self.settle_reservation(reservation, false).await;
        }
    }

    /// Error for a session whose lease has ended.
    fn expired_lease_error(&self) -> FactsError {
        FactsError::Unreachable {
            url: self.link.display_url.clone(),
            message: "the lease of this session has ended, and another process has resumed the run"
                .to_owned(),
        }
    }

    async fn try_reserve(
        &self,
        id: i64,
        run: RunId,
        worst: SpentAmount,
        daily_budget: Option<f64>,
        is_dry_run: bool,
    ) -> Result<Attempt, FactsError> {
        let session = self.keep_session_alive().await?;
        let lock = format!(
            "INSERT INTO hqdl.day (date, usd) VALUES ({TODAY_SQL}, 0)
             ON CONFLICT (date) DO UPDATE SET usd = day.usd"
        );
        // If another session has resumed the run, this session must not spend money on it.
        let insert = format!(
            "WITH gone AS (SELECT CASE WHEN $5::double precision IS NULL THEN 0 ELSE {used} END AS usd),
             ours AS (SELECT 1 FROM hqdl.run WHERE id = $2 AND ended_at IS NULL AND session = $6 AND {ALIVE}),
             noted AS (INSERT INTO hqdl.reservation (id, run, cost_usd, tokens, date, session)
               SELECT $1, $2, $3, $4, {TODAY_SQL}, $6 FROM gone
               WHERE NOT $7 AND EXISTS (SELECT 1 FROM ours)
                 AND ($5::double precision IS NULL OR gone.usd + $3 <= $5)
               ON CONFLICT (id) DO NOTHING RETURNING id)
             SELECT EXISTS (SELECT 1 FROM noted) OR EXISTS (SELECT 1 FROM hqdl.reservation WHERE id = $1),
               EXISTS (SELECT 1 FROM ours), gone.usd,
               EXISTS (SELECT 1 FROM hqdl.reservation WHERE NOT in_doubt AND {ALIVE}),
               EXISTS (SELECT 1 FROM hqdl.run WHERE id = $2 AND ended_at IS NULL) FROM gone",
            used = Self::used_today_sql()
        );
        let (lock, insert, session) = (lock.as_str(), insert.as_str(), &*session);
        let tokens = worst.tokens.cast_signed();
        let row = self.link.with_shared_client(|client| async move {
            let insert = client.prepare_cached(insert).await?;
            let values: [&(dyn tokio_postgres::types::ToSql + Sync); 7] =
                [&id, &run.0, &worst.usd, &tokens, &daily_budget, &session, &is_dry_run];
            if daily_budget.is_none() {
                return Ok(client.query_one(&insert, &values).await?);
            }
            let lock = client.prepare_cached(lock).await?;
            // Send all statements at once, so that no other statement on the shared connection
            // comes between them.
            let (begun, locked, inserted, committed) = tokio::join!(
                biased;
                client.batch_execute(BEGIN),
                client.execute(&lock, &[]),
                client.query_one(&insert, &values),
                client.batch_execute("COMMIT")
            );
            begun?;
            locked?;
            let row = inserted?;
            committed?;
            Ok(row)
        });
        let row = row.await?;
        let get = |row: &Row| -> WorkResult<(bool, bool, f64, bool, bool)> {
            let (is_reserved, is_own_run) = (row.try_get(0)?, row.try_get(1)?);
            Ok((is_reserved, is_own_run, row.try_get(2)?, row.try_get(3)?, row.try_get(4)?))
        };
        let (is_reserved, is_own_run, used_usd, has_requests_in_flight, is_run_open) =
            self.read_row(&row, get)?;
        Ok(match daily_budget {
            _ if is_reserved => Attempt::Reserved,
            Some(most) if used_usd + worst.usd > most => {
                Attempt::BudgetExceeded(used_usd, has_requests_in_flight)
            }
            _ if !is_run_open => Attempt::Ended,
            _ if !is_own_run => Attempt::Lapsed,
            _ => Attempt::Fits,
        })
    }

    pub(super) async fn settle_reservation(
        &self,
        reservation: ReservationId,
        in_doubt: bool,
    ) -> Result<(), FactsError> {
        let sql = if in_doubt {
            "UPDATE hqdl.reservation SET in_doubt = true WHERE id = $1"
        } else {
            "DELETE FROM hqdl.reservation WHERE id = $1"
        };
        self.link
            .with_shared_client(|client| async move {
                let settle = client.prepare_cached(sql).await?;
                client.execute(&settle, &[&reservation.0]).await?;
                Ok(())
            })
            .await
    }
}
