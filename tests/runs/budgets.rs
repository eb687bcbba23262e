//! Tests of budgets: the price is known before a run, no run exceeds its budget, and spending
//! survives a kill.

use std::sync::OnceLock;
use std::time::Duration;

use serde_json::{Value as Json, json};

use hqdl::format::format_usd;
use hqdl_testkit::endpoint::{Endpoint, Fault, Frequency};
use hqdl_testkit::project::{
    Project, check_complete, heroes_project, heroes_spec, truthful_endpoint,
};

/// Returns the heroes' project with limits, and a model whose tokens can be counted.
fn limited(endpoint: &Endpoint, limits: &str) -> Project {
    let project = heroes_project(endpoint, "csv");
    project.write_spec(
        &heroes_spec()
            .replace("test-model", "gpt-4o-mini")
            .replace("concurrency = 4", &format!("concurrency = 4\n{limits}")),
    );
    project
}

fn usd(json: &Json) -> f64 {
    json.as_f64().unwrap()
}

#[test]
fn a_plan_reports_an_insufficient_budget_and_how_many_cells_fit() {
    let endpoint = truthful_endpoint();
    let project = limited(&endpoint, "");
    let plan = project.run_plan(&[]);
    assert_eq!(plan["budget"], Json::Null);
    let (likely, most) =
        (usd(&plan["totals"]["cost_usd"]["likely"]), usd(&plan["totals"]["cost_usd"]["most"]));
    assert!(likely < most);
    // Half of the likely cost, an amount in between, and more than the maximum.
    let half = format!("{}", likely / 2.0);
    let plan = project.run_plan(&["--budget", &half]);
    let budget = &plan["budget"];
    assert!((usd(&budget["left_usd"]) - likely / 2.0).abs() < 1e-12);
    assert!((usd(&budget["likely_over_usd"]) - likely / 2.0).abs() < 1e-12);
    assert!((usd(&budget["most_over_usd"]) - (most - likely / 2.0)).abs() < 1e-12);
    let fit = budget["cells_that_fit"].as_u64().unwrap();
    // Fewer than half of the cells fit, because the worst case must be left before a request is
    // sent.
    assert!(fit <= 20, "{fit}");
    let said =
        project.run_hqdl(&["plan", "specs/x.toml", "--budget", &half]).expect_exit_code(0).stdout;
    let small = format!(
        "too small for the first request: {} left, and the run likely costs {}",
        format_usd(likely / 2.0),
        format_usd(likely)
    );
    assert!(said.contains(&small), "{said}");
    let said = project
        .run_hqdl(&["plan", "specs/x.toml", "--budget", "0.00001"])
        .expect_exit_code(0)
        .stdout;
    assert!(
        said.contains("the budget is too small for the first request: $0.000010 left"),
        "{said}"
    );
    let between = format!("{}", f64::midpoint(likely, most));
    let said = project
        .run_hqdl(&["plan", "specs/x.toml", "--budget", &between])
        .expect_exit_code(0)
        .stdout;
    assert!(said.contains("the budget may be reached"), "{said}");
    let said =
        project.run_hqdl(&["plan", "specs/x.toml", "--budget", "9"]).expect_exit_code(0).stdout;
    assert!(said.contains("budget    enough, even for the maximum"), "{said}");
    assert_eq!(project.run_plan(&["--budget", "9"])["budget"]["cells_that_fit"], 40);
    assert_eq!(endpoint.request_count(), 0);
}

#[test]
fn a_run_warns_of_an_insufficient_budget_before_it_begins() {
    let endpoint = truthful_endpoint();
    let project = limited(&endpoint, "budget_tokens = 900");
    let plan = project.run_plan(&[]);
    assert!(plan["budget"]["likely_over_tokens"].as_u64().unwrap() > 0, "{plan}");
    let ended = project.run_materialize(&[]).expect_exit_code(3);
    let at = |event: &str, word: &str| {
        let is = |l: &Json| l["event"] == event && l.to_string().contains(word);
        ended.lines.iter().position(is).unwrap_or_else(|| panic!("no {event}: {ended:?}"))
    };
    assert!(at("warning", "900 tokens left") < at("begin", "llm"));
    // The day's spending reduces what is left.
    let project = limited(&endpoint, "budget_usd_per_day = 0.5");
    let ended = project.run_materialize(&[]).expect_exit_code(0);
    assert!(!ended.stdout.contains("the budget"), "{ended:?}");
    check_complete(&project);
    let spent = usd(&ended.done_event()["cost_usd"]);
    let left = usd(&project.run_plan(&[])["budget"]["left_usd"]);
    assert!((left - (0.5 - spent)).abs() < 1e-9, "{left}");
}

#[test]
fn a_hint_names_the_exhausted_budget() {
    for (limits, message, hint) in [
        ("budget_usd = 0.0001", "the budget is reached", "--budget"),
        ("budget_usd_per_day = 0.0001", "the budget of the day is reached", "`budget_usd_per_day`"),
    ] {
        let endpoint = truthful_endpoint();
        let ended = limited(&endpoint, limits).run_materialize(&[]).expect_exit_code(3);
        let error = ended.lines.iter().find(|line| line["event"] == "error").unwrap();
        assert!(error["message"].as_str().unwrap().contains(message), "{error}");
        let said = error["hint"].as_str().unwrap();
        assert!(said.contains(hint), "{error}");
        assert_eq!(said.contains("--budget"), hint == "--budget", "{error}");
    }
}

/// A query can run with the maximum that `explain` prints as its budget, even if every answer has
/// its planned length, so that later requests may use more.
#[test]
fn a_query_runs_with_the_budget_that_explain_prints() {
    let endpoint = truthful_endpoint();
    let planned = OnceLock::new();
    endpoint.set_usage_fn(move |body, input, _| {
        let allowed = body["max_tokens"].as_u64().or(body["max_completion_tokens"].as_u64());
        let planned = *planned.get_or_init(|| allowed.unwrap());
        json!({ "prompt_tokens": input, "completion_tokens": planned })
    });
    let project = thrifty(&endpoint, "");
    let text = std::fs::read_to_string(project.path("specs/x.toml")).unwrap();
    project.write_spec(&text.replace("concurrency = 4", "concurrency = 1"));
    let sql = "SELECT name, {{LLMMap('What is the hero afraid of?', hero.height)}} FROM hero";
    let explain = ["explain", "--spec", "specs/x.toml", sql];
    let printed = project.run_hqdl(&explain).expect_exit_code(0).stdout;
    let bound = printed.split("at most $").nth(1).unwrap().split(' ').next().unwrap();
    let query = ["query", "--spec", "specs/x.toml", "--budget", bound.trim(), sql];
    project.run_hqdl(&query).expect_exit_code(0);
    assert!(endpoint.request_count() > 1, "{printed}");
}

/// Returns the heroes' project with one row per request, and answers of known length.
fn thrifty(endpoint: &Endpoint, limits: &str) -> Project {
    let project = limited(endpoint, limits);
    let text = std::fs::read_to_string(project.path("specs/x.toml")).unwrap();
    project.write_spec(
        &text
            .replace("rows_per_request = 4", "rows_per_request = 1")
            .replace("price = {", "max_output_tokens = 100\nprice = {"),
    );
    project
}

/// Returns the journal's reservations: USD, and whether they are in doubt.
fn reservations(project: &Project) -> Vec<(f64, bool)> {
    project
        .query_facts("SELECT cost_usd, in_doubt FROM reservation")
        .iter()
        .map(|r| (usd(&r[0]), r[1] == 1))
        .collect()
}

#[test]
fn a_request_in_flight_at_a_kill_counts_as_spent() {
    for limits in ["budget_usd = 0.01", "budget_usd_per_day = 0.01"] {
        let endpoint = truthful_endpoint();
        let project = thrifty(&endpoint, limits);
        let left = |project: &Project| usd(&project.run_plan(&[])["budget"]["left_usd"]);
        // The very first request is sent alone.
        project.run_materialize(&["--limit", "1"]).expect_exit_code(0);
        let (before, asked) = (left(&project), endpoint.request_count());
        endpoint.add_fault(Fault::Latency(Duration::from_secs(20)), Frequency::Always);
        let running =
            project.start_hqdl(&["materialize", "specs/x.toml", "--json", "--concurrency", "3"]);
        endpoint.wait_for(asked + 3);
        assert_eq!(reservations(&project).len(), 3, "noted before they left");
        running.send_signal("KILL");
        running.wait_for_exit();
        let noted: f64 = reservations(&project).iter().map(|r| r.0).sum();
        assert!(noted > 0.0);
        assert!((left(&project) - (before - noted)).abs() < 1e-9, "{limits}: {}", left(&project));
        endpoint.clear_faults();
        let ended = project.run_materialize(&[]).expect_exit_code(0);
        check_complete(&project);
        assert!(ended.stdout.contains("3 requests were in flight"), "{}", ended.stdout);
        assert!(reservations(&project).iter().all(|r| r.1), "in doubt, and nothing else");
        assert_eq!(reservations(&project).len(), 3);
        // It is reported once.
        project.execute_sql("INSERT INTO hero (name, full_name) VALUES ('New One', 'Nina')");
        let ended = project.run_materialize(&[]).expect_exit_code(0);
        assert!(!ended.stdout.contains("in flight"), "{}", ended.stdout);
        let stats = project.run_hqdl(&["cache", "stats", "--json"]).expect_exit_code(0);
        assert!((usd(&stats.lines[0]["cost_in_doubt_usd"]) - noted).abs() < 1e-9);
    }
}

/// However often the run is killed, everything that the endpoint billed, or may have billed, stays
/// within the budget.
#[test]
fn repeated_kills_do_not_overspend() {
    let endpoint = truthful_endpoint();
    endpoint.add_fault(Fault::Latency(Duration::from_millis(30)), Frequency::Always);
    let project = thrifty(&endpoint, "budget_usd = 0.006");
    let mut kills = 0;
    loop {
        let count = endpoint.request_count();
        let mut running =
            project.start_hqdl(&["materialize", "specs/x.toml", "--concurrency", "2"]);
        while endpoint.request_count() == count && !running.has_ended() {
            std::thread::sleep(Duration::from_millis(2));
        }
        if running.has_ended() {
            running.wait_for_exit().expect_exit_code(3);
            break;
        }
        // The endpoint has received the request, and bills it when it is answered.
        running.send_signal("KILL");
        running.wait_for_exit();
        kills += 1;
        assert!(kills < 40, "the budget is never reached");
    }
    std::thread::sleep(Duration::from_millis(100));
    let (input, output) = endpoint.billed_tokens();
    let spent = (input as f64 + 2.0 * output as f64) / 1e6;
    assert!(kills >= 5, "{kills} kills");
    assert!(spent <= 0.006, "{spent} in {kills} kills");
}

#[test]
fn a_request_that_broke_off_counts_and_is_reported() {
    let endpoint = truthful_endpoint();
    endpoint.add_fault(Fault::DroppedMidBody, Frequency::First(1));
    endpoint.add_fault(
        Fault::status(500, "The server had an error", "server_error"),
        Frequency::First(1),
    );
    let project = thrifty(&endpoint, "budget_usd_per_day = 0.01");
    let ended = project.run_materialize(&[]).expect_exit_code(0);
    check_complete(&project);
    let in_doubt = &ended.done_event()["in_doubt"];
    assert_eq!(in_doubt["requests"], 1, "a status is an answer: {in_doubt}");
    let noted = reservations(&project);
    assert_eq!((noted.len(), noted[0].1), (1, true));
    assert!((usd(&in_doubt["cost_usd"]) - noted[0].0).abs() < 1e-12);
    let left = usd(&project.run_plan(&[])["budget"]["left_usd"]);
    let spent = usd(&ended.done_event()["cost_usd"]);
    assert!((left - (0.01 - spent - noted[0].0)).abs() < 1e-9, "{left}");
}

#[test]
fn a_run_that_was_interrupted_leaves_nothing_in_flight_behind() {
    let endpoint = truthful_endpoint();
    endpoint.add_fault(Fault::Latency(Duration::from_millis(40)), Frequency::Always);
    endpoint.add_fault(Fault::too_many("retry-after-ms", "100"), Frequency::Every(3));
    let project = thrifty(&endpoint, "budget_usd_per_day = 1.0");
    for wait in [0, 30, 60, 90] {
        let count = endpoint.request_count();
        let mut running = project.start_hqdl(&[
            "materialize",
            "specs/x.toml",
            "--concurrency",
            "8",
            "--limit",
            "8",
        ]);
        while endpoint.request_count() == count && !running.has_ended() {
            std::thread::sleep(Duration::from_millis(2));
        }
        std::thread::sleep(Duration::from_millis(wait));
        if !running.has_ended() {
            running.send_signal("INT");
        }
        running.wait_for_exit();
        assert_eq!(reservations(&project), [], "after {wait} ms");
    }
    let spent = 1.0 - usd(&project.run_plan(&[])["budget"]["left_usd"]);
    let (input, output) = endpoint.billed_tokens();
    let billed = (input as f64 + 2.0 * output as f64) / 1e6;
    assert!((spent - billed).abs() < 1e-9, "{spent} counted, {billed} billed");
}

/// Recorded answers cost nothing, whatever their price: no sum of money or of paid tokens includes
/// them, and no budget covers them.
#[test]
fn replay_is_not_spending() {
    let endpoint = truthful_endpoint();
    let project = limited(&endpoint, "budget_tokens = 500\nbudget_usd_per_day = 0.004");
    let lines = project.query_rows("SELECT name, full_name FROM hero");
    let said = |row: &Vec<Json>| {
        let content = "1,x,y,Blue,1999,Flight,Up".to_owned();
        let tokens = serde_json::json!({
            "keys": row, "content": content, "prompt_tokens": 1000, "completion_tokens": 1000,
        });
        format!("{tokens}\n")
    };
    let text: String = lines.iter().map(said).collect();
    std::fs::write(project.path("r.jsonl"), text).unwrap();
    let replay = ["--provider", "replay", "--recordings", "r.jsonl"];
    let plan = project.run_plan(&replay);
    assert_eq!(plan["totals"]["cost_usd"]["most"], 0.0, "{plan}");
    assert_eq!(plan["budget"], Json::Null, "nothing is spent of it");
    let left = usd(&project.run_plan(&[])["budget"]["left_usd"]);
    for _ in 0..2 {
        let flags = [&replay[..], &["--budget", "0.0001", "--retry-failed"]].concat();
        let ended = project.run_materialize(&flags);
        assert!(ended.code < 2, "no budget ends it: {ended:?}");
        assert_eq!(ended.done_event()["requests"], 10, "{ended:?}");
        assert_eq!(usd(&ended.done_event()["cost_usd"]), 0.0);
    }
    let ended = project.run_hqdl(&["status", "specs/x.toml", "--json"]);
    assert!(!ended.stdout.contains("0.03"), "{}", ended.stdout);
    assert_eq!(usd(&project.run_plan(&[])["budget"]["left_usd"]), left, "of the day");
    let stats = project.run_hqdl(&["cache", "stats", "--json"]).expect_exit_code(0);
    assert_eq!(usd(&stats.lines[0]["cost_usd"]), 0.0, "{stats:?}");
    // A journal of an earlier version contains prices of recordings.
    project.change_facts("UPDATE completion SET cost_usd = 0.01");
    assert_eq!(usd(&project.run_plan(&[])["budget"]["left_usd"]), left, "of the day");
    let stats = project.run_hqdl(&["cache", "stats", "--json"]).expect_exit_code(0);
    assert_eq!(usd(&stats.lines[0]["cost_usd"]), 0.0, "{stats:?}");
    let daemon = hqdl_testkit::daemon::Daemon::start(&project, &["--no-spend"]);
    let page = daemon.get("/").expect_status(200).body;
    let spent = "<dt>Spent in 30 days</dt><dd>$0.0000</dd><dd>0 requests</dd>";
    assert!(page.contains(spent), "{page}");
    let metrics = daemon.get("/metrics").expect_status(200).body;
    assert!(metrics.contains("hqdl_cost_usd_total 0\n"), "{metrics}");
}

/// The same daily budget: replayed answers do not count against it, live ones do.
#[test]
fn live_spending_counts_beside_replay() {
    let endpoint = truthful_endpoint();
    let project = limited(&endpoint, "budget_usd_per_day = 1.0");
    let ended = project.run_materialize(&[]).expect_exit_code(0);
    let spent = usd(&ended.done_event()["cost_usd"]);
    assert!(spent > 0.0);
    let stats = project.run_hqdl(&["cache", "stats", "--json"]).expect_exit_code(0);
    assert!((usd(&stats.lines[0]["cost_usd"]) - spent).abs() < 1e-12);
    let left = usd(&project.run_plan(&[])["budget"]["left_usd"]);
    assert!((left - (1.0 - spent)).abs() < 1e-9);
}

/// A run immediately after a plan, under the same budget, answers about as many cells as the plan
/// predicts: none if it predicts none, some if it predicts some. `HQDL_TEST_SCHEDULES` sets the
/// number of schedules.
#[test]
fn a_run_answers_about_as_many_cells_as_the_plan_says() {
    let schedules = std::env::var("HQDL_TEST_SCHEDULES").ok().and_then(|s| s.parse().ok());
    let mut chance = fastrand::Rng::with_seed(5);
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    project.execute_sql(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 190)
         INSERT INTO hero (name, full_name) SELECT 'Number ' || i, 'Person ' || (i * 7) FROM n",
    );
    // The estimated and the actual cost.
    let plan = project.run_plan(&[]);
    let likely = usd(&plan["totals"]["cost_usd"]["likely"]);
    let cost = usd(&project
        .run_materialize(&["--cache", "whole"])
        .expect_exit_code(0)
        .done_event()["cost_usd"]);
    let ratio = likely / cost;
    println!("the plan says {likely}, it costs {cost}");
    for schedule in 0..schedules.unwrap_or(6) {
        let rows = chance.usize(1..=20);
        let budget = likely * chance.f64() * if chance.bool() { 1.2 } else { 0.2 };
        let cache = format!("cache-{schedule}");
        let flags = [
            "--budget",
            &budget.to_string(),
            "--cache",
            &cache,
            "--rows-per-request",
            &rows.to_string(),
            "--concurrency",
            &chance.u8(1..9).to_string(),
        ]
        .map(str::to_owned);
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let planned: Vec<&str> =
            flags.iter().copied().filter(|f| *f != "--concurrency").collect::<Vec<_>>();
        let planned = &planned[..planned.len() - 1];
        let plan = project.run_plan(planned);
        let fit = plan["budget"]["cells_that_fit"].as_u64().unwrap() as f64;
        let before = endpoint.billed_tokens();
        let ended = project.run_materialize(&flags);
        let after = endpoint.billed_tokens();
        let (input, output) = (after.0 - before.0, after.1 - before.1);
        let billed = (input as f64 + 2.0 * output as f64) / 1e6;
        assert!(billed <= budget + 1e-12, "{billed} of {budget}");
        let got = ended.done_event()["cells"]["ok"].as_u64().unwrap_or(0) as f64
            + ended.done_event()["cells"]["unknown"].as_u64().unwrap_or(0) as f64;
        println!("{rows} rows, ${budget:.5}: {fit} said, {got} answered");
        assert!(fit > 0.0 || got == 0.0 || got <= 4.0, "{got} answered, none said: {plan}");
        assert!(fit == 0.0 || got > 0.0, "none of {fit}: {ended:?}");
        // The tolerance covers the estimated price of an answer, and a request with a few rows.
        let near = fit * ratio;
        assert!(
            (got - near).abs() <= 0.15 * near + 24.0,
            "{fit} said, {near} at this price, {got}"
        );
        std::fs::remove_dir_all(project.path(&cache)).unwrap();
        std::fs::remove_file(project.path("specs/x.db")).ok();
        project.execute_sql("DROP TABLE IF EXISTS llm; DROP TABLE IF EXISTS llm_powers;");
    }
}

/// A plan derives its duration from the model's latest answers.
#[test]
fn a_plans_duration_is_estimated_from_earlier_answers() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    let seconds = || project.run_plan(&[])["totals"]["seconds"].as_f64().unwrap();
    let assumed = seconds();
    assert!(assumed > 0.0);
    project.run_materialize(&["--limit", "4"]).expect_exit_code(0);
    let took = |seconds: f64| {
        project.change_facts(&format!("UPDATE completion SET seconds = {seconds:?}"));
    };
    took(4.0);
    let slow = seconds();
    took(40.0);
    assert!((seconds() / slow - 10.0).abs() < 0.01, "{} of {slow}", seconds());
    // Nothing is known about another model.
    let other = project.run_plan(&["--model", "another"]);
    assert!((other["totals"]["seconds"].as_f64().unwrap() - assumed).abs() < 1e-9, "{other}");
}

/// A plan learns from the last run how often requests are repeated, and how long the answers are.
#[test]
fn a_plan_expects_what_the_last_run_measured() {
    for fault in [None, Some(Fault::MissingRows), Some(Fault::Truncated)] {
        let endpoint = truthful_endpoint();
        let project = limited(&endpoint, "");
        project.execute_sql(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 190)
             INSERT INTO hero (name, full_name) SELECT 'Number ' || i, 'Person ' || (i * 7) FROM n",
        );
        let is_faulty = fault.is_some();
        if let Some(fault) = fault.clone() {
            endpoint.add_fault(fault, Frequency::Every(2));
        }
        let assumed = project.run_plan(&[]);
        assert_eq!(assumed["totals"]["measured_requests"], 0);
        project.run_materialize(&["--limit", "80"]);
        let plan = project.run_plan(&[])["totals"].clone();
        assert!(plan["measured_requests"].as_u64().unwrap() > 10, "{plan}");
        assert_eq!(plan["measured_repeats"].as_f64().unwrap() > 1.1, is_faulty, "{plan}");
        let text = project.run_hqdl(&["plan", "specs/x.toml"]).expect_exit_code(0).stdout;
        assert!(text.contains("estimate  based on the last "), "{text}");
        assert_eq!(text.contains("each cell was requested"), is_faulty, "{text}");
        let ended = project.run_materialize(&[]);
        let done = ended.done_event();
        let (cost, likely) = (usd(&done["cost_usd"]), usd(&plan["cost_usd"]["likely"]));
        let requests = done["requests"].as_f64().unwrap();
        let planned = plan["requests"].as_f64().unwrap();
        println!("{fault:?}: {likely} planned, {cost} spent; {planned} of {requests} requests");
        // Which requests fail depends on their order, so the numbers of repeats differ by a third.
        let tolerance = if is_faulty { 0.5 } else { 0.1 };
        let is_near = |planned: f64, real: f64| (planned / real - 1.0).abs() < tolerance;
        assert!(is_near(likely, cost), "{fault:?}: {likely} planned, {cost} spent");
        assert!(is_near(planned, requests), "{planned} planned, {requests} sent");
        assert!(usd(&plan["cost_usd"]["most"]) > cost, "{plan}, {cost} spent");
    }
}

/// The message about the daily budget counts all runs of the day.
#[test]
fn a_daily_budget_is_described_with_the_spending_of_the_day() {
    let endpoint = truthful_endpoint();
    let project = limited(&endpoint, "budget_usd_per_day = 0.5");
    let spent = usd(&project.run_materialize(&["--limit", "5"]).done_event()["cost_usd"]);
    assert!(spent > 0.0);
    let budget = spent + 0.00001;
    project.edit_spec("budget_usd_per_day = 0.5", &format!("budget_usd_per_day = {budget}"));
    let plan = project.run_hqdl(&["plan", "specs/x.toml"]).expect_exit_code(0).stdout;
    assert!(plan.contains("the budget of the day is too small for the first request"), "{plan}");
    let ended = project.run_hqdl(&["materialize", "specs/x.toml"]).expect_exit_code(3);
    let of_day = format!(
        "the budget of the day is reached: {} of {} is spent today",
        format_usd(spent),
        format_usd(budget)
    );
    assert!(ended.stderr.contains(&of_day), "{of_day}: {}", ended.stderr);
}
