//! How a query would be run: its routes, its SQL, what its first pass would
//! ask for and the price of that. Asks nothing.

use std::time::Instant;

use super::batches::{by_target, cuts};
use super::engine::Engine;
use super::kept::Kept;
use super::likeness::by_words;
use super::live::lock;
use super::passages::Shown;
use super::smoothie::{Meta, Pass};
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
    let rewritten = engine.rewrite();
    let pass = Instant::now();
    {
        let mut live = lock(&engine.live);
        live.open = true;
        live.takes(&rewritten);
        live.begin();
    }
    match engine.run_once(&rewritten, &mut Kept::default()) {
        // No more is asked at once.
        Err(QueryError::Sql(_)) if lock(&engine.live).full => {}
        ended => ended?,
    }
    let demanded = {
        let mut live = lock(&engine.live);
        live.end();
        let pairs: usize = live.joins.iter().map(|j| j.wanted.len()).sum();
        (live.demands.len() + pairs) as u64
    };
    engine.sql.clone_from(&rewritten.sql);
    engine.passes.push(Pass { demanded, seconds: pass.elapsed().as_secs_f64() });
    let usage = engine.estimate();
    let mut meta = engine.meta(usage, began);
    meta.values_asked += demanded;
    Ok(meta)
}

impl Engine<'_, '_> {
    /// What asking for the demands of the first pass would use.
    fn estimate(&self) -> Usage {
        let live = lock(&self.live);
        let spec = self.request.spec;
        let mut plan = Plan::default();
        let mut demands = by_target(&live.demands);
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
