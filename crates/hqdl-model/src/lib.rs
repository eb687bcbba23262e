//! Who is asked: the trait [`Model`], an OpenAI-compatible endpoint, and
//! recordings that answer offline. All answers take the same way from here.

pub mod batch;
pub mod budget;
mod choice;
pub mod dispatch;
pub mod embeddings;
pub mod generate;
mod images;
mod models;
pub mod openai;
pub mod plan;
mod prompt_cache;
pub mod providers;
pub mod replay;
pub mod reply;
mod request_form;
mod setup;
mod stream;
mod tls;
mod usage_check;
mod wire;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use backon::{ExponentialBuilder, Retryable};
use tracing::debug;

use self::budget::{Budget, Reached};
pub use self::choice::{ModelChoice, choose};
use self::generate::{HeldSlot, Slots};
pub use self::reply::{Reply, SaidTokens};
pub use self::setup::SetupError;
pub use self::usage_check::{ImplausibleUsage, PlausibleTokens, UsageGate};
pub use hqdl_facts::RemainingPause;
pub use hqdl_facts::limits;
use hqdl_facts::limits::{LONGEST_WAIT, PerMinute};
use hqdl_facts::{Admitted, Facts, FactsError, Noted, ReservationId, RunId};
use hqdl_prompt::Prompt;
use hqdl_spec::{Format, Limits, PriceTable, Provider, Spec};
use hqdl_values::usage::Spent;
pub use hqdl_values::usage::Tokens;

/// How often a request is tried in all.
pub(crate) const TRIES: usize = 6;
/// The first pause between tries; it doubles, and chance shortens it.
const FIRST_PAUSE: Duration = Duration::from_millis(400);
/// The longest pause, unless the endpoint asks for a longer one.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// All pauses of a request together.
const PATIENCE: Duration = Duration::from_secs(10 * 60);

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
        /// Whether it may have been billed all the same.
        in_doubt: bool,
    },
    /// The endpoint cannot be reached, so nothing was sent.
    #[error("{message}")]
    NoConnection {
        /// What happened.
        message: String,
        /// What to do about it.
        hint: String,
        /// Whether it will not pass by waiting.
        lasting: bool,
    },
    /// The budget does not cover the request.
    #[error(transparent)]
    Budget(#[from] Reached),
    /// The prompt is longer than the model's context.
    #[error("the prompt is too long for the model: {0}")]
    TooLong(String),
    /// The endpoint refuses what the request holds; it answers others.
    #[error("the endpoint's content filter rejected the request: {0}")]
    Filtered(String),
    /// It was not answered in time, or with more than is read; it may have been
    /// billed, and fewer rows may be answered.
    #[error("{0}")]
    Unfinished(String),
    /// The endpoint reports a usage that cannot be true.
    #[error(transparent)]
    Usage(#[from] ImplausibleUsage),
    /// The model takes no images, and was to be shown one.
    #[error("{model} does not accept images: {message}")]
    NoImages {
        /// The model's name.
        model: String,
        /// What its endpoint says.
        message: String,
    },
    /// This request cannot be answered, others may.
    #[error("{0}")]
    NoAnswer(String),
}

/// A reply to come.
pub type ReplyFuture<'a> = Pin<Box<dyn Future<Output = Result<Reply, ModelError>> + Send + 'a>>;

/// The turn of a request to come; `None` where there are no limits.
pub type Admitting<'a> = Pin<Box<dyn Future<Output = Option<Admitted>> + Send + 'a>>;

/// Something that answers prompts.
pub trait Model: Send + Sync {
    /// What facts are kept under: the name, and for recordings which ones.
    fn name(&self) -> &str;

    /// Waits until a prompt may be sent, under the limits.
    fn admit<'a>(&'a self, _: &'a Prompt) -> Admitting<'a> {
        Box::pin(std::future::ready(None))
    }

    /// Returns for how long the endpoint still wants to be left alone.
    fn remaining_pause(&self) -> RemainingPause<'_> {
        Box::pin(std::future::ready(None))
    }

    /// Sends one prompt, once.
    fn ask<'a>(&'a self, prompt: &'a Prompt) -> ReplyFuture<'a>;

    /// The most rows it answers in one request.
    fn rows_at_most(&self) -> Option<u32> {
        None
    }

    /// Whether the same prompt always gets the same reply, so that asking
    /// again is of no use.
    fn repeats_itself(&self) -> bool {
        false
    }

    /// Whether it always answers with all columns of a row, whichever are asked
    /// for.
    fn answers_whole_rows(&self) -> bool {
        false
    }

    /// Whether it finds its answers by the hash of a prompt.
    fn finds_by_prompt(&self) -> bool {
        false
    }

    /// Where it takes batches, when it does.
    fn batches(&self) -> Option<&openai::Endpoint> {
        None
    }

    /// Whether its answers are paid for when they are asked: not those of
    /// recordings.
    fn bills(&self) -> bool {
        false
    }

    /// Holds back requests until the endpoint has reported plausible usage; `None` where usage is
    /// not reported.
    fn usage_gate(&self) -> Option<&UsageGate> {
        None
    }

    /// Notes whether the usage that the endpoint reported was plausible.
    fn note_usage(&self, _is_plausible: bool) {}

    /// What was learnt of it since this was last asked, for the user to know.
    fn remarks(&self) -> Vec<String> {
        Vec::new()
    }

    /// The format it answers best in.
    fn format(&self) -> Format {
        Format::Json
    }

    /// Another of the spec's models, by the name it has there.
    fn other(&self, _: &str) -> Option<Arc<dyn Model>> {
        None
    }
}

/// The models that the settings name.
///
/// # Errors
/// [`SetupError`] when its key or its recordings are missing.
pub fn connect(spec: &Spec) -> Result<Arc<dyn Model>, SetupError> {
    models::all(spec, &|spec| match spec.model.provider {
        Provider::Openai => {
            Ok(Arc::new(openai::Endpoint::new(&spec.model, per_minute(&spec.limits))?))
        }
        Provider::Replay => recordings(spec),
    })
}

/// The models that the settings name, asked under limits that are shared by all
/// who ask them with these facts.
///
/// # Errors
/// [`SetupError`] when its key or its recordings are missing.
pub fn connect_with(spec: &Spec, facts: &Facts) -> Result<Arc<dyn Model>, SetupError> {
    models::all(spec, &|spec| match spec.model.provider {
        Provider::Openai => {
            let limits = per_minute(&spec.limits);
            Ok(Arc::new(openai::Endpoint::shared(&spec.model, limits, spec.limits.per, facts)?))
        }
        Provider::Replay => recordings(spec),
    })
}

fn per_minute(limits: &Limits) -> PerMinute {
    PerMinute { requests: limits.requests_per_minute, tokens: limits.tokens_per_minute }
}

/// The endpoint that the settings name, to write requests for and not to send
/// any: its key is not needed.
///
/// # Errors
/// [`SetupError::Client`].
pub fn for_files(spec: &Spec) -> Result<Arc<dyn Model>, SetupError> {
    Ok(Arc::new(openai::Endpoint::without_a_key(&spec.model)?))
}

fn recordings(spec: &Spec) -> Result<Arc<dyn Model>, SetupError> {
    let mut recordings = replay::Recordings::open(&spec.model.name, &spec.model.recordings)?;
    for column in spec.expansions.iter().flat_map(|e| &e.columns) {
        column
            .bindings
            .iter()
            .filter(|b| b.sql.is_none())
            .for_each(|b| recordings.means(&b.ask, &column.name));
    }
    Ok(Arc::new(recordings))
}

/// The models that the settings name, for plans: their names and habits, without
/// a key. Asking them is an error.
///
/// # Errors
/// [`SetupError`] when recordings cannot be read.
pub fn for_planning(spec: &Spec) -> Result<Arc<dyn Model>, SetupError> {
    models::all(spec, &|spec| match spec.model.provider {
        Provider::Openai => Ok(Arc::new(Planned(spec.model.name.clone()))),
        Provider::Replay => recordings(spec),
    })
}

/// A model that is only planned with.
struct Planned(String);

impl Model for Planned {
    fn name(&self) -> &str {
        &self.0
    }

    fn ask<'a>(&'a self, _: &'a Prompt) -> ReplyFuture<'a> {
        Box::pin(std::future::ready(Err(ModelError::NoAnswer("a plan asks nothing".to_owned()))))
    }
}

/// Tries again what failed in a way that may pass, with exponential pauses and
/// full jitter, or as long as the endpoint says.
async fn persistently<T, E: EndpointTrouble, F>(
    tries: usize,
    attempt: impl FnMut() -> F,
) -> Result<T, E>
where
    F: Future<Output = Result<T, E>>,
{
    let pauses = ExponentialBuilder::default()
        .with_min_delay(FIRST_PAUSE)
        .with_max_delay(LONGEST_PAUSE)
        .with_max_times(tries.saturating_sub(1))
        .with_total_delay(Some(PATIENCE));
    attempt
        .retry(pauses)
        .when(|e| match e.model_error() {
            Some(ModelError::NoConnection { lasting, .. }) => !lasting,
            other => matches!(other, Some(ModelError::Passing { .. })),
        })
        .adjust(|error, pause| {
            let chance = fastrand::f64();
            match error.model_error() {
                Some(ModelError::Passing { wait: Some(wait), .. }) => {
                    pause.map(|_| (*wait).min(LONGEST_WAIT) + FIRST_PAUSE.mul_f64(chance))
                }
                _ => pause.map(|p| p.mul_f64(chance)),
            }
        })
        .notify(|error, pause| debug!(%error, ?pause, "will be tried again"))
        .await
}

/// What may have gone wrong with the endpoint, or else.
trait EndpointTrouble: std::fmt::Display {
    /// What the endpoint did, when it was that.
    fn model_error(&self) -> Option<&ModelError>;
}

impl EndpointTrouble for ModelError {
    fn model_error(&self) -> Option<&ModelError> {
        Some(self)
    }
}

impl EndpointTrouble for RequestError {
    fn model_error(&self) -> Option<&ModelError> {
        match self {
            Self::Model(error) => Some(error),
            Self::Facts(_) | Self::Unsent => None,
        }
    }
}

/// One prompt on its way to an answer: asked, and asked again when the trouble
/// may pass, with exponential pauses and full jitter, or as long as the endpoint
/// says. Every try pays: its worst case is reserved before it leaves and settled
/// after.
pub struct RetryingRequest<'a> {
    /// Who is asked.
    pub model: &'a dyn Model,
    /// What is asked.
    pub prompt: &'a Prompt,
    /// What may be spent.
    pub budget: &'a Budget,
    /// At which price.
    pub price: Option<&'a PriceTable>,
    /// Counts the tokens of a reply whose endpoint does not say.
    pub count: &'a (dyn Fn(&Reply) -> Tokens + Sync),
    /// The tokens that a reply can plausibly have taken.
    pub plausible: &'a (dyn Fn(&Reply) -> PlausibleTokens + Sync),
    /// Whether the request is with the endpoint now; starts as false.
    pub on_wire: AtomicBool,
    /// How often it may be tried in all.
    pub most_tries: usize,
    /// How often it was tried; starts at 0.
    pub tries: AtomicU32,
    /// Whether a reply that broke off holds anything to keep.
    pub holds: &'a (dyn Fn(&Reply) -> bool + Sync),
    /// What it takes one of while it is with the endpoint.
    pub slots: Option<&'a Slots>,
    /// Where what it may cost is noted, for a model that bills.
    pub ledger: Option<Ledger<'a>>,
    /// Told for how long the endpoint wants to be left alone, if the request waits for more than
    /// 5 s.
    pub tell_pause: &'a (dyn Fn(Duration) + Sync),
}

/// A wait that a user is told of.
const LONG_WAIT: Duration = Duration::from_secs(5);

/// Where a run notes what its requests may cost.
#[derive(Clone, Copy)]
pub struct Ledger<'a> {
    /// Who writes.
    pub facts: &'a Facts,
    /// The run.
    pub run: RunId,
}

/// Why an errand brought nothing.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// There is no reply.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// What it may cost cannot be noted, so nothing was sent.
    #[error(transparent)]
    Facts(#[from] FactsError),
    /// Nothing more is to be sent.
    #[error("not sent, because the run ended")]
    Unsent,
}

impl From<Reached> for RequestError {
    fn from(reached: Reached) -> Self {
        Self::Model(reached.into())
    }
}

impl RetryingRequest<'_> {
    /// Runs the errand; a reply comes with its tokens, and with the note of what
    /// was reserved for it. What a reply cost that broke off is in doubt: its tokens
    /// are none, and its note stands.
    ///
    /// # Errors
    /// The last trouble there was.
    pub async fn run(&self) -> Result<(Reply, Option<ReservationId>), RequestError> {
        persistently(self.most_tries, || self.once()).await
    }

    /// Tries once.
    ///
    /// # Errors
    /// What went wrong.
    pub async fn once(&self) -> Result<(Reply, Option<ReservationId>), RequestError> {
        let (input, output) = (self.prompt.input_tokens, self.prompt.max_output);
        let worst = Spent::worst(input, output, self.price);
        let attempt = self.tries.fetch_add(1, Ordering::Relaxed) + 1;
        let began = Instant::now();
        // Whoever waits here has reserved nothing yet.
        let gate = self.model.usage_gate().filter(|_| self.price.is_some_and(PriceTable::bills));
        let turn = match gate {
            Some(gate) => gate.enter().await,
            None => None,
        };
        let reservation = self.budget.reserve(worst).await?;
        let (admitted, note, slot) = self.prepare(worst).await?;
        debug!(attempt, waited = ?began.elapsed(), input, max_output = output, "sent");
        let began = Instant::now();
        admitted.iter().for_each(Admitted::sent);
        let mut asked = self.model.ask(self.prompt).await;
        drop(slot);
        if let Ok(Reply { broken: Some(error), .. }) = &asked
            && let error = (**error).clone()
            && !asked.as_ref().is_ok_and(self.holds)
        {
            asked = Err(error);
        }
        let took = began.elapsed();
        let settled = match asked {
            Ok(mut reply) if reply.broken.is_some() => {
                debug!(attempt, ?took, "broke off");
                reservation.settle_in_doubt();
                admitted.into_iter().for_each(|a| a.settle(worst.tokens));
                if let (Some(ledger), Some(note)) = (self.ledger, note) {
                    ledger.facts.settle(note, true).await?;
                }
                reply.tokens = Some(Tokens::default());
                Ok((reply, None))
            }
            Ok(mut reply) => {
                let tokens = reply.settle(self.count, self.plausible);
                if gate.is_some() {
                    self.check_report(&reply, tokens, worst);
                }
                let spent = Spent::of(tokens, reply.price(self.price).as_ref());
                debug!(
                    attempt,
                    ?took,
                    input = tokens.input,
                    cached_input = tokens.cached_input,
                    cache_write = tokens.cache_write,
                    output = tokens.output,
                    usd = spent.usd,
                    "answered"
                );
                reservation.settle(spent);
                admitted.into_iter().for_each(|a| a.settle(spent.tokens));
                Ok((reply, note))
            }
            Err(error) => {
                let in_doubt = matches!(
                    error,
                    ModelError::Passing { in_doubt: true, .. } | ModelError::Unfinished(_)
                );
                debug!(attempt, ?took, in_doubt, %error, "failed");
                if let ModelError::Passing { wait: Some(wait), .. } = &error
                    && *wait > LONG_WAIT
                {
                    (self.tell_pause)((*wait).min(LONGEST_WAIT));
                }
                if in_doubt {
                    reservation.settle_in_doubt();
                }
                // A request that failed counts, too; most count its words alone.
                let used = if in_doubt { worst.tokens } else { input };
                admitted.into_iter().for_each(|a| a.settle(used));
                if let (Some(ledger), Some(note)) = (self.ledger, note) {
                    ledger.facts.settle(note, in_doubt).await?;
                }
                Err(error.into())
            }
        };
        self.on_wire.store(false, Ordering::Relaxed);
        drop(turn);
        settled
    }

    /// Notes whether the reported usage is plausible. If not, nothing more is sent: the run stops
    /// once the answer is kept.
    fn check_report(&self, reply: &Reply, tokens: Tokens, worst: Spent) {
        let is_above = (self.plausible)(reply).is_counted
            && ImplausibleUsage::above(tokens, worst, self.price).is_some();
        let is_plausible = reply.implausible.is_none() && !is_above;
        self.model.note_usage(is_plausible);
        if let Some(slots) = self.slots.filter(|_| !is_plausible) {
            slots.close();
        }
    }

    /// Makes the request ready to leave: it has its turn and its slot, and is noted. What
    /// is noted is sent or taken back, so from then on it counts as on the wire.
    async fn prepare(
        &self,
        worst: Spent,
    ) -> Result<(Option<Admitted>, Option<ReservationId>, Option<HeldSlot<'_>>), RequestError> {
        loop {
            let since = Instant::now();
            let (admitted, note) = self.admit(worst).await?;
            self.on_wire.store(true, Ordering::Relaxed);
            let Some(slots) = self.slots else { return Ok((admitted, note, None)) };
            let turn = Instant::now();
            let slot = slots.take().await;
            // Limits count a request for a minute from its turn on; and who was away for
            // longer than a lease holds nothing any more.
            let lasts = turn.elapsed() < limits::MINUTE / 2
                && self.ledger.is_none_or(|ledger| ledger.facts.held_since(since));
            let closed = slot.is_none();
            if let Some(slot) = slot.filter(|_| lasts) {
                return Ok((admitted, note, Some(slot)));
            }
            drop(admitted);
            if let (Some(ledger), Some(note)) = (self.ledger, note) {
                ledger.facts.settle(note, false).await?;
            }
            self.on_wire.store(false, Ordering::Relaxed);
            if closed {
                return Err(RequestError::Unsent);
            }
        }
    }

    /// Waits for the turn of the request, and says so if it takes long.
    async fn await_admission(&self) -> Option<Admitted> {
        let mut admission = self.model.admit(self.prompt);
        if let Ok(admitted) = tokio::time::timeout(LONG_WAIT, &mut admission).await {
            return admitted;
        }
        if let Some(pause) = self.model.remaining_pause().await {
            (self.tell_pause)(pause);
        }
        admission.await
    }

    /// Waits for the turn of the request, and notes what it may cost.
    async fn admit(
        &self,
        worst: Spent,
    ) -> Result<(Option<Admitted>, Option<ReservationId>), RequestError> {
        loop {
            let admitted = self.await_admission().await;
            let Some(ledger) = self.ledger else { return Ok((admitted, None)) };
            let place = admitted.as_ref().map(|a| a.place().clone());
            let noted = ledger.facts.reserve(ledger.run, worst, self.budget.of_day(), place);
            match noted.await? {
                Noted::Note(note) => return Ok((admitted, Some(note))),
                Noted::Again => {}
                // Nobody waits for it any more.
                Noted::Ended => {
                    return Err(ModelError::NoAnswer("its run has ended".into()).into());
                }
                Noted::Beyond(gone) => return Err(self.budget.beyond(gone, worst).into()),
            }
        }
    }
}
