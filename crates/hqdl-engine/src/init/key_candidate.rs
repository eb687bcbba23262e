//! Finds the columns that identify a table's rows to a model: the smallest set of short text
//! columns with distinct values, including a name column if there is one.

use std::cmp::Reverse;

use super::classify;
use super::sampling::{self, DistinctRows, SAMPLE_ROWS, SampledColumn, SampledTable, ValueKind};
use hqdl_database::Database;

/// Maximum number of key columns. A larger key would describe a row rather than name it.
const MAX_KEY_COLUMNS: usize = 3;
/// Maximum number of candidate columns; six columns give 41 possible keys.
const MAX_CANDIDATES: usize = 6;
/// A column named after its table is assumed to contain names if their average length is at most
/// this number of characters.
const MAX_AVERAGE_LENGTH: u64 = 40;
/// Number of rows on which a key is tried first; most keys fail there.
const TRIAL_ROWS: u64 = 2_000;

/// A candidate for the semantic key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyCandidate {
    /// Positions of the key's columns in the table.
    pub columns: Vec<usize>,
    /// Numbers of rows and of distinct keys in a sample.
    pub sample: DistinctRows,
}

impl KeyCandidate {
    /// Finds the best key of a table; `None` if the table has no suitable text column.
    ///
    /// # Errors
    /// Returns `SQLite`'s error if the table cannot be read.
    pub fn find_best(db: &Database, table: &SampledTable) -> rusqlite::Result<Option<Self>> {
        let mut best: Option<Self> = None;
        let mut best_on_trial: Option<Self> = None;
        for columns in list_candidate_sets(table) {
            let on_trial = sample_key(db, table, columns.clone(), TRIAL_ROWS)?;
            if !on_trial.is_unique() {
                on_trial.replace_if_better(&mut best_on_trial);
                continue;
            }
            let candidate = sample_key(db, table, columns, SAMPLE_ROWS)?;
            if candidate.is_unique() {
                return Ok(Some(candidate));
            }
            candidate.replace_if_better(&mut best);
        }
        match (best, best_on_trial) {
            (None, Some(trial)) => sample_key(db, table, trial.columns, SAMPLE_ROWS).map(Some),
            (best, _) => Ok(best),
        }
    }

    /// Returns true if no two rows of the sample have the same key.
    pub fn is_unique(&self) -> bool {
        self.sample.count_repeats() == 0
    }

    /// Returns true if one of the key's columns contains the names of the rows ([`is_name`]).
    pub fn has_name_column(&self, table: &SampledTable) -> bool {
        self.columns.iter().filter_map(|c| table.columns.get(*c)).any(|c| is_name(table, c))
    }

    /// Returns true if the key identifies individual entities: it contains a name, is unique, or
    /// has a column such as "species" or "city". Keys made of categories and measurements do not.
    pub fn identifies_entities(&self, table: &SampledTable) -> bool {
        let is_shared_thing =
            |c: &usize| table.columns.get(*c).is_some_and(|c| classify::is_shared_thing(&c.words));
        self.columns.iter().any(is_shared_thing) || self.has_name_column(table) || self.is_unique()
    }

    pub fn column_names<'t>(&self, table: &'t SampledTable) -> Vec<&'t str> {
        self.columns.iter().filter_map(|c| table.columns.get(*c)).map(|c| c.name.as_str()).collect()
    }

    /// Replaces `best` with this key if this key has fewer repeats. On a tie, `best` stays, because
    /// it was tried first.
    fn replace_if_better(self, best: &mut Option<Self>) {
        if best.as_ref().is_none_or(|b| self.sample.count_repeats() < b.sample.count_repeats()) {
            *best = Some(self);
        }
    }
}

fn sample_key(
    db: &Database,
    table: &SampledTable,
    columns: Vec<usize>,
    rows: u64,
) -> rusqlite::Result<KeyCandidate> {
    let mut key = KeyCandidate { columns, sample: DistinctRows::default() };
    key.sample = sampling::count_distinct_rows(db, &table.name, &key.column_names(table), rows)?;
    Ok(key)
}

/// Returns the column sets to try, best first. Sets with a name column come first; otherwise the
/// key of a small table could be a column such as the country, whose values happen to be distinct.
/// The other criteria, in order, are fewer columns, more names, and a position further left.
fn list_candidate_sets(table: &SampledTable) -> Vec<Vec<usize>> {
    let is_named = |c: &SampledColumn| is_name(table, c);
    let is_year =
        |c: &SampledColumn| c.value_kind == ValueKind::Number && classify::is_year(&c.words);
    let rank = |c: &SampledColumn| (!is_named(c), !is_year(c), classify::is_code_name(&c.words));
    let is_person = |c: &SampledColumn| classify::is_person_name_part(&c.words);
    // A person who is not the subject of the table, such as the head of a school, does not identify
    // a row.
    let allows_persons = !table
        .columns
        .iter()
        .any(|c| c.value_kind == ValueKind::Name && is_named(c) && !is_person(c));
    let mut candidates: Vec<(usize, &SampledColumn)> = Vec::new();
    for (n, column) in table.columns.iter().enumerate() {
        // A key cannot contain two columns whose names differ only in case.
        let lower = column.name.to_lowercase();
        let is_duplicate = candidates.iter().any(|(_, c)| c.name.to_lowercase() == lower);
        let is_suitable = column.value_kind == ValueKind::Name
            && (allows_persons || !is_person(column))
            || is_year(column);
        let is_excluded = classify::is_private(&column.words) || classify::is_remark(&column.words);
        if is_suitable && !is_duplicate && !is_excluded {
            candidates.push((n, column));
        }
    }
    candidates.sort_by_key(|(n, c)| (rank(c), *n));
    candidates.truncate(MAX_CANDIDATES);
    let mut sets: Vec<Vec<(usize, &SampledColumn)>> = Vec::new();
    let groups = list_column_groups(table, &candidates);
    // Each bit pattern is a set of candidates.
    for bits in 1_u32..(1 << candidates.len()) {
        if bits.count_ones() as usize <= MAX_KEY_COLUMNS {
            let chosen = (0..candidates.len()).filter(|n| bits & (1 << n) != 0);
            let mut set: Vec<_> = chosen.filter_map(|n| candidates.get(n).copied()).collect();
            complete_groups(&mut set, &groups);
            set.sort_by_key(|(n, _)| *n);
            if sets.contains(&set) {
                continue;
            }
            // A year only distinguishes things with the same name.
            if set.iter().all(|(_, c)| !is_year(c)) || set.iter().any(|(_, c)| is_named(c)) {
                sets.push(set);
            }
        }
    }
    sets.sort_by_key(|set| {
        let names = set.iter().filter(|(_, c)| is_named(c)).count();
        let years = set.iter().filter(|(_, c)| is_year(c)).count();
        let codes = set.iter().filter(|(_, c)| classify::is_code_name(&c.words)).count();
        let positions: Vec<usize> = set.iter().map(|(n, _)| *n).collect();
        (names == 0, set.len(), Reverse(names), Reverse(years), codes, positions)
    });
    let to_positions =
        |set: Vec<(usize, &SampledColumn)>| set.into_iter().map(|(n, _)| n).collect();
    sets.into_iter().map(to_positions).collect()
}

/// Returns the groups of candidates that identify a row only together: the parts of a person's
/// name, and the columns of a unique index, because an index over several columns implies that each
/// of them alone can contain duplicates.
fn list_column_groups<'t>(
    table: &SampledTable,
    candidates: &[(usize, &'t SampledColumn)],
) -> Vec<Vec<(usize, &'t SampledColumn)>> {
    let choose = |test: &dyn Fn(&SampledColumn) -> bool| -> Vec<_> {
        candidates.iter().filter(|(_, c)| test(c)).copied().collect()
    };
    let persons = choose(&|c| classify::is_person_name_part(&c.words));
    let indexes = table.unique_indexes.iter().filter_map(|columns| {
        let chosen = choose(&|c| columns.contains(&c.name));
        (chosen.len() == columns.len()).then_some(chosen)
    });
    let groups = indexes.chain([persons]);
    groups.filter(|g| (2..=MAX_KEY_COLUMNS).contains(&g.len())).collect()
}

/// For each group that has a column in the set, adds the group's other columns, unless the key
/// would become too large.
fn complete_groups<'t>(
    set: &mut Vec<(usize, &'t SampledColumn)>,
    groups: &[Vec<(usize, &'t SampledColumn)>],
) {
    let is_in = |set: &[(usize, &SampledColumn)], n: usize| set.iter().any(|(m, _)| *m == n);
    let mut completed = set.clone();
    for group in groups.iter().filter(|group| group.iter().any(|(n, _)| is_in(set, *n))) {
        for column in group {
            if !is_in(&completed, column.0) {
                completed.push(*column);
            }
        }
    }
    if completed.len() <= MAX_KEY_COLUMNS {
        *set = completed;
    }
}

/// Returns true if a column contains the names of the rows: its name contains `name` or `title`, or
/// is the name of the table, such as `School` in `schools`.
pub fn is_name(table: &SampledTable, column: &SampledColumn) -> bool {
    classify::is_name(&column.name)
        || column.value_kind == ValueKind::Name && has_table_name(table, column)
}

/// Returns true if a column has the same name as its table and short values.
pub fn has_table_name(table: &SampledTable, column: &SampledColumn) -> bool {
    column.average_length <= MAX_AVERAGE_LENGTH
        && !table.words.is_empty()
        && classify::singularize_last_word(column.words.clone()) == table.words
}
