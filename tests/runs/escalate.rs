//! `escalate`: a stronger model answers a cell again if the first answer is not usable, or if two
//! models answer differently. Both answers are stored, and nothing is asked twice.

use std::time::Duration;

use serde_json::{Value as Json, json};

use hqdl_testkit::endpoint::{Endpoint, Fault, Frequency};
use hqdl_testkit::postgres;
use hqdl_testkit::project::{CommandResult, Project, with_models};

/// The spec after its models.
const SPEC: &str = r#"
[limits]
budget_usd = 1.0

[[expansion]]
name = "llm"
source = "place"
key = ["name"]
[[expansion.column]]
name = "country"
values = ["UK", "France", "Spain"]
questions = ["Which country?"]
escalate = { to = "large" }
[[expansion.column]]
name = "mayor"
"#;

const PLACES: &str = "CREATE TABLE place (name TEXT PRIMARY KEY);
     INSERT INTO place VALUES ('Leeds'), ('Lyon'), ('Vigo'), ('York')";

/// The endpoints of the spec's models, and a project with them.
struct Models {
    small: Endpoint,
    large: Endpoint,
    other: Endpoint,
    project: Project,
}

/// The small model knows Leeds and York, does not know Lyon, and answers outside the list for Vigo.
fn answer_small(column: &str, key: &[Json]) -> Json {
    match (column, key[0].as_str().unwrap()) {
        ("country", "Leeds" | "York") => "UK".into(),
        ("country", "Vigo") => "Gondor".into(),
        ("country", _) => Json::Null,
        _ => "A. Smith".into(),
    }
}

fn answer_large(_: &str, key: &[Json]) -> Json {
    match key[0].as_str().unwrap() {
        "Lyon" => "France".into(),
        "Vigo" => "Spain".into(),
        _ => "UK".into(),
    }
}

impl Models {
    fn start() -> Self {
        Self::with_large(answer_large)
    }

    fn with_large(large: fn(&str, &[Json]) -> Json) -> Self {
        let small = Endpoint::start_with(answer_small);
        let large = Endpoint::start_with(large);
        // Differs from the small model about Leeds.
        let other = Endpoint::start_with(|column, key| match key[0].as_str().unwrap() {
            "Leeds" => "Spain".into(),
            _ => answer_small(column, key),
        });
        let spec = with_models(SPEC, &large, &other);
        let project = Project::new(&small, PLACES, &spec);
        Self { small, large, other, project }
    }

    fn request_counts(&self) -> (usize, usize, usize) {
        (self.small.request_count(), self.large.request_count(), self.other.request_count())
    }

    /// The names whose country the large model was asked for, in the order of the requests.
    fn escalated(&self) -> Vec<String> {
        let cells = self.large.cells_since(0);
        assert!(cells.iter().all(|(_, column)| column == "country"), "{cells:?}");
        cells.into_iter().map(|(key, _)| key[0].as_str().unwrap().to_owned()).collect()
    }

    fn paid(&self) -> f64 {
        let endpoints =
            [(&self.small, 1.0, 2.0), (&self.large, 10.0, 30.0), (&self.other, 0.5, 1.0)];
        let bill = |(endpoint, input, output): (&Endpoint, f64, f64)| {
            let (i, o) = endpoint.billed_tokens();
            (i as f64 * input + o as f64 * output) / 1e6
        };
        endpoints.into_iter().map(bill).sum()
    }

    fn countries(&self) -> Vec<Json> {
        let sql = "SELECT country FROM llm ORDER BY name";
        self.project.query_rows(sql).into_iter().map(|mut row| row.remove(0)).collect()
    }

    fn why(&self, name: &str) -> String {
        let args = ["why", "llm", name, "country", "--spec", "specs/x.toml"];
        self.project.run_hqdl(&args).expect_exit_code(0).stdout
    }

    fn most(&self) -> f64 {
        self.project.run_plan(&[])["totals"]["cost_usd"]["most"].as_f64().unwrap()
    }
}

fn cost(ended: &CommandResult) -> f64 {
    ended.done_event()["cost_usd"].as_f64().unwrap()
}

#[test]
fn a_stronger_model_answers_what_the_first_one_did_not() {
    let models = Models::start();
    let most = models.most();
    let plan = models.project.run_hqdl(&["plan", "specs/x.toml"]).expect_exit_code(0);
    let note = "llm: gpt-4o may answer 4 cells again; only the maximum price includes this";
    assert!(plan.stderr.contains(note), "{}", plan.stderr);
    let parts =
        ["\n  gpt-4o-mini  1 request, $", "\n  gpt-4o       0 requests, $0.0000 likely, at most $"];
    for part in parts {
        assert_eq!(plan.stdout.matches(part).count(), 1, "{part}: {}", plan.stdout);
    }
    let ended = models.project.run_materialize(&[]).expect_exit_code(0);
    assert_eq!(models.escalated(), ["Lyon", "Vigo"]);
    assert_eq!(models.countries(), ["UK", "France", "Spain", "UK"]);
    assert!((cost(&ended) - models.paid()).abs() < 1e-9, "{} {}", cost(&ended), models.paid());
    assert!(models.paid() <= most, "{} of {most}", models.paid());
    assert_eq!(ended.done_event()["cells"]["ok"], 8);
    // The provenance has both answers.
    let why = models.why("Vigo");
    for part in ["Spain", "gpt-4o\n", "second answer, because gpt-4o-mini: not_in_list \"Gondor\""]
    {
        assert!(why.contains(part), "{part}: {why}");
    }
    assert!(models.why("Lyon").contains("because gpt-4o-mini: unknown"), "{}", models.why("Lyon"));
    assert!(!models.why("Leeds").contains("second"), "{}", models.why("Leeds"));
    let counts = models.request_counts();
    let ended = models.project.run_materialize(&[]).expect_exit_code(0);
    assert_eq!((models.request_counts(), cost(&ended)), (counts, 0.0));
}

#[test]
fn a_changed_rule_asks_only_what_it_adds() {
    let models = Models::start();
    let rule = "escalate = { to = \"large\" }\n";
    models.project.edit_spec(rule, "");
    models.project.run_materialize(&[]).expect_exit_code(1);
    let small = models.small.request_count();
    models.project.edit_spec(
        "[[expansion.column]]\nname = \"mayor\"",
        &format!("{rule}[[expansion.column]]\nname = \"mayor\""),
    );
    // The first answers are known, so the plan is exact.
    let plan = models.project.run_plan(&[]);
    assert_eq!((&plan["totals"]["cells"], &plan["totals"]["requests"]), (&json!(2), &json!(1)));
    let part = &plan["expansions"][1];
    assert_eq!(part["model"], "gpt-4o");
    assert_eq!(part["columns"][0]["reasons"]["second_answer"], 2, "{plan}");
    models.project.edit_spec(rule, "escalate = { to = \"large\", when = [\"unknown\"] }\n");
    models.project.run_materialize(&[]).expect_exit_code(1);
    assert_eq!(models.escalated(), ["Lyon"]);
    models.project.edit_spec("[\"unknown\"]", "[\"unknown\", \"not_in_list\"]");
    let most = models.most();
    let ended = models.project.run_materialize(&[]).expect_exit_code(0);
    assert_eq!(models.escalated(), ["Lyon", "Vigo"]);
    assert!(cost(&ended) <= most && cost(&ended) > 0.0, "{} of {most}", cost(&ended));
    // Without the rule, the first answers count again.
    models
        .project
        .edit_spec("escalate = { to = \"large\", when = [\"unknown\", \"not_in_list\"] }\n", "");
    models.project.run_materialize(&[]).expect_exit_code(1);
    assert_eq!(models.countries(), [json!("UK"), Json::Null, Json::Null, json!("UK")]);
    assert_eq!((models.small.request_count(), models.large.request_count()), (small, 2));
}

#[test]
fn an_expansion_has_one_rule_for_its_columns() {
    let models = Models::start();
    models.project.edit_spec("escalate = { to = \"large\" }\n", "");
    models
        .project
        .edit_spec("key = [\"name\"]\n", "key = [\"name\"]\nescalate = { to = \"large\" }\n");
    models.project.edit_spec("name = \"mayor\"\n", "name = \"mayor\"\nmodel = \"large\"\n");
    models.project.run_materialize(&[]).expect_exit_code(0);
    assert_eq!(models.countries(), ["UK", "France", "Spain", "UK"]);
    let asked = models.large.cells_since(0);
    let mayors = asked.iter().filter(|(_, column)| column == "mayor").count();
    assert_eq!((mayors, asked.len()), (4, 6));
}

#[test]
fn an_unusable_second_answer_leaves_the_first_one() {
    let models = Models::with_large(|column, key| match key[0].as_str().unwrap() {
        "Lyon" => "Mordor".into(),
        _ => answer_large(column, key),
    });
    models.project.run_materialize(&[]).expect_exit_code(0);
    assert_eq!(models.countries(), [json!("UK"), Json::Null, json!("Spain"), json!("UK")]);
    let why = models.why("Lyon");
    for part in ["unknown", "no better second answer: gpt-4o: not_in_list \"Mordor\""] {
        assert!(why.contains(part), "{part}: {why}");
    }
    let counts = models.request_counts();
    models.project.run_materialize(&[]).expect_exit_code(0);
    assert_eq!(models.request_counts(), counts);
    // `--retry-failed` asks both models again about the cell that has no value.
    models.project.run_materialize(&["--retry-failed"]).expect_exit_code(0);
    assert_eq!(models.escalated(), ["Lyon", "Vigo", "Lyon"]);
    let retried = models.small.cells_since(counts.0);
    assert_eq!(retried, [(vec![json!("Lyon")], "country".to_owned())]);
}

#[test]
fn a_failed_second_request_leaves_the_first_answer_and_is_repeated() {
    let models = Models::start();
    models.large.add_fault(Fault::Status(400, Vec::new(), "no".to_owned()), Frequency::Always);
    let ended = models.project.run_materialize(&[]);
    assert_ne!(ended.code, 0, "{}", ended.stderr);
    let states = "SELECT state FROM hqdl_cell WHERE \"column\" = 'country' ORDER BY key";
    let states = models.project.query_rows(states).concat();
    assert_eq!(states, ["ok", "unknown", "not_in_list", "ok"]);
    let small = models.small.request_count();
    models.large.clear_faults();
    models.project.run_materialize(&[]).expect_exit_code(0);
    assert_eq!(models.countries(), ["UK", "France", "Spain", "UK"]);
    assert_eq!(models.small.request_count(), small);
}

#[test]
fn a_kill_between_the_answers_loses_nothing() {
    let models = Models::start();
    kill_and_resume(&models, &[]);
}

#[test]
#[cfg_attr(not(postgres), ignore = "PostgreSQL is not installed")]
fn a_kill_between_the_answers_loses_nothing_on_a_server() {
    let cache = postgres::create_database();
    kill_and_resume(&Models::start(), &["--cache", &cache]);
}

/// Kills a run while the large model answers, and resumes it.
fn kill_and_resume(models: &Models, flags: &[&str]) {
    models.large.add_fault(Fault::Latency(Duration::from_secs(10)), Frequency::Once);
    let args = [&["materialize", "specs/x.toml", "--json"], flags].concat();
    let killed = models.project.start_hqdl(&args);
    models.large.wait_for(1);
    killed.send_signal("KILL");
    killed.wait_for_exit();
    let small = models.small.request_count();
    models.project.run_materialize(flags).expect_exit_code(0);
    assert_eq!(models.countries(), ["UK", "France", "Spain", "UK"]);
    assert_eq!((models.small.request_count(), models.large.request_count()), (small, 2));
    models.project.run_materialize(flags).expect_exit_code(0);
    assert_eq!((models.small.request_count(), models.large.request_count()), (small, 2));
}

#[test]
fn a_budget_that_ends_before_the_second_answers_keeps_the_first_ones() {
    let models = Models::start();
    // Enough for the small model only.
    let ended = models.project.run_materialize(&["--budget", "0.003"]).expect_exit_code(3);
    assert!(ended.stderr.contains("budget"), "{}", ended.stderr);
    assert_eq!(models.large.request_count(), 0);
    assert!(models.paid() <= 0.003 && models.paid() > 0.0, "{}", models.paid());
    assert_eq!(models.countries(), [json!("UK"), Json::Null, Json::Null, json!("UK")]);
    let small = models.small.request_count();
    models.project.run_materialize(&[]).expect_exit_code(0);
    assert_eq!((models.small.request_count(), models.large.request_count()), (small, 1));
    assert_eq!(models.countries(), ["UK", "France", "Spain", "UK"]);
}

#[test]
fn a_budget_includes_the_unification_before_the_second_answers() {
    let insert: Vec<String> = (0..60).map(|n| format!("('Town {n}')")).collect();
    let places = format!(
        "CREATE TABLE place (name TEXT PRIMARY KEY); INSERT INTO place VALUES {}",
        insert.join(", ")
    );
    let run_with_budget = |budget: f64| {
        let small = Endpoint::start_with(|_, _| Json::Null);
        let large = Endpoint::start_with(|column, key| match column {
            "country" => "UK".into(),
            "mayor" => format!("Mayor of {}", key[0].as_str().unwrap()).into(),
            _ => Json::Null,
        });
        let other = Endpoint::start_with(|_, _| Json::Null);
        let mayor = "name = \"mayor\"\nmodel = \"large\"\nvalues = [\"A. Smith\"]\nunify = true";
        let spec = with_models(SPEC, &large, &other).replace("name = \"mayor\"", mayor);
        let project = Project::new(&small, &places, &spec);
        let models = Models { small, large, other, project };
        models.project.run_materialize(&["--budget", &budget.to_string()]);
        models.paid()
    };
    let total = run_with_budget(1.0);
    for share in [0.5, 0.6, 0.7, 0.8, 0.9] {
        let (paid, budget) = (run_with_budget(share * total), share * total);
        assert!(paid <= budget, "{paid} of {budget}, {share} of {total}");
    }
}

#[test]
fn two_models_that_disagree_ask_a_third_one() {
    let models = Models::start();
    models.project.edit_spec(
        "{ to = \"large\" }",
        "{ to = \"large\", when = [\"disagree\"], compare = \"other\" }",
    );
    let most = models.most();
    models.project.run_materialize(&[]).expect_exit_code(1);
    // Only values are compared, and only Leeds has two.
    let compared: Vec<Json> =
        models.other.cells_since(0).into_iter().map(|(mut key, _)| key.remove(0)).collect();
    assert_eq!(compared, ["Leeds", "York"]);
    assert_eq!(models.escalated(), ["Leeds"]);
    assert_eq!(models.countries(), [json!("UK"), Json::Null, Json::Null, json!("UK")]);
    assert!(models.paid() <= most, "{} of {most}", models.paid());
    let why = models.why("Leeds");
    let note = "second answer, because gpt-4o-mini: ok \"UK\" and gpt-4.1-nano: ok \"Spain\"";
    assert!(why.contains(note), "{why}");
    let counts = models.request_counts();
    models.project.run_materialize(&[]).expect_exit_code(1);
    assert_eq!(models.request_counts(), counts);
    // With more cases, only the new ones are asked.
    models.project.edit_spec("[\"disagree\"]", "[\"disagree\", \"unknown\", \"not_in_list\"]");
    models.project.run_materialize(&[]).expect_exit_code(0);
    assert_eq!(models.escalated(), ["Leeds", "Lyon", "Vigo"]);
    assert_eq!(models.other.request_count(), counts.2);
}

#[test]
fn refreshing_a_column_asks_both_models_again() {
    let models = Models::start();
    models.project.run_materialize(&[]).expect_exit_code(0);
    let counts = models.request_counts();
    models.project.run_materialize(&["--refresh", "country"]).expect_exit_code(0);
    assert_eq!(models.small.cells_since(counts.0).len(), 4);
    assert_eq!(models.escalated(), ["Lyon", "Vigo", "Lyon", "Vigo"]);
    let counts = models.request_counts();
    models.project.run_materialize(&["--retry-failed"]).expect_exit_code(0);
    assert_eq!(models.request_counts(), counts);
}

#[test]
fn a_limit_applies_to_both_answers() {
    let models = Models::start();
    models.project.run_materialize(&["--limit", "2"]).expect_exit_code(0);
    assert_eq!(models.escalated(), ["Lyon"]);
    assert_eq!(models.small.cells_since(0).len(), 4);
    models.project.run_materialize(&["--limit", "1"]).expect_exit_code(0);
    assert_eq!(models.escalated(), ["Lyon", "Vigo"]);
    assert_eq!(models.small.cells_since(0).len(), 6);
}

#[test]
fn queries_and_batches_use_second_answers_and_ask_for_none() {
    let models = Models::start();
    let sql =
        "SELECT name, {{LLMMap('Which country?', place.name)}} FROM place WHERE name = 'Lyon'";
    let query = || {
        let ended = models.project.run_hqdl(&["query", "--spec", "specs/x.toml", "--json", sql]);
        ended.expect_exit_code(0).lines[0]["rows"][0][1].clone()
    };
    assert_eq!((query(), models.large.request_count()), (Json::Null, 0));
    let ended = models.project.run_materialize(&["--batch"]);
    assert!(ended.stdout.contains("a batch requests no second answers"), "{}", ended.stdout);
    assert_eq!((query(), models.large.request_count()), (Json::Null, 0));
    let small = models.small.request_count();
    models.project.run_materialize(&[]).expect_exit_code(0);
    assert_eq!(models.escalated(), ["Lyon", "Vigo"]);
    assert_eq!((query(), models.small.request_count()), (json!("France"), small));
}

#[test]
fn flags_that_replace_the_models_leave_no_second_answer() {
    let models = Models::start();
    models
        .project
        .run_materialize(&["--model", "gpt-4.1-mini", "--price", "1,2"])
        .expect_exit_code(1);
    assert_eq!((models.small.request_count(), models.large.request_count()), (1, 0));
}

#[test]
fn rules_without_effect_or_guarantee_are_rejected() {
    let models = Models::start();
    let warm = "[model.warm]\nname = \"gpt-4o-mini\"\ntemperature = 1.0\n\n[limits]";
    let spec = models.project.spec_text().replace("[limits]", warm);
    for (rule, message) in [
        ("to = \"lagre\"", "the spec has no [model.lagre]"),
        ("to = \"gpt-4o-mini\"", "`to` is the model that answers first"),
        ("to = \"warm\"", "`to` has the same `name` as the model that answers first"),
        ("to = \"large\", when = []", "`when` names no case"),
        ("to = \"large\", when = [\"low_confidence\"]", "`low_confidence` needs a threshold"),
        ("to = \"large\", when = [\"disagree\"]", "`disagree` needs a second answer"),
        ("to = \"large\", compare = \"other\"", "`compare` and `answers` have no effect"),
        (
            "to = \"large\", when = [\"disagree\"], compare = \"large\"",
            "`compare` and `to` are the same model",
        ),
    ] {
        models.project.write_spec(&spec.replace("to = \"large\"", rule));
        let ended = models.project.run_hqdl(&["check", "specs/x.toml"]).expect_exit_code(2);
        assert!(ended.stderr.contains(message), "{rule}: {}", ended.stderr);
    }
    assert_eq!(models.request_counts(), (0, 0, 0));
}
