//! Cells that calls ask for, in expansions of the spec and ad-hoc ones. They are found in the fact
//! store or demanded from the model.
//!
//! A query looks up each cell once. A cell is found, or it is missing and the calls that need it
//! demand it. After its request the cell is found or failed, and it is never demanded again.

use std::sync::Arc;

use foldhash::{HashMap, HashMapExt};
use rusqlite::types::{Value as Sql, ValueRef};

use super::documents::{Document, Documents, is_of_documents};
use hqdl_facts::{Facts, FactsError, Found, Prefetch, Record, Wanted};
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
    Unseen,
    /// Known value; NULL if the cell has none.
    Known(Sql),
    /// Not in the fact store.
    Missing,
    /// Asked for in this query without success.
    Failed,
}

/// An expansion as a query uses it.
pub struct Target {
    /// The expansion.
    pub expansion: Arc<Expansion>,
    /// Identities of its columns in the fact store.
    pub wanted: Arc<Wanted>,
    /// Position in the spec, for overrides.
    pub in_spec: Option<usize>,
    spellings: HashMap<Vec<u8>, usize>,
    entities: Vec<KnownEntities>,
    by_entity: HashMap<Entity, usize>,
    /// Documents to ask about.
    documents: Documents,
    ahead: Prefetch,
    /// Records read recently, since several columns are looked up in each record.
    at_hand: HashMap<usize, Option<Record>>,
}

/// Maximum number of records in `recent_records`.
const AT_HAND: usize = 64;

struct KnownEntities {
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
        if !state.shows() {
            self.without_value += 1;
            self.unknown += u64::from(state == State::Unknown);
        }
    }
}

impl Target {
    /// Returns an expansion without entities.
    #[must_use]
    pub fn new(expansion: Arc<Expansion>, wanted: Arc<Wanted>, in_spec: Option<usize>) -> Self {
        let ahead = Prefetch::of(&expansion.key);
        Self {
            expansion,
            wanted,
            in_spec,
            spellings: HashMap::new(),
            entities: Vec::new(),
            by_entity: HashMap::new(),
            documents: Documents::default(),
            ahead,
            at_hand: HashMap::new(),
        }
    }

    /// Returns the entity that some values identify. `row` builds the row of a new entity.
    pub fn entity(&mut self, spelling: &[u8], row: impl FnOnce() -> Row) -> usize {
        if let Some(found) = self.spellings.get(spelling) {
            return *found;
        }
        let row = row();
        let entity = self.expansion.entity(&row.key);
        let n = if let Some(n) = self.by_entity.get(&entity) {
            *n
        } else {
            let n = self.entities.len();
            let cells = vec![Cell::Unseen; self.expansion.columns.len()];
            self.by_entity.insert(entity.clone(), n);
            self.entities.push(KnownEntities { row, entity, cells });
            n
        };
        self.spellings.insert(spelling.to_vec(), n);
        n
    }

    /// Returns the entity that was registered with these bytes.
    #[must_use]
    pub fn known(&self, spelling: &[u8]) -> Option<usize> {
        self.spellings.get(spelling).copied()
    }

    /// Stores the document of an entity, so that it can be asked about.
    pub fn keep(&mut self, entity: usize, document: Document) {
        self.documents.keep(entity, document);
    }

    /// Discards the stored documents.
    pub fn forget(&mut self) {
        self.documents.forget();
    }

    /// Returns the document of an entity if it is stored.
    #[must_use]
    pub fn document(&self, entity: usize) -> Option<&Document> {
        self.documents.get(entity)
    }

    /// Returns whether an entity may be asked about now. A document that is not stored is asked
    /// about after the next pass.
    pub fn is_at_hand(&mut self, entity: usize) -> bool {
        !is_of_documents(&self.expansion) || self.documents.has(entity)
    }

    /// Returns a cell and looks it up on first use.
    ///
    /// # Errors
    /// [`FactsError`] if the facts cannot be read.
    pub fn cell(
        &mut self,
        entity: usize,
        column: usize,
        facts: &Facts,
        overrides: Option<&Overrides>,
        counts: &mut Counts,
    ) -> Result<&Cell, FactsError> {
        let known = &mut self.entities[entity];
        if known.cells[column] == Cell::Unseen {
            let record = match self.at_hand.get(&entity) {
                Some(record) => record,
                None => {
                    if self.at_hand.len() >= AT_HAND || self.expansion.columns.len() == 1 {
                        self.at_hand.clear();
                    }
                    let record = self.ahead.get(facts, &known.entity)?;
                    self.at_hand.entry(entity).or_insert(record)
                }
            };
            let word =
                self.in_spec.zip(overrides).and_then(|(n, all)| all.get(n, &known.entity, column));
            known.cells[column] = match word {
                Some(word) => {
                    counts.reused += 1;
                    Cell::Known(sql(&word.value))
                }
                None => match self.wanted.find(record.as_ref(), column) {
                    Found::Known(fact) => {
                        counts.reused += 1;
                        counts.count_missing(fact.answer.state);
                        Cell::Known(sql(&fact.answer.value))
                    }
                    Found::Missing(..) => Cell::Missing,
                },
            };
        }
        Ok(&self.entities[entity].cells[column])
    }

    /// Returns the row of an entity for a prompt.
    #[must_use]
    pub fn gap(&self, entity: usize) -> hqdl_model::plan::MissingRow {
        let known = &self.entities[entity];
        let mut row = known.row.clone();
        if let Some(document) = self.documents.get(entity) {
            row.context = vec![Value::Text(document.text())];
        }
        hqdl_model::plan::MissingRow { row, entity: known.entity.clone() }
    }

    /// Returns the entity with this number.
    #[must_use]
    pub fn about(&self, entity: usize) -> &Entity {
        &self.entities[entity].entity
    }

    /// Reads the answer to a cell that was asked for.
    pub fn answered(
        &mut self,
        entity: usize,
        column: usize,
        record: Option<&Record>,
        counts: &mut Counts,
    ) {
        self.at_hand.clear();
        let known = &mut self.entities[entity];
        known.cells[column] = match self.wanted.find(record, column) {
            Found::Known(fact) => {
                counts.count_missing(fact.answer.state);
                Cell::Known(sql(&fact.answer.value))
            }
            Found::Missing(..) => {
                counts.count_missing(State::Error);
                Cell::Failed
            }
        };
    }
}

/// Converts the value of a cell to SQL. A list becomes JSON text.
#[must_use]
pub fn sql(value: &CellValue) -> Sql {
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
pub fn spell(values: &[ValueRef<'_>], into: &mut Vec<u8>) {
    for value in values {
        match value {
            ValueRef::Null => into.push(0),
            ValueRef::Integer(i) => {
                into.push(1);
                into.extend(i.to_le_bytes());
            }
            ValueRef::Real(r) => {
                into.push(2);
                into.extend(r.to_bits().to_le_bytes());
            }
            ValueRef::Text(bytes) | ValueRef::Blob(bytes) => {
                into.push(if matches!(value, ValueRef::Text(_)) { 3 } else { 4 });
                into.extend((bytes.len() as u64).to_le_bytes());
                into.extend(*bytes);
            }
        }
    }
}
