//! Cells that calls ask for, in expansions of the spec and ad-hoc ones. They are found in the fact
//! store or demanded from the model.
//!
//! A query looks up each cell once. A cell is found, or it is missing and the calls that need it
//! demand it. After its request the cell is found or failed, and it is never demanded again.

use std::sync::Arc;

use foldhash::{HashMap, HashMapExt};
use rusqlite::types::{Value as Sql, ValueRef};

use crate::query::cells::documents::{Document, StoredDocuments, asks_about_documents};
use hqdl_facts::{CellLookup, CellRequirements, Facts, FactsError, Prefetch, Record};
use hqdl_spec::Expansion;
use hqdl_spec::overrides::Overrides;
use hqdl_values::Row;
use hqdl_values::cell::{CellValue, State};
use hqdl_values::key::Entity;
use hqdl_values::value::Value;

/// A cell that a pass needs and whose value is not known yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Demand {
    /// Position of the expansion.
    pub target: usize,
    /// Number of the entity in the expansion.
    pub entity: usize,
    /// Position of the column.
    pub column: usize,
}

/// State of a cell.
#[derive(Debug, Clone, PartialEq)]
pub enum Cell {
    /// Not looked up yet.
    NotLookedUp,
    /// Known value; NULL if the cell has none.
    Known(Sql),
    /// Not in the fact store.
    Missing,
    /// Asked for in this query without success.
    Failed,
}

/// An expansion as a query uses it.
pub struct TargetExpansion {
    /// The expansion.
    pub expansion: Arc<Expansion>,
    /// Identities of its columns in the fact store.
    pub requirements: Arc<CellRequirements>,
    /// Position in the spec, for overrides.
    pub in_spec: Option<usize>,
    by_canonical_bytes: HashMap<Vec<u8>, usize>,
    entities: Vec<EntityCells>,
    by_entity: HashMap<Entity, usize>,
    /// Documents to ask about.
    documents: StoredDocuments,
    prefetch: Prefetch,
    /// Records read recently, since several columns are looked up in each record.
    recent_records: HashMap<usize, Option<Record>>,
}

/// Maximum number of records in `recent_records`.
const MAX_RECENT_RECORDS: usize = 64;

struct EntityCells {
    row: Row,
    entity: Entity,
    cells: Vec<Cell>,
}

/// Numbers of cells that a query found and asked for.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counts {
    /// Cells asked for.
    pub asked: u64,
    /// Cells known before the query.
    pub reused: u64,
    /// Cells without a value.
    pub without_value: u64,
    /// Cells without a value because the model does not know it.
    pub unknown: u64,
}

impl Counts {
    /// Counts a cell if its state means that it has no value.
    fn count_missing(&mut self, state: State) {
        if !state.has_value() {
            self.without_value += 1;
            self.unknown += u64::from(state == State::Unknown);
        }
    }
}

impl TargetExpansion {
    /// Returns an expansion without entities.
    #[must_use]
    pub fn new(
        expansion: Arc<Expansion>,
        requirements: Arc<CellRequirements>,
        in_spec: Option<usize>,
    ) -> Self {
        let prefetch = Prefetch::new(&expansion.key);
        Self {
            expansion,
            requirements,
            in_spec,
            by_canonical_bytes: HashMap::new(),
            entities: Vec::new(),
            by_entity: HashMap::new(),
            documents: StoredDocuments::default(),
            prefetch,
            recent_records: HashMap::new(),
        }
    }

    /// Returns the entity that some values identify. `row` builds the row of a new entity.
    pub fn intern_entity(&mut self, canonical_bytes: &[u8], row: impl FnOnce() -> Row) -> usize {
        if let Some(found) = self.by_canonical_bytes.get(canonical_bytes) {
            return *found;
        }
        let row = row();
        let entity = self.expansion.build_entity(&row.key);
        let n = if let Some(n) = self.by_entity.get(&entity) {
            *n
        } else {
            let n = self.entities.len();
            let cells = vec![Cell::NotLookedUp; self.expansion.columns.len()];
            self.by_entity.insert(entity.clone(), n);
            self.entities.push(EntityCells { row, entity, cells });
            n
        };
        self.by_canonical_bytes.insert(canonical_bytes.to_vec(), n);
        n
    }

    /// Returns the entity that was registered with these bytes.
    #[must_use]
    pub fn known_entity(&self, canonical_bytes: &[u8]) -> Option<usize> {
        self.by_canonical_bytes.get(canonical_bytes).copied()
    }

    /// Stores the document of an entity, so that it can be asked about.
    pub fn store_document(&mut self, entity: usize, document: Document) {
        self.documents.store_document(entity, document);
    }

    /// Discards the stored documents.
    pub fn discard_documents(&mut self) {
        self.documents.start_pass();
    }

    /// Returns the document of an entity if it is stored.
    #[must_use]
    pub fn stored_document(&self, entity: usize) -> Option<&Document> {
        self.documents.get(entity)
    }

    /// Returns whether an entity may be asked about now. A document that is not stored is asked
    /// about after the next pass.
    pub fn is_available(&mut self, entity: usize) -> bool {
        !asks_about_documents(&self.expansion) || self.documents.request_document(entity)
    }

    /// Returns a cell and looks it up on first use.
    ///
    /// # Errors
    /// [`FactsError`] if the facts cannot be read.
    pub fn look_up_cell(
        &mut self,
        entity: usize,
        column: usize,
        facts: &Facts,
        overrides: Option<&Overrides>,
        counts: &mut Counts,
    ) -> Result<&Cell, FactsError> {
        let entity_cells = &mut self.entities[entity];
        if entity_cells.cells[column] == Cell::NotLookedUp {
            let record = match self.recent_records.get(&entity) {
                Some(record) => record,
                None => {
                    if self.recent_records.len() >= MAX_RECENT_RECORDS
                        || self.expansion.columns.len() == 1
                    {
                        self.recent_records.clear();
                    }
                    let record = self.prefetch.get(facts, &entity_cells.entity)?;
                    self.recent_records.entry(entity).or_insert(record)
                }
            };
            let override_value = self
                .in_spec
                .zip(overrides)
                .and_then(|(n, all)| all.get(n, &entity_cells.entity, column));
            entity_cells.cells[column] = match override_value {
                Some(override_value) => {
                    counts.reused += 1;
                    Cell::Known(to_sql_value(&override_value.value))
                }
                None => match self.requirements.look_up_cell(record.as_ref(), column) {
                    CellLookup::Known(fact) => {
                        counts.reused += 1;
                        counts.count_missing(fact.answer.state);
                        Cell::Known(to_sql_value(&fact.answer.value))
                    }
                    CellLookup::Missing(..) => Cell::Missing,
                },
            };
        }
        Ok(&self.entities[entity].cells[column])
    }

    /// Returns the row of an entity for a prompt.
    #[must_use]
    pub fn missing_row(&self, entity: usize) -> hqdl_model::plan::MissingRow {
        let entity_cells = &self.entities[entity];
        let mut row = entity_cells.row.clone();
        if let Some(document) = self.documents.get(entity) {
            row.context = vec![Value::Text(document.full_text())];
        }
        hqdl_model::plan::MissingRow { row, entity: entity_cells.entity.clone() }
    }

    /// Returns the entity with this number.
    #[must_use]
    pub fn entity_at(&self, entity: usize) -> &Entity {
        &self.entities[entity].entity
    }

    /// Reads the answer to a cell that was asked for.
    pub fn read_answer(
        &mut self,
        entity: usize,
        column: usize,
        record: Option<&Record>,
        counts: &mut Counts,
    ) {
        self.recent_records.clear();
        let entity_cells = &mut self.entities[entity];
        entity_cells.cells[column] = match self.requirements.look_up_cell(record, column) {
            CellLookup::Known(fact) => {
                counts.count_missing(fact.answer.state);
                Cell::Known(to_sql_value(&fact.answer.value))
            }
            CellLookup::Missing(..) => {
                counts.count_missing(State::Error);
                Cell::Failed
            }
        };
    }
}

/// Converts the value of a cell to SQL. A list becomes JSON text.
#[must_use]
pub fn to_sql_value(value: &CellValue) -> Sql {
    match value {
        CellValue::Nothing => Sql::Null,
        CellValue::One(value) => match value {
            Value::Null => Sql::Null,
            Value::Integer(i) => Sql::Integer(*i),
            Value::Real(r) => Sql::Real(*r),
            Value::Text(text) => Sql::Text(text.clone()),
        },
        CellValue::Many(_) => Sql::Text(value.to_json().to_string()),
    }
}

/// Appends the canonical bytes of values, which differ for different values.
pub fn write_canonical_bytes(values: &[ValueRef<'_>], out: &mut Vec<u8>) {
    for value in values {
        match value {
            ValueRef::Null => out.push(0),
            ValueRef::Integer(i) => {
                out.push(1);
                out.extend(i.to_le_bytes());
            }
            ValueRef::Real(r) => {
                out.push(2);
                out.extend(r.to_bits().to_le_bytes());
            }
            ValueRef::Text(bytes) | ValueRef::Blob(bytes) => {
                out.push(if matches!(value, ValueRef::Text(_)) { 3 } else { 4 });
                out.extend((bytes.len() as u64).to_le_bytes());
                out.extend(*bytes);
            }
        }
    }
}
