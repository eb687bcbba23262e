//! Tests of `hqdl init` on realistic databases: what rows are, what they belong to, and what is
//! left out on purpose; CSV files; and `hqdl clean`, which removes everything again.

use std::path::{Path, PathBuf};
use std::process::Command;

use rusqlite::Connection;

use hqdl::init::csv_import::create_database;
use hqdl_testkit::endpoint::Endpoint;
use hqdl_testkit::project::{
    CommandResult, check_complete, heroes_project, query_rows, truthful_endpoint,
};

/// A music shop with typical tables.
const SHOP: &str = "
    CREATE TABLE Artist (ArtistId INTEGER PRIMARY KEY, Name TEXT);
    CREATE TABLE Album (AlbumId INTEGER PRIMARY KEY, Title TEXT,
                        ArtistId INTEGER REFERENCES Artist (ArtistId));
    CREATE TABLE Customer (CustomerId INTEGER PRIMARY KEY, FirstName TEXT, LastName TEXT,
                           Email TEXT, Phone TEXT);
    CREATE TABLE Speaker (Id INTEGER PRIMARY KEY, FirstName TEXT, LastName TEXT, Email TEXT);
    CREATE TABLE Invoice (InvoiceId INTEGER PRIMARY KEY, CustomerId INTEGER REFERENCES Customer,
                          InvoiceDate TEXT, BillingCity TEXT);
    CREATE TABLE django_migrations (id INTEGER PRIMARY KEY, app TEXT, name TEXT);
    CREATE TABLE alembic_version (version_num TEXT);
    INSERT INTO Artist VALUES (1, 'Queen'), (2, 'Abba'), (3, 'Eagles');
    INSERT INTO Album VALUES (1, 'Greatest Hits', 1), (2, 'Greatest Hits', 2), (3, 'Arrival', 2),
                             (4, 'Hotel California', 3);
    INSERT INTO Customer VALUES (1, 'Ann', 'Lee', 'ann@example.org', '+1 2'),
                                (2, 'Bob', 'Fox', 'bob@example.org', '+1 3');
    INSERT INTO Speaker VALUES (1, 'Cy', 'Orr', 'cy@example.org');
    INSERT INTO Invoice VALUES (1, 1, '2024-01-02', 'Oslo'), (2, 2, '2024-01-03', 'Rome');
    INSERT INTO django_migrations VALUES (1, 'shop', '0001_initial'), (2, 'shop', '0002_more');
    INSERT INTO alembic_version VALUES ('abc');";

fn hqdl(dir: &Path, args: &[&str]) -> CommandResult {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hqdl"));
    command.current_dir(dir).args(args).env("HQDL_CACHE", dir.join("cache")).env("HOME", dir);
    CommandResult::new(&command.output().unwrap())
}

fn folder_with(sql: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    Connection::open(dir.path().join("my.db")).unwrap().execute_batch(sql).unwrap();
    dir
}

fn init(dir: &Path) -> String {
    hqdl(dir, &["init", "my.db", "-s", "specs/my.toml"]).expect_exit_code(0);
    hqdl(dir, &["check", "specs/my.toml"]).expect_exit_code(0);
    std::fs::read_to_string(dir.join("specs/my.toml")).unwrap()
}

#[test]
fn entities_are_proposed_with_their_owners_and_persons_are_not() {
    let dir = folder_with(SHOP);
    let toml = init(dir.path());
    let expansions: Vec<&str> = toml.lines().filter(|l| l.starts_with("name = \"llm_")).collect();
    assert_eq!(expansions, ["name = \"llm_Artist\"", "name = \"llm_Album\""], "{toml}");
    // Two albums with the same title are different albums.
    assert!(toml.contains("key = [\"Title\", \"artist\"]"), "{toml}");
    assert!(toml.contains("# Left out because they hold personal data: `Customer`, `Speaker`"));
    for word in ["Email", "Phone", "FirstName", "alembic", "django", "Invoice"] {
        assert!(!toml.contains(word), "{word}: {toml}");
    }
    // A program's database is not written to.
    assert!(toml.contains("\noutput = \"../my.expanded.sqlite\"\n"), "{toml}");
}

#[test]
fn a_select_shows_its_rows_with_their_answers() {
    let endpoint = Endpoint::start_with(|column, key| format!("{column} {}", key.len()).into());
    let dir = folder_with(SHOP);
    init(dir.path());
    let flags = ["--base-url", &endpoint.base_url(), "--model", "m", "--price", "0,0"];
    hqdl(dir.path(), &[&["materialize", "specs/my.toml"], &flags[..]].concat()).expect_exit_code(0);
    let copy = Connection::open(dir.path().join("my.expanded.sqlite")).unwrap();
    let sql = "SELECT AlbumId, artist, description FROM llm_Album_expanded ORDER BY 1";
    let found = query_rows(&copy, sql).unwrap();
    assert_eq!(found.len(), 4);
    let wanted = r#"[2,"Abba","description 2"]"#;
    assert_eq!(serde_json::to_string(&found[1]).unwrap(), wanted);
    // The copy is removed as a whole.
    hqdl(dir.path(), &["clean", "specs/my.toml"]).expect_exit_code(0);
    assert!(!dir.path().join("my.expanded.sqlite").exists());
    assert!(dir.path().join("my.db").exists());
}

#[test]
fn a_local_model_works_by_following_the_comment() {
    let dir = folder_with(SHOP);
    let toml = init(dir.path());
    let ours: Vec<&str> = toml
        .lines()
        .filter(|l| !["name = \"gpt", "api_key_env", "price"].iter().any(|w| l.starts_with(w)))
        .map(|l| match l.strip_prefix("# ") {
            Some(line) if ["base_url", "name =", "price"].iter().any(|w| line.starts_with(w)) => {
                line
            }
            _ => l,
        })
        .collect();
    std::fs::write(dir.path().join("specs/my.toml"), ours.join("\n")).unwrap();
    hqdl(dir.path(), &["check", "specs/my.toml"]).expect_exit_code(0);
    let ended = hqdl(dir.path(), &["plan", "specs/my.toml"]).expect_exit_code(0);
    assert!(ended.stdout.contains("requests"), "{}", ended.stdout);
}

#[test]
fn a_missing_database_is_reported_as_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let ended = hqdl(dir.path(), &["init", "nothere.db", "-s", "specs/a.toml"]).expect_exit_code(2);
    assert!(ended.stderr.contains("there is no file at nothere.db"), "{}", ended.stderr);
    assert!(!ended.stderr.contains("[database]"), "{}", ended.stderr);
    assert!(!dir.path().join("specs").exists());
}

#[test]
fn csv_files_become_a_database_beside_them() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| -> PathBuf { dir.path().join(name) };
    let csv = "\u{feff}City Name;Population;Zip;Area;;Area\nOslo;709037;0150;454.0;x;1\n\
               Rome;2873000;00118;1285;;2\n\"Bergen; Old Town\";;5003;0.5;;3\n";
    std::fs::write(at("big cities.csv"), csv).unwrap();
    hqdl(dir.path(), &["init", "big cities.csv", "-s", "s/cities.toml"]).expect_exit_code(0);
    hqdl(dir.path(), &["check", "s/cities.toml"]).expect_exit_code(0);
    let db = Connection::open(at("big cities.sqlite")).unwrap();
    let found = query_rows(&db, "SELECT * FROM big_cities").unwrap();
    let first = r#"["Oslo",709037,"0150",454.0,"x",1]"#;
    assert_eq!(serde_json::to_string(&found[0]).unwrap(), first);
    let last = r#"["Bergen; Old Town",null,"5003",0.5,null,3]"#;
    assert_eq!(serde_json::to_string(&found[2]).unwrap(), last);
    let names: Vec<String> = db
        .prepare("SELECT name FROM pragma_table_info('big_cities')")
        .unwrap()
        .query_map([], |row| row.get(0))
        .unwrap()
        .collect::<rusqlite::Result<_>>()
        .unwrap();
    assert_eq!(names, ["City Name", "Population", "Zip", "Area", "column_5", "Area_2"]);
    // An existing file is never overwritten.
    let ended = hqdl(dir.path(), &["init", "big cities.csv"]).expect_exit_code(2);
    assert!(ended.stderr.contains("exists already"), "{}", ended.stderr);
    // A folder becomes a database with a table per file; if a file cannot be read, no database is
    // left.
    std::fs::create_dir(at("data")).unwrap();
    std::fs::write(at("data/a.csv"), "name\nx\n").unwrap();
    std::fs::write(at("data/b.csv"), "p,q\n1,2\n3\n").unwrap();
    let ended = hqdl(dir.path(), &["init", "data"]).expect_exit_code(2);
    assert!(ended.stderr.contains("b.csv"), "{}", ended.stderr);
    assert!(!at("data.sqlite").exists());
    std::fs::write(at("data/b.csv"), "p,q\n1,2\n3,\n").unwrap();
    hqdl(dir.path(), &["init", "data/"]).expect_exit_code(0);
    let db = Connection::open(at("data.sqlite")).unwrap();
    let sql = "SELECT group_concat(name) FROM (SELECT name FROM sqlite_schema ORDER BY 1)";
    assert_eq!(query_rows(&db, sql).unwrap()[0][0], "a,b");
}

#[test]
fn equal_column_names_of_a_csv_file_become_unique() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("wide.csv");
    // Comparing each candidate with all names would take hours for the largest table.
    let mut header = vec!["a"; 1997];
    header.splice(2..2, ["A", "a_3", ""]);
    std::fs::write(&file, header.join(",") + "\n").unwrap();
    let (database, notes) = create_database(&file, std::slice::from_ref(&file)).unwrap();
    let db = Connection::open(database).unwrap();
    let sql = "SELECT name FROM pragma_table_info('wide')";
    let names: Vec<String> =
        query_rows(&db, sql).unwrap().iter().map(|r| r[0].as_str().unwrap().to_owned()).collect();
    assert_eq!(names[..7], ["a", "a_2", "A_3", "a_3_2", "column_5", "a_4", "a_5"]);
    assert_eq!((names.len(), notes.len()), (2000, 1999));
}

#[test]
fn a_csv_file_in_utf_16_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("cities.csv");
    let little: fn(u16) -> [u8; 2] = u16::to_le_bytes;
    for (to_bytes, is_complete) in [(little, true), (u16::to_be_bytes, true), (little, false)] {
        let text = "\u{feff}name\nMünchen\n東京 🗼\n";
        let mut bytes: Vec<u8> = text.encode_utf16().flat_map(to_bytes).collect();
        if !is_complete {
            bytes.push(b'x');
        }
        std::fs::write(&file, &bytes).unwrap();
        let created = create_database(&file, std::slice::from_ref(&file));
        assert_eq!(created.is_ok(), is_complete, "{created:?}");
        let Ok((database, _)) = created else { continue };
        let db = Connection::open(&database).unwrap();
        let rows = query_rows(&db, "SELECT name FROM cities").unwrap();
        assert_eq!(rows, [["München"], ["東京 🗼"]]);
        drop(db);
        std::fs::remove_file(database).unwrap();
    }
}

#[test]
fn clean_removes_what_hqdl_created_and_nothing_else() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    let schema = "SELECT type, name, sql FROM sqlite_schema ORDER BY 1, 2";
    project.execute_sql(
        "CREATE VIEW mine AS SELECT 1 AS one; CREATE TABLE hero_note (name TEXT);
         INSERT INTO hero_note VALUES ('keep')",
    );
    let (before, data) = (project.query_rows(schema), project.query_rows("SELECT * FROM hero"));
    project.run_hqdl(&["clean", "specs/x.toml"]).expect_exit_code(0);
    project.run_materialize(&[]).expect_exit_code(0);
    assert_ne!(project.query_rows(schema), before);
    let ended = project.run_hqdl(&["clean", "specs/x.toml", "--json"]).expect_exit_code(0);
    assert_eq!(ended.lines[0]["file_removed"], false);
    assert_eq!(project.query_rows(schema), before);
    assert_eq!(project.query_rows("SELECT * FROM hero"), data);
    // No paid answer is lost.
    let requests =
        project.run_materialize(&[]).expect_exit_code(0).done_event()["requests"].clone();
    assert_eq!(requests, 0);
    check_complete(&project);
}

#[test]
fn clean_leaves_the_tables_of_another_spec() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    project.run_materialize(&[]).expect_exit_code(0);
    let other = project
        .spec_text()
        .replace("name = \"llm\"", "name = \"other\"")
        .replace("llm_power", "other_power");
    std::fs::write(project.path("specs/y.toml"), other).unwrap();
    project.run_hqdl(&["materialize", "specs/y.toml"]).expect_exit_code(0);
    project.run_hqdl(&["clean", "specs/y.toml"]).expect_exit_code(0);
    assert!(!project.has_table("other") && !project.has_table("other_power"));
    check_complete(&project);
    let kept = project.query_rows("SELECT count(*) FROM hqdl_cell WHERE expansion = 'other'");
    assert_eq!(kept[0][0], 0);
}

/// Asserts what `init` proposes for a database: each expansion with its key.
fn proposed(sql: &str, wanted: &[(&str, &str)]) {
    let dir = folder_with(sql);
    hqdl(dir.path(), &["init", "my.db", "-s", "my.toml"]).expect_exit_code(0);
    let toml = std::fs::read_to_string(dir.path().join("my.toml")).unwrap();
    let of = |field: &str| -> Vec<String> {
        let start = format!("{field} = ");
        let values = toml.lines().filter_map(|l| l.strip_prefix(&start));
        values.map(|value| value.replace(['"', '[', ']'], "")).collect()
    };
    let names = of("name").into_iter().filter_map(|n| Some(n.strip_prefix("llm_")?.to_owned()));
    let found: Vec<(String, String)> = names.zip(of("key")).collect();
    let found: Vec<(&str, &str)> = found.iter().map(|(n, k)| (&**n, &**k)).collect();
    assert_eq!(found, wanted, "{toml}");
}

/// Categories are not entities, however many of them a table combines.
#[test]
fn measurements_are_not_entities() {
    let rows = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 60)";
    let word =
        |n: usize| format!("CASE i % {n} WHEN 0 THEN 'Low' WHEN 1 THEN 'Mid' ELSE 'Top' END");
    let filled = |create: &str, table: &str, values: &str| {
        format!(
            "CREATE TABLE {table} ({create}); INSERT INTO {table} {rows} SELECT {values} FROM n;"
        )
    };
    let (two, three) = (word(2), word(3));
    for (create, table, values) in [
        ("cut, color, price REAL", "diamonds", format!("{two}, {three}, i")),
        ("weather, temp REAL", "days", format!("{three}, i")),
        (
            "tailnum, origin, dest, year INTEGER, dep_time INTEGER",
            "flights",
            format!("'N' || (i % 9), {two}, {three}, 2013, i"),
        ),
    ] {
        proposed(&filled(create, table, &values), &[]);
    }
    // Species and shares are entities, although many rows may refer to one.
    let iris = filled("species, width REAL", "iris", &format!("{three}, i"));
    proposed(&iris, &[("iris", "species")]);
}

/// The key consists of the rows' names, and of the year that distinguishes rows with the same name,
/// but not of the persons who run them.
#[test]
fn rows_are_identified_by_their_own_names() {
    proposed(
        "CREATE TABLE schools (id INTEGER PRIMARY KEY, Phone TEXT, School TEXT, City TEXT,
                               AdmFName1 TEXT, AdmLName1 TEXT);
         INSERT INTO schools VALUES (1, '1', 'Oak', 'Rome', 'Ann', 'Lee'), (2, '2', 'Oak', 'Oslo', 'Bob', 'Fox'),
                                    (3, '3', 'Elm', 'Oslo', 'Cy', 'Orr');",
        &[("schools", "School, City")],
    );
    proposed(
        "CREATE TABLE movies (title TEXT, year INTEGER, mpaa TEXT, votes INTEGER);
         INSERT INTO movies VALUES ('Alice', 1951, 'G', 1), ('Alice', 2010, 'PG', 2), ('Brazil', 1985, 'R', 3);",
        &[("movies", "title, year")],
    );
    // Owners come first, and a category is not an owner.
    proposed(
        "CREATE TABLE series (id INTEGER PRIMARY KEY, name TEXT);
         CREATE TABLE elements (id INTEGER PRIMARY KEY, name TEXT, series_id INTEGER REFERENCES series (id));
         CREATE TABLE isotopes (isotope_name TEXT, element_id INTEGER REFERENCES elements (id));
         INSERT INTO series VALUES (1, 'Noble gases'), (2, 'Alkali metals');
         INSERT INTO elements VALUES (1, 'Helium', 1), (2, 'Neon', 1), (3, 'Argon', 1), (4, 'Lithium', 2),
                                     (5, 'Sodium', 2), (6, 'Potassium', 2), (7, 'Krypton', 1);
         INSERT INTO isotopes SELECT name || '-' || n, id FROM elements, (SELECT 1 AS n UNION SELECT 2);",
        &[
            ("elements", "name"),
            ("isotopes", "isotope_name, element"),
        ],
    );
    // Browsing history is private.
    proposed(
        "CREATE TABLE urls (id INTEGER PRIMARY KEY, url TEXT, title TEXT, visit_count INTEGER);
         INSERT INTO urls VALUES (1, 'https://a.example', 'A page', 1), (2, 'https://b.example', 'B page', 2);",
        &[],
    );
}

/// `--ask` prints the price, asks about each table, and applies answers that fit the table.
#[test]
fn a_model_is_asked_for_key_description_and_columns() {
    let endpoint = Endpoint::start_with(|column, _| match column {
        c if c == "answer" || c.contains("name the thing") => serde_json::json!(["Title"]),
        c if c == "answer_2" || c.contains("one row") => "Each row is a music album.".into(),
        _ => serde_json::json!(["release year: year of the first release", "no description"]),
    });
    let dir = folder_with(SHOP);
    let url = endpoint.base_url();
    let flags = ["--base-url", &url, "--model", "m", "--price", "1,2", "--budget", "0.5"];
    let args = [&["init", "my.db", "-s", "specs/my.toml", "--ask"], &flags[..]].concat();
    let ended = hqdl(dir.path(), &args).expect_exit_code(0);
    assert!(ended.stderr.contains("asking m about 2 tables in"), "{}", ended.stderr);
    assert!(ended.stderr.contains("at most $0.0"), "{}", ended.stderr);
    let toml = std::fs::read_to_string(dir.path().join("specs/my.toml")).unwrap();
    assert!(toml.contains("about = \"Each row is a music album.\""), "{toml}");
    assert!(toml.contains("name = \"release_year\""), "{toml}");
    assert!(toml.contains("about = \"year of the first release\""), "{toml}");
    let model = format!("name = \"m\"\nbase_url = \"{url}\"\nprice = {{ input = 1, output = 2 }}");
    assert!(toml.contains(&model), "{toml}");
    let help = hqdl(dir.path(), &["init", "--help"]).expect_exit_code(0).stdout;
    assert!(help.contains("--base-url") && !help.contains("--output"), "{help}");
    hqdl(dir.path(), &["check", "specs/my.toml"]).expect_exit_code(0);
}

/// The next step is a command that can succeed.
#[test]
fn init_names_the_edit_that_comes_before_the_check() {
    for (sql, edit) in [
        ("CREATE TABLE t (a INTEGER); INSERT INTO t VALUES (1);", true),
        (
            "CREATE TABLE city (name TEXT, size INTEGER); INSERT INTO city VALUES ('Oslo', 1);",
            false,
        ),
    ] {
        let dir = folder_with(sql);
        let ended = hqdl(dir.path(), &["init", "my.db", "-s", "my.toml"]).expect_exit_code(0);
        let says = ended.stderr.contains("next: edit the example at its end, then run hqdl check");
        assert_eq!(says, edit, "{}", ended.stderr);
        let code = if edit { 2 } else { 0 };
        hqdl(dir.path(), &["check", "my.toml"]).expect_exit_code(code);
    }
}
