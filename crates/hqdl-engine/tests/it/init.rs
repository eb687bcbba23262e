//! `hqdl init` generates a first spec from a database, and the spec passes its check.

use std::path::Path;

use hqdl_database::Database;
use hqdl_engine::init::{GeneratedSpec, generate_spec};
use hqdl_spec::{Spec, UncheckedSpec};
use hqdl_testkit::repository_root;
use rusqlite::Connection;

/// Creates the database of a test from a batch of SQL.
fn create_database(test: &str, sql: &str) -> Database {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("init-{test}.sqlite"));
    let _ = std::fs::remove_file(&path);
    Connection::open(&path).unwrap().execute_batch(sql).unwrap();
    Database::open(&path).unwrap()
}

fn parse_spec(toml: &str, db: &Database) -> Spec {
    let draft = UncheckedSpec::parse(Path::new("first.toml"), toml.to_owned())
        .unwrap_or_else(|p| panic!("{}\n{toml}", p.render(false)));
    match draft.check(db) {
        Ok((spec, problems)) => {
            assert!(problems.problems.is_empty(), "{}", problems.render(false));
            spec
        }
        Err(problems) => panic!("{}\n{toml}", problems.render(false)),
    }
}

/// Returns the generated spec and its parsed form. Fails if the spec does not pass its check.
fn generate_valid_spec(db: &Database) -> (GeneratedSpec, Spec) {
    let made = generate_spec(db, "data/the \"db\".sqlite").unwrap();
    let spec = parse_spec(&made.toml, db);
    assert!(spec.database.ends_with("data/the \"db\".sqlite"));
    (made, spec)
}

/// Returns the spec generated for a database without entities: it has no expansion.
fn generate_example_only(db: &Database) -> GeneratedSpec {
    let made = generate_spec(db, "a.sqlite").unwrap();
    let draft = UncheckedSpec::parse(Path::new("first.toml"), made.toml.clone()).unwrap();
    assert!(draft.file.expansion.is_empty(), "{}", made.toml);
    let problems = draft.check(db).unwrap_err().problems;
    assert_eq!(problems.len(), 1);
    assert_eq!(problems[0].message, "the spec has no expansion");
    assert!(made.toml.contains("# [[expansion]]"), "{}", made.toml);
    assert!(made.notes.iter().any(|n| n.contains("does not pass")));
    made
}

/// Returns the generated spec with its commented example enabled.
fn enable_example(made: &GeneratedSpec) -> String {
    let at = made.toml.find("# [[expansion]]").unwrap();
    let (head, example) = made.toml.split_at(at);
    let lines = example.lines().map(|l| l.strip_prefix("# ").unwrap_or_default());
    format!("{head}{}", lines.collect::<Vec<_>>().join("\n"))
}

fn source_names(spec: &Spec) -> Vec<&str> {
    spec.expansions.iter().map(|e| e.sources[0].name.as_deref().unwrap_or("?")).collect()
}

fn key_names(spec: &Spec, expansion: usize) -> Vec<&str> {
    spec.expansions[expansion].key.names().iter().map(String::as_str).collect()
}

fn column_names(spec: &Spec, expansion: usize) -> Vec<&str> {
    spec.expansions[expansion].columns.iter().map(|c| c.name.as_str()).collect()
}

#[test]
fn demo_spec_has_key_and_value_lists() {
    let db =
        Database::open(&repository_root().join("examples/superhero/superhero.sqlite")).unwrap();
    let (made, spec) = generate_valid_spec(&db);
    assert_eq!(spec.expansions.len(), 1);
    assert_eq!(spec.expansions[0].name, "llm_superhero");
    assert_eq!(key_names(&spec, 0), ["superhero_name", "full_name"]);
    assert_eq!(
        column_names(&spec, 0),
        ["alignment", "colour", "gender", "publisher_name", "race", "power_name"]
    );
    for column in &spec.expansions[0].columns {
        assert!(column.values.is_some(), "{} has no list", column.name);
        assert_eq!(column.bindings.len(), 1, "{} has no question", column.name);
    }
    assert!(made.toml.contains(r#"values = { sql = 'SELECT "publisher_name" FROM "publisher"' }"#));
    assert!(made.toml.contains(r#"# context = ["height_cm", "weight_kg"]"#), "{}", made.toml);
    assert_eq!(spec.limits.budget_usd, Some(1.0));
    // The price comes from the book, also after the user has changed the model's name.
    assert!(!made.toml.lines().any(|line| line.starts_with("price")), "{}", made.toml);
    let large = parse_spec(&made.toml.replace("\"gpt-4o-mini\"", "\"gpt-4o\""), &db);
    assert_eq!(large.model.price.map(|price| price.output), Some(10.0));
}

/// An id whose values are all different is the table's own, whatever its name. Customers with a
/// company and without a person's data are companies.
#[test]
fn a_first_column_with_distinct_ids_is_no_reference() {
    let rows: Vec<String> =
        (0..300).map(|n| format!("({n}, 'Company {}', {})", n % 25, n * 10)).collect();
    let rows = rows.join(", ");
    for table in ["accounts", "customers"] {
        let db = create_database(
            &format!("ids-{table}"),
            &format!(
                "CREATE TABLE {table} (customer_id INTEGER, company TEXT, revenue INTEGER);
                 INSERT INTO {table} VALUES {rows};"
            ),
        );
        let (_, spec) = generate_valid_spec(&db);
        assert_eq!(source_names(&spec), [table]);
        assert_eq!(key_names(&spec, 0), ["company"]);
    }
    // Two references, or repeated ids, belong to a table that links others.
    let db = create_database(
        "ids-links",
        &format!(
            "CREATE TABLE entry (customer_id INTEGER, company TEXT, revenue INTEGER);
             INSERT INTO entry VALUES {rows}, (7, 'Company 7', 1);"
        ),
    );
    generate_example_only(&db);
    let db = create_database(
        "customers-persons",
        "CREATE TABLE customers (id INTEGER, company TEXT, email TEXT);
         INSERT INTO customers VALUES (1, 'Acme', 'a@example.org'), (2, 'Initech', 'b@example.org');",
    );
    generate_example_only(&db);
}

/// Columns that identify a row only together are a key together, even if one of them happens to be
/// unique.
#[test]
fn a_unique_index_and_a_persons_name_are_whole_keys() {
    let authors =
        "INSERT INTO author VALUES ('Mary', 'Shelley', 'Gothic'), ('Jane', 'Austen', 'Romance'),
                   ('Ann', 'Radcliffe', 'Gothic');";
    for (n, (columns, index)) in [
        ("first TEXT, last TEXT, genre TEXT", ""),
        ("first TEXT, last TEXT, genre TEXT, UNIQUE (first, last)", ""),
        ("first TEXT, last TEXT, genre TEXT", "CREATE UNIQUE INDEX one ON author (last, first);"),
        ("first_name TEXT, last_name TEXT, genre TEXT", ""),
    ]
    .into_iter()
    .enumerate()
    {
        let db = create_database(
            &format!("whole-{n}"),
            &format!("CREATE TABLE author ({columns}); {index} {authors}"),
        );
        let (_, spec) = generate_valid_spec(&db);
        let key: Vec<String> =
            key_names(&spec, 0).iter().map(|name| name.replace("_name", "")).collect();
        assert_eq!(key, ["first", "last"], "{columns} {index}");
    }
    let db = create_database(
        "whole-films",
        "CREATE TABLE film (title TEXT, year INTEGER, UNIQUE (title, year));
         INSERT INTO film VALUES ('Alien', 1979), ('Aliens', 1986), ('Heat', 1995);",
    );
    let (_, spec) = generate_valid_spec(&db);
    assert_eq!(key_names(&spec, 0), ["title", "year"]);
}

#[test]
fn commented_proposals_are_valid_when_enabled() {
    let db =
        Database::open(&repository_root().join("examples/superhero/superhero.sqlite")).unwrap();
    let (made, _) = generate_valid_spec(&db);
    let edited = made.toml.replace("# context", "context").replace("# many", "many");
    assert_ne!(edited, made.toml);
    let spec = parse_spec(&edited, &db);
    assert_eq!(spec.expansions[0].context, ["height_cm", "weight_kg"]);
    let many = spec.expansions[0].columns.iter().find_map(|c| c.many.as_ref()).unwrap();
    assert_eq!(
        (many.table.as_str(), many.column.as_str()),
        ("llm_superhero_power_name", "power_name")
    );
}

#[test]
fn lists_that_an_entity_references_are_not_offered() {
    let db = create_database(
        "referred",
        "CREATE TABLE publisher (id INTEGER PRIMARY KEY, publisher_name TEXT);
         CREATE TABLE colour (id INTEGER PRIMARY KEY, colour TEXT);
         CREATE TABLE race (id INTEGER PRIMARY KEY, race TEXT);
         CREATE TABLE power (id INTEGER PRIMARY KEY, power_name TEXT);
         CREATE TABLE countries (id INTEGER PRIMARY KEY, name TEXT);
         CREATE TABLE hero (id INTEGER PRIMARY KEY, name TEXT, height REAL, race TEXT,
                            maker INTEGER REFERENCES publisher, eye_colour_id INTEGER);
         CREATE TABLE hero_power (hero_id REFERENCES hero, power_id REFERENCES power, level INTEGER);
         INSERT INTO publisher VALUES (1, 'Marvel'), (2, 'DC');
         INSERT INTO colour VALUES (1, 'red'), (2, 'blue');
         INSERT INTO race VALUES (1, 'Human'), (2, 'Alien');
         INSERT INTO power VALUES (1, 'Flight'), (2, 'Speed');
         INSERT INTO countries VALUES (1, 'Peru'), (2, 'Chad');
         INSERT INTO hero VALUES (1, 'Batman', 1.8, 'Human', 2, 1), (2, 'Hulk', 2.4, 'Human', 1, 2);
         INSERT INTO hero_power VALUES (1, 1, 3), (2, 2, 4);",
    );
    let (made, spec) = generate_valid_spec(&db);
    assert_eq!(source_names(&spec), ["hero"]);
    assert_eq!(column_names(&spec, 0), ["country"], "{}", made.toml);
    assert!(made.toml.contains(r#"# context = ["height"]"#), "{}", made.toml);
}

#[test]
fn names_with_special_characters_are_quoted() {
    let db = create_database(
        "nasty",
        r#"CREATE TABLE "select * from ""x""" ("a.b ""c"" 'd'" TEXT, "order" TEXT, "line
break" INTEGER, "" TEXT, "é" TEXT, "É" TEXT);
           INSERT INTO "select * from ""x""" VALUES ('one', 'two', 1, 'x', 'un', 'UN'), ('three', 'two', 2, 'y', 'un', 'DEUX');
           CREATE TABLE "it's a
list # no" (id INTEGER PRIMARY KEY, "sou'rce ""q"" {value}" TEXT);
           INSERT INTO "it's a
list # no" VALUES (1, 'a'), (2, 'b''"""c');
           CREATE TABLE "values" (n INTEGER, "DESCRIPTION" TEXT, "名前" TEXT, email TEXT);
           INSERT INTO "values" VALUES (1, 'x', '山', 'a@b.c'), (2, 'x', '川', 'd@e.f');
           CREATE TABLE "\u0041\" ("\t model" TEXT, x REAL);
           INSERT INTO "\u0041\" VALUES ('tab', 1.5), ('tab', 2.5);
           CREATE TABLE "Ünï.cödé" ("naïve name" TEXT, "NAME" TEXT, y);
           INSERT INTO "Ünï.cödé" VALUES ('a b', NULL, 1), (NULL, 'a b', 2), ('a b', 'a b', 3);
           CREATE INDEX "llm_values" ON "values" (n);"#,
    );
    let (made, spec) = generate_valid_spec(&db);
    assert_eq!(spec.expansions.len(), 3, "{}", made.toml);
    assert!(spec.expansions.iter().all(|e| e.columns.len() == 1));
    assert!(spec.expansions.iter().any(|e| e.name == "llm_values_2"), "{}", made.toml);
    let unicode = source_names(&spec).iter().position(|t| *t == "Ünï.cödé").unwrap();
    assert_eq!(key_names(&spec, unicode), ["naïve name", "NAME"]);
    assert!(made.toml.contains("# Other tables that could"), "{}", made.toml);
}

#[test]
fn unusual_names_work_in_every_position() {
    let names = [
        "'",
        "''",
        "'''",
        "\"",
        "\"\"\"",
        "\\",
        "\\\"",
        "#",
        "a\nb",
        "a\r\nb",
        "\t",
        "\u{1}",
        "\u{7f}",
        "\u{85}",
        "\u{feff}",
        "\u{202e}x",
        "[x]",
        "{value}",
        "`",
        "select 1",
        "with x",
        "values (1)",
        "SELECT",
        "%s",
        "a.b",
        ".",
        "-",
        "?",
        "?1",
        ":p",
        "@",
        "$x",
        ";--",
        "/*",
        "İ",
        "ß",
        "🦸",
        "name",
        "id",
        "rowid",
        "table",
        "llm_x",
        "a b",
        "publisher_name",
    ];
    for (n, odd) in names.iter().enumerate() {
        let q = |name: &str| format!("\"{}\"", name.replace('"', "\"\""));
        let (list, entity) = (q(&format!("list {odd}")), q(odd));
        let db = create_database(
            &format!("odd-{n}"),
            &format!(
                "CREATE TABLE {list} (id INTEGER PRIMARY KEY, {} TEXT);
                 INSERT INTO {list} VALUES (1, 'a'), (2, 'b');
                 CREATE TABLE {entity} (k_name TEXT, {} TEXT, {} INTEGER);
                 INSERT INTO {entity} VALUES ('x', 'y', 1), ('x', 'z', 2);",
                q(&format!("{odd} list")),
                entity,
                q(&format!("n{odd}")),
            ),
        );
        let (made, spec) = generate_valid_spec(&db);
        assert_eq!(spec.expansions.len(), 1, "{odd:?}: {}", made.toml);
        let edited = made.toml.replace("# context", "context").replace("# many", "many");
        parse_spec(&edited, &db);
    }
}

#[test]
fn existing_names_are_not_reused() {
    let db = create_database(
        "taken",
        "CREATE TABLE city (name TEXT, size INTEGER, description TEXT, summary TEXT);
         INSERT INTO city VALUES ('Rome', 3, 'x', 'x'), ('Paris', 2, 'x', 'x');
         CREATE VIEW LLM_City AS SELECT 1;
         CREATE VIEW llm_city_2 AS SELECT 1;",
    );
    let (made, spec) = generate_valid_spec(&db);
    assert_eq!(spec.expansions[0].name, "llm_city_3");
    assert_eq!(column_names(&spec, 0), ["summary_2"], "{}", made.toml);
}

#[test]
fn questions_of_expansions_with_the_same_key_do_not_clash() {
    let db = create_database(
        "clash",
        "CREATE TABLE city (name TEXT, size INTEGER); CREATE TABLE town (name TEXT, size INTEGER);
         CREATE TABLE country (country TEXT);
         INSERT INTO city VALUES ('Rome', 3), ('Paris', 2);
         INSERT INTO town VALUES ('Bath', 1), ('Ulm', 1);
         INSERT INTO country VALUES ('Italy'), ('France');",
    );
    let (made, spec) = generate_valid_spec(&db);
    assert_eq!(spec.expansions.len(), 2);
    let asked: Vec<&str> =
        spec.expansions.iter().map(|e| e.columns[0].bindings[0].ask.as_str()).collect();
    assert_ne!(asked[0], asked[1], "{}", made.toml);
}

#[test]
fn duplicate_key_is_noted() {
    let db = create_database(
        "duplicates",
        "CREATE TABLE stock (product TEXT, region TEXT, amount REAL);
         INSERT INTO stock VALUES ('tea', 'north', 1), ('tea', 'north', 2), ('tea', 'south', 3), ('rum', 'north', 4);",
    );
    let (made, spec) = generate_valid_spec(&db);
    assert_eq!(key_names(&spec, 0), ["product", "region"]);
    let remark = "4 rows with 3 different keys";
    assert!(made.toml.contains(remark), "{}", made.toml);
    assert!(made.notes.iter().any(|n| n.contains(remark)), "{:?}", made.notes);
}

#[test]
fn remarks_about_the_rows_are_not_keys() {
    let db = create_database(
        "remarks",
        "CREATE TABLE book (title TEXT, author TEXT, \"my notes\" TEXT);
         INSERT INTO book VALUES ('Dune', 'Herbert', 'lent'), ('Dune', 'Herbert', 'mine'), ('Emma', 'Austen', 'old');",
    );
    let (_, spec) = generate_valid_spec(&db);
    assert!(!key_names(&spec, 0).contains(&"my notes"), "{:?}", key_names(&spec, 0));
}

#[test]
fn ids_dates_links_numbers_and_long_texts_are_not_keys() {
    let db = create_database(
        "no-keys",
        "CREATE TABLE book (uuid TEXT, isbn TEXT, published TEXT, site TEXT, blurb TEXT, heading TEXT);
         WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20)
         INSERT INTO book SELECT 'u' || i, '978-' || i, '3 May ' || (1900 + i),
             'https://example.org/' || i, printf('%.100c', 'x') || i, 'The ' || char(64 + i) FROM n;",
    );
    let (_, spec) = generate_valid_spec(&db);
    assert_eq!(key_names(&spec, 0), ["heading"]);
}

#[test]
fn a_database_without_entities_gets_an_example_and_a_note() {
    let empty = create_database("empty", "");
    let made_empty = generate_example_only(&empty);
    assert!(made_empty.notes[0].contains("the database has no tables"), "{:?}", made_empty.notes);

    let tables = create_database(
        "empty-tables",
        "CREATE TABLE a (name TEXT); CREATE TABLE b (x INTEGER PRIMARY KEY) WITHOUT ROWID;",
    );
    let made_tables = generate_example_only(&tables);
    assert!(
        made_tables.notes.iter().any(|n| n == "tables left out because they are empty: `a`, `b`"),
        "{:?}",
        made_tables.notes
    );

    let facts = create_database(
        "facts",
        "CREATE TABLE f (a_id, b_id, n REAL); INSERT INTO f VALUES (1, 2, 3.0);",
    );
    generate_example_only(&facts);
}

#[test]
fn lists_alone_yield_an_example_that_is_valid_when_enabled() {
    let db = create_database(
        "lists",
        "CREATE TABLE company (id INTEGER PRIMARY KEY, name TEXT); CREATE TABLE colour (colour TEXT PRIMARY KEY) WITHOUT ROWID;
         INSERT INTO company VALUES (1, 'Acme'), (2, 'Initech'), (3, 'Hooli'); INSERT INTO colour VALUES ('red'), ('blue');",
    );
    let made = generate_example_only(&db);
    let spec = parse_spec(&enable_example(&made), &db);
    assert_eq!(source_names(&spec), ["company"]);
    assert_eq!(key_names(&spec, 0), ["name"]);
}

#[test]
fn blobs_and_text_that_is_not_utf8_are_neither_keys_nor_values() {
    let db = create_database(
        "blobs",
        "CREATE TABLE thing (raw BLOB, broken TEXT, label TEXT, n INTEGER);
         CREATE TABLE list (id INTEGER PRIMARY KEY, v TEXT);
         INSERT INTO list VALUES (1, 'a'), (2, 'b'), (3, 'c'), (4, 'd'), (5, 'e'), (6, CAST(x'fffe' AS TEXT));
         INSERT INTO thing VALUES (x'00', CAST(x'ff61' AS TEXT), 'one', 1), (x'01', CAST(x'ff62' AS TEXT), 'two', 2);",
    );
    let (made, spec) = generate_valid_spec(&db);
    assert_eq!(source_names(&spec), ["list", "thing"], "{}", made.toml);
    assert_eq!(key_names(&spec, 1), ["label"]);
    assert!(spec.expansions.iter().all(|e| e.columns[0].values.is_none()));
}

#[test]
fn tables_without_rowid_generated_columns_and_full_text_are_read() {
    let db = create_database(
        "kinds",
        "CREATE TABLE language (code TEXT PRIMARY KEY, title TEXT, speakers REAL) WITHOUT ROWID;
         INSERT INTO language VALUES ('fr', 'French', 3e8), ('de', 'German', 1e8);
         CREATE TABLE person (first TEXT, last TEXT, whole TEXT AS (first || ' ' || last)) STRICT;
         INSERT INTO person VALUES ('Ada', 'King'), ('Ada', 'Lovelace'), ('Grace', 'King');
         CREATE VIRTUAL TABLE page USING fts5(title, body);
         INSERT INTO page VALUES ('Moon', 'rock'), ('Sun', 'gas');",
    );
    let (made, spec) = generate_valid_spec(&db);
    assert_eq!(source_names(&spec), ["language", "page", "person"], "{}", made.toml);
    assert_eq!(key_names(&spec, 0), ["title"]);
    assert_eq!(key_names(&spec, 2), ["first", "last"]);
    assert!(!made.toml.contains("page_content"));
}

#[test]
fn views_are_used_without_tables() {
    let sql = "CREATE VIEW film AS SELECT 'Alien' AS title, 1979 AS year UNION SELECT 'Heat', 1995;
               CREATE VIEW broken AS SELECT * FROM gone;";
    let (made_views, spec) = generate_valid_spec(&create_database("views", sql));
    assert_eq!(source_names(&spec), ["film"]);
    assert!(
        made_views.notes.iter().any(|n| n.starts_with("`broken` is left out")),
        "{:?}",
        made_views.notes
    );

    let with_table =
        create_database("views-and-table", &format!("{sql} CREATE TABLE t (n INTEGER);"));
    generate_example_only(&with_table);
}

#[test]
fn tables_created_by_hqdl_are_not_sources() {
    let db = create_database(
        "own",
        "CREATE TABLE hqdl_object (name TEXT PRIMARY KEY COLLATE NOCASE, type TEXT NOT NULL, expansion TEXT) WITHOUT ROWID;
         INSERT INTO hqdl_object VALUES ('llm_city', 'table', 'llm_city');
         CREATE TABLE city (name TEXT, size INTEGER); INSERT INTO city VALUES ('Rome', 3), ('Paris', 2);
         CREATE TABLE llm_city (name TEXT, mayor TEXT); INSERT INTO llm_city VALUES ('Rome', 'x');",
    );
    let (_, spec) = generate_valid_spec(&db);
    assert_eq!(source_names(&spec), ["city"]);
    assert_eq!(spec.expansions[0].name, "llm_city_2");
}

#[test]
fn a_large_table_is_sampled_to_its_end() {
    let db = create_database(
        "large",
        "CREATE TABLE star (name TEXT, mass REAL);
         WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100500)
         INSERT INTO star SELECT 'Star ' || min(i, 100400), i FROM n;",
    );
    let (made, spec) = generate_valid_spec(&db);
    assert_eq!(key_names(&spec, 0), ["name"]);
    assert!(
        made.notes[0].contains("a sample of 50,250 rows with 50,201 different keys"),
        "{:?}",
        made.notes
    );
}

#[test]
fn a_damaged_database_is_an_error() {
    let db = create_database(
        "damaged",
        "CREATE TABLE city (name TEXT); INSERT INTO city VALUES ('Rome'), ('Paris');",
    );
    let path = db.path().to_owned();
    drop(db);
    let mut bytes = std::fs::read(&path).unwrap();
    // The second page belongs to the table.
    bytes[4096..4200].fill(0x7f);
    std::fs::write(&path, bytes).unwrap();
    let db = Database::open(&path).unwrap();
    assert!(generate_spec(&db, "x").is_err());
}

#[test]
fn blank_row_of_a_lookup_table_is_not_listed() {
    let db = create_database(
        "blank",
        "CREATE TABLE publisher (id INTEGER PRIMARY KEY, publisher_name TEXT);
         INSERT INTO publisher VALUES (1, ''), (2, 'DC'), (3, 'Marvel');
         CREATE TABLE race (id INTEGER PRIMARY KEY, race TEXT);
         INSERT INTO race VALUES (1, NULL), (2, 'Human'), (3, 'Alien');
         CREATE TABLE hero (name TEXT, height REAL);
         INSERT INTO hero VALUES ('Batman', 1.8), ('Hulk', 2.4);",
    );
    let (_, spec) = generate_valid_spec(&db);
    assert_eq!(column_names(&spec, 0), ["publisher_name", "race"]);
    let values = |n: usize| spec.expansions[0].columns[n].values.as_ref().unwrap().values.clone();
    assert_eq!(values(0), ["DC", "Marvel"]);
    assert_eq!(values(1), ["Human", "Alien"]);
}

#[test]
fn name_column_is_in_the_key_despite_another_unique_column() {
    let db = create_database(
        "chance",
        "CREATE TABLE painter (name TEXT, country TEXT, age INTEGER);
         INSERT INTO painter VALUES ('Ann', 'Peru', 3), ('Ann', 'Chad', 4), ('Bob', 'Oman', 5);",
    );
    let (_, spec) = generate_valid_spec(&db);
    assert_eq!(key_names(&spec, 0), ["name", "country"]);
}

#[test]
fn sentences_are_not_a_value_list() {
    let db = create_database(
        "sentences",
        "CREATE TABLE film (title TEXT, year INTEGER); INSERT INTO film VALUES ('Heat', 1995), ('Alien', 1979);
         CREATE TABLE essay (essay TEXT);
         INSERT INTO essay VALUES ('A long night that one does not forget soon'), ('Dull from the first to the last minute, sadly');",
    );
    let (made, spec) = generate_valid_spec(&db);
    assert_eq!(source_names(&spec), ["film", "essay"]);
    assert_eq!(column_names(&spec, 0), ["description"], "{}", made.toml);
}

#[test]
fn many_tables_columns_and_lists_yield_a_short_spec() {
    let mut sql = String::new();
    for n in 0..60 {
        sql += &format!("CREATE TABLE list{n}x (id INTEGER PRIMARY KEY, term{n}x TEXT);");
        sql += &format!("INSERT INTO list{n}x VALUES (1, 'a'), (2, 'b');");
        let many: Vec<String> = (0..700).map(|c| format!("c{c} TEXT")).collect();
        sql += &format!("CREATE TABLE thing{n}x (name TEXT, size REAL, {});", many.join(", "));
        sql += &format!("INSERT INTO thing{n}x (name, size) VALUES ('p', 1), ('q', 2);");
    }
    let (made, spec) = generate_valid_spec(&create_database("many", &sql));
    assert_eq!(spec.expansions.len(), 3);
    assert!(spec.expansions.iter().all(|e| e.columns.len() == 1));
    assert!(made.toml.contains("49 more"), "{}", made.toml);
    assert!(made.notes.iter().all(|n| n.len() < 300), "{:?}", made.notes);
}

#[test]
fn key_is_tested_on_rows_of_the_whole_table() {
    // The rows are sorted by country, so the names of the first 2,000 rows are all different.
    let db = create_database(
        "sorted",
        "CREATE TABLE city (id INTEGER PRIMARY KEY, name TEXT, country TEXT);
         WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 8999)
         INSERT INTO city SELECT i, 'Town ' || char(97 + i % 26, 97 + i / 26 % 26, 97 + i / 676 % 5),
                                 'Land ' || char(65 + i / 3000) FROM n;",
    );
    let (_, spec) = generate_valid_spec(&db);
    assert_eq!(key_names(&spec, 0), ["name", "country"]);
}

#[test]
fn list_is_offered_only_for_matching_names_or_a_single_table() {
    // As in a database of races, results have a status but circuits have none.
    let db = create_database(
        "attached",
        "CREATE TABLE circuits (id INTEGER PRIMARY KEY, name TEXT, altitude REAL);
         CREATE TABLE drivers (id INTEGER PRIMARY KEY, name TEXT, height REAL);
         CREATE TABLE status (id INTEGER PRIMARY KEY, status TEXT);
         CREATE TABLE colour (id INTEGER PRIMARY KEY, colour TEXT);
         CREATE TABLE driver_team (id INTEGER PRIMARY KEY, name TEXT);
         CREATE TABLE results (id INTEGER PRIMARY KEY, driver_id INTEGER REFERENCES drivers,
                               status_id INTEGER REFERENCES status, points REAL);
         INSERT INTO circuits VALUES (1, 'Monza', 1), (2, 'Spa', 2), (3, 'Suzuka', 3);
         INSERT INTO drivers VALUES (1, 'Senna', 1.7), (2, 'Prost', 1.6), (3, 'Lauda', 1.7);
         INSERT INTO status VALUES (1, 'Finished'), (2, 'Accident');
         INSERT INTO colour VALUES (1, 'red'), (2, 'blue');
         INSERT INTO driver_team VALUES (1, 'Ferrari'), (2, 'Lotus');
         INSERT INTO results VALUES (1, 1, 1, 9.0), (2, 2, 2, 0.0);",
    );
    let (made, spec) = generate_valid_spec(&db);
    let all: Vec<_> = (0..spec.expansions.len()).map(|n| column_names(&spec, n)).collect();
    let driver = source_names(&spec).iter().position(|t| *t == "drivers").unwrap();
    assert_eq!(all[driver], ["driver_team"], "{}", made.toml);
    assert!(!made.toml.contains("Finished") && !made.toml.contains("FROM \"colour\""));
    assert!(!made.toml.contains("FROM \"status\""), "{}", made.toml);
    let about = "Each row is one circuit, for example Monza, Spa or Suzuka.";
    assert!(made.toml.contains(about), "{}", made.toml);
}

#[test]
fn a_table_with_personal_data_is_left_out() {
    for (test, sql) in [
        (
            "ssn",
            "CREATE TABLE person (name TEXT, ssn TEXT); INSERT INTO person VALUES ('Ann', '1'), ('Bob', '2');",
        ),
        (
            "born",
            "CREATE TABLE actor (name TEXT, date_of_birth TEXT); INSERT INTO actor VALUES ('Ann', '1'), ('Bob', '2');",
        ),
        (
            "mail",
            "CREATE TABLE people (name TEXT, email TEXT); INSERT INTO people VALUES ('Ann', '1'), ('Bob', '2');",
        ),
    ] {
        let made = generate_example_only(&create_database(test, sql));
        assert!(made.notes.iter().any(|n| n.contains("personal data")), "{:?}", made.notes);
        assert!(!made.toml.contains("Ann"), "{}", made.toml);
    }
}

#[test]
fn the_spec_publishes_into_a_copy_and_a_note_names_it() {
    let db = create_database(
        "copy",
        "CREATE TABLE city (name TEXT, n REAL); INSERT INTO city VALUES ('Rome', 1), ('Oslo', 2);",
    );
    let made = generate_spec(&db, "../data/a.db").unwrap();
    assert!(made.toml.contains("\noutput = \"../data/a.expanded.sqlite\"\n"), "{}", made.toml);
    assert!(made.notes.iter().any(|n| n.contains("../data/a.expanded.sqlite")), "{:?}", made.notes);
}

#[test]
fn the_only_table_is_expanded_even_if_it_is_a_list_of_names() {
    let db = create_database(
        "one-list",
        "CREATE TABLE els (element TEXT); INSERT INTO els VALUES ('Hydrogen'), ('Iron'), ('Gold');",
    );
    let (made, spec) = generate_valid_spec(&db);
    assert_eq!(key_names(&spec, 0), ["element"]);
    assert!(made.notes.iter().any(|note| note.contains("the key of `els` is `element`")));
    let lists = create_database(
        "two-lists",
        "CREATE TABLE a (name TEXT); INSERT INTO a VALUES ('x'), ('y');
         CREATE TABLE b (name TEXT); INSERT INTO b VALUES ('p'), ('q'), ('r');",
    );
    let made = generate_example_only(&lists);
    assert!(made.notes[0].contains("only lists of names"), "{:?}", made.notes);
}
