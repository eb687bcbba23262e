//! Questions about values through the library, without a query. They share the facts of `LLMMap`.

use hqdl_engine::query::{MappedAnswers, QueryError, QueryResult, ValueQuestion, map_values, run};
use hqdl_engine::session::{Cache, Session, SpecOverrides};
use hqdl_spec::{Provider, Type, UncheckedSpec};
use hqdl_values::cell::{Answer, State};
use hqdl_values::value::Value;

use hqdl_testkit::endpoint::Endpoint;
use hqdl_testkit::oracle;

/// Test fixture: a database and a model.
struct Place {
    dir: tempfile::TempDir,
    endpoint: Endpoint,
    session: Session,
}

impl Place {
    fn new() -> Self {
        let (dir, endpoint) = (tempfile::tempdir().unwrap(), oracle::start_endpoint());
        let path = dir.path().join("data.sqlite");
        let db = rusqlite::Connection::open(&path).unwrap();
        db.execute_batch("CREATE TABLE t (c); INSERT INTO t VALUES ('ant'), ('bee'), (NULL), (7)")
            .unwrap();
        let overrides = SpecOverrides {
            provider: Some(Provider::Openai),
            model: Some("m".to_owned()),
            base_url: Some(endpoint.base_url()),
            ..SpecOverrides::default()
        };
        let session =
            Session::open(UncheckedSpec::without_file(path), &overrides, Cache::Temporary).unwrap();
        Self { dir, endpoint, session }
    }

    fn map(&self, question: &ValueQuestion<'_>, values: &[Value]) -> MappedAnswers {
        let path = self.dir.path().join("data.sqlite");
        let mut request = self.session.new_query(&path, question.text).unwrap();
        request.model = Some(self.session.connect_model().unwrap());
        map_values(&request, question, values).unwrap()
    }

    fn query(&self, sql: &str) -> QueryResult {
        let path = self.dir.path().join("data.sqlite");
        let mut request = self.session.new_query(&path, sql).unwrap();
        request.model = Some(self.session.connect_model().unwrap());
        let mut smoothie = QueryResult::default();
        smoothie.meta = run(&request, &mut smoothie).unwrap();
        smoothie
    }
}

fn new_question(text: &str, kind: Type) -> ValueQuestion<'_> {
    ValueQuestion { text, data_type: kind, is_list: false, options: None, value_kind: None }
}

fn answers_as_json(mapped: &MappedAnswers) -> Vec<Option<String>> {
    let text = |a: &Answer| a.value.to_json().to_string();
    mapped.answers.iter().map(|a| a.as_ref().map(text)).collect()
}

fn text_values(values: &[&str]) -> Vec<Value> {
    values.iter().map(|v| Value::from(*v)).collect()
}

#[test]
fn each_value_is_asked_once_despite_duplicates_and_spellings() {
    let place = Place::new();
    let question = new_question("fn:upper", Type::Text);
    let values = [
        text_values(&["ant", "bee", " ant ", "ant"]),
        vec![Value::Null, Value::Integer(1), Value::Real(1.0), Value::Real(f64::NAN)],
        text_values(&["1"]),
    ]
    .concat();
    let mapped = place.map(&question, &values);
    let (ant, one) = (Some("\"ANT\"".to_owned()), Some("\"1\"".to_owned()));
    let bee = Some("\"BEE\"".to_owned());
    let expected = [ant.clone(), bee, ant.clone(), ant, None, one.clone(), one.clone(), None, one];
    assert_eq!(answers_as_json(&mapped), expected);
    assert_eq!((mapped.meta.values_asked, mapped.meta.values_reused), (3, 0));
    let asked = place.endpoint.request_count();
    let again = place.map(&question, &values);
    assert_eq!(answers_as_json(&again), expected);
    assert_eq!((again.meta.values_asked, again.meta.values_reused), (0, 3));
    assert_eq!(place.endpoint.request_count(), asked);
}

#[test]
fn map_and_query_share_answers() {
    let place = Place::new();
    let sql = "SELECT {{LLMMap('fn:length', t.c, return_type='int')}} FROM t";
    let rows = place.query(sql);
    let asked = place.endpoint.request_count();
    let values: Vec<Value> =
        [text_values(&["ant", "bee"]), vec![Value::Null, Value::Integer(7)]].concat();
    let of_column =
        ValueQuestion { value_kind: Some("t.c"), ..new_question("fn:length", Type::Integer) };
    let mapped = place.map(&of_column, &values);
    assert_eq!(place.endpoint.request_count(), asked, "what a query asked is known");
    let of_rows: Vec<Option<String>> = (rows.rows.iter())
        .map(|r| match &r[0] {
            rusqlite::types::Value::Integer(i) => Some(i.to_string()),
            _ => None,
        })
        .collect();
    assert_eq!(answers_as_json(&mapped), of_rows);

    let options = text_values(&["ANT", "BEE", "7"]);
    let chosen = ValueQuestion { options: Some(&options), ..new_question("fn:upper", Type::Text) };
    place.map(&chosen, &values);
    let asked = place.endpoint.request_count();
    let sql = "SELECT {{LLMMap('fn:upper', t.c, options=('ANT', 'BEE', '7'))}} FROM t";
    place.query(sql);
    assert_eq!(place.endpoint.request_count(), asked, "what was mapped is known to a query");
}

#[test]
fn states_explain_missing_values() {
    let place = Place::new();
    let options = text_values(&["ANT"]);
    let question =
        ValueQuestion { options: Some(&options), ..new_question("fn:upper", Type::Text) };
    let mapped = place.map(&question, &text_values(&["ant", "bee"]));
    let states: Vec<State> = mapped.answers.iter().flatten().map(|a| a.state).collect();
    assert_eq!(states, [State::Ok, State::NotInList]);
    assert_eq!(mapped.meta.values_missing, 1);
}

#[test]
fn without_a_model_only_known_values_are_answered() {
    let place = Place::new();
    let question = new_question("fn:upper", Type::Text);
    place.map(&question, &text_values(&["ant"]));
    let path = place.dir.path().join("data.sqlite");
    let request = place.session.new_query(&path, question.text).unwrap();
    let known = map_values(&request, &question, &text_values(&["ant"])).unwrap();
    assert_eq!(answers_as_json(&known), [Some("\"ANT\"".to_owned())]);
    assert!(map_values(&request, &question, &[]).unwrap().answers.is_empty());
    let missing = map_values(&request, &question, &text_values(&["ant", "cat"]));
    assert!(matches!(missing, Err(QueryError::NoModel)), "{missing:?}");
}
