//! Pass loop of a query: run the SQL, choose which demands to send, send them, and repeat.

use std::collections::HashSet;
use std::time::Instant;

use crate::query::ask::similarity::similarity_by_words;
use crate::query::cells::targets::{Demand, TargetExpansion};
use crate::query::functions::call_runtime::{QueryData, lock_runtime};
use crate::query::plan::engine::Engine;
use crate::query::request::error::QueryError;
use crate::query::result::query_result::{Pass, RowSink};
use crate::query::result::row_buffer::RowBuffer;
use crate::query::run::join;
use crate::query::run::limit_pushdown::{CandidateOutcome, CandidateReader, is_stop_reading};
use crate::query::run::selectivity_sampler::SelectivitySampler;
use hqdl_sql::blendsql::plan::LimitPushdown;
use hqdl_sql::blendsql::rewrite::RewrittenQuery;

/// Ratio of distinct values to rows below which a condition is cheap. A cheap condition is
/// evaluated first without sampling the others.
const CHEAP_RATIO: f64 = 0.25;

impl Engine<'_, '_> {
    /// Runs passes until one is final, and sends its rows to the sink.
    #[expect(clippy::too_many_lines, reason = "a pass from its beginning to its end")]
    pub(in crate::query) fn run_passes(
        &mut self,
        sink: &mut dyn RowSink,
    ) -> Result<(), QueryError> {
        if let Some((stored_plan, buffer)) = self.run_stored_plan()? {
            return self.send_rows(&stored_plan, &buffer, sink);
        }
        let mut sampler =
            SelectivitySampler::new(self.max_rows_per_request(), self.max_condition_count());
        // `standalone` is the subquery that is run on its own until its first rows are known;
        // `tried` are those that are not run on their own again.
        let (mut standalone, mut tried): (Option<usize>, Vec<usize>) = (None, Vec::new());
        // Cleared if LIMIT pushdown waits for a value but records no demand.
        let mut topk_enabled = true;
        // Whether the conditions were reordered since the last request.
        let mut reordered = false;
        loop {
            let rewritten = self.current_rewrite(standalone, topk_enabled);
            let began = Instant::now();
            lock_runtime(&self.runtime).load_conditions(&rewritten);
            lock_runtime(&self.runtime).begin_pass();
            lock_runtime(&self.runtime).settings.probes_all_conditions =
                sampler.should_probe_all(&rewritten);
            let mut buffer = RowBuffer::default();
            let is_first_request = self.passes.iter().all(|pass| pass.demanded == 0);
            let mut reader = (rewritten.limit_pushdown.as_ref()).map(|rule| {
                CandidateReader::new(
                    rule,
                    &self.runtime,
                    self.max_rows_per_request(),
                    self.tested_rows(&rewritten),
                    is_first_request,
                )
            });
            let result = match &mut reader {
                Some(reader) => self.run_once(&rewritten, reader),
                None => self.run_once(&rewritten, &mut buffer),
            };
            let is_aborted = match result {
                // Send the demands of the rows read so far first.
                Err(QueryError::Sql(_)) if lock_runtime(&self.runtime).pass.is_aborted => true,
                Err(QueryError::Output(e)) if reader.is_some() && is_stop_reading(&e) => false,
                // If the query is wrong, running it as a whole reports the error.
                Err(QueryError::Sql(_)) if standalone.is_some() => {
                    standalone = None;
                    continue;
                }
                result => result.map(|()| false)?,
            };
            let seconds = began.elapsed().as_secs_f64();
            self.update_statistics();
            // A condition with few distinct values comes first without sampling.
            if lock_runtime(&self.runtime).settings.probes_all_conditions
                && self.statistics.values_per_row.values().any(|s| *s < CHEAP_RATIO)
            {
                sampler.advance_sample();
                self.passes.push(Pass { demanded: 0, seconds });
                continue;
            }
            if let Some(rule) = &rewritten.limit_pushdown
                && lock_runtime(&self.runtime).candidates.needs_order()
            {
                self.order_by_similarity(rule)?;
                self.passes.push(Pass { demanded: 0, seconds });
                continue;
            }
            let rows_per_request = self.max_rows_per_request();
            let needed = lock_runtime(&self.runtime).pass.needed.take_demands(rows_per_request);
            let is_pending = is_aborted
                || needed.is_some()
                || lock_runtime(&self.runtime).pass.pending_count > 0;
            if standalone.is_none()
                && let Some(inner) = self.pending_subquery(&rewritten, &tried)
            {
                (standalone, reordered) = (Some(inner), false);
                tried.push(inner);
                sampler = SelectivitySampler::new(
                    self.max_rows_per_request(),
                    self.max_condition_count(),
                );
                self.passes.push(Pass { demanded: 0, seconds });
                continue;
            }
            // The last answers may have changed the best order of the conditions.
            if (is_pending || reader.is_some())
                && !reordered
                && sampler.is_measuring()
                && self.current_rewrite(standalone, topk_enabled).sql != rewritten.sql
            {
                reordered = true;
                continue;
            }
            reordered = false;
            let demands = match reader {
                Some(reader) if !is_pending => match reader.into_outcome(&mut sampler) {
                    CandidateOutcome::Rows(..) if standalone.is_some() => {
                        self.passes.push(Pass { demanded: 0, seconds });
                        self.complete_selects.extend(standalone.take());
                        continue;
                    }
                    CandidateOutcome::Rows(columns, rows) => {
                        self.passes.push(Pass { demanded: 0, seconds });
                        self.sql.clone_from(&rewritten.sql);
                        return self.send_rows(
                            &rewritten,
                            &RowBuffer::from_rows(columns, rows),
                            sink,
                        );
                    }
                    CandidateOutcome::SendDemands(demands) => demands,
                },
                None if !is_pending => {
                    self.passes.push(Pass { demanded: 0, seconds });
                    self.sql.clone_from(&rewritten.sql);
                    return self.send_rows(&rewritten, &buffer, sink);
                }
                _ => {
                    let pending = &mut lock_runtime(&self.runtime).pass.pending;
                    let mut demands = sampler.choose_demands(&rewritten, pending);
                    demands.extend(needed.unwrap_or_default());
                    demands
                }
            };
            let mut seen = HashSet::new();
            let demands: Vec<Demand> = demands.into_iter().filter(|d| seen.insert(*d)).collect();
            let has_join_lookups =
                lock_runtime(&self.runtime).data.joins.iter().any(|j| !j.lookups.is_empty());
            if demands.is_empty() && !has_join_lookups {
                self.passes.push(Pass { demanded: 0, seconds });
                // Other rows decided what an aborted pass recorded, so the next pass gets further.
                if standalone.take().is_none() && !is_aborted {
                    self.relax_evaluation(&mut topk_enabled)?;
                }
                continue;
            }
            let demanded = self.send_demands(&demands)?;
            self.passes.push(Pass { demanded, seconds });
        }
    }

    /// Orders the candidates of a LIMIT by the similarity of their documents.
    fn order_by_similarity(&mut self, rule: &LimitPushdown) -> Result<(), QueryError> {
        let query_run = match (&self.request.spec.embeddings, self.lazy_run) {
            (Some(_), Some(lazy_run)) if self.request.model.is_some() => {
                Some(lazy_run.get_or_start()?)
            }
            _ => None,
        };
        self.order_candidates(rule, &mut |question, passages| match query_run {
            Some(query_run) => query_run.similarity_to(question, passages),
            None => Ok(similarity_by_words(question, passages)),
        })
    }

    /// Handles a pass that is pending without recording a demand: the next pass runs without LIMIT
    /// pushdown, and the one after it without lookup-only mode.
    fn relax_evaluation(&mut self, topk_enabled: &mut bool) -> Result<(), QueryError> {
        if std::mem::take(topk_enabled) {
            return Ok(());
        }
        if std::mem::replace(&mut lock_runtime(&self.runtime).settings.no_short_circuit, true) {
            let why = "a call waits for nothing: this is a bug of hqdl";
            return Err(QueryError::in_sql(why, None, "", "please report this query"));
        }
        Ok(())
    }

    /// Returns the SQL to run now: the query, or a subquery on its own.
    fn current_rewrite(&self, standalone: Option<usize>, topk_enabled: bool) -> RewrittenQuery {
        standalone
            .map_or_else(|| self.rewrite_query(topk_enabled), |at| self.rewrite_standalone(at))
    }

    /// Returns a subquery that has pending calls and whose first rows can be found by running it on
    /// its own.
    fn pending_subquery(&self, rewritten: &RewrittenQuery, tried: &[usize]) -> Option<usize> {
        let runtime = lock_runtime(&self.runtime);
        let is_pending =
            |call: &usize| runtime.pass.pending_by_call.get(*call).is_some_and(|n| *n > 0);
        let inner = rewritten.subquery_limits().iter().filter(|inner| !tried.contains(&inner.at));
        inner.filter(|inner| inner.calls.iter().any(is_pending)).map(|inner| inner.at).next()
    }

    /// Sends demands and those of the joins. Returns how many values were demanded.
    fn send_demands(&mut self, demands: &[Demand]) -> Result<u64, QueryError> {
        let mut demanded = demands.len() as u64;
        let query_run = self.lazy_run.ok_or(QueryError::NoModel)?.get_or_start()?;
        self.record_questions(demands)?;
        if !demands.is_empty() {
            let mut runtime = lock_runtime(&self.runtime);
            let QueryData { targets, counts, .. } = &mut runtime.data;
            query_run.send_demands(targets, demands, counts)?;
        }
        for (n, join) in self.calls.joins.iter().enumerate() {
            demanded += join::ask_pairs(n, join, &self.runtime, query_run, self.request)?;
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
            // Undecided rows are not a representative sample.
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
        let rows =
            |target: &TargetExpansion| u64::from(self.request.model_choice(&target.expansion).rows);
        runtime.data.targets.iter().map(rows).max().unwrap_or(1).max(1)
    }

    /// Returns the largest number of conditions with calls in a SELECT.
    fn max_condition_count(&self) -> usize {
        let (main, first) = (self.rewrite_query(false), self.rewrite_query(true).limit_pushdown);
        let group_sizes = main.condition_groups.iter().map(|u| u.conditions);
        group_sizes.chain(first.map(|rule| rule.condition_count)).max().unwrap_or(0)
    }

    /// Returns the number of rows whose conditions were decided, and of those that passed.
    fn tested_rows(&self, rewritten: &RewrittenQuery) -> (u64, u64) {
        let of = |at: &usize| self.statistics.selectivities.get(at);
        let seen = rewritten.predicates.keys().filter_map(of);
        seen.fold((0, 0), |(all, passed), s| (all.max(s.passed + s.failed), passed.max(s.passed)))
    }
}
