//! Upper bounds on requests, tokens and cost. If demands are spread over several passes, the bound
//! assumes that each request contains a single value.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use crate::query::ask::batches::{
    build_row_batches, group_by_entity, group_by_target, split_by_model,
};
use crate::query::ask::passages::PassageSelector;
use crate::query::cells::documents::asks_about_documents;
use crate::query::cells::targets::{Demand, TargetExpansion};
use crate::query::explain::call_bound::{BoundByCall, DemandingCalls};
use crate::query::explain::embedding_usage::ComparedTexts;
use crate::query::functions::call_runtime::lock_runtime;
use crate::query::plan::engine::Engine;
use crate::query::request::error::QueryError;
use crate::query::route::calls::JoinCall;
use crate::query::run::join::{JoinQuestions, PartnerQuestions};
use crate::query::run::known_pairs::{AskedLists, build_join_name};
use hqdl_model::plan::{ColumnPlan, CostEstimator, ExpansionPlan, Plan, estimate_reasoning_tokens};
use hqdl_sql::blendsql::emit::bound::Batching;
use hqdl_values::tokens::Tokenizer;
use hqdl_values::usage::Usage;

/// Running total of the upper bound on a query's usage.
#[derive(Default)]
struct UsageBound {
    usage: Usage,
    value_count: u64,
    /// Expected number of reasoning tokens per answer, by model.
    reasoning: BTreeMap<String, f64>,
    /// Texts that the estimate has compared, for counting their embeddings.
    comparisons: RefCell<ComparedTexts>,
    /// Parts of the calls.
    by_call: BoundByCall,
    /// Number of texts that each call may compare by embeddings.
    compared_values: BTreeMap<usize, u64>,
}

impl Engine<'_, '_> {
    /// Returns the number of values in the demands and the joins, an upper bound on their usage, and
    /// each call's part of both.
    pub(in crate::query) fn estimate_usage(
        &self,
        mut demands: Vec<Demand>,
        batching: Batching,
        comparisons: ComparedTexts,
    ) -> Result<(u64, Usage, BoundByCall), QueryError> {
        let reasoning = estimate_reasoning_tokens(self.request.facts.history(), self.request.spec)?;
        let mut bound = UsageBound {
            reasoning,
            comparisons: RefCell::new(comparisons),
            ..UsageBound::default()
        };
        {
            let runtime = lock_runtime(&self.runtime);
            let calls = DemandingCalls::new(&runtime.data.call_targets, self.calls.routes.len());
            let call_of = |demand: &Demand| calls.find_call(demand);
            demands.sort_unstable();
            for demands in group_by_target(&demands) {
                let target = &runtime.data.targets[demands[0].target()];
                if target.has_embeddings() || asks_about_documents(&target.expansion) {
                    count_values(demands, &call_of, &mut bound.compared_values);
                }
                if target.has_embeddings() {
                    let texts = demands.iter().map(|d| target.entity_text(d.entity())).collect();
                    bound.add_values(demands, &call_of);
                    let is_single_request = batching == Batching::All;
                    bound.comparisons.get_mut().add_embedded_texts(texts, is_single_request);
                    continue;
                }
                self.add_entities(target, demands, &call_of, batching, &mut bound)?;
            }
        }
        for (n, join) in self.calls.joins.iter().enumerate() {
            // The answers of one join divide the lists of another one about the same pairs.
            let batching = if self.has_same_join(n) { Batching::Never } else { batching };
            self.add_join_pairs(n, join, batching, &mut bound)?;
        }
        let embeddings = bound.comparisons.borrow().compute_usage_bound(self.request);
        bound.add_usage(&embeddings, 1);
        if bound.compared_values.is_empty() {
            bound.compared_values.insert(0, 1);
        }
        bound.by_call.add_usage(&embeddings, &bound.compared_values);
        Ok((bound.value_count, bound.usage, bound.by_call))
    }

    /// Returns true if the answers of another join of the query count for this one.
    fn has_same_join(&self, n: usize) -> bool {
        let own = build_join_name(&self.calls.joins[n], self.request);
        let mut others = self.calls.joins.iter().enumerate().filter(|(m, _)| *m != n);
        others.any(|(_, other)| build_join_name(other, self.request) == own)
    }

    /// Adds the pairs of a join. If a single pass demands all pairs, each left value is sent once
    /// with its whole list. Otherwise each pair may need its own request.
    fn add_join_pairs(
        &self,
        n: usize,
        join: &JoinCall,
        batching: Batching,
        bound: &mut UsageBound,
    ) -> Result<(), QueryError> {
        let request = self.request;
        let call_of = |_: &Demand| join.call_number;
        let before = bound.value_count;
        let mut counts = lock_runtime(&self.runtime).data.counts.clone();
        let mut largest = Usage::default();
        let lookups = lock_runtime(&self.runtime).data.joins[n].demanded.take();
        let (runtime, mut asked_lists) = (&self.runtime, AskedLists::new(n, join));
        let questions =
            JoinQuestions::collect(&mut asked_lists, lookups, runtime, request, &mut counts)?;
        for (list, lookups) in questions.by_list {
            let mut asked = PartnerQuestions::new(0, join, list, &lookups, request, &mut counts)?;
            if !asked.demands.is_empty() {
                asked.demands.sort_unstable();
                self.add_entities(&asked.target, &asked.demands, &call_of, batching, bound)?;
                let columns = BTreeSet::from([0]);
                let single =
                    self.estimate_largest_request(&asked.target, &asked.demands, &columns, bound)?;
                raise_usage(&mut largest, &single);
            }
        }
        lock_runtime(&self.runtime).data.counts.reused = counts.reused;
        let remaining = questions.unknown_count.saturating_sub(bound.value_count - before);
        if batching == Batching::Never && largest.requests > 0 {
            let before = bound.usage;
            bound.add_usage(&largest, remaining);
            bound.value_count += remaining;
            let values = BTreeMap::from([(join.call_number, remaining)]);
            bound.by_call.add_values(&values);
            bound.divide_usage_since(&before, &values);
        }
        Ok(())
    }

    /// Adds the sorted demands of one expansion. `call_of` returns the call that a demand counts
    /// for.
    fn add_entities(
        &self,
        target: &TargetExpansion,
        demands: &[Demand],
        call_of: &dyn Fn(&Demand) -> usize,
        batching: Batching,
        bound: &mut UsageBound,
    ) -> Result<(), QueryError> {
        self.request.load_evidence(&target.expansion)?;
        for (model, demands) in split_by_model(target, demands) {
            let rows = self.request.choose_models(&target.expansion).choices()[model].rows;
            let before = bound.usage;
            let values = bound.add_values(&demands, call_of);
            self.add_model_entities(target, &demands, rows, batching, bound)?;
            bound.divide_usage_since(&before, &values);
        }
        Ok(())
    }

    /// Adds the sorted demands that one model answers in one expansion, with `rows` rows per
    /// request.
    fn add_model_entities(
        &self,
        target: &TargetExpansion,
        demands: &[Demand],
        rows: u32,
        batching: Batching,
        bound: &mut UsageBound,
    ) -> Result<(), QueryError> {
        let values = demands.len() as u64;
        let columns: BTreeSet<usize> = demands.iter().map(|demand| demand.column()).collect();
        let count = group_by_entity(demands).count() as u64;
        let batched = self.estimate_request_usage(target, demands, rows, bound)?;
        bound.add_usage(&batched, 1);
        let requests = match batching {
            Batching::All => batched.requests,
            Batching::Partial => compute_max_partial_requests(count, columns.len(), rows),
            Batching::Never => values,
        };
        // Estimate additional requests as if each were the largest.
        if requests > batched.requests {
            let largest = self.estimate_largest_request(target, demands, &columns, bound)?;
            bound.add_usage(&largest, requests - batched.requests);
        }
        Ok(())
    }

    /// Returns the usage of the largest request that asks one model for a single value: of the
    /// largest entities, in the dearest of `columns`.
    fn estimate_largest_request(
        &self,
        target: &TargetExpansion,
        demands: &[Demand],
        columns: &BTreeSet<usize>,
        bound: &UsageBound,
    ) -> Result<Usage, QueryError> {
        let mut largest = Usage::default();
        let longest = self.find_longest_entity(target, demands);
        let heaviest = self.find_entities_with_most_media(target, demands);
        for entity in longest.into_iter().chain(heaviest) {
            for column in columns {
                let demand = Demand::new(demands[0].target(), entity, *column);
                let single = self.estimate_request_usage(target, &[demand], 1, bound)?;
                raise_usage(&mut largest, &single);
            }
        }
        Ok(largest)
    }

    /// Returns the entity with the most tokens of media and text, and the one with the most tokens of
    /// recordings, which cost more; none if the expansion has no media. A text has at most as many
    /// tokens as bytes.
    fn find_entities_with_most_media(
        &self,
        target: &TargetExpansion,
        demands: &[Demand],
    ) -> Vec<usize> {
        let Some(demand) = demands.first().filter(|_| target.expansion.has_media()) else {
            return Vec::new();
        };
        let models = self.request.choose_models(&target.expansion);
        let choice = &models.choices()[target.requirements.first_model(demand.column())];
        let rates = choice.price.map(|price| price.find_highest_rates(u64::MAX));
        let audio_factor = rates.filter(|rates| rates.input > 0.0);
        let audio_factor = audio_factor.map_or(1.0, |rates| rates.audio_input / rates.input);
        let weigh = |entity: usize| {
            let row = target.build_missing_row(entity).row;
            let media = target.expansion.max_media_tokens(&row, &choice.tokenizer);
            let shown = target.expansion.build_shown_row(&row);
            let values = shown.key.iter().chain(&shown.context);
            let text = values.map(|value| value.to_string().len() as u64).sum::<u64>();
            let weight = text as f64 + (media.all - media.audio) as f64;
            (media.all + text, audio_factor.mul_add(media.audio as f64, weight) as u64, entity)
        };
        let weights: Vec<_> =
            group_by_entity(demands).map(|demands| weigh(demands[0].entity())).collect();
        let most = weights.iter().max_by_key(|(all, ..)| *all);
        let dearest = weights.iter().max_by_key(|(_, cost, _)| *cost);
        most.into_iter().chain(dearest).map(|(.., entity)| *entity).collect()
    }

    /// Returns the entity whose key and context have the most tokens, for the model that answers
    /// the first demand.
    fn find_longest_entity(&self, target: &TargetExpansion, demands: &[Demand]) -> Option<usize> {
        let models = self.request.choose_models(&target.expansion);
        let model = target.requirements.first_model(demands.first()?.column());
        let tokenizer = Tokenizer::for_model(&models.choices()[model].tokenizer);
        let text = |entity: usize| {
            let row = target.build_missing_row(entity).row;
            row.key.iter().chain(&row.context).map(ToString::to_string).collect::<String>()
        };
        let entities = group_by_entity(demands).map(|demands| demands[0].entity());
        let mut by_length: Vec<(usize, usize)> = entities.map(|n| (text(n).len(), n)).collect();
        by_length.sort_unstable_by(|a, b| b.cmp(a));
        let mut longest = None;
        for (bytes, entity) in by_length {
            // A text has at most as many tokens as bytes, so all further texts are shorter.
            if longest.is_some_and(|(tokens, _)| tokens >= bytes as u64) {
                break;
            }
            let tokens = tokenizer.count_tokens(&text(entity));
            longest = longest.max(Some((tokens, entity)));
        }
        longest.map(|(_, entity)| entity)
    }

    /// Returns the maximum usage of the requests for sorted demands that one model answers, with
    /// `rows` rows per request.
    fn estimate_request_usage(
        &self,
        target: &TargetExpansion,
        demands: &[Demand],
        rows: u32,
        bound: &UsageBound,
    ) -> Result<Usage, QueryError> {
        let expansion = &target.expansion;
        let models = self.request.choose_models(expansion);
        let model = demands.first().map_or(0, |d| target.requirements.first_model(d.column()));
        let choice = &models.choices()[model];
        let mut meter =
            CostEstimator::new(expansion, choice.format, Tokenizer::for_model(&choice.tokenizer))
                .with_max_output(choice.max_output)
                .with_media_model(&choice.tokenizer)
                .with_extra_input(choice.extra_input);
        let mut selector = PassageSelector {
            max_tokens: self.request.spec.limits.passage_tokens,
            model: &choice.tokenizer,
            compare: &mut |question, passages| {
                Ok(bound
                    .comparisons
                    .borrow_mut()
                    .compute_and_record_similarities(question, passages))
            },
        };
        build_row_batches(target, demands, rows, &mut selector)?
            .for_each(|row_batch| meter.add_batch(&row_batch));
        let (name, price) = (expansion.name.clone(), choice.price);
        let mut expansion_plan = ExpansionPlan { name, price, ..ExpansionPlan::default() };
        let column =
            |c: &hqdl_spec::Column| ColumnPlan { name: c.name.clone(), ..ColumnPlan::default() };
        expansion_plan.columns = expansion.columns.iter().map(column).collect();
        meter.write_totals(&mut expansion_plan);
        expansion_plan
            .add_reasoning(bound.reasoning.get(&choice.tokenizer).copied().unwrap_or_default());
        let mut plan = Plan::default();
        plan.expansions.push(expansion_plan);
        Ok(plan.max_usage())
    }
}

/// Returns the maximum number of requests for `entities` entities, each of which may lack any
/// subset of the columns. Entities with the same missing columns share requests, and only the last
/// request of each subset may be partly filled.
fn compute_max_partial_requests(entities: u64, columns: usize, rows: u32) -> u64 {
    let rows = u64::from(rows.max(1));
    let subsets = 1_u64.checked_shl(columns as u32).map_or(u64::MAX, |all| all - 1);
    (entities + subsets.min(entities) * (rows - 1)) / rows
}

/// Raises each figure of one request's usage to that of another, if it is higher.
fn raise_usage(usage: &mut Usage, other: &Usage) {
    usage.requests = 1;
    usage.input_tokens = usage.input_tokens.max(other.input_tokens);
    usage.output_tokens = usage.output_tokens.max(other.output_tokens);
    usage.cost_usd = usage.cost_usd.max(other.cost_usd);
}

/// Adds the number of demands to the calls that they count for.
fn count_values(
    demands: &[Demand],
    call_of: &dyn Fn(&Demand) -> usize,
    values: &mut BTreeMap<usize, u64>,
) {
    for demand in demands {
        *values.entry(call_of(demand)).or_default() += 1;
    }
}

impl UsageBound {
    /// Adds the values of demands. Returns their number by call.
    fn add_values(
        &mut self,
        demands: &[Demand],
        call_of: &dyn Fn(&Demand) -> usize,
    ) -> BTreeMap<usize, u64> {
        let mut values = BTreeMap::new();
        count_values(demands, call_of, &mut values);
        self.value_count += demands.len() as u64;
        self.by_call.add_values(&values);
        values
    }

    /// Divides what has been added to the usage since `before` among calls.
    fn divide_usage_since(&mut self, before: &Usage, values: &BTreeMap<usize, u64>) {
        let added = Usage {
            requests: self.usage.requests - before.requests,
            input_tokens: self.usage.input_tokens - before.input_tokens,
            output_tokens: self.usage.output_tokens - before.output_tokens,
            cost_usd: self.usage.cost_usd - before.cost_usd,
            ..Usage::default()
        };
        self.by_call.add_usage(&added, values);
    }

    /// Adds a usage multiplied by `times`.
    fn add_usage(&mut self, usage: &Usage, times: u64) {
        self.usage.requests += usage.requests * times;
        self.usage.input_tokens += usage.input_tokens * times;
        self.usage.output_tokens += usage.output_tokens * times;
        self.usage.cost_usd += usage.cost_usd * times as f64;
    }
}
