//! Tests of the daemon's data page over the database's own tables and views, and of its links to the
//! query page.

use hqdl_testkit::daemon::{Daemon, find_link};
use hqdl_testkit::project::{Project, heroes_project, truthful_endpoint};
use serde_json::{Value as Json, json};

use crate::ask_page::percent_encode;

fn read_page(daemon: &Daemon, path: &str) -> String {
    daemon.get(path).expect_status(200).body
}

fn add_tables(project: &Project) {
    project.execute_sql(
        "CREATE VIEW tall AS SELECT name, height FROM hero WHERE height > 175;
         CREATE TABLE \"odd \"\"name\"\"?\" (\"a|b\" TEXT PRIMARY KEY, \"<b>\" BLOB) WITHOUT ROWID;
         INSERT INTO \"odd \"\"name\"\"?\" VALUES ('<i>', x'00ff'), ('y''z', '<script>alert(1)</script>'), ('n', NULL);
         CREATE TABLE empty (x);
         CREATE TABLE \".\" (x);
         CREATE TABLE \"..\" (x);
         CREATE VIEW endless AS
           WITH RECURSIVE i (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM i) SELECT n FROM i;
         CREATE TABLE many (id INTEGER PRIMARY KEY, word TEXT, n INTEGER);
         WITH RECURSIVE i (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM i WHERE n < 120000)
           INSERT INTO many SELECT n, 'word ' || n, n % 7 FROM i;",
    );
}

#[test]
fn every_table_of_the_database_has_a_page() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "json");
    add_tables(&project);
    let daemon = Daemon::start(&project, &[]);
    daemon.wait_until_idle("complete");
    assert!(read_page(&daemon, "/").contains("href=\"/specs/x/tables\""));
    let list = read_page(&daemon, "/specs/x/tables");
    let rows: Vec<&str> = list.split("<tr>").skip(1).collect();
    for (table, words) in [
        (">llm<", "filled by the model"),
        (">llm<", "<td class=\"n\">10<"),
        (">llm_power<", "items of a list"),
        (">hero<", "id, name, full_name, height</td><td class=\"n\">10<"),
        (">tall<", "name, height</td><td class=\"n\"><span class=\"quiet\">not counted"),
        (">many<", "more than 100,000"),
        (">empty<", "x</td><td class=\"n\">0<"),
    ] {
        let row = rows.iter().find(|row| row.contains(table));
        assert!(row.is_some_and(|row| row.contains(words)), "{table}: {list}");
    }
    assert!(!list.contains("hqdl_record") && !list.contains("sqlite_"), "{list}");
    // Browsers would remove these names from a path.
    assert!(!list.contains("/tables/.") && list.contains("FROM%20%22..%22%20LIMIT"), "{list}");
    // Every link of the list leads to a page.
    for link in list.split("<a href=\"/specs/x/tables/").skip(1) {
        let table = link.split('"').next().unwrap();
        read_page(&daemon, &format!("/specs/x/tables/{table}"));
    }
    // Sort, filter, facets and downloads are those of SQL.
    let heroes = read_page(
        &daemon,
        "/specs/x/tables/hero?f=height%7Cmin%7C176&sort=-height&facet=name&facet=height",
    );
    let truth =
        project.query_rows("SELECT name FROM hero WHERE height >= 176 ORDER BY height DESC");
    let escape = |name: &Json| name.as_str().unwrap().replace('"', "&quot;");
    let places: Vec<usize> = truth
        .iter()
        .map(|row| heroes.find(&format!(">{}</td>", escape(&row[0]))).unwrap())
        .collect();
    assert!(places.is_sorted(), "{heroes}");
    assert!(heroes.contains(&format!("{} rows", truth.len())), "{heroes}");
    assert!(heroes.contains("Distribution of height") && heroes.contains("mean"), "{heroes}");
    assert!(!heroes.contains("a cell that is") && !heroes.contains("has the state"), "{heroes}");
    let export = "/specs/x/tables/hero/export?f=height%7Cmin%7C176&sort=-height";
    let rows = daemon.get(&format!("{export}&format=json")).expect_status(200).json();
    let names: Vec<&Json> = rows.as_array().unwrap().iter().map(|row| &row["name"]).collect();
    assert_eq!(names, truth.iter().map(|row| &row[0]).collect::<Vec<_>>());
    let csv = daemon.get(&format!("{export}&format=csv")).expect_status(200).body;
    assert!(csv.starts_with("id,name,full_name,height\n10,Zed,Zed Zedsson,210\n"), "{csv}");
    let odd = read_page(&daemon, "/specs/x/tables/odd%20%22name%22%3F");
    assert!(odd.contains("X&#39;00FF&#39;") || odd.contains("X'00FF'"), "{odd}");
    assert!(odd.contains("&lt;script&gt;alert(1)") && !odd.contains("<i>"), "{odd}");
    // The links of odd names lead to their rows.
    let odd = "/specs/x/tables/odd%20%22name%22%3F";
    let facets = read_page(&daemon, &format!("{odd}?facet=a%7Cb&facet=%3Cb%3E"));
    assert!(facets.contains("f=a%5C%7Cb%7Cis%7Cn"), "{facets}");
    for (filter, key) in [
        ("a%5C%7Cb%7Cis%7Cn", ">n</a></th>"),
        ("%3Cb%3E%7Cis%7CX%2700FF%27", "&lt;i&gt;</a></th>"),
        ("%3Cb%3E%7Cnull%7C", ">n</a></th>"),
    ] {
        assert!(facets.contains(&format!("f={filter}&amp;")), "{filter}: {facets}");
        let rows = read_page(&daemon, &format!("{odd}?f={filter}"));
        assert!(rows.contains(key) && rows.contains("1 row, "), "{filter}: {rows}");
    }
    assert!(read_page(&daemon, &format!("{odd}?sort=a%7Cb")).contains("a|b ↑"));
    let tall = read_page(&daemon, "/specs/x/tables/tall?q=zed&facet=name");
    assert!(tall.contains("1 row") && tall.contains(">210</td>"), "{tall}");
    assert!(read_page(&daemon, "/specs/x/tables/empty").contains("The table has no rows."));
}

#[test]
fn pages_of_a_large_table_follow_each_other() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "json");
    add_tables(&project);
    let daemon = Daemon::start(&project, &["--no-spend"]);
    daemon.wait_until_idle("waiting");
    let order =
        |sql: &str| project.query_rows(&format!("SELECT id FROM many ORDER BY {sql} LIMIT 51"));
    for (sort, sql) in [("", "id"), ("?sort=-word", "word DESC"), ("?sort=n", "n, id")] {
        let second = &order(sql)[50][0];
        let first = read_page(&daemon, &format!("/specs/x/tables/many{sort}"));
        assert!(first.contains("more than 100,000 rows"), "{first}");
        let next = read_page(&daemon, &find_link(&first, "Next →"));
        let first_of_next = between(&next, "scope=\"row\">", "</th>");
        assert!(first_of_next.ends_with(&format!(">{second}</a>")), "{sort}: {next}");
        assert_eq!(read_page(&daemon, &find_link(&next, "← Previous")).matches("<tr>").count(), 51);
    }
    // If the row at the cursor is deleted, the first page is shown.
    let first = read_page(&daemon, "/specs/x/tables/many?sort=n");
    let next = find_link(&first, "Next →");
    project.execute_sql("DELETE FROM many WHERE n = 0 AND id BETWEEN 121 AND 350");
    let again = read_page(&daemon, &next);
    assert!(again.contains("no longer exists") && again.matches("<tr>").count() == 51, "{again}");
    // A view has no key, and is read by position.
    project.execute_sql("CREATE VIEW few AS SELECT word FROM many WHERE id <= 120");
    let mut page = read_page(&daemon, "/specs/x/tables/few");
    let mut seen = page.matches(">word ").count();
    while page.contains("rel=\"next\"") {
        page = read_page(&daemon, &find_link(&page, "Next →"));
        seen += page.matches(">word ").count();
    }
    assert_eq!(seen, 120);
    let before = read_page(&daemon, &find_link(&page, "← Previous"));
    assert!(before.contains(">word 51<") && before.contains(">word 100<"), "{before}");
}

/// Long values, slow counts and unreadable tables do not keep a page from showing its rows.
#[test]
fn costly_tables_have_pages() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "json");
    add_tables(&project);
    project.execute_sql(
        "CREATE TABLE big (id INTEGER PRIMARY KEY, words TEXT, bytes BLOB);
         WITH RECURSIVE i (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM i WHERE n < 60)
           INSERT INTO big SELECT n, 'start ' || n || hex(zeroblob(1000000)), zeroblob(2000000) FROM i;
         PRAGMA writable_schema = ON;
         INSERT INTO sqlite_schema VALUES
           ('table', 'ghost', 'ghost', 0, 'CREATE VIRTUAL TABLE ghost USING missing(x)');",
    );
    let daemon = Daemon::start(&project, &["--no-spend"]);
    daemon.wait_until_idle("waiting");
    for view in ["", "?facet=words&facet=bytes", "?sort=-words", "?f=bytes%7Cany%7C&facet=words"] {
        let page = read_page(&daemon, &format!("/specs/x/tables/big{view}"));
        assert_eq!(page.matches(">start ").count(), 50, "{view}");
        assert!(page.len() < 200_000, "{view}: {} bytes", page.len());
        assert_eq!(
            page.contains("too many distinct values"),
            view.ends_with("facet=words"),
            "{view}"
        );
    }
    let row = daemon.get("/specs/x/tables/big/export?f=id%7Cis%7C7&format=csv").expect_status(200);
    assert!(row.body.len() > 6_000_000, "{} bytes", row.body.len());
    for view in ["", "?f=n%7Cmin%7C7", "?facet=n"] {
        // The page ends, although the view does not.
        let page = read_page(&daemon, &format!("/specs/x/tables/endless{view}"));
        assert!(page.contains("rows not counted") && page.contains(">56<") == view.contains("min"));
    }
    let list = read_page(&daemon, "/specs/x/tables");
    let ghost = list.split(">ghost<").nth(1).unwrap().split("</tr>").next().unwrap();
    assert!(ghost.contains("not counted") && list.contains(">hero<"), "{list}");
}

/// The page of a table reveals nothing that a query does not.
#[test]
fn a_table_page_reads_no_more_than_a_query() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "json");
    project.execute_sql("CREATE VIEW sly AS SELECT load_extension('x') AS x");
    let token = "a-token-of-this-test-1234567890";
    let daemon = Daemon::start_with(&project, &["--no-spend"], &[("HQDL_TOKEN", token)]);
    for path in ["", "/hero", "/hero/export?format=csv"] {
        let head = format!(
            "GET /specs/x/tables{path} HTTP/1.0\r\nHost: {}\r\nAccept: text/html\r\n\r\n",
            daemon.address
        );
        daemon.send_raw(&head).expect_status(401);
    }
    drop(daemon);
    let daemon = Daemon::start(&project, &["--no-spend"]);
    daemon.wait_until_idle("waiting");
    for table in [
        "hqdl_object",
        "hqdl_record",
        "sqlite_schema",
        "nothing",
        "hero%22%20--",
        "pragma_table_list",
    ] {
        let answer = daemon.get(&format!("/specs/x/tables/{table}")).expect_status(400);
        assert!(answer.body.contains("there is no table"), "{}", answer.body);
    }
    let sly = daemon.get("/specs/x/tables/sly");
    assert_ne!(sly.status, 200, "{}", sly.body);
    // A cursor, a filter and an order of another table are ignored.
    for odd in
        ["after=[1,2]", "after=x", "before=[\"' OR 1\"]", "sort=\"", "f=a%7Cis%7Cb", "facet=zz"]
    {
        let odd =
            odd.replace('"', "%22").replace(' ', "%20").replace('[', "%5B").replace(']', "%5D");
        daemon.get(&format!("/specs/x/tables/hero?{odd}")).expect_status(200);
    }
}

#[test]
fn query_and_chart_keeps_the_view() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "json");
    let daemon = Daemon::start(&project, &[]);
    daemon.wait_until_idle("complete");
    for view in [
        "llm?f=eye_color%7Cis%7CGreen&sort=-born",
        "llm?f=powers%7Cis%7CSpeed&q=e",
        "llm?f=powers%7Cnot%7CSpeed&f=born%7Cmin%7C1920",
        "llm?f=motto%7Chas%7Czed",
        "llm?f=full_name%7Cnull%7C",
        "llm?f=powers%7Cnull%7C",
        "llm?f=powers%7Cany%7C&f=height%7Cany%7C",
        "llm?state=ok&f=motto%7Cstate%7Cok",
        "llm?state=error",
        "hero?f=height%7Cmax%7C176&q=a&sort=height",
        "hero?f=name%7Cis%7C007",
    ] {
        let page = read_page(&daemon, &format!("/specs/x/tables/{view}"));
        let link = find_link(&page, "Query and chart");
        let form = format!("{}&do=json", link.trim_start_matches("/query?"));
        let asked = daemon.submit_form("/query", &form).expect_status(200).json();
        let exported = view.replacen('?', "/export?", 1);
        let shown = daemon
            .get(&format!("/specs/x/tables/{exported}&format=json"))
            .expect_status(200)
            .json();
        let names = |rows: &Json, is_sorted: bool| {
            let rows = rows.as_array().unwrap().iter();
            let mut names: Vec<String> =
                rows.map(|row| format!("{}{}", row["name"], row["full_name"])).collect();
            if !is_sorted {
                names.sort();
            }
            names
        };
        let is_sorted = view.contains("sort=");
        assert_eq!(names(&asked, is_sorted), names(&shown, is_sorted), "{view}: {link}");
    }
    let sql = percent_encode("SELECT count(*) AS n FROM llm");
    let count = daemon.submit_form("/query", &format!("spec=x&do=json&sql={sql}"));
    assert_eq!(count.expect_status(200).json(), json!([{ "n": 10 }]));
}

/// Returns the text of a page between two texts.
fn between<'p>(page: &'p str, start: &str, end: &str) -> &'p str {
    let rest = page.split(start).nth(1).unwrap_or_else(|| panic!("no `{start}` in {page}"));
    rest.split(end).next().unwrap()
}

#[test]
fn a_row_has_a_page_with_its_whole_values_and_its_references() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "json");
    project.execute_sql(
        "CREATE TABLE author (id INTEGER PRIMARY KEY, name TEXT COLLATE NOCASE UNIQUE);
         CREATE TABLE book (title TEXT, author INTEGER REFERENCES author, writer TEXT REFERENCES author (name),
           cover BLOB, text TEXT, empty TEXT DEFAULT '');
         INSERT INTO author VALUES (1, 'Ann'), (2, 'Bob'), (3, 'ann x');
         INSERT INTO book (title, author, writer, cover, text) VALUES
           ('First', 1, 'Ann', x'89504e470d0a1a0a' || zeroblob(100), replace(hex(zeroblob(200)), '00', 'word ') || 'end'),
           ('Second', 1, NULL, zeroblob(1234), '<b>'), ('Third', 2, 'bob', x'00ff', NULL);
         UPDATE book SET cover = CAST(cover AS BLOB);
         CREATE VIEW title AS SELECT title, text FROM book;",
    );
    let daemon = Daemon::start(&project, &[]);
    daemon.wait_until_idle("complete");
    let table = read_page(&daemon, "/specs/x/tables/book");
    assert!(table.contains(">BLOB (1,234 B)<") && table.contains(">X'00FF'<"), "{table}");
    assert!(!table.contains("89504E47") && !table.contains("word end"), "{table}");
    let row = read_page(&daemon, &find_link(&table, "First"));
    assert!(row.contains("word end") && row.contains("BLOB (108 B)"), "{row}");
    let picture = between(&row, "img class=\"medium\" src=\"", "\"").replace("&amp;", "&");
    let file = daemon.get(&picture).expect_status(200);
    assert!(file.headers.contains("image/png") && !file.headers.contains("attachment"), "{file:?}");
    // A value that is no picture is only downloaded.
    let second = read_page(&daemon, &find_link(&table, "Second"));
    assert!(second.contains("&lt;b&gt;") && !second.contains("<img") && second.contains("(empty)"));
    let text = "/specs/x/tables/book/row/export?row=%5B2%5D&column=text";
    let file = daemon.get(text).expect_status(200);
    assert!(file.headers.contains("attachment") && file.headers.contains("octet-stream"));
    assert_eq!(file.body, "<b>");
    // A reference leads to its row, and back to all rows that refer to it.
    let author = read_page(&daemon, &find_link(&row, "1"));
    assert!(author.contains(">Ann<"), "{author}");
    let books = read_page(&daemon, &find_link(&author, "2 rows of book"));
    assert!(books.contains("First") && books.contains("Second") && !books.contains("Third"));
    // The text of a filter is exact, even if the column ignores case.
    let name = |value: &str| format!("/specs/x/tables/author?f=name%7Cis%7C{value}");
    assert!(read_page(&daemon, &name("Ann")).contains("1 row,"));
    assert!(read_page(&daemon, &name("ann")).contains("0 rows,"));
    assert!(read_page(&daemon, "/specs/x/tables/author?f=id%7Cis%7C2").contains(">Bob<"));
    assert!(read_page(&daemon, "/specs/x/tables/author?f=id%7Cis%7C2.0").contains("0 rows,"));
    // A row of a view is found by its position in the order of the page.
    let view = read_page(&daemon, "/specs/x/tables/title?sort=-title");
    let last = read_page(&daemon, &find_link(&view, "First"));
    assert!(last.contains("word end") && last.contains("title"), "{last}");
    for missing in ["row=%5B99%5D", "row=x", "f=title%7Cis%7Cnone"] {
        daemon.get(&format!("/specs/x/tables/book/row?{missing}")).expect_status(400);
    }
}

#[test]
fn a_view_of_a_source_links_to_the_cells_that_it_shows() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "json");
    let daemon = Daemon::start(&project, &[]);
    daemon.wait_until_idle("complete");
    let view = read_page(&daemon, "/specs/x/tables/hero_expanded?f=name%7Cis%7CZed");
    assert_eq!(view.matches("✦").count(), 3, "{view}");
    let cell = "/specs/x/cell?table=llm&amp;column=eye_color&amp;key=Zed&amp;key=Zed%20Zedsson";
    assert!(view.contains(cell), "{view}");
    let row = read_page(&daemon, &find_link(&view, "10"));
    assert!(row.contains("Origin and override"), "{row}");
    let cell = read_page(&daemon, &find_link(&row, "Origin and override"));
    assert!(cell.contains("Override") && cell.contains("test-model"), "{cell}");
    let lineage = read_page(&daemon, "/specs/x/lineage");
    assert!(
        lineage.contains("/specs/x/tables/hero\"")
            && lineage.contains("/specs/x/tables/hero_expanded\"")
    );
}

/// A view renames the columns whose names are taken. They still link to their own cells.
#[test]
fn renamed_columns_of_a_view_link_to_their_cells() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "json");
    let other = r#"
[[expansion]]
name = "other"
source = "hero"
key = ["name"]
format = "json"

[[expansion.column]]
name = "eye_color"
about = "colour of the eyes"

[[expansion.column]]
name = "height"
about = "height in words"
"#;
    project.write_spec(&format!("{}{other}", project.spec_text()));
    let daemon = Daemon::start(&project, &[]);
    daemon.wait_until_idle("complete");
    let view = read_page(&daemon, "/specs/x/tables/hero_expanded?f=name%7Cis%7CZed");
    for (cell, is_linked) in [
        ("table=llm&amp;column=eye_color&amp;key=Zed&amp;key=Zed%20Zedsson\"", true),
        ("table=other&amp;column=eye_color&amp;key=Zed\"", true),
        ("table=other&amp;column=height&amp;key=Zed\"", true),
        ("column=other_", false),
        ("table=llm&amp;column=height", false),
    ] {
        assert_eq!(view.contains(cell), is_linked, "{cell}: {view}");
    }
    // The height of the source is not a cell.
    assert!(view.contains(">210</td>") && view.matches("✦").count() == 5, "{view}");
}

/// The count of referring rows is the number of rows that its link shows, for any type of column.
#[test]
fn referring_rows_are_counted_as_their_link_shows_them() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "json");
    let daemon = Daemon::start(&project, &["--no-spend"]);
    daemon.wait_until_idle("waiting");
    project.execute_sql(
        "CREATE TABLE parent (id INTEGER PRIMARY KEY);
         CREATE TABLE untyped (p REFERENCES parent);
         CREATE TABLE fraction (p REAL REFERENCES parent);
         CREATE TABLE word (p TEXT REFERENCES parent);
         INSERT INTO parent VALUES (5), (6);
         INSERT INTO untyped VALUES (5), (5), (6);
         INSERT INTO fraction VALUES (5), (5), (5), (6);
         INSERT INTO word VALUES (5), (6);",
    );
    let row = read_page(&daemon, "/specs/x/tables/parent/row?row=%5B5%5D");
    for (rows, of) in [("2 rows", "untyped"), ("3 rows", "fraction"), ("1 row", "word")] {
        let linked = read_page(&daemon, &find_link(&row, &format!("{rows} of {of}")));
        assert!(linked.contains(&format!("{rows}, 1 column")), "{of}: {linked}");
    }
}

/// A foreign key to a broken view does not keep other pages from being shown.
#[test]
fn a_broken_reference_is_no_reference() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "json");
    let daemon = Daemon::start(&project, &["--no-spend"]);
    daemon.wait_until_idle("waiting");
    project.execute_sql(
        "PRAGMA foreign_keys = OFF;
         CREATE VIEW broken AS SELECT * FROM gone;
         CREATE TABLE broken_child (p REFERENCES broken);
         INSERT INTO broken_child VALUES (77);
         CREATE TABLE parent (id INTEGER PRIMARY KEY);
         CREATE TABLE child (p INTEGER REFERENCES parent);
         INSERT INTO parent VALUES (5);
         INSERT INTO child VALUES (5);",
    );
    assert!(read_page(&daemon, "/specs/x/tables/broken_child").contains(">77<"));
    let parent = read_page(&daemon, "/specs/x/tables/parent/row?row=%5B5%5D");
    assert!(parent.contains("1 row of child"), "{parent}");
}

/// The daemon rejects the download of a large value before it reads the value.
#[test]
fn a_large_value_is_not_downloaded() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "json");
    let daemon = Daemon::start(&project, &["--no-spend"]);
    daemon.wait_until_idle("waiting");
    project.execute_sql(
        "CREATE TABLE large (id INTEGER PRIMARY KEY, value);
         INSERT INTO large VALUES (1, zeroblob(20000000)), (2, hex(zeroblob(10000000))), (3, 'é'), (4, 12), (5, NULL);",
    );
    let path = |row: u8| format!("/specs/x/tables/large/row/export?row=%5B{row}%5D&column=value");
    for row in [1, 2] {
        let answer = daemon.get(&path(row)).expect_status(400);
        assert!(answer.body.contains("larger than 16 megabytes"), "{}", answer.body);
    }
    for (row, text) in [(3, "é"), (4, "12"), (5, "NULL")] {
        assert_eq!(daemon.get(&path(row)).expect_status(200).body, text);
    }
}
