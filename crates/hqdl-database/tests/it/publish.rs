//! Tests that updating published tables gives the same result as publishing from scratch.

use std::collections::{BTreeMap, HashSet};

use hqdl_database::publish::{CompletionProvenance, Publication};
use hqdl_database::published_state::PublishedState;
use hqdl_database::versions::{
    Checksums, PublishedCell, PublishedValue, RowVersion, hash_key, key_to_json,
};
use hqdl_database::{Database, StoreError};
use hqdl_spec::Spec;
use hqdl_spec::overrides::Overrides;
use hqdl_testkit::fixture::Fixture;
use hqdl_values::Row;
use hqdl_values::cell::CellValue;
use hqdl_values::value::Value;

const SPEC: &str = r#"[database]
path = "heroes.sqlite"
[model]
name = "test"
[[expansion]]
name = "made"
source = "film"
key = ["title", "year"]
[[expansion.column]]
name = "maker"
[[expansion.column]]
name = "minutes"
type = "integer"
[[expansion.column]]
name = "words"
many = { table = "made_word", column = "word" }
"#;
const COLUMNS: usize = 3;
const ROUNDS: usize = 60;

/// State, value and completion of a cell; `None` if it was never requested.
type Cell = Option<(&'static str, CellValue, i64)>;
type Rows = BTreeMap<String, (Vec<Value>, [Cell; COLUMNS])>;

fn cell(column: usize, chance: &mut fastrand::Rng) -> Cell {
    let n = chance.i64(0..4);
    let value = match (chance.u32(0..6), column) {
        (0, _) => return None,
        (1, _) => return Some(("unknown", CellValue::Nothing, n)),
        (_, 1) => CellValue::One(Value::Integer(n)),
        (_, 2) => CellValue::Many((0..n).map(|w| Value::from(format!("word {w}"))).collect()),
        _ => CellValue::One(Value::from(format!("it's \"{n}\""))),
    };
    Some(("ok", value, n))
}

fn change(rows: &mut Rows, chance: &mut fastrand::Rng) {
    for _ in 0..chance.usize(0..5) {
        let title = [Value::Null, Value::from("a".to_owned()), Value::from("A,\u{e9}".to_owned())];
        let year = [Value::Null, Value::Integer(1), Value::from("ca. 1".to_owned())];
        let key = vec![title[chance.usize(0..3)].clone(), year[chance.usize(0..3)].clone()];
        let cells = std::array::from_fn(|column| cell(column, chance));
        rows.insert(key_to_json(&key), (key, cells));
    }
    if chance.bool() && !rows.is_empty() {
        let gone = rows.keys().nth(chance.usize(0..rows.len())).unwrap().clone();
        rows.remove(&gone);
    }
}

fn shown(cells: &[Cell]) -> Vec<PublishedCell<'_>> {
    let mut shown = Vec::new();
    for cell in cells {
        shown.push(match cell {
            None => PublishedCell::Missing,
            Some((state, value, completion)) => PublishedCell::Value(PublishedValue {
                state,
                value,
                completion: Some(*completion),
                raw: None,
                repair: None,
                note: None,
            }),
        });
    }
    shown
}

/// Publishes rows, and commits them if `commits`.
fn publish(db: &Database, spec: &Spec, rows: &Rows, commits: bool) {
    let publication = Publication::begin(db, spec).unwrap();
    let mut tables = publication.open_tables(&spec.expansions[0], true).unwrap();
    for (key, cells) in rows.values() {
        tables.write_row(&Row { key: key.clone(), context: Vec::new() }, &shown(cells)).unwrap();
    }
    let keys: HashSet<i64> = rows.keys().map(|key| hash_key(key)).collect();
    tables.delete_obsolete_rows(None, &keys, None).unwrap();
    let written = tables.finish(None);
    let now = PublishedState::current(spec, 0, "m", &Overrides::default(), ("j".to_owned(), 1));
    let mut origins = |ids: &[i64]| vec![CompletionProvenance::default(); ids.len()];
    publication.finish_expansion(spec, &written, &now, &mut origins).unwrap();
    assert_eq!(publication.create_views(spec).unwrap(), [""; 0]);
    if commits {
        publication.commit().unwrap();
    }
}

/// Returns everything that is published for the expansion.
fn stands(db: &Database) -> Vec<String> {
    let all = |sql: &&str| -> Vec<String> {
        let mut statement = db.connection().prepare(sql).unwrap();
        let columns = statement.column_count();
        let row = |row: &rusqlite::Row<'_>| {
            let values = (0..columns).map(|n| row.get::<_, rusqlite::types::Value>(n));
            Ok(format!("{sql}: {:?}", values.collect::<rusqlite::Result<Vec<_>>>()?))
        };
        statement.query_map([], row).unwrap().map(Result::unwrap).collect()
    };
    [
        "SELECT * FROM made ORDER BY title, year, typeof(year)",
        "SELECT * FROM made_word ORDER BY 1, 2, typeof(year), 3",
        "SELECT key, cells, version FROM hqdl_record ORDER BY key",
        "SELECT id, cells FROM hqdl_completion WHERE cells <> 0 ORDER BY id",
        "SELECT name, rows, checksums FROM hqdl_object WHERE spec IS NOT NULL",
    ]
    .iter()
    .flat_map(all)
    .collect()
}

fn database() -> (Fixture, Database, Spec) {
    let fixture = Fixture::new();
    let (spec, _) = fixture.check_spec(SPEC).unwrap_or_else(|p| panic!("{}", p.render(false)));
    let db = Database::open_writable(fixture.database.path()).unwrap();
    (fixture, db, spec)
}

#[test]
fn updating_tables_equals_publishing_from_scratch() {
    let (_fixture, db, spec) = database();
    let mut chance = fastrand::Rng::with_seed(7);
    let mut rows = Rows::new();
    for round in 0..ROUNDS {
        change(&mut rows, &mut chance);
        if round > 0 {
            let before = stands(&db);
            publish(&db, &spec, &rows, false);
            assert_eq!(stands(&db), before, "round {round}: what is not committed is not there");
        }
        publish(&db, &spec, &rows, true);
        let (_other, from_nothing, same) = database();
        publish(&from_nothing, &same, &rows, true);
        assert_eq!(stands(&db), stands(&from_nothing), "round {round}: {rows:?}");
        // The stored checksums must equal those of the rows.
        let sums = db.load_checksums(&spec.expansions[0]).unwrap();
        let mut counted = Checksums::default();
        for (key, cells) in rows.values() {
            let row = Row { key: key.clone(), context: Vec::new() };
            counted.add_row(&RowVersion::from_row(&row, &shown(cells)));
        }
        assert_eq!(sums, counted, "round {round}");
    }
}

#[test]
fn a_manual_edit_causes_the_tables_to_be_recreated() {
    let (_fixture, db, spec) = database();
    let mut chance = fastrand::Rng::with_seed(8);
    let mut rows = Rows::new();
    while rows.len() < 4 {
        change(&mut rows, &mut chance);
    }
    publish(&db, &spec, &rows, true);
    let expansion = &spec.expansions[0];
    let before = stands(&db);
    assert!(
        db.load_checksums(expansion).is_some()
            && db.build_edit_warning(expansion).unwrap().is_none()
    );
    let stranger = rusqlite::Connection::open(db.path()).unwrap();
    let written = stranger.execute("UPDATE made SET maker = 'me'", []).unwrap();
    let told = db.build_edit_warning(expansion).unwrap().unwrap();
    assert!(told.contains(&format!("{written} published rows")), "{told}");
    assert!(db.load_checksums(expansion).is_none());
    publish(&db, &spec, &rows, true);
    assert_eq!((stands(&db), db.build_edit_warning(expansion).unwrap()), (before, None));
}

#[test]
fn a_full_disk_is_named_with_the_file_that_cannot_grow() {
    let fixture = Fixture::new();
    let db = Database::open_writable(fixture.database.path()).unwrap();
    let fill = "PRAGMA max_page_count = 20;
                CREATE TABLE big AS SELECT randomblob(1000000)";
    let error = db.to_store_error(&db.connection().execute_batch(fill).unwrap_err());
    assert!(matches!(&error, StoreError::DiskFull(path) if path == db.path()), "{error}");
}
