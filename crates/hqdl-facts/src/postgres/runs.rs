//! Runs and their costs.

use deadpool_postgres::Transaction;
use tokio_postgres::Row;

use crate::FactsError;
use crate::completion::Outcome;
use crate::history::{Integrity, Runs, Spending};
use crate::ids::RunId;
use crate::postgres::Server;
use crate::postgres::connection::WorkResult;
use crate::postgres::dictionary::attach_types;
use crate::postgres::reserve::{IN_FLIGHT_JOB, TODAY_SQL};
use crate::postgres::sessions::ALIVE;
use crate::spending::{ColumnDailyCost, HourlySpending, Totals};
use hqdl_values::usage::{SpentAmount, UnconfirmedCost};

/// Returns the SQL that selects the runs of active sessions.
pub(super) fn active_runs_sql() -> String {
    format!("SELECT id FROM hqdl.run WHERE {ALIVE} AND ended_at IS NULL")
}

/// Returns the SQL that selects the last run of a spec if the run never ended and no active session
/// owns it.
fn unfinished_run_sql() -> String {
    format!(
        "SELECT id FROM hqdl.run WHERE ended_at IS NULL AND id =
           (SELECT max(id) FROM hqdl.run WHERE spec = $1 AND (session IS NULL OR NOT {ALIVE}))"
    )
}

const INSERT_RUN: &str =
    "INSERT INTO hqdl.run (command, spec, session) VALUES ($1, $2, $3) RETURNING id";
const END_RUN: [&str; 2] = [
    "DELETE FROM hqdl.reservation WHERE run = $1 AND NOT in_doubt",
    "UPDATE hqdl.run SET ended_at = now(), outcome = $2, session = NULL WHERE id = $1",
];
/// Lock under which a process decides which run to resume.
const LOCK_HEAD: &str = "SELECT 1 FROM hqdl.head FOR UPDATE";

async fn end_run(client: &Transaction<'_>, run: i64, outcome: Outcome) -> WorkResult<i64> {
    let name = outcome.name();
    let (of_run, of_outcome) = (attach_types(&[&run]), attach_types(&[&run, &name]));
    tokio::try_join!(
        client.query_typed(END_RUN[0], &of_run),
        client.query_typed(END_RUN[1], &of_outcome)
    )?;
    Ok(run)
}

fn read_spent_amount(row: &Row) -> WorkResult<SpentAmount> {
    Ok(SpentAmount { usd: row.try_get(0)?, tokens: row.try_get::<_, i64>(1)?.cast_unsigned() })
}

impl Server {
    /// Returns the id of this process's session, and starts the session if necessary.
    fn ensure_session_id(&self) -> Result<String, FactsError> {
        self.link.block_on(self.keep_session_alive()).map(|id| id.to_string())
    }
}

impl Runs for Server {
    fn start_run(&self, command: &str, spec: &str) -> Result<RunId, FactsError> {
        let (command, spec, session) = (
            super::replace_nul_chars(command),
            super::replace_nul_chars(spec),
            self.ensure_session_id()?,
        );
        let (command, spec, session) = (&command, &spec, &session);
        let run = self.transact_once(&async |all: &Transaction<'_>| {
            Ok(all
                .query_typed_one(INSERT_RUN, &attach_types(&[command, spec, session]))
                .await?
                .try_get(0)?)
        })?;
        Ok(RunId(run))
    }

    fn resume_or_start_run(
        &self,
        command: &str,
        spec: &str,
    ) -> Result<(RunId, UnconfirmedCost), FactsError> {
        let (command, spec, session) = (
            super::replace_nul_chars(command),
            super::replace_nul_chars(spec),
            self.ensure_session_id()?,
        );
        let (command, spec, session) = (&command, &spec, &session);
        // Marking the costs as in doubt here ensures that each unconfirmed cost is reported once.
        let mark_in_doubt = format!(
            "WITH left_over AS (UPDATE hqdl.reservation SET in_doubt = true
               WHERE NOT in_doubt AND NOT {ALIVE} RETURNING cost_usd, tokens)
             SELECT coalesce(sum(cost_usd), 0), coalesce(sum(tokens), 0)::bigint, count(*) FROM left_over"
        );
        let doubt = self.query_one(&mark_in_doubt, &[], |r| {
            let requests = r.try_get::<_, i64>(2)?.cast_unsigned() as _;
            Ok(UnconfirmedCost { requests, max_spent: read_spent_amount(r)? })
        })?;
        let unfinished = &unfinished_run_sql();
        let run = self.transact_once(&async |all: &Transaction<'_>| {
            all.batch_execute(LOCK_HEAD).await?;
            let Some(left) = all.query_typed_opt(unfinished, &attach_types(&[spec])).await? else {
                return Ok(all
                    .query_typed_one(INSERT_RUN, &attach_types(&[command, spec, session]))
                    .await?
                    .try_get(0)?);
            };
            let run: i64 = left.try_get(0)?;
            let sql = "UPDATE hqdl.run SET session = $2 WHERE id = $1";
            all.query_typed(sql, &attach_types(&[&run, session])).await?;
            Ok(run)
        })?;
        Ok((RunId(run), doubt))
    }

    fn find_unfinished_run(&self, spec: &str) -> Result<Option<RunId>, FactsError> {
        self.query_first(&unfinished_run_sql(), &[&super::replace_nul_chars(spec)], |r| {
            Ok(RunId(r.try_get(0)?))
        })
    }

    fn finish_run(&self, run: RunId, outcome: Outcome) -> Result<(), FactsError> {
        self.transact_once(&async |all: &Transaction<'_>| end_run(all, run.0, outcome).await)
            .map(drop)
    }

    fn finish_unfinished_run(&self, spec: &str, outcome: Outcome) -> Result<(), FactsError> {
        if self.find_unfinished_run(spec)?.is_none() {
            return Ok(());
        }
        let (spec, unfinished) = (&super::replace_nul_chars(spec), &unfinished_run_sql());
        self.transact_once(&async |all: &Transaction<'_>| {
            // Check again under the lock, because another process may have resumed the run.
            all.batch_execute(LOCK_HEAD).await?;
            let Some(left) = all.query_typed_opt(unfinished, &attach_types(&[spec])).await? else {
                return Ok(0);
            };
            let run: i64 = left.try_get(0)?;
            let sql =
                format!("SELECT 1 FROM hqdl.parcel AS p WHERE p.run = $1 AND {IN_FLIGHT_JOB}");
            match all.query_typed_opt(&format!("{sql} LIMIT 1"), &attach_types(&[&run])).await? {
                Some(_) => Ok(0),
                None => end_run(all, run, outcome).await,
            }
        })
        .map(drop)
    }

    fn leave_run_open(&self, run: RunId) -> Result<(), FactsError> {
        self.execute_sql(END_RUN[0], &[&run.0])?;
        self.execute_sql("UPDATE hqdl.run SET session = NULL WHERE id = $1", &[&run.0])
    }

    fn is_run_active(&self, run: RunId) -> Result<bool, FactsError> {
        let sql = format!("SELECT 1 WHERE $1 IN ({})", active_runs_sql());
        Ok(!self.query_rows(&sql, &[&run.0])?.is_empty())
    }
}

impl Spending for Server {
    fn sum_run_cost(&self, run: RunId) -> Result<SpentAmount, FactsError> {
        let sql = "SELECT coalesce(sum(usd), 0), coalesce(sum(tokens), 0)::bigint FROM (
             SELECT c.cost_usd AS usd, c.input_tokens + c.output_tokens AS tokens
             FROM hqdl.completion AS c JOIN hqdl.model AS m ON m.id = c.model AND NOT m.recorded
             WHERE c.run = $1
             UNION ALL SELECT cost_usd, tokens FROM hqdl.reservation WHERE run = $1) AS x";
        self.query_one(sql, &[&run.0], read_spent_amount)
    }

    fn sum_cost_today(&self) -> Result<f64, FactsError> {
        let sql = format!(
            "SELECT coalesce((SELECT usd FROM hqdl.day WHERE date = {TODAY_SQL}), 0)
               + coalesce((SELECT sum(cost_usd) FROM hqdl.reservation WHERE date = {TODAY_SQL}), 0)"
        );
        self.query_one(&sql, &[], |r| Ok(r.try_get(0)?))
    }

    fn sum_reserved_run_cost(&self, run: RunId) -> Result<SpentAmount, FactsError> {
        self.query_one(&reserved_sql("p.run = $1"), &[&run.0], read_spent_amount)
    }

    fn sum_reserved_cost_today(&self) -> Result<SpentAmount, FactsError> {
        self.query_one(&reserved_sql(&format!("p.sent_on = {TODAY_SQL}")), &[], read_spent_amount)
    }

    fn load_hourly_spending(&self, since: &str) -> Result<Vec<HourlySpending>, FactsError> {
        let sql = "SELECT to_char(date_trunc('hour', c.kept_at AT TIME ZONE 'UTC'), 'YYYY-MM-DD\"T\"HH24'),
               m.name, sum(c.cost_usd), sum(c.input_tokens + c.output_tokens)::bigint, count(*)
             FROM hqdl.completion AS c JOIN hqdl.model AS m ON m.id = c.model AND NOT m.recorded
             WHERE c.kept_at >= ($1::text)::timestamp AT TIME ZONE 'UTC' GROUP BY 1, 2 ORDER BY 1, 2";
        self.query_all(sql, &[&since], |r| {
            Ok(HourlySpending {
                hour: r.try_get(0)?,
                model: r.try_get(1)?,
                usd: r.try_get(2)?,
                tokens: r.try_get::<_, i64>(3)?.cast_unsigned(),
                requests: r.try_get::<_, i64>(4)?.cast_unsigned(),
            })
        })
    }

    fn load_column_costs(
        &self,
        line: i64,
        since: &str,
    ) -> Result<(i64, Vec<ColumnDailyCost>), FactsError> {
        let sql = "SELECT coalesce(max(line), 0) FROM hqdl.answer";
        let last: i64 = self.query_one(sql, &[], |r| Ok(r.try_get(0)?))?;
        // PostgreSQL rejects NUL in text, even in a value that the query does not use.
        let sql = "SELECT to_char(c.kept_at AT TIME ZONE 'UTC', 'YYYY-MM-DD'), t.meaning,
               sum(c.cost_usd / nullif(c.cells, 0)), count(*)
             FROM hqdl.answer AS a JOIN hqdl.completion AS c ON c.id = a.completion
             JOIN hqdl.model AS m ON m.id = c.model AND NOT m.recorded
             CROSS JOIN LATERAL json_array_elements(
               CASE WHEN a.line = ANY($4) THEN '[]' ELSE replace(a.cells, '\\u0000', '\\u0020') END::json) AS cell
             JOIN hqdl.meaning AS t ON t.id = (cell -> 0)::text::integer
             WHERE a.line > $1 AND a.line <= $2 AND c.kept_at >= ($3::text)::timestamp AT TIME ZONE 'UTC'
             GROUP BY 1, t.id, 2 ORDER BY 1, 2";
        let columns = |without: &[i64]| {
            self.query_all(sql, &[&line, &last, &since, &without], |r| {
                Ok(ColumnDailyCost {
                    day: r.try_get(0)?,
                    identity: r.try_get(1)?,
                    usd: r.try_get::<_, Option<f64>>(2)?.unwrap_or_default(),
                    cells: r.try_get::<_, i64>(3)?.cast_unsigned(),
                })
            })
        };
        let columns = match columns(&[]) {
            // Skip the damaged rows. If there are none, the error has another cause.
            Err(error @ FactsError::Journal { .. }) => match self.find_damage(line)?.fact_rows {
                damaged if damaged.is_empty() => return Err(error),
                damaged => columns(&damaged)?,
            },
            columns => columns?,
        };
        Ok((last, columns))
    }

    fn load_totals(&self) -> Result<Totals, FactsError> {
        let sql = "SELECT (SELECT count(*) FROM hqdl.run), count(*),
               coalesce(sum(c.input_tokens), 0)::bigint, coalesce(sum(c.output_tokens), 0)::bigint,
               coalesce(sum(c.cost_usd), 0), coalesce((SELECT sum(cost_usd) FROM hqdl.reservation), 0),
               coalesce(sum(c.assumed_cache_writes), 0)::bigint
             FROM hqdl.completion AS c JOIN hqdl.model AS m ON m.id = c.model AND NOT m.recorded
             WHERE c.content IS NOT NULL";
        self.query_one(sql, &[], |r| {
            let number =
                |at: usize| -> WorkResult<u64> { Ok(r.try_get::<_, i64>(at)?.cast_unsigned()) };
            Ok(Totals {
                runs: number(0)?,
                requests: number(1)?,
                input_tokens: number(2)?,
                output_tokens: number(3)?,
                cost_usd: r.try_get(4)?,
                in_doubt_usd: r.try_get(5)?,
                assumed_cache_writes: number(6)?,
            })
        })
    }
}

fn reserved_sql(which: &str) -> String {
    format!(
        "SELECT coalesce(sum(r.worst_usd), 0), coalesce(sum(r.worst_tokens), 0)::bigint
         FROM hqdl.request AS r JOIN hqdl.parcel AS p ON p.id = r.parcel
         WHERE r.state = 'packed' AND {IN_FLIGHT_JOB} AND {which}"
    )
}
