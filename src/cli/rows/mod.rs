//! Output formats of query results. Each writes a row as soon as it arrives, so a result may be
//! larger than memory.
//!
//! | format | NULL | blob | else |
//! |---|---|---|---|
//! | csv | nothing | `X'0A'` | RFC 4180's quotes, lines that end in LF |
//! | json | `null` | `{"blob": "0a"}` | `{"columns", "rows", "meta"}`, or `"error"` for `"meta"` |
//! | jsonl | `null` | `{"blob": "0a"}` | one object per row; a repeated name gets `_2` |
//! | markdown | `NULL` | `X'0A'` | newlines as `<br>` |
//! | table | `NULL` | `X'0A'` | see [`table`] |

pub(in crate::cli) mod table;

use std::collections::HashSet;
use std::io::{BufWriter, IsTerminal, LineWriter, Result, Write};

use clap::ValueEnum;
use rusqlite::types::ValueRef;
use serde_json::{Value as Json, json};

use crate::cli::rows::table::TextTable;
use crate::query::Sink;
use crate::query::json::{text, write as write_json};

/// The form of rows.
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

/// A sink that is also notified of the query's end.
pub trait RowsOut: Sink {
    /// Ends the output: all rows were written, or the query failed. The argument is the query's
    /// metadata or the failure. Returns true if the output contains it.
    fn close(&mut self, _: std::result::Result<&Json, &Json>) -> Result<bool> {
        Ok(false)
    }
}

pub type Out = Box<dyn Write + Send>;

/// Returns a writer of rows to stdout.
pub fn to_stdout(format: RowsFormat) -> Box<dyn RowsOut> {
    let stdout = std::io::stdout();
    // On a terminal, flush after each row; otherwise write in large blocks.
    let live = stdout.is_terminal();
    let out: Out = if live {
        Box::new(LineWriter::new(stdout))
    } else {
        Box::new(BufWriter::with_capacity(1 << 16, stdout))
    };
    to(format, out, live)
}

/// Returns a writer of rows to `out`, which can flush after each row.
pub fn to(format: RowsFormat, out: Out, live: bool) -> Box<dyn RowsOut> {
    match format {
        RowsFormat::Table => Box::new(TextTable::new(out)),
        RowsFormat::Csv => Box::new(Csv { out: csv::Writer::from_writer(out), live }),
        RowsFormat::Json => Box::new(JsonObject { out, rows: None }),
        RowsFormat::Jsonl => Box::new(JsonLines { out, names: Vec::new() }),
        RowsFormat::Markdown => Box::new(Markdown { out }),
    }
}

struct Csv {
    out: csv::Writer<Out>,
    live: bool,
}

impl Csv {
    fn field(&mut self, field: impl AsRef<[u8]>) -> Result<()> {
        self.out.write_field(field).map_err(plain)
    }

    /// Ends a record. Flushes explicitly on a terminal, because the csv writer has its own buffer.
    fn end(&mut self) -> Result<()> {
        self.out.write_record(None::<&[u8]>).map_err(plain)?;
        if self.live { self.out.flush() } else { Ok(()) }
    }
}

/// Returns the I/O error inside a csv error, so that callers can recognize a closed pipe.
fn plain(error: csv::Error) -> std::io::Error {
    match error.into_kind() {
        csv::ErrorKind::Io(error) => error,
        other => std::io::Error::other(format!("{other:?}")),
    }
}

impl RowsOut for Csv {}

impl Sink for Csv {
    fn columns(&mut self, names: &[String]) -> Result<()> {
        names.iter().try_for_each(|n| self.field(n))?;
        self.end()
    }

    fn row(&mut self, row: &[ValueRef<'_>]) -> Result<()> {
        for value in row {
            match value {
                ValueRef::Null => self.field("")?,
                // Write the bytes unchanged, even if they are not UTF-8.
                ValueRef::Text(bytes) => self.field(bytes)?,
                other => self.field(text(*other))?,
            }
        }
        self.end()
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
    fn close(&mut self, end: std::result::Result<&Json, &Json>) -> Result<bool> {
        if self.rows.is_none() {
            return Ok(false);
        }
        match end {
            Ok(meta) => writeln!(self.out, "],\"meta\":{meta}}}")?,
            // Close the object that was begun, so that it stays valid JSON.
            Err(error) => writeln!(self.out, "],\"error\":{error}}}")?,
        }
        self.out.flush()?;
        Ok(true)
    }
}

impl Sink for JsonObject {
    fn columns(&mut self, names: &[String]) -> Result<()> {
        self.rows = Some(0);
        write!(self.out, "{{\"columns\":{},\"rows\":[", json!(names))
    }

    fn row(&mut self, row: &[ValueRef<'_>]) -> Result<()> {
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

impl Sink for JsonLines {
    fn columns(&mut self, names: &[String]) -> Result<()> {
        self.names = distinct(names).iter().map(|n| json!(n).to_string()).collect();
        Ok(())
    }

    fn row(&mut self, row: &[ValueRef<'_>]) -> Result<()> {
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
fn distinct(names: &[String]) -> Vec<String> {
    let mut taken: HashSet<String> = HashSet::new();
    let name = |name: &String| {
        let mut own = name.clone();
        let mut n = 2;
        while taken.contains(&own) || (n > 2 && names.contains(&own)) {
            own = format!("{name}_{n}");
            n += 1;
        }
        taken.insert(own.clone());
        own
    };
    names.iter().map(name).collect()
}

struct Markdown {
    out: Out,
}

impl Markdown {
    fn line(&mut self, cells: impl Iterator<Item = String>) -> Result<()> {
        self.out.write_all(b"|")?;
        for cell in cells {
            write!(self.out, " {cell} |")?;
        }
        self.out.write_all(b"\n")
    }
}

impl RowsOut for Markdown {}

impl Sink for Markdown {
    fn columns(&mut self, names: &[String]) -> Result<()> {
        self.line(names.iter().map(|n| unmarked(n)))?;
        self.line(names.iter().map(|_| "---".to_owned()))
    }

    fn row(&mut self, row: &[ValueRef<'_>]) -> Result<()> {
        self.line(row.iter().map(|v| unmarked(&text(*v))))
    }

    fn finish(&mut self) -> Result<()> {
        self.out.flush()
    }
}

/// Escapes a text for Markdown, on one line.
fn unmarked(text: &str) -> String {
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
