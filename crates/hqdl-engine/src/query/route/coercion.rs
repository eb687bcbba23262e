//! Checks that a column's values have the type that a call declares or that its usage requires. The
//! declaration applies to every route, so a column that cannot satisfy it does not answer the call.

use crate::query::route::answer_parsing::{infer_answer_type, returns_list};
use hqdl_spec::{Column, SLOTS, Type};
use hqdl_sql::blendsql::parse::parse_query;
use hqdl_sql::blendsql::tree::Body;
use hqdl_sql::blendsql::usage::{CallUsage, ComparedWith};
use hqdl_sql::blendsql::{Call, ReturnType, Subject, yes_no};
use hqdl_values::value::Value;

/// Conversion of a stored value to the type of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::query) enum Coercion {
    /// No conversion.
    Unchanged,
    /// Converts a truth value to the words for yes and no.
    YesNo([String; 2]),
    /// Converts an integer to a real number.
    Real,
}

impl Coercion {
    /// Returns the SQL to write before and after the value, if a conversion is needed.
    pub(in crate::query) fn sql_wrapper(&self) -> Option<(String, String)> {
        match self {
            Self::Unchanged => None,
            Self::YesNo([yes, no]) => {
                let (yes, no) =
                    (hqdl_values::sql::quote_text(yes), hqdl_values::sql::quote_text(no));
                Some(("(CASE ".to_owned(), format!(" WHEN 1 THEN {yes} WHEN 0 THEN {no} END)")))
            }
            Self::Real => Some(("CAST(".to_owned(), " AS REAL)".to_owned())),
        }
    }
}

/// Returns true if a binding's SQL is a condition.
pub(in crate::query) fn is_condition(sql: &str) -> bool {
    let mut sql = sql.trim().to_owned();
    if sql.get(..6).is_some_and(|word| word.eq_ignore_ascii_case("exists")) {
        return true;
    }
    for slot in SLOTS {
        sql = sql.replace(slot, "0");
    }
    let Ok(parsed) = parse_query(&format!("SELECT ({sql})")) else { return false };
    let Body::Core(core) = &parsed.query.body else { return false };
    let Some(expr) = core.columns.first().and_then(|c| c.expr.as_ref()) else { return false };
    expr.is_condition()
}

/// Returns the conversion for a column's answer, if the answer fits the type that the call declares
/// or that its usage requires. `truth` is true if the answer is a truth value. `computed` is true
/// if a binding computes the answer from the column. `options` are the call's options, if it has
/// any.
///
/// # Errors
/// Fails with the reason if the answer does not fit.
pub(in crate::query) fn choose_coercion(
    call: &Call,
    usage: &CallUsage,
    column: &Column,
    truth: bool,
    computed: bool,
    options: Option<&[Value]>,
) -> Result<Coercion, &'static str> {
    let is_list_column = column.many.is_some() && !computed;
    if returns_list(call) && !is_list_column {
        return Err("the call asks for a list");
    }
    if is_list_column {
        let wants_one_value =
            call.return_type.is_some_and(|t| !t.is_list) || call.options.is_some();
        return if wants_one_value && !returns_list(call) {
            Err("the call asks for one value")
        } else {
            Ok(Coercion::Unchanged)
        };
    }
    if call.options.is_some() && options.is_none() {
        return Err("its options are not known yet");
    }
    if truth {
        coerce_truth(call, usage, column, computed, options)
    } else {
        coerce_value(call, usage, column, computed, options)
    }
}

/// Returns the conversion for a truth value, which is 1 or 0 unless the call uses words for it.
fn coerce_truth(
    call: &Call,
    usage: &CallUsage,
    column: &Column,
    computed: bool,
    options: Option<&[Value]>,
) -> Result<Coercion, &'static str> {
    let declared_type = call.return_type.or(usage.stated_type).map(|t: ReturnType| t.scalar);
    if let Some(options) = options {
        let are_numbers = options.iter().all(|o| matches!(o, Value::Integer(0 | 1)));
        if are_numbers && !declared_type.is_some_and(Type::is_text) {
            return Ok(Coercion::Unchanged);
        }
        let yes_no = find_yes_no_options(
            options.iter().map(|o| o.to_text().unwrap_or_default().into_owned()),
        );
        let words = yes_no.ok_or("the options are not yes and no")?;
        let are_texts = matches!(declared_type, None | Some(Type::Text));
        return if are_texts {
            Ok(Coercion::YesNo(words))
        } else {
            Err("the call asks for a value")
        };
    }
    match declared_type {
        Some(Type::Boolean | Type::Integer) => return Ok(Coercion::Unchanged),
        Some(_) => return Err("the call asks for a value"),
        None => {}
    }
    let mut texts = usage.compared_with.iter().filter_map(|c| match c {
        ComparedWith::Text(text) => Some(text.clone()),
        _ => None,
    });
    let Some(first) = texts.next() else {
        let has_computed_words = usage.compared_with.contains(&ComparedWith::ComputedText);
        return if has_computed_words {
            Err("the call asks for a value")
        } else {
            Ok(Coercion::Unchanged)
        };
    };
    if call.ingredient.subject() == Subject::Document && !computed && column.kind == Type::Boolean {
        // The call itself returns yes and no as words.
        return Ok(Coercion::Unchanged);
    }
    let all: Vec<String> = std::iter::once(first).chain(texts).collect();
    if all.iter().any(|t| yes_no::parse_answer(t).is_none()) {
        return Err("the call asks for a value");
    }
    let word = |meaning: bool| {
        let found = all.iter().find(|t| yes_no::parse_answer(t) == Some(meaning));
        found.cloned().unwrap_or_else(|| yes_no::DEFAULT_ANSWERS[usize::from(!meaning)].to_owned())
    };
    Ok(Coercion::YesNo([word(true), word(false)]))
}

/// Returns the words for yes and no, in this order, if the options are exactly one word for each.
fn find_yes_no_options(options: impl Iterator<Item = String>) -> Option<[String; 2]> {
    let (mut yes, mut no) = (None, None);
    for option in options {
        let slot = if yes_no::parse_answer(&option)? { &mut yes } else { &mut no };
        if slot.replace(option).is_some() {
            return None;
        }
    }
    Some([yes?, no?])
}

/// Returns the conversion for a value of a column that is not a truth value.
fn coerce_value(
    call: &Call,
    usage: &CallUsage,
    column: &Column,
    computed: bool,
    options: Option<&[Value]>,
) -> Result<Coercion, &'static str> {
    let declared_type = call.return_type.or(usage.stated_type).map(|t| t.scalar);
    let coercion = match (declared_type, column.kind) {
        (None, _) => Coercion::Unchanged,
        (Some(Type::Text), data_type) if data_type.is_text() => Coercion::Unchanged,
        (Some(declared_type), data_type) if declared_type == data_type => Coercion::Unchanged,
        (Some(Type::Real), Type::Integer) => Coercion::Real,
        // A computed value may have a different type from the column.
        (Some(declared_type), _) if computed && declared_type != Type::Boolean => {
            Coercion::Unchanged
        }
        (Some(_), _) => return Err("the call asks for a value of another type"),
    };
    let is_text = column.kind.is_text();
    let truth = usage.compared_with.contains(&ComparedWith::Truth);
    if declared_type.is_none()
        && (truth || (is_text && infer_answer_type(call, usage, None) == Type::Boolean))
    {
        return Err("the call asks for true or false");
    }
    let Some(options) = options else { return Ok(coercion) };
    let Some(list) = column.values.as_ref().filter(|v| !v.open) else {
        return Err("it can have values that are not options");
    };
    let is_option =
        |v: &String| options.iter().any(|o| o.to_text().is_some_and(|o| o == v.as_str()));
    let is_within = list.values.iter().all(is_option);
    if is_within { Ok(coercion) } else { Err("its values differ from the options") }
}
