//! What an entity is found by: its text, or the beginning of it and a hash where it
//! is longer than an index takes.

use hqdl_values::key::Entity;

/// Bytes that a key may have as it is.
const LONGEST: usize = 1000;
/// Bytes of a longer one that are kept.
const HEAD: usize = 900;

/// An entity as it is kept.
pub(super) struct Keyed<'e> {
    pub(super) key: String,
    /// The whole of it, where the key is not.
    pub(super) entity: Option<&'e str>,
}

pub(super) fn keyed(entity: &Entity) -> Keyed<'_> {
    let text = entity.as_str();
    if text.len() <= LONGEST {
        return Keyed { key: text.to_owned(), entity: None };
    }
    let hash = blake3::hash(text.as_bytes()).to_hex();
    Keyed { key: format!("{}{hash}", head(text)), entity: Some(text) }
}

/// The key of an entity.
pub(super) fn key(entity: &Entity) -> String {
    keyed(entity).key
}

/// What all keys of entities begin with that begin as this text does: two texts
/// with different heads are in the order of their keys.
pub(super) fn head(text: &str) -> &str {
    if text.len() <= HEAD {
        return text;
    }
    let end = (0..=HEAD).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    &text[..end]
}
