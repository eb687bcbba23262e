//! Translates operators.

use std::ops::Range;

use super::expr::new_boolean;
use super::functions::{compile_pattern, find_pattern_syntax};
use super::translator::{SqlType, Translator, TypedExpr};
use crate::blendsql::SqlError;
use crate::blendsql::parse::Precedence;
use crate::blendsql::tree::{Expr, ExprKind, ExprOperator};
use crate::translated::EditText;
use hqdl_values::sql::quote_text;

/// Returns the expression in the parentheses of ANY, SOME or ALL.
fn find_quantified(expr: &Expr) -> Option<&Expr> {
    match &expr.kind {
        ExprKind::Operation(ExprOperator::Quantified, operands) => operands.first(),
        _ => None,
    }
}

/// Returns the byte range from one expression to another.
fn join_spans(left: &TypedExpr, right: &TypedExpr) -> Range<usize> {
    left.span.start.min(right.span.start)..left.span.end.max(right.span.end)
}

impl Translator<'_> {
    /// Adds parentheses to an operand if `SQLite`'s precedence requires them.
    pub fn parenthesize_operand(&mut self, expr: &mut TypedExpr) {
        if (Precedence::Not..Precedence::Sum).contains(&expr.precedence) {
            self.parenthesize(expr);
        }
    }

    /// Translates IS NULL, IS TRUE and similar tests.
    pub fn translate_is(
        &mut self,
        expr: &Expr,
        sign: &str,
        left: &Expr,
        right: &Expr,
    ) -> Result<TypedExpr, SqlError> {
        let mut operand = self.translate_expr(left)?;
        self.parenthesize_operand(&mut operand);
        let test = TypedExpr { precedence: Precedence::Is, ..new_boolean(&expr.span) };
        if self.has_word(left.span.end..right.span.start, "DISTINCT") {
            let mut right = self.translate_expr(right)?;
            self.parenthesize_operand(&mut right);
            self.unify_operands(&mut operand, &mut right)?;
            return Ok(test);
        }
        let word = self.text(&right.span).to_ascii_uppercase();
        match word.as_str() {
            "NULL" => {}
            "TRUE" | "FALSE" => self.convert_to_condition(&mut operand),
            "UNKNOWN" => {
                self.convert_to_condition(&mut operand);
                self.replace(right.span.clone(), "NULL");
            }
            _ => {
                let message = format!("unexpected `{word}` after {sign}");
                let label = "expected NULL, TRUE, FALSE, UNKNOWN or DISTINCT FROM";
                return Err(SqlError::new(right.span.clone(), message, label));
            }
        }
        Ok(test)
    }

    /// Translates IN and NOT IN.
    pub fn translate_in(&mut self, expr: &Expr) -> Result<TypedExpr, SqlError> {
        let test = TypedExpr { precedence: Precedence::Special, ..new_boolean(&expr.span) };
        let ExprKind::In { negated, operand, list, query, is_answer } = &expr.kind else {
            return Ok(test);
        };
        let mut left = self.translate_expr(operand)?;
        if let Some(query) = query {
            self.translate_query(query, false)?;
            self.parenthesize_operand(&mut left);
            return Ok(test);
        }
        let mut list = self.translate_exprs(list)?;
        if *is_answer {
            Self::ensure_not_boolean(&left)?;
            let template =
                if *negated { "suql_all({}, '<>', {})" } else { "suql_any({}, '=', {})" };
            let array = self.fill(expr.span.clone(), template, [&left].into_iter().chain(&list));
            return Ok(array.with_boolean_type());
        }
        if left.sql_type == SqlType::Array {
            // Compare the arrays element by element.
            list.iter_mut().for_each(|array| self.coerce_to_array(array));
            let comparisons = vec!["suql_same({}, {})"; list.len()].join(" OR ");
            let template = if *negated {
                format!("(NOT ({comparisons}))")
            } else {
                format!("({comparisons})")
            };
            let operands = list.iter().flat_map(|array| [&left, array]);
            return Ok(self.fill(expr.span.clone(), &template, operands).with_boolean_type());
        }
        for value in &mut list {
            self.unify_operands(&mut left, value)?;
        }
        self.parenthesize_operand(&mut left);
        Ok(test)
    }

    /// Translates BETWEEN, with or without NOT and SYMMETRIC.
    pub fn translate_between(
        &mut self,
        expr: &Expr,
        value: &Expr,
        low: &Expr,
        high: &Expr,
    ) -> Result<TypedExpr, SqlError> {
        let operator = self.read_operator(value, low);
        let mut value = self.translate_expr(value)?;
        let mut low = self.translate_expr(low)?;
        self.unify_operands(&mut value, &mut low)?;
        let mut high = self.translate_expr(high)?;
        self.unify_operands(&mut value, &mut high)?;
        self.parenthesize_operand(&mut low);
        self.parenthesize_operand(&mut high);
        let template = "{} BETWEEN {} AND {} OR {} BETWEEN {} AND {}";
        let template = match operator.as_str() {
            "BETWEENSYMMETRIC" => format!("({template})"),
            "NOTBETWEENSYMMETRIC" => format!("(NOT ({template}))"),
            _ => {
                self.parenthesize_operand(&mut value);
                return Ok(TypedExpr {
                    precedence: Precedence::Special,
                    ..new_boolean(&expr.span)
                });
            }
        };
        for operand in [&mut value, &mut low, &mut high] {
            self.parenthesize(operand);
        }
        let operands = [&value, &low, &high, &value, &high, &low];
        Ok(self.fill(expr.span.clone(), &template, operands).with_boolean_type())
    }

    /// Translates LIKE, ILIKE, SIMILAR TO, `~` and similar operators.
    pub fn translate_match(
        &mut self,
        expr: &Expr,
        text: &Expr,
        pattern: &Expr,
        escape: Option<&Expr>,
    ) -> Result<TypedExpr, SqlError> {
        let words = self.read_operator(text, pattern);
        let operator = words.strip_prefix("NOT").or(words.strip_prefix('!')).unwrap_or(&words);
        let negated = operator.len() < words.len();
        let syntax = match operator {
            "SIMILARTO" => "similar",
            "ILIKE" | "~~*" => "ilike",
            "~" => "match",
            "~*" => "imatch",
            _ => "like",
        };
        let mut left = self.translate_expr(text)?;
        if let Some(right) = find_quantified(pattern) {
            let sign = if negated { format!("not {syntax}") } else { syntax.to_owned() };
            return self.translate_quantified(expr, &mut left, pattern, right, &sign);
        }
        Self::ensure_not_boolean(&left)?;
        let right = self.translate_expr(pattern)?;
        if let Some(escape) = escape {
            let escape = self.translate_expr(escape)?;
            if escape.sql_type != SqlType::Literal("\\".to_owned()) {
                let help = "escape with a backslash, and leave ESCAPE out";
                return Err(SqlError::untranslatable(escape.span, "this ESCAPE character", help));
            }
        }
        check_pattern(&right, syntax)?;
        let span = expr.span.clone();
        // SQLite's LIKE ignores the case of ASCII letters and has no default escape character.
        let is_plain_like = match &right.sql_type {
            SqlType::Literal(pattern) => {
                pattern.is_ascii()
                    && !pattern.contains('\\')
                    && (syntax == "ilike"
                        || syntax == "like" && !pattern.contains(|c: char| c.is_alphabetic()))
            }
            _ => false,
        };
        let (template, precedence) = match (is_plain_like, negated) {
            (true, true) => ("{} NOT LIKE {}".to_owned(), Precedence::Special),
            (true, false) => ("{} LIKE {}".to_owned(), Precedence::Special),
            (false, true) => (format!("NOT suql_{syntax}({{}}, {{}})"), Precedence::Not),
            (false, false) => (format!("suql_{syntax}({{}}, {{}})"), Precedence::Primary),
        };
        if is_plain_like {
            self.parenthesize(&mut left);
        }
        Ok(TypedExpr {
            precedence,
            ..self.fill(span, &template, [&left, &right]).with_boolean_type()
        })
    }

    /// Translates `=`, `<>`, `<`, `<=`, `>` or `>=`.
    pub fn translate_comparison(
        &mut self,
        expr: &Expr,
        sign: &str,
        left: &Expr,
        right: &Expr,
    ) -> Result<TypedExpr, SqlError> {
        let span = expr.span.clone();
        let mut left = self.translate_expr(left)?;
        if let Some(inner) = find_quantified(right) {
            return self.translate_quantified(expr, &mut left, right, inner, sign);
        }
        let mut right = self.translate_expr(right)?;
        let comparison = TypedExpr { precedence: Precedence::Equality, ..new_boolean(&expr.span) };
        if [&left, &right].iter().any(|operand| operand.sql_type == SqlType::ComputedInterval) {
            // A computed interval is compared by its length. A month counts as 30 days.
            self.replace_with_length(&mut left)?;
            self.replace_with_length(&mut right)?;
            self.fill(span, &format!("{{}} {sign} {{}}"), [&left, &right]);
            return Ok(comparison);
        }
        Self::ensure_not_interval(&left)?;
        Self::ensure_not_interval(&right)?;
        self.unify_operands(&mut left, &mut right)?;
        let of_enum = |expr: &TypedExpr| matches!(expr.sql_type, SqlType::Enum(_));
        if (of_enum(&left) || of_enum(&right)) && !["=", "<>"].contains(&sign) {
            let help = "list the values that you mean: IN ('…', '…')";
            return Err(SqlError::untranslatable(span, "the order of an ENUM's values", help));
        }
        if left.sql_type == SqlType::Array || right.sql_type == SqlType::Array {
            let (template, precedence) = match sign {
                "=" => ("suql_same({}, {})", Precedence::Primary),
                "<>" => ("NOT suql_same({}, {})", Precedence::Not),
                _ => {
                    let construct = format!("`{sign}` between arrays");
                    let help = "compare single elements: a[1]";
                    return Err(SqlError::untranslatable(span, &construct, help));
                }
            };
            self.fill(span, template, [&left, &right]);
            return Ok(TypedExpr { precedence, ..comparison });
        }
        self.parenthesize_operand(&mut left);
        self.parenthesize_operand(&mut right);
        Ok(comparison)
    }

    /// Replaces an interval with its length in seconds.
    fn replace_with_length(&mut self, expr: &mut TypedExpr) -> Result<(), SqlError> {
        let interval = match &expr.sql_type {
            SqlType::Literal(text) => Self::parse_interval(text, expr.span.clone())?.sql_type,
            sql_type => sql_type.clone(),
        };
        let SqlType::Interval(parts) = interval else {
            self.wrap(expr, "suql_span_part('length', {})");
            return Ok(());
        };
        let seconds = |unit| match unit {
            "years" => 360.0 * 86_400.0,
            "months" => 30.0 * 86_400.0,
            "days" => 86_400.0,
            "hours" => 3600.0,
            "minutes" => 60.0,
            _ => 1.0,
        };
        let total: f64 = parts.iter().map(|(n, unit)| n * seconds(*unit)).sum();
        self.replace_literal(expr.span.clone(), total.to_string());
        Ok(())
    }

    /// Translates a binary operator other than a comparison.
    pub fn translate_infix(
        &mut self,
        expr: &Expr,
        sign: &str,
        left: &Expr,
        right: &Expr,
    ) -> Result<TypedExpr, SqlError> {
        let mut left = self.translate_expr(left)?;
        let mut right = self.translate_expr(right)?;
        let span = expr.span.clone();
        if matches!(sign, "@>" | "<@" | "&&") {
            self.coerce_to_array(&mut left);
            self.coerce_to_array(&mut right);
        }
        let are_arrays = [&left, &right].iter().any(|p| p.sql_type == SqlType::Array);
        let is_interval = |p: &TypedExpr| matches!(p.sql_type, SqlType::Interval(_));
        match sign {
            "+" | "-" if is_interval(&right) => self.add_interval(&left, &right, sign),
            "+" if is_interval(&left) => self.add_interval(&right, &left, sign),
            "*" if is_interval(&left) => self.multiply_interval(&left, &right),
            "*" if is_interval(&right) => self.multiply_interval(&right, &left),
            "^" => Ok(self.fill(span, "pow({}, {})", [&left, &right])),
            "@>" => {
                Ok(self.fill(span, "suql_contains({}, {})", [&left, &right]).with_boolean_type())
            }
            "<@" => {
                Ok(self.fill(span, "suql_contains({}, {})", [&right, &left]).with_boolean_type())
            }
            "&&" => {
                Ok(self.fill(span, "suql_overlaps({}, {})", [&left, &right]).with_boolean_type())
            }
            "||" if are_arrays => {
                let joined = self.fill(span, "suql_joined({}, {})", [&left, &right]);
                Ok(TypedExpr { sql_type: SqlType::Array, ..joined })
            }
            "#>" | "#>>" => self.translate_json_path(&mut left, &right, sign),
            // The result is always a text.
            "->>" => {
                self.parenthesize(&mut left);
                self.parenthesize(&mut right);
                let template = "CAST(suql_json_text({} -> {}) AS TEXT)";
                let text = self.fill(span, template, [&left, &right]);
                Ok(TypedExpr { sql_type: SqlType::Text, ..text })
            }
            "+" | "-" | "*" | "/" | "%" => self.translate_arithmetic(left, right, sign),
            // In SQLite, || and -> have a higher precedence than arithmetic and signs.
            _ => {
                for operand in [&mut left, &mut right] {
                    if sign == "||" && operand.sql_type == SqlType::Boolean {
                        self.wrap(operand, "suql_said({})");
                    } else {
                        self.parenthesize(operand);
                    }
                }
                let sql_type = if sign == "||" { SqlType::Text } else { SqlType::Unknown };
                Ok(TypedExpr { precedence: Precedence::Bits, ..TypedExpr::new(span, sql_type) })
            }
        }
    }

    fn translate_arithmetic(
        &mut self,
        mut left: TypedExpr,
        mut right: TypedExpr,
        sign: &str,
    ) -> Result<TypedExpr, SqlError> {
        Self::ensure_value(&left)?;
        Self::ensure_value(&right)?;
        let span = join_spans(&left, &right);
        let types = (left.sql_type.clone(), right.sql_type.clone());
        for (operand, other) in [(&mut right, &types.0), (&mut left, &types.1)] {
            if matches!(operand.sql_type, SqlType::Literal(_)) && other.is_number() {
                self.convert_literal(operand, other)?;
            }
        }
        if let Some(days) = self.translate_date_arithmetic(&left, &right, sign)? {
            return Ok(days);
        }
        let is_fractional =
            |p: &TypedExpr| [SqlType::Numeric, SqlType::Float].contains(&p.sql_type);
        let is_fractional = is_fractional(&left) || is_fractional(&right);
        let sql_type = match left.sql_type.unify(&right.sql_type) {
            sql_type if sql_type.is_number() => sql_type,
            _ if is_fractional => SqlType::Numeric,
            _ => SqlType::Integer,
        };
        if sign == "%" && is_fractional {
            return Ok(TypedExpr { sql_type, ..self.fill(span, "mod({}, {})", [&left, &right]) });
        }
        let precedence =
            if matches!(sign, "+" | "-") { Precedence::Sum } else { Precedence::Product };
        let product = TypedExpr { precedence, ..TypedExpr::new(span.clone(), sql_type) };
        if sign == "/" && is_fractional {
            // `SQLite` stores a whole NUMERIC as an integer, and integer division truncates.
            self.parenthesize(&mut right);
            self.fill(span, "CAST({} AS REAL) / {}", [&left, &right]);
            return Ok(product);
        }
        self.parenthesize_operand(&mut left);
        self.parenthesize_operand(&mut right);
        Ok(product)
    }

    /// Translates date arithmetic: a date plus or minus days, the days between two dates, or the
    /// interval between two timestamps. Returns `None` if no operand is a date or time.
    ///
    /// # Errors
    /// Returns [`SqlError`] for an invalid combination, such as a timestamp plus a number.
    fn translate_date_arithmetic(
        &mut self,
        left: &TypedExpr,
        right: &TypedExpr,
        sign: &str,
    ) -> Result<Option<TypedExpr>, SqlError> {
        use SqlType::{ComputedInterval, Date, Integer, Timestamp, Unknown};
        let has_type = |expr: &TypedExpr, sql_type: &SqlType| expr.sql_type == *sql_type;
        let span = join_spans(left, right);
        let operands = [left, right];
        if sign == "-" && operands.iter().any(|p| has_type(p, &Timestamp)) {
            let other = operands
                .iter()
                .find(|p| !has_type(p, &Timestamp))
                .map_or(&Timestamp, |p| &p.sql_type);
            if !other.is_number() && *other != ComputedInterval {
                let expr = self.fill(span, "suql_between({}, {})", [right, left]);
                return Ok(Some(TypedExpr { sql_type: ComputedInterval, ..expr }));
            }
        }
        let (first, second) = if has_type(right, &Date) { (right, left) } else { (left, right) };
        if sign == "+" && has_type(first, &Date) && has_type(second, &SqlType::Time) {
            let expr = self.fill(span, "suql_timestamp({} || ' ' || {})", [first, second]);
            return Ok(Some(TypedExpr { sql_type: Timestamp, ..expr }));
        }
        if operands
            .iter()
            .any(|p| matches!(p.sql_type, Timestamp | SqlType::Time | ComputedInterval))
        {
            let help = "add or subtract an interval: d + INTERVAL '1 day'";
            return Err(SqlError::untranslatable(
                span,
                &format!("this `{sign}` with a time"),
                help,
            ));
        }
        let is_number = |expr: &TypedExpr| {
            expr.sql_type.is_number()
                || self.text(&expr.span).trim_start_matches('-').bytes().all(|b| b.is_ascii_digit())
        };
        let (template, date, amount) = match sign {
            "+" if has_type(left, &Date) && !has_type(right, &Date) => {
                ("suql_days_after({}, {})", left, right)
            }
            "+" if has_type(right, &Date) && !has_type(left, &Date) => {
                ("suql_days_after({}, {})", right, left)
            }
            "-" if operands.iter().any(|p| has_type(p, &Date)) => {
                ("suql_days_before({}, {})", left, right)
            }
            _ if operands.iter().any(|p| has_type(p, &Date)) => {
                let help = "add or subtract a number of days: d + 7";
                let construct = format!("this `{sign}` with a date");
                return Err(SqlError::untranslatable(span, &construct, help));
            }
            _ => return Ok(None),
        };
        let sql_type = match () {
            () if sign == "+" || is_number(amount) => Date,
            () if has_type(amount, &Date) => Integer,
            () => Unknown,
        };
        Ok(Some(TypedExpr { sql_type, ..self.fill(span, template, [date, amount]) }))
    }

    /// Fails for a boolean where a text or an array element is required.
    pub fn ensure_not_boolean(expr: &TypedExpr) -> Result<(), SqlError> {
        if expr.sql_type != SqlType::Boolean {
            return Ok(());
        }
        let error = SqlError::new(expr.span.clone(), "this is a boolean, not a text", "here");
        Err(error.with_help("compare it with TRUE or FALSE"))
    }

    /// Multiplies an interval by a literal number.
    fn multiply_interval(
        &self,
        interval: &TypedExpr,
        factor: &TypedExpr,
    ) -> Result<TypedExpr, SqlError> {
        let span = join_spans(interval, factor);
        let number = self.text(&factor.span).trim().parse::<f64>().ok();
        let (SqlType::Interval(parts), Some(times)) = (&interval.sql_type, number) else {
            let help = "write the interval out: d + INTERVAL '3 days'";
            let construct = "an interval times a computed number";
            return Err(SqlError::untranslatable(span, construct, help));
        };
        let parts = parts.iter().map(|(n, unit)| (n * times, *unit)).collect();
        let precedence = Precedence::Bits;
        Ok(TypedExpr { precedence, ..TypedExpr::new(span, SqlType::Interval(parts)) })
    }

    /// Adds an interval to a date or time.
    fn add_interval(
        &mut self,
        left: &TypedExpr,
        right: &TypedExpr,
        sign: &str,
    ) -> Result<TypedExpr, SqlError> {
        let span = join_spans(left, right);
        let SqlType::Interval(parts) = &right.sql_type else {
            let help = "write a literal, such as INTERVAL '3 days'";
            return Err(SqlError::untranslatable(span, "a computed interval", help));
        };
        Self::ensure_value(left)?;
        let parts: Vec<String> = parts
            .iter()
            .flat_map(|(n, unit)| {
                let n = if sign == "-" { -n } else { *n };
                // If the resulting month has fewer days, the day becomes the month's last one, as
                // in PostgreSQL.
                let clamps_to_month_end = ["months", "years"].contains(unit);
                let floor = clamps_to_month_end.then(|| quote_text("floor"));
                std::iter::once(quote_text(&format!("{n:+} {unit}"))).chain(floor)
            })
            .collect();
        // A time of day wraps around at midnight.
        let (function, sql_type) = match left.sql_type {
            SqlType::Time => ("time", SqlType::Time),
            _ => ("datetime", SqlType::Timestamp),
        };
        let template = format!("{function}({{}}, {})", parts.join(", "));
        Ok(TypedExpr { sql_type, ..self.fill(span, &template, [left]) })
    }

    /// Translates the JSON operators `#>` and `#>>`.
    fn translate_json_path(
        &mut self,
        left: &mut TypedExpr,
        path: &TypedExpr,
        sign: &str,
    ) -> Result<TypedExpr, SqlError> {
        let span = join_spans(left, path);
        let Some(operators) = convert_json_path(path) else {
            let help = "use json_extract(x, '$.path')";
            let construct = format!("`{sign}` with a computed path");
            return Err(SqlError::untranslatable(span, &construct, help));
        };
        self.parenthesize(left);
        let (before, after, sql_type) = match sign {
            "#>" => ("(", ")", SqlType::Unknown),
            _ => ("CAST(suql_json_text(", ") AS TEXT)", SqlType::Text),
        };
        let after = format!("{operators}{after}");
        self.replace(
            span.clone(),
            EditText::concat([before.into(), left.span.clone().into(), after.into()]),
        );
        Ok(TypedExpr::new(span, sql_type))
    }
}

/// Checks a literal pattern, so that an invalid pattern is reported before any request is made.
///
/// # Errors
/// Returns [`SqlError`] if the pattern is invalid.
pub(super) fn check_pattern(pattern: &TypedExpr, syntax: &str) -> Result<(), SqlError> {
    let SqlType::Literal(text) = &pattern.sql_type else { return Ok(()) };
    compile_pattern(text, find_pattern_syntax(syntax), false).map(drop).map_err(|error| {
        SqlError::new(pattern.span.clone(), error.to_string(), "this pattern").with_help(
            "correct the pattern; to match a special character literally, put `\\` before it",
        )
    })
}

/// Converts a JSON path literal `'{a,0}'` to `->` operators. Returns `None` for a computed path.
fn convert_json_path(path: &TypedExpr) -> Option<String> {
    let SqlType::Literal(text) = &path.sql_type else { return None };
    let path: Vec<serde_json::Value> =
        serde_json::from_str(&super::casts::parse_array_literal(text)?).ok()?;
    let step = |step: &serde_json::Value| {
        let key = step.as_str().map_or_else(|| step.to_string(), str::to_owned);
        match key.parse::<i64>() {
            Ok(at) => format!(" -> {at}"),
            Err(_) => format!(" -> {}", quote_text(&key)),
        }
    };
    Some(path.iter().map(step).collect())
}
