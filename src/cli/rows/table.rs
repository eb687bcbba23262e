//! Rows as aligned columns. The first rows are held back to learn how wide
//! columns are; from then on each goes out at once, and one that is wider
//! pushes the rest of its line aside. Nothing is cut, nothing wraps; what would
//! leave the line or steer the terminal is written as an escape.

use std::io::{Result, Write};

use rusqlite::types::ValueRef;
use unicode_width::UnicodeWidthStr;

use crate::cli::rows::{Out, RowsOut};
use crate::query::Sink;
use crate::query::json::text;

/// Rows held back, at most,
const ROWS: usize = 1000;
/// and bytes in them.
const BYTES: usize = 1 << 22;
/// A column is not made wider than this for the sake of one long value.
const WIDEST: usize = 80;

/// Rows as aligned columns.
pub struct TextTable {
    out: Out,
    names: Vec<String>,
    waiting: Vec<Vec<TextCell>>,
    bytes: usize,
    /// How the columns stand, once it is known.
    columns: Option<Vec<TextColumn>>,
}

#[derive(Clone, Copy)]
struct TextColumn {
    width: usize,
    /// Whether it holds numbers: its name and its NULLs stand right, too.
    numbers: bool,
}

struct TextCell {
    text: String,
    number: bool,
    null: bool,
}

impl TextCell {
    fn new(value: ValueRef<'_>) -> Self {
        Self {
            text: match value {
                ValueRef::Text(_) => escaped(&text(value)),
                _ => text(value),
            },
            number: matches!(value, ValueRef::Integer(_) | ValueRef::Real(_)),
            null: matches!(value, ValueRef::Null),
        }
    }

    /// The name of a column, which stands as its NULLs do.
    fn name(name: &str) -> Self {
        Self { text: name.to_owned(), number: false, null: true }
    }
}

impl TextTable {
    /// A table that goes to `out`.
    pub fn new(out: Out) -> Self {
        Self { out, names: Vec::new(), waiting: Vec::new(), bytes: 0, columns: None }
    }

    /// Learns how the columns stand, and writes all that waited.
    fn settle(&mut self) -> Result<()> {
        let waiting = std::mem::take(&mut self.waiting);
        let column = |(n, name): (usize, &String)| {
            let cells = || waiting.iter().map(|row| &row[n]);
            let width = cells().map(|c| c.text.width()).chain([name.width()]).max().unwrap_or(0);
            let numbers = cells().any(|c| c.number) && cells().all(|c| c.number || c.null);
            TextColumn { width: width.min(WIDEST), numbers }
        };
        let columns: Vec<TextColumn> = self.names.iter().enumerate().map(column).collect();
        let head: Vec<TextCell> = self.names.iter().map(|name| TextCell::name(name)).collect();
        line(&mut self.out, &columns, &head)?;
        let rules: Vec<String> = columns.iter().map(|c| "-".repeat(c.width)).collect();
        writeln!(self.out, "{}", rules.join("  "))?;
        for row in &waiting {
            line(&mut self.out, &columns, row)?;
        }
        self.columns = Some(columns);
        Ok(())
    }
}

/// Writes a line.
fn line(out: &mut Out, columns: &[TextColumn], cells: &[TextCell]) -> Result<()> {
    let mut blank = 0;
    for (n, (column, TextCell { text, number, null })) in columns.iter().zip(cells).enumerate() {
        if n > 0 {
            blank += 2;
        }
        let pad = column.width.saturating_sub(text.width());
        let right = *number || (*null && column.numbers);
        let (before, after) = if right { (pad, 0) } else { (0, pad) };
        // Blanks at the end of a line are never written.
        if text.is_empty() {
            blank += before;
        } else {
            write!(out, "{}{text}", " ".repeat(blank + before))?;
            blank = 0;
        }
        blank += after;
    }
    writeln!(out)
}

impl RowsOut for TextTable {}

impl Sink for TextTable {
    fn columns(&mut self, names: &[String]) -> Result<()> {
        self.names = names.iter().map(|n| escaped(n)).collect();
        Ok(())
    }

    fn row(&mut self, row: &[ValueRef<'_>]) -> Result<()> {
        let row: Vec<TextCell> = row.iter().map(|v| TextCell::new(*v)).collect();
        if let Some(columns) = &self.columns {
            return line(&mut self.out, columns, &row);
        }
        self.bytes += row.iter().map(|c| c.text.len()).sum::<usize>();
        self.waiting.push(row);
        if self.waiting.len() == ROWS || self.bytes > BYTES { self.settle() } else { Ok(()) }
    }

    fn finish(&mut self) -> Result<()> {
        if self.columns.is_none() {
            self.settle()?;
        }
        self.out.flush()
    }
}

/// A text on one line, without anything that steers a terminal or turns the
/// direction of what follows.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c.is_control()
                || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}') =>
            {
                out.extend(c.escape_unicode());
            }
            c => out.push(c),
        }
    }
    out
}
