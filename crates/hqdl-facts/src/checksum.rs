//! Checksums of answers. A disk that turns a bit around makes no error: what is
//! read is then another value, or another entity's. An answer that is not what was
//! kept is *damaged*: it is told, never shown, and its cells are asked again.
//!
//! What an entity was known to be before a damaged answer is not known either: the
//! damaged one may have put something else in its place.

use std::collections::HashMap;

use rusqlite::functions::FunctionFlags;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, Row, ffi};

/// Lines that are named when damage is told.
const NAMED: usize = 5;

/// The checksum of an answer: of its entity in the upper half, and of all of it in
/// the lower one.
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

/// The half of a checksum that tells whose answer it is.
pub(super) fn of_entity(entity: &str) -> u32 {
    head(blake3::hash(entity.as_bytes()))
}

fn head(hash: blake3::Hash) -> u32 {
    let [a, b, c, d, ..] = *hash.as_bytes();
    u32::from_le_bytes([a, b, c, d])
}

/// Lets SQL say the checksum of an answer: the migration that brings checksums to
/// a journal without. NULL for what is no answer.
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

/// Answers that are not what was kept.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Damage {
    /// Lines of the journal, in order.
    pub lines: Vec<i64>,
    /// The last damaged line about an entity, by the halves of checksums that name
    /// it: as it was kept, and as it stands there now.
    entities: HashMap<u32, i64>,
}

impl Damage {
    /// Whether there is none.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.lines.is_empty()
    }

    /// Whether what a line says of an entity may be told.
    pub(super) fn spares(&self, line: i64, entity: &str) -> bool {
        self.is_none() || self.entities.get(&of_entity(entity)).is_none_or(|last| line > *last)
    }

    /// What a user should know; `None` when nothing is damaged.
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

    /// One more line about an entity.
    pub(super) fn note(&mut self, line: i64, entity: &str) {
        self.add(line, [of_entity(entity)]);
    }

    pub(crate) fn add(&mut self, line: i64, entities: impl IntoIterator<Item = u32>) {
        self.lines.push(line);
        self.entities.extend(entities.into_iter().map(|e| (e, line)));
    }
}

/// A line of the journal as it stands there.
pub(super) struct JournalLine {
    pub(super) id: i64,
    pub(super) entity: String,
    pub(super) cells: String,
    pub(super) completion: i64,
    pub(super) model: u32,
}

/// What reads lines: `a` is the answer and `c` its completion.
pub(super) const LINES: &str =
    "SELECT a.id, a.entity, a.cells, a.completion, c.model, a.checksum FROM answer AS a
     LEFT JOIN completion AS c ON c.id = a.completion WHERE a.id > ?1 ORDER BY a.id";

impl JournalLine {
    /// A line, or whose it may be when it is not what was kept.
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
        // Without a checksum it is taken as it is.
        if kept.is_some_and(|kept| kept != checksum(name, completion, model, &cells)) {
            return Ok(Err((id, whose())));
        }
        Ok(Ok(Self { id, entity: name.clone(), cells, completion, model }))
    }
}

/// What `SQLite` would say, had it seen it.
pub(crate) fn corrupt(message: &str) -> rusqlite::Error {
    let code = ffi::Error::new(ffi::SQLITE_CORRUPT);
    rusqlite::Error::SqliteFailure(code, Some(message.to_owned()))
}
