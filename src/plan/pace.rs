//! How fast a model answers.

use crate::facts::{FactsError, History};

/// Answers that are looked at.
const LATEST: i64 = 60;

/// How fast a model answers, in one request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pace {
    /// Seconds until it begins.
    pub begins: f64,
    /// Tokens that it then writes a second.
    pub tokens_a_second: f64,
}

impl Default for Pace {
    /// What is assumed of a model that has not answered yet.
    fn default() -> Self {
        Self { begins: 0.6, tokens_a_second: 60.0 }
    }
}

impl Pace {
    /// What the latest answers of a model took, by what was assumed for them: one
    /// factor, which few answers tell as well, and requests of one size alone.
    ///
    /// # Errors
    /// [`FactsError`] when the history cannot be read.
    pub fn of(history: &dyn History, model: &str) -> Result<Self, FactsError> {
        let assumed = Self::default();
        let (mut took, mut expected) = (0.0, 0.0);
        let last = history.last_completion()?;
        for id in (last - LATEST).max(0) + 1..=last {
            let Some((completion, name)) = history.completion(id)? else { continue };
            // Of a batch nobody knows when it was answered.
            if name == model && completion.content.is_some() && completion.seconds > 0.0 {
                took += completion.seconds;
                expected += assumed.seconds(1.0, completion.output_tokens as f64);
            }
        }
        let factor = if expected > 0.0 { took / expected } else { 1.0 };
        Ok(Self {
            begins: assumed.begins * factor,
            tokens_a_second: assumed.tokens_a_second / factor,
        })
    }

    /// Seconds that requests take one after the other, with the tokens written in all.
    #[must_use]
    pub fn seconds(&self, requests: f64, output: f64) -> f64 {
        requests * self.begins + output / self.tokens_a_second
    }
}
