//! Tests of a spec over a `PostgreSQL` database: it publishes what it would publish in a file, and
//! nothing leaves it half-published.

use std::time::Duration;

use serde_json::{Value as Json, json};

use crate::increments::Changing;
use hqdl_testkit::daemon::find_link;
use hqdl_testkit::daemon::{Daemon, wait_until};
use hqdl_testkit::endpoint::{Endpoint, Fault, Frequency};
use hqdl_testkit::postgres::{self, HeldLock, Server, sql_at};
use hqdl_testkit::project::{
    COLUMN_NAMES, CommandResult, HERO_COUNT, HEROES, MODEL, Project, RunningCommand, heroes_spec,
    true_value, truthful_endpoint,
};

/// Returns the SQL of the heroes for a server.
fn heroes() -> String {
    HEROES.replace("INTEGER PRIMARY KEY", "serial PRIMARY KEY")
}

/// Returns the spec with its database at a URL.
fn over(url: &str, spec: &str) -> String {
    spec.replace("path = \"../data.sqlite\"", &format!("url = \"{url}\""))
}

/// Creates a project over a database on a server; returns it with its URL.
fn project(endpoint: &Endpoint) -> (Project, String) {
    let url = postgres::create_database();
    sql_at(&url, &heroes());
    (Project::new(endpoint, "", &over(&url, &heroes_spec())), url)
}

/// Decodes the percent-encoding of a link.
fn percent_decode(text: &str) -> String {
    let mut parts = text.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        bytes.push(u8::from_str_radix(&part[..2], 16).unwrap());
        bytes.extend(&part.as_bytes()[2..]);
    }
    String::from_utf8(bytes).unwrap()
}

/// Returns the first value of a query.
fn one(url: &str, sql: &str) -> String {
    sql_at(url, sql)[0][0].clone().unwrap_or_default()
}

/// Returns the rows of a table as JSON, sorted.
fn rows(url: &str, table: &str, condition: &str) -> Vec<String> {
    let columns = format!(
        "SELECT quote_ident(attname), atttypid = 'float8'::regtype FROM pg_attribute
         WHERE attrelid = 'expanded.{table}'::regclass AND attnum > 0 AND NOT attisdropped
           AND attname NOT IN ('bucket', 'hash') ORDER BY attnum"
    );
    let columns: Vec<(String, bool)> = sql_at(url, &columns)
        .into_iter()
        .map(|row| (row[0].clone().unwrap(), row[1].as_deref() == Some("t")))
        .collect();
    let names: Vec<&str> = columns.iter().map(|(name, _)| name.as_str()).collect();
    let sql =
        format!("SELECT json_build_array({}) FROM expanded.{table}{condition}", names.join(", "));
    let parse = |text: &Option<String>| -> Json {
        let mut row: Json = serde_json::from_str(text.as_ref().unwrap()).unwrap();
        for (n, (_, real)) in columns.iter().enumerate() {
            if let Some(number) = row[n].as_f64().filter(|_| *real) {
                row[n] = number.into();
            }
        }
        row
    };
    let mut all: Vec<String> =
        sql_at(url, &sql).iter().map(|row| parse(&row[0]).to_string()).collect();
    all.sort();
    all
}

/// Makes the rows of the server's tables equal those of the file.
fn follow(changing: &Changing, url: &str) {
    let literal = |value: &Json| match value {
        Json::Null => "NULL".to_owned(),
        Json::String(text) => format!("'{}'", text.replace('\'', "''")),
        other => other.to_string(),
    };
    let mut sql = String::new();
    for table in ["hero", "villain", "power"] {
        sql.push_str(&format!("TRUNCATE {table};"));
        for row in changing.project.query_rows(&format!("SELECT * FROM {table} ORDER BY rowid")) {
            let values: Vec<String> = row.iter().map(literal).collect();
            sql.push_str(&format!("INSERT INTO {table} VALUES ({});", values.join(", ")));
        }
    }
    sql_at(url, &sql);
}

/// Random changes of rows, spellings, overrides, columns, lists, sources and answers, and manual
/// edits of the tables.
#[test]
#[cfg_attr(not(postgres), ignore = "PostgreSQL is not installed")]
fn publishing_on_a_server_equals_publishing_in_a_file() {
    let first = std::env::var("HQDL_TEST_SEED").ok().and_then(|n| n.parse().ok()).unwrap_or(100);
    let steps = std::env::var("HQDL_TEST_STEPS").ok().and_then(|n| n.parse().ok()).unwrap_or(10);
    for seed in first..first + 2 {
        let mut changing = Changing::new(seed);
        let url = postgres::create_database();
        sql_at(&url, &heroes());
        sql_at(&url, "CREATE TABLE villain (name text, full_name text)");
        for step in 0..steps {
            let mut what = vec![changing.change()];
            while changing.chance.u8(0..3) == 0 {
                what.push(changing.change());
            }
            let place = format!("seed {seed}, step {step}, {what:?}");
            changing.ends(&["materialize", "specs/x.toml"]);
            follow(&changing, &url);
            if step > 0 && changing.chance.u8(0..4) == 0 {
                let edits = [
                    "UPDATE expanded.llm SET motto = 'by hand' WHERE name < 'F'",
                    "DELETE FROM expanded.llm WHERE name > 'E'",
                    "DELETE FROM expanded.llm_power WHERE power > 'M'",
                    "TRUNCATE expanded.llm CASCADE",
                    "DROP VIEW expanded.hero_expanded",
                    "DROP TABLE expanded.llm_power",
                ];
                sql_at(&url, edits[changing.chance.usize(0..edits.len())]);
            }
            let args = ["materialize", "specs/x.toml", "--json", "--limit", "0", "--db", &url];
            let ended = changing.project.run_hqdl(&args);
            assert!([0, 1].contains(&ended.code), "{place}: {ended:?}");
            assert_eq!(ended.done_event()["requests"], 0, "{place}");
            let file = changing.published("data.sqlite");
            for table in [
                "llm",
                "llm_power",
                "hero_expanded",
                "hqdl_cell",
                "hqdl_record",
                "hqdl_completion",
                "hqdl_edit",
            ] {
                let of = match table {
                    hqdl if hqdl.starts_with("hqdl_") => " WHERE expansion = 'llm'",
                    _ => "",
                };
                assert_eq!(rows(&url, table, of), file[table], "{place}: {table}");
            }
            // After that, nothing is left to do.
            let again = changing.project.run_hqdl(&args);
            assert_eq!(again.done_event()["published"], false, "{place}");
        }
    }
}

#[test]
#[cfg_attr(not(postgres), ignore = "PostgreSQL is not installed")]
fn a_spec_over_a_server_supports_every_command() {
    let endpoint = truthful_endpoint();
    let (project, url) = project(&endpoint);
    let checked = project.run_hqdl(&["check", "specs/x.toml"]).expect_exit_code(0);
    assert!(checked.stdout.contains("keys 10"), "{}", checked.stdout);
    assert_eq!(project.run_plan(&[])["totals"]["cells"], HERO_COUNT * COLUMN_NAMES.len());
    let done = project.run_materialize(&[]).expect_exit_code(0);
    assert_eq!(done.done_event()["cells"]["ok"], HERO_COUNT * COLUMN_NAMES.len());
    // Plain SQL can read the tables, with types, keys and comments.
    assert_eq!(one(&url, "SELECT count(*) FROM expanded.llm"), "10");
    let types = "SELECT string_agg(format_type(atttypid, atttypmod), ', ' ORDER BY attnum)
        FROM pg_attribute WHERE attrelid = 'expanded.llm'::regclass AND attnum > 0";
    assert_eq!(one(&url, types), "text, text, text, bigint, text");
    let keys = "SELECT string_agg(contype::text, '' ORDER BY contype) FROM pg_constraint
        WHERE conrelid IN ('expanded.llm'::regclass, 'expanded.llm_power'::regclass)";
    assert_eq!(one(&url, keys), "fuu");
    let about = "SELECT obj_description('expanded.llm'::regclass) || '; '
        || col_description('expanded.llm'::regclass, 4)";
    assert_eq!(one(&url, about), "Heroes of comics that nobody drew.; year of birth");
    let joined = "SELECT motto FROM expanded.hero_expanded WHERE full_name IS NULL";
    assert_eq!(one(&url, joined), "The motto of Echo alias nobody!");
    // A second run has nothing to do, and `why` prints where a cell came from.
    let again = project.run_materialize(&[]).expect_exit_code(0);
    assert_eq!(
        (&again.done_event()["requests"], &again.done_event()["published"]),
        (&0.into(), &false.into())
    );
    let why = ["why", "llm", "zed", "Zed Zedsson", "powers", "--spec", "specs/x.toml", "--json"];
    let why = project.run_hqdl(&why).expect_exit_code(0);
    assert_eq!(
        why.lines[0][0]["value"],
        true_value("powers", &["Zed".into(), "Zed Zedsson".into()])
    );
    assert_eq!(why.lines[0][0]["model"], "test-model");
    let why =
        project.run_hqdl(&["why", "llm", "Echo", "NULL", "born", "--db", &url]).expect_exit_code(0);
    assert!(why.stdout.contains("state        ok"), "{}", why.stdout);
    // A new row is one more row to ask about; a deleted row disappears.
    sql_at(
        &url,
        "INSERT INTO hero (name, full_name) VALUES ('New', 'Nina'); DELETE FROM hero WHERE name = 'Zed'",
    );
    let plan = project.run_plan(&[]);
    assert_eq!(plan["totals"]["cells"], COLUMN_NAMES.len(), "{plan}");
    assert_eq!(plan["expansions"][0]["orphaned"], 1, "{plan}");
    project.run_materialize(&[]).expect_exit_code(0);
    assert_eq!(
        one(&url, "SELECT string_agg(name, ' ') FROM expanded.llm WHERE name IN ('New', 'Zed')"),
        "New"
    );
    // `clean` removes what hqdl created, and nothing else.
    sql_at(&url, "CREATE TABLE expanded.mine (x int)");
    project.run_hqdl(&["clean", "specs/x.toml"]).expect_exit_code(0);
    assert_eq!(
        one(
            &url,
            "SELECT string_agg(relname, ' ') FROM pg_class WHERE relnamespace = 'expanded'::regnamespace"
        ),
        "mine"
    );
    sql_at(&url, "DROP SCHEMA expanded CASCADE");
    let before = endpoint.request_count();
    project.run_materialize(&[]).expect_exit_code(0);
    assert_eq!(endpoint.request_count(), before);
    project.run_hqdl(&["clean", "specs/x.toml"]).expect_exit_code(0);
    assert_eq!(one(&url, "SELECT count(*) FROM pg_namespace WHERE nspname = 'expanded'"), "0");
}

/// Each type of value is a key that is shown in its text form, and joins its source.
#[test]
#[cfg_attr(not(postgres), ignore = "PostgreSQL is not installed")]
fn keys_of_every_type_join_their_source_again() {
    let kinds = [
        ("boolean", "true", "false"),
        ("smallint", "-7", "7"),
        ("bigint", "9223372036854775807", "0"),
        ("numeric", "1.50", "12345678901234567890.123"),
        ("real", "0.1", "'NaN'"),
        ("double precision", "1e300", "-0.5"),
        ("date", "'2026-11-22'", "'infinity'"),
        ("timestamp", "'2026-11-22 15:41:26.25'", "'0044-03-15 12:00:00 BC'"),
        ("timestamptz", "'2026-11-22 15:41:26+02'", "'1999-12-31 23:59:59.999999+00'"),
        (
            "uuid",
            "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'",
            "'00000000-0000-0000-0000-000000000000'",
        ),
        ("varchar(40)", "E'tab\\t \\\\ \"quoted\" {braces}'", "''"),
        ("char(5)", "'ab'", "'cd'"),
        ("text", "E'line\\nbreak, ''quote'' %s $1 \u{fffd}'", "'🦸 Ä'"),
        ("mood", "'sad'", "'happy'"),
        ("interval", "'1 day 2 hours'", "'3 months'"),
        ("text[]", "'{a,NULL,\"b c\"}'", "'{}'"),
        ("inet", "'10.0.0.1'", "'::1'"),
        ("json", "'{\"a\": 1}'", "'[]'"),
    ];
    let endpoint = truthful_endpoint();
    let url = postgres::create_database();
    let columns: Vec<String> =
        kinds.iter().enumerate().map(|(n, (kind, ..))| format!("k{n} {kind}")).collect();
    let values = |which: fn(&(&'static str, &'static str, &'static str)) -> &'static str| {
        kinds.iter().map(which).collect::<Vec<_>>().join(", ")
    };
    sql_at(&url, "CREATE TYPE mood AS ENUM ('sad', 'happy')");
    sql_at(
        &url,
        &format!(
            "CREATE TABLE thing (id int PRIMARY KEY, {}, blob bytea);
         INSERT INTO thing VALUES (1, {}, 'x'), (2, {}, 'y')",
            columns.join(", "),
            values(|k| k.1),
            values(|k| k.2)
        ),
    );
    let mut text = over(&url, MODEL);
    for n in 0..kinds.len() {
        text.push_str(&format!(
            "[[expansion]]\nname = \"e{n}\"\nsource = \"thing\"\nkey = [\"k{n}\"]\nformat = \"json\"\n\
             [[expansion.column]]\nname = \"motto{n}\"\n"
        ));
    }
    text.push_str("[[expansion]]\nname = \"two\"\nsource = \"SELECT id, k0, k8, k12 FROM thing\"\nkey = [\"id\", \"k0\", \"k8\", \"k12\"]\nformat = \"json\"\n[[expansion.column]]\nname = \"motto\"\n");
    let project = Project::new(&endpoint, "", &text);
    let done = project.run_materialize(&[]).expect_exit_code(0);
    assert_eq!(done.done_event()["cells"]["ok"], (kinds.len() + 1) * 2);
    for (n, (kind, ..)) in kinds.iter().enumerate() {
        let sql = format!(
            "SELECT count(motto{n}) || ' ' || count(DISTINCT motto{n}) FROM expanded.thing_expanded"
        );
        assert_eq!(one(&url, &sql), "2 2", "{kind}");
    }
    assert_eq!(one(&url, "SELECT count(motto) FROM expanded.two"), "2");
    assert_eq!(project.run_materialize(&[]).expect_exit_code(0).done_event()["published"], false);
    // Bytes cannot be a key.
    let blob = text.replace("key = [\"k0\"]", "key = [\"blob\"]");
    project.write_spec(&blob);
    let checked = project.run_hqdl(&["check", "specs/x.toml"]).expect_exit_code(0);
    assert!(checked.stderr.contains("2 keys contain a blob"), "{}", checked.stderr);
}

/// Sources can be views, SELECTs, in other schemas, and several with different types.
#[test]
#[cfg_attr(not(postgres), ignore = "PostgreSQL is not installed")]
fn sources_on_a_server_can_be_views_selects_and_other_types() {
    let endpoint = truthful_endpoint();
    let url = postgres::create_database();
    sql_at(
        &url,
        "CREATE SCHEMA shop; CREATE TABLE shop.item (\"Name\" text, n int, note text);
        INSERT INTO shop.item VALUES ('1', 1, 'a'), ('1', 1, 'b'), ('x', 2, 'c'), (NULL, 3, 'd');
        CREATE VIEW items AS SELECT n, \"Name\" FROM shop.item;
        CREATE TABLE number (name int); INSERT INTO number VALUES (1), (5)",
    );
    let column = "[[expansion.column]]\nname = \"motto\"\n";
    let text = [
        &over(&url, MODEL),
        "[[expansion]]\nname = \"a\"\nsource = \"shop.item\"\nkey = [\"name\"]\n", column,
        "[[expansion]]\nname = \"b\"\nsource = \"items\"\nkey = [\"n\", \"Name\"]\n", column,
        "[[expansion]]\nname = \"c\"\nkey = [\"name\"]\n[[expansion.source]]\nselect = \"SELECT \\\"Name\\\" AS name FROM shop.item -- of it\"\n[[expansion.source]]\ntable = \"number\"\n", column,
    ]
    .concat();
    let project = Project::new(&endpoint, "", &text);
    let done = project.run_materialize(&[]).expect_exit_code(0);
    // In `c`, the number 1 and the text 1 are one key.
    assert_eq!(done.done_event()["cells"]["ok"], 2 + 3 + 3, "{}", done.stdout);
    assert_eq!(one(&url, "SELECT string_agg(name, ' ' ORDER BY name) FROM expanded.c"), "1 5 x");
    assert_eq!(one(&url, "SELECT count(motto) FROM expanded.number_expanded"), "2");
    // The server evaluates the condition, and it applies only to sources with its columns.
    sql_at(&url, "INSERT INTO number VALUES (6), (7)");
    let some = project
        .run_materialize(&["--where", "name BETWEEN 6 AND 6 AND pg_typeof(name) = 'int'::regtype"]);
    assert_eq!(some.done_event()["cells"]["ok"], 2 + 3 + 4, "{}\n{}", some.stdout, some.stderr);
    let wrong = project
        .run_hqdl(&["materialize", "specs/x.toml", "--where", "nonsense = 1"])
        .expect_exit_code(2);
    assert!(wrong.stderr.contains("nonsense"), "{}", wrong.stderr);
}

fn fails(project: &Project, args: &[&str], said: &[&str]) -> CommandResult {
    let ended = project.run_hqdl(args).expect_exit_code(2);
    for said in said {
        assert!(ended.stderr.contains(said), "{said}: {}", ended.stderr);
    }
    ended
}

#[test]
#[cfg_attr(not(postgres), ignore = "PostgreSQL is not installed")]
fn problems_of_a_server_are_reported_before_any_request() {
    let endpoint = truthful_endpoint();
    let (project, url) = project(&endpoint);
    let sound = project.spec_text();
    let at = |url: &str| over(url, &heroes_spec());
    let materialize = ["materialize", "specs/x.toml"];
    let name = url.rsplit('/').next().unwrap();
    for (text, said) in [
        (at("postgres://owner@127.0.0.1:1/x"), &["127.0.0.1:1/x", "check the URL"][..]),
        (at(&url.replace(name, "nowhere")), &["\"nowhere\" does not exist", "createdb"]),
        (at("mysql://owner@127.0.0.1/x"), &["`url` is not the URL of a PostgreSQL database"]),
        (
            at(&url.replace("owner@", "owner:geheim@")),
            &["the URL contains a password", "PGPASSWORD"],
        ),
        (sound.replace("url =", "path = \"x.sqlite\"\nurl ="), &["both `path` and `url`"]),
        (sound.replace("url =", "output = \"x.sqlite\"\nurl ="), &["`schema`"]),
        (sound.replace("url =", "schema = \"\"\nurl ="), &["`schema` is empty"]),
        (
            heroes_spec().replace("path =", "schema = \"x\"\npath ="),
            &["a SQLite database has no schema"],
        ),
        (
            sound.replace("key = [\"name\"", "key = [\"namee\""),
            &["has no column `namee`", "`name`"],
        ),
        (sound.replace("source = \"hero\"", "source = \"heros\""), &["no table `heros`", "`hero`"]),
        (
            sound.replace("source = \"hero\"", "source = \"SELECT nom FROM hero\""),
            &["\"nom\" does not exist"],
        ),
        (
            sound.replace(
                "source = \"hero\"",
                "source = \"WITH x AS (DELETE FROM hero RETURNING *) SELECT * FROM x\"",
            ),
            &["top level"],
        ),
    ] {
        project.write_spec(&text);
        let ended = fails(&project, &materialize, said);
        assert!(!ended.stderr.contains("geheim"), "{}", ended.stderr);
    }
    // A role that can read but not write gets a message, and so does a read-only server.
    project.write_spec(&sound);
    sql_at(
        &url,
        &format!(
            "CREATE ROLE guest_{name} LOGIN; GRANT SELECT ON ALL TABLES IN SCHEMA public TO guest_{name}"
        ),
    );
    let guest = url.replace("owner@", &format!("guest_{name}@"));
    fails(
        &project,
        &[&materialize[..], &["--db", &guest]].concat(),
        &["may not create the schema `expanded`", "docs/reference/postgresql.md"],
    );
    let replica = format!("{url}?options=-c%20default_transaction_read_only%3Don");
    // The session is writable, but a replica does not allow writes.
    project.run_hqdl(&["check", "specs/x.toml", "--db", &replica]).expect_exit_code(0);
    // A user's table has the name of a table to be published.
    sql_at(&url, "CREATE SCHEMA expanded; CREATE TABLE expanded.llm (mine int)");
    fails(&project, &materialize, &["`llm` that hqdl did not make"]);
    assert_eq!(one(&url, "SELECT count(*) FROM expanded.llm"), "0");
    assert_eq!(endpoint.request_count(), 0);
}

/// Texts that a server does not accept, and keys that it cannot index.
#[test]
#[cfg_attr(not(postgres), ignore = "PostgreSQL is not installed")]
fn odd_texts_are_published_and_long_keys_are_reported() {
    let endpoint = Endpoint::start_with(|column: &str, key: &[Json]| match column {
        "motto" => "a\0b \\u0000 'quoted' \u{1f9b8}".into(),
        other => true_value(other, key),
    });
    let (project, url) = project(&endpoint);
    project.write_spec(&project.spec_text().replace("format = \"csv\"", "format = \"json\""));
    project.run_materialize(&[]);
    let motto = one(&url, "SELECT DISTINCT motto FROM expanded.llm");
    assert_eq!(motto, "a\u{2400}b \\u0000 'quoted' \u{1f9b8}");
    assert_eq!(
        one(&url, "SELECT DISTINCT value FROM expanded.hqdl_cell WHERE \"column\" = 'motto'"),
        motto
    );
    assert_eq!(project.run_materialize(&[]).done_event()["published"], false);
    // Random text cannot be compressed, so the index would have to store all of it.
    sql_at(
        &url,
        "INSERT INTO hero (name) SELECT string_agg(md5(i::text), '') FROM generate_series(1, 300) AS i",
    );
    let ended = fails(&project, &["materialize", "specs/x.toml"], &["2,704 bytes"]);
    assert!(!ended.stderr.contains("panicked"));
    assert_eq!(one(&url, "SELECT count(*) FROM expanded.llm"), "10");
}

/// A user's view depends on a published table: rows can change, columns cannot.
#[test]
#[cfg_attr(not(postgres), ignore = "PostgreSQL is not installed")]
fn dependents_of_a_published_table_are_kept_or_reported() {
    let endpoint = truthful_endpoint();
    let (project, url) = project(&endpoint);
    project.run_materialize(&[]).expect_exit_code(0);
    sql_at(&url, "CREATE VIEW mine AS SELECT name, motto FROM expanded.llm");
    sql_at(&url, "INSERT INTO hero (name, full_name) VALUES ('New', 'Nina')");
    project.run_materialize(&[]).expect_exit_code(0);
    sql_at(&url, "UPDATE expanded.llm SET motto = 'by hand'");
    let mended = project.run_materialize(&[]).expect_exit_code(0);
    assert!(mended.stdout.contains("edited by hand") || mended.stderr.contains("edited by hand"));
    assert_eq!(one(&url, "SELECT count(*) FILTER (WHERE motto LIKE 'The motto%') FROM mine"), "11");
    let wider = project.spec_text() + "[[expansion.column]]\nname = \"weapon\"\n";
    let before = project.spec_text();
    project.write_spec(&wider);
    fails(
        &project,
        &["materialize", "specs/x.toml"],
        &["view mine depends on", "drop the views that depend on it"],
    );
    assert_eq!(one(&url, "SELECT count(*) FROM mine"), "11");
    sql_at(&url, "DROP VIEW mine");
    let count = endpoint.request_count();
    project.run_materialize(&[]).expect_exit_code(0);
    assert_eq!(endpoint.request_count(), count, "the answers stay in the cache");
    assert_eq!(one(&url, "SELECT count(weapon) FROM expanded.llm"), "11");
    project.write_spec(&before);
    project.run_materialize(&[]).expect_exit_code(0);
    assert_eq!(one(&url, "SELECT count(motto) FROM expanded.hero_expanded"), "11");
}

/// Starts a run, in the background.
fn start(project: &Project, flags: &[&str]) -> RunningCommand {
    project.start_hqdl(&[&["materialize", "specs/x.toml", "--json"], flags].concat())
}

#[test]
#[cfg_attr(not(postgres), ignore = "PostgreSQL is not installed")]
fn concurrent_publishers_are_serialized() {
    let endpoint = truthful_endpoint();
    let (project, url) = project(&endpoint);
    for round in 0..3 {
        sql_at(&url, &format!("INSERT INTO hero (name, full_name) VALUES ('New {round}', 'Nina')"));
        // Each process has its own facts, so only the server serializes them.
        let all: Vec<RunningCommand> = ["one", "two", "three"]
            .iter()
            .map(|cache| start(&project, &["--cache", cache]))
            .collect();
        all.into_iter().for_each(|running| drop(running.wait_for_exit().expect_exit_code(0)));
        let right = (HERO_COUNT + round + 1).to_string();
        assert_eq!(one(&url, "SELECT count(motto) FROM expanded.llm"), right);
        assert_eq!(one(&url, "SELECT count(*) FROM expanded.hqdl_record"), right);
        assert_eq!(one(&url, "SELECT rows FROM expanded.hqdl_object WHERE name = 'llm'"), right);
    }
}

/// The next run migrates hqdl's tables of an earlier version. It requests nothing, and keeps a
/// user's views of the published tables.
#[test]
#[cfg_attr(not(postgres), ignore = "PostgreSQL is not installed")]
fn earlier_own_tables_on_a_server_are_migrated() {
    let endpoint = truthful_endpoint();
    let (project, url) = project(&endpoint);
    project.run_materialize(&[]).expect_exit_code(0);
    let own = "SELECT string_agg(relname, ' ' ORDER BY relname) FROM pg_class
               WHERE relnamespace = 'expanded'::regnamespace AND relkind IN ('r', 'v')
                 AND relname LIKE 'hqdl\\_%'";
    let current = "hqdl_cell hqdl_completion hqdl_edit hqdl_evidence hqdl_object hqdl_record";
    assert_eq!(one(&url, own), current);
    let cells = rows(&url, "hqdl_cell", "");
    let earlier = r#"SET search_path = expanded;
        CREATE VIEW mine AS SELECT * FROM llm;
        CREATE TABLE hqdl_migration (version integer PRIMARY KEY, made_schema boolean);
        INSERT INTO hqdl_migration VALUES (0, true), (1, NULL), (2, NULL);
        CREATE TABLE hqdl_expansion AS SELECT name, spec, key, columns, layout AS digest, rows,
          published_at, inputs AS standing, shape FROM hqdl_object WHERE spec IS NOT NULL;
        CREATE TABLE hqdl_bucket AS SELECT o.name AS expansion, c.key::integer AS bucket,
          c.value::bigint AS sum FROM hqdl_object AS o, json_each_text(o.checksums::json) AS c;
        DELETE FROM hqdl_object WHERE type IN ('version', 'schema');
        DROP VIEW hqdl_evidence;
        DROP VIEW hqdl_cell;
        ALTER TABLE hqdl_object DROP COLUMN spec, DROP COLUMN key, DROP COLUMN columns,
          DROP COLUMN layout, DROP COLUMN shape, DROP COLUMN rows, DROP COLUMN published_at,
          DROP COLUMN inputs, DROP COLUMN checksums;
        ALTER TABLE hqdl_completion DROP COLUMN assumed_cache_writes;
        ALTER TABLE hqdl_completion DROP COLUMN evidence;
        CREATE VIEW hqdl_cell AS SELECT NULL::text AS expansion, NULL::text AS "table",
          NULL::text AS key, NULL::text AS "column", NULL::text AS state, NULL::text AS value,
          NULL::text AS raw, NULL::text AS repair, NULL::text AS model, NULL::bigint AS run,
          NULL::bigint AS completion, NULL::text AS asked_at, NULL::text AS prompt_hash,
          NULL::float8 AS input_tokens, NULL::float8 AS output_tokens, NULL::float8 AS cost_usd,
          NULL::text AS error, NULL::text AS parameters;"#;
    sql_at(&url, earlier);
    let name = one(&url, "SELECT name FROM expanded.llm LIMIT 1");
    let why = ["why", "llm", &name, "motto", "--db", &url, "--json"];
    project.run_hqdl(&why).expect_exit_code(0);
    let args = ["materialize", "specs/x.toml", "--json", "--limit", "0", "--db", &url];
    let ended = project.run_hqdl(&args).expect_exit_code(0);
    assert_eq!(ended.done_event()["requests"], 0);
    assert_eq!(one(&url, own), current);
    assert_eq!(rows(&url, "hqdl_cell", ""), cells);
    assert_eq!(one(&url, "SELECT count(*) FROM expanded.mine"), HERO_COUNT.to_string());
    let again = project.run_hqdl(&args).expect_exit_code(0);
    assert_eq!(again.done_event()["published"], false);
    sql_at(&url, "DROP VIEW expanded.mine");
    project.run_hqdl(&["clean", "specs/x.toml", "--db", &url]).expect_exit_code(0);
    assert_eq!(one(&url, "SELECT count(*) FROM pg_namespace WHERE nspname = 'expanded'"), "0");
}

/// A run that is killed while it publishes leaves the previous tables unchanged; the next run
/// publishes the answers without requesting anything.
#[test]
#[cfg_attr(not(postgres), ignore = "PostgreSQL is not installed")]
fn a_killed_publisher_leaves_the_previous_tables() {
    let endpoint = truthful_endpoint();
    let (project, url) = project(&endpoint);
    project.run_materialize(&[]).expect_exit_code(0);
    let all = "SELECT string_agg(l::text, ';' ORDER BY l::text) FROM expanded.llm AS l";
    let before = one(&url, all);
    for table in ["hqdl_record", "hqdl_completion", "hqdl_object", "llm_power"] {
        sql_at(&url, &format!("UPDATE hero SET full_name = '{table}' WHERE name = 'Zed'"));
        let lock = format!("BEGIN; LOCK TABLE expanded.{table} IN SHARE ROW EXCLUSIVE MODE");
        let holder = HeldLock::acquire_by(&url, &lock);
        let running = start(&project, &[]);
        wait_until("it waits for the lock", || {
            one(&url, "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation IS NOT NULL")
                == "1"
        });
        running.send_signal("KILL");
        running.wait_for_exit();
        assert_eq!(one(&url, all), before, "{table}");
        drop(holder);
    }
    let asked = endpoint.request_count();
    project.run_materialize(&[]).expect_exit_code(0);
    assert_eq!(endpoint.request_count(), asked);
    let after = one(&url, all);
    assert!(after.contains("llm_power") && !after.contains("Zedsson"), "{after}");
}

/// If the server does not notice that a publisher's connection has ended, its transaction must end
/// by itself. Otherwise its lock would exclude all publishers.
#[test]
#[cfg_attr(not(postgres), ignore = "PostgreSQL is not installed")]
fn a_publishing_transaction_limits_its_idle_time() {
    let endpoint = truthful_endpoint();
    let (project, url) = project(&endpoint);
    project.run_materialize(&[]).expect_exit_code(0);
    let check = "CREATE FUNCTION is_limited() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
          IF current_setting('idle_in_transaction_session_timeout') = '0' THEN RAISE 'unlimited'; END IF;
          RETURN new;
        END $$;
        CREATE TRIGGER is_limited BEFORE INSERT OR UPDATE ON expanded.llm
          FOR EACH ROW EXECUTE FUNCTION is_limited();
        UPDATE hero SET full_name = 'Nina' WHERE name = 'Zed'";
    sql_at(&url, check);
    project.run_materialize(&[]).expect_exit_code(0);
    assert_eq!(one(&url, "SELECT full_name FROM expanded.llm WHERE name = 'Zed'"), "Nina");
}

/// A source is dropped while its cells are requested, and a server is killed and restarted: the
/// answers are kept.
#[test]
#[cfg_attr(not(postgres), ignore = "PostgreSQL is not installed")]
fn a_source_or_server_that_disappears_costs_nothing() {
    let endpoint = truthful_endpoint();
    endpoint.add_fault(Fault::Latency(Duration::from_millis(300)), Frequency::Always);
    let (project, url) = project(&endpoint);
    let running = start(&project, &[]);
    endpoint.wait_for(1);
    sql_at(&url, "ALTER TABLE hero RENAME TO heros");
    let ended = running.wait_for_exit();
    assert!(ended.code != 0 && ended.stderr.contains("\"hero\" does not exist"), "{ended:?}");
    sql_at(&url, "ALTER TABLE heros RENAME TO hero");
    let asked = endpoint.request_count();
    project.run_materialize(&[]).expect_exit_code(0);
    assert_eq!(
        (endpoint.request_count(), one(&url, "SELECT count(motto) FROM expanded.llm")),
        (asked, "10".into())
    );
    // A separate server that is stopped and restarted.
    let server = Server::start_server();
    let own = server.create_database();
    sql_at(&own, &heroes());
    project.write_spec(&over(&own, &heroes_spec().replace("\"test-model\"", "\"other-model\"")));
    let before = endpoint.request_count();
    let running = start(&project, &[]);
    endpoint.wait_for(before + 1);
    server.crash();
    server.restart();
    running.wait_for_exit().expect_exit_code(0);
    assert_eq!(one(&own, "SELECT count(motto) FROM expanded.llm"), "10");
}

/// The generated spec is the same for the same data, in a file and on a server.
#[test]
#[cfg_attr(not(postgres), ignore = "PostgreSQL is not installed")]
fn a_first_spec_is_the_same_from_a_server_and_a_file() {
    let endpoint = truthful_endpoint();
    let shop = "CREATE TABLE artist (id INTEGER PRIMARY KEY, name TEXT NOT NULL);
        CREATE TABLE album (id INTEGER PRIMARY KEY, title TEXT NOT NULL, year INTEGER,
          artist_id INTEGER REFERENCES artist (id), price NUMERIC, sold BOOLEAN);
        CREATE TABLE empty (x TEXT);";
    let demo = std::fs::read_to_string("examples/superhero/superhero.sql").unwrap();
    let demo = demo.replace("VACUUM;", "");
    let artists = (1..40).map(|n| format!("INSERT INTO artist VALUES ({n}, 'Artist {}');", n * 7));
    let albums = (1..40).map(|n| {
        let (title, year, artist) = (n % 5, 1960 + n, 1 + n % 9);
        format!("INSERT INTO album VALUES ({n}, 'Album of {title}', {year}, {artist}, 9.90, true);")
    });
    let rows: String = artists.chain(albums).collect();
    for sql in [demo, format!("{shop}{rows}")] {
        let project = Project::new(&endpoint, &sql, "");
        let url = postgres::create_database();
        sql_at(&url, &sql);
        let text = |of: &str| {
            let args = ["init", of, "--json"];
            let made = project.run_hqdl(&args).expect_exit_code(0).lines[0]["spec"]
                .as_str()
                .unwrap()
                .to_owned();
            let (head, rest) = made.split_once("[database]").unwrap();
            let (_, rest) = rest.split_once("[model]").unwrap();
            format!("{head}{rest}")
        };
        assert_eq!(text(&url), text("data.sqlite"));
        project.run_hqdl(&["init", &url, "-s", "specs/first.toml"]).expect_exit_code(0);
        project.run_hqdl(&["check", "specs/first.toml"]).expect_exit_code(0);
        let plan = project.run_hqdl(&["plan", "specs/first.toml", "--json"]).expect_exit_code(0);
        assert!(plan.lines[0]["totals"]["cells"].as_u64().unwrap() > 0);
    }
}

/// The daemon notices new rows on a server, and shows what is published there.
#[test]
#[cfg_attr(not(postgres), ignore = "PostgreSQL is not installed")]
fn a_daemon_fills_new_rows_on_a_server() {
    let endpoint = truthful_endpoint();
    let (project, url) = project(&endpoint);
    let daemon = Daemon::start(&project, &["--poll", "1"]);
    let motto = |name: &str| {
        let stands = "SELECT count(*) FROM pg_class WHERE relname = 'llm'";
        one(&url, stands) == "1"
            && one(&url, &format!("SELECT count(motto) FROM expanded.llm WHERE name = '{name}'"))
                == "1"
    };
    wait_until("it publishes", || motto("Zed"));
    sql_at(&url, "INSERT INTO hero (name, full_name) VALUES ('New', 'Nina')");
    wait_until("it fills the new row", || motto("New"));
    let why = daemon.get("/v1/why?table=llm&key=New&key=Nina&column=motto").expect_status(200);
    assert!(why.body.contains("The motto of New"), "{}", why.body);
    let page = daemon.get("/specs/x/tables/llm").expect_status(200);
    assert!(page.body.contains("The motto of New"), "{}", page.body);
    // The query of a view has its rows, in the server's SQL.
    for view in [
        "sort=-born",
        "f=eye_color%7Cis%7CGreen&sort=born",
        "f=powers%7Cis%7CSpeed&q=E",
        "f=powers%7Cnot%7CSpeed&f=born%7Cmin%7C1920",
        "f=born%7Cis%7Cx",
        "f=full_name%7Cnull%7C",
        "state=ok&f=motto%7Cstate%7Cok",
        "state=error",
    ] {
        let page = daemon.get(&format!("/specs/x/tables/llm?{view}")).expect_status(200).body;
        let link = find_link(&page, "Query and chart");
        let form = format!("{}&do=explain", link.trim_start_matches("/query?"));
        daemon.submit_form("/query", &form).expect_status(200);
        let sql = percent_decode(link.split_once("&sql=").unwrap().1);
        let exported = format!("/specs/x/tables/llm/export?{view}&format=json");
        let shown = daemon.get(&exported).expect_status(200).json();
        let asked = daemon.post("/v1/query", &json!({ "sql": sql })).expect_status(200);
        let names = |rows: Vec<String>| rows.into_iter().collect::<std::collections::BTreeSet<_>>();
        let shown = shown.as_array().unwrap().iter().map(|row| row["name"].to_string());
        let asked = asked.json_lines().into_iter().filter_map(|row| Some(row.get(0)?.to_string()));
        assert_eq!(names(asked.collect()), names(shown.collect()), "{view}: {sql}");
    }
    let query =
        daemon.post("/v1/query", &json!({ "sql": "SELECT count(*) FROM llm" })).expect_status(200);
    assert!(query.body.contains("[11]"), "{}", query.body);
    // Tables that a user drops are published again.
    sql_at(
        &url,
        "ALTER TABLE hero RENAME TO heros; ALTER TABLE heros RENAME TO hero; DELETE FROM hero WHERE name = 'Zed'",
    );
    wait_until("the row goes", || {
        one(&url, "SELECT count(*) FROM expanded.llm WHERE name = 'Zed'") == "0"
    });
    drop(daemon);
    std::fs::write(project.path("truth.csv"), "name,full_name,born\nNew,Nina,1\n").unwrap();
    let scored = project
        .run_hqdl(&["score", "specs/x.toml", "--truth", "truth.csv", "--json"])
        .expect_exit_code(0);
    assert!(scored.stdout.contains("\"born\""), "{}", scored.stdout);
    assert!(!scored.stdout.contains("absent"), "{}", scored.stdout);
}

/// The daemon's list of tables names those of the server: the filled ones have a page, and the others
/// lead to a query.
#[test]
#[cfg_attr(not(postgres), ignore = "PostgreSQL is not installed")]
fn the_page_lists_the_tables_of_a_server() {
    let endpoint = truthful_endpoint();
    let (project, url) = project(&endpoint);
    sql_at(&url, "CREATE VIEW tall AS SELECT name FROM hero WHERE height > 175");
    let daemon = Daemon::start(&project, &[]);
    daemon.wait_until_idle("complete");
    let list = daemon.get("/specs/x/tables").expect_status(200).body;
    let find_row = |table: &str| {
        let row = list.split("<tr>").find(|row| row.contains(&format!(">{table}</a>")));
        row.unwrap_or_else(|| panic!("no {table}: {list}"))
    };
    for (table, content, link) in [
        ("llm", "filled by the model", "/specs/x/tables/llm"),
        ("llm_power", "items of a list", "/specs/x/tables/llm_power"),
        ("hero", ">table<", "/query?spec=x&amp;sql=SELECT%20%2A%20FROM%20"),
        ("tall", ">view<", "/query?spec=x&amp;sql=SELECT%20%2A%20FROM%20"),
    ] {
        let row = find_row(table);
        assert!(row.contains(content) && row.contains(link), "{table}: {row}");
        assert!(row.contains("not counted"), "{table}: {row}");
    }
    let filled = daemon.get("/specs/x/tables/llm").expect_status(200).body;
    assert!(filled.contains("10 rows, ") && filled.contains("Zed Zedsson"), "{filled}");
    for path in ["/specs/x/tables/hero", "/specs/x/tables/hero/row?row=%5B1%5D"] {
        let other = daemon.get(path).expect_status(400).body;
        assert!(other.contains("on a server") && other.contains("query"), "{other}");
    }
    // The lineage links only to pages that exist.
    let lineage = daemon.get("/specs/x/lineage").expect_status(200).body;
    assert!(lineage.contains("/specs/x/tables/llm\"") && !lineage.contains("/tables/hero\""));
}

/// Returns the rows of a query.
fn asked(project: &Project, sql: &str, flags: &[&str]) -> (Vec<Vec<Json>>, Json) {
    let args = [&["query", "--spec", "specs/x.toml", "--json", sql], flags].concat();
    let ended = project.run_hqdl(&args).expect_exit_code(0);
    let json: Json = serde_json::from_str(&ended.stdout).unwrap();
    let list = |json: &Json| json.as_array().cloned().unwrap();
    (list(&json["rows"]).iter().map(list).collect(), json["meta"].clone())
}

/// Queries with calls return the same rows on a server as in a file, without requests.
#[test]
#[cfg_attr(not(postgres), ignore = "PostgreSQL is not installed")]
fn queries_on_a_server_are_joins_with_the_same_rows_as_in_a_file() {
    let endpoint = truthful_endpoint();
    let bound = "{ ask = \"Does the hero have {value} eyes?\", sql = \"eye_color = {value}\" }";
    let text = heroes_spec()
        .replace("colour?\"]", &format!("colour?\", {bound}]"))
        .replace("year of birth\"", "year of birth\"\nquestions = [\"When was the hero born?\"]");
    let project = Project::new(&endpoint, HEROES, &text);
    let url = postgres::create_database();
    sql_at(&url, &heroes());
    project.run_materialize(&[]).expect_exit_code(0);
    project.run_materialize(&["--db", &url]).expect_exit_code(0);
    let count = endpoint.request_count();
    let eyes = "{{LLMMap('What is the eye colour?', hero.name, hero.full_name)}}";
    let of = |alias: &str| eyes.replace("hero.", &format!("{alias}."));
    let born = "{{LLMMap('When was the hero born?', hero.name, hero.full_name)}}";
    for sql in [
        format!("SELECT name, full_name, {eyes} AS eye FROM hero ORDER BY id"),
        format!("SELECT id, {eyes} FROM hero WHERE {eyes} = 'Blue' ORDER BY id"),
        format!("SELECT DISTINCT {eyes} AS eye FROM hero ORDER BY eye"),
        format!("SELECT {eyes} AS eye, count(*), max({born}) FROM hero GROUP BY eye ORDER BY eye"),
        format!("SELECT h.* FROM hero AS h WHERE {} <> 'Blue' ORDER BY h.id", of("h")),
        format!("SELECT a.id, b.id FROM hero AS a, hero AS b WHERE {} = {} AND a.id < b.id ORDER BY 1, 2", of("a"), of("b")),
        format!("SELECT a.id FROM hero AS a JOIN hero AS b ON a.id = b.id AND {} = 'Green' ORDER BY 1", of("b")),
        format!("SELECT a.id, {} AS eye FROM hero AS a LEFT JOIN hero AS b ON b.id = a.id + 5 ORDER BY 1", of("b")),
        format!("SELECT id FROM hero WHERE id IN (SELECT g.id FROM hero AS g WHERE {} = 'Brown') ORDER BY id", of("g")),
        format!("WITH old AS (SELECT id FROM hero WHERE {born} < 1950) SELECT count(*) FROM old"),
        format!("SELECT id, CASE WHEN {born} > 1950 THEN 'young' ELSE 'old' END AS age FROM hero ORDER BY {born}, id"),
        "SELECT id FROM hero WHERE {{LLMMap('Does the hero have Green eyes?', hero.name, hero.full_name)}} ORDER BY id".to_owned(),
        format!("SELECT id FROM hero UNION ALL SELECT id FROM hero WHERE {eyes} = 'Blue' ORDER BY 1"),
    ] {
        let (file, _) = asked(&project, &sql, &[]);
        let (there, meta) = asked(&project, &sql, &["--db", &url]);
        assert_eq!(there, file, "{sql}\n{}", meta["sql"]);
        let explained = project.run_hqdl(&["explain", "--spec", "specs/x.toml", "--db", &url, &sql]);
        assert_eq!(explained.code, 0, "{}", explained.stderr);
    }
    // The SQL around calls is in the server's dialect, too.
    for (condition, rows) in [
        (format!("{eyes} ILIKE 'blue'"), format!("{eyes} = 'Blue'")),
        (format!("{eyes} NOT ILIKE 'BLU%'"), format!("{eyes} NOT LIKE 'Blu%'")),
        (format!("{eyes} ~ '^Bl.e$'"), format!("{eyes} = 'Blue'")),
        (format!("{eyes} ~* '^b' AND {eyes} !~ 'n$'"), format!("{eyes} = 'Blue'")),
        (format!("'x' || {eyes} !~* '^xB' = false"), format!("{eyes} LIKE 'B%'")),
        (format!("{eyes} ~~ 'Bl%' OR {eyes} !~~* 'b%'"), format!("{eyes} <> 'Brown'")),
        (format!("{eyes} SIMILAR TO '(Blue|Green)'"), format!("{eyes} IN ('Blue', 'Green')")),
        (
            format!("DATE '2020-03-01' - interval '1 day' = '2020-02-29' AND {eyes} = 'Blue'"),
            format!("{eyes} = 'Blue'"),
        ),
        (
            format!("make_date({born}::int, 1, 1) < DATE '1950-01-01' - interval '0' day"),
            format!("{born} < 1950"),
        ),
        (format!("{eyes} = ANY (ARRAY['Blue', 'Green'])"), format!("{eyes} IN ('Blue', 'Green')")),
        (
            format!("id = ANY (SELECT g.id FROM hero AS g WHERE {} = 'Blue')", of("g")),
            format!("{eyes} = 'Blue'"),
        ),
        (format!("position('lu' IN {eyes}) = 2"), format!("{eyes} = 'Blue'")),
        (format!("substring({eyes} FROM 2 FOR 2) = 'lu'"), format!("{eyes} = 'Blue'")),
        (format!("trim(LEADING 'B' FROM {eyes}) = 'lue'"), format!("{eyes} = 'Blue'")),
        (format!("overlay({eyes} PLACING 'x' FROM 1) = 'xlue'"), format!("{eyes} = 'Blue'")),
        (
            format!("extract(year FROM make_date({born}::int, 1, 1)) < 1950"),
            format!("{born} < 1950"),
        ),
        (
            format!(
                "extract(hour FROM timestamp '2020-01-01 12:00' AT TIME ZONE 'UTC') >= 0 AND {eyes} = 'Blue'"
            ),
            format!("{eyes} = 'Blue'"),
        ),
        (
            format!("ARRAY[{}]::text[] @> ARRAY['x'] OR {eyes} = 'Blue'", "'y'"),
            format!("{eyes} = 'Blue'"),
        ),
        (format!("(ARRAY['Blue', 'Green'])[1] = {eyes}"), format!("{eyes} = 'Blue'")),
        (format!("2 ^ 3 = 8 AND {eyes} = 'Blue'"), format!("{eyes} = 'Blue'")),
        (
            format!("{born} BETWEEN SYMMETRIC 1950 AND 1900"),
            format!("{born} BETWEEN 1900 AND 1950"),
        ),
        (
            format!("({eyes} = 'Blue') IS NOT UNKNOWN AND ({eyes} = 'Blue') IS TRUE"),
            format!("{eyes} = 'Blue'"),
        ),
        (
            format!("id::text = '1' AND {eyes} IS NOT NULL"),
            format!("id = 1 AND {eyes} IS NOT NULL"),
        ),
    ] {
        let query = |condition| format!("SELECT id FROM hero WHERE {condition} ORDER BY id");
        let (there, meta) = asked(&project, &query(&condition), &["--db", &url]);
        let (file, _) = asked(&project, &query(&rows), &[]);
        assert_eq!(there, file, "{condition}\n{}", meta["sql"]);
    }
    for (sql, in_file) in [
        (
            format!(
                "SELECT id FROM hero WHERE {eyes} = 'Blue' ORDER BY id OFFSET 1 ROW FETCH FIRST 2 ROWS ONLY"
            ),
            format!("SELECT id FROM hero WHERE {eyes} = 'Blue' ORDER BY id LIMIT 2 OFFSET 1"),
        ),
        (
            format!("SELECT percentile_disc(0) WITHIN GROUP (ORDER BY {born}) FROM hero LIMIT ALL"),
            format!("SELECT min({born}) FROM hero"),
        ),
        (
            format!(
                "SELECT h.id, x.n FROM hero h, LATERAL (SELECT h.id + 1 AS n) x WHERE {} = 'Blue' ORDER BY 1",
                of("h")
            ),
            format!("SELECT id, id + 1 FROM hero WHERE {eyes} = 'Blue' ORDER BY 1"),
        ),
    ] {
        let (there, meta) = asked(&project, &sql, &["--db", &url]);
        assert_eq!(there, asked(&project, &in_file, &[]).0, "{sql}\n{}", meta["sql"]);
    }
    // Without calls, the query is the server's own SQL.
    let own = "SELECT name::varchar(3), now() > '2020-01-01', 1.50 FROM hero WHERE name ILIKE 'zed' -- its own;";
    assert_eq!(asked(&project, own, &["--db", &url]).0, [[json!("Zed"), json!(1), json!(1.5)]]);
    assert_eq!(endpoint.request_count(), count);
}

/// Calls that would need requests are errors, and so is everything else that a server does not
/// support.
#[test]
#[cfg_attr(not(postgres), ignore = "PostgreSQL is not installed")]
fn unsupported_queries_on_a_server_are_reported() {
    let endpoint = truthful_endpoint();
    let (project, url) = project(&endpoint);
    let eyes =
        "SELECT id, {{LLMMap('What is the eye colour?', hero.name, hero.full_name)}} FROM hero";
    let refused = |sql: &str, said: &[&str], flags: &[&str]| {
        let args = [&["query", "--spec", "specs/x.toml", sql], flags].concat();
        fails(&project, &args, said);
    };
    refused(eyes, &["published table is missing", "hqdl materialize specs/x.toml"], &[]);
    project.run_materialize(&[]).expect_exit_code(0);
    let count = endpoint.request_count();
    asked(&project, eyes, &[]);
    // New rows do not prevent reading the others: they are NULL, and the result is reported as
    // incomplete.
    sql_at(&url, "INSERT INTO hero (name, full_name) VALUES ('New', 'Nina'), ('Newer', NULL)");
    let args = ["query", "--spec", "specs/x.toml", "--json", eyes];
    let ended = project.run_hqdl(&args).expect_exit_code(1);
    let note = "2 rows of `llm` are not all answered yet, and NULL in the result";
    assert!(ended.stderr.contains(note), "{}", ended.stderr);
    assert!(ended.stderr.contains("hqdl materialize specs/x.toml"), "{}", ended.stderr);
    let json: Json = serde_json::from_str(&ended.stdout).unwrap();
    let rows = json["rows"].as_array().unwrap();
    let nulls: Vec<&Json> = rows.iter().filter(|row| row[1].is_null()).collect();
    assert_eq!((rows.len(), nulls.len(), &json["meta"]["values_missing"]), (12, 2, &json!(2)));
    sql_at(&url, "DELETE FROM hero WHERE name LIKE 'New%'");
    asked(&project, eyes, &[]);
    refused(
        "SELECT {{LLMMap('Is it raining?', hero.name)}} FROM hero",
        &["does not ask the model live", "hqdl materialize"],
        &[],
    );
    refused("SELECT {{LLMQA('Who is it?')}}", &["does not ask the model live"], &[]);
    // Two heroes share a name, so a question about the name alone is a different one.
    refused(
        "SELECT {{LLMMap('What is the eye colour?', h.n)}} FROM (SELECT name AS n FROM hero) AS h",
        &["hqdl"],
        &[],
    );
    refused("SELECT nix FROM hero", &["\"nix\" does not exist", "PostgreSQL's SQL"], &[]);
    refused("SELECT nam FROM hero", &["did you mean `name`?"], &[]);
    refused("DELETE FROM hero", &["read-only"], &[]);
    refused("SELECT 1; DROP TABLE hero", &["more than one statement"], &[]);
    refused(
        "SELECT name FROM hero WHERE name = :n",
        &["cannot have parameters"],
        &["--param", "n=Zed"],
    );
    refused("SELECT pg_sleep(60)", &["exceeded its time limit"], &["--timeout", "1"]);
    assert_eq!(
        (endpoint.request_count(), one(&url, "SELECT count(*) FROM hero").as_str()),
        (count, "10")
    );
}
