//! Checks for CSV files that CSV readers do not perform, and error messages for CSV files.

use crate::format::{describe_io_error, format_count};

/// Returns the line (from 1) where an unclosed quoted field begins, or `None` if all fields are
/// closed. CSV readers accept such a file, although it was probably truncated.
///
/// As in RFC 4180, a quoted field begins with a quote, and two quotes inside the field stand for
/// one.
#[must_use]
pub fn find_unclosed_field(bytes: &[u8], delimiter: u8) -> Option<usize> {
    let (mut line, mut field_start, mut is_field_start) = (1, None, true);
    let mut rest = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes).iter().peekable();
    while let Some(&byte) = rest.next() {
        line += usize::from(byte == b'\n');
        match field_start {
            Some(_) if byte == b'"' => {
                if rest.next_if(|next| **next == b'"').is_none() {
                    field_start = None;
                }
            }
            Some(_) => {}
            None if byte == b'"' && is_field_start => field_start = Some(line),
            None => is_field_start = [delimiter, b'\n', b'\r'].contains(&byte),
        }
        if field_start.is_some() {
            is_field_start = false;
        }
    }
    field_start
}

/// Finds the line numbers of a CSV reader's positions. The reader's own line numbers are too small
/// in files with Windows line breaks or empty lines, because a position is at the end of the
/// previous line there.
#[derive(Debug)]
pub struct LineFinder<'b> {
    bytes: &'b [u8],
    /// Offset up to which line breaks were counted.
    at: usize,
    /// Line number at that offset, from 1.
    line: u64,
}

impl<'b> LineFinder<'b> {
    /// Creates a finder for the bytes that the reader reads.
    #[must_use]
    pub fn new(bytes: &'b [u8]) -> Self {
        Self { bytes, at: 0, line: 1 }
    }

    /// Returns the line of the first record at or after a position; positions must not decrease.
    pub fn find_line(&mut self, position: &csv::Position) -> u64 {
        let target = usize::try_from(position.byte()).unwrap_or(usize::MAX);
        while let Some(byte) = self.bytes.get(self.at) {
            if self.at >= target && !matches!(byte, b'\r' | b'\n') {
                break;
            }
            self.line += u64::from(*byte == b'\n');
            self.at += 1;
        }
        self.line
    }
}

/// Returns the reason why a line of a CSV file cannot be read, without the line number.
#[must_use]
pub fn describe_csv_error(error: &csv::Error) -> String {
    match error.kind() {
        csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
            format!(
                "the line has {}, but the header has {expected_len}",
                format_count(*len, "field")
            )
        }
        csv::ErrorKind::Utf8 { .. } => "the line is not UTF-8 text".to_owned(),
        csv::ErrorKind::Io(error) => describe_io_error(error),
        _ => error.to_string(),
    }
}

/// Error message for an unclosed field.
pub const UNCLOSED_FIELD_MESSAGE: &str = "a quoted field begins here and has no end: the file is incomplete, or a quote inside the field is not doubled";

#[cfg(test)]
mod tests {
    use super::{LineFinder, find_unclosed_field};

    #[test]
    fn records_have_the_line_of_their_first_character() {
        for (text, expected) in [
            ("a\nb\nc\n", [2, 3, 4]),
            ("a\r\nb\r\nc\r\n", [2, 3, 4]),
            ("a\n\n\nb\n\nc", [4, 6, 6]),
            ("a\r\n\r\nb\r\nc", [3, 4, 4]),
            ("a\n\"b\n\n\"\nc\n", [2, 5, 6]),
            ("\u{feff}a\r\n\"b\r\n\"\r\nc\r\n", [2, 4, 5]),
        ] {
            let mut reader = csv::Reader::from_reader(text.as_bytes());
            let mut lines = LineFinder::new(text.as_bytes());
            reader.headers().unwrap();
            let mut record = csv::StringRecord::new();
            let mut found = Vec::new();
            while reader.read_record(&mut record).unwrap() {
                found.push(lines.find_line(record.position().unwrap()));
            }
            found.push(lines.find_line(reader.position()));
            assert_eq!(found, expected, "{text:?}");
        }
    }

    #[test]
    fn only_an_unclosed_quoted_field_is_reported() {
        for complete in [
            "",
            "a,b\n",
            "\"a\"",
            "\"a\"\"b\",c\n\"\"\n",
            "5\" screen,x\n",
            "a \"b\n",
            "\"a\nb\",\"c\"",
        ] {
            assert_eq!(find_unclosed_field(complete.as_bytes(), b','), None, "{complete}");
        }
        for (truncated, line) in
            [("\"a", 1), ("a,b\nc,\"d", 2), ("\"a\"\"", 1), ("\"a\",\"b\nc\n", 1), ("a\t\"", 1)]
        {
            let delimiter = if truncated.contains('\t') { b'\t' } else { b',' };
            assert_eq!(
                find_unclosed_field(truncated.as_bytes(), delimiter),
                Some(line),
                "{truncated}"
            );
        }
    }
}
