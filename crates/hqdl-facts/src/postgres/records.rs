//! Records: the answer rows about an entity, merged when they are read.

use std::collections::HashMap;

use bytes::Bytes;
use serde_json::Value as Json;
use tokio_postgres::Row;

use crate::FactsError;
use crate::checksum::compute_answer_checksum;
use crate::journal::parse_fact;
use crate::postgres::Server;
use crate::postgres::connection::WorkResult;
use crate::postgres::key::{entity_key, key_prefix};
use crate::record::{Fact, Record, RecordBytes};
use hqdl_values::key::Entity;

/// Number of entities per query.
const KEYS_PER_QUERY: usize = 4000;
/// Approximate number of answer rows per page.
const PAGE_ROWS: i64 = 2000;

/// Columns of an answer row, in the order in which [`StoredRow`] reads them.
pub(super) const ROW_COLUMNS: &str =
    "a.key, a.line, a.completion, a.model, a.checksum, a.cells, a.entity";

/// Selects the answer rows of some keys.
pub(super) const ROWS_OF_KEYS: &str =
    "SELECT a.key, a.line, a.completion, a.model, a.checksum, a.cells, a.entity
  FROM hqdl.answer AS a WHERE a.key = ANY($1) ORDER BY a.line";

/// An answer row as the server stores it.
pub(super) struct StoredRow {
    pub(super) key: String,
    pub(super) id: i64,
    completion: i64,
    model: u32,
    checksum: i64,
    cells: String,
    entity: Option<String>,
}

impl StoredRow {
    pub(super) fn from_row(row: &Row) -> WorkResult<Self> {
        Ok(Self {
            key: row.try_get(0)?,
            id: row.try_get(1)?,
            completion: row.try_get(2)?,
            model: row.try_get::<_, i32>(3)?.cast_unsigned(),
            checksum: row.try_get(4)?,
            cells: row.try_get(5)?,
            entity: row.try_get(6)?,
        })
    }

    /// Returns the text of the row's entity.
    pub(super) fn entity(&self) -> &str {
        self.entity.as_deref().unwrap_or(&self.key)
    }

    /// Returns the row's facts, or `None` if its checksum is wrong.
    pub(super) fn parse_facts(&self) -> Option<Vec<Fact>> {
        // The server assigns the completion ids, so the checksum does not include them.
        if self.checksum != compute_answer_checksum(self.entity(), 0, self.model, &self.cells) {
            return None;
        }
        let cells: Vec<Json> = serde_json::from_str(&self.cells).ok()?;
        cells.iter().map(|cell| parse_fact(cell, self.completion, self.model)).collect()
    }

    /// Merges the row into the record built from earlier rows. A damaged row empties the record,
    /// because it may have replaced any of the values.
    fn merge_into(&self, record: &mut Record) {
        match self.parse_facts() {
            Some(facts) => facts.into_iter().for_each(|fact| record.merge(fact)),
            None => *record = Record::default(),
        }
    }
}

impl Server {
    /// Returns the records of `entities`, in their order.
    pub(super) async fn read_records(
        &self,
        entities: &[Entity],
    ) -> Result<Vec<Option<Record>>, FactsError> {
        let mut found = Vec::with_capacity(entities.len());
        for entities in entities.chunks(KEYS_PER_QUERY) {
            let keys: Vec<String> = entities.iter().map(entity_key).collect();
            let of = &keys;
            let rows = self.link.with_client(|client| async move {
                let select = client.prepare_cached(ROWS_OF_KEYS).await?;
                Ok(client.query(&select, &[of]).await?)
            });
            found.extend(self.merge_rows(of, &rows.await?)?);
        }
        Ok(found)
    }

    /// Merges all answer rows about `keys` into records, in the order of `keys`.
    pub(super) fn merge_rows(
        &self,
        keys: &[String],
        rows: &[Row],
    ) -> Result<Vec<Option<Record>>, FactsError> {
        let mut records: HashMap<String, Record> = HashMap::with_capacity(keys.len());
        for row in rows {
            let line = self.read_row(row, StoredRow::from_row)?;
            line.merge_into(records.entry(line.key.clone()).or_default());
        }
        // `keys` may contain a key twice.
        let record = |key: &String| records.get(key).cloned();
        Ok(keys.iter().map(|key| record(key).filter(|r| !r.facts.is_empty())).collect())
    }

    /// Returns a page of entities with their records, in text order, starting after `after`.
    pub(super) async fn read_page(
        &self,
        after: &str,
    ) -> Result<Vec<(String, RecordBytes)>, FactsError> {
        // Entities whose texts share a long prefix are not ordered among themselves, so read all of
        // them.
        let (mut lines, mut from, mut strict) =
            (Vec::<StoredRow>::new(), key_prefix(after).to_owned(), false);
        loop {
            let some = self.read_rows_from(&from, strict).await?;
            let over = super::to_bigint(some.len()) < PAGE_ROWS;
            lines.extend(some);
            let Some(last) = lines.last() else { return Ok(Vec::new()) };
            (from, strict) = (last.key.clone(), true);
            if over {
                break;
            }
            // The last group may be incomplete, so leave it for the next page.
            let last = key_prefix(&last.key).to_owned();
            let first = lines.partition_point(|line| key_prefix(&line.key) < last.as_str());
            if lines[..first].iter().any(|line| line.entity() > after) {
                lines.truncate(first);
                break;
            }
        }
        let mut records: HashMap<&str, Record> = HashMap::new();
        for line in lines.iter().filter(|line| line.entity() > after) {
            line.merge_into(records.entry(line.entity()).or_default());
        }
        let mut page = Vec::with_capacity(records.len());
        for (entity, record) in records {
            let bytes =
                postcard::to_stdvec(&record).map_err(|e| self.server_error(&e.to_string()))?;
            page.push((entity.to_owned(), RecordBytes(Bytes::from(bytes))));
        }
        page.sort_by(|(one, _), (other, _)| one.cmp(other));
        Ok(page)
    }

    /// Returns answer rows in key order, with all rows of each key.
    async fn read_rows_from(&self, from: &str, strict: bool) -> Result<Vec<StoredRow>, FactsError> {
        let than = if strict { ">" } else { ">=" };
        let sql = format!(
            "SELECT {ROW_COLUMNS} FROM hqdl.answer AS a WHERE a.key {than} $1 AND a.key <= coalesce(
               (SELECT b.key FROM hqdl.answer AS b WHERE b.key {than} $1
                ORDER BY b.key, b.line OFFSET $2 LIMIT 1),
               (SELECT max(b.key) FROM hqdl.answer AS b))
             ORDER BY a.key, a.line"
        );
        let (sql, last) = (sql.as_str(), PAGE_ROWS - 1);
        self.link
            .with_client(|client| async move {
                let select = client.prepare_cached(sql).await?;
                client
                    .query(&select, &[&from, &last])
                    .await?
                    .iter()
                    .map(StoredRow::from_row)
                    .collect()
            })
            .await
    }
}
