//! Finds the entity that the values of a call identify. Documents and the rows of contexts are not
//! keys themselves and are identified by their digests.

use rusqlite::types::ValueRef;

use super::documents::Document;
use super::live::{Live, broken};
use super::targets::spell;
use hqdl_spec::images::Media;
use hqdl_values::Row;
use hqdl_values::value::{Unreadable, Value};

impl Live {
    /// Returns the entity that some values identify; `None` if a NULL leaves no entity.
    pub(super) fn values(
        &mut self,
        target: usize,
        column: usize,
        values: &[ValueRef<'_>],
    ) -> rusqlite::Result<Option<usize>> {
        let null = |v: &ValueRef<'_>| *v == ValueRef::Null;
        let expansion = &self.known.targets[target].expansion;
        // If each source has only a part of the key, the other columns are NULL.
        let in_parts = !expansion.key_parts.is_empty();
        if if in_parts { values.iter().all(null) } else { values.first().is_none_or(null) } {
            return Ok(None);
        }
        for (name, value) in expansion.key.names().iter().zip(values) {
            if let Some(media) = media_of(*value).filter(|_| !expansion.is_image(name)) {
                return Err(broken(media.refusal()));
            }
        }
        // From here on an image is represented by its name, so that its bytes need not be kept.
        let images: Vec<Option<Value>> = if expansion.has_images() {
            let kept = &expansion.image_files;
            let image = |(name, value): (&String, &ValueRef<'_>)| match value {
                _ if !expansion.is_image(name) => None,
                ValueRef::Blob(bytes) => Some(kept.keep(bytes)),
                ValueRef::Text(bytes) => kept.keep_text(std::str::from_utf8(bytes).ok()?),
                _ => None,
            };
            expansion.key.names().iter().zip(values).map(image).collect()
        } else {
            Vec::new()
        };
        let named: Vec<ValueRef<'_>> = values
            .iter()
            .enumerate()
            .map(|(n, value)| match images.get(n) {
                Some(Some(Value::Text(name))) => ValueRef::Text(name.as_bytes()),
                _ => *value,
            })
            .collect();
        let mut spelling = std::mem::take(&mut self.spelling);
        spelling.clear();
        spell(&named, &mut spelling);
        let target_of = &mut self.known.targets[target];
        let entity = target_of.known(&spelling).or_else(|| {
            let read: Result<Vec<Value>, Unreadable> =
                named.iter().map(|v| Value::read(*v)).collect();
            let row = |key| target_of.entity(&spelling, || Row { key, context: Vec::new() });
            read.ok().map(row)
        });
        if entity.is_none() {
            self.is_unreadable((target, column), &spelling);
        }
        self.spelling = spelling;
        Ok(entity)
    }

    /// Returns the entity of a document; `None` if it has no text.
    pub(super) fn document(
        &mut self,
        whole: Option<usize>,
        target: usize,
        values: &[ValueRef<'_>],
    ) -> rusqlite::Result<Option<usize>> {
        let value = values.first().copied().unwrap_or(ValueRef::Null);
        // Hash the stored bytes: a document may have megabytes, so only its digest is kept.
        let mut hasher = blake3::Hasher::new();
        match value {
            ValueRef::Text(bytes) => hasher.update(bytes),
            other => {
                let mut spelling = Vec::new();
                spell(&[other], &mut spelling);
                hasher.update(&[0]).update(&spelling)
            }
        };
        let spelling = *hasher.finalize().as_bytes();
        if let Some(entity) = self.known.targets[target].known(&spelling) {
            return Ok(Some(entity));
        }
        if let Some(media) = media_of(value) {
            return Err(broken(media.refusal()));
        }
        let document = match Document::read(value) {
            Ok(Some(document)) => document,
            Ok(None) => return Ok(None),
            Err(_) => {
                self.is_unreadable((target, 0), &spelling);
                return Ok(None);
            }
        };
        if let Some(Err(too_long)) =
            whole.map(|call| self.known.contexts.check_document(call, &document))
        {
            self.known.failure = Some(too_long);
            return Err(broken("a document is too long"));
        }
        let key = vec![Value::Text(document.key())];
        let row = || Row { key, context: Vec::new() };
        Ok(Some(self.known.targets[target].entity(&spelling, row)))
    }

    /// Returns the entity of some rows: the digest of their rendering in the prompt.
    pub(super) fn rows(
        &mut self,
        call: usize,
        target: usize,
        values: &[ValueRef<'_>],
    ) -> rusqlite::Result<usize> {
        let read: Result<Vec<Value>, _> = values.iter().map(|v| Value::read(*v)).collect();
        let mut contexts = read.map_err(|e| broken(&e.to_string()))?;
        let given = (call, *digest(&contexts).as_bytes());
        if let Some(entity) = self.known.contexts.entity(&given) {
            return Ok(entity);
        }
        if let Err(too_long) = self.known.contexts.fit(call, &mut contexts) {
            self.known.failure = Some(too_long);
            return Err(broken("a context is too long"));
        }
        let shown = digest(&contexts).to_hex().as_str()[..16].to_owned();
        let key = vec![Value::Text(if contexts.is_empty() { "-".to_owned() } else { shown })];
        let spelling = key[0].to_string().into_bytes();
        let entity =
            self.known.targets[target].entity(&spelling, || Row { key, context: contexts });
        self.known.contexts.is(given, entity);
        Ok(entity)
    }
}

/// Returns the media type of a value that no text can represent.
fn media_of(value: ValueRef<'_>) -> Option<Media> {
    match value {
        ValueRef::Blob(bytes) => Media::of_blob(bytes),
        ValueRef::Text(text) => Media::of_text(text),
        _ => None,
    }
}

fn digest(contexts: &[Value]) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    for context in contexts {
        let json = context.to_json().to_string();
        hasher.update(&(json.len() as u64).to_le_bytes());
        hasher.update(json.as_bytes());
    }
    hasher.finalize()
}
