//! Tests of `embed`, `similarity` and `nearest` with endpoints that fail, budgets and kills. The
//! cases of `tests/queries/cases/embeddings.test` test their results.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::{Value as Json, json};

use hqdl_testkit::embedder::{Behavior, Embedder, count_letters};
use hqdl_testkit::endpoint::Endpoint;
use hqdl_testkit::project::{CommandResult, Project};

/// Number of notes, in four requests.
const NOTES: usize = 300;
const SQL: &str = "SELECT count(similarity(text, 'note')) FROM note";

struct Setup {
    embedder: Embedder,
    endpoint: Endpoint,
    project: Project,
}

/// Creates notes and a spec with `[embeddings]` that have a price.
fn setup(limits: &str) -> Setup {
    let endpoint = Endpoint::start_answering(|_, _| Json::Null);
    let embedder = Embedder::new(count_letters);
    let sql = format!(
        "CREATE TABLE note (id INTEGER PRIMARY KEY, text TEXT);
         WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {NOTES})
         INSERT INTO note SELECT i, 'note ' || i FROM n"
    );
    let spec = format!(
        "[database]\npath = \"../data.sqlite\"\n[model]\nname = \"m\"\nbase_url = \"{{base_url}}\"\n\
         price = {{ input = 1.0, output = 1.0 }}\n{}price = 10.0\n[limits]\n{limits}\n",
        embedder.spec_section()
    );
    let project = Project::new(&endpoint, &sql, &spec);
    Setup { embedder, endpoint, project }
}

impl Setup {
    fn run(&self, command: &str, flags: &[&str], sql: &str) -> CommandResult {
        let head = [command, "--spec", "specs/x.toml", "--json"];
        self.project.run_hqdl(&[&head, flags, &["--", sql]].concat())
    }

    fn query(&self, sql: &str) -> CommandResult {
        self.run("query", &[], sql)
    }

    /// Returns how often each text was sent.
    fn sent_texts(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for text in self.embedder.received_texts() {
            *counts.entry(text).or_insert(0) += 1;
        }
        counts
    }
}

/// Asserts that a query failed without rows, and that its message contains the texts.
fn assert_failed(ended: &CommandResult, texts: &[&str]) {
    assert_ne!(ended.code, 0, "{}", ended.stdout);
    assert!(ended.lines.first().is_none_or(|line| line["rows"].is_null()), "{}", ended.stdout);
    for text in texts {
        assert!(ended.stderr.contains(text), "{text}: {}", ended.stderr);
    }
}

#[test]
fn an_endpoint_without_embeddings_is_an_error_and_not_a_value() {
    for (behavior, texts) in [
        (Behavior::Missing, [" answers 404: ", "check `model` and `base_url` in [embeddings]"]),
        (Behavior::Failing, ["out of order", "embeddings of `look-alike`"]),
        (Behavior::Nonsense, ["is not a list of", "embeddings of `look-alike`"]),
    ] {
        let setup = setup("");
        setup.embedder.set_behavior(behavior);
        assert_failed(&setup.query("SELECT similarity('a', 'b')"), &texts);
        setup.embedder.set_behavior(Behavior::Normal);
        let ended = setup.query("SELECT similarity('a', 'a')").expect_exit_code(0);
        assert_eq!(ended.lines[0]["rows"], json!([[1.0]]));
    }
}

#[test]
fn a_text_that_the_endpoint_rejects_has_no_embedding() {
    let setup = setup("");
    setup.embedder.set_behavior(Behavior::Rejecting(100));
    setup
        .project
        .execute_sql("UPDATE note SET text = text || printf('%.200c', 'x') WHERE id IN (7, 250)");
    let ended = setup.query(SQL).expect_exit_code(1);
    assert_eq!(ended.lines[0]["rows"], json!([[NOTES - 2]]));
    let note = "2 texts have no embedding, because the endpoint rejected them: ";
    assert!(ended.stderr.contains(note), "{}", ended.stderr);
    assert_eq!(ended.lines[0]["meta"]["values_missing"], 2);
    // Only the rejected texts are sent again.
    let before = setup.embedder.received_texts().len();
    setup.query(SQL).expect_exit_code(1);
    assert_eq!(setup.embedder.received_texts().len(), before);
    setup.embedder.set_behavior(Behavior::Normal);
    let ended = setup.query(SQL).expect_exit_code(0);
    assert_eq!(ended.lines[0]["rows"], json!([[NOTES]]));
    assert_eq!(setup.embedder.received_texts().len(), before + 2);
}

#[test]
fn embeddings_of_another_size_are_an_error_and_the_stored_ones_are_kept() {
    let setup = setup("");
    let sql = "SELECT id FROM note WHERE id < 4 ORDER BY similarity(text, 'note 2') DESC";
    let rows = setup.query(sql).expect_exit_code(0).lines[0]["rows"].clone();
    setup.embedder.set_behavior(Behavior::ExtraDimension);
    assert_failed(
        &setup.query(SQL),
        &["vectors of 27 numbers before, and of 28 now", "set its name in [embeddings]"],
    );
    let before = setup.embedder.request_count();
    assert_eq!(setup.query(sql).expect_exit_code(0).lines[0]["rows"], rows);
    assert_eq!(setup.embedder.request_count(), before);
    setup.embedder.set_behavior(Behavior::Normal);
    setup.query(SQL).expect_exit_code(0);
}

#[test]
fn explain_bounds_embeddings_and_the_budget_stops_them() {
    let setup = setup("");
    for sql in [
        SQL,
        "SELECT id FROM note WHERE similarity(text, 'note 1') > 0.9999 LIMIT 3",
        "SELECT nearest(text, note.text, 1) FROM note WHERE id < 3",
        "SELECT sum(length(embed(text || '!'))) FROM note",
    ] {
        let bound = setup.run("explain", &[], sql).expect_exit_code(0);
        let requests = setup.embedder.request_count();
        let used = setup.query(sql).expect_exit_code(0);
        for name in ["requests", "input_tokens", "cost_usd", "values_asked"] {
            let bound = bound.lines[0][name].as_f64().unwrap();
            let used = used.lines[0]["meta"][name].as_f64().unwrap();
            assert!(used <= bound, "{name} of {sql}: {used}, at most {bound}");
        }
        let counted = used.lines[0]["meta"]["requests"].as_u64().unwrap();
        assert_eq!(counted as usize, setup.embedder.request_count() - requests, "{sql}");
    }
    let before = setup.embedder.request_count();
    let other = "SELECT count(embed(text || '?')) FROM note";
    assert_failed(&setup.run("query", &["--budget", "0"], other), &["budget"]);
    assert_eq!(setup.embedder.request_count(), before);
    // A part of the texts fits into the budget, and is kept.
    let bound = setup.run("explain", &[], other).expect_exit_code(0);
    let budget = bound.lines[0]["cost_usd"].as_f64().unwrap() / 3.0;
    assert_failed(&setup.run("query", &["--budget", &budget.to_string()], other), &["budget"]);
    setup.query(other).expect_exit_code(0);
    assert!(setup.sent_texts().values().all(|count| *count == 1));
    assert_eq!(setup.endpoint.request_count(), 0);
}

#[test]
fn a_killed_query_embeds_no_stored_text_again() {
    let setup = setup("concurrency = 1");
    setup.embedder.set_behavior(Behavior::Slow(Duration::from_millis(400)));
    let mut running =
        setup.project.start_hqdl(&["query", "--spec", "specs/x.toml", "--json", "--", SQL]);
    let began = Instant::now();
    while setup.embedder.request_count() < 3 {
        assert!(began.elapsed() < Duration::from_secs(60) && !running.has_ended());
        std::thread::sleep(Duration::from_millis(20));
    }
    running.send_signal("KILL");
    running.wait_for_exit();
    setup.embedder.set_behavior(Behavior::Normal);
    let ended = setup.query(SQL).expect_exit_code(0);
    assert_eq!(ended.lines[0]["rows"], json!([[NOTES]]));
    // Only the request that was in flight is repeated.
    let repeated = setup.sent_texts().values().filter(|count| **count > 1).count();
    assert!(repeated <= 96, "{repeated}");
    assert_eq!(setup.sent_texts().len(), NOTES + 1);
}

#[test]
fn two_queries_do_not_embed_the_same_texts() {
    let setup = setup("concurrency = 1");
    setup.embedder.set_behavior(Behavior::Slow(Duration::from_millis(400)));
    let mut running =
        setup.project.start_hqdl(&["query", "--spec", "specs/x.toml", "--json", "--", SQL]);
    let began = Instant::now();
    while setup.embedder.request_count() < 1 {
        assert!(began.elapsed() < Duration::from_secs(60) && !running.has_ended());
        std::thread::sleep(Duration::from_millis(20));
    }
    // This query begins with the other end of the texts.
    let sql =
        "SELECT count(similarity(text, 'note')) FROM (SELECT text FROM note ORDER BY id DESC)";
    let ended = setup.query(sql).expect_exit_code(0);
    assert_eq!(ended.lines[0]["rows"], json!([[NOTES]]));
    running.wait_for_exit();
    // Only texts of requests that are in flight at the same time are repeated.
    let repeated = setup.sent_texts().values().filter(|count| **count > 1).count();
    assert!(repeated <= 2 * 96, "{repeated}");
    assert_eq!(setup.sent_texts().len(), NOTES + 1);
}
