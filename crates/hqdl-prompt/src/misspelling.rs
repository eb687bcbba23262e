//! Misspelt keys. If a request has one row and the model repeats its key with a typo (`Austrailan
//! Grand Prix`), the answer is accepted unless the echoed key belongs to another row.

use std::hash::BuildHasher;
use std::sync::OnceLock;

use foldhash::HashSet;
use foldhash::fast::FixedState;
use unicode_normalization::UnicodeNormalization;
use unicode_normalization::char::is_combining_mark;

use super::label::normalize_key;
use hqdl_values::value::Value;

/// Minimum length of a word in which one wrong letter is accepted.
const ONE_EDIT_LENGTH: usize = 5;
/// Minimum length of a word in which two wrong letters are accepted.
const TWO_EDITS_LENGTH: usize = 9;

/// All keys of an expansion, as hashes of their normalized texts. An echoed key that equals another
/// key of the expansion is not a typo.
#[derive(Default)]
pub struct ExpansionKeys {
    hashes: OnceLock<Option<HashSet<u64>>>,
    load: Option<Box<LoadKeys>>,
}

/// Function that adds all keys to the hashes; returns false if the keys cannot be read.
type LoadKeys = dyn Fn(&mut KeyHashes) -> bool + Send + Sync;

/// Hashes of the normalized texts of keys.
#[derive(Debug, Default)]
pub struct KeyHashes(HashSet<u64>);

impl KeyHashes {
    /// Adds a key.
    pub fn insert(&mut self, key: &[Value]) {
        let parts =
            key.iter().map(|part| normalize_key(&part.canonical_text().unwrap_or_default()));
        self.0.insert(hash_parts(parts));
    }
}

impl From<KeyHashes> for ExpansionKeys {
    fn from(hashes: KeyHashes) -> Self {
        Self { hashes: OnceLock::from(Some(hashes.0)), load: None }
    }
}

impl ExpansionKeys {
    /// Creates keys that are read by `load` when an echoed key is first compared with them. Most
    /// runs never need them.
    #[must_use]
    pub fn from_loader(load: impl Fn(&mut KeyHashes) -> bool + Send + Sync + 'static) -> Self {
        Self { hashes: OnceLock::new(), load: Some(Box::new(load)) }
    }

    /// Returns true if the fields equal one of the keys, ignoring case, spaces and punctuation.
    /// Errs only on the side of `true`: on a hash collision, or if the keys cannot be read.
    pub(super) fn contains(&self, fields: &[&str]) -> bool {
        let load_hashes = || {
            let mut hashes = KeyHashes::default();
            self.load.as_ref().is_none_or(|load| load(&mut hashes)).then_some(hashes.0)
        };
        let hash = hash_parts(fields.iter().map(|field| normalize_key(field)));
        self.hashes.get_or_init(load_hashes).as_ref().is_none_or(|hashes| hashes.contains(&hash))
    }
}

fn hash_parts(parts: impl Iterator<Item = String>) -> u64 {
    FixedState::default().hash_one(parts.collect::<Vec<_>>())
}

/// Returns true if `echoed` is a misspelling of `expected`: it may have different accents, and one
/// wrong letter per word of at least [`ONE_EDIT_LENGTH`] letters, or two per word of at least
/// [`TWO_EDITS_LENGTH`] letters. Digits and shorter words must be equal.
pub(super) fn is_misspelling(expected: &str, echoed: &str) -> bool {
    let (expected_words, echoed_words) = (lowercase_words(expected), lowercase_words(echoed));
    if expected_words.is_empty() {
        return false;
    }
    let is_typo = |(expected_word, echoed_word): (&String, &String)| {
        expected_word == echoed_word || is_near_word(expected_word, echoed_word)
    };
    expected_words.concat() == echoed_words.concat()
        || (expected_words.len() == echoed_words.len()
            && expected_words.iter().zip(&echoed_words).all(is_typo))
}

/// Returns true if two words differ in at most one or two letters, depending on their length.
fn is_near_word(expected: &str, echoed: &str) -> bool {
    let max_edits = match expected.chars().count() {
        TWO_EDITS_LENGTH.. => 2,
        ONE_EDIT_LENGTH.. => 1,
        _ => return false,
    };
    expected.chars().chain(echoed.chars()).all(char::is_alphabetic)
        && strsim::osa_distance(expected, echoed) <= max_edits
}

/// Returns the words of a text in lower case, without accents.
fn lowercase_words(text: &str) -> Vec<String> {
    let without_accents: String = text.nfkd().filter(|c| !is_combining_mark(*c)).collect();
    without_accents
        .split(|c: char| !c.is_alphanumeric())
        .filter(|word| !word.is_empty())
        .map(str::to_lowercase)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typos_are_distinguished_from_other_names() {
        for (key, echoed, expected) in [
            ("Australian Grand Prix", "Austrailan Grand Prix", true),
            ("Malmö", "Malmo", true),
            ("Malmø FF", "Malmo FF", true),
            ("Grand-Prix", "GRAND PRIX", true),
            ("GrandPrix", "Grand Prix", true),
            ("Widzew Łódź", "Widzew Lódź", false),
            ("São Tomé & Príncipe", "Sao Tome and Principe", false),
            ("Schumacher", "Shumaher", true),
            ("Schumacher", "Shumahr", false),
            ("Maria", "Marie", true),
            ("Mary", "Marx", false),
            ("Race 2009", "Race 2008", false),
            ("2009-03-29", "2009-03-28", false),
            ("Area51", "Area52", false),
            ("Batman", "Batman II", false),
            ("", "", false),
            ("!", "?", false),
        ] {
            assert_eq!(is_misspelling(key, echoed), expected, "{key} / {echoed}");
        }
    }
}
