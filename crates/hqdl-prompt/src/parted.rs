//! Answers whose fields are parted by `;` or tabs. That is known only where the answer
//! begins with the header of what was asked for, parted so: the names are known, and no
//! value is among them. Without one, a `;` may be anybody's.

use super::csv::line;
use super::record::parted;

/// The answer with commas between its fields; `None` where no header proves that they are
/// parted otherwise.
pub fn as_csv(body: &str, key: &[String], columns: &[String]) -> Option<String> {
    let mut lines = body.lines().skip_while(|line| line.trim().is_empty());
    let header = lines.next()?;
    let by = [';', '\t'].into_iter().find(|by| is_header(header, *by, key, columns))?;
    let mut rows = String::new();
    for row in lines {
        // A line whose quotes are broken names no row.
        if let Some(fields) = parted(row, by) {
            rows.push_str(&line(fields.iter().map(|f| f.text.trim())));
            rows.push('\n');
        }
    }
    Some(rows)
}

/// Whether a line is the header of an answer: number, key and columns, or without the
/// number, or the key.
fn is_header(header: &str, by: char, key: &[String], columns: &[String]) -> bool {
    let fields: Vec<String> =
        header.split(by).map(|f| f.trim().trim_matches(['"', '\'']).to_lowercase()).collect();
    let is = |names: &[&[String]]| {
        let names: Vec<String> = names.concat().iter().map(|n| n.to_lowercase()).collect();
        names.len() > 1 && names == fields
    };
    let row = ["row".to_owned()];
    is(&[&row, key, columns]) || is(&[key, columns]) || is(&[&row, columns])
}
