//! Semantic keys and fingerprints, which together identify a fact.
//!
//! A fact is stored under its [`Entity`] (a readable canonical form of the semantic key) and the
//! [`Fingerprint`] of its column's identity. Neither contains any prompt text, so rewording a
//! prompt, reformatting a spec or moving to another database causes no new requests. If a spec shows
//! the model a context beside the key, the entity contains a digest of it, because an answer about a
//! text is not an answer about another text with the same number.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use unicode_normalization::UnicodeNormalization;

use crate::value::Value;

/// Canonical form of a semantic key: a JSON object of the key's columns, sorted by name.
///
/// Values are trimmed and normalized to NFC. Case is kept, numbers have one canonical form, and
/// NULL is `null`, distinct from `""`.
///
/// `{"full_name":"Bruce Wayne","superhero_name":"Batman"}`
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Entity(String);

impl Entity {
    /// Returns the readable text, which is also the cache key.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Parses an entity from its text.
    ///
    /// # Errors
    /// Fails if the text is not a JSON object of strings and nulls.
    pub fn parse(text: &str) -> Result<Self, serde_json::Error> {
        let parts: BTreeMap<String, Option<String>> = serde_json::from_str(text)?;
        Ok(Self(serde_json::to_string(&parts)?))
    }

    /// Returns the canonical text of each part of the key, by column; `None` for NULL.
    #[must_use]
    pub fn parts(&self) -> BTreeMap<String, Option<String>> {
        serde_json::from_str(&self.0).unwrap_or_default()
    }

    /// Returns this entity as described by a context: the facts about it differ from those about
    /// the same key in another context. `digest` is a [`KeyColumns::compute_context_digest`].
    #[must_use]
    pub fn with_context(&self, digest: u128) -> Self {
        let mut parts = self.parts();
        parts.insert(CONTEXT_PART.to_owned(), Some(format!("{digest:032x}")));
        Self(serde_json::to_string(&parts).unwrap_or_default())
    }
}

/// Name of the part of an entity that contains the digest of its context. A spec's key cannot have
/// a column of this name.
pub const CONTEXT_PART: &str = "~context";

impl std::fmt::Display for Entity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Columns of a semantic key, in the spec's order, prepared for building entities quickly.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<String>", into = "Vec<String>")]
pub struct KeyColumns {
    names: Vec<String>,
    /// Positions in `names`, sorted by name, each with the name as a JSON string.
    sorted: Vec<(usize, String)>,
}

impl KeyColumns {
    /// Creates the key columns, in the order of the spec.
    #[must_use]
    pub fn new(names: Vec<String>) -> Self {
        let mut sorted: Vec<_> =
            names.iter().enumerate().map(|(i, n)| (i, quote_json(n))).collect();
        sorted.sort_by(|a, b| names[a.0].cmp(&names[b.0]));
        Self { names, sorted }
    }

    /// Returns the names, in the spec's order.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Returns the entity identified by the key `values`, which are in the spec's order.
    #[must_use]
    pub fn build_entity(&self, values: &[Value]) -> Entity {
        let mut text = Vec::with_capacity(64);
        self.write_entity(values, &mut text);
        Entity(String::from_utf8(text).unwrap_or_default())
    }

    /// Returns the digest of context values, if these are the context columns. It does not depend on
    /// the order of the columns, and values that are equal in a key are equal here.
    #[must_use]
    pub fn compute_context_digest(&self, values: &[Value]) -> u128 {
        let entity = self.build_entity(values);
        let hash = hash_parts("hqdl row context v1", &[entity.as_str()]);
        u128::from_str_radix(&hash, 16).unwrap_or_default()
    }

    /// Appends the text of the entity identified by the key `values` to a buffer.
    pub fn write_entity(&self, values: &[Value], buffer: &mut Vec<u8>) {
        for (n, (position, name)) in self.sorted.iter().enumerate() {
            buffer.push(if n == 0 { b'{' } else { b',' });
            buffer.extend_from_slice(name.as_bytes());
            buffer.push(b':');
            match values.get(*position).and_then(Value::canonical_text) {
                None => buffer.extend_from_slice(b"null"),
                // Writing to memory cannot fail.
                Some(value) => drop(serde_json::to_writer(&mut *buffer, value.as_ref())),
            }
        }
        buffer.push(b'}');
    }

    /// Returns the prefix shared by the texts of all entities with this key.
    #[must_use]
    pub fn entity_prefix(&self) -> String {
        self.sorted.first().map_or_else(|| "{".to_owned(), |(_, name)| format!("{{{name}:"))
    }

    /// Returns true if all values are already in canonical form, that is, if they are the entity's
    /// canonical spelling.
    #[must_use]
    pub fn is_canonical(values: &[Value]) -> bool {
        values.iter().all(|v| match v {
            Value::Text(text) => {
                v.canonical_text().as_deref() == Some(text.as_str()) && text.parse::<f64>().is_err()
            }
            Value::Null => true,
            // A number may also be spelled as text and still identify the same entity.
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

/// Returns a JSON string literal.
#[must_use]
pub fn quote_json(text: &str) -> String {
    serde_json::to_string(text).unwrap_or_default()
}

/// Name of the column that answers an ad-hoc question of a query.
pub const QUESTION_COLUMN: &str = "answer";
/// Name of the column with the partners that a join's question is about.
pub const PARTNERS_COLUMN: &str = "partners";
/// Parts of the key of every ad-hoc question: what the question is about. A further value of the
/// same question is called `value_2`.
const QUESTION_KEYS: [&str; 7] = ["value", "document", "rows", "text", "image", "audio", "media"];

/// Identity of a column: everything that defines the question to the model. If any part of the
/// identity changes, the stored answers belong to a different question.
///
/// The identity does not include limits, price, shots, format, rows per request or the order of
/// entries. It also does not include the *content* of the value list, which is compared by
/// [`ListHash`], except for the candidates of a join.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ColumnIdentity {
    /// Names of the key columns, sorted.
    pub key: Vec<String>,
    /// Name of the column.
    pub column: String,
    /// Column type (`text`, `integer`, …).
    #[serde(rename = "type")]
    pub kind: String,
    /// Description, with whitespace normalized.
    pub about: String,
    /// Whether the cell is a list.
    pub many: bool,
    /// Kind of the value list: `none`, `closed` or `open`.
    pub list: String,
    /// Kind of each key part, such as `city.name`; an empty string if the part's kind is unknown.
    /// The vector is empty if no kind is known, and for columns of a spec.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kinds: Vec<String>,
    /// Whether a value counts only if a passage supports it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub requires_evidence: bool,
    /// Candidates of a join that the question shows, sorted. They state which pairs an answer
    /// covers. Empty for all other columns.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub candidates: Vec<String>,
}

impl ColumnIdentity {
    /// Returns the text of the ad-hoc question that the column answers; `None` for a column of a
    /// spec. A column of a spec with the same name and key as an ad-hoc question has its identity.
    #[must_use]
    pub fn question(&self) -> Option<&str> {
        match self.column.as_str() {
            QUESTION_COLUMN => {
                let is_question = self.key.iter().any(|k| QUESTION_KEYS.contains(&k.as_str()));
                is_question.then_some(&self.about)
            }
            PARTNERS_COLUMN if !self.candidates.is_empty() => Some(&self.about),
            // Earlier versions appended the hash of the candidates to the question.
            PARTNERS_COLUMN => {
                let (question, hash) = self.about.rsplit_once(' ')?;
                hash.starts_with("l1:").then_some(question)
            }
            _ => None,
        }
    }

    /// Returns the fingerprint of this identity.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        let mut sorted = self.clone();
        sorted.key.sort();
        sorted.about = normalize_whitespace(&sorted.about);
        let text = serde_json::to_string(&sorted).unwrap_or_default();
        Fingerprint(format!("c1:{}", hash_parts("hqdl column meaning v1", &[&text])))
    }
}

/// Tagged hash of a column's identity, e.g. `c1:0f3a…`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Fingerprint(String);

impl Fingerprint {
    /// Returns the printable form.
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

/// Tagged hash of a value list's content, independent of its order.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ListHash(String);

impl ListHash {
    /// Hashes the content of a value list.
    #[must_use]
    pub fn new(values: &[String]) -> Self {
        let mut sorted: Vec<&str> = values.iter().map(String::as_str).collect();
        sorted.sort_unstable();
        sorted.dedup();
        Self(format!("l1:{}", hash_parts("hqdl value list v1", &sorted)))
    }

    /// Creates a hash from its printable form.
    #[must_use]
    pub fn from_text(text: String) -> Self {
        Self(text)
    }

    /// Returns the printable form.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Returns the hash of a prompt's text, e.g. `p1:77ab…`.
#[must_use]
pub fn hash_prompt(parts: &[&str]) -> String {
    format!("p1:{}", hash_parts("hqdl prompt v1", parts))
}

/// Returns a tagged hash of several texts.
#[must_use]
pub fn hash_tagged_parts(context: &str, parts: &[String]) -> String {
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    hash_parts(context, &parts)
}

/// Returns 128 bits of blake3 with a domain-separation context. Parts are length-prefixed, so that
/// moving a boundary changes the hash.
pub(crate) fn hash_parts(context: &str, parts: &[&str]) -> String {
    let mut hasher = blake3::Hasher::new_derive_key(context);
    for part in parts {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part.as_bytes());
    }
    hasher.finalize().to_hex().as_str()[..32].to_owned()
}

/// Normalizes whitespace to single spaces, and Unicode to NFC.
fn normalize_whitespace(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").nfc().collect()
}
