//! Writes rows as aligned columns. It buffers the first rows to compute the column widths. After
//! that it writes each row immediately, and a wider value shifts the rest of its line. It never
//! truncates or wraps a value, and it escapes characters that would break the line or control the
//! terminal. On a terminal with colors, NULL is dim, unlike the text `NULL`.

use std::io::{Result, Write};

use rusqlite::types::ValueRef;
use unicode_width::UnicodeWidthStr;

use crate::cli::rows::{Out, RowsOut};
use crate::query::RowSink;
use crate::query::result::json::format_text;

/// Maximum number of buffered rows.
const MAX_BUFFERED_ROWS: usize = 1000;
/// Maximum number of buffered bytes.
const MAX_BUFFERED_BYTES: usize = 1 << 22;
/// Maximum width to which a column is padded; longer values extend beyond it.
const MAX_WIDTH: usize = 80;

/// Escape sequences that begin and end dim text.
const DIM: [&str; 2] = ["\u{1b}[2m", "\u{1b}[0m"];

/// Writes rows as aligned columns.
pub struct TextTable {
    out: Out,
    /// Whether NULLs are dim.
    dims_nulls: bool,
    names: Vec<String>,
    buffered_rows: Vec<Vec<TextCell>>,
    bytes: usize,
    /// Layout of the columns; `None` while rows are buffered.
    columns: Option<Vec<TextColumn>>,
}

#[derive(Clone, Copy)]
struct TextColumn {
    width: usize,
    /// Whether the column contains only numbers; if so, its name and NULLs are also right-aligned.
    is_numeric: bool,
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
                ValueRef::Text(_) => escape_text(&format_text(value)),
                _ => format_text(value),
            },
            number: matches!(value, ValueRef::Integer(_) | ValueRef::Real(_)),
            null: matches!(value, ValueRef::Null),
        }
    }

    /// Returns the header cell of a column. Headers are aligned like NULL.
    fn for_column_name(name: &str) -> Self {
        Self { text: name.to_owned(), number: false, null: true }
    }
}

impl TextTable {
    /// Returns a table that is written to `out`. `dims_nulls` must be false unless `out` is a
    /// terminal with colors.
    pub fn new(out: Out, dims_nulls: bool) -> Self {
        let (names, buffered_rows) = (Vec::new(), Vec::new());
        Self { out, dims_nulls, names, buffered_rows, bytes: 0, columns: None }
    }

    /// Computes the layout and writes all buffered rows.
    fn write_layout(&mut self) -> Result<()> {
        let buffered_rows = std::mem::take(&mut self.buffered_rows);
        let column = |(n, name): (usize, &String)| {
            let cells = || buffered_rows.iter().map(|row| &row[n]);
            let width = cells().map(|c| c.text.width()).chain([name.width()]).max().unwrap_or(0);
            let is_numeric = cells().any(|c| c.number) && cells().all(|c| c.number || c.null);
            TextColumn { width: width.min(MAX_WIDTH), is_numeric }
        };
        let columns: Vec<TextColumn> = self.names.iter().enumerate().map(column).collect();
        let head: Vec<TextCell> =
            self.names.iter().map(|name| TextCell::for_column_name(name)).collect();
        write_row(&mut self.out, &columns, &head, false)?;
        let rules: Vec<String> = columns.iter().map(|c| "-".repeat(c.width)).collect();
        writeln!(self.out, "{}", rules.join("  "))?;
        for row in &buffered_rows {
            write_row(&mut self.out, &columns, row, self.dims_nulls)?;
        }
        self.columns = Some(columns);
        Ok(())
    }
}

/// Writes one row, without trailing spaces.
fn write_row(
    out: &mut Out,
    columns: &[TextColumn],
    cells: &[TextCell],
    dims_nulls: bool,
) -> Result<()> {
    let mut blank = 0;
    for (n, (column, TextCell { text, number, null })) in columns.iter().zip(cells).enumerate() {
        if n > 0 {
            blank += 2;
        }
        let pad = column.width.saturating_sub(text.width());
        let right = *number || (*null && column.is_numeric);
        let (before, after) = if right { (pad, 0) } else { (0, pad) };
        // Write spaces only if text follows them.
        if text.is_empty() {
            blank += before;
        } else {
            let [begin, end] = if *null && dims_nulls { DIM } else { [""; 2] };
            write!(out, "{}{begin}{text}{end}", " ".repeat(blank + before))?;
            blank = 0;
        }
        blank += after;
    }
    writeln!(out)
}

impl RowsOut for TextTable {}

impl RowSink for TextTable {
    fn write_columns(&mut self, names: &[String]) -> Result<()> {
        self.names = names.iter().map(|n| escape_text(n)).collect();
        Ok(())
    }

    fn write_row(&mut self, row: &[ValueRef<'_>]) -> Result<()> {
        let row: Vec<TextCell> = row.iter().map(|v| TextCell::new(*v)).collect();
        if let Some(columns) = &self.columns {
            return write_row(&mut self.out, columns, &row, self.dims_nulls);
        }
        self.bytes += row.iter().map(|c| c.text.len()).sum::<usize>();
        self.buffered_rows.push(row);
        if self.buffered_rows.len() == MAX_BUFFERED_ROWS || self.bytes > MAX_BUFFERED_BYTES {
            self.write_layout()
        } else {
            Ok(())
        }
    }

    fn finish(&mut self) -> Result<()> {
        if self.columns.is_none() {
            self.write_layout()?;
        }
        self.out.flush()
    }
}

/// Escapes a text so that it fits on one line. Also escapes characters that control the terminal or
/// change the text direction.
fn escape_text(text: &str) -> String {
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

#[cfg(test)]
mod tests {
    use std::io::{Result, Write};
    use std::sync::{Arc, Mutex};

    use super::{RowSink, TextTable, ValueRef};

    #[derive(Clone, Default)]
    struct Buffer(Arc<Mutex<Vec<u8>>>);

    impl Write for Buffer {
        fn write(&mut self, bytes: &[u8]) -> Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> Result<()> {
            Ok(())
        }
    }

    fn write_table(dims_nulls: bool) -> String {
        let buffer = Buffer::default();
        let mut table = TextTable::new(Box::new(buffer.clone()), dims_nulls);
        table.write_columns(&["a".to_owned(), "NULL".to_owned()]).unwrap();
        table.write_row(&[ValueRef::Text(b"NULL"), ValueRef::Integer(1000)]).unwrap();
        table.write_row(&[ValueRef::Null, ValueRef::Null]).unwrap();
        table.finish().unwrap();
        let bytes = buffer.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    /// Colors do not change the layout, and only NULLs are colored.
    #[test]
    fn only_null_is_dim() {
        let plain = "a     NULL\n----  ----\nNULL  1000\nNULL  NULL\n";
        assert_eq!(write_table(false), plain);
        let dim = write_table(true);
        assert!(
            dim.ends_with("NULL  1000\n\u{1b}[2mNULL\u{1b}[0m  \u{1b}[2mNULL\u{1b}[0m\n"),
            "{dim:?}"
        );
        assert_eq!(dim.replace("\u{1b}[2m", "").replace("\u{1b}[0m", ""), plain);
    }
}
