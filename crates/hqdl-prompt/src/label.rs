//! Labels: the short names of the rows of a request, for example `2 Batman`.
//!
//! A label is a row's number and a *tag*, a word of its key that no other row of the request has.
//! It is the first entry of the row, and an answer copies it instead of the whole key. This is
//! enough to distinguish the rows, and to detect that a model has confused two rows, because
//! different rows never share a tag.
//!
//! Tags contain only letters and digits. They need no quotes or escapes, so keys with quotes, line
//! breaks or code fences cannot be confused with the syntax of an answer. If no word distinguishes
//! a row from the others (`Alien` and `ALIEN`, NULL and the empty text), the tag has a few digits
//! of a hash. The hash covers all keys of the request, so that a row in the answer to another
//! request does not have the same label.

use std::borrow::Cow;

use foldhash::{HashMap, HashSet};

use hqdl_values::value::Value;

/// Maximum number of characters in a tag. A longer tag would only cost more tokens.
const MAX_TAG_CHARS: usize = 12;
/// Maximum number of tokens of a label in most scripts.
pub const MAX_LABEL_TOKENS: u64 = MAX_TAG_CHARS as u64;
/// Maximum number of words examined per key.
const MAX_KEY_WORDS: usize = 100;
/// Initial number of hash digits in a tag.
const MIN_HASH_DIGITS: usize = 3;

struct KeyWord<'k> {
    text: &'k str,
    normalized: Cow<'k, str>,
}

/// Returns the tags of a request's rows, in order. The tags are unique even when case is ignored.
pub fn build_row_tags<'r>(keys: impl IntoIterator<Item = &'r [Value]>) -> Vec<String> {
    let keys: Vec<&[Value]> = keys.into_iter().collect();
    let key_texts: Vec<Vec<Cow<'_, str>>> =
        keys.iter().map(|key| list_canonical_texts(key)).collect();
    let words: Vec<Vec<KeyWord<'_>>> = key_texts.iter().map(|texts| split_words(texts)).collect();
    // For each word, the number of rows that contain it and the last of these rows.
    let mut rows_with: HashMap<&str, (usize, usize)> = HashMap::default();
    for (row, words) in words.iter().enumerate() {
        for word in words {
            let (row_count, last_row) = rows_with.entry(&word.normalized).or_insert((0, row));
            if *row_count == 0 || *last_row != row {
                (*row_count, *last_row) = (*row_count + 1, row);
            }
        }
    }
    // A tag made from a hash must not equal a word of another row.
    let mut used_tags: Option<HashSet<String>> = None;
    let mut request_hash: Option<blake3::Hash> = None;
    let find_tag = |(key, words): (&&[Value], &Vec<KeyWord<'_>>)| {
        if let Some(distinguishing) = find_distinguishing_word(words, &rows_with) {
            return distinguishing.to_owned();
        }
        let all_words = || rows_with.keys().map(|word| (*word).to_owned()).collect();
        let request_hash = *request_hash.get_or_insert_with(|| hash_keys(&keys));
        let first = words.first().map(|word| word.text);
        make_hash_tag(&request_hash, key, first, used_tags.get_or_insert_with(all_words))
    };
    keys.iter().zip(&words).map(find_tag).collect()
}

/// Returns the shortest word that no other row contains, preferring names to numbers and single
/// letters.
fn find_distinguishing_word<'w>(
    words: &[KeyWord<'w>],
    rows_with: &HashMap<&str, (usize, usize)>,
) -> Option<&'w str> {
    let is_unique =
        |word: &&KeyWord<'_>| rows_with.get(&*word.normalized).is_some_and(|(n, _)| *n == 1);
    let is_name = |word: &&str| word.chars().count() > 2 && word.chars().any(char::is_alphabetic);
    let unique: Vec<&str> = words.iter().filter(is_unique).map(|word| word.text).collect();
    let names = unique.iter().filter(|word| is_name(word)).min_by_key(|word| word.len());
    names.or_else(|| unique.iter().min_by_key(|word| word.len())).copied()
}

fn hash_keys(keys: &[&[Value]]) -> blake3::Hash {
    let keys: Vec<Vec<Option<_>>> =
        keys.iter().map(|key| key.iter().map(Value::canonical_text).collect()).collect();
    blake3::hash(serde_json::to_string(&keys).unwrap_or_default().as_bytes())
}

/// Returns a tag made from a hash, for a row that no word distinguishes.
fn make_hash_tag(
    request_hash: &blake3::Hash,
    key: &[Value],
    first: Option<&str>,
    used_tags: &mut HashSet<String>,
) -> String {
    let parts: Vec<Option<_>> = key.iter().map(Value::canonical_text).collect();
    let text = serde_json::to_string(&parts).unwrap_or_default();
    let hash = blake3::keyed_hash(request_hash.as_bytes(), text.as_bytes()).to_hex();
    let first = first.unwrap_or_default();
    let dash = if first.is_empty() { "" } else { "-" };
    for digits in MIN_HASH_DIGITS..hash.len() {
        let tag = format!("{first}{dash}x{}", &hash[..digits]);
        if used_tags.insert(normalize_key(&tag)) {
            return tag;
        }
    }
    format!("{first}{dash}x{hash}")
}

fn list_canonical_texts(key: &[Value]) -> Vec<Cow<'_, str>> {
    key.iter().filter_map(Value::canonical_text).collect()
}

/// Returns the words of a key: runs of letters and digits, truncated to the maximum length.
fn split_words(texts: &[impl AsRef<str>]) -> Vec<KeyWord<'_>> {
    let mut words = Vec::new();
    for text in texts {
        let runs = text.as_ref().split(|c: char| !c.is_alphanumeric()).filter(|w| !w.is_empty());
        words.extend(runs.take(MAX_KEY_WORDS - words.len()).map(|run| {
            let end = run.char_indices().nth(MAX_TAG_CHARS).map_or(run.len(), |(end, _)| end);
            let text = &run[..end];
            let is_normalized = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
            let normalized = if text.bytes().all(is_normalized) {
                text.into()
            } else {
                normalize_key(text).into()
            };
            KeyWord { text, normalized }
        }));
    }
    words
}

/// Returns the letters and digits of a text in lower case. Models preserve these when they copy a
/// text.
pub fn normalize_key(text: &str) -> String {
    if text.is_ascii() {
        let mut kept = Vec::with_capacity(text.len());
        kept.extend(text.bytes().filter(u8::is_ascii_alphanumeric).map(|b| b.to_ascii_lowercase()));
        return String::from_utf8(kept).unwrap_or_default();
    }
    text.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

/// Parses a label or a plain number: `2 Batman`, `2`, `2.`, `#2`, `row 2`, `2: Batman`. Returns the
/// number and the text after it.
pub fn parse_label(field: &str) -> Option<(usize, &str)> {
    let field = field.trim().trim_start_matches("row ").trim_start_matches('#');
    let digits = field.find(|c: char| !c.is_ascii_digit()).unwrap_or(field.len());
    let (number, rest) = field.split_at(digits);
    if rest.starts_with(char::is_alphanumeric) {
        return None;
    }
    let tag = rest.trim_start_matches([' ', '.', ')', ':', '-', '\t']).trim_end();
    Some((number.parse().ok()?, tag))
}

/// Returns the normalized words of texts.
pub fn normalize_words(texts: &[impl AsRef<str>]) -> Vec<String> {
    split_words(texts).into_iter().map(|word| word.normalized.into_owned()).collect()
}

/// Returns true if an echoed key part means "no value".
pub fn is_null_text(field: &str) -> bool {
    let field = field.trim();
    ["", "null", "none", "?", "n/a"].iter().any(|none| field.eq_ignore_ascii_case(none))
}

/// Returns true if a key could be confused with the syntax of an answer that repeats it: it
/// contains a quote, a line break or a fence, or looks like NULL.
pub fn is_ambiguous_key(key: &[Value]) -> bool {
    key.iter().any(|part| match part {
        Value::Text(text) => {
            is_null_text(text)
                || text.contains(['"', '`'])
                || text.starts_with('\'')
                || text.ends_with('\'')
                || text.chars().any(char::is_control)
        }
        _ => false,
    })
}
