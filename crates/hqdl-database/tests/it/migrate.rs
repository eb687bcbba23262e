//! Tests of databases written by other versions.

use hqdl_database::migrate::migrate_database;
use rusqlite::Connection;

#[test]
fn tables_of_a_newer_program_are_left_unchanged() {
    let connection = Connection::open_in_memory().unwrap();
    migrate_database(&connection).unwrap();
    migrate_database(&connection).unwrap();
    let later = "UPDATE hqdl_object SET expansion = '999' WHERE name = 'hqdl_version'";
    connection.execute(later, []).unwrap();
    let changes = connection.total_changes();
    let error = migrate_database(&connection).unwrap_err();
    assert!(error.to_string().contains("999"), "{error}");
    assert_eq!(connection.total_changes(), changes);
}
