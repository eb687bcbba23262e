//! The aggregates `hq_best(value, score, k)` and `hq_nearest(value, score, k)`.

use std::borrow::Cow;
use std::collections::BTreeMap;

use rusqlite::functions::{Aggregate, Context, FunctionFlags};
use rusqlite::types::ValueRef;
use rusqlite::{Connection, Error};
use serde_json::Value as Json;

use hqdl_sql::blendsql::NEAREST;
use hqdl_sql::blendsql::runtime::{BEST_AGGREGATE, NEAREST_AGGREGATE};
use hqdl_values::value::Value;

/// Registers the aggregates with a connection.
///
/// # Errors
/// Fails if `SQLite` rejects a registration.
pub fn register_best_aggregate(connection: &Connection) -> rusqlite::Result<()> {
    let all = [(BEST_AGGREGATE, "LLMTopK"), (NEAREST_AGGREGATE, NEAREST)];
    all.into_iter().try_for_each(|(function, call_name)| {
        let flags = FunctionFlags::SQLITE_UTF8;
        connection.create_aggregate_function(function, 3, flags, BestAggregate { call_name })
    })
}

/// Implements [`BEST_AGGREGATE`] and [`NEAREST_AGGREGATE`].
struct BestAggregate {
    /// Name of the call that is rewritten to the aggregate, for messages.
    call_name: &'static str,
}

/// Reads an argument of an aggregate that replaces a call.
///
/// # Errors
/// Fails for a value that is neither a text nor a number nor NULL.
pub(super) fn read_aggregate_value(
    ctx: &Context<'_>,
    n: usize,
    call_name: &str,
) -> rusqlite::Result<Value> {
    Value::from_sqlite(ctx.get_raw(n)).map_err(|why| {
        let message = format!("a value of `{call_name}` is {why}: pass texts or numbers");
        Error::UserFunctionError(message.into())
    })
}

/// Scored values collected so far in a group.
#[derive(Default)]
struct ScoredValues {
    scores: BTreeMap<String, (f64, Json)>,
    /// Number of values to return; set by the first row.
    k: Option<usize>,
}

impl Aggregate<ScoredValues, String> for BestAggregate {
    fn init(&self, _: &mut Context<'_>) -> rusqlite::Result<ScoredValues> {
        Ok(ScoredValues::default())
    }

    fn step(&self, ctx: &mut Context<'_>, state: &mut ScoredValues) -> rusqlite::Result<()> {
        let k = match ctx.get_raw(2) {
            ValueRef::Integer(k) if k >= 0 => usize::try_from(k).unwrap_or(usize::MAX),
            _ => {
                let name = self.call_name;
                let message = format!("k of `{name}` is not a whole number of 0 or more");
                return Err(Error::UserFunctionError(message.into()));
            }
        };
        if *state.k.get_or_insert(k) != k {
            let message = format!(
                "k of `{}` differs within a group: group by it, or use a constant",
                self.call_name
            );
            return Err(Error::UserFunctionError(message.into()));
        }
        let value = read_aggregate_value(ctx, 0, self.call_name)?;
        let score: Option<f64> = ctx.get(1)?;
        if let Some((score, text)) = score.zip(value.canonical_text().map(Cow::into_owned)) {
            state.scores.insert(text, (score, value.to_json()));
        }
        Ok(())
    }

    fn finalize(
        &self,
        _: &mut Context<'_>,
        state: Option<ScoredValues>,
    ) -> rusqlite::Result<String> {
        let ScoredValues { scores, k } = state.unwrap_or_default();
        let mut best: Vec<(f64, Json)> = scores.into_values().collect();
        // The sort is stable, so values with equal scores stay sorted by value.
        best.sort_by(|(a, _), (b, _)| b.total_cmp(a));
        Ok(best
            .into_iter()
            .take(k.unwrap_or(0))
            .map(|(_, value)| value)
            .collect::<Json>()
            .to_string())
    }
}
