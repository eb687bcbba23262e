//! A model's reply, and the usage that the endpoint reports.

use serde_json::Value as Json;

use super::ModelError;
use super::logprobs::{TokenDraft, TokenLogprobs};
use super::usage_check::PlausibleTokens;
use hqdl_prompt::completion::FinishReason;
use hqdl_values::PriceTable;
use hqdl_values::usage::Tokens;

/// Maximum number of tokens accepted from a report, so that sums fit into a double and a journal
/// column.
const MAX_TOKENS: u64 = 1 << 50;

/// A model's reply.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reply {
    /// The text of the answer.
    pub content: String,
    /// Other output, which is billed but not used by hqdl: reasoning, tool calls, further choices.
    pub other_output: String,
    /// Log-probabilities of the tokens of the answer.
    pub logprobs: TokenLogprobs,
    /// Whether the answer is incomplete: truncated at its maximum length, broken or cut off.
    pub truncated: bool,
    /// Whether the endpoint reported no finish reason, so that the last line may be incomplete.
    pub is_unfinished: bool,
    /// Whether hqdl stopped reading the answer because it was runaway output.
    pub cut_off: bool,
    /// Error that interrupted the reply; `None` if it was complete. An interrupted reply's cost is
    /// unconfirmed.
    pub broken: Option<Box<ModelError>>,
    /// Whether the endpoint marks the reply as a refusal.
    pub refused: bool,
    /// Whether cells may be missing because they were never recorded, as in a recording of single
    /// cells.
    pub partial: bool,
    /// Cells that have no answer, because the function that answers in place of a model failed.
    pub failed_cells: Vec<FailedCell>,
    /// Usage that the endpoint reports.
    pub reported: ReportedUsage,
    /// Tokens of the reply; `None` until hqdl's own count has replaced missing reports.
    pub tokens: Option<Tokens>,
    /// The reported usage, if it is implausible.
    pub implausible: Option<Tokens>,
    /// The service tier that the endpoint reports.
    pub service_tier: Option<String>,
    /// Tier at which the reply is billed.
    pub billed_tier: BilledTier,
}

/// A cell of a reply that a function could not compute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedCell {
    /// Position of the row in the prompt, from 0.
    pub row: usize,
    /// Position of the column in the prompt, from 0.
    pub column: usize,
    /// Message of the failure.
    pub message: String,
}

/// Service tier at which a reply is billed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum BilledTier {
    /// The requested tier, or the standard tier if none was requested.
    #[default]
    Requested,
    /// The standard tier, although another one was requested.
    Standard,
    /// Unconfirmed; the higher of the two prices applies.
    Unknown,
}

impl Reply {
    /// Returns the message of a cell that failed, by its positions in the prompt.
    #[must_use]
    pub fn failure_message(&self, row: usize, column: usize) -> Option<&str> {
        let mut failed = self.failed_cells.iter();
        let cell = failed.find(|cell| cell.row == row && cell.column == column)?;
        Some(&cell.message)
    }

    /// Sets and returns the tokens of the reply: the reported ones, or hqdl's own count where
    /// nothing is reported. An implausible report is stored in `implausible` and replaced by hqdl's
    /// own count or the request's maximum.
    pub fn resolve_tokens(
        &mut self,
        count: impl Fn(&Self) -> Tokens,
        plausible: impl FnOnce(&Self) -> PlausibleTokens,
    ) -> Tokens {
        if let Some(tokens) = self.tokens {
            return tokens;
        }
        let mut reported = self.reported_or_counted_tokens(&count);
        let plausible = plausible(self);
        if self.reported.audio_input.is_none_or(|tokens| tokens == 0) {
            // Recordings have their own price, so an endpoint that does not report them gets the
            // maximum.
            reported.audio_input = plausible.max.audio_input.min(reported.input);
        }
        let tokens = if plausible.is_far_above_maximum(reported) {
            self.implausible = Some(reported);
            plausible.max
        } else if plausible.is_below_minimum(reported) {
            self.implausible = Some(reported);
            let counted = count(self);
            let (input, output) =
                (counted.input.max(reported.input), counted.output.max(reported.output));
            // Treat the unreported tokens as if the endpoint had reported no usage.
            let unreported_write = counted.cache_write.min(input - reported.input);
            let cache_write = reported.cache_write + unreported_write;
            Tokens { input, output, cache_write, ..reported }
        } else {
            reported
        };
        self.tokens = Some(tokens);
        tokens
    }

    /// Returns the reported tokens, with hqdl's own count in place of the numbers that are not
    /// reported.
    fn reported_or_counted_tokens(&self, count: impl Fn(&Self) -> Tokens) -> Tokens {
        let has_output_report =
            self.reported.output > Some(0) || self.reported.output == Some(0) && !self.has_output();
        if self.reported.input > Some(0) && has_output_report && !self.cut_off {
            return self.reported.with_counted_fallback(Tokens::default());
        }
        let counted = count(self);
        let tokens = self.reported.with_counted_fallback(counted);
        // A report sent before the cut-off does not cover all of the output.
        let least = if self.cut_off { counted.output } else { 0 };
        Tokens { output: tokens.output.max(least), ..tokens }
    }

    /// Sets `billed_tier` based on the tier that the endpoint reports and the requested one.
    pub(super) fn set_billed_tier(&mut self, requested: Option<&str>) {
        self.billed_tier = match (requested, self.service_tier.as_deref()) {
            (None, _) => BilledTier::Requested,
            (Some(requested), Some(served)) if requested == served => BilledTier::Requested,
            (Some(_), Some("default" | "standard")) => BilledTier::Standard,
            (Some(_), _) => BilledTier::Unknown,
        };
    }

    /// Returns the price at which the reply is billed.
    #[must_use]
    pub fn compute_billed_price(&self, price: Option<&PriceTable>) -> Option<PriceTable> {
        price.map(|price| PriceTable {
            service_tier: match self.billed_tier {
                BilledTier::Requested => price.service_tier,
                BilledTier::Standard => None,
                BilledTier::Unknown => price.service_tier.map(|part| part.max(1.0)),
            },
            ..*price
        })
    }

    /// Returns how the completion ended.
    #[must_use]
    pub fn finish_reason(&self) -> FinishReason {
        match (self.truncated, self.is_unfinished) {
            (true, _) => FinishReason::Truncated,
            (false, true) => FinishReason::Unknown,
            (false, false) => FinishReason::Stop,
        }
    }

    /// Returns true if the reply shows that the model reasoned before it answered.
    #[must_use]
    pub fn has_reasoning(&self) -> bool {
        !self.other_output.is_empty() || self.content.trim_start().starts_with("<think>")
    }

    fn has_output(&self) -> bool {
        !(self.content.is_empty() && self.other_output.is_empty())
    }
}

/// The usage that an endpoint reports; `None` for each number that is missing or invalid.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReportedUsage {
    /// Number of input tokens.
    pub input: Option<u64>,
    /// Number of input tokens that were read from the prompt cache.
    pub cached_input: Option<u64>,
    /// Number of input tokens that were written to the prompt cache.
    pub cache_write: Option<u64>,
    /// Number of input tokens that were recordings.
    pub audio_input: Option<u64>,
    /// Number of output tokens.
    pub output: Option<u64>,
    /// Total number of tokens.
    pub total: Option<u64>,
}

impl ReportedUsage {
    /// Parses `usage` in the formats of `OpenAI`, Anthropic, Gemini, `DeepSeek` and the proxies in
    /// front of them.
    #[must_use]
    pub fn from_json(usage: &Json) -> Self {
        let number =
            |names: &[&str]| names.iter().find_map(|n| parse_token_count(usage.pointer(n)?));
        let input = number(&["/prompt_tokens", "/input_tokens", "/promptTokenCount"]);
        let cached_input = number(&[
            "/prompt_tokens_details/cached_tokens",
            "/input_tokens_details/cached_tokens",
            "/cache_read_input_tokens",
            "/prompt_cache_hit_tokens",
            "/cachedContentTokenCount",
        ]);
        let cache_write = number(&[
            "/prompt_tokens_details/cache_write_tokens",
            "/input_tokens_details/cache_write_tokens",
            "/prompt_tokens_details/cache_creation_tokens",
            "/cache_write_tokens",
            "/cache_creation_input_tokens",
        ]);
        let audio_input =
            number(&["/prompt_tokens_details/audio_tokens", "/input_tokens_details/audio_tokens"]);
        // Anthropic's `input_tokens` excludes cache reads and writes.
        let cached_total = cached_input.unwrap_or(0) + cache_write.unwrap_or(0);
        let is_anthropic = usage.get("prompt_tokens").is_none()
            && ["cache_read_input_tokens", "cache_creation_input_tokens"]
                .iter()
                .any(|name| usage.get(name).is_some());
        let input =
            input.map(|n| if is_anthropic || cached_total > n { n + cached_total } else { n });
        let thoughts = number(&["/thoughtsTokenCount"]).unwrap_or(0);
        let output = number(&["/completion_tokens", "/output_tokens"])
            .or_else(|| Some(number(&["/candidatesTokenCount"])? + thoughts));
        let total = number(&["/total_tokens", "/totalTokenCount"]);
        Self { input, cached_input, cache_write, audio_input, output, total }
    }

    /// Returns the tokens of the request. Numbers that are missing or 0 are taken from `counted`.
    /// Tokens that appear only in the total (hidden reasoning) count as output.
    #[must_use]
    pub fn with_counted_fallback(self, counted: Tokens) -> Tokens {
        let reported_input = self.input.filter(|n| *n > 0);
        let input = reported_input.unwrap_or(counted.input);
        let unreported_write = if reported_input.is_none() { counted.cache_write } else { 0 };
        let output = self.output.filter(|n| *n > 0).unwrap_or(counted.output);
        let cached_input = self.cached_input.unwrap_or(0).min(input);
        Tokens {
            input,
            cached_input,
            cache_write: self
                .cache_write
                .unwrap_or(0)
                .max(unreported_write)
                .min(input - cached_input),
            audio_input: self.audio_input.unwrap_or(counted.audio_input).min(input),
            output: output.max(self.total.unwrap_or(0).saturating_sub(input)),
        }
    }
}

/// Parses a number of tokens from a JSON number or string, rounded up.
fn parse_token_count(json: &Json) -> Option<u64> {
    let number = match json {
        Json::Number(number) => number.as_f64()?,
        Json::String(text) => text.trim().parse().ok()?,
        _ => return None,
    };
    let is_valid = number.is_finite() && number >= 0.0;
    is_valid.then(|| number.ceil().min(MAX_TOKENS as f64) as u64)
}

/// A reply that is assembled from stream events, or from one whole reply.
#[derive(Debug, Default)]
pub(super) struct ReplyDraft {
    pub(super) content: String,
    pub(super) other_output: String,
    pub(super) refusal: String,
    /// Tokens of the content, if the endpoint reports their log-probabilities.
    pub(super) tokens: TokenDraft,
    /// Reason why the reply has ended; `None` if the endpoint has not reported it.
    pub(super) end: Option<DraftEnd>,
    /// Usage, in the endpoint's format.
    pub(super) usage: Json,
    service_tier: Option<String>,
    /// Whether any part of a reply was received.
    pub(super) has_begun: bool,
}

/// Reason why a model stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DraftEnd {
    Complete,
    Truncated,
    /// The provider's filter or the model refused the request.
    Refused,
}

impl ReplyDraft {
    /// Sets the service tier, if the endpoint reports one.
    pub(super) fn set_tier(&mut self, tier: Option<&Json>) {
        if let Some(tier) = tier.and_then(Json::as_str) {
            self.service_tier = Some(tier.to_owned());
        }
    }

    /// Merges a usage report with earlier reports, which may have contained other numbers.
    pub(super) fn merge_usage(&mut self, usage: &Json) {
        let Some(fields) = usage.as_object() else { return };
        if !self.usage.is_object() {
            self.usage = Json::Object(serde_json::Map::new());
        }
        for (name, number) in fields.iter().filter(|(_, number)| !number.is_null()) {
            self.usage[name] = number.clone();
        }
    }

    /// Returns whether the answer is complete.
    pub(super) fn is_complete(&self) -> bool {
        self.end.is_some()
    }

    /// Returns the part of the reply received so far.
    pub(super) fn to_reply(&self) -> Reply {
        let (content, refusal) = (&self.content, &self.refusal);
        Reply {
            content: if content.is_empty() { refusal } else { content }.clone(),
            other_output: self.other_output.clone(),
            logprobs: self.tokens.align_with(content),
            truncated: self.end == Some(DraftEnd::Truncated),
            is_unfinished: self.end.is_none(),
            refused: !refusal.is_empty() || self.end == Some(DraftEnd::Refused),
            reported: ReportedUsage::from_json(&self.usage),
            service_tier: self.service_tier.clone(),
            ..Reply::default()
        }
    }
}
