//! Splits long texts into passages: between paragraphs, otherwise between sentences, otherwise
//! between words.

use hqdl_values::tokens::Tokenizer;

/// Splits a text into passages of at most `max_tokens` tokens. None of them is empty, and together
/// they are the text without the whitespace between them.
#[must_use]
pub fn cut(text: &str, tokenizer: Tokenizer, most: u64) -> Vec<&str> {
    let most = most.max(1);
    let (mut passages, mut start, mut end, mut tokens) = (Vec::new(), 0, 0, 0);
    for (from, to) in sentences(text) {
        let sentence = &text[from..to];
        let count = count(sentence, tokenizer, most);
        // A paragraph starts a new passage if the previous one has more than a quarter of the
        // limit.
        let paragraph = text[end..from].matches('\n').count() > 1 && tokens * 4 > most;
        if start < end && (tokens + count > most || paragraph) {
            passages.push(&text[start..end]);
            (start, tokens) = (from, 0);
        }
        if start == end {
            start = from;
        }
        (end, tokens) = (to, tokens + count);
        if count > most {
            pieces(sentence, tokenizer, most, &mut passages);
            (start, tokens) = (to, 0);
        }
    }
    if start < end {
        passages.push(&text[start..end]);
    }
    passages.retain(|p| !p.trim().is_empty());
    passages.into_iter().map(str::trim).collect()
}

/// Returns the number of tokens of a text. If the text is certainly too long, any number above
/// `max_tokens` is returned.
fn count(text: &str, tokenizer: Tokenizer, most: u64) -> u64 {
    // A token is rarely longer than forty bytes.
    let least = text.len() as u64 / 40;
    if least > most { least } else { tokenizer.count(text) }
}

/// Returns the start and end of each sentence. Sentences end at line ends and after punctuation.
fn sentences(text: &str) -> Vec<(usize, usize)> {
    let mut all = Vec::new();
    let mut start = None;
    let mut ended = false;
    for (at, c) in text.char_indices() {
        if c.is_whitespace() {
            if let Some(from) = start.filter(|_| ended || c == '\n') {
                all.push((from, at));
                start = None;
            }
            continue;
        }
        start.get_or_insert(at);
        let closes = matches!(c, '"' | '\'' | ')' | ']' | '\u{201d}' | '\u{2019}');
        ended = matches!(c, '.' | '!' | '?' | '\u{2026}' | '\u{3002}') || ended && closes;
    }
    all.extend(start.map(|from| (from, text.len())));
    all
}

/// Splits a sentence that is too long, between words if possible.
fn pieces<'t>(text: &'t str, tokenizer: Tokenizer, most: u64, into: &mut Vec<&'t str>) {
    let mut rest = text.trim();
    while !rest.is_empty() {
        // Start with a length that may fit and shorten it until it does.
        let mut end = boundary(rest, usize::try_from(most.saturating_mul(6)).unwrap_or(usize::MAX));
        while end > 1 && count(&rest[..end], tokenizer, most) > most {
            end = boundary(rest, end * 3 / 4);
        }
        let end = if end == 0 { rest.chars().next().map_or(1, char::len_utf8) } else { end };
        into.push(rest[..end].trim());
        rest = rest[end..].trim_start();
    }
}

/// Returns the last offset up to `at` between words, or at least between characters.
fn boundary(text: &str, at: usize) -> usize {
    if at >= text.len() {
        return text.len();
    }
    let at = (0..=at).rev().find(|n| text.is_char_boundary(*n)).unwrap_or(0);
    let blank = text[..at].rfind(char::is_whitespace).filter(|n| *n > at / 2);
    blank.unwrap_or(at)
}
