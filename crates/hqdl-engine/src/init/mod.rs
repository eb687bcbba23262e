//! Generates a first spec from a database: entity tables with their semantic keys, and lookup
//! tables as value lists.
//!
//! `sampling` samples the tables, and `classify` classifies names and values. `key_candidate`
//! finds keys, `list` finds value lists, and `spec_writer` writes the TOML. The generated spec
//! passes [`check`](hqdl_spec::check).

pub mod advice;
mod draft;
mod identity;
mod kind;
mod list;
mod look;
mod owner;
mod survey;
pub mod tables;

use std::cmp::Reverse;

use rusqlite::ErrorCode;

use advice::TableAdvice;
use hqdl_database::{Database, StoreError, message};
use hqdl_values::format::{count_noun, thousands};
use identity::Identity;
use kind::Holds;
use list::List;
use owner::Owned;
use survey::SurveyedTable;

/// Maximum number of expansions in the generated spec. More would be hard to read and cost more.
const EXPANSIONS: usize = 3;
/// Minimum number of rows for a lookup table that other rows belong to to become an entity table.
const LEAST_OWNERS: u64 = 3;
/// Maximum number of rows for a table to be preferred; larger tables are expensive to complete.
const MODEST_ROWS: u64 = 20_000;
/// Maximum number of tables that a note lists by name.
const NAMED: usize = 8;

/// A generated spec.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scaffold {
    /// Text of the spec.
    pub toml: String,
    /// Notes for the user, as sentences.
    pub notes: Vec<String>,
}

/// Generates a spec for a database; `db_path` is the path to write into the spec. Reads at most the
/// first 100,000 rows of each table.
///
/// The spec passes its check, except when no table holds entities: then its
/// expansion is an example in comments, and a note says so. The spec publishes into a
/// copy beside the database.
///
/// # Errors
/// Returns [`StoreError`] if the database is locked, damaged or unreadable.
pub fn scaffold(db: &Database, db_path: &str) -> Result<Scaffold, StoreError> {
    FirstSpec::look(db)?.write(db_path)
}

/// A first spec before it is written: a model can be asked about its tables.
#[derive(Debug)]
pub struct FirstSpec<'db> {
    db: &'db Database,
    found: Inventory,
}

impl<'db> FirstSpec<'db> {
    /// Looks at the tables of a database.
    ///
    /// # Errors
    /// [`StoreError`] when the database is locked, damaged or cannot be read.
    pub fn look(db: &'db Database) -> Result<Self, StoreError> {
        db.sample(survey::SAMPLE_ROWS + 1)?;
        Ok(Self { db, found: Inventory::look(db)? })
    }

    /// Describes the tables that get an expansion, for [`advice::query`].
    #[must_use]
    pub fn cards(&self) -> Vec<String> {
        let (chosen, _) = self.found.chosen();
        chosen.iter().map(|entity| advice::card(self.db, &entity.table)).collect()
    }

    /// Applies a model's advice, in the order of the [`cards`](Self::cards).
    pub fn follow(&mut self, advised: &[TableAdvice]) {
        for (entity, advised) in self.found.entities.iter_mut().zip(advised) {
            advice::follow(self.db, entity, advised);
        }
    }

    /// Writes the spec; `db_path` is how it refers to the database.
    ///
    /// # Errors
    /// [`StoreError`] when the database cannot be read.
    pub fn write(&self, db_path: &str) -> Result<Scaffold, StoreError> {
        let taken = survey::taken(self.db).map_err(|e| self.db.error(&e))?;
        let mut notes = self.found.notes();
        notes.extend(draft::output_of(db_path).map(|output| {
            format!("the spec publishes into the copy {output}, and the database stays as it is")
        }));
        Ok(Scaffold { toml: draft::write(&self.found, db_path, taken), notes })
    }
}

/// A table whose rows are entities.
#[derive(Debug)]
struct EntityTable {
    table: SurveyedTable,
    key: Identity,
    /// The key extended by the owner's name, such as an album's artist.
    owned: Option<Owned>,
    /// A few names of its rows, for the sentence that describes them.
    examples: Vec<String>,
    /// The model's sentence about a row.
    about: Option<String>,
    /// Names and descriptions of columns that the model proposes.
    advised: Vec<(String, String)>,
}

impl EntityTable {
    fn new(table: SurveyedTable, key: Identity) -> Self {
        Self { table, key, owned: None, examples: Vec::new(), about: None, advised: Vec::new() }
    }

    /// Returns the column names of the key.
    fn key_names(&self) -> Vec<&str> {
        match &self.owned {
            Some(owned) => owned.key.iter().map(String::as_str).collect(),
            None => self.key.names(&self.table),
        }
    }

    /// Reads the names of a few rows; a table that cannot be read has none.
    fn read_examples(&mut self, db: &Database) {
        let table = &self.table;
        let columns = self.key.columns.iter().filter_map(|c| table.columns.get(*c));
        let names = columns.filter(|c| c.kind == survey::ValueKind::Name);
        let named = names.clone().find(|c| identity::is_name(table, c));
        if let Some(column) = named.or_else(|| names.clone().next()) {
            self.examples = survey::examples(db, &table.name, &column.name).unwrap_or_default();
        }
    }

    /// Returns a sentence about the uniqueness of the key, for a comment or note.
    fn key_remark(&self) -> String {
        let found = self.owned.as_ref().map_or(self.key.found, |o| o.found);
        let sample = if self.table.more { "a sample of " } else { "" };
        let rows = count_noun(found.rows, "row");
        if found.repeats() == 0 {
            format!("{sample}{rows}, each with a different key")
        } else {
            let keys = thousands(found.distinct);
            format!(
                "{sample}{rows} with {keys} different keys; rows with the same key get the same answers"
            )
        }
    }
}

/// The tables of a database, by content.
#[derive(Debug, Default)]
struct Inventory {
    /// Entity tables, most suitable first.
    entities: Vec<EntityTable>,
    lists: Vec<List>,
    /// Tables of private persons.
    persons: Vec<SurveyedTable>,
    /// Tables of events and measurements.
    events: Vec<String>,
    /// Tables that belong to a framework or program.
    framework: Vec<String>,
    /// Tables that only link others: ids, numbers and little text.
    facts: Vec<SurveyedTable>,
    empty: Vec<String>,
    /// Unreadable tables, with `SQLite`'s error message.
    unread: Vec<(String, String)>,
}

impl Inventory {
    fn look(db: &Database) -> Result<Self, StoreError> {
        let mut found = Self::default();
        for name in survey::names(db).map_err(|e| db.error(&e))? {
            match found.add(db, &name) {
                Ok(()) => {}
                Err(e) if concerns_all(&e) => return Err(db.error(&e)),
                Err(e) => found.unread.push((name, message(&e))),
            }
        }
        found.promote(db).map_err(|e| db.error(&e))?;
        let promising: Vec<_> = found.entities.iter().map(|e| found.promise_of(e)).collect();
        let mut ranked: Vec<_> = promising.into_iter().zip(found.entities).collect();
        ranked.sort_by_key(|(promise, _)| Reverse(*promise));
        found.entities = ranked.into_iter().map(|(_, entity)| entity).collect();
        for n in 0..found.entities.len() {
            let owned = Owned::find(db, &found.entities[n], &found.entities);
            found.entities[n].owned = owned;
        }
        found.entities.iter_mut().take(EXPANSIONS).for_each(|entity| entity.read_examples(db));
        Ok(found)
    }

    /// Turns lookup tables into entity tables if most of their rows own only a few rows of an
    /// entity table, such as the artists of albums.
    fn promote(&mut self, db: &Database) -> rusqlite::Result<()> {
        let is_owner = |list: &List| {
            let owns = |e: &EntityTable| {
                let leads =
                    e.table.foreign.iter().any(|f| f.table.eq_ignore_ascii_case(&list.table));
                leads && list.values >= LEAST_OWNERS && list.values * 2 >= e.table.rows
            };
            self.entities.iter().any(owns)
        };
        let (owners, lists) = std::mem::take(&mut self.lists).into_iter().partition(is_owner);
        self.lists = lists;
        let owners: Vec<List> = owners;
        for list in owners {
            let table = survey::table(db, &list.table)?;
            match Identity::find(db, &table)? {
                Some(key) => self.entities.push(EntityTable::new(table, key)),
                None => self.lists.push(list),
            }
        }
        Ok(())
    }

    /// Returns the rank of an entity table as a candidate for an expansion. Criteria, in order: a
    /// name in the key, a unique key, references from other tables, value lists that the table
    /// lacks, a moderate number of rows, the number of rows.
    fn promise_of(&self, entity: &EntityTable) -> (bool, bool, bool, bool, bool, u64) {
        let table = &entity.table;
        // Tables with incoming references are the main subject of a database.
        let leads_here = |t: &SurveyedTable| {
            t.name != table.name
                && t.foreign.iter().any(|f| f.table.eq_ignore_ascii_case(&table.name))
        };
        let mut tables = self.entities.iter().map(|e| &e.table).chain(&self.facts);
        let modest = (3..=MODEST_ROWS).contains(&table.rows);
        (
            entity.key.is_named(table),
            entity.key.is_unique(),
            tables.any(leads_here),
            !self.lists_of(entity).is_empty(),
            modest,
            table.rows,
        )
    }

    fn add(&mut self, db: &Database, name: &str) -> rusqlite::Result<()> {
        let table = survey::table(db, name)?;
        let holds = kind::of(&table);
        if holds == Holds::Framework {
            self.framework.push(table.name);
        } else if table.rows == 0 {
            self.empty.push(table.name);
        } else if holds == Holds::Persons {
            self.persons.push(table);
        } else if let Some(list) = List::find(db, &table) {
            self.lists.push(list);
        } else {
            match Identity::find(db, &table)? {
                _ if holds == Holds::Events => {
                    self.events.push(table.name.clone());
                    self.facts.push(table);
                }
                // Orders have a status, but it does not identify them.
                Some(key)
                    if key.tells(&table)
                        && (key.found.distinct * 2 >= key.found.rows
                            || !list::refers_to_any(&table)) =>
                {
                    self.entities.push(EntityTable::new(table, key));
                }
                _ => self.facts.push(table),
            }
        }
        Ok(())
    }

    /// Splits the entity tables into those that get an expansion and the rest.
    fn chosen(&self) -> (&[EntityTable], &[EntityTable]) {
        self.entities.split_at(self.entities.len().min(EXPANSIONS))
    }

    /// Returns the value lists that an entity table may lack.
    fn lists_of(&self, entity: &EntityTable) -> Vec<&List> {
        let entities: Vec<&SurveyedTable> = self.entities.iter().map(|e| &e.table).collect();
        let others: Vec<&SurveyedTable> = self.facts.iter().chain(&self.persons).collect();
        self.lists.iter().filter(|l| l.may_belong_to(&entity.table, &entities, &others)).collect()
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        let (chosen, rest) = self.chosen();
        for entity in chosen {
            notes.push(format!(
                "the key of {} is {}: {}",
                shown(&entity.table.name),
                entity.key_names().into_iter().map(shown).collect::<Vec<_>>().join(", "),
                entity.key_remark(),
            ));
        }
        if chosen.is_empty() {
            notes.push(format!(
                "found no table to expand: no table has up to three short text columns that identify \
                 its rows (ids, numbers, dates, links, and texts of more than {} characters on \
                 average do not count)",
                survey::NAME_LENGTH
            ));
            notes.push(
                "the spec has no expansion yet, so it does not pass `hqdl check`: edit the example \
                 at its end first"
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
        let persons = self.persons.iter().map(|t| t.name.as_str()).collect();
        say("left out because they hold personal data", persons);
        say(
            "left out because they hold events or measurements",
            self.events.iter().map(String::as_str).collect(),
        );
        say(
            "left out because they belong to a program or framework",
            self.framework.iter().map(String::as_str).collect(),
        );
        let others = self.facts.iter().filter(|t| !self.events.contains(&t.name));
        say(
            "left out because their rows have no names to ask about",
            others.map(|t| t.name.as_str()).collect(),
        );
        say("left out because they are empty", self.empty.iter().map(String::as_str).collect());
        for (name, why) in &self.unread {
            notes.push(format!("{} is left out because it cannot be read: {why}", shown(name)));
        }
        notes
    }
}

/// Joins the names with commas. Lists at most [`NAMED`] of them.
fn listed(names: &[&str]) -> String {
    let mut text: Vec<String> = names.iter().take(NAMED).map(|n| shown(n)).collect();
    if names.len() > NAMED {
        text.push(format!("{} more", names.len() - NAMED));
    }
    text.join(", ")
}

/// Formats a name for a comment or note, on one line.
fn shown(name: &str) -> String {
    let escaped: String = name
        .chars()
        .flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] })
        .collect();
    format!("`{escaped}`")
}

/// Returns true if the error concerns the whole database, not just one table or view.
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
