//! A circuit breaker for the endpoint, and the policy for requests that fail as a whole.
//!
//! A request that fails permanently while the endpoint answers others fails because of its rows: it
//! is split until the failing rows are alone. While no other request is answered, the endpoint
//! itself may be failing. The request is then deferred until an answer arrives or no other request
//! is left, and then split.
//!
//! So an endpoint that is gone receives at most [`MAX_FAILURES`] whole requests, followed by
//! requests for their parts: at most two for each row of a full request. If an endpoint rejects the
//! content of rows, hqdl splits the requests in halves. After [`MAX_FAILURES`] rejections without
//! an answer, it splits them into single rows at once.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::{MAX_ATTEMPTS, ModelError};

/// Number of consecutive failures after which the endpoint is considered gone. A timeout counts
/// twice.
const MAX_FAILURES: u32 = 8;
/// Maximum number of attempts for a part of a failed request.
const MAX_ATTEMPTS_OF_PARTS: usize = 4;
/// Maximum number of attempts for a request if others failed and none was ever answered.
const MAX_ATTEMPTS_UNANSWERED: usize = 2;

/// State of the endpoint, shared by all requests of a run.
#[derive(Debug, Default)]
pub struct CircuitBreaker(Mutex<CircuitState>);

#[derive(Debug, Default)]
struct CircuitState {
    /// Number of answers so far, including rejections of a request's content.
    answers: u64,
    /// Number of consecutive failures since the last answer, among requests that were sent after
    /// it.
    failures: u32,
    /// Number of content rejections since the last completion.
    refusals: u32,
    /// Message of the last failure.
    last_failure: Option<String>,
}

/// State of the endpoint after a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EndpointHealth {
    /// The endpoint answers other requests.
    Alive,
    /// The endpoint may be gone.
    Doubtful,
    /// The endpoint is gone.
    Gone,
}

impl CircuitBreaker {
    pub(super) fn record_answer(&self) {
        let mut state = self.lock_state();
        *state = CircuitState { answers: state.answers + 1, ..CircuitState::default() };
    }

    /// Records that the endpoint rejected a request's content. Returns true after more than
    /// [`MAX_FAILURES`] rejections without an answer; requests should then be split into single
    /// rows at once.
    pub(super) fn record_rejection(&self) -> bool {
        let mut state = self.lock_state();
        state.answers += 1;
        state.failures = 0;
        state.refusals += 1;
        state.refusals > MAX_FAILURES
    }

    /// Returns the number of answers so far.
    pub(super) fn answer_count(&self) -> u64 {
        self.lock_state().answers
    }

    /// Returns the number of consecutive failures since the last answer.
    pub(super) fn failure_count(&self) -> u32 {
        self.lock_state().failures
    }

    /// Returns the maximum number of attempts for a request; `is_part` states whether it is part of
    /// a failed request.
    pub(super) fn max_attempts(&self, is_part: bool) -> usize {
        let state = self.lock_state();
        match is_part {
            _ if state.answers == 0 && state.failures > 0 => MAX_ATTEMPTS_UNANSWERED,
            true => MAX_ATTEMPTS_OF_PARTS,
            false => MAX_ATTEMPTS,
        }
    }

    /// Records the failure of a request that was sent after `since_answers` answers. For parts of a
    /// failed request, two more failures are allowed for each of the `rows` rows of a full request.
    pub(super) fn record_failure(
        &self,
        error: &ModelError,
        since_answers: u64,
        is_part: bool,
        rows: u32,
    ) -> EndpointHealth {
        let mut state = self.lock_state();
        state.last_failure = Some(error.to_string());
        if state.answers > since_answers {
            return EndpointHealth::Alive;
        }
        let is_timeout = matches!(error, ModelError::Unfinished(_));
        state.failures += if is_timeout { 2 } else { 1 };
        let max_failures = if is_part && !is_timeout {
            MAX_FAILURES.saturating_add(2 * rows)
        } else {
            MAX_FAILURES
        };
        if state.failures >= max_failures { EndpointHealth::Gone } else { EndpointHealth::Doubtful }
    }

    /// Returns the last failure if no request was ever answered.
    pub(super) fn failure_without_answers(&self) -> Option<String> {
        let state = self.lock_state();
        state.last_failure.clone().filter(|_| state.answers == 0)
    }

    fn lock_state(&self) -> MutexGuard<'_, CircuitState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
