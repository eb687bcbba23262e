//! Parser of function calls.

use super::declared_type::find_common_type;
use super::operator::check_pattern;
use super::parser::{Parser, SqlType, TypedSql, join_exprs, translation_error};
use super::text::SourceFragment;
use crate::blendsql::SqlError;
use crate::blendsql::lexer::{Token, TokenKind};

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

/// Contents of the parentheses of a function call.
struct ParsedArguments {
    /// Arguments, followed by the ORDER BY terms.
    exprs: Vec<TypedSql>,
    /// Number of arguments.
    count: usize,
    /// Whether there is neither DISTINCT nor ALL nor ORDER BY.
    is_plain: bool,
    is_distinct: bool,
}

impl Parser<'_> {
    /// Parses a function call, starting at its opening parenthesis.
    pub fn parse_function(&mut self, first: Token, names: &[Token]) -> Result<TypedSql, SqlError> {
        let start = first.start;
        let name = match names {
            [one] => one.unquoted_text(self.sql).to_lowercase(),
            [.., last] => last.unquoted_text(self.sql).to_lowercase(),
            [] => String::new(),
        };
        if let [schema, last] = names
            && ["public", "pg_catalog"]
                .contains(&schema.unquoted_text(self.sql).to_lowercase().as_str())
        {
            let expr = self.parse_function(*last, std::slice::from_ref(last))?;
            return Ok(TypedSql { span: start..expr.span.end, ..expr });
        }
        if SET_FUNCTIONS.iter().any(|(rows, _)| *rows == name) {
            return self.parse_set_function(first, &name);
        }
        let open = self.position;
        self.position += 1;
        let ParsedArguments { mut exprs, count: arg_count, is_plain, is_distinct } =
            self.parse_arguments()?;
        let end = self.expect_symbol(b')')?;
        let is_question = matches!(name.as_str(), "answer" | "summary") && names.len() == 1;
        let mut sql_type = self.infer_result_type(&name, &exprs, arg_count);
        if sql_type == SqlType::ComputedInterval
            && FIRST_ARGUMENT_FUNCTIONS.contains(&name.as_str())
            && name != "nullif"
        {
            let help = "compute with seconds instead: extract(epoch FROM …)";
            return Err(translation_error(start..end, &format!("`{name}` of intervals"), help));
        }
        if COMMON_TYPE_FUNCTIONS.contains(&name.as_str()) || name == "nullif" {
            sql_type = self.coerce_to_common_type(exprs.iter_mut().collect())?;
        }
        if let ("is_relevant", [_, question]) = (name.as_str(), exprs.as_slice()) {
            let SqlType::Literal(question) = &question.sql_type else {
                let construct = "`is_relevant` with a computed question";
                return Err(translation_error(start..end, construct, "write the question as '…'"));
            };
            let question_sql = format!("is this document relevant to: {question}");
            let question_sql = hqdl_values::sql::quote_text(&question_sql);
            let template = format!("(answer({{}}, {question_sql}) = 'Yes')");
            let document = exprs.swap_remove(0);
            let expr = TypedSql::from_template(&template, vec![document.text], start..end);
            return self.parse_call_suffix(expr.with_boolean_type());
        }
        if let (true, [_, pattern, ..]) = (name.starts_with("regexp_"), exprs.as_slice()) {
            check_pattern(pattern, "match")?;
            self.check_regex_flags(&name, &exprs)?;
        }
        if let ("count", [one]) = (name.as_str(), exprs.as_mut_slice())
            && let [SourceFragment::Star(span, Some(table))] = one.text.as_slice()
        {
            one.text = vec![SourceFragment::CountedRows(span.clone(), table.clone(), !is_plain)];
        }
        if let ("round", [of]) = (name.as_str(), exprs.as_mut_slice()) {
            of.round_half_even();
        }
        if let (true, "string_agg", [of, between]) = (is_distinct, name.as_str(), exprs.as_slice())
        {
            return Ok(translate_string_agg_distinct(of, between, start..end));
        }
        if let Some((_, count, template)) = FUNCTIONS
            .iter()
            .find(|(n, count, _)| *n == name && [arg_count, ANY_COUNT].contains(count))
        {
            let mut expr = if is_plain || template.matches('(').count() == 1 && *count == 1 {
                self.apply_template(template, exprs, open, start, end)
            } else {
                let construct = format!("`{name}` with DISTINCT or ORDER BY in its arguments");
                return Err(translation_error(start..end, &construct, "leave them out"));
            };
            if expr.sql_type == SqlType::Unknown {
                expr.sql_type = sql_type;
            }
            return self.parse_call_suffix(expr);
        }
        if let Some(error) = self.argument_count_error(&name, arg_count, names, start..end) {
            return Err(error);
        }
        if let ("date_part" | "date_trunc", [part, _]) = (name.as_str(), exprs.as_slice()) {
            let SqlType::Literal(part) = part.sql_type.clone() else {
                return Err(translation_error(
                    start..end,
                    &format!("`{name}` with a computed part"),
                    "write the part as a text, such as 'year'",
                ));
            };
            let of = exprs.swap_remove(1);
            return Self::translate_date_part(&name, &part, of, start..end);
        }
        if name.starts_with("concat") {
            exprs.iter_mut().for_each(abbreviate_boolean);
        }
        if is_question {
            // Write the name without quotes, in case it has any.
            let expr = self.apply_template(&format!("{name}({{}})"), exprs, open, start, end);
            return self.parse_call_suffix(TypedSql { sql_type: SqlType::Call, ..expr });
        }
        let text = join_exprs(start, exprs, end);
        let expr = TypedSql { sql_type, ..TypedSql::new(text, start..end) };
        self.parse_call_suffix(expr)
    }

    /// Parses the contents of a call's parentheses.
    fn parse_arguments(&mut self) -> Result<ParsedArguments, SqlError> {
        let open = self.position;
        let is_distinct = self.eat_word("DISTINCT");
        let _ = is_distinct || self.eat_word("ALL");
        let is_plain = self.position == open;
        let mut found = ParsedArguments { exprs: Vec::new(), count: 0, is_plain, is_distinct };
        while !self.is_symbol(b')') {
            // Set-returning functions are allowed in results, but not in arguments of an aggregate
            // with FILTER.
            let expr = self.parse_expr()?;
            Self::ensure_value(&expr)?;
            found.exprs.push(expr);
            found.count += 1;
            if self.eat_words(&["ORDER", "BY"]) {
                found.is_plain = false;
                found.exprs.extend(self.parse_order_by()?);
            }
            if !self.eat_symbol(b',') {
                break;
            }
        }
        Ok(found)
    }

    /// Checks the literal flags and start position of a regular expression function, so that
    /// invalid arguments are reported before any request is made.
    fn check_regex_flags(&self, name: &str, exprs: &[TypedSql]) -> Result<(), SqlError> {
        let first = if name == "regexp_replace" { 3 } else { 2 };
        for (n, expr) in exprs.iter().enumerate().skip(first) {
            let error = |message: String| Err(SqlError::new(expr.span.clone(), message, "here"));
            if let SqlType::Literal(flags) = &expr.sql_type
                && let Some(flag) = flags.chars().find(|c| !"gi".contains(*c))
            {
                return error(format!("{name} supports the flags g and i, not `{flag}`"));
            }
            let source_text = self.sql.get(expr.span.clone()).unwrap_or_default();
            if n == first && source_text.trim().parse::<i64>().is_ok_and(|start| start < 1) {
                return error(format!("{name} counts characters from 1"));
            }
        }
        Ok(())
    }

    /// Returns the result type of a function with `arg_count` arguments, if it is known.
    fn infer_result_type(&self, name: &str, exprs: &[TypedSql], arg_count: usize) -> SqlType {
        let values = exprs.get(..arg_count).unwrap_or_default();
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
        &self,
        name: &str,
        arg_count: usize,
        names: &[Token],
        span: std::ops::Range<usize>,
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
        let name_text = names.last().map_or(name, |token| token.text(self.sql));
        let noun = if expected == "1" { "value" } else { "values" };
        let message =
            format!("`{name_text}` takes {expected} {noun}, but the call has {arg_count}");
        Some(SqlError::new(span, message, "this call"))
    }

    /// Translates a function call with a template.
    fn apply_template(
        &self,
        template: &str,
        exprs: Vec<TypedSql>,
        open: usize,
        start: usize,
        end: usize,
    ) -> TypedSql {
        // An aggregate keeps the DISTINCT and ORDER BY around its argument.
        if let Some(name) = template.strip_suffix("({})") {
            let from = self.tokens.get(open).map_or(start, |t| t.start);
            let mut text = vec![SourceFragment::Generated(name.to_owned(), start..from)];
            text.extend(join_exprs(from, exprs, end));
            return TypedSql::new(text, start..end);
        }
        let is_call = template.starts_with("{{");
        let (mut text, mut rest) = (Vec::new(), template);
        let span = start..end;
        let mut quoted = false;
        while let Some(at) = rest.find(['{', '\'']) {
            let (before, after) = rest.split_at(at);
            let (expr, consumed) = match after {
                a if a.starts_with('\'') => {
                    quoted = !quoted;
                    (None, 1)
                }
                a if a.starts_with("{}") && !(is_call && quoted) => (exprs.first(), 2),
                a if a.starts_with("{1}") => (exprs.get(1), 3),
                a if a.starts_with("{{") || a.starts_with("{}") => (None, 2),
                _ => (None, 1),
            };
            let keep = if expr.is_some() { at } else { at + consumed };
            text.push(SourceFragment::Generated(
                if expr.is_some() { before.to_owned() } else { rest[..keep].to_owned() },
                span.clone(),
            ));
            if let Some(expr) = expr {
                text.extend(expr.text.clone());
            }
            rest = &after[consumed..];
        }
        text.push(SourceFragment::Generated(rest.to_owned(), span.clone()));
        TypedSql {
            sql_type: if is_call { SqlType::Call } else { SqlType::Unknown },
            ..TypedSql::new(text, span)
        }
    }

    /// Parses FILTER and OVER.
    fn parse_call_suffix(&mut self, expr: TypedSql) -> Result<TypedSql, SqlError> {
        let start = expr.span.start;
        let mut exprs = vec![expr];
        if self.is_word("WITHIN") {
            let word = self.expect_token()?;
            let help = "use an aggregate without it, such as avg, min or max";
            return Err(translation_error(word.span(), "WITHIN GROUP", help));
        }
        if self.is_word("FILTER") && self.peek_at(1).is_some_and(|t| t.is_symbol(b'(')) {
            self.position += 2;
            self.expect_word("WHERE")?;
            exprs.push(self.parse_expr()?);
            self.expect_symbol(b')')?;
        }
        if self.eat_word("OVER") {
            if self.eat_symbol(b'(') {
                self.parse_window(&mut exprs)?;
            } else {
                self.expect_token()?;
            }
        }
        if self.previous_token_end() == exprs[0].span.end {
            return Ok(exprs.swap_remove(0));
        }
        let end = self.previous_token_end();
        let sql_type = exprs[0].sql_type.clone();
        let text = join_exprs(start, exprs, end);
        Ok(TypedSql { sql_type, ..TypedSql::new(text, start..end) })
    }

    /// Parses a window definition after its opening parenthesis.
    pub fn parse_window(&mut self, exprs: &mut Vec<TypedSql>) -> Result<(), SqlError> {
        loop {
            if self.eat_words(&["PARTITION", "BY"]) {
                exprs.extend(self.parse_exprs()?);
            } else if self.eat_words(&["ORDER", "BY"]) {
                exprs.extend(self.parse_order_by()?);
            } else if self.eat_symbol(b')') {
                return Ok(());
            } else {
                self.expect_token()?;
            }
        }
    }

    /// Parses a set-returning function in the result columns.
    fn parse_set_function(&mut self, first: Token, name: &str) -> Result<TypedSql, SqlError> {
        self.position += 1;
        let args = if self.is_symbol(b')') { Vec::new() } else { self.parse_exprs()? };
        let end = self.expect_symbol(b')')?;
        let span = first.start..end;
        let Some(array) = Self::find_set_function_array(name, args, &span)? else {
            return Err(self.expected_error("an array"));
        };
        let text = self.sql[array.span.clone()].to_owned();
        let same = |a: &TypedSql| self.sql[a.span.clone()] == *text;
        let known = self.selects.last().and_then(|s| {
            s.unnested.iter().find(|u| u.array.as_ref().is_some_and(&same)).map(|u| u.alias.clone())
        });
        let others =
            self.selects.last().is_some_and(|s| s.unnested.iter().any(|u| u.array.is_some()));
        let alias = match known {
            Some(alias) => alias,
            None if !self.may_unnest => {
                let help = "move it to FROM or to the columns of SELECT";
                return Err(translation_error(span, &format!("`{name}` in this place"), help));
            }
            None if others => {
                return Err(translation_error(
                    span,
                    "the elements of two arrays in one SELECT",
                    "unnest one of them in FROM",
                ));
            }
            None => {
                let alias = self.new_alias();
                if let Some(select) = self.selects.last_mut() {
                    let (alias, array) = (alias.clone(), Some(array));
                    select.unnested.push(super::parser::UnnestedArray {
                        alias,
                        names: Vec::new(),
                        array,
                    });
                }
                alias
            }
        };
        Ok(TypedSql::new(
            vec![SourceFragment::Generated(format!("{alias}.value"), span.clone())],
            span,
        ))
    }

    /// Returns the array with the rows of a set-returning function. Returns `None` for any other
    /// function.
    ///
    /// # Errors
    /// Returns [`SqlError`] if `unnest` does not have exactly one argument.
    pub fn find_set_function_array(
        name: &str,
        args: Vec<TypedSql>,
        span: &std::ops::Range<usize>,
    ) -> Result<Option<TypedSql>, SqlError> {
        let Some((_, template)) = SET_FUNCTIONS.iter().find(|(rows, _)| *rows == name) else {
            return Ok(None);
        };
        if *template == "{}" {
            let mut args = args;
            return match (args.pop(), args.is_empty()) {
                (Some(only), true) => Ok(Some(only)),
                _ => Err(translation_error(
                    span.clone(),
                    "`unnest` of several arrays",
                    "write one `unnest` for each array",
                )),
            };
        }
        let placeholders = vec!["{}"; args.len()].join(", ");
        // The step of a date series is an interval, so pass it as text.
        let as_text = |expr: TypedSql| match &expr.sql_type {
            SqlType::Interval(parts) => {
                let parts: Vec<String> =
                    parts.iter().map(|(n, unit)| format!("{n} {unit}")).collect();
                vec![SourceFragment::Generated(
                    hqdl_values::sql::quote_text(&parts.join(" ")),
                    expr.span,
                )]
            }
            _ => expr.text,
        };
        let operands = args.into_iter().map(as_text).collect();
        Ok(Some(TypedSql::from_template(
            &template.replace("{}", &placeholders),
            operands,
            span.clone(),
        )))
    }

    /// Returns true if a token is a name.
    pub fn is_name(&self, token: Token) -> bool {
        match token.lexeme {
            TokenKind::Quoted | TokenKind::Name => true,
            TokenKind::Word => {
                !super::expr::RESERVED_WORDS.iter().any(|w| token.is_word(self.sql, w))
            }
            _ => false,
        }
    }
}

impl TypedSql {
    /// Rounds a binary floating-point expression half to even.
    pub fn round_half_even(&mut self) {
        if self.sql_type == SqlType::Float {
            let text = vec![self.text.clone()];
            self.text = Self::from_template("suql_even({})", text, self.span.clone()).text;
        }
    }
}

/// Abbreviates a boolean to `t` or `f`, because string concatenation functions use `PostgreSQL`'s
/// output format, not its cast to text.
fn abbreviate_boolean(expr: &mut TypedSql) {
    if expr.sql_type == SqlType::Boolean {
        let template = "substr(suql_said({}), 1, 1)";
        expr.text =
            TypedSql::from_template(template, vec![expr.text.clone()], expr.span.clone()).text;
    }
}

/// Translates `string_agg(DISTINCT x, ',')`. The translation sorts the values, like `PostgreSQL`'s
/// implementation.
fn translate_string_agg_distinct(
    of: &TypedSql,
    between: &TypedSql,
    span: std::ops::Range<usize>,
) -> TypedSql {
    let template = "suql_array_to_string(nullif(json_group_array(DISTINCT {} ORDER BY {}) \
                 FILTER (WHERE {} IS NOT NULL), '[]'), {})";
    let texts = [of, of, of, between].map(|expr| expr.text.clone());
    TypedSql { sql_type: SqlType::Text, ..TypedSql::from_template(template, texts.to_vec(), span) }
}
