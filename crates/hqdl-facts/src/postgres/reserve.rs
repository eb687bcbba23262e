//! Reservations: the worst-case costs of requests in flight. One row per day holds the daily
//! budget; every reservation locks it.

use std::time::Duration;

use tokio::sync::oneshot;
use tokio_postgres::Row;

use crate::FactsError;
use crate::ids::{ReservationId, RunId};
use crate::postgres::Server;
use crate::postgres::link::{BEGIN, Worked};
use crate::postgres::sessions::ALIVE;
use crate::store::ReserveOutcome;
use hqdl_values::usage::SpentAmount;

/// First and longest wait between two attempts while the daily budget is reserved.
const LOOK_EVERY: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(500)];
/// Today's date in UTC by the server's clock.
pub(super) const TODAY: &str = "(clock_timestamp() AT TIME ZONE 'UTC')::date";
/// SQL condition: the endpoint may still bill the requests of this batch job.
pub(super) const UNDER_WAY: &str = "p.state IN ('creating', 'open')";

/// Outcome of an attempt to reserve.
enum Tried {
    Noted,
    /// The reservation would have succeeded, but the attempt was a dry run.
    Fits,
    Ended,
    /// The run is active but no longer belongs to this session.
    Lapsed,
    /// The daily budget is exceeded. Has the USD spent or reserved today, and whether a request in
    /// flight may cost less than its reservation.
    Beyond(f64, bool),
}

impl Server {
    /// Returns the SQL of the USD that today's budget has used: spent, reserved, in doubt, or
    /// reserved for batch jobs.
    pub(super) fn gone_today() -> String {
        format!(
            "coalesce((SELECT usd FROM hqdl.day WHERE date = {TODAY}), 0)
             + coalesce((SELECT sum(cost_usd) FROM hqdl.reservation WHERE date = {TODAY}), 0)
             + coalesce((SELECT sum(r.worst_usd) FROM hqdl.request AS r
                 JOIN hqdl.parcel AS p ON p.id = r.parcel
                 WHERE r.state = 'packed' AND {UNDER_WAY} AND p.sent_on = {TODAY}), 0)"
        )
    }

    pub(super) async fn reserve(
        &self,
        run: RunId,
        worst: SpentAmount,
        of_day: Option<f64>,
        admitted: bool,
        mut reply: oneshot::Sender<Result<ReserveOutcome, FactsError>>,
    ) {
        let id = fastrand::i64(1..);
        let [mut wait, longest] = LOOK_EVERY;
        let mut waited = false;
        let noted = loop {
            // The limits that admitted the request may have changed during the wait.
            let dry = waited && admitted;
            match self.try_reserve(id, run, worst, of_day, dry).await {
                Ok(Tried::Noted) => break Ok(ReserveOutcome::Reserved(ReservationId(id))),
                Ok(Tried::Fits) => break Ok(ReserveOutcome::Retry),
                Ok(Tried::Ended) => break Ok(ReserveOutcome::RunEnded),
                Ok(Tried::Lapsed) => break Err(self.lapsed()),
                Ok(Tried::Beyond(gone, false)) => break Ok(ReserveOutcome::BudgetExceeded(gone)),
                Ok(Tried::Beyond(_, true)) => {
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
        if let Err(Ok(ReserveOutcome::Reserved(note))) = reply.send(noted) {
            // The waiter was dropped and will not send the request.
            let _ = self.settle(note, false).await;
        }
    }

    /// Error for a session whose lease has ended.
    fn lapsed(&self) -> FactsError {
        FactsError::Unreachable {
            url: self.link.shown.clone(),
            message: "it was not for longer than a lease, and others go on with this run"
                .to_owned(),
        }
    }

    async fn try_reserve(
        &self,
        id: i64,
        run: RunId,
        worst: SpentAmount,
        of_day: Option<f64>,
        dry: bool,
    ) -> Result<Tried, FactsError> {
        let session = self.enter().await?;
        let lock = format!(
            "INSERT INTO hqdl.day (date, usd) VALUES ({TODAY}, 0)
             ON CONFLICT (date) DO UPDATE SET usd = day.usd"
        );
        // If another session has resumed the run, this session must not spend for it.
        let note = format!(
            "WITH gone AS (SELECT CASE WHEN $5::double precision IS NULL THEN 0 ELSE {gone} END AS usd),
             ours AS (SELECT 1 FROM hqdl.run WHERE id = $2 AND ended_at IS NULL AND session = $6 AND {ALIVE}),
             noted AS (INSERT INTO hqdl.reservation (id, run, cost_usd, tokens, date, session)
               SELECT $1, $2, $3, $4, {TODAY}, $6 FROM gone
               WHERE NOT $7 AND EXISTS (SELECT 1 FROM ours)
                 AND ($5::double precision IS NULL OR gone.usd + $3 <= $5)
               ON CONFLICT (id) DO NOTHING RETURNING id)
             SELECT EXISTS (SELECT 1 FROM noted) OR EXISTS (SELECT 1 FROM hqdl.reservation WHERE id = $1),
               EXISTS (SELECT 1 FROM ours), gone.usd,
               EXISTS (SELECT 1 FROM hqdl.reservation WHERE NOT in_doubt AND {ALIVE}),
               EXISTS (SELECT 1 FROM hqdl.run WHERE id = $2 AND ended_at IS NULL) FROM gone",
            gone = Self::gone_today()
        );
        let (lock, note, session) = (lock.as_str(), note.as_str(), &*session);
        let tokens = worst.tokens.cast_signed();
        let row = self.link.together(|client| async move {
            let note = client.prepare_cached(note).await?;
            let values: [&(dyn tokio_postgres::types::ToSql + Sync); 7] =
                [&id, &run.0, &worst.usd, &tokens, &of_day, &session, &dry];
            if of_day.is_none() {
                return Ok(client.query_one(&note, &values).await?);
            }
            let lock = client.prepare_cached(lock).await?;
            // All statements are sent at once, so that other statements on the shared connection
            // cannot come between them.
            let (begun, locked, noted, committed) = tokio::join!(
                biased;
                client.batch_execute(BEGIN),
                client.execute(&lock, &[]),
                client.query_one(&note, &values),
                client.batch_execute("COMMIT")
            );
            begun?;
            locked?;
            let noted = noted?;
            committed?;
            Ok(noted)
        });
        let row = row.await?;
        let get = |row: &Row| -> Worked<(bool, bool, f64, bool, bool)> {
            let (noted, ours) = (row.try_get(0)?, row.try_get(1)?);
            Ok((noted, ours, row.try_get(2)?, row.try_get(3)?, row.try_get(4)?))
        };
        let (noted, ours, gone, on_way, open) = self.read(&row, get)?;
        Ok(match of_day {
            _ if noted => Tried::Noted,
            Some(most) if gone + worst.usd > most => Tried::Beyond(gone, on_way),
            _ if !open => Tried::Ended,
            _ if !ours => Tried::Lapsed,
            _ => Tried::Fits,
        })
    }

    pub(super) async fn settle(
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
            .together(|client| async move {
                let settle = client.prepare_cached(sql).await?;
                client.execute(&settle, &[&reservation.0]).await?;
                Ok(())
            })
            .await
    }
}
