//! Measures how many of the query forms that users of each dialect write can be run: those of
//! `tests/corpus/forms`. `--nocapture` prints those that cannot.

use std::path::Path;

use serde_json::{Value as Json, json};

use hqdl_testkit::endpoint::Endpoint;
use hqdl_testkit::project::Project;

const SPEC: &str = r#"
[database]
path = "../data.sqlite"

[model]
provider = "openai"
name = "gpt-4o-mini"
base_url = "{base_url}"
api_key_env = "HQDL_TEST_KEY"

[[expansion]]
name = "llm"
source = "people"
key = ["name"]
[[expansion.column]]
name = "fame"
"#;

const TABLES: &str = "
CREATE TABLE people (name TEXT, born INTEGER, country TEXT, bio TEXT);
INSERT INTO people VALUES ('Agnes', 1928, 'France', 'A director.'), ('Akira', 1910, 'Japan', 'Another.');
CREATE TABLE movies (title TEXT, year INTEGER, director TEXT, plot TEXT, premiere TEXT);
INSERT INTO movies VALUES ('Cleo', 1962, 'Agnes', 'Two hours.', '1962-04-11'),
  ('Ran', 1985, 'Akira', 'A king.', '1985-05-31'), ('Ikiru', 1952, 'Akira', 'A clerk.', '1952-10-09');
CREATE TABLE docs (title TEXT, content TEXT);
INSERT INTO docs VALUES ('Cleo', 'It won.'), ('Ran', 'It lost.');
CREATE TABLE restaurants (_id INTEGER PRIMARY KEY, name TEXT, cuisines TEXT, price TEXT, rating REAL,
  num_reviews INTEGER, location TEXT, opening_hours TEXT, reviews TEXT, popular_dishes TEXT, opened TEXT);
INSERT INTO restaurants VALUES
  (1, 'Luigi''s', '[\"italian\", \"pizza\"]', 'cheap', 4.5, 12, 'Bay', '24 h', '[\"Loud.\", \"Kind.\"]', '[\"pizza\"]', '2001-02-03'),
  (2, 'Thai Two', '[\"thai\"]', 'moderate', 3.5, 40, 'City', '9 to 5', '[\"Calm.\"]', '[]', '2010-11-12'),
  (3, 'Greek', '[\"greek\"]', 'cheap', 4.9, 3, NULL, NULL, '[]', '[]', '2020-01-01');
";

/// Returns the queries of a file, with the expected words of an error.
fn forms(name: &str) -> Vec<(String, Option<String>)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/forms").join(name);
    let (mut all, mut query, mut refused) = (Vec::new(), String::new(), None);
    for line in std::fs::read_to_string(path).unwrap().lines() {
        if let Some(words) = line.strip_prefix("-- refused: ") {
            refused = Some(words.to_owned());
        } else if !line.starts_with("--") {
            query.push_str(line);
            query.push('\n');
            if line.ends_with(';') {
                let text = std::mem::take(&mut query);
                all.push((text.trim().trim_end_matches(';').to_owned(), refused.take()));
            }
        }
    }
    all
}

/// Tables like those that the published queries read.
const PUBLISHED: &str = include_str!("../corpus/forms/published.tables");

/// Runs all forms of a file; prints how many run, and fails if any differs from what the file
/// states.
fn run(name: &str, flags: &[&str]) {
    let endpoint = Endpoint::start_answering(|column, _| {
        let one = match (column.data_type.as_str(), &column.values) {
            ("boolean", _) => json!(true),
            ("integer" | "real", _) => json!(7),
            ("date", _) => json!("2001-02-03"),
            (_, Some(list)) => list.first().cloned().into(),
            _ => json!("ABC"),
        };
        if column.many { json!([one, one]) } else { one }
    });
    let project = Project::new(&endpoint, &[TABLES, PUBLISHED].concat(), SPEC);
    let (mut ran, mut refused, mut wrong) = (0, 0, Vec::new());
    let all = forms(name);
    for (sql, expected) in &all {
        let args = ["query", "--spec", "specs/x.toml", "--json", sql];
        let ended = project.run_hqdl(&[&args, flags].concat());
        let rows = ended.lines.first().is_some_and(|l| l["rows"] != Json::Null);
        match expected {
            None if rows => ran += 1,
            Some(words) if !rows && ended.stderr.contains(words.as_str()) => refused += 1,
            _ => wrong.push(format!("{sql}\n{}{}", ended.stderr, ended.stdout)),
        }
    }
    println!(
        "{name}: {} forms, {ran} run, {refused} are refused with the words that they are to be",
        all.len()
    );
    assert!(wrong.is_empty(), "{} of {name}:\n{}", wrong.len(), wrong.join("\n\n"));
}

#[test]
fn forms_of_blendsql_run() {
    run("blendsql.sql", &[]);
}

#[test]
fn published_forms_of_blendsql_run() {
    run("blendsql-published.sql", &[]);
}

#[test]
fn published_forms_of_suql_run() {
    run("suql-published.sql", &["--dialect", "suql"]);
}

/// `PostgreSQL`'s functions return what `PostgreSQL` returns, including NULLs and boundary cases.
#[test]
fn functions_of_postgresql_return_the_same() {
    let endpoint = Endpoint::start_with(|_, _| Json::Null);
    let project = Project::new(&endpoint, TABLES, SPEC);
    for (expression, value) in [
        ("greatest(1, 3.5, NULL)", json!(3.5)),
        ("least(2, NULL, 1)", json!(1)),
        ("greatest(NULL, NULL)", Json::Null),
        ("least('b', 'a')", json!("a")),
        ("split_part('a-b-c', '-', 2)", json!("b")),
        ("split_part('a-b-c', '-', -1)", json!("c")),
        ("split_part('a-b-c', '-', 4)", json!("")),
        ("split_part(NULL, '-', 1)", Json::Null),
        ("initcap('hello wORLD o''neil x1y')", json!("Hello World O'Neil X1y")),
        ("regexp_match('ab12', '([a-z]+)([0-9]+)')", json!(r#"["ab","12"]"#)),
        ("(regexp_match('ab12', '[0-9]+'))[1]", json!("12")),
        ("regexp_match('ab', '[0-9]')", Json::Null),
        ("'x' IN cuisines", json!(0)),
        ("'thai' IN cuisines", json!(1)),
        ("'thai' NOT IN cuisines", json!(0)),
        ("EXISTS (SELECT FROM restaurants WHERE _id = 9)", json!(0)),
        ("EXISTS (SELECT FROM restaurants)", json!(1)),
        ("(SELECT count(*) FROM \"public\".restaurants)", json!(3)),
    ] {
        let sql = format!("SELECT {expression} FROM restaurants WHERE _id = 2");
        let args = ["query", "--spec", "specs/x.toml", "--dialect", "suql", "--json", &sql];
        let ended = project.run_hqdl(&args);
        assert_eq!(ended.lines[0]["rows"], json!([[value]]), "{sql}: {}", ended.stderr);
    }
}

#[test]
fn forms_of_suql_run() {
    run("suql.sql", &["--dialect", "suql"]);
}

/// `DISTINCT ON` keeps the first row of each group, in the query's order.
#[test]
fn distinct_on_keeps_the_first_row_of_each_group() {
    let endpoint = Endpoint::start_with(|_, key| {
        Json::from(key[0].as_str().unwrap_or_default().contains("Loud"))
    });
    let project = Project::new(&endpoint, TABLES, SPEC);
    project.execute_sql(
        "CREATE TABLE tiny (name, price, twice GENERATED ALWAYS AS (price || price));
         INSERT INTO tiny VALUES ('a', 'cheap'), ('b', 'cheap'), ('c', 'dear'), ('d', 'dear');
         CREATE TABLE pair (x); INSERT INTO pair VALUES ('cheap'), ('dear');",
    );
    for (sql, columns, rows) in [
        (
            "SELECT DISTINCT ON (price) price, name FROM restaurants ORDER BY price, rating DESC",
            json!(["price", "name"]),
            json!([["cheap", "Greek"], ["moderate", "Thai Two"]]),
        ),
        (
            "SELECT DISTINCT ON (price) name AS n, upper(name) FROM restaurants ORDER BY price DESC, rating",
            json!(["n", "upper(name)"]),
            json!([["Thai Two", "THAI TWO"], ["Luigi's", "LUIGI'S"]]),
        ),
        (
            "SELECT count(*) FROM (SELECT DISTINCT ON (p) price p, name FROM restaurants r ORDER BY 1, 2 LIMIT 1) x",
            json!(["count(*)"]),
            json!([[1]]),
        ),
        (
            "SELECT DISTINCT ON (location IS NULL) name FROM restaurants WHERE rating > 4
             ORDER BY location IS NULL, rating OFFSET 1",
            json!(["name"]),
            json!([["Greek"]]),
        ),
        (
            "SELECT DISTINCT ON (price) price, name FROM restaurants WHERE name LIKE 'G%'
             UNION ALL SELECT 'x', DISTINCT_NAME FROM (SELECT DISTINCT ON (price) name AS DISTINCT_NAME
             FROM restaurants WHERE price = 'cheap' ORDER BY price, name DESC) d",
            json!(["price", "name"]),
            json!([["cheap", "Greek"], ["x", "Luigi's"]]),
        ),
        // A word that ends an operator is not followed by an alias.
        (
            "SELECT DISTINCT ON (price) name LIKE price, name ILIKE price, rating ISNULL, rating NOTNULL,
             location IS DISTINCT FROM name, NOT rating FROM restaurants ORDER BY price DESC, name",
            json!([
                "name LIKE price",
                "name ILIKE price",
                "rating ISNULL",
                "rating NOTNULL",
                "location IS DISTINCT FROM name",
                "NOT rating"
            ]),
            json!([[0, 0, 0, 1, 1, 0], [0, 0, 0, 1, 1, 0]]),
        ),
        (
            "SELECT DISTINCT ON (price) name k, location IS DISTINCT FROM name d, rating ISNULL i, 2 two, match l
             FROM (SELECT *, 5 AS match FROM restaurants) r ORDER BY price DESC, name",
            json!(["k", "d", "i", "two", "l"]),
            json!([["Thai Two", 1, 0, 2, 5], ["Greek", 1, 0, 2, 5]]),
        ),
        // A quoted name is matched exactly.
        (
            "SELECT DISTINCT ON (\"k\") price AS k, upper(name) AS \"N\" FROM restaurants ORDER BY \"k\" DESC, n",
            json!(["k", "N"]),
            json!([["moderate", "THAI TWO"], ["cheap", "GREEK"]]),
        ),
        // The ORDER BY of a compound applies to all its rows.
        (
            "SELECT 'x' AS p, 'Zoe' AS name UNION ALL
             SELECT DISTINCT ON (price) price, 'one' FROM restaurants ORDER BY name DESC, p LIMIT 2",
            json!(["p", "name"]),
            json!([["cheap", "one"], ["moderate", "one"]]),
        ),
    ] {
        let ended = project
            .run_hqdl(&["query", "--spec", "specs/x.toml", "--dialect", "suql", "--json", sql]);
        assert_eq!(ended.lines[0]["rows"], rows, "{sql}: {}", ended.stderr);
        assert_eq!(ended.lines[0]["columns"], columns, "{sql}");
    }
    // A star expands to the columns of the tables, in order.
    for (sql, columns, rows) in [
        (
            "SELECT DISTINCT ON (price) r.*, 1 one FROM (SELECT 1) x, restaurants r ORDER BY price",
            json!(null),
            json!(null),
        ),
        (
            "SELECT DISTINCT ON (t.price) p.x, t.* FROM tiny AS t JOIN pair p ON (p.x = t.price) ORDER BY t.price, 2 DESC",
            json!(["x", "name", "price", "twice"]),
            json!([["cheap", "b", "cheap", "cheapcheap"], ["dear", "d", "dear", "deardear"]]),
        ),
        (
            "SELECT DISTINCT ON (price) * FROM tiny ORDER BY price DESC, name LIMIT 1",
            json!(["name", "price", "twice"]),
            json!([["c", "dear", "deardear"]]),
        ),
        (
            "SELECT * FROM (SELECT DISTINCT ON (price) * FROM public.tiny t, pair WHERE x = price ORDER BY 2, name) z",
            json!(["name", "price", "twice", "x"]),
            json!([["a", "cheap", "cheapcheap", "cheap"], ["c", "dear", "deardear", "dear"]]),
        ),
    ] {
        let ended = project.run_hqdl(&[
            "query",
            "--spec",
            "specs/x.toml",
            "--dialect",
            "suql",
            "--json",
            sql,
        ]);
        if columns.is_null() {
            assert!(ended.expect_exit_code(2).stderr.contains("list its columns"), "{sql}");
            continue;
        }
        assert_eq!(ended.lines[0]["rows"], rows, "{sql}: {}", ended.stderr);
        assert_eq!(ended.lines[0]["columns"], columns, "{sql}");
    }
    let shadowed = "WITH tiny AS (SELECT 1 AS a) SELECT DISTINCT ON (a) * FROM tiny";
    let natural = "SELECT DISTINCT ON (price) * FROM tiny NATURAL JOIN pair";
    for sql in [shadowed, natural] {
        let ended =
            project.run_hqdl(&["query", "--spec", "specs/x.toml", "--dialect", "suql", sql]);
        assert!(ended.expect_exit_code(2).stderr.contains("list its columns"), "{sql}");
    }
    // Its errors point to the original text.
    let sql = "SELECT DISTINCT ON (price) price, nmae FROM restaurants ORDER BY price";
    let ended = project
        .run_hqdl(&["query", "--spec", "specs/x.toml", "--dialect", "suql", sql])
        .expect_exit_code(2);
    assert!(ended.stderr.contains("no such column: nmae"), "{}", ended.stderr);
}
