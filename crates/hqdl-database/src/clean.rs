//! Removes the objects that hqdl created in a database, and nothing else.

use std::path::{Path, PathBuf};

use rusqlite::config::DbConfig;

use super::output::{find_user_objects, read_copy_source};
use super::{Database, StoreError, migrate};
use hqdl_spec::{Catalog, Spec};
use hqdl_values::sql;

/// hqdl's own tables; the table of expansion names is the last. They are dropped together with the
/// last expansion, after the views `hqdl_evidence` and `hqdl_cell`.
pub(crate) const OWN_TABLES: [&str; 4] =
    ["hqdl_edit", "hqdl_record", "hqdl_completion", "hqdl_object"];

/// Report of the removed objects.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CleanReport {
    /// Path of the database.
    pub path: PathBuf,
    /// Removed tables and views.
    pub objects: Vec<String>,
    /// Whether the file itself was removed, because it was a copy without other objects.
    pub removed_file: bool,
}

/// Drops the tables and views that a spec has published. hqdl's bookkeeping is dropped with the
/// last of them. A copy (`output`) is deleted if it contains only objects that hqdl created.
///
/// # Errors
/// Returns [`StoreError`] if the database cannot be written. The database is then unchanged.
pub fn clean_database(source: &Database, spec: &Spec) -> Result<CleanReport, StoreError> {
    let path = spec.target().clone();
    if let Some(server) = source.server() {
        let mut report =
            CleanReport { path: server.display_url().into(), ..CleanReport::default() };
        if source.has_bookkeeping() {
            let (objects, is_last) =
                find_objects(source, spec).map_err(|e| source.store_error_for(&e))?;
            server.clean_schema(&spec.full_path(), &objects, is_last)?;
            report.objects = objects.into_iter().map(|(name, _)| name).collect();
        }
        return Ok(report);
    }
    if !path.exists() {
        return Ok(CleanReport { path, ..CleanReport::default() });
    }
    let db = Database::open_writable(&path)?;
    let mut report = CleanReport { path: path.clone(), ..CleanReport::default() };
    if !db.has_bookkeeping() {
        return Ok(report);
    }
    let is_copy = spec.output.is_some() && read_copy_source(&db)?.is_some();
    let is_removable =
        is_copy && find_user_objects(source, &db).map_err(|e| db.store_error_for(&e))?.is_empty();
    let (objects, is_last) = find_objects(&db, spec).map_err(|e| db.store_error_for(&e))?;
    report.objects = objects.iter().map(|(name, _)| name.clone()).collect();
    if is_removable && is_last {
        drop(db);
        remove_files(&path)?;
        report.removed_file = true;
        return Ok(report);
    }
    drop_objects(&db, spec, &objects, is_last).map_err(|e| db.store_error_for(&e))?;
    Ok(report)
}

/// Returns the existing tables and views of a spec, views first. Also returns true if no other spec
/// has objects in the database.
fn find_objects(db: &Database, spec: &Spec) -> rusqlite::Result<(Vec<(String, String)>, bool)> {
    let c = db.connection();
    let spec_path = spec.full_path();
    let count_other_specs = "SELECT count(*) FROM hqdl_object WHERE spec <> ?1";
    let is_last = c.query_row(count_other_specs, [&spec_path], |row| row.get::<_, i64>(0))? == 0;
    let views: Vec<String> = spec.expanded_views().into_keys().collect();
    let all: Vec<(String, String, Option<String>)> = c
        .prepare(
            "SELECT o.name, o.type, e.spec FROM hqdl_object AS o
             LEFT JOIN hqdl_object AS e ON e.name = o.expansion
             WHERE o.type IN ('table', 'view') ORDER BY o.type DESC, o.name",
        )?
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?
        .collect::<rusqlite::Result<_>>()?;
    let is_ours = |(name, object_type, owner): &(String, String, Option<String>)| {
        let is_of_spec = owner.as_deref() == Some(spec_path.as_str());
        let is_view = object_type == "view" && views.iter().any(|v| v.eq_ignore_ascii_case(name));
        (is_of_spec || is_view || is_last) && db.is_created_by_hqdl(name)
    };
    let objects = all.into_iter().filter(is_ours).map(|(name, object_type, _)| (name, object_type));
    Ok((objects.collect(), is_last))
}

fn drop_objects(
    db: &Database,
    spec: &Spec,
    objects: &[(String, String)],
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
