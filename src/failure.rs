//! User-visible failures: what happened, where, and what to do next. They are rendered in two
//! places: on the terminal and over HTTP.

use serde_json::json;

use crate::audit::AuditError;
use crate::database::StoreError;
use crate::database::provenance::ProvenanceError;
use crate::facts::FactsError;
use crate::generate::StopReason;
use crate::materialize::{MaterializeError, Report};
use crate::model::{ModelError, SetupError};
use crate::overrides::{OverrideEditError, OverridesError};
use crate::problem::Problems;
use crate::query::QueryError;
use crate::session::OverrideError;
use crate::spec::{ReadError, UnpricedModel};
use crate::suggest::SuggestError;

/// Exit code: some cells have no answer, or have no value although values are required.
pub const INCOMPLETE: u8 = 1;
/// Exit code: wrong input.
pub const WRONG_INPUT: u8 = 2;
/// Exit code: the budget is exhausted.
pub const BUDGET: u8 = 3;
/// Exit code: the endpoint refused the request.
pub const REFUSED: u8 = 4;
/// Exit code: the cache cannot be reached.
pub const UNREACHABLE: u8 = 5;
/// Exit code: a query needs approval because of its cost.
pub const APPROVAL: u8 = 6;
/// Exit code: interrupted.
pub const INTERRUPTED: u8 = 130;

/// Reason why a command failed.
#[derive(Debug, Clone)]
pub enum Failure {
    /// A message with a hint.
    Message {
        /// Error message.
        message: String,
        /// Suggestion for the user; empty if there is none.
        hint: String,
        /// The exit code.
        exit: u8,
    },
    /// Problems found in a spec.
    Problems(Problems),
}

impl Failure {
    /// Returns a failure with the exit code for wrong input.
    pub fn wrong_input(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Message { message: message.into(), hint: hint.into(), exit: WRONG_INPUT }
    }

    /// Returns the failure for a Ctrl-C during a command that stores nothing.
    pub fn interrupted() -> Self {
        let message = "interrupted".to_owned();
        Self::Message { message, hint: String::new(), exit: INTERRUPTED }
    }

    /// Returns the failure that ended the run early or kept it from publishing, if any. Moves
    /// `failure` out of the report.
    pub fn take_from_report(report: &mut Report) -> Option<Self> {
        if let Some(failed) = report.failure.take() {
            return Some(failed.into());
        }
        let (message, hint, exit) = describe_stop(report.stop_reason.as_deref()?);
        Some(Self::Message { message, hint, exit })
    }

    /// Adds the line number of stdin to a failure that has the exit code for wrong input.
    #[must_use]
    pub fn with_line_number(self, number: usize) -> Self {
        match self {
            Self::Message { message, hint, exit: exit @ WRONG_INPUT } => {
                Self::Message { message: format!("stdin, line {number}: {message}"), hint, exit }
            }
            other => other,
        }
    }

    /// Replaces command-line options in the message and hint by the fields of an HTTP request.
    #[must_use]
    pub fn with_request_fields(self) -> Self {
        match self {
            Self::Message { message, hint, exit } => Self::Message {
                message: replace_option_names(&message),
                hint: replace_option_names(&hint),
                exit,
            },
            Self::Problems(mut problems) => {
                for problem in &mut problems.problems {
                    problem.help = problem.help.as_deref().map(replace_option_names);
                }
                Self::Problems(problems)
            }
        }
    }

    /// Replaces advice about command-line options with advice about the fields of the page's forms.
    #[must_use]
    pub fn with_form_advice(self) -> Self {
        match self {
            Self::Message { message, hint, exit } => {
                let hint = hint
                    .replace("pass --force", "tick the box of the form on the cell's page")
                    .replace(
                        "run this again with a larger --budget to continue",
                        "approve a higher cost, or set a higher budget_usd in the spec",
                    );
                Self::Message { message, hint, exit }
            }
            problems @ Self::Problems(_) => problems,
        }
    }

    /// Replaces the statement that all answers are kept, which is false without a cache.
    #[must_use]
    pub fn without_cache(self) -> Self {
        match self {
            Self::Message { message, hint, exit } => {
                let hint = hint.replace("all answers are kept", "--no-cache keeps no answers");
                Self::Message { message, hint, exit }
            }
            problems @ Self::Problems(_) => problems,
        }
    }

    /// Replaces advice about commands and request fields by advice for an assistant, which can only
    /// set the arguments of its tools.
    #[must_use]
    pub fn with_tool_advice(self) -> Self {
        let own = |text: &str| {
            TOOL_ADVICE.iter().fold(text.to_owned(), |text, (part, own)| text.replace(part, own))
        };
        match self.with_request_fields() {
            Self::Message { message, hint, exit } => {
                Self::Message { message: own(&message), hint: own(&hint), exit }
            }
            Self::Problems(mut problems) => {
                for problem in &mut problems.problems {
                    problem.help = problem.help.as_deref().map(own);
                }
                Self::Problems(problems)
            }
        }
    }

    /// Returns the message on one line.
    pub fn message(&self) -> String {
        match self {
            Self::Message { message, .. } => message.clone(),
            Self::Problems(problems) => match problems.problems.as_slice() {
                [one] => format!("{}: {}", problems.path.display(), one.message),
                _ => problems.to_string(),
            },
        }
    }

    /// Returns the suggestion for the user; empty if there is none.
    pub fn hint(&self) -> String {
        match self {
            Self::Message { hint, .. } => hint.clone(),
            Self::Problems(problems) => {
                problems.problems.iter().find_map(|p| p.help.clone()).unwrap_or_default()
            }
        }
    }

    /// Returns the message, its location and the hint, without colors.
    pub fn to_text(&self) -> String {
        match self {
            Self::Message { message, hint, .. } if hint.is_empty() => format!("error: {message}"),
            Self::Message { message, hint, .. } => format!("error: {message}\nhelp: {hint}"),
            Self::Problems(problems) => problems.render(false),
        }
    }

    /// Returns the exit code.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Message { exit, .. } => *exit,
            Self::Problems(_) => WRONG_INPUT,
        }
    }

    /// Returns the `error` event of `--json`.
    pub fn to_json(&self) -> serde_json::Value {
        match self {
            Self::Message { message, hint, exit } => {
                json!({ "event": "error", "message": message, "hint": hint, "exit": exit })
            }
            Self::Problems(problems) => {
                json!({ "event": "error", "problems": problems.to_json(), "exit": WRONG_INPUT })
            }
        }
    }
}

/// Checks the budget of a request in USD.
///
/// # Errors
/// Returns a [`Failure`] if the budget is negative or not finite.
pub(crate) fn check_budget(budget: Option<f64>) -> Result<(), Failure> {
    match budget.filter(|usd| !usd.is_finite() || *usd < 0.0) {
        None => Ok(()),
        Some(usd) => Err(Failure::wrong_input(
            format!("{usd} is not a valid budget"),
            "pass `budget` in USD, 0 or more",
        )),
    }
}

/// Advice for requests, with the advice for assistants that replaces it.
const TOOL_ADVICE: [(&str, &str); 5] = [
    ("pass in `params`: ", "write the value into the query instead: "),
    (
        "pass `\"force\": true` to set it anyway",
        "only the user can set it anyway, with `hqdl override set --force`",
    ),
    ("for a row that does not exist yet pass `\"force\": true`", "the row must exist"),
    ("/v1/plan lists the columns", "`describe` lists the columns"),
    (
        "raise `timeout` (at most 600), or select less; /v1/explain shows the SQL",
        "select less, or ask the user to start the server with a larger --timeout",
    ),
];

/// Command-line options and commands in messages, with the request fields that replace them.
const REQUEST_FIELDS: [(&str, &str); 22] = [
    (
        "run this again with a larger --budget to continue",
        "send it again with a larger `budget` to continue",
    ),
    ("--where: ", "`where`: "),
    ("--columns: ", "`columns`: "),
    ("--refresh: ", "`refresh`: "),
    ("`hqdl plan SPEC` lists the columns", "/v1/plan lists the columns"),
    ("`hqdl override list SPEC` lists them", "GET /v1/overrides lists them"),
    (
        "raise --timeout, or select less; `hqdl explain` shows the SQL",
        "raise `timeout` (at most 600), or select less; /v1/explain shows the SQL",
    ),
    ("pass --force", "pass `\"force\": true`"),
    ("pass --param ", "pass in `params`: "),
    (", or with --model", ""),
    (", or pass --model", ""),
    ("with --api-key-env (`api_key_env` in [model])", "in `api_key_env` of [model]"),
    ("in --api-key-env (`api_key_env` in [model])", "in `api_key_env` of [model]"),
    ("neither --api-key-env nor `api_key_env` names one", "the spec names none (`api_key_env`)"),
    ("use `--dialect ", "use the dialect `"),
    (" or `--dialect ", " or `"),
    ("pass --price IN,OUT (0,0 for a model on your own machine), ", ""),
    (", or pass --price IN,OUT", ""),
    ("`--batch`", "`batch`"),
    ("`--columns`", "`columns`"),
    (", or --db", ""),
    (", or pass --output, to write", ", to write"),
];

/// Replaces command-line options in a text by request fields.
fn replace_option_names(text: &str) -> String {
    REQUEST_FIELDS.iter().fold(text.to_owned(), |text, (option, field)| text.replace(option, field))
}

/// Returns the message, hint and exit code for a run that stopped early.
pub fn describe_stop(why: &StopReason) -> (String, String, u8) {
    match why {
        StopReason::Interrupted => {
            ("interrupted".to_owned(), "all answers are kept; run this again to continue".to_owned(), INTERRUPTED)
        }
        StopReason::BatchesPending(_) => (
            why.to_string(),
            "run this again with --batch to wait for the batch, or without --batch to collect it after it has ended".to_owned(),
            INTERRUPTED,
        ),
        StopReason::Endpoint(ModelError::Refused { endpoint, status, .. })
            if endpoint.starts_with("the search ") =>
        {
            let hint = match status {
                401 | 403 => "check the key in the variable of `api_key_env` in [expansion.evidence], and `key_header`; all answers are kept",
                _ => "check `search` in [expansion.evidence]; all answers are kept; run this again to continue",
            };
            (why.to_string(), hint.to_owned(), REFUSED)
        }
        StopReason::Endpoint(ModelError::Refused { status, message, .. }) => {
            let hint = match status {
                401 | 403 if message.contains("(embeddings of `") => "name the variable of a key for this endpoint in `api_key_env` of [embeddings]; all answers are kept",
                _ if message.contains("(embeddings of `") => "check `model` and `base_url` in [embeddings]; all answers are kept",
                403 => "check that this account and key may use the model from here (permissions, region); a key comes from the variable in --api-key-env (`api_key_env` in [model]); all answers are kept",
                401 if message.contains("neither --api-key-env") => "export a key of this endpoint in an environment variable, and name the variable with --api-key-env (`api_key_env` in [model]); all answers are kept",
                401 if message.contains("hqdl sent no key") => "export that variable with a key of this endpoint; all answers are kept",
                401 if !message.contains("hqdl sent the key") => "name the environment variable of a key for this endpoint with --api-key-env (`api_key_env` in [model]); all answers are kept",
                401 => "set that variable to a key of this endpoint, or name another variable with --api-key-env (`api_key_env` in [model]); all answers are kept",
                404 => "check `base_url`, which often ends in /v1, and the model's `name`, and with --batch that the endpoint has a Batch API; all answers are kept",
                405 | 410 | 501 => "check that `base_url` is the address of the API, which often ends in /v1, and that `provider` names the API; all answers are kept",
                400 | 422 => "check the model's `name` and `parameters` in [model]; all answers are kept",
                402 | 429 => "check the account's credit and quota, then run this again; all answers are kept",
                _ => "all answers are kept; fix the cause and run this again",
            };
            (why.to_string(), hint.to_owned(), REFUSED)
        }
        StopReason::Endpoint(ModelError::NoMedia { media, .. }) => (
            why.to_string(),
            format!("use a model that accepts {media}: add [model.NAME] and write `model = \"NAME\"` in the expansion or `model='NAME'` in the call; all answers are kept"),
            REFUSED,
        ),
        StopReason::Endpoint(ModelError::NoConnection { hint, .. }) => (
            why.to_string(),
            format!("{hint}; all answers are kept; run this again to continue"),
            REFUSED,
        ),
        StopReason::Endpoint(ModelError::Budget(reached)) if reached.is_daily() => (
            why.to_string(),
            "all answers are kept; raise `budget_usd_per_day` in [limits], or run this again tomorrow (UTC)".to_owned(),
            BUDGET,
        ),
        StopReason::Endpoint(ModelError::Budget(reached)) if reached.is_token_budget() => (
            why.to_string(),
            "all answers are kept; raise `budget_tokens` in [limits] and run this again to continue".to_owned(),
            BUDGET,
        ),
        StopReason::Endpoint(ModelError::Budget(_)) => (
            why.to_string(),
            "all answers are kept; run this again with a larger --budget to continue".to_owned(),
            BUDGET,
        ),
        StopReason::Endpoint(ModelError::Usage(_)) => (
            why.to_string(),
            "all answers are kept and count as spent at the higher possible cost; check the usage that the endpoint's provider reports before you continue".to_owned(),
            REFUSED,
        ),
        StopReason::Endpoint(_) | StopReason::Gone(_) => {
            let text = why.to_string();
            let check = if text.contains(" answers 429: ") {
                "lower `requests_per_minute` or `tokens_per_minute` in [limits], or check the account's quota"
            } else if text.contains(" answers 5") {
                "the endpoint has a problem: retry later"
            } else if text.contains(" sent a reply that ends too early") {
                "retry; if it happens again, check the server, or a proxy between"
            } else if text.contains(" sent a") && text.contains("(embeddings of `") {
                "check `model` and `base_url` in [embeddings]"
            } else if text.contains(" sent a") {
                "check that `base_url` is the address of the API, which often ends in /v1, and that `provider` names the API"
            } else {
                "check that the endpoint of `base_url` is running"
            };
            (text, format!("{check}; all answers are kept; run this again to continue"), REFUSED)
        }
        StopReason::Bug(_) => (why.to_string(), "all answers are kept; please report this".to_owned(), WRONG_INPUT),
        StopReason::Facts(error) => (error.to_string(), error.hint().to_owned(), choose_facts_exit_code(error)),
    }
}

impl From<AuditError> for Failure {
    fn from(error: AuditError) -> Self {
        let hint = error.hint().to_owned();
        Self::wrong_input(error.to_string(), hint)
    }
}

impl From<ReadError> for Failure {
    fn from(error: ReadError) -> Self {
        match &error {
            ReadError::Problems(problems) => Self::Problems(problems.clone()),
            ReadError::Database(path) => Self::wrong_input(
                error.to_string(),
                format!("`hqdl init {}` writes a first spec for it", path.display()),
            ),
            ReadError::Csv(path) => Self::wrong_input(
                error.to_string(),
                format!("`hqdl init {}` makes a database and a first spec", path.display()),
            ),
            ReadError::Directory(_) => {
                Self::wrong_input(error.to_string(), "name a spec file of this directory")
            }
            ReadError::File { error: io, .. }
                if io.kind() == std::io::ErrorKind::PermissionDenied =>
            {
                Self::wrong_input(error.to_string(), "give this user the right to read the file")
            }
            ReadError::NotText(_) | ReadError::File { .. } => Self::wrong_input(
                error.to_string(),
                "name a spec file, such as specs/superhero.toml; `hqdl init DB` writes a first one",
            ),
        }
    }
}

impl From<Problems> for Failure {
    fn from(problems: Problems) -> Self {
        Self::Problems(problems)
    }
}

impl From<UnpricedModel> for Failure {
    fn from(error: UnpricedModel) -> Self {
        let hint = format!("set `price` in {}, or remove the budget", error.table);
        Self::wrong_input(error.to_string(), hint)
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::wrong_input(error.to_string(), error.hint())
    }
}

impl From<OverrideError> for Failure {
    fn from(error: OverrideError) -> Self {
        match error {
            OverrideError::Store(e) => e.into(),
            OverrideError::Edit(e) => e.into(),
            OverrideError::Refused(all) => match all.as_slice() {
                [one] => Self::wrong_input(one.to_string(), one.hint()),
                all => {
                    let messages: Vec<String> =
                        all.iter().map(|o| format!("{o} ({})", o.hint())).collect();
                    Self::wrong_input(messages.join("; "), "hqdl changed nothing")
                }
            },
        }
    }
}

impl From<ProvenanceError> for Failure {
    fn from(error: ProvenanceError) -> Self {
        Self::wrong_input(error.to_string(), error.hint())
    }
}

impl From<SuggestError> for Failure {
    fn from(error: SuggestError) -> Self {
        match error {
            SuggestError::Facts(e) => e.into(),
            SuggestError::Store(e) => e.into(),
        }
    }
}

impl From<FactsError> for Failure {
    fn from(error: FactsError) -> Self {
        let (message, hint) = (error.to_string(), error.hint().to_owned());
        Self::Message { message, hint, exit: choose_facts_exit_code(&error) }
    }
}

/// Returns the exit code for an error of the fact store.
fn choose_facts_exit_code(error: &FactsError) -> u8 {
    match error {
        FactsError::Unreachable { .. } => UNREACHABLE,
        _ => WRONG_INPUT,
    }
}

impl From<SetupError> for Failure {
    fn from(error: SetupError) -> Self {
        let error = match error {
            SetupError::Facts(error) => return error.into(),
            other => other,
        };
        let exit = if matches!(
            error,
            SetupError::NoKey(_) | SetupError::NoSearchKey(_) | SetupError::UnfitKey(_)
        ) {
            REFUSED
        } else {
            WRONG_INPUT
        };
        Self::Message { message: error.to_string(), hint: error.hint(), exit }
    }
}

impl From<OverridesError> for Failure {
    fn from(error: OverridesError) -> Self {
        Self::wrong_input(error.to_string(), error.hint())
    }
}

impl From<OverrideEditError> for Failure {
    fn from(error: OverrideEditError) -> Self {
        Self::wrong_input(error.to_string(), error.hint())
    }
}

/// Hint for documents that cannot be read.
const EVIDENCE_HINT: &str = "correct [expansion.evidence] in the spec: `documents` selects texts, or names a directory of text files";

impl From<MaterializeError> for Failure {
    fn from(error: MaterializeError) -> Self {
        match error {
            MaterializeError::Store(e) => e.into(),
            MaterializeError::Facts(e) => e.into(),
            MaterializeError::Setup(e) => e.into(),
            MaterializeError::Overrides(e) => e.into(),
            MaterializeError::Audit(e) => e.into(),
            MaterializeError::TargetRefused(_) => Self::wrong_input(
                error.to_string(),
                "lower `target_truth`, audit more rows, name a better model in `to`, or use `target`",
            ),
            MaterializeError::NoLogprobs { .. } => Self::wrong_input(
                error.to_string(),
                "set `answers`, or name other models in `compare`; if the answers come from an earlier run, add `--refresh COLUMN`",
            ),
            MaterializeError::Stopped(why) => {
                let (message, hint, exit) = describe_stop(&why);
                Self::Message { message, hint, exit }
            }
            MaterializeError::UnknownColumn { ref nearest, .. } => {
                let list = "`hqdl plan SPEC` lists the columns".to_owned();
                let hint =
                    nearest.as_ref().map_or(list, |nearest| format!("did you mean `{nearest}`?"));
                Self::wrong_input(error.to_string(), hint)
            }
            MaterializeError::InvalidWhere { ref hint, .. } => {
                Self::wrong_input(error.to_string(), hint.as_str())
            }
            MaterializeError::NoEvidence => {
                Self::wrong_input(error.to_string(), "leave the flag out")
            }
            MaterializeError::BatchesUnsupported => Self::wrong_input(
                error.to_string(),
                "batches need an endpoint with a Batch API: `provider = \"openai\"`",
            ),
            MaterializeError::BatchModelMismatch { .. } => Self::wrong_input(
                error.to_string(),
                "remove `--batch`, or select the columns of [model] with `--columns`",
            ),
            MaterializeError::BatchMediaUnsupported(..)
            | MaterializeError::BatchEvidenceUnsupported(_) => Self::wrong_input(
                error.to_string(),
                "remove `--batch`, or move the expansion into a separate spec",
            ),
            MaterializeError::Evidence { .. } => {
                Self::wrong_input(error.to_string(), EVIDENCE_HINT)
            }
            MaterializeError::Runtime(_) => Self::wrong_input(error.to_string(), ""),
        }
    }
}

impl From<QueryError> for Failure {
    fn from(error: QueryError) -> Self {
        match error {
            QueryError::Store(e) => e.into(),
            QueryError::Facts(e) => e.into(),
            QueryError::Setup(e) => e.into(),
            QueryError::Overrides(e) => e.into(),
            QueryError::Stopped(why) => {
                let (message, hint, exit) = describe_stop(&why);
                Self::Message { message, hint, exit }
            }
            QueryError::Sql(problem) => {
                let help = problem.help.unwrap_or_default();
                Self::wrong_input(problem.message, help)
            }
            QueryError::NoModel => Self::wrong_input(
                error.to_string(),
                "name a model in [model] of the spec, or with --model",
            ),
            QueryError::Refused => Self::Message {
                message: error.to_string(),
                hint: "a content filter rejects it: reword the question, or name another model in [model], or with --model".to_owned(),
                exit: REFUSED,
            },
            QueryError::Timeout(_) => Self::wrong_input(
                error.to_string(),
                "raise --timeout, or select less; `hqdl explain` shows the SQL",
            ),
            QueryError::Evidence { .. } => Self::wrong_input(error.to_string(), EVIDENCE_HINT),
            QueryError::Output(_) => Self::wrong_input(
                error.to_string(),
                "free some space, or write the result to another place",
            ),
            QueryError::Runtime(_) => Self::wrong_input(error.to_string(), ""),
        }
    }
}
