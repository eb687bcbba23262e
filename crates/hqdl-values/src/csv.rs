//! Checks of CSV files that CSV readers do not make.

/// Returns the line (from 1) where an unclosed quoted field begins, or `None` if all fields are
/// closed. CSV readers accept such a file, although it was probably truncated.
///
/// As in RFC 4180, a quoted field begins with a quote, and two quotes inside it mean one.
#[must_use]
pub fn unended_field(bytes: &[u8], delimiter: u8) -> Option<usize> {
    let (mut line, mut began, mut at_start) = (1, None, true);
    let mut rest = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes).iter().peekable();
    while let Some(&byte) = rest.next() {
        line += usize::from(byte == b'\n');
        match began {
            Some(_) if byte == b'"' => {
                if rest.next_if(|next| **next == b'"').is_none() {
                    began = None;
                }
            }
            Some(_) => {}
            None if byte == b'"' && at_start => began = Some(line),
            None => at_start = [delimiter, b'\n', b'\r'].contains(&byte),
        }
        if began.is_some() {
            at_start = false;
        }
    }
    began
}

/// Error message for an unclosed field.
pub const UNENDED: &str = "a quoted field begins here and has no end: the file is incomplete, or a quote inside the field is not doubled";

#[cfg(test)]
mod tests {
    use super::unended_field;

    #[test]
    fn only_a_quoted_field_without_end_is_told() {
        for whole in [
            "",
            "a,b\n",
            "\"a\"",
            "\"a\"\"b\",c\n\"\"\n",
            "5\" screen,x\n",
            "a \"b\n",
            "\"a\nb\",\"c\"",
        ] {
            assert_eq!(unended_field(whole.as_bytes(), b','), None, "{whole}");
        }
        for (cut, line) in
            [("\"a", 1), ("a,b\nc,\"d", 2), ("\"a\"\"", 1), ("\"a\",\"b\nc\n", 1), ("a\t\"", 1)]
        {
            let delimiter = if cut.contains('\t') { b'\t' } else { b',' };
            assert_eq!(unended_field(cut.as_bytes(), delimiter), Some(line), "{cut}");
        }
    }
}
