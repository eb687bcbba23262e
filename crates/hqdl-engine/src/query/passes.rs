//! Pass loop of a query: run the SQL, choose which demands to send, send them, and repeat.

use std::collections::HashSet;
use std::time::Instant;

use super::ask::likeness::by_words;
use super::engine::Engine;
use super::first_rows::{Reader, Told, is_enough};
use super::kept::Kept;
use super::learning::Learning;
use super::live::{Known, lock};
use super::smoothie::{Pass, Sink};
use super::targets::{Demand, Target};
use super::{QueryError, join};
use hqdl_sql::blendsql::plan::FirstRows;
use hqdl_sql::blendsql::rewrite::Rewritten;

/// Ratio of distinct values to rows below which a condition is cheap. A cheap condition is
/// evaluated first without sampling the others.
const CHEAP: f64 = 0.25;

impl Engine<'_, '_> {
    /// Runs passes until one is final, and sends its rows to the sink.
    pub(super) fn passes(&mut self, sink: &mut dyn Sink) -> Result<(), QueryError> {
        if let Some((direct, kept)) = self.over_tables()? {
            return self.give(&direct, &kept, sink);
        }
        let mut learning = Learning::new(self.together(), self.conditions());
        // `standalone` is the subquery that is run on its own until its first rows are known;
        // `tried` are those that are not run on their own again.
        let (mut alone, mut tried): (Option<usize>, Vec<usize>) = (None, Vec::new());
        // Cleared if LIMIT pushdown waits for a value but records no demand.
        let mut firsts = true;
        // Whether the conditions were reordered since the last request.
        let mut reordered = false;
        loop {
            let rewritten = self.rewritten(alone, firsts);
            let began = Instant::now();
            lock(&self.live).takes(&rewritten);
            lock(&self.live).begin();
            lock(&self.live).statement.survey = learning.surveys(&rewritten);
            let mut kept = Kept::default();
            let fresh = self.passes.iter().all(|pass| pass.demanded == 0);
            let mut reader = (rewritten.first.as_ref()).map(|rule| {
                Reader::new(rule, &self.live, self.together(), self.seen(&rewritten), fresh)
            });
            let ended = match &mut reader {
                Some(reader) => self.run_once(&rewritten, reader),
                None => self.run_once(&rewritten, &mut kept),
            };
            let full = match ended {
                // Send the demands of the rows read so far first.
                Err(QueryError::Sql(_)) if lock(&self.live).pass.full => true,
                Err(QueryError::Output(e)) if reader.is_some() && is_enough(&e) => false,
                // If the query is wrong, running it as a whole reports the error.
                Err(QueryError::Sql(_)) if alone.is_some() => {
                    alone = None;
                    continue;
                }
                ended => ended.map(|()| false)?,
            };
            let seconds = began.elapsed().as_secs_f64();
            self.learn();
            // A condition with few distinct values comes first without sampling.
            if lock(&self.live).statement.survey && self.costs.spread.values().any(|s| *s < CHEAP) {
                learning.learnt();
                self.passes.push(Pass { demanded: 0, seconds });
                continue;
            }
            if let Some(rule) = &rewritten.first
                && lock(&self.live).candidates.wait()
            {
                self.by_likeness(rule)?;
                self.passes.push(Pass { demanded: 0, seconds });
                continue;
            }
            let waits = full || lock(&self.live).pass.pended > 0;
            if alone.is_none()
                && let Some(inner) = self.waiting_inner(&rewritten, &tried)
            {
                (alone, reordered) = (Some(inner), false);
                tried.push(inner);
                learning = Learning::new(self.together(), self.conditions());
                self.passes.push(Pass { demanded: 0, seconds });
                continue;
            }
            // The last answers may have changed the best order of the conditions.
            if (waits || reader.is_some())
                && !reordered
                && learning.learns()
                && self.rewritten(alone, firsts).sql != rewritten.sql
            {
                reordered = true;
                continue;
            }
            reordered = false;
            let demands = match reader {
                Some(reader) if !waits => match reader.told(&mut learning) {
                    Told::Rows(..) if alone.is_some() => {
                        self.passes.push(Pass { demanded: 0, seconds });
                        self.settled.extend(alone.take());
                        continue;
                    }
                    Told::Rows(columns, rows) => {
                        self.passes.push(Pass { demanded: 0, seconds });
                        self.sql.clone_from(&rewritten.sql);
                        return self.give(&rewritten, &Kept::of(columns, rows), sink);
                    }
                    Told::Ask(demands) => demands,
                },
                None if !waits => {
                    self.passes.push(Pass { demanded: 0, seconds });
                    self.sql.clone_from(&rewritten.sql);
                    return self.give(&rewritten, &kept, sink);
                }
                _ => learning.choose(&rewritten, &mut lock(&self.live).pass.notes),
            };
            let mut seen = HashSet::new();
            let demands: Vec<Demand> = demands.into_iter().filter(|d| seen.insert(*d)).collect();
            let paired = lock(&self.live).known.joins.iter().any(|j| !j.wanted.is_empty());
            if demands.is_empty() && !paired {
                self.passes.push(Pass { demanded: 0, seconds });
                // Other rows decided what an aborted pass recorded, so the next pass gets further.
                if alone.take().is_none() && !full {
                    self.nothing_demanded(&mut firsts)?;
                }
                continue;
            }
            let demanded = self.ask(&demands)?;
            self.passes.push(Pass { demanded, seconds });
        }
    }

    /// Orders the candidates of a LIMIT by the similarity of their documents.
    fn by_likeness(&mut self, rule: &FirstRows) -> Result<(), QueryError> {
        let asker = match (&self.request.spec.embeddings, self.asking) {
            (Some(_), Some(asking)) if self.request.model.is_some() => Some(asking.asker()?),
            _ => None,
        };
        self.order_candidates(rule, &mut |question, passages| match asker {
            Some(asker) => asker.likeness(question, passages),
            None => Ok(by_words(question, passages)),
        })
    }

    /// Handles a pass that is pending without recording a demand: the next pass runs without LIMIT
    /// pushdown, and the one after it without lookup-only mode.
    fn nothing_demanded(&mut self, firsts: &mut bool) -> Result<(), QueryError> {
        if std::mem::take(firsts) {
            return Ok(());
        }
        if std::mem::replace(&mut lock(&self.live).statement.thorough, true) {
            let why = "a call waits for nothing: this is a bug of hqdl";
            return Err(QueryError::sql(why, None, "", "please report this query"));
        }
        Ok(())
    }

    /// Returns the SQL to run now: the query, or a subquery on its own.
    fn rewritten(&self, alone: Option<usize>, firsts: bool) -> Rewritten {
        alone.map_or_else(|| self.rewrite(firsts), |at| self.rewrite_alone(at))
    }

    /// Returns a subquery that has pending calls and whose first rows can be found by running it on
    /// its own.
    fn waiting_inner(&self, rewritten: &Rewritten, tried: &[usize]) -> Option<usize> {
        let live = lock(&self.live);
        let waits = |call: &usize| live.pass.pending_of.get(*call).is_some_and(|n| *n > 0);
        let inner = rewritten.inner.iter().filter(|inner| !tried.contains(&inner.at));
        inner.filter(|inner| inner.calls.iter().any(waits)).map(|inner| inner.at).next()
    }

    /// Sends demands and those of the joins. Returns how many values were demanded.
    fn ask(&mut self, demands: &[Demand]) -> Result<u64, QueryError> {
        let mut demanded = demands.len() as u64;
        let asker = self.asking.ok_or(QueryError::NoModel)?.asker()?;
        self.note(demands)?;
        if !demands.is_empty() {
            let mut live = lock(&self.live);
            let Known { targets, counts, .. } = &mut live.known;
            asker.ask(targets, demands, counts)?;
        }
        for (n, wanted) in self.calls.joins.iter().enumerate() {
            demanded += join::ask(n, wanted, &self.live, asker, self.request)?;
        }
        Ok(demanded)
    }

    /// Updates the statistics of conditions and calls from the last pass.
    fn learn(&mut self) {
        let mut live = lock(&self.live);
        for (call, touched) in live.pass.touched.iter().enumerate() {
            if touched.rows > 0 {
                let spread = touched.values as f64 / touched.rows as f64;
                self.costs.spread.insert(call, spread);
            }
        }
        let all = std::mem::take(&mut live.pass.seen);
        for (&(at, looked_up), &seen) in &all {
            // Undecided rows are not a representative sample.
            if !looked_up && all.contains_key(&(at, true)) {
                continue;
            }
            let known = self.costs.seen.entry(at).or_default();
            if seen.held + seen.failed >= known.held + known.failed {
                *known = seen;
            }
        }
    }

    /// Returns the largest number of rows per request among the expansions.
    fn together(&self) -> u64 {
        let live = lock(&self.live);
        let rows = |target: &Target| u64::from(self.request.choice(&target.expansion).rows);
        live.known.targets.iter().map(rows).max().unwrap_or(1).max(1)
    }

    /// Returns the largest number of conditions with calls in a SELECT.
    fn conditions(&self) -> usize {
        let (main, first) = (self.rewrite(false), self.rewrite(true).first);
        let units = main.units.iter().map(|u| u.conditions);
        units.chain(first.map(|rule| rule.conditions)).max().unwrap_or(0)
    }

    /// Returns the number of rows whose conditions were decided, and of those that passed.
    fn seen(&self, rewritten: &Rewritten) -> (u64, u64) {
        let of = |at: &usize| self.costs.seen.get(at);
        let seen = rewritten.leaves.keys().filter_map(of);
        seen.fold((0, 0), |(all, held), s| (all.max(s.held + s.failed), held.max(s.held)))
    }
}
