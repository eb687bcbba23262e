//! Tests of the usage that an endpoint reports, and of the cost that hqdl computes from it.

use serde_json::{Value as Json, json};

use hqdl_testkit::endpoint::{Endpoint, Fault, Frequency};
use hqdl_testkit::project::{Project, heroes_project, truthful_endpoint};

const PRICE: &str = "price = { input = 1.0, output = 2.0 }";

/// Creates the heroes' project with a price, one row per request, and `limits`.
fn priced(endpoint: &Endpoint, price: &str, limits: &str) -> Project {
    let project = heroes_project(endpoint, "json");
    let text = project.spec_text().replace("rows_per_request = 4", "rows_per_request = 1");
    assert!(text.contains(PRICE) && text.contains("concurrency = 4"));
    project.write_spec(
        &text
            .replace(PRICE, price)
            .replace("concurrency = 4", &format!("concurrency = 4\n{limits}")),
    );
    project
}

/// Returns the cost that hqdl reports for a run.
fn cost(project: &Project, code: i32) -> f64 {
    project.run_materialize(&[]).expect_exit_code(code).done_event()["cost_usd"].as_f64().unwrap()
}

/// Returns what an endpoint bills that writes every prompt to its cache, at these prices in USD per
/// million tokens.
fn billed(endpoint: &Endpoint, write: f64, output: f64) -> f64 {
    let (input, out) = endpoint.billed_tokens();
    (input as f64 * write + out as f64 * output) / 1e6
}

/// Returns the formats in which endpoints report cache writes.
fn cache_writes() -> Vec<Json> {
    vec![
        json!({ "prompt_tokens": "in", "completion_tokens": "out",
                "prompt_tokens_details": { "cached_tokens": 0, "cache_write_tokens": "in" } }),
        json!({ "input_tokens": "in", "output_tokens": "out",
                "input_tokens_details": { "cache_write_tokens": "in" } }),
        json!({ "input_tokens": 0, "cache_creation_input_tokens": "in",
                "cache_read_input_tokens": 0, "output_tokens": "out" }),
    ]
}

#[test]
fn cache_writes_are_billed_and_never_exceed_a_budget() {
    for (n, shape) in cache_writes().into_iter().enumerate() {
        for (price, write) in
            [(PRICE, 1.25), ("price = { input = 1.0, output = 2.0, cache_write = 2.0 }", 2.0)]
        {
            let endpoint = truthful_endpoint();
            endpoint.add_fault(Fault::Usage(shape.clone()), Frequency::Always);
            let project = priced(&endpoint, price, "");
            let (said, true_cost) = (cost(&project, 0), billed(&endpoint, write, 2.0));
            assert!((said - true_cost).abs() < 1e-6, "{n}: {said} is said of {true_cost}");
            // The same under a budget that does not cover it.
            let endpoint = truthful_endpoint();
            endpoint.add_fault(Fault::Usage(shape.clone()), Frequency::Always);
            let budget = true_cost * 0.6;
            let project = priced(&endpoint, price, &format!("budget_usd = {budget}"));
            let said = cost(&project, 3);
            assert!(billed(&endpoint, write, 2.0) <= budget, "{n}: the budget is exceeded");
            assert!(said <= budget && said > 0.0, "{n}: {said} of {budget}");
        }
    }
}

/// A cost with cache writes at an assumed price of 1.25 times the input price has a note, and no
/// other cost does.
#[test]
fn an_assumed_price_of_cache_writes_is_named() {
    const NOTE: &str = "cache writes assumed at 1.25 × input";
    let stated = "price = { input = 1.0, output = 2.0, cache_write = 1.5 }";
    let free = "price = { input = 0, output = 0 }";
    for (price, writes, reserved, billed) in [
        (PRICE, true, true, true),
        (PRICE, false, true, false),
        (stated, true, false, false),
        (free, true, false, false),
    ] {
        let endpoint = truthful_endpoint();
        if writes {
            endpoint.add_fault(Fault::Usage(cache_writes()[0].clone()), Frequency::Always);
        }
        let project = priced(&endpoint, price, "");
        let case = format!("{price}, written: {writes}");
        let names = |notes: &Json| notes.to_string().contains(NOTE);
        let has = |text: &str| text.contains(&format!("({NOTE})"));
        assert_eq!(names(&project.run_plan(&[])["price_notes"]), reserved, "{case}");
        let plan = project.run_hqdl(&["plan", "specs/x.toml"]).expect_exit_code(0).stdout;
        assert_eq!(plan.contains(NOTE), reserved, "{case}: {plan}");
        let sql = "SELECT {{LLMMap('Is it short?', hero.name)}} FROM hero";
        let explained = project
            .run_hqdl(&["explain", "--spec", "specs/x.toml", sql])
            .expect_exit_code(0)
            .stdout;
        assert_eq!(explained.contains(NOTE), reserved, "{case}: {explained}");
        let query = ["query", "--spec", "specs/x.toml", "--meta", "-v", sql];
        let queried = project.run_hqdl(&query).expect_exit_code(0);
        assert_eq!(has(&queried.stderr), billed, "{case}: {}", queried.stderr);
        let ended = project.run_materialize(&["--limit", "1"]).expect_exit_code(0);
        assert_eq!(names(&ended.done_event()["price_notes"]), billed, "{case}");
        let run = project.run_hqdl(&["materialize", "specs/x.toml"]).expect_exit_code(0);
        assert_eq!(has(&run.stdout), billed, "{case}: {}", run.stdout);
        let stats = project.run_hqdl(&["cache", "stats"]).expect_exit_code(0).stdout;
        assert_eq!(has(&stats), billed, "{case}: {stats}");
        let key = ["Zed", "Zed Zedsson"];
        let why = ["why", "--spec", "specs/x.toml", "llm", key[0], key[1], "motto"];
        let why = project.run_hqdl(&why).expect_exit_code(0).stdout;
        assert_eq!(has(&why), billed, "{case}: {why}");
    }
}

#[test]
fn a_long_prompt_is_billed_at_its_own_price() {
    let endpoint = truthful_endpoint();
    let price = "price = { input = 1.0, output = 2.0, above = { input_tokens = 10, input = 3.0, output = 8.0 } }";
    let project = priced(&endpoint, price, "");
    let said = cost(&project, 0);
    assert!((said - billed(&endpoint, 3.0, 8.0)).abs() < 1e-6, "{said}");
    let plan = project.run_plan(&[]);
    assert_eq!(plan["totals"]["cells"], 0);
}

#[test]
fn usage_below_the_count_stops_the_run_after_one_request() {
    let endpoint = truthful_endpoint();
    let shape = json!({ "prompt_tokens": 1, "completion_tokens": 1 });
    endpoint.add_fault(Fault::Usage(shape), Frequency::Always);
    let project = priced(&endpoint, PRICE, "budget_usd = 0.01");
    for run in 1..=2 {
        let ended = project.run_materialize(&[]).expect_exit_code(4);
        assert!(ended.stderr.contains("reports 1 input and 1 output tokens"), "{}", ended.stderr);
        assert_eq!(endpoint.request_count(), run, "the first request goes alone");
        // Answers are kept, and billed as counted.
        let said = ended.done_event()["cost_usd"].as_f64().unwrap();
        let (input, output) = endpoint.billed_tokens();
        let least = (input + 2 * output) as f64 / run as f64 / 2.0 / 1e6;
        assert!(said >= least, "{said} of at least {least}");
    }
    // A free model may report any usage.
    let project = priced(&endpoint, "price = { input = 0.0, output = 0.0 }", "");
    cost(&project, 0);
}

#[test]
fn impossible_usage_costs_one_request_and_is_in_no_total() {
    for (tokens, most) in [(2_000, 0.01), (1_000_000_000_000_000_u64, 0.01)] {
        let endpoint = truthful_endpoint();
        let shape = json!({ "prompt_tokens": "in", "completion_tokens": tokens });
        endpoint.add_fault(Fault::Usage(shape), Frequency::Always);
        let project = priced(&endpoint, PRICE, "budget_usd = 0.5");
        let ended = project.run_materialize(&[]).expect_exit_code(4);
        assert!(ended.stderr.contains("the endpoint reports usage of"), "{}", ended.stderr);
        assert_eq!(endpoint.request_count(), 1, "the first request goes alone");
        let said = ended.done_event()["cost_usd"].as_f64().unwrap();
        assert!(said > 0.0 && said < most, "{tokens}: {said}");
    }
}

#[test]
fn an_endpoint_is_proven_by_one_plausible_report_for_the_next_run_too() {
    let endpoint = truthful_endpoint();
    endpoint.add_fault(Fault::Latency(std::time::Duration::from_millis(300)), Frequency::Always);
    let project = priced(&endpoint, PRICE, "");
    project.run_materialize(&["--limit", "1"]).expect_exit_code(0);
    assert_eq!(endpoint.most_in_flight(), 1);
    cost(&project, 0);
    assert!(endpoint.most_in_flight() > 1, "the others go together");
    let second = truthful_endpoint();
    second.add_fault(Fault::Latency(std::time::Duration::from_millis(300)), Frequency::Always);
    let project = priced(&second, PRICE, "");
    project.run_materialize(&["--limit", "3"]).expect_exit_code(0);
    assert!(second.most_in_flight() <= 2, "one alone, then two");
}
