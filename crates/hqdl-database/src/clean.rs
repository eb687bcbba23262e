//! Removes the objects that hqdl created in a database, and nothing else.

use std::path::{Path, PathBuf};

use rusqlite::config::DbConfig;

use super::output::{copied_from, own_objects};
use super::{Database, StoreError};
use hqdl_spec::{Catalog, Spec};
use hqdl_values::sql;

/// Bookkeeping objects, which are dropped with the last expansion.
const OWN: [&str; 8] = [
    "VIEW hqdl_cell",
    "TABLE hqdl_edit",
    "TABLE hqdl_bucket",
    "TABLE hqdl_record",
    "TABLE hqdl_completion",
    "TABLE hqdl_expansion",
    "TABLE hqdl_object",
    "TABLE hqdl_migration",
];

/// Report of what was removed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cleaned {
    /// Path of the database.
    pub path: PathBuf,
    /// Removed tables and views.
    pub objects: Vec<String>,
    /// Whether the file itself was removed: a copy without other objects.
    pub file: bool,
}

/// Drops the tables and views that a spec has published. hqdl's bookkeeping is dropped with the
/// last of them. A copy (`output`) is deleted if it contains no objects of other origin.
///
/// # Errors
/// Returns [`StoreError`] if the database cannot be written; it is unchanged then.
pub fn clean(source: &Database, spec: &Spec) -> Result<Cleaned, StoreError> {
    let path = spec.target().clone();
    if let Some(server) = source.server() {
        let mut cleaned = Cleaned { path: server.shown().into(), ..Cleaned::default() };
        if source.has_bookkeeping() {
            let (objects, last) = objects(source, spec).map_err(|e| source.error(&e))?;
            server.clean(&spec.full_path(), &objects, last)?;
            cleaned.objects = objects.into_iter().map(|(name, _)| name).collect();
        }
        return Ok(cleaned);
    }
    if !path.exists() {
        return Ok(Cleaned { path, ..Cleaned::default() });
    }
    let db = Database::open_writable(&path)?;
    let mut cleaned = Cleaned { path: path.clone(), ..Cleaned::default() };
    if !db.has_bookkeeping() {
        return Ok(cleaned);
    }
    let copied = spec.output.is_some() && copied_from(&db)?.is_some();
    let alone = copied && own_objects(source, &db).map_err(|e| db.error(&e))?.is_empty();
    let (objects, last) = objects(&db, spec).map_err(|e| db.error(&e))?;
    cleaned.objects = objects.iter().map(|(name, _)| name.clone()).collect();
    if alone && last {
        drop(db);
        remove(&path)?;
        cleaned.file = true;
        return Ok(cleaned);
    }
    drop_all(&db, spec, &objects, last).map_err(|e| db.error(&e))?;
    Ok(cleaned)
}

/// Returns the existing tables and views of a spec, views first, and whether no other spec has any
/// here.
fn objects(db: &Database, spec: &Spec) -> rusqlite::Result<(Vec<(String, String)>, bool)> {
    let c = db.connection();
    let full = spec.full_path();
    let others = "SELECT count(*) FROM hqdl_expansion WHERE spec <> ?1";
    let last = c.query_row(others, [&full], |row| row.get::<_, i64>(0))? == 0;
    let views: Vec<String> = spec.expanded_views().into_keys().collect();
    let all: Vec<(String, String, Option<String>)> = c
        .prepare(
            "SELECT o.name, o.type, e.spec FROM hqdl_object AS o
             LEFT JOIN hqdl_expansion AS e ON e.name = o.expansion
             WHERE o.type IN ('table', 'view') ORDER BY o.type DESC, o.name",
        )?
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?
        .collect::<rusqlite::Result<_>>()?;
    let ours = |(name, kind, of): &(String, String, Option<String>)| {
        let of_spec = of.as_deref() == Some(full.as_str());
        let view = kind == "view" && views.iter().any(|v| v.eq_ignore_ascii_case(name));
        (of_spec || view || last) && db.made_by_hqdl(name)
    };
    let found = all.into_iter().filter(ours).map(|(name, kind, _)| (name, kind));
    Ok((found.collect(), last))
}

fn drop_all(
    db: &Database,
    spec: &Spec,
    objects: &[(String, String)],
    last: bool,
) -> rusqlite::Result<()> {
    let c = db.connection();
    // Dropping a table must not change rows of other tables that refer to it.
    c.execute_batch("PRAGMA foreign_keys = OFF")?;
    c.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false)?;
    let behavior = rusqlite::TransactionBehavior::Immediate;
    let transaction = rusqlite::Transaction::new_unchecked(c, behavior)?;
    for (name, kind) in objects {
        c.execute_batch(&format!("DROP {kind} IF EXISTS {}", sql::name(name)))?;
    }
    if last {
        for object in OWN {
            let (kind, name) = object.split_once(' ').unwrap_or_default();
            c.execute_batch(&format!("DROP {kind} IF EXISTS {name}"))?;
        }
    } else {
        for table in ["hqdl_record", "hqdl_completion", "hqdl_bucket", "hqdl_edit", "hqdl_object"] {
            c.execute(
                &format!(
                    "DELETE FROM {table} WHERE expansion IN
                       (SELECT name FROM hqdl_expansion WHERE spec = ?1)"
                ),
                [spec.full_path()],
            )?;
        }
        for (name, _) in objects {
            c.execute("DELETE FROM hqdl_object WHERE name = ?1", [name])?;
        }
        c.execute("DELETE FROM hqdl_expansion WHERE spec = ?1", [spec.full_path()])?;
    }
    transaction.commit()
}

/// Removes a copy and the files that belong to it.
fn remove(path: &Path) -> Result<(), StoreError> {
    for beside in ["-wal", "-shm", "-journal", ""] {
        let mut file = path.as_os_str().to_owned();
        file.push(beside);
        match std::fs::remove_file(&file) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(StoreError::File { path: file.into(), error });
            }
            _ => {}
        }
    }
    Ok(())
}
