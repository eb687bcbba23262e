//! Rewrites a query with calls into SQL that `SQLite` can run. Each call becomes a scalar function,
//! and the surrounding SQL reduces the number of requests. First, the [plan](crate::blendsql::plan)
//! decides which calls each SELECT makes; then [`emit`](crate::blendsql::emit) writes the SQL.

pub use super::emit::{ConditionGroup, RewrittenQuery, column_values_sql};
use super::emit::{EmitOptions, emit_query};
use super::parse::ParsedQuery;
use super::plan::DemandPlan;
use super::plan::analysis::Analysis;

pub use super::plan::call_site::CallSite;
pub use super::plan::statistics::{Selectivity, Statistics};
use super::planner::plan_query;
use super::scope::Schema;

/// Settings for rewriting a query.
pub struct Rewriter<'q> {
    /// Text of the query.
    pub sql: &'q str,
    /// SQL for each call.
    pub sites: &'q [CallSite],
    /// Schema of the database.
    pub schema: &'q dyn Schema,
    /// Statistics of conditions.
    pub statistics: &'q Statistics,
    /// Whether an unordered LIMIT is evaluated in similarity order.
    pub similarity_ordering: bool,
    /// Whether the LIMIT rule may apply to the outermost SELECT.
    pub limit_pushdown_enabled: bool,
    /// Offsets of the nested SELECTs whose first rows are already known.
    pub complete_selects: &'q [usize],
    /// Offset of the only SELECT to rewrite, instead of the whole query.
    pub standalone: Option<usize>,
}

impl<'q> Rewriter<'q> {
    /// Creates a rewriter with default options.
    #[must_use]
    pub fn new(
        sql: &'q str,
        sites: &'q [CallSite],
        schema: &'q dyn Schema,
        statistics: &'q Statistics,
    ) -> Self {
        Self {
            sql,
            sites,
            schema,
            statistics,
            similarity_ordering: true,
            limit_pushdown_enabled: false,
            complete_selects: &[],
            standalone: None,
        }
    }

    /// Returns the plan of a query.
    #[must_use]
    pub fn plan(&self, parsed: &ParsedQuery) -> DemandPlan {
        let mut analysis = Analysis::new(self.sql, self.sites, self.schema, self.statistics);
        analysis.similarity_ordering = self.similarity_ordering;
        analysis.limit_pushdown_enabled = self.limit_pushdown_enabled;
        analysis.standalone = self.standalone;
        plan_query(analysis, parsed)
    }

    /// Rewrites a query.
    #[must_use]
    pub fn rewrite(self, parsed: &ParsedQuery) -> RewrittenQuery {
        let plan = self.plan(parsed);
        let options = EmitOptions {
            text: self.sql,
            sites: self.sites,
            complete_selects: self.complete_selects,
            standalone: self.standalone,
        };
        emit_query(&options, parsed, plan)
    }
}
