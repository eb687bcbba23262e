//! Stores embeddings in a separate file next to the facts. Passages are identified by their
//! content, so only changed passages are embedded again after an edit.

use std::path::Path;

use rusqlite::{Connection, OptionalExtension, params};

/// Digest of a passage, the key of its vector.
pub type PassageDigest = [u8; 16];

/// Returns the digest of a passage.
#[must_use]
pub fn hash_passage(passage: &str) -> PassageDigest {
    let mut digest = [0; 16];
    blake3::Hasher::new_derive_key("hqdl passage v1")
        .update(passage.as_bytes())
        .finalize_xof()
        .fill(&mut digest);
    digest
}

/// File of embedding vectors.
pub struct VectorStore {
    connection: Connection,
}

impl VectorStore {
    /// Opens the vector file in a data directory. Creates the file if it is missing.
    ///
    /// # Errors
    /// Returns `SQLite`'s error if a statement fails.
    pub fn open(directory: &Path) -> rusqlite::Result<Self> {
        let connection = Connection::open(directory.join("vectors.sqlite"))?;
        hqdl_values::sql::reject_quoted_texts(&connection)?;
        connection.pragma_update(None, "journal_mode", "wal")?;
        connection.pragma_update(None, "synchronous", "normal")?;
        // Wait if another process is writing.
        connection.busy_timeout(std::time::Duration::from_secs(10))?;
        connection.execute_batch(
            "CREATE TABLE IF NOT EXISTS vector (model TEXT, passage BLOB, vector BLOB NOT NULL,
             PRIMARY KEY (model, passage)) WITHOUT ROWID",
        )?;
        Ok(Self { connection })
    }

    /// Returns whether the vector of a passage is stored.
    ///
    /// # Errors
    /// Returns `SQLite`'s error if a statement fails.
    pub fn contains_vector(&self, model: &str, passage: &PassageDigest) -> rusqlite::Result<bool> {
        let sql = "SELECT 1 FROM vector WHERE model = ?1 AND passage = ?2";
        self.connection.prepare_cached(sql)?.exists(params![model, passage])
    }

    /// Returns the vector of a passage, normalized to length 1; `None` if it is not stored.
    ///
    /// # Errors
    /// Returns `SQLite`'s error if a statement fails.
    pub fn get_vector(
        &self,
        model: &str,
        passage: &PassageDigest,
    ) -> rusqlite::Result<Option<Vec<f32>>> {
        let bytes = self.get_vector_bytes(model, passage)?;
        Ok(bytes.map(|bytes| {
            let numbers = bytes.as_chunks::<4>().0.iter();
            numbers.map(|b| f32::from_le_bytes(*b)).collect()
        }))
    }

    /// Returns the vector of a passage as little-endian 32-bit floats; `None` if it is not stored.
    ///
    /// # Errors
    /// Returns `SQLite`'s error if a statement fails.
    pub fn get_vector_bytes(
        &self,
        model: &str,
        passage: &PassageDigest,
    ) -> rusqlite::Result<Option<Vec<u8>>> {
        let sql = "SELECT vector FROM vector WHERE model = ?1 AND passage = ?2";
        let mut statement = self.connection.prepare_cached(sql)?;
        statement.query_row(params![model, passage], |row| row.get(0)).optional()
    }

    /// Normalizes vectors to length 1 and stores them.
    ///
    /// # Errors
    /// Returns `SQLite`'s error if a statement fails.
    pub fn store_vectors(
        &mut self,
        model: &str,
        vectors: &[(PassageDigest, Vec<f32>)],
    ) -> rusqlite::Result<()> {
        let transaction = self.connection.transaction()?;
        {
            let sql = "INSERT OR REPLACE INTO vector VALUES (?1, ?2, ?3)";
            let mut insert = transaction.prepare_cached(sql)?;
            for (passage, vector) in vectors {
                let length = vector.iter().map(|n| n * n).sum::<f32>().sqrt();
                let length = if length > 0.0 { length } else { 1.0 };
                let bytes: Vec<u8> =
                    vector.iter().flat_map(|n| (n / length).to_le_bytes()).collect();
                insert.execute(params![model, passage, bytes])?;
            }
        }
        transaction.commit()
    }

    /// Returns the dimension of a model's vectors; `None` if there are none.
    ///
    /// # Errors
    /// Returns `SQLite`'s error if a statement fails.
    pub fn load_vector_dimension(&self, model: &str) -> rusqlite::Result<Option<usize>> {
        let sql = "SELECT length(vector) / 4 FROM vector WHERE model = ?1 LIMIT 1";
        self.connection.prepare_cached(sql)?.query_row([model], |row| row.get(0)).optional()
    }

    /// Deletes all vectors of a model. Call this if the model's name now refers to another model.
    ///
    /// # Errors
    /// Returns `SQLite`'s error if a statement fails.
    pub fn delete_vectors(&self, model: &str) -> rusqlite::Result<()> {
        self.connection.execute("DELETE FROM vector WHERE model = ?1", [model]).map(drop)
    }
}

/// Returns the cosine similarity of two vectors of length 1, from -1 to 1.
#[must_use]
pub fn cosine_similarity(a: &[f32], b: &[f32]) -> f64 {
    f64::from(a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>())
}

/// Returns the cosine similarity of two vectors of 32-bit floats, from -1 to 1. Returns `None` if
/// the lengths differ, a vector has only zeros, or a number is not finite.
#[must_use]
pub fn cosine_similarity_of_bytes(a: &[u8], b: &[u8]) -> Option<f64> {
    let (a, b) = (a.as_chunks::<4>().0, b.as_chunks::<4>().0);
    if a.len() != b.len() {
        return None;
    }
    let (mut dot, mut length_a, mut length_b) = (0.0, 0.0, 0.0);
    for (a, b) in a.iter().zip(b) {
        let (a, b) = (f64::from(f32::from_le_bytes(*a)), f64::from(f32::from_le_bytes(*b)));
        dot += a * b;
        length_a += a * a;
        length_b += b * b;
    }
    // The root of the product is exact if both vectors are equal.
    let cosine: f64 = dot / (length_a * length_b).sqrt();
    cosine.is_finite().then(|| cosine.clamp(-1.0, 1.0))
}
