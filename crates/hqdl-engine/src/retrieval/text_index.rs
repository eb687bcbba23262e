//! Ranks texts by the words that they share with a question, using the BM25 score of `SQLite`'s
//! FTS5.

use std::collections::HashSet;

use rusqlite::{Connection, params};

/// Stop words: Lucene's list for English (`EnglishAnalyzer.ENGLISH_STOP_WORDS_SET`). BM25 itself
/// gives other frequent words a low weight.
pub(crate) const STOP_WORDS: [&str; 33] = [
    "a", "an", "and", "are", "as", "at", "be", "but", "by", "for", "if", "in", "into", "is", "it",
    "no", "not", "of", "on", "or", "such", "that", "the", "their", "then", "there", "these",
    "they", "this", "to", "was", "will", "with",
];

/// Maximum number of words of a key, and of a topic, that are compared.
const MAX_TERMS: usize = 100;

/// Index of texts that are compared with questions.
pub struct TextIndex {
    connection: Connection,
    count: usize,
}

impl TextIndex {
    /// Indexes texts; they are identified by their positions.
    ///
    /// # Errors
    /// Returns `SQLite`'s error if a statement fails.
    pub fn from_texts<'t>(texts: impl IntoIterator<Item = &'t str>) -> rusqlite::Result<Self> {
        let mut connection = Connection::open_in_memory()?;
        hqdl_values::sql::reject_quoted_texts(&connection)?;
        connection.execute_batch(
            "CREATE VIRTUAL TABLE texts USING fts5 (text, tokenize = 'porter unicode61')",
        )?;
        let mut count = 0;
        let transaction = connection.transaction()?;
        {
            let mut insert =
                transaction.prepare("INSERT INTO texts (rowid, text) VALUES (?1, ?2)")?;
            for text in texts {
                insert.execute(params![count, text])?;
                count += 1;
            }
        }
        transaction.commit()?;
        Ok(Self { connection, count })
    }

    /// Returns the similarity of each text to a question; 0 if they share no word.
    ///
    /// # Errors
    /// Returns `SQLite`'s error if a statement fails.
    pub fn compute_similarities(&self, question: &str) -> rusqlite::Result<Vec<f64>> {
        let mut all = vec![0.0; self.count];
        let terms = split_terms(question);
        if terms.is_empty() {
            return Ok(all);
        }
        let query: Vec<String> = terms.iter().map(|w| format!("\"{w}\"")).collect();
        let mut found =
            self.connection.prepare("SELECT rowid, bm25(texts) FROM texts WHERE texts MATCH ?1")?;
        let mut rows = found.query([query.join(" OR ")])?;
        while let Some(row) = rows.next()? {
            let (at, score): (usize, f64) = (row.get(0)?, row.get(1)?);
            if let Some(one) = all.get_mut(at) {
                // SQLite's scores are negative, and lower is better. If most texts contain a word,
                // its score may be slightly above zero.
                *one = (-score).max(1e-9);
            }
        }
        Ok(all)
    }

    /// Returns the positions of at most `limit` texts that share a word with `key`, best match
    /// first. Words of `key` weigh twice as much as words of `topic`.
    ///
    /// # Errors
    /// Returns `SQLite`'s error if a statement fails.
    pub fn find_texts(&self, key: &str, topic: &str, limit: usize) -> rusqlite::Result<Vec<usize>> {
        let quote = |terms: Vec<String>| -> Vec<String> {
            let mut seen = HashSet::new();
            let terms = terms.iter().map(|w| format!("\"{w}\"")).filter(|w| seen.insert(w.clone()));
            terms.take(MAX_TERMS).collect()
        };
        let (key, topic) = (quote(split_terms(key)), quote(split_terms(topic)));
        if key.is_empty() {
            return Ok(Vec::new());
        }
        let all = [key.clone(), topic].concat();
        let query = format!("({}) AND ({})", key.join(" OR "), all.join(" OR "));
        let sql =
            "SELECT rowid FROM texts WHERE texts MATCH ?1 ORDER BY bm25(texts), rowid LIMIT ?2";
        let mut found = self.connection.prepare_cached(sql)?;
        found.query_map(params![query, limit], |row| row.get(0))?.collect()
    }
}

/// Returns the words of a question without stop words, or all words if the question consists of
/// stop words.
fn split_terms(question: &str) -> Vec<String> {
    let all = || {
        question
            .split(|c: char| !c.is_alphanumeric())
            .filter(|w| !w.is_empty())
            .map(str::to_lowercase)
    };
    let distinguishing: Vec<String> = all().filter(|w| !STOP_WORDS.contains(&w.as_str())).collect();
    if distinguishing.is_empty() { all().collect() } else { distinguishing }
}
