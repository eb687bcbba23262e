//! Explains a query: its routes, its SQL, and an upper bound of its requests and their price over
//! all passes. Sends no request.

use std::collections::HashSet;
use std::time::Instant;

use crate::query::binder::WOULD_ASK;
use crate::query::embedded::Compared;
use crate::query::engine::Engine;
use crate::query::first_rows::{Reader, Told, is_enough};
use crate::query::learning::Learning;
use crate::query::live::lock;
use crate::query::smoothie::{Meta, Pass, Unbounded};
use crate::query::targets::Demand;
use crate::query::{QueryError, Request};
use hqdl_sql::blendsql::draws;
use hqdl_sql::blendsql::most::{Most, Together, most};
use hqdl_sql::blendsql::plan::RuleOutcome as Ruled;
use hqdl_sql::blendsql::rewrite::Rewritten;
use hqdl_sql::blendsql::rules::STORED_COLUMNS;
use hqdl_values::usage::Usage;

/// Returns how a query would run, with an upper bound of its requests. Sends none.
///
/// # Errors
/// [`QueryError`] if the query could not be run.
pub fn explain(request: &Request<'_>) -> Result<Meta, QueryError> {
    let began = Instant::now();
    let mut engine = Engine::prepare(request, None)?;
    if let Some((direct, _)) = engine.over_tables()? {
        let mut meta = engine.meta(Usage::default(), began);
        meta.plan = direct.plan;
        let why = "published tables answer every call".to_owned();
        meta.plan.rules.push(Ruled { rule: STORED_COLUMNS, fired: true, why });
        return Ok(meta);
    }
    let rewritten = engine.rewrite(true);
    engine.sql.clone_from(&rewritten.sql);
    engine.is_valid(&rewritten)?;
    let pass = Instant::now();
    // Compare the documents first: the estimate uses the documents of the most recent run.
    let compared = engine.compared(&rewritten)?;
    let asked = engine.most(&rewritten)?;
    let (values, usage) = engine.estimate(&asked.demands, asked.together, compared)?;
    engine.passes.push(Pass { demanded: values, seconds: pass.elapsed().as_secs_f64() });
    let mut meta = engine.meta(usage, began);
    meta.price_notes = request.spec.reserved_price_notes();
    meta.values_asked += values;
    meta.unbounded.splice(0..0, asked.unbounded);
    let first = meta.routes.iter().filter(|r| r.why.starts_with(WOULD_ASK));
    let why = "the model is asked first whether a column answers it";
    let first = first.map(|r| Unbounded { call: r.call.clone(), why: why.to_owned() });
    meta.unbounded.extend(first.collect::<Vec<_>>());
    meta.plan = rewritten.plan;
    let stored = Ruled { rule: STORED_COLUMNS, fired: false, why: engine.not_stored.to_owned() };
    meta.plan.rules.push(stored);
    Ok(meta)
}

/// Upper bound of the demands of a query.
struct MostAsked {
    demands: Vec<Demand>,
    unbounded: Vec<Unbounded>,
    together: Together,
}

impl Engine<'_, '_> {
    /// Returns an upper bound of the demands over all passes.
    fn most(&mut self, rewritten: &Rewritten) -> Result<MostAsked, QueryError> {
        let (text, sites) = (&self.spelled.text, &self.calls.sites);
        let most = most(text, &self.parsed.query, self.parsed.lone, sites, &self.schema);
        if let Some(demands) = self.of_first_rows(rewritten, &most)? {
            return Ok(MostAsked { demands, unbounded: Vec::new(), together: Together::All });
        }
        self.survey(rewritten);
        let call = |n: usize| self.calls.routes.get(n).map_or(String::new(), |r| r.call.clone());
        let mut unbounded: Vec<Unbounded> = (most.unknown.iter())
            .map(|(n, why)| Unbounded { call: call(*n), why: (*why).to_owned() })
            .collect();
        for probe in &most.probes {
            match self.probe(&probe.sql) {
                // A context that is too long is an error of the query and has a span.
                Err(QueryError::Sql(problem)) if problem.span.is_none() => {
                    let why = format!("its rows cannot be counted: {}", problem.message);
                    let of = |n: &usize| Unbounded { call: call(*n), why: why.clone() };
                    unbounded.extend(probe.calls.iter().map(of));
                }
                ended => ended?,
            }
        }
        let demands = lock(&self.live).pass.notes.all();
        let firsts = rewritten.first.is_some() || !rewritten.inner.is_empty();
        let together = if firsts { Together::No } else { most.together };
        Ok(MostAsked { demands, unbounded, together })
    }

    /// Returns the demands of the first rows, if LIMIT pushdown makes them exact. Otherwise returns
    /// `None`: a call decides which rows are first, the query is random, or not all demands were
    /// recorded.
    fn of_first_rows(
        &mut self,
        rewritten: &Rewritten,
        most: &Most,
    ) -> Result<Option<Vec<Demand>>, QueryError> {
        let random = draws(&self.parsed.query, &self.schema);
        let Some(rule) = &rewritten.first else { return Ok(None) };
        let (waits, hidden) =
            (rule.conditions > 0 || most.together == Together::No, rule.unheard || random);
        if waits || hidden || !most.unknown.is_empty() {
            return Ok(None);
        }
        self.survey(rewritten);
        let mut reader = Reader::new(rule, &self.live, 1, (0, 0), true);
        match self.run_once(rewritten, &mut reader) {
            Err(QueryError::Output(e)) if is_enough(&e) => {}
            ended => ended?,
        }
        if lock(&self.live).pass.pended > 0 {
            return Ok(None);
        }
        let mut seen = HashSet::new();
        Ok(Some(match reader.told(&mut Learning::new(1, 1)) {
            Told::Ask(demands) => demands.into_iter().filter(|d| seen.insert(*d)).collect(),
            Told::Rows(..) => Vec::new(),
        }))
    }

    /// Returns the documents that are compared with their questions before the first request.
    fn compared(&mut self, rewritten: &Rewritten) -> Result<Compared, QueryError> {
        let mut compared = Compared::default();
        let (Some(rule), Some(_)) = (&rewritten.first, &self.request.spec.embeddings) else {
            return Ok(compared);
        };
        if rewritten.likened.is_empty() {
            return Ok(compared);
        }
        self.survey(rewritten);
        let mut reader = Reader::new(rule, &self.live, 1, (0, 0), true);
        match self.run_once(rewritten, &mut reader) {
            // There are too many candidates to order.
            Err(QueryError::Sql(_)) if lock(&self.live).pass.full => {}
            ended => ended?,
        }
        self.order_candidates(rule, &mut |question, passages| {
            Ok(compared.compare(question, passages))
        })?;
        Ok(compared)
    }

    /// Starts a pass that records every demand it reaches.
    fn survey(&self, rewritten: &Rewritten) {
        let mut live = lock(&self.live);
        live.takes(rewritten);
        live.begin();
        live.statement.survey = true;
    }
}
