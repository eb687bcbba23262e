//! Tests of the sources of prices: the spec, the bundled price book, or none; and the effect on
//! plans, budgets and service tiers.

use std::io::Write;
use std::process::Stdio;

use serde_json::{Value as Json, json};

use hqdl::spec::PriceBook;
use hqdl_testkit::daemon::Daemon;
use hqdl_testkit::endpoint::{Endpoint, Fault, Frequency};
use hqdl_testkit::project::{Project, check_complete, heroes_project, truthful_endpoint};

const PRICE: &str = "price = { input = 1.0, output = 2.0 }";

/// Creates the heroes' project for plans, with a model at its provider and no price in the spec.
fn without_price(endpoint: &Endpoint, model: &str) -> Project {
    let project = heroes_project(endpoint, "json");
    let text = project.spec_text();
    let url = format!("base_url = \"{}\"", endpoint.base_url());
    assert!(text.contains(&url) && text.contains(PRICE), "{text}");
    project.write_spec(&text.replace(&url, "").replace(PRICE, "").replace("test-model", model));
    project
}

fn plan(project: &Project, flags: &[&str]) -> String {
    let ended = project.run_hqdl(&[&["plan", "specs/x.toml"], flags].concat()).expect_exit_code(0);
    let price = ended.stdout.lines().find(|line| line.starts_with("cost"));
    price.unwrap_or_else(|| panic!("{}", ended.stdout)).to_owned()
}

#[test]
fn a_plan_names_the_source_of_its_price() {
    let endpoint = truthful_endpoint();
    let project = without_price(&endpoint, "gpt-4o-mini");
    let book = format!("(gpt-4o-mini: book of {})", PriceBook::bundled().date);
    let price = plan(&project, &[]);
    assert!(price.starts_with("cost      $0.0") && price.ends_with(&book), "{price}");
    let notes = &project.run_plan(&[])["price_notes"];
    assert_eq!(*notes, json!([book.trim_matches(['(', ')'])]));
    let sql = "SELECT name FROM hero WHERE {{LLMMap('Is it short?', hero.name)}} = 'yes'";
    let explained =
        project.run_hqdl(&["explain", "--spec", "specs/x.toml", sql]).expect_exit_code(0).stdout;
    assert!(explained.contains(&book), "{explained}");
    // A budget can be enforced at that price.
    assert!(plan(&project, &["--budget", "0.01"]).ends_with(&book));
    // The spec's price takes precedence, and so does the flag's.
    let assumed = json!(["gpt-4o-mini: cache writes assumed at 1.25 × input"]);
    assert_eq!(project.run_plan(&["--price", "3,4"])["price_notes"], assumed);
    project.edit_spec("[limits]", &format!("{PRICE}\n[limits]"));
    assert_eq!(project.run_plan(&[])["price_notes"], assumed);
    // But it applies only to the spec's model.
    let notes = project.run_plan(&["--model", "gpt-4o"])["price_notes"].clone();
    assert!(notes[0].as_str().unwrap().starts_with("gpt-4o: book of"), "{notes}");
}

/// A proxy or a local server has no price unless the spec sets one.
#[test]
fn no_price_is_guessed() {
    let endpoint = truthful_endpoint();
    let project = without_price(&endpoint, "gpt-4o-mini");
    let url = endpoint.base_url();
    let host = url.trim_start_matches("http://").trim_end_matches("/v1");
    for (flags, why) in [
        (["--base-url", &url], format!("does not have the endpoint {host}")),
        (["--base-url", "https://proxy.example/v1"], "the endpoint proxy.example".to_owned()),
        (["--model", "gpt-9"], "has no model `gpt-9` of api.openai.com".to_owned()),
    ] {
        let price = plan(&project, &flags);
        assert!(price.contains("unknown") && price.contains(&why), "{price}");
        let refused =
            project.run_hqdl(&[&["plan", "specs/x.toml", "--budget", "1"], &flags[..]].concat());
        let refused = refused.expect_exit_code(2).stderr;
        assert!(refused.contains("hqdl cannot keep --budget"), "{refused}");
        assert!(refused.contains(&why), "{refused}");
    }
    // A run reports that, too.
    project.edit_spec("[model]", &format!("[model]\nbase_url = \"{url}\""));
    let ended = project.run_hqdl(&["materialize", "specs/x.toml"]).expect_exit_code(0);
    let price = ended.stdout.lines().find(|l| l.starts_with("cost")).unwrap();
    assert!(price.contains("unknown") && price.contains(host), "{price}");
    check_complete(&project);
}

#[test]
fn the_book_is_printed() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "json");
    let all = project.run_hqdl(&["prices"]).expect_exit_code(0).stdout;
    let date = &PriceBook::bundled().date;
    assert!(all.contains("claude-haiku-4-5") && all.contains(date.as_str()), "{all}");
    let one = project.run_hqdl(&["prices", "openai/gpt-4o-2024-08-06"]).expect_exit_code(0).stdout;
    assert!(one.contains("gpt-4o") && one.contains("source: https://"), "{one}");
    assert!(!one.contains("gpt-4o-mini"), "{one}");
    let csv = project.run_hqdl(&["prices", "--format", "csv"]).expect_exit_code(0).stdout;
    assert_eq!(csv.lines().count(), PriceBook::bundled().entries.len() + 1);
    assert!(csv.lines().skip(1).all(|line| line.contains(",https://")), "{csv}");
    let printed =
        project.run_hqdl(&["prices", "gpt-oss-120b", "--json"]).expect_exit_code(0).stdout;
    let printed: Json = serde_json::from_str(&printed).unwrap();
    assert_eq!(printed["meta"]["date"], date.as_str());
    assert_eq!(printed["rows"][0][0], "cerebras");
    let unknown = project.run_hqdl(&["prices", "gpt-4p-mini"]).expect_exit_code(2).stderr;
    assert!(unknown.contains("has no model `gpt-4p-mini`"), "{unknown}");
    assert!(unknown.contains("did you mean `gpt-4o-mini`?"), "{unknown}");
}

/// Returns the usage that an endpoint reports with a service tier.
fn usage(tier: &str) -> Fault {
    let tokens = json!({ "prompt_tokens": "in", "completion_tokens": "out" });
    let mut usage = tokens;
    if !tier.is_empty() {
        usage["service_tier"] = tier.into();
    }
    Fault::Usage(usage)
}

/// A service tier has its own price factor. A reply that reports another tier, or none, never
/// counts as cheaper than it may be.
#[test]
fn a_service_tier_is_billed_at_its_own_factor() {
    for (tier, part, reported, billed) in [
        ("flex", "0.5", "flex", 0.5),
        ("flex", "0.5", "default", 1.0),
        ("flex", "0.5", "", 1.0),
        ("priority", "2.0", "priority", 2.0),
        ("priority", "2.0", "default", 1.0),
        ("priority", "2.0", "", 2.0),
        ("default", "7.0", "default", 1.0),
    ] {
        let endpoint = truthful_endpoint();
        endpoint.add_fault(usage(reported), Frequency::Always);
        let project = heroes_project(&endpoint, "json");
        let parameters = format!("[model.parameters]\nservice_tier = \"{tier}\"\n[limits]");
        project.edit_spec("[limits]", &parameters);
        project.edit_spec("output = 2.0 }", &format!("output = 2.0, service_tier = {part} }}"));
        let ended = project.run_materialize(&["--budget", "1"]).expect_exit_code(0);
        check_complete(&project);
        let (input, output) = endpoint.billed_tokens();
        let expected = (input as f64 + 2.0 * output as f64) * billed / 1e6;
        let cost = ended.done_event()["cost_usd"].as_f64().unwrap();
        assert!((cost - expected).abs() < 1e-9, "{tier}, {reported}: {cost}, {expected}");
    }
}

#[test]
fn a_service_tier_of_unknown_price_is_rejected_with_a_budget() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "json");
    project.edit_spec("[limits]", "[model.parameters]\nservice_tier = \"flex\"\n[limits]");
    let ended = project.run_materialize(&["--budget", "1"]).expect_exit_code(2);
    let why = "no price for service_tier \"flex\" (set `service_tier` in `price`)";
    assert!(ended.stderr.contains(why), "{}", ended.stderr);
    assert_eq!(endpoint.request_count(), 0);
    // Without a factor, the tier's price is unknown, and not that of the standard tier.
    let price = plan(&project, &[]);
    assert!(price.contains("unknown") && price.contains(why), "{price}");
    // The book contains the tiers of its models.
    let project = without_price(&endpoint, "gpt-5-mini");
    let standard = project.run_plan(&[])["totals"]["cost_usd"]["likely"].as_f64().unwrap();
    project.edit_spec("[limits]", "[model.parameters]\nservice_tier = \"flex\"\n[limits]");
    let flex =
        project.run_plan(&["--budget", "1"])["totals"]["cost_usd"]["likely"].as_f64().unwrap();
    assert!((flex / standard - 0.5).abs() < 1e-9, "{flex} {standard}");
    project.edit_spec("\"flex\"", "\"turbo\"");
    let ended = project.run_hqdl(&["plan", "specs/x.toml", "--budget", "1"]).expect_exit_code(2);
    assert!(ended.stderr.contains("no price for service_tier \"turbo\""), "{}", ended.stderr);
}

/// A budget in a request to the daemon or to `hqdl map` is rejected if it cannot be enforced:
/// without a price, it would limit nothing.
#[test]
fn a_budget_in_a_request_needs_a_price() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "json");
    project.edit_spec(PRICE, "");
    let daemon = Daemon::start(&project, &["--no-spend"]);
    daemon.wait_until_idle("waiting");
    let sql =
        "SELECT name FROM hero WHERE {{LLMMap('What is the eye colour?', hero.name)}} = 'Blue'";
    let says = "hqdl cannot keep a budget: the price of test-model is not known";
    for (path, asked) in [
        ("/v1/query", json!({ "sql": sql, "budget": 0.1 })),
        ("/v1/plan", json!({ "budget": 0.1 })),
    ] {
        let refused = daemon.post(path, &asked).expect_status(400).body;
        assert!(refused.contains(says), "{path}: {refused}");
    }
    let run = json!({ "budget": 0.1, "wait": true });
    let ended = daemon.post("/v1/runs", &run).body;
    assert!(ended.contains(says), "{ended}");
    assert_eq!(endpoint.request_count(), 0);
    drop(daemon);
    let line = json!({ "question": "Is it a hero?", "values": ["Zed"], "budget": 0.1 });
    let mut map = project.hqdl_command(&["map", "--spec", "specs/x.toml"]);
    let mut map = map.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    writeln!(map.stdin.take().unwrap(), "{line}").unwrap();
    let ended = map.wait_with_output().unwrap();
    let said = String::from_utf8(ended.stdout).unwrap();
    assert!(said.contains(says), "{said}");
    assert_eq!(ended.status.code(), Some(2), "the exit code of the failed line");
    assert_eq!(endpoint.request_count(), 0);
}

/// The price of a long prompt applies to long requests, not to long plans.
#[test]
fn a_plan_prices_each_request_by_its_own_length() {
    let endpoint = truthful_endpoint();
    let project = heroes_project(&endpoint, "csv");
    let stated = "price = { input = 1.0, output = 2.0 }";
    let totals = |above: u64| {
        let long = format!("above = {{ input_tokens = {above}, input = 10.0, output = 20.0 }}");
        let text = project.spec_text();
        project.edit_spec(stated, &format!("price = {{ input = 1.0, output = 2.0, {long} }}"));
        let plan = project.run_plan(&["--budget", "0.003"]);
        project.write_spec(&text);
        let fit = plan["budget"]["cells_that_fit"].as_u64().unwrap();
        let [likely, most] =
            ["likely", "most"].map(|n| plan["totals"]["cost_usd"][n].as_f64().unwrap());
        (likely, most, plan["totals"]["input_tokens"].as_u64().unwrap(), fit)
    };
    let (likely, most, input, fit) = totals(1_000_000);
    assert!(fit > 0, "{fit} fit");
    // All requests together exceed the limit, but no single one does.
    assert_eq!(totals(input - 1), (likely, most, input, fit));
    // Each request exceeds the limit.
    let (long_likely, long_most, _, none) = totals(100);
    assert!((long_likely / likely - 10.0).abs() < 1e-6, "{long_likely}, {likely}");
    assert!((long_most / most - 10.0).abs() < 1e-6, "{long_most}, {most}");
    assert_eq!(none, 0);
}

/// A price that belongs to another model would make every cost and budget too low.
#[test]
fn a_price_below_the_book_is_a_warning() {
    let project = without_price(&truthful_endpoint(), "gpt-4o");
    let mini = "price = { input = 0.15, cached_input = 0.075, output = 0.60 }";
    project.edit_spec("[limits]", &format!("{mini}\n[limits]"));
    let flags = ["--budget", "0.0000001"];
    for (command, flags) in [("check", &[][..]), ("plan", &[]), ("materialize", &flags)] {
        let ended = project.run_hqdl(&[&[command, "specs/x.toml"], flags].concat());
        for part in [
            "warning: the price of `gpt-4o` is lower than in the price book",
            "0.15 for input, 0.075 for cached input and 0.6 for output",
            "the book has 2.5 for input, 1.25 for cached input and 10 for output",
        ] {
            assert!(ended.stderr.contains(part), "{command}: {}", ended.stderr);
        }
    }
    // The book's price, a higher one, and the price of an endpoint that the book does not have.
    let is_silent = |project: &Project| {
        let ended = project.run_hqdl(&["check", "specs/x.toml"]).expect_exit_code(0);
        assert!(!ended.stderr.contains("price book"), "{}", ended.stderr);
    };
    project.edit_spec(mini, "price = { input = 2.5, cached_input = 1.25, output = 10 }");
    is_silent(&project);
    project.edit_spec("output = 10 }", "output = 11 }");
    is_silent(&project);
    project.edit_spec("input = 2.5", "input = 0");
    project
        .edit_spec("name = \"gpt-4o\"", "name = \"gpt-4o\"\nbase_url = \"http://127.0.0.1:9/v1\"");
    is_silent(&project);
}
