//! What a call's surroundings say about it: which columns its values are, what
//! its answer is compared with, where it stands.
//!
//! Types are told by one mechanism: every expression has a *flow* (`flow.rs`),
//! what its value may be, and names hand it on: aliases, columns of subqueries
//! and of common table expressions. Wherever a value meets another in a
//! comparison, or stands where a number or a truth is expected, this is noted
//! for the calls that flow there. What is noted is what `SQLite` itself would do
//! there with a value of the natural type; a comparison with a column says
//! nothing but for its order, for `SQLite` applies the column's affinity to the
//! answer, whatever that is.

pub(in crate::blendsql) mod follow;
pub(in crate::blendsql) mod follow_expr;
mod groups;

use std::collections::HashMap;
use std::sync::Arc;

use crate::blendsql::ReturnType;
use crate::blendsql::lineage::Lineage;
use crate::blendsql::parse::Parsed;
use crate::blendsql::scope::{ColumnOrigin, Schema};

/// A value that a call is about.
#[derive(Debug, Clone, Default)]
pub struct Key {
    /// Its text, as SQL.
    pub text: String,
    /// The column's name, when it is one.
    pub name: Option<String>,
    /// The column of the database that it repeats, when it does.
    pub origin: Option<ColumnOrigin>,
    /// The column of a table that it repeats through views.
    pub base: Option<ColumnOrigin>,
    /// What it is made of, when that is columns of the database.
    pub lineage: Option<Arc<Lineage>>,
}

/// What an answer is compared with.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ComparedWith {
    /// A text.
    Text(String),
    /// A text that is computed.
    Words,
    /// A number.
    Number,
    /// It says how many rows there are.
    Limit,
    /// TRUE or FALSE, or what a condition comes to.
    Truth,
    /// A column whose values it equals.
    Column(ColumnOrigin),
}

/// Two columns that are equal in every row, each of an instance: what joins them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Joined {
    /// The one: its instance and its name, in lower case.
    pub left: (usize, String),
    /// The other.
    pub right: (usize, String),
}

impl Joined {
    /// Whether it joins these two, on whichever side they stand.
    #[must_use]
    pub fn is_of(&self, one: (usize, &str), other: (usize, &str)) -> bool {
        let is = |side: &(usize, String), of: (usize, &str)| (side.0, side.1.as_str()) == of;
        is(&self.left, one) && is(&self.right, other)
            || is(&self.left, other) && is(&self.right, one)
    }
}

/// The rows of a SELECT.
#[derive(Debug, Clone, Default)]
pub struct Outputs {
    /// Its columns, with what each is made of; empty where they cannot be told.
    pub columns: Vec<(String, Option<Arc<Lineage>>)>,
    /// What joins the tables that they are made of.
    pub joined: Vec<Joined>,
}

/// A column that the row has where a call stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReachedColumn {
    /// The instance of its table.
    pub instance: usize,
    /// That table.
    pub table: String,
    /// The column of the database.
    pub column: String,
    /// The table of the query that it is a column of, and its name there.
    pub at: (Option<String>, String),
}

impl ReachedColumn {
    /// As SQL.
    #[must_use]
    pub fn written(&self) -> String {
        let (table, name) = (&self.at.0, hqdl_values::sql::name(&self.at.1));
        table
            .as_ref()
            .map_or_else(|| name.clone(), |t| format!("{}.{name}", hqdl_values::sql::name(t)))
    }
}

/// What is known of a call from where it stands.
#[derive(Debug, Clone, Default)]
pub struct CallUsage {
    /// Its truth counts, not its value.
    pub condition: bool,
    /// What its answer is compared with.
    pub compared: Vec<ComparedWith>,
    /// It is ordered: a term of ORDER BY, or what `max` or `min` choose from.
    pub ordered: bool,
    /// Calls that its answer is compared with.
    pub beside: Vec<usize>,
    /// What it is cast to, or a call that asks the same is said to return.
    pub said: Option<ReturnType>,
    /// What a call that it is compared with is said to return.
    pub beside_said: Option<ReturnType>,
    /// It stands after IN, where a list is read.
    pub set: bool,
    /// The values it is about.
    pub keys: Vec<Key>,
    /// The columns that the row has of the instances that the values are made of, and
    /// of those that are joined to these.
    pub reached: Vec<ReachedColumn>,
    /// What joins these instances.
    pub joined: Vec<Joined>,
    /// What the rows are grouped by, where the call is a value of the group.
    pub grouped: Vec<Arc<Lineage>>,
    /// A column in its arguments that has several values within a group, of which `SQLite`
    /// would show it an arbitrary one.
    pub varies: Option<String>,
    /// The table or CTE that its options are a column of.
    pub options: Option<OptionsColumn>,
    /// Names of the tables that can be named where it stands.
    pub tables: Vec<String>,
}

impl CallUsage {
    /// Returns the same with the columns that its values repeat through views.
    #[must_use]
    pub fn based_on(&self, through: &Self) -> Self {
        let mut usage = self.clone();
        for (key, other) in usage.keys.iter_mut().zip(&through.keys) {
            key.base.clone_from(&other.origin);
        }
        usage
    }
}

/// The column that options are taken from.
#[derive(Debug, Clone, PartialEq)]
pub enum OptionsColumn {
    /// A column of the database.
    Base(ColumnOrigin),
    /// A column of a table of the query, a CTE maybe.
    Named(String, String),
}

/// What is known of each call, by its number.
#[must_use]
pub fn of_calls(sql: &str, parsed: &Parsed, schema: &dyn Schema) -> HashMap<usize, CallUsage> {
    follow::Follow::new(sql, &parsed.calls, schema).all(&parsed.query)
}

/// The columns that a SELECT yields, and what joins the tables they are made of.
#[must_use]
pub fn outputs(sql: &str, parsed: &Parsed, schema: &dyn Schema) -> Outputs {
    follow::Follow::new(sql, &parsed.calls, schema).outputs(&parsed.query)
}
