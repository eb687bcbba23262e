//! Records: the answer rows about an entity, merged when they are read.

use std::collections::HashMap;

use bytes::Bytes;
use serde_json::Value as Json;
use tokio_postgres::Row;

use crate::FactsError;
use crate::checksum::answer_checksum;
use crate::journal::json_fact;
use crate::postgres::Server;
use crate::postgres::key::{head, key};
use crate::postgres::link::Worked;
use crate::record::{Fact, Record, RecordBytes};
use hqdl_values::key::Entity;

/// Number of entities per query.
const MANY: usize = 4000;
/// Approximate number of answer rows per page.
const LINES: i64 = 2000;

/// Columns of an answer row, in the order in which [`StoredLine`] reads them.
pub(super) const LINE: &str = "a.key, a.line, a.completion, a.model, a.checksum, a.cells, a.entity";

/// Selects the answer rows of some keys.
pub(super) const LINES_OF: &str =
    "SELECT a.key, a.line, a.completion, a.model, a.checksum, a.cells, a.entity
  FROM hqdl.answer AS a WHERE a.key = ANY($1) ORDER BY a.line";

/// An answer row as the server stores it.
pub(super) struct StoredLine {
    pub(super) key: String,
    pub(super) id: i64,
    completion: i64,
    model: u32,
    checksum: i64,
    cells: String,
    entity: Option<String>,
}

impl StoredLine {
    pub(super) fn read(row: &Row) -> Worked<Self> {
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
    pub(super) fn facts(&self) -> Option<Vec<Fact>> {
        // The server assigns the completion ids, so the checksum does not include them.
        if self.checksum != answer_checksum(self.entity(), 0, self.model, &self.cells) {
            return None;
        }
        let cells: Vec<Json> = serde_json::from_str(&self.cells).ok()?;
        cells.iter().map(|cell| json_fact(cell, self.completion, self.model)).collect()
    }

    /// Merges the row into the record of the rows before it. A damaged row empties the record,
    /// because it may have replaced any of the values.
    fn join(&self, record: &mut Record) {
        match self.facts() {
            Some(facts) => facts.into_iter().for_each(|fact| record.merge(fact)),
            None => *record = Record::default(),
        }
    }
}

impl Server {
    /// Returns the records of `entities`, in their order.
    pub(super) async fn records(
        &self,
        entities: &[Entity],
    ) -> Result<Vec<Option<Record>>, FactsError> {
        let mut found = Vec::with_capacity(entities.len());
        for entities in entities.chunks(MANY) {
            let keys: Vec<String> = entities.iter().map(key).collect();
            let of = &keys;
            let rows = self.link.run(|client| async move {
                let select = client.prepare_cached(LINES_OF).await?;
                Ok(client.query(&select, &[of]).await?)
            });
            found.extend(self.records_in(of, &rows.await?)?);
        }
        Ok(found)
    }

    /// Returns the records of `keys`, in their order, from all answer rows about these keys.
    pub(super) fn records_in(
        &self,
        keys: &[String],
        rows: &[Row],
    ) -> Result<Vec<Option<Record>>, FactsError> {
        let mut records: HashMap<String, Record> = HashMap::with_capacity(keys.len());
        for row in rows {
            let line = self.read(row, StoredLine::read)?;
            line.join(records.entry(line.key.clone()).or_default());
        }
        // `keys` may contain a key twice.
        let record = |key: &String| records.get(key).cloned();
        Ok(keys.iter().map(|key| record(key).filter(|r| !r.facts.is_empty())).collect())
    }

    /// Returns entities with their records in the order of their texts, starting after one.
    pub(super) async fn page_after(
        &self,
        after: &str,
    ) -> Result<Vec<(String, RecordBytes)>, FactsError> {
        // Entities whose texts share a long prefix have no order among themselves, so all of them
        // are read.
        let (mut lines, mut from, mut strict) =
            (Vec::<StoredLine>::new(), head(after).to_owned(), false);
        loop {
            let some = self.lines_from(&from, strict).await?;
            let over = super::count(some.len()) < LINES;
            lines.extend(some);
            let Some(last) = lines.last() else { return Ok(Vec::new()) };
            (from, strict) = (last.key.clone(), true);
            if over {
                break;
            }
            // The last group may be incomplete, so it is left for the next page.
            let last = head(&last.key).to_owned();
            let first = lines.partition_point(|line| head(&line.key) < last.as_str());
            if lines[..first].iter().any(|line| line.entity() > after) {
                lines.truncate(first);
                break;
            }
        }
        let mut records: HashMap<&str, Record> = HashMap::new();
        for line in lines.iter().filter(|line| line.entity() > after) {
            line.join(records.entry(line.entity()).or_default());
        }
        let mut page = Vec::with_capacity(records.len());
        for (entity, record) in records {
            let bytes = postcard::to_stdvec(&record).map_err(|e| self.failed(&e.to_string()))?;
            page.push((entity.to_owned(), RecordBytes(Bytes::from(bytes))));
        }
        page.sort_by(|(one, _), (other, _)| one.cmp(other));
        Ok(page)
    }

    /// Returns answer rows in the order of their keys, with all rows of each key.
    async fn lines_from(&self, from: &str, strict: bool) -> Result<Vec<StoredLine>, FactsError> {
        let than = if strict { ">" } else { ">=" };
        let sql = format!(
            "SELECT {LINE} FROM hqdl.answer AS a WHERE a.key {than} $1 AND a.key <= coalesce(
               (SELECT b.key FROM hqdl.answer AS b WHERE b.key {than} $1
                ORDER BY b.key, b.line OFFSET $2 LIMIT 1),
               (SELECT max(b.key) FROM hqdl.answer AS b))
             ORDER BY a.key, a.line"
        );
        let (sql, last) = (sql.as_str(), LINES - 1);
        self.link
            .run(|client| async move {
                let select = client.prepare_cached(sql).await?;
                client.query(&select, &[&from, &last]).await?.iter().map(StoredLine::read).collect()
            })
            .await
    }
}
