//! A circuit breaker for the endpoint, and the policy for requests that fail as a whole.
//!
//! A request that fails permanently while the endpoint answers others fails because of its rows: it
//! is split until the failing rows are alone. While no other request is answered, the endpoint
//! itself may be failing. The request is then deferred until an answer arrives or nothing else is
//! left to ask, and split.
//!
//! So an endpoint that is gone receives [`FAILURES`] whole requests, and after them at most twice
//! the rows of one request in parts. An endpoint that rejects the content of the rows receives each
//! row alone once, and beyond [`FAILURES`] splits into halves, once with others.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::{ModelError, TRIES};

/// Number of failures in a row, without an answer between them, after which the endpoint counts as
/// gone. A timeout counts twice.
const FAILURES: u32 = 8;
/// Maximum number of attempts of a part of a failed request.
const TRIES_OF_PIECES: usize = 4;
/// Maximum number of attempts of a request if others failed and none was ever answered.
const TRIES_IN_DOUBT: usize = 2;

/// State of the endpoint, over all requests of a run.
#[derive(Debug, Default)]
pub struct Liveness(Mutex<LivenessState>);

#[derive(Debug, Default)]
struct LivenessState {
    /// Answers so far, including rejections of a request's content.
    answers: u64,
    /// Consecutive failures since the last answer, of requests that were sent after it.
    failures: u32,
    /// Rejections of requests' content since the last completion.
    refusals: u32,
    /// Message of the last failure.
    why: Option<String>,
}

/// State of the endpoint after a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Says {
    /// It answers other requests.
    Alive,
    /// It may be gone.
    Doubtful,
    /// It is gone.
    Gone,
}

impl Liveness {
    /// Records an answer.
    pub(super) fn answered(&self) {
        let mut state = self.state();
        *state = LivenessState { answers: state.answers + 1, ..LivenessState::default() };
    }

    /// Records a rejection of a request's content. Returns true after so many of them that
    /// splitting into halves is not worthwhile.
    pub(super) fn refused(&self) -> bool {
        let mut state = self.state();
        state.answers += 1;
        state.failures = 0;
        state.refusals += 1;
        state.refusals > FAILURES
    }

    /// Number of answers so far.
    pub(super) fn answers(&self) -> u64 {
        self.state().answers
    }

    /// Returns the maximum number of attempts of a request; `is_part` means that it is part of a
    /// failed one.
    pub(super) fn tries(&self, piece: bool) -> usize {
        let state = self.state();
        match piece {
            _ if state.answers == 0 && state.failures > 0 => TRIES_IN_DOUBT,
            true => TRIES_OF_PIECES,
            false => TRIES,
        }
    }

    /// Records the failure of a request that was sent after `since_answers` answers. Parts of a
    /// failed request are allowed two more failures per row of a full request of `rows` rows.
    pub(super) fn failed(&self, error: &ModelError, since: u64, piece: bool, rows: u32) -> Says {
        let mut state = self.state();
        state.why = Some(error.to_string());
        if state.answers > since {
            return Says::Alive;
        }
        let slow = matches!(error, ModelError::Unfinished(_));
        state.failures += if slow { 2 } else { 1 };
        let bound = if piece && !slow { FAILURES.saturating_add(2 * rows) } else { FAILURES };
        if state.failures >= bound { Says::Gone } else { Says::Doubtful }
    }

    /// Returns the last failure if there was never an answer.
    pub(super) fn never_answered(&self) -> Option<String> {
        let state = self.state();
        state.why.clone().filter(|_| state.answers == 0)
    }

    fn state(&self) -> MutexGuard<'_, LivenessState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
