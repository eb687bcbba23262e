//! The throughput of a model: its speed, and how many tokens it spends on reasoning.

use std::collections::BTreeMap;

use hqdl_facts::{FactsError, History};
use hqdl_spec::{ModelSettings, Provider, Spec};
use hqdl_values::tokens::Tokenizer;

/// Number of recent answers that are averaged.
const SAMPLE_SIZE: u32 = 60;
/// Assumed number of reasoning tokens per answer, for a reasoning model that has not answered yet.
const REASONING: f64 = 800.0;
/// Name fragments that identify reasoning models.
const REASONING_NAMES: [&str; 7] =
    ["reason", "thinking", "deepseek-r1", "qwq", "magistral", "gpt-5", "gpt-oss"];

/// Estimated throughput of a single request to a model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ThroughputEstimate {
    /// Seconds until the first token.
    pub first_token_seconds: f64,
    /// Output tokens per second after the first token.
    pub tokens_per_second: f64,
    /// Reasoning tokens per answer; 0 for a model that does not reason.
    pub reasoning_tokens: f64,
}

impl Default for ThroughputEstimate {
    /// Returns assumptions for a model that has not answered yet.
    fn default() -> Self {
        Self { first_token_seconds: 0.6, tokens_per_second: 60.0, reasoning_tokens: 0.0 }
    }
}

impl ThroughputEstimate {
    /// Estimates the throughput from a model's latest answers. The assumed speeds are scaled by a
    /// single factor, the ratio of measured to predicted time, so a few answers or requests of a
    /// single size are enough.
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
        for (_, completion) in
            history.load_latest_completions(&settings.stored_name(&settings.name), SAMPLE_SIZE)?
        {
            let Some(content) = completion.content else { continue };
            let content_tokens = tokenizer.count_tokens(&content);
            content_total += content_tokens;
            hidden_total += completion.output_tokens.saturating_sub(content_tokens);
            answers += 1.0;
            // For a batch answer, the time that the endpoint spent on it is unknown.
            if completion.seconds > 0.0 {
                measured_seconds += completion.seconds;
                expected_seconds +=
                    throughput.estimate_seconds(1.0, completion.output_tokens as f64);
            }
        }
        if expected_seconds > 0.0 {
            throughput.first_token_seconds *= measured_seconds / expected_seconds;
            throughput.tokens_per_second *= expected_seconds / measured_seconds;
        }
        throughput.reasoning_tokens = match answers {
            0.0 if is_reasoning_model(&settings.name) => REASONING,
            // A smaller number of hidden tokens may only mean that the tokenizer counts
            // differently.
            _ if hidden_total > content_total => hidden_total as f64 / answers,
            _ => 0.0,
        };
        Ok(throughput)
    }

    /// Returns the seconds that `requests` sequential requests with a total of `output` tokens
    /// take.
    #[must_use]
    pub fn estimate_seconds(&self, requests: f64, output: f64) -> f64 {
        requests * self.first_token_seconds + output / self.tokens_per_second
    }
}

/// Returns true for the name of a reasoning model: `o3-mini`, `gpt-5`, `deepseek-r1`.
fn is_reasoning_model(name: &str) -> bool {
    let name = name.to_lowercase();
    let last = name.rsplit(['/', ':']).next().unwrap_or_default();
    let of_series =
        last.strip_prefix('o').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    of_series || !name.contains("chat") && REASONING_NAMES.iter().any(|part| name.contains(part))
}

/// Returns, for each model whose answers are expected to have more output tokens than their text,
/// the reason for this expectation and its effect.
///
/// # Errors
/// [`FactsError`] if the history cannot be read.
pub fn describe_reasoning(history: &dyn History, spec: &Spec) -> Result<Vec<String>, FactsError> {
    let describe = |(model, tokens): (String, f64)| {
        let reason = if (tokens - REASONING).abs() < 0.5 && is_reasoning_model(&model) {
            format!("{model} is a reasoning model by its name")
        } else {
            format!(
                "recent answers of {model} had {tokens:.0} more output tokens each than their text \
                 (reasoning, or padding)"
            )
        };
        format!("{reason}; the maximum assumes that each answer uses its whole token limit")
    };
    Ok(estimate_reasoning_tokens(history, spec)?.into_iter().map(describe).collect())
}

/// Returns the expected reasoning tokens per answer, for each reasoning model of a spec.
///
/// # Errors
/// [`FactsError`] if the history cannot be read.
pub fn estimate_reasoning_tokens(
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
