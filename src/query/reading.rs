//! How the answers of a call are read: its type, its list, what it must match.

use std::collections::HashMap;
use std::sync::Arc;

use super::QueryError;
use crate::blendsql::parse::Parsed;
use crate::blendsql::usage::{Compared, Usage};
use crate::blendsql::{Call, Kind, Quantifier, yes_no};
use crate::key::{ListHash, Meaning};
use crate::spec::{Column, Many, Type, ValueList};
use crate::value::Value;

/// What an answer must match.
pub(super) fn regex(call: &Call) -> Result<Option<Arc<regex::Regex>>, QueryError> {
    let Some(pattern) = &call.regex else { return Ok(None) };
    match regex::Regex::new(&format!("^(?:{pattern})$")) {
        Ok(regex) => Ok(Some(Arc::new(regex))),
        Err(error) => Err(QueryError::sql(
            format!("the regular expression `{pattern}` cannot be read: {error}"),
            Some(call.span.clone()),
            "in this call",
            "",
        )),
    }
}

/// Whether a call answers with a list.
pub(super) fn is_list(call: &Call) -> bool {
    call.return_type.is_some_and(|t| t.list) || call.quantifier.is_some_and(|q| q.max != Some(1))
}

/// How many values a list must hold, where the call says so.
pub(super) fn quantity(call: &Call) -> Option<Quantifier> {
    call.quantifier.filter(|q| is_list(call) && (q.min > 0 || q.max.is_some()))
}

/// The same in words: how many are asked for is part of the question.
pub(super) fn said_quantity(call: &Call) -> String {
    match quantity(call) {
        Some(Quantifier { min, max: Some(max) }) if min == max => {
            format!(" (exactly {min} values)")
        }
        Some(Quantifier { min: 0, max: Some(max) }) => format!(" (at most {max} values)"),
        Some(Quantifier { min, max: Some(max) }) => format!(" ({min} to {max} values)"),
        Some(Quantifier { min: min @ 2.., max: None }) => format!(" (at least {min} values)"),
        _ => String::new(),
    }
}

/// Calls that ask the same thing are read as the same: what is known of one is
/// known of all.
pub(super) fn together(parsed: &Parsed, usages: &HashMap<usize, Usage>) -> HashMap<usize, Usage> {
    let same = |a: usize, b: usize| {
        let (x, y) = (&parsed.calls[a], &parsed.calls[b]);
        let keys = |n: usize| -> Vec<String> {
            let keys = usages.get(&n).map(|u| u.keys.as_slice()).unwrap_or_default();
            keys.iter()
                .map(|k| {
                    k.origin
                        .as_ref()
                        .map_or_else(|| k.text.clone(), |o| format!("{}::{}", o.table, o.column))
                })
                .collect()
        };
        matches!(x.kind, Kind::Map | Kind::Answer)
            && x.kind == y.kind
            && x.question.trim() == y.question.trim()
            && x.options.is_some() == y.options.is_some()
            && keys(a) == keys(b)
    };
    let mut all = usages.clone();
    for n in 0..parsed.calls.len() {
        if parsed.calls[n].return_type.is_some() {
            continue;
        }
        let mut merged = usages.get(&n).cloned().unwrap_or_default();
        for other in (0..parsed.calls.len()).filter(|o| *o != n && same(*o, n)) {
            if let Some(usage) = usages.get(&other) {
                merged.condition |= usage.condition;
                merged.compared.extend(usage.compared.iter().cloned());
            }
            merged.said = merged.said.or(parsed.calls[other].return_type);
            merged.said = merged.said.or(usages.get(&other).and_then(|u| u.said));
        }
        for beside in merged.beside.clone() {
            merged.beside_said = merged.beside_said.or(parsed.calls[beside].return_type);
        }
        all.insert(n, merged);
    }
    all
}

/// What an answer is read as.
pub(super) fn kind(call: &Call, usage: &Usage, values: Option<&[Value]>) -> Type {
    if call.kind == Kind::Validate {
        return Type::Boolean;
    }
    if let Some(said) = call.return_type.or(usage.said) {
        return said.scalar;
    }
    if let Some(values) = values {
        let whole = values.iter().all(|v| matches!(v, Value::Integer(_)));
        let number = values.iter().all(|v| matches!(v, Value::Integer(_) | Value::Real(_)));
        return match (whole, number) {
            (true, _) if !values.is_empty() => Type::Integer,
            (_, true) if !values.is_empty() => Type::Real,
            _ => Type::Text,
        };
    }
    if usage.compared.contains(&Compared::Truth) || is_yes_no(call, usage) {
        return Type::Boolean;
    }
    let numbers: Vec<bool> = usage
        .compared
        .iter()
        .filter_map(|c| match c {
            Compared::Integer(equal) => Some(*equal),
            Compared::Real => Some(false),
            _ => None,
        })
        .collect();
    let ordered = usage.compared.contains(&Compared::Ordered);
    if let Some(said) = usage.beside_said.filter(|_| numbers.is_empty()) {
        return said.scalar;
    }
    if ordered
        && numbers.is_empty()
        && !usage.compared.iter().any(|c| matches!(c, Compared::Text(_)))
    {
        return Type::Real;
    }
    if !numbers.is_empty() {
        return if !ordered && numbers.iter().all(|n| *n) { Type::Integer } else { Type::Real };
    }
    let dates = usage.compared.iter().any(|c| {
        matches!(c, Compared::Text(t) if t.len() == 10 && t.parse::<jiff::civil::Date>().is_ok())
    });
    if dates {
        return Type::Date;
    }
    if usage.condition { Type::Boolean } else { Type::Text }
}

/// Whether a document is asked for yes or no: the question begins like one, or
/// its answer is compared with yes and no, and with nothing else.
fn is_yes_no(call: &Call, usage: &Usage) -> bool {
    if call.kind != Kind::Answer {
        return false;
    }
    let mut texts = usage.compared.iter().filter_map(|c| match c {
        Compared::Text(text) => Some(yes_no::meaning(text).is_some()),
        _ => None,
    });
    match texts.next() {
        Some(first) => first && texts.all(|next| next),
        None => yes_no::asks(&call.question) && !yes_no::offers_a_choice(&call.question),
    }
}

/// How a call says yes and no: in the words it is compared with, `None` where
/// its truth counts or it is a number.
pub(super) fn spelled(call: &Call, usage: &Usage) -> Option<[String; 2]> {
    let number =
        |c: &Compared| matches!(c, Compared::Truth | Compared::Integer(_) | Compared::Real);
    if call.kind != Kind::Answer || usage.condition || usage.compared.iter().any(number) {
        return None;
    }
    // Cast to what is no text.
    if usage.said.is_some() {
        return None;
    }
    let mut words = yes_no::SPELLED.map(str::to_owned);
    for compared in usage.compared.iter().rev() {
        if let Compared::Text(text) = compared
            && let Some(yes) = yes_no::meaning(text)
        {
            words[usize::from(!yes)].clone_from(text);
        }
    }
    Some(words)
}

/// A question whose `{}` are filled with the names of what they stand for.
pub(super) fn filled(question: &str, names: &[String]) -> String {
    let mut text = question.trim().to_owned();
    let mut names = names.iter();
    while let Some(at) = text.find("{}") {
        let Some(name) = names.next() else { break };
        text.replace_range(at..at + 2, &format!("{{{name}}}"));
    }
    text
}

/// A column that a query gives birth to.
pub(super) fn column(
    question: &str,
    kind: Type,
    values: Option<Vec<Value>>,
    list: bool,
    key: &[String],
) -> Column {
    let values = values.map(|values| {
        let mut texts: Vec<String> = Vec::new();
        for value in values.iter().filter_map(Value::text) {
            if !texts.iter().any(|t| *t == value) {
                texts.push(value.into_owned());
            }
        }
        ValueList { hash: ListHash::of(&texts), values: texts, open: false }
    });
    let meaning = Meaning {
        key: key.to_vec(),
        column: "answer".to_owned(),
        kind: kind.name().to_owned(),
        about: question.to_owned(),
        many: list,
        list: if values.is_some() { "closed" } else { "none" }.to_owned(),
    };
    Column {
        name: "answer".to_owned(),
        kind,
        about: question.to_owned(),
        values,
        many: list.then(|| Many { table: String::new(), column: "value".to_owned() }),
        unknown: None,
        example: None,
        bindings: Vec::new(),
        classify: false,
        fingerprint: meaning.fingerprint(),
        meaning,
    }
}
