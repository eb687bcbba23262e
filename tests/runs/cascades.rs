//! `escalate` with a `target`: a random sample is answered by both models, and decides which other
//! cells the stronger model answers. The published table agrees with the stronger model.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value as Json, json};

use hqdl_testkit::cascade::{
    AnswerFn, COUNTRIES, Cascade, answer_large, answer_other, answer_small, parse_place,
};
use hqdl_testkit::daemon::Daemon;
use hqdl_testkit::endpoint::{Fault, Frequency};

fn most(plan: &Json) -> f64 {
    plan["totals"]["cost_usd"]["most"].as_f64().unwrap()
}

#[test]
fn the_sample_decides_which_cells_are_escalated() {
    let cascade = Cascade::start(200, "target = 0.95, sample = 60");
    let plan = cascade.plan();
    let ended = cascade.run();
    let escalated = cascade.escalated();
    // The models agree wherever both cheap ones do, so only the others and the sample are asked.
    assert_eq!(cascade.misses(answer_large), 0);
    let differing = (0..200).filter(|n| answer_small(*n) != answer_other(*n));
    let differing: BTreeSet<usize> = differing.collect();
    assert!(differing.is_subset(&escalated));
    assert!(escalated.len() < differing.len() + 60, "{}", escalated.len());
    assert!(cascade.paid() <= most(&plan), "{} of {}", cascade.paid(), most(&plan));
    let done = &ended.done_event()["cascades"][0];
    assert_eq!((&done["sampled"], &done["cells"]), (&json!(60), &json!(200)), "{done}");
    let note =
        "llm.country: with a probability of 95 %, at least 95 % of 200 cells agree with gpt-4o";
    assert!(ended.stdout.contains(note), "{}", ended.stdout);
    assert_eq!((&done["promised"], &done["unanswered"]), (&json!(true), &json!(0)), "{done}");
    // The next run asks for nothing.
    let counts = cascade.request_counts();
    let ended = cascade.run();
    assert_eq!(cascade.request_counts(), counts);
    assert_eq!(ended.done_event()["cost_usd"], 0.0);
    // The frontier: from all cells to none.
    let plan = cascade.plan();
    let thresholds = plan["cascades"][0]["thresholds"].as_array().unwrap();
    let equal: Vec<&Json> = thresholds.iter().map(|t| &t["equal_answers"]).collect();
    assert_eq!(equal, [&Json::Null, &json!(2), &json!(1)]);
    let chosen: Vec<&Json> = thresholds.iter().map(|t| &t["chosen"]).collect();
    assert_eq!(chosen, [&json!(false), &json!(true), &json!(false)]);
    assert!(thresholds[1]["bound"].as_f64().unwrap() >= 0.95, "{plan}");
    assert!(thresholds[0]["cost_usd"].as_f64() > thresholds[1]["cost_usd"].as_f64(), "{plan}");
    assert_eq!(plan["totals"]["cells"], 0);
    let printed = cascade.project.run_hqdl(&["plan", "specs/x.toml"]).expect_exit_code(0).stdout;
    for part in
        ["agreement with gpt-4o, target 95.0 %, sample of 60 cells", "2 of 2 equal", "chosen"]
    {
        assert!(printed.contains(part), "{part}: {printed}");
    }
    let args = ["why", "llm", "p000", "country", "--spec", "specs/x.toml"];
    let why = cascade.project.run_hqdl(&args).expect_exit_code(0).stdout;
    for part in ["gpt-4o\n", "gpt-4o-mini: ok \"France\"", "gpt-4.1-nano: ok \"Spain\""] {
        assert!(why.contains(part), "{part}: {why}");
    }
}

#[test]
fn the_seed_determines_the_sample() {
    let sampled = |rule: &str| {
        let cascade = Cascade::start(100, rule);
        cascade.run();
        cascade.escalated()
    };
    let first = sampled("target = 0.9, sample = 40");
    assert_eq!(first, sampled("target = 0.9, sample = 40, seed = 0"));
    assert_ne!(first, sampled("target = 0.9, sample = 40, seed = 1"));
}

/// The errors hide where the compared model makes the same ones.
#[test]
fn errors_in_the_confident_part_escalate_all_cells() {
    let models: [AnswerFn; 3] = [answer_small, answer_large, answer_small];
    let cascade = Cascade::with_models(200, "target = 0.95, sample = 60", models);
    let ended = cascade.run();
    assert_eq!(cascade.escalated().len(), 200);
    assert_eq!(cascade.misses(answer_large), 0);
    let note = "does not show that 95 % agree with gpt-4o, so gpt-4o answers all cells";
    assert!(ended.stdout.contains(note), "{}", ended.stdout);
}

/// All cells have the same confidence, and it is justified.
#[test]
fn equal_confidences_are_accepted_together() {
    let rule = "target = 0.9, sample = 60";
    let models: [AnswerFn; 3] = [answer_large, answer_large, answer_large];
    let cascade = Cascade::with_models(200, rule, models);
    cascade.run();
    assert_eq!(cascade.escalated().len(), 60);
}

#[test]
fn tables_that_are_smaller_than_the_sample_are_answered_by_the_stronger_model() {
    for places in [1, 20] {
        let cascade = Cascade::start(places, "target = 0.95");
        cascade.run();
        assert_eq!(cascade.escalated().len(), places);
        assert_eq!(cascade.misses(answer_large), 0);
        let counts = cascade.request_counts();
        cascade.run();
        assert_eq!(cascade.request_counts(), counts);
    }
}

#[test]
fn a_target_of_all_cells_accepts_no_cheap_answer() {
    let models: [AnswerFn; 3] = [answer_large, answer_large, answer_large];
    let cascade = Cascade::with_models(50, "target = 1.0, sample = 20", models);
    cascade.run();
    assert_eq!(cascade.escalated().len(), 50);
}

#[test]
fn a_killed_calibration_continues_with_its_sample() {
    for request in [1, 3, 8] {
        let cascade = Cascade::start(200, "target = 0.95, sample = 60");
        // The large model answers the sample in six requests, and then the other cells.
        cascade.large.add_fault(Fault::Latency(Duration::from_millis(300)), Frequency::Always);
        let killed = cascade.project.start_hqdl(&["materialize", "specs/x.toml", "--json"]);
        cascade.large.wait_for(request);
        killed.send_signal("KILL");
        killed.wait_for_exit();
        cascade.large.clear_faults();
        let [small, _, other] = cascade.request_counts();
        let before = cascade.large.request_count();
        cascade.run();
        let [small_after, _, other_after] = cascade.request_counts();
        assert_eq!((small, other), (small_after, other_after));
        let whole = Cascade::start(200, "target = 0.95, sample = 60");
        whole.run();
        let asked = |from: usize| -> BTreeSet<usize> {
            let cells = cascade.large.cells_since(from);
            cells.into_iter().map(|(key, _)| parse_place(&key[0])).collect()
        };
        // Only the request that was in flight is repeated.
        assert_eq!(asked(0), whole.escalated());
        assert!(cascade.large.cells_since(0).len() <= whole.escalated().len() + 10);
        assert!(!asked(before).is_empty());
        assert_eq!(cascade.misses(answer_large), 0);
        let counts = cascade.request_counts();
        cascade.run();
        assert_eq!(cascade.request_counts(), counts);
    }
}

#[test]
fn a_run_that_stops_before_the_sample_is_answered_promises_nothing() {
    let cascade = Cascade::start(200, "target = 0.95, sample = 60");
    let ended = cascade.project.run_materialize(&["--limit", "50"]);
    assert!(ended.stdout.contains("llm.country: no promise yet, because"), "{}", ended.stdout);
    let asked = cascade.escalated().len();
    assert!(asked > 0 && asked < 30, "{asked}");
    let plan = cascade.plan();
    assert_eq!(plan["cascades"][0]["thresholds"], json!([]));
    let paid = cascade.paid();
    cascade.run();
    assert!(cascade.paid() - paid <= most(&plan), "{} of {}", cascade.paid() - paid, most(&plan));
    assert_eq!(cascade.misses(answer_large), 0);
}

#[test]
fn a_run_that_stops_below_the_threshold_promises_nothing() {
    let whole = Cascade::start(200, "target = 0.95, sample = 60");
    whole.run();
    let cascade = Cascade::start(200, "target = 0.95, sample = 60");
    let budget = format!("{:.6}", 0.9 * whole.paid());
    let ended = cascade.project.run_materialize(&["--budget", &budget]).expect_exit_code(3);
    let done = ended.done_event()["cascades"][0].clone();
    assert_eq!(done["unanswered_sampled"], 0, "{done}");
    let open = whole.escalated().len() - cascade.escalated().len();
    assert_eq!((&done["promised"], &done["unanswered"]), (&json!(false), &json!(open)), "{done}");
    let note = format!("llm.country: no promise yet: {open} cells below the threshold are");
    assert!(ended.stdout.contains(&note), "{}", ended.stdout);
    assert!(!ended.stdout.contains("with a probability of"), "{}", ended.stdout);
    let ended = cascade.run();
    assert!(ended.stdout.contains("with a probability of"), "{}", ended.stdout);
    assert_eq!(ended.done_event()["cascades"][0]["promised"], true);
}

#[test]
fn new_rows_belong_to_the_sample_like_old_ones() {
    let mut cascade = Cascade::start(150, "target = 0.95, sample = 60");
    cascade.run();
    let escalated = cascade.escalated();
    let rows: Vec<String> = (150..300).map(|n| format!("('p{n:03}')")).collect();
    cascade.project.execute_sql(&format!("INSERT INTO place VALUES {}", rows.join(", ")));
    cascade.places = 300;
    let plan = cascade.plan();
    let paid = cascade.paid();
    cascade.run();
    assert!(cascade.paid() - paid <= most(&plan), "{} of {}", cascade.paid() - paid, most(&plan));
    let all = cascade.escalated();
    assert!(escalated.is_subset(&all) && all.iter().any(|n| *n >= 150));
    assert_eq!(cascade.misses(answer_large), 0);
}

#[test]
fn further_answers_of_the_first_model_are_compared() {
    let cascade = Cascade::start(60, "target = 0.9, sample = 30");
    cascade.project.edit_spec("compare = \"other\", ", "answers = 3, ");
    let plan = cascade.plan();
    cascade.run();
    assert_eq!(cascade.small.cells_since(0).len(), 180);
    assert_eq!(cascade.other.request_count(), 0);
    assert!(cascade.paid() <= most(&plan), "{} of {}", cascade.paid(), most(&plan));
    let counts = cascade.request_counts();
    cascade.run();
    assert_eq!(cascade.request_counts(), counts);
    // Another number of answers asks only for those that are missing.
    cascade.project.edit_spec("answers = 3", "answers = 4");
    cascade.run();
    assert_eq!(cascade.small.cells_since(0).len(), 240);
}

#[test]
fn a_target_of_true_cells_uses_the_audit() {
    let cascade = Cascade::start_audited(answer_large, "target_truth = 0.9");
    let plan = cascade.plan();
    let paid = cascade.paid();
    let ended = cascade.run();
    assert!(cascade.paid() - paid <= most(&plan), "{} of {}", cascade.paid(), most(&plan));
    let note = "llm.country: with a probability of 95 %, at least 90 % of 200 cells are true";
    assert!(ended.stdout.contains(note), "{}", ended.stdout);
    assert_eq!(cascade.misses(answer_large), 0);
    let escalated = cascade.escalated().len();
    assert!((120..200).contains(&escalated), "{escalated}");
    let counts = cascade.request_counts();
    cascade.run();
    assert_eq!(cascade.request_counts(), counts);
    let plan = cascade.plan();
    assert_eq!(plan["cascades"][0]["of"], "truth");
    let thresholds = plan["cascades"][0]["thresholds"].as_array().unwrap();
    assert!(thresholds[1]["bound"].as_f64().unwrap() >= 0.9, "{plan}");
    assert!(thresholds[2]["bound"].as_f64().unwrap() < 0.9, "{plan}");
}

/// The truth differs from the strong model's answer to every fifth place.
fn tell_truth(n: usize) -> &'static str {
    COUNTRIES[if n.is_multiple_of(5) { n + 2 } else { n } % 3]
}

#[test]
fn a_target_that_the_stronger_model_misses_is_refused() {
    let cascade = Cascade::start_audited(tell_truth, "target_truth = 0.95");
    for _ in 0..2 {
        let ended = cascade.project.run_materialize(&[]).expect_exit_code(2);
        assert!(ended.stderr.contains("so `target_truth` = 0.95 is refused"), "{}", ended.stderr);
        // Only the audited rows were needed to find out.
        assert_eq!(cascade.escalated().len(), 120);
    }
    let plan = cascade.project.run_hqdl(&["plan", "specs/x.toml"]).expect_exit_code(0);
    assert!(plan.stderr.contains("is refused"), "{}", plan.stderr);
    assert_eq!(cascade.project.query_rows("SELECT * FROM llm").len(), 200);
}

/// `audit --apply` overrides the wrong cells of the sample, which must stay in it.
#[test]
fn overrides_do_not_remove_wrong_cells_from_the_sample() {
    let cascade = Cascade::start_audited(tell_truth, "target_truth = 0.95");
    cascade.project.run_hqdl(&["audit", "specs/x.toml", "--apply"]).expect_exit_code(0);
    let plan = cascade.plan();
    let paid = cascade.paid();
    let ended = cascade.project.run_materialize(&[]).expect_exit_code(2);
    assert!(ended.stderr.contains("so `target_truth` = 0.95 is refused"), "{}", ended.stderr);
    assert_eq!(cascade.escalated().len(), 120);
    assert!(cascade.paid() - paid <= most(&plan), "{} of {}", cascade.paid() - paid, most(&plan));
    let rows = cascade.project.query_rows("SELECT name, country FROM llm");
    let is_true = |row: &&Vec<Json>| row[1] == tell_truth(parse_place(&row[0]));
    let is_overridden = rows.iter().filter(is_true).count() >= 120;
    assert!(is_overridden, "{rows:?}");
    let counts = cascade.request_counts();
    cascade.project.run_materialize(&[]).expect_exit_code(2);
    assert_eq!(cascade.request_counts(), counts);
    // The models would repeat overrides that they are shown.
    cascade
        .project
        .edit_spec("rows_per_request = 10", "rows_per_request = 10\nshots = \"overrides\"");
    let ended = cascade.project.run_materialize(&[]).expect_exit_code(2);
    assert!(ended.stderr.contains("shows overridden cells to the models"), "{}", ended.stderr);
    assert_eq!(cascade.request_counts(), counts);
}

#[test]
fn overridden_disagreements_stay_in_the_sample() {
    let models: [AnswerFn; 3] = [answer_small, answer_large, answer_small];
    let cascade = Cascade::with_models(200, "target = 0.95, sample = 60", models);
    let disagreements = (0..200).filter(|n| answer_small(*n) != answer_large(*n));
    let lines: Vec<String> =
        disagreements.map(|n| format!("p{n:03},country,{}", answer_large(n))).collect();
    let overrides = format!("name,column,value\n{}\n", lines.join("\n"));
    std::fs::write(cascade.project.path("specs/x.overrides.csv"), overrides).unwrap();
    let plan = cascade.plan();
    let ended = cascade.run();
    assert!(cascade.paid() <= most(&plan), "{} of {}", cascade.paid(), most(&plan));
    let done = &ended.done_event()["cascades"][0];
    assert_eq!((&done["sampled"], &done["cells"]), (&json!(60), &json!(200)), "{done}");
    assert!(done["disagreements"].as_u64().unwrap() > 0, "{done}");
    assert!(ended.stdout.contains("does not show that 95 % agree"), "{}", ended.stdout);
    assert_eq!(cascade.misses(answer_large), 0);
    let counts = cascade.request_counts();
    cascade.run();
    assert_eq!(cascade.request_counts(), counts);
}

#[test]
fn a_target_of_true_cells_needs_an_audit() {
    let cascade = Cascade::start(20, "target_truth = 0.9");
    let ended = cascade.project.run_materialize(&[]).expect_exit_code(2);
    assert!(ended.stderr.contains("`target_truth` of `country` needs a uniform audit"));
    assert_eq!(cascade.request_counts(), [0, 0, 0]);
}

#[test]
fn a_low_confidence_without_a_target_promises_nothing() {
    let cascade = Cascade::start(40, "when = [\"low_confidence\"]");
    let ended = cascade.run();
    let note = "llm.country: `low_confidence` promises nothing without a `target`";
    assert!(ended.stdout.contains(note), "{}", ended.stdout);
    let differing = (0..40).filter(|n| answer_small(*n) != answer_other(*n));
    assert_eq!(cascade.escalated(), differing.collect::<BTreeSet<usize>>());
}

#[test]
fn targets_without_a_sense_are_rejected() {
    let cascade = Cascade::start(1, "RULE");
    let spec = cascade.project.spec_text();
    for (rule, message) in [
        ("target = 0.0", "`target` is out of range"),
        ("target = 1.5", "`target` is out of range"),
        ("target = 0.9, when = [\"disagree\"]", "`target` has no effect"),
        ("target = 0.9, sample = 0", "`sample` is out of range"),
        ("when = [\"disagree\"], sample = 5", "`sample` has no effect without `target`"),
        ("when = [\"disagree\"], seed = 5", "`seed` has no effect without `target`"),
        ("when = [\"disagree\", \"low_confidence\"]", "`disagree` leaves no answers"),
        ("target = 0.9, answers = 17", "`answers` is out of range"),
        ("target = 0.9, target_truth = 0.9", "`target` and `target_truth` exclude each other"),
        ("target_truth = 2.0", "`target_truth` is out of range"),
        ("target_truth = 0.9, sample = 5", "`sample` has no effect without `target`"),
    ] {
        cascade.project.write_spec(&spec.replace("RULE", rule));
        let ended = cascade.project.run_hqdl(&["check", "specs/x.toml"]).expect_exit_code(2);
        assert!(ended.stderr.contains(message), "{rule}: {}", ended.stderr);
    }
    let twice = "target = 0.9, compare = [\"other\", \"other\"]";
    cascade.project.write_spec(&spec.replace("compare = \"other\", RULE", twice));
    let ended = cascade.project.run_hqdl(&["check", "specs/x.toml"]).expect_exit_code(2);
    assert!(ended.stderr.contains("`compare` names a model twice"), "{}", ended.stderr);
    let spec = spec.replace("compare = \"other\", RULE", "target = 0.9, answers = 3");
    let spec = spec.replace("name = \"gpt-4o-mini\"", "name = \"gpt-4o-mini\"\ntemperature = 0.0");
    cascade.project.write_spec(&spec);
    let ended = cascade.project.run_hqdl(&["check", "specs/x.toml"]).expect_exit_code(2);
    assert!(ended.stderr.contains("all answers of a model are the same"), "{}", ended.stderr);
}

#[test]
fn a_probability_is_the_confidence_without_answers_to_compare() {
    let cascade = Cascade::with_probabilities(200, "target = 0.95, sample = 60");
    let plan = cascade.plan();
    let ended = cascade.run();
    assert_eq!(cascade.misses(answer_large), 0);
    let improbable: BTreeSet<usize> = (0..200).step_by(10).collect();
    let escalated = cascade.escalated();
    assert!(improbable.is_subset(&escalated) && escalated.len() <= 60 + 20, "{escalated:?}");
    assert_eq!(cascade.other.request_count(), 0);
    assert!(cascade.paid() <= most(&plan), "{} of {}", cascade.paid(), most(&plan));
    assert!(cascade.small.received_requests().iter().all(|r| r.body["logprobs"] == true));
    let large = cascade.large.received_requests();
    assert!(large.iter().all(|request| request.body.get("logprobs").is_none()));
    let note = "agree with gpt-4o, which answers those with a probability below 0.95";
    assert!(ended.stdout.contains(note), "{}", ended.stdout);
    let thresholds = cascade.plan()["cascades"][0]["thresholds"].clone();
    let shown: Vec<(Json, Json)> = thresholds
        .as_array()
        .unwrap()
        .iter()
        .map(|t| (t["probability"].clone(), t["chosen"].clone()))
        .collect();
    let expected =
        [(Json::Null, false), (json!(0.95), true), (json!(0.3), false)].map(|(p, c)| (p, json!(c)));
    assert_eq!(shown, expected, "{thresholds}");
    let printed = cascade.project.run_hqdl(&["plan", "specs/x.toml"]).expect_exit_code(0).stdout;
    assert!(printed.contains("probability ≥ 0.95"), "{printed}");
    // Both answers are kept, and nothing is asked twice.
    let args = ["why", "llm", "p010", "country", "--spec", "specs/x.toml"];
    let why = cascade.project.run_hqdl(&args).expect_exit_code(0).stdout;
    assert!(why.contains("gpt-4o-mini: ok \"Spain\" (probability 0.350)"), "{why}");
    let counts = cascade.request_counts();
    cascade.run();
    assert_eq!(cascade.request_counts(), counts);
    // The journal and its export keep the log-probabilities.
    cascade.project.run_hqdl(&["cache", "export", "facts.jsonl"]).expect_exit_code(0);
    let exported = std::fs::read_to_string(cascade.project.path("facts.jsonl")).unwrap();
    let lines: Vec<Json> = exported.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let logprobs: Vec<f64> = lines.iter().filter_map(|line| line["logprob"].as_f64()).collect();
    assert_eq!(logprobs.len(), 200);
    assert_eq!(logprobs.iter().filter(|l| **l < -1.0).count(), 20, "{logprobs:?}");
    // An import into another cache needs no request.
    cascade
        .project
        .run_hqdl(&["cache", "import", "facts.jsonl", "--cache", "other"])
        .expect_exit_code(0);
    cascade.project.run_materialize(&["--cache", "other"]).expect_exit_code(0);
    assert_eq!(cascade.request_counts(), counts);
}

#[test]
fn every_protocol_with_probabilities_reports_them() {
    for provider in ["openai", "openai-responses"] {
        for format in ["csv", "json"] {
            let cascade =
                Cascade::with_probabilities(40, "when = [\"low_confidence\"], below = 0.9");
            let line = format!("provider = \"{provider}\"");
            cascade.project.edit_spec("provider = \"openai\"", &line);
            let expansion = format!("rows_per_request = 10\nformat = \"{format}\"");
            cascade.project.edit_spec("rows_per_request = 10", &expansion);
            let ended = cascade.run();
            let note = "promises nothing without a `target`; gpt-4o answers the cells with a probability below 0.9";
            assert!(ended.stdout.contains(note), "{provider} {format}: {}", ended.stdout);
            let improbable: BTreeSet<usize> = (0..40).step_by(10).collect();
            assert_eq!(cascade.escalated(), improbable, "{provider} {format}");
        }
    }
}

#[test]
fn first_answers_of_a_batch_have_probabilities() {
    let cascade = Cascade::with_probabilities(40, "when = [\"low_confidence\"], below = 0.9");
    cascade.project.run_materialize(&["--batch"]);
    let small = cascade.small.request_count();
    cascade.run();
    assert_eq!(cascade.small.request_count(), small);
    assert_eq!(cascade.escalated(), (0..40).step_by(10).collect::<BTreeSet<usize>>());
}

/// Without log-probabilities, the rule is refused before the stronger model is asked. The first
/// answers are kept.
#[test]
fn a_rule_without_probabilities_is_refused() {
    let refused = "`low_confidence` without `compare` needs the log-probabilities of tokens, which gpt-4o-mini did not report for any of 40 answers";
    for rejects in [false, true] {
        let cascade = Cascade::start(40, "target = 0.9, sample = 20");
        cascade.project.edit_spec("compare = \"other\", ", "");
        if rejects {
            cascade.small.set_logprob_fn(|_, _| -0.1);
            cascade.small.add_fault(Fault::RejectsParameters(&["logprobs"]), Frequency::Always);
        }
        let ended = cascade.project.run_materialize(&[]).expect_exit_code(2);
        assert!(ended.stderr.contains(refused), "{}", ended.stderr);
        assert!(ended.stderr.contains("set `answers`, or name other models"), "{}", ended.stderr);
        let warning = "the endpoint rejects token log-probabilities; hqdl retries without it";
        assert_eq!(ended.stdout.contains(warning), rejects, "{}", ended.stdout);
        assert_eq!(cascade.large.request_count(), 0);
        let sent = cascade.small.received_requests();
        assert_eq!(
            sent.iter().filter(|r| r.body.get("logprobs").is_none()).count(),
            if rejects { 4 } else { 0 }
        );
        let small = cascade.small.cells_since(0).len();
        // With further answers, the rule works, and the first answers are not asked for again.
        cascade.small.clear_faults();
        cascade.project.edit_spec("target = 0.9", "answers = 2, target = 0.9");
        cascade.run();
        assert_eq!(cascade.small.cells_since(0).len(), small + 40);
    }
}

/// Answers of an earlier version have no log-probability, so the stronger model answers them.
#[test]
fn answers_without_a_probability_have_the_lowest_confidence() {
    let mut cascade = Cascade::start(60, "when = [\"unknown\"]");
    cascade.project.edit_spec("compare = \"other\", ", "");
    cascade.run();
    let rows: Vec<String> = (60..120).map(|n| format!("('p{n:03}')")).collect();
    cascade.project.execute_sql(&format!("INSERT INTO place VALUES {}", rows.join(", ")));
    cascade.places = 120;
    cascade.report_probabilities();
    cascade.project.edit_spec("when = [\"unknown\"]", "when = [\"low_confidence\"], below = 0.9");
    let ended = cascade.run();
    let note = "llm.country: 60 answers of gpt-4o-mini have no log-probability";
    assert!(ended.stdout.contains(note), "{}", ended.stdout);
    assert_eq!(cascade.escalated(), (0..60).chain((60..120).step_by(10)).collect());
    assert_eq!(cascade.misses(answer_large), 0);
}

#[test]
fn probabilities_need_an_endpoint_and_a_threshold() {
    let cascade = Cascade::start(1, "RULE");
    let spec = cascade.project.spec_text();
    let check = |spec: &str, message: &str| {
        cascade.project.write_spec(spec);
        let ended = cascade.project.run_hqdl(&["check", "specs/x.toml"]).expect_exit_code(2);
        assert!(ended.stderr.contains(message), "{message}: {}", ended.stderr);
    };
    let alone = |rule: &str| spec.replace("compare = \"other\", RULE", rule);
    let low = "when = [\"low_confidence\"]";
    check(&alone(low), "`low_confidence` needs a threshold");
    check(&alone(&format!("{low}, below = 0.0")), "`below` is out of range");
    check(&alone(&format!("{low}, below = 0.9, target = 0.9")), "`below` has no effect");
    check(&alone("when = [\"unknown\"], below = 0.9"), "`below` has no effect");
    check(&spec.replace("RULE", &format!("{low}, below = 0.9")), "`below` has no effect");
    let spec = alone("target = 0.9").replacen("\"openai\"", "\"anthropic\"", 1);
    check(&spec, "because the API `anthropic` reports no probabilities of tokens");
}

/// The page shows each threshold in a chart and, without a script, in a table.
#[test]
fn the_page_shows_the_thresholds() {
    let cascade = Cascade::start(100, "target = 0.9, sample = 40");
    let shown = |daemon: &Daemon| daemon.get("/specs/x").expect_status(200).body;
    let daemon = Daemon::start(&cascade.project, &["--no-spend"]);
    daemon.wait_until_idle("waiting");
    assert!(!shown(&daemon).contains("Cascade of"), "the sample is not answered");
    daemon.submit_form("/specs/x/go", "budget=4").expect_status(303);
    daemon.wait_until_idle("complete");
    let page = shown(&daemon);
    for part in [
        "<h2>Cascade of llm.country</h2>",
        "Target: 90.0 % agreement with gpt-4o. gpt-4o has answered a sample of 40 cells",
        "aria-label=\"llm.country: agreement with gpt-4o in % by cost\"",
        "<td>nothing</td>",
        "<td>2 of 2 equal</td>",
        "<td>1 of 2 equal</td>",
        "<strong>chosen</strong>",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
    let thresholds = cascade.plan()["cascades"][0]["thresholds"].clone();
    assert_eq!(page.matches("<circle class=\"point\"").count(), 3, "{page}");
    for threshold in thresholds.as_array().unwrap() {
        let expected = 100.0 * threshold["expected"].as_f64().unwrap();
        assert!(page.contains(&format!(">{expected:.1} %</td>")), "{expected}: {page}");
    }
}

/// The least certain cells come first. A person's answers become overrides.
#[test]
fn the_page_reviews_the_least_certain_cells() {
    let cascade = Cascade::with_probabilities(40, "when = [\"low_confidence\"], below = 0.05");
    cascade.run();
    let daemon = Daemon::start(&cascade.project, &["--no-spend"]);
    daemon.wait_until_idle("complete");
    let path = "/specs/x/doubts?table=llm";
    let shown = |query: &str| daemon.get(&format!("{path}{query}")).expect_status(200).body;
    assert!(daemon.get("/specs/x").body.contains(&path.replace('&', "&amp;")));
    let first = shown("");
    for part in [
        "40</strong> cells",
        "<strong>p000</strong>",
        "Confidence 35 %",
        "gpt-4o-mini",
        "max=\"40\" value=\"0\"",
        "No value<kbd>?</kbd>",
        "Your name, stored with each override",
    ] {
        assert!(first.contains(part), "{part}: {first}");
    }
    assert!(!first.contains("query uses"), "{first}");
    daemon.query_rows("SELECT count(*) FROM llm WHERE country = 'UK'");
    assert!(shown("").contains("1 query uses the column"));
    assert!(shown("&skip=1").contains("<strong>p010</strong>"));
    assert!(shown("&skip=4").contains("Confidence 97 %"));
    // One answer confirms the cell and shows the next one.
    let answer = "column=country&skip=0&key=p000&value=France";
    let set = daemon.submit_form(path, answer).expect_status(303);
    assert!(set.headers.contains("&skip=0&done=country&key=p000"), "{}", set.headers);
    let overrides = || {
        std::fs::read_to_string(cascade.project.path("specs/x.overrides.csv")).unwrap_or_default()
    };
    assert!(overrides().contains("p000,country,France,reviewed by a person at"), "{}", overrides());
    let (_, done) = set.headers.split_once("done=country").unwrap();
    let done = done.lines().next().unwrap();
    let next = shown(&format!("&skip=0&done=country{done}"));
    assert!(next.contains("<strong>p010</strong>") && next.contains("39</strong> cells"), "{next}");
    assert!(next.contains("Undo the last answer"), "{next}");
    // A form of another tab does not replace the override, and an old link does not remove it.
    let stale = daemon.submit_form(path, "column=country&skip=0&key=p000&value=Spain");
    let stale = stale.expect_status(409).body;
    assert!(stale.contains("now `France`"), "{stale}");
    // The form of the next cell does not contain the value for the previous one.
    assert!(stale.contains("<strong>p010</strong>"), "{stale}");
    assert!(stale.contains("Another value<input name=\"value\" value=\"\""), "{stale}");
    let undo = format!("do=unset&column=country&skip=0{done}");
    for other in [undo.replace("France", "Spain"), undo.replace("reviewed", "checked")] {
        daemon.submit_form(path, &other).expect_status(409);
    }
    daemon.submit_form(path, "do=unset&column=country&skip=0&key=p000").expect_status(409);
    assert!(overrides().contains("p000,country,France"), "{}", overrides());
    daemon.submit_form(path, &undo).expect_status(303);
    assert!(!overrides().contains("p000"), "{}", overrides());
    daemon.submit_form(path, &undo).expect_status(409);
    let wrong = daemon.submit_form(path, "column=country&skip=0&key=p000&value=Mars");
    let wrong = wrong.expect_status(400).body;
    assert!(wrong.contains("name=\"value\" value=\"Mars\""), "{wrong}");
    assert!(wrong.contains("class=\"problem\""), "{wrong}");
    daemon.get("/specs/x/doubts?table=nothing").expect_status(400);
    // The page can undo a value in another spelling than the list's.
    let set = daemon.submit_form(path, "column=country&skip=0&key=p000&value=france");
    let set = set.expect_status(303).headers;
    let (_, done) = set.split_once("done=country").unwrap();
    let undo = format!("do=unset&column=country&skip=0{}", done.lines().next().unwrap());
    daemon.submit_form(path, &undo).expect_status(303);
    // "?" sets the cell to no value. The reviewer's name is stored, and the page remembers it.
    let named = format!("{path}&who=Ann+B.");
    let set = daemon.submit_form(&named, "column=country&skip=0&key=p000&value=%3F");
    assert!(set.expect_status(303).headers.contains("&who=Ann%20B."));
    assert!(overrides().contains("p000,country,?,reviewed by Ann B. at 20"), "{}", overrides());
    let next = shown("&who=Ann%20B.");
    for part in ["max=\"40\" value=\"1\"", "1 cell reviewed", "value=\"Ann B.\""] {
        assert!(next.contains(part), "{part}: {next}");
    }
    assert!(!next.contains("Accuracy so far"), "{next}");
    cascade.project.run_hqdl(&["audit", "specs/x.toml", "--sample", "5"]).expect_exit_code(0);
    let next = shown("");
    assert!(next.contains("Accuracy so far") && next.contains("no reviewed row"), "{next}");
}
