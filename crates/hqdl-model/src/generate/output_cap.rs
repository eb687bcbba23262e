//! The cap on an answer: what is planned for its rows, times a factor that follows
//! what answers take.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tracing::info;

use crate::Tokens;
use hqdl_prompt::{Prompt, answer_part};

/// How much longer than the longest answer of late one may be.
const HEADROOM: f64 = 1.5;
/// How much of the way the factor goes back after an answer that needed less.
const BACK: f64 = 0.1;
/// The part of its cap from which an answer that was cut is taken to have been cut
/// by it, and not by the end of the model's context.
const AT_CAP: f64 = 0.9;

/// A factor on what is planned for a request's answer; never below 1.
#[derive(Debug)]
pub struct OutputCap {
    factor: Mutex<f64>,
    /// Whether the model reasons first, of which the rows tell nothing: then an answer
    /// has no cap but the model's own.
    reasons: AtomicBool,
}

impl OutputCap {
    /// The cap on answers of a model that reasons, or does not.
    pub(super) fn of_model(reasons: bool) -> Self {
        Self { factor: Mutex::new(1.0), reasons: reasons.into() }
    }

    /// The most tokens that an answer may have.
    pub(super) fn of(&self, planned: u64) -> u64 {
        if self.reasons.load(Ordering::Relaxed) {
            return u64::MAX;
        }
        (planned as f64 * *self.factor()).ceil() as u64
    }

    /// Learns from an answer that ended by itself.
    pub(super) fn learn(&self, prompt: &Prompt, tokens: Tokens) {
        let needed =
            (HEADROOM * tokens.output as f64 / prompt.planned_output.max(1) as f64).max(1.0);
        let mut factor = self.factor();
        *factor = if needed > *factor { needed } else { *factor + BACK * (needed - *factor) };
    }

    /// Whether a sound answer was cut by its cap; the next one may have twice as
    /// much. Many that were cut at once were cut once.
    pub(super) fn was_too_small(&self, prompt: &Prompt, tokens: Tokens) -> bool {
        let (cap, planned) = (prompt.max_output as f64, prompt.planned_output.max(1) as f64);
        if (tokens.output as f64) < AT_CAP * cap {
            return false;
        }
        let mut factor = self.factor();
        let next = factor.max(2.0 * cap / planned);
        if next > *factor {
            info!(from = *factor, to = next, "the cap on answers");
        }
        *factor = next;
        true
    }

    /// Whether reasoning took all of a cap before the answer began. That says nothing about
    /// the answer's length, so the next answers may use the whole output limit.
    pub(super) fn was_reasoned_away(&self, prompt: &Prompt, said: &str, tokens: Tokens) -> bool {
        let all_of_it = tokens.output as f64 >= AT_CAP * prompt.max_output as f64;
        let has_answer = answer_part(said).is_some_and(|answer| !answer.trim().is_empty());
        if !all_of_it || has_answer {
            return false;
        }
        self.reasons.store(true, Ordering::Relaxed);
        true
    }

    fn factor(&self) -> MutexGuard<'_, f64> {
        self.factor.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
