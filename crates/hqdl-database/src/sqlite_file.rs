//! `SQLite` files as targets: the connection of a publication is the target itself.

use std::path::Path;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OptionalExtension};

use super::migrate::OWN_TABLES;
use super::output::{compute_file_fingerprint, find_other_source, read_copy_source};
use super::target::{OutputState, PublishTarget, PublishedObject, RowTransfer, TargetTransaction};
use super::view::build_view_sql;
use super::{Database, StoreError, migrate, refresh};
use hqdl_spec::{Catalog, Expansion, Spec};
use hqdl_values::sql;

/// The tables of a `SQLite` file.
#[derive(Debug)]
pub(super) struct SqliteFile;

impl PublishTarget for SqliteFile {
    fn row_transfer(&self) -> RowTransfer {
        RowTransfer::InPlace
    }

    /// If the user replaced hqdl's table, the new table lacks the triggers that hqdl creates (and
    /// the index on tables made by older versions).
    fn is_created_by_hqdl(&self, db: &Database, table: &str) -> bool {
        let sql = "SELECT 1 FROM hqdl_object AS o
             JOIN sqlite_schema AS s ON s.name = o.name COLLATE NOCASE AND s.type = o.type
             WHERE o.name = ?1 AND NOT EXISTS (
               SELECT 1 FROM hqdl_object AS m
               WHERE o.type = 'table'
                 AND (m.type, m.name) IN (('index', 'hqdl_' || o.name || '_key'), ('trigger', 'hqdl_' || o.name || '_insert'))
                 AND NOT EXISTS (
                   SELECT 1 FROM sqlite_schema AS i
                   WHERE i.type = m.type AND i.name = m.name COLLATE NOCASE AND i.tbl_name = s.name COLLATE NOCASE))";
        db.has_bookkeeping() && db.connection().query_row(sql, [table], |_| Ok(())).is_ok()
    }

    fn is_unmodified(
        &self,
        db: &Database,
        expansion: &Expansion,
        rows: i64,
    ) -> Result<bool, StoreError> {
        is_unmodified(db, expansion, rows).map_err(|e| db.to_store_error(&e))
    }

    fn for_each_key(
        &self,
        db: &Database,
        expansion: &str,
        visit: &mut dyn FnMut(&str),
    ) -> Result<(), StoreError> {
        let mut visit_keys = || -> rusqlite::Result<()> {
            let mut statement =
                db.connection().prepare("SELECT key FROM hqdl_record WHERE expansion = ?1")?;
            let mut rows = statement.query([expansion])?;
            while let Some(row) = rows.next()? {
                visit(row.get_ref(0)?.as_str()?);
            }
            Ok(())
        };
        visit_keys().map_err(|e| db.to_store_error(&e))
    }

    fn compare_with_source(
        &self,
        copy: &Database,
        source: &Database,
    ) -> Result<OutputState, StoreError> {
        let output = &copy.path;
        let Some(recorded) = read_copy_source(copy)? else {
            return Err(StoreError::ForeignOutput(output.clone()));
        };
        let current = compute_file_fingerprint(&source.path, output)?;
        if recorded == current {
            return Ok(OutputState::Current);
        }
        if let Some(of) = find_other_source(output, &recorded, &current) {
            return Err(StoreError::OtherCopy { path: output.clone(), of });
        }
        let error = |e: rusqlite::Error| copy.to_store_error(&e);
        let user_tables = find_user_objects(source, copy).map_err(error)?;
        if !user_tables.is_empty() {
            return Err(StoreError::OwnObjects {
                path: output.clone(),
                names: user_tables.join(", "),
            });
        }
        let can_refresh = refresh::can_refresh(source, copy).map_err(error)?;
        Ok(if can_refresh { OutputState::Outdated } else { OutputState::Stale })
    }

    fn attach_source(
        &self,
        copy: &Database,
        source: &Database,
        is_outdated: bool,
    ) -> Result<Option<String>, StoreError> {
        if !is_outdated {
            return Ok(None);
        }
        let stamp = compute_file_fingerprint(&source.path, &copy.path)?;
        refresh::attach_source(copy, source)?;
        Ok(Some(stamp))
    }

    fn refresh_rows(&self, copy: &Database) -> Result<(), StoreError> {
        refresh::refresh_rows(copy.connection()).map_err(|e| copy.to_store_error(&e))
    }

    fn check_writable(&self, db: &Database) -> Result<(), StoreError> {
        let error = |e: rusqlite::Error| db.to_store_error(&e);
        let c = db.connection();
        if c.is_readonly("main").map_err(error)? {
            return Err(StoreError::ReadOnly(db.path.clone()));
        }
        // If SQLite cannot create a journal or a lock in the directory, only a write fails. Try to
        // write now, before any request is paid for.
        let version: i64 =
            c.query_row("PRAGMA user_version", [], |row| row.get(0)).map_err(error)?;
        let write_attempt =
            c.execute_batch(&format!("BEGIN IMMEDIATE; PRAGMA user_version = {version}"));
        let rollback = if c.is_autocommit() { Ok(()) } else { c.execute_batch("ROLLBACK") };
        write_attempt.and(rollback).map_err(error)
    }

    fn begin<'t>(
        &'t self,
        db: &'t Database,
        _spec: &Spec,
    ) -> Result<Box<dyn TargetTransaction + 't>, StoreError> {
        Ok(Box::new(FilePublication { db }))
    }

    fn clean(
        &self,
        db: &Database,
        source: &Database,
        spec: &Spec,
        objects: &[PublishedObject],
        is_last: bool,
    ) -> Result<bool, StoreError> {
        let db = Database::open_writable(&db.path)?;
        let is_copy = spec.output.is_some() && read_copy_source(&db)?.is_some();
        if is_copy
            && is_last
            && find_user_objects(source, &db).map_err(|e| db.to_store_error(&e))?.is_empty()
        {
            let path = db.path.clone();
            drop(db);
            remove_files(&path)?;
            return Ok(true);
        }
        drop_objects(&db, spec, objects, is_last).map_err(|e| db.to_store_error(&e))?;
        Ok(false)
    }
}

/// A publication into a `SQLite` file, in the transaction of its connection.
struct FilePublication<'db> {
    db: &'db Database,
}

impl TargetTransaction for FilePublication<'_> {
    fn publish_expansion(
        &self,
        expansion: &Expansion,
        is_new: bool,
        local: &Connection,
    ) -> Result<(), StoreError> {
        if is_new {
            create_edit_triggers(local, expansion).map_err(|e| self.db.to_store_error(&e))?;
        }
        Ok(())
    }

    fn publish_view(
        &self,
        view: &str,
        joined: &[(&Expansion, usize)],
        local: &Connection,
    ) -> Result<Option<String>, StoreError> {
        if self.db.table_columns(view).is_some() && !self.db.is_created_by_hqdl(view) {
            return Ok(Some(format!(
                "the database has a table `{view}` that hqdl did not make, so hqdl does not create a view with that name"
            )));
        }
        let Some((expansion, _)) = joined.first() else { return Ok(None) };
        let owner = find_other_owner(local, view, &expansion.name);
        if let Some(other) = owner.map_err(|e| self.db.to_store_error(&e))? {
            return Ok(Some(format!(
                "the view `{view}` shows the columns of the spec {other}, so it does not show those of \
                 this spec; write all expansions of a source into one spec"
            )));
        }
        let create_sql = build_view_sql(self.db, view, joined);
        let created = create_view(local, view, &expansion.name, &create_sql);
        created.map_err(|e| self.db.to_store_error(&e))?;
        Ok(None)
    }

    fn commit(self: Box<Self>, local: &Connection) -> Result<(), StoreError> {
        self.drop_broken_views(local).map_err(|e| self.db.to_store_error(&e))
    }
}

impl FilePublication<'_> {
    /// Drops hqdl's views that refer to missing tables. While such a view exists, `SQLite` cannot
    /// rename any table or column.
    fn drop_broken_views(&self, c: &Connection) -> rusqlite::Result<()> {
        let views: Vec<String> = c
            .prepare("SELECT name FROM hqdl_object WHERE type = 'view'")?
            .query_map([], |row| row.get(0))?
            .collect::<rusqlite::Result<_>>()?;
        for view in views.iter().filter(|view| self.db.is_created_by_hqdl(view)) {
            let name = sql::quote_name(view);
            if c.prepare(&format!("SELECT 1 FROM {name}")).is_err() {
                c.execute_batch(&format!("DROP VIEW {name}"))?;
                c.execute("DELETE FROM hqdl_object WHERE type = 'view' AND name = ?1", [view])?;
            }
        }
        Ok(())
    }
}

/// Returns the path of another spec that created a view of this name, if that spec still has tables
/// in this database. `expansion` is an expansion of this spec. Earlier versions of hqdl did not
/// record which spec created a view.
fn find_other_owner(
    c: &Connection,
    view: &str,
    expansion: &str,
) -> rusqlite::Result<Option<String>> {
    let sql = "SELECT e.spec FROM hqdl_object AS v JOIN hqdl_object AS e ON e.name = v.expansion
        WHERE v.type = 'view' AND v.name = ?1 COLLATE NOCASE AND e.type = 'table'
          AND e.spec <> (SELECT o.spec FROM hqdl_object AS o WHERE o.name = ?2 COLLATE NOCASE)";
    c.query_row(sql, [view, expansion], |row| row.get(0)).optional()
}

/// Creates a view over an expansion, and possibly other expansions, unless an identical view
/// exists.
fn create_view(
    c: &Connection,
    view: &str,
    expansion: &str,
    create_sql: &str,
) -> rusqlite::Result<()> {
    let is_unchanged = c
        .prepare(
            "SELECT 1 FROM sqlite_schema AS s JOIN hqdl_object AS o ON o.name = s.name
             WHERE s.type = 'view' AND o.type = 'view' AND s.name = ?1 AND s.sql = ?2
               AND o.expansion = ?3",
        )?
        .exists([view, create_sql, expansion])?;
    if is_unchanged {
        return Ok(());
    }
    c.execute_batch(&format!("DROP VIEW IF EXISTS {}", sql::quote_name(view)))?;
    c.execute_batch(create_sql)?;
    let insert =
        "INSERT OR REPLACE INTO hqdl_object (name, type, expansion) VALUES (?1, 'view', ?2)";
    c.execute(insert, [view, expansion]).map(drop)
}

fn is_unmodified(db: &Database, expansion: &Expansion, rows: i64) -> rusqlite::Result<bool> {
    let c = db.connection();
    let name = &expansion.name;
    let has_missing_object: bool = c.prepare(
        "SELECT 1 FROM hqdl_object AS o WHERE (expansion = ?1 COLLATE NOCASE OR type = 'view')
         AND type IN ('table', 'view', 'index', 'trigger') AND NOT EXISTS (
           SELECT 1 FROM sqlite_schema AS s WHERE s.name = o.name COLLATE NOCASE AND s.type = o.type)",
    )?
    .exists([name])?;
    let was_edited = c.prepare("SELECT 1 FROM hqdl_edit WHERE expansion = ?1")?.exists([name])?;
    let tables = expansion.columns.iter().filter_map(|c| Some(&c.many.as_ref()?.table));
    let are_ours = std::iter::once(name).chain(tables).all(|t| db.is_created_by_hqdl(t));
    let count = format!("SELECT count(*) FROM {}", sql::quote_name(name));
    Ok(!has_missing_object
        && !was_edited
        && are_ours
        && c.query_row(&count, [], |r| r.get::<_, i64>(0))? == rows)
}

/// Creates the triggers that record writes to the tables by other programs.
fn create_edit_triggers(c: &Connection, expansion: &Expansion) -> rusqlite::Result<()> {
    let keys = expansion.key.names();
    let list_tables = expansion.columns.iter().filter_map(|c| c.many.as_ref().map(|m| &m.table));
    for table in std::iter::once(&expansion.name).chain(list_tables) {
        for (event, row) in [("insert", "NEW"), ("update", "NEW"), ("delete", "OLD")] {
            let name = format!("hqdl_{table}_{event}");
            let key: Vec<String> =
                keys.iter().map(|k| format!("quote({row}.{})", sql::quote_name(k))).collect();
            c.execute_batch(&format!(
                "CREATE TRIGGER {} AFTER {event} ON {} BEGIN
                   INSERT INTO hqdl_edit (expansion, \"table\", key) VALUES ({}, {}, {});
                 END",
                sql::quote_name(&name),
                sql::quote_name(table),
                sql::quote_text(&expansion.name),
                sql::quote_text(table),
                key.join(" || ', ' || ")
            ))?;
            c.execute(
                "INSERT INTO hqdl_object (name, type, expansion) VALUES (?1, 'trigger', ?2)",
                [&name, &expansion.name],
            )?;
        }
    }
    Ok(())
}

/// Returns the tables and views of a copy that are neither in its database nor created by hqdl.
fn find_user_objects(source: &Database, copy: &Database) -> rusqlite::Result<Vec<String>> {
    let sql = "SELECT name FROM sqlite_schema WHERE type IN ('table', 'view')
               AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' AND name NOT LIKE 'hqdl\\_%' ESCAPE '\\'";
    let select_names = |sql: &str, db: &Database| -> rusqlite::Result<Vec<String>> {
        db.connection.prepare(sql)?.query_map([], |row| row.get(0))?.collect()
    };
    let source_names = select_names(sql, source)?;
    let hqdl_names = select_names("SELECT name FROM hqdl_object", copy)?;
    let is_known = |name: &String| {
        source_names.iter().chain(&hqdl_names).any(|k| k.eq_ignore_ascii_case(name))
    };
    Ok(select_names(sql, copy)?.into_iter().filter(|name| !is_known(name)).collect())
}

/// Drops the tables and views of a spec, and its bookkeeping, in one transaction.
fn drop_objects(
    db: &Database,
    spec: &Spec,
    objects: &[PublishedObject],
    is_last: bool,
) -> rusqlite::Result<()> {
    let c = db.connection();
    // Dropping a table must not change the rows of other tables that refer to it.
    c.execute_batch("PRAGMA foreign_keys = OFF")?;
    c.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false)?;
    let behavior = rusqlite::TransactionBehavior::Immediate;
    let transaction = rusqlite::Transaction::new_unchecked(c, behavior)?;
    migrate::migrate_database(c)?;
    for (name, object_type) in objects {
        c.execute_batch(&format!("DROP {object_type} IF EXISTS {}", sql::quote_name(name)))?;
    }
    if is_last {
        c.execute_batch(&format!(
            "DROP VIEW hqdl_evidence; DROP VIEW hqdl_cell; DROP TABLE {}",
            OWN_TABLES.join("; DROP TABLE ")
        ))?;
    } else {
        for table in OWN_TABLES {
            c.execute(
                &format!(
                    "DELETE FROM {table} WHERE expansion IN
                       (SELECT name FROM hqdl_object WHERE spec = ?1)"
                ),
                [spec.full_path()],
            )?;
        }
        for (name, _) in objects {
            c.execute("DELETE FROM hqdl_object WHERE name = ?1", [name])?;
        }
    }
    transaction.commit()
}

/// Removes a copy and its journal files.
fn remove_files(path: &Path) -> Result<(), StoreError> {
    for suffix in ["-wal", "-shm", "-journal", ""] {
        let mut file = path.as_os_str().to_owned();
        file.push(suffix);
        match std::fs::remove_file(&file) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(StoreError::File { path: file.into(), error });
            }
            _ => {}
        }
    }
    Ok(())
}
