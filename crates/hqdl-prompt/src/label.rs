//! Labels: the short names that the rows of one request go by, `2 Batman`. A
//! label is a row's number and a *tag*, a word of its key that no other row of
//! the request has. It stands first in the row, and an answer copies it instead
//! of the whole key: enough to tell the rows apart, and to notice that a model
//! has lost its place, for neighbours never share a tag.
//!
//! Tags are letters and digits alone. Nothing in them needs quotes or escapes,
//! so keys with quotes, line breaks or code fences cannot be confused with the
//! form of an answer. Where no word tells a row from the others (`Alien` beside
//! `ALIEN`, NULL beside the empty text), a few digits of a hash do. It covers all keys of the
//! request, so that a row of another request's answer does not have the same label.

use std::borrow::Cow;

use foldhash::{HashMap, HashSet};

use hqdl_values::value::Value;

/// Characters of a word that count: more would only be longer to copy.
const LONGEST: usize = 12;
/// Tokens of a label at the most, in most scripts.
pub const OUTPUT: u64 = LONGEST as u64;
/// Words of a key that are looked at: enough of a long text.
const WORDS: usize = 100;
/// Digits of a hash that tell a row from the others, at first.
const DIGITS: usize = 3;

/// A word of a key.
struct KeyWord<'k> {
    text: &'k str,
    folded: Cow<'k, str>,
}

/// The tags of the rows of a request, in their order: no two are the same, in
/// whatever case they are written.
pub fn tags<'r>(keys: impl IntoIterator<Item = &'r [Value]>) -> Vec<String> {
    let keys: Vec<&[Value]> = keys.into_iter().collect();
    let texts: Vec<Vec<Cow<'_, str>>> = keys.iter().map(|key| texts(key)).collect();
    let words: Vec<Vec<KeyWord<'_>>> = texts.iter().map(|texts| words(texts)).collect();
    // How many rows have a word, and the last of them.
    let mut rows_with: HashMap<&str, (usize, usize)> = HashMap::default();
    for (row, words) in words.iter().enumerate() {
        for word in words {
            let (rows, last) = rows_with.entry(&word.folded).or_insert((0, row));
            if *rows == 0 || *last != row {
                (*rows, *last) = (*rows + 1, row);
            }
        }
    }
    // No hash may make a tag that is a word of another row.
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

/// The shortest word that no other row has; rather a name than a number or a letter.
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

/// A tag that tells a row apart of which no word does.
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

/// The texts of a key that words stand in.
fn texts(key: &[Value]) -> Vec<Cow<'_, str>> {
    key.iter().filter_map(Value::canonical).collect()
}

/// The words of a key: runs of letters and digits, the longest cut.
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

/// Letters and digits, lower case: what a model keeps when it copies.
pub fn fold(text: &str) -> String {
    if text.is_ascii() {
        let mut kept = Vec::with_capacity(text.len());
        kept.extend(text.bytes().filter(u8::is_ascii_alphanumeric).map(|b| b.to_ascii_lowercase()));
        return String::from_utf8(kept).unwrap_or_default();
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

/// The words of texts as they are compared.
pub fn folded_words(texts: &[impl AsRef<str>]) -> Vec<String> {
    words(texts).into_iter().map(|word| word.folded.into_owned()).collect()
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
