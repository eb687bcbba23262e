//! Keys of entities: the entity's text, or, if the text is too long for an index, a prefix followed
//! by a hash.

use hqdl_values::key::Entity;

/// Maximum length in bytes of a text that is used as the key itself.
const MAX_KEY_BYTES: usize = 1000;
/// Length in bytes of the prefix of a longer text in its key.
const PREFIX_BYTES: usize = 900;

/// An entity as its row stores it.
pub(super) struct StoredEntity<'e> {
    pub(super) key: String,
    /// The full text, if the key contains only a prefix; otherwise `None`.
    pub(super) entity: Option<&'e str>,
}

pub(super) fn to_stored_entity(entity: &Entity) -> StoredEntity<'_> {
    let text = entity.as_str();
    if text.len() <= MAX_KEY_BYTES {
        return StoredEntity { key: text.to_owned(), entity: None };
    }
    let hash = blake3::hash(text.as_bytes()).to_hex();
    StoredEntity { key: format!("{}{hash}", key_prefix(text)), entity: Some(text) }
}

pub(super) fn entity_key(entity: &Entity) -> String {
    to_stored_entity(entity).key
}

/// Returns the prefix of a text that its key contains. Keys of texts with different prefixes sort
/// like the texts.
pub(super) fn key_prefix(text: &str) -> &str {
    if text.len() <= PREFIX_BYTES {
        return text;
    }
    let end = (0..=PREFIX_BYTES).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    &text[..end]
}
