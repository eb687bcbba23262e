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

/// Maximum number of tokens per image for models without a published rule. It exceeds every
/// published maximum.
const MAX_IMAGE_TOKENS: u64 = 50_000;
/// Returns the number of tokens for eight tiles of 512 × 512 pixels, the maximum per image. An
/// image is scaled to fit 2048 × 2048 and then to a shorter side of 768, which leaves four by two
/// tiles.
const fn tile_tokens(base: u64, tile: u64) -> u64 {
    base + 8 * tile
}
/// Returns the number of tokens for 1,536 patches of 32 × 32 pixels, the maximum per image,
/// multiplied by the model's factor in hundredths.
const fn patch_tokens(hundredths: u64) -> u64 {
    (1_536 * hundredths).div_ceil(100)
}
/// Maximum number of tokens per image at high detail, which `auto` may select. Entries are matched
/// against the model's name or its prefix before a hyphen; the first match applies.
///
/// Sources: `OpenAI`, "Images and vision" (<https://platform.openai.com/docs/guides/images-vision>,
/// "Calculating costs"). That page lists tiles for gpt-4o, gpt-4.1, gpt-4.5, gpt-5, o1 and o3, and
/// patches for gpt-4.1-mini, -nano, gpt-5-mini, -nano and o4-mini. For gpt-4.1 it also lists
/// patches, which use more tokens than its tiles. Anthropic, "Vision"
/// (<https://docs.anthropic.com/en/docs/build-with-claude/vision>): images are scaled down to about
/// 1,600 tokens, or to 4,784 for models with a high resolution. Newer `OpenAI` models (from gpt-5.2
/// on) use patches without a published limit, so the table does not contain them.
const IMAGE_TOKEN_LIMITS: [(&str, u64); 20] = [
    ("gpt-4o-mini", tile_tokens(2_833, 5_667)),
    ("gpt-4o", tile_tokens(85, 170)),
    ("gpt-4.1-mini", patch_tokens(162)),
    ("gpt-4.1-nano", patch_tokens(246)),
    ("gpt-4.1", patch_tokens(100)),
    ("gpt-4-turbo", tile_tokens(85, 170)),
    ("gpt-4.5", tile_tokens(85, 170)),
    ("gpt-5-mini", patch_tokens(162)),
    ("gpt-5-nano", patch_tokens(246)),
    ("gpt-5-pro", MAX_IMAGE_TOKENS),
    ("gpt-5-codex", MAX_IMAGE_TOKENS),
    ("gpt-5", tile_tokens(70, 140)),
    ("computer-use-preview", tile_tokens(65, 129)),
    ("o4-mini", patch_tokens(172)),
    ("o1-pro", tile_tokens(75, 150)),
    ("o1", tile_tokens(75, 150)),
    ("o3", tile_tokens(75, 150)),
    ("chatgpt-4o", tile_tokens(85, 170)),
    ("claude-3", 1_600),
    ("claude", 4_784),
];

/// Returns the maximum number of tokens that a model uses for an image of any size.
#[must_use]
pub fn max_image_tokens(model: &str) -> u64 {
    let name = model.rsplit('/').next().unwrap_or(model);
    let matches_name = |prefix: &str| {
        name.strip_prefix(prefix).is_some_and(|r| r.is_empty() || r.starts_with('-'))
    };
    IMAGE_TOKEN_LIMITS
        .iter()
        .find(|(prefix, _)| matches_name(prefix))
        .map_or(MAX_IMAGE_TOKENS, |(_, limit)| *limit)
}

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
