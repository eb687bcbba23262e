//! Quotes that a model puts around each value of a row, in addition to those of the format:
//! `"'1985-01-07'","'British'"`, or `{"nationality": "'British'"}`.
//!
//! They are removed only if the same row proves that they are not part of the values: a cell whose
//! type or list allows no quotes has them, or the fields that name the row have them and the key
//! does not; and every text of the row has them. Without such a proof, a quoted text (a song called
//! `"Heroes"`) keeps its quotes.

use super::align::RequestKeys;
use super::fields::RowField;
use super::label::says_none;
use hqdl_spec::checker::Checker;
use hqdl_spec::coerce::within_quotes;
use hqdl_values::cell::{Answer, State};

/// Note of a value whose quotes were removed.
const NOTE: &str = "surrounding quotes removed";

/// Returns the fields that name a row, or none if the row's key has quotes itself, which could
/// explain quotes in the fields.
pub fn naming<'n>(named: &'n [&'n str], row: usize, keys: &RequestKeys) -> &'n [&'n str] {
    let quoted = |n| {
        keys.part(row, n)
            .is_some_and(|part| part.starts_with(['\'', '"', '`', '\u{2018}', '\u{201c}']))
    };
    if (0..keys.parts()).any(quoted) { &[] } else { named }
}

/// Returns the quote character that the model puts around every value of a row. `names` are the
/// fields that name the row and have no quotes in its key.
pub fn of_writer(named: &[&str], cells: &[&str], checkers: &[&Checker]) -> Option<char> {
    let texts = || {
        cells
            .iter()
            .zip(checkers)
            .filter(|(cell, _)| !says_none(cell) && cell.trim().parse::<f64>().is_err())
    };
    let (first, _) = texts().next()?;
    let (quote, _) = within_quotes(first)?;
    if !texts().all(|(cell, _)| within_quotes(cell).is_some_and(|(q, _)| q == quote)) {
        return None;
    }
    let same = |text: &&str| within_quotes(text).is_some_and(|(q, _)| q == quote);
    // Returns true if the value is valid only without the quotes.
    let needs = |(cell, checker): (&&str, &&Checker)| {
        let written = |text: &str| {
            let answer = checker.text(text);
            answer.state == State::Ok && answer.repair.is_none()
        };
        checker.vouches()
            && !written(cell)
            && within_quotes(cell).is_some_and(|(_, inner)| written(inner))
    };
    (named.iter().any(same) || texts().any(needs)).then_some(quote)
}

/// Returns the answer for a cell after removing the row's quotes, if the cell has them.
pub fn taken_off(quote: Option<char>, cell: &str, checker: &Checker) -> Option<Answer> {
    let (_, inner) = within_quotes(cell).filter(|(q, _)| Some(*q) == quote)?;
    Some(checker.text(inner).repaired(NOTE, cell))
}

/// Returns the fields of a row without the quotes around all of them, if the fields that name the
/// row prove them. The fields have not been assigned to columns yet.
pub fn around_all(named: &[&str], fields: &[RowField]) -> Option<Vec<RowField>> {
    let quote = named.iter().find_map(|text| within_quotes(text))?.0;
    let bare = |field: &RowField| {
        let (_, inner) = within_quotes(&field.text).filter(|(q, _)| *q == quote)?;
        Some(RowField { text: inner.to_owned(), quoted: true, unclear: field.unclear })
    };
    let open =
        |field: &RowField| says_none(&field.text) || field.text.trim().parse::<f64>().is_ok();
    fields.iter().map(|f| bare(f).or_else(|| open(f).then(|| f.clone()))).collect()
}
