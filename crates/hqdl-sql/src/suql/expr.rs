//! Translates expressions.

use std::ops::Range;

use super::cast_target::CastTarget;
use super::translator::{PendingKind, SqlType, Translator, TypedExpr};
use crate::blendsql::SqlError;
use crate::blendsql::lexer::{Token, TokenKind};
use crate::blendsql::parse::Precedence;
use crate::blendsql::tree::{Expr, ExprKind, ExprOperator, OrderTerm};
use hqdl_values::sql::quote_text;

impl Translator<'_> {
    /// Translates an expression and returns its type.
    ///
    /// # Errors
    /// Returns [`SqlError`] for a construct that `SQLite` does not support, and for types that
    /// `PostgreSQL` does not accept.
    pub fn translate_expr(&mut self, expr: &Expr) -> Result<TypedExpr, SqlError> {
        let span = || expr.span.clone();
        match &expr.kind {
            ExprKind::And(parts) => self.translate_conditions(expr, parts, Precedence::And),
            ExprKind::Or(parts) => self.translate_conditions(expr, parts, Precedence::Or),
            ExprKind::Not(operand) => {
                self.translate_conditions(expr, std::slice::from_ref(operand), Precedence::Not)
            }
            ExprKind::Paren(inner) => self.translate_row(expr, std::slice::from_ref(inner)),
            ExprKind::Column { table, column } => {
                Ok(self.translate_column(expr, table.as_deref(), column))
            }
            ExprKind::Call(..) => Ok(TypedExpr::new(span(), SqlType::Call)),
            ExprKind::Case { .. } => self.translate_case(expr),
            ExprKind::Function { name, .. } => self.translate_function(expr, name),
            ExprKind::Exists(query) => {
                self.translate_query(query, true)?;
                Ok(TypedExpr::new(span(), SqlType::Boolean))
            }
            ExprKind::Scalar(query) => {
                let columns = self.translate_query(query, false)?;
                let sql_type = match columns.as_deref() {
                    Some([(_, only)]) => only.clone(),
                    _ => SqlType::Unknown,
                };
                Ok(TypedExpr::new(span(), sql_type))
            }
            ExprKind::In { .. } => self.translate_in(expr),
            ExprKind::Literal => self.translate_literal(&expr.span),
            ExprKind::Compare(sign @ ("IS" | "IS NOT"), left, right) => {
                self.translate_is(expr, sign, left, right)
            }
            ExprKind::Compare(sign, left, right) => {
                self.translate_comparison(expr, sign, left, right)
            }
            ExprKind::Cast(operand, _) => self.translate_cast(expr, operand),
            ExprKind::Operation(operator, operands) => {
                self.translate_operation(expr, operator, operands)
            }
        }
    }

    /// Fails for expressions that are not values: an interval, or a text cast to a possible ENUM.
    pub fn ensure_value(expr: &TypedExpr) -> Result<(), SqlError> {
        match &expr.sql_type {
            SqlType::Enum(name) => Err(super::literal::unknown_type_error(name, expr.span.clone())),
            _ => Self::ensure_not_interval(expr),
        }
    }

    /// Fails for an interval, which is not a value in `SQLite`.
    pub fn ensure_not_interval(expr: &TypedExpr) -> Result<(), SqlError> {
        match expr.sql_type {
            SqlType::Interval(_) => Err(SqlError::untranslatable(
                expr.span.clone(),
                "an interval that is not added to a date",
                "add it to a date: d + INTERVAL '1 day'",
            )),
            _ => Ok(()),
        }
    }

    /// Translates expressions in order.
    pub fn translate_exprs(&mut self, exprs: &[Expr]) -> Result<Vec<TypedExpr>, SqlError> {
        exprs.iter().map(|expr| self.translate_expr(expr)).collect()
    }

    fn translate_operation(
        &mut self,
        expr: &Expr,
        operator: &ExprOperator,
        operands: &[Expr],
    ) -> Result<TypedExpr, SqlError> {
        match (operator, operands) {
            (ExprOperator::Row, values) => self.translate_row(expr, values),
            (ExprOperator::Array, elements) => self.translate_array(&expr.span, elements),
            (ExprOperator::Prefix("+" | "-"), [operand]) => self.translate_sign(expr, operand),
            (ExprOperator::Prefix("~"), [operand]) => {
                let mut operand = self.translate_expr(operand)?;
                self.parenthesize(&mut operand);
                let precedence = Precedence::Prefix;
                Ok(TypedExpr { precedence, ..TypedExpr::new(expr.span.clone(), SqlType::Integer) })
            }
            (ExprOperator::NullTest, [operand]) => {
                let mut operand = self.translate_expr(operand)?;
                self.parenthesize_operand(&mut operand);
                Ok(TypedExpr { precedence: Precedence::Is, ..new_boolean(&expr.span) })
            }
            (ExprOperator::Between, [value, low, high]) => {
                self.translate_between(expr, value, low, high)
            }
            (ExprOperator::Match(_), [text, pattern, escape @ ..]) => {
                self.translate_match(expr, text, pattern, escape.first())
            }
            (ExprOperator::Infix("AT TIME ZONE"), [left, right]) => {
                let words = self.tokens_in(&(left.span.end..right.span.start));
                let end = words.last().map_or(right.span.start, |zone| zone.end);
                let start = words.first().map_or(left.span.end, |at| at.start);
                let help = "leave it out; all times are in UTC";
                Err(SqlError::untranslatable(start..end, "AT TIME ZONE", help))
            }
            (ExprOperator::Infix(sign), [left, right]) => {
                self.translate_infix(expr, sign, left, right)
            }
            (ExprOperator::Collate(name), [operand]) => self.translate_collate(expr, name, operand),
            (ExprOperator::Subscript, [array, index]) => {
                let operands = [self.translate_expr(array)?, self.translate_expr(index)?];
                Ok(self.fill(expr.span.clone(), "suql_element({}, {})", &operands))
            }
            _ => {
                self.translate_exprs(operands)?;
                Ok(TypedExpr::new(expr.span.clone(), SqlType::Unknown))
            }
        }
    }

    /// Translates the operands of AND, OR or NOT.
    fn translate_conditions(
        &mut self,
        expr: &Expr,
        parts: &[Expr],
        precedence: Precedence,
    ) -> Result<TypedExpr, SqlError> {
        for part in parts {
            self.translate_condition(part)?;
        }
        Ok(TypedExpr { precedence, ..new_boolean(&expr.span) })
    }

    /// Translates a condition. Converts a declared boolean column to a boolean.
    pub fn translate_condition(&mut self, expr: &Expr) -> Result<TypedExpr, SqlError> {
        let mut condition = self.translate_expr(expr)?;
        self.convert_to_condition(&mut condition);
        Ok(condition)
    }

    /// Translates a value in parentheses or a row value, with or without ROW.
    fn translate_row(&mut self, expr: &Expr, values: &[Expr]) -> Result<TypedExpr, SqlError> {
        let row = self.tokens_in(&expr.span);
        if let [word, paren, ..] = row
            && word.is_word(self.sql, "ROW")
        {
            let word = word.start..paren.start;
            self.replace(word, "");
        }
        let values = self.translate_exprs(values)?;
        if let [one] = values.as_slice()
            && let SqlType::Interval(_) = one.sql_type
        {
            return Ok(TypedExpr { span: expr.span.clone(), ..one.clone() });
        }
        values.iter().try_for_each(Self::ensure_not_interval)?;
        let sql_type = match values.as_slice() {
            [TypedExpr { sql_type: SqlType::Literal(_), .. }] => SqlType::Unknown,
            [one] => one.sql_type.clone(),
            _ => SqlType::Row(values),
        };
        Ok(TypedExpr::new(expr.span.clone(), sql_type))
    }

    fn translate_column(&mut self, expr: &Expr, table: Option<&str>, column: &str) -> TypedExpr {
        let new =
            |sql_type| TypedExpr { is_column: true, ..TypedExpr::new(expr.span.clone(), sql_type) };
        let names = self.tokens_in(&expr.span);
        match *names {
            [name] if name.is_word(self.sql, "LOCALTIMESTAMP") => return new(SqlType::Timestamp),
            [name] if ["TRUE", "FALSE"].iter().any(|word| name.is_word(self.sql, word)) => {
                return new(SqlType::Boolean);
            }
            // The default schema, as in `public.t.c`.
            [schema, _, name, _, _] if self.is_public_schema(schema) => {
                self.replace(schema.start..name.start, "");
            }
            [_, _, _, _, _] => return TypedExpr::new(expr.span.clone(), SqlType::Unknown),
            _ => {}
        }
        let (table, column) = (table.map(str::to_owned), column.to_owned());
        let sql_type = self.find_column_type(table.as_deref(), &column);
        let kind = PendingKind::Column { table, column, is_result: false };
        self.add_pending_name(expr.span.clone(), kind);
        new(sql_type)
    }

    /// Returns true for `public`, `PostgreSQL`'s default schema.
    pub fn is_public_schema(&self, token: Token) -> bool {
        token.unquoted_text(self.sql).eq_ignore_ascii_case("public")
    }

    fn translate_literal(&mut self, span: &Range<usize>) -> Result<TypedExpr, SqlError> {
        let sql = self.sql;
        let new = |sql_type| TypedExpr::new(span.clone(), sql_type);
        match *self.tokens_in(span) {
            [number] if number.lexeme == TokenKind::Number => {
                let is_whole = !number.text(sql).contains('.');
                Ok(new(if is_whole { SqlType::Integer } else { SqlType::Numeric }))
            }
            [text] if text.lexeme == TokenKind::Text => {
                let content = text.unquoted_text(sql);
                // E'…' and $$…$$
                if !text.text(sql).starts_with('\'') {
                    self.replace(span.clone(), quote_text(&content));
                }
                Ok(new(SqlType::Literal(content)))
            }
            [word] => {
                let sql_type = match word.text(sql).to_ascii_uppercase().as_str() {
                    "CURRENT_DATE" => SqlType::Date,
                    "CURRENT_TIMESTAMP" => SqlType::Timestamp,
                    _ => SqlType::Unknown,
                };
                Ok(TypedExpr { is_column: true, ..new(sql_type) })
            }
            [word, text, ref unit @ ..] if word.is_word(sql, "INTERVAL") => {
                // The unit can follow the text: INTERVAL '1' DAY
                let unit = unit.first().map_or("", |unit| unit.text(sql));
                let text = format!("{} {unit}", text.unquoted_text(sql));
                Self::parse_interval(&text, span.clone())
            }
            [word, text, ..] => self.translate_typed_literal(span, word, text),
            [] => Ok(new(SqlType::Unknown)),
        }
    }

    /// Translates `DATE '…'` and similar literals.
    fn translate_typed_literal(
        &mut self,
        span: &Range<usize>,
        word: Token,
        text: Token,
    ) -> Result<TypedExpr, SqlError> {
        let name = word.text(self.sql).to_ascii_uppercase();
        let target = super::literal::find_cast_target(&name).unwrap_or(CastTarget::Unchanged);
        let content = text.unquoted_text(self.sql);
        let literal = super::literal::convert_literal_text(target, &content, &text.span())?;
        let sql = literal.map(|(sql, _)| sql);
        let sql = sql.unwrap_or_else(|| target.template().replace("{}", &quote_text(&content)));
        self.replace(span.clone(), sql);
        Ok(TypedExpr::new(span.clone(), target.sql_type()))
    }

    fn translate_sign(&mut self, expr: &Expr, operand: &Expr) -> Result<TypedExpr, SqlError> {
        let mut operand = self.translate_expr(operand)?;
        // In SQLite, || has a higher precedence than a sign.
        if operand.precedence < Precedence::Prefix {
            self.parenthesize(&mut operand);
        }
        let sql_type = match &operand.sql_type {
            number if number.is_number() => number.clone(),
            SqlType::Date | SqlType::Timestamp | SqlType::Time | SqlType::Boolean => {
                return Err(SqlError::untranslatable(
                    expr.span.clone(),
                    "a sign before a date, a time or a boolean",
                    "write a sign before numbers only",
                ));
            }
            _ => SqlType::Integer,
        };
        let precedence = Precedence::Prefix;
        Ok(TypedExpr { precedence, ..TypedExpr::new(expr.span.clone(), sql_type) })
    }

    fn translate_collate(
        &mut self,
        expr: &Expr,
        name: &str,
        operand: &Expr,
    ) -> Result<TypedExpr, SqlError> {
        let operand = self.translate_expr(operand)?;
        // These collations compare byte by byte, as SQLite does.
        if !["C", "POSIX", "ucs_basic"].contains(&name) {
            let span = self.tokens_in(&expr.span).last().map_or(expr.span.clone(), |t| t.span());
            let help = "leave COLLATE out; texts are compared byte by byte";
            return Err(SqlError::untranslatable(span, "a PostgreSQL collation", help));
        }
        let collated = self.fill(expr.span.clone(), "{} COLLATE BINARY", [&operand]);
        Ok(TypedExpr { sql_type: operand.sql_type, ..collated })
    }

    fn translate_case(&mut self, expr: &Expr) -> Result<TypedExpr, SqlError> {
        let ExprKind::Case { operand, whens, otherwise } = &expr.kind else {
            return Ok(TypedExpr::new(expr.span.clone(), SqlType::Unknown));
        };
        let mut operand = match operand {
            Some(operand) => Some(self.translate_expr(operand)?),
            None => None,
        };
        let mut results = Vec::new();
        for (when, then) in whens {
            let mut when = self.translate_condition(when)?;
            if let Some(operand) = &mut operand {
                self.unify_operands(operand, &mut when)?;
            }
            results.push(self.translate_expr(then)?);
        }
        if let Some(otherwise) = otherwise {
            results.push(self.translate_expr(otherwise)?);
        }
        let sql_type = self.coerce_to_common_type(results.iter_mut().collect())?;
        Ok(TypedExpr::new(expr.span.clone(), sql_type))
    }

    /// Translates the terms of an ORDER BY.
    pub fn translate_order_by(&mut self, terms: &[OrderTerm]) -> Result<Vec<TypedExpr>, SqlError> {
        terms.iter().map(|term| self.translate_sort_key(&term.expr)).collect()
    }

    /// Translates an expression that rows are sorted by. Intervals are sorted by their lengths.
    pub fn translate_sort_key(&mut self, expr: &Expr) -> Result<TypedExpr, SqlError> {
        let mut key = self.translate_expr(expr)?;
        if key.sql_type == SqlType::ComputedInterval {
            self.wrap(&mut key, "suql_span_part('length', {})");
        }
        Ok(key)
    }
}

/// Returns a boolean expression without an operator.
pub(super) fn new_boolean(span: &Range<usize>) -> TypedExpr {
    TypedExpr::new(span.clone(), SqlType::Boolean)
}
