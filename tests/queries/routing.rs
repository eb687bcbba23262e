//! Tests of questions that the model binds to columns: each is asked once, checked and stored.

use hqdl::prompt::{AskedColumn, AskedRow};
use serde_json::{Value as Json, json};

use hqdl_testkit::endpoint::{Endpoint, Fault, Frequency};
use hqdl_testkit::project::{
    CommandResult, EXPANSION, EXPANSION_COLUMNS, HEROES, MODEL, Project, true_value,
};

/// Returns the answer of a model that knows its columns: column, operator, literal.
fn binding(question: &str) -> [Json; 3] {
    let said = match question {
        "Are the eyes blue?" => ["eye_color", "=", "blue"],
        "Eyes of no cold colour?" => ["eye_color", "in", "[\"Brown\", \"Green\"]"],
        "In which year was this one born?" => ["born", "is", ""],
        "Older than fifty in 1960?" => ["BORN", "<", "1910"],
        "Can it fly?" => ["powers", "has", "Flight"],
        "Are the eyes red?" => ["eye_color", "=", "Red"],
        "Is the motto after Z?" => ["motto", ">", "Z"],
        "Who drew it?" => ["artist", "is", ""],
        "Is it famous?" => ["born", "about", "1950"],
        "Which colour, then?" => ["eye_color", "is", ""],
        _ => ["none", "none", ""],
    };
    said.map(|s| if s.is_empty() { Json::Null } else { s.into() })
}

fn answer(column: &AskedColumn, row: &AskedRow) -> Json {
    let said = || binding(row.key[0].as_str().unwrap());
    match column.name.as_str() {
        "column" => said()[0].clone(),
        "operator" => said()[1].clone(),
        "literal" => said()[2].clone(),
        // Asked live.
        "answer" if column.data_type == "boolean" => true.into(),
        "answer" if column.data_type == "integer" => 1.into(),
        "answer" => "live".into(),
        name => true_value(name, &row.key),
    }
}

fn project(endpoint: &Endpoint) -> Project {
    let spec = [MODEL, "[routing]\nmodel = true\n", EXPANSION, EXPANSION_COLUMNS].concat();
    Project::new(endpoint, HEROES, &spec)
}

fn query(project: &Project, sql: &str) -> CommandResult {
    project.run_hqdl(&["query", "--spec", "specs/x.toml", "--json", sql])
}

fn route(ended: &CommandResult) -> Json {
    ended.lines[0]["meta"]["routes"][0].clone()
}

/// Returns the number of requests that asked which column answers.
fn routing(endpoint: &Endpoint) -> usize {
    endpoint.received_requests().iter().filter(|r| r.question.table == "routing").count()
}

/// Returns the names of the heroes whose column satisfies a condition.
fn heroes(project: &Project, column: &str, holds: impl Fn(&Json) -> bool) -> Json {
    let rows = project.query_rows("SELECT name, full_name FROM hero ORDER BY id");
    rows.iter().filter(|r| holds(&true_value(column, r))).map(|r| json!([r[0]])).collect()
}

fn where_(question: &str) -> String {
    format!("SELECT name FROM hero WHERE {{{{LLMMap('{question}', hero.name)}}}} ORDER BY id")
}

#[test]
fn a_question_is_bound_once_and_answered_by_the_column() {
    let endpoint = Endpoint::start_answering(answer);
    let project = project(&endpoint);
    project.run_materialize(&[]).expect_exit_code(0);
    let before = endpoint.request_count();
    let sql = where_("Are the eyes blue?");
    // `explain` sends no request.
    let explained =
        project.run_hqdl(&["explain", "--spec", "specs/x.toml", &sql]).expect_exit_code(0);
    assert!(
        explained.stdout.contains("would ask the model whether a column of `llm`"),
        "{}",
        explained.stdout
    );
    assert_eq!(endpoint.request_count(), before);
    let ended = query(&project, &sql).expect_exit_code(0);
    assert_eq!(ended.lines[0]["rows"], heroes(&project, "eye_color", |v| v == "Blue"));
    let route = route(&ended);
    let place = [&route["route"], &route["expansion"], &route["column"]];
    assert_eq!(place, ["bound", "llm", "eye_color"]);
    let why = route["why"].as_str().unwrap();
    assert!(why.starts_with("by the model, 20") && why.contains("\"eye_color\" = 'Blue'"), "{why}");
    let meta = &ended.lines[0]["meta"];
    assert_eq!((&meta["requests"], &meta["values_asked"]), (&json!(1), &json!(0)), "{meta:#}");
    assert_eq!((routing(&endpoint), endpoint.request_count()), (1, before + 1));
    let shown = endpoint.received_requests()[before].question.rows[0].clone();
    let columns: Json = serde_json::from_str(shown.context[0].as_str().unwrap()).unwrap();
    assert_eq!(columns[0]["values"], json!(["Blue", "Brown", "Green"]));
    assert_eq!(columns[2]["many"], true);
    // Never again, in whatever spelling; and `explain` uses the stored answer.
    let again = query(&project, &where_("are the EYES blue")).expect_exit_code(0);
    assert_eq!(again.lines[0]["rows"], ended.lines[0]["rows"]);
    let explained =
        project.run_hqdl(&["explain", "--spec", "specs/x.toml", &sql]).expect_exit_code(0);
    assert!(explained.stdout.contains("bound llm.eye_color"), "{}", explained.stdout);
    assert!(explained.stdout.contains("by the model, 20"), "{}", explained.stdout);
    assert_eq!(endpoint.request_count(), before + 1);
    // The spec's own questions need no model.
    query(&project, "SELECT {{LLMMap('What is the eye colour?', name)}} FROM hero")
        .expect_exit_code(0);
    assert_eq!(endpoint.request_count(), before + 1);
    // A new column may be a better answer.
    project.write_spec(&(project.spec_text() + "\n[[expansion.column]]\nname = \"iris\"\n"));
    query(&project, &sql).expect_exit_code(0);
    assert_eq!(routing(&endpoint), 2);
}

#[test]
fn every_operator_is_sql_over_the_column() {
    let endpoint = Endpoint::start_answering(answer);
    let project = project(&endpoint);
    project.run_materialize(&[]).expect_exit_code(0);
    let before = endpoint.request_count();
    let holds = |question: &str, expected: Json| {
        let ended = query(&project, &where_(question)).expect_exit_code(0);
        assert_eq!(route(&ended)["route"], "bound", "{question}: {}", ended.stdout);
        assert_eq!(ended.lines[0]["rows"], expected, "{question}: {}", ended.stdout);
    };
    holds("Eyes of no cold colour?", heroes(&project, "eye_color", |v| v != "Blue"));
    holds("Older than fifty in 1960?", heroes(&project, "born", |v| v.as_i64() < Some(1910)));
    holds(
        "Can it fly?",
        heroes(&project, "powers", |v| v.as_array().unwrap().contains(&json!("Flight"))),
    );
    let sql = "SELECT {{LLMMap('In which year was this one born?', name)}} FROM hero WHERE id = 1";
    let ended = query(&project, sql).expect_exit_code(0);
    assert_eq!(route(&ended)["route"], "bound");
    assert_eq!(
        ended.lines[0]["rows"],
        json!([[true_value("born", &[json!("Blaze"), json!("Ann Fire")])]])
    );
    assert_eq!(routing(&endpoint), 4);
    assert_eq!(endpoint.request_count(), before + 4);
}

#[test]
fn rejected_bindings_are_asked_live_and_remembered() {
    let endpoint = Endpoint::start_answering(answer);
    let project = project(&endpoint);
    let wrong = [
        "Are the eyes red?",
        "Is the motto after Z?",
        "Who drew it?",
        "Is it famous?",
        "What is the meaning of it?",
        // A value, although the call asks for true or false.
        "Which colour, then?",
    ];
    for (n, question) in wrong.iter().enumerate() {
        let ended = query(&project, &where_(question)).expect_exit_code(0);
        let route = route(&ended);
        assert_eq!(route["route"], "ad-hoc", "{route:#}");
        assert!(route["why"].as_str().unwrap().starts_with("by the model, 20"), "{route:#}");
        assert_eq!(routing(&endpoint), n + 1);
    }
    let before = endpoint.request_count();
    for question in wrong {
        query(&project, &where_(question)).expect_exit_code(0);
    }
    assert_eq!(endpoint.request_count(), before);
    // Values that are not keys of an expansion cause no request about it.
    query(&project, "SELECT {{LLMMap('Are the eyes blue?', 'a')}}").expect_exit_code(0);
    query(&project, "SELECT {{LLMMap('Are the eyes blue?', power)}} FROM power")
        .expect_exit_code(0);
    assert_eq!(routing(&endpoint), wrong.len());
    // Nor is there a request if the spec does not enable it.
    project.write_spec(&project.spec_text().replace("model = true", "model = false"));
    query(&project, &where_("Are the eyes blue?")).expect_exit_code(0);
    assert_eq!(routing(&endpoint), wrong.len());
}

#[test]
fn a_failed_request_is_not_an_answer() {
    let endpoint = Endpoint::start_answering(answer);
    let project = project(&endpoint);
    project.run_materialize(&[]).expect_exit_code(0);
    endpoint.add_fault_where(Fault::ContextLength(0), Frequency::Always, |q| q.table == "routing");
    let ended = query(&project, &where_("Are the eyes blue?")).expect_exit_code(0);
    assert_eq!(route(&ended)["route"], "ad-hoc");
    assert!(
        route(&ended)["why"].as_str().unwrap().contains("failed to say"),
        "{:#}",
        route(&ended)
    );
    endpoint.clear_faults();
    let ended = query(&project, &where_("Are the eyes blue?")).expect_exit_code(0);
    assert_eq!(route(&ended)["route"], "bound");
    // The budget applies to these questions, too.
    let mut spec = project.spec_text();
    spec = spec.replace("concurrency = 4", "concurrency = 4\nbudget_usd = 0.000001");
    project.write_spec(&spec);
    let ended = query(&project, &where_("Can it fly?")).expect_exit_code(3);
    assert!(ended.stderr.contains("budget"), "{}", ended.stderr);
}

#[test]
fn suggest_moves_bindings_into_the_spec() {
    let endpoint = Endpoint::start_answering(answer);
    let project = project(&endpoint);
    project.run_materialize(&[]).expect_exit_code(0);
    let questions =
        ["Are the eyes blue?", "Can it fly?", "Eyes of no cold colour?", "Who drew it?"];
    for question in questions {
        query(&project, &where_(question)).expect_exit_code(0);
    }
    query(&project, "SELECT {{LLMMap('In which year was this one born?', name)}} FROM hero")
        .expect_exit_code(0);
    let before = endpoint.request_count();
    let shown = project.run_hqdl(&["suggest", "--spec", "specs/x.toml"]).expect_exit_code(0);
    let sql = r#"questions = [{ ask = "Can it fly?", sql = "EXISTS 'Flight'" }]"#;
    assert!(shown.stdout.contains(sql), "{}", shown.stdout);
    let written = project
        .run_hqdl(&["suggest", "--spec", "specs/x.toml", "--write", "--json"])
        .expect_exit_code(0);
    let added = &written.lines[0]["written"];
    assert_eq!(added["questions"].as_array().unwrap().len(), 4, "{added:#}");
    assert_eq!(added["columns"], json!(["llm.who_drew_it"]));
    project.run_hqdl(&["check", "specs/x.toml"]).expect_exit_code(0);
    let text = project.spec_text();
    assert!(
        text.contains(r#"questions = ["What is the eye colour?", { ask = "Are the eyes blue?","#),
        "{text}"
    );
    assert!(text.contains(r#"questions = ["In which year was this one born?"]"#), "{text}");
    let again =
        project.run_hqdl(&["suggest", "--spec", "specs/x.toml", "--write"]).expect_exit_code(0);
    assert!(again.stderr.contains("nothing to add"), "{}", again.stderr);
    assert_eq!(project.spec_text(), text);
    // A binding in the spec is equivalent, and no model is asked.
    for question in &questions[..3] {
        let ended = query(&project, &where_(question)).expect_exit_code(0);
        assert_eq!(route(&ended)["route"], "bound");
        assert!(route(&ended)["why"].as_str().unwrap().starts_with('"'), "{:#}", route(&ended));
    }
    let ended = query(&project, &where_("Can it fly?")).expect_exit_code(0);
    let fly = heroes(&project, "powers", |v| v.as_array().unwrap().contains(&json!("Flight")));
    assert_eq!(ended.lines[0]["rows"], fly);
    assert_eq!(endpoint.request_count(), before);
}

/// A question of the spec about the only row of a subquery is answered by the column.
#[test]
fn a_question_about_one_row_is_answered_by_the_column() {
    let endpoint = Endpoint::start_answering(answer);
    let project = Project::new(&endpoint, HEROES, &[MODEL, EXPANSION, EXPANSION_COLUMNS].concat());
    project.run_materialize(&[]).expect_exit_code(0);
    let before = endpoint.request_count();
    let names = project.query_rows("SELECT name, full_name FROM hero WHERE name = 'Zed'");
    let (name, colour) = (names[0][0].as_str().unwrap(), true_value("eye_color", &names[0]));
    let asked = |context: &str| format!("{{{{LLMQA('What is the eye colour?', ({context}))}}}}");
    let of_one = format!("SELECT hero.name FROM hero WHERE name = '{name}'");
    let union = format!("SELECT 'nobody' AS name UNION {of_one}");
    for sql in [
        asked(&of_one),
        format!("SELECT {}", asked(&union)),
        format!("SELECT {}", asked("SELECT name, full_name FROM hero ORDER BY id DESC LIMIT 1")),
        format!("SELECT value FROM {}", asked(&of_one)),
        format!("SELECT x FROM (SELECT 1, {} AS x)", asked(&of_one)),
        asked(&of_one).replace("LLMQA", "llmqa"),
    ] {
        let ended = query(&project, &sql).expect_exit_code(0);
        assert_eq!(ended.lines[0]["rows"], json!([[colour]]), "{sql}");
        assert_eq!(route(&ended)["route"], "column", "{sql}");
    }
    let sql = format!("SELECT count(*) FROM hero WHERE {} = {colour}", asked(&of_one));
    let ended = query(&project, &sql.replace('"', "'")).expect_exit_code(0);
    assert_eq!(ended.lines[0]["rows"], json!([[10]]));
    // The subquery uses only one of the parameters.
    let by_name = asked("SELECT name FROM hero WHERE name = :n");
    let sql = format!("SELECT {by_name} WHERE :k IS NOT NULL");
    let flags = ["query", "--spec", "specs/x.toml", "--json", "--param", "n=Zed", "--param", "k=1"];
    let ended = project.run_hqdl(&[flags.as_slice(), &["--", &sql]].concat()).expect_exit_code(0);
    assert_eq!(ended.lines[0]["rows"], json!([[colour]]));
    assert_eq!(endpoint.request_count(), before);
    // About several rows, no row or computed values, or another question: asked live as before.
    for sql in [
        asked("SELECT name FROM hero"),
        asked(&format!("{of_one} AND 0")),
        asked(&format!("SELECT upper(name) FROM hero WHERE name = '{name}'")),
        asked(&format!("SELECT count(name) FROM hero WHERE name = '{name}'")),
        asked("SELECT 'somebody' AS name"),
        format!("WITH hero AS (SELECT name FROM main.hero) SELECT {}", asked(&of_one)),
        asked(&of_one).replace("What is the eye colour?", "Is it the first of them?"),
    ] {
        let explained = project.run_hqdl(&["explain", "--spec", "specs/x.toml", "--json", &sql]);
        let routes = &explained.expect_exit_code(0).lines[0];
        let route = routes["routes"][0]["route"].as_str();
        let route = route.or_else(|| routes.pointer("/meta/routes/0/route")?.as_str());
        assert_eq!(route, Some("ad-hoc"), "{sql}");
    }
}
