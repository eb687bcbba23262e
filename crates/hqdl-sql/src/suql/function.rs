//! Parser of function calls.

use super::declared::one_of;
use super::operator::is_pattern;
use super::parser::{ExprShape, Parser, Piece, joined, unsaid};
use super::text::Part;
use crate::blendsql::SqlError;
use crate::blendsql::lexer::{Lexeme, Token};

/// `PostgreSQL`'s functions: name, number of arguments, and template of the equivalent in `SQLite`.
const FUNCTIONS: [(&str, usize, &str); 90] = [
    ("bit_length", 1, "(octet_length({}) * 8)"),
    ("btrim", 2, "trim({})"),
    ("cbrt", 1, "suql_cbrt({})"),
    ("div", 2, "suql_div({})"),
    ("gcd", 2, "suql_gcd({})"),
    ("json_build_array", ANY_NUMBER, "json_array({})"),
    ("json_build_object", ANY_NUMBER, "json_object({})"),
    ("json_typeof", 1, "suql_json_typeof({})"),
    ("jsonb_build_array", ANY_NUMBER, "json_array({})"),
    ("jsonb_build_object", ANY_NUMBER, "json_object({})"),
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
    // Asks whether a document supports a claim; the score is the same truth as a number.
    ("boolean_answer", 2, "(answer({}, {1}) = 'Yes')"),
    ("boolean_answer_score", 2, "((answer({}, {1}) = 'Yes') * 1.0)"),
    ("btrim", 1, "trim({})"),
    ("cardinality", 1, "json_array_length(suql_array({}))"),
    ("char_length", 1, "length({})"),
    ("character_length", 1, "length({})"),
    ("every", 1, "min({})"),
    ("greatest", ANY_NUMBER, "suql_greatest({})"),
    ("initcap", 1, "suql_initcap({})"),
    ("json_agg", 1, "json_group_array({})"),
    ("json_array_length", 1, "json_array_length(suql_array({}))"),
    ("jsonb_agg", 1, "json_group_array({})"),
    ("jsonb_array_length", 1, "json_array_length(suql_array({}))"),
    ("least", ANY_NUMBER, "suql_least({})"),
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
    // The distance between two named places, which only a model knows.
    ("st_distance_sphere", 2, DISTANCE),
    ("st_distancesphere", 2, DISTANCE),
    ("st_distance", 2, DISTANCE),
    ("to_char", 2, "suql_to_char({}, {1})"),
    ("substr", 2, "suql_substr({})"),
    ("substr", 3, "suql_substr({})"),
    ("to_date", 2, "date(suql_by_format({}, {1}))"),
    ("to_timestamp", 1, "datetime({}, 'unixepoch')"),
    ("to_timestamp", 2, "suql_by_format({}, {1})"),
    ("upper", 1, "suql_upper({})"),
];

/// Functions that return texts.
const TEXTS: [&str; 29] = [
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

/// Functions that return arrays.
const ARRAYS: [&str; 8] = [
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
const FIRST: [&str; 10] =
    ["abs", "first_value", "lag", "last_value", "lead", "max", "min", "nth_value", "nullif", "sum"];
/// Functions that return one of their arguments.
const ANY: [&str; 4] = ["coalesce", "greatest", "ifnull", "least"];

/// Functions that return booleans.
const TRUTHS: [&str; 6] =
    ["bool_and", "bool_or", "boolean_answer", "every", "regexp_like", "starts_with"];

/// Statistical aggregates: mean, standard deviation and variance.
const SPREADS: [&str; 7] =
    ["avg", "stddev", "stddev_pop", "stddev_samp", "var_pop", "var_samp", "variance"];
/// Scalar, aggregate and window functions that return integers.
const NUMBERS: [&str; 20] = [
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

/// Any number of arguments.
const ANY_NUMBER: usize = usize::MAX;

const DISTANCE: &str = "{{LLMMap('how many metres is it from {} to {}, as the crow flies?', {}, {1}, \
                        return_type='float')}}";

/// Set-returning functions, and the template of the array with their rows.
const ROWS: [(&str, &str); 9] = [
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

/// Contents of a call's parentheses.
struct WrittenArguments {
    /// Arguments, followed by the terms of their ORDER BY.
    pieces: Vec<Piece>,
    /// Number of arguments.
    count: usize,
    /// Whether there is neither DISTINCT nor ALL nor ORDER BY.
    plain: bool,
    distinct: bool,
}

impl Parser<'_> {
    /// Parses a function call from its opening parenthesis on.
    pub fn function(&mut self, first: Token, names: &[Token]) -> Result<Piece, SqlError> {
        let start = first.start;
        let name = match names {
            [one] => one.content(self.sql).to_lowercase(),
            [.., last] => last.content(self.sql).to_lowercase(),
            [] => String::new(),
        };
        if let [schema, last] = names
            && ["public", "pg_catalog"].contains(&schema.content(self.sql).to_lowercase().as_str())
        {
            let piece = self.function(*last, std::slice::from_ref(last))?;
            return Ok(Piece { span: start..piece.span.end, ..piece });
        }
        if ROWS.iter().any(|(rows, _)| *rows == name) {
            return self.rows(first, &name);
        }
        let open = self.at;
        self.at += 1;
        let WrittenArguments { mut pieces, count: args, plain, distinct } = self.arguments()?;
        let end = self.expect(b')')?;
        let asks = matches!(name.as_str(), "answer" | "summary") && names.len() == 1;
        let mut shape = self.given(&name, &pieces, args);
        if shape == ExprShape::Span && FIRST.contains(&name.as_str()) && name != "nullif" {
            let help = "compute with its seconds: extract(epoch FROM …)";
            return Err(unsaid(start..end, &format!("`{name}` of spans of time"), help));
        }
        if ANY.contains(&name.as_str()) || name == "nullif" {
            shape = self.as_one(pieces.iter_mut().collect())?;
        }
        if let ("is_relevant", [_, question]) = (name.as_str(), pieces.as_slice()) {
            let ExprShape::Literal(question) = &question.shape else {
                return Err(unsaid(start..end, "`is_relevant` to what is computed", ""));
            };
            let asked = format!("is this document relevant to: {question}");
            let asked = hqdl_values::sql::text(&asked);
            let words = format!("(answer({{}}, {asked}) = 'Yes')");
            let document = pieces.swap_remove(0);
            let piece = Piece::filled(&words, vec![document.text], start..end);
            return self.tail(piece.boolean());
        }
        if let (true, [_, pattern, ..]) = (name.starts_with("regexp_"), pieces.as_slice()) {
            is_pattern(pattern, "match")?;
            self.are_flags(&name, &pieces)?;
        }
        if let ("count", [one]) = (name.as_str(), pieces.as_mut_slice())
            && let [Part::Star(span, Some(table))] = one.text.as_slice()
        {
            one.text = vec![Part::Rows(span.clone(), table.clone(), !plain)];
        }
        if let ("round", [of]) = (name.as_str(), pieces.as_mut_slice()) {
            of.as_even();
        }
        if let (true, "string_agg", [of, between]) = (distinct, name.as_str(), pieces.as_slice()) {
            return Ok(different_joined(of, between, start..end));
        }
        if let Some((_, count, words)) =
            FUNCTIONS.iter().find(|(n, count, _)| *n == name && [args, ANY_NUMBER].contains(count))
        {
            let mut piece = if plain || words.matches('(').count() == 1 && *count == 1 {
                self.renamed(words, pieces, open, start, end)
            } else {
                return Err(unsaid(start..end, &format!("`{name}` so"), "leave out DISTINCT"));
            };
            if piece.shape == ExprShape::Plain {
                piece.shape = shape;
            }
            return self.tail(piece);
        }
        if let Some(error) = self.miscounted(&name, args, names, start..end) {
            return Err(error);
        }
        if let ("date_part" | "date_trunc", [part, _]) = (name.as_str(), pieces.as_slice()) {
            let ExprShape::Literal(part) = part.shape.clone() else {
                return Err(unsaid(
                    start..end,
                    &format!("`{name}` of a part that is computed"),
                    "",
                ));
            };
            let of = pieces.swap_remove(1);
            return Self::part_of(&name, &part, of, start..end);
        }
        if name.starts_with("concat") {
            pieces.iter_mut().for_each(as_joined);
        }
        if asks {
            // Write the name without its quotes, if it has any.
            let piece = self.renamed(&format!("{name}({{}})"), pieces, open, start, end);
            return self.tail(Piece { shape: ExprShape::Call, ..piece });
        }
        let text = joined(start, pieces, end);
        let piece = Piece { shape, ..Piece::new(text, start..end) };
        self.tail(piece)
    }

    /// Parses the contents of a call's parentheses.
    fn arguments(&mut self) -> Result<WrittenArguments, SqlError> {
        let open = self.at;
        let distinct = self.word("DISTINCT");
        let _ = distinct || self.word("ALL");
        let plain = self.at == open;
        let mut found = WrittenArguments { pieces: Vec::new(), count: 0, plain, distinct };
        while !self.is(b')') {
            // Set-returning functions are allowed in results, but not in arguments of an aggregate
            // with FILTER.
            let piece = self.expr()?;
            Self::no_interval(&piece)?;
            found.pieces.push(piece);
            found.count += 1;
            if self.words(&["ORDER", "BY"]) {
                found.plain = false;
                found.pieces.extend(self.order()?);
            }
            if !self.symbol(b',') {
                break;
            }
        }
        Ok(found)
    }

    /// Checks the literal flags and start position of a regular expression function, so that an
    /// invalid one is reported before any request is made.
    fn are_flags(&self, name: &str, pieces: &[Piece]) -> Result<(), SqlError> {
        let first = if name == "regexp_replace" { 3 } else { 2 };
        for (n, piece) in pieces.iter().enumerate().skip(first) {
            let wrong = |message: String| Err(SqlError::new(piece.span.clone(), message, "here"));
            if let ExprShape::Literal(flags) = &piece.shape
                && let Some(flag) = flags.chars().find(|c| !"gi".contains(*c))
            {
                return wrong(format!("{name} supports the flags g and i, not `{flag}`"));
            }
            let written = self.sql.get(piece.span.clone()).unwrap_or_default();
            if n == first && written.trim().parse::<i64>().is_ok_and(|start| start < 1) {
                return wrong(format!("{name} counts characters from 1"));
            }
        }
        Ok(())
    }

    /// Returns the result type of a function with `arg_count` arguments, if it is known.
    fn given(&self, name: &str, pieces: &[Piece], args: usize) -> ExprShape {
        let values = pieces.get(..args).unwrap_or_default();
        let first = || one_of(self.sql, values.first());
        match name {
            "age" => ExprShape::Span,
            "now" | "to_timestamp" => ExprShape::Timestamp,
            "make_date" | "to_date" => ExprShape::Date,
            "round" | "trunc" if values.len() == 2 => ExprShape::Numeric,
            "ceil" | "ceiling" | "floor" | "round" | "sign" | "trunc" => match first() {
                ExprShape::Number => ExprShape::Float,
                of => of,
            },
            "cbrt" | "exp" | "ln" | "log" | "power" | "sqrt" => {
                let of = one_of(self.sql, values);
                if of == ExprShape::Numeric { of } else { ExprShape::Float }
            }
            "div" | "mod" => one_of(self.sql, values),
            "random" => ExprShape::Float,
            _ if SPREADS.contains(&name) => match first() {
                ExprShape::Float => ExprShape::Float,
                _ => ExprShape::Numeric,
            },
            _ if TRUTHS.contains(&name) => ExprShape::Boolean,
            _ if NUMBERS.contains(&name) => ExprShape::Number,
            _ if TEXTS.contains(&name) => ExprShape::Text,
            _ if ARRAYS.contains(&name) => ExprShape::Array,
            "sum" | "abs" if first() == ExprShape::Plain => ExprShape::Number,
            _ if FIRST.contains(&name) => first(),
            _ => ExprShape::Plain,
        }
    }

    /// Returns an error if a `PostgreSQL` function does not accept this number of arguments.
    /// Returns `None` for a function that `SQLite` has under the same name.
    fn miscounted(
        &self,
        name: &str,
        args: usize,
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
        let takes = match (counts.first(), counts.last()) {
            (Some(least), Some(most)) if counts.len() > 2 => format!("{least} to {most}"),
            _ => counts.iter().map(ToString::to_string).collect::<Vec<_>>().join(" or "),
        };
        let written = names.last().map_or(name, |token| token.text(self.sql));
        let noun = if takes == "1" { "value" } else { "values" };
        let message = format!("`{written}` takes {takes} {noun}, but the call has {args}");
        Some(SqlError::new(span, message, "this call"))
    }

    /// Translates a function call with a template.
    fn renamed(
        &self,
        words: &str,
        pieces: Vec<Piece>,
        open: usize,
        start: usize,
        end: usize,
    ) -> Piece {
        // An aggregate keeps DISTINCT and ORDER BY around its argument.
        if let Some(name) = words.strip_suffix("({})") {
            let from = self.tokens.get(open).map_or(start, |t| t.start);
            let mut text = vec![Part::New(name.to_owned(), start..from)];
            text.extend(joined(from, pieces, end));
            return Piece::new(text, start..end);
        }
        let call = words.starts_with("{{");
        let (mut text, mut rest) = (Vec::new(), words);
        let span = start..end;
        let mut quoted = false;
        while let Some(at) = rest.find(['{', '\'']) {
            let (before, after) = rest.split_at(at);
            let (piece, taken) = match after {
                a if a.starts_with('\'') => {
                    quoted = !quoted;
                    (None, 1)
                }
                a if a.starts_with("{}") && !(call && quoted) => (pieces.first(), 2),
                a if a.starts_with("{1}") => (pieces.get(1), 3),
                a if a.starts_with("{{") || a.starts_with("{}") => (None, 2),
                _ => (None, 1),
            };
            let keep = if piece.is_some() { at } else { at + taken };
            text.push(Part::New(
                if piece.is_some() { before.to_owned() } else { rest[..keep].to_owned() },
                span.clone(),
            ));
            if let Some(piece) = piece {
                text.extend(piece.text.clone());
            }
            rest = &after[taken..];
        }
        text.push(Part::New(rest.to_owned(), span.clone()));
        Piece {
            shape: if call { ExprShape::Call } else { ExprShape::Plain },
            ..Piece::new(text, span)
        }
    }

    /// Parses FILTER and OVER.
    fn tail(&mut self, piece: Piece) -> Result<Piece, SqlError> {
        let start = piece.span.start;
        let mut pieces = vec![piece];
        if self.is_word("WITHIN") {
            let word = self.take()?;
            return Err(unsaid(word.span(), "WITHIN GROUP", ""));
        }
        if self.is_word("FILTER") && self.peek_at(1).is_some_and(|t| t.is(b'(')) {
            self.at += 2;
            self.expect_word("WHERE")?;
            pieces.push(self.expr()?);
            self.expect(b')')?;
        }
        if self.word("OVER") {
            if self.symbol(b'(') {
                self.window(&mut pieces)?;
            } else {
                self.take()?;
            }
        }
        if self.before() == pieces[0].span.end {
            return Ok(pieces.swap_remove(0));
        }
        let end = self.before();
        let shape = pieces[0].shape.clone();
        let text = joined(start, pieces, end);
        Ok(Piece { shape, ..Piece::new(text, start..end) })
    }

    /// Parses a window definition after its opening parenthesis.
    pub fn window(&mut self, pieces: &mut Vec<Piece>) -> Result<(), SqlError> {
        loop {
            if self.words(&["PARTITION", "BY"]) {
                pieces.extend(self.list()?);
            } else if self.words(&["ORDER", "BY"]) {
                pieces.extend(self.order()?);
            } else if self.symbol(b')') {
                return Ok(());
            } else {
                self.take()?;
            }
        }
    }

    /// Parses a set-returning function in the result columns.
    fn rows(&mut self, first: Token, name: &str) -> Result<Piece, SqlError> {
        self.at += 1;
        let args = if self.is(b')') { Vec::new() } else { self.list()? };
        let end = self.expect(b')')?;
        let span = first.start..end;
        let Some(array) = Self::array_of_rows(name, args, &span)? else {
            return Err(self.expected("an array"));
        };
        let text = self.sql[array.span.clone()].to_owned();
        let same = |a: &Piece| self.sql[a.span.clone()] == *text;
        let known = self.selects.last().and_then(|s| {
            s.unnested.iter().find(|u| u.array.as_ref().is_some_and(&same)).map(|u| u.alias.clone())
        });
        let others =
            self.selects.last().is_some_and(|s| s.unnested.iter().any(|u| u.array.is_some()));
        let alias = match known {
            Some(alias) => alias,
            None if !self.may_unnest => {
                return Err(unsaid(span, &format!("`{name}` here"), "put it into FROM"));
            }
            None if others => {
                return Err(unsaid(span, "two arrays side by side", "unnest one of them in FROM"));
            }
            None => {
                let alias = self.name();
                if let Some(select) = self.selects.last_mut() {
                    let (alias, array) = (alias.clone(), Some(array));
                    select.unnested.push(super::parser::Unnested {
                        alias,
                        names: Vec::new(),
                        array,
                    });
                }
                alias
            }
        };
        Ok(Piece::new(vec![Part::New(format!("{alias}.value"), span.clone())], span))
    }

    /// Returns the array with the rows of a set-returning function; `None` for any other function.
    ///
    /// # Errors
    /// [`SqlError`] for several arrays at once.
    pub fn array_of_rows(
        name: &str,
        args: Vec<Piece>,
        span: &std::ops::Range<usize>,
    ) -> Result<Option<Piece>, SqlError> {
        let Some((_, words)) = ROWS.iter().find(|(rows, _)| *rows == name) else { return Ok(None) };
        if *words == "{}" {
            let mut args = args;
            return match (args.pop(), args.is_empty()) {
                (Some(only), true) => Ok(Some(only)),
                _ => Err(unsaid(span.clone(), "two arrays side by side", "unnest them one by one")),
            };
        }
        let holes = vec!["{}"; args.len()].join(", ");
        // The step of a date series is an interval, passed as text.
        let as_text = |piece: Piece| match &piece.shape {
            ExprShape::Interval(parts) => {
                let parts: Vec<String> =
                    parts.iter().map(|(n, unit)| format!("{n} {unit}")).collect();
                vec![Part::New(hqdl_values::sql::text(&parts.join(" ")), piece.span)]
            }
            _ => piece.text,
        };
        let pieces = args.into_iter().map(as_text).collect();
        Ok(Some(Piece::filled(&words.replace("{}", &holes), pieces, span.clone())))
    }

    /// Returns true if a token is a name.
    pub fn is_name(&self, token: Token) -> bool {
        match token.lexeme {
            Lexeme::Quoted | Lexeme::Name => true,
            Lexeme::Word => !super::expr::RESERVED.iter().any(|w| token.is_word(self.sql, w)),
            _ => false,
        }
    }
}

impl Piece {
    /// Rounds a binary floating-point number half to even.
    pub fn as_even(&mut self) {
        if self.shape == ExprShape::Float {
            let text = vec![self.text.clone()];
            self.text = Self::filled("suql_even({})", text, self.span.clone()).text;
        }
    }
}

/// Abbreviates a boolean to `t` or `f`: string concatenation functions use `PostgreSQL`'s output
/// format, not its cast to text.
fn as_joined(piece: &mut Piece) {
    if piece.shape == ExprShape::Boolean {
        let words = "substr(suql_said({}), 1, 1)";
        piece.text = Piece::filled(words, vec![piece.text.clone()], piece.span.clone()).text;
    }
}

/// Translates `string_agg(DISTINCT x, ',')`; the values are sorted, as `PostgreSQL`'s
/// implementation does.
fn different_joined(of: &Piece, between: &Piece, span: std::ops::Range<usize>) -> Piece {
    let words = "suql_array_to_string(nullif(json_group_array(DISTINCT {} ORDER BY {}) \
                 FILTER (WHERE {} IS NOT NULL), '[]'), {})";
    let texts = [of, of, of, between].map(|piece| piece.text.clone());
    Piece { shape: ExprShape::Text, ..Piece::filled(words, texts.to_vec(), span) }
}
