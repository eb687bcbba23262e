//! Models: the trait [`Model`], endpoints of several protocols, and recordings that answer offline.
//! All requests go through this crate.

pub mod batch;
pub mod budget;
mod choice;
pub mod dispatch;
pub mod embeddings;
pub mod endpoint;
mod file_body;
pub mod function;
pub mod generate;
mod media;
mod logprobs;
mod models;
pub mod plan;
mod prompt_cache;
mod protocols;
pub mod providers;
pub mod rate_headers;
pub mod replay;
pub mod reply;
mod request_features;
pub mod search;
mod setup;
mod stream;
mod transport;
mod usage_check;
mod wire;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use backon::{ExponentialBuilder, Retryable};
use tracing::debug;

use self::batch::BatchApi;
use self::budget::{Budget, BudgetExhausted};
pub use self::choice::{ExpansionModels, ModelChoice, choose_models};
use self::endpoint::Endpoint;
use self::generate::{HeldSlot, Slots};
pub use self::protocols::{find_profile, parse_batch_line, parse_completion};
pub use self::reply::{FailedCell, Reply, ReportedUsage};
pub use self::setup::SetupError;
pub use self::usage_check::{ImplausibleUsage, PlausibleTokens, UsageGate};
pub use hqdl_facts::WaitFuture;
pub use hqdl_facts::limits;
use hqdl_facts::limits::{MAX_PAUSE, PerMinute};
use hqdl_facts::{Facts, FactsError, Permit, RemainingWait, ReservationId, ReserveOutcome, RunId};
use hqdl_prompt::Prompt;
use hqdl_spec::{Format, Limits, PriceTable, Provider, Spec};
use hqdl_values::usage::SpentAmount;
pub use hqdl_values::usage::Tokens;

/// Maximum number of attempts per request.
pub(crate) const MAX_ATTEMPTS: usize = 6;
/// Upper bound of the first pause between attempts. The bound doubles with each attempt, and the
/// actual pause is random between zero and the bound (full jitter).
const FIRST_PAUSE: Duration = Duration::from_millis(400);
/// Longest pause between attempts, unless the endpoint asks for a longer one.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Maximum total pause time per request.
const RETRY_TIMEOUT: Duration = Duration::from_secs(10 * 60);

/// Error of a request.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ModelError {
    /// The endpoint rejects all requests like this one; the run must stop.
    #[error("{endpoint} answers {status}: {message}")]
    Refused {
        /// The model and the URL, or "the endpoint".
        endpoint: String,
        /// The HTTP status.
        status: u16,
        /// Message from the endpoint.
        message: String,
    },
    /// A temporary failure: a limit, an overload or a broken connection.
    #[error("{message}")]
    Temporary {
        /// Description of the failure.
        message: String,
        /// Pause that the endpoint requested; `None` if it requested none.
        wait: Option<Duration>,
        /// Whether the request may have been billed.
        in_doubt: bool,
    },
    /// The endpoint cannot be reached; nothing was sent.
    #[error("{message}")]
    NoConnection {
        /// Description of the failure.
        message: String,
        /// Advice for the user.
        hint: String,
        /// Whether retrying is pointless.
        is_permanent: bool,
    },
    /// The budget does not cover the request.
    #[error(transparent)]
    Budget(#[from] BudgetExhausted),
    /// The prompt is longer than the model's context.
    #[error("the prompt is too long for the model: {0}")]
    TooLong(String),
    /// The endpoint rejects the content of the request, but answers other requests.
    #[error("the endpoint's content filter rejected the request: {0}")]
    Filtered(String),
    /// The request timed out, or the reply exceeded the size limit. The request may have been
    /// billed. A request with fewer rows may succeed.
    #[error("{0}")]
    Unfinished(String),
    /// The endpoint reports implausible usage.
    #[error(transparent)]
    Usage(#[from] ImplausibleUsage),
    /// The prompt contains a medium, but the model or the API accepts none of this kind.
    #[error("{model} does not accept {media}: {message}")]
    NoMedia {
        /// Name of the model.
        model: String,
        /// Plural of the kind, such as `images`.
        media: &'static str,
        /// Message from the endpoint, or the reason.
        message: String,
    },
    /// This request cannot be answered, but others may be.
    #[error("{0}")]
    NoAnswer(String),
}

/// Future of a reply.
pub type ReplyFuture<'a> = Pin<Box<dyn Future<Output = Result<Reply, ModelError>> + Send + 'a>>;

/// Future that completes with a permit, or with `None` if there are no limits.
pub type PermitFuture<'a> = Pin<Box<dyn Future<Output = Option<Permit>> + Send + 'a>>;

/// A model that answers prompts.
pub trait Model: Send + Sync {
    /// Returns the name under which the model's facts are stored. For recordings, the name includes
    /// a hash of their content.
    fn name(&self) -> &str;

    /// Waits until the rate limits allow a request with this prompt.
    fn acquire_permit<'a>(&'a self, _: &'a Prompt) -> PermitFuture<'a> {
        Box::pin(std::future::ready(None))
    }

    /// Returns why the first waiting request cannot be sent yet; `None` if nothing delays it.
    fn remaining_wait(&self) -> WaitFuture<'_> {
        Box::pin(std::future::ready(None))
    }

    /// Sends a prompt, without retries.
    fn send_prompt<'a>(&'a self, prompt: &'a Prompt) -> ReplyFuture<'a>;

    /// Returns the maximum number of rows that the model answers per request; `None` if there is no
    /// limit.
    fn max_rows(&self) -> Option<u32> {
        None
    }

    /// Returns whether a request has [`Self::max_rows`] rows, whatever the expansion's setting.
    fn fixes_row_count(&self) -> bool {
        false
    }

    /// Returns whether the same prompt always gets the same reply, so that retrying is pointless.
    fn is_deterministic(&self) -> bool {
        false
    }

    /// Returns whether the model always answers all columns of a row, even if only some are
    /// requested.
    fn answers_whole_rows(&self) -> bool {
        false
    }

    /// Returns whether the model looks up answers by the hash of the prompt.
    fn looks_up_by_prompt(&self) -> bool {
        false
    }

    /// Returns the model's Batch API, if it has one.
    fn batch_api(&self) -> Option<Box<dyn BatchApi + '_>> {
        None
    }

    /// Returns whether the model's answers are billed; recorded answers are not.
    fn is_billed(&self) -> bool {
        false
    }

    /// Returns the gate that delays requests until the endpoint has reported plausible usage;
    /// `None` if usage is not reported.
    fn usage_gate(&self) -> Option<&UsageGate> {
        None
    }

    /// Records whether the usage that the endpoint reported was plausible.
    fn record_usage(&self, _is_plausible: bool) {}

    /// Returns the warnings for the user since the last call, and clears them.
    fn take_warnings(&self) -> Vec<String> {
        Vec::new()
    }

    /// Returns the answer format that suits the model best.
    fn answer_format(&self) -> Format {
        Format::Json
    }

    /// Returns another model of the spec by its name in the spec.
    fn find_named_model(&self, _: &str) -> Option<Arc<dyn Model>> {
        None
    }
}

/// Connects to the models of a spec, with rate limits that are shared by all users of these facts.
///
/// # Errors
/// [`SetupError`] if the API key or the recordings are missing.
pub fn connect_with_shared_limits(
    spec: &Spec,
    facts: &Facts,
) -> Result<Arc<dyn Model>, SetupError> {
    models::connect_all_models(spec, &|spec| match spec.model.provider {
        Provider::Replay => open_recordings(spec),
        _ => {
            let (limits, per) = (to_per_minute(&spec.limits), spec.limits.per);
            Ok(Arc::new(Endpoint::with_shared_limits(&spec.model, limits, per, facts)?))
        }
    })
}

fn to_per_minute(limits: &Limits) -> PerMinute {
    PerMinute { requests: limits.requests_per_minute, tokens: limits.tokens_per_minute }
}

/// Returns the endpoint of a spec for writing request files. The endpoint sends nothing, so it
/// needs no API key.
///
/// # Errors
/// [`SetupError`] if the base URL is invalid or the HTTP client cannot be created.
pub fn connect_for_export(spec: &Spec) -> Result<Arc<dyn Model>, SetupError> {
    Ok(Arc::new(Endpoint::without_key(&spec.model)?))
}

fn open_recordings(spec: &Spec) -> Result<Arc<dyn Model>, SetupError> {
    let mut recordings = replay::Recordings::open(&spec.model.name, &spec.model.recordings)?;
    for column in spec.expansions.iter().flat_map(|e| &e.columns) {
        column
            .bindings
            .iter()
            .filter(|b| b.sql.is_none())
            .for_each(|b| recordings.map_question(&b.ask, &column.name));
    }
    Ok(Arc::new(recordings))
}

/// Returns the models of a spec for planning, which needs no API key. Recordings answer requests as
/// usual; requests to any other model fail.
///
/// # Errors
/// [`SetupError`] if recordings cannot be read.
pub fn connect_for_planning(spec: &Spec) -> Result<Arc<dyn Model>, SetupError> {
    models::connect_all_models(spec, &|spec| match spec.model.provider {
        Provider::Replay => open_recordings(spec),
        _ => Ok(Arc::new(PlanOnlyModel(spec.model.name.clone()))),
    })
}

/// A model used only for planning. It answers no requests.
struct PlanOnlyModel(String);

impl Model for PlanOnlyModel {
    fn name(&self) -> &str {
        &self.0
    }

    fn send_prompt<'a>(&'a self, _: &'a Prompt) -> ReplyFuture<'a> {
        Box::pin(std::future::ready(Err(ModelError::NoAnswer("a plan asks nothing".to_owned()))))
    }
}

/// Retries temporary failures after exponential pauses with full jitter, or after the pause that
/// the endpoint requests.
async fn retry_with_backoff<T, E: RetryableError, F>(
    max_attempts: usize,
    attempt: impl FnMut() -> F,
) -> Result<T, E>
where
    F: Future<Output = Result<T, E>>,
{
    let pauses = ExponentialBuilder::default()
        .with_min_delay(FIRST_PAUSE)
        .with_max_delay(LONGEST_PAUSE)
        .with_max_times(max_attempts.saturating_sub(1))
        .with_total_delay(Some(RETRY_TIMEOUT));
    attempt
        .retry(pauses)
        .when(|e| match e.model_error() {
            Some(ModelError::NoConnection { is_permanent, .. }) => !is_permanent,
            other => matches!(other, Some(ModelError::Temporary { .. })),
        })
        .adjust(|error, pause| {
            let jitter = fastrand::f64();
            match error.model_error() {
                Some(ModelError::Temporary { wait: Some(wait), .. }) => {
                    pause.map(|_| (*wait).min(MAX_PAUSE) + FIRST_PAUSE.mul_f64(jitter))
                }
                _ => pause.map(|p| p.mul_f64(jitter)),
            }
        })
        .notify(|error, pause| debug!(%error, ?pause, "will be tried again"))
        .await
}

/// An error that may contain an endpoint's error.
trait RetryableError: std::fmt::Display {
    /// Returns the endpoint's error, if this error contains one.
    fn model_error(&self) -> Option<&ModelError>;
}

impl RetryableError for ModelError {
    fn model_error(&self) -> Option<&ModelError> {
        Some(self)
    }
}

impl RetryableError for RequestError {
    fn model_error(&self) -> Option<&ModelError> {
        match self {
            Self::Model(error) => Some(error),
            Self::Facts(_) | Self::Unsent => None,
        }
    }
}

/// A request that is retried while its failures are temporary, with exponential pauses and full
/// jitter, or after the pause that the endpoint requests. Every attempt is charged: its worst-case
/// cost is reserved before it is sent and settled afterwards.
pub struct RetryingRequest<'a> {
    /// Model that the request is sent to.
    pub model: &'a dyn Model,
    /// Prompt of the request.
    pub prompt: &'a Prompt,
    /// Budget that the request counts against.
    pub budget: &'a Budget,
    /// Price of the model.
    pub price: Option<&'a PriceTable>,
    /// Counts the tokens of a reply whose usage the endpoint did not report.
    pub count_tokens: &'a (dyn Fn(&Reply) -> Tokens + Sync),
    /// Returns the plausible token range of a reply.
    pub plausible_tokens: &'a (dyn Fn(&Reply) -> PlausibleTokens + Sync),
    /// Whether the endpoint is processing the request now; initially false.
    pub on_wire: AtomicBool,
    /// Maximum number of attempts.
    pub max_attempts: usize,
    /// Number of attempts so far; initially 0.
    pub attempts: AtomicU32,
    /// Returns whether an incomplete reply contains answers worth keeping.
    pub has_answers: &'a (dyn Fn(&Reply) -> bool + Sync),
    /// Slots of the endpoint; the request holds one while the endpoint processes it.
    pub slots: Option<&'a Slots>,
    /// Ledger that records the worst-case cost; `None` for free models.
    pub ledger: Option<Ledger<'a>>,
    /// Callback that reports a wait: called every 5 s while the request waits for the endpoint or a
    /// limit, and before a longer pause.
    pub report_wait: &'a (dyn Fn(RemainingWait) + Sync),
}

/// Duration above which a wait is reported to the user.
pub(crate) const REPORTED_WAIT: Duration = Duration::from_secs(5);

/// Ledger of a run, which stores the worst-case cost of the run's requests.
#[derive(Clone, Copy)]
pub struct Ledger<'a> {
    /// Fact store that contains the ledger.
    pub facts: &'a Facts,
    /// Run that sends the requests.
    pub run: RunId,
}

/// Error of a [`RetryingRequest`].
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The model returned no reply.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The worst-case cost could not be stored, so nothing was sent.
    #[error(transparent)]
    Facts(#[from] FactsError),
    /// The run is ending, so nothing was sent.
    #[error("not sent, because the run ended")]
    Unsent,
}

impl From<BudgetExhausted> for RequestError {
    fn from(exhausted: BudgetExhausted) -> Self {
        Self::Model(exhausted.into())
    }
}

impl RetryingRequest<'_> {
    /// Runs the request with retries. Returns the reply with its tokens, and the id of its
    /// reservation. An incomplete reply may have been billed: its tokens are 0, and its reservation
    /// is kept.
    ///
    /// # Errors
    /// Fails with the error of the last attempt if no attempt succeeds.
    pub async fn run_with_retries(&self) -> Result<(Reply, Option<ReservationId>), RequestError> {
        retry_with_backoff(self.max_attempts, || self.run_once()).await
    }

    /// Runs one attempt.
    ///
    /// # Errors
    /// [`RequestError`] if the model returns no reply, or if the cost cannot be reserved.
    pub async fn run_once(&self) -> Result<(Reply, Option<ReservationId>), RequestError> {
        let (input, output) = (self.prompt.input_tokens, self.prompt.max_output);
        let worst_case = self.prompt.worst_case(self.price);
        let attempt = self.attempts.fetch_add(1, Ordering::Relaxed) + 1;
        let began = Instant::now();
        // Wait before anything is reserved.
        let usage_gate =
            self.model.usage_gate().filter(|_| self.price.is_some_and(PriceTable::is_billed));
        let turn = match usage_gate {
            Some(usage_gate) => usage_gate.wait_for_turn().await,
            None => None,
        };
        let reservation = self.budget.reserve_cost(worst_case).await?;
        let (permit, reservation_id, slot) = self.prepare_to_send(worst_case).await?;
        debug!(attempt, waited = ?began.elapsed(), input, max_output = output, "sent");
        let began = Instant::now();
        permit.iter().for_each(Permit::mark_sent);
        let mut outcome = self.model.send_prompt(self.prompt).await;
        drop(slot);
        if let Ok(Reply { broken: Some(error), .. }) = &outcome
            && let error = (**error).clone()
            && !outcome.as_ref().is_ok_and(self.has_answers)
        {
            outcome = Err(error);
        }
        let elapsed = began.elapsed();
        let result = match outcome {
            Ok(mut reply) if reply.broken.is_some() => {
                debug!(attempt, ?elapsed, "broke off");
                reservation.settle_in_doubt();
                permit.into_iter().for_each(|a| a.reconcile_usage(worst_case.tokens));
                if let (Some(ledger), Some(reservation_id)) = (self.ledger, reservation_id) {
                    ledger.facts.finish_reservation(reservation_id, true).await?;
                }
                reply.tokens = Some(Tokens::default());
                Ok((reply, None))
            }
            Ok(mut reply) => {
                let tokens = reply.resolve_tokens(self.count_tokens, self.plausible_tokens);
                if usage_gate.is_some() {
                    self.check_usage_report(&reply, tokens, worst_case);
                }
                let spent = SpentAmount::from_tokens(
                    tokens,
                    reply.compute_billed_price(self.price).as_ref(),
                );
                debug!(
                    attempt,
                    ?elapsed,
                    input = tokens.input,
                    cached_input = tokens.cached_input,
                    cache_write = tokens.cache_write,
                    output = tokens.output,
                    usd = spent.usd,
                    "answered"
                );
                reservation.settle(spent);
                permit.into_iter().for_each(|a| a.reconcile_usage(spent.tokens));
                Ok((reply, reservation_id))
            }
            Err(error) => {
                let in_doubt = matches!(
                    error,
                    ModelError::Temporary { in_doubt: true, .. } | ModelError::Unfinished(_)
                );
                debug!(attempt, ?elapsed, in_doubt, %error, "failed");
                if let ModelError::Temporary { wait: Some(wait), .. } = &error
                    && *wait > REPORTED_WAIT
                {
                    (self.report_wait)(RemainingWait::Pause(*wait));
                }
                if in_doubt {
                    reservation.settle_in_doubt();
                }
                // A failed request also counts against the rate limits; most endpoints count only
                // its input.
                let used = if in_doubt { worst_case.tokens } else { input };
                permit.into_iter().for_each(|a| a.reconcile_usage(used));
                if let (Some(ledger), Some(reservation_id)) = (self.ledger, reservation_id) {
                    ledger.facts.finish_reservation(reservation_id, in_doubt).await?;
                }
                Err(error.into())
            }
        };
        self.on_wire.store(false, Ordering::Relaxed);
        drop(turn);
        result
    }

    /// Records whether the reported usage is plausible. If not, no more requests are sent, and the
    /// run stops once the answer is stored.
    fn check_usage_report(&self, reply: &Reply, tokens: Tokens, worst_case: SpentAmount) {
        let is_above = (self.plausible_tokens)(reply).is_counted
            && ImplausibleUsage::check_reservation(tokens, worst_case, self.price).is_some();
        let is_plausible = reply.implausible.is_none() && !is_above;
        self.model.record_usage(is_plausible);
        if let Some(slots) = self.slots.filter(|_| !is_plausible) {
            slots.close();
        }
    }

    /// Acquires a permit and a slot, and reserves the worst-case cost. After the reservation, the
    /// request is either sent or its reservation is released, so it counts as on the wire from then
    /// on.
    async fn prepare_to_send(
        &self,
        worst_case: SpentAmount,
    ) -> Result<(Option<Permit>, Option<ReservationId>, Option<HeldSlot<'_>>), RequestError> {
        loop {
            let since = Instant::now();
            let (permit, reservation_id) = self.acquire_and_reserve(worst_case).await?;
            self.on_wire.store(true, Ordering::Relaxed);
            let Some(slots) = self.slots else { return Ok((permit, reservation_id, None)) };
            let turn = Instant::now();
            let slot = slots.acquire_slot().await;
            // A permit counts for a minute after it was granted. A session that was disconnected
            // for longer than its lease has lost its reservations.
            let is_current = turn.elapsed() < limits::MINUTE / 2
                && self.ledger.is_none_or(|ledger| ledger.facts.has_kept_session_since(since));
            let closed = slot.is_none();
            if let Some(slot) = slot.filter(|_| is_current) {
                return Ok((permit, reservation_id, Some(slot)));
            }
            drop(permit);
            if let (Some(ledger), Some(reservation_id)) = (self.ledger, reservation_id) {
                ledger.facts.finish_reservation(reservation_id, false).await?;
            }
            self.on_wire.store(false, Ordering::Relaxed);
            if closed {
                return Err(RequestError::Unsent);
            }
        }
    }

    /// Waits for a permit, and reports the reason if the wait is long.
    async fn wait_for_permit(&self) -> Option<Permit> {
        let mut permit_future = self.model.acquire_permit(self.prompt);
        loop {
            if let Ok(permit) = tokio::time::timeout(REPORTED_WAIT, &mut permit_future).await {
                return permit;
            }
            if let Some(wait) = self.model.remaining_wait().await {
                (self.report_wait)(wait);
            }
        }
    }

    /// Waits for a permit and reserves the worst-case cost.
    async fn acquire_and_reserve(
        &self,
        worst_case: SpentAmount,
    ) -> Result<(Option<Permit>, Option<ReservationId>), RequestError> {
        loop {
            let permit = self.wait_for_permit().await;
            let Some(ledger) = self.ledger else { return Ok((permit, None)) };
            let limiter_key = permit.as_ref().map(|a| a.limiter_key().clone());
            let reserved = ledger.facts.reserve_cost(
                ledger.run,
                worst_case,
                self.budget.daily_budget(),
                limiter_key,
            );
            match reserved.await? {
                ReserveOutcome::Reserved(reservation_id) => {
                    return Ok((permit, Some(reservation_id)));
                }
                ReserveOutcome::Retry => {}
                // The run has ended, so nothing waits for this request any more.
                ReserveOutcome::RunEnded => {
                    return Err(ModelError::NoAnswer("its run has ended".into()).into());
                }
                ReserveOutcome::BudgetExceeded(spent_usd) => {
                    return Err(self.budget.daily_budget_error(spent_usd, worst_case).into());
                }
            }
        }
    }
}
