//! Batch jobs: the sets of requests that are submitted to a Batch API together.

use deadpool_postgres::Transaction;
use tokio_postgres::Row;

use crate::FactsError;
use crate::batch_jobs::{BatchJob, BatchRequest, Stage};
use crate::history::{BatchJobs, BatchRequests};
use crate::ids::RunId;
use crate::postgres::Server;
use crate::postgres::connection::WorkResult;
use crate::postgres::reserve::{IN_FLIGHT_JOB, TODAY_SQL};
use crate::postgres::runs::active_runs_sql;
use hqdl_database::current_timestamp;
use hqdl_values::usage::SpentAmount;

const SELECT_BATCH_JOB: &str =
    "SELECT id, token, run, spec, endpoint, state, requests, input_file, batch, file
  FROM hqdl.parcel AS p";

fn read_batch_job(r: &Row) -> WorkResult<BatchJob> {
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

fn read_count(r: &Row) -> WorkResult<u64> {
    Ok(r.try_get::<_, i64>(0)?.cast_unsigned())
}

/// Returns an SQL condition that is true if a request is queued for a run that is no longer active.
fn orphaned_predicate() -> String {
    format!("coalesce(run, 0) NOT IN ({})", active_runs_sql())
}

async fn drop_packed_requests(all: &Transaction<'_>, batch_job: i64) -> WorkResult<()> {
    let sql = "DELETE FROM hqdl.request_row WHERE request IN
      (SELECT id FROM hqdl.request WHERE parcel = $1 AND state = 'packed')";
    all.execute(sql, &[&batch_job]).await?;
    let sql = "UPDATE hqdl.request SET state = 'dropped' WHERE parcel = $1 AND state = 'packed'";
    all.execute(sql, &[&batch_job]).await?;
    Ok(())
}

async fn delete_job(all: &Transaction<'_>, batch_job: i64) -> WorkResult<()> {
    drop_packed_requests(all, batch_job).await?;
    all.execute("DELETE FROM hqdl.request WHERE parcel = $1", &[&batch_job]).await?;
    all.execute("DELETE FROM hqdl.parcel WHERE id = $1", &[&batch_job]).await?;
    Ok(())
}

impl BatchJobs for Server {
    fn store_template(&self, text: &str) -> Result<i64, FactsError> {
        let hash = blake3::hash(text.as_bytes()).to_hex().to_string();
        let sql =
            "INSERT INTO hqdl.form (hash, form) VALUES ($1, $2) ON CONFLICT (hash) DO NOTHING";
        self.execute_sql(sql, &[&hash, &text])?;
        self.query_one("SELECT id FROM hqdl.form WHERE hash = $1", &[&hash], |r| Ok(r.try_get(0)?))
    }

    fn load_template(&self, id: i64) -> Result<String, FactsError> {
        self.query_one("SELECT form FROM hqdl.form WHERE id = $1", &[&id], |r| Ok(r.try_get(0)?))
    }

    fn create_batch_job(
        &self,
        batch_job: &BatchJob,
        packed: &[BatchRequest],
    ) -> Result<i64, FactsError> {
        let ids: Vec<i64> = packed.iter().map(|p| p.id).collect();
        let custom: Vec<&str> = packed.iter().map(|p| p.custom_id.as_str()).collect();
        let usd: Vec<f64> = packed.iter().map(|p| p.worst_case.usd).collect();
        let tokens: Vec<i64> = packed.iter().map(|p| p.worst_case.tokens.cast_signed()).collect();
        self.transact_once(&async |all: &Transaction<'_>| {
            let sql = "INSERT INTO hqdl.parcel (token, run, spec, endpoint, state, requests, written_at, file)
                       VALUES ($1, $2, $3, $4, $5, $6, $7, $8) RETURNING id";
            let row = all
                .query_one(sql, &[
                    &batch_job.token,
                    &batch_job.run.0,
                    &batch_job.spec,
                    &batch_job.endpoint,
                    &batch_job.stage.name(),
                    &batch_job.requests.cast_signed(),
                    &current_timestamp(),
                    &batch_job.file,
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
        self.query_one("SELECT count(*) FROM hqdl.parcel WHERE run = $1", &[&run.0], read_count)
    }

    fn mark_batch_job_uploaded(&self, batch_job: i64, file: &str) -> Result<(), FactsError> {
        let sql = "UPDATE hqdl.parcel SET state = 'uploaded', input_file = $2 WHERE id = $1";
        self.execute_sql(sql, &[&batch_job, &file])
    }

    fn mark_batch_job_creating(
        &self,
        batch_job: i64,
        daily_budget: Option<f64>,
    ) -> Result<Option<f64>, FactsError> {
        let lock = format!(
            "INSERT INTO hqdl.day (date, usd) VALUES ({TODAY_SQL}, 0)
             ON CONFLICT (date) DO UPDATE SET usd = day.usd"
        );
        let select_used = format!("SELECT {}", Self::used_today_sql());
        let begun = format!(
            "UPDATE hqdl.parcel SET state = 'creating', sent_at = $2, sent_on = {TODAY_SQL} WHERE id = $1"
        );
        let worst = self.sum_worst_case_cost(batch_job)?;
        let mut over = std::cell::Cell::new(None);
        self.transact_once(&async |all: &Transaction<'_>| {
            if let Some(most) = daily_budget {
                all.execute(lock.as_str(), &[]).await?;
                let used_usd: f64 = all.query_one(select_used.as_str(), &[]).await?.try_get(0)?;
                if used_usd + worst.usd > most {
                    over.set(Some(used_usd));
                    return Ok(0);
                }
            }
            over.set(None);
            all.execute(begun.as_str(), &[&batch_job, &current_timestamp()]).await?;
            Ok(batch_job)
        })?;
        Ok(over.get_mut().take())
    }

    fn mark_batch_job_open(&self, batch_job: i64, batch: &str) -> Result<(), FactsError> {
        let sql = "UPDATE hqdl.parcel SET state = 'open', batch = $2 WHERE id = $1";
        self.execute_sql(sql, &[&batch_job, &batch])
    }

    fn close_batch_job(&self, batch_job: i64, outcome: &str) -> Result<(), FactsError> {
        let outcome = super::replace_nul_chars(outcome);
        self.transact_once(&async |all: &Transaction<'_>| {
            drop_packed_requests(all, batch_job).await?;
            let sql = "UPDATE hqdl.parcel SET state = 'closed', closed_at = now(), outcome = $2
                       WHERE id = $1";
            all.execute(sql, &[&batch_job, &outcome]).await?;
            Ok(batch_job)
        })
        .map(drop)
    }

    fn list_open_batch_jobs(&self, spec: &str) -> Result<Vec<BatchJob>, FactsError> {
        let sql = format!("{SELECT_BATCH_JOB} WHERE spec = $1 AND {IN_FLIGHT_JOB} ORDER BY id");
        self.query_all(&sql, &[&spec], read_batch_job)
    }

    fn has_interrupted_batch_run(&self, spec: &str) -> Result<bool, FactsError> {
        let orphaned = orphaned_predicate();
        let sql = format!(
            "SELECT EXISTS (SELECT 1 FROM hqdl.request WHERE state = 'waiting' AND {orphaned})
               OR EXISTS (SELECT 1 FROM hqdl.parcel
                 WHERE spec = $1 AND state NOT IN ('closed', 'exported'))"
        );
        self.query_one(&sql, &[&spec], |r| Ok(r.try_get(0)?))
    }

    fn delete_unsent_requests(&self, spec: &str, run: RunId) -> Result<Vec<BatchJob>, FactsError> {
        let unsent =
            format!("{SELECT_BATCH_JOB} WHERE spec = $1 AND state IN ('written', 'uploaded')");
        let jobs = self.query_all(&unsent, &[&spec], read_batch_job)?;
        let which = format!("state = 'waiting' AND (run = $1 OR {})", orphaned_predicate());
        let rows = format!(
            "DELETE FROM hqdl.request_row WHERE request IN (SELECT id FROM hqdl.request WHERE {which})"
        );
        let requests = format!("DELETE FROM hqdl.request WHERE {which}");
        let ids: Vec<i64> = jobs.iter().map(|batch_job| batch_job.id).collect();
        self.transact_once(&async |all: &Transaction<'_>| {
            for id in &ids {
                delete_job(all, *id).await?;
            }
            all.execute(rows.as_str(), &[&run.0]).await?;
            all.execute(requests.as_str(), &[&run.0]).await?;
            Ok(0)
        })?;
        Ok(jobs)
    }

    fn delete_batch_job(&self, batch_job: i64) -> Result<(), FactsError> {
        self.transact_once(&async |all: &Transaction<'_>| {
            delete_job(all, batch_job).await.map(|()| 0)
        })
        .map(drop)
    }

    fn sum_worst_case_cost(&self, batch_job: i64) -> Result<SpentAmount, FactsError> {
        let sql = "SELECT coalesce(sum(worst_usd), 0), coalesce(sum(worst_tokens), 0)::bigint
                   FROM hqdl.request WHERE parcel = $1";
        self.query_one(sql, &[&batch_job], |r| {
            Ok(SpentAmount { usd: r.try_get(0)?, tokens: r.try_get::<_, i64>(1)?.cast_unsigned() })
        })
    }

    fn has_open_batch_jobs(&self, run: RunId) -> Result<bool, FactsError> {
        let sql =
            format!("SELECT 1 FROM hqdl.parcel AS p WHERE p.run = $1 AND {IN_FLIGHT_JOB} LIMIT 1");
        Ok(!self.query_rows(&sql, &[&run.0])?.is_empty())
    }

    fn load_batch_job(&self, id: i64) -> Result<(BatchJob, u64), FactsError> {
        let unanswered = self.list_unanswered_requests(id)?.len() as u64;
        let batch_job =
            self.query_one(&format!("{SELECT_BATCH_JOB} WHERE id = $1"), &[&id], read_batch_job)?;
        Ok((batch_job, unanswered))
    }

    fn has_batch_requests_in_flight(&self) -> Result<bool, FactsError> {
        let alive = active_runs_sql();
        let sql = format!(
            "SELECT EXISTS (SELECT 1 FROM hqdl.parcel AS p WHERE {IN_FLIGHT_JOB})
               OR EXISTS (SELECT 1 FROM hqdl.parcel AS p WHERE p.state IN ('written', 'uploaded')
                 AND p.run IN ({alive}))
               OR EXISTS (SELECT 1 FROM hqdl.request WHERE state = 'waiting' AND run IN ({alive}))"
        );
        self.query_one(&sql, &[], |r| Ok(r.try_get(0)?))
    }

    fn count_unanswered_cells(&self, batch_job: i64) -> Result<Vec<(i64, u64)>, FactsError> {
        let sql =
            "SELECT r.form, sum(json_array_length(r.columns::json))::bigint FROM hqdl.request AS r
                   JOIN hqdl.request_row AS e ON e.request = r.id
                   WHERE r.parcel = $1 AND r.state = 'packed' GROUP BY 1 ORDER BY 1";
        self.query_all(sql, &[&batch_job], |r| {
            Ok((r.try_get(0)?, r.try_get::<_, i64>(1)?.cast_unsigned()))
        })
    }
}
