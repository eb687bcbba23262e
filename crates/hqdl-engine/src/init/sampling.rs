//! Samples the tables of a database to learn their structure and content.

use rusqlite::types::ValueRef;

use super::classify::{self, TextKind};
use hqdl_database::Database;
use hqdl_spec::Catalog;
use hqdl_values::sql;

/// Maximum number of rows of a table that are read to count distinct keys.
pub const SAMPLE_ROWS: u64 = 100_000;
/// Number of rows that are read to classify the columns.
const CLASSIFIED_ROWS: u64 = 1_000;
/// Maximum number of columns of a table. `SQLite` returns at most 2,000 result columns, and each
/// sampled column needs three of them.
const MAX_COLUMNS: usize = 300;
/// Number of rows that are read for a column's examples.
const EXAMPLE_ROWS: u64 = 5;
/// Maximum length of an example, in characters.
const EXAMPLE_LENGTH: usize = 40;
/// Maximum size of a value to read, in bytes. For larger values, only the size is read.
const MAX_READ_BYTES: u64 = 400;
/// Minimum average length at which texts count as descriptions rather than names, in characters.
pub const MIN_DESCRIPTION_LENGTH: u64 = 80;

/// A readable table or view.
#[derive(Debug)]
pub struct SampledTable {
    pub name: String,
    /// Words of the name, in the singular.
    pub words: Vec<String>,
    /// Columns with a usable name.
    pub columns: Vec<SampledColumn>,
    /// Number of rows, at most [`SAMPLE_ROWS`].
    pub rows: u64,
    /// Whether the table has more than [`SAMPLE_ROWS`] rows.
    pub has_more_rows: bool,
    /// Single-column foreign keys.
    pub foreign_keys: Vec<ForeignKey>,
    /// Columns of each unique index over several columns.
    pub unique_indexes: Vec<Vec<String>>,
}

/// A single-column foreign key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForeignKey {
    /// The referencing column.
    pub from_column: String,
    /// The referenced table.
    pub table: String,
    /// The referenced column; `None` means the primary key.
    pub to_column: Option<String>,
}

/// A column of a table.
#[derive(Debug, PartialEq)]
pub struct SampledColumn {
    pub name: String,
    /// Words of the name.
    pub words: Vec<String>,
    /// Content of the column.
    pub value_kind: ValueKind,
    /// Average length of the column's texts, in characters.
    pub average_length: u64,
    /// Whether the column is part of the primary key.
    pub is_primary_key: bool,
    /// Whether the column is part of a foreign key.
    pub is_reference: bool,
}

/// Content of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueKind {
    /// Short texts that may be names.
    Name,
    Number,
    /// Ids, dates, links, long texts, blobs or no values.
    Other,
}

/// Returns the names of the user's tables, or of the views if there are no tables.
///
/// # Errors
/// Returns `SQLite`'s error if the schema cannot be read.
pub fn list_table_names(db: &Database) -> rusqlite::Result<Vec<String>> {
    // Skip shadow tables, which are internal to virtual tables.
    let mut statement = db.connection().prepare(
        "SELECT name, type = 'view' FROM pragma_table_list \
         WHERE schema = 'main' AND type IN ('table', 'virtual', 'view') \
         AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' AND name NOT LIKE 'hqdl\\_%' ESCAPE '\\' \
         ORDER BY name",
    )?;
    let mut names_by_kind = [Vec::new(), Vec::new()];
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        // A spec cannot contain a name that is not UTF-8.
        if let Ok(Ok(name)) = row.get_ref(0).map(|v| v.as_str().map(str::to_owned))
            && !db.is_created_by_hqdl(&name)
        {
            names_by_kind[usize::from(row.get::<_, bool>(1)?)].push(name);
        }
    }
    let [tables, views] = names_by_kind;
    Ok(if tables.is_empty() { views } else { tables })
}

/// Returns the lowercase names of all objects in the schema.
///
/// # Errors
/// Returns `SQLite`'s error if the schema cannot be read.
pub fn list_schema_names(db: &Database) -> rusqlite::Result<Vec<String>> {
    let mut statement = db.connection().prepare("SELECT name FROM sqlite_schema")?;
    let mut rows = statement.query([])?;
    let mut names = Vec::new();
    while let Some(row) = rows.next()? {
        if let Ok(name) = row.get_ref(0)?.as_str() {
            names.push(name.to_lowercase());
        }
    }
    Ok(names)
}

/// Samples a table.
///
/// # Errors
/// Returns `SQLite`'s error if the table cannot be read.
pub fn sample_table(db: &Database, name: &str) -> rusqlite::Result<SampledTable> {
    let foreign_keys = read_foreign_keys(db, name)?;
    let usable_columns = read_columns(db, name)?;
    let unique_indexes = read_unique_indexes(db, name)?;
    let rows = count_rows(db, name)?;
    let tallies = tally_columns(db, name, &usable_columns)?;
    let columns =
        usable_columns.into_iter().zip(tallies).map(|((column, is_primary_key), tally)| {
            SampledColumn {
                words: classify::split_words(&column),
                is_reference: foreign_keys
                    .iter()
                    .any(|f| f.from_column.eq_ignore_ascii_case(&column)),
                value_kind: tally.classify_column(&column),
                average_length: tally.average_length(),
                name: column,
                is_primary_key,
            }
        });
    Ok(SampledTable {
        name: name.to_owned(),
        words: classify::singularize_last_word(classify::split_words(name)),
        columns: columns.collect(),
        rows: rows.min(SAMPLE_ROWS),
        has_more_rows: rows > SAMPLE_ROWS,
        foreign_keys,
        unique_indexes,
    })
}

fn read_unique_indexes(db: &Database, table: &str) -> rusqlite::Result<Vec<Vec<String>>> {
    // The name of an indexed expression is NULL.
    let sql = "SELECT json_group_array(c.name) FROM pragma_index_list(?1) AS i,
                 pragma_index_info(i.name) AS c WHERE i.\"unique\" AND NOT i.partial
               GROUP BY i.name HAVING count(*) > 1 AND count(*) = count(c.name) ORDER BY i.seq";
    let mut statement = db.connection().prepare(sql)?;
    let mut rows = statement.query([table])?;
    let mut indexes = Vec::new();
    while let Some(row) = rows.next()? {
        let columns: String = row.get(0)?;
        indexes.push(serde_json::from_str(&columns).unwrap_or_default());
    }
    Ok(indexes)
}

fn read_foreign_keys(db: &Database, table: &str) -> rusqlite::Result<Vec<ForeignKey>> {
    let sql = "SELECT min(\"from\"), min(\"table\"), min(\"to\") FROM pragma_foreign_key_list(?1)
               GROUP BY id HAVING count(*) = 1 ORDER BY id DESC";
    let parse_row = |row: &rusqlite::Row<'_>| {
        Ok(ForeignKey { from_column: row.get(0)?, table: row.get(1)?, to_column: row.get(2)? })
    };
    db.connection().prepare(sql)?.query_map([table], parse_row)?.collect()
}

/// Returns the column names, and whether each column is part of the primary key. Skips columns with
/// a blank name, which a spec cannot contain.
fn read_columns(db: &Database, table: &str) -> rusqlite::Result<Vec<(String, bool)>> {
    let all: Vec<(String, bool)> = db
        .connection()
        .prepare("SELECT name, pk > 0 FROM pragma_table_info(?1)")?
        .query_map([table], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<rusqlite::Result<_>>()?;
    let usable = all.into_iter().filter(|(name, _)| !name.trim().is_empty());
    Ok(usable.take(MAX_COLUMNS).collect())
}

/// Counts the rows, up to one more than [`SAMPLE_ROWS`].
fn count_rows(db: &Database, table: &str) -> rusqlite::Result<u64> {
    let sql = format!(
        "SELECT count(*) FROM (SELECT 1 FROM {} LIMIT {})",
        sql::quote_name(table),
        SAMPLE_ROWS + 1
    );
    db.connection().query_row(&sql, [], |row| row.get(0))
}

/// Numbers of rows and of distinct rows in a sample.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DistinctRows {
    /// Number of rows in the sample.
    pub rows: u64,
    /// Number of distinct rows of the sample; NULL counts as a value.
    pub distinct: u64,
}

impl DistinctRows {
    /// Returns the number of rows that repeat an earlier one.
    pub fn count_repeats(self) -> u64 {
        self.rows - self.distinct
    }
}

/// Counts the distinct rows over some columns, in a sample of at most `limit` rows spread over the
/// whole table. The spread matters in sorted tables: if a table is sorted by country, equal city
/// names are far apart.
///
/// # Errors
/// Returns `SQLite`'s error if the table cannot be read.
pub fn count_distinct_rows(
    db: &Database,
    table: &str,
    columns: &[&str],
    limit: u64,
) -> rusqlite::Result<DistinctRows> {
    count_distinct_rows_in(
        db,
        &build_sample_clause(db, &sql::quote_name(table), limit),
        columns,
        limit,
    )
}

/// Returns up to three different short values of a column, from rows spread over the table.
///
/// # Errors
/// Returns `SQLite`'s error if the table cannot be read.
pub fn read_examples(db: &Database, table: &str, column: &str) -> rusqlite::Result<Vec<String>> {
    let from = build_sample_clause(db, &sql::quote_name(table), EXAMPLE_ROWS);
    let column = format!("t.{}", sql::quote_name(column));
    let sql = format!(
        "SELECT DISTINCT {column} FROM {from} AS t WHERE typeof({column}) = 'text'
         AND length({column}) BETWEEN 1 AND {EXAMPLE_LENGTH} LIMIT 3"
    );
    let mut statement = db.connection().prepare(&sql)?;
    let values = statement.query_map([], |row| row.get(0))?;
    values.collect()
}

/// Counts the distinct rows in the first rows of a table, view or subquery.
///
/// # Errors
/// Returns `SQLite`'s error if the table cannot be read.
pub fn count_distinct_rows_in(
    db: &Database,
    from: &str,
    columns: &[&str],
    limit: u64,
) -> rusqlite::Result<DistinctRows> {
    let expressions: Vec<String> =
        columns.iter().map(|c| format!("t.{}", sql::quote_name(c))).collect();
    let sql = format!(
        "WITH sample AS MATERIALIZED (SELECT {} FROM {from} AS t LIMIT {limit})
         SELECT (SELECT count(*) FROM sample), (SELECT count(*) FROM (SELECT DISTINCT * FROM sample))",
        expressions.join(", "),
    );
    let parse_row =
        |row: &rusqlite::Row<'_>| Ok(DistinctRows { rows: row.get(0)?, distinct: row.get(1)? });
    db.connection().query_row(&sql, [], parse_row)
}

/// Returns an SQL FROM item with at most `limit` evenly spaced rows. For views, small tables and
/// tables without rowids, it returns the table itself.
fn build_sample_clause(db: &Database, table: &str, limit: u64) -> String {
    let bounds_sql =
        format!("SELECT (SELECT min(_rowid_) FROM {table}), (SELECT max(_rowid_) FROM {table})");
    let parse_row = |row: &rusqlite::Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?));
    let Ok((first, last)) = db.connection().query_row(&bounds_sql, [], parse_row) else {
        return table.to_owned();
    };
    let step = first.abs_diff(last) / limit.max(1) + 1;
    if step == 1 {
        return table.to_owned();
    }
    format!(
        "(WITH RECURSIVE place(id) AS (SELECT {first} UNION ALL
            SELECT id + {step} FROM place WHERE id <= {last} - {step})
          SELECT r.* FROM place CROSS JOIN {table} AS r ON r._rowid_ = place.id)"
    )
}

fn tally_columns(
    db: &Database,
    table: &str,
    columns: &[(String, bool)],
) -> rusqlite::Result<Vec<ColumnTally>> {
    if columns.is_empty() {
        return Ok(Vec::new());
    }
    let select: Vec<String> = columns
        .iter()
        .map(|(name, _)| {
            // SQLite returns the type and length of a value without reading it.
            let c = format!("t.{}", sql::quote_name(name));
            format!(
                "typeof({c}) = 'text', octet_length({c}), \
                 CASE WHEN octet_length({c}) <= {MAX_READ_BYTES} THEN {c} END"
            )
        })
        .collect();
    let sql = format!(
        "SELECT {} FROM {} AS t LIMIT {CLASSIFIED_ROWS}",
        select.join(", "),
        sql::quote_name(table)
    );
    let mut tallies = vec![ColumnTally::default(); columns.len()];
    let mut statement = db.connection().prepare(&sql)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        for (n, tally) in tallies.iter_mut().enumerate() {
            let bytes: Option<u64> = row.get(n * 3 + 1)?;
            tally.add_value(row.get(n * 3)?, bytes, row.get_ref(n * 3 + 2)?);
        }
    }
    Ok(tallies)
}

/// Counts over a column's sampled values.
#[derive(Debug, Clone, Default)]
struct ColumnTally {
    /// Number of values that are neither NULL nor blank.
    present: u64,
    numbers: u64,
    /// Number of texts; `word_texts` counts the texts that consist of words.
    texts: u64,
    word_texts: u64,
    characters: u64,
}

impl ColumnTally {
    fn add_value(&mut self, is_text: bool, bytes: Option<u64>, value: ValueRef<'_>) {
        let Some(bytes) = bytes else { return };
        match value {
            ValueRef::Integer(_) | ValueRef::Real(_) => self.numbers += 1,
            ValueRef::Text(value) => {
                if let Ok(value) = std::str::from_utf8(value) {
                    match classify::classify_text(value) {
                        TextKind::Blank => return,
                        TextKind::Words => self.word_texts += 1,
                        TextKind::Other => {}
                    }
                    self.texts += 1;
                    self.characters += value.chars().count() as u64;
                }
            }
            // A text that was too long to be read.
            ValueRef::Null if is_text => {
                self.texts += 1;
                self.word_texts += 1;
                self.characters += bytes;
            }
            ValueRef::Null | ValueRef::Blob(_) => {}
        }
        self.present += 1;
    }

    fn average_length(&self) -> u64 {
        self.characters.checked_div(self.texts).unwrap_or(0)
    }

    /// Returns the kind of a column's content. A column called `id` or `url`, for example, never
    /// counts as containing names.
    fn classify_column(&self, column: &str) -> ValueKind {
        match self.classify_values() {
            ValueKind::Name if classify::is_non_name(&classify::split_words(column)) => {
                ValueKind::Other
            }
            kind => kind,
        }
    }

    fn classify_values(&self) -> ValueKind {
        // Tolerate a few outliers: the film "300" is stored as a number.
        let most_are_text = self.texts * 5 >= self.present * 4;
        if self.numbers * 2 > self.present {
            ValueKind::Number
        } else if self.texts > 0
            && most_are_text
            && self.word_texts * 2 > self.texts
            && self.characters <= self.texts * MIN_DESCRIPTION_LENGTH
        {
            ValueKind::Name
        } else {
            ValueKind::Other
        }
    }
}
