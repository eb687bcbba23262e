//! Rows as aligned columns. The first rows are held back to learn how wide
//! columns are; from then on each goes out at once, and one that is wider
//! pushes the rest of its line aside. Nothing is cut, nothing wraps; what would
//! leave the line or steer the terminal is written as an escape.

use std::io::{Result, Write};

use rusqlite::types::ValueRef;
use unicode_width::UnicodeWidthStr;

use super::rows::{Out, Rows, text};
use crate::query::Sink;

/// Rows held back, at most,
const ROWS: usize = 1000;
/// and bytes in them.
const BYTES: usize = 1 << 22;
/// A column is not made wider than this for the sake of one long value.
const WIDEST: usize = 80;

/// Rows as aligned columns.
pub struct Table {
    out: Out,
    names: Vec<String>,
    waiting: Vec<Vec<Cell>>,
    bytes: usize,
    /// The columns' widths, once they are known.
    widths: Option<Vec<usize>>,
}

struct Cell {
    text: String,
    number: bool,
    null: bool,
}

impl Table {
    /// A table that goes to `out`.
    pub fn new(out: Out) -> Self {
        Self { out, names: Vec::new(), waiting: Vec::new(), bytes: 0, widths: None }
    }

    /// Learns the widths, and writes all that waited.
    fn settle(&mut self) -> Result<()> {
        let waiting = std::mem::take(&mut self.waiting);
        let columns = 0..self.names.len();
        let widths: Vec<usize> = columns
            .clone()
            .map(|n| {
                let cells = waiting.iter().map(|row| row[n].text.width());
                cells.chain([self.names[n].width()]).max().unwrap_or(0).min(WIDEST)
            })
            .collect();
        // A name stands over its numbers.
        let right: Vec<bool> = columns
            .map(|n| {
                waiting.iter().any(|row| row[n].number)
                    && waiting.iter().all(|row| row[n].number || row[n].null)
            })
            .collect();
        let head = self.names.iter().zip(&right);
        let head: Vec<(&str, bool)> = head.map(|(n, r)| (n.as_str(), *r)).collect();
        line(&mut self.out, &widths, &head)?;
        let rules: Vec<String> = widths.iter().map(|w| "-".repeat(*w)).collect();
        writeln!(self.out, "{}", rules.join("  "))?;
        for row in &waiting {
            line(&mut self.out, &widths, &cells(row))?;
        }
        self.widths = Some(widths);
        Ok(())
    }
}

fn cells(row: &[Cell]) -> Vec<(&str, bool)> {
    row.iter().map(|c| (c.text.as_str(), c.number)).collect()
}

/// Writes a line; what is to be right of its column comes with `true`.
fn line(out: &mut Out, widths: &[usize], cells: &[(&str, bool)]) -> Result<()> {
    let mut blank = 0;
    for (n, (text, right)) in cells.iter().enumerate() {
        if n > 0 {
            blank += 2;
        }
        let pad = widths[n].saturating_sub(text.width());
        let (before, after) = if *right { (pad, 0) } else { (0, pad) };
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

impl Rows for Table {}

impl Sink for Table {
    fn columns(&mut self, names: &[String]) -> Result<()> {
        self.names = names.iter().map(|n| escaped(n)).collect();
        Ok(())
    }

    fn row(&mut self, row: &[ValueRef<'_>]) -> Result<()> {
        let cell = |value: &ValueRef<'_>| Cell {
            text: match value {
                ValueRef::Text(_) => escaped(&text(*value)),
                _ => text(*value),
            },
            number: matches!(value, ValueRef::Integer(_) | ValueRef::Real(_)),
            null: matches!(value, ValueRef::Null),
        };
        let row: Vec<Cell> = row.iter().map(cell).collect();
        if let Some(widths) = &self.widths {
            return line(&mut self.out, widths, &cells(&row));
        }
        self.bytes += row.iter().map(|c| c.text.len()).sum::<usize>();
        self.waiting.push(row);
        if self.waiting.len() == ROWS || self.bytes > BYTES { self.settle() } else { Ok(()) }
    }

    fn finish(&mut self) -> Result<()> {
        if self.widths.is_none() {
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
