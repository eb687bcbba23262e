//! A question about a text, which the model answers from the text alone.

use super::{Intro, read_quoted};
use crate::AskedRow;
use hqdl_values::Row;
use hqdl_values::key::quote;
use hqdl_values::value::Value;

/// What the model is asked to do.
pub(super) const INTRO: Intro = Intro {
    task: "Answer the question about the text. Use only the text.",
    unknown: "if the text does not say",
};

/// Characters from which on a value is a text that speaks for itself.
const LONG: usize = 100;

/// Returns whether a row is a single value that is a text of its own.
pub(super) fn is_text(row: &Row) -> bool {
    let [Value::Text(text)] = row.key.as_slice() else { return false };
    text.contains(char::is_whitespace) && text.chars().nth(LONG).is_some()
}

/// Writes a text as JSON on a line of its own, so that nothing in it can end it.
///
/// Texts between fences were answered worse by a small model: 30 of 60 questions against 41.
pub(super) fn write(texts: &[Value], origin: Option<&str>) -> String {
    let texts: Vec<_> = texts.iter().filter_map(Value::text).collect();
    let of = origin.map(|origin| format!(" of {origin}")).unwrap_or_default();
    format!("Text{of}:\n{}\n", quote(&texts.join("\n\n")))
}

/// Reads what [`write`] wrote: table, key columns, row, and what follows.
pub(super) fn read(user: &str) -> Option<(&'static str, Vec<String>, AskedRow, &str)> {
    let (_, rest) = user.strip_prefix("Text").and_then(|rest| rest.split_once(":\n"))?;
    let (text, rest) = read_quoted(rest)?;
    let row = AskedRow { number: 1, key: vec![text.clone()], context: vec![text] };
    Some(("documents", vec!["document".to_owned()], row, rest))
}
