//! Counting tokens with the model's own tokenizer, offline. Models whose
//! tokenizer is not known are estimated from bytes, and reports say so.

use tiktoken_rs::CoreBPE;

/// Bytes a token, for models whose tokenizer is not known.
const BYTES_A_TOKEN: f64 = 3.5;
/// Texts beyond this are estimated from their first part: a tokenizer is slow
/// on megabytes and no plan needs more.
const COUNTED_BYTES: usize = 1 << 20;

/// Tokens that an endpoint may wrap around a prompt.
const AROUND: u64 = 16;

/// The most tokens of an image for models that say no rule: more than any published one
/// comes to.
const IMAGE: u64 = 50_000;
/// The most tokens of an image, by what the model's name begins with; the first that fits.
///
/// `OpenAI`'s tiles: a base and, of the 768 × 2048 pixels that a large image is scaled
/// to, eight tiles. Its patches: 1,536, times the model's factor. Anthropic's: pixels of
/// the largest size, by 750.
const IMAGES: [(&str, u64); 16] = [
    ("gpt-4o-mini", 2_833 + 8 * 5_667),
    ("gpt-4o", 85 + 8 * 170),
    ("gpt-4.1-mini", 2_489),
    ("gpt-4.1-nano", 3_779),
    ("gpt-4.1", 85 + 8 * 170),
    ("gpt-4-turbo", 85 + 8 * 170),
    ("gpt-4.5", 85 + 8 * 170),
    ("gpt-5-mini", 2_489),
    ("gpt-5-nano", 3_779),
    ("o4-mini", 2_642),
    ("o1-pro", 75 + 8 * 150),
    ("o1", 75 + 8 * 150),
    ("o3", 75 + 8 * 150),
    ("chatgpt-4o", 85 + 8 * 170),
    ("claude-3", 1_600),
    ("claude-", 4_784),
];

/// The most tokens that a model takes for an image, whatever its size.
#[must_use]
pub fn image_at_most(model: &str) -> u64 {
    let name = model.rsplit('/').next().unwrap_or(model);
    IMAGES.iter().find(|(start, _)| name.starts_with(start)).map_or(IMAGE, |(_, most)| *most)
}

/// Counts the tokens of texts.
#[derive(Clone, Copy)]
pub enum Tokenizer {
    /// The model's own.
    Exact(&'static CoreBPE),
    /// From the number of bytes.
    Estimate,
}

impl Tokenizer {
    /// The tokenizer of a model. Loading a vocabulary takes about 0.2 s, once
    /// a process, so ask for it only when there is something to count.
    ///
    /// Only vocabularies of models that still answer are in the binary (each is
    /// megabytes); older models are estimated.
    #[must_use]
    pub fn of(model: &str) -> Self {
        use tiktoken_rs::tokenizer::Tokenizer as Name;
        // Gateways write vendor/model.
        let name = model.rsplit('/').next().unwrap_or(model);
        match tiktoken_rs::tokenizer::get_tokenizer(name) {
            // The harmony encoding differs in its special tokens alone.
            Some(Name::O200kBase | Name::O200kHarmony) => {
                Self::Exact(tiktoken_rs::o200k_base_singleton())
            }
            Some(Name::Cl100kBase) => Self::Exact(tiktoken_rs::cl100k_base_singleton()),
            _ => Self::Estimate,
        }
    }

    /// Whether counts are the model's own.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        matches!(self, Self::Exact(_))
    }

    /// The most that so many tokens may be of a prompt that was counted here: with
    /// what an endpoint wraps around it, too.
    #[must_use]
    pub fn of_prompt_at_most(&self, counted: u64) -> u64 {
        self.at_most(counted + AROUND)
    }

    /// What is counted here with room for a count of the endpoint's own: a tokenizer
    /// that is only guessed may be wrong by much.
    #[must_use]
    pub fn at_most(&self, counted: u64) -> u64 {
        if self.is_exact() { counted + counted / 50 } else { counted + counted / 2 }
    }

    /// The least that a text counted here can be by a count of the endpoint's own: no
    /// tokenizer makes tokens of seven bytes on average.
    #[must_use]
    pub fn at_least(&self, counted: u64) -> u64 {
        if self.is_exact() { counted } else { counted / 2 }
    }

    /// The number of tokens of a text.
    #[must_use]
    pub fn count(&self, text: &str) -> u64 {
        match self {
            Self::Exact(bpe) if text.len() <= COUNTED_BYTES => bpe.count_ordinary(text) as u64,
            Self::Exact(bpe) => {
                let mut end = COUNTED_BYTES;
                while !text.is_char_boundary(end) {
                    end -= 1;
                }
                let head = bpe.count_ordinary(&text[..end]) as f64;
                (head * text.len() as f64 / end as f64).ceil() as u64
            }
            Self::Estimate => (text.len() as f64 / BYTES_A_TOKEN).ceil() as u64,
        }
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.is_exact() { "Exact" } else { "Estimate" })
    }
}
