//! Implements `hqdl map`, which asks one question about each of several values. A program keeps a
//! pipe to it: each line on stdin is a JSON request, and each line on stdout is its answer.

use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value as Json, json};
use tokio::sync::watch;

use super::failure::Failure;
use super::progress::Progress;
use super::{ModelFlags, OutputOptions, interrupt, session};
use crate::blendsql::ReturnType;
use crate::cell::Answer;
use crate::facts::Facts;
use crate::failure::check_budget;
use crate::format::parse_json_object;
use crate::generate::{Listener, StopReason};
use crate::model::{self, SetupError};
use crate::query::{self, QueryError, Request, ValueQuestion};
use crate::session::Session;
use crate::spec::{Provider, Spec, Type};
use crate::value::Value;

#[derive(Debug, clap::Args)]
pub struct Options {
    /// Spec whose model and limits apply.
    #[arg(long, value_name = "SPEC")]
    spec: Option<PathBuf>,
    /// Maximum cost of a request in USD, unless the request sets its own `budget`.
    #[arg(long, value_name = "USD", allow_hyphen_values = true, value_parser = super::parse_budget)]
    budget: Option<f64>,
    #[command(flatten)]
    flags: ModelFlags,
}

/// A request line.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct MapRequest {
    /// The question; `{}` is replaced by the value.
    question: String,
    /// Values: NULL, numbers or texts; true and false become 1 and 0.
    values: Vec<Json>,
    /// Type of an answer: `bool`, `int`, `float`, `str`, `date`, or `list[…]`.
    #[serde(rename = "type")]
    kind: Option<String>,
    /// Allowed answers.
    options: Option<Vec<Json>>,
    /// Kind of the values, such as `city.name`.
    #[serde(rename = "kind")]
    value_kind: Option<String>,
    /// Whether to ask the model for answers that are not stored.
    #[serde(default = "default_ask")]
    ask: bool,
    /// Budget in USD.
    budget: Option<f64>,
}

fn default_ask() -> bool {
    true
}

pub fn run(options: &Options, output_options: OutputOptions) -> Result<ExitCode, Failure> {
    let spec = build_base_spec(options)?;
    let facts = session::select_cache(&options.flags.cache, "map").open()?;
    session::print_cache_location(&facts, output_options);
    let interrupt = interrupt::watch_ctrl_c(Some(interrupt::FINISHING));
    let listener = Progress::new_query_listener(output_options);
    let answerer = LineAnswerer { options, spec, facts: &facts, listener, interrupt };
    let mut out = std::io::stdout().lock();
    let mut exit_code = 0;
    for (number, line) in (1..).zip(std::io::stdin().lock().lines()) {
        let answered = match line {
            Ok(text) if text.trim().is_empty() => continue,
            Ok(text) => answerer.answer_line(&text),
            Err(error) => {
                let reason = crate::format::describe_io_error(&error);
                let message = format!("cannot read stdin: {reason}");
                Err(Failure::wrong_input(message, "write JSON lines in UTF-8"))
            }
        };
        let response = answered.unwrap_or_else(|failure| {
            exit_code = failure.exit_code();
            failure.with_line_number(number).with_request_fields().to_json()
        });
        // The reader closed stdout.
        if writeln!(out, "{response}").and_then(|()| out.flush()).is_err() {
            break;
        }
        if *answerer.interrupt.borrow() {
            return Err(Failure::interrupted());
        }
    }
    Ok(ExitCode::from(exit_code))
}

/// Returns a spec with the model and the limits that apply to all requests.
fn build_base_spec(options: &Options) -> Result<Spec, Failure> {
    let Options { spec, budget, flags } = options;
    // Open no cache here, because `run` opens the fact store once for all requests.
    let mut flags = ModelFlags { cache: super::CacheFlags::default(), ..flags.clone() };
    flags.cache.no_cache = true;
    if let Some(spec) = spec {
        return Ok(session::open_spec(spec, &flags, *budget, "map")?.spec);
    }
    if flags.db.is_some() || flags.output.is_some() {
        return Err(Failure::wrong_input(
            "`hqdl map` uses no database",
            "remove --db and --output",
        ));
    }
    let empty = std::env::temp_dir().join(format!("hqdl-map-{}.sqlite", std::process::id()));
    let made = std::fs::write(&empty, "");
    made.map_err(|e| {
        let reason = crate::format::describe_io_error(&e);
        let message = format!("cannot write {}: {reason}", empty.display());
        Failure::wrong_input(message, "set TMPDIR to a directory that you can write to")
    })?;
    let opened =
        session::open_without_spec(&empty, &flags, *budget, "map").map(|s: Session| s.spec);
    let _ = std::fs::remove_file(&empty);
    opened
}

struct LineAnswerer<'o> {
    options: &'o Options,
    spec: Spec,
    facts: &'o Facts,
    listener: Listener,
    interrupt: watch::Receiver<bool>,
}

impl LineAnswerer<'_> {
    fn answer_line(&self, line: &str) -> Result<Json, Failure> {
        let request: MapRequest = parse_json_object(line.as_bytes())
            .map_err(|reason| Failure::wrong_input(reason, REQUEST_FORMAT))?;
        check_budget(request.budget)?;
        if request.question.trim().is_empty() {
            return Err(Failure::wrong_input("`question` is empty", REQUEST_FORMAT));
        }
        if request.options.as_ref().is_some_and(Vec::is_empty) {
            let hint = "list the options, or leave `options` out";
            return Err(Failure::wrong_input("`options` is empty", hint));
        }
        let values = request.values.iter().map(parse_value).collect::<Result<Vec<Value>, _>>()?;
        let options = match &request.options {
            Some(all) => Some(all.iter().map(parse_value).collect::<Result<Vec<Value>, _>>()?),
            None => None,
        };
        let (kind, list) = match request
            .kind
            .as_deref()
            .map(|type_name| (type_name, ReturnType::parse(type_name)))
        {
            None => (Type::Text, false),
            Some((_, Some(return_type))) => (return_type.scalar, return_type.is_list),
            Some((type_name, None)) => {
                let message = format!("`{type_name}` is not a return type");
                return Err(Failure::wrong_input(message, ReturnType::SYNTAX_HELP));
            }
        };
        let question = ValueQuestion {
            text: &request.question,
            data_type: kind,
            is_list: list,
            options: options.as_deref(),
            value_kind: request.value_kind.as_deref(),
        };
        self.ask_values(&question, &values, request.ask, request.budget)
    }

    fn ask_values(
        &self,
        question: &ValueQuestion<'_>,
        values: &[Value],
        ask: bool,
        budget: Option<f64>,
    ) -> Result<Json, Failure> {
        let mut spec = self.spec.clone();
        spec.set_budget(budget)?;
        spec.expansions.clear();
        let facts = self.facts.sync();
        let mut request = Request {
            command: "map",
            listener: Arc::clone(&self.listener),
            interrupt: self.interrupt.clone(),
            rows_per_request: self.options.flags.rows_per_request,
            ..Request::new(&spec, Path::new(""), facts, question.text)
        };
        // Recordings must be opened before the lookup, because the name of the recorded model is
        // part of the cache key. Connect to an endpoint only if the request needs it.
        if spec.model.provider == Provider::Replay {
            request.model = Some(self.connect_model(&spec)?);
        }
        if !ask {
            let known = query::map_known_values(&request, question, values)?;
            return Ok(to_response(&known, &json!({})));
        }
        let mapped = match query::map_values(&request, question, values) {
            Err(QueryError::NoModel) => {
                request.model = Some(self.connect_model(&spec)?);
                query::map_values(&request, question, values)
            }
            mapped => mapped,
        };
        match mapped {
            Ok(mapped) => Ok(to_response(&mapped.answers, &mapped.meta.to_json())),
            Err(QueryError::Stopped(StopReason::Interrupted)) => Err(Failure::interrupted()),
            Err(error) => Err(error.into()),
        }
    }

    fn connect_model(&self, spec: &Spec) -> Result<Arc<dyn model::Model>, Failure> {
        let named = self.options.flags.model.as_deref().is_some_and(|name| !name.is_empty());
        if self.options.spec.is_none() && spec.model.provider != Provider::Replay && !named {
            return Err(Failure::wrong_input(
                "this needs a model, but none is named",
                "pass --model NAME (and --base-url URL), --spec SPEC, or --recordings FILE",
            ));
        }
        model::connect_with_shared_limits(spec, self.facts)
            .map_err(|error: SetupError| error.into())
    }
}

const REQUEST_FORMAT: &str = "write {\"question\": \"…\", \"values\": […]} on one line; also `type`, \
                    `options`, `kind`, `ask`, `budget`";

/// Returns a value and a state for each input; both are null if there is no answer.
fn to_response(answers: &[Option<Answer>], meta: &Json) -> Json {
    let shown = |a: &Option<Answer>| a.as_ref().map_or(Json::Null, |a| a.value.to_json());
    let state = |a: &Option<Answer>| a.as_ref().map(|a| a.state.name());
    json!({
        "answers": answers.iter().map(shown).collect::<Vec<_>>(),
        "states": answers.iter().map(state).collect::<Vec<_>>(),
        "meta": meta,
    })
}

fn parse_value(json: &Json) -> Result<Value, Failure> {
    match json {
        Json::Null => Ok(Value::Null),
        Json::Bool(truth) => Ok(Value::Integer(i64::from(*truth))),
        Json::String(text) => Ok(Value::Text(text.clone())),
        Json::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(integer), _) => Ok(Value::Integer(integer)),
            (None, Some(real)) if !number.is_u64() => Ok(Value::Real(real)),
            _ => Err(Failure::wrong_input(format!("{number} exceeds 64 bits"), "pass it as text")),
        },
        other => Err(Failure::wrong_input(
            format!("{other} is not a value"),
            "pass null, numbers and texts",
        )),
    }
}
