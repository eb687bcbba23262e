//! What a model said of words outside a value list: a question of its own about each
//! word, kept as a fact, and remembered by column and list so that whoever reads answers
//! of that column can read them by it.

use crate::{FactsError, History, Learned};
use hqdl_database::now;
use hqdl_spec::checker::Checker;
use hqdl_spec::{Column, Expansion, Type, ValueList};
use hqdl_values::key::Meaning;

/// Words that share a request.
const ROWS: u32 = 20;
/// Bytes of the longest answer that is taken for a word, and not for prose.
pub const LONGEST_WORD: usize = 200;

/// By what words of a column are remembered: what it means, its list, and what the question
/// about a word says beside. A `status` of orders and one of people share no word, though
/// neither says what it is about.
fn offered(expansion: &Expansion, column: &Column, list: &ValueList) -> String {
    let asked = question(expansion, column, list).about;
    let text = format!("unify v2 {} {} {asked}", column.fingerprint, list.hash.as_str());
    blake3::hash(text.as_bytes()).to_hex()[..32].to_owned()
}

/// Tells a column's checker what is known of words outside its list.
///
/// # Errors
/// [`FactsError`] when the history cannot be read.
pub fn recall(
    history: &dyn History,
    (expansion, column): (&Expansion, &Column),
    checker: &Checker,
    model: Option<&str>,
) -> Result<(), FactsError> {
    let (Some(unified), Some(list)) = (checker.unified(), &column.values) else { return Ok(()) };
    let learned = history.all_learned(&offered(expansion, column, list))?;
    for one in learned.into_iter().filter(|l| model.is_none_or(|m| m == l.model)) {
        unified.learn(&one.ask, Some(one.literal).filter(|v| !v.is_empty()));
    }
    Ok(())
}

/// Remembers which value of a column's list a word means; `None` is none of them.
///
/// # Errors
/// [`FactsError`] when it cannot be kept.
pub fn remember(
    history: &dyn History,
    (expansion, column): (&Expansion, &Column),
    (word, value): (&str, Option<&str>),
    model: &str,
    completion: i64,
) -> Result<(), FactsError> {
    let Some(list) = &column.values else { return Ok(()) };
    let learned = Learned {
        ask: word.to_owned(),
        model: model.to_owned(),
        expansion: String::new(),
        column: column.name.clone(),
        operator: "unify".to_owned(),
        literal: value.unwrap_or_default().to_owned(),
        completion,
        bound_at: now(),
    };
    history.learn(&offered(expansion, column, list), word, &learned)
}

/// The expansion whose rows are words, and which asks what each means in a column. What
/// the column is of is part of the question: a `status` of orders is none of people.
#[must_use]
pub fn question(expansion: &Expansion, column: &Column, list: &ValueList) -> Expansion {
    let of = match column.about.trim() {
        "" => format!("`{}`", column.name),
        about => format!("`{}` ({about})", column.name),
    };
    let thing = match expansion.about.trim() {
        "" => format!("a row of `{}`", expansion.name),
        about => about.to_owned(),
    };
    let key = expansion.key.names().join(", ");
    let about =
        format!("the value that means the same as this answer for {of} of {thing}, by {key}");
    let meaning = Meaning {
        key: vec!["answer".to_owned()],
        column: "value".to_owned(),
        kind: Type::Text.name().to_owned(),
        about: about.clone(),
        many: false,
        list: "closed".to_owned(),
        kinds: Vec::new(),
    };
    Expansion {
        about: format!(
            "Each row is an answer that was given for {of} of {thing}. Which one of the values \
             means the same? Where none does, the value is not known."
        ),
        model: expansion.model.clone(),
        rows_per_request: ROWS,
        columns: vec![Column::ad_hoc(Type::Text, about, Some(list.clone()), meaning)],
        ..Expansion::ad_hoc("unify", vec!["answer".to_owned()])
    }
}
