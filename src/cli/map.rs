//! `hqdl map`: asks one question about each of several values, for programs that keep a pipe to it.
//! Each line on stdin is a JSON request; each line on stdout is its answer.

use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value as Json, json};
use tokio::sync::watch;

use super::failure::Failure;
use super::{ModelFlags, Talk, interrupt, session};
use crate::blendsql::ReturnType;
use crate::cell::Answer;
use crate::facts::{Facts, FactsError};
use crate::generate::{Listener, Stopped};
use crate::model::{self, SetupError};
use crate::query::{self, QueryError, Request, ValueQuestion};
use crate::session::{Cache, Session, user_cache};
use crate::spec::{Provider, Spec, Type};
use crate::value::Value;

#[derive(Debug, clap::Args)]
pub struct Options {
    /// Spec whose model and limits apply.
    #[arg(long, value_name = "SPEC")]
    spec: Option<PathBuf>,
    /// Most USD that a request may spend, unless the request sets its own `budget`.
    #[arg(long, value_name = "USD", allow_hyphen_values = true, value_parser = super::budget)]
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
    /// NULLs, numbers and texts; true and false become 1 and 0.
    values: Vec<Json>,
    /// Type of an answer: `bool`, `int`, `float`, `str`, `date`, or `list[…]`.
    #[serde(rename = "type")]
    kind: Option<String>,
    /// Allowed answers.
    options: Option<Vec<Json>>,
    /// What the values are, such as `city.name`.
    #[serde(rename = "kind")]
    value_kind: Option<String>,
    /// Whether the model is asked for unknown answers.
    #[serde(default = "yes")]
    ask: bool,
    /// Budget in USD.
    budget: Option<f64>,
}

fn yes() -> bool {
    true
}

/// The facts, served to other processes as long as this process owns them.
struct Lent {
    facts: Facts,
    #[cfg(unix)]
    _lending: Option<crate::facts::server::CacheServer>,
}

impl Lent {
    #[cfg(unix)]
    fn open(cache: &Cache) -> Result<Self, FactsError> {
        use crate::facts::server::serve;
        let Cache::Dir { dir, holder, .. } = cache else {
            return Ok(Self { facts: cache.open()?, _lending: None });
        };
        let dir = dir.clone().map_or_else(user_cache, Ok)?;
        match Facts::own(&dir, holder, Duration::ZERO) {
            Ok(facts) => {
                let told = json!({
                    "version": env!("CARGO_PKG_VERSION"), "pid": std::process::id(),
                    "url": "hqdl map", "cache": dir, "specs": [], "runs": [],
                });
                let lending = Some(serve(&facts, Arc::new(move || told.clone()))?);
                Ok(Self { facts, _lending: lending })
            }
            Err(FactsError::Held { .. }) => {
                Ok(Self { facts: Facts::open(&dir, holder)?, _lending: None })
            }
            Err(error) => Err(error),
        }
    }

    #[cfg(not(unix))]
    fn open(cache: &Cache) -> Result<Self, FactsError> {
        Ok(Self { facts: cache.open()? })
    }
}

pub fn run(options: &Options, talk: Talk) -> Result<ExitCode, Failure> {
    let spec = spec(options)?;
    let lent = Lent::open(&session::cache(&options.flags.cache, "map"))?;
    session::tell(&lent.facts, talk);
    let interrupt = interrupt::watch(Some(interrupt::FINISHING));
    let line = InputLine { options, spec, facts: &lent.facts, interrupt };
    let mut out = std::io::stdout().lock();
    for asked in std::io::stdin().lock().lines() {
        let told = match asked {
            Ok(asked) if asked.trim().is_empty() => continue,
            Ok(asked) => line.answer(&asked).unwrap_or_else(|failure| failure.to_json()),
            Err(error) => Failure::input(format!("stdin: {error}"), "lines are UTF-8").to_json(),
        };
        // The reader closed stdout.
        if writeln!(out, "{told}").and_then(|()| out.flush()).is_err() {
            break;
        }
        if *line.interrupt.borrow() {
            return Err(Failure::interrupted());
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns a spec with the model and limits that apply.
fn spec(options: &Options) -> Result<Spec, Failure> {
    let Options { spec, budget, flags } = options;
    // Each request opens no cache of its own: `run` opens the facts once, for all.
    let mut flags = ModelFlags { cache: super::CacheFlags::default(), ..flags.clone() };
    flags.cache.no_cache = true;
    if let Some(spec) = spec {
        return Ok(session::open(spec, &flags, *budget, "map")?.spec);
    }
    if flags.db.is_some() || flags.output.is_some() {
        return Err(Failure::input("`hqdl map` uses no database", "remove --db and --output"));
    }
    let empty = std::env::temp_dir().join(format!("hqdl-map-{}.sqlite", std::process::id()));
    let made = std::fs::write(&empty, "");
    made.map_err(|e| Failure::input(format!("{}: {e}", empty.display()), ""))?;
    let opened = session::bare(&empty, &flags, *budget, "map").map(|s: Session| s.spec);
    let _ = std::fs::remove_file(&empty);
    opened
}

struct InputLine<'o> {
    options: &'o Options,
    spec: Spec,
    facts: &'o Facts,
    interrupt: watch::Receiver<bool>,
}

impl InputLine<'_> {
    fn answer(&self, line: &str) -> Result<Json, Failure> {
        let wrong = |e| Failure::input(format!("a request: {e}"), FORM);
        let asked: MapRequest = serde_json::from_str(line).map_err(wrong)?;
        let values = asked.values.iter().map(value).collect::<Result<Vec<Value>, _>>()?;
        let options = match &asked.options {
            Some(all) => Some(all.iter().map(value).collect::<Result<Vec<Value>, _>>()?),
            None => None,
        };
        let (kind, list) = match asked.kind.as_deref().map(|said| (said, ReturnType::parse(said))) {
            None => (Type::Text, false),
            Some((_, Some(kind))) => (kind.scalar, kind.list),
            Some((said, None)) => {
                let message = format!("`{said}` is not a return type");
                return Err(Failure::input(message, ReturnType::FORMS));
            }
        };
        let question = ValueQuestion {
            text: &asked.question,
            kind,
            list,
            options: options.as_deref(),
            value_kind: asked.value_kind.as_deref(),
        };
        self.ask(&question, &values, asked.ask, asked.budget)
    }

    fn ask(
        &self,
        question: &ValueQuestion<'_>,
        values: &[Value],
        ask: bool,
        budget: Option<f64>,
    ) -> Result<Json, Failure> {
        let mut spec = self.spec.clone();
        spec.set_budget(budget)?;
        spec.expansions.clear();
        let facts = self.facts.latest();
        let listener: Listener = Arc::new(|_| {});
        let mut request = Request {
            command: "map",
            listener,
            interrupt: self.interrupt.clone(),
            rows_per_request: self.options.flags.rows_per_request,
            ..Request::of(&spec, Path::new(""), facts, question.text)
        };
        // Recordings need a model before the lookup, because their name is part of the cache key;
        // an endpoint is connected only when it must be asked.
        if spec.model.provider == Provider::Replay {
            request.model = Some(self.model(&spec)?);
        }
        if !ask {
            let known = query::map_known(&request, question, values)?;
            return Ok(told(&known, &json!({})));
        }
        let mapped = match query::map(&request, question, values) {
            Err(QueryError::NoModel) => {
                request.model = Some(self.model(&spec)?);
                query::map(&request, question, values)
            }
            mapped => mapped,
        };
        match mapped {
            Ok(mapped) => Ok(told(&mapped.answers, &mapped.meta.to_json())),
            Err(QueryError::Stopped(Stopped::Interrupted)) => Err(Failure::interrupted()),
            Err(error) => Err(error.into()),
        }
    }

    fn model(&self, spec: &Spec) -> Result<Arc<dyn model::Model>, Failure> {
        let named = self.options.flags.model.as_deref().is_some_and(|name| !name.is_empty());
        if self.options.spec.is_none() && spec.model.provider == Provider::Openai && !named {
            return Err(Failure::input(
                "this needs a model, but none is named",
                "pass --model NAME (and --base-url URL), --spec SPEC, or --recordings FILE",
            ));
        }
        model::connect_with(spec, self.facts).map_err(|error: SetupError| error.into())
    }
}

const FORM: &str = "write {\"question\": \"…\", \"values\": […]}, in one line; also `type`, \
                    `options`, `kind`, `ask`, `budget`";

/// Returns a value and a state for each input; both are null if there is no answer.
fn told(answers: &[Option<Answer>], meta: &Json) -> Json {
    let shown = |a: &Option<Answer>| a.as_ref().map_or(Json::Null, |a| a.value.to_json());
    let state = |a: &Option<Answer>| a.as_ref().map(|a| a.state.name());
    json!({
        "answers": answers.iter().map(shown).collect::<Vec<_>>(),
        "states": answers.iter().map(state).collect::<Vec<_>>(),
        "meta": meta,
    })
}

fn value(said: &Json) -> Result<Value, Failure> {
    match said {
        Json::Null => Ok(Value::Null),
        Json::Bool(truth) => Ok(Value::Integer(i64::from(*truth))),
        Json::String(text) => Ok(Value::Text(text.clone())),
        Json::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(integer), _) => Ok(Value::Integer(integer)),
            (None, Some(real)) if !number.is_u64() => Ok(Value::Real(real)),
            _ => Err(Failure::input(format!("{number} exceeds 64 bits"), "pass it as text")),
        },
        other => {
            Err(Failure::input(format!("{other} is not a value"), "pass null, numbers and texts"))
        }
    }
}
