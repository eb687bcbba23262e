//! Unification: the model decides which value of a closed list an unlisted word means. Each word is
//! a separate question. The answer is a fact. It is also stored by column and list, so that later
//! readers of the column can apply it.

use crate::{FactsError, History, QuestionBinding};
use hqdl_database::current_timestamp;
use hqdl_spec::checker::Checker;
use hqdl_spec::{Column, Expansion, Type, ValueList};
use hqdl_values::key::ColumnIdentity;

const WORDS_PER_REQUEST: u32 = 20;
/// Maximum length in bytes of an answer that counts as a word; a longer answer is prose.
pub const MAX_WORD_BYTES: usize = 200;

/// Returns the key under which a column's words are stored: a hash of the column's identity, its
/// list and the rest of the question. A `status` of orders and a `status` of people therefore share
/// no words, even if neither column states its subject.
fn compute_unify_key(expansion: &Expansion, column: &Column, list: &ValueList) -> String {
    let asked = build_unify_expansion(expansion, column, list).about;
    let text = format!("unify v2 {} {} {asked}", column.fingerprint, list.hash.as_str());
    blake3::hash(text.as_bytes()).to_hex()[..32].to_owned()
}

/// Loads the stored words of a column into its checker.
///
/// # Errors
/// [`FactsError`] if the history cannot be read.
pub fn load_word_meanings(
    history: &dyn History,
    (expansion, column): (&Expansion, &Column),
    checker: &Checker,
    model: Option<&str>,
) -> Result<(), FactsError> {
    let (Some(unified), Some(list)) = (checker.decisions(), &column.values) else { return Ok(()) };
    let bindings = history.list_bindings(&compute_unify_key(expansion, column, list))?;
    for binding in bindings.into_iter().filter(|l| model.is_none_or(|m| m == l.model)) {
        unified.add_decision(&binding.ask, Some(binding.literal).filter(|v| !v.is_empty()));
    }
    Ok(())
}

/// Stores which value of a column's list a word means; `value` is `None` if it means none of them.
///
/// # Errors
/// [`FactsError`] if the meaning cannot be stored.
pub fn store_word_meaning(
    history: &dyn History,
    (expansion, column): (&Expansion, &Column),
    (word, value): (&str, Option<&str>),
    model: &str,
    completion: i64,
) -> Result<(), FactsError> {
    let Some(list) = &column.values else { return Ok(()) };
    let binding = QuestionBinding {
        ask: word.to_owned(),
        model: model.to_owned(),
        expansion: String::new(),
        column: column.name.clone(),
        operator: "unify".to_owned(),
        literal: value.unwrap_or_default().to_owned(),
        completion,
        bound_at: current_timestamp(),
    };
    history.store_binding(&compute_unify_key(expansion, column, list), word, &binding)
}

/// Returns the expansion that asks what each word means in a column; its rows are the words. The
/// question includes the column's subject, because a `status` of orders differs from a `status` of
/// people.
#[must_use]
pub fn build_unify_expansion(
    expansion: &Expansion,
    column: &Column,
    list: &ValueList,
) -> Expansion {
    let column_description = match column.about.trim() {
        "" => format!("`{}`", column.name),
        about => format!("`{}` ({about})", column.name),
    };
    let subject = match expansion.about.trim() {
        "" => format!("a row of `{}`", expansion.name),
        about => about.to_owned(),
    };
    let key = expansion.key.names().join(", ");
    let about = format!(
        "the value that means the same as this answer for {column_description} of {subject}, by {key}"
    );
    let identity = ColumnIdentity {
        key: vec!["answer".to_owned()],
        column: "value".to_owned(),
        kind: Type::Text.name().to_owned(),
        about: about.clone(),
        many: false,
        list: "closed".to_owned(),
        kinds: Vec::new(),
        requires_evidence: false,
        candidates: Vec::new(),
    };
    Expansion {
        about: format!(
            "Each row is an answer that was given for {column_description} of {subject}. Which one of the values \
             means the same? Where none does, the value is not known."
        ),
        model: column.model.clone().or_else(|| expansion.model.clone()),
        rows_per_request: WORDS_PER_REQUEST,
        columns: vec![Column::new_ad_hoc(Type::Text, about, Some(list.clone()), identity)],
        ..Expansion::new_ad_hoc("unify", vec!["answer".to_owned()])
    }
}
