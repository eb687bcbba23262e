//! State of the translation: the types of expressions, the tables of each SELECT, and the edits.

use std::collections::HashMap;
use std::ops::Range;

use super::TableColumns;
use crate::blendsql::lexer::Token;
use crate::blendsql::parse::Precedence;
use crate::blendsql::tree::Expr;
use crate::translated::{EditText, Edits};

/// A translated expression, as the enclosing expressions need it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct TypedExpr {
    /// Byte range in the source.
    pub span: Range<usize>,
    /// Type of the expression.
    pub sql_type: SqlType,
    /// Precedence of the outermost operator of the translation.
    pub precedence: Precedence,
    /// Whether the translation is a plain column, whose stored values may be formatted differently
    /// from computed values.
    pub is_column: bool,
}

/// Type of an expression.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum SqlType {
    /// Unknown type.
    Unknown,
    /// A text literal.
    Literal(String),
    /// A call, whose type is determined by a cast.
    Call,
    Array,
    /// An interval literal: amounts of `SQLite`'s units.
    Interval(Vec<(f64, &'static str)>),
    /// A computed interval, as text: `1 year 2 mons`.
    ComputedInterval,
    /// A date without a time. A text literal is converted to a date when compared with it.
    Date,
    /// A date with a time.
    Timestamp,
    /// A time of day.
    Time,
    /// A boolean. A text literal compared with it is converted to a boolean.
    Boolean,
    /// A text that is not a literal.
    Text,
    /// An integer. A text literal compared with it is converted to a number.
    Integer,
    /// A NUMERIC, whose division keeps the fraction.
    Numeric,
    /// A binary floating-point number. Division keeps the fraction, and rounding is half to even.
    Float,
    /// A row value: `(a, 'x')`.
    Row(Vec<TypedExpr>),
    /// A text cast to an ENUM of this name, which is only allowed in comparisons.
    Enum(String),
}

/// Tables and result columns of a SELECT.
#[derive(Default)]
pub(super) struct SuqlSelect {
    /// Arrays that are unnested into the SELECT's rows.
    pub unnested: Vec<UnnestedArray>,
    /// Tables in order.
    pub tables: Vec<SuqlTable>,
    /// Result columns, if all of them are known.
    pub results: TypedColumns,
    /// Whether the SELECT has an outer join, which can fill a table's columns with NULL.
    pub has_outer_join: bool,
    /// Whether USING or NATURAL merges columns.
    pub has_merged_columns: bool,
}

/// Columns with their types, in order; `None` if they are unknown.
pub(super) type TypedColumns = Option<Vec<(String, SqlType)>>;

/// A table of a SELECT.
pub(super) struct SuqlTable {
    /// Name or alias; `None` if the table has neither.
    pub name: Option<String>,
    pub source: TableSource,
    pub columns: TypedColumns,
}

/// Source of a table's rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TableSource {
    /// A table of the database, or a common table expression.
    Named(String),
    /// An unnested array.
    Array,
    /// A subquery or a function.
    Query,
}

/// An array that is unnested into rows.
pub(super) struct UnnestedArray {
    /// Table name under which the query reads the elements.
    pub alias: String,
    /// Names of the array's elements in the query.
    pub names: Vec<String>,
    /// The array with its byte range, if it occurs in the result columns.
    pub array: Option<(Range<usize>, EditText)>,
}

/// A name that has not been resolved.
pub(super) struct PendingName {
    /// Index of the reserved edit.
    pub edit: usize,
    pub span: Range<usize>,
    pub kind: PendingKind,
    /// Whether the name is in a subquery of the SELECT.
    pub is_inner: bool,
}

pub(super) enum PendingKind {
    Column {
        table: Option<String>,
        column: String,
        /// Whether the column is a result column without an alias, which an element must keep.
        is_result: bool,
    },
    /// `*` for all tables, or `t.*` for a single one.
    Star(Option<String>),
    /// The argument of `count(t.*)`; the flag is true for DISTINCT.
    CountedRows(String, bool),
}

/// Visitor of a query's tree that adds the edits of the translation.
pub(super) struct Translator<'s> {
    pub sql: &'s str,
    /// Tokens of the query.
    pub tokens: Vec<Token>,
    /// Edits; those of inner expressions come first. `None` for a name that has not been resolved.
    pub edits: Vec<Option<(Range<usize>, EditText)>>,
    /// Names that depend on the tables of a SELECT, until its FROM clause is known.
    pub names: Vec<PendingName>,
    /// The current and enclosing SELECTs, the innermost last.
    pub selects: Vec<SuqlSelect>,
    /// Visible common table expressions with their columns.
    pub ctes: Vec<(String, TypedColumns)>,
    /// Columns of the database's tables, by lower-case name.
    pub tables: HashMap<String, TableColumns>,
    /// Whether set-returning functions are allowed: in result columns, GROUP BY and ORDER BY.
    pub may_unnest: bool,
    alias_count: usize,
}

impl<'s> Translator<'s> {
    pub fn new(sql: &'s str, tokens: Vec<Token>, tables: HashMap<String, TableColumns>) -> Self {
        Self {
            sql,
            tokens,
            edits: Vec::new(),
            names: Vec::new(),
            selects: Vec::new(),
            ctes: Vec::new(),
            tables,
            may_unnest: false,
            alias_count: 0,
        }
    }

    /// Returns all edits. Of two edits of the same range, the outer one comes first.
    pub fn into_edits(self) -> Edits {
        let mut edits = Edits::default();
        for (span, text) in self.edits.into_iter().rev().flatten() {
            edits.replace(span, text);
        }
        edits
    }

    /// Replaces a range of the query. The text can copy ranges within it, with their edits.
    pub fn replace(&mut self, span: Range<usize>, text: impl Into<EditText>) {
        self.edits.push(Some((span, text.into())));
    }

    /// Replaces a text literal. Drops its own edit, which `E'…'` and `$$…$$` have.
    pub fn replace_literal(&mut self, span: Range<usize>, text: impl Into<EditText>) {
        if !self.sql[span.clone()].starts_with('\'') {
            let is_own = |edit: &&mut Option<(Range<usize>, EditText)>| {
                edit.as_ref().is_some_and(|(edited, _)| *edited == span)
            };
            if let Some(own) = self.edits.iter_mut().rev().find(is_own) {
                *own = None;
            }
        }
        self.replace(span, text);
    }

    /// Replaces a range with a template in which each `{}` is replaced with the next operand.
    pub fn fill<'t>(
        &mut self,
        span: Range<usize>,
        template: &str,
        operands: impl IntoIterator<Item = &'t TypedExpr>,
    ) -> TypedExpr {
        let operands = operands.into_iter().map(|operand| operand.span.clone().into());
        self.replace(span.clone(), fill_template(template, operands));
        TypedExpr::new(span, SqlType::Unknown)
    }

    /// Replaces an expression with a template around it. The type does not change.
    pub fn wrap(&mut self, expr: &mut TypedExpr, template: &str) {
        let span = expr.span.clone();
        let new = self.fill(span, template, [&*expr]);
        *expr = TypedExpr { sql_type: expr.sql_type.clone(), ..new };
    }

    /// Adds parentheses if the outermost part of the expression is an operator.
    pub fn parenthesize(&mut self, expr: &mut TypedExpr) {
        if expr.precedence != Precedence::Primary {
            self.wrap(expr, "({})");
        }
    }

    /// Returns the source text of a range.
    pub fn text(&self, span: &Range<usize>) -> &'s str {
        self.sql.get(span.clone()).unwrap_or_default()
    }

    /// Returns the tokens of a range.
    pub fn tokens_in(&self, span: &Range<usize>) -> &[Token] {
        let first = self.tokens.partition_point(|token| token.start < span.start);
        let end = self.tokens.partition_point(|token| token.start < span.end);
        &self.tokens[first..end.max(first)]
    }

    /// Returns true if a range contains a word.
    pub fn has_word(&self, span: Range<usize>, word: &str) -> bool {
        self.tokens_in(&span).iter().any(|token| token.is_word(self.sql, word))
    }

    /// Returns the operator between two operands, in upper case and without spaces.
    pub fn read_operator(&self, left: &Expr, right: &Expr) -> String {
        let tokens = self.tokens_in(&(left.span.end..right.span.start)).iter();
        tokens.map(|token| token.text(self.sql).to_ascii_uppercase()).collect()
    }

    /// Returns a new table alias that the query does not use.
    pub fn new_alias(&mut self) -> String {
        self.alias_count += 1;
        format!("hq_each{}", self.alias_count)
    }
}

/// Returns a template in which each `{}` is replaced with the next operand.
pub(super) fn fill_template(
    template: &str,
    operands: impl IntoIterator<Item = EditText>,
) -> EditText {
    let mut parts = Vec::new();
    let mut operands = operands.into_iter();
    for (n, word) in template.split("{}").enumerate() {
        if n > 0 {
            parts.push(operands.next().unwrap_or_default());
        }
        if !word.is_empty() {
            parts.push(word.into());
        }
    }
    EditText::join(parts, "")
}

impl TypedExpr {
    /// Creates an expression without an operator.
    pub fn new(span: Range<usize>, sql_type: SqlType) -> Self {
        Self { span, sql_type, precedence: Precedence::Primary, is_column: false }
    }

    /// Sets the type to boolean.
    pub fn with_boolean_type(self) -> Self {
        Self { sql_type: SqlType::Boolean, ..self }
    }
}
