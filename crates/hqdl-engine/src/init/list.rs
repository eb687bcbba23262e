//! Lookup tables, which are value lists: what they hold, and whose they are.

use std::collections::HashSet;

use super::look;
use super::survey::{SurveyedColumn, SurveyedTable, ValueKind};
use hqdl_database::Database;
use hqdl_spec::Catalog;
use hqdl_values::sql;
use hqdl_values::value::Value;

/// Values of a list at most: all of them stand in every prompt.
const VALUES: u64 = 1_000;
/// The average characters of a value at most: a list holds terms, not sentences.
const VALUE_LENGTH: u64 = 40;

/// Names of columns that say nothing; the table's says more.
const BARE: [&str; 7] = ["name", "title", "value", "label", "text", "description", "type"];

/// A lookup table.
#[derive(Debug)]
pub struct List {
    /// Its table.
    pub table: String,
    /// The words of the table's name, in the singular.
    pub words: Vec<String>,
    /// The column of its values.
    pub column: String,
    /// How many rows it has.
    pub values: u64,
    /// Whether one of the rows is blank: "no publisher".
    blank: bool,
}

impl List {
    /// Whether a table is a value list: a few texts, all different, each with
    /// an id at most.
    pub fn find(db: &Database, table: &SurveyedTable) -> Option<Self> {
        if table.columns.len() > 2 || !(2..=VALUES).contains(&table.rows) {
            return None;
        }
        let texts = || table.columns.iter().filter(|c| c.kind == ValueKind::Name);
        // Of a code and what it stands for, the code is the id.
        let text = match texts().count() {
            1 => texts().next()?,
            _ => texts().find(|c| !look::is_code_name(&c.words))?,
        };
        let others = || table.columns.iter().filter(|c| c.name != text.name);
        if !others().all(|c| is_own_id(table, c)) || text.reference || text.length > VALUE_LENGTH {
            return None;
        }
        let mut list = Self {
            table: table.name.clone(),
            words: table.words.clone(),
            column: text.name.clone(),
            values: table.rows,
            blank: false,
        };
        // What cannot be read here would be refused in the spec.
        let values = db.select(&list.sql(), VALUES as usize + 1).ok()?;
        list.blank = blank_row(&values)?;
        Some(list)
    }

    /// The SELECT of its values.
    pub fn sql(&self) -> String {
        let (column, table) = (sql::name(&self.column), sql::name(&self.table));
        let present =
            if self.blank { format!(" WHERE length({column}) > 0") } else { String::new() };
        format!("SELECT {column} FROM {table}{present}")
    }

    /// What its values are, in words: `publisher` for `publisher_name`.
    pub fn noun(&self) -> Vec<String> {
        let mut words = look::words(&self.column);
        while words.len() > 1 && words.last().is_some_and(|w| w == "name" || w == "title") {
            words.pop();
        }
        if words.is_empty() || self.is_bare() {
            words.clone_from(&self.words);
        }
        words
    }

    /// What a column of its values is called.
    pub fn column_name(&self) -> String {
        if self.is_bare() && !self.words.is_empty() {
            self.words.join("_")
        } else {
            self.column.clone()
        }
    }

    fn is_bare(&self) -> bool {
        matches!(look::words(&self.column).as_slice(), [one] if BARE.contains(&one.as_str()))
    }

    /// Returns whether an entity may lack a column of this list. If any table refers to the list,
    /// its values describe that table. Otherwise they describe the entity that the list is named
    /// after, or the only entity of the database.
    pub fn may_belong_to(
        &self,
        entity: &SurveyedTable,
        entities: &[&SurveyedTable],
        others: &[&SurveyedTable],
    ) -> bool {
        let is_named_after =
            |t: &SurveyedTable| !t.words.is_empty() && self.words.starts_with(&t.words);
        let owner = match entities.iter().find(|t| is_named_after(t)) {
            Some(owner) => owner.name == entity.name,
            None => entities.len() == 1,
        };
        owner && !entities.iter().chain(others).any(|t| self.is_referred_to_by(t))
    }

    /// Whether a table refers to this list, by foreign key or by a column of
    /// its name, or has its values already.
    fn is_referred_to_by(&self, table: &SurveyedTable) -> bool {
        let values = look::words(&self.column);
        let has_values = |c: &SurveyedColumn| !values.is_empty() && c.words.ends_with(&values);
        refers(table, &self.table, &self.words)
            || (!self.is_bare() && table.columns.iter().any(has_values))
    }
}

/// Whether one of the values is NULL or the empty text; `None` when they make
/// no list: no texts, two alike, or fewer than two.
fn blank_row(rows: &[Vec<Value>]) -> Option<bool> {
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

/// Whether a column is its table's own id.
fn is_own_id(table: &SurveyedTable, column: &SurveyedColumn) -> bool {
    let stem = look::singular(stem(&column.words).to_vec());
    let own = stem.is_empty() || stem == table.words;
    let code = look::is_code_name(&column.words);
    !column.reference && (column.primary || code || (own && look::is_id(&column.words)))
}

/// Whether a table refers to another: by foreign key, or by a column such as
/// `publisher_id`, `main_publisher_id`, `publisherid` or `publisher`.
fn refers(table: &SurveyedTable, name: &str, words: &[String]) -> bool {
    let squashed = format!("{}id", words.concat());
    let by_name = |c: &SurveyedColumn| {
        let stem = look::singular(stem(&c.words).to_vec());
        !words.is_empty() && (stem.ends_with(words) || c.words.concat() == squashed)
    };
    table.foreign.iter().any(|f| f.table.eq_ignore_ascii_case(name))
        || table.columns.iter().any(by_name)
}

/// The words of a column's name without what says that it is a reference.
fn stem(words: &[String]) -> &[String] {
    match words {
        [first, rest @ ..] if first == "id" => rest,
        [rest @ .., last] if ["id", "ids", "key", "code", "fk"].contains(&last.as_str()) => rest,
        all => all,
    }
}

/// Whether a table refers to others by a column of its own.
pub fn refers_to_any(table: &SurveyedTable) -> bool {
    let reference = |c: &SurveyedColumn| {
        look::is_id(&c.words) && !stem(&c.words).is_empty() && !c.primary && !is_own_id(table, c)
    };
    !table.foreign.is_empty() || table.columns.iter().any(reference)
}
