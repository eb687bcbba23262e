//! Decides whether the values of a call *are* an expansion's key.
//!
//! A column answers a call only if an ad-hoc question would be about the same entity. It is not
//! enough for the values to determine the key: `name || '1'` and `upper(name)` determine `name`,
//! but are different subjects. So the values must be
//!
//! * parts of the key, each in its own argument, in the key's order: all of them, or some that
//!   determine the rest in the source's rows, or
//! * one concatenation of the key's columns, each once, with only separators (`, `, ` and `) and
//!   labels of the next column (`', Name: '`) between them. The concatenation contains all columns
//!   in the key's order, all columns with labels, or one labelled part. If only one part is a
//!   number, that part may be anywhere (`year || ' ' || name`).
//!
//! In all other cases the order matters: `home || ' - ' || away` is not the match `away || ' - ' ||
//! home`. Aliases, CTEs, subqueries, parentheses, unary `+` and COLLATE are not part of a lineage.

use std::sync::Arc;

use hqdl_sql::blendsql::lineage::Lineage;

/// Separators between the parts of a key.
const SEPARATORS: [char; 8] = [' ', ',', ';', ':', '-', '/', '\t', '\n'];

/// Way in which the values of a call match the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::query) enum KeyMatch {
    /// The arguments are parts of the key.
    Parts,
    /// The argument is a part of the key after its label.
    LabelledPart,
    /// The argument is a concatenation of the whole key.
    Concatenation,
}

/// A column of the key, or an expression that is a part of the key.
struct KeyColumn<'k> {
    /// Position of the column's part in the key.
    part: usize,
    lineage: &'k Lineage,
    /// Names by which a label may refer to the column.
    names: Vec<String>,
}

/// Returns how the values of a call match the key that consists of `parts`, or `None` if they do
/// not match. `names` returns the possible labels of a column, given the position of its part.
/// `is_number` returns true if a part is a number in every row of the source; all other parts are
/// texts in every row.
pub(in crate::query) fn match_key(
    values: &[&Lineage],
    parts: &[Arc<Lineage>],
    names: &dyn Fn(usize, &Lineage) -> Vec<String>,
    is_number: &mut dyn FnMut(usize) -> bool,
) -> Option<KeyMatch> {
    let mut rest = parts.iter();
    if values.iter().all(|value| rest.any(|part| part.is_same(value))) {
        return Some(KeyMatch::Parts);
    }
    let mut columns = Vec::new();
    for (n, part) in parts.iter().enumerate() {
        let column = |lineage| KeyColumn { part: n, lineage, names: names(n, lineage) };
        columns
            .extend(split_concatenation(part).into_iter().filter(|i| !is_literal(i)).map(column));
    }
    let mut found: Vec<usize> = Vec::new();
    // Number of labels that refer to exactly one column.
    let mut labels = 0;
    for value in values {
        // Text between the previous column and the next one.
        let mut text = String::new();
        let mut is_first = true;
        for item in split_concatenation(value) {
            if let Lineage::Literal(literal) = item {
                text.push_str(&parse_literal_text(literal)?);
                continue;
            }
            let free = |n: &usize| columns[*n].lineage.is_same(item) && !found.contains(n);
            let at = (0..columns.len()).find(free)?;
            match parse_trailing_label(&text, is_first)? {
                "" => {}
                label if columns[at].matches_label(label) => {
                    let called = columns.iter().filter(|column| column.matches_label(label));
                    labels += usize::from(called.count() == 1);
                }
                _ => return None,
            }
            found.push(at);
            text.clear();
            is_first = false;
        }
        if !text.is_empty() {
            return None;
        }
    }
    if found.len() == columns.len() {
        let is_in_order =
            |without: Option<usize>| found.iter().filter(|n| Some(**n) != without).is_sorted();
        let mut is_only_number = |n: &usize| is_in_order(Some(*n)) && is_number(columns[*n].part);
        if is_in_order(None) || labels == found.len() || found.iter().any(&mut is_only_number) {
            return Some(KeyMatch::Concatenation);
        }
    }
    let is_part = |item: &Lineage| parts.iter().any(|part| part.is_same(item));
    let is_labelled_part =
        matches!(found.as_slice(), [one] if labels == 1 && is_part(columns[*one].lineage));
    is_labelled_part.then_some(KeyMatch::LabelledPart)
}

/// Returns the operands of a concatenation, without casts to text. Returns any other expression as
/// the only item.
fn split_concatenation(lineage: &Lineage) -> Vec<&Lineage> {
    match lineage {
        Lineage::Operation(op, parts) if op == "||" || op == "concat" => {
            parts.iter().flat_map(|part| split_concatenation(part)).collect()
        }
        Lineage::Operation(op, parts) if op.eq_ignore_ascii_case("cast text") => {
            parts.iter().flat_map(|part| split_concatenation(part)).collect()
        }
        other => vec![other],
    }
}

fn is_literal(lineage: &Lineage) -> bool {
    matches!(lineage, Lineage::Literal(_))
}

/// Returns the text of a literal, or `None` for a number.
fn parse_literal_text(literal: &str) -> Option<String> {
    let inner = literal.strip_prefix('\'')?.strip_suffix('\'')?;
    Some(inner.replace("''", "'"))
}

/// Returns the label at the end of the text before a column, or an empty string if there is no
/// label. Returns `None` if the text contains anything but separators and a label.
fn parse_trailing_label(text: &str, is_first: bool) -> Option<&str> {
    let mut label = text;
    if !is_first {
        label = label.trim_start_matches(SEPARATORS);
        label = label.strip_prefix("and ").unwrap_or(label).trim_start_matches(SEPARATORS);
    }
    if label.is_empty() {
        return Some("");
    }
    label.trim_end().strip_suffix(':').filter(|label| !label.trim().is_empty())
}

impl KeyColumn<'_> {
    /// Returns true if a label consists of the column's whole name or its first words.
    fn matches_label(&self, label: &str) -> bool {
        let label = lowercase_words(label);
        self.names.iter().any(|name| {
            let name = lowercase_words(name);
            name.concat() == label.concat() || name.starts_with(&label)
        })
    }
}

/// Returns the words of a name in lower case.
fn lowercase_words(name: &str) -> Vec<String> {
    let words = name.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    words.map(str::to_lowercase).collect()
}
