//! Batch jobs in the journal.

use super::reservations::{IN_FLIGHT_JOB, has_requests_in_flight};
use crate::batch_jobs::{BatchJob, BatchRequest, Stage};
use rusqlite::{Connection, Row as SqlRow, params};

use crate::FactsError;
use crate::history::{BatchJobs, BatchRequests};
use crate::ids::RunId;
use crate::journal::reservations::DailySpending;
use crate::journal::{ACTIVE_RUNS, Journal};
use hqdl_database::current_timestamp;
use hqdl_values::usage::SpentAmount;

const SELECT_BATCH_JOB: &str =
    "SELECT id, token, run, spec, endpoint, state, requests, input_file, batch, file FROM parcel";
/// Returns an SQL condition that is true if a request is queued for a run that is no longer active.
fn orphaned_predicate() -> String {
    format!("coalesce(run, 0) NOT IN ({ACTIVE_RUNS})")
}

impl BatchJobs for Journal {
    fn store_template(&self, text: &str) -> Result<i64, FactsError> {
        let hash = blake3::hash(text.as_bytes()).to_hex().to_string();
        self.transact_with_connection(|c| {
            c.execute("INSERT OR IGNORE INTO form (hash, form) VALUES (?1, ?2)", [&hash, text])?;
            c.query_row("SELECT id FROM form WHERE hash = ?1", [&hash], |r| r.get(0))
        })
    }

    fn load_template(&self, id: i64) -> Result<String, FactsError> {
        self.with_snapshot(|c| {
            c.query_row("SELECT form FROM form WHERE id = ?1", [id], |r| r.get(0))
        })
    }

    fn create_batch_job(
        &self,
        batch_job: &BatchJob,
        packed: &[BatchRequest],
    ) -> Result<i64, FactsError> {
        self.transact_with_connection(|c| {
            c.execute(
                "INSERT INTO parcel (token, run, spec, endpoint, state, requests, written_at, file)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
                params![
                    batch_job.token,
                    batch_job.run,
                    batch_job.spec,
                    batch_job.endpoint,
                    batch_job.stage.name(),
                    batch_job.requests,
                    current_timestamp(),
                    batch_job.file
                ],
            )?;
            let id = c.last_insert_rowid();
            let mut set = c.prepare_cached(
                "UPDATE request SET state = 'packed', parcel = ?2, custom_id = ?3, worst_usd = ?4,
                   worst_tokens = ?5, sent = sent + 1 WHERE id = ?1",
            )?;
            for p in packed {
                set.execute(params![p.id, id, p.custom_id, p.worst_case.usd, p.worst_case.tokens])?;
            }
            Ok(id)
        })
    }

    fn count_batch_jobs(&self, run: RunId) -> Result<u64, FactsError> {
        let sql = "SELECT count(*) FROM parcel WHERE run = ?1";
        self.with_snapshot(|c| c.query_row(sql, [run], |r| r.get(0)))
    }

    fn mark_batch_job_uploaded(&self, batch_job: i64, file: &str) -> Result<(), FactsError> {
        let sql = "UPDATE parcel SET state = 'uploaded', input_file = ?2 WHERE id = ?1";
        self.transact_with_connection(|c| c.execute(sql, params![batch_job, file]).map(drop))
    }

    fn mark_batch_job_creating(
        &self,
        batch_job: i64,
        daily_budget: Option<f64>,
    ) -> Result<Option<f64>, FactsError> {
        self.transact_with_connection(|c| {
            if let Some(budget) = daily_budget {
                let used_today = DailySpending::default().sum_cost_today(self)?;
                let sql = "SELECT coalesce(sum(worst_usd), 0.0) FROM request WHERE parcel = ?1";
                let worst: f64 = c.query_row(sql, [batch_job], |r| r.get(0))?;
                if used_today + worst > budget {
                    return Ok(Some(used_today));
                }
            }
            let sql = "UPDATE parcel SET state = 'creating', sent_at = ?2 WHERE id = ?1";
            c.execute(sql, params![batch_job, current_timestamp()]).map(|_| None)
        })
    }

    fn mark_batch_job_open(&self, batch_job: i64, batch: &str) -> Result<(), FactsError> {
        let sql = "UPDATE parcel SET state = 'open', batch = ?2 WHERE id = ?1";
        self.transact_with_connection(|c| c.execute(sql, params![batch_job, batch]).map(drop))
    }

    fn close_batch_job(&self, batch_job: i64, outcome: &str) -> Result<(), FactsError> {
        self.transact_with_connection(|c| {
            drop_packed_requests(c, batch_job)?;
            c.execute(
                "UPDATE parcel SET state = 'closed', closed_at = ?2, outcome = ?3 WHERE id = ?1",
                params![batch_job, current_timestamp(), outcome],
            )
            .map(drop)
        })
    }

    fn list_open_batch_jobs(&self, spec: &str) -> Result<Vec<BatchJob>, FactsError> {
        let sql =
            format!("{SELECT_BATCH_JOB} AS p WHERE spec = ?1 AND {IN_FLIGHT_JOB} ORDER BY id");
        self.with_snapshot(|c| c.prepare(&sql)?.query_map([spec], read_batch_job)?.collect())
    }

    fn has_interrupted_batch_run(&self, spec: &str) -> Result<bool, FactsError> {
        self.prune_sessions()?;
        let orphaned = orphaned_predicate();
        let sql = format!(
            "SELECT EXISTS (SELECT 1 FROM request WHERE state = 'waiting' AND {orphaned})
               OR EXISTS (SELECT 1 FROM parcel WHERE spec = ?1 AND state NOT IN ('closed', 'exported'))"
        );
        self.with_snapshot(|c| c.query_row(&sql, [spec], |r| r.get(0)))
    }

    fn delete_unsent_requests(&self, spec: &str, run: RunId) -> Result<Vec<BatchJob>, FactsError> {
        self.prune_sessions()?;
        self.transact_with_connection(|c| {
            let sql = format!("{SELECT_BATCH_JOB} WHERE spec = ?1 AND state IN ('written', 'uploaded')");
            let jobs: Vec<BatchJob> =
                c.prepare(&sql)?.query_map([spec], read_batch_job)?.collect::<Result<_, _>>()?;
            for batch_job in &jobs {
                delete_job(c, batch_job.id)?;
            }
            let orphaned = orphaned_predicate();
            let which = format!("state = 'waiting' AND (run = ?1 OR {orphaned})");
            c.execute(
                &format!(
                    "DELETE FROM request_row WHERE request IN (SELECT id FROM request WHERE {which})"
                ),
                [run],
            )?;
            c.execute(&format!("DELETE FROM request WHERE {which}"), [run])?;
            Ok(jobs)
        })
    }

    fn delete_batch_job(&self, batch_job: i64) -> Result<(), FactsError> {
        self.transact_with_connection(|c| delete_job(c, batch_job))
    }

    fn sum_worst_case_cost(&self, batch_job: i64) -> Result<SpentAmount, FactsError> {
        let sql = "SELECT coalesce(sum(worst_usd), 0.0), coalesce(sum(worst_tokens), 0)
                   FROM request WHERE parcel = ?1";
        self.with_connection(|c| {
            c.query_row(sql, [batch_job], |r| Ok(SpentAmount { usd: r.get(0)?, tokens: r.get(1)? }))
        })
    }

    fn has_open_batch_jobs(&self, run: RunId) -> Result<bool, FactsError> {
        self.with_snapshot(|c| has_requests_in_flight(c, run))
    }

    fn load_batch_job(&self, id: i64) -> Result<(BatchJob, u64), FactsError> {
        let unanswered = self.list_unanswered_requests(id)?.len() as u64;
        let sql = format!("{SELECT_BATCH_JOB} WHERE id = ?1");
        self.with_snapshot(|c| c.query_row(&sql, [id], read_batch_job))
            .map(|batch_job| (batch_job, unanswered))
    }

    fn has_batch_requests_in_flight(&self) -> Result<bool, FactsError> {
        self.prune_sessions()?;
        let sql = format!(
            "SELECT 1 FROM parcel AS p WHERE {IN_FLIGHT_JOB}
             UNION ALL SELECT 1 FROM parcel AS p WHERE p.state IN ('written', 'uploaded')
               AND p.run IN ({ACTIVE_RUNS})
             UNION ALL SELECT 1 FROM request WHERE state = 'waiting' AND run IN ({ACTIVE_RUNS}) LIMIT 1"
        );
        self.with_connection(|c| c.prepare_cached(&sql)?.exists([]))
    }

    fn count_unanswered_cells(&self, batch_job: i64) -> Result<Vec<(i64, u64)>, FactsError> {
        let sql = "SELECT r.form, sum(json_array_length(r.columns)) FROM request AS r
                   JOIN request_row AS e ON e.request = r.id
                   WHERE r.parcel = ?1 AND r.state = 'packed' GROUP BY 1 ORDER BY 1";
        self.with_snapshot(|c| {
            c.prepare(sql)?.query_map([batch_job], |r| Ok((r.get(0)?, r.get(1)?)))?.collect()
        })
    }
}

fn drop_packed_requests(c: &Connection, batch_job: i64) -> rusqlite::Result<()> {
    c.execute(
        "DELETE FROM request_row WHERE request IN
           (SELECT id FROM request WHERE parcel = ?1 AND state = 'packed')",
        [batch_job],
    )?;
    c.execute(
        "UPDATE request SET state = 'dropped' WHERE parcel = ?1 AND state = 'packed'",
        [batch_job],
    )
    .map(drop)
}

fn delete_job(c: &Connection, batch_job: i64) -> rusqlite::Result<()> {
    drop_packed_requests(c, batch_job)?;
    c.execute("DELETE FROM request WHERE parcel = ?1", [batch_job])?;
    c.execute("DELETE FROM parcel WHERE id = ?1", [batch_job]).map(drop)
}

fn read_batch_job(r: &SqlRow<'_>) -> rusqlite::Result<BatchJob> {
    Ok(BatchJob {
        id: r.get(0)?,
        token: r.get(1)?,
        run: r.get(2)?,
        spec: r.get(3)?,
        endpoint: r.get(4)?,
        stage: Stage::from_name(&r.get::<_, String>(5)?),
        requests: r.get(6)?,
        input_file: r.get(7)?,
        batch: r.get(8)?,
        file: r.get(9)?,
    })
}
