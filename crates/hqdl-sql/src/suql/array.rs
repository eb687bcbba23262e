//! Translates arrays to JSON arrays.

use std::ops::Range;

use super::casts::parse_array_literal;
use super::expr::new_boolean;
use super::translator::{SqlType, Translator, TypedExpr, fill_template};
use crate::blendsql::SqlError;
use crate::blendsql::parse::Precedence;
use crate::blendsql::tree::{Expr, ExprKind, ExprOperator};
use crate::translated::EditText;
use hqdl_values::sql::quote_text;

/// Template for the array of a query's rows.
const QUERY_ARRAY: &str = "(WITH hq_array(v) AS ({}) SELECT json_group_array(v) FROM hq_array)";

impl Translator<'_> {
    /// Converts an array literal such as `'{a,b}'` to an array. Leaves any other expression
    /// unchanged.
    pub fn coerce_to_array(&mut self, expr: &mut TypedExpr) {
        let SqlType::Literal(text) = &expr.sql_type else { return };
        // `{"a": 1}` is a JSON document, but `{}` is an empty array.
        let document = serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(text);
        if document.is_ok_and(|members| !members.is_empty()) {
            return;
        }
        let Some(array) = parse_array_literal(text) else { return };
        self.replace_literal(expr.span.clone(), quote_text(&array));
        *expr = TypedExpr::new(expr.span.clone(), SqlType::Array);
    }

    /// Translates `ARRAY[…]` and `ARRAY (SELECT …)`.
    pub fn translate_array(
        &mut self,
        span: &Range<usize>,
        elements: &[Expr],
    ) -> Result<TypedExpr, SqlError> {
        let array = if let [Expr { kind: ExprKind::Scalar(query), .. }] = elements
            && !self.sql[span.clone()].ends_with(']')
        {
            self.translate_query(query, false)?;
            self.replace(span.clone(), fill_template(QUERY_ARRAY, [query.span.clone().into()]));
            TypedExpr::new(span.clone(), SqlType::Array)
        } else {
            let elements = self.translate_exprs(elements)?;
            if elements.iter().any(|element| element.sql_type == SqlType::Array) {
                let help = "write an array of single values";
                return Err(SqlError::untranslatable(span.clone(), "an array of arrays", help));
            }
            let template = format!("json_array({})", vec!["{}"; elements.len()].join(", "));
            self.fill(span.clone(), &template, &elements)
        };
        Ok(TypedExpr { sql_type: SqlType::Array, ..array })
    }

    /// Returns the elements of a non-empty `ARRAY[…]`, which can have casts. Returns `None` for any
    /// other expression.
    fn copy_elements(&self, array: &Expr) -> Option<EditText> {
        match &array.kind {
            ExprKind::Cast(array, _) => self.copy_elements(array),
            ExprKind::Operation(ExprOperator::Array, elements)
                if self.text(&array.span).ends_with(']') && !elements.is_empty() =>
            {
                let elements = elements.iter().map(|element| element.span.clone().into());
                Some(EditText::join(elements.collect(), ", "))
            }
            _ => None,
        }
    }

    /// Translates a comparison with ANY, SOME or ALL; `right` is the array or query in parentheses,
    /// and `words` is the right side of the comparison.
    pub fn translate_quantified(
        &mut self,
        expr: &Expr,
        left: &mut TypedExpr,
        words: &Expr,
        right: &Expr,
        sign: &str,
    ) -> Result<TypedExpr, SqlError> {
        let is_any =
            !self.tokens_in(&words.span).first().is_some_and(|t| t.is_word(self.sql, "ALL"));
        let query = match &right.kind {
            ExprKind::Scalar(query) => Some(query),
            _ => None,
        };
        let inner = match &right.kind {
            ExprKind::Paren(inner) => inner,
            _ => right,
        };
        let mut array = TypedExpr::new(inner.span.clone(), SqlType::Unknown);
        match query {
            Some(query) => {
                self.translate_query(query, false)?;
                array.span = query.span.clone();
            }
            None => {
                array = self.translate_expr(inner)?;
                self.coerce_to_array(&mut array);
            }
        }
        if array.sql_type == SqlType::Array {
            Self::ensure_not_boolean(left)?;
        }
        // = ANY is equivalent to IN, and <> ALL to NOT IN.
        let in_operator = match (sign, is_any) {
            ("=", true) => Some("IN"),
            ("<>", false) => Some("NOT IN"),
            _ => None,
        };
        let elements = match query {
            Some(_) => Some(array.span.clone().into()),
            None => self.copy_elements(inner),
        };
        let span = expr.span.clone();
        if let Some((in_operator, elements)) = in_operator.zip(elements) {
            self.parenthesize(left);
            let template = format!("{{}} {in_operator} ({{}})");
            self.replace(span, fill_template(&template, [left.span.clone().into(), elements]));
            return Ok(TypedExpr { precedence: Precedence::Special, ..new_boolean(&expr.span) });
        }
        let array = match query {
            Some(_) => fill_template(QUERY_ARRAY, [array.span.into()]),
            None => array.span.into(),
        };
        let function = if is_any { "suql_any" } else { "suql_all" };
        let template = format!("{function}({{}}, '{sign}', {{}})");
        self.replace(span, fill_template(&template, [left.span.clone().into(), array]));
        Ok(new_boolean(&expr.span))
    }
}
