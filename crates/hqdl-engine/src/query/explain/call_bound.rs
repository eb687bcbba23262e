//! Divides the upper bound on a query's usage among its calls, so that the sum over the calls is
//! the total.
//!
//! A value that several calls need counts for the first of them. Requests about several calls are
//! divided in proportion to the calls' values, and an indivisible request counts for the first call.

use std::collections::{BTreeMap, HashMap};

use crate::query::cells::call_target::CallTarget;
use crate::query::cells::targets::Demand;
use crate::query::result::query_result::CallBound;
use hqdl_values::usage::Usage;

/// Calls that the demands count for.
pub(super) struct DemandingCalls {
    /// First call about each column, by expansion and column.
    by_column: HashMap<(usize, usize), usize>,
    /// First call about each expansion.
    by_target: HashMap<usize, usize>,
}

impl DemandingCalls {
    /// Finds the calls among the targets of a query's `call_count` calls. Other targets may follow
    /// them: those of columns that bindings read.
    pub fn new(call_targets: &[CallTarget], call_count: usize) -> Self {
        let (mut by_column, mut by_target) = (HashMap::new(), HashMap::new());
        for (n, call_target) in call_targets.iter().take(call_count).enumerate() {
            let (target, column) = match *call_target {
                CallTarget::Cell { target, column, .. }
                | CallTarget::Document { target, column, .. } => (target, column),
                CallTarget::Rows { target, .. } | CallTarget::Embedding { target, .. } => {
                    (target, 0)
                }
                CallTarget::Pair { .. } => continue,
            };
            by_target.entry(target).or_insert(n);
            by_column.entry((target, column)).or_insert(n);
            for reduced in call_target.reduced_columns() {
                by_column.entry(reduced).or_insert(n);
            }
        }
        Self { by_column, by_target }
    }

    /// Returns the number of the call that a demand counts for.
    pub fn find_call(&self, demand: &Demand) -> usize {
        let by_column = self.by_column.get(&(demand.target(), demand.column()));
        by_column.or_else(|| self.by_target.get(&demand.target())).copied().unwrap_or_default()
    }
}

/// Usage of each call, by call number.
#[derive(Default)]
pub(in crate::query) struct BoundByCall(BTreeMap<usize, CallBound>);

impl BoundByCall {
    /// Adds a usage, divided among calls in proportion to their numbers of values.
    pub fn add_usage(&mut self, usage: &Usage, values: &BTreeMap<usize, u64>) {
        let total = values.values().sum::<u64>().max(1);
        let (mut before, mut divided) = (0, Usage::default());
        for (call, count) in values {
            before += count;
            // The part of this call and of those before it, rounded up.
            let part =
                |all: u64| (u128::from(all) * u128::from(before)).div_ceil(total.into()) as u64;
            let until = Usage {
                requests: part(usage.requests),
                input_tokens: part(usage.input_tokens),
                output_tokens: part(usage.output_tokens),
                ..Usage::default()
            };
            let own = Usage {
                requests: until.requests - divided.requests,
                input_tokens: until.input_tokens - divided.input_tokens,
                output_tokens: until.output_tokens - divided.output_tokens,
                cost_usd: usage.cost_usd * *count as f64 / total as f64,
                ..Usage::default()
            };
            self.0.entry(*call).or_default().usage.merge(&own);
            divided = until;
        }
    }

    /// Adds numbers of values by call.
    pub fn add_values(&mut self, values: &BTreeMap<usize, u64>) {
        for (call, count) in values {
            self.0.entry(*call).or_default().values += count;
        }
    }

    /// Removes the usage of a call.
    pub fn take(&mut self, call: usize) -> CallBound {
        self.0.remove(&call).unwrap_or_default()
    }
}
