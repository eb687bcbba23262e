//! Compares published cells with reference values from the user.
//!
//! Only cells with a reference value count. *Accuracy* is the share of cells with exactly the true
//! value. *F1* compares all stated values with all true values, so that a wrong value lowers the
//! score more than a missing value. Both include a 95 % Wilson interval, which shows the
//! uncertainty of a share from a small sample.

mod entry;
mod file;
mod share;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::Serialize;
use serde_json::{Value as Json, json};

pub(crate) use self::entry::format_value;
pub use self::entry::{CANNOT_BE_KNOWN, NO_VALUE, format_cell, format_entry, parse_entry};
pub use self::file::{TrueRow, Truth, TruthError};
pub use self::share::Share;
use hqdl_database::provenance::TYPED_VALUE_SQL;
use hqdl_database::{Database, StoreError};
use hqdl_spec::{Expansion, Spec};
use hqdl_values::cell::{CellValue, State};
use hqdl_values::key::Entity;
use hqdl_values::value::Value;

/// Accuracy of a column.
#[derive(Debug, Clone, Default, Serialize)]
pub struct ColumnScore {
    /// Name of the expansion.
    pub expansion: String,
    /// Name of the column.
    pub column: String,
    /// Share of cells with the true value, among cells with a reference value.
    pub accuracy: Share,
    /// F1: twice the number of correct values, divided by the number of stated values plus the
    /// number of true values.
    pub f1: Share,
    /// Accuracy by cell state. The state of keys without a published row is `absent`.
    pub states: BTreeMap<String, Share>,
    /// Accuracy by the model that answered the cell.
    pub models: BTreeMap<String, Share>,
    /// Cells that differ from their reference value, in the order of the reference file.
    pub differs: Vec<Difference>,
}

/// A cell that differs from its reference value.
#[derive(Debug, Clone, Serialize)]
pub struct Difference {
    /// Values of the key columns.
    pub key: Vec<Json>,
    /// The reference value.
    pub truth: Json,
    /// The published value.
    pub value: Json,
    /// State of the cell.
    pub state: String,
}

/// A published cell.
pub(crate) struct ScoredCell {
    pub(crate) state: String,
    pub(crate) value: CellValue,
    pub(crate) model: Option<String>,
}

/// State of a cell whose row was never published.
pub const ABSENT: &str = "absent";

/// Compares published cells with reference values. Returns a score for each column of the
/// reference, in the spec's order.
///
/// # Errors
/// Returns [`StoreError`] if the expanded database cannot be read.
pub fn score_columns(
    spec: &Spec,
    database: &Database,
    truth: &Truth,
) -> Result<Vec<ColumnScore>, StoreError> {
    let mut scores = Vec::new();
    for (n, expansion) in spec.expansions.iter().enumerate() {
        database.fetch_published_cells(&expansion.name)?;
        for (column_index, column) in expansion.columns.iter().enumerate() {
            let Some(true_values) = truth.column_values(n, column_index) else { continue };
            let cells = load_cells(database, expansion, &column.name)?;
            let mut score = ColumnScore {
                expansion: expansion.name.clone(),
                column: column.name.clone(),
                ..ColumnScore::default()
            };
            for TrueRow { key, value: true_value, .. } in true_values {
                let Some(true_value) = true_value else { continue };
                score.add_cell(key, true_value, cells.get(&expansion.build_entity(key)));
            }
            scores.push(score);
        }
    }
    Ok(scores)
}

impl ColumnScore {
    fn add_cell(&mut self, key: &[Value], true_value: &CellValue, cell: Option<&ScoredCell>) {
        let published_value = cell.map_or(&CellValue::Nothing, |cell| &cell.value);
        let (stated, expected) =
            (canonicalize_values(published_value), canonicalize_values(true_value));
        let common = stated.intersection(&expected).count();
        // A cell that was never published answers nothing, not even that there is no value.
        let is_correct = cell.is_some() && has_same_values(published_value, true_value);
        self.accuracy.add(is_correct);
        self.f1.correct += 2.0 * common as f64;
        self.f1.total += (stated.len() + expected.len()) as u64;
        let state = cell.map_or(ABSENT, |cell| &cell.state);
        self.states.entry(state.to_owned()).or_default().add(is_correct);
        if let Some(model) = cell.and_then(|cell| cell.model.as_ref()) {
            self.models.entry(model.clone()).or_default().add(is_correct);
        }
        if !is_correct {
            self.differs.push(Difference {
                key: key.iter().map(Value::to_json).collect(),
                truth: true_value.to_json(),
                value: published_value.to_json(),
                state: state.to_owned(),
            });
        }
    }
}

/// Returns whether a cell has the true values. A cell without a value is right only if there is no
/// true value.
pub(crate) fn has_same_values(cell: &CellValue, truth: &CellValue) -> bool {
    (*cell == CellValue::Nothing) == (*truth == CellValue::Nothing)
        && canonicalize_values(cell) == canonicalize_values(truth)
}

/// Returns a cell's values in canonical form, so that different spellings of a number are equal.
pub(crate) fn canonicalize_values(cell: &CellValue) -> BTreeSet<String> {
    let text = |v: &Value| v.canonical_text().map(std::borrow::Cow::into_owned);
    match cell {
        CellValue::Nothing => BTreeSet::new(),
        CellValue::One(value) => text(value).into_iter().collect(),
        CellValue::Many(values) => values.iter().filter_map(text).collect(),
    }
}

/// Returns the published cells of a column, by entity.
pub(crate) fn load_cells(
    database: &Database,
    expansion: &Expansion,
    column: &str,
) -> Result<HashMap<Entity, ScoredCell>, StoreError> {
    if !database.has_bookkeeping() {
        return Ok(HashMap::new());
    }
    let many = expansion
        .find_column(column)
        .is_some_and(|column_index| expansion.columns[column_index].many.is_some());
    let read = || -> rusqlite::Result<HashMap<Entity, ScoredCell>> {
        let mut statement = database.connection().prepare(&format!(
            "SELECT key, state, {TYPED_VALUE_SQL}, model FROM hqdl_cell
             WHERE expansion = ?1 COLLATE NOCASE AND \"column\" = ?2 COLLATE NOCASE"
        ))?;
        let mut rows = statement.query([&expansion.name, column])?;
        let mut cells_by_entity = HashMap::new();
        while let Some(row) = rows.next()? {
            let key: Vec<Json> =
                serde_json::from_str(&row.get::<_, String>(0)?).unwrap_or_default();
            let key: Vec<Value> = key.iter().map(Value::from_json).collect();
            let state: String = row.get(1)?;
            let value = Value::from_sqlite(row.get_ref(2)?).unwrap_or(Value::Null);
            let has_value = [State::Ok, State::Overridden].iter().any(|s| s.name() == state);
            let value = match (has_value, many, value) {
                (false, ..) | (true, _, Value::Null) => CellValue::Nothing,
                (true, true, value) => {
                    let list = serde_json::from_str(&value.to_string()).unwrap_or_default();
                    CellValue::from_json(&list)
                }
                (true, false, value) => CellValue::One(value),
            };
            cells_by_entity.insert(
                expansion.build_entity(&key),
                ScoredCell { state, value, model: row.get(3)? },
            );
        }
        Ok(cells_by_entity)
    };
    read().map_err(|e| database.to_store_error(&e))
}

/// Returns the scores as JSON. The format is stable.
#[must_use]
pub fn scores_to_json(scores: &[ColumnScore]) -> Json {
    json!({ "columns": scores })
}
