//! Unifies operand types by their declared types. In `PostgreSQL`, a text literal is converted to a
//! date if it is compared with a date, and to a boolean if it is compared with a boolean. `SQLite`
//! compares the stored values, so the translation converts each operand to the other's type.

use super::cast_target::CastTarget;
use super::functions::{parse_boolean, parse_number};
use super::literal::{TYPES, convert_literal_text};
use super::parser::{PRIMARY, Parser, SqlType, SuqlSelect, TypedColumns, TypedSql, join_exprs};
use super::text::SourceFragment;
use crate::blendsql::SqlError;

/// Error label for a text literal that cannot be converted to the other operand's type.
const UNIFY_LABEL: &str =
    "read with the type of the other value; to compare texts, cast that value with ::text";

/// Parses a column's declared type. Returns [`SqlType::Unknown`] if the type is not recognized.
pub(super) fn parse_declared_type(declaration: &str) -> SqlType {
    let upper = declaration.trim().to_ascii_uppercase();
    let name = upper.split(['(', ' ', '[']).next().unwrap_or_default();
    if upper.ends_with(']') {
        return SqlType::Array;
    }
    if ["DATETIME", "SERIAL", "BIGSERIAL", "DEC"].contains(&name) {
        return match name {
            "DATETIME" => SqlType::Timestamp,
            "DEC" => SqlType::Numeric,
            _ => SqlType::Integer,
        };
    }
    let found = TYPES.iter().find(|(names, _)| names.contains(&name));
    found.map_or(SqlType::Unknown, |(_, target)| target.sql_type())
}

impl SqlType {
    /// Returns the type of a column that is computed by an expression of this type.
    pub fn as_column_type(&self) -> Self {
        match self {
            Self::Literal(_) => Self::Text,
            Self::Call | Self::Interval(_) | Self::Enum(_) | Self::Row(_) => Self::Unknown,
            other => other.clone(),
        }
    }

    /// Returns the common type of both types: a numeric type for two numbers, a timestamp for a
    /// date and a timestamp, or the type of both if they are equal.
    pub fn unify(&self, other: &Self) -> Self {
        match (self, other) {
            (a, b) if a == b => a.clone(),
            (a, b) if a.is_number() && b.is_number() => {
                if [a, b].contains(&&Self::Float) {
                    Self::Float
                } else {
                    Self::Numeric
                }
            }
            (Self::Date, Self::Timestamp) | (Self::Timestamp, Self::Date) => Self::Timestamp,
            _ => Self::Unknown,
        }
    }

    /// Returns true for any numeric type.
    pub fn is_number(&self) -> bool {
        matches!(self, Self::Integer | Self::Numeric | Self::Float)
    }
}

/// Returns the common type of expressions. Text literals and NULL adopt the type of the other
/// expressions.
pub(super) fn find_common_type<'p>(
    sql: &str,
    exprs: impl IntoIterator<Item = &'p TypedSql>,
) -> SqlType {
    let is_null = |p: &TypedSql| {
        sql.get(p.span.clone()).is_some_and(|text| text.eq_ignore_ascii_case("NULL"))
    };
    let non_null = exprs.into_iter().filter(|p| !is_null(p));
    let (texts, others): (Vec<&TypedSql>, Vec<&TypedSql>) =
        non_null.partition(|p| matches!(p.sql_type, SqlType::Literal(_)));
    let types = others.iter().map(|p| p.sql_type.as_column_type());
    let all_texts = if texts.is_empty() { SqlType::Unknown } else { SqlType::Text };
    types.reduce(|a, b| a.unify(&b)).unwrap_or(all_texts)
}

impl Parser<'_> {
    /// Converts alternative values to their common type, and returns that type.
    ///
    /// # Errors
    /// Returns [`SqlError`] for a text literal that cannot be converted.
    pub fn coerce_to_common_type(&self, values: Vec<&mut TypedSql>) -> Result<SqlType, SqlError> {
        let common = find_common_type(self.sql, values.iter().map(|expr| &**expr));
        for expr in values {
            match expr.sql_type.clone() {
                SqlType::Literal(text) => {
                    *expr = Self::convert_literal(expr.clone(), &text, &common)?;
                }
                SqlType::Date if common == SqlType::Timestamp => {
                    let text = vec![expr.text.clone()];
                    *expr = TypedSql::from_template(
                        CastTarget::Timestamp.template(),
                        text,
                        expr.span.clone(),
                    );
                }
                _ => {}
            }
        }
        Ok(common)
    }

    /// Returns the type of a column of the visible tables, or [`SqlType::Unknown`].
    pub fn find_column_type(&self, table: Option<&str>, column: &str) -> SqlType {
        let found =
            self.selects.iter().rev().find_map(|select| select.find_column_type(table, column));
        found.unwrap_or(SqlType::Unknown)
    }

    /// Converts two operands to their common type.
    ///
    /// # Errors
    /// Returns [`SqlError`] for a text literal that cannot be converted.
    pub fn unify_operands(
        left: TypedSql,
        right: TypedSql,
    ) -> Result<(TypedSql, TypedSql), SqlError> {
        if let (SqlType::Row(a), SqlType::Row(b)) = (&left.sql_type, &right.sql_type)
            && a.len() == b.len()
        {
            let both = a.iter().cloned().zip(b.iter().cloned());
            let both: Result<Vec<(TypedSql, TypedSql)>, SqlError> =
                both.map(|(a, b)| Self::unify_operands(a, b)).collect();
            let (a, b) = both?.into_iter().unzip();
            return Ok((left.with_values(a), right.with_values(b)));
        }
        Self::check_comparable(&left, &right)?;
        let (of_left, of_right) = (left.clone(), right.clone());
        Ok((Self::convert_operand(left, &of_right)?, Self::convert_operand(right, &of_left)?))
    }

    /// Fails if both types are known and cannot be compared, as in `PostgreSQL`.
    fn check_comparable(left: &TypedSql, right: &TypedSql) -> Result<(), SqlError> {
        use SqlType::{Boolean, Date, Text, Time, Timestamp};
        let are_incompatible = |a: &SqlType, b: &SqlType| match a {
            Date | Timestamp | Time => b.is_number() || *b == Boolean,
            Boolean => matches!(b, Text),
            _ => false,
        };
        if !are_incompatible(&left.sql_type, &right.sql_type)
            && !are_incompatible(&right.sql_type, &left.sql_type)
        {
            return Ok(());
        }
        let describe = |expr: &TypedSql| match expr.sql_type {
            Date => "a date",
            Timestamp => "a timestamp",
            Time => "a time of a day",
            Boolean => "true or false",
            Text => "a text",
            _ => "a number",
        };
        let span = left.span.start..right.span.end;
        let message = format!("this compares {} with {}", describe(left), describe(right));
        let error = SqlError::new(span, message, "here");
        Err(error.with_help("cast one of them"))
    }

    /// Converts an operand to the type of the other operand, if necessary.
    fn convert_operand(expr: TypedSql, other: &TypedSql) -> Result<TypedSql, SqlError> {
        if let SqlType::Literal(text) = &expr.sql_type {
            let text = text.clone();
            return Self::convert_literal(expr, &text, &other.sql_type);
        }
        let target = match (&expr.sql_type, &other.sql_type) {
            // Compare the stored values of two columns directly, so that an index can be used.
            (SqlType::Boolean, SqlType::Boolean | SqlType::Literal(_))
                if expr.is_column() && !other.is_column() =>
            {
                CastTarget::Boolean
            }
            (SqlType::Date, SqlType::Date | SqlType::Literal(_))
                if expr.is_column() && !other.is_column() =>
            {
                CastTarget::Date
            }
            (SqlType::Timestamp, SqlType::Timestamp | SqlType::Literal(_))
                if expr.is_column() && !other.is_column() =>
            {
                CastTarget::Timestamp
            }
            (SqlType::Timestamp, SqlType::Date) if expr.is_column() => CastTarget::Timestamp,
            (SqlType::Date | SqlType::Text | SqlType::Unknown, SqlType::Timestamp)
                if !other.is_column() || expr.sql_type == SqlType::Date =>
            {
                CastTarget::Timestamp
            }
            _ => return Ok(expr),
        };
        let span = expr.span.clone();
        Ok(TypedSql {
            sql_type: expr.sql_type,
            ..TypedSql::from_template(target.template(), vec![expr.text], span)
        })
    }

    /// Converts a text literal to the type of the other operand.
    ///
    /// # Errors
    /// Returns [`SqlError`] for a text that cannot be converted.
    pub fn convert_literal(
        expr: TypedSql,
        text: &str,
        target_type: &SqlType,
    ) -> Result<TypedSql, SqlError> {
        let span = expr.span.clone();
        let target = match target_type {
            SqlType::Boolean => return Self::parse_boolean_literal(text, span, UNIFY_LABEL),
            SqlType::Array => return Ok(Self::coerce_to_array(expr)),
            number if number.is_number() => {
                if parse_number(text).is_none() {
                    let message = format!("'{text}' is not a number");
                    return Err(SqlError::new(span, message, UNIFY_LABEL));
                }
                let fragment =
                    SourceFragment::Generated(format!("({})", text.trim()), span.clone());
                return Ok(TypedSql {
                    sql_type: target_type.clone(),
                    ..TypedSql::new(vec![fragment], span)
                });
            }
            SqlType::Date => CastTarget::Date,
            SqlType::Timestamp => CastTarget::Timestamp,
            SqlType::Time => CastTarget::Time,
            _ => return Ok(expr),
        };
        Ok(convert_literal_text(target, text, &span)?.unwrap_or(expr))
    }

    /// Converts a condition that is a declared boolean column to a boolean.
    pub fn to_condition(expr: TypedSql) -> TypedSql {
        if expr.sql_type != SqlType::Boolean || !expr.is_column() {
            return expr;
        }
        let span = expr.span.clone();
        TypedSql::from_template(CastTarget::Boolean.template(), vec![expr.text], span)
            .with_boolean_type()
    }

    /// Converts a text literal to a boolean.
    pub fn parse_boolean_literal(
        text: &str,
        span: std::ops::Range<usize>,
        label: &str,
    ) -> Result<TypedSql, SqlError> {
        let Some(is_true) = parse_boolean(text) else {
            let message = format!("'{text}' is neither true nor false");
            let error = SqlError::new(span, message, label);
            return Err(error.with_help("write TRUE or FALSE, or a text such as 'yes' or 'no'"));
        };
        let word = if is_true { "TRUE" } else { "FALSE" };
        Ok(TypedSql::new(vec![SourceFragment::Generated(word.to_owned(), span.clone())], span)
            .with_boolean_type())
    }
}

impl TypedSql {
    /// Returns the row value with its values replaced.
    fn with_values(self, values: Vec<Self>) -> Self {
        let text = join_exprs(self.span.start, values, self.span.end);
        Self { text, ..self }
    }

    /// Returns true for a plain column, whose stored values may be formatted differently from
    /// computed values.
    fn is_column(&self) -> bool {
        self.precedence == PRIMARY && matches!(self.text.as_slice(), [SourceFragment::Column(..)])
    }
}

impl SuqlSelect {
    /// Returns the type of a column of this SELECT's tables, or `None` if no table has it.
    fn find_column_type(&self, table: Option<&str>, column: &str) -> Option<SqlType> {
        let is_match = |name: Option<&String>| match (table, name) {
            (Some(table), Some(name)) => name.eq_ignore_ascii_case(table),
            (None, _) => true,
            (Some(_), None) => false,
        };
        let mut found: Option<SqlType> = None;
        for of in self.tables.iter().filter(|t| is_match(t.name.as_ref())) {
            let Some(columns) = &of.columns else { return Some(SqlType::Unknown) };
            for (_, sql_type) in
                columns.iter().filter(|(name, _)| name.eq_ignore_ascii_case(column))
            {
                found =
                    Some(found.map_or_else(|| sql_type.clone(), |before| before.unify(sql_type)));
            }
        }
        found
    }

    /// Returns the columns of `*` for all tables, or for the table `of`.
    pub fn all_columns(&self, of: Option<&str>) -> TypedColumns {
        let is_match = |name: Option<&String>| {
            of.is_none_or(|of| name.is_some_and(|name| name.eq_ignore_ascii_case(of)))
        };
        // USING and NATURAL merge columns.
        if of.is_none() && self.has_merged_columns {
            return None;
        }
        let mut all = Vec::new();
        for table in self.tables.iter().filter(|t| is_match(t.name.as_ref())) {
            all.extend(table.columns.clone()?);
        }
        (!all.is_empty()).then_some(all)
    }
}
