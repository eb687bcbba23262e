//! Publishes the facts of an expansion as ordinary tables, in one transaction. Readers see the old
//! tables until the commit, and a crash leaves them unchanged.
//!
//! Only objects listed in `hqdl_object` are ever dropped or written.

use std::collections::BTreeMap;

use rusqlite::config::DbConfig;
use serde_json::json;

use super::postgres::{DatabaseServer, Publishing};
use super::rows::{Tables, Written};
use super::standing::{PublishedVersion, layout};
use super::view::view_sql;
use super::{Database, StoreError, migrate};
use hqdl_spec::{Catalog, Expansion, Source, SourceRows, Spec};
use hqdl_values::sql;

/// Number of completions whose provenance is requested at once.
const ORIGINS: usize = 500;

/// Callback that returns the provenance of completions, in their order.
pub type Origins<'o> = dyn FnMut(&[i64]) -> Vec<CompletionOrigin> + 'o;

/// Provenance of a completion.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CompletionOrigin {
    /// Run.
    pub run: i64,
    /// Model.
    pub model: String,
    /// Hash of the prompt.
    pub prompt_hash: String,
    /// Parameters that were sent with the request, as JSON.
    pub parameters: Option<String>,
    /// Time of the request.
    pub asked_at: String,
    /// Input tokens.
    pub input_tokens: u64,
    /// Output tokens.
    pub output_tokens: u64,
    /// Cost in USD.
    pub cost_usd: f64,
    /// Number of requested cells.
    pub cells: u64,
    /// Reason why the request failed, if it did.
    pub error: Option<String>,
}

/// Open publication: one transaction on the target.
pub struct Publication<'db> {
    pub(super) db: &'db Database,
    /// Whether the target is a copy, which only hqdl writes to.
    is_copy: bool,
    transaction: rusqlite::Transaction<'db>,
    /// Transaction on the server that receives the tables at the end.
    server: Option<Publishing<'db>>,
}

impl<'db> Publication<'db> {
    /// Begins the publication. Drops the tables of expansions that are no longer in the spec.
    ///
    /// # Errors
    /// Returns [`StoreError`] if the database is locked or read-only.
    pub fn begin(db: &'db Database, spec: &Spec) -> Result<Self, StoreError> {
        let error = |e: rusqlite::Error| db.error(&e);
        let connection = db.connection();
        let server = db.server().map(DatabaseServer::publish).transpose()?;
        if let Some(server) = db.server() {
            server.read_bookkeeping(connection)?;
        }
        // With foreign keys on, dropping a table would delete the rows of a user's table that refer
        // to it, although it is recreated in the same transaction.
        connection.execute_batch("PRAGMA foreign_keys = OFF").map_err(error)?;
        // The triggers record writes of other programs, not hqdl's.
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false).map_err(error)?;
        let behavior = rusqlite::TransactionBehavior::Immediate;
        let transaction =
            rusqlite::Transaction::new_unchecked(connection, behavior).map_err(error)?;
        migrate::database(connection).map_err(error)?;
        // If a user dropped a view, forget it; views of this spec are recreated.
        transaction
            .execute_batch(
                "DELETE FROM hqdl_object WHERE type = 'view' AND NOT EXISTS (
                   SELECT 1 FROM sqlite_schema AS s WHERE s.type = 'view' AND s.name = hqdl_object.name)",
            )
            .map_err(error)?;
        let publication = Self { db, is_copy: spec.output.is_some(), transaction, server };
        for before in publication.expansions_of(spec).map_err(error)? {
            if !spec.expansions.iter().any(|e| e.name.eq_ignore_ascii_case(&before)) {
                publication.drop_objects(&before).map_err(error)?;
                if let Some(server) = &publication.server {
                    server.drop_expansion(&before)?;
                }
            }
        }
        Ok(publication)
    }

    /// Returns the expansions that this spec has published before.
    fn expansions_of(&self, spec: &Spec) -> rusqlite::Result<Vec<String>> {
        self.transaction
            .prepare("SELECT name FROM hqdl_expansion WHERE spec = ?1")?
            .query_map([spec.full_path()], |row| row.get(0))?
            .collect()
    }

    pub(super) fn connection(&self) -> &rusqlite::Connection {
        &self.transaction
    }

    /// Opens the tables of one expansion: the existing ones if only rows may differ, otherwise new
    /// ones.
    ///
    /// # Errors
    /// Returns [`StoreError`] from `SQLite`.
    pub fn expansion<'e>(&'e self, expansion: &'e Expansion) -> Result<Tables<'e>, StoreError> {
        let stands = self.db.sums(expansion);
        let open = || {
            if stands.is_none() {
                self.drop_objects(&expansion.name)?;
            }
            if stands.is_none() || self.server.is_some() {
                self.create(expansion)?;
            }
            Tables::open(self.db, self.connection(), expansion, stands)
        };
        open().map_err(|e| self.db.error(&e))
    }

    /// Drops what hqdl created for an expansion before.
    fn drop_objects(&self, expansion: &str) -> rusqlite::Result<()> {
        let c = &self.transaction;
        let objects: Vec<(String, String)> = c
            .prepare("SELECT name, type FROM hqdl_object WHERE expansion = ?1 COLLATE NOCASE ORDER BY type DESC")?
            .query_map([expansion], |r| Ok((r.get(0)?, r.get(1)?)))?
            .collect::<rusqlite::Result<_>>()?;
        for (name, kind) in objects {
            // Indexes are dropped with their tables.
            if (kind == "table" || kind == "view") && self.db.made_by_hqdl(&name) {
                c.execute_batch(&format!("DROP {kind} IF EXISTS {}", sql::name(&name)))?;
            }
        }
        for table in ["hqdl_object", "hqdl_record", "hqdl_completion", "hqdl_bucket", "hqdl_edit"] {
            c.execute(
                &format!("DELETE FROM {table} WHERE expansion = ?1 COLLATE NOCASE"),
                [expansion],
            )?;
        }
        c.execute("DELETE FROM hqdl_expansion WHERE name = ?1", [expansion])?;
        Ok(())
    }

    fn create(&self, expansion: &Expansion) -> rusqlite::Result<()> {
        let c = &self.transaction;
        let names = expansion.key.names();
        let key = sql::names("", names.iter());
        let keys: Vec<String> = names
            .iter()
            .zip(&expansion.key_types)
            .map(|(name, kind)| match affinity(kind.as_deref()) {
                // Without a type, so that values stay as the server sent them; it casts them to its
                // column types.
                _ if self.server.is_some() => sql::name(name),
                // An INTEGER that is the whole primary key would be the rowid, which can be neither
                // NULL nor text.
                "INTEGER" if names.len() == 1 => format!("{} INT", sql::name(name)),
                kind => format!("{} {kind}", sql::name(name)),
            })
            .collect();
        let made = |name: &str| {
            let made = "INSERT OR REPLACE INTO hqdl_object VALUES (?1, 'table', ?2)";
            c.execute(made, [name, &expansion.name])
        };
        let mut columns = keys.clone();
        let singles = expansion.columns.iter().filter(|c| c.many.is_none());
        columns.extend(singles.map(|c| format!("{} {}", sql::name(&c.name), c.kind.sql())));
        columns.push(format!("PRIMARY KEY ({key})"));
        if let Some(source) = self.refers_to(expansion)? {
            columns.push(format!("FOREIGN KEY ({key}) REFERENCES {} ({key})", sql::name(&source)));
        }
        let name = sql::name(&expansion.name);
        c.execute_batch(&format!("CREATE TABLE {name} ({})", columns.join(", ")))?;
        made(&expansion.name)?;
        for column in &expansion.columns {
            let Some(many) = &column.many else { continue };
            let item = sql::name(&many.column);
            let value = format!("{item} {} NOT NULL", column.kind.sql());
            c.execute_batch(&format!(
                "CREATE TABLE {} ({}, {value}, PRIMARY KEY ({key}, {item}), \
                 FOREIGN KEY ({key}) REFERENCES {name} ({key}) ON DELETE CASCADE)",
                sql::name(&many.table),
                keys.join(", "),
            ))?;
            made(&many.table)?;
        }
        Ok(())
    }

    /// Returns the table that the keys of an expansion refer to: its only source, if the key is
    /// unique there.
    ///
    /// Returns `None` in the user's own database, because a foreign key would prevent the user from
    /// deleting these rows, and from writing other keys.
    fn refers_to(&self, expansion: &Expansion) -> rusqlite::Result<Option<String>> {
        let [Source { rows: SourceRows::Table(table), .. }] = expansion.sources.as_slice() else {
            return Ok(None);
        };
        if !self.is_copy {
            return Ok(None);
        }
        // Unique columns are a table's primary key, which may be its rowid, and unique indexes
        // without a condition or other collations.
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
        let sorted = |names: &[String]| {
            let mut names: Vec<String> = names.iter().map(|n| n.to_lowercase()).collect();
            names.sort();
            names
        };
        let key = sorted(expansion.key.names());
        let is_key = |columns: &String| {
            serde_json::from_str::<Vec<String>>(columns)
                .is_ok_and(|columns| sorted(&columns) == key)
        };
        Ok(unique.iter().any(is_key).then(|| table.clone()))
    }

    /// Records the provenance of an expansion's cells, and finishes the expansion.
    ///
    /// # Errors
    /// Returns [`StoreError`] from `SQLite`.
    pub fn close(
        &self,
        spec: &Spec,
        written: &Written<'_>,
        standing: &PublishedVersion,
        origins: &mut Origins<'_>,
    ) -> Result<(), StoreError> {
        self.close_inner(spec, written, standing, origins).map_err(|e| self.db.error(&e))?;
        if let Some(server) = &self.server {
            let buckets: Vec<_> = written.changed().collect();
            server.send(written.expansion, written.fresh, &buckets, &self.transaction)?;
        }
        Ok(())
    }

    fn close_inner(
        &self,
        spec: &Spec,
        written: &Written<'_>,
        standing: &PublishedVersion,
        origins: &mut Origins<'_>,
    ) -> rusqlite::Result<()> {
        let c = &self.transaction;
        let expansion = written.expansion;
        let mut shows: BTreeMap<&str, &str> = BTreeMap::new();
        for column in &expansion.columns {
            let table = column.many.as_ref().map_or(&expansion.name, |many| &many.table);
            shows.insert(&column.name, table);
        }
        if written.fresh && self.server.is_none() {
            self.finish_tables(expansion)?;
        }
        let mut new = Vec::new();
        for (id, more) in written.completions.iter().filter(|(_, more)| **more != 0) {
            if !self.count_completion(expansion, *id, *more)? {
                new.push((*id, *more));
            }
        }
        // Request them in batches, because they may be remote.
        for new in new.chunks(ORIGINS) {
            let ids: Vec<i64> = new.iter().map(|(id, _)| *id).collect();
            for ((id, more), origin) in new.iter().zip(origins(&ids)) {
                self.enter_completion(expansion, *id, *more, &origin)?;
            }
        }
        let mut sum = c.prepare("INSERT OR REPLACE INTO hqdl_bucket VALUES (?1, ?2, ?3)")?;
        for (bucket, of) in written.changed() {
            sum.execute(rusqlite::params![expansion.name, bucket, of])?;
        }
        c.execute(
            "INSERT OR REPLACE INTO hqdl_expansion VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
            rusqlite::params![
                expansion.name,
                spec.full_path(),
                json!(expansion.key.names()).to_string(),
                json!(shows).to_string(),
                layout(expansion),
                written.sums.rows,
                super::now(),
                json!(standing).to_string(),
            ],
        )?;
        Ok(())
    }

    /// Creates the triggers that record writes of other programs to the tables.
    fn finish_tables(&self, expansion: &Expansion) -> rusqlite::Result<()> {
        let c = &self.transaction;
        let keys = expansion.key.names();
        let many = expansion.columns.iter().filter_map(|c| c.many.as_ref().map(|m| &m.table));
        for table in std::iter::once(&expansion.name).chain(many) {
            for (event, row) in [("insert", "NEW"), ("update", "NEW"), ("delete", "OLD")] {
                let name = format!("hqdl_{table}_{event}");
                let key: Vec<String> =
                    keys.iter().map(|k| format!("quote({row}.{})", sql::name(k))).collect();
                c.execute_batch(&format!(
                    "CREATE TRIGGER {} AFTER {event} ON {} BEGIN
                       INSERT INTO hqdl_edit (expansion, \"table\", key) VALUES ({}, {}, {});
                     END",
                    sql::name(&name),
                    sql::name(table),
                    sql::text(&expansion.name),
                    sql::text(table),
                    key.join(" || ', ' || ")
                ))?;
                c.execute(
                    "INSERT INTO hqdl_object VALUES (?1, 'trigger', ?2)",
                    [&name, &expansion.name],
                )?;
            }
        }
        Ok(())
    }

    /// Changes the number of published cells of a completion; returns whether it has an entry.
    fn count_completion(
        &self,
        expansion: &Expansion,
        id: i64,
        more: i64,
    ) -> rusqlite::Result<bool> {
        let c = &self.transaction;
        let counted = c
            .prepare_cached(
                "UPDATE hqdl_completion SET shown = shown + ?3 WHERE expansion = ?1 AND id = ?2",
            )?
            .execute(rusqlite::params![expansion.name, id, more])?;
        if counted > 0 && more < 0 {
            c.prepare_cached(
                "DELETE FROM hqdl_completion WHERE expansion = ?1 AND id = ?2 AND shown <= 0",
            )?
            .execute(rusqlite::params![expansion.name, id])?;
        }
        Ok(counted > 0)
    }

    /// Inserts a completion that some published cells came from.
    fn enter_completion(
        &self,
        expansion: &Expansion,
        id: i64,
        shown: i64,
        o: &CompletionOrigin,
    ) -> rusqlite::Result<()> {
        self.transaction
            .prepare_cached(
                "INSERT INTO hqdl_completion
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)",
            )?
            .execute(rusqlite::params![
                expansion.name,
                id,
                o.run,
                o.model,
                o.prompt_hash,
                o.asked_at,
                o.input_tokens,
                o.output_tokens,
                o.cost_usd,
                o.cells,
                o.error,
                shown,
                o.parameters
            ])?;
        Ok(())
    }

    /// Creates the views that join each source with its expansions; returns warnings about names
    /// that are in use.
    ///
    /// # Errors
    /// Returns [`StoreError`] from `SQLite`.
    pub fn views(&self, spec: &Spec) -> Result<Vec<String>, StoreError> {
        let error = |e: rusqlite::Error| self.db.error(&e);
        let mut warnings = Vec::new();
        for (view, joined) in spec.expanded_views() {
            if self.adds_nothing(&joined) {
                continue;
            }
            if let Some(server) = &self.server {
                warnings.extend(server.view(&view, &joined)?);
                continue;
            }
            if self.db.columns(&view).is_some() && !self.db.made_by_hqdl(&view) {
                warnings.push(format!("the database has a table `{view}` that hqdl did not make, so hqdl does not create a view with that name"));
                continue;
            }
            let text = view_sql(self.db, &view, &joined);
            let c = &self.transaction;
            let stands = c
                .prepare(
                    "SELECT 1 FROM sqlite_schema AS s JOIN hqdl_object AS o ON o.name = s.name
                          WHERE s.type = 'view' AND o.type = 'view' AND s.name = ?1 AND s.sql = ?2",
                )
                .and_then(|mut s| s.exists([&view, &text]));
            if stands.map_err(error)? {
                continue;
            }
            c.execute_batch(&format!("DROP VIEW IF EXISTS {}", sql::name(&view))).map_err(error)?;
            c.execute_batch(&text).map_err(error)?;
            c.execute("INSERT OR REPLACE INTO hqdl_object VALUES (?1, 'view', NULL)", [&view])
                .map_err(error)?;
        }
        Ok(warnings)
    }

    /// Returns true if the view of a source would equal the expansion's table, because a SELECT
    /// yields only keys.
    fn adds_nothing(&self, joined: &[(&Expansion, usize)]) -> bool {
        let [(expansion, n)] = joined else { return false };
        let Some(Source { name: None, rows: SourceRows::Select(select), .. }) =
            expansion.sources.get(*n)
        else {
            return false;
        };
        let shown = self.db.prepare(select).unwrap_or_default();
        let is_key =
            |name: &String| expansion.key.names().iter().any(|key| key.eq_ignore_ascii_case(name));
        shown.iter().all(is_key)
    }

    /// Commits the publication.
    ///
    /// # Errors
    /// Returns [`StoreError`] if the commit fails; the old tables are unchanged then.
    pub fn commit(self) -> Result<(), StoreError> {
        let Self { db, transaction, server, .. } = self;
        if let Some(server) = server {
            server.commit()?;
        }
        transaction.commit().map_err(|e| db.error(&e))
    }
}

/// Returns the type of a published key column: hqdl's name for the affinity of the declared type of
/// the source's column (<https://sqlite.org/datatype3.html#determination_of_column_affinity>).
#[must_use]
pub fn affinity(declared: Option<&str>) -> &'static str {
    let declared = declared.unwrap_or_default().to_uppercase();
    let has = |words: &[&str]| words.iter().any(|w| declared.contains(w));
    match () {
        () if has(&["INT"]) => "INTEGER",
        () if has(&["CHAR", "CLOB", "TEXT"]) => "TEXT",
        // ANY: a STRICT table stores values of this type unchanged.
        () if declared.is_empty() || declared == "ANY" || has(&["BLOB"]) => "",
        () if has(&["REAL", "FLOA", "DOUB"]) => "REAL",
        () => "NUMERIC",
    }
}
