//! Tests of `materialize --batch` and `import`: nothing is requested twice, and nothing paid for is
//! lost, wherever a run ends.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value as Json;

use hqdl_testkit::endpoint::batches::{BatchOutcome, SilencePoint};
use hqdl_testkit::endpoint::{Endpoint, Fault, Frequency};
use hqdl_testkit::project::{
    CommandResult, EXPANSION, EXPANSION_COLUMNS, HEROES, MODEL, Project, check_cells,
    check_complete, truthful_endpoint,
};

/// Returns a project whose batches are polled often; `limits` adds to `[limits]`.
fn heroes(endpoint: &Endpoint, limits: &str) -> Project {
    let limits = format!("concurrency = 4\nbatch_poll_seconds = 0.03\n{limits}");
    let model = MODEL.replace("concurrency = 4", &limits);
    Project::new(endpoint, HEROES, &[&model, EXPANSION, EXPANSION_COLUMNS].concat())
}

fn batch(project: &Project, flags: &[&str]) -> CommandResult {
    project.run_materialize(&[&["--batch"], flags].concat())
}

/// Asserts that no cell was answered twice.
fn nothing_twice(endpoint: &Endpoint) {
    let mut seen = BTreeSet::new();
    for request in endpoint.received_requests().into_iter().filter(|r| r.is_answered) {
        for (key, column) in request.requested_cells() {
            assert!(seen.insert((Json::from(key).to_string(), column)), "asked twice");
        }
    }
}

/// Returns the price of a batch: half of 1 and 2 USD per million tokens.
fn price(input: u64, output: u64) -> f64 {
    (input as f64 * 0.5 + output as f64) / 1e6
}

fn events<'e>(ended: &'e CommandResult, name: &str) -> Vec<&'e Json> {
    ended.lines.iter().filter(|l| l["event"] == name).collect()
}

#[test]
fn a_batch_is_written_sent_polled_and_collected() {
    let endpoint = truthful_endpoint();
    let project = heroes(&endpoint, "");
    let ended = batch(&project, &[]).expect_exit_code(0);
    check_complete(&project);
    let created = endpoint.created_lines();
    assert_eq!(created.len(), 1);
    assert_eq!(created[0].len(), 3, "ten rows, four a request");
    for line in &created[0] {
        assert_eq!(line["method"], "POST");
        assert_eq!(line["url"], "/v1/chat/completions");
        assert!(line["custom_id"].as_str().unwrap().starts_with("p1:"));
        assert_eq!(line["body"]["model"], "test-model");
    }
    let (input, output) = endpoint.billed_tokens();
    let done = ended.done_event();
    assert_eq!(done["requests"], 3);
    assert_eq!(done["input_tokens"], input);
    assert!((done["cost_usd"].as_f64().unwrap() - price(input, output)).abs() < 1e-9, "{done}");
    assert_eq!(events(&ended, "submitted").len(), 1);
    assert!(!events(&ended, "polled").is_empty());
    assert_eq!(events(&ended, "collected")[0]["answered"], 3);
    // All answers are stored, and no files are left.
    let again = batch(&project, &[]).expect_exit_code(0);
    assert_eq!(again.done_event()["requests"], 0);
    assert_eq!(endpoint.created_lines().len(), 1);
    assert_eq!(std::fs::read_dir(project.path("cache/batches")).unwrap().count(), 0);
    let key = project.query_rows("SELECT DISTINCT prompt_hash FROM hqdl_cell");
    assert_eq!(key.len(), 3, "provenance knows the prompts");
}

#[test]
fn a_batch_is_split_at_its_limits() {
    for limit in ["batch_requests = 2", "batch_bytes = 3000"] {
        let endpoint = truthful_endpoint();
        let project = heroes(&endpoint, limit);
        batch(&project, &[]).expect_exit_code(0);
        check_complete(&project);
        let sizes: Vec<usize> = endpoint.created_lines().iter().map(Vec::len).collect();
        assert_eq!(sizes.iter().sum::<usize>(), 3, "{sizes:?}");
        assert!(sizes.len() >= 2, "{limit}: {sizes:?}");
        nothing_twice(&endpoint);
    }
}

#[test]
fn only_failed_requests_are_resent() {
    let endpoint = truthful_endpoint();
    endpoint.add_fault(Fault::status(500, "oops", "server_error"), Frequency::Once);
    let project = heroes(&endpoint, "");
    batch(&project, &[]).expect_exit_code(0);
    check_complete(&project);
    let sizes: Vec<usize> = endpoint.created_lines().iter().map(Vec::len).collect();
    assert_eq!(sizes, [3, 1]);
    nothing_twice(&endpoint);
}

#[test]
fn a_request_that_always_fails_is_given_up_and_reported() {
    let endpoint = truthful_endpoint();
    endpoint.add_fault_where(
        Fault::status(429, "slow down", "rate_limit"),
        Frequency::Always,
        |q| q.rows.iter().any(|r| r.key[0] == "Zed"),
    );
    let project = heroes(&endpoint, "");
    let ended = batch(&project, &[]).expect_exit_code(1);
    assert_eq!(endpoint.created_lines().len(), 3, "three times in all");
    assert!(ended.stdout.contains("slow down"), "{}", ended.stdout);
    assert_eq!(ended.done_event()["cells"]["error"], 8);
    assert_eq!(check_cells(&project)["error"], 8);
    endpoint.clear_faults();
    batch(&project, &[]).expect_exit_code(0);
    check_complete(&project);
}

#[test]
fn failed_rows_are_requested_again_in_smaller_requests() {
    let endpoint = truthful_endpoint();
    endpoint.add_fault(Fault::MissingRows, Frequency::First(3));
    let project = heroes(&endpoint, "");
    batch(&project, &[]).expect_exit_code(0);
    check_complete(&project);
    assert_eq!(endpoint.created_lines().len(), 2);
    let rows: Vec<usize> =
        endpoint.received_requests().iter().map(|r| r.question.rows.len()).collect();
    assert_eq!(rows[..3].iter().sum::<usize>(), 10);
    assert_eq!(rows[3..].iter().sum::<usize>(), 5, "{rows:?}");
    assert!(rows[3..].iter().all(|n| *n <= 2));
}

#[test]
fn the_number_of_attempts_is_limited() {
    let endpoint = truthful_endpoint();
    endpoint.add_fault(Fault::Empty, Frequency::Always);
    let project = heroes(&endpoint, "");
    let ended = batch(&project, &[]).expect_exit_code(1);
    assert_eq!(ended.done_event()["cells"]["invalid"], 40);
    assert_eq!(endpoint.created_lines().len(), 3);
}

#[test]
fn a_request_too_long_is_split() {
    let endpoint = truthful_endpoint();
    endpoint.add_fault(Fault::ContextLength(2), Frequency::Always);
    let project = heroes(&endpoint, "");
    batch(&project, &[]).expect_exit_code(0);
    check_complete(&project);
    nothing_twice(&endpoint);
}

#[test]
fn answers_of_an_expired_batch_are_kept_and_the_rest_is_resent_once() {
    let endpoint = truthful_endpoint();
    endpoint.set_next_outcome(BatchOutcome::Expired(1));
    let project = heroes(&endpoint, "");
    batch(&project, &[]).expect_exit_code(0);
    check_complete(&project);
    let sizes: Vec<usize> = endpoint.created_lines().iter().map(Vec::len).collect();
    assert_eq!(sizes, [3, 2]);
    nothing_twice(&endpoint);

    let endpoint = truthful_endpoint();
    endpoint.set_next_outcome(BatchOutcome::Expired(1)).set_next_outcome(BatchOutcome::Expired(1));
    let project = heroes(&endpoint, "");
    let ended = batch(&project, &[]).expect_exit_code(1);
    assert_eq!(endpoint.created_lines().len(), 2, "once again, and no more");
    assert!(ended.stdout.contains("batch_expired"), "{}", ended.stdout);
    nothing_twice(&endpoint);
    batch(&project, &[]).expect_exit_code(0);
    check_complete(&project);
    nothing_twice(&endpoint);
}

#[test]
fn a_batch_that_fails_as_a_whole_is_resent_once() {
    let endpoint = truthful_endpoint();
    endpoint.set_next_outcome(BatchOutcome::Failed("invalid_request", "line 1 is odd"));
    let project = heroes(&endpoint, "");
    batch(&project, &[]).expect_exit_code(0);
    check_complete(&project);
    assert_eq!(endpoint.created_lines().len(), 2);

    let endpoint = truthful_endpoint();
    let fails = || BatchOutcome::Failed("invalid_request", "line 1 is odd");
    endpoint.set_next_outcome(fails()).set_next_outcome(fails());
    let project = heroes(&endpoint, "");
    let ended = batch(&project, &[]).expect_exit_code(4);
    assert!(ended.stderr.contains("line 1 is odd"), "{}", ended.stderr);
    assert_eq!(endpoint.created_lines().len(), 2);
    assert_eq!(endpoint.billed_tokens(), (0, 0));
    batch(&project, &[]).expect_exit_code(0);
    check_complete(&project);
}

#[test]
fn a_run_waits_for_a_full_queue() {
    let endpoint = truthful_endpoint();
    endpoint.set_next_outcome(BatchOutcome::Completed(3));
    let full = || BatchOutcome::Failed("token_limit_exceeded", "Enqueued token limit reached");
    endpoint.set_next_outcome(full()).set_next_outcome(full());
    let project = heroes(&endpoint, "batch_requests = 1");
    batch(&project, &[]).expect_exit_code(0);
    check_complete(&project);
    nothing_twice(&endpoint);
}

#[test]
fn the_rest_of_a_cancelled_batch_is_left() {
    let endpoint = truthful_endpoint();
    endpoint.set_next_outcome(BatchOutcome::Cancelled(2));
    let project = heroes(&endpoint, "");
    let ended = batch(&project, &[]).expect_exit_code(1);
    assert_eq!(endpoint.created_lines().len(), 1, "somebody wanted it so");
    assert!(ended.stdout.contains("was cancelled"), "{}", ended.stdout);
    assert!(ended.done_event()["cells_unasked"].as_u64().unwrap() >= 8);
    batch(&project, &[]).expect_exit_code(0);
    check_complete(&project);
    nothing_twice(&endpoint);
}

/// Runs until the endpoint stops responding at some step, and kills the run there.
fn killed_at(endpoint: &Endpoint, project: &Project, at: SilencePoint) {
    endpoint.fall_silent_at(at);
    let running = project.start_hqdl(&["materialize", "specs/x.toml", "--json", "--batch"]);
    endpoint.wait_for_silence();
    running.send_signal("KILL");
    running.wait_for_exit();
}

#[test]
fn a_run_killed_at_any_step_is_resumed_with_the_same_batch() {
    let steps = [
        (SilencePoint::BeforeUpload, 1, 1),
        (SilencePoint::AfterUpload, 1, 1),
        (SilencePoint::BeforeCreate, 1, 1),
        (SilencePoint::AfterCreate, 1, 1),
        (SilencePoint::Poll, 1, 1),
        (SilencePoint::Download, 1, 1),
    ];
    for (at, uploads, batches) in steps {
        let endpoint = truthful_endpoint();
        let project = heroes(&endpoint, "");
        killed_at(&endpoint, &project, at);
        batch(&project, &[]).expect_exit_code(0);
        check_complete(&project);
        assert_eq!(endpoint.created_lines().len(), batches, "{at:?}");
        assert_eq!(endpoint.upload_count(), uploads, "{at:?}");
        nothing_twice(&endpoint);
        // The journal counts what was billed exactly once.
        let sql = "SELECT sum(input_tokens), sum(output_tokens) FROM completion";
        let spent = &project.query_facts(sql)[0];
        let (input, output) = endpoint.billed_tokens();
        assert_eq!(spent, &[Json::from(input), Json::from(output)], "{at:?}");
    }
}

#[test]
fn a_kill_while_collecting_stores_no_answer_twice() {
    for kills in 0..6 {
        let endpoint = truthful_endpoint();
        let project = heroes(&endpoint, "");
        project.execute_sql(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 400)
             INSERT INTO hero (name, full_name) SELECT 'Hero ' || i, 'Nobody ' || i FROM n",
        );
        let running = project.start_hqdl(&["materialize", "specs/x.toml", "--json", "--batch"]);
        // Kill the run once the first answer is on disk, and a little later each time.
        let answers = || {
            let count = project.query_facts("SELECT count(*) FROM completion");
            count.first().map_or(0, |row| row[0].as_u64().unwrap())
        };
        let began = std::time::Instant::now();
        while answers() == 0 {
            assert!(began.elapsed().as_secs() < 120);
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        std::thread::sleep(std::time::Duration::from_millis(kills * 2));
        running.send_signal("KILL");
        running.wait_for_exit();
        batch(&project, &[]).expect_exit_code(0);
        assert_eq!(check_cells(&project), BTreeMap::from([("ok".to_owned(), 410 * 4)]));
        assert_eq!(endpoint.created_lines().len(), 1);
        assert_eq!(answers(), 103);
        nothing_twice(&endpoint);
    }
}

#[test]
fn a_batch_is_found_among_many() {
    let endpoint = truthful_endpoint();
    let project = heroes(&endpoint, "");
    endpoint.set_page_size(2);
    killed_at(&endpoint, &project, SilencePoint::AfterCreate);
    (0..5).for_each(|_| endpoint.foreign_batch());
    batch(&project, &[]).expect_exit_code(0);
    check_complete(&project);
    assert_eq!(endpoint.count_calls("POST batches"), 1);
}

#[test]
fn an_unconfirmed_creation_is_looked_up_before_it_is_repeated() {
    let endpoint = truthful_endpoint();
    endpoint.lie_about_creation(500);
    let project = heroes(&endpoint, "");
    batch(&project, &[]).expect_exit_code(0);
    check_complete(&project);
    assert_eq!(endpoint.count_calls("POST batches"), 1);
}

#[test]
fn an_interrupted_wait_leaves_the_batch_to_the_next_run() {
    let endpoint = truthful_endpoint();
    endpoint.set_next_outcome(BatchOutcome::InProgress);
    let project = heroes(&endpoint, "");
    let running = project.start_hqdl(&["materialize", "specs/x.toml", "--json", "--batch"]);
    endpoint.wait_for_polls(2);
    running.send_signal("INT");
    let ended = running.wait_for_exit().expect_exit_code(130);
    assert!(ended.stderr.contains("batch_1"), "{}", ended.stderr);
    assert!(ended.stderr.contains("--batch"), "{}", ended.stderr);
    assert_eq!(ended.lines.last().unwrap()["event"], "done");
    endpoint.stop_rejecting();
    batch(&project, &[]).expect_exit_code(0);
    check_complete(&project);
    assert_eq!(endpoint.created_lines().len(), 1);
    nothing_twice(&endpoint);
}

#[test]
fn a_plain_run_skips_cells_in_a_batch() {
    let endpoint = truthful_endpoint();
    endpoint.set_next_outcome(BatchOutcome::InProgress);
    let project = heroes(&endpoint, "");
    let running =
        project.start_hqdl(&["materialize", "specs/x.toml", "--json", "--batch", "--limit", "4"]);
    endpoint.wait_for_polls(1);
    running.send_signal("INT");
    running.wait_for_exit().expect_exit_code(130);
    let plan = project.run_plan(&[]);
    assert_eq!(plan["totals"]["cells"], 24, "six of ten heroes");
    // The same command waits for its batch, and requests no other four keys.
    let running =
        project.start_hqdl(&["materialize", "specs/x.toml", "--json", "--batch", "--limit", "4"]);
    endpoint.wait_for_polls(4);
    running.send_signal("INT");
    running.wait_for_exit().expect_exit_code(130);
    assert_eq!(endpoint.created_lines().len(), 1);
    let ended = project.run_materialize(&[]).expect_exit_code(1);
    assert!(ended.stdout.contains("running batches ask for 16 cells"), "{}", ended.stdout);
    assert_eq!(check_cells(&project)["ok"], 24);
    assert_eq!(ended.done_event()["cells_unasked"], 16);
    nothing_twice(&endpoint);
    // Once the batch has ended, a plain run collects it.
    endpoint.stop_rejecting();
    let before = endpoint.request_count();
    let ended = project.run_materialize(&[]).expect_exit_code(0);
    assert_eq!(ended.done_event()["requests"], 1);
    assert_eq!(endpoint.request_count(), before + 1, "answered in the batch alone");
    check_complete(&project);
    nothing_twice(&endpoint);
}

#[test]
fn answers_that_arrive_after_a_spec_change_are_stored_as_requested() {
    let endpoint = truthful_endpoint();
    endpoint.set_next_outcome(BatchOutcome::InProgress);
    let project = heroes(&endpoint, "");
    let running = project.start_hqdl(&["materialize", "specs/x.toml", "--json", "--batch"]);
    endpoint.wait_for_polls(1);
    running.send_signal("KILL");
    running.wait_for_exit();
    let before = std::fs::read_to_string(project.path("specs/x.toml")).unwrap();
    project.write_spec(&before.replace("what the hero says", "the hero's last words"));
    endpoint.stop_rejecting();
    // Only the column whose meaning has changed is requested again.
    let before_run = endpoint.request_count();
    batch(&project, &[]).expect_exit_code(0);
    check_complete(&project);
    let asked = endpoint.cells_since(before_run + 3);
    assert!(asked.iter().all(|(_, c)| c == "motto"), "{asked:?}");
    assert_eq!(asked.len(), 10);
    // With the old spec, the old answers are known.
    project.write_spec(&before);
    let ended = project.run_materialize(&[]).expect_exit_code(0);
    assert_eq!(ended.done_event()["requests"], 0);
}

#[test]
fn a_budget_is_never_exceeded_and_what_fits_is_sent() {
    let endpoint = truthful_endpoint();
    let project = heroes(&endpoint, "batch_requests = 1");
    // The budget covers one request after the other: the worst case is far above the actual cost.
    let plan = project.run_plan(&["--batch"]);
    let likely = plan["totals"]["cost_usd"]["likely"].as_f64().unwrap();
    let live = project.run_plan(&[])["totals"]["cost_usd"]["likely"].as_f64().unwrap();
    assert!((likely * 2.0 - live).abs() < 1e-9);
    let ended = batch(&project, &["--budget", "0.0001"]).expect_exit_code(3);
    assert_eq!(endpoint.created_lines().len(), 0, "{}", ended.stderr);
    // Enough for the worst case of one request at a time.
    let ended = batch(&project, &["--budget", "0.009"]).expect_exit_code(0);
    check_complete(&project);
    assert_eq!(endpoint.created_lines().len(), 3);
    assert!(ended.done_event()["cost_usd"].as_f64().unwrap() < 0.009);
}

/// As in a live run, the part that fits is requested, and the rest once answers have freed budget.
#[test]
fn a_request_beyond_the_budget_is_sent_in_parts() {
    let endpoint = truthful_endpoint();
    let project = heroes(&endpoint, "");
    project.write_spec(&project.spec_text().replace("test-model", "gpt-4o-mini"));
    project.execute_sql(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 190)
         INSERT INTO hero (name, full_name) SELECT 'Number ' || i, 'Person ' || (i * 7) FROM n",
    );
    let whole = ["--rows-per-request", "200", "--batch-file", "out", "--cache", "paper"];
    project.run_materialize(&whole).expect_exit_code(0);
    let sql = "SELECT count(*), total(worst_usd) FROM request";
    let most = project.query_rows_of("paper/journal.sqlite", sql)[0].clone();
    assert_eq!(most[0], 1);
    let most = most[1].as_f64().unwrap();
    for (n, part) in [0.7, 0.4].into_iter().enumerate() {
        let budget = most * part;
        let text = budget.to_string();
        let cache = format!("cache-{n}");
        let (before, billed) = (endpoint.request_count(), endpoint.billed_tokens());
        let flags = ["--rows-per-request", "200", "--cache", &cache, "--budget", &text];
        let ended = batch(&project, &flags);
        assert!(matches!(ended.code, 0 | 3), "{ended:?}");
        assert!(endpoint.request_count() > before, "none of it: {ended:?}");
        let spent =
            price(endpoint.billed_tokens().0 - billed.0, endpoint.billed_tokens().1 - billed.1);
        assert!(spent <= budget + 1e-12, "{spent} of {budget}");
        // The remaining budget does not cover one row.
        let left = budget - ended.done_event()["cost_usd"].as_f64().unwrap();
        println!(
            "{part}: {} of 800 cells, ${left:.6} of ${budget:.6} left",
            ended.done_event()["cells"]["ok"]
        );
        assert!(ended.code == 0 || left < 0.2 * most, "{left} left: {ended:?}");
        let asked = endpoint.cells_since(before);
        let different: BTreeSet<String> = asked.iter().map(|cell| format!("{cell:?}")).collect();
        assert_eq!(asked.len(), different.len(), "asked twice");
        project.execute_sql("DROP TABLE IF EXISTS llm; DROP TABLE IF EXISTS llm_powers;");
    }
}

/// The output file was deleted by the user, or has expired.
#[test]
fn a_missing_output_is_reported_and_requested_again() {
    let endpoint = truthful_endpoint();
    let project = heroes(&endpoint, "");
    endpoint.reject_requests("GET files/", 404);
    let ended = batch(&project, &[]).expect_exit_code(1);
    assert!(ended.stdout.contains("no longer has the output of batch_1"), "{}", ended.stdout);
    let (input, output) = endpoint.billed_tokens();
    let sql = "SELECT coalesce(sum(cost_usd), 0) FROM completion";
    let counted = project.query_facts(sql)[0][0].as_f64().unwrap();
    assert!(counted >= price(input, output) - 1e-9, "{counted} counted");
    endpoint.stop_rejecting();
    batch(&project, &[]).expect_exit_code(0);
    check_complete(&project);
    assert_eq!(endpoint.created_lines().len(), 2);
    // The run is killed before it downloads the output, which is then deleted.
    let endpoint = truthful_endpoint();
    endpoint.set_next_outcome(BatchOutcome::InProgress);
    let project = heroes(&endpoint, "");
    let running = project.start_hqdl(&["materialize", "specs/x.toml", "--json", "--batch"]);
    endpoint.wait_for_polls(1);
    running.send_signal("KILL");
    running.wait_for_exit();
    endpoint.stop_rejecting();
    endpoint.reject_requests("GET files/file-2", 404);
    let ended = batch(&project, &[]).expect_exit_code(0);
    assert!(ended.stdout.contains("no longer has the output of batch_1"), "{}", ended.stdout);
    check_complete(&project);
}

#[test]
fn requests_in_flight_count_against_the_budget_after_a_kill() {
    let endpoint = truthful_endpoint();
    endpoint.set_next_outcome(BatchOutcome::InProgress);
    let project = heroes(&endpoint, "budget_tokens = 20000");
    let running =
        project.start_hqdl(&["materialize", "specs/x.toml", "--json", "--batch", "--limit", "4"]);
    endpoint.wait_for_polls(1);
    running.send_signal("KILL");
    running.wait_for_exit();
    // With the worst case of the request in flight, the budget covers no other request.
    let worst = project.query_facts("SELECT sum(worst_tokens) FROM request");
    let budget = format!("budget_tokens = {}", worst[0][0].as_u64().unwrap() + 500);
    let capped = project.spec_text().replace("budget_tokens = 20000", &budget);
    project.write_spec(&capped);
    let ended = project.run_materialize(&[]).expect_exit_code(3);
    assert!(ended.stderr.contains("budget"), "{}", ended.stderr);
    assert_eq!(endpoint.request_count(), 0);
    // Once the request is settled, the budget covers another one.
    endpoint.stop_rejecting();
    project.run_materialize(&["--limit", "1"]).expect_exit_code(0);
    assert_eq!(endpoint.request_count(), 2, "the batch's request, and one more");
    assert_eq!(endpoint.cells_since(0).len(), 20);
    project.write_spec(&project.spec_text().replace(&budget, "budget_tokens = 20000"));
    project.run_materialize(&["--rows-per-request", "1"]).expect_exit_code(0);
    check_complete(&project);
    nothing_twice(&endpoint);
}

#[test]
fn an_endpoint_that_refuses_ends_the_run() {
    for (call, status) in [("POST files", 401), ("POST batches", 404), ("GET batches/", 401)] {
        let endpoint = truthful_endpoint();
        endpoint.reject_requests(call, status);
        let project = heroes(&endpoint, "");
        batch(&project, &[]).expect_exit_code(4);
        endpoint.stop_rejecting();
        batch(&project, &[]).expect_exit_code(0);
        check_complete(&project);
        assert_eq!(endpoint.created_lines().len(), 1, "{call}");
        nothing_twice(&endpoint);
    }
    let endpoint = truthful_endpoint();
    let project = heroes(&endpoint, "");
    endpoint
        .add_fault(Fault::status(401, "no such key sk-recognisable", "auth"), Frequency::Always);
    batch(&project, &[]).expect_exit_code(4);
    assert_eq!(endpoint.created_lines().len(), 1);
}

#[test]
fn a_batch_that_the_endpoint_lost_is_reported_and_requested_again() {
    let endpoint = truthful_endpoint();
    endpoint.set_next_outcome(BatchOutcome::InProgress);
    let project = heroes(&endpoint, "");
    let running = project.start_hqdl(&["materialize", "specs/x.toml", "--json", "--batch"]);
    endpoint.wait_for_polls(1);
    running.send_signal("KILL");
    running.wait_for_exit();
    endpoint.forget_batches();
    let ended = batch(&project, &[]).expect_exit_code(0);
    assert!(ended.stdout.contains("no longer knows batch_1"), "{}", ended.stdout);
    check_complete(&project);
}

#[test]
fn a_run_waits_for_a_temporarily_unreachable_endpoint() {
    let endpoint = truthful_endpoint();
    endpoint.set_next_outcome(BatchOutcome::InProgress);
    let project = heroes(&endpoint, "");
    let running = project.start_hqdl(&["materialize", "specs/x.toml", "--json", "--batch"]);
    endpoint.wait_for_polls(1);
    endpoint.reject_requests("GET batches/", 503);
    // A poll is attempted six times, so at least one has failed.
    endpoint.wait_for_polls(endpoint.count_calls("GET batches/") + 8);
    endpoint.stop_rejecting();
    let ended = running.wait_for_exit().expect_exit_code(0);
    assert_eq!(ended.stdout.matches("hqdl retries").count(), 1, "{}", ended.stdout);
    check_complete(&project);
}

#[test]
fn all_expansions_share_a_batch_and_the_daily_budget() {
    let endpoint = truthful_endpoint();
    endpoint.set_next_outcome(BatchOutcome::InProgress);
    let project = heroes(&endpoint, "");
    let second = EXPANSION.replace("name = \"llm\"", "name = \"more\"")
        + "\n[[expansion.column]]\nname = \"lair\"\nabout = \"where the hero lives\"\n";
    project.write_spec(&(project.spec_text() + &second));
    let running = project.start_hqdl(&["materialize", "specs/x.toml", "--json", "--batch"]);
    endpoint.wait_for_polls(1);
    running.send_signal("INT");
    running.wait_for_exit().expect_exit_code(130);
    assert_eq!(endpoint.created_lines()[0].len(), 6, "three for each expansion");
    // Its worst case uses the whole daily budget.
    let capped = project.spec_text();
    project.write_spec(&capped.replace("concurrency", "budget_usd_per_day = 0.005\nconcurrency"));
    project.execute_sql("INSERT INTO hero (name, full_name) VALUES ('New One', 'Nina')");
    let ended = project.run_materialize(&[]).expect_exit_code(3);
    assert!(ended.stderr.contains("budget"), "{}", ended.stderr);
    assert_eq!(endpoint.request_count(), 0);
    project.write_spec(&capped);
    endpoint.stop_rejecting();
    batch(&project, &[]).expect_exit_code(0);
    assert_eq!(check_cells(&project)["ok"], 44);
    assert_eq!(project.query_rows("SELECT count(lair) FROM more")[0][0], 11);
    nothing_twice(&endpoint);
}

#[test]
fn recordings_support_no_batches() {
    let endpoint = truthful_endpoint();
    let project = heroes(&endpoint, "");
    std::fs::write(project.path("r.jsonl"), "").unwrap();
    let ended =
        project.run_materialize(&["--batch", "--recordings", "r.jsonl"]).expect_exit_code(2);
    assert!(ended.stderr.contains("recordings cannot be run as batches"), "{}", ended.stderr);
}

#[test]
fn exported_files_are_written_and_their_answers_imported() {
    let endpoint = truthful_endpoint();
    let project = heroes(&endpoint, "batch_requests = 2");
    let ended = project.run_materialize(&["--batch-file", "out"]).expect_exit_code(0);
    let written = events(&ended, "written");
    assert_eq!(written.len(), 2);
    assert_eq!(endpoint.count_calls(""), 0, "nothing is sent");
    assert!(!project.has_table("llm"));
    let mut files = Vec::new();
    for (n, file) in written.iter().enumerate() {
        let text = std::fs::read_to_string(project.path(file["file"].as_str().unwrap())).unwrap();
        let (output, _) = endpoint.run_file(&text);
        let foreign = "{\"custom_id\":\"theirs\",\"response\":{\"status_code\":200,\"body\":{}}}\n";
        std::fs::write(project.path(format!("{n}.jsonl")), output + foreign).unwrap();
        files.push(format!("{n}.jsonl"));
    }
    let import =
        |files: &[&str]| project.run_hqdl(&[&["import", "specs/x.toml", "--json"], files].concat());
    let ended = import(&[&files[0]]).expect_exit_code(1);
    let imported = events(&ended, "imported")[0].clone();
    assert_eq!(imported["answered"], 2);
    assert_eq!(imported["unknown"], 1);
    assert_eq!(check_cells(&project)["ok"], 32);
    let ended = import(&[&files[0], &files[1]]).expect_exit_code(0);
    let imported = events(&ended, "imported")[0].clone();
    assert_eq!((&imported["answered"], &imported["known"]), (&1.into(), &2.into()));
    check_complete(&project);
    let dump = project.query_rows("SELECT * FROM hqdl_cell ORDER BY 1, 3, 4");
    let ended = import(&[&files[0], &files[1]]).expect_exit_code(0);
    assert_eq!(ended.done_event()["published"], false);
    assert_eq!(dump, project.query_rows("SELECT * FROM hqdl_cell ORDER BY 1, 3, 4"));
    // Nothing is left to request.
    let ended = project.run_materialize(&[]).expect_exit_code(0);
    assert_eq!(ended.done_event()["requests"], 0);
    let (input, output) = endpoint.billed_tokens();
    let cost = project.query_rows("SELECT sum(cost_usd) FROM hqdl_cell")[0][0].as_f64().unwrap();
    assert!((cost - price(input, output)).abs() < 1e-9, "{cost}");
}

#[test]
fn failures_in_an_import_are_requested_by_the_next_run() {
    let endpoint = truthful_endpoint();
    let project = heroes(&endpoint, "");
    let ended = project.run_materialize(&["--batch-file", "out"]).expect_exit_code(0);
    let path = events(&ended, "written")[0]["file"].as_str().unwrap().to_owned();
    endpoint.add_fault(Fault::status(500, "oops", "server_error"), Frequency::Once);
    endpoint.add_fault(Fault::MissingRows, Frequency::Once);
    let text = std::fs::read_to_string(project.path(path)).unwrap();
    let (output, errors) = endpoint.run_file(&text);
    endpoint.clear_faults();
    std::fs::write(project.path("o.jsonl"), output).unwrap();
    std::fs::write(project.path("e.jsonl"), errors).unwrap();
    let ended = project
        .run_hqdl(&["import", "specs/x.toml", "--json", "o.jsonl", "e.jsonl"])
        .expect_exit_code(1);
    assert_eq!(events(&ended, "imported")[0]["failed"], 1);
    project.run_materialize(&[]).expect_exit_code(0);
    check_complete(&project);
}

/// Returns the remaining budget according to a plan.
fn left_usd(project: &Project, flags: &[&str]) -> f64 {
    project.run_plan(flags)["budget"]["left_usd"].as_f64().unwrap()
}

#[test]
fn costs_spent_in_doubt_and_in_flight_count_once_each() {
    let endpoint = truthful_endpoint();
    endpoint.set_next_outcome(BatchOutcome::InProgress);
    let project = heroes(&endpoint, "budget_usd_per_day = 1");
    let running =
        project.start_hqdl(&["materialize", "specs/x.toml", "--json", "--batch", "--limit", "4"]);
    endpoint.wait_for_polls(1);
    running.send_signal("KILL");
    running.wait_for_exit();
    let journal = || rusqlite::Connection::open(project.path("cache/journal.sqlite")).unwrap();
    let under_way: f64 =
        journal().query_row("SELECT sum(worst_usd) FROM request", [], |r| r.get(0)).unwrap();
    assert!(under_way > 0.0);
    let near = |left: f64, gone: f64| assert!((1.0 - left - gone).abs() < 1e-9, "{left} {gone}");
    near(left_usd(&project, &[]), under_way);
    near(left_usd(&project, &["--batch", "--budget", "1"]), under_way);
    // A live request of the same run that was killed in flight.
    journal()
        .execute(
            "INSERT INTO reservation (run, cost_usd, tokens, reserved_at)
             SELECT max(id), 0.25, 10, strftime('%Y-%m-%dT%H:%M:%SZ') FROM run",
            [],
        )
        .unwrap();
    near(left_usd(&project, &[]), 0.25 + under_way);
    // This applies to the run's budget, the daily budget, and the start of a live run.
    near(left_usd(&project, &["--budget", "1"]), 0.25 + under_way);
    let budget = format!("{}", 0.25 + under_way + 1e-6);
    let ended = project.run_materialize(&["--budget", &budget]).expect_exit_code(3);
    assert!(ended.stdout.contains("1 request was in flight"), "{}", ended.stdout);
    assert_eq!(endpoint.request_count(), 0);
    // Settled cost is no longer reserved; cost in doubt is.
    endpoint.stop_rejecting();
    let ended = batch(&project, &[]).expect_exit_code(0);
    check_complete(&project);
    nothing_twice(&endpoint);
    let (input, output) = endpoint.billed_tokens();
    assert!((ended.done_event()["cost_usd"].as_f64().unwrap() - price(input, output)).abs() < 1e-9);
    near(left_usd(&project, &[]), 0.25 + price(input, output));
    let notes: (u64, u64) = journal()
        .query_row("SELECT count(*), sum(in_doubt) FROM reservation", [], |r| {
            Ok((r.get(0)?, r.get(1)?))
        })
        .unwrap();
    assert_eq!(notes, (1, 1));
}

#[test]
fn a_run_with_open_batches_leaves_no_reservation_of_unsent_requests() {
    let endpoint = truthful_endpoint();
    endpoint.set_next_outcome(BatchOutcome::InProgress);
    let project = heroes(&endpoint, "");
    let running =
        project.start_hqdl(&["materialize", "specs/x.toml", "--json", "--batch", "--limit", "4"]);
    endpoint.wait_for_polls(1);
    running.send_signal("INT");
    running.wait_for_exit().expect_exit_code(130);
    project.run_materialize(&[]).expect_exit_code(1);
    endpoint.stop_rejecting();
    let ended = batch(&project, &[]).expect_exit_code(0);
    assert!(!ended.stdout.contains("in flight"), "{}", ended.stdout);
    assert_eq!(ended.done_event()["in_doubt"]["requests"], 0);
    check_complete(&project);
}

#[test]
fn a_batch_reports_the_usage_of_each_column() {
    let endpoint = truthful_endpoint();
    let project = heroes(&endpoint, "");
    let done = batch(&project, &[]).expect_exit_code(0).done_event().clone();
    let columns = done["columns"].as_array().unwrap();
    assert_eq!(columns.len(), 4);
    for column in columns {
        assert_eq!((&column["cells_asked"], &column["requests"]), (&10.into(), &3.into()));
        let quarter = done["cost_usd"].as_f64().unwrap() / 4.0;
        assert!((column["cost_usd"].as_f64().unwrap() - quarter).abs() < 1e-12);
    }
}

#[test]
fn a_refresh_through_batches_is_resumed_after_a_kill_and_then_starts_over() {
    let endpoint = truthful_endpoint();
    let project = heroes(&endpoint, "");
    batch(&project, &[]).expect_exit_code(0);
    let refresh = ["materialize", "specs/x.toml", "--json", "--batch", "--refresh", "born"];
    for batches in [2, 3] {
        // After a kill while its batch is in progress, the same command waits for the batch.
        endpoint.set_next_outcome(BatchOutcome::InProgress);
        let looks = endpoint.count_calls("GET batches/");
        let running = project.start_hqdl(&refresh);
        endpoint.wait_for_polls(looks + 1);
        running.send_signal("KILL");
        running.wait_for_exit();
        // A plain refresh leaves the cells to the batch, and its job open.
        project.run_materialize(&["--refresh", "born"]).expect_exit_code(1);
        assert_eq!(endpoint.created_lines().len(), batches);
        endpoint.stop_rejecting();
        batch(&project, &["--refresh", "born"]).expect_exit_code(0);
        assert_eq!(endpoint.created_lines().len(), batches, "nothing was asked twice in a round");
        check_complete(&project);
    }
}

#[test]
fn the_next_run_requests_what_a_cancelled_batch_left_of_a_refresh() {
    let endpoint = truthful_endpoint();
    let project = heroes(&endpoint, "");
    batch(&project, &[]).expect_exit_code(0);
    endpoint.set_next_outcome(BatchOutcome::Cancelled(2));
    batch(&project, &["--refresh", "born"]);
    let asked = endpoint.cells_since(0).len();
    let ended = batch(&project, &["--refresh", "born"]).expect_exit_code(0);
    assert!(ended.stdout.contains("continues"), "{}", ended.stdout);
    let rest = endpoint.cells_since(0).len() - asked;
    assert!((1..10).contains(&rest), "{rest}");
    check_complete(&project);
}

/// Returns the cells in files, and how often each occurs.
fn in_files(project: &Project, written: &[&Json]) -> BTreeMap<String, usize> {
    let mut cells = BTreeMap::new();
    for file in written {
        let text = std::fs::read_to_string(project.path(file["file"].as_str().unwrap())).unwrap();
        for line in text.lines() {
            let line: Json = serde_json::from_str(line).unwrap();
            let message = |n: usize| line["body"]["messages"][n]["content"].as_str().unwrap();
            let question = hqdl::prompt::Question::parse(message(0), message(1)).unwrap();
            for row in &question.rows {
                for column in &question.columns {
                    let cell = format!("{:?} {}", row.key, column.name);
                    *cells.entry(cell).or_default() += 1;
                }
            }
        }
    }
    cells
}

/// Cells in an unanswered file are reported, and exported again only on request.
#[test]
fn cells_in_an_unanswered_file_are_not_exported_twice() {
    let endpoint = truthful_endpoint();
    let project = heroes(&endpoint, "batch_requests = 2");
    let write =
        |flags: &[&str]| project.run_materialize(&[&["--batch-file", "out"], flags].concat());
    let first = write(&["--columns", "born,motto"]).expect_exit_code(0);
    let files = events(&first, "written");
    assert_eq!(in_files(&project, &files).len(), 20);
    // The second export contains the other columns, and none of these cells.
    let second = write(&[]).expect_exit_code(0);
    let named = events(&second, "unanswered");
    assert_eq!(named.len(), 2, "{second:?}");
    assert_eq!((&named[0]["exists"], &named[0]["cells"]), (&true.into(), &16.into()));
    let more = events(&second, "written");
    let all = in_files(&project, &[files.clone(), more.clone()].concat());
    assert_eq!((all.len(), all.values().max()), (40, Some(&1)));
    let third = write(&[]).expect_exit_code(0);
    assert_eq!(events(&third, "written").len(), 0);
    assert_eq!(events(&third, "unanswered").len(), 4);
    let said = project
        .run_hqdl(&["materialize", "specs/x.toml", "--batch-file", "out"])
        .expect_exit_code(0);
    assert!(said.stderr.contains("--again writes these cells again"), "{}", said.stderr);
    assert!(said.stderr.contains("no cell is missing beside these"), "{}", said.stderr);
    // The file was deleted, but it may have been submitted.
    std::fs::remove_file(project.path(files[0]["file"].as_str().unwrap())).unwrap();
    let fourth = write(&[]).expect_exit_code(0);
    assert_eq!(events(&fourth, "written").len(), 0);
    assert_eq!(events(&fourth, "unanswered")[0]["exists"], false);
    let again = write(&["--again"]).expect_exit_code(0);
    assert_eq!(in_files(&project, &events(&again, "written")).len(), 40);
    assert_eq!(events(&again, "unanswered").len(), 0);
    let ended = project.run_hqdl(&["materialize", "specs/x.toml", "--again"]);
    assert_eq!(ended.code, 2, "--again is of files");
    assert_eq!(endpoint.count_calls(""), 0, "nothing is sent");
    // A run requests what no file has answered.
    project.run_materialize(&[]).expect_exit_code(0);
    check_complete(&project);
    assert_eq!(
        events(&write(&[]).expect_exit_code(0), "unanswered").len(),
        0,
        "nothing is missing"
    );
}

/// Imported answers are known. Requests that failed can be exported again, and a late answer is
/// still accepted.
#[test]
fn a_partial_import_leaves_the_other_cells_in_their_file() {
    let endpoint = truthful_endpoint();
    let project = heroes(&endpoint, "");
    let other = project.spec_text().replace("\"llm\"", "\"llm2\"");
    std::fs::write(project.path("specs/y.toml"), other).unwrap();
    let write = |spec: &str| {
        let spec = format!("specs/{spec}.toml");
        project
            .run_hqdl(&["materialize", &spec, "--json", "--batch-file", "out"])
            .expect_exit_code(0)
    };
    let written = write("x");
    let path = events(&written, "written")[0]["file"].as_str().unwrap().to_owned();
    let before = std::fs::read(project.path(&path)).unwrap();
    // An equivalent spec in the same directory.
    let same = write("y");
    assert_eq!((events(&same, "written").len(), events(&same, "unanswered").len()), (0, 1));
    assert_eq!(std::fs::read(project.path(&path)).unwrap(), before);
    endpoint.add_fault(Fault::status(500, "oops", "server_error"), Frequency::Once);
    let (output, errors) = endpoint.run_file(&String::from_utf8(before).unwrap());
    let lines: Vec<&str> = output.lines().collect();
    assert_eq!((lines.len(), errors.lines().count()), (2, 1));
    let import = |text: &str, code: i32| {
        std::fs::write(project.path("o.jsonl"), text).unwrap();
        project.run_hqdl(&["import", "specs/x.toml", "o.jsonl"]).expect_exit_code(code)
    };
    import(lines[0], 1);
    let next = write("x");
    assert_eq!(events(&next, "written").len(), 0, "{next:?}");
    let named = events(&next, "unanswered")[0].clone();
    assert_eq!((&named["unanswered"], &named["requests"]), (&2.into(), &3.into()));
    // Only the failed requests are exported again.
    import(&errors, 1);
    let next = write("x");
    let rest = in_files(&project, &events(&next, "written"));
    assert!(!rest.is_empty() && rest.len() <= 16, "{rest:?}");
    assert_eq!(events(&next, "unanswered").len(), 1);
    import(lines[1], 1);
    // The answer is accepted from either file.
    let again = events(&next, "written")[0]["file"].as_str().unwrap().to_owned();
    let text = std::fs::read_to_string(project.path(again)).unwrap();
    import(&endpoint.run_file(&text).0, 0);
    check_complete(&project);
    let after = write("x");
    assert_eq!(after.lines.len(), 0, "nothing is missing: {after:?}");
    assert!(
        !project
            .path("out")
            .read_dir()
            .unwrap()
            .flatten()
            .any(|f| { f.path().extension().is_some_and(|e| e == "part") })
    );
}

/// Whatever fails at whichever step, a run ends with every cell answered, or reports the obstacle
/// and is resumed. No answer is lost or paid for twice. `HQDL_TEST_ROUNDS` sets the number of
/// rounds.
#[test]
fn every_cell_is_answered_once_despite_any_fault() {
    let rounds = std::env::var("HQDL_TEST_ROUNDS").ok().and_then(|s| s.parse().ok()).unwrap_or(3);
    let seed = std::env::var("HQDL_TEST_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1u64);
    let mut most = 0;
    for seed in seed..seed + rounds {
        let mut chance = fastrand::Rng::with_seed(seed);
        let endpoint = truthful_endpoint();
        endpoint.add_random_faults(seed, 0.05 + 0.25 * chance.f64());
        for _ in 0..chance.usize(0..3) {
            endpoint.set_next_outcome(match chance.u8(0..4) {
                0 => BatchOutcome::Expired(chance.usize(0..2)),
                1 => BatchOutcome::Failed("server_error", "it had a bad day"),
                _ => BatchOutcome::Completed(chance.usize(0..3)),
            });
        }
        if chance.bool() {
            endpoint.add_fault(Fault::status(500, "oops", "server_error"), Frequency::Every(4));
        }
        let project = heroes(&endpoint, "batch_requests = 2");
        let mut tries = 0;
        loop {
            tries += 1;
            let ended = batch(&project, &[]);
            assert!([0, 1, 4].contains(&ended.code), "seed {seed}, try {tries}: {ended:?}");
            if ended.code == 0 {
                break;
            }
            let said = format!("{}{}", ended.stdout, ended.stderr);
            let cause =
                ["trouble", "batch_expired", "bad day", "oops", "reply", "request", "answers"];
            assert!(cause.iter().any(|c| said.contains(c)), "seed {seed}: no cause: {said}");
            assert!(tries < 6, "seed {seed}: {said}");
        }
        check_complete(&project);
        nothing_twice(&endpoint);
        println!("seed {seed}: {tries} tries");
        most = most.max(tries);
    }
    println!("{rounds} rounds, {most} tries at most");
}
