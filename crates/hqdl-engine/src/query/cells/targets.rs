//! Cells that calls ask for, in the spec's expansions and in ad-hoc expansions. The cells are found
//! in the fact store or demanded from the model.
//!
//! A query looks up each cell once. If the cell is missing, the calls that need it demand it. After
//! the request, the cell is known or failed, and is never demanded again.

use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;

use foldhash::{HashMap, HashMapExt, HashSet, HashSetExt};
use rusqlite::types::Value as Sql;

use crate::query::cells::documents::{Document, StoredDocuments, asks_about_documents};
use crate::query::cells::entity_store::EntityStore;
use crate::retrieval::vectors::{VectorStore, hash_passage};
use hqdl_database::StoreError;
use hqdl_database::row_contexts::RowContexts;
use hqdl_facts::{CellLookup, ExpansionRequirements, Facts, FactsError, Prefetch, Record};
use hqdl_model::plan::MissingRow;
use hqdl_spec::overrides::Overrides;
use hqdl_spec::{Expansion, is_server};
use hqdl_values::Row;
use hqdl_values::cell::{Answer, CellValue, State};
use hqdl_values::key::Entity;
use hqdl_values::value::Value;

/// A cell that a pass needs and whose value is not known yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Demand {
    target: u32,
    entity: u32,
    column: u32,
}

impl Demand {
    /// Returns the demand for a cell, given the indexes of its expansion, entity and column. A
    /// query may record millions of demands, so the indexes have 32 bits, as in [`EntityStore`].
    #[must_use]
    pub fn new(target: usize, entity: usize, column: usize) -> Self {
        Self { target: target as u32, entity: entity as u32, column: column as u32 }
    }

    /// Returns the index of the expansion among those that the query uses.
    #[must_use]
    pub fn target(self) -> usize {
        self.target as usize
    }

    /// Returns the index of the entity among the entities of the expansion that the query has
    /// encountered.
    #[must_use]
    pub fn entity(self) -> usize {
        self.entity as usize
    }

    /// Returns the index of the column in the expansion.
    #[must_use]
    pub fn column(self) -> usize {
        self.column as usize
    }
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
    /// hqdl asked for the cell in this query, without success.
    Failed,
}

/// Stored embeddings of one model.
pub struct StoredEmbeddings {
    /// File that contains the embeddings.
    pub vectors: VectorStore,
    /// Name of the model.
    pub model: String,
}

impl StoredEmbeddings {
    /// Returns the cell of a text's embedding: a BLOB of 32-bit floats.
    fn look_up_embedding(&self, text: &str) -> Cell {
        // An embedding that cannot be read counts as missing.
        let bytes = self.vectors.get_vector_bytes(&self.model, &hash_passage(text));
        bytes.ok().flatten().map_or(Cell::Missing, |bytes| Cell::Known(Sql::Blob(bytes)))
    }
}

/// An expansion that a query uses, with the entities and cells that the query has encountered.
pub struct TargetExpansion {
    /// The expansion.
    pub expansion: Arc<Expansion>,
    /// Identities of the expansion's columns in the fact store.
    pub requirements: Arc<ExpansionRequirements>,
    /// Position of the expansion in the spec, for overrides; `None` for an ad-hoc expansion.
    pub in_spec: Option<usize>,
    entities: EntityStore,
    /// Cells of the entities, row by row.
    cells: Vec<Cell>,
    /// Documents of the entities that hqdl can ask about in this pass.
    documents: StoredDocuments,
    /// Source of the cells if they are embeddings; `None` if they are facts.
    embeddings: Option<StoredEmbeddings>,
    /// Positions of the known cells whose answer is neither a value nor "unknown".
    unreadable: HashSet<usize>,
    prefetch: Prefetch,
    /// Contexts of the source's rows; `None` if the expansion has none.
    contexts: Option<RowContexts>,
    /// Recently read records, because several columns are looked up in the same record.
    recent_records: HashMap<usize, Option<Record>>,
}

/// Maximum number of records in `recent_records`.
const MAX_RECENT_RECORDS: usize = 64;

/// Maximum length of an answer that a note quotes, in characters.
const MAX_EXAMPLE_CHARS: usize = 60;

/// Counts of the cells that a query found or asked for.
#[derive(Debug, Clone, Default)]
pub struct Counts {
    /// Number of cells that the query asked for.
    pub asked: u64,
    /// Number of cells known before the query.
    pub reused: u64,
    /// Number of cells without a value.
    pub without_value: u64,
    /// Number of cells without a value because the model does not know the value.
    pub unknown: u64,
    /// Number of cells without a value because the model or the content filter refused.
    pub refused: u64,
    /// Number of cells whose answer cannot be read or is not allowed.
    pub invalid: u64,
    /// One of the answers counted in `invalid`, with the reason.
    pub invalid_example: Option<String>,
}

impl Counts {
    /// Adds other counts.
    pub fn add(&mut self, other: &Self) {
        self.asked += other.asked;
        self.reused += other.reused;
        self.without_value += other.without_value;
        self.unknown += other.unknown;
        self.refused += other.refused;
        self.invalid += other.invalid;
        if self.invalid_example.is_none() {
            self.invalid_example.clone_from(&other.invalid_example);
        }
    }

    /// Counts an answer if its state means that the cell has no value.
    pub(in crate::query) fn count_answer(&mut self, answer: &Answer) {
        self.count_cell_if_without_value(answer.state);
        let is_counted = matches!(answer.state, State::Invalid | State::NotInList);
        if is_counted && self.invalid_example.is_none() {
            let reason = answer.repair.as_deref().unwrap_or("not in the list of values");
            self.invalid_example = answer.raw.as_deref().map(|raw| {
                let line = raw.split_whitespace().collect::<Vec<_>>().join(" ");
                let mut text: String = line.chars().take(MAX_EXAMPLE_CHARS).collect();
                if text.len() < line.len() {
                    text.push('…');
                }
                format!("\"{text}\" ({reason})")
            });
        }
    }

    /// Counts a cell if its state means that it has no value.
    fn count_cell_if_without_value(&mut self, state: State) {
        if !state.has_value() {
            self.without_value += 1;
            self.unknown += u64::from(state == State::Unknown);
            self.refused += u64::from(state == State::Refused);
            self.invalid += u64::from(matches!(state, State::Invalid | State::NotInList));
        }
    }
}

impl TargetExpansion {
    /// Returns a target for an expansion, without entities.
    #[must_use]
    pub fn new(
        expansion: Arc<Expansion>,
        requirements: Arc<ExpansionRequirements>,
        in_spec: Option<usize>,
    ) -> Self {
        let prefetch = Prefetch::new(&expansion.key);
        Self {
            entities: EntityStore::new(Arc::clone(&expansion)),
            expansion,
            requirements,
            in_spec,
            cells: Vec::new(),
            documents: StoredDocuments::default(),
            embeddings: None,
            unreadable: HashSet::new(),
            prefetch,
            contexts: None,
            recent_records: HashMap::new(),
        }
    }

    /// Returns the expansion with stored embeddings as the source of its cells.
    #[must_use]
    pub fn with_embeddings(self, embeddings: StoredEmbeddings) -> Self {
        Self { embeddings: Some(embeddings), ..self }
    }

    /// Reads the contexts of the source's rows in the database at `path`, if the expansion belongs
    /// to the spec and has a context. The facts about a row depend on its context. If the database
    /// is on a server, reads nothing, because queries then use published tables only.
    ///
    /// # Errors
    /// Returns [`StoreError`] if the database or a source cannot be read.
    pub fn load_contexts(&mut self, path: &Path) -> Result<(), StoreError> {
        if self.in_spec.is_some() && !is_server(path) {
            self.contexts = RowContexts::collect(path, &self.expansion)?;
        }
        Ok(())
    }

    /// Returns the entity that was registered with these bytes, or registers a new one with the row
    /// that `row` builds.
    pub fn intern_entity(&mut self, canonical_bytes: &[u8], row: impl FnOnce() -> Row) -> usize {
        let known = self.entities.find(canonical_bytes);
        let n = known.unwrap_or_else(|| self.entities.add_row(canonical_bytes, row()));
        self.add_cells();
        n
    }

    /// Returns the entity whose key consists of the values in these bytes. Returns `None` if a
    /// value cannot be shown to the model.
    pub fn intern_values(&mut self, canonical_bytes: &[u8]) -> Option<usize> {
        let known = self.entities.find(canonical_bytes);
        let n = known.or_else(|| self.entities.add_values(canonical_bytes));
        self.add_cells();
        n
    }

    /// Adds the cells of a new entity.
    fn add_cells(&mut self) {
        self.cells.resize(self.entities.len() * self.expansion.columns.len(), Cell::NotLookedUp);
    }

    fn cell_position(&self, entity: usize, column: usize) -> usize {
        entity * self.expansion.columns.len() + column
    }

    /// Returns the entity that was registered with these bytes.
    #[must_use]
    pub fn find_known_entity(&self, canonical_bytes: &[u8]) -> Option<usize> {
        self.entities.find(canonical_bytes)
    }

    /// Stores the document of an entity, so that hqdl can ask about it.
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

    /// Returns true if hqdl can ask about an entity in this pass. If its document is not stored,
    /// the next pass stores it.
    pub fn ensure_document(&mut self, entity: usize) -> bool {
        !asks_about_documents(&self.expansion) || self.documents.check_or_request_document(entity)
    }

    /// Reads the records of entities at once, so that later lookups of their cells need not read
    /// the facts.
    ///
    /// # Errors
    /// Returns [`FactsError`] if the facts cannot be read.
    pub fn load_records(&mut self, entities: &[usize], facts: &Facts) -> Result<(), FactsError> {
        let records = self.read_records(entities, facts)?;
        self.recent_records = entities.iter().copied().zip(records).collect();
        Ok(())
    }

    fn read_records(
        &self,
        entities: &[usize],
        facts: &Facts,
    ) -> Result<Vec<Option<Record>>, FactsError> {
        let rows: Vec<(Entity, Entity)> =
            entities.iter().map(|n| (self.entity_at(*n), self.entities.entity(*n))).collect();
        facts.get_rows(&rows.iter().map(|(entity, key)| (entity, key)).collect::<Vec<_>>())
    }

    /// Returns a cell, looking it up on first use.
    ///
    /// # Errors
    /// Returns [`FactsError`] if the facts cannot be read.
    pub fn look_up_cell(
        &mut self,
        entity: usize,
        column: usize,
        facts: &Facts,
        overrides: Option<&Overrides>,
        counts: &mut Counts,
    ) -> Result<&Cell, FactsError> {
        let at = self.cell_position(entity, column);
        if let (Some(embeddings), Cell::NotLookedUp) = (&self.embeddings, &self.cells[at]) {
            self.cells[at] = embeddings.look_up_embedding(&self.entity_text(entity));
            counts.reused += u64::from(matches!(self.cells[at], Cell::Known(_)));
        } else if self.cells[at] == Cell::NotLookedUp {
            let identity = self.entities.entity(entity);
            let record = match self.recent_records.get(&entity) {
                Some(record) => record,
                None => {
                    if self.recent_records.len() >= MAX_RECENT_RECORDS
                        || self.expansion.columns.len() == 1
                    {
                        self.recent_records.clear();
                    }
                    let record = match &self.contexts {
                        None => self.prefetch.get(facts, &identity)?,
                        Some(_) => self.read_records(&[entity], facts)?.pop().flatten(),
                    };
                    self.recent_records.entry(entity).or_insert(record)
                }
            };
            let override_value =
                self.in_spec.zip(overrides).and_then(|(n, all)| all.get(n, &identity, column));
            self.cells[at] = match override_value {
                Some(override_value) => {
                    counts.reused += 1;
                    Cell::Known(to_sql_value(&override_value.value))
                }
                None => match self.requirements.look_up_cell(record.as_ref(), column) {
                    CellLookup::Known(fact) => {
                        counts.reused += 1;
                        counts.count_answer(&fact.answer);
                        if is_unreadable(fact.answer.state) {
                            self.unreadable.insert(at);
                        }
                        Cell::Known(to_sql_value(&fact.answer.value))
                    }
                    CellLookup::Missing(..) => Cell::Missing,
                },
            };
        }
        Ok(&self.cells[at])
    }

    /// Returns true if the cells are embeddings.
    #[must_use]
    pub fn has_embeddings(&self) -> bool {
        self.embeddings.is_some()
    }

    /// Returns the text of an entity whose key is one value.
    #[must_use]
    pub fn entity_text(&self, entity: usize) -> String {
        let row = self.entities.row(entity);
        let text = row.key.first().and_then(|value| value.canonical_text().map(Cow::into_owned));
        text.unwrap_or_default()
    }

    /// Returns a cell that has already been looked up.
    #[must_use]
    pub fn known_cell(&self, entity: usize, column: usize) -> &Cell {
        &self.cells[self.cell_position(entity, column)]
    }

    /// Reads an entity's embedding after the embedding has been requested.
    pub fn read_embedding(&mut self, entity: usize, counts: &mut Counts) {
        let at = self.cell_position(entity, 0);
        let text = self.entity_text(entity);
        let found = self.embeddings.as_ref().map(|embeddings| embeddings.look_up_embedding(&text));
        self.cells[at] = match found {
            Some(found @ Cell::Known(_)) => found,
            _ => {
                counts.count_cell_if_without_value(State::Error);
                Cell::Failed
            }
        };
    }

    /// Returns an entity's row for a prompt, with the entity under which the answers are stored.
    /// That entity includes the context that the prompt shows.
    #[must_use]
    pub fn build_missing_row(&self, entity: usize) -> MissingRow {
        let mut row = self.entities.row(entity);
        if let Some(document) = self.documents.get(entity) {
            row.context = vec![Value::Text(document.full_text())];
        }
        let key = self.entities.entity(entity);
        let Some(contexts) = &self.contexts else { return MissingRow { row, entity: key } };
        row.context = contexts.read_context(&key);
        let entity = self.expansion.build_fact_entity(&key, &row.context);
        MissingRow { row, entity }
    }

    /// Returns the entity with this index in the form under which its facts are stored, which
    /// includes the row's context if there is one.
    #[must_use]
    pub fn entity_at(&self, entity: usize) -> Entity {
        let key = self.entities.entity(entity);
        self.contexts
            .as_ref()
            .map_or_else(|| key.clone(), |contexts| contexts.build_fact_entity(&key))
    }

    /// Returns true if a known cell has an answer that cannot be read.
    #[must_use]
    pub fn is_unreadable(&self, entity: usize, column: usize) -> bool {
        self.unreadable.contains(&self.cell_position(entity, column))
    }

    /// Reads the answer to a cell that the query asked for.
    pub fn read_answer(
        &mut self,
        entity: usize,
        column: usize,
        record: Option<&Record>,
        counts: &mut Counts,
    ) {
        self.recent_records.clear();
        let at = self.cell_position(entity, column);
        self.cells[at] = match self.requirements.look_up_cell(record, column) {
            CellLookup::Known(fact) => {
                counts.count_answer(&fact.answer);
                if is_unreadable(fact.answer.state) {
                    self.unreadable.insert(at);
                }
                Cell::Known(to_sql_value(&fact.answer.value))
            }
            CellLookup::Missing(..) => {
                counts.count_cell_if_without_value(State::Error);
                Cell::Failed
            }
        };
    }
}

/// Returns true if the model's answer is neither a value nor "unknown".
fn is_unreadable(state: State) -> bool {
    !state.has_value() && state != State::Unknown
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
