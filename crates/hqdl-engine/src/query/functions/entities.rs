//! Finds the entity that the values of a call identify. Documents and context rows are identified
//! by their digests.

use rusqlite::types::ValueRef;

use crate::query::cells::canonical_bytes::write_canonical_bytes;
use crate::query::cells::documents::Document;
use crate::query::functions::call_runtime::{CallRuntime, function_error};
use hqdl_spec::media::{MediaKind, explain_undeclared, find_blob_kind, find_data_url_kind};
use hqdl_values::Row;
use hqdl_values::value::Value;

impl CallRuntime {
    /// Returns the index of the entity that a call's values identify, and adds the entity if it is
    /// new. Returns `None` if the key is NULL, if the row has no options, or if a value cannot be
    /// shown to the model.
    pub(in crate::query) fn intern_value_entity(
        &mut self,
        target: usize,
        column: usize,
        values: &[ValueRef<'_>],
    ) -> rusqlite::Result<Option<usize>> {
        let is_null = |v: &ValueRef<'_>| *v == ValueRef::Null;
        let expansion = &self.data.targets[target].expansion;
        // If each source has only a part of the key, the other columns are NULL.
        let is_partial_key = !expansion.key_parts.is_empty();
        if if is_partial_key {
            values.iter().all(is_null)
        } else {
            values.first().is_none_or(is_null)
        } {
            return Ok(None);
        }
        let list = expansion.columns.get(column).and_then(|column| column.one_of);
        if let Some(list) = list.and_then(|list| values.get(list))
            && !has_options(*list)?
        {
            return Ok(None);
        }
        for (name, value) in expansion.key.names().iter().zip(values) {
            if let Some(kind) = find_media_kind(*value).filter(|_| !expansion.is_media(name)) {
                return Err(function_error(&explain_undeclared(kind)));
            }
        }
        // Represent a medium by its identity from here on, so that its bytes need not be kept.
        let media: Vec<Option<Value>> = if expansion.has_media() {
            let media_files = &expansion.media_files;
            let medium = |(name, value): (&String, &ValueRef<'_>)| match value {
                _ if !expansion.is_media(name) => None,
                ValueRef::Blob(bytes) => Some(media_files.store_blob(bytes)),
                ValueRef::Text(bytes) => {
                    media_files.store_if_data_url(std::str::from_utf8(bytes).ok()?)
                }
                _ => None,
            };
            expansion.key.names().iter().zip(values).map(medium).collect()
        } else {
            Vec::new()
        };
        let named_values: Vec<ValueRef<'_>> = values
            .iter()
            .enumerate()
            .map(|(n, value)| match media.get(n) {
                Some(Some(Value::Text(name))) => ValueRef::Text(name.as_bytes()),
                _ => *value,
            })
            .collect();
        let mut canonical_bytes = std::mem::take(&mut self.canonical_buffer);
        canonical_bytes.clear();
        write_canonical_bytes(&named_values, &mut canonical_bytes);
        let entity = self.data.targets[target].intern_values(&canonical_bytes);
        if entity.is_none() {
            self.record_unreadable_value((target, column), &canonical_bytes);
        }
        self.canonical_buffer = canonical_bytes;
        Ok(entity)
    }

    /// Returns the index of a document's entity, and adds the entity if it is new. Returns `None`
    /// if the document has no text.
    pub(in crate::query) fn intern_document_entity(
        &mut self,
        target: usize,
        values: &[ValueRef<'_>],
    ) -> rusqlite::Result<Option<usize>> {
        let value = values.first().copied().unwrap_or(ValueRef::Null);
        let digest = hash_value(value);
        if let Some(entity) = self.data.targets[target].find_known_entity(&digest) {
            return Ok(Some(entity));
        }
        let Some(document) = self.read_document(target, &digest, value)? else { return Ok(None) };
        let key = vec![Value::Text(document.entity_key())];
        let row = || Row { key, context: Vec::new() };
        Ok(Some(self.data.targets[target].intern_entity(&digest, row)))
    }

    /// Reads a document. Returns `None` if it has no text.
    pub(in crate::query) fn read_document(
        &mut self,
        target: usize,
        digest: &[u8; 32],
        value: ValueRef<'_>,
    ) -> rusqlite::Result<Option<Document>> {
        if let Some(kind) = find_media_kind(value) {
            return Err(function_error(&explain_undeclared(kind)));
        }
        let document = Document::from_value(value);
        if document.is_err() {
            self.record_unreadable_value((target, 0), digest);
        }
        Ok(document.unwrap_or_default())
    }

    /// Returns the index of the entity for a context's rows, and adds the entity if it is new. The
    /// entity is identified by the digest of the rows as the prompt shows them.
    pub(in crate::query) fn intern_rows_entity(
        &mut self,
        call: usize,
        target: usize,
        values: &[ValueRef<'_>],
    ) -> rusqlite::Result<usize> {
        let read: Result<Vec<Value>, _> = values.iter().map(|v| Value::from_sqlite(*v)).collect();
        let mut contexts = read.map_err(|e| function_error(&e.to_string()))?;
        let id = (call, *hash_contexts(&contexts).as_bytes());
        if let Some(entity) = self.data.contexts.find_known_entity(&id) {
            return Ok(entity);
        }
        if let Err(too_long) = self.data.contexts.truncate_to_limit(call, &mut contexts) {
            self.data.failure = Some(too_long);
            return Err(function_error("a context is too long"));
        }
        let shown = hash_contexts(&contexts).to_hex().as_str()[..16].to_owned();
        let key = vec![Value::Text(if contexts.is_empty() { "-".to_owned() } else { shown })];
        let canonical_bytes = key[0].to_string().into_bytes();
        let entity = self.data.targets[target]
            .intern_entity(&canonical_bytes, || Row { key, context: contexts });
        self.data.contexts.store_entity(id, entity);
        Ok(entity)
    }
}

/// Returns true if a row's options, a JSON list, are not empty. NULL counts as an empty list.
fn has_options(list: ValueRef<'_>) -> rusqlite::Result<bool> {
    let items: Option<Vec<serde_json::Value>> = match list {
        ValueRef::Null => Some(Vec::new()),
        ValueRef::Text(json) => serde_json::from_slice(json).ok(),
        _ => None,
    };
    match items {
        Some(items) => Ok(items.iter().any(|item| !item.is_null())),
        None => Err(function_error(
            "the options of a row are not a JSON list: pass search(…), json_array(…) or \
             json_group_array(…)",
        )),
    }
}

/// Returns a value's digest. A document can be megabytes long, so only its digest is kept.
pub(in crate::query) fn hash_value(value: ValueRef<'_>) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    match value {
        ValueRef::Text(bytes) => hasher.update(bytes),
        other => {
            let mut canonical_bytes = Vec::new();
            write_canonical_bytes(&[other], &mut canonical_bytes);
            hasher.update(&[0]).update(&canonical_bytes)
        }
    };
    *hasher.finalize().as_bytes()
}

/// Returns the kind of medium of a value that cannot be represented as text.
fn find_media_kind(value: ValueRef<'_>) -> Option<&'static MediaKind> {
    match value {
        ValueRef::Blob(bytes) => find_blob_kind(bytes),
        ValueRef::Text(text) => find_data_url_kind(text),
        _ => None,
    }
}

fn hash_contexts(contexts: &[Value]) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    for context in contexts {
        let json = context.to_json().to_string();
        hasher.update(&(json.len() as u64).to_le_bytes());
        hasher.update(json.as_bytes());
    }
    hasher.finalize()
}
