//! Pass loop of a query: runs the SQL, chooses the next step, takes that step, and repeats.

use std::collections::HashSet;
use std::time::Instant;

use crate::query::ask::similarity::compute_word_similarities;
use crate::query::cells::call_target::CallTarget;
use crate::query::cells::targets::{Demand, TargetExpansion};
use crate::query::functions::call_runtime::pending_set::PendingSet;
use crate::query::functions::call_runtime::{QueryData, lock_runtime};
use crate::query::plan::engine::Engine;
use crate::query::request::error::QueryError;
use crate::query::result::query_result::{Pass, RowSink};
use crate::query::result::row_buffer::RowBuffer;
use crate::query::run::join::{self, JoinQuestions};
use crate::query::run::known_pairs::AskedLists;
use crate::query::run::limit_pushdown::{CandidateOutcome, CandidateReader, is_stop_reading_error};
use crate::query::run::selectivity_sampler::SelectivitySampler;
use hqdl_sql::blendsql::plan::LimitPushdown;
use hqdl_sql::blendsql::rewrite::RewrittenQuery;

/// Ratio of distinct values to rows below which a condition is cheap. A cheap condition is
/// evaluated first, without sampling the other conditions.
const CHEAP_RATIO: f64 = 0.25;

/// Runs passes until a pass is final, and sends that pass's rows to the sink.
pub fn run_passes(engine: &mut Engine<'_, '_>, sink: &mut dyn RowSink) -> Result<(), QueryError> {
    if let Some((stored_plan, buffer)) = engine.run_stored_plan()? {
        return engine.send_rows(&stored_plan, &buffer, sink);
    }
    let mut pass_loop = PassLoop::new(engine);
    pass_loop.find_known_lists()?;
    loop {
        let rewritten = pass_loop.rewrite_current_statement();
        let began = Instant::now();
        let Some(end) = pass_loop.run_pass(&rewritten)? else {
            pass_loop.statement = Statement::Query;
            continue;
        };
        let seconds = began.elapsed().as_secs_f64();
        let Some(open_pairs) = pass_loop.answer_known_pairs()? else {
            // Known pairs can exclude rows, so that the next pass demands fewer values.
            pass_loop.engine.passes.push(Pass { demanded: 0, seconds });
            continue;
        };
        let step = pass_loop.choose_step(&rewritten, end, open_pairs);
        if let Some(buffer) = pass_loop.execute_step(step, seconds)? {
            engine.sql.clone_from(&rewritten.sql);
            return engine.send_rows(&rewritten, &buffer, sink);
        }
    }
}

/// Statement that a pass runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Statement {
    /// The whole query.
    Query,
    /// A subquery with LIMIT, which runs separately until its first rows are known.
    Subquery(usize),
}

/// Rules that a pass applies to save requests. If the query waits for a value without recording a
/// demand, the next pass applies fewer rules.
#[derive(Clone, Copy, PartialEq, Eq)]
enum EnabledRules {
    /// All rules.
    LimitPushdown,
    /// No LIMIT pushdown.
    NoLimitPushdown,
    /// No LIMIT pushdown, and every call is reached.
    NoShortCircuit,
}

enum PassEnd<'r> {
    /// The statement returned all its rows.
    Rows(RowBuffer),
    /// The reader has read enough candidates, or all candidates.
    Candidates(CandidateReader<'r>),
    /// The pass ended early, because it had recorded enough demands.
    Aborted,
}

/// Step after a pass. Unless the pass is final, the next pass runs with the changes that the step
/// made.
enum PassStep<'r> {
    /// The rows are the result.
    Finish(RowBuffer),
    /// Send the demands, and the questions about the pairs of each join.
    Send(Vec<Demand>, Vec<JoinQuestions>),
    /// Order the candidates by similarity before hqdl asks about any of them.
    OrderCandidates(&'r LimitPushdown),
    /// Evaluate a cheap condition first instead of sampling the other conditions.
    SkipSample,
    /// Evaluate the conditions in the order that the last answers suggest.
    Reorder,
    /// Run a subquery separately.
    EnterSubquery(usize),
    /// Run the query again, now that the first rows of the subquery are known.
    CompleteSubquery(usize),
    /// Run the whole query, because running the subquery separately makes no further progress.
    LeaveSubquery,
    /// Run again, because the demands that the aborted pass recorded are no longer needed.
    Repeat,
    /// Evaluate with fewer rules, because calls are pending but the pass recorded no demand.
    Relax,
}

/// State of the loop between two passes.
struct PassLoop<'e, 'r, 'a> {
    engine: &'e mut Engine<'r, 'a>,
    sampler: SelectivitySampler,
    statement: Statement,
    /// Offsets of the subqueries that were already tried and are not run separately again.
    tried_subqueries: Vec<usize>,
    evaluation: EnabledRules,
    /// Whether the conditions have been reordered since the last request.
    is_reordered: bool,
    /// The joins, with the lists of candidates that each has asked about.
    asked_lists: Vec<AskedLists>,
}

impl<'e, 'r, 'a> PassLoop<'e, 'r, 'a> {
    fn new(engine: &'e mut Engine<'r, 'a>) -> Self {
        Self {
            sampler: engine.new_sampler(),
            asked_lists: (engine.calls.joins.iter().enumerate())
                .map(|(n, join)| AskedLists::new(n, join))
                .collect(),
            engine,
            statement: Statement::Query,
            tried_subqueries: Vec::new(),
            evaluation: EnabledRules::LimitPushdown,
            is_reordered: false,
        }
    }

    /// Returns the SQL of the next pass.
    fn rewrite_current_statement(&self) -> RewrittenQuery {
        match self.statement {
            Statement::Query => {
                self.engine.rewrite_query(self.evaluation == EnabledRules::LimitPushdown)
            }
            Statement::Subquery(at) => self.engine.rewrite_standalone_subquery(at),
        }
    }

    /// Runs the statement once. Returns `None` for a subquery that cannot run separately. If the
    /// query itself is invalid, running the whole query reports the error.
    fn run_pass<'q>(
        &self,
        rewritten: &'q RewrittenQuery,
    ) -> Result<Option<PassEnd<'q>>, QueryError> {
        let engine = &*self.engine;
        {
            let mut runtime = lock_runtime(&engine.runtime);
            runtime.load_conditions(rewritten);
            runtime.begin_pass();
            runtime.settings.probes_all_conditions =
                self.sampler.must_probe_all_conditions(rewritten);
            runtime.settings.no_short_circuit = self.evaluation == EnabledRules::NoShortCircuit;
        }
        let mut buffer = RowBuffer::default();
        let mut reader = rewritten.limit_pushdown.as_ref().map(|rule| {
            let is_first_request = engine.passes.iter().all(|pass| pass.demanded == 0);
            let tested_rows = engine.count_tested_rows(rewritten);
            let rows = engine.max_rows_per_request();
            CandidateReader::new(rule, &engine.runtime, rows, tested_rows, is_first_request)
        });
        let result = match &mut reader {
            Some(reader) => engine.run_single_pass(rewritten, reader),
            None => engine.run_single_pass(rewritten, &mut buffer),
        };
        match result {
            Err(QueryError::Sql(_)) if lock_runtime(&engine.runtime).pass.is_aborted => {
                return Ok(Some(PassEnd::Aborted));
            }
            Err(QueryError::Output(e)) if reader.is_some() && is_stop_reading_error(&e) => {}
            Err(QueryError::Sql(_)) if self.statement != Statement::Query => return Ok(None),
            result => result?,
        }
        Ok(Some(reader.map_or_else(|| PassEnd::Rows(buffer), PassEnd::Candidates)))
    }

    /// Finds the joins that have asked about lists before this query.
    fn find_known_lists(&mut self) -> Result<(), QueryError> {
        for join in &mut self.asked_lists {
            join.update(self.engine.request)?;
            let pairs = &mut lock_runtime(&self.engine.runtime).data.joins[join.number];
            pairs.has_known_lists = join.has_lists();
        }
        Ok(())
    }

    /// Answers the pairs of the joins that earlier answers decide. Returns the questions about the
    /// other pairs of each join, or `None` if a pair was decided.
    fn answer_known_pairs(&mut self) -> Result<Option<Vec<JoinQuestions>>, QueryError> {
        let (mut has_decided, mut open_pairs) = (false, Vec::new());
        let (runtime, request) = (&self.engine.runtime, self.engine.request);
        for join in &mut self.asked_lists {
            let (looked_up, demanded) = {
                let pairs = &mut lock_runtime(runtime).data.joins[join.number];
                (pairs.looked_up.take(), pairs.demanded.take())
            };
            let (questions, decided) =
                JoinQuestions::answer_known_pairs(join, demanded, runtime, request)?;
            let others = join::answer_looked_up_pairs(join, looked_up, runtime, request)?;
            has_decided |= decided + others > 0;
            open_pairs.push(questions);
        }
        Ok((!has_decided).then_some(open_pairs))
    }

    fn choose_step<'q>(
        &mut self,
        rewritten: &'q RewrittenQuery,
        end: PassEnd<'q>,
        open_pairs: Vec<JoinQuestions>,
    ) -> PassStep<'q> {
        self.engine.update_statistics();
        if self.has_cheap_condition() {
            return PassStep::SkipSample;
        }
        if let Some(rule) = &rewritten.limit_pushdown
            && lock_runtime(&self.engine.runtime).candidates.needs_order()
        {
            return PassStep::OrderCandidates(rule);
        }
        let is_aborted = matches!(end, PassEnd::Aborted);
        let rows_per_request = self.engine.max_rows_per_request();
        let needed = lock_runtime(&self.engine.runtime).pass.needed.take_demands(rows_per_request);
        let is_pending = is_aborted
            || needed.is_some()
            || lock_runtime(&self.engine.runtime).pass.pending_count > 0;
        if self.statement == Statement::Query
            && let Some(inner) = self.find_pending_subquery(rewritten)
        {
            return PassStep::EnterSubquery(inner);
        }
        let asks_more = is_pending || rewritten.limit_pushdown.is_some();
        if asks_more && self.is_order_outdated(rewritten) {
            return PassStep::Reorder;
        }
        self.is_reordered = false;
        let mut demands = match end {
            PassEnd::Rows(buffer) if !is_pending => return PassStep::Finish(buffer),
            PassEnd::Candidates(reader) if !is_pending => {
                match (reader.into_outcome(&mut self.sampler), self.statement) {
                    (CandidateOutcome::Rows(..), Statement::Subquery(at)) => {
                        return PassStep::CompleteSubquery(at);
                    }
                    (CandidateOutcome::Rows(columns, rows), Statement::Query) => {
                        return PassStep::Finish(RowBuffer::from_rows(columns, rows));
                    }
                    (CandidateOutcome::SendDemands(demands), _) => demands,
                }
            }
            _ => {
                let pending = &mut lock_runtime(&self.engine.runtime).pass.pending;
                let mut demands = self.sampler.choose_demands(rewritten, pending);
                demands.extend(needed.unwrap_or_default());
                demands
            }
        };
        demands.sort_unstable();
        demands.dedup();
        let asks_pairs = open_pairs.iter().any(|open| !open.by_list.is_empty());
        self.engine.defer_reductions(&mut demands, asks_pairs);
        match self.statement {
            _ if !demands.is_empty() || asks_pairs => PassStep::Send(demands, open_pairs),
            Statement::Subquery(_) => PassStep::LeaveSubquery,
            Statement::Query if is_aborted => PassStep::Repeat,
            Statement::Query => PassStep::Relax,
        }
    }

    /// Executes a step and records the preceding pass. Returns the rows if the pass was final.
    fn execute_step(
        &mut self,
        step: PassStep<'_>,
        seconds: f64,
    ) -> Result<Option<RowBuffer>, QueryError> {
        let (mut demanded, mut result) = (0, None);
        match step {
            // The same rows are read again, so do not record this as a separate pass.
            PassStep::Reorder => {
                self.is_reordered = true;
                return Ok(None);
            }
            PassStep::Finish(buffer) => result = Some(buffer),
            PassStep::Send(demands, open_pairs) => {
                demanded = self.engine.send_demands(demands, open_pairs, &mut self.asked_lists)?;
            }
            PassStep::OrderCandidates(rule) => self.engine.order_by_similarity(rule)?,
            PassStep::SkipSample => self.sampler.advance_sample(),
            PassStep::EnterSubquery(at) => {
                self.statement = Statement::Subquery(at);
                self.tried_subqueries.push(at);
                self.is_reordered = false;
                self.sampler = self.engine.new_sampler();
            }
            PassStep::CompleteSubquery(at) => {
                self.engine.complete_selects.push(at);
                self.statement = Statement::Query;
            }
            PassStep::LeaveSubquery => self.statement = Statement::Query,
            PassStep::Repeat => {}
            PassStep::Relax => self.disable_next_rule()?,
        }
        self.engine.passes.push(Pass { demanded, seconds });
        Ok(result)
    }

    /// Returns true if a condition has so few distinct values that it is evaluated first without
    /// sampling.
    fn has_cheap_condition(&self) -> bool {
        lock_runtime(&self.engine.runtime).settings.probes_all_conditions
            && self.engine.statistics.values_per_row.values().any(|ratio| *ratio < CHEAP_RATIO)
    }

    /// Returns true if the last answers have changed the best order of the conditions.
    fn is_order_outdated(&self, rewritten: &RewrittenQuery) -> bool {
        !self.is_reordered
            && self.sampler.is_measuring()
            && self.rewrite_current_statement().sql != rewritten.sql
    }

    /// Returns a subquery that has pending calls and whose first rows can be found by running it
    /// separately.
    fn find_pending_subquery(&self, rewritten: &RewrittenQuery) -> Option<usize> {
        let runtime = lock_runtime(&self.engine.runtime);
        let is_pending =
            |call: &usize| runtime.pass.pending_by_call.get(*call).is_some_and(|n| *n > 0);
        let mut inner =
            rewritten.subquery_limits().iter().filter(|s| !self.tried_subqueries.contains(&s.at));
        inner.find(|inner| inner.calls.iter().any(is_pending)).map(|inner| inner.at)
    }

    /// Makes the following passes apply fewer rules.
    fn disable_next_rule(&mut self) -> Result<(), QueryError> {
        self.evaluation = match self.evaluation {
            EnabledRules::LimitPushdown => EnabledRules::NoLimitPushdown,
            EnabledRules::NoLimitPushdown => EnabledRules::NoShortCircuit,
            EnabledRules::NoShortCircuit => {
                let message = "a call is pending but needs no value: this is a bug in hqdl";
                return Err(QueryError::in_sql(message, None, "", "please report this query"));
            }
        };
        Ok(())
    }
}

impl Engine<'_, '_> {
    fn new_sampler(&self) -> SelectivitySampler {
        SelectivitySampler::new(self.max_rows_per_request(), self.max_condition_count())
    }

    /// Removes the demands of group reductions if there are other demands, or open pairs of a join,
    /// because their answers may add rows to the groups.
    fn defer_reductions(&self, demands: &mut Vec<Demand>, asks_pairs: bool) {
        let runtime = lock_runtime(&self.runtime);
        let reduced: HashSet<(usize, usize)> =
            runtime.data.call_targets.iter().flat_map(CallTarget::reduced_columns).collect();
        let is_reduction = |d: &Demand| reduced.contains(&(d.target(), d.column()));
        if asks_pairs || demands.iter().any(|d| !is_reduction(d)) {
            demands.retain(|d| !is_reduction(d));
        }
    }

    /// Orders the candidates of a LIMIT by the similarity of their documents.
    fn order_by_similarity(&mut self, rule: &LimitPushdown) -> Result<(), QueryError> {
        let query_run = match (&self.request.spec.embeddings, self.lazy_run) {
            (Some(_), Some(lazy_run)) if self.request.model.is_some() => {
                Some(lazy_run.get_or_start_run()?)
            }
            _ => None,
        };
        self.order_candidates(rule, &mut |question, passages| match query_run {
            Some(query_run) => query_run.compute_question_similarities(question, passages),
            None => Ok(compute_word_similarities(question, passages)),
        })
    }

    /// Sends the demands, and the questions about the pairs of each join. Returns the number of
    /// demanded values.
    fn send_demands(
        &mut self,
        demands: Vec<Demand>,
        open_pairs: Vec<JoinQuestions>,
        asked_lists: &mut [AskedLists],
    ) -> Result<u64, QueryError> {
        let mut demanded = demands.len() as u64;
        let query_run = self.lazy_run.ok_or(QueryError::NoModel)?.get_or_start_run()?;
        self.record_questions(&demands)?;
        if !demands.is_empty() {
            let mut runtime = lock_runtime(&self.runtime);
            // The next pass records the unsent demands again.
            runtime.pass.pending = PendingSet::default();
            let QueryData { targets, counts, .. } = &mut runtime.data;
            query_run.send_demands(targets, demands, counts)?;
        }
        for (join, questions) in asked_lists.iter_mut().zip(open_pairs) {
            let (runtime, request) = (&self.runtime, self.request);
            demanded += join::ask_about_pairs(join, runtime, questions, query_run, request)?;
        }
        Ok(demanded)
    }

    /// Updates the statistics of conditions and calls from the last pass.
    fn update_statistics(&mut self) {
        let mut runtime = lock_runtime(&self.runtime);
        for (call, stats) in runtime.pass.call_stats.iter().enumerate() {
            if stats.row_count > 0 {
                let distinct_ratio = stats.distinct_count as f64 / stats.row_count as f64;
                self.statistics.values_per_row.insert(call, distinct_ratio);
            }
        }
        let all = std::mem::take(&mut runtime.pass.selectivities);
        for (&(at, looked_up), &selectivity) in &all {
            // The rows that lookups left undecided are not a representative sample.
            if !looked_up && all.contains_key(&(at, true)) {
                continue;
            }
            let known_selectivity = self.statistics.selectivities.entry(at).or_default();
            if selectivity.passed + selectivity.failed
                >= known_selectivity.passed + known_selectivity.failed
            {
                *known_selectivity = selectivity;
            }
        }
    }

    /// Returns the largest number of rows per request among the expansions.
    fn max_rows_per_request(&self) -> u64 {
        let runtime = lock_runtime(&self.runtime);
        let rows = |target: &TargetExpansion| {
            let models = self.request.choose_models(&target.expansion);
            models.choices().iter().map(|choice| u64::from(choice.rows)).max()
        };
        runtime.data.targets.iter().filter_map(rows).max().unwrap_or(1).max(1)
    }

    /// Returns the largest number of conditions with calls in a SELECT.
    fn max_condition_count(&self) -> usize {
        let (main, first) = (self.rewrite_query(false), self.rewrite_query(true).limit_pushdown);
        let group_sizes = main.condition_groups.iter().map(|u| u.conditions);
        group_sizes.chain(first.map(|rule| rule.condition_count)).max().unwrap_or(0)
    }

    /// Returns the number of rows whose conditions were decided, and the number of these rows that
    /// passed.
    fn count_tested_rows(&self, rewritten: &RewrittenQuery) -> (u64, u64) {
        let of = |at: &usize| self.statistics.selectivities.get(at);
        let seen = rewritten.predicates.keys().filter_map(of);
        seen.fold((0, 0), |(all, passed), s| (all.max(s.passed + s.failed), passed.max(s.passed)))
    }
}
