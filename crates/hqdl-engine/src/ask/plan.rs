//! A checked query with its maximum cost.

use std::sync::Arc;

use super::OtherReading;
use crate::query::{self, Dialect, Meta, QueryError, Request, RowSink};
use hqdl_model::Model;
use hqdl_model::plan::Plan;
use hqdl_spec::{ModelSettings, Spec};
use hqdl_values::format::to_single_line;

/// Factor by which a query may exceed its estimated cost, because requests are retried.
const COST_HEADROOM: f64 = 2.0;
/// Prices are in USD per this number of tokens.
const TOKENS_PER_PRICE: f64 = 1e6;

/// Maximum cost of running a plan.
#[derive(Debug, Clone, PartialEq)]
pub enum MaxCost {
    /// The plan sends no request.
    Nothing,
    /// Maximum cost in USD.
    Usd(f64),
    /// The cost has no known limit, for this reason.
    Unknown(String),
}

impl MaxCost {
    /// Returns whether the cost may exceed `usd`. An unknown cost always may.
    #[must_use]
    pub fn exceeds(&self, usd: f64) -> bool {
        match self {
            Self::Nothing => false,
            Self::Usd(cost) => *cost > usd,
            Self::Unknown(_) => true,
        }
    }
}

/// A query that answers a question and has not been run yet.
#[derive(Debug, Clone)]
pub struct AskPlan {
    /// Text of the query.
    pub sql: String,
    /// Dialect of the query.
    pub dialect: Dialect,
    /// The model's own description of how it interpreted the question.
    pub assumptions: Option<String>,
    /// Routes of the query's questions, and an upper bound on its requests.
    pub explained: Meta,
    /// Maximum cost of running the query.
    pub max_cost: MaxCost,
    /// Identity of the plan: a hash of its query, database, schema, model and cost.
    pub id: String,
}

impl AskPlan {
    /// Adds the other reading of the question to the assumptions, for a caller that cannot ask the
    /// user which one is meant.
    pub fn add_other_reading(&mut self, other: &OtherReading) {
        let note = format!("the question could also mean: {}", to_single_line(&other.reading));
        let assumptions = self.assumptions.take().into_iter().chain([note]);
        self.assumptions = Some(assumptions.collect::<Vec<_>>().join("; "));
    }

    /// Returns the likely cost of the query in USD; `None` if a price or the number of requests is
    /// not known.
    #[must_use]
    pub fn estimate_usd(&self, spec: &Spec) -> Option<f64> {
        let is_known = self.explained.unbounded.is_empty() && check_cost_is_known(spec).is_ok();
        is_known.then_some(self.explained.cost_usd)
    }
}

/// Limits in USD that replace or cap the computed cost of a query.
#[derive(Debug, Clone, Copy, Default)]
pub struct CostLimits {
    /// The user's budget for the query. If it is set, it replaces the computed cost.
    pub budget_usd: Option<f64>,
    /// The spec's budget. If it is set, it caps the computed cost.
    pub spec_usd: Option<f64>,
}

/// Checks a query and computes its maximum cost. Sends no request.
///
/// # Errors
/// [`QueryError`] if the query could not be run.
pub fn plan_query(
    request: &Request<'_>,
    planning_model: &Arc<dyn Model>,
    schema_hash: &str,
    limits: CostLimits,
) -> Result<AskPlan, QueryError> {
    let request = Request { model: Some(Arc::clone(planning_model)), ..request.clone() };
    let Request { sql, dialect, .. } = request;
    let explained = if query::may_need_model(request.spec, sql, dialect, request.classify) {
        query::explain(&request)?
    } else {
        request.to_plain().explain()?
    };
    let max_cost = bound_cost(request.spec, &explained, limits);
    let id = compute_plan_id(&request, schema_hash, &explained);
    Ok(AskPlan { sql: sql.to_owned(), dialect, assumptions: None, explained, max_cost, id })
}

/// Runs a query and spends at most `limit_usd`; `None` means no limit. If there is a limit but the
/// cost of a request is not known, the query sends no requests.
///
/// # Errors
/// [`QueryError`] if the query fails. Answers received before the error are kept.
pub fn run_within_limit(
    request: &Request<'_>,
    limit_usd: Option<f64>,
    sink: &mut dyn RowSink,
) -> Result<Meta, QueryError> {
    let mut spec = request.spec.clone();
    spec.limits.budget_usd = limit_usd;
    if limit_usd.is_some() && !spec.is_replay() && check_cost_is_known(&spec).is_err() {
        spec.limits.budget_tokens = Some(0);
    }
    let request = Request { spec: &spec, ..request.clone() };
    if query::may_need_model(&spec, request.sql, request.dialect, request.classify) {
        query::run(&request, sink)
    } else {
        request.to_plain().run(sink)
    }
}

/// Checks that the cost of every request can be computed.
///
/// # Errors
/// Returns the reason why the cost cannot be computed.
pub fn check_cost_is_known(spec: &Spec) -> Result<(), String> {
    let embeddings = spec.embeddings.as_ref().map(|embeddings| &embeddings.model);
    if !spec.is_priced() || embeddings.is_some_and(|model| model.price.is_none()) {
        return Err("the price of the model is not known".to_owned());
    }
    spec.check_prices().map_err(|unpriced| unpriced.to_string())
}

fn bound_cost(spec: &Spec, explained: &Meta, limits: CostLimits) -> MaxCost {
    let has_requests = explained.requests > 0;
    let can_ask = has_requests || !explained.unbounded.is_empty();
    if let Some(budget) = limits.budget_usd.filter(|_| can_ask) {
        return MaxCost::Usd(budget);
    }
    match (explained.unbounded.first(), limits.spec_usd) {
        (Some(_), Some(budget)) => MaxCost::Usd(budget),
        (Some(unbounded), None) => {
            let call: Vec<&str> = unbounded.call.split_whitespace().collect();
            MaxCost::Unknown(format!("{}: {}", call.join(" "), unbounded.why))
        }
        (None, _) if !has_requests => MaxCost::Nothing,
        (None, limit) => match check_cost_is_known(spec) {
            Err(reason) => MaxCost::Unknown(reason),
            Ok(()) => {
                let input = explained.input_tokens as f64 / explained.requests.max(1) as f64;
                let usd =
                    COST_HEADROOM * explained.cost_usd + compute_max_request_cost(spec, input);
                MaxCost::Usd(limit.map_or(usd, |limit| limit.min(usd)))
            }
        },
    }
}

/// Returns the maximum cost of a run that fills cells.
#[must_use]
pub fn bound_fill_cost(spec: &Spec, plan: &Plan) -> MaxCost {
    if plan.request_count() == 0 || spec.is_replay() {
        return MaxCost::Nothing;
    }
    if let Err(reason) = check_cost_is_known(spec) {
        return MaxCost::Unknown(reason);
    }
    let input = plan.max_input_tokens() as f64 / plan.request_count() as f64;
    let usd = COST_HEADROOM * plan.cost_usd.max + compute_max_request_cost(spec, input);
    MaxCost::Usd(spec.limits.budget_usd.map_or(usd, |limit| limit.min(usd)))
}

/// Returns the maximum cost that one request reserves, in USD: the cost of its input tokens and of
/// the longest possible answer. The limit of a query or a run includes this amount, because
/// otherwise the last request could not be sent.
#[must_use]
pub fn compute_max_request_cost(spec: &Spec, input: f64) -> f64 {
    let reserved = |settings: &ModelSettings| {
        let price = settings.charged_price().unwrap_or_default();
        let output = f64::from(settings.max_output_tokens);
        (2.0 * input * price.input + output * price.output) / TOKENS_PER_PRICE
    };
    spec.all_models().map(reserved).fold(0.0, f64::max)
}

/// Returns the identity of a plan: a hash of its query, database, schema, model and cost.
#[must_use]
pub fn compute_plan_id(request: &Request<'_>, schema_hash: &str, explained: &Meta) -> String {
    // Leave out the folder, so that a plan has the same id on another machine.
    let database = request.database.file_name();
    let parts = [
        request.sql.to_owned(),
        format!("{:?}", request.dialect),
        database.unwrap_or_default().to_string_lossy().into_owned(),
        schema_hash.to_owned(),
        request.spec.model.name.clone(),
        format!("{} {:.6} {}", explained.requests, explained.cost_usd, explained.unbounded.len()),
    ];
    blake3::hash(parts.join("\u{0}").as_bytes()).to_hex()[..12].to_owned()
}
