//! What a value may be: a call's answer, a column's value, a number, a text, a
//! truth. An expression's flow is told from the flows of its parts.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::lineage::Lineage;
use super::scope::{Affinity, ColumnOrigin};

/// The most texts that one value is followed as.
const TEXTS: usize = 64;

/// What a value may be; all that may be at once.
#[derive(Debug, Clone, Default)]
pub(super) struct Flow {
    /// Answers of these calls, unchanged.
    pub calls: BTreeSet<usize>,
    /// These literals.
    pub texts: Vec<String>,
    /// A text that is computed.
    pub text: bool,
    /// A whole number, of the query's own.
    pub whole: bool,
    /// Any number.
    pub number: bool,
    /// The truth of a condition.
    pub truth: bool,
    /// Values of columns, which have their affinity.
    pub columns: Vec<FlowColumn>,
    /// What it is made of.
    pub lineage: Option<Arc<Lineage>>,
}

/// A column that a value is of.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct FlowColumn {
    /// The column of the database.
    pub origin: ColumnOrigin,
    /// How it turns what is stored in it, when that is known.
    pub affinity: Option<Affinity>,
}

impl Flow {
    pub fn text() -> Self {
        Self { text: true, ..Self::default() }
    }

    pub fn number() -> Self {
        Self { number: true, ..Self::default() }
    }

    pub fn whole() -> Self {
        Self { whole: true, ..Self::default() }
    }

    pub fn truth() -> Self {
        Self { truth: true, ..Self::default() }
    }

    /// Whether it is the truth of a condition and nothing else: beside other values a
    /// truth is the number 1 or 0.
    pub fn is_truth(&self) -> bool {
        let number = self.whole || self.number;
        let text = self.text || !self.texts.is_empty();
        self.truth && !number && !text && self.calls.is_empty() && self.columns.is_empty()
    }

    /// Either of both.
    pub fn or(mut self, other: Self) -> Self {
        self.calls.extend(other.calls);
        for text in other.texts {
            if self.texts.len() < TEXTS && !self.texts.contains(&text) {
                self.texts.push(text);
            }
        }
        self.text |= other.text;
        self.whole |= other.whole;
        self.number |= other.number;
        self.truth |= other.truth;
        for column in other.columns {
            if self.columns.len() < TEXTS && !self.columns.contains(&column) {
                self.columns.push(column);
            }
        }
        self.lineage = None;
        self
    }

    /// The same as the value of an expression, which has no affinity: a column
    /// holds what its affinity makes of values.
    pub fn plain(mut self) -> Self {
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

/// What a function does with its arguments, as far as types go.
pub(super) enum Does {
    /// One of its arguments is its value: all from this one on.
    Passes(usize),
    /// Its greatest or least argument is its value.
    Orders,
    /// Its first argument, unless that equals the second.
    NullIf,
    /// Its first argument is a condition, the others are its value.
    Chooses,
    /// Computes from numbers.
    Counts(Flow),
    /// Computes from anything.
    Gives(Flow),
}

/// What a function does.
pub(super) fn does(name: &str) -> Does {
    match name {
        "coalesce" | "ifnull" => Does::Passes(usize::MAX),
        "likely" | "unlikely" | "likelihood" | "first_value" | "last_value" | "nth_value" => {
            Does::Passes(1)
        }
        "lag" | "lead" | "suql_number" => Does::Passes(1),
        "max" | "min" => Does::Orders,
        "nullif" => Does::NullIf,
        "iif" | "if" => Does::Chooses,
        "sum" | "avg" | "total" | "abs" | "round" | "ceil" | "ceiling" | "floor" | "trunc"
        | "sqrt" | "exp" | "ln" | "log" | "log10" | "log2" | "pow" | "power" | "mod" | "sign"
        | "median" | "suql_even" | "suql_round" | "suql_cut" | "suql_div" | "suql_mod" => {
            Does::Counts(Flow::number())
        }
        "count" | "length" | "instr" | "unicode" | "octet_length" | "unixepoch" | "row_number"
        | "rank" | "dense_rank" | "ntile" | "json_array_length" => Does::Gives(Flow::whole()),
        "julianday" | "random" | "percent_rank" | "cume_dist" => Does::Gives(Flow::number()),
        "like" | "glob" | "regexp" | "json_valid" => Does::Gives(Flow::truth()),
        "suql_upper" | "suql_lower" | "suql_left" | "suql_right" | "suql_substr" | "suql_time"
        | "upper" | "lower" | "trim" | "ltrim" | "rtrim" | "substr" | "substring" | "replace"
        | "printf" | "format" | "hex" | "quote" | "char" | "group_concat" | "string_agg"
        | "concat" | "concat_ws" | "typeof" | "date" | "time" | "datetime" | "strftime"
        | "soundex" | "json_group_array" | "json_array" | "json_object" => {
            Does::Gives(Flow::text())
        }
        _ => Does::Gives(Flow::default()),
    }
}
