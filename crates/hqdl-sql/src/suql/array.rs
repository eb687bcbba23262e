//! Parser of arrays. The translation represents them as JSON arrays.

use super::expr::SPECIAL;
use super::parser::{PRIMARY, Parser, SqlType, TypedSql, translation_error};
use super::text::SourceFragment;
use crate::blendsql::SqlError;

impl Parser<'_> {
    /// Converts an array literal such as `'{a,b}'` to an array. Returns any other expression
    /// unchanged.
    pub fn coerce_to_array(expr: TypedSql) -> TypedSql {
        let SqlType::Literal(text) = &expr.sql_type else { return expr };
        // `{"a": 1}` is a JSON document, but `{}` is an empty array.
        let document = serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(text);
        if document.is_ok_and(|members| !members.is_empty()) {
            return expr;
        }
        let Some(array) = super::casts::parse_array_literal(text) else { return expr };
        let fragment =
            SourceFragment::Generated(hqdl_values::sql::quote_text(&array), expr.span.clone());
        TypedSql { sql_type: SqlType::Array, ..TypedSql::new(vec![fragment], expr.span) }
    }

    /// Parses `ARRAY[…]` and `ARRAY(SELECT …)`.
    pub fn parse_array(&mut self) -> Result<TypedSql, SqlError> {
        let start = self.next_start();
        self.position += 1;
        if self.is_symbol(b'(') && self.is_query_at(1) {
            self.position += 1;
            let query = self.parse_nested(Self::parse_query)?;
            let end = self.expect_symbol(b')')?;
            let template = "(WITH hq_array(v) AS ({}) SELECT json_group_array(v) FROM hq_array)";
            let expr = TypedSql::from_template(template, vec![query], start..end);
            return Ok(TypedSql { sql_type: SqlType::Array, ..expr });
        }
        self.expect_symbol(b'[')?;
        let all = if self.is_symbol(b']') { Vec::new() } else { self.parse_exprs()? };
        let end = self.expect_symbol(b']')?;
        let template = format!("json_array({})", vec!["{}"; all.len()].join(", "));
        let nested = all.iter().any(|p| p.sql_type == SqlType::Array);
        if nested {
            return Err(translation_error(
                start..end,
                "an array of arrays",
                "write an array of single values",
            ));
        }
        let operands = all.into_iter().map(|p| p.text).collect();
        Ok(TypedSql {
            sql_type: SqlType::Array,
            ..TypedSql::from_template(&template, operands, start..end)
        })
    }

    /// Parses ANY, SOME or ALL after an operator. Returns `None` if none of these words follows.
    pub fn parse_quantified_comparison(
        &mut self,
        left: &TypedSql,
        sign: &str,
        negated: bool,
    ) -> Result<Option<TypedSql>, SqlError> {
        let is_any = self.is_word("ANY") || self.is_word("SOME");
        let opens = self.peek_at(1).is_some_and(|t| t.is_symbol(b'('));
        if !opens || !is_any && !self.is_word("ALL") {
            return Ok(None);
        }
        self.position += 2;
        let is_query = self.is_query_at(0);
        let start = self.next_start();
        let array = if is_query {
            TypedSql::new(self.parse_nested(Self::parse_query)?, start..self.previous_token_end())
        } else {
            Self::coerce_to_array(self.parse_expr()?)
        };
        let end = self.expect_symbol(b')')?;
        let span = left.span.start..end;
        if array.sql_type == SqlType::Array {
            Self::ensure_not_boolean(left)?;
        }
        let operand = left.clone().into_parenthesized();
        // = ANY is equivalent to IN, and <> ALL to NOT IN.
        let in_operator = match (sign, is_any) {
            ("=", true) => Some("IN"),
            ("<>", false) => Some("NOT IN"),
            _ => None,
        };
        if let Some(in_operator) = in_operator {
            if is_query {
                let template = format!("{{}} {in_operator} ({{}})");
                let expr = TypedSql::from_template(&template, vec![operand, array.text], span);
                return Ok(Some(TypedSql { precedence: SPECIAL, ..expr.with_boolean_type() }));
            }
            if let Some(inside) = parse_array_elements(&array) {
                let template = format!("{{}} {in_operator} ({{}})");
                let expr = TypedSql::from_template(&template, vec![operand, inside], span);
                return Ok(Some(TypedSql { precedence: SPECIAL, ..expr.with_boolean_type() }));
            }
        }
        let array = if is_query {
            let template = "(WITH hq_array(v) AS ({}) SELECT json_group_array(v) FROM hq_array)";
            TypedSql::from_template(template, vec![array.text], array.span).text
        } else {
            array.text
        };
        let function = if is_any { "suql_any" } else { "suql_all" };
        let sign = if negated { format!("not {sign}") } else { sign.to_owned() };
        let template = format!("{function}({{}}, '{sign}', {{}})");
        let expr = TypedSql::from_template(&template, vec![left.text.clone(), array], span);
        Ok(Some(TypedSql { precedence: PRIMARY, ..expr.with_boolean_type() }))
    }
}

/// Returns the elements of a non-empty `ARRAY[…]`, or `None` for any other expression.
fn parse_array_elements(array: &TypedSql) -> Option<Vec<SourceFragment>> {
    let [SourceFragment::Generated(first, _), inside @ .., SourceFragment::Generated(last, _)] =
        array.text.as_slice()
    else {
        return None;
    };
    (first == "json_array(" && last == ")" && !inside.is_empty()).then(|| inside.to_vec())
}
