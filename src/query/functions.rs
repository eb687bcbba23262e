//! The functions that calls become, on a connection.

use std::sync::Arc;

use rusqlite::Connection;
use rusqlite::functions::{Aggregate, Context, FunctionFlags};
use rusqlite::types::{ToSqlOutput, Value as Sql, ValueRef};
use serde_json::Value as Json;

use super::live::{Live, Shared, int, lock};
use super::smoothie::owned;
use crate::value::Value;

/// Arguments that most calls of a function have at most.
const FEW: usize = 8;

/// Registers the functions on a connection.
///
/// # Errors
/// When `SQLite` does not take them.
pub fn register(connection: &Connection, live: &Shared) -> rusqlite::Result<()> {
    // None is deterministic: a call must not be evaluated before it is reached.
    let flags = FunctionFlags::SQLITE_UTF8;
    let make = |name: &str, run: fn(&mut Live, &[ValueRef<'_>]) -> rusqlite::Result<Sql>| {
        let live = Arc::clone(live);
        connection.create_scalar_function(name, -1, flags, move |ctx: &Context<'_>| {
            // Once a row and more: no allocation for what is few, as it mostly is.
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
    make("hq_call", Live::call)?;
    make("hq_rank", Live::rank)?;
    make("hq_row", |_, _| Ok(Sql::Integer(1)))?;
    make("hq_open", |live, values| Ok(live.open(values, false)))?;
    make("hq_close", Live::close)?;
    make("hq_start", |live, values| Ok(live.open(values, true)))?;
    make("hq_run", Live::run)?;
    make("hq_hold", |live, values| Ok(live.hold(values)))?;
    make("hq_row_note", Live::candidate)?;
    make("hq_mark", |live, _| Ok(Sql::Integer(live.pended + 1)))?;
    make("hq_leaf", |live, values| Ok(Sql::Integer(live.leaf(values))))?;
    make("hq_quiet", |live, _| {
        live.quiet.push(live.pended);
        Ok(Sql::Null)
    })?;
    make("hq_settled", |live, values| {
        // What was only looked at does not wait: where it is needed it is asked.
        if let Some(pended) = live.quiet.pop() {
            live.pended = pended;
        }
        Ok(Sql::Integer(int(values, 1)))
    })?;
    make("hq_limit", |live, values| {
        let pending = int(values, 0) != live.pended + 1;
        Ok(if pending { Sql::Integer(0) } else { values.get(1).map_or(Sql::Null, |v| owned(*v)) })
    })?;
    // A value, noting whether a call in it is pending.
    make("hq_after", |live, values| {
        live.noted = if int(values, 0) == live.pended + 1 { 0 } else { 2 };
        Ok(values.get(1).map_or(Sql::Null, |v| owned(*v)))
    })?;
    make("hq_all", |_, values| Ok(Sql::Integer(kleene(values, 0))))?;
    make("hq_any", |_, values| Ok(Sql::Integer(kleene(values, 1))))?;
    make("hq_note", |live, values| {
        live.noted = int(values, 0);
        Ok(Sql::Integer(live.noted))
    })?;
    make("hq_noted", |live, _| Ok(Sql::Integer(live.noted)))?;
    connection.create_aggregate_function("hq_rows", -1, flags, Rows)
}

/// Whether conditions settle it: `settles` when one of them is, 2 when one is open.
fn kleene(values: &[ValueRef<'_>], settles: i64) -> i64 {
    if values.contains(&ValueRef::Integer(settles)) {
        settles
    } else if values.contains(&ValueRef::Integer(2)) {
        2
    } else {
        1 - settles
    }
}

/// `hq_rows(titles, values…)`: rows as one JSON text.
struct Rows;

impl Aggregate<(Json, Vec<Json>), ToSqlOutput<'static>> for Rows {
    fn init(&self, ctx: &mut Context<'_>) -> rusqlite::Result<(Json, Vec<Json>)> {
        let titles: String = ctx.get(0).unwrap_or_default();
        Ok((serde_json::from_str(&titles).unwrap_or_default(), Vec::new()))
    }

    fn step(&self, ctx: &mut Context<'_>, state: &mut (Json, Vec<Json>)) -> rusqlite::Result<()> {
        let value = |n| match Value::read(ctx.get_raw(n)) {
            Ok(value) => value.to_json(),
            Err(why) => format!("({why})").into(),
        };
        state.1.push((1..ctx.len()).map(value).collect());
        Ok(())
    }

    fn finalize(
        &self,
        _: &mut Context<'_>,
        state: Option<(Json, Vec<Json>)>,
    ) -> rusqlite::Result<ToSqlOutput<'static>> {
        let (titles, rows) = state.unwrap_or_default();
        let text = serde_json::json!({ "columns": titles, "rows": rows }).to_string();
        Ok(ToSqlOutput::Owned(Sql::Text(text)))
    }
}
