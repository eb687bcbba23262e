//! Tests of ingredients that are rewritten to others: those of a spec, and `BlendSQL`'s narrower
//! ones.

use serde_json::{Value as Json, json};

use hqdl_testkit::endpoint::{Endpoint, Fault, Frequency};
use hqdl_testkit::project::{CommandResult, Project};

const SPEC: &str = r#"
[database]
path = "../data.sqlite"

[model]
provider = "openai"
name = "gpt-4o-mini"
base_url = "{base_url}"
api_key_env = "HQDL_TEST_KEY"

[model.large]
name = "gpt-4o"

[[ingredient]]
name = "IsFruit"
question = "Is {thing} a fruit?"
arguments = ["thing"]
type = "boolean"

[[ingredient]]
name = "Translate"
question = "What is {thing} in {language}?"
arguments = ["thing", "language"]
type = "text"

[[ingredient]]
name = "Colour"
question = "The colour of {thing}"
arguments = ["thing"]
options = ["red", "it's green"]
model = "large"

[[ingredient]]
name = "Season"
question = "When is {thing} ripe?"
arguments = ["thing", "place"]

[[ingredient]]
name = "BestOf"
question = "Which of {rows} is the {quality}?"
arguments = ["rows", "quality"]
of = "rows"

[[ingredient]]
name = "Lookup"
question = "{question}"
arguments = ["question"]
of = "rows"
search = { values = "docs.body", k = 1 }

[[ingredient]]
name = "Born"
question = "{question}"
arguments = ["question", "thing"]
search = { values = "SELECT body FROM docs", k = 1 }
type = "text"

[[ingredient]]
name = "Old"
question = "{thing}"
arguments = ["thing", "other"]

[[ingredient]]
name = "Nearest"
question = "Which title fits {thing}?"
arguments = ["thing"]
search = { values = "docs.body", k = 2, as = "options" }
examples = [["pear", "Pears are green."]]
example_outputs = ["Pears are green."]

[[expansion]]
name = "llm"
source = "t"
key = ["name"]
[[expansion.column]]
name = "origin"
questions = ["Where is it from?", { ask = "Is it from {value}?", sql = "origin = {value}" }]
"#;

const THINGS: &str = "CREATE TABLE t (name TEXT, day TEXT);
     INSERT INTO t VALUES ('apple', '2024-01-05'), ('chair', '2024-02-01 10:00'), ('plum', '2024-03-09');
     CREATE TABLE docs (title TEXT, body TEXT);
     INSERT INTO docs VALUES ('a', 'Apples are red.'), ('b', 'Plums are blue.'), ('c', NULL);
     CREATE TABLE words (word TEXT);
     INSERT INTO words VALUES ('x'), ('plums')";

/// Starts an endpoint that answers with the question and the model's name.
fn endpoint() -> Endpoint {
    Endpoint::start_answering(|column, row| {
        let of = row.key[0].as_str().unwrap_or_default();
        match column.data_type.as_str() {
            "boolean" => Json::from(of != "chair"),
            "integer" => json!(7),
            _ if column.many => json!(["a", "b"]),
            _ => match &column.values {
                Some(list) => list[1].clone().into(),
                None => column.about.clone().into(),
            },
        }
    })
}

fn project(endpoint: &Endpoint) -> Project {
    Project::new(endpoint, THINGS, SPEC)
}

fn query(project: &Project, sql: &str) -> CommandResult {
    project.run_hqdl(&["query", "--spec", "specs/x.toml", "--json", sql])
}

fn rows(project: &Project, sql: &str) -> Json {
    let ended = query(project, sql);
    let rows = ended.lines.first().map(|l| l["rows"].clone()).unwrap_or_default();
    assert!(rows.is_array(), "{sql}: {}", ended.stderr);
    rows
}

#[test]
fn an_ingredient_of_a_spec_asks_its_question() {
    let endpoint = endpoint();
    let project = project(&endpoint);
    let sql = "SELECT name FROM t WHERE {{IsFruit(t.name)}} ORDER BY 1";
    assert_eq!(rows(&project, sql), json!([["apple"], ["plum"]]));
    // It is the same question as an LLMMap's, so no request is made.
    let asked = endpoint.request_count();
    let same = "SELECT name FROM t WHERE {{LLMMap('Is {value} a fruit?', name)}} ORDER BY 1";
    assert_eq!(rows(&project, same), json!([["apple"], ["plum"]]));
    assert_eq!(
        rows(&project, "SELECT count(*) FROM t WHERE NOT {{isfruit(thing=t.name)}}"),
        json!([[1]])
    );
    assert_eq!(endpoint.request_count(), asked);
    // A text becomes part of the question; the value of a column or another call is shown.
    for (call, about) in [
        ("Translate(name, 'French')", "What is {value} in French?"),
        ("Translate(language='It''s', thing=name)", "What is {value} in It's?"),
        ("Translate(name, day)", "What is {value} in {value_2}?"),
        // A question that is only a slot shows the value.
        ("Old(name, day)", "{value}"),
        ("Old('What is it?', name)", "What is it?"),
        // Braces in an example are no slot.
        (
            "LLMMap('What is {}?', name, examples={'a {}': 'b'})",
            r#"What is {value}? Examples: "a {}" has the answer "b"."#,
        ),
        (
            "LLMMap('Which?', name, example_outputs=('{}', 'b'))",
            "Which? Answers look like these: {}; b.",
        ),
        (
            "LLMMap('What is ' || day || ' {}?', name, examples={'a {}': 'b'})",
            r#"What is {value_2} {value}? Examples: "a {}" has the answer "b"."#,
        ),
        (
            "LLMQA('Who?', (SELECT name FROM t), examples={'a {}': 'b'})",
            r#"Who? Examples: "a {}" has the answer "b"."#,
        ),
        ("Translate('t::name', 'Greek')", "What is {value} in Greek?"),
        ("Translate({{Translate(name, 'Latin')}}, 'Greek',)", "What is {value} in Greek?"),
    ] {
        let sql = format!("SELECT {{{{{call}}}}} FROM t WHERE name = 'plum'");
        assert_eq!(rows(&project, &sql), json!([[about]]), "{call}");
    }
    // A column is named after the original call, or its question.
    let sql = "SELECT {{Translate(name, 'French')}}, {{LLMMap('What?', name, example_outputs=('a', 'b'))}} FROM t";
    let named = query(&project, sql).expect_exit_code(0).lines[0]["columns"].clone();
    assert_eq!(named, json!(["{{Translate(name, 'French')}}", "What?"]));
    // Options, and the model that the ingredient names; a call can override them.
    let colour = "SELECT DISTINCT {{Colour(name)}} FROM t";
    assert_eq!(rows(&project, colour), json!([["it's green"]]));
    assert_eq!(endpoint.requests_to("gpt-4o").len(), 1);
    let said =
        "SELECT DISTINCT {{Colour(name, options=('blue', 'black'), model='gpt-4o-mini')}} FROM t";
    assert_eq!(rows(&project, said), json!([["black"]]));
    assert_eq!(endpoint.requests_to("gpt-4o").len(), 1);
    // About rows, once.
    let asked = endpoint.request_count();
    let best = "SELECT {{BestOf((SELECT name FROM t), 'sweetest')}}";
    assert_eq!(rows(&project, best), json!([["Which of {context} is the sweetest?"]]));
    assert_eq!(endpoint.request_count(), asked + 1);
}

/// `SQLite` reads a quoted name that is not a column as a text, which was not intended.
#[test]
fn a_quoted_name_that_is_not_a_column_is_an_error() {
    let endpoint = endpoint();
    let project = project(&endpoint);
    for call in [
        "LLMQA('Which?', 't::nope')",
        "LLMQA('Which?', t.nope)",
        "RAGQA('Which?', t.nope)",
        "DocumentSearch('Which?', 't::nope')",
        "LLMQA('Which?', options='t::nope')",
        "LLMQA('Which?', options=t.nope)",
    ] {
        let ended = query(&project, &format!("SELECT {{{{{call}}}}}")).expect_exit_code(2);
        assert!(ended.stderr.contains("no such column: t.nope"), "{call}: {}", ended.stderr);
    }
    assert_eq!(endpoint.request_count(), 0);
}

#[test]
fn missing_arguments_are_reported_with_their_location() {
    let endpoint = endpoint();
    let project = project(&endpoint);
    let bare = query(&project, "SELECT LLMMap('Which?', name) FROM t").expect_exit_code(2);
    assert!(
        bare.stderr.contains("write the call in double braces: {{LLMMap(…)}}"),
        "{}",
        bare.stderr
    );
    for (call, told) in [
        ("Translate(name)", "`Translate` needs `language`"),
        ("Translate(name, langage='x')", "did you mean `language=` instead of `langage=`?"),
        // An argument that nothing uses is an error.
        ("Season(name, 'Peru')", "the question of `Season` has no slot for a text"),
        ("IsFruit()", "`IsFruit` needs `thing`"),
        ("IsFruit(name, day)", "`IsFruit` has no arguments after thing"),
        ("IsFruit(name, thing=day)", "`thing` appears twice"),
        ("IsFruit(name, colour='x')", "has no argument `colour`"),
        ("WebSearch('Who won?')", "pass the search results yourself"),
        ("VQA('What is it?')", "`VQA` has no value to ask about"),
        ("ImageCaption()", "`ImageCaption` has no value to ask about"),
        ("RAGQA('Who won?')", "`RAGQA` needs a question and documents"),
        ("RAGQA('Who won?', 'docs')", "neither a column nor a query"),
        ("DT(day)", "`DT` needs `start=` or `end=`"),
        // An unknown argument is never silently ignored.
        (
            "DT(day, start='2024-01-01', edn='2024-02-01')",
            "did you mean `end=`? its arguments are value, start, end",
        ),
        ("DT(day, start='2024-01-01', model='large')", "`DT` has no argument `model`"),
        ("DT(day, start='2024-01-01', start='2024-01-02')", "`start` appears twice"),
        ("RAGQA('Who won?', docs.body, model='large')", "its arguments are question, documents"),
        ("RAGQA('Who won?', docs.body, 'more')", "has no arguments after question, documents"),
        ("DocumentSearch('Who?', docs.body, k=3)", "`DocumentSearch` has no argument `k`"),
        ("TableSummary('t', modle='large')", "did you mean `model`?"),
        ("TableSummary('t', left_on=name)", "question, value"),
        ("TableSummary('What?', name, t)", "has no arguments after question, table"),
        ("DT(day, start='next week')", "`start` of `DT` is not a day"),
        ("Born('When?')", "`Born` needs `thing`"),
        ("Born(name, name)", "`Born` needs a text as its question"),
        ("Lookup('Who?', name)", "`Lookup` has no arguments after question"),
        ("TableSummary()", "`TableSummary` needs a table"),
    ] {
        let ended = query(&project, &format!("SELECT {{{{{call}}}}} FROM t")).expect_exit_code(2);
        assert!(ended.stderr.contains(told), "{call}: {}", ended.stderr);
    }
    assert_eq!(endpoint.request_count(), 0);
}

#[test]
fn narrower_ingredients_are_rewritten_to_others() {
    let endpoint = endpoint();
    let project = project(&endpoint);
    for (sql, expected) in [
        ("SELECT {{LLM('Say something')}}", json!([["Say something"]])),
        ("SELECT {{LLMQAStr('How?', (SELECT name FROM t))}}", json!([["How?"]])),
        ("SELECT {{LLMQAInt('How many?', (SELECT name FROM t))}}", json!([[7]])),
        ("SELECT {{LLMMapInt('How many legs?', name)}} FROM t LIMIT 1", json!([[7]])),
        ("SELECT {{LLMQAList('Which?', (SELECT name FROM t))}}", json!([["[\"a\",\"b\"]"]])),
        (
            "SELECT DISTINCT {{MultiLabelMap('Which?', name, options=('a', 'b', 'c'))}} FROM t",
            json!([["[\"a\",\"b\"]"]]),
        ),
        ("SELECT {{TableSummary('t')}} = {{TableSummary((SELECT * FROM t))}}", json!([[1]])),
        ("SELECT {{TableSummary('What is sold?', t)}}", json!([["What is sold?"]])),
        ("SELECT {{TableSummary(table=t, question='What?')}}", json!([["What?"]])),
        ("SELECT {{TableSummary(t, options=('a', 'b'))}}", json!([["b"]])),
        ("SELECT {{TableSummary('How many?', t, return_type='int')}}", json!([[7]])),
        (
            "SELECT name FROM t WHERE {{DT(t.day, start='2024-01-06', end='2024-02-01')}}",
            json!([["chair"]]),
        ),
        ("SELECT name FROM t WHERE {{DT('t::day', end='2024-01-31')}}", json!([["apple"]])),
    ] {
        assert_eq!(rows(&project, sql), expected, "{sql}");
    }
    // Arguments that the ingredient does not use are passed on.
    assert_eq!(endpoint.requests_to("gpt-4o").len(), 0);
    rows(&project, "SELECT {{TableSummary('What is sold?', t, model='large')}}");
    assert_eq!(endpoint.requests_to("gpt-4o").len(), 1);
}

#[test]
fn a_question_about_documents_is_asked_once_about_all() {
    let endpoint = Endpoint::start_answering(|_, row| {
        let text = row.context.iter().map(ToString::to_string).collect::<String>();
        Json::from(text.contains("Plums are blue.") && text.contains("Apples are red."))
    });
    let project = project(&endpoint);
    for (n, call) in [
        "RAGQA('Are plums blue?', docs.body)",
        "RAGQA('Are plums blue?', 'docs::body')",
        "RAGQA(documents=docs.body, question='Are plums blue?')",
        "DocumentSearch('Are plums blue?', (SELECT body FROM docs))",
    ]
    .into_iter()
    .enumerate()
    {
        let read = rows(&project, &format!("SELECT {{{{{call}}}}} = 'Yes'"));
        assert_eq!(read, json!([[1]]), "{call}");
        assert_eq!(endpoint.request_count(), 1, "{n}");
    }
    // About some documents: a different question.
    rows(
        &project,
        "SELECT {{RAGQA('Are plums blue?', (SELECT body FROM docs WHERE title = 'a'))}} = 'Yes'",
    );
    assert_eq!(endpoint.request_count(), 2);
}

#[test]
fn mistakes_in_an_ingredient_are_reported() {
    let endpoint = endpoint();
    let project = project(&endpoint);
    let fruit = "name = \"IsFruit\"\nquestion = \"Is {thing} a fruit?\"\narguments = [\"thing\"]";
    for (from, to, told) in [
        ("\"IsFruit\"", "\"llmmap\"", "an ingredient `llmmap` exists already"),
        ("\"IsFruit\"", "\"Translate\"", "an ingredient `Translate` exists already"),
        ("\"IsFruit\"", "\"Is it?\"", "cannot be the name of an ingredient"),
        ("{thing}", "{thin}", "did you mean {thing}?"),
        ("[\"thing\"]", "[]", "`IsFruit` has no argument"),
        ("[\"thing\"]", "[\"thing\", \"Thing\"]", "`Thing` occurs twice"),
        ("Is {thing} a fruit?", "", "the ingredient `IsFruit` has no question"),
        ("[\"thing\"]", "[\"thing\"]\noptions = []", "has no options"),
        ("[\"thing\"]", "[\"thing\"]\nmodel = \"huge\"", "the spec has no [model.huge]"),
        ("[\"thing\"]", "[\"thing\"]\nkind = \"int\"", "unknown field `kind`"),
    ] {
        let text = SPEC.replace(fruit, &fruit.replacen(from, to, 1));
        project.write_spec(&text.replace("{base_url}", project.base_url()));
        let ended = project.run_hqdl(&["check", "specs/x.toml"]).expect_exit_code(2);
        assert!(ended.stderr.contains(told), "{told}: {}", ended.stderr);
    }
}

/// One-word answers should not change between runs.
#[test]
fn a_question_about_one_value_is_asked_at_temperature_0_if_possible() {
    let endpoint = endpoint();
    let project = project(&endpoint);
    let asked = |question: &str| {
        let before = endpoint.request_count();
        let sql = format!("SELECT {{{{LLMMap('{question}', name)}}}} FROM t");
        let flags = ["--rows-per-request", "1", "--concurrency", "1"];
        let query = ["query", "--spec", "specs/x.toml", "--json"];
        project.run_hqdl(&[&query[..], &flags, &[sql.as_str()]].concat()).expect_exit_code(0);
        let sent = &endpoint.received_requests()[before..];
        sent.iter().map(|r| r.body.get("temperature").cloned()).collect::<Vec<_>>()
    };
    assert_eq!(asked("Ripe?"), vec![Some(json!(0.0)); 3]);
    // The spec's temperature takes precedence.
    let spec = project.spec_text();
    project.write_spec(&spec.replacen("[model]", "[model]\ntemperature = 0.7", 1));
    assert_eq!(asked("Red?"), vec![Some(json!(0.7)); 3]);
    project.write_spec(&spec);
    endpoint.add_fault(Fault::RejectsParameters(&["temperature"]), Frequency::Always);
    assert_eq!(asked("Large?"), [Some(json!(0.0)), None, None, None]);
    assert_eq!(asked("Sweet?"), [None, None, None]);
}

/// The searches of `BlendSQL` are ingredients with names of their own.
#[test]
fn an_ingredient_of_a_spec_searches_for_the_value_or_the_question() {
    let endpoint = Endpoint::start_answering(|column, row| {
        let context = row.context.first().or(row.key.get(1)).cloned().unwrap_or_default();
        match column.about.split(' ').next() {
            Some("Which") => "Apples are red.".into(),
            _ => context,
        }
    });
    let project = project(&endpoint);
    let apples = r#"["Apples are red."]"#;
    assert_eq!(
        rows(
            &project,
            "SELECT name, {{Born('When was it born?', thing='t::name')}} FROM t LIMIT 1"
        ),
        json!([["apple", apples]])
    );
    assert_eq!(
        rows(&project, "SELECT {{Nearest(t.name)}} FROM t ORDER BY name"),
        json!([["Apples are red."], [null], [null]])
    );
    let shown =
        endpoint.requests_to("gpt-4o-mini").last().unwrap().question.columns[0].about.clone();
    assert!(shown.contains("Examples: \"pear\" has the answer \"Pears are green.\""), "{shown}");
    let found = rows(&project, "SELECT {{Lookup('What are plums like?')}}");
    assert!(found[0][0].as_str().unwrap().contains("Plums are blue."), "{found}");
    let filled = "WITH x AS (SELECT 'plums' AS c) SELECT {{Lookup('What are {} like?', x.c)}}";
    let found = rows(&project, filled);
    let first: Json = serde_json::from_str(found[0][0].as_str().unwrap()).unwrap();
    assert_eq!(first["rows"], json!([["plums"]]), "the value is the first context");
    // The question is about all values of a column whose table the query does not read.
    let unread = rows(&project, "SELECT {{Lookup('What are {} like?', words.word)}}");
    let first: Json = serde_json::from_str(unread[0][0].as_str().unwrap()).unwrap();
    assert_eq!(first["rows"], json!([["x"], ["plums"]]));
    let shown = endpoint.received_requests().last().unwrap().question.rows[0].context.clone();
    let shown: String = shown.iter().map(ToString::to_string).collect();
    assert!(shown.contains("Plums are blue."), "{shown}");
    let explained = project.run_hqdl(&["explain", "--spec", "specs/x.toml", filled]);
    assert!(explained.stdout.contains("'words'"), "{}", explained.stdout);
}

#[test]
fn the_query_of_a_search_may_end_with_a_comment_and_has_one_column() {
    let endpoint = Endpoint::start_answering(|_, row| {
        row.context.first().or(row.key.get(1)).cloned().unwrap_or_default()
    });
    let project_with = |values: &str| {
        let spec = SPEC.replace("SELECT body FROM docs", values);
        Project::new(&endpoint, THINGS, &spec)
    };
    let sql = "SELECT {{Born('When?', name)}} AS x FROM t LIMIT 1";
    let found = rows(&project_with("SELECT body FROM docs -- all of them"), sql);
    assert_eq!(found, json!([[r#"["Apples are red."]"#]]));
    let ended = query(&project_with("SELECT title, body FROM docs"), sql).expect_exit_code(2);
    let message = "the query in `search.values` returns 2 columns";
    assert!(ended.stderr.contains(message), "{}", ended.stderr);
}

/// A column does not answer a question that has other examples, or whose list or text is different
/// for each row.
#[test]
fn a_column_answers_only_the_question_that_it_lists() {
    let endpoint = endpoint();
    let project = project(&endpoint);
    for (call, why) in [
        ("LLMMap('Where is ' || 'it from?', t.name)", "\"Where is it from?\""),
        ("LLMMap('Where is it from?', t.name, examples=[])", "\"Where is it from?\""),
        ("LLMMap('Where is it from?', t.name, examples=[('pear', 'Asia')])", "no column"),
        (
            "LLMMap('Where is it from?', t.name, options=json_array('Asia', t.day))",
            "its options are a list for each row",
        ),
        ("LLMMap('Is it from ' || t.day || '?', t.name)", "its question is different for each row"),
    ] {
        let sql = format!("SELECT {{{{{call}}}}} FROM t");
        let explained = project.run_hqdl(&["explain", "--spec", "specs/x.toml", &sql]);
        assert!(explained.stdout.contains(why), "{call}: {}", explained.stdout);
    }
    assert_eq!(endpoint.request_count(), 0);
}

/// One list and a list for each row treat the same answer alike.
#[test]
fn an_answer_is_compared_with_the_options_of_a_row_before_it_is_converted() {
    let endpoint = Endpoint::start_answering(|_, _| "Yes".into());
    let project = project(&endpoint);
    for options in ["('Yes', 'No')", "json_array('Yes', 'No')"] {
        let ask = |more: &str| format!("{{{{LLMMap('Ripe?', t.name, options={options}{more})}}}}");
        for (sql, expected) in [
            (format!("SELECT DISTINCT {} FROM t", ask(", return_type='bool'")), json!([[1]])),
            (format!("SELECT DISTINCT {}::boolean FROM t", ask("")), json!([[1]])),
            (format!("SELECT DISTINCT {} FROM t", ask("")), json!([["Yes"]])),
        ] {
            assert_eq!(rows(&project, &sql), expected, "{sql}");
        }
    }
}

#[test]
fn a_search_of_an_ingredient_is_checked() {
    let endpoint = endpoint();
    for (search, problem) in [
        (r#"{ values = "docs" }"#, "are neither a column nor a query"),
        (r#"{ values = "docs.body", by = "sound" }"#, "sound"),
        (r#"{ values = "docs.body", k = -1 }"#, "-1"),
        (r#"{ values = "docs.body", n = 1 }"#, "`n`"),
        (r#"{ values = "docs.body", as = "options" }"#, "asks about rows"),
    ] {
        let spec = SPEC
            .replace(r#"search = { values = "docs.body", k = 1 }"#, &format!("search = {search}"));
        let project = Project::new(&endpoint, THINGS, &spec);
        let ended = query(&project, "SELECT {{IsFruit(name)}} FROM t").expect_exit_code(2);
        assert!(ended.stderr.contains(problem), "{search}: {}", ended.stderr);
    }
    assert_eq!(endpoint.request_count(), 0);
}
