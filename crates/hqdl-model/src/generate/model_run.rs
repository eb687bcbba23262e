//! A model run: sends requests to fill tables, answer queries or create batch jobs. Its state for
//! one expansion is a [`super::Context`].

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Zoned};
use tokio::sync::watch;

use super::{CircuitBreaker, Event, Listener};
use crate::Model;
use crate::budget::Budget;
use crate::endpoint::estimate_permit_need;
use crate::plan::estimate_reasoning_tokens;
use hqdl_facts::limits::MAX_PAUSE;
use hqdl_facts::{Facts, FactsError, RemainingWait, RunId};
use hqdl_prompt::Prompt;
use hqdl_spec::Spec;
use hqdl_values::usage::Usage;

/// Pauses whose ends differ by less than this count as the same pause.
const SAME_PAUSE: Duration = Duration::from_secs(2);
/// Minimum interval between two reports of a wait for a minute limit.
const LIMIT_INTERVAL: Duration = Duration::from_secs(20);
/// Shortest wait for a minute limit that is reported to the user.
const SHORTEST_LIMIT_WAIT: Duration = Duration::from_secs(1);
/// Interval between reports about cells that other processes have claimed.
const CLAIM_INTERVAL: Duration = Duration::from_secs(60);

/// State shared by all requests of a run.
pub struct ModelRun {
    /// Id of the run in the history.
    pub id: RunId,
    /// Model that the requests are sent to.
    pub endpoint: Arc<dyn Model>,
    /// Budget of the run.
    pub budget: Arc<Budget>,
    /// Facts in which the answers are stored.
    pub facts: Facts,
    /// Event listener and usage.
    pub events: Events,
    /// Becomes true when the user interrupts the run.
    pub interrupt: watch::Receiver<bool>,
    /// Whether tokens must be counted before a request is sent, because of a limit or a budget.
    pub counts_tokens: bool,
    /// The spec's limit of tokens per minute.
    pub tokens_per_minute: Option<u32>,
    /// Whether the user has been warned that a request exceeds this limit.
    pub token_limit_warned: AtomicBool,
    /// Maximum number of requests in flight.
    pub concurrency: usize,
    /// Number of cells that this run found missing but another run answered first.
    pub answered_by_others: AtomicU64,
    /// Names of the models that reason before they answer. Their answers may use the whole output
    /// limit.
    pub reasoning_models: Vec<String>,
    /// Circuit breaker of the endpoint.
    pub circuit_breaker: CircuitBreaker,
    /// Waits that were last reported to the user.
    pub reported_waits: Mutex<ReportedWaits>,
}

/// Ends of the waits that were last reported to the user.
#[derive(Debug, Default)]
pub struct ReportedWaits {
    pause: Option<Instant>,
    minute_limit: Option<Instant>,
    claims: Option<Instant>,
}

/// Returns true, and stores `until`, if it is more than `interval` after the last reported wait.
fn record_new_wait(reported: &mut Option<Instant>, until: Instant, interval: Duration) -> bool {
    let is_new = reported.is_none_or(|last| until > last + interval);
    if is_new {
        *reported = Some(until);
    }
    is_new
}

/// Listener for a run's events, and the usage so far.
#[derive(Clone)]
pub struct Events {
    /// Callback for events.
    pub listener: Listener,
    /// Usage so far, of all expansions.
    pub usage: Arc<Mutex<Usage>>,
}

impl Events {
    /// Creates an `Events` with zero usage.
    #[must_use]
    pub fn new(listener: &Listener) -> Self {
        Self { listener: Arc::clone(listener), usage: Arc::default() }
    }

    /// Returns the usage so far.
    #[must_use]
    pub fn usage(&self) -> Usage {
        *self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ModelRun {
    /// Creates a run that asks the models of a spec and may spend what is left of the budget.
    ///
    /// # Errors
    /// [`FactsError`] if the spending cannot be read from the history.
    pub fn new(
        spec: &Spec,
        endpoint: Arc<dyn Model>,
        facts: &Facts,
        id: RunId,
        events: Events,
        interrupt: watch::Receiver<bool>,
    ) -> Result<Self, FactsError> {
        let budget = Arc::new(Budget::for_run(facts.history(), spec, id)?);
        Ok(Self {
            counts_tokens: budget.is_capped() || spec.limits.tokens_per_minute.is_some(),
            tokens_per_minute: spec.limits.tokens_per_minute,
            budget,
            concurrency: spec.limits.concurrency as usize,
            interrupt,
            reasoning_models: estimate_reasoning_tokens(facts.history(), spec)?
                .into_keys()
                .collect(),
            ..Self::for_answers(endpoint, facts, id, events)
        })
    }

    /// Creates a run that sends no requests: it parses the answers of batch jobs.
    #[must_use]
    pub fn for_answers(endpoint: Arc<dyn Model>, facts: &Facts, id: RunId, events: Events) -> Self {
        Self {
            reasoning_models: Vec::new(),
            id,
            endpoint,
            // The budget was checked when the batch job was packed.
            budget: Arc::default(),
            facts: facts.clone(),
            events,
            interrupt: watch::channel(false).1,
            // Another run may have a budget even if this one has none.
            counts_tokens: true,
            tokens_per_minute: None,
            token_limit_warned: false.into(),
            concurrency: 1,
            answered_by_others: AtomicU64::default(),
            circuit_breaker: CircuitBreaker::default(),
            reported_waits: Mutex::default(),
        }
    }

    /// Reports, once per wait, that the requests to a model are waiting.
    pub fn report_wait(&self, model: &str, wait: RemainingWait) {
        let (wait, reason, is_new) = {
            let mut reported = self.lock_reported_waits();
            match wait {
                RemainingWait::Pause(asked) => {
                    let wait = asked.min(MAX_PAUSE);
                    let until = Instant::now() + wait;
                    let is_new = record_new_wait(&mut reported.pause, until, SAME_PAUSE);
                    let reason = if asked > MAX_PAUSE {
                        format!(
                            "hqdl's longest pause (the endpoint asked for {} s in Retry-After)",
                            asked.as_secs()
                        )
                    } else {
                        "as the endpoint requested (Retry-After)".to_owned()
                    };
                    (wait, reason, is_new)
                }
                RemainingWait::MinuteLimit(wait) => {
                    let until = Instant::now() + wait;
                    let is_new = wait >= SHORTEST_LIMIT_WAIT
                        && record_new_wait(&mut reported.minute_limit, until, LIMIT_INTERVAL);
                    let reason = "because the limit of requests or tokens per minute is used up \
                                  (the endpoint's, or `[limits]` of a spec)";
                    (wait, reason.to_owned(), is_new)
                }
            }
        };
        if !is_new {
            return;
        }
        let clock = Zoned::now().saturating_add(SignedDuration::try_from(wait).unwrap_or_default());
        self.warn(format!(
            "requests to {model} wait until {}, for {} s, {reason}",
            clock.strftime("%H:%M:%S"),
            wait.as_secs_f64().ceil()
        ));
    }

    /// Reports that the run waits for cells of an expansion that another process has claimed.
    pub fn report_claims(&self, expansion: &str) {
        let now = Instant::now();
        if record_new_wait(&mut self.lock_reported_waits().claims, now, CLAIM_INTERVAL) {
            self.warn(format!(
                "{expansion} waits for cells that another run is already asking for, until that \
                 run stores them or its process ends"
            ));
        }
    }

    /// Warns once if a request needs more tokens than the spec allows per minute.
    pub fn warn_about_token_limit(&self, prompt: &Prompt) {
        let Some(limit) = self.tokens_per_minute else { return };
        let tokens = estimate_permit_need(prompt).likely;
        if tokens > u64::from(limit) && !self.token_limit_warned.swap(true, Ordering::Relaxed) {
            self.warn(format!(
                "`tokens_per_minute` is {limit}, but one request is likely to take {tokens} \
                 tokens: raise it in [limits]"
            ));
        }
    }

    fn warn(&self, message: String) {
        (self.events.listener)(&Event::Warning(message));
    }

    fn lock_reported_waits(&self) -> MutexGuard<'_, ReportedWaits> {
        self.reported_waits.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
