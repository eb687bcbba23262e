//! Runs a query with calls in passes: run the SQL, collect the demands, send them to the model, and
//! run again until nothing is pending. The rows of the last pass are the result, because all values
//! are known in that pass.

pub mod candidate_order;
pub mod join;
pub mod known_pairs;
pub mod limit_pushdown;
pub mod pass_loop;
pub mod selectivity_sampler;

use std::time::Instant;

use crate::query::ask::LazyRun;
use crate::query::plan::engine::Engine;
use crate::query::plan::nested::NestedRunner;
use crate::query::plan::prepare::ReadQuery;
use crate::query::request::Request;
use crate::query::request::error::QueryError;
use crate::query::result::query_result::{Meta, RowSink};
use crate::query::result::row_buffer::RowBuffer;
use crate::query::run::pass_loop::run_passes;
use hqdl_values::usage::Usage;

/// Runs a query with calls.
///
/// # Errors
/// Returns [`QueryError`] if the query fails. Answers received before the error are kept.
pub fn run_query(
    request: &Request<'_>,
    query: ReadQuery,
    sink: &mut dyn RowSink,
) -> Result<Meta, QueryError> {
    let lazy_run = LazyRun::new(request);
    let result = run_query_in_run(request, query, Some(&lazy_run), run_nested, sink);
    let usage = lazy_run.finish_run(result.is_ok())?;
    let mut meta = result?;
    meta.set_usage(&usage);
    Ok(meta)
}

/// Runs a query within an existing run; without a run, no request can be sent. The metadata does
/// not include the run's usage, because the caller adds it.
pub fn run_query_in_run(
    request: &Request<'_>,
    query: ReadQuery,
    lazy_run: Option<&LazyRun<'_>>,
    run_nested: NestedRunner,
    sink: &mut dyn RowSink,
) -> Result<Meta, QueryError> {
    let began = Instant::now();
    let mut engine = Engine::prepare_query(request, query, lazy_run, run_nested)?;
    run_passes(&mut engine, sink)?;
    Ok(engine.build_meta(Usage::default(), began))
}

fn run_nested(
    request: &Request<'_>,
    lazy_run: Option<&LazyRun<'_>>,
) -> Result<(Meta, Option<RowBuffer>), QueryError> {
    let mut buffer = RowBuffer::default();
    let query = ReadQuery::parse(request)?;
    let meta = run_query_in_run(request, query, lazy_run, run_nested, &mut buffer)?;
    Ok((meta, Some(buffer)))
}
