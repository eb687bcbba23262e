//! Checks that a column's values have the type that a call declares or is used as. The declaration
//! holds for every route, so a column that cannot satisfy it does not answer the call.

use super::reading::{is_list, kind};
use hqdl_spec::{Column, SLOTS, Type};
use hqdl_sql::blendsql::parse::parse;
use hqdl_sql::blendsql::tree::{Body, ExprKind, ExprOperator};
use hqdl_sql::blendsql::usage::{CallUsage, ComparedWith};
use hqdl_sql::blendsql::{Call, ReturnType, Subject, yes_no};
use hqdl_values::value::Value;

/// Conversion of a stored value to the type of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Given {
    /// No conversion.
    AsItIs,
    /// A truth value as words, for yes and for no.
    Words([String; 2]),
    /// An integer as a real number.
    Real,
}

impl Given {
    /// Returns the SQL before and after the value.
    pub(super) fn around(&self) -> Option<(String, String)> {
        match self {
            Self::AsItIs => None,
            Self::Words([yes, no]) => {
                let (yes, no) = (hqdl_values::sql::text(yes), hqdl_values::sql::text(no));
                Some(("(CASE ".to_owned(), format!(" WHEN 1 THEN {yes} WHEN 0 THEN {no} END)")))
            }
            Self::Real => Some(("CAST(".to_owned(), " AS REAL)".to_owned())),
        }
    }
}

/// Returns whether a binding's SQL is a condition.
pub(super) fn is_truth(sql: &str) -> bool {
    let mut sql = sql.trim().to_owned();
    if sql.get(..6).is_some_and(|word| word.eq_ignore_ascii_case("exists")) {
        return true;
    }
    for slot in SLOTS {
        sql = sql.replace(slot, "0");
    }
    let Ok(parsed) = parse(&format!("SELECT ({sql})"), Vec::new()) else { return false };
    let Body::Core(core) = &parsed.query.body else { return false };
    let Some(expr) = core.columns.first().and_then(|c| c.expr.as_ref()) else { return false };
    match &hqdl_sql::blendsql::scope::bare(expr).kind {
        ExprKind::And(_)
        | ExprKind::Or(_)
        | ExprKind::Not(_)
        | ExprKind::Compare(..)
        | ExprKind::In { .. }
        | ExprKind::Exists(_) => true,
        ExprKind::Operation(operator, _) => {
            matches!(
                operator,
                ExprOperator::NullTest | ExprOperator::Between | ExprOperator::Match(_)
            )
        }
        _ => false,
    }
}

/// Returns the conversion if a column's answer has the type that the call declares or is used as.
/// The same question may be asked for a value in one call and for its truth in another. `computed`
/// means that a binding computes the answer from the column. `options` are the call's options, if
/// it has any.
///
/// # Errors
/// The reason why the answer does not fit.
pub(super) fn fits(
    call: &Call,
    usage: &CallUsage,
    column: &Column,
    truth: bool,
    computed: bool,
    options: Option<&[Value]>,
) -> Result<Given, &'static str> {
    let many = column.many.is_some() && !computed;
    if is_list(call) && !many {
        return Err("the call asks for a list");
    }
    if many {
        let one = call.return_type.is_some_and(|t| !t.list) || call.options.is_some();
        return if one && !is_list(call) {
            Err("the call asks for one value")
        } else {
            Ok(Given::AsItIs)
        };
    }
    if call.options.is_some() && options.is_none() {
        return Err("its options are not known yet");
    }
    if truth {
        of_truth(call, usage, column, computed, options)
    } else {
        of_value(call, usage, column, computed, options)
    }
}

/// Checks a truth value: 1 and 0, unless the call uses other words for it.
fn of_truth(
    call: &Call,
    usage: &CallUsage,
    column: &Column,
    computed: bool,
    options: Option<&[Value]>,
) -> Result<Given, &'static str> {
    let said = call.return_type.or(usage.said).map(|t: ReturnType| t.scalar);
    if let Some(options) = options {
        let numbers = options.iter().all(|o| matches!(o, Value::Integer(0 | 1)));
        if numbers && !said.is_some_and(Type::is_text) {
            return Ok(Given::AsItIs);
        }
        let words = words(options.iter().map(|o| o.text().unwrap_or_default().into_owned()));
        let words = words.ok_or("the options are not yes and no")?;
        let texts = matches!(said, None | Some(Type::Text));
        return if texts { Ok(Given::Words(words)) } else { Err("the call asks for a value") };
    }
    match said {
        Some(Type::Boolean | Type::Integer) => return Ok(Given::AsItIs),
        Some(_) => return Err("the call asks for a value"),
        None => {}
    }
    let mut texts = usage.compared.iter().filter_map(|c| match c {
        ComparedWith::Text(text) => Some(text.clone()),
        _ => None,
    });
    let Some(first) = texts.next() else {
        let computed = usage.compared.contains(&ComparedWith::Words);
        return if computed { Err("the call asks for a value") } else { Ok(Given::AsItIs) };
    };
    if call.ingredient.subject() == Subject::Document && !computed && column.kind == Type::Boolean {
        // The call itself returns yes and no as words.
        return Ok(Given::AsItIs);
    }
    let all: Vec<String> = std::iter::once(first).chain(texts).collect();
    if all.iter().any(|t| yes_no::meaning(t).is_none()) {
        return Err("the call asks for a value");
    }
    let word = |meaning: bool| {
        let found = all.iter().find(|t| yes_no::meaning(t) == Some(meaning));
        found.cloned().unwrap_or_else(|| yes_no::SPELLED[usize::from(!meaning)].to_owned())
    };
    Ok(Given::Words([word(true), word(false)]))
}

/// Returns the words for yes and no, if the options are exactly these two.
fn words(options: impl Iterator<Item = String>) -> Option<[String; 2]> {
    let (mut yes, mut no) = (None, None);
    for option in options {
        let place = if yes_no::meaning(&option)? { &mut yes } else { &mut no };
        if place.replace(option).is_some() {
            return None;
        }
    }
    Some([yes?, no?])
}

/// Checks a value of a column.
fn of_value(
    call: &Call,
    usage: &CallUsage,
    column: &Column,
    computed: bool,
    options: Option<&[Value]>,
) -> Result<Given, &'static str> {
    let said = call.return_type.or(usage.said).map(|t| t.scalar);
    let given = match (said, column.kind) {
        (None, _) => Given::AsItIs,
        (Some(Type::Text), kind) if kind.is_text() => Given::AsItIs,
        (Some(said), kind) if said == kind => Given::AsItIs,
        (Some(Type::Real), Type::Integer) => Given::Real,
        // A computed value may have another type than the column.
        (Some(said), _) if computed && said != Type::Boolean => Given::AsItIs,
        (Some(_), _) => return Err("the call asks for a value of another type"),
    };
    let words = column.kind.is_text();
    let truth = usage.compared.contains(&ComparedWith::Truth);
    if said.is_none() && (truth || (words && kind(call, usage, None) == Type::Boolean)) {
        return Err("the call asks for true or false");
    }
    let Some(options) = options else { return Ok(given) };
    let Some(list) = column.values.as_ref().filter(|v| !v.open) else {
        return Err("it can have values that are not options");
    };
    let is_option = |v: &String| options.iter().any(|o| o.text().is_some_and(|o| o == v.as_str()));
    let within = list.values.iter().all(is_option);
    if within { Ok(given) } else { Err("its values differ from the options") }
}
