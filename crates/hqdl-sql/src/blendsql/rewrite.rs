//! Rewrites a query with calls into SQL that `SQLite` can run. Each call becomes a scalar function,
//! and the surrounding SQL keeps the number of requests small. First the [plan](super::plan) decides
//! what each SELECT asks, then [`emit`](super::emit) writes the SQL.

use std::collections::HashMap;

use super::emit::{column_values, emit_query};
use super::ingredients::Subject;
use super::parse::ParsedQuery;
use super::plan::analysis::Analysis;
pub use super::plan::analysis::{Selectivity, Statistics};
use super::plan::planner::plan_query;
use super::plan::{DemandPlan, LimitPushdown, SubqueryLimit};
use super::runtime::Function;
use super::scope::Schema;

/// SQL for a call in the rewritten query.
#[derive(Debug, Clone, Default)]
pub struct CallSite {
    /// SQL before the answer.
    pub sql_before: String,
    /// Arguments as SQL; `None` for the arguments in the query.
    pub argument_sql: Option<Vec<String>>,
    /// SQL after the answer.
    pub sql_after: String,
    /// Subject of the call.
    pub subject: Subject,
    /// Number of columns if the answer is a list that becomes a row value.
    pub row_width: Option<u32>,
}

impl CallSite {
    /// Returns all values of a column as a single argument: the rows of a context.
    #[must_use]
    pub fn column_values(table: &str, column: &str) -> String {
        column_values(table, column)
    }

    /// Returns the aggregate that converts the query in argument `n` to one value. Returns `None`
    /// if the argument is a scalar subquery.
    pub(crate) fn context_function(&self, n: usize) -> Option<Function> {
        match self.subject {
            Subject::Rows => Some(Function::Rows),
            // Arguments after the value asked about are context.
            Subject::Value if n > 0 => Some(Function::Values),
            _ => None,
        }
    }
}

/// A SELECT whose conditions contain calls. Its rows are recorded together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConditionGroup {
    /// Offset in the text, which identifies the SELECT: a different rewriting can number the units
    /// differently.
    pub offset: usize,
    /// Number of conditions with calls.
    pub conditions: usize,
}

/// Result of a rewriting.
#[derive(Debug, Clone, Default)]
pub struct RewrittenQuery {
    /// SQL to run.
    pub sql: String,
    /// SELECTs that have conditions with calls.
    pub condition_groups: Vec<ConditionGroup>,
    /// Conditions with calls, by their offset in the text, with the calls in their subqueries that
    /// `SQLite` may run once for many rows.
    pub predicates: HashMap<usize, Vec<usize>>,
    /// LIMIT rule for the outermost SELECT; `None` if all rows are needed.
    pub limit_pushdown: Option<LimitPushdown>,
    /// Calls whose documents determine the similarity order of the rows.
    pub similarity_calls: Vec<usize>,
    /// Plan that the SQL was written from.
    pub plan: DemandPlan,
    /// Names of result columns: `SQLite`'s name in the rewritten query, mapped to the name in the
    /// original query.
    pub result_names: HashMap<String, String>,
}

impl RewrittenQuery {
    /// Returns the nested SELECTs to which the LIMIT rule applies.
    #[must_use]
    pub fn subquery_limits(&self) -> &[SubqueryLimit] {
        &self.plan.subquery_limits
    }
}

/// Options of a rewriting.
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
    /// Whether to try the LIMIT rule for the outermost SELECT.
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
        emit_query(&self, parsed, plan)
    }
}
