//! Output formats of query results. Each format writes a row as soon as it arrives, so a result may
//! be larger than memory.
//!
//! | format | NULL | blob | else |
//! |---|---|---|---|
//! | csv | nothing | `X'0A'` | RFC 4180 quoting, LF line endings |
//! | json | `null` | `{"blob": "0a"}` | `{"columns", "rows", "meta"}`, or `"error"` for `"meta"` |
//! | jsonl | `null` | `{"blob": "0a"}` | one object per row; a repeated name gets `_2` |
//! | markdown | `NULL` | `X'0A'` | newlines as `<br>` |
//! | table | `NULL`, dim on a terminal | `X'0A'` | see [`table`] |

pub(in crate::cli) mod table;

use std::collections::HashSet;
use std::io::{BufWriter, IsTerminal, LineWriter, Result, Write};

use anstream::ColorChoice;
use clap::ValueEnum;
use rusqlite::types::ValueRef;
use serde_json::{Value as Json, json};

use crate::cli::rows::table::TextTable;
use crate::query::RowSink;
use crate::query::result::json::{format_text, write_json};

/// Output format of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RowsFormat {
    /// Aligned columns, for reading.
    Table,
    /// Comma-separated values with a header (RFC 4180).
    Csv,
    /// One object: columns, rows, meta.
    Json,
    /// One object per row.
    Jsonl,
    /// Markdown table.
    #[value(alias = "md")]
    Markdown,
}

/// A sink that also receives the end of the query.
pub trait RowsOut: RowSink {
    /// Ends the output after the last row or a failure. The argument is the query's metadata or the
    /// failure. Returns true if the format includes the argument in the output.
    fn close_output(&mut self, _: std::result::Result<&Json, &Json>) -> Result<bool> {
        Ok(false)
    }
}

pub type Out = Box<dyn Write + Send>;

/// Returns a writer that writes rows to stdout.
pub fn new_stdout_writer(format: RowsFormat) -> Box<dyn RowsOut> {
    let stdout = std::io::stdout();
    // On a terminal, flush after each row; otherwise write in large blocks.
    let flush_rows = stdout.is_terminal();
    let out: Out = if flush_rows {
        Box::new(LineWriter::new(stdout))
    } else {
        Box::new(BufWriter::with_capacity(1 << 16, stdout))
    };
    if format == RowsFormat::Table {
        let has_colors = anstream::AutoStream::choice(&std::io::stdout()) != ColorChoice::Never;
        return Box::new(TextTable::new(out, flush_rows && has_colors));
    }
    new_row_writer(format, out, flush_rows)
}

/// Returns a writer that writes rows to `out`. With `flush_rows`, it flushes after each row.
pub fn new_row_writer(format: RowsFormat, out: Out, flush_rows: bool) -> Box<dyn RowsOut> {
    match format {
        RowsFormat::Table => Box::new(TextTable::new(out, false)),
        RowsFormat::Csv => Box::new(Csv { out: csv::Writer::from_writer(out), flush_rows }),
        RowsFormat::Json => Box::new(JsonObject { out, rows: None }),
        RowsFormat::Jsonl => Box::new(JsonLines { out, names: Vec::new() }),
        RowsFormat::Markdown => Box::new(Markdown { out }),
    }
}

struct Csv {
    out: csv::Writer<Out>,
    flush_rows: bool,
}

impl Csv {
    fn write_field(&mut self, field: impl AsRef<[u8]>) -> Result<()> {
        self.out.write_field(field).map_err(to_io_error)
    }

    /// Ends a record. Flushes explicitly on a terminal, because the csv writer has its own buffer.
    fn end_record(&mut self) -> Result<()> {
        self.out.write_record(None::<&[u8]>).map_err(to_io_error)?;
        if self.flush_rows { self.out.flush() } else { Ok(()) }
    }
}

/// Returns the I/O error inside a csv error, so that callers can recognize a closed pipe.
fn to_io_error(error: csv::Error) -> std::io::Error {
    match error.into_kind() {
        csv::ErrorKind::Io(error) => error,
        other => std::io::Error::other(format!("{other:?}")),
    }
}

impl RowsOut for Csv {}

impl RowSink for Csv {
    fn write_columns(&mut self, names: &[String]) -> Result<()> {
        names.iter().try_for_each(|n| self.write_field(n))?;
        self.end_record()
    }

    fn write_row(&mut self, row: &[ValueRef<'_>]) -> Result<()> {
        for value in row {
            match value {
                ValueRef::Null => self.write_field("")?,
                // Write the bytes unchanged, even if they are not UTF-8.
                ValueRef::Text(bytes) => self.write_field(bytes)?,
                other => self.write_field(format_text(*other))?,
            }
        }
        self.end_record()
    }

    fn finish(&mut self) -> Result<()> {
        self.out.flush()
    }
}

/// `{"columns": […], "rows": [[…], …], "meta": {…}}`, on one line.
struct JsonObject {
    out: Out,
    /// Number of rows written; `None` before the columns.
    rows: Option<u64>,
}

impl RowsOut for JsonObject {
    fn close_output(&mut self, end: std::result::Result<&Json, &Json>) -> Result<bool> {
        if self.rows.is_none() {
            return Ok(false);
        }
        match end {
            Ok(meta) => writeln!(self.out, "],\"meta\":{meta}}}")?,
            // Close the open object, so that the output is valid JSON.
            Err(error) => writeln!(self.out, "],\"error\":{error}}}")?,
        }
        self.out.flush()?;
        Ok(true)
    }
}

impl RowSink for JsonObject {
    fn write_columns(&mut self, names: &[String]) -> Result<()> {
        self.rows = Some(0);
        write!(self.out, "{{\"columns\":{},\"rows\":[", json!(names))
    }

    fn write_row(&mut self, row: &[ValueRef<'_>]) -> Result<()> {
        let first = self.rows == Some(0);
        self.rows = self.rows.map(|n| n + 1);
        for (n, value) in row.iter().enumerate() {
            self.out.write_all(match (n, first) {
                (0, true) => b"[",
                (0, false) => b",[",
                _ => b",",
            })?;
            write_json(&mut self.out, *value)?;
        }
        self.out.write_all(b"]")
    }

    fn finish(&mut self) -> Result<()> {
        Ok(())
    }
}

struct JsonLines {
    out: Out,
    /// Distinct column names, encoded as JSON.
    names: Vec<String>,
}

impl RowsOut for JsonLines {}

impl RowSink for JsonLines {
    fn write_columns(&mut self, names: &[String]) -> Result<()> {
        self.names = make_names_distinct(names).iter().map(|n| json!(n).to_string()).collect();
        Ok(())
    }

    fn write_row(&mut self, row: &[ValueRef<'_>]) -> Result<()> {
        for (n, (name, value)) in self.names.iter().zip(row).enumerate() {
            write!(self.out, "{}{name}:", if n == 0 { '{' } else { ',' })?;
            write_json(&mut self.out, *value)?;
        }
        self.out.write_all(b"}\n")
    }

    fn finish(&mut self) -> Result<()> {
        self.out.flush()
    }
}

/// Makes names distinct: the second `x` becomes `x_2`, or the next free number.
fn make_names_distinct(names: &[String]) -> Vec<String> {
    let mut used_names: HashSet<String> = HashSet::new();
    let name = |name: &String| {
        let mut unique = name.clone();
        let mut n = 2;
        while used_names.contains(&unique) || (n > 2 && names.contains(&unique)) {
            unique = format!("{name}_{n}");
            n += 1;
        }
        used_names.insert(unique.clone());
        unique
    };
    names.iter().map(name).collect()
}

struct Markdown {
    out: Out,
}

impl Markdown {
    fn write_line(&mut self, cells: impl Iterator<Item = String>) -> Result<()> {
        self.out.write_all(b"|")?;
        for cell in cells {
            write!(self.out, " {cell} |")?;
        }
        self.out.write_all(b"\n")
    }
}

impl RowsOut for Markdown {}

impl RowSink for Markdown {
    fn write_columns(&mut self, names: &[String]) -> Result<()> {
        self.write_line(names.iter().map(|n| escape_markdown(n)))?;
        self.write_line(names.iter().map(|_| "---".to_owned()))
    }

    fn write_row(&mut self, row: &[ValueRef<'_>]) -> Result<()> {
        self.write_line(row.iter().map(|v| escape_markdown(&format_text(*v))))
    }

    fn finish(&mut self) -> Result<()> {
        self.out.flush()
    }
}

/// Escapes a text for a Markdown table cell, on one line.
fn escape_markdown(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.replace("\r\n", "\n").chars() {
        match c {
            '\n' | '\r' => out.push_str("<br>"),
            '|' | '\\' | '`' | '*' | '<' => out.extend(['\\', c]),
            c => out.push(c),
        }
    }
    out
}
