//! Finds the columns that identify a table's rows to a model: the smallest set of short text
//! columns with distinct values, including a name column if there is one.

use std::cmp::Reverse;

use super::look;
use super::survey::{self, DistinctRows, SAMPLE_ROWS, SurveyedColumn, SurveyedTable, ValueKind};
use hqdl_database::Database;

/// Maximum number of key columns; more would describe a row rather than name it.
const KEY_COLUMNS: usize = 3;
/// Maximum number of candidate columns; six columns give 41 possible keys.
const CANDIDATES: usize = 6;
/// Maximum average length in characters of a column that has the same name as its table and still
/// contains names.
const OWN_NAME_LENGTH: u64 = 40;
/// Number of rows on which a key is tried first; most keys fail there.
const TRIAL_ROWS: u64 = 2_000;

/// A candidate for the semantic key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Positions of its columns in the table.
    pub columns: Vec<usize>,
    /// Number of distinct keys in a sample of the rows.
    pub found: DistinctRows,
}

impl Identity {
    /// Finds the best key of a table; `None` if the table has no suitable text column.
    ///
    /// # Errors
    /// Returns `SQLite`'s error if the table cannot be read.
    pub fn find(db: &Database, table: &SurveyedTable) -> rusqlite::Result<Option<Self>> {
        let mut best: Option<Self> = None;
        let mut best_on_trial: Option<Self> = None;
        for columns in sets(table) {
            let on_trial = count(db, table, columns.clone(), TRIAL_ROWS)?;
            if !on_trial.is_unique() {
                on_trial.keep_better(&mut best_on_trial);
                continue;
            }
            let found = count(db, table, columns, SAMPLE_ROWS)?;
            if found.is_unique() {
                return Ok(Some(found));
            }
            found.keep_better(&mut best);
        }
        match (best, best_on_trial) {
            (None, Some(trial)) => count(db, table, trial.columns, SAMPLE_ROWS).map(Some),
            (best, _) => Ok(best),
        }
    }

    /// Returns true if no two rows of the sample have the same key.
    pub fn is_unique(&self) -> bool {
        self.found.repeats() == 0
    }

    /// Returns true if one of the columns is called a name or title.
    pub fn is_named(&self, table: &SurveyedTable) -> bool {
        self.columns.iter().filter_map(|c| table.columns.get(*c)).any(|c| is_name(table, c))
    }

    /// Returns true if the key identifies individual things: it contains a name, is unique, or has
    /// a column such as "species" or "city". Keys made of categories and measurements do not.
    pub fn tells(&self, table: &SurveyedTable) -> bool {
        let thing = |c: &usize| table.columns.get(*c).is_some_and(|c| look::is_thing(&c.words));
        self.columns.iter().any(thing) || self.is_named(table) || self.is_unique()
    }

    /// Returns the column names.
    pub fn names<'t>(&self, table: &'t SurveyedTable) -> Vec<&'t str> {
        self.columns.iter().filter_map(|c| table.columns.get(*c)).map(|c| c.name.as_str()).collect()
    }

    /// Replaces `best` if this key has fewer repeats. On a tie, the earlier key stays, because it
    /// is smaller.
    fn keep_better(self, best: &mut Option<Self>) {
        if best.as_ref().is_none_or(|b| self.found.repeats() < b.found.repeats()) {
            *best = Some(self);
        }
    }
}

fn count(
    db: &Database,
    table: &SurveyedTable,
    columns: Vec<usize>,
    rows: u64,
) -> rusqlite::Result<Identity> {
    let mut key = Identity { columns, found: DistinctRows::default() };
    key.found = survey::distinct(db, &table.name, &key.names(table), rows)?;
    Ok(key)
}

/// Returns the column sets to try, best first. Sets with a name column come first (otherwise five
/// customers could be identified by country, by chance), then smaller sets, then sets with more
/// names, then leftmost columns.
fn sets(table: &SurveyedTable) -> Vec<Vec<usize>> {
    let named = |c: &SurveyedColumn| is_name(table, c);
    let year = |c: &SurveyedColumn| c.kind == ValueKind::Number && look::is_year(&c.words);
    let rank = |c: &SurveyedColumn| (!named(c), !year(c), look::is_code_name(&c.words));
    let person = |c: &SurveyedColumn| look::is_part_of_person(&c.words);
    // The head of a school does not identify the school.
    let persons =
        !table.columns.iter().any(|c| c.kind == ValueKind::Name && named(c) && !person(c));
    let mut candidates: Vec<(usize, &SurveyedColumn)> = Vec::new();
    for (n, column) in table.columns.iter().enumerate() {
        // A key cannot contain two columns whose names differ only in case.
        let lower = column.name.to_lowercase();
        let known = candidates.iter().any(|(_, c)| c.name.to_lowercase() == lower);
        let may = column.kind == ValueKind::Name && (persons || !person(column)) || year(column);
        if may && !known && !look::is_private(&column.words) {
            candidates.push((n, column));
        }
    }
    candidates.sort_by_key(|(n, c)| (rank(c), *n));
    candidates.truncate(CANDIDATES);
    let mut sets: Vec<Vec<(usize, &SurveyedColumn)>> = Vec::new();
    // Each bit pattern is a set.
    for bits in 1_u32..(1 << candidates.len()) {
        if bits.count_ones() as usize <= KEY_COLUMNS {
            let chosen = (0..candidates.len()).filter(|n| bits & (1 << n) != 0);
            let mut set: Vec<_> = chosen.filter_map(|n| candidates.get(n).copied()).collect();
            set.sort_by_key(|(n, _)| *n);
            // A year only distinguishes things with the same name.
            if set.iter().all(|(_, c)| !year(c)) || set.iter().any(|(_, c)| named(c)) {
                sets.push(set);
            }
        }
    }
    sets.sort_by_key(|set| {
        let names = set.iter().filter(|(_, c)| named(c)).count();
        let years = set.iter().filter(|(_, c)| year(c)).count();
        let codes = set.iter().filter(|(_, c)| look::is_code_name(&c.words)).count();
        let places: Vec<usize> = set.iter().map(|(n, _)| *n).collect();
        (names == 0, set.len(), Reverse(names), Reverse(years), codes, places)
    });
    let places = |set: Vec<(usize, &SurveyedColumn)>| set.into_iter().map(|(n, _)| n).collect();
    sets.into_iter().map(places).collect()
}

/// Returns true if a column contains the names of the rows: it is called a name or title, or it has the
/// name of its table, such as `School` of `schools`.
pub fn is_name(table: &SurveyedTable, column: &SurveyedColumn) -> bool {
    look::is_name(&column.name) || column.kind == ValueKind::Name && is_called_as(table, column)
}

/// Returns true if a column has the same name as its table and short values.
pub fn is_called_as(table: &SurveyedTable, column: &SurveyedColumn) -> bool {
    column.length <= OWN_NAME_LENGTH
        && !table.words.is_empty()
        && look::singular(column.words.clone()) == table.words
}
