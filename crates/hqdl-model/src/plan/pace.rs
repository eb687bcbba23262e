//! How a model answers: how fast, and after how much reasoning.

use std::collections::BTreeMap;

use hqdl_facts::{FactsError, History};
use hqdl_spec::{ModelSettings, Provider, Spec};
use hqdl_values::tokens::Tokenizer;

/// Answers of a model that are looked at.
const LATEST: u32 = 60;
/// Tokens of reasoning that are assumed of an answer, for a model that is known to
/// reason and has not answered yet.
const REASONING: f64 = 800.0;
/// What the names of models that reason have in them.
const REASON: [&str; 7] =
    ["reason", "thinking", "deepseek-r1", "qwq", "magistral", "gpt-5", "gpt-oss"];

/// How fast a model answers, in one request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pace {
    /// Seconds until it begins.
    pub begins: f64,
    /// Tokens that it then writes a second.
    pub tokens_a_second: f64,
    /// Tokens of an answer that nobody reads: its reasoning. 0 for a model that says at
    /// once what it has to say.
    pub reasoning: f64,
}

impl Default for Pace {
    /// What is assumed of a model that has not answered yet.
    fn default() -> Self {
        Self { begins: 0.6, tokens_a_second: 60.0, reasoning: 0.0 }
    }
}

impl Pace {
    /// What the latest answers of a model took, by what was assumed for them: one
    /// factor, which few answers tell as well, and requests of one size alone.
    ///
    /// # Errors
    /// [`FactsError`] when the history cannot be read.
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
            // Of a batch nobody knows when it was answered.
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
            // Less than that is a tokenizer that counts in another way.
            _ if hidden > said => hidden as f64 / answers,
            _ => 0.0,
        };
        Ok(pace)
    }

    /// Seconds that requests take one after the other, with the tokens written in all.
    #[must_use]
    pub fn seconds(&self, requests: f64, output: f64) -> f64 {
        requests * self.begins + output / self.tokens_a_second
    }
}

/// Whether a model's name says that it reasons: `o3-mini`, `gpt-5`, `deepseek-r1`.
fn reasons(name: &str) -> bool {
    let name = name.to_lowercase();
    let last = name.rsplit(['/', ':']).next().unwrap_or_default();
    let of_series =
        last.strip_prefix('o').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    of_series || !name.contains("chat") && REASON.iter().any(|part| name.contains(part))
}

/// Tokens of reasoning that answers likely have, by each model of a spec that reasons.
///
/// # Errors
/// [`FactsError`] when the history cannot be read.
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
