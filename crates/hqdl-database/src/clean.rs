//! Removes the objects that hqdl created in a database, and nothing else.

use std::path::PathBuf;

use super::target::PublishedObject;
use super::{Database, StoreError};
use hqdl_spec::{Catalog, Spec};

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
/// last table. A copy (`output`) is deleted if it contains only objects that hqdl created.
///
/// # Errors
/// Returns [`StoreError`] if the database cannot be written, in which case it is unchanged.
pub fn clean_database(source: &Database, spec: &Spec) -> Result<CleanReport, StoreError> {
    let path = spec.target().clone();
    let db = match Database::open(&path) {
        Err(StoreError::Missing(_)) => return Ok(CleanReport { path, ..CleanReport::default() }),
        opened => opened?,
    };
    let path = db.server_url().map_or(path, PathBuf::from);
    if !db.has_bookkeeping() {
        return Ok(CleanReport { path, ..CleanReport::default() });
    }
    let (objects, is_last) = find_objects(&db, spec).map_err(|e| db.to_store_error(&e))?;
    let removed_file = db.target.clean(&db, source, spec, &objects, is_last)?;
    let objects = objects.into_iter().map(|(name, _)| name).collect();
    Ok(CleanReport { path, objects, removed_file })
}

/// Returns the existing tables and views of a spec, views first, and true if no other spec has
/// objects in the database.
fn find_objects(db: &Database, spec: &Spec) -> rusqlite::Result<(Vec<PublishedObject>, bool)> {
    let c = db.connection();
    let spec_path = spec.full_path();
    let count_other_specs = "SELECT count(*) FROM hqdl_object WHERE spec <> ?1";
    let is_last = c.query_row(count_other_specs, [&spec_path], |row| row.get::<_, i64>(0))? == 0;
    let views: Vec<String> = spec.list_expanded_views().into_keys().collect();
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
        let is_view = object_type == "view"
            && owner.is_none()
            && views.iter().any(|v| v.eq_ignore_ascii_case(name));
        (is_of_spec || is_view || is_last) && db.is_created_by_hqdl(name)
    };
    let objects = all.into_iter().filter(is_ours).map(|(name, object_type, _)| (name, object_type));
    Ok((objects.collect(), is_last))
}
