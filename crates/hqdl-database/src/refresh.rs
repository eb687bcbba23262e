//! Updates a copy to match the rows of its database, without recreating the copy: deletes the rows
//! that differ, and inserts the missing ones.
//!
//! This requires ordinary tables with row ids, and the same schema in both databases, apart from
//! the objects that hqdl published. The copy keeps the database's row ids.

use rusqlite::Connection;

use super::{Database, StoreError};
use hqdl_values::sql;

/// Name under which the source database is attached to its copy.
const SOURCE: &str = "hqdl_source";

/// Returns whether a copy can be updated in place.
pub(super) fn can_refresh(source: &Database, copy: &Database) -> rusqlite::Result<bool> {
    if source.server.is_some() || !copy.has_bookkeeping() {
        return Ok(false);
    }
    let (from, to) = (&source.connection, &copy.connection);
    let plain = from.query_row(
        "SELECT NOT EXISTS (SELECT 1 FROM pragma_table_list AS l WHERE l.schema = 'main'
           AND l.name NOT LIKE 'sqlite\\_%' ESCAPE '\\' AND l.type <> 'view'
           AND (l.type <> 'table' OR l.wr
             OR EXISTS (SELECT 1 FROM pragma_table_xinfo(l.name) AS c WHERE c.hidden > 0
                  OR lower(c.name) IN ('rowid', '_rowid_', 'oid'))))",
        [],
        |row| row.get(0),
    )?;
    Ok(plain
        && read_settings(from)? == read_settings(to)?
        && read_user_schema(from, false)? == read_user_schema(to, true)?)
}

/// Returns the settings that a copy must share with its database: user version, application id and
/// encoding.
fn read_settings(db: &Connection) -> rusqlite::Result<[String; 3]> {
    let value = |name: &str| {
        db.query_row(&format!("SELECT CAST({name} AS TEXT) FROM pragma_{name}"), [], |r| r.get(0))
    };
    Ok([value("user_version")?, value("application_id")?, value("encoding")?])
}

/// Returns the user's schema, sorted. If `made` is true, leaves out the objects that hqdl created,
/// which requires hqdl's bookkeeping.
fn read_user_schema(db: &Connection, made: bool) -> rusqlite::Result<Vec<[Option<String>; 3]>> {
    let ours = if made { "SELECT name FROM hqdl_object" } else { "SELECT NULL WHERE 0" };
    let sql = format!(
        "SELECT type, name, sql FROM sqlite_schema
         WHERE name NOT LIKE 'sqlite\\_%' ESCAPE '\\' AND name NOT LIKE 'hqdl\\_%' ESCAPE '\\'
           AND tbl_name NOT LIKE 'hqdl\\_%' ESCAPE '\\'
           AND lower(name) NOT IN (SELECT lower(name) FROM ({ours}))
           AND lower(tbl_name) NOT IN (SELECT lower(name) FROM ({ours}))
         ORDER BY type, name"
    );
    let mut statement = db.prepare(&sql)?;
    let rows = statement.query_map([], |r| Ok([r.get(0)?, r.get(1)?, r.get(2)?]))?;
    rows.collect()
}

/// Attaches the database to its copy; this must happen outside a transaction. The database is
/// attached read-only, so that writing to the copy does not lock the database.
pub(super) fn attach_source(copy: &Database, source: &Database) -> Result<(), StoreError> {
    let path = std::path::absolute(&source.path).unwrap_or_else(|_| source.path.clone());
    let path = path.to_string_lossy().replace('%', "%25").replace('?', "%3f").replace('#', "%23");
    let attach = format!("ATTACH ?1 AS {SOURCE}");
    let uri = format!("file:{path}?mode=ro");
    copy.connection.execute(&attach, [uri]).map(|_| ()).map_err(|e| copy.to_store_error(&e))
}

/// Returns the SQL condition for the source rows `s` that are missing from a copy, provided that
/// the source contains all rows of the copy. If the number of source rows after the copy's last row
/// equals the number of missing rows, these source rows are the missing rows.
fn build_missing_rows_condition(db: &Connection, table: &str) -> rusqlite::Result<String> {
    let sql = format!(
        "SELECT coalesce((SELECT max(rowid) FROM main.{table}), 0),
           (SELECT count(*) FROM {SOURCE}.{table}) - (SELECT count(*) FROM main.{table})"
    );
    let (last, missing): (i64, i64) = db.query_row(&sql, [], |r| Ok((r.get(0)?, r.get(1)?)))?;
    let sql = format!("SELECT count(*) FROM {SOURCE}.{table} WHERE rowid > ?1");
    let are_last = db.query_row(&sql, [last], |r| r.get::<_, i64>(0))? == missing;
    Ok(if are_last {
        format!("s.rowid > {last}")
    } else {
        format!("NOT EXISTS (SELECT 1 FROM main.{table} AS t WHERE t.rowid = s.rowid)")
    })
}

/// Updates all tables of the main database to match the attached database.
pub(super) fn refresh_rows(db: &Connection) -> rusqlite::Result<()> {
    let tables: Vec<String> = db
        .prepare(&format!(
            "SELECT name FROM {SOURCE}.sqlite_schema
             WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
        ))?
        .query_map([], |r| r.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    for table in &tables {
        let columns: Vec<String> = db
            .prepare("SELECT name FROM pragma_table_info(?1)")?
            .query_map([table], |r| r.get::<_, String>(0))?
            .map(|name| name.map(|name| sql::quote_name(&name)))
            .collect::<rusqlite::Result<_>>()?;
        let table = sql::quote_name(table);
        let same: Vec<String> = columns
            .iter()
            .map(|c| format!("s.{c} IS t.{c} COLLATE BINARY AND typeof(s.{c}) = typeof(t.{c})"))
            .collect();
        let (same, columns) = (same.join(" AND "), columns.join(", "));
        db.execute_batch(&format!(
            "DELETE FROM main.{table} AS t WHERE NOT EXISTS (
               SELECT 1 FROM {SOURCE}.{table} AS s WHERE s.rowid = t.rowid AND {same})"
        ))?;
        let missing_rows = build_missing_rows_condition(db, &table)?;
        db.execute_batch(&format!(
            "INSERT INTO main.{table} (rowid, {columns}) SELECT rowid, {columns}
               FROM {SOURCE}.{table} AS s WHERE {missing_rows}"
        ))?;
    }
    let counted = "SELECT EXISTS (SELECT 1 FROM main.sqlite_schema WHERE name = 'sqlite_sequence')";
    if db.query_row(counted, [], |r| r.get(0))? {
        let from = format!("{SOURCE}.sqlite_sequence");
        let is_there = format!(
            "SELECT EXISTS (SELECT 1 FROM {SOURCE}.sqlite_schema WHERE name = 'sqlite_sequence')"
        );
        if db.query_row(&is_there, [], |r| r.get(0))? {
            db.execute_batch(&format!(
                "DELETE FROM main.sqlite_sequence WHERE name IN (SELECT name FROM {from});
                 INSERT INTO main.sqlite_sequence SELECT name, seq FROM {from};"
            ))?;
        }
    }
    Ok(())
}
