//! Splits long texts into passages: between paragraphs if possible, otherwise between sentences or,
//! as a last resort, between words.

use std::collections::HashSet;

use hqdl_values::evidence::Passage;
use hqdl_values::tokens::Tokenizer;

/// Maximum number of tokens in a passage. A passage has only a few sentences, so that a prompt has
/// room for passages from several documents.
pub(super) const MAX_PASSAGE_TOKENS: u64 = 200;
/// Maximum length of a document's name in a prompt, in characters.
const MAX_NAME_CHARS: usize = 120;

/// Splits a document into passages.
pub(super) fn split_document(
    name: &str,
    text: &str,
    tokenizer: Tokenizer,
    passage_tokens: u64,
) -> Vec<Passage> {
    let name: String = name.chars().take(MAX_NAME_CHARS).collect();
    let parts = split_passages(text, tokenizer, passage_tokens);
    parts.into_iter().map(|part| Passage::new(&name, part)).collect()
}

/// Returns the leading passages that fit within `max_tokens`, without duplicates.
pub(super) fn select_passages(
    passages: impl Iterator<Item = Passage>,
    tokenizer: Tokenizer,
    max_tokens: u64,
) -> Vec<Passage> {
    let (mut shown, mut seen, mut tokens) = (Vec::new(), HashSet::new(), 0);
    for passage in passages {
        let line = serde_json::to_string(&passage).unwrap_or_default();
        let count = tokenizer.count_tokens(&line) + 1;
        if tokens + count <= max_tokens && seen.insert(passage.id.clone()) {
            tokens += count;
            shown.push(passage);
        }
    }
    shown
}

/// Splits a text into passages of at most `max_tokens` tokens. No passage is empty, and only the
/// whitespace between passages is dropped.
#[must_use]
pub fn split_passages(text: &str, tokenizer: Tokenizer, max_tokens: u64) -> Vec<&str> {
    let max_tokens = max_tokens.max(1);
    let (mut passages, mut start, mut end, mut tokens) = (Vec::new(), 0, 0, 0);
    for (from, to) in find_sentences(text) {
        let sentence = &text[from..to];
        let count = count_tokens_bounded(sentence, tokenizer, max_tokens);
        // A paragraph starts a new passage if the current passage has more than a quarter of the
        // token limit.
        let paragraph = text[end..from].matches('\n').count() > 1 && tokens * 4 > max_tokens;
        if start < end && (tokens + count > max_tokens || paragraph) {
            passages.push(&text[start..end]);
            (start, tokens) = (from, 0);
        }
        if start == end {
            start = from;
        }
        (end, tokens) = (to, tokens + count);
        if count > max_tokens {
            split_sentence(sentence, tokenizer, max_tokens, &mut passages);
            (start, tokens) = (to, 0);
        }
    }
    if start < end {
        passages.push(&text[start..end]);
    }
    passages.retain(|p| !p.trim().is_empty());
    passages.into_iter().map(str::trim).collect()
}

/// Returns the number of tokens in a text. If the text is clearly too long, returns a number above
/// `max_tokens` without counting.
fn count_tokens_bounded(text: &str, tokenizer: Tokenizer, max_tokens: u64) -> u64 {
    // A token is rarely longer than forty bytes.
    let min_tokens = text.len() as u64 / 40;
    if min_tokens > max_tokens { min_tokens } else { tokenizer.count_tokens(text) }
}

/// Returns the start and end of each sentence. Sentences end at line ends and after punctuation.
fn find_sentences(text: &str) -> Vec<(usize, usize)> {
    let mut all = Vec::new();
    let mut start = None;
    let mut is_ended = false;
    for (at, c) in text.char_indices() {
        if c.is_whitespace() {
            if let Some(from) = start.filter(|_| is_ended || c == '\n') {
                all.push((from, at));
                start = None;
            }
            continue;
        }
        start.get_or_insert(at);
        let closes = matches!(c, '"' | '\'' | ')' | ']' | '\u{201d}' | '\u{2019}');
        is_ended = matches!(c, '.' | '!' | '?' | '\u{2026}' | '\u{3002}') || is_ended && closes;
    }
    all.extend(start.map(|from| (from, text.len())));
    all
}

/// Splits a sentence that is too long, between words if possible.
fn split_sentence<'t>(
    text: &'t str,
    tokenizer: Tokenizer,
    max_tokens: u64,
    out: &mut Vec<&'t str>,
) {
    let mut rest = text.trim();
    while !rest.is_empty() {
        // Start with a length that may fit and shorten it until it does.
        let mut end = find_word_boundary(
            rest,
            usize::try_from(max_tokens.saturating_mul(6)).unwrap_or(usize::MAX),
        );
        while end > 1 && count_tokens_bounded(&rest[..end], tokenizer, max_tokens) > max_tokens {
            end = find_word_boundary(rest, end * 3 / 4);
        }
        let end = if end == 0 { rest.chars().next().map_or(1, char::len_utf8) } else { end };
        out.push(rest[..end].trim());
        rest = rest[end..].trim_start();
    }
}

/// Returns the last word boundary up to `at`, or the last character boundary if no word ends near
/// `at`.
fn find_word_boundary(text: &str, at: usize) -> usize {
    if at >= text.len() {
        return text.len();
    }
    let at = (0..=at).rev().find(|n| text.is_char_boundary(*n)).unwrap_or(0);
    let last_blank = text[..at].rfind(char::is_whitespace).filter(|n| *n > at / 2);
    last_blank.unwrap_or(at)
}
