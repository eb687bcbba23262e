//! Tests that updating published tables row by row gives, after every change, the same tables as
//! publishing from scratch.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rusqlite::Connection;
use serde_json::Value as Json;

use hqdl_testkit::endpoint::Endpoint;
use hqdl_testkit::project::{
    EXPANSION, EXPANSION_COLUMNS, HEROES, MODEL, Project, query_rows, true_value,
};

const STEPS: usize = 16;
const SEEDS: u64 = 2;

/// A project whose true values change.
pub struct Changing {
    pub project: Project,
    generation: Arc<AtomicU64>,
    columns: Vec<String>,
    sources: bool,
    list: bool,
    pub chance: fastrand::Rng,
    added: usize,
}

const VILLAINS: &str = "CREATE TABLE villain (name TEXT, full_name TEXT);
    INSERT INTO villain VALUES ('Grim', 'Gus Grim'), ('Zed', 'Zed Zedsson');";
const TWO_SOURCES: &str = "
[[expansion.source]]
table = \"hero\"
[[expansion.source]]
table = \"villain\"
columns = [\"motto\"]
";

impl Changing {
    pub fn new(seed: u64) -> Self {
        let generation: Arc<AtomicU64> = Arc::default();
        let now = Arc::clone(&generation);
        let endpoint = Endpoint::start_with(move |column: &str, key: &[Json]| {
            let generation = now.load(Ordering::SeqCst);
            match (column, generation) {
                ("motto", n) if n > 0 => format!("{key:?} for the {n}. time").into(),
                ("eye_color", n) if n % 3 == 2 => Json::Null,
                ("powers", n) if n % 2 == 1 => vec!["Flight"].into(),
                _ => true_value(column, key),
            }
        });
        let project = Project::new(&endpoint, &format!("{HEROES}{VILLAINS}"), "");
        // The endpoint lives as long as the test.
        std::mem::forget(endpoint);
        let columns =
            EXPANSION_COLUMNS.split("[[expansion.column]]").skip(1).map(str::to_owned).collect();
        let chance = fastrand::Rng::with_seed(seed);
        let made =
            Self { project, generation, columns, sources: false, list: false, chance, added: 0 };
        made.write_spec();
        // Another spec's expansion about the same heroes, with one shared question.
        let motto = made.columns.iter().find(|c| c.contains("motto")).unwrap();
        let other =
            [MODEL, &EXPANSION.replace("\"llm\"", "\"other\""), "[[expansion.column]]", motto];
        let other = other.concat().replace("{base_url}", made.project.base_url());
        std::fs::write(made.project.path("specs/y.toml"), other).unwrap();
        made
    }

    fn write_spec(&self) {
        let mut expansion = EXPANSION.to_owned();
        if self.sources {
            expansion = expansion.replace("source = \"hero\"\n", "") + TWO_SOURCES;
        }
        let columns: Vec<String> = self
            .columns
            .iter()
            .map(|c| {
                let c =
                    if self.list { c.replace(", \"Green\"]", ", \"Grey\"]") } else { c.clone() };
                format!("[[expansion.column]]{c}\n")
            })
            .collect();
        self.project.write_spec(&[MODEL, &expansion, &columns.concat()].concat());
    }

    /// Returns a hero whose names are texts.
    fn someone(&mut self) -> [String; 2] {
        let all =
            self.project.query_rows("SELECT name, full_name FROM hero WHERE full_name <> '-'");
        let row = &all[self.chance.usize(0..all.len())];
        [0, 1].map(|n| row[n].as_str().unwrap().to_owned())
    }

    pub fn ends(&self, args: &[&str]) {
        let ended = self.project.run_hqdl(args);
        assert!([0, 1].contains(&ended.code), "{args:?}: {ended:?}");
    }

    /// Makes a random change and returns its description.
    pub fn change(&mut self) -> &'static str {
        let [name, full] = self.someone();
        let of = |sql: &str| {
            let quoted = |t: &str| t.replace('\'', "''");
            sql.replace("{name}", &quoted(&name)).replace("{full}", &quoted(&full))
        };
        let is = "name = '{name}' AND full_name = '{full}'";
        self.added += 1;
        let n = self.added;
        match self.chance.u32(0..15) {
            0 => {
                let sql =
                    format!("INSERT INTO hero (name, full_name) VALUES ('New {n}', 'N. {n}')");
                self.project.execute_sql(&sql);
                "a row comes"
            }
            1 => {
                self.project.execute_sql(&of(&format!("DELETE FROM hero WHERE {is}")));
                "a row goes"
            }
            2 => {
                let sql = format!("UPDATE hero SET full_name = '{{full}} {n}' WHERE {is}");
                self.project.execute_sql(&of(&sql));
                "a row is renamed"
            }
            3 => {
                // Other spellings of a hero.
                let sql = "INSERT INTO hero (name, full_name) VALUES ('{name} ', '{full}')";
                self.project.execute_sql(&of(sql));
                "a row is respelled"
            }
            4 => {
                self.generation.fetch_add(1, Ordering::SeqCst);
                let refresh = ["--refresh", "motto", "--where", "id % 3 = 0"];
                self.ends(&[&["materialize", "specs/x.toml"], &refresh[..]].concat());
                "some cells are asked again"
            }
            5 => {
                self.generation.fetch_add(1, Ordering::SeqCst);
                self.ends(&["materialize", "specs/y.toml", "--refresh", "motto"]);
                "another spec asks the same again"
            }
            6 | 7 => {
                let said = format!("said {n}");
                self.ends(&[
                    "override",
                    "set",
                    "specs/x.toml",
                    "llm",
                    &name,
                    &full,
                    "motto",
                    &said,
                ]);
                "an override is set"
            }
            8 => {
                let args = ["override", "unset", "specs/x.toml", "llm", &name, &full, "motto"];
                self.project.run_hqdl(&args);
                "an override is unset"
            }
            9 => {
                let from = self.chance.usize(0..self.columns.len());
                let column = self.columns.remove(from);
                let to = self.chance.usize(0..=self.columns.len());
                self.columns.insert(to, column);
                self.write_spec();
                "columns are reordered"
            }
            10 => {
                let column = "\nname = \"weapon\"\nabout = \"what the hero fights with\"\n";
                match self.columns.iter().position(|c| c == column) {
                    Some(at) => drop(self.columns.remove(at)),
                    None => self.columns.push(column.to_owned()),
                }
                self.write_spec();
                "a column comes or goes"
            }
            11 => {
                self.list = !self.list;
                self.write_spec();
                "a list is another one"
            }
            12 => {
                self.sources = !self.sources;
                self.write_spec();
                "the sources are others"
            }
            13 => {
                let edits = [
                    "UPDATE llm SET motto = 'by hand' WHERE rowid % 4 = 1",
                    "DELETE FROM llm WHERE rowid % 5 = 2",
                    "DELETE FROM llm_power WHERE rowid % 3 = 0",
                    "INSERT INTO llm (name, full_name) VALUES ('by', 'hand')",
                ];
                let edit = edits[self.chance.usize(0..edits.len())];
                if self.project.has_table("llm") {
                    self.project.connect().execute(edit, []).unwrap();
                }
                "somebody writes there by hand"
            }
            _ => {
                let sql = format!(
                    "INSERT INTO hero (name, full_name) VALUES ('Few {n}', 'F. {n}'), ('More {n}', 'M. {n}')"
                );
                self.project.execute_sql(&sql);
                self.ends(&["materialize", "specs/x.toml", "--limit", "1"]);
                "one row of two is asked about"
            }
        }
    }

    /// Returns what is published, by table, with the rows sorted.
    pub fn published(&self, database: &str) -> BTreeMap<String, Vec<String>> {
        let db = Connection::open(self.project.path(database)).unwrap();
        let mut found = BTreeMap::new();
        let mut take = |name: &str, sql: &str| {
            let all = query_rows(&db, sql).unwrap_or_else(|e| panic!("{database}: {sql}: {e}"));
            let mut all: Vec<String> =
                all.iter().map(|r| Json::from(r.clone()).to_string()).collect();
            all.sort();
            found.insert(name.to_owned(), all);
        };
        for table in ["llm", "llm_power", "hero_expanded"] {
            take(table, &format!("SELECT * FROM {table}"));
        }
        for table in ["hqdl_cell", "hqdl_record", "hqdl_completion", "hqdl_edit"] {
            take(table, &format!("SELECT * FROM {table} WHERE expansion = 'llm'"));
        }
        let of = "SELECT name, type, key, columns, layout, rows, checksums, inputs ->> 'overrides',
                         inputs ->> 'columns' FROM hqdl_object
                  WHERE expansion = 'llm' AND type NOT IN ('buckets', 'view')";
        take("hqdl_object", of);
        let schema = "SELECT type, tbl_name, name, sql FROM sqlite_schema
                      WHERE tbl_name IN ('llm', 'llm_power', 'hero_expanded')";
        take("schema", schema);
        found
    }

    /// Publishes everything into a copy of the database without published tables.
    fn anew(&self) -> BTreeMap<String, Vec<String>> {
        let path = self.project.path("bare.sqlite");
        let _ = std::fs::remove_file(&path);
        self.project.connect().execute("VACUUM INTO ?1", [path.to_str().unwrap()]).unwrap();
        let db = Connection::open(&path).unwrap();
        let made = "SELECT type, name FROM hqdl_object WHERE type IN ('view', 'table')
                    UNION ALL SELECT type, name FROM sqlite_schema
                    WHERE name LIKE 'hqdl\\_%' ESCAPE '\\' AND type IN ('view', 'table')";
        for object in query_rows(&db, made).unwrap() {
            let text = |n: usize| object[n].as_str().unwrap().to_owned();
            db.execute_batch(&format!("DROP {} \"{}\"", text(0), text(1))).unwrap();
        }
        drop(db);
        let args = ["materialize", "specs/x.toml", "--json", "--limit", "0", "--db", "bare.sqlite"];
        let ended = self.project.run_hqdl(&args);
        assert_eq!(ended.done_event()["requests"], 0);
        assert_eq!(ended.done_event()["published"], true);
        self.published("bare.sqlite")
    }
}

#[test]
fn publishing_row_by_row_equals_publishing_from_scratch() {
    let steps = std::env::var("HQDL_TEST_STEPS").ok().and_then(|n| n.parse().ok());
    let first = std::env::var("HQDL_TEST_SEED").ok().and_then(|n| n.parse().ok()).unwrap_or(0);
    for seed in first..first + SEEDS {
        let mut changing = Changing::new(seed);
        changing.ends(&["materialize", "specs/x.toml"]);
        for step in 0..steps.unwrap_or(STEPS) {
            let mut what = vec![changing.change()];
            while changing.chance.u8(0..3) == 0 {
                what.push(changing.change());
            }
            // Not every step requests missing cells.
            let limit: &[&str] = if changing.chance.bool() { &[] } else { &["--limit", "2"] };
            let args = [&["materialize", "specs/x.toml", "--json"], limit].concat();
            let ended = changing.project.run_hqdl(&args);
            assert!([0, 1].contains(&ended.code), "{what:?}: {ended:?}");
            let (found, anew) = (changing.published("data.sqlite"), changing.anew());
            for (table, rows) in &anew {
                assert_eq!(&found[table], rows, "seed {seed}, step {step}, {what:?}: {table}");
            }
            // After that, nothing is left to do.
            let again = changing.project.run_hqdl(&[
                "materialize",
                "specs/x.toml",
                "--json",
                "--limit",
                "0",
            ]);
            assert_eq!(
                again.done_event()["published"],
                false,
                "seed {seed}, step {step}, {what:?}"
            );
        }
    }
}

/// Count the written rows with a trigger, as another program would.
#[test]
fn one_more_row_is_one_row_written() {
    let changing = Changing::new(0);
    let sql = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000)
               INSERT INTO hero (name, full_name) SELECT 'Number ' || i, 'Person ' || i FROM n";
    changing.project.execute_sql(sql);
    let large = ["--rows-per-request", "100"];
    changing.ends(&[&["materialize", "specs/x.toml"], &large[..]].concat());
    let rowid = |table: &str| {
        let sql = format!("SELECT max(rowid), count(*) FROM {table}");
        changing.project.query_rows(&sql)[0].clone()
    };
    let before = rowid("llm");
    let wal = |sql: &str| {
        // No other process moves the log into the database.
        let other = changing.project.connect();
        other.execute_batch(&format!("PRAGMA journal_mode = WAL; {sql}")).unwrap();
        let _reader = other
            .prepare("SELECT * FROM hero")
            .unwrap()
            .query([])
            .unwrap()
            .next()
            .unwrap()
            .is_some();
        changing.ends(&["materialize", "specs/x.toml"]);
        let log = changing.project.path("data.sqlite-wal");
        std::fs::metadata(log).map_or(0, |m| m.len() / 4120)
    };
    let pages = wal("INSERT INTO hero (name, full_name) VALUES ('New', 'Nina')");
    let after = rowid("llm");
    assert_eq!(after[1].as_i64().unwrap(), before[1].as_i64().unwrap() + 1);
    assert_eq!(after[0].as_i64().unwrap(), before[0].as_i64().unwrap() + 1, "the others stand");
    assert!(pages < 60, "{pages} pages were written for one row");
}

#[test]
fn a_manually_edited_cell_is_reported_and_restored() {
    let changing = Changing::new(0);
    changing.ends(&["materialize", "specs/x.toml"]);
    let project = &changing.project;
    let whole = changing.published("data.sqlite");
    let edits = [
        "UPDATE llm SET motto = 'mine' WHERE name = 'Zed'",
        "UPDATE llm_power SET power = 'Mine' WHERE rowid = 1",
        "DELETE FROM llm WHERE name = 'Zed'",
        "DELETE FROM llm; INSERT INTO llm (name) SELECT name FROM hero",
        "DROP TRIGGER hqdl_llm_update; UPDATE llm SET motto = 'mine'",
    ];
    for edit in edits {
        project.execute_sql(edit);
        let triggers = !edit.starts_with("DROP");
        let checked = project.run_hqdl(&["check", "specs/x.toml"]).expect_exit_code(0);
        assert_eq!(checked.stderr.contains("edited by hand"), triggers, "{edit}: {checked:?}");
        let run = project.run_materialize(&[]).expect_exit_code(0);
        assert_eq!(run.stdout.contains("edited by hand"), triggers, "{edit}: {run:?}");
        assert_eq!(changing.published("data.sqlite"), whole, "{edit}");
        let checked = project.run_hqdl(&["check", "specs/x.toml"]).expect_exit_code(0);
        assert!(!checked.stderr.contains("edited by hand"), "{edit}: {checked:?}");
    }
}
