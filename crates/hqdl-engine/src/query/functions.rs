//! Registers the SQL functions that replace calls ([`Function`]) with a connection.

use std::sync::Arc;

use rusqlite::Connection;
use rusqlite::functions::{Aggregate, Context, FunctionFlags};
use rusqlite::types::{ToSqlOutput, Value as Sql, ValueRef};
use serde_json::Value as Json;

use super::live::{Live, Shared, broken, int, lock};
use super::smoothie::owned;
use hqdl_sql::blendsql::runtime::Function;
use hqdl_values::value::Value;

/// Maximum number of arguments that need no allocation.
const FEW: usize = 8;

/// Registers the functions with a connection.
///
/// # Errors
/// Those of `SQLite`.
pub fn register(connection: &Connection, live: &Shared) -> rusqlite::Result<()> {
    // No function is deterministic, because `SQLite` must not evaluate a call before it is reached.
    let flags = FunctionFlags::SQLITE_UTF8;
    let make = |function: Function,
                run: fn(&mut Live, &[ValueRef<'_>]) -> rusqlite::Result<Sql>| {
        let live = Arc::clone(live);
        connection.create_scalar_function(function.name(), -1, flags, move |ctx: &Context<'_>| {
            // Hot path: it runs at least once per row, so short argument lists are not allocated.
            let mut few = [ValueRef::Null; FEW];
            let many: Vec<ValueRef<'_>>;
            let values = match few.get_mut(..ctx.len()) {
                Some(few) => {
                    few.iter_mut().enumerate().for_each(|(n, value)| *value = ctx.get_raw(n));
                    &*few
                }
                None => {
                    many = (0..ctx.len()).map(|n| ctx.get_raw(n)).collect();
                    &many
                }
            };
            run(&mut lock(&live), values).map(ToSqlOutput::Owned)
        })
    };
    for function in Function::ALL {
        match function {
            Function::Call => make(function, Live::call),
            Function::Rank => make(function, Live::rank),
            Function::Row => make(function, |_, _| Ok(Sql::Integer(1))),
            Function::Open => make(function, |live, values| Ok(live.open(values, false))),
            Function::Close => make(function, Live::close),
            Function::Start => make(function, |live, values| Ok(live.open(values, true))),
            Function::Run => make(function, Live::run),
            Function::Hold => make(function, |live, values| Ok(live.hold(values))),
            Function::RowNote => make(function, Live::candidate),
            Function::Mark => make(function, |live, _| Ok(Sql::Integer(live.mark()))),
            Function::Leaf => make(function, |live, values| Ok(Sql::Integer(live.leaf(values)))),
            Function::Quiet => make(function, |live, values| Ok(live.quiet(values))),
            Function::Settled => make(function, |live, values| Ok(live.settled(values))),
            Function::Limit => make(function, |live, values| Ok(live.limit(values))),
            Function::After => make(function, |live, values| Ok(live.after(values))),
            Function::All => make(function, |_, values| Ok(Sql::Integer(kleene(values, 0)))),
            Function::Any => make(function, |_, values| Ok(Sql::Integer(kleene(values, 1)))),
            Function::Note => make(function, |live, values| Ok(live.note(int(values, 0)))),
            Function::Noted => make(function, |live, _| Ok(live.noted())),
            Function::Rows | Function::Values => {
                let aggregate = RowsAggregate { alone: function == Function::Values };
                connection.create_aggregate_function(function.name(), -1, flags, aggregate)
            }
        }?;
    }
    Ok(())
}

/// Evaluates AND or OR in three-valued logic. Returns `decided_value` if one condition has that
/// value, and 2 if a condition is undecided.
fn kleene(values: &[ValueRef<'_>], settles: i64) -> i64 {
    if values.contains(&ValueRef::Integer(settles)) {
        settles
    } else if values.contains(&ValueRef::Integer(2)) {
        2
    } else {
        1 - settles
    }
}

/// Implements [`Function::Rows`] and [`Function::Values`].
struct RowsAggregate {
    /// A single value of a single row is returned unchanged.
    alone: bool,
}

/// Rows of a context collected so far.
#[derive(Default)]
struct ContextSoFar {
    titles: Json,
    rows: Vec<Json>,
    /// The value of the first row, if it has only one.
    first: Option<Sql>,
    /// Error for a value that cannot be shown as text.
    unreadable: Option<String>,
}

impl Aggregate<ContextSoFar, ToSqlOutput<'static>> for RowsAggregate {
    fn init(&self, ctx: &mut Context<'_>) -> rusqlite::Result<ContextSoFar> {
        let titles: String = ctx.get(0).unwrap_or_default();
        let titles = serde_json::from_str(&titles).unwrap_or_default();
        Ok(ContextSoFar { titles, ..ContextSoFar::default() })
    }

    fn step(&self, ctx: &mut Context<'_>, so_far: &mut ContextSoFar) -> rusqlite::Result<()> {
        if self.alone && so_far.rows.is_empty() && ctx.len() == 2 {
            so_far.first = Some(owned(ctx.get_raw(1)));
        }
        let mut row = Vec::with_capacity(ctx.len());
        for n in 1..ctx.len() {
            let value = Value::read(ctx.get_raw(n)).map(|value| value.to_json());
            row.push(value.unwrap_or_else(|why| {
                let column = so_far.titles.get(n - 1).and_then(Json::as_str).unwrap_or_default();
                so_far.unreadable.get_or_insert_with(|| unreadable(column, &why.to_string()));
                Json::Null
            }));
        }
        so_far.rows.push(row.into());
        Ok(())
    }

    fn finalize(
        &self,
        _: &mut Context<'_>,
        so_far: Option<ContextSoFar>,
    ) -> rusqlite::Result<ToSqlOutput<'static>> {
        let ContextSoFar { titles, rows, first, unreadable } = so_far.unwrap_or_default();
        let value = match (rows.len(), first) {
            (0, _) if self.alone => Sql::Null,
            (1, Some(first)) => first,
            _ => match unreadable {
                Some(why) => return Err(broken(&why)),
                None => {
                    Sql::Text(serde_json::json!({ "columns": titles, "rows": rows }).to_string())
                }
            },
        };
        Ok(ToSqlOutput::Owned(value))
    }
}

/// Returns the error for a column of a context with a value that cannot be shown as text.
fn unreadable(column: &str, why: &str) -> String {
    format!(
        "the column `{column}` of a context has a value that cannot be sent as text: {why}; remove the column, or ask about each image: LLMMap('…', t.{column}, image=true)"
    )
}
