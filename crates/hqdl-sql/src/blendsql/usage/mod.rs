//! Usage of calls in a query: their arguments, the comparisons of their answers, and their
//! position.
//!
//! Answer types are inferred from *flows* (`flow.rs`). The flow of an expression is the set of its
//! possible values. Aliases, and columns of subqueries and common table expressions, pass flows on.
//! If a value is compared, or occurs where a number or a truth value is required, the analysis
//! records this for the calls in the value's flow.
//!
//! The usage is recorded as if each value had its natural type in `SQLite`. A comparison with a
//! column provides no type unless it is an ordering, because `SQLite` applies the column's affinity
//! to any answer.

pub(in crate::blendsql) mod flow_analysis;
pub(in crate::blendsql) mod expr_flow;
mod groups;

use std::collections::HashMap;
use std::sync::Arc;

use crate::blendsql::ReturnType;
use crate::blendsql::lineage::Lineage;
use crate::blendsql::parse::ParsedQuery;
use crate::blendsql::scope::{ColumnOrigin, Schema};

/// A value argument of a call.
#[derive(Debug, Clone, Default)]
pub struct Key {
    /// SQL of the value.
    pub text: String,
    /// Column name, if the value is a column.
    pub name: Option<String>,
    /// Database column whose values the expression passes on unchanged.
    pub origin: Option<ColumnOrigin>,
    /// Table column that the expression passes on unchanged through views.
    pub base: Option<ColumnOrigin>,
    /// Lineage, if the value is computed from database columns.
    pub lineage: Option<Arc<Lineage>>,
}

/// Operand with which an answer is compared.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ComparedWith {
    /// A text literal.
    Text(String),
    /// A computed text.
    ComputedText,
    /// Any number.
    Number,
    /// The answer is used as a LIMIT or OFFSET.
    Limit,
    /// TRUE, FALSE or the truth value of a condition.
    Truth,
    /// A column compared for equality.
    Column(ColumnOrigin),
}

/// Two columns of table instances that are equal in every row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ColumnEquality {
    /// Instance and lower-case column name of one column.
    pub left: (usize, String),
    /// The other column.
    pub right: (usize, String),
}

impl ColumnEquality {
    /// Returns true if this equality is between these two columns, in either order.
    #[must_use]
    pub fn connects(&self, one: (usize, &str), other: (usize, &str)) -> bool {
        let is_column = |side: &(usize, String), of: (usize, &str)| (side.0, side.1.as_str()) == of;
        is_column(&self.left, one) && is_column(&self.right, other)
            || is_column(&self.left, other) && is_column(&self.right, one)
    }
}

/// Result columns of a SELECT.
#[derive(Debug, Clone, Default)]
pub struct SelectOutputs {
    /// Column names with their lineages; empty if they are unknown.
    pub columns: Vec<(String, Option<Arc<Lineage>>)>,
    /// Equalities between columns of the SELECT's tables.
    pub equalities: Vec<ColumnEquality>,
}

/// A database column that is available in the row of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AvailableColumn {
    /// Index of the table's instance.
    pub instance: usize,
    /// Name of the table.
    pub table: String,
    /// Name of the column in the database.
    pub column: String,
    /// Name of the column in the query, qualified by its table.
    pub query_column: (Option<String>, String),
}

impl AvailableColumn {
    /// Formats the column name as SQL.
    #[must_use]
    pub fn to_sql(&self) -> String {
        let (table, name) =
            (&self.query_column.0, hqdl_values::sql::quote_name(&self.query_column.1));
        table
            .as_ref()
            .map_or_else(|| name.clone(), |t| format!("{}.{name}", hqdl_values::sql::quote_name(t)))
    }
}

/// Usage of a call in the query.
#[derive(Debug, Clone, Default)]
pub struct CallUsage {
    /// Whether only the truth value of the answer matters.
    pub is_condition: bool,
    /// Operands that the answer is compared with.
    pub compared_with: Vec<ComparedWith>,
    /// Whether the order of the answers matters: the call is a term of ORDER BY, or an argument of
    /// `max` or `min`.
    pub is_ordered: bool,
    /// Indices of the calls that the answer is compared with.
    pub compared_calls: Vec<usize>,
    /// Answer type stated by a CAST, or the return type of another call with the same question.
    pub stated_type: Option<ReturnType>,
    /// Return type of a call that the answer is compared with.
    pub compared_type: Option<ReturnType>,
    /// Whether the call follows IN, where its answer is a list.
    pub is_in_list: bool,
    /// Value arguments of the call.
    pub keys: Vec<Key>,
    /// Columns of the row that belong to the instances of the values, or to instances joined to
    /// them.
    pub available_columns: Vec<AvailableColumn>,
    /// Equalities between the instances of the values and of the columns.
    pub equalities: Vec<ColumnEquality>,
    /// Lineages of the GROUP BY terms, if the call is evaluated per group.
    pub group_terms: Vec<Arc<Lineage>>,
    /// Column in an argument that has several values per group. `SQLite` would choose its value
    /// from an arbitrary row.
    pub ambiguous_column: Option<String>,
    /// Column that provides the call's options.
    pub options: Option<OptionsColumn>,
    /// Names of the tables that are visible to the call.
    pub tables: Vec<String>,
}

impl CallUsage {
    /// Returns this usage with the base columns of its value arguments copied from `through`.
    #[must_use]
    pub fn with_base_columns(&self, through: &Self) -> Self {
        let mut usage = self.clone();
        for (key, other) in usage.keys.iter_mut().zip(&through.keys) {
            key.base.clone_from(&other.origin);
        }
        usage
    }
}

/// Column that provides the options of a call.
#[derive(Debug, Clone, PartialEq)]
pub enum OptionsColumn {
    /// A column of the database.
    Base(ColumnOrigin),
    /// A column of a table or CTE in the query.
    Named(String, String),
}

/// Returns the usage of each call, by its number.
#[must_use]
pub fn analyze_calls(
    sql: &str,
    parsed: &ParsedQuery,
    schema: &dyn Schema,
) -> HashMap<usize, CallUsage> {
    flow_analysis::FlowAnalysis::new(sql, &parsed.calls, schema).analyze_calls(&parsed.query)
}

/// Returns the result columns of a SELECT and the equalities between columns of its tables.
#[must_use]
pub fn analyze_outputs(sql: &str, parsed: &ParsedQuery, schema: &dyn Schema) -> SelectOutputs {
    flow_analysis::FlowAnalysis::new(sql, &parsed.calls, schema).analyze_outputs(&parsed.query)
}
