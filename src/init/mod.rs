//! A first spec for a database, made from its data: entity tables with their
//! semantic keys, lookup tables as value lists.
//!
//! `survey` looks at the tables, `look` at names and values; `identity`
//! finds keys and `list` value lists; `draft` writes the TOML. What is
//! proposed is valid: the draft passes [`check`](crate::spec::check) as it is.

mod draft;
mod identity;
mod list;
mod look;
mod survey;

use std::cmp::Reverse;

use rusqlite::ErrorCode;

use crate::store::{Database, StoreError, message};
use identity::Identity;
use list::List;
use survey::Table;

/// Expansions of a first spec; more are hard to read, and cost money.
const EXPANSIONS: usize = 3;
/// Tables that a note names before it counts the rest.
const NAMED: usize = 8;

/// A first spec.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scaffold {
    /// The spec's text.
    pub toml: String,
    /// What a user should know about it, in sentences.
    pub notes: Vec<String>,
}

/// Writes a first spec for a database; `db_path` is how the spec refers to it.
/// At most the first 100,000 rows of each table are looked at.
///
/// The spec passes its check, except when no table holds entities: then its
/// expansion is an example in comments, and a note says so.
///
/// # Errors
/// [`StoreError`] when the database is locked, damaged or cannot be read.
pub fn scaffold(db: &Database, db_path: &str) -> Result<Scaffold, StoreError> {
    let found = Found::look(db)?;
    let taken = survey::taken(db).map_err(|e| db.error(&e))?;
    Ok(Scaffold { toml: draft::write(&found, db_path, taken), notes: found.notes() })
}

/// A table whose rows are entities.
#[derive(Debug)]
struct Entity {
    table: Table,
    key: Identity,
}

impl Entity {
    /// How the key fares, as a comment or note says it.
    fn key_remark(&self) -> String {
        let (rows, keys) = (self.table.rows, self.key.distinct);
        let sample = if self.table.more { "the first " } else { "" };
        if self.key.is_unique(&self.table) {
            format!("{sample}{rows} rows, no two alike")
        } else {
            format!(
                "{sample}{rows} rows have {keys} different keys; rows that share one are one entity"
            )
        }
    }
}

/// What a database holds.
#[derive(Debug, Default)]
struct Found {
    /// Tables of entities, the most promising first.
    entities: Vec<Entity>,
    lists: Vec<List>,
    /// Tables that only tie others together: ids, numbers, little text.
    facts: Vec<Table>,
    empty: Vec<String>,
    /// Tables that cannot be read, with what `SQLite` says.
    unread: Vec<(String, String)>,
}

impl Found {
    fn look(db: &Database) -> Result<Self, StoreError> {
        let mut found = Self::default();
        for name in survey::names(db).map_err(|e| db.error(&e))? {
            match found.add(db, &name) {
                Ok(()) => {}
                Err(e) if concerns_all(&e) => return Err(db.error(&e)),
                Err(e) => found.unread.push((name, message(&e))),
            }
        }
        found.entities.sort_by_key(|e| {
            let promising = (e.key.is_named(&e.table), e.key.is_unique(&e.table), e.table.rows);
            Reverse(promising)
        });
        Ok(found)
    }

    fn add(&mut self, db: &Database, name: &str) -> rusqlite::Result<()> {
        let table = survey::table(db, name)?;
        if table.rows == 0 {
            self.empty.push(table.name);
        } else if let Some(list) = List::find(db, &table) {
            self.lists.push(list);
        } else {
            match Identity::find(db, &table)? {
                // Orders have a status, but that is not who they are.
                Some(key) if key.distinct * 2 >= table.rows || !list::refers_to_any(&table) => {
                    self.entities.push(Entity { table, key });
                }
                _ => self.facts.push(table),
            }
        }
        Ok(())
    }

    /// The entities that get an expansion, and those that are only named.
    fn chosen(&self) -> (&[Entity], &[Entity]) {
        self.entities.split_at(self.entities.len().min(EXPANSIONS))
    }

    /// The lists whose values an entity may lack.
    fn lists_of(&self, entity: &Entity) -> Vec<&List> {
        let others: Vec<&Table> = self.entities.iter().map(|e| &e.table).collect();
        let between: Vec<&Table> = self.facts.iter().collect();
        self.lists.iter().filter(|l| l.may_belong_to(&entity.table, &others, &between)).collect()
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        let (chosen, rest) = self.chosen();
        for entity in chosen {
            notes.push(format!(
                "{} is keyed by {}: {}",
                shown(&entity.table.name),
                entity
                    .key
                    .names(&entity.table)
                    .into_iter()
                    .map(shown)
                    .collect::<Vec<_>>()
                    .join(", "),
                entity.key_remark(),
            ));
        }
        if chosen.is_empty() {
            notes.push(format!(
                "no table of entities was found: none has rows that up to three short text columns \
                 tell apart (ids, numbers, dates, links and texts of more than {} characters on \
                 average are no names)",
                survey::NAME_LENGTH
            ));
            notes.push(
                "the spec has no expansion yet, so it does not pass `hqdl check`: edit the example \
                 in it first"
                    .to_owned(),
            );
        }
        let mut say = |what: &str, names: Vec<&str>| {
            if !names.is_empty() {
                notes.push(format!("{what}: {}", listed(&names)));
            }
        };
        say("value lists", self.lists.iter().map(|l| l.table.as_str()).collect());
        say(
            "entities without an expansion yet",
            rest.iter().map(|e| e.table.name.as_str()).collect(),
        );
        say(
            "left out, no names to ask about",
            self.facts.iter().map(|t| t.name.as_str()).collect(),
        );
        say("left out, empty", self.empty.iter().map(String::as_str).collect());
        for (name, why) in &self.unread {
            notes.push(format!("{} is left out, it cannot be read: {why}", shown(name)));
        }
        notes
    }
}

/// Names with a limit to their number.
fn listed(names: &[&str]) -> String {
    let mut text: Vec<String> = names.iter().take(NAMED).map(|n| shown(n)).collect();
    if names.len() > NAMED {
        text.push(format!("{} more", names.len() - NAMED));
    }
    text.join(", ")
}

/// A name as comments and notes show it: on one line, whatever it holds.
fn shown(name: &str) -> String {
    let escaped: String = name
        .chars()
        .flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] })
        .collect();
    format!("`{escaped}`")
}

/// Whether an error is about the database and not about one of its tables,
/// such as a view of a table that is gone.
fn concerns_all(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(
            ErrorCode::DatabaseBusy
                | ErrorCode::DatabaseLocked
                | ErrorCode::DatabaseCorrupt
                | ErrorCode::NotADatabase
                | ErrorCode::SystemIoFailure
                | ErrorCode::CannotOpen
                | ErrorCode::DiskFull
                | ErrorCode::OutOfMemory
                | ErrorCode::OperationInterrupted
        )
    )
}
