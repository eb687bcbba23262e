//! Semantic keys and fingerprints: the two halves of what a fact *is*.
//!
//! A fact is found by *whom* it is about (the [`Entity`], a readable canonical
//! form of the semantic key) and *what* it says (the [`Fingerprint`] of the
//! column's meaning). Neither holds any prompt text, so rewording a prompt,
//! reformatting a spec or moving to another database re-asks nothing.

use serde::{Deserialize, Serialize};
use unicode_normalization::UnicodeNormalization;

use crate::value::Value;

/// The canonical form of a semantic key: a JSON object of the key's columns,
/// sorted by name, its values NFC, trimmed, with case kept and numbers in one
/// spelling; NULL is `null`, distinct from `""`.
///
/// `{"full_name":"Bruce Wayne","superhero_name":"Batman"}`
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Entity(String);

impl Entity {
    /// The readable text, which is also the cache key.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Reads an entity back from its text.
    ///
    /// # Errors
    /// When the text is no JSON object of strings and nulls.
    pub fn parse(text: &str) -> Result<Self, serde_json::Error> {
        let parts: std::collections::BTreeMap<String, Option<String>> = serde_json::from_str(text)?;
        Ok(Self(serde_json::to_string(&parts)?))
    }
}

impl std::fmt::Display for Entity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// The columns of a semantic key, in the spec's order, prepared for making
/// entities quickly.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<String>", into = "Vec<String>")]
pub struct KeyColumns {
    names: Vec<String>,
    /// Positions in `names`, sorted by name, each with its JSON-quoted name.
    sorted: Vec<(usize, String)>,
}

impl KeyColumns {
    /// Key columns in the order the spec gives them.
    #[must_use]
    pub fn new(names: Vec<String>) -> Self {
        let mut sorted: Vec<_> = names.iter().enumerate().map(|(i, n)| (i, quote(n))).collect();
        sorted.sort_by(|a, b| names[a.0].cmp(&names[b.0]));
        Self { names, sorted }
    }

    /// The names, in the spec's order.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// The entity that key `values` (in the spec's order) identify.
    #[must_use]
    pub fn entity(&self, values: &[Value]) -> Entity {
        let mut text = String::with_capacity(64);
        for (n, (at, name)) in self.sorted.iter().enumerate() {
            text.push(if n == 0 { '{' } else { ',' });
            text.push_str(name);
            text.push(':');
            match values.get(*at).and_then(Value::canonical) {
                None => text.push_str("null"),
                Some(value) => text.push_str(&quote(&value)),
            }
        }
        text.push('}');
        Entity(text)
    }

    /// What the text of every entity of this key begins with.
    #[must_use]
    pub fn prefix(&self) -> String {
        self.sorted.first().map_or_else(|| "{".to_owned(), |(_, name)| format!("{{{name}:"))
    }

    /// Whether every value already is in its canonical spelling, so that no
    /// other spelling of the same entity can be this very one.
    #[must_use]
    pub fn is_canonical(values: &[Value]) -> bool {
        values.iter().all(|v| match v {
            Value::Text(text) => {
                v.canonical().as_deref() == Some(text.as_str()) && text.parse::<f64>().is_err()
            }
            Value::Null => true,
            // A number and its text are one entity.
            Value::Integer(_) | Value::Real(_) => false,
        })
    }
}

impl From<Vec<String>> for KeyColumns {
    fn from(names: Vec<String>) -> Self {
        Self::new(names)
    }
}

impl From<KeyColumns> for Vec<String> {
    fn from(key: KeyColumns) -> Self {
        key.names
    }
}

/// A JSON string literal.
#[must_use]
pub fn quote(text: &str) -> String {
    serde_json::to_string(text).unwrap_or_default()
}

/// What a column means: everything that, when it changes, makes the answers
/// kept so far answers to another question. Limits, price, shots, format,
/// rows per request and the order of things are not part of it. The *content*
/// of the value list is not either: it is compared by [`ListHash`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Meaning {
    /// Names of the key columns, sorted.
    pub key: Vec<String>,
    /// The column's name.
    pub column: String,
    /// The column's type (`text`, `integer`, …).
    #[serde(rename = "type")]
    pub kind: String,
    /// The description, its white space folded.
    pub about: String,
    /// Whether the cell is a list.
    pub many: bool,
    /// `none`, `closed` or `open`.
    pub list: String,
    /// What each part of the key is, such as `city.name`, or an empty text where that is not
    /// known. Empty if it is known of no part, and for columns of a spec.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kinds: Vec<String>,
}

impl Meaning {
    /// The fingerprint of this meaning.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        let mut sorted = self.clone();
        sorted.key.sort();
        sorted.about = fold(&sorted.about);
        let text = serde_json::to_string(&sorted).unwrap_or_default();
        Fingerprint(format!("c1:{}", tagged("hqdl column meaning v1", &[&text])))
    }
}

/// Tagged hash of a column's meaning, e.g. `c1:0f3a…`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Fingerprint(String);

impl Fingerprint {
    /// The printable form.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Tagged hash of a value list's content; its order does not matter.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ListHash(String);

impl ListHash {
    /// Hashes the content of a value list.
    #[must_use]
    pub fn of(values: &[String]) -> Self {
        let mut sorted: Vec<&str> = values.iter().map(String::as_str).collect();
        sorted.sort_unstable();
        sorted.dedup();
        Self(format!("l1:{}", tagged("hqdl value list v1", &sorted)))
    }

    /// A hash that was printed before.
    #[must_use]
    pub fn from_text(text: String) -> Self {
        Self(text)
    }

    /// The printable form.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Hash of a prompt's text, e.g. `p1:77ab…`.
#[must_use]
pub fn prompt_hash(parts: &[&str]) -> String {
    format!("p1:{}", tagged("hqdl prompt v1", parts))
}

/// Tagged hash of texts that mean something together.
#[must_use]
pub fn tagged_text(context: &str, parts: &[String]) -> String {
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    tagged(context, &parts)
}

/// 128 bits of blake3 under a context of its own; parts are length-prefixed so
/// that moving a boundary changes the hash.
fn tagged(context: &str, parts: &[&str]) -> String {
    let mut hasher = blake3::Hasher::new_derive_key(context);
    for part in parts {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part.as_bytes());
    }
    hasher.finalize().to_hex().as_str()[..32].to_owned()
}

/// White space folded to single blanks, NFC.
fn fold(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").nfc().collect()
}
