//! Unifies operand types by their declared types. In `PostgreSQL`, a text literal is converted to a
//! date if it is compared with a date, and to a boolean if it is compared with a boolean. `SQLite`
//! compares the stored values, so the translation converts each operand to the other's type.

use super::cast_target::CastTarget;
use super::functions::{parse_boolean, parse_number};
use super::literal::{convert_literal_text, find_cast_target};
use super::translator::{SqlType, SuqlSelect, Translator, TypedColumns, TypedExpr};
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
    find_cast_target(name).map_or(SqlType::Unknown, CastTarget::sql_type)
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
    exprs: impl IntoIterator<Item = &'p TypedExpr>,
) -> SqlType {
    let is_null = |p: &TypedExpr| {
        sql.get(p.span.clone()).is_some_and(|text| text.eq_ignore_ascii_case("NULL"))
    };
    let non_null = exprs.into_iter().filter(|p| !is_null(p));
    let (texts, others): (Vec<&TypedExpr>, Vec<&TypedExpr>) =
        non_null.partition(|p| matches!(p.sql_type, SqlType::Literal(_)));
    let types = others.iter().map(|p| p.sql_type.as_column_type());
    let all_texts = if texts.is_empty() { SqlType::Unknown } else { SqlType::Text };
    types.reduce(|a, b| a.unify(&b)).unwrap_or(all_texts)
}

impl Translator<'_> {
    /// Converts alternative values to their common type, and returns that type.
    ///
    /// # Errors
    /// Returns [`SqlError`] for a text literal that cannot be converted.
    pub fn coerce_to_common_type(
        &mut self,
        values: Vec<&mut TypedExpr>,
    ) -> Result<SqlType, SqlError> {
        let common = find_common_type(self.sql, values.iter().map(|expr| &**expr));
        for expr in values {
            match &expr.sql_type {
                SqlType::Literal(_) => self.convert_literal(expr, &common)?,
                SqlType::Date if common == SqlType::Timestamp => {
                    self.wrap(expr, CastTarget::Timestamp.template());
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
        &mut self,
        left: &mut TypedExpr,
        right: &mut TypedExpr,
    ) -> Result<(), SqlError> {
        if let (SqlType::Row(a), SqlType::Row(b)) = (&mut left.sql_type, &mut right.sql_type)
            && a.len() == b.len()
        {
            return a.iter_mut().zip(b).try_for_each(|(a, b)| self.unify_operands(a, b));
        }
        Self::check_comparable(left, right)?;
        let of_left = left.clone();
        self.convert_operand(left, right)?;
        self.convert_operand(right, &of_left)
    }

    /// Fails if both types are known and cannot be compared, as in `PostgreSQL`.
    fn check_comparable(left: &TypedExpr, right: &TypedExpr) -> Result<(), SqlError> {
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
        let describe = |expr: &TypedExpr| match expr.sql_type {
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
    fn convert_operand(&mut self, expr: &mut TypedExpr, other: &TypedExpr) -> Result<(), SqlError> {
        use SqlType::{Boolean, Date, Literal, Text, Timestamp, Unknown};
        if let Literal(_) = expr.sql_type {
            return self.convert_literal(expr, &other.sql_type);
        }
        // Compare the stored values of two columns directly, so that an index can be used.
        let is_only_column = expr.is_column && !other.is_column;
        let target = match (&expr.sql_type, &other.sql_type) {
            (Boolean, Boolean | Literal(_)) if is_only_column => CastTarget::Boolean,
            (Date, Date | Literal(_)) if is_only_column => CastTarget::Date,
            (Timestamp, Timestamp | Literal(_)) if is_only_column => CastTarget::Timestamp,
            (Timestamp, Date) if expr.is_column => CastTarget::Timestamp,
            (Date | Text | Unknown, Timestamp) if !other.is_column || expr.sql_type == Date => {
                CastTarget::Timestamp
            }
            _ => return Ok(()),
        };
        self.wrap(expr, target.template());
        Ok(())
    }

    /// Converts a text literal to the type of the other operand.
    ///
    /// # Errors
    /// Returns [`SqlError`] for a text that cannot be converted.
    pub fn convert_literal(
        &mut self,
        expr: &mut TypedExpr,
        target_type: &SqlType,
    ) -> Result<(), SqlError> {
        let SqlType::Literal(text) = &expr.sql_type else { return Ok(()) };
        let span = expr.span.clone();
        let target = match target_type {
            SqlType::Boolean => {
                let word = Self::parse_boolean_literal(text, span.clone(), UNIFY_LABEL)?;
                self.replace_literal(span.clone(), word);
                *expr = TypedExpr::new(span, SqlType::Boolean);
                return Ok(());
            }
            SqlType::Array => {
                self.coerce_to_array(expr);
                return Ok(());
            }
            number if number.is_number() => {
                if parse_number(text).is_none() {
                    let message = format!("'{text}' is not a number");
                    return Err(SqlError::new(span, message, UNIFY_LABEL));
                }
                self.replace_literal(span.clone(), format!("({})", text.trim()));
                *expr = TypedExpr::new(span, target_type.clone());
                return Ok(());
            }
            SqlType::Date => CastTarget::Date,
            SqlType::Timestamp => CastTarget::Timestamp,
            SqlType::Time => CastTarget::Time,
            _ => return Ok(()),
        };
        if let Some((sql, sql_type)) = convert_literal_text(target, text, &span)? {
            self.replace_literal(span.clone(), sql);
            *expr = TypedExpr::new(span, sql_type);
        }
        Ok(())
    }

    /// Converts a condition that is a declared boolean column to a boolean.
    pub fn convert_to_condition(&mut self, expr: &mut TypedExpr) {
        if expr.sql_type == SqlType::Boolean && expr.is_column {
            self.wrap(expr, CastTarget::Boolean.template());
        }
    }

    /// Returns TRUE or FALSE for the text of a boolean.
    pub fn parse_boolean_literal(
        text: &str,
        span: std::ops::Range<usize>,
        label: &str,
    ) -> Result<&'static str, SqlError> {
        let Some(is_true) = parse_boolean(text) else {
            let message = format!("'{text}' is neither true nor false");
            let error = SqlError::new(span, message, label);
            return Err(error.with_help("write TRUE or FALSE, or a text such as 'yes' or 'no'"));
        };
        Ok(if is_true { "TRUE" } else { "FALSE" })
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
