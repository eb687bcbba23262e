//! Generates the rewritten SQL: the only module that writes calls of the [runtime
//! functions](super::runtime) and the CASE expressions around them. The rules decide what to write;
//! this module formats it.

use super::runtime::Function;

/// Maximum number of nested conditions, because the nesting depth of `SQLite`'s parser is limited.
const WITHIN: usize = 32;
/// Maximum number of function arguments. `SQLite` allows 1,000 by default, but a build can allow
/// fewer.
const MOST_ARGUMENTS: usize = 100;

/// Returns a mark of the pending calls at this point.
pub(super) fn mark() -> String {
    Function::Mark.of::<&str>(&[])
}

/// Returns the answer of call `n` for these values; `nested` is true if a value contains a call.
pub(super) fn call(n: usize, nested: bool, values: &[String]) -> String {
    let mut arguments = vec![n.to_string(), if nested { mark() } else { "0".to_owned() }];
    arguments.extend_from_slice(values);
    Function::Call.of(&arguments)
}

/// Converts a JSON list to a row value with `width` columns.
pub(super) fn row_of(list: &str, width: u32) -> String {
    let values: Vec<String> =
        (0..width).map(|at| format!("json_extract({list}, '$[{at}]')")).collect();
    format!("({})", values.join(", "))
}

/// Aggregates the rows of a query into one value. `cte_name` is the name of the CTE, which must not
/// occur in the query.
pub(super) fn context(form: Function, own: &str, titles: &[String], query: &str) -> String {
    let names: Vec<String> = (1..=titles.len()).map(|n| format!("c{n}")).collect();
    let names = names.join(", ");
    let titles = format!("json_array({})", titles.join(", "));
    let mut rows = form.of(&[&titles, &names]);
    if form == Function::Rows {
        // `SQLite` does not pass constant arguments to an aggregate that has no row.
        let none = format!("json_object('columns', {titles}, 'rows', json_array())");
        rows = format!("CASE count(*) WHEN 0 THEN {none} ELSE {rows} END");
    }
    format!("(WITH {own}({names}) AS ({query}) SELECT {rows} FROM {own})")
}

/// Returns the truth of a condition without calls.
pub(super) fn plain(condition: &str, wanted: bool) -> String {
    format!("(({condition}) IS {})", if wanted { "TRUE" } else { "FALSE" })
}

/// Returns the truth of a condition with calls.
pub(super) fn leaf(at: usize, condition: &str, wanted: bool) -> String {
    let wanted_text = u8::from(wanted).to_string();
    Function::Leaf.of(&[&at.to_string(), &wanted_text, &mark(), &plain(condition, wanted)])
}

/// Returns the truth of an AND that evaluates its second part only if the first is true.
pub(super) fn and(first: &str, rest: &str) -> String {
    format!("CASE {first} WHEN 1 THEN {rest} WHEN 2 THEN 2 ELSE 0 END")
}

/// Returns the truth of an OR that evaluates its second part only if the first is not true.
fn or(first: &str, rest: &str) -> String {
    format!("CASE {first} WHEN 1 THEN 1 WHEN 2 THEN 2 ELSE {rest} END")
}

/// Returns the truth of an AND that evaluates each part only if all parts before it are true.
pub(super) fn every(parts: Vec<String>) -> String {
    one_by_one(parts, and, 0)
}

/// Returns the truth of an OR that evaluates each part only if no part before it is true.
pub(super) fn some(parts: Vec<String>) -> String {
    one_by_one(parts, or, 1)
}

/// Evaluates the parts until one has the truth `decisive`. Nests them, or writes a single CASE if
/// the nesting would be too deep.
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

/// Returns the truth of an AND whose first part has no calls.
pub(super) fn guarded(plain: &str, rest: &str) -> String {
    format!("CASE WHEN {plain} THEN {rest} ELSE 0 END")
}

/// Decides the truth from cached answers if possible and otherwise asks. `of_row` is true for all
/// conditions of a row and false for a part of them.
pub(super) fn settled_first(known: &str, asked: &str, of_row: bool) -> String {
    format!("CASE {} WHEN 1 THEN 1 WHEN 0 THEN 0 ELSE {asked} END", settled(known, of_row))
}

/// Same as [`settled_first`] for the value of a condition.
pub(super) fn settled_value(holds: &str, fails: &str, asked: &str) -> String {
    let (holds, fails) = (settled(holds, false), settled(fails, false));
    format!("(CASE {holds} WHEN 1 THEN 1 ELSE CASE {fails} WHEN 1 THEN 0 ELSE {asked} END END)")
}

fn settled(known: &str, of_row: bool) -> String {
    let quiet = Function::Quiet.of(&[u8::from(of_row).to_string()]);
    Function::Settled.of(&[&quiet, known])
}

/// Returns a call's cached answer without waiting for a missing one.
pub(super) fn known(answer: &str) -> String {
    Function::Settled.of(&[&Function::Quiet.of(&["2"]), answer])
}

/// Returns 1 if cached answers show that a row passes, otherwise 0, without waiting for missing
/// answers.
pub(super) fn known_to_hold(truth: &str) -> String {
    format!("CASE {} WHEN 1 THEN 1 ELSE 0 END", known(truth))
}

/// Returns the truth of conditions that are all evaluated. Those without calls come first, because
/// they can guard the others from an error.
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

/// Returns the value of a condition, computed from its truth and from the truth of its negation.
pub(super) fn value_of(holds: &str, fails: &str) -> String {
    format!(
        "(CASE {holds} WHEN 1 THEN 1 WHEN 2 THEN NULL ELSE CASE {fails} WHEN 1 THEN 0 ELSE NULL END END)"
    )
}

/// Delays the evaluation of `truth` until whole rows with these columns are available.
pub(super) fn for_whole_rows(columns: &[String], truth: &str) -> String {
    guarded(&Function::Row.of(columns), truth)
}

/// Records whether a row of a SELECT passes. Rows with the same `value` are equivalent candidates.
pub(super) fn noted_row(unit: usize, truth: &str, value: Option<&str>) -> String {
    let open = Function::Open.of(&[unit.to_string()]);
    let mut arguments = vec![open.as_str(), truth];
    arguments.extend(value);
    Function::Close.of(&arguments)
}

/// Returns the value of an EXISTS or IN, whose rows are recorded together.
pub(super) fn noted_rows(settles: bool, once: bool, unit: usize, value: &str) -> String {
    let flag = |yes: bool| u8::from(yes).to_string();
    let start = Function::Start.of(&[unit.to_string()]);
    Function::Run.of(&[flag(settles), flag(once), start, format!("({value})")])
}

/// Returns the truth of a candidate row of a LIMIT and stores its values that contain calls.
pub(super) fn held(truth: &str, unheard: &[usize], values: Vec<String>) -> String {
    let mut arguments = vec![mark(), unheard.len().to_string()];
    arguments.extend(unheard.iter().map(usize::to_string));
    arguments.extend(values);
    let held = Function::Hold.of(&arguments);
    if truth == "1" { held } else { and(truth, &held) }
}

/// Returns the number of a candidate row of a LIMIT.
pub(super) fn row_number(unit: usize, truth: &str) -> String {
    Function::RowNote.of(&[&Function::Open.of(&[unit.to_string()]), truth])
}

/// Returns the similarity rank of a row; `documents` lists each call with the document it asks
/// about.
pub(super) fn rank(documents: &[String]) -> String {
    Function::Rank.of(documents)
}

/// LIMIT and OFFSET cannot be NULL, so a pending value becomes 0.
pub(super) fn limit(value: &str) -> String {
    Function::Limit.of(&[&mark(), value])
}

/// Returns a value and records whether it is pending, for [`unless_pending`].
pub(super) fn remembered(value: &str) -> String {
    Function::After.of(&[&mark(), value])
}

/// Evaluates a value only if the last remembered value is not pending.
pub(super) fn unless_pending(value: &str) -> String {
    format!("CASE {} WHEN 2 THEN NULL ELSE {value} END", Function::Noted.of::<&str>(&[]))
}

/// Returns the WHEN condition of a CASE branch.
pub(super) fn when(truth: &str) -> String {
    format!("{} = 1", Function::Note.of(&[truth]))
}

/// Returns the THEN value of such a branch, followed by a branch that ends the CASE if the
/// condition is pending.
pub(super) fn or_pending(then: &str) -> String {
    format!("{then} WHEN {} = 2 THEN NULL", Function::Noted.of::<&str>(&[]))
}
