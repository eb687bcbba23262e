//! Records: the lines about an entity, merged as they are read.

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

/// Entities that are looked up at once.
const MANY: usize = 4000;
/// Lines that a page is made of, about.
const LINES: i64 = 2000;

/// What reads lines.
pub(super) const LINE: &str = "a.key, a.line, a.completion, a.model, a.checksum, a.cells, a.entity";

/// The lines about some keys.
pub(super) const LINES_OF: &str =
    "SELECT a.key, a.line, a.completion, a.model, a.checksum, a.cells, a.entity
  FROM hqdl.answer AS a WHERE a.key = ANY($1) ORDER BY a.line";

/// A line as it stands there.
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

    /// The text of whom it is about.
    pub(super) fn entity(&self) -> &str {
        self.entity.as_deref().unwrap_or(&self.key)
    }

    /// Its facts; `None` when it is not what was kept.
    pub(super) fn facts(&self) -> Option<Vec<Fact>> {
        // The server gives completions their ids, so they are no part of the sum.
        if self.checksum != answer_checksum(self.entity(), 0, self.model, &self.cells) {
            return None;
        }
        let cells: Vec<Json> = serde_json::from_str(&self.cells).ok()?;
        cells.iter().map(|cell| json_fact(cell, self.completion, self.model)).collect()
    }

    /// Takes this into what was known before it. What was known before a line that
    /// is damaged is not known any more: it may have put something in its place.
    fn join(&self, record: &mut Record) {
        match self.facts() {
            Some(facts) => facts.into_iter().for_each(|fact| record.merge(fact)),
            None => *record = Record::default(),
        }
    }
}

impl Server {
    /// The records of some entities, in their order.
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

    /// The records of some keys, in their order, out of all lines about these.
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
        // Two may ask for the same one.
        let record = |key: &String| records.get(key).cloned();
        Ok(keys.iter().map(|key| record(key).filter(|r| !r.facts.is_empty())).collect())
    }

    /// Entities with their records in the order of their texts, from after one on.
    pub(super) async fn page_after(
        &self,
        after: &str,
    ) -> Result<Vec<(String, RecordBytes)>, FactsError> {
        // Entities whose texts share a long head are in no order among themselves, so
        // they are all read.
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
            // What is not whole is left for the next page.
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

    /// Some lines in the order of their keys, all of each key.
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
