//! Possible values of an expression: a call's answer, a column's value, a number, a text or a truth
//! value. The flow of an expression is computed from the flows of its operands.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::lineage::Lineage;
use super::runtime::TRY_CAST_FUNCTION;
use super::scope::{Affinity, ColumnOrigin};

/// Maximum number of texts and columns that are tracked per value.
const MAX_VALUES: usize = 64;

/// Set of possible values of an expression.
#[derive(Debug, Clone, Default)]
pub(super) struct Flow {
    /// Calls whose unchanged answer may be the value.
    pub calls: BTreeSet<usize>,
    /// Text literals.
    pub texts: Vec<String>,
    /// Whether the value may be a computed string.
    pub text: bool,
    /// Whether the value may be an integer that the query computes.
    pub integer: bool,
    /// Whether the value may be any number.
    pub number: bool,
    /// Whether the value may be the truth value of a condition.
    pub truth: bool,
    /// Values of columns, which have the columns' affinity.
    pub columns: Vec<FlowColumn>,
    /// Expression over database columns that computes the value.
    pub lineage: Option<Arc<Lineage>>,
    /// Whether a COLLATE clause other than BINARY decides which values are equal, instead of the
    /// column's collation.
    pub is_collated: bool,
}

/// A column that may supply an expression's value.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct FlowColumn {
    /// Column of the database.
    pub origin: ColumnOrigin,
    /// Type affinity, if it is known.
    pub affinity: Option<Affinity>,
}

impl Flow {
    pub fn text() -> Self {
        Self { text: true, ..Self::default() }
    }

    pub fn number() -> Self {
        Self { number: true, ..Self::default() }
    }

    pub fn integer() -> Self {
        Self { integer: true, ..Self::default() }
    }

    pub fn truth() -> Self {
        Self { truth: true, ..Self::default() }
    }

    /// Returns true if the value can only be the truth value of a condition. If the value may also
    /// be something else, a truth value counts as the number 1 or 0.
    pub fn is_truth(&self) -> bool {
        let number = self.integer || self.number;
        let text = self.text || !self.texts.is_empty();
        self.truth && !number && !text && self.calls.is_empty() && self.columns.is_empty()
    }

    /// Returns the union of both sets.
    pub fn union_with(mut self, other: Self) -> Self {
        self.calls.extend(other.calls);
        for text in other.texts {
            if self.texts.len() < MAX_VALUES && !self.texts.contains(&text) {
                self.texts.push(text);
            }
        }
        self.text |= other.text;
        self.integer |= other.integer;
        self.number |= other.number;
        self.truth |= other.truth;
        for column in other.columns {
            if self.columns.len() < MAX_VALUES && !self.columns.contains(&column) {
                self.columns.push(column);
            }
        }
        self.lineage = None;
        self
    }

    /// Replaces the columns with the value types that their affinities imply, because a computed
    /// value has no affinity.
    pub fn without_affinity(mut self) -> Self {
        for column in std::mem::take(&mut self.columns) {
            match column.affinity {
                Some(Affinity::Integer | Affinity::Real) => self.number = true,
                Some(Affinity::Text) => self.text = true,
                _ => {}
            }
        }
        self
    }
}

/// How a function's result depends on its arguments.
pub(super) enum FunctionEffect {
    /// The function returns one of its first `n` arguments unchanged; the field is `n`.
    PassesThrough(usize),
    /// The function returns its greatest or least argument.
    Extremum,
    /// The function returns NULL if its two arguments are equal, otherwise the first argument.
    NullIf,
    /// The first argument is a condition, and the other arguments are possible results.
    Conditional,
    /// The function computes its result from numbers.
    Numeric(Flow),
    /// The function computes its result from values of any type.
    Computes(Flow),
}

pub(super) fn find_function_effect(name: &str) -> FunctionEffect {
    match name {
        "coalesce" | "ifnull" => FunctionEffect::PassesThrough(usize::MAX),
        "likely" | "unlikely" | "likelihood" | "first_value" | "last_value" | "nth_value" => {
            FunctionEffect::PassesThrough(1)
        }
        "lag" | "lead" | "suql_number" | TRY_CAST_FUNCTION => FunctionEffect::PassesThrough(1),
        "max" | "min" => FunctionEffect::Extremum,
        "nullif" => FunctionEffect::NullIf,
        "iif" | "if" => FunctionEffect::Conditional,
        "sum" | "avg" | "total" | "abs" | "round" | "ceil" | "ceiling" | "floor" | "trunc"
        | "sqrt" | "exp" | "ln" | "log" | "log10" | "log2" | "pow" | "power" | "mod" | "sign"
        | "median" | "suql_even" | "suql_round" | "suql_cut" | "suql_div" | "suql_mod" => {
            FunctionEffect::Numeric(Flow::number())
        }
        "count" | "length" | "instr" | "unicode" | "octet_length" | "unixepoch" | "row_number"
        | "rank" | "dense_rank" | "ntile" | "json_array_length" => {
            FunctionEffect::Computes(Flow::integer())
        }
        "julianday" | "random" | "percent_rank" | "cume_dist" => {
            FunctionEffect::Computes(Flow::number())
        }
        "like" | "glob" | "regexp" | "json_valid" => FunctionEffect::Computes(Flow::truth()),
        "suql_upper" | "suql_lower" | "suql_left" | "suql_right" | "suql_substr" | "suql_time"
        | "upper" | "lower" | "trim" | "ltrim" | "rtrim" | "substr" | "substring" | "replace"
        | "printf" | "format" | "hex" | "quote" | "char" | "group_concat" | "string_agg"
        | "concat" | "concat_ws" | "typeof" | "date" | "time" | "datetime" | "strftime"
        | "soundex" | "json_group_array" | "json_array" | "json_object" => {
            FunctionEffect::Computes(Flow::text())
        }
        _ => FunctionEffect::Computes(Flow::default()),
    }
}
