//! The cap on an answer's length: the length planned for its rows, times a factor that adapts to
//! the actual answers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tracing::info;

use crate::Tokens;
use crate::plan::ANSWER_HEADROOM;
use hqdl_prompt::{Prompt, strip_reasoning};

/// Share of the difference by which the factor decreases after each answer that needs a smaller
/// factor.
const DECAY: f64 = 0.1;
/// Minimum share of the cap at which a truncated answer counts as truncated by the cap. A shorter
/// truncated answer reached the end of the model's context.
const AT_CAP_SHARE: f64 = 0.9;

/// Factor applied to the planned length of an answer; at least 1.
#[derive(Debug)]
pub struct OutputCap {
    factor: Mutex<f64>,
    /// Whether the model reasons first. Reasoning length does not depend on the rows, so only the
    /// model's own limit applies.
    is_reasoning: AtomicBool,
}

impl OutputCap {
    /// Creates the cap of a model; `is_reasoning` states whether the model reasons first.
    pub(super) fn new(is_reasoning: bool) -> Self {
        Self { factor: Mutex::new(1.0), is_reasoning: is_reasoning.into() }
    }

    /// Returns the maximum number of tokens of an answer.
    pub(super) fn max_tokens(&self, planned: u64) -> u64 {
        if self.is_reasoning.load(Ordering::Relaxed) {
            return u64::MAX;
        }
        (planned as f64 * *self.lock_factor()).ceil() as u64
    }

    /// Adapts the factor to a complete answer.
    pub(super) fn adapt_to_answer(&self, prompt: &Prompt, tokens: Tokens) {
        let needed =
            (ANSWER_HEADROOM * tokens.output as f64 / prompt.planned_output.max(1) as f64).max(1.0);
        let mut factor = self.lock_factor();
        *factor = if needed > *factor { needed } else { *factor + DECAY * (needed - *factor) };
    }

    /// Returns true if a well-formed answer was truncated at its cap, and doubles the cap for later
    /// answers. Several answers truncated at the same cap double it only once.
    pub(super) fn raise_cap_if_too_small(&self, prompt: &Prompt, tokens: Tokens) -> bool {
        let (cap, planned) = (prompt.max_output as f64, prompt.planned_output.max(1) as f64);
        if (tokens.output as f64) < AT_CAP_SHARE * cap {
            return false;
        }
        let mut factor = self.lock_factor();
        let next = factor.max(2.0 * cap / planned);
        if next > *factor {
            info!(from = *factor, to = next, "the cap on answers");
        }
        *factor = next;
        true
    }

    /// Returns true if reasoning used the whole cap before the answer began. Since this shows
    /// nothing about the answer's length, later answers may use the whole output limit.
    pub(super) fn lift_cap_if_used_by_reasoning(
        &self,
        prompt: &Prompt,
        text: &str,
        tokens: Tokens,
    ) -> bool {
        let used_whole_cap = tokens.output as f64 >= AT_CAP_SHARE * prompt.max_output as f64;
        let has_answer = strip_reasoning(text).is_some_and(|answer| !answer.trim().is_empty());
        if !used_whole_cap || has_answer {
            return false;
        }
        self.is_reasoning.store(true, Ordering::Relaxed);
        true
    }

    fn lock_factor(&self) -> MutexGuard<'_, f64> {
        self.factor.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
