//! A project with three models, of which a stronger one answers the doubtful cells of the first.

use std::collections::BTreeSet;

use serde_json::Value as Json;

use crate::endpoint::Endpoint;
use crate::project::{CommandResult, Project, with_models};

/// The spec after its models.
const SPEC: &str = r#"
[limits]
budget_usd = 5.0
concurrency = 1

[[expansion]]
name = "llm"
source = "place"
key = ["name"]
rows_per_request = 10
[[expansion.column]]
name = "country"
values = ["UK", "France", "Spain"]
questions = ["Which country?"]
escalate = { to = "large", compare = "other", RULE }
"#;

pub const COUNTRIES: [&str; 3] = ["UK", "France", "Spain"];

/// Answer of a model to the place with a number.
pub type AnswerFn = fn(usize) -> &'static str;

/// The stronger model's answer.
pub fn answer_large(n: usize) -> &'static str {
    COUNTRIES[n % 3]
}

/// Every tenth answer differs from the stronger model's.
pub fn answer_small(n: usize) -> &'static str {
    COUNTRIES[if n.is_multiple_of(10) { n + 1 } else { n } % 3]
}

/// Differs from the small model on its wrong answers, and on every seventh place.
pub fn answer_other(n: usize) -> &'static str {
    COUNTRIES[if n.is_multiple_of(7) { n + 2 } else { n } % 3]
}

pub struct Cascade {
    pub small: Endpoint,
    pub large: Endpoint,
    pub other: Endpoint,
    pub project: Project,
    pub places: usize,
}

/// Returns the number of a place such as `p017`.
pub fn parse_place(key: &Json) -> usize {
    key.as_str().unwrap()[1..].parse().unwrap()
}

impl Cascade {
    pub fn start(places: usize, rule: &str) -> Self {
        Self::with_models(places, rule, [answer_small, answer_large, answer_other])
    }

    pub fn with_models(places: usize, rule: &str, answers: [AnswerFn; 3]) -> Self {
        let [small, large, other] = answers.map(|answer| {
            Endpoint::start_with(move |_, key: &[Json]| answer(parse_place(&key[0])).into())
        });
        let spec = with_models(SPEC, &large, &other).replace("RULE", rule);
        let rows: Vec<String> = (0..places).map(|n| format!("('p{n:03}')")).collect();
        let sql = format!(
            "CREATE TABLE place (name TEXT PRIMARY KEY); INSERT INTO place VALUES {}",
            rows.join(", ")
        );
        let project = Project::new(&small, &sql, &spec);
        Self { small, large, other, project, places }
    }

    pub fn run(&self) -> CommandResult {
        self.project.run_materialize(&[]).expect_exit_code(0)
    }

    pub fn request_counts(&self) -> [usize; 3] {
        [&self.small, &self.large, &self.other].map(Endpoint::request_count)
    }

    /// The places that the large model was asked for. None is asked for twice.
    pub fn escalated(&self) -> BTreeSet<usize> {
        let cells = self.large.cells_since(0);
        let places: BTreeSet<usize> = cells.iter().map(|(key, _)| parse_place(&key[0])).collect();
        assert_eq!(places.len(), cells.len(), "a place was asked for twice");
        places
    }

    /// Returns the published cells that differ from the stronger model's answers.
    pub fn misses(&self, large: AnswerFn) -> usize {
        let rows = self.project.query_rows("SELECT name, country FROM llm");
        assert_eq!(rows.len(), self.places);
        rows.iter().filter(|row| row[1] != large(parse_place(&row[0]))).count()
    }

    pub fn paid(&self) -> f64 {
        let endpoints =
            [(&self.small, 1.0, 2.0), (&self.large, 10.0, 30.0), (&self.other, 0.5, 1.0)];
        let bill = |(endpoint, input, output): (&Endpoint, f64, f64)| {
            let (i, o) = endpoint.billed_tokens();
            (i as f64 * input + o as f64 * output) / 1e6
        };
        endpoints.into_iter().map(bill).sum()
    }

    pub fn plan(&self) -> Json {
        self.project.run_plan(&[])
    }
}

impl Cascade {
    /// Answers all cells with the first model, audits 120 of them with these truths, and sets the
    /// target.
    pub fn start_audited(truth: AnswerFn, target: &str) -> Self {
        let cascade = Self::start(200, "when = [\"disagree\"]");
        let rule = "escalate = { to = \"large\", compare = \"other\", when = [\"disagree\"] }\n";
        cascade.project.edit_spec(rule, "");
        cascade.run();
        let audit = |args: &[&str]| {
            let args = [&["audit", "specs/x.toml"], args].concat();
            cascade.project.run_hqdl(&args).expect_exit_code(0)
        };
        audit(&["--columns", "country", "--sample", "120", "--seed", "3"]);
        let rows: Vec<String> = (0..200).map(|n| format!("p{n:03},{}", truth(n))).collect();
        let reference = cascade.project.path("truth.csv");
        std::fs::write(&reference, format!("name,country\n{}\n", rows.join("\n"))).unwrap();
        audit(&["--truth", reference.to_str().unwrap()]);
        let rule = format!("escalate = {{ to = \"large\", compare = \"other\", {target} }}\n");
        let spec = cascade.project.spec_text();
        cascade.project.write_spec(&format!("{spec}{rule}"));
        cascade
    }
}

/// Returns the number of the last place that a text names.
pub fn find_last_place(text: &str) -> Option<usize> {
    let numbers = text.match_indices('p').map(|(at, _)| text.get(at + 1..at + 4)?.parse().ok());
    numbers.rev().flatten().next()
}

/// Returns the probability of the small model's answers: those of its wrong answers are low.
pub fn probability_of(n: usize) -> f64 {
    if n.is_multiple_of(10) { 0.35 } else { 0.97 }
}

impl Cascade {
    /// Makes the small model's endpoint report log-probabilities.
    pub fn report_probabilities(&self) {
        self.small.set_logprob_fn(|before, token| {
            // Tokens before the first place are improbable, and must not count.
            find_last_place(&[before, token].concat()).map_or(-5.0, |n| probability_of(n).ln())
        });
    }

    /// Returns a cascade whose confidence is the probability of the small model's tokens.
    pub fn with_probabilities(places: usize, rule: &str) -> Self {
        let cascade = Self::start(places, rule);
        cascade.project.edit_spec("compare = \"other\", ", "");
        cascade.report_probabilities();
        cascade
    }
}

/// Returns a filled project with a calibrated column, and the endpoints of its models.
pub fn calibrated_project() -> (Vec<Endpoint>, Project) {
    let cascade = Cascade::with_probabilities(200, "target = 0.95, sample = 60");
    cascade.run();
    (vec![cascade.small, cascade.large, cascade.other], cascade.project)
}
