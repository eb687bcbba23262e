//! Determines how a call's answers are parsed: their type, whether they are lists, and the pattern
//! that they must match.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::query::cells::call_target::parse_canonical_number;
use crate::query::request::error::QueryError;
use hqdl_spec::{Column, Type, ValueList};
use hqdl_sql::blendsql::ingredients::{AnswerFunction, Ingredient};
use hqdl_sql::blendsql::parse::ParsedQuery;
use hqdl_sql::blendsql::usage::{CallUsage, ComparedWith, Key};
use hqdl_sql::blendsql::{Call, Choices, Quantifier, Subject, yes_no};
use hqdl_values::format::describe_regex_error;
use hqdl_values::key::{ColumnIdentity, ListHash, QUESTION_COLUMN};
use hqdl_values::value::Value;

/// Returns the regular expression that an answer must match, if the call specifies one.
pub(in crate::query) fn compile_answer_regex(
    call: &Call,
) -> Result<Option<Arc<regex::Regex>>, QueryError> {
    let Some(pattern) = &call.regex else { return Ok(None) };
    match regex::Regex::new(&format!("^(?:{pattern})$")) {
        Ok(regex) => Ok(Some(Arc::new(regex))),
        Err(error) => Err(QueryError::in_sql(
            format!(
                "the regular expression `{pattern}` cannot be read: {}",
                describe_regex_error(&error)
            ),
            Some(call.span.clone()),
            "in this call",
            "correct `regex`; to match a special character literally, put `\\` before it",
        )),
    }
}

/// Returns true if a call's answers are lists.
pub(in crate::query) fn returns_list(call: &Call) -> bool {
    call.return_type.is_some_and(|t| t.is_list) || call.quantifier.is_some_and(|q| q.max != Some(1))
}

/// Returns the required number of values in a list, if the call specifies one.
pub(in crate::query) fn required_item_count(call: &Call) -> Option<Quantifier> {
    call.quantifier.filter(|q| returns_list(call) && (q.min > 0 || q.max.is_some()))
}

/// Formats the required number of values as text for the question.
pub(in crate::query) fn format_item_count(call: &Call) -> String {
    match required_item_count(call) {
        Some(Quantifier { min, max: Some(max) }) if min == max => {
            format!(" (exactly {min} values)")
        }
        Some(Quantifier { min: 0, max: Some(max) }) => format!(" (at most {max} values)"),
        Some(Quantifier { min, max: Some(max) }) => format!(" ({min} to {max} values)"),
        Some(Quantifier { min: min @ 2.., max: None }) => format!(" (at least {min} values)"),
        _ => String::new(),
    }
}

/// Merges the usages of calls that ask the same question, so that they share one type.
pub(in crate::query) fn merge_usages(
    parsed: &ParsedQuery,
    usages: &HashMap<usize, CallUsage>,
) -> HashMap<usize, CallUsage> {
    let mut same: HashMap<(&str, &str, bool, Vec<String>), Vec<usize>> = HashMap::new();
    for (n, call) in parsed.calls.iter().enumerate() {
        if matches!(call.ingredient.subject(), Subject::Value | Subject::Document) {
            let keys = usages.get(&n).map(|u| u.keys.as_slice()).unwrap_or_default();
            let key = |k: &Key| match &k.origin {
                Some(origin) => format!("{}::{}", origin.table, origin.column),
                None => k.text.clone(),
            };
            let keys = keys.iter().map(key).collect();
            let question_key =
                (call.ingredient.name(), call.question.trim(), call.options.is_some(), keys);
            same.entry(question_key).or_default().push(n);
        }
    }
    let mut all = usages.clone();
    for group in same.values().filter(|group| group.len() > 1) {
        let of = |n: &usize| usages.get(n);
        let condition = group.iter().filter_map(of).any(|u| u.is_condition);
        let mut seen: HashSet<&ComparedWith> = HashSet::new();
        let compared = group.iter().filter_map(of).flat_map(|u| &u.compared_with);
        let compared: Vec<ComparedWith> = compared.filter(|c| seen.insert(c)).cloned().collect();
        let declared_type = group.iter().find_map(|n| parsed.calls[*n].return_type);
        let declared_type =
            declared_type.or_else(|| group.iter().filter_map(of).find_map(|u| u.stated_type));
        for n in group.iter().filter(|n| parsed.calls[**n].return_type.is_none()) {
            let usage = all.entry(*n).or_default();
            usage.is_condition = condition;
            usage.compared_with.clone_from(&compared);
            usage.stated_type = usage.stated_type.or(declared_type);
        }
    }
    for (n, usage) in &mut all {
        // `is_ordered` and the compared type depend on the call alone, not on other calls with the
        // same question: a call that is compared with a text remains a text.
        let texts = usages.get(n).is_some_and(|own| own.compared_with.iter().any(is_text));
        usage.is_ordered &= !texts;
        let declared_type =
            usage.compared_calls.iter().find_map(|beside| parsed.calls[*beside].return_type);
        usage.compared_type = declared_type;
    }
    all
}

/// Returns the type of a call's answers.
pub(in crate::query) fn infer_answer_type(
    call: &Call,
    usage: &CallUsage,
    values: Option<&[Value]>,
) -> Type {
    if let Some(returned_type) = call.ingredient.fixed_return_type() {
        return returned_type;
    }
    if let Some(declared_type) = call.return_type.or(usage.stated_type) {
        return declared_type.scalar;
    }
    if let Some(values) = values {
        return Type::from_options(values);
    }
    // Each row has options of its own; the checker derives their type.
    if matches!(call.options, Some(Choices::RowList(_))) {
        return Type::Text;
    }
    if usage.compared_with.contains(&ComparedWith::Truth) || is_yes_no(call, usage) {
        return Type::Boolean;
    }
    // The type must allow fractions: `2.5 = 3` is false, not unknown.
    if usage.compared_with.contains(&ComparedWith::Number) {
        return Type::Real;
    }
    if usage.compared_with.contains(&ComparedWith::Limit) {
        return Type::Integer;
    }
    if let Some(declared_type) = usage.compared_type {
        return declared_type.scalar;
    }
    let dates = |c: &ComparedWith| matches!(c, ComparedWith::Text(t) if t.len() == 10 && t.parse::<jiff::civil::Date>().is_ok());
    let mut texts = usage.compared_with.iter().filter(|c| is_text(c)).peekable();
    if texts.peek().is_some() {
        return if texts.all(dates) { Type::Date } else { Type::Text };
    }
    if usage.is_condition { Type::Boolean } else { Type::Text }
}

fn is_text(compared: &ComparedWith) -> bool {
    matches!(compared, ComparedWith::Text(_) | ComparedWith::ComputedText)
}

/// Returns true if neither the query nor the column implies a type. The answer is then a text, and
/// a text that spells a number becomes a number, as in a column without affinity.
pub(in crate::query) fn is_untyped(call: &Call, usage: &CallUsage, column: &Column) -> bool {
    column.kind == Type::Text
        && column.values.is_none()
        && !returns_list(call)
        && call.return_type.or(usage.stated_type).or(usage.compared_type).is_none()
        && !usage.compared_with.iter().any(is_text)
}

/// Returns true if a call's texts are converted to numbers. This is the case if the call is
/// ordered, the query implies no type, and all its options and compared values parse as numbers.
pub(in crate::query) fn is_ordered_number(call: &Call, usage: &CallUsage, column: &Column) -> bool {
    let is_number = |text: &str| parse_canonical_number(text).is_some();
    let options = column.values.as_ref().map(|list| &list.values);
    let compared = |compared: &ComparedWith| match compared {
        ComparedWith::Text(text) => is_number(text),
        other => !is_text(other),
    };
    usage.is_ordered
        && column.kind == Type::Text
        && !returns_list(call)
        && call.return_type.or(usage.stated_type).or(usage.compared_type).is_none()
        && options.is_none_or(|options| options.iter().all(|text| is_number(text)))
        && usage.compared_with.iter().all(compared)
}

/// Returns true if a question about a document is a yes/no question: it is phrased as one, or its
/// answer is compared only with yes and no.
fn is_yes_no(call: &Call, usage: &CallUsage) -> bool {
    if call.ingredient.subject() != Subject::Document {
        return false;
    }
    let mut texts = usage.compared_with.iter().filter_map(|c| match c {
        ComparedWith::Text(text) => Some(yes_no::parse_answer(text).is_some()),
        _ => None,
    });
    match texts.next() {
        Some(first) => first && texts.all(|next| next),
        None => {
            yes_no::is_yes_no_question(&call.question)
                && !yes_no::may_offer_alternatives(&call.question)
        }
    }
}

/// Returns a call's words for yes and no, taken from the values that the call is compared with.
/// Returns `None` if the call is used as a truth value or a number.
pub(in crate::query) fn yes_no_words(call: &Call, usage: &CallUsage) -> Option<[String; 2]> {
    let is_truth_or_number =
        |c: &ComparedWith| matches!(c, ComparedWith::Truth | ComparedWith::Number);
    if call.ingredient.subject() != Subject::Document
        || usage.is_condition
        || usage.compared_with.iter().any(is_truth_or_number)
    {
        return None;
    }
    // The query states a type, by a cast to a type other than text or by the `return_type` of
    // `answer`.
    let has_type = call.return_type.is_some() && call.ingredient.name() == AnswerFunction.name();
    if usage.stated_type.is_some() || has_type {
        return None;
    }
    let mut yes_no = yes_no::DEFAULT_ANSWERS.map(str::to_owned);
    for compared in usage.compared_with.iter().rev() {
        if let ComparedWith::Text(text) = compared
            && let Some(yes) = yes_no::parse_answer(text)
        {
            yes_no[usize::from(!yes)].clone_from(text);
        }
    }
    Some(yes_no)
}

/// Returns the question of a call with names in place of its `{}`.
pub(in crate::query) fn fill_call_question(call: &Call, names: &[String]) -> String {
    let (question, instructions) =
        call.question.split_at_checked(call.instructions_start).unwrap_or((&call.question, ""));
    (fill_slots(question, names) + instructions).trim().to_owned()
}

/// Replaces each `{}` in a question with the name of the value it refers to.
pub(in crate::query) fn fill_slots(question: &str, names: &[String]) -> String {
    let mut text = question.to_owned();
    let mut names = names.iter();
    while let Some(at) = text.find("{}") {
        let Some(name) = names.next() else { break };
        text.replace_range(at..at + 2, &format!("{{{name}}}"));
    }
    text
}

pub(in crate::query) fn build_ad_hoc_column(
    question: &str,
    data_type: Type,
    values: Option<Vec<Value>>,
    list: bool,
    key: &[String],
) -> Column {
    let values = values.map(|values| {
        let mut texts: Vec<String> = Vec::new();
        for value in values.iter().filter_map(Value::to_text) {
            if !texts.iter().any(|t| *t == value) {
                texts.push(value.into_owned());
            }
        }
        ValueList { hash: ListHash::new(&texts), values: texts, open: false }
    });
    let identity = ColumnIdentity {
        key: key.to_vec(),
        column: QUESTION_COLUMN.to_owned(),
        kind: data_type.name().to_owned(),
        about: question.to_owned(),
        many: list,
        list: if values.is_some() { "closed" } else { "none" }.to_owned(),
        kinds: Vec::new(),
        requires_evidence: false,
        candidates: Vec::new(),
    };
    debug_assert!(key.is_empty() || identity.question().is_some(), "{identity:?}");
    Column {
        keeps_items: list,
        ..Column::new_ad_hoc(data_type, question.to_owned(), values, identity)
    }
}
