//! The plan of a query: which calls each SELECT makes, for which rows, and in which order.
//!
//! The planner builds it from the tree and the scopes, and the [rules](super::rules) change it. It
//! contains no SQL text; [`emit`](super::emit) writes the SQL from the finished plan.

pub(crate) mod analysis;
pub mod condition;
pub(crate) mod barrier;
pub mod call_site;
pub(crate) mod numbered_rows;
pub(crate) mod select_scope;
pub mod statistics;

use std::collections::BTreeMap;
use std::fmt;

use crate::blendsql::plan::condition::{Condition, Predicate};
use crate::blendsql::tree::{Expr, Span};

/// The unmet precondition of a rule.
pub type RejectionReason = &'static str;

/// Plan of a query.
#[derive(Debug, Clone, Default)]
pub struct DemandPlan {
    /// SELECTs with calls, in text order once the plan is finished.
    pub selects: Vec<SelectPlan>,
    /// Outcomes of the rules that apply to the whole query.
    pub rules: Vec<RuleOutcome>,
    /// Nested SELECTs to which the LIMIT rule applies, in the order in which they run separately.
    pub subquery_limits: Vec<SubqueryLimit>,
    /// Column titles of each context query, by the query's offset; `None` if they are unknown.
    pub(crate) context_titles: BTreeMap<usize, Option<Vec<String>>>,
    /// Conditions inside values, by their byte range.
    pub(crate) value_conditions: BTreeMap<(usize, usize), ValueCondition>,
    /// Calls that the rows of each common table expression depend on.
    pub(crate) cte_calls: Vec<(String, Vec<usize>)>,
}

/// Plan of one SELECT.
#[derive(Debug, Clone, Default)]
pub struct SelectPlan {
    /// Start offset in the text.
    pub at: usize,
    /// Source text, on one line.
    pub text: String,
    /// Indices of the calls in this SELECT, without those in nested SELECTs.
    pub calls: Vec<usize>,
    /// Conditions of WHERE, and of the inner joins that have calls, split at AND.
    pub conjuncts: Vec<Conjunct>,
    /// Conditions with calls that are evaluated last.
    pub truth: Option<Condition>,
    /// HAVING condition, if it contains a call or a moved condition.
    pub having: Option<Condition>,
    /// ON conditions with calls that cannot move to WHERE.
    pub outer_joins: Vec<OuterJoin>,
    /// Conditions without calls that are evaluated immediately before the calls.
    pub guards: Vec<Expr>,
    /// Columns that the conditions evaluated last wait for.
    pub barrier: Vec<ScopeColumn>,
    /// Sources that are read completely before a call is evaluated.
    pub fences: Vec<SourceFence>,
    /// Number of needed rows; `None` if the LIMIT rule does not apply.
    pub limit: Option<LimitPushdown>,
    /// Passing rows needed from each group; `None` if every passing row is needed.
    pub needed: Option<NeededRows>,
    /// Counts of calls that are compared with a number.
    pub counted: Vec<CountedCalls>,
    /// Restriction to the rows for which results with calls are evaluated; `None` for all rows.
    pub value_guard: Option<ValueGuard>,
    /// Restrictions of the SELECT's rows that apply before a call is evaluated.
    pub memberships: Vec<Membership>,
    /// Effect of a single row on the EXISTS or IN around this SELECT; `None` if a single row cannot
    /// decide it.
    pub decisive: Option<DecisiveRows>,
    /// Value column of an IN's subquery; rows with the same value are equivalent candidates.
    pub candidate_value: Option<Span>,
    /// Outcomes of the rules.
    pub rules: Vec<RuleOutcome>,
}

/// An operand of a SELECT's top-level AND.
#[derive(Debug, Clone)]
pub struct Conjunct {
    /// The condition.
    pub expr: Expr,
    /// Source text, on one line.
    pub text: String,
    /// Clause that contains the condition.
    pub clause: ConditionClause,
    /// Stage at which the condition is evaluated.
    pub stage: ConditionStage,
}

/// Clause that contains a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConditionClause {
    /// The WHERE clause.
    Where,
    /// The ON clause of the FROM entry at this index.
    Join(usize),
}

/// Stage at which a condition is evaluated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConditionStage {
    /// In the clause that contains the condition; only for a condition without calls.
    InPlace,
    /// Immediately before the calls, for a condition without calls.
    BeforeCalls,
    /// After all conditions without calls, for the rows that satisfy them.
    Last,
    /// After the calls, for a plain condition that may fail.
    AfterCalls,
    /// After the HAVING conditions without calls, for the groups that satisfy them.
    AfterHaving,
}

impl ConditionStage {
    /// Returns true if the condition depends on a call.
    #[must_use]
    pub fn has_calls(self) -> bool {
        matches!(self, Self::Last | Self::AfterHaving)
    }
}

/// Condition of a join that cannot move to WHERE.
#[derive(Debug, Clone)]
pub struct OuterJoin {
    /// Byte range of the ON condition.
    pub on: Span,
    /// Parts without calls.
    pub plain: Vec<Expr>,
    /// Parts with calls.
    pub truth: Condition,
    /// Columns that the condition waits for; `None` if it does not wait.
    pub barrier: Option<Vec<ScopeColumn>>,
    /// Parts without calls that are also evaluated immediately before the calls.
    pub guards: Vec<Expr>,
}

/// Name of a column in a scope.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScopeColumn {
    /// Table, if the name must be qualified.
    pub table: Option<String>,
    /// Name of the column.
    pub column: String,
}

/// A source that `SQLite` must not flatten.
#[derive(Debug, Clone)]
pub struct SourceFence {
    /// Offset of the table or query.
    pub at: usize,
    /// Conditions on this source alone, which move inside the fence.
    pub conditions: Vec<Expr>,
}

/// The first rows that a SELECT needs from each group.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NeededRows {
    /// Offset of the query that returns these rows; the arms of a UNION ALL share it.
    pub set: usize,
    /// Expressions that have the same values in all rows of a group.
    pub groups: Vec<Span>,
    /// Order of the rows in a group.
    pub order: Vec<OrderKey>,
    /// Number of passing rows needed from each group, or number of groups; see `part`.
    pub count: u64,
    /// Part of the rows that the query needs.
    pub part: NeededPart,
}

/// Part of the rows of a SELECT that the query needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NeededPart {
    /// The first rows of each group. Ties in the order are broken arbitrarily.
    #[default]
    FirstRows,
    /// The first rows of each group, and all rows that tie with the last of these rows.
    FirstRowsWithTies,
    /// All rows of the groups that have the most rows, or the fewest.
    WholeGroups {
        /// Whether the query needs the groups with the most rows instead of those with the fewest.
        largest: bool,
    },
}

/// Restricts the evaluation of results with calls to the first rows in a window's order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValueGuard {
    /// Function that numbers the rows.
    pub number: Span,
    /// Highest row number that is used; calls in later rows are not evaluated.
    pub last: u64,
}

/// A count of calls that is compared with a number.
#[derive(Debug, Clone)]
pub struct CountedCalls {
    /// Byte range of the aggregate.
    pub span: Span,
    /// Condition under which a row counts.
    pub condition: CountCondition,
    /// Rows that must be counted.
    pub needed: NeededRows,
}

/// Condition under which a count of calls includes a row.
#[derive(Debug, Clone)]
pub enum CountCondition {
    /// The condition of the FILTER holds.
    Holds(Condition),
    /// The argument of the count is not NULL.
    NotNull(Predicate),
}

/// An ORDER BY term.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrderKey {
    /// The expression.
    pub span: Span,
    /// Whether larger values come first.
    pub descending: bool,
    /// Whether NULL comes first.
    pub nulls_first: bool,
}

/// Restricts a SELECT to the rows whose columns match a member row, or to the rows whose columns
/// match none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Membership {
    /// Columns of the SELECT.
    pub columns: Vec<Span>,
    /// The member rows.
    pub rows: MemberRows,
    /// Whether the SELECT keeps the rows that match a member row, instead of the rows that match
    /// none.
    pub keeps: bool,
}

/// Rows of a [`Membership`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemberRows {
    /// Rows of a query.
    Query(Span),
    /// Groups of the SELECT itself, found by the text from its FROM clause to its end.
    Groups {
        /// Byte range after the result columns.
        after: Span,
    },
}

/// Rows of an EXISTS or IN that a single row can decide.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecisiveRows {
    /// Whether a passing row makes the condition true; if not, a passing row makes the condition
    /// false.
    pub makes_true: bool,
    /// Whether `SQLite` runs the query only once for all outer rows.
    pub runs_once: bool,
    /// Left operand of an IN, if each outer row waits only for the inner rows that equal this
    /// operand.
    pub operand: Option<Span>,
}

/// A condition inside a value.
#[derive(Debug, Clone)]
pub(crate) struct ValueCondition {
    /// Offset of the innermost SELECT around the condition; `usize::MAX` if there is no such
    /// SELECT.
    pub select: usize,
    /// The condition that the value is true.
    pub holds: Condition,
    /// The condition that the value is false; `None` if NULL and false need not be distinguished.
    pub fails: Option<Condition>,
}

/// A nested SELECT to which the LIMIT rule applies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubqueryLimit {
    /// Start offset in the text.
    pub at: usize,
    /// Indices of the SELECT's calls.
    pub calls: Vec<usize>,
}

/// Plan of a query that needs only some of its rows.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LimitPushdown {
    /// Number of rows in the result plus the rows that OFFSET skips; `None` without a LIMIT.
    pub rows_needed: Option<u64>,
    /// Number of rows that OFFSET skips.
    pub rows_skipped: u64,
    /// Whether an ORDER BY determines which rows come first.
    pub is_ordered: bool,
    /// Whether equal rows are merged.
    pub is_distinct: bool,
    /// Whether the second-to-last column contains the order in which hqdl asks about the rows.
    pub is_ranked: bool,
    /// Indices of the query's result columns whose values the candidate rows store.
    pub held_columns: Vec<usize>,
    /// Number of result columns of the query.
    pub column_count: usize,
    /// Number of conditions with calls.
    pub condition_count: usize,
    /// Indices of the calls in uncorrelated subqueries of [`Self::held_columns`]. `SQLite` may run
    /// such a subquery only once, so only the first row records its pending calls.
    pub shared_calls: Vec<usize>,
    pub(in crate::blendsql) star_position: Option<usize>,
    /// Whether the rows are groups.
    pub(in crate::blendsql) is_grouped: bool,
    /// Calls about documents, each with the byte range of its document; used for the similarity
    /// order.
    pub(in crate::blendsql) documents: Vec<(usize, Span)>,
}

impl LimitPushdown {
    /// Returns true if a star precedes a result column.
    #[must_use]
    pub fn has_star_before(&self, column: usize) -> bool {
        self.star_position.is_some_and(|star| star < column)
    }
}

/// Result of applying a rule to a SELECT.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RuleResult {
    /// The rule changed the plan; the text describes the effect.
    Applied(String),
    /// The rule's precondition is not met.
    Refused(RejectionReason),
    /// The rule does not concern the SELECT.
    Irrelevant,
}

/// Outcome of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleOutcome {
    /// Name of the rule.
    pub rule: &'static str,
    /// Whether the rule was applied.
    pub is_applied: bool,
    /// Effect of the rule, or the precondition that is not met.
    pub why: String,
}

impl DemandPlan {
    /// Returns the plan of the SELECT that starts at an offset.
    #[must_use]
    pub fn find_select(&self, at: usize) -> Option<&SelectPlan> {
        self.selects.iter().find(|s| s.at == at)
    }

    /// Returns the plan of the SELECT that starts at an offset, adding it if needed.
    pub(crate) fn find_or_add_select(&mut self, at: usize) -> &mut SelectPlan {
        let n = match self.selects.iter().position(|s| s.at == at) {
            Some(n) => n,
            None => {
                self.selects.push(SelectPlan { at, ..SelectPlan::default() });
                self.selects.len() - 1
            }
        };
        &mut self.selects[n]
    }

    /// Records the outcome of a rule for the SELECT at an offset.
    pub(crate) fn record_outcome(&mut self, at: usize, rule: &'static str, outcome: RuleResult) {
        let outcome = match outcome {
            RuleResult::Applied(why) => RuleOutcome { rule, is_applied: true, why },
            RuleResult::Refused(why) => {
                RuleOutcome { rule, is_applied: false, why: why.to_owned() }
            }
            RuleResult::Irrelevant => return,
        };
        self.find_or_add_select(at).rules.push(outcome);
    }

    /// Sorts the SELECTs in text order, and within each SELECT the applied rules before the
    /// rejected rules.
    pub(crate) fn sort_selects(&mut self) {
        self.selects.sort_by_key(|s| s.at);
        for select in &mut self.selects {
            select.rules.sort_by_key(|r| !r.is_applied);
        }
    }
}

impl SelectPlan {
    pub(crate) fn conjuncts_at_stage(&self, stage: ConditionStage) -> impl Iterator<Item = &Expr> {
        self.conjuncts.iter().filter(move |c| c.stage == stage).map(|c| &c.expr)
    }

    /// Returns the conjuncts that depend on a call.
    pub(crate) fn conditions_with_calls(&self) -> Vec<Expr> {
        self.conjuncts.iter().filter(|c| c.stage.has_calls()).map(|c| c.expr.clone()).collect()
    }
}

impl fmt::Display for RuleOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let answer = if self.is_applied { "yes" } else { "no" };
        write!(f, "{:<22} {answer:<3} {}", self.rule, self.why)
    }
}

impl fmt::Display for ConditionStage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InPlace => "in place",
            Self::BeforeCalls => "before calls",
            Self::Last => "last",
            Self::AfterCalls => "after calls",
            Self::AfterHaving => "after HAVING",
        })
    }
}

impl fmt::Display for DemandPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for outcome in &self.rules {
            writeln!(f, "  {outcome}")?;
        }
        for select in &self.selects {
            writeln!(f, "  {}", select.text)?;
            for conjunct in &select.conjuncts {
                writeln!(f, "    condition {:<12} {}", conjunct.stage.to_string(), conjunct.text)?;
            }
            for outcome in &select.rules {
                writeln!(f, "    {outcome}")?;
            }
        }
        Ok(())
    }
}
