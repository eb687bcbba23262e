//! Creates a database from CSV files, one table per file, for users who have no database yet.

use std::collections::{HashMap, HashSet};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use rusqlite::Connection;
use rusqlite::types::Value;

use super::classify;
use hqdl_values::format::{describe_io_error, format_file_error};
use hqdl_values::sql;

/// Reason why no database was created.
#[derive(Debug, thiserror::Error)]
pub enum CsvImportError {
    /// A file cannot be read or written.
    #[error("{}", format_file_error(&path.display().to_string(), None, message))]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Description of the error.
        message: String,
        /// Advice for the user.
        hint: &'static str,
    },
    /// The path of the new database already exists.
    #[error("{} exists already", .0.display())]
    DatabaseExists(PathBuf),
    /// The folder contains no CSV file.
    #[error("{} contains no CSV file", .0.display())]
    NoFiles(PathBuf),
}

impl CsvImportError {
    /// Returns a hint for the user.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Self::File { hint, .. } => (*hint).to_owned(),
            Self::DatabaseExists(path) => format!(
                "if hqdl made it from this file, use it: `hqdl init {}`; otherwise rename one of the two",
                path.display()
            ),
            Self::NoFiles(_) => "name a directory with files that end in .csv or .tsv".to_owned(),
        }
    }
}

/// A message about a CSV file, and a hint.
type CsvProblem = (String, &'static str);

/// Maximum number of columns of a `SQLite` table.
const MAX_COLUMNS: usize = 2000;
/// Hint for a file without a readable header.
const HEADER_HINT: &str = "name a CSV file in UTF-8 with the column names in the first line";
/// Hint for a file in another encoding.
const ENCODING_HINT: &str = "export it as UTF-8 (in Excel: \"CSV UTF-8\"), or convert it: `iconv -f WINDOWS-1252 -t UTF-8 FILE > NEW.csv`";

/// Hint for a damaged UTF-16 file.
const UTF_16_HINT: &str = "export it again as UTF-8 (in Excel: \"CSV UTF-8\")";

/// Returns the CSV files at a path: the file itself, or the files of the folder. Returns `None` for
/// anything else, such as a database.
#[must_use]
pub fn list_csv_files(path: &Path) -> Option<Vec<PathBuf>> {
    let is_csv = |path: &Path| {
        let extension = path.extension().map(|e| e.to_string_lossy().to_lowercase());
        path.is_file() && extension.is_some_and(|e| e == "csv" || e == "tsv")
    };
    if !path.is_dir() {
        return is_csv(path).then(|| vec![path.to_owned()]);
    }
    let all = std::fs::read_dir(path).ok()?.flatten().map(|entry| entry.path());
    let mut files: Vec<PathBuf> = all.filter(|p| is_csv(p)).collect();
    files.sort();
    Some(files)
}

/// Creates a database next to the CSV files and imports them. Returns the path of the database, and
/// a note for each renamed column. The first line of each file contains the column names. A column
/// is numeric if all its fields are numbers; an empty field becomes NULL.
///
/// # Errors
/// Returns [`CsvImportError`] if there is no file, a file cannot be imported, or the database
/// already exists. Leaves no incomplete database behind.
pub fn create_database(
    path: &Path,
    files: &[PathBuf],
) -> Result<(PathBuf, Vec<String>), CsvImportError> {
    // `.` and `..` have no file name, so resolve them.
    let named = path.file_name().is_none().then(|| path.canonicalize().ok()).flatten();
    let path = named.as_deref().unwrap_or(path);
    let db_path = path.with_extension("sqlite");
    if files.is_empty() {
        return Err(CsvImportError::NoFiles(path.to_owned()));
    }
    if db_path.exists() {
        return Err(CsvImportError::DatabaseExists(db_path));
    }
    let part_path = path.with_extension(format!("sqlite.{}.part", std::process::id()));
    let file_error = |path: &Path, (message, hint): CsvProblem| CsvImportError::File {
        path: path.to_owned(),
        message,
        hint,
    };
    let failed_write = |path: &Path, error: String| {
        file_error(path, (error, "check that hqdl can write into this directory"))
    };
    let fill = || -> Result<Vec<String>, CsvImportError> {
        let db =
            Connection::open(&part_path).map_err(|e| failed_write(&part_path, e.to_string()))?;
        sql::reject_quoted_texts(&db).map_err(|e| failed_write(&part_path, e.to_string()))?;
        db.execute_batch("BEGIN").map_err(|e| failed_write(&part_path, e.to_string()))?;
        let mut notes = Vec::new();
        for file in files {
            notes.append(&mut import_file(&db, file).map_err(|reason| file_error(file, reason))?);
        }
        db.execute_batch("COMMIT").map_err(|e| failed_write(&part_path, e.to_string()))?;
        Ok(notes)
    };
    let result = fill().and_then(|notes| {
        std::fs::rename(&part_path, &db_path).map_err(|e| failed_write(&db_path, e.to_string()))?;
        Ok(notes)
    });
    if result.is_err() {
        // Remove the incomplete database.
        let _ = std::fs::remove_file(&part_path);
    }
    result.map(|notes| (db_path, notes))
}

/// Imports a file as a table. Returns a note for each renamed column.
fn import_file(db: &Connection, file: &Path) -> Result<Vec<String>, CsvProblem> {
    let failed_insert = |e: rusqlite::Error| (e.to_string(), HEADER_HINT);
    let text = read_text(file)?;
    if text.contains('\0') {
        return Err(("it is not a text file: it contains NUL bytes".to_owned(), HEADER_HINT));
    }
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let delimiter = detect_delimiter(text);
    if let Some(line) = hqdl_values::csv::find_unclosed_field(text.as_bytes(), delimiter) {
        let message = format!("line {line}: {}", hqdl_values::csv::UNCLOSED_FIELD_MESSAGE);
        return Err((message, "correct the line, then run this again"));
    }
    let reader = || csv::ReaderBuilder::new().delimiter(delimiter).from_reader(text.as_bytes());
    let invalid_record = |e: csv::Error| {
        let has_too_few_fields = matches!(
            e.kind(),
            csv::ErrorKind::UnequalLengths { expected_len, len, .. } if len < expected_len
        );
        let hint = if has_too_few_fields {
            "correct the line: write one field for each column; it can be empty"
        } else {
            "correct the line: a field with a separator needs quotes around it"
        };
        (describe_error(&e, text), hint)
    };
    let header = reader().headers().map_err(invalid_record)?.clone();
    if header.is_empty() {
        return Err(("it has no header line with column names".to_owned(), HEADER_HINT));
    }
    if header.len() > MAX_COLUMNS {
        let message =
            format!("it has {} columns; a SQLite table has at most {MAX_COLUMNS}", header.len());
        return Err((message, "split the file, or remove columns"));
    }
    let names = make_names_unique(&header);
    let mut kinds = vec![FieldKind::Unknown; names.len()];
    for record in reader().records() {
        let record = record.map_err(invalid_record)?;
        kinds.iter_mut().zip(&record).for_each(|(kind, field)| kind.add_field(field));
    }
    let table = derive_table_name(file);
    let columns: Vec<String> = names
        .iter()
        .zip(&kinds)
        .map(|(n, k)| format!("{} {}", sql::quote_name(n), k.sql_type()))
        .collect();
    let create = format!("CREATE TABLE {} ({})", sql::quote_name(&table), columns.join(", "));
    if db.table_exists(None, table.as_str()).map_err(failed_insert)? {
        let message = format!("another file has already become the table `{table}`");
        return Err((message, "rename one of the two files"));
    }
    db.execute_batch(&create).map_err(failed_insert)?;
    let placeholders = vec!["?"; names.len()].join(", ");
    let insert = format!("INSERT INTO {} VALUES ({placeholders})", sql::quote_name(&table));
    let mut insert = db.prepare(&insert).map_err(failed_insert)?;
    for record in reader().records() {
        let record = record.map_err(invalid_record)?;
        let values = kinds.iter().zip(&record).map(|(kind, field)| kind.parse_value(field));
        insert.execute(rusqlite::params_from_iter(values)).map_err(failed_insert)?;
    }
    let renamed = header.iter().zip(&names).filter(|(field, name)| field.trim() != **name);
    let notes = renamed.map(|(field, name)| match field.trim() {
        "" => format!("{}: a column without a name is imported as `{name}`", file.display()),
        field => format!("{}: a second column `{field}` is imported as `{name}`", file.display()),
    });
    Ok(notes.collect())
}

/// Reads a UTF-8 file, or a UTF-16 file with a byte order mark, such as Excel's "Unicode Text".
fn read_text(file: &Path) -> Result<String, CsvProblem> {
    let bytes = std::fs::read(file)
        .map_err(|e| (describe_io_error(&e), "check the file and its permissions"))?;
    let from_bytes: fn([u8; 2]) -> u16 = match bytes.as_slice() {
        [0xff, 0xfe, ..] => u16::from_le_bytes,
        [0xfe, 0xff, ..] => u16::from_be_bytes,
        _ => {
            let message = || describe_io_error(&ErrorKind::InvalidData.into());
            return String::from_utf8(bytes).map_err(|_| (message(), ENCODING_HINT));
        }
    };
    let (pairs, rest) = bytes.as_chunks::<2>();
    let units = pairs.iter().map(|pair| from_bytes(*pair));
    let text: Option<String> = char::decode_utf16(units).collect::<Result<_, _>>().ok();
    text.filter(|_| rest.is_empty())
        .ok_or_else(|| ("it is not complete UTF-16 text".to_owned(), UTF_16_HINT))
}

/// Returns the line number and the reason of an error in a text.
fn describe_error(error: &csv::Error, text: &str) -> String {
    let reason = hqdl_values::csv::describe_csv_error(error);
    match error.position() {
        Some(position) => {
            let line = hqdl_values::csv::LineFinder::new(text.as_bytes()).find_line(position);
            format!("line {line}: {reason}")
        }
        None => reason,
    }
}

/// Returns the field delimiter: the candidate that appears most often in the first line.
fn detect_delimiter(text: &str) -> u8 {
    let line = text.lines().next().unwrap_or_default();
    let count = |c: char| line.matches(c).count();
    let best = [',', ';', '\t', '|'].into_iter().rev().max_by_key(|c| count(*c));
    best.map_or(b',', |c| c as u8)
}

/// Returns unique column names.
fn make_names_unique(header: &csv::StringRecord) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    // SQLite ignores the case of ASCII letters in names.
    let mut used: HashSet<String> = HashSet::new();
    let mut last_suffixes: HashMap<String, usize> = HashMap::new();
    for (n, field) in header.iter().enumerate() {
        let field = field.trim();
        let preferred =
            if field.is_empty() { format!("column_{}", n + 1) } else { field.to_owned() };
        let mut name = preferred.clone();
        // All smaller suffixes of this name are in use.
        let suffix = last_suffixes.entry(preferred.to_ascii_lowercase()).or_insert(1);
        while !used.insert(name.to_ascii_lowercase()) {
            *suffix += 1;
            name = format!("{preferred}_{suffix}");
        }
        names.push(name);
    }
    names
}

/// Returns the table name for a file: the words of the file name.
fn derive_table_name(file: &Path) -> String {
    let stem = file.file_stem().unwrap_or_default().to_string_lossy();
    let words = classify::split_words(&stem).join("_");
    let starts_with_digit = words.starts_with(|c: char| c.is_numeric());
    match words.as_str() {
        "" => "rows".to_owned(),
        words if starts_with_digit || words.starts_with("sqlite") || words.starts_with("hqdl") => {
            format!("t_{words}")
        }
        words => words.to_owned(),
    }
}

/// Type of a column's fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FieldKind {
    Unknown,
    Integer,
    Real,
    Text,
}

impl FieldKind {
    fn add_field(&mut self, field: &str) {
        let field = field.trim();
        if field.is_empty() {
            return;
        }
        // Texts such as 007 and +49 are identifiers, not numbers.
        let is_integer = field.parse::<i64>().is_ok_and(|n| n.to_string() == field);
        let has_number_chars = field.chars().all(|c| c.is_ascii_digit() || "+-.eE".contains(c));
        let integer_part = field.trim_start_matches('-').split('.').next().unwrap_or_default();
        let has_leading_zero = integer_part.len() > 1 && integer_part.starts_with('0');
        let is_real = has_number_chars
            && !has_leading_zero
            && !field.starts_with('+')
            && field.parse::<f64>().is_ok();
        *self = match *self {
            Self::Unknown | Self::Integer if is_integer => Self::Integer,
            Self::Unknown | Self::Integer | Self::Real if is_real => Self::Real,
            _ => Self::Text,
        };
    }

    fn sql_type(self) -> &'static str {
        match self {
            Self::Integer => "INTEGER",
            Self::Real => "REAL",
            Self::Unknown | Self::Text => "TEXT",
        }
    }

    fn parse_value(self, field: &str) -> Value {
        let trimmed = field.trim();
        let parse_number = || match self {
            Self::Integer => trimmed.parse().ok().map(Value::Integer),
            Self::Real => trimmed.parse().ok().map(Value::Real),
            _ => None,
        };
        match trimmed {
            "" => Value::Null,
            _ => parse_number().unwrap_or_else(|| Value::Text(field.to_owned())),
        }
    }
}
