//! The throughput of a model: its speed, and its amount of reasoning.

use std::collections::BTreeMap;

use hqdl_facts::{FactsError, History};
use hqdl_spec::{ModelSettings, Provider, Spec};
use hqdl_values::tokens::Tokenizer;

/// Number of recent answers that are averaged.
const LATEST: u32 = 60;
/// Assumed number of reasoning tokens per answer, for a reasoning model without answers so far.
const REASONING: f64 = 800.0;
/// Parts of the names of reasoning models.
const REASON: [&str; 7] =
    ["reason", "thinking", "deepseek-r1", "qwq", "magistral", "gpt-5", "gpt-oss"];

/// The throughput of a model in one request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pace {
    /// Seconds until the first token.
    pub begins: f64,
    /// Output tokens per second after that.
    pub tokens_a_second: f64,
    /// Reasoning tokens per answer; 0 for a model that does not reason.
    pub reasoning: f64,
}

impl Default for Pace {
    /// Assumptions for a model without answers so far.
    fn default() -> Self {
        Self { begins: 0.6, tokens_a_second: 60.0, reasoning: 0.0 }
    }
}

impl Pace {
    /// Estimates the throughput from the latest answers of a model. Both numbers are scaled by one
    /// factor, measured against assumed time, so that a few answers, or requests of one size, are
    /// enough.
    ///
    /// # Errors
    /// [`FactsError`] if the history cannot be read.
    pub fn of(history: &dyn History, settings: &ModelSettings) -> Result<Self, FactsError> {
        let mut pace = Self::default();
        if settings.provider == Provider::Replay {
            return Ok(pace);
        }
        let tokenizer = Tokenizer::of(&settings.name);
        let (mut took, mut expected, mut answers) = (0.0, 0.0, 0.0);
        let (mut said, mut hidden) = (0, 0);
        for completion in history.latest_completions(&settings.identity(&settings.name), LATEST)? {
            let Some(content) = completion.content else { continue };
            let words = tokenizer.count(&content);
            said += words;
            hidden += completion.output_tokens.saturating_sub(words);
            answers += 1.0;
            // The duration of a batch answer is unknown.
            if completion.seconds > 0.0 {
                took += completion.seconds;
                expected += pace.seconds(1.0, completion.output_tokens as f64);
            }
        }
        if expected > 0.0 {
            pace.begins *= took / expected;
            pace.tokens_a_second *= expected / took;
        }
        pace.reasoning = match answers {
            0.0 if reasons(&settings.name) => REASONING,
            // A smaller difference comes from a tokenizer that counts differently.
            _ if hidden > said => hidden as f64 / answers,
            _ => 0.0,
        };
        Ok(pace)
    }

    /// Returns the seconds that `requests` sequential requests with a total of `output` tokens
    /// take.
    #[must_use]
    pub fn seconds(&self, requests: f64, output: f64) -> f64 {
        requests * self.begins + output / self.tokens_a_second
    }
}

/// Returns whether the name is that of a reasoning model: `o3-mini`, `gpt-5`, `deepseek-r1`.
fn reasons(name: &str) -> bool {
    let name = name.to_lowercase();
    let last = name.rsplit(['/', ':']).next().unwrap_or_default();
    let of_series =
        last.strip_prefix('o').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    of_series || !name.contains("chat") && REASON.iter().any(|part| name.contains(part))
}

/// Returns the expected reasoning tokens per answer, for each reasoning model of a spec.
///
/// # Errors
/// [`FactsError`] if the history cannot be read.
pub fn reasoning(history: &dyn History, spec: &Spec) -> Result<BTreeMap<String, f64>, FactsError> {
    let mut all = BTreeMap::new();
    for settings in spec.all_models() {
        let tokens = Pace::of(history, settings)?.reasoning;
        if tokens > 0.0 {
            all.insert(settings.name.clone(), tokens);
        }
    }
    Ok(all)
}
