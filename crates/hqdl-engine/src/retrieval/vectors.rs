//! Embeddings that were paid for, in a file of their own beside the facts: a
//! passage is known by its content, so an edit costs the passages it changes.

use std::path::Path;

use rusqlite::{Connection, OptionalExtension, params};

/// A passage, as its vector is known by.
pub type Digest = [u8; 16];

/// The digest of a passage.
#[must_use]
pub fn digest(passage: &str) -> Digest {
    let mut digest = [0; 16];
    blake3::Hasher::new_derive_key("hqdl passage v1")
        .update(passage.as_bytes())
        .finalize_xof()
        .fill(&mut digest);
    digest
}

/// The file of vectors.
pub struct Vectors {
    connection: Connection,
}

impl Vectors {
    /// Opens the vectors of a data directory, and makes their file where it is
    /// missing.
    ///
    /// # Errors
    /// `SQLite`'s.
    pub fn open(directory: &Path) -> rusqlite::Result<Self> {
        let connection = Connection::open(directory.join("vectors.sqlite"))?;
        hqdl_values::sql::refuse_quoted_texts(&connection)?;
        connection.pragma_update(None, "journal_mode", "wal")?;
        connection.pragma_update(None, "synchronous", "normal")?;
        // Another process may be keeping some.
        connection.busy_timeout(std::time::Duration::from_secs(10))?;
        connection.execute_batch(
            "CREATE TABLE IF NOT EXISTS vector (model TEXT, passage BLOB, vector BLOB NOT NULL,
             PRIMARY KEY (model, passage)) WITHOUT ROWID",
        )?;
        Ok(Self { connection })
    }

    /// Whether the vector of a passage is there.
    ///
    /// # Errors
    /// `SQLite`'s.
    pub fn has(&self, model: &str, passage: &Digest) -> rusqlite::Result<bool> {
        let sql = "SELECT 1 FROM vector WHERE model = ?1 AND passage = ?2";
        self.connection.prepare_cached(sql)?.exists(params![model, passage])
    }

    /// The vector of a passage, of length 1.
    ///
    /// # Errors
    /// `SQLite`'s.
    pub fn get(&self, model: &str, passage: &Digest) -> rusqlite::Result<Option<Vec<f32>>> {
        let sql = "SELECT vector FROM vector WHERE model = ?1 AND passage = ?2";
        let mut statement = self.connection.prepare_cached(sql)?;
        let bytes = statement
            .query_row(params![model, passage], |row| row.get::<_, Vec<u8>>(0))
            .optional()?;
        Ok(bytes.map(|bytes| {
            let numbers = bytes.as_chunks::<4>().0.iter();
            numbers.map(|b| f32::from_le_bytes(*b)).collect()
        }))
    }

    /// Keeps vectors, made of length 1.
    ///
    /// # Errors
    /// `SQLite`'s.
    pub fn keep(&mut self, model: &str, all: &[(Digest, Vec<f32>)]) -> rusqlite::Result<()> {
        let transaction = self.connection.transaction()?;
        {
            let sql = "INSERT OR REPLACE INTO vector VALUES (?1, ?2, ?3)";
            let mut insert = transaction.prepare_cached(sql)?;
            for (passage, vector) in all {
                let length = vector.iter().map(|n| n * n).sum::<f32>().sqrt();
                let length = if length > 0.0 { length } else { 1.0 };
                let bytes: Vec<u8> =
                    vector.iter().flat_map(|n| (n / length).to_le_bytes()).collect();
                insert.execute(params![model, passage, bytes])?;
            }
        }
        transaction.commit()
    }

    /// How many numbers the vectors of a model have; `None` without any.
    ///
    /// # Errors
    /// `SQLite`'s.
    pub fn dimension(&self, model: &str) -> rusqlite::Result<Option<usize>> {
        let sql = "SELECT length(vector) / 4 FROM vector WHERE model = ?1 LIMIT 1";
        self.connection.prepare_cached(sql)?.query_row([model], |row| row.get(0)).optional()
    }

    /// Forgets all vectors of a model: they are of another one by the same name.
    ///
    /// # Errors
    /// `SQLite`'s.
    pub fn forget(&self, model: &str) -> rusqlite::Result<()> {
        self.connection.execute("DELETE FROM vector WHERE model = ?1", [model]).map(drop)
    }
}

/// How much two vectors of length 1 point in the same direction, from -1 to 1.
#[must_use]
pub fn cosine(a: &[f32], b: &[f32]) -> f64 {
    f64::from(a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>())
}
