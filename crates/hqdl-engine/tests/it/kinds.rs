//! Kinds of values: which columns share answers, and how a prompt names the column.

use hqdl_engine::query::{Meta, QueryResult, RefreshScope, ValueQuestion, map_values, run};
use hqdl_engine::session::{Cache, Session, SpecOverrides};
use hqdl_spec::{Provider, Type, UncheckedSpec};
use hqdl_testkit::endpoint::Endpoint;
use hqdl_testkit::oracle;
use hqdl_values::value::Value;

/// Test fixture: a database, its spec and a model.
struct Place {
    dir: tempfile::TempDir,
    endpoint: Endpoint,
    session: Session,
}

const TABLES: &str = "
    CREATE TABLE president (name TEXT);
    CREATE TABLE state (name TEXT);
    CREATE TABLE city (name TEXT PRIMARY KEY, state TEXT);
    CREATE TABLE orders (city TEXT REFERENCES city, ship_to TEXT REFERENCES city (name));
    CREATE TABLE visit (place TEXT);
    CREATE VIEW leader AS SELECT name AS who FROM president;
    INSERT INTO president VALUES ('Washington'), ('Lincoln');
    INSERT INTO state VALUES ('Washington'), ('Ohio');
    INSERT INTO city VALUES ('Oslo', 'x'), ('Lincoln', 'y');
    INSERT INTO orders VALUES ('Oslo', 'Lincoln');
    INSERT INTO visit VALUES ('Oslo');";

impl Place {
    fn new(spec: &str) -> Self {
        let (dir, endpoint) = (tempfile::tempdir().unwrap(), oracle::start_endpoint());
        let path = dir.path().join("data.sqlite");
        rusqlite::Connection::open(&path).unwrap().execute_batch(TABLES).unwrap();
        let overrides = SpecOverrides {
            provider: Some(Provider::Openai),
            model: Some("m".to_owned()),
            base_url: Some(endpoint.base_url()),
            ..SpecOverrides::default()
        };
        let draft = if spec.is_empty() {
            UncheckedSpec::without_file(path)
        } else {
            let text = format!(
                "[database]\npath = \"data.sqlite\"\n[model]\nprovider = \"openai\"\nname = \"m\"\n\
                 base_url = \"http://127.0.0.1:1\"\n{spec}"
            );
            UncheckedSpec::parse(&dir.path().join("spec.toml"), text).unwrap().allow_no_expansions()
        };
        let session = Session::open(draft, &overrides, Cache::Temporary).unwrap();
        Self { dir, endpoint, session }
    }

    /// Asks a question about the values of a FROM clause. Returns the number of values asked about.
    fn ask(&self, value: &str, from: &str) -> u64 {
        self.query(value, from, None).values_asked
    }

    fn query(&self, value: &str, from: &str, again: Option<RefreshScope>) -> Meta {
        let sql = format!("SELECT {{{{LLMMap('fn:upper', {value})}}}} FROM {from}");
        let path = self.dir.path().join("data.sqlite");
        let mut request = self.session.new_query(&path, &sql).unwrap();
        request.model = Some(self.session.connect_model().unwrap());
        request.refresh = again;
        run(&request, &mut QueryResult::default()).unwrap()
    }

    fn map(&self, value_kind: Option<&str>, value: &str) -> u64 {
        let question = ValueQuestion {
            text: "fn:upper",
            data_type: Type::Text,
            is_list: false,
            options: None,
            value_kind,
        };
        let path = self.dir.path().join("data.sqlite");
        let mut request = self.session.new_query(&path, question.text).unwrap();
        request.model = Some(self.session.connect_model().unwrap());
        map_values(&request, &question, &[Value::from(value)]).unwrap().meta.values_asked
    }

    /// Returns the user message of the last request.
    fn last_user_message(&self) -> String {
        let requests = self.endpoint.received_requests();
        let body = &requests.last().unwrap().body;
        body["messages"][1]["content"].as_str().unwrap().to_owned()
    }
}

#[test]
fn a_value_of_two_columns_is_two_entities() {
    let place = Place::new("");
    assert_eq!(place.ask("p.name", "president AS p WHERE p.name = 'Washington'"), 1);
    assert_eq!(
        place.last_user_message(),
        "Column: president.name\nvalue: \"Washington\"\n\nQuestion: fn:upper"
    );
    assert_eq!(place.ask("state.name", "state WHERE state.name = 'Washington'"), 1);
    assert_eq!(place.ask("p.name", "president AS p WHERE p.name = 'Washington'"), 0);
    // A column keeps its kind through views, subqueries and aliases.
    assert_eq!(place.ask("l.who", "leader AS l WHERE l.who = 'Washington'"), 0);
    let inner = "(SELECT name AS n FROM president WHERE name = 'Washington') AS s";
    assert_eq!(place.ask("s.n", inner), 0);
    // One query asks about both columns.
    let both = Place::new("");
    let from = "president AS p JOIN state AS s USING (name)";
    assert_eq!(both.ask("p.name", from), 1);
    assert_eq!(both.ask("s.name", from), 1);
}

#[test]
fn a_foreign_key_has_the_kind_of_the_column_that_it_references() {
    let place = Place::new("");
    assert_eq!(place.ask("city.name", "city"), 2);
    assert_eq!(place.ask("orders.city", "orders"), 0);
    assert_eq!(place.ask("orders.ship_to", "orders"), 0);
    assert_eq!(place.ask("visit.place", "visit"), 1);
}

#[test]
fn a_spec_joins_columns_to_a_kind_and_describes_them() {
    let place = Place::new(
        "[[kind]]\ncolumns = [\"city.name\", \"visit.place\"]\n\
         [[expansion]]\nname = \"person\"\nabout = \"Heads of state.\"\nkey = [\"name\"]\n\
         source = \"president\"\n[[expansion.column]]\nname = \"born\"\nabout = \"year of birth\"\n",
    );
    assert_eq!(place.ask("city.name", "city"), 2);
    assert_eq!(place.ask("visit.place", "visit"), 0);
    place.ask("president.name", "president LIMIT 1");
    assert!(place.last_user_message().starts_with("Column: president.name (Heads of state)\n"));
}

#[test]
fn sources_of_an_expansion_share_a_kind() {
    let spec = "[[expansion]]\nname = \"place\"\nkey = [\"name\"]\n\
                source = [{ table = \"president\" }, { table = \"state\" }]\n\
                [[expansion.column]]\nname = \"big\"\n";
    let place = Place::new(spec);
    assert_eq!(place.ask("president.name", "president"), 2);
    assert_eq!(place.ask("state.name", "state"), 1);
}

#[test]
fn kind_of_missing_columns_is_a_problem() {
    let text = "[database]\npath = \"data.sqlite\"\n[model]\nprovider = \"openai\"\nname = \"m\"\n\
                [[kind]]\ncolumns = [\"city.nam\", \"citty.name\", \"city\"]\n[[kind]]\ncolumns = []\n";
    let place = Place::new("");
    let draft = UncheckedSpec::parse(&place.dir.path().join("spec.toml"), text.to_owned()).unwrap();
    let opened =
        Session::open(draft.allow_no_expansions(), &SpecOverrides::default(), Cache::Temporary);
    let Err(error) = opened else { panic!("opened") };
    let error = format!("{error:?}");
    for part in ["no column `nam`", "no table `citty`", "`city` names no column", "two columns"] {
        assert!(error.contains(part), "{part}: {error}");
    }
}

#[test]
fn facts_without_a_kind_answer_until_they_are_refreshed() {
    let place = Place::new("");
    assert_eq!(place.map(None, "Washington"), 1);
    let from = "president AS p WHERE p.name = 'Washington'";
    assert_eq!(place.ask("p.name", from), 0);
    assert_eq!(place.ask("s.name", "state AS s WHERE s.name = 'Washington'"), 0);
    let again = RefreshScope { up_to: 1_000_000, failed_only: false };
    assert_eq!(place.query("p.name", from, Some(again)).values_asked, 1);
}

#[test]
fn map_request_names_the_kind_of_its_values() {
    let place = Place::new("");
    assert_eq!(place.ask("p.name", "president AS p WHERE p.name = 'Washington'"), 1);
    assert_eq!(place.map(Some("President.name"), "Washington"), 0);
    assert_eq!(place.map(Some("state.name"), "Washington"), 1);
    assert_eq!(place.map(None, "Washington"), 1);
}

#[test]
fn a_computed_value_shows_its_expression_and_has_no_kind() {
    let place = Place::new("");
    assert_eq!(place.ask("lower(p.name)", "president AS p WHERE p.name = 'Washington'"), 1);
    assert!(
        place.last_user_message().starts_with("Column: lower(p.name)\nvalue: \"washington\"\n")
    );
    assert_eq!(place.ask("lower(s.name)", "state AS s WHERE s.name = 'Washington'"), 0);
    assert_eq!(place.ask("'x'", "state LIMIT 1"), 1);
    assert!(place.last_user_message().starts_with("value: \"x\"\n"));
}
