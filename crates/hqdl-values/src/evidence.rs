//! Evidence: document passages shown in a request, and the quotations in its answer.

use serde::{Deserialize, Serialize};

use crate::key::hash_parts;

/// Number of hexadecimal digits in a passage id and in an evidence digest.
const ID_DIGITS: usize = 12;

/// A passage of a document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Passage {
    /// Id: a hash of the text.
    #[serde(rename = "passage")]
    pub id: String,
    /// Name of the document.
    pub source: String,
    /// Text, without control characters other than line breaks and tabs.
    pub text: String,
}

/// A quotation: words from a passage that an answer quotes to support a cell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quotation {
    /// Column of the cell.
    pub column: String,
    /// List item that the words support; `None` if the cell is not a list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub item: Option<String>,
    /// Id of the passage.
    pub passage: String,
    /// The quoted words, as written in the answer.
    pub quote: String,
}

/// Evidence of a request: the passages shown, and the quotations found in them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShownEvidence {
    /// Digest of the passages.
    pub digest: String,
    /// Passages, best first.
    pub passages: Vec<Passage>,
    /// Quotations that occur in these passages.
    #[serde(default)]
    pub quotes: Vec<Quotation>,
}

impl Passage {
    /// Creates a passage with its id. Characters that could change how a terminal or a model reads
    /// the surrounding text become spaces.
    #[must_use]
    pub fn new(source: &str, text: &str) -> Self {
        let text = to_plain_text(text);
        let source = source.chars().map(|c| if c == '\n' { ' ' } else { to_plain_char(c) });
        Self {
            id: short_hash("hqdl evidence passage v1", &[&text]),
            source: source.collect(),
            text,
        }
    }

    /// Returns true if the passage contains the quote as whole words, ignoring case and the amount
    /// of whitespace. A quote without letters and digits is never contained.
    #[must_use]
    pub fn contains_quote(&self, quote: &str) -> bool {
        let (text, quote) = (normalize_text(&self.text), normalize_text(quote));
        let is_word = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
        let splits_word =
            |before: Option<char>, after: Option<char>| is_word(before) && is_word(after);
        quote.chars().any(char::is_alphanumeric)
            && text.match_indices(&quote).any(|(start, found)| {
                let (before, after) = (&text[..start], &text[start + found.len()..]);
                !splits_word(before.chars().next_back(), quote.chars().next())
                    && !splits_word(quote.chars().next_back(), after.chars().next())
            })
    }
}

impl ShownEvidence {
    /// Creates the evidence for these passages, without quotations.
    #[must_use]
    pub fn new(passages: Vec<Passage>) -> Self {
        let parts: Vec<&str> =
            passages.iter().flat_map(|p| [p.id.as_str(), p.source.as_str()]).collect();
        let digest = short_hash("hqdl evidence v1", &parts);
        Self { digest, passages, quotes: Vec::new() }
    }

    /// Returns true if the passage with this id was shown and contains the words.
    #[must_use]
    pub fn contains_quote(&self, passage: &str, quote: &str) -> bool {
        self.passages.iter().any(|p| p.id == passage && p.contains_quote(quote))
    }

    /// Parses evidence from the JSON stored in a cache; `None` if it is not evidence.
    #[must_use]
    pub fn parse(json: &str) -> Option<Self> {
        serde_json::from_str(json).ok()
    }

    /// Returns the JSON to store in a cache.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

fn short_hash(context: &str, parts: &[&str]) -> String {
    hash_parts(context, parts).chars().take(ID_DIGITS).collect()
}

/// Replaces characters that could change how a terminal, a model or a database reads the text with
/// spaces: control characters, line separators and characters that change the text direction.
#[must_use]
pub fn to_plain_text(text: &str) -> String {
    text.chars().map(to_plain_char).collect()
}

fn to_plain_char(c: char) -> char {
    let is_plain = matches!(c, '\n' | '\t')
        || !c.is_control()
            && !matches!(c, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    if is_plain { c } else { ' ' }
}

/// Returns a text in lower case, with each run of whitespace reduced to one space.
#[must_use]
pub fn normalize_text(text: &str) -> String {
    text.to_lowercase().split_whitespace().collect::<Vec<_>>().join(" ")
}
