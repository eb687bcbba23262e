//! Which entity the values of a call are, where they are not a key themselves: a
//! document, or the rows of contexts, is known by its digest.

use rusqlite::types::ValueRef;

use super::documents::Document;
use super::live::{Live, broken};
use super::targets::spell;
use hqdl_values::Row;
use hqdl_values::value::Value;

impl Live {
    /// The entity of a document; `None` where there is no text to ask about.
    pub(super) fn document(&mut self, target: usize, values: &[ValueRef<'_>]) -> Option<usize> {
        let value = values.first().copied().unwrap_or(ValueRef::Null);
        // As it is stored: megabytes are not kept for being told apart.
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
            return Some(entity);
        }
        let document = match Document::read(value) {
            Ok(document) => document?,
            Err(_) => {
                self.is_unreadable((target, 0), &spelling);
                return None;
            }
        };
        let key = vec![Value::Text(document.key())];
        Some(self.known.targets[target].entity(&spelling, || Row { key, context: Vec::new() }))
    }

    /// The entity of some rows: the digest of what the model is shown of them.
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

fn digest(contexts: &[Value]) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    for context in contexts {
        let json = context.to_json().to_string();
        hasher.update(&(json.len() as u64).to_le_bytes());
        hasher.update(json.as_bytes());
    }
    hasher.finalize()
}
