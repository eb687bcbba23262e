//! Misspelt keys. If a request has one row and the model repeats its key with a typo (`Austrailan
//! Grand Prix`), the answer is accepted unless the echoed key is another row's.

use std::hash::BuildHasher;

use foldhash::HashSet;
use foldhash::fast::FixedState;
use unicode_normalization::UnicodeNormalization;
use unicode_normalization::char::is_combining_mark;

use super::label::fold;
use hqdl_values::value::Value;

/// Minimum length of a word in which one letter may be wrong.
const ONE_EDIT: usize = 5;
/// Minimum length of a word in which two letters may be wrong.
const TWO_EDITS: usize = 9;

/// All keys of an expansion, as hashes of their normalized texts. An echoed key that equals another
/// one of them is not a typo.
#[derive(Debug, Default)]
pub struct ExpansionKeys(HashSet<u64>);

impl ExpansionKeys {
    /// Adds a key.
    pub fn insert(&mut self, key: &[Value]) {
        let parts = key.iter().map(|part| fold(&part.canonical().unwrap_or_default()));
        self.0.insert(hash(parts));
    }

    /// Returns true if fields equal one of the keys, ignoring case, spaces and punctuation. A hash
    /// collision can only produce a wrong `true`.
    pub(super) fn contains(&self, fields: &[&str]) -> bool {
        self.0.contains(&hash(fields.iter().map(|field| fold(field))))
    }
}

fn hash(parts: impl Iterator<Item = String>) -> u64 {
    FixedState::default().hash_one(parts.collect::<Vec<_>>())
}

/// Returns true if `echoed` is a misspelling of `expected`: other accents, one wrong letter in
/// words of at least [`ONE_EDIT`] letters, or two in words of at least [`TWO_EDITS`] letters.
/// Digits and shorter words must be equal.
pub(super) fn is_misspelling(asked: &str, echoed: &str) -> bool {
    let (asked, echoed) = (folded_words(asked), folded_words(echoed));
    if asked.is_empty() {
        return false;
    }
    let is_slip =
        |(asked, echoed): (&String, &String)| asked == echoed || differs_little(asked, echoed);
    asked.concat() == echoed.concat()
        || (asked.len() == echoed.len() && asked.iter().zip(&echoed).all(is_slip))
}

/// Returns true if two words differ in at most one or two letters, depending on their length.
fn differs_little(asked: &str, echoed: &str) -> bool {
    let edits = match asked.chars().count() {
        TWO_EDITS.. => 2,
        ONE_EDIT.. => 1,
        _ => return false,
    };
    asked.chars().chain(echoed.chars()).all(char::is_alphabetic)
        && strsim::osa_distance(asked, echoed) <= edits
}

/// Returns the words of a text in lower case, without accents.
fn folded_words(text: &str) -> Vec<String> {
    let plain: String = text.nfkd().filter(|c| !is_combining_mark(*c)).collect();
    plain
        .split(|c: char| !c.is_alphanumeric())
        .filter(|word| !word.is_empty())
        .map(str::to_lowercase)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_told_from_other_names() {
        for (asked, echoed, expected) in [
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
            assert_eq!(is_misspelling(asked, echoed), expected, "{asked} / {echoed}");
        }
    }
}
