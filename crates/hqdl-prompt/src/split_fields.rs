//! Parses answers with fields separated by `;` or tabs.
//!
//! hqdl recognizes the separator only if the answer begins with the requested header in that
//! syntax, because the header's names are known and contain no values. Without a matching header, a
//! `;` may be part of a value.

use super::csv::format_csv_line;
use super::record::split_fields;

/// Converts an answer to CSV; `None` if no header proves that it uses another separator.
pub fn convert_to_csv(body: &str, key: &[String], columns: &[String]) -> Option<String> {
    let mut lines = body.lines().skip_while(|line| line.trim().is_empty());
    let header = lines.next()?;
    let separator =
        [';', '\t'].into_iter().find(|separator| is_header(header, *separator, key, columns))?;
    let mut rows = String::new();
    for row in lines {
        // A line with malformed quotes identifies no row.
        if let Some(fields) = split_fields(row, separator) {
            rows.push_str(&format_csv_line(fields.iter().map(|f| f.text.trim())));
            rows.push('\n');
        }
    }
    Some(rows)
}

/// Returns true if a line is the header of an answer: number, key and columns, where either the
/// number or the key may be missing.
fn is_header(header: &str, separator: char, key: &[String], columns: &[String]) -> bool {
    let fields: Vec<String> = header
        .split(separator)
        .map(|f| f.trim().trim_matches(['"', '\'']).to_lowercase())
        .collect();
    let is_names = |names: &[&[String]]| {
        let names: Vec<String> = names.concat().iter().map(|n| n.to_lowercase()).collect();
        names.len() > 1 && names == fields
    };
    let row = ["row".to_owned()];
    is_names(&[&row, key, columns]) || is_names(&[key, columns]) || is_names(&[&row, columns])
}
