//! Who is asked: the trait [`Model`], an OpenAI-compatible endpoint, and
//! recordings that answer offline. All answers take the same way from here.

pub mod openai;
pub mod replay;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};
use tokio::sync::watch;

use crate::prompt::Prompt;
use crate::spec::{Format, ModelSettings, PriceTable, Provider};

/// How often a request is tried in all.
const TRIES: usize = 6;
/// The first pause between tries; it doubles, and chance shortens it.
const FIRST_PAUSE: Duration = Duration::from_millis(400);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// What a model wrote.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reply {
    /// The words.
    pub content: String,
    /// Whether the endpoint cut them at a length.
    pub truncated: bool,
    /// Whether the endpoint says that this is a refusal.
    pub refused: bool,
    /// Tokens, as the endpoint counts them; `None` when it does not say.
    pub tokens: Option<Tokens>,
}

/// Tokens of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tokens {
    /// Input tokens.
    pub input: u64,
    /// Those of them that the endpoint had cached.
    pub cached_input: u64,
    /// Output tokens.
    pub output: u64,
}

impl Tokens {
    /// What they cost, in USD.
    #[must_use]
    pub fn cost(&self, price: &PriceTable) -> f64 {
        let cached = self.cached_input.min(self.input);
        ((self.input - cached) as f64 * price.input
            + cached as f64 * price.cached_input.unwrap_or(price.input)
            + self.output as f64 * price.output)
            / 1e6
    }
}

/// Why there is no reply.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ModelError {
    /// The endpoint refuses all requests like this one; the run must stop.
    #[error("the endpoint answers {status}: {message}")]
    Refused {
        /// The HTTP status.
        status: u16,
        /// What the endpoint says.
        message: String,
    },
    /// This may pass: a limit, an overload, a broken connection.
    #[error("{message}")]
    Passing {
        /// What happened.
        message: String,
        /// How long the endpoint asks to wait.
        wait: Option<Duration>,
    },
    /// The prompt is longer than the model's context.
    #[error("the prompt is too long for the model: {0}")]
    TooLong(String),
    /// This request cannot be answered, others may.
    #[error("{0}")]
    NoAnswer(String),
}

/// Why there is no model to ask.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// The key's variable is not set.
    #[error("the environment variable {0} is not set")]
    NoKey(String),
    /// A recording cannot be read.
    #[error("recording {path}, line {line}: {message}")]
    Recording {
        /// The file.
        path: String,
        /// The line, from 1; 0 for the whole file.
        line: usize,
        /// What is wrong.
        message: String,
    },
    /// The HTTP client cannot be made.
    #[error("no HTTP client: {0}")]
    Client(String),
}

impl SetupError {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Self::NoKey(name) => {
                format!("export {name}=…, or name another variable in `api_key_env`")
            }
            Self::Recording { .. } => "a recording is JSON lines, plain or .gz".to_owned(),
            Self::Client(_) => "check the system's TLS certificates".to_owned(),
        }
    }
}

/// A reply to come.
pub type Asking<'a> = Pin<Box<dyn Future<Output = Result<Reply, ModelError>> + Send + 'a>>;

/// Something that answers prompts.
pub trait Model: Send + Sync {
    /// What facts are kept under: the name, and for recordings which ones.
    fn name(&self) -> &str;

    /// Sends one prompt, once.
    fn ask<'a>(&'a self, prompt: &'a Prompt) -> Asking<'a>;

    /// The most rows it answers in one request.
    fn rows_at_most(&self) -> Option<u32> {
        None
    }

    /// Whether the same prompt always gets the same reply, so that asking
    /// again is of no use.
    fn repeats_itself(&self) -> bool {
        false
    }

    /// The format it answers best in.
    fn format(&self) -> Format {
        Format::Json
    }
}

/// The model that the settings name.
///
/// # Errors
/// [`SetupError`] when its key or its recordings are missing.
pub fn connect(settings: &ModelSettings) -> Result<Arc<dyn Model>, SetupError> {
    Ok(match settings.provider {
        Provider::Openai => Arc::new(openai::Endpoint::new(settings)?),
        Provider::Replay => {
            Arc::new(replay::Recordings::open(&settings.name, &settings.recordings)?)
        }
    })
}

/// The model that the settings name, for plans: its name and habits, without
/// a key. Asking it is an error.
///
/// # Errors
/// [`SetupError`] when its recordings cannot be read.
pub fn for_planning(settings: &ModelSettings) -> Result<Arc<dyn Model>, SetupError> {
    match settings.provider {
        Provider::Openai => Ok(Arc::new(Planned(settings.name.clone()))),
        Provider::Replay => connect(settings),
    }
}

/// A model that is only planned with.
struct Planned(String);

impl Model for Planned {
    fn name(&self) -> &str {
        &self.0
    }

    fn ask<'a>(&'a self, _: &'a Prompt) -> Asking<'a> {
        Box::pin(std::future::ready(Err(ModelError::NoAnswer("a plan asks nothing".to_owned()))))
    }
}

/// Asks, and asks again when the trouble may pass: exponential pauses with
/// jitter, or as long as the endpoint says. `stopping` becoming true ends a
/// pause and the trying; a request under way is waited for.
///
/// # Errors
/// The last [`ModelError`].
pub async fn ask_patiently(
    model: &dyn Model,
    prompt: &Prompt,
    mut stopping: watch::Receiver<bool>,
) -> Result<Reply, ModelError> {
    let mut pauses = ExponentialBuilder::default()
        .with_min_delay(FIRST_PAUSE)
        .with_max_delay(LONGEST_PAUSE)
        .with_max_times(TRIES - 1)
        .with_jitter()
        .build();
    loop {
        let error = match model.ask(prompt).await {
            Err(error @ ModelError::Passing { .. }) => error,
            ended => return ended,
        };
        let Some(pause) = pauses.next() else { return Err(error) };
        let wait = match &error {
            ModelError::Passing { wait: Some(wait), .. } => pause.max(*wait),
            _ => pause,
        };
        tokio::select! {
            biased;
            Ok(_) = stopping.wait_for(|s| *s) => return Err(error),
            () = tokio::time::sleep(wait) => {}
        }
    }
}
