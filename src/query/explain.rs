//! How a query would be run: its routes, its SQL, at most what its
//! rows would ask for and the price of that. Asks nothing.

use std::collections::HashSet;
use std::time::Instant;

use super::batches::{by_target, cuts};
use super::engine::Engine;
use super::first_rows::{ENOUGH, Reader, Told};
use super::kept::Kept;
use super::learning::Learning;
use super::likeness::by_words;
use super::live::lock;
use super::passages::Shown;
use super::smoothie::{Meta, Pass};
use super::targets::Demand;
use super::{QueryError, Request};
use crate::plan::{ColumnPlan, ExpansionPlan, Meter, Plan};
use crate::spec::{Format, Provider};
use crate::tokens::Tokenizer;
use crate::usage::Usage;

/// Tells how a query would be run, and at most how many values the first pass
/// would ask for; asks nothing.
///
/// # Errors
/// [`QueryError`] when it could not be run.
pub fn explain(request: &Request<'_>) -> Result<Meta, QueryError> {
    let began = Instant::now();
    let mut engine = Engine::prepare(request, None)?;
    if engine.over_tables()?.is_some() {
        return Ok(engine.meta(Usage::default(), began));
    }
    let mut rewritten = engine.rewrite(true);
    let pass = Instant::now();
    // Of rows that no call decides about the first are known beforehand.
    let of_first = rewritten.first.as_ref().is_some_and(|rule| rule.conditions == 0);
    let mut told = None;
    {
        let mut live = lock(&engine.live);
        live.takes(&rewritten);
        live.begin();
        live.survey = true;
        live.possible = true;
    }
    let ended = match rewritten.first.take().filter(|_| of_first) {
        Some(rule) => {
            let mut reader = Reader::new(&rule, &engine.live, 1, (0, 0));
            let ended = engine.run_once(&rewritten, &mut reader);
            if lock(&engine.live).pended == 0 {
                told = Some(reader.told(&mut Learning::new(1, 1)));
            }
            ended
        }
        None => engine.run_once(&rewritten, &mut Kept::default()),
    };
    match ended {
        // No more is asked at once.
        Err(QueryError::Sql(_)) if lock(&engine.live).full => {}
        Err(QueryError::Output(e)) if e.to_string() == ENOUGH => {}
        ended => ended?,
    }
    let (demands, pairs) = {
        let live = lock(&engine.live);
        let demands = match told {
            Some(Told::Ask(demands)) => {
                let mut seen = HashSet::new();
                demands.into_iter().filter(|d| seen.insert(*d)).collect()
            }
            Some(Told::Rows(..)) => Vec::new(),
            None => live.notes.all(),
        };
        (demands, live.joins.iter().map(|j| j.wanted.len()).sum::<usize>())
    };
    let demanded = (demands.len() + pairs) as u64;
    engine.sql.clone_from(&rewritten.sql);
    engine.passes.push(Pass { demanded, seconds: pass.elapsed().as_secs_f64() });
    let usage = engine.estimate(&demands);
    let mut meta = engine.meta(usage, began);
    meta.values_asked += demanded;
    Ok(meta)
}

impl Engine<'_, '_> {
    /// What asking for the demands of the first pass would use.
    fn estimate(&self, demands: &[Demand]) -> Usage {
        let live = lock(&self.live);
        let spec = self.request.spec;
        let mut plan = Plan::default();
        let mut demands = by_target(demands);
        for (n, target) in live.targets.iter().enumerate() {
            let format = target.expansion.format.unwrap_or(Format::Json);
            let tokenizer = Tokenizer::of(&spec.model.name);
            let mut meter = Meter::new(&target.expansion, format, tokenizer);
            let entities = demands.remove(&n).unwrap_or_default();
            let mut shown = Shown {
                most: spec.limits.passage_tokens,
                model: &spec.model.name,
                compare: &mut |question, passages| Ok(by_words(question, passages)),
            };
            let most = target.expansion.rows_per_request;
            let cuts = cuts(target, entities, most, &mut shown).unwrap_or_default();
            cuts.iter().for_each(|cut| meter.count(cut));
            let mut of_one =
                ExpansionPlan { name: target.expansion.name.clone(), ..ExpansionPlan::default() };
            of_one.columns = target
                .expansion
                .columns
                .iter()
                .map(|c| ColumnPlan { name: c.name.clone(), ..ColumnPlan::default() })
                .collect();
            meter.finish(&mut of_one);
            plan.expansions.push(of_one);
        }
        let instant = spec.model.provider == Provider::Replay;
        plan.price(spec.model.paid().as_ref(), &spec.limits, instant);
        Usage {
            requests: plan.requests(),
            input_tokens: plan.input_tokens(),
            output_tokens: plan.output_tokens().likely as u64,
            cost_usd: plan.cost_usd.likely,
            ..Usage::default()
        }
    }
}
