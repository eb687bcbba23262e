//! Checksums of answers. A flipped bit on disk causes no read error, only another value or another
//! entity. An answer whose checksum does not match is *damaged*: it is reported, never shown, and
//! its cells are asked for again.
//!
//! The earlier facts of the entity are unknown as well, because the damaged answer may have
//! replaced them.

use std::collections::HashMap;

use rusqlite::functions::FunctionFlags;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, Row, ffi};

/// Maximum number of lines that the report of damage lists.
const NAMED: usize = 5;

/// Returns the checksum of an answer: the upper half covers its entity, the lower half all of it.
pub(super) fn checksum(entity: &str, completion: i64, model: u32, cells: &str) -> i64 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&(entity.len() as u64).to_le_bytes());
    hasher.update(entity.as_bytes());
    hasher.update(&completion.to_le_bytes());
    hasher.update(&model.to_le_bytes());
    hasher.update(cells.as_bytes());
    let both = (u64::from(of_entity(entity)) << 32) | u64::from(head(hasher.finalize()));
    both.cast_signed()
}

/// Returns the half of a checksum that identifies the entity.
pub(super) fn of_entity(entity: &str) -> u32 {
    head(blake3::hash(entity.as_bytes()))
}

fn head(hash: blake3::Hash) -> u32 {
    let [a, b, c, d, ..] = *hash.as_bytes();
    u32::from_le_bytes([a, b, c, d])
}

/// Defines the SQL function of the checksum, for the migration of journals without checksums. It
/// returns NULL for a row that is not an answer.
pub(super) fn introduce(connection: &Connection) -> rusqlite::Result<()> {
    let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DETERMINISTIC;
    connection.create_scalar_function("hqdl_checksum", 4, flags, |context| {
        let said = (context.get(0), context.get(1), context.get(2), context.get(3));
        Ok(match said {
            (Ok(entity), Ok(completion), Ok(model), Ok(cells)) => {
                let (entity, cells): (String, String) = (entity, cells);
                Some(checksum(&entity, completion, model, &cells))
            }
            _ => None,
        })
    })
}

/// Answers that differ from what was stored.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Damage {
    /// Row ids in the journal, in order.
    pub lines: Vec<i64>,
    /// The last damaged row of an entity, by the entity half of its checksum: both the stored one
    /// and the one of its current text.
    entities: HashMap<u32, i64>,
}

impl Damage {
    /// Returns whether there is no damage.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.lines.is_empty()
    }

    /// Returns whether the facts of an entity in a row can be trusted.
    pub(super) fn spares(&self, line: i64, entity: &str) -> bool {
        self.is_none() || self.entities.get(&of_entity(entity)).is_none_or(|last| line > *last)
    }

    /// Returns a warning for the user; `None` if nothing is damaged.
    #[must_use]
    pub fn remark(&self) -> Option<String> {
        let first: Vec<String> = self.lines.iter().take(NAMED).map(i64::to_string).collect();
        let (n, more) = (self.lines.len(), if self.lines.len() > NAMED { ", …" } else { "" });
        let s = if n == 1 { "" } else { "s" };
        (n > 0).then(|| {
            format!(
                "{n} answer{s} in the journal do not match their checksum (line{s} {}{more}): their cells count as missing, and hqdl asks for them again",
                first.join(", ")
            )
        })
    }

    /// Adds a damaged row of an entity.
    pub(super) fn note(&mut self, line: i64, entity: &str) {
        self.add(line, [of_entity(entity)]);
    }

    pub(crate) fn add(&mut self, line: i64, entities: impl IntoIterator<Item = u32>) {
        self.lines.push(line);
        self.entities.extend(entities.into_iter().map(|e| (e, line)));
    }
}

/// A row of the journal's answer table.
pub(super) struct JournalLine {
    pub(super) id: i64,
    pub(super) entity: String,
    pub(super) cells: String,
    pub(super) completion: i64,
    pub(super) model: u32,
}

/// Query for the rows: `a` is the answer and `c` its completion.
pub(super) const LINES: &str =
    "SELECT a.id, a.entity, a.cells, a.completion, c.model, a.checksum FROM answer AS a
     LEFT JOIN completion AS c ON c.id = a.completion WHERE a.id > ?1 ORDER BY a.id";

impl JournalLine {
    /// Reads a row. If it is damaged, returns the entities that it may belong to.
    pub(super) fn read(row: &Row<'_>) -> rusqlite::Result<Result<Self, (i64, Vec<u32>)>> {
        let id = row.get(0)?;
        let text = |n: usize| match row.get_ref(n) {
            Ok(ValueRef::Text(bytes)) => std::str::from_utf8(bytes).ok().map(str::to_owned),
            _ => None,
        };
        let (entity, kept) = (text(1), row.get::<_, Option<i64>>(5).ok().flatten());
        let whose = || {
            let kept = kept.and_then(|sum| u32::try_from(sum.cast_unsigned() >> 32).ok());
            kept.into_iter().chain(entity.as_deref().map(of_entity)).collect()
        };
        let (Some(name), Some(cells), Ok(completion), Ok(model)) =
            (&entity, text(2), row.get(3), row.get(4))
        else {
            return Ok(Err((id, whose())));
        };
        // A row without a checksum is accepted as it is.
        if kept.is_some_and(|kept| kept != checksum(name, completion, model, &cells)) {
            return Ok(Err((id, whose())));
        }
        Ok(Ok(Self { id, entity: name.clone(), cells, completion, model }))
    }
}

/// Returns the error that `SQLite` reports for a damaged file.
pub(crate) fn corrupt(message: &str) -> rusqlite::Error {
    let code = ffi::Error::new(ffi::SQLITE_CORRUPT);
    rusqlite::Error::SqliteFailure(code, Some(message.to_owned()))
}
