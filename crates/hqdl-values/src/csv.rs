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
    use super::find_unclosed_field;

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
