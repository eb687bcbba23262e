//! The smoothie, what a query ends in: rows, and the [`Meta`] that tells how
//! they came about. Rows go to a [`Sink`] one by one as `SQLite` yields them, so
//! a result need not fit in memory; [`Smoothie`] is the sink that keeps them.

use rusqlite::types::{Value, ValueRef};
use serde_json::{Value as Json, json};

use hqdl_sql::blendsql::plan::{QueryPlan, RuleOutcome, Select};
use hqdl_values::usage::Usage;

/// Which way a call took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouteKind {
    /// The question is a column's: its stored values answer.
    Column,
    /// The question is bound to SQL over an expansion's columns.
    Bound,
    /// No expansion answers it: asked live, and kept.
    AdHoc,
}

impl RouteKind {
    /// The name used in reports and JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Column => "column",
            Self::Bound => "bound",
            Self::AdHoc => "ad-hoc",
        }
    }
}

/// One call's route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// The call as it stands in the query.
    pub call: String,
    /// Which way it took.
    pub route: RouteKind,
    /// The expansion that answers; empty for an ad-hoc one without a name.
    pub expansion: String,
    /// Its column.
    pub column: String,
    /// Why this way.
    pub why: String,
}

impl Route {
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
    /// Values that it needed and that were not there yet.
    pub demanded: u64,
    /// Seconds it took, asking for them not counted.
    pub seconds: f64,
}

/// How rows came about: what `--meta` prints and `--json` holds. Of a query
/// that was only explained, it is what would be asked.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Meta {
    /// Requests to the model that got a reply.
    pub requests: u64,
    /// Values that were asked for.
    pub values_asked: u64,
    /// Values that were known before.
    pub values_reused: u64,
    /// Values this query needed that have none (unknown, refused, failed …),
    /// whether asked now or before; NULL in the rows.
    pub values_missing: u64,
    /// Those of the missing values that the model says it does not know.
    pub values_unknown: u64,
    /// Those of the missing values that belong to rows which were not asked about yet, since
    /// the database is on a server.
    pub values_unanswered: u64,
    /// The runs of its SQL, in their order; the last demanded nothing.
    pub passes: Vec<Pass>,
    /// Input tokens.
    pub input_tokens: u64,
    /// Output tokens.
    pub output_tokens: u64,
    /// Price in USD.
    pub cost_usd: f64,
    /// Where prices are from that are not the spec's ([`Spec::price_notes`]).
    ///
    /// [`Spec::price_notes`]: hqdl_spec::Spec::price_notes
    pub price_notes: Vec<String>,
    /// Seconds in all.
    pub seconds: f64,
    /// The calls' routes, in the order of the query.
    pub routes: Vec<Route>,
    /// What a user should know of how they came about. Not in the JSON, whose
    /// routes tell it, too.
    pub notes: Vec<String>,
    /// Of a query that was only explained: calls whose values cannot be counted
    /// beforehand; `values_asked` is without theirs.
    pub unbounded: Vec<Unbounded>,
    /// Of a query that was only explained: its SELECTs, and the rules by which they
    /// ask less.
    pub plan: QueryPlan,
    /// The SQL that was run.
    pub sql: String,
}

/// A call that asks nobody knows how much beforehand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unbounded {
    /// The call as it stands in the query.
    pub call: String,
    /// Why.
    pub why: String,
}

impl Meta {
    /// Sets what the run of the query used, and notes what of its cost is assumed.
    pub(super) fn set_usage(&mut self, usage: &Usage) {
        self.requests = usage.requests;
        self.input_tokens = usage.input_tokens;
        self.output_tokens = usage.output_tokens;
        self.cost_usd = usage.cost_usd;
        self.price_notes.extend(usage.price_note());
    }

    /// The object `meta` of `hqdl query --json`: a stable contract. `passes` is
    /// their number, `demand` the values that each needed.
    #[must_use]
    pub fn to_json(&self) -> Json {
        json!({
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
        })
    }

    fn plan_json(&self) -> Json {
        let rules = |all: &[RuleOutcome]| -> Vec<Json> {
            let rule = |r: &RuleOutcome| json!({ "rule": r.rule, "fired": r.fired, "why": r.why });
            all.iter().map(rule).collect()
        };
        let call = |n: &usize| self.routes.get(*n).map(|r| r.call.clone());
        let select = |s: &Select| {
            json!({
                "select": s.text,
                "calls": s.calls.iter().filter_map(call).collect::<Vec<_>>(),
                "conditions": s.conditions,
                "rules": rules(&s.rules),
            })
        };
        json!({
            "rules": rules(&self.plan.rules),
            "selects": self.plan.selects.iter().map(select).collect::<Vec<_>>(),
        })
    }

    /// The same of a query that was only explained, as `hqdl explain --json` prints
    /// it: `unbounded` are the calls that `values_asked` is without, `plan` is the
    /// plan of each SELECT.
    #[must_use]
    pub fn explained_json(&self) -> Json {
        let mut json = self.to_json();
        let unbounded = |u: &Unbounded| json!({ "call": u.call, "why": u.why });
        if let Some(object) = json.as_object_mut() {
            let all: Vec<Json> = self.unbounded.iter().map(unbounded).collect();
            object.insert("unbounded".to_owned(), all.into());
            object.insert("plan".to_owned(), self.plan_json());
        }
        json
    }
}

/// Where rows go as they come: the columns once, then every row, then the end.
/// What it cannot write, it says as the system's error, and the query ends.
/// A query writes to it from a thread of its own.
pub trait Sink: Send {
    /// The names of the columns; told before the first row, rows or not.
    fn columns(&mut self, names: &[String]) -> std::io::Result<()>;
    /// A row, a value a column.
    fn row(&mut self, row: &[ValueRef<'_>]) -> std::io::Result<()>;
    /// All rows were told.
    fn finish(&mut self) -> std::io::Result<()>;
}

/// Rows kept in memory, with their meta.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Smoothie {
    /// The names of the columns; two may have the same.
    pub columns: Vec<String>,
    /// The rows.
    pub rows: Vec<Vec<Value>>,
    /// How they came about; empty until the query has ended and its caller
    /// puts it here.
    pub meta: Meta,
}

impl Sink for Smoothie {
    fn columns(&mut self, names: &[String]) -> std::io::Result<()> {
        self.columns = names.to_vec();
        Ok(())
    }

    fn row(&mut self, row: &[ValueRef<'_>]) -> std::io::Result<()> {
        self.rows.push(row.iter().map(|v| owned(*v)).collect());
        Ok(())
    }

    fn finish(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A value of its own; text that is not UTF-8 keeps its bytes, as a blob.
pub(super) fn owned(value: ValueRef<'_>) -> Value {
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
