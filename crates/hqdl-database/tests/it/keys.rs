//! Tests of keys: each entity occurs once, whatever the rows contain.

use std::collections::BTreeSet;

use hqdl_database::Database;
use hqdl_database::keys::{KeyPositions, KeyRow, Keys};
use hqdl_testkit::fixture::Fixture;

const SPEC: &str = r#"[database]
path = "heroes.sqlite"
[model]
name = "test"
[[expansion]]
name = "made"
source = "film"
key = ["k1", "k2"]
[[expansion.column]]
name = "maker"
"#;

/// Literals of all kinds of values; the last two cannot be asked about.
const VALUES: [&str; 12] = [
    "NULL",
    "''",
    "'a'",
    "'A'",
    "'a '",
    "'\u{e9}'",
    "1",
    "1.0",
    "'1'",
    "-0.5",
    "x'00'",
    "CAST(x'ff' AS TEXT)",
];

#[test]
fn each_key_is_visited_once_and_the_report_counts_the_rest() {
    for seed in 0..40 {
        let fixture = Fixture::new();
        let mut chance = fastrand::Rng::with_seed(seed);
        let connection = rusqlite::Connection::open(fixture.database.path()).unwrap();
        let mut rows = 0;
        for _ in 0..chance.usize(0..40) {
            let a = VALUES[chance.usize(0..VALUES.len())];
            let b = VALUES[chance.usize(0..VALUES.len())];
            let sql = format!("INSERT INTO film (k1, k2) VALUES ({a}, {b})");
            connection.execute(&sql, []).unwrap();
            rows += 1;
        }
        let count = |sql: &str| connection.query_row(sql, [], |r| r.get::<_, u64>(0)).unwrap();
        let is_bad =
            "(typeof(k1) = 'blob' OR typeof(k2) = 'blob' OR hex(k1) = 'FF' OR hex(k2) = 'FF')";
        let keys_of = |condition: &str| {
            let keys = format!("SELECT DISTINCT k1, k2 FROM film WHERE {condition}");
            count(&format!("SELECT count(*) FROM ({keys})"))
        };
        let expansion = fixture.only_expansion(SPEC);
        let db = Database::open(fixture.database.path()).unwrap();
        let keys = Keys::collect(&db, &expansion, None).unwrap();
        let mut visited: Vec<KeyRow> = Vec::new();
        keys.for_each(&mut |key| {
            visited.push(key.clone());
            Ok::<(), rusqlite::Error>(())
        })
        .unwrap();
        let good = format!("NOT {is_bad} AND NOT (k1 IS NULL AND k2 IS NULL)");
        assert_eq!(visited.len() as u64, keys_of(&good), "seed {seed}");
        let spelled: BTreeSet<String> =
            visited.iter().map(|k| format!("{:?}", k.row.key)).collect();
        assert_eq!(spelled.len(), visited.len(), "seed {seed}: a key twice");
        let entities: BTreeSet<&str> = visited.iter().map(|k| k.entity.as_str()).collect();
        let first = visited.iter().filter(|k| k.is_first_spelling).count();
        assert_eq!(first, entities.len(), "seed {seed}: an entity has one first spelling");
        let report = &keys.report;
        assert_eq!(report.rows, rows, "seed {seed}");
        let nobody = "SELECT count(*) FROM film WHERE k1 IS NULL AND k2 IS NULL";
        assert_eq!(report.null_rows, count(nobody), "seed {seed}");
        assert_eq!(report.unreadable.0, keys_of(is_bad), "seed {seed}");
        // A lookup by position must return the visited keys.
        let mut places = KeyPositions::default();
        let wanted: Vec<&KeyRow> = visited.iter().filter(|_| chance.bool()).collect();
        wanted.iter().for_each(|key| places.add(key.position));
        let mut found = Vec::new();
        keys.for_each_key_at(&places, &mut |key| {
            found.push((key.position, key.row.clone()));
            Ok::<(), rusqlite::Error>(())
        })
        .unwrap();
        let wanted: Vec<_> = wanted.iter().map(|key| (key.position, key.row.clone())).collect();
        assert_eq!(found, wanted, "seed {seed}");
    }
}

#[test]
fn a_missing_source_column_is_an_error_and_never_a_text() {
    let fixture = Fixture::new();
    let connection = rusqlite::Connection::open(fixture.database.path()).unwrap();
    connection.execute("INSERT INTO film (k1, k2) VALUES ('a', 'b'), ('c', 'd')", []).unwrap();
    let select = SPEC.replace("\"film\"", "\"SELECT * FROM film\"");
    let expansions = [fixture.only_expansion(SPEC), fixture.only_expansion(&select)];
    connection.execute("ALTER TABLE film RENAME COLUMN k1 TO renamed", []).unwrap();
    let db = Database::open(fixture.database.path()).unwrap();
    for expansion in &expansions {
        for filter in [None, Some("1")] {
            let error = Keys::collect(&db, expansion, filter).map(|k| k.report).unwrap_err();
            assert!(error.to_string().contains("no such column"), "{error}");
        }
    }
}
