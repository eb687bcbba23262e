//! Checksums of answers. A flipped bit on disk causes no read error: it silently changes a value or
//! an entity. An answer whose checksum does not match is *damaged*: it is reported, never shown,
//! and its cells are asked for again.
//!
//! The earlier facts of the entity are discarded as well, because the damaged answer may have
//! replaced them.

use std::collections::HashMap;

use rusqlite::functions::FunctionFlags;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, Row, ffi};

use crate::record::Fact;

/// Maximum number of damaged rows that the warning lists.
const MAX_LISTED_ROWS: usize = 5;

/// Returns the checksum of an answer: the upper half covers the entity, the lower half the whole
/// answer.
pub(super) fn compute_answer_checksum(
    entity: &str,
    completion: i64,
    model: u32,
    cells: &str,
) -> i64 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&(entity.len() as u64).to_le_bytes());
    hasher.update(entity.as_bytes());
    hasher.update(&completion.to_le_bytes());
    hasher.update(&model.to_le_bytes());
    hasher.update(cells.as_bytes());
    let both = (u64::from(compute_entity_checksum(entity)) << 32)
        | u64::from(first_u32(hasher.finalize()));
    both.cast_signed()
}

/// Returns the upper half of a checksum, which identifies the entity.
pub(super) fn compute_entity_checksum(entity: impl AsRef<[u8]>) -> u32 {
    first_u32(blake3::hash(entity.as_ref()))
}

fn first_u32(hash: blake3::Hash) -> u32 {
    let [a, b, c, d, ..] = *hash.as_bytes();
    u32::from_le_bytes([a, b, c, d])
}

/// Registers the SQL function that computes the checksum of an answer row. The migration of
/// journals without checksums uses it. The function returns NULL for a row that is not an answer.
pub(super) fn register_checksum_function(connection: &Connection) -> rusqlite::Result<()> {
    let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DETERMINISTIC;
    connection.create_scalar_function("hqdl_checksum", 4, flags, |context| {
        let arguments = (context.get(0), context.get(1), context.get(2), context.get(3));
        Ok(match arguments {
            (Ok(entity), Ok(completion), Ok(model), Ok(cells)) => {
                let (entity, cells): (String, String) = (entity, cells);
                Some(compute_answer_checksum(&entity, completion, model, &cells))
            }
            _ => None,
        })
    })
}

/// An entry of one of the journal's dictionaries. Answers refer to the entry by its id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DictionaryEntry {
    /// Name of the dictionary's table.
    pub table: &'static str,
    /// Row id of the entry in that table.
    pub id: i64,
}

/// Damaged parts of a journal.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Damage {
    /// Ids of the damaged answer rows, in ascending order.
    pub fact_rows: Vec<i64>,
    /// Damaged entries of the journal's dictionaries.
    pub entries: Vec<DictionaryEntry>,
    /// For each entity (identified by its half of a checksum), the id of its last damaged row. A
    /// row is listed under its stored half and under the half computed from its current text,
    /// because either can be the damaged one.
    entities: HashMap<u32, i64>,
}

impl Damage {
    /// Returns true if nothing is damaged.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.fact_rows.is_empty() && self.entries.is_empty()
    }

    /// Returns true if a dictionary entry that the fact refers to is damaged.
    pub(super) fn affects_fact(&self, fact: &Fact) -> bool {
        self.entries.iter().any(|DictionaryEntry { table, id }| {
            let of_fact = match *table {
                "meaning" => Some(fact.identity_id),
                "model" => Some(fact.model),
                "value_list" => fact.list,
                _ => None,
            };
            of_fact.is_some_and(|of_fact| i64::from(of_fact) == *id)
        })
    }

    /// Returns true if this row's facts about the entity can be trusted.
    pub(super) fn trusts_row(&self, fact_row: i64, entity: &str) -> bool {
        self.fact_rows.is_empty()
            || self
                .entities
                .get(&compute_entity_checksum(entity))
                .is_none_or(|last| fact_row > *last)
    }

    /// Returns a warning for the user; `None` if nothing is damaged.
    #[must_use]
    pub fn warning(&self) -> Option<String> {
        let join_first = |all: Vec<String>| {
            let more = if all.len() > MAX_LISTED_ROWS { ", …" } else { "" };
            let first: Vec<String> = all.into_iter().take(MAX_LISTED_ROWS).collect();
            format!("{}{more}", first.join(", "))
        };
        let lines = join_first(self.fact_rows.iter().map(i64::to_string).collect());
        let answers = match self.fact_rows.len() {
            0 => None,
            1 => Some(format!(
                "1 answer in the journal does not match its checksum (line {lines}): its cells \
                 count as missing, and hqdl asks for them again"
            )),
            n => Some(format!(
                "{n} answers in the journal do not match their checksum (lines {lines}): their \
                 cells count as missing, and hqdl asks for them again"
            )),
        };
        let entries = join_first(
            self.entries.iter().map(|entry| format!("{} {}", entry.table, entry.id)).collect(),
        );
        let entries = match self.entries.len() {
            0 => None,
            1 => Some(format!(
                "1 entry of the journal is damaged ({entries}): the facts that depend on it may \
                 count as missing"
            )),
            n => Some(format!(
                "{n} entries of the journal are damaged ({entries}): the facts that depend on \
                 them may count as missing"
            )),
        };
        let warnings: Vec<String> = answers.into_iter().chain(entries).collect();
        (!warnings.is_empty()).then(|| warnings.join("; "))
    }

    /// Marks a row of the entity as damaged.
    pub(super) fn mark_damaged(&mut self, fact_row: i64, entity: &str) {
        self.add_damage(fact_row, [compute_entity_checksum(entity)]);
    }

    pub(crate) fn add_damage(&mut self, fact_row: i64, entities: impl IntoIterator<Item = u32>) {
        self.fact_rows.push(fact_row);
        self.entities.extend(entities.into_iter().map(|e| (e, fact_row)));
    }
}

/// A row of the journal's answer table.
pub(super) struct AnswerRow {
    pub(super) id: i64,
    pub(super) entity: String,
    pub(super) cells: String,
    pub(super) completion: i64,
    pub(super) model: u32,
}

/// Selects the answer rows after a given row, in order; `a` is the answer and `c` its completion.
pub(super) const ANSWER_ROWS_SQL: &str =
    "SELECT a.id, a.entity, a.cells, a.completion, c.model, a.checksum FROM answer AS a
     LEFT JOIN completion AS c ON c.id = a.completion WHERE a.id > ?1 ORDER BY a.id";

/// Selects the answer rows about an entity after a row.
pub(super) const ENTITY_ROWS_SQL: &str =
    "SELECT a.id, a.entity, a.cells, a.completion, c.model, a.checksum FROM answer AS a
     LEFT JOIN completion AS c ON c.id = a.completion WHERE a.id > ?1 AND a.entity = ?2 ORDER BY a.id";

/// Selects all answer rows, sorted by entity.
pub(super) const SORTED_ANSWER_ROWS_SQL: &str =
    "SELECT a.id, a.entity, a.cells, a.completion, c.model, a.checksum FROM answer AS a
     LEFT JOIN completion AS c ON c.id = a.completion ORDER BY a.entity, a.id";

impl AnswerRow {
    /// Reads an answer row. For a damaged row, returns its id and the hashes of the entities that
    /// it may belong to.
    pub(super) fn from_row(row: &Row<'_>) -> rusqlite::Result<Result<Self, (i64, Vec<u32>)>> {
        let id = row.get(0)?;
        let text = |n: usize| match row.get_ref(n) {
            Ok(ValueRef::Text(bytes)) => std::str::from_utf8(bytes).ok().map(str::to_owned),
            _ => None,
        };
        let (entity, stored_sum) = (text(1), row.get::<_, Option<i64>>(5).ok().flatten());
        let possible_entities = || {
            let stored_sum =
                stored_sum.and_then(|sum| u32::try_from(sum.cast_unsigned() >> 32).ok());
            stored_sum.into_iter().chain(entity.as_deref().map(compute_entity_checksum)).collect()
        };
        let (Some(entity_text), Some(cells), Ok(completion), Ok(model)) =
            (&entity, text(2), row.get(3), row.get(4))
        else {
            return Ok(Err((id, possible_entities())));
        };
        // Rows without a checksum are accepted unchecked.
        if stored_sum.is_some_and(|kept| {
            kept != compute_answer_checksum(entity_text, completion, model, &cells)
        }) {
            return Ok(Err((id, possible_entities())));
        }
        Ok(Ok(Self { id, entity: entity_text.clone(), cells, completion, model }))
    }
}

/// Returns the error that `SQLite` reports for a damaged file, with the given message.
pub(crate) fn corruption_error(message: &str) -> rusqlite::Error {
    let code = ffi::Error::new(ffi::SQLITE_CORRUPT);
    rusqlite::Error::SqliteFailure(code, Some(message.to_owned()))
}
