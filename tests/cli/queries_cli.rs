//! Tests of `hqdl query` and `hqdl explain` apart from the engine: input, output formats, safety,
//! exit codes. Queries here have no calls.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::Stdio;
use std::time::{Duration, Instant};

use hqdl::query::connection::guard::GuardedConnection;
use hqdl::query::{Meta, Pass, PlainQuery, QueryError, QueryResult, Route, RouteKind, RowSink};
use rusqlite::types::Value;
use serde_json::{Value as Json, json};
use tokio::sync::watch;

use hqdl_testkit::project::{CommandResult, Project, heroes_project, truthful_endpoint};

/// An endless number of rows.
const ENDLESS: &str = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) ";

/// Creates a project with a database and an empty spec.
fn database(sql: &str) -> Project {
    Project::new(&truthful_endpoint(), sql, "")
}

/// Creates a project with five rows of every type of value.
fn values() -> Project {
    database(
        "CREATE TABLE v (id INTEGER, t TEXT, r REAL, b BLOB);
         INSERT INTO v VALUES
           (1, 'plain', 1.0, x''),
           (2, 'Zoé \"Z\" Müller, 東京', -0.1, x'00ff10'),
           (3, 'two' || char(10) || 'lines | and' || char(9) || 'a tab', 1e300, NULL),
           (NULL, '', 9e999, NULL),
           (9223372036854775807, NULL, NULL, 'text');",
    )
}

fn query(project: &Project, args: &[&str]) -> CommandResult {
    project.run_hqdl(&[&["query", "--db", "data.sqlite"], args].concat())
}

/// Returns the rows of a query as JSON.
fn rows(project: &Project, sql: &str) -> Vec<Json> {
    let ended = query(project, &["--json", sql]).expect_exit_code(0);
    ended.lines[0]["rows"].as_array().unwrap().clone()
}

/// Returns the only value of a query.
fn value(project: &Project, sql: &str) -> Json {
    rows(project, &format!("SELECT {sql}"))[0][0].clone()
}

/// Asserts a failure with this exit code and these words, and without rows.
fn fails(ended: CommandResult, code: i32, says: &[&str]) {
    let ended = ended.expect_exit_code(code);
    for said in says {
        assert!(ended.stderr.contains(said), "{said:?} is not in:\n{}", ended.stderr);
    }
    assert_eq!(ended.stdout, "");
}

#[test]
fn csv_distinguishes_every_value() {
    let ended = query(&values(), &["--format", "csv", "SELECT * FROM v"]).expect_exit_code(0);
    let expected = "id,t,r,b\n\
        1,plain,1.0,X''\n\
        2,\"Zoé \"\"Z\"\" Müller, 東京\",-0.1,X'00FF10'\n\
        3,\"two\nlines | and\ta tab\",1.0e+300,\n\
        ,,Inf,\n\
        9223372036854775807,,,text\n";
    assert_eq!(ended.stdout, expected);
    assert_eq!(ended.stderr, "");
    let single = query(&values(), &["--format", "csv", "SELECT NULL AS x"]).expect_exit_code(0);
    assert_eq!(single.stdout, "x\n\"\"\n");
}

#[test]
fn csv_keeps_bytes_that_are_not_text() {
    let project = values();
    let mut command = project.hqdl_command(&["query", "--db", "data.sqlite", "--format", "csv"]);
    let output = command.arg("SELECT CAST(x'41ff42' AS TEXT) AS x").output().unwrap();
    assert_eq!(output.stdout, b"x\nA\xffB\n");
}

#[test]
fn json_is_one_object_with_rows_and_meta() {
    let ended = query(&values(), &["--json", "SELECT *, id AS t FROM v"]).expect_exit_code(0);
    let object = &ended.lines[0];
    assert_eq!(ended.stdout.lines().count(), 1);
    assert_eq!(object["columns"], json!(["id", "t", "r", "b", "t"]));
    let expected = json!([
        [1, "plain", 1.0, { "blob": "" }, 1],
        [2, "Zoé \"Z\" Müller, 東京", -0.1, { "blob": "00ff10" }, 2],
        [3, "two\nlines | and\ta tab", 1e300, null, 3],
        [null, "", "Inf", null, null],
        [9_223_372_036_854_775_807_i64, null, null, "text", 9_223_372_036_854_775_807_i64],
    ]);
    assert_eq!(object["rows"], expected);
    assert!(ended.stdout.contains("1.0,"), "a real stays one: {}", ended.stdout);
    let keys: Vec<&String> = object["meta"].as_object().unwrap().keys().collect();
    let expected = [
        "requests",
        "values_asked",
        "values_reused",
        "values_missing",
        "values_unknown",
        "passes",
        "demand",
        "input_tokens",
        "output_tokens",
        "cost_usd",
        "price_notes",
        "seconds",
        "routes",
        "sql",
    ];
    assert_eq!(keys, expected);
    assert_eq!(object["meta"]["passes"], 1);
    assert_eq!(object["meta"]["sql"], "SELECT *, id AS t FROM v");
    // `--format json` means the same.
    let same = query(&values(), &["--format", "json", "SELECT 1 AS x"]).expect_exit_code(0);
    assert_eq!(same.lines[0]["rows"], json!([[1]]));
    let none = query(&values(), &["--json", "SELECT 1 AS x WHERE 0"]).expect_exit_code(0);
    assert_eq!((&none.lines[0]["columns"], &none.lines[0]["rows"]), (&json!(["x"]), &json!([])));
}

#[test]
fn jsonl_gives_repeated_names_a_number() {
    let sql = "SELECT 1 AS a, 2 AS a, 3 AS a_2, 4 AS a, x'0a' AS \"q\"\"q\" UNION ALL SELECT 5, NULL, 6.0, '', 'é'";
    let ended = query(&values(), &["--format", "jsonl", sql]).expect_exit_code(0);
    let expected = "{\"a\":1,\"a_3\":2,\"a_2\":3,\"a_4\":4,\"q\\\"q\":{\"blob\":\"0a\"}}\n\
        {\"a\":5,\"a_3\":null,\"a_2\":6.0,\"a_4\":\"\",\"q\\\"q\":\"é\"}\n";
    assert_eq!(ended.stdout, expected);
    let two = query(&values(), &["--format", "jsonl", "SELECT 1 AS a, 2 AS a"]).expect_exit_code(0);
    assert_eq!(two.stdout, "{\"a\":1,\"a_2\":2}\n");
}

#[test]
fn markdown_is_a_table_whatever_it_contains() {
    let ended =
        query(&values(), &["--format", "markdown", "SELECT id, t, b FROM v"]).expect_exit_code(0);
    let expected = "| id | t | b |\n| --- | --- | --- |\n\
        | 1 | plain | X'' |\n\
        | 2 | Zoé \"Z\" Müller, 東京 | X'00FF10' |\n\
        | 3 | two<br>lines \\| and\ta tab | NULL |\n\
        | NULL |  | NULL |\n\
        | 9223372036854775807 | NULL | text |\n";
    assert_eq!(ended.stdout, expected);
    let sql = "SELECT '<b>\\|`*' || char(13) || char(10) || 'x' AS \"a|b\"";
    let ended = query(&values(), &["--format", "md", sql]).expect_exit_code(0);
    assert_eq!(ended.stdout, "| a\\|b |\n| --- |\n| \\<b>\\\\\\|\\`\\*<br>x |\n");
}

#[test]
fn a_table_is_aligned_and_cannot_control_the_terminal() {
    let ended = query(&values(), &["SELECT * FROM v"]).expect_exit_code(0);
    let expected = "                 id  t                               r  b\n\
        -------------------  -----------------------  --------  ---------\n\
        \u{20}                 1  plain                         1.0  X''\n\
        \u{20}                 2  Zoé \"Z\" Müller, 東京         -0.1  X'00FF10'\n\
        \u{20}                 3  two\\nlines | and\\ta tab  1.0e+300  NULL\n\
        \u{20}              NULL                                Inf  NULL\n\
        9223372036854775807  NULL                         NULL  text\n";
    assert_eq!(ended.stdout, expected);
    let sql = "SELECT char(27) || '[31m' || char(7, 8238) || 'x' AS t";
    let ended = query(&values(), &[sql]).expect_exit_code(0);
    assert_eq!(ended.stdout, "t\n------------------------\n\\u{1b}[31m\\u{7}\\u{202e}x\n");
    let none = query(&values(), &["SELECT id, t FROM v WHERE 0"]).expect_exit_code(0);
    assert_eq!(none.stdout, "id  t\n--  -\n");
}

/// The first rows determine the widths; later wider values are not truncated.
#[test]
fn a_table_does_not_truncate_late_values() {
    let sql = format!(
        "{ENDLESS} SELECT x, CASE WHEN x = 2000 THEN printf('%.*c', 5000, 'w') ELSE 'y' END AS t, x FROM c LIMIT 2500"
    );
    let ended = query(&values(), &[&sql]).expect_exit_code(0);
    assert_eq!(ended.stdout.lines().count(), 2502);
    assert!(ended.stdout.contains(&"w".repeat(5000)));
    assert!(ended.stdout.lines().all(|l| l.len() < 100 || l.contains("www")));
    // Many empty columns cause no problem, either.
    let wide = vec!["''"; 1900].join(",");
    let long = vec![format!("'{}'", "z".repeat(90)); 1900].join(",");
    let project = values();
    let sql = format!("SELECT {long} UNION ALL SELECT {wide}");
    std::fs::write(project.path("wide.sql"), sql).unwrap();
    query(&project, &["--file", "wide.sql"]).expect_exit_code(0);
}

#[test]
fn parameters_are_values_and_never_sql() {
    let project = values();
    let one = |flags: &[&str], sql: &str| {
        let ended = query(&project, &[flags, &["--json", sql]].concat()).expect_exit_code(0);
        ended.lines[0]["rows"][0].clone()
    };
    let all = "SELECT :i, @r, $n, :t, :q";
    let flags = [
        "--param",
        "i=5",
        "--param",
        "@r=-1.5e3",
        "--param",
        "n=NULL",
        "--param",
        "t=a 'b",
        "--param",
        "q='7'",
    ];
    assert_eq!(one(&flags, all), json!([5, -1500.0, null, "a 'b", "7"]));
    assert_eq!(one(&["--param", "2=b", "--param", "1=x=y"], "SELECT ?, ?"), json!(["x=y", "b"]));
    assert_eq!(one(&["--param", "?3=z"], "SELECT ?3"), json!(["z"]));
    assert_eq!(one(&["--param", "x=1"], "SELECT :x + :x"), json!([2]));
    let kinds = [
        ("007", "integer"),
        ("inf", "text"),
        ("", "text"),
        ("1e5", "real"),
        ("99999999999999999999", "real"),
        ("-", "text"),
        ("1-2", "text"),
    ];
    for (text, kind) in kinds {
        assert_eq!(one(&["--param", &format!("x={text}")], "SELECT typeof(:x)"), json!([kind]));
    }
    let drop = "x'; DROP TABLE v; --";
    assert_eq!(one(&["--param", &format!("x={drop}")], "SELECT :x"), json!([drop]));
    fails(
        query(&project, &["SELECT :id", "--param", "idd=1"]),
        2,
        &["the parameter `:id` has no value", "--param id="],
    );
    fails(
        query(&project, &["SELECT :name", "--param", "name=1", "--param", "nme=1"]),
        2,
        &["the query has no parameter `nme`", "did you mean `name`?"],
    );
    fails(query(&project, &["SELECT ?", "--param", "2=1"]), 2, &["`?1` has no value"]);
    fails(query(&project, &["SELECT 1", "--param", "x"]), 2, &["--param x has no value"]);
    let twice = ["SELECT :x", "--param", "x=1", "--param", "x=2"];
    fails(query(&project, &twice), 2, &["sets `x` twice"]);
}

#[test]
fn a_query_comes_from_an_argument_a_file_or_stdin() {
    let project = values();
    std::fs::write(project.path("q.sql"), "\u{feff}-- a comment; with\nSELECT 'é;' AS x;\n")
        .unwrap();
    let file = query(&project, &["--file", "q.sql", "--format", "csv"]).expect_exit_code(0);
    assert_eq!(file.stdout, "x\né;\n");
    let mut child = project
        .hqdl_command(&["query", "--db", "data.sqlite", "--format", "csv", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"SELECT 'in' AS x").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(0), &b"x\nin\n"[..]));
    fails(query(&project, &["SELECT 1", "--file", "q.sql"]), 2, &["cannot be used with"]);
    fails(query(&project, &[]), 2, &["no query", "--file"]);
    fails(query(&project, &["--file", "none.sql"]), 2, &["cannot read none.sql"]);
    fails(project.run_hqdl(&["query", "SELECT 1"]), 2, &["no database to query", "--spec"]);
    fails(
        project.run_hqdl(&["query", "--db", "no.sqlite", "SELECT 1"]),
        2,
        &["no database at no.sqlite"],
    );
    fails(
        project.run_hqdl(&["query", "--db", "q.sql", "SELECT 1"]),
        2,
        &["q.sql is not a SQLite database"],
    );
    std::fs::write(project.path("bad.sql"), b"SELECT '\xff'").unwrap();
    fails(query(&project, &["--file", "bad.sql"]), 2, &["cannot read bad.sql"]);
}

#[test]
fn errors_point_at_their_location() {
    let project = values();
    let cases = [
        ("SELECT * FORM v", ":1:10", "near \"FORM\": syntax error", ""),
        ("SELECT 1,\n  idd FROM v", ":2:3", "no such column: idd", "did you mean `id`?"),
        ("SELECT * FROM vv", ":1:15", "no such table: vv", "did you mean `v`?"),
        ("SELECT 1; SELECT 2", ":1:11", "more than one statement", "one query at a time"),
        ("SELECT 'a;b' -- ;\n; ; VALUES (1)", ":2:5", "more than one statement", ""),
        ("SELECT nofun(1)", "", "no such function: nofun", ""),
        ("", "", "the query is empty", "write a SELECT"),
        (" -- nothing\n;", "", "", ""),
        ("SELECT sum(", "", "the query ends too early", ""),
        ("SELECT abs(-9223372036854775807 - 1)", "", "integer overflow", ""),
    ];
    for (sql, place, message, help) in cases {
        let place = format!("<query>{place}");
        fails(query(&project, &[sql]), 2, &["error: ", &place, message, help]);
    }
    std::fs::write(project.path("q.sql"), "SELECT\n  oops").unwrap();
    fails(query(&project, &["--file", "q.sql"]), 2, &["q.sql:2:3", "  ^^^^"]);
    let ended = query(&project, &["--json", "SELECT oops"]).expect_exit_code(2);
    let problem = &ended.lines[0]["problems"][0];
    assert_eq!((&problem["line"], &problem["column"]), (&json!(1), &json!(8)));
    assert_eq!(ended.lines[0]["exit"], 2);
    let mixed = query(&project, &["--json", "--format", "csv", "SELECT 1"]).expect_exit_code(2);
    assert!(mixed.stderr.contains("--json cannot be combined with another --format"), "{mixed:?}");
}

/// Output that began as JSON ends as valid JSON.
#[test]
fn an_error_after_some_rows_leaves_valid_json() {
    let sql = "SELECT abs(column1) AS x FROM (VALUES (1), (-9223372036854775807 - 1))";
    let ended = query(&values(), &["--json", sql]).expect_exit_code(2);
    assert_eq!(ended.stdout.lines().count(), 1, "{}", ended.stdout);
    assert_eq!(ended.lines[0]["rows"], json!([[1]]));
    assert_eq!(ended.lines[0]["error"]["problems"][0]["message"], "integer overflow");
    assert!(ended.stderr.contains("integer overflow"));
}

#[test]
fn nothing_but_reading_is_allowed() {
    let project = values();
    project.execute_sql(
        "CREATE VIEW w AS SELECT id FROM v;
         CREATE TRIGGER tr INSTEAD OF DELETE ON w BEGIN DELETE FROM v; END;
         CREATE VIRTUAL TABLE f USING fts5(x); INSERT INTO f VALUES ('hello');",
    );
    let before = std::fs::read(project.path("data.sqlite")).unwrap();
    let files = || {
        let mut names: Vec<_> =
            std::fs::read_dir(project.path("")).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let listed = files();
    let refused = [
        "DELETE FROM v",
        " /* c */ delete from v",
        "DELETE FROM w",
        "DELETE FROM v RETURNING id",
        "UPDATE v SET id = 1",
        "INSERT INTO v (id) VALUES (1)",
        "INSERT INTO f (f) VALUES ('optimize')",
        "REPLACE INTO v (id) VALUES (1)",
        "WITH x AS (SELECT 1) DELETE FROM v",
        "WITH x AS (SELECT 1) INSERT INTO v (id) SELECT * FROM x",
        "WITH x AS (SELECT 1) UPDATE v SET id = 2",
        "DROP TABLE v",
        "DROP VIEW w",
        "CREATE TABLE n (x)",
        "CREATE TEMP TABLE n (x)",
        "CREATE TEMP VIEW n AS SELECT 1",
        "CREATE INDEX n ON v (id)",
        "ALTER TABLE v RENAME TO z",
        "ATTACH 'other.sqlite' AS o",
        "DETACH main",
        "PRAGMA journal_mode = WAL",
        "PRAGMA user_version = 7",
        "PRAGMA query_only = 0",
        "PRAGMA writable_schema = 1",
        "PRAGMA table_info(v)",
        "VACUUM",
        "VACUUM INTO 'other.sqlite'",
        "REINDEX",
        "ANALYZE",
        "BEGIN",
        "BEGIN IMMEDIATE",
        "COMMIT",
        "SAVEPOINT s",
        "EXPLAIN DELETE FROM v",
        "EXPLAIN QUERY PLAN DROP TABLE v",
        "SELECT load_extension('./x.so')",
        "SELECT LOAD_EXTENSION('./x.so', 'y')",
        "SELECT id FROM v WHERE fts3_tokenizer('simple') IS NULL",
    ];
    for sql in refused {
        fails(query(&project, &[sql]), 2, &["a query is read-only", "<query>:1:"]);
    }
    // Functions that do not exist, or are not table functions.
    for sql in [
        "SELECT writefile('other.sqlite', 'x')",
        "SELECT readfile('/etc/passwd')",
        "SELECT edit('x')",
        "SELECT * FROM pragma_wal_checkpoint",
        "SELECT * FROM pragma_user_version(7)",
    ] {
        let ended = query(&project, &[sql]).expect_exit_code(2);
        assert!(!ended.stdout.contains("root:"), "{sql}: {}", ended.stdout);
    }
    assert_eq!(std::fs::read(project.path("data.sqlite")).unwrap(), before);
    assert_eq!(files(), listed);
    // These statements only read.
    for (sql, expected) in [
        ("SELECT name FROM pragma_table_info('v') WHERE cid = 1", json!([["t"]])),
        ("SELECT user_version FROM pragma_user_version", json!([[0]])),
        ("SELECT count(*) FROM f WHERE f MATCH 'hello'", json!([[1]])),
        ("VALUES (1), (2)", json!([[1], [2]])),
        ("WITH a AS (SELECT 1 AS x) SELECT x FROM a;", json!([[1]])),
        ("SELECT count(*) FROM w", json!([[5]])),
    ] {
        assert_eq!(Json::from(rows(&project, sql)), expected, "{sql}");
    }
    query(&project, &["EXPLAIN QUERY PLAN SELECT * FROM v"]).expect_exit_code(0);
    assert_eq!(std::fs::read(project.path("data.sqlite")).unwrap(), before);
}

/// A write-ahead log from a crash is read and kept.
#[test]
fn a_database_with_a_log_is_read_and_left_unchanged() {
    let project = values();
    let writer = project.connect();
    writer
        .execute_batch(
            "PRAGMA journal_mode = WAL; PRAGMA wal_autocheckpoint = 0; DELETE FROM v WHERE id = 1;",
        )
        .unwrap();
    std::fs::create_dir(project.path("copy")).unwrap();
    for name in ["data.sqlite", "data.sqlite-wal"] {
        std::fs::copy(project.path(name), project.path("copy").join(name)).unwrap();
    }
    drop(writer);
    let bytes = |name: &str| std::fs::read(project.path("copy").join(name)).unwrap();
    let before = (bytes("data.sqlite"), bytes("data.sqlite-wal"));
    let sql = "SELECT count(*) AS n FROM v";
    let ended = project
        .run_hqdl(&["query", "--db", "copy/data.sqlite", "--format", "csv", sql])
        .expect_exit_code(0);
    assert_eq!(ended.stdout, "n\n4\n");
    assert_eq!((bytes("data.sqlite"), bytes("data.sqlite-wal")), before);
}

#[test]
fn plain_sql_needs_no_facts_and_no_model() {
    let project = values();
    query(&project, &["SELECT 1"]).expect_exit_code(0);
    project.run_hqdl(&["explain", "--db", "data.sqlite", "SELECT 1"]).expect_exit_code(0);
    assert!(!project.path("cache").exists(), "the cache was opened for nothing");
}

#[test]
fn a_name_in_double_quotes_that_is_a_text_is_noted() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    let call = "{{LLMMap('Which planet is it from?', hero.name)}}";
    for sql in [
        "SELECT \"nme\", \"it's\", \"name\" FROM hero WHERE \"nme\" > ''".to_owned(),
        format!("SELECT \"nme\", \"it's\", \"name\", {call} FROM hero WHERE id = 1"),
    ] {
        let ended =
            project.run_hqdl(&["query", "--spec", "specs/x.toml", &sql]).expect_exit_code(0);
        for told in [
            "there is no column \"nme\" here, so SQLite reads it as the text 'nme'",
            "write 'it''s'",
        ] {
            assert_eq!(ended.stderr.matches(told).count(), 1, "{sql}: {}", ended.stderr);
        }
        assert_eq!(
            ended.stderr.matches("SQLite reads it as the text").count(),
            2,
            "{sql}: {}",
            ended.stderr
        );
    }
    // Text constants in views are not reported.
    project.execute_sql("CREATE VIEW v AS SELECT \"text\" AS t FROM hero");
    let ended = query(&project, &["SELECT \"t\" FROM v"]).expect_exit_code(0);
    assert!(!ended.stderr.contains("SQLite reads it as the text"), "{}", ended.stderr);
    assert!(ended.stdout.contains("text"), "{}", ended.stdout);
}

#[test]
fn one_value_does_not_use_all_memory() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    let ended = query(&project, &["SELECT length(randomblob(1000000000))"]);
    fails(ended, 2, &["longer than 134217728 bytes", "`substr`"]);
    // A JSON aggregate does not compare its value with the maximum before it is complete.
    let list = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 30) \
                SELECT length(json_group_array(hex(zeroblob(60000000)))) FROM n";
    let ended = query(&project, &[list]);
    fails(ended, 2, &["SQLite would need more than 1024 MB of memory", "select fewer rows"]);
}

#[test]
fn a_timeout_ends_an_endless_query() {
    let project = values();
    let began = Instant::now();
    let endless = format!("{ENDLESS} SELECT count(*) FROM c");
    let ended = query(&project, &["--timeout", "0.3", &endless]);
    fails(ended, 2, &["the query exceeded its time limit of 0.3 s", "--timeout"]);
    // Few instructions, each of which takes long.
    let slow = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n LIMIT 60) \
                SELECT sum(length(randomblob(20000000))) FROM n";
    let ended = query(&project, &["--timeout", "0.3", slow]);
    fails(ended, 2, &["the query exceeded its time limit of 0.3 s"]);
    assert!(began.elapsed() < Duration::from_secs(60));
    // The rows before the timeout are complete.
    let rows = format!("{ENDLESS} SELECT x FROM c");
    let ended = query(&project, &["--timeout", "0.2", "--json", &rows]).expect_exit_code(2);
    assert!(ended.lines[0]["rows"].as_array().unwrap().len() > 10);
    assert!(
        ended.lines[0]["error"]["message"].as_str().unwrap().contains("exceeded its time limit")
    );
    for wrong in ["0", "-1", "soon", "inf"] {
        query(&project, &["--timeout", wrong, "SELECT 1"]).expect_exit_code(2);
    }
    query(&project, &["--timeout", "60", "SELECT 1"]).expect_exit_code(0);
}

#[test]
fn a_slow_reader_does_not_cause_a_timeout() {
    let project = values();
    let sql = format!("{ENDLESS} SELECT x, printf('%.*c', 1000, 'x') FROM c LIMIT 5000");
    let mut child = project
        .hqdl_command(&["query", "--db", "data.sqlite", "--timeout", "5", "--format", "csv", &sql])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(5500));
    let mut out = String::new();
    child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    assert_eq!((child.wait().unwrap().code(), out.lines().count()), (Some(0), 5001));
}

#[test]
fn ctrl_c_ends_a_query_at_once() {
    let project = values();
    let sql = format!("{ENDLESS} SELECT count(*) FROM c");
    let running = project.start_hqdl(&["query", "--db", "data.sqlite", &sql]);
    running.wait_for_signal_handler();
    running.send_signal("INT");
    let began = Instant::now();
    fails(running.wait_for_exit(), 130, &["error: interrupted"]);
    assert!(began.elapsed() < Duration::from_secs(60));
}

/// Runs a query and reads its output. Returns the number of lines that `read` counted, the exit
/// code, and the maximum memory observed, in KiB.
fn memory(project: &Project, sql: &str, format: &str) -> (usize, i32, u64) {
    let mut child = project
        .hqdl_command(&["query", "--db", "data.sqlite", "--format", format, sql])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let status = format!("/proc/{}/status", child.id());
    let mut most = 0;
    let mut lines = 0;
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        line.unwrap();
        lines += 1;
        if lines % 10_000 == 0 {
            let text = std::fs::read_to_string(&status).unwrap_or_default();
            let peak = text.lines().find_map(|l| l.strip_prefix("VmHWM:"));
            let peak = peak.and_then(|p| p.trim().trim_end_matches(" kB").parse().ok());
            most = most.max(peak.unwrap_or(0));
        }
    }
    (lines, child.wait().unwrap().code().unwrap(), most)
}

#[test]
#[cfg(target_os = "linux")]
fn a_million_rows_need_the_memory_of_a_few() {
    let project = values();
    let sql = format!("{ENDLESS} SELECT x, 'row ' || x AS t FROM c LIMIT 1000000");
    for format in ["csv", "table"] {
        let (lines, code, most) = memory(&project, &sql, format);
        assert!(lines > 1_000_000, "{lines}");
        assert_eq!(code, 0);
        assert!(most > 0 && most < 64 * 1024, "{format}: {most} KiB");
    }
}

#[test]
fn a_closed_pipe_is_not_a_failure() {
    let project = values();
    for format in ["csv", "table", "json", "jsonl", "markdown"] {
        let sql = format!("{ENDLESS} SELECT x, 'some text' FROM c");
        let mut child = project
            .hqdl_command(&["query", "--db", "data.sqlite", "--format", format, &sql])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut some = [0; 100];
        child.stdout.take().unwrap().read_exact(&mut some).unwrap();
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), said.as_str()), (Some(0), ""), "{format}");
    }
}

// Expected values are literals, not the similar constants of Rust.
#[allow(clippy::approx_constant)]
#[test]
fn math_functions_match_sqlites() {
    let project = values();
    let near = |sql: &str, expected: f64| {
        let got = value(&project, sql);
        let close =
            got.as_f64().is_some_and(|g| (g - expected).abs() <= 1e-12 * expected.abs().max(1.0));
        assert!(close && got.is_f64(), "{sql} = {got}, not {expected}");
    };
    near("acos(0.5)", 1.047_197_551_196_597_6);
    near("acosh(2)", 1.316_957_896_924_816_6);
    near("asin(1)", 1.570_796_326_794_896_6);
    near("asinh(1)", 0.881_373_587_019_543);
    near("atan(1)", 0.785_398_163_397_448_3);
    near("atan2(-1, -1)", -2.356_194_490_192_345);
    near("atanh(0.5)", 0.549_306_144_334_054_8);
    near("cos(0)", 1.0);
    near("cosh(1)", 1.543_080_634_815_243_7);
    near("degrees(pi())", 180.0);
    near("exp(1)", 2.718_281_828_459_045);
    near("ln(10)", 2.302_585_092_994_046);
    near("log(1000)", 3.0);
    near("log10('100')", 2.0);
    near("log2(8)", 3.0);
    near("log(2, 64)", 6.0);
    near("mod(11, 3.5)", 0.5);
    near("mod(-7, 3)", -1.0);
    near("pi()", std::f64::consts::PI);
    near("pow(2, 10)", 1024.0);
    near("power(4, 0.5)", 2.0);
    near("radians(180)", std::f64::consts::PI);
    near("sin(1)", 0.841_470_984_807_896_5);
    near("sinh(1)", 1.175_201_193_643_801_4);
    near("sqrt(2)", 1.414_213_562_373_095_1);
    near("tan(1)", 1.557_407_724_654_902_3);
    near("tanh(1)", 0.761_594_155_955_765);
    near("ceil(1.2)", 2.0);
    near("ceiling(-1.8)", -1.0);
    near("floor(-1.2)", -2.0);
    near("trunc(-1.8)", -1.0);
    near("floor(' 2.5 ')", 2.0);
    // Integers stay integers.
    for sql in ["ceil(3)", "floor('3')", "trunc(3)", "ceiling(3)"] {
        assert_eq!(value(&project, sql), json!(3), "{sql}");
    }
    for sql in [
        "sqrt(-1)",
        "ln(0)",
        "ln(-1)",
        "log(0)",
        "log(-5)",
        "log(1, 5)",
        "log(0.5, 5)",
        "log(2, 0)",
        "acos(2)",
        "asin(-2)",
        "acosh(0.5)",
        "atanh(2)",
        "sqrt(NULL)",
        "pow(NULL, 1)",
        "pow(1, NULL)",
        "pow(-8, 1.0/3)",
        "mod(1, 0)",
        "ceil(NULL)",
        "floor('abc')",
        "ceil('3x')",
        "sqrt('inf')",
        "sqrt('')",
        "sqrt('-')",
        "sqrt(x'34')",
        "log('x', 2)",
        "log(2, 'x')",
        "trunc('0x10')",
    ] {
        assert_eq!(value(&project, sql), Json::Null, "{sql}");
    }
    assert_eq!(value(&project, "typeof(exp(1000))"), json!("real"));
    assert_eq!(value(&project, "sign(-3)"), json!(-1));
    // Views of the database may use them.
    project.execute_sql("CREATE VIEW roots AS SELECT sqrt(4) AS x");
    assert_eq!(rows(&project, "SELECT x FROM roots"), [json!([2.0])]);
}

/// A real number is formatted as `SQLite` does, and parses as the same number.
#[test]
fn reals_are_formatted_like_sqlites() {
    let project = values();
    let db = project.connect();
    db.execute_batch("CREATE TABLE r (x REAL, short INTEGER); BEGIN").unwrap();
    let mut insert = db.prepare("INSERT INTO r VALUES (?1, ?2)").unwrap();
    for exponent in -30..30 {
        for digits in ["1", "-1.5", "49.47", "-0.1", "1234567.25"] {
            let x: f64 = format!("{digits}e{exponent}").parse().unwrap();
            insert.execute((x, true)).unwrap();
        }
    }
    let mut bits: u64 = 42;
    for _ in 0..3000 {
        bits = bits.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let x = f64::from_bits(bits);
        if x.is_finite() {
            insert.execute((x, false)).unwrap();
        }
    }
    insert.execute((0.1 + 0.2, false)).unwrap();
    insert.execute((-0.0, true)).unwrap();
    drop(insert);
    db.execute_batch("COMMIT").unwrap();
    drop(db);
    let sql = "SELECT x, CAST(x AS TEXT) AS t, short, printf('%!.20g', x) AS full FROM r";
    let ended = query(&project, &["--format", "csv", sql]).expect_exit_code(0);
    for line in ended.stdout.lines().skip(1) {
        let [x, t, short, full] = line.split(',').collect::<Vec<_>>().try_into().unwrap();
        assert!(short == "0" || x == t, "{x} is not {t}");
        let (own, sqlites): (f64, f64) = (x.parse().unwrap(), t.parse().unwrap());
        assert_eq!(own, sqlites, "{x} is not {full}");
        assert!(x.len() <= t.len(), "{x} is longer than {t}");
        assert_eq!(x.contains('e'), t.contains('e'), "{x} is not as {t}");
    }
}

#[test]
fn a_spec_is_queried_where_it_is_published() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    let text = std::fs::read_to_string(project.path("specs/x.toml")).unwrap();
    let copied = text.replace(
        "path = \"../data.sqlite\"",
        "path = \"../data.sqlite\"\noutput = \"../copy.sqlite\"",
    );
    project.write_spec(&copied);
    let count = |table: &str| {
        let sql = format!("SELECT count(*) AS n FROM {table}");
        project.run_hqdl(&["query", "--spec", "specs/x.toml", "--format", "csv", &sql])
    };
    // Before anything is published, the database has only its own tables.
    assert_eq!(count("hero").expect_exit_code(0).stdout, "n\n10\n");
    fails(count("llm"), 2, &["no such table: llm"]);
    project.run_materialize(&[]).expect_exit_code(0);
    let ended = count("llm").expect_exit_code(0);
    assert_eq!((ended.stdout.as_str(), ended.stderr.as_str()), ("n\n10\n", ""));
    project.execute_sql("INSERT INTO hero (name) VALUES ('New')");
    let stale = count("hero").expect_exit_code(0);
    assert_eq!(stale.stdout, "n\n10\n");
    assert!(stale.stderr.contains("is older than its database"), "{}", stale.stderr);
    // Flags take precedence over the spec.
    let sql = "SELECT count(*) AS n FROM hero";
    let flags = ["--spec", "specs/x.toml", "--db", "data.sqlite", "--output", "data.sqlite"];
    let ended = project
        .run_hqdl(&[&["query", "--format", "csv", sql], &flags[..]].concat())
        .expect_exit_code(0);
    assert_eq!(ended.stdout, "n\n11\n");
    project.write_spec("oops = 1");
    fails(count("hero"), 2, &["oops"]);
}

#[test]
fn flags_of_a_query_without_a_spec_are_checked() {
    let project = values();
    fails(
        query(&project, &["--provider", "replay", "SELECT 1"]),
        2,
        &["--provider replay needs recordings"],
    );
    fails(
        query(&project, &["--recordings", "no.jsonl", "--", "SELECT 1"]),
        2,
        &["the recording no.jsonl does not exist"],
    );
    fails(query(&project, &["--base-url", "ftp:x", "SELECT 1"]), 2, &["--base-url"]);
    // `--recordings` accepts any number of values, except for the query.
    std::fs::write(project.path("f.jsonl"), "").unwrap();
    for files in [&["f.jsonl"][..], &["f.jsonl", "f.jsonl"]] {
        let flags = [&["--provider", "replay", "--recordings"], files].concat();
        query(&project, &[&flags[..], &["SELECT 1"]].concat()).expect_exit_code(0);
        fails(query(&project, &flags), 2, &["no query"]);
    }
    query(&project, &["--model", "m", "--base-url", "http://127.0.0.1:9/v1", "SELECT 1"])
        .expect_exit_code(0);
}

#[test]
fn meta_and_explain_describe_the_query() {
    let project = values();
    let ended =
        query(&project, &["--meta", "--format", "csv", "SELECT 1 AS x"]).expect_exit_code(0);
    assert_eq!(ended.stdout, "x\n1\n");
    for said in
        ["values     0 asked, 0 reused", "requests   0", "passes     1", "sql        SELECT 1 AS x"]
    {
        assert!(ended.stderr.contains(said), "{}", ended.stderr);
    }
    let ended =
        project.run_hqdl(&["explain", "--db", "data.sqlite", "SELECT 1 AS x"]).expect_exit_code(0);
    assert_eq!(
        ended.stdout,
        "calls      none: this is plain SQL and sends no request\nsql        SELECT 1 AS x\n"
    );
    let ended = project
        .run_hqdl(&["explain", "--db", "data.sqlite", "--json", "SELECT 1 AS x"])
        .expect_exit_code(0);
    assert_eq!(ended.lines[0]["passes"], 0);
    fails(
        project.run_hqdl(&["explain", "--db", "data.sqlite", "SELECT y"]),
        2,
        &["no such column: y"],
    );
    fails(
        project.run_hqdl(&["explain", "--db", "data.sqlite", "DROP TABLE v"]),
        2,
        &["is read-only"],
    );
}

#[test]
fn meta_has_the_documented_fields() {
    let meta = Meta {
        requests: 2,
        values_asked: 7,
        values_reused: 3,
        values_missing: 1,
        values_unknown: 1,
        values_unanswered: 0,
        passes: vec![Pass { demanded: 7, seconds: 0.5 }, Pass::default()],
        input_tokens: 100,
        output_tokens: 20,
        cost_usd: 0.25,
        price_notes: Vec::new(),
        seconds: 1.5,
        routes: vec![Route {
            bound: None,
            call: "{{LLMMap('q', t.c)}}".to_owned(),
            route: RouteKind::AdHoc,
            expansion: "adhoc_q".to_owned(),
            column: "q".to_owned(),
            why: "no column answers it".to_owned(),
        }],
        notes: vec!["of no concern to programs".to_owned()],
        unbounded: Vec::new(),
        plan: hqdl::blendsql::plan::DemandPlan::default(),
        sql: "SELECT 1".to_owned(),
        interval: None,
    };
    let expected = json!({
        "requests": 2, "values_asked": 7, "values_reused": 3, "values_missing": 1, "values_unknown": 1,
        "passes": 2, "demand": [7, 0],
        "input_tokens": 100, "output_tokens": 20, "cost_usd": 0.25, "price_notes": [], "seconds": 1.5,
        "routes": [{
            "call": "{{LLMMap('q', t.c)}}", "route": "ad-hoc", "expansion": "adhoc_q",
            "column": "q", "why": "no column answers it",
        }],
        "sql": "SELECT 1",
    });
    assert_eq!(meta.to_json(), expected);
    assert_eq!([RouteKind::Column, RouteKind::Bound].map(RouteKind::name), ["column", "bound"]);
}

fn guard(project: &Project, timeout: Option<Duration>) -> (GuardedConnection, watch::Sender<bool>) {
    let (send, interrupt) = watch::channel(false);
    (
        GuardedConnection::open_for_query(&project.path("data.sqlite"), timeout, interrupt)
            .unwrap(),
        send,
    )
}

/// The engine creates temporary tables beside the user's, which stay unchanged.
#[test]
fn the_guard_allows_the_engines_temporary_tables() {
    let project = values();
    let before = std::fs::read(project.path("data.sqlite")).unwrap();
    let (guard, _send) = guard(&project, None);
    let run =
        |sql: &str| guard.connection().execute_batch(sql).map_err(|e| guard.query_error(&e, sql));
    run("BEGIN; CREATE TEMP TABLE m (a TEXT PRIMARY KEY, b); INSERT INTO m VALUES ('x', 1), ('y', 2);
         CREATE INDEX temp.i ON m (b); UPDATE m SET b = 3 WHERE a = 'y'; DELETE FROM temp.m WHERE a = 'x'; COMMIT;
         CREATE TEMP TABLE n AS SELECT id FROM v; CREATE TEMP VIEW o AS SELECT * FROM n; DROP VIEW o;
         CREATE VIRTUAL TABLE temp.f USING fts5(t); INSERT INTO f SELECT t FROM v; DROP TABLE n;")
    .unwrap();
    for sql in [
        "DELETE FROM v",
        "CREATE TABLE x (y)",
        "ATTACH 'o.sqlite' AS o",
        "PRAGMA journal_mode = WAL",
    ] {
        let error = run(sql).unwrap_err();
        assert_eq!(error.to_string(), "a query is read-only", "{sql}");
    }
    guard.lock_temp().unwrap();
    for sql in [
        "INSERT INTO m VALUES ('z', 1)",
        "DROP TABLE m",
        "CREATE TEMP TABLE x (y)",
        "BEGIN",
        "PRAGMA query_only = 0",
    ] {
        assert_eq!(run(sql).unwrap_err().to_string(), "a query is read-only", "{sql}");
    }
    let read = |sql: &str| -> i64 { guard.connection().query_row(sql, [], |r| r.get(0)).unwrap() };
    assert_eq!(read("SELECT m.b FROM m JOIN v ON v.id = 1"), 3);
    assert_eq!(read("SELECT count(*) FROM f WHERE f MATCH 'plain'"), 1);
    guard.unlock_temp().unwrap();
    run("INSERT INTO m VALUES ('z', 1)").unwrap();
    assert!(run("DELETE FROM v").is_err());
    drop(guard);
    assert_eq!(std::fs::read(project.path("data.sqlite")).unwrap(), before);
}

#[test]
fn the_guards_time_limit_can_be_paused_and_restarted() {
    let project = values();
    let (guard, send) = guard(&project, Some(Duration::from_secs(2)));
    guard.lock_temp().unwrap();
    let work = format!("{ENDLESS} SELECT count(*) FROM (SELECT x FROM c LIMIT 20000)");
    let run = |sql: &str| {
        guard
            .connection()
            .query_row(sql, [], |r| r.get::<_, i64>(0))
            .map_err(|e| guard.query_error(&e, sql))
    };
    guard.start_timeout();
    guard.with_timeout_paused(|| std::thread::sleep(Duration::from_millis(2200)));
    assert_eq!(run(&work).unwrap(), 20000);
    std::thread::sleep(Duration::from_millis(2200));
    assert!(matches!(run(&work), Err(QueryError::Timeout(t)) if t == Duration::from_secs(2)));
    guard.start_timeout();
    assert_eq!(run(&work).unwrap(), 20000);
    send.send(true).unwrap();
    let error = run(&work).unwrap_err();
    assert_eq!(error.to_string(), "interrupted");
}

/// A sink that accepts only two rows.
struct Full(usize);

impl RowSink for Full {
    fn write_columns(&mut self, _: &[String]) -> std::io::Result<()> {
        Ok(())
    }

    fn write_row(&mut self, _: &[rusqlite::types::ValueRef<'_>]) -> std::io::Result<()> {
        self.0 += 1;
        if self.0 > 2 { Err(std::io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }

    fn finish(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_sink_ends_the_query() {
    let project = values();
    let path = project.path("data.sqlite");
    let (_send, interrupt) = watch::channel(false);
    let plain = |sql| PlainQuery {
        database: &path,
        sql,
        dialect: hqdl::query::Dialect::Sqlite,
        params: &[],
        timeout: None,
        interrupt: interrupt.clone(),
    };
    let mut smoothie = QueryResult::default();
    let meta = plain("SELECT id, t AS id, b, CAST(x'ff' AS TEXT) FROM v WHERE id = 2")
        .run(&mut smoothie)
        .unwrap();
    assert_eq!(smoothie.columns[..3], ["id", "id", "b"]);
    let row = vec![
        Value::Integer(2),
        Value::Text("Zoé \"Z\" Müller, 東京".to_owned()),
        Value::Blob(vec![0, 255, 16]),
        Value::Blob(vec![255]),
    ];
    assert_eq!(smoothie.rows, [row]);
    assert_eq!(meta.passes.len(), 1);
    let endless = format!("{ENDLESS} SELECT x FROM c");
    let error = plain(&endless).run(&mut Full(0)).unwrap_err();
    assert!(matches!(error, QueryError::Output(_)), "{error}");
}

/// `explain`, the query and a repeated query report the same number of known values. Values of a
/// spec column and live answers count once each.
#[test]
fn known_values_are_counted_alike_before_and_after() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "json");
    project.run_materialize(&[]).expect_exit_code(0);
    let sql = "SELECT {{LLMMap('What is the eye colour?', hero.name)}},
                      {{LLMMap('Which planet is it from?', hero.name)}} FROM hero
               WHERE {{LLMMap('Which planet is it from?', hero.name)}} IS NOT NULL";
    let said = |command: &str| {
        let args = [command, "--spec", "specs/x.toml", "--json", sql];
        let ended = project.run_hqdl(&args).expect_exit_code(0);
        let json: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
        let meta = json.get("meta").cloned().unwrap_or(json);
        (meta["values_asked"].as_u64().unwrap(), meta["values_reused"].as_u64().unwrap())
    };
    let before = said("explain");
    let first = said("query");
    assert_eq!(first.0, 9, "nine names: {first:?}");
    assert!(before.0 >= first.0);
    let known = said("query");
    assert_eq!(known, (0, first.1 + 9), "what was asked is known now");
    assert_eq!(said("query"), known);
    assert_eq!(said("explain"), known);
}
