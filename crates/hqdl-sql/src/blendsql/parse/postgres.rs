//! Syntax that only `PostgreSQL` has, in queries that are sent to a server, and in queries in `SUQL`:
//!
//! | syntax | node |
//! |---|---|
//! | `ILIKE`, `SIMILAR TO`, `~`, `!~*`, `~~` | LIKE |
//! | `DATE '…'`, `interval '…' day` | a literal |
//! | `x::numeric(5, 2)[]` | CAST |
//! | `x AT TIME ZONE y`, `x @> y`, `x ^ y` | a binary operation |
//! | `ARRAY[…]`, `ARRAY (…)`, `x[1]`, `ANY (…)`, `t.*` | an operation |
//! | `ROW (…)` | a row value |
//! | `extract(year FROM x)`, `position(x IN y)` | a function |
//! | `mode() WITHIN GROUP (ORDER BY x)` | a function with the argument `x` |
//! | `FETCH FIRST n ROWS ONLY` | LIMIT |
//!
//! Only queries in `SUQL` can have the syntax in this table, because the planner does not support it:
//!
//! | syntax | node |
//! |---|---|
//! | `SELECT DISTINCT ON (x) …` | a SELECT with `distinct_on` |
//! | `TABLE t`, `(SELECT …) UNION …` | `SELECT * FROM …` |
//! | `EXISTS (SELECT FROM t)` | a SELECT without columns |
//! | `FROM t AS u (a, b)` | an entry with `column_names` |

use crate::blendsql::SqlError;
use crate::blendsql::lexer::TokenKind;
use crate::blendsql::parse::cursor::{MAX_DEPTH, QueryParser};
use crate::blendsql::parse::expr::Precedence;
use crate::blendsql::tree::{Expr, ExprKind, ExprOperator, FromSource, Query};

/// Types whose name may precede a string literal.
const TYPES: [&str; 12] = [
    "DATE",
    "TIME",
    "TIMETZ",
    "TIMESTAMP",
    "TIMESTAMPTZ",
    "INTERVAL",
    "NUMERIC",
    "INTEGER",
    "BOOLEAN",
    "UUID",
    "JSON",
    "JSONB",
];
/// Operators that compare a text with a pattern, ordered so that no operator is a prefix of a later
/// one.
const PATTERN_OPERATORS: [&str; 8] = ["!~~*", "!~~", "!~*", "!~", "~~*", "~~", "~*", "~"];
/// Binary operators that `SQLite` does not have, ordered so that no operator is a prefix of a later
/// one.
const BINARY_OPERATORS: [&str; 8] = ["@>", "<@", "&&", "#>>", "#>", "#-", "^@", "^"];
/// Functions whose arguments are separated by words instead of commas, with the separating words.
const WORD_SEPARATED: [(&str, &[&str]); 5] = [
    ("extract", &["FROM"]),
    ("overlay", &["PLACING", "FROM", "FOR"]),
    ("position", &["IN"]),
    ("substring", &["FROM", "FOR", "SIMILAR", "ESCAPE"]),
    ("trim", &["FROM"]),
];
/// Words before an array or a query in parentheses that a value is compared with.
const QUANTIFIERS: [&str; 3] = ["ALL", "ANY", "SOME"];
/// Words that may follow the string of an interval, also in the plural.
const FIELDS: [&str; 10] =
    ["YEAR", "MONTH", "DAY", "HOUR", "MINUTE", "SECOND", "WEEK", "DECADE", "MON", "MIN"];
/// Words that may follow the first word of a type name.
const MORE_OF_TYPE: [&str; 6] = ["PRECISION", "VARYING", "WITH", "WITHOUT", "TIME", "ZONE"];
/// Types whose name may have several words.
const LONG_TYPES: [&str; 4] = ["DOUBLE", "CHARACTER", "TIME", "TIMESTAMP"];

impl QueryParser<'_> {
    /// Returns the number of tokens of the next literal if the literal begins with its type.
    pub(super) fn typed_literal_token_count(&self) -> Option<usize> {
        let is_text = self.peek_after(1).is_some_and(|t| t.lexeme == TokenKind::Text);
        if !is_text || !TYPES.iter().any(|word| self.is_word(word)) {
            return None;
        }
        let field = self.peek_after(2).filter(|t| t.lexeme == TokenKind::Word);
        let field = field.map(|t| self.text(t).to_ascii_uppercase()).unwrap_or_default();
        let is_field = FIELDS.contains(&field.strip_suffix('S').unwrap_or(&field));
        Some(if self.is_word("INTERVAL") && is_field { 3 } else { 2 })
    }

    /// Returns the number of tokens of the next operator if it compares a text with a pattern.
    pub(super) fn pattern_operator_length(&self) -> Option<usize> {
        let rest = self.sql.get(self.peek()?.start..self.text_end)?;
        let sign = PATTERN_OPERATORS.into_iter().find(|sign| rest.starts_with(sign));
        sign.filter(|_| self.is_postgres).map(str::len)
    }

    /// Returns the next binary operator if `SQLite` does not have it.
    pub(super) fn peek_postgres_operator(&self) -> Option<&'static str> {
        let rest = self.sql.get(self.peek()?.start..self.text_end)?;
        BINARY_OPERATORS.into_iter().find(|sign| self.is_postgres && rest.starts_with(sign))
    }

    /// Returns true if ANY, ALL or SOME is next, followed by an opening parenthesis.
    pub(super) fn begins_quantifier(&self) -> bool {
        let is_quantifier = QUANTIFIERS.iter().any(|word| self.is_word(word));
        self.is_postgres && is_quantifier && self.is_symbol_after(1, b'(')
    }

    /// Parses an operand that begins with a word, if only `PostgreSQL` has it.
    pub(super) fn parse_postgres_word(&mut self) -> Result<Option<ExprKind>, SqlError> {
        let Some(word) = self.peek().filter(|_| self.is_postgres) else { return Ok(None) };
        if let Some(tokens) = self.typed_literal_token_count() {
            self.at += tokens;
            return Ok(Some(ExprKind::Literal));
        }
        let is_bits = ["B", "X", "U"].iter().any(|prefix| self.is_word(prefix));
        let text = self.peek_after(1).filter(|t| t.lexeme == TokenKind::Text);
        if let Some(text) = text.filter(|t| is_bits && self.is_suql && t.start == word.end) {
            let help = "write a number, or a text in '…'";
            return Err(SqlError::untranslatable(word.start..text.end, "a bit string", help));
        }
        if self.is_word("ARRAY") && self.is_symbol_after(1, b'[') {
            self.at += 1;
            return self.parse_array_elements().map(Some);
        }
        if !self.is_symbol_after(1, b'(') {
            return Ok(None);
        }
        if self.is_word("ROW") {
            self.at += 1;
            return self.parse_parenthesized().map(Some);
        }
        let is_quantifier = self.begins_quantifier();
        if !is_quantifier && !self.is_word("ARRAY") {
            return Ok(None);
        }
        let operator = if is_quantifier { ExprOperator::Quantified } else { ExprOperator::Array };
        self.at += 1;
        let start = self.next_start();
        let kind = self.parse_parenthesized()?;
        let operand = Expr { span: self.span_from(start), kind };
        Ok(Some(ExprKind::Operation(operator, vec![operand])))
    }

    /// Parses `[…]` after ARRAY. The elements of an array of arrays need no ARRAY.
    fn parse_array_elements(&mut self) -> Result<ExprKind, SqlError> {
        self.expect_symbol(b'[')?;
        let mut elements = Vec::new();
        if !self.is_symbol(b']') {
            elements = self.read_list(|p| {
                if !p.is_symbol(b'[') {
                    return p.parse_expr();
                }
                let start = p.next_start();
                let kind = p.parse_nested(Self::parse_array_elements)?;
                Ok(Expr { span: p.span_from(start), kind })
            })?;
        }
        self.expect_symbol(b']')?;
        Ok(ExprKind::Operation(ExprOperator::Array, elements))
    }

    /// Parses the subscripts after an array, if there are any.
    pub(super) fn parse_subscripts(&mut self, mut array: Expr) -> Result<Expr, SqlError> {
        while self.is_postgres && self.eat_symbol(b'[') {
            let start = array.span.start;
            let mut operands = vec![array];
            while !self.eat_symbol(b']') {
                // The lexer reads `:2` as a parameter.
                let bound = self.peek().filter(|t| {
                    t.is_symbol(b':') || t.lexeme == TokenKind::Parameter && operands.len() > 1
                });
                let Some(bound) = bound else {
                    operands.push(self.parse_expr()?);
                    continue;
                };
                if self.is_suql {
                    let help = "select single elements: a[1]";
                    let span = start..bound.start + 1;
                    return Err(SqlError::untranslatable(span, "a slice of an array", help));
                }
                self.at += 1;
            }
            self.add_enclosing_node(start)?;
            let kind = ExprKind::Operation(ExprOperator::Subscript, operands);
            array = Expr { span: self.span_from(start), kind };
        }
        Ok(array)
    }

    /// Parses a function's arguments, which may be separated by words instead of commas.
    pub(super) fn parse_function_arguments(
        &mut self,
        function: &str,
    ) -> Result<Vec<Expr>, SqlError> {
        let separators =
            WORD_SEPARATED.iter().find(|(name, _)| self.is_postgres && *name == function);
        let Some((_, separators)) = separators else { return self.read_list(Self::parse_expr) };
        if function == "extract" {
            // The field is a keyword or a string, not a column.
            self.advance();
            self.expect_word("FROM")?;
        } else if function == "trim" {
            let _side = ["BOTH", "LEADING", "TRAILING"].iter().any(|word| self.eat_word(word));
            self.eat_word("FROM");
        }
        // IN separates the arguments of `position`.
        let loosest = if function == "position" { Precedence::Bits } else { Precedence::Or };
        let mut arguments = Vec::new();
        loop {
            arguments.push(self.parse_binary(loosest, false)?);
            if !self.eat_symbol(b',') && !separators.iter().any(|word| self.eat_word(word)) {
                return Ok(arguments);
            }
        }
    }

    /// Parses WITHIN GROUP (ORDER BY …) if it is next.
    pub(super) fn parse_within_group(&mut self) -> Result<Vec<Expr>, SqlError> {
        if !self.is_postgres || !self.is_word("WITHIN") || !self.is_word_after(1, "GROUP") {
            return Ok(Vec::new());
        }
        self.reject_word(
            "WITHIN",
            "WITHIN GROUP",
            "use an aggregate without it, such as avg, min or max",
        )?;
        self.at += 2;
        self.expect_symbol(b'(')?;
        let terms = self.parse_order_by()?;
        self.expect_symbol(b')')?;
        Ok(terms.into_iter().map(|term| term.expr).collect())
    }

    /// Parses LIMIT, OFFSET and FETCH in any order. Returns the limit and the offset.
    pub(super) fn parse_postgres_limit(
        &mut self,
    ) -> Result<(Option<Expr>, Option<Expr>), SqlError> {
        let (mut limit, mut offset) = (None, None);
        loop {
            let start = self.next_start();
            if self.eat_word("LIMIT") {
                limit = if self.eat_word("ALL") { None } else { Some(self.parse_expr()?) };
            } else if self.eat_word("OFFSET") {
                offset = Some(self.parse_expr()?);
                let _unit = self.eat_word("ROWS") || self.eat_word("ROW");
            } else if self.eat_word("FETCH") {
                if !self.eat_word("FIRST") {
                    self.expect_word("NEXT")?;
                }
                if !self.is_word("ROW") && !self.is_word("ROWS") {
                    limit = Some(self.parse_binary(Precedence::Bits, false)?);
                }
                if !self.eat_word("ROWS") {
                    self.expect_word("ROW")?;
                }
                if self.eat_word("WITH") {
                    if self.is_suql {
                        let span = self.span_from(start);
                        let help = "write ROWS ONLY instead";
                        return Err(SqlError::untranslatable(span, "WITH TIES", help));
                    }
                    // `WITH TIES` can return more rows than the limit.
                    self.expect_word("TIES")?;
                    limit = None;
                } else {
                    self.expect_word("ONLY")?;
                }
            } else {
                self.reject_word("FOR", "row locks", "queries are read-only")?;
                return Ok((limit, offset));
            }
        }
    }

    /// Reads the type of a cast.
    pub(super) fn read_postgres_type(&mut self) -> Result<String, SqlError> {
        let start = self.next_start();
        let is_long = LONG_TYPES.iter().any(|word| self.is_word(word));
        self.read_name()?;
        let is_more = |p: &Self| is_long && MORE_OF_TYPE.iter().any(|word| p.is_word(word));
        while is_more(self) {
            self.at += 1;
        }
        if self.eat_symbol(b'(') {
            self.read_list(|p| match p.advance() {
                Some(token) if token.lexeme == TokenKind::Number => Ok(()),
                _ => {
                    p.at = p.at.saturating_sub(1);
                    Err(p.unexpected_error())
                }
            })?;
            self.expect_symbol(b')')?;
        }
        // `timestamp(3) with time zone`
        while is_more(self) {
            self.at += 1;
        }
        while self.eat_symbol(b'[') {
            while !self.eat_symbol(b']') {
                self.advance().ok_or_else(|| self.unexpected_error())?;
            }
        }
        Ok(self.sql.get(self.span_from(start)).unwrap_or_default().to_owned())
    }

    /// Parses ON (…) after DISTINCT if it is next.
    pub(super) fn parse_distinct_on(&mut self) -> Result<Vec<Expr>, SqlError> {
        if self.is_suql && self.eat_word("ON") {
            self.parse_list_in_parens()
        } else {
            Ok(Vec::new())
        }
    }

    /// Returns true if TABLE or a query in parentheses begins `count` tokens after the next one.
    pub(super) fn begins_suql_query_after(&self, count: usize) -> bool {
        if !self.is_symbol_after(count, b'(') {
            return self.is_word_after(count, "TABLE");
        }
        let mut inner = count + 1;
        // Deeper nesting is an error.
        while inner <= count + MAX_DEPTH && self.is_symbol_after(inner, b'(') {
            inner += 1;
        }
        self.begins_query_after(inner) && self.is_whole_query(inner)
    }

    /// Returns true if the parentheses around the query at a token contain nothing else.
    fn is_whole_query(&self, first: usize) -> bool {
        let mut depth = 0_usize;
        let mut at = self.at + first;
        while let Some(token) = self.tokens.get(at).filter(|_| at < self.end) {
            at += 1;
            if token.is_symbol(b'(') {
                depth += 1;
            } else if token.is_symbol(b')') && depth > 0 {
                depth -= 1;
            } else if token.is_symbol(b')') {
                let words = ["UNION", "EXCEPT", "INTERSECT", "ORDER", "LIMIT", "OFFSET", "FETCH"];
                return self.tokens.get(at).filter(|_| at < self.end).is_none_or(|next| {
                    next.is_symbol(b')') || words.iter().any(|w| next.is_word(self.sql, w))
                });
            }
        }
        false
    }

    /// Parses `TABLE t` or a query in parentheses as `SELECT * FROM …`. Returns `None` if neither is
    /// next.
    pub(super) fn parse_whole_table(&mut self) -> Result<Option<Query>, SqlError> {
        let start = self.next_start();
        if self.is_symbol(b'(') {
            let inner = FromSource::Query(Box::new(self.parse_query_in_parens()?));
            return Ok(Some(Query::select_all(inner, None, self.span_from(start))));
        }
        if !self.eat_word("TABLE") {
            return Ok(None);
        }
        let (source, name) = self.parse_from_source()?;
        Ok(Some(Query::select_all(source, name, self.span_from(start))))
    }

    /// Fails if a word is next that begins a construct without translation to `SQLite`.
    pub(super) fn reject_word(
        &self,
        word: &str,
        construct: &str,
        help: &str,
    ) -> Result<(), SqlError> {
        match self.peek().filter(|t| self.is_suql && t.is_word(self.sql, word)) {
            Some(token) => Err(SqlError::untranslatable(token.span(), construct, help)),
            None => Ok(()),
        }
    }
}
