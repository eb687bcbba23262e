//! The review page shows the rows of the entity whose cell a person judges, and reads no others.

use std::time::Duration;

use hqdl::query::connection::guard::GuardedConnection;
use hqdl::session::{Cache, Session, SpecOverrides};
use hqdl::spec::UncheckedSpec;
use hqdl::value::Value;
use serde_json::{Value as Json, json};

use hqdl_testkit::daemon::Daemon;
use hqdl_testkit::endpoint::Endpoint;
use hqdl_testkit::postgres::{self, sql_at};
use hqdl_testkit::project::Project;

const SPEC: &str = r#"
[database]
path = "../data.sqlite"
[model]
name = "test-model"
base_url = "{base_url}"
api_key_env = "HQDL_TEST_KEY"
price = { input = 1.0, output = 2.0 }
[[expansion]]
name = "filled"
source = "SOURCE"
key = ["name", "year"]
[[expansion.column]]
name = "mood"
"#;

/// A project with a daemon that has filled `filled`, and an audit of all its rows.
struct Reviewed {
    project: Project,
    daemon: Daemon,
    _endpoint: Endpoint,
}

impl Reviewed {
    fn start(tables: &str, spec: &str) -> Self {
        let endpoint = Endpoint::start_with(|_, _| json!("calm"));
        let project = Project::new(&endpoint, tables, spec);
        let daemon = Daemon::start(&project, &[]);
        daemon.wait_until_idle("complete");
        let draw = ["audit", "specs/x.toml", "--sample", "50", "--seed", "1"];
        project.run_hqdl(&draw).expect_exit_code(0);
        Self { project, daemon, _endpoint: endpoint }
    }

    /// Returns the page of the sampled row with this number.
    fn page(&self, row: usize) -> String {
        let path = format!("/specs/x/review?table=filled&at={row}");
        self.daemon.get(&path).expect_status(200).body
    }

    /// Returns the page of the first sampled row whose key is displayed like this.
    fn find_page(&self, key: &[&str]) -> String {
        let is_shown = |page: &String| {
            let (_, page) = page.split_once("<section class=\"card\">").unwrap();
            let (shown, _) = page.split_once("</dl>").unwrap();
            let parts: Vec<&str> = shown
                .split("<strong>")
                .skip(1)
                .map(|part| part.split_once('<').unwrap().0)
                .collect();
            parts == key
        };
        (0..20).map(|row| self.page(row)).find(is_shown).unwrap_or_else(|| panic!("{key:?}"))
    }
}

const MOODS: &str = "
CREATE TABLE mood_of (name COLLATE NOCASE, year, story TEXT, picture BLOB);
CREATE INDEX by_name ON mood_of (name, year);
INSERT INTO mood_of VALUES
  ('Paris', NULL, 'story of no year', x'010203'),
  ('paris', NULL, 'story of another case', NULL),
  ('7', '1999', 'number as text', NULL), (7, 1999, 'number as number', NULL),
  ('Rome', 2000, '<script>alert(1)</script>', NULL),
  ('Many', 1, 'first', NULL), ('Many', 1, 'second', NULL), ('Many', 1, 'third', NULL),
  ('Many', 1, 'fourth', NULL), ('Gone', 1, 'soon gone', NULL);
CREATE VIEW moods AS SELECT name, year, story, picture FROM mood_of;";

#[test]
fn a_person_sees_the_row_of_the_cell() {
    for source in ["mood_of", "moods", "SELECT * FROM mood_of -- all"] {
        let reviewed = Reviewed::start(MOODS, &SPEC.replace("SOURCE", source));
        let page = reviewed.find_page(&["Paris", "NULL"]);
        assert!(page.contains("story of no year") && page.contains("BLOB (3 B)"), "{page}");
        assert!(!page.contains("story of another case"), "{page}");
        // A key column is shown as the key, not again.
        assert!(!page.contains("<dt>year</dt><dd>NULL"), "{page}");
        let page = reviewed.find_page(&["7", "1999"]);
        for story in ["number as text", "number as number"] {
            assert!(page.contains(story), "{source}: {page}");
        }
        let page = reviewed.find_page(&["Rome", "2000"]);
        assert!(page.contains("&lt;script&gt;alert(1)"), "{page}");
        let page = reviewed.find_page(&["Many", "1"]);
        assert!(page.contains("Row 3 of 4") && page.contains("first 3 of 4 rows"), "{page}");
        assert!(page.contains("third") && !page.contains("fourth"), "{page}");
        reviewed.project.execute_sql("DELETE FROM mood_of WHERE name = 'Gone'");
        let page = reviewed.find_page(&["Gone", "1"]);
        assert!(page.contains("No source has a row with this key any more."), "{page}");
        reviewed.project.execute_sql("DROP VIEW moods; DROP TABLE mood_of;");
        let page = reviewed.page(0);
        assert!(page.contains("The row could not be read"), "{page}");
    }
}

#[test]
#[cfg_attr(not(postgres), ignore = "PostgreSQL is not installed")]
fn a_person_sees_the_row_on_a_server() {
    let url = postgres::create_database();
    sql_at(
        &url,
        "CREATE TABLE mood_of (name text, year numeric(10, 2), story text, picture bytea, at timestamptz);
         INSERT INTO mood_of VALUES ('Paris', NULL, 'story of no year', '\\x010203', now()),
           ('paris', NULL, 'story of another case', NULL, NULL), ('it''s \\', 1.50, 'odd', NULL, NULL),
           ('Many', 1, 'first', NULL, NULL), ('Many', 1, 'second', NULL, NULL)",
    );
    let spec = SPEC
        .replace("path = \"../data.sqlite\"", &format!("url = \"{url}\""))
        .replace("SOURCE", "mood_of");
    let reviewed = Reviewed::start("", &spec);
    let page = reviewed.find_page(&["Paris", "NULL"]);
    assert!(page.contains("story of no year") && page.contains("BLOB (3 B)"), "{page}");
    assert!(!page.contains("story of another case"), "{page}");
    let page = reviewed.find_page(&["it's \\", "1.5"]);
    assert!(page.contains("<dd>odd</dd>"), "{page}");
    let page = reviewed.find_page(&["Many", "1"]);
    assert!(page.contains("Row 2 of 2") && page.contains("second"), "{page}");
    sql_at(&url, "DELETE FROM mood_of WHERE name = 'Many'");
    let page = reviewed.find_page(&["Many", "1"]);
    assert!(page.contains("No source has a row with this key any more."), "{page}");
}

const CONTEXT_SPEC: &str = r#"
[database]
path = "../data.sqlite"
[model]
name = "test-model"
base_url = "{base_url}"
api_key_env = "HQDL_TEST_KEY"
price = { input = 1.0, output = 2.0 }
[[expansion]]
name = "filled"
source = "review"
key = ["id"]
context = ["body"]
[[expansion.column]]
name = "mood"
"#;

/// The facts about a row depend on its context, which is that of all rows with its key.
#[test]
fn facts_are_found_by_the_context_of_their_row_alone() {
    for (id, keys) in [("id INTEGER PRIMARY KEY", "1"), ("id TEXT", "' 1'")] {
        let tables = format!(
            "CREATE TABLE review ({id}, body TEXT, stars INTEGER);
             INSERT INTO review VALUES ({keys}, 'good soup', 5), (2, 'bad bread', 1), (3, NULL, 2);"
        );
        let reviewed = Reviewed::start(&tables, CONTEXT_SPEC);
        let facts = |key: Json| {
            let asked = json!({ "spec": "x", "keys": [[key], [4]] });
            reviewed.daemon.post("/v1/facts", &asked).expect_status(200).json()
        };
        for key in [json!(1), json!("1"), json!(" 1")] {
            let found = facts(key);
            assert_eq!(found["facts"][0]["cells"]["mood"]["value"], "calm", "{found:#}");
            assert_eq!(found["facts"][1]["cells"]["mood"]["state"], "missing", "{found:#}");
        }
        let page = (0..3).map(|n| reviewed.page(n)).find(|page| page.contains("good soup"));
        let page = page.unwrap();
        assert!(page.contains("shown to the model") && page.contains("<dt>stars</dt>"), "{page}");
        // Another text is another fact.
        reviewed.project.execute_sql("UPDATE review SET body = 'cold soup' WHERE trim(id) = '1'");
        let found = facts(json!(1));
        let state = &found["facts"][0]["cells"]["mood"]["state"];
        assert!(state == "missing" || found["facts"][0]["cells"]["mood"]["value"] == "calm");
    }
}

/// A source that never ends is cut off by the time limit.
#[test]
fn a_slow_source_is_interrupted() {
    let reviewed = Reviewed::start(
        "CREATE TABLE mood_of (name TEXT, year INTEGER, story TEXT);
         INSERT INTO mood_of VALUES ('Paris', 1, 'story');",
        &SPEC.replace("SOURCE", "mood_of"),
    );
    let spec = UncheckedSpec::read(&reviewed.project.path("specs/x.toml")).unwrap();
    let session = Session::open(spec, &SpecOverrides::default(), Cache::Temporary).unwrap();
    let path = reviewed.project.path("endless.sqlite");
    let endless = "CREATE TABLE stored (name, year, story);
        CREATE VIEW mood_of AS WITH RECURSIVE n(value) AS (SELECT 1 UNION ALL SELECT value + 1 FROM n)
          SELECT value AS name, 1 AS year, '' AS story FROM n";
    rusqlite::Connection::open(&path).unwrap().execute_batch(endless).unwrap();
    let limit = Duration::from_millis(20);
    let (_keep, interrupt) = tokio::sync::watch::channel(false);
    let guard = GuardedConnection::open_for_sql(&path, Some(limit), interrupt).unwrap();
    let key = vec![Value::Text("Paris".to_owned()), Value::Integer(1)];
    let expansion = &session.spec.expansions[0];
    let found = guard.database().find_entity_rows(expansion, &[key], 3, limit);
    assert!(found.is_err() && guard.abort_error().is_some(), "{found:?}");
}

/// Undoing restores the truth before, with its source. The form contains nothing but the digest.
#[test]
fn undoing_a_review_restores_the_truth_before() {
    let reviewed = Reviewed::start(MOODS, &SPEC.replace("SOURCE", "mood_of"));
    let daemon = &reviewed.daemon;
    let path = |who: &str| format!("/specs/x/review?table=filled&who={who}");
    let sheet = || std::fs::read_to_string(reviewed.project.path("specs/x.audit.csv")).unwrap();
    let say = |who: &str, value: &str| {
        let said =
            daemon.submit_form(&path(who), &format!("at=0&value={value}")).expect_status(303);
        let (_, undo) = said.headers.split_once("&undo=").unwrap();
        undo.lines().next().unwrap().trim().to_owned()
    };
    daemon.submit_form(&path("Ann"), "at=0&value=").expect_status(400);
    say("Ann", "sad");
    let ben = say("Ben", "sad");
    assert!(
        sheet().contains(",sad,person Ben,") && sheet().contains("; person Ann said sad on 20")
    );
    let page = daemon.get(&format!("{}&done=0&undo={ben}", path("Ben"))).expect_status(200).body;
    assert!(page.contains("Undo the last answer") && !page.contains("name=\"before\""), "{page}");
    let last = say("Ann", "%22%22");
    assert!(sheet().contains(",\"\"\"\"\"\",person Ann,"), "{}", sheet());
    daemon.submit_form(&path("Ben"), &format!("at=0&undo={ben}")).expect_status(400);
    daemon.submit_form(&path("Ann"), &format!("at=0&undo={last}")).expect_status(303);
    assert!(sheet().contains(",sad,person Ben,"), "{}", sheet());
    daemon.submit_form(&path("Ben"), &format!("at=0&undo={ben}")).expect_status(400);
    let none = say("Ben", "none");
    assert!(sheet().contains(",none,person Ben,"), "{}", sheet());
    assert!(
        daemon
            .get(&format!("{}&at=0", path("Ben")))
            .body
            .contains("Reviewed already: <strong>none")
    );
    daemon.submit_form(&path("Ben"), &format!("at=0&undo={none}")).expect_status(303);
    assert_eq!(sheet().matches("undone by person").count(), 2, "{}", sheet());
}

/// Cells outside the list have no confidence, so the page of uncertain cells does not show them.
#[test]
fn cells_outside_the_list_are_not_uncertain() {
    let spec =
        SPEC.replace("SOURCE", "mood_of").replace("\"mood\"", "\"mood\"\nvalues = [\"glad\"]");
    let endpoint = Endpoint::start_with(|_, _| json!("calm"));
    let project = Project::new(&endpoint, MOODS, &spec);
    let daemon = Daemon::start(&project, &[]);
    daemon.wait_until_idle("incomplete");
    let states = project.query_rows("SELECT DISTINCT state FROM hqdl_cell");
    assert_eq!(states, [[json!("not_in_list")]]);
    let page = daemon.get("/specs/x/doubts?table=filled").expect_status(200).body;
    assert!(page.contains("No uncertain cells are left") && !page.contains("Confidence"), "{page}");
}
