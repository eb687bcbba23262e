//! Counts tokens offline with the model's own tokenizer. If the tokenizer is unknown, the count is
//! estimated from the number of bytes, and reports mention the estimate.

use tiktoken_rs::CoreBPE;

/// Bytes per token, for models whose tokenizer is unknown.
const BYTES_PER_TOKEN: f64 = 3.5;
/// Maximum length in bytes of a text whose tokens are all counted. For a longer text, the count is
/// extrapolated from its beginning: a tokenizer is slow on megabytes, and an estimate is enough for
/// planning.
const MAX_COUNTED_BYTES: usize = 1 << 20;

/// Number of tokens that an endpoint may add around a prompt.
const PROMPT_OVERHEAD: u64 = 16;

/// Counts the tokens of a text, or estimates their number.
#[derive(Clone, Copy)]
pub enum Tokenizer {
    /// The model's own tokenizer.
    Exact(&'static CoreBPE),
    /// Estimate from the number of bytes.
    Estimate,
}

impl Tokenizer {
    /// Returns the tokenizer of a model. Loading a vocabulary takes about 0.2 s, once per process,
    /// so call this only if there is something to count.
    ///
    /// Because each vocabulary takes megabytes, the binary contains only the vocabularies of models
    /// that are still available. For older models, tokens are estimated.
    #[must_use]
    pub fn for_model(model: &str) -> Self {
        use tiktoken_rs::tokenizer::Tokenizer as Name;
        // Gateways use names such as vendor/model.
        let name = model.rsplit('/').next().unwrap_or(model);
        match tiktoken_rs::tokenizer::get_tokenizer(name) {
            // The harmony encoding differs only in its special tokens.
            Some(Name::O200kBase | Name::O200kHarmony) => {
                Self::Exact(tiktoken_rs::o200k_base_singleton())
            }
            Some(Name::Cl100kBase) => Self::Exact(tiktoken_rs::cl100k_base_singleton()),
            _ => Self::Estimate,
        }
    }

    /// Returns true if the counts are exact.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        matches!(self, Self::Exact(_))
    }

    /// Returns the maximum number of tokens in a prompt for which hqdl counted `counted` tokens,
    /// including those that an endpoint adds around the prompt.
    #[must_use]
    pub fn max_prompt_tokens(&self, counted: u64) -> u64 {
        self.max_tokens(counted + PROMPT_OVERHEAD)
    }

    /// Returns the maximum number of tokens that an endpoint may count where hqdl counted
    /// `counted`. An estimate may be off by half.
    #[must_use]
    pub fn max_tokens(&self, counted: u64) -> u64 {
        if self.is_exact() { counted + counted / 50 } else { counted + counted / 2 }
    }

    /// Returns the minimum number of tokens that an endpoint may count where hqdl counted
    /// `counted`. No tokenizer averages seven bytes per token.
    #[must_use]
    pub fn min_tokens(&self, counted: u64) -> u64 {
        if self.is_exact() { counted } else { counted / 2 }
    }

    /// Returns the minimum usage that an endpoint can plausibly report where hqdl counted `counted`
    /// tokens: half, or a quarter if the count is an estimate.
    #[must_use]
    pub fn min_reported_tokens(&self, counted: u64) -> u64 {
        counted / if self.is_exact() { 2 } else { 4 }
    }

    /// Returns the number of tokens in a text.
    #[must_use]
    pub fn count_tokens(&self, text: &str) -> u64 {
        match self {
            Self::Exact(bpe) if text.len() <= MAX_COUNTED_BYTES => bpe.count_ordinary(text) as u64,
            Self::Exact(bpe) => {
                let mut end = MAX_COUNTED_BYTES;
                while !text.is_char_boundary(end) {
                    end -= 1;
                }
                let head_tokens = bpe.count_ordinary(&text[..end]) as f64;
                (head_tokens * text.len() as f64 / end as f64).ceil() as u64
            }
            Self::Estimate => (text.len() as f64 / BYTES_PER_TOKEN).ceil() as u64,
        }
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.is_exact() { "Exact" } else { "Estimate" })
    }
}
