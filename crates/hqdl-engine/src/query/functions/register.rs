//! Registers the SQL functions that replace calls ([`Function`]) with a connection.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use rusqlite::Connection;
use rusqlite::functions::{Aggregate, Context, FunctionFlags};
use rusqlite::types::{ToSqlOutput, Value as Sql, ValueRef};
use serde_json::Value as Json;

use crate::query::connection::dedup::register_dedup_functions;
use crate::query::functions::call_runtime::{
    CallRuntime, SharedRuntime, function_error, integer_argument, lock_runtime,
};
use crate::query::result::query_result::to_owned_value;
use hqdl_sql::blendsql::runtime::Function;
use hqdl_values::value::Value;

/// Maximum number of arguments that are passed without an allocation.
const INLINE_ARGUMENTS: usize = 8;

/// `SQLite` may evaluate a deterministic function before it reaches the expression, so no function
/// is declared deterministic.
const FLAGS: FunctionFlags = FunctionFlags::SQLITE_UTF8;

type ScalarFunction = fn(&mut CallRuntime, &[ValueRef<'_>]) -> rusqlite::Result<Sql>;

/// Registers the functions with a connection.
///
/// # Errors
/// Fails if `SQLite` rejects a registration.
pub fn register_functions(
    connection: &Connection,
    runtime: &SharedRuntime,
) -> rusqlite::Result<()> {
    let register = |function, run| register_scalar(connection, runtime, function, run);
    for function in Function::ALL {
        match function {
            Function::Call => register(function, CallRuntime::evaluate_call),
            Function::Rank => register(function, CallRuntime::rank_row),
            Function::RowBarrier => register(function, |_, _| Ok(Sql::Integer(1))),
            Function::OpenRow => {
                register(function, |runtime, values| Ok(runtime.open_frame(values, false)))
            }
            Function::CloseRow => register(function, CallRuntime::close_frame),
            Function::OpenSubquery => {
                register(function, |runtime, values| Ok(runtime.open_frame(values, true)))
            }
            Function::CloseSubquery => register(function, CallRuntime::close_subquery),
            Function::StoreCallValues => {
                register(function, |runtime, values| Ok(runtime.store_call_values(values)))
            }
            Function::NumberRow => register(function, CallRuntime::number_row),
            Function::PendingMark => {
                register(function, |runtime, _| Ok(Sql::Integer(runtime.pending_mark())))
            }
            Function::PredicateTruth => register(function, |runtime, values| {
                Ok(Sql::Integer(runtime.evaluate_predicate(values)))
            }),
            Function::BeginLookup => {
                register(function, |runtime, values| Ok(runtime.begin_lookup(values)))
            }
            Function::EndLookup => {
                register(function, |runtime, values| Ok(runtime.end_lookup(values)))
            }
            Function::Limit => {
                register(function, |runtime, values| Ok(runtime.evaluate_limit(values)))
            }
            Function::RecordPending => {
                register(function, |runtime, values| Ok(runtime.record_pending(values)))
            }
            Function::All => {
                register(function, |_, values| Ok(Sql::Integer(evaluate_kleene(values, 0))))
            }
            Function::Any => {
                register(function, |_, values| Ok(Sql::Integer(evaluate_kleene(values, 1))))
            }
            Function::RecordTruth => register(function, |runtime, values| {
                Ok(runtime.record_truth(integer_argument(values, 0)))
            }),
            Function::LastTruth => register(function, |runtime, _| Ok(runtime.last_truth())),
            Function::Texts => {
                connection.create_aggregate_function(function.name(), 1, FLAGS, TextsAggregate)
            }
            Function::Rows | Function::Values => {
                let aggregate =
                    RowsAggregate { returns_single_value: function == Function::Values };
                connection.create_aggregate_function(function.name(), -1, FLAGS, aggregate)
            }
        }?;
    }
    let runtime = Arc::clone(runtime);
    register_dedup_functions(connection, move |call, note| {
        lock_runtime(&runtime).data.cluster_notes.insert(call, note);
    })
}

fn register_scalar(
    connection: &Connection,
    runtime: &SharedRuntime,
    function: Function,
    run: ScalarFunction,
) -> rusqlite::Result<()> {
    let runtime = Arc::clone(runtime);
    connection.create_scalar_function(function.name(), -1, FLAGS, move |ctx: &Context<'_>| {
        // This runs at least once per row, so avoid allocating for short argument lists.
        let mut inline = [ValueRef::Null; INLINE_ARGUMENTS];
        let heap: Vec<ValueRef<'_>>;
        let values = match inline.get_mut(..ctx.len()) {
            Some(inline) => {
                inline.iter_mut().enumerate().for_each(|(n, value)| *value = ctx.get_raw(n));
                &*inline
            }
            None => {
                heap = (0..ctx.len()).map(|n| ctx.get_raw(n)).collect();
                &heap
            }
        };
        run(&mut lock_runtime(&runtime), values).map(ToSqlOutput::Owned)
    })
}

/// Evaluates AND or OR in three-valued logic. Returns `decided_value` if a condition has that
/// value, otherwise 2 if a condition is undecided, and otherwise the opposite of `decided_value`.
fn evaluate_kleene(values: &[ValueRef<'_>], decided_value: i64) -> i64 {
    if values.contains(&ValueRef::Integer(decided_value)) {
        decided_value
    } else if values.contains(&ValueRef::Integer(2)) {
        2
    } else {
        1 - decided_value
    }
}

/// Implements [`Function::Rows`] and [`Function::Values`].
struct RowsAggregate {
    /// Whether the value of a single row with a single column is returned unchanged.
    returns_single_value: bool,
}

/// Rows collected so far for a context.
#[derive(Default)]
struct ContextRowsState {
    titles: Json,
    rows: Vec<Json>,
    /// Value of the first row, if the row has a single column.
    first: Option<Sql>,
    /// Error for a value that cannot be shown as text.
    unreadable: Option<String>,
}

impl Aggregate<ContextRowsState, ToSqlOutput<'static>> for RowsAggregate {
    fn init(&self, ctx: &mut Context<'_>) -> rusqlite::Result<ContextRowsState> {
        let titles: String = ctx.get(0).unwrap_or_default();
        let titles = serde_json::from_str(&titles).unwrap_or_default();
        Ok(ContextRowsState { titles, ..ContextRowsState::default() })
    }

    fn step(&self, ctx: &mut Context<'_>, state: &mut ContextRowsState) -> rusqlite::Result<()> {
        if self.returns_single_value && state.rows.is_empty() && ctx.len() == 2 {
            state.first = Some(to_owned_value(ctx.get_raw(1)));
        }
        let mut row = Vec::with_capacity(ctx.len());
        for n in 1..ctx.len() {
            let value = Value::from_sqlite(ctx.get_raw(n)).map(|value| value.to_json());
            row.push(value.unwrap_or_else(|why| {
                let column = state.titles.get(n - 1).and_then(Json::as_str).unwrap_or_default();
                state
                    .unreadable
                    .get_or_insert_with(|| unreadable_value_error(column, &why.to_string()));
                Json::Null
            }));
        }
        state.rows.push(row.into());
        Ok(())
    }

    fn finalize(
        &self,
        _: &mut Context<'_>,
        state: Option<ContextRowsState>,
    ) -> rusqlite::Result<ToSqlOutput<'static>> {
        let ContextRowsState { titles, rows, first, unreadable } = state.unwrap_or_default();
        let value = match (rows.len(), first) {
            (0, _) if self.returns_single_value => Sql::Null,
            (1, Some(first)) => first,
            _ => match unreadable {
                Some(why) => return Err(function_error(&why)),
                None => {
                    Sql::Text(serde_json::json!({ "columns": titles, "rows": rows }).to_string())
                }
            },
        };
        Ok(ToSqlOutput::Owned(value))
    }
}

/// Implements [`Function::Texts`].
struct TextsAggregate;

/// Texts collected so far in a group.
#[derive(Default)]
struct GroupTexts {
    texts: BTreeSet<String>,
    /// Error for a value that cannot be shown as text.
    unreadable: Option<String>,
}

impl Aggregate<GroupTexts, Option<String>> for TextsAggregate {
    fn init(&self, _: &mut Context<'_>) -> rusqlite::Result<GroupTexts> {
        Ok(GroupTexts::default())
    }

    fn step(&self, ctx: &mut Context<'_>, state: &mut GroupTexts) -> rusqlite::Result<()> {
        match Value::from_sqlite(ctx.get_raw(0)) {
            Ok(value) => {
                let text = value.canonical_text().filter(|text| !text.trim().is_empty());
                state.texts.extend(text.map(Cow::into_owned));
            }
            Err(why) => drop(state.unreadable.get_or_insert_with(|| {
                format!("a value of `LLMReduce` cannot be sent as text: {why}; leave such values out with FILTER (WHERE typeof(…) <> 'blob')")
            })),
        }
        Ok(())
    }

    fn finalize(
        &self,
        _: &mut Context<'_>,
        state: Option<GroupTexts>,
    ) -> rusqlite::Result<Option<String>> {
        let GroupTexts { texts, unreadable } = state.unwrap_or_default();
        match unreadable {
            Some(why) => Err(function_error(&why)),
            None => Ok((!texts.is_empty()).then(|| serde_json::json!(texts).to_string())),
        }
    }
}

/// Returns the message about a context column with a value that cannot be shown as text.
fn unreadable_value_error(column: &str, why: &str) -> String {
    format!(
        "the column `{column}` of a context has a value that cannot be sent as text: {why}; remove the column, or ask about each image or recording: LLMMap('…', t.{column}, media=true)"
    )
}
