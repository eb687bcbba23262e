//! Requests of batch jobs: their columns, their entities and whether they were answered.

use deadpool_postgres::Transaction;
use tokio_postgres::Row;

use crate::FactsError;
use crate::history::BatchRequests;
use crate::ids::RunId;
use crate::postgres::Server;
use crate::postgres::answers::{parse_json_column, to_json};
use crate::postgres::connection::WorkResult;
use crate::postgres::dictionary::Parameters;
use crate::postgres::key::entity_key;
use crate::postgres::reserve::IN_FLIGHT_JOB;
use crate::postgres::runs::active_runs_sql;
use crate::requests::{BatchedRequest, KnownRequest};
use hqdl_values::key::Entity;
use hqdl_values::usage::SpentAmount;

const SELECT_REQUEST: &str =
    "SELECT r.id, r.form, r.model, r.columns, r.whole, r.meanings, r.attempt, r.sent,
    coalesce(p.run, 0), coalesce(p.sent_at, p.written_at, ''), r.worst_usd, r.worst_tokens
  FROM hqdl.request AS r LEFT JOIN hqdl.parcel AS p ON p.id = r.parcel";

fn u32_to_bigint(number: u32) -> i64 {
    i64::from(number)
}

fn read_u32(row: &Row, at: usize) -> WorkResult<u32> {
    Ok(u32::try_from(row.try_get::<_, i64>(at)?).unwrap_or(u32::MAX))
}

async fn insert_requests(
    all: &Transaction<'_>,
    run: RunId,
    requests: &[BatchedRequest],
) -> WorkResult<i64> {
    let sql = "INSERT INTO hqdl.request (state, form, model, columns, whole, meanings, attempt, sent, run)
               VALUES ('waiting', $1, $2, $3, $4, $5, $6, $7, $8) RETURNING id";
    let request = all.prepare_cached(sql).await?;
    let sql = "INSERT INTO hqdl.request_row (request, number, key, entity, row)
               SELECT $1, u.n - 1, u.key, u.entity, u.row FROM unnest($2::text[], $3::text[], $4::text[])
                 WITH ORDINALITY AS u (key, entity, row, n)";
    let rows = all.prepare_cached(sql).await?;
    for r in requests {
        let row = all
            .query_one(
                &request,
                &[
                    &r.template,
                    &r.model.cast_signed(),
                    &to_json(&r.columns),
                    &to_json(&r.source_columns),
                    &to_json(&r.identity_ids),
                    &u32_to_bigint(r.attempt),
                    &u32_to_bigint(r.sent_count),
                    &run.0,
                ],
            )
            .await?;
        let id: i64 = row.try_get(0)?;
        let keys: Vec<String> = r.rows.iter().map(|(entity, _)| entity_key(entity)).collect();
        let entities: Vec<&str> = r.rows.iter().map(|(entity, _)| entity.as_str()).collect();
        let cells: Vec<String> = r.rows.iter().map(|(_, cells)| to_json(cells)).collect();
        all.execute(&rows, &[&id, &keys, &entities, &cells]).await?;
    }
    Ok(0)
}

impl Server {
    fn select_request(
        &self,
        sql: &str,
        values: &Parameters<'_>,
    ) -> Result<Option<BatchedRequest>, FactsError> {
        let found = self.query_first(sql, values, |r| {
            Ok(BatchedRequest {
                id: r.try_get(0)?,
                template: r.try_get(1)?,
                model: r.try_get::<_, i32>(2)?.cast_unsigned(),
                columns: parse_json_column(self, r, 3)?,
                source_columns: parse_json_column(self, r, 4)?,
                identity_ids: parse_json_column(self, r, 5)?,
                rows: Vec::new(),
                attempt: read_u32(r, 6)?,
                sent_count: read_u32(r, 7)?,
                run: RunId(r.try_get(8)?),
                sent_at: r.try_get(9)?,
                worst_case: SpentAmount {
                    usd: r.try_get(10)?,
                    tokens: r.try_get::<_, i64>(11)?.cast_unsigned(),
                },
            })
        })?;
        let Some(mut request) = found else { return Ok(None) };
        let sql = "SELECT entity, row FROM hqdl.request_row WHERE request = $1 ORDER BY number";
        request.rows = self.query_all(sql, &[&request.id], |r| {
            let entity: String = r.try_get(0)?;
            let entity = Entity::parse(&entity).map_err(|e| self.server_error(&e.to_string()))?;
            Ok((entity, parse_json_column(self, r, 1)?))
        })?;
        Ok(Some(request))
    }
}

impl BatchRequests for Server {
    fn enqueue_requests(&self, run: RunId, requests: &[BatchedRequest]) -> Result<(), FactsError> {
        self.transact_once(&async |all: &Transaction<'_>| insert_requests(all, run, requests).await)
            .map(drop)
    }

    fn split_request(
        &self,
        run: RunId,
        request: &mut BatchedRequest,
        rows: usize,
    ) -> Result<(), FactsError> {
        let rows = rows.min(request.rows.len());
        let rest = [BatchedRequest { rows: request.rows[rows..].to_vec(), ..request.clone() }];
        let (id, left) = (request.id, super::to_bigint(rows));
        self.transact_once(&async |all: &Transaction<'_>| {
            let sql = "DELETE FROM hqdl.request_row WHERE request = $1 AND number >= $2";
            all.execute(sql, &[&id, &left]).await?;
            insert_requests(all, run, &rest).await
        })?;
        request.rows.truncate(rows);
        Ok(())
    }

    fn count_queued_requests(&self, run: RunId) -> Result<u64, FactsError> {
        let sql = "SELECT count(*) FROM hqdl.request WHERE state = 'waiting' AND run = $1";
        self.query_one(sql, &[&run.0], |r| Ok(r.try_get::<_, i64>(0)?.cast_unsigned()))
    }

    fn find_next_request(
        &self,
        run: RunId,
        after: i64,
    ) -> Result<Option<BatchedRequest>, FactsError> {
        let sql = format!(
            "{SELECT_REQUEST} WHERE r.state = 'waiting' AND r.id > $1 AND r.run = $2 ORDER BY r.id LIMIT 1"
        );
        self.select_request(&sql, &[&after, &run.0])
    }

    fn find_request(
        &self,
        custom_id: &str,
        batch_job: Option<i64>,
    ) -> Result<KnownRequest, FactsError> {
        let custom_id = &super::replace_nul_chars(custom_id);
        let within = "($2::bigint IS NULL OR r.parcel = $2)";
        // If a request was exported twice, the submitted copy comes first.
        let sql = format!(
            "{SELECT_REQUEST} WHERE r.custom_id = $1 AND {within} AND r.state = 'packed'
             ORDER BY p.state = 'exported', r.id DESC LIMIT 1"
        );
        if let Some(request) = self.select_request(&sql, &[custom_id, &batch_job])? {
            return Ok(KnownRequest::Open(Box::new(request)));
        }
        let sql =
            format!("SELECT 1 FROM hqdl.request AS r WHERE r.custom_id = $1 AND {within} LIMIT 1");
        let done = !self.query_rows(&sql, &[custom_id, &batch_job])?.is_empty();
        Ok(if done { KnownRequest::Done } else { KnownRequest::Unknown })
    }

    fn list_unanswered_requests(&self, batch_job: i64) -> Result<Vec<i64>, FactsError> {
        let sql = "SELECT id FROM hqdl.request WHERE parcel = $1 AND state = 'packed' ORDER BY id";
        self.query_all(sql, &[&batch_job], |r| Ok(r.try_get(0)?))
    }

    fn load_request(&self, id: i64) -> Result<Option<BatchedRequest>, FactsError> {
        self.select_request(&format!("{SELECT_REQUEST} WHERE r.id = $1"), &[&id])
    }

    fn requeue_request(&self, request: i64, run: RunId, counts: bool) -> Result<(), FactsError> {
        let less = i64::from(!counts);
        self.transact_once(&async |all: &Transaction<'_>| {
            let sql = "UPDATE hqdl.request SET state = 'waiting', parcel = NULL, custom_id = NULL,
                         worst_usd = 0, worst_tokens = 0, sent = sent - $2, run = $3 WHERE id = $1";
            all.execute(sql, &[&request, &less, &run.0]).await?;
            Ok(request)
        })
        .map(drop)
    }

    fn drop_request(&self, request: i64) -> Result<(), FactsError> {
        self.transact_once(&async |all: &Transaction<'_>| {
            let same = "SELECT r.id FROM hqdl.request AS r WHERE r.id = $1
               OR (r.state = 'packed' AND r.parcel IN (SELECT id FROM hqdl.parcel WHERE state = 'exported')
                 AND r.custom_id = (SELECT custom_id FROM hqdl.request WHERE id = $1))";
            let ids: Vec<i64> = all
                .query(same, &[&request])
                .await?
                .iter()
                .map(|r| r.try_get(0))
                .collect::<Result<_, _>>()?;
            let sql = "UPDATE hqdl.request SET state = 'dropped' WHERE id = ANY($1)";
            all.execute(sql, &[&ids]).await?;
            all.execute("DELETE FROM hqdl.request_row WHERE request = ANY($1)", &[&ids]).await?;
            Ok(request)
        })
        .map(drop)
    }

    fn list_batched_columns(&self, entity: &Entity, model: u32) -> Result<Vec<u32>, FactsError> {
        let sql = format!(
            "SELECT r.meanings FROM hqdl.request_row AS e JOIN hqdl.request AS r ON r.id = e.request
             LEFT JOIN hqdl.parcel AS p ON p.id = r.parcel
             WHERE e.key = $1 AND r.model = $2 AND r.state IN ('waiting', 'packed')
               AND ({IN_FLIGHT_JOB} OR r.run IN ({}))",
            active_runs_sql()
        );
        let found: Vec<Vec<u32>> =
            self.query_all(&sql, &[&entity_key(entity), &model.cast_signed()], |r| {
                parse_json_column(self, r, 0)
            })?;
        Ok(found.concat())
    }

    fn list_exported_columns(
        &self,
        entity: &Entity,
        model: u32,
    ) -> Result<Vec<(i64, Vec<u32>)>, FactsError> {
        let sql = "SELECT r.parcel, r.meanings FROM hqdl.request_row AS e
             JOIN hqdl.request AS r ON r.id = e.request JOIN hqdl.parcel AS p ON p.id = r.parcel
             WHERE e.key = $1 AND r.model = $2 AND r.state = 'packed' AND NOT r.failed
               AND p.state = 'exported' ORDER BY r.parcel";
        self.query_all(sql, &[&entity_key(entity), &model.cast_signed()], |r| {
            Ok((r.try_get(0)?, parse_json_column(self, r, 1)?))
        })
    }

    fn mark_export_failed(&self, request: i64) -> Result<(), FactsError> {
        self.execute_sql("UPDATE hqdl.request SET failed = true WHERE id = $1", &[&request])
    }
}
