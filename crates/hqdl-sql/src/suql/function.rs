//! Translates function calls.

use std::ops::Range;

use super::declared_type::find_common_type;
use super::operator::check_pattern;
use super::translator::{
    PendingKind, SqlType, Translator, TypedExpr, UnnestedArray, fill_template,
};
use crate::blendsql::SqlError;
use crate::blendsql::tree::{Expr, ExprKind, ExprOperator};
use crate::translated::EditText;
use hqdl_values::sql::quote_text;

/// `PostgreSQL`'s functions: name, number of arguments, and template of the equivalent in `SQLite`.
const FUNCTIONS: [(&str, usize, &str); 90] = [
    ("bit_length", 1, "(octet_length({}) * 8)"),
    ("btrim", 2, "trim({})"),
    ("cbrt", 1, "suql_cbrt({})"),
    ("div", 2, "suql_div({})"),
    ("gcd", 2, "suql_gcd({})"),
    ("json_build_array", ANY_COUNT, "json_array({})"),
    ("json_build_object", ANY_COUNT, "json_object({})"),
    ("json_typeof", 1, "suql_json_typeof({})"),
    ("jsonb_build_array", ANY_COUNT, "json_array({})"),
    ("jsonb_build_object", ANY_COUNT, "json_object({})"),
    ("jsonb_typeof", 1, "suql_json_typeof({})"),
    ("lcm", 2, "suql_lcm({})"),
    ("make_date", 3, "suql_make_date({})"),
    ("mod", 2, "suql_mod({})"),
    ("translate", 3, "suql_translate({})"),
    ("trunc", 1, "trunc({})"),
    ("trunc", 2, "suql_cut({})"),
    ("array_append", 2, "suql_append({})"),
    ("array_cat", 2, "suql_joined({})"),
    ("array_position", 2, "suql_position({})"),
    ("array_prepend", 2, "suql_prepend({})"),
    ("array_remove", 2, "suql_remove({})"),
    ("ascii", 1, "suql_ascii({})"),
    ("chr", 1, "char({})"),
    ("lpad", 2, "suql_lpad({})"),
    ("lpad", 3, "suql_lpad({})"),
    ("random", 0, "(random() / 18446744073709551616.0 + 0.5)"),
    ("regexp_count", 2, "suql_regexp_count({})"),
    ("regexp_count", 3, "suql_regexp_count({})"),
    ("regexp_count", 4, "suql_regexp_count({})"),
    ("regexp_like", 3, "suql_regexp_like({})"),
    ("regexp_split_to_array", 2, "suql_regexp_split({})"),
    ("regexp_substr", 2, "suql_regexp_substr({})"),
    ("regexp_substr", 3, "suql_regexp_substr({})"),
    ("regexp_substr", 4, "suql_regexp_substr({})"),
    ("regexp_substr", 5, "suql_regexp_substr({})"),
    ("repeat", 2, "suql_repeat({})"),
    ("reverse", 1, "suql_reverse({})"),
    ("rpad", 2, "suql_rpad({})"),
    ("rpad", 3, "suql_rpad({})"),
    ("string_to_array", 2, "suql_split({})"),
    ("string_to_array", 3, "suql_split({})"),
    ("age", 1, "suql_age({}, date('now'))"),
    ("age", 2, "suql_age({1}, {})"),
    ("array_agg", 1, "json_group_array({})"),
    ("array_length", 2, "nullif(json_array_length(suql_array({})), 0)"),
    ("array_to_string", 2, "suql_array_to_string({})"),
    ("array_to_string", 3, "suql_array_to_string({})"),
    ("bool_and", 1, "min({})"),
    ("bool_or", 1, "max({})"),
    // Asks whether a document supports a claim. The score variant returns the same truth value as a
    // number.
    ("boolean_answer", 2, "(answer({}, {1}) = 'Yes')"),
    ("boolean_answer_score", 2, "((answer({}, {1}) = 'Yes') * 1.0)"),
    ("btrim", 1, "trim({})"),
    ("cardinality", 1, "json_array_length(suql_array({}))"),
    ("char_length", 1, "length({})"),
    ("character_length", 1, "length({})"),
    ("every", 1, "min({})"),
    ("greatest", ANY_COUNT, "suql_greatest({})"),
    ("initcap", 1, "suql_initcap({})"),
    ("json_agg", 1, "json_group_array({})"),
    ("json_array_length", 1, "json_array_length(suql_array({}))"),
    ("jsonb_agg", 1, "json_group_array({})"),
    ("jsonb_array_length", 1, "json_array_length(suql_array({}))"),
    ("least", ANY_COUNT, "suql_least({})"),
    ("left", 2, "suql_left({})"),
    ("lower", 1, "suql_lower({})"),
    ("now", 0, "datetime('now')"),
    ("power", 2, "pow({}, {1})"),
    ("regexp_like", 2, "suql_match({}, {1})"),
    ("regexp_match", 2, "suql_groups({}, {1})"),
    ("regexp_replace", 3, "suql_replace({})"),
    ("regexp_replace", 4, "suql_replace({})"),
    ("regexp_replace", 5, "suql_replace({})"),
    ("regexp_replace", 6, "suql_replace({})"),
    ("round", 1, "round({})"),
    ("round", 2, "suql_round({})"),
    ("right", 2, "suql_right({})"),
    ("split_part", 3, "suql_split_part({})"),
    ("starts_with", 2, "(substr({}, 1, length({1})) = {1})"),
    ("strpos", 2, "instr({}, {1})"),
    // Only a model knows the distance between two named places.
    ("st_distance_sphere", 2, DISTANCE_CALL),
    ("st_distancesphere", 2, DISTANCE_CALL),
    ("st_distance", 2, DISTANCE_CALL),
    ("to_char", 2, "suql_to_char({}, {1})"),
    ("substr", 2, "suql_substr({})"),
    ("substr", 3, "suql_substr({})"),
    ("to_date", 2, "date(suql_by_format({}, {1}))"),
    ("to_timestamp", 1, "datetime({}, 'unixepoch')"),
    ("to_timestamp", 2, "suql_by_format({}, {1})"),
    ("upper", 1, "suql_upper({})"),
];

const TEXT_FUNCTIONS: [&str; 29] = [
    "format",
    "string_agg",
    "substr",
    "trim",
    "json_typeof",
    "jsonb_typeof",
    "translate",
    "chr",
    "lpad",
    "overlay",
    "regexp_substr",
    "repeat",
    "reverse",
    "rpad",
    "array_to_string",
    "btrim",
    "concat",
    "concat_ws",
    "initcap",
    "left",
    "lower",
    "ltrim",
    "regexp_replace",
    "replace",
    "right",
    "rtrim",
    "split_part",
    "to_char",
    "upper",
];

const ARRAY_FUNCTIONS: [&str; 8] = [
    "array_append",
    "array_cat",
    "array_prepend",
    "array_remove",
    "regexp_split_to_array",
    "string_to_array",
    "array_agg",
    "regexp_match",
];

/// Functions whose result has the type of their first argument.
const FIRST_ARGUMENT_FUNCTIONS: [&str; 10] =
    ["abs", "first_value", "lag", "last_value", "lead", "max", "min", "nth_value", "nullif", "sum"];
/// Functions that return one of their arguments.
const COMMON_TYPE_FUNCTIONS: [&str; 4] = ["coalesce", "greatest", "ifnull", "least"];

const BOOLEAN_FUNCTIONS: [&str; 6] =
    ["bool_and", "bool_or", "boolean_answer", "every", "regexp_like", "starts_with"];

/// Statistical aggregates: mean, standard deviation and variance.
const STATISTICS_FUNCTIONS: [&str; 7] =
    ["avg", "stddev", "stddev_pop", "stddev_samp", "var_pop", "var_samp", "variance"];
/// Scalar, aggregate and window functions that return integers.
const INTEGER_FUNCTIONS: [&str; 20] = [
    "bit_length",
    "gcd",
    "lcm",
    "array_position",
    "ascii",
    "regexp_count",
    "array_length",
    "cardinality",
    "char_length",
    "character_length",
    "count",
    "dense_rank",
    "json_array_length",
    "jsonb_array_length",
    "length",
    "ntile",
    "octet_length",
    "rank",
    "row_number",
    "strpos",
];

/// Argument count of a function that accepts any number of arguments.
const ANY_COUNT: usize = usize::MAX;

const DISTANCE_CALL: &str = "{{LLMMap('how many metres is it from {} to {}, as the crow flies?', {}, {1}, \
                        return_type='float')}}";

/// Set-returning functions, each with the SQL template of an array that contains its rows.
const SET_FUNCTIONS: [(&str, &str); 9] = [
    ("unnest", "{}"),
    ("generate_series", "suql_series({})"),
    ("json_array_elements", "{}"),
    ("json_array_elements_text", "{}"),
    ("jsonb_array_elements", "{}"),
    ("jsonb_array_elements_text", "{}"),
    ("regexp_matches", "suql_regexp_matches({})"),
    ("regexp_split_to_table", "suql_regexp_split({})"),
    ("string_to_table", "suql_split({})"),
];

/// Returns true if the dialect provides a function, even if `SQLite` does not have it. `name` is in
/// lower case.
#[must_use]
pub fn has_function(name: &str) -> bool {
    FUNCTIONS.iter().any(|(known, ..)| *known == name)
        || SET_FUNCTIONS.iter().any(|(known, _)| *known == name)
        || [&TEXT_FUNCTIONS[..], &INTEGER_FUNCTIONS, &ARRAY_FUNCTIONS, &BOOLEAN_FUNCTIONS]
            .iter()
            .any(|names| names.contains(&name))
        || ["any", "date_trunc"].contains(&name)
}

/// Returns true for a function that returns rows. `name` is in lower case.
pub(super) fn is_set_function(name: &str) -> bool {
    SET_FUNCTIONS.iter().any(|(rows, _)| *rows == name)
}

/// A function call without its FILTER and OVER.
pub(super) struct SuqlCall<'e> {
    /// Name in lower case.
    pub name: &'e str,
    /// Byte range from the name, without its schema, to the `)`.
    pub span: Range<usize>,
    /// Start of the `(`.
    pub paren: usize,
    /// Translated arguments.
    pub args: Vec<TypedExpr>,
    /// Whether there is neither DISTINCT nor ALL nor ORDER BY.
    is_plain: bool,
    is_distinct: bool,
}

impl Translator<'_> {
    /// Translates a function call with its FILTER and OVER.
    pub fn translate_function(&mut self, expr: &Expr, name: &str) -> Result<TypedExpr, SqlError> {
        let ExprKind::Function { args, filter, window, .. } = &expr.kind else {
            return Ok(TypedExpr::new(expr.span.clone(), SqlType::Unknown));
        };
        let start = self.find_function_start(&expr.span);
        if expr.span.start < start {
            self.replace(expr.span.start..start, "");
        }
        if is_set_function(name) {
            let args = self.translate_exprs(args)?;
            return self.translate_set_function(name, &args, expr.span.clone());
        }
        let call = self.read_call(name, args, start)?;
        let typed = match self.translate_special_syntax(&call)? {
            Some(typed) => typed,
            None => self.translate_call(call, args)?,
        };
        if let Some(filter) = filter {
            self.translate_expr(filter)?;
        }
        for expr in window.iter().flat_map(|window| window.exprs()) {
            self.translate_sort_key(expr)?;
        }
        Ok(TypedExpr { span: expr.span.clone(), ..typed })
    }

    /// Returns the start of a function's name without the schema `public` or `pg_catalog`.
    fn find_function_start(&self, span: &Range<usize>) -> usize {
        match self.tokens_in(span) {
            [schema, dot, name, ..] if dot.is_symbol(b'.') => {
                let schema = schema.unquoted_text(self.sql).to_lowercase();
                let is_default = ["public", "pg_catalog"].contains(&schema.as_str());
                if is_default { name.start } else { span.start }
            }
            _ => span.start,
        }
    }

    /// Returns the end of the call that begins at `start` and has this last argument.
    pub fn find_call_end(&self, start: usize, last: Option<&TypedExpr>) -> usize {
        let after = last.map_or(start, |last| last.span.end);
        let first = self.tokens.partition_point(|token| token.start < after);
        let close = self.tokens[first..].iter().find(|token| token.is_symbol(b')'));
        close.map_or(after, |token| token.end)
    }

    /// Translates the arguments of a function and the terms of their ORDER BY.
    fn read_call<'e>(
        &mut self,
        name: &'e str,
        args: &[Expr],
        start: usize,
    ) -> Result<SuqlCall<'e>, SqlError> {
        let after = self.tokens.partition_point(|token| token.start < start);
        let mut tokens = self.tokens[after..].iter();
        let paren = tokens.find(|token| token.is_symbol(b'(')).map_or(start, |token| token.start);
        let first = tokens.next();
        let is_first = |word: &str| first.is_some_and(|token| token.is_word(self.sql, word));
        let (is_distinct, has_all) = (is_first("DISTINCT"), is_first("ALL"));
        let begins_order = |n: &usize| {
            let before = n.checked_sub(1).map_or(paren, |before| args[before].span.end);
            self.has_word(before..args[*n].span.start, "ORDER")
        };
        let count = (0..args.len()).find(begins_order).unwrap_or(args.len());
        let (values, keys) = args.split_at(count);
        let typed = self.translate_exprs(values)?;
        typed.iter().try_for_each(Self::ensure_value)?;
        let mut last = typed.last().cloned();
        for key in keys {
            last = Some(self.translate_sort_key(key)?);
        }
        let span = start..self.find_call_end(paren, last.as_ref());
        let is_plain = !is_distinct && !has_all && keys.is_empty();
        Ok(SuqlCall { name, span, paren, args: typed, is_plain, is_distinct })
    }

    fn translate_call(
        &mut self,
        mut call: SuqlCall<'_>,
        args: &[Expr],
    ) -> Result<TypedExpr, SqlError> {
        let (name, span) = (call.name, call.span.clone());
        let mut sql_type = self.infer_result_type(name, &call.args);
        if sql_type == SqlType::ComputedInterval
            && FIRST_ARGUMENT_FUNCTIONS.contains(&name)
            && name != "nullif"
        {
            let help = "compute with seconds instead: extract(epoch FROM …)";
            return Err(SqlError::untranslatable(span, &format!("`{name}` of intervals"), help));
        }
        if COMMON_TYPE_FUNCTIONS.contains(&name) || name == "nullif" {
            sql_type = self.coerce_to_common_type(call.args.iter_mut().collect())?;
        }
        if let Some(typed) = self.translate_rewritten_call(&call)? {
            return Ok(typed);
        }
        if let (true, [_, pattern, ..]) = (name.starts_with("regexp_"), call.args.as_slice()) {
            check_pattern(pattern, "match")?;
            self.check_regex_flags(name, &call.args)?;
        }
        if let (
            "count",
            [Expr { kind: ExprKind::Operation(ExprOperator::TableRow(table), _), span }],
        ) = (name, args)
        {
            let kind = PendingKind::CountedRows(table.clone(), !call.is_plain);
            self.add_pending_name(span.clone(), kind);
        }
        if let ("round", [of]) = (name, call.args.as_mut_slice()) {
            self.round_half_even(of);
        }
        if let Some((_, count, template)) = FUNCTIONS
            .iter()
            .find(|(n, count, _)| *n == name && [call.args.len(), ANY_COUNT].contains(count))
        {
            if !call.is_plain && (template.matches('(').count() > 1 || *count != 1) {
                let construct = format!("`{name}` with DISTINCT or ORDER BY in its arguments");
                return Err(SqlError::untranslatable(span, &construct, "leave them out"));
            }
            self.apply_template(template, &call);
            let is_question = template.starts_with("{{");
            return Ok(TypedExpr::new(span, if is_question { SqlType::Call } else { sql_type }));
        }
        let written = self.text(&(span.start..call.paren)).trim_end();
        if let Some(error) =
            Self::argument_count_error(name, call.args.len(), written, span.clone())
        {
            return Err(error);
        }
        if let ("date_part" | "date_trunc", [part, of]) = (name, call.args.as_slice()) {
            let SqlType::Literal(part) = &part.sql_type else {
                let construct = format!("`{name}` with a computed part");
                let help = "write the part as a text, such as 'year'";
                return Err(SqlError::untranslatable(span, &construct, help));
            };
            return self.translate_date_part(name, part, of, span);
        }
        if name.starts_with("concat") {
            // String concatenation functions abbreviate a boolean to `t` or `f`.
            let booleans = call.args.iter_mut().filter(|arg| arg.sql_type == SqlType::Boolean);
            booleans.for_each(|arg| self.wrap(arg, "substr(suql_said({}), 1, 1)"));
        }
        if matches!(name, "answer" | "summary") {
            // Write the name without quotes, in case it has any.
            self.replace(span.start..call.paren, name);
            sql_type = SqlType::Call;
        }
        Ok(TypedExpr::new(span, sql_type))
    }

    /// Translates a call whose arguments decide its translation. Returns `None` for any other call.
    fn translate_rewritten_call(
        &mut self,
        call: &SuqlCall<'_>,
    ) -> Result<Option<TypedExpr>, SqlError> {
        let span = call.span.clone();
        match (call.name, call.args.as_slice()) {
            ("is_relevant", [document, question]) => {
                let SqlType::Literal(question) = &question.sql_type else {
                    let construct = "`is_relevant` with a computed question";
                    let help = "write the question as '…'";
                    return Err(SqlError::untranslatable(span, construct, help));
                };
                let question = quote_text(&format!("is this document relevant to: {question}"));
                let template = format!("(answer({{}}, {question}) = 'Yes')");
                Ok(Some(self.fill(span, &template, [document]).with_boolean_type()))
            }
            // PostgreSQL's implementation sorts the values.
            ("string_agg", [of, between]) if call.is_distinct => {
                let template = "suql_array_to_string(nullif(json_group_array(DISTINCT {} ORDER BY {}) \
                     FILTER (WHERE {} IS NOT NULL), '[]'), {})";
                let text = self.fill(span, template, [of, of, of, between]);
                Ok(Some(TypedExpr { sql_type: SqlType::Text, ..text }))
            }
            _ => Ok(None),
        }
    }

    /// Rounds a binary floating-point expression half to even.
    pub fn round_half_even(&mut self, expr: &mut TypedExpr) {
        if expr.sql_type == SqlType::Float {
            self.wrap(expr, "suql_even({})");
        }
    }

    /// Checks the literal flags and start position of a regular expression function, so that
    /// invalid arguments are reported before any request is made.
    fn check_regex_flags(&self, name: &str, args: &[TypedExpr]) -> Result<(), SqlError> {
        let first = if name == "regexp_replace" { 3 } else { 2 };
        for (n, arg) in args.iter().enumerate().skip(first) {
            let error = |message: String| Err(SqlError::new(arg.span.clone(), message, "here"));
            if let SqlType::Literal(flags) = &arg.sql_type
                && let Some(flag) = flags.chars().find(|c| !"gi".contains(*c))
            {
                return error(format!("{name} supports the flags g and i, not `{flag}`"));
            }
            let source_text = self.text(&arg.span);
            if n == first && source_text.trim().parse::<i64>().is_ok_and(|start| start < 1) {
                return error(format!("{name} counts characters from 1"));
            }
        }
        Ok(())
    }

    /// Returns the result type of a function of these arguments, if it is known.
    fn infer_result_type(&self, name: &str, values: &[TypedExpr]) -> SqlType {
        let first_type = || find_common_type(self.sql, values.first());
        match name {
            "age" => SqlType::ComputedInterval,
            "now" | "to_timestamp" => SqlType::Timestamp,
            "make_date" | "to_date" => SqlType::Date,
            "round" | "trunc" if values.len() == 2 => SqlType::Numeric,
            "ceil" | "ceiling" | "floor" | "round" | "sign" | "trunc" => match first_type() {
                SqlType::Integer => SqlType::Float,
                of => of,
            },
            "cbrt" | "exp" | "ln" | "log" | "power" | "sqrt" => {
                let of = find_common_type(self.sql, values);
                if of == SqlType::Numeric { of } else { SqlType::Float }
            }
            "div" | "mod" => find_common_type(self.sql, values),
            "random" => SqlType::Float,
            _ if STATISTICS_FUNCTIONS.contains(&name) => match first_type() {
                SqlType::Float => SqlType::Float,
                _ => SqlType::Numeric,
            },
            _ if BOOLEAN_FUNCTIONS.contains(&name) => SqlType::Boolean,
            _ if INTEGER_FUNCTIONS.contains(&name) => SqlType::Integer,
            _ if TEXT_FUNCTIONS.contains(&name) => SqlType::Text,
            _ if ARRAY_FUNCTIONS.contains(&name) => SqlType::Array,
            "sum" | "abs" if first_type() == SqlType::Unknown => SqlType::Integer,
            _ if FIRST_ARGUMENT_FUNCTIONS.contains(&name) => first_type(),
            _ => SqlType::Unknown,
        }
    }

    /// Returns an error if a `PostgreSQL` function does not accept this number of arguments.
    /// Returns `None` for a function that `SQLite` has under the same name.
    fn argument_count_error(
        name: &str,
        arg_count: usize,
        name_text: &str,
        span: Range<usize>,
    ) -> Option<SqlError> {
        const SQLITE: [&str; 2] = ["json_array_length", "power"];
        let mut counts: Vec<usize> =
            FUNCTIONS.iter().filter(|(n, ..)| *n == name).map(|(_, count, _)| *count).collect();
        if name == "is_relevant" {
            counts.push(2);
        }
        if counts.is_empty() || SQLITE.contains(&name) {
            return None;
        }
        let expected = match (counts.first(), counts.last()) {
            (Some(min), Some(max)) if counts.len() > 2 => format!("{min} to {max}"),
            _ => counts.iter().map(ToString::to_string).collect::<Vec<_>>().join(" or "),
        };
        let noun = if expected == "1" { "value" } else { "values" };
        let message =
            format!("`{name_text}` takes {expected} {noun}, but the call has {arg_count}");
        Some(SqlError::new(span, message, "this call"))
    }

    /// Translates a function call with a template.
    fn apply_template(&mut self, template: &str, call: &SuqlCall<'_>) {
        // An aggregate keeps the DISTINCT and ORDER BY around its argument.
        if let Some(name) = template.strip_suffix("({})") {
            self.replace(call.span.start..call.paren, name);
            return;
        }
        let is_question = template.starts_with("{{");
        let (mut parts, mut rest) = (Vec::new(), template);
        let mut quoted = false;
        while let Some(at) = rest.find(['{', '\'']) {
            let (before, after) = rest.split_at(at);
            let (arg, consumed) = match after {
                a if a.starts_with('\'') => {
                    quoted = !quoted;
                    (None, 1)
                }
                a if a.starts_with("{}") && !(is_question && quoted) => (call.args.first(), 2),
                a if a.starts_with("{1}") => (call.args.get(1), 3),
                a if a.starts_with("{{") || a.starts_with("{}") => (None, 2),
                _ => (None, 1),
            };
            match arg {
                Some(arg) => parts.extend([before.into(), arg.span.clone().into()]),
                None => parts.push(rest[..at + consumed].into()),
            }
            rest = &after[consumed..];
        }
        parts.push(rest.into());
        self.replace(call.span.clone(), EditText::join(parts, ""));
    }

    /// Translates a set-returning function in the result columns.
    fn translate_set_function(
        &mut self,
        name: &str,
        args: &[TypedExpr],
        span: Range<usize>,
    ) -> Result<TypedExpr, SqlError> {
        let Some(array) = self.build_set_function_array(name, args, &span)? else {
            return Ok(TypedExpr::new(span, SqlType::Unknown));
        };
        let text = self.text(&array.0);
        let arrays = |select: &'_ super::translator::SuqlSelect| -> Vec<(String, bool)> {
            let arrays = select.unnested.iter().filter_map(|u| Some((u, u.array.as_ref()?)));
            arrays.map(|(u, (span, _))| (u.alias.clone(), self.text(span) == text)).collect()
        };
        let arrays = self.selects.last().map(arrays).unwrap_or_default();
        let alias = match arrays.iter().find(|(_, is_same)| *is_same) {
            Some((alias, _)) => alias.clone(),
            None if !self.may_unnest => {
                let help = "move it to FROM or to the columns of SELECT";
                let construct = format!("`{name}` in this place");
                return Err(SqlError::untranslatable(span, &construct, help));
            }
            None if !arrays.is_empty() => {
                let construct = "the elements of two arrays in one SELECT";
                return Err(SqlError::untranslatable(
                    span,
                    construct,
                    "unnest one of them in FROM",
                ));
            }
            None => {
                let alias = self.new_alias();
                if let Some(select) = self.selects.last_mut() {
                    let (alias, names, array) = (alias.clone(), Vec::new(), Some(array));
                    select.unnested.push(UnnestedArray { alias, names, array });
                }
                alias
            }
        };
        self.replace(span.clone(), format!("{alias}.value"));
        Ok(TypedExpr::new(span, SqlType::Unknown))
    }

    /// Returns the array with the rows of a set-returning function, and its byte range. Returns
    /// `None` for any other function.
    ///
    /// # Errors
    /// Returns [`SqlError`] if `unnest` does not have exactly one argument.
    pub fn build_set_function_array(
        &mut self,
        name: &str,
        args: &[TypedExpr],
        span: &Range<usize>,
    ) -> Result<Option<(Range<usize>, EditText)>, SqlError> {
        let Some((_, template)) = SET_FUNCTIONS.iter().find(|(rows, _)| *rows == name) else {
            return Ok(None);
        };
        if *template == "{}" {
            let [only] = args else {
                let help = "write one `unnest` for each array";
                let construct = "`unnest` of several arrays";
                return Err(SqlError::untranslatable(span.clone(), construct, help));
            };
            return Ok(Some((only.span.clone(), only.span.clone().into())));
        }
        for arg in args {
            // The step of a date series is an interval, so pass it as text.
            if let SqlType::Interval(parts) = &arg.sql_type {
                let parts: Vec<String> =
                    parts.iter().map(|(n, unit)| format!("{n} {unit}")).collect();
                self.replace(arg.span.clone(), quote_text(&parts.join(" ")));
            }
        }
        let template = template.replace("{}", &vec!["{}"; args.len()].join(", "));
        let operands = args.iter().map(|arg| arg.span.clone().into());
        Ok(Some((span.clone(), fill_template(&template, operands))))
    }
}
