//! What is decided about a query, as SQL: the only place that writes the
//! [functions](super::runtime) of the engine and the CASE expressions around them.
//! Rules decide; what they decide is written here.

use super::runtime::Function;

/// Conditions that are written within each other: `SQLite` reads a text that is nested
/// only so deep.
const WITHIN: usize = 32;
/// Arguments of a function: `SQLite` takes a thousand, where it was not built to take less.
const MOST_ARGUMENTS: usize = 100;

/// A mark, taken where it stands.
pub(super) fn mark() -> String {
    Function::Mark.of::<&str>(&[])
}

/// A call's answer: its number, its values, and whether a value has a call itself.
pub(super) fn call(n: usize, nested: bool, values: &[String]) -> String {
    let mut arguments = vec![n.to_string(), if nested { mark() } else { "0".to_owned() }];
    arguments.extend_from_slice(values);
    Function::Call.of(&arguments)
}

/// The values of a list, as a row of so many.
pub(super) fn row_of(list: &str, width: u32) -> String {
    let values: Vec<String> =
        (0..width).map(|at| format!("json_extract({list}, '$[{at}]')")).collect();
    format!("({})", values.join(", "))
}

/// The rows of a query as one value, under a name that the query has no use for.
pub(super) fn context(form: Function, own: &str, titles: &[String], query: &str) -> String {
    let names: Vec<String> = (1..=titles.len()).map(|n| format!("c{n}")).collect();
    let names = names.join(", ");
    let titles = format!("json_array({})", titles.join(", "));
    let mut rows = form.of(&[&titles, &names]);
    if form == Function::Rows {
        // Nobody tells a function its values where there is no row.
        let none = format!("json_object('columns', {titles}, 'rows', json_array())");
        rows = format!("CASE count(*) WHEN 0 THEN {none} ELSE {rows} END");
    }
    format!("(WITH {own}({names}) AS ({query}) SELECT {rows} FROM {own})")
}

/// The truth of a plain condition.
pub(super) fn plain(condition: &str, wanted: bool) -> String {
    format!("(({condition}) IS {})", if wanted { "TRUE" } else { "FALSE" })
}

/// The truth of a condition with calls.
pub(super) fn leaf(at: usize, condition: &str, wanted: bool) -> String {
    let wanted_text = u8::from(wanted).to_string();
    Function::Leaf.of(&[&at.to_string(), &wanted_text, &mark(), &plain(condition, wanted)])
}

/// The truth of an AND whose second part is looked at where the first holds.
pub(super) fn and(first: &str, rest: &str) -> String {
    format!("CASE {first} WHEN 1 THEN {rest} WHEN 2 THEN 2 ELSE 0 END")
}

/// The truth of an OR whose second part is looked at where the first does not hold.
fn or(first: &str, rest: &str) -> String {
    format!("CASE {first} WHEN 1 THEN 1 WHEN 2 THEN 2 ELSE {rest} END")
}

/// The truth of an AND, each part looked at where those before it hold.
pub(super) fn every(parts: Vec<String>) -> String {
    one_by_one(parts, and, 0)
}

/// The truth of an OR, each part looked at where none before it holds.
pub(super) fn some(parts: Vec<String>) -> String {
    one_by_one(parts, or, 1)
}

/// Parts as far as one settles them: within each other, or where these are too many for
/// that, in one CASE.
fn one_by_one(mut parts: Vec<String>, two: fn(&str, &str) -> String, settles: u8) -> String {
    if parts.len() > WITHIN {
        let noted = Function::Noted.of::<&str>(&[]);
        let one = |part: &String| {
            let note = Function::Note.of(&[part]);
            format!("WHEN {note} = {settles} THEN {settles} WHEN {noted} = 2 THEN 2")
        };
        let whens: Vec<String> = parts.iter().map(one).collect();
        return format!("CASE {} ELSE {} END", whens.join(" "), 1 - settles);
    }
    let Some(last) = parts.pop() else { return (1 - settles).to_string() };
    parts.into_iter().rev().fold(last, |rest, first| two(&first, &rest))
}

/// The truth of an AND whose first part is plain.
pub(super) fn guarded(plain: &str, rest: &str) -> String {
    format!("CASE WHEN {plain} THEN {rest} ELSE 0 END")
}

/// What is known settles it; only what that leaves open is asked. It is the first look
/// at a row, or a look at a part of its conditions.
pub(super) fn settled_first(known: &str, asked: &str, of_row: bool) -> String {
    format!("CASE {} WHEN 1 THEN 1 WHEN 0 THEN 0 ELSE {asked} END", settled(known, of_row))
}

/// The same of the value of a condition.
pub(super) fn settled_value(holds: &str, fails: &str, asked: &str) -> String {
    let (holds, fails) = (settled(holds, false), settled(fails, false));
    format!("(CASE {holds} WHEN 1 THEN 1 ELSE CASE {fails} WHEN 1 THEN 0 ELSE {asked} END END)")
}

fn settled(known: &str, of_row: bool) -> String {
    let quiet = Function::Quiet.of(&[u8::from(of_row).to_string()]);
    Function::Settled.of(&[&quiet, known])
}

/// The answer of a call as far as it is known: nothing waits for it.
pub(super) fn known(answer: &str) -> String {
    Function::Settled.of(&[&Function::Quiet.of(&["2"]), answer])
}

/// Whether a row is known to hold: nothing waits for what is open.
pub(super) fn known_to_hold(truth: &str) -> String {
    format!("CASE {} WHEN 1 THEN 1 ELSE 0 END", known(truth))
}

/// The truth of conditions that are all looked at: those that are plain before the
/// others, which they may keep from an error.
pub(super) fn looked_at(all: bool, plain: &[String], open: &[String]) -> String {
    let (function, settles) = if all { (Function::All, 0) } else { (Function::Any, 1) };
    let mut open = open.to_vec();
    while open.len() > MOST_ARGUMENTS {
        open = open.chunks(MOST_ARGUMENTS).map(|some| function.of(some)).collect();
    }
    let rest = function.of(&open);
    if plain.is_empty() {
        return rest;
    }
    let whens: Vec<String> =
        plain.iter().map(|p| format!("WHEN {p} = {settles} THEN {settles}")).collect();
    format!("CASE {} ELSE {rest} END", whens.join(" "))
}

/// The value of a condition, from the truth of it and of its opposite.
pub(super) fn value_of(holds: &str, fails: &str) -> String {
    format!(
        "(CASE {holds} WHEN 1 THEN 1 WHEN 2 THEN NULL ELSE CASE {fails} WHEN 1 THEN 0 ELSE NULL END END)"
    )
}

/// What stands behind it is evaluated for whole rows of these columns.
pub(super) fn for_whole_rows(columns: &[String], truth: &str) -> String {
    guarded(&Function::Row.of(columns), truth)
}

/// Whether a row holds, noted as one of its SELECT; rows of one value are witnesses
/// of the same.
pub(super) fn noted_row(unit: usize, truth: &str, value: Option<&str>) -> String {
    let open = Function::Open.of(&[unit.to_string()]);
    let mut arguments = vec![open.as_str(), truth];
    arguments.extend(value);
    Function::Close.of(&arguments)
}

/// The value of an EXISTS or IN, whose rows are noted together.
pub(super) fn noted_rows(settles: bool, once: bool, unit: usize, value: &str) -> String {
    let flag = |yes: bool| u8::from(yes).to_string();
    let start = Function::Start.of(&[unit.to_string()]);
    Function::Run.of(&[flag(settles), flag(once), start, format!("({value})")])
}

/// The truth of a row that may be one of the first, holding its values with calls.
pub(super) fn held(truth: &str, unheard: &[usize], values: Vec<String>) -> String {
    let mut arguments = vec![mark(), unheard.len().to_string()];
    arguments.extend(unheard.iter().map(usize::to_string));
    arguments.extend(values);
    let held = Function::Hold.of(&arguments);
    if truth == "1" { held } else { and(truth, &held) }
}

/// The number of a row that may be one of the first.
pub(super) fn row_number(unit: usize, truth: &str) -> String {
    Function::RowNote.of(&[&Function::Open.of(&[unit.to_string()]), truth])
}

/// The place of a row by its documents: each call, and the document it asks.
pub(super) fn rank(documents: &[String]) -> String {
    Function::Rank.of(documents)
}

/// LIMIT and OFFSET may not be NULL.
pub(super) fn limit(value: &str) -> String {
    Function::Limit.of(&[&mark(), value])
}

/// A value, noting whether it is pending, for [`unless_pending`].
pub(super) fn remembered(value: &str) -> String {
    Function::After.of(&[&mark(), value])
}

/// A value that is looked at where the one remembered before it is not pending.
pub(super) fn unless_pending(value: &str) -> String {
    format!("CASE {} WHEN 2 THEN NULL ELSE {value} END", Function::Noted.of::<&str>(&[]))
}

/// A condition of a CASE, as its WHEN.
pub(super) fn when(truth: &str) -> String {
    format!("{} = 1", Function::Note.of(&[truth]))
}

/// What follows the value of such a WHEN: a condition that is pending ends the CASE.
pub(super) fn or_pending(then: &str) -> String {
    format!("{then} WHEN {} = 2 THEN NULL", Function::Noted.of::<&str>(&[]))
}
