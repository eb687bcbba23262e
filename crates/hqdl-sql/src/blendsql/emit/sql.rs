//! Generates the rewritten SQL. No other module writes calls of the [runtime
//! functions](crate::blendsql::runtime) and the CASE expressions around them. The rules decide what
//! to write; this module formats it.

use crate::blendsql::plan::ScopeColumn;
use crate::blendsql::runtime::Function;
use hqdl_values::sql::quote_name;

/// Maximum number of nested conditions, because the nesting depth of `SQLite`'s parser is limited.
const MAX_NESTING: usize = 32;
/// Maximum number of function arguments. `SQLite` allows 1,000 by default, but a build can allow
/// fewer.
const MAX_ARGUMENTS: usize = 100;

/// Returns SQL for a mark: the number of calls that are pending before the arguments of a call are
/// evaluated, plus one. If the number has changed by the time the call runs, an argument of the
/// call is pending.
pub(super) fn pending_mark_sql() -> String {
    Function::PendingMark.call_sql::<&str>(&[])
}

/// Returns SQL for the answer of call `n` for these values; `nested` is true if a value contains a
/// call.
pub(super) fn call_answer_sql(n: usize, nested: bool, values: &[String]) -> String {
    let mut arguments =
        vec![n.to_string(), if nested { pending_mark_sql() } else { "0".to_owned() }];
    arguments.extend_from_slice(values);
    Function::Call.call_sql(&arguments)
}

/// Returns SQL that converts a JSON list to a row value with `width` columns.
pub(super) fn list_to_row_sql(list: &str, width: u32) -> String {
    let values: Vec<String> =
        (0..width).map(|at| format!("json_extract({list}, '$[{at}]')")).collect();
    format!("({})", values.join(", "))
}

/// Returns SQL that aggregates the rows of a query into one value. `cte_name` is the name of the
/// CTE, which must not occur in the query.
pub(super) fn rows_as_value_sql(
    aggregate: Function,
    cte_name: &str,
    titles: &[String],
    query: &str,
) -> String {
    let names: Vec<String> = (1..=titles.len()).map(|n| format!("c{n}")).collect();
    let names = names.join(", ");
    let titles = format!("json_array({})", titles.join(", "));
    let mut rows = aggregate.call_sql(&[&titles, &names]);
    if aggregate == Function::Rows {
        // `SQLite` does not pass constant arguments to an aggregate over no rows.
        let no_rows = format!("json_object('columns', {titles}, 'rows', json_array())");
        rows = format!("CASE count(*) WHEN 0 THEN {no_rows} ELSE {rows} END");
    }
    format!("(WITH {cte_name}({names}) AS ({query}) SELECT {rows} FROM {cte_name})")
}

/// Returns SQL for the truth value of a condition without calls.
pub(super) fn plain_truth_sql(condition: &str, wanted: bool) -> String {
    format!("(({condition}) IS {})", if wanted { "TRUE" } else { "FALSE" })
}

/// Returns SQL for the condition that a value is not NULL.
pub(super) fn is_not_null_sql(value: &str) -> String {
    format!("({value}) IS NOT NULL")
}

/// Returns SQL that counts the rows for which a condition returns 1.
pub(super) fn count_rows_sql(condition: &str) -> String {
    format!("count(*) FILTER (WHERE {condition})")
}

/// Returns SQL for the truth value of a condition with calls.
pub(super) fn predicate_truth_sql(at: usize, condition: &str, wanted: bool) -> String {
    let wanted_text = u8::from(wanted).to_string();
    Function::PredicateTruth.call_sql(&[
        &at.to_string(),
        &wanted_text,
        &pending_mark_sql(),
        &plain_truth_sql(condition, wanted),
    ])
}

/// Returns SQL for the truth value of an AND that evaluates its second part only if the first part
/// is true.
pub(super) fn and_then_sql(first: &str, rest: &str) -> String {
    format!("CASE {first} WHEN 1 THEN {rest} WHEN 2 THEN 2 ELSE 0 END")
}

/// Returns SQL for the truth value of an OR that evaluates its second part only if the first part
/// is not true.
fn or_else_sql(first: &str, rest: &str) -> String {
    format!("CASE {first} WHEN 1 THEN 1 WHEN 2 THEN 2 ELSE {rest} END")
}

/// Returns SQL for the truth value of an AND that evaluates each part only if all earlier parts are
/// true.
pub(super) fn all_of_sql(parts: Vec<String>) -> String {
    short_circuit_sql(parts, and_then_sql, 0)
}

/// Returns SQL for the truth value of an OR that evaluates each part only if no earlier part is
/// true.
pub(super) fn any_of_sql(parts: Vec<String>) -> String {
    short_circuit_sql(parts, or_else_sql, 1)
}

/// Returns SQL that evaluates the parts until one has the truth value `decisive`. It nests the
/// parts, or uses a single CASE if the nesting would be too deep.
fn short_circuit_sql(
    mut parts: Vec<String>,
    combine: fn(&str, &str) -> String,
    decisive: u8,
) -> String {
    if parts.len() > MAX_NESTING {
        let last_truth = Function::LastTruth.call_sql::<&str>(&[]);
        let branch = |part: &String| {
            let recorded = Function::RecordTruth.call_sql(&[part]);
            format!("WHEN {recorded} = {decisive} THEN {decisive} WHEN {last_truth} = 2 THEN 2")
        };
        let whens: Vec<String> = parts.iter().map(branch).collect();
        return format!("CASE {} ELSE {} END", whens.join(" "), 1 - decisive);
    }
    let Some(last) = parts.pop() else { return (1 - decisive).to_string() };
    parts.into_iter().rev().fold(last, |rest, first| combine(&first, &rest))
}

/// Returns SQL for the truth value of an AND whose first part has no calls.
pub(super) fn guard_truth_sql(plain: &str, rest: &str) -> String {
    format!("CASE WHEN {plain} THEN {rest} ELSE 0 END")
}

/// Returns SQL that decides the truth from cached answers if possible and otherwise makes requests.
/// `of_row` is true if the SQL covers all conditions of a row, and false if it covers only some.
pub(super) fn lookup_before_asking_sql(known: &str, asking: &str, of_row: bool) -> String {
    format!(
        "CASE {} WHEN 1 THEN 1 WHEN 0 THEN 0 ELSE {asking} END",
        lookup_truth_sql(known, of_row)
    )
}

/// Same as [`lookup_before_asking_sql`], but for the value of a condition instead of its truth.
pub(super) fn lookup_value_before_asking_sql(holds: &str, fails: &str, asking: &str) -> String {
    let (holds, fails) = (lookup_truth_sql(holds, false), lookup_truth_sql(fails, false));
    format!("(CASE {holds} WHEN 1 THEN 1 ELSE CASE {fails} WHEN 1 THEN 0 ELSE {asking} END END)")
}

fn lookup_truth_sql(known: &str, of_row: bool) -> String {
    let begin = Function::BeginLookup.call_sql(&[u8::from(of_row).to_string()]);
    Function::EndLookup.call_sql(&[&begin, known])
}

/// Returns SQL that evaluates a value only for rows whose number is at most `last`.
pub(super) fn value_of_first_rows_sql(number: &str, last: u64, value: &str) -> String {
    format!("CASE WHEN {number} <= {last} THEN {value} END")
}

/// Same as [`value_of_first_rows_sql`] for a probe, with 0 for the other rows. Counts by rank, so
/// it includes all ties in the window's order: `row_number` may put any of them first.
pub(super) fn probe_of_first_rows_sql(number: &str, last: u64, probe: &str) -> String {
    let window = number.find('(').map_or(number, |at| &number[at..]);
    format!("(CASE WHEN rank{window} <= {last} THEN {probe} ELSE 0 END)")
}

/// Returns SQL for a call's cached answer without waiting for a missing answer.
pub(super) fn lookup_only_sql(answer: &str) -> String {
    Function::EndLookup.call_sql(&[&Function::BeginLookup.call_sql(&["2"]), answer])
}

/// Returns SQL that yields 1 if cached answers show that a row passes, otherwise 0, without waiting
/// for missing answers.
pub(super) fn known_true_sql(truth: &str) -> String {
    format!("CASE {} WHEN 1 THEN 1 ELSE 0 END", lookup_only_sql(truth))
}

/// Returns SQL that evaluates all conditions and yields their combined truth value. Conditions
/// without calls come first, because they can prevent errors in the others.
pub(super) fn evaluate_all_sql(all: bool, plain: &[String], with_calls: &[String]) -> String {
    let (function, decisive) = if all { (Function::All, 0) } else { (Function::Any, 1) };
    let mut with_calls = with_calls.to_vec();
    while with_calls.len() > MAX_ARGUMENTS {
        with_calls = with_calls.chunks(MAX_ARGUMENTS).map(|some| function.call_sql(some)).collect();
    }
    let rest = function.call_sql(&with_calls);
    if plain.is_empty() {
        return rest;
    }
    let whens: Vec<String> =
        plain.iter().map(|p| format!("WHEN {p} = {decisive} THEN {decisive}")).collect();
    format!("CASE {} ELSE {rest} END", whens.join(" "))
}

/// Returns SQL for the value of a condition, computed from its truth and from the truth of its
/// negation.
pub(super) fn truth_value_sql(holds: &str, fails: &str) -> String {
    format!(
        "(CASE {holds} WHEN 1 THEN 1 WHEN 2 THEN NULL ELSE CASE {fails} WHEN 1 THEN 0 ELSE NULL END END)"
    )
}

/// Returns SQL that delays the evaluation of `truth` until whole rows with these columns are
/// available.
pub(super) fn after_row_barrier_sql(columns: &[ScopeColumn], truth: &str) -> String {
    let columns: Vec<String> = columns.iter().map(qualify_name).collect();
    guard_truth_sql(&Function::RowBarrier.call_sql(&columns), truth)
}

fn qualify_name(column: &ScopeColumn) -> String {
    let name = quote_name(&column.column);
    column.table.as_ref().map_or_else(|| name.clone(), |t| format!("{}.{name}", quote_name(t)))
}

/// Wraps a FROM source in a subquery that `SQLite` does not flatten.
pub(super) fn materialization_fence_sql(source: &str, conditions: &[String]) -> String {
    let filter = match conditions {
        [] => String::new(),
        all => format!(" WHERE {}", all.join(" AND ")),
    };
    format!("SELECT * FROM {source}{filter} LIMIT -1")
}

/// Returns a condition that requires a row's columns to be in `rows` if `keeps` is true, and not to
/// be in `rows` otherwise. With `keeps`, the condition also holds for a row with NULL.
pub(super) fn membership_condition_sql(columns: &[&str], rows: &str, keeps: bool) -> String {
    let is_member = format!("({}) IN ({rows})", columns.join(", "));
    if !keeps {
        return format!("(({is_member}) IS NOT TRUE)");
    }
    let nulls: Vec<String> = columns.iter().map(|c| format!("({c}) IS NULL")).collect();
    format!("({is_member} OR {})", nulls.join(" OR "))
}

/// Returns the SQL that records whether a row of a SELECT passes. Rows with the same values are
/// equivalent candidates, or belong to one group.
pub(super) fn record_row_sql(condition_group: usize, truth: &str, values: &[&str]) -> String {
    let begin = Function::OpenRow.call_sql(&[condition_group.to_string()]);
    let mut arguments = vec![begin.as_str(), truth];
    arguments.extend(values);
    Function::CloseRow.call_sql(&arguments)
}

/// Returns SQL that yields the value of an EXISTS or IN and records its rows together. If there is
/// an operand, only rows that equal the operand matter.
pub(super) fn record_subquery_sql(
    is_decisive: bool,
    once: bool,
    condition_group: usize,
    (value, operand): (&str, Option<&str>),
) -> String {
    let flag = |yes: bool| u8::from(yes).to_string();
    let begin = Function::OpenSubquery.call_sql(&[condition_group.to_string()]);
    let mut arguments = vec![flag(is_decisive), flag(once), begin, format!("({value})")];
    arguments.extend(operand.map(|operand| format!("({operand})")));
    Function::CloseSubquery.call_sql(&arguments)
}

/// Returns SQL that yields the truth value of a LIMIT's candidate row and stores the row's values
/// that have calls.
pub(super) fn store_values_sql(truth: &str, shared_calls: &[usize], values: Vec<String>) -> String {
    let mut arguments = vec![pending_mark_sql(), shared_calls.len().to_string()];
    arguments.extend(shared_calls.iter().map(usize::to_string));
    arguments.extend(values);
    let hold = Function::StoreCallValues.call_sql(&arguments);
    if truth == "1" { hold } else { and_then_sql(truth, &hold) }
}

/// Returns SQL for the number of a candidate row of a LIMIT.
pub(super) fn number_row_sql(condition_group: usize, truth: &str) -> String {
    Function::NumberRow
        .call_sql(&[&Function::OpenRow.call_sql(&[condition_group.to_string()]), truth])
}

/// Returns SQL for the similarity rank of a row; `documents` lists each call with the document it
/// asks about.
pub(super) fn similarity_rank_sql(documents: &[String]) -> String {
    Function::Rank.call_sql(documents)
}

/// Returns SQL for the value of LIMIT or OFFSET. LIMIT and OFFSET cannot be NULL, so a pending
/// value becomes 0.
pub(super) fn limit_value_sql(value: &str) -> String {
    Function::Limit.call_sql(&[&pending_mark_sql(), value])
}

/// Returns SQL that yields a value and records for [`unless_pending_sql`] whether the value is
/// pending.
pub(super) fn record_pending_sql(value: &str) -> String {
    Function::RecordPending.call_sql(&[&pending_mark_sql(), value])
}

/// Returns SQL that evaluates a value only if the last remembered value is not pending.
pub(super) fn unless_pending_sql(value: &str) -> String {
    format!("CASE {} WHEN 2 THEN NULL ELSE {value} END", Function::LastTruth.call_sql::<&str>(&[]))
}

/// Returns the WHEN condition of a CASE branch.
pub(super) fn when_condition_sql(truth: &str) -> String {
    format!("{} = 1", Function::RecordTruth.call_sql(&[truth]))
}

/// Returns the THEN value of a branch, followed by a second branch that ends the CASE if the
/// condition is pending.
pub(super) fn then_or_pending_sql(then: &str) -> String {
    format!("{then} WHEN {} = 2 THEN NULL", Function::LastTruth.call_sql::<&str>(&[]))
}
