//! The budget of a run, in USD and in tokens. The worst-case cost of a request is reserved before
//! it is sent and settled afterwards, so that concurrent answers can never exceed the budget. A
//! request that may have been billed although no answer arrived (the connection broke after it was
//! sent) counts as spent.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tracing::debug;

use hqdl_facts::{FactsError, History, RunId};
use hqdl_spec::{Limits, Provider, Spec};
use hqdl_values::format;
use hqdl_values::usage::{SpentAmount, UnconfirmedCost};

/// Spending limits; `None` is unlimited.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Caps {
    /// Maximum cost in USD.
    pub usd: Option<f64>,
    /// Maximum number of input and output tokens.
    pub tokens: Option<u64>,
    /// The daily budget, if `usd` comes from it.
    pub daily: Option<DailyBudget>,
}

/// The daily budget that limits a run.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct DailyBudget {
    /// Budget of the day in USD.
    pub usd: f64,
    /// Cost of the day's other runs in USD, reservations included.
    pub spent_by_others: f64,
}

impl Caps {
    /// Returns the limits for a request that is compared with the cost of the whole day.
    #[must_use]
    pub fn for_day(usd: Option<f64>) -> Self {
        let daily = usd.map(|usd| DailyBudget { usd, spent_by_others: 0.0 });
        Self { usd, tokens: None, daily }
    }
}

/// Returns the spending limits of a run and its cost so far; `run` is `None` if the run has not
/// started. The cost includes requests that may have been billed without an answer, and
/// reservations of batch requests in flight. Today's cost of all runs counts against the daily
/// budget.
///
/// # Errors
/// [`FactsError`] if the journal cannot be read.
pub fn load_run_caps(
    history: &dyn History,
    limits: &Limits,
    run: Option<RunId>,
) -> Result<(Caps, SpentAmount), FactsError> {
    let mut used = SpentAmount::default();
    if let Some(run) = run {
        let (spent, held) = (history.sum_run_cost(run)?, history.sum_reserved_run_cost(run)?);
        used = SpentAmount { usd: spent.usd + held.usd, tokens: spent.tokens + held.tokens };
    }
    let mut usd = limits.budget_usd;
    let mut daily = None;
    if let Some(daily_budget) = limits.budget_usd_per_day {
        let today = history.sum_cost_today()? + history.sum_reserved_cost_today()?.usd;
        // The rest of today's budget, plus what this run has spent so far.
        let left = (daily_budget - today).max(0.0) + used.usd;
        if usd.is_none_or(|usd| left < usd) {
            let spent_by_others = (today - used.usd).max(0.0);
            daily = Some(DailyBudget { usd: daily_budget, spent_by_others });
        }
        usd = Some(usd.map_or(left, |usd| usd.min(left)));
    }
    Ok((Caps { usd, tokens: limits.budget_tokens, daily }, used))
}

/// Error that reports an exhausted budget.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("the budget{} is reached: {}", if self.is_daily() { " of the day" } else { "" }, self.describe())]
pub struct BudgetExhausted {
    /// The spending limits.
    pub caps: Caps,
    /// Cost so far.
    pub spent: SpentAmount,
    /// Worst-case cost of the next request.
    pub next: SpentAmount,
}

impl BudgetExhausted {
    /// Returns whether the daily budget is exhausted.
    #[must_use]
    pub fn is_daily(&self) -> bool {
        self.caps.daily.is_some()
            && self.caps.usd.is_some_and(|usd| self.spent.usd + self.next.usd > usd)
    }

    /// Returns whether the token budget is exhausted, rather than the budget in USD.
    #[must_use]
    pub fn is_token_budget(&self) -> bool {
        !self.caps.usd.is_some_and(|usd| self.spent.usd + self.next.usd > usd)
            && self.caps.tokens.is_some()
    }

    fn describe(&self) -> String {
        match (self.caps.usd, self.caps.tokens) {
            (Some(usd), _) if self.spent.usd + self.next.usd > usd => {
                let (spent, budget, day) = match self.caps.daily {
                    Some(day) => (day.spent_by_others + self.spent.usd, day.usd, " today"),
                    None => (self.spent.usd, usd, ""),
                };
                format!(
                    "{} of {} is spent{day} and the next request may cost {}",
                    format::format_usd(spent),
                    format::format_usd(budget),
                    format::format_usd(self.next.usd)
                )
            }
            (_, tokens) => format!(
                "{} of {} tokens are spent and the next request may take {}",
                self.spent.tokens,
                tokens.unwrap_or_default(),
                self.next.tokens
            ),
        }
    }
}

/// The spending limits and the cost of a run.
#[derive(Debug, Default)]
pub struct Budget {
    caps: Caps,
    /// Daily limit in USD, for all users of these facts.
    per_day: Option<f64>,
    state: Mutex<BudgetState>,
    reservation_released: Notify,
}

#[derive(Debug, Default)]
struct BudgetState {
    spent: SpentAmount,
    reserved: SpentAmount,
    in_flight: u32,
    doubt: UnconfirmedCost,
}

impl BudgetState {
    fn log_change(&self, this: SpentAmount, what: &str) {
        debug!(
            usd = this.usd,
            tokens = this.tokens,
            spent_usd = self.spent.usd,
            reserved_usd = self.reserved.usd,
            in_flight = self.in_flight,
            "budget {what}"
        );
    }
}

impl Budget {
    /// Creates a budget; `spent` is the part already used.
    #[must_use]
    pub fn new(caps: Caps, spent: SpentAmount) -> Self {
        Self {
            caps,
            per_day: None,
            state: Mutex::new(BudgetState { spent, ..BudgetState::default() }),
            reservation_released: Notify::new(),
        }
    }

    /// Creates the budget of a new or resumed run. Replaying recordings costs nothing and is not
    /// limited.
    ///
    /// # Errors
    /// [`FactsError`] if the journal cannot be read.
    pub fn for_run(history: &dyn History, spec: &Spec, run: RunId) -> Result<Self, FactsError> {
        if spec.all_models().all(|m| m.provider == Provider::Replay) {
            return Ok(Self::default());
        }
        let limits = &spec.limits;
        let (caps, used) = load_run_caps(history, limits, Some(run))?;
        Ok(Self { per_day: limits.budget_usd_per_day, ..Self::new(caps, used) })
    }

    /// Returns whether any spending is limited.
    #[must_use]
    pub fn is_capped(&self) -> bool {
        self.caps != Caps::default()
    }

    /// Returns the daily limit in USD. Other runs share this limit, so it is checked when a cost is
    /// reserved in the fact store.
    #[must_use]
    pub fn daily_budget(&self) -> Option<f64> {
        self.per_day
    }

    /// Returns the error for a request that the daily budget does not cover.
    #[must_use]
    pub fn daily_budget_error(&self, spent_usd: f64, next: SpentAmount) -> BudgetExhausted {
        let spent = SpentAmount { usd: spent_usd, tokens: 0 };
        BudgetExhausted { caps: Caps::for_day(self.per_day), spent, next }
    }

    /// Reserves the worst-case cost of a request. If the necessary budget is reserved by requests
    /// in flight, waits for them, because most cost less than their worst case.
    ///
    /// # Errors
    /// [`BudgetExhausted`] if the budget does not cover the request even when no request is in
    /// flight.
    pub async fn reserve_cost(
        &self,
        worst_case: SpentAmount,
    ) -> Result<Reservation<'_>, BudgetExhausted> {
        loop {
            let reservation_released = self.reservation_released.notified();
            {
                let mut state = self.lock_state();
                let usd = state.spent.usd + state.reserved.usd + worst_case.usd;
                let tokens = state.spent.tokens + state.reserved.tokens + worst_case.tokens;
                let fits = self.caps.usd.is_none_or(|cap| usd <= cap)
                    && self.caps.tokens.is_none_or(|cap| tokens <= cap);
                if fits {
                    state.reserved.usd += worst_case.usd;
                    state.reserved.tokens += worst_case.tokens;
                    state.in_flight += 1;
                    state.log_change(worst_case, "reserved");
                    return Ok(Reservation {
                        budget: self,
                        worst_case,
                        used: SpentAmount::default(),
                    });
                }
                if state.in_flight == 0 {
                    state.log_change(worst_case, "reached");
                    return Err(BudgetExhausted {
                        caps: self.caps,
                        spent: state.spent,
                        next: worst_case,
                    });
                }
            }
            reservation_released.await;
        }
    }

    /// Returns the cost so far.
    #[must_use]
    pub fn spent(&self) -> SpentAmount {
        self.lock_state().spent
    }

    /// Returns the USD counted against the budget: spent, reserved, or possibly spent without an
    /// answer.
    #[must_use]
    pub fn counted_usd(&self) -> f64 {
        let state = self.lock_state();
        state.spent.usd + state.reserved.usd
    }

    /// Returns the cost in doubt: requests of this process that may be billed although no answer
    /// arrived.
    #[must_use]
    pub fn unconfirmed_cost(&self) -> UnconfirmedCost {
        self.lock_state().doubt
    }

    fn lock_state(&self) -> MutexGuard<'_, BudgetState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The worst-case cost of a request in flight. Dropping an unsettled reservation releases it.
#[derive(Debug)]
pub struct Reservation<'b> {
    budget: &'b Budget,
    worst_case: SpentAmount,
    used: SpentAmount,
}

impl Reservation<'_> {
    /// Settles the reservation with the actual cost.
    pub fn settle(mut self, used: SpentAmount) {
        self.used = used;
    }

    /// Settles the reservation at its worst-case cost, because the request may have been billed.
    pub fn settle_in_doubt(mut self) {
        self.used = self.worst_case;
        let mut state = self.budget.lock_state();
        state.doubt.requests += 1;
        state.doubt.max_spent.usd += self.worst_case.usd;
        state.doubt.max_spent.tokens += self.worst_case.tokens;
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        let mut state = self.budget.lock_state();
        state.reserved.tokens = state.reserved.tokens.saturating_sub(self.worst_case.tokens);
        state.in_flight -= 1;
        // Reset to zero when nothing is reserved, to discard rounding errors.
        state.reserved.usd = if state.in_flight == 0 {
            0.0
        } else {
            (state.reserved.usd - self.worst_case.usd).max(0.0)
        };
        state.spent.usd += self.used.usd;
        state.spent.tokens += self.used.tokens;
        state.log_change(self.used, "settled");
        drop(state);
        self.budget.reservation_released.notify_waiters();
    }
}
