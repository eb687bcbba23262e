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
//! of a hash. The hash covers all keys of the request, so that a row of another request's answer
//! does not have the same label.

use std::borrow::Cow;

use foldhash::{HashMap, HashSet};

use hqdl_values::value::Value;

/// Maximum number of characters of a tag; more would only be longer to copy.
const LONGEST: usize = 12;
/// Maximum number of tokens of a label in most scripts.
pub const OUTPUT: u64 = LONGEST as u64;
/// Maximum number of words of a key that are examined.
const WORDS: usize = 100;
/// Initial number of hash digits of a tag.
const DIGITS: usize = 3;

/// Word of a key.
struct KeyWord<'k> {
    text: &'k str,
    folded: Cow<'k, str>,
}

/// Returns the tags of the rows of a request, in their order. The tags are unique, even if case is
/// ignored.
pub fn tags<'r>(keys: impl IntoIterator<Item = &'r [Value]>) -> Vec<String> {
    let keys: Vec<&[Value]> = keys.into_iter().collect();
    let texts: Vec<Vec<Cow<'_, str>>> = keys.iter().map(|key| texts(key)).collect();
    let words: Vec<Vec<KeyWord<'_>>> = texts.iter().map(|texts| words(texts)).collect();
    // For each word, the number of rows with it and the last of them.
    let mut rows_with: HashMap<&str, (usize, usize)> = HashMap::default();
    for (row, words) in words.iter().enumerate() {
        for word in words {
            let (rows, last) = rows_with.entry(&word.folded).or_insert((0, row));
            if *rows == 0 || *last != row {
                (*rows, *last) = (*rows + 1, row);
            }
        }
    }
    // A tag made from a hash must not equal a word of another row.
    let mut taken: Option<HashSet<String>> = None;
    let mut request: Option<blake3::Hash> = None;
    let tag = |(key, words): (&&[Value], &Vec<KeyWord<'_>>)| {
        if let Some(own) = telling(words, &rows_with) {
            return own.to_owned();
        }
        let all = || rows_with.keys().map(|word| (*word).to_owned()).collect();
        let request = *request.get_or_insert_with(|| hash_keys(&keys));
        let first = words.first().map(|word| word.text);
        hashed(&request, key, first, taken.get_or_insert_with(all))
    };
    keys.iter().zip(&words).map(tag).collect()
}

/// Returns the shortest word that no other row has, preferring a name to a number or a letter.
fn telling<'w>(
    words: &[KeyWord<'w>],
    rows_with: &HashMap<&str, (usize, usize)>,
) -> Option<&'w str> {
    let alone = |word: &&KeyWord<'_>| rows_with.get(&*word.folded).is_some_and(|(n, _)| *n == 1);
    let name = |word: &&str| word.chars().count() > 2 && word.chars().any(char::is_alphabetic);
    let alone: Vec<&str> = words.iter().filter(alone).map(|word| word.text).collect();
    let names = alone.iter().filter(|word| name(word)).min_by_key(|word| word.len());
    names.or_else(|| alone.iter().min_by_key(|word| word.len())).copied()
}

/// Returns a hash of the keys of a request.
fn hash_keys(keys: &[&[Value]]) -> blake3::Hash {
    let keys: Vec<Vec<Option<_>>> =
        keys.iter().map(|key| key.iter().map(Value::canonical).collect()).collect();
    blake3::hash(serde_json::to_string(&keys).unwrap_or_default().as_bytes())
}

/// Returns a tag made from a hash, for a row that no word distinguishes.
fn hashed(
    request: &blake3::Hash,
    key: &[Value],
    first: Option<&str>,
    taken: &mut HashSet<String>,
) -> String {
    let parts: Vec<Option<_>> = key.iter().map(Value::canonical).collect();
    let text = serde_json::to_string(&parts).unwrap_or_default();
    let hash = blake3::keyed_hash(request.as_bytes(), text.as_bytes()).to_hex();
    let first = first.unwrap_or_default();
    let dash = if first.is_empty() { "" } else { "-" };
    for digits in DIGITS..hash.len() {
        let tag = format!("{first}{dash}x{}", &hash[..digits]);
        if taken.insert(fold(&tag)) {
            return tag;
        }
    }
    format!("{first}{dash}x{hash}")
}

/// Returns the canonical texts of a key.
fn texts(key: &[Value]) -> Vec<Cow<'_, str>> {
    key.iter().filter_map(Value::canonical).collect()
}

/// Returns the words of a key: runs of letters and digits, truncated to the maximum length.
fn words(texts: &[impl AsRef<str>]) -> Vec<KeyWord<'_>> {
    let mut words = Vec::new();
    for text in texts {
        let runs = text.as_ref().split(|c: char| !c.is_alphanumeric()).filter(|w| !w.is_empty());
        words.extend(runs.take(WORDS - words.len()).map(|run| {
            let end = run.char_indices().nth(LONGEST).map_or(run.len(), |(end, _)| end);
            let text = &run[..end];
            let is_folded = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
            let folded = if text.bytes().all(is_folded) { text.into() } else { fold(text).into() };
            KeyWord { text, folded }
        }));
    }
    words
}

/// Returns the letters and digits of a text in lower case, which a model preserves when it copies.
pub fn fold(text: &str) -> String {
    if text.is_ascii() {
        let mut kept = Vec::with_capacity(text.len());
        kept.extend(text.bytes().filter(u8::is_ascii_alphanumeric).map(|b| b.to_ascii_lowercase()));
        return String::from_utf8(kept).unwrap_or_default();
    }
    text.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

/// Parses a label, or a number alone: `2 Batman`, `2`, `2.`, `#2`, `row 2`, `2: Batman`. Returns
/// the number and the text after it.
pub fn read(field: &str) -> Option<(usize, &str)> {
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
pub fn folded_words(texts: &[impl AsRef<str>]) -> Vec<String> {
    words(texts).into_iter().map(|word| word.folded.into_owned()).collect()
}

/// Returns true if an echoed key part means "no value".
pub fn says_none(field: &str) -> bool {
    let field = field.trim();
    ["", "null", "none", "?", "n/a"].iter().any(|none| field.eq_ignore_ascii_case(none))
}

/// Returns true if a key could be confused with the syntax of an answer that repeats it: it
/// contains a quote, a line break or a fence, or looks like NULL.
pub fn confusing(key: &[Value]) -> bool {
    key.iter().any(|part| match part {
        Value::Text(text) => {
            says_none(text)
                || text.contains(['"', '`'])
                || text.starts_with('\'')
                || text.ends_with('\'')
                || text.chars().any(char::is_control)
        }
        _ => false,
    })
}
