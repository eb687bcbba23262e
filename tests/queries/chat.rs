//! `hqdl chat`: questions that follow each other. A scripted endpoint writes the queries.

use std::fs::File;
use std::sync::Arc;

use hqdl_testkit::endpoint::Endpoint;
use hqdl_testkit::project::{CommandResult, Project};
use serde_json::{Value as Json, json};

const DATABASE: &str = "
    CREATE TABLE hero (name TEXT PRIMARY KEY, email TEXT, height_cm INTEGER, side TEXT);
    INSERT INTO hero VALUES ('Hulk', 'hulk@example.com', 244, 'good'),
        ('Bane', 'bane@example.com', 203, 'bad'), ('Robin', 'robin@example.com', 170, 'good');";

const MODEL: &str = "[database]
path = \"../data.sqlite\"

[model]
provider = \"openai\"
name = \"m\"
base_url = \"{base_url}\"
api_key_env = \"HQDL_TEST_KEY\"
price = { input = 0.5, output = 1.5 }
";

const GOOD: (&str, &str) =
    ("Which heroes are good?", "SELECT name, email FROM hero WHERE side = 'good' ORDER BY name");
const TALL: (&str, &str) =
    ("and the tall ones?", "SELECT name FROM hero WHERE side = 'good' AND height_cm > 200");
const FLY: (&str, &str) =
    ("who of them can fly?", "SELECT name FROM hero WHERE {{LLMMap('Can it fly?', name)}} = 'yes'");

/// An endpoint that writes the query of a question, and answers `yes` to live questions.
fn endpoint(queries: &[(&str, &str)]) -> Endpoint {
    let to_owned = |(question, sql): &(&str, &str)| ((*question).to_owned(), (*sql).to_owned());
    let queries: Arc<[(String, String)]> = queries.iter().map(to_owned).collect();
    Endpoint::start_answering(move |column, row| {
        let question = row.key.last().and_then(Json::as_str).unwrap_or_default();
        let sql = queries.iter().find(|(asked, _)| asked == question).map(|(_, sql)| sql);
        match column.name.as_str() {
            "sql" => sql.map_or(Json::Null, |sql| sql.as_str().into()),
            "dialect" => "sqlite".into(),
            "assumptions" => Json::Null,
            "cannot_answer" => sql.map_or("you are welcome".into(), |_| Json::Null),
            _ => "yes".into(),
        }
    })
}

fn project(endpoint: &Endpoint) -> Project {
    Project::new(endpoint, DATABASE, MODEL)
}

/// Runs a conversation whose lines come from a file.
fn chat(project: &Project, flags: &[&str], lines: &[&str]) -> CommandResult {
    let path = project.path("lines.txt");
    std::fs::write(&path, lines.join("\n")).unwrap();
    let args = [&["chat", "--spec", "specs/x.toml", "--format", "csv"], flags].concat();
    let mut command = project.hqdl_command(&args);
    CommandResult::new(&command.stdin(File::open(path).unwrap()).output().unwrap())
}

#[test]
fn a_question_sees_the_earlier_queries_but_no_rows() {
    let endpoint = endpoint(&[GOOD, TALL]);
    let project = project(&endpoint);
    let talked = chat(&project, &[], &[GOOD.0, "", TALL.0]).expect_exit_code(0);
    assert_eq!(
        talked.stdout,
        "name,email\nHulk,hulk@example.com\nRobin,robin@example.com\nname\nHulk\n"
    );
    let asked: Vec<Vec<Json>> =
        endpoint.received_requests().iter().map(|r| r.question.rows[0].key.clone()).collect();
    let earlier = format!("{}\n{}\n-- 2 rows", GOOD.0, GOOD.1);
    assert_eq!(asked, [vec![json!(GOOD.0)], vec![json!(earlier), json!(TALL.0)]]);
    for request in endpoint.received_requests() {
        assert!(!request.body.to_string().contains("example.com"), "{}", request.body);
    }
    // The same conversation is stored, and its first question is that of `hqdl ask`.
    chat(&project, &[], &[GOOD.0, TALL.0]).expect_exit_code(0);
    project.run_hqdl(&["ask", "--spec", "specs/x.toml", GOOD.0]).expect_exit_code(0);
    assert_eq!(endpoint.request_count(), 2);
}

#[test]
fn a_conversation_is_resumed_and_undone() {
    let endpoint = endpoint(&[GOOD, TALL, FLY]);
    let project = project(&endpoint);
    let nothing = chat(&project, &["--resume"], &[]).expect_exit_code(2);
    assert!(nothing.stderr.contains("there is no conversation about"), "{}", nothing.stderr);
    let first = chat(&project, &[], &[GOOD.0, TALL.0]).expect_exit_code(0);
    let id = first.stderr.trim().rsplit(' ').next().unwrap().to_owned();
    let resumed = chat(&project, &["--resume"], &["/sql", "/undo", "/sql"]).expect_exit_code(0);
    assert_eq!(resumed.stdout, format!("{}\n{}\n", TALL.1, GOOD.1));
    assert!(resumed.stderr.contains("> and the tall ones?"), "{}", resumed.stderr);
    // The question after an undone one does not see it.
    chat(&project, &["--resume", &id], &[FLY.0]).expect_exit_code(6);
    let last = endpoint.received_requests().pop().unwrap().question.rows[0].key.clone();
    assert_eq!(last[0], format!("{}\n{}\n-- 2 rows", GOOD.0, GOOD.1));
    for other in ["../x", "20200101T000000Z-1"] {
        chat(&project, &["--resume", other], &[]).expect_exit_code(2);
    }
    project.execute_sql_in("other.sqlite", DATABASE);
    let other = chat(&project, &["--resume", &id, "--db", "other.sqlite"], &[]).expect_exit_code(2);
    assert!(other.stderr.contains("is about"), "{}", other.stderr);
}

#[test]
fn a_question_that_costs_needs_approval_and_the_conversation_goes_on() {
    let endpoint = endpoint(&[GOOD, FLY]);
    let project = project(&endpoint);
    let refused = chat(&project, &[], &[FLY.0, GOOD.0]).expect_exit_code(6);
    assert!(refused.stderr.contains("start the chat with --yes-under USD"), "{}", refused.stderr);
    assert!(refused.stdout.starts_with("name,email\n"), "{}", refused.stdout);
    let bodies = || -> Vec<String> {
        endpoint.received_requests().iter().map(|r| r.body.to_string()).collect()
    };
    assert!(!bodies().iter().any(|body| body.contains("rows_1")), "a value was asked for");
    let flown = chat(&project, &["--yes-under", "0.5"], &[FLY.0, "/price"]).expect_exit_code(0);
    assert!(flown.stdout.starts_with("name\nBane\n"), "{}", flown.stdout);
    assert!(flown.stdout.contains("$0.0000 for SQL, $0.0"), "{}", flown.stdout);
}

#[test]
fn an_answer_without_a_query_is_marked() {
    let endpoint = endpoint(&[GOOD]);
    let project = project(&endpoint);
    let thanked = chat(&project, &[], &[GOOD.0, "thanks!"]).expect_exit_code(1);
    assert!(
        thanked.stderr.contains("no query was run; the model says: you are welcome"),
        "{}",
        thanked.stderr
    );
}

#[test]
fn kept_questions_become_examples_that_need_no_request() {
    let endpoint = endpoint(&[GOOD, TALL]);
    let project = project(&endpoint);
    let whole = "Which good heroes are tall?";
    let keep = format!("/keep {whole}");
    let kept = chat(&project, &[], &["/keep", GOOD.0, "/keep", TALL.0, "/keep", &keep]);
    let kept = kept.expect_exit_code(2);
    for message in ["no question has been answered yet", "may depend on the earlier ones"] {
        assert!(kept.stderr.contains(message), "{message}\n{}", kept.stderr);
    }
    let spec = std::fs::read_to_string(project.path("specs/x.toml")).unwrap();
    assert!(spec.starts_with("[database]"), "{spec}");
    for (question, sql) in [(GOOD.0, GOOD.1), (whole, TALL.1)] {
        let example = format!("[[example]]\nquestion = \"{question}\"\nsql = \"{sql}\"\n");
        assert!(spec.contains(&example), "{spec}");
    }
    let requests = endpoint.request_count();
    let again = project
        .run_hqdl(&["ask", "--spec", "specs/x.toml", "--format", "csv", whole, "--keep"])
        .expect_exit_code(0);
    assert_eq!((again.stdout.as_str(), endpoint.request_count()), ("name\nHulk\n", requests));
    assert_eq!(std::fs::read_to_string(project.path("specs/x.toml")).unwrap(), spec);
}

#[test]
fn only_the_exact_query_of_the_last_question_is_kept() {
    let no_rows = ("Which heroes are huge?", "SELECT name FROM hero WHERE height_cm > 900");
    let endpoint = endpoint(&[GOOD, FLY, no_rows]);
    let project = project(&endpoint);
    let spec = project.spec_text();
    // The second question needs approval, so it has no answer; the third has no rows.
    let refused = chat(&project, &[], &[GOOD.0, FLY.0, "/keep", "/sql"]).expect_exit_code(2);
    assert_eq!(refused.stderr.matches("the last question has no query").count(), 2);
    let refused = chat(&project, &[], &[no_rows.0, "/keep"]).expect_exit_code(2);
    assert!(refused.stderr.contains("the query was not kept"), "{}", refused.stderr);
    assert_eq!(project.spec_text(), spec);
    let undone = chat(&project, &[], &[GOOD.0, FLY.0, "/undo", "/sql"]).expect_exit_code(6);
    assert!(undone.stdout.ends_with(&format!("{}\n", GOOD.1)), "{}", undone.stdout);
}

#[test]
fn a_query_in_another_dialect_is_not_kept() {
    let endpoint = Endpoint::start_answering(|column, _| match column.name.as_str() {
        "sql" => "SELECT name FROM hero WHERE name LIKE 'Hulk'".into(),
        "dialect" => "suql".into(),
        _ => Json::Null,
    });
    let project = project(&endpoint);
    let spec = project.spec_text();
    let refused = chat(&project, &[], &["Where is Hulk?", "/keep"]).expect_exit_code(2);
    assert!(refused.stderr.contains("in the dialect suql"), "{}", refused.stderr);
    assert_eq!(project.spec_text(), spec);
}

#[test]
fn conversations_that_keep_at_the_same_time_lose_no_example() {
    let endpoint = endpoint(&[GOOD]);
    let project = project(&endpoint);
    chat(&project, &[], &[GOOD.0]).expect_exit_code(0);
    // A killed process leaves its part file.
    std::fs::write(project.path("specs/x.toml.part"), "").unwrap();
    std::thread::scope(|scope| {
        for n in 0..4 {
            let project = &project;
            scope.spawn(move || {
                let args = ["chat", "--spec", "specs/x.toml", "--quiet"];
                let path = project.path(format!("lines{n}.txt"));
                let lines = format!("{}\n/keep a{n}\n/keep b{n}\n", GOOD.0);
                std::fs::write(&path, lines).unwrap();
                let mut command = project.hqdl_command(&args);
                let output = command.stdin(File::open(path).unwrap()).output().unwrap();
                CommandResult::new(&output).expect_exit_code(0);
            });
        }
    });
    assert_eq!(project.spec_text().matches("[[example]]").count(), 8);
    let files = project.path("specs").read_dir().unwrap().count();
    assert_eq!(files, 2, "a part file is left");
}

#[test]
fn rows_are_exported_to_a_new_file() {
    let endpoint = endpoint(&[GOOD, TALL]);
    let project = project(&endpoint);
    let lines = ["/export x.csv", GOOD.0, "/export x.csv", "/export x.csv", "/export x", "/x"];
    let talked = chat(&project, &[], &lines).expect_exit_code(2);
    for message in
        ["no rows to export", "cannot write x.csv", "does not indicate a format", "no command /x"]
    {
        assert!(talked.stderr.contains(message), "{message}\n{}", talked.stderr);
    }
    let written = std::fs::read_to_string(project.path("x.csv")).unwrap();
    assert_eq!(written, "name,email\nHulk,hulk@example.com\nRobin,robin@example.com\n");
}

#[test]
fn a_bad_line_ends_the_conversation_with_a_message() {
    let endpoint = endpoint(&[GOOD]);
    let project = project(&endpoint);
    let long = chat(&project, &[], &[&"tall ".repeat(400_000)]).expect_exit_code(2);
    assert!(long.stderr.contains("longer than 1 MiB"), "{}", long.stderr);
    let long = chat(&project, &[], &[&"tall ".repeat(9000), GOOD.0]).expect_exit_code(2);
    assert!(long.stderr.contains("the question is too long"), "{}", long.stderr);
    assert!(long.stdout.starts_with("name,email\n"), "{}", long.stdout);
    let count_kept = || project.path("cache/conversations").read_dir().unwrap().count();
    let kept = count_kept();
    chat(&project, &["--no-cache"], &[GOOD.0]).expect_exit_code(0);
    assert_eq!(count_kept(), kept);
    chat(&project, &["--no-cache", "--resume"], &[]).expect_exit_code(2);
}

#[test]
fn a_long_conversation_fits_the_prompt() {
    let questions: Vec<String> = (0..30).map(|n| format!("question {n}?")).collect();
    let filler = "x".repeat(600);
    let sql = format!("SELECT '{filler}'");
    let queries: Vec<(&str, &str)> = questions.iter().map(|q| (q.as_str(), sql.as_str())).collect();
    let endpoint = endpoint(&queries);
    let project = project(&endpoint);
    let lines: Vec<&str> = questions.iter().map(String::as_str).collect();
    chat(&project, &[], &lines).expect_exit_code(0);
    for request in endpoint.received_requests() {
        let key = &request.question.rows[0].key;
        assert!(key.len() == 1 || key[0].as_str().unwrap().matches("-- 1 row").count() <= 8);
    }
    let most = endpoint.billed_tokens().0 / 30;
    assert!(most <= 4000, "{most} tokens a request");
}
