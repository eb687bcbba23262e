//! Which columns identify the rows of a table to a model: the smallest set of
//! short text columns, a name among them if there is one, whose values no two
//! rows share.

use std::cmp::Reverse;

use super::look;
use super::survey::{self, DistinctRows, SAMPLE_ROWS, SurveyedColumn, SurveyedTable, ValueKind};
use hqdl_database::Database;

/// Columns of a key at most; who needs more is described, not named.
const KEY_COLUMNS: usize = 3;
/// Columns that keys are tried from; 41 keys come of six.
const CANDIDATES: usize = 6;
/// The average characters up to which the essays of a table of essays are their names.
const OWN_NAME_LENGTH: u64 = 40;
/// Rows a key is tried on first: most fail there already.
const TRIAL_ROWS: u64 = 2_000;

/// A candidate for a semantic key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Its columns, as positions in the table.
    pub columns: Vec<usize>,
    /// Different keys in a sample of the rows.
    pub found: DistinctRows,
}

impl Identity {
    /// Finds the best key of a table; `None` when it has no text for one.
    ///
    /// # Errors
    /// `SQLite`'s, when the table cannot be read.
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

    /// Whether no two rows share a key.
    pub fn is_unique(&self) -> bool {
        self.found.repeats() == 0
    }

    /// Whether one of the columns is called a name or title.
    pub fn is_named(&self, table: &SurveyedTable) -> bool {
        self.columns.iter().filter_map(|c| table.columns.get(*c)).any(|c| is_name(table, c))
    }

    /// Whether it tells one thing from others: a name does, and so does what no two rows
    /// share. Classes that rows are counted by, and what was measured of them, do not,
    /// unless they are called after things.
    pub fn tells(&self, table: &SurveyedTable) -> bool {
        let thing = |c: &usize| table.columns.get(*c).is_some_and(|c| look::is_thing(&c.words));
        self.columns.iter().any(thing) || self.is_named(table) || self.is_unique()
    }

    /// The names of the columns.
    pub fn names<'t>(&self, table: &'t SurveyedTable) -> Vec<&'t str> {
        self.columns.iter().filter_map(|c| table.columns.get(*c)).map(|c| c.name.as_str()).collect()
    }

    /// Of two that are as good, the earlier stays: it is smaller.
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

/// The sets of columns to try, in order: those with a column of names before
/// those without (of five customers, the countries may differ by chance), then
/// small ones, then those with more names, then the leftmost.
fn sets(table: &SurveyedTable) -> Vec<Vec<usize>> {
    let named = |c: &SurveyedColumn| is_name(table, c);
    let year = |c: &SurveyedColumn| c.kind == ValueKind::Number && look::is_year(&c.words);
    let rank = |c: &SurveyedColumn| (!named(c), !year(c), look::is_code_name(&c.words));
    let person = |c: &SurveyedColumn| look::is_part_of_person(&c.words);
    // Who runs a school is not the school.
    let persons =
        !table.columns.iter().any(|c| c.kind == ValueKind::Name && named(c) && !person(c));
    let mut candidates: Vec<(usize, &SurveyedColumn)> = Vec::new();
    for (n, column) in table.columns.iter().enumerate() {
        // Two spellings of one name cannot stand together in a key.
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
    // Every pattern of bits is a set.
    for bits in 1_u32..(1 << candidates.len()) {
        if bits.count_ones() as usize <= KEY_COLUMNS {
            let chosen = (0..candidates.len()).filter(|n| bits & (1 << n) != 0);
            let mut set: Vec<_> = chosen.filter_map(|n| candidates.get(n).copied()).collect();
            set.sort_by_key(|(n, _)| *n);
            // A year tells apart what has one name, and nothing else.
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

/// Whether a column holds the names of a table's rows: it says so, or it is called as
/// they are, `School` of `schools`.
pub fn is_name(table: &SurveyedTable, column: &SurveyedColumn) -> bool {
    look::is_name(&column.name) || column.kind == ValueKind::Name && is_called_as(table, column)
}

/// Whether a column is called as the rows of its table are, and has names.
pub fn is_called_as(table: &SurveyedTable, column: &SurveyedColumn) -> bool {
    column.length <= OWN_NAME_LENGTH
        && !table.words.is_empty()
        && look::singular(column.words.clone()) == table.words
}
