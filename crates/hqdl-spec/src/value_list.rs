//! Matches answers against a value list, in order of certainty: an exact match, a match that
//! ignores case, an alias from the spec, a match that ignores spaces and punctuation, and finally a
//! unique similar value (one or two letters different, same first letter, same digits). Values are
//! never matched by meaning.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::ValueList;
use super::word_decisions::{UNIFIED_NOTE, WordDecisions};

pub(super) const ALIAS_NOTE: &str = "alias";

/// Value list, indexed for matching.
#[derive(Debug, Clone)]
pub(super) struct ValueIndex {
    pub(super) values: Vec<String>,
    pub(super) open: bool,
    /// Whether the column has aliases but no list. The values are then the targets of the aliases,
    /// and only the aliases are matched.
    pub(super) only_aliases: bool,
    pub(super) by_text: HashMap<String, usize>,
    /// Aliases of the values, in lower case.
    pub(super) by_alias: HashMap<String, usize>,
    /// Index of each value, by its text in lower case; `None` if two values are equal in lower
    /// case.
    pub(super) by_lowercase: HashMap<String, Option<usize>>,
    /// The model's decisions about words outside the list, if the column uses them.
    pub(super) decisions: Option<WordDecisions>,
    by_letters: HashMap<String, Option<usize>>,
    /// Index of each value, by its text in natural order; `None` if ambiguous: "Vision - Heat" by
    /// "heat vision", "Wayne, Bruce" by "bruce wayne".
    by_natural_order: HashMap<String, Option<usize>>,
}

impl ValueIndex {
    pub(super) fn new(list: &ValueList, aliases: &BTreeMap<String, String>) -> Self {
        Self::from_values(list.values.clone(), list.open, aliases)
    }

    fn from_values(values: Vec<String>, open: bool, aliases: &BTreeMap<String, String>) -> Self {
        let find_position = |value: &String| values.iter().position(|v| v == value);
        let mut index = Self {
            open,
            only_aliases: false,
            by_text: HashMap::new(),
            by_alias: aliases
                .iter()
                .filter_map(|(alias, value)| Some((alias.clone(), find_position(value)?)))
                .collect(),
            by_lowercase: HashMap::new(),
            decisions: None,
            by_letters: HashMap::new(),
            by_natural_order: HashMap::new(),
            values: Vec::new(),
        };
        let insert_unique =
            |map: &mut HashMap<String, Option<usize>>, text: String, index: usize| {
                map.entry(text).and_modify(|e| *e = None).or_insert(Some(index));
            };
        for (at, value) in values.iter().enumerate() {
            index.by_text.entry(value.clone()).or_insert(at);
            insert_unique(&mut index.by_lowercase, value.trim().to_lowercase(), at);
            insert_unique(&mut index.by_letters, strip_to_letters_and_digits(value), at);
            if let Some(text) = to_natural_order(value) {
                insert_unique(&mut index.by_natural_order, text, at);
            }
        }
        index.values = values;
        index
    }

    /// Returns the index for a column that has aliases but no list; `None` if there are no aliases.
    pub(super) fn from_aliases(aliases: &BTreeMap<String, String>) -> Option<Self> {
        let values: BTreeSet<&String> = aliases.values().collect();
        let values = values.into_iter().cloned().collect();
        let lookup = Self { only_aliases: true, ..Self::from_values(values, true, aliases) };
        Some(lookup).filter(|lookup| !lookup.values.is_empty())
    }

    pub(super) fn is_value_or_alias(&self, text: &str) -> bool {
        self.by_text.contains_key(text) || self.by_alias.contains_key(&text.to_lowercase())
    }

    /// Returns true if a stored text is an alias or, in a column without a list, differs only in
    /// case from an alias's target value.
    pub(super) fn is_alias(&self, text: &str) -> bool {
        let lower = text.trim().to_lowercase();
        self.by_alias.contains_key(&lower)
            || self.only_aliases
                && self.by_lowercase.contains_key(&lower)
                && !self.by_text.contains_key(text)
    }

    /// Returns the value that `text` means, and a note on the difference that was ignored, if any.
    pub(super) fn find_value(&self, text: &str) -> Option<(&str, Option<&'static str>)> {
        let value_at = |at: usize| self.values.get(at).map(String::as_str);
        if let Some(position) = self.by_text.get(text) {
            return Some((value_at(*position)?, None));
        }
        if let Some(Some(position)) = self.by_lowercase.get(&text.to_lowercase()) {
            return Some((value_at(*position)?, Some("case")));
        }
        if let Some(position) = self.by_alias.get(&text.to_lowercase()) {
            return Some((value_at(*position)?, Some(ALIAS_NOTE)));
        }
        if self.only_aliases {
            return None;
        }
        // A number never matches a different number: sign, point and zeros are significant.
        if let Some(number) = parse_number(text) {
            let index = self.values.iter().position(|v| parse_number(v) == Some(number))?;
            return Some((value_at(index)?, Some("spelling")));
        }
        let letters = strip_to_letters_and_digits(text);
        if letters.is_empty() {
            return None;
        }
        if let Some(Some(position)) = self.by_letters.get(&letters) {
            return Some((value_at(*position)?, Some("spacing")));
        }
        if let Some(Some(position)) = self.by_natural_order.get(&text.to_lowercase()) {
            return Some((value_at(*position)?, Some("word order")));
        }
        if let Some(value) = self.find_similar(text) {
            return Some((value, Some("spelling")));
        }
        let decided = self.decisions.as_ref()?.find_value(text)?;
        Some((value_at(*self.by_text.get(&decided)?)?, Some(UNIFIED_NOTE)))
    }

    /// Returns the closest value within one or two edits, depending on the length of the text;
    /// `None` if two values are equally close.
    fn find_similar(&self, text: &str) -> Option<&str> {
        let lower = text.to_lowercase();
        let length = lower.chars().count();
        let max_edits = match length {
            0..5 => return None,
            5..10 => 1,
            _ => 2,
        };
        let mut best: Option<(usize, &str)> = None;
        let mut is_tied = false;
        for value in &self.values {
            let candidate = value.to_lowercase();
            let is_too_different = candidate.chars().count().abs_diff(length) > max_edits
                || candidate.chars().next() != lower.chars().next()
                || !extract_digits(&candidate).eq(extract_digits(&lower));
            if is_too_different {
                continue;
            }
            let distance = strsim::damerau_levenshtein(&candidate, &lower);
            if distance > max_edits {
                continue;
            }
            match best {
                Some((d, _)) if d < distance => {}
                Some((d, _)) if d == distance => is_tied = true,
                _ => {
                    best = Some((distance, value));
                    is_tied = false;
                }
            }
        }
        best.filter(|_| !is_tied).map(|(_, value)| value)
    }
}

/// Parses a text that is a number.
fn parse_number(text: &str) -> Option<f64> {
    let text = text.trim();
    super::coerce::is_plain_number(text).then(|| text.parse().ok()).flatten()
}

fn extract_digits(text: &str) -> impl Iterator<Item = char> {
    text.chars().filter(char::is_ascii_digit)
}

/// Returns an inverted heading in natural order: "Vision - Heat" becomes "heat vision". The last
/// part must not contain a separator itself. Answers with a separator are not inverted, so "Arsenal
/// - Chelsea" never matches "Chelsea - Arsenal".
fn to_natural_order(value: &str) -> Option<String> {
    let (head, tail) = value.split_once(" - ").or_else(|| value.split_once(", "))?;
    let is_single = ![" - ", ", "].iter().any(|s| tail.contains(s));
    is_single.then(|| format!("{} {}", tail.trim(), head.trim()).to_lowercase())
}

/// Returns the letters and digits in lower case.
fn strip_to_letters_and_digits(text: &str) -> String {
    text.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}
