//! Log-probabilities of a reply's tokens, by their position in its content.

use std::ops::Range;

use serde_json::Value as Json;

/// Log-probabilities are rounded to a multiple of 1 / `STEPS`.
const STEPS: f64 = 1e6;

/// A token: the position of its end, and its log-probability if the endpoint reports a valid one.
#[derive(Debug, Clone, Copy, PartialEq)]
struct ReplyToken {
    end: usize,
    logprob: Option<f64>,
}

/// Tokens as they arrive, with their bytes.
#[derive(Debug, Default)]
pub(super) struct TokenDraft {
    bytes: Vec<u8>,
    tokens: Vec<ReplyToken>,
}

impl TokenDraft {
    /// Adds a list of tokens in `OpenAI`'s format: `{"token": …, "logprob": …, "bytes": […]}`. If a
    /// token ends within a character, only `bytes` contains its part of the character; `token`
    /// contains a replacement character.
    pub(super) fn add_tokens(&mut self, tokens: Option<&Json>) {
        for token in tokens.and_then(Json::as_array).into_iter().flatten() {
            let byte = |byte: &Json| u8::try_from(byte.as_u64()?).ok();
            let bytes = token.get("bytes").and_then(Json::as_array);
            match bytes.and_then(|bytes| bytes.iter().map(byte).collect::<Option<Vec<u8>>>()) {
                Some(bytes) => self.bytes.extend(bytes),
                None => {
                    let text = token.get("token").and_then(Json::as_str).unwrap_or_default();
                    self.bytes.extend(text.as_bytes());
                }
            }
            let logprob = token.get("logprob").and_then(Json::as_f64);
            let logprob = logprob.filter(|logprob| logprob.is_finite());
            self.tokens.push(ReplyToken { end: self.bytes.len(), logprob });
        }
    }

    /// Removes all tokens.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Returns the tokens aligned with `content`; no tokens if their text does not contain it.
    pub(super) fn align_with(&self, content: &str) -> TokenLogprobs {
        let is_at = |start: &usize| self.bytes[*start..].starts_with(content.as_bytes());
        // Some endpoints remove white space or special tokens around the content, so try all start
        // positions.
        let starts = 0..=self.bytes.len().saturating_sub(content.len());
        let Some(start) = starts.into_iter().find(is_at).filter(|_| !content.is_empty()) else {
            return TokenLogprobs::default();
        };
        let in_content =
            |token: &ReplyToken| Some(ReplyToken { end: token.end.checked_sub(start)?, ..*token });
        TokenLogprobs { tokens: self.tokens.iter().filter_map(in_content).collect() }
    }
}

/// Log-probabilities of the tokens of a reply's content.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TokenLogprobs {
    tokens: Vec<ReplyToken>,
}

impl TokenLogprobs {
    /// Returns true if the endpoint reported no log-probabilities, or none that match the content.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Returns the lowest log-probability among the tokens that overlap `range`, a byte range of
    /// the content. `None` if there is no such token, or if one of them has no log-probability.
    #[must_use]
    pub fn lowest_logprob(&self, range: &Range<usize>) -> Option<f64> {
        let starts = std::iter::once(0).chain(self.tokens.iter().map(|token| token.end));
        let overlapping = starts.zip(&self.tokens).filter(|(start, token)| {
            *start < token.end && *start < range.end && token.end > range.start
        });
        let least = overlapping
            .map(|(_, token)| token.logprob)
            .try_fold(f64::MAX, |least, next| Some(least.min(next?)))?;
        // An endpoint's rounding errors can exceed 0.
        (least < f64::MAX).then(|| ((least * STEPS).round() / STEPS).min(0.0))
    }
}
