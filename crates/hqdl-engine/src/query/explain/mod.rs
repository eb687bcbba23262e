//! Explains a query: its routes, its SQL, and an upper bound on its requests and their cost over
//! all passes. This module sends no request.

mod call_bound;
pub mod embedding_usage;
pub mod estimate;

use std::collections::HashSet;
use std::time::Instant;

use crate::query::ask::LazyRun;
use crate::query::cells::targets::Demand;
use crate::query::explain::embedding_usage::ComparedTexts;
use crate::query::functions::call_runtime::lock_runtime;
use crate::query::plan::engine::Engine;
use crate::query::plan::prepare::ReadQuery;
use crate::query::request::Request;
use crate::query::request::error::QueryError;
use crate::query::result::query_result::{Meta, Pass, UnboundedCall};
use crate::query::result::row_buffer::RowBuffer;
use crate::query::route::model_router::WOULD_ASK;
use crate::query::run::limit_pushdown::{CandidateOutcome, CandidateReader, is_stop_reading_error};
use crate::query::run::run_query_in_run;
use crate::query::run::selectivity_sampler::SelectivitySampler;
use hqdl_sql::blendsql::emit::bound::{Batching, RequestBound, compute_request_bound};
use hqdl_sql::blendsql::is_volatile;
use hqdl_sql::blendsql::plan::RuleOutcome as Ruled;
use hqdl_sql::blendsql::rewrite::RewrittenQuery;
use hqdl_sql::blendsql::rules::STORED_COLUMNS;
use hqdl_values::usage::Usage;

/// Returns a description of how a query would run, with an upper bound on its requests. Sends no
/// request.
///
/// # Errors
/// Returns [`QueryError`] if the query cannot be run.
pub fn explain(request: &Request<'_>, query: ReadQuery) -> Result<Meta, QueryError> {
    let began = Instant::now();
    let mut engine = Engine::prepare_query(request, query, None, explain_nested)?;
    if let Some((stored_plan, _)) = engine.run_stored_plan()? {
        let mut meta = engine.build_meta(Usage::default(), began);
        meta.plan = stored_plan.plan;
        let why = "published tables answer every call".to_owned();
        meta.plan.rules.push(Ruled { rule: STORED_COLUMNS, is_applied: true, why });
        return Ok(meta);
    }
    let rewritten = engine.rewrite_query(true);
    engine.sql.clone_from(&rewritten.sql);
    engine.check_statement(&rewritten)?;
    let pass_start = Instant::now();
    // Compare the documents first: each pass discards the stored documents, and the estimate needs
    // the documents that the bound's pass stores.
    let comparisons = engine.collect_compared_documents(&rewritten)?;
    let bound = engine.compute_demand_bound(&rewritten)?;
    let (values, usage, mut by_call) =
        engine.estimate_usage(bound.demands, bound.batching, comparisons)?;
    engine.passes.push(Pass { demanded: values, seconds: pass_start.elapsed().as_secs_f64() });
    let mut meta = engine.build_meta(usage, began);
    meta.price_notes = request.spec.list_reserved_price_notes();
    meta.values_asked += values;
    // The routes of nested queries follow.
    for (n, route) in meta.routes.iter_mut().enumerate() {
        route.bound.get_or_insert_default().merge(&by_call.take(n));
    }
    meta.unbounded.splice(0..0, bound.unbounded);
    let first = meta.routes.iter().filter(|r| r.why.starts_with(WOULD_ASK));
    let why = "the model is asked first whether a column answers it";
    let first = first.map(|r| UnboundedCall { call: r.call.clone(), why: why.to_owned() });
    meta.unbounded.extend(first.collect::<Vec<_>>());
    meta.plan = rewritten.plan;
    let stored = Ruled {
        rule: STORED_COLUMNS,
        is_applied: false,
        why: engine.no_stored_plan_reason.to_owned(),
    };
    meta.plan.rules.push(stored);
    Ok(meta)
}

/// Runs a nested query and returns its rows if all its values are known. Otherwise explains it and
/// returns no rows.
pub fn explain_nested(
    request: &Request<'_>,
    _: Option<&LazyRun<'_>>,
) -> Result<(Meta, Option<RowBuffer>), QueryError> {
    let mut buffer = RowBuffer::default();
    let query = ReadQuery::parse(request)?;
    match run_query_in_run(request, query, None, explain_nested, &mut buffer) {
        Ok(meta) => Ok((meta, Some(buffer))),
        Err(QueryError::NoModel) => Ok((explain(request, ReadQuery::parse(request)?)?, None)),
        Err(error) => Err(error),
    }
}

/// Upper bound on the demands of a query.
struct DemandBound {
    demands: Vec<Demand>,
    unbounded: Vec<UnboundedCall>,
    batching: Batching,
}

impl Engine<'_, '_> {
    /// Returns an upper bound on the demands over all passes.
    fn compute_demand_bound(
        &mut self,
        rewritten: &RewrittenQuery,
    ) -> Result<DemandBound, QueryError> {
        let (text, sites) = (&self.normalized.sql, &self.calls.sites);
        let bound =
            compute_request_bound(text, &self.parsed.query, sites, &self.schema, &rewritten.plan);
        if let Some(demands) = self.find_limit_demands(rewritten, &bound)? {
            return Ok(DemandBound { demands, unbounded: Vec::new(), batching: Batching::All });
        }
        self.start_probe_pass(rewritten);
        let call = |n: usize| self.calls.routes.get(n).map_or(String::new(), |r| r.call.clone());
        let mut unbounded: Vec<UnboundedCall> = (bound.unknown.iter())
            .map(|(n, why)| UnboundedCall { call: call(*n), why: (*why).to_owned() })
            .collect();
        for probe in &bound.probes {
            match self.run_probe(&probe.sql) {
                // An error without a span concerns the probe. An error with a span, such as a
                // context that is too long, concerns the user's query.
                Err(QueryError::Sql(problem)) if problem.span.is_none() => {
                    let why = format!("its rows cannot be counted: {}", problem.message);
                    let of = |n: &usize| UnboundedCall { call: call(*n), why: why.clone() };
                    unbounded.extend(probe.calls.iter().map(of));
                }
                result => result?,
            }
        }
        let demands = lock_runtime(&self.runtime).pass.pending.all_demands();
        let has_limit_pushdown = !rewritten.needed_rows.is_empty()
            || rewritten.limit_pushdown.is_some()
            || !rewritten.subquery_limits().is_empty();
        let batching = if has_limit_pushdown { Batching::Never } else { bound.batching };
        Ok(DemandBound { demands, unbounded, batching })
    }

    /// Returns the demands of the rows that a LIMIT selects, if LIMIT pushdown determines them
    /// exactly. Returns `None` if a call decides which rows come first, if the query uses random
    /// values, or if not all demands were recorded.
    fn find_limit_demands(
        &mut self,
        rewritten: &RewrittenQuery,
        bound: &RequestBound,
    ) -> Result<Option<Vec<Demand>>, QueryError> {
        let random = is_volatile(&self.parsed.query, &self.schema);
        let Some(rule) = &rewritten.limit_pushdown else { return Ok(None) };
        if !rewritten.needed_rows.is_empty() {
            return Ok(None);
        }
        let (depends_on_call, has_hidden_demands) = (
            rule.condition_count > 0 || bound.batching == Batching::Never,
            !rule.shared_calls.is_empty() || random,
        );
        if depends_on_call || has_hidden_demands || !bound.unknown.is_empty() {
            return Ok(None);
        }
        self.start_probe_pass(rewritten);
        let mut reader = CandidateReader::new(rule, &self.runtime, 1, (0, 0), true);
        match self.run_single_pass(rewritten, &mut reader) {
            Err(QueryError::Output(e)) if is_stop_reading_error(&e) => {}
            result => result?,
        }
        if lock_runtime(&self.runtime).pass.pending_count > 0 {
            return Ok(None);
        }
        let mut seen = HashSet::new();
        Ok(Some(match reader.into_outcome(&mut SelectivitySampler::new(1, 1)) {
            CandidateOutcome::SendDemands(demands) => {
                demands.into_iter().filter(|d| seen.insert(*d)).collect()
            }
            CandidateOutcome::Rows(..) => Vec::new(),
        }))
    }

    /// Collects the documents and questions that hqdl compares before the first request.
    fn collect_compared_documents(
        &mut self,
        rewritten: &RewrittenQuery,
    ) -> Result<ComparedTexts, QueryError> {
        let mut comparisons = ComparedTexts::default();
        let (Some(rule), Some(_)) = (&rewritten.limit_pushdown, &self.request.spec.embeddings)
        else {
            return Ok(comparisons);
        };
        if rewritten.similarity_calls.is_empty() {
            return Ok(comparisons);
        }
        self.start_probe_pass(rewritten);
        let mut reader = CandidateReader::new(rule, &self.runtime, 1, (0, 0), true);
        match self.run_single_pass(rewritten, &mut reader) {
            // The pass was aborted because there are too many candidates to order.
            Err(QueryError::Sql(_)) if lock_runtime(&self.runtime).pass.is_aborted => {}
            result => result?,
        }
        self.order_candidates(rule, &mut |question, passages| {
            Ok(comparisons.compute_and_record_similarities(question, passages))
        })?;
        Ok(comparisons)
    }

    /// Starts a pass that records every demand it reaches.
    fn start_probe_pass(&self, rewritten: &RewrittenQuery) {
        let mut runtime = lock_runtime(&self.runtime);
        runtime.load_conditions(rewritten);
        runtime.begin_pass();
        runtime.settings.probes_all_conditions = true;
        runtime.settings.bounds_requests = true;
    }
}
