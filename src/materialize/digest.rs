//! Everything that is published, summed up.

use crate::spec::{Expansion, Spec};

/// Sums up everything that is published, in any order: when it is the same as
/// before, there is nothing to publish.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Digest {
    sum: u128,
    rows: u64,
}

impl Digest {
    pub(super) fn add(
        &mut self,
        key: &[crate::value::Value],
        record: Option<&[u8]>,
        mark: Option<&str>,
    ) {
        let mut hasher = blake3::Hasher::new();
        for value in key {
            // The spelling counts: it is what joins.
            let text = value.text();
            hasher.update(&[u8::from(text.is_some())]);
            let text = text.unwrap_or_default();
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        }
        hasher.update(&[u8::from(record.is_some())]);
        hasher.update(record.unwrap_or_default());
        hasher.update(mark.unwrap_or_default().as_bytes());
        let hash = hasher.finalize();
        let (head, _) = hash.as_bytes().split_at(16);
        self.sum = self.sum.wrapping_add(u128::from_le_bytes(head.try_into().unwrap_or([0; 16])));
        self.rows += 1;
    }

    /// With everything else that decides what the tables look like.
    pub(super) fn text(&self, spec: &Spec, model: &str, expansion: &Expansion) -> String {
        let mut layout = format!("v2 {} {} {:?}", self.rows, self.sum, expansion.key_types);
        layout.push_str(&format!("{:?} {model:?}", spec.model.reuse));
        layout.push_str(&format!("{:?} {:?}", expansion.key.names(), expansion.sources));
        for column in &expansion.columns {
            let list = column.values.as_ref().map(|v| v.hash.as_str().to_owned());
            layout.push_str(&format!(
                "{} {} {:?} {list:?} {:?};",
                column.name, column.fingerprint, column.kind, column.many
            ));
            if let Some(unknown) = &column.unknown {
                layout.push_str(&format!("{unknown:?};"));
            }
        }
        blake3::hash(layout.as_bytes()).to_hex().as_str()[..32].to_owned()
    }
}
