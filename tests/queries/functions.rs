//! Tests of ingredients that functions of the calling program compute, as those in Python do.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value as Json, json};

use hqdl::database::Database;
use hqdl::facts::Facts;
use hqdl::generate::{Event, Listener};
use hqdl::model::function::{HostCall, HostFunction, add_functions};
use hqdl::model::{Model, Reply, ReplyFuture};
use hqdl::prompt::{Prompt, Question};
use hqdl::query::{self, Param, QueryError, QueryResult, Request};
use hqdl::spec::ingredients::{
    AliasArgument, AliasWriter, AskedOf, FunctionIngredient, FunctionKind, IngredientTable,
    function_model_name, parse_function_question,
};
use hqdl::spec::{Literal, Spec, Type, UncheckedSpec};
use hqdl::value::Value;
use rusqlite::Connection;
use rusqlite::types::Value as Sql;

/// A function that records its calls.
struct Recorded {
    name: &'static str,
    batch: u32,
    calls: Mutex<Vec<Vec<HostCall>>>,
    compute: fn(&HostCall) -> Result<Json, String>,
}

impl HostFunction for Recorded {
    fn stored_name(&self) -> &str {
        self.name
    }

    fn batch_size(&self) -> u32 {
        self.batch
    }

    fn max_threads(&self) -> usize {
        1
    }

    fn compute(&self, calls: &[HostCall]) -> Vec<Result<Json, String>> {
        self.calls.lock().unwrap().push(calls.to_vec());
        calls.iter().map(self.compute).collect()
    }
}

/// Returns the text of a call's argument.
fn argument(call: &HostCall, n: usize) -> String {
    let arguments = parse_function_question(&call.question, &call.values).unwrap();
    arguments[n].1.as_str().unwrap_or_default().to_owned()
}

/// A database, a cache and a function `f`.
struct Fixture {
    _dir: tempfile::TempDir,
    spec: Spec,
    facts: Facts,
    function: Arc<Recorded>,
    model: Arc<dyn hqdl::model::Model>,
}

impl Fixture {
    fn new(
        kind: FunctionKind,
        data_type: Option<Type>,
        batch: u32,
        compute: fn(&HostCall) -> Result<Json, String>,
    ) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data.sqlite");
        let sql = "CREATE TABLE t (a TEXT, n INTEGER); CREATE TABLE u (b TEXT);
                   INSERT INTO t VALUES ('apple', 1), ('fig', 2), (NULL, 3), ('apple', 4);
                   INSERT INTO u VALUES ('acorn'), ('fig'), ('date');";
        Connection::open(&path).unwrap().execute_batch(sql).unwrap();
        let database = Database::open(&path).unwrap();
        let (mut spec, _) = UncheckedSpec::without_file(path).check(&database).unwrap();
        let function = Arc::new(Recorded { name: "f v1", batch, calls: Mutex::default(), compute });
        let of = if matches!(kind, FunctionKind::Rows) { AskedOf::Rows } else { AskedOf::Values };
        let name = spec
            .add_function(IngredientTable {
                name: "f".to_owned(),
                question: String::new(),
                arguments: vec!["a".to_owned(), "b".to_owned()],
                of,
                kind: data_type,
                list: false,
                options: None,
                model: None,
                examples: None,
                example_outputs: None,
                search: None,
                function: Some(FunctionIngredient {
                    kind,
                    version: "v1".to_owned(),
                    required: 1,
                    takes_options: false,
                }),
            })
            .unwrap();
        let functions: BTreeMap<String, Arc<dyn HostFunction>> =
            BTreeMap::from([(name, Arc::clone(&function) as Arc<dyn HostFunction>)]);
        let none = Err(("no model".to_owned(), String::new()));
        let model = add_functions(none, functions);
        Self { _dir: dir, spec, facts: Facts::open_temporary().unwrap(), function, model }
    }

    /// Adds an alias, which returns `write` of its arguments.
    fn add_alias(
        &mut self,
        name: &str,
        write: impl Fn(&[AliasArgument]) -> String + Send + Sync + 'static,
    ) {
        let writer = AliasWriter(Arc::new(move |arguments: &[AliasArgument]| Ok(write(arguments))));
        let function = FunctionIngredient {
            kind: FunctionKind::Alias(writer),
            version: String::new(),
            required: 0,
            takes_options: false,
        };
        let own = self.spec.ingredients[0].clone();
        let own = IngredientTable { name: name.to_owned(), function: Some(function), ..own };
        self.spec.add_function(own).unwrap();
    }

    fn request<'r>(&'r self, sql: &'r str) -> Request<'r> {
        let model = Some(Arc::clone(&self.model));
        Request { model, ..Request::new(&self.spec, &self.spec.database, &self.facts, sql) }
    }

    fn run(&self, sql: &str) -> Result<Vec<Sql>, QueryError> {
        let mut result = QueryResult::default();
        query::run(&self.request(sql), &mut result)?;
        Ok(result.rows.into_iter().map(|row| row[0].clone()).collect())
    }

    /// Returns the number of calls since the last time.
    fn take_calls(&self) -> Vec<Vec<HostCall>> {
        std::mem::take(&mut self.function.calls.lock().unwrap())
    }
}

fn text(text: &str) -> Sql {
    Sql::Text(text.to_owned())
}

#[test]
fn each_distinct_argument_is_computed_once() {
    let fixture = Fixture::new(FunctionKind::Values, Some(Type::Integer), 1, |call| {
        Ok(argument(call, 0).len().into())
    });
    let explained = query::explain(&fixture.request("SELECT {{f(t.a)}} FROM t")).unwrap();
    assert_eq!((explained.values_asked, fixture.take_calls().len()), (2, 0));
    let lengths = [Sql::Integer(5), Sql::Integer(3), Sql::Null, Sql::Integer(5)];
    assert_eq!(fixture.run("SELECT {{f(t.a)}} FROM t").unwrap(), lengths);
    assert_eq!(fixture.take_calls().len(), 2);
    // The same value of another column, and in an expression.
    let sql = "SELECT {{f(u.b)}} FROM u WHERE b = 'fig' UNION ALL SELECT {{f(a || '')}} FROM t WHERE n = 2";
    assert_eq!(fixture.run(sql).unwrap(), [Sql::Integer(3), Sql::Integer(3)]);
    assert_eq!(fixture.take_calls().len(), 0);
}

#[test]
fn arguments_are_literals_or_values() {
    let fixture = Fixture::new(FunctionKind::Values, Some(Type::Text), 1, |call| {
        let arguments = parse_function_question(&call.question, &call.values).unwrap();
        Ok(json!(arguments).to_string().into())
    });
    for (call, expected) in [
        ("f('x')", r#"[["a","x"]]"#),
        ("f(b=t.n, a='{}')", r#"[["a","{}"],["b",2]]"#),
        ("f(t.a, NULL)", r#"[["a","fig"],["b",null]]"#),
        ("f(1.5, -2)", r#"[["a",1.5],["b",-2]]"#),
        ("f(t.n + 1)", r#"[["a",3]]"#),
    ] {
        let sql = format!("SELECT {{{{{call}}}}} FROM t WHERE n = 2");
        assert_eq!(fixture.run(&sql).unwrap(), [text(expected)], "{call}");
    }
    for (call, message) in [
        ("f(b=1)", "`f` needs `a`"),
        ("f(1, model='x')", "`f` has no argument `model`"),
        ("f(1, 2, 3)", "no arguments after"),
    ] {
        let error = fixture.run(&format!("SELECT {{{{{call}}}}}")).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
}

/// The names of a function's arguments can be those of an ingredient's.
#[test]
fn own_argument_names_are_values() {
    for name in ["threshold", "limit", "table", "sep", "question", "model", "options", "Exact"] {
        let mut fixture = Fixture::new(FunctionKind::Values, Some(Type::Text), 1, |call| {
            let arguments = parse_function_question(&call.question, &call.values).unwrap();
            Ok(json!(arguments).to_string().into())
        });
        name.clone_into(&mut fixture.spec.ingredients[0].arguments[1]);
        let expected = text(&format!(r#"[["a","fig"],["{name}",2.5]]"#));
        let word = name.to_lowercase();
        for value in ["TRY_CAST(' 2.5 ' AS REAL)", "(t.n + 0.5)::REAL"] {
            let sql = format!("SELECT {{{{f(a=t.a, {word}={value})}}}} FROM t WHERE n = 2");
            assert_eq!(fixture.run(&sql).unwrap(), std::slice::from_ref(&expected), "{sql}");
        }
    }
}

#[test]
fn a_failure_is_an_error_of_its_cell() {
    for batch in [1, 10] {
        let fixture = Fixture::new(FunctionKind::Values, Some(Type::Text), batch, |call| {
            let value = argument(call, 0);
            if value == "fig" { Err("no figs".to_owned()) } else { Ok(value.to_uppercase().into()) }
        });
        let rows = [text("APPLE"), Sql::Null, Sql::Null, text("APPLE")];
        assert_eq!(fixture.run("SELECT {{f(t.a)}} FROM t").unwrap(), rows, "{batch}");
    }
}

#[test]
fn rows_pairs_and_aliases() {
    let fixture = Fixture::new(FunctionKind::Rows, Some(Type::Integer), 1, |call| {
        let table: Json = serde_json::from_str(&argument(call, 0)).unwrap();
        Ok(table["rows"].as_array().unwrap().len().into())
    });
    assert_eq!(fixture.run("SELECT {{f((SELECT * FROM t))}}").unwrap(), [Sql::Integer(4)]);
    let fixture = Fixture::new(FunctionKind::Pairs, None, 1, |call| {
        let left = call.values[0].as_str().unwrap().chars().next();
        Ok(call.options.iter().filter(|o| o.chars().next() == left).cloned().collect())
    });
    let sql = "SELECT DISTINCT a || b FROM t JOIN u ON {{f(t.a, u.b)}} ORDER BY 1";
    assert_eq!(fixture.run(sql).unwrap(), [text("appleacorn"), text("figfig")]);
    let writer = |arguments: &[AliasArgument]| match &arguments[0].literal {
        Some(Json::String(text)) => Ok(format!("{{{{f({text}, 'x')}}}}")),
        Some(_) => Err("no text".to_owned()),
        None => Ok(format!("upper({})", arguments[0].sql)),
    };
    let kind = FunctionKind::Alias(AliasWriter(Arc::new(writer)));
    let fixture = Fixture::new(kind, None, 1, |_| Ok(Json::Null));
    assert_eq!(fixture.run("SELECT {{f(t.a)}} FROM t WHERE n = 1").unwrap(), [text("APPLE")]);
    for (call, message) in [("f('t.a')", "`f` expands to itself"), ("f(1)", "no text")] {
        let sql = format!("SELECT {{{{{call}}}}} FROM t WHERE n = 1");
        let error = fixture.run(&sql).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
}

#[test]
fn the_name_of_a_function_must_be_free() {
    let fixture = Fixture::new(FunctionKind::Values, None, 1, |_| Ok(Json::Null));
    let mut spec = fixture.spec.clone();
    let own = spec.ingredients[0].clone();
    for (name, message) in
        [("F", "exists already"), ("llmmap", "exists already"), ("a b", "not a name")]
    {
        let added = spec.add_function(IngredientTable { name: name.to_owned(), ..own.clone() });
        assert!(added.unwrap_err().contains(message), "{name}");
    }
}

#[test]
fn each_cell_of_a_value_fails_on_its_own() {
    for batch in [1, 10] {
        let fixture = Fixture::new(FunctionKind::Values, Some(Type::Integer), batch, |call| {
            let arguments = parse_function_question(&call.question, &call.values).unwrap();
            let divisor = arguments[1].1.as_i64().unwrap();
            100_i64.checked_div(divisor).map(Json::from).ok_or("no zero".to_owned())
        });
        let sql =
            "SELECT {{f(t.a, 5)}} || '/' || coalesce({{f(t.a, 0)}}, 'none') FROM t WHERE n < 3";
        assert_eq!(fixture.run(sql).unwrap(), [text("20/none"), text("20/none")], "{batch}");
        // Each cell is computed once, although others of the batch failed.
        let computed: usize = fixture.take_calls().iter().map(Vec::len).sum();
        assert_eq!(computed, 4, "{batch}");
    }
}

#[test]
fn a_function_receives_the_options_of_a_call() {
    for kind in [FunctionKind::Values, FunctionKind::Rows] {
        let mut fixture = Fixture::new(kind, Some(Type::Text), 1, |call| {
            Ok(call.options.iter().max().cloned().into())
        });
        let own = &mut fixture.spec.ingredients[0];
        let argument = match &own.function.as_ref().unwrap().kind {
            FunctionKind::Values => "'x'",
            _ => "(SELECT 1)",
        };
        let unknown = format!("SELECT {{{{f({argument}, options=u.b)}}}} FROM u LIMIT 1");
        let error = fixture.run(&unknown).unwrap_err().to_string();
        assert!(error.contains("no argument `options`"), "{error}");
        fixture.spec.ingredients[0].function.as_mut().unwrap().takes_options = true;
        for (options, expected) in [
            ("options=u.b", "fig"),
            ("options=(SELECT b FROM u WHERE b < 'c')", "acorn"),
            ("OPTIONS=('one', 'two')", "two"),
        ] {
            let sql = format!("SELECT {{{{f({argument}, {options})}}}} FROM u LIMIT 1");
            assert_eq!(fixture.run(&sql).unwrap(), [text(expected)], "{sql}");
        }
        assert_eq!(fixture.take_calls().len(), 3);
        // The values of the column that a call about rows is compared with.
        if argument != "'x'" {
            let sql = format!("SELECT a FROM t WHERE a = {{{{f({argument})}}}}");
            assert_eq!(fixture.run(&sql).unwrap(), [text("fig")]);
        }
        let error = fixture.run("SELECT {{f(option=u.b)}} FROM u").unwrap_err().to_string();
        assert!(error.contains("needs `a`"), "{error}");
    }
}

#[test]
fn an_answer_that_is_not_an_option_fails() {
    let mut fixture = Fixture::new(FunctionKind::Values, Some(Type::Text), 1, |call| {
        Ok(if argument(call, 0) == "fig" { "Germny" } else { "Germany" }.into())
    });
    let options = ["Germany", "France"].map(|option| Literal::Text(option.to_owned()));
    fixture.spec.ingredients[0].options = Some(options.into());
    let rows = [text("Germany"), Sql::Null];
    assert_eq!(fixture.run("SELECT {{f(t.a)}} FROM t WHERE n < 3").unwrap(), rows);
}

#[test]
fn arguments_may_have_the_names_of_keywords() {
    let mut fixture = Fixture::new(FunctionKind::Values, Some(Type::Text), 1, |call| {
        let arguments = parse_function_question(&call.question, &call.values).unwrap();
        Ok(json!(arguments).to_string().into())
    });
    for name in ["model", "options", "return_type", "output_type", "examples", "example_outputs"] {
        fixture.spec.ingredients[0].arguments = vec!["a".to_owned(), name.to_owned()];
        for value in ["'z'", "t.a"] {
            let sql = format!("SELECT {{{{f(a=t.n, {name}={value})}}}} FROM t WHERE n = 2");
            let value = if value == "t.a" { "fig" } else { "z" };
            let expected = text(&format!(r#"[["a",2],["{name}","{value}"]]"#));
            assert_eq!(fixture.run(&sql).unwrap(), [expected], "{name}");
        }
    }
}

#[test]
fn the_order_of_keywords_does_not_matter() {
    let fixture =
        Fixture::new(
            FunctionKind::Values,
            Some(Type::Text),
            1,
            |call| Ok(argument(call, 0).into()),
        );
    for call in ["f(t.a, t.n)", "f(b=t.n, a=t.a)", "f(b=t.n, t.a)", "f(t.a, b=t.n,)"] {
        let sql = format!("SELECT {{{{{call}}}}} FROM t WHERE n = 2");
        assert_eq!(fixture.run(&sql).unwrap(), [text("fig")], "{call}");
    }
    assert_eq!(fixture.take_calls().len(), 1);
    let fixture = Fixture::new(FunctionKind::Pairs, None, 1, |call| {
        let left = call.values[0].as_str().unwrap();
        let is_longer = |option: &&String| option.len() > left.len();
        Ok(call.options.iter().filter(is_longer).cloned().collect())
    });
    for call in ["f(t.a, u.b)", "f(b=u.b, a=t.a)", "f(b=u.b, t.a)", "f(exact=TRUE, b=u.b, a=t.a)"] {
        let sql = format!("SELECT DISTINCT a || b FROM t JOIN u ON {{{{{call}}}}} ORDER BY 1");
        assert_eq!(fixture.run(&sql).unwrap(), [text("figacorn"), text("figdate")], "{call}");
    }
}

#[test]
fn an_alias_may_move_its_arguments() {
    let mut fixture = Fixture::new(FunctionKind::Values, None, 1, |_| Ok(Json::Null));
    fixture.add_alias("swap", |a| format!("{} || {}", a[1].sql, a[0].sql));
    fixture.add_alias("twice", |a| format!("{0} || {0} -- twice", a[0].sql));
    fixture.add_alias("number", |a| format!("TRY_CAST({} AS INTEGER)", a[0].sql));
    fixture.add_alias("up", |a| format!("upper({})", a[0].sql));
    let values = ["x", "y", "z"].into_iter().zip(1..);
    let params: Vec<(Param, Value)> =
        values.map(|(value, n)| (Param::Position(n), Value::Text(value.to_owned()))).collect();
    let run = |sql: &str| {
        let mut result = QueryResult::default();
        let params = params.clone();
        query::run(&Request { params, ..fixture.request(sql) }, &mut result).unwrap();
        result.rows[0][0].clone()
    };
    assert_eq!(run("SELECT {{swap(?, ?)}} || ?"), text("yxz"));
    assert_eq!(run("SELECT ? || {{twice({{swap(?, ?)}})}}"), text("xzyzy"));
    assert_eq!(fixture.run("SELECT {{number('12abc')}}").unwrap(), [Sql::Null]);
    assert_eq!(fixture.run("SELECT {{number('12')}}").unwrap(), [Sql::Integer(12)]);
    // The SQL of an alias is one fragment.
    fixture.add_alias("money", |a| format!("TRY_CAST({} AS MONEY)", a[0].sql));
    let error = fixture.run("SELECT 1 + {{money('12')}}").unwrap_err();
    assert!(
        matches!(&error, QueryError::Sql(problem)
        if problem.message.contains("`MONEY`") && problem.span == Some(11..26)),
        "{error:?}"
    );
    let nested = format!("SELECT {}'a'{}", "{{up(".repeat(18), ")}}".repeat(18));
    assert_eq!(fixture.run(&nested).unwrap(), [text("A")]);
}

#[test]
fn aliases_do_not_expand_without_an_end() {
    let mut fixture = Fixture::new(FunctionKind::Values, None, 1, |_| Ok(Json::Null));
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    fixture.add_alias("dbl", move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        "{{dbl()}} || {{dbl()}}".to_owned()
    });
    fixture.add_alias("ping", |_| "{{pong()}}".to_owned());
    fixture.add_alias("pong", |_| "{{ping()}}".to_owned());
    fixture.add_alias("copy", |a| format!("{0} || {0}", a[0].sql));
    for n in 0..20 {
        fixture.add_alias(&format!("c{n}"), move |_| {
            format!("{{{{c{0}()}}}} || {{{{c{0}()}}}}", n + 1)
        });
    }
    fixture.add_alias("c20", |_| "1".to_owned());
    for (call, message) in [
        ("{{dbl()}}".to_owned(), "`dbl` expands to itself"),
        ("{{ping()}}".to_owned(), "`ping` expands to itself"),
        ("{{c0()}}".to_owned(), "too many calls"),
        (format!("{}'a'{}", "{{copy(".repeat(30), ")}}".repeat(30)), "too much SQL"),
    ] {
        let error = fixture.run(&format!("SELECT {call}")).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
    assert_eq!(count.load(Ordering::Relaxed), 1);
}

/// A function and a model that write their names to a log when a call begins and when it ends.
struct Logged {
    name: &'static str,
    log: Arc<Mutex<Vec<&'static str>>>,
}

impl Logged {
    fn wait(&self) {
        self.log.lock().unwrap().push(self.name);
        std::thread::sleep(Duration::from_millis(20));
        self.log.lock().unwrap().push(self.name);
    }
}

impl HostFunction for Logged {
    fn stored_name(&self) -> &str {
        self.name
    }

    fn batch_size(&self) -> u32 {
        1
    }

    fn max_threads(&self) -> usize {
        4
    }

    fn compute(&self, calls: &[HostCall]) -> Vec<Result<Json, String>> {
        self.wait();
        vec![Ok(Json::from("x")); calls.len()]
    }
}

impl Model for Logged {
    fn name(&self) -> &str {
        self.name
    }

    fn send_prompt<'a>(&'a self, prompt: &'a Prompt) -> ReplyFuture<'a> {
        self.wait();
        let question = Question::parse(&prompt.system, &prompt.user).unwrap();
        let content = question.format_answer(|_, _| Json::from("x"));
        Box::pin(std::future::ready(Ok(Reply { content, ..Reply::default() })))
    }
}

/// While a function is called, no other request of the query is in progress: it might have claimed
/// cells that a query of the function waits for, and wait for the function itself.
#[test]
fn nothing_else_is_in_progress_during_the_calls_of_a_function() {
    let mut fixture = Fixture::new(FunctionKind::Values, Some(Type::Text), 1, |_| Ok(Json::Null));
    let own = IngredientTable { name: "g".to_owned(), ..fixture.spec.ingredients[0].clone() };
    fixture.spec.add_function(own).unwrap();
    let log = Arc::default();
    let logged = |name| Arc::new(Logged { name, log: Arc::clone(&log) });
    let function = |name| (function_model_name(name), logged(name) as Arc<dyn HostFunction>);
    let functions = BTreeMap::from(["f", "g"].map(function));
    fixture.model = add_functions(Ok(logged("model")), functions);
    for calls in
        ["{{f(u.b)}}, {{LLMMap('Q', u.b)}}, {{g(u.b)}}", "{{LLMMap('R', t.a)}}, {{f(t.a)}}"]
    {
        let table = if calls.contains("u.b") { "u" } else { "t" };
        fixture.run(&format!("SELECT {calls} FROM {table}")).unwrap();
        let mut names = std::mem::take(&mut *log.lock().unwrap());
        names.dedup();
        assert!(names == ["model", "f", "g"] || names == ["model", "f"], "{names:?}");
    }
}

/// Progress displays need the number of values that each pass asks for.
#[test]
fn a_pass_reports_how_many_values_it_asks_for() {
    let fixture = Fixture::new(FunctionKind::Values, None, 1, |_| Ok(Json::Null));
    let begun = Arc::new(Mutex::new(Vec::new()));
    let counts = Arc::clone(&begun);
    let listener: Listener = Arc::new(move |event: &Event| {
        if let Event::Begin { cells, .. } = event {
            counts.lock().unwrap().push(*cells);
        }
    });
    let request = Request { listener, ..fixture.request("SELECT {{f(t.a, 'x')}} FROM t") };
    query::run(&request, &mut QueryResult::default()).unwrap();
    let calls: usize = fixture.take_calls().iter().map(Vec::len).sum();
    assert_eq!(*begun.lock().unwrap(), [calls as u64]);
}
