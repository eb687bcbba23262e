//! Upper bounds of requests, tokens and cost. If demands are spread over several passes, the bound
//! assumes that a request may contain a single value.

use std::cell::RefCell;
use std::collections::BTreeMap;

use super::batches::{by_target, cuts};
use super::embedded::Compared;
use super::engine::Engine;
use super::live::lock;
use super::passages::ShownPassages;
use super::targets::{Demand, Target};
use super::{QueryError, join};
use hqdl_model::plan::{ColumnPlan, ExpansionPlan, Meter, Plan, reasoning};
use hqdl_sql::blendsql::most::Together;
use hqdl_values::tokens::{Tokenizer, image_at_most};
use hqdl_values::usage::Usage;

/// Upper bound of the usage, as it is added up.
#[derive(Default)]
struct MostEach {
    all: Usage,
    values: u64,
    /// Expected number of reasoning tokens per answer, by model.
    reasoning: BTreeMap<String, f64>,
    /// Texts compared on the way, to count their embeddings.
    compared: RefCell<Compared>,
}

impl Engine<'_, '_> {
    /// Returns the number of values of some demands and of the joins, and an upper bound of the
    /// usage for them.
    pub(super) fn estimate(
        &self,
        demands: &[Demand],
        together: Together,
        compared: Compared,
    ) -> Result<(u64, Usage), QueryError> {
        let reasoning = reasoning(self.request.facts.history(), self.request.spec)?;
        let mut most =
            MostEach { reasoning, compared: RefCell::new(compared), ..MostEach::default() };
        {
            let live = lock(&self.live);
            for (n, entities) in by_target(demands) {
                self.count(&live.known.targets[n], entities, together, &mut most)?;
            }
        }
        for (n, wanted) in self.calls.joins.iter().enumerate() {
            self.pairs(n, wanted, together, &mut most)?;
        }
        let embeddings = most.compared.borrow().usage(self.request);
        most.add(&embeddings, 1);
        Ok((most.values, most.all))
    }

    /// Adds the pairs of a join. If they are demanded in one pass, each value is sent once with its
    /// whole list. Otherwise each pair may need a request of its own.
    fn pairs(
        &self,
        n: usize,
        wanted: &super::calls::Join,
        together: Together,
        most: &mut MostEach,
    ) -> Result<(), QueryError> {
        let wishes = lock(&self.live).known.joins[n].take();
        let request = self.request;
        let before = most.values;
        let mut counts = lock(&self.live).known.counts;
        let mut longest: Option<(Target, Demand)> = None;
        for (list, wishes) in join::lists_of(n, wanted, &wishes, &self.live, request) {
            let asked = join::AskedPartners::of(wanted, list, &wishes, request, &mut counts)?;
            let [target] = asked.targets;
            if let Some(entities) = by_target(&asked.demands).remove(&0) {
                self.count(&target, entities, together, most)?;
                longest = asked.demands.first().map(|d| (target, *d)).or(longest);
            }
        }
        lock(&self.live).known.counts.reused = counts.reused;
        let pairs: u64 = wishes.iter().map(|(_, _, rights)| rights.len() as u64).sum();
        let more = pairs.saturating_sub(most.values - before);
        if together == Together::No
            && more > 0
            && let Some((target, demand)) = longest
        {
            let one = self.alone(&target, demand.entity, demand.column, most)?;
            most.add(&one, more);
            most.values += more;
        }
        Ok(())
    }

    /// Adds entities of one expansion with their demanded columns.
    fn count(
        &self,
        target: &Target,
        entities: BTreeMap<usize, Vec<usize>>,
        together: Together,
        most: &mut MostEach,
    ) -> Result<(), QueryError> {
        let values: u64 = entities.values().map(|columns| columns.len() as u64).sum();
        most.values += values;
        // Additional requests are estimated with the entity that has the longest key.
        let length = |n: usize| target.gap(n).row.key.iter().map(|v| v.to_string().len()).sum();
        let longest: Option<(usize, usize)> = entities.keys().map(|n| (length(*n), *n)).max();
        let columns: std::collections::BTreeSet<usize> =
            entities.values().flatten().copied().collect();
        let rows = self.request.choice(&target.expansion).rows;
        let count = entities.len() as u64;
        let used = self.used(target, entities, rows, most)?;
        most.add(&used, 1);
        let requests = match together {
            Together::All => used.requests,
            Together::APart => apart(count, columns.len(), rows),
            Together::No => values,
        };
        if let (true, Some((_, entity))) = (requests > used.requests, longest) {
            let mut largest = Usage::default();
            for column in columns {
                let one = self.alone(target, entity, column, most)?;
                largest.input_tokens = largest.input_tokens.max(one.input_tokens);
                largest.output_tokens = largest.output_tokens.max(one.output_tokens);
                largest.cost_usd = largest.cost_usd.max(one.cost_usd);
                largest.requests = 1;
            }
            most.add(&largest, requests - used.requests);
        }
        Ok(())
    }

    /// Returns the usage of a request for one cell.
    fn alone(
        &self,
        target: &Target,
        entity: usize,
        column: usize,
        most: &MostEach,
    ) -> Result<Usage, QueryError> {
        self.used(target, BTreeMap::from([(entity, vec![column])]), 1, most)
    }

    /// Returns the usage of requests for some cells of an expansion, with `rows` rows per request.
    fn used(
        &self,
        target: &Target,
        entities: BTreeMap<usize, Vec<usize>>,
        rows: u32,
        most: &MostEach,
    ) -> Result<Usage, QueryError> {
        let spec = self.request.spec;
        let expansion = &target.expansion;
        let choice = self.request.choice(expansion);
        let mut meter = Meter::new(expansion, choice.format, Tokenizer::of(&choice.tokenizer))
            .capped(choice.max_output)
            .seeing(image_at_most(&choice.tokenizer));
        let mut shown = ShownPassages {
            most: spec.limits.passage_tokens,
            model: &choice.tokenizer,
            compare: &mut |question, passages| {
                Ok(most.compared.borrow_mut().compare(question, passages))
            },
        };
        cuts(target, entities, rows, &mut shown)?.iter().for_each(|cut| meter.count(cut));
        let (name, price) = (expansion.name.clone(), choice.price);
        let mut of_one = ExpansionPlan { name, price, ..ExpansionPlan::default() };
        let column =
            |c: &hqdl_spec::Column| ColumnPlan { name: c.name.clone(), ..ColumnPlan::default() };
        of_one.columns = expansion.columns.iter().map(column).collect();
        meter.finish(&mut of_one);
        of_one.reason(most.reasoning.get(&choice.tokenizer).copied().unwrap_or_default());
        let mut plan = Plan::default();
        plan.expansions.push(of_one);
        plan.price(&spec.limits, None);
        Ok(Usage {
            requests: plan.requests(),
            input_tokens: plan.input_tokens(),
            output_tokens: plan.output_tokens().most.ceil() as u64,
            cost_usd: plan.cost_usd.most,
            ..Usage::default()
        })
    }
}

/// Returns the maximum number of requests for some entities if each may lack any subset of the
/// columns. Entities with the same missing columns share requests, and only the last request of
/// each subset may be partly filled.
fn apart(entities: u64, columns: usize, rows: u32) -> u64 {
    let rows = u64::from(rows.max(1));
    let lacking = 1_u64.checked_shl(columns as u32).map_or(u64::MAX, |all| all - 1);
    (entities + lacking.min(entities) * (rows - 1)) / rows
}

impl MostEach {
    /// Adds a usage `times` times.
    fn add(&mut self, usage: &Usage, times: u64) {
        self.all.requests += usage.requests * times;
        self.all.input_tokens += usage.input_tokens * times;
        self.all.output_tokens += usage.output_tokens * times;
        self.all.cost_usd += usage.cost_usd * times as f64;
    }
}
