//! What may be spent: said before, kept to, and remembered after a kill.

use serde_json::Value as Json;

use crate::endpoint::Endpoint;
use crate::project::{Project, check_complete, heroes, honest, spec};

/// The heroes with a model whose tokens can be counted, and limits.
fn limited(endpoint: &Endpoint, limits: &str) -> Project {
    let project = heroes(endpoint, "csv");
    project.spec(
        &spec()
            .replace("test-model", "gpt-4o-mini")
            .replace("concurrency = 4", &format!("concurrency = 4\n{limits}")),
    );
    project
}

fn usd(json: &Json) -> f64 {
    json.as_f64().unwrap()
}

#[test]
fn a_plan_says_when_the_budget_will_not_do_and_how_many_cells_fit() {
    let endpoint = honest();
    let project = limited(&endpoint, "");
    let plan = project.plan(&[]);
    assert_eq!(plan["budget"], Json::Null);
    let (likely, most) =
        (usd(&plan["totals"]["cost_usd"]["likely"]), usd(&plan["totals"]["cost_usd"]["most"]));
    assert!(likely < most);
    // Half of what is likely, something between, more than the most.
    let half = format!("{}", likely / 2.0);
    let plan = project.plan(&["--budget", &half]);
    let budget = &plan["budget"];
    assert!((usd(&budget["left_usd"]) - likely / 2.0).abs() < 1e-12);
    assert!((usd(&budget["likely_over_usd"]) - likely / 2.0).abs() < 1e-12);
    assert!((usd(&budget["most_over_usd"]) - (most - likely / 2.0)).abs() < 1e-12);
    let fit = budget["cells_that_fit"].as_u64().unwrap();
    assert!((19..=20).contains(&fit), "{fit}");
    let said = project.hqdl(&["plan", "specs/x.toml", "--budget", &half]).exits(0).stdout;
    assert!(said.contains("will likely be reached") && said.contains("of 40 cells fit"), "{said}");
    let between = format!("{}", f64::midpoint(likely, most));
    let said = project.hqdl(&["plan", "specs/x.toml", "--budget", &between]).exits(0).stdout;
    assert!(said.contains("the budget may be reached"), "{said}");
    let said = project.hqdl(&["plan", "specs/x.toml", "--budget", "9"]).exits(0).stdout;
    assert!(said.contains("budget    enough, even for the most"), "{said}");
    assert_eq!(project.plan(&["--budget", "9"])["budget"]["cells_that_fit"], 40);
    assert_eq!(endpoint.count(), 0);
}

#[test]
fn a_run_warns_before_it_begins_when_the_budget_will_not_do() {
    let endpoint = honest();
    let project = limited(&endpoint, "budget_tokens = 900");
    let plan = project.plan(&[]);
    assert!(plan["budget"]["likely_over_tokens"].as_u64().unwrap() > 0, "{plan}");
    let ended = project.materialize(&[]).exits(3);
    let at = |event: &str, word: &str| {
        let is = |l: &Json| l["event"] == event && l.to_string().contains(word);
        ended.lines.iter().position(is).unwrap_or_else(|| panic!("no {event}: {ended:?}"))
    };
    assert!(at("warning", "900 tokens left") < at("begin", "llm"));
    // What the day has spent is gone from what is left.
    let project = limited(&endpoint, "budget_usd_per_day = 0.5");
    let ended = project.materialize(&[]).exits(0);
    assert!(!ended.stdout.contains("the budget"), "{ended:?}");
    check_complete(&project);
    let spent = usd(&ended.done()["cost_usd"]);
    let left = usd(&project.plan(&[])["budget"]["left_usd"]);
    assert!((left - (0.5 - spent)).abs() < 1e-9, "{left}");
}
