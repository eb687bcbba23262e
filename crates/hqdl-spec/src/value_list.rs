//! Matches answers with a value list, in order of certainty: the exact value, another case, an
//! alias from the spec, other spaces and punctuation, and last a unique similar value (one or two
//! letters different, same first letter, same digits). Values are never matched by meaning.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::ValueList;
use super::unified::{UNIFIED, Unified};

/// Repair note for an alias.
pub(super) const ALIAS: &str = "alias";

/// Value list, indexed for matching.
#[derive(Debug, Clone)]
pub(super) struct Lookup {
    pub(super) values: Vec<String>,
    pub(super) open: bool,
    /// Whether there is no list: the values are those that the aliases mean, and
    /// no other text is brought to them.
    pub(super) only_aliases: bool,
    pub(super) exact: HashMap<String, usize>,
    /// Aliases of the values, in lower case.
    pub(super) aliases: HashMap<String, usize>,
    /// Values in lower case; `None` if two values are equal in lower case.
    pub(super) folded: HashMap<String, Option<usize>>,
    /// The model's decisions about words outside the list, if the column uses them.
    pub(super) unified: Option<Unified>,
    squeezed: HashMap<String, Option<usize>>,
    /// "Vision - Heat" by "heat vision", "Wayne, Bruce" by "bruce wayne".
    inverted: HashMap<String, Option<usize>>,
}

impl Lookup {
    pub(super) fn new(list: &ValueList, aliases: &BTreeMap<String, String>) -> Self {
        Self::index(list.values.clone(), list.open, aliases)
    }

    fn index(values: Vec<String>, open: bool, aliases: &BTreeMap<String, String>) -> Self {
        let position = |value: &String| values.iter().position(|v| v == value);
        let mut lookup = Self {
            open,
            only_aliases: false,
            exact: HashMap::new(),
            aliases: aliases
                .iter()
                .filter_map(|(words, value)| Some((words.clone(), position(value)?)))
                .collect(),
            folded: HashMap::new(),
            unified: None,
            squeezed: HashMap::new(),
            inverted: HashMap::new(),
            values: Vec::new(),
        };
        let unique = |map: &mut HashMap<String, Option<usize>>, text: String, at: usize| {
            map.entry(text).and_modify(|e| *e = None).or_insert(Some(at));
        };
        for (at, value) in values.iter().enumerate() {
            lookup.exact.entry(value.clone()).or_insert(at);
            unique(&mut lookup.folded, value.trim().to_lowercase(), at);
            unique(&mut lookup.squeezed, squeeze(value), at);
            if let Some(text) = inverted(value) {
                unique(&mut lookup.inverted, text, at);
            }
        }
        lookup.values = values;
        lookup
    }

    /// Returns the lookup of a column that has aliases and no list; `None` without aliases.
    pub(super) fn of_aliases(aliases: &BTreeMap<String, String>) -> Option<Self> {
        let values: BTreeSet<&String> = aliases.values().collect();
        let values = values.into_iter().cloned().collect();
        let lookup = Self { only_aliases: true, ..Self::index(values, true, aliases) };
        Some(lookup).filter(|lookup| !lookup.values.is_empty())
    }

    /// Returns true if a text is exactly a value or an alias.
    pub(super) fn names(&self, text: &str) -> bool {
        self.exact.contains_key(text) || self.aliases.contains_key(&text.to_lowercase())
    }

    /// Whether a kept text is read otherwise because of an alias.
    pub(super) fn is_alias(&self, text: &str) -> bool {
        let lower = text.trim().to_lowercase();
        self.aliases.contains_key(&lower)
            || self.only_aliases
                && self.folded.contains_key(&lower)
                && !self.exact.contains_key(text)
    }

    /// Returns the value that `text` means, and the difference that was ignored.
    pub(super) fn find(&self, text: &str) -> Option<(&str, Option<&'static str>)> {
        let value = |at: usize| self.values.get(at).map(String::as_str);
        if let Some(at) = self.exact.get(text) {
            return Some((value(*at)?, None));
        }
        if let Some(Some(at)) = self.folded.get(&text.to_lowercase()) {
            return Some((value(*at)?, Some("case")));
        }
        if let Some(at) = self.aliases.get(&text.to_lowercase()) {
            return Some((value(*at)?, Some(ALIAS)));
        }
        if self.only_aliases {
            return None;
        }
        // A number never means another number: sign, point and zeros are significant.
        if let Some(number) = real(text) {
            let at = self.values.iter().position(|v| real(v) == Some(number))?;
            return Some((value(at)?, Some("spelling")));
        }
        let squeezed = squeeze(text);
        if squeezed.is_empty() {
            return None;
        }
        if let Some(Some(at)) = self.squeezed.get(&squeezed) {
            return Some((value(*at)?, Some("spacing")));
        }
        if let Some(Some(at)) = self.inverted.get(&text.to_lowercase()) {
            return Some((value(*at)?, Some("word order")));
        }
        if let Some(value) = self.near(text) {
            return Some((value, Some("spelling")));
        }
        let meant = self.unified.as_ref()?.value(text)?;
        Some((value(*self.exact.get(&meant)?)?, Some(UNIFIED)))
    }

    /// Returns the only value that differs by a typo.
    fn near(&self, text: &str) -> Option<&str> {
        let lower = text.to_lowercase();
        let length = lower.chars().count();
        let slips = match length {
            0..5 => return None,
            5..10 => 1,
            _ => 2,
        };
        let mut best: Option<(usize, &str)> = None;
        let mut tied = false;
        for value in &self.values {
            let candidate = value.to_lowercase();
            let far = candidate.chars().count().abs_diff(length) > slips
                || candidate.chars().next() != lower.chars().next()
                || !digits(&candidate).eq(digits(&lower));
            if far {
                continue;
            }
            let distance = strsim::damerau_levenshtein(&candidate, &lower);
            if distance > slips {
                continue;
            }
            match best {
                Some((d, _)) if d < distance => {}
                Some((d, _)) if d == distance => tied = true,
                _ => {
                    best = Some((distance, value));
                    tied = false;
                }
            }
        }
        best.filter(|_| !tied).map(|(_, value)| value)
    }
}

/// Parses a text that is a number.
fn real(text: &str) -> Option<f64> {
    let text = text.trim();
    super::coerce::plain_number(text).then(|| text.parse().ok()).flatten()
}

fn digits(text: &str) -> impl Iterator<Item = char> {
    text.chars().filter(char::is_ascii_digit)
}

/// Returns an inverted heading in natural order: "Vision - Heat" becomes "heat vision". The last
/// part must not contain a separator itself. Answers with a separator are not inverted, so "Arsenal
/// - Chelsea" never matches "Chelsea - Arsenal".
fn inverted(value: &str) -> Option<String> {
    let (head, tail) = value.split_once(" - ").or_else(|| value.split_once(", "))?;
    let single = ![" - ", ", "].iter().any(|s| tail.contains(s));
    single.then(|| format!("{} {}", tail.trim(), head.trim()).to_lowercase())
}

/// Returns the letters and digits in lower case.
fn squeeze(text: &str) -> String {
    text.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}
