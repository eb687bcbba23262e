//! Batch jobs in the journal.

use super::reservations::{UNDER_WAY, has_under_way};
use crate::batch_jobs::{BatchJob, BatchRequest, Stage};
use rusqlite::{Connection, Row as SqlRow, params};

use crate::FactsError;
use crate::history::{BatchJobs, BatchRequests};
use crate::ids::RunId;
use crate::journal::reservations::DailySpending;
use crate::journal::{Journal, RUNS_ALIVE};
use hqdl_database::current_timestamp;
use hqdl_values::usage::SpentAmount;

const PARCEL: &str =
    "SELECT id, token, run, spec, endpoint, state, requests, input_file, batch, file FROM parcel";
/// Returns the SQL condition that a request is queued for a run that is no longer active.
fn nobodys() -> String {
    format!("coalesce(run, 0) NOT IN ({RUNS_ALIVE})")
}

impl BatchJobs for Journal {
    fn template_id(&self, text: &str) -> Result<i64, FactsError> {
        let hash = blake3::hash(text.as_bytes()).to_hex().to_string();
        self.change(|c| {
            c.execute("INSERT OR IGNORE INTO form (hash, form) VALUES (?1, ?2)", [&hash, text])?;
            c.query_row("SELECT id FROM form WHERE hash = ?1", [&hash], |r| r.get(0))
        })
    }

    fn template_text(&self, id: i64) -> Result<String, FactsError> {
        self.read(|c| c.query_row("SELECT form FROM form WHERE id = ?1", [id], |r| r.get(0)))
    }

    fn create_batch_job(
        &self,
        parcel: &BatchJob,
        packed: &[BatchRequest],
    ) -> Result<i64, FactsError> {
        self.change(|c| {
            c.execute(
                "INSERT INTO parcel (token, run, spec, endpoint, state, requests, written_at, file)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
                params![
                    parcel.token,
                    parcel.run,
                    parcel.spec,
                    parcel.endpoint,
                    parcel.stage.name(),
                    parcel.requests,
                    current_timestamp(),
                    parcel.file
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
        self.read(|c| c.query_row(sql, [run], |r| r.get(0)))
    }

    fn mark_uploaded(&self, parcel: i64, file: &str) -> Result<(), FactsError> {
        let sql = "UPDATE parcel SET state = 'uploaded', input_file = ?2 WHERE id = ?1";
        self.change(|c| c.execute(sql, params![parcel, file]).map(drop))
    }

    fn mark_creating(&self, parcel: i64, of_day: Option<f64>) -> Result<Option<f64>, FactsError> {
        self.change(|c| {
            if let Some(most) = of_day {
                let gone = DailySpending::default().spent_today(self)?;
                let sql = "SELECT coalesce(sum(worst_usd), 0.0) FROM request WHERE parcel = ?1";
                let worst: f64 = c.query_row(sql, [parcel], |r| r.get(0))?;
                if gone + worst > most {
                    return Ok(Some(gone));
                }
            }
            let sql = "UPDATE parcel SET state = 'creating', sent_at = ?2 WHERE id = ?1";
            c.execute(sql, params![parcel, current_timestamp()]).map(|_| None)
        })
    }

    fn mark_open(&self, parcel: i64, batch: &str) -> Result<(), FactsError> {
        let sql = "UPDATE parcel SET state = 'open', batch = ?2 WHERE id = ?1";
        self.change(|c| c.execute(sql, params![parcel, batch]).map(drop))
    }

    fn close_batch_job(&self, parcel: i64, outcome: &str) -> Result<(), FactsError> {
        self.change(|c| {
            drop_packed(c, parcel)?;
            c.execute(
                "UPDATE parcel SET state = 'closed', closed_at = ?2, outcome = ?3 WHERE id = ?1",
                params![parcel, current_timestamp(), outcome],
            )
            .map(drop)
        })
    }

    fn open_batch_jobs(&self, spec: &str) -> Result<Vec<BatchJob>, FactsError> {
        let sql = format!("{PARCEL} AS p WHERE spec = ?1 AND {UNDER_WAY} ORDER BY id");
        self.read(|c| c.prepare(&sql)?.query_map([spec], parcel)?.collect())
    }

    fn has_interrupted_batch_run(&self, spec: &str) -> Result<bool, FactsError> {
        self.update_sessions()?;
        let nobodys = nobodys();
        let sql = format!(
            "SELECT EXISTS (SELECT 1 FROM request WHERE state = 'waiting' AND {nobodys})
               OR EXISTS (SELECT 1 FROM parcel WHERE spec = ?1 AND state NOT IN ('closed', 'exported'))"
        );
        self.read(|c| c.query_row(&sql, [spec], |r| r.get(0)))
    }

    fn delete_unsent(&self, spec: &str, run: RunId) -> Result<Vec<BatchJob>, FactsError> {
        self.update_sessions()?;
        self.change(|c| {
            let sql = format!("{PARCEL} WHERE spec = ?1 AND state IN ('written', 'uploaded')");
            let parcels: Vec<BatchJob> =
                c.prepare(&sql)?.query_map([spec], parcel)?.collect::<Result<_, _>>()?;
            for parcel in &parcels {
                forget(c, parcel.id)?;
            }
            let nobodys = nobodys();
            let which = format!("state = 'waiting' AND (run = ?1 OR {nobodys})");
            c.execute(
                &format!(
                    "DELETE FROM request_row WHERE request IN (SELECT id FROM request WHERE {which})"
                ),
                [run],
            )?;
            c.execute(&format!("DELETE FROM request WHERE {which}"), [run])?;
            Ok(parcels)
        })
    }

    fn delete_batch_job(&self, parcel: i64) -> Result<(), FactsError> {
        self.change(|c| forget(c, parcel))
    }

    fn worst_case_cost(&self, parcel: i64) -> Result<SpentAmount, FactsError> {
        let sql = "SELECT coalesce(sum(worst_usd), 0.0), coalesce(sum(worst_tokens), 0)
                   FROM request WHERE parcel = ?1";
        self.run(|c| {
            c.query_row(sql, [parcel], |r| Ok(SpentAmount { usd: r.get(0)?, tokens: r.get(1)? }))
        })
    }

    fn has_open_batch_jobs(&self, run: RunId) -> Result<bool, FactsError> {
        self.read(|c| has_under_way(c, run))
    }

    fn load_batch_job(&self, id: i64) -> Result<(BatchJob, u64), FactsError> {
        let unanswered = self.unanswered_requests(id)?.len() as u64;
        let sql = format!("{PARCEL} WHERE id = ?1");
        self.read(|c| c.query_row(&sql, [id], parcel)).map(|parcel| (parcel, unanswered))
    }

    fn has_batch_requests_in_flight(&self) -> Result<bool, FactsError> {
        self.update_sessions()?;
        let sql = format!(
            "SELECT 1 FROM parcel AS p WHERE {UNDER_WAY}
             UNION ALL SELECT 1 FROM parcel AS p WHERE p.state IN ('written', 'uploaded')
               AND p.run IN ({RUNS_ALIVE})
             UNION ALL SELECT 1 FROM request WHERE state = 'waiting' AND run IN ({RUNS_ALIVE}) LIMIT 1"
        );
        self.run(|c| c.prepare_cached(&sql)?.exists([]))
    }

    fn unanswered_cells(&self, parcel: i64) -> Result<Vec<(i64, u64)>, FactsError> {
        let sql = "SELECT r.form, sum(json_array_length(r.columns)) FROM request AS r
                   JOIN request_row AS e ON e.request = r.id
                   WHERE r.parcel = ?1 AND r.state = 'packed' GROUP BY 1 ORDER BY 1";
        self.read(|c| {
            c.prepare(sql)?.query_map([parcel], |r| Ok((r.get(0)?, r.get(1)?)))?.collect()
        })
    }
}

fn drop_packed(c: &Connection, parcel: i64) -> rusqlite::Result<()> {
    c.execute(
        "DELETE FROM request_row WHERE request IN
           (SELECT id FROM request WHERE parcel = ?1 AND state = 'packed')",
        [parcel],
    )?;
    c.execute(
        "UPDATE request SET state = 'dropped' WHERE parcel = ?1 AND state = 'packed'",
        [parcel],
    )
    .map(drop)
}

fn forget(c: &Connection, parcel: i64) -> rusqlite::Result<()> {
    drop_packed(c, parcel)?;
    c.execute("DELETE FROM request WHERE parcel = ?1", [parcel])?;
    c.execute("DELETE FROM parcel WHERE id = ?1", [parcel]).map(drop)
}

fn parcel(r: &SqlRow<'_>) -> rusqlite::Result<BatchJob> {
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
