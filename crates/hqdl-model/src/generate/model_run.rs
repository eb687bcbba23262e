//! One run of asking a model: the one way to ask, for filling tables, for queries
//! and for batch jobs. What it asks of an expansion is a [`super::Context`].

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Zoned};
use tokio::sync::watch;

use super::{Event, Listener, Liveness};
use crate::Model;
use crate::budget::Budget;
use crate::plan::reasoning;
use hqdl_facts::{Facts, FactsError, RunId};
use hqdl_spec::Spec;
use hqdl_values::usage::Usage;

/// Ends of pauses that are no further apart are one.
const SAME_PAUSE: Duration = Duration::from_secs(2);

/// What all requests of a run share.
pub struct ModelRun {
    /// Its id in the history.
    pub id: RunId,
    /// Who is asked.
    pub endpoint: Arc<dyn Model>,
    /// What may be spent.
    pub budget: Budget,
    /// Where answers are kept.
    pub facts: Facts,
    /// Who is told.
    pub events: Events,
    /// Becomes true when the user wants the run to end.
    pub interrupt: watch::Receiver<bool>,
    /// Whether tokens must be counted before they are sent, for a limit or a budget.
    pub counts: bool,
    /// Requests in flight at once.
    pub concurrency: usize,
    /// Cells that others have brought since they were found missing.
    pub found: AtomicU64,
    /// The models that reason before they answer: their answers may have all there is.
    pub reasons: Vec<String>,
    /// Whether the endpoint is there.
    pub liveness: Liveness,
    /// Until when requests wait that the user was told of.
    pub told_pause: Mutex<Option<Instant>>,
}

/// Who follows a run: told of each event, with what is used so far.
#[derive(Clone)]
pub struct Events {
    /// Who is told.
    pub listener: Listener,
    /// Used so far, over all expansions.
    pub usage: Arc<Mutex<Usage>>,
}

impl Events {
    /// Nothing is used yet.
    #[must_use]
    pub fn of(listener: &Listener) -> Self {
        Self { listener: Arc::clone(listener), usage: Arc::default() }
    }

    /// What is used so far.
    #[must_use]
    pub fn usage(&self) -> Usage {
        *self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ModelRun {
    /// A run that asks the model of a spec, with what its budget has left.
    ///
    /// # Errors
    /// [`FactsError`] when the history cannot say what is spent.
    pub fn of(
        spec: &Spec,
        endpoint: Arc<dyn Model>,
        facts: &Facts,
        id: RunId,
        events: Events,
        interrupt: watch::Receiver<bool>,
    ) -> Result<Self, FactsError> {
        let budget = Budget::of_run(facts.history(), spec, id)?;
        Ok(Self {
            counts: budget.is_capped() || spec.limits.tokens_per_minute.is_some(),
            budget,
            concurrency: spec.limits.concurrency as usize,
            interrupt,
            reasons: reasoning(facts.history(), spec)?.into_keys().collect(),
            ..Self::of_answers(endpoint, facts, id, events)
        })
    }

    /// A run that asks nothing: it reads what batch jobs were answered.
    #[must_use]
    pub fn of_answers(endpoint: Arc<dyn Model>, facts: &Facts, id: RunId, events: Events) -> Self {
        Self {
            reasons: Vec::new(),
            id,
            endpoint,
            // Whether a parcel fits a budget is decided when it is packed.
            budget: Budget::default(),
            facts: facts.clone(),
            events,
            interrupt: watch::channel(false).1,
            // Another run may have a budget that this one has not.
            counts: true,
            concurrency: 1,
            found: AtomicU64::default(),
            liveness: Liveness::default(),
            told_pause: Mutex::default(),
        }
    }

    /// Tells the user until when requests to a model wait, once for each such time.
    pub fn tell_pause(&self, model: &str, pause: Duration) {
        let until = Instant::now() + pause;
        {
            let mut told = self.told_pause.lock().unwrap_or_else(PoisonError::into_inner);
            if told.is_some_and(|told| until <= told + SAME_PAUSE) {
                return;
            }
            *told = Some(until);
        }
        let clock =
            Zoned::now().saturating_add(SignedDuration::try_from(pause).unwrap_or_default());
        (self.events.listener)(&Event::Warning(format!(
            "requests to {model} wait until {}, for {} s, as the endpoint requested (Retry-After)",
            clock.strftime("%H:%M:%S"),
            pause.as_secs()
        )));
    }
}
