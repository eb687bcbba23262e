//! A model's advice for a first spec: the columns that identify a row, a description of the rows,
//! and three useful columns to add.

use hqdl_database::Database;
use hqdl_values::format::format_count;
use rusqlite::types::Value;

use super::key_candidate::KeyCandidate;
use super::sampling::{self, DistinctRows, SAMPLE_ROWS, SampledTable, ValueKind};
use super::{EntityTable, classify};

const KEY: &str = "Which columns of this table name the thing that a row describes, so that a \
                   stranger would recognize it? Use as few columns as possible.";
const ABOUT: &str = "What does one row of this table describe? Answer with one short sentence.";
const COLUMNS: &str = "Which three facts about the thing that a row describes are widely known, \
                       useful, and not in the table? Write each as name: description, with a \
                       name of one or two words.";

/// Maximum number of columns in a table's description.
const MAX_LISTED_COLUMNS: usize = 30;
/// Maximum number of key columns, and of advised columns.
const MAX_COLUMNS: usize = 3;

/// Advice about one table. Parts that the model did not answer are empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TableAdvice {
    key: Vec<String>,
    about: Option<String>,
    /// Names and descriptions of the advised columns.
    columns: Vec<(String, String)>,
}

impl TableAdvice {
    /// Reads the advice from a row of the result of [`build_query`].
    #[must_use]
    pub fn read(row: &[Value]) -> Self {
        let text = |n: usize| match row.get(n) {
            Some(Value::Text(text)) => Some(text.trim().to_owned()).filter(|t| !t.is_empty()),
            _ => None,
        };
        let list = |n: usize| -> Vec<String> {
            text(n).and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default()
        };
        let column = |text: String| {
            let (name, about) = text.split_once(':')?;
            let name = classify::split_words(name).join("_");
            let about = about.trim();
            (!name.is_empty() && !about.is_empty()).then(|| (name, about.to_owned()))
        };
        let columns = list(2).into_iter().filter_map(column).take(MAX_COLUMNS).collect();
        Self { key: list(0), about: text(1), columns }
    }
}

/// Returns the query that asks a model about tables; each text in `descriptions` describes one
/// table.
#[must_use]
pub fn build_query(descriptions: &[String]) -> String {
    let text = |text: &str| format!("'{}'", text.replace('\'', "''"));
    let values: Vec<String> = descriptions.iter().map(|d| format!("({})", text(d))).collect();
    format!(
        "WITH described(card) AS (VALUES {}) SELECT \
         {{{{LLMMap({}, card, return_type='list[str]')}}}}, {{{{LLMMap({}, card)}}}}, \
         {{{{LLMMap({}, card, return_type='list[str]')}}}} FROM described",
        values.join(", "),
        text(KEY),
        text(ABOUT),
        text(COLUMNS),
    )
}

/// Returns the description of a table for the model: its name, columns and a few values. Columns
/// with private data are left out.
pub(super) fn describe_table(db: &Database, table: &SampledTable) -> String {
    let columns =
        table.columns.iter().filter(|c| !classify::is_private(&c.words)).take(MAX_LISTED_COLUMNS);
    let described: Vec<String> = columns
        .map(|column| {
            let values = match column.value_kind {
                ValueKind::Name => sampling::read_examples(db, &table.name, &column.name),
                ValueKind::Number | ValueKind::Other => Ok(Vec::new()),
            };
            match values.unwrap_or_default() {
                values if values.is_empty() => column.name.clone(),
                values => format!("{} (such as {})", column.name, values.join("; ")),
            }
        })
        .collect();
    let rows = format_count(table.rows, "row");
    format!("table {} with {rows} and the columns: {}", table.name, described.join(", "))
}

/// Applies advice to a table. Accepts a key only if it consists of the table's own columns and
/// distinguishes at least half of the rows.
pub(super) fn apply_advice(db: &Database, entity: &mut EntityTable, advice: &TableAdvice) {
    entity.about.clone_from(&advice.about);
    entity.advised.clone_from(&advice.columns);
    let table = &entity.table;
    let place =
        |name: &String| table.columns.iter().position(|c| c.name.eq_ignore_ascii_case(name));
    let Some(columns) = advice.key.iter().map(place).collect::<Option<Vec<_>>>() else { return };
    let is_fit = |n: &usize| table.columns.get(*n).is_some_and(|c| !classify::is_private(&c.words));
    if entity.owner_key.is_some()
        || !(1..=MAX_COLUMNS).contains(&columns.len())
        || !columns.iter().all(is_fit)
    {
        return;
    }
    let mut key = KeyCandidate { columns, sample: DistinctRows::default() };
    let found =
        sampling::count_distinct_rows(db, &table.name, &key.column_names(table), SAMPLE_ROWS);
    if let Some(found) = found.ok().filter(|f| f.distinct * 2 >= f.rows) {
        key.sample = found;
        entity.key = key;
    }
}
