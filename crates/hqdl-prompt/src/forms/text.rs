//! A question about a text, which the model answers from the text alone.

use serde_json::Value as Json;

use super::{Intro, fenced, read_fenced};
use crate::AskedRow;
use hqdl_values::Row;
use hqdl_values::value::Value;

/// What the model is asked to do.
pub(super) const INTRO: Intro = Intro {
    task: "Answer the question about the text. Use only the text.",
    unknown: "if the text does not say",
};

/// Writes the text of a row: its context. Its key is a digest, of no use to the model.
pub(super) fn write(row: &Row) -> String {
    let texts: Vec<_> = row.context.iter().filter_map(Value::text).collect();
    format!("Text:\n{}\n", fenced(&texts.join("\n\n")))
}

/// Reads what [`write`] wrote: table, key columns, row, and what follows.
pub(super) fn read(user: &str) -> Option<(&'static str, Vec<String>, AskedRow, &str)> {
    let (text, rest) = read_fenced(user.strip_prefix("Text:\n")?)?;
    let text = Json::from(text);
    let row = AskedRow { number: 1, key: vec![text.clone()], context: vec![text] };
    Some(("documents", vec!["document".to_owned()], row, rest.strip_prefix('\n')?))
}
