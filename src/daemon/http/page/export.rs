//! Writes the rows of a view or a result as CSV, JSON or Parquet, for downloads.

use std::io::Write;

use axum::http::{StatusCode, header};
use rusqlite::params_from_iter;
#[cfg(feature = "parquet")]
use rusqlite::types::Value as SqlValue;
use rusqlite::types::ValueRef;
use serde_json::{Map, Value as Json};

use super::super::reply::HttpError;
#[cfg(feature = "parquet")]
use super::super::rows::estimate_value_length;
use super::format_value;
use super::row_source::{RowSource, ViewColumn};
use super::view::BoundSql;
use crate::database::Database;
use crate::failure::Failure;
use crate::query::RowSink;
use crate::query::result::json;

/// Format of a download.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ExportFormat {
    Csv,
    Json,
    Parquet,
}

impl ExportFormat {
    const ALL: [Self; 3] = [Self::Csv, Self::Json, Self::Parquet];

    /// Returns the formats that this build can write.
    pub(super) fn list_available() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|format| format.is_available())
    }

    fn is_available(self) -> bool {
        self != Self::Parquet || cfg!(feature = "parquet")
    }

    pub(super) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.name() == name)
    }

    /// Returns an error if this build cannot write the format.
    pub(super) fn check_available(self) -> Result<(), HttpError> {
        if self.is_available() {
            return Ok(());
        }
        let hint =
            "use a released program or the Python module, or build hqdl with `--features parquet`";
        let message = "this build of hqdl cannot write Parquet files".to_owned();
        Err(HttpError::new(StatusCode::NOT_IMPLEMENTED, message, hint))
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Csv => "csv",
            Self::Json => "json",
            Self::Parquet => "parquet",
        }
    }

    /// Returns the text of the link to the download.
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Csv => "CSV",
            Self::Json => "JSON",
            Self::Parquet => "Parquet",
        }
    }

    /// Returns the response headers for a download with this file name.
    pub(super) fn headers(self, name: &str) -> [(header::HeaderName, String); 2] {
        let content_type = match self {
            Self::Csv => "text/csv; charset=utf-8",
            Self::Json => "application/json",
            Self::Parquet => "application/vnd.apache.parquet",
        };
        let is_plain = |c: &char| c.is_ascii_alphanumeric() || *c == '_';
        let file: String = name.chars().filter(is_plain).collect();
        let disposition = format!("attachment; filename=\"{file}.{}\"", self.name());
        [
            (header::CONTENT_TYPE, content_type.to_owned()),
            (header::CONTENT_DISPOSITION, disposition),
        ]
    }
}

/// Writes the rows of a view: as CSV with a header, as a JSON array of objects, or as a
/// Parquet file. A cell without a value is empty in CSV and null in the other formats. In CSV, `|`
/// separates the values of a list.
///
/// # Errors
/// Returns a [`Failure`] if the database or the writer fails.
pub(super) fn write_rows(
    database: &Database,
    sql: &BoundSql,
    (source, columns): (&RowSource, &[ViewColumn]),
    format: ExportFormat,
    out: &mut (dyn Write + Send),
) -> Result<(), Failure> {
    #[cfg(feature = "parquet")]
    if format == ExportFormat::Parquet {
        return super::parquet_export::write_table(database, sql, (source, columns), out);
    }
    let stored = |e: rusqlite::Error| Failure::from(database.to_store_error(&e));
    let unwritten =
        |e: std::io::Error| Failure::wrong_input(e.to_string(), "start the download again");
    let mut statement = database.connection().prepare(&sql.sql).map_err(stored)?;
    let mut rows = statement.query(params_from_iter(&sql.params)).map_err(stored)?;
    if format == ExportFormat::Csv {
        let names = columns.iter().map(|column| column.name.clone());
        write_line(out, names).map_err(unwritten)?;
    }
    let mut is_first = true;
    while let Some(row) = rows.next().map_err(stored)? {
        let values = read_json_values(row, source, columns).map_err(stored)?;
        let written = if format == ExportFormat::Csv {
            write_line(out, values.iter().map(format_csv))
        } else {
            let names = columns.iter().map(|column| column.name.clone());
            let object: Map<String, Json> = names.zip(values).collect();
            write!(out, "{}{}", if is_first { "[" } else { ",\n" }, Json::Object(object))
        };
        written.map_err(unwritten)?;
        is_first = false;
    }
    if format == ExportFormat::Csv {
        return Ok(());
    }
    out.write_all(if is_first { b"[]\n" } else { b"]\n" }).map_err(unwritten)
}

/// Returns the values of a row of a view as JSON.
fn read_json_values(
    row: &rusqlite::Row<'_>,
    source: &RowSource,
    columns: &[ViewColumn],
) -> rusqlite::Result<Vec<Json>> {
    if source.expansion().is_none() {
        let all: Vec<&ViewColumn> = columns.iter().collect();
        let cells = source.read_cells(row, &all)?.into_iter();
        return Ok(cells.map(|cell| cell.map_or(Json::Null, |c| c.value.to_json())).collect());
    }
    let parse = |text: &str| serde_json::from_str::<Json>(text).unwrap_or_default();
    let (key, cells) = (parse(row.get_ref(0)?.as_str()?), parse(row.get_ref(1)?.as_str()?));
    let value = |column: &ViewColumn| match column.key_part() {
        Some(n) => key[n].clone(),
        None => cells[column.name.as_str()][1].clone(),
    };
    Ok(columns.iter().map(value).collect())
}

/// Collects a query's rows in memory, for a download.
pub(super) struct ExportSink {
    format: ExportFormat,
    names: Vec<String>,
    pub(super) body: Vec<u8>,
    max_bytes: u64,
    rows: u64,
    /// Rows of a Parquet file, with their approximate size in bytes.
    #[cfg(feature = "parquet")]
    values: (Vec<Vec<SqlValue>>, u64),
}

impl ExportSink {
    pub(super) fn new(format: ExportFormat, max_bytes: u64) -> Self {
        Self {
            format,
            names: Vec::new(),
            body: Vec::new(),
            max_bytes,
            rows: 0,
            #[cfg(feature = "parquet")]
            values: Default::default(),
        }
    }

    /// Returns the size of the rows so far, in bytes.
    fn size(&self) -> u64 {
        #[cfg(feature = "parquet")]
        if self.format == ExportFormat::Parquet {
            return self.values.1;
        }
        self.body.len() as u64
    }
}

impl RowSink for ExportSink {
    fn write_columns(&mut self, names: &[String]) -> std::io::Result<()> {
        self.names = names.to_vec();
        match self.format {
            ExportFormat::Csv => write_line(&mut self.body, names.iter().cloned()),
            ExportFormat::Json | ExportFormat::Parquet => Ok(()),
        }
    }

    fn write_row(&mut self, row: &[ValueRef<'_>]) -> std::io::Result<()> {
        if self.size() > self.max_bytes {
            let why = format!("the result has more than {} bytes", self.max_bytes);
            return Err(std::io::Error::new(std::io::ErrorKind::FileTooLarge, why));
        }
        self.rows += 1;
        #[cfg(feature = "parquet")]
        if self.format == ExportFormat::Parquet {
            self.values.1 += row.iter().map(|value| estimate_value_length(value) + 32).sum::<u64>();
            let copied = row.iter().map(|value| SqlValue::try_from(*value));
            self.values.0.push(copied.collect::<Result<_, _>>().map_err(std::io::Error::other)?);
            return Ok(());
        }
        if self.format == ExportFormat::Csv {
            let text = |value: &ValueRef<'_>| match value {
                ValueRef::Null => String::new(),
                value => json::format_text(*value),
            };
            return write_line(&mut self.body, row.iter().map(text));
        }
        self.body.extend_from_slice(if self.rows == 1 { b"[{" } else { b",\n{" });
        for (n, (name, value)) in self.names.iter().zip(row).enumerate() {
            let start = if n == 0 { "" } else { "," };
            write!(self.body, "{start}{}:", Json::from(name.as_str()))?;
            json::write_json(&mut self.body, *value)?;
        }
        self.body.push(b'}');
        Ok(())
    }

    fn finish(&mut self) -> std::io::Result<()> {
        #[cfg(feature = "parquet")]
        if self.format == ExportFormat::Parquet {
            self.body = super::parquet_export::write_result(&self.names, &self.values.0)?;
        }
        if self.format == ExportFormat::Json {
            self.body.extend_from_slice(if self.rows == 0 { b"[]\n" } else { b"]\n" });
        }
        Ok(())
    }
}

fn format_csv(value: &Json) -> String {
    match value {
        Json::Null => String::new(),
        Json::Array(items) => items.iter().map(format_value).collect::<Vec<_>>().join("|"),
        other => format_value(other),
    }
}

fn write_line(out: &mut dyn Write, values: impl Iterator<Item = String>) -> std::io::Result<()> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(values)?;
    let line = writer.into_inner().map_err(csv::IntoInnerError::into_error)?;
    out.write_all(&line)
}
