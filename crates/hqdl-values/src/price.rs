//! Prices of models.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Prices of a model, in USD per million tokens.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("additionalProperties" = false))]
pub struct PriceTable {
    /// Input tokens.
    pub input: f64,
    /// Input tokens read from the endpoint's prompt cache. Default: `input`.
    pub cached_input: Option<f64>,
    /// Input tokens written to the endpoint's prompt cache. Default: 1.25 times `input`.
    pub cache_write: Option<f64>,
    /// Input tokens of recordings. Default: the rate in the price book; without one, hqdl sends no
    /// recordings.
    pub audio_input: Option<f64>,
    /// Output tokens.
    pub output: f64,
    /// Multiplier for the prices of requests in a batch. Default: 0.5, as at `OpenAI`.
    pub batch: Option<f64>,
    /// Input tokens that a batch request reads from the prompt cache. Default:
    /// `cached_input` times `batch`.
    pub batch_cached_input: Option<f64>,
    /// Prices of a request with a long prompt.
    pub above: Option<LongPromptPrice>,
    /// Multiplier for these prices if `parameters` has a `service_tier`, such as 0.5 for `flex`.
    /// Ignored without that parameter.
    pub service_tier: Option<f64>,
}

/// Prices of a request whose prompt is longer than a limit, in USD per million tokens: `above = {
/// input_tokens = 272_000, input = 5.0, output = 22.5 }`.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("additionalProperties" = false))]
pub struct LongPromptPrice {
    /// Input tokens above which these prices apply to the whole request.
    pub input_tokens: u64,
    /// Input tokens.
    pub input: f64,
    /// Input tokens read from the endpoint's prompt cache. Default: `input`.
    pub cached_input: Option<f64>,
    /// Input tokens written to the endpoint's prompt cache. Default: 1.25 times `input`.
    pub cache_write: Option<f64>,
    /// Output tokens.
    pub output: f64,
}

/// Rates for one request, in USD per million tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TokenRates {
    /// Rate for input tokens.
    pub input: f64,
    /// Rate for input tokens read from the prompt cache.
    pub cached_input: f64,
    /// Rate for input tokens written to the prompt cache.
    pub cache_write: f64,
    /// Rate for input tokens of recordings.
    pub audio_input: f64,
    /// Rate for output tokens.
    pub output: f64,
}

impl PriceTable {
    /// Returns true if requests cost nothing.
    #[must_use]
    pub fn is_free(&self) -> bool {
        let others = [self.cached_input, self.cache_write, self.audio_input];
        self.input.max(self.output) <= 0.0 && others.iter().flatten().all(|rate| *rate <= 0.0)
    }

    /// Returns the prices for requests sent through the Batch API.
    #[must_use]
    pub fn to_batch_prices(&self) -> Self {
        let factor = self.batch.unwrap_or(BATCH_FACTOR);
        Self {
            input: self.input * factor,
            cached_input: self.batch_cached_input.or(self.cached_input.map(|c| c * factor)),
            cache_write: self.cache_write.map(|c| c * factor),
            audio_input: self.audio_input.map(|a| a * factor),
            output: self.output * factor,
            batch: Some(1.0),
            batch_cached_input: None,
            above: self.above.map(|above| LongPromptPrice {
                input: above.input * factor,
                // The price of cached input in a batch is known only for short prompts.
                cached_input: match self.batch_cached_input {
                    Some(_) => None,
                    None => above.cached_input.map(|c| c * factor),
                },
                cache_write: above.cache_write.map(|c| c * factor),
                output: above.output * factor,
                ..above
            }),
            // Batches have their own service tier.
            service_tier: None,
        }
    }

    /// Returns true if requests cost anything. The price of a local model is 0.
    #[must_use]
    pub fn is_billed(&self) -> bool {
        let rates = self.find_highest_rates(u64::MAX);
        rates.input > 0.0 || rates.output > 0.0
    }

    /// Returns true if cache writes of a request with `input_tokens` input tokens are billed at an
    /// assumed rate, because the price table contains no rate.
    #[must_use]
    pub fn assumes_cache_write_rate(&self, input_tokens: u64) -> bool {
        let cache_write = match self.above.filter(|above| input_tokens > above.input_tokens) {
            Some(above) => above.cache_write,
            None => self.cache_write,
        };
        cache_write.is_none() && self.find_rates(input_tokens).input > 0.0
    }

    /// Returns the rates for a request with `input_tokens` input tokens.
    #[must_use]
    pub fn find_rates(&self, input_tokens: u64) -> TokenRates {
        let rates = match self.above.filter(|above| input_tokens > above.input_tokens) {
            Some(above) => {
                build_token_rates(above.input, above.cached_input, above.cache_write, above.output)
            }
            None => build_token_rates(self.input, self.cached_input, self.cache_write, self.output),
        };
        // No provider has a separate price of recordings in long prompts.
        let audio_input = self.audio_input.unwrap_or(rates.input);
        let rates = TokenRates { audio_input, ..rates };
        rates.scale(self.service_tier.unwrap_or(1.0))
    }

    /// Returns the highest rates that can apply to a request with at most `input_tokens` input
    /// tokens. Every kind of input gets the rate of the most expensive kind.
    #[must_use]
    pub fn find_highest_rates(&self, input_tokens: u64) -> TokenRates {
        // An endpoint may serve and bill a tier other than the requested one.
        let standard =
            Self { service_tier: self.service_tier.map(|factor| factor.max(1.0)), ..*self };
        let (long, short) = (standard.find_rates(input_tokens), standard.find_rates(0));
        let input = [long, short]
            .into_iter()
            .flat_map(|r| [r.input, r.cached_input, r.cache_write])
            .fold(0.0, f64::max);
        let output = long.output.max(short.output);
        let audio_input = long.audio_input.max(short.audio_input).max(input);
        TokenRates { input, cached_input: input, cache_write: input, audio_input, output }
    }
}

impl TokenRates {
    fn scale(self, factor: f64) -> Self {
        Self {
            input: self.input * factor,
            cached_input: self.cached_input * factor,
            cache_write: self.cache_write * factor,
            audio_input: self.audio_input * factor,
            output: self.output * factor,
        }
    }
}

fn build_token_rates(
    input: f64,
    cached_input: Option<f64>,
    cache_write: Option<f64>,
    output: f64,
) -> TokenRates {
    TokenRates {
        input,
        cached_input: cached_input.unwrap_or(input),
        cache_write: cache_write.unwrap_or(input * CACHE_WRITE_FACTOR),
        audio_input: input,
        output,
    }
}

/// Price of a cache write relative to other input, used if the price table contains no rate: the
/// factor that `OpenAI` (from GPT-5.6 on) and Anthropic (for five minutes) bill.
const CACHE_WRITE_FACTOR: f64 = 1.25;

/// Note on a cost that includes cache writes billed or reserved at the assumed rate.
pub const ASSUMED_CACHE_WRITE: &str = "cache writes assumed at 1.25 × input";

/// Default of [`PriceTable::batch`].
const BATCH_FACTOR: f64 = 0.5;
