//! A page of a query's rows, small enough for an assistant.

use std::io;

use rusqlite::types::ValueRef;
use serde_json::Value as Json;

use crate::query::RowSink;
use crate::query::result::json::write_json;

/// Maximum number of rows of a page.
pub const MAX_ROWS: usize = 1000;
/// Default number of rows of a page.
pub const DEFAULT_ROWS: usize = 100;
/// Size in bytes at which a page is full.
const MAX_BYTES: usize = 200_000;
/// Maximum size of a text or a blob in bytes; longer ones are truncated.
const MAX_CELL_BYTES: usize = 10_000;

/// Keeps the rows of one page, and skips the rows of earlier pages.
#[derive(Debug, Default)]
pub struct RowPage {
    /// Names of the columns.
    pub columns: Vec<String>,
    pub rows: Vec<Vec<Json>>,
    /// Whether more rows follow the page.
    pub has_more: bool,
    /// Number of truncated cells.
    pub truncated_cells: u64,
    /// Rows before the page.
    offset: u64,
    /// Maximum number of rows.
    limit: usize,
    /// Whether the query ends when the page is full.
    stops: bool,
    seen: u64,
    bytes: usize,
}

impl RowPage {
    /// Returns an empty page that begins after `offset` rows. With `stops`, a full page ends the
    /// query with an I/O error.
    pub fn new(offset: u64, limit: usize, stops: bool) -> Self {
        Self { offset, limit: limit.clamp(1, MAX_ROWS), stops, ..Self::default() }
    }

    /// Returns the number of rows up to the end of the page.
    pub fn end(&self) -> u64 {
        self.offset + self.rows.len() as u64
    }

    fn read_cell(&mut self, value: ValueRef<'_>) -> io::Result<Json> {
        let (ValueRef::Text(bytes) | ValueRef::Blob(bytes)) = value else {
            return to_json(value);
        };
        // Even a row with many long cells must not exceed the page's size limit.
        let left = MAX_BYTES.saturating_sub(self.bytes).min(MAX_CELL_BYTES);
        let shown = &bytes[..bytes.len().min(left)];
        let is_truncated = shown.len() < bytes.len();
        self.truncated_cells += u64::from(is_truncated);
        self.bytes += shown.len();
        if matches!(value, ValueRef::Blob(_)) {
            return to_json(ValueRef::Blob(shown));
        }
        let mut text = String::from_utf8_lossy(shown).into_owned();
        if is_truncated {
            // The limit may split a character.
            text.truncate(text.trim_end_matches('\u{fffd}').len());
            text.push('…');
        }
        Ok(text.into())
    }
}

fn to_json(value: ValueRef<'_>) -> io::Result<Json> {
    let mut json = Vec::new();
    write_json(&mut json, value)?;
    Ok(serde_json::from_slice(&json)?)
}

impl RowSink for RowPage {
    fn write_columns(&mut self, names: &[String]) -> io::Result<()> {
        self.columns = names.to_vec();
        Ok(())
    }

    fn write_row(&mut self, row: &[ValueRef<'_>]) -> io::Result<()> {
        self.seen += 1;
        if self.seen <= self.offset {
            return Ok(());
        }
        let is_full = self.rows.len() == self.limit || self.bytes >= MAX_BYTES;
        if self.has_more || is_full {
            self.has_more = true;
            return if self.stops { Err(io::Error::other("the page is full")) } else { Ok(()) };
        }
        let cells = row.iter().map(|value| self.read_cell(*value));
        let cells = cells.collect::<io::Result<Vec<Json>>>()?;
        self.bytes += 8 * cells.len();
        self.rows.push(cells);
        Ok(())
    }

    fn finish(&mut self) -> io::Result<()> {
        Ok(())
    }
}
