//! Generates a first spec from a database: entity tables with their semantic keys, and lookup
//! tables as value lists.
//!
//! `sampling` samples the tables, and `classify` classifies names and values. `key_candidate`
//! finds keys, `lookup_table` finds value lists, and `spec_writer` writes the TOML. The generated
//! spec passes [`check`](hqdl_spec::check).

pub mod advice;
mod spec_writer;
mod key_candidate;
mod table_kind;
mod lookup_table;
pub(crate) mod classify;
mod owner_key;
mod sampling;
pub mod csv_import;

use std::cmp::Reverse;

use rusqlite::ErrorCode;

use crate::session::SpecOverrides;
use advice::TableAdvice;
use hqdl_database::{Database, StoreError, describe_sqlite_error};
use hqdl_values::format::{format_count, format_thousands};
use key_candidate::KeyCandidate;
use lookup_table::LookupTable;
use owner_key::OwnerKey;
use sampling::SampledTable;
use table_kind::TableKind;

/// Maximum number of expansions in the generated spec, so that it is easy to read and cheap to
/// fill.
const MAX_EXPANSIONS: usize = 3;
/// Minimum number of rows that a lookup table needs to be promoted to an entity table of owners.
const MIN_OWNERS: u64 = 3;
/// Maximum number of rows of a preferred table. Larger tables are expensive to fill.
const MODEST_ROWS: u64 = 20_000;
/// Maximum number of tables that a note lists by name.
const MAX_LISTED_NAMES: usize = 8;

/// A generated spec.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GeneratedSpec {
    /// Text of the spec.
    pub toml: String,
    /// Notes for the user, as sentences.
    pub notes: Vec<String>,
    /// Whether the spec has an expansion. A spec without an expansion does not pass its check.
    pub has_expansion: bool,
}

/// Generates a spec for a database; `db_path` is the path to write into the spec. Reads at most the
/// first 100,000 rows of each table.
///
/// The spec passes its check, unless no table contains entities. In that case its expansion is a
/// commented-out example, and a note explains that. The spec publishes into a copy of the database,
/// beside it.
///
/// # Errors
/// Returns [`StoreError`] if the database is locked, damaged or unreadable.
pub fn generate_spec(db: &Database, db_path: &str) -> Result<GeneratedSpec, StoreError> {
    SpecDraft::sample_database(db)?.write(db_path, &SpecOverrides::default())
}

/// A draft of a first spec. Before it is written, a model can give advice about its tables.
#[derive(Debug)]
pub struct SpecDraft<'db> {
    db: &'db Database,
    inventory: Inventory,
}

impl<'db> SpecDraft<'db> {
    /// Samples and classifies the tables of a database.
    ///
    /// # Errors
    /// Returns [`StoreError`] if the database is locked, damaged or unreadable.
    pub fn sample_database(db: &'db Database) -> Result<Self, StoreError> {
        db.load_samples(sampling::SAMPLE_ROWS + 1)?;
        Ok(Self { db, inventory: Inventory::read_database(db)? })
    }

    /// Describes the tables that get an expansion, for [`advice::build_query`].
    #[must_use]
    pub fn describe_tables(&self) -> Vec<String> {
        let (chosen, _) = self.inventory.split_chosen_tables();
        chosen.iter().map(|entity| advice::describe_table(self.db, &entity.table)).collect()
    }

    /// Applies a model's advice to the tables; `advised` has the order of
    /// [`Self::describe_tables`].
    pub fn apply_advice(&mut self, advised: &[TableAdvice]) {
        for (entity, advised) in self.inventory.entities.iter_mut().zip(advised) {
            advice::apply_advice(self.db, entity, advised);
        }
    }

    /// Writes the spec. `db_path` is the database's path in the spec; `model` contains the user's
    /// choice of a model, if any.
    ///
    /// # Errors
    /// Returns [`StoreError`] if the database cannot be read.
    pub fn write(&self, db_path: &str, model: &SpecOverrides) -> Result<GeneratedSpec, StoreError> {
        let used_names =
            sampling::list_schema_names(self.db).map_err(|e| self.db.to_store_error(&e))?;
        let mut notes = self.inventory.build_notes();
        notes.extend(spec_writer::output_path(db_path).map(|output| {
            format!("the spec publishes into the copy {output}, and the database stays as it is")
        }));
        Ok(GeneratedSpec {
            toml: spec_writer::format_spec(&self.inventory, db_path, model, used_names),
            notes,
            has_expansion: !self.inventory.entities.is_empty(),
        })
    }
}

/// A table whose rows are entities.
#[derive(Debug)]
struct EntityTable {
    table: SampledTable,
    key: KeyCandidate,
    /// The key extended by the owner's name, such as the artist of an album; `None` if the rows
    /// have no owner.
    owner_key: Option<OwnerKey>,
    /// Names of a few rows, for the description of the rows.
    examples: Vec<String>,
    /// The model's description of the rows.
    about: Option<String>,
    /// Names and descriptions of columns that the model proposes.
    advised: Vec<(String, String)>,
}

impl EntityTable {
    fn new(table: SampledTable, key: KeyCandidate) -> Self {
        Self { table, key, owner_key: None, examples: Vec::new(), about: None, advised: Vec::new() }
    }

    /// Returns the column names of the key.
    fn key_names(&self) -> Vec<&str> {
        match &self.owner_key {
            Some(owned) => owned.key.iter().map(String::as_str).collect(),
            None => self.key.column_names(&self.table),
        }
    }

    /// Reads the names of a few rows as examples. If the table cannot be read, there are no
    /// examples.
    fn load_examples(&mut self, db: &Database) {
        let table = &self.table;
        let columns = self.key.columns.iter().filter_map(|c| table.columns.get(*c));
        let names = columns.filter(|c| c.value_kind == sampling::ValueKind::Name);
        let named = names.clone().find(|c| key_candidate::is_name(table, c));
        if let Some(column) = named.or_else(|| names.clone().next()) {
            self.examples =
                sampling::read_examples(db, &table.name, &column.name).unwrap_or_default();
        }
    }

    /// Returns a sentence about the uniqueness of the key, for a comment or note.
    fn describe_key_sample(&self) -> String {
        let sample = self.owner_key.as_ref().map_or(self.key.sample, |o| o.sample);
        let prefix = if self.table.has_more_rows { "a sample of " } else { "" };
        let rows = format_count(sample.rows, "row");
        if sample.count_repeats() == 0 {
            format!("{prefix}{rows}, each with a different key")
        } else {
            let keys = format_thousands(sample.distinct);
            format!(
                "{prefix}{rows} with {keys} different keys; rows with the same key get the same answers"
            )
        }
    }
}

/// The tables of a database, grouped by content.
#[derive(Debug, Default)]
struct Inventory {
    /// Entity tables, most suitable first.
    entities: Vec<EntityTable>,
    lookup_tables: Vec<LookupTable>,
    /// Tables of private persons.
    persons: Vec<SampledTable>,
    /// Names of the tables of events and measurements.
    events: Vec<String>,
    /// Names of the tables that belong to a framework or program.
    framework: Vec<String>,
    /// Tables that only link other tables: they contain ids, numbers and little text.
    link_tables: Vec<SampledTable>,
    empty: Vec<String>,
    /// Names of unreadable tables, each with `SQLite`'s error message.
    unreadable: Vec<(String, String)>,
}

impl Inventory {
    fn read_database(db: &Database) -> Result<Self, StoreError> {
        let mut inventory = Self::default();
        for name in sampling::list_table_names(db).map_err(|e| db.to_store_error(&e))? {
            match inventory.add_table(db, &name) {
                Ok(()) => {}
                Err(e) if is_database_error(&e) => return Err(db.to_store_error(&e)),
                Err(e) => inventory.unreadable.push((name, describe_sqlite_error(&e))),
            }
        }
        inventory.promote_owners(db).map_err(|e| db.to_store_error(&e))?;
        inventory.promote_only_table(db).map_err(|e| db.to_store_error(&e))?;
        let ranks: Vec<_> = inventory.entities.iter().map(|e| inventory.compute_rank(e)).collect();
        let mut ranked: Vec<_> = ranks.into_iter().zip(inventory.entities).collect();
        ranked.sort_by_key(|(rank, _)| Reverse(*rank));
        inventory.entities = ranked.into_iter().map(|(_, entity)| entity).collect();
        for n in 0..inventory.entities.len() {
            let owner_key = OwnerKey::find_owner(db, &inventory.entities[n], &inventory.entities);
            inventory.entities[n].owner_key = owner_key;
        }
        inventory
            .entities
            .iter_mut()
            .take(MAX_EXPANSIONS)
            .for_each(|entity| entity.load_examples(db));
        Ok(inventory)
    }

    /// Turns a lookup table into an entity table if its rows own on average at most two rows of an
    /// entity table, as artists own albums.
    fn promote_owners(&mut self, db: &Database) -> rusqlite::Result<()> {
        let is_owner = |list: &LookupTable| {
            let owns = |e: &EntityTable| {
                let refers =
                    e.table.foreign_keys.iter().any(|f| f.table.eq_ignore_ascii_case(&list.table));
                refers && list.values >= MIN_OWNERS && list.values * 2 >= e.table.rows
            };
            self.entities.iter().any(owns)
        };
        let (owners, lookup_tables) =
            std::mem::take(&mut self.lookup_tables).into_iter().partition(is_owner);
        self.lookup_tables = lookup_tables;
        let owners: Vec<LookupTable> = owners;
        for list in owners {
            let table = sampling::sample_table(db, &list.table)?;
            match KeyCandidate::find_best(db, &table)? {
                Some(key) => self.entities.push(EntityTable::new(table, key)),
                None => self.lookup_tables.push(list),
            }
        }
        Ok(())
    }

    /// Turns a lookup table into an entity table if it is the only table with rows. A single list of
    /// names contains the things that the user wants to expand.
    fn promote_only_table(&mut self, db: &Database) -> rusqlite::Result<()> {
        let has_others = !self.entities.is_empty()
            || !self.persons.is_empty()
            || !self.link_tables.is_empty()
            || !self.unreadable.is_empty();
        let [list] = self.lookup_tables.as_slice() else { return Ok(()) };
        if has_others {
            return Ok(());
        }
        let table = sampling::sample_table(db, &list.table)?;
        if let Some(key) = KeyCandidate::find_best(db, &table)? {
            self.lookup_tables.clear();
            self.entities.push(EntityTable::new(table, key));
        }
        Ok(())
    }

    /// Returns the sort key that ranks an entity table as a candidate for an expansion. The
    /// criteria, in order, are a name in the key, a unique key, references from other tables, value
    /// lists that the table lacks, a moderate number of rows, and the number of rows.
    fn compute_rank(&self, entity: &EntityTable) -> (bool, bool, bool, bool, bool, u64) {
        let table = &entity.table;
        // Tables with incoming references are the main subject of a database.
        let refers_here = |t: &SampledTable| {
            t.name != table.name
                && t.foreign_keys.iter().any(|f| f.table.eq_ignore_ascii_case(&table.name))
        };
        let mut tables = self.entities.iter().map(|e| &e.table).chain(&self.link_tables);
        let is_modest = (3..=MODEST_ROWS).contains(&table.rows);
        (
            entity.key.has_name_column(table),
            entity.key.is_unique(),
            tables.any(refers_here),
            !self.find_lookup_tables(entity).is_empty(),
            is_modest,
            table.rows,
        )
    }

    fn add_table(&mut self, db: &Database, name: &str) -> rusqlite::Result<()> {
        let table = sampling::sample_table(db, name)?;
        let kind = table_kind::classify_table(&table);
        if kind == TableKind::Framework {
            self.framework.push(table.name);
        } else if table.rows == 0 {
            self.empty.push(table.name);
        } else if kind == TableKind::Persons {
            self.persons.push(table);
        } else if let Some(list) = LookupTable::from_table(db, &table) {
            self.lookup_tables.push(list);
        } else {
            match KeyCandidate::find_best(db, &table)? {
                _ if kind == TableKind::Events => {
                    self.events.push(table.name.clone());
                    self.link_tables.push(table);
                }
                // A table may have text columns that do not identify its rows, such as the status
                // of an order.
                Some(key)
                    if key.identifies_entities(&table)
                        && (key.sample.distinct * 2 >= key.sample.rows
                            || !lookup_table::refers_to_any(db, &table)?) =>
                {
                    self.entities.push(EntityTable::new(table, key));
                }
                _ => self.link_tables.push(table),
            }
        }
        Ok(())
    }

    /// Splits the entity tables into those that get an expansion and the rest.
    fn split_chosen_tables(&self) -> (&[EntityTable], &[EntityTable]) {
        self.entities.split_at(self.entities.len().min(MAX_EXPANSIONS))
    }

    /// Returns the value lists that an entity table may lack.
    fn find_lookup_tables(&self, entity: &EntityTable) -> Vec<&LookupTable> {
        let entities: Vec<&SampledTable> = self.entities.iter().map(|e| &e.table).collect();
        let others: Vec<&SampledTable> = self.link_tables.iter().chain(&self.persons).collect();
        self.lookup_tables
            .iter()
            .filter(|l| l.may_belong_to(&entity.table, &entities, &others))
            .collect()
    }

    /// Returns whether the database contains no table.
    fn has_no_table(&self) -> bool {
        self.entities.is_empty()
            && self.lookup_tables.is_empty()
            && self.persons.is_empty()
            && self.link_tables.is_empty()
            && [&self.events, &self.framework, &self.empty].iter().all(|names| names.is_empty())
            && self.unreadable.is_empty()
    }

    fn build_notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        let (chosen, unchosen) = self.split_chosen_tables();
        for entity in chosen {
            notes.push(format!(
                "the key of {} is {}: {}",
                format_name(&entity.table.name),
                entity.key_names().into_iter().map(format_name).collect::<Vec<_>>().join(", "),
                entity.describe_key_sample(),
            ));
        }
        if chosen.is_empty() && self.has_no_table() {
            notes
                .push("the database has no tables: fill it, then run `hqdl init` again".to_owned());
        } else if chosen.is_empty() && !self.lookup_tables.is_empty() {
            notes.push(
                "found no table to expand, only lists of names; the spec ends with an example about \
                 the longest list"
                    .to_owned(),
            );
        } else if chosen.is_empty() {
            notes.push(format!(
                "found no table to expand: no table has one to three short text columns that \
                 identify its rows (ids, numbers, dates, links, and texts of more than {} \
                 characters on average do not count)",
                sampling::MIN_DESCRIPTION_LENGTH
            ));
        }
        if chosen.is_empty() {
            notes.push(
                "the spec has no expansion yet, so it does not pass `hqdl check`: edit the example \
                 at its end first"
                    .to_owned(),
            );
        }
        let mut add_note = |label: &str, names: Vec<&str>| {
            if !names.is_empty() {
                notes.push(format!("{label}: {}", join_names(&names)));
            }
        };
        add_note("value lists", self.lookup_tables.iter().map(|l| l.table.as_str()).collect());
        add_note(
            "entities without an expansion yet",
            unchosen.iter().map(|e| e.table.name.as_str()).collect(),
        );
        let persons = self.persons.iter().map(|t| t.name.as_str()).collect();
        add_note("tables left out because they contain personal data", persons);
        add_note(
            "tables left out because they contain events or measurements",
            self.events.iter().map(String::as_str).collect(),
        );
        add_note(
            "tables left out because they belong to a program or framework",
            self.framework.iter().map(String::as_str).collect(),
        );
        let others = self.link_tables.iter().filter(|t| !self.events.contains(&t.name));
        add_note(
            "tables left out because no text column names their rows",
            others.map(|t| t.name.as_str()).collect(),
        );
        add_note(
            "tables left out because they are empty",
            self.empty.iter().map(String::as_str).collect(),
        );
        for (name, error) in &self.unreadable {
            notes.push(format!(
                "{} is left out because it cannot be read: {error}",
                format_name(name)
            ));
        }
        notes
    }
}

/// Joins the names with commas. Lists at most [`MAX_LISTED_NAMES`] of them.
fn join_names(names: &[&str]) -> String {
    let mut text: Vec<String> =
        names.iter().take(MAX_LISTED_NAMES).map(|n| format_name(n)).collect();
    if names.len() > MAX_LISTED_NAMES {
        text.push(format!("{} more", names.len() - MAX_LISTED_NAMES));
    }
    text.join(", ")
}

/// Formats a name for a comment or note, on one line.
fn format_name(name: &str) -> String {
    let escaped: String = name
        .chars()
        .flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] })
        .collect();
    format!("`{escaped}`")
}

/// Returns true if the error concerns the whole database, not just one table or view.
fn is_database_error(error: &rusqlite::Error) -> bool {
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
