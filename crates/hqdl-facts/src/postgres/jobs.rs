//! Batch jobs: the sets of requests that are submitted to a Batch API together.

use deadpool_postgres::Transaction;
use tokio_postgres::Row;

use crate::FactsError;
use crate::batch_jobs::{BatchJob, BatchRequest, Stage};
use crate::history::{BatchJobs, BatchRequests};
use crate::ids::RunId;
use crate::postgres::Server;
use crate::postgres::link::Worked;
use crate::postgres::reserve::{TODAY, UNDER_WAY};
use crate::postgres::runs::runs_alive;
use hqdl_database::current_timestamp;
use hqdl_values::usage::SpentAmount;

const PARCEL: &str =
    "SELECT id, token, run, spec, endpoint, state, requests, input_file, batch, file
  FROM hqdl.parcel AS p";

fn parcel(r: &Row) -> Worked<BatchJob> {
    Ok(BatchJob {
        id: r.try_get(0)?,
        token: r.try_get(1)?,
        run: RunId(r.try_get(2)?),
        spec: r.try_get(3)?,
        endpoint: r.try_get(4)?,
        stage: Stage::from_name(r.try_get(5)?),
        requests: r.try_get::<_, i64>(6)?.cast_unsigned(),
        input_file: r.try_get(7)?,
        batch: r.try_get(8)?,
        file: r.try_get(9)?,
    })
}

fn count(r: &Row) -> Worked<u64> {
    Ok(r.try_get::<_, i64>(0)?.cast_unsigned())
}

/// Returns the SQL condition that a request is queued for a run that is no longer active.
fn nobodys() -> String {
    format!("coalesce(run, 0) NOT IN ({})", runs_alive())
}

async fn drop_packed(all: &Transaction<'_>, parcel: i64) -> Worked<()> {
    let sql = "DELETE FROM hqdl.request_row WHERE request IN
      (SELECT id FROM hqdl.request WHERE parcel = $1 AND state = 'packed')";
    all.execute(sql, &[&parcel]).await?;
    let sql = "UPDATE hqdl.request SET state = 'dropped' WHERE parcel = $1 AND state = 'packed'";
    all.execute(sql, &[&parcel]).await?;
    Ok(())
}

async fn forget(all: &Transaction<'_>, parcel: i64) -> Worked<()> {
    drop_packed(all, parcel).await?;
    all.execute("DELETE FROM hqdl.request WHERE parcel = $1", &[&parcel]).await?;
    all.execute("DELETE FROM hqdl.parcel WHERE id = $1", &[&parcel]).await?;
    Ok(())
}

impl BatchJobs for Server {
    fn template_id(&self, text: &str) -> Result<i64, FactsError> {
        let hash = blake3::hash(text.as_bytes()).to_hex().to_string();
        let sql =
            "INSERT INTO hqdl.form (hash, form) VALUES ($1, $2) ON CONFLICT (hash) DO NOTHING";
        self.write(sql, &[&hash, &text])?;
        self.one("SELECT id FROM hqdl.form WHERE hash = $1", &[&hash], |r| Ok(r.try_get(0)?))
    }

    fn template_text(&self, id: i64) -> Result<String, FactsError> {
        self.one("SELECT form FROM hqdl.form WHERE id = $1", &[&id], |r| Ok(r.try_get(0)?))
    }

    fn create_batch_job(
        &self,
        parcel: &BatchJob,
        packed: &[BatchRequest],
    ) -> Result<i64, FactsError> {
        let ids: Vec<i64> = packed.iter().map(|p| p.id).collect();
        let custom: Vec<&str> = packed.iter().map(|p| p.custom_id.as_str()).collect();
        let usd: Vec<f64> = packed.iter().map(|p| p.worst_case.usd).collect();
        let tokens: Vec<i64> = packed.iter().map(|p| p.worst_case.tokens.cast_signed()).collect();
        self.once_only(&async |all: &Transaction<'_>| {
            let sql = "INSERT INTO hqdl.parcel (token, run, spec, endpoint, state, requests, written_at, file)
                       VALUES ($1, $2, $3, $4, $5, $6, $7, $8) RETURNING id";
            let row = all
                .query_one(sql, &[
                    &parcel.token,
                    &parcel.run.0,
                    &parcel.spec,
                    &parcel.endpoint,
                    &parcel.stage.name(),
                    &parcel.requests.cast_signed(),
                    &current_timestamp(),
                    &parcel.file,
                ])
                .await?;
            let id: i64 = row.try_get(0)?;
            let sql = "UPDATE hqdl.request AS r SET state = 'packed', parcel = $1, custom_id = u.custom_id,
                         worst_usd = u.usd, worst_tokens = u.tokens, sent = r.sent + 1
                       FROM unnest($2::bigint[], $3::text[], $4::double precision[], $5::bigint[])
                         AS u (id, custom_id, usd, tokens) WHERE r.id = u.id";
            all.execute(sql, &[&id, &ids, &custom, &usd, &tokens]).await?;
            Ok(id)
        })
    }

    fn count_batch_jobs(&self, run: RunId) -> Result<u64, FactsError> {
        self.one("SELECT count(*) FROM hqdl.parcel WHERE run = $1", &[&run.0], count)
    }

    fn mark_uploaded(&self, parcel: i64, file: &str) -> Result<(), FactsError> {
        let sql = "UPDATE hqdl.parcel SET state = 'uploaded', input_file = $2 WHERE id = $1";
        self.write(sql, &[&parcel, &file])
    }

    fn mark_creating(&self, parcel: i64, of_day: Option<f64>) -> Result<Option<f64>, FactsError> {
        let lock = format!(
            "INSERT INTO hqdl.day (date, usd) VALUES ({TODAY}, 0)
             ON CONFLICT (date) DO UPDATE SET usd = day.usd"
        );
        let gone = format!("SELECT {}", Self::gone_today());
        let begun = format!(
            "UPDATE hqdl.parcel SET state = 'creating', sent_at = $2, sent_on = {TODAY} WHERE id = $1"
        );
        let worst = self.worst_case_cost(parcel)?;
        let mut over = std::cell::Cell::new(None);
        self.once_only(&async |all: &Transaction<'_>| {
            if let Some(most) = of_day {
                all.execute(lock.as_str(), &[]).await?;
                let gone: f64 = all.query_one(gone.as_str(), &[]).await?.try_get(0)?;
                if gone + worst.usd > most {
                    over.set(Some(gone));
                    return Ok(0);
                }
            }
            over.set(None);
            all.execute(begun.as_str(), &[&parcel, &current_timestamp()]).await?;
            Ok(parcel)
        })?;
        Ok(over.get_mut().take())
    }

    fn mark_open(&self, parcel: i64, batch: &str) -> Result<(), FactsError> {
        let sql = "UPDATE hqdl.parcel SET state = 'open', batch = $2 WHERE id = $1";
        self.write(sql, &[&parcel, &batch])
    }

    fn close_batch_job(&self, parcel: i64, outcome: &str) -> Result<(), FactsError> {
        let outcome = super::text(outcome);
        self.once_only(&async |all: &Transaction<'_>| {
            drop_packed(all, parcel).await?;
            let sql = "UPDATE hqdl.parcel SET state = 'closed', closed_at = now(), outcome = $2
                       WHERE id = $1";
            all.execute(sql, &[&parcel, &outcome]).await?;
            Ok(parcel)
        })
        .map(drop)
    }

    fn open_batch_jobs(&self, spec: &str) -> Result<Vec<BatchJob>, FactsError> {
        let sql = format!("{PARCEL} WHERE spec = $1 AND {UNDER_WAY} ORDER BY id");
        self.all(&sql, &[&spec], parcel)
    }

    fn has_interrupted_batch_run(&self, spec: &str) -> Result<bool, FactsError> {
        let nobodys = nobodys();
        let sql = format!(
            "SELECT EXISTS (SELECT 1 FROM hqdl.request WHERE state = 'waiting' AND {nobodys})
               OR EXISTS (SELECT 1 FROM hqdl.parcel
                 WHERE spec = $1 AND state NOT IN ('closed', 'exported'))"
        );
        self.one(&sql, &[&spec], |r| Ok(r.try_get(0)?))
    }

    fn delete_unsent(&self, spec: &str, run: RunId) -> Result<Vec<BatchJob>, FactsError> {
        let unsent = format!("{PARCEL} WHERE spec = $1 AND state IN ('written', 'uploaded')");
        let parcels = self.all(&unsent, &[&spec], parcel)?;
        let which = format!("state = 'waiting' AND (run = $1 OR {})", nobodys());
        let rows = format!(
            "DELETE FROM hqdl.request_row WHERE request IN (SELECT id FROM hqdl.request WHERE {which})"
        );
        let requests = format!("DELETE FROM hqdl.request WHERE {which}");
        let ids: Vec<i64> = parcels.iter().map(|parcel| parcel.id).collect();
        self.once_only(&async |all: &Transaction<'_>| {
            for id in &ids {
                forget(all, *id).await?;
            }
            all.execute(rows.as_str(), &[&run.0]).await?;
            all.execute(requests.as_str(), &[&run.0]).await?;
            Ok(0)
        })?;
        Ok(parcels)
    }

    fn delete_batch_job(&self, parcel: i64) -> Result<(), FactsError> {
        self.once_only(&async |all: &Transaction<'_>| forget(all, parcel).await.map(|()| 0))
            .map(drop)
    }

    fn worst_case_cost(&self, parcel: i64) -> Result<SpentAmount, FactsError> {
        let sql = "SELECT coalesce(sum(worst_usd), 0), coalesce(sum(worst_tokens), 0)::bigint
                   FROM hqdl.request WHERE parcel = $1";
        self.one(sql, &[&parcel], |r| {
            Ok(SpentAmount { usd: r.try_get(0)?, tokens: r.try_get::<_, i64>(1)?.cast_unsigned() })
        })
    }

    fn has_open_batch_jobs(&self, run: RunId) -> Result<bool, FactsError> {
        let sql =
            format!("SELECT 1 FROM hqdl.parcel AS p WHERE p.run = $1 AND {UNDER_WAY} LIMIT 1");
        Ok(!self.rows(&sql, &[&run.0])?.is_empty())
    }

    fn load_batch_job(&self, id: i64) -> Result<(BatchJob, u64), FactsError> {
        let unanswered = self.unanswered_requests(id)?.len() as u64;
        let parcel = self.one(&format!("{PARCEL} WHERE id = $1"), &[&id], parcel)?;
        Ok((parcel, unanswered))
    }

    fn has_batch_requests_in_flight(&self) -> Result<bool, FactsError> {
        let alive = runs_alive();
        let sql = format!(
            "SELECT EXISTS (SELECT 1 FROM hqdl.parcel AS p WHERE {UNDER_WAY})
               OR EXISTS (SELECT 1 FROM hqdl.parcel AS p WHERE p.state IN ('written', 'uploaded')
                 AND p.run IN ({alive}))
               OR EXISTS (SELECT 1 FROM hqdl.request WHERE state = 'waiting' AND run IN ({alive}))"
        );
        self.one(&sql, &[], |r| Ok(r.try_get(0)?))
    }

    fn unanswered_cells(&self, parcel: i64) -> Result<Vec<(i64, u64)>, FactsError> {
        let sql =
            "SELECT r.form, sum(json_array_length(r.columns::json))::bigint FROM hqdl.request AS r
                   JOIN hqdl.request_row AS e ON e.request = r.id
                   WHERE r.parcel = $1 AND r.state = 'packed' GROUP BY 1 ORDER BY 1";
        self.all(sql, &[&parcel], |r| Ok((r.try_get(0)?, r.try_get::<_, i64>(1)?.cast_unsigned())))
    }
}
