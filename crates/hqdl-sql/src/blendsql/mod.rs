//! `BlendSQL`'s dialect: ordinary SQL with calls `{{LLMMap('…?', t.column)}}`.
//!
//! `scan` reads the tokens of a query and parses each call into a [`Call`]. All positions in a call
//! are byte ranges of the query's text. `SUQL`'s functions `answer(text, 'question')` and
//! `summary(text)` are also calls, written without braces. `parse` builds one tree from the tokens,
//! in which a call is an expression.
//!
//! Where the dialect is ambiguous:
//!
//! * A backslash is an ordinary character; a quote inside a string is doubled.
//! * `"…"` is a string as a question, inside a list, and for `return_type` and `regex`; everywhere
//!   else it is a quoted identifier, as in `SQLite`.
//! * `[` begins a list directly after `options=` and a quoted identifier elsewhere.
//! * `'t::c'` is the column `c` of `t`. A string is an ordinary string if it does not contain
//!   exactly one `::`, or if it contains `?`, `!`, `;`, braces, quotes or line breaks.
//! * Two adjacent strings are a question and its column only if the second is `'t::c'`. Otherwise
//!   they are an error, because Python would have concatenated them.

mod aggregates;
mod argument;
mod choices;
pub mod emit;
mod error;
mod flow;
mod frame;
mod function;
pub mod ingredients;
pub mod lexer;
pub mod lineage;
pub mod macros;
pub mod normalize;
pub mod parse;
pub mod plan;
mod planner;
mod answer_arguments;
pub mod rewrite;
pub mod rules;
pub mod runtime;
mod scan;
pub mod scope;
pub mod tree;
mod terms;
pub mod try_cast;
pub mod usage;
pub mod vendors;
mod view;
pub mod yes_no;

use std::ops::Range;

pub use argument::split_legacy_column;
pub use error::SqlError;
pub use frame::{calls_random_function, is_volatile};
pub use function::{NEAREST, SEARCH, may_have_calls};
pub use ingredients::{Ingredient, IngredientRef, Subject};
pub use lexer::has_outer_order_by;
pub use macros::{MacroCall, MacroSignature};
pub use parse::begins_write;
pub use scan::scan_calls;

use hqdl_values::Type;
use hqdl_values::value::Value;

/// An ingredient call in a query.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    /// The called ingredient.
    pub ingredient: IngredientRef,
    /// Byte range of `{{…}}` including the braces, or of a function's name and arguments.
    pub span: Range<usize>,
    /// The question or, for a join, its criteria, which may be empty.
    pub question: String,
    /// Title of a result column that consists of the call: the question's text, or the SQL of a
    /// question that is computed. `None` if the call has no question.
    pub title: Option<String>,
    /// Byte offset in `question` of the instructions to the model, such as examples, in which `{}`
    /// is no placeholder.
    pub instructions_start: usize,
    /// Whether the question is an expression, whose values are among `values`.
    pub is_question_computed: bool,
    /// Arguments other than the question. Map: the value asked about, then context columns. Answer:
    /// the text, or the array of texts. Qa and Validate: the contexts in order, and the values for
    /// the `{}` placeholders. Join: left and right column.
    pub values: Vec<Argument>,
    /// Options that the answer is chosen from.
    pub options: Option<Choices>,
    /// Type of the answer.
    pub return_type: Option<ReturnType>,
    /// Whether the answer is a substring of the text: `return_type='substring'`.
    pub is_substring: bool,
    /// Allowed number of answers.
    pub quantifier: Option<Quantifier>,
    /// Regular expression that the answer must match.
    pub regex: Option<String>,
    /// Join: number of right-hand candidates that the model sees for each left-hand value, chosen
    /// by similarity. `None` to show all candidates.
    pub narrow: Option<u32>,
    /// Join: minimum trigram similarity of the pairs that the model is asked about, from 0 to 1.
    /// All other pairs do not match. `None` to ask about all pairs.
    pub min_similarity: Option<f64>,
    /// Model requested by the call, with the byte range of the argument.
    pub model: Option<(String, Range<usize>)>,
    /// Map: keyword of the first value, if it is a medium that hqdl sends to the model (one of
    /// [`ingredients::MEDIA_KEYWORDS`]).
    pub media: Option<String>,
    /// Tuning arguments of `BlendSQL` that have no effect in hqdl.
    pub tuning: Vec<String>,
    /// Calls nested in this call's arguments, in text order.
    pub inner: Vec<Call>,
    /// Whether the call is in the position of a `VALUES` row: `VALUES {{…}}`.
    pub is_values_row: bool,
    /// Arguments of a macro as written; `None` for an ingredient.
    pub macro_call: Option<Box<MacroCall>>,
}

impl Call {
    /// Creates a call without arguments.
    pub(crate) fn for_ingredient(ingredient: IngredientRef) -> Self {
        Self {
            ingredient,
            span: 0..0,
            question: String::new(),
            title: None,
            instructions_start: 0,
            is_question_computed: false,
            values: Vec::new(),
            options: None,
            return_type: None,
            is_substring: false,
            quantifier: None,
            regex: None,
            narrow: None,
            min_similarity: None,
            model: None,
            media: None,
            tuning: Vec::new(),
            inner: Vec::new(),
            is_values_row: false,
            macro_call: None,
        }
    }

    /// Returns true if the call is written in braces.
    #[must_use]
    pub fn is_in_braces(&self) -> bool {
        match &self.macro_call {
            Some(written) => written.name.start > self.span.start,
            None => ingredients::list_ingredients().contains(&self.ingredient),
        }
    }

    /// Returns true if the expression at `span` computes the call's list of options for each row.
    #[must_use]
    pub fn has_row_list(&self, sql: &str, span: &Range<usize>) -> bool {
        match &self.macro_call {
            None => matches!(&self.options, Some(Choices::RowList(list)) if list == span),
            Some(written) => written.arguments.iter().any(|argument| {
                let keyword = argument.keyword.map(|keyword| keyword.text(sql));
                let is_options = keyword.is_none_or(|keyword| {
                    [ingredients::OPTIONS, "labels", "options_searcher"]
                        .iter()
                        .any(|name| name.eq_ignore_ascii_case(keyword))
                });
                is_options && argument.span() == *span
            }),
        }
    }

    /// Returns the number of columns that the call produces as a `VALUES` row.
    #[must_use]
    pub fn values_column_count(&self) -> u32 {
        self.quantifier.map_or(1, |q| q.max.unwrap_or(q.min.max(1)))
    }

    /// Returns the identifier that [`mask_calls`] writes over call `number`: `_hq0___…`, or
    /// `(_hq0___…)` for a row. The identifier is exactly as long as the call.
    #[must_use]
    pub fn placeholder(&self, number: usize) -> String {
        let width = self.span.len().saturating_sub(if self.is_values_row { 2 } else { 0 });
        let mut name = format!("_hq{number}");
        // A width in `format!` is limited to 65,535.
        name.push_str(&"_".repeat(width.saturating_sub(name.len())));
        if self.is_values_row { format!("({name})") } else { name }
    }
}

/// A value argument of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Argument {
    /// Legacy syntax of a column: `'t::c'`, `t::c`, `(t::c)`.
    Column {
        /// Table, alias or CTE, as in the query.
        table: Option<String>,
        /// Column name.
        column: String,
        /// Byte range of the whole argument.
        span: Range<usize>,
    },
    /// Byte range of any SQL expression, without surrounding whitespace and comments.
    Sql(Range<usize>),
    /// Byte range of a query inside its parentheses, without surrounding whitespace and comments.
    Query(Range<usize>),
}

impl Argument {
    /// Returns the argument's byte range.
    #[must_use]
    pub fn span(&self) -> Range<usize> {
        match self {
            Self::Column { span, .. } | Self::Sql(span) | Self::Query(span) => span.clone(),
        }
    }
}

/// The options of a call.
#[derive(Debug, Clone, PartialEq)]
pub enum Choices {
    /// Literal values.
    List(Vec<Value>),
    /// The values of a column: `'t::c'`, `t.c` or `c`.
    Column {
        /// Table, alias or CTE, if the query names it.
        table: Option<String>,
        /// Column name.
        column: String,
        /// Byte range of the whole argument.
        span: Range<usize>,
    },
    /// The rows of a query: the byte range inside its parentheses.
    Query(Range<usize>),
    /// The elements of a JSON list that an expression returns for each row: the byte range of the
    /// expression. The expression is also the last of the call's values.
    RowList(Range<usize>),
}

/// The type of a call's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ReturnType {
    /// Type of the value, or of each list element; never a URL.
    pub scalar: Type,
    /// Whether the answer is a list.
    pub is_list: bool,
}

/// Allowed number of answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Quantifier {
    /// Minimum number of answers.
    pub min: u32,
    /// Maximum number of answers; `None` if unlimited.
    pub max: Option<u32>,
}

impl Quantifier {
    /// Returns true if the length of a JSON array is within the bounds, or if `json` is not a JSON
    /// array.
    #[must_use]
    pub fn accepts_list(self, json: &str) -> bool {
        let Ok(items) = serde_json::from_str::<Vec<serde_json::Value>>(json) else { return true };
        let count = u32::try_from(items.len()).unwrap_or(u32::MAX);
        self.min <= count && self.max.is_none_or(|max| count <= max)
    }
}

/// Returns the text with each call replaced by [`Call::placeholder`]; all other bytes keep their
/// position. `calls` are in text order, as returned by `scan` or stored in [`Call::inner`].
#[must_use]
pub fn mask_calls(sql: &str, calls: &[Call]) -> String {
    let mut masked = String::with_capacity(sql.len());
    let mut at = 0;
    for (number, call) in calls.iter().enumerate() {
        let placeholder = call.placeholder(number);
        // Skip a call that belongs to a different text.
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
