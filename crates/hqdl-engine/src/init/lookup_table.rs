//! Finds lookup tables, which become value lists, and the entity tables they may belong to.

use std::collections::HashSet;

use super::classify;
use super::sampling::{self, SAMPLE_ROWS, SampledColumn, SampledTable, ValueKind};
use hqdl_database::Database;
use hqdl_spec::Catalog;
use hqdl_values::sql;
use hqdl_values::value::Value;

/// Maximum number of values in a list, because every prompt contains all of them.
const MAX_VALUES: u64 = 1_000;
/// Maximum average length of a value, in characters. Lists contain terms, not sentences.
const MAX_VALUE_LENGTH: u64 = 40;

/// Column names that carry no meaning; the table's name is used instead.
const GENERIC_NAMES: [&str; 7] = ["name", "title", "value", "label", "text", "description", "type"];

/// A lookup table.
#[derive(Debug)]
pub struct LookupTable {
    /// Name of the table.
    pub table: String,
    /// Words of the table's name, in the singular.
    pub words: Vec<String>,
    /// Column of the values.
    pub column: String,
    /// Number of rows.
    pub values: u64,
    /// Whether one of the values is blank, meaning for example "no publisher".
    has_blank: bool,
}

impl LookupTable {
    /// Returns the table as a value list, if it is one: a few distinct texts, and at most an id
    /// column.
    pub fn from_table(db: &Database, table: &SampledTable) -> Option<Self> {
        if table.columns.len() > 2 || !(2..=MAX_VALUES).contains(&table.rows) {
            return None;
        }
        let texts = || table.columns.iter().filter(|c| c.value_kind == ValueKind::Name);
        // If there is both a code column and a text column, the code is the id.
        let text = match texts().count() {
            1 => texts().next()?,
            _ => texts().find(|c| !classify::is_code_name(&c.words))?,
        };
        let others = || table.columns.iter().filter(|c| c.name != text.name);
        if !others().all(|c| is_own_id(table, c))
            || text.is_reference
            || text.average_length > MAX_VALUE_LENGTH
        {
            return None;
        }
        let mut list = Self {
            table: table.name.clone(),
            words: table.words.clone(),
            column: text.name.clone(),
            values: table.rows,
            has_blank: false,
        };
        // A list that cannot be read here would fail the spec's check.
        let values = db.select_rows(&list.values_sql(), MAX_VALUES as usize + 1).ok()?;
        list.has_blank = contains_blank(&values)?;
        Some(list)
    }

    /// Returns the SELECT statement that reads the list's values.
    pub fn values_sql(&self) -> String {
        let (column, table) = (sql::quote_name(&self.column), sql::quote_name(&self.table));
        let present =
            if self.has_blank { format!(" WHERE length({column}) > 0") } else { String::new() };
        format!("SELECT {column} FROM {table}{present}")
    }

    /// Returns the words that describe a value, such as `publisher` for `publisher_name`.
    pub fn derive_value_noun(&self) -> Vec<String> {
        let mut words = classify::split_words(&self.column);
        while words.len() > 1 && words.last().is_some_and(|w| w == "name" || w == "title") {
            words.pop();
        }
        if words.is_empty() || self.has_generic_name() {
            words.clone_from(&self.words);
        }
        words
    }

    /// Returns the name for a column that contains values of this list.
    pub fn column_name(&self) -> String {
        if self.has_generic_name() && !self.words.is_empty() {
            self.words.join("_")
        } else {
            self.column.clone()
        }
    }

    fn has_generic_name(&self) -> bool {
        matches!(classify::split_words(&self.column).as_slice(), [one] if GENERIC_NAMES.contains(&one.as_str()))
    }

    /// Returns whether this list may contain the values of a column that an entity lacks. If any
    /// table refers to the list, its values describe that table. Otherwise they describe the entity
    /// that the list is named after, or the only entity of the database.
    pub fn may_belong_to(
        &self,
        entity: &SampledTable,
        entities: &[&SampledTable],
        others: &[&SampledTable],
    ) -> bool {
        let is_named_after =
            |t: &SampledTable| !t.words.is_empty() && self.words.starts_with(&t.words);
        let owner = match entities.iter().find(|t| is_named_after(t)) {
            Some(owner) => owner.name == entity.name,
            None => entities.len() == 1,
        };
        owner && !entities.iter().chain(others).any(|t| self.is_referred_to_by(t))
    }

    /// Returns true if a table refers to this list by a foreign key or a column name, or already
    /// contains its values.
    fn is_referred_to_by(&self, table: &SampledTable) -> bool {
        let values = classify::split_words(&self.column);
        let has_values = |c: &SampledColumn| !values.is_empty() && c.words.ends_with(&values);
        refers_to(table, &self.table, &self.words)
            || (!self.has_generic_name() && table.columns.iter().any(has_values))
    }
}

/// Returns whether one of the values is NULL or empty. Returns `None` if the values are not a list:
/// not all are texts, two are equal, or there are fewer than two.
fn contains_blank(rows: &[Vec<Value>]) -> Option<bool> {
    let mut seen = HashSet::new();
    for value in rows.iter().flatten() {
        let text = match value {
            Value::Null => "",
            Value::Text(text) if text.is_empty() || !text.trim().is_empty() => text.trim(),
            _ => return None,
        };
        if !seen.insert(text) {
            return None;
        }
    }
    let blank = seen.remove("");
    (seen.len() > 1).then_some(blank)
}

/// Returns true if a column is the id of its own table.
fn is_own_id(table: &SampledTable, column: &SampledColumn) -> bool {
    let stem = classify::singularize_last_word(strip_reference_marker(&column.words).to_vec());
    let is_own = stem.is_empty() || stem == table.words;
    let is_code = classify::is_code_name(&column.words);
    !column.is_reference
        && (column.is_primary_key || is_code || (is_own && classify::is_id(&column.words)))
}

/// Returns true if a table refers to another one, by a foreign key or by a column such as
/// `publisher_id`, `main_publisher_id`, `publisherid` or `publisher`.
fn refers_to(table: &SampledTable, name: &str, words: &[String]) -> bool {
    let squashed = format!("{}id", words.concat());
    let matches_name = |c: &SampledColumn| {
        let stem = classify::singularize_last_word(strip_reference_marker(&c.words).to_vec());
        !words.is_empty() && (stem.ends_with(words) || c.words.concat() == squashed)
    };
    table.foreign_keys.iter().any(|f| f.table.eq_ignore_ascii_case(name))
        || table.columns.iter().any(matches_name)
}

/// Returns a column name's words without the prefix or suffix that marks a reference.
fn strip_reference_marker(words: &[String]) -> &[String] {
    match words {
        [first, rest @ ..] if first == "id" => rest,
        [rest @ .., last] if ["id", "ids", "key", "code", "fk"].contains(&last.as_str()) => rest,
        all => all,
    }
}

/// Returns true if a table refers to any other table. A first column with a different value in each
/// row is the table's own id, whatever its name, such as `customer_id` of a table `accounts`.
///
/// # Errors
/// Returns `SQLite`'s error if the table cannot be read.
pub fn refers_to_any(db: &Database, table: &SampledTable) -> rusqlite::Result<bool> {
    let is_reference = |c: &SampledColumn| {
        classify::is_id(&c.words)
            && !strip_reference_marker(&c.words).is_empty()
            && !c.is_primary_key
            && !is_own_id(table, c)
    };
    if !table.foreign_keys.is_empty() {
        return Ok(true);
    }
    let mut references = table.columns.iter().enumerate().filter(|(_, c)| is_reference(c));
    match (references.next(), references.next()) {
        (None, _) => Ok(false),
        (Some((0, first)), None) => {
            let ids = [first.name.as_str()];
            let sample = sampling::count_distinct_rows(db, &table.name, &ids, SAMPLE_ROWS)?;
            Ok(sample.count_repeats() > 0)
        }
        _ => Ok(true),
    }
}
