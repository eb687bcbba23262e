//! Finds the stored values that match the words of a question. The trigram index is in memory, so
//! that a read-only database can be searched too.

use std::collections::{HashMap, HashSet};

use rusqlite::{Connection, params};

use super::schema::{TableDescription, format_name};
use crate::init::classify::{is_private, split_words};
use crate::retrieval::text_index::STOP_WORDS;
use hqdl_database::Database;
use hqdl_spec::Catalog;
use hqdl_values::key::quote_json;
use hqdl_values::sql::quote_name;
use hqdl_values::value::Value;

/// Maximum number of rows that are read per table.
const MAX_ROWS: usize = 100_000;
/// Maximum number of indexed values per column.
const MAX_COLUMN_VALUES: usize = 20_000;
/// Maximum number of indexed values.
const MAX_VALUES: usize = 300_000;
/// Maximum length of an indexed value, in characters; longer texts are documents, not names.
const MAX_VALUE_CHARS: usize = 80;
/// Maximum number of words of a question to search for.
const MAX_WORDS: usize = 60;
/// Maximum number of candidates per word.
const CANDIDATES: usize = 40;
/// A value matches a word if it contains at least this share of the word's trigrams.
const MIN_CONTAINMENT: f64 = 0.6;
/// Maximum number of matches per question.
const MAX_MATCHES: usize = 12;
/// Bonus for a value that the question contains as whole words. Such a value ranks before all
/// others, because the query probably compares a column with the value.
const WHOLE_VALUE_SCORE: f64 = 100.0;
/// Length of a trigram, in characters.
const TRIGRAM: usize = 3;

/// A stored value that matches a word of the question.
#[derive(Debug, Clone, PartialEq)]
pub struct ValueMatch {
    /// The value.
    pub value: String,
    /// Table of the value.
    pub table: String,
    /// Column of the value.
    pub column: String,
    /// Strength of the match; larger is better.
    pub score: f64,
}

impl ValueMatch {
    /// Formats the match for a prompt, on one line.
    #[must_use]
    pub fn format(&self) -> String {
        let (table, column) = (format_name(&self.table), format_name(&self.column));
        format!("{} in {table}.{column}", quote_json(&self.value))
    }
}

/// Trigram index of a database's short texts.
pub struct StoredValueIndex {
    connection: Connection,
}

impl StoredValueIndex {
    /// Indexes the distinct short texts of a database's tables, but not of its views. Columns with
    /// contact details or official identifiers of persons are left out.
    ///
    /// # Errors
    /// Returns `SQLite`'s error if the index cannot be built.
    pub fn build(database: &Database, descriptions: &[TableDescription]) -> rusqlite::Result<Self> {
        let mut connection = Connection::open_in_memory()?;
        hqdl_values::sql::reject_quoted_texts(&connection)?;
        connection.execute_batch(
            "CREATE VIRTUAL TABLE words USING fts5 (value, place UNINDEXED, part UNINDEXED, tokenize = 'trigram')",
        )?;
        let transaction = connection.transaction()?;
        {
            let mut insert = transaction
                .prepare("INSERT INTO words (value, place, part) VALUES (?1, ?2, ?3)")?;
            let mut left = MAX_VALUES;
            for description in descriptions.iter().filter(|description| !description.is_view) {
                for (column, declared_type) in &description.columns {
                    if !may_contain_text(declared_type) || is_private(&split_words(column)) {
                        continue;
                    }
                    let values = read_values(database, &description.name, column, left);
                    left -= values.len();
                    for value in values {
                        insert.execute(params![value, description.name, column])?;
                    }
                }
            }
        }
        transaction.commit()?;
        Ok(Self { connection })
    }

    /// Returns at most `MAX_MATCHES` stored values that match words of a text, best first.
    ///
    /// # Errors
    /// Returns `SQLite`'s error if the index cannot be searched.
    pub fn find_matches(&self, text: &str) -> rusqlite::Result<Vec<ValueMatch>> {
        let question_trigrams = split_trigrams(text);
        let mut found: HashMap<(String, String, String), f64> = HashMap::new();
        for word in split_search_words(text) {
            let word_trigrams = split_trigrams(&word);
            for (value, table, column) in self.find_candidates(&word, &word_trigrams)? {
                let value_trigrams = split_trigrams(&value);
                let containment = if word_trigrams.is_empty() {
                    1.0
                } else {
                    compute_share(&word_trigrams, &value_trigrams)
                };
                if containment < MIN_CONTAINMENT {
                    continue;
                }
                // Prefer a value that the question contains entirely to one that shares only a word
                // with it.
                let coverage = compute_share(&value_trigrams, &question_trigrams);
                let score = found.entry((value, table, column)).or_default();
                *score += containment * (0.1 + coverage);
            }
        }
        let words = pad_words(text);
        let to_match = |((value, table, column), score): ((String, String, String), f64)| {
            let is_whole = words.contains(&pad_words(&value));
            let score = if is_whole { score + WHOLE_VALUE_SCORE } else { score };
            ValueMatch { value, table, column, score }
        };
        let mut matches: Vec<ValueMatch> = found.into_iter().map(to_match).collect();
        matches.sort_by(|a, b| {
            let by_name = || (&a.value, &a.table, &a.column).cmp(&(&b.value, &b.table, &b.column));
            b.score.total_cmp(&a.score).then_with(by_name)
        });
        matches.truncate(MAX_MATCHES);
        Ok(matches)
    }

    fn find_candidates(
        &self,
        word: &str,
        word_trigrams: &HashSet<String>,
    ) -> rusqlite::Result<Vec<(String, String, String)>> {
        let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
        // A word of two characters has no trigram.
        if word_trigrams.is_empty() {
            let sql = "SELECT value, place, part FROM words WHERE value = ?1 COLLATE NOCASE \
                       OR value LIKE ?1 || ' %' OR value LIKE '% ' || ?1 LIMIT ?2";
            let mut statement = self.connection.prepare_cached(sql)?;
            return statement.query_map(params![word, CANDIDATES], read)?.collect();
        }
        let mut terms: Vec<String> =
            word_trigrams.iter().map(|t| format!("\"{}\"", t.replace('"', "\"\""))).collect();
        terms.sort_unstable();
        let sql = "SELECT value, place, part FROM words WHERE words MATCH ?1 ORDER BY rank, value LIMIT ?2";
        let mut statement = self.connection.prepare_cached(sql)?;
        statement.query_map(params![terms.join(" OR "), CANDIDATES], read)?.collect()
    }
}

/// Returns whether a column may contain text. A column without a type may contain anything.
fn may_contain_text(declared_type: &str) -> bool {
    let upper = declared_type.to_uppercase();
    upper.is_empty() || ["CHAR", "TEXT", "CLOB", "STRING"].iter().any(|part| upper.contains(part))
}

fn read_values(database: &Database, table: &str, column: &str, left: usize) -> Vec<String> {
    let (table, column) = (quote_name(table), quote_name(column));
    let is_text = match database.server_url() {
        Some(_) => format!("length({column}) <= {MAX_VALUE_CHARS}"),
        None => format!("typeof({column}) = 'text' AND length({column}) <= {MAX_VALUE_CHARS}"),
    };
    let sql = format!(
        "SELECT DISTINCT {column} FROM (SELECT {column} FROM {table} LIMIT {MAX_ROWS}) AS t WHERE {is_text}"
    );
    let rows = database.select_rows(&sql, MAX_COLUMN_VALUES.min(left)).unwrap_or_default();
    let text = |row: Vec<Value>| match row.into_iter().next() {
        Some(Value::Text(text)) => Some(text),
        _ => None,
    };
    rows.into_iter().filter_map(text).collect()
}

/// Returns the words of a text to search for. A word of two characters counts only if it is an
/// abbreviation.
#[must_use]
pub fn split_search_words(text: &str) -> Vec<String> {
    let mut seen = HashSet::new();
    let is_searched = |word: &&str| match word.chars().count() {
        0 | 1 => false,
        2 => word.chars().all(char::is_uppercase),
        _ => !STOP_WORDS.contains(&word.to_lowercase().as_str()),
    };
    let words = text.split(|c: char| !c.is_alphanumeric()).filter(is_searched);
    words
        .map(str::to_owned)
        .filter(|word| seen.insert(word.to_lowercase()))
        .take(MAX_WORDS)
        .collect()
}

/// Returns the words of a text in lower case, with a space before and after each.
fn pad_words(text: &str) -> String {
    let words = text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    words.fold(" ".to_owned(), |padded, word| padded + &word.to_lowercase() + " ")
}

/// Returns the trigrams of a text, in lower case.
#[must_use]
pub fn split_trigrams(text: &str) -> HashSet<String> {
    let chars: Vec<char> = text.to_lowercase().chars().collect();
    chars.windows(TRIGRAM).map(|window| window.iter().collect()).collect()
}

/// Returns the share of the trigrams in `part` that `whole` contains; 0 if `part` is empty.
#[must_use]
pub fn compute_share(part: &HashSet<String>, whole: &HashSet<String>) -> f64 {
    if part.is_empty() {
        return 0.0;
    }
    part.intersection(whole).count() as f64 / part.len() as f64
}
