//! Claim keys, which prevent two runs from doing the same work.
//!
//! A run claims all cells of a request in one step before it sends the request, and never waits
//! while it holds a claim. It skips cells that other runs have claimed, and checks them again when
//! those claims are released. Claims therefore cannot deadlock.

use hqdl_values::key::Entity;

/// Key of a claim: a cell or a name that one session at a time may work on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ClaimKey {
    /// Right to ask for a cell.
    Cell {
        /// Entity of the cell.
        entity: Entity,
        /// Id of the column's identity in the journal.
        identity_id: u32,
        /// Id of the model in the journal; 0 if an answer from any model counts.
        model: u32,
    },
    /// Named lock, such as the one for publishing to a database.
    Name(String),
}

impl ClaimKey {
    /// Returns the hash under which the claim is stored.
    pub(crate) fn hash(&self) -> Vec<u8> {
        let mut hasher = blake3::Hasher::new();
        match self {
            Self::Cell { entity, identity_id, model } => {
                hasher.update(b"cell");
                hasher.update(&identity_id.to_le_bytes());
                hasher.update(&model.to_le_bytes());
                hasher.update(entity.as_str().as_bytes());
            }
            Self::Name(name) => {
                hasher.update(b"name");
                hasher.update(name.as_bytes());
            }
        }
        hasher.finalize().as_bytes()[..16].to_vec()
    }

    /// Returns a shorter hash. If two keys have the same short hash, claiming one also blocks the
    /// other.
    pub(crate) fn short_hash(&self) -> i64 {
        let hash = self.hash();
        hash.first_chunk().map_or(0, |bytes| i64::from_le_bytes(*bytes))
    }
}
