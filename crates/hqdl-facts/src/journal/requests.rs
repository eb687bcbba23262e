//! Requests of batch jobs in the journal.

use crate::requests::{BatchedRequest, KnownRequest};
use rusqlite::{Connection, OptionalExtension, Row as SqlRow, params};

use crate::FactsError;
use crate::history::BatchRequests;
use crate::ids::RunId;
use crate::journal::reservations::IN_FLIGHT_JOB;
use crate::journal::{ACTIVE_RUNS, Journal};
use hqdl_values::key::Entity;
use hqdl_values::usage::SpentAmount;

const SELECT_REQUEST: &str = "SELECT r.id, r.form, r.model, r.columns, r.whole, r.meanings, r.attempt, r.sent,
    coalesce(p.run, 0), coalesce(p.sent_at, p.written_at, ''), r.worst_usd, r.worst_tokens FROM request AS r LEFT JOIN parcel AS p ON p.id = r.parcel";

/// Adds requests to the queue of a run, within a transaction.
fn insert_requests(
    c: &Connection,
    run: RunId,
    requests: &[BatchedRequest],
) -> rusqlite::Result<()> {
    let mut request = c.prepare_cached(
        "INSERT INTO request (state, form, model, columns, whole, meanings, attempt, sent, run)
         VALUES ('waiting', ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
    )?;
    let mut row = c.prepare_cached(
        "INSERT INTO request_row (request, number, entity, row) VALUES (?1, ?2, ?3, ?4)",
    )?;
    for r in requests {
        let id = request.insert(params![
            r.template,
            r.model,
            to_json(&r.columns),
            to_json(&r.source_columns),
            to_json(&r.identity_ids),
            r.attempt,
            r.sent_count,
            run
        ])?;
        for (n, (entity, cells)) in r.rows.iter().enumerate() {
            row.execute(params![id, n, entity.as_str(), to_json(cells)])?;
        }
    }
    Ok(())
}

impl BatchRequests for Journal {
    fn enqueue_requests(&self, run: RunId, requests: &[BatchedRequest]) -> Result<(), FactsError> {
        self.transact_with_connection(|c| insert_requests(c, run, requests))
    }

    fn split_request(
        &self,
        run: RunId,
        request: &mut BatchedRequest,
        rows: usize,
    ) -> Result<(), FactsError> {
        let rows = rows.min(request.rows.len());
        let rest = [BatchedRequest { rows: request.rows[rows..].to_vec(), ..request.clone() }];
        self.transact_with_connection(|c| {
            let sql = "DELETE FROM request_row WHERE request = ?1 AND number >= ?2";
            c.execute(sql, params![request.id, rows])?;
            insert_requests(c, run, &rest)
        })?;
        request.rows.truncate(rows);
        Ok(())
    }

    fn count_queued_requests(&self, run: RunId) -> Result<u64, FactsError> {
        let sql = "SELECT count(*) FROM request WHERE state = 'waiting' AND run = ?1";
        self.with_snapshot(|c| c.query_row(sql, [run], |r| r.get(0)))
    }

    fn find_next_request(
        &self,
        run: RunId,
        after: i64,
    ) -> Result<Option<BatchedRequest>, FactsError> {
        let sql = format!(
            "{SELECT_REQUEST} WHERE r.state = 'waiting' AND r.id > ?1 AND r.run = ?2 ORDER BY r.id LIMIT 1"
        );
        self.with_snapshot(|c| select_request(c, &sql, &[&after, &run]))
    }

    fn find_request(
        &self,
        custom_id: &str,
        batch_job: Option<i64>,
    ) -> Result<KnownRequest, FactsError> {
        self.with_snapshot(|c| {
            let within = "(?2 IS NULL OR r.parcel = ?2)";
            // If a request was exported twice, the submitted copy comes first.
            let sql = format!(
                "{SELECT_REQUEST} WHERE r.custom_id = ?1 AND {within} AND r.state = 'packed'
                 ORDER BY p.state = 'exported', r.id DESC LIMIT 1"
            );
            if let Some(request) = select_request(c, &sql, &[&custom_id, &batch_job])? {
                return Ok(KnownRequest::Open(Box::new(request)));
            }
            let sql = format!("SELECT 1 FROM request AS r WHERE r.custom_id = ?1 AND {within}");
            let done = c.prepare_cached(&sql)?.exists(params![custom_id, batch_job])?;
            Ok(if done { KnownRequest::Done } else { KnownRequest::Unknown })
        })
    }

    fn list_unanswered_requests(&self, batch_job: i64) -> Result<Vec<i64>, FactsError> {
        let sql = "SELECT id FROM request WHERE parcel = ?1 AND state = 'packed' ORDER BY id";
        self.with_snapshot(|c| c.prepare(sql)?.query_map([batch_job], |r| r.get(0))?.collect())
    }

    fn load_request(&self, id: i64) -> Result<Option<BatchedRequest>, FactsError> {
        self.with_snapshot(|c| {
            select_request(c, &format!("{SELECT_REQUEST} WHERE r.id = ?1"), &[&id])
        })
    }

    fn requeue_request(&self, request: i64, run: RunId, counts: bool) -> Result<(), FactsError> {
        let sql =
            "UPDATE request SET state = 'waiting', parcel = NULL, custom_id = NULL, worst_usd = 0,
                     worst_tokens = 0, sent = sent - ?2, run = ?3 WHERE id = ?1";
        self.transact_with_connection(|c| {
            c.execute(sql, params![request, i64::from(!counts), run]).map(drop)
        })
    }

    fn drop_request(&self, request: i64) -> Result<(), FactsError> {
        self.transact_with_connection(|c| close_request(c, request, "dropped"))
    }

    fn list_batched_columns(&self, entity: &Entity, model: u32) -> Result<Vec<u32>, FactsError> {
        self.with_snapshot(|c| {
            let sql = format!(
                "SELECT r.meanings FROM request_row AS e JOIN request AS r ON r.id = e.request
                 LEFT JOIN parcel AS p ON p.id = r.parcel
                 WHERE e.entity = ?1 AND r.model = ?2 AND r.state IN ('waiting', 'packed')
                   AND ({IN_FLIGHT_JOB} OR r.run IN ({ACTIVE_RUNS}))"
            );
            let mut found = Vec::new();
            let mut statement = c.prepare_cached(&sql)?;
            let mut rows = statement.query(params![entity.as_str(), model])?;
            while let Some(row) = rows.next()? {
                found.extend(parse_json_column::<Vec<u32>>(row, 0)?);
            }
            Ok(found)
        })
    }

    fn list_exported_columns(
        &self,
        entity: &Entity,
        model: u32,
    ) -> Result<Vec<(i64, Vec<u32>)>, FactsError> {
        self.with_snapshot(|c| {
            c.prepare_cached(
                "SELECT r.parcel, r.meanings FROM request_row AS e JOIN request AS r ON r.id = e.request
                 JOIN parcel AS p ON p.id = r.parcel
                 WHERE e.entity = ?1 AND r.model = ?2 AND r.state = 'packed' AND r.failed = 0
                   AND p.state = 'exported' ORDER BY r.parcel",
            )?
            .query_map(params![entity.as_str(), model], |r| Ok((r.get(0)?, parse_json_column(r, 1)?)))?
            .collect()
        })
    }

    fn mark_export_failed(&self, request: i64) -> Result<(), FactsError> {
        let sql = "UPDATE request SET failed = 1 WHERE id = ?1";
        self.transact_with_connection(|c| c.execute(sql, [request]).map(drop))
    }
}

/// Sets the final state of a request and deletes its rows, which are no longer needed. Also settles
/// a duplicate of the request in an exported file.
pub(crate) fn close_request(c: &Connection, request: i64, state: &str) -> rusqlite::Result<()> {
    let mut same = c.prepare_cached(
        "SELECT r.id FROM request AS r JOIN parcel AS p ON p.id = r.parcel
         WHERE r.custom_id = (SELECT custom_id FROM request WHERE id = ?1)
           AND r.state = 'packed' AND p.state = 'exported' AND r.id <> ?1",
    )?;
    let mut ids: Vec<i64> = same.query_map([request], |r| r.get(0))?.collect::<Result<_, _>>()?;
    ids.push(request);
    for id in ids {
        c.prepare_cached("UPDATE request SET state = ?2 WHERE id = ?1")?
            .execute(params![id, state])?;
        c.prepare_cached("DELETE FROM request_row WHERE request = ?1")?.execute([id])?;
    }
    Ok(())
}

fn select_request(
    c: &Connection,
    sql: &str,
    values: &[&dyn rusqlite::ToSql],
) -> rusqlite::Result<Option<BatchedRequest>> {
    let read = |r: &SqlRow<'_>| {
        Ok(BatchedRequest {
            id: r.get(0)?,
            template: r.get(1)?,
            model: r.get(2)?,
            columns: parse_json_column(r, 3)?,
            source_columns: parse_json_column(r, 4)?,
            identity_ids: parse_json_column(r, 5)?,
            rows: Vec::new(),
            attempt: r.get(6)?,
            sent_count: r.get(7)?,
            run: r.get(8)?,
            sent_at: r.get(9)?,
            worst_case: SpentAmount { usd: r.get(10)?, tokens: r.get(11)? },
        })
    };
    let Some(mut request) = c.prepare_cached(sql)?.query_row(values, read).optional()? else {
        return Ok(None);
    };
    let mut rows =
        c.prepare_cached("SELECT entity, row FROM request_row WHERE request = ?1 ORDER BY number")?;
    let mut rows = rows.query([request.id])?;
    while let Some(row) = rows.next()? {
        let entity: String = row.get(0)?;
        let entity = Entity::parse(&entity).map_err(|e| conversion_error(0, e))?;
        request.rows.push((entity, parse_json_column(row, 1)?));
    }
    Ok(Some(request))
}

fn to_json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

fn parse_json_column<T: serde::de::DeserializeOwned>(
    r: &SqlRow<'_>,
    at: usize,
) -> rusqlite::Result<T> {
    let text: String = r.get(at)?;
    serde_json::from_str(&text).map_err(|e| conversion_error(at, e))
}

fn conversion_error(at: usize, error: serde_json::Error) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(at, rusqlite::types::Type::Text, Box::new(error))
}
