//! The records: the merged facts of each entity, in a database beside the journal. They are derived
//! from the journal's answers, are written together with them, and may be deleted at any time.

use std::collections::HashMap;
use std::path::Path;

use bytes::Bytes;
use rusqlite::{Connection, ErrorCode, OptionalExtension, params};

use crate::FactsError;
use crate::checksum::{AnswerRow, Damage, SORTED_ANSWER_ROWS_SQL, compute_entity_checksum};
use crate::history::{Answers, Integrity};
use crate::journal::{Journal, parse_cells};
use crate::record::{Record, RecordBytes};
use hqdl_values::key::Entity;

/// Version of the record layout. If the file has another version, the records are rebuilt.
const LAYOUT_VERSION: i64 = 2;
/// Number of entities whose records are merged in memory before they are written.
const MERGED_ENTITIES: usize = 1000;
/// Name of the file, beside the journal.
const FILE_NAME: &str = "index.sqlite";

/// Opens the records as the schema `records` of a journal's connection. A damaged file is replaced.
pub(super) fn attach_records(connection: &Connection, journal: &Path) -> rusqlite::Result<()> {
    let path = journal.with_file_name(FILE_NAME);
    let attach = || -> rusqlite::Result<()> {
        // The path is passed as bytes, because it need not be UTF-8.
        let name = path.as_os_str().as_encoded_bytes();
        connection.execute("ATTACH CAST(?1 AS TEXT) AS records", [name])?;
        // A commit need not reach the disk, because the records can be rebuilt.
        connection.execute_batch(
            "PRAGMA records.journal_mode = WAL; PRAGMA records.synchronous = NORMAL;
             PRAGMA records.cache_size = -32000; PRAGMA wal_autocheckpoint = 4000;",
        )?;
        let sql = "SELECT 1 FROM records.sqlite_schema WHERE name = 'head'";
        if !connection.prepare(sql)?.exists([])? {
            connection.execute_batch(
                "BEGIN IMMEDIATE;
                 CREATE TABLE IF NOT EXISTS records.record (entity TEXT PRIMARY KEY, bytes BLOB NOT NULL) WITHOUT ROWID;
                 CREATE TABLE IF NOT EXISTS records.head (journal TEXT PRIMARY KEY, layout INTEGER NOT NULL, line INTEGER NOT NULL);
                 COMMIT;",
            )?;
        }
        Ok(())
    };
    match attach() {
        Err(error) if is_corruption_error(&error) => {
            let _ = connection.execute_batch("ROLLBACK");
            let _ = connection.execute_batch("DETACH records");
            // Keep the file, because it may belong to the user. A process that has it open
            // continues to use it and to follow the journal.
            let _ = std::fs::rename(&path, journal.with_file_name(format!("{FILE_NAME}.damaged")));
            for suffix in ["-wal", "-shm"] {
                let _ =
                    std::fs::remove_file(journal.with_file_name(format!("{FILE_NAME}{suffix}")));
            }
            attach()
        }
        attached => attached,
    }
}

pub(super) fn is_corruption_error(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt))
}

impl Journal {
    /// Returns the record of each entity.
    pub(crate) fn read_records(
        &self,
        entities: &[&Entity],
    ) -> Result<Vec<Option<Record>>, FactsError> {
        let read = || -> Result<Vec<Option<Record>>, FactsError> {
            let connection = self.connection();
            // Read all records from the same snapshot.
            let _snapshot = (entities.len() > 1 && connection.is_autocommit())
                .then(|| connection.unchecked_transaction())
                .transpose()
                .map_err(|e| self.error(&e))?;
            entities.iter().map(|entity| self.read_record(&connection, entity.as_str())).collect()
        };
        match read() {
            // The record on disk is damaged, but the journal has the entity's answers.
            Err(FactsError::Index { .. }) => {
                self.rebuild_records()?;
                read()
            }
            found => found,
        }
    }

    fn read_record(&self, c: &Connection, entity: &str) -> Result<Option<Record>, FactsError> {
        let sql = "SELECT bytes FROM records.record WHERE entity = ?1";
        let found = c.prepare_cached(sql).and_then(|mut select| {
            let read = |r: &rusqlite::Row<'_>| {
                Ok(r.get_ref(0)?.as_blob().map(|b| decode_record(entity, b)))
            };
            select.query_row([entity], read).optional()
        });
        match found {
            Ok(None) => Ok(None),
            Ok(Some(Ok(Some(record)))) => Ok(Some(record)),
            Ok(Some(_)) => Err(self.damaged_record_error(entity)),
            Err(error) if is_corruption_error(&error) => Err(self.damaged_record_error(entity)),
            Err(error) => Err(self.error(&error)),
        }
    }

    fn damaged_record_error(&self, entity: &str) -> FactsError {
        let message = format!("the record of {entity} is damaged");
        FactsError::Index { path: self.path().with_file_name(FILE_NAME), message }
    }

    /// Returns about `max_bytes` bytes of entities with their encoded records, in order, starting
    /// after the entity `after`.
    pub(crate) fn read_page(
        &self,
        after: &str,
        max_bytes: usize,
    ) -> Result<Vec<(String, RecordBytes)>, FactsError> {
        let connection = self.connection();
        let error = |e: rusqlite::Error| self.error(&e);
        let sql = "SELECT entity, bytes FROM records.record WHERE entity > ?1 ORDER BY entity";
        let mut select = connection.prepare_cached(sql).map_err(error)?;
        let mut rows = select.query([after]).map_err(error)?;
        let (mut page, mut size) = (Vec::new(), 0);
        while let Some(row) = rows.next().map_err(error)? {
            let (entity, bytes): (String, Vec<u8>) =
                (row.get(0).map_err(error)?, row.get(1).map_err(error)?);
            let record =
                verify_record(&entity, &bytes).ok_or_else(|| self.damaged_record_error(&entity))?;
            size += entity.len() + record.len();
            page.push((entity, RecordBytes(Bytes::copy_from_slice(record))));
            if size >= max_bytes {
                break;
            }
        }
        Ok(page)
    }

    fn write_record(&self, entity: &str, record: &Record) -> Result<(), FactsError> {
        let bytes = encode_record(entity, record).map_err(|message| FactsError::Index {
            path: self.path().with_file_name(FILE_NAME),
            message,
        })?;
        self.with_connection(|c| {
            c.prepare_cached(
                "INSERT OR REPLACE INTO records.record (entity, bytes) VALUES (?1, ?2)",
            )?
            .execute(params![entity, bytes])
        })
        .map(drop)
    }

    /// Writes records that contain the facts up to journal row `head`.
    pub(crate) fn write_records(
        &self,
        records: &HashMap<Entity, Record>,
        head: i64,
    ) -> Result<(), FactsError> {
        // Write in the order of the table, so that neighbours are written to the same page.
        let mut records: Vec<(&str, &Record)> =
            records.iter().map(|(entity, record)| (entity.as_str(), record)).collect();
        records.sort_unstable_by_key(|(entity, _)| *entity);
        records.into_iter().try_for_each(|(entity, record)| self.write_record(entity, record))?;
        self.set_head(head)
    }

    fn set_head(&self, head: i64) -> Result<(), FactsError> {
        let sql = "INSERT OR REPLACE INTO records.head (journal, layout, line)
                   SELECT id, ?1, ?2 FROM main.journal";
        self.with_connection(|c| c.prepare_cached(sql)?.execute(params![LAYOUT_VERSION, head]))
            .map(drop)
    }

    /// Returns the last journal row contained in the records, and the journal's last row. The first
    /// is `None` if the records belong to a different journal or have a different layout.
    fn read_heads(&self) -> Result<(Option<i64>, i64), FactsError> {
        let sql = "SELECT (SELECT line FROM records.head WHERE layout = ?1
                     AND journal = (SELECT id FROM main.journal)),
                   coalesce((SELECT max(id) FROM answer), 0)";
        self.with_connection(|c| {
            c.prepare_cached(sql)?.query_row([LAYOUT_VERSION], |r| Ok((r.get(0)?, r.get(1)?)))
        })
    }

    /// Brings the records up to date with the journal. They lag behind if a process was killed
    /// between writing an answer and its record, or if the records were deleted.
    pub(crate) fn catch_up(&self) -> Result<(), FactsError> {
        let (head, last) = self.read_heads()?;
        if head == Some(last) {
            return Ok(());
        }
        self.transact(|| {
            // Another process may have caught up while this one waited for the lock.
            let (head, last) = self.read_heads()?;
            match head {
                Some(head) if head == last => Ok(()),
                Some(head) if head < last => {
                    let damage = self.find_damage(head)?;
                    if !damage.fact_rows.is_empty() {
                        // The earlier records of these entities may be outdated.
                        return self.rebuild_records().map(drop);
                    }
                    self.merge_rows_after(head, &damage)
                }
                _ => self.rebuild_records().map(drop),
            }
        })
    }

    fn merge_rows_after(&self, head: i64, damage: &Damage) -> Result<(), FactsError> {
        let mut records: HashMap<Entity, Record> = HashMap::new();
        let last = self.visit_answers_after(head, damage, &mut |line, entity, facts| {
            if records.len() >= MERGED_ENTITIES {
                self.write_records(&std::mem::take(&mut records), line - 1)?;
            }
            if !records.contains_key(&entity) {
                let known = self.read_record(&self.connection(), entity.as_str())?;
                records.insert(entity.clone(), known.unwrap_or_default());
            }
            if let Some(record) = records.get_mut(&entity) {
                facts.into_iter().for_each(|fact| record.merge(fact));
            }
            Ok(())
        })?;
        self.write_records(&records, last)
    }

    /// Rebuilds every record from the journal and returns their number.
    ///
    /// # Errors
    /// [`FactsError::Damaged`] if the journal is damaged, because its last rows may be missing.
    pub(crate) fn rebuild_records(&self) -> Result<u64, FactsError> {
        self.check_file()?;
        self.transact(|| {
            let damage = self.find_damage(0)?;
            let id = fastrand::i32(1..);
            self.with_connection(|c| {
                c.execute_batch(&format!(
                    "DELETE FROM records.record; PRAGMA records.user_version = {id}"
                ))
            })?;
            let count = self.write_all_records(&damage)?;
            self.set_head(self.load_last_row_id()?)?;
            if let Some(warning) = damage.warning() {
                tracing::warn!(warning);
            }
            self.set_known_damage(damage);
            Ok(count)
        })
    }

    /// Returns the id of the last rebuild of the records.
    pub(crate) fn records_id(&self) -> Result<i64, FactsError> {
        self.with_connection(|c| c.query_row("PRAGMA records.user_version", [], |r| r.get(0)))
    }

    /// Merges all answers, entity by entity, so that the records are written in the order of their
    /// table.
    fn write_all_records(&self, damage: &Damage) -> Result<u64, FactsError> {
        let error = |e: rusqlite::Error| self.error(&e);
        let connection = self.connection();
        let mut select = connection.prepare(SORTED_ANSWER_ROWS_SQL).map_err(error)?;
        let mut rows = select.query([]).map_err(error)?;
        let (mut count, mut current) = (0, None::<(String, Record)>);
        let mut finish = |done: Option<(String, Record)>| {
            let Some((entity, record)) = done else { return Ok(()) };
            count += 1;
            self.write_record(&entity, &record)
        };
        while let Some(row) = rows.next().map_err(error)? {
            let Ok(row) = AnswerRow::from_row(row).map_err(error)? else { continue };
            if !damage.trusts_row(row.id, &row.entity) {
                continue;
            }
            let facts = parse_cells(&row).map_err(|what| self.unreadable_error(what))?;
            if current.as_ref().is_none_or(|(entity, _)| *entity != row.entity) {
                finish(current.take())?;
            }
            let (_, record) = current.get_or_insert_with(|| (row.entity, Record::default()));
            facts.into_iter().for_each(|fact| record.merge(fact));
        }
        finish(current)?;
        Ok(count)
    }
}

/// Encodes a record, preceded by a checksum of its entity and content.
fn encode_record(entity: &str, record: &Record) -> Result<Vec<u8>, String> {
    let bytes = postcard::to_stdvec(record).map_err(|e| e.to_string())?;
    let mut all = compute_record_checksum(entity, &bytes).to_le_bytes().to_vec();
    all.extend(bytes);
    Ok(all)
}

/// Returns the encoded record without its checksum; `None` if the checksum does not match.
fn verify_record<'b>(entity: &str, bytes: &'b [u8]) -> Option<&'b [u8]> {
    let (checksum, record) = bytes.split_first_chunk::<4>()?;
    (u32::from_le_bytes(*checksum) == compute_record_checksum(entity, record)).then_some(record)
}

fn decode_record(entity: &str, bytes: &[u8]) -> Option<Record> {
    postcard::from_bytes(verify_record(entity, bytes)?).ok()
}

fn compute_record_checksum(entity: &str, bytes: &[u8]) -> u32 {
    compute_entity_checksum([entity.as_bytes(), bytes].concat())
}
