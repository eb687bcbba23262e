//! Publishes the facts of an expansion as ordinary tables, in one transaction. Readers see the old
//! tables until the commit, and a crash leaves them unchanged.
//!
//! Only objects listed in `hqdl_object` are ever dropped or written.

use std::collections::BTreeMap;

use rusqlite::config::DbConfig;
use serde_json::json;

use super::published_state::{PublishedState, compute_layout_hash};
use super::rows::{ExpansionWriter, WrittenTables};
use super::target::{RowTransfer, TargetTransaction};
use super::{Database, StoreError, migrate};
use hqdl_spec::{Catalog, Expansion, Source, SourceRows, Spec};
use hqdl_values::sql;

/// Number of completions whose provenance is requested at once.
const PROVENANCE_BATCH: usize = 500;

/// Callback that returns the provenance of completions, in the order of the given ids.
pub type ProvenanceLookup<'o> = dyn FnMut(&[i64]) -> Vec<CompletionProvenance> + 'o;

/// Provenance of a completion.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CompletionProvenance {
    /// Id of the run.
    pub run: i64,
    /// Name of the model that answered.
    pub model: String,
    /// Hash of the prompt.
    pub prompt_hash: String,
    /// Parameters that were sent with the request, as JSON.
    pub parameters: Option<String>,
    /// Evidence shown in the request and the quotations in its answer, as JSON.
    pub evidence: Option<String>,
    /// Time of the request.
    pub asked_at: String,
    /// Input tokens.
    pub input_tokens: u64,
    /// Output tokens.
    pub output_tokens: u64,
    /// Cost in USD.
    pub cost_usd: f64,
    /// Input tokens that were written to the endpoint's prompt cache and billed at an assumed rate.
    pub assumed_cache_writes: u64,
    /// Number of requested cells.
    pub cells: u64,
    /// Reason why the request failed; `None` if it succeeded.
    pub error: Option<String>,
}

/// A publication in progress: one transaction on the target.
pub struct Publication<'db> {
    pub(super) db: &'db Database,
    /// Whether the target is a copy. Only hqdl writes to copies.
    is_copy: bool,
    transaction: rusqlite::Transaction<'db>,
    /// Counterpart of this transaction in the target.
    target: Box<dyn TargetTransaction + 'db>,
}

impl<'db> Publication<'db> {
    /// Begins the publication. Drops the tables of expansions that are no longer in the spec.
    ///
    /// # Errors
    /// Returns [`StoreError`] if the database is locked or read-only, or belongs to another spec.
    pub fn begin(db: &'db Database, spec: &Spec) -> Result<Self, StoreError> {
        let error = |e: rusqlite::Error| db.to_store_error(&e);
        let connection = db.connection();
        let target = db.target.begin(db, spec)?;
        // With foreign keys enabled, dropping a table would delete the user's rows that refer to
        // it, even though the table is recreated in the same transaction.
        connection.execute_batch("PRAGMA foreign_keys = OFF").map_err(error)?;
        // The triggers record writes by other programs, so disable them here.
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false).map_err(error)?;
        let behavior = rusqlite::TransactionBehavior::Immediate;
        let transaction =
            rusqlite::Transaction::new_unchecked(connection, behavior).map_err(error)?;
        migrate::migrate_database(connection).map_err(error)?;
        // Forget views that a user dropped. The views of this spec are recreated.
        transaction
            .execute_batch(
                "DELETE FROM hqdl_object WHERE type = 'view' AND NOT EXISTS (
                   SELECT 1 FROM sqlite_schema AS s WHERE s.type = 'view' AND s.name = hqdl_object.name)",
            )
            .map_err(error)?;
        let publication = Self { db, is_copy: spec.output.is_some(), transaction, target };
        for removed in db.list_removed_expansions(spec).map_err(error)? {
            publication.drop_objects(&removed).map_err(error)?;
            publication.target.drop_expansion(&removed)?;
        }
        Ok(publication)
    }

    pub(super) fn connection(&self) -> &rusqlite::Connection {
        &self.transaction
    }

    fn uses_transfer(&self, transfer: RowTransfer) -> bool {
        self.db.target.row_transfer() == transfer
    }

    /// Opens the tables of one expansion: the existing tables if only their rows may differ,
    /// otherwise new ones. `is_same_store` is false if the tables were published from another fact
    /// store, because its completions may have the same ids.
    ///
    /// # Errors
    /// Returns [`StoreError`] if the tables cannot be opened or created.
    pub fn open_tables<'e>(
        &'e self,
        expansion: &'e Expansion,
        is_same_store: bool,
    ) -> Result<ExpansionWriter<'e>, StoreError> {
        let checksums = self
            .db
            .load_checksums(expansion)
            .filter(|_| is_same_store && !self.uses_transfer(RowTransfer::Everything));
        let open_tables = || {
            if checksums.is_none() {
                self.drop_objects(&expansion.name)?;
            }
            if checksums.is_none() || self.uses_transfer(RowTransfer::Differences) {
                self.create_tables(expansion)?;
            }
            ExpansionWriter::open(self.db, self.connection(), expansion, checksums)
        };
        open_tables().map_err(|e| self.db.to_store_error(&e))
    }

    /// Drops the objects that hqdl created earlier for an expansion.
    fn drop_objects(&self, expansion: &str) -> rusqlite::Result<()> {
        let c = &self.transaction;
        let objects: Vec<(String, String)> = c
            .prepare("SELECT name, type FROM hqdl_object WHERE expansion = ?1 COLLATE NOCASE ORDER BY type DESC")?
            .query_map([expansion], |r| Ok((r.get(0)?, r.get(1)?)))?
            .collect::<rusqlite::Result<_>>()?;
        for (name, object_type) in objects {
            // Indexes are dropped with their tables. An attached source can have tables with the
            // same names.
            if (object_type == "table" || object_type == "view")
                && self.db.is_created_by_hqdl(&name)
            {
                c.execute_batch(&format!(
                    "DROP {object_type} IF EXISTS main.{}",
                    sql::quote_name(&name)
                ))?;
            }
        }
        for table in ["hqdl_object", "hqdl_record", "hqdl_completion", "hqdl_edit"] {
            c.execute(
                &format!("DELETE FROM {table} WHERE expansion = ?1 COLLATE NOCASE"),
                [expansion],
            )?;
        }
        Ok(())
    }

    fn create_tables(&self, expansion: &Expansion) -> rusqlite::Result<()> {
        let c = &self.transaction;
        let names = expansion.key.names();
        let key = sql::quote_names("", names.iter());
        let keys: Vec<String> = names
            .iter()
            .zip(&expansion.key_types)
            .map(|(name, declared_type)| match find_column_affinity(declared_type.as_deref()) {
                // Declare no type, so that values remain as the server sent them. The server casts
                // them to its own column types.
                _ if self.uses_transfer(RowTransfer::Differences) => sql::quote_name(name),
                // An INTEGER that is the only primary key column would become the rowid, which can
                // be neither NULL nor text.
                "INTEGER" if names.len() == 1 => format!("{} INT", sql::quote_name(name)),
                type_name => format!("{} {type_name}", sql::quote_name(name)),
            })
            .collect();
        let record_table = |name: &str| {
            let insert = "INSERT OR REPLACE INTO hqdl_object (name, type, expansion)
                          VALUES (?1, 'table', ?2)";
            c.execute(insert, [name, &expansion.name])
        };
        let mut columns = keys.clone();
        let single_columns = expansion.columns.iter().filter(|c| c.many.is_none());
        columns.extend(
            single_columns.map(|c| format!("{} {}", sql::quote_name(&c.name), c.kind.sql_type())),
        );
        columns.push(format!("PRIMARY KEY ({key})"));
        if let Some(source) = self.find_referenced_table(expansion)? {
            columns.push(format!(
                "FOREIGN KEY ({key}) REFERENCES {} ({key})",
                sql::quote_name(&source)
            ));
        }
        let name = sql::quote_name(&expansion.name);
        c.execute_batch(&format!("CREATE TABLE {name} ({})", columns.join(", ")))?;
        record_table(&expansion.name)?;
        for column in &expansion.columns {
            let Some(many) = &column.many else { continue };
            let item = sql::quote_name(&many.column);
            let value = format!("{item} {} NOT NULL", column.kind.sql_type());
            c.execute_batch(&format!(
                "CREATE TABLE {} ({}, {value}, PRIMARY KEY ({key}, {item}), \
                 FOREIGN KEY ({key}) REFERENCES {name} ({key}) ON DELETE CASCADE)",
                sql::quote_name(&many.table),
                keys.join(", "),
            ))?;
            record_table(&many.table)?;
        }
        Ok(())
    }

    /// Returns the table to which an expansion's keys refer with a foreign key: its only source, if
    /// the key is unique there.
    ///
    /// Returns `None` in the user's own database, because a foreign key would prevent the user from
    /// deleting these rows, and from writing other keys.
    fn find_referenced_table(&self, expansion: &Expansion) -> rusqlite::Result<Option<String>> {
        let [Source { rows: SourceRows::Table(table), .. }] = expansion.sources.as_slice() else {
            return Ok(None);
        };
        if !self.is_copy || !self.uses_transfer(RowTransfer::InPlace) {
            return Ok(None);
        }
        // A key is unique if it is the primary key, which may be the rowid, or has a unique index
        // without a condition or another collation.
        let unique: Vec<String> = self
            .transaction
            .prepare(
                "SELECT json_group_array(lower(name)) FROM
                   (SELECT name FROM pragma_table_info(?1) WHERE pk > 0) HAVING count(*) > 0
                 UNION ALL
                 SELECT (SELECT json_group_array(lower(name)) FROM pragma_index_info(l.name))
                 FROM pragma_index_list(?1) AS l WHERE l.\"unique\" AND NOT l.partial
                   AND l.origin IN ('pk', 'u')",
            )?
            .query_map([table], |row| row.get(0))?
            .collect::<rusqlite::Result<_>>()?;
        let sort_names = |names: &[String]| {
            let mut names: Vec<String> = names.iter().map(|n| n.to_lowercase()).collect();
            names.sort();
            names
        };
        let key = sort_names(expansion.key.names());
        let is_key = |columns: &String| {
            serde_json::from_str::<Vec<String>>(columns)
                .is_ok_and(|columns| sort_names(&columns) == key)
        };
        Ok(unique.iter().any(is_key).then(|| table.clone()))
    }

    /// Records the provenance of an expansion's cells, and finishes the expansion.
    ///
    /// # Errors
    /// Returns [`StoreError`] if the bookkeeping cannot be written.
    pub fn finish_expansion(
        &self,
        spec: &Spec,
        written_tables: &WrittenTables<'_>,
        published_state: &PublishedState,
        lookup: &mut ProvenanceLookup<'_>,
    ) -> Result<(), StoreError> {
        self.finish_local_tables(spec, written_tables, published_state, lookup)
            .map_err(|e| self.db.to_store_error(&e))?;
        let WrittenTables { expansion, is_new, .. } = written_tables;
        self.target.publish_expansion(expansion, *is_new, &self.transaction)
    }

    fn finish_local_tables(
        &self,
        spec: &Spec,
        written_tables: &WrittenTables<'_>,
        published_state: &PublishedState,
        lookup: &mut ProvenanceLookup<'_>,
    ) -> rusqlite::Result<()> {
        let c = &self.transaction;
        let expansion = written_tables.expansion;
        let mut column_tables: BTreeMap<&str, &str> = BTreeMap::new();
        for column in &expansion.columns {
            let table = column.many.as_ref().map_or(&expansion.name, |many| &many.table);
            column_tables.insert(&column.name, table);
        }
        let mut new_completions = Vec::new();
        for (id, delta) in written_tables.completions.iter().filter(|(_, delta)| **delta != 0) {
            if !self.adjust_completion_count(expansion, *id, *delta)? {
                new_completions.push((*id, *delta));
            }
        }
        // Request the provenance in batches, because the completions may be on a server.
        for batch in new_completions.chunks(PROVENANCE_BATCH) {
            let ids: Vec<i64> = batch.iter().map(|(id, _)| *id).collect();
            for ((id, delta), provenance) in batch.iter().zip(lookup(&ids)) {
                self.insert_completion(expansion, *id, *delta, &provenance)?;
            }
        }
        c.execute(
            "UPDATE hqdl_object SET spec = ?2, key = ?3, columns = ?4, layout = ?5, rows = ?6,
               published_at = ?7, inputs = ?8, checksums = ?9 WHERE name = ?1",
            rusqlite::params![
                expansion.name,
                spec.full_path(),
                json!(expansion.key.names()).to_string(),
                json!(column_tables).to_string(),
                compute_layout_hash(expansion),
                written_tables.checksums.rows,
                super::current_timestamp(),
                json!(published_state).to_string(),
                written_tables.checksums.to_json(),
            ],
        )?;
        let snapshot =
            written_tables.snapshot.as_ref().filter(|_| self.uses_transfer(RowTransfer::InPlace));
        self.db.store_bucket_snapshot(expansion, snapshot)
    }

    /// Adjusts the number of published cells of a completion. Returns false if the completion has
    /// no entry.
    fn adjust_completion_count(
        &self,
        expansion: &Expansion,
        id: i64,
        delta: i64,
    ) -> rusqlite::Result<bool> {
        let c = &self.transaction;
        let updated = c
            .prepare_cached(
                "UPDATE hqdl_completion SET shown = shown + ?3 WHERE expansion = ?1 AND id = ?2",
            )?
            .execute(rusqlite::params![expansion.name, id, delta])?;
        if updated > 0 && delta < 0 {
            c.prepare_cached(
                "DELETE FROM hqdl_completion WHERE expansion = ?1 AND id = ?2 AND shown <= 0",
            )?
            .execute(rusqlite::params![expansion.name, id])?;
        }
        Ok(updated > 0)
    }

    /// Inserts the provenance of a completion from which `shown` published cells came.
    fn insert_completion(
        &self,
        expansion: &Expansion,
        id: i64,
        shown: i64,
        provenance: &CompletionProvenance,
    ) -> rusqlite::Result<()> {
        self.transaction
            .prepare_cached(
                "INSERT INTO hqdl_completion
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15)",
            )?
            .execute(rusqlite::params![
                expansion.name,
                id,
                provenance.run,
                provenance.model,
                provenance.prompt_hash,
                provenance.asked_at,
                provenance.input_tokens,
                provenance.output_tokens,
                provenance.cost_usd,
                provenance.cells,
                provenance.error,
                shown,
                provenance.parameters,
                provenance.assumed_cache_writes,
                provenance.evidence
            ])?;
        Ok(())
    }

    /// Creates the views that join each source with its expansions. Returns warnings about names
    /// that are already in use.
    ///
    /// # Errors
    /// Returns [`StoreError`] if a view cannot be created.
    pub fn create_views(&self, spec: &Spec) -> Result<Vec<String>, StoreError> {
        let mut warnings = Vec::new();
        for (view, joined) in spec.list_expanded_views() {
            if self.is_redundant_view(&joined) {
                continue;
            }
            warnings.extend(self.target.publish_view(&view, &joined, &self.transaction)?);
        }
        Ok(warnings)
    }

    /// Returns true if the view of a source would equal the expansion's table, because the source
    /// is a SELECT that returns only the keys.
    fn is_redundant_view(&self, joined: &[(&Expansion, usize)]) -> bool {
        let [(expansion, n)] = joined else { return false };
        let Some(Source { name: None, rows: SourceRows::Select(select), .. }) =
            expansion.sources.get(*n)
        else {
            return false;
        };
        let Ok(columns) = self.db.list_select_columns(select) else { return false };
        let is_key =
            |name: &String| expansion.key.names().iter().any(|key| key.eq_ignore_ascii_case(name));
        columns.iter().all(is_key)
    }

    /// Commits the publication.
    ///
    /// # Errors
    /// Returns [`StoreError`] if the commit fails, in which case the old tables are unchanged.
    pub fn commit(self) -> Result<(), StoreError> {
        let Self { db, transaction, target, .. } = self;
        target.commit(&transaction)?;
        transaction.commit().map_err(|e| db.to_store_error(&e))
    }
}

/// Returns the type of a published key column: hqdl's name for the affinity of the source column's
/// declared type (<https://sqlite.org/datatype3.html#determination_of_column_affinity>).
#[must_use]
pub fn find_column_affinity(declared_type: Option<&str>) -> &'static str {
    let declared_type = declared_type.unwrap_or_default().to_uppercase();
    let contains_any = |words: &[&str]| words.iter().any(|w| declared_type.contains(w));
    match () {
        () if contains_any(&["INT"]) => "INTEGER",
        () if contains_any(&["CHAR", "CLOB", "TEXT"]) => "TEXT",
        // A STRICT table stores values of type ANY unchanged.
        () if declared_type.is_empty() || declared_type == "ANY" || contains_any(&["BLOB"]) => "",
        () if contains_any(&["REAL", "FLOA", "DOUB"]) => "REAL",
        () => "NUMERIC",
    }
}
