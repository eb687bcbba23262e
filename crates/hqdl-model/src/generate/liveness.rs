//! Whether the endpoint is there, and what is made of a request that failed as a
//! whole.
//!
//! A request that fails for good while the endpoint answers others fails for its
//! rows: it is split, until the rows at fault stand alone. While nothing else is
//! answered, it may be the endpoint that fails: then the request is set aside, and
//! split when there is an answer, or when nothing else is left to ask. So an
//! endpoint that is gone is asked [`FAILURES`] whole requests, and after them at
//! most twice the rows of one request in pieces; one that refuses what the rows
//! hold is asked about each row once alone, and once in company beyond
//! [`FAILURES`] splits by halves.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::{ModelError, TRIES};

/// Failures one after another, with no answer between, before the endpoint is
/// taken to be gone. One that took all its time counts twice.
const FAILURES: u32 = 8;
/// How often a piece of a request that failed is tried.
const TRIES_OF_PIECES: usize = 4;
/// How often a request is tried when others failed and none was ever answered.
const TRIES_IN_DOUBT: usize = 2;

/// What the endpoint has answered so far, over all requests of a run.
#[derive(Debug, Default)]
pub struct Liveness(Mutex<LivenessState>);

#[derive(Debug, Default)]
struct LivenessState {
    /// Answers so far, a refusal of what a request holds among them.
    answers: u64,
    /// Failures since the last one, of requests that saw none.
    failures: u32,
    /// Refusals of what requests hold since the last completion.
    refusals: u32,
    /// The last failure.
    why: Option<String>,
}

/// What a failure says of the endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Says {
    /// It answers others.
    Alive,
    /// Maybe it is gone.
    Doubtful,
    /// It is gone.
    Gone,
}

impl Liveness {
    /// A request was answered.
    pub(super) fn answered(&self) {
        let mut state = self.state();
        *state = LivenessState { answers: state.answers + 1, ..LivenessState::default() };
    }

    /// A request was refused for what it holds; true when so many are that halves
    /// are hardly worth a request.
    pub(super) fn refused(&self) -> bool {
        let mut state = self.state();
        state.answers += 1;
        state.failures = 0;
        state.refusals += 1;
        state.refusals > FAILURES
    }

    /// Answers so far.
    pub(super) fn answers(&self) -> u64 {
        self.state().answers
    }

    /// How often a request may be tried; `piece` says that it is one of a request
    /// that failed.
    pub(super) fn tries(&self, piece: bool) -> usize {
        let state = self.state();
        match piece {
            _ if state.answers == 0 && state.failures > 0 => TRIES_IN_DOUBT,
            true => TRIES_OF_PIECES,
            false => TRIES,
        }
    }

    /// A request failed that was made after so many answers. Of pieces, as many
    /// more may fail as one request of `rows` rows has.
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

    /// The last failure, when there was never an answer.
    pub(super) fn never_answered(&self) -> Option<String> {
        let state = self.state();
        state.why.clone().filter(|_| state.answers == 0)
    }

    fn state(&self) -> MutexGuard<'_, LivenessState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
