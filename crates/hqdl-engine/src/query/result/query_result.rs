//! The result of a query (`BlendSQL` calls it a smoothie): rows, and the [`Meta`] that describes
//! how they were computed. A [`RowSink`] receives the rows one by one as `SQLite` yields them, so
//! that a result need not fit in memory. [`QueryResult`] is a sink that stores them.

use rusqlite::types::{Value, ValueRef};
use serde_json::{Value as Json, json};

use hqdl_sql::blendsql::plan::{Conjunct, DemandPlan, RuleOutcome, SelectPlan};
use hqdl_values::usage::Usage;

/// Kind of a call's route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouteKind {
    /// A column of the spec has this question, and the column's stored values are the answers.
    Column,
    /// A binding defines the answer as SQL over an expansion's columns.
    Bound,
    /// No expansion answers the question. hqdl asks the model and stores its answers.
    AdHoc,
}

impl RouteKind {
    /// Returns the name used in reports and JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Column => "column",
            Self::Bound => "bound",
            Self::AdHoc => "ad-hoc",
        }
    }
}

/// Upper bound on the values and the usage of a call.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct CallBound {
    /// Number of values to ask for.
    pub values: u64,
    /// Usage of the requests. Requests that several calls share are divided among them.
    pub usage: Usage,
}

impl CallBound {
    /// Adds another call's usage.
    pub(in crate::query) fn merge(&mut self, other: &Self) {
        self.values += other.values;
        self.usage.merge(&other.usage);
    }
}

/// Route of a call.
#[derive(Debug, Clone, PartialEq)]
pub struct Route {
    /// Text of the call in the query.
    pub call: String,
    /// Kind of the route.
    pub route: RouteKind,
    /// Name of the expansion; empty for an unnamed ad-hoc expansion.
    pub expansion: String,
    /// Name of the column that answers the call.
    pub column: String,
    /// Reason for the route.
    pub why: String,
    /// Upper bound on the call's usage; `None` if the query was run.
    pub bound: Option<CallBound>,
}

impl Route {
    fn explained_to_json(&self) -> Json {
        let CallBound { values, usage } = self.bound.unwrap_or_default();
        let mut json = self.to_json();
        json["values_asked"] = values.into();
        json["requests"] = usage.requests.into();
        json["input_tokens"] = usage.input_tokens.into();
        json["output_tokens"] = usage.output_tokens.into();
        json["cost_usd"] = usage.cost_usd.into();
        json
    }

    fn to_json(&self) -> Json {
        json!({
            "call": self.call, "route": self.route.name(), "expansion": self.expansion,
            "column": self.column, "why": self.why,
        })
    }
}

/// One run of the query's SQL.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Pass {
    /// Number of values that the pass needed and that were not known yet.
    pub demanded: u64,
    /// Duration in seconds, excluding the requests after the pass.
    pub seconds: f64,
}

/// Description of how the rows were computed, printed by `--meta` and included by `--json`. For a
/// query that was only explained, it describes what would happen.
#[derive(Debug, Clone, Default)]
pub struct Meta {
    /// Number of model requests that got a reply.
    pub requests: u64,
    /// Number of values that hqdl asked for.
    pub values_asked: u64,
    /// Number of values known before the query.
    pub values_reused: u64,
    /// Number of needed values without an answer (unknown, refused, failed …), whether hqdl asked
    /// for them now or earlier. They are NULL in the rows.
    pub values_missing: u64,
    /// Number of missing values that the model reports as unknown.
    pub values_unknown: u64,
    /// Number of missing values that hqdl did not ask for, because the database is on a server.
    pub values_unanswered: u64,
    /// Passes in order. The last pass demands nothing.
    pub passes: Vec<Pass>,
    /// Number of input tokens.
    pub input_tokens: u64,
    /// Number of output tokens.
    pub output_tokens: u64,
    /// Cost in USD.
    pub cost_usd: f64,
    /// Sources of prices that are not set in the spec ([`Spec::price_notes`]).
    ///
    /// [`Spec::price_notes`]: hqdl_spec::Spec::price_notes
    pub price_notes: Vec<String>,
    /// Total duration in seconds.
    pub seconds: f64,
    /// Routes of the calls, in the order of the query.
    pub routes: Vec<Route>,
    /// Notes for the user. The JSON omits them, because its routes contain them.
    pub notes: Vec<String>,
    /// Calls of an explained query whose values cannot be counted in advance. `values_asked` does
    /// not include them.
    pub unbounded: Vec<UnboundedCall>,
    /// Plan of an explained query: its SELECTs, with the optimization rules.
    pub plan: DemandPlan,
    /// SQL that was run.
    pub sql: String,
    /// Description of the aggregates' confidence intervals; `None` unless the caller requested
    /// them.
    pub interval: Option<Json>,
}

/// A call whose number of values has no upper bound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnboundedCall {
    /// Text of the call in the query.
    pub call: String,
    /// Reason why there is no bound.
    pub why: String,
}

impl Meta {
    /// Sets the usage of the query's run, and adds a note if its cost is partly assumed.
    pub(in crate::query) fn set_usage(&mut self, usage: &Usage) {
        self.requests = usage.requests;
        self.input_tokens = usage.input_tokens;
        self.output_tokens = usage.output_tokens;
        self.cost_usd = usage.cost_usd;
        self.price_notes.extend(usage.price_note());
    }

    /// Returns the object `meta` of `hqdl query --json`, whose format is stable. `passes` is the
    /// number of passes, and `demand` lists the number of values that each pass demanded.
    #[must_use]
    pub fn to_json(&self) -> Json {
        let mut json = json!({
            "requests": self.requests,
            "values_asked": self.values_asked,
            "values_reused": self.values_reused,
            "values_missing": self.values_missing,
            "values_unknown": self.values_unknown,
            "passes": self.passes.len(),
            "demand": self.passes.iter().map(|p| p.demanded).collect::<Vec<_>>(),
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "cost_usd": self.cost_usd,
            "price_notes": self.price_notes,
            "seconds": self.seconds,
            "routes": self.routes.iter().map(Route::to_json).collect::<Vec<_>>(),
            "sql": self.sql,
        });
        if let (Some(interval), Some(object)) = (&self.interval, json.as_object_mut()) {
            object.insert("interval".to_owned(), interval.clone());
        }
        json
    }

    fn plan_to_json(&self) -> Json {
        let rules = |all: &[RuleOutcome]| -> Vec<Json> {
            let rule =
                |r: &RuleOutcome| json!({ "rule": r.rule, "fired": r.is_applied, "why": r.why });
            all.iter().map(rule).collect()
        };
        let call = |n: &usize| self.routes.get(*n).map(|r| r.call.clone());
        let with_calls = |c: &&Conjunct| c.stage.has_calls();
        let select = |s: &SelectPlan| {
            json!({
                "select": s.text,
                "calls": s.calls.iter().filter_map(call).collect::<Vec<_>>(),
                "conditions": s.conjuncts.iter().filter(with_calls).map(|c| c.text.as_str()).collect::<Vec<_>>(),
                "rules": rules(&s.rules),
            })
        };
        json!({
            "rules": rules(&self.plan.rules),
            "selects": self.plan.selects.iter().map(select).collect::<Vec<_>>(),
        })
    }

    /// Returns the metadata of an explained query in the format of `hqdl explain --json`. Each
    /// route has the call's share of the bound. `unbounded` lists the calls that `values_asked` does
    /// not include, and `plan` describes each SELECT.
    #[must_use]
    pub fn explained_to_json(&self) -> Json {
        let mut json = self.to_json();
        json["routes"] = self.routes.iter().map(Route::explained_to_json).collect();
        let unbounded = |u: &UnboundedCall| json!({ "call": u.call, "why": u.why });
        if let Some(object) = json.as_object_mut() {
            let all: Vec<Json> = self.unbounded.iter().map(unbounded).collect();
            object.insert("unbounded".to_owned(), all.into());
            object.insert("plan".to_owned(), self.plan_to_json());
        }
        json
    }
}

/// Receiver of rows: the columns once, then every row, then the end. If a method returns an I/O
/// error, the query ends. A query calls the sink from its own thread.
pub trait RowSink: Send {
    /// Receives the names of the columns. Called once before the first row, even if there are no
    /// rows.
    fn write_columns(&mut self, names: &[String]) -> std::io::Result<()>;
    /// Receives a row, with one value per column.
    fn write_row(&mut self, row: &[ValueRef<'_>]) -> std::io::Result<()>;
    /// Ends the result. Called after the last row.
    fn finish(&mut self) -> std::io::Result<()>;
}

/// Rows in memory, with the metadata of the query.
#[derive(Debug, Clone, Default)]
pub struct QueryResult {
    /// Names of the columns, not necessarily unique.
    pub columns: Vec<String>,
    /// Rows of the result.
    pub rows: Vec<Vec<Value>>,
    /// Metadata of the query; empty until the caller sets it after the query.
    pub meta: Meta,
}

impl RowSink for QueryResult {
    fn write_columns(&mut self, names: &[String]) -> std::io::Result<()> {
        self.columns = names.to_vec();
        Ok(())
    }

    fn write_row(&mut self, row: &[ValueRef<'_>]) -> std::io::Result<()> {
        self.rows.push(row.iter().map(|v| to_owned_value(*v)).collect());
        Ok(())
    }

    fn finish(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Returns an owned value. Text that is not UTF-8 becomes a blob with the same bytes.
pub(in crate::query) fn to_owned_value(value: ValueRef<'_>) -> Value {
    match value {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(i) => Value::Integer(i),
        ValueRef::Real(r) => Value::Real(r),
        ValueRef::Text(bytes) => match std::str::from_utf8(bytes) {
            Ok(text) => Value::Text(text.to_owned()),
            Err(_) => Value::Blob(bytes.to_vec()),
        },
        ValueRef::Blob(bytes) => Value::Blob(bytes.to_vec()),
    }
}
