//! Quotes that a model puts around each value of a row, in addition to those of the format:
//! `"'1985-01-07'","'British'"`, or `{"nationality": "'British'"}`.
//!
//! They are removed only if the same row proves that they are not part of the values. Every text in
//! the row must have quotes, and either a cell whose type or list allows no quotes has them, or the
//! fields that identify the row have them and the key does not. Without such a proof, a quoted text
//! (a song called `"Heroes"`) keeps its quotes.

use super::align::RequestKeys;
use super::fields::RowField;
use super::label::is_null_text;
use hqdl_spec::checker::Checker;
use hqdl_spec::coerce::split_quotes;
use hqdl_values::cell::{Answer, State};

/// Note on a value whose quotes were removed.
const NOTE: &str = "surrounding quotes removed";

/// Returns the fields that identify a row, or none if the row's own key contains quotes, which
/// could explain quotes in the fields.
pub fn list_unquoted_names<'n>(
    names: &'n [&'n str],
    row: usize,
    keys: &RequestKeys,
) -> &'n [&'n str] {
    let is_quoted = |n| {
        keys.key_part(row, n)
            .is_some_and(|part| part.starts_with(['\'', '"', '`', '\u{2018}', '\u{201c}']))
    };
    if (0..keys.part_count()).any(is_quoted) { &[] } else { names }
}

/// Returns the quote character that the model puts around every value of a row. `names` are the
/// fields that identify the row; its key contains no quotes.
pub fn find_added_quote(names: &[&str], cells: &[&str], checkers: &[&Checker]) -> Option<char> {
    let texts = || {
        cells
            .iter()
            .zip(checkers)
            .filter(|(cell, _)| !is_null_text(cell) && cell.trim().parse::<f64>().is_err())
    };
    let (first, _) = texts().next()?;
    let (quote, _) = split_quotes(first)?;
    if !texts().all(|(cell, _)| split_quotes(cell).is_some_and(|(q, _)| q == quote)) {
        return None;
    }
    let has_quote = |text: &&str| split_quotes(text).is_some_and(|(q, _)| q == quote);
    // The value is valid only without the quotes.
    let is_valid_unquoted = |(cell, checker): (&&str, &&Checker)| {
        let is_valid = |text: &str| {
            let answer = checker.check_text(text);
            answer.state == State::Ok && answer.repair.is_none()
        };
        checker.is_constrained()
            && !is_valid(cell)
            && split_quotes(cell).is_some_and(|(_, inner)| is_valid(inner))
    };
    (names.iter().any(has_quote) || texts().any(is_valid_unquoted)).then_some(quote)
}

/// Returns the answer for a cell after removing the row's quotes, if the cell has them.
pub fn check_unquoted(quote: Option<char>, cell: &str, checker: &Checker) -> Option<Answer> {
    let (_, inner) = split_quotes(cell).filter(|(q, _)| Some(*q) == quote)?;
    Some(checker.check_text(inner).with_repair_note(NOTE, cell))
}

/// Removes the quotes around all fields of a row if the fields that identify the row prove that the
/// model added the quotes. The fields have not been assigned to columns yet.
pub fn strip_all_quotes(names: &[&str], fields: &[RowField]) -> Option<Vec<RowField>> {
    let quote = names.iter().find_map(|text| split_quotes(text))?.0;
    let strip_quotes = |field: &RowField| {
        let (_, inner) = split_quotes(&field.text).filter(|(q, _)| *q == quote)?;
        Some(RowField {
            text: inner.to_owned(),
            is_quoted: true,
            has_ambiguous_quotes: field.has_ambiguous_quotes,
        })
    };
    let is_unquoted_value =
        |field: &RowField| is_null_text(&field.text) || field.text.trim().parse::<f64>().is_ok();
    fields
        .iter()
        .map(|f| strip_quotes(f).or_else(|| is_unquoted_value(f).then(|| f.clone())))
        .collect()
}
