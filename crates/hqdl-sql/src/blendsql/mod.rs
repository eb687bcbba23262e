//! `BlendSQL`'s dialect: ordinary SQL with calls `{{LLMMap('…?', t.column)}}`.
//!
//! [`scan`] finds the calls outside of texts, comments and quoted names and
//! reads each into a [`Call`]; everything it says about a place is a range of
//! bytes in the query's text. `SUQL`'s functions `answer(text, 'question')` and
//! `summary(text)` are calls, too, written without braces. [`mask`] overwrites the calls by identifiers of
//! the same length, so that a parser of plain SQL can read the rest and every
//! place stays true.
//!
//! Where the dialect leaves a choice:
//!
//! * A backslash is an ordinary character; a quote inside a text is doubled.
//! * `"…"` is a text as a question, inside a list, and for `return_type` and
//!   `regex`; everywhere else it is a quoted name, as in `SQLite`.
//! * `[` begins a list directly after `options=` and a quoted name elsewhere.
//! * `'t::c'` is the column `c` of `t`; a text with other than exactly one `::`
//!   or with `?`, `!`, `;`, braces, quotes or line breaks is a text.
//! * Two texts in a row are a question and its column only when the second is
//!   `'t::c'`: Python would have joined them, so anything else is an error.

mod aggregates;
mod argument;
mod choices;
mod emit;
mod error;
mod flow;
mod frame;
mod function;
pub mod ingredients;
mod joined;
pub mod lexer;
pub mod lineage;
mod modern;
pub mod most;
pub mod parse;
pub mod plan;
mod possible;
mod reach;
mod result;
pub mod rewrite;
pub mod rules;
pub mod runtime;
mod scan;
pub mod scope;
mod server_words;
mod select;
pub mod spelling;
pub mod tree;
mod terms;
mod truth;
pub mod usage;
mod view;
mod written;
pub mod yes_no;

use std::ops::Range;

pub use argument::names_in;
pub use error::SqlError;
pub use frame::{draws, has_random};
pub use function::may_have_calls;
pub use ingredients::{Ingredient, Subject, Which};
pub use lexer::orders_outermost;
pub use scan::{scan, scan_with_tables};
pub use server_words::blank_server_words;

use hqdl_values::Type;
use hqdl_values::value::Value;

/// One call of an ingredient in a query.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    /// Which ingredient is called.
    pub ingredient: Which,
    /// The bytes of `{{…}}`, braces included, or of a function's name and
    /// arguments.
    pub span: Range<usize>,
    /// What is asked; of a join its criteria, empty when there are none.
    pub question: String,
    /// Map: the value asked about, then columns for context. Answer: the text,
    /// or the array of texts. Qa and Validate:
    /// contexts in order, and the values that fill `{}`. Join: left and right.
    pub values: Vec<Argument>,
    /// What the answer is chosen from.
    pub options: Option<Choices>,
    /// What the answer is read as.
    pub return_type: Option<ReturnType>,
    /// Whether it is a part of the text that is asked about: `return_type='substring'`.
    pub substring: bool,
    /// How many answers there may be.
    pub quantifier: Option<Quantifier>,
    /// What the answer must match.
    pub regex: Option<String>,
    /// Join: how many values of the right are put before the model for each of the
    /// left, the most alike ones; all of them where it says nothing.
    pub narrow: Option<u32>,
    /// The model it wants to be asked of, and where it says so.
    pub model: Option<(String, Range<usize>)>,
    /// Map: whether the first value is an image, which the model is shown.
    pub image: bool,
    /// Arguments that tune `BlendSQL`'s own machinery and change nothing here.
    pub tuning: Vec<String>,
    /// Calls within this call's arguments, in the order of the text.
    pub inner: Vec<Call>,
    /// Whether the call stands where `VALUES` has a row: `VALUES {{…}}`.
    pub row: bool,
}

impl Call {
    /// How many columns it makes where it is a row of VALUES.
    #[must_use]
    pub fn width(&self) -> u32 {
        self.quantifier.map_or(1, |q| q.max.unwrap_or(q.min.max(1)))
    }

    /// What [`mask`] writes over the `number`th call: `_hq0___…`, or in place of
    /// a row `(_hq0___…)`; exactly as long as the call.
    #[must_use]
    pub fn placeholder(&self, number: usize) -> String {
        let width = self.span.len().saturating_sub(if self.row { 2 } else { 0 });
        let mut name = format!("_hq{number}");
        // Not by a width of `format!`, which ends at 65,535.
        name.push_str(&"_".repeat(width.saturating_sub(name.len())));
        if self.row { format!("({name})") } else { name }
    }
}

/// A value that a call is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Argument {
    /// The old spelling of a column: `'t::c'`, `t::c`, `(t::c)`.
    Column {
        /// The table, alias or CTE, as it is written.
        table: Option<String>,
        /// The column.
        column: String,
        /// The whole argument.
        span: Range<usize>,
    },
    /// Any SQL expression, without blanks and comments around it.
    Sql(Range<usize>),
    /// A query: what is inside its parentheses, without blanks and comments
    /// around it.
    Query(Range<usize>),
}

impl Argument {
    /// Where it stands.
    #[must_use]
    pub fn span(&self) -> Range<usize> {
        match self {
            Self::Column { span, .. } | Self::Sql(span) | Self::Query(span) => span.clone(),
        }
    }
}

/// What an answer is chosen from.
#[derive(Debug, Clone, PartialEq)]
pub enum Choices {
    /// The values themselves.
    List(Vec<Value>),
    /// The values of a column: `'t::c'`, `t.c` or `c`.
    Column {
        /// The table, alias or CTE, if it is named.
        table: Option<String>,
        /// The column.
        column: String,
        /// The whole argument.
        span: Range<usize>,
    },
    /// The rows of a query: what is inside its parentheses.
    Query(Range<usize>),
}

/// What an answer is read as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ReturnType {
    /// The type of the value, or of each value of the list; never a URL.
    pub scalar: Type,
    /// Whether it is a list.
    pub list: bool,
}

/// How many answers there may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Quantifier {
    /// At least so many.
    pub min: u32,
    /// At most so many; `None` for any number.
    pub max: Option<u32>,
}

impl Quantifier {
    /// Whether a JSON array has so many elements; what is none has any number.
    #[must_use]
    pub fn holds(self, list: &str) -> bool {
        let Ok(list) = serde_json::from_str::<Vec<serde_json::Value>>(list) else { return true };
        let n = u32::try_from(list.len()).unwrap_or(u32::MAX);
        self.min <= n && self.max.is_none_or(|max| n <= max)
    }
}

/// The text with each of `calls` overwritten by [`Call::placeholder`], so that every
/// other byte stays where it is. `calls` are in the order of the text, as
/// [`scan`] returns them or as a call's `inner` holds them.
#[must_use]
pub fn mask(sql: &str, calls: &[Call]) -> String {
    let mut masked = String::with_capacity(sql.len());
    let mut at = 0;
    for (number, call) in calls.iter().enumerate() {
        let placeholder = call.placeholder(number);
        // A call of another text is left alone.
        let Some(before) = sql.get(at..call.span.start) else { continue };
        if placeholder.len() != call.span.len() || !sql.is_char_boundary(call.span.end) {
            continue;
        }
        masked.push_str(before);
        masked.push_str(&placeholder);
        at = call.span.end;
    }
    masked.push_str(sql.get(at..).unwrap_or_default());
    masked
}
