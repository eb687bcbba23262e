//! Tests of documents: which parts of long ones are shown, and in which order rows are asked about.

use std::time::Duration;

use hqdl::tokens::Tokenizer;
use rusqlite::params;
use serde_json::{Value as Json, json};

use hqdl_testkit::concurrent::each;
use hqdl_testkit::embedder::{Behavior, Embedder};
use hqdl_testkit::endpoint::Endpoint;
use hqdl_testkit::project::{CommandResult, Project};
use hqdl_testkit::restaurants::{self, COUNT, SeededRandom};

const QUESTION: &str = "is there live jazz?";
const SQL: &str = "SELECT name, hit FROM restaurants WHERE answer(reviews, 'is there live jazz?') = 'Yes' LIMIT 3";

fn spec(more: &str) -> String {
    format!(
        "[database]\npath = \"../data.sqlite\"\n[model]\nname = \"gpt-4o-mini\"\nbase_url = \"{{base_url}}\"\n{more}\n\
         [[expansion]]\nname = \"llm\"\nsource = \"restaurants\"\nkey = [\"name\"]\n[[expansion.column]]\nname = \"mood\"\n"
    )
}

/// Creates restaurants, one in twenty of which has live jazz and mentions that in one review.
fn project(endpoint: &Endpoint, more: &str, count: u64) -> Project {
    let project = Project::new(
        endpoint,
        "CREATE TABLE restaurants (name TEXT, reviews TEXT, hit INTEGER)",
        &spec(more),
    );
    let mut connection = project.connect();
    let transaction = connection.transaction().unwrap();
    let mut dice = SeededRandom(11);
    for n in 0..count {
        let mut reviews: Vec<String> =
            (0..5).map(|r| format!("Review {r} of {n}. The bread was fine.")).collect();
        let hit = dice.next_below(20) == 0;
        if hit || dice.next_below(3) == 0 {
            let says = if hit { "Yes" } else { "No" };
            let at = dice.next_below(5) as usize;
            reviews[at].push_str(&format!(" Q: {QUESTION} A: {says}."));
        }
        let name = format!("Restaurant {n}");
        let sql = "INSERT INTO restaurants VALUES (?1, ?2, ?3)";
        transaction.execute(sql, params![name, json!(reviews).to_string(), hit]).unwrap();
    }
    transaction.commit().unwrap();
    project
}

fn query(project: &Project, flags: &[&str], sql: &str) -> CommandResult {
    project
        .run_hqdl(&[&["query", "--spec", "specs/x.toml", "--json"], flags, &["--", sql]].concat())
}

/// Returns the number of documents that were asked about.
fn asked(endpoint: &Endpoint) -> usize {
    endpoint.received_requests().iter().map(|r| r.question.rows.len()).sum()
}

/// Asserts that there are three rows, all of which have live jazz.
fn right(ended: &CommandResult) {
    let rows = ended.lines[0]["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 3, "{}", ended.stdout);
    assert!(rows.iter().all(|r| r[1] == 1), "{}", ended.stdout);
}

/// Embedding in which restaurants with live jazz are most similar.
fn well(text: &str) -> Vec<f32> {
    if text == QUESTION || text.contains("A: Yes") {
        vec![1.0, 0.1, 0.0]
    } else {
        vec![0.1, 1.0, 0.2]
    }
}

/// Random embedding.
fn at_random(text: &str) -> Vec<f32> {
    let seed = text.bytes().fold(3u64, |h, b| h.wrapping_mul(31).wrapping_add(b.into()));
    let mut dice = SeededRandom(seed);
    (0..8).map(|_| dice.next_below(1000) as f32 / 500.0 - 1.0).collect()
}

#[test]
fn limit_asks_first_about_the_documents_most_similar_to_the_question() {
    let endpoint = Endpoint::start_answering(restaurants::answer_cell);
    let embedder = Embedder::new(well);
    let project = project(&endpoint, &embedder.spec_section(), COUNT);
    let ended = query(&project, &[], SQL).expect_exit_code(0);
    right(&ended);
    // A perfect retriever would ask about 3.
    println!("{} documents asked, {} embedded", asked(&endpoint), embedder.received_texts().len());
    assert!(asked(&endpoint) as f64 <= 1.3 * 3.0, "{} documents were asked", asked(&endpoint));
    let (requests, embedded) = (endpoint.request_count(), embedder.request_count());
    // Known answers are neither requested nor embedded again.
    let again = query(&project, &[], SQL).expect_exit_code(0);
    assert_eq!(again.lines[0]["rows"], ended.lines[0]["rows"]);
    assert_eq!((endpoint.request_count(), embedder.request_count()), (requests, embedded));
    // After an edit, only the changed passage is embedded.
    project.execute_sql(
        "UPDATE restaurants SET reviews = replace(reviews, 'Review 0 of 5. The bread', 'A review. The bread') WHERE name = 'Restaurant 5'",
    );
    let before = embedder.received_texts().len();
    right(&query(&project, &[], SQL).expect_exit_code(0));
    assert_eq!(
        embedder.received_texts()[before..].len(),
        1,
        "{:?}",
        &embedder.received_texts()[before..]
    );
}

#[test]
fn a_bad_order_never_gives_a_wrong_row() {
    let endpoint = Endpoint::start_answering(restaurants::answer_cell);
    let embedder = Embedder::new(at_random);
    let project = project(&endpoint, &embedder.spec_section(), COUNT);
    let ended = query(&project, &[], SQL);
    right(&ended);
    println!("{} documents asked", asked(&endpoint));
    // A count needs all of them, whatever the order.
    let sql = "SELECT count(*), sum(hit) FROM restaurants WHERE answer(reviews, 'is there live jazz?') = 'Yes'";
    let ended = query(&project, &[], sql);
    let expected = project.query_rows("SELECT sum(hit), sum(hit) FROM restaurants");
    assert_eq!(ended.lines[0]["rows"], json!(expected));
}

#[test]
fn rows_without_an_embeddings_model_are_ordered_by_their_words() {
    let endpoint = Endpoint::start_answering(restaurants::answer_cell);
    let project = project(&endpoint, "", COUNT);
    right(&query(&project, &[], SQL));
    // A third of the other restaurants also mention live jazz in a review, so the words alone do
    // not identify the right ones.
    println!("{} documents asked", asked(&endpoint));
    assert!(asked(&endpoint) < 60, "{} documents were asked", asked(&endpoint));
    // OFFSET and values use the same order.
    let sql = format!(
        "SELECT name, hit, answer(reviews, '{QUESTION}') AS a, summary(reviews) FROM restaurants WHERE answer(reviews, '{QUESTION}') = 'Yes' LIMIT 2 OFFSET 1"
    );
    let ended = query(&project, &[], &sql);
    let rows = ended.lines[0]["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2);
    assert!(rows.iter().all(|r| r[1] == 1 && r[2] == "Yes" && r[3] == "5 texts"), "{rows:?}");
    let before = endpoint.request_count();
    assert_eq!(query(&project, &[], &sql).lines[0]["rows"], ended.lines[0]["rows"]);
    assert_eq!(endpoint.request_count(), before);
}

#[test]
fn failed_embeddings_are_replaced_by_words_and_reported() {
    let endpoint = Endpoint::start_answering(restaurants::answer_cell);
    for (mood, says) in [
        (Behavior::Failing, "out of order"),
        (Behavior::Slow(Duration::from_secs(20)), "does not answer in time"),
        (Behavior::Nonsense, "is not a list of"),
    ] {
        let embedder = Embedder::new(well);
        let impatient = format!("{}timeout_seconds = 1\n", embedder.spec_section());
        let project = project(&endpoint, &impatient, 200);
        embedder.set_behavior(mood);
        let ended = query(&project, &[], SQL);
        right(&ended);
        let said =
            ended.stderr.contains("compares texts by their words") && ended.stderr.contains(says);
        assert!(said, "{mood:?}: {}", ended.stderr);
    }
    // An endpoint that does not exist.
    let project = project(&endpoint, &Embedder::new(well).spec_section(), 200);
    let ended = query(&project, &[], SQL);
    right(&ended);
    assert!(ended.stderr.contains("compares texts by their words"), "{}", ended.stderr);
}

#[test]
fn vectors_of_another_dimension_belong_to_another_model() {
    let endpoint = Endpoint::start_answering(restaurants::answer_cell);
    let embedder = Embedder::new(well);
    let project = project(&endpoint, &embedder.spec_section(), 200);
    right(&query(&project, &[], SQL));
    let known = embedder.received_texts().len();
    project.execute_sql(
        "UPDATE restaurants SET reviews = replace(reviews, 'bread', 'cake') WHERE hit = 0",
    );
    embedder.set_behavior(Behavior::ExtraDimension);
    let ended = query(&project, &[], SQL);
    right(&ended);
    assert!(ended.stderr.contains("vectors of 3 numbers before, and of 4 now"), "{}", ended.stderr);
    // The next run starts over.
    let ended = query(&project, &[], SQL);
    right(&ended);
    assert!(!ended.stderr.contains("by their words"), "{}", ended.stderr);
    assert!(embedder.received_texts().len() > known + 200);
}

/// The maximum that `explain` prints includes the embeddings of rows and of passages.
#[test]
fn explain_counts_embeddings() {
    let jazz = "is there live jazz?";
    let long = "The bread was fine, and so was the soup. ".repeat(60);
    let cases = [
        (SQL.to_owned(), String::new(), "[limits]\n"),
        (
            format!("SELECT answer(reviews, '{jazz}') FROM restaurants WHERE hit = 1"),
            format!("{long} Q: {jazz} A: Yes. {long}"),
            "[limits]\npassage_tokens = 300\n",
        ),
    ];
    for (sql, more, limits) in cases {
        let endpoint = Endpoint::start_answering(restaurants::answer_cell);
        let embedder = Embedder::new(well);
        let settings = format!("{}price = 10.0\n{limits}", embedder.spec_section());
        let settings = format!("price = {{ input = 1.0, output = 1.0 }}\n{settings}");
        let project = project(&endpoint, &settings, 60);
        project
            .connect()
            .execute("UPDATE restaurants SET reviews = reviews || ?1", [&more])
            .unwrap();
        let told = project
            .run_hqdl(&["explain", "--spec", "specs/x.toml", "--json", &sql])
            .expect_exit_code(0);
        assert_eq!(
            (endpoint.request_count(), embedder.request_count()),
            (0, 0),
            "explain asks nothing"
        );
        let ran = query(&project, &[], &sql);
        assert!(embedder.received_texts().len() > 2, "{}", embedder.received_texts().len());
        let (most, meta) = (&told.lines[0], &ran.lines[0]["meta"]);
        for of in ["requests", "input_tokens", "cost_usd"] {
            let (most, ran) = (most[of].as_f64().unwrap(), meta[of].as_f64().unwrap());
            assert!(most >= ran, "{of}: {ran}, at most {most}: {}", told.stdout);
        }
    }
}

#[test]
fn embeddings_are_paid_from_the_budget() {
    let endpoint = Endpoint::start_answering(restaurants::answer_cell);
    let embedder = Embedder::new(well);
    let more = format!("{}price = 1000.0\n[limits]\nbudget_usd = 0.5\n", embedder.spec_section());
    let more = format!("price = {{ input = 0.0, output = 0.0 }}\n{more}");
    let project = project(&endpoint, &more, COUNT);
    let ended = query(&project, &[], SQL);
    right(&ended);
    assert!(ended.stderr.contains("the budget is reached"), "{}", ended.stderr);
    let spent = ended.lines[0]["meta"]["cost_usd"].as_f64().unwrap();
    assert!(spent <= 0.5, "{spent}");
}

/// A false usage report for embeddings costs one request, not as many as may be in flight.
#[test]
fn the_first_request_for_embeddings_is_sent_alone() {
    for reported in [1_u64, 1 << 40] {
        let endpoint = Endpoint::start_answering(restaurants::answer_cell);
        let embedder = Embedder::new(well);
        embedder.set_behavior(Behavior::Slow(Duration::from_millis(50)));
        let honest = json!({ "prompt_tokens": "true", "total_tokens": "true" });
        let usage = json!({ "prompt_tokens": reported, "total_tokens": reported });
        embedder.set_usage(Some(usage));
        let more = format!("{}price = 1000.0\n", embedder.spec_section());
        let more = format!("price = {{ input = 0.0, output = 0.0 }}\n{more}");
        let project = project(&endpoint, &more, COUNT);
        let ended = query(&project, &[], SQL).expect_exit_code(4);
        assert_eq!(embedder.request_count(), 1, "{reported}: {}", ended.stderr);
        // Answers are kept, and the run continues once the endpoint reports correctly.
        embedder.set_usage(Some(honest));
        right(&query(&project, &[], SQL));
        let texts = embedder.received_texts();
        let different: std::collections::HashSet<&String> = texts.iter().collect();
        assert_eq!(texts.len(), different.len(), "{reported}: asked twice");
    }
}

/// Whatever usage the endpoint reports, its tokens never count as zero.
#[test]
fn embeddings_are_billed_whatever_shape_their_usage_has() {
    let shapes = [
        (None, false),
        (Some(Json::Null), false),
        (Some(json!([])), false),
        (Some(json!("many")), false),
        (Some(json!({})), false),
        (Some(json!({ "prompt_tokens": null })), false),
        (Some(json!({ "prompt_tokens": 0, "total_tokens": 0 })), false),
        (Some(json!({ "prompt_tokens": -7 })), false),
        (Some(json!({ "prompt_tokens": { "text": 7 } })), false),
        (Some(json!({ "prompt_tokens": "float" })), true),
        (Some(json!({ "prompt_tokens": "text" })), true),
        (Some(json!({ "prompt_tokens": 0, "total_tokens": "true" })), true),
        (Some(json!({ "input_tokens": "true" })), true),
    ];
    let cases = shapes.into_iter().map(|(usage, said)| (format!("{usage:?}"), (usage, said)));
    each(cases.collect(), |(usage, said)| {
        let endpoint = Endpoint::start_answering(restaurants::answer_cell);
        let embedder = Embedder::new(well);
        embedder.set_usage(usage);
        let more = format!("{}price = 1000.0\n", embedder.spec_section());
        let more = format!("price = {{ input = 0.0, output = 0.0 }}\n{more}");
        let project = project(&endpoint, &more, 60);
        let ended = query(&project, &[], SQL);
        let spent = ended.lines[0]["meta"]["cost_usd"].as_f64().unwrap();
        let billed = embedder.billed_tokens() as f64 / 1000.0;
        assert!(spent >= billed - 1e-9, "{spent} spent, {billed} billed");
        assert!(!said || spent <= billed + 1e-9, "{spent} spent, {billed} billed");
        assert!(billed > 0.0 && spent <= 2.0 * billed, "{spent} spent, {billed} billed");
    });
}

#[test]
fn a_long_document_is_shown_by_its_passages_within_the_budget() {
    let endpoint = Endpoint::start_answering(restaurants::answer_cell);
    let project = Project::new(
        &endpoint,
        "CREATE TABLE doc (id INTEGER, text TEXT)",
        &spec("[limits]\npassage_tokens = 500\n")
            .replace("restaurants", "doc")
            .replace("\"name\"]", "\"id\"]"),
    );
    let filler = "The quick brown fox jumps over the lazy dog, and nobody knows why. ".repeat(600);
    let text = format!(
        "{filler}\n\nQ: is there live jazz? A: Yes.\n\n{filler}\n\nQ: what is the colour of the door? A: green.\n\n{filler}"
    );
    project.connect().execute("INSERT INTO doc VALUES (1, ?1)", [&text]).unwrap();
    let sql = "SELECT answer(text, 'is there live jazz?'), answer(text, 'what is the colour of the door?'), summary(text) FROM doc";
    let ended = query(&project, &[], sql).expect_exit_code(0);
    assert_eq!(ended.lines[0]["rows"], json!([["Yes", "green", "0 texts"]]));
    let tokenizer = Tokenizer::for_model("gpt-4o-mini");
    for request in endpoint.received_requests() {
        let shown = request.question.rows[0].context[0].as_str().unwrap();
        let tokens = tokenizer.count_tokens(shown);
        assert!(tokens <= 500, "{tokens} tokens were shown");
        assert!(tokens > 200, "only {tokens} tokens were shown");
    }
    let before = endpoint.request_count();
    query(&project, &[], sql).expect_exit_code(0);
    assert_eq!(endpoint.request_count(), before);
}

#[test]
fn texts_of_megabytes_and_without_letters_are_read() {
    let endpoint = Endpoint::start_answering(restaurants::answer_cell);
    let project = Project::new(
        &endpoint,
        "CREATE TABLE doc (id INTEGER, text TEXT)",
        &spec("")
            .replace("gpt-4o-mini", "nobody-knows")
            .replace("restaurants", "doc")
            .replace("\"name\"]", "\"id\"]"),
    );
    let words = "Words and words and words without an end. ".repeat(120_000);
    let dense = "x".repeat(5_000_000);
    let texts = [
        format!("{words} Q: is there live jazz? A: Yes. {words}"),
        format!("{dense} Q: is there live jazz? A: No."),
        "\u{1f3b7}".repeat(300_000),
    ];
    for (id, text) in texts.iter().enumerate() {
        project.connect().execute("INSERT INTO doc VALUES (?1, ?2)", params![id, text]).unwrap();
    }
    let sql = "SELECT id, answer(text, 'is there live jazz?') FROM doc ORDER BY id";
    let ended = query(&project, &[], sql).expect_exit_code(0);
    assert_eq!(ended.lines[0]["rows"], json!([[0, "Yes"], [1, "No"], [2, null]]));
    // Keys are readable and short.
    let listed = project.run_hqdl(&["cache", "list"]).expect_exit_code(0);
    assert!(listed.stdout.len() < 5000, "{} bytes", listed.stdout.len());
}

/// Contexts from a table of documents, as in questions like those of `HybridQA`, `OTT-QA` and
/// `FEVEROUS`: found by their words, then asked about.
#[test]
fn documents_that_match_are_the_context_of_a_question() {
    let endpoint = Endpoint::start_answering(|column, row| {
        let context = row.context[0].as_str().unwrap_or_default();
        match column.data_type.as_str() {
            "boolean" => (context.contains("1964") && context.contains("Tokyo")).into(),
            "integer" => 1964.into(),
            _ if context.contains("Bikila") => "Abebe Bikila".into(),
            _ => Json::Null,
        }
    });
    let project = Project::new(
        &endpoint,
        "CREATE TABLE marathon (year INTEGER, city TEXT, winner TEXT);
         INSERT INTO marathon VALUES (1960, 'Rome', 'A. Bikila'), (1964, 'Tokyo', 'A. Bikila'), (1968, 'Mexico City', 'M. Wolde');
         CREATE VIRTUAL TABLE documents USING fts5 (title, content, tokenize = 'trigram');
         INSERT INTO documents VALUES ('Abebe Bikila', 'Abebe Bikila was an Ethiopian runner who won in Rome and in Tokyo, 1964.'),
           ('Mamo Wolde', 'Mamo Wolde ran for Ethiopia.'), ('Bread', 'Bread is baked.');",
        &spec("").replace("restaurants", "marathon").replace("\"name\"]", "\"year\"]"),
    );
    let cases = [
        // HybridQA: from a cell to the passage about it.
        ("SELECT {{LLMQA('Who is the runner who won in 1964?', (SELECT d.title AS name, d.content FROM documents AS d JOIN (SELECT winner FROM marathon WHERE year = 1964) AS w WHERE d.documents MATCH 'Bikila'))}}",
         json!([["Abebe Bikila"]]), 1),
        ("SELECT city FROM marathon WHERE year = {{LLMQA('In which year was the second win?', context=(SELECT content FROM documents WHERE documents MATCH 'Ethiopian AND runner'), return_type='int')}}",
         json!([["Tokyo"]]), 1),
        // OTT-QA: no passage is given in advance.
        ("WITH found AS (SELECT title, content FROM documents WHERE documents MATCH 'runner OR Ethiopia' ORDER BY rank LIMIT 2)
          SELECT {{LLMQA('Who won twice?', (SELECT * FROM found))}}", json!([["Abebe Bikila"]]), 2),
        // FEVEROUS: a claim about rows and passages together.
        ("{{LLMValidate('The winner in Rome won again in 1964.', context=(SELECT m.city, d.content FROM marathon AS m, documents AS d WHERE d.documents MATCH 'Rome' AND m.year = 1964))}}",
         json!([[1]]), 1),
        ("SELECT EXISTS (SELECT 1 FROM marathon WHERE city = 'Tokyo') AND {{LLMValidate('A runner won in Tokyo in 1964', (SELECT content FROM documents WHERE documents MATCH 'Wolde'))}}",
         json!([[0]]), 1),
        // A question about each document that matches.
        ("SELECT title FROM documents WHERE documents MATCH 'Ethiopia' AND answer(content, 'is this about Tokyo?') = 'Yes'",
         json!([["Abebe Bikila"]]), 2),
    ];
    for (sql, rows, contexts) in cases {
        let before = endpoint.request_count();
        let ended = query(&project, &[], sql).expect_exit_code(0);
        assert_eq!(ended.lines[0]["rows"], rows, "{sql}");
        let shown: usize = endpoint.received_requests()[before..]
            .iter()
            .flat_map(|r| &r.question.rows)
            .map(|row| {
                let text = row.context[0].as_str().unwrap_or_default();
                let json: Json = serde_json::from_str(text).unwrap_or_default();
                json["rows"].as_array().map_or(1, Vec::len)
            })
            .sum();
        assert_eq!(shown, contexts, "{sql}");
        // Nothing is requested twice.
        let before = endpoint.request_count();
        query(&project, &[], sql).expect_exit_code(0);
        assert_eq!(endpoint.request_count(), before, "{sql}");
    }
}

#[test]
fn questions_about_documents_are_listed_with_their_cost() {
    let endpoint = Endpoint::start_answering(restaurants::answer_cell);
    let project = project(&endpoint, "", 30);
    query(&project, &[], SQL);
    let ended = project.run_hqdl(&["suggest", "--spec", "specs/x.toml"]).expect_exit_code(0);
    assert!(ended.stdout.contains(QUESTION), "{}", ended.stdout);
    println!("{}", ended.stdout);
    let explained =
        project.run_hqdl(&["explain", "--spec", "specs/x.toml", SQL]).expect_exit_code(0);
    assert!(
        explained.stdout.contains("most similar documents first, by their words"),
        "{}",
        explained.stdout
    );
}

#[test]
fn mistakes_in_embeddings_are_reported_with_their_location() {
    let endpoint = Endpoint::start_answering(restaurants::answer_cell);
    let project = project(
        &endpoint,
        "price = { input = 1.0, output = 1.0 }\n[embeddings]\nmodel = \"\"\nbase_url = \"look\"\napi_key_env = \"sk-0123456789\"\ntimeout_seconds = 0\ncolour = 1\n[limits]\nbudget_usd = 1.0\npassage_tokens = 0\n",
        1,
    );
    let ended = project.run_hqdl(&["check", "specs/x.toml"]).expect_exit_code(2);
    for said in [
        "the embedding model has no name",
        "`base_url` is not a URL",
        "`api_key_env` is not the name",
        "`timeout_seconds` is not a valid time",
        "unknown field `colour`",
        "the embedding model has no price",
        "`passage_tokens` is 0",
    ] {
        assert!(ended.stderr.contains(said), "{said}: {}", ended.stderr);
    }
    assert!(!ended.stderr.contains("sk-0123456789"), "{}", ended.stderr);
}
