//! Quotes that a writer puts around each value of a row, beside those of the format:
//! `"'1985-01-07'","'British'"`, or `{"nationality": "'British'"}`. They are the
//! writer's, and no part of a value, where something in the same row proves it:
//! a cell whose type or list holds no quotes has them, or what the row is named by
//! has them and the key has not; and no text of the row stands without them. A text
//! in quotes that nothing proves anything about (a song called `"Heroes"`) keeps them.

use super::align::RequestKeys;
use super::fields::RowField;
use super::label::says_none;
use hqdl_spec::checker::Checker;
use hqdl_spec::coerce::within_quotes;
use hqdl_values::cell::{Answer, State};

/// What is told of a value that had such quotes.
const NOTE: &str = "surrounding quotes removed";

/// What names a row, where the row's own key has no quotes that could explain those
/// that it is named with.
pub fn naming<'n>(named: &'n [&'n str], row: usize, keys: &RequestKeys) -> &'n [&'n str] {
    let quoted = |n| {
        keys.part(row, n)
            .is_some_and(|part| part.starts_with(['\'', '"', '`', '\u{2018}', '\u{201c}']))
    };
    if (0..keys.parts()).any(quoted) { &[] } else { named }
}

/// The quotes that the writer of a row puts around every value. `named` is what the
/// row was named by and does not have them in its key.
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
    // Its values are written without them.
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

/// A cell of a row whose writer puts these quotes around every value, where it has
/// them.
pub fn taken_off(quote: Option<char>, cell: &str, checker: &Checker) -> Option<Answer> {
    let (_, inner) = within_quotes(cell).filter(|(q, _)| Some(*q) == quote)?;
    Some(checker.text(inner).repaired(NOTE, cell))
}

/// The fields of a row without the quotes that its writer puts around all of them, as what
/// names it shows: of a row whose fields are not yet those of columns.
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
