//! Labels: the short names that the rows of one request go by, `2 Batman`. A
//! label is a row's number and a *tag*, a word of its key that no other row of
//! the request has. It stands first in the row, and an answer copies it instead
//! of the whole key: enough to tell the rows apart, and to notice that a model
//! has lost its place, for neighbours never share a tag.
//!
//! Tags are letters and digits alone. Nothing in them needs quotes or escapes,
//! so keys with quotes, line breaks or code fences cannot be confused with the
//! form of an answer. Where no word tells a row from the others (`Alien` beside
//! `ALIEN`, NULL beside the empty text), a few digits of its key's hash do.

use std::collections::{HashMap, HashSet};

use hqdl_values::value::Value;

/// Characters of a word that count: more would only be longer to copy.
const LONGEST: usize = 12;
/// Words of a key that are looked at: enough of a long text.
const WORDS: usize = 100;
/// Digits of a hash that tell a row from the others, at first.
const DIGITS: usize = 3;

/// The tags of the rows of a request, in their order: no two are the same, in
/// whatever case they are written.
pub fn tags<'r>(keys: impl IntoIterator<Item = &'r [Value]>) -> Vec<String> {
    let keys: Vec<&[Value]> = keys.into_iter().collect();
    let words: Vec<Vec<String>> = keys.iter().map(|key| words(key)).collect();
    let mut rows_with: HashMap<String, usize> = HashMap::new();
    for words in &words {
        let folded: HashSet<String> = words.iter().map(|w| fold(w)).collect();
        folded.into_iter().for_each(|w| *rows_with.entry(w).or_insert(0) += 1);
    }
    let own: Vec<Option<&String>> = words.iter().map(|w| telling(w, &rows_with)).collect();
    // No hash may make a tag that is a word of another row.
    let mut taken: HashSet<String> = rows_with.into_keys().collect();
    let tags = keys.iter().zip(&words).zip(own).map(|((key, words), own)| {
        own.cloned().unwrap_or_else(|| hashed(key, words.first(), &mut taken))
    });
    tags.collect()
}

/// The shortest word that no other row has; rather a name than a number or a letter.
fn telling<'w>(words: &'w [String], rows_with: &HashMap<String, usize>) -> Option<&'w String> {
    let alone = |w: &&String| rows_with.get(&fold(w)) == Some(&1);
    let name = |w: &&String| w.chars().count() > 2 && w.chars().any(char::is_alphabetic);
    let find = |fits: &dyn Fn(&&String) -> bool| {
        words.iter().filter(alone).filter(fits).min_by_key(|w| w.len())
    };
    find(&name).or_else(|| find(&|_| true))
}

/// A tag that tells a row apart of which no word does.
fn hashed(key: &[Value], first: Option<&String>, taken: &mut HashSet<String>) -> String {
    let parts: Vec<Option<_>> = key.iter().map(Value::canonical).collect();
    let text = serde_json::to_string(&parts).unwrap_or_default();
    let hash = blake3::hash(text.as_bytes()).to_hex();
    let first = first.map(String::as_str).unwrap_or_default();
    let dash = if first.is_empty() { "" } else { "-" };
    for digits in DIGITS..hash.len() {
        let tag = format!("{first}{dash}x{}", &hash[..digits]);
        if taken.insert(fold(&tag)) {
            return tag;
        }
    }
    format!("{first}{dash}x{hash}")
}

/// The words of a key: runs of letters and digits, the longest cut.
fn words(key: &[Value]) -> Vec<String> {
    let mut words = Vec::new();
    for part in key.iter().filter_map(Value::canonical) {
        let runs = part.split(|c: char| !c.is_alphanumeric()).filter(|w| !w.is_empty());
        words.extend(runs.take(WORDS - words.len()).map(|w| w.chars().take(LONGEST).collect()));
    }
    words
}

/// Letters and digits, lower case: what a model keeps when it copies.
pub fn fold(text: &str) -> String {
    if text.is_ascii() {
        let kept = text.bytes().filter(u8::is_ascii_alphanumeric);
        return kept.map(|b| char::from(b.to_ascii_lowercase())).collect();
    }
    text.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

/// A label, or the number alone: `2 Batman`, `2`, `2.`, `#2`, `row 2`, `2: Batman`.
/// The number, and what stands after it.
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

/// The words of a text as they are compared.
pub fn folded_words(key: &[Value]) -> Vec<String> {
    words(key).iter().map(|w| fold(w)).collect()
}

/// Whether an echoed part says that there is none.
pub fn says_none(field: &str) -> bool {
    let field = field.trim();
    ["", "null", "none", "?", "n/a"].iter().any(|none| field.eq_ignore_ascii_case(none))
}

/// Whether a key could be confused with the form of an answer that repeats it:
/// it holds what quotes, ends lines or fences, or is written as NULL is.
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
