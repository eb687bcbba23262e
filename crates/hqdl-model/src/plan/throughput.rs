//! The throughput of a model: its speed, and how much it reasons.

use std::collections::BTreeMap;

use hqdl_facts::{FactsError, History};
use hqdl_spec::{ModelSettings, Provider, Spec};
use hqdl_values::tokens::Tokenizer;

/// Number of recent answers that are averaged.
const SAMPLE_SIZE: u32 = 60;
/// Assumed number of reasoning tokens per answer, for a reasoning model without answers so far.
const REASONING: f64 = 800.0;
/// Parts of the names of reasoning models.
const REASONING_NAMES: [&str; 7] =
    ["reason", "thinking", "deepseek-r1", "qwq", "magistral", "gpt-5", "gpt-oss"];

/// The throughput of a model in one request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ThroughputEstimate {
    /// Seconds until the first token.
    pub first_token_seconds: f64,
    /// Output tokens per second after that.
    pub tokens_per_second: f64,
    /// Reasoning tokens per answer; 0 for a model that does not reason.
    pub reasoning_tokens: f64,
}

impl Default for ThroughputEstimate {
    /// Returns assumptions for a model without answers so far.
    fn default() -> Self {
        Self { first_token_seconds: 0.6, tokens_per_second: 60.0, reasoning_tokens: 0.0 }
    }
}

impl ThroughputEstimate {
    /// Estimates the throughput from the latest answers of a model. The assumed speeds are scaled
    /// by one factor, the measured time divided by the time that they predict. So a few answers, or
    /// requests of one size, are enough.
    ///
    /// # Errors
    /// [`FactsError`] if the history cannot be read.
    pub fn from_history(
        history: &dyn History,
        settings: &ModelSettings,
    ) -> Result<Self, FactsError> {
        let mut throughput = Self::default();
        if settings.provider == Provider::Replay {
            return Ok(throughput);
        }
        let tokenizer = Tokenizer::for_model(&settings.name);
        let (mut measured_seconds, mut expected_seconds, mut answers) = (0.0, 0.0, 0.0);
        let (mut content_total, mut hidden_total) = (0, 0);
        for completion in
            history.latest_completions(&settings.stored_name(&settings.name), SAMPLE_SIZE)?
        {
            let Some(content) = completion.content else { continue };
            let content_tokens = tokenizer.count_tokens(&content);
            content_total += content_tokens;
            hidden_total += completion.output_tokens.saturating_sub(content_tokens);
            answers += 1.0;
            // The time that the endpoint worked on a batch answer is unknown.
            if completion.seconds > 0.0 {
                measured_seconds += completion.seconds;
                expected_seconds +=
                    throughput.duration_seconds(1.0, completion.output_tokens as f64);
            }
        }
        if expected_seconds > 0.0 {
            throughput.first_token_seconds *= measured_seconds / expected_seconds;
            throughput.tokens_per_second *= expected_seconds / measured_seconds;
        }
        throughput.reasoning_tokens = match answers {
            0.0 if is_reasoning_model(&settings.name) => REASONING,
            // A smaller difference comes from a tokenizer that counts differently.
            _ if hidden_total > content_total => hidden_total as f64 / answers,
            _ => 0.0,
        };
        Ok(throughput)
    }

    /// Returns the seconds that `requests` sequential requests with a total of `output` tokens
    /// take.
    #[must_use]
    pub fn duration_seconds(&self, requests: f64, output: f64) -> f64 {
        requests * self.first_token_seconds + output / self.tokens_per_second
    }
}

/// Returns whether the name is that of a reasoning model: `o3-mini`, `gpt-5`, `deepseek-r1`.
fn is_reasoning_model(name: &str) -> bool {
    let name = name.to_lowercase();
    let last = name.rsplit(['/', ':']).next().unwrap_or_default();
    let of_series =
        last.strip_prefix('o').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    of_series || !name.contains("chat") && REASONING_NAMES.iter().any(|part| name.contains(part))
}

/// Returns the expected reasoning tokens per answer, for each reasoning model of a spec.
///
/// # Errors
/// [`FactsError`] if the history cannot be read.
pub fn reasoning_tokens(
    history: &dyn History,
    spec: &Spec,
) -> Result<BTreeMap<String, f64>, FactsError> {
    let mut all = BTreeMap::new();
    for settings in spec.all_models() {
        let tokens = ThroughputEstimate::from_history(history, settings)?.reasoning_tokens;
        if tokens > 0.0 {
            all.insert(settings.name.clone(), tokens);
        }
    }
    Ok(all)
}
