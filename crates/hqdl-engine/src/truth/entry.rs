//! True values as a person writes them, in a reference file or in an audit.

use hqdl_spec::checker::{Checker, EMPTY_TEXT};
use hqdl_values::cell::{Answer, CellValue, State};
use hqdl_values::value::Value;

/// Entry for a truth that cannot be known.
pub const CANNOT_BE_KNOWN: &str = "?";
/// Entry for a cell that has no true value.
pub const NO_VALUE: &str = "none";

/// Parses a true value; `None` if it cannot be known. [`NO_VALUE`] and [`CANNOT_BE_KNOWN`] are
/// ordinary values of a column whose value list contains them.
///
/// # Errors
/// Returns the checked answer if the column does not allow the value.
pub fn parse_entry(checker: &Checker, entry: &str) -> Result<Option<CellValue>, Answer> {
    let answer = checker.check_entry(entry);
    let is_valid = answer.state == State::Ok && !answer.has_omitted_values();
    match entry.trim() {
        CANNOT_BE_KNOWN if !is_valid || !checker.is_constrained() => Ok(None),
        _ if is_valid && (checker.is_many() || checker.is_constrained()) => Ok(Some(answer.value)),
        word if word.eq_ignore_ascii_case(NO_VALUE) => Ok(Some(CellValue::Nothing)),
        _ if is_valid => Ok(Some(answer.value)),
        _ => Err(answer),
    }
}

/// Formats a true value as an entry, which [`parse_entry`] reads.
#[must_use]
pub fn format_entry(value: Option<&CellValue>) -> String {
    match value {
        None => CANNOT_BE_KNOWN.to_owned(),
        Some(CellValue::Nothing) => NO_VALUE.to_owned(),
        Some(cell) => format_cell(cell),
    }
}

/// Formats the value of a cell; a cell without a value is empty. `|` separates the values of a
/// list.
#[must_use]
pub fn format_cell(cell: &CellValue) -> String {
    match cell {
        CellValue::Nothing => String::new(),
        CellValue::One(Value::Text(text)) if text.is_empty() => EMPTY_TEXT.to_owned(),
        CellValue::One(value) => format_value(value),
        CellValue::Many(values) if values.is_empty() => NO_VALUE.to_owned(),
        CellValue::Many(values) => values.iter().map(format_value).collect::<Vec<_>>().join("|"),
    }
}

/// Formats a value of a key or a list; NULL is empty.
pub(crate) fn format_value(value: &Value) -> String {
    value.to_text().unwrap_or_default().into_owned()
}
